"""The verdict above a report, in words that are made from its figures: who is first, by how much, and what
speaks against it."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from unskew.api.zero_shot import learned_on
from unskew.diagnostics.propensity.verdicts import WeightVerdict
from unskew.evaluation.metrics import written
from unskew.experiments.claims import Claim, Outcome, overall
from unskew.experiments.intervals import METRIC, Measured, Versus
from unskew.experiments.results import BALANCED, ORDINARY, EvaluationSpec, Findings, SuiteFindings
from unskew.experiments.tables import usual_seeds
from unskew.report.summary import Verdict

SHIPPED = ("pulse", "pulse-zero")  # the model that this package ships, learned on a log and on others
OURS = ("pulse", "deps")  # the models that this package is about: the one that it ships, and the paper's
MOST_NAMED = 6  # data sets that a sentence names
FEW = 2  # of which each is told with its interval
SMOKE = (
    "This is a smoke test: everything in it was made as small as it can be, to see that all parts work. Its "
    "figures say nothing about any model."
)


def verdict(findings: Findings, outcomes: Mapping[Claim, Sequence[Outcome]]) -> Verdict:
    """What a reader should know first. The finding is who is first; the other sentences begin with their
    topics."""
    suite = leading(findings)
    tables = {by: _tables(suite, by) for by in (ORDINARY, BALANCED)}
    orders = _order_only(suite)
    firsts = [_first(by, of, orders) for by, of in tables.items() if of]
    finding = " ".join(firsts) or f"No run of {suite.title} has been tested in the ordinary test yet."
    said = [
        *(line for by, of in tables.items() for line in _ours(suite, by, of)),
        *_rivals(suite, tables),
        *_popularity(suite, tables),
        *_weights(suite),
        *_shipped(findings, suite),
        *_claims(outcomes),
        *_orders(suite),
        *_familiar(findings),
        *_smaller(findings),
        _seeds(suite),
        *_missing(findings),
    ]
    if findings.smoke:
        return Verdict(SMOKE, (f"What it would say: {finding}", *_missing(findings)))
    return Verdict(finding, tuple(said))


def leading(findings: Findings) -> SuiteFindings:
    """The suite that the verdict is about: the one with DEPS and its rivals, or else the first."""
    return next(
        (suite for name in ("main", "industry") if (suite := findings.suite(name)) is not None),
        findings.suites[0],
    )


def _tables(suite: SuiteFindings, by: EvaluationSpec) -> dict[str, Measured]:
    found = {source: suite.measured(source, by) for source in suite.sources}
    return {source: one for source, one in found.items() if one is not None}


def _first(by: EvaluationSpec, tables: Mapping[str, Measured], orders: Sequence[str]) -> str:
    """Who is first on how many of the data sets. Those whose times only give an order do not count, unless
    there are no others."""
    dated = {source: one for source, one in tables.items() if source not in orders}
    kind = "data sets with real times" if dated and len(dated) < len(tables) else "data sets"
    tables = dated or tables
    firsts = Counter(one.best() for one in tables.values())
    ranked = firsts.most_common()
    if len(tables) == 1:
        source, found = next(iter(tables.items()))
        leader = str(ranked[0][0])
        return f"In the {by.test} test {leader} is first on {source} ({_lead(found, leader)})."
    words = [f"{name} is first on {count} of {len(tables)} {kind}" for name, count in ranked[:1]]
    words += [f"{name} on {count}" for name, count in ranked[1:]]
    leader = str(ranked[0][0])
    leads = [_next_best(one, leader) for one in tables.values() if one.best() == leader]
    fractions = [lead.fraction for _, lead in leads if lead is not None and not math.isnan(lead.fraction)]
    by_how_much = f", {_range(fractions)} ahead of the next" if fractions else ""
    return f"In the {by.test} test {words[0]}{by_how_much}{''.join(f'; {word}' for word in words[1:])}."


def _ours(suite: SuiteFindings, by: EvaluationSpec, tables: Mapping[str, Measured]) -> Iterator[str]:
    """For each model of ours: by how much it leads, and, as plainly, where it does not."""
    for arm in suite.arms:
        there = {source: one for source, one in tables.items() if arm.name in one.seeds}
        if arm.model not in OURS or not there or arm.name not in _named(suite):
            continue
        ahead: list[str] = []
        behind: list[tuple[str, str, Versus]] = []
        for source, found in there.items():
            other, lead = _next_best(found, arm.name)
            if lead is None or other is None:
                continue
            if lead.difference > 0:
                ahead.append(f"{source} {_percent(lead)} over {other}")
            else:
                behind.append((source, other, lead))
        said = [f"ahead of all others on {_listed(ahead, len(there))}"] if ahead else []
        if behind:
            said.append(_behind(behind, len(there)))
        if said:
            yield f"{arm.name}, {by.test} test: {'; '.join(said)}."


def _behind(behind: Sequence[tuple[str, str, Versus]], every: int) -> str:
    """Where a model is not the first, and how sure that is."""
    sure = sum(lead.high < 0 for _, _, lead in behind)
    if len(behind) <= FEW:
        each = [f"{source} {_percent(lead)} to {other}" for source, other, lead in behind]
        return f"behind on {_listed(each, every)}"
    names = dict.fromkeys(other for _, other, _ in behind)
    fractions = [-lead.fraction for _, _, lead in behind if not math.isnan(lead.fraction)]
    far = f" by {_range(fractions)}" if fractions else ""
    return (
        f"behind {_some(list(names), 'other models')} on {len(behind)} of {every}{far}, on {sure} of them "
        "with an interval below 0"
    )


def _shipped(findings: Findings, lead: SuiteFindings) -> Iterator[str]:
    """Who is first in other suites that are about the model that this package ships: their first arm."""
    for suite in findings.suites:
        if suite is not lead and suite.arms[0].model == SHIPPED[0]:
            orders = _order_only(suite)
            firsts = [_first(by, of, orders) for by in (ORDINARY, BALANCED) if (of := _tables(suite, by))]
            if firsts:
                seeds = min(_seeds_of(suite).values(), default=1)
                yield f"Suite {suite.name}, {seeds} seed{'s' * (seeds > 1)}: {' '.join(firsts)}"
            for by in (ORDINARY, BALANCED):
                if said := _over_others(suite, _tables(suite, by)):
                    against = f"{suite.arms[0].name} against the best model other than pulse-zero"
                    yield f"Suite {suite.name}, {by.test} test, {against}: {'; '.join(said)}."


def _over_others(suite: SuiteFindings, tables: Mapping[str, Measured]) -> list[str]:
    """On each data set, how far the first arm is ahead of the best model that this package does not ship."""
    kin, said = {arm.name for arm in suite.arms if arm.model in SHIPPED}, []
    for source, found in tables.items():
        other = found.best([name for name in found.seeds if name not in kin])
        lead = None if other is None else found.compare(suite.arms[0].name, other)
        if lead is not None:
            said.append(f"{source} {_percent(lead)} over {other}")
    return said


def _named(suite: SuiteFindings) -> set[str]:
    """Of each model of ours the one arm that sentences are about: the first of them."""
    return {next((arm.name for arm in suite.arms if arm.model == model), "") for model in OURS}


def _rivals(suite: SuiteFindings, tables: Mapping[EvaluationSpec, Mapping[str, Measured]]) -> Iterator[str]:
    """How the first arm stands among the rivals that its suite names, if these are not all others."""
    if not suite.rivals or len(suite.rivals) == len(suite.arms) - 1:
        return
    words = []
    for by, of in tables.items():
        found = [one.over_best_rival() for one in of.values()]
        gains = [gain for each in found if each is not None for gain in each[1:]]
        won = sum(gain.difference > 0 for gain in gains)
        sure = sum(gain.difference > 0 and gain.starred for gain in gains)
        if gains:
            words.append(
                f"better than the best of them on {won} of {len(gains)} in the {by.test} test ({sure} "
                "significantly)"
            )
    if words:
        yield f"{suite.first} among its {len(suite.rivals)} rivals: {', and '.join(words)}."


def _popularity(
    suite: SuiteFindings, tables: Mapping[EvaluationSpec, Mapping[str, Measured]]
) -> Iterator[str]:
    """How many of the models that were trained are not better than popularity."""
    # The last one, if there are several: the first is a plain total, and this one's recency is chosen.
    simple = next((arm.name for arm in reversed(suite.arms) if arm.model == "popularity"), None)
    words = []
    for by, of in tables.items():
        beaten = {
            source: [name for name in one.seeds if one.mean(name) < one.mean(simple)]
            for source, one in of.items()
            if simple is not None and simple in one.seeds
        }
        if beaten:
            few, many = (pick(map(len, beaten.values())) for pick in (min, max))
            count = f"{many}" if few == many else f"{few} to {many} (by data set)"
            words.append(f"{count} of {len(suite.arms) - 1} other models in the {by.test} test")
    if words:
        yield f"Popularity alone: {simple} is better than {' and than '.join(words)}."


def _weights(suite: SuiteFindings) -> Iterator[str]:
    """On how many data sets the propensity weights of the first arm do nothing."""
    cells = [suite.cell(source, suite.first) for source in suite.sources]
    health = [cell["health"] for cell in cells if cell is not None and cell["health"] is not None]
    idle = sum(WeightVerdict(one["kind"]).does_nothing for one in health)
    if idle:
        yield (
            f"Propensities: the weights of {suite.first} do nothing on {idle} of {len(health)} data sets, so "
            "there it is the same model without them."
        )


def _claims(outcomes: Mapping[Claim, Sequence[Outcome]]) -> Iterator[str]:
    """How many of the paper's claims hold."""
    words = []
    for by in (ORDINARY, BALANCED):
        found = Counter(overall([one for one in of if one.by == by]) for of in outcomes.values())
        if found["not measured"] < len(outcomes):
            counts = ", ".join(
                f"{found[word]} {word}"
                for word in ("confirmed", "refuted", "undecided", "not measured")
                if found[word]
            )
            words.append(f"{counts} by the {by.test} test")
    if words:
        yield f"The paper's {len(outcomes)} claims: {'; '.join(words)}."


