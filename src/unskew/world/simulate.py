"""A world with known truth: the probabilities of liking and of being shown can be asked for any (u, i, t).

Click, exposure, preference (the paper's c = r x o), at every visit of user u at time t and for every item i:

    c_uit = r_uit * o_uit
    o_uit ~ Bernoulli(P(o_uit = 1))   independent of each other and of r, given what happened strictly before
                                      t r_uit ~ Bernoulli(P(r_uit = 1))

Tastes turn at a constant pace, so they are known at any time:

    v(t) = cos(angle) a + sin(angle) b,   angle = drift * (t - START) / (steps * STEP)

    a, b    two orthogonal random vectors per user and per item, of length width^(1/4): <v_u, v_i> has
            variance 1

Preference never depends on exposure:

    P(r_uit = 1) = sigmoid(offset + scale * <v_u(t), v_i(t)> + g_i),   g_i ~ N(0, appeal^2)

    g_i     what everybody likes about the item; so a part of its popularity is deserved

Exposure depends on the past only, along the three arrows of the paper's causal graph:

    P(o_uit = 1) = sigmoid(k_t + bias * (popularity * log((1 + n_i) / (1 + n))
                                         + history * <h_u, v_i(t)> + audience * <a_i, v_u(t)>))

    n_i     clicks on the item strictly before t; n is their mean over the items
    h_u     decayed mean of the vectors (as of their click) of the items that u clicked strictly before t; 0
            without any
    a_i     decayed mean of the vectors (as of their click) of the users who clicked i strictly before t; 0
            without any
    k_t     set at each step so that a visit shows `shown` items in expectation: over all users, or SAMPLE
            random ones

Both sigmoids stop at +-LIMIT: every pair keeps a chance, as inverse propensities demand. In a decayed mean
all older clicks weigh `memory` times less whenever a step brings new ones. k_t between two steps is that of
the later one; beyond the last step it stays that of one step later, though tastes turn on. A share
`randomised` of the visits is served by another policy, P(o = 1) = shown / items; its clicks count like any
others.

Known exactly: both probabilities, and the probability under which each logged row was exposed (column
`propensity`). So for any f(u, i, t), with D the shown pairs of visits at fixed histories,

    E_o[sum over D of f / P(o = 1)] = sum of f over all items,   variance = sum of f^2 (1 / P(o = 1) - 1)

while the plain mean of f over D is biased towards what the policy likes to show, unless bias = 0.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from unskew.config import configured
from unskew.data.log import Log
from unskew.data.prepare import read
from unskew.data.views import Codes, Ints, Sequences, offsets_of
from unskew.errors import BadInput
from unskew.progress import progress

START = 1_700_000_000  # the first step, in seconds since 1970
STEP = 3600  # seconds from one step to the next
LIMIT = 15.0  # of a logit; a sigmoid beyond it is 0 or 1 in float32
SAMPLE = 256  # users whose expected number of exposures sets the intercept; up to so many, it is exact
CHUNK = 1 << 18  # pairs handled at once: they stay in the cache

Floats = NDArray[np.float32]
Chances = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """How large a simulated world is, how it likes, and how its exposure is skewed."""

    users: int = 1000
    """Number of users."""
    items: int = 500
    """Number of items."""
    steps: int = 100
    """Moments at which users visit, an hour apart. What happens in one of them is seen from the next one
    on."""
    visits: float = 0.1
    """Share of the users who visit in a step, each once."""
    shown: float = 10.0
    """Items exposed in a visit, in expectation."""
    width: int = 8
    """Dimensions of a taste."""
    bias: float = 1.0
    """Strength of the exposure bias: 0 shows every item with the same probability."""
    popularity: float = 1.0
    """Weight of the item's popularity in the bias."""
    history: float = 0.7
    """Weight of the user's history in the bias."""
    audience: float = 0.7
    """Weight of the item's audience in the bias."""
    memory: float = 0.9
    """Weight that old clicks keep in a history or an audience when new ones come; 1 forgets nothing."""
    drift: float = 1.0
    """Radians by which every taste turns from the first step to the last."""
    scale: float = 1.5
    """How much preference depends on taste."""
    offset: float = -2.0
    """Preference for an average item without any taste, as a logit."""
    appeal: float = 0.5
    """Spread of what everybody likes about an item."""
    randomised: float = 0.1
    """Share of the visits that are served uniformly at random; their rows have `exposed` 1."""
    seed: int = 0
    """Of everything random."""


