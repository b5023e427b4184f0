"""The tables of a report: for a suite a row per arm and a column per data set; all metrics; groups of users
and items; and how the bench was made."""

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from unskew.api.create import create_model
from unskew.core import formatting
from unskew.core.errors import BadInput
from unskew.evaluation.metrics import written
from unskew.experiments.bench_cell import METRIC, BenchCell
from unskew.experiments.intervals import ArmMean, ArmResults, Difference
from unskew.experiments.published import CAVEAT, METRICS, published_metrics, published_tests
from unskew.experiments.results import BenchResults, EvaluationSpec, SuiteResults
from unskew.report.table import Cell, Table
from unskew.world.equations import Simulation

NONE = "–"
STAR, DAGGER = "*", "†"
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
Row = list[str | Cell]
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


# One suite


def suite_table(suite: SuiteResults, by: EvaluationSpec, metric: str = METRIC) -> Table:
    """The table of a suite in one test by one metric; below it the gain of the first arm over its best rival,
    or of each arm over its twin."""
    tested = {source: arms for source, arms in suite.on_sources(by).items() if metric in arms.metrics}
    means = {source: arms.means(metric) for source, arms in tested.items()}
    is_ranked = metric not in LESS_IS_BETTER
    ranks = {source: ranks_of(of) if is_ranked else {} for source, of in means.items()}
    usual = usual_seeds(means.values())
    rows = [
        [
            Cell(arm.name),
            *(
                _mean_cell(means[source].get(arm.name), ranks[source].get(arm.name, 0), usual)
                if source in means
                else Cell(NONE)
                for source in suite.sources
            ),
        ]
        for arm in suite.arms
    ]
    gains = [
        [Cell(name), *(Cell(NONE) if gain is None else gain_cell(*gain) for gain in row)]
        for name, row in (gains_of(suite, tested, metric) if is_ranked else ())
    ]
    return Table(
        ("model", *map(Cell, suite.sources)),
        [*rows, *gains],
        caption=f"{written(metric)}. {title_of(by)}. {_explanation(suite, usual)}",
        foot=len(gains),
        name=f"{suite.name}|{by.key}",
    )


def _mean_cell(mean: ArmMean | None, rank: int, usual: int) -> Cell:
    """A mean with its interval and its marks; the number of seeds only where it is unusual."""
    if mean is None:
        return Cell(NONE)
    seeds = "" if mean.seeds == usual else f", {mean.seeds} seed{'s' * (mean.seeds > 1)}"
    return Cell(f"{mean.mean:.4f}", f"[{mean.low:.4f}, {mean.high:.4f}]{seeds}", marks_of(mean.versus), rank)


def marks_of(difference: Difference | None) -> str:
    """A star where two arms differ over seeds and users, and a dagger where they do by the paired t-test over
    rows."""
    return "" if difference is None else STAR * difference.starred + DAGGER * difference.daggered


def ranks_of(means: Mapping[str, ArmMean]) -> dict[str, int]:
    """The best arm (1) and the second (2) as printed; equal ones share a rank."""
    printed = {name: f"{mean.mean:.4f}" for name, mean in means.items()}
    best = sorted(set(printed.values()), reverse=True)[:2]
    return {name: best.index(text) + 1 for name, text in printed.items() if text in best}


def gains_of(
    suite: SuiteResults, tested: Mapping[str, ArmResults], metric: str
) -> Iterator[tuple[str, list[tuple[Difference, str] | None]]]:
    """The gains below a table: the name of each row, and for each data set the gain and the name of the
    rival."""
    if suite.rivals:
        over_best = {source: arms.over_best_rival(metric) for source, arms in tested.items()}
        if any(over_best.values()):
            others = "the best other" if len(suite.rivals) == len(suite.arms) - 1 else "its best rival"
            best = [over_best.get(source) for source in suite.sources]
            yield f"{suite.first} over {others}", [gain and (gain[1], gain[0]) for gain in best]
    for name, twin in suite.twins.items():
        row: list[tuple[Difference, str] | None] = []
        for source in suite.sources:
            mean = tested[source].means(metric).get(name) if source in tested else None
            row.append((mean.versus, "") if mean is not None and mean.versus is not None else None)
        if any(row):
            yield f"{name} over {twin}", row


