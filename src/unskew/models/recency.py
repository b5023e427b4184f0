"""What models share that choose a half-life on the validation set: the length of a day, the half-lives that
are tried, fading popularity, and a memory of what was read for validation rows."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.batches.batch import Batch
from unskew.data.log.clock import DAY
from unskew.data.log.decay import Decay
from unskew.data.log.log import LogView
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.models.base import Recommender

R = TypeVar("R")

NO_FADING = 1_000_000.0  # days: a half-life so long that nothing fades
HALF_LIVES = (1.0, 4.0, 16.0, 64.0, 256.0, NO_FADING)  # days, those that are tried on the validation set


def ticks_per_day(split: Split) -> float:
    """How many ticks of the log's clock are a day. Where times only give an order, a day is a two-hundredth
    of the time from the first training positive to the last."""
    if split.log.clock.ticks:
        return DAY * split.log.clock.ticks
    times = split.log.histories.times
    times = times[times < split.train_end]
    span = int(times.max() - times.min()) if len(times) else 0
    return max(span / 200, 1e-6)


def popularity_fractions(decay: Decay, time: Ints, items: int) -> NDArray[np.float32]:
    """The fraction of each item in all faded events at each time, (times, items)."""
    moments, which = np.unique(time, return_inverse=True)
    rows = np.zeros((len(moments), items), np.float32)
    for row, counts in zip(rows, decay.along(moments), strict=True):
        row[: len(counts)] = counts[:, 0] / max(counts.sum(), 1e-12)
    return rows[which]


def scores_of(model: Recommender, batch: Batch) -> Tensor:
    """The scores of the candidates of a batch, taken from the scores of all items; of an item that the log
    does not have, zero."""
    assert batch.log is not None, f"{model.name} reads the log itself"
    scores = model.catalog(batch.log, 0, 0).scores(batch)
    known = (batch.candidates_BC >= 0) & (batch.candidates_BC < scores.shape[1])
    return scores.gather(1, batch.candidates_BC.masked_fill(~known, 0)) * known


class ValidationMemory(Generic[R]):
    """Keeps what was read of a log for contexts of the validation set, so that it is read once, however many
    epochs or options are validated. Contexts after the validation set are never kept.

    Parameters
    ----------
    split
        The split whose validation set is ranked again and again.
    size
        How many bytes something that was read takes.
    most
        The largest number of bytes that are kept; beyond it, nothing more is kept.
    """

    def __init__(self, split: Split, size: Callable[[R], int], most: int = 1 << 30) -> None:
        self.log, self.first, self.last = split.log, split.train_end, split.valid_end
        self.size, self.most, self.used = size, most, 0
        self._kept: dict[bytes, R] = {}

    def read(self, log: LogView, context: Batch, reads: Callable[[], R]) -> R:
        """What was read for these contexts: from memory where they were asked for before."""
        times = context.times_B.numpy()
        if log is not self.log or not len(times) or times.min() < self.first or times.max() >= self.last:
            return reads()
        columns = context.user_B, context.times_B, context.history_BL, context.history_times_BL
        key = b"".join(np.ascontiguousarray(column.numpy()).tobytes() for column in columns)
        if key in self._kept:
            return self._kept[key]
        result = reads()
        if self.used + len(key) + self.size(result) <= self.most:
            self._kept[key] = result
            self.used += len(key) + self.size(result)
        return result
