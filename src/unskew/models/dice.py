"""DICE: Disentangling User Interest and Conformity for Recommendation with Causal Embedding
(Zheng et al., WWW 2021).

Each user and each item has a vector of interest and a vector of conformity. The score is the sum of both dot
products, also in ranking: <u_int, i_int> + <u_con, i_con>. A click on an item that is less popular than the
one passed over must be due to interest:

    L       = L_click + w_int L_int + w_con L_con - w_dis D
    L_click = mean softplus(-(d_int + d_con))
    L_int   = mean mask softplus(-d_int)
    L_con   = mean mask softplus(d_con) + mean (1 - mask) softplus(-d_con)

    d_int, d_con  the score of the positive minus that of the negative, in each part
    mask          1 if the negative's popularity n_j is larger than the positive's n_i, otherwise 0
    w_int, w_con  weights that shrink by the factor 0.9 after each epoch, as does the margin m
    D             the discrepancy between the two parts of the batch's users and items: their mean distance
                  (`l1`, `l2`), or minus their distance correlation (`dcor`)

Negatives are drawn by popularity (PNSM): n_j > n_i + m or n_j < n_i / 2, by a fair coin. If one of these
pools has fewer than `pool` items, all are drawn from the other. The loss does not estimate a mean over all
pairs, so there is no statement on its bias.

What was decided: Where the authors' code and their paper differ, the code counts. So the lower pool ends at
half the popularity instead of a second margin; L_con has swapped arguments instead of a negated loss, which
would have no bound; and means are over all pairs, masked or not. There is no schedule that waits for a
plateau. The code also trains on a slice of the log that is debiased already; this does not. If neither pool
has enough items, any item that the user does not have is drawn. As everywhere here, no negative is drawn that
did not exist yet. D is multiplied by the mean of the weights from outside, so that a common factor of these
changes the step size but not the balance of the terms.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unskew.core.config import AtLeast1, NotNegative, Probability, Search, Settings, Width
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.batches.negatives import EPOCHS, Draw, Positives, uniform_negatives
from unskew.data.log.split import Known, Split
from unskew.data.log.views import Ints
from unskew.models.base import ModelConfig
from unskew.models.factors import MatrixFactors
from unskew.nn.losses import bpr, weighted_mean
from unskew.nn.phases import Phase
from unskew.nn.vocabulary import RowAdam

COMPARED = 1000  # how many ids the distance correlation compares at most; if there are more, a random sample
SMALLEST = 1e-12  # the least number that a root is taken of: at zero its gradient is infinite

Discrepancy = Literal["dcor", "l1", "l2"]


class DICE(
    MatrixFactors,
    name="dice",
    paper="Zheng et al., Disentangling User Interest and Conformity with Causal Embedding, WWW 2021",
):
    """Matrix factorisation with separate embeddings of interest and of conformity."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: Width = 64
        """The width of the interest embeddings, and also of the conformity embeddings (d)."""
        popularity: Literal["counts", "quantiles"] = "counts"
        """The unit of popularity, and so of the margin: clicks, or the fraction of items with fewer
        clicks."""
        margin: Annotated[NotNegative, Search.among(10.0, 40.0)] = 40.0
        """By how much a popular negative must be more popular than the positive, in the first epoch (m)."""
        pool: AtLeast1 = 40
        """The number of items that a pool must have for negatives to be drawn from it."""
        interest_weight: NotNegative = 0.1
        """The weight of the interest loss in the first epoch (w_int)."""
        conformity_weight: NotNegative = 0.1
        """The weight of the conformity loss in the first epoch (w_con)."""
        discrepancy_weight: NotNegative = 0.01
        """The weight of the discrepancy between interest and conformity (w_dis)."""
        discrepancy: Discrepancy = "dcor"
        """How the discrepancy is measured: as minus the distance correlation (`dcor`), or as the mean
        absolute (`l1`) or mean squared (`l2`) difference."""
        decay: Probability = 0.9
        """The factor by which the margin and the first two weights shrink each epoch."""

    config: Config
    popularity_I: Tensor
    recipe: ClassVar[Settings] = {"batch_size": 128, "weight_decay": 5e-8, "epochs": 100}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, 2 * config.width)
        if config.popularity == "quantiles" and config.margin >= 1:
            raise BadInput(f"margin {config.margin}: in quantiles it is a fraction, below 1")
        for table in (self.users, self.items):
            nn.init.uniform_(table.weight, -(config.width**-0.5), config.width**-0.5)
        self.register_buffer("popularity_I", torch.zeros(known.items.size, dtype=torch.float64))

    def fit_statistics(self, split: Split) -> None:
        counts_I = split.item_counts[: split.known_items].astype(np.float64)
        popularity_I = counts_I if self.config.popularity == "counts" else quantiles(counts_I)
        self.popularity_I.copy_(torch.from_numpy(popularity_I))

    def phases(self) -> tuple[Phase, ...]:
        config = self.config
        drawing = PopularityMargins(self.popularity_I.cpu().numpy(), config.margin, config.decay, config.pool)
        phase = Phase("causes", "positives", self.causes_loss, self.parameters, negatives=4)
        return (replace(phase, drawing=drawing, optimizer=forgetful_adam),)

    def causes_loss(self, batch: Batch) -> Tensor:
        """L, the loss of a batch."""
        config = self.config
        items_BCD, users_B1D = self.vectors(batch.candidates_BC), self.context(batch)[:, None]
        of_interest_BC, of_conformity_BC = (part.sum(-1) for part in halves(items_BCD * users_B1D))
        of_conformity_BC = batch.with_offset(of_conformity_BC)  # exposure that is known need not be learned
        # A negative of the popular pool has n_j > n_i + m, one of the other pool n_j < n_i / 2. So n_j > n_i
        # reveals which pool it came from. Negatives from neither pool are judged in the same way.
        popularity_BC = self.popularity_I[batch.candidates_BC]
        mask = (popularity_BC[:, 1:] > popularity_BC[:, :1]).float()
        weight = None if batch.weight_BC is None else batch.weight_BC[:, :1]
        losses = causes(differences(of_interest_BC), differences(of_conformity_BC), mask, weight)
        fading = config.decay**batch.epoch
        parts = config.interest_weight * losses.interest + config.conformity_weight * losses.conformity
        loss = losses.click + fading * parts
        of_items = self.apart(self.items.table(), batch.candidates_BC)
        apart = of_items + self.apart(self.users.table(), batch.user_B)
        return loss - config.discrepancy_weight * apart * (1.0 if weight is None else weight.mean())

    def apart(self, table_ND: Tensor, ids: Tensor) -> Tensor:
        """The discrepancy D between interest and conformity of these ids, each counted once."""
        once = torch.unique(ids)
        if len(once) > COMPARED:
            once = once[torch.randperm(len(once), device=ids.device)[:COMPARED]]
        return discrepancy(*halves(table_ND[once]), self.config.discrepancy)


