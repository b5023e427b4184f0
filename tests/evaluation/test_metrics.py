"""Metrics by hand and by another library, and figures of the recommended lists by hand."""

import math
import warnings

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.scorers import Scores, candidates, growing_split, whole_test
from unskew.data.log.held_out import held_out
from unskew.data.log.views import PAD
from unskew.evaluation.evaluate import CUTOFFS, evaluation, rank
from unskew.evaluation.metrics import beyond_accuracy, hit, mrr, ndcg


@pytest.fixture(scope="module", params=["keep", "hide"])
def split(request: pytest.FixtureRequest) -> unskew.Split:
    """With and without repeats among the candidates."""
    return growing_split(request.param)


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
    found = evaluation(split, rank(scorer, split, rows), "full", whole_test(split))
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


def test_beyond_accuracy_by_hand() -> None:
    # Training counts: p 3, q 2, r 1, s 1, t 1; u and v are born later, and w is not known either.
    table = {
        "user": [*"abcabaab", *"abc"],
        "item": [*"pppqqrst", *"uvw"],
        "time": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    }
    split = unskew.split(unskew.read(table), fractions=(8, 0, 3))
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
    split = unskew.split(unskew.read(table), fractions=(6, 0, 3))
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
    found = evaluation(split, ranked, "full", whole_test(split)).beyond
    counts = {"p": 3, "q": 2, "r": 1}
    assert found["popularity@10"] == pytest.approx(sum(counts[name] for name in "pqrrqr") / 6)
    assert found["coverage@10"] == 1.0
    assert found["long_tail@10"] == 5 / 6  # the head is p
