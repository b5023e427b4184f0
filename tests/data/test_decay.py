"""Decayed counts equal a naive loop, at every time, ties included; events one by one give the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import quick
from unskew.data.log.decay import Decay
from unskew.data.log.live_views import LiveSequences
from unskew.data.log.views import Sequences, views_of

HALF_LIVES = (0.3, 4.0, 100.0)
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3), st.integers(0, 12)), min_size=1, max_size=40)


def naive(log: unskew.Log, entity: int, time: int) -> list[float]:
    view = log.audiences
    part = slice(view.offsets[entity], view.offsets[entity + 1])
    past = [when for when in view.times[part].tolist() if when < time]
    return [sum(2 ** (-(time - when) / life) for when in past) for life in HALF_LIVES]


@effort(max_examples=60)
@given(rows=rows)
def test_a_count_is_the_sum_over_the_past(rows: list[tuple[int, int, int]]) -> None:
    log = quick(rows)
    found = Decay(log.audiences, HALF_LIVES)
    entities, times = np.arange(len(log.items)), np.arange(0, 20)
    counts = found.at(entities[:, None], times)
    expected = [[naive(log, entity, time) for time in times] for entity in entities]
    np.testing.assert_allclose(counts, expected, rtol=1e-9, atol=1e-12)


@effort(max_examples=60)
@given(rows=rows, times=st.lists(st.integers(-2, 15), max_size=8))
def test_one_time_after_the_other_gives_the_same(rows: list[tuple[int, int, int]], times: list[int]) -> None:
    log = quick(rows)
    decay, when = Decay(log.audiences, HALF_LIVES), np.sort(np.array(times, np.int64))
    found = [counts.copy() for counts in decay.along(when)]  # one array, which changes with the next time
    expected = [decay.at(np.arange(len(log.items)), time) for time in when]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-9, atol=1e-12)


@effort(max_examples=60)
@given(rows=rows, cut=st.integers(0, 13), late=st.booleans())
def test_one_event_at_a_time_gives_the_same(rows: list[tuple[int, int, int]], cut: int, late: bool) -> None:
    """Counts follow a view that grows, also if an event comes late, and know entities that come later."""
    log = quick(rows)
    owner, _ = log.audiences.everything()
    events = list(zip(owner.tolist(), log.audiences.ids.tolist(), log.audiences.times.tolist(), strict=True))
    events.sort(key=lambda event: event[2], reverse=late)
    view = LiveSequences(Sequences(np.zeros(0, np.int32), np.zeros(0, np.int64), np.zeros(1, np.int64)))
    for event in events[:cut]:
        view.add(*event)
    live = Decay(view, HALF_LIVES)
    live.at(np.arange(max(len(view), 1)), 25)  # what is kept from now on must follow
    for event in events[cut:]:
        view.add(*event)
    for time in (7, 25):
        expected = [naive(log, entity, time) for entity in range(len(view))]
        found = live.at(np.arange(len(view)), time)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_unknown_entities_and_bad_half_lives() -> None:
    log = quick([(0, 0, 1), (1, 1, 2)])
    np.testing.assert_allclose(Decay(log.audiences, HALF_LIVES).at([-1, 9], 5), 0)
    with pytest.raises(unskew.BadInput, match="half-lives"):
        Decay(log.audiences, (1.0, 0.0))


def test_a_long_history_of_short_half_lives_neither_overflows_nor_loses_anything() -> None:
    """2^(time / half-life) would be far beyond any number."""
    times = np.arange(0, 3_000_000, 1000)
    log = quick([(n % 7, 0, int(time)) for n, time in enumerate(times)])
    found = Decay(log.audiences, (10.0, 1000.0)).at(0, times[-1] + 1)
    np.testing.assert_allclose(found[0], 2 ** (-1 / 10), rtol=1e-9)
    np.testing.assert_allclose(found[1], 2 ** (-1 / 1000) * 2, rtol=1e-6)


def faded(events: list[tuple[int, int, int]], entity: int, when: int, life: float) -> float:
    past = [time for who, _, time in events if who == entity and time < when]
    return sum(2.0 ** (-(when - time) / life) for time in past)


@pytest.mark.parametrize("known", [0, 120])
@pytest.mark.parametrize("late", [0.0, 0.3])
def test_checkpoints_follow_long_sequences(late: float, known: int) -> None:
    """Several checkpoints for each entity; late events come before checkpoints that were used already."""
    random = np.random.default_rng(3)
    times = np.sort(random.integers(0, 400, 300))
    early = random.random(300) < late
    times[early] = random.integers(0, 400, int(early.sum()))
    events = [(int(n % 2), n, int(time)) for n, time in enumerate(times)]
    owner, ids, when = np.array(events[:known], np.int64).reshape(-1, 3).T
    view = LiveSequences(views_of(owner, ids, when, 2, 300).histories)
    decay = Decay(view, HALF_LIVES)
    decay.at([0, 1], 500)
    for place, event in enumerate(events[known:], known):
        view.add(*event)
        if place % 37 == 0 or place == 299:
            now, so_far = random.integers(0, 420, 3), events[: place + 1]
            expected = [
                [[faded(so_far, entity, when, life) for life in HALF_LIVES] for when in now.tolist()]
                for entity in (0, 1)
            ]
            np.testing.assert_allclose(decay.at([[0], [1]], now), expected, rtol=1e-9, atol=1e-12)
    frozen = Decay(view.frozen(2), HALF_LIVES)
    np.testing.assert_allclose(frozen.at([0, 1], 500), decay.at([0, 1], 500), rtol=1e-9)
