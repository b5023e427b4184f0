"""The paper's theorems hold where the ground truth is known: 400 exposures of the same impressions,
everything else fixed."""

import dataclasses

import numpy as np
import pytest
import torch
from benchmarks.theorems import Redrawn, TruePropensity, predicted, redrawn

from unskew.propensity.estimators import Propensity
from unskew.world.simulate import simulate

DRAWS = 400
CLIPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
SIZE = {"users": 200, "items": 60, "steps": 40, "impressions": 0.2, "shown": 6.0, "seed": 3}


@pytest.fixture(scope="module")
def world():
    return simulate(**SIZE)


@pytest.fixture(scope="module")
def drawn(world) -> Redrawn:
    return redrawn(world, impressions=100, draws=DRAWS, seed=5)


class TwoViews(Propensity):
    """The ground truth from the item view, something else from the user view."""

    def __init__(self, item, user, alpha, clip=1e-9):
        super().__init__(alpha, clip)
        self.views = torch.as_tensor(item), torch.as_tensor(user)

    def item_view(self, batch):
        return self.views[0]

    def user_view(self, batch):
        return self.views[1]


def z(losses, expected):
    """How many standard errors the mean of the draws is off."""
    return (losses.mean() - expected) / (losses.std(ddof=1) / np.sqrt(len(losses)))


# Theorem 1


def test_only_the_exposure_varies(world, drawn):
    assert drawn.shown_NVI.shape == (DRAWS, 100, len(world.log.items))
    assert (
        drawn.pairs.labels_BC.shape
        == drawn.delta_VI.shape
        == drawn.chance_VI.shape
        == drawn.shown_NVI.shape[1:]
    )
    deviations = (drawn.shown_NVI.mean(0) - drawn.chance_VI) / np.sqrt(
        drawn.chance_VI * (1 - drawn.chance_VI) / DRAWS
    )
    assert abs(deviations.mean()) < 4 / np.sqrt(deviations.size)
    assert abs((deviations**2).mean() - 1) < 0.1
    # The pairs are in the codes of the log, the world in ids: a row of the log must find its own logged
    # probability.
    log = world.log
    row = np.flatnonzero(
        (log.exposed == 0)
        & (log.user == int(drawn.pairs.user_B[7]))
        & (log.time == int(drawn.pairs.times_B[7]))
    )
    assert len(row)
    assert drawn.chance_VI[7, log.item[row]] == pytest.approx(log.propensity[row], rel=1e-4)


def test_the_prediction_is_neither_perfect_nor_constant(world, drawn):
    prediction = predicted(world, drawn.pairs.user_B.numpy(), drawn.pairs.candidates_BC.numpy())
    liked = drawn.pairs.labels_BC.numpy() == 1
    assert prediction.std(0).min() > 0.01
    assert prediction.std(1).min() > 0.01
    assert prediction[liked].mean() > prediction[~liked].mean() + 0.02
    assert drawn.delta_VI == pytest.approx(-np.log(np.where(liked, prediction, 1 - prediction)))
    assert drawn.delta_VI.min() > 0.01


@pytest.mark.parametrize(
    ("views", "alpha"),
    [("item", 0.5), ("user", 0.5), ("both", 0.5), ("both", 0.4), ("both", 0.0), ("both", 1.0)],
)
def test_the_weighted_loss_is_unbiased_from_each_view_and_combined(world, drawn, views, alpha):
    losses = drawn.weighted(TruePropensity(world, alpha, views=views).weights(drawn.pairs))
    assert abs(z(losses, drawn.ideal)) < 4
    assert losses.std(ddof=1) / np.sqrt(DRAWS) < 0.01 * drawn.ideal  # or any loss would pass
    assert losses.std(ddof=1) == pytest.approx(np.sqrt(drawn.variance(1e-9).sum()), rel=0.15)


def test_both_views_enter_the_combination(drawn):
    """A user view that is twice the ground truth takes half of its fraction away, and only of its
    fraction."""
    for alpha in (0.4, 0.6):
        losses = drawn.weighted(TwoViews(drawn.chance_VI, 2 * drawn.chance_VI, alpha).weights(drawn.pairs))
        assert abs(z(losses, (alpha + (1 - alpha) / 2) * drawn.ideal)) < 4
        assert abs(z(losses, drawn.ideal)) > 10


def test_the_naive_loss_is_biased(drawn):
    assert z(drawn.naive(), drawn.ideal) > 10  # the policy shows what is liked, and liked pairs cost more
    assert drawn.naive().mean() > 1.05 * drawn.ideal


def test_the_naive_loss_is_right_where_all_is_shown_evenly():
    even = redrawn(simulate(**SIZE, bias=0.0), impressions=100, draws=DRAWS, seed=5)
    assert abs(z(even.naive(), even.ideal)) < 4


# Theorem 2