@dataclass(frozen=True, eq=False)
class Tastes:
    """One turning vector per user, or per item."""

    start: Floats
    turn: Floats
    pace: float  # radians per second

    def at(self, entity: Ints | slice, time: Ints | int) -> Floats:
        angle = np.asarray(self.pace * (np.asarray(time) - START))[..., None]
        return np.asarray(np.cos(angle) * self.start[entity] + np.sin(angle) * self.turn[entity], np.float32)


@dataclass(frozen=True, eq=False)
class Trail:
    """What the clicks of each user, or of each item, added up to after every step that brought some."""

    changes: Sequences  # the ids are steps
    means: Floats
    counts: Ints

    def before(self, entity: Ints, time: Ints) -> tuple[Floats, Ints]:
        """Decayed mean and number of the clicks strictly before each time; zeros where there are none."""
        start, end = self.changes.before(entity, time)
        some = end > start
        mean, count = np.zeros((len(some), self.means.shape[1]), np.float32), np.zeros(len(some), np.int64)
        mean[some], count[some] = self.means[end[some] - 1], self.counts[end[some] - 1]
        return mean, count


@dataclass(frozen=True, eq=False)
class World:
    """A simulated log and the truth behind it. Users and items are 0, 1, 2, ...: the ids of the log, not its
    codes."""

    settings: Simulation
    log: Log
    user_tastes: Tastes
    item_tastes: Tastes
    appeal: Floats
    histories: Trail
    audiences: Trail
    clock: Sequences  # one entity, the world; its events are the steps
    clicks: Ints  # before each step, and at the end
    intercepts: Floats  # of each step, and of the time after the last

    def exposure(self, user: ArrayLike, item: ArrayLike, time: ArrayLike) -> Chances:
        """P(o = 1) under the biased policy, had the user visited at that time. Broadcasts."""
        return self._of_pairs(self._exposure, user, item, time)

    def preference(self, user: ArrayLike, item: ArrayLike, time: ArrayLike) -> Chances:
        """P(r = 1): would the user click the item, had it been shown? Broadcasts."""
        return self._of_pairs(self._preference, user, item, time)

    def redraws(
        self, user: ArrayLike, time: ArrayLike, *, count: int, seed: int
    ) -> Iterator[tuple[Mask, Mask]]:
        """What the same visits might have brought: `count` fresh draws of o and r, each of shape (visits,
        items).

        Visit v is of `user[v]` at `time[v]`, under the biased policy. Histories and audiences stay those of
        the log: nothing drawn here is remembered, so a mean over the draws is a mean given the past. To let
        only o vary, as in Theorem 1, keep the first r.
        """
        visitors, times = np.broadcast_arrays(np.atleast_1d(np.asarray(user)), np.asarray(time))
        visits = visitors[:, None], np.arange(self.settings.items), times[:, None]
        shown, liked = self.exposure(*visits), self.preference(*visits)
        random = np.random.default_rng([self.settings.seed, seed, 1])
        for _ in range(count):
            yield random.random(shown.shape) < shown, random.random(liked.shape) < liked

    def _exposure(self, user: Ints, item: Ints, time: Ints) -> Floats:
        _, now = self.clock.before(
            0, time
        )  # the number of steps past is that of the one whose policy is in force
        history, _ = self.histories.before(user, time)
        audience, clicks = self.audiences.before(item, time)
        mean = self.clicks[now] / self.settings.items
        pull = _popular(self.settings, clicks, mean) + self.intercepts[now]
        user_side = _user_side(history, self.user_tastes.at(user, time))
        item_side = _item_side(self.settings, self.item_tastes.at(item, time), audience)
        return _chance(pull + np.einsum("nd,nd->n", user_side, item_side))

    def _preference(self, user: Ints, item: Ints, time: Ints) -> Floats:
        alike = np.einsum("nd,nd->n", self.user_tastes.at(user, time), self.item_tastes.at(item, time))
        return _liking(self.settings, alike, self.appeal[item])

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
    """Let a world run and keep all it knows. The same settings give the same world, down to the last bit."""
    _check(settings)
    random = np.random.default_rng([settings.seed, 0])
    user_tastes, item_tastes = (_tastes(settings, size, random) for size in (settings.users, settings.items))
    appeal = random.normal(0, settings.appeal, settings.items).astype(np.float32)
    histories, audiences = (_Profiles(settings, size) for size in (settings.users, settings.items))
    rows: list[dict[str, NDArray[Any]]] = []
    clicks, intercepts = [0], [0.0]
    with progress("simulate", settings.steps) as job:
        for step in range(settings.steps + 1):
            # Each step has its own stream, so a world of fewer steps is the beginning of a longer one.
            random, time = np.random.default_rng([settings.seed, step + 1]), START + step * STEP
            user_now, item_now = user_tastes.at(slice(None), time), item_tastes.at(slice(None), time)
            pull = _popular(settings, audiences.counts, clicks[-1] / settings.items)
            user_side = _user_side(histories.means, user_now)
            item_side = _item_side(settings, item_now, audiences.means)
            asked = random.choice(settings.users, min(SAMPLE, settings.users), replace=False)
            intercepts.append(
                _intercept(pull + user_side[asked] @ item_side.T, settings.shown, intercepts[-1])
            )
            if step == settings.steps:
                break
            pull += np.float32(intercepts[-1])
            visitors = np.sort(random.choice(settings.users, _visitors(settings), replace=False))
            visit, item, chance, at_random = _expose(settings, user_side[visitors], item_side, pull, random)
            user = visitors[visit]
            alike = np.einsum("nd,nd->n", user_now[user], item_now[item])
            liked = _happens(_liking(settings, alike, appeal[item]), random)
            row = {
                "user": user,
                "item": item,
                "time": np.full(len(user), time),
                "label": liked.astype(np.int8),
            }
            visits = np.int64(step) * settings.users + user
            rows.append(
                row
                | {
                    "propensity": chance.astype(np.float64),
                    "exposed": at_random.astype(np.int8),
                    "visit": visits,
                }
            )
            histories.add(step, user[liked], item_now[item[liked]])
            audiences.add(step, item[liked], user_now[user[liked]])
            clicks.append(clicks[-1] + int(liked.sum()))
            job.advance()
    if not clicks[-1]:
        raise BadInput(
            "this world has not one click: expected some; try more steps, visits, shown, or a higher offset"
        )
    table = pa.table({name: np.concatenate([row[name] for row in rows]) for name in rows[0]})
    log = read(table)
    times = START + STEP * np.arange(settings.steps)
    return World(
        settings=settings,
        log=replace(log, metadata=log.metadata | {"source": "simulated world", "world": asdict(settings)}),
        user_tastes=user_tastes,
        item_tastes=item_tastes,
        appeal=appeal,
        histories=histories.trail(),
        audiences=audiences.trail(),
        clock=Sequences(np.arange(settings.steps, dtype=np.int32), times, np.array([0, settings.steps])),
        clicks=np.array(clicks),
        intercepts=np.array(intercepts[1:], np.float32),
    )


