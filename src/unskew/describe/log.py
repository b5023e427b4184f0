"""What a log is like, and what is biased in it, for people: as a table, as sentences, as JSON.

The figures are made in `statistics`; here they are put together and into formatting.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from unskew import formatting
from unskew.data.split import Split
from unskew.data.views import AUDIENCE, HISTORY
from unskew.describe import figures
from unskew.describe.figures import HEAD, Drift, Lengths, Popularity, Repeats, Shuffle, Size, Tested, Times
from unskew.progress import progress

FEWEST_IN_SLICE = 30
CLEAR = 3.0  # standard deviations from which we call a difference one
DURATIONS = (("days", 1.0), ("hours", 1 / 24), ("minutes", 1 / 1440), ("seconds", 1 / 86400))


class Row(NamedTuple):
    """One line of the table that a terminal shows."""

    group: str
    name: str
    value: str
    meaning: str = ""


@dataclass(frozen=True)
class Inspection:
    source: str
    size: Size
    clock: Times
    history: Lengths
    audience: Lengths
    popularity: Popularity
    drift: Drift
    shuffle: Shuffle
    repeats: Repeats
    tests: tuple[Tested, ...]
    split: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON types; what is undefined is None."""
        found: dict[str, Any] = formatting.plain(dataclasses.asdict(self))
        return found | {"sentences": list(self.sentences())}

    def sentences(self) -> tuple[str, ...]:
        """What is biased here, in formatting."""
        found = {
            "Popularity": _concentration(self.popularity, self.size),
            "Drift": _movement(self.drift),
            "Order": _order(self.shuffle),
            "Test": _balance(self.tests),
            "Repeats": _repeats(self.repeats),
            "Ties": _ties(self.clock),
        }
        return tuple(f"{topic}: {sentence}" for topic, sentence in found.items() if sentence)

    def rows(self) -> tuple[Row, ...]:
        """The same as a table for people."""
        size, clock, popularity, drift, shuffle = (
            self.size,
            self.clock,
            self.popularity,
            self.drift,
            self.shuffle,
        )
        last = drift.slices[-1]
        others = "the others are targets only" if size.positives < size.interactions else ""
        recurring = "below 0: the same pairs again and again" if size.sparsity < 0 else ""
        rows = [
            Row("size", "users", formatting.count(size.users)),
            Row("size", "items", formatting.count(size.items)),
            Row("size", "interactions", formatting.count(size.interactions)),
            Row("size", "positives", formatting.count(size.positives), others),
            Row(
                "size",
                "sparsity",
                formatting.share(size.sparsity, 2),
                recurring or "1 - interactions / (users x items)",
            ),
            Row("time", "first", str(clock.first)),
            Row("time", "last", str(clock.last)),
            Row("time", "resolution", clock.resolution, f"{formatting.count(clock.distinct)} distinct times"),
            Row("time", "tied rows", formatting.share(clock.tied_rows), "share their time with another row"),
            Row(
                "time",
                "tied positives",
                formatting.share(clock.tied_positives),
                "their user has another one at the same time",
            ),
        ]
        for name, lengths, what in (("history", self.history, "items"), ("audience", self.audience, "users")):
            rows += [
                Row(name, "mean", formatting.number(lengths.mean), f"{what} strictly before a positive"),
                Row(
                    name,
                    "median / 90 %",
                    f"{formatting.number(lengths.median)} / {formatting.number(lengths.p90)}",
                ),
                Row(name, "empty", formatting.share(lengths.empty)),
                Row(
                    name,
                    f"longer than {lengths.limit}",
                    formatting.share(lengths.cut),
                    "only the newest are read",
                ),
            ]
        rows += [
            Row(
                "popularity",
                "Gini",
                formatting.number(popularity.gini),
                f"were all items equally popular: {formatting.number(popularity.gini_even)}",
            ),
            Row(
                "popularity",
                "top 1 % of items",
                formatting.share(popularity.top_1_percent),
                "of all positives",
            ),
            Row(
                "popularity",
                "top 10 % of items",
                formatting.share(popularity.top_10_percent),
                "of all positives",
            ),
            Row("popularity", "half of the positives", formatting.count(popularity.half), "items have them"),
            Row(
                "drift",
                f"top {drift.top} kept",
                formatting.share(drift.kept),
                f"first slice of {len(drift.slices)} to the last",
            ),
            Row("drift", "new items", formatting.share(last.new), "of the positives of the last slice"),
            Row(
                "drift",
                "rank correlation",
                formatting.number(last.correlation),
                "last slice with the one before",
            ),
            Row(
                "order",
                "repeated transitions",
                formatting.count(shuffle.observed),
                f"pairs among {formatting.count(shuffle.transitions)}",
            ),
            Row(
                "order",
                "by chance",
                f"{formatting.number(shuffle.mean)} ± {formatting.number(shuffle.deviation)}",
                f"{len(shuffle.shuffled)} shuffles",
            ),
            Row(
                "order",
                "ratio / z",
                f"{formatting.number(shuffle.ratio)} / {formatting.number(shuffle.z)}",
                _order(shuffle),
            ),
        ]
        repeats = self.repeats
        rows += [
            Row(
                "repeats",
                "repeated positives",
                formatting.count(repeats.repeated),
                "their user had the same item before",
            ),
            Row(
                "repeats",
                "in training / test",
                f"{formatting.share(repeats.train_share)} / {formatting.share(repeats.test_share)}",
                "of the positives",
            ),
            Row(
                "repeats",
                "past items",
                "candidates" if repeats.kept else "hidden",
                "in training, evaluation and recommend",
            ),
        ]
        for tested in self.tests:
            group = f"{tested.test} test"
            rows += [
                Row(group, "positives", formatting.count(tested.positives), "that are ranked"),
                Row(
                    group,
                    "effective sample size",
                    formatting.number(tested.effective_sample_size),
                    "(sum of weights)² / sum of weights²",
                ),
                Row(
                    group,
                    "Gini",
                    formatting.number(tested.gini),
                    "of the weight of its items; 0: all count alike",
                ),
                Row(
                    group,
                    "typical popularity",
                    formatting.number(10**tested.mean_log10_popularity),
                    "training positives, geometric mean",
                ),
                Row(
                    group,
                    "long tail",
                    formatting.share(tested.long_tail),
                    f"of positives outside the top {HEAD:.0%} of known items",
                ),
                Row(
                    group, "unknown items", formatting.share(tested.unknown_items), "training never saw them"
                ),
            ]
        return tuple(rows)


