"""DICE: Disentangling User Interest and Conformity for Recommendation with Causal Embedding (Zheng et al.,
WWW 2021).

Each user and each item has a vector of interest and one of conformity; the score is <u_int, i_int> + <u_con,
i_con>, in ranking, too. A
click on an item less popular than what was passed over is due to interest:

    L = L_click + w_int L_int + w_con L_con - w_dis D
    L_click = mean softplus(-(d_int + d_con))      L_int = mean mask softplus(-d_int)
    L_con = mean mask softplus(d_con) + mean (1 - mask) softplus(-d_con)

Symbols: d_int, d_con the positive's score minus the negative's, in each part; mask 1 where the negative n_j
is more popular than the positive n_i; w_int, w_con, m times 0.9 after each epoch; D the discrepancy of the
two parts of the batch's users and items: their mean distance (`l1`, `l2`), or minus their distance
correlation (`dcor`). No estimator of a mean over all pairs: no statement on bias.

Negatives (PNSM): n_j > n_i + m, or n_j < n_i / 2, by a fair coin; if a pool has fewer than `pool` items, all
from the other.

Decisions, where the authors' code and their paper differ: the code. Its fixed half below instead of a second
margin; swapped arguments in L_con instead of a negated loss, which has no bound; means over all pairs, masked
or not. No plateau schedule, and no slice of the log that is debiased already, which the code also trains on.
A pool without enough items falls back to the other, then to any item that the user has not. As everywhere
here, no negative is drawn that did not exist yet. D is times the mean of the weights from outside, so that a
common factor of them changes the step and not the balance.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unskew.config import AtLeast1, NotNegative, Probability
from unskew.data.batch import Batch
from unskew.data.negatives import ROUNDS, Draw, Positives, uniform_negatives
from unskew.data.split import Known, Split
from unskew.data.views import Ints
from unskew.errors import BadInput
from unskew.losses import bpr, weighted_mean
from unskew.models.base import ModelConfig, Phase, Stage
from unskew.models.factors import MatrixFactors

COMPARED = 1000  # ids whose distances are correlated; beyond, a random sample of them
SMALLEST = 1e-12  # of what a root is taken of

Discrepancy = Literal["dcor", "l1", "l2"]


class DICE(
    MatrixFactors,
    name="dice",
    paper="Zheng et al., Disentangling User Interest and Conformity with Causal Embedding, WWW 2021",
):
    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: AtLeast1 = 64
        """Width of the embeddings of interest, and of those of conformity (d)."""
        popularity: Literal["counts", "quantiles"] = "counts"
        """In what the margin is: clicks, or the share of items with fewer clicks."""
        margin: NotNegative = 40.0
        """So much more popular than the positive are popular negatives, at first (m)."""
        pool: AtLeast1 = 40
        """Items that a pool must have for negatives to be drawn from it."""
        interest_weight: NotNegative = 0.1
        """Of the loss of interest, at first (w_int)."""
        conformity_weight: NotNegative = 0.1
        """Of the loss of conformity, at first (w_con)."""
        discrepancy_weight: NotNegative = 0.01
        """Of the discrepancy between interest and conformity (w_dis)."""
        discrepancy: Discrepancy = "dcor"
        """Minus the distance correlation, or the mean absolute or squared difference."""
        decay: Probability = 0.9
        """Of the margin and of the first two weights, each epoch."""

    config: Config
    popularity_I: Tensor
    recipe: ClassVar[dict[str, Any]] = {"batch_size": 128, "weight_decay": 5e-8, "rounds": 100}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, 2 * config.width)
        if config.popularity == "quantiles" and config.margin >= 1:
            raise BadInput(f"margin {config.margin}: in quantiles it is a share, below 1")
        for table in (self.users, self.items):
            nn.init.uniform_(table.weight, -(config.width**-0.5), config.width**-0.5)
        self.register_buffer("popularity_I", torch.zeros(known.items.size, dtype=torch.float64))

    def measure(self, split: Split) -> None:
        counts_I = split.item_counts[: split.known_items].astype(np.float64)
        popularity_I = counts_I if self.config.popularity == "counts" else quantiles(counts_I)
        self.popularity_I.copy_(torch.from_numpy(popularity_I))

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        config = self.config
        drawing = PopularityMargins(self.popularity_I.numpy(), config.margin, config.decay, config.pool)
        phase = Phase(
            "causes",
            "positives",
            self.causes_loss,
            self.parameters,
            negatives=4,
            drawing=drawing,
            optimizer=forgetful_adam,
        )
        return (Stage("train", (phase,), rounds, validated=True),)

    def causes_loss(self, batch: Batch) -> Tensor:
        config = self.config
        items_BCD, users_B1D = self.vectors(batch.candidates_BC), self.context(batch)[:, None]
        of_interest_BC, of_conformity_BC = (part.sum(-1) for part in halves(items_BCD * users_B1D))
        # Of the popular pool n_j > n_i + m, of the other n_j < n_i / 2: which one a negative came from is
        # whether n_j > n_i. One that came from neither is judged by the same.
        popularity_BC = self.popularity_I[batch.candidates_BC]
        mask = (popularity_BC[:, 1:] > popularity_BC[:, :1]).float()
        weight = None if batch.weight_BC is None else batch.weight_BC[:, :1]
        found = causes(differences(of_interest_BC), differences(of_conformity_BC), mask, weight)
        fading = config.decay**batch.epoch
        loss = found.click + fading * (
            config.interest_weight * found.interest + config.conformity_weight * found.conformity
        )
        apart = self.apart(self.items.table(), batch.candidates_BC) + self.apart(
            self.users.table(), batch.user_B
        )
        return loss - config.discrepancy_weight * apart * (1.0 if weight is None else weight.mean())

    def apart(self, table_ND: Tensor, ids: Tensor) -> Tensor:
        """The discrepancy of interest and conformity of these ids, each counted once."""
        once = torch.unique(ids)
        if len(once) > COMPARED:
            once = once[torch.randperm(len(once))[:COMPARED]]
        return discrepancy(*halves(table_ND[once]), self.config.discrepancy)


def forgetful_adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The authors' Adam: the curriculum moves the target, so it remembers less of the past than usual."""
    return torch.optim.Adam(
        parameters, lr=learning_rate, betas=(0.5, 0.99), weight_decay=weight_decay, amsgrad=True, fused=True
    )


