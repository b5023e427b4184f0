"""A log: who met what, when, and whether it was a positive. In memory or memory-mapped from a prepared
folder."""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unskew.data.clock import Clock
from unskew.data.views import PAD, Codes, Ints, Sequences
from unskew.errors import BadInput

COLUMNS = {"user": np.int32, "item": np.int32, "time": np.int64, "label": np.int8}
EXTRAS = {"propensity": np.float64, "exposed": np.int8, "position": np.int32, "visit": np.int64}
TESTS = ("ordinary", "balanced", "shown", "randomised", "weighted", "authors")  # what they are: held_out.py
MARK = "test:"  # before the name of a column that says which rows belong to a named test
AUDIENCE = {"audience_user": np.int32, "audience_time": np.int64}
OFFSETS = ("history_offsets", "audience_offsets")


@dataclass(frozen=True, eq=False)
class Feature:
    """What the log says of every user or every item under one name, such as a category or a price.

    Text, yes-or-no and dates are categories; numbers are numbers. What is missing is null here, PAD as a
    category and nan as a number.
    """

    values: pa.Array  # one per code, in the type they came in

    @property
    def is_number(self) -> bool:
        """Whether the values are numbers, and not categories."""
        kind = self.values.type
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

    @cached_property
    def names(self) -> pa.Array:
        """The distinct values, in the order of the first codes that have them. So the categories of the ids
        that exist at any moment are a prefix, as the ids themselves are."""
        return self.values.drop_null().unique()

    @cached_property
    def categories(self) -> Codes:
        """The category of each code, as its place in `names`; PAD where the value is missing."""
        found = pc.fill_null(pc.index_in(self.values, value_set=self.names, skip_nulls=True), PAD)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int32)

    @cached_property
    def numbers(self) -> NDArray[np.float32]:
        """The value of each code as a number; nan where it is missing."""
        if not self.is_number:
            raise BadInput(f"expected numbers, found {self.values.type} values: this feature is a category")
        return np.asarray(self.values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float32)


FEATURE = "feature:"  # before the name of a column that holds a feature


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The caller's ids in the order of their codes, which is the order of their first positives in time, and
    what the log says of each of them.

    So the ids that exist at any moment are a prefix: `code < n`. Ids that never had a positive come last.
    """

    ids: pa.Array
    titles: pa.Array | None = None
    features: dict[str, Feature] = field(default_factory=dict)

    @classmethod
    def of_table(cls, table: pa.Table) -> "Vocabulary":
        """A vocabulary from its columns: `id`, maybe `title`, and `feature:NAME` for each feature."""
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        features = {
            name.removeprefix(FEATURE): Feature(column)
            for name, column in columns.items()
            if name.startswith(FEATURE)
        }
        return cls(columns["id"], columns.get("title"), features)

    def table(self) -> pa.Table:
        """The same as columns."""
        columns = {"id": self.ids} | ({} if self.titles is None else {"title": self.titles})
        return pa.table(columns | {f"{FEATURE}{name}": of.values for name, of in self.features.items()})

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, codes: NDArray[np.integer]) -> pa.Array:
        """The caller's ids of some codes, in the type they came in."""
        known = np.asarray(codes)
        return self.ids.take(pa.array(known, mask=known == PAD))

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
            found = pc.index_in(asked, value_set=known)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise BadInput(f"ids of type {self.ids.type} expected, as in the log: {error}") from None
        return np.asarray(pc.fill_null(found, PAD).to_numpy(zero_copy_only=False), np.int32)


