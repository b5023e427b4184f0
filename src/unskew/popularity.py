"""Popularity as a rival that every table needs: how many positives an item had so far, in total, recently, or with old ones fading.

Nothing is learned; the count is of what lies strictly before the moment of the request, as an audience is.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from unskew.catalog import Catalog
from unskew.data.batches import Batch
from unskew.data.log import Log
from unskew.data.views import Ints


@dataclass(frozen=True)
class Popularity:
    """`window`: only the last so many ticks count. `half_life`: a positive counts half after so many ticks."""

    window: int | None = None
    half_life: float | None = None
    history: int = 0

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return _Fading(log, self.half_life) if self.half_life is not None else _Counting(log, self.window)


class _Counting:
    def __init__(self, log: Log, window: int | None) -> None:
        self.view, self.window, self.items = log.audiences, window, np.arange(len(log.items))

    def scores(self, context: Batch) -> Tensor:
        times, of = np.unique(context.times_B.numpy(), return_inverse=True)
        counts = self._before(times)
        if self.window is not None:
            counts = counts - self._before(times - self.window)
        return torch.from_numpy(counts[of].astype(np.float32))

    def _before(self, times: Ints) -> Ints:
        start, end = self.view.before(self.items[None], times[:, None])
        return end - start


class _Fading:
    """Walks along the log once: all weights fade at every step, and each event adds one."""

    def __init__(self, log: Log, half_life: float) -> None:
        order = np.argsort(log.histories.times, kind="stable")
        self.times, self.items = log.histories.times[order], log.histories.ids[order]
        self.rate = np.log(2) / half_life
        self.weight, self.at, self.now = np.zeros(len(log.items)), 0, int(self.times[0])

    def scores(self, context: Batch) -> Tensor:
        times, of = np.unique(context.times_B.numpy(), return_inverse=True)
        return torch.from_numpy(np.stack([self._until(int(time)) for time in times])[of].astype(np.float32))

    def _until(self, time: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        end = int(np.searchsorted(self.times, time))
        new = slice(self.at, end)
        self.weight *= np.exp(-self.rate * (time - self.now))
        np.add.at(self.weight, self.items[new], np.exp(-self.rate * (time - self.times[new])))
        self.at, self.now = end, time
        return self.weight.copy()
