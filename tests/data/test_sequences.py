"""Every training positive once per epoch, in each view, in order; nothing later; ties are no past; seeded;
resumable in the middle."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import quick, random_table
from unskew.data.batches.batch import SequenceBatch
from unskew.data.batches.samplers import SequenceSampler, Windows, windows
from unskew.data.log.views import PAD
from unskew.nn.layers import is_real


def sampler(
    log: unskew.Log, size: int = 16, seed: int = 0, history: int = 5, audience: int = 7
) -> SequenceSampler:
    return SequenceSampler(unskew.split(log), size, seed, history, audience)


def as_prefixes(log: unskew.Log, split: unskew.Split, place: int) -> dict[int, list[int]]:
    """Independent of the views: each entity's training positives, oldest first, from the rows themselves."""
    entity, other = (log.user, log.item) if place == 0 else (log.item, log.user)
    rows = np.flatnonzero((log.label == 1) & (log.time < split.train_end))
    found: dict[int, list[int]] = {}
    for row in rows[np.lexsort((other[rows], log.time[rows]))]:
        found.setdefault(int(entity[row]), []).append(int(other[row]))
    return found


def cut(sequence: list[int], length: int) -> list[tuple[int, ...]]:
    """In pieces from the newest, which is full."""
    pieces = []
    while sequence:
        pieces.append(tuple(sequence[-length:]))
        sequence = sequence[:-length]
    return pieces


def rows_of(batches: list[SequenceBatch], place: int) -> list[tuple[int, ...]]:
    return [
        tuple(row[is_real(row)].tolist()) for made in batches for row in (made.items_BL, made.users_BM)[place]
    ]


@pytest.fixture(scope="module")
def distinct_log() -> unskew.Log:
    """No two rows at one time, so the order within a sequence is beyond doubt."""
    return unskew.read(random_table(times=10**9))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("length", [1, 3, 50])
def test_an_epoch_meets_every_training_positive_once_and_in_order(
    distinct_log: unskew.Log, place: int, length: int
) -> None:
    log, split = distinct_log, unskew.split(distinct_log)
    made = SequenceSampler(split, 16, 0, length, length)
    expected = [
        piece for sequence in as_prefixes(log, split, place).values() for piece in cut(sequence, length)
    ]
    for _ in range(2):
        batches = list(made.epoch())
        assert len(batches) == len(made)
        assert Counter(rows_of(batches, place)) == Counter(expected)
    assert sum(map(len, expected)) == int((log.label[log.time < split.train_end] == 1).sum())


def test_ties_do_not_lose_or_repeat_anything(log: unskew.Log) -> None:
    split = unskew.split(log)
    batches = list(sampler(log).epoch())
    for place in (0, 1):
        met = Counter(code for row in rows_of(batches, place) for code in row)
        assert met == Counter(
            code for sequence in as_prefixes(log, split, place).values() for code in sequence
        )


def test_nothing_at_or_after_the_end_of_training() -> None:
    log = unskew.read({"user": [*"aabbab"], "item": [*"pqprss"], "time": [1, 2, 3, 4, 4, 5]})
    split = unskew.split(log, fractions=(50, 20, 30))
    assert split.train_end == 4
    (made,) = SequenceSampler(split, 8, 0).epoch()
    assert sorted(rows_of([made], 0)) == [(0,), (0, 1)]  # p and q of a; p of b
    assert sorted(rows_of([made], 1)) == [(0,), (0, 1)]
    for view, known in ((log.histories, split.known_users), (log.audiences, split.known_items)):
        found = windows(view, known, 2, split.train_end)
        assert all(
            (view.times[start:end] < 4).all() for start, end in zip(found.start, found.end, strict=True)
        )


def test_windows_by_hand() -> None:
    log = unskew.read({"user": ["a"] * 7 + ["b"], "item": [*"pqrstuvp"], "time": [*range(1, 8), 3]})
    assert pieces(windows(log.histories, 2, 3, 8)) == [(0, 1), (1, 4), (4, 7), (7, 8)]
    assert pieces(windows(log.histories, 1, 3, 6)) == [(0, 2), (2, 5)]  # five events, one entity


def pieces(found: Windows) -> list[tuple[int, int]]:
    return sorted(zip(found.start.tolist(), found.end.tolist(), strict=True))


