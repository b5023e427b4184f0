"""Updating a stored run with what a store got since. The settings stand here, because the command line must
not import torch for them."""

from dataclasses import dataclass

from unskew.core.config import AtLeast1, NotNegative, Share


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
    positives."""
    least: AtLeast1 = 100
    """The window has at least so many new positives. There is nothing to do until there are twice as many."""
    sample: AtLeast1 = 5000
    """Rank at most so many positives of the window: a fixed, seeded sample."""
    margin: NotNegative = 0.0
    """How much worse in NDCG@10 is still good enough: the new run is refused if the whole 95 % interval of
    the difference is below minus this."""
