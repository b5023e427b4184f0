"""Features of users and items: which of several values stays, what is missing, and the way to disk and
back."""

import json
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from tests.project.test_cluster import compare
from unskew.data.log.vocabulary import Feature

SHOP = {
    "user": ["ann", "ann", "bob", "bob", "cid"],
    "item": ["x", "y", "x", "y", "z"],
    "time": [30, 20, 10, 40, 50],
    "category": ["toys", "books", "games", "food", None],
    "price": [1.5, None, None, 2.0, 3.0],
    "country": ["de", "fr", "it", "it", None],
}


def features(log: unskew.Log, of: str = "items") -> dict[Any, dict[str, Any]]:
    """Of each id, its features."""
    vocabulary = getattr(log, of)
    return {
        key: {name: feature.values[code].as_py() for name, feature in vocabulary.features.items()}
        for code, key in enumerate(vocabulary.ids.to_pylist())
    }


def test_the_earliest_value_stays(tmp_path: Path) -> None:
    log = unskew.prepare(SHOP, tmp_path / "out", item_features="category, price", user_features="country")
    assert features(log) == {
        "x": {"category": "games", "price": 1.5},  # at 10; the price is first known at 30
        "y": {"category": "books", "price": 2.0},
        "z": {"category": None, "price": 3.0},
    }
    assert features(log, "users") == {
        "ann": {"country": "fr"},
        "bob": {"country": "it"},
        "cid": {"country": None},
    }
    stored = json.loads((tmp_path / "out" / "data.json").read_text())["features"]
    assert stored == {
        "users": {"country": {"changed": 1, "late": 0, "missing": 1}},
        "items": {
            "category": {"changed": 2, "late": 0, "missing": 1},
            "price": {"changed": 0, "late": 2, "missing": 0},
        },
    }


def test_of_values_at_the_same_time_the_smallest_stays_whatever_their_order() -> None:
    rows = {"user": ["a", "b", "c"], "item": ["x", "x", "y"], "time": [1, 1, 2], "size": [9, 10, 3]}
    for table in (rows, {name: values[::-1] for name, values in rows.items()}):
        log = unskew.read(table, item_features="size")
        assert features(log) == {"x": {"size": 9}, "y": {"size": 3}}  # as numbers: as text, 10 is smaller
        assert log.metadata.features["items"]["size"].changed == 1


def test_against_a_naive_loop(tmp_path: Path) -> None:
    table = random_table(rows=800, times=60)
    random = np.random.default_rng(3)
    size = np.where(random.random(800) < 0.3, None, random.integers(0, 4, 800))
    table = table.append_column("size", pa.array(size.tolist(), pa.int64()))
    expected: dict[str, tuple[int, int]] = {}
    for item, time, value in zip(
        *(table[name].to_pylist() for name in ("item", "time", "size")), strict=True
    ):
        if value is not None:
            expected[item] = min(expected.get(item, (time, value)), (time, value))
    for number, settings in enumerate(({}, {"duplicates": "pair"}, {"k_core": 9})):
        log = unskew.prepare(table, tmp_path / str(number), item_features="size", **settings)
        assert {item: found["size"] for item, found in features(log).items()} == {
            item: expected[item][1] for item in log.items.ids.to_pylist()
        }


def test_counts_are_of_the_items_that_stay(tmp_path: Path) -> None:
    rows = [(user, item, 1, "same") for user in "abc" for item in "xyz"]
    rows += [("a", "rare", 2, "one"), ("b", "rare", 3, "two")]
    table = dict(zip(("user", "item", "time", "kind"), zip(*rows, strict=True), strict=True))
    assert unskew.read(table, item_features="kind").metadata.features["items"]["kind"].changed == 1
    log = unskew.prepare(table, tmp_path / "out", item_features="kind", k_core=3)
    assert "rare" not in log.items.ids.to_pylist()
    assert log.metadata.features["items"]["kind"].changed == 0


