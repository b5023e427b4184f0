"""What Pulse reads of a log equals naive loops over its rows: ties, strangers and unknown items included."""

from math import log as ln
from math import log1p

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import quick
from tests.models.test_neighbours import HALF_LIFE, SMALL
from tests.models.test_neighbours import naive as naive_neighbours
from unskew.data.batches.batch import Batch, contexts, contexts_of
from unskew.data.log.log import Log
from unskew.data.log.preparation import Metadata
from unskew.data.log.views import PAD, Sequences
from unskew.models.pulse import signals as module
from unskew.models.pulse.neighbours import Neighbourhood
from unskew.models.pulse.signals import (
    FLOOR,
    HALF_LIVES,
    NEIGHBOUR_DAYS,
    NEIGHBOUR_FEATURES,
    SCALES,
    USER_FEATURES,
    Signals,
)

DAY = 3.0  # ticks
Row = tuple[int, int, int]
# Also before 1970, so that no number stands for no time.
rows = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(-4, 9)), min_size=2, max_size=50)


def rows_of(log: unskew.Log) -> list[Row]:
    """User, item and time of every positive, user by user, oldest first."""
    ones = log.label == 1
    return list(zip(log.user[ones].tolist(), log.item[ones].tolist(), log.time[ones].tolist(), strict=True))


def reader(log: unskew.Log, repeats: bool = False) -> Signals:
    """With so few neighbours that it is cut everywhere."""
    made = Signals(log, DAY, repeats)
    made.neighbourhood = Neighbourhood(log, HALF_LIFE, SMALL)
    return made


def naive_item(events: list[Row], item: int, now: int) -> list[float]:
    mine = [time for _, other, time in events if other == item and time < now]
    everything = [time for *_, time in events if time < now]

    def faded(times: list[int], days: float) -> float:
        return sum(0.5 ** ((now - time) / (days * DAY)) for time in times)

    fractions = [ln((faded(mine, days) + FLOOR) / (faded(everything, days) + FLOOR)) for days in HALF_LIVES]
    return [*fractions, log1p((now - min(mine)) / DAY) if mine else 0.0]


def naive_profile(events: list[Row], user: int, now: int) -> list[float]:
    own = [(item, time) for other, item, time in events if other == user and time < now]
    if not own:
        return [*[0.0] * (len(HALF_LIVES) + 1), 0.0, 0.0, 1.0]
    newest = own[-SMALL.own :]
    each = [naive_item(events, item, time) for item, time in newest]
    mean = [sum(column) / len(newest) for column in zip(*each, strict=True)]
    return [*mean, log1p(len(own)), log1p(24 * (now - own[-1][1]) / DAY), 0.0]


def naive_pairs(log: unskew.Log, user: int, now: int, repeats: bool) -> dict[int, list[float]]:
    """Of each item that something is known about."""
    own = [(item, time) for other, item, time in rows_of(log) if other == user and time < now]
    walked = naive_neighbours(log, user, now, [item for item, _ in own])
    found = {
        item: [*(log1p(value / scale) for value, scale in zip(values, SCALES, strict=True)), 0.0, 0.0, 0.0]
        for item, values in walked.items()
    }
    for item in {item for item, _ in own} if repeats else ():
        times = [time for other, time in own if other == item]
        before = found.get(item, [0.0] * NEIGHBOUR_FEATURES)
        found[item] = [*before[:3], log1p(len(times)), log1p((now - max(times)) / DAY), 1.0]
    return found


# Items


@effort(max_examples=60)
@given(rows=rows)
def test_an_item_is_its_share_of_what_happened_lately_and_its_age(rows: list[Row]) -> None:
    """Nothing counts at its very moment; an item that nobody had yet, or that nobody knows, is like any
    other of which there is nothing."""
    log = quick(rows)
    items, times = np.arange(-2, len(log.items) + 3), np.arange(-5, 14)
    found = Signals(log, DAY, False).of_items(items[:, None], times)
    events = rows_of(log)
    expected = [[naive_item(events, item, time) for time in times.tolist()] for item in items.tolist()]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == np.float32


def test_times_of_many_requests_and_one_time_for_all_items_are_broadcast() -> None:
    log = quick([(0, 0, 1), (1, 0, 2), (1, 1, 2), (0, 2, 7)])
    found, events = Signals(log, DAY, False), rows_of(log)
    some, times = np.array([[0, 1, 2], [2, 2, 0]]), np.array([8, 2])
    for row, column in np.ndindex(2, 3):
        expected = naive_item(events, int(some[row, column]), int(times[row]))
        np.testing.assert_allclose(found.of_items(some, times[:, None])[row, column], expected, rtol=1e-5)
    np.testing.assert_array_equal(found.of_items(some, np.asarray(8))[0], found.of_items(some[0], times[:1]))


def test_all_items_at_one_time_after_the_other() -> None:
    log = quick([(user, item, 3 * user + item) for user in range(5) for item in range(4)])
    times, signals = np.array([0, 3, 3, 7, 8, 30]), reader(log)
    found = [vectors.copy() for vectors in signals.of_everything(times)]
    everything = np.arange(len(log.items))
    for mine, time in zip(found, times, strict=True):
        np.testing.assert_allclose(mine, signals.of_items(everything, time), rtol=1e-5, atol=1e-6)


