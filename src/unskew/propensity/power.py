"""`power`: the propensity of an item as a power of its popularity, from a log of clicks alone.

    log P(o = 1) = gamma log(1 + n_i(<t)), up to a constant per time
    P(c = 1)     = sigmoid(a + gamma log(1 + n_i) - log sum_j (1 + n_j)^gamma) sigmoid(APPEAL + g_i)

    n_i      the clicks on item i strictly before t
    g_i      what is appealing about the item at all times, normal with a variance that is fitted, too
    sum_j    over all items that could be shown at t

A click needs that the item was shown and that it was liked, and both make an item popular. gamma is the most
likely number, of the clicks of each training impression against the items that were not clicked in it, all of
them or weighted draws. An item whose first click is late may have arrived late, so items count from their
first click on; unless nearly all were clicked in the first half of the training set: then all count from its
start.

It rests on two assumptions. The appeal of an item does not change with its popularity: a fashion counts as
exposure, and an item whose charm fades as it becomes known hides it. And appeals are spread as a normal
distribution is: clicks that are drawn in proportion to earlier clicks (an urn) look exactly like fixed
appeals with another distribution, so without this nothing in a log of clicks separates the two. The
standard error is that of chance alone; it does not cover what the assumptions get wrong.

Where the training set has enough clicks in impressions of random exposure (`exposed`), the assumptions are
not needed. These impressions have a constant and a gamma of their own, which is due to appeal alone; the same
appeal is in the other impressions. So the difference of the two gammas is that of exposure, and this is what
is used.
"""

from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.nn.device import on_device
from unskew.propensity.base import Coefficient, Needs, Propensity
from unskew.propensity.impressions import (
    Floats,
    Impressions,
    Moments,
    few_enough,
    normalisers,
    pairs_of,
    sigmoid,
    spread_items,
    training_impressions,
)

APPEAL = -1.5  # the typical item is liked by one of five; clicks alone cannot separate this from `a`
STEPS = 60  # of Newton's method, at most
LARGEST_STEP = 0.5
LEAST_VARIANCE = 1e-3
ARRIVING = 0.2  # the fraction of items first clicked in the second half of training from which items arrive
ENOUGH = 200  # random clicks that suffice to estimate gamma from them


class Power(Propensity, name="power"):
    """P(o = 1) as a power of popularity, with a fitted gamma or a fixed one from 0 to 1. See the text above
    for what it rests on. The item view is relative to the most popular item of the moment, ((1 + n_i) / (1 +
    max n))^gamma: a number in (0, 1], whose scale cannot be known from a log of clicks. There is no user
    view. gamma is used between 0 and 1: below 0 it is noise, and above 1 the undoing would weigh more than
    the clicks; `uncapped` is as found."""

    gamma: Tensor
    uncapped: Tensor
    standard_error: Tensor  # of the uncapped gamma; 0 if it was fixed

    def __init__(self, alpha: float, clip: float, gamma: float | None = None, seed: int = 0) -> None:
        super().__init__(alpha, clip)
        if gamma is not None and not 0 <= gamma <= 1:
            raise BadInput(f"gamma {gamma}: expected from 0 to 1", field="gamma")
        self.fixed, self.seed = gamma, seed
        for name in ("gamma", "uncapped", "standard_error"):
            self.register_buffer(name, torch.full((), torch.nan, dtype=torch.float64))

    @torch.no_grad()
    def fit_statistics(self, split: Split) -> None:
        estimate = (self.fixed, 0.0) if self.fixed is not None else fitted_gamma(split, self.seed)
        self.uncapped.fill_(estimate[0])
        self.standard_error.fill_(estimate[1])
        self.gamma.copy_(self.uncapped.clamp(0, 1))

    def coefficients(self) -> tuple[Coefficient, ...]:
        """gamma before it is capped, with its standard error, which takes the variance of appeal as given."""
        return (Coefficient("gamma", float(self.uncapped), float(self.standard_error)),)

    def item_view(self, batch: Batch) -> Tensor:
        if batch.log is None:
            raise BadInput("`power` counts what happened in a log, and this batch comes from none")
        time = batch.times_B.cpu().numpy()[:, None]
        largest = np.log1p(most_clicks(batch.log.frozen(), time))
        log_exposure = self.log_exposure(batch.log.frozen(), batch.candidates_BC.cpu().numpy(), time)
        most = torch.from_numpy(largest).to(log_exposure.device)
        return (log_exposure - self._used() * most).exp().clamp(max=1).float()

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return (
            self._used() * on_device(torch.from_numpy(_popularity(log, item, time)), self.gamma.device)
        ).float()

    def _used(self) -> float:
        if not np.isfinite(float(self.gamma)):
            raise BadInput("this `power` has not been fitted: call `fit_statistics` first")
        return float(self.gamma)

    @classmethod
    def build(cls, needs: Needs) -> "Power":
        return cls(needs.alpha, needs.clip)


_LARGEST: WeakKeyDictionary[Log, tuple[Ints, Ints]] = WeakKeyDictionary()


