"""Ranks against a naive loop, metrics by hand and by another library, and comparisons that refuse what cannot be compared."""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from unskew.data.batches import Batch
from unskew.data.views import PAD
from unskew.evaluate import (
    CUTS,
    Evaluation,
    Ranked,
    beyond_accuracy,
    compare,
    evaluation,
    hit,
    holm,
    interval,
    ips,
    mrr,
    ndcg,
    paired_t,
    positives,
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


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    """Some sixty items, some of them born in the test part; ties in time; users who meet an item twice."""
    random = np.random.default_rng(3)
    time = random.integers(0, 200, 1500)
    item = ((20 + (ITEMS - 20) * time / 200) * random.random(1500) ** 1.5).astype(int)  # the range grows with time
    table = {"user": random.integers(0, 30, 1500), "item": item, "time": time, "label": (random.random(1500) < 0.7).astype(int)}
    made = unskew.split(unskew.read(table), shares=(30, 20, 50))
    assert made.known_items < len(made.log.items)
    return made


@pytest.fixture(scope="module")
def wide() -> unskew.Split:
    """So many items that nobody has more than a few of them."""
    random = np.random.default_rng(4)
    table = {"user": random.integers(0, 150, 6000), "item": random.integers(0, 400, 6000), "time": random.integers(0, 900, 6000)}
    return unskew.split(unskew.read(table), shares=(40, 20, 40))


def eligible(log: unskew.Log, row: int) -> set[int]:
    """From the rows themselves: what existed before, without what the user met before, and with the target."""
    user, item, time = log.user[row], int(log.item[row]), log.time[row]
    exists = set(log.item[log.time < time].tolist())
    own = set(log.item[(log.user == user) & (log.label == 1) & (log.time < time)].tolist())
    return (exists - own) | {item}


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
    rows = positives(split, "test", "ordinary")[::5]
    found = evaluation(split, rank(scorer, split, rows), "full", "ordinary")
    theirs = {
        "ndcg": retrieval.retrieval_normalized_dcg,
        "hr": retrieval.retrieval_hit_rate,
        "mrr": retrieval.retrieval_reciprocal_rank,
    }
    met = 0
    for unit, row in enumerate(rows):
        items = sorted(eligible(log, row))
        scores = torch.from_numpy(scorer.table[0, log.user[row], items]).double() + 100  # it takes nothing below zero for a hit
        target = torch.tensor([item == log.item[row] for item in items])
        for cut in CUTS:
            for name, function in theirs.items():
                expected = float(function(scores, target, top_k=min(cut, len(items))))
                assert found.values[f"{name}@{cut}"][unit] == pytest.approx(expected, abs=1e-6)
                met += expected > 0
    assert met > 100


# Ranks


@pytest.mark.parametrize("rounded", [None, 0])
def test_ranks_are_those_of_a_naive_loop(split: unskew.Split, rounded: int | None) -> None:
    log, scorer = split.log, Scores(split, rounded)
    rows = positives(split, "test", "ordinary")
    ranked = rank(scorer, split, rows)
    seen_before, born_then, born_later = 0, 0, 0
    for unit, row in enumerate(rows):
        user, target, time = int(log.user[row]), int(log.item[row]), log.time[row]
        scores = {item: float(scorer.table[0, user, item]) for item in eligible(log, row)}
        assert ranked.full[unit] == naive_rank(scores, target)
        assert ranked.score[unit] == np.float32(scores[target])
        top = ranked.top[unit].tolist()
        best = sorted(scores.values(), reverse=True)[: len(top)]
        assert [float(scorer.table[0, user, item]) for item in top[: len(best)]] == best
        assert set(top[: len(best)]) <= set(scores)
        own = log.item[(log.user == user) & (log.label == 1) & (log.time < time)]
        seen_before += target in own
        first = log.births[1]
        born_then += bool((first == time).any())  # no competitor either: it alone would have nobody before it
        born_later += bool((first > time).any())
    assert seen_before > 20  # each of the three cases did occur
    assert born_then > 0
    assert born_later > 20


def test_what_is_born_at_the_moment_or_later_does_not_count() -> None:
    table = {"user": [*"ababacbc"], "item": [*"pqpqrsrt"], "time": [1, 1, 2, 2, 5, 5, 6, 6]}
    split = unskew.split(unskew.read(table), shares=(50, 0, 50))
    log, scorer = split.log, Scores(split)
    names = log.items.ids.to_pylist()
    scorer.table[0] = [[{"p": 1, "q": 2, "r": 0, "s": 3, "t": 9}[name] for name in names]] * 3
    rows = positives(split, "test", "ordinary")
    assert [(log.users.ids[int(log.user[row])].as_py(), names[log.item[row]]) for row in rows] == [("b", "r")]  # r, s, t are born then
    assert rank(scorer, split, rows).full.tolist() == [3]  # below p and s; q is b's own, and t, the best of all, is born now


def test_ties_share_the_mean_rank_and_a_constant_earns_nothing(split: unskew.Split, wide: unskew.Split) -> None:
    for some in (split, wide):
        rows = positives(some, "test", "ordinary")[::3]
        found = rank(Same(some, 0.5), some, rows)
        sizes = np.array([len(eligible(some.log, row)) for row in rows])
        np.testing.assert_array_equal(found.full, (sizes + 1) / 2)
    assert sizes.min() > 200
    np.testing.assert_array_equal(found.uniform, np.full(len(rows), 51.0))  # in the middle of 101
    for protocol in ("full", "uni100", "authors"):
        assert set(evaluation(wide, found, protocol, "ordinary").metrics().values()) == {0.0}


def test_scores_that_are_not_numbers_are_an_error_and_not_a_triumph(split: unskew.Split) -> None:
    with pytest.raises(unskew.UnskewError, match=r"not a number|not finite|nan"):
        rank(Same(split, math.nan), split, positives(split, "test", "ordinary"))


def test_ranks_do_not_depend_on_the_block(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = positives(split, "test", "ordinary")
    scorer = Scores(split)
    whole = rank(scorer, split, rows)
    monkeypatch.setattr("unskew.evaluate.BLOCK", 7)
    parts = rank(scorer, split, rows)
    for field in dataclasses.fields(Ranked):
        np.testing.assert_array_equal(getattr(whole, field.name), getattr(parts, field.name))


def test_nothing_to_rank_is_said(split: unskew.Split) -> None:
    with pytest.raises(unskew.BadInput, match="nothing to rank"):
        rank(Scores(split), split, np.zeros(0, np.int64))


def test_positives_are_positive_in_time_and_sampled_by_seed(split: unskew.Split) -> None:
    log = split.log
    rows = positives(split, "test", "ordinary")
    assert sorted(rows) == [
        row
        for row in range(len(log))
        if log.label[row] == 1 and log.time[row] >= split.valid_end and (log.time[log.item == log.item[row]] < log.time[row]).any()
    ]
    assert (np.diff(log.time[rows]) >= 0).all()
    some, again, other = (positives(split, "test", "ordinary", 50, seed) for seed in (1, 1, 2))
    assert len(set(some.tolist())) == 50
    assert set(some.tolist()) <= set(rows.tolist())
    assert (np.diff(log.time[some]) >= 0).all()
    np.testing.assert_array_equal(some, again)
    assert set(some.tolist()) != set(other.tolist())
    np.testing.assert_array_equal(positives(split, "test", "ordinary", len(rows)), rows)
    assert set(positives(split, "valid", "resampled").tolist()) < set(positives(split, "valid", "ordinary").tolist())


# A hundred drawn ones


class ByCode(Scores):
    """The score of an item is its code, so a score tells which item it is."""

    def scores(self, context: Batch) -> Tensor:
        return torch.arange(float(self.table.shape[2])).repeat(len(context.user_B), 1)


def test_a_hundred_existing_others_are_drawn(wide: unskew.Split) -> None:
    rows = positives(wide, "test", "ordinary")[::4]
    ranked = rank(ByCode(wide), wide, rows)
    assert ranked.negatives.shape == (len(rows), 100)
    assert np.isfinite(ranked.negatives).all()
    drawn = np.zeros(len(wide.log.items))
    expected = np.zeros(len(wide.log.items))
    for unit, row in enumerate(rows):
        target, negatives = int(wide.log.item[row]), ranked.negatives[unit].astype(int)
        others = eligible(wide.log, row) - {target}
        assert set(negatives.tolist()) <= others  # never the target, never the user's own, never unborn
        assert ranked.uniform[unit] == 1 + (negatives > target).sum()
        np.add.at(drawn, negatives, 1)
        expected[sorted(others)] += 100 / len(others)
    assert np.abs((drawn - expected) / np.sqrt(expected)).max() < 5  # uniformly


def test_the_hundred_are_seeded(wide: unskew.Split) -> None:
    rows = positives(wide, "test", "ordinary", 40)
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
    rows = positives(split, "test", "ordinary")
    rows = rows[split.log.time[rows] < items - 1]  # before the last one there is at least another
    assert np.isfinite(rank(Scores(split), split, rows).negatives).all()


# Pooled by user, as the published tables


def recbole(scores: list[float], positive: list[bool], cut: int) -> tuple[float, float, float]:
    """One list per user, sorted: gain of the hits over the gain of as many hits in front; any hit; the first hit."""
    order = np.argsort(-np.array(scores))[:cut]
    hits = np.array(positive)[order]
    discount = 1 / np.log2(np.arange(2, cut + 2))
    best = discount[: min(sum(positive), cut)].sum()
    places = np.flatnonzero(hits)
    return float(discount[: len(hits)][hits].sum() / best), float(hits.any()), 1 / (places[0] + 1) if len(places) else 0.0


def test_pooling_by_user_is_what_recbole_does(split: unskew.Split) -> None:
    rows = positives(split, "test", "ordinary")
    ranked = rank(Scores(split, by_time=True), split, rows)
    found = evaluation(split, ranked, "authors", "ordinary")
    users = split.log.user[rows]
    assert found.user.tolist() == sorted(set(users.tolist()))
    assert found.protocol == "authors"
    for unit, user in enumerate(found.user):
        mine = np.flatnonzero(users == user)
        negatives = ranked.negatives[mine].ravel()
        negatives = negatives[np.isfinite(negatives)]
        # Two rows of a user at one moment may draw each other's item; a tie is the only thing left to chance.
        assert len(np.intersect1d(ranked.score[mine], negatives)) == 0 or len(set(split.log.time[rows[mine]])) < len(mine)
        if len(np.intersect1d(ranked.score[mine], negatives)):
            continue
        pool = [*ranked.score[mine], *negatives]
        for cut in CUTS:
            expected = recbole(pool, [True] * len(mine) + [False] * len(negatives), cut)
            assert [found.values[f"{name}@{cut}"][unit] for name in ("ndcg", "hr", "mrr")] == pytest.approx(expected)
    known = [
        all(split.log.item[row] < split.known_items and split.log.user[row] < split.known_users for row in rows[users == user])
        for user in found.user
    ]
    assert found.known.tolist() == known
    assert found.mean("hr@10") > evaluation(split, ranked, "uni100", "ordinary").mean("hr@10")  # why the two are never compared


def test_pooling_by_hand() -> None:
    """Two positives of one user, with two better negatives in all: places 1 and 4 of the list."""
    log = unskew.read({"user": [*"aabb"], "item": [*"pqrs"], "time": [1, 2, 3, 4]})
    split = unskew.split(log, shares=(50, 0, 50))
    rows = np.flatnonzero(log.user == 1)
    negatives = np.full((2, 100), -np.inf, np.float32)
    negatives[:, :2] = [[0.8, 0.1], [0.7, 0.2]]
    ranked = Ranked(rows, np.ones(2), np.ones(2), np.array([0.9, 0.5], np.float32), negatives, np.zeros((2, 4), np.int32))
    found = evaluation(split, ranked, "authors", "ordinary")
    assert found.metrics()["ndcg@5"] == pytest.approx((1 + 1 / math.log2(5)) / (1 + 1 / math.log2(3)))
    assert (found.metrics()["hr@5"], found.metrics()["mrr@5"]) == (1, 1)


# What an evaluation says


def test_an_evaluation_of_each_protocol(split: unskew.Split) -> None:
    rows = positives(split, "test", "ordinary")
    ranked = rank(Scores(split), split, rows)
    full, uniform = (evaluation(split, ranked, protocol, "ordinary") for protocol in ("full", "uni100"))
    np.testing.assert_array_equal(full.values["ndcg@10"], ndcg(ranked.full, 10))
    np.testing.assert_array_equal(uniform.values["mrr@20"], mrr(ranked.uniform, 20))
    known = (split.log.item[rows] < split.known_items) & (split.log.user[rows] < split.known_users)
    assert 0 < known.sum() < len(rows)
    np.testing.assert_array_equal(full.known, known)
    assert full.metrics_of_known()["hr@20"] == pytest.approx(hit(ranked.full, 20)[known].mean())
    said = full.as_dict()
    assert (said["protocol"], said["test"], said["units"], said["known_units"]) == ("full", "ordinary", len(rows), known.sum())
    assert set(said["metrics"]) == {f"{name}@{cut}" for name in ("ndcg", "hr", "mrr") for cut in (5, 10, 20)}
    assert full.beyond == beyond_accuracy(split, ranked.top[:, :10])
    assert not uniform.beyond
    np.testing.assert_array_equal(full.rows, rows)
    np.testing.assert_array_equal(uniform.rows, rows)
    assert evaluation(split, ranked, "authors", "ordinary").rows is None


def test_beyond_accuracy_by_hand() -> None:
    # Training counts: p 3, q 2, r 1, s 1, t 1; u and v are born later, and w is not known either.
    table = {"user": [*"abcabaab", *"abc"], "item": [*"pppqqrst", *"uvw"], "time": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}
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
    table = {"user": [*"aaabbc", *"abc"], "item": [*"pqrpqp", *"prq"], "time": [1, 2, 3, 4, 5, 6, 7, 8, 9]}
    split = unskew.split(unskew.read(table), shares=(6, 0, 3))
    rows = positives(split, "test", "ordinary")
    ranked = rank(Scores(split, None), split, rows)
    assert ranked.top.shape == (3, 3)
    code = {name: place for place, name in enumerate(split.log.items.ids.to_pylist())}
    lists = [[item for item in row if item != PAD] for row in ranked.top.tolist()]
    # a has all three, and p is the target; b has p and q; c has p.
    assert [set(row) for row in lists] == [{code["p"]}, {code["r"]}, {code["q"], code["r"]}]
    assert all((row == PAD).argmax() == len(kept) for row, kept in zip(ranked.top, lists, strict=True))
    found = evaluation(split, ranked, "full", "ordinary").beyond
    counts = {"p": 3, "q": 2, "r": 1}
    assert found["popularity@10"] == pytest.approx(sum(counts[name] for name in "prqr") / 4)
    assert found["coverage@10"] == 1.0
    assert found["long_tail@10"] == 3 / 4  # the head is p


def test_inverse_propensity_by_hand() -> None:
    found = ips(np.array([1.0, 0.0, 1.0]), np.array([0.5, 0.25, 1.0]))
    assert found == pytest.approx({"ips": 1.0, "snips": 3 / 7, "effective_sample_size": 49 / 21})
    equal = ips(np.array([1.0, 0.0, 1.0, 0.0]), np.full(4, 1.0))
    assert equal == pytest.approx({"ips": 0.5, "snips": 0.5, "effective_sample_size": 4})


def test_inverse_propensities_undo_exposure() -> None:
    random = np.random.default_rng(0)
    truth, shown = random.random(200_000), random.uniform(0.05, 1, 200_000)
    truth = truth * shown  # what is shown more is better, so the naive mean is too high
    seen = random.random(len(truth)) < shown
    found = ips(truth[seen], shown[seen])
    assert truth[seen].mean() > 1.2 * truth.mean()
    assert found["snips"] == pytest.approx(truth.mean(), rel=0.02)
    assert found["ips"] * seen.mean() == pytest.approx(truth.mean(), rel=0.02)


def test_a_sample_of_less_than_nothing(split: unskew.Split) -> None:
    assert len(positives(split, "test", "ordinary", 7)) == 7
    with pytest.raises(unskew.BadInput, match="sample -1: expected at least 0"):
        positives(split, "test", "ordinary", -1)


# What it costs


def test_a_whole_test_encodes_nothing_twice(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    """One history per context, and an audience per item and per event that changes one: N + I, where pairs would be N x I."""
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
    rows = positives(split, "test", "ordinary")
    rank(model, split, rows)
    log = split.log
    inside = log.audiences.times >= log.time[rows].min()
    changes = len(
        set(zip(np.repeat(np.arange(len(log.items)), np.diff(log.audiences.offsets))[inside], log.audiences.times[inside], strict=True))
    )
    assert encoded["context_side"] == encoded["_history"] == len(rows)
    assert encoded["audience_side"] == encoded["_audience"] == len(log.items) + changes
    assert changes <= inside.sum()
    assert encoded["audience_side"] <= (split.mask("test") & (log.label == 1)).sum() + len(log.items)


# Comparing two models


def evaluated(values: Any, user: Any = None, **more: Any) -> Evaluation:
    values = np.asarray(values, float)
    parts = {"protocol": "full", "test": "ordinary", "user": np.arange(len(values)) if user is None else np.asarray(user)} | more
    return Evaluation(values={"ndcg@10": values}, known=np.ones(len(values), bool), **parts)


def test_what_cannot_be_compared() -> None:
    one = evaluated([0.1, 0.2, 0.3])
    for other in (
        evaluated([0.1, 0.2, 0.3], protocol="uni100"),
        evaluated([0.1, 0.2, 0.3], protocol="authors"),
        evaluated([0.1, 0.2, 0.3], test="resampled"),
    ):
        with pytest.raises(unskew.BadInput, match="cannot be compared"):
            compare(one, other)
    one = evaluated([0.1, 0.2, 0.3], rows=np.array([4, 5, 6]))
    same = evaluated([0.1, 0.2, 0.3], rows=np.array([4, 5, 6]))
    assert compare(one, same).difference == 0
    for other in (
        evaluated([0.1, 0.2]),
        evaluated([0.1, 0.2, 0.3], user=[0, 2, 1], rows=one.rows),
        evaluated([0.1, 0.2, 0.3], rows=np.array([4, 5, 7])),  # the same users, and another row of one of them
        evaluated([0.1, 0.2, 0.3]),
    ):
        with pytest.raises(unskew.BadInput, match="not of the same rows"):
            compare(one, other)


def test_the_same_model_twice_is_no_difference() -> None:
    one = evaluated(np.random.default_rng(0).random(50))
    found = compare(one, one, draws=200)
    assert (found.difference, found.low, found.high, found.p_bootstrap, found.p_t) == (0, 0, 0, 1, 1)


def synthetic(seed: int, truth: float, users: int = 60) -> tuple[Evaluation, Evaluation]:
    """Users differ in how much they gain, and a user's rows are alike: rows are not independent, users are."""
    random = np.random.default_rng(seed)
    user = np.repeat(np.arange(users), random.integers(1, 12, users))
    base = random.random(len(user))
    gain = truth + 0.1 * random.standard_normal(users)[user] + 0.01 * random.standard_normal(len(user))
    return evaluated(base + gain, user), evaluated(base, user)


def test_the_interval_covers_the_truth() -> None:
    truth, trials = 0.03, 150
    found = [compare(*synthetic(seed, truth), draws=300, seed=seed) for seed in range(trials)]
    covered = sum(one.low <= truth <= one.high for one in found) / trials
    assert 0.88 <= covered <= 0.99  # of rows instead of users, it would be about 60 %
    assert np.mean([one.difference for one in found]) == pytest.approx(truth, abs=0.01)


def test_a_clear_difference_has_a_small_p_and_none_has_not() -> None:
    clear = compare(*synthetic(0, 0.2))
    assert clear.p_bootstrap < 0.002
    assert clear.p_t < 1e-6
    assert clear.low > 0.1
    one, other = synthetic(0, 0.2)
    turned = compare(other, one)
    assert turned.difference == -clear.difference
    assert turned.p_bootstrap < 0.002
    assert (turned.low, turned.high) == pytest.approx((-clear.high, -clear.low))
    assert np.mean([compare(*synthetic(seed, 0.0), draws=200).p_bootstrap < 0.05 for seed in range(60)]) < 0.15


def test_comparisons_are_seeded() -> None:
    pair = synthetic(1, 0.02)
    assert compare(*pair, draws=100, seed=1) == compare(*pair, draws=100, seed=1)
    assert compare(*pair, draws=100, seed=1) != compare(*pair, draws=100, seed=2)


def test_the_interval_of_one_mean() -> None:
    values = np.random.default_rng(3).random(400)
    low, high = interval(evaluated(values), "ndcg@10")
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.15 * half)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [
        (12.706, 1, 0.05),
        (4.303, 2, 0.05),
        (2.776, 4, 0.05),
        (2.228, 10, 0.05),
        (3.169, 10, 0.01),
        (1.812, 10, 0.10),
        (4.587, 10, 0.001),
        (2.042, 30, 0.05),
        (1.984, 100, 0.05),
        (0.677, 100, 0.50),
        (1.960, 200_000, 0.05),
    ],
)
def test_students_table(t: float, freedom: int, p: float) -> None:
    size = freedom + 1
    spread = np.random.default_rng(0).standard_normal(size)
    spread = (spread - spread.mean()) / spread.std(ddof=1)
    for sign in (1, -1):
        assert paired_t(spread + sign * t / math.sqrt(size)) == pytest.approx(p, rel=3e-3)


def test_students_ends() -> None:
    assert paired_t(np.zeros(5)) == 1
    assert paired_t(np.full(5, 0.5)) == 0
    assert paired_t(np.array([1.0, -1.0])) == pytest.approx(1)
    assert paired_t(np.array([0.3])) == 1  # of one unit nothing is known


def test_holm_by_hand() -> None:
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert found == pytest.approx({"d": 0.02, "a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({"only": 0.04}) == {"only": 0.04}
    assert holm({}) == {}
