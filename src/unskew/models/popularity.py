"""Popularity: how many positives an item had so far, in total, recently, or with old ones fading. Every table
needs it.

No network, nothing learned by gradients. It counts what lies strictly before the moment of the request, as an
audience does. How
recent is recent enough is chosen on the validation part: on an honest time line, what was popular last week
is hard to beat.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unskew.catalog import Catalog
from unskew.config import NotNegative
from unskew.data.batch import Batch
from unskew.data.clock import DAY
from unskew.data.log import Log
from unskew.data.split import Known, Split
from unskew.data.views import Ints
from unskew.errors import BadInput
from unskew.models.base import ModelConfig, Recommender, Stage

Recency = Literal["chosen", "total", "window", "fading"]
DAYS = {"day": 1, "week": 7, "month": 30}


class Popularity(
    Recommender, name="popularity", paper="no paper: counts of what happened before the request"
):
    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        recency: Recency = "chosen"
        """Count everything so far, only a recent window, or with old positives fading; by default what
        validation prefers."""
        span: NotNegative = 0.0
        """Length of the window, or half-life, in ticks of the log's clock."""

    config: Config
    # Without a window and without a half-life, everything counts alike.
    window_ticks: Tensor
    half_life_ticks: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        if (config.span > 0) != (config.recency in ("window", "fading")):
            raise BadInput(
                f"recency {config.recency}, span {config.span}: a window and fading need a span above 0, "
                "the others none"
            )
        for name, recency in (("window_ticks", "window"), ("half_life_ticks", "fading")):
            span = config.span if config.recency == recency else 0.0
            self.register_buffer(name, torch.tensor(span, dtype=torch.float64))

    @property
    def audience(self) -> None:
        """All of it: how many there were is what counts."""
        return None

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        if self.config.recency != "chosen":
            return []
        return [Popularity(split.known, option).state_dict() for option in recencies(split).values()]

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return ()

    def forward(self, batch: Batch) -> Tensor:
        """The whole audience of each candidate, counted."""
        audiences, half_life, window = batch.audiences, float(self.half_life_ticks), int(self.window_ticks)
        times_WM = audiences.times_WL
        assert times_WM is not None
        age_BCM = batch.times_B[:, None, None] - times_WM[audiences.row_N[batch.audience_of_BC]]
        length_BC = audiences.length_N[batch.audience_of_BC]
        counted_BCM = torch.arange(times_WM.shape[1]) < length_BC[..., None]
        if half_life:
            return (torch.exp2(-age_BCM / half_life) * counted_BCM).sum(2).float()
        return (counted_BCM & (age_BCM <= window) if window else counted_BCM).sum(2).float()

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        half_life = float(self.half_life_ticks)
        return Fading(log, half_life) if half_life else Counting(log, int(self.window_ticks))


def recencies(split: Split) -> dict[str, Popularity.Config]:
    """Windows of a day, a week and a month where times are dates; shares of the training period where they
    are only an order."""
    times = split.log.time
    ticks = split.log.clock.ticks
    day = DAY * ticks if ticks else max(1, int(split.train_end - times.min()) // 200)
    names = tuple(DAYS) if ticks else tuple(f"{days / 2:g} % of training" for days in DAYS.values())
    spans = dict(zip(names, (float(day * days) for days in DAYS.values()), strict=True))
    windows = {f"last {name}": Popularity.Config(recency="window", span=span) for name, span in spans.items()}
    fading = {f"half-life {name}": replace(windows[f"last {name}"], recency="fading") for name in spans}
    return {"total": Popularity.Config(recency="total"), **windows, **fading}


class Counting:
    def __init__(self, log: Log, window: int) -> None:
        self.view, self.window, self.items = log.audiences, window, np.arange(len(log.items))

    def scores(self, context: Batch) -> Tensor:
        times, of = np.unique(context.times_B.numpy(), return_inverse=True)
        counts = self._before(times)
        if self.window:
            counts = counts - self._before(times - self.window)
        return torch.from_numpy(counts[of].astype(np.float32))

    def _before(self, times: Ints) -> Ints:
        start, end = self.view.before(self.items[None], times[:, None])
        return end - start


class Fading:
    """Walks along the log once: all weights fade at every step, and each event adds one."""

    def __init__(self, log: Log, half_life: float) -> None:
        order = np.argsort(log.histories.times, kind="stable")
        self.times, self.items = log.histories.times[order], log.histories.ids[order]
        self.rate = np.log(2) / half_life
        self.weight, self.at, self.now = (
            np.zeros(len(log.items)),
            0,
            int(self.times[0]) if len(self.times) else 0,
        )

    def scores(self, context: Batch) -> Tensor:
        times, of = np.unique(context.times_B.numpy(), return_inverse=True)
        return torch.from_numpy(np.stack([self._until(int(time)) for time in times])[of].astype(np.float32))

    def _until(self, time: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        end = int(np.searchsorted(self.times, time))
        new = slice(self.at, end)
        self.weight *= np.exp(-self.rate * max(time - self.now, 0))
        np.add.at(self.weight, self.items[new], np.exp(-self.rate * (time - self.times[new])))
        self.at, self.now = end, max(time, self.now)
        return self.weight.copy()