def inspect(split: Split, seed: int = 0) -> Inspection:
    """Look at a log and its split. Everything is exact but the shuffle test, which draws with `seed`."""
    log = split.log
    positives = log.histories
    user = np.repeat(np.arange(len(positives), dtype=np.int32), np.diff(positives.offsets))
    item, time = np.asarray(positives.ids), np.asarray(positives.times)
    counts = np.bincount(item, minlength=len(log.items))
    with progress("inspect", total=7) as job:
        job.advance(note="times")
        clock = figures.times_of(np.asarray(log.time), log.clock, figures.tied_in_sequence(user, time))
        job.advance(note="histories")
        history = figures.lengths_of(figures.events_before(log.histories, user, time), HISTORY)
        job.advance(note="audiences")
        audience = figures.lengths_of(figures.events_before(log.audiences, item, time), AUDIENCE)
        job.advance(note="drift")
        drift = figures.drift_of(item, time, log.audiences.first_times, log.clock)
        job.advance(note="shuffle test")
        shuffle = figures.shuffle_test(positives, len(log.items), figures.number_of_shuffles(len(item)), seed)
        job.advance(note="tests")
        tests = figures.tested_of(split, seed)
        job.advance(note="split")
        summary = tuple(split.summary())
    return Inspection(
        source=str(log.metadata.get("source", "the log")),
        size=figures.size_of(log),
        clock=clock,
        history=history,
        audience=audience,
        popularity=figures.popularity_of(counts, seed),
        drift=drift,
        shuffle=shuffle,
        repeats=figures.repeats_of(split),
        tests=tests,
        split=summary,
    )


