"""What debiases? Corrections of several backbones against their uncorrected twins, by the ground truth, in
worlds where it is known.

    python benchmarks/debiasing.py run [--worlds NAME ...] [--backbones NAME ...] [--corrections NAME ...]
    python benchmarks/debiasing.py page

Four worlds, three seeds of each, and every backbone once uncorrected and once with each correction, with
everything else equal. A run is a line of results/debiasing.jsonl with its ground truth
(`unskew.world.ground_truth`) for the weights that each validation metric chose. What is there already, with
the same settings, is not done again. A correction that this version of the package does not have is left out,
and that is said.
The tables go into docs/ground-truth.md. All of it takes about two hours on one core.

What is measured stands in `corrections.py`.
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
from corrections import (
    BACKBONES,
    CORRECTIONS,
    LEAST,
    PROTOTYPE,
    UNCORRECTED,
    WORLDS,
    Job,
    job_of,
    simulation,
)
from numpy.typing import NDArray
from pages import EARLIER_WORLDS, replace_between

import unskew
from unskew.api.model import Model
from unskew.core.errors import BadInput
from unskew.world.ground_truth import evaluate_against_ground_truth
from unskew.world.simulate import World, simulate

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "debiasing.jsonl", ROOT / "docs" / "ground-truth.md"
BEGIN, END = "<!-- made by benchmarks/debiasing.py -->", "<!-- end of what benchmarks/debiasing.py made -->"
SEEDS, IMPRESSIONS = (0, 1, 2), 500
# The validation metric that chooses the weights in the tables. Ordinary clicks are as skewed as
# those that a model is trained on.
SELECT_BY = "shown"


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and measure what is not stored yet."""

    worlds: tuple[str, ...] = tuple(WORLDS)
    seeds: tuple[int, ...] = SEEDS
    backbones: tuple[str, ...] = tuple(BACKBONES)
    corrections: tuple[str, ...] = tuple(CORRECTIONS)

    def __call__(self) -> None:
        """Go through all jobs, world by world."""
        torch.set_num_threads(1)
        for name, known in (("world", WORLDS), ("backbone", BACKBONES), ("correction", CORRECTIONS)):
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
            for correction in CORRECTIONS:
                if correction in self.corrections:
                    yield Job(world, seed, backbone, correction)

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
            print(
                *asdict(job).values(), found["ground-truth"].get(SELECT_BY), f"{found['cpu']} s", flush=True
            )


def clicks_of(world: World) -> unskew.Log:
    """The clicks of a world, without what was shown and not clicked."""
    log = world.log
    rows = np.flatnonzero(log.label == 1)
    columns = {"user": log.users.of(log.user[rows]), "item": log.items.of(log.item[rows])}
    clicks = unskew.read(pa.table(columns | {"time": log.time[rows]}))
    return replace(clicks, metadata=replace(clicks.metadata, world=log.metadata.world))


def measured(
    job: Job, world: World, split: unskew.Split, fitted: dict[str, unskew.Model]
) -> dict[str, Any] | None:
    """The ground truth of a run, with the weights by each validation metric. Runs that differ only in
    the debiasing strength are trained once."""
    asked, began = job.asked(), time.process_time()
    assert asked is not None
    name, settings = asked
    trained = {key: value for key, value in settings.items() if key != "debias"}
    key = json.dumps([name, trained])
    try:
        model = fitted.get(key) or unskew.create_model(name, trained).fit(split, show_progress=False)
    except BadInput as error:
        print(f"left out: {job.backbone}, {job.correction}: {error}", flush=True)
        return None
    if job.backbone == "Pulse":
        fitted[key] = model
    if "debias" in settings:
        debias = {"debias_now": torch.tensor(settings["debias"])}
        weights = {version: {**state, **debias} for version, state in model.trained.weights.items()}
        model = Model(model.name, model.config, model.training, replace(model.trained, weights=weights))
    found: dict[str, Any] = {"model": name, "settings": settings, "simulation": simulation(job.world)}
    found["epochs"] = len(model.records)
    versions: list[Any] = list(model.trained.weights)
    of = {
        version: evaluate_against_ground_truth(model, world, split, IMPRESSIONS, select_by=version).metrics()
        for version in versions
    }
    found["ground-truth"] = {
        version: {metric: round(value, 5) for metric, value in metrics.items()}
        for version, metrics in of.items()
    }
    return found | {"cpu": round(time.process_time() - began, 1)}


# The page


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the tables into docs/ground-truth.md."""

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
            "## What debiases, by the ground truth",
            "",
            EARLIER_WORLDS,
            "",
            f"""The tables show NDCG@10 with the true preference of all items as gain, at {IMPRESSIONS}
