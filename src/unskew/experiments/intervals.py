"""The figures of a test with the chance in them.

A figure is the mean over the seeds of an arm. Its 95 % interval is that of `unskew.evaluation.significance`:
a bootstrap over users and, if there are several, over seeds. Here all arms, seeds and metrics are drawn at
once, so that hundreds of tables take seconds.

A simulated data set is another world for each seed. Then users are drawn within each world, and the worlds
themselves are drawn as seeds are: the same ones for both models that are compared.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.evaluation.significance import (
    bounds,
    holm,
    holm_of_known,
    over_seeds,
    paired_t,
    resampled,
    two_sided,
    users_drawn,
)
from unskew.experiments.bench_cell import METRIC, BenchCell, StoredTest
from unskew.experiments.cell_store import CellStore, decode, unpack_values

Floats = NDArray[np.floating[Any]]

DRAWS = 2000
BLOCK = 500  # draws at once, which keeps the memory small
LEVEL = 0.05
Name = TypeVar("Name", bound=Hashable)
SEED = 0  # of the bootstrap


@dataclass(frozen=True)
class Difference:
    """One arm minus another on the same units. The p-values are corrected by Holm over the family."""

    to: str
    difference: float
    low: float
    high: float
    fraction: float  # the difference as a fraction of the other's mean, with its interval; nan if that is 0
    fraction_low: float
    fraction_high: float
    seeds: int  # of whichever of the two has fewer
    p_bootstrap: float | None  # None with a single seed
    p_t: float

    @property
    def starred(self) -> bool:
        """Whether the two differ by the bootstrap."""
        return self.p_bootstrap is not None and self.p_bootstrap < LEVEL

    @property
    def daggered(self) -> bool:
        """Whether the two differ by the paired t-test, which is the paper's own and ignores the seeds."""
        return self.p_t < LEVEL


@dataclass(frozen=True)
class ArmMean:
    """The mean of an arm over its seeds, its 95 % interval, and how it differs from what it is compared
    with."""

    mean: float
    low: float
    high: float
    seeds: int
    versus: Difference | None = None


@dataclass(frozen=True)
class ComparisonPlan:
    """Which comparisons belong together: what each arm is compared with, and among which the first one's best
    rival is looked for."""

    first: str
    references: Mapping[str, str]
    rivals: Sequence[str]


class ArmResults:
    """The arms of a suite on one data set in one test under one protocol."""

    def __init__(
        self,
        cells: Mapping[str, Sequence[BenchCell]],
        test: str,
        plan: ComparisonPlan,
        store: CellStore,
    ) -> None:
        self.plan, self.seeds = plan, {name: len(of) for name, of in cells.items()}
        found = {name: [cell.tests[test] for cell in of] for name, of in cells.items()}
        self._stored = {name: [one.metrics for one in of] for name, of in found.items()}
        self._worlds = list(_worlds(found, store))
        self.metrics = self._worlds[0].metrics
        self._means: dict[str, dict[str, ArmMean]] = {}

    def mean(self, arm: str, metric: str = METRIC) -> float:
        """The mean of an arm over its seeds."""
        return fmean(one[metric] or 0.0 for one in self._stored[arm])

    def means(self, metric: str = METRIC) -> dict[str, ArmMean]:
        """The figure of each arm. Comparisons are corrected over those of this suite, data set and test."""
        if metric not in self._means:
            plain = {
                name: found
                for name in self.seeds
                if (to := self.plan.references.get(name)) is not None
                if (found := self.compare(name, to, metric)) is not None
            }
            corrected = correct_by_holm(plain)
            self._means[metric] = {
                name: ArmMean(
                    self.mean(name, metric), *self._interval(name, metric), seeds, corrected.get(name)
                )
                for name, seeds in self.seeds.items()
            }
        return self._means[metric]

    def best(self, among: Sequence[str] | None = None, metric: str = METRIC) -> str | None:
        """The arm with the highest mean; nobody if none of them is there."""
        there = [name for name in self.seeds if among is None or name in among]
        return max(there, key=lambda name: self.mean(name, metric), default=None)

    def over_best_rival(self, metric: str = METRIC) -> tuple[str, Difference] | None:
        """The best rival of the suite's first arm, and how much better than it the first arm is. Because the
        best was found on the same units, its p-value is corrected over all comparisons of the suite."""
        rival = self.best(self.plan.rivals, metric)
        if rival is None or (found := self.compare(self.plan.first, rival, metric)) is None:
            return None
        other = self.means(metric)[rival].versus
        if other is not None and other.to == self.plan.first:
            found = _with_p(found, other.p_bootstrap, other.p_t)
        return rival, found

    def compare(self, one: str, other: str, metric: str = METRIC) -> Difference | None:
        """One arm minus another, on what both were tested on, without any correction; None if there is no
        such thing."""
        worlds = [world for world in self._worlds if one in world.drawn and other in world.drawn]
        if not worlds or one == other:
            return None
        at = self.metrics.index(metric)
        first, second = (_over_worlds([world.drawn[name][at] for world in worlds]) for name in (one, other))
        parts = [world.values[one][at] - world.values[other][at] for world in worlds]
        difference = np.mean([world.mean(part) for world, part in zip(worlds, parts, strict=True)])
        base = np.mean([world.mean(world.values[other][at]) for world in worlds])
        # Rounding must not make a difference between two models that are the same.
        drawn = first - second if any(part.any() for part in parts) else np.zeros(DRAWS)
        seeds = min(sum(world.seeds[name] for world in worlds) for name in (one, other))
        low, high = bounds(drawn)
        fraction_low, fraction_high = bounds(drawn / second) if (second > 0).all() else (math.nan, math.nan)
        return Difference(
            to=other,
            difference=float(difference),
            low=low,
            high=high,
            fraction=float(difference / base) if base else math.nan,
            fraction_low=fraction_low,
            fraction_high=fraction_high,
            seeds=seeds,
            p_bootstrap=two_sided(drawn) if seeds > 1 else None,
            p_t=paired_t(
                np.concatenate(parts),
                np.concatenate([world.weights / world.weights.mean() for world in worlds]),
            ),
        )

    def _interval(self, arm: str, metric: str) -> tuple[float, float]:
        at = self.metrics.index(metric)
        drawn = _over_worlds([world.drawn[arm][at] for world in self._worlds if arm in world.drawn])
        return bounds(drawn)


