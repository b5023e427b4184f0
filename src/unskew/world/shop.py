"""A simulated shop: views, carts and purchases, what is bought again, a promotion, and bots.

On each day a user comes with a probability of its own and looks at some items. An item is chosen with a
probability in proportion to exp(taste + appeal + promotion), where taste is <v_u, v_i> as in `equations.py`.
It is put into the cart with probability sigmoid(CART + taste), minutes later, and bought with probability
BOUGHT, minutes after that. So exposure follows appeal and the promotion, and what is bought follows taste.

Items of a category that is used up are bought again: after each purchase with probability AGAIN, after the
item's interval, give or take a fifth. Half of these purchases are orders without a cart. On the days of the
promotion, some items are PROMOTED more appealing and cost a fifth less.

The last users are no customers. Bots look at one item after the other at a constant pace; test accounts buy
the same few items, many times a day.

Everything is drawn with `exact.py`, so the same settings give the same rows on every machine.
"""

from dataclasses import asdict, dataclass
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.core.config import AtLeast0, AtLeast1, Range, check, configured
from unskew.data.log.views import Ints
from unskew.world import exact
from unskew.world.equations import START

SHOP = "shop"  # the kind of simulation, on the command line
DAY, MINUTE = 86400, 60
WIDTH = 4  # of a vector of tastes
CART, BOUGHT, AGAIN = -1.5, 0.45, 0.6
PROMOTED = 2.0
PROMOTION_ITEMS, PROMOTION_DAYS = 0.05, 0.1  # fractions; it begins after PROMOTION_AT of the days
PROMOTION_AT = 0.6
USED_UP = 3  # of CATEGORIES categories, those whose items are bought again
CATEGORIES = 8
PACE = 30  # seconds between two views of a bot
BOT_VIEWS, TEST_PURCHASES = 60, 12  # on a day
VIEWS = 6  # a session has up to so many
FINE = 2.0**16  # weights are whole numbers of so many parts, whose sums are exact

Table = dict[str, list[Ints]]
TYPES = np.array(["view", "cart", "purchase"])


@dataclass(frozen=True, kw_only=True)
class Shop:
    """How large a simulated shop is."""

    users: Annotated[int, Range(least=2)] = 1000
    """The number of users, bots and test accounts included."""
    items: Annotated[int, Range(least=2 * CATEGORIES)] = 500
    """The number of items."""
    days: AtLeast1 = 100
    """The number of days."""
    bots: AtLeast0 = 3
    """The number of bots; there are as many test accounts."""
    seed: AtLeast0 = 0
    """Seed of everything that is drawn."""


@dataclass(frozen=True, eq=False)
class ShopWorld:
    """What a simulated shop logged, and what is true of it.

    Attributes
    ----------
    events
        The columns user_id, item_id, timestamp (seconds), event_type, category and price, in order of time.
    bots, test_accounts
        The ids of users who are no customers.
    promoted
        The ids of the items of the promotion.
    promotion
        The times at which it begins and ends.
    intervals
        The days after which an item is bought again, by its id, for items that are.
    """

    settings: Shop
    events: pa.Table
    bots: tuple[str, ...]
    test_accounts: tuple[str, ...]
    promoted: tuple[str, ...]
    promotion: tuple[int, int]
    intervals: dict[str, int]

    def truth(self) -> dict[str, object]:
        """Everything but the events, ready for JSON."""
        names = "bots", "test_accounts", "promoted", "promotion", "intervals"
        return {"settings": asdict(self.settings)} | {name: getattr(self, name) for name in names}


class _Items(NamedTuple):
    category: Ints
    price: Ints  # in cents
    interval: Ints  # days; 0 for what is not bought again
    appeal: exact.Doubles
    promoted: NDArray[np.bool_]


