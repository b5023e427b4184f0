"""Is the recommender still healthy? What happened, what was shown and how well a run ranks, window by window.

    with open_store("events.db", "read") as store:
        found = monitor(store, load("run"), Monitoring(max_gini=0.9))
    print(found.healthy, found.table().markdown())

What the figures mean: docs/monitoring.md.
"""

import math
import time
from dataclasses import asdict, dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

import numpy as np

from unskew.core.config import AtLeast1, Document, NotNegative, Range, Share, check
from unskew.core.formatting import plain
from unskew.data.log.clock import Clock
from unskew.report.summary import Verdict, render_sentences
from unskew.report.table import Table
from unskew.serve.monitor.findings import DROP, MISCALIBRATION, RULES, Rule
from unskew.serve.monitor.queries import Calendar, Stored
from unskew.serve.monitor.statistics import compute_figures
from unskew.serve.monitor.window import FIGURES, RANKED, Window
from unskew.serve.store.events import in_iso

if TYPE_CHECKING:
    from unskew.api.model import Model
    from unskew.serve.store.store import Store

MOST = 1000  # windows that can be asked for


@dataclass(frozen=True, kw_only=True)
class Monitoring:
    """How a store is looked at, and what counts as unhealthy. A threshold is judged on the newest whole
    window, and only where it is given."""

    every: str = "1w"
    """The length of a window: a duration such as 1d, 12h or 1w. Weeks begin on Monday and days at midnight,
    in UTC."""
    windows: Annotated[int, Range(least=1, most=MOST)] = 26
    """How many windows are looked at, the newest ones."""
    sample: AtLeast1 = 2000
    """With a run: rank at most so many positives of a window, drawn at random."""
    max_gini: Share | None = None
    """The largest Gini index of what was shown, from 0 (all items equal) to 1."""
    min_coverage: Share | None = None
    """The smallest fraction of all items that were ever clicked so far that must have been shown."""
    max_lift: NotNegative | None = None
    """The largest popularity lift: the mean popularity of what was shown over that of what was clicked."""
    min_click_rate: Share | None = None
    """The smallest fraction of the recommended items that must have been clicked."""
    max_fallback: Share | None = None
    """The largest fraction of the recommendations that no model made."""
    min_ess: Share | None = None
    """The smallest effective sample size of the weights 1 / propensity, as a fraction of the positives with a
    logged propensity."""
    max_miscalibration: NotNegative | None = None
    """The largest distance of the propensity calibration from 1, whatever its sign."""
    min_ndcg: Share | None = None
    """With a run: the smallest NDCG@10."""
    max_ndcg_drop: Share | None = None
    """With a run: the largest drop of NDCG@10, as a fraction of its mean over the windows before, weighted by
    their positives."""


class Health(Enum):
    """What the thresholds say about the newest whole window. The value is the class of the verdict on the
    page."""

    HEALTHY = "good"  # every threshold was judged, and none is crossed
    UNHEALTHY = "bad"
    NOT_JUDGED = "none"  # none is crossed, but some could not be judged, or none was given


class Crossing(NamedTuple):
    """A threshold that was crossed, and one sentence that says what was measured and what to do."""

    flag: str
    measured: float
    threshold: float
    sentence: str


