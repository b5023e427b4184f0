"""Whole training sequences of users and of items, in batches: what is learned without targets reads each of them once."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unskew.data.split import Split
from unskew.data.views import AUDIENCE, HISTORY, Ints, Sequences

POOL = 32  # batches whose sequences are sorted by length together


class SequenceBatch(NamedTuple):
    """Padded on the left with PAD. The two are independent: some users' histories, and some items' audiences."""

    history_BL: Tensor
    audience_BM: Tensor


class SequenceSampler:
    """An endless, seeded walk over all training sequences, cut into windows. Its state is two numbers, as the Sampler's."""

    def __init__(self, split: Split, batch_size: int, seed: int, history: int = HISTORY, audience: int = AUDIENCE) -> None:
        self.batch_size, self.seed = batch_size, seed
        self.views = split.log.histories, split.log.audiences
        known = split.known_users, split.known_items
        limits = history, audience
        self.windows = [windows(*parts, split.train_end) for parts in zip(self.views, known, limits, strict=True)]
        self.epoch_number, self.step = 0, 0

    def __len__(self) -> int:
        return max(-(-len(starts) // self.batch_size) for starts, _ in self.windows)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch_number, "step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch_number, self.step = state["epoch"], state["step"]

    def epoch(self) -> Iterator[SequenceBatch]:
        plans = [self._plan(place) for place in range(2)]
        while self.step < len(self):
            made = SequenceBatch(*(self._batch(place, plans[place][self.step]) for place in range(2)))
            self.step += 1
            yield made
        self.epoch_number, self.step = self.epoch_number + 1, 0

    def _plan(self, place: int) -> list[Ints]:
        """The windows of each batch. Both views have the same number of batches, so the smaller one has smaller batches."""
        random = np.random.default_rng([self.seed, self.epoch_number, 100 + place])
        starts, ends = self.windows[place]
        shuffled = random.permutation(len(starts))
        pool = np.arange(len(shuffled)) * len(self) // (POOL * max(len(shuffled), 1))
        shuffled = shuffled[np.lexsort(((ends - starts)[shuffled], pool))]
        parts = np.array_split(shuffled, len(self))
        return [parts[at] for at in random.permutation(len(parts))]

    def _batch(self, place: int, chosen: Ints) -> Tensor:
        starts, ends = self.windows[place]
        return torch.from_numpy(self.views[place].padded(starts[chosen], ends[chosen]).astype(np.int64))


def windows(view: Sequences, known: int, length: int, train_end: int) -> tuple[Ints, Ints]:
    """Each known entity's events before the end of training, cut into pieces of at most `length`, the newest piece full."""
    first, last = view.before(np.arange(known), train_end)
    pieces = -(-(last - first) // length)
    owner = np.repeat(np.arange(known), pieces)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    ends = last[owner] - place * length
    return np.maximum(first[owner], ends - length), ends
