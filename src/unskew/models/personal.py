"""Personal: what the user took before, by count and recency, then what is popular (no paper; the strongest
simple rival where people buy again, cf. the personal frequency of Hu et al., SIGIR 2020, and Faggioli et al.,
UMAP 2020).

For a request of user u at time t, everything strictly before t:

    own(c)    = log2 of the sum over the user's events on c of 2^(-age / h)
    score(c)  = 2 + own(c) / (1 + |own(c)|)          where the user had c before
                faded count of c / all faded counts  elsewhere, with the half-life g

    age   the time from the event to the request
    h, g  the half-lives of the user's own events and of everybody's

What was decided: With a long h own items are ranked by their count, with a short one by their recency. Both
half-lives are chosen on the validation set unless they are given. The fraction own / (1 + |own|) lies between
-1 and 1, so own items keep their order and are above all others. Where the split hides past items, only the
popular ones are left. Nothing is learned by gradients.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.core.config import AtLeast1, Positive
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known
from unskew.data.log.views import PAD
from unskew.models.base import HistoryConfig
from unskew.models.recency import HALF_LIVES, NO_FADING, FadingCatalog, FadingModel

POPULARITY_HALF_LIVES = (1.0, 8.0, 32.0, NO_FADING)  # days


class Personal(FadingModel, name="personal", paper="no paper: the user's own past, then what is popular"):
    """Ranks the user's own items by count and recency, and below them all others by popularity."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: AtLeast1 = 500
        """The number of past events of a user that the model reads: the newest ones."""
        half_life: Positive | None = None
        """The time in days after which an own event counts half; a million days rank by the count alone. By
        default the one that validation prefers."""
        popularity_half_life: Positive | None = None
        """The time in days after which an event of anybody counts half. By default the one that validation
        prefers."""

    config: Config
    tried: ClassVar[dict[str, tuple[float, ...]]] = {
        "half_life": HALF_LIVES,
        "popularity_half_life": POPULARITY_HALF_LIVES,
    }
    half_life: Tensor
    popularity_half_life: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, half_life=NO_FADING, popularity_half_life=NO_FADING)

    @property
    def popularity_days(self) -> Tensor:
        return self.popularity_half_life

    def read(self, log: LogView, half_life: float) -> FadingCatalog["Personal"]:
        return PersonalCatalog(self, log, half_life)


class PersonalCatalog(FadingCatalog[Personal]):
    """All items of a log, scored by the own past and by popularity."""

    def scores(self, context: Batch) -> Tensor:
        scores = self.popularity_of(context)
        row, item, own = self._own(context)
        scores[row, item] = 2 + own / (1 + np.abs(own))
        return torch.from_numpy(scores)

    def _own(self, context: Batch) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """The pairs of a context and an item of its history, and log2 of the faded count of each. Ages are
        counted from the newest event of the pair, so that no sum is zero."""
        own, items = context.history_BL.cpu().numpy(), len(self.log.items)
        row, place = np.nonzero((own != PAD) & (own < items))
        age = context.times_B.cpu().numpy()[row] - context.history_times_BL.cpu().numpy()[row, place]
        half_lives = age / float(self.model.half_life * self.model.day_ticks)
        pair, which = np.unique(row * items + own[row, place], return_inverse=True)
        newest = np.full(len(pair), np.inf)
        np.minimum.at(newest, which, half_lives)
        count = np.bincount(which, np.exp2(newest[which] - half_lives), minlength=len(pair))
        return pair // max(items, 1), pair % max(items, 1), np.log2(count) - newest
