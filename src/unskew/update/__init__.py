"""Updating a stored run with what a store got since. The settings stand here, because the command line must
not import torch for them."""

from dataclasses import dataclass
from typing import Literal

from unskew.core.config import AtLeast1, NotNegative, Share

Evidence = Literal["organic", "weighted", "all"]  # the kinds of rows that judge an update: see judge.py
Judge = Literal["auto", "organic", "weighted", "all"]


@dataclass(frozen=True, kw_only=True)
class Updating:
    """How a run is trained on, and how the result is tested."""

    epochs: AtLeast1 = 2
    """How many epochs each stage of training has, at most. An epoch goes once over the new events and over
    what is replayed."""
    replay: Share = 0.2
    """The fraction of the old rows that is learned from again, so that what they taught is not forgotten."""
    window: str | None = None
    """The newest part of the new events, by which the two are compared: a duration such as 1w, or a number of
    ticks if the times of the run's log only give an order. The default is the newest fifth of the new
    positives that judge."""
    judge: Judge = "auto"
    """Which new positives judge: those that the run in use did not choose itself (`organic`: they answer no
    recommendation, or a random item), those of lists with known probabilities, weighted by 1 / propensity
    (`weighted`), or `all`, which prefers the run that made the lists. `auto` takes organic ones or, if these
    are too few, weighted ones."""
    least: AtLeast1 = 100
    """The window has at least so many new positives that judge. There is nothing to do until there are twice
    as many new positives."""
    sample: AtLeast1 = 5000
    """Rank at most so many positives of the window that judge: a fixed, seeded sample. After the first
    1,000 of them, only as many are ranked as notice a loss of 20 % in 80 % of the cases."""
    margin: NotNegative = 0.0
    """How much worse in NDCG@10 is still good enough: the new run is refused if the whole 95 % interval of
    the difference is below minus this."""
