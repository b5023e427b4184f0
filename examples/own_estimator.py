"""An estimator of propensities of one's own, whose parameters are learned. docs/tutorials/own-estimator.md
explains it."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.nn.phases import Phase
from unskew.propensity.base import Propensity


class ShownOrDrawn(Propensity, name="shown-or-drawn"):
    """P(o = 1) = sigmoid(b + w log(1 + n_i)), where n_i counts the clicks on item i strictly before t."""

    def __init__(self, alpha: float, clip: float) -> None:
        super().__init__(alpha, clip)
        self.line = nn.Linear(1, 1)  # b and w

    def logits(self, log: LogView, item: ArrayLike, time: ArrayLike) -> Tensor:
        """The logit of each item at each time; the two are broadcast."""
        start, end = log.audiences.before(item, time)
        popularity = torch.as_tensor(np.log1p(end - start), dtype=torch.float32)
        return self.line(popularity[..., None])[..., 0]

    def logits_of(self, batch: Batch) -> Tensor:
        """The logit of each candidate at the time of its context, (B, C)."""
        assert batch.log is not None
        return self.logits(batch.log, batch.candidates_BC.numpy(), batch.times_B.numpy()[:, None])

    def item_view(self, batch: Batch) -> Tensor:
        return torch.sigmoid(self.logits_of(batch))

    def user_view(self, batch: Batch) -> None:
        return None

    @torch.no_grad()
    def log_exposure(self, log: LogView, item: ArrayLike, time: ArrayLike) -> Tensor:
        return functional.logsigmoid(self.logits(log, item, time))

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("shown or drawn", "pairs", self.loss, self.parameters, negatives=4),)

    def loss(self, batch: Batch) -> Tensor:
        """Binary cross-entropy: the first candidate is a row of the log, the others were drawn."""
        logits_BC = self.logits_of(batch)
        logged_BC = torch.zeros_like(logits_BC)
        logged_BC[:, 0] = 1
        return functional.binary_cross_entropy_with_logits(logits_BC, logged_BC)