# Words


def _concentration(popularity: Popularity, size: Size) -> str:
    half = (
        f"{formatting.count(popularity.half)} of {formatting.count(size.items)} items "
        f"({formatting.share(popularity.half / size.items)})"
    )
    even = (
        f"Gini {formatting.number(popularity.gini)}; were all items equally popular, "
        f"{formatting.number(popularity.gini_even)}"
    )
    return (
        f"{half} have half of all positives, the top 10 % have {formatting.share(popularity.top_10_percent)} "
        f"({even})."
    )


def _movement(drift: Drift) -> str:
    if len(drift.slices) == 1:
        return "not to be seen, all positives have one time."
    fewest = min(part.positives for part in drift.slices)
    if fewest < FEWEST_IN_SLICE:
        return f"too few positives to judge, {formatting.count(fewest)} in a slice of time."
    last = drift.slices[-1]
    gone = ""
    if drift.half_life is not None and drift.half_life < len(drift.slices) - 1:
        days = "" if math.isnan(drift.half_life_days) else f" ({_duration(drift.half_life_days)})"
        gone = f"; half of them were gone after {drift.half_life} of {len(drift.slices)} slices{days}"
    return (
        f"of the first slice's top {drift.top} items, {formatting.share(drift.kept)} are still at the top "
        "in the "
        f"last slice{gone}."
        f" {formatting.share(last.new)} of the last slice's positives are on items that are new in it."
    )


def _order(shuffle: Shuffle) -> str:
    if not shuffle.transitions:
        return "cannot be tested, nobody has two positives at different times."
    if not shuffle.mean and not shuffle.observed:
        return "too little data to judge, no transition occurs twice."
    if not shuffle.mean:
        return (
            f"carries information: {formatting.count(shuffle.observed)} repeated transitions, and none after "
            "shuffling."
        )
    often = f"repeated transitions are {formatting.number(shuffle.ratio)} times as frequent as chance"
    if not shuffle.deviation:
        return f"too little data to judge, {often}, but all shuffles are alike."
    verdict = "no visible" if abs(shuffle.z) < CLEAR else "little" if 0.95 < shuffle.ratio < 1.05 else ""
    return f"carries {verdict} information: {often} (z = {formatting.number(shuffle.z)}).".replace("  ", " ")


def _balance(tests: tuple[Tested, ...]) -> str:
    ordinary, balanced = (
        next(tested for tested in tests if tested.test == name) for name in ("ordinary", "balanced")
    )
    if not ordinary.positives:
        return "the test part has no positives that could be ranked."
    head = f"{formatting.share(ordinary.head)} of the ordinary test is on the most popular fifth of the items"
    return f"{head}; where every item counts once (balanced), {formatting.share(balanced.head)} is."


def _repeats(repeats: Repeats) -> str:
    if not repeats.repeated:
        return ""
    how = (
        "past items stay candidates"
        if repeats.kept
        else "past items are hidden, and repeated targets are left out"
    )
    share = formatting.share(repeats.repeated / repeats.positives)
    return f"{share} of the positives are on an item that the same user had before; {how}."


def _ties(clock: Times) -> str:
    if not clock.tied_positives >= 0.1:
        return ""
    return (
        f"{formatting.share(clock.tied_positives)} of the positives share their time with another one of the "
        "same user"
        f" (resolution: {clock.resolution}); their order is unknown and never used."
    )


def _duration(days: float) -> str:
    name, length = next(((n, d) for n, d in DURATIONS if days >= 2 * d), DURATIONS[-1])
    return f"{days / length:,.0f} {name}"
