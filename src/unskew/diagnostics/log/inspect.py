"""What a log is like, and what is biased in it, for people: a verdict, sentences, a table, JSON.

`statistics` and `order` compute the figures; the templates `inspection_*.txt`
hold the sentences and the table.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from unskew.core import formatting
from unskew.core.config import Document
from unskew.core.progress import progress
from unskew.data.audit.label_leakage import foreign_core, foreign_core_sentence
from unskew.data.log.held_out import held_out
from unskew.data.log.split import Split
from unskew.data.log.touched import Touched, touched
from unskew.data.log.views import AUDIENCE, HISTORY
from unskew.diagnostics.log import statistics as figures
from unskew.diagnostics.log.order import Shuffle, number_of_shuffles, shuffle_test
from unskew.diagnostics.log.robots import Robots, robots_of
from unskew.diagnostics.log.statistics import Drift, Lengths, Popularity, Repeats, Size, Tested, Times
from unskew.report.summary import Row, Verdict, render_rows, render_sentences

DURATIONS = (("days", 1.0), ("hours", 1 / 24), ("minutes", 1 / 1440), ("seconds", 1 / 86400))


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
    touched: Touched | None  # None if the log has no context events
    robots: Robots  # users who are probably bots or test accounts
    split: tuple[dict[str, Any], ...]
    foreign_core: int  # the k of a k-core that the log seems to have been through; 0 if there is no sign

    def as_dict(self) -> Document:
        """Plain JSON types; what is undefined is None."""
        found = dataclasses.asdict(self) | {"verdict": dataclasses.asdict(self.verdict())}
        return formatting.plain(found) | {"sentences": list(self.sentences())}

    def verdict(self) -> Verdict:
        """How biased the log is, and what to do about it."""
        finding, *advice = self._sentences("verdict")
        return Verdict(finding, tuple(advice))

    def biases(self) -> tuple[str, ...]:
        """What makes the log an unfair sample of what people want, one sentence per topic."""
        return self._sentences("biases")

    def facts(self) -> tuple[str, ...]:
        """What a model can or cannot use in the log; these are not biases."""
        return self._sentences("facts", foreign_core_sentence=foreign_core_sentence(self.foreign_core))

    def sentences(self) -> tuple[str, ...]:
        """The biases, then the facts."""
        return self.biases() + self.facts()

    def rows(self) -> tuple[Row, ...]:
        """All figures as a table for people."""
        long_tail = f"{100 * (1 - figures.HEAD):.0f}"
        return render_rows("diagnostics/templates/inspection_rows.txt", log=self, long_tail=long_tail)

    def _sentences(self, part: str, **context: object) -> tuple[str, ...]:
        tests = {tested.test: tested for tested in self.tests}
        template = f"diagnostics/templates/inspection_{part}.txt"
        return render_sentences(template, log=self, tests=tests, duration=_duration, **context)


def _duration(days: float) -> str:
    """A duration in its largest unit of which there are at least two; nothing for nan."""
    if math.isnan(days):
        return ""
    name, length = next(((name, length) for name, length in DURATIONS if days >= 2 * length), DURATIONS[-1])
    return f"{days / length:,.0f} {name}"


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
        drift = figures.drift_of(item, time, log.audiences.since, log.clock)
        job.advance(note="shuffle test")
        shuffle = shuffle_test(positives, len(log.items), number_of_shuffles(len(item)), seed)
        job.advance(note="tests")
        tests = figures.tested_of(split, seed)
        near = touched(log, held_out(split, "test").rows)
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
        touched=near,
        robots=robots_of(log),
        split=summary,
        foreign_core=foreign_core(split.source),
    )
