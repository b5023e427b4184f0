"""The ids of users and items, which a log numbers by codes, with their titles and features."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.arrays import Codes, Ints, expand_ranges, offsets_of

PAD = -1  # the code of nothing: in padded rows, and of unknown ids; real codes start at 0
FEATURE = "feature:"  # the prefix of a column that holds a feature
SEPARATOR = "|"  # between the tags of a text
CHANGES = "changes:"  # the prefix of a column that holds the values of a feature with their times
ALWAYS, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # times before and after all others
FEW = 8  # ids that are looked for one by one


class Tagged(NamedTuple):
    """Which codes have which tags, as distinct pairs in the order of the codes."""

    code: Ints
    tag: Ints  # a position in the names
    names: pa.Array


class Spans(NamedTuple):
    """Which codes have which tags, and when: a request at t reads a tag if start < t <= end."""

    code: Ints
    tag: Ints
    start: Ints
    end: Ints
    names: pa.Array


class Changes(NamedTuple):
    """The values of a feature with the times from which they are known, by code and time."""

    code: Ints
    time: Ints
    values: pa.Array

    @classmethod
    def of(cls, code: Ints, time: Ints, values: pa.Array) -> "Changes":
        """Sort values; of several of one code and time, the last one counts."""
        order = np.lexsort((np.arange(len(code)), time, code))
        code, time = code[order], time[order]
        is_last = np.ones(len(code), bool)
        is_last[:-1] = (code[1:] != code[:-1]) | (time[1:] != time[:-1])
        return cls(code[is_last], time[is_last], values.take(pa.array(order[is_last])))

    def before(self, time: int) -> "Changes":
        """Those that are known strictly before a time."""
        known = self.time < time
        return Changes(self.code[known], self.time[known], self.values.filter(pa.array(known)))

    def ends(self) -> Ints:
        """The time up to which each value is the newest of its code."""
        ends = np.full(len(self.code), NEVER)
        is_followed = self.code[1:] == self.code[:-1]
        ends[:-1][is_followed] = self.time[1:][is_followed]
        return ends

    def newest(self, size: int) -> pa.Array:
        """The newest value of each code."""
        is_last = np.ones(len(self.code), bool)
        is_last[:-1] = self.code[1:] != self.code[:-1]
        return self._of_each(np.flatnonzero(is_last), size)

    def first(self, size: int) -> pa.Array:
        """The first value of each code."""
        is_first = np.ones(len(self.code), bool)
        is_first[1:] = self.code[1:] != self.code[:-1]
        return self._of_each(np.flatnonzero(is_first), size)

    def _of_each(self, rows: Ints, size: int) -> pa.Array:
        place = np.full(size, PAD)
        place[self.code[rows]] = rows
        return self.values.take(pa.array(place, mask=place == PAD))

    def take(self, codes: Ints) -> "Changes":
        """The same with new codes: `codes[n]` is the old one of n."""
        new = np.full(int(max(codes.max(initial=-1), self.code.max(initial=-1))) + 1, PAD)
        new[codes] = np.arange(len(codes))
        is_kept = new[self.code] != PAD
        kept = self.values.filter(pa.array(is_kept))
        return Changes.of(new[self.code[is_kept]], self.time[is_kept], kept)

    def column(self, size: int) -> pa.Array:
        """A list of times and values for each code."""
        pairs = pa.StructArray.from_arrays([pa.array(self.time), self.values], ["time", "value"])
        return pa.ListArray.from_arrays(pa.array(offsets_of(self.code, size), pa.int32()), pairs)

    @classmethod
    def of_column(cls, column: pa.Array) -> "Changes":
        """The changes of which `column` made this."""
        code = np.repeat(np.arange(len(column)), pc.list_value_length(column).to_numpy())
        pairs = column.flatten()
        return cls(code, pairs.field("time").to_numpy(), pairs.field("value"))


@dataclass(frozen=True, eq=False)
class Feature:
    """One property of every user or every item, such as the category or the price.

    Numbers may be read as numbers or as categories; text, booleans and dates are categories. A missing value
    is null in `values`, PAD in `categories` and nan in `numbers`.
    """

    values: pa.Array  # one per code, in the type that they had in the source: the first that is known
    changes: Changes | None = None  # where times are known: all values, the first ones included

    @classmethod
    def of_changes(cls, changes: Changes, size: int) -> "Feature":
        """A feature whose values are known from their times on."""
        return cls(changes.first(size), changes)

    def at(self, time: int | None) -> "Feature":
        """The feature as it is known strictly before a time; with None, as it is known at last."""
        if self.changes is None:
            return self
        changes = self.changes if time is None else self.changes.before(time)
        return Feature(changes.newest(len(self.values)))

    def before(self, time: int) -> "Feature":
        """The feature without what is not known before a time."""
        if self.changes is None:
            return self
        return Feature.of_changes(self.changes.before(time), len(self.values))

    def take(self, codes: Ints) -> "Feature":
        """The feature of some codes, as new codes."""
        changes = None if self.changes is None else self.changes.take(codes)
        return Feature(self.values.take(pa.array(codes)), changes)

    @cached_property
    def spans(self) -> Spans:
        """The tags of each code, and when it has them."""
        if self.changes is None:
            tagged = self.tags
            always, never = (np.full(len(tagged.code), time) for time in (ALWAYS, NEVER))
            return Spans(tagged.code, tagged.tag, always, never, tagged.names)
        changes = self.changes
        row, tag, names = Feature(changes.values).tags
        return Spans(changes.code[row], tag, changes.time[row], changes.ends()[row], names)

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
        categories = pc.fill_null(pc.index_in(self.values, value_set=self.names, skip_nulls=True), PAD)
        return np.asarray(categories.to_numpy(zero_copy_only=False), np.int64)

    @cached_property
    def numbers(self) -> NDArray[np.float32]:
        """The value of each code as a number; nan where it is missing."""
        if not self.is_number:
            raise BadInput(f"expected numbers, found {self.values.type} values: this feature is a category")
        return np.asarray(self.values.cast(pa.float64()).to_numpy(zero_copy_only=False), np.float32)

    @cached_property
    def tags(self) -> Tagged:
        """The tags of each code: its value as text, and of a text such as `Crime|Drama` both parts. Names are
        in the order of the first codes that have them."""
        parts = pc.split_pattern(self.names.cast(pa.string()), SEPARATOR)
        encoded = pc.utf8_trim_whitespace(parts.flatten()).dictionary_encode()
        tag_of_part = encoded.indices.to_numpy().astype(np.int64)
        is_blank = pc.equal(encoded.dictionary, "").to_numpy(zero_copy_only=False)
        ends = np.append(0, np.cumsum(pc.list_value_length(parts).to_numpy(), dtype=np.int64))
        code = np.flatnonzero(self.categories != PAD)
        category = self.categories[code]
        which, part = expand_ranges(ends[category], ends[category + 1])
        tag = tag_of_part[part]
        pairs = np.unique(np.stack([code[which], tag])[:, ~is_blank[tag]], axis=1)
        return Tagged(pairs[0], pairs[1], encoded.dictionary)


class VocabularyView(Protocol):
    """What models and rankers read of the ids of users or items; see `Vocabulary` and `LiveVocabulary`."""

    @property
    def ids(self) -> pa.Array:
        """The caller's ids in the order of their codes."""

    @property
    def titles(self) -> pa.Array | None:
        """The titles in the same order, if there are any."""

    @property
    def features(self) -> dict[str, Feature]:
        """The features by their names. Of ids at the end, nothing may be known."""

    def features_at(self, time: int | None) -> dict[str, Feature]:
        """The features as they are known strictly before a time; with None, as they are known at last. Where
        no feature has times, these are `features`."""

    def __len__(self) -> int:
        """The number of codes."""

    def of(self, codes: NDArray[np.integer]) -> pa.Array:
        """The caller's ids of some codes, in the type of the source; null for PAD."""

    def codes(self, ids: Sequence[Any] | pa.Array) -> Codes:
        """The codes of some ids; PAD where an id is unknown."""

    def title_of(self, code: int) -> str | None:
        """The title of a code; None where it has none."""

    def table(self) -> pa.Table:
        """The columns from which `Vocabulary.of_table` makes the same vocabulary."""


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The caller's ids of all users (or items), with their titles and features, in the order of their codes.

    Codes follow the time from which an id exists (`EventView.since`). So the ids that exist at any moment are
    a prefix, `code < n`. Ids that never exist come last.
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
        } | {
            name.removeprefix(CHANGES): Feature.of_changes(Changes.of_column(column), len(column))
            for name, column in columns.items()
            if name.startswith(CHANGES)
        }
        return cls(columns["id"], columns.get("title"), features)

    def table(self) -> pa.Table:
        """The columns from which `of_table` makes this vocabulary."""
        return table_of(self.ids, self.titles, self.features)

    def features_at(self, time: int | None) -> dict[str, Feature]:
        """See `VocabularyView`."""
        return self._newest if time is None else features_as_of(self.features, time)

    @cached_property
    def _newest(self) -> dict[str, Feature]:
        return features_as_of(self.features, None)

    def before(self, time: int) -> "Vocabulary":
        """The same ids, without features that are not known before a time."""
        features = {name: feature.before(time) for name, feature in self.features.items()}
        return Vocabulary(self.ids, self.titles, features)

    def take(self, codes: Ints) -> "Vocabulary":
        """The same ids in another order, with new codes."""
        order = pa.array(codes)
        features = {name: feature.take(codes) for name, feature in self.features.items()}
        titles = None if self.titles is None else self.titles.take(order)
        return Vocabulary(self.ids.take(order), titles, features)

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, codes: NDArray[np.integer]) -> pa.Array:
        """The caller's ids of some codes, in the type of the source; null for PAD."""
        codes = np.asarray(codes)
        return self.ids.take(pa.array(codes, mask=codes == PAD))

    def title_of(self, code: int) -> str | None:
        """The title of a code; None where it has none."""
        return None if self.titles is None else self.titles[code].as_py()

    def codes(self, ids: Sequence[Any] | pa.Array) -> Codes:
        """The codes of some ids; PAD where an id is unknown."""
        check_is_list(ids)
        known = self.ids
        try:
            if isinstance(known, pa.ExtensionArray):
                typed = ids if isinstance(ids, pa.Array) else pa.array(list(ids), known.type)
                typed, known = typed.storage, known.storage
            else:
                typed = (ids if isinstance(ids, pa.Array) else pa.array(list(ids))).cast(known.type)
            if len(typed) <= FEW:  # comparing with each id costs less than a table of them
                return np.array([pc.index(pc.equal(known, id), True).as_py() for id in typed], np.int32)
            codes = pc.index_in(typed, value_set=known)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise BadInput(f"ids of type {self.ids.type} expected, as in the log: {error}") from None
        return np.asarray(pc.fill_null(codes, PAD).to_numpy(zero_copy_only=False), np.int32)


