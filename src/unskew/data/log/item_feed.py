"""What a shop says about its items, and from when on it is known: an item feed.

A row of a feed is an item, a time, maybe a title, and some features. From that time on, the item exists and
the values of the row are known; a value that the row does not have stays as it was. So a log with a feed
answers what was known at any moment, and items that nobody has had yet can be recommended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unskew.core.errors import BadInput
from unskew.data.log.arrays import Ints, offsets_of
from unskew.data.log.folder import COLUMNS, EXTRAS
from unskew.data.log.log import Log, renumber_context
from unskew.data.log.views import Sequences
from unskew.data.log.vocabulary import ALWAYS, NEVER, PAD, Changes, Feature, Vocabulary, storage_of


@dataclass(frozen=True, eq=False)
class ItemFeed:
    """Rows about items, in any order.

    Attributes
    ----------
    ids
        The caller's id of the item of each row.
    time
        The time from which each row is known, in ticks of the log's clock; None if all rows were known all
        the time. Then an item exists from its first positive on, as without a feed.
    titles
        The titles, if there are any.
    features
        The columns of features by their names; a missing value says nothing.
    """

    ids: pa.Array
    time: Ints | None = None
    titles: pa.Array | None = None
    features: Mapping[str, pa.Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.ids)


def feed_of(vocabulary: Vocabulary, listed: Ints | None) -> list[ItemFeed]:
    """The feeds from which `with_items` gives ids their times, titles and values again."""
    feeds = []
    if listed is not None:
        code = np.flatnonzero(listed < NEVER)
        titles = None if vocabulary.titles is None else vocabulary.titles.take(pa.array(code))
        feeds.append(ItemFeed(vocabulary.of(code), listed[code], titles, {}))
    for name, feature in vocabulary.features.items():
        if feature.changes is not None:
            code, time, values = feature.changes
            feeds.append(ItemFeed(vocabulary.of(code), time, None, {name: values}))
    return feeds


def with_items(log: Log, feed: ItemFeed) -> Log:
    """A log that knows what a feed says of its items.

    Parameters
    ----------
    log
        The log. It does not change.
    feed
        The feed. Where its rows have times, items that have no event are items of the log as well.

    Returns
    -------
    Log
        The log, whose items are numbered by the times from which they exist.
    """
    items = log.items
    ids = _cast_ids(feed.ids, items.ids.type)
    code = items.codes(ids).astype(np.int64)
    if feed.time is None:
        is_known = code != PAD
        ids, code = ids.filter(pa.array(is_known)), code[is_known]
        feed = _some_rows(feed, is_known)
    new = pc.unique(ids.filter(pa.array(code == PAD))) if len(ids) else ids
    new = new.take(pc.sort_indices(storage_of(new)))
    code[code == PAD] = len(items) + pc.index_in(ids.filter(pa.array(code == PAD)), value_set=new).to_numpy()
    size = len(items) + len(new)
    listed = np.full(size, NEVER)
    if log.audiences.listed is not None:
        listed[: len(items)] = log.audiences.listed
    time = np.full(len(code), ALWAYS) if feed.time is None else feed.time
    if feed.time is not None:
        np.minimum.at(listed, code, np.maximum(time, 0))
    titles = newest_titles(items.titles, feed.titles, code, time, size)
    features = with_values(items.features, feed.features, code, time, size)
    wider = Vocabulary(_joined(items.ids, new), titles, features)
    return _renumbered(log, wider, listed if (listed < NEVER).any() else None)


def with_values(
    features: Mapping[str, Feature], columns: Mapping[str, pa.Array], code: Ints, time: Ints, size: int
) -> dict[str, Feature]:
    """Features with the values of some rows of a feed.

    features
        What was known before.
    columns
        The new values by the name of their feature; those that are missing say nothing.
    code, time
        Whose each row is, and the time from which it is known.
    size
        The number of ids.
    """
    updated = {name: _widened(feature, size) for name, feature in features.items()}
    for name, column in columns.items():
        is_valid = np.asarray(pc.is_valid(column).to_numpy(zero_copy_only=False), bool)
        if not is_valid.any():
            continue
        values, rows = column.filter(pa.array(is_valid)), (code[is_valid], time[is_valid])
        if name in features:
            before = _changes_of(features[name])
            old, values = in_one_type(name, before.values, values)
            rows = np.concatenate([before.code, rows[0]]), np.concatenate([before.time, rows[1]])
            values = pa.concat_arrays([old, values])
        changes = Changes.of(*rows, values)
        is_timeless = bool((changes.time == ALWAYS).all())
        updated[name] = Feature(changes.newest(size)) if is_timeless else Feature.of_changes(changes, size)
    return updated


def _widened(feature: Feature, size: int) -> Feature:
    """The same feature of more ids, of which nothing is known."""
    if feature.changes is not None:
        return Feature.of_changes(feature.changes, size)
    missing = pa.nulls(size - len(feature.values), feature.values.type)
    return Feature(pa.concat_arrays([feature.values, missing])) if len(missing) else feature


def newest_titles(
    titles: pa.Array | None, new: pa.Array | None, code: Ints, time: Ints, size: int
) -> pa.Array | None:
    """The titles of all ids, of which a feed brought some."""
    known = pa.nulls(0, pa.string()) if titles is None else titles.cast(pa.string())
    known = pa.concat_arrays([known, pa.nulls(size - len(known), pa.string())])
    if new is None or new.null_count == len(new):
        return None if titles is None else known
    is_valid = np.asarray(pc.is_valid(new).to_numpy(zero_copy_only=False), bool)
    valid = new.filter(pa.array(is_valid)).cast(pa.string())
    newest = Changes.of(code[is_valid], time[is_valid], valid).newest(size)
    return pc.coalesce(newest, known)


def _changes_of(feature: Feature) -> Changes:
    """The values of a feature with times: those of a feature without were known all the time."""
    if feature.changes is not None:
        return feature.changes
    code = np.flatnonzero(pc.is_valid(feature.values).to_numpy(zero_copy_only=False))
    return Changes(code, np.full(len(code), ALWAYS), feature.values.take(pa.array(code)))


def in_one_type(name: str, old: pa.Array, new: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Values of a feature in a type that holds both: that of the old ones, or numbers with fractions."""
    kinds = {str(old.type), str(new.type)}
    is_number = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (old.type, new.type)]
    kind = pa.float64() if all(is_number) and len(kinds) > 1 else old.type
    is_text = pa.types.is_string(old.type) or pa.types.is_large_string(old.type)
    try:
        if len(kinds) > 1 and not all(is_number) and not is_text and not pa.types.is_string(new.type):
            raise pa.ArrowInvalid("values of another kind")
        return old.cast(kind), new.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise BadInput(
            f"feature {name!r}: expected {old.type} values as before, found {new.type}", field=name
        ) from None


