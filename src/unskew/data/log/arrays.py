"""Operations on arrays of numbers that many files need: distinct values, look-ups, and ranges.

`np.unique` without indices builds a hash table since numpy 2.3, and `np.union1d` calls it; sorting and
comparing neighbours is 20 to 250 times faster for millions of numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

N = TypeVar("N", bound=np.generic)

CHUNK = 1 << 18  # rows of a table that is larger than memory, of which so many are worked on at once


def chunks(length: int, size: int = CHUNK) -> Iterator[slice]:
    """Consecutive slices of a table, so that what is computed of each fits into memory."""
    return (slice(first, min(first + size, length)) for first in range(0, length, size))


def check_offsets(name: str, offsets: NDArray[Any], length: int) -> None:
    """Refuse offsets that do not cut a table of this length into consecutive blocks."""
    whole = np.issubdtype(offsets.dtype, np.integer) and offsets.ndim == 1 and len(offsets) > 0
    if not whole or offsets[0] != 0 or offsets[-1] != length or (offsets[1:] < offsets[:-1]).any():
        raise ValueError(f"{name}: expected numbers that grow from 0 to {length:,}")


def check_codes(name: str, codes: NDArray[Any], size: int) -> None:
    """Refuse codes that are not below a size."""
    if len(codes) and not 0 <= codes.min() <= codes.max() < size:
        raise ValueError(f"{name}: expected numbers from 0 to {size - 1:,}")


def check_times(name: str, times: NDArray[Any], offsets: NDArray[Any]) -> None:
    """Refuse times that fall within one of the blocks that the offsets cut a table into."""
    for first in range(0, len(times) - 1, CHUNK):
        part = times[first : first + CHUNK + 1]
        falls = first + 1 + np.flatnonzero(part[1:] < part[:-1])
        if not is_in(offsets, falls).all():
            raise ValueError(f"{name}: expected times that do not fall")


def distinct(values: NDArray[N]) -> NDArray[N]:
    """The distinct values in increasing order, as `np.unique` gives them."""
    ordered = np.sort(values, axis=None)
    is_first = np.ones(len(ordered), bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]


def position_in(increasing: NDArray[np.integer], values: NDArray[np.integer]) -> Ints:
    """Where each value is among increasing numbers; -1 for a value that is not among them."""
    if not len(increasing):
        return np.full(np.shape(values), -1, np.int64)
    position = np.minimum(np.searchsorted(increasing, values), len(increasing) - 1)
    return np.where(increasing[position] == values, position, -1)


def is_in(increasing: NDArray[np.integer], values: NDArray[np.integer]) -> NDArray[np.bool_]:
    """Whether each value is among increasing numbers."""
    if not len(increasing):
        return np.zeros(np.shape(values), bool)
    position = np.minimum(np.searchsorted(increasing, values), len(increasing) - 1)
    return np.asarray(increasing[position] == values)


def expand_ranges(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """All numbers of the ranges [start, end), one range after the other: for each number, which range it is
    in, and the number itself."""
    lengths = end - start
    number = np.repeat(np.arange(len(start)), lengths)
    return number, np.arange(lengths.sum()) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)


def offsets_of(entity: NDArray[np.integer], entities: int) -> Ints:
    """The offsets of a sorted column of entities: where each begins, and at last where all end."""
    counts = np.bincount(entity, minlength=entities) if len(entity) else np.zeros(entities, np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def count_of(values: NDArray[np.integer], size: int, mask: NDArray[np.bool_] | None = None) -> Ints:
    """How often each number below `size` is among some values, or among those where a mask is true."""
    counts = np.zeros(size, np.int64)
    for part in chunks(len(values)):
        chosen = values[part] if mask is None else values[part][mask[part]]
        counts += np.bincount(chosen, minlength=size)
    return counts


def true_positions(mask: NDArray[np.bool_], numbers: Ints, size: int = CHUNK) -> Ints:
    """The positions of some of the true values: the n-th one, counted from 0, for each n."""
    found, first = np.empty(len(numbers), np.int64), 0
    order = np.argsort(numbers, kind="stable")
    wanted = numbers[order]
    for part in chunks(len(mask), size):
        last = first + int(np.count_nonzero(mask[part]))
        here = slice(*np.searchsorted(wanted, [first, last]))
        if here.stop > here.start:
            places = np.flatnonzero(mask[part])
            found[order[here]] = part.start + places[wanted[here] - first]
        first = last
    return found


def smallest(values: NDArray[np.integer], number: int, bins: int = 1 << 16) -> int:
    """The n-th smallest of some values, counted from 0: what is at its place if they are sorted. Each pass
    over them narrows the range that it is in."""
    low, high = (int(each) for each in (values.min(), values.max()))
    while low < high:
        width = (high - low) // bins + 1
        counts = np.zeros(bins, np.int64)
        for part in chunks(len(values)):
            some = values[part]
            some = some[(some >= low) & (some <= high)]
            counts += np.bincount((some - low) // width, minlength=bins)[:bins]
        before = np.cumsum(counts)
        place = int(np.searchsorted(before, number, "right"))
        number -= int(before[place - 1]) if place else 0
        low, high = low + place * width, min(high, low + (place + 1) * width - 1)
    return low


def sort_into(
    places: NDArray[np.integer],
    parts: Callable[[slice], NDArray[np.integer]],
    key_of: Callable[[NDArray[np.integer]], NDArray[np.integer]],
    size: int = CHUNK,
) -> None:
    """Fill a table, which may be larger than memory, with numbers in the order of their keys; those with
    equal keys keep their order.

    They are first distributed to ranges of keys that fit into memory, and then sorted range by range.

    parts: the numbers of a slice of the table before they are sorted.
    key_of: the keys of some numbers.
    size: how many numbers are sorted together.
    """
    length = len(places)
    if length <= size:
        values = parts(slice(0, length))
        places[:] = values[np.argsort(key_of(values), kind="stable")]
        return
    ranges = 2 * -(-length // size)
    step = max(size // 1024, 1)
    sample = np.sort(np.concatenate([key_of(parts(part)[::step]) for part in chunks(length, size)]))
    borders = distinct(sample[len(sample) * np.arange(1, ranges) // ranges])
    numbered = np.uint16 if len(borders) < 1 << 16 else np.int64
    counts = np.zeros(len(borders) + 1, np.int64)
    for part in chunks(length, size):
        counts += np.bincount(np.searchsorted(borders, key_of(parts(part)), "right"), minlength=len(counts))
    ends = np.cumsum(counts)
    at = ends - counts
    for part in chunks(length, size):
        values = parts(part)
        of = np.searchsorted(borders, key_of(values), "right").astype(numbered)
        values = values[np.argsort(of, kind="stable")]
        sizes = np.bincount(of, minlength=len(counts))
        for number, own in enumerate(np.split(values, np.cumsum(sizes)[:-1])):
            places[at[number] : at[number] + len(own)] = own
        at += sizes
    for first, last in zip(ends - counts, ends, strict=True):
        values = np.array(places[first:last])
        keys = key_of(values)
        if len(keys) and keys.min() < keys.max():
            places[first:last] = values[np.argsort(keys, kind="stable")]
