"""Weights are Theorem 1's, from learned propensities, from frequencies and from the log."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.estimators import dual, shown, some
from unskew.data.batches.batch import Batch, batch
from unskew.data.batches.samplers import Sampler, Sampling
from unskew.data.log.split import Ids
from unskew.nn.layers import Table
from unskew.propensity import estimators as propensity
from unskew.propensity.estimators import DualGRU, Frequency, Logged, Propensity, Unit


class Given(Propensity):
    """Probabilities out of the hat."""

    def __init__(self, item: Tensor | None, user: Tensor | None, alpha: float, clip: float) -> None:
        super().__init__(alpha, clip)
        self.item, self.user = item, user

    def item_view(self, batch: Batch) -> Tensor | None:
        return self.item

    def user_view(self, batch: Batch) -> Tensor | None:
        return self.user


def test_weights_are_theorem_1_by_hand(log: unskew.Log) -> None:
    item, user = torch.tensor([[0.5, 0.01], [0.2, 0.04]]), torch.tensor([[0.25, 0.5], [0.02, 0.03]])
    rows = batch(log, [0, 1], [100, 100], [[0, 1], [2, 3]])
    both = Given(item, user, 0.3, 0.05).weights(rows)
    # 0.3 / max(P_item, 0.05) + 0.7 / max(P_user, 0.05)
    torch.testing.assert_close(both, torch.tensor([[0.6 + 2.8, 6.0 + 1.4], [1.5 + 14.0, 6.0 + 14.0]]))
    only_item, only_user = (Given(*views, 0.3, 0.05) for views in ((item, None), (None, user)))
    torch.testing.assert_close(only_item.weights(rows), torch.tensor([[2.0, 20.0], [5.0, 20.0]]))
    torch.testing.assert_close(only_user.weights(rows), torch.tensor([[4.0, 2.0], [20.0, 20.0]]))
    assert torch.equal(Given(None, None, 0.3, 0.05).weights(rows), torch.ones(2, 2))
    assert torch.equal(Unit().weights(rows), torch.ones(2, 2))
    torch.testing.assert_close(Given(item, user, 1.0, 0.01).weights(rows), 1 / item)
    torch.testing.assert_close(Given(item, user, 0.0, 0.01).weights(rows), 1 / user)


def test_weights_of_the_gru_are_made_of_its_views(log: unskew.Log, split: unskew.Split) -> None:
    rows = some(log)
    made = dual(split, alpha=0.3, clip=0.02)
    item, user = (view(rows).detach().numpy() for view in (made.item_view, made.user_view))
    assert (item < 0.02).any()
    assert (item > 0.02).any()
    expected = 0.3 / np.maximum(item, 0.02) + 0.7 / np.maximum(user, 0.02)
    np.testing.assert_allclose(made.weights(rows).numpy(), expected, rtol=1e-5)
    only_item, only_user = dual(split, views="item"), dual(split, views="user")
    assert only_item.user_view(rows) is None
    assert only_user.item_view(rows) is None
    item, user = only_item.item_view(rows).detach(), only_user.user_view(rows).detach()
    torch.testing.assert_close(only_item.weights(rows), 1 / item.clamp(min=0.02))
    torch.testing.assert_close(only_user.weights(rows), 1 / user.clamp(min=0.02))


def test_weights_carry_no_gradient(log: unskew.Log, split: unskew.Split) -> None:
    made, rows = dual(split), some(log)
    assert made.item_view(rows).requires_grad
    weight = made.weights(rows)
    assert not weight.requires_grad
    loss = torch.ones((), requires_grad=True)
    (loss * weight).sum().backward()
    assert all(p.grad is None for p in (*made.parameters(), *(table.weight for table in made._tables)))


@pytest.mark.parametrize(
    ("alpha", "clip"), [(-0.1, 0.05), (1.1, 0.05), (0.5, 0.0), (0.5, 1.5), (0.5, math.nan), (math.nan, 0.5)]
)
def test_impossible_settings(alpha: float, clip: float) -> None:
    with pytest.raises(unskew.BadInput, match="expected"):
        Given(None, None, alpha, clip)


# Frequencies, and what the log says


def frequency(split: unskew.Split, *settings: Any) -> Frequency:
    made = Frequency(split.known, *settings)
    made.fit_statistics(split)
    return made


def test_frequency_by_hand() -> None:
    log = unskew.read(
        {"user": [*"aaabbc"], "item": [*"pqrppr"], "time": [1, 2, 3, 4, 5, 6], "label": [1, 1, 1, 1, 1, 0]}
    )
    split = unskew.split(log, fractions=(1, 0, 0))  # p 3, q 1, r 1; a 3, b 2, c 0
    rows = batch(log, [0, 1, 2], [9, 9, 9], [[0, 1], [1, 2], [2, 0]])
    both = frequency(split, 0.4, 0.25)
    item = torch.tensor([[1, 1 / 3], [1 / 3, 1 / 3], [1 / 3, 1]])
    user = torch.tensor([[1.0, 1], [2 / 3, 2 / 3], [0, 0]])
    torch.testing.assert_close(both.item_view(rows), item)
    torch.testing.assert_close(both.user_view(rows), user)
    torch.testing.assert_close(both.weights(rows), 0.4 / item + 0.6 / user.clamp(min=0.25))
    torch.testing.assert_close(frequency(split, 0.4, 0.5, "item").weights(rows), 1 / item.clamp(min=0.5))
    torch.testing.assert_close(frequency(split, 0.4, 0.25, "user").weights(rows), 1 / user.clamp(min=0.25))
    assert not list(both.parameters())
    assert set(both.state_dict()) == {"item_share", "user_share"}


def test_frequency_counts_training_positives_only(log: unskew.Log, split: unskew.Split) -> None:
    rows = np.flatnonzero((log.label == 1) & (log.time < split.train_end))
    counts = np.bincount(log.item[rows], minlength=split.known_items)
    np.testing.assert_allclose(frequency(split, 0.5, 0.05).item_share, counts / counts.max())


def test_logged_by_hand(logged: unskew.Log) -> None:
    made = max(
        Sampler(unskew.split(logged), Sampling(batch_size=64)).epoch(), key=lambda one: len(one.user_B)
    )
    weight = Logged(0.5, 0.25).weights(made)
    assert weight.shape == (64, 1)
    torch.testing.assert_close(weight, 1 / made.logged_BC.clamp(min=0.25))
    assert weight[:, 0].tolist() == pytest.approx([1 / max(p, 0.25) for p in shown(logged, made)], rel=1e-5)
    assert len(weight.unique()) > 4


def test_logged_needs_a_log_that_has_them(log: unskew.Log) -> None:
    for made in (next(Sampler(unskew.split(log)).epoch()), some(log)):
        with pytest.raises(unskew.BadInput, match="no propensities"):
            Logged(0.5, 0.05).weights(made)


@pytest.mark.parametrize("clip", [1e-4, 0.02, 0.05, 0.9])
@pytest.mark.parametrize("rare", [None, np.arange(40) % 3 == 1], ids=["", "rare ids"])
def test_the_bound_on_the_normaliser_changes_no_weight(
    monkeypatch: pytest.MonkeyPatch, clip: float, rare: np.ndarray | None
) -> None:
    """Where a partial sum cannot show that a propensity is below the clip, the whole one is taken."""
    torch.manual_seed(0)
    items, users = Table(Ids(40, rare), 6), Table(30, 6)
    dual = DualGRU(items, users, 1, 0.4, clip)
    with torch.no_grad():
        items.weight.mul_(4)  # some propensities are large, most are small
        users.weight.mul_(4)
    candidates = torch.arange(40).repeat(8, 1)
    made = Batch(
        user_B=torch.arange(8),
        history_BL=torch.randint(0, 40, (8, 5)),
        candidates_BC=candidates,
        audience_AM=torch.randint(0, 30, (12, 4)),
        audience_of_BC=torch.randint(0, 12, candidates.shape),
        labels_BC=torch.zeros(candidates.shape),
        times_B=torch.zeros(8, dtype=torch.int64),
        history_times_BL=torch.zeros(8, 5, dtype=torch.int64),
        audience_times_AM=torch.zeros(12, 4, dtype=torch.int64),
    )
    exact = dual.weights(made)
    monkeypatch.setattr(propensity, "BOUND", 5)
    torch.testing.assert_close(dual.weights(made), exact)
    item = dual.item_view(made)
    assert item is not None
    torch.testing.assert_close(item.sum(1), torch.ones(8))  # the view itself stays exact