def gain_cell(gain: Difference, rival: str) -> Cell:
    """A gain in per cent with its interval, and the name of the rival."""
    if math.isnan(gain.fraction):
        return Cell(NONE, rival)
    bounds = (gain.fraction_low, gain.fraction_high)
    low, high = (NONE if math.isnan(bound) else f"{100 * bound:+.1f}" for bound in bounds)
    return Cell(f"{100 * gain.fraction:+.1f} %", f"[{low}, {high}] {rival}".strip(), marks_of(gain))


def usual_seeds(means: Iterable[Mapping[str, ArmMean]]) -> int:
    """The number of seeds that most means have."""
    counts = [mean.seeds for of in means for mean in of.values()]
    return max(set(counts), key=lambda count: (counts.count(count), count), default=1)


def _explanation(suite: SuiteResults, seeds: int) -> str:
    to = "its twin" if set(suite.twins) == {arm.name for arm in suite.arms[1:]} else suite.first
    if suite.twins and to != "its twin":
        to = f"{suite.first} (or from its twin, where it has one)"
    over = f"users and {seeds} seeds" if seeds > 1 else "users only (a single seed)"
    marks = f"{STAR} differs from {to} by Student's t over seeds and users, {DAGGER} by the paired t-test"
    if seeds == 1:
        marks = f"{DAGGER} differs from {to} by the paired t-test over rows, which ignores the seed"
    return (
        f"Below each mean its 95 % interval over {over}. Bold: the best, underlined: the second. {marks}: "
        "p < 0.05 after Holm's correction over the column."
    )


def metrics_table(suite: SuiteResults, by: EvaluationSpec) -> Table:
    """All metrics of a test, a row per data set and arm."""
    tested = suite.on_sources(by)
    metrics = list(dict.fromkeys(metric for arms in tested.values() for metric in arms.metrics))
    rows: list[Row] = [
        [
            Cell(arm),
            Cell(source),
            *(f"{arms.mean(arm, name):.4f}" if name in arms.metrics else NONE for name in metrics),
        ]
        for source, arms in tested.items()
        for arm in arms.seeds
    ]
    caption = f"All metrics. {title_of(by)}. {suite.title}."
    return Table(("model", "data", *map(written, metrics)), rows, (0, 1), caption)


def segment_tables(suite: SuiteResults) -> Iterator[Table]:
    """For each data set and test, the mean of each arm in each group of positives."""
    for source in suite.sources:
        for test in SEGMENT_TESTS:
            by = EvaluationSpec(test, "full")
            segments = {
                arm.name: [
                    cell.tests[by.key].segments
                    for cell in suite.seeds_of(source, arm.name)
                    if by.key in cell.tests and cell.tests[by.key].segments
                ]
                for arm in suite.arms
            }
            segments = {name: of for name, of in segments.items() if of}
            if segments:
                yield _segment_table(suite.name, source, by, segments)