def features_as_of(features: dict[str, Feature], time: int | None) -> dict[str, Feature]:
    """Features as they are known before a time, or at last: the same object, if no feature has times."""
    if all(feature.changes is None for feature in features.values()):
        return features
    return {name: feature.at(time) for name, feature in features.items()}


def table_of(ids: pa.Array, titles: pa.Array | None, features: dict[str, Feature]) -> pa.Table:
    """The columns of a vocabulary. Of ids at the end, nothing may be known."""
    columns = {"id": ids} | ({} if titles is None else {"title": titles})
    for name, feature in features.items():
        if feature.changes is None:
            missing = pa.nulls(len(ids) - len(feature.values), feature.values.type)
            columns[f"{FEATURE}{name}"] = pa.concat_arrays([feature.values, missing])
        else:
            columns[f"{CHANGES}{name}"] = feature.changes.column(len(ids))
    return pa.table(columns)


def check_is_list(ids: object) -> None:
    """Refuse a single id where a list of ids is expected."""
    if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
        raise BadInput(f"expected a list of ids, found {ids!r}")


def storage_of(ids: pa.Array) -> pa.Array:
    """The values of ids whose type is an extension of another one, such as UUIDs; otherwise the ids."""
    return ids.storage if isinstance(ids, pa.ExtensionArray) else ids


def same_ids(one: pa.Array, other: pa.Array) -> bool:
    """Whether two columns hold the same ids. Text is text, and a whole number is one, however it is held."""
    if one.type != other.type:
        try:
            kind = (
                one.type if pa.types.is_integer(other.type) == pa.types.is_integer(one.type) else pa.string()
            )
            one, other = one.cast(kind), other.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return False
    return bool(one.equals(other))
