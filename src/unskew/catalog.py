"""Scores of the whole catalogue at many moments, with nothing encoded twice."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from unskew.data.batch import Batch, with_candidates
from unskew.data.log import Log
from unskew.data.views import Ints

CONTEXTS = 64  # scored together; between two of them only a few audiences change
PAIRS = 1 << 16  # pairs whose hidden layer is held at once: it stays in the cache
ENCODED = 1024  # audiences encoded together


class Catalog(Protocol):
    def scores(self, context: Batch) -> Tensor:
        """Logits of every item in each context, (B, items). Times do not decrease."""


class Scorer(Protocol):
    """Whatever can score a catalogue: a model, or a count."""

    @property
    def history(self) -> int:
        """How many past items of a user it reads."""

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        """Scores of all items at times from first up to last."""


class PlainCatalog:
    """Any model, by its `forward`: every item is a candidate of every context."""

    def __init__(self, forward: Callable[[Batch], Tensor], log: Log, audience: int | None) -> None:
        self.forward, self.log, self.audience = forward, log, audience

    def scores(self, context: Batch) -> Tensor:
        everything = np.arange(len(self.log.items))
        rows = (part(context, slice(at, at + 1)) for at in range(len(context.user_B)))
        return torch.cat(
            [self.forward(with_candidates(row, self.log, everything, None, self.audience)) for row in rows]
        )


def part(context: Batch, rows: slice) -> Batch:
    """Some contexts of a batch without candidates."""
    return context._replace(
        user_B=context.user_B[rows], history_BL=context.history_BL[rows], times_B=context.times_B[rows]
    )


class Dotted(Protocol):
    """A model whose scores are dot products."""

    def context(self, batch: Batch) -> Tensor: ...

    def vectors(self, item: Tensor) -> Tensor: ...


class DotCatalog:
    """A vector per item, made once, and a matrix product."""

    def __init__(self, model: Dotted, items: int) -> None:
        self.model, self.vectors = model, model.vectors(torch.arange(items)).T.contiguous()

    def scores(self, context: Batch) -> Tensor:
        return self.model.context(context) @ self.vectors


class TwoSided(Protocol):
    """A model whose first layer is a sum of a part per context and a part per candidate."""

    def context_side(self, batch: Batch) -> Tensor: ...

    def item_side(self, item_N: Tensor) -> Tensor: ...

    def audience_side(self, audience_AM: Tensor) -> Tensor: ...

    def join(self, context: Tensor, candidate: Tensor) -> Tensor: ...


class AudienceCatalog:
    """A two-sided model: one encoding per item, and one per event that changes an audience. At most N + I for
    a whole test."""

    def __init__(self, model: TwoSided, log: Log, first: int, last: int, audience: int) -> None:
        self.model, self.log = model, log
        view, items = log.audiences, np.arange(len(log.items))
        _, start_of_period = view.before(items, first)
        # Of events at one time, an audience with only some of them is never asked for.
        inside = (view.times >= first) & (view.times < last)
        item = np.repeat(items, np.diff(view.offsets))
        final = np.append((item[1:] != item[:-1]) | (view.times[1:] != view.times[:-1]), True)[: len(item)]
        changed = np.flatnonzero(inside & final)
        self.changes = (
            np.sort(view.times[changed]),
            item[changed][np.argsort(view.times[changed], kind="stable")],
        )
        # `end + item` is one number for the audience of an item that ends there: both grow along the table.
        ends, owners = np.concatenate([start_of_period, changed + 1]), np.concatenate([items, item[changed]])
        order = np.argsort(ends + owners)
        self.keys, ends, owners = (ends + owners)[order], ends[order], owners[order]
        starts = np.maximum(view.offsets[owners], ends - audience)
        by_length = np.argsort(ends - starts, kind="stable")
        self.audiences: Tensor | None = None
        for at in range(0, len(ends), ENCODED):
            some = by_length[at : at + ENCODED]
            ids = torch.from_numpy(view.padded(starts[some], ends[some]).astype(np.int64))
            side = model.audience_side(ids)
            if self.audiences is None:
                self.audiences = side.new_empty(len(ends), side.shape[1])
            self.audiences[torch.from_numpy(some)] = side
        self.items = model.item_side(torch.from_numpy(items))

    def scores(self, context: Batch) -> Tensor:
        return torch.cat(
            [
                self._block(part(context, slice(at, at + CONTEXTS)))
                for at in range(0, len(context.user_B), CONTEXTS)
            ]
        )

    def _block(self, contexts: Batch) -> Tensor:
        """All contexts against the audiences as of the first of them; then the pairs that changed since, one
        by one."""
        everything, time = np.arange(len(self.log.items)), contexts.times_B.numpy()
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
            patch = self.model.join(context[torch.from_numpy(row)], self._candidate(item, time[row]))
            scores[torch.from_numpy(row), torch.from_numpy(item)] = patch
        return scores

    def _candidate(self, item: Ints, time: Ints) -> Tensor:
        assert self.audiences is not None
        _, end = self.log.audiences.before(item, time)
        version = np.searchsorted(self.keys, end + item)
        return self.items[torch.from_numpy(item)] + self.audiences[torch.from_numpy(version)]
