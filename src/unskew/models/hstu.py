"""HSTU: hierarchical sequential transduction units (Zhai et al., Actions Speak Louder than Words, ICML 2024).

Attention without a softmax: its weights are not normalised over the history, so a state also knows how much
there was to read.

    U, V, Q, K = silu(W norm(x))                            one linear layer, in four parts
    a_lm       = silu(<Q_l, K_m> + r_(l-m)) / N,    m <= l
    x_l        = x_l + W' (norm(sum over m of a_lm V_m) * U_l)
    score(c)   = <x_L, e_c>

    x_l      the state at the l-th item of the history, oldest first; it begins as the item's embedding
    r_(l-m)  a learned number for each distance between two positions
    N        the largest number of positions
    *        the product entry by entry

What was decided: The relative bias knows positions and not times, because models that read a history here get
its items alone. Events that are no interaction with an item are not read. The loss is the sampled softmax of
`sasrec`, with its positions added to the embeddings, as in the authors' code for public data.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, Layers, Positive, Settings
from unskew.models.sasrec import SASRec
from unskew.nn.layers import Dropout


class HSTU(SASRec, name="hstu", paper="Zhai et al., Actions Speak Louder than Words, ICML 2024"):
    """A causal network with attention that is not normalised."""

    @dataclass(frozen=True, kw_only=True)
    class Config(SASRec.Config):
        layers: Layers = 2
        """The number of layers."""
        heads: AtLeast1 = 2
        """The number of attention heads of each layer."""
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
        return TransductionUnit(config)


class TransductionUnit(nn.Module):
    """One layer of HSTU."""

    def __init__(self, config: SASRec.Config) -> None:
        super().__init__()
        width, self.heads, self.length = config.width, config.heads, config.history + 1
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.parts, self.joined = nn.Linear(width, 4 * width), nn.Linear(width, width)
        self.distance = nn.Parameter(torch.zeros(self.length))  # r, by how far back an item is
        self.dropout = Dropout(config.dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """States (B, L, D); each position has read itself and those before."""
        B, L, D = x_BLD.shape
        parts = functional.silu(self.parts(self.before(x_BLD))).view(B, L, 4, self.heads, D // self.heads)
        gate, value, query, key = parts.permute(2, 0, 3, 1, 4)
        place = torch.arange(L, device=x_BLD.device)
        back_LL = place[:, None] - place
        bias_LL = self.distance[back_LL.clamp(min=0)]
        weight_BHLL = functional.silu(query @ key.transpose(2, 3) + bias_LL) / self.length
        read = weight_BHLL.masked_fill(back_LL < 0, 0) @ value
        read_BLD, gate_BLD = (each.transpose(1, 2).reshape(B, L, D) for each in (read, gate))
        return x_BLD + self.joined(self.dropout(self.after(read_BLD) * gate_BLD))
