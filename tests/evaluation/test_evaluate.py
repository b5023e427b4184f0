"""What an evaluation says: protocols, weights, segments, and what is stored of it."""

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.scorers import Same, Scores, growing_split, whole_test
from unskew.data.log.held_out import HeldOut, held_out
from unskew.evaluation.evaluate import CUTOFFS, Evaluation, Ranked, evaluation, rank
from unskew.evaluation.metrics import METRICS, beyond_accuracy, hit, mrr, ndcg
from unskew.evaluation.segments import popularity_decile


@pytest.fixture(scope="module", params=["keep", "hide"])
def split(request: pytest.FixtureRequest) -> unskew.Split:
    """With and without repeats among the candidates."""
    return growing_split(request.param)


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
    found = evaluation(split, ranked, "authors", whole_test(split))
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
    split = unskew.split(log, fractions=(50, 0, 50))
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
        evaluation(split, ranked, protocol, whole_test(split)) for protocol in ("full", "uni100")
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
    assert said["left_out"] == whole_test(split).left_out
    group = said["segments"]["user and item"]["both known"]
    assert group["units"] == known.sum()
    assert group["hr@20"] == pytest.approx(hit(ranked.full, 20)[known].mean())
    assert set(said["metrics"]) == {f"{name}@{cut}" for name in METRICS for cut in (5, 10, 20)}
    assert full.beyond == beyond_accuracy(split, ranked.top[:, :10])
    assert not uniform.beyond
    np.testing.assert_array_equal(full.rows, rows)
    np.testing.assert_array_equal(uniform.rows, rows)
    assert evaluation(split, ranked, "authors", whole_test(split)).rows is None


# Weights and segments


def test_a_figure_is_a_weighted_mean(split: unskew.Split) -> None:
    tested = whole_test(split, "balanced")
    ranked = rank(Scores(split), split, tested.rows)
    found = evaluation(split, ranked, "full", tested)
    per_item: dict[int, list[float]] = {}
    for row, value in zip(tested.rows, ndcg(ranked.full, 10), strict=True):
        per_item.setdefault(int(split.log.item[row]), []).append(value)
    assert found.mean("ndcg@10") == pytest.approx(
        np.mean([np.mean(values) for values in per_item.values()])
    )  # every item counts once
    ordinary = evaluation(split, ranked, "full", whole_test(split))
    assert ordinary.mean("ndcg@10") == pytest.approx(ndcg(ranked.full, 10).mean())
    assert found.effective_sample_size < ordinary.effective_sample_size == len(tested.rows)
    assert sum(group["fraction"] for group in found.by_segment()["item"].values()) == pytest.approx(1)


def test_weights_come_from_the_whole_part_also_where_a_sample_is_ranked(split: unskew.Split) -> None:
    tested, sampled = whole_test(split, "balanced"), held_out(split, "test", "balanced", 50)
    weight = dict(zip(tested.rows.tolist(), tested.weights, strict=True))
    assert [weight[row] for row in sampled.rows.tolist()] == sampled.weights.tolist()
    found = evaluation(split, rank(Scores(split), split, sampled.rows), "full", tested)
    np.testing.assert_array_equal(found.weights, sampled.weights)


def test_pooled_rows_have_no_weights(split: unskew.Split) -> None:
    ranked = rank(Scores(split), split, whole_test(split).rows)
    with pytest.raises(unskew.BadInput, match="pools the rows of a user"):
        evaluation(split, ranked, "authors", whole_test(split, "balanced"))


def shown_together() -> unskew.Split:
    """Impressions with one or two clicks and some that were shown and passed over; all items are known from
    the beginning."""
    random, rows = np.random.default_rng(8), []
    rows += [(f"u{item}", f"i{item}", 0, 1, -1 - item) for item in range(12)]
    for impression in range(1, 80):
        items, user = random.permutation(12)[:5], f"u{random.integers(0, 12)}"
        clicks = random.integers(0, 3)
        rows += [
            (user, f"i{item}", impression, int(place < clicks), impression)
            for place, item in enumerate(items)
        ]
    names = ("user", "item", "time", "label", "impression_id")
    return unskew.split(
        unskew.read(dict(zip(names, zip(*rows, strict=True), strict=True))),
        fractions=(30, 20, 50),
        repeats="keep",
    )


def test_what_a_impression_showed_is_ranked_by_a_naive_loop() -> None:
    split = shown_together()
    log, tested, scorer = split.log, whole_test(split, "shown"), Scores(split, rounded=0)
    assert len(tested.rows) > 20
    found = evaluation(split, rank(scorer, split, tested.rows), "full", tested)
    for unit, row in enumerate(found.rows):
        passed = np.flatnonzero((log.impression_id == log.impression_id[row]) & (log.label == 0))
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
    log, tested = split.log, whole_test(split)
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
    tested = whole_test(split)
    ranked = rank(Scores(split), split, tested.rows, longest=33)
    assert ranked.top.shape[1] == 33
    found = evaluation(split, ranked, "full", tested, cutoffs=(1, 33))
    assert set(found.values) == {f"{name}@{cut}" for name in METRICS for cut in (1, 33)}
    np.testing.assert_array_equal(found.values["hr@33"], ranked.full <= 33)


def test_stored_and_read_again(split: unskew.Split, tmp_path: Path) -> None:
    tested = whole_test(split, "balanced")
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
