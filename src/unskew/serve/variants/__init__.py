"""A/B tests of runs: which variant a user gets, what the store says about each, and how a run would have done
that was never served. The settings of an estimate stand here, because the command line must not import torch
for them."""

from dataclasses import dataclass

from unskew.core.config import AtLeast1


@dataclass(frozen=True, kw_only=True)
class Estimating:
    """Which lists an estimate is made from."""

    sample: AtLeast1 = 5000
    """Read at most so many lists: a fixed, seeded sample."""
    seed: int = 0
    """The seed of the sample."""
