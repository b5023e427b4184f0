"""The equations of the simulated world: who likes what, and what is shown to whom.

At every impression of user u at time t and for every item i there is a click c, an exposure o and a
preference r, with c = r x o as in the paper:

    c_uit = r_uit * o_uit
    o_uit ~ Bernoulli(P(o_uit = 1))
    r_uit ~ Bernoulli(P(r_uit = 1))

All of these draws are independent of each other, given what happened strictly before t. Tastes turn at a
constant pace, so they are known at any time:

    v(t) = cos(angle) a + sin(angle) b,   angle = drift * (t - START) / (steps * STEP)

    a, b    two orthogonal random vectors per user and per item, of length width^(1/4), so that <v_u, v_i> has
            variance 1

Preference never depends on exposure:

    P(r_uit = 1) = sigmoid(offset + scale * <v_u(t), v_i(t)> + g_i(t))

    g_i(t) = g_i + trend * sqrt(2) * sin(2 pi ((t - START) / (season * STEP) + f_i))

    g_i(t)  what everybody likes about the item, so a part of its popularity is deserved. It has a part that
            stays, g_i ~ N(0, appeal^2), and a part that rises and falls, with a phase f_i ~ U(0, 1) of its
            own; at any time the variance of that part over the items is trend^2

Exposure depends on the past only, along the three arrows of the paper's causal graph:

    P(o_uit = 1) = sigmoid(k_t + bias * (popularity * log((1 + n_i) / (1 + n))
                                         + history * <h_u, v_i(t)> + audience * <a_i, v_u(t)>
                                         + novelty * exp(-age_i / young)))

    n_i     the number of clicks on the item strictly before t, each multiplied by `recency` for every step
            that has passed since the next one; n is the mean over the items
    h_u     the decayed mean of the vectors of the items that u clicked strictly before t, each as it was at
            the time of its click; 0 if there are none
    a_i     the decayed mean of the vectors of the users who clicked i strictly before t, in the same way
    age_i   the number of steps since the item was born; the last term is 0 for items that are as old as the
            world
    k_t     set at each step so that an impression shows `shown` items in expectation; the expectation is over
            all users, or over SAMPLE random ones

A fraction `born` of the items, those with the largest ids, is born later, `births` of them at each step: the
k-th is born at step ceil(k / births). Before that P(o = 1) = 0, and means over the items leave it out; what
would be born after the last step never appears.

Both sigmoids stop at +-LIMIT, so that every pair of items that were born can be shown, as inverse
propensities need it. In a decayed mean, all older clicks are multiplied by `memory` whenever a step brings
new ones. Between two steps, k_t, the clicks and the ages are those of the later one; after the last step,
they stay those of one step later, while tastes and appeal go on turning. A fraction `randomised` of the
impressions is served by another policy, P(o = 1) = shown / the number of items that were born. Clicks in such
impressions count like any others.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from unskew.core.config import AtLeast0, AtLeast1, NotNegative, Positive, Probability, Range, Share, check
from unskew.core.errors import BadInput
from unskew.data.log.views import Ints
from unskew.world import exact

START = 1_700_000_000  # the time of the first step, in seconds since 1970
STEP = 3600  # seconds from one step to the next
LIMIT = 15.0  # the largest logit; beyond it, a sigmoid is 0 or 1 in float32
SAMPLE = 256  # the number of users on whom the intercept is set; with fewer users, it is exact

Floats = NDArray[np.float32]
Chances = NDArray[np.float64]
Mask = NDArray[np.bool_]
AtLeast2 = Annotated[int, Range(least=2)]


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """How large a simulated world is, what its users like, and how its exposure is biased."""

    users: AtLeast2 = 1000
    """The number of users."""
    items: AtLeast2 = 500
    """The number of items."""
    steps: AtLeast1 = 100
    """The number of steps, an hour apart, at which users come. What happens in a step is known from the
    next one on."""
    impressions: Probability = 0.1
    """The fraction of the users who come in a step, each of them once: an impression each."""
    shown: float = 10.0
    """The expected number of items that are shown in an impression."""
    width: AtLeast2 = 8
    """The number of dimensions of a taste vector."""
    bias: NotNegative = 1.0
    """The strength of the exposure bias: with 0, every item is shown with the same probability."""
    popularity: float = 1.0
    """The weight of the item's popularity in the exposure bias."""
    history: float = 0.7
    """The weight of the user's history in the exposure bias."""
    audience: float = 0.7
    """The weight of the item's audience in the exposure bias."""
    memory: Share = 0.9
    """The factor by which old clicks of a history or an audience are multiplied when new ones come; with 1,
    nothing is forgotten."""
    drift: NotNegative = 1.0
    """The angle, in radians, by which every taste turns from the first step to the last."""
    scale: float = 1.5
    """How much preference depends on taste."""
    offset: float = -2.0
    """The preference for an average item, regardless of taste, as a logit."""
    appeal: NotNegative = 0.5
    """The standard deviation of what everybody likes about an item."""
    trend: NotNegative = 0.0
    """The standard deviation of the part of an item's appeal that rises and falls in time; with 0, appeal
    never changes."""
    season: Positive = 100.0
    """The number of steps from one height of an item's appeal to the next."""
    recency: Share = 1.0
    """The factor by which the clicks that an item's popularity counts are multiplied at each step; with 1,
    popularity is the number of all clicks so far."""
    born: float = 0.0
    """The fraction of the items that are not there from the start but are born later, in the order of their
    ids."""
    births: Positive = 1.0
    """The number of items that are born at each step, until there are no more."""
    novelty: float = 0.0
    """The weight of newness in the exposure bias. It is 1 for an item that has just been born and fades with
    its age; items that are there from the start have none."""
    young: Positive = 10.0
    """The number of steps in which the newness of an item fades to 1/e."""
    randomised: Share = 0.1
    """The fraction of the impressions that are served uniformly at random; their rows have `exposed` 1."""
    seed: AtLeast0 = 0
    """The seed of all random numbers."""


