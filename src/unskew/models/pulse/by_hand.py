"""The neighbourhood features of Pulse, combined by hand (no paper): what they are worth without learning.

    score(c) = sum over the kinds of features of weight * log1p(value(c) / scale) + TIE * popularity(c)

    value   what neighbours took lately, ever, and next (`neighbours.py`), with the scales of `signals.py`
    weight  0 or 1 of each kind; the validation set chooses among all combinations

What was decided: Popularity fades with a half-life of NEIGHBOUR_DAYS, breaks ties, and ranks the items for an
empty history. Nothing is learned by gradients.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from unskew.core.config import AtLeast1, Search
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.models.base import HistoryConfig
from unskew.models.pulse.neighbours import NeighbourSettings
from unskew.models.pulse.signals import NEIGHBOUR_DAYS, SCALES, Requests, Signals
from unskew.models.recency import FadingCatalog, FadingModel, Packing, ValidationMemory

TIE = 1e-6
KINDS = ("recent", "ever", "next")  # in the order of the values


class NeighboursByHand(
    FadingModel, name="neighbours-by-hand", paper="no paper: Pulse's neighbourhood without learning"
):
    """Ranks items by a sum of neighbourhood features."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        neighbours: Annotated[AtLeast1, Search.among(100, 300, 1000)] = NeighbourSettings.neighbours
        """The number of neighbours whose events are read."""

    config: Config
    tried: ClassVar[dict[str, tuple[float, ...]]] = dict.fromkeys(KINDS, (0.0, 1.0))
    popularity_days = NEIGHBOUR_DAYS
    recent: Tensor
    ever: Tensor
    next: Tensor
    reads_all: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, **dict.fromkeys(KINDS, 1.0))
        self.register_buffer("reads_all", torch.zeros((), dtype=torch.bool))

    def fit_statistics(self, split: Split) -> None:
        super().fit_statistics(split)
        self.reads_all.fill_(split.has_targets_removed)

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        self._memory = ValidationMemory(
            split, Requests.nbytes, packing=Packing(Requests.pack, Requests.unpack)
        )
        return [option for option in super().options(split) if any(option.values())]

    def read(self, log: LogView, half_life: float) -> FadingCatalog["NeighboursByHand"]:
        return CombinationCatalog(self, log, half_life)


class CombinationCatalog(FadingCatalog[NeighboursByHand]):
    """All items of a log, scored by the sum of features."""

    def __init__(self, model: NeighboursByHand, log: LogView, half_life: float) -> None:
        super().__init__(model, log, half_life)
        settings = NeighbourSettings(neighbours=model.config.neighbours, reads_all=bool(model.reads_all))
        day = float(model.day_ticks)
        self.signals = Signals(log, day, False, neighbour_settings=settings, reads="neighbours")

    def scores(self, context: Batch) -> Tensor:
        read = self.model.remember(self.log, context, lambda: self.signals.of_requests(context))
        scores = TIE * self.popularity_of(context)
        weights = np.array([float(getattr(self.model, kind)) for kind in KINDS], np.float32)
        row, item = read.keys // read.items, read.keys % read.items
        scores[row, item] += read.values[:, : len(SCALES)] @ weights
        return torch.from_numpy(scores)
