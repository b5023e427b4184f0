"""The neighbourhood features of Pulse, combined by hand (no paper): what they are worth without learning.

    score(c) = sum over the kinds of features of weight * log1p(value(c) / scale) + TIE * popularity(c)

    value   what neighbours took lately, ever, and next (`neighbours.py`), with the scales of `signals.py`
    weight  0 or 1 of each kind; the validation set chooses among all combinations

What was decided: Popularity fades with a half-life of NEIGHBOUR_DAYS, breaks ties, and ranks the items for an
empty history. Nothing is learned by gradients.
"""

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from unskew.core.config import AtLeast1, Search
from unskew.data.batches.batch import Batch
from unskew.data.log.decay import Decay
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.models.base import HistoryConfig, Recommender
from unskew.models.pulse.neighbours import NeighbourSettings
from unskew.models.pulse.signals import NEIGHBOUR_DAYS, SCALES, Requests, Signals
from unskew.models.recency import ValidationMemory, popularity_fractions, scores_of, ticks_per_day
from unskew.nn.phases import Stage
from unskew.nn.scoring import Catalog

TIE = 1e-6
KINDS = ("recent", "ever", "next")  # in the order of the values
COMBINATIONS = [weights for weights in product((0.0, 1.0), repeat=len(KINDS)) if any(weights)]


class NeighboursByHand(
    Recommender, name="neighbours-by-hand", paper="no paper: Pulse's neighbourhood without learning"
):
    """Ranks items by a sum of neighbourhood features."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        """The settings of the combination by hand."""

        neighbours: Annotated[AtLeast1, Search.among(100, 300, 1000)] = NeighbourSettings.neighbours
        """The number of neighbours whose events are read."""

    config: Config
    supports_live_log = True
    day_ticks: Tensor
    recent: Tensor
    ever: Tensor
    next: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        self.register_buffer("day_ticks", torch.ones(1, dtype=torch.float64))
        for kind in KINDS:
            self.register_buffer(kind, torch.ones((), dtype=torch.float64))
        self._memory: ValidationMemory[Requests] | None = None
        self._catalog: CombinationCatalog | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads logs by itself."""
        return self.__dict__ | {"_memory": None, "_catalog": None}

    def fit_statistics(self, split: Split) -> None:
        self.day_ticks.fill_(ticks_per_day(split))

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        self._memory = ValidationMemory(split, Requests.nbytes)
        return [
            {
                kind: torch.tensor(weight, dtype=torch.float64)
                for kind, weight in zip(KINDS, each, strict=True)
            }
            for each in COMBINATIONS
        ]

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        return ()

    def forward(self, batch: Batch) -> Tensor:
        return scores_of(self, batch)

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        kept, day = self._catalog, float(self.day_ticks)
        if kept is None or kept.log is not log or kept.signals.day != day:
            kept = self._catalog = CombinationCatalog(self, log, day)
        return kept

    def requests(self, log: LogView, signals: Signals, context: Batch) -> Requests:
        """What is known of the contexts of a batch; what options are validated on is read once."""
        if self._memory is None:
            return signals.of_requests(context)
        return self._memory.read(log, context, lambda: signals.of_requests(context))


class CombinationCatalog:
    """All items of a log, scored by the sum of features."""

    def __init__(self, model: NeighboursByHand, log: LogView, day: float) -> None:
        self.model, self.log = model, log
        settings = NeighbourSettings(neighbours=model.config.neighbours)
        self.signals = Signals(log, day, False, neighbour_settings=settings, reads="neighbours")
        self.popularity = Decay(log.audiences, (NEIGHBOUR_DAYS * day,))

    def scores(self, context: Batch) -> Tensor:
        """The scores of all items in each context."""
        read = self.model.requests(self.log, self.signals, context)
        scores = TIE * popularity_fractions(self.popularity, context.times_B.numpy(), len(self.log.items))
        weights = np.array([float(getattr(self.model, kind)) for kind in KINDS], np.float32)
        row, item = read.keys // read.items, read.keys % read.items
        scores[row, item] += read.values[:, : len(SCALES)] @ weights
        return torch.from_numpy(scores)