def correct_by_holm(family: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """The same comparisons, with p-values that are corrected over all of them."""
    p_t = holm({name: one.p_t for name, one in family.items()})
    p_bootstrap = holm_of_known({name: one.p_bootstrap for name, one in family.items()})
    return {name: _with_p(one, p_bootstrap[name], p_t[name]) for name, one in family.items()}


def _with_p(found: Difference, p_bootstrap: float | None, p_t: float) -> Difference:
    return replace(found, p_bootstrap=p_bootstrap, p_t=p_t)


# The bootstrap


@dataclass(frozen=True)
class _World:
    """What was tested on the very same units: for each arm its values, as means over seeds, and the means
    that were drawn; each has a row per metric."""

    metrics: tuple[str, ...]
    weights: Floats
    values: dict[str, Floats]
    drawn: dict[str, Floats]
    seeds: dict[str, int]

    def mean(self, values: Floats) -> float:
        """The weighted mean over the units."""
        return float((values * self.weights).sum() / self.weights.sum())


def _worlds(found: Mapping[str, Sequence[StoredTest]], store: CellStore) -> Iterator[_World]:
    """The worlds in which some arms were tested: one for a log, and one for each seed of a simulation."""
    by_units: dict[str, dict[str, list[Mapping[str, str]]]] = {}
    for name, of in found.items():
        for one in of:
            by_units.setdefault(one.units, {}).setdefault(name, []).append(one.values)
    for number, (key, of_arms) in enumerate(by_units.items()):
        if key not in store.units:
            raise BadInput(f"{store.folder / 'tests.jsonl'}: is damaged (no units {key})")
        user, weights = _units(store, key)
        tables: dict[str, Floats] = {}
        metrics: tuple[str, ...] = ()
        for name, stored in of_arms.items():
            each = [
                {metric: values for metric, values in unpack_values(one).items() if len(values) == len(user)}
                for one in stored
            ]
            metrics = metrics or tuple(each[0])
            tables[name] = np.stack(
                [np.stack([one[metric] for metric in metrics]) for one in each], dtype=np.float32
            )
        drawn = drawn_means(user, weights, list(tables.values()), SEED + number)
        yield _World(
            metrics,
            weights,
            {name: values.mean(axis=0) for name, values in tables.items()},
            dict(zip(tables, drawn, strict=True)),
            {name: len(values) for name, values in tables.items()},
        )


def _units(store: CellStore, key: str) -> tuple[NDArray[np.int32], Floats]:
    units = store.units[key]
    return decode(units.user, np.int32), np.asarray(decode(units.weight, np.float32), np.float64)


def drawn_means(
    user: NDArray[np.integer[Any]], weights: Floats, tables_SMN: Sequence[Floats], seed: int = SEED
) -> list[Floats]:
    """Of each arm the mean of every metric (row) in every draw of users and seeds (column): what
    `unskew.evaluation.significance.drawn_means` draws, for all metrics at once.

    tables_SMN: of each arm the values by seed, metric and unit.
    """
    of = np.unique(user, return_inverse=True)[1]
    order = np.argsort(of, kind="stable")
    starts = np.searchsorted(of[order], np.arange(of.max() + 1))
    row_weights = np.asarray(weights[order], np.float32)
    rows = np.concatenate([table.reshape(-1, len(user)) for table in tables_SMN])
    sums = np.add.reduceat(rows[:, order] * row_weights, starts, axis=1)
    times = _times(len(starts), seed)
    size = np.add.reduceat(row_weights, starts)
    means = np.concatenate(
        [
            (sums @ block.T.astype(np.float32)) / (size @ block.T.astype(np.float32))
            for block in np.array_split(times, -(-DRAWS // BLOCK))
        ],
        axis=1,
    )
    shapes = [table.shape[:2] for table in tables_SMN]
    own = np.split(means, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
    means_SMD = [each.reshape(*shape, DRAWS) for each, shape in zip(own, shapes, strict=True)]
    return over_seeds(means_SMD, seed)


@lru_cache(maxsize=4)
def _times(users: int, seed: int) -> NDArray[np.uint8]:
    """How often each user (column) is drawn in each draw (row)."""
    return np.stack(list(users_drawn(users, DRAWS, seed))).astype(np.uint8)


def _over_worlds(drawn: Sequence[Floats]) -> Floats:
    if len(drawn) == 1:
        return drawn[0]
    # The stream depends on the number of worlds alone: two arms are drawn the same ones.
    return resampled(np.stack(drawn), np.random.default_rng([SEED, 29, len(drawn)]))
