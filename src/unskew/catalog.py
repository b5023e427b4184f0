"""Scores of the whole catalogue at many moments, with nothing encoded twice."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.batch import Batch, with_candidates
from unskew.data.log import Log
from unskew.data.views import PAD, Ints

CONTEXTS = 64  # scored together; between two of them only a few audiences change
PAIRS = 1 << 16  # pairs whose hidden layer is held at once: it stays in the cache
ENCODED = 1024  # audiences encoded together


class Catalog(Protocol):
    """Scores of all items.

    A catalogue that is dear to make may have a method `renewed(log, first, last)`: the catalogue of a log
    that goes on from this one, made from this one.
    """

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
        rows = (context.part(slice(at, at + 1)) for at in range(len(context.user_B)))
        return torch.cat(
            [self.forward(with_candidates(row, self.log, everything, None, self.audience)) for row in rows]
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

    def renewed(self, log: Log, first: int, last: int) -> "DotCatalog":
        """Events change no vector; new items need one."""
        return self if len(log.items) == self.vectors.shape[1] else DotCatalog(self.model, len(log.items))


class TwoSided(Protocol):
    """A model whose first layer is a sum of a part per context and a part per candidate."""

    def context_side(self, batch: Batch) -> Tensor: ...

    def item_side(self, item_N: Tensor) -> Tensor: ...

    def audience_side(self, audience_AM: Tensor) -> Tensor: ...

    def join(self, context: Tensor, candidate: Tensor) -> Tensor: ...


class AudienceCatalog:
    """A two-sided model: one encoding per item, and one per event that changes an audience. At most N + I for
    a whole test.

    `before` is a catalogue of the same model at an earlier moment: audiences that are still the same are not
    encoded again.
    """

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
        # Of events at one time, an audience with only some of them is never asked for.
        inside = (view.times >= first) & (view.times < last)
        item = np.repeat(items, np.diff(view.offsets))
        final = np.append((item[1:] != item[:-1]) | (view.times[1:] != view.times[:-1]), True)[: len(item)]
        changed = np.flatnonzero(inside & final)
        order = np.argsort(view.times[changed], kind="stable")
        self.changes = np.sort(view.times[changed]), item[changed][order]
        # `end + item` is one number for the audience of an item that ends there: both grow along the table.
        ends, owners = np.concatenate([start_of_period, changed + 1]), np.concatenate([items, item[changed]])
        order = np.argsort(ends + owners)
        self.keys, ends, owners = (ends + owners)[order], ends[order], owners[order]
        starts = np.maximum(view.offsets[owners], ends - audience)
        # Where no audience changes within the period there is one per item, in the order of the items. Only
        # then they are remembered, because a test has many times as many.
        self.members = None if len(changed) else view.padded(starts, ends)
        same = np.zeros(len(ends), bool) if before is None else self._unchanged(before)
        by_length = np.argsort(ends - starts, kind="stable")
        by_length = by_length[~same[by_length]]
        self.audiences = torch.empty(len(ends), 0)
        for at in range(0, len(by_length), ENCODED):
            some = by_length[at : at + ENCODED]
            side = model.audience_side(
                torch.from_numpy(view.padded(starts[some], ends[some]).astype(np.int64))
            )
            if not self.audiences.shape[1]:
                self.audiences = side.new_empty(len(ends), side.shape[1])
            self.audiences[torch.from_numpy(some)] = side
        if same.any() and before is not None:
            if not self.audiences.shape[1]:
                self.audiences = before.audiences.new_empty(len(ends), before.audiences.shape[1])
            kept = torch.from_numpy(np.flatnonzero(same))
            self.audiences[kept] = before.audiences[kept]
        self.items = model.item_side(torch.from_numpy(items))

    def renewed(self, log: Log, first: int, last: int) -> "AudienceCatalog":
        """The catalogue of a log that goes on from this one: only audiences that changed are encoded."""
        return AudienceCatalog(self.model, log, first, last, self.audience, before=self)

    def _unchanged(self, before: "AudienceCatalog") -> NDArray[np.bool_]:
        """Which items have the same newest audience as before."""
        same = np.zeros(len(self.keys), bool)
        if self.members is not None and before.members is not None:
            shared = min(len(self.members), len(before.members))
            width = max(self.members.shape[1], before.members.shape[1])
            now, then = (_widened(rows[:shared], width) for rows in (self.members, before.members))
            same[:shared] = (now == then).all(1)
        return same

    def scores(self, context: Batch) -> Tensor:
        return torch.cat(
            [
                self._block(context.part(slice(at, at + CONTEXTS)))
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
        _, end = self.log.audiences.before(item, time)
        version = np.searchsorted(self.keys, end + item)
        return self.items[torch.from_numpy(item)] + self.audiences[torch.from_numpy(version)]


def _widened(rows: NDArray[np.int32], width: int) -> NDArray[np.int32]:
    """The same rows, padded further on the left."""
    return np.pad(rows, ((0, 0), (width - rows.shape[1], 0)), constant_values=PAD)