@dataclass(frozen=True)
class Monitor:
    """What a monitor measured. Times are microseconds since 1970.

    run: the model of the run; empty without one.
    windows: the oldest first.
    trained_until: the end of what the run was trained and chosen on.
    """

    store: str
    settings: Monitoring
    run: str
    now: int
    stored: Stored
    windows: tuple[Window, ...]
    trained_until: int | None = None

    @property
    def judged(self) -> Window | None:
        """The newest whole window, on which thresholds are judged."""
        return next((window for window in reversed(self.windows) if window.whole), None)

    @property
    def healthy(self) -> bool:
        """Whether no threshold is crossed."""
        return not self.crossed

    @cached_property
    def crossed(self) -> tuple[Crossing, ...]:
        """The thresholds that are crossed."""
        window = self.judged
        if window is None:
            return ()
        crossings = []
        for rule, threshold in self.thresholds:
            measured = self._measured(rule, window)
            if measured > threshold if rule.is_upper else measured < threshold:  # never so with nan
                text = rule.crossed_sentence(self._written(rule, window), threshold, self.named(window))
                crossings.append(Crossing(rule.flag, measured, threshold, text))
        return tuple(crossings)

    @cached_property
    def unknown(self) -> tuple[tuple[Rule, float], ...]:
        """The thresholds that could not be judged."""
        window = self.judged
        if window is None:
            return ()
        return tuple(pair for pair in self.thresholds if math.isnan(self._measured(pair[0], window)))

    @property
    def health(self) -> Health:
        """What the thresholds say."""
        if self.crossed:
            return Health.UNHEALTHY
        is_judged = self.judged is not None and self.thresholds and not self.unknown
        return Health.HEALTHY if is_judged else Health.NOT_JUDGED

    def verdict(self) -> Verdict:
        """Whether it is healthy, in one sentence, and what to do or what was measured."""
        (finding,) = render_sentences("serve/monitor/templates/finding.txt", monitor=self)
        return Verdict(finding, (*(crossing.sentence for crossing in self.crossed), *self.notes()))

    def notes(self) -> tuple[str, ...]:
        """What a reader should know beside the figures: what is not known or not judged, and why."""
        last = self.stored.last
        is_silent = last is not None and self.now - last > Clock(10**6).ticks_in(self.settings.every, "every")
        return render_sentences(
            "serve/monitor/templates/notes.txt",
            monitor=self,
            stored=self.stored,
            is_silent=is_silent,
            last="" if last is None else in_iso(last)[:10],
        )

    def named(self, window: Window) -> str:
        """A window by its first and its last moment."""
        first, last = in_iso(window.start), in_iso(window.end)
        midnight = "T00:00:00Z"
        if first.endswith(midnight) and last.endswith(midnight):
            return f"{first[:10]} to {in_iso(window.end - 1)[:10]}"
        return f"{first[:16]}Z to {last[:16]}Z"

    def table(self, newest: int | None = None) -> Table:
        """All figures in rows, and the windows in columns, the newest first."""
        windows = self.windows[::-1][:newest]
        shown = [figure for figure in FIGURES.values() if self.run or figure.group != RANKED]
        head = ["", *(self.dated(window) for window in windows)]
        return Table(head, [[figure.name, *map(figure.of, windows)] for figure in shown])

    def dated(self, window: Window) -> str:
        """When a window begins, and whether it is still open."""
        text = in_iso(window.start)
        short = text[:10] if all(other.start % (86_400 * 10**6) == 0 for other in self.windows) else text[:16]
        return short if window.whole else f"{short} (open)"

    def document(self) -> Document:
        """Everything as plain JSON types; what is not known is null."""
        judged = self.judged
        document = {
            "store": self.store,
            "run": self.run or None,
            "now": in_iso(self.now),
            "every": self.settings.every,
            "healthy": self.healthy,
            "verdict": asdict(self.verdict()),
            "judged": None if judged is None else in_iso(judged.start),
            "thresholds": {rule.setting: threshold for rule, threshold in self.thresholds},
            "crossed": [crossing._asdict() for crossing in self.crossed],
            "notes": list(self.notes()),
            "trained_until": None if self.trained_until is None else in_iso(self.trained_until),
            "windows": [
                asdict(window) | {"start": in_iso(window.start), "end": in_iso(window.end)}
                for window in self.windows
            ],
        }
        return dict(plain(document))

    # Thresholds

    @property
    def thresholds(self) -> list[tuple[Rule, float]]:
        """The thresholds that were given."""
        settings = [(rule, getattr(self.settings, rule.setting)) for rule in RULES]
        return [(rule, threshold) for rule, threshold in settings if threshold is not None]

    def _measured(self, rule: Rule, window: Window) -> float:
        if rule.field == MISCALIBRATION:
            return abs(window.calibration - 1)
        if rule.field == DROP:
            return self.drop(window)
        return float(getattr(window, rule.field))

    def _written(self, rule: Rule, window: Window) -> str:
        if rule.field == MISCALIBRATION:
            return f"{abs(window.calibration - 1):.2f} (it was {FIGURES['calibration'].of(window)})"
        if rule.field == DROP:
            return f"{100 * self.drop(window):.0f} %, to {FIGURES['ndcg'].of(window)},"
        return FIGURES[rule.field].of(window)

    def drop(self, window: Window) -> float:
        """How far NDCG@10 of a window is below its mean over the windows before, as a fraction of that mean;
        nan if one of the two is not known."""
        before = [other for other in self.windows if other.start < window.start and other.ranked]
        if not before:
            return math.nan
        mean = float(np.average([other.ndcg for other in before], weights=[other.ranked for other in before]))
        return 1 - window.ndcg / mean if mean else math.nan


def monitor(
    store: "Store",
    model: "Model | None" = None,
    settings: Monitoring | None = None,
    now: int | None = None,
) -> Monitor:
    """Measure a store, window by window.

    Parameters
    ----------
    store
        An open store; reading is enough, and it may be in use meanwhile.
    model
        A trained model, such as `unskew.load(RUN)`. What it remembers counts as the time before the store,
        and it is ranked on each window that it did not see. It works on a copy of the weights, so that the
        model may be in use meanwhile.
    settings
        The windows and the thresholds.
    now
        Microseconds since 1970; by default the clock of this machine.

    Returns
    -------
    Monitor
        The figures of all windows, and the thresholds that are crossed.
    """
    settings = settings or Monitoring()
    check(settings)
    calendar = Calendar(Clock(10**6).ticks_in(settings.every, "every"))
    now = time.time_ns() // 1000 if now is None else now
    ranking = None
    if model is not None:
        from unskew.serve.monitor.ranking import Ranking  # which needs torch

        ranking = Ranking(model)
    windows, stored = compute_figures(store, calendar, settings.windows, now, ranking)
    if model is None or ranking is None:
        return Monitor(store.name, settings, "", now, stored, windows)
    windows = ranking.ranked(windows, settings.sample)
    return Monitor(store.name, settings, model.name, now, stored, windows, ranking.trained_until)