def _cast_ids(ids: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return ids if ids.type == kind else ids.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        reason = f"ids of type {kind} expected, as in the log, found {ids.type}"
        raise BadInput(f"items: {reason}", field="items") from None


def _some_rows(feed: ItemFeed, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> ItemFeed:
    keep = pa.array(rows)
    titles = None if feed.titles is None else feed.titles.filter(keep)
    columns = {name: column.filter(keep) for name, column in feed.features.items()}
    return replace(feed, ids=feed.ids.filter(keep), titles=titles, features=columns)


def _joined(one: pa.Array, other: pa.Array) -> pa.Array:
    return pa.concat_arrays([one, other]) if len(other) else one


def _renumbered(log: Log, items: Vocabulary, listed: Ints | None) -> Log:
    """The same rows with other items, numbered by the times from which they exist."""
    size = len(items)
    since = np.full(size, NEVER) if listed is None else listed.copy()
    since[: len(log.items)] = np.minimum(since[: len(log.items)], log.audiences.first_times)
    order = np.argsort(since, kind="stable")
    number = np.empty(size, np.int32)
    number[order] = np.arange(size, dtype=np.int32)
    listed = None if listed is None else listed[order]
    item = number[log.item]
    rows = np.lexsort((item, log.time, log.user, -log.label.astype(np.int8)))
    columns: dict[str, Any] = {
        name: np.asarray(column)[rows]
        for name in (*COLUMNS, *EXTRAS)
        if (column := getattr(log, name)) is not None
    } | {"item": item[rows]}
    positives = slice(0, log.positives)
    user, item, time = (columns[name][positives] for name in ("user", "item", "time"))
    by_item = np.lexsort((user, time, item))
    return replace(
        log,
        **columns,
        marks={name: mark[rows] for name, mark in log.marks.items()},
        items=items.take(order),
        context=renumber_context(log, number, size),
        histories=Sequences(item, time, log.histories.offsets, log.histories.listed),
        audiences=Sequences(user[by_item], time[by_item], offsets_of(item[by_item], size), listed),
        metadata=replace(log.metadata, items=size, since=_since(log, listed)),
        folder=None,
    )


def _since(log: Log, listed: Ints | None) -> tuple[str, ...]:
    names = [name for name in log.metadata.since if name != "item_since"]
    return tuple(names) if listed is None else (*names, "item_since")