def test_windows_with_ties_by_hand() -> None:
    """Moments of 1, 2, 2 and 4 events: a cut never parts one, unless it alone is longer than a window and
    nothing may be longer."""
    view = quick([(0, item, time) for item, time in enumerate([1, 2, 2, 3, 3, 4, 4, 4, 4])]).histories
    assert pieces(windows(view, 1, 9, 9)) == [(0, 9)]
    assert pieces(windows(view, 1, 5, 9)) == [(0, 5), (5, 9)]  # five would begin within the third moment
    assert pieces(windows(view, 1, 3, 9)) == [
        (0, 3),
        (3, 6),
        (6, 9),
    ]  # the last moment is too long, so it is parted
    # With an overlap, the last moment is whole and has as much past as a window holds, the others at least
    # one event.
    found = windows(view, 1, 3, 9, overlap=1)
    assert sorted(zip(found.start.tolist(), found.first.tolist(), found.end.tolist(), strict=True)) == [
        (0, 0, 3),
        (2, 3, 5),
        (2, 5, 9),
    ]


@pytest.mark.parametrize("length", [1, 3, 50])
def test_with_an_overlap_every_event_is_a_target_once_and_has_its_past(
    distinct_log: unskew.Log, length: int
) -> None:
    log, split = distinct_log, unskew.split(distinct_log)
    first_of = {
        int(user): int(row) for row, user in reversed(list(enumerate(log.user[: len(log.histories.ids)])))
    }
    targets: Counter[int] = Counter()
    for made in SequenceSampler(split, 16, 0, length, audience=None, overlap=1).epoch():
        assert made.users_BM.numel() == 0
        assert made.items_BL.shape[1] <= length + 1
        for user, ids, events, wanted in zip(
            made.user_B, made.items_BL, made.event_BL, made.target_BL, strict=True
        ):
            there = is_real(ids)
            assert not bool(wanted[~there].any())
            rows = events[there].numpy()
            assert (log.user[rows] == int(user)).all()
            assert (log.item[rows] == ids[there].numpy()).all()
            assert (np.diff(log.time[rows]) > 0).all()
            begins = rows[0] == first_of[int(user)]
            assert wanted[there].tolist() == [begins] + [True] * (len(rows) - 1)
            targets.update(events[wanted].tolist())
    train = np.flatnonzero((log.time < split.train_end) & (log.label == 1))
    assert targets == Counter(train.tolist())


# Many ties: users whose baskets are longer than a window


baskets = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 11), st.integers(0, 4)), min_size=1, max_size=50
)


def test_a_quick_log_is_the_log_that_is_read(positive_log: unskew.Log) -> None:
    rows = list(
        zip(positive_log.user.tolist(), positive_log.item.tolist(), positive_log.time.tolist(), strict=True)
    )
    made, read = (
        quick(rows),
        unskew.read(
            dict(zip(("user", "item", "time"), map(list, zip(*set(rows), strict=True)), strict=True))
        ),
    )
    for one, other in ((made, read), (made.histories, read.histories), (made.audiences, read.audiences)):
        names = (
            ("user", "item", "time", "label") if isinstance(one, unskew.Log) else ("ids", "times", "offsets")
        )
        assert all((getattr(one, name) == getattr(other, name)).all() for name in names)


@pytest.mark.slow
@effort(max_examples=300)
@given(baskets, st.integers(1, 6), st.sampled_from([0, 1, 3]), st.sampled_from(["keep", "hide"]))
def test_every_positive_is_a_target_once_and_reads_what_is_strictly_before(
    rows: list, length: int, overlap: int, repeats: str
) -> None:
    log = quick(rows)
    split = unskew.split(log, fractions=(3, 0, 1), repeats=repeats)
    targets: Counter[int] = Counter()
    for made in SequenceSampler(split, 4, 0, length, audience=None, overlap=overlap).epoch():
        for user, ids, event, past, target in zip(
            made.user_B, made.items_BL, made.event_BL, made.past_BL, made.target_BL, strict=True
        ):
            window = event[event != PAD].tolist()
            assert window == list(range(window[0], window[-1] + 1))
            assert (log.user[window] == int(user)).all()
            assert log.item[window].tolist() == ids[event != PAD].tolist()
            assert overlap or len(window) <= length
            for place, before in zip(window, past[event != PAD].tolist(), strict=True):
                assert window[:before] == [other for other in window if log.time[other] < log.time[place]]
            for place, before in zip(event[target].tolist(), past[target].tolist(), strict=True):
                has_a_past = ((log.user == int(user)) & (log.time < log.time[place])).any()
                assert (before > 0) == has_a_past or not overlap
            assert not bool(target[event == PAD].any())
            targets.update(event[target].tolist())
    train = np.flatnonzero(log.time < split.train_end).tolist()
    again = {
        row
        for row in train
        if ((log.user == log.user[row]) & (log.item == log.item[row]) & (log.time < log.time[row])).any()
    }
    assert targets == Counter(row for row in train if repeats == "keep" or row not in again)