def test_a_log_in_which_nothing_was_clicked() -> None:
    """No reader makes one, but a witness of an early moment has one."""
    nothing, offsets, two = np.zeros(0, np.int32), np.zeros(3, np.int64), pa.table({"id": [1, 2]})
    columns = {"user": nothing, "item": nothing, "time": nothing.astype(np.int64)}
    columns |= {"label": nothing.astype(np.int8), "history_offsets": offsets, "audience_user": nothing}
    columns |= {"audience_time": nothing.astype(np.int64), "audience_offsets": offsets}
    log = Log.of_columns(columns, two, two, Metadata())
    found = Signals(log, DAY, True)
    np.testing.assert_allclose(found.of_items(np.array([-1, 0, 1, 2]), np.asarray(9)), 0)
    read = found.of_requests(contexts(log, [0, 1, PAD], 9, 5))
    np.testing.assert_array_equal(read.profile, [[0] * (USER_FEATURES - 1) + [1]] * 3)
    assert not read.of_pairs(np.array([0, 2]), np.array([0, 1])).any()
    assert len(read.of_request(1)[0]) == 0


# Requests


def requests(log: unskew.Log, times: list[int]) -> Batch:
    """Every user, a stranger and nobody, at these times in turn."""
    users = [*range(len(log.users)), len(log.users) + 4, PAD]
    return contexts(log, users, [times[at % len(times)] for at in range(len(users))], 200)


@effort(max_examples=60)
@given(
    rows=rows, times=st.lists(st.integers(0, 12), min_size=1, max_size=3), block=st.sampled_from([1, 2, 512])
)
def test_requests_are_what_loops_find(rows: list[Row], times: list[int], block: int) -> None:
    """Profiles and walks, in the right request and item, however many requests are read together."""
    log = quick(rows)
    asked, events = requests(log, times), rows_of(log)
    for repeats in (False, True):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(module, "BLOCK", block)
            read = reader(log, repeats).of_requests(asked)
        everything = np.arange(-2, len(log.items) + 3)  # and what stands beside it in the table
        for number, (user, now) in enumerate(zip(asked.user_B.tolist(), asked.times_B.tolist(), strict=True)):
            profile = naive_profile(events, user, now)
            np.testing.assert_allclose(read.profile[number], profile, rtol=1e-5, atol=1e-5)
            expected = naive_pairs(log, user, now, repeats)
            values = [expected.get(item, [0.0] * NEIGHBOUR_FEATURES) for item in everything.tolist()]
            found = read.of_pairs(np.full(len(everything), number), everything)
            np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-6)
            known, mine = read.of_request(number)
            assert known.tolist() == sorted(expected)
            np.testing.assert_array_equal(mine, found[known + 2])


def test_the_neighbourhood_has_its_own_half_life_and_twenty_own_items() -> None:
    log = quick([(0, item, item) for item in range(30)] + [(1, 9, 40)])
    made = Signals(log, DAY, False)
    assert made.neighbourhood.half_life == NEIGHBOUR_DAYS * DAY
    events = rows_of(log)
    mean = np.mean([naive_item(events, item, item) for item in range(10, 30)], axis=0)
    found = made.of_requests(contexts(log, [0], [31], 200)).profile[0]
    np.testing.assert_allclose(found, [*mean, log1p(30), log1p(24 * 2 / DAY), 0], rtol=1e-5)


def test_a_user_whom_the_log_does_not_know_has_the_history_that_is_given() -> None:
    """As many events as are given, also beyond those that neighbours start from."""
    log = quick([(0, item, item) for item in range(30)])
    past = Sequences(np.arange(30, dtype=np.int32), np.arange(30), np.array([0, 30]))
    stranger = contexts_of(log, np.array([7]), np.array([31]), past, np.array([0]), 200)
    found = reader(log).of_requests(stranger).profile
    np.testing.assert_array_equal(found, reader(log).of_requests(contexts(log, [0], [31], 200)).profile)


def test_of_items_that_the_log_does_not_have_nothing_is_known() -> None:
    """They are no items of anybody else, either."""
    log = quick([(0, 0, 1), (1, 0, 2), (1, 1, 3), (0, 1, 4), (2, 0, 5), (2, 2, 6)])
    known = contexts(log, [0, 1, 2], 8, 200)
    assert known.history_BL.tolist() == [[0, 1], [0, 1], [0, 2]]
    more = known._replace(
        history_BL=known.history_BL.clone(), history_times_BL=known.history_times_BL.clone()
    )
    more.history_BL[:, 0] = 3
    fewer = more._replace(history_BL=more.history_BL.where(more.history_BL != 3, PAD))
    one, other = (reader(log, repeats=True).of_requests(asked) for asked in (more, fewer))
    np.testing.assert_array_equal(one.keys, other.keys)
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.profile, other.profile)
