"""UBPR: Unbiased Pairwise Learning from Biased Implicit Feedback (Saito, ICTIR 2020).

A clicked item i is to be ranked above any other j that is not relevant. Relevance of both is estimated from
clicks:

    l(u, i, j) = max(-beta, (1 / theta_i) (1 - y_j / theta_j) softplus(-(s_i - s_j))),    theta_i = max((n_i /
                                                                                          max_k n_k)^eta, M)

Symbols: s the score <e_u, e_i>, y_j whether the user clicked j too, n_i the clicks of item i in training, eta
the `exponent`, M the
`clip`, beta the `floor`. Unbiased with the true theta and beta = infinity. If j was clicked, the term is
negative and of any size; the clamp makes it biased and keeps the variance in hand.

Decisions. A clamped term has no gradient: with the small beta of the authors nearly every clicked j is inert,
so the share of clamped ones is reported. Partners j are drawn from all items, the user's own included with
label 1; the authors draw from the user's rows, and a sampler without positives would silently make this
weighted BPR. Propensities count positives only (the authors' matrix for Coat also has unlabelled pairs, so
that all of them are one), and have a floor M, which theirs have not.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from unskew.config import AtLeast1, NotNegative, Probability
from unskew.data.batch import Batch
from unskew.data.negatives import uniform_items
from unskew.data.split import Known, Split
from unskew.losses import bpr, weighted_mean
from unskew.models.base import ModelConfig, Phase, Stage
from unskew.models.factors import MatrixFactors, popularity_propensity

LARGEST = 1e6  # of one term


class UBPR(
    MatrixFactors,
    name="ubpr",
    paper="Saito, Unbiased Pairwise Learning from Biased Implicit Feedback, ICTIR 2020",
):
    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: AtLeast1 = 100
        """Width of the embeddings (d)."""
        exponent: NotNegative = 0.5
        """Propensities are relative popularities to this power (eta)."""
        clip: Probability = 0.01
        """Propensities are raised to at least this (M)."""
        floor: NotNegative = 0.00234
        """No term is below minus this (beta)."""

    config: Config
    theta_I: Tensor
    recipe: ClassVar[dict[str, Any]] = {"batch_size": 256, "weight_decay": 3.84e-5}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.register_buffer("theta_I", torch.ones(known.items.size))

    def measure(self, split: Split) -> None:
        counts_I = split.item_counts[: split.known_items]
        self.theta_I.copy_(popularity_propensity(counts_I, self.config.exponent, self.config.clip)[0])

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        phase = Phase(
            "pairwise", "positives", self.pairwise_loss, self.parameters, negatives=10, drawing=uniform_items
        )
        return (Stage("train", (phase,), rounds, validated=True),)

    def pairwise_loss(self, batch: Batch) -> Tensor:
        """Each clicked item, the first candidate, against all others; weighted by the pair that was
        observed."""
        scores_BC, theta_BC = self(batch), self.theta_I[batch.candidates_BC]
        terms = pairwise_terms(
            scores_BC[:, :1], scores_BC[:, 1:], theta_BC[:, :1], theta_BC[:, 1:], batch.labels_BC[:, 1:]
        )
        return weighted_mean(
            clamped(terms, self.config.floor), None if batch.weight_BC is None else batch.weight_BC[:, :1]
        )

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Of the pairs of two clicked items of one user, how many are clamped and so teach nothing. No other
        term can be."""
        clicked_B = batch.labels_BC[:, 0] == 1
        item_B = batch.candidates_BC[:, 0]
        other = (
            (batch.user_B[:, None] == batch.user_B)
            & (item_B[:, None] != item_B)
            & clicked_B[:, None]
            & clicked_B
        )
        i, j = other.nonzero(as_tuple=True)
        if not len(i):
            return {}
        with torch.no_grad():
            context_ND, theta_N = self.context(batch), self.theta_I[item_B]
            of_i, of_j = ((context_ND[i] * self.vectors(item_B[which])).sum(1) for which in (i, j))
            terms = pairwise_terms(of_i, of_j, theta_N[i], theta_N[j], torch.ones(len(i)))
        return {"clicked_pairs_clamped": round(float((terms < -self.config.floor).float().mean()), 6)}


def pairwise_terms(
    score_i: Tensor, score_j: Tensor, theta_i: Tensor, theta_j: Tensor, clicked_j: Tensor
) -> Tensor:
    """(1 / theta_i) (1 - y_j / theta_j) softplus(-(s_i - s_j)), before the clamp."""
    return (1 - clicked_j / theta_j) / theta_i * bpr(score_i, score_j)


def clamped(terms: Tensor, floor: float) -> Tensor:
    return terms.clamp(-floor, LARGEST)
