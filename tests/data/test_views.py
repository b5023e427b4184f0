"""Look-ups against a naive loop, ties included."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from unskew.data.log import views
from unskew.data.log.views import PAD, Sequences, offsets_of

events = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 12)), max_size=60)
queries = st.lists(st.tuples(st.integers(-2, 8), st.integers(-3, 15)), min_size=1, max_size=40)


def build(rows: list[tuple[int, int]], shift: int = 0, stretch: int = 1) -> Sequences:
    rows = sorted(rows)
    entity = np.array([row[0] for row in rows], np.int64)
    times = np.array([row[1] * stretch + shift for row in rows], np.int64)
    return Sequences(np.arange(len(rows), dtype=np.int32), times, offsets_of(entity, 6))


def naive(rows: list[tuple[int, int]], entity: int, time: int, newest: int | None) -> list[int]:
    past = [place for place, (who, when) in enumerate(sorted(rows)) if who == entity and when < time]
    return past if newest is None else past[max(0, len(past) - newest) :]


@given(
    events,
    queries,
    st.sampled_from([None, 1, 3, 50]),
    st.sampled_from([(0, 1), (10**9, 10**3), (10**17, 2 * 10**17)]),
)
def test_before_is_the_naive_loop(
    rows: list, asked: list, newest: int | None, clock: tuple[int, int]
) -> None:
    shift, stretch = clock  # the last clock would overflow a composite key of raw times
    view = build(rows, shift, stretch)
    entity, time = np.array(asked, np.int64).T
    start, end = view.before(entity, time * stretch + shift, newest)
    for place, (who, when) in enumerate(asked):
        assert view.ids[start[place] : end[place]].tolist() == naive(rows, who, when, newest)


def test_many_look_ups_at_once_are_those_one_by_one() -> None:
    random = np.random.default_rng(0)
    view = build([tuple(pair) for pair in random.integers(0, (6, 13), (300, 2)).tolist()])
    entity, time = (
        random.integers(-1, 7, views._TOGETHER + 900),
        random.integers(-2, 16, views._TOGETHER + 900),
    )
    together = view.before(entity, time, 4)
    some = np.arange(len(entity) - 2000, len(entity))
    one_by_one = [view.before(entity[place], time[place], 4) for place in some.tolist()]
    assert np.transpose(together)[some].tolist() == np.array(one_by_one).tolist()


@given(events, queries, st.integers(1, 4))
def test_padded_rows_end_with_the_window(rows: list, asked: list, newest: int) -> None:
    view = build(rows)
    entity, time = np.array(asked, np.int64).T
    padded = view.padded(*view.before(entity, time, newest))
    windows = [naive(rows, who, when, newest) for who, when in asked]
    assert padded.shape == (len(asked), max(map(len, windows)))  # as wide as the longest, no wider
    for row, window in zip(padded.tolist(), windows, strict=True):
        assert row == [PAD] * (len(row) - len(window)) + window


def test_queries_of_any_shape() -> None:
    view = build([(0, 1), (1, 1), (1, 5), (2, 9)])
    start, end = view.before(np.tile(np.arange(4), (2000, 1)), 6)
    assert ((end - start) == [1, 2, 0, 0]).all()


def test_one_query_broadcasts_over_many_entities() -> None:
    view = build([(0, 1), (1, 1), (1, 5), (2, 9)])
    start, end = view.before(np.arange(4), 6)
    assert (end - start).tolist() == [1, 2, 0, 0]


@given(events, st.lists(st.integers(-3, 15), min_size=1, max_size=20))
def test_existing_is_the_naive_loop(rows: list, asked: list[int]) -> None:
    """Codes follow first events, as a vocabulary gives them: what exists at any moment is then a prefix."""
    firsts = {who: min(when for other, when in rows if other == who) for who, _ in rows}
    order = sorted(range(6), key=lambda who: (firsts.get(who, 99), who))
    view = build([(order.index(who), when) for who, when in rows])
    slow = [sum(any(other == who and t < when for other, t in rows) for who in range(6)) for when in asked]
    assert view.existing(np.array(asked)).tolist() == slow
    assert [int(view.existing(when)) for when in asked] == slow  # one moment, too
    for when, count in zip(asked, slow, strict=True):
        assert {order[code] for code in range(count)} == {
            who for who, first in firsts.items() if first < when
        }
    assert view.first_times.tolist() == [firsts.get(who, np.iinfo(np.int64).max) for who in order]


@given(events)
def test_moments_are_the_naive_loop(rows: list) -> None:
    """What is before an event ends where its moment begins: the two never disagree."""
    view = build(rows)
    found = view.moments
    ordered = sorted(rows)
    assert found.tolist() == [ordered.index(event) for event in ordered]
    entity, time = (np.array([event[place] for event in ordered], np.int64) for place in (0, 1))
    assert found.tolist() == view.before(entity, time)[1].tolist()
