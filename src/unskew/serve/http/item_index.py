"""Looking items up by what people type: parts of a title or of an id."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from unskew.data.log.live_views import LiveVocabulary
from unskew.data.log.views import Ints

EXACT, PREFIX, WORD, WITHIN = 4, 3, 2, 1


class ItemIndex:
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
            texts = [self._items.of(new)]
            if self._items.titles is not None:
                texts.append(pa.array(map(self._items.title_of, new.tolist()), pa.string()))
            columns = self._columns or [pa.chunked_array([], pa.string())] * len(texts)
            self._columns = [
                pa.chunked_array([*column.chunks, pc.utf8_lower(text.cast(pa.string()))], pa.string())
                for column, text in zip(columns, texts, strict=True)
            ]
            self._size = size
        return self._columns


def search(columns: list[pa.ChunkedArray], query: str, popularity: Ints, most: int) -> Ints:
    """The codes of the best matches: first those that are equal to the query, then those that begin with it,
    then those that have a word that does, then those that hold it anywhere; the most popular ones first.
    Without a query, the most popular items."""
    words = query.strip().lower()
    quality = np.full(len(columns[0]), 0 if words else WITHIN, np.int64)
    for column in columns if words else ():
        codes = np.flatnonzero(
            pc.fill_null(pc.match_substring(column, words), False).to_numpy(zero_copy_only=False)
        )
        if not len(codes):
            continue
        texts = column.take(pa.array(codes))
        level = np.full(len(codes), WITHIN)
        for value, matches in (
            (WORD, pc.match_substring(texts, f" {words}")),
            (PREFIX, pc.starts_with(texts, words)),
            (EXACT, pc.equal(texts, words)),
        ):
            level[matches.to_numpy(zero_copy_only=False)] = value
        quality[codes] = np.maximum(quality[codes], level)
    has_id = np.asarray(pc.is_valid(columns[0]).to_numpy(zero_copy_only=False))
    matching = np.flatnonzero((quality > 0) & has_id)
    counts = np.zeros(len(quality), np.int64)
    counts[: len(popularity)] = popularity[: len(quality)]
    order = np.lexsort((matching, -counts[matching], -quality[matching]))
    return matching[order[:most]]