def most_clicks(log: Log, time: ArrayLike) -> Ints:
    """The clicks of the most popular item strictly before each time."""
    if log not in _LARGEST:
        view = log.audiences
        which = np.repeat(np.arange(len(view)), np.diff(view.offsets))
        count = np.arange(len(view.ids)) - view.offsets[which] + 1
        order = np.argsort(view.times, kind="stable")
        largest = np.maximum.accumulate(count[order]) if len(order) else count
        _LARGEST[log] = view.times[order], np.append(0, largest)
    times, largest = _LARGEST[log]
    return largest[np.searchsorted(times, np.asarray(time, np.int64), "left")]


def fitted_gamma(split: Split, seed: int) -> tuple[float, float]:
    """The most likely gamma of a training set, and its standard error."""
    random, log = np.random.default_rng([seed, 37]), split.log
    impressions = training_impressions(split, clicked=True)
    halfway = (int(log.time.min()) + split.train_end) // 2
    if log.audiences.existing(halfway) >= (1 - ARRIVING) * split.known_items:
        impressions = replace(impressions, existing=np.full(len(impressions), split.known_items))
    impressions = few_enough(impressions, random)
    if not len(impressions):
        raise BadInput("`power` needs clicks at several moments: at the first one no item is popular yet")
    return _Likelihood(split, impressions, random).most_likely()


class _Likelihood:
    """The likelihood of a and gamma, of the same two in random impressions, and of all g_i."""

    def __init__(self, split: Split, impressions: Impressions, random: np.random.Generator) -> None:
        pairs, log = pairs_of(impressions, random), split.log
        self.item_N, self.clicked_N, self.weight_N = pairs.item, pairs.happened, pairs.weight
        self.items, self.per_impression = split.known_items, float(pairs.happened.sum() / len(impressions))
        self.popularity_N = _popularity(log, pairs.item, impressions.time[pairs.impression_id])
        found, which = Moments.of(split).of_times(impressions.time)
        self.moment_N, self.random_N = which[pairs.impression_id], impressions.random[pairs.impression_id]
        self.with_random = int((self.random_N & pairs.happened).sum()) >= ENOUGH
        self.all_items = []
        for place, moment in enumerate(found.tolist()):
            existing = int(impressions.existing[which == place].min())
            items, each = spread_items(impressions.order[:existing], self.items)
            self.all_items.append((_popularity(log, items, moment), float(np.log(each))))

    def most_likely(self) -> tuple[float, float]:
        """gamma and its standard error, by Fisher's scoring. The g_i are random effects, whose variance is
        renewed in every step."""
        theta, appeal, variance = np.zeros(4), np.zeros(self.items), 1.0
        theta[[0, 2]] = np.log(self.per_impression / sigmoid(np.array(APPEAL)))
        covariance: Floats = np.eye(4)
        for _ in range(STEPS):
            slope, appeal_slope, own, mixed, appeal_own = self._scores(theta, appeal)
            appeal_slope, appeal_own = appeal_slope - appeal / variance, appeal_own + 1 / variance
            covariance = np.asarray(np.linalg.inv(own + 1e-6 * np.eye(4) - mixed / appeal_own @ mixed.T))
            step = covariance @ (slope - mixed / appeal_own @ appeal_slope)
            step *= min(1, LARGEST_STEP / max(float(abs(step).max()), 1e-12))
            appeal_step = (appeal_slope - mixed.T @ step) / appeal_own
            theta, appeal = theta + step, appeal + np.clip(appeal_step, -1, 1)
            before, variance = variance, max(float((appeal**2 + 1 / appeal_own).mean()), LEAST_VARIANCE)
            if abs(step).max() < 1e-3 and abs(np.log(variance / before)) < 1e-2:
                break
        contrast = np.array([0, 1, 0, -1 if self.with_random else 0])
        return float(contrast @ theta), float(np.sqrt(contrast @ covariance @ contrast))

    def _scores(self, theta: Floats, appeal: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        """The scores of theta and of the g_i, and the blocks of their information."""
        design, logit = np.zeros((4, len(self.item_N))), np.zeros(len(self.item_N))
        for place, here in ((0, ~self.random_N), (2, self.random_N)):
            constant, gamma = theta[place : place + 2]
            sums, slopes = normalisers(self.all_items, gamma)
            popularity, moment = self.popularity_N[here], self.moment_N[here]
            logit[here] = constant + gamma * popularity - sums[moment]
            design[place, here], design[place + 1, here] = 1, popularity - slopes[moment]
        shown, liked = sigmoid(logit), sigmoid(APPEAL + appeal[self.item_N])
        chance = np.minimum(shown * liked, 1 - 1e-9)
        residual = self.weight_N * (self.clicked_N - chance) / (1 - chance)
        certain = self.weight_N * chance / (1 - chance)
        design *= 1 - shown

        def by_item(values: Floats) -> Floats:
            return np.asarray(np.bincount(self.item_N, values, minlength=self.items), np.float64)

        return (
            design @ residual,
            by_item(residual * (1 - liked)),
            (design * certain) @ design.T,
            np.stack([by_item(certain * (1 - liked) * row) for row in design]),
            by_item(certain * (1 - liked) ** 2),
        )


def _popularity(log: Log, item: ArrayLike, time: ArrayLike) -> Floats:
    """log(1 + clicks) of each item strictly before each time."""
    start, end = log.audiences.before(item, time)
    return np.asarray(np.log1p(end - start))
