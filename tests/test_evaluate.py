"""Ranks against a naive loop, metrics by hand and by another library, weights, segments, and what is stored
of an evaluation."""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import unskew
from unskew.data.batch import Batch
from unskew.data.held_out import HeldOut, held_out
from unskew.data.views import PAD
from unskew.evaluate import (
    CUTOFFS,
    Evaluation,
    Ranked,
    beyond_accuracy,
    evaluation,
    hit,
    mrr,
    ndcg,
    popularity_decile,
    rank,
)
from unskew.models.deps import DEPS

ITEMS = 60


class Scores:
    """A score for every (user, item), or for every (context, item), from a table made in advance."""

    history = 3

    def __init__(self, split: unskew.Split, rounded: int | None = None, by_time: bool = False) -> None:
        random, log = np.random.default_rng(5), split.log
        moments = int(log.time.max()) + 1 if by_time else 1
        self.table = random.standard_normal((moments, len(log.users), len(log.items))).astype(np.float32)
        if rounded is not None:
            self.table = self.table.round(rounded)  # many ties
        self.by_time = by_time

    def catalog(self, log: unskew.Log, first: int, last: int) -> "Scores":
        self.period = first, last
        return self

    def scores(self, context: Batch) -> Tensor:
        times = context.times_B.numpy()
        assert self.period[0] <= times.min() <= times.max() <= self.period[1]
        assert (np.diff(times) >= 0).all()
        assert context.history_BL.shape[1] <= self.history
        return torch.from_numpy(self.table[times if self.by_time else 0 * times, context.user_B.numpy()])


class Same(Scores):
    """One number for everything."""

    def __init__(self, split: unskew.Split, number: float) -> None:
        self.items, self.number = len(split.log.items), number

    def scores(self, context: Batch) -> Tensor:
        return torch.full((len(context.user_B), self.items), self.number)


@pytest.fixture(scope="module", params=["keep", "hide"])
def split(request: pytest.FixtureRequest) -> unskew.Split:
    """Some sixty items, some of them new in the test part; ties in time; users who meet an item twice. With
    and without repeats."""
    random = np.random.default_rng(3)
    time = random.integers(0, 200, 1500)
    item = ((20 + (ITEMS - 20) * time / 200) * random.random(1500) ** 1.5).astype(
        int
    )  # the range grows with time
    table = {
        "user": random.integers(0, 30, 1500),
        "item": item,
        "time": time,
        "label": (random.random(1500) < 0.7).astype(int),
    }
    made = unskew.split(unskew.read(table), shares=(30, 20, 50), repeats=request.param)
    assert made.known_items < len(made.log.items)
    return made


@pytest.fixture(scope="module")
def wide() -> unskew.Split:
    """So many items that nobody has more than a few of them."""
    random = np.random.default_rng(4)
    table = {
        "user": random.integers(0, 150, 6000),
        "item": random.integers(0, 400, 6000),
        "time": random.integers(0, 900, 6000),
    }
    return unskew.split(unskew.read(table), shares=(40, 20, 40))


def candidates(split: unskew.Split, row: int) -> set[int]:
    """From the rows themselves: what somebody had before and, unless repeats are kept, the user had not."""
    log, user, time = split.log, split.log.user[row], split.log.time[row]
    exists = set(log.item[(log.time < time) & (log.label == 1)].tolist())
    own = set(log.item[(log.user == user) & (log.label == 1) & (log.time < time)].tolist())
    return exists if split.repeats else exists - own


def as_prefixes(split: unskew.Split, test: str = "ordinary") -> HeldOut:
    return held_out(split, "test", test)


def naive_rank(scores: dict[int, float], target: int) -> float:
    better = sum(score > scores[target] for score in scores.values())
    equal = sum(score == scores[target] for item, score in scores.items() if item != target)
    return 1 + better + equal / 2


# Metrics


def test_metrics_by_hand() -> None:
    ranks = np.array([1, 2, 5, 5.5, 10, 10.5, 21])
    np.testing.assert_allclose(ndcg(ranks, 5), [1, 1 / math.log2(3), 1 / math.log2(6), 0, 0, 0, 0])
    np.testing.assert_allclose(ndcg(ranks, 10)[3:5], [1 / math.log2(6.5), 1 / math.log2(11)])
    np.testing.assert_allclose(hit(ranks, 10), [1, 1, 1, 1, 1, 0, 0])
    np.testing.assert_allclose(mrr(ranks, 20), [1, 1 / 2, 1 / 5, 1 / 5.5, 1 / 10, 1 / 10.5, 0])


