"""What rules mean for the items of a log: which of them are admitted, and how their lists are shaped.

A text such as `Crime|Drama` is several values, and a comparison holds if it holds for one of them. Where
nothing is known of an item, no comparison holds, and so the negation of it does.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unskew.core.config import did_you_mean
from unskew.data.log.arrays import Ints, offsets_of
from unskew.data.log.vocabulary import PAD, Feature, VocabularyView, storage_of
from unskew.recommendation.rules import (
    ITEM_ID,
    All,
    Among,
    AtMost,
    BadRule,
    Compare,
    Condition,
    Either,
    Missing,
    Name,
    Not,
    Operator,
    Rules,
    Value,
)

Mask = NDArray[np.bool_]
ORDERED: dict[Operator, Callable[[pa.Array, pa.Scalar], pa.Array]] = {
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


@dataclass(frozen=True, eq=False)
class Limit:
    """At most so many items of a list have the same value: pairs of an item and a value, by items."""

    most: int
    item: Ints
    value: Ints
    items: int  # how many there are, with or without a value

    @cached_property
    def values(self) -> int:
        """How many values there are."""
        return int(self.value.max(initial=-1)) + 1

    @cached_property
    def _offsets(self) -> Ints:
        return offsets_of(self.item, self.items)

    @cached_property
    def _by_value(self) -> tuple[Ints, Ints]:
        order = np.argsort(self.value, kind="stable")
        return self.item[order], offsets_of(self.value[order], self.values)

    def values_of(self, code: int) -> Ints:
        """The values of an item."""
        return self.value[self._offsets[code] : self._offsets[code + 1]]

    def items_with(self, value: int) -> Ints:
        """The items that have a value."""
        items, offsets = self._by_value
        return items[offsets[value] : offsets[value + 1]]


class Quota(NamedTuple):
    """So many items of a list, or this fraction of it, are among some."""

    number: int
    fraction: float
    among: Mask

    def least(self, length: int) -> int:
        """How many items of a list of this length must be."""
        return min(max(self.number, int(np.ceil(self.fraction * length - 1e-9))), length)


@dataclass(frozen=True, eq=False)
class ItemRules:
    """Rules in terms of the items of one log.

    Attributes
    ----------
    admitted
        Whether each item may be recommended.
    limits, quotas
        What holds for a list as a whole.
    pins
        The codes of pinned items by their positions, counted from 0.
    unknown
        The ids of pinned items that the log does not know.
    """

    admitted: Mask
    limits: tuple[Limit, ...] = ()
    quotas: tuple[Quota, ...] = ()
    pins: Mapping[int, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()

    @property
    def shapes_lists(self) -> bool:
        """Whether a list is more than the best of what is admitted."""
        return bool(self.limits or self.quotas or self.pins)


def bind_rules(rules: Rules, items: VocabularyView, features: Mapping[str, Feature]) -> ItemRules:
    """Find out what rules mean for the items of a log.

    Parameters
    ----------
    rules
        The rules.
    items
        The items.
    features
        What is known of the items. Of those at the end, nothing may be known.

    Returns
    -------
    ItemRules
        The rules by the codes of the items.

    Raises
    ------
    BadRule
        If a rule names a feature that the items do not have, or compares what cannot be compared.
    """
    reader = _Reader(items, features)
    admitted = np.ones(len(items), bool)
    for condition in rules.conditions:
        admitted &= reader.holds(condition)
    codes = _codes_of(items, [pin.item for pin in rules.pins]).tolist() if rules.pins else []
    pairs = list(zip(rules.pins, codes, strict=True))
    return ItemRules(
        admitted,
        tuple(reader.limit(rule) for rule in rules.at_most),
        tuple(Quota(rule.count, rule.fraction, reader.holds(rule.condition)) for rule in rules.at_least),
        {pin.position - 1: code for pin, code in pairs if code != PAD},
        tuple(pin.item.text for pin, code in pairs if code == PAD),
    )


def absent_values(rules: Rules, items: VocabularyView, features: Mapping[str, Feature]) -> str:
    """A hint for rules that admit no item: the first value that no item has; empty if there is none."""
    reader = _Reader(items, features)
    todo: list[Condition] = list(rules.conditions)
    while todo:
        condition = todo.pop(0)
        if isinstance(condition, Not):
            todo.append(condition.condition)
        elif isinstance(condition, All | Either):
            todo += condition.conditions
        elif isinstance(condition, Among):
            absent = reader.absent(condition)
            if absent is not None:
                return reader.describe_absent(condition.name, absent)
    return ""


class _Reader:
    """Evaluates conditions on all items."""

    def __init__(self, items: VocabularyView, features: Mapping[str, Feature]) -> None:
        self._items, self._features, self._size = items, features, len(items)

    def holds(self, condition: Condition) -> Mask:
        """Where a condition holds."""
        if isinstance(condition, Not):
            return ~self.holds(condition.condition)
        if isinstance(condition, All | Either):
            masks = [self.holds(part) for part in condition.conditions]
            return np.logical_and.reduce(masks) if isinstance(condition, All) else np.logical_or.reduce(masks)
        if isinstance(condition, Missing):
            return self._missing(condition.name)
        return self._among(condition) if isinstance(condition, Among) else self._ordered(condition)

    def limit(self, rule: AtMost) -> Limit:
        """The values of a feature of which a list may have only so many."""
        tagged = self._feature(rule.name).tags
        return Limit(rule.count, tagged.code, tagged.tag, self._size)

    def describe_absent(self, name: Name, value: Value) -> str:
        """That no item has a value, and which it has that is nearly the same."""
        if name.text == ITEM_ID and ITEM_ID not in self._features:
            return f"no item has the id {value.text!r}"
        names = [str(other) for other in self._feature(name).tags.names.to_pylist()]
        return f"no item has {name.text} {value.text!r}{did_you_mean(value.text, names[:10_000])}"

    def _feature(self, name: Name) -> Feature:
        if name.text == ITEM_ID and ITEM_ID not in self._features:
            reason = "an item is its own id, which has no order and no second item; use =, in or pin"
            raise BadRule(name.where, reason)
        if name.text not in self._features:
            listed = ", ".join(map(repr, self._features)) or "none"
            near = did_you_mean(name.text, [*self._features, ITEM_ID])
            raise BadRule(name.where, f"no feature {name.text!r}{near}; features of items are: {listed}")
        return self._features[name.text]

    def _missing(self, name: Name) -> Mask:
        if name.text == ITEM_ID and ITEM_ID not in self._features:
            return np.zeros(self._size, bool)
        is_valid = pc.is_valid(self._feature(name).values).to_numpy(zero_copy_only=False)
        return ~self._widen(np.asarray(is_valid))

    def _among(self, condition: Among) -> Mask:
        name, values = condition.name, condition.values
        if name.text == ITEM_ID and ITEM_ID not in self._features:
            codes = _codes_of(self._items, values)
            mask = np.zeros(self._size, bool)
            mask[codes[codes != PAD]] = True
            return mask
        feature = self._feature(name)
        if feature.is_number or pa.types.is_boolean(feature.values.type):
            numbers = [_number(value, name, feature) for value in values]
            equal = pc.is_in(feature.values.cast(pa.float64()), value_set=pa.array(numbers, pa.float64()))
            return self._widen(_filled(equal))
        names = feature.tags.names
        texts = pa.array([value.text for value in values if value.truth is None], pa.string())
        truths = pa.array([value.text.lower() for value in values if value.truth is not None], pa.string())
        is_meant = _filled(pc.is_in(names, value_set=texts))
        is_meant |= _filled(pc.is_in(pc.utf8_lower(names), value_set=truths))
        mask = np.zeros(self._size, bool)
        mask[feature.tags.code[is_meant[feature.tags.tag]]] = True
        return mask

    def absent(self, condition: Among) -> Value | None:
        """The first of its values that no item has."""
        name, values = condition.name, condition.values
        if name.text == ITEM_ID and ITEM_ID not in self._features:
            is_there = _codes_of(self._items, values) != PAD
            return next((value for value, there in zip(values, is_there, strict=True) if not there), None)
        feature = self._feature(name)
        if feature.is_number or pa.types.is_boolean(feature.values.type):
            numbers = set(feature.values.cast(pa.float64()).to_pylist())
            return next((value for value in values if _number(value, name, feature) not in numbers), None)
        used = feature.tags.names.take(pa.array(np.unique(feature.tags.tag)))
        names = set(used.to_pylist())
        lower = {name.lower() for name in names}  # in which true and false are looked for
        return next(
            (
                value
                for value in values
                if (value.text not in names if value.truth is None else value.text.lower() not in lower)
            ),
            None,
        )

    def _ordered(self, condition: Compare) -> Mask:
        name, value = condition.name, condition.value
        feature = self._feature(name)
        kind = feature.values.type
        if feature.is_number:
            if value.number is None:
                raise BadRule(value.where, f"{name.text} is a number; expected one, found {value.text!r}")
            values, border = feature.values.cast(pa.float64()), pa.scalar(value.number)
        elif pa.types.is_temporal(kind):
            try:
                values, border = feature.values, pa.scalar(value.text).cast(kind)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                reason = f"{name.text} is a time; expected one such as 2026-01-31, found {value.text!r}"
                raise BadRule(value.where, reason) from None
        else:
            reason = f"{name.text} is neither a number nor a time, so it has no order; use = or in"
            raise BadRule(name.where, reason)
        return self._widen(_filled(ORDERED[condition.operator](values, border)))

    def _widen(self, mask: Mask) -> Mask:
        """The same mask for all items: of those at the end nothing is known."""
        wide = np.zeros(self._size, bool)
        wide[: len(mask)] = mask[: self._size]
        return wide


def _number(value: Value, name: Name, feature: Feature) -> float:
    """A value that is compared with numbers, or with true and false, which are 1 and 0."""
    if value.truth is not None:
        return float(value.truth)
    if value.number is None:
        kind = "a number" if feature.is_number else "true or false"
        raise BadRule(value.where, f"{name.text} is {kind}; expected that, found {value.text!r}")
    return value.number


def _codes_of(items: VocabularyView, values: Sequence[Value]) -> Ints:
    """The codes of ids as they are written in rules; PAD where the log does not know one."""
    ids = storage_of(items.ids)
    try:
        texts = ids.cast(pa.string())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        reason = f"ids of type {items.ids.type} cannot be written as text, so rules cannot name them"
        raise BadRule(values[0].where, reason) from None
    codes = pc.index_in(pa.array([value.text for value in values], pa.string()), value_set=texts)
    return np.asarray(pc.fill_null(codes, PAD).to_numpy(zero_copy_only=False), np.int64)


def _filled(mask: pa.Array) -> Mask:
    return np.array(pc.fill_null(mask, False).to_numpy(zero_copy_only=False), bool)
