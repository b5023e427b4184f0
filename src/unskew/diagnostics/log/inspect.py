"""What a log is like, and what is biased in it, for people: a verdict, sentences, a table, JSON.

`figures` and `order` compute, `words` and `rows` phrase; here everything is put together.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.core import formatting
from unskew.core.config import Document
from unskew.core.progress import progress
from unskew.data.audit.label_leakage import foreign_core
from unskew.data.log.split import Split
from unskew.data.log.views import AUDIENCE, HISTORY
from unskew.diagnostics.log import findings as words
from unskew.diagnostics.log import statistics as figures
from unskew.diagnostics.log import tables as tabled
from unskew.diagnostics.log.order import Shuffle, number_of_shuffles, shuffle_test
from unskew.diagnostics.log.statistics import Drift, Lengths, Popularity, Repeats, Size, Tested, Times
from unskew.report.summary import Row, Verdict, by_topic


@dataclass(frozen=True)
class Inspection:
    """Everything that `inspect` found."""

    source: str
    fingerprint: str  # the hash of the log
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
    foreign_core: int  # the k of a k-core that the log seems to have been through; 0 if there is no sign

    def as_dict(self) -> Document:
        """Plain JSON types; what is undefined is None."""
        found = dataclasses.asdict(self) | {"verdict": dataclasses.asdict(self.verdict())}
        return formatting.plain(found) | {"sentences": list(self.sentences())}

    def verdict(self) -> Verdict:
        """How biased the log is, and what to do about it."""
        return words.verdict(self.popularity, self.drift, self.tests)

    def biases(self) -> tuple[str, ...]:
        """What makes the log an unfair sample of what people want, one sentence per topic."""
        return by_topic(
            Popularity=words.concentration(self.popularity, self.size),
            Drift=words.movement(self.drift),
            Test=words.tested_skew(self.tests),
        )

    def facts(self) -> tuple[str, ...]:
        """What a model can or cannot use in the log; these are not biases."""
        return by_topic(
            Order=words.order(self.shuffle),
            Repeats=words.repetition(self.repeats),
            Ties=words.ties(self.clock),
            Filter=words.foreign_filter(self.foreign_core),
        )

    def sentences(self) -> tuple[str, ...]:
        """The biases, then the facts."""
        return self.biases() + self.facts()

    def rows(self) -> tuple[Row, ...]:
        """All figures as a table for people."""
        return (
            *tabled.size_rows(self.size),
            *tabled.popularity_rows(self.popularity, self.size),
            *tabled.drift_rows(self.drift),
            *(row for tested in self.tests for row in tabled.tested_rows(tested)),
            *tabled.length_rows("user history", self.history, "items"),
            *tabled.length_rows("item audience", self.audience, "users"),
            *tabled.order_rows(self.shuffle),
            *tabled.repeat_rows(self.repeats),
            *tabled.time_rows(self.clock),
            *tabled.tie_rows(self.clock),
        )


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
        shuffle = shuffle_test(positives, len(log.items), number_of_shuffles(len(item)), seed)
        job.advance(note="tests")
        tests = figures.tested_of(split, seed)
        job.advance(note="split")
        summary, fingerprint = tuple(split.summary()), log.fingerprint()
    return Inspection(
        source=log.metadata.source,
        fingerprint=fingerprint,
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
        foreign_core=foreign_core(split.source),
    )
