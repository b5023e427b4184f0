"""SASRec: Self-Attentive Sequential Recommendation (Kang and McAuley, ICDM 2018), trained with cross-entropy
over the whole catalogue.

    h = CausalTransformer(sqrt(d) e_1 + p_1, ..., sqrt(d) e_L + p_L),    score(c) = <h_L, e_c>

    e_l, p_l  the embeddings of the l-th item of the history, oldest first, and of that position
    h_L       the state at the newest item, which has read all items before
    e_c       the embedding of candidate c

Klenitskiy and Vasilev (Turning Dross Into Gold Loss, RecSys 2023) showed that with cross-entropy over the
whole catalogue, instead of one negative per positive, SASRec beats BERT4Rec. The blocks are those of the
authors' code: only queries are normalised, and the residual connection starts from the normalised query.
Positions are counted from the oldest item that is read, so one pass gives the states of all prefixes.
"""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from unskew.core.config import AtLeast1, Dropped, Layers, Settings, Width
from unskew.data.log.split import Known
from unskew.models.base import HistoryConfig, NextItem
from unskew.nn.layers import CausalEncoder


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

    config: Config
    is_exportable = True
    recipe: ClassVar[Settings] = {"sequences": 128, "epochs": 40, "patience": 4}
    presets: ClassVar[dict[str, Settings]] = {"paper": {"epochs": 100, "patience": 10}}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.encoder = CausalEncoder(
            config.width, config.layers, config.heads, config.dropout, config.history + 1
        )

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.encoder(self.items(ids_BL))
