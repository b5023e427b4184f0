"""The neighbourhood equals a naive one with loops, ties and strangers included, and never reads the
future."""

from collections import defaultdict
from dataclasses import replace
from math import log as ln
from math import sqrt

import numpy as np
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import quick
from unskew.data.log.views import PAD
from unskew.models.pulse import neighbours
from unskew.models.pulse.neighbours import Neighbourhood, NeighbourSettings

SMALL = NeighbourSettings(own=3, readers=3, neighbours=2, events=3, following=2, position_decay=0.5)
HALF_LIFE = 4.0
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 9)), min_size=2, max_size=50)


def events_of(view, entity: int, before: int) -> list[tuple[int, int]]:
    part = slice(view.offsets[entity], view.offsets[entity + 1])
    return [
        (i, t) for i, t in zip(view.ids[part].tolist(), view.times[part].tolist(), strict=True) if t < before
    ]


def naive(log: unskew.Log, user: int, now: int, own: list[int]) -> dict[int, np.ndarray]:
    """One request, in plain loops."""
    own = own[-SMALL.own :]
    found: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(3))
    likeness: dict[int, float] = defaultdict(float)
    for back, item in enumerate(reversed(own)):
        audience = events_of(log.audiences, item, now)
        read = audience[-SMALL.readers :]
        for reader, when in read:
            if reader == user:
                continue
            likeness[reader] += 1 / ln(2 + len(audience))
            history = events_of(log.histories, reader, now)
            place = history.index((item, when))
            for after, _ in history[place + 1 : place + 1 + SMALL.following]:
                found[after][2] += SMALL.position_decay**back / len(read)
    for reader in likeness:
        likeness[reader] /= sqrt(len(own) * len(events_of(log.histories, reader, now)))
    best = sorted(likeness, key=lambda reader: (-likeness[reader], reader))[: SMALL.neighbours]
    for reader in best:
        for item, when in events_of(log.histories, reader, now)[-SMALL.events :]:
            found[item][0] += likeness[reader] * 2 ** (-(now - when) / HALF_LIFE)
            found[item][1] += likeness[reader]
    return found


@effort(max_examples=80)
@given(rows=rows, now=st.integers(0, 11))
def test_a_neighbourhood_is_what_loops_find(rows: list[tuple[int, int, int]], now: int) -> None:
    log = quick(rows)
    users = np.arange(len(log.users) + 1)  # the last one is a stranger
    histories = [[item for item, _ in events_of(log.histories, user, now)] for user in users[:-1]] + [[0]]
    width = max(map(len, histories))
    own = np.array([[PAD] * (width - len(history)) + history for history in histories], np.int64)
    reached = Neighbourhood(log, HALF_LIFE, SMALL).reach(
        users, np.full(len(users), now), own.reshape(len(users), width)
    )
    for user, history in zip(users.tolist(), histories, strict=True):
        expected = naive(log, user, now, history)
        mine = reached.request == user
        found = dict(zip(reached.item[mine].tolist(), reached.values[mine], strict=True))
        assert found.keys() == expected.keys()
        for item, values in expected.items():
            np.testing.assert_allclose(found[item], values, rtol=1e-9)


def test_what_came_next_is_divided_by_the_readers_that_were_read() -> None:
    """Six users took item 0. The newest three of them are read, and two of these took item 1 right after."""
    rows = [(user, 0, user) for user in range(1, 6)] + [(user, 1, 10 + user) for user in (1, 4, 5)]
    log = quick([(9, 0, 0), *rows])
    user, item = (int(ids.codes([n])[0]) for ids, n in ((log.users, 9), (log.items, 1)))
    zero = int(log.items.codes([0])[0])
    assert SMALL.readers == 3
    reached = Neighbourhood(log, HALF_LIFE, SMALL).reach(np.array([user]), np.array([20]), np.array([[zero]]))
    values = dict(zip(reached.item.tolist(), reached.values[:, 2].tolist(), strict=True))
    assert values[item] == 2 / 3


def test_events_of_others_after_the_request_are_read_where_targets_were_taken_out() -> None:
    """User 1 took item 0 and then 1, both after the request of user 0; a later event has the age 0."""
    log = quick([(0, 0, 1), (1, 0, 6), (1, 1, 7), (2, 1, 8)])
    asked = np.array([0]), np.array([2]), np.array([[0]])
    assert not len(Neighbourhood(log, HALF_LIFE, SMALL).reach(*asked).item)
    reached = Neighbourhood(log, HALF_LIFE, replace(SMALL, reads_all=True)).reach(*asked)
    likeness = 1 / ln(2 + 2) / sqrt(1 * 2)
    assert reached.item.tolist() == [0, 1]
    np.testing.assert_allclose(reached.values, [[likeness, likeness, 0], [likeness, likeness, 1 / 2]])


def test_nobody_reaches_anything_from_an_empty_history() -> None:
    log = quick([(0, 0, 1), (1, 0, 2), (1, 1, 3)])
    reached = Neighbourhood(log, 1.0).reach(np.array([5, 6]), np.array([9, 9]), np.full((2, 0), PAD))
    assert len(reached.request) == len(reached.item) == 0
    assert reached.values.shape == (0, 3)


def test_pairs_that_need_large_numbers_are_told_apart() -> None:
    """A million requests of a million users have more pairs than 32 bits can tell."""
    low, high = 5, 5 + 2**32
    keys, place = neighbours._unique(np.array([high, low, 2**31, high]))
    assert keys.tolist() == [low, 2**31, high]
    assert place.tolist() == [2, 0, 1, 2]
    assert neighbours._unique(np.zeros(0, np.int64))[0].dtype == np.int64
