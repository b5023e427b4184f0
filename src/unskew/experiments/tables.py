"""The tables of a report: for a suite a row per arm and a column per data set; all metrics; groups of users
and items; and how the bench was made."""

import itertools
import json
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any, NamedTuple

from unskew.api.create import create_model
from unskew.core.errors import BadInput
from unskew.core.formatting import count, fraction
from unskew.evaluation.metrics import written
from unskew.experiments.bench_cell import METRIC, BenchCell
from unskew.experiments.intervals import ArmMean, ArmResults, Difference
from unskew.experiments.published import CAVEAT, METRICS, published_metrics, published_tests
from unskew.experiments.results import BenchResults, EvaluationSpec, Segments, SuiteResults, mean_in
from unskew.experiments.suite import Arm
from unskew.report.table import Cell, Table
from unskew.report.templates import render
from unskew.world.equations import Simulation

NONE = "–"
STAR, DAGGER, UNFINISHED = "*", "†", "‡"
# The tests and protocols in the words of a heading.
TESTS = {
    "ordinary": "Ordinary test",
    "balanced": "Balanced test",
    "shown": "Among what was shown",
    "randomised": "Randomised exposure",
    "weighted": "Weighted by logged propensities",
    "ground-truth": "True preference",
}
PROTOCOLS = {
    "full": "all items ranked",
    "uni100": "among 100 sampled items",
    "authors": "the authors' protocol",
}
SEGMENTS = {
    "popularity decile": "item's popularity, tenth",
    "history length": "length of the history",
    "user": "user",
    "item": "item",
}
LESS_IS_BETTER = ("beyond",)  # the exposure that scores repeat beyond what is liked
SEGMENT_TESTS = ("ordinary", "balanced")  # the tests whose groups are shown
HASH = 12  # letters of a hash that a table shows; the foot of the page has all
MOST_MISSING = 40  # missing runs that are listed; the caption counts all


def title_of(by: EvaluationSpec) -> str:
    """A test and its protocol in the words of a heading."""
    test = TESTS.get(by.test, f"Test {by.test}")
    if by.test in ("ground-truth", "shown"):
        return test
    return f"{test}, {PROTOCOLS.get(by.protocol, by.protocol)}"


def caption(of: str, **values: object) -> str:
    """What a table shows, in sentences."""
    return " ".join(render("experiments/templates/captions.txt", of=of, **values).split())


# One suite


class MeanGrid(NamedTuple):
    """What the table of a suite shows in one test by one metric.

    rows: for each arm its mean and its rank on every data set; None where it was not tested.
    gains: by the name of the row, for every data set a gain and the name of the rival.
    seeds: the number of seeds that most means have.
    """

    rows: Mapping[str, Sequence[tuple[ArmMean, int] | None]]
    gains: Mapping[str, Sequence[tuple[Difference, str] | None]]
    seeds: int


def mean_grid(suite: SuiteResults, by: EvaluationSpec, metric: str = METRIC) -> MeanGrid:
    """The means of a suite with their ranks; below them the gain of the first arm over its best rival, and of
    each arm over its twin."""
    tested = {source: arms for source, arms in suite.on_sources(by).items() if metric in arms.metrics}
    means = {source: arms.means(metric) for source, arms in tested.items()}
    is_ranked = metric not in LESS_IS_BETTER
    cells = {
        (source, arm): (mean, ranks_of(of).get(arm, 0) if is_ranked else 0)
        for source, of in means.items()
        for arm, mean in of.items()
    }
    return MeanGrid(
        {arm.name: [cells.get((source, arm.name)) for source in suite.sources] for arm in suite.arms},
        dict(_gains(suite, tested, metric)) if is_ranked else {},
        usual_seeds(means.values()),
    )


def _gains(
    suite: SuiteResults, tested: Mapping[str, ArmResults], metric: str
) -> Iterator[tuple[str, list[tuple[Difference, str] | None]]]:
    over_best = {source: arms.over_best_rival(metric) for source, arms in tested.items()}
    if any(over_best.values()):
        others = "the best other" if len(suite.rivals) == len(suite.arms) - 1 else "its best rival"
        best = [over_best.get(source) for source in suite.sources]
        yield f"{suite.first} over {others}", [gain and (gain[1], gain[0]) for gain in best]
    for name, twin in suite.twins.items():
        means = [
            tested[source].means(metric).get(name) if source in tested else None for source in suite.sources
        ]
        row = [(mean.versus, "") if mean is not None and mean.versus is not None else None for mean in means]
        if any(row):
            yield f"{name} over {twin}", row


