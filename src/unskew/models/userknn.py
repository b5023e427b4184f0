"""UserKNN with time decay: what users with a similar past took lately (Resnick et al., CSCW 1994; Herlocker
et al., SIGIR 1999; the decay as in Ding and Li, Time Weight Collaborative Filtering, CIKM 2005).

For a request of user u at time t with a history H, everything strictly before t:

    sim(u, v) = sum over the shared items i of idf(i)^2 d^back(i) / sqrt(|H| |H_v|)
    score(c)  = sum over the k most similar users v, over their events on c, of sim(u, v) 2^(-age / half-life)

    idf(i)   log((1 + events) / events of i): an item that few users have says more
    back(i)  how many events of the user came after the one on i; d is the decay of the user's own history
    H_v      the history of v; an item that is in it twice counts twice
    age      the time from the event of v to the request

What was decided: Nothing is learned by gradients. The half-life, d and k are chosen on the validation set
unless they are given; lists that are frozen have their own choice. The neighbours are searched in the log as
it is at the moment of the request, so that users and items that no training saw count, too. In a
leave-one-out split, where training events of other users may be later than a request, all of them are read,
as by every network that is trained on them; a later event has the age 0. The norm of a history counts events,
and not squared idf, because then no sum over all histories is needed for every request; the norm made no
difference on validation sets. Of each item of the history the newest `readers` users are compared, and the
newest `events` of each neighbour are read. Ties are broken by the popularity that fades with the same
half-life, which also ranks the items for an empty history.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from unskew.core.config import AtLeast1, Positive, Search, Share
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import HISTORY, PAD, Ints
from unskew.models.base import HistoryConfig
from unskew.models.recency import NO_FADING, FadingCatalog, FadingModel, ValidationMemory

# What is tried on the validation set.
NEIGHBOURS = (100, 300, 1000)
HALF_LIVES = (1.0, 4.0, 16.0, 64.0, 128.0, 256.0, NO_FADING)  # days
OWN_DECAYS = (1.0, 0.8)
TIE = 1e-6  # what popularity adds to the score of an item that had all recent events
CELLS = 1 << 22  # scores that are summed together


class UserKNN(
    FadingModel, name="userknn", paper="Resnick et al., CSCW 1994; decay of Ding and Li, CIKM 2005"
):
    """Scores candidates by what the most similar users took, and how long ago."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        history: Annotated[AtLeast1, Search.among(20, 50, 200)] = HISTORY
        """The number of past items of a user that the model reads: the newest ones."""
        neighbours: AtLeast1 | None = None
        """The number of most similar users whose events are counted (k). By default the one that validation
        prefers."""
        half_life: Positive | None = None
        """The time in days after which an event of a neighbour counts half; a million days do not fade. By
        default the one that validation prefers."""
        own_decay: Share | None = None
        """The factor by which each item of the user's history counts less than the one after it; with 1, all
        count the same. By default the one that validation prefers."""
        readers: Annotated[AtLeast1, Search.among(200, 500, 2000)] = 500
        """The number of newest users of each item of the history that are compared."""
        events: AtLeast1 = 100
        """The number of newest events of each neighbour that are read."""

    config: Config
    tried: ClassVar[dict[str, tuple[float, ...]]] = {
        "own_decay": OWN_DECAYS,
        "neighbours": NEIGHBOURS,
        "half_life": HALF_LIVES,
    }
    own_decay: Tensor
    neighbours: Tensor
    half_life: Tensor
    reads_all: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, neighbours=max(NEIGHBOURS), half_life=NO_FADING, own_decay=1.0)
        self.register_buffer("reads_all", torch.zeros((), dtype=torch.bool))

    def fit_statistics(self, split: Split) -> None:
        super().fit_statistics(split)
        self.reads_all.fill_(split.has_targets_removed)

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        self._memory = ValidationMemory(split, lambda kept: sum(part.nbytes for part in kept))
        return super().options(split)

    @property
    def popularity_days(self) -> Tensor:
        return self.half_life

    def read(self, log: LogView, half_life: float) -> FadingCatalog["UserKNN"]:
        return NeighbourCatalog(self, log, half_life)

    def moments(self, log: LogView, time: Ints) -> Ints:
        """Up to when the events of other users are read for requests at some times."""
        return np.full_like(time, log.now) if self.reads_all else time

    def neighbours_of(self, log: LogView, context: Batch) -> "Neighbours":
        """The most similar users of each context, with some more than are counted where the number is still
        to be chosen."""
        count, own_decay = int(self.neighbours), float(self.own_decay)
        until = self.moments(log, context.times_B.cpu().numpy())
        if self._memory is None:
            return find_neighbours(log, context, until, self.config.readers, count, own_decay)
        count = max(*NEIGHBOURS, count)
        reads = partial(find_neighbours, log, context, until, self.config.readers, count, own_decay)
        return self.remember(log, context, reads, own_decay)


