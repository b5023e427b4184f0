"""UIR, or Rel-MF: Unbiased Recommender Learning from Missing-Not-At-Random Implicit Feedback
(Saito et al., WSDM 2020).

A click needs relevance and exposure: P(y = 1) = theta_i P(r = 1). So a click counts as 1 / theta_i times
relevant, and the surplus is subtracted from the irrelevant side:

    l(u, i) = (y / theta_i) d1(p) + (1 - y / theta_i) d0(p)
    theta_i = max((n_i / max_j n_j)^eta, M)

    p       sigmoid(s), the predicted relevance; s is the score <e_u, e_i>
    y       whether the pair was clicked
    n_i     the clicks of item i in training
    theta   the propensity; eta is the `exponent`, M is the `clip`
    d1, d0  the loss if the pair is relevant, and if it is not

Bias: with the true theta and M = 0, the mean over all pairs is unbiased for the loss of relevance; the bias
grows with M. Variance: it grows with 1 / theta. A pair without a click costs d0 whatever theta is.

What was decided: The error is squared, (1 - p)^2 and p^2, as in the authors' code for real data. The negative
weight of d0 leaves cross-entropy without a lower bound as p approaches 1, so that option is bounded by 1000
per pair. Half of a batch are clicks and half are pairs without a click, as in that code. The mean over such a
batch does not estimate the mean over all pairs, which `mean="all-pairs"` corrects. There are no bias terms. A
weight from outside is a further factor. Width, M and Adam are those for real data. Batch size and weight
decay are those of the authors' simulation: the weight decay that was tuned on Yahoo (1e-4) lets the
embeddings of users with few clicks vanish elsewhere.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.config import AtLeast1, NotNegative, Probability, Search, Settings
from unskew.data.batches.batch import Batch
from unskew.data.log.split import Known, Split
from unskew.models.base import ModelConfig
from unskew.models.factors import MatrixFactors, popularity_propensity
from unskew.nn.losses import weighted_mean
from unskew.nn.phases import Phase

LARGEST = 1000.0  # the bound of a pair's cross-entropy, in both directions

Error = Literal["squared", "cross-entropy"]


class UIR(
    MatrixFactors,
    name="uir",
    paper="Saito et al., Unbiased Recommender Learning from MNAR Implicit Feedback, WSDM 2020",
):
    """Matrix factorisation of relevance, with clicks weighted by inverse propensities."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: Annotated[AtLeast1, Search.among(100, 200, 300)] = 200
        """The width of the embeddings (d)."""
        exponent: Annotated[NotNegative, Search(0.5, 1.0)] = 0.5
        """The propensity of an item is its relative popularity to the power of this (eta)."""
        clip: Annotated[Probability, Search(1e-3, 0.2, log=True)] = 0.00914
        """The lower bound of propensities; smaller ones are raised to it (M)."""
        error: Error = "squared"
        """How the error of a prediction is measured. Cross-entropy has no lower bound of its own where a
        propensity is below one, so it is bounded by 1000 per pair."""
        mean: Literal["batch", "all-pairs"] = "batch"
        """What the loss is a mean of: the pairs of a batch, half of which are clicks (`batch`), or all pairs,
        by reweighting the batch (`all-pairs`)."""

    config: Config
    theta_I: Tensor
    clipped_I: Tensor
    clicked_share: Tensor  # the fraction of clicked pairs among all pairs of known users and known items
    recipe: ClassVar[Settings] = {
        "batch_size": 2**11,
        "learning_rate": 5e-3,
        "weight_decay": 1e-5,
        "epochs": 100,
        "patience": 10,
    }
    searched: ClassVar[dict[str, Search]] = {
        "learning_rate": Search(1e-3, 1e-2, log=True),
        "weight_decay": Search(1e-7, 1e-3, log=True),
    }

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.register_buffer("theta_I", torch.ones(known.items.size))
        self.register_buffer("clipped_I", torch.zeros(known.items.size, dtype=torch.bool))
        self.register_buffer("clicked_share", torch.zeros(1, dtype=torch.float64))

    def fit_statistics(self, split: Split) -> None:
        counts_I = split.item_counts[: split.known_items]
        theta_I, clipped_I = popularity_propensity(counts_I, self.config.exponent, self.config.clip)
        self.theta_I.copy_(theta_I)
        self.clipped_I.copy_(clipped_I)
        clicks = split.mask("train") & (split.log.label == 1)
        user, item = split.log.user[clicks].astype(np.int64), split.log.item[clicks]
        pairs = np.unique(user * split.known_items + item)
        self.clicked_share.fill_(len(pairs) / (split.known_users * split.known_items))

    def phases(self) -> tuple[Phase, ...]:
        loss = self.relevance_loss
        return (Phase("relevance", "positives", loss, self.parameters, negatives=1, separate=True),)

    def relevance_loss(self, batch: Batch) -> Tensor:
        """The mean of l over a batch."""
        theta_BC = self.theta_I[batch.candidates_BC]
        terms_BC = pair_loss(batch.with_offset(self(batch)), batch.labels_BC, theta_BC, self.config.error)
        if self.config.mean == "all-pairs":
            terms_BC = terms_BC * as_all_pairs(batch.labels_BC, float(self.clicked_share))
        return weighted_mean(terms_BC, batch.weight_BC)

    def statistics(self, batch: Batch) -> dict[str, float]:
        """The fraction of the clicks whose propensity is clipped. Of other pairs the propensity is not
        read."""
        clipped_N = self.clipped_I[batch.candidates_BC][batch.labels_BC == 1]
        return {"clipped": round(float(clipped_N.float().mean()), 6) if len(clipped_N) else 0.0}


def pair_loss(scores: Tensor, labels: Tensor, theta: Tensor, error: Error) -> Tensor:
    """The loss (y / theta) d1(p) + (1 - y / theta) d0(p) of each pair."""
    relevant = labels / theta
    if error == "cross-entropy":
        terms = relevant * functional.softplus(-scores) + (1 - relevant) * functional.softplus(scores)
        return terms.clamp(-LARGEST, LARGEST)
    p = torch.sigmoid(scores)
    return relevant * (1 - p) ** 2 + (1 - relevant) * p**2


def as_all_pairs(labels: Tensor, clicked_share: float) -> Tensor:
    """Weights that turn the mean over a batch into an estimate of the mean over all pairs: the fraction of
    clicked pairs (or others) among all pairs, divided by that in the batch."""
    clicked, here = labels == 1, float((labels == 1).float().mean())
    return torch.where(clicked, clicked_share / max(here, 1e-12), (1 - clicked_share) / max(1 - here, 1e-12))
