"""A live log: a prepared log, or what a run remembers of one, and the events that came since.

    live = Live(log)
    live.append(["ann"], ["tea"], [1_770_000_000])

Its views are those of any log (`before`, `padded`, `flat`, times), so models and catalogues that rank now
cannot tell the difference, and an event costs the same in a log of any size. New users and items get the next
codes. Whatever trains or evaluates takes `snapshot()`, which is the log that `prepare` would make of all
events.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.growing import NEVER, Growing, GrowingVocabulary, Listeners
from unskew.data.log.log import EXTRAS, Log, Vocabulary
from unskew.data.log.views import PAD, Ints, Sequences, offsets_of

MANY = 2000  # from so many events on, the views are sorted anew instead of taking one event after the other
UNKNOWN = {
    "propensity": 1.0,
    "exposed": 0,
    "position": 0,
    "impression_id": PAD,
}  # of an event that came since
_OF_ROWS = ("_first_positives", "_impressions", "repeated", "_rows")  # what is made of rows and kept


class Live(Log):
    """A log that events can be added to.

    text: whether ids are read as text, whatever type they had, as they come in JSON.
    """

    def __init__(self, log: Log, text: bool = False) -> None:
        self._base, self._newest = log, log.now - 1
        self._added: list[tuple[Ints, Ints, Ints]] = []
        self._listeners = Listeners()
        duplicates = log.metadata.get("settings", {}).get("duplicates", "event")
        vars(self).update(
            users=GrowingVocabulary(log.users, text),
            items=GrowingVocabulary(log.items, text),
            histories=Growing(log.histories),
            audiences=Growing(log.audiences),
            timeline=Growing(log.timeline, by_id=False),
            clock=log.clock,
            metadata=log.metadata,
            folder=None,
            end=None,
            duplicates=duplicates,
        )

    users: GrowingVocabulary
    items: GrowingVocabulary
    histories: Growing
    audiences: Growing
    timeline: Growing
    duplicates: str

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def now(self) -> int:
        return self._newest + 1

    @property
    def positives(self) -> int:
        return int((self.timeline.ends - self.timeline.starts)[0])

    @property
    def origin(self) -> Log:
        return self._base

    @property
    def added(self) -> int:
        """How many events were added."""
        return sum(len(user) for user, _, _ in self._added)

    def append(self, users: Sequence[Any], items: Sequence[Any], times: Sequence[int]) -> int:
        """Add positives, given by the callers' ids and by times in ticks of the log's clock. What `prepare`
        would remove as a duplicate is not added. Returns how many were."""
        if not len(users) == len(items) == len(times):
            raise BadInput("expected as many users as items and times")
        who, what = self.users.read(users), self.items.read(items)
        if None in who or None in what:
            raise BadInput("expected an id for every user and every item, found none for some")
        user, item = self.users.add(who), self.items.add(what)
        time = np.array(times, np.int64)
        if len(time) >= MANY:
            added = self._append_many(user, item, time)
        else:
            one_by_one = zip(user.tolist(), item.tolist(), time.tolist(), strict=True)
            added = np.array([self._append_one(*event) for event in one_by_one], bool)
        if added.any():
            self._added.append((user[added], item[added], time[added]))
            self._newest = max(self._newest, int(time[added].max()))
        for name in _OF_ROWS:
            vars(self).pop(name, None)
        return int(added.sum())

    def _append_one(self, user: int, item: int, time: int) -> bool:
        if self.duplicates != "keep" and self.histories.has(
            user, item, None if self.duplicates == "pair" else time
        ):
            return False
        self.histories.add(user, item, time)
        self.audiences.add(item, user, time)
        self.timeline.add(0, item, time)
        self._listeners.tell(user, item, time)
        return True

    def _append_many(self, user: Ints, item: Ints, time: Ints) -> NDArray[np.bool_]:
        owner, place = self.histories.everything()
        before = owner, self.histories.ids[place].astype(np.int64), self.histories.times[place]
        event = [np.concatenate(pair) for pair in zip(before, (user, item, time), strict=True)]
        kept = np.ones(len(event[0]), bool)
        if self.duplicates != "keep":
            key = event if self.duplicates == "event" else event[:2]
            order = np.lexsort((np.arange(len(kept)), *key[::-1]))
            same = np.all([part[order][1:] == part[order][:-1] for part in key], axis=0)
            kept[order[1:][same]] = False
        self._refill(*(part[kept] for part in event))
        return kept[len(owner) :]

    def _refill(self, user: Ints, item: Ints, time: Ints) -> None:
        self.histories.refill(user, item.astype(np.int32), time, len(self.users))
        self.audiences.refill(item, user.astype(np.int32), time, len(self.items))
        self.timeline.refill(np.zeros_like(user), item.astype(np.int32), time, 1)
        self._listeners.tell(PAD, PAD, 0)

    def forget(self, user: Any) -> bool:
        """Forget a user: the id, and every event. Returns whether the user was known."""
        code = self.users.forget(self.users.read([user])[0])
        if code == PAD:
            return False
        base = self._base
        keep = np.asarray(base.user) != code
        self._base = _without(base, keep)
        self._added = [tuple(part[event[0] != code] for part in event) for event in self._added]
        owner, place = self.histories.everything()
        others = owner != code
        place = place[others]
        self._refill(owner[others], self.histories.ids[place].astype(np.int64), self.histories.times[place])
        for name in _OF_ROWS:
            vars(self).pop(name, None)
        return True

    # What a log has

    def in_history(self, event: Ints, item: Ints) -> Ints:
        user, time = self.audiences.ids[event], self.audiences.times[event]
        _, row = self.histories.before(user, time)
        row, last = row.copy(), len(self.histories.ids) - 1
        while True:
            other = self.histories.ids[np.minimum(row, last)] != item
            if not other.any():
                return row
            row[other] += 1

    def following(self, view: Sequences) -> Sequences:
        return Growing(view)

    def on_event(self, listener: Callable[[int, int, int], None]) -> None:
        """Call a method with the user, the item and the time of each event that is added; with PAD, if all
        may be others."""
        self._listeners.add(listener)

    # Rows, for whatever needs them

    def frozen(self) -> Log:
        """The same log with the same codes, as it is now, for models that read more than views."""
        return self._rows

    @property
    def _rows(self) -> Log:
        if "_rows" not in vars(self):
            vars(self)["_rows"] = self._frozen()
        return vars(self)["_rows"]

    def _frozen(self) -> Log:
        histories, audiences = (
            self._padded(self.histories, self.users),
            self._padded(self.audiences, self.items),
        )
        users, items = (Vocabulary.of_table(known.table()) for known in (self.users, self.items))
        return Log.of_positives(histories, audiences, users, items, self.metadata, self.now)

    @staticmethod
    def _padded(view: Growing, vocabulary: GrowingVocabulary) -> Sequences:
        """A view with an entity for each id, also for those without an event."""
        made = view.frozen()
        missing = np.full(len(vocabulary) - len(made), made.offsets[-1])
        return replace(made, offsets=np.concatenate([made.offsets, missing]))

    user = property(lambda self: self._rows.user)
    item = property(lambda self: self._rows.item)
    time = property(lambda self: self._rows.time)
    label = property(lambda self: self._rows.label)
    propensity = exposed = position = impression = None
    marks: dict[str, NDArray[np.int8]] = {}  # noqa: RUF012

    def snapshot(self) -> Log:
        """The log that `prepare` would make of all rows: codes follow the first positives again, and rows
        that were shown and not clicked are there too. Later events do not change it."""
        base = self._base
        added = [np.concatenate([np.zeros(0, np.int64), *part]) for part in zip(*self._added, strict=True)]
        user, item, time = added or [np.zeros(0, np.int64)] * 3
        columns: dict[str, NDArray[Any]] = {
            "user": np.concatenate([base.user, user]).astype(np.int64),
            "item": np.concatenate([base.item, item]).astype(np.int64),
            "time": np.concatenate([base.time, time]),
            "label": np.concatenate([base.label, np.ones(len(user), np.int8)]),
        }
        for name in EXTRAS:
            if getattr(base, name) is not None:
                unknown = np.full(len(user), UNKNOWN[name], EXTRAS[name])
                columns[name] = np.concatenate([getattr(base, name), unknown])
        marks = {
            name: np.concatenate([mark, np.zeros(len(user), np.int8)]) for name, mark in base.marks.items()
        }
        columns |= {f"mark {name}": mark for name, mark in marks.items()}
        columns = _without_passed(columns, len(base)) if self.duplicates == "event" and len(user) else columns
        vocabularies = {}
        for role, known in (("user", self.users), ("item", self.items)):
            order = _numbering(columns[role], columns["time"], columns["label"], known.ids)
            number = np.full(len(known), PAD, np.int64)
            number[order] = np.arange(len(order))
            columns[role] = number[columns[role]].astype(np.int32)
            vocabularies[role] = Vocabulary.of_table(known.table().take(pa.array(order)))
        return _sorted(columns, vocabularies, base, self.now)


def _without(log: Log, keep: NDArray[np.bool_]) -> Log:
    """Some rows of a log, as rows only: its views are not asked for."""
    parts: dict[str, Any] = {
        name: getattr(log, name)[keep]
        for name in ("user", "item", "time", "label", *EXTRAS)
        if getattr(log, name) is not None
    }
    return replace(log, **parts, marks={name: mark[keep] for name, mark in log.marks.items()})


def _without_passed(columns: dict[str, NDArray[Any]], before: int) -> dict[str, NDArray[Any]]:
    """Without rows that were shown and not clicked, where the same user clicked the item at the same time:
    the highest label stays."""
    event = np.stack([columns["user"], columns["item"], columns["time"]], axis=1)
    _, which = np.unique(event, axis=0, return_inverse=True)
    clicked = np.zeros(int(which.max(initial=-1)) + 1, bool)
    clicked[which[before:]] = True
    kept = (columns["label"] == 1) | ~clicked[which]
    return {name: column[kept] for name, column in columns.items()}


def _numbering(code: Ints, time: Ints, label: NDArray[np.int8], ids: pa.Array) -> Ints:
    """The codes in the order in which `prepare` would number them: by the first positive, the first row, and
    the id as text. Ids without any row are left out."""
    first, seen = np.full(len(ids), NEVER), np.full(len(ids), NEVER)
    np.minimum.at(first, code[label == 1], time[label == 1])
    np.minimum.at(seen, code, time)
    storage = ids.storage if isinstance(ids, pa.ExtensionArray) else ids
    rank = np.empty(len(ids), np.int64)
    rank[pc.sort_indices(storage.cast(pa.string())).to_numpy()] = np.arange(len(ids))
    order = np.lexsort((rank, seen, first))
    return order[seen[order] != NEVER]


def _sorted(columns: dict[str, NDArray[Any]], of: dict[str, Vocabulary], base: Log, end: int) -> Log:
    """A log of its columns in the order of `prepare`."""
    extras = [column for name, column in columns.items() if name not in ("user", "item", "time", "label")]
    order = np.lexsort((*extras[::-1], columns["item"], columns["time"], columns["user"], -columns["label"]))
    columns = {name: column[order] for name, column in columns.items()}
    positives = int(columns["label"].sum())
    user, item, time = (columns[name][:positives] for name in ("user", "item", "time"))
    by_item = np.lexsort((user, time, item))
    marks = {name.removeprefix("mark "): columns.pop(name) for name in list(columns) if name[:5] == "mark "}
    of_rows: dict[str, Any] = columns
    return Log(
        **of_rows,
        marks=marks,
        users=of["user"],
        items=of["item"],
        histories=Sequences(item, time, offsets_of(user, len(of["user"]))),
        audiences=Sequences(user[by_item], time[by_item], offsets_of(item[by_item], len(of["item"]))),
        metadata=base.metadata,
        end=end if base.end is not None else None,
    )