@dataclass(frozen=True, eq=False)
class Tastes:
    """The tastes of all users, or of all items: vectors that turn as time goes by."""

    start: Floats
    turn: Floats
    pace: float  # radians per second

    def at(self, entity: Ints | slice, time: Ints | int) -> Floats:
        """The vectors of some users (items) at a time, or each at its own time."""
        turns = np.asarray(self.pace * (np.asarray(time) - START) / (2 * np.pi))[..., None]
        sine, cosine = exact.sine_and_cosine(turns)
        return exact.on_grid(cosine * self.start[entity] + sine * self.turn[entity])


def check_settings(settings: Simulation) -> None:
    """Refuse settings that make no world."""
    check(settings)
    if not 1e-6 <= settings.shown / settings.items < 1:
        raise BadInput(
            f"shown {settings.shown}: expected at least items / 10^6 and fewer than items, {settings.items}",
            field="shown",
        )
    if not 0 <= settings.born < 1:
        raise BadInput(f"born {settings.born}: expected a fraction from 0 to below 1", field="born")
    if not settings.shown < np.count_nonzero(births(settings) == 0):
        raise BadInput(
            f"born {settings.born}: expected more than shown, {settings.shown}, items at the start",
            field="born",
        )


def random_tastes(settings: Simulation, size: int, random: np.random.Generator) -> Tastes:
    """Draw a and b for so many users or items."""
    start, turn = (exact.normal(random, (size, settings.width)) for _ in range(2))
    start /= np.sqrt(exact.row_sums(start * start))
    turn -= exact.row_sums(turn * start) * start
    turn /= np.sqrt(exact.row_sums(turn * turn))
    length = math.sqrt(math.sqrt(settings.width))
    pace = settings.drift / (settings.steps * STEP)
    return Tastes((length * start).astype(np.float32), (length * turn).astype(np.float32), pace)


def births(settings: Simulation) -> Ints:
    """The step at which each item is born; 0 for those that are there from the start."""
    later = round(settings.born * settings.items)
    steps = np.ceil(np.arange(1, later + 1) / settings.births).astype(np.int64)
    return np.concatenate([np.zeros(settings.items - later, np.int64), steps])


