"""Scores of the whole catalogue at many moments, with nothing encoded twice.

A catalogue is made for a period of time. What does not depend on the context (vectors of items, audiences) is
computed when it is made, and `scores` only combines it with each context.
"""

from collections.abc import Callable, Sized
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.batches.batch import Batch, with_candidates
from unskew.data.log.live import Live
from unskew.data.log.log import Log, LogView
from unskew.data.log.views import PAD, EventView, Ints
from unskew.nn.device import device_of, on_device
from unskew.nn.top_k import TopK, Wanted, best_of_products

CONTEXTS = 64  # contexts that are scored together: from the first to the last, only a few audiences change
PAIRS = 1 << 16  # pairs whose hidden layers are held at once: few enough to stay in the cache
ENCODED = 1024  # audiences that are encoded together


class Catalog(Protocol):
    """Scores of all items for any context of a period. A catalogue with a method `scores_at_strengths` also
    gives the scores at several debiasing strengths."""

    def scores(self, context: Batch) -> Tensor:
        """The logits of every item in each context, (B, items). Times of contexts must not decrease."""


@runtime_checkable
class HasItemVectors(Protocol):
    """A catalogue in which every item is a vector."""

    def item_vectors(self, item: Ints) -> Tensor:
        """The vectors of some items, (N, D)."""


class Scorer(Protocol):
    """Anything that can score a catalogue: a model, or a count."""

    @property
    def history(self) -> int:
        """How many past items of a user it reads."""

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        """The scores of all items at times from `first` up to `last`."""


class PlainCatalog:
    """The catalogue of any model: its `forward`, with every item as a candidate of every context. It reads so
    many past users of an item; None is all of them."""

    def __init__(self, forward: Callable[[Batch], Tensor], log: LogView, audience: int | None) -> None:
        self.forward, self.log, self.audience = forward, log, audience

    def scores(self, context: Batch) -> Tensor:
        """One call of `forward` for each context."""
        everything, device = np.arange(len(self.log.items)), context.user_B.device
        rows = (context.part(slice(at, at + 1)) for at in range(len(context.user_B)))
        pairs = (with_candidates(row, self.log, everything, None, self.audience) for row in rows)
        return torch.cat([self.forward(on_device(row, device)) for row in pairs])


class DotProductModel(Protocol):
    """A model whose scores are dot products."""

    def context(self, batch: Batch) -> Tensor:
        """A vector for each context, (B, D)."""

    def vectors(self, item: Tensor) -> Tensor:
        """A vector for each item, (..., D)."""


