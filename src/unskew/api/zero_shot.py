"""Recommendations from a log at once: Pulse with the weights that come with this package (`pulse-zero`).

    unskew.recommend(log, users=["ann"])          in one line
    unskew.load("pulse-zero")                     the same as a model, for any log

Nothing is learned from the log, so it works from the first events on; what it says comes from how audiences
grow, from the user's own pace, and from neighbours (`models/pulse.py`).
"""

import json
import os
from collections.abc import Sequence
from typing import Any, Unpack

from safetensors import safe_open

from unskew.api.model import Model
from unskew.core.errors import BadInput
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Split, split
from unskew.data.reading.prepare import read
from unskew.models.base import Training
from unskew.models.pulse.model import ZERO, PulseZero
from unskew.recommendation.options import RecommendKeywords
from unskew.recommendation.ranker import Recommendations


class ZeroShot(Model):
    """A model that needs no training: it takes any log as it is."""

    def __init__(self) -> None:
        super().__init__("pulse-zero", PulseZero.Config(), Training())

    def _make_ready(self, given: Split | LogView | None) -> None:
        if given is None and not self.is_trained:
            raise BadInput(f"{self.name} has no log of its own: give it one, `recommend(..., log=log)`")
        if isinstance(given, Split) and not (self.is_trained and given is self.split):
            self.fit(given, show_progress=False)
        elif isinstance(given, Log) and not (self.is_trained and given is self.known_log):
            self.fit(split(given, fractions=(100, 0, 0)), show_progress=False)


def recommend(
    log: Log | str | os.PathLike[str] | Any,
    users: Sequence[Any] | None = None,
    histories: Sequence[Sequence[Any]] | None = None,
    **options: Unpack[RecommendKeywords],
) -> Recommendations:
    """Recommend the k best items now, without training.

    Parameters
    ----------
    log
        A log, or whatever `unskew.read` takes: a file, a folder, a data frame.
    users
        Ids of users of the log.
    histories
        Bare histories of item ids, with or without times. One of `users` and `histories` is given.
    **options
        The fields of `RecommendOptions`, as for `Model.recommend`.

    Returns
    -------
    Recommendations
        A frame `user_id, item_id, score, rank, source` (and title), one row per recommendation. After bare
        histories, the first column is `history`, the number of the history.
    """
    read_log = log if isinstance(log, Log) else read(log)
    return ZeroShot().recommend(users, histories, log=read_log, **options)


def learned_on() -> dict[str, str]:
    """The logs that the weights of `pulse-zero` were learned on: the fingerprint of each, by its name."""
    with safe_open(ZERO, "pt") as file:
        return dict(json.loads(file.metadata()["unskew"])["from"])
