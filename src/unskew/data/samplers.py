"""Samplers: seeded, resumable walks over the training part that hand out batches."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from unskew.data.batch import Batch, SequenceBatch, batch, batch_shared, features_of, with_logged
from unskew.data.negatives import Draw, Drawing, Positives, uniform_negatives
from unskew.data.split import Split
from unskew.data.views import AUDIENCE, HISTORY, PAD, Ints, Sequences
from unskew.errors import BadInput

# Rows (or sequences) of so many batches are sorted by length together: enough to trim well, few enough to
# keep batches random.
POOL_OF_ROWS, POOL_OF_SEQUENCES = 64, 32


class BatchSource(Protocol):
    """Whatever hands out the batches of a training phase, epoch by epoch, and can be stopped and restored."""

    step: int  # batches of the current epoch that were handed out

    def __len__(self) -> int:
        """Batches in an epoch."""

    def epoch(self) -> Iterator[Any]:
        """The rest of the current epoch."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on exactly here, as plain numbers and words."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a saved one stopped."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How rows become batches."""

    batch_size: int = 512
    """Contexts in a batch."""
    negatives: int | None = None
    """Sampled negatives per context. By default one where the log has fewer negatives of its own than
    positives, else none."""
    history: int = HISTORY
    """Past items of a user, the newest."""
    audience: int | None = AUDIENCE
    """Past users of an item, the newest; all of them if None."""
    positives_only: bool = False
    """Leave out the rows that were shown and not clicked."""
    shared: bool = False
    """Keep the rows of a user together, and let sequences share what they have in common: for what reads each
    of them once."""
    seed: int = 0
    """Of the order of the rows and of the negatives."""


