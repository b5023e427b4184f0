"""What the tests of tuning share: a small log without its test set, quick settings, and what a study says."""

from typing import Any

from tests.conftest import random_table
from unskew.data.log.split import Split, split
from unskew.data.reading.prepare import read
from unskew.tuning.search_space import BeforeTest
from unskew.tuning.tuner import Tuned, tune

QUICK: dict[str, Any] = {
    "layers": 1,
    "history": 6,
    "sequences": 64,
    "epochs": 4,
    "valid_examples": 80,
    "width": 8,
}


def small() -> Split:
    return split(read(random_table(rows=900, users=40, items=30, negatives=0.0)))


def quiet(model: str, data: BeforeTest, settings: dict[str, Any] | None = None, **more: Any) -> Tuned:
    return tune(model, data, settings, show_progress=False, **more)


def tried(found: Tuned) -> list[dict[str, Any]]:
    """All that a study says of its trials, but for how long they took."""
    return found.trials.drop_columns("seconds").to_pylist()


def finished(found: Tuned) -> list[dict[str, Any]]:
    """The same without the numbers, and without what was stopped."""
    rows = [{name: value for name, value in row.items() if name != "number"} for row in tried(found)]
    return [row for row in rows if row["state"] != "stopped"]
