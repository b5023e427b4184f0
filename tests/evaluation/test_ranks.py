"""Ranks against a naive loop, ties, the hundred drawn candidates, and how much is computed."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.scorers import Same, Scores, candidates, growing_split, whole_test, wide_split
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import held_out
from unskew.data.log.views import PAD
from unskew.evaluation.evaluate import Ranked, evaluation, rank
from unskew.models.base import build
from unskew.models.deps import DEPS


@pytest.fixture(scope="module", params=["keep", "hide"])
def split(request: pytest.FixtureRequest) -> unskew.Split:
    """With and without repeats among the candidates."""
    return growing_split(request.param)


@pytest.fixture(scope="module")
def wide() -> unskew.Split:
    return wide_split()


def naive_rank(scores: dict[int, float], target: int) -> float:
    better = sum(score > scores[target] for score in scores.values())
    equal = sum(score == scores[target] for item, score in scores.items() if item != target)
    return 1 + better + equal / 2


@pytest.mark.parametrize("rounded", [None, 0])
def test_ranks_are_those_of_a_naive_loop(split: unskew.Split, rounded: int | None) -> None:
    log, scorer = split.log, Scores(split, rounded)
    rows = held_out(split, "test", "ordinary").rows
    ranked = rank(scorer, split, rows)
    seen_before, born_then, born_later = 0, 0, 0
    for unit, row in enumerate(rows):
        user, target, time = int(log.user[row]), int(log.item[row]), log.time[row]
        scores = {item: float(scorer.table[0, user, item]) for item in candidates(split, row)}
        assert ranked.full[unit] == naive_rank(scores, target)
        assert ranked.score[unit] == np.float32(scores[target])
        top = ranked.top[unit].tolist()
        best = sorted(scores.values(), reverse=True)[: len(top)]
        assert [float(scorer.table[0, user, item]) for item in top[: len(best)]] == best
        assert set(top[: len(best)]) <= set(scores)
        own = log.item[(log.user == user) & (log.label == 1) & (log.time < time)]
        seen_before += target in own
        first = np.array(
            [log.time[(log.item == item) & (log.label == 1)].min() for item in range(len(log.items))]
        )
        born_then += bool((first == time).any())  # no candidate either: it alone would have nobody before it
        born_later += bool((first > time).any())
    assert (seen_before > 20) == split.repeats  # each of the three cases did occur
    assert born_then > 0
    assert born_later > 20


def test_what_is_born_at_the_moment_or_later_does_not_count() -> None:
    table = {"user": [*"ababacbc"], "item": [*"pqpqrsrt"], "time": [1, 1, 2, 2, 5, 5, 6, 6]}
    split = unskew.split(unskew.read(table), fractions=(50, 0, 50), repeats="hide")
    log, scorer = split.log, Scores(split)
    names = log.items.ids.to_pylist()
    scorer.table[0] = [[{"p": 1, "q": 2, "r": 0, "s": 3, "t": 9}[name] for name in names]] * 3
    rows = held_out(split, "test", "ordinary").rows
    assert [(log.users.ids[int(log.user[row])].as_py(), names[log.item[row]]) for row in rows] == [
        ("b", "r")
    ]  # r, s, t are born then
    assert rank(scorer, split, rows).full.tolist() == [
        3
    ]  # below p and s; q is b's own, and t, the best of all, is born now


def test_ties_share_the_mean_rank_and_a_constant_earns_nothing(
    split: unskew.Split, wide: unskew.Split
) -> None:
    for some in (split, wide):
        rows = held_out(some, "test", "ordinary").rows[::3]
        found = rank(Same(some, 0.5), some, rows)
        sizes = np.array([len(candidates(some, row)) for row in rows])
        np.testing.assert_array_equal(found.full, (sizes + 1) / 2)
    assert sizes.min() > 200
    np.testing.assert_array_equal(found.uniform, np.full(len(rows), 51.0))  # in the middle of 101
    for protocol in ("full", "uni100", "authors"):
        assert set(evaluation(wide, found, protocol, whole_test(wide)).metrics().values()) == {0.0}


def test_scores_that_are_not_numbers_are_an_error_and_not_a_triumph(split: unskew.Split) -> None:
    with pytest.raises(unskew.UnskewError, match=r"not a number|not finite|nan"):
        rank(Same(split, math.nan), split, held_out(split, "test", "ordinary").rows)


def test_ranks_do_not_depend_on_the_block(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = held_out(split, "test", "ordinary").rows
    scorer = Scores(split)
    whole = rank(scorer, split, rows)
    monkeypatch.setattr("unskew.evaluation.evaluate.BLOCK", 7)
    parts = rank(scorer, split, rows)
    for field in dataclasses.fields(Ranked):
        np.testing.assert_array_equal(getattr(whole, field.name), getattr(parts, field.name))


def test_nothing_to_rank_is_said(split: unskew.Split) -> None:
    with pytest.raises(unskew.BadInput, match="nothing to rank"):
        rank(Scores(split), split, np.zeros(0, np.int64))


def test_a_row_whose_item_is_no_candidate_is_refused(split: unskew.Split) -> None:
    """Or the candidates would depend on the answer: a repeated target was put back among items that were
    hidden."""
    log = split.log
    repeated = np.flatnonzero(log.repeated & (log.label == 1) & split.mask("test") & ~split.first_appearance)
    if split.repeats:
        assert (
            rank(Scores(split), split, repeated[np.argsort(log.time[repeated], kind="stable")]).full >= 1
        ).all()
        return
    with pytest.raises(unskew.BadInput, match="no candidate"):
        rank(Scores(split), split, repeated[:1])


class OwnPast(Scores):
    """The planted scorer: 1 for what the user had among the last fifty, 0 for everything else."""

    history = 50

    def __init__(self, split: unskew.Split) -> None:
        self.items = len(split.log.items)

    def scores(self, context: Batch) -> Tensor:
        found = torch.zeros(len(context.user_B), self.items + 1)
        past = torch.where(context.history_BL == PAD, self.items, context.history_BL)
        return found.scatter_(1, past, 1.0)[:, : self.items].contiguous()


def test_a_scorer_of_the_own_past_does_not_profit_from_a_mask(split: unskew.Split) -> None:
    """Hidden, it is a constant and earns what a constant earns. Kept, its rank is the middle of all past
    items, as it deserves."""
    rows = whole_test(split).rows
    found, constant = rank(OwnPast(split), split, rows), rank(Same(split, 0.0), split, rows)
    if not split.repeats:
        np.testing.assert_array_equal(found.full, constant.full)
        np.testing.assert_array_equal(found.uniform, constant.uniform)
        return
    log = split.log
    for unit, row in enumerate(rows):
        own = set(
            log.item[(log.user == log.user[row]) & (log.label == 1) & (log.time < log.time[row])].tolist()
        )
        ahead = len(own) if int(log.item[row]) not in own else 0
        tied = len(own) if int(log.item[row]) in own else len(candidates(split, row)) - len(own)
        assert found.full[unit] == 1 + ahead + (tied - 1) / 2


# A hundred drawn ones


class ByCode(Scores):
    """The score of an item is its code, so a score tells which item it is."""

    def scores(self, context: Batch) -> Tensor:
        return torch.arange(float(self.table.shape[2])).repeat(len(context.user_B), 1)


def test_a_hundred_existing_others_are_drawn(wide: unskew.Split) -> None:
    rows = held_out(wide, "test", "ordinary").rows[::4]
    ranked = rank(ByCode(wide), wide, rows)
    assert ranked.negatives.shape == (len(rows), 100)
    assert np.isfinite(ranked.negatives).all()
    drawn = np.zeros(len(wide.log.items))
    expected = np.zeros(len(wide.log.items))
    for unit, row in enumerate(rows):
        target, negatives = int(wide.log.item[row]), ranked.negatives[unit].astype(int)
        others = candidates(wide, row) - {target}
        assert set(negatives.tolist()) <= others  # never the target, never the user's own, never unborn
        assert ranked.uniform[unit] == 1 + (negatives > target).sum()
        np.add.at(drawn, negatives, 1)
        expected[sorted(others)] += 100 / len(others)
    assert np.abs((drawn - expected) / np.sqrt(expected)).max() < 5  # uniformly


def test_the_hundred_are_seeded(wide: unskew.Split) -> None:
    rows = held_out(wide, "test", "ordinary", 40).rows
    first, again, other = (rank(ByCode(wide), wide, rows, seed).negatives for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not (first == other).all(1).any()
    assert not (first[:1] == first[1:]).all(1).any()  # and each row has its own


def test_a_user_with_most_of_the_catalogue_still_meets_a_hundred() -> None:
    """Drawn with replacement, so that few others are enough."""
    users, items = 4, 40
    table = {
        "user": np.repeat(np.arange(users), items),
        "item": np.tile(np.arange(items), users),
        "time": np.concatenate([np.random.default_rng(user).permutation(items) for user in range(users)]),
    }
    split = unskew.split(unskew.read(table), fractions=(50, 0, 50))
    rows = held_out(split, "test", "ordinary").rows
    rows = rows[split.log.time[rows] < items - 1]  # before the last one there is at least another
    assert np.isfinite(rank(Scores(split), split, rows).negatives).all()


# What it costs


def test_a_whole_test_encodes_nothing_twice(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """One history per context, and an audience per item and per event that changes one: N + I, where pairs
    would be N x I."""
    encoded = {"audience_side": 0, "_audience": 0, "context_side": 0, "_history": 0}

    def counting(name: str) -> None:
        encode = getattr(DEPS, name)

        def counted(self: DEPS, given: Any) -> Tensor:
            encoded[name] += len(given.user_B if isinstance(given, Batch) else given)
            return encode(self, given)

        monkeypatch.setattr(DEPS, name, counted)

    for name in encoded:
        counting(name)
    model = build(DEPS, split, DEPS.Config(width=8, layers=1, inner=8, hidden=8)).eval()
    rows = held_out(split, "test", "ordinary").rows
    rank(model, split, rows)
    log = split.log
    inside = log.audiences.times >= log.time[rows].min()
    changes = len(
        set(
            zip(
                np.repeat(np.arange(len(log.items)), np.diff(log.audiences.offsets))[inside],
                log.audiences.times[inside],
                strict=True,
            )
        )
    )
    assert encoded["context_side"] == encoded["_history"] == len(rows)
    assert encoded["audience_side"] == encoded["_audience"] == len(log.items) + changes
    assert changes <= inside.sum()
    assert encoded["audience_side"] <= (split.mask("test") & (log.label == 1)).sum() + len(log.items)