def test_another_library_agrees(split: unskew.Split) -> None:
    """torchmetrics, given each row's scores and not our ranks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        retrieval = pytest.importorskip("torchmetrics.functional.retrieval")
    log, scorer = split.log, Scores(split)
    rows = held_out(split, "test", "ordinary").rows[::5]
    found = evaluation(split, rank(scorer, split, rows), "full", as_prefixes(split))
    theirs = {
        "ndcg": retrieval.retrieval_normalized_dcg,
        "hr": retrieval.retrieval_hit_rate,
        "mrr": retrieval.retrieval_reciprocal_rank,
    }
    met = 0
    for unit, row in enumerate(rows):
        items = sorted(candidates(split, row))
        scores = (
            torch.from_numpy(scorer.table[0, log.user[row], items]).double() + 100
        )  # it takes nothing below zero for a hit
        target = torch.tensor([item == log.item[row] for item in items])
        for cut in CUTOFFS:
            for name, function in theirs.items():
                expected = float(function(scores, target, top_k=min(cut, len(items))))
                assert found.values[f"{name}@{cut}"][unit] == pytest.approx(expected, abs=1e-6)
                met += expected > 0
    assert met > 100


# Ranks


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
    split = unskew.split(unskew.read(table), shares=(50, 0, 50), repeats="hide")
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
        assert set(evaluation(wide, found, protocol, as_prefixes(wide)).metrics().values()) == {0.0}


def test_scores_that_are_not_numbers_are_an_error_and_not_a_triumph(split: unskew.Split) -> None:
    with pytest.raises(unskew.UnskewError, match=r"not a number|not finite|nan"):
        rank(Same(split, math.nan), split, held_out(split, "test", "ordinary").rows)


def test_ranks_do_not_depend_on_the_block(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = held_out(split, "test", "ordinary").rows
    scorer = Scores(split)
    whole = rank(scorer, split, rows)
    monkeypatch.setattr("unskew.evaluate.BLOCK", 7)
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
    rows = as_prefixes(split).rows
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
    split = unskew.split(unskew.read(table), shares=(50, 0, 50))
    rows = held_out(split, "test", "ordinary").rows
    rows = rows[split.log.time[rows] < items - 1]  # before the last one there is at least another
    assert np.isfinite(rank(Scores(split), split, rows).negatives).all()


# Pooled by user, as the published tables


def recbole(scores: list[float], positive: list[bool], cut: int) -> tuple[float, float, float]:
    """One list per user, sorted: gain of the hits over the gain of as many hits in front; any hit; the first
    hit."""
    order = np.argsort(-np.array(scores))[:cut]
    hits = np.array(positive)[order]
    discount = 1 / np.log2(np.arange(2, cut + 2))
    best = discount[: min(sum(positive), cut)].sum()
    places = np.flatnonzero(hits)
    return (
        float(discount[: len(hits)][hits].sum() / best),
        float(hits.any()),
        1 / (places[0] + 1) if len(places) else 0.0,
    )


def test_pooling_by_user_is_what_recbole_does(split: unskew.Split) -> None:
    rows = held_out(split, "test", "ordinary").rows
    ranked = rank(Scores(split, by_time=True), split, rows)
    found = evaluation(split, ranked, "authors", as_prefixes(split))
    users = split.log.user[rows]
    assert found.user.tolist() == sorted(set(users.tolist()))
    assert found.protocol == "authors"
    for unit, user in enumerate(found.user):
        mine = np.flatnonzero(users == user)
        negatives = ranked.negatives[mine].ravel()
        negatives = negatives[np.isfinite(negatives)]
        # Two rows of a user at one moment may draw each other's item; a tie is the only thing left to chance.
        assert len(np.intersect1d(ranked.score[mine], negatives)) == 0 or len(
            set(split.log.time[rows[mine]])
        ) < len(mine)
        if len(np.intersect1d(ranked.score[mine], negatives)):
            continue
        pool = [*ranked.score[mine], *negatives]
        for cut in CUTOFFS:
            expected = recbole(pool, [True] * len(mine) + [False] * len(negatives), cut)
            assert [found.values[f"{name}@{cut}"][unit] for name in ("ndcg", "hr", "mrr")] == pytest.approx(
                expected
            )


def test_pooling_by_hand() -> None:
    """Two positives of one user, with two better negatives in all: places 1 and 4 of the list."""
    log = unskew.read({"user": [*"aabb"], "item": [*"pqrs"], "time": [1, 2, 3, 4]})
    split = unskew.split(log, shares=(50, 0, 50))
    rows = np.flatnonzero(log.user == 1)
    negatives = np.full((2, 100), -np.inf, np.float32)
    negatives[:, :2] = [[0.8, 0.1], [0.7, 0.2]]
    score, top = np.array([0.9, 0.5], np.float32), np.zeros((2, 4), np.int32)
    ranked = Ranked(rows, np.ones(2), np.ones(2), np.ones(2), np.zeros(2, int), score, negatives, top)
    found = evaluation(split, ranked, "authors", HeldOut("ordinary", rows, np.ones(2), {}))
    assert found.metrics()["ndcg@5"] == pytest.approx((1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3)))
    assert (found.metrics()["hr@5"], found.metrics()["mrr@5"]) == (1, 1)


# What an evaluation says


def test_an_evaluation_of_each_protocol(split: unskew.Split) -> None:
    rows = held_out(split, "test", "ordinary").rows
    ranked = rank(Scores(split), split, rows)
    full, uniform = (
        evaluation(split, ranked, protocol, as_prefixes(split)) for protocol in ("full", "uni100")
    )
    np.testing.assert_array_equal(full.values["ndcg@10"], ndcg(ranked.full, 10))
    np.testing.assert_array_equal(uniform.values["mrr@20"], mrr(ranked.uniform, 20))
    known = (split.log.item[rows] < split.known_items) & (split.log.user[rows] < split.known_users)
    assert 0 < known.sum() < len(rows)
    said = full.as_dict()
    assert (said["protocol"], said["test"], said["units"], said["effective_sample_size"]) == (
        "full",
        "ordinary",
        len(rows),
        len(rows),
    )
    assert said["repeats"] == ("kept as candidates" if split.repeats else "hidden")
    assert said["left_out"] == as_prefixes(split).left_out
    group = said["segments"]["user and item"]["both known"]
    assert group["units"] == known.sum()
    assert group["hr@20"] == pytest.approx(hit(ranked.full, 20)[known].mean())
    assert set(said["metrics"]) == {f"{name}@{cut}" for name in ("ndcg", "hr", "mrr") for cut in (5, 10, 20)}
    assert full.beyond == beyond_accuracy(split, ranked.top[:, :10])
    assert not uniform.beyond
    np.testing.assert_array_equal(full.rows, rows)
    np.testing.assert_array_equal(uniform.rows, rows)
    assert evaluation(split, ranked, "authors", as_prefixes(split)).rows is None


def test_beyond_accuracy_by_hand() -> None:
    # Training counts: p 3, q 2, r 1, s 1, t 1; u and v are born later, and w is not known either.
    table = {
        "user": [*"abcabaab", *"abc"],
        "item": [*"pppqqrst", *"uvw"],
        "time": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    }
    split = unskew.split(unskew.read(table), shares=(8, 0, 3))
    code = {name: place for place, name in enumerate(split.log.items.ids.to_pylist())}
    assert split.item_counts.tolist() == [3, 2, 1, 1, 1, 0, 0, 0]
    lists = np.array([[code[name] for name in names] for names in ("pq", "pu", "pr")], np.int32)
    found = beyond_accuracy(split, lists)
    assert found["coverage@10"] == 4 / 8
    assert found["popularity@10"] == pytest.approx((3 + 2 + 3 + 0 + 3 + 1) / 6)
    assert found["long_tail@10"] == 3 / 6  # the head is a fifth of five known items: p
    shown = np.array([0, 0, 0, 0, 1, 1, 1, 3])
    differences = np.abs(shown[:, None] - shown).sum()
    assert found["gini@10"] == pytest.approx(differences / (2 * 8 * shown.sum()))
    wider = beyond_accuracy(split, lists, head=0.4)
    assert wider["long_tail@10"] == 2 / 6  # p and q


def test_what_a_user_has_is_not_recommended_in_a_tiny_catalogue() -> None:
    """With fewer items left than places in a list, what is masked must not fill it."""
    table = {"user": [*"aaabbc", *"dbc"], "item": [*"pqrpqp", *"prq"], "time": [1, 2, 3, 4, 5, 6, 7, 8, 9]}
    split = unskew.split(unskew.read(table), shares=(6, 0, 3))
    rows = held_out(split, "test", "ordinary").rows
    ranked = rank(Scores(split, None), split, rows)
    assert ranked.top.shape == (3, 3)
    code = {name: place for place, name in enumerate(split.log.items.ids.to_pylist())}
    lists = [[item for item in row if item != PAD] for row in ranked.top.tolist()]
    # d has nothing; b has p and q; c has p.
    assert [set(row) for row in lists] == [
        {code["p"], code["q"], code["r"]},
        {code["r"]},
        {code["q"], code["r"]},
    ]
    assert all(
        (row != PAD).tolist() == [place < len(kept) for place in range(3)]
        for row, kept in zip(ranked.top, lists, strict=True)
    )
    found = evaluation(split, ranked, "full", as_prefixes(split)).beyond
    counts = {"p": 3, "q": 2, "r": 1}
    assert found["popularity@10"] == pytest.approx(sum(counts[name] for name in "pqrrqr") / 6)
    assert found["coverage@10"] == 1.0
    assert found["long_tail@10"] == 5 / 6  # the head is p


# Weights and segments


def test_a_figure_is_a_weighted_mean(split: unskew.Split) -> None:
    tested = as_prefixes(split, "balanced")
    ranked = rank(Scores(split), split, tested.rows)
    found = evaluation(split, ranked, "full", tested)
    per_item: dict[int, list[float]] = {}
    for row, value in zip(tested.rows, ndcg(ranked.full, 10), strict=True):
        per_item.setdefault(int(split.log.item[row]), []).append(value)
    assert found.mean("ndcg@10") == pytest.approx(
        np.mean([np.mean(values) for values in per_item.values()])
    )  # every item counts once
    ordinary = evaluation(split, ranked, "full", as_prefixes(split))
    assert ordinary.mean("ndcg@10") == pytest.approx(ndcg(ranked.full, 10).mean())
    assert found.effective_sample_size < ordinary.effective_sample_size == len(tested.rows)
    assert sum(group["share"] for group in found.by_segment()["item"].values()) == pytest.approx(1)


def test_weights_come_from_the_whole_part_also_where_a_sample_is_ranked(split: unskew.Split) -> None:
    tested, sampled = as_prefixes(split, "balanced"), held_out(split, "test", "balanced", 50)
    weight = dict(zip(tested.rows.tolist(), tested.weights, strict=True))
    assert [weight[row] for row in sampled.rows.tolist()] == sampled.weights.tolist()
    found = evaluation(split, rank(Scores(split), split, sampled.rows), "full", tested)
    np.testing.assert_array_equal(found.weights, sampled.weights)


def test_pooled_rows_have_no_weights(split: unskew.Split) -> None:
    ranked = rank(Scores(split), split, as_prefixes(split).rows)
    with pytest.raises(unskew.BadInput, match="pools the rows of a user"):
        evaluation(split, ranked, "authors", as_prefixes(split, "balanced"))


def shown_together() -> unskew.Split:
    """Visits with one or two clicks and some that were shown and passed over; all items are known from the
    beginning."""
    random, rows = np.random.default_rng(8), []
    rows += [(f"u{item}", f"i{item}", 0, 1, -1 - item) for item in range(12)]
    for visit in range(1, 80):
        items, user = random.permutation(12)[:5], f"u{random.integers(0, 12)}"
        clicks = random.integers(0, 3)
        rows += [(user, f"i{item}", visit, int(place < clicks), visit) for place, item in enumerate(items)]
    names = ("user", "item", "time", "label", "visit")
    return unskew.split(
        unskew.read(dict(zip(names, zip(*rows, strict=True), strict=True))),
        shares=(30, 20, 50),
        repeats="keep",
    )


def test_what_a_visit_showed_is_ranked_by_a_naive_loop() -> None:
    split = shown_together()
    log, tested, scorer = split.log, as_prefixes(split, "shown"), Scores(split, rounded=0)
    assert len(tested.rows) > 20
    found = evaluation(split, rank(scorer, split, tested.rows), "full", tested)
    for unit, row in enumerate(found.rows):
        passed = np.flatnonzero((log.visit == log.visit[row]) & (log.label == 0))
        mine, theirs = (
            scorer.table[0, log.user[row], log.item[row]],
            scorer.table[0, log.user[row], log.item[passed]],
        )
        place = 1 + (theirs > mine).sum() + (theirs == mine).sum() / 2
        assert found.values["auc"][unit] == pytest.approx(1 - (place - 1) / len(passed))
        assert found.values["ndcg@5"][unit] == pytest.approx(1 / math.log2(place + 1) if place <= 5 else 0)
    assert evaluation(split, rank(Same(split, 1.0), split, tested.rows), "full", tested).mean("auc") == 0.5
    with pytest.raises(unskew.BadInput, match="does not apply"):
        evaluation(split, rank(scorer, split, tested.rows), "uni100", tested)


def test_segments_by_hand(split: unskew.Split) -> None:
    log, tested = split.log, as_prefixes(split)
    found = evaluation(split, rank(Scores(split), split, tested.rows), "full", tested).segments
    for unit, row in enumerate(tested.rows):
        user, item, time = log.user[row], log.item[row], log.time[row]
        past = int(((log.user == user) & (log.label == 1) & (log.time < time)).sum())
        length = "0" if past == 0 else "1-4" if past < 5 else "5-19" if past < 20 else "20+"
        assert found["history length"].names[found["history length"].of[unit]] == length
        seen = [
            int(((ids == code) & (log.label == 1) & (log.time < split.train_end)).sum())
            for ids, code in ((log.user, user), (log.item, item))
        ]
        assert found["user"].names[found["user"].of[unit]] == ("known" if seen[0] else "new")
        assert found["item"].names[found["item"].of[unit]] == ("known" if seen[1] else "new")
        counts = np.bincount(log.item[(log.label == 1) & (log.time < time)], minlength=len(log.items))
        counts = counts[counts > 0]
        mine = ((log.item == item) & (log.label == 1) & (log.time < time)).sum()
        ahead = (counts > mine).sum() + ((counts == mine).sum() - 1) / 2
        assert int(found["popularity decile"].names[found["popularity decile"].of[unit]]) == 1 + int(
            10 * ahead / len(counts)
        )
    assert len(set(found["popularity decile"].of.tolist())) > 5
    np.testing.assert_array_equal(
        popularity_decile(log, log.item[tested.rows], log.time[tested.rows]), found["popularity decile"].of
    )


def test_cutoffs_are_a_setting(split: unskew.Split) -> None:
    tested = as_prefixes(split)
    ranked = rank(Scores(split), split, tested.rows, longest=33)
    assert ranked.top.shape[1] == 33
    found = evaluation(split, ranked, "full", tested, cutoffs=(1, 33))
    assert set(found.values) == {f"{name}@{cut}" for name in ("ndcg", "hr", "mrr") for cut in (1, 33)}
    np.testing.assert_array_equal(found.values["hr@33"], ranked.full <= 33)


def test_stored_and_read_again(split: unskew.Split, tmp_path: Path) -> None:
    tested = as_prefixes(split, "balanced")
    found = evaluation(split, rank(Scores(split), split, tested.rows), "full", tested)
    found.about["model"] = "planted"
    found.save(tmp_path / "new" / "rows.parquet")
    again = Evaluation.load(tmp_path / "new" / "rows.parquet")
    assert again.as_dict() == found.as_dict()
    assert again.about["model"] == "planted"
    np.testing.assert_array_equal(again.rows, found.rows)
    table = pq.read_table(tmp_path / "new" / "rows.parquet")
    assert table["item_id"].to_pylist() == split.log.items.of(split.log.item[tested.rows]).to_pylist()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["rows.parquet"]
    with pytest.raises(unskew.BadInput, match="exists already"):
        found.save(tmp_path / "new" / "rows.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name in ("other.parquet", "missing.parquet"):
        with pytest.raises(unskew.BadInput, match="not a saved evaluation"):
            Evaluation.load(tmp_path / name)


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
    model = DEPS(split, DEPS.Config(width=8, layers=1, inner=8, hidden=8)).eval()
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
