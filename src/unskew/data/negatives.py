"""Negatives: the items that a training context is compared with, drawn from what existed at its time."""

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.data.split import Split
from unskew.data.views import Ints
from unskew.errors import BadInput

ROUNDS = 16  # of redrawing negatives that turn out to be positives, before the user's complement is listed


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
