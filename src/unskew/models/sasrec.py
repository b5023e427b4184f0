"""SASRec: Self-Attentive Sequential Recommendation (Kang and McAuley, ICDM 2018), trained with cross-entropy
over the whole catalogue or over sampled negatives.

    h = CausalTransformer(a e_1 + p_1, ..., a e_L + p_L),    score(c) = <h_L, e_c>

    a         sqrt(d), or 1 where embeddings start small
    e_l, p_l  the embeddings of the l-th item of the history, oldest first, and of that position
    h_L       the state at the newest item, which has read all items before
    e_c       the embedding of candidate c

Klenitskiy and Vasilev (Turning Dross Into Gold Loss, RecSys 2023) showed that with cross-entropy over the
whole catalogue, instead of one negative per positive, SASRec beats BERT4Rec. The blocks are those of the
authors' code: only queries are normalised, and the residual connection starts from the normalised query.
Positions are counted from the oldest item that is read, so one pass gives the states of all prefixes.

The preset `sampled` follows eSASRec (RecSys 2025), whose authors report the best leave-one-out figures for
SASRec with a sampled softmax and one block. Differences: negatives are shared by a batch and corrected by log
Q, there are 1,024 instead of 256, and dropout, width and the small initial embeddings were chosen by the
validation set of Beauty (leave-one-out) in four trials, not all of them finished, so better ones may exist.
docs/published.md has the figures of the test.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from unskew.core.config import AtLeast1, Dropped, Layers, Positive, Settings, Width
from unskew.data.batches.batch import Offset
from unskew.data.log.split import Known
from unskew.models.base import HistoryConfig, NextItem
from unskew.nn.layers import CausalBlock, CausalEncoder
from unskew.nn.losses import divisor, sampled_softmax


class SASRec(
    NextItem,
    name="sasrec",
    paper="Kang and McAuley, ICDM 2018; cross-entropy: Klenitskiy and Vasilev, RecSys 2023",
):
    """A causal transformer that predicts the next item."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 64
        """The width of embeddings and hidden states (d)."""
        layers: Layers = 2
        """The number of transformer blocks."""
        heads: AtLeast1 = 1
        """The number of attention heads of each block."""
        dropout: Dropped = 0.1
        """The fraction of activations that dropout sets to zero."""
        samples: AtLeast1 | None = None
        """The number of negatives that each batch draws for its softmax. By default the softmax is over the
        whole catalogue."""
        deviation: Positive | None = None
        """The standard deviation of the initial embeddings, which are then read as they are. By default it is
        1 / sqrt(d), and embeddings are read times sqrt(d)."""

    config: Config
    is_exportable = True
    recipe: ClassVar[Settings] = {"sequences": 128, "epochs": 40, "patience": 5}
    presets: ClassVar[dict[str, Settings]] = {
        "paper": {"epochs": 100, "patience": 10},
        "sampled": {
            "samples": 1024,
            "deviation": 0.02,
            "layers": 1,
            "dropout": 0.5,
            "epochs": 200,
            "patience": 5,
        },
    }

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width, config.deviation)
        # The encoder multiplies by sqrt(d).
        self.scale = 1.0 if config.deviation is None else config.width**-0.5
        blocks = (self.make_block(config) for _ in range(config.layers))
        self.encoder = CausalEncoder(config.width, config.history + 1, config.dropout, blocks)

    @staticmethod
    def make_block(config: Config) -> nn.Module:
        """A causal layer from states (B, L, D) to states."""
        return CausalBlock(config.width, config.heads, config.dropout)

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.encoder(self.items(ids_BL) * self.scale)

    def loss_of(
        self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None, offset: Offset | None = None
    ) -> Tensor:
        if self.config.samples is None:
            return super().loss_of(states_ND, targets_N, weight_N, offset)
        samples = self.config.samples
        total = sampled_softmax(states_ND, targets_N, self.items, samples, weight_N, offset=offset)
        return total / divisor(len(targets_N))
