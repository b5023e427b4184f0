"""What only a server can have: several writers, lost connections, and settings of its own."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.helpers.processes import GUARD
from tests.helpers.stores import Place, Server, click, ids_of, rows_of
from unskew.core.errors import BadInput, UnskewError
from unskew.serve import Store

pytest_plugins = ("tests.helpers.store_places",)


def test_sequence_numbers_of_several_writers_follow_the_order_of_commits(in_server: Place) -> None:
    """So whoever reads on from the newest number that he has seen misses nothing."""
    with in_server.open() as one, in_server.open() as two, ThreadPoolExecutor(3) as pool:

        def append(store: Store, thread: int) -> None:
            for number in range(40):
                store.append([click(100 * thread + number)])

        def follow() -> list[int]:
            seen: list[int] = []
            end = time.monotonic() + GUARD
            while len(seen) < 80 and time.monotonic() < end:
                seen += [row["sequence"] for row in rows_of(one, seen[-1] if seen else 0)]
            return seen

        following = pool.submit(follow)
        writing = [pool.submit(append, store, thread) for thread, store in enumerate((one, two))]
        for future in writing:
            future.result(GUARD)
        assert following.result(GUARD) == list(range(1, 81))
        with one._database.maintaining(), pytest.raises(BadInput, match="another process is compacting"):
            two.compact(1)


def test_a_lost_connection_is_one_error_and_then_the_store_goes_on(in_server: Place, server: Server) -> None:
    with in_server.open() as store:
        store.append([click(1)])
        assert ids_of(store) == ["e1"]
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        assert ids_of(store) == ["e1"]
        with pytest.raises(UnskewError, match="may be sent again"):
            store.append([click(2)])
        assert store.append([click(1), click(2)]) == (1, 1, (None, 2))


def test_a_server_that_does_not_sync_is_refused(in_server: Place, server: Server) -> None:
    server.run("ALTER SYSTEM SET fsync = off")
    try:
        server.run("SELECT pg_reload_conf()")
        for _ in range(200):
            if server.run("SHOW fsync") == [("off",)]:
                break
        with pytest.raises(BadInput, match="fsync off"):
            in_server.open()
        in_server.open(synchronous="normal").close()
    finally:
        server.run("ALTER SYSTEM RESET fsync")
        server.run("SELECT pg_reload_conf()")
