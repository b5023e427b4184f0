"""eSASRec: Enhancing Transformer-based Recommendations in a Modular Fashion (Tikhonovich et al., RecSys
2025). It is SASRec with the blocks of LiGR (Borisyuk et al., From Features to Transformers, KDD 2025) and a
sampled softmax.

    x = x + sigmoid(G x) * Attention(norm(x))
    x = x + sigmoid(G' x) * SwiGLU(norm(x)),    SwiGLU(y) = W3 (silu(W1 y) * W2 y)
    score(c) = <x_L, e_c>

    x       the states of the items of the history, oldest first; they begin as embeddings plus positions
    G, G'   learned; they open or close what a part of the block adds to each entry of a state
    norm    layer normalisation, of the input of each part (pre-norm)
    *       the product entry by entry

What was decided: Positions, the learned state of an empty history and the sampled softmax are those of
`sasrec`: negatives are shared by a batch and corrected by log Q. There are 1,024 of them instead of 256, and
embeddings start small. Gates have no bias; the inner width is four times the width.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, Layers, Positive, Settings
from unskew.models.sasrec import SASRec
from unskew.nn.layers import Dropout

INNER = 4  # the inner width of the feed-forward part, in widths


class ESASRec(
    SASRec, name="esasrec", paper="Tikhonovich et al., RecSys 2025; blocks of Borisyuk et al., KDD 2025"
):
    """SASRec with gated pre-norm blocks and a sampled softmax."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SASRec.Config):
        layers: Layers = 2
        """The number of blocks."""
        heads: AtLeast1 = 4
        """The number of attention heads of each block."""
        dropout: Dropped = 0.5
        """The fraction of activations that dropout sets to zero."""
        samples: AtLeast1 | None = 1024
        """The number of negatives that each batch draws for its softmax. Without a number, the softmax is
        over the whole catalogue."""
        deviation: Positive | None = 0.02
        """The standard deviation of the initial embeddings, which are then read as they are. Without a number
        it is 1 / sqrt(d), and embeddings are read times sqrt(d)."""

    is_exportable = False
    recipe: ClassVar[Settings] = {"sequences": 128, "epochs": 200, "patience": 5}
    presets: ClassVar[dict[str, Settings]] = {}

    @staticmethod
    def make_block(config: SASRec.Config) -> nn.Module:
        return GatedBlock(config.width, config.heads, config.dropout)


class GatedBlock(nn.Module):
    """A LiGR block: what attention and the feed-forward part add is multiplied by learned gates."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.gate_attention, self.gate_inner = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.open, self.widen = (nn.Linear(width, INNER * width, bias=False) for _ in range(2))
        self.narrow = nn.Linear(INNER * width, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """States (B, L, D); each position has read itself and those before."""
        B, L, D = x_BLD.shape
        parts = self.query_key_value(self.before_attention(x_BLD)).view(B, L, 3, self.heads, D // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        added = self.attended(read.transpose(1, 2).reshape(B, L, D))
        x_BLD = x_BLD + self.dropout(torch.sigmoid(self.gate_attention(x_BLD)) * added)
        normal = self.before_inner(x_BLD)
        added = self.narrow(self.dropout(functional.silu(self.open(normal)) * self.widen(normal)))
        return x_BLD + self.dropout(torch.sigmoid(self.gate_inner(x_BLD)) * added)
