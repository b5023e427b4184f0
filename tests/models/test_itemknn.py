"""ItemKNN by hand."""

import math

import pyarrow as pa
import pytest
import torch

import unskew
from tests.helpers.runs import train
from unskew.data.batches.batch import batch
from unskew.models.base import Training, build
from unskew.models.itemknn import ItemKNN, Weighting, nearest_items


@pytest.fixture
def split() -> unskew.Split:
    """U_A = {1, 2, 3}, U_B = {1, 2}, U_C = {1}; user 4 comes later and has A, then B."""
    rows = [
        (1, "A", 1),
        (2, "A", 2),
        (3, "A", 3),
        (1, "B", 4),
        (2, "B", 5),
        (1, "C", 6),
        (4, "A", 7),
        (4, "B", 8),
        (4, "C", 9),
        (1, "D", 9),
    ]
    user, item, time = zip(*rows, strict=True)
    return unskew.split(unskew.read({"user": user, "item": item, "time": time}), fractions=(60, 0, 40))


def matrix(split: unskew.Split, shrink: float = 0.0, weighting: Weighting = "cosine") -> torch.Tensor:
    nearest, similarity = nearest_items(split, 100, shrink, weighting)
    return torch.zeros(split.known_items, split.known_items).scatter_add_(1, nearest, similarity)


def test_similarities(split: unskew.Split) -> None:
    found = matrix(split)
    a, b, c = 0, 1, 2  # codes follow first appearance
    assert found[a, b].item() == found[b, a].item() == pytest.approx(0.81650, abs=1e-5)
    assert found[a, c].item() == pytest.approx(0.57735, abs=1e-5)
    assert found[b, c].item() == pytest.approx(0.70711, abs=1e-5)
    assert found.diag().tolist() == [0, 0, 0]
    assert matrix(split, shrink=10)[a, b].item() == pytest.approx(0.16065, abs=1e-5)


def test_an_item_is_its_own_neighbour_where_repeats_are_candidates(split: unskew.Split) -> None:
    keep = unskew.split(split.log, fractions=(60, 0, 40), repeats="keep")
    torch.testing.assert_close(matrix(keep), matrix(split) + torch.eye(3))
    assert matrix(keep, shrink=1)[0, 0].item() == pytest.approx(3 / 4)


def test_a_user_who_takes_everything_says_less(split: unskew.Split) -> None:
    """User 1 has 3 of 3 items, user 2 two, user 3 one: idf log 2, log 2.5 and log 4."""
    one, two, three = math.log(2) ** 2, math.log(2.5) ** 2, math.log(4) ** 2
    norms = [math.sqrt(one + two + three), math.sqrt(one + two), math.sqrt(one)]
    found = matrix(split, weighting="tf-idf")
    assert found[0, 1].item() == pytest.approx((one + two) / (norms[0] * norms[1]))
    assert found[0, 2].item() == pytest.approx(one / (norms[0] * norms[2]))
    assert found[1, 2].item() == pytest.approx(one / (norms[1] * norms[2]))


def test_bm25_weighs_an_item_of_many_users_less(split: unskew.Split) -> None:
    """The items have 3, 2 and 1 users, 2 on average."""
    one, two = math.log(2) ** 2, math.log(2.5) ** 2
    a, b, c = (2.2 / (1 + 1.2 * (0.25 + 0.75 * users / 2)) for users in (3, 2, 1))
    found = matrix(split, weighting="bm25")
    assert found[0, 1].item() == pytest.approx((one + two) * a * b)
    assert found[0, 2].item() == pytest.approx(one * a * c)
    torch.testing.assert_close(matrix(split, shrink=10, weighting="bm25"), found)


def test_recency(split: unskew.Split) -> None:
    later = batch(split.log, [3], [9], [[2, 3]])
    assert later.history_BL.tolist() == [[0, 1]]
    for decay, expected in ((0.5, 0.99578), (1.0, 0.57735 + 0.70711)):
        scores = build(ItemKNN, split, ItemKNN.Config(decay=decay))(later)
        assert scores[0, 0].item() == pytest.approx(expected, abs=1e-5)
        assert scores[0, 1].item() == 0  # training never saw D


def test_only_the_nearest_count(split: unskew.Split) -> None:
    nearest, similarity = nearest_items(split, 1, 0.0)
    assert nearest.squeeze(1).tolist() == [1, 0, 1]
    assert similarity.squeeze(1).tolist() == pytest.approx(
        [math.sqrt(2 / 3), math.sqrt(2 / 3), math.sqrt(1 / 2)]
    )


def test_without_a_history_it_is_popularity(split: unskew.Split) -> None:
    scores = build(ItemKNN, split, ItemKNN.Config())(batch(split.log, [4], [9], [[0, 1, 2, 3]]))
    assert scores[0].argsort(descending=True).tolist() == [0, 1, 2, 3]


def test_who_has_an_item_twice_counts_once(split: unskew.Split) -> None:
    rows = split.log.table().select(["user", "item", "time"])
    twice = pa.concat_tables([rows, pa.table({"user": [1, 1], "item": ["A", "B"], "time": [2, 6]})])
    again = unskew.split(unskew.read(twice), fractions=(8, 0, 4), repeats="hide")
    assert again.item_counts.tolist()[:3] == [4, 3, 1]
    torch.testing.assert_close(matrix(again), matrix(split))


def test_a_rare_item_is_nobodys_neighbour(split: unskew.Split) -> None:
    known = unskew.split(split.log, fractions=(60, 0, 40), min_count=2)
    assert known.known.items.rare.tolist() == [False, False, True]
    expected = matrix(split)
    expected[2] = expected[:, 2] = 0
    torch.testing.assert_close(matrix(known), expected)


def test_the_decay_is_chosen_on_validation_and_stored(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    model, _ = train(split, "itemknn", ItemKNN.Config(), Training())
    assert float(model.state_dict()["decay"]) in (0.5, 0.8, 0.95, 1.0)
    given, _ = train(split, "itemknn", ItemKNN.Config(decay=0.3), Training())
    assert float(given.state_dict()["decay"]) == 0.3
