"""What debiases? Treatments of several backbones against their untreated twins, by the truth, in worlds where
it is known.

    python benchmarks/debiasing.py run [--worlds NAME ...] [--backbones NAME ...] [--treatments NAME ...]
    python benchmarks/debiasing.py page

Four worlds, three seeds of each, and every backbone once untreated and once with each treatment, with
everything else equal. A run is a line of results/debiasing.jsonl with its truth (`unskew.world.truth`) for
the weights that each version of the validation part chose. What is there already, with the same settings, is
not done again. A treatment that this version of the package does not have is left out, and that is said. The
tables go into docs/truth.md. All of it takes about two hours on one core.

A new treatment is a line of TREATMENTS, a new backbone one of BACKBONES.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import tyro
from numpy.typing import NDArray
from pages import replace_between

import unskew
from unskew.errors import BadInput
from unskew.world.equations import Simulation
from unskew.world.kinds import kind_named
from unskew.world.simulate import World, simulate
from unskew.world.truth import truth

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "debiasing.jsonl", ROOT / "docs" / "truth.md"
BEGIN, END = "<!-- made by benchmarks/debiasing.py -->", "<!-- end of what benchmarks/debiasing.py made -->"
SEEDS, VISITS = (0, 1, 2), 500
# The version of the validation part that chooses the weights in the tables. Ordinary clicks are as skewed as
# those that a model is trained on.
CHOOSE_BY = "shown"

# Small enough for two hours, and with clicks enough of each user (about 55) that networks learn their taste.
# With a third of them they hardly do; then popularity, a part of which is deserved, is a better guess than
# what is left of a model without it, and every treatment that takes exposure out does harm.
SIZE: dict[str, Any] = {"users": 1000, "items": 100, "shown": 8.0, "steps": 300, "drift": 0.3}
WORLDS = {
    "popularity only": replace(kind_named("popularity"), **SIZE),
    "bias 0": replace(kind_named("bias-0"), **SIZE),
    "bias 1": replace(kind_named("bias-1"), **SIZE),
    "bias 2": replace(kind_named("bias-2"), **SIZE),
}
UNTREATED = "nothing"


@dataclass(frozen=True)
class Backbone:
    """A model, its settings here, and how it is treated: by a wrapper, or by settings of its own."""

    model: str
    settings: dict[str, Any]
    wrapped: bool = False  # whether treatments are settings of `debiased-MODEL`, and not its own
    treatable: bool = True
    clicks_only: bool = False  # whether it is not told what was shown and not clicked


DEPS: dict[str, Any] = {
    "reads": "history",
    "audience": 30,
    "width": 32,
    "layers": 1,
    "inner": 64,
    "dropout": 0.0,
    "hidden_ids": 0.0,
    "unsupervised_rounds": 1,
    "batch_size": 512,
    "learning_rate": 5e-3,
    "rounds": 10,
    "patience": 5,
}
# Every network first learns who is popular, and stays there for some hundreds of steps before it learns who
# likes what. So the recipes have small batches, and patience enough to get beyond that. Of DEPS, whose
# pairs are scored by a sum of two sides, only the history is read: with audiences it takes far longer. The
# paper's estimator reads audiences in any case: the 30 newest, where each item has hundreds.
BACKBONES = {
    "popularity": Backbone("popularity", {}, treatable=False),
    "ItemKNN": Backbone("itemknn", {}, treatable=False),
    "SASRec, clicks, softmax": Backbone(
        "sasrec", {"sequences": 32, "rounds": 12, "patience": 6, "dropout": 0.2}, wrapped=True
    ),
    "DEPS, impressions": Backbone("deps", DEPS),
    "DEPS, clicks + uniform negatives": Backbone("deps", DEPS | {"negatives": 1}, clicks_only=True),
    "Pulse": Backbone("pulse", {"neighbours": 300}),
}
# A name, and the settings for each backbone that can have it. `dial` is turned after training.
SASREC, SHOWN, CLICKS = "SASRec, clicks, softmax", "DEPS, impressions", "DEPS, clicks + uniform negatives"
NONE = {"propensity": "none"}
PAPER: dict[str, Any] = {"how": "both", "propensity": "dual"}
TREATMENTS: dict[str, dict[str, dict[str, Any]]] = {
    UNTREATED: {SASREC: NONE, SHOWN: NONE, CLICKS: NONE, "Pulse": {"dial": 0.0}},
    "1/p, two GRUs, M 0.05 (the paper's)": {SASREC: PAPER, SHOWN: PAPER, CLICKS: PAPER},
    "1/p, Item-Pro, M 0.05": {
        name: {"how": "both", "propensity": "item-pro"} for name in (SASREC, SHOWN, CLICKS)
    },
    "1/p, clicks and negatives alike, power": {CLICKS: {"how": "both", "propensity": "power", "clip": 0.001}},
    "clicks x (1/p)^1/2, exposure": {SASREC: {"how": "weights", "propensity": "exposure", "clip": 0.001}},
    "clicks x 1/p, power": {CLICKS: {"how": "weights", "propensity": "power", "power": 1.0, "clip": 0.001}},
    "(1/p)^1/2, exposure": {SHOWN: {"how": "weights", "propensity": "exposure", "clip": 0.001}},
    "1/p, exposure": {SHOWN: {"how": "weights", "propensity": "exposure", "power": 1.0, "clip": 0.001}},
    "negatives x p, power": {CLICKS: {"how": "negatives", "propensity": "power", "power": 1.0}},
    "offset, exposure": {SASREC: {"how": "offset", "propensity": "exposure", "power": 1.0}},
    "offset of 1/2 log p, exposure": {SASREC: {"how": "offset", "propensity": "exposure", "power": 0.5}},
    "offset of 1/2 log p, power": {SASREC: {"how": "offset", "propensity": "power", "power": 0.5}},
    "offset, power": {
        SASREC: {"how": "offset", "propensity": "power", "power": 1.0},
        CLICKS: {"how": "offset", "propensity": "power", "power": 1.0},
    },
    # What `debiased-NAME` and `deps --preset working` do if nothing is said.
    "auto, the default": {name: {"how": "auto", "propensity": "auto"} for name in (SASREC, SHOWN, CLICKS)},
    "dial 0.5": {"Pulse": {"dial": 0.5}},
    "dial 1": {"Pulse": {"dial": 1.0}},
    "dial by validation": {"Pulse": {}},
}

# What prototypes of the same treatments had found, with other backbones: differences to the twin, in the
# order of the worlds.
PROTOTYPE: dict[tuple[str, str], tuple[float, ...]] = {
    (SHOWN, "1/p, two GRUs, M 0.05 (the paper's)"): (0.0, 0.0, 0.0, 0.0),
    (SHOWN, "1/p, Item-Pro, M 0.05"): (-0.059, -0.019, -0.040, -0.060),
    (SHOWN, "(1/p)^1/2, exposure"): (0.002, 0.0, 0.010, -0.002),
    (SHOWN, "1/p, exposure"): (-0.031, 0.001, -0.022, -0.030),
    (CLICKS, "1/p, clicks and negatives alike, power"): (-0.030, -0.002, -0.005, -0.011),
    (CLICKS, "clicks x 1/p, power"): (0.026, 0.0, 0.010, 0.011),
    (CLICKS, "negatives x p, power"): (0.045, 0.0, 0.015, 0.033),
    (SASREC, "clicks x (1/p)^1/2, exposure"): (0.040, 0.003, 0.024, 0.022),
    (SASREC, "offset, exposure"): (0.045, -0.005, 0.025, 0.026),
    (SASREC, "1/p, Item-Pro, M 0.05"): (-0.108, -0.133, -0.074, -0.003),
}
LEAST = 0.005  # a smaller difference is none


@dataclass(frozen=True)
class Job:
    """One run: a world, a seed of it and of the training, a backbone and a treatment."""

    world: str
    seed: int
    backbone: str
    treatment: str

    def asked(self) -> tuple[str, dict[str, Any]] | None:
        """The model and its settings; None if the backbone cannot have the treatment."""
        backbone = BACKBONES[self.backbone]
        if not backbone.treatable:
            return (backbone.model, {**backbone.settings}) if self.treatment == UNTREATED else None
        settings = TREATMENTS[self.treatment].get(self.backbone)
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
    return Job(line["world"], line["seed"], line["backbone"], line["treatment"])


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and measure what is not stored yet."""

    worlds: tuple[str, ...] = tuple(WORLDS)
    seeds: tuple[int, ...] = SEEDS
    backbones: tuple[str, ...] = tuple(BACKBONES)
    treatments: tuple[str, ...] = tuple(TREATMENTS)

    def __call__(self) -> None:
        """Go through all jobs, world by world."""
        torch.set_num_threads(1)
        for name, known in (("world", WORLDS), ("backbone", BACKBONES), ("treatment", TREATMENTS)):
            for asked in getattr(self, f"{name}s"):
                if asked not in known:
                    raise SystemExit(f"no {name} {asked!r}; there are {', '.join(map(repr, known))}")
        done = {job_of(line) for line in _lines()}
        for seed in self.seeds:
            for world in self.worlds:
                jobs = [job for job in self.jobs(world, seed) if job not in done and job.asked() is not None]
                if jobs:
                    self.in_one_world(jobs, simulate(**asdict(replace(WORLDS[world], seed=100 + seed))))

    def jobs(self, world: str, seed: int) -> Iterator[Job]:
        """The jobs of one world, each twin before what is compared with it."""
        for backbone in self.backbones:
            for treatment in TREATMENTS:
                if treatment in self.treatments:
                    yield Job(world, seed, backbone, treatment)

    def in_one_world(self, jobs: list[Job], world: World) -> None:
        """Do some jobs and store each as soon as it is done."""
        splits = {False: unskew.split(world.log), True: unskew.split(clicks_of(world))}
        fitted: dict[str, unskew.Model] = {}
        for job in jobs:
            found = measured(job, world, splits[BACKBONES[job.backbone].clicks_only], fitted)
            if found is None:
                continue
            with RESULTS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(job) | found) + "\n")
            print(*asdict(job).values(), found["truth"].get(CHOOSE_BY), f"{found['cpu']} s", flush=True)


