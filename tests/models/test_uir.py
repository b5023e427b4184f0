"""UIR: the worked numbers of its estimator, that it is unbiased, and that bad values of it are bounded."""

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.errors import refused
from unskew.core.config import check
from unskew.data.batches.batch import Batch, batch_of_rows
from unskew.models.base import Training, build
from unskew.models.factors import popularity_propensity
from unskew.models.uir import UIR, Error, as_all_pairs, pair_loss
from unskew.training.trainer import Trainer

COUNTS = np.array([100, 25, 4])
SCORES, LABELS = torch.tensor([0.0, 1.0, -1.0]), torch.tensor([1.0, 0.0, 1.0])


def close(found: Tensor, expected: list[float] | float, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found, torch.tensor(expected), atol=tolerance, rtol=tolerance)


def first_batch(model: UIR, split: unskew.Split) -> Batch:
    return next(Trainer(model, split, Training(batch_size=64)).samplers["relevance"].epoch())


def test_propensities_are_a_power_of_relative_popularity_and_are_raised_to_the_clip() -> None:
    close(popularity_propensity(COUNTS, 0.5, 1e-9)[0], [1.0, 0.5, 0.2])
    theta, clipped = popularity_propensity(COUNTS, 0.5, 0.3)
    close(theta, [1.0, 0.5, 0.3])
    assert clipped.tolist() == [False, False, True]
    close(popularity_propensity(COUNTS, 1.0, 1e-9)[0], [1.0, 0.25, 0.04])


def test_an_item_without_positives_has_the_clip_and_shifts_nothing() -> None:
    close(popularity_propensity(np.array([4, 0, 1]), 0.5, 0.01)[0], [1.0, 0.01, 0.5])


@pytest.mark.parametrize(
    ("error", "clip", "terms", "mean"),
    [
        ("squared", 0.3, [0.25, 0.534447, 1.612720], 0.799056),
        ("squared", 1e-9, [0.25, 0.534447, 2.382915], 1.055787),
        ("cross-entropy", 0.3, [0.693147, 1.313262, 3.646595], 1.884335),
    ],
)
def test_the_worked_numbers(error: Error, clip: float, terms: list[float], mean: float) -> None:
    found = pair_loss(SCORES, LABELS, popularity_propensity(COUNTS, 0.5, clip)[0], error)
    close(found, terms)
    close(found.mean(), mean)


@pytest.mark.parametrize("error", ["squared", "cross-entropy"])
def test_it_is_unbiased(error: Error) -> None:
    """A relevant pair is clicked with probability theta: on average over clicks, theta is gone."""
    scores, relevance, theta = (
        torch.tensor([0.3, -1.2, 2.0]),
        torch.tensor([1.0, 0.4, 0.0]),
        torch.tensor([0.2, 0.5, 0.1]),
    )
    clicked, not_clicked = (pair_loss(scores, torch.full((3,), label), theta, error) for label in (1.0, 0.0))
    over_clicks = theta * relevance * clicked + (1 - theta * relevance) * not_clicked
    close(over_clicks, pair_loss(scores, relevance, torch.ones(3), error).tolist())


def test_without_a_click_the_propensity_is_not_read() -> None:
    nothing = torch.zeros(3)
    assert torch.equal(
        pair_loss(SCORES, nothing, torch.full((3,), 0.01), "squared"),
        pair_loss(SCORES, nothing, torch.ones(3), "squared"),
    )


def test_cross_entropy_has_no_bound_below_but_ours() -> None:
    score = torch.tensor([50.0, 1e4], requires_grad=True)
    found = pair_loss(score, torch.ones(2), torch.full((2,), 0.1), "cross-entropy")
    close(found.detach(), [-450.0, -1000.0])
    found.sum().backward()
    assert score.grad is not None
    close(score.grad, [-9.0, 0.0])  # it stops there
    assert bool(
        (pair_loss(torch.tensor([50.0, 1e4]), torch.ones(2), torch.full((2,), 0.1), "squared") >= -9).all()
    )