@dataclass(frozen=True, eq=False)
class Log:
    """Interactions as columns, indexed: row r says that `user[r]` met `item[r]` at `time[r]` with `label[r]`.

    Positives come first, sorted by user and time, then the shown-and-not-clicked, sorted likewise. So the
    histories are the first columns themselves and cost nothing.
    """

    user: Codes
    item: Codes
    time: Ints
    label: NDArray[np.int8]
    users: Vocabulary
    items: Vocabulary
    histories: Sequences
    audiences: Sequences
    propensity: NDArray[np.float64] | None = None  # logged P(o = 1)
    exposed: NDArray[np.int8] | None = None  # 1 = exposed at random
    position: Codes | None = None  # place on the page
    visit: Ints | None = (
        None  # rows of one user with the same number were shown together; PAD: not known to have been shown
    )
    marks: dict[str, NDArray[np.int8]] = field(
        default_factory=dict
    )  # of each named test, 1 where a row belongs to it
    metadata: dict[str, Any] = field(default_factory=dict)  # how it was made, what was removed
    end: int | None = None  # the moment after its newest row, where that row itself is not part of it

    def __len__(self) -> int:
        return len(self.user)

    @property
    def now(self) -> int:
        """The moment just after everything that the log knows."""
        return int(self.time.max(initial=-1)) + 1 if self.end is None else self.end

    @cached_property
    def clock(self) -> Clock:
        """What the times mean."""
        first, last = (int(self.time.min()), int(self.time.max())) if len(self) else (0, 0)
        return Clock.of(first, last, self.metadata.get("time_unit", "as given"))

    @property
    def positives(self) -> int:
        return len(self.histories.ids)

    @cached_property
    def repeated(self) -> NDArray[np.bool_]:
        """Rows whose user had a positive on the same item strictly before."""
        return self.had_before(self.user, self.item, self.time)

    def had_before(
        self, user: NDArray[np.integer], item: NDArray[np.integer], time: Ints
    ) -> NDArray[np.bool_]:
        """Whether each user had a positive on each item strictly before each time. Broadcasts."""
        pairs, first = self._first_positives
        pair = np.asarray(user, np.int64) * len(self.items) + item
        place = np.minimum(np.searchsorted(pairs, pair), max(len(pairs) - 1, 0))
        return np.asarray((pairs[place] == pair) & (first[place] < time))

    @cached_property
    def _first_positives(self) -> tuple[Ints, Ints]:
        """Every pair of a user and an item with a positive, as one increasing number, and the time of the
        first."""
        positives = self.positives
        pairs, which = np.unique(
            self.user[:positives].astype(np.int64) * len(self.items) + self.item[:positives],
            return_inverse=True,
        )
        first = np.full(len(pairs), np.iinfo(np.int64).max)
        np.minimum.at(first, which, self.time[:positives])
        return pairs, first

    @cached_property
    def _visits(self) -> tuple[Ints, Ints, Ints]:
        """A number per row that rows shown together share, and the rows that were not clicked, sorted by it,
        with it.

        Without a column of visits, rows of the same user and time were shown together. Of an item that a
        visit shows again and again there is one row, and none if it was clicked in any of them.
        """
        together = self.time if self.visit is None else self.visit
        _, number = np.unique(together, return_inverse=True)
        _, number = np.unique(
            self.user.astype(np.int64) * (int(number.max(initial=0)) + 1) + number, return_inverse=True
        )
        if self.visit is not None:
            number = np.where(np.asarray(self.visit) == PAD, PAD, number)
        pair = number * len(self.items) + self.item
        passed = np.arange(self.positives, len(self))
        passed = passed[(number[passed] != PAD) & ~np.isin(pair[passed], pair[: self.positives])]
        passed = passed[np.unique(pair[passed], return_index=True)[1]]
        return number, passed, number[passed]

    def shown_with(self, rows: Ints) -> tuple[Ints, Ints]:
        """What was shown in the same visit as each of these rows and not clicked: which of the rows, and the
        row of the log."""
        if len(self) == self.positives:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        number, passed, numbers = self._visits
        start, end = (np.searchsorted(numbers, number[rows], side) for side in ("left", "right"))
        lengths = end - start
        which = np.repeat(np.arange(len(rows)), lengths)
        return which, passed[
            np.arange(lengths.sum()) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)
        ]

    def fingerprint(self) -> str:
        """A hash of all rows and ids: two logs with the same one hold the same."""
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
                    f"{name}{column.type}".encode() + "\0".join(map(str, column.to_pylist())).encode()
                )
        return digest.hexdigest()

    def table(self) -> pa.Table:
        """The rows with the caller's ids, as an Arrow table."""
        columns: dict[str, Any] = {
            "user": self.users.of(self.user),
            "item": self.items.of(self.item),
            "time": self.time,
            "label": self.label,
        }
        columns |= {name: getattr(self, name) for name in EXTRAS if getattr(self, name) is not None}
        if self.visit is not None:
            columns["visit"] = pa.array(self.visit, mask=np.asarray(self.visit) == PAD)
        columns |= {f"{MARK}{name}": mark for name, mark in self.marks.items()}
        if self.items.titles is not None:
            columns["title"] = self.items.titles.take(pa.array(self.item))
        return pa.table(columns)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Log":
        """Open a prepared folder; its columns stay on disk and are mapped into memory."""
        from unskew.data.folder import open_folder

        return open_folder(Path(folder))

    def __repr__(self) -> str:
        return (
            f"Log({len(self):,} rows, {self.positives:,} positives, {len(self.users):,} users, "
            f"{len(self.items):,} items)"
        )
