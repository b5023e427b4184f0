"""Every training positive once per epoch, in each view, in order; nothing later; seeded; resumable in the middle."""

from collections import Counter

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import random_table
from unskew.data.sequences import SequenceBatch, SequenceSampler, windows
from unskew.layers import real


def sampler(log: unskew.Log, size: int = 16, seed: int = 0, history: int = 5, audience: int = 7) -> SequenceSampler:
    return SequenceSampler(unskew.split(log), size, seed, history, audience)


def whole(log: unskew.Log, split: unskew.Split, place: int) -> dict[int, list[int]]:
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
    return [tuple(row[real(row)].tolist()) for made in batches for row in (made.history_BL, made.audience_BM)[place]]


@pytest.fixture(scope="module")
def distinct_log() -> unskew.Log:
    """No two rows at one time, so the order within a sequence is beyond doubt."""
    return unskew.read(random_table(times=10**9))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("length", [1, 3, 50])
def test_an_epoch_meets_every_training_positive_once_and_in_order(distinct_log: unskew.Log, place: int, length: int) -> None:
    log, split = distinct_log, unskew.split(distinct_log)
    made = SequenceSampler(split, 16, 0, length, length)
    expected = [piece for sequence in whole(log, split, place).values() for piece in cut(sequence, length)]
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
        assert met == Counter(code for sequence in whole(log, split, place).values() for code in sequence)


def test_nothing_at_or_after_the_end_of_training() -> None:
    log = unskew.read({"user": [*"aabbab"], "item": [*"pqprss"], "time": [1, 2, 3, 4, 4, 5]})
    split = unskew.split(log, shares=(50, 20, 30))
    assert split.train_end == 4
    (made,) = SequenceSampler(split, 8, 0).epoch()
    assert sorted(rows_of([made], 0)) == [(0,), (0, 1)]  # p and q of a; p of b
    assert sorted(rows_of([made], 1)) == [(0,), (0, 1)]
    for view, known in ((log.histories, split.known_users), (log.audiences, split.known_items)):
        _, starts, ends = windows(view, known, 2, split.train_end)
        assert all((view.times[start:end] < 4).all() for start, end in zip(starts, ends, strict=True))


def test_windows_by_hand() -> None:
    log = unskew.read({"user": ["a"] * 7 + ["b"], "item": [*"pqrstuvp"], "time": [*range(1, 8), 3]})
    _, starts, ends = windows(log.histories, 2, 3, 8)
    assert sorted(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 1), (1, 4), (4, 7), (7, 8)]
    _, starts, ends = windows(log.histories, 1, 3, 6)  # five events, one entity
    assert sorted(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 2), (2, 5)]


@pytest.mark.parametrize("length", [1, 3, 50])
def test_with_an_overlap_every_event_is_a_target_once_and_has_its_past(distinct_log: unskew.Log, length: int) -> None:
    log, split = distinct_log, unskew.split(distinct_log)
    first_of = {int(user): int(row) for row, user in reversed(list(enumerate(log.user[: len(log.histories.ids)])))}
    targets: Counter[int] = Counter()
    for made in SequenceSampler(split, 16, 0, length, audience=None, overlap=1).epoch():
        assert made.audience_BM.numel() == 0
        assert made.history_BL.shape[1] <= length + 1
        for user, ids, events, wanted in zip(made.user_B, made.history_BL, made.event_BL, made.target_BL, strict=True):
            there = real(ids)
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


def same(a: SequenceBatch, b: SequenceBatch) -> bool:
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True))


def test_seeded_and_another_order_each_epoch(log: unskew.Log) -> None:
    first, again, other = sampler(log, seed=3), sampler(log, seed=3), sampler(log, seed=4)
    one = list(first.epoch())
    assert all(same(a, b) for a, b in zip(one, again.epoch(), strict=True))
    assert not all(same(a, b) for a, b in zip(one, other.epoch(), strict=True))
    assert not all(same(a, b) for a, b in zip(one, first.epoch(), strict=True))


@pytest.mark.parametrize("stop", [0, 1, 4, "last"])
def test_a_restored_sampler_goes_on_exactly(log: unskew.Log, stop: int | str) -> None:
    original = sampler(log)
    expected = [*original.epoch(), *original.epoch()]
    first = sampler(log)
    stop = len(first) if stop == "last" else int(stop)
    walk = first.epoch()
    met = [next(walk) for _ in range(stop)]
    second = sampler(log)
    second.load_state_dict(first.state_dict())
    met += [*second.epoch(), *second.epoch()]
    assert len(met) == len(expected)
    assert all(same(a, b) for a, b in zip(met, expected, strict=True))


def test_the_smaller_view_has_smaller_batches(log: unskew.Log) -> None:
    made = sampler(log, size=8, history=2, audience=100)  # many histories, an audience per item
    batches = list(made.epoch())
    assert len(batches) == len(made)
    sizes = np.array([[len(b.history_BL), len(b.audience_BM)] for b in batches])
    assert sizes.max() <= 8
    assert (sizes.max(0) - sizes.min(0) <= 1).all()
    few = unskew.read({"user": [*"aaab"], "item": [*"wxyz"], "time": [1, 2, 3, 4]})
    tiny = SequenceSampler(unskew.split(few, shares=(1, 0, 0)), 1, 0)
    assert {len(b.history_BL) for b in tiny.epoch()} == {0, 1}  # fewer users than batches: some batches have none


def test_batches_are_trimmed_and_sorted_by_length() -> None:
    random = np.random.default_rng(0)
    user = random.choice(500, 20_000, p=(w := 1 / np.arange(1, 501)) / w.sum())
    log = unskew.read({"user": user, "item": random.integers(0, 5000, 20_000), "time": np.arange(20_000)})
    batches = list(SequenceSampler(unskew.split(log), 16, 0).epoch())
    for place, limit in ((0, 50), (1, 30)):
        ids = [(b.history_BL, b.audience_BM)[place] for b in batches]
        assert all(not rows.numel() or bool(real(rows).any(0).all()) for rows in ids)  # no column of padding alone
        assert max(rows.shape[1] for rows in ids) <= limit
    padding = sum(int((~real(b.history_BL)).sum()) for b in batches) / sum(b.history_BL.numel() for b in batches)
    assert padding < 0.15
