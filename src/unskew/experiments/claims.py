"""The claims of the paper, judged by the results of a bench.

Each claim says that one arm of a suite is better than some others. It is judged on each data set, and by each
test on its own: the ordinary one and the balanced one, both among all items, and, where a data set has them,
the paper's own test rows under the authors' protocol. The rules:

  confirmed     the arm is better than each of the others by NDCG@10, and every one of these paired
                differences has a p-value below 0.05 by the bootstrap over users and seeds. The p-values are
                corrected by Holm over all comparisons of all claims on the same data set and test.
  refuted       it is worse than one of the others, by the same standard; or it is the same as one of them in
                every unit with every seed, so that it cannot be better.
  undecided     anything else. Always so with a single seed, because then the interval covers the users only
                and a second seed might turn the order; the reason names the direction of the difference.
                Always so in a smoke test.
  not measured  an arm that the claim speaks of is missing or was not trained to the end, and no other one
                refutes it.

Over all data sets that have several seeds, a claim is confirmed if it is confirmed on more than half of those
that it was measured on and refuted on none; refuted if it is refuted on more than half and confirmed on none;
else undecided.

Beside a verdict stands the smallest of the differences, with its 95 % interval before the correction. Where
the weights of a model are all nearly the same, that is given as the reason why there is no difference.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from unskew.evaluation.metrics import written
from unskew.experiments.bench_cell import METRIC
from unskew.experiments.intervals import Difference, correct_by_holm
from unskew.experiments.published import published_tests
from unskew.experiments.results import BALANCED, ORDINARY, BenchResults, EvaluationSpec, SuiteResults
from unskew.experiments.tables import NONE, caption, title_of
from unskew.report.table import Cell, Table


class ClaimVerdict(StrEnum):
    """What the results say about a claim."""

    CONFIRMED = "confirmed"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured"


CONFIRMED, REFUTED, UNDECIDED, NOT_MEASURED = ClaimVerdict
Pair = tuple[str, str]
Family = Mapping[tuple["Claim", Pair], Difference]  # all comparisons on one data set in one test
Judged = tuple[ClaimVerdict, str]  # with the reason

NEAR = (0.02, 0.1)  # clips that count as near the paper's 0.05


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the suite that tests it, and which arms it says are better than which."""

    sentence: str
    suite: str
    pairs: Callable[[SuiteResults], Sequence[Pair]]
    is_about_weights: bool = False
    is_optional: bool = False  # whether it is left out if its suite was not asked for


@dataclass(frozen=True)
class Outcome:
    """The verdict on a claim on one data set in one test."""

    claim: Claim
    source: str
    by: EvaluationSpec
    verdict: ClaimVerdict
    reason: str
    pair: Pair | None = None  # the one with the smallest difference
    difference: Difference | None = None
    is_single: bool = False  # whether there is one seed only, which can decide nothing


def _fixed(*pairs: Pair) -> Callable[[SuiteResults], Sequence[Pair]]:
    return lambda suite: pairs


def _rivals(suite: SuiteResults) -> list[Pair]:
    return [(suite.first, rival) for rival in suite.rivals]


def _far_clips(suite: SuiteResults) -> list[Pair]:
    far = [arm.name for arm in suite.arms if arm.x is not None and not NEAR[0] <= arm.x <= NEAR[1]]
    return [(suite.first, name) for name in far]


CLAIMS = (
    Claim(
        "Propensities from two views are better than from one",
        "views",
        _fixed(("DEPS", "without the user view"), ("DEPS", "without the item view")),
        is_about_weights=True,
    ),
    Claim(
        "Propensities from either view are better than none",
        "views",
        _fixed(("without the user view", "without IPS"), ("without the item view", "without IPS")),
        is_about_weights=True,
    ),
    Claim(
        "Sequential propensities are better than frequencies",
        "frequency",
        _fixed(("DEPS", "Item-User-Pro"), ("DEPS", "Item-Pro"), ("DEPS", "User-Pro")),
        is_about_weights=True,
    ),
    Claim("The unsupervised first stage helps", "parts", _fixed(("DEPS", "without stage 1"))),
    Claim(
        "Reading both the history and the audience helps",
        "parts",
        _fixed(("DEPS", "without history"), ("DEPS", "without audience")),
    ),
    *(
        Claim(
            f"The propensities of DEPS lift {model}",
            "agnostic",
            _fixed((f"DEPS ({model})", model)),
            is_about_weights=True,
        )
        for model in ("GRU4Rec+", "FPMC")
    ),
    Claim("A clip M near 0.05 is best", "clip", _far_clips, is_about_weights=True),
    Claim("DEPS is better than all twelve rivals", "main", _rivals),
    Claim("DEPS is better than all twelve rivals, each tuned", "tuned", _rivals, is_optional=True),
)


