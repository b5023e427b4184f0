"""Looking items up by what people type: parts of a title or of an id."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from unskew.data.log.live_views import LiveVocabulary

EXACT, PREFIX, WORD, WITHIN = 4, 3, 2, 1


class Lookup:
    """The ids and titles of the items of a live log in lower case. It grows with the log."""

    def __init__(self, items: LiveVocabulary) -> None:
        self._items = items
        self._columns: list[pa.ChunkedArray] = []
        self._size = 0

    def columns(self) -> list[pa.ChunkedArray]:
        """Ids, and titles if there are any. Only what is new since the last call is read."""
        size = len(self._items)
        if size > self._size or not self._columns:
            new = np.arange(self._size, size)
            texts: list[Sequence[str | None] | pa.Array] = [self._items.of(new)]
            if self._items.titles is not None:
                texts.append([self._items.title_of(code) for code in new.tolist()])
            found = [pc.utf8_lower(pa.array(text, pa.string())) for text in texts]
            before = self._columns or [pa.chunked_array([], pa.string())] * len(found)
            self._columns = [
                pa.chunked_array([*old.chunks, more], pa.string())
                for old, more in zip(before, found, strict=True)
            ]
            self._size = size
        return self._columns

    def forget(self) -> None:
        """Read everything again at the next call."""
        self._columns, self._size = [], 0


def search(
    columns: list[pa.ChunkedArray], query: str, popularity: NDArray[np.int64], most: int
) -> NDArray[np.int64]:
    """The codes of the best matches: first those that are equal to the query, then those that begin with it,
    then those that have a word that does, then those that hold it anywhere; the most popular ones first.
    Without a query, the most popular items."""
    words = query.strip().lower()
    quality = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        if not words:
            quality[:] = WITHIN
            break
        within = pc.fill_null(pc.match_substring(column, words), False).to_numpy(zero_copy_only=False)
        places = np.flatnonzero(within)
        if not len(places):
            continue
        some = column.take(pa.array(places))
        here = np.full(len(places), WITHIN)
        for level, found in (
            (WORD, pc.match_substring(some, f" {words}")),
            (PREFIX, pc.starts_with(some, words)),
            (EXACT, pc.equal(some, words)),
        ):
            here[found.to_numpy(zero_copy_only=False)] = level
        quality[places] = np.maximum(quality[places], here)
    known = np.asarray(pc.is_valid(columns[0]).to_numpy(zero_copy_only=False))
    found = np.flatnonzero((quality > 0) & known)
    counts = np.zeros(len(quality), np.int64)
    counts[: len(popularity)] = popularity[: len(quality)]
    order = np.lexsort((found, -counts[found], -quality[found]))
    return found[order[:most]]
