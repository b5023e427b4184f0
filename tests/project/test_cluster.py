"""The same SQL on Spark gives the same files. Needs the extra `spark` and Java 17: make test-cluster."""

import gzip
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.filterwarnings("default"),
]  # Spark warns about much that is not ours


def assert_same_folders(a: Path, b: Path) -> None:
    assert sorted(path.name for path in a.iterdir()) == sorted(path.name for path in b.iterdir())
    for path in a.glob("*.npy"):
        assert path.read_bytes() == (b / path.name).read_bytes(), path.name
    for path in a.glob("*.parquet"):
        assert pq.read_table(path).to_pydict() == pq.read_table(b / path.name).to_pydict(), path.name
    facts = [json.loads((folder / "data.json").read_text()) for folder in (a, b)]
    assert facts[0].pop("settings") | {"engine": "spark", "master": "local[2]"} == facts[1].pop("settings")
    assert facts[0] == facts[1]


def compare(source, tmp_path: Path, **settings) -> unskew.Log:
    log = unskew.prepare(source, tmp_path / "duckdb", **settings)
    unskew.prepare(source, tmp_path / "spark", engine="spark", master="local[2]", **settings)
    assert_same_folders(tmp_path / "duckdb", tmp_path / "spark")
    return log


def test_text_with_ratings(tmp_path: Path) -> None:
    table = random_table(rows=4000, users=800).to_pydict()
    rows = zip(table["user"], table["item"], table["label"], table["time"], strict=True)
    lines = "".join(f'"{u}, ""the""",{i},{5 * y},{t}.0\n' for u, i, y, t in rows)
    (tmp_path / "ratings.csv.gz").write_bytes(
        gzip.compress(("user_id,item_id,rating,timestamp\n" + lines + lines).encode())
    )
    log = compare(tmp_path / "ratings.csv.gz", tmp_path, positive=4, k_core=5)
    assert log.metadata.removed.duplicates > 0
    assert log.metadata.removed.k_core_iterations > 0


def test_parquet_with_every_extra(tmp_path: Path) -> None:
    table = random_table(rows=2000)
    rows = table.num_rows
    extras = {
        "propensity": [(n % 9 + 1) / 10 for n in range(rows)],
        "exposed": [n % 3 == 0 for n in range(rows)],
        "position": [n % 5 for n in range(rows)],
        "impression_id": [f"v{n % 40}" if n % 6 else None for n in range(rows)],
        "mine": [n % 4 == 0 for n in range(rows)],
    }
    for name, values in extras.items():
        table = table.append_column(name, [values])
    table = table.append_column("title", [[f"title of {item}" for item in table["item"].to_pylist()]])
    (tmp_path / "log").mkdir()
    pq.write_table(table.slice(0, 900), tmp_path / "log" / "0.parquet")
    pq.write_table(table.slice(900), tmp_path / "log" / "1.parquet")
    log = compare(tmp_path / "log", tmp_path, duplicates="pair", core="authors", k_core=3, tests="mine")
    assert log.impression_id is not None
    assert set(log.marks) == {"mine"}


def test_mind(tmp_path: Path) -> None:
    lines = ["0\tU1\t11/1/2019 1:00:00 AM\t\tN4-1 N5-0", "1\tU1\t11/2/2019 1:00:00 AM\tN4 N9\tN5-0"]
    lines += [
        f"{n}\tU{n % 9}\t11/{n % 20 + 1}/2019 {n % 12 + 1}:14:46 PM\tN{n % 9} N2\tN3-0 N{n % 7}-1 N{n % 5}-0"
        for n in range(80)
    ]
    (tmp_path / "behaviors.tsv").write_text("\n".join(lines) + "\n")
    compare(tmp_path / "behaviors.tsv", tmp_path, k_core=2, count="positives")


def test_dates_with_offsets_and_line_breaks_inside_quotes(tmp_path: Path) -> None:
    rows = "".join(
        f'"u\n{n % 7}",i{n % 5},2024-01-{n % 28 + 1:02d}T0{n % 9}:00:00'
        f"{('Z', '+02:00', '-0530', '')[n % 4]}\n"
        for n in range(80)
    )
    (tmp_path / "dates.csv").write_text('"user, the",item,time\n' + rows)
    log = compare(tmp_path / "dates.csv", tmp_path, user="user, the", k_core=2)
    assert "u\n3" in log.users.ids.to_pylist()


