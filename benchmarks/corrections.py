"""The worlds, the backbones and the corrections of `debiasing.py`, and what a job of it is.

A new correction is a line of CORRECTIONS, a new backbone one of BACKBONES.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from unskew.experiments import extra_suites as beyond
from unskew.world.equations import Simulation
from unskew.world.kinds import kind_named

# Small enough for two hours, and with clicks enough of each user (about 55) that networks learn their taste.
# With a third of them they hardly do; then popularity, a part of which is deserved, is a better guess than
# what is left of a model without it, and every correction that takes exposure out does harm.
SIZE = beyond.KNOWN
WORLDS = {
    "popularity only": replace(kind_named("popularity"), **SIZE),
    "bias 0": replace(kind_named("bias-0"), **SIZE),
    "bias 1": replace(kind_named("bias-1"), **SIZE),
    "bias 2": replace(kind_named("bias-2"), **SIZE),
}
UNCORRECTED = "nothing"


@dataclass(frozen=True)
class Backbone:
    """A model, its settings here, and how it is corrected: by a wrapper, or by settings of its own."""

    model: str
    settings: dict[str, Any]
    wrapped: bool = False  # whether corrections are settings of `debiased-MODEL`, and not its own
    correctable: bool = True
    clicks_only: bool = False  # whether it is not told what was shown and not clicked


# Every network first learns who is popular, and stays there for some hundreds of steps before it learns who
# likes what. So the recipes have small batches, and patience enough to get beyond that. Of DEPS, whose
# pairs are scored by a sum of two sides, only the history is read: with audiences it takes far longer. The
# paper's estimator reads audiences in any case: the 30 newest, where each item has hundreds.
BACKBONES = {
    "popularity": Backbone("popularity", {}, correctable=False),
    "ItemKNN": Backbone("itemknn", {}, correctable=False),
    "SASRec, clicks, softmax": Backbone("sasrec", beyond.SASREC, wrapped=True),
    "DEPS, impressions": Backbone("deps", beyond.SMALL_DEPS),
    "DEPS, clicks + uniform negatives": Backbone(
        "deps", beyond.SMALL_DEPS | {"negatives": 1}, clicks_only=True
    ),
    "Pulse": Backbone("pulse", {"neighbours": 300}),
}
# A name, and the settings for each backbone that can have it. `debias` is turned after training.
SASREC, SHOWN, CLICKS = "SASRec, clicks, softmax", "DEPS, impressions", "DEPS, clicks + uniform negatives"
NONE = {"propensity": "none"}
PAPER: dict[str, Any] = {"method": "ips-both", "propensity": "dual"}
CORRECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    UNCORRECTED: {SASREC: NONE, SHOWN: NONE, CLICKS: NONE, "Pulse": {"debias": 0.0}},
    "1/p, two GRUs, M 0.05 (the paper's)": {SASREC: PAPER, SHOWN: PAPER, CLICKS: PAPER},
    "1/p, Item-Pro, M 0.05": {
        name: {"method": "ips-both", "propensity": "item-pro"} for name in (SASREC, SHOWN, CLICKS)
    },
    "1/p, clicks and negatives, power": {
        CLICKS: {"method": "ips-both", "propensity": "power", "clip": 0.001}
    },
    "clicks x (1/p)^1/2, exposure": {SASREC: {"method": "ips", "propensity": "exposure", "clip": 0.001}},
    "clicks x 1/p, power": {CLICKS: {"method": "ips", "propensity": "power", "strength": 1.0, "clip": 0.001}},
    "(1/p)^1/2, exposure": {SHOWN: {"method": "ips", "propensity": "exposure", "clip": 0.001}},
    # What `auto` did with impressions before this was measured.
    "(1/p)^1/2, exposure, M 0.05": {SHOWN: {"method": "ips", "propensity": "exposure", "clip": 0.05}},
    "1/p, exposure": {SHOWN: {"method": "ips", "propensity": "exposure", "strength": 1.0, "clip": 0.001}},
    "negatives x p, power": {
        CLICKS: {"method": "weighted-negatives", "propensity": "power", "strength": 1.0}
    },
    "offset, exposure": {SASREC: {"method": "logit-offset", "propensity": "exposure", "strength": 1.0}},
    "offset of 1/2 log p, exposure": {
        SASREC: {"method": "logit-offset", "propensity": "exposure", "strength": 0.5}
    },
    "offset of 1/2 log p, power": {
        SASREC: {"method": "logit-offset", "propensity": "power", "strength": 0.5}
    },
    "offset, power": {
        SASREC: {"method": "logit-offset", "propensity": "power", "strength": 1.0},
        CLICKS: {"method": "logit-offset", "propensity": "power", "strength": 1.0},
    },
    # What `debiased-NAME` and `deps --preset auto` do if nothing is said.
    "auto, the default": {name: {"method": "auto", "propensity": "auto"} for name in (SASREC, SHOWN, CLICKS)},
    "debias 0.5": {"Pulse": {"debias": 0.5}},
    "debias 1": {"Pulse": {"debias": 1.0}},
    "debias by validation": {"Pulse": {}},
}

# What prototypes of the same corrections had found, with other backbones: differences to the twin, in the
# order of the worlds.
PROTOTYPE: dict[tuple[str, str], tuple[float, ...]] = {
    (SHOWN, "1/p, two GRUs, M 0.05 (the paper's)"): (0.0, 0.0, 0.0, 0.0),
    (SHOWN, "1/p, Item-Pro, M 0.05"): (-0.059, -0.019, -0.040, -0.060),
    (SHOWN, "(1/p)^1/2, exposure"): (0.002, 0.0, 0.010, -0.002),
    (SHOWN, "1/p, exposure"): (-0.031, 0.001, -0.022, -0.030),
    (CLICKS, "1/p, clicks and negatives, power"): (-0.030, -0.002, -0.005, -0.011),
    (CLICKS, "clicks x 1/p, power"): (0.026, 0.0, 0.010, 0.011),
    (CLICKS, "negatives x p, power"): (0.045, 0.0, 0.015, 0.033),
    (SASREC, "clicks x (1/p)^1/2, exposure"): (0.040, 0.003, 0.024, 0.022),
    (SASREC, "offset, exposure"): (0.045, -0.005, 0.025, 0.026),
    (SASREC, "1/p, Item-Pro, M 0.05"): (-0.108, -0.133, -0.074, -0.003),
}
LEAST = 0.005  # a smaller difference is none


@dataclass(frozen=True)
class Job:
    """One run: a world, a seed of it and of the training, a backbone and a correction."""

    world: str
    seed: int
    backbone: str
    correction: str

    def asked(self) -> tuple[str, dict[str, Any]] | None:
        """The model and its settings; None if the backbone cannot have the correction."""
        backbone = BACKBONES[self.backbone]
        if not backbone.correctable:
            return (backbone.model, {**backbone.settings}) if self.correction == UNCORRECTED else None
        settings = CORRECTIONS[self.correction].get(self.backbone)
        if settings is None:
            return None
        name = f"debiased-{backbone.model}" if backbone.wrapped else backbone.model
        return name, backbone.settings | settings | {"seed": self.seed}


def simulation(world: str) -> dict[str, Any]:
    """The settings of a world that are not the defaults."""
    default = asdict(Simulation())
    return {name: value for name, value in asdict(WORLDS[world]).items() if value != default[name]}


def job_of(line: dict[str, Any]) -> Job:
    """The job that a stored line is of."""
    return Job(line["world"], line["seed"], line["backbone"], line["correction"])