def judge_claims(results: BenchResults) -> dict[Claim, list[Outcome]]:
    """The outcomes of each claim, on every data set and in every test that it is judged by."""
    suites = [(claim, of) for claim in CLAIMS if (of := results.suite(claim.suite)) is not None]
    families: dict[tuple[str, EvaluationSpec], dict[tuple[Claim, Pair], Difference]] = defaultdict(dict)
    for claim, suite in suites:
        for at in _judged_tests(suite):
            arms = suite.arm_results(*at)
            for pair in claim.pairs(suite) if arms is not None else ():
                if arms is not None and (difference := arms.compare(*pair)) is not None:
                    families[at][claim, pair] = difference
    corrected = {at: correct_by_holm(family) for at, family in families.items()}
    outcomes: dict[Claim, list[Outcome]] = {claim: [] for claim in CLAIMS if not claim.is_optional}
    for claim, suite in suites:
        tests = _judged_tests(suite)
        outcomes[claim] = [_outcome(claim, suite, *at, corrected.get(at, {}), results.smoke) for at in tests]
    return outcomes


def _judged_tests(suite: SuiteResults) -> Iterator[tuple[str, EvaluationSpec]]:
    """The data sets of a suite, each with the tests that claims are judged by."""
    for source in suite.sources:
        yield from ((source, ORDINARY), (source, BALANCED))
        yield from ((source, test.by) for test in published_tests(suite) if test.source == source)


def _outcome(
    claim: Claim, suite: SuiteResults, source: str, by: EvaluationSpec, family: Family, smoke: bool
) -> Outcome:
    pairs = claim.pairs(suite)
    known = {pair: family[claim, pair] for pair in pairs if (claim, pair) in family}
    verdict, reason = _judge(known, smoke) if known else (UNDECIDED, "")
    if len(known) < len(pairs) and verdict != REFUTED:
        absent = dict.fromkeys(name for pair in pairs if pair not in known for name in pair)
        missing = [name for name in absent if suite.cell(source, name) is None]
        unfinished = [name for name in absent if not suite.is_finished(source, name)]
        parts = [f"missing: {', '.join(missing)}"] if missing else []
        parts += [f"not finished: {', '.join(unfinished)}"] if unfinished else []
        reason = "; ".join(parts) or "missing: the same test rows"
        return Outcome(claim, source, by, NOT_MEASURED, reason)
    if claim.is_about_weights:
        names = [name for pair in known for name in pair]
        cells = {name: suite.cell(source, name) for name in names}
        idle = [name for name, cell in cells.items() if cell and cell.health and cell.health.is_idle]
        reason += f"; the weights of {', '.join(idle)} do nothing" if idle else ""
    pair = _smallest(known)
    is_single = min(difference.seeds for difference in known.values()) < 2
    return Outcome(claim, source, by, verdict, reason, pair, known[pair], is_single)


def _smallest(known: Mapping[Pair, Difference]) -> Pair:
    return min(known, key=lambda pair: known[pair].difference)


