"""Batches: B contexts times C candidates, one layout for training, evaluation and serving. Nothing is padded to the maximum."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unskew.data.log import Log
from unskew.data.split import Part, Split, Test
from unskew.data.views import AUDIENCE, HISTORY, PAD, Ints
from unskew.errors import BadInput

POOL = 64  # batches whose rows are sorted by length together: enough to trim well, few enough to keep batches random
ROUNDS = 16  # of redrawing negatives that turn out to be positives, before the user's complement is listed


class Batch(NamedTuple):
    """Axes: B contexts, C candidates, L past items, M past users, A distinct audiences. PAD stands for nobody, on the left."""

    user_B: Tensor
    history_BL: Tensor  # as long as the longest of the batch
    candidates_BC: Tensor  # in training the logged item comes first
    audience_AM: Tensor  # each distinct audience once ...
    audience_of_BC: Tensor  # ... and which one belongs to which candidate
    labels_BC: Tensor
    times_B: Tensor


def batch(
    log: Log,
    user: ArrayLike,
    time: ArrayLike,
    candidates: ArrayLike,
    labels: ArrayLike | None = None,
    history: int = HISTORY,
    audience: int = AUDIENCE,
) -> Batch:
    """What a model may know of each context (user, time) and each of its candidates: events strictly before, no others."""
    user_B, time_B = np.atleast_1d(np.asarray(user, np.int64)), np.atleast_1d(np.asarray(time, np.int64))
    candidates_BC = np.asarray(candidates, np.int64).reshape(len(user_B), -1)
    start, end = log.audiences.before(candidates_BC.ravel(), np.repeat(time_B, candidates_BC.shape[1]), audience)
    # Two candidates have the same audience exactly if their windows end at the same event; all empty windows are one.
    key = np.where(end > start, end, -1)
    _, first, audience_of = np.unique(key, return_index=True, return_inverse=True)
    labels_BC = np.zeros(candidates_BC.shape, np.float32) if labels is None else np.asarray(labels, np.float32).reshape(candidates_BC.shape)
    return Batch(
        user_B=torch.from_numpy(user_B),
        history_BL=_tensor(log.histories.padded(*log.histories.before(user_B, time_B, history))),
        candidates_BC=torch.from_numpy(candidates_BC),
        audience_AM=_tensor(log.audiences.padded(start[first], end[first])),
        audience_of_BC=torch.from_numpy(audience_of.reshape(candidates_BC.shape)),
        labels_BC=torch.from_numpy(labels_BC),
        times_B=torch.from_numpy(time_B),
    )


def _tensor(codes: NDArray[np.int32]) -> Tensor:
    return torch.from_numpy(codes.astype(np.int64))


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How rows become batches."""

    batch_size: int = 512
    """Contexts in a batch."""
    negatives: int | None = None
    """Sampled negatives per context. By default one where the log has positives only, none where it has its own negatives."""
    history: int = HISTORY
    """Past items of a user, the newest."""
    audience: int = AUDIENCE
    """Past users of an item, the newest."""
    seed: int = 0
    """Of the order of the rows and of the negatives."""