class _Profiles:
    """The decayed means of all users, or of all items, while the world runs."""

    def __init__(self, settings: Simulation, size: int) -> None:
        self.memory = np.float32(settings.memory)
        self.sums, self.weights = np.zeros((size, settings.width), np.float32), np.zeros(size, np.float32)
        self.means, self.counts = np.zeros_like(self.sums), np.zeros(size, np.int64)
        self.past: list[tuple[Codes, Ints, Floats, Ints]] = []

    def add(self, step: int, entity: Ints, vectors: Floats) -> None:
        changed = np.unique(entity)
        self.sums[changed] *= self.memory
        self.weights[changed] *= self.memory
        np.add.at(self.sums, entity, vectors)
        np.add.at(self.weights, entity, np.float32(1))
        np.add.at(self.counts, entity, 1)
        self.means[changed] = self.sums[changed] / self.weights[changed, None]
        self.past.append(
            (np.full(len(changed), step, np.int32), changed, self.means[changed], self.counts[changed])
        )

    def trail(self) -> Trail:
        when, entity, means, counts = (np.concatenate(column) for column in zip(*self.past, strict=True))
        order = np.argsort(entity, kind="stable")  # steps were added in order and stay so within an entity
        times = START + STEP * when[order].astype(np.int64)
        return Trail(
            Sequences(when[order], times, offsets_of(entity, len(self.counts))), means[order], counts[order]
        )