def forgetful_adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The authors' Adam. It forgets the past faster than usual, because the curriculum changes the objective
    from epoch to epoch."""
    return RowAdam(
        parameters, lr=learning_rate, betas=(0.5, 0.99), weight_decay=weight_decay, amsgrad=True, fused=True
    )


class Causes(NamedTuple):
    """The three losses of clicks, of interest and of conformity."""

    click: Tensor
    interest: Tensor
    conformity: Tensor


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """The halves of vectors: interest and conformity. They share one table, so a score is one dot product."""
    interest, conformity = x.chunk(2, dim=-1)
    return interest, conformity


def differences(scores_BC: Tensor) -> Tensor:
    """The score of the positive, which is the first candidate, minus that of each negative."""
    return scores_BC[:, :1] - scores_BC[:, 1:]


def causes(interest: Tensor, conformity: Tensor, mask: Tensor, weight: Tensor | None = None) -> Causes:
    """L_click, L_int and L_con, from the differences of scores d_int and d_con. The means are over all pairs,
    also masked ones; the weight of each pair is from outside."""
    nothing = interest.new_zeros(())
    of_conformity = mask * bpr(nothing, conformity) + (1 - mask) * bpr(conformity, nothing)
    terms = bpr(interest + conformity, nothing), mask * bpr(interest, nothing), of_conformity
    return Causes(*(weighted_mean(term, weight) for term in terms))


def discrepancy(x_ND: Tensor, y_ND: Tensor, kind: Discrepancy) -> Tensor:
    """How far apart two sets of vectors are; row by row, they belong to the same ids."""
    if kind == "l1":
        return (x_ND - y_ND).abs().mean()
    if kind == "l2":
        return ((x_ND - y_ND) ** 2).mean()
    return -distance_correlation(x_ND, y_ND)


def distance_correlation(x_ND: Tensor, y_ND: Tensor) -> Tensor:
    """The distance correlation of Szekely et al., between 0 and 1. It compares all N x N distances.

    It is 0 only if the two are independent, and 1 if they are equal up to scale.
    """
    a_NN, b_NN = (doubly_centred(torch.cdist(points, points)) for points in (x_ND, y_ND))
    together, of_x, of_y = (
        (left * right).mean().clamp(min=SMALLEST)
        for left, right in ((a_NN, b_NN), (a_NN, a_NN), (b_NN, b_NN))
    )
    return together.sqrt() / (of_x.sqrt() * of_y.sqrt()).sqrt()


def doubly_centred(a_NN: Tensor) -> Tensor:
    """A matrix minus the means of its rows and columns, plus its overall mean."""
    return a_NN - a_NN.mean(0, keepdim=True) - a_NN.mean(1, keepdim=True) + a_NN.mean()


def quantiles(counts_I: NDArray[np.float64]) -> NDArray[np.float64]:
    """For each item, the fraction of items with fewer clicks."""
    return np.searchsorted(np.sort(counts_I), counts_I) / len(counts_I)


class PopularityMargins:
    """Draws negatives that are clearly more popular than the positive, or clearly less (PNSM), and that the
    user does not have. The margin shrinks by `decay` in each epoch; a pool of fewer items than `pool` is not
    drawn from."""

    def __init__(self, popularity_I: NDArray[np.float64], margin: float, decay: float, pool: int) -> None:
        self.popularity_I, self.margin, self.decay, self.pool = popularity_I, margin, decay, pool
        self.by_popularity = np.argsort(popularity_I, kind="stable")
        self.ordered = popularity_I[self.by_popularity]
        self.place_I = np.argsort(self.by_popularity)  # the position of each item in that order

    def pools(self, popularity_B: NDArray[np.float64], epoch: int) -> tuple[Ints, Ints]:
        """Where, in the order of popularity, the unpopular pool ends and where the popular pool begins."""
        margin = self.margin * self.decay**epoch
        unpopular_end = np.searchsorted(self.ordered, popularity_B / 2, "left")
        popular_begin = np.searchsorted(self.ordered, popularity_B + margin, "right")
        return unpopular_end, popular_begin

    def __call__(self, draw: Draw) -> Ints:
        """The negatives of each context, (B, wanted); all of a row are different where possible."""
        user, existing = draw.user_B[:, None], draw.existing_B[:, None]
        shape = (len(draw.user_B), draw.wanted)
        unpopular_end, popular_begin = self.pools(self.popularity_I[draw.item_B], draw.epoch)
        context, position = self._own(draw.user_B, draw.positives)
        own_unpopular, own_popular = (
            np.bincount(context[inside], minlength=len(user))
            for inside in (position < unpopular_end[context], position >= popular_begin[context])
        )
        few_unpopular = (unpopular_end - own_unpopular < self.pool)[:, None]
        few_popular = (len(self.ordered) - popular_begin - own_popular < self.pool)[:, None]
        popular = ~few_popular & (few_unpopular | (draw.random.random(shape) < 0.5))
        drawn = np.full(shape, -1)
        for from_popular in (popular, ~popular):  # if one pool has too few, try the other
            begin = np.where(from_popular, popular_begin[:, None], 0)
            size = np.where(from_popular, len(self.ordered), unpopular_end[:, None]) - begin
            for _ in range(EPOCHS):
                wanted = (drawn < 0) & (size > 0)
                if not wanted.any():
                    break
                at = begin + (draw.random.random(shape) * size).astype(np.int64)
                item = self.by_popularity[np.minimum(at, len(self.ordered) - 1)]
                fits = wanted & (item < existing) & ~draw.positives.has(user, item)
                for c in range(draw.wanted):  # one column after the other, so that a row has no item twice
                    new = fits[:, c] & ~(drawn == item[:, c : c + 1]).any(1)
                    drawn[new, c] = item[new, c]
        return np.where(drawn < 0, uniform_negatives(draw), drawn) if (drawn < 0).any() else drawn

    def _own(self, user_B: Ints, positives: Positives) -> tuple[Ints, Ints]:
        """The items that the users have, one user after the other: the context of each, and its position in
        the order of popularity."""
        first, last = (np.searchsorted(positives.pairs, (user_B + more) * positives.items) for more in (0, 1))
        count = last - first
        context = np.repeat(np.arange(len(user_B)), count)
        at = np.arange(len(context)) + np.repeat(first - np.cumsum(count) + count, count)
        return context, self.place_I[positives.pairs[at] % positives.items]
