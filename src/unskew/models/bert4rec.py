"""BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from Transformer (Sun et
al., CIKM 2019).

Some positions of a window are masked and predicted from all others. To recommend, a mask is appended to the
history, and the state at the mask is compared with every item:

    x_l = LayerNorm(e_l + p_l),    h = Transformer(x)
    g = LayerNorm(GELU(W h_m + b)),    score(c) = <g, e_c> + b_c
    e_l, p_l  the embeddings of the item at position l and of that position
    h_m       the state at a masked position m
    e_c, b_c  the embedding and the bias of candidate c

What was decided where the paper is silent or the authors' code differs:

Masks      New masks are drawn in every step (the authors make ten copies beforehand, so an epoch here has ten
           epochs). A masked position always gets the mask, never another item. In a fraction of the windows
           only the newest moment is masked, because that is what recommending looks like. Otherwise, as in
           the paper, a position is predicted from both sides: later events, and others of its own moment,
           are not its past, but they are visible.
Targets    Every masked position is a target, also the oldest. Only an event that the window before has
           predicted already is no target again.
Positions  Positions are counted back from the newest, which is 0. A window has at most history + 1 positions,
           and so has a history with the mask behind it. The mask is always at position 0, however short the
           history is. Nothing is dropped from a history, and an empty one is the mask alone.
Softmax    It is over items only (theirs has a row for the mask), with a bias per item.
Unknown    In a history, unknown items get the vector of the mask. As candidates they get the mean of the
           known items, bias included. If rare items count as unknown, the vector and the bias of an unknown
           candidate are learned from those.
Simpler    Adam with a constant learning rate replaces AdamW with warm-up and decay. Attention weights are
           not dropped.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, Layers, Search, Settings, Share, Width
from unskew.data.batches.batch import Batch, SequenceBatch
from unskew.data.log.split import Known
from unskew.models.base import DotProduct, HistoryConfig
from unskew.nn.layers import Dropout, Embeddings, Table, in_groups, is_real
from unskew.nn.losses import cross_entropy, divisor
from unskew.nn.phases import Phase

DEVIATION = 0.02  # the standard deviation of the initial embeddings


class BERT4Rec(DotProduct, name="bert4rec", paper="Sun et al., BERT4Rec, CIKM 2019"):
    """A bidirectional transformer that predicts masked items of a history."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 64
        """The width of embeddings and hidden states (d)."""
        layers: Layers = 2
        """The number of transformer blocks."""
        heads: AtLeast1 = 2
        """The number of attention heads of each block."""
        inner: AtLeast1 = 256
        """The width of the feed-forward layer of a block."""
        dropout: Dropped = 0.2
        """The fraction of activations that dropout sets to zero."""
        masked: Annotated[Share, Search.among(0.2, 0.4, 0.6)] = 0.2
        """The fraction of a window's positions that is masked (rho)."""
        most_masked: AtLeast1 = 30
        """The largest number of positions of a window that are masked."""
        newest_only: Share = 0.1
        """The fraction of the windows in which only the newest moment is masked."""
        copies: AtLeast1 = 10
        """The number of epochs in an epoch, each with new masks."""

    config: Config
    is_exportable = True
    knows_by = ("items",)
    recipe: ClassVar[Settings] = {"sequences": 128, "epochs": 100, "patience": 10}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items = Table(known.items, width)  # its unknown vector is the mask
        self.items.begins = "mean"
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
        """The states at the positions `read_BW` of each sequence, which is padded on the left, (B, W, D).
        Masked positions are read as the mask instead of their item."""
        L = ids_BL.shape[1]
        x_BLD = self.dropout(self.norm(self.items(ids_BL, masked_BL) + self.positions[:L].flip(0)))
        real_BL = is_real(ids_BL)
        visible = None if bool(real_BL.all()) else real_BL[:, None, None]
        for block in self.blocks[:-1]:
            x_BLD = block(x_BLD, x_BLD, visible)
        # Of the last block, only the states at these positions are needed.
        asking_BWD = x_BLD.gather(1, read_BW[..., None].expand(-1, -1, x_BLD.shape[2]))
        return self.blocks[-1](asking_BWD, x_BLD, visible)

    # As a recommender

    def context(self, batch: Batch) -> Tensor:
        return in_groups(batch.history_BL, self.read_histories)

    def read_histories(self, ids_BL: Tensor) -> Tensor:
        """The state g at a mask behind each history, and a one, (B, D + 1)."""
        # Any unknown id will do as the mask: both have the same vector.
        with_mask_BL = functional.pad(ids_BL, (0, 1), value=self.items.known)
        newest_B1 = torch.full_like(with_mask_BL[:, :1], ids_BL.shape[1])
        g_BD = self.head(self.states(with_mask_BL, None, newest_B1).squeeze(1))
        return functional.pad(g_BD, (0, 1), value=1.0)

    def vectors(self, item: Tensor) -> Tensor:
        """The embedding of each item with its bias as one more entry; a context has a one there."""
        if self.items.row_of is not None:
            return torch.cat([self.items(item), self.bias(item)], dim=-1)
        table_ID = torch.cat([self.items.table(), self.bias.table()], dim=1)
        unknown = item >= self.items.known
        known_vectors = functional.embedding(item.masked_fill(unknown, 0), table_ID)
        return torch.where(unknown[..., None], table_ID.mean(0), known_vectors)

    # How it learns

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("cloze", "histories", self.cloze_loss, self.parameters, self.config.copies),)

    def cloze_loss(self, batch: SequenceBatch) -> Tensor:
        """The mean cross-entropy of masked items among all items."""
        config, newest = self.config, slice(-self.config.history - 1, None)
        ids_BL, past_BL, target_BL = (
            table[:, newest] for table in (batch.items_BL, batch.past_BL, batch.target_BL)
        )
        hidden = cloze(ids_BL, past_BL, config.masked, config.most_masked, config.newest_only)
        counted_BW = hidden.chosen_BW & target_BL.gather(1, hidden.places_BW)
        g_ND = self.head(self.states(ids_BL, hidden.masked(ids_BL), hidden.places_BW)[counted_BW])
        weight_N = None
        if batch.weight_BL is not None:
            weight_N = batch.weight_BL[:, newest].gather(1, hidden.places_BW)[counted_BW]
        targets_N, offset = ids_BL.gather(1, hidden.places_BW)[counted_BW], batch.offset
        if offset is not None:
            moment_N = offset.moment_N[:, newest].gather(1, hidden.places_BW)[counted_BW]
            offset = offset._replace(moment_N=moment_N)
        total = cross_entropy(g_ND, self.items, targets_N, weight_N, self.bias, offset)
        return total / divisor(len(targets_N))