def clicks_of(world: World) -> unskew.Log:
    """The clicks of a world, without what was shown and not clicked."""
    log = world.log
    rows = np.flatnonzero(log.label == 1)
    columns = {"user": log.users.of(log.user[rows]), "item": log.items.of(log.item[rows])}
    clicks = unskew.read(pa.table(columns | {"time": log.time[rows]}))
    return replace(clicks, metadata=clicks.metadata | {"world": log.metadata["world"]})


def measured(
    job: Job, world: World, split: unskew.Split, fitted: dict[str, unskew.Model]
) -> dict[str, Any] | None:
    """The truth of a run, with the weights by each version of the validation part. Runs that differ only in
    the dial are trained once."""
    asked, began = job.asked(), time.process_time()
    assert asked is not None
    name, settings = asked
    trained = {key: value for key, value in settings.items() if key != "dial"}
    key = json.dumps([name, trained])
    try:
        model = fitted.get(key) or unskew.create_model(name, trained).fit(split, show_progress=False)
    except BadInput as error:
        print(f"left out: {job.backbone}, {job.treatment}: {error}", flush=True)
        return None
    if job.backbone == "Pulse":
        fitted[key] = model
    chosen = {version: state.copy() for version, state in model._weights.items()}
    if "dial" in settings:
        for state in model._weights.values():
            state["dial_now"] = torch.tensor(settings["dial"])
    found: dict[str, Any] = {"model": name, "settings": settings, "simulation": simulation(job.world)}
    found["rounds"] = len(model.records)
    versions: list[Any] = list(model._weights)
    of = {version: truth(model, world, split, VISITS, choose_by=version).metrics() for version in versions}
    found["truth"] = {
        version: {metric: round(value, 5) for metric, value in metrics.items()}
        for version, metrics in of.items()
    }
    model._weights = chosen
    return found | {"cpu": round(time.process_time() - began, 1)}


