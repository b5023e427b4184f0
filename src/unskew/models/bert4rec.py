"""BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from Transformer (Sun et
al., CIKM 2019).

Some places of a window are masked and predicted from all others; to recommend, a mask is appended to the
history and read there.

Masks      fresh in every step (the authors make ten copies beforehand, so a round here is ten epochs); always
           the mask, never another item. A share of the windows masks only the newest moment, which is what
           recommending looks like. Elsewhere a place is predicted from both sides, as the paper has it: later
           events, and others of its own moment, are no past, but visible.
Counting   every masked place counts, the oldest too, but for the one that the window before has counted
           already.
Places     counted from the newest, 0. A window has at most history + 1 of them, and so has a history with the
           mask behind it, which stands at place 0 however short the history is. Nothing is dropped from a
           history, and an empty one is the mask alone.
Softmax    over items only (theirs has a row for the mask), with a bias per item.
Strangers  in a history they read what a mask reads; as candidates they are the mean of the known items, bias
           included. Where some known items are rare, these are strangers, too, and what a stranger is as a
           candidate is learned from them.
Simpler    Adam with a constant rate, for AdamW with warm-up and decay; attention weights are not dropped.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.config import AtLeast1, Dropped, Share
from unskew.data.batch import Batch, SequenceBatch
from unskew.data.split import Known
from unskew.layers import Dropout, Embeddings, Table, in_groups, is_real
from unskew.losses import cross_entropy
from unskew.models.base import DotProduct, HistoryConfig, Phase, Stage

DEVIATION = 0.02  # of what is drawn at the start


class BERT4Rec(DotProduct, name="bert4rec", paper="Sun et al., BERT4Rec, CIKM 2019"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 64
        """Width of embeddings and states (d)."""
        layers: AtLeast1 = 2
        """Blocks."""
        heads: AtLeast1 = 2
        """Heads of each attention."""
        inner: AtLeast1 = 256
        """Width of the feed-forward part of a block."""
        dropout: Dropped = 0.2
        """Share of activations dropped."""
        masked: Share = 0.2
        """Share of a window's places that is masked (rho)."""
        most_masked: AtLeast1 = 30
        """Places of a window that are masked, at most."""
        newest_only: Share = 0.1
        """Share of the windows of which only the newest item is masked."""
        copies: AtLeast1 = 10
        """Epochs in a round, each with other masks."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {"sequences": 128, "rounds": 100, "patience": 10}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items = Table(known.items, width)  # its vector of the unknown is the mask
        self.positions = nn.Parameter(torch.empty(config.history + 1, width))
        for drawn in (self.items.weight, self.items.unknown, self.positions):
            nn.init.normal_(drawn, std=DEVIATION)
        self.norm, self.dropout = nn.LayerNorm(width), Dropout(config.dropout)
        self.blocks = nn.ModuleList(
            Block(width, config.heads, config.inner, config.dropout) for _ in range(config.layers)
        )
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = Embeddings(known.items, 1, deviation=0.0)

    def states(self, ids_BL: Tensor, masked_BL: Tensor | None, read_BW: Tensor) -> Tensor:
        """States at some places of each sequence, (B, W, D)."""
        L = ids_BL.shape[1]
        x_BLD = self.dropout(self.norm(self.items(ids_BL, masked_BL) + self.positions[:L].flip(0)))
        real_BL = is_real(ids_BL)
        visible = None if bool(real_BL.all()) else real_BL[:, None, None]
        for block in self.blocks[:-1]:
            x_BLD = block(x_BLD, x_BLD, visible)
        asking_BWD = x_BLD.gather(1, read_BW[..., None].expand(-1, -1, x_BLD.shape[2]))
        return self.blocks[-1](asking_BWD, x_BLD, visible)  # nobody reads the other places

    # As a recommender

    def context(self, batch: Batch) -> Tensor:
        g_BD = in_groups(batch.history_BL, self._next)
        return torch.cat([g_BD, torch.ones(len(g_BD), 1)], dim=1)

    def _next(self, ids_BL: Tensor) -> Tensor:
        with_mask_BL = functional.pad(
            ids_BL, (0, 1), value=self.items.known
        )  # who is unknown reads what a mask reads
        newest_B1 = torch.full((len(ids_BL), 1), ids_BL.shape[1])
        return self.head(self.states(with_mask_BL, None, newest_B1).squeeze(1))

    def vectors(self, item: Tensor) -> Tensor:
        """The table and the bias beside it: the context has a one there."""
        if self.items.row_of is not None:
            return torch.cat([self.items(item), self.bias(item)], dim=-1)
        table_ID = torch.cat([self.items.table(), self.bias.table()], dim=1)
        unknown = item >= self.items.known
        return torch.where(
            unknown[..., None], table_ID.mean(0), functional.embedding(item.masked_fill(unknown, 0), table_ID)
        )

    # How it learns

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        cloze = Phase("cloze", "histories", self.cloze_loss, self.parameters, epochs=self.config.copies)
        return (Stage("train", (cloze,), rounds, validated=True),)

    def cloze_loss(self, batch: SequenceBatch) -> Tensor:
        config, longest = self.config, self.config.history + 1
        ids_BL, past_BL, target_BL = (
            batch.items_BL[:, -longest:],
            batch.past_BL[:, -longest:],
            batch.target_BL[:, -longest:],
        )
        hidden = cloze(ids_BL, past_BL, config.masked, config.most_masked, config.newest_only)
        counted_BW = hidden.chosen_BW & target_BL.gather(1, hidden.places_BW)
        g_ND = self.head(self.states(ids_BL, hidden.masked(ids_BL), hidden.places_BW)[counted_BW])
        weight_N = (
            None
            if batch.weight_BL is None
            else batch.weight_BL[:, -longest:].gather(1, hidden.places_BW)[counted_BW]
        )
        targets_N = ids_BL.gather(1, hidden.places_BW)[counted_BW]
        offsets_V = self.bias.table()[:, 0]
        return cross_entropy(g_ND, self.items.table(), targets_N, weight_N, offsets_V) / max(
            len(targets_N), 1
        )


class Block(nn.Module):
    """A transformer layer, normalised after each part, that asks for some places and reads all."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value, self.attended = (
            nn.Linear(width, width),
            nn.Linear(width, 2 * width),
            nn.Linear(width, width),
        )
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.after_attention, self.after_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, asking_BWD: Tensor, x_BLD: Tensor, visible: Tensor | None) -> Tensor:
        B, W, D = asking_BWD.shape
        query = self.query(asking_BWD).view(B, W, self.heads, -1).transpose(1, 2)
        key, value = self.key_value(x_BLD).view(B, x_BLD.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        asking_BWD = self.after_attention(
            asking_BWD + self.dropout(self.attended(read.transpose(1, 2).reshape(B, W, D)))
        )
        inner = functional.gelu(self.widen(asking_BWD))
        return self.after_inner(asking_BWD + self.dropout(self.narrow(inner)))


class Cloze(NamedTuple):
    """The masked places of each sequence; W is the largest number of them."""

    places_BW: Tensor
    chosen_BW: Tensor  # a sequence with fewer has them first

    def masked(self, ids_BL: Tensor) -> Tensor:
        return torch.zeros(ids_BL.shape, dtype=torch.bool).scatter(1, self.places_BW, self.chosen_BW)


def masked_count(length: Tensor, share: float, most: int) -> Tensor:
    """How many places of a sequence are masked."""
    return (share * length).round().clamp(min=1, max=most).long()


def cloze(ids_BL: Tensor, past_BL: Tensor, share: float, most: int, newest_only: float) -> Cloze:
    """Draw the places to be masked: a share of each sequence, or its newest moment alone. No sequence is
    empty."""
    real_BL = is_real(ids_BL)
    order_BL = torch.rand(ids_BL.shape).masked_fill_(~real_BL, 2)
    count_B = masked_count(real_BL.sum(1), share, most)
    newest_B = torch.rand(len(ids_BL)) < newest_only
    newest_BL = real_BL & (
        past_BL == past_BL[:, -1:]
    )  # what happened at the newest event's own moment is not before it
    order_BL = torch.where(newest_B[:, None] & newest_BL, -1, order_BL)
    count_B = torch.where(newest_B, newest_BL.sum(1), count_B)
    places_BW = order_BL.argsort(dim=1)[:, : int(count_B.max())]
    return Cloze(places_BW, torch.arange(places_BW.shape[1]) < count_B[:, None])