def phases(settings: Simulation) -> Floats:
    """Draw f_i, from random numbers of its own, so that nothing else in a world depends on it."""
    return np.random.default_rng([settings.seed, 7, 7, 7]).random(settings.items, np.float32)


def appeal_at(settings: Simulation, lasting: Floats, phase: Floats, time: Ints | int) -> Floats:
    """g_i(t) of some items at a time, or each at its own time, with lasting = g_i and phase = f_i."""
    turns = (np.asarray(time) - START) / (settings.season * STEP) + phase
    wave = settings.trend * math.sqrt(2) * exact.sine_and_cosine(turns)[0]
    return lasting + np.asarray(wave, np.float32)


def popularity_pull(settings: Simulation, clicks: Chances, mean: float | Chances) -> Floats:
    """bias * popularity * log((1 + n_i) / (1 + n)), with n_i the clicks of an item and n their mean."""
    difference = exact.log(1 + np.asarray(clicks)) - exact.log(1 + np.asarray(mean))
    return np.asarray(settings.bias * settings.popularity * difference, np.float32)


def novelty_pull(settings: Simulation, birth: Ints, step: Ints | int) -> Floats:
    """bias * novelty * exp(-age / young) of items that were born by then; 0 for those that always were."""
    age = np.maximum(step - birth, 0)
    pull = np.float32(settings.bias * settings.novelty) * exact.exp(-age / settings.young)
    return np.where(birth > 0, pull, np.float32(0))


def side_of_user(history: Floats, taste: Floats) -> Floats:
    """The user's part of the product that `side_of_item` describes."""
    return np.concatenate([history, taste], axis=1)


def side_of_item(settings: Simulation, taste: Floats, audience: Floats) -> Floats:
    """The item's part: its product with the user's is bias * (history * <h_u, v_i> + audience * <a_i,
    v_u>)."""
    weights = np.float32(settings.bias * settings.history), np.float32(settings.bias * settings.audience)
    return exact.on_grid(np.concatenate([weights[0] * taste, weights[1] * audience], axis=1))


def liking(settings: Simulation, affinity: Floats, appeal: Floats) -> Floats:
    """P(r = 1), with affinity = <v_u, v_i> and appeal = g_i."""
    return sigmoid(np.float32(settings.offset) + np.float32(settings.scale) * affinity + appeal)


def sigmoid(logit: Floats) -> Floats:
    """The sigmoid of a logit that is cut off at +-LIMIT."""
    chance = exact.exp(-np.clip(logit, -LIMIT, LIMIT))
    chance += 1
    return np.divide(np.float32(1), chance, out=chance)


def draw(chance: Floats, random: np.random.Generator) -> Mask:
    """One draw of true or false for each probability. A uniform float32 has steps of 2^-24, which is too
    coarse for rare pairs; the whole numbers used here have steps of 2^-32."""
    thresholds = (chance * np.float32(1 << 32)).astype(np.uint32)
    return random.integers(0, 1 << 32, chance.shape, np.uint32) < thresholds


def intercept_for(pull: Floats, shown: float, guess: float) -> float:
    """The k for which sum_i sigmoid(k + pull_i), averaged over the rows, is `shown`.

    Newton's method on the logarithm, which is nearly a straight line if exposure is rare. A step that would
    leave the known bounds of k is replaced by their middle. `guess` is where the search begins.
    """
    fraction = shown / pull.shape[1]
    even = float(exact.log(fraction / (1 - fraction)))
    low, high = even - float(pull.max()), even - float(pull.min())
    for _ in range(60):
        guess = guess if low <= guess <= high else (low + high) / 2
        chance = sigmoid(pull + np.float32(guess))
        # Sums of whole numbers are exact, in whatever order a machine adds.
        mean = int((chance * np.float32(1 << 32)).astype(np.int64).sum()) / (1 << 32) / chance.size
        if abs(mean / fraction - 1) < 1e-6:
            break
        low, high = (guess, high) if mean < fraction else (low, guess)
        coarse = (chance * np.float32(1 << 16)).astype(np.int64)
        slope = 1 - int((coarse * coarse).sum()) / (1 << 32) / chance.size / mean
        guess -= float(exact.log(mean / fraction)) / max(slope, 1e-3)
    return float(np.float32(guess))
