"""The test set cannot reach a study: its rows are not there, and another future changes nothing."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import unskew
from tests.conftest import SMALL_DEPS, random_table
from tests.helpers.tuned import QUICK, quiet, small, tried
from unskew.api.create import create_model
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.tuning import tuner as tuning
from unskew.tuning.search_space import BeforeTest
from unskew.tuning.tuner import tune


@pytest.fixture(scope="module")
def cut() -> unskew.Split:
    return small()


@pytest.fixture(scope="module")
def data(cut: unskew.Split) -> BeforeTest:
    return BeforeTest(cut)


def everything(seed: int = 0) -> pa.Table:
    """Impressions with all that a row may have, and items that are shown long before anybody takes them."""
    table = random_table(rows=1500, users=50, items=60, negatives=0.5, times=10**6, seed=seed)
    random = np.random.default_rng(seed)
    columns = {
        "propensity": random.uniform(0.1, 0.9, len(table)),
        "exposed": random.integers(0, 2, len(table)),
        "impression_id": random.integers(0, 5, len(table)),
        "odd": np.arange(len(table)) % 2,
        "title": [f"the {item}" for item in table["item"].to_pylist()],
        "colour": [item[-1] for item in table["item"].to_pylist()],
    }
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    return table


READING = {"tests": "odd", "item_features": "colour"}


def garbled(table: pa.Table, end: int) -> pa.Table:
    """The same log with another future: other people, other things, other labels, everything else as well."""
    late = np.asarray(table["time"]) >= end
    early, rows = table.filter((~late).tolist()), table.filter(late.tolist())
    numbers = range(len(rows))
    other: dict[str, list[Any]] = {
        "user": [f"stranger {number % 17}" for number in numbers],
        "item": [f"novelty {number % 23}" if number % 2 else "i3" for number in numbers],
        "time": rows["time"].to_pylist(),
        "label": [1 - label for label in rows["label"].to_pylist()],
        "propensity": [0.01 for _ in numbers],
        "exposed": [1 for _ in numbers],
        "impression_id": [number % 7 for number in numbers],
        "odd": [1 for _ in numbers],
        "title": ["a title" for _ in numbers],
        "colour": ["unheard of" for _ in numbers],
    }
    return pa.concat_tables([pa.table(other, schema=table.schema), early])


def test_the_rows_of_the_test_part_are_not_there() -> None:
    whole = unskew.split(unskew.read(everything(), **READING))
    before = BeforeTest(whole)
    left = before.split
    assert (left.train_end, left.valid_end) == (whole.train_end, whole.valid_end)
    assert int(left.log.time.max()) < whole.valid_end <= int(whole.log.time.max())
    assert not left.rows("test").size
    assert [left.rows(part).size for part in ("train", "valid")] == [
        whole.rows(part).size for part in ("train", "valid")
    ]
    seen = pc.unique(whole.log.table().filter((whole.log.time < whole.valid_end).tolist())["item"])
    assert set(left.log.items.ids.to_pylist()) == set(seen.to_pylist())
    assert (left.known_users, left.known_items, left.repeats, left.min_count) == (
        whole.known_users,
        whole.known_items,
        whole.repeats,
        whole.min_count,
    )
    assert left.log.folder is None
    assert left.log.impression_id is not None
    assert left.log.propensity is not None
    assert left.log.items.features.keys() == {"colour"}
    assert not left.log.marks
    held = [value for value in vars(before).values() if isinstance(value, unskew.Split)]
    assert [len(each.log) for each in held] == [len(left.log)]  # and nothing else holds them


@pytest.mark.parametrize(
    ("model", "settings", "trials"),
    [
        ("itemknn", {}, 9),
        ("sasrec", QUICK, 4),
        ("debiased-sasrec", QUICK | {"select_by": "shown", "valid_examples": 300}, 3),
        ("pulse", {"epochs": 1, "valid_examples": 80, "select_by": "balanced"}, 2),
        ("deps", SMALL_DEPS | {"epochs": 1}, 2),
    ],
)
def test_another_future_changes_nothing(model: str, settings: dict[str, Any], trials: int) -> None:
    here = unskew.split(unskew.read(everything(), **READING))
    there = unskew.split(unskew.read(garbled(everything(), here.valid_end), **READING))
    assert here.log.fingerprint() != there.log.fingerprint()
    assert (here.train_end, here.valid_end) == (there.train_end, there.valid_end)
    one, other = (quiet(model, BeforeTest(each), settings, trials=trials) for each in (here, there))
    assert tried(one) == tried(other)
    assert one.document == other.document  # the hash included
    assert len({row["value"] for row in tried(one)}) > 1


def test_what_is_fitted_has_no_row_of_the_test_part(cut: unskew.Split, monkeypatch) -> None:
    fitted = []

    def looked(split: unskew.Split, *rest: Any, **more: Any) -> Any:
        fitted.append(split)
        return train(split, *rest, **more)

    monkeypatch.setattr(tuning, "train", looked)
    quiet("itemknn", BeforeTest(cut), trials=2)
    assert len(fitted) == 2
    assert all(int(split.log.time.max()) < cut.valid_end for split in fitted)


@pytest.mark.parametrize("wrong", ["split", "log", None])
def test_nothing_else_is_tuned_on(cut: unskew.Split, wrong: str | None) -> None:
    given: Any = {"split": cut, "log": cut.log}.get(wrong or "")
    with pytest.raises(unskew.BadInput, match=r"expected `unskew.BeforeTest\(split\)`"):
        tune("itemknn", given)
    with pytest.raises(unskew.BadInput, match="expected a split of a log"):
        BeforeTest(given.log if wrong == "split" else given)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("itemknn", {}),
        ("sasrec", QUICK),
        ("pulse", {"epochs": 1, "valid_examples": 80}),
        ("deps", SMALL_DEPS | {"epochs": 1}),
    ],
)
def test_the_whole_split_gives_the_same_value(
    cut: unskew.Split, data: BeforeTest, model: str, settings: dict[str, Any]
) -> None:
    """What was chosen without the test set is what would have been chosen with it."""
    found = quiet(model, data, settings, trials=3)
    for row in tried(found):
        made = create_model(model, settings | {name: row[name] for name in found.document["searched"]})
        asked = RunSettings(model=model, config=made.config, training=made.training)
        trainer = train(cut, asked)
        assert trainer.progress.best[found.select_by] == pytest.approx(row["value"], abs=2e-6)
    assert found.create().fit(cut, show_progress=False).evaluate(cut).metrics()["ndcg@10"] > 0


def test_a_split_without_validation(cut: unskew.Split) -> None:
    with pytest.raises(unskew.BadInput, match=r"tuning needs a validation set.*\(fractions 70, 0, 30\)"):
        BeforeTest(unskew.split(cut.log, fractions=(70, 0, 30)))
