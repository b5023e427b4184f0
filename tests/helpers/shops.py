"""A small shop for tests of rules and items: a log whose items have categories, prices and stock."""

import numpy as np
import pyarrow as pa

import unskew
from unskew.data.log.log import Log

ITEMS = 24
CATEGORIES = ["shoes", "hats", "books|gifts", None]
BEGIN = 1_700_000_000  # seconds


def category_of(item: int) -> str | None:
    """The most popular items are shoes."""
    return "shoes" if item < 12 else CATEGORIES[item % 4]


def price_of(item: int) -> float | None:
    return None if item == 5 else float(10 * item)


def shop_table(rows: int = 900, users: int = 40, seed: int = 3) -> pa.Table:
    """Items with low numbers have most of the purchases."""
    random = np.random.default_rng(seed)
    item = np.minimum((ITEMS * random.random(rows) ** 2).astype(int), ITEMS - 1)
    item[:ITEMS] = np.arange(ITEMS)
    return pa.table(
        {
            "user": [f"u{code}" for code in random.integers(0, users, rows)],
            "item": [f"i{code}" for code in item],
            "time": BEGIN + np.sort(random.integers(0, 50 * 86_400, rows)),
            "category": pa.array([category_of(code) for code in item], pa.string()),
            "price": pa.array([price_of(code) for code in item], pa.float64()),
            "in_stock": item % 3 > 0,
        }
    )


def shop_log() -> Log:
    return unskew.read(shop_table(), item_features="category,price,in_stock")