@effort(max_examples=150)
@given(baskets, st.integers(1, 6))
def test_whole_sequences_of_both_views_are_read_strictly_before(rows: list, length: int) -> None:
    log = quick(rows)
    split = unskew.split(log, fractions=(3, 0, 1))
    met: tuple[Counter[int], Counter[int]] = Counter(), Counter()
    for made in SequenceSampler(split, 4, 0, length, length).epoch():
        views = (
            (log.histories, made.items_BL, made.event_BL, made.past_BL),
            (log.audiences, made.users_BM, made.users_event_BM, made.users_past_BM),
        )
        for place, (view, ids, events, pasts) in enumerate(views):
            assert ids.shape[1] <= length
            for event, past in zip(events, pasts, strict=True):
                window = event[event != PAD].tolist()
                times = view.times[window]
                assert past[event != PAD].tolist() == [int((times < time).sum()) for time in times]
                met[place].update(window)
    assert met[0] == Counter(np.flatnonzero(log.histories.times < split.train_end).tolist())
    assert met[1] == Counter(np.flatnonzero(log.audiences.times < split.train_end).tolist())


def same(a: SequenceBatch, b: SequenceBatch) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


def test_seeded_and_another_order_each_epoch(log: unskew.Log) -> None:
    first, again, other = sampler(log, seed=3), sampler(log, seed=3), sampler(log, seed=4)
    one = list(first.epoch())
    assert all(same(a, b) for a, b in zip(one, again.epoch(), strict=True))
    assert not all(same(a, b) for a, b in zip(one, other.epoch(), strict=True))
    assert not all(same(a, b._replace(epoch=0)) for a, b in zip(one, first.epoch(), strict=True))


@pytest.mark.parametrize("stop", [0, 1, 4, "last"])
def test_a_restored_sampler_goes_on_exactly(log: unskew.Log, stop: int | str) -> None:
    original = sampler(log)
    expected = [*original.epoch(), *original.epoch()]
    first = sampler(log)
    stop = len(first) if stop == "last" else int(stop)
    steps = first.epoch()
    met = [next(steps) for _ in range(stop)]
    second = sampler(log)
    second.load_state_dict(first.state_dict())
    met += [*second.epoch(), *second.epoch()]
    assert len(met) == len(expected)
    assert all(same(a, b) for a, b in zip(met, expected, strict=True))


def test_the_smaller_view_has_smaller_batches(log: unskew.Log) -> None:
    made = sampler(log, size=8, history=2, audience=100)  # many histories, an audience per item
    batches = list(made.epoch())
    assert len(batches) == len(made)
    sizes = np.array([[len(b.items_BL), len(b.users_BM)] for b in batches])
    assert sizes.max() <= 8
    assert (sizes.max(0) - sizes.min(0) <= 1).all()
    few = unskew.read({"user": [*"aaab"], "item": [*"wxyz"], "time": [1, 2, 3, 4]})
    tiny = SequenceSampler(unskew.split(few, fractions=(1, 0, 0)), 1, 0)
    assert {len(b.items_BL) for b in tiny.epoch()} == {
        0,
        1,
    }  # fewer users than batches: some batches have none


def test_batches_are_trimmed_and_sorted_by_length() -> None:
    random = np.random.default_rng(0)
    user = random.choice(500, 20_000, p=(w := 1 / np.arange(1, 501)) / w.sum())
    log = unskew.read({"user": user, "item": random.integers(0, 5000, 20_000), "time": np.arange(20_000)})
    batches = list(SequenceSampler(unskew.split(log), 16, 0).epoch())
    for place, limit in ((0, 50), (1, 30)):
        ids = [(b.items_BL, b.users_BM)[place] for b in batches]
        assert all(
            not rows.numel() or bool(is_real(rows).any(0).all()) for rows in ids
        )  # no column of padding alone
        assert max(rows.shape[1] for rows in ids) <= limit
    padding = sum(int((~is_real(b.items_BL)).sum()) for b in batches) / sum(
        b.items_BL.numel() for b in batches
    )
    assert padding < 0.15


def test_a_state_of_another_sampler_is_refused() -> None:
    split = unskew.split(unskew.read(random_table(rows=300)))
    saved = SequenceSampler(split, 8, seed=3).state_dict()
    SequenceSampler(split, 8, seed=3).load_state_dict(saved)
    for other, said in (
        (SequenceSampler(split, 8, seed=4), "had seed 3, this one has 4"),
        (SequenceSampler(split, 9, seed=3), "had batch_size 8, this one has 9"),
        (SequenceSampler(split, 8, seed=3, history=2), "had windows"),
    ):
        with pytest.raises(unskew.BadInput, match=said):
            other.load_state_dict(saved)
