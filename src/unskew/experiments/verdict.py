"""The verdict above a report: who is first, by how much, and what speaks against it. The facts are gathered
here, and `templates/verdict.txt` makes sentences of them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from unskew.api.zero_shot import learned_on
from unskew.evaluation.metrics import written
from unskew.experiments.bench_cell import METRIC
from unskew.experiments.claims import Claim, ClaimVerdict, Outcome, overall_verdict
from unskew.experiments.intervals import ArmResults, Difference
from unskew.experiments.results import BALANCED, ORDINARY, BenchResults, SuiteResults
from unskew.experiments.tables import usual_seeds
from unskew.report.summary import Verdict
from unskew.report.templates import render

SHIPPED = ("pulse", "pulse-zero")  # the model that this package ships, learned on a log and on others
OURS = ("pulse", "deps")  # the models that this package is about: the one that it ships, and the paper's
TESTS = (ORDINARY, BALANCED)


class Lead(NamedTuple):
    """How an arm stands on one data set against the best of some others."""

    source: str
    other: str
    gain: Difference


class First(NamedTuple):
    """The arms that are first in a test: on how many data sets, and how far the most frequent one leads.

    is_dated: whether data sets whose times only give an order were left out.
    """

    test: str
    counts: Sequence[tuple[str, int]]
    total: int
    is_dated: bool
    leads: Sequence[Lead]


def verdict_of(results: BenchResults, outcomes: Mapping[Claim, Sequence[Outcome]]) -> Verdict:
    """The most important facts of a bench in sentences; those after the finding begin with their topics."""
    suite = results.leading
    shipped = [of for of in results.suites if of is not suite and of.arms[0].model == SHIPPED[0]]
    text = render(
        "experiments/templates/verdict.txt",
        suite=suite,
        results=results,
        firsts=_firsts(suite),
        standings=_standings(suite),
        rivals=_wins_over_rivals(suite),
        popularity=dict(_models_below_popularity(suite)),
        idle=_idle_weights(suite),
        shipped=[(of, min(_seeds(of).values(), default=1), _firsts(of), _over_others(of)) for of in shipped],
        claims=dict(_claim_counts(outcomes)),
        claim_total=len(outcomes),
        familiar=_familiar_sources(results),
        limits=_limits(results.suites),
        unfinished=_unfinished(results.suites),
        absent=[
            arm.name for arm in suite.arms if not any(suite.seeds_of(at, arm.name) for at in suite.sources)
        ],
        seeds=_seeds(suite),
        failed=len({(run.source, run.arm, run.seed) for run in results.missing if run.why}),
        metric=written(METRIC),
        percent=_percent,
        range_of=_range,
    )
    finding, *advice = (line.strip() for line in text.splitlines() if line.strip())
    return Verdict(finding, tuple(advice))


def _firsts(suite: SuiteResults) -> list[First]:
    """The first arms in each test. Data sets whose times only give an order do not count, unless there are no
    others."""
    firsts = []
    for by in TESTS:
        every = suite.on_sources(by)
        every = {name: of for name, of in every.items() if of.best() is not None}
        if tables := {name: of for name, of in every.items() if name not in suite.order_only} or every:
            counts = Counter(str(arms.best()) for arms in tables.values()).most_common()
            led = {source: arms for source, arms in tables.items() if arms.best() == counts[0][0]}
            leads = _leads(led, counts[0][0])
            firsts.append(First(by.test, counts, len(tables), len(tables) < len(every), leads))
    return firsts


def _leads(tables: Mapping[str, ArmResults], arm: str, without: Sequence[str] = ()) -> list[Lead]:
    """On each data set, how much better an arm is than the best of all others."""
    leads = []
    for source, arms in tables.items():
        other = arms.best([name for name in arms.plan.finished if name not in (arm, *without)])
        gain = None if other is None else arms.compare(arm, other)
        if other is not None and gain is not None:
            leads.append(Lead(source, other, gain))
    return leads


def _standings(suite: SuiteResults) -> list[tuple[str, str, list[Lead]]]:
    """How the first arm of each model of ours stands in each test against all others."""
    named = {next((arm.name for arm in suite.arms if arm.model == model), "") for model in OURS}
    arms = [arm.name for arm in suite.arms if arm.name in named]
    standings = [(arm, by.test, _leads(suite.on_sources(by), arm)) for by in TESTS for arm in arms]
    return [standing for standing in standings if standing[2]]


def _over_others(suite: SuiteResults) -> dict[str, list[Lead]]:
    """By test and data set, the lead of the first arm over the best model that this package does not ship."""
    kin = [arm.name for arm in suite.arms if arm.model in SHIPPED]
    leads = {by.test: _leads(suite.on_sources(by), suite.first, kin) for by in TESTS}
    return {test: of for test, of in leads.items() if of}


def _wins_over_rivals(suite: SuiteResults) -> dict[str, tuple[int, int, int]]:
    """By test, on how many data sets the first arm is better than the best of its rivals, on how many of
    these significantly, and of how many; nothing if its rivals are all other arms."""
    wins = {}
    if suite.rivals and len(suite.rivals) < len(suite.arms) - 1:
        for by in TESTS:
            best = [arms.over_best_rival() for arms in suite.on_sources(by).values()]
            gains = [gain for _, gain in (pair for pair in best if pair is not None)]
            better = [gain for gain in gains if gain.difference > 0]
            if gains:
                wins[by.test] = len(better), sum(gain.starred for gain in better), len(gains)
    return wins


class Popularity(NamedTuple):
    """How many arms popularity is better than, and of how many: the smallest and the largest number over the
    data sets."""

    arm: str
    below: tuple[int, int]
    others: tuple[int, int]


def _models_below_popularity(suite: SuiteResults) -> Iterator[tuple[str, Popularity]]:
    """By test, the finished arms below popularity."""
    # The last one, if there are several: the first is a plain total, and this one's recency is chosen.
    name = next((arm.name for arm in reversed(suite.arms) if arm.model == "popularity"), "")
    for by in TESTS:
        tables = [arms for arms in suite.on_sources(by).values() if name in arms.plan.finished]
        counts = [sum(arms.mean(arm) < arms.mean(name) for arm in arms.plan.finished) for arms in tables]
        others = [len(arms.plan.finished) - 1 for arms in tables]
        if counts:
            yield by.test, Popularity(name, (min(counts), max(counts)), (min(others), max(others)))


def _idle_weights(suite: SuiteResults) -> tuple[int, int]:
    """On how many data sets the weights of the first arm do nothing, and of how many."""
    sources = [source for source in suite.sources if suite.is_finished(source, suite.first)]
    cells = [suite.cell(source, suite.first) for source in sources]
    healths = [cell.health for cell in cells if cell is not None and cell.health is not None]
    return sum(health.is_idle for health in healths), len(healths)


def _claim_counts(outcomes: Mapping[Claim, Sequence[Outcome]]) -> Iterator[tuple[str, Counter[str]]]:
    """By test, the number of claims with each verdict."""
    for by in TESTS:
        verdicts = [overall_verdict([one for one in of if one.by == by]) for of in outcomes.values()]
        if any(verdict != ClaimVerdict.NOT_MEASURED for verdict in verdicts):
            yield by.test, Counter({verdict.value: verdicts.count(verdict) for verdict in ClaimVerdict})


def _familiar_sources(results: BenchResults) -> list[str]:
    """The data sets on which the weights of `pulse-zero` were learned, where it is tested on them."""
    hashes = set(learned_on().values())
    suites = [suite for suite in results.suites if any(arm.model == "pulse-zero" for arm in suite.arms)]
    pairs = ((suite, source) for suite in suites for source in suite.sources)
    familiar = (source for suite, source in pairs if suite.any_cell(source).data.hash in hashes)
    return list(dict.fromkeys(familiar))


def _limits(suites: Sequence[SuiteResults]) -> dict[str, list[str]]:
    """The limits of settings in words, and the data sets that had them."""
    sources: dict[str, dict[str, None]] = {}
    for suite in suites:
        for source in suite.sources:
            limits = suite.limits(source)
            words = ", ".join(f"{name.replace('.', ' ')} {most:g}" for name, most in limits.items())
            if words:
                sources.setdefault(words, {})[source] = None
    return {words: list(of) for words, of in sources.items()}


def _unfinished(suites: Sequence[SuiteResults]) -> dict[str, list[str]]:
    """The models that were not trained to the end, and on which data sets."""
    sources: dict[str, dict[str, None]] = {}
    for suite in suites:
        for source, arm in suite.unfinished:
            sources.setdefault(arm, {})[source] = None
    return {arm: list(of) for arm, of in sources.items()}


def _seeds(suite: SuiteResults) -> dict[str, int]:
    """The number of seeds that most arms have on each data set."""
    return {source: usual_seeds([arms.means()]) for source, arms in suite.on_sources(ORDINARY).items()}


def _percent(gain: Difference) -> str:
    """A gain in per cent with its interval; as it is where the other's mean is 0."""
    value, low, high = (100 * part for part in (gain.relative.value, gain.relative.low, gain.relative.high))
    if math.isnan(value):
        return f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
    return f"{value:+.1f} %" if math.isnan(low) else f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"


def _range(leads: Sequence[Lead]) -> str:
    """The smallest and the largest distance of some leads in per cent; empty if it is not known of any."""
    values = [lead.gain.relative.value for lead in leads]
    fractions = [abs(100 * value) for value in values if not math.isnan(value)]
    if not fractions:
        return ""
    return " to ".join(dict.fromkeys(f"{bound:.1f}" for bound in (min(fractions), max(fractions)))) + " %"
