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
from unskew.data.log.arrays import Codes, Ints, expand_ranges

PAD = -1  # the code of nothing: in padded rows, and of unknown ids; real codes start at 0
FEATURE = "feature:"  # the prefix of a column that holds a feature
SEPARATOR = "|"  # between the tags of a text
FEW = 8  # ids that are looked for one by one


class Tagged(NamedTuple):
    """Which codes have which tags, as distinct pairs in the order of the codes."""

    code: Ints
    tag: Ints  # a position in the names
    names: pa.Array


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
        }
        return cls(columns["id"], columns.get("title"), features)

    def table(self) -> pa.Table:
        """The columns from which `of_table` makes this vocabulary."""
        columns = {"id": self.ids} | ({} if self.titles is None else {"title": self.titles})
        return pa.table(columns | {f"{FEATURE}{name}": of.values for name, of in self.features.items()})

    def take(self, codes: Ints) -> "Vocabulary":
        """The same ids in another order, with new codes."""
        order = pa.array(codes)
        features = {name: Feature(feature.values.take(order)) for name, feature in self.features.items()}
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
            other = other.cast(one.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            return False
    return bool(one.equals(other))
