"""What the paper claims, and what a bench finds.

Each claim says that one arm of a suite is better than some others. It is judged on each data set, and by each
test on its own: the ordinary one and the balanced one, both among all items, and, where a data set has them,
the paper's own test rows under the authors' protocol. The rules:

  confirmed     the arm is better than each of the others by NDCG@10, and every one of these paired
                differences has a p-value below 0.05 by the bootstrap over users and seeds. The p-values are
                corrected by Holm over all comparisons of all claims on the same data set and test.
  refuted       it is worse than one of the others, by the same standard; or it is the same as one of them in
                every unit with every seed, so that it cannot be better.
  undecided     anything else. Always so with a single seed, because then the interval covers the users only
                and a second seed might turn the order; the reason says which way the figure points. Always so
                in a smoke test.
  not measured  an arm that the claim speaks of is missing, and no other one refutes it.

Over all data sets that have several seeds, a claim is confirmed if it is confirmed on more than half of those
that it was measured on and refuted on none; refuted if it is refuted on more than half and confirmed on none;
else undecided.

The figure that stands beside a verdict is the smallest of the differences, with its 95 % interval before the
correction. Where the weights of a model do nothing, as `unskew propensity health` says it, that is the reason
why nothing can be seen.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from unskew.diagnostics.propensity.verdicts import WeightVerdict
from unskew.evaluation.metrics import written
from unskew.experiments.intervals import METRIC, Versus, corrected_over
from unskew.experiments.published import beside
from unskew.experiments.results import BALANCED, ORDINARY, EvaluationSpec, Findings, SuiteFindings
from unskew.experiments.table import NONE, Entry, Sheet
from unskew.experiments.tables import called

Judged = Literal["confirmed", "refuted", "undecided", "not measured"]
Pairs = Sequence[tuple[str, str]]

NEAR = (0.02, 0.1)  # clips that count as near the paper's 0.05


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper, the suite that tests it, and which arms it says are better than which."""

    words: str
    suite: str
    pairs: Callable[[SuiteFindings], Pairs]
    weighted: bool = False  # whether it is about what propensities do
    optional: bool = False  # whether nobody misses it if its suite was not asked for


@dataclass(frozen=True)
class Outcome:
    """What was found for a claim on one data set in one test."""

    claim: Claim
    source: str
    by: EvaluationSpec
    judged: Judged
    reason: str
    pair: tuple[str, str] | None = None  # the one with the smallest difference
    found: Versus | None = None
    single: bool = False  # whether there is one seed only, which can decide nothing


def _fixed(*pairs: tuple[str, str]) -> Callable[[SuiteFindings], Pairs]:
    return lambda suite: pairs


def _rivals(suite: SuiteFindings) -> Pairs:
    return [(suite.first, rival) for rival in suite.rivals]


def _far_clips(suite: SuiteFindings) -> Pairs:
    far = [arm.name for arm in suite.arms if arm.x is not None and not NEAR[0] <= arm.x <= NEAR[1]]
    return [(suite.first, name) for name in far]


CLAIMS = (
    Claim(
        "Propensities from two views are better than from one",
        "views",
        _fixed(("DEPS", "without the user view"), ("DEPS", "without the item view")),
        weighted=True,
    ),
    Claim(
        "Propensities from either view are better than none",
        "views",
        _fixed(("without the user view", "without IPS"), ("without the item view", "without IPS")),
        weighted=True,
    ),
    Claim(
        "Sequential propensities are better than frequencies",
        "frequency",
        _fixed(("DEPS", "Item-User-Pro"), ("DEPS", "Item-Pro"), ("DEPS", "User-Pro")),
        weighted=True,
    ),
    Claim("The unsupervised first stage helps", "parts", _fixed(("DEPS", "without stage 1"))),
    Claim(
        "Reading both the history and the audience helps",
        "parts",
        _fixed(("DEPS", "without history"), ("DEPS", "without audience")),
    ),
    Claim(
        "The propensities of DEPS lift GRU4Rec+",
        "agnostic",
        _fixed(("DEPS (GRU4Rec+)", "GRU4Rec+")),
        weighted=True,
    ),
    Claim("The propensities of DEPS lift FPMC", "agnostic", _fixed(("DEPS (FPMC)", "FPMC")), weighted=True),
    Claim("A clip M near 0.05 is best", "clip", _far_clips, weighted=True),
    Claim("DEPS is better than all twelve rivals", "main", _rivals),
    Claim("DEPS is better than all twelve rivals, each tuned", "tuned", _rivals, optional=True),
)


