"""What the unbiased models without a history have in common: matrix factorisation, and popularity as a
propensity. This file is not a model by itself."""

import torch
from torch import Tensor

from unskew.data.batches.batch import Batch
from unskew.data.log.split import Ids, Known
from unskew.data.log.views import Ints
from unskew.models.base import DotProduct, ModelConfig
from unskew.nn.layers import Embeddings


class MatrixFactors(DotProduct):
    """A vector per user and a vector per item; neither time nor history is read."""

    knows_by = ("user",)

    def __init__(self, known: Known, config: ModelConfig, width: int) -> None:
        super().__init__(known, config)
        self.users, self.items = (xavier(known, width) for known in (known.users, known.items))

    def context(self, batch: Batch) -> Tensor:
        return self.users(batch.user_B)

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)


def xavier(known: Ids, width: int) -> Embeddings:
    """Embeddings whose initial variance is that of Glorot and Bengio for a matrix of this shape, as in the
    authors' code of UIR, UBPR and CPR."""
    return Embeddings(known, width, (2 / (known.size + width)) ** 0.5)


def popularity_propensity(counts_I: Ints, exponent: float, clip: float) -> tuple[Tensor, Tensor]:
    """The propensity theta_i = max((n_i / max_j n_j)^eta, M) of every item, with or without positives (n_i),
    and which ones were raised to M, the clip; eta is the exponent."""
    theta_I = torch.tensor((counts_I / counts_I.max()) ** exponent, dtype=torch.float32)
    return theta_I.clamp(min=clip), theta_I < clip
