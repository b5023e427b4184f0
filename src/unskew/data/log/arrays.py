"""Operations on arrays of numbers that many files need: distinct values, look-ups, and ranges.

`np.unique` without indices builds a hash table since numpy 2.3, and `np.union1d` calls it; sorting and
comparing neighbours is 20 to 250 times faster for millions of numbers.
"""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Codes = NDArray[np.int32]

N = TypeVar("N", bound=np.generic)

_CHUNK = 1 << 20  # times that are compared together


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
    for first in range(0, len(times) - 1, _CHUNK):
        part = times[first : first + _CHUNK + 1]
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
