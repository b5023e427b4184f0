"""Samplers: seeded passes over the training set that hand out batches and can be stopped and resumed."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.core.ranks import ranks
from unskew.data.batches.batch import Batch, SequenceBatch, batch, batch_shared, features_of, with_logged
from unskew.data.batches.context_events import histories_with_context
from unskew.data.batches.negatives import Draw, Drawing, Positives, uniform_negatives
from unskew.data.log.split import Split
from unskew.data.log.views import AUDIENCE, HISTORY, PAD, Ints, Sequences

# How many batches' worth of rows (or sequences) are sorted by length together: enough for little padding,
# few enough for batches to stay random.
POOL_OF_ROWS, POOL_OF_SEQUENCES = 64, 32

B = TypeVar("B")


@runtime_checkable
class ReadsShards(Protocol):
    """A source of batches that reads much of the log before it hands out the first one."""

    def read_shards(self, folder: Path) -> None:
        """Read in shards: every rank its own ones, into part files in a folder. A part file appears whole,
        and what it holds is not read again."""


class BatchSource(Protocol):
    """Anything that hands out the batches of a training phase, epoch by epoch, and can be restored."""

    step: int  # how many batches of the current epoch were handed out

    def __len__(self) -> int:
        """The number of batches in an epoch."""

    def epoch(self) -> Iterator[Any]:
        """The rest of the current epoch."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to continue exactly here, as plain numbers and words."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved source stopped."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How rows of the log become batches."""

    batch_size: int = 512
    """The number of contexts in a batch."""
    negatives: int | None = None
    """How many negatives are sampled for each context. By default one where the log has fewer negatives of
    its own than positives, and otherwise none."""
    history: int = HISTORY
    """The number of past items of a user that a batch holds: the newest ones."""
    audience: int | None = AUDIENCE
    """The number of past users of an item that a batch holds: the newest ones, or all of them if None."""
    positives_only: bool = False
    """Whether to leave out rows that were shown and not clicked."""
    shared: bool = False
    """Whether the rows of a user stay together, with histories and audiences as prefixes of rows that many
    contexts share. This is for networks that read each row once."""
    seed: int = 0
    """The seed of the order of the rows and of the negatives."""