@configured(Shop)
def simulate_shop(settings: Shop) -> ShopWorld:
    """Simulate a shop.

    Returns
    -------
    ShopWorld
        Its events, and the ground truth.
    """
    check(settings)
    random = np.random.default_rng([settings.seed, 101])
    customers = max(settings.users - 2 * settings.bots, 1)
    items = _items(settings, random)
    tastes = exact.on_grid(exact.normal(random, (customers, WIDTH)) / 2)
    vectors = exact.on_grid(exact.normal(random, (settings.items, WIDTH)))
    rates = 0.02 + 0.3 * random.random(customers)
    begin = int(PROMOTION_AT * settings.days)
    end = begin + max(int(PROMOTION_DAYS * settings.days), 1)
    rows: Table = {name: [] for name in ("user", "item", "time", "type")}
    due: list[tuple[Ints, Ints]] = [(np.zeros(0, np.int64),) * 2 for _ in range(settings.days)]
    for day in range(settings.days):
        is_on = begin <= day < end
        weights = exact.exp(items.appeal + PROMOTED * items.promoted * is_on)
        comes = np.flatnonzero(random.random(customers) < rates)
        views = random.integers(1, VIEWS + 1, len(comes))
        user = np.repeat(comes, views)
        item = _chosen(user, tastes, vectors, weights, random)
        again_user, again_item = due[day]
        user, item = np.append(user, again_user), np.append(item, again_item)
        is_again = np.arange(len(user)) >= len(user) - len(again_user)
        time = START + day * DAY + random.integers(0, DAY - 3 * 60 * MINUTE, len(user))
        taste = exact.product_of_each(tastes[user], vectors[item])
        chance = np.where(is_again, 0.5, 1 / (1 + exact.exp(-(CART + taste))))
        in_cart = random.random(len(user)) < chance
        bought = is_again | (in_cart & (random.random(len(user)) < BOUGHT))
        later = random.integers(MINUTE, 60 * MINUTE, (2, len(user)))
        _add(rows, user[~is_again], item[~is_again], time[~is_again], 0)
        _add(rows, user[in_cart], item[in_cart], (time + later[0])[in_cart], 1)
        _add(rows, user[bought], item[bought], (time + later[0] + later[1])[bought], 2)
        _plan(due, day, user[bought], item[bought], items.interval, random)
        _robots(rows, settings, customers, day, random)
    user, item, time, kind = (np.concatenate(rows[name]) for name in ("user", "item", "time", "type"))
    order = np.lexsort((kind, item, user, time))
    user, item, time, kind = user[order], item[order], time[order], kind[order]
    reduced = items.promoted[item] & (time >= START + begin * DAY) & (time < START + end * DAY)
    cents = np.where(reduced, items.price[item] * 4 // 5, items.price[item])
    events = pa.table(
        {
            "user_id": _names("u", user),
            "item_id": _names("p", item),
            "timestamp": time,
            "event_type": TYPES[kind],
            "category": _names("category ", items.category[item]),
            "price": cents / 100,
        }
    )
    everybody = np.arange(customers, settings.users)
    repeated = np.flatnonzero(items.interval)
    return ShopWorld(
        settings=settings,
        events=events,
        bots=tuple(_names("u", everybody[: settings.bots]).tolist()),
        test_accounts=tuple(_names("u", everybody[settings.bots :]).tolist()),
        promoted=tuple(_names("p", np.flatnonzero(items.promoted)).tolist()),
        promotion=(START + begin * DAY, START + end * DAY),
        intervals=dict(zip(_names("p", repeated).tolist(), items.interval[repeated].tolist(), strict=True)),
    )


def _items(settings: Shop, random: np.random.Generator) -> _Items:
    size = settings.items
    category = random.integers(0, CATEGORIES, size)
    interval = np.where(category < USED_UP, random.integers(5, 21, size), 0)
    promoted = np.zeros(size, bool)
    promoted[random.permutation(size)[: max(int(PROMOTION_ITEMS * size), 1)]] = True
    price = 100 * (1 + category) + random.integers(0, 2000, size)
    return _Items(category, price, interval, exact.normal(random, size), promoted)


def _chosen(
    user: Ints,
    tastes: exact.Floats,
    vectors: exact.Floats,
    weights: exact.Floats,
    random: np.random.Generator,
) -> Ints:
    """An item for each view."""
    users, which = np.unique(user, return_inverse=True)
    chances = exact.exp(exact.products(tastes[users], vectors)) * weights
    sums = np.cumsum(np.rint(chances.astype(np.float64) * FINE), axis=1)
    drawn = np.floor(random.random(len(user)) * sums[which, -1])
    return np.array(
        [np.searchsorted(sums[of], at, "right") for of, at in zip(which, drawn, strict=True)], np.int64
    )


def _add(rows: Table, user: Ints, item: Ints, time: Ints, kind: int) -> None:
    columns = user, item, time, np.full(len(user), kind)
    for name, column in zip(("user", "item", "time", "type"), columns, strict=True):
        rows[name].append(column)


def _plan(
    due: list[tuple[Ints, Ints]],
    day: int,
    user: Ints,
    item: Ints,
    interval: Ints,
    random: np.random.Generator,
) -> None:
    """When what was bought today will be bought again."""
    is_again = (interval[item] > 0) & (random.random(len(item)) < AGAIN)
    spread = random.integers(-1, 2, len(item)) * np.maximum(interval[item] // 5, 1)
    when = day + np.maximum(interval[item] + spread, 1)
    for at in np.unique(when[is_again & (when < len(due))]).tolist():
        some = is_again & (when == at)
        due[at] = np.append(due[at][0], user[some]), np.append(due[at][1], item[some])


def _robots(rows: Table, settings: Shop, first: int, day: int, random: np.random.Generator) -> None:
    """The bots and the test accounts of a day."""
    for place in range(2 * settings.bots if first + 2 * settings.bots <= settings.users else 0):
        is_bot = place < settings.bots
        count = BOT_VIEWS if is_bot else TEST_PURCHASES
        begin = START + day * DAY + int(random.integers(0, DAY // 2))
        item = (np.arange(count) + day * count) % settings.items if is_bot else random.integers(0, 2, count)
        time = begin + np.arange(count) * (PACE if is_bot else 10 * MINUTE)
        _add(rows, np.full(count, first + place), item.astype(np.int64), time, 0 if is_bot else 2)


def _names(prefix: str, numbers: Ints) -> NDArray[np.str_]:
    return np.char.add(prefix, numbers.astype(str))
