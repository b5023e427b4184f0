"""Where a bench keeps what it found: a folder of small text files that a report needs and nothing else.

suites.json     the suites that were asked for, their arms, and where each cell stands
cells.jsonl     a line for each cell: settings, figures, curves, segments, and the result of each unit
tests.jsonl     a line for each test of each data set: the user and the weight of each unit
failures.jsonl  a line for each cell that failed the last time it was tried
runs/           the run of each cell that is under way; it goes on where it stopped

The result of a unit is the rank of a positive, of which only the first places matter, so thousands of them
are a few hundred bytes. From these the paired tests between any two models can be made later.
"""

import base64
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.core.atomic_files import write_text
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.evaluation.evaluate import CUTOFFS, Evaluation
from unskew.evaluation.metrics import METRICS
from unskew.experiments.suite import FORMAT, Place, Suite

Floats = NDArray[np.float64]

SHOWN_METRICS = ("ndcg", "hr")  # that tables have, at every cut-off
RANKED = {f"{name}@{cut}": (name, cut) for name in SHOWN_METRICS for cut in CUTOFFS}  # that a rank tells
LOWEST = max(CUTOFFS) + 1  # ranks from here on are the same to every metric
EXACT = 2  # equal scores share the mean of their ranks, so ranks are halves

# What is read of each line, from outside to inside. A * is every entry; a part with a ? may be left out.
CELL = "key format model settings_key config training.seed sample rolling versions health"
OF_DATA = "name hash world world?.bias rows positives users items repeats train_before test_from"
OF_TEST = "units size whole_test effective_sample_size chosen_by segments metrics values"
READ = {
    "cells.jsonl": (
        *CELL.split(),
        *(f"data.{name}" for name in OF_DATA.split()),
        *(f"cost.{name}" for name in ("cpu_s", "parameters", "memory_mb")),
        *(f"tests.*.{name}" for name in OF_TEST.split()),
        *("tests.ordinary, full", "health?.clip", "health?.kind", "health?.verdict", "records.*.valid"),
        *("windows?.*.start", "windows?.*.ndcg@10"),
    ),
    "tests.jsonl": ("key", "test", "protocol", "size", "repeats", "user", "weight"),
    "failures.jsonl": ("key", "why"),
}
HELP = {
    "cells.jsonl": "remove this line, and the same `unskew bench` measures its run again",
    "tests.jsonl": "take this file from a copy, or call the same `unskew bench` with another --out",
    "failures.jsonl": "remove this line",
}


class Results:
    """The folder of a bench."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cells = {line["key"]: line for line in self._lines("cells.jsonl")}
        self.tests = {line["key"]: line for line in self._lines("tests.jsonl")}
        self._lock: int | None = None

    @classmethod
    def open(cls, folder: Path) -> "Results":
        """What an earlier bench stored."""
        if not (folder / "suites.json").is_file():
            raise BadInput(f"{folder}: not a folder of `unskew bench` (no suites.json)")
        return cls(folder)

    def begin(self) -> None:
        """Make the folder, and keep other benches out of it until `end`."""
        try:
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise BadInput(f"{self.folder}: cannot write there ({error.strerror})") from None
        refusal = BadInput(f"{self.folder}: another bench is running in this folder right now")
        self._lock = lock_file(self.folder / ".lock", refusal)
        for name in ("cells.jsonl", "tests.jsonl"):
            self._mend(name)

    def end(self) -> None:
        """Let other benches in."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # Writing

    def plan(self, suites: Iterable[Suite], places: Iterable[Place], about: Mapping[str, Any]) -> None:
        """Add suites and the places of their cells to what is there. A suite that is asked for again, with
        more data or more seeds, keeps its other places."""
        known = self.asked if (self.folder / "suites.json").is_file() else {"suites": {}, "places": []}
        for suite in suites:
            arms = [
                {"name": arm.name, "model": arm.model, "twin": arm.twin, "x": arm.x} for arm in suite.arms
            ]
            said = {"title": suite.title, "question": suite.question, "of": suite.of, "axis": suite.axis}
            said |= {"file": suite.file} if suite.file else {}
            known["suites"][suite.name] = said | {"arms": arms, "rivals": list(suite.rivals)}
        by_place = {
            tuple(place[name] for name in ("suite", "source", "arm", "seed")): place
            for place in [*known["places"], *map(asdict, places)]
        }
        known["places"] = list(by_place.values())
        known["about"] = dict(about)
        self._replace("suites.json", json.dumps(known, indent=1, default=str) + "\n")

    def add(self, line: dict[str, Any], tests: Mapping[str, dict[str, Any]]) -> None:
        """Store a cell, and the tests that it is the first to have."""
        for key, test in tests.items():
            if key not in self.tests:
                self.tests[key] = {"key": key, **test}
                self._append("tests.jsonl", self.tests[key])
        self._append("cells.jsonl", line)
        self.cells[line["key"]] = line

    def failed(self, failures: Mapping[str, str]) -> None:
        """Store which cells failed and why, instead of what failed before."""
        lines = (json.dumps({"key": key, "why": why}) + "\n" for key, why in failures.items())
        self._replace("failures.jsonl", "".join(lines))

    # Reading

    @property
    def asked(self) -> dict[str, Any]:
        """The suites, and where each cell stands."""
        try:
            return dict(json.loads((self.folder / "suites.json").read_text(encoding="utf-8")))
        except (OSError, ValueError) as error:
            raise BadInput(f"{self.folder / 'suites.json'}: is damaged ({error})") from None

    @property
    def failures(self) -> dict[str, str]:
        """Why cells failed the last time."""
        return {line["key"]: line["why"] for line in self._lines("failures.jsonl")}

    def evaluation(self, key: str, test: str) -> Evaluation:
        """The evaluation of a cell in one of its tests, unit by unit, without segments and rows."""
        cell = self.cells[key]
        found = cell["tests"][test]
        units = self.tests[found["units"]]
        values = {
            name: values for name, values in unpacked(found["values"]).items() if len(values) == units["size"]
        }
        about = {
            "model": cell["model"],
            "training_seed": cell["training"]["seed"],
            "data": cell["data"]["hash"],
        }
        about |= {"repeats": units["repeats"], "settings": cell["settings_key"]}
        return Evaluation(
            protocol=units["protocol"],
            test=units["test"],
            user=np.asarray(decoded(units["user"], np.int32), np.int64),
            values=values,
            weights=np.asarray(decoded(units["weight"], np.float32), np.float64),
            about=about,
        )

    # Files

    def _lines(self, name: str) -> list[dict[str, Any]]:
        """The lines of a file, but for those of another format. The last one may be cut off, if the machine
        went down while it was written."""
        path = self.folder / name
        if not path.is_file():
            return []
        found = []
        lines = path.read_text(encoding="utf-8").split("\n")
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
            if gone := lacking(line, READ[name]):
                raise BadInput(
                    f"{path}, line {number}: has no {gone}, so it was edited, or another version made it; "
                    f"{HELP[name]}"
                )
            found.append(line)
        return found

    def _mend(self, name: str) -> None:
        """Remove a last line that was cut off."""
        path = self.folder / name
        if path.is_file():
            text = path.read_bytes()
            if not text.endswith(b"\n"):
                os.truncate(path, text.rfind(b"\n") + 1)

    def _append(self, name: str, line: dict[str, Any]) -> None:
        try:
            with (self.folder / name).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise UnskewError(
                f"{self.folder / name}: writing failed ({error.strerror}); what was stored before is kept"
            ) from error

    def _replace(self, name: str, text: str) -> None:
        write_text(self.folder / name, text)