class Causes(NamedTuple):
    click: Tensor
    interest: Tensor
    conformity: Tensor


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Interest and conformity: one table has both, so that the score is one dot product."""
    interest, conformity = x.chunk(2, dim=-1)
    return interest, conformity


def differences(scores_BC: Tensor) -> Tensor:
    """The positive's score minus each negative's."""
    return scores_BC[:, :1] - scores_BC[:, 1:]


def causes(interest: Tensor, conformity: Tensor, mask: Tensor, weight: Tensor | None = None) -> Causes:
    """L_click, L_int and L_con of differences of scores. The means are over all pairs, also those that a mask
    leaves out."""
    nothing = torch.zeros(())
    of_conformity = mask * bpr(nothing, conformity) + (1 - mask) * bpr(conformity, nothing)
    terms = bpr(interest + conformity, nothing), mask * bpr(interest, nothing), of_conformity
    return Causes(*(weighted_mean(each, weight) for each in terms))


def discrepancy(x_ND: Tensor, y_ND: Tensor, kind: Discrepancy) -> Tensor:
    """How far apart two sets of vectors are, the same ids in both."""
    if kind == "l1":
        return (x_ND - y_ND).abs().mean()
    if kind == "l2":
        return ((x_ND - y_ND) ** 2).mean()
    return -distance_correlation(x_ND, y_ND)


def distance_correlation(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """Szekely and others: 0 only of what is independent, 1 of what is alike up to scale. N squared
    distances."""
    a_NN, b_NN = (doubly_centred(torch.cdist(each, each)) for each in (x_ND, y_ND))
    together, of_x, of_y = (
        (left * right).mean().clamp(min=SMALLEST)
        for left, right in ((a_NN, b_NN), (a_NN, a_NN), (b_NN, b_NN))
    )
    return together.sqrt() / (of_x.sqrt() * of_y.sqrt()).sqrt()


def doubly_centred(a_NN: Tensor) -> Tensor:
    return a_NN - a_NN.mean(0, keepdim=True) - a_NN.mean(1, keepdim=True) + a_NN.mean()


def quantiles(counts_I: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each item, the share of items with fewer clicks."""
    return np.searchsorted(np.sort(counts_I), counts_I) / len(counts_I)