class _SeededPass(Generic[B]):
    """An endless, seeded pass over the training set. Everything that is drawn is a function of (seed, epoch,
    step), so the whole state is two numbers, and a restored sampler continues exactly where the saved one
    stopped."""

    seed: int
    epoch_number = 0
    step = 0  # how many batches of the current epoch were handed out

    def _identity(self) -> dict[str, Any]:
        """What a restored sampler must have in common with the saved one."""
        raise NotImplementedError

    def _plan(self) -> list[list[Ints]]:
        """What each batch of the epoch is made of."""
        raise NotImplementedError

    def _batch(self, chosen: list[Ints]) -> B:
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        """The epoch, the step, and what a restored sampler must have in common with this one."""
        return {"epoch": self.epoch_number, "step": self.step, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved sampler stopped; refuse if its settings or its rows differ."""
        for name, mine in self._identity().items():
            if state.get(name) != mine:
                raise BadInput(f"the saved sampler had {name} {state.get(name)}, this one has {mine}")
        self.epoch_number, self.step = state["epoch"], state["step"]

    def epoch(self) -> Iterator[B]:
        """The rest of the current epoch; all of it, unless a state was restored in the middle."""
        plan = self._plan()
        while self.step < len(plan):
            made = self._batch(plan[self.step])  # of several ranks, each makes its part
            # The step is counted before the batch is handed out, so a state that is saved during its training
            # step says that the batch is done.
            self.step += 1
            yield made
        self.epoch_number, self.step = self.epoch_number + 1, 0

    def _random(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch_number, *what])


class Sampler(_SeededPass[Batch]):
    """Batches of the training rows that may be targets: `for batch in sampler.epoch()`.

    Parameters
    ----------
    split
        The split whose training rows are sampled.
    settings
        How rows become batches.
    drawing
        How negatives are drawn.
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
                "the training set has no rows to learn from: every row is the first of its item, or "
                "repeats one"
            )
        positives = int(self.log.label[self.rows].sum())
        mostly_positives = 2 * positives > len(self.rows)
        self.negatives = int(mostly_positives) if settings.negatives is None else settings.negatives
        self.seed = settings.seed

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return math.ceil(len(self.rows) / self.settings.batch_size)

    def _identity(self) -> dict[str, Any]:
        return {**asdict(self.settings), "rows": len(self.rows)}

    def _plan(self) -> list[list[Ints]]:
        """The rows of each batch. Rows are shuffled, sorted by length within pools, and the batches are
        shuffled again; or, if shared, rows go user by user."""
        random, size = self._random(), self.settings.batch_size
        if self.settings.shared:
            order_of_user = random.permutation(len(self.log.users))
            shuffled = np.argsort(order_of_user[self.log.user[self.rows]], kind="stable")
        else:
            shuffled = random.permutation(len(self.rows))
            pool = np.arange(len(shuffled)) // (size * POOL_OF_ROWS)
            shuffled = shuffled[np.lexsort((self._lengths[shuffled], pool))]
        # Neighbours in a batch must not have similar lengths: some models compare each row with the next one.
        batches = [
            self.rows[random.permutation(shuffled[at : at + size])] for at in range(0, len(shuffled), size)
        ]
        return [[batches[number]] for number in random.permutation(len(batches))]

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        user, time = self.log.user[self.rows], self.log.time[self.rows]
        start, end = self.log.histories.before(user, time, self.settings.history)
        return end - start

    def _batch(self, chosen: list[Ints]) -> Batch:
        (rows,) = chosen
        user, item = self.log.user[rows].astype(np.int64), self.log.item[rows].astype(np.int64)
        time = self.log.time[rows]
        candidates, labels = item[:, None], self.log.label[rows][:, None].astype(np.float32)
        if self.negatives:
            existing = np.minimum(self.log.audiences.existing(time), self.split.known_items)
            # At the very first moment no item existed; then all known items are candidates.
            existing = np.where(existing > 0, existing, self.split.known_items)
            draw = Draw(
                random=self._random(self.step + 1),
                user_B=user,
                item_B=item,
                time_B=time,
                existing_B=existing,
                wanted=self.negatives,
                epoch=self.epoch_number,
                positives=self._positives,
                repeats=self.split.repeats,
            )
            drawn = self.drawing(draw)
            clean = self.drawing is uniform_negatives
            has = np.zeros(drawn.shape) if clean else self._positives.has(user[:, None], drawn)
            candidates = np.concatenate([candidates, drawn], axis=1)
            labels = np.concatenate([labels, has], axis=1)
        make, here = batch_shared if self.settings.shared else batch, ranks().part(len(rows))
        past = self.settings.history, self.settings.audience
        made = make(self.log, user[here], time[here], candidates[here], labels[here], *past)
        if not self.negatives:
            made = with_logged(made, self.log, rows[here])
        return made._replace(epoch=self.epoch_number)

    @cached_property
    def _positives(self) -> Positives:
        return Positives(self.split)


