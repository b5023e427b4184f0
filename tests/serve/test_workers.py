"""`unskew serve --workers`: several processes answer, and one writes."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pytest

from tests.helpers.command import run as command
from tests.helpers.processes import GUARD, wait_until
from tests.helpers.serving import click, run_fixture, saved_run, serving
from tests.helpers.stores import Place
from tests.serve.test_serve_process import ask, process
from unskew.core.errors import BadInput, UnskewError
from unskew.recommendation.options import RecommendOptions
from unskew.serve import Event, open_store, parse_time
from unskew.serve.http.loaded_run import LoadedRun
from unskew.serve.http.process import Serving
from unskew.serve.http.schemas import RecommendationRequest
from unskew.serve.workers.channel import Channel, EndedError
from unskew.serve.workers.pool import Worker

pytest_plugins = ("tests.helpers.store_places",)
served_run = run_fixture


def children(server: subprocess.Popen[str]) -> list[int]:
    """The processes that answer."""
    found = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text()
    return [int(number) for number in found.split()]


@contextmanager
def only(pid: int, pids: list[int]) -> Iterator[None]:
    """Let one process answer, while the others sleep."""
    others = [other for other in pids if other != pid]
    for other in others:
        os.kill(other, signal.SIGSTOP)
    try:
        yield
    finally:
        for other in others:
            os.kill(other, signal.SIGCONT)


def listed(base: str, user: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = ask(f"{base}/v1/recommendations", {"user_id": user, "k": 8, "log": False})[
        "items"
    ]
    return found


def reload(base: str) -> int:
    """Have the run loaded again, wait for a while, and return the status: 202 when it takes longer."""
    with urlopen(Request(f"{base}/v1/model/reload?wait=20", method="POST"), timeout=GUARD) as answer:
        return int(answer.status)


def test_each_process_sees_at_once_what_another_one_has_acknowledged(
    served_run: Path, tmp_path: Path
) -> None:
    events = [click(n, f"new{n % 3}", f"i{n * 7 % 33}", 1_720_000_000 + n % 10) for n in range(12)]
    with process(served_run, tmp_path / "e.db", "--workers", "2") as (server, base):
        pids = wait_until(lambda: len(found := children(server)) == 2 and found)
        for number, event in enumerate(events):
            with only(pids[number % 2], pids):
                assert ask(f"{base}/v1/events", {"events": [event]})["accepted"] == 1
            with only(pids[1 - number % 2], pids):
                assert ask(f"{base}/v1/users/{event['user_id']}")["positives"] == number // 3 + 1
                assert ask(f"{base}/v1/events", {"events": [event]})["duplicates"] == 1
        answers = []
        for pid in pids:
            with only(pid, pids):
                answers.append([listed(base, f"new{n}") for n in range(3)])
        shown = ask(f"{base}/v1/recommendations", {"user_id": "new1", "k": 3})
        assert ask(f"{base}/v1/users/new1")["stored_recommendations"] == 1
        with urlopen(f"{base}/metrics", timeout=GUARD) as answer:
            counted = answer.read().decode()
        assert 'unskew_events_total{result="accepted"} 12.0\n' in counted
        assert 'unskew_events_total{result="duplicate"} 12.0\n' in counted
        assert 'route="/v1/recommendations",status="200"} 7.0\n' in counted
        server.send_signal(signal.SIGTERM)
        assert server.wait(GUARD) == 0
    with serving(served_run, tmp_path / "new.db") as fresh:
        fresh.append(events)
        expected = [
            fresh.recommend(RecommendationRequest(user_id=f"new{n}", k=8, log=False))["items"]
            for n in range(3)
        ]
    assert answers == [expected, expected]
    with open_store(tmp_path / "e.db", "read") as store:
        assert store.counts() == {"events": 12, "recommendations": 1}
        assert store.recommendation(shown["recommendation_id"]) is not None


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serving_from_a_store_in_postgresql(served_run: Path, in_server: Place, workers: str) -> None:
    """Another service may write into the same store, and is seen at once."""
    user_id = f"ann{workers}"  # the run remembers who was erased
    more = "--segments", str(in_server.segments), "--workers", workers
    with process(served_run, in_server.where, *more) as (server, base), in_server.open("write") as other:
        assert ask(f"{base}/v1/events", {"events": [click(1, user_id, "i1")]})["accepted"] == 1
        other.append([Event("e2", user_id, "i2", "click", parse_time("2026-01-31T12:00:00Z"))])
        shown = ask(f"{base}/v1/recommendations", {"user_id": user_id, "k": 3})["recommendation_id"]
        assert ask(f"{base}/v1/events", {"events": [click(2, user_id, "i2")]})["duplicates"] == 1
        user = ask(f"{base}/v1/users/{user_id}")
        assert (user["positives"], user["stored_recommendations"]) == (2, 1)
        with urlopen(Request(f"{base}/v1/users/{user_id}", method="DELETE"), timeout=GUARD) as answer:
            assert b'"events":2,"recommendations":1' in answer.read()
        with pytest.raises(HTTPError, match="404"):
            ask(f"{base}/v1/users/{user_id}")
        assert other.counts() == {"events": 0, "recommendations": 0}
        assert other.recommendation(shown) is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(GUARD) == 0


def test_what_dies_is_replaced_unless_it_is_the_one_that_writes(served_run: Path, tmp_path: Path) -> None:
    """Nothing that was acknowledged is lost; without the one that writes, the others stop."""
    with process(served_run, tmp_path / "e.db", "--workers", "2") as (server, base):
        before = wait_until(lambda: len(found := children(server)) == 2 and found)
        with only(before[0], before):
            assert ask(f"{base}/v1/events", {"events": [click(1, "ann", "i1")]})["accepted"] == 1
        os.kill(before[0], signal.SIGKILL)
        assert ask(f"{base}/v1/users/ann")["positives"] == 1
        new = wait_until(lambda: next(iter({*children(server)} - {*before}), None))
        wait_until(lambda: "weights-" in Path(f"/proc/{new}/maps").read_text())
        with only(new, children(server)):  # which waits until it is ready
            assert ask(f"{base}/v1/users/ann")["positives"] == 1
            assert ask(f"{base}/v1/events", {"events": [click(2, "ann", "i2")]})["accepted"] == 1
        pids = children(server)
        for pid in pids:
            with only(pid, pids):
                assert ask(f"{base}/v1/users/ann")["positives"] == 2
        server.send_signal(signal.SIGKILL)
        server.wait(GUARD)
        wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    with open_store(tmp_path / "e.db", "write") as store:
        assert store.counts()["events"] == 2


def test_everybody_maps_a_run_loads_a_new_one_and_forgets_a_user(tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run", "sasrec")
    link = tmp_path / "current"
    link.symlink_to(run)
    with process(link, tmp_path / "e.db", "--workers", "2") as (server, base):
        pids = wait_until(lambda: len(found := children(server)) == 2 and found)
        listed(base, "u1")
        for pid in pids:  # among what validation chose, and in the network
            assert Path(f"/proc/{pid}/maps").read_text().count("weights-ordinary") == 2

        def everybody(path: str) -> list[Any]:
            found = []
            for pid in pids:
                with only(pid, pids):
                    try:
                        found.append(ask(f"{base}{path}"))
                    except HTTPError as error:
                        found.append(error.code)
            return found

        assert all(user["in_training"] and user["positives"] for user in everybody("/v1/users/u3"))
        ask(f"{base}/v1/events", {"events": [click(1, "u3", "i1")]})
        with urlopen(Request(f"{base}/v1/users/u3", method="DELETE"), timeout=GUARD) as answer:
            assert b'"was_known":true' in answer.read()
        assert everybody("/v1/users/u3") == [404, 404]

        saved_run(tmp_path / "other", seed=1)
        link.unlink()
        link.symlink_to(tmp_path / "other")
        wait_until(lambda: reload(base) == 200)
        assert [model["version"][:6] for model in everybody("/v1/model")] == ["other-", "other-"]
        for file in (tmp_path / "other").glob("*"):
            file.unlink()
        with pytest.raises(HTTPError, match="409"):
            wait_until(lambda: reload(base) == 200)
        assert [model["version"][:6] for model in everybody("/v1/model")] == ["other-", "other-"]


def test_the_weights_are_mapped_so_that_the_processes_share_them(tmp_path: Path) -> None:
    """The parameters are pages of the file, unchanged; a service of one process has a copy."""
    run = saved_run(tmp_path / "run", "sasrec")
    alone, one = LoadedRun(str(run)), LoadedRun(str(run), mapped=True)

    def in_file(loaded: LoadedRun) -> list[bool]:
        lines = Path("/proc/self/maps").read_text().splitlines()
        ends = [line.split()[0].split("-") for line in lines if f"{run}/weights-" in line]
        mapped = [(int(first, 16), int(last, 16)) for first, last in ends]
        places = [value.data_ptr() for value in loaded.network.parameters()]
        return [any(first <= place < last for first, last in mapped) for place in places]

    assert len(in_file(one)) > 5
    assert all(in_file(one))
    assert not any(in_file(alone))
    for user in ("u1", "u2", "nobody"):
        lists = [loaded.order(user, (), RecommendOptions(k=8)) for loaded in (alone, one)]
        assert lists[0].codes.tolist() == lists[1].codes.tolist()
        assert np.allclose(lists[0].scores, lists[1].scores, rtol=1e-5)


def test_what_keeps_the_processes_from_starting_is_one_line(
    served_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def failed(run: Path, *more: str) -> str:
        code, _, err = command(capfd, "serve", run, "--store", tmp_path / "e.db", "--port", 0, *more)
        progress = "unskew: loading", "serve: under way"
        lines = [line for line in err.splitlines() if not line.startswith(progress)]
        assert (code, len(lines)) == (2, 1), err
        return lines[0]

    damaged = shutil.copytree(served_run, tmp_path / "damaged")
    memory = damaged / "memory.safetensors"
    memory.write_bytes(memory.read_bytes()[:100])
    assert "the run is damaged" in failed(damaged, "--workers", "2")
    assert "expected from 1 to 64" in failed(served_run, "--workers", "0")
    with open_store(tmp_path / "e.db"):
        assert "only one may" in failed(served_run, "--workers", "2")


# The line between two processes


def connected(answer: Callable[[str, dict[str, Any]], Any]) -> tuple[Channel, Channel, list[str]]:
    ended: list[str] = []
    one, other = socket.socketpair()
    asking = Channel(one, lambda what, details: None, lambda: ended.append("asking"))
    return asking, Channel(other, answer, lambda: ended.append("answering")), ended


def test_answers_come_in_any_order_and_errors_as_they_were() -> None:
    later: Future[str] = Future()

    def answer(what: str, details: dict[str, Any]) -> Any:
        match what:
            case "later":
                return later
            case "sum":
                return sum(details["numbers"])
            case "bad":
                raise BadInput("x 3: expected less")
            case "fails":
                raise UnskewError("the disk is full")
        raise ValueError("what users did")

    asking, answering, _ = connected(answer)
    waiting = asking.ask("later")
    assert asking.ask("sum", numbers=list(range(100_000))).result(GUARD) == 4_999_950_000
    with pytest.raises(BadInput, match="x 3: expected less"):
        asking.ask("bad").result(GUARD)
    with pytest.raises(UnskewError, match="the disk is full") as failed:
        asking.ask("fails").result(GUARD)
    assert not isinstance(failed.value, BadInput)
    with pytest.raises(UnskewError, match=r"^a fault of unskew: ValueError$"):
        asking.ask("other").result(GUARD)
    assert not waiting.done()
    later.set_result("🐸")
    assert waiting.result(GUARD) == "🐸"
    asking.close()
    answering.close()


def test_whoever_waits_is_told_that_the_other_one_is_gone() -> None:
    asking, answering, ended = connected(lambda what, details: Future())
    waiting = asking.ask("anything")
    answering.close()
    with pytest.raises(EndedError):
        waiting.result(GUARD)
    asking.close()
    with pytest.raises(EndedError):
        asking.ask("more").result(GUARD)
    assert sorted(ended) == ["answering", "asking"]


def test_a_worker_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("torch", "fastapi", "uvicorn", "unskew"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    serving = Serving(run="no run", store=str(tmp_path / "none.db"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pool: Any = SimpleNamespace(listener=listener, serving=serving, counter_folder=str(tmp_path))
        worker = Worker(pool)
        try:
            worker.process.wait(GUARD)
        finally:
            worker.process.kill()
            worker.channel.close()
    assert not (tmp_path / "executed").exists()
    assert "no such store" in worker.error
