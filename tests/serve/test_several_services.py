"""Several services over one store in PostgreSQL: events, erasures and reloads reach all of them."""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.helpers.processes import GUARD, wait_until
from tests.helpers.serving import click, run_fixture, saved_run
from tests.helpers.stores import Place, Server
from tests.serve.test_serve_process import ask, process
from unskew.serve.http.service import Service
from unskew.serve.store.notices import Listening

pytest_plugins = ("tests.helpers.store_places",)
served_run = run_fixture


@contextmanager
def services(run: Path, place: Place, names: str) -> Iterator[list[Service]]:
    """Services of one process, each with the name of a machine of its own."""
    with ExitStack() as stack:
        made = []
        for name in names:
            kind = type(f"Service{name}", (Service,), {"machine": name})
            service = kind(str(run), stack.enter_context(place.open(synchronous="normal")))
            stack.callback(service.close)
            service.load()
            made.append(service)
        yield made


def known(service: Service, user: str) -> int:
    """How many positives of a user the live log of a service has now; nobody asks for a list."""
    assert service._loaded is not None
    return len(service._loaded.history(user)[1])


def test_events_and_erasures_reach_services_that_nobody_asks(served_run: Path, in_server: Place) -> None:
    with services(served_run, in_server, "ABC") as (first, *others):
        assert first.append([click(1, "ann", "i3"), click(2, "ann", "i4")])["accepted"] == 2
        for other in others:
            wait_until(lambda other=other: known(other, "ann") == 2)
        others[0].append([click(3, "bob", "i5")])
        wait_until(lambda: known(first, "bob") == known(others[1], "bob") == 1)
        first.erase("ann")
        for other in others:
            wait_until(lambda other=other: known(other, "ann") == 0)
            assert known(other, "bob") == 1


def test_a_reload_reaches_all_services_once(tmp_path: Path, in_server: Place) -> None:
    run = saved_run(tmp_path / "run")
    with services(run, in_server, "ABC") as made:
        loaded: list[list[object]] = [[service._loaded] for service in made]

        def count(which: int) -> int:
            if made[which]._loaded is not loaded[which][-1]:
                loaded[which].append(made[which]._loaded)
            return len(loaded[which]) - 1

        assert made[1].reload(GUARD)["state"] == "done"
        wait_until(lambda: [count(which) for which in range(3)] == [1, 1, 1])
        made[2].store.announce("reload A")
        wait_until(lambda: [count(which) for which in range(3)] == [1, 2, 2])


def test_a_lost_connection_is_made_again_and_nothing_is_missed(
    served_run: Path, in_server: Place, server: Server, monkeypatch
) -> None:
    monkeypatch.setattr("unskew.serve.store.notices.RETRY_SECONDS", 0.05)
    with services(served_run, in_server, "AB") as (first, other):
        for number in range(3):
            server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'")
            first.append([click(number, "ann", f"i{number}")])
            wait_until(lambda number=number: known(other, "ann") == number + 1)


def test_a_store_in_a_file_has_nobody_to_tell(in_file: Place) -> None:
    with in_file.open() as store:
        assert store.listen(pytest.fail) is None
        store.announce("reload A")


def test_what_a_listener_raises_does_not_end_it() -> None:
    from unskew.core.errors import UnskewError

    heard: list[str] = []

    def hear(text: str) -> None:
        heard.append(text)
        raise UnskewError("for a moment")

    listening = Listening(lambda: iter(["changed", None, "reload A"]), hear)
    wait_until(lambda: len(heard) >= 2)
    listening.close()
    assert heard[:2] == ["changed", "reload A"]


@pytest.mark.cluster
def test_three_processes_over_one_database(tmp_path: Path, in_server: Place, record_property) -> None:
    """Each event that one service has acknowledged is in the next answer of the others."""
    run = saved_run(tmp_path / "run")
    more = ["--segments", str(tmp_path / "segments")]
    with ExitStack() as stack:
        addresses: list[str] = []
        children: list[subprocess.Popen[str]] = []
        for _ in range(3):
            child, address = stack.enter_context(process(run, in_server.where, *more))
            children.append(child)
            addresses.append(address)
        waits = []
        for number in range(12):
            one, *others = addresses[number % 3 :] + addresses[: number % 3]
            assert ask(f"{one}/v1/events", {"events": [click(number, "ann", f"i{number}")]})["accepted"] == 1
            begin = time.perf_counter()
            for other in others:
                assert ask(f"{other}/v1/users/ann")["positives"] == number + 1
            waits.append(time.perf_counter() - begin)
        record_property("seconds_until_two_others_answered_with_it", max(waits))
        print(f"an event was in the answers of both other services after {1000 * max(waits):.0f} ms at most")
        versions = [ask(f"{address}/v1/model")["loaded_at"] for address in addresses]
        assert ask(f"{addresses[0]}/v1/model/reload?wait=25", {})["state"] == "done"
        for address, before in zip(addresses, versions, strict=True):
            wait_until(lambda a=address, b=before: ask(f"{a}/v1/model")["loaded_at"] != b)
        assert all(re.match(r"http://127", address) for address in addresses)