class SequenceSampler(_SeededPass[SequenceBatch]):
    """Batches of all training sequences, cut into windows.

    Parameters
    ----------
    split
        The split whose training sequences are sampled.
    batch_size
        How many sequences are in a batch, of the view that has more of them.
    seed
        The seed of the order of the sequences.
    history
        The length of a window of a history.
    audience
        The length of a window of an audience; with 0 or None, only histories are read.
    overlap
        How many of the last events of one window the next one begins with. Then every event but a user's
        first has a past in the window in which it is a target.
    types
        The context types whose events are read in histories (`unskew.data.batches.context_events`). They are
        no targets.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        history: int = HISTORY,
        audience: int | None = AUDIENCE,
        overlap: int = 0,
        types: tuple[str, ...] = (),
    ) -> None:
        self.batch_size, self.seed, self.log = batch_size, seed, split.log
        histories = split.log.histories
        # The row of the log that each event of the histories is; None where the two are the same.
        self.rows: Ints | None = None
        if types:
            histories, self.rows = histories_with_context(split.log, types)
        self.views = histories, split.log.audiences
        # Positives come first in a log and in the order of its histories, so a position in the table of
        # histories is a row of the log.
        if split.repeats:
            self.wanted = np.ones(split.log.positives, bool)
        else:
            self.wanted = ~split.log.repeated[: split.log.positives]
        cut = windows(histories, split.known_users, history, split.train_end, overlap)
        if self.rows is not None:  # windows of context events alone teach nothing
            targets = np.append(0, np.cumsum((self.rows != PAD) & self.wanted[self.rows]))
            cut = cut.some(targets[cut.end] > targets[cut.first])
        self.windows = [cut]
        if audience:
            self.windows.append(windows(split.log.audiences, split.known_items, audience, split.train_end))

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        return max(-(-len(part.start) // self.batch_size) for part in self.windows)

    def _identity(self) -> dict[str, Any]:
        windows = [len(part.start) for part in self.windows]
        return {"seed": self.seed, "batch_size": self.batch_size, "windows": windows}

    def _plan(self) -> list[list[Ints]]:
        return [list(parts) for parts in zip(*map(self._plan_of, range(len(self.windows))), strict=True)]

    def _plan_of(self, number: int) -> list[Ints]:
        """The windows of each batch, of one view (0 is histories, 1 is audiences). Both views have the same
        number of batches, so the smaller view has smaller batches."""
        random = self._random(100 + number)
        start, end = self.windows[number].start, self.windows[number].end
        shuffled = random.permutation(len(start))
        pool = np.arange(len(shuffled)) * len(self) // (POOL_OF_SEQUENCES * max(len(shuffled), 1))
        shuffled = shuffled[np.lexsort(((end - start)[shuffled], pool))]
        parts = np.array_split(shuffled, len(self))
        return [parts[at] for at in random.permutation(len(parts))]

    def _batch(self, chosen: list[Ints]) -> SequenceBatch:
        parts = [windows[ranks().part(len(windows))] for windows in chosen]
        histories, audiences = self._read(0, parts[0]), _Read.nothing()
        if len(parts) > 1:
            audiences = self._read(1, parts[1])
        event = row = histories.event
        if self.rows is not None:
            row = np.where(event == PAD, PAD, self.rows[event])
        target = (event >= histories.first[:, None]) & self.wanted[row] & (row != PAD)
        return SequenceBatch(
            user_B=torch.from_numpy(histories.owner),
            items_BL=torch.from_numpy(histories.ids),
            time_BL=torch.from_numpy(histories.time),
            event_BL=torch.from_numpy(row),
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

    def _read(self, number: int, chosen: Ints) -> "_Read":
        view = self.views[number]
        owner, start, end, first = (column[chosen] for column in self.windows[number])
        ids = view.padded(start, end).astype(np.int64)
        event = end[:, None] - ids.shape[1] + np.arange(ids.shape[1])
        inside = event >= start[:, None]
        event = np.where(inside, event, PAD)
        if not event.size:
            return _Read(owner, ids, event, event, event, first)
        past = np.where(inside, np.maximum(view.moments[event] - start[:, None], 0), 0)
        return _Read(owner, ids, np.where(inside, view.times[event], PAD), event, past, first)


class _Read(NamedTuple):
    """Windows as tables, one row per window, padded on the left."""

    owner: Ints  # the user or the item whose sequence a window is cut from
    ids: Ints
    time: Ints
    event: Ints  # the position of each event in the table of the view
    past: Ints  # how many events of the window are strictly before each
    first: Ints  # the first event of each window that is to be predicted

    @classmethod
    def nothing(cls) -> "_Read":
        """No windows at all."""
        none, empty = np.zeros(0, np.int64), np.zeros((0, 0), np.int64)
        return cls(none, empty, empty, empty, empty, none)


class Windows(NamedTuple):
    """Pieces of sequences: `ids[start:end]` of a view, each with its owner."""

    owner: Ints  # the user or the item whose sequence it is
    start: Ints
    end: Ints
    first: Ints  # the first event to be predicted; events before it are only read

    def some(self, which: NDArray[np.bool_]) -> "Windows":
        """Some of the windows."""
        return Windows(*(column[which] for column in self))


def windows(view: Sequences, known: int, length: int, train_end: int, overlap: int = 0) -> Windows:
    """Cut each known entity's events before the end of training into windows of about `length` events. The
    newest window is full, and the oldest may be shorter.

    Without `overlap` no window is longer than `length`. With `overlap`, each window also begins with at least
    so many events before those it predicts, and no cut separates events of one moment. So a window holds the
    past of each event that it predicts. A moment with more than `length` events is a window of its own,
    however long.

    view: the sequences that are cut.
    known: how many entities are known; their codes are below this.
    """
    oldest, end = view.before(np.arange(known), train_end)
    owner = np.flatnonzero(end > oldest)
    oldest, end, found = oldest[owner], end[owner], []
    while len(owner):
        first = np.maximum(oldest, end - length)
        moment = view.moments[first]
        # A cut within a moment moves to the end of the moment or, if nothing would be left, to its beginning.
        _, after = view.before(owner, view.times[first] + 1)
        cut = np.where(moment == first, first, after)
        single = cut >= end
        cut = np.where(single, moment if overlap else first, cut)
        start = np.maximum(oldest, cut - np.where(single & (overlap > 0), max(length, overlap), overlap))
        # If what is left of the sequence is no longer than the overlap, it belongs to this window.
        last = cut - oldest <= overlap
        found.append((owner, np.where(last, oldest, start), end, np.where(last, oldest, cut)))
        owner, oldest, end = owner[~last], oldest[~last], cut[~last]
    columns = zip(*found, strict=True) if found else [[np.zeros(0, np.int64)]] * 4
    return Windows(*(np.concatenate(column) for column in columns))
