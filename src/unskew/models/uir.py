"""UIR, or Rel-MF: Unbiased Recommender Learning from Missing-Not-At-Random Implicit Feedback (Saito et al.,
WSDM 2020).

A click is relevance times exposure, P(y = 1) = theta_i P(r = 1). So a click counts 1 / theta_i times as
relevant, and the surplus
is taken off the irrelevant side:

    l(u, i) = (y / theta_i) d1(p) + (1 - y / theta_i) d0(p),    theta_i = max((n_i / max_j n_j)^eta, M)

Symbols: p = sigmoid(s) the predicted relevance, s the score <e_u, e_i>, y the click, n_i the clicks of item i
in training, eta the
`exponent`, M the `clip`; d1, d0 the loss if relevant and if not. With the true theta and M = 0 the mean over
all pairs is unbiased for that of relevance; the variance grows with 1 / theta, the bias with M. A pair
without a click costs d0 whatever theta is.

Decisions. Squared error, (1 - p)^2 and p^2, as in the code for real data: the negative weight on d0 leaves
cross-entropy unbounded below as p goes to 1, so that option is bounded by 1000 per pair. Batches are half
clicks, half pairs without, as in that code; they do not estimate the mean over all pairs, which
`mean="all-pairs"` puts right. No bias terms. A propensity from outside multiplies. Width, M and Adam are
those for real data; batch and weight decay those of the simulation, for what was tuned on Yahoo (1e-4) lets
the embeddings of users with few clicks vanish elsewhere.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unskew.config import AtLeast1, NotNegative, Probability
from unskew.data.batch import Batch
from unskew.data.split import Known, Split
from unskew.losses import weighted_mean
from unskew.models.base import ModelConfig, Phase, Stage
from unskew.models.factors import MatrixFactors, popularity_propensity

LARGEST = 1000.0  # of one pair's cross-entropy, in either direction

Error = Literal["squared", "cross-entropy"]


class UIR(
    MatrixFactors,
    name="uir",
    paper="Saito et al., Unbiased Recommender Learning from MNAR Implicit Feedback, WSDM 2020",
):
    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: AtLeast1 = 200
        """Width of the embeddings (d)."""
        exponent: NotNegative = 0.5
        """Propensities are relative popularities to this power (eta)."""
        clip: Probability = 0.00914
        """Propensities are raised to at least this (M)."""
        error: Error = "squared"
        """What a wrong prediction costs. Cross-entropy has no lower bound where a propensity is below one."""
        mean: Literal["batch", "all-pairs"] = "batch"
        """Of a batch, half of which are clicks; or weighted as if it were drawn from all pairs."""

    config: Config
    theta_I: Tensor
    clipped_I: Tensor
    clicked_share: Tensor  # of all pairs of known users and known items
    recipe: ClassVar[dict[str, Any]] = {
        "batch_size": 2**11,
        "learning_rate": 5e-3,
        "weight_decay": 1e-5,
        "rounds": 100,
        "patience": 10,
    }

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.register_buffer("theta_I", torch.ones(known.items.size))
        self.register_buffer("clipped_I", torch.zeros(known.items.size, dtype=torch.bool))
        self.register_buffer("clicked_share", torch.zeros(1, dtype=torch.float64))

    def measure(self, split: Split) -> None:
        counts_I = split.item_counts[: split.known_items]
        theta_I, clipped_I = popularity_propensity(counts_I, self.config.exponent, self.config.clip)
        self.theta_I.copy_(theta_I)
        self.clipped_I.copy_(clipped_I)
        clicks = split.mask("train") & (split.log.label == 1)
        pairs = np.unique(
            split.log.user[clicks].astype(np.int64) * split.known_items + split.log.item[clicks]
        )
        self.clicked_share.fill_(len(pairs) / (split.known_users * split.known_items))

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        phase = Phase("relevance", "positives", self.relevance_loss, self.parameters, negatives=1)
        return (Stage("train", (phase,), rounds, validated=True),)

    def relevance_loss(self, batch: Batch) -> Tensor:
        terms_BC = pair_loss(
            self(batch), batch.labels_BC, self.theta_I[batch.candidates_BC], self.config.error
        )
        if self.config.mean == "all-pairs":
            terms_BC = terms_BC * as_all_pairs(batch.labels_BC, float(self.clicked_share))
        return weighted_mean(terms_BC, batch.weight_BC)

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Which share of the clicks has a raised propensity; of other pairs it is not read."""
        clicked_BC = batch.labels_BC == 1
        clipped = (
            float(self.clipped_I[batch.candidates_BC][clicked_BC].float().mean())
            if bool(clicked_BC.any())
            else 0.0
        )
        return {"clipped": round(clipped, 6)}


def pair_loss(scores: Tensor, labels: Tensor, theta: Tensor, error: Error) -> Tensor:
    """(y / theta) d1(p) + (1 - y / theta) d0(p), a term each."""
    relevant = labels / theta
    if error == "cross-entropy":
        return (relevant * functional.softplus(-scores) + (1 - relevant) * functional.softplus(scores)).clamp(
            -LARGEST, LARGEST
        )
    p = torch.sigmoid(scores)
    return relevant * (1 - p) ** 2 + (1 - relevant) * p**2


def as_all_pairs(labels: Tensor, clicked_share: float) -> Tensor:
    """What makes the mean over a batch that of all pairs, of which this share is clicked: real shares over
    those of the batch."""
    clicked, here = labels == 1, float((labels == 1).float().mean())
    return torch.where(clicked, clicked_share / max(here, 1e-12), (1 - clicked_share) / max(1 - here, 1e-12))
