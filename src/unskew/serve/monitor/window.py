"""A window of time with its figures: what each of them is called, what it means, and how it is written."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple

from unskew.core import formatting

UNKNOWN = "–"
HAPPENED, SPREAD, MADE = "What happened", "What was shown and clicked", "What was recommended"
UNBIASED, RANKED = "What can be estimated without bias", "How well the run ranks"
COUNT, NUMBER, PERCENT = formatting.count, formatting.number, formatting.fraction
PERCENT_2 = partial(formatting.fraction, digits=2)
DECIMALS_2, DECIMALS_3 = "{:.2f}".format, "{:.3f}".format


def _figure(group: str, name: str, meaning: str, write: Callable[..., str]) -> Any:
    """A field of `Window`. A count that is not known is 0, any other figure nan."""
    metadata = {"group": group, "name": name, "meaning": meaning, "write": write}
    return field(default=0 if write is COUNT else math.nan, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Window:
    """One window of time. Times are whole microseconds since 1970 in UTC, fractions from 0 to 1; nan is not
    known."""

    start: int
    end: int
    whole: bool  # whether it has ended, and the store has rows from near its end or later
    events: int = _figure(HAPPENED, "events", "of any type", COUNT)
    positives: int = _figure(HAPPENED, "positives", "events of a positive type, such as clicks", COUNT)
    users: int = _figure(HAPPENED, "users", "with an event of any type", COUNT)
    new_users: int = _figure(HAPPENED, "new users", "whose first event of all is in this window", COUNT)
    items: int = _figure(HAPPENED, "items", "with a positive", COUNT)
    new_items: int = _figure(HAPPENED, "new items", "whose first positive of all is in this window", COUNT)
    shown: int = _figure(
        SPREAD, "items shown", "each once per impression: recommendations and impressions", COUNT
    )
    gini_shown: float = _figure(
        SPREAD,
        "Gini, shown",
        "the Gini index of what was shown over the catalogue, which is all items with a positive so far: 0 "
        "if all items are shown equally often, near 1 if a few have everything",
        DECIMALS_2,
    )
    gini_clicked: float = _figure(SPREAD, "Gini, clicked", "the same of the positives", DECIMALS_2)
    coverage_shown: float = _figure(
        SPREAD, "coverage, shown", "fraction of the catalogue that was shown", PERCENT
    )
    coverage_clicked: float = _figure(
        SPREAD, "coverage, clicked", "fraction of the catalogue that was clicked", PERCENT
    )
    lift: float = _figure(
        SPREAD,
        "popularity lift",
        "mean popularity of what was shown over that of what was clicked, where popularity is the number of "
        "positives before this window; above 1, more popular items are shown than people choose",
        DECIMALS_2,
    )
    age_shown: float = _figure(
        SPREAD,
        "age, shown",
        "days from the first positive of an item to its showing, the median",
        NUMBER,
    )
    age_clicked: float = _figure(
        SPREAD,
        "age, clicked",
        "days from the first positive of an item to each of its positives, the median",
        NUMBER,
    )
    recommendations: int = _figure(MADE, "recommendations", "lists that were recommended", COUNT)
    click_rate: float = _figure(
        MADE,
        "click rate",
        "fraction of the recommended items that got a positive which names the recommendation",
        PERCENT_2,
    )
    fallback: float = _figure(MADE, "fallback", "fraction of the lists that no model made", PERCENT)
    random: float = _figure(
        MADE, "random", "fraction of the recommended items that were chosen at random", PERCENT
    )
    logged: int = _figure(UNBIASED, "logged", "positives with a logged propensity", COUNT)
    ess: float = _figure(
        UNBIASED,
        "effective sample",
        "effective sample size of the weights 1 / propensity, as a fraction of these positives",
        PERCENT,
    )
    calibration: float = _figure(
        UNBIASED,
        "calibration",
        "sum of 1 / propensity of a recommendation, over the size of the catalogue at that moment, with its "
        "standard error; it is 1 if the propensities are true and every item has a chance to be shown",
        DECIMALS_2,
    )
    calibration_error: float = math.nan
    seen: bool = False  # whether the run was trained or chosen on a part of the window
    ranked: int = _figure(RANKED, "positives ranked", "at most `--sample`", COUNT)
    ndcg: float = _figure(
        RANKED,
        "NDCG@10",
        "of the run among the whole catalogue, with its standard error, before it saw the window",
        DECIMALS_3,
    )
    ndcg_error: float = math.nan


class Figure(NamedTuple):
    """A figure of a window: its field, its group, its name, its meaning, and how it is written."""

    field: str
    group: str
    name: str
    meaning: str
    write: Callable[[float], str]

    def of(self, window: Window) -> str:
        """The figure of a window for people to read."""
        value = getattr(window, self.field)
        if self.field == "ndcg" and window.seen:
            return "seen"
        if math.isnan(value):
            return UNKNOWN
        error = getattr(window, f"{self.field}_error", math.nan)
        return self.write(value) if math.isnan(error) else f"{self.write(value)} ± {self.write(error)}"


FIGURES = {entry.name: Figure(entry.name, **entry.metadata) for entry in fields(Window) if entry.metadata}