class PopularityMargins:
    """Negatives that are clearly more popular than the positive, or clearly less, and that the user has not
    (PNSM)."""

    def __init__(self, popularity_I: NDArray[np.float64], margin: float, decay: float, pool: int) -> None:
        self.popularity_I, self.margin, self.decay, self.pool = popularity_I, margin, decay, pool
        self.by_popularity = np.argsort(popularity_I, kind="stable")
        self.ordered = popularity_I[self.by_popularity]
        self.place_I = np.argsort(self.by_popularity)

    def pools(self, popularity_B: NDArray[np.float64], epoch: int) -> tuple[Ints, Ints]:
        """Where, in the order of popularity, the unpopular ones end and the popular ones begin."""
        margin = self.margin * self.decay**epoch
        return np.searchsorted(self.ordered, popularity_B / 2, "left"), np.searchsorted(
            self.ordered, popularity_B + margin, "right"
        )

    def __call__(self, draw: Draw) -> Ints:
        user, existing, shape = (
            draw.user_B[:, None],
            draw.existing_B[:, None],
            (len(draw.user_B), draw.wanted),
        )
        unpopular_end, popular_begin = self.pools(self.popularity_I[draw.item_B], draw.epoch)
        window, place = self._own(draw.user_B, draw.positives)
        own_unpopular, own_popular = (
            np.bincount(window[inside], minlength=len(user))
            for inside in (place < unpopular_end[window], place >= popular_begin[window])
        )
        few_unpopular = (unpopular_end - own_unpopular < self.pool)[:, None]
        few_popular = (len(self.ordered) - popular_begin - own_popular < self.pool)[:, None]
        popular = ~few_popular & (few_unpopular | (draw.random.random(shape) < 0.5))
        drawn = np.full(shape, -1)
        for from_popular in (popular, ~popular):  # what one pool does not have, the other may
            begin = np.where(from_popular, popular_begin[:, None], 0)
            size = np.where(from_popular, len(self.ordered), unpopular_end[:, None]) - begin
            for _ in range(ROUNDS):
                wanted = (drawn < 0) & (size > 0)
                if not wanted.any():
                    break
                at = begin + (draw.random.random(shape) * size).astype(np.int64)
                item = self.by_popularity[np.minimum(at, len(self.ordered) - 1)]
                fits = wanted & (item < existing) & ~draw.positives.has(user, item)
                for c in range(draw.wanted):  # one after the other: all of a row are different
                    new = fits[:, c] & ~(drawn == item[:, c : c + 1]).any(1)
                    drawn[new, c] = item[new, c]
        return np.where(drawn < 0, uniform_negatives(draw), drawn) if (drawn < 0).any() else drawn

    def _own(self, user_B: Ints, positives: Positives) -> tuple[Ints, Ints]:
        """What the users have, one after the other: whose it is, and its place in the order of popularity."""
        first, last = (np.searchsorted(positives.pairs, (user_B + more) * positives.items) for more in (0, 1))
        window = np.repeat(np.arange(len(user_B)), last - first)
        at = np.arange(len(window)) + np.repeat(
            first - np.cumsum(last - first) + (last - first), last - first
        )
        return window, self.place_I[positives.pairs[at] % positives.items]
