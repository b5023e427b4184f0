"""A log: which user met which item, when, and whether it was a positive.

Its columns are in memory, or in a prepared folder from which they are mapped into memory.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.clock import Clock
from unskew.data.log.views import PAD, Codes, Ints, Sequences

COLUMNS = {"user": np.int32, "item": np.int32, "time": np.int64, "label": np.int8}
EXTRAS = {"propensity": np.float64, "exposed": np.int8, "position": np.int32, "impression_id": np.int64}
TESTS = ("ordinary", "balanced", "shown", "randomised", "weighted", "authors")  # explained in held_out.py
MARK = "test:"  # the prefix of a column that says which rows belong to a named test
AUDIENCE = {"audience_user": np.int32, "audience_time": np.int64}
OFFSETS = ("history_offsets", "audience_offsets")


@dataclass(frozen=True, eq=False)
class Feature:
    """One property of every user or every item, such as the category or the price.

    Numbers may be read as numbers or as categories; text, booleans and dates are categories. A missing value
    is null in `values`, PAD in `categories` and nan in `numbers`.
    """

    values: pa.Array  # one per code, in the type that they had in the source

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers; otherwise they can only be read as categories."""
        kind = self.values.type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    @cached_property
    def names(self) -> pa.Array:
        """The distinct values, in the order of the first codes that have them. Codes follow time, so the
        values of the ids that exist at any moment are a prefix."""
        return self.values.drop_null().unique()

    @cached_property
    def categories(self) -> Ints:
        """The category of each code, as a position in `names`; PAD where the value is missing."""
        found = pc.fill_null(pc.index_in(self.values, value_set=self.names, skip_nulls=True), PAD)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)

    @cached_property
    def numbers(self) -> NDArray[np.float32]:
        """The value of each code as a number; nan where it is missing."""
        if not self.is_number:
            raise BadInput(f"expected numbers, found {self.values.type} values: this feature is a category")
        return np.asarray(self.values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float32)


FEATURE = "feature:"  # the prefix of a column that holds a feature
FEW = 8  # ids that are looked for one by one


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The caller's ids of all users (or items), with their titles and features, in the order of their codes.

    Codes follow the time of the first positive. So the ids that exist at any moment are a prefix, `code < n`.
    Ids that never had a positive come last.
    """

    ids: pa.Array
    titles: pa.Array | None = None
    features: dict[str, Feature] = field(default_factory=dict)

    @classmethod
    def of_table(cls, table: pa.Table) -> "Vocabulary":
        """Make a vocabulary of its columns: `id`, maybe `title`, and `feature:NAME` for each feature."""
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        features = {
            name.removeprefix(FEATURE): Feature(column)
            for name, column in columns.items()
            if name.startswith(FEATURE)
        }
        return cls(columns["id"], columns.get("title"), features)

    def table(self) -> pa.Table:
        """The columns from which `of_table` makes this vocabulary."""
        columns = {"id": self.ids} | ({} if self.titles is None else {"title": self.titles})
        return pa.table(columns | {f"{FEATURE}{name}": of.values for name, of in self.features.items()})

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, codes: NDArray[np.integer]) -> pa.Array:
        """The caller's ids of some codes, in the type of the source; null for PAD."""
        known = np.asarray(codes)
        return self.ids.take(pa.array(known, mask=known == PAD))

    def title_of(self, code: int) -> str | None:
        """The title of a code; None where it has none."""
        return None if self.titles is None else self.titles[code].as_py()

    def codes(self, ids: Sequence[Any] | pa.Array) -> Codes:
        """The codes of some ids; PAD where an id is unknown."""
        if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
            raise BadInput(f"expected a list of ids, found {ids!r}")
        try:
            if isinstance(self.ids, pa.ExtensionArray):
                asked = ids if isinstance(ids, pa.Array) else pa.array(list(ids), self.ids.type)
                asked, known = asked.storage, self.ids.storage
            else:
                asked = ids if isinstance(ids, pa.Array) else pa.array(list(ids))
                asked, known = asked.cast(self.ids.type), self.ids
            if len(asked) <= FEW:  # a look at each id costs less than a table of them
                return np.array([pc.index(pc.equal(known, one), True).as_py() for one in asked], np.int32)
            found = pc.index_in(asked, value_set=known)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise BadInput(f"ids of type {self.ids.type} expected, as in the log: {error}") from None
        return np.asarray(pc.fill_null(found, PAD).to_numpy(zero_copy_only=False), np.int32)