def _segment_table(
    suite: str, source: str, by: EvaluationSpec, segments: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Table:
    sizes = next(iter(segments.values()))[0]
    columns = [
        (kind, group) for kind in SEGMENTS for group, (units, _) in sizes.get(kind, {}).items() if units
    ]
    rows: list[Row] = [
        [Cell(name), *(_mean_in(of, *column) for column in columns)] for name, of in segments.items()
    ]
    counts = [f"{sizes[kind][group][0]:,}" for kind, group in columns]
    spans = {kind: sum(kind == of for of, _ in columns) for kind in SEGMENTS}
    return Table(
        ("model", *(group for _, group in columns)),
        [*rows, ["positives ranked", *counts]],
        caption=f"{source}. {written(METRIC)} by group. {title_of(by)}. The first tenth of the items is the "
        "most popular.",
        foot=1,
        groups=[("", 1), *((SEGMENTS[kind], span) for kind, span in spans.items() if span)],
        name=f"{suite}|{source}|{by.test}",
    )


def _mean_in(segments: Sequence[Mapping[str, Any]], kind: str, group: str) -> str:
    values = [of.get(kind, {}).get(group, (0, None))[1] for of in segments]
    values = [value for value in values if value is not None]
    return f"{fmean(values):.4f}" if values else NONE


def published_tables(suite: SuiteResults) -> Iterator[Table]:
    """For each data set of the paper: its published metrics and ours, model by model."""
    for source, data, by, results in published_tests(suite):
        published, rows = published_metrics()[data], []
        for arm in suite.arms:
            if arm.name not in published or arm.name not in results.seeds:
                continue
            row = [Cell(arm.name)]
            for metric in METRICS:
                ours = results.means(metric).get(arm.name) if metric in results.metrics else None
                small = "" if ours is None else f"[{ours.low:.4f}, {ours.high:.4f}]"
                row.append(Cell(f"{published[arm.name][metric]:.4f}"))
                row.append(Cell(NONE if ours is None else f"{ours.mean:.4f}", small))
            rows.append(row)
        if rows:
            head = ("model", *(name for _ in METRICS for name in ("paper", "ours")))
            groups = [("", 1), *((written(metric), 2) for metric in METRICS)]
            caption = (
                f"{source}: the paper's {data} beside ours, test {by.test}, the authors' protocol. {CAVEAT}"
            )
            yield Table(head, rows, caption=caption, groups=groups)


# How the bench was made


def data_table(results: BenchResults) -> Table:
    """The data sets, each once for every hash that its name had."""
    rows: dict[tuple[str, str], Row] = {}
    for cell in results.cells:
        data = cell.data
        sizes = map(formatting.count, (data.rows, data.positives, data.users, data.items))
        past = "candidates" if data.repeats else "left out"
        borders = (data.train_before, data.test_from, past, data.hash[:HASH], _simulate_command(data.world))
        rows.setdefault((data.name, data.hash), [Cell(data.name), *sizes, *map(Cell, borders)])
    head = ("data", "rows", "positives", "users", "items", "trained before", "tested from", "own past items")
    caption = "The data sets. Validation lies between the two borders; equal times are never parted."
    return Table((*head, "hash", "simulated by"), list(rows.values()), (0, 5, 6, 7, 8, 9), caption)


def tests_table(results: BenchResults) -> Table:
    """The number of positives that each test ranks, and of equally weighted ones that would be as
    informative."""
    rows: dict[tuple[str, str], Row] = {}
    for suite in results.suites:
        for source in suite.sources:
            cell = suite.any_cell(source)
            for by in suite.tests:
                test = cell.tests.get(by.key)
                if test is not None:
                    whole = NONE if test.whole_test is None else formatting.count(test.whole_test)
                    sizes = (formatting.count(test.size), whole, f"{test.effective_sample_size:,.0f}")
                    names = Cell(source), Cell(title_of(by))
                    rows.setdefault((source, by.key), [*names, *sizes, Cell(test.chosen_by or NONE)])
    head = ("data", "test", "ranked", "of", "effective", "weights chosen by")
    caption = "The tests. Positives are ranked; users under `authors`, impressions against the ground truth."
    return Table(head, list(rows.values()), (0, 1, 5), caption)


def runs_table(suite: SuiteResults) -> Table:
    """The card of every arm: how it differs from its model's defaults, and how to train it alone."""
    rows: list[Row] = []
    for arm in suite.arms:
        cells = [cell for source in suite.sources for cell in suite.seeds_of(source, arm.name)]
        if not cells:
            rows.append([Cell(arm.name), Cell(arm.model), *[Cell(NONE)] * 6])
            continue
        cell, settings = cells[0], changed_settings(cells[0])
        words = [f"{name} {value}" for name, value in settings.items()]
        words += [f"trained again: {cell.rolling.refresh}"] if cell.rolling is not None else []
        columns = (
            ", ".join(words) or "defaults",
            ", ".join(map(str, sorted({cell.seed for cell in cells}))),
            f"{cell.cost.parameters:,}",
            f"{fmean(cell.cost.cpu_s for cell in cells):,.1f}",
            f"{fmean(cell.cost.memory_mb for cell in cells):,.0f}",
            train_command(arm.model, settings, cell.seed),
        )
        rows.append([Cell(arm.name), Cell(arm.model), *map(Cell, columns)])
    head = ("model", "name", "settings beside its defaults", "seeds", "parameters", "CPU-s", "MB", "one run")
    caption = (
        f"{suite.title}: the card of every model. CPU-seconds of training and memory of the process are "
        "means over data sets and seeds; parameters are those on the first data set. DATA is the folder of a "
        "data set."
    )
    return Table(head, rows, (0, 1, 2, 3, 7), caption)


def changed_settings(cell: BenchCell) -> dict[str, Any]:
    """The settings of a run that differ from its model's defaults, apart from the seed; all of them, if the
    model is not known any more."""
    try:
        model = create_model(cell.model)
        defaults = json.loads(json.dumps(_flat(asdict(model.config)) | asdict(model.training)))
    except BadInput:
        defaults = {}
    stored = _flat(cell.config) | dict(cell.training)
    missing = object()
    changed = {name: value for name, value in stored.items() if defaults.get(name, missing) != value}
    changed.pop("seed", None)
    return changed


def train_command(model: str, settings: Mapping[str, Any], seed: int) -> str:
    """The command that trains one run."""
    flags = _flags({"seed": seed, **settings})
    return shlex.join(["unskew", "train", "DATA", "--out", "RUN", "--model", model, *flags])


def _simulate_command(world: Mapping[str, Any] | None) -> str:
    if world is None:
        return NONE
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
    rows: dict[tuple[str, str], Row] = {}
    for suite in results.suites:
        for (source, arm), cells in suite.cells.items():
            healths = [cell.health for cell in cells.values() if cell.health is not None]
            if healths:
                health = healths[0]
                spread = NONE if not health.spread else f"{health.spread[0]:.2f} to {health.spread[-1]:.2f}"
                columns = (
                    f"{health.clip:g}",
                    _mean_fraction([health.effective_fraction for health in healths]),
                    _mean_fraction([health.clipped for health in healths]),
                    spread,
                    Cell(health.verdict.partition(";")[0].replace("`", "")),
                )
                settings = next(iter(cells.values())).settings_key
                rows.setdefault((source, settings), [Cell(arm), Cell(source), *columns])
    head = ("model", "data", "clip M", "effective", "clipped", "weights", "effect")
    caption = (
        "What propensities do to the loss. Effective: how much of the training events is left as an "
        "effective sample; 100 % means that all weights are the same. Weights: from the 1st to the 99th "
        "percentile, relative to their mean. Means over seeds; the words are those of the first seed."
    )
    return Table(head, list(rows.values()), (0, 1, 6), caption)


def _mean_fraction(values: Sequence[float | None]) -> str:
    present = [value for value in values if value is not None]
    return formatting.fraction(fmean(present)) if present else NONE


def missing_table(results: BenchResults) -> Table:
    """The runs that are missing, those that failed first."""
    runs = sorted(results.missing, key=lambda run: not run.why)
    rows = [
        [*map(Cell, (run.arm, run.source, run.suite, str(run.seed), run.why or "not run yet"))]
        for run in runs[:MOST_MISSING]
    ]
    more = f" {len(runs) - MOST_MISSING} more are not listed." if len(runs) > MOST_MISSING else ""
    head = ("model", "data", "suite", "seed", "why")
    return Table(head, rows, (0, 1, 2, 4), f"Places in tables without a run, and why.{more}")
