"""A log: which user met which item, when, and whether it was a positive.

Its columns are in memory, or in a prepared folder from which they are mapped into memory.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.core.storage import check_on_disk
from unskew.data.log.arrays import chunks, expand_ranges, sort_into
from unskew.data.log.clock import Clock
from unskew.data.log.derived import LARGE, FolderShelf, Shelf, entity_chunks, taken
from unskew.data.log.erasures import erased_rows, list_beside, read_erasures
from unskew.data.log.folder import (
    AUDIENCE,
    COLUMNS,
    EXTRAS,
    MARK,
    OFFSETS,
    TYPE_COLUMN,
    VIEW_PARTS,
    column_file,
    context_column,
    read_folder,
)
from unskew.data.log.preparation import Metadata
from unskew.data.log.views import PAD, Codes, EventView, Ints, Sequences, Views, views_of
from unskew.data.log.vocabulary import CHANGES, FEATURE, Vocabulary, VocabularyView

# What the optional columns hold for an event of whose exposure nothing is known.
UNKNOWN = {"propensity": 1.0, "exposed": 0, "position": 0, "impression_id": PAD}

TEXTS = 100_000  # ids that are read together

# Explained in held_out.py.
TESTS = ("ordinary", "balanced", "shown", "randomised", "weighted", "authors", "untouched")


class LogView(Protocol):
    """What models and rankers read of a log: its ids, its events, and its clock. A `Log` never changes; a
    `Live` log takes new events."""

    @property
    def users(self) -> VocabularyView:
        """The users by their codes."""

    @property
    def items(self) -> VocabularyView:
        """The items by their codes."""

    @property
    def histories(self) -> EventView:
        """The positives of each user."""

    @property
    def audiences(self) -> EventView:
        """The positives of each item."""

    @property
    def timeline(self) -> EventView:
        """All positives as one single sequence, in the order of their times."""

    @property
    def context(self) -> Mapping[str, Views]:
        """The events that are read and not predicted, such as views of a shop's pages, by their types, in the
        order of the names."""

    @property
    def clock(self) -> Clock:
        """The meaning of the times: how long a tick is."""

    @property
    def now(self) -> int:
        """The moment just after the newest row: everything in the log is before it."""

    @property
    def metadata(self) -> Metadata:
        """How the log was made."""

    @property
    def origin(self) -> "Log":
        """The log that this one began with: itself, unless events were added."""

    def frozen(self) -> "Log":
        """The same log with the same codes, as one that never changes, for models that read rows."""

    def following(self, view: Sequences) -> EventView:
        """A view to which whoever made it can add what comes, if the log is live."""

    def on_event(self, listener: Callable[[int, int, int], None]) -> None:
        """Call a method with the user, the item and the time of each positive that is added; with PAD, if all
        events may be others."""

    def on_context(self, listener: Callable[[str, int, int, int], None]) -> None:
        """The same for each event of a context type, which comes first."""

    def in_history(self, event: Ints, item: Ints) -> Ints:
        """Where in the histories some events of the audiences are, given by their positions and items."""


@dataclass(frozen=True, eq=False)
class Log:
    """A log that never changes: row r says that `user[r]` met `item[r]` at `time[r]` with `label[r]`.

    Users and items are codes, which `users` and `items` translate. Codes follow the time from which an id
    exists, that of its first positive unless an earlier one is known, so the ids that exist at any moment are
    a prefix. The positives come first, sorted by user and
    time; then come the rows that were shown and not clicked, sorted in the same way. So the histories are the
    first rows of the columns themselves and need no memory.

    Parameters
    ----------
    user, item, time, label
        The columns of all rows. A label is 1 for a positive and 0 otherwise.
    users, items
        The caller's ids with titles and features, in the order of their codes.
    histories, audiences
        The positives of each user and of each item, in the order of time.
    propensity
        The logged probability of exposure of each row.
    exposed
        1 where the item was exposed at random.
    position
        The position on the page.
    impression_id
        Rows of one user with the same number were shown together. PAD means that nobody knows whether the row
        was shown.
    marks
        For each named test, 1 where a row belongs to it.
    context
        The events that are read and not predicted, by their types. They are no rows.
    metadata
        How the log was made, and what was removed.
    end
        The moment after the log, if its newest row is not among these columns.
    folder
        The prepared folder that it was opened from.

    Examples
    --------
    >>> import unskew
    >>> log = unskew.read({"user": [1, 1, 2], "item": ["a", "b", "a"], "time": [10, 20, 30]})
    >>> log
    Log(3 rows, 3 positives, 2 users, 2 items)
    """

    user: Codes
    item: Codes
    time: Ints
    label: NDArray[np.int8]
    users: Vocabulary
    items: Vocabulary
    histories: Sequences
    audiences: Sequences
    propensity: NDArray[np.float64] | None = None
    exposed: NDArray[np.int8] | None = None
    position: Codes | None = None
    impression_id: Ints | None = None
    marks: dict[str, NDArray[np.int8]] = field(default_factory=dict)
    context: dict[str, Views] = field(default_factory=dict)
    metadata: Metadata = field(default_factory=Metadata)
    end: int | None = None
    folder: str | None = None
    shelf: Shelf = field(default_factory=Shelf, init=False)  # where what is derived of the columns is kept

    def __len__(self) -> int:
        return len(self.user)

    @cached_property
    def now(self) -> int:
        """The moment just after the newest row: everything in the log is before it."""
        times = (self.time, *(views.histories.times for views in self.context.values()))
        return max(int(each.max(initial=-1)) for each in times) + 1 if self.end is None else self.end

    @cached_property
    def clock(self) -> Clock:
        """The meaning of the times: how long a tick is."""
        first, last = (int(self.time.min()), int(self.time.max())) if len(self) else (0, 0)
        return Clock.of(first, last, self.metadata.time_unit)

    @cached_property
    def timeline(self) -> Sequences:
        """All positives as one single sequence, in the order of their times."""
        places, length = self.histories.in_order_of_time, self.positives
        ids, times = (
            self.shelf.array(f"timeline_{name}", column.dtype, length, taken(column, places))
            for name, column in (("ids", self.histories.ids), ("times", self.histories.times))
        )
        return Sequences(ids, times, np.array([0, length])).kept_on(self.shelf.part("timeline"))

    @cached_property
    def _rows_of_audiences(self) -> NDArray[np.integer]:
        """Where in the histories each event of the audiences is: the two are the same events in other
        orders."""
        in_time, ids = self.histories.in_order_of_time, self.histories.ids

        def fill(places: NDArray[Any]) -> None:
            sort_into(places, in_time.__getitem__, ids.__getitem__)

        return self.shelf.array("rows_of_audiences", in_time.dtype, len(in_time), fill)

    def in_history(self, event: Ints, item: Ints) -> Ints:
        """See `LogView`."""
        return self._rows_of_audiences[event].astype(np.int64)

    @property
    def origin(self) -> "Log":
        """See `LogView`."""
        return self

    def frozen(self) -> "Log":
        """See `LogView`."""
        return self

    def following(self, view: Sequences) -> Sequences:
        """See `LogView`."""
        return view

    def on_event(self, listener: Callable[[int, int, int], None]) -> None:
        """Nothing is ever added here, so the method is never called."""

    def on_context(self, listener: Callable[[str, int, int, int], None]) -> None:
        """Nothing is ever added here, so the method is never called."""

    @property
    def positives(self) -> int:
        """The number of positives, which are the first rows."""
        return len(self.histories.ids)

    @cached_property
    def repeated(self) -> NDArray[np.bool_]:
        """Whether the user of each row had a positive on the same item strictly before."""
        view, positives = self.histories, self.positives

        def fill(repeated: NDArray[Any]) -> None:
            for block in entity_chunks(view):
                own = slice(int(view.offsets[block.start]), int(view.offsets[block.stop]))
                place = view.by_id[own]
                user, item, time = self.user[place], view.ids[place], view.times[place]
                is_first = np.ones(len(place), bool)
                is_first[1:] = (user[1:] != user[:-1]) | (item[1:] != item[:-1])
                first = np.maximum.accumulate(np.where(is_first, np.arange(len(place)), 0))
                repeated[place] = time > time[first]
            for part in chunks(len(self) - positives):
                rest = slice(positives + part.start, positives + part.stop)
                repeated[rest] = self.had_before(self.user[rest], self.item[rest], self.time[rest])

        return self.shelf.array("repeated", np.bool_, len(self), fill)

    def had_before(
        self, user: NDArray[np.integer], item: NDArray[np.integer], time: Ints
    ) -> NDArray[np.bool_]:
        """Whether a user had a positive on an item strictly before a time. The arrays are broadcast."""
        users, items, times = np.broadcast_arrays(user, item, time)
        event = self.histories.first_with(
            *(np.asarray(column, np.int64).ravel() for column in (users, items))
        ).reshape(users.shape)
        if not self.positives:
            return np.zeros(users.shape, bool)
        return np.asarray((event != PAD) & (self.histories.times[event] < times))

    @cached_property
    def _impressions(self) -> tuple[Ints, Ints, Ints]:
        """The number of the impression of each row; and, sorted by impression, the rows that were not
        clicked, with the numbers of their impressions.

        Without a column of impressions, rows of the same user and time count as shown together. If an
        impression shows an item more than once, only one of its rows counts as not clicked, and none if the
        item was clicked in that impression.
        """
        together = self.time if self.impression_id is None else self.impression_id
        _, number = np.unique(together, return_inverse=True)
        of_user = self.user.astype(np.int64) * (int(number.max(initial=0)) + 1)
        _, number = np.unique(of_user + number, return_inverse=True)
        if self.impression_id is not None:
            number = np.where(np.asarray(self.impression_id) == PAD, PAD, number)
        pair = number * len(self.items) + self.item
        passed = np.flatnonzero(self.label == 0)
        passed = passed[(number[passed] != PAD) & ~np.isin(pair[passed], pair[: self.positives])]
        passed = passed[np.unique(pair[passed], return_index=True)[1]]
        return number, passed, number[passed]

    def shown_with(self, rows: Ints) -> tuple[Ints, Ints]:
        """What was shown in the same impression as each of these rows and not clicked. Returns pairs as two
        arrays: a position in `rows`, and the row of the log that was shown with it."""
        if len(self) == self.positives:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        number, passed, numbers = self._impressions
        start, end = (np.searchsorted(numbers, number[rows], side) for side in ("left", "right"))
        which, place = expand_ranges(start, end)
        return which, passed[place]

    def named_borders(self, names: str) -> tuple[int, int]:
        """The times of the first rows that two named tests mark, `VALID,TEST`: where the validation and the
        test set of a split begin."""
        tests = [name.strip() for name in names.split(",")]
        if len(tests) != 2:
            raise BadInput(
                f"borders {names!r}: expected two named tests between a comma, VALID,TEST", field="borders"
            )
        for name in tests:
            if name not in self.marks or not self.marks[name].any():
                available = ", ".join(self.marks) or "none; `prepare --tests` makes them"
                raise BadInput(
                    f"borders {names!r}: no row is marked as {name!r}; named tests are {available}"
                )
        valid, test = (int(self.time[self.marks[name] == 1].min()) for name in tests)
        if valid > test:
            raise BadInput(f"borders {names!r}: {tests[0]!r} begins after {tests[1]!r}; expected VALID,TEST")
        return valid, test

    def fingerprint(self) -> str:
        """A hash of all rows, ids and features: logs with the same hash have the same content. Whole numbers
        as ids count as their texts, because a text file has no types."""
        shelf = self.shelf
        return shelf.fingerprint(self._fingerprint) if isinstance(shelf, FolderShelf) else self._fingerprint()

    def _fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for name, column in self._all_columns():
            digest.update(name.encode())
            for part in chunks(len(column)):
                digest.update(np.ascontiguousarray(column[part]).data)
        for vocabulary in (self.users, self.items):
            for text in _texts_of(vocabulary):
                digest.update(text.encode())
        return digest.hexdigest()

    def _all_columns(self) -> Iterator[tuple[str, NDArray[Any]]]:
        """The columns of rows, of the times since when ids exist, of context events and of named tests."""
        columns = ((name, getattr(self, name)) for name in (*COLUMNS, *EXTRAS))
        yield from ((name, column) for name, column in columns if column is not None)
        for role, view in (("user", self.histories), ("item", self.audiences)):
            if view.listed is not None:
                yield f"{role}_since", view.since
        for kind, views in sorted(self.context.items()):
            yield from zip((kind, "", ""), views.events(), strict=True)
        yield from ((f"{MARK}{name}", mark) for name, mark in sorted(self.marks.items()))

    def everything(self) -> tuple[Ints, Ints, Ints]:
        """The users, the items and the times of all rows, and then of the context events, type by type."""
        events = [views.events() for views in self.context.values()]
        user, item, time = (
            np.concatenate([column, *(each[place] for each in events)]).astype(np.int64)
            for place, column in enumerate((self.user, self.item, self.time))
        )
        return user, item, time

    def table(self) -> pa.Table:
        """All rows and all context events as an Arrow table, with the caller's ids. `read` and `prepare` make
        the same log of it again: columns of named tests begin with `test:`, features with `user_feature:` and
        `item_feature:`, and `context:type` is the type of context events and null for rows."""
        users, items, times = self.everything()
        more = len(users) - len(self)
        columns: dict[str, Any] = {
            "user": self.users.of(users),
            "item": self.items.of(items),
            "time": times,
            "label": _extended(self.label, more, 0),
        }
        columns |= {
            name: _extended(column, more, UNKNOWN[name])
            for name in EXTRAS
            if (column := getattr(self, name)) is not None
        }
        if self.impression_id is not None:
            is_unknown = columns["impression_id"] == PAD
            columns["impression_id"] = pa.array(columns["impression_id"], mask=is_unknown)
        columns |= {f"{MARK}{name}": _extended(mark, more, 0) for name, mark in self.marks.items()}
        if self.items.titles is not None:
            columns["title"] = self.items.titles.take(pa.array(items))
        for role, vocabulary, codes in (("user", self.users, users), ("item", self.items, items)):
            columns |= {
                f"{role}_{FEATURE}{name}": of.values.take(pa.array(codes))
                for name, of in vocabulary.features.items()
                if of.changes is None  # which columns cannot say; see `item_feed.feed_of`
            }
        if self.context:
            kinds = np.array([None, *self.context], object)
            sizes = [len(self), *(len(views.events()[0]) for views in self.context.values())]
            of = np.repeat(np.arange(len(kinds)), sizes)
            columns[TYPE_COLUMN] = pa.array(kinds[of], pa.string())
        return pa.table(columns)

    @classmethod
    def of_positives(
        cls,
        histories: Sequences,
        audiences: Sequences,
        users: Vocabulary,
        items: Vocabulary,
        end: int,
        metadata: Metadata = Metadata(),  # noqa: B008 (frozen)
        context: dict[str, Views] | None = None,
    ) -> "Log":
        """A log of which only the views are known: it has the positives, maybe context events, and nothing
        else."""
        user, _ = histories.everything()
        return cls(
            user=user.astype(np.int32),
            item=histories.ids,
            time=histories.times,
            label=np.ones(len(user), np.int8),
            users=users,
            items=items,
            histories=histories,
            audiences=audiences,
            context=context or {},
            metadata=metadata,
            end=end,
        )

    @classmethod
    def of_columns(
        cls,
        columns: Mapping[str, NDArray[Any]],
        users: pa.Table,
        items: pa.Table,
        metadata: Metadata,
        folder: str | None = None,
    ) -> "Log":
        """A log of the columns of a prepared folder, which may be in memory or on disk."""
        positives = int(columns["history_offsets"][-1])
        rows: dict[str, Any] = {name: columns[name] for name in (*COLUMNS, *EXTRAS) if name in columns}
        item, time = columns["item"][:positives], columns["time"][:positives]
        user, when, offsets = (columns[f"audience_{part}"] for part in ("user", "time", "offsets"))
        return cls(
            **rows,
            marks={name.removeprefix(MARK): mark for name, mark in columns.items() if name.startswith(MARK)},
            users=Vocabulary.of_table(users),
            items=Vocabulary.of_table(items),
            context={kind: _views_on_disk(columns, kind) for kind in metadata.types.context},
            histories=Sequences(item, time, columns["history_offsets"], columns.get("user_since")),
            audiences=Sequences(user, when, offsets, columns.get("item_since")),
            metadata=metadata,
            folder=folder,
        )

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Log":
        """Open a folder that `prepare` made. The columns stay on disk and are mapped into memory.

        Parameters
        ----------
        folder
            The folder that was given to `prepare` as `out`.

        Raises
        ------
        BadInput
            If the folder is missing, damaged, or not a prepared folder, or holds rows of users who were
            erased from it.
        """
        check_on_disk(folder)
        shelf = _shelf_in(Path(folder).resolve())
        log = cls.of_columns(*read_folder(Path(folder), shelf.is_checked), str(Path(folder).resolve()))
        if len(log) >= LARGE:
            shelf.set_checked()
            log = log.kept_in(Path(folder).resolve())
        erasures = read_erasures(list_beside(Path(folder).resolve()))
        user, _, time = log.everything() if len(erasures) else (log.user, log.item, log.time)
        if erased_rows(log.users.ids, user, time, log.clock, erasures).any():
            raise BadInput(
                f"{folder}: holds rows of users who were erased from it; is it a copy from before? "
                f"`unskew erase --data {folder}` removes them again"
            )
        return log

    def kept_in(self, folder: Path) -> "Log":
        """The same log, with what is derived of it in its prepared folder, and not in memory."""
        shelf = _shelf_in(folder)
        same = replace(
            self,
            histories=self.histories.kept_on(shelf.part("histories")),
            audiences=self.audiences.kept_on(shelf.part("audiences")),
            context={kind: views.kept_on(shelf.part(kind)) for kind, views in self.context.items()},
        )
        object.__setattr__(same, "shelf", shelf)
        return same

    def __repr__(self) -> str:
        return (
            f"Log({len(self):,} rows, {self.positives:,} positives, {len(self.users):,} users, "
            f"{len(self.items):,} items)"
        )


def _kind_of_values(kind: pa.DataType, is_id: bool) -> str:
    """What a fingerprint says of a type: all layouts of text are one, and ids that are whole numbers are
    text."""
    is_text = pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    return "string" if is_text or (is_id and pa.types.is_integer(kind)) else str(kind)


def _shelf_in(folder: Path) -> FolderShelf:
    """The shelf of a prepared folder."""
    names = [*COLUMNS, *AUDIENCE, *OFFSETS]
    return FolderShelf(folder, {name: column_file(folder, name) for name in names})


def _texts_of(vocabulary: Vocabulary) -> Iterator[str]:
    """The ids and the features of a vocabulary as texts, a part at a time."""
    features = sorted(vocabulary.features.items())
    columns = {"": vocabulary.ids} | {f"{FEATURE}{name}": of.values for name, of in features}
    columns |= {
        f"{CHANGES}{name}": of.changes.column(len(vocabulary))
        for name, of in features
        if of.changes is not None
    }
    for name, column in columns.items():
        yield f"{name}{_kind_of_values(column.type, is_id=not name)}"
        for part in chunks(len(column), TEXTS):
            texts = ("" if value is None else str(value) for value in column[part].to_pylist())
            yield ("\0" if part.start else "") + "\0".join(texts)


def _extended(column: NDArray[Any], more: int, value: float) -> NDArray[Any]:
    """A column, and so many times a value behind it."""
    return np.concatenate([column, np.full(more, value, column.dtype)]) if more else np.asarray(column)


def renumber_context(log: Log, number: NDArray[np.integer], items: int) -> dict[str, Views]:
    """The context events of a log whose items get other numbers."""
    context = {}
    for kind, views in log.context.items():
        user, item, time = views.events()
        context[kind] = views_of(user, number[item].astype(np.int64), time, len(log.users), items)
    return context


def _views_on_disk(columns: Mapping[str, NDArray[Any]], kind: str) -> Views:
    """The events of a context type, from the columns of a prepared folder."""
    parts = [columns[context_column(kind, part)] for part in VIEW_PARTS]
    return Views(Sequences(*parts[:3]), Sequences(*parts[3:]))
