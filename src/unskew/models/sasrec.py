"""SASRec: Self-Attentive Sequential Recommendation (Kang and McAuley, ICDM 2018), trained with full
cross-entropy.

Klenitskiy and Vasilev (Turning Dross Into Gold Loss, RecSys 2023) showed that with cross-entropy over the
whole catalogue, in the place of one negative per positive, it beats BERT4Rec. The blocks are those of the
authors' code: only queries are normalised, and the residual starts from the normalised query. Places are
counted from the oldest item read, so one pass yields every prefix.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from unskew.config import AtLeast1, Dropped
from unskew.data.split import Known
from unskew.layers import CausalEncoder
from unskew.models.base import HistoryConfig, NextItem


class SASRec(
    NextItem,
    name="sasrec",
    paper="Kang and McAuley, ICDM 2018; cross-entropy: Klenitskiy and Vasilev, RecSys 2023",
):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 64
        """Width of embeddings and states (d)."""
        layers: AtLeast1 = 2
        """Blocks."""
        heads: AtLeast1 = 1
        """Heads of each attention."""
        dropout: Dropped = 0.1
        """Share of activations dropped."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {"sequences": 128, "rounds": 40, "patience": 4}
    presets: ClassVar[dict[str, dict[str, Any]]] = {"paper": {"rounds": 100, "patience": 10}}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.encoder = CausalEncoder(
            config.width, config.layers, config.heads, config.dropout, config.history + 1
        )

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.encoder(self.items(ids_BL))
