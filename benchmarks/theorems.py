"""Theorems 1 and 2, checked where the ground truth is known: the exposure of the same impressions of a
simulated world is drawn again and again.

    L_ideal    = sum of delta over all pairs
    L_weighted = sum of w delta over the shown pairs,   w = alpha / max(P, M) + (1 - alpha) / max(P, M)
                                                        (Theorem 1)
    L_naive    = mean of delta over the shown pairs, times the number of all pairs
    L_snips    = weighted mean of delta over the shown pairs, times the number of all pairs
    L_robust   = sum of d over all pairs + sum of w (delta - d) over the shown pairs,
                 with d a guess of delta from the shown pairs of the same item

Here delta is the loss of a pair, P = P(o = 1) its true propensity and M the clip. Only o is random:
impressions, r, the prediction and therefore delta are fixed. Then for each pair

    bias     = (P / max(P, M) - 1) delta             0 as long as M is below every P; it only grows with M
    variance = P (1 - P) / max(P, M)^2 delta^2       at most (1/M - 1) delta^2 for M <= 1/2
                                                     (Theorem 2)

The paper states this bound for every M in (0, 1). But its proof uses (1 / max(P, M) - 1) delta^2 for the
variance of a clipped pair, which is that of a pair that was not clipped. If 1 - M < P < M, the true variance
is larger than the bound: with P = 1/2 and M = 0.9, it is 0.31 delta^2 instead of 0.11 delta^2. In practice M
is never above 1/2.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.batches.batch import Batch, batch
from unskew.data.log.views import Ints
from unskew.propensity.estimators import Propensity, Views
from unskew.world.simulate import World

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

UNCLIPPED = 1e-9  # a clip that is below every probability of a world


class TruePropensity(Propensity):
    """The true propensities of a world. Both views have the same one, because they describe the same event
    o = 1: the item is shown to the user."""

    def __init__(
        self, world: World, alpha: float = 0.5, clip: float = UNCLIPPED, views: Views = "both"
    ) -> None:
        super().__init__(alpha, clip)
        self.world, self.views = world, views

    def item_view(self, batch: Batch) -> Tensor | None:
        """P(o = 1) of each pair; None if only the user's view is used."""
        return None if self.views == "user" else self._exposure(batch)

    def user_view(self, batch: Batch) -> Tensor | None:
        """P(o = 1) of each pair; None if only the item's view is used."""
        return None if self.views == "item" else self._exposure(batch)

    def _exposure(self, batch: Batch) -> Tensor:
        user, item = ids(self.world, batch.user_B.numpy(), batch.candidates_BC.numpy())
        return torch.from_numpy(self.world.exposure(user[:, None], item, batch.times_B.numpy()[:, None]))


@dataclass(frozen=True, eq=False)
class Redrawn:
    """Some impressions whose exposure was drawn again and again. The axes are V impressions, I items and N
    draws."""

    pairs: Batch  # the impressions with every item as a candidate, and r as the label
    chance_VI: Floats  # P(o = 1)
    delta_VI: Floats  # the loss
    shown_NVI: Mask  # o

    @property
    def ideal(self) -> float:
        """L_ideal."""
        return float(self.delta_VI.sum())

    def weighted(self, weight_VI: Tensor | Floats) -> Floats:
        """L_weighted of each draw."""
        one = (np.asarray(weight_VI, np.float64) * self.delta_VI).ravel()
        return np.array([one[shown.ravel()].sum() for shown in self.shown_NVI])

    def naive(self) -> Floats:
        """L_naive of each draw."""
        return np.array([self.delta_VI[shown].mean() * shown.size for shown in self.shown_NVI])

    def self_normalised(self, weight_VI: Tensor | Floats) -> Floats:
        """L_snips of each draw."""
        weight = np.asarray(weight_VI, np.float64)
        return np.array(
            [np.average(self.delta_VI[shown], weights=weight[shown]) * shown.size for shown in self.shown_NVI]
        )

    def doubly_robust(self, weight_VI: Tensor | Floats, smoothed: float = 5.0) -> Floats:
        """L_robust of each draw. The guess for an item is the mean over its shown pairs, to which `smoothed`
        pairs with the mean of all items are added."""
        weight, found = np.asarray(weight_VI, np.float64), []
        for shown in self.shown_NVI:
            own_I, mean = (self.delta_VI * shown).sum(0), float(self.delta_VI[shown].mean())
            guess_VI = np.broadcast_to((own_I + smoothed * mean) / (shown.sum(0) + smoothed), shown.shape)
            found.append(guess_VI.sum() + (weight * (self.delta_VI - guess_VI))[shown].sum())
        return np.array(found)

    def bias(self, clip: float) -> Floats:
        """The exact bias of each pair."""
        return (self.chance_VI / np.maximum(self.chance_VI, clip) - 1) * self.delta_VI

    def variance(self, clip: float) -> Floats:
        """The exact variance of each pair."""
        weight_VI = 1 / np.maximum(self.chance_VI, clip)
        return self.chance_VI * (1 - self.chance_VI) * (weight_VI * self.delta_VI) ** 2

    def bound(self, clip: float) -> Floats:
        """The bound of Theorem 2 on the variance of each pair."""
        return (1 / clip - 1) * self.delta_VI**2


def redrawn(world: World, impressions: int, draws: int, seed: int) -> Redrawn:
    """Choose so many of the impressions in the log that the biased policy served, and draw again what they
    were shown. r is drawn once."""
    log = world.log
    asked = np.unique(np.stack([log.user, log.time])[:, np.asarray(log.exposed) == 0], axis=1)
    user, time = asked[
        :, np.sort(np.random.default_rng([seed, 11]).choice(asked.shape[1], impressions, replace=False))
    ]
    candidates = np.tile(np.arange(len(log.items)), (impressions, 1))
    user_id, item_id = ids(world, user, candidates[0])
    again = list(world.redraws(user_id, time, count=draws, seed=seed))
    liked_VI = again[0][1][:, item_id]
    predicted_VI = predicted(world, user, candidates)
    return Redrawn(
        pairs=batch(log, user, time, candidates, liked_VI),
        chance_VI=world.exposure(user_id[:, None], item_id, time[:, None]),
        delta_VI=-np.log(np.where(liked_VI, predicted_VI, 1 - predicted_VI)),
        shown_NVI=np.stack([shown[:, item_id] for shown, _ in again]),
    )


def predicted(world: World, user: Ints, item_VI: Ints) -> Floats:
    """A simple prediction from the log alone: the smoothed click rates of the user and of the item, added as
    logits."""
    log = world.log
    mean = float(log.label.mean())
    user_rate, item_rate = (
        np.log(
            (np.bincount(code, log.label, size) + mean) / (np.bincount(code, 1 - log.label, size) + 1 - mean)
        )
        for code, size in ((log.user, len(log.users)), (log.item, len(log.items)))
    )
    logit = user_rate[user][:, None] + item_rate[item_VI] - np.log(mean / (1 - mean))
    return np.asarray(1 / (1 + np.exp(-logit)))


def ids(world: World, user: NDArray[np.integer], item: NDArray[np.integer]) -> tuple[Ints, Ints]:
    """The ids of some codes: a log numbers users and items as they appear, but a world wants their ids."""
    log = world.log
    return log.users.ids.to_numpy()[user], log.items.ids.to_numpy()[item]
