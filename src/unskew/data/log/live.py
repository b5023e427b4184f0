"""A live log: a prepared log, or what a run remembers of one, and the events that came since.

Its views are those of any log (`before`, `padded`, `flat`, times), so models and catalogues that rank now
cannot tell the difference, and an event costs the same in a log of any size. New users and items get the next
codes. Whatever trains or evaluates takes `unskew.read(live)`, which is the log that would be prepared of all
rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.clock import Clock
from unskew.data.log.erasures import NOT_ERASED, Erasures, moments_of
from unskew.data.log.folder import COLUMNS, EXTRAS, MARK
from unskew.data.log.item_feed import ItemFeed, newest_titles, with_values
from unskew.data.log.live_views import Listeners, LiveSequences, LiveViews, LiveVocabulary
from unskew.data.log.log import UNKNOWN, Log
from unskew.data.log.preparation import Metadata
from unskew.data.log.split import with_views
from unskew.data.log.views import PAD, Ints, Sequences, Views
from unskew.data.log.vocabulary import Vocabulary

MANY = 2000  # from so many events on, the views are sorted again instead of taking one event after the other


class Live:
    """A log that events can be added to.

    Parameters
    ----------
    log
        The log to begin with. It does not change.
    text
        Whether ids are read as text, whatever type they had, as they come in JSON.

    Examples
    --------
    >>> import unskew
    >>> log = unskew.read({"user": [1, 1, 2], "item": ["a", "b", "a"], "time": [10, 20, 30]})
    >>> live = unskew.Live(log)
    >>> live.append([2, 3], ["b", "c"], [40, 41])
    2
    """

    def __init__(self, log: Log, text: bool = False) -> None:
        self._base, self._newest = log, log.now - 1
        self._added: list[tuple[Ints, Ints, Ints]] = []  # users, items and times of the positives that came
        self._frozen: Log | None = None  # a copy of what the log is now
        self._listeners, self._context_listeners = Listeners(), Listeners()
        self._duplicates = log.metadata.settings.duplicates
        self.users, self.items = LiveVocabulary(log.users, text), LiveVocabulary(log.items, text)
        self.histories, self.audiences = LiveSequences(log.histories), LiveSequences(log.audiences)
        self.timeline = LiveSequences(log.timeline, by_id=False)
        self.context = {
            kind: LiveViews(LiveSequences(views.histories), LiveSequences(views.audiences))
            for kind, views in log.context.items()
        }

    def append(
        self,
        users: Sequence[Any],
        items: Sequence[Any],
        times: Sequence[int],
        types: Sequence[str | None] | None = None,
    ) -> int:
        """Add events. What `prepare` would remove as a duplicate is not added.

        Parameters
        ----------
        users, items
            The caller's ids; new ones get the next codes.
        times
            The times in ticks of the log's clock, in any order.
        types
            The types of the events: a target or a context type of the log; None is a positive. By default,
            all of them are positives.

        Returns
        -------
        int
            How many events were added.
        """
        if not len(users) == len(items) == len(times):
            raise BadInput("expected as many users as items and times")
        kinds = self._kinds(types, len(users))
        user_ids, item_ids = self.users.read(users), self.items.read(items)
        if None in user_ids or None in item_ids:
            raise BadInput("expected an id for every user and every item, found none for some")
        user, item = self.users.add(user_ids), self.items.add(item_ids)
        time = np.array(times, np.int64)
        added = self._append_context(user, item, time, kinds)
        positive = kinds == PAD
        return added + self._append_positives(user[positive], item[positive], time[positive])

    def _kinds(self, types: Sequence[str | None] | None, events: int) -> Ints:
        """The position of the type of each event among the context types; PAD for positives."""
        if types is None:
            return np.full(events, PAD)
        if len(types) != events:
            raise BadInput("expected as many types as events")
        places: dict[str | None, int] = {None: PAD} | dict.fromkeys(self.metadata.types.target, PAD)
        places |= {kind: place for place, kind in enumerate(self.context)}
        unknown = next((kind for kind in types if kind not in places), None)
        if unknown is not None:
            declared = ", ".join(repr(kind) for kind in places if kind is not None) or "none"
            raise BadInput(f"type {unknown!r}: this log has the types {declared}", field="types")
        return np.array([places[kind] for kind in types], np.int64)

    def _append_context(self, user: Ints, item: Ints, time: Ints, kinds: Ints) -> int:
        """Add the events of context types."""
        added, views = 0, list(self.context.values())
        rows = np.flatnonzero(kinds != PAD)
        columns = (column[rows].tolist() for column in (user, item, time, kinds))
        for who, what, when, kind in zip(*columns, strict=True):
            if self._duplicates != "keep" and views[kind].histories.has(who, what, when):
                continue
            views[kind].histories.add(who, what, when)
            views[kind].audiences.add(what, who, when)
            self.histories.list(who, when)
            self.audiences.list(what, when)
            self._newest = max(self._newest, when)
            self._context_listeners.notify(list(self.context)[kind], who, what, when)
            self._frozen = None
            added += 1
        return added

    def _append_positives(self, user: Ints, item: Ints, time: Ints) -> int:
        if len(time) >= MANY:
            is_new = self._append_many(user, item, time)
        else:
            one_by_one = zip(user.tolist(), item.tolist(), time.tolist(), strict=True)
            is_new = np.array([self._append_one(*event) for event in one_by_one], bool)
        if is_new.any():
            self._added.append((user[is_new], item[is_new], time[is_new]))
            self._newest = max(self._newest, int(time[is_new].max()))
        self._frozen = None
        return int(is_new.sum())

    def _append_one(self, user: int, item: int, time: int) -> bool:
        if self._duplicates != "keep" and self.histories.has(
            user, item, None if self._duplicates == "pair" else time
        ):
            return False
        self.histories.add(user, item, time)
        self.audiences.add(item, user, time)
        self.timeline.add(0, item, time)
        self._listeners.notify(user, item, time)
        return True

    def _append_many(self, user: Ints, item: Ints, time: Ints) -> NDArray[np.bool_]:
        owner, place = self.histories.everything()
        before = owner, self.histories.ids[place].astype(np.int64), self.histories.times[place]
        events = [np.concatenate(pair) for pair in zip(before, (user, item, time), strict=True)]
        kept = np.ones(len(events[0]), bool)
        if self._duplicates != "keep":
            key = events if self._duplicates == "event" else events[:2]
            order = np.lexsort((np.arange(len(kept)), *key[::-1]))
            same = np.all([part[order][1:] == part[order][:-1] for part in key], axis=0)
            kept[order[1:][same]] = False
        self._refill(*(part[kept] for part in events))
        return kept[len(owner) :]

    def _refill(self, user: Ints, item: Ints, time: Ints) -> None:
        self.histories.refill(user, item.astype(np.int32), time, len(self.users))
        self.audiences.refill(item, user.astype(np.int32), time, len(self.items))
        self.timeline.refill(np.zeros_like(user), item.astype(np.int32), time, 1)
        self._listeners.notify(PAD, PAD, 0)
        self._frozen = None

    def describe(self, feed: ItemFeed) -> int:
        """Add what an item feed says. Items that are new exist from the times of their rows on.

        Parameters
        ----------
        feed
            The feed, with times in ticks of the log's clock.

        Returns
        -------
        int
            How many items are new.
        """
        if feed.time is None:
            raise BadInput("items: expected the times from which the rows are known", field="items")
        if not len(feed):
            return 0
        before = len(self.items)
        code = self.items.add(self.items.read(feed.ids))
        for item, time in zip(code.tolist(), feed.time.tolist(), strict=True):
            self.audiences.list(item, time)
        size = len(self.items)
        self.items.describe(
            newest_titles(self.items.titles, feed.titles, code, feed.time, size),
            with_values(self.items.features, feed.features, code, feed.time, size),
        )
        self._newest = max(self._newest, int(feed.time.max()))
        self._frozen = None
        self._listeners.notify(PAD, PAD, 0)
        return size - before

    def forget(self, *users: Any) -> int:
        """Forget users: their ids, and all of their events.

        Returns
        -------
        int
            How many of them were known.
        """
        until = np.full(len(self.users), NOT_ERASED)
        codes = self.users.codes(users)
        until[codes[codes != PAD]] = np.iinfo(np.int64).max
        self._forget_until(until)
        return int((codes != PAD).sum())

    def forget_erased(self, erasures: Erasures) -> None:
        """Forget what erased users did up to the moment of the erasure."""
        until = moments_of(self.users.ids, self.clock, erasures)
        if until is not None:
            self._forget_until(until)

    def _forget_until(self, until: Ints) -> None:
        """Forget the events of each user up to a time, and the ids of those who have no other event."""
        owner, place = self.histories.everything()
        kept = self.histories.times[place] > until[owner]
        is_gone = until > NOT_ERASED
        if not is_gone.any():
            return
        is_gone[owner[kept]] = False
        for views in self.context.values():
            user, item, when = views.events()
            later = when > until[user]
            user, item, when = user[later], item[later], when[later]
            is_gone[user] = False
            views.histories.refill(user, item.astype(np.int32), when, len(self.users))
            views.audiences.refill(item, user.astype(np.int32), when, len(self.items))
        self._context_listeners.notify("", PAD, PAD, 0)
        is_kept = np.asarray(self._base.time) > until[self._base.user]
        positives = int(is_kept[: self._base.positives].sum())
        self._base = with_views(self._base, np.flatnonzero(is_kept), positives)
        added = []
        for users, items, times in self._added:
            still = times > until[users]
            added.append((users[still], items[still], times[still]))
        self._added, place = added, place[kept]
        self.users.forget(np.flatnonzero(is_gone))
        self._refill(owner[kept], self.histories.ids[place].astype(np.int64), self.histories.times[place])

    @property
    def positives(self) -> int:
        """The number of positives."""
        return int((self.timeline.ends - self.timeline.starts)[0])

    @property
    def added(self) -> int:
        """How many events were added."""
        return sum(len(user) for user, _, _ in self._added)

    def table(self) -> pa.Table:
        """All rows as an Arrow table, with the caller's ids: those of the log that this one began with, and
        one for each event that was added, of whose exposure nothing is known."""
        user, item, time = (
            np.concatenate([np.zeros(0, np.int64), *column])
            for column in (zip(*self._added, strict=True) if self._added else ((), (), ()))
        )
        events = {"user": user, "item": item, "time": time, "label": np.ones(len(user), np.int8)}

        def extend(name: str, column: NDArray[Any]) -> NDArray[Any]:
            unknown = np.full(len(user), UNKNOWN.get(name, 0), column.dtype)
            return np.concatenate([column, events.get(name, unknown)])

        users, items = (Vocabulary.of_table(ids.table()) for ids in (self.users, self.items))
        changed = _map_columns(self._base, extend)
        return replace(changed, users=users, items=items, context=dict(self.context)).table()

    # What a `LogView` has

    @property
    def now(self) -> int:
        """See `LogView`."""
        return self._newest + 1

    @property
    def clock(self) -> Clock:
        """See `LogView`."""
        return self._base.clock

    @property
    def metadata(self) -> Metadata:
        """How the log was made that this one began with."""
        return self._base.metadata

    @property
    def origin(self) -> Log:
        """See `LogView`."""
        return self._base

    def frozen(self) -> Log:
        """See `LogView`. The copy is made once after each change."""
        if self._frozen is None:
            self._frozen = Log.of_positives(
                self.histories.frozen(len(self.users)),
                self.audiences.frozen(len(self.items)),
                Vocabulary.of_table(self.users.table()),
                Vocabulary.of_table(self.items.table()),
                self.now,
                self.metadata,
                {
                    kind: Views(
                        views.histories.frozen(len(self.users)), views.audiences.frozen(len(self.items))
                    )
                    for kind, views in self.context.items()
                },
            )
        return self._frozen

    def following(self, view: Sequences) -> LiveSequences:
        """See `LogView`."""
        return LiveSequences(view)

    def on_event(self, listener: Callable[[int, int, int], None]) -> None:
        """See `LogView`. The method is called as long as its object is used elsewhere."""
        self._listeners.add(listener)

    def on_context(self, listener: Callable[[str, int, int, int], None]) -> None:
        """See `LogView`. The method is called as long as its object is used elsewhere."""
        self._context_listeners.add(listener)

    def in_history(self, event: Ints, item: Ints) -> Ints:
        """See `LogView`."""
        user, time = self.audiences.ids[event], self.audiences.times[event]
        _, row = self.histories.before(user, time)
        row, last = row.copy(), len(self.histories.ids) - 1
        while True:
            other = self.histories.ids[np.minimum(row, last)] != item
            if not other.any():
                return row
            row[other] += 1


def _map_columns(log: Log, change: Callable[[str, NDArray[Any]], NDArray[Any]]) -> Log:
    """A log whose columns are others, as rows only: its views stay as they were."""
    columns: dict[str, Any] = {
        name: change(name, column)
        for name in (*COLUMNS, *EXTRAS)
        if (column := getattr(log, name)) is not None
    }
    return replace(log, **columns, marks={name: change(MARK, mark) for name, mark in log.marks.items()})