def _judge(known: Mapping[Pair, Difference], smoke: bool) -> Judged:
    """The verdict by the rules above, and why."""
    one, other = _smallest(known)
    smallest = known[one, other]
    if smoke:
        return UNDECIDED, "a smoke test says nothing"
    if min(difference.seeds for difference in known.values()) < 2:
        sign = (smallest.difference > 0) - (smallest.difference < 0)
        direction = {1: "for", -1: "against", 0: "neither for nor against"}[sign]
        return UNDECIDED, f"a single seed, whose own chance is unknown; it points {direction} the claim"
    worse: dict[str, list[str]] = {}
    for (arm, rival), difference in known.items():
        if difference.starred and difference.difference < 0:
            worse.setdefault(arm, []).append(rival)
    if worse:
        return REFUTED, "; ".join(
            f"{', '.join(rivals)} {'is' if len(rivals) == 1 else 'are'} better than {arm}"
            for arm, rivals in worse.items()
        )
    if same := [pair for pair, each in known.items() if each.difference == each.low == each.high == 0]:
        rivals = ", ".join(rival for _, rival in same)
        return REFUTED, f"{same[0][0]} is the same as {rivals} in every unit with every seed"
    if all(difference.starred for difference in known.values()):
        return CONFIRMED, "better than each" if len(known) > 1 else f"{one} is better than {other}"
    return UNDECIDED, f"the difference of {one} and {other} may be chance"


def overall_verdict(outcomes: Sequence[Outcome]) -> ClaimVerdict:
    """The verdict over all data sets, for one test."""
    if all(outcome.verdict == NOT_MEASURED for outcome in outcomes):
        return NOT_MEASURED
    verdicts = _decidable(outcomes)
    confirmed, refuted = verdicts.count(CONFIRMED), verdicts.count(REFUTED)
    if 2 * confirmed > len(verdicts) and not refuted:
        return CONFIRMED
    return REFUTED if 2 * refuted > len(verdicts) and not confirmed else UNDECIDED


def _decidable(outcomes: Iterable[Outcome]) -> list[ClaimVerdict]:
    """The verdicts on the data sets that can decide anything, because they have several seeds."""
    return [one.verdict for one in outcomes if one.verdict != NOT_MEASURED and not one.is_single]


def claims_table(outcomes: Mapping[Claim, Sequence[Outcome]], commands: Mapping[str, str]) -> Table:
    """Each claim with its verdict by each test, over all data sets, and the command that measures it."""
    judged_by = (outcome.by for of in outcomes.values() for outcome in of)
    tests = {by: f"we find: {title_of(by).lower()}" for by in (ORDINARY, BALANCED, *judged_by)}
    records = []
    for claim, of in outcomes.items():
        record: dict[str, str | Cell] = {"the paper claims": claim.sentence}
        for by, title in tests.items():
            here = [outcome for outcome in of if outcome.by == by]
            verdicts, single = _decidable(here), sum(outcome.is_single for outcome in here)
            counts = [f"{verdicts.count(word)} {word}" for word in (CONFIRMED, REFUTED) if word in verdicts]
            small = [f"{', '.join(counts) or 'none decided'} of {len(verdicts)}"] if verdicts else []
            small += [f"{single} with a single seed"] if single else []
            record[title] = Cell(overall_verdict(here), "; ".join(small))
        records.append(record | {"measured by": commands[claim.suite]})
    return Table.of_records(
        records, (*tests.values(), "measured by"), caption("claims", metric=written(METRIC))
    )


def outcomes_table(outcomes: Mapping[Claim, Sequence[Outcome]]) -> Table:
    """Each claim on each data set in each test, with the smallest difference and the reason."""
    records: list[dict[str, str | Cell]] = []
    for outcome in (outcome for of in outcomes.values() for outcome in of):
        record: dict[str, str | Cell] = {"claim": outcome.claim.sentence, "data": outcome.source}
        record |= {"test": title_of(outcome.by).lower(), "verdict": outcome.verdict}
        record |= dict.fromkeys(("difference", "relative", "smallest is"), NONE)
        if (smallest := outcome.difference) is not None and outcome.pair is not None:
            interval, relative = f"[{smallest.low:+.4f}, {smallest.high:+.4f}]", smallest.relative.value
            record["difference"] = Cell(f"{smallest.difference:+.4f}", interval)
            record["relative"] = NONE if math.isnan(relative) else f"{100 * relative:+.1f} %"
            record["smallest is"] = " − ".join(outcome.pair)
        records.append(record | {"why": outcome.reason})
    return Table.of_records(records, ("data", "test", "verdict", "smallest is", "why"), caption("outcomes"))