# What is there


def lacking(line: Any, names: Iterable[str]) -> str:
    """The first thing that a stored line does not have of what is read of it; empty if it has everything."""
    for name in names:
        if gone := _gone(line, name.split(".")):
            return gone
    for test, found in line.get("tests", {}).items():
        means, values = found["metrics"], found["values"]
        shown, kept = (RANKED, []) if "rank" in values else (values, _kept(means))
        for part, name, wanted in ((means, "metrics", shown), (values, "values", kept)):
            for metric in wanted:
                if metric not in part:
                    return f"tests > {test} > {name} > {metric}"
    return ""


def _gone(part: Any, names: Sequence[str], above: tuple[str, ...] = ()) -> str:
    if not names:
        return ""
    name, *rest = names
    if name == "*":
        if not isinstance(part, dict | list):
            return " > ".join(above)
        entries = part.items() if isinstance(part, dict) else enumerate(part, 1)
        return next(filter(None, (_gone(inner, rest, (*above, str(at))) for at, inner in entries)), "")
    key = name.removesuffix("?")
    if isinstance(part, dict) and part.get(key) is None and key != name:
        return ""
    if not isinstance(part, dict) or key not in part:
        return " > ".join((*above, key))
    return _gone(part[key], rest, (*above, key))


# Units


def packed(found: Evaluation) -> dict[str, str]:
    """The results of all units as text: the rank of each, or, where a unit is not a single positive, the
    values of each metric that tables show."""
    reciprocal = found.values.get(f"mrr@{max(CUTOFFS)}")
    if reciprocal is not None and found.protocol != "authors":
        ranks = np.where(reciprocal > 0, 1 / np.where(reciprocal > 0, reciprocal, 1), LOWEST)
        return {"rank": encoded(np.round(ranks * EXACT).astype(np.uint8))}
    return {name: encoded(found.values[name].astype(np.float16)) for name in _kept(found.values)}


def _kept(names: Iterable[str]) -> list[str]:
    return [name for name in names if name.split("@")[0] in (*SHOWN_METRICS, "preference", "beyond")]


def unpacked(values: Mapping[str, str]) -> dict[str, Floats]:
    """The values of each metric for each unit."""
    if "rank" not in values:
        return {name: np.asarray(decoded(text, np.float16), np.float64) for name, text in values.items()}
    ranks = np.asarray(decoded(values["rank"], np.uint8), np.float64) / EXACT
    return {metric: METRICS[name](ranks, cut) for metric, (name, cut) in RANKED.items()}


def encoded(values: NDArray[Any]) -> str:
    """Numbers as text."""
    return base64.b85encode(zlib.compress(np.ascontiguousarray(values).tobytes(), 9)).decode()


def decoded(text: str, kind: Any) -> NDArray[Any]:
    """Numbers from what `encoded` made of them."""
    return np.frombuffer(zlib.decompress(base64.b85decode(text)), kind)
