"""Popularity: how many positives an item has had so far. No paper, but every comparison needs it.

    score(c) = sum over the positives of c before the request of f(age)

    age  the time from the positive to the request
    f    1 (`total`); 1 up to the span and 0 beyond (`window`); or 2^(-age / span) (`fading`)

There is no network, and nothing is learned by gradients. Only what lies strictly before the moment of the
request is counted, as in an audience. Which f and which span is chosen on the validation set: with a temporal
split in time, what was popular last week is hard to beat.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from unskew.core.config import NotNegative
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.clock import DAY
from unskew.data.log.decay import Decay
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import Ints
from unskew.models.base import ModelConfig, Recommender
from unskew.nn.scoring import Catalog

Recency = Literal["chosen", "total", "window", "fading"]
DAYS = {"day": 1, "week": 7, "month": 30}  # the spans that are tried on the validation set


class Popularity(
    Recommender, name="popularity", paper="no paper: counts of what happened before the request"
):
    """Ranks items by how many positives they have had."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        recency: Recency = "chosen"
        """What is counted: all positives so far (`total`), those of a recent window (`window`), or all with a
        weight that fades with age (`fading`). `chosen` is what validation prefers."""
        span: NotNegative = 0.0
        """The length of the window, or the half-life of fading, in ticks of the log's clock."""

    config: Config
    validates_frozen = True
    # If both are zero, all positives counts the same.
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
        """All past users of an item are read, because they are counted."""
        return None

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        if self.config.recency != "chosen":
            return []
        return [Popularity(split.known, option).state_dict() for option in recencies(split).values()]

    def forward(self, batch: Batch) -> Tensor:
        """The weighted counts of each candidate's audience, (B, C)."""
        audiences, half_life, window = batch.audiences, float(self.half_life_ticks), int(self.window_ticks)
        times_WM = audiences.times_WL
        assert times_WM is not None
        age_BCM = batch.times_B[:, None, None] - times_WM[audiences.row_N[batch.audience_of_BC]]
        length_BC = audiences.length_N[batch.audience_of_BC]
        counted_BCM = torch.arange(times_WM.shape[1], device=times_WM.device) < length_BC[..., None]
        if half_life:
            return (torch.exp2(-age_BCM / half_life) * counted_BCM).sum(2).float()
        return (counted_BCM & (age_BCM <= window) if window else counted_BCM).sum(2).float()

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        half_life = float(self.half_life_ticks)
        return Fading(log, half_life) if half_life else Counting(log, int(self.window_ticks))


def recencies(split: Split) -> dict[str, Popularity.Config]:
    """The choices that validation tries, by name. If times are dates, the spans are a day, a week and a
    month; if times are only an order, fractions of the training period."""
    times = split.log.time
    ticks = split.log.clock.ticks
    day = DAY * ticks if ticks else max(1, int(split.train_end - times.min()) // 200)
    names = tuple(DAYS) if ticks else tuple(f"{days / 2:g} % of training" for days in DAYS.values())
    spans = dict(zip(names, (float(day * days) for days in DAYS.values()), strict=True))
    windows = {f"last {name}": Popularity.Config(recency="window", span=span) for name, span in spans.items()}
    fading = {f"half-life {name}": replace(windows[f"last {name}"], recency="fading") for name in spans}
    return {"total": Popularity.Config(recency="total"), **windows, **fading}


class Counting:
    """A catalogue of plain counts: of all positives, or of those within a window.

    window: the length of the window in ticks; 0 counts all.
    """

    def __init__(self, log: LogView, window: int) -> None:
        self.view, self.window, self.items = log.audiences, window, np.arange(len(log.items))

    def scores(self, context: Batch) -> Tensor:
        """The counts of all items at the time of each context."""
        times, of = np.unique(context.times_B.cpu().numpy(), return_inverse=True)
        counts = self._before(times)
        if self.window:
            counts = counts - self._before(times - self.window)
        return torch.from_numpy(counts[of].astype(np.float32))

    def _before(self, times: Ints) -> Ints:
        """How many positives each item had before each time, (times, items)."""
        start, end = self.view.before(self.items[None], times[:, None])
        return end - start


class Fading:
    """A catalogue of counts that fade with age."""

    def __init__(self, log: LogView, half_life: float) -> None:
        self.decay = Decay(log.audiences, (half_life,))

    def scores(self, context: Batch) -> Tensor:
        """The faded counts of all items at the time of each context."""
        times, of = np.unique(context.times_B.cpu().numpy(), return_inverse=True)
        counts = np.stack([counts[:, 0].astype(np.float32) for counts in self.decay.along(times)])
        return torch.from_numpy(counts[of])