def _check(settings: Simulation) -> None:
    least = {"users": 2, "items": 2, "steps": 1, "width": 2, "bias": 0, "drift": 0, "appeal": 0, "seed": 0}
    for name, bound in least.items():
        if not bound <= getattr(settings, name) < np.inf:
            raise BadInput(f"{name} {getattr(settings, name)}: expected at least {bound}")
    for name in ("popularity", "history", "audience", "scale", "offset"):
        if not np.isfinite(getattr(settings, name)):
            raise BadInput(f"{name} {getattr(settings, name)}: expected a finite number")
    if not 1e-6 <= settings.shown / settings.items < 1:
        raise BadInput(
            f"shown {settings.shown}: expected at least items / 10^6 and fewer than items, {settings.items}"
        )
    if not 0 < settings.visits <= 1:
        raise BadInput(f"visits {settings.visits}: expected a share above 0 and at most 1")
    for name in ("memory", "randomised"):
        if not 0 <= getattr(settings, name) <= 1:
            raise BadInput(f"{name} {getattr(settings, name)}: expected from 0 to 1")


def _tastes(settings: Simulation, size: int, random: np.random.Generator) -> Tastes:
    start, turn = (random.normal(size=(size, settings.width)) for _ in range(2))
    start /= np.linalg.norm(start, axis=1, keepdims=True)
    turn -= (turn * start).sum(1, keepdims=True) * start
    turn /= np.linalg.norm(turn, axis=1, keepdims=True)
    length = settings.width**0.25
    pace = settings.drift / (settings.steps * STEP)
    return Tastes((length * start).astype(np.float32), (length * turn).astype(np.float32), pace)


def _visitors(settings: Simulation) -> int:
    return max(1, round(settings.visits * settings.users))


def _popular(settings: Simulation, clicks: Ints, mean: float | Chances) -> Floats:
    return np.asarray(settings.bias * settings.popularity * (np.log1p(clicks) - np.log1p(mean)), np.float32)


def _user_side(history: Floats, taste: Floats) -> Floats:
    return np.concatenate([history, taste], axis=1)


def _item_side(settings: Simulation, taste: Floats, audience: Floats) -> Floats:
    """Its product with the user's side is bias * (history * <h_u, v_i> + audience * <a_i, v_u>)."""
    weights = np.float32(settings.bias * settings.history), np.float32(settings.bias * settings.audience)
    return np.concatenate([weights[0] * taste, weights[1] * audience], axis=1)


def _liking(settings: Simulation, alike: Floats, appeal: Floats) -> Floats:
    return _chance(np.float32(settings.offset) + np.float32(settings.scale) * alike + appeal)


def _chance(logit: Floats) -> Floats:
    chance = np.clip(logit, -LIMIT, LIMIT)
    np.negative(chance, out=chance)
    np.exp(chance, out=chance)
    chance += 1
    return np.reciprocal(chance, out=chance)


def _happens(chance: Floats, random: np.random.Generator) -> Mask:
    """A draw per chance. A uniform float32 has steps of 2^-24, too coarse for rare pairs; whole numbers have
    2^-32."""
    return random.integers(0, 1 << 32, chance.shape, np.uint32) < (chance * np.float32(1 << 32)).astype(
        np.uint32
    )


def _intercept(pull: Floats, shown: float, guess: float) -> float:
    """The k with mean over rows of sum_i sigmoid(k + pull_i) = shown.

    Newton on the logarithm, nearly a line where exposure is rare; a step that would leave the bracket halves
    it.
    """
    share = shown / pull.shape[1]
    even = float(np.log(share / (1 - share)))
    low, high = even - float(pull.max()), even - float(pull.min())
    for _ in range(60):
        guess = guess if low <= guess <= high else (low + high) / 2
        chance = _chance(pull + np.float32(guess))
        mean = float(chance.mean(dtype=np.float64))
        if abs(mean / share - 1) < 1e-6:
            break
        low, high = (guess, high) if mean < share else (low, guess)
        slope = 1 - float(np.vdot(chance, chance)) / chance.size / mean
        guess -= float(np.log(mean / share)) / max(slope, 1e-3)
    return float(np.float32(guess))


def _expose(
    settings: Simulation, user_side: Floats, item_side: Floats, pull: Floats, random: np.random.Generator
) -> tuple[Ints, Ints, Floats, Mask]:
    """Which visit was shown which item, with which probability, and whether by the uniform policy."""
    uniform = random.random(len(user_side), np.float32) < settings.randomised
    found = []
    rows = max(1, CHUNK // settings.items)
    for first in range(0, len(user_side), rows):
        part = slice(first, first + rows)
        chance = _chance(user_side[part] @ item_side.T + pull)
        chance[uniform[part]] = settings.shown / settings.items
        visit, item = np.nonzero(_happens(chance, random))
        found.append((visit + first, item, chance[visit, item]))
    visit, item, shown = (np.concatenate(column) for column in zip(*found, strict=True))
    return visit, item, shown, uniform[visit]