def judged(findings: Findings) -> dict[Claim, list[Outcome]]:
    """What was found for each claim, on every data set and in every test that it is judged by."""
    compared: dict[tuple[Claim, str, EvaluationSpec], dict[tuple[str, str], Versus | None]] = {}
    asked = [claim for claim in CLAIMS if not claim.optional or findings.suite(claim.suite)]
    for claim in asked:
        suite = findings.suite(claim.suite)
        for source, by in [] if suite is None else _places(suite):
            assert suite is not None
            found = suite.measured(source, by)
            compared[claim, source, by] = {
                (one, other): None if found is None else found.compare(one, other, METRIC)
                for one, other in claim.pairs(suite)
            }
    corrected = _corrected(compared)
    outcomes: dict[Claim, list[Outcome]] = {claim: [] for claim in asked}
    for (claim, source, by), of_pairs in compared.items():
        known = {pair: corrected[source, by].get((claim, pair)) for pair in of_pairs}
        suite = findings.suite(claim.suite)
        assert suite is not None
        outcomes[claim].append(_outcome(claim, suite, source, by, known, findings.smoke))
    return outcomes


def overall(outcomes: Sequence[Outcome]) -> Judged:
    """The verdict over all data sets, for one test."""
    if all(one.judged == "not measured" for one in outcomes):
        return "not measured"
    measured = decidable(outcomes)
    confirmed, refuted = measured.count("confirmed"), measured.count("refuted")
    if 2 * confirmed > len(measured) and not refuted:
        return "confirmed"
    return "refuted" if 2 * refuted > len(measured) and not confirmed else "undecided"


def decidable(outcomes: Sequence[Outcome]) -> list[Judged]:
    """The verdicts on the data sets that can decide anything, because they have several seeds."""
    return [one.judged for one in outcomes if one.judged != "not measured" and not one.single]


def tests_of(outcomes: Mapping[Claim, Sequence[Outcome]]) -> list[EvaluationSpec]:
    """The tests that claims were judged by; the ordinary and the balanced one in any case."""
    found = dict.fromkeys(one.by for of in outcomes.values() for one in of)
    return list(dict.fromkeys((ORDINARY, BALANCED, *found)))


def claims_sheet(outcomes: Mapping[Claim, Sequence[Outcome]], commands: Mapping[str, str]) -> Sheet:
    """Each claim with its verdict by each test, over all data sets, and the command that measures it."""
    tests = tests_of(outcomes)
    rows = []
    for claim, of in outcomes.items():
        row = [Entry(claim.words)]
        for by in tests:
            here = [one for one in of if one.by == by]
            known, single = decidable(here), sum(one.single for one in here)
            counts = (f"{known.count(word)} {word}" for word in ("confirmed", "refuted") if word in known)
            small = [f"{', '.join(counts) or 'none decided'} of {len(known)}"] if known else []
            small += [f"{single} with a single seed"] if single else []
            row.append(Entry(overall(here), "; ".join(small)))
        rows.append([*row, Entry(commands[claim.suite])])
    caption = (
        f"What the paper claims, what we find, by {written(METRIC)}. Small: on how many of the data sets "
        "that it was measured on with several seeds. A claim is confirmed or refuted only if several seeds, "
        "the users and the correction for many comparisons allow it."
    )
    head = ("the paper claims", *(f"we find: {called(by).lower()}" for by in tests), "measured by")
    return Sheet(head, rows, caption, text=tuple(range(len(head))))


def outcomes_sheet(outcomes: Mapping[Claim, Sequence[Outcome]]) -> Sheet | None:
    """Each claim on each data set in each test, with its figure and the reason; None if none was measured."""
    rows = [
        [
            Entry(claim.words),
            Entry(one.source),
            Entry(called(one.by).lower()),
            Entry(one.judged),
            *_figures(one),
            Entry(one.reason),
        ]
        for claim, of in outcomes.items()
        for one in of
    ]
    head = ("claim", "data", "test", "verdict", "difference", "relative", "smallest is", "why")
    said = (
        "Each claim on each data set. The difference is the smallest of those that the claim is about, with "
        "its 95 % interval before the correction."
    )
    return Sheet(head, rows, said, text=(0, 1, 2, 3, 6, 7)) if rows else None


def _figures(one: Outcome) -> Iterator[Entry]:
    if one.found is None or one.pair is None:
        yield from (Entry(NONE), Entry(NONE), Entry(NONE))
        return
    found = one.found
    yield Entry(f"{found.difference:+.4f}", f"[{found.low:+.4f}, {found.high:+.4f}]")
    yield Entry(NONE if found.fraction != found.fraction else f"{100 * found.fraction:+.1f} %")
    yield Entry(f"{one.pair[0]} − {one.pair[1]}")


