"""The randomised test on the log of a service that explores: each model gets its true value, also the model
that made the lists."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import evaluation, rank
from unskew.serve.http.explore import draw

USERS, ITEMS, K, FRACTION, LISTS = 25, 40, 5, 0.3, 8000


class Table:
    """A score for every user and item."""

    history = 1

    def __init__(self, scores: np.ndarray) -> None:
        self.table = scores.astype(np.float32)

    def catalog(self, log: unskew.Log, first: int, last: int) -> "Table":
        return self

    def scores(self, context: Batch) -> Tensor:
        return torch.from_numpy(self.table[context.user_B.numpy()].copy())


class World(NamedTuple):
    """A served log, and the probability that each user clicks each item that is shown, by codes."""

    split: unskew.Split
    taste: np.ndarray


@pytest.fixture(scope="module")
def world() -> World:
    """A service ranks by the true taste, and every shown item is clicked with its true probability."""
    random = np.random.default_rng(4)
    taste = 0.9 * random.random((USERS, ITEMS)) ** 3
    rows = [(item % USERS, item, 0, 1, 0) for item in range(ITEMS)]  # so that all items exist
    for number in range(LISTS):
        user = int(random.integers(USERS))
        drawn = draw(K, ITEMS, FRACTION, random)
        items = np.argsort(-taste[user])[drawn.ranks]
        clicked = random.random(K) < taste[user, items]
        rows += [
            (user, int(item), number + 1, int(click), int(is_random))
            for item, click, is_random in zip(items, clicked, drawn.random, strict=True)
        ]
    names = ("user", "item", "time", "label", "exposed")
    log = unskew.read(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    users, items = (np.argsort(ids.codes(list(range(len(ids))))) for ids in (log.users, log.items))
    return World(unskew.split(log, fractions=(10, 0, 90), repeats="keep"), taste[users][:, items])


def value_and_error(world: World, scores: np.ndarray) -> tuple[float, float]:
    """NDCG@10 in the randomised test, and its standard error."""
    held = held_out(world.split, "test", "randomised")
    assert set(held.weights.tolist()) == {1.0}
    found = evaluation(world.split, rank(Table(scores), world.split, held.rows), "full", held)
    values = found.values["ndcg@10"]
    return found.mean("ndcg@10"), float(values.std() / np.sqrt(len(values)))


def true_value(taste: np.ndarray, scores: np.ndarray) -> float:
    """NDCG@10 if every item were shown to every user equally often."""
    ranks = np.argsort(np.argsort(-scores, axis=1), axis=1)
    gains = np.where(ranks < 10, 1 / np.log2(ranks + 2), 0)
    return float((taste * gains).sum() / taste.sum())


def test_a_perfect_and_a_random_model_get_their_true_values(world: World) -> None:
    guess = np.random.default_rng(9).random(world.taste.shape)
    for scores in (world.taste, guess):
        value, error = value_and_error(world, scores)
        assert error < 0.01
        assert abs(value - true_value(world.taste, scores)) < 3 * error
    assert true_value(world.taste, world.taste) > 2 * true_value(world.taste, guess)
