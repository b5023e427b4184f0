"""UBPR: the worked numbers, that clamped terms teach nothing, and that partners may be the user's own."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.helpers.errors import refused
from unskew.core.config import check
from unskew.data.batches.batch import batch_of_rows
from unskew.models.base import Training, build
from unskew.models.ubpr import UBPR, clamped, pairwise_terms
from unskew.training.trainer import Trainer


def two_partners(score_i: Tensor) -> Tensor:
    """An unclicked and a clicked partner, both one below; every propensity is a half."""
    half = torch.full((2,), 0.5)
    return pairwise_terms(score_i, torch.tensor([-1.0, -1.0]), half, half, torch.tensor([0.0, 1.0]))


@pytest.mark.parametrize(
    ("floor", "terms", "mean"),
    [
        (0.01, [0.626523, -0.01], 0.308262),
        (0.0, [0.626523, 0.0], 0.313262),
        (1e9, [0.626523, -0.626523], 0.0),
    ],
)
def test_the_worked_numbers(floor: float, terms: list[float], mean: float) -> None:
    found = clamped(two_partners(torch.zeros(2)), floor)
    torch.testing.assert_close(found, torch.tensor(terms), atol=1e-6, rtol=0)
    assert float(found.mean()) == pytest.approx(mean, abs=1e-6)


def test_a_clamped_term_has_no_gradient() -> None:
    score = torch.zeros(2, requires_grad=True)
    clamped(two_partners(score), 0.01).sum().backward()
    assert score.grad is not None
    assert score.grad[1] == 0
    assert score.grad[0] < -0.1
    free = torch.zeros(2, requires_grad=True)
    clamped(two_partners(free), 1.0).sum().backward()
    assert free.grad is not None
    assert free.grad[1] > 0.1  # unclamped, a clicked partner pulls the other way


def test_it_is_unbiased_without_a_clamp() -> None:
    """Over clicks of i with probability theta_i r_i and of j with theta_j r_j, only r_i (1 - r_j)
    softplus(-(s_i - s_j)) is left."""
    score_i, score_j = torch.tensor([0.4]), torch.tensor([-0.3])
    theta_i, theta_j, r_i, r_j = torch.tensor([0.3]), torch.tensor([0.6]), 0.7, 0.2
    clicked, other = (
        pairwise_terms(score_i, score_j, theta_i, theta_j, torch.tensor([y])) for y in (1.0, 0.0)
    )
    p_j = theta_j * r_j
    torch.testing.assert_close(
        theta_i * r_i * (p_j * clicked + (1 - p_j) * other),
        r_i * (1 - r_j) * functional.softplus(score_j - score_i),
    )


def test_partners_may_be_the_users_own(split: unskew.Split) -> None:
    """A sampler without positives would make it BPR weighted by 1 / theta."""
    model = build(UBPR, split, UBPR.Config(width=6, clip=0.2, floor=0.5))
    rows = next(Trainer(model, split, Training(batch_size=64)).samplers["pairwise"].epoch())
    assert rows.candidates_BC.shape == (64, 11)
    assert bool((rows.labels_BC[:, 0] == 1).all())
    assert 0.05 < rows.labels_BC[:, 1:].mean() < 0.95
    assert not bool((rows.candidates_BC[:, 1:] == rows.candidates_BC[:, :1]).any())
    counts = torch.from_numpy(split.item_counts)
    theta = (counts / counts.max()).sqrt().clamp(min=0.2)
    weight = torch.rand(rows.labels_BC.shape, generator=torch.Generator().manual_seed(0)) + 0.5
    expected, inert = 0.0, 0
    with torch.no_grad():
        scores = (model.users.weight[rows.user_B][:, None] * model.items.weight[rows.candidates_BC]).sum(-1)
        for b in range(64):
            i = rows.candidates_BC[b, 0]
            for c in range(1, 11):
                j, y = rows.candidates_BC[b, c], rows.labels_BC[b, c]
                term = float(
                    1 / theta[i] * (1 - y / theta[j]) * torch.log(1 + torch.exp(scores[b, c] - scores[b, 0]))
                )
                inert += term < -0.5
                expected += max(term, -0.5) * float(weight[b, 0]) / 640
        assert inert > 10
        assert float(model.pairwise_loss(rows._replace(weight_BC=weight))) == pytest.approx(
            expected, rel=1e-5
        )


@pytest.mark.parametrize("floor", [0.0, 2.0, 1e9])
def test_the_clamped_share_is_of_pairs_of_two_clicks_of_one_user(split: unskew.Split, floor: float) -> None:
    model = build(UBPR, split, UBPR.Config(width=6, floor=floor))
    rows = np.flatnonzero(split.mask("train"))[::7]
    user, item, label = (getattr(split.log, name)[rows] for name in ("user", "item", "label"))
    theta = (split.item_counts / split.item_counts.max()) ** 0.5
    users, items = model.users.weight.detach().numpy(), model.items.weight.detach().numpy()
    found = []
    for a in range(len(rows)):
        for b in range(len(rows)):
            if user[a] == user[b] and item[a] != item[b] and label[a] == label[b] == 1:
                gap = users[user[a]] @ (items[item[a]] - items[item[b]])
                found.append((1 - 1 / theta[item[b]]) / theta[item[a]] * np.log1p(np.exp(-gap)) < -floor)
    fraction = model.statistics(batch_of_rows(split.log, rows, 0, 0))["clicked_pairs_clamped"]
    assert fraction == pytest.approx(np.mean(found), abs=1e-6)
    assert {0.0: 0.7 < fraction < 1, 2.0: 0.1 < fraction < 0.7, 1e9: fraction == 0}[floor]


def test_without_such_pairs_there_is_no_share(split: unskew.Split) -> None:
    rows = np.flatnonzero(split.mask("train"))[:1]
    assert build(UBPR, split, UBPR.Config(width=6)).statistics(batch_of_rows(split.log, rows, 0, 0)) == {}


def test_bad_settings() -> None:
    with refused("floor"):
        check(UBPR.Config(floor=-1.0))
