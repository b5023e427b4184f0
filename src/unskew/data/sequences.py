"""Whole training sequences of users and of items, in batches: what is learned without targets reads each of them once."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unskew.data.split import Split
from unskew.data.views import AUDIENCE, HISTORY, PAD, Ints, Sequences

POOL = 32  # batches whose sequences are sorted by length together


class SequenceBatch(NamedTuple):
    """Padded on the left with PAD. The two views are independent: some users' histories, and some items' audiences."""

    user_B: Tensor
    history_BL: Tensor
    event_BL: Tensor  # the row of the log that each place of a history is
    target_BL: Tensor  # which places are to be predicted: all but what was there in the window before
    audience_BM: Tensor
    weight_BL: Tensor | None = None  # what a propensity makes of each event; every loss multiplies by it
    epoch: int = 0


class SequenceSampler:
    """An endless, seeded walk over all training sequences, cut into windows. Its state is two numbers, as the Sampler's.

    With `overlap`, a window begins with the last events of the one before, so that every event but a user's first has a
    past in the window that it is a target of. Without `audience` only histories are walked.
    """

    def __init__(
        self, split: Split, batch_size: int, seed: int, history: int = HISTORY, audience: int | None = AUDIENCE, overlap: int = 0
    ) -> None:
        self.batch_size, self.seed = batch_size, seed
        self.views, self.overlap = (split.log.histories, split.log.audiences), overlap
        self.windows = [windows(split.log.histories, split.known_users, history, split.train_end, overlap)]
        if audience:
            self.windows.append(windows(split.log.audiences, split.known_items, audience, split.train_end))
        self.epoch_number, self.step = 0, 0

    def __len__(self) -> int:
        return max(-(-len(starts) // self.batch_size) for _, starts, _ in self.windows)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch_number, "step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch_number, self.step = state["epoch"], state["step"]

    def epoch(self) -> Iterator[SequenceBatch]:
        plans = [self._plan(place) for place in range(len(self.windows))]
        while self.step < len(self):
            made = self._batch([plan[self.step] for plan in plans])
            self.step += 1
            yield made
        self.epoch_number, self.step = self.epoch_number + 1, 0

    def _plan(self, place: int) -> list[Ints]:
        """The windows of each batch. Both views have the same number of batches, so the smaller one has smaller batches."""
        random = np.random.default_rng([self.seed, self.epoch_number, 100 + place])
        _, starts, ends = self.windows[place]
        shuffled = random.permutation(len(starts))
        pool = np.arange(len(shuffled)) * len(self) // (POOL * max(len(shuffled), 1))
        shuffled = shuffled[np.lexsort(((ends - starts)[shuffled], pool))]
        parts = np.array_split(shuffled, len(self))
        return [parts[at] for at in random.permutation(len(parts))]

    def _batch(self, chosen: list[Ints]) -> SequenceBatch:
        user, starts, ends = (column[chosen[0]] for column in self.windows[0])
        width = int((ends - starts).max(initial=0))
        event = ends[:, None] - width + np.arange(width)
        # Positives come first in a log and are sorted as its histories are, so a place in these is a row of the log.
        repeated = np.where(starts > self.views[0].offsets[user], self.overlap, 0)
        target = event >= (starts + repeated)[:, None]
        event = np.where(event >= starts[:, None], event, PAD)
        history = self.views[0].padded(starts, ends)
        audience = np.zeros((0, 0), np.int32)
        if len(chosen) > 1:
            _, starts, ends = (column[chosen[1]] for column in self.windows[1])
            audience = self.views[1].padded(starts, ends)
        users, histories, events, audiences = (torch.from_numpy(part.astype(np.int64)) for part in (user, history, event, audience))
        return SequenceBatch(users, histories, events, torch.from_numpy(target), audiences, epoch=self.epoch_number)


def windows(view: Sequences, known: int, length: int, train_end: int, overlap: int = 0) -> tuple[Ints, Ints, Ints]:
    """Each known entity's events before the end of training, cut into pieces of at most `length`, the newest piece full.

    Of each piece: the entity, the start and the end. With `overlap`, each piece also has so many events before it.
    """
    first, last = view.before(np.arange(known), train_end)
    pieces = np.maximum(-(-(last - first - overlap) // length), np.minimum(last - first, 1))
    owner = np.repeat(np.arange(known), pieces)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    ends = last[owner] - place * length
    return owner, np.maximum(first[owner], ends - length - overlap), ends
