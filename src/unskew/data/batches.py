"""Batches: B contexts times C candidates, one layout for training, evaluation and serving. Nothing is padded
to the maximum."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unskew.data.log import Log
from unskew.data.split import Split
from unskew.data.views import AUDIENCE, HISTORY, PAD, Ints, Sequences
from unskew.errors import BadInput

# Batches whose rows are sorted by length together: enough to trim well, few enough to keep batches random
POOL = 64
ROUNDS = 16  # of redrawing negatives that turn out to be positives, before the user's complement is listed


class Prefixes(NamedTuple):
    """N sequences, each the first ids of a row: what is causal reads a row once and has all its prefixes."""

    ids_WL: Tensor  # padded on the right
    row_N: Tensor
    length_N: Tensor

    def newest(self, longest: int | None) -> "Prefixes":
        """No more than this of each (None: all); where rows are longer, each sequence gets a row of its
        own."""
        if longest is None or self.ids_WL.shape[1] <= longest:
            return self
        place_NL = (self.length_N - longest).clamp(min=0)[:, None] + torch.arange(longest)
        ids_NL = self.ids_WL[self.row_N[:, None], place_NL].masked_fill(
            place_NL >= self.length_N[:, None], PAD
        )
        return Prefixes(ids_NL, torch.arange(len(ids_NL)), self.length_N.clamp(max=longest))


def whole(ids_BL: Tensor) -> Prefixes:
    """Sequences that are padded on the left, each a row of its own."""
    is_real = ids_BL != PAD
    ids_WL = ids_BL.gather(1, (~is_real).to(torch.int8).argsort(dim=1, stable=True))
    return Prefixes(ids_WL, torch.arange(len(ids_BL)), is_real.sum(1))


class Batch(NamedTuple):
    """Axes: B contexts, C candidates, L past items, M past users, A distinct audiences. PAD stands for
    nobody, on the left.

    Where a phase reads sequences once, both are `shared` instead, and history_BL and audience_AM are empty.
    """

    user_B: Tensor
    history_BL: Tensor  # as long as the longest of the batch
    candidates_BC: Tensor  # in training the logged item comes first
    audience_AM: Tensor  # each distinct audience once ...
    audience_of_BC: Tensor  # ... and which one belongs to which candidate
    labels_BC: Tensor
    times_B: Tensor
    logged_BC: Tensor | None = None  # the log's own propensities, where it has them and nothing is sampled
    weight_BC: Tensor | None = None  # what a propensity makes of each pair; every loss multiplies by it
    epoch: int = 0  # of the sampler that made it: a curriculum goes by it
    shared: tuple[Prefixes, Prefixes] | None = None

    @property
    def histories(self) -> Prefixes:
        """The history of each context."""
        return whole(self.history_BL) if self.shared is None else self.shared[0]

    @property
    def audiences(self) -> Prefixes:
        """Each distinct audience."""
        return whole(self.audience_AM) if self.shared is None else self.shared[1]


def batch(
    log: Log,
    user: ArrayLike,
    time: ArrayLike,
    candidates: ArrayLike,
    labels: ArrayLike | None = None,
    history: int = HISTORY,
    audience: int | None = AUDIENCE,
) -> Batch:
    """What a model may know of each context (user, time) and each of its candidates: events strictly before,
    no others."""
    return with_candidates(contexts(log, user, time, history), log, candidates, labels, audience)


def batch_of_rows(log: Log, rows: Ints, history: int = HISTORY, audience: int | None = AUDIENCE) -> Batch:
    """Rows of the log, each a context with its own item, label and, where the log has it, propensity."""
    return _logged(
        batch(log, log.user[rows], log.time[rows], log.item[rows], log.label[rows], history, audience),
        log,
        rows,
    )


def _logged(made: Batch, log: Log, rows: Ints) -> Batch:
    if log.propensity is None:
        return made
    return made._replace(logged_BC=torch.from_numpy(log.propensity[rows].astype(np.float32))[:, None])


def contexts(log: Log, user: ArrayLike, time: ArrayLike, history: int = HISTORY) -> Batch:
    """Contexts without candidates."""
    user_B, time_B = (
        np.array(part, np.int64) for part in np.broadcast_arrays(np.atleast_1d(user), np.atleast_1d(time))
    )
    return bare_contexts(user_B, log.histories.padded(*log.histories.before(user_B, time_B, history)), time_B)


def bare_contexts(user_B: Ints, history_BL: NDArray[np.int32], time_B: Ints) -> Batch:
    """The same for histories from anywhere, padded on the left."""
    nothing = torch.zeros(len(user_B), 0, dtype=torch.int64)
    no_audience = torch.zeros(0, 0, dtype=torch.int64)
    return Batch(
        torch.from_numpy(user_B),
        _tensor(history_BL),
        nothing,
        no_audience,
        nothing,
        torch.zeros(len(user_B), 0),
        torch.from_numpy(time_B),
    )


def with_candidates(
    context: Batch, log: Log, candidates: ArrayLike, labels: ArrayLike | None, audience: int | None = AUDIENCE
) -> Batch:
    """The same contexts with candidates, and each distinct audience of them once; none at all if none is
    read."""
    candidates_BC = np.array(candidates, np.int64).reshape(len(context.user_B), -1)
    labels_BC = (
        np.zeros(candidates_BC.shape, np.float32) if labels is None else np.asarray(labels, np.float32)
    )
    context = context._replace(
        candidates_BC=torch.from_numpy(candidates_BC),
        labels_BC=torch.from_numpy(labels_BC.reshape(candidates_BC.shape)),
    )
    if audience == 0:
        nobody = torch.zeros(1, 0, dtype=torch.int64)
        return context._replace(audience_AM=nobody, audience_of_BC=torch.zeros_like(context.candidates_BC))
    start, end = log.audiences.before(
        candidates_BC.ravel(), np.repeat(context.times_B.numpy(), candidates_BC.shape[1]), audience
    )
    first, audience_of = _distinct(start, end)
    return context._replace(
        audience_AM=_tensor(log.audiences.padded(start[first], end[first])),
        audience_of_BC=torch.from_numpy(audience_of.reshape(candidates_BC.shape)),
    )


def batch_shared(
    log: Log, user: Ints, time: Ints, candidates: Ints, labels: ArrayLike, history: int, audience: int | None
) -> Batch:
    """The same as `batch`, with each history and each audience a prefix of a row that many of them share."""
    made = batch(log, user, time, candidates, labels, history=0, audience=0)
    histories = _prefixes(log.histories, *log.histories.before(user, time), history)
    start, end = log.audiences.before(candidates.ravel(), np.repeat(time, candidates.shape[1]))
    first, audience_of = _distinct(start, end)
    audiences = _prefixes(log.audiences, start[first], end[first], len(log) if audience is None else audience)
    return made._replace(
        audience_of_BC=torch.from_numpy(audience_of.reshape(candidates.shape)), shared=(histories, audiences)
    )


def _distinct(start: Ints, end: Ints) -> tuple[Ints, Ints]:
    """Of many windows that end in one table: the first of each distinct one, and which one each is.

    Two of them are the same exactly if they end at the same event; all empty ones are one.
    """
    _, first, which = np.unique(np.where(end > start, end, -1), return_index=True, return_inverse=True)
    return first, which


def _prefixes(view: Sequences, start: Ints, end: Ints, length: int) -> Prefixes:
    starts, ends, row = view.shared(start, end, length)
    return Prefixes(
        _tensor(view.padded(starts, ends, right=True)),
        torch.from_numpy(row),
        torch.from_numpy(end - starts[row]),
    )


def _tensor(codes: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


class Positives:
    """The training positives of all users, to ask what somebody has."""

    def __init__(self, split: Split) -> None:
        log = split.log
        train = split.mask("train")[: log.positives]
        self.items, self.known_items, self.users, self.view = (
            len(log.items),
            split.known_items,
            log.users,
            log.histories,
        )
        self.pairs = np.unique(
            log.user[: log.positives][train].astype(np.int64) * self.items + log.item[: log.positives][train]
        )

    def has(self, user: Ints, item: Ints) -> NDArray[np.bool_]:
        """Whether each user has each item, at whatever time; the two are broadcast."""
        return _among(self.pairs, user * self.items + item)

    def has_now(self, user_B: Ints, time_B: Ints, item_BC: Ints) -> NDArray[np.bool_]:
        """Whether each user has each item at the very moment of the context."""
        _, moment_B = self.view.before(user_B, time_B)
        place_B = np.minimum(moment_B, max(len(self._now) - 1, 0))
        is_now_B = (moment_B < self.view.offsets[np.minimum(user_B, len(self.view) - 1) + 1]) & (
            self.view.times[place_B] == time_B
        )
        return np.asarray(is_now_B[:, None]) & _among(self._now, moment_B[:, None] * self.items + item_BC)

    @cached_property
    def _now(self) -> Ints:
        """A number per moment of a user and item. Positives are sorted by user, time and item, so these
        increase."""
        return self.view.moments * self.items + self.view.ids

    def missing(self, user: int, item: int, existing: int, now: int | None) -> Ints:
        """What a user with nearly everything does not have, this item aside: of what exists, or else of all
        known items.

        With `now`, only what the user takes at that very moment is had.
        """
        own = (
            self.pairs[slice(*np.searchsorted(self.pairs, [user * self.items, (user + 1) * self.items]))]
            - user * self.items
        )
        if now is not None:
            own = own[self.has_now(np.array([user]), np.array([now]), own[None])[0]]
        has = np.append(own, item)
        for size in (existing, self.known_items):
            others = np.setdiff1d(np.arange(size), has)
            if len(others):
                return others
        everything = f"all {self.known_items} items as positives"
        name = self.users.of(np.array([user]))[0].as_py()
        raise BadInput(
            f"user {name!r} has {everything}, so none is left to sample as a negative; leave this user out"
        )


def _among(increasing: Ints, wanted: Ints) -> NDArray[np.bool_]:
    if not len(increasing):
        return np.zeros(wanted.shape, bool)
    place = np.minimum(np.searchsorted(increasing, wanted), len(increasing) - 1)
    return np.asarray(increasing[place] == wanted)


class Draw(NamedTuple):
    """What is known when the other candidates of B training contexts are drawn."""

    random: np.random.Generator
    user_B: Ints
    item_B: Ints  # the logged ones
    time_B: Ints
    existing_B: Ints  # known items that existed before: those with a code below
    wanted: int  # per context
    epoch: int
    positives: Positives
    repeats: bool = False  # whether a user's past items are candidates


Drawing = Callable[[Draw], Ints]


def uniform_negatives(draw: Draw) -> Ints:
    """Uniform over the known items that existed before, without what the user has.

    Where past items are hidden, what the user has is all of the user's training positives. Where repeats are
    part of the task,
    it is only what the user takes at this very moment: past items are drawn, too, or being in the history
    would mean positive.
    """
    user, item, existing = draw.user_B[:, None], draw.item_B[:, None], draw.existing_B[:, None]
    shape = (len(user), draw.wanted)

    def clashing(drawn: Ints) -> NDArray[np.bool_]:
        own = (
            draw.positives.has_now(draw.user_B, draw.time_B, drawn)
            if draw.repeats
            else draw.positives.has(user, drawn)
        )
        return np.asarray(own | (drawn == item))

    drawn = (draw.random.random(shape) * existing).astype(np.int64)
    for _ in range(ROUNDS):
        clash = clashing(drawn)
        if not clash.any():
            return drawn
        drawn = np.where(clash, (draw.random.random(shape) * existing).astype(np.int64), drawn)
    for context, place in np.argwhere(clashing(drawn)):
        who, what, most, when = (
            int(of[context]) for of in (draw.user_B, draw.item_B, draw.existing_B, draw.time_B)
        )
        missing = draw.positives.missing(who, what, most, when if draw.repeats else None)
        drawn[context, place] = draw.random.choice(missing)
    return drawn


def uniform_items(draw: Draw) -> Ints:
    """Uniform over the known items that existed before, the user's own positives included, without the logged
    one."""
    item = draw.item_B[:, None]
    # Where the logged one is all there was, over all known items.
    choice = np.where(draw.existing_B > 1, draw.existing_B, draw.positives.known_items)[:, None]
    # One fewer to choose from, and those from the logged one on are one further.
    drawn = (draw.random.random((len(item), draw.wanted)) * (choice - 1)).astype(np.int64)
    return np.asarray(drawn + (drawn >= item))


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
            pool = np.arange(len(shuffled)) // (size * POOL)
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
        return (made if self.negatives else _logged(made, self.log, rows))._replace(epoch=self.epoch_number)

    @cached_property
    def _positives(self) -> Positives:
        return Positives(self.split)