class Sampler:
    """An endless, seeded walk over the training rows that may be targets: `for batch in sampler.epoch()`.

    Everything drawn is a function of (seed, epoch, step), so its whole state is two numbers, and a restored
    sampler goes on exactly where the saved one stopped.
    """

    def __init__(
        self,
        split: Split,
        settings: Sampling = Sampling(),  # noqa: B008 (frozen)
        drawing: Drawing = uniform_negatives,
    ) -> None:
        if settings.batch_size < 1 or (settings.negatives or 0) < 0 or settings.seed < 0:
            raise BadInput(f"{settings}: expected a batch size of at least 1, and no negative numbers")
        self.split, self.log, self.settings, self.drawing = split, split.log, settings, drawing
        wanted = split.targets("train", reads_audiences=settings.audience != 0)
        self.rows = np.flatnonzero(wanted & (self.log.label == 1) if settings.positives_only else wanted)
        if not len(self.rows):
            raise BadInput(
                "the training part has no rows to learn from: every row is the first of its item, or "
                "repeats one"
            )
        positives = int(self.log.label[self.rows].sum())
        self.negatives = (
            settings.negatives if settings.negatives is not None else int(2 * positives > len(self.rows))
        )
        self.epoch_number, self.step = 0, 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self.rows) / self.settings.batch_size)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch_number, "step": self.step, **self._identity()}

    def _identity(self) -> dict[str, Any]:
        return {**asdict(self.settings), "rows": len(self.rows)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise BadInput(f"the saved sampler had {name} {state.get(name)}, this one has {mine}")
        self.epoch_number, self.step = state["epoch"], state["step"]

    def epoch(self) -> Iterator[Batch]:
        """The rest of the current epoch; all of it, unless a state was restored in the middle."""
        plan = self._plan()
        while self.step < len(plan):
            made = self._batch(plan[self.step])
            # Counted before the batch is handed out: a state saved while it is being trained on says that it
            # was.
            self.step += 1
            yield made
        self.epoch_number, self.step = self.epoch_number + 1, 0

    def _random(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, self.epoch_number, *what])

    def _plan(self) -> list[Ints]:
        """The rows of each batch: shuffled, then sorted by length within pools, and the batches shuffled
        again; or user by user."""
        random, size = self._random(), self.settings.batch_size
        if self.settings.shared:
            shuffled = np.argsort(
                random.permutation(len(self.log.users))[self.log.user[self.rows]], kind="stable"
            )
        else:
            shuffled = random.permutation(len(self.rows))
            pool = np.arange(len(shuffled)) // (size * POOL_OF_ROWS)
            shuffled = shuffled[np.lexsort((self._lengths[shuffled], pool))]
        # Neighbours in a batch must not be alike: some models compare each row with the next one.
        batches = [
            self.rows[random.permutation(shuffled[at : at + size])] for at in range(0, len(shuffled), size)
        ]
        return [batches[place] for place in random.permutation(len(batches))]

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        start, end = self.log.histories.before(
            self.log.user[self.rows], self.log.time[self.rows], self.settings.history
        )
        return end - start

    def _batch(self, rows: Ints) -> Batch:
        user, item, time = (
            self.log.user[rows].astype(np.int64),
            self.log.item[rows].astype(np.int64),
            self.log.time[rows],
        )
        candidates, labels = item[:, None], self.log.label[rows][:, None].astype(np.float32)
        if self.negatives:
            existing = np.minimum(self.log.audiences.existing(time), self.split.known_items)
            # At the very first moment nothing existed, so all known items are alike.
            existing = np.where(existing > 0, existing, self.split.known_items)
            random, repeats = self._random(self.step + 1), self.split.repeats
            drawn = self.drawing(
                Draw(
                    random,
                    user,
                    item,
                    time,
                    existing,
                    self.negatives,
                    self.epoch_number,
                    self._positives,
                    repeats,
                )
            )
            clean = self.drawing is uniform_negatives
            has = np.zeros(drawn.shape) if clean else self._positives.has(user[:, None], drawn)
            candidates, labels = (
                np.concatenate([candidates, drawn], axis=1),
                np.concatenate([labels, has], axis=1),
            )
        make = batch_shared if self.settings.shared else batch
        made = make(self.log, user, time, candidates, labels, self.settings.history, self.settings.audience)
        return (made if self.negatives else with_logged(made, self.log, rows))._replace(
            epoch=self.epoch_number
        )

    @cached_property
    def _positives(self) -> Positives:
        return Positives(self.split)


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
        self.log, self.views = split.log, (split.log.histories, split.log.audiences)
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
        pool = np.arange(len(shuffled)) * len(self) // (POOL_OF_SEQUENCES * max(len(shuffled), 1))
        shuffled = shuffled[np.lexsort(((end - start)[shuffled], pool))]
        parts = np.array_split(shuffled, len(self))
        return [parts[at] for at in random.permutation(len(parts))]

    def _batch(self, chosen: list[Ints]) -> SequenceBatch:
        histories, audiences = self._read(0, chosen[0]), _Read.nothing()
        if len(chosen) > 1:
            audiences = self._read(1, chosen[1])
        event = histories.event
        target = (event >= histories.first[:, None]) & self.wanted[event] & (event != PAD)
        return SequenceBatch(
            user_B=torch.from_numpy(histories.owner),
            items_BL=torch.from_numpy(histories.ids),
            time_BL=torch.from_numpy(histories.time),
            event_BL=torch.from_numpy(event),
            past_BL=torch.from_numpy(histories.past),
            target_BL=torch.from_numpy(target),
            item_B=torch.from_numpy(audiences.owner),
            users_BM=torch.from_numpy(audiences.ids),
            users_time_BM=torch.from_numpy(audiences.time),
            users_event_BM=torch.from_numpy(audiences.event),
            users_past_BM=torch.from_numpy(audiences.past),
            user_features=features_of(self.log.users),
            item_features=features_of(self.log.items),
            epoch=self.epoch_number,
        )

    def _read(self, place: int, chosen: Ints) -> "_Read":
        view, found = self.views[place], self.windows[place]
        owner, start, end, first = (column[chosen] for column in found)
        ids = view.padded(start, end).astype(np.int64)
        event = end[:, None] - ids.shape[1] + np.arange(ids.shape[1])
        inside = event >= start[:, None]
        event = np.where(inside, event, PAD)
        if not event.size:
            return _Read(owner, ids, event, event, event, first)
        past = np.where(inside, np.maximum(view.moments[event] - start[:, None], 0), 0)
        return _Read(owner, ids, np.where(inside, view.times[event], PAD), event, past, first)


class _Read(NamedTuple):
    """Windows as tables: whose they are, ids, times, events, how many events are before each, and the first
    event of each window that is to be predicted."""

    owner: Ints
    ids: Ints
    time: Ints
    event: Ints
    past: Ints
    first: Ints

    @classmethod
    def nothing(cls) -> "_Read":
        none, empty = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        return cls(none, empty, empty, empty, empty, none)


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
