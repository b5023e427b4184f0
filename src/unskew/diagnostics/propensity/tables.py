"""Values of the weights by popularity: tables with one line per tenth of the items."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from unskew.core.formatting import decimals, fraction, significant
from unskew.diagnostics.propensity.statistics import Decile, View


class Tenths(NamedTuple):
    """A table with one line per tenth of the known items, the most popular first."""

    title: str
    meaning: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_by_popularity(views: Sequence[View], deciles: Sequence[Decile]) -> tuple[Tenths, ...]:
    """Fractions, weights and, where the ground truth is known, correlations by tenths of the known items."""
    clipped = [at for at, view in enumerate(views) if not math.isnan(view.clipped)]
    compared = [at for at, view in enumerate(views) if view.calibration is not None]
    shares, weights, correlations = [], [], []
    for part in deciles:
        number = str(part.number)
        shares.append((number, *map(fraction, (part.fraction, part.weighted_share, part.uniform_share))))
        worth = significant(part.weights.median), fraction(part.weights.effective_share)
        weights.append((number, *worth, *(fraction(part.views[at].clipped) for at in clipped)))
        correlations.append((number, *(decimals(part.views[at].correlation) for at in compared)))
    tables = [
        Tenths(
            "Balance by popularity",
            "Share of the events in each tenth of the items, without and with weights. Good weights bring it "
            "near the share in an even sample.",
            ("tenth", "events", "weighted", "even"),
            tuple(shares),
        ),
        Tenths(
            "Weights by popularity",
            "Median weight, effective sample size, and share of the estimates below the clip.",
            ("tenth", "median", "effective", *(f"clipped, {views[at].name.split()[0]}" for at in clipped)),
            tuple(weights),
        ),
    ]
    if compared:
        meaning = "Rank correlation of the estimates with the true propensities; 1 is the right order."
        head = ("tenth", *(views[at].label for at in compared))
        tables.append(Tenths("Truth by popularity", meaning, head, tuple(correlations)))
    return tuple(tables)
