"""The same rows are the same log, whoever reads them, and a run that was trained on one accepts each."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import unskew
from unskew.training.run import read_config

# Many first positives share their times, so that ids decide the order; 10 is before 9 as a text.
USERS = 9, 10, 100, 11, 2
ROWS = [(user, item, 100 + item % 3) for user in USERS for item in (8, 70, 9)]
ROWS += [(user, item, 1000 + user * item) for user in USERS for item in (12, 5, 6)]
TABLE = pa.table(dict(zip(("user", "item", "time"), map(list, zip(*ROWS, strict=True)), strict=True)))
TABLE = TABLE.append_column("price", [[item + 0.5 for item in TABLE["item"].to_pylist()]])


def as_csv(folder: Path) -> Path:
    pyarrow.csv.write_csv(TABLE, folder / "rows.csv")
    return folder / "rows.csv"


def as_json(folder: Path) -> Path:
    TABLE.to_pandas().to_json(folder / "rows.jsonl", orient="records", lines=True)
    return folder / "rows.jsonl"


def as_parquet(folder: Path) -> Path:
    pq.write_table(TABLE, folder / "rows.parquet")
    return folder / "rows.parquet"


def with_ids(kind: pa.DataType) -> pa.Table:
    return TABLE.set_column(0, "user", TABLE["user"].cast(kind)).set_column(
        1, "item", TABLE["item"].cast(kind)
    )


def in_dictionaries(_: Path) -> pa.Table:
    texts = with_ids(pa.string())
    return texts.set_column(0, "user", texts["user"].dictionary_encode())


READERS: dict[str, Callable[[Path], object]] = {
    "csv": as_csv,
    "json": as_json,
    "parquet": as_parquet,
    "pandas": lambda _: TABLE.to_pandas(),
    "pandas texts": lambda _: TABLE.to_pandas().astype({"user": "str", "item": "str"}),
    "pandas objects": lambda _: TABLE.to_pandas().astype({"user": "str"}).astype({"user": object}),
    "pandas categories": lambda _: TABLE.to_pandas().astype({"user": "category"}),
    "polars": lambda _: pl.from_arrow(TABLE),
    "polars texts": lambda _: pl.from_arrow(TABLE).with_columns(pl.col("user", "item").cast(pl.String)),
    "arrow": lambda _: TABLE,
    "small integers": lambda _: with_ids(pa.int8()),
    "unsigned": lambda _: with_ids(pa.uint32()),
    "texts": lambda _: with_ids(pa.string()),
    "large texts": lambda _: with_ids(pa.large_string()),
    "views of texts": lambda _: with_ids(pa.string_view()),
    "dictionaries": in_dictionaries,
    "a list of rows": lambda _: pd.DataFrame(TABLE.to_pylist()),
    "columns": lambda _: TABLE.to_pydict(),
}


@pytest.fixture(scope="module")
def expected() -> unskew.Log:
    return unskew.read(TABLE, item_features="price")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was trained on the rows of a text file."""
    folder = tmp_path_factory.mktemp("same")
    log = unskew.prepare(as_csv(folder), folder / "data", item_features="price")
    unskew.create_model("popularity").fit(unskew.split(log)).save(folder / "run")
    return folder / "run"


@pytest.mark.parametrize("reader", READERS)
def test_the_same_rows_are_the_same_log(reader: str, expected: unskew.Log, run: Path, tmp_path: Path) -> None:
    source = READERS[reader](tmp_path)
    log = unskew.read(source, item_features="price")
    assert [str(id) for id in log.users.ids.to_pylist()] == ["10", "100", "11", "2", "9"]
    assert [str(id) for id in log.items.ids.to_pylist()] == [str(id) for id in expected.items.ids.to_pylist()]
    assert log.fingerprint() == expected.fingerprint()
    prepared = unskew.prepare(source, tmp_path / "data", item_features="price")
    assert prepared.fingerprint() == expected.fingerprint()

    model = unskew.load(run)
    assert read_config(run).open_split(tmp_path / "data").source.fingerprint() == expected.fingerprint()
    by_text, by_number = (model.recommend(users=ids, log=log, k=3) for ids in (["9", "10"], [9, 10]))
    assert by_text.table["item_id"].to_pylist() == by_number.table["item_id"].to_pylist()
    assert model.evaluate(unskew.split(log)).metrics() == model.evaluate(unskew.split(expected)).metrics()


def test_other_rows_are_another_log(expected: unskew.Log) -> None:
    """Texts that are no whole numbers, and numbers that are no ids, keep their types."""
    leading_zero = with_ids(pa.string()).to_pandas().replace({"user": {"9": "09"}})
    assert unskew.read(leading_zero, item_features="price").fingerprint() != expected.fingerprint()
    words = TABLE.set_column(3, "price", TABLE["price"].cast(pa.string()))
    assert unskew.read(words, item_features="price").fingerprint() != expected.fingerprint()