def same_ids(one: pa.Array, other: pa.Array) -> bool:
    """Whether two columns hold the same ids. Text is text, and a whole number is one, however it is held."""
    if one.type != other.type:
        try:
            other = other.cast(one.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return False
    return bool(one.equals(other))


@dataclass(frozen=True, eq=False)
class Log:
    """Interactions as columns: row r says that `user[r]` met `item[r]` at `time[r]` with `label[r]`.

    Users and items are codes, which `users` and `items` translate. The positives come first, sorted by user
    and time; then come the rows that were shown and not clicked, sorted in the same way. So the histories are
    the first rows of the columns themselves and need no memory.
    """

    user: Codes
    item: Codes
    time: Ints
    label: NDArray[np.int8]
    users: Vocabulary
    items: Vocabulary
    histories: Sequences
    audiences: Sequences
    propensity: NDArray[np.float64] | None = None  # the logged P(o = 1)
    exposed: NDArray[np.int8] | None = None  # 1 where the item was exposed at random
    position: Codes | None = None  # the position on the page
    # Rows of one user with the same number were shown together. PAD: nobody knows whether the row was shown.
    impression_id: Ints | None = None
    # For each named test, 1 where a row belongs to it.
    marks: dict[str, NDArray[np.int8]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)  # how the log was made, and what was removed
    end: int | None = None  # the moment after the log, where its newest row is not among these columns
    folder: str | None = None  # the prepared folder that it was opened from

    def __len__(self) -> int:
        return len(self.user)

    @property
    def now(self) -> int:
        """The moment just after the newest row: everything in the log is before it."""
        return self._now

    @cached_property
    def _now(self) -> int:
        return int(self.time.max(initial=-1)) + 1 if self.end is None else self.end

    @cached_property
    def clock(self) -> Clock:
        """The meaning of the times: how long a tick is."""
        first, last = (int(self.time.min()), int(self.time.max())) if len(self) else (0, 0)
        return Clock.of(first, last, self.metadata.get("time_unit", "as given"))

    @cached_property
    def timeline(self) -> Sequences:
        """All positives as one single sequence, in the order of their times."""
        _, place = self.histories.everything()
        place = place[np.argsort(self.histories.times[place], kind="stable")]
        size = np.array([0, len(place)])
        return Sequences(self.histories.ids[place], self.histories.times[place], size)

    @cached_property
    def _rows_of_audiences(self) -> Ints:
        """Where in the histories each event of the audiences is: the two are the same events in other
        orders."""
        owner, place = self.histories.everything()
        return place[np.lexsort((owner, self.histories.times[place], self.histories.ids[place]))]

    def in_history(self, event: Ints, item: Ints) -> Ints:
        """Where in the histories some events of the audiences are, given by their positions and items."""
        return self._rows_of_audiences[event]

    @property
    def origin(self) -> "Log":
        """The log that this one began with: itself, unless events were added."""
        return self

    def frozen(self) -> "Log":
        """This log, as one that never changes."""
        return self

    def following(self, view: Sequences) -> Sequences:
        """A view to which whoever made it adds what comes; in this log nothing does."""
        return view

    def on_event(self, listener: Callable[[int, int, int], None]) -> None:
        """Call a method with the user, the item and the time of each event that is added; here none is."""

    @property
    def positives(self) -> int:
        """The number of positives, which are the first rows."""
        return len(self.histories.ids)

    @cached_property
    def repeated(self) -> NDArray[np.bool_]:
        """Whether the user of each row had a positive on the same item strictly before."""
        return self.had_before(self.user, self.item, self.time)

    def had_before(
        self, user: NDArray[np.integer], item: NDArray[np.integer], time: Ints
    ) -> NDArray[np.bool_]:
        """Whether a user had a positive on an item strictly before a time. The arrays are broadcast."""
        pairs, first = self._first_positives
        pair = np.asarray(user, np.int64) * len(self.items) + item
        place = np.minimum(np.searchsorted(pairs, pair), max(len(pairs) - 1, 0))
        return np.asarray((pairs[place] == pair) & (first[place] < time))

    @cached_property
    def _first_positives(self) -> tuple[Ints, Ints]:
        """All pairs of a user and an item with a positive, each as one number, in increasing order; and the
        time of the first positive of each."""
        positives = self.positives
        pairs, which = np.unique(
            self.user[:positives].astype(np.int64) * len(self.items) + self.item[:positives],
            return_inverse=True,
        )
        first = np.full(len(pairs), np.iinfo(np.int64).max)
        np.minimum.at(first, which, self.time[:positives])
        return pairs, first

    @cached_property
    def _impressions(self) -> tuple[Ints, Ints, Ints]:
        """The number of the impression of each row; and, sorted by impression, the rows that were not
        clicked, with the numbers of their impressions.

        Without a column of impressions, rows of the same user and time count as shown together. If a
        impression shows an item more than once, only one of its rows counts as not clicked, and none if the
        item was clicked in that impression.
        """
        together = self.time if self.impression_id is None else self.impression_id
        _, number = np.unique(together, return_inverse=True)
        _, number = np.unique(
            self.user.astype(np.int64) * (int(number.max(initial=0)) + 1) + number, return_inverse=True
        )
        if self.impression_id is not None:
            number = np.where(np.asarray(self.impression_id) == PAD, PAD, number)
        pair = number * len(self.items) + self.item
        passed = np.arange(self.positives, len(self))
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
        lengths = end - start
        which = np.repeat(np.arange(len(rows)), lengths)
        return which, passed[
            np.arange(lengths.sum()) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)
        ]

    def named_borders(self, names: str) -> tuple[int, int]:
        """The times of the first rows that two named tests mark, `VALID,TEST`: where the validation and the
        test set of a split begin."""
        wanted = [name.strip() for name in names.split(",")]
        if len(wanted) != 2:
            raise BadInput(f"borders {names!r}: expected two named tests between a comma, VALID,TEST")
        firsts = []
        for name in wanted:
            if name not in self.marks or not self.marks[name].any():
                there = ", ".join(self.marks) or "none; `prepare --tests` makes them"
                raise BadInput(f"borders {names!r}: no row is marked as {name!r}; named tests are {there}")
            firsts.append(int(self.time[self.marks[name] == 1].min()))
        if firsts[0] > firsts[1]:
            raise BadInput(
                f"borders {names!r}: {wanted[0]!r} begins after {wanted[1]!r}; expected VALID,TEST"
            )
        return firsts[0], firsts[1]

    def fingerprint(self) -> str:
        """A hash of all rows, ids and features: logs with the same hash have the same content."""
        digest = hashlib.blake2b(digest_size=16)
        for name in (*COLUMNS, *EXTRAS):
            column = getattr(self, name)
            if column is not None:
                digest.update(name.encode() + np.ascontiguousarray(column).data)
        for name, mark in sorted(self.marks.items()):
            digest.update(f"{MARK}{name}".encode() + np.ascontiguousarray(mark).data)
        for vocabulary in (self.users, self.items):
            named = {f"{FEATURE}{name}": of.values for name, of in sorted(vocabulary.features.items())}
            for name, column in ({"": vocabulary.ids} | named).items():
                digest.update(
                    f"{name}{column.type}".encode()
                    + "\0".join("" if value is None else str(value) for value in column.to_pylist()).encode()
                )
        return digest.hexdigest()

    def table(self) -> pa.Table:
        """All rows as an Arrow table, with the caller's ids. `read` and `prepare` make the same log of it
        again: columns of named tests begin with `test:`, features with `user_feature:` and
        `item_feature:`."""
        columns: dict[str, Any] = {
            "user": self.users.of(self.user),
            "item": self.items.of(self.item),
            "time": self.time,
            "label": self.label,
        }
        columns |= {name: getattr(self, name) for name in EXTRAS if getattr(self, name) is not None}
        if self.impression_id is not None:
            columns["impression_id"] = pa.array(
                self.impression_id, mask=np.asarray(self.impression_id) == PAD
            )
        columns |= {f"{MARK}{name}": mark for name, mark in self.marks.items()}
        if self.items.titles is not None:
            columns["title"] = self.items.titles.take(pa.array(self.item))
        for role, vocabulary, codes in (("user", self.users, self.user), ("item", self.items, self.item)):
            columns |= {
                f"{role}_{FEATURE}{name}": of.values.take(pa.array(codes))
                for name, of in vocabulary.features.items()
            }
        return pa.table(columns)

    @classmethod
    def of_positives(
        cls,
        histories: Sequences,
        audiences: Sequences,
        users: Vocabulary,
        items: Vocabulary,
        metadata: dict[str, Any],
        end: int,
    ) -> "Log":
        """A log of which only the views are known: it has the positives and nothing else."""
        user = np.repeat(np.arange(len(histories), dtype=np.int32), np.diff(histories.offsets))
        return cls(
            user=user,
            item=histories.ids,
            time=histories.times,
            label=np.ones(len(user), np.int8),
            users=users,
            items=items,
            histories=histories,
            audiences=audiences,
            metadata=metadata,
            end=end,
        )

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Log":
        """Open a folder that `prepare` made. The columns stay on disk and are mapped into memory."""
        from unskew.data.log.folder import open_folder

        return open_folder(Path(folder))

    def __repr__(self) -> str:
        return (
            f"Log({len(self):,} rows, {self.positives:,} positives, {len(self.users):,} users, "
            f"{len(self.items):,} items)"
        )