def test_a_batch_of_halves_weighted_as_all_pairs() -> None:
    """Three of twelve pairs are clicked; a batch with as many of the others as of these must find the mean of
    all twelve."""
    clicked, others = torch.tensor([3.0, 5.0, 7.0]), torch.arange(9.0)
    everything = torch.cat([clicked, others]).mean()
    batch, labels = (
        torch.cat([clicked, others[[3, 4, 5]]]),
        torch.tensor([1.0, 1, 1, 0, 0, 0]),
    )  # these three have the others' mean
    close((batch * as_all_pairs(labels, 3 / 12)).mean(), float(everything))
    assert not torch.isclose(batch.mean(), everything)
    assert bool(as_all_pairs(torch.ones(4), 0.1).isfinite().all())


@pytest.mark.parametrize("mean", ["batch", "all-pairs"])
def test_the_loss_is_the_mean_over_clicks_and_as_many_other_pairs(split: unskew.Split, mean: str) -> None:
    model = build(UIR, split, UIR.Config(width=6, clip=0.3, mean=mean))
    rows = first_batch(model, split)
    assert rows.labels_BC.tolist() == [[1.0, 0.0]] * len(rows.user_B)
    theta = np.maximum((split.item_counts / split.item_counts.max()) ** 0.5, 0.3)
    pairs = {(u, i) for u, i, time, y in zip(
        *(getattr(split.log, c) for c in ("user", "item", "time", "label")), strict=True)
             if time < split.train_end and y == 1}  # fmt: skip
    fraction = len(pairs) / (split.known_users * split.known_items) if mean == "all-pairs" else 0.5
    weight = torch.rand(rows.labels_BC.shape, generator=torch.Generator().manual_seed(0)) + 0.5
    expected = 0.0
    with torch.no_grad():
        for b, user in enumerate(rows.user_B):
            for c, item in enumerate(rows.candidates_BC[b]):
                p, y = torch.sigmoid(model.users.weight[user] @ model.items.weight[item]), float(c == 0)
                ratio = y / theta[item]
                term = ratio * (1 - p) ** 2 + (1 - ratio) * p**2
                expected += (
                    float(term * weight[b, c]) * (fraction if c == 0 else 1 - fraction) / 0.5 / weight.numel()
                )
        close(model.relevance_loss(rows._replace(weight_BC=weight)), expected, 1e-5)


def test_the_clipped_share_is_of_clicks(split: unskew.Split) -> None:
    model = build(UIR, split, UIR.Config(width=4, clip=0.5))
    rows = np.flatnonzero(split.mask("train"))
    label, item = split.log.label[rows], split.log.item[rows]
    expected = ((split.item_counts[item] / split.item_counts.max()) ** 0.5 < 0.5)[label == 1].mean()
    assert 0.05 < expected < 0.95
    found = model.statistics(batch_of_rows(split.log, rows, 0, 0))
    assert found == {"clipped": pytest.approx(expected, abs=1e-6)}
    assert model.statistics(batch_of_rows(split.log, rows[label == 0], 0, 0)) == {"clipped": 0.0}


def test_what_was_counted_is_stored_and_made_by_measuring_alone(split: unskew.Split) -> None:
    made, measured = UIR(split.known, UIR.Config(width=4)), build(UIR, split, UIR.Config(width=4))
    assert torch.equal(made.theta_I, torch.ones(split.known_items))
    assert float(made.clicked_share) == 0
    made.load_state_dict(measured.state_dict())
    assert torch.equal(made.theta_I, measured.theta_I)
    assert not torch.equal(made.theta_I, torch.ones(split.known_items))
    assert 0 < float(made.clicked_share) < 1


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"clip": 1.5}, {"exponent": -1.0}])
def test_bad_settings(wrong: dict[str, float]) -> None:
    with refused(next(iter(wrong))):
        check(UIR.Config(**wrong))