impressions of the test set. There are {len(worlds)} worlds with {size.users:,} users and {size.items}
items, and {of_seeds} of each. The first row of a backbone is its level without a correction. All other rows
are differences to the uncorrected backbone in the same world with the same seed: the mean, and its standard
error over the seeds. A difference without a standard error has a single seed. **Bold** differences are
larger than two standard errors and 0.005. The weights are chosen by the test `{SELECT_BY}` on the
validation set where the log contains what was shown, and otherwise by `balanced`.""",
            "",
            *table(lines, worlds, "ndcg@10", SELECT_BY),
            "",
            """Prototypes of these corrections, with simpler backbones, had found the differences in the next
table. *Holds* means the same sign here, or no difference in both. *Not seen* means no difference here.
*Better* and *worse* are differences where the prototype had found none.""",
            "",
            *signs(lines, worlds),
            "",
            """The next table shows how much of the exposure the scores repeat beyond the true preference, as
a partial rank correlation. Less is better.""",
            "",
            *table(lines, worlds, "beyond", SELECT_BY),
            "",
            "The last table shows NDCG@10 again, with weights that the ordinary validation metric chose.",
            "",
            *table(lines, worlds, "ndcg@10", "ordinary"),
            "",
            "Made by `python benchmarks/debiasing.py run` and `page` from",
            "[results/debiasing.jsonl](../results/debiasing.jsonl).",
            "",
        ]
    )


def table(lines: list[dict[str, Any]], worlds: list[str], metric: str, version: str) -> list[str]:
    """Levels of the uncorrected and differences of the corrected, by world."""
    values = _values(lines, metric, version)
    rows = _header(worlds)
    for backbone in BACKBONES:
        for correction in CORRECTIONS:
            cells = [cell(values, world, backbone, correction) for world in worlds]
            if any(cells):
                rows.append(f"| {backbone} | {correction} | " + " | ".join(cells) + " |")
    return rows


def cell(values: dict[Job, float], world: str, backbone: str, correction: str) -> str:
    """The mean over the seeds, of the level or of the difference to the twin."""
    if correction == UNCORRECTED:
        mine = [
            value
            for job, value in values.items()
            if (job.world, job.backbone, job.correction) == (world, backbone, correction)
        ]
        return f"{np.mean(mine):.3f}" if mine else ""
    paired = differences(values, world, backbone, correction)
    if len(paired) < 2:
        return f"{paired[0]:+.3f}" if len(paired) else ""
    said = f"{paired.mean():+.3f} ± {_error(paired):.3f}"
    return f"**{said}**" if sign(paired) else said


def differences(values: dict[Job, float], world: str, backbone: str, correction: str) -> NDArray[np.float64]:
    """What a correction changes, seed by seed."""
    found = []
    for job, value in values.items():
        if (job.world, job.backbone, job.correction) == (world, backbone, correction):
            twin = values.get(replace(job, correction=UNCORRECTED))
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
    values, told = _values(lines, "ndcg@10", SELECT_BY), {"holds": 0, "not seen": 0, "opposite": 0}
    rows = _header(worlds)
    for (backbone, correction), expected in PROTOTYPE.items():
        cells = []
        for world, difference in zip(WORLDS, expected, strict=True):
            paired = differences(values, world, backbone, correction)
            if world not in worlds or len(paired) < 2:
                cells.append(f"{difference:+.3f}")
                continue
            wanted = int(np.sign(difference)) if abs(difference) >= LEAST else 0
            verdict = "holds" if sign(paired) == wanted else "not seen" if not sign(paired) else "opposite"
            if not wanted and verdict == "opposite":
                verdict = "better" if sign(paired) > 0 else "worse"
            told[verdict] = told.get(verdict, 0) + 1
            cells.append(f"{difference:+.3f}: {verdict}")
        rows.append(f"| {backbone} | {correction} | " + " | ".join(cells) + " |")
    counts = ", ".join(f"*{verdict}* {count}" for verdict, count in told.items())
    return [*rows, "", f"The {sum(told.values())} signs: {counts}."]


def _header(worlds: list[str]) -> list[str]:
    rule = "| --- | --- | " + " | ".join("---:" for _ in worlds) + " |"
    return ["| backbone | correction | " + " | ".join(worlds) + " |", rule]


def _values(lines: list[dict[str, Any]], metric: str, version: str) -> dict[Job, float]:
    """A metric of each run, with the weights that a validation metric chose."""

    def of(line: dict[str, Any]) -> float:
        by = line["ground-truth"]
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
        or line["correction"] not in CORRECTIONS
    ):
        return False
    asked = job_of(line).asked()
    now = {"model": asked[0], "settings": asked[1], "simulation": simulation(line["world"])} if asked else {}
    return bool(now) and all(line[name] == value for name, value in now.items())


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