def suite_table(suite: SuiteResults, by: EvaluationSpec, metric: str = METRIC) -> Table:
    """The means and gains of a suite in one test by one metric."""
    grid = mean_grid(suite, by, metric)
    rows = [[Cell(arm), *(_mean_cell(mean, grid.seeds) for mean in row)] for arm, row in grid.rows.items()]
    gains = [[Cell(name), *(gain_cell(gain) for gain in row)] for name, row in grid.gains.items()]
    return Table(
        ("model", *map(Cell, suite.sources)),
        [*rows, *gains],
        caption=caption("suite", suite=suite, seeds=grid.seeds, metric=written(metric), title=title_of(by)),
        foot=len(gains),
        name=f"{suite.name}|{by.key}",
    )


def _mean_cell(ranked: tuple[ArmMean, int] | None, usual: int) -> Cell:
    """A mean with its interval and its marks; the number of seeds only where it is unusual."""
    if ranked is None:
        return Cell(NONE)
    mean, rank = ranked
    seeds = "" if mean.seeds == usual else f", {mean.seeds} seed{'s' * (mean.seeds > 1)}"
    return Cell(f"{mean.mean:.4f}", interval_of(mean) + seeds, marks_of(mean), rank)


def interval_of(mean: ArmMean) -> str:
    """The interval of a mean in brackets."""
    return f"[{mean.low:.4f}, {mean.high:.4f}]"


def marks_of(mean: ArmMean) -> str:
    """The marks of the difference of an arm to its reference, or a sign that it is not finished."""
    return marks_of_difference(mean.versus) + UNFINISHED * (not mean.finished)


def marks_of_difference(difference: Difference | None) -> str:
    """A star where two arms differ over seeds and users, and a dagger where they do by the paired t-test over
    rows."""
    return "" if difference is None else STAR * difference.starred + DAGGER * difference.daggered


def ranks_of(means: Mapping[str, ArmMean]) -> dict[str, int]:
    """The best arm (1) and the second (2) as printed, among those that are finished; equal ones share a
    rank."""
    printed = {name: f"{mean.mean:.4f}" for name, mean in means.items() if mean.finished}
    best = sorted(set(printed.values()), reverse=True)[:2]
    return {name: best.index(text) + 1 for name, text in printed.items() if text in best}


def gain_cell(gain: tuple[Difference, str] | None) -> Cell:
    """A gain in per cent with its interval, and the name of the rival."""
    if gain is None:
        return Cell(NONE)
    difference, rival = gain
    relative = difference.relative
    if math.isnan(relative.value):
        return Cell(NONE, rival)
    low, high = (
        NONE if math.isnan(bound) else f"{100 * bound:+.1f}" for bound in (relative.low, relative.high)
    )
    return Cell(
        f"{100 * relative.value:+.1f} %", f"[{low}, {high}] {rival}".strip(), marks_of_difference(difference)
    )


def usual_seeds(means: Iterable[Mapping[str, ArmMean]]) -> int:
    """The number of seeds that most means have."""
    counts = [mean.seeds for of in means for mean in of.values()]
    return max(counts, key=lambda seeds: (counts.count(seeds), seeds), default=1)


def metrics_table(suite: SuiteResults, by: EvaluationSpec) -> Table:
    """All metrics of a test, a row per data set and arm."""
    tested = suite.on_sources(by)
    records: list[dict[str, str | Cell]] = []
    for source, arms in tested.items():
        for arm in arms.seeds:
            record: dict[str, str | Cell] = {"model": _arm_cell(suite, source, arm), "data": source}
            for name in suite.metrics(by):
                record[written(name)] = f"{arms.mean(arm, name):.4f}" if name in arms.metrics else NONE
            records.append(record)
    return Table.of_records(records, ("data",), caption("metrics", title=title_of(by), suite=suite.title))


def _arm_cell(suite: SuiteResults, source: str, arm: str) -> Cell:
    """The name of an arm, with a sign where it is not finished."""
    return Cell(arm, marks=UNFINISHED * (not suite.is_finished(source, arm)))


