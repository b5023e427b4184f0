"""Whole training sequences of users and of items, in batches: what is learned without candidates reads each
of them once."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.split import Split
from unskew.data.views import AUDIENCE, HISTORY, PAD, Ints, Sequences

POOL = 32  # batches whose sequences are sorted by length together


class SequenceBatch(NamedTuple):
    """Padded on the left with PAD. The two views are independent: some users' histories, and some items'
    audiences.

    An event may be predicted from what is strictly before it, and events at the same moment are not.
    `past_BL` says how many
    events of the window are: they are its first ones.
    """

    user_B: Tensor
    history_BL: Tensor
    event_BL: Tensor  # the row of the log that each place of a history is
    past_BL: Tensor  # how many events of the window lie strictly before each place
    # Which places are to be predicted: each event once, without repeats where past items are hidden
    target_BL: Tensor
    item_B: Tensor  # whose audiences these are
    audience_BM: Tensor
    audience_event_BM: Tensor  # the place in the table of audiences
    audience_past_BM: Tensor
    weight_BL: Tensor | None = None  # what a propensity makes of each event; every loss multiplies by it
    epoch: int = 0

    def targets(self) -> "Targets":
        """The events to be predicted, one after the other."""
        wanted_BL = self.target_BL
        weight_N = None if self.weight_BL is None else self.weight_BL[wanted_BL]
        return Targets(
            wanted_BL.nonzero()[:, 0], self.past_BL[wanted_BL], self.history_BL[wanted_BL], weight_N
        )


class Targets(NamedTuple):
    """N events to be predicted: the row of each, how many events of that row are before it, its id, and its
    weight."""

    row_N: Tensor
    past_N: Tensor
    id_N: Tensor
    weight_N: Tensor | None


class SequenceSampler:
    """An endless, seeded walk over all training sequences, cut into windows. Its state is two numbers, as the
    Sampler's.

    With `overlap`, a window begins with the last events of the one before, so that every event but a user's
    first has a past in the window that it is a target of. Without `audience` only histories are walked.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        history: int = HISTORY,
        audience: int | None = AUDIENCE,
        overlap: int = 0,
    ) -> None:
        self.batch_size, self.seed = batch_size, seed
        self.views = (split.log.histories, split.log.audiences)
        # Positives come first in a log and are sorted as its histories are, so a place in these is a row of
        # the log.
        self.wanted = (
            np.ones(split.log.positives, bool)
            if split.repeats
            else ~split.log.repeated[: split.log.positives]
        )
        self.windows = [windows(split.log.histories, split.known_users, history, split.train_end, overlap)]
        if audience:
            self.windows.append(windows(split.log.audiences, split.known_items, audience, split.train_end))
        self.epoch_number, self.step = 0, 0

    def __len__(self) -> int:
        return max(-(-len(found.start) // self.batch_size) for found in self.windows)

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
        """The windows of each batch. Both views have the same number of batches, so the smaller one has
        smaller batches."""
        random = np.random.default_rng([self.seed, self.epoch_number, 100 + place])
        start, end = self.windows[place].start, self.windows[place].end
        shuffled = random.permutation(len(start))
        pool = np.arange(len(shuffled)) * len(self) // (POOL * max(len(shuffled), 1))
        shuffled = shuffled[np.lexsort(((end - start)[shuffled], pool))]
        parts = np.array_split(shuffled, len(self))
        return [parts[at] for at in random.permutation(len(parts))]

    def _batch(self, chosen: list[Ints]) -> SequenceBatch:
        user, history, event, past, first = self._read(0, chosen[0])
        target = (event >= first[:, None]) & self.wanted[event] & (event != PAD)
        item, audience, audience_event, audience_past = _nothing()
        if len(chosen) > 1:
            item, audience, audience_event, audience_past, _ = self._read(1, chosen[1])
        histories = [torch.from_numpy(part) for part in (user, history, event, past, target)]
        audiences = [torch.from_numpy(part) for part in (item, audience, audience_event, audience_past)]
        return SequenceBatch._make([*histories, *audiences, None, self.epoch_number])

    def _read(self, place: int, chosen: Ints) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Of some windows: whose they are, ids, events, pasts, and the first event to be predicted."""
        view, found = self.views[place], self.windows[place]
        owner, start, end, first = (column[chosen] for column in found)
        ids = view.padded(start, end).astype(np.int64)
        event = end[:, None] - ids.shape[1] + np.arange(ids.shape[1])
        inside = event >= start[:, None]
        event = np.where(inside, event, PAD)
        past = (
            np.where(inside, np.maximum(view.moments[event] - start[:, None], 0), 0) if event.size else event
        )
        return owner, ids, event, past, first


def _nothing() -> tuple[NDArray[np.int64], ...]:
    return np.zeros(0, np.int64), *(np.zeros((0, 0), np.int64) for _ in range(3))


class Windows(NamedTuple):
    """Pieces of sequences: whose each is, where it starts and ends, and where the events begin that it is
    there to predict."""

    owner: Ints
    start: Ints
    end: Ints
    first: Ints


def windows(view: Sequences, known: int, length: int, train_end: int, overlap: int = 0) -> Windows:
    """Each known entity's events before the end of training, cut into pieces of about `length`, the newest
    piece full.

    With `overlap`, each piece also has at least so many events before it, and no cut parts events of one
    moment, so that a piece holds the past of each of its events; a moment of more than `length` events is a
    piece of its own, however long. Without it no piece is longer than `length`.
    """
    oldest, end = view.before(np.arange(known), train_end)
    owner = np.flatnonzero(end > oldest)
    oldest, end, found = oldest[owner], end[owner], []
    while len(owner):
        first = np.maximum(oldest, end - length)
        moment = view.moments[first]
        # A cut within a moment moves to its end, and if nothing is left then, to its beginning.
        _, after = view.before(owner, view.times[first] + 1)
        cut = np.where(moment == first, first, after)
        single = cut >= end
        cut = np.where(single, moment if overlap else first, cut)
        start = np.maximum(oldest, cut - np.where(single & (overlap > 0), max(length, overlap), overlap))
        # What is left of the sequence may be no longer than the overlap: then it belongs to this piece.
        last = cut - oldest <= overlap
        found.append((owner, np.where(last, oldest, start), end, np.where(last, oldest, cut)))
        owner, oldest, end = owner[~last], oldest[~last], cut[~last]
    columns = zip(*found, strict=True) if found else [[np.zeros(0, np.int64)]] * 4
    return Windows(*(np.concatenate(column) for column in columns))
