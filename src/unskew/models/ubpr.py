"""UBPR: Unbiased Pairwise Learning from Biased Implicit Feedback (Saito, ICTIR 2020).

A clicked item i should be ranked above any other item j that is not relevant. The relevance of both is
estimated from clicks:

    l(u, i, j) = max(-beta, (1 / theta_i) (1 - y_j / theta_j) softplus(-(s_i - s_j)))
    theta_i    = max((n_i / max_k n_k)^eta, M)

    s_i    the score <e_u, e_i>
    y_j    whether the user clicked j, too
    n_i    the clicks of item i in training
    theta  the propensity; eta is the `exponent`, M is the `clip`
    beta   the `floor`

Bias: the loss is unbiased with the true theta and beta = infinity. Variance: if j was clicked, a term is
negative and may be arbitrarily large; the floor adds bias and bounds the variance.

What was decided: A term at the floor has no gradient. With the authors' small beta this is nearly every term
with a clicked j, so the fraction of such pairs is reported. The other items j are drawn from all items, also
from those that the user clicked, which have label 1. The authors draw from the user's rows; a sampler without
positives would silently turn the model into a weighted BPR. Propensities count positives only and have a
lower bound M. (The authors' matrix for Coat also has unlabelled pairs, so that all their propensities are
one, without a bound.)
"""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from unskew.core.config import AtLeast1, NotNegative, Probability, Search, Settings
from unskew.data.batches.batch import Batch
from unskew.data.batches.negatives import uniform_items
from unskew.data.log.split import Known, Split
from unskew.models.base import ModelConfig
from unskew.models.factors import MatrixFactors, popularity_propensity
from unskew.nn.losses import bpr, weighted_mean
from unskew.nn.phases import Phase

LARGEST = 1e6  # the upper bound of a term


class UBPR(
    MatrixFactors,
    name="ubpr",
    paper="Saito, Unbiased Pairwise Learning from Biased Implicit Feedback, ICTIR 2020",
):
    """Matrix factorisation, trained with unbiased pairwise ranking."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: Annotated[AtLeast1, Search.among(100, 200, 300)] = 100
        """The width of the embeddings (d)."""
        exponent: Annotated[NotNegative, Search(0.5, 1.0)] = 0.5
        """The propensity of an item is its relative popularity to the power of this (eta)."""
        clip: Annotated[Probability, Search(1e-3, 0.2, log=True)] = 0.01
        """The lower bound of propensities; smaller ones are raised to it (M)."""
        floor: Annotated[NotNegative, Search(1e-3, 1e-2, log=True)] = 0.00234
        """How far below zero a term of the loss may be (beta)."""

    config: Config
    theta_I: Tensor
    recipe: ClassVar[Settings] = {"batch_size": 256, "weight_decay": 3.84e-5}
    searched: ClassVar[dict[str, Search]] = {"weight_decay": Search(1e-7, 1e-3, log=True)}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.register_buffer("theta_I", torch.ones(known.items.size))

    def fit_statistics(self, split: Split) -> None:
        counts_I = split.item_counts[: split.known_items]
        self.theta_I.copy_(popularity_propensity(counts_I, self.config.exponent, self.config.clip)[0])

    def phases(self) -> tuple[Phase, ...]:
        phase = Phase("pairwise", "positives", self.pairwise_loss, self.parameters, negatives=10)
        return (replace(phase, drawing=uniform_items),)

    def pairwise_loss(self, batch: Batch) -> Tensor:
        """The mean of l of each clicked item, the first candidate, against all other candidates. A weight
        from outside is that of the clicked pair."""
        scores_BC, theta_BC = batch.with_offset(self(batch)), self.theta_I[batch.candidates_BC]
        terms = pairwise_terms(
            scores_BC[:, :1], scores_BC[:, 1:], theta_BC[:, :1], theta_BC[:, 1:], batch.labels_BC[:, 1:]
        )
        weight = None if batch.weight_BC is None else batch.weight_BC[:, :1]
        return weighted_mean(clamped(terms, self.config.floor), weight)

    def statistics(self, batch: Batch) -> dict[str, float]:
        """The fraction of the pairs of two clicked items of one user whose term is at the floor and so
        teaches nothing. No other term can be there."""
        clicked_B = batch.labels_BC[:, 0] == 1
        item_B = batch.candidates_BC[:, 0]
        same_user = batch.user_B[:, None] == batch.user_B
        both_clicked = clicked_B[:, None] & clicked_B
        i, j = (same_user & both_clicked & (item_B[:, None] != item_B)).nonzero(as_tuple=True)
        if not len(i):
            return {}
        with torch.no_grad():
            context_ND, theta_N = self.context(batch), self.theta_I[item_B]
            of_i, of_j = ((context_ND[i] * self.vectors(item_B[which])).sum(1) for which in (i, j))
            terms = pairwise_terms(of_i, of_j, theta_N[i], theta_N[j], torch.ones_like(of_i))
        return {"clicked_pairs_clamped": round(float((terms < -self.config.floor).float().mean()), 6)}


def pairwise_terms(
    score_i: Tensor, score_j: Tensor, theta_i: Tensor, theta_j: Tensor, clicked_j: Tensor
) -> Tensor:
    """The terms (1 / theta_i) (1 - y_j / theta_j) softplus(-(s_i - s_j)), before the floor."""
    return (1 - clicked_j / theta_j) / theta_i * bpr(score_i, score_j)


def clamped(terms: Tensor, floor: float) -> Tensor:
    """The terms, none of them below minus `floor` (or above a very large number)."""
    return terms.clamp(-floor, LARGEST)
