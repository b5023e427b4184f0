"""What a store says about an A/B test: the conversion of each variant, a test that may be looked at every
day, and guard rails.

    conversion           of all lists of a variant, the fraction that was answered: a positive event names the
                         list, and its item is in it
    positives per user   all positives of a variant's users since their first list, divided by these users. It
                         also counts what users find without a list

Both are ratios of sums over users (`core/sequential.py`), because users were split and not lists. The
difference of each variant to the control has an interval that is valid at any time. Its p-value is the
smallest one of all days so far: as if one had looked at the end of each day and now.

Guard rails: whether the users were split as declared, and whether lists became slower, less diverse over
users or more concentrated on popular items.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import duckdb
import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtrc, gammaln, ndtri

from unskew.core.config import Document, NotNegative, Positive, check
from unskew.core.errors import BadInput
from unskew.core.sequential import Ratio, always_valid_interval, likelihood_ratio, ratio
from unskew.core.statistics import LEVEL
from unskew.report.templates import render
from unskew.serve.store.events import in_iso, parse_time
from unskew.serve.store.impressions import open_impressions, query_table
from unskew.serve.store.store import Store
from unskew.serve.variants.assignment import CONTROL

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY = 86_400 * 10**6  # microseconds
NORMAL = float(ndtri(1 - LEVEL / 2))


@dataclass(frozen=True, kw_only=True)
class TestSettings:
    """How an A/B test is read."""

    __test__ = False  # for pytest, to which a name with Test is one

    control: str = CONTROL
    """The variant that all others are compared with."""
    effect: Positive = 0.01
    """The difference of conversions for which intervals are narrowest (tau of the test). Say it before you
    look; any value is valid."""
    since: str | None = None
    """Read lists from this time on, such as 2026-01-31; by default all that name a variant."""
    enough: NotNegative = 20
    """How many converted lists each variant has before a day is looked at."""
    slower: Positive = 1.5
    """Guard rail: the 95 % quantile of the time per list, as a multiple of the control's."""
    narrower: Positive = 0.8
    """Guard rail: the number of distinct items in equally many shown items, as a multiple of the
    control's."""
    more_popular: Positive = 1.25
    """Guard rail: the fraction of shown items that are the ten most shown ones, as a multiple of the
    control's."""
    uneven: Positive = 0.001
    """Guard rail: the p-value below which users were not split as declared."""


