"""Kill -9 at random moments, and at every step of compacting and erasing: nothing acknowledged is lost,
nothing is doubled, and no file is left over."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import store_lives
from tests.helpers.processes import run_python
from tests.helpers.stores import Place, Server

pytest_plugins = ("tests.helpers.store_places",)

ROOT = Path(__file__).parents[2]
EVERYONE = [f"e{n}" for n in range(30)]


def lives(*arguments: object) -> Any:
    found = run_python("-m", "tests.helpers.store_lives", *arguments, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_an_acknowledged_event_survives_kill_9(place: Place) -> None:
    found = lives("killed", place.where, place.segments, 4 if place.in_postgres else 10)
    assert len(found["acknowledged"]) >= 30
    assert len(set(found["stored"])) == len(found["stored"])
    assert set(found["acknowledged"]) <= set(found["stored"])
    assert found["sequences"] == list(range(1, len(found["stored"]) + 1))
    # What was stored without being acknowledged is the last batch of a life, as a whole.
    more = set(found["stored"]) - set(found["acknowledged"])
    assert len(more) % 3 == 0
    assert len(more) <= 3 * (4 if place.in_postgres else 10)


def where_of(place: Place, server: Server | None) -> str:
    """A place for each step: `STEP` is replaced by its name."""
    if server is None:
        return str(Path(place.where).with_name("STEP.db"))
    for step in {*store_lives.COMPACTING, *store_lives.ERASING}:
        server.run(f"CREATE SCHEMA IF NOT EXISTS crash_{step.replace(' ', '_')}")
    return f"{server.url}&options=-csearch_path%3Dcrash_STEP"


@pytest.fixture
def steps(place: Place, request: pytest.FixtureRequest):
    server = request.getfixturevalue("server") if place.in_postgres else None
    yield where_of(place, server)
    for step in {*store_lives.COMPACTING, *store_lives.ERASING} if server is not None else ():
        server.run(f"DROP SCHEMA crash_{step.replace(' ', '_')} CASCADE")


def test_a_compaction_that_is_killed_loses_and_doubles_nothing(place: Place, steps: str) -> None:
    found = lives("compact", steps, place.segments)
    assert tuple(found) == store_lives.COMPACTING
    for step, state in found.items():
        assert state["killed"], step
        assert state["events"] == EVERYONE, step
        assert state["recommendations"] == [f"r{n}" for n in range(30)], step
        assert state["copies"] == 30, step
        assert state["files"] == state["segments"], step
        assert not state["hidden"], step
    assert [len(state["segments"]) for state in found.values()] == [0, 0, 0, 1]


def test_an_erasure_that_is_killed_is_done_or_not_begun(place: Place, steps: str) -> None:
    found = lives("erase", steps, place.segments)
    assert tuple(found) == store_lives.ERASING
    for step, state in found.items():
        assert state["killed"], step
        # The list beside a file is written first, and whoever opens the store next goes on with it.
        begun = not place.in_postgres or step in store_lives.ERASING[-3:]
        assert state["listed"] == int(begun), step
        assert state["events"] == (EVERYONE[::2] if begun else EVERYONE), step
        assert len(state["recommendations"]) == (15 if begun else 30), step
        assert state["copies"] == 30, step  # what happened before an erasure never comes back
        assert state["files"] == state["segments"], step
        assert len(state["segments"]) == 2, step
        assert not state["hidden"], step
        assert state["left"] == 0, step
