"""Estimated propensities against the true ones: where the log recorded them (Open Bandit) or the world is
simulated.

    python benchmarks/calibration.py run                               # results/calibration.jsonl
    python benchmarks/calibration.py run --estimators exposure power   # only their lines again
    python benchmarks/calibration.py page                              # docs/calibration.md

Both GRUs as in DEPS, popularity, and the estimators of exposure. The ground truth of Open Bandit is the
probability with which Thompson sampling showed the item at its position; that of a simulated world is the
probability of being shown. `unskew propensity health RUN` says the same of one run.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import process_time
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import torch
import tyro
from pages import EARLIER_WORLDS

import unskew
from unskew.core.formatting import plain
from unskew.data.log.views import AUDIENCE, HISTORY
from unskew.diagnostics.propensity.health import health, logged_ground_truth
from unskew.propensity.estimators import Exposure, Needs, Power, estimator
from unskew.propensity.export import propensity_tables
from unskew.world.equations import Simulation

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "calibration.jsonl", ROOT / "docs" / "calibration.md"
CAMPAIGNS = ("all", "men", "women")
WORLDS: dict[str, dict[str, float]] = {
    "simulated, exposure skewed": {"bias": 1.0},
    "simulated, exposure even": {"bias": 0.0},
    "simulated, by popularity only": {"history": 0.0, "audience": 0.0},
    "simulated, twice as skewed": {"bias": 2.0},
    "simulated, a tenth of the impressions at random": {"randomised": 0.1},
}
TRAINED, FITTED = ("dual", "item-user-pro"), ("exposure", "power")
# A clip far below a uniform probability: here it is asked what is estimated, not what is left of it. The GRUs
# are trained at the best of six settings of `learning_rate`, `sequences` and `unsupervised_epochs`, by their
# scaled error in the worlds `skewed` and `by popularity only` of seed 0: the ground truth chose, in their
# favour.
SETTINGS = {
    "clip": 1e-4,
    "width": 32,
    "layers": 1,
    "history": 20,
    "audience": 20,
    "unsupervised_epochs": 20,
    "learning_rate": 1e-3,
    "sequences": 32,
    "epochs": 1,
    "valid_examples": 200,
}


def logs(data: Path, scratch: Path, seeds: tuple[int, ...]) -> Iterator[tuple[str, int, unskew.Log]]:
    """The name, the seed of the world and the log."""
    for campaign in CAMPAIGNS:
        source = data / "open_bandit_sample" / "bts" / campaign
        yield f"Open Bandit, {campaign}", seeds[0], unskew.prepare(source, scratch / campaign)
    for name, settings in WORLDS.items():
        for seed in seeds:
            world = Simulation(users=400, items=100, steps=100, randomised=0.0, seed=seed)
            yield name, seed, unskew.simulate(**asdict(world) | settings).log


@dataclass(frozen=True, kw_only=True)
class Run:
    """Estimate, and compare with the ground truth."""

    data: Path = ROOT.parent / "shared" / "data"
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the worlds, and of the training of the GRUs."""
    estimators: tuple[str, ...] = (*TRAINED, *FITTED)
    """Whose lines are measured again; the others stay as they are."""

    def run(self) -> None:
        torch.set_num_threads(1)
        lines = []
        if RESULTS.exists():
            stored = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
            lines = [line for line in stored if line["estimator"] not in self.estimators]
        with tempfile.TemporaryDirectory() as scratch:
            for name, world, log in logs(self.data, Path(scratch), self.seeds):
                split = unskew.split(log)
                for kind, seed in self._wanted(name in WORLDS, world):
                    started = process_time()
                    estimates, more = estimated(kind, seed, split)
                    more["seconds"] = round(process_time() - started, 1)
                    for line in compared(split, estimates):
                        lines.append({"log": name, "estimator": kind, "seed": seed, **line, **more})
                        print(lines[-1], flush=True)
        order = [*(f"Open Bandit, {campaign}" for campaign in CAMPAIGNS), *WORLDS]
        kinds = [*TRAINED, *FITTED]
        lines.sort(key=lambda line: (order.index(line["log"]), kinds.index(line["estimator"])))
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def _wanted(self, simulated: bool, world: int) -> Iterator[tuple[str, int]]:
        """Which estimators are asked, with which seeds: each world once. Of Open Bandit there is only one, so
        there the GRUs learn several times."""
        for kind in self.estimators:
            several = kind == "dual" and not simulated
            yield from ((kind, seed) for seed in (self.seeds if several else (world,)))


def estimated(kind: str, seed: int, split: unskew.Split) -> tuple[pa.Table, dict[str, Any]]:
    """The propensities of all rows, and what else is worth a note."""
    if kind not in FITTED:
        model = unskew.create_model("deps", SETTINGS | {"propensity": kind, "seed": seed}).fit(split)
        return model.propensities(split.log), {}
    made = estimator(kind, Needs(known=split.known, clip=float(SETTINGS["clip"])))
    made.fit_statistics(split)
    borders, past = (split.train_end, split.valid_end), (HISTORY, AUDIENCE)
    assert isinstance(made, Exposure | Power)
    found = {each.name: [each.value, each.standard_error] for each in made.coefficients()}
    return pa.concat_tables(propensity_tables(made, split.log, borders, past)), {"coefficients": found}


