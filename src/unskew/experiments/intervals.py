"""The means of a test with the chance in them.

The mean of an arm is over its seeds. Its interval and its comparisons are those of
`unskew.evaluation.significance`. A simulated data set is another world for each seed, with other users: there
the worlds vary, and two arms are compared world by world.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.core.statistics import (
    LEVEL,
    Estimate,
    SeedMeans,
    bootstrap_means,
    estimate,
    estimate_over_worlds,
    holm,
    paired_t_test,
)
from unskew.experiments.bench_cell import METRIC, BenchCell, StoredTest
from unskew.experiments.cell_store import CellStore, decode, unpack_values

Floats = NDArray[np.floating[Any]]
Name = TypeVar("Name", bound=Hashable)

DRAWS = 2000


@dataclass(frozen=True)
class Difference:
    """One arm minus another on the same units. The p-values are corrected by Holm over the family."""

    to: str
    difference: float
    low: float
    high: float
    relative: Estimate  # the difference as a fraction of the other's mean; nan if that is 0
    seeds: int  # of whichever of the two has fewer
    p_seeds: float | None  # over seeds and users; None with a single seed
    p_rows: float  # the paired t-test over rows, which is the paper's own and ignores the seeds

    @property
    def starred(self) -> bool:
        """Whether the two differ over seeds and users."""
        return self.p_seeds is not None and self.p_seeds < LEVEL

    @property
    def daggered(self) -> bool:
        """Whether the two differ by the paired t-test over rows."""
        return self.p_rows < LEVEL


@dataclass(frozen=True)
class ArmMean:
    """The mean of an arm over its seeds, its 95 % interval, and its difference to its reference.

    finished: whether all its runs were trained to the end; only then it is ranked and compared.
    """

    mean: float
    low: float
    high: float
    seeds: int
    finished: bool
    versus: Difference | None = None


class ComparisonPlan(NamedTuple):
    """The comparisons that belong together: the reference of each arm, and the arms among which the best
    rival of the first one is looked for. Arms that are not finished are neither compared nor the best."""

    first: str
    references: Mapping[str, str]
    rivals: Sequence[str]
    finished: Sequence[str]


class ArmResults:
    """The arms of a suite on one data set in one test under one protocol."""

    def __init__(
        self, cells: Mapping[str, Sequence[BenchCell]], test: str, plan: ComparisonPlan, store: CellStore
    ) -> None:
        self.plan, self.seeds = plan, {name: len(of) for name, of in cells.items()}
        tests = {name: [cell.tests[test] for cell in of] for name, of in cells.items()}
        self._stored = {name: [stored.metrics for stored in of] for name, of in tests.items()}
        keys = dict.fromkeys(stored.units for of in tests.values() for stored in of)
        self._worlds = [_World(key, tests, store, number) for number, key in enumerate(keys)]
        self.metrics = self._worlds[0].metrics
        self._means: dict[str, dict[str, ArmMean]] = {}

    def mean(self, arm: str, metric: str = METRIC) -> float:
        """The mean of an arm over its seeds."""
        return fmean(stored[metric] or 0.0 for stored in self._stored[arm])

    def means(self, metric: str = METRIC) -> dict[str, ArmMean]:
        """The mean of each arm. Comparisons are corrected over those of this suite, data set and test."""
        if metric not in self._means:
            differences = {name: self.compare(name, to, metric) for name, to in self.plan.references.items()}
            corrected = correct_by_holm({name: of for name, of in differences.items() if of is not None})
            self._means[metric] = {}
            for name, seeds in self.seeds.items():
                of = self._estimate([world for world in self._worlds if name in world.values], metric, name)
                mean, versus = self.mean(name, metric), corrected.get(name)
                finished = name in self.plan.finished
                self._means[metric][name] = ArmMean(mean, of.low, of.high, seeds, finished, versus)
        return self._means[metric]

    def best(self, among: Sequence[str] | None = None, metric: str = METRIC) -> str | None:
        """The finished arm with the highest mean; None if none of them is there."""
        there = [name for name in self.plan.finished if among is None or name in among]
        return max(there, key=lambda name: self.mean(name, metric), default=None)

    def over_best_rival(self, metric: str = METRIC) -> tuple[str, Difference] | None:
        """The best rival of the suite's first arm, and how much better than it the first arm is. Because the
        best was found on the same units, its p-value is corrected over all comparisons of the suite."""
        rival = self.best(self.plan.rivals, metric)
        gain = None if rival is None else self.compare(self.plan.first, rival, metric)
        if rival is None or gain is None:
            return None
        other = self.means(metric)[rival].versus
        if other is not None and other.to == self.plan.first:
            gain = replace(gain, p_seeds=other.p_seeds, p_rows=other.p_rows)
        return rival, gain

    def compare(self, one: str, other: str, metric: str = METRIC) -> Difference | None:
        """One arm minus another, on what both were tested on, without any correction; None if there is no
        such thing, or if one of them is not finished."""
        if not {one, other} <= set(self.plan.finished):
            return None
        worlds = [world for world in self._worlds if one in world.values and other in world.values]
        if not worlds or one == other:
            return None
        rows = [world.rows(one, metric) - world.rows(other, metric) for world in worlds]
        seeds = min(sum(len(world.values[name]) for world in worlds) for name in (one, other))
        base = fmean(float(world.seed_means(other, metric).means_S.mean()) for world in worlds)
        if any(part.any() for part in rows):
            absolute = self._estimate(worlds, metric, one, other)
            nan = Estimate(math.nan, math.nan, math.nan, None)
            relative = self._estimate(worlds, metric, one, other, base) if base > 0 else nan
        else:  # the same in every unit: that is no chance
            absolute = relative = Estimate(0.0, 0.0, 0.0, 1.0 if seeds > 1 else None)
        return Difference(
            to=other,
            difference=absolute.value,
            low=absolute.low,
            high=absolute.high,
            relative=relative,
            seeds=seeds,
            p_seeds=absolute.p,
            p_rows=paired_t_test(
                np.concatenate(rows),
                np.concatenate([world.weights / world.weights.mean() for world in worlds]),
            ),
        )

    def _estimate(
        self, worlds: Sequence["_World"], metric: str, one: str, other: str = "", base: float = 0.0
    ) -> Estimate:
        """The mean of an arm, or its difference to another one; with a base as a fraction of the other's
        mean, whose own chance is in the interval."""
        if len(worlds) == 1:
            first = worlds[0].seed_means(one, metric)
            second = worlds[0].seed_means(other, metric) if other else None
            if second is None or not base:
                return estimate(first, second)
            ratio = float(first.means_S.mean()) / base
            difference = estimate(first.scaled(1 / base), second.scaled(ratio / base))
            shift = ratio - 1  # the linear part of the ratio has a mean of 0
            return replace(difference, value=shift, low=shift + difference.low, high=shift + difference.high)
        means = {
            name: [float(world.seed_means(name, metric).means_S.mean()) for world in worlds]
            for name in (one, other)
            if name
        }
        values = [
            value - to for value, to in zip(means[one], means.get(other, [0.0] * len(worlds)), strict=True)
        ]
        return estimate_over_worlds([value / (base or 1.0) for value in values])


class _World:
    """What was tested on the very same units: the log, or one seed of a simulation."""

    def __init__(
        self, key: str, tests: Mapping[str, Sequence[StoredTest]], store: CellStore, number: int
    ) -> None:
        if key not in store.units:
            raise BadInput(f"{store.folder / 'tests.jsonl'}: is damaged (no units {key})")
        units = store.units[key]
        self.user, self.weights = decode(units.user, np.int32), decode(units.weight, np.float32).astype(float)
        stored = {name: [test for test in of if test.units == key] for name, of in tests.items()}
        unpacked = {name: [unpack_values(test.values) for test in of] for name, of in stored.items() if of}
        some = next(iter(unpacked.values()))[0]
        self.metrics = tuple(metric for metric, values in some.items() if len(values) == len(self.user))
        # By arm: the values by seed, metric and unit.
        self.values = {
            name: np.stack([[of[metric] for metric in self.metrics] for of in seeds]).astype(np.float32)
            for name, seeds in unpacked.items()
        }
        rows = np.concatenate([values.reshape(-1, len(self.user)) for values in self.values.values()])
        drawn = bootstrap_means(rows, self.user, self.weights, DRAWS, number)
        shapes = [values.shape[:2] for values in self.values.values()]
        parts = np.split(drawn, np.cumsum([math.prod(shape) for shape in shapes])[:-1])
        self._drawn = {
            name: part.reshape(*shape, DRAWS)
            for name, part, shape in zip(self.values, parts, shapes, strict=True)
        }

    def rows(self, arm: str, metric: str) -> Floats:
        """The value of each unit, as the mean over seeds."""
        return self.values[arm][:, self.metrics.index(metric)].mean(axis=0)

    def seed_means(self, arm: str, metric: str) -> SeedMeans:
        """The mean of each seed, on all users and in every draw of users."""
        at = self.metrics.index(metric)
        means = self.values[arm][:, at] @ self.weights / self.weights.sum()
        return SeedMeans(means, self._drawn[arm][:, at])


def correct_by_holm(family: Mapping[Name, Difference]) -> dict[Name, Difference]:
    """The same comparisons, with p-values that are corrected over all of them."""
    p_rows = holm({name: difference.p_rows for name, difference in family.items()})
    p_seeds = holm({name: difference.p_seeds for name, difference in family.items()})
    return {
        name: replace(difference, p_seeds=p_seeds[name], p_rows=p_rows[name] or 0.0)
        for name, difference in family.items()
    }
