"""The catalogues of Pulse: all items at the times of some contexts, and all items of a live log."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from unskew.data.batches.batch import Batch
from unskew.data.log.live import Live
from unskew.data.log.log import LogView
from unskew.data.log.views import PAD, EventView, Ints
from unskew.models.pulse.explain import ExplainedNetwork, Inputs, explain, known_of
from unskew.models.pulse.signals import Requests, Signals
from unskew.nn.debias import check_debias
from unskew.nn.device import on_device
from unskew.nn.reasons import Reason
from unskew.nn.top_k import TopK, Wanted

BLOCK = 64  # contexts whose best items are found together
LEADING = 256  # items that are best for a block, of which each context takes its first ones
ROUNDING = 1e-4  # by which bounds of scores are widened
DENSE = 8  # if more than an n-th of all items may be listed, all are scored together
PIECE = 8192  # items that are scored together, so that they stay in the cache
MINUTES = 1440  # of a day
ROOM = 1024  # new items that there is room for


class ItemSide(NamedTuple):
    """What belongs to items alone: their part of the hidden layer, of the score, and their exposure."""

    hidden: Tensor
    skip: Tensor
    exposure: Tensor

    def part(self, rows: Tensor) -> "ItemSide":
        """Some of the items."""
        return ItemSide(*(part.index_select(0, rows) for part in self))


class TwoHeads(ExplainedNetwork, Protocol):
    """What a catalogue needs of Pulse."""

    day_ticks: Tensor

    @property
    def debias(self) -> float:
        """The debiasing strength of its scores."""

    def signals(self, log: LogView) -> Signals:
        """What reads a log for it."""

    def requests(self, log: LogView, context: Batch) -> Requests:
        """What is known of the contexts of a batch."""

    def item_side(self, a: Tensor) -> ItemSide:
        """What belongs to items alone."""

    def clicks(self, items: ItemSide, users: Tensor, w: Tensor) -> Tensor:
        """The head of clicks, without tags."""

    def pair_bounds(self, width: int) -> tuple[Tensor, Tensor]:
        """The least and the most that a unit of each value of w adds to the head of clicks."""


class PulseCatalog:
    """All items at the times of some contexts: a maximum and a product per item, and what is known of the
    items that the neighbours took. What belongs to items alone is kept until the time changes."""

    def __init__(self, model: TwoHeads, log: LogView) -> None:
        self.model, self.log, self.signals = model, log, model.signals(log)
        self._at: tuple[int, ItemSide] | None = None
        self._buffer = model.last.weight.new_empty(PIECE, model.last.in_features)
        log.on_event(self._follow)

    def _follow(self, user: int, item: int, time: int) -> None:
        """An event was added to a live log."""

    def scores(self, context: Batch) -> Tensor:
        """The scores of all items in each context."""
        return self.scores_at_strengths(context, (self.model.debias,))[0]

    @torch.no_grad()
    def scores_at_strengths(self, context: Batch, strengths: Sequence[float]) -> list[Tensor]:
        """The same at several strengths."""
        read = self.model.requests(self.log, context)
        users = self.model.user_side(self._tensor(read.profile))
        found = [users.new_empty(len(read.time), len(self.log.items)) for _ in strengths]
        order = np.argsort(read.time, kind="stable")
        for row, items in zip(order.tolist(), self._items(read.time[order]), strict=True):
            clicks = self._unknown(items, users[row])
            item, w = (self._tensor(part) for part in read.of_request(row))
            clicks.index_copy_(0, item, self.model.clicks(items.part(item), users[row], w))
            if self.model.tag_skip is not None and read.tastes is not None:
                weight = self.model.tag_skip.detach().cpu().numpy()
                clicks += self._tensor(read.tastes.of_request(row, weight))
            for scores, debias in zip(found, strengths, strict=True):
                torch.add(clicks, items.exposure, alpha=-debias, out=scores[row])
        return found

    @torch.no_grad()
    def best(self, context: Batch, wanted: Wanted) -> TopK:
        """See `FindsBest`."""
        lists = [TopK(torch.zeros(0, wanted.k), torch.zeros(0, wanted.k).long())]
        for first in range(0, len(context.user_B), BLOCK):
            some = (wanted.row >= first) & (wanted.row < first + BLOCK)
            among = wanted._replace(row=wanted.row[some] - first, item=wanted.item[some])
            lists += self._best_of_block(context.part(slice(first, first + BLOCK)), among)
        return TopK(*map(torch.cat, zip(*lists, strict=True)))

    def _best_of_block(self, context: Batch, wanted: Wanted) -> Iterator[TopK]:
        read = self.model.requests(self.log, context)
        users = self.model.user_side(torch.from_numpy(read.profile))
        items = next(self._items(read.time[:1]))
        debias = self.model.debias if wanted.debias is None else wanted.debias
        check_debias(debias)
        width = read.values.shape[1]
        block = _Block(self.model, items, users, width, self._unknown, debias, wanted)
        order = np.argsort(wanted.row, kind="stable")
        excluded = np.split(wanted.item[order], np.searchsorted(wanted.row[order], range(1, len(users))))
        for row, of_row in enumerate(excluded):
            item, w = map(torch.from_numpy, read.of_request(row))
            taste = None
            if self.model.tag_skip is not None and read.tastes is not None:
                weight = self.model.tag_skip.detach().numpy()
                taste = torch.from_numpy(read.tastes.of_request(row, weight))
            yield block.best(row, torch.from_numpy(of_row), item, w, taste)

    def reasons(
        self, context: Batch, items: Sequence[Ints], debias: float | None
    ) -> list[list[tuple[Reason, ...]]]:
        """See `Explains`."""
        read, signals = self.model.requests(self.log, context), self.signals
        user, own = context.user_B.cpu().numpy(), context.history_BL.cpu().numpy()
        strength, found = self.model.debias if debias is None else debias, []
        for row, listed in enumerate(items):
            some = slice(row, row + 1)
            inputs = Inputs(
                self._tensor(signals.of_items(listed, self._read_at(listed, int(read.time[row])))),
                self._tensor(read.profile[row]),
                self._tensor(known_of(read, row, listed)),
                signals.tags_of(read, row, listed),
                signals.neighbourhood.sources(user[some], read.time[some], own[some], listed),
            )
            found.append(explain(self.model, inputs, strength))
        return found

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return on_device(torch.from_numpy(values), self._buffer.device)

    def _read_at(self, items: Ints, time: int) -> Ints:
        """As of when the values of some items are read, for a request at a time."""
        return np.full(len(items), time)

    def _unknown(self, items: ItemSide, user: Tensor) -> Tensor:
        """The head of clicks where a request knows nothing of an item: in one buffer that stays in the cache,
        with relu(x + u) . v as max(x, -u) . v + u . v, which is one pass less."""
        weight, least = self.model.last.weight[0], -user
        clicks = items.skip + user @ weight
        for some, hidden in zip(clicks.split(PIECE), items.hidden.split(PIECE), strict=True):
            some.addmv_(torch.maximum(hidden, least, out=self._buffer[: len(hidden)]), weight)
        return clicks

    def _items(self, times: Ints) -> Iterator[ItemSide]:
        """What belongs to items alone, at one time after the other."""
        kept = self._at is not None and self._at[0] in times[:1]
        read = self.signals.of_everything(np.unique(times)[int(kept) :])
        for time in times.tolist():
            if self._at is None or self._at[0] != time:
                self._at = time, self.model.item_side(self._tensor(next(read)))
            yield self._at[1]


class _Block:
    """Finds the best items of contexts of one moment, exactly, with few scores.

    Of an item about which a context knows nothing, the score is f(u, i) = relu(x_i + u) . v + s_i. It is
    computed for all items once, for a user c in the middle of the block, because

        f(c, i) + sum_h min(0, v_h (u_h - c_h))  <=  f(u, i)  <=  f(c, i) + sum_h max(0, v_h (u_h - c_h))

    What a context knows of an item adds at most a sum over its values (`pair_bounds`). Some promising items
    of each context are scored first. Of the others, only those can be better whose bound is above the k-th
    best of these.
    """

    def __init__(
        self,
        model: TwoHeads,
        items: ItemSide,
        users: Tensor,
        width: int,
        unknown: Callable[[ItemSide, Tensor], Tensor],
        debias: float,
        wanted: Wanted,
    ) -> None:
        self.model, self.items, self.users, self.debias, self.k = model, items, users, debias, wanted.k
        self.unknown = unknown
        self.least, self.most = model.pair_bounds(width)
        middle = (users.min(0).values + users.max(0).values) / 2
        self.more = ((users - middle) * model.last.weight[0]).clamp(min=0).sum(1) + ROUNDING
        scores = unknown(items, middle).sub_(items.exposure, alpha=debias)
        self.of_middle = scores.masked_fill_(wanted.hidden, -torch.inf)
        self.leading = self.of_middle.topk(min(wanted.k + LEADING, len(scores))).indices

    def best(self, row: int, excluded: Tensor, item: Tensor, w: Tensor, taste: Tensor | None) -> TopK:
        """The list of one context: with items that it must not hold, the items that it knows something
        about, with what it knows, and what its taste for tags adds to all items."""
        bound = self.of_middle.clone() if taste is None else self.of_middle + taste
        bound[excluded] = -torch.inf
        of_known = bound[item] + w.clamp(min=0) @ self.most + w.clamp(max=0) @ self.least
        bound[item] = -torch.inf  # now it is that of the items about which nothing is known
        first = of_known.topk(min(2 * self.k, len(item))).indices
        first = first[of_known[first].isfinite()]
        leading = self.leading[bound[self.leading].isfinite()][: self.k]
        found = self._scored(row, item[first], w[first], leading, taste)
        kth = found.scores[-1] if len(found.scores) == self.k else torch.tensor(-torch.inf)
        kth = kth.clamp(min=torch.finfo(kth.dtype).min) - self.more[row]
        known, others = of_known >= kth, (bound >= kth).nonzero()[:, 0]
        if len(others) > len(bound) // DENSE:
            others = others[
                self._of_others(row, slice(None), taste)[others] >= kth + self.more[row] - ROUNDING
            ]
        found = self._scored(row, item[known], w[known], others, taste)
        missing = self.k - len(found.scores)
        scores = pad(found.scores, (0, missing), value=-torch.inf)
        return TopK(scores[None], pad(found.codes, (0, missing))[None])

    def _of_others(self, row: int, codes: Tensor | slice, taste: Tensor | None) -> Tensor:
        """The scores of items about which a context knows nothing."""
        items = self.items.part(codes) if isinstance(codes, Tensor) else self.items
        scores = self.unknown(items, self.users[row]).sub_(items.exposure, alpha=self.debias)
        return scores if taste is None else scores.add_(taste[codes])

    def _scored(self, row: int, item: Tensor, w: Tensor, others: Tensor, taste: Tensor | None) -> TopK:
        """The best of some items of which something is known, and of others."""
        items = self.items.part(item)
        scores = self.model.clicks(items, self.users[row], w).sub_(items.exposure, alpha=self.debias)
        if taste is not None:
            scores += taste[item]
        scores = torch.cat([scores, self._of_others(row, others, taste)])
        best, places = scores.topk(min(self.k, len(scores)))
        return TopK(best, torch.cat([item, others])[places])


class LivePulseCatalog(PulseCatalog):
    """All items of a live log, now.

    What belongs to items alone is read for all items once a minute: as of the minute's beginning. An item
    with events since is read again, as of just after its newest one. So the scores depend on the events and
    the moment alone, not on when anybody asked; and the counts of an item without events are at most a minute
    old, which for the shortest half-life of six hours is 0.2 %. Where a minute is less than a tick of the
    clock, nothing is old.
    """

    def __init__(self, model: TwoHeads, log: Live) -> None:
        super().__init__(model, log)
        self.live, self.step = log, max(int(float(model.day_ticks) / MINUTES), 1)
        self._begins: int | None = None  # the minute that everything is read for
        self._kept = ItemSide(*(self._buffer.new_empty(shape) for shape in ((0, 0), (0,), (0,))))
        self._moments: set[int] = set()  # of events that came since anybody asked
        self._touched: set[int] = set()  # items with context events since
        log.on_context(self._follow_context)

    def _follow(self, user: int, item: int, time: int) -> None:
        if self._begins is None or item == PAD or time < self._begins:
            self._begins = None
        self._moments.add(time)

    def _follow_context(self, kind: str, user: int, item: int, time: int) -> None:
        if kind and kind not in self.signals.types:
            return
        if self._begins is None or item == PAD or time < self._begins:
            self._begins = None
        else:
            self._touched.add(item)

    @torch.no_grad()
    def _items(self, times: Ints) -> Iterator[ItemSide]:
        for time in times.tolist():
            begins = time // self.step * self.step
            if begins != self._begins:
                self._begin(begins)
            elif self._moments or self._touched:
                # All items with events at these moments: of each, the fraction of all events has changed.
                moments, view = np.array(sorted(self._moments)), self.live.timeline
                _, first = view.before(np.zeros_like(moments), moments)
                _, last = view.before(np.zeros_like(moments), moments + 1)
                _, place = view.flat(first, last)
                touched = np.array(sorted(self._touched), np.int64)
                self._read(np.union1d(view.ids[place].astype(np.int64), touched))
            self._moments.clear()
            self._touched.clear()
            yield ItemSide(*(part[: len(self.live.items)] for part in self._kept))

    def _read_at(self, items: Ints, time: int) -> Ints:
        begins = time // self.step * self.step
        newest = self._newest(items)
        return np.where(newest >= begins, newest + 1, begins)

    def _newest(self, items: Ints) -> Ints:
        """The time of the newest event of each item that is read; PAD where it has none."""
        views = [self.live.audiences, *(views.audiences for views in self.signals.context)]
        return np.max([_newest(view, items) for view in views], axis=0)

    def _begin(self, begins: int) -> None:
        """Read all items at the beginning of a minute, and again those with events since."""
        side = self.model.item_side(self._tensor(next(self.signals.of_everything(np.array([begins])))))
        missing = len(self.live.items) - len(side.skip) + ROOM
        self._kept = ItemSide(*(torch.cat([part, part.new_zeros(missing, *part.shape[1:])]) for part in side))
        self._begins = begins
        view = self.live.timeline
        _, first = view.before([0], begins)
        since = [view.ids[int(first[0]) : int(view.ends[0])].astype(np.int64)]
        for views in self.signals.context:
            _, item, time = views.events()
            since.append(item[time >= begins])
        items = np.unique(np.concatenate(since))
        if len(items):
            self._read(items)

    def _read(self, items: Ints) -> None:
        """Read some items as of just after their newest events."""
        if len(self.live.items) > len(self._kept.skip):
            more = len(self.live.items) - len(self._kept.skip) + ROOM
            self._kept = ItemSide(
                *(torch.cat([part, part.new_zeros(more, *part.shape[1:])]) for part in self._kept)
            )
        newest = self._newest(items)
        side = self.model.item_side(self._tensor(self.signals.of_items(items, newest + 1)))
        for kept, part in zip(self._kept, side, strict=True):
            kept.index_copy_(0, self._tensor(items), part)


def _newest(audiences: EventView, items: Ints) -> Ints:
    """The time of the newest event of each item; PAD where it has none."""
    if not len(audiences) or not len(audiences.times):
        return np.full(len(items), PAD)
    has_events = items < len(audiences)
    last = audiences.ends[np.where(has_events, items, 0)] - 1
    has_events &= last >= audiences.starts[np.where(has_events, items, 0)]
    return np.where(has_events, audiences.times[np.maximum(last, 0)], PAD)
