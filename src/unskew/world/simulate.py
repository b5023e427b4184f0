"""A simulated world with known ground truth: the probabilities of liking and of being shown can be asked for
any user, item and time. The equations are in `equations.py`.

Both probabilities are known exactly, and so is the probability with which each logged row was exposed (the
column `propensity`). So for any f(u, i, t), with D the shown pairs of impressions at fixed histories,

    E_o[sum over D of f / P(o = 1)] = sum of f over all items,   variance = sum of f^2 (1 / P(o = 1) - 1)

while the plain mean of f over D is biased towards what the policy likes to show, unless bias = 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from unskew.core.config import configured
from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.data.log.arrays import distinct
from unskew.data.log.log import Log
from unskew.data.log.views import Codes, Ints, Sequences, offsets_of
from unskew.data.reading.prepare import read
from unskew.world import equations, exact
from unskew.world.equations import START, STEP, Chances, Floats, Mask, Simulation, Tastes

CHUNK = 1 << 18  # pairs that are handled at once, so that they stay in the cache


@dataclass(frozen=True, eq=False)
class Trail:
    """The decayed means and the numbers of the clicks of all users, or of all items, after every step in
    which they changed."""

    changes: Sequences  # the steps in which each user (item) had clicks
    means: Floats  # after each of these steps
    counts: Chances
    recency: float

    def before(self, entity: Ints, time: Ints, step: Ints) -> tuple[Floats, Chances]:
        """The decayed mean of the clicks strictly before each time, and their number as it counts at a step;
        zeros if there are none."""
        start, end = self.changes.before(entity, time)
        some = end > start
        mean, count = np.zeros((len(some), self.means.shape[1]), np.float32), np.zeros(len(some))
        newest = end[some] - 1
        mean[some] = self.means[newest]
        age = step[some] - 1 - self.changes.ids[newest]
        count[some] = self.counts[newest] * exact.power(self.recency, age)
        return mean, count


@dataclass(frozen=True, eq=False)
class World:
    """A simulated log and the ground truth behind it. Users and items are numbered 0, 1, 2, ...; these are
    the ids of the log, not its codes."""

    settings: Simulation
    log: Log
    user_tastes: Tastes
    item_tastes: Tastes
    appeal: Floats  # g_i, the part that stays
    phase: Floats  # f_i
    birth: Ints  # the step at which each item is born
    histories: Trail
    audiences: Trail
    clock: Sequences  # a single entity whose events are the steps
    clicks: Chances  # the number of all clicks before each step as it counts then, and at the end
    intercepts: Floats  # k_t of each step, and of the time after the last one

    def exposure(self, user: ArrayLike, item: ArrayLike, time: ArrayLike) -> Chances:
        """P(o = 1): the probability that the biased policy shows the item, if the user comes at that time.
        The arguments are broadcast."""
        return self._of_pairs(self._exposure, user, item, time)

    def preference(self, user: ArrayLike, item: ArrayLike, time: ArrayLike) -> Chances:
        """P(r = 1): the probability that the user clicks the item, if it is shown. The arguments are
        broadcast."""
        return self._of_pairs(self._preference, user, item, time)

    def exists(self, item: ArrayLike, time: ArrayLike) -> Mask:
        """Whether the item was born by then. The arguments are broadcast."""
        items, times = np.broadcast_arrays(np.asarray(item, np.int64), np.asarray(time, np.int64))
        _, now = self.clock.before(0, times.ravel())
        return np.asarray(self.birth[items] <= now.reshape(times.shape))

    def redraws(
        self, user: ArrayLike, time: ArrayLike, *, count: int, seed: int
    ) -> Iterator[tuple[Mask, Mask]]:
        """Draw o and r of some impressions again, `count` times; each draw is a pair of arrays (impressions,
        items).

        Impression v is by `user[v]` at `time[v]`, under the biased policy. Histories and audiences stay those
        of the log, because nothing that is drawn here is remembered. So a mean over the draws is a mean given
        the past. To let only o vary, as in Theorem 1, use the first r for all draws.
        """
        visitors, times = np.broadcast_arrays(np.atleast_1d(np.asarray(user)), np.asarray(time))
        impressions = visitors[:, None], np.arange(self.settings.items), times[:, None]
        shown, liked = self.exposure(*impressions), self.preference(*impressions)
        random = np.random.default_rng([self.settings.seed, seed, 1])
        for _ in range(count):
            yield random.random(shown.shape) < shown, random.random(liked.shape) < liked

    def _exposure(self, user: Ints, item: Ints, time: Ints) -> Floats:
        _, now = self.clock.before(0, time)  # the number of steps before is the number of the current one
        history, _ = self.histories.before(user, time, now)
        audience, clicks = self.audiences.before(item, time, now)
        mean = self.clicks[now] / np.searchsorted(self.birth, now, "right")
        pull = equations.popularity_pull(self.settings, clicks, mean)
        pull += equations.novelty_pull(self.settings, self.birth[item], now)
        pull += self.intercepts[now]
        user_side = equations.side_of_user(history, self.user_tastes.at(user, time))
        item_side = equations.side_of_item(self.settings, self.item_tastes.at(item, time), audience)
        chance = equations.sigmoid(pull + exact.product_of_each(user_side, item_side))
        return np.where(self.birth[item] <= now, chance, np.float32(0))

    def _preference(self, user: Ints, item: Ints, time: Ints) -> Floats:
        affinity = exact.product_of_each(self.user_tastes.at(user, time), self.item_tastes.at(item, time))
        appeal = equations.appeal_at(self.settings, self.appeal[item], self.phase[item], time)
        return equations.liking(self.settings, affinity, appeal)

    def _of_pairs(self, chance: Callable[[Ints, Ints, Ints], Floats], *given: ArrayLike) -> Chances:
        user, item, time = np.broadcast_arrays(*(np.asarray(values, np.int64) for values in given))
        for name, ids, size in (("user", user, self.settings.users), ("item", item, self.settings.items)):
            if ids.size and not (ids.min() >= 0 and ids.max() < size):
                raise BadInput(f"{name} outside this world: expected ids from 0 to {size - 1}")
        users, items, times = user.ravel(), item.ravel(), time.ravel()
        found = np.empty(len(users))
        for first in range(0, len(users), CHUNK):
            part = slice(first, first + CHUNK)
            found[part] = chance(users[part], items[part], times[part])
        return found.reshape(user.shape)


@configured(Simulation)
def simulate(settings: Simulation) -> World:
    """Simulate a world. The same settings give the same world, to the last bit, on every machine.

    Returns
    -------
    World
        The log of the world in `log`, and its true probabilities of exposure and preference.

    Raises
    ------
    BadInput
        If the settings make no world, or one without a click.

    Examples
    --------
    >>> import unskew
    >>> world = unskew.simulate(users=50, items=40, steps=20)
    >>> world.preference([0, 1], 7, world.log.now).shape
    (2,)

    The settings are keywords:
    """
    equations.check_settings(settings)
    random = np.random.default_rng([settings.seed, 0])
    user_tastes, item_tastes = (
        equations.random_tastes(settings, size, random) for size in (settings.users, settings.items)
    )
    appeal = (settings.appeal * exact.normal(random, settings.items)).astype(np.float32)
    phase, birth = equations.phases(settings), equations.births(settings)
    histories, audiences = (_Profiles(settings, size) for size in (settings.users, settings.items))
    coming = max(1, round(settings.impressions * settings.users))  # users in each step
    rows: list[dict[str, NDArray[Any]]] = []
    clicks, intercepts = [0.0], [0.0]
    with progress("simulate", settings.steps) as job:
        for step in range(settings.steps + 1):
            # Each step has its own random numbers, so a world with fewer steps is the beginning of a longer
            # one.
            random, time = np.random.default_rng([settings.seed, step + 1]), START + step * STEP
            user_now, item_now = user_tastes.at(slice(None), time), item_tastes.at(slice(None), time)
            existing = int(np.searchsorted(birth, step, "right"))  # the items that were born by now
            pull = equations.popularity_pull(settings, audiences.counts_at(step), clicks[-1] / existing)
            pull += equations.novelty_pull(settings, birth, step)
            user_side = equations.side_of_user(histories.means, user_now)
            item_side = equations.side_of_item(settings, item_now, audiences.means)
            asked = random.choice(settings.users, min(equations.SAMPLE, settings.users), replace=False)
            asked_pull = (pull + exact.products(user_side[asked], item_side))[:, :existing]
            intercepts.append(equations.intercept_for(asked_pull, settings.shown, intercepts[-1]))
            if step == settings.steps:
                break
            pull += np.float32(intercepts[-1])
            visitors = np.sort(random.choice(settings.users, coming, replace=False))
            impression, item, chance, at_random = _expose(
                settings, user_side[visitors], item_side, pull, existing, random
            )
            user = visitors[impression]
            affinity = exact.product_of_each(user_now[user], item_now[item])
            wanted = equations.appeal_at(settings, appeal[item], phase[item], time)
            liked = equations.draw(equations.liking(settings, affinity, wanted), random)
            rows.append(
                {
                    "user": user,
                    "item": item,
                    "time": np.full(len(user), time),
                    "label": liked.astype(np.int8),
                    "propensity": chance.astype(np.float64),
                    "exposed": at_random.astype(np.int8),
                    "impression_id": np.int64(step) * settings.users + user,
                }
            )
            histories.add(step, user[liked], item_now[item[liked]])
            audiences.add(step, item[liked], user_now[user[liked]])
            clicks.append(clicks[-1] * settings.recency + int(liked.sum()))
            job.advance()
    if not any(row["label"].any() for row in rows):
        raise BadInput(
            "this world has not one click: expected some; try more steps, impressions, shown, or a higher "
            "offset"
        )
    table = pa.table({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    log = read(table)
    times = START + STEP * np.arange(settings.steps)
    return World(
        settings=settings,
        log=replace(log, metadata=replace(log.metadata, source="simulated world", world=asdict(settings))),
        user_tastes=user_tastes,
        item_tastes=item_tastes,
        appeal=appeal,
        phase=phase,
        birth=birth,
        histories=histories.trail(),
        audiences=audiences.trail(),
        clock=Sequences(np.arange(settings.steps, dtype=np.int32), times, np.array([0, settings.steps])),
        clicks=np.array(clicks),
        intercepts=np.array(intercepts[1:], np.float32),
    )


class _Profiles:
    """The decayed means of all users, or of all items, while the world is simulated."""

    def __init__(self, settings: Simulation, size: int) -> None:
        self.memory, self.recency = np.float32(settings.memory), settings.recency
        self.sums, self.weights = np.zeros((size, settings.width), np.float32), np.zeros(size, np.float32)
        self.means = np.zeros_like(self.sums)
        # The number of clicks as it counted at the step after the newest one.
        self.counts, self.newest = np.zeros(size), np.full(size, -1)
        self.past: list[tuple[Codes, Ints, Floats, Chances]] = []

    def counts_at(self, step: int) -> Chances:
        """The number of clicks before a step, as it counts then."""
        return np.asarray(self.counts * exact.power(self.recency, step - 1 - self.newest))

    def add(self, step: int, entity: Ints, vectors: Floats) -> None:
        """Add the clicks of a step: whose they are, and the vectors of what was clicked."""
        changed = distinct(entity)
        self.sums[changed] *= self.memory
        self.weights[changed] *= self.memory
        np.add.at(self.sums, entity, vectors)
        np.add.at(self.weights, entity, np.float32(1))
        self.counts[changed] *= exact.power(self.recency, step - self.newest[changed])
        self.newest[changed] = step
        np.add.at(self.counts, entity, 1)
        self.means[changed] = exact.on_grid(self.sums[changed] / self.weights[changed, None])
        self.past.append(
            (np.full(len(changed), step, np.int32), changed, self.means[changed], self.counts[changed])
        )

    def trail(self) -> Trail:
        """The means and the numbers after every step."""
        when, entity, means, counts = (np.concatenate(column) for column in zip(*self.past, strict=True))
        order = np.argsort(entity, kind="stable")  # the steps of an entity stay in their order
        times = START + STEP * when[order].astype(np.int64)
        changes = Sequences(when[order], times, offsets_of(entity, len(self.counts)))
        return Trail(changes, means[order], counts[order], self.recency)


def _expose(
    settings: Simulation,
    user_side: Floats,
    item_side: Floats,
    pull: Floats,
    existing: int,
    random: np.random.Generator,
) -> tuple[Ints, Ints, Floats, Mask]:
    """Draw what is shown: for each shown pair the impression, the item, the probability, and whether the
    impression was served at random. Only the first `existing` items can be shown."""
    uniform = random.random(len(user_side), np.float32) < settings.randomised
    found = []
    rows = max(1, CHUNK // settings.items)
    for first in range(0, len(user_side), rows):
        part = slice(first, first + rows)
        chance = equations.sigmoid(exact.products(user_side[part], item_side) + pull)
        chance[uniform[part]] = settings.shown / existing
        chance[:, existing:] = 0
        impression, item = np.nonzero(equations.draw(chance, random))
        found.append((impression + first, item, chance[impression, item]))
    impression, item, shown = (np.concatenate(column) for column in zip(*found, strict=True))
    return impression, item, shown, uniform[impression]
