"""Test, then train: evaluate a model window by window along the time line, as it would be used in production.

The usual test asks how good a model that was trained once is for the whole rest of the log. In production,
models are trained again and again. Here each window is tested first and is known afterwards: histories,
audiences and counts are always up to date, and with `refresh="each"` the model itself is trained again before
each window, on everything before it; with a time such as `refresh="1w"`, whenever so much time has passed.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Self
from typing import Protocol as Interface

import numpy as np

from unskew.core.config import Document
from unskew.core.errors import BadInput, NothingToRank
from unskew.core.progress import progress
from unskew.data.log.clock import Clock
from unskew.data.log.held_out import Protocol
from unskew.data.log.split import Split, borders, split_at
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.significance import interval

MOST = 1000  # windows; more are most likely a mistake in the unit


@dataclass(frozen=True, eq=False)
class Window:
    """One window of time, and how good the model was in it."""

    start: int
    end: int
    trained_until: int  # the model was trained on what happened before this time
    evaluation: Evaluation | None  # None if the window has no positives to rank


@dataclass(frozen=True, eq=False)
class Rolling:
    """The evaluations of all windows."""

    windows: tuple[Window, ...]
    refresh: str
    clock: Clock

    def curve(self, metric: str = "ndcg@10") -> list[float]:
        """The metric of each window; nan if there was nothing to rank."""
        return [
            float("nan") if window.evaluation is None else window.evaluation.mean(metric)
            for window in self.windows
        ]

    def mean(self, metric: str = "ndcg@10") -> float:
        """The mean of the metric over all units of all windows, by their weights."""
        found = [window.evaluation for window in self.windows if window.evaluation is not None]
        sizes = [each.weights.sum() for each in found]
        return (
            float(np.average([each.mean(metric) for each in found], weights=sizes)) if found else float("nan")
        )

    def as_dict(self) -> Document:
        """The metrics of all windows, ready for JSON."""
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

    def _described(self, window: Window) -> Document:
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


class Trainable(Interface):
    """What is tested window by window; `unskew.Model` is one."""

    def clone(self) -> Self: ...

    def fit(self, split: Split) -> Self: ...

    def evaluate(
        self,
        split: Split,
        protocol: Protocol = ...,
        test: str | None = ...,
        *,
        sample: int | None = ...,
        seed: int = ...,
        until: int | None = ...,
    ) -> Evaluation: ...


def rolling(
    model: Trainable,
    split: Split,
    window: str,
    refresh: str = "never",
    protocol: Protocol = "full",
    test: str | None = None,
    sample: int | None = None,
    seed: int = 0,
    windows: int | None = None,
) -> Rolling:
    """Test a trained model on the test set of a split, window by window.

    Parameters
    ----------
    window
        The length of a window: a duration such as `7d`, `12h` or `1w`, or a number of ticks if the times of
        the log only give an order.
    refresh
        `never` keeps the model as it is. `each` trains it again before each window but the first, from the
        start and with the same settings, on everything before the window; the newest of that is the
        validation set, with the same fraction as in the split. A time such as `1w` does so before those
        windows by which so much time has passed since the model was last trained.
    protocol, test, seed
        As in `Model.evaluate`.
    sample
        Rank only so many positives of each window, drawn at random.
    windows
        Roll over so many windows at the end of the log only; by default over the whole test set.
    """
    log = split.log
    if split.settings.kind != "time":
        raise BadInput("rolling evaluation needs a split by time")
    length, last = log.clock.ticks_in(window), int(log.time.max()) + 1
    pause = _pause(log.clock, refresh, length)
    starts: Sequence[int] = range(split.valid_end, last, length)
    if windows is not None and windows < 1:
        raise BadInput(f"windows {windows}: expected at least 1", field="windows")
    starts = starts if windows is None else starts[-windows:]
    if not starts:
        raise BadInput("the test set is empty: nothing to roll over")
    if len(starts) > MOST:
        raise BadInput(
            f"window {window}: {len(starts):,} windows; expected at most {MOST:,}; is the unit right?"
        )
    found, cut = [], split
    with progress("windows", len(starts)) as job:
        for start in starts:
            end = min(start + length, last)
            if pause is not None and start - cut.valid_end >= pause:
                cut = _everything_before(split, start)
                model = model.clone().fit(cut)
            here = replace(cut, valid_end=start)
            made: Evaluation | None = None
            with suppress(NothingToRank):
                made = model.evaluate(here, protocol, test, sample=sample, seed=seed, until=end)
            found.append(Window(start, end, here.train_end, made))
            job.advance(note=f"until {log.clock.date(end)}")
    return Rolling(tuple(found), refresh, log.clock)


def _pause(clock: Clock, refresh: str, length: int) -> int | None:
    """After how many ticks a model is trained again; None is never."""
    if refresh in ("never", "each"):
        return length if refresh == "each" else None
    try:
        return clock.ticks_in(refresh)
    except BadInput as error:
        raise BadInput(
            f"refresh {refresh!r}: expected never, each, or a time such as 1w ({error})", field="refresh"
        ) from None


def _everything_before(split: Split, time: int) -> Split:
    """Split what happened before a time into training and validation, in the proportion of the given split.
    The test set is everything from that time on."""
    train, valid, _ = split.settings.fractions
    before = split.log.time[split.log.time < time]
    train_end, _ = borders(before, np.array([train, valid, 0]) / (train + valid))
    # Whether past items are candidates is decided once, so that all windows are tested in the same way.
    settings = replace(split.settings, repeats="keep" if split.repeats else "hide")
    return split_at(split.log, settings, train_end, time)