class Block(nn.Module):
    """A transformer block that normalises the output of each of its two parts (post-norm). It computes the
    states of some positions, which read all positions."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.attended = nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.after_attention, self.after_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, asking_BWD: Tensor, x_BLD: Tensor, visible: Tensor | None) -> Tensor:
        """The new states of the asking positions, (B, W, D), which read those of all positions; `visible`
        says which of these are real, broadcast to (B, H, W, L)."""
        B, W, D = asking_BWD.shape
        query = self.query(asking_BWD).view(B, W, self.heads, -1).transpose(1, 2)
        key, value = self.key_value(x_BLD).view(B, x_BLD.shape[1], 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible)
        attended_BWD = self.attended(read.transpose(1, 2).reshape(B, W, D))
        asking_BWD = self.after_attention(asking_BWD + self.dropout(attended_BWD))
        inner = functional.gelu(self.widen(asking_BWD))
        return self.after_inner(asking_BWD + self.dropout(self.narrow(inner)))


class Cloze(NamedTuple):
    """The masked positions of each sequence. W is the largest number of them."""

    places_BW: Tensor
    chosen_BW: Tensor  # which of these positions are masked: in a sequence with fewer, only the first ones

    def masked(self, ids_BL: Tensor) -> Tensor:
        """Which positions are masked, in the shape of the sequences."""
        return torch.zeros_like(ids_BL, dtype=torch.bool).scatter(1, self.places_BW, self.chosen_BW)


def masked_count(length: Tensor, fraction: float, most: int) -> Tensor:
    """How many positions of a sequence are masked."""
    return (fraction * length).round().clamp(min=1, max=most).long()


def cloze(ids_BL: Tensor, past_BL: Tensor, fraction: float, most: int, newest_only: float) -> Cloze:
    """Draw the positions to be masked in sequences that are padded on the left, of which none is empty: a
    fraction of each, at most `most` of them, or in the fraction `newest_only` only the newest moment."""
    real_BL = is_real(ids_BL)
    order_BL = torch.rand(ids_BL.shape, device=ids_BL.device).masked_fill_(~real_BL, 2)
    count_B = masked_count(real_BL.sum(1), fraction, most)
    newest_B = torch.rand(len(ids_BL), device=ids_BL.device) < newest_only
    # Events with the same number of events before them as the newest one happened at the same moment.
    newest_BL = real_BL & (past_BL == past_BL[:, -1:])
    order_BL = torch.where(newest_B[:, None] & newest_BL, -1, order_BL)
    count_B = torch.where(newest_B, newest_BL.sum(1), count_B)
    places_BW = order_BL.argsort(dim=1)[:, : int(count_B.max())]
    numbers_W = torch.arange(places_BW.shape[1], device=ids_BL.device)
    return Cloze(places_BW, numbers_W < count_B[:, None])
