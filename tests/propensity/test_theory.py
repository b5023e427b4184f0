"""What each correction learns in the limit, in a world of six items of known exposure and appeal. Clicks
have their expected counts, so there is no noise; every item has a logit of its own, fitted to the end.

A click needs exposure and appeal, P(c = 1) = p r. Weights and offsets are those of `Correction`, which is
told the true p."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

import unskew
from unskew.data.batches.batch import Batch, batch
from unskew.nn.losses import bpr, cross_entropy
from unskew.propensity.base import Propensity
from unskew.propensity.correction import Correction, Method, Scale

P = np.array([0.9, 0.5, 0.2, 0.1, 0.04, 0.01])  # two of them below the paper's clip
R = np.array([0.2, 0.5, 0.3, 0.7, 0.4, 0.9])
# The same for two kinds of users: what the first ones are shown is hidden from the others.
P_UI, R_UI = np.stack([P, P[::-1]]), np.stack([R, R[[3, 0, 5, 1, 4, 2]]])
ITEMS, PAPER, NOTHING = len(P), 0.05, 1e-3  # a clip below all of P does nothing
LATER = 9  # when all items exist


class GroundTruth(Propensity):
    """Knows how likely each pair of a user and an item is to be shown."""

    def __init__(self, p_UI: ArrayLike, clip: float) -> None:
        super().__init__(clip=clip)
        self.p_UI = torch.tensor(np.asarray(p_UI), dtype=torch.float64)

    def item_view(self, batch: Batch) -> Tensor:
        return self.p_UI[batch.user_B[:, None], batch.candidates_BC]

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: unskew.Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        asked, _ = np.broadcast_arrays(np.asarray(item), np.asarray(time))
        return self.p_UI[0, torch.tensor(asked)].log()


@cache
def world() -> unskew.Split:
    """A log in which all items exist, and two users."""
    item = np.repeat(np.arange(ITEMS), 2)
    table = {"user": np.tile([0, 1], ITEMS), "item": item, "time": item}
    made = unskew.split(unskew.read(table), fractions=(1, 0, 0))
    assert made.log.items.of(np.arange(ITEMS)).to_pylist() == list(range(ITEMS))
    return made


def correction(
    method: Method,
    power: float = 1.0,
    clip: float = NOTHING,
    p_UI: ArrayLike = (P, P),
    scale: Scale = "ips",
) -> Correction:
    made = Correction(GroundTruth(p_UI, clip), method, power, scale, (5, 5))
    made.fit_statistics(world())
    return made


def minimiser(loss: Callable[[Tensor], Tensor], size: int = ITEMS) -> np.ndarray:
    """Where a convex loss of some free numbers is least."""
    free = torch.zeros(size, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [free], max_iter=500, tolerance_grad=1e-10, tolerance_change=1e-14, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        # A little pull where the loss does not care: adding a number to all logits of a softmax.
        value = loss(free) + 1e-9 * (free**2).sum()
        value.backward()
        return value.detach()

    optimizer.step(closure)
    return free.detach().numpy()


def proportional(logits: np.ndarray, expected: ArrayLike, tolerance: float = 2e-3) -> bool:
    """Whether the exponentials of the logits have these ratios."""
    difference = logits - np.log(np.asarray(expected))
    return bool(np.ptp(difference) < tolerance)


# A softmax over clicks


def clicks() -> Batch:
    """A context for each clicked item, whose other candidates are all items, drawn uniformly."""
    drawn = np.concatenate([np.arange(ITEMS)[:, None], np.tile(np.arange(ITEMS), (ITEMS, 1))], axis=1)
    labels = np.eye(1, ITEMS + 1).repeat(ITEMS, 0)
    return batch(world().log, np.zeros(ITEMS, int), np.full(ITEMS, LATER), drawn, labels)


CLICKED = torch.from_numpy(P * R)  # how often each item is clicked


def softmax_optimum(made: Correction | None) -> np.ndarray:
    def loss(free: Tensor) -> Tensor:
        states, vectors = torch.ones(ITEMS, 1, dtype=torch.float64), free[:, None]
        count, rows = CLICKED, clicks()
        if made is not None:
            corrected = made.of_pairs(rows, separate=False)
            if corrected.offset is not None:
                states, vectors = corrected.offset.beside(states, vectors)
            if corrected.weight_BC is not None:
                count = count * corrected.weight_BC[:, 0]
        return cross_entropy(states, vectors.double(), torch.arange(ITEMS), count)

    return minimiser(loss)


def test_a_softmax_over_clicks_learns_exposure_times_appeal() -> None:
    assert proportional(softmax_optimum(None), P * R)
    assert not proportional(softmax_optimum(None), R, 1.0)


@pytest.mark.parametrize("method", ["logit-offset", "weighted-negatives", "ips"])
def test_a_corrected_softmax_learns_appeal(method: Method) -> None:
    found = softmax_optimum(correction(method))
    assert proportional(found, R)
    assert not proportional(found, P * R, 1.0)


@pytest.mark.parametrize("method", ["logit-offset", "ips"])
@pytest.mark.parametrize("power", [0.0, 0.5])
def test_a_power_takes_out_so_much_of_the_exposure(method: Method, power: float) -> None:
    assert proportional(softmax_optimum(correction(method, power)), P ** (1 - power) * R)
    assert proportional(pointwise_optimum(correction(method, power)), P ** (1 - power) * R)


# Clicks against items that are drawn uniformly


def pointwise_optimum(made: Correction | None) -> np.ndarray:
    """Binary cross-entropy: a click and, for each click, every item once as a drawn negative."""
    return minimiser(lambda free: pair_loss(free, clicks(), CLICKED[:, None], made))


def pair_loss(free: Tensor, rows: Batch, count_BC: Tensor, made: Correction | None) -> Tensor:
    if made is not None:
        rows = made.of_pairs(rows, separate=True)
    logits = rows.with_offset(free[rows.candidates_BC])
    terms = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, rows.labels_BC.double(), reduction="none"
    )
    weight = 1.0 if rows.weight_BC is None else rows.weight_BC
    return (terms * weight * count_BC).sum()


def test_clicks_against_drawn_negatives_learn_exposure_times_appeal() -> None:
    found = pointwise_optimum(None)
    assert proportional(found, P * R)
    # The odds themselves: a click happens p r times, and the item is drawn as often as there are clicks.
    np.testing.assert_allclose(np.exp(found), P * R / (P * R).sum(), rtol=1e-3)


@pytest.mark.parametrize("clip", [NOTHING, PAPER, 0.3])
@pytest.mark.parametrize("scale", ["clipped", "ips", "snips"])
def test_weighting_both_sides_changes_nothing_at_any_clip(clip: float, scale: Scale) -> None:
    """The paper's loss with sampled negatives: a click and a drawn negative of the same pair have the same
    weight, so the odds of each pair stay what they were."""
    found = pointwise_optimum(correction("ips-both", clip=clip, scale=scale))
    np.testing.assert_allclose(np.exp(found), P * R / (P * R).sum(), rtol=2e-3)
    assert not proportional(found, R, 1.0)


@pytest.mark.parametrize("method", ["ips", "weighted-negatives", "logit-offset"])
def test_an_asymmetric_correction_learns_appeal(method: Method) -> None:
    assert proportional(pointwise_optimum(correction(method)), R)


def test_half_a_power_of_negatives_leaves_half_the_exposure() -> None:
    assert proportional(pointwise_optimum(correction("weighted-negatives", 0.5)), np.sqrt(P) * R)


def test_a_clip_leaves_what_is_below_it() -> None:
    found = pointwise_optimum(correction("ips", clip=PAPER))
    assert proportional(found, P / np.maximum(P, PAPER) * R)
    assert not proportional(found, R, 0.5)


@pytest.mark.parametrize("method", ["logit-offset", "weighted-negatives"])
def test_comparing_a_click_with_a_drawn_item_learns_appeal(method: Method) -> None:
    """Bayesian personalised ranking: how often i is preferred to j is all it knows."""

    def optimum(rows: Batch) -> np.ndarray:
        def loss(free: Tensor) -> Tensor:
            logits = rows.with_offset(free[rows.candidates_BC])
            return (CLICKED[:, None] * bpr(logits[:, :1], logits[:, 1:])).sum()

        return minimiser(loss)

    assert proportional(optimum(clicks()), P * R)
    assert proportional(optimum(correction(method).of_pairs(clicks(), separate=False)), R)


# Impressions: both labels of what was shown are observed


def impressions() -> tuple[Batch, Tensor]:
    """Every pair of a kind of users and an item, once clicked and once not, and how often that happens."""
    user, item, label = (part.ravel() for part in np.meshgrid([0, 1], np.arange(ITEMS), [1, 0]))
    count = P_UI[user, item] * np.where(label == 1, R_UI[user, item], 1 - R_UI[user, item])
    rows = batch(world().log, user, np.full(len(user), LATER), item, label)
    return rows, torch.from_numpy(count)[:, None]


def shown_optimum(made: Correction | None, parameters: int) -> np.ndarray:
    """With a parameter for each pair, or with fewer, which are shared among users or among all pairs."""
    rows, count = impressions()
    place: Any = {
        2 * ITEMS: rows.user_B[:, None] * ITEMS + rows.candidates_BC,
        ITEMS: rows.candidates_BC,
        1: 0 * rows.candidates_BC,
    }[parameters]
    corrected = rows if made is None else made.of_pairs(rows, separate=True)

    def loss(free: Tensor) -> Tensor:
        # The parameters take the place of candidates once the weights are known.
        return pair_loss(free, corrected._replace(candidates_BC=place), count, None)

    return 1 / (1 + np.exp(-minimiser(loss, parameters)))


WEIGHTED: list[tuple[Method, float]] = [("ips-both", 1.0), ("ips", 1.0), ("ips", 0.5)]


@pytest.mark.parametrize(("method", "power"), WEIGHTED)
def test_with_impressions_a_model_of_all_pairs_learns_appeal_with_weights_or_without(
    method: Method, power: float
) -> None:
    for made in (None, correction(method, power, p_UI=P_UI), correction(method, power, PAPER, P_UI)):
        np.testing.assert_allclose(shown_optimum(made, 2 * ITEMS), R_UI.ravel(), atol=1e-3)


@pytest.mark.parametrize("method", ["ips-both", "ips"])
@pytest.mark.parametrize("parameters", [1, ITEMS])
def test_what_a_model_cannot_express_is_what_weights_correct(method: Method, parameters: int) -> None:
    """Theorem 1: with weights, a model that is too simple learns the mean over all pairs; without, the mean
    over those that were shown. A clip lies in between."""
    axes = 0 if parameters == ITEMS else None

    def mean(weight: np.ndarray) -> np.ndarray:
        return np.atleast_1d((weight * R_UI).sum(axes) / weight.sum(axes))

    everything, shown = mean(np.ones_like(P_UI)), mean(P_UI)
    assert abs(everything - shown).max() > 0.05
    np.testing.assert_allclose(shown_optimum(None, parameters), shown, atol=1e-3)
    np.testing.assert_allclose(
        shown_optimum(correction(method, p_UI=P_UI), parameters), everything, atol=1e-3
    )
    clipped = P_UI / np.maximum(P_UI, PAPER)
    assert abs(mean(clipped) - everything).max() > 0.01
    found = shown_optimum(correction(method, clip=PAPER, p_UI=P_UI), parameters)
    np.testing.assert_allclose(found, mean(clipped), atol=1e-3)


def test_half_a_power_of_weights_lies_between_shown_and_everything() -> None:
    weight = np.sqrt(P_UI)
    found = shown_optimum(correction("ips", 0.5, p_UI=P_UI), 1)
    assert found[0] == pytest.approx((weight * R_UI).sum() / weight.sum(), abs=1e-3)


def test_with_impressions_negatives_change_nothing_and_an_offset_is_wrong() -> None:
    """What was shown says r already: `auto` gives neither to a loss of single shown pairs."""
    for method, expected in (("weighted-negatives", R_UI), ("logit-offset", R_UI / (1 - R_UI) / P_UI)):
        made = correction(method, p_UI=np.stack([P, P]))
        found = shown_optimum(made, 2 * ITEMS)
        if method == "weighted-negatives":
            np.testing.assert_allclose(found, expected.ravel(), atol=1e-3)
        else:
            assert proportional(np.log(found / (1 - found))[:ITEMS], expected[0])
