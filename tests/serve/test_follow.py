"""Streams into a store: at least once, stored once; and a real Redis (or Valkey), killed and started."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.command import run
from tests.helpers.processes import GUARD, start_python, wait_until
from unskew.core.errors import BadInput
from unskew.serve import open_store
from unskew.serve.store.events import BadEvent
from unskew.serve.store.follow import Entry, Followed, RedisStream, event_of, follow

CLICK = {"event_id": "e1", "user_id": "007", "item_id": "tea", "type": "click"}


class Memory:
    """A stream in memory that gives again what was not acknowledged."""

    name = "clicks"

    def __init__(self, entries: list[Entry], batch: int = 2) -> None:
        self.waiting, self.batch = dict(entries), batch
        self.rejected: list[str] = []

    def entries(self) -> Iterator[list[Entry]]:
        while True:
            yield list(self.waiting.items())[: self.batch]

    def acknowledge(self, ids: list[str]) -> None:
        for number in ids:
            del self.waiting[number]

    def reject(self, entry: Entry, reason: str) -> None:
        self.rejected.append(f"{entry[0]} {reason}")


def test_fields_and_documents_are_events() -> None:
    flat = event_of(("1700000000000-0", {**CLICK, "position": "3", "timestamp": "1700000001.5"}), "clicks")
    assert (flat.user_id, flat.position, flat.timestamp) == ("007", 3, 1_700_000_001_500_000)
    document = {"user_id": "ann", "item_id": "tea", "type": "click", "impression": ["tea", "milk"]}
    nested = event_of(("1700000000000-7", {"event": json.dumps(document)}), "clicks")
    assert (nested.event_id, nested.timestamp) == ("clicks:1700000000000-7", 1_700_000_000_000_000)
    assert nested.impression == ("tea", "milk")
    for fields in ({"event": "no JSON"}, {"event": "[]"}, {**CLICK, "colour": "red"}, {"user_id": "ann"}):
        with pytest.raises(BadEvent):
            event_of(("1-0", fields), "clicks")


def test_nothing_is_lost_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    entries = [(f"{number}-0", {**CLICK, "event_id": f"e{number // 2}"}) for number in range(10)]
    entries += [("10-0", {"user_id": "ann"}), ("11-0", {**CLICK, "event_id": "x", "type": "yawn"})]
    stream, followed = Memory(entries), Followed()

    class KilledError(Exception):
        pass

    def killed(ids: list[str]) -> None:
        raise KilledError

    with open_store(tmp_path / "e.db") as store:
        stream.acknowledge, acknowledge = killed, stream.acknowledge  # type: ignore[method-assign]
        with pytest.raises(KilledError):
            follow(stream, store, followed)
        assert (followed, store.counts()["events"]) == (Followed(accepted=1, duplicates=1), 1)
        stream.acknowledge = acknowledge  # type: ignore[method-assign]
        follow(stream, store, followed := Followed(), until=lambda is_empty: is_empty)
        assert followed == Followed(accepted=4, duplicates=6, rejected=2)
        assert store.counts()["events"] == 5
    assert not stream.waiting
    assert [line.partition(":")[0] for line in stream.rejected] == ["10-0 item_id", "11-0 type"]


def test_what_is_no_redis_is_refused(tmp_path: Path, capsys) -> None:
    with pytest.raises(BadInput, match="expected the URL of a Redis"):
        RedisStream("kafka://ann:secret@host/1", "clicks", "unskew", "one", 10)
    code, _, said = run(capsys, "store", "follow", tmp_path / "e.db", "kafka://ann:secret@host/1")
    assert (code, "secret" in said) == (2, False)


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[str]:
    """A server on a socket of its own."""
    binary = shutil.which("redis-server") or shutil.which("valkey-server")
    if binary is None:
        pytest.skip("no Redis server here: apt-get install redis-server")
    redis = pytest.importorskip("redis", reason="needs the extra `stream`")
    where = tmp_path / "redis.sock"
    options = ["--port", "0", "--unixsocket", str(where), "--save", "", "--dir", str(tmp_path)]
    running = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: where.exists() and _answers(redis.Redis.from_url(f"unix://{where}")))
        yield f"unix://{where}"
    finally:
        running.kill()
        running.wait(GUARD)


def _answers(client: Any) -> bool:
    import redis

    try:
        return bool(client.ping())
    except redis.ConnectionError:  # the socket is there before the server listens
        return False


@pytest.mark.cluster
def test_a_real_stream(redis_server: str, tmp_path: Path, capsys) -> None:
    import redis

    client = redis.Redis.from_url(redis_server, decode_responses=True)
    for number in range(500):
        client.xadd("events", {**CLICK, "event_id": f"e{number}"})
    arguments = ["store", "follow", tmp_path / "e.db", redis_server, "--batch-size", "7"]
    child = start_python("-m", "unskew", *arguments)
    wait_until(lambda: client.xinfo_groups("events") and client.xinfo_groups("events")[0]["lag"] < 490, child)
    child.kill()  # somewhere between reading, committing and acknowledging
    child.wait(GUARD)
    for number in range(400, 600):
        client.xadd("events", {**CLICK, "event_id": f"e{number}"})
    client.xadd("events", {"user_id": "ann"})
    code, printed, _ = run(capsys, *arguments, "--until-empty", "--json")
    assert code == 0
    assert json.loads(printed)["rejected"] == 1
    with open_store(tmp_path / "e.db", "read") as store:
        ids = [event for frame in store.events() for event in frame["event_id"].to_pylist()]
    assert sorted(ids) == sorted(f"e{number}" for number in range(600))
    assert client.xpending("events", "unskew")["pending"] == 0
    assert client.xrange("events.rejected")[0][1]["rejected_because"]