def _places(suite: SuiteFindings) -> Iterator[tuple[str, EvaluationSpec]]:
    """The data sets of a suite, each with the tests that claims are judged by."""
    own = [(one.source, one.by) for one in beside(suite)]
    for source in suite.sources:
        yield source, ORDINARY
        yield source, BALANCED
        yield from ((name, by) for name, by in own if name == source)


def _corrected(
    compared: Mapping[tuple[Claim, str, EvaluationSpec], Mapping[tuple[str, str], Versus | None]],
) -> dict[tuple[str, EvaluationSpec], dict[tuple[Claim, tuple[str, str]], Versus]]:
    """All comparisons by data set and test, each corrected over those of the same data set and test."""
    families: dict[tuple[str, EvaluationSpec], dict[str, tuple[Claim, tuple[str, str], Versus]]] = {}
    for (claim, source, by), of_pairs in compared.items():
        family = families.setdefault((source, by), {})
        for pair, found in of_pairs.items():
            if found is not None:
                family[f"{claim.words}|{pair}"] = claim, pair, found
    corrected = {}
    for at, family in families.items():
        holm = corrected_over({name: found for name, (_, _, found) in family.items()})
        corrected[at] = {(claim, pair): holm[name] for name, (claim, pair, _) in family.items()}
    return corrected


def _outcome(
    claim: Claim,
    suite: SuiteFindings,
    source: str,
    by: EvaluationSpec,
    known: Mapping[tuple[str, str], Versus | None],
    smoke: bool,
) -> Outcome:
    there = {pair: found for pair, found in known.items() if found is not None}
    absent = [pair for pair in known if pair not in there]
    if not there:
        return Outcome(claim, source, by, "not measured", f"missing: {_missing(suite, source, list(known))}")
    pair = min(there, key=lambda pair: there[pair].difference)
    verdict, why = _judged(there, pair, smoke)
    single = min(each.seeds for each in there.values()) < 2
    if absent and verdict != "refuted":
        return Outcome(claim, source, by, "not measured", f"missing: {_missing(suite, source, absent)}")
    if idle := _idle(suite, source, claim, list(known)):
        why = f"{why}; {idle}"
    return Outcome(claim, source, by, verdict, why, pair, there[pair], single)


def _judged(
    there: Mapping[tuple[str, str], Versus], smallest: tuple[str, str], smoke: bool
) -> tuple[Judged, str]:
    """The verdict by the rules above, and why."""
    one, other = smallest
    if smoke:
        return "undecided", "a smoke test says nothing"
    if min(each.seeds for each in there.values()) < 2:
        sign = (there[smallest].difference > 0) - (there[smallest].difference < 0)
        towards = {1: "for", -1: "against", 0: "neither for nor against"}[sign]
        return "undecided", f"a single seed, whose own chance is unknown; it points {towards} the claim"
    sure = {pair: each for pair, each in there.items() if each.starred}
    worse = [pair for pair, each in sure.items() if each.difference < 0]
    if worse:
        return "refuted", _better(worse)
    if same := [pair for pair, each in there.items() if each.difference == each.low == each.high == 0]:
        others = ", ".join(other for _, other in same)
        return "refuted", f"{same[0][0]} is the same as {others} in every unit with every seed"
    if len(sure) == len(there):
        return "confirmed", "better than each" if len(there) > 1 else f"{one} is better than {other}"
    return "undecided", f"the difference of {one} and {other} may be chance"


def _better(worse: Pairs) -> str:
    """Who is better than whom, where the claim says the reverse."""
    than: dict[str, list[str]] = {}
    for one, other in worse:
        than.setdefault(one, []).append(other)
    return "; ".join(
        f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} better than {one}"
        for one, others in than.items()
    )


def _idle(suite: SuiteFindings, source: str, claim: Claim, pairs: Pairs) -> str:
    """Which of the models that a claim about propensities speaks of have weights that do nothing."""
    if not claim.weighted:
        return ""
    idle = []
    for name in dict.fromkeys(name for pair in pairs for name in pair):
        cell = suite.cell(source, name)
        health = None if cell is None else cell["health"]
        if health is not None and WeightVerdict(health["kind"]).does_nothing:
            idle.append(name)
    return f"the weights of {', '.join(idle)} do nothing" if idle else ""


def _missing(suite: SuiteFindings, source: str, pairs: Pairs) -> str:
    names = dict.fromkeys(name for pair in pairs for name in pair)
    return ", ".join(name for name in names if suite.cell(source, name) is None) or "the same test rows"
