"""Building blocks that two models or more share.

Capital suffixes of a tensor's name are its axes: B rows of a batch, L positions of a sequence, D width, H
attention heads, N items of a list, W rows that several sequences share.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.data.batches.batch import Prefixes, as_prefixes
from unskew.data.log.split import Ids
from unskew.data.log.views import PAD
from unskew.nn.vocabulary import has_row_gradient

# One random stream per process, like torch's own. On a CPU, dropout with random bytes from numpy takes a
# quarter of the time of torch's own dropout.
_random = np.random.Generator(np.random.SFC64(0))


def reseed(*what: int) -> None:
    """Seed torch and the dropout of this module with some numbers, such as the run's seed and the step.
    Everything drawn afterwards depends on these alone, so a restored run needs no saved state of a random
    generator."""
    global _random  # noqa: PLW0603
    _random = np.random.Generator(np.random.SFC64(list(what)))
    torch.manual_seed(hash(what) & 0x7FFF_FFFF_FFFF_FFFF)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, dropped: int) -> Tensor:
        kept = torch.from_numpy(_random.integers(0, 256, x.numel(), dtype=np.uint8) >= dropped)
        kept = kept.view(x.shape).to(x.device)
        context.save_for_backward(kept)
        context.scale = 256 / (256 - dropped)
        return (x * kept).mul_(context.scale)

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = context.saved_tensors
        return (gradient[0] * kept).mul_(context.scale), None


class Dropout(nn.Module):
    """Dropout whose rate is rounded to a multiple of 1/256, so that a random byte decides about an entry."""

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.dropped = round(256 * fraction)

    def forward(self, x: Tensor) -> Tensor:
        """While training, zero a fraction of the entries and scale up the others; otherwise return `x`
        itself."""
        return _Drop.apply(x, self.dropped) if self.training and self.dropped else x


class Embeddings(nn.Module):
    """An embedding table with one vector for each known id. PAD is the zero vector. All unknown ids share one
    vector, `unknown_vector`. Where some ids of the training part are too rare to have a vector of their own
    (`Ids`), they count as unknown, and the shared vector is learned from them. Where there are no such ids,
    training never meets an unknown id, and the shared vector is the mean of all others.

    deviation: the standard deviation of the initial values; by default 1 / sqrt(width).
    """

    row_of: Tensor | None
    begins: Literal["unknown", "mean", "zero"] = (
        "unknown"  # with which vector a new id does (`unskew.training.extend`)
    )

    def __init__(self, known: int | Ids, width: int, deviation: float | None = None) -> None:
        super().__init__()
        ids = known if isinstance(known, Ids) else Ids(known)
        self.ids, self.known = ids, ids.size
        rows = self.known if ids.rare is None else int((~ids.rare).sum())
        self.weight = nn.Parameter(torch.empty(rows, width))
        nn.init.normal_(self.weight, std=width**-0.5 if deviation is None else deviation)
        self.unknown: nn.Parameter | None = None
        self.register_buffer("row_of", None)
        if ids.rare is not None:
            self.row_of = torch.from_numpy(np.where(ids.rare, rows, np.cumsum(~ids.rare) - 1))
            self.unknown = nn.Parameter(torch.zeros(width))

    def unknown_vector(self) -> Tensor:
        """The vector that all unknown ids share, (D,)."""
        return self.weight.mean(0) if self.unknown is None else self.unknown

    def first_vector(self) -> Tensor:
        """The vector that a new id begins with, (D,). Where rare ids share a vector, it is that one."""
        if self.row_of is not None or self.begins == "unknown":
            return self.unknown_vector()
        return self.weight.mean(0) * (self.begins == "mean")

    def is_unknown(self, ids: Tensor) -> Tensor:
        """Which ids have no vector of their own."""
        beyond = ids >= self.known
        if self.row_of is None:
            return beyond
        return beyond | (self.row_of[ids.clamp(0, self.known - 1)] == len(self.weight)) & (ids != PAD)

    def table(self) -> Tensor:
        """The vectors of all ids below `known`, (known, D), for a softmax over all ids."""
        if self.row_of is None:
            return self.weight
        vectors = torch.cat([self.weight, self.unknown_vector()[None]])
        return functional.embedding(self.row_of, vectors)  # indexing is far slower

    def forward(self, ids: Tensor, masked: Tensor | None = None) -> Tensor:
        """The embeddings of ids of any shape, (..., D); `masked` ids get the unknown vector."""
        unknown = self.is_unknown(ids)
        if masked is not None:
            unknown = unknown | masked
        padding = ids == PAD
        rows = ids.masked_fill(unknown | padding, 0)
        if self.row_of is not None:
            rows = self.row_of[rows].clamp(max=max(len(self.weight) - 1, 0))
        if len(self.weight):
            embedded = functional.embedding(rows, self.weight, sparse=has_row_gradient(len(self.weight)))
        else:  # all ids are rare, and none has a vector of its own
            embedded = self.weight.new_zeros(*ids.shape, self.weight.shape[1])
        if bool(unknown.any()):
            embedded = torch.where(unknown.unsqueeze(-1), self.unknown_vector(), embedded)
        return embedded.masked_fill(padding.unsqueeze(-1), 0) if bool(padding.any()) else embedded


class Table(Embeddings):
    """Embeddings whose unknown vector is always learned. When a log is split in time, the later part is full
    of ids that training never saw. What "unknown" means is learned by hiding a fraction of the known ids
    while training (`hiding`). Masked positions get the unknown vector, too."""

    unknown: nn.Parameter

    def __init__(self, known: int | Ids, width: int, hidden: float = 0.0) -> None:
        super().__init__(known, width)
        self.hidden = hidden
        self.unknown = nn.Parameter(torch.zeros(width))

    def hiding(self, ids: Tensor) -> Tensor:
        """The embeddings of some ids; while training, a random fraction of the ids is hidden."""
        if not self.training or not self.hidden:
            return self(ids)
        return self(ids, (torch.rand(ids.shape, device=ids.device) < self.hidden) & (ids != PAD))


TOKENS = 2048  # ids that are read together: few enough for their states to stay in the cache


def groups(ids_BL: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Group rows of similar length, longest first, because most time is lost on padding. Yields the rows of
    each group and the length of the longest one."""
    lengths, order = is_real(ids_BL).sum(1).sort(descending=True)
    at = 0
    while at < len(order):
        longest = int(lengths[at])
        size = max(TOKENS // max(longest, 1), 1)
        yield order[at : at + size], longest
        at += size


def in_groups(ids_BL: Tensor, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `encode`, which makes one vector per sequence, to sequences that are padded on the left, group by
    group, (B, D)."""
    encoded, order = [], []
    for group, longest in groups(ids_BL):
        encoded.append(encode(ids_BL[group, ids_BL.shape[1] - longest :]))
        order.append(group)
    return torch.cat(encoded)[torch.cat(order).argsort()] if encoded else encode(ids_BL)


def states_after(prefixes: Prefixes, encode: Callable[[Tensor], Tensor]) -> Tensor:
    """The state of a causal network after each prefix, (N, D). Every row is read only once, in groups;
    `encode` makes the states after the first 0, 1, ... ids of rows, (rows, positions + 1, D)."""
    states, used = [], 0
    first_W = prefixes.row_N.new_empty(len(prefixes.ids_WL))
    for group, longest in groups(prefixes.ids_WL):
        states.append(encode(prefixes.ids_WL[group, :longest]).flatten(0, 1))
        first_W[group] = used + torch.arange(len(group), device=group.device) * (longest + 1)
        used += len(states[-1])
    return torch.cat(states)[first_W[prefixes.row_N] + prefixes.length_N]


def is_real(ids: Tensor) -> Tensor:
    """Which entries are ids, known or not, and not padding."""
    return ids != PAD


def right_padded(ids_BL: Tensor) -> Tensor:
    """The same sequences, which are padded on the left, with their padding moved to the right."""
    return as_prefixes(ids_BL).ids_WL


def read_before(ids_BL: Tensor, past_N: Tensor) -> Tensor:
    """The part of some sequences, padded on the left, that comes before targets with so many ids before them,
    padded on the right. Nothing beyond the largest of these numbers is read."""
    return right_padded(ids_BL)[:, : int(past_N.max()) if len(past_N) else 0]


class Block(nn.Module):
    """A transformer layer that normalises the input of each of its two parts (pre-norm)."""

    def __init__(self, width: int, heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, inner), nn.Linear(inner, width)
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor, visible: Tensor | None = None, causal: bool = False) -> Tensor:
        """States (B, L, D) after attention and the feed-forward part. A query reads the keys that are
        `visible` to it, broadcast to (B, H, L, L); if causal, its own and those before."""
        B, L, D = x_BLD.shape
        parts = self.query_key_value(self.before_attention(x_BLD)).view(B, L, 3, self.heads, D // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(query, key, value, attn_mask=visible, is_causal=causal)
        x_BLD = x_BLD + self.dropout(self.attended(read.transpose(1, 2).reshape(B, L, D)))
        inner = functional.relu(self.widen(self.before_inner(x_BLD)))
        return x_BLD + self.dropout(self.narrow(inner))


class Encoder(nn.Module):
    """A bidirectional transformer over sequences that are padded on the left. Positions are counted back from
    the newest id, which is position 0."""

    def __init__(self, width: int, layers: int, heads: int, inner: int, dropout: float, length: int) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, width))
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = nn.ModuleList(Block(width, heads, inner, dropout) for _ in range(layers))
        self.norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)

    def forward(self, x_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """A state for each position, (B, L, D), of embedded sequences."""
        x_BLD = self.dropout(x_BLD + self.positions[: x_BLD.shape[1]].flip(0))
        visible = None
        if not bool(real_BL.all()):
            # An empty row attends to its padding, because attention over nothing is not a number. Nothing
            # reads the states of such a row.
            visible = (real_BL | ~real_BL.any(1, keepdim=True))[:, None, None, :]
        for block in self.blocks:
            x_BLD = block(x_BLD, visible)
        return self.norm(x_BLD)

    def mean(self, x_BLD: Tensor, real_BL: Tensor) -> Tensor:
        """The mean of the states of all real positions, (B, D); zero for an empty sequence."""
        if not x_BLD.shape[1]:
            return x_BLD.new_zeros(x_BLD.shape[0], x_BLD.shape[2])
        weight_BL = real_BL / real_BL.sum(1, keepdim=True).clamp(min=1)
        return torch.einsum("bld,bl->bd", self(x_BLD, real_BL), weight_BL)


class CausalBlock(nn.Module):
    """A block of SASRec as in its authors' code: only the query is normalised, and the residual connection
    starts from the normalised query."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.attended = nn.Linear(width, width)
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.dropout = Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """States (B, L, D); each position has read itself and those before."""
        B, L, D = x_BLD.shape
        normal = self.before_attention(x_BLD)
        query = self.query(normal).view(B, L, self.heads, -1).transpose(1, 2)
        key, value = self.key_value(x_BLD).view(B, L, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x_BLD = self.before_inner(normal + self.attended(read.transpose(1, 2).reshape(B, L, D)))
        inner = self.dropout(functional.relu(self.first(x_BLD)))
        return x_BLD + self.dropout(self.second(inner))


class CausalEncoder(nn.Module):
    """A causal transformer over sequences that are padded on the right. A state has read only its own
    position and those before, so padding needs no mask. Positions are counted from the oldest id, so a prefix
    is read as if it were the whole sequence."""

    def __init__(self, width: int, length: int, dropout: float, blocks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(length, width))
        nn.init.normal_(self.positions, std=0.02)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.dropout = nn.LayerNorm(width), Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """A state for each position, (B, L, D), of embedded sequences."""
        x_BLD = self.dropout(x_BLD * x_BLD.shape[2] ** 0.5 + self.positions[: x_BLD.shape[1]])
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.norm(x_BLD)