def _orders(suite: SuiteFindings) -> Iterator[str]:
    """A caution about logs without real times: whoever put their rows in order decided what is recent."""
    if some := _order_only(suite):
        yield (
            f"Order only: the times of {_some(some, 'data sets')} only give an order. What reads recency, "
            "such as popularity with a half-life and Pulse, measures there how the rows were put in order."
        )


def _order_only(suite: SuiteFindings) -> list[str]:
    """The data sets whose times only give an order."""
    return [source for source in suite.sources if not suite.some_cell(source)["data"].get("dated", True)]


def _familiar(findings: Findings) -> Iterator[str]:
    """Where `pulse-zero` is tested on a log that its weights were learned on."""
    known = set(learned_on().values())
    some = dict.fromkeys(
        source
        for suite in findings.suites
        for source in suite.sources
        if any(arm.model == "pulse-zero" for arm in suite.arms)
        and suite.some_cell(source)["data"]["hash"] in known
    )
    if some:
        yield (
            "No strangers: the weights of pulse-zero were learned on the training set of "
            f"{' and '.join(some)}, so only the other data sets show what it does on a log that "
            "they never saw. docs/pulse.md says how its recipe was chosen."
        )


def _smaller(findings: Findings) -> Iterator[str]:
    """Where training was cut short, and to what."""
    found: dict[str, dict[str, None]] = {}
    for suite in findings.suites:
        for source in suite.sources:
            if limits := suite.at_most(source):
                found.setdefault(limits, {})[source] = None
    if found:
        said = (f"{limits} on {', '.join(sources)}" for limits, sources in found.items())
        yield f"Made smaller to fit the budget: no model has more than {'; '.join(said)}."


