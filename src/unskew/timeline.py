"""Test, then train: a model evaluated window by window along the time line, as a production system is.

A frozen test asks what a model trained once is worth for the whole of the rest of the log. In production it
is trained again. Here each
window is tested first and becomes part of what is known afterwards: histories, audiences and counts are
always up to date, and with
`refresh="each"` the model itself is trained again before each window, on everything before it.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from unskew.api import Model
from unskew.data.clock import Clock
from unskew.data.held_out import Protocol
from unskew.data.split import Split, borders, split_at
from unskew.errors import BadInput, NothingToRank
from unskew.evaluate import Evaluation
from unskew.progress import progress
from unskew.significance import interval

Refresh = Literal["never", "each"]
MOST = 1000  # windows; more are a slip of the unit


@dataclass(frozen=True, eq=False)
class Window:
    """One window of time and what the model made of it; None where the window has no positive to rank."""

    start: int
    end: int
    trained_until: int  # the model that was tested had learned from what happened before
    evaluation: Evaluation | None


@dataclass(frozen=True, eq=False)
class Rolling:
    """A curve: one evaluation per window."""

    windows: tuple[Window, ...]
    refresh: Refresh
    clock: Clock

    def curve(self, metric: str = "ndcg@10") -> list[float]:
        """The metric of each window; nan where nothing could be ranked."""
        return [
            float("nan") if window.evaluation is None else window.evaluation.mean(metric)
            for window in self.windows
        ]

    def mean(self, metric: str = "ndcg@10") -> float:
        """Over all windows, each counting as much as its units do together."""
        found = [window.evaluation for window in self.windows if window.evaluation is not None]
        sizes = [each.weights.sum() for each in found]
        return (
            float(np.average([each.mean(metric) for each in found], weights=sizes)) if found else float("nan")
        )

    def as_dict(self) -> dict[str, Any]:
        done = next((window.evaluation for window in self.windows if window.evaluation is not None), None)
        what = (
            {}
            if done is None
            else {"protocol": done.protocol, "test": done.test, "repeats": done.about["repeats"]}
        )
        return {
            "refresh": self.refresh,
            **what,
            "windows": [self._described(window) for window in self.windows],
        }

    def _described(self, window: Window) -> dict[str, Any]:
        times = {"start": window.start, "end": window.end, "trained_until": window.trained_until}
        said: dict[str, Any] = {name: self.clock.date(time) for name, time in times.items()}
        if window.evaluation is None:
            return said | {"units": 0, "metrics": {}, "interval": {}}
        units = {
            "units": len(window.evaluation.user),
            "effective_sample_size": round(window.evaluation.effective_sample_size, 1),
        }
        metrics = window.evaluation.metrics()
        return (
            said
            | units
            | {"metrics": metrics, "interval": {"ndcg@10": interval(window.evaluation, "ndcg@10", 300)}}
        )


def rolling(
    model: Model,
    split: Split,
    window: str,
    refresh: Refresh = "never",
    protocol: Protocol = "full",
    test: str | None = None,
    sample: int | None = None,
    seed: int = 0,
) -> Rolling:
    """Test a trained model on the test part of a split, window by window.

    window: a duration such as `7d`, `12h` or `1w`, or a number of ticks where times are only an order.
    refresh: `never` keeps the model as it is; `each` trains it again from the start before each window but
    the first, with the
        same settings, on everything before, of which the newest share is the validation part, as in the
        split.
    sample: so many positives of each window, a seeded sample.
    """
    if refresh not in ("never", "each"):
        raise BadInput(f"refresh {refresh!r}: expected never or each")
    log = split.log
    length, last = log.clock.ticks_in(window), int(log.time.max()) + 1
    starts = range(split.valid_end, last, length)
    if not starts:
        raise BadInput("the test part is empty: nothing to roll over")
    if len(starts) > MOST:
        raise BadInput(
            f"window {window}: {len(starts):,} windows; expected at most {MOST:,}; is the unit right?"
        )
    found = []
    with progress("windows", len(starts)) as job:
        for start in starts:
            here, end = replace(split, valid_end=start), min(start + length, last)
            if refresh == "each" and start > split.valid_end:
                here = _everything_before(split, start)
                model = Model(model.name, model.config, model.training).fit(here)
            made: Evaluation | None = None
            with suppress(NothingToRank):
                made = model.evaluate(here, protocol, test, sample, seed, until=end)
            found.append(Window(start, end, here.train_end, made))
            job.advance(note=f"until {log.clock.date(end)}")
    return Rolling(tuple(found), refresh, log.clock)


def _everything_before(split: Split, time: int) -> Split:
    """A split of what happened before a time: the newest of it validates, in the same proportion as in the
    given split."""
    train, valid, _ = split.settings.shares
    before = split.log.time[split.log.time < time]
    train_end, _ = borders(before, np.array([train, valid, 0]) / (train + valid))
    # Whether past items are candidates is decided once, so that all windows ask the same.
    settings = replace(split.settings, repeats="keep" if split.repeats else "hide")
    return split_at(split.log, settings, train_end, time)
