"""Logs of many kinds, and what the audit says of them."""

import numpy as np
import pyarrow as pa

import unskew
from tests.conftest import random_table
from unskew.data.audit.audit import audit
from unskew.data.audit.label_leakage import Finding
from unskew.data.log.split import Split

VIEWS = {"histories", "audiences"}
PAIRS = {"batches of pairs", "batches of prefixes"}
WHOLE = {"batches of histories", "batches of sequences"}
MAX_AUC_DEVIATION = {"empty audience", "empty history", "own past"}
COUNTS = {
    "borders",
    "user counts",
    "item counts",
    "known users",
    "known items",
    "balanced test",
    "views",
    "look-ahead filter",
}
CHECKS = COUNTS | VIEWS | PAIRS | WHOLE | MAX_AUC_DEVIATION


def failed(split: Split) -> set[str]:
    return {finding.check for finding in audit(split) if not finding.passed}


def finding(split: Split, check: str) -> Finding:
    return next(found for found in audit(split) if found.check == check)


def baskets() -> pa.Table:
    """Users who buy half of a small catalogue again and again, nine things at a time."""
    random = np.random.default_rng(1)
    rows = [
        (user, int(item), 100 * impression + user % 7)
        for user in range(30)
        for favourites in [random.permutation(30)[:14]]
        for impression in range(12)
        for item in random.permutation(favourites)[:9]
    ]
    return pa.table(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))


def impressions(shown: int = 2) -> pa.Table:
    """New items all the time, each shown for a while before anybody takes it; `shown` others with each that
    is taken."""
    random = np.random.default_rng(2)
    rows = []
    for time in range(1, 801):
        there = 20 + time // 2
        for user in random.integers(0, 50, 2):
            taken, *others = random.choice(there, 1 + shown, replace=False)
            rows += [
                (int(user), int(taken), time, 1),
                *((int(user), int(other), time, 0) for other in others),
            ]
    return pa.table(
        dict(zip(("user", "item", "time", "label"), map(list, zip(*rows, strict=True)), strict=True))
    )


def catalogue() -> pa.Table:
    """Only what was taken, but everything was shown to a user at the beginning."""
    taken = impressions(0)
    shown = {
        "user": np.arange(420) % 50,
        "item": np.arange(420),
        "time": np.ones(420, int),
        "label": np.zeros(420, int),
    }
    return pa.concat_tables([taken, pa.table(shown)])


def nearly_everything() -> pa.Table:
    """Users who come one after the other, and go when they have had most of what there is."""
    random = np.random.default_rng(3)
    rows = [
        (user, int(item), 10 * user + place)
        for user in range(150)
        for place, item in enumerate(random.permutation(14)[:11])
    ]
    return pa.table(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))


def two_moments() -> pa.Table:
    table = random_table(rows=400, times=1)
    return table.set_column(2, "time", [1_700_000_000 + 5 * (np.arange(400) % 3 == 0)])


def of_one_day() -> pa.Table:
    """Half of the rows at the very first moment, where more is taken than later."""
    table = random_table(rows=3000, negatives=0.7)
    early = np.arange(3000) < 1500
    taken = np.where(early, np.arange(3000) % 3 > 0, table["label"].to_numpy())
    return table.set_column(2, "time", [np.where(early, 7, 8 + np.arange(3000))]).set_column(
        3, "label", [taken.astype(int)]
    )


def split_of(table: pa.Table, **settings) -> Split:
    return unskew.split(unskew.read(table), **settings)
