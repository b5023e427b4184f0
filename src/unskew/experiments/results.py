"""What a bench found, suite by suite: which of its runs are done, and in which tests."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from unskew.core.errors import BadInput
from unskew.data.log.log import TESTS
from unskew.experiments.cell_store import Results
from unskew.experiments.intervals import Family, Measured

PROTOCOLS = ("full", "uni100", "authors")


class EvaluationSpec(NamedTuple):
    """A test under a protocol."""

    test: str
    protocol: str

    @property
    def key(self) -> str:
        """What a stored cell calls it."""
        return f"{self.test}, {self.protocol}"


ORDINARY, BALANCED, GROUND_TRUTH = (
    EvaluationSpec(name, "full") for name in ("ordinary", "balanced", "ground-truth")
)


@dataclass(frozen=True)
class Arm:
    """A row of a suite's table."""

    name: str
    model: str
    twin: str | None = None
    x: float | None = None


@dataclass(frozen=True)
class Missing:
    """A run that was asked for and is not there."""

    suite: str
    source: str
    arm: str
    seed: int
    why: str  # why it failed; empty if it was not tried


class Findings:
    """Everything that a bench has stored so far, suite by suite."""

    def __init__(self, results: Results) -> None:
        asked = results.asked
        self.folder = results.folder
        self.command = str(asked.get("about", {}).get("command", ""))
        self.smoke = bool(asked.get("about", {}).get("smoke", False))
        by_suite: dict[str, list[dict[str, Any]]] = {}
        for place in asked["places"]:
            by_suite.setdefault(place["suite"], []).append(place)
        every = [
            SuiteFindings(name, said, by_suite.get(name, []), results)
            for name, said in asked["suites"].items()
        ]
        self.suites = [suite for suite in every if suite.sources]
        keys = {place["key"] for place in asked["places"]}
        self.planned, self.done = len(keys), len(keys & results.cells.keys())
        self.missing = [one for suite in every for one in suite.missing(results.failures)]
        if not self.suites:
            again = f": call `{self.command}` again" if self.command else ""
            raise BadInput(f"{self.folder}: none of its {self.planned} runs is done{again}")

    @classmethod
    def open(cls, folder: Path) -> "Findings":
        """What is stored in the folder of a bench."""
        if not folder.is_dir():
            raise BadInput(f"{folder}: no such folder; expected one of `unskew bench`")
        results = Results.open(folder)
        try:
            return cls(results)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{folder / 'suites.json'}: is damaged (no {error})") from None

    def suite(self, name: str) -> "SuiteFindings | None":
        """The suite of a name, if it is there."""
        return next((suite for suite in self.suites if suite.name == name), None)

    @property
    def hashes(self) -> list[str]:
        """The hash of every log."""
        return list(
            dict.fromkeys(cell["data"]["hash"] for suite in self.suites for cell in suite.every_cell())
        )


class SuiteFindings:
    """What was found for one suite."""

    def __init__(
        self, name: str, said: Mapping[str, Any], places: Sequence[Mapping[str, Any]], results: Results
    ) -> None:
        self.name, self.title, self.question = name, said["title"], said["question"]
        self.of, self.axis, self.file = said["of"], said["axis"], str(said.get("file", ""))
        self.arms = [Arm(**{key: arm[key] for key in ("name", "model", "twin", "x")}) for arm in said["arms"]]
        self._rivals, self._results = list(said["rivals"]), results
        arms = {arm.name for arm in self.arms}
        self._places = [place for place in places if place["arm"] in arms]
        self.cells: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
        for place in self._places:
            found = self.cells.setdefault((place["source"], place["arm"]), {})
            if place["key"] in results.cells:
                found[place["seed"]] = results.cells[place["key"]]
        there = {source for (source, _), found in self.cells.items() if found}
        self.sources = [name for name in dict.fromkeys(source for source, _ in self.cells) if name in there]
        self._measured: dict[tuple[str, EvaluationSpec], Measured | None] = {}

    def missing(self, failures: Mapping[str, str]) -> list[Missing]:
        """The runs that are not there."""
        return [
            Missing(self.name, place["source"], place["arm"], place["seed"], failures.get(place["key"], ""))
            for place in self._places
            if place["seed"] not in self.cells[place["source"], place["arm"]]
        ]

    def every_cell(self) -> Iterator[dict[str, Any]]:
        """All runs that are done."""
        for found in self.cells.values():
            yield from found.values()

    def cell(self, source: str, arm: str) -> dict[str, Any] | None:
        """The run of an arm with its first seed, if one is done."""
        found = self.cells.get((source, arm), {})
        return found[min(found)] if found else None

    def some_cell(self, source: str) -> dict[str, Any]:
        """Any run on a data set, for what all of them have in common."""
        return next(cell for arm in self.arms if (cell := self.cell(source, arm.name)) is not None)

    def at_most(self, source: str) -> str:
        """What models were not allowed more of on a data set, in words; empty if they had all."""
        places = (place for place in self._places if place["source"] == source)
        found = {name: most for place in places for name, most in place.get("at_most", {}).items()}
        return ", ".join(f"{name.replace('.', ' ')} {most:g}" for name, most in found.items())

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
        if self._rivals or self.twins:
            return self._rivals
        return [arm.name for arm in self.arms[1:]]

    def reference(self, arm: str) -> str | None:
        """The arm that another one is compared with."""
        return self.twins.get(arm, None if arm == self.first else self.first)

    @property
    def family(self) -> Family:
        """Which comparisons of a table belong together."""
        of = {arm.name: to for arm in self.arms if (to := self.reference(arm.name)) is not None}
        return Family(self.first, of, self.rivals)

    @cached_property
    def evaluation_specs(self) -> list[EvaluationSpec]:
        """All tests under all protocols, in the order in which they are shown: first those that every log
        has, then named ones, and the ground truth."""
        found = {EvaluationSpec(*key.rsplit(", ", 1)) for cell in self.every_cell() for key in cell["tests"]}
        tests = (*TESTS, *sorted({one.test for one in found} - {*TESTS, "ground-truth"}), "ground-truth")
        return sorted(found, key=lambda one: (tests.index(one.test), PROTOCOLS.index(one.protocol)))

    def measured(self, source: str, by: EvaluationSpec) -> Measured | None:
        """All arms on one data set in one test; None if no arm has it."""
        at = source, by
        if at not in self._measured:
            cells = {
                arm.name: {seed: cell for seed, cell in of.items() if _has(cell, by)}
                for arm in self.arms
                if (of := self.cells.get((source, arm.name)))
            }
            kept = {name: of for name, of in cells.items() if of}
            self._measured[at] = Measured(kept, by.key, self.family, self._results) if kept else None
        return self._measured[at]


def _has(cell: Mapping[str, Any], by: EvaluationSpec) -> bool:
    """Whether a run was tested in this way, and there was something to test."""
    return by.key in cell["tests"] and None not in cell["tests"][by.key]["metrics"].values()