class Neighbours(NamedTuple):
    """Pairs of a request and a similar user, request by request, the most similar user first."""

    request: Ints
    user: Ints
    similarity: NDArray[np.float64]

    def nearest(self, count: int) -> "Neighbours":
        """At most so many of each request."""
        sizes = np.bincount(self.request)
        rank = np.arange(len(self.request)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return self.part(rank < count)

    def part(self, pairs: slice | NDArray[np.bool_]) -> "Neighbours":
        """Some of the pairs."""
        return Neighbours(self.request[pairs], self.user[pairs], self.similarity[pairs])


def find_neighbours(
    log: LogView, context: Batch, time: Ints, readers: int, count: int, own_decay: float = 1.0
) -> Neighbours:
    """The `count` most similar users of each context by what happened before `time`; of equally similar ones,
    those with the first codes."""
    own, user = context.history_BL.cpu().numpy(), context.user_B.cpu().numpy()
    request, place = np.nonzero((own != PAD) & (own < len(log.items)))
    item = own[request, place].astype(np.int64)
    _, events = log.timeline.before(np.zeros_like(time), time)
    events = events - log.timeline.starts[0]
    first, end = log.audiences.before(item, time[request])
    rarity = np.log((1 + events[request]) / np.maximum(end - first, 1)) ** 2
    weight = rarity * own_decay ** (own.shape[1] - 1 - place)
    step, event = log.audiences.flat(np.maximum(first, end - readers), end)
    reader = log.audiences.ids[event].astype(np.int64)
    others = reader != user[request[step]]
    step, reader = step[others], reader[others]
    shape = len(user), max(len(log.users), 1)
    shared = sparse.csr_array((weight[step], (request[step], reader)), shape=shape)
    shared.sum_duplicates()
    asking = np.repeat(np.arange(len(user)), np.diff(shared.indptr))
    began, ended = log.histories.before(shared.indices, time[asking])
    similarity = shared.data / np.sqrt((own != PAD).sum(1)[asking] * (ended - began))
    pieces: list[Ints] = [np.zeros(0, np.int64)]
    for start, stop in zip(shared.indptr[:-1], shared.indptr[1:], strict=True):
        pieces.append(start + np.argsort(-similarity[start:stop], kind="stable")[:count])
    order = np.concatenate(pieces)
    return Neighbours(asking[order], shared.indices[order].astype(np.int64), similarity[order])


class NeighbourCatalog(FadingCatalog[UserKNN]):
    """All items of a log, scored by the events of neighbours."""

    def scores(self, context: Batch) -> Tensor:
        nearest = self.model.neighbours_of(self.log, context).nearest(int(self.model.neighbours))
        time, items = context.times_B.cpu().numpy(), len(self.log.items)
        scores = TIE * self.popularity_of(context)
        rows = max(CELLS // max(items, 1), 1)
        for first in range(0, len(time), rows):
            part = slice(*np.searchsorted(nearest.request, [first, first + rows]))
            key, value = self._sum(nearest.part(part), time)
            block = scores[first : first + rows]
            block += np.bincount(key - first * items, value, minlength=block.size).reshape(block.shape)
        return torch.from_numpy(scores)

    def _sum(self, nearest: Neighbours, time: Ints) -> tuple[Ints, NDArray[np.float64]]:
        """What each event of the neighbours adds, and where: `request * items + item`."""
        view = self.log.histories
        until = self.model.moments(self.log, time)
        start, end = view.before(nearest.user, until[nearest.request], self.model.config.events)
        which, row = view.flat(start, end)
        request = nearest.request[which]
        age = np.maximum(time[request] - view.times[row], 0)
        value = nearest.similarity[which] * np.exp2(-age / self.half_life)
        return request * len(self.log.items) + view.ids[row], value
