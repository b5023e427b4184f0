"""Negatives: the items that a training context is compared with, drawn from those that existed then."""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.arrays import distinct, is_in
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import Ints

# How often negatives that turn out to be positives are redrawn. After that, all items that the user does
# not have are listed, and one of them is drawn.
EPOCHS = 16
RECENT = 1000  # the newest events that half of the negatives of `with_negatives` come from


class Positives:
    """The training positives of all users, for looking up which items a user has."""

    def __init__(self, split: Split) -> None:
        log = split.log
        train = split.mask("train")[: log.positives]
        self.items, self.known_items = len(log.items), split.known_items
        self.users, self.view = log.users, log.histories
        user, item = log.user[: log.positives][train], log.item[: log.positives][train]
        self.pairs = distinct(user.astype(np.int64) * self.items + item)

    def has(self, user: Ints, item: Ints) -> NDArray[np.bool_]:
        """Whether each user has each item, at any time. Users and items are broadcast."""
        return is_in(self.pairs, user * self.items + item)

    def has_now(self, user_B: Ints, time_B: Ints, item_BC: Ints) -> NDArray[np.bool_]:
        """Whether each user has each item at the very moment of the context, (B, C)."""
        _, moment_B = self.view.before(user_B, time_B)
        position_B = np.minimum(moment_B, max(len(self._now) - 1, 0))
        last_B = self.view.offsets[np.minimum(user_B, len(self.view) - 1) + 1]
        is_now_B = (moment_B < last_B) & (self.view.times[position_B] == time_B)
        return np.asarray(is_now_B[:, None]) & is_in(self._now, moment_B[:, None] * self.items + item_BC)

    @cached_property
    def _now(self) -> Ints:
        """One number for each item at each moment of a user. Positives are sorted by user, time and item, so
        these numbers increase."""
        return self.view.moments * self.items + self.view.ids

    def missing(self, user: int, item: int, existing: int, now: int | None) -> Ints:
        """The items that a user does not have, without the logged `item`. This is for users who have nearly
        all.

        existing: the items below this code are searched first, and all known items only if none of these is
            left.
        now: if given, only the items that the user has at this very moment count as had.
        """
        first, last = np.searchsorted(self.pairs, [user * self.items, (user + 1) * self.items])
        own = self.pairs[first:last] - user * self.items
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


class Draw(NamedTuple):
    """What is known when negatives are drawn for B training contexts."""

    random: np.random.Generator
    user_B: Ints
    item_B: Ints  # the logged items
    time_B: Ints
    existing_B: Ints  # how many known items existed before: those with a smaller code
    wanted: int  # how many negatives each context gets
    epoch: int
    positives: Positives
    repeats: bool = False  # whether items that a user has had before are candidates


Drawing = Callable[[Draw], Ints]


def uniform_negatives(draw: Draw) -> Ints:
    """Draw uniformly from the known items that existed before, except those that the user has, (B, wanted).

    If repeats are hidden, the user has all items of his or her training positives. If repeats are part of the
    task, the user has only the items of this very moment. Past items are then drawn, too, because otherwise
    every candidate that is in the history would be a positive.
    """
    user, item, existing = draw.user_B[:, None], draw.item_B[:, None], draw.existing_B[:, None]
    shape = (len(user), draw.wanted)

    def clashing(drawn: Ints) -> NDArray[np.bool_]:
        if draw.repeats:
            own = draw.positives.has_now(draw.user_B, draw.time_B, drawn)
        else:
            own = draw.positives.has(user, drawn)
        return np.asarray(own | (drawn == item))

    drawn = (draw.random.random(shape) * existing).astype(np.int64)
    for _ in range(EPOCHS):
        clash = clashing(drawn)
        if not clash.any():
            return drawn
        drawn = np.where(clash, (draw.random.random(shape) * existing).astype(np.int64), drawn)
    for context, column in np.argwhere(clashing(drawn)):
        who, what, most, when = (
            int(of[context]) for of in (draw.user_B, draw.item_B, draw.existing_B, draw.time_B)
        )
        missing = draw.positives.missing(who, what, most, when if draw.repeats else None)
        drawn[context, column] = draw.random.choice(missing)
    return drawn


def uniform_items(draw: Draw) -> Ints:
    """Draw uniformly from the known items that existed before, except the logged one, (B, wanted). The user's
    own positives are drawn, too."""
    item = draw.item_B[:, None]
    # If no other item than the logged one existed, all known items are candidates.
    choice = np.where(draw.existing_B > 1, draw.existing_B, draw.positives.known_items)[:, None]
    # Draw from one item fewer, and move those from the logged one on up by one.
    drawn = (draw.random.random((len(item), draw.wanted)) * (choice - 1)).astype(np.int64)
    return np.asarray(drawn + (drawn >= item))


def with_negatives(
    log: Log, target: Ints, time: Ints, existing: Ints, drawn: int, random: np.random.Generator
) -> tuple[Ints, NDArray[np.float32]]:
    """Each target with items that were candidates at its time behind it, half of them drawn uniformly and
    half from the last RECENT events, and the logarithm of how likely each of these items was to be drawn.

    existing: how many items were candidates at each time: those with a smaller code.
    """
    times, items = log.timeline.times, log.timeline.ids
    exists = np.maximum(existing, 1)
    half = drawn // 2
    uniform = (random.random((len(target), drawn - half)) * exists[:, None]).astype(np.int64)
    end = np.searchsorted(times, time)
    begin = np.maximum(end - RECENT, 0)
    place = begin[:, None] + (random.random((len(target), half)) * (end - begin)[:, None]).astype(np.int64)
    recent = np.where((end > begin)[:, None], items[np.minimum(place, len(items) - 1)], uniform[:, :1])
    candidates = np.concatenate([target[:, None], uniform, recent], axis=1)
    counts = np.empty(candidates.shape)
    for row, (first, last) in enumerate(zip(begin, end, strict=True)):
        among = np.sort(items[first:last]).astype(np.int64)
        counts[row] = np.searchsorted(among, candidates[row], "right") - np.searchsorted(
            among, candidates[row]
        )
    of_recent = counts / np.maximum(end - begin, 1)[:, None]
    fraction = half / drawn
    return candidates, np.log((1 - fraction) / exists[:, None] + fraction * of_recent).astype(np.float32)
