"""Targets that a context event touched shortly before, and the test of the others."""

import numpy as np
import pytest

import unskew
from unskew.data.log.held_out import available_tests, held_out
from unskew.data.log.touched import touched
from unskew.diagnostics.log.inspect import inspect

HOUR = 3600
TYPES = {"type": "type", "target": "purchase", "context": "view,cart"}
START = 1_600_000_000


def shop() -> unskew.Log:
    """40 purchases of other items on different days; every second one follows a cart by 10 minutes, every
    fourth a view by 30 hours."""
    rows: list[tuple[str, str, int, str]] = []
    for number in range(40):
        user, item, time = f"u{number % 4}", f"i{number // 4}", START + number * 48 * HOUR
        rows.append((user, item, time, "purchase"))
        if number % 2:
            rows.append((user, item, time - 600, "cart"))
        if number % 4 == 0:
            rows.append((user, item, time - 30 * HOUR, "view"))
        rows.append((user, "other", time - 60, "view"))  # another item
        rows.append((user, item, time, "view"))  # at the same moment is not before
    names = ("user", "item", "time", "type")
    return unskew.read(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), **TYPES)


def test_the_fraction_and_the_median_minutes() -> None:
    log = shop()
    rows = np.arange(log.positives)
    near = touched(log, rows)
    assert near is not None
    assert (near.targets, near.fraction, near.median_minutes) == (40, 0.5, 10)
    longer = touched(log, rows, "30h")
    assert longer is not None
    assert longer.fraction == 0.75
    shorter = touched(log, rows, "9min")
    assert shorter is not None
    assert shorter.fraction == 0


def test_the_untouched_test_has_the_others() -> None:
    split = unskew.split(shop())
    ordinary, untouched = (held_out(split, "test", test) for test in ("ordinary", "untouched"))
    assert "untouched" in available_tests(split)
    assert len(ordinary.rows) == 12
    number = (split.log.time - START) // (48 * HOUR)
    assert (number[untouched.rows] % 2 == 0).all()
    assert untouched.rows.tolist() == [row for row in ordinary.rows if number[row] % 2 == 0]
    assert untouched.left_out["not_in_this_test"] == len(ordinary.rows) - len(untouched.rows)
    assert (number[held_out(split, "test", "untouched:30h").rows] % 4 == 2).all()
    assert len(held_out(split, "test", "untouched:5min").rows) == len(ordinary.rows)
    with pytest.raises(unskew.BadInput, match="window 'soon'"):
        held_out(split, "test", "untouched:soon")


def test_a_log_without_context_has_no_such_test() -> None:
    log = unskew.read({"user": list("abab"), "item": list("xyyx"), "time": [1, 2, 3, 4]})
    assert touched(log, np.arange(4)) is None
    with pytest.raises(unskew.BadInput) as error:
        held_out(unskew.split(log), "test", "untouched")
    assert error.value.field == "test"
    assert "untouched" not in available_tests(unskew.split(log))


def test_inspect_says_it() -> None:
    found = inspect(unskew.split(shop()))
    assert found.touched is not None
    assert any(sentence.startswith("Touched:") for sentence in found.facts())
    assert [row.value for row in found.rows() if row.group == "touched"] == ["50.0 %", "10"]


def test_an_evaluation_says_it() -> None:
    split = unskew.split(shop())
    model = unskew.create_model("popularity").fit(split, show_progress=False)
    about = model.evaluate(split).about["touched"]
    assert (about["within"], about["median_minutes"]) == ("24h", 10)
    assert "untouched" in model.evaluate(split, test="untouched").test