class Sampler:
    """An endless, seeded walk over the rows of a part: `for batch in sampler.epoch()`.

    Everything drawn is a function of (seed, epoch, step), so its whole state is two numbers, and a restored sampler goes
    on exactly where the saved one stopped.
    """

    def __init__(self, split: Split, settings: Sampling = Sampling(), part: Part = "train", test: Test = "ordinary") -> None:  # noqa: B008 (frozen)
        if settings.batch_size < 1:
            raise BadInput(f"batch_size {settings.batch_size}: expected at least 1")
        self.split, self.log, self.settings = split, split.log, settings
        self.rows = split.rows(part, test)
        if not len(self.rows):
            raise BadInput(f"the {part} part ({test}) has no rows")
        explicit = bool((self.log.label[self.rows] == 0).any())
        self.negatives = settings.negatives if settings.negatives is not None else int(not explicit)
        self.epoch_number, self.step = 0, 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return math.ceil(len(self.rows) / self.settings.batch_size)

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch_number, "step": self.step, "seed": self.settings.seed, "rows": len(self.rows)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if (state["seed"], state["rows"]) != (self.settings.seed, len(self.rows)):
            raise BadInput(
                f"the saved sampler had seed {state['seed']} and {state['rows']} rows, this one {self.settings.seed} and {len(self.rows)}"
            )
        self.epoch_number, self.step = state["epoch"], state["step"]

    def epoch(self) -> Iterator[Batch]:
        """The rest of the current epoch; all of it, unless a state was restored in the middle."""
        plan = self._plan()
        while self.step < len(plan):
            made = self._batch(plan[self.step])
            # Counted before the batch is handed out: a state saved while it is being trained on says that it was.
            self.step += 1
            yield made
        self.epoch_number, self.step = self.epoch_number + 1, 0

    def _random(self, *what: int) -> np.random.Generator:
        return np.random.default_rng([self.settings.seed, self.epoch_number, *what])

    def _plan(self) -> list[Ints]:
        """The rows of each batch: shuffled, then sorted by length within pools, and the batches shuffled again."""
        random, size = self._random(), self.settings.batch_size
        shuffled = random.permutation(len(self.rows))
        lengths = self._lengths[shuffled]
        pool = np.arange(len(shuffled)) // (size * POOL)
        shuffled = shuffled[np.lexsort((lengths, pool))]
        batches = [self.rows[shuffled[at : at + size]] for at in range(0, len(shuffled), size)]
        return [batches[place] for place in random.permutation(len(batches))]

    @cached_property
    def _lengths(self) -> NDArray[np.int64]:
        start, end = self.log.histories.before(self.log.user[self.rows], self.log.time[self.rows], self.settings.history)
        return end - start

    def _batch(self, rows: Ints) -> Batch:
        user, item, time = self.log.user[rows].astype(np.int64), self.log.item[rows].astype(np.int64), self.log.time[rows]
        candidates, labels = item[:, None], np.asarray(self.log.label[rows], np.float32)[:, None]
        if self.negatives:
            drawn = self._draw_negatives(user, time)
            candidates = np.concatenate([candidates, drawn], axis=1)
            labels = np.concatenate([labels, np.zeros(drawn.shape, np.float32)], axis=1)
        return batch(self.log, user, time, candidates, labels, self.settings.history, self.settings.audience)

    def _draw_negatives(self, user: Ints, time: Ints) -> Ints:
        """Uniform over the known items that exist by then, without the user's own positives of the training part.

        An item that is born later has an empty audience, which would tell the model that it is a negative.
        """
        random = self._random(self.step + 1)
        # Codes follow first appearance, so "exists by then" is "has a code below".
        existing = np.minimum(np.searchsorted(self.log.births[1], time, "right"), self.split.known_items)
        existing = np.where(existing > 1, existing, self.split.known_items)
        shape = (len(user), self.negatives)
        drawn = (random.random(shape) * existing[:, None]).astype(np.int64)
        for _ in range(ROUNDS):
            clash = self._is_positive(np.repeat(user, self.negatives), drawn.ravel()).reshape(shape)
            if not clash.any():
                return drawn
            again = np.nonzero(clash)
            drawn[again] = (random.random(len(again[0])) * existing[again[0]]).astype(np.int64)
        return self._from_complement(user, drawn, random)

    def _from_complement(self, user: Ints, drawn: Ints, random: np.random.Generator) -> Ints:
        """The few users who have nearly everything: list what they do not have, and draw from that."""
        clash = self._is_positive(np.repeat(user, self.negatives), drawn.ravel()).reshape(drawn.shape)
        for context, place in np.argwhere(clash):
            first = user[context] * self._items
            own = slice(*np.searchsorted(self._positive_pairs, [first, first + self._items]))
            others = np.setdiff1d(np.arange(self.split.known_items), self._positive_pairs[own] - first)
            if not len(others):
                name = self.log.users.of(user[[context]])[0].as_py()
                everything = f"all {self.split.known_items} items as positives"
                raise BadInput(f"user {name!r} has {everything}, so none is left to sample as a negative; leave this user out")
            drawn[context, place] = random.choice(others)
        return drawn

    @property
    def _items(self) -> int:
        return len(self.log.items)

    @cached_property
    def _positive_pairs(self) -> Ints:
        train = self.split.mask("train") & (self.log.label == 1)
        return np.unique(self.log.user[train].astype(np.int64) * self._items + self.log.item[train])

    def _is_positive(self, user: Ints, item: Ints) -> NDArray[np.bool_]:
        wanted = user * self._items + item
        place = np.minimum(np.searchsorted(self._positive_pairs, wanted), len(self._positive_pairs) - 1)
        return np.asarray(self._positive_pairs[place] == wanted)


def real(ids: Tensor) -> Tensor:
    """Which entries of a padded tensor are somebody."""
    return ids != PAD