def segment_tables(suite: SuiteResults) -> Iterator[Table]:
    """For each data set and test, the mean of each arm in each group of positives."""
    for source, test in itertools.product(suite.sources, SEGMENT_TESTS):
        by = EvaluationSpec(test, "full")
        segments = {arm.name: suite.segments(source, arm.name, by) for arm in suite.arms}
        segments = {name: of for name, of in segments.items() if of}
        if segments:
            yield _segment_table(suite, source, by, segments)


def _segment_table(
    suite: SuiteResults, source: str, by: EvaluationSpec, segments: Mapping[str, Sequence[Segments]]
) -> Table:
    sizes = next(iter(segments.values()))[0]
    columns = [
        (kind, group) for kind in SEGMENTS for group, (units, _) in sizes.get(kind, {}).items() if units
    ]
    rows: list[list[str | Cell]] = [
        [_arm_cell(suite, source, name), *(_mean_text(mean_in(of, *column)) for column in columns)]
        for name, of in segments.items()
    ]
    spans = Counter(kind for kind, _ in columns)
    return Table(
        ("model", *(group for _, group in columns)),
        [*rows, [Cell("positives ranked"), *(f"{sizes[kind][group][0]:,}" for kind, group in columns)]],
        caption=caption("segments", source=source, metric=written(METRIC), title=title_of(by)),
        foot=1,
        groups=[("", 1), *((SEGMENTS[kind], span) for kind, span in spans.items())],
        name=f"{suite.name}|{source}|{by.test}",
    )


def _mean_text(mean: float | None) -> str:
    return NONE if mean is None else f"{mean:.4f}"


def published_tables(suite: SuiteResults) -> Iterator[Table]:
    """For each data set of the paper: its published metrics and ours, model by model."""
    for test in published_tests(suite):
        published, results, rows = published_metrics()[test.data], test.results, []
        for arm in (arm.name for arm in suite.arms if arm.name in published and arm.name in results.seeds):
            row = [_arm_cell(suite, test.source, arm)]
            for metric in METRICS:
                row.append(Cell(f"{published[arm][metric]:.4f}"))
                ours = results.means(metric)[arm] if metric in results.metrics else None
                row.append(Cell(NONE) if ours is None else Cell(f"{ours.mean:.4f}", interval_of(ours)))
            rows.append(row)
        if rows:
            head = ("model", *(name for _ in METRICS for name in ("paper", "ours")))
            groups = [("", 1), *((written(metric), 2) for metric in METRICS)]
            yield Table(head, rows, caption=caption("published", test=test, caveat=CAVEAT), groups=groups)


# How the bench was made


def data_table(results: BenchResults) -> Table:
    """The data sets, each once for every hash that its name had."""
    records = {}
    for data in (cell.data for cell in results.cells):
        sizes = {size: count(getattr(data, size)) for size in ("rows", "positives", "users", "items")}
        records[data.name, data.hash] = {
            "data": data.name,
            **sizes,
            "trained before": data.train_before,
            "tested from": data.test_from,
            "own past items": "candidates" if data.repeats else "left out",
            "hash": data.hash[:HASH],
            "simulated by": NONE if data.world is None else _simulate_command(data.world),
        }
    text = ("trained before", "tested from", "own past items", "hash", "simulated by")
    return Table.of_records(list(records.values()), text, caption("data"))


def tests_table(results: BenchResults) -> Table:
    """The number of positives that each test ranks, and of equally weighted ones that would be as
    informative."""
    records: dict[tuple[str, str], dict[str, str]] = {}
    for suite in results.suites:
        for source, by in itertools.product(suite.sources, suite.tests):
            if (test := suite.any_cell(source).tests.get(by.key)) is not None:
                record = {"data": source, "test": title_of(by), "ranked": count(test.size)}
                record["of"] = NONE if test.whole_test is None else count(test.whole_test)
                record["effective"] = f"{test.effective_sample_size:,.0f}"
                records.setdefault((source, by.key), record | {"weights chosen by": test.chosen_by or NONE})
    return Table.of_records(list(records.values()), ("test", "weights chosen by"), caption("tests"))


def runs_table(suite: SuiteResults) -> Table:
    """The card of every arm: how it differs from its model's defaults, and how to train it alone."""
    head = ("model", "name", "settings beside its defaults", "seeds", "finished", "parameters", "CPU-s", "MB")
    records = [
        dict.fromkeys((*head, "one run"), NONE)
        | {"model": arm.name, "name": arm.model}
        | _run_card(suite, arm)
        for arm in suite.arms
    ]
    return Table.of_records(records, (*head[1:4], "one run"), caption("runs", suite=suite.title))