class Interval(NamedTuple):
    """A value and its 95 % interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, estimate: Ratio) -> "Interval":
        """The usual interval of an estimate, for one single look."""
        half = NORMAL * estimate.variance**0.5
        return cls(estimate.value, estimate.value - half, estimate.value + half)


@dataclass(frozen=True)
class VariantResult:
    """What one variant did.

    latency_ms: the median and the 95 % quantile of the time per list.
    coverage: the expected number of distinct items in as many shown items as the smallest variant has.
    top_items: the fraction of shown items that are the ten most shown ones.
    fallback: the fraction of lists that the fallback made.
    versions: the versions of runs that made its lists.
    """

    name: str
    users: int
    lists: int
    converted: int
    conversion: Interval
    positives_per_user: Interval
    latency_ms: tuple[float, float] | None
    coverage: float
    top_items: float
    fallback: float
    versions: tuple[str, ...]


@dataclass(frozen=True)
class Contrast:
    """A variant minus the control. Its interval is valid at any time, and corrected for the number of
    variants (Bonferroni); p is that of all looks so far."""

    variant: str
    difference: float
    low: float
    high: float
    p: float
    positives_per_user: Interval
    daily: tuple[tuple[str, float, float, float], ...]  # the day, the difference and its interval

    @property
    def is_decided(self) -> bool:
        """Whether the test may be stopped: there is a difference."""
        return self.p < LEVEL


@dataclass(frozen=True)
class TestResults:
    """The results of an A/B test."""

    __test__ = False

    store: str
    since: str | None
    until: str | None
    control: str
    variants: tuple[VariantResult, ...]
    contrasts: tuple[Contrast, ...]
    mixed_users: int  # left out: they had lists of several variants
    split_p: float | None  # of the declared split; None if none was declared
    warnings: tuple[str, ...]

    def document(self) -> Document:
        """Everything, ready for JSON."""
        return asdict(self)


class _Lists(NamedTuple):
    """The lists of one variant, in the order of time."""

    user: Ints  # numbered from 0 within the variant
    time: Ints
    answered: Ints  # when; the largest number if never
    took_ms: Floats  # nan where it is not known
    fallback: NDArray[np.bool_]
    users: int
    versions: tuple[str, ...]
    positives: Floats  # of each user, since the first list

    def until(self, moment: int) -> tuple[Floats, Floats]:
        """For each user, the lists before a moment and those of them that were answered by then."""
        is_made = self.time < moment
        is_answered = is_made & (self.answered < moment)
        counts = (np.bincount(self.user[some], minlength=self.users) for some in (is_answered, is_made))
        answered, made = (count.astype(float) for count in counts)
        return answered, made


def read_results(store: Store, settings: TestSettings | None = None) -> TestResults:
    """The results of an A/B test so far.

    Parameters
    ----------
    store
        The store that the service writes into; it may be in use meanwhile.
    settings
        How it is read.

    Returns
    -------
    TestResults
        What each variant did, the comparisons with the control, and warnings of the guard rails.
    """
    settings = settings or TestSettings()
    check(settings)
    since = 0 if settings.since is None else parse_time(settings.since)
    with (
        tempfile.TemporaryDirectory(prefix="unskew.") as folder,
        open_impressions(store, store.types, Path(folder), "reading the test") as connection,
    ):
        connection.execute(render("serve/variants/templates/variants.sql", since=since))
        names = [name for (name,) in connection.execute(NAMES).fetchall()]
        if settings.control not in names or len(names) < 2:
            raise BadInput(
                f"{store.name}: expected lists of {settings.control} and of another variant, found "
                f"{', '.join(names) or 'none'}; `unskew serve --variant B=RUN:0.2` records them"
            )
        lists = {name: _lists_of(connection, name) for name in names}
        shown = {name: _shown_of(connection, name) for name in names}
        first, last, mixed = connection.execute(SPAN).fetchall()[0]
    variants = tuple(_variant(name, lists[name], shown) for name in names)
    control, others = lists[settings.control], [name for name in names if name != settings.control]
    level = LEVEL / len(others)
    contrasts = tuple(_contrast(name, lists[name], control, settings, level) for name in others)
    split_p = _split_p({name: of.users for name, of in lists.items()}, store.variants)
    return TestResults(
        store=store.name,
        since=in_iso(first),
        until=in_iso(last),
        control=settings.control,
        variants=variants,
        contrasts=contrasts,
        mixed_users=mixed,
        split_p=split_p,
        warnings=tuple(_warnings(variants, split_p, settings)),
    )


NAMES = "SELECT DISTINCT variant FROM test_lists ORDER BY variant"
SPAN = """SELECT min(timestamp), max(timestamp), count(DISTINCT user_id) - (SELECT count(*) FROM test_users)
FROM test_lists"""
LISTS = """SELECT u.number, l.timestamp, l.answered, l.took_ms, l.fallback FROM test_lists AS l
JOIN test_users AS u USING (user_id) WHERE u.variant = ? ORDER BY l.timestamp, l.recommendation_id"""
POSITIVES = """SELECT u.number, count(p.timestamp) AS positives FROM test_users AS u
LEFT JOIN positives AS p ON p.user_id = u.user_id AND p.timestamp >= u.first WHERE u.variant = ?
GROUP BY u.number ORDER BY u.number"""
SHOWN = """SELECT count(*) AS times FROM showings AS s JOIN test_users AS u USING (user_id)
JOIN test_lists AS l ON l.recommendation_id = s.impression_id AND l.user_id = s.user_id
WHERE s.recommended AND u.variant = ? GROUP BY s.item_id ORDER BY times DESC"""
VERSIONS = "SELECT DISTINCT version FROM test_lists WHERE variant = ? ORDER BY version"


def _lists_of(connection: duckdb.DuckDBPyConnection, name: str) -> _Lists:
    rows = query_table(connection, LISTS, [name])
    positives = query_table(connection, POSITIVES, [name])
    numbers = np.asarray(positives["number"], np.int64)
    never = np.iinfo(np.int64).max
    return _Lists(
        user=np.searchsorted(numbers, np.asarray(rows["number"], np.int64)),
        time=np.asarray(rows["timestamp"], np.int64),
        answered=np.asarray(rows["answered"].fill_null(never), np.int64),
        took_ms=np.asarray(rows["took_ms"].fill_null(float("nan")), np.float64),
        fallback=np.asarray(rows["fallback"]).astype(np.bool_),
        users=len(numbers),
        versions=tuple(version for (version,) in connection.execute(VERSIONS, [name]).fetchall()),
        positives=np.asarray(positives["positives"], np.float64),
    )


def _shown_of(connection: duckdb.DuckDBPyConnection, name: str) -> Ints:
    """How often each item was shown, the most frequent first."""
    return np.array([times for (times,) in connection.execute(SHOWN, [name]).fetchall()], np.int64)


def _variant(name: str, lists: _Lists, shown: dict[str, Ints]) -> VariantResult:
    answered, made = lists.until(np.iinfo(np.int64).max)
    took = lists.took_ms[~np.isnan(lists.took_ms)]
    sample = min(int(counts.sum()) for counts in shown.values())
    counts = shown[name]
    return VariantResult(
        name=name,
        users=lists.users,
        lists=len(lists.time),
        converted=int(answered.sum()),
        conversion=Interval.of(ratio(answered, made)),
        positives_per_user=Interval.of(ratio(lists.positives, np.ones(lists.users))),
        latency_ms=tuple(np.quantile(took, [0.5, 0.95]).tolist()) if len(took) else None,
        coverage=distinct_items(counts, sample),
        top_items=float(counts[:10].sum() / max(counts.sum(), 1)),
        fallback=float(lists.fallback.mean()) if len(lists.fallback) else 0.0,
        versions=lists.versions,
    )


def distinct_items(counts: Ints, sample: int) -> float:
    """The expected number of distinct items in a random sample of shown items, without replacement: an item
    that was shown n times of N is missing with the probability C(N - n, sample) / C(N, sample). Variants of
    different sizes are compared at equal samples."""
    whole = int(counts.sum())
    rest = whole - counts
    some = rest >= sample
    log_missing = (
        gammaln(rest[some] + 1)
        - gammaln(rest[some] - sample + 1)
        - (gammaln(whole + 1) - gammaln(whole - sample + 1))
    )
    return float(len(counts) - np.exp(log_missing).sum())


def _contrast(name: str, lists: _Lists, control: _Lists, settings: TestSettings, level: float) -> Contrast:
    """A variant minus the control, at the end of each day and now."""
    daily, p = [], 1.0
    difference, interval = float("nan"), (-np.inf, np.inf)
    for moment, label in _looks(lists, control):
        looked = [of.until(moment) for of in (lists, control)]
        one, other = (ratio(*sums) for sums in looked)
        difference, variance = one.value - other.value, one.variance + other.variance
        if min(answered.sum() for answered, _ in looked) < settings.enough:
            continue
        interval = always_valid_interval(difference, variance, settings.effect, level)
        p = min(p, 1 / likelihood_ratio(difference, variance, settings.effect))
        daily.append((label, difference, *interval))
    per_user = [ratio(of.positives, np.ones(of.users)) for of in (lists, control)]
    both = Ratio(per_user[0].value - per_user[1].value, per_user[0].variance + per_user[1].variance)
    corrected = min(1.0, p * LEVEL / level)
    return Contrast(name, difference, *interval, corrected, Interval.of(both), tuple(daily))


def _looks(*variants: _Lists) -> Iterator[tuple[int, str]]:
    """The end of each day from the first list on, in UTC, and at last a moment after everything."""
    first = min(int(of.time[0]) for of in variants if len(of.time))
    last = max(int(of.time[-1]) for of in variants if len(of.time))
    for day in range(first // DAY + 1, last // DAY + 1):
        yield day * DAY, in_iso((day - 1) * DAY)[:10]
    yield np.iinfo(np.int64).max, in_iso(last)[:10]


def _split_p(users: dict[str, int], declared: dict[str, float]) -> float | None:
    """The p-value of the chi-squared test of the declared split; None if it is not that of these variants."""
    if set(users) != set(declared):
        return None
    observed = np.array([users[name] for name in declared], float)
    expected = np.array(list(declared.values())) * observed.sum()
    statistic = float(((observed - expected) ** 2 / expected).sum())
    return float(chdtrc(len(declared) - 1, statistic))


def _warnings(
    variants: tuple[VariantResult, ...], split_p: float | None, settings: TestSettings
) -> Iterator[str]:
    if split_p is not None and split_p < settings.uneven:
        yield (
            f"the users were not split as declared (p = {split_p:.2g}): find the cause before you believe "
            "any difference"
        )
    control = next(variant for variant in variants if variant.name == settings.control)
    for variant in variants:
        if variant is not control:
            yield from _guard(variant, control, settings)


def _guard(variant: VariantResult, control: VariantResult, settings: TestSettings) -> Iterator[str]:
    """What became worse in a variant, beyond the limits."""
    if variant.latency_ms and control.latency_ms:
        one, other = variant.latency_ms[1], control.latency_ms[1]
        if one > settings.slower * other:
            yield f"{variant.name} is slower: 95 % of its lists take up to {one:.0f} ms, not {other:.0f} ms"
    if variant.coverage < settings.narrower * control.coverage:
        yield (
            f"{variant.name} shows fewer distinct items: {variant.coverage:,.0f} instead of "
            f"{control.coverage:,.0f} in equally many"
        )
    if variant.top_items > settings.more_popular * control.top_items:
        yield (
            f"{variant.name} is more concentrated: its ten most shown items are {variant.top_items:.1%} of "
            f"what it shows, not {control.top_items:.1%}"
        )
