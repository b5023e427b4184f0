"""The results of a bench, suite by suite: which of its runs are done, and in which tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from unskew.core.errors import BadInput
from unskew.data.log.log import TESTS
from unskew.experiments.bench_cell import BenchCell
from unskew.experiments.cell_store import CellStore
from unskew.experiments.grid import Placement
from unskew.experiments.intervals import ArmResults, ComparisonPlan
from unskew.experiments.suite import Suite

PROTOCOLS = ("full", "uni100", "authors")
Segments = Mapping[str, Mapping[str, tuple[Any, ...]]]


class EvaluationSpec(NamedTuple):
    """A test under a protocol."""

    test: str
    protocol: str

    @property
    def key(self) -> str:
        """Its name in a stored cell."""
        return f"{self.test}, {self.protocol}"


ORDINARY, BALANCED, GROUND_TRUTH = (
    EvaluationSpec(name, "full") for name in ("ordinary", "balanced", "ground-truth")
)


@dataclass(frozen=True)
class MissingRun:
    """A run that was asked for and is not there."""

    suite: str
    source: str
    arm: str
    seed: int
    why: str  # why it failed; empty if it was not tried


class BenchResults:
    """Everything that a bench has stored so far, suite by suite."""

    def __init__(self, store: CellStore) -> None:
        plan, failures = store.plan, store.failures
        self.folder, self.command, self.smoke = store.folder, plan.about.command, plan.about.smoke
        suites = [SuiteResults(suite, plan.places, store, self.smoke) for suite in plan.suites.values()]
        self.suites = [suite for suite in suites if suite.sources]
        keys = {placement.key for placement in plan.places}
        self.planned, self.done = len(keys), len(keys & store.cells.keys())
        self.missing = [run for suite in suites for run in suite.missing(failures)]
        if not self.suites:
            again = f": call `{self.command}` again" if self.command else ""
            raise BadInput(f"{self.folder}: none of its {self.planned} runs is done{again}")

    @classmethod
    def open(cls, folder: Path) -> "BenchResults":
        """The results in the folder of a bench."""
        if not folder.is_dir():
            raise BadInput(f"{folder}: no such folder; expected one of `unskew bench`")
        return cls(CellStore.open(folder))

    def suite(self, name: str) -> "SuiteResults | None":
        """The suite of a name, if it is there."""
        return next((suite for suite in self.suites if suite.name == name), None)

    @property
    def cells(self) -> list[BenchCell]:
        """All runs that are done, suite by suite."""
        return [cell for suite in self.suites for cell in suite.every_cell()]

    @property
    def leading(self) -> "SuiteResults":
        """The suite that the verdict is about: the one with DEPS and its rivals, or else the first."""
        return self.suite("main") or self.suite("industry") or self.suites[0]


class SuiteResults:
    """The results of one suite.

    smoke: whether it is a smoke test. Its runs are short on purpose, and count as finished: the report says
        that nothing follows from them.
    """

    def __init__(
        self, suite: Suite, places: Sequence[Placement], store: CellStore, smoke: bool = False
    ) -> None:
        self.name, self.title, self.question = suite.name, suite.title, suite.question
        self.of, self.axis, self.file, self.arms = suite.of, suite.axis, suite.file, suite.arms
        self._named_rivals, self._store, self._is_smoke = list(suite.rivals), store, smoke
        arms = {arm.name for arm in self.arms}
        self._places = [at for at in places if at.suite == suite.name and at.arm in arms]
        self.cells: dict[tuple[str, str], dict[int, BenchCell]] = {}
        for at in self._places:
            cells = self.cells.setdefault((at.source, at.arm), {})
            if at.key in store.cells:
                cells[at.seed] = store.cells[at.key]
        self.sources = list(dict.fromkeys(source for (source, _), cells in self.cells.items() if cells))
        self._arm_results: dict[tuple[str, EvaluationSpec], ArmResults | None] = {}

    def missing(self, failures: Mapping[str, str]) -> list[MissingRun]:
        """The runs that are not there."""
        return [
            MissingRun(self.name, at.source, at.arm, at.seed, failures.get(at.key, ""))
            for at in self._places
            if at.seed not in self.cells[at.source, at.arm]
        ]

    def every_cell(self) -> Iterator[BenchCell]:
        """All runs that are done."""
        for cells in self.cells.values():
            yield from cells.values()

    def seeds_of(self, source: str, arm: str) -> list[BenchCell]:
        """The runs of an arm on a data set that are done, one for each seed."""
        return list(self.cells.get((source, arm), {}).values())

    def cell(self, source: str, arm: str) -> BenchCell | None:
        """The run of an arm with its first seed, if one is done."""
        return min(self.seeds_of(source, arm), key=lambda cell: cell.seed, default=None)

    def any_cell(self, source: str) -> BenchCell:
        """Any run on a data set, for what all of them have in common."""
        return next(cell for arm in self.arms if (cell := self.cell(source, arm.name)) is not None)

    def is_finished(self, source: str, arm: str) -> bool:
        """Whether the runs of an arm on a data set were all trained to the end; no verdict uses others."""
        return self._is_smoke or all(cell.finished for cell in self.seeds_of(source, arm))

    @property
    def unfinished(self) -> list[tuple[str, str]]:
        """The data sets and arms that have runs, of which some were not trained to the end."""
        return [at for at, cells in self.cells.items() if cells and not self.is_finished(*at)]

    def limits(self, source: str) -> dict[str, float]:
        """The settings that were limited on a data set, and to what."""
        return {name: most for at in self._places if at.source == source for name, most in at.at_most.items()}

    @property
    def first(self) -> str:
        """The arm that the others are compared with, unless they have a twin."""
        return self.arms[0].name

    @property
    def twins(self) -> dict[str, str]:
        """The twin of each arm that has one."""
        return {arm.name: arm.twin for arm in self.arms if arm.twin is not None}

    @property
    def rivals(self) -> list[str]:
        """The arms among which the best rival of the first is looked for; none where arms have twins instead,
        unless the suite names them."""
        if self._named_rivals or self.twins:
            return self._named_rivals
        return [arm.name for arm in self.arms[1:]]

    @property
    def order_only(self) -> list[str]:
        """The data sets whose times only give an order."""
        return [source for source in self.sources if not self.any_cell(source).data.dated]

    @cached_property
    def tests(self) -> list[EvaluationSpec]:
        """All tests under all protocols, in the order in which they are shown: first those that every log
        has, then named ones, and the ground truth."""
        keys = {key for cell in self.every_cell() for key in cell.tests}
        specs = {EvaluationSpec(*key.rsplit(", ", 1)) for key in keys}
        tests = (*TESTS, *sorted({by.test for by in specs} - {*TESTS, "ground-truth"}), "ground-truth")
        return sorted(specs, key=lambda by: (tests.index(by.test), PROTOCOLS.index(by.protocol)))

    def arm_results(self, source: str, by: EvaluationSpec) -> ArmResults | None:
        """All arms on one data set in one test; None if no arm has it."""
        if (source, by) not in self._arm_results:
            cells = {arm.name: self.tested(source, arm.name, by) for arm in self.arms}
            cells = {name: of for name, of in cells.items() if of}
            references = {arm.name: self.twins.get(arm.name, self.first) for arm in self.arms}
            references = {arm: to for arm, to in references.items() if arm != to}
            finished = [name for name in cells if self.is_finished(source, name)]
            plan = ComparisonPlan(self.first, references, self.rivals, finished)
            self._arm_results[source, by] = ArmResults(cells, by.key, plan, self._store) if cells else None
        return self._arm_results[source, by]

    def tested(self, source: str, arm: str, by: EvaluationSpec) -> list[BenchCell]:
        """The runs of an arm on a data set that were tested in this way, and had something to test."""
        cells = [cell for cell in self.seeds_of(source, arm) if by.key in cell.tests]
        return [cell for cell in cells if None not in cell.tests[by.key].metrics.values()]

    def on_sources(self, by: EvaluationSpec) -> dict[str, ArmResults]:
        """The results in one test on every data set that has it."""
        results = {source: self.arm_results(source, by) for source in self.sources}
        return {source: arms for source, arms in results.items() if arms is not None}

    def metrics(self, by: EvaluationSpec) -> list[str]:
        """All metrics that a test has on any data set."""
        return list(dict.fromkeys(metric for arms in self.on_sources(by).values() for metric in arms.metrics))

    def segments(self, source: str, arm: str, by: EvaluationSpec) -> list[Segments]:
        """For each run of an arm the units and the mean of every group of positives, by kind and group."""
        tests = (cell.tests.get(by.key) for cell in self.seeds_of(source, arm))
        return [test.segments for test in tests if test is not None and test.segments]


def mean_in(segments: Sequence[Segments], kind: str, group: str) -> float | None:
    """The mean over runs in one group of positives; None if there are none."""
    values = [of.get(kind, {}).get(group, (0, None))[1] for of in segments]
    values = [value for value in values if value is not None]
    return fmean(values) if values else None