class DotCatalog:
    """The catalogue of a model whose scores are dot products: the items' vectors are made once, and scoring
    is one matrix product."""

    def __init__(self, model: DotProductModel, items: Sized) -> None:
        self.model, self.items = model, items
        self.device = device_of(model)
        self.vectors = model.vectors(torch.arange(len(items), device=self.device)).T.contiguous()
        self.newer = self.vectors[:, :0]

    def scores(self, context: Batch) -> Tensor:
        """The product of the contexts' vectors and all items' vectors."""
        state = self.model.context(context)
        products = [state @ table for table in self._tables()]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)

    def best(self, context: Batch, wanted: Wanted) -> TopK | None:
        """See `FindsBest`. Another debiasing strength than that of the model changes all scores."""
        if wanted.debias is not None:
            return None
        return best_of_products(self.model.context(context), self._tables(), wanted)

    def _tables(self) -> list[Tensor]:
        """The vectors of all items, those of newer ones apart."""
        newer = len(self.items) - self.vectors.shape[1]
        if newer and newer != self.newer.shape[1]:
            self._follow(newer)
        return [self.vectors, self.newer] if self.newer.shape[1] else [self.vectors]

    def _follow(self, newer: int) -> None:
        """Items were added. Few of them are kept apart, because the large table is slow to copy."""
        old = self.vectors.shape[1]
        codes = torch.arange(old, old + newer, device=self.device)
        self.newer = self.model.vectors(codes).T.contiguous()
        if newer > max(1000, self.vectors.shape[1] // 8):
            self.vectors = torch.cat([self.vectors, self.newer], dim=1)
            self.newer = self.vectors[:, :0]

    def item_vectors(self, item: Ints) -> Tensor:
        """The vectors of some items, (N, D)."""
        return self.model.vectors(on_device(torch.from_numpy(item), self.device))

    def renewed(self, log: LogView, first: int, last: int) -> "DotCatalog":
        """The catalogue of a log that continues this one's: no vector changes, and only new items need
        one."""
        same = len(log.items) == self.vectors.shape[1]
        return self if same else DotCatalog(self.model, log.items)


class TwoSided(Protocol):
    """A model whose first layer is a sum: a part of the context plus a part of the candidate, which is in
    turn the sum of a part of the item and a part of its audience."""

    def context_side(self, batch: Batch) -> Tensor:
        """The part of each context, (B, H)."""

    def item_side(self, item_N: Tensor) -> Tensor:
        """The part of each item, (N, H)."""

    def audience_side(self, audience_AM: Tensor) -> Tensor:
        """The part of each audience, (A, H), of rows of users that are padded on the left."""

    def audience_sides(self, view: EventView, start: Ints, end: Ints) -> Tensor:
        """The part of each audience, (A, H), of the events [start, end) of a view."""

    def join(self, context: Tensor, candidate: Tensor) -> Tensor:
        """The logits of pairs, from the parts of contexts and candidates, (..., H); the two are broadcast."""


class AudienceCatalog:
    """The catalogue of a two-sided model that reads audiences of so many users, for times from `first` up to,
    and not including, `last`. Each item is encoded once, and each audience once for every moment at which it
    changes within the period. So a whole test of N events and I items takes at most N + I encodings of
    audiences. Those that have not changed since the catalogue `before` are taken from it."""

    def __init__(
        self,
        model: TwoSided,
        log: Log,
        first: int,
        last: int,
        audience: int,
        before: "AudienceCatalog | None" = None,
    ) -> None:
        self.model, self.log, self.audience = model, log, audience
        view, items = log.audiences, np.arange(len(log.items))
        _, start_of_period = view.before(items, first)
        # If an item has several events at one time, only its audience after the last of them is needed.
        inside = (view.times >= first) & (view.times < last)
        item = np.repeat(items, np.diff(view.offsets))
        final = np.append((item[1:] != item[:-1]) | (view.times[1:] != view.times[:-1]), True)[: len(item)]
        changed = np.flatnonzero(inside & final)
        order = np.argsort(view.times[changed], kind="stable")
        self.changes = np.sort(view.times[changed]), item[changed][order]
        # Ends and items both grow along the table, so `end + item` identifies the audience of an item up to
        # that end.
        ends, owners = np.concatenate([start_of_period, changed + 1]), np.concatenate([items, item[changed]])
        order = np.argsort(ends + owners)
        self.keys, ends, owners = (ends + owners)[order], ends[order], owners[order]
        starts = np.maximum(view.offsets[owners], ends - audience)
        # If no audience changes within the period, there is exactly one per item, in the order of the items.
        # Only then their members are kept for `renewed`: the period of a test has many times as many.
        self.members = None if len(changed) else view.padded(starts, ends)
        same = np.zeros(len(ends), bool) if before is None else self._unchanged(before)
        newer = model.audience_sides(view, starts[~same], ends[~same])
        self.audiences = newer.new_empty(len(ends), newer.shape[1])
        self.device = newer.device
        self.audiences[self._tensor(~same)] = newer
        if same.any() and before is not None:
            kept = self._tensor(np.flatnonzero(same))
            self.audiences[kept] = before.audiences[kept]
        self.items = model.item_side(self._tensor(items))

    def renewed(self, log: LogView, first: int, last: int) -> "AudienceCatalog":
        """The catalogue of a log that continues this one's. Only audiences that have changed are encoded."""
        return AudienceCatalog(self.model, log.frozen(), first, last, self.audience, before=self)

    def _unchanged(self, before: "AudienceCatalog") -> NDArray[np.bool_]:
        """Which items have the same audience now as in the catalogue `before`."""
        same = np.zeros(len(self.keys), bool)
        if self.members is not None and before.members is not None:
            shared = min(len(self.members), len(before.members))
            width = max(self.members.shape[1], before.members.shape[1])
            now, then = (_widened(rows[:shared], width) for rows in (self.members, before.members))
            same[:shared] = (now == then).all(1)
        return same

    def scores(self, context: Batch) -> Tensor:
        """The logits of all items, a block of contexts at a time."""
        firsts = range(0, len(context.user_B), CONTEXTS)
        return torch.cat([self._block(context.part(slice(at, at + CONTEXTS))) for at in firsts])

    def _block(self, contexts: Batch) -> Tensor:
        """Score all contexts with the audiences at the time of the first one, then score again the pairs
        whose audience has changed since."""
        everything, time = np.arange(len(self.log.items)), contexts.times_B.cpu().numpy()
        context = self.model.context_side(contexts)
        candidate = self._candidate(everything, np.full(len(everything), time[0]))
        scores = context.new_empty(len(time), len(everything))
        rows = max(1, PAIRS // len(everything))
        for at in range(0, len(time), rows):
            scores[at : at + rows] = self.model.join(context[at : at + rows, None], candidate)
        moments, items = self.changes
        changed = np.unique(items[np.searchsorted(moments, time[0]) : np.searchsorted(moments, time[-1])])
        if len(changed):
            row, item = np.repeat(np.arange(len(time)), len(changed)), np.tile(changed, len(time))
            patch = self.model.join(context[self._tensor(row)], self._candidate(item, time[row]))
            scores[self._tensor(row), self._tensor(item)] = patch
        return scores

    def _candidate(self, item: Ints, time: Ints) -> Tensor:
        """The parts of some items and of their audiences at some times, added up."""
        _, end = self.log.audiences.before(item, time)
        version = np.searchsorted(self.keys, end + item)
        return self.items[self._tensor(item)] + self.audiences[self._tensor(version)]

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return on_device(torch.from_numpy(values), self.device)


class AudiencesNow:
    """The catalogue of the same models for a live log, as it is now: each audience is encoded once, and again
    when a user joins it."""

    def __init__(self, model: TwoSided, log: Live, audience: int) -> None:
        self.model, self.log, self.audience = model, log, audience
        self.device = device_of(model)
        self.candidates = torch.empty(0, 0, device=self.device)
        self._changed: set[int] = set()
        self._encode(np.arange(len(log.items)))
        log.on_event(self._follow)

    def scores(self, context: Batch) -> Tensor:
        """The logits of all items."""
        missing = range(len(self.candidates), len(self.log.items))
        if self._changed or missing:
            self._encode(np.array(sorted(self._changed | set(missing)), np.int64))
            self._changed.clear()
        side = self.model.context_side(context)
        scores = side.new_empty(len(side), len(self.candidates))
        for row in range(len(side)):
            for at in range(0, len(self.candidates), PAIRS):
                some = slice(at, at + PAIRS)
                scores[row, some] = self.model.join(side[row], self.candidates[some])
        return scores

    def item_vectors(self, item: Ints) -> Tensor:
        """The parts of some items, with their audiences, (N, H)."""
        return self.candidates[on_device(torch.from_numpy(item), self.device)]

    def _follow(self, user: int, item: int, time: int) -> None:
        self._changed.update((item,) if item != PAD else range(len(self.log.items)))

    def _encode(self, items: Ints) -> None:
        """Encode the audiences of some items, those of like length together."""
        view = self.log.audiences
        start, end = view.before(items, self.log.now, self.audience)
        for some in np.array_split(np.argsort(end - start, kind="stable"), -(-len(items) // ENCODED) or 1):
            rows = view.padded(start[some], end[some]).astype(np.int64)
            members, codes = (on_device(torch.from_numpy(ids), self.device) for ids in (rows, items[some]))
            side = self.model.item_side(codes) + self.model.audience_side(members)
            if len(self.candidates) < len(self.log.items):
                more = side.new_empty(len(self.log.items) - len(self.candidates), side.shape[1])
                self.candidates = torch.cat([self.candidates.view(-1, side.shape[1]), more])
            self.candidates[codes] = side


def encode_windows(
    encode: Callable[[Tensor], Tensor], view: EventView, start: Ints, end: Ints, device: torch.device
) -> Tensor:
    """Encode the events [start, end) of a view, those of like length together, (A, H). `encode` makes a
    vector of each row of ids that are padded on the left."""
    order, encoded = np.argsort(end - start, kind="stable"), []
    for at in range(0, max(len(order), 1), ENCODED):
        some = order[at : at + ENCODED]
        rows = torch.from_numpy(view.padded(start[some], end[some]).astype(np.int64))
        encoded.append(encode(on_device(rows, device)))
    return torch.cat(encoded)[on_device(torch.from_numpy(order), device).argsort()]


def _widened(rows: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """The same rows with more padding on the left."""
    return np.pad(rows, ((0, 0), (width - rows.shape[1], 0)), constant_values=PAD)