def compared(split: unskew.Split, estimates: pa.Table) -> Iterator[dict[str, Any]]:
    """Each view against the ground truth, over the rows that were not shown at random."""
    log = split.log
    ground_truth = logged_ground_truth(log)
    assert ground_truth is not None
    if log.exposed is not None:
        ground_truth = np.where(log.exposed == 1, np.nan, ground_truth)
    found = health(split, estimates, float(SETTINGS["clip"]), ground_truth)
    clicks = int(log.label[split.rows("train")].sum())
    several = len(found.views) > 2
    for view in found.views:
        if several or view.name != "1 / weight":
            assert view.calibration is not None
            facts = {key: plain(value) for key, value in asdict(view.calibration).items() if key != "curve"}
            yield {"rows": found.pairs, "clicks": clicks, "view": view.name, **facts}


HEAD = f"""# Are the estimated propensities right?

{EARLIER_WORLDS}

`python benchmarks/calibration.py run` writes `results/calibration.jsonl`, and
`python benchmarks/calibration.py page` writes this page from it. The table compares estimated with true
propensities over training rows, as the mean over seeds ± their standard deviation. It shows three measures:

- Spearman's rank correlation of the two;
- the error: the root of the mean squared distance of the two in powers of ten (0.3 is a factor of two);
- the same error after the best common scale, because weights need no scale.

The seeds are those of the worlds; for Open Bandit they are those of the training of the GRUs. The training
settings of the GRUs are the best of six, by the ground truth of two of these worlds. The penalty in
`exposure` was chosen in larger worlds of seed 0, by held-out impressions and by the ground truth.

**With impressions**, `exposure` estimates both the order and the level of the propensities well, and it is
the only estimator whose level is right without a scale. It learns from what was shown. The other estimators
see clicks only, so they cannot distinguish "shown" from "shown and liked".

**From clicks alone**, a well-trained GRU of the item view has the best order where exposure is personal, and
is no better than popularity where it is not. The user view contains almost no information: a softmax over all
users estimates who comes next, not what was shown to them. The mixture is therefore worse than the item view
alone. `power` is not meant for the order of pairs; it estimates one number about popularity, in the second
table.

**Where exposure is even**, there is no order to find, and only `exposure` and `power` show this. The sample
of Open Bandit has a few dozen clicks, which is too few for all estimators that learn from clicks.

| log | rows | clicks | estimator | view | rank correlation | error | scaled error | seeds |
| --- | ---: | ---: | --- | --- | ---: | ---: | ---: | ---: |
"""


GAMMA = f"""
## How strong is the effect of popularity on exposure?

{EARLIER_WORLDS}

The column `power` is the gamma of that estimator. It sees clicks alone and, in the last world, which of them
were shown at random. The column `exposure` is the weight of log1p(clicks) in that estimator, summed over its
three kinds. The true value in the worlds is their bias: 1, 0, 1, 2, 1. The standard error holds under the
assumptions of `power`. Without random impressions its gamma varies two to three times as much from world to
world, so it is a rough number.

| log | power | its standard error | exposure |
| --- | ---: | ---: | ---: |
"""


def gammas(lines: list[dict[str, Any]]) -> Iterator[str]:
    """The lines of the second table."""
    for log in dict.fromkeys(line["log"] for line in lines):
        here = [line for line in lines if line["log"] == log and "coefficients" in line]
        power = [line["coefficients"]["gamma"] for line in here if line["estimator"] == "power"]
        weights = [
            sum(value for name, (value, _) in line["coefficients"].items() if name.startswith("clicks"))
            for line in here
            if line["estimator"] == "exposure"
        ]
        if power and weights:
            gamma, error = np.mean(power, axis=0)
            spread = f" ± {np.std([each[0] for each in power], ddof=1):.2f}" if len(power) > 1 else ""
            yield f"| {log} | {gamma:.2f}{spread} | {error:.2f} | {np.mean(weights):.2f} |"


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write docs/calibration.md."""

    def run(self) -> None:
        lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        rows = []
        for key in dict.fromkeys((line["log"], line["estimator"], line["view"]) for line in lines):
            here = [line for line in lines if (line["log"], line["estimator"], line["view"]) == key]
            cells = [here[0]["log"], f"{here[0]['rows']:,}", f"{here[0]['clicks']:,}", *key[1:]]
            for name in ("spearman", "error", "scaled_error"):
                values = [line[name] for line in here if line[name] is not None]
                spread = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
                cells.append(f"{np.mean(values):.3f}{spread}" if values else "–")
            rows.append("| " + " | ".join([*cells, str(len(here))]) + " |")
        page = HEAD + "\n".join(rows) + "\n" + GAMMA + "\n".join(gammas(lines)) + "\n"
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(
        Annotated[Run, tyro.conf.subcommand(name="run")] | Annotated[Page, tyro.conf.subcommand(name="page")],
        description=__doc__,
    ).run()
