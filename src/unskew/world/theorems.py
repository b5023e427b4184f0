"""Theorems 1 and 2 where the truth is known: the same visits of a simulated world, exposed again and again.

    L_ideal    = sum of delta over all pairs
    L_weighted = sum of w delta over the shown pairs,   w = alpha / max(P, M) + (1 - alpha) / max(P, M)
                                                        (Theorem 1)
    L_naive    = mean of delta over the shown pairs, times the number of all pairs
    L_snips    = weighted mean of delta over the shown pairs, times the number of all pairs
    L_robust   = sum of d over all pairs + sum of w (delta - d) over the shown pairs, d guessed from the shown
               pairs of the same item

Only o is random: visits, r, the prediction and so delta are fixed, P = P(o = 1) is the true one. Then, per
pair,

    bias     = (P / max(P, M) - 1) delta             0 as long as M is below every P; it only grows with M
    variance = P (1 - P) / max(P, M)^2 delta^2       at most (1/M - 1) delta^2 for M <= 1/2
                                                     (Theorem 2)

The paper states the bound for every M in (0, 1). Its proof takes the variance of a clipped pair to be (1 /
max(P, M) - 1) delta^2, which is the one of a pair that was not clipped. Where 1 - M < P < M the true one is
larger than the bound: with P = 1/2, M = 0.9, 0.31 delta^2 instead of 0.11. No M that anybody uses is above
1/2.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.catalog import Scorer
from unskew.data.batch import Batch, batch, contexts
from unskew.data.views import Ints
from unskew.propensity.estimators import Propensity, Views
from unskew.world.simulate import World

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

BLOCK = 256  # contexts ranked together
UNCLIPPED = 1e-9  # a clip below every probability of a world


class TruePropensity(Propensity):
    """What the world knows. Both views are of one event, o = 1: the item meets the user, the user meets the
    item."""

    def __init__(
        self, world: World, alpha: float = 0.5, clip: float = UNCLIPPED, views: Views = "both"
    ) -> None:
        super().__init__(alpha, clip)
        self.world, self.views = world, views

    def item_view(self, batch: Batch) -> Tensor | None:
        return None if self.views == "user" else self._exposure(batch)

    def user_view(self, batch: Batch) -> Tensor | None:
        return None if self.views == "item" else self._exposure(batch)

    def _exposure(self, batch: Batch) -> Tensor:
        user, item = ids(self.world, batch.user_B.numpy(), batch.candidates_BC.numpy())
        return torch.from_numpy(self.world.exposure(user[:, None], item, batch.times_B.numpy()[:, None]))


@dataclass(frozen=True, eq=False)
class Redrawn:
    """Axes: V visits, I items, N draws."""

    pairs: Batch  # the visits with every item as a candidate, labelled with r
    chance_VI: Floats  # P(o = 1)
    delta_VI: Floats
    shown_NVI: Mask

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
        """L_robust of each draw. What was guessed of an item is the mean over its shown pairs, and so many of
        all items."""
        weight, found = np.asarray(weight_VI, np.float64), []
        for shown in self.shown_NVI:
            own_I, mean = (self.delta_VI * shown).sum(0), float(self.delta_VI[shown].mean())
            guess_VI = np.broadcast_to((own_I + smoothed * mean) / (shown.sum(0) + smoothed), shown.shape)
            found.append(guess_VI.sum() + (weight * (self.delta_VI - guess_VI))[shown].sum())
        return np.array(found)

    def bias(self, clip: float) -> Floats:
        """Of each pair, exactly."""
        return (self.chance_VI / np.maximum(self.chance_VI, clip) - 1) * self.delta_VI

    def variance(self, clip: float) -> Floats:
        """Of each pair, exactly."""
        weight_VI = 1 / np.maximum(self.chance_VI, clip)
        return self.chance_VI * (1 - self.chance_VI) * (weight_VI * self.delta_VI) ** 2

    def bound(self, clip: float) -> Floats:
        """Theorem 2's, of each pair."""
        return (1 / clip - 1) * self.delta_VI**2


def redrawn(world: World, visits: int, draws: int, seed: int) -> Redrawn:
    """Some of the log's own visits under the biased policy, and fresh draws of what they were shown; r is
    drawn once."""
    log = world.log
    asked = np.unique(np.stack([log.user, log.time])[:, np.asarray(log.exposed) == 0], axis=1)
    user, time = asked[
        :, np.sort(np.random.default_rng([seed, 11]).choice(asked.shape[1], visits, replace=False))
    ]
    candidates = np.tile(np.arange(len(log.items)), (visits, 1))
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
    """What one would predict from the log alone: click rates of the user and of the item, smoothed, added as
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
    """A log numbers users and items as they appear; the world asks for their ids."""
    log = world.log
    return log.users.ids.to_numpy()[user], log.items.ids.to_numpy()[item]


# Ranking against the truth


@torch.no_grad()
def true_ndcg(world: World, scorer: Scorer, user: Ints, time: Ints, cut: int = 10) -> Floats:
    """How well a model ranks all items by what each user would truly like, one value per context: NDCG with
    P(r = 1) as the gain.

        NDCG@K = sum over the first K of P(r = 1) / log2(place + 1), divided by the same sum for the best
        possible order

    Times must not decrease. No exposure enters, so this is what every test of a biased log tries to see.
    """
    log, discount = world.log, 1 / np.log2(np.arange(2, cut + 2))
    catalog = scorer.catalog(log, int(time[0]), int(time[-1]) + 1)
    found = []
    for first in range(0, len(user), BLOCK):
        part = slice(first, first + BLOCK)
        scores = catalog.scores(contexts(log, user[part], time[part], scorer.history)).numpy()
        user_id, item_id = ids(world, user[part], np.arange(len(log.items)))
        gain_BI = world.preference(user_id[:, None], item_id, time[part][:, None])
        listed = np.argsort(-scores, axis=1, kind="stable")[:, :cut]
        best = -np.sort(-gain_BI, axis=1)[:, :cut]
        found.append(
            (np.take_along_axis(gain_BI, listed, 1) @ discount[: listed.shape[1]])
            / (best @ discount[: best.shape[1]])
        )
    return np.concatenate(found)
