"""A history that is no user of the log can carry times, however it is given. They count, and the lists name
no user."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.command import run
from tests.helpers.serving import client_of, dated_table, saved_run, serving

ITEMS = ["i3", "i1", "i8", "i2"]
DAYS_AGO = [0, 30, 45, 60]  # not in the order of time


@pytest.fixture(scope="module")
def log() -> unskew.Log:
    return unskew.read(dated_table())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a model that reads how long ago an item was."""
    return saved_run(tmp_path_factory.mktemp("timed") / "run", "pulse-zero")


@pytest.fixture(scope="module")
def ticks(log: unskew.Log) -> list[int]:
    return [log.now - 1 - 86_400 * days for days in DAYS_AGO]


@pytest.fixture(scope="module")
def dates(ticks: list[int]) -> list[str]:
    return [datetime.fromtimestamp(tick, UTC).isoformat() for tick in ticks]


@pytest.fixture(scope="module")
def expected(folder: Path, ticks: list[int]) -> list[tuple[str, float]]:
    """The list for a history with times, which is another one than without."""
    model = unskew.load(folder)
    timed, plain = (model.recommend(histories=[given], k=5) for given in (zipped(ITEMS, ticks), ITEMS))
    assert timed.table.column_names == ["history", "item_id", "score", "rank", "source", "title"]
    assert timed.table["history"].to_pylist() == [0] * 5
    assert scores(plain.table.to_pylist()) != pytest.approx(scores(timed.table.to_pylist()), abs=1e-3)
    return listed(timed.table.to_pylist())


def zipped(items: list[str], times: list[Any]) -> list[tuple[str, Any]]:
    return list(zip(items, times, strict=True))


def listed(rows: list[dict[str, Any]]) -> list[tuple[str, float]]:
    return [(row["item_id"], pytest.approx(float(row["score"]), abs=1e-4)) for row in rows]


def scores(rows: list[dict[str, Any]]) -> list[float]:
    return [row["score"] for row in rows]


def test_in_python(
    folder: Path, log: unskew.Log, ticks: list[int], dates: list[str], expected: list[tuple[str, float]]
) -> None:
    model = unskew.load(folder)
    moments = [datetime.fromisoformat(date) for date in dates]
    for times in (ticks, dates, moments):
        assert listed(model.recommend(histories=[zipped(ITEMS, times)], k=5).table.to_pylist()) == expected
    assert listed(unskew.recommend(log, histories=[zipped(ITEMS, ticks)], k=5).table.to_pylist()) == expected
    with pytest.raises(unskew.BadInput) as error:
        model.recommend(histories=[[("i1", "yesterday")]])
    assert error.value.field == "times"


def test_without_training_at_a_moment(log: unskew.Log, ticks: list[int], dates: list[str]) -> None:
    """What is not before the moment does not count."""
    at = log.now - 86_400 * 40
    before = zipped(ITEMS, ticks)[2:]
    for moment in (at, datetime.fromtimestamp(at, UTC).isoformat()):
        whole, part = (
            unskew.recommend(log, histories=[history], k=5, at=moment, include_seen=True).table.to_pylist()
            for history in (zipped(ITEMS, dates), before)
        )
        assert listed(whole) == listed(part)
    now = unskew.recommend(log, histories=[before], k=5, include_seen=True).table.to_pylist()
    assert scores(now) != pytest.approx(scores(whole), abs=1e-3)


def test_on_the_command_line(
    capsys, folder: Path, ticks: list[int], dates: list[str], expected: list[tuple[str, float]]
) -> None:
    history = ["recommend", folder, "--history", *ITEMS, "--k", 5, "--json"]
    for times in (dates, ticks):
        code, out, _ = run(capsys, *history, "--times", *times)
        assert (code, listed(json.loads(out)["recommendations"])) == (0, expected)
    for wrong in ([*history, "--times", *ticks[:2]], ["recommend", folder, "--user", "u1", "--times", "3"]):
        code, _, err = run(capsys, *wrong)
        assert (code, err.startswith("unskew: times: ")) == (2, True)


@pytest.mark.parametrize("kind", ["dates", "ticks", "moments"])
@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_in_a_file(
    suffix: str,
    kind: str,
    folder: Path,
    tmp_path: Path,
    ticks: list[int],
    dates: list[str],
    expected: list[tuple[str, float]],
) -> None:
    times: list[Any] = ticks if kind == "ticks" else dates
    file = tmp_path / f"in.{suffix}"
    if suffix == "csv":
        quoted = [json.dumps(value).replace('"', '""') for value in (ITEMS, times)]
        file.write_text(f'history,times\n"{quoted[0]}","{quoted[1]}"\n')
    elif suffix == "jsonl":
        file.write_text(json.dumps({"history": ITEMS, "times": times}) + "\n")
    else:
        values = [datetime.fromisoformat(date) for date in dates] if kind == "moments" else times
        pq.write_table(pa.table({"history": [ITEMS], "times": [values]}), file)
    unskew.load(folder).save_recommendations(tmp_path / "out.parquet", file, k=5, show_progress=False)
    found = pq.read_table(tmp_path / "out.parquet")
    assert listed(found.to_pylist()) == expected
    assert found["history"].to_pylist() == [0] * 5


def test_over_http(folder: Path, tmp_path: Path, dates: list[str], log: unskew.Log) -> None:
    """The service reads items as of the beginning of a minute, so the model is asked with a live log, too."""
    history = [{"item_id": item, "timestamp": date} for item, date in zipped(ITEMS, dates)]
    expected = unskew.load(folder).recommend(histories=[zipped(ITEMS, dates)], k=5, log=unskew.Live(log))
    with serving(folder, tmp_path / "events.db") as service:
        asked = {"history": history, "k": 5, "explore": 0}
        answer = client_of(service).post("/v1/recommendations", json=asked).json()
        plain = client_of(service).post("/v1/recommendations", json=asked | {"history": ITEMS}).json()
    assert listed(answer["items"]) == listed(expected.table.to_pylist())
    assert scores(plain["items"]) != pytest.approx(scores(answer["items"]), abs=1e-3)
    assert answer["recommendation_id"] is None
