"""Small logs for the tests of inspections."""

import numpy as np
import pyarrow as pa

import unskew
from unskew.data.log.split import Split, split

NOW = 1_600_000_000


def cut(user, item, time, label=None, exposed=None, fractions=(50, 20, 30), **more) -> Split:
    columns = {"user": user, "item": item, "time": time, "label": label, "exposed": exposed} | more
    log = unskew.read(
        pa.table({name: list(column) for name, column in columns.items() if column is not None})
    )
    return split(log, fractions=fractions)


def codes(*numbers):
    return np.asarray(numbers, np.int32)


def times(*numbers):
    return np.asarray(numbers, np.int64)


def skewed_log(seed=0) -> Split:
    """40 items with popularity falling like 1 / rank; all of them are known to training."""
    draw = np.random.default_rng(seed)
    weight = 1 / np.arange(1, 41)
    item = draw.choice(40, 6000, p=weight / weight.sum())
    item[:40] = np.arange(40)
    return cut(draw.integers(0, 200, 6000), item, NOW + np.arange(6000))


# Logs with too little in them for some figure.
DEGENERATE = {
    "three rows": lambda: cut("aab", "xyx", [1, 2, 3]),
    "one time per user": lambda: cut("aabbcc", "xyxyxy", [1, 1, 2, 2, 3, 3]),
    "one time": lambda: cut("aabb", "xyxy", [7, 7, 7, 7]),
    "no valid rows": lambda: cut("abababab", "xyyxxyxy", range(8), fractions=(50, 0, 50)),
    "no test rows": lambda: cut("abababab", "xyyxxyxy", range(8), fractions=(80, 20, 0)),
    "no positives in the test": lambda: cut("abababab", "xyyxxyxy", range(8), label=[1, 1, 1, 0, 0, 0, 0, 0]),
    "one positive": lambda: cut("abababab", "xyyxxyxy", range(8), label=[1, 0, 0, 0, 0, 0, 0, 0]),
    "more rows than pairs": lambda: cut("ab" * 10, "xyyx" * 5, range(20)),
}
