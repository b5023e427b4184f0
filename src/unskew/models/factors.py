"""Matrix factorisation, and popularity as a propensity: what the unbiased models without a history share. Not
a model by itself."""

import torch
from torch import Tensor

from unskew.data.batch import Batch
from unskew.data.split import Ids, Known
from unskew.data.views import Ints
from unskew.layers import Embeddings
from unskew.models.base import DotProduct, ModelConfig


class MatrixFactors(DotProduct):
    """A vector per user and one per item, and nothing else: time and history are not read."""

    def __init__(self, known: Known, config: ModelConfig, width: int) -> None:
        super().__init__(known, config)
        self.users, self.items = (xavier(known, width) for known in (known.users, known.items))

    def context(self, batch: Batch) -> Tensor:
        return self.users(batch.user_B)

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)


def xavier(known: Ids, width: int) -> Embeddings:
    """A table that starts with the variance of Glorot and Bengio for a matrix of its shape, as in the code of
    UIR, UBPR and CPR."""
    return Embeddings(known, width, (2 / (known.size + width)) ** 0.5)


def popularity_propensity(counts_I: Ints, exponent: float, clip: float) -> tuple[Tensor, Tensor]:
    """theta_i = max((n_i / max_j n_j)^eta, M) of every item, and which ones the clip has raised.

    One entry for every item, with or without positives: a vector of only those that occur would shift every
    index.
    """
    theta_I = torch.tensor((counts_I / counts_I.max()) ** exponent, dtype=torch.float32)
    return theta_I.clamp(min=clip), theta_I < clip
