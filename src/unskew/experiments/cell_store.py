"""The folder of a bench: small text files that a report needs and nothing else.

suites.json     the suites that were asked for, their arms, and the positions of all cells
cells.jsonl     a line for each cell: settings, metrics, curves, segments, and the result of each unit
tests.jsonl     a line for each test of each data set: the user and the weight of each unit
failures.jsonl  a line for each cell that failed the last time it was tried
runs/           the run of each cell that is under way; it goes on where it stopped

The result of a unit is the rank of a positive, of which only the first places matter, so thousands of them
are a few hundred bytes. From these, paired tests between any two models can be made later.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from unskew.core.atomic_files import write_text
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.evaluation.evaluate import CUTOFFS, Evaluation
from unskew.evaluation.metrics import METRICS
from unskew.experiments.bench_cell import (
    About,
    BenchCell,
    Failure,
    IncompleteError,
    Plan,
    Units,
    from_json,
)
from unskew.experiments.grid import FORMAT, Placement
from unskew.experiments.suite import Suite

T = TypeVar("T")
Floats = NDArray[np.float64]

SHOWN_METRICS = ("ndcg", "hr")  # that tables have, at every cut-off
RANKED = {
    f"{name}@{cut}": (name, cut) for name in SHOWN_METRICS for cut in CUTOFFS
}  # that follow from a rank
LOWEST = max(CUTOFFS) + 1  # ranks from here on are the same to every metric
EXACT = 2  # equal scores share the mean of their ranks, so ranks are halves
REMEDIES = {
    "cells.jsonl": "remove this line, and the same `unskew bench` measures its run again",
    "tests.jsonl": "take this file from a copy, or call the same `unskew bench` with another --out",
    "failures.jsonl": "remove this line",
}


class CellStore:
    """The folder of a bench."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = {cell.key: cell for cell in self._lines("cells.jsonl", BenchCell)}
        self.units = {units.key: units for units in self._lines("tests.jsonl", Units)}
        self._lock: int | None = None

    @classmethod
    def open(cls, folder: Path) -> "CellStore":
        """The folder of an earlier bench."""
        if not (folder / "suites.json").is_file():
            raise BadInput(f"{folder}: not a folder of `unskew bench` (no suites.json)")
        return cls(folder)

    def lock(self) -> None:
        """Make the folder, and keep other benches out of it until `unlock`."""
        try:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.folder}: cannot write there ({error.strerror})") from None
        refusal = BadInput(f"{self.folder}: another bench is running in this folder right now")
        self._lock = lock_file(self.folder / ".lock", refusal)
        for name in ("cells.jsonl", "tests.jsonl"):
            path = self.folder / name
            if path.is_file() and not (text := path.read_bytes()).endswith(b"\n"):
                os.truncate(path, text.rfind(b"\n") + 1)  # the last line was cut off

    def unlock(self) -> None:
        """Let other benches in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Writing

    def add_to_plan(self, suites: Iterable[Suite], placements: Iterable[Placement], about: About) -> None:
        """Add suites and the placements of their cells. A suite that is asked for again, with more data or
        more seeds, keeps its other placements."""
        plan = self.plan if (self.folder / "suites.json").is_file() else Plan(suites={}, places=())
        by_position = {
            (placement.suite, placement.source, placement.arm, placement.seed): placement
            for placement in (*plan.places, *placements)
        }
        by_name = dict(plan.suites) | {suite.name: suite for suite in suites}
        plan = Plan(suites=by_name, places=tuple(by_position.values()), about=about)
        write_text(self.folder / "suites.json", json.dumps(asdict(plan), indent=1, default=str) + "\n")

    def add_cell(self, cell: BenchCell, units: Mapping[str, Units]) -> None:
        """Store a cell, and the units of the tests that it is the first to have."""
        for key, tested in units.items():
            if key not in self.units:
                self.units[key] = tested
                self._append("tests.jsonl", asdict(tested))
        self._append("cells.jsonl", asdict(cell))
        self.cells[cell.key] = cell

    def replace_failures(self, failures: Mapping[str, str]) -> None:
        """Store which cells failed and why, instead of those that failed before."""
        lines = (json.dumps({"key": key, "why": why}) + "\n" for key, why in failures.items())
        write_text(self.folder / "failures.jsonl", "".join(lines))

    # Reading

    @property
    def plan(self) -> Plan:
        """The suites, and where each cell stands."""
        path = self.folder / "suites.json"
        try:
            return from_json(Plan, json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, IncompleteError) as error:
            raise BadInput(f"{path}: is damaged ({error})") from None

    @property
    def failures(self) -> dict[str, str]:
        """Why cells failed the last time."""
        return {failure.key: failure.why for failure in self._lines("failures.jsonl", Failure)}

    # Files

    def _lines(self, name: str, kind: type[T]) -> list[T]:
        """The lines of a file, without those of another format. The last one may be cut off, if the machine
        went down while it was written."""
        path, parsed = self.folder / name, []
        lines = path.read_text(encoding="utf-8").split("\n") if path.is_file() else []
        for number, text in enumerate(lines, 1):
            if not text:
                continue
            try:
                line = json.loads(text)
            except ValueError:
                if number < len(lines):
                    raise BadInput(f"{path}, line {number}: is damaged; remove this line") from None
                continue
            if isinstance(line, dict) and line.get("format", FORMAT) != FORMAT:
                continue
            try:
                parsed.append(from_json(kind, line, () if isinstance(line, dict) else ("key",)))
                if isinstance(parsed[-1], BenchCell):
                    _check_metrics(parsed[-1])
            except IncompleteError as error:
                raise BadInput(
                    f"{path}, line {number}: has no {error}, so it was edited, or another version made it; "
                    f"{REMEDIES[name]}"
                ) from None
        return parsed

    def _append(self, name: str, line: Mapping[str, Any]) -> None:
        try:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UnskewError(
                f"{self.folder / name}: writing failed ({error.strerror}); what was stored before is kept"
            ) from error


def _check_metrics(cell: BenchCell) -> None:
    """Refuse a cell without the ordinary test, or without a metric in its means or in its units' values."""
    if "ordinary, full" not in cell.tests:
        raise IncompleteError("tests > ordinary, full")
    for test, stored in cell.tests.items():
        ranked = "rank" in stored.values
        parts = (
            ("metrics", stored.metrics, RANKED if ranked else stored.values),
            ("values", stored.values, () if ranked else _kept(stored.metrics)),
        )
        for name, part, metrics in parts:
            for metric in metrics:
                if metric not in part:
                    raise IncompleteError(f"tests > {test} > {name} > {metric}")