def _run_card(suite: SuiteResults, arm: Arm) -> dict[str, str]:
    cells = [cell for source in suite.sources for cell in suite.seeds_of(source, arm.name)]
    if not cells:
        return {}
    first, settings = cells[0], changed_settings(cells[0])
    words = [f"{name} {value}" for name, value in settings.items()]
    words += [f"trained again: {first.rolling.refresh}"] if first.rolling is not None else []
    return {
        "settings beside its defaults": ", ".join(words) or "defaults",
        "seeds": ", ".join(map(str, sorted({cell.seed for cell in cells}))),
        "finished": f"{sum(cell.finished for cell in cells)} of {len(cells)}",
        "parameters": f"{first.cost.parameters:,}",
        "CPU-s": f"{fmean(cell.cost.cpu_s for cell in cells):,.1f}",
        "MB": f"{fmean(cell.cost.memory_mb for cell in cells):,.0f}",
        "one run": train_command(arm.model, settings, first.seed),
    }


def changed_settings(cell: BenchCell) -> dict[str, Any]:
    """The settings of a run that differ from its model's defaults, apart from the seed; all of them, if the
    model is not known any more."""
    try:
        model = create_model(cell.model)
        defaults = json.loads(json.dumps(_flat(asdict(model.config)) | asdict(model.training)))
    except BadInput:
        defaults = {}
    stored = _flat(cell.config) | dict(cell.training)
    return {
        name: value
        for name, value in stored.items()
        if name != "seed" and (name not in defaults or defaults[name] != value)
    }


def train_command(model: str, settings: Mapping[str, Any], seed: int) -> str:
    """The command that trains one run."""
    flags = _flags({"seed": seed, **settings})
    return shlex.join(["unskew", "train", "DATA", "--out", "RUN", "--model", model, *flags])


def _simulate_command(world: Mapping[str, Any]) -> str:
    usual = asdict(Simulation())
    settings = {name: value for name, value in world.items() if usual.get(name) != value}
    return shlex.join(["unskew", "simulate", *_flags(settings), "--out", "DATA"])


def _flags(settings: Mapping[str, Any]) -> Iterator[str]:
    """Settings as flags of the command line."""
    for name, value in settings.items():
        yield f"--{name.replace('_', '-')}"
        yield from map(str, value) if isinstance(value, list | tuple) else [str(value)]


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in one level."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        flat |= _flat(value) if isinstance(value, dict) else {name: value}
    return flat


def health_table(results: BenchResults) -> Table:
    """The effect of the propensities of each model on its loss."""
    records: dict[tuple[str, str], dict[str, str | Cell]] = {}
    for suite in results.suites:
        for (source, arm), cells in suite.cells.items():
            healths = [cell.health for cell in cells.values() if cell.health is not None]
            if healths:
                first, settings = healths[0], next(iter(cells.values())).settings_key
                record: dict[str, str | Cell] = {"model": _arm_cell(suite, source, arm), "data": source}
                record["clip M"] = f"{first.clip:g}"
                record["effective"] = _mean_fraction([health.effective_fraction for health in healths])
                record["clipped"] = _mean_fraction([health.clipped for health in healths])
                spread = first.spread
                record["weights"] = f"{spread[0]:.2f} to {spread[-1]:.2f}" if spread else NONE
                record["effect"] = first.verdict.partition(";")[0].replace("`", "")
                records.setdefault((source, settings), record)
    return Table.of_records(list(records.values()), ("data", "effect"), caption("health"))


def _mean_fraction(values: Sequence[float | None]) -> str:
    present = [value for value in values if value is not None]
    return fraction(fmean(present)) if present else NONE


def missing_table(results: BenchResults) -> Table:
    """The runs that are missing, those that failed first."""
    runs = sorted(results.missing, key=lambda run: not run.why)
    records = [
        {"model": run.arm, "data": run.source, "suite": run.suite, "seed": str(run.seed)}
        | {"why": run.why or "not run yet"}
        for run in runs[:MOST_MISSING]
    ]
    text = ("data", "suite", "why")
    return Table.of_records(records, text, caption("missing", more=len(runs) - MOST_MISSING))