TYPES = {
    "text": pa.array(["b", "a", "b", None]),
    "category": pa.array(["b", "a", "b", None]).dictionary_encode(),
    "large_text": pa.array(["b", "a", "b", None], pa.large_string()),
    "bool": pa.array([True, False, True, None]),
    "int": pa.array([3, -1, 3, None], pa.int16()),
    "big": pa.array([2**60 + 1, 1, 2**60 + 1, None]),
    "float": pa.array([0.1, -2.5, 0.1, None]),
    "single": pa.array([0.5, -2.5, 0.5, None], pa.float32()),
    "decimal": pa.array([Decimal("1.10"), Decimal("2.20"), Decimal("1.10"), None], pa.decimal128(10, 2)),
    "date": pa.array([date(2020, 1, 2), date(1999, 1, 1), date(2020, 1, 2), None]),
    "moment": pa.array([datetime(2020, 1, 1, 5, 0, 0, 7), datetime(2021, 1, 1)] * 2, pa.timestamp("us")),
    "zoned": pa.array([5, 7, 5, None], pa.timestamp("us", "Europe/Paris")),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("where", ["memory", "parquet"])
def test_values_keep_their_type(kind: str, where: str, tmp_path: Path) -> None:
    values = TYPES[kind]
    table: Any = pa.table(
        {"user": ["a", "b", "a", "b"], "item": ["x", "y", "x", "z"], "time": [1, 2, 3, 4], "f": values}
    )
    if where == "parquet":
        pq.write_table(table, tmp_path / "log.parquet")
        table = tmp_path / "log.parquet"
    log = unskew.prepare(table, tmp_path / "out", item_features="f")
    plain = values.dictionary_decode() if pa.types.is_dictionary(values.type) else values
    assert log.items.features["f"].values.equals(plain.take(pa.array([0, 1, 3])))
    assert log.items.features["f"].is_number == (kind in ("int", "big", "float", "single", "decimal"))


def test_blank_text_and_nan_are_missing() -> None:
    frame = pd.DataFrame(SHOP | {"category": ["", "books", "  ", "food", "?"], "price": [np.nan] * 4 + [3.0]})
    nan = pa.table(frame.assign(price=0.0)).set_column(4, "price", pa.array(frame["price"].to_numpy()))
    assert nan["price"].null_count == 0
    for table in (frame, nan):
        assert features(unskew.read(table, item_features="category,price")) == {
            "x": {"category": None, "price": None},
            "y": {"category": "books", "price": None},
            "z": {"category": "?", "price": 3.0},
        }


def test_a_text_file_has_numbers_where_all_values_are(write: Callable[..., Path]) -> None:
    lines = ["user,item,time,price,size,code,mixed,nothing,dash"]
    lines += ["a,x,1, 2.50,3,007,1,,-", "b,y,2,,-4,12,2,,e5", "c,z,3,1e2,0,3,two,,."]
    log = unskew.read(
        write("shop.csv", "\n".join(lines) + "\n"), item_features="price,size,code,mixed,nothing,dash"
    )
    assert features(log) == {
        "x": {"price": 2.5, "size": 3, "code": "007", "mixed": "1", "nothing": None, "dash": "-"},
        "y": {"price": None, "size": -4, "code": "12", "mixed": "2", "nothing": None, "dash": "e5"},
        "z": {"price": 100.0, "size": 0, "code": "3", "mixed": "two", "nothing": None, "dash": "."},
    }
    types = {name: str(feature.values.type) for name, feature in log.items.features.items()}
    assert types == dict.fromkeys(types, "string") | {"price": "double", "size": "int64"}


def test_json_lines_and_bad_rows(write: Callable[..., Path], tmp_path: Path) -> None:
    records = [
        {"user": "a", "item": "x", "time": 1, "price": 1, "new": True},
        {"user": "b", "item": "y", "time": -1, "price": 9, "new": True},  # a bad row says nothing
        {"user": "b", "item": "y", "time": 2, "price": 2.5},
    ]
    source = write("shop.jsonl", "".join(json.dumps(record) + "\n" for record in records))
    log = unskew.prepare(source, tmp_path / "out", item_features="price,new", skip_bad_rows=True)
    assert features(log) == {"x": {"price": 1.0, "new": True}, "y": {"price": 2.5, "new": None}}


def test_a_log_that_is_read_again_keeps_its_features(tmp_path: Path) -> None:
    log = unskew.prepare(SHOP, tmp_path / "out", item_features="category,price", user_features="country")
    table = log.table()
    assert table["item_feature:category"].to_pylist() == [
        features(log)[item]["category"] for item in table["item"].to_pylist()
    ]
    assert table["user_feature:country"].to_pylist() == [
        features(log, "users")[user]["country"] for user in table["user"].to_pylist()
    ]
    pq.write_table(table, tmp_path / "rows.parquet")
    opened = unskew.Log.open(tmp_path / "out")
    for again in (opened, unskew.read(log), unskew.read(tmp_path / "rows.parquet"), unskew.read(table)):
        assert features(again) == features(log)
        assert features(again, "users") == features(log, "users")
        assert again.fingerprint() == log.fingerprint()
    again = unskew.prepare(tmp_path / "out", tmp_path / "again", item_features="price")
    assert again.fingerprint() == log.fingerprint()


def test_the_hash_knows_the_features() -> None:
    hashes = [unskew.read(SHOP).fingerprint()]
    for prices in (SHOP["price"], [1.5, None, None, 2.0, 4.0]):
        hashes.append(unskew.read(SHOP | {"price": prices}, item_features="price").fingerprint())
    hashes.append(unskew.read(SHOP, user_features="price").fingerprint())
    hashes.append(unskew.read(SHOP, item_features="category").fingerprint())
    none = SHOP | {"category": [*SHOP["category"][:4], "None"]}
    hashes.append(unskew.read(none, item_features="category").fingerprint())  # a word, not a missing value
    assert len(set(hashes)) == len(hashes)


def test_without_features_nothing_is_said(tmp_path: Path) -> None:
    log = unskew.prepare(SHOP, tmp_path / "out")
    assert (log.items.features, log.users.features) == ({}, {})
    assert not log.metadata.features
    assert pq.read_table(tmp_path / "out" / "items.parquet").column_names == ["id"]


@pytest.mark.parametrize("role", ["item", "user"])
def test_a_column_that_is_not_there_is_named(role: str, tmp_path: Path) -> None:
    with pytest.raises(
        unskew.BadInput,
        match=f"no column 'colour' for a feature of the {role}; expected one of 'user', 'item'",
    ):
        unskew.prepare(SHOP, tmp_path / "out", **{f"{role}_features": "price,colour"})
    assert not (tmp_path / "out").exists()


def test_columns_that_are_no_features_are_refused(write: Callable[..., Path]) -> None:
    twice = pa.table([*map(pa.array, SHOP.values()), pa.array([1] * 5)], names=[*SHOP, "price"])
    with pytest.raises(unskew.BadInput, match="two columns are named 'price'"):
        unskew.read(twice, item_features="price")
    with pytest.raises(unskew.BadInput, match=r"'tags': expected plain values of one kind, found list"):
        unskew.read(SHOP | {"tags": [["a"]] * 5}, item_features="tags")
    with pytest.raises(unskew.BadInput, match=r"'raw': expected text, numbers, dates, .* found binary"):
        unskew.read(SHOP | {"raw": [b"a"] * 5}, item_features="raw")
    prices = pa.array([Decimal("1.5"), Decimal("2.5"), Decimal("1.5"), Decimal("3.5"), Decimal("4.5")])
    with pytest.raises(unskew.BadInput, match=r"'price': ids of type decimal.* cannot be a feature, too"):
        unskew.read(SHOP | {"price": prices}, item="price", item_features="price")
    mind = write("behaviors.tsv", "1\tU1\t11/1/2019 1:00:00 AM\tN1\tN2-1 N3-0\n")
    with pytest.raises(unskew.BadInput, match="no columns for features"):
        unskew.read(mind, item_features="category")


def test_the_terminal_says_what_was_not_clear(write: Callable[..., Path], tmp_path: Path, capsys) -> None:
    from unskew.cli import main

    source = write("shop.csv", pd.DataFrame(SHOP).to_csv(index=False))
    asked = ["--item-features", "category,price", "--user-features", "country"]
    assert main(["prepare", str(source), "--out", str(tmp_path / "out"), *asked]) == 0
    told = capsys.readouterr().err.splitlines()
    assert "What the features hold: country categories (2), category categories (2), price numbers." in told
    assert [line for line in told if line.startswith("Feature ")] == [
        "Feature country of the users: 1 with several values over time (the earliest is kept), "
        "1 without any value.",
        "Feature category of the items: 2 with several values over time (the earliest is kept), "
        "1 without any value.",
        "Feature price of the items: 2 without a value in the first rows (a later one is used).",
    ]
    assert main(["prepare", str(source), "--out", str(tmp_path / "out"), *asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["features"]["users"] == {"country": {"changed": 1, "late": 0, "missing": 1}}


def test_categories_and_numbers() -> None:
    text = Feature(pa.array(["b", None, "a", "b"]))
    assert text.names.to_pylist() == ["b", "a"]  # in the order of the codes
    assert text.categories.tolist() == [0, -1, 1, 0]
    assert not text.is_number
    with pytest.raises(unskew.BadInput, match="expected numbers, found string values"):
        _ = text.numbers
    number = Feature(pa.array([3, None, 1, 3], pa.int8()))
    assert number.is_number
    np.testing.assert_array_equal(number.numbers, np.array([3, np.nan, 1, 3], np.float32))
    assert number.categories.tolist() == [0, -1, 1, 0]
    flag = Feature(pa.array([False, True, None]))
    assert (flag.names.to_pylist(), flag.categories.tolist()) == ([False, True], [0, 1, -1])
    price = Feature(pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)))
    np.testing.assert_array_equal(price.numbers, np.array([1.25, np.nan], np.float32))
    assert Feature(pa.array([date(2020, 1, 2), None])).categories.tolist() == [0, -1]


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")
def test_spark_keeps_the_same_values(tmp_path: Path) -> None:
    table = random_table(rows=1500, times=90)
    random = np.random.default_rng(5)

    def some(values: list[Any]) -> list[Any]:
        return [values[code] if code < len(values) else None for code in random.integers(0, 6, 1500)]

    for name, values in {
        "category": ["b", "a", "Ä", "", "z z"],
        "price": [1.5, -2.0, float("nan"), 0.1],
        "size": [3, 10, -1],
        "new": [True, False],
        "day": [date(2020, 1, 2), date(1999, 5, 1)],
    }.items():
        table = table.append_column(name, [some(values)])
    pq.write_table(table, tmp_path / "log.parquet")
    chosen = {"item_features": "category,price,size,new,day", "user_features": "category,size", "k_core": 3}
    log = compare(tmp_path / "log.parquet", tmp_path, **chosen)
    assert log.metadata.features["items"]["category"].changed > 0
    table.to_pandas().to_csv(tmp_path / "log.csv", index=False)
    compare(tmp_path / "log.csv", tmp_path, **chosen)