# The page


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables into docs/truth.md."""

    def __call__(self) -> None:
        """Replace what stands between the markers, or append it."""
        replace_between(PAGE, BEGIN, END, section(_lines()))


def section(lines: list[dict[str, Any]]) -> str:
    """The words and the tables."""
    worlds = [name for name in WORLDS if any(line["world"] == name for line in lines)]
    seeds = sorted({line["seed"] for line in lines})
    size, of_seeds = WORLDS["bias 1"], f"up to {len(seeds)} seed{'s' * (len(seeds) > 1)}"
    return "\n".join(
        [
            "## What debiases, by the truth",
            "",
            f"NDCG@10 with the true preference of all items as gain, at {VISITS} visits of the test part. "
            f"{len(worlds)} worlds with",
            f"{size.users:,} users and {size.items} items, {of_seeds} of each. The first row of a "
            "backbone is its level without a treatment; all",
            "others are differences to that twin in the same world with the same seed: the mean, and its "
            "standard error over the",
            "seeds; a difference without one has a single seed. **Bold**: further from 0 than two standard "
            "errors and 0.005. Weights are",
            f"chosen by the test `{CHOOSE_BY}` of the validation part, where the log says what was shown, "
            "and otherwise by `balanced`.",
            "",
            *table(lines, worlds, "ndcg@10", CHOOSE_BY),
            "",
            "Prototypes of these treatments, with simpler backbones, had found the differences below.",
            "*Holds*: the same sign here, or none in both. *Not seen*: none here. *Better* and *worse*: the "
            "prototype had found none.",
            "",
            *signs(lines, worlds),
            "",
            "How much of the exposure the scores repeat beyond what is liked (partial rank correlation; less "
            "is better):",
            "",
            *table(lines, worlds, "beyond", CHOOSE_BY),
            "",
            "The same NDCG@10 where ordinary validation clicks choose the weights:",
            "",
            *table(lines, worlds, "ndcg@10", "ordinary"),
            "",
            "Made by `python benchmarks/debiasing.py run` and `page` from",
            "[results/debiasing.jsonl](../results/debiasing.jsonl).",
            "",
        ]
    )


def table(lines: list[dict[str, Any]], worlds: list[str], metric: str, version: str) -> list[str]:
    """Levels of the untreated and differences of the treated, by world."""
    values = _values(lines, metric, version)
    rows = _header(worlds)
    for backbone in BACKBONES:
        for treatment in TREATMENTS:
            cells = [cell(values, world, backbone, treatment) for world in worlds]
            if any(cells):
                rows.append(f"| {backbone} | {treatment} | " + " | ".join(cells) + " |")
    return rows


def cell(values: dict[Job, float], world: str, backbone: str, treatment: str) -> str:
    """The mean over the seeds, of the level or of the difference to the twin."""
    if treatment == UNTREATED:
        mine = [
            value
            for job, value in values.items()
            if (job.world, job.backbone, job.treatment) == (world, backbone, treatment)
        ]
        return f"{np.mean(mine):.3f}" if mine else ""
    paired = differences(values, world, backbone, treatment)
    if len(paired) < 2:
        return f"{paired[0]:+.3f}" if len(paired) else ""
    said = f"{paired.mean():+.3f} ± {_error(paired):.3f}"
    return f"**{said}**" if sign(paired) else said


def differences(values: dict[Job, float], world: str, backbone: str, treatment: str) -> NDArray[np.float64]:
    """What a treatment changes, seed by seed."""
    found = []
    for job, value in values.items():
        if (job.world, job.backbone, job.treatment) == (world, backbone, treatment):
            twin = values.get(replace(job, treatment=UNTREATED))
            found += [] if twin is None else [value - twin]
    return np.array(found)


def sign(paired: NDArray[np.float64]) -> int:
    """Whether differences are above or below 0, by more than two standard errors and by more than LEAST."""
    mean = float(paired.mean())
    return int(np.sign(mean)) if abs(mean) > max(2 * _error(paired), LEAST) else 0


def _error(paired: NDArray[np.float64]) -> float:
    return float(paired.std(ddof=1)) / len(paired) ** 0.5


def signs(lines: list[dict[str, Any]], worlds: list[str]) -> list[str]:
    """Which signs of the prototypes hold here."""
    values, told = _values(lines, "ndcg@10", CHOOSE_BY), {"holds": 0, "not seen": 0, "opposite": 0}
    rows = _header(worlds)
    for (backbone, treatment), expected in PROTOTYPE.items():
        cells = []
        for world, difference in zip(WORLDS, expected, strict=True):
            paired = differences(values, world, backbone, treatment)
            if world not in worlds or len(paired) < 2:
                cells.append(f"{difference:+.3f}")
                continue
            wanted = int(np.sign(difference)) if abs(difference) >= LEAST else 0
            verdict = "holds" if sign(paired) == wanted else "not seen" if not sign(paired) else "opposite"
            if not wanted and verdict == "opposite":
                verdict = "better" if sign(paired) > 0 else "worse"
            told[verdict] = told.get(verdict, 0) + 1
            cells.append(f"{difference:+.3f}: {verdict}")
        rows.append(f"| {backbone} | {treatment} | " + " | ".join(cells) + " |")
    counts = ", ".join(f"*{verdict}* {count}" for verdict, count in told.items())
    return [*rows, "", f"The {sum(told.values())} signs: {counts}."]


def _header(worlds: list[str]) -> list[str]:
    rule = "| --- | --- | " + " | ".join("---:" for _ in worlds) + " |"
    return ["| backbone | treatment | " + " | ".join(worlds) + " |", rule]


def _values(lines: list[dict[str, Any]], metric: str, version: str) -> dict[Job, float]:
    """A metric of each run, with the weights that a version of the validation part chose."""

    def of(line: dict[str, Any]) -> float:
        by = line["truth"]
        return float(by.get(version, by.get("balanced", next(iter(by.values()))))[metric])

    return {job_of(line): of(line) for line in lines}


def _lines() -> list[dict[str, Any]]:
    """What is stored. Lines of other settings than those of now are passed over."""
    if not RESULTS.exists():
        return []
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    return [line for line in lines if _is_of_now(line)]


def _is_of_now(line: dict[str, Any]) -> bool:
    if (
        line["world"] not in WORLDS
        or line["backbone"] not in BACKBONES
        or line["treatment"] not in TREATMENTS
    ):
        return False
    asked = job_of(line).asked()
    now = {"model": asked[0], "settings": asked[1], "simulation": simulation(line["world"])} if asked else {}
    return bool(now) and all(line[name] == value for name, value in now.items())


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