@pytest.mark.parametrize("clip", CLIPS)
def test_the_variance_of_a_pair_never_exceeds_the_bound(world, drawn, clip):
    weight = TruePropensity(world, clip=clip).weights(drawn.pairs).numpy()
    chance, bound = drawn.chance_VI, drawn.bound(clip)
    exact = chance * (1 - chance) * weight**2 * drawn.delta_VI**2
    assert exact == pytest.approx(drawn.variance(clip))
    assert (exact <= bound * (1 + 1e-9)).all()
    # What the draws say: the variance of a Bernoulli variable is known to about |1 - 2 P| sqrt(P (1 - P) /
    # N).
    empirical = (drawn.shown_NVI * (weight * drawn.delta_VI)).var(0, ddof=1)
    error = (weight * drawn.delta_VI) ** 2 * (
        np.abs(1 - 2 * chance) * np.sqrt(chance * (1 - chance) / DRAWS) + 1 / DRAWS
    )
    assert (empirical <= bound + 5 * error).all()
    assert (np.abs(empirical - exact) <= 5 * error).all()
    assert empirical.sum() < bound.sum()


def test_without_the_clip_the_bound_is_broken(drawn):
    assert (drawn.variance(1e-9) > drawn.bound(0.05)).mean() > 0.2


def test_two_views_are_never_worse_than_the_worse_one(drawn):
    """Theorem 2's first inequality, with views that disagree by up to a factor of e in both directions."""
    user = np.minimum(
        drawn.chance_VI * np.exp(np.random.default_rng(1).uniform(-1, 1, drawn.chance_VI.shape)), 1
    )
    both, item_only, user_only = (
        TwoViews(drawn.chance_VI, user, alpha, 0.05).weights(drawn.pairs) for alpha in (0.4, 1.0, 0.0)
    )
    assert (
        both <= torch.maximum(item_only, user_only) * (1 + 1e-9)
    ).all()  # the variance of a pair is P (1 - P) (w delta)^2
    assert (both < torch.maximum(item_only, user_only) * 0.99).any()


def test_the_bound_is_only_one_up_to_a_half():
    """The paper says every M below 1; with P = 1/2 and M = 0.9 a pair has 0.25 / 0.81, more than 1 / 0.9 -
    1."""
    chance = np.array([[0.5]])
    pair = Redrawn(None, chance, np.ones((1, 1)), np.random.default_rng(0).random((4000, 1, 1)) < chance)
    assert pair.variance(0.9).item() == pytest.approx(0.25 / 0.81)
    assert pair.weighted(np.array([[1 / 0.9]])).var() == pytest.approx(0.25 / 0.81, rel=0.05)
    assert pair.variance(0.9) > 2.7 * pair.bound(0.9)
    anywhere = np.linspace(0, 1, 1001)[None]
    every = Redrawn(None, anywhere, np.ones(anywhere.shape), np.zeros((1, *anywhere.shape), bool))
    assert all((every.variance(clip) <= every.bound(clip) * (1 + 1e-9)).all() for clip in (0.01, 0.2, 0.5))
    assert not (every.variance(0.51) <= every.bound(0.51)).all()


def test_the_bias_grows_with_the_clip_and_the_variance_falls(world, drawn):
    draws = np.stack(
        [drawn.weighted(TruePropensity(world, clip=clip).weights(drawn.pairs)) for clip in CLIPS]
    )
    bias, variance = (np.array([part(clip).sum() for clip in CLIPS]) for part in (drawn.bias, drawn.variance))
    assert (np.diff(bias) < 0).all()
    assert (np.diff(draws.mean(1)) < 0).all()
    assert (np.diff(variance) < 0).all()
    assert (
        np.diff(draws.std(1)[2:]) < 0
    ).all()  # below, the clip reaches too few pairs to be seen through the noise
    for losses, expected in zip(draws, drawn.ideal + bias, strict=True):
        assert abs(z(losses, expected)) < 4
    assert bias[0] > -1e-3 * drawn.ideal
    assert z(draws[-1], drawn.ideal) < -10


# Other estimators


def test_dividing_by_the_mean_weight_keeps_the_mean_and_lowers_the_deviation(world, drawn):
    weight = TruePropensity(world).weights(drawn.pairs)
    plain, divided = drawn.weighted(weight), drawn.self_normalised(weight)
    assert abs(divided.mean() / drawn.ideal - 1) < 0.02
    assert divided.std() < plain.std()
    # With equal weights it is the naive loss.
    assert np.allclose(drawn.self_normalised(np.full(drawn.chance_VI.shape, 3.0)), drawn.naive())


def test_a_doubly_robust_loss_is_right_where_either_guess_is(world, drawn):
    weight = TruePropensity(world).weights(drawn.pairs)
    assert (
        abs(drawn.doubly_robust(weight, smoothed=1e9).mean() / drawn.ideal - 1) < 0.02
    )  # a poor guess, true propensities
    same = dataclasses.replace(
        drawn, delta_VI=np.broadcast_to(np.linspace(0.1, 2, drawn.delta_VI.shape[1]), drawn.delta_VI.shape)
    )
    shown_everywhere = dataclasses.replace(
        same, shown_NVI=same.shown_NVI[:, :, :] | (np.arange(len(same.delta_VI)) == 0)[:, None]
    )
    wrong = np.full(drawn.chance_VI.shape, 7.0)
    assert np.allclose(
        shown_everywhere.doubly_robust(wrong, smoothed=1e-9), same.ideal
    )  # a perfect guess, wrong weights
