"""Recommendations from a log at once: Pulse with the weights that come with this package (`pulse-zero`).

    unskew.recommend(log, users=["ann"])          in one line
    unskew.load("pulse-zero")                     the same as a model, for any log

Nothing is learned from the log, so it works from the first events on; what it says comes from how audiences
grow, from the user's own pace, and from neighbours (`models/pulse.py`).
"""

import json
import os
from collections.abc import Sequence
from typing import Any

from safetensors import safe_open

from unskew.api.model import Model
from unskew.core.errors import BadInput
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Split, split
from unskew.data.reading.prepare import read
from unskew.models.base import Training
from unskew.models.pulse.model import ZERO, PulseZero
from unskew.recommendation.ranker import Recommendations


class ZeroShot(Model):
    """A model that needs no training: it takes any log as it is."""

    def __init__(self) -> None:
        super().__init__("pulse-zero", PulseZero.Config(), Training())

    def _ready(self, given: Split | LogView | None) -> None:
        if given is None and self._log is None:
            raise BadInput(f"{self.name} has no log of its own: give it one, `recommend(..., log=log)`")
        log = given.log if isinstance(given, Split) else given
        if isinstance(given, Split) and (self._trainer is None or given is not self._trainer.split):
            self.fit(given, show_progress=False)
        elif isinstance(log, Log) and log is not self._log:
            self.fit(split(log, fractions=(100, 0, 0)), show_progress=False)


def recommend(
    log: Log | str | os.PathLike[str] | Any,
    users: Sequence[Any] | None = None,
    histories: Sequence[Sequence[Any]] | None = None,
    k: int = 10,
    include_seen: bool | None = None,
    candidates: Sequence[Any] | None = None,
    exclude: Sequence[Any] = (),
    debias: float | None = None,
) -> Recommendations:
    """The k best items now, for users of a log or after bare histories of item ids, without training.

    log: a log, or whatever `unskew.read` takes: a file, a folder, a data frame.
    include_seen: whether items of the history can be recommended again; by default so where the log repeats.
    debias: from 0 (what will be clicked) to 1 (what would be, if all items were exposed equally).
    The other parameters are those of `Model.recommend`.
    """
    known = log if isinstance(log, Log) else read(log)
    return ZeroShot().recommend(users, histories, k, include_seen, known, candidates, exclude, debias)


def learned_on() -> dict[str, str]:
    """The logs that the weights of `pulse-zero` were learned on: the fingerprint of each, by its name."""
    with safe_open(ZERO, "pt") as file:
        return dict(json.loads(file.metadata()["unskew"])["from"])