# Units


def pack_values(evaluation: Evaluation) -> dict[str, str]:
    """The results of all units as text: the rank of each, or, where a unit is not a single positive, the
    values of each metric that tables show."""
    reciprocal = evaluation.values.get(f"mrr@{max(CUTOFFS)}")
    if reciprocal is not None and evaluation.protocol != "authors":
        ranks = np.where(reciprocal > 0, 1 / np.where(reciprocal > 0, reciprocal, 1), LOWEST)
        return {"rank": encode(np.round(ranks * EXACT).astype(np.uint8))}
    values = evaluation.values
    return {name: encode(values[name].astype(np.float16)) for name in _kept(values)}


def _kept(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.split("@")[0] in (*SHOWN_METRICS, "preference", "beyond")]


def unpack_values(values: Mapping[str, str]) -> dict[str, Floats]:
    """The values of each metric for each unit."""
    if "rank" not in values:
        return {name: decode(text, np.float16).astype(np.float64) for name, text in values.items()}
    ranks = decode(values["rank"], np.uint8) / EXACT
    return {metric: METRICS[name](ranks, cut) for metric, (name, cut) in RANKED.items()}


def encode(values: NDArray[Any]) -> str:
    """Numbers as text."""
    return base64.b85encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()


def decode(text: str, kind: DTypeLike) -> NDArray[Any]:
    """The numbers of a text that `encode` made."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), kind)