def typed_rows(rows: int) -> pa.Table:
    """A shop's log with every kind of type: events that are predicted, read, shown and ignored, twice each,
    with titles, a feature that changes and numbers as ids."""
    kinds = ("view", "cart", "purchase", "impression", "page")
    random = np.random.default_rng(3)
    item = random.integers(1, 30, rows)
    once = pa.table(
        {
            "user_id": random.integers(1, 60, rows),
            "item_id": item,
            "event_time": 1_700_000_000 + random.integers(0, 5000, rows),
            "event_type": [kinds[place] for place in random.choice(5, rows, p=(0.5, 0.15, 0.2, 0.1, 0.05))],
            "price": [float(code % 7) + (place % 2) / 4 for place, code in enumerate(item.tolist())],
            "title": [f"title of {code}" if code % 5 else None for code in item.tolist()],
        }
    )
    return pa.concat_tables([once, once.slice(0, rows // 3)])


@pytest.mark.parametrize("form", ["csv", "parquet", "table"])
def test_types_of_events(form: str, tmp_path: Path) -> None:
    table = typed_rows(1500)
    source: object = table
    if form == "csv":
        source = tmp_path / "shop.csv"
        pyarrow.csv.write_csv(table, source)
    elif form == "parquet":
        source = tmp_path / "shop.parquet"
        pq.write_table(table, source)
    meanings = {"target": "purchase", "context": "view,cart", "shown": "impression", "ignore": "page"}
    log = compare(source, tmp_path, type="event_type", item_features="price", k_core=2, **meanings)
    assert log.metadata.types.ignored["page"] > 0
    assert all(len(log.context[kind].histories.ids) for kind in ("view", "cart"))
    assert log.positives < len(log)  # impressions without a purchase are rows
    assert log.metadata.removed.context > 0  # the same event twice, and what the k-core removed
    assert sorted(path.name for path in (tmp_path / "spark").glob("context*")) != []


def test_a_type_that_is_not_declared(tmp_path: Path) -> None:
    settings = {"type": "event_type", "target": "purchase", "context": "view,cart", "shown": "impression"}
    with pytest.raises(unskew.BadInput, match="events of the type 'page', which is not declared") as error:
        unskew.prepare(typed_rows(200), tmp_path / "out", engine="spark", master="local[2]", **settings)
    assert error.value.field == "type"
    assert not (tmp_path / "out").exists()


def test_a_table_in_memory_and_bad_rows(tmp_path: Path) -> None:
    compare(random_table(rows=800), tmp_path, k_core=2)
    (tmp_path / "bad.csv").write_text("user,item,time\na,x,1\nb,y,soon\n")
    with pytest.raises(
        unskew.BadInput,
        match=r"bad.csv, column 'time': expected a finite number of at least 0 .*, found 'soon'",
    ):
        unskew.prepare(tmp_path / "bad.csv", tmp_path / "out", engine="spark", master="local[2]")
    assert not (tmp_path / "out").exists()


def test_every_user_is_recommended_to_once_by_spark(tmp_path: Path, monkeypatch) -> None:
    from pyspark.sql import SparkSession

    log = unskew.prepare(random_table(rows=900, users=50), tmp_path / "data")
    unskew.create_model("popularity").fit(unskew.split(log), show_progress=False).save(tmp_path / "run")
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "spark_recommend.py"))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        given = [str(tmp_path / name) for name in ("run", "data", "lists")]
        assert example["recommend_everybody"](*given, 3, spark) == len(log.users)
        assert example["recommend_everybody"](*given, 2, spark) == 0
    finally:
        spark.stop()
    found = pq.read_table(list((tmp_path / "lists").glob("part-*.parquet")))
    ids = log.users.ids.to_pylist()
    expected = unskew.load(tmp_path / "run").recommend(users=ids, k=10, log=log).table
    assert (
        found.sort_by([("user_id", "ascending"), ("rank", "ascending")])
        .drop(["score"])
        .equals(expected.sort_by([("user_id", "ascending"), ("rank", "ascending")]).drop(["score"]))
    )