def _seeds_of(suite: SuiteFindings) -> dict[str, int]:
    """How many seeds most models have on each data set."""
    return {source: usual_seeds([one.figures()]) for source, one in _tables(suite, ORDINARY).items()}


def _seeds(suite: SuiteFindings) -> str:
    found = _seeds_of(suite)
    seeds = min(found.values(), default=1)
    if seeds == 1:
        several = [f"{count} on {source}" for source, count in found.items() if count > 1]
        more = f" (but {', '.join(several)})" if several else ""
        return (
            f"Seeds: a single seed for each model{more}. Its intervals cover the chance of users only, and "
            "another seed may turn the order."
        )
    return (
        f"Seeds: {seeds} for each model; intervals cover users and seeds. All figures are {written(METRIC)}."
    )


def _missing(findings: Findings) -> Iterator[str]:
    left = findings.planned - findings.done
    if left:
        failed = len({(one.source, one.arm, one.seed) for one in findings.missing if one.why})
        why = f", {failed} of them because they failed" if failed else ""
        yield f"Missing: {left} of {findings.planned} runs are not there{why}; tables show a dash for them."


def _next_best(found: Measured, arm: str) -> tuple[str | None, Versus | None]:
    """The best of all others, and how much better than it an arm is."""
    other = found.best([name for name in found.seeds if name != arm])
    return other, None if other is None else found.compare(arm, other)


def _lead(found: Measured, leader: str) -> str:
    other, lead = _next_best(found, leader)
    return "alone" if lead is None else f"{_percent(lead)} over {other}"


def _percent(gain: Versus) -> str:
    if math.isnan(gain.fraction):
        return f"{gain.difference:+.4f} [{gain.low:+.4f}, {gain.high:+.4f}]"
    if math.isnan(gain.share_low):
        return f"{100 * gain.fraction:+.1f} %"
    return f"{100 * gain.fraction:+.1f} % [{100 * gain.share_low:+.1f}, {100 * gain.share_high:+.1f}]"


def _range(fractions: Sequence[float]) -> str:
    low, high = f"{100 * min(fractions):.1f}", f"{100 * max(fractions):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _listed(words: Sequence[str], every: int) -> str:
    if every == 1:
        return words[0]
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return f"{len(words)} of {every} ({'; '.join(words[:MOST_NAMED])}{more})"


def _some(names: Sequence[str], kind: str) -> str:
    return " or ".join(names) if len(names) <= FEW else f"{len(names)} {kind}"
