"""The figures of a monitor and what they mean, and its thresholds in words."""

import math
from collections.abc import Callable
from typing import NamedTuple

from unskew.core import formatting
from unskew.serve.monitor.statistics import Window

UNKNOWN = "–"
HAPPENED, SPREAD, MADE = "What happened", "What was shown and clicked", "What was recommended"
UNBIASED, RANKED = "What can be estimated without bias", "How well the run ranks"


class Figure(NamedTuple):
    """A figure of a window: its group, its field, its name, its meaning, and how it is written."""

    group: str
    field: str
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


def _count(value: float) -> str:
    return formatting.count(int(value))


def _percent(value: float) -> str:
    return formatting.fraction(value)


def _percent_2(value: float) -> str:
    return formatting.fraction(value, 2)


_decimals_2, _decimals_3 = "{:.2f}".format, "{:.3f}".format

FIGURES = tuple(
    Figure(group, field, name, meaning, write)
    for group, figures in {
        HAPPENED: (
            ("events", "events", "of any type", _count),
            ("positives", "positives", "events of a positive type, such as clicks", _count),
            ("users", "users", "with an event of any type", _count),
            ("new_users", "new users", "whose first event of all is in this window", _count),
            ("items", "items", "with a positive", _count),
            ("new_items", "new items", "whose first positive of all is in this window", _count),
        ),
        SPREAD: (
            ("shown", "items shown", "each once per impression: recommendations and impressions", _count),
            (
                *("gini_shown", "Gini, shown"),
                "the Gini index of what was shown over the catalogue, which is all items with a positive so "
                "far: 0 if all items are shown equally often, near 1 if a few have everything",
                _decimals_2,
            ),
            ("gini_clicked", "Gini, clicked", "the same of the positives", _decimals_2),
            ("coverage_shown", "coverage, shown", "fraction of the catalogue that was shown", _percent),
            ("coverage_clicked", "coverage, clicked", "fraction of the catalogue that was clicked", _percent),
            (
                *("lift", "popularity lift"),
                "mean popularity of what was shown over that of what was clicked, where popularity is the "
                "number of positives before this window; above 1, more popular items are shown than people "
                "choose",
                _decimals_2,
            ),
            (
                *("age_shown", "age, shown"),
                "days from the first positive of an item to its showing, the median",
                formatting.number,
            ),
            (
                *("age_clicked", "age, clicked"),
                "days from the first positive of an item to each of its positives, the median",
                formatting.number,
            ),
        ),
        MADE: (
            ("recommendations", "recommendations", "lists that were recommended", _count),
            (
                *("click_rate", "click rate"),
                "fraction of the recommended items that got a positive which names the recommendation",
                _percent_2,
            ),
            ("fallback", "fallback", "fraction of the lists that no model made", _percent),
            ("random", "random", "fraction of the recommended items that were chosen at random", _percent),
        ),
        UNBIASED: (
            ("logged", "logged", "positives with a logged propensity", _count),
            (
                *("ess", "effective sample"),
                "effective sample size of the weights 1 / propensity, as a fraction of these positives",
                _percent,
            ),
            (
                *("calibration", "calibration"),
                "sum of 1 / propensity of a recommendation, over the size of the catalogue at that moment, "
                "with its standard error; it is 1 if the propensities are true and every item has a chance "
                "to be shown",
                _decimals_2,
            ),
        ),
        RANKED: (
            ("ranked", "positives ranked", "at most `--sample`", _count),
            (
                *("ndcg", "NDCG@10"),
                "of the run among the whole catalogue, with its standard error, before it saw the window",
                _decimals_3,
            ),
        ),
    }.items()
    for field, name, meaning, write in figures
)
BY_FIELD = {figure.field: figure for figure in FIGURES}

DROP = "ndcg_drop"
MISCALIBRATION = "miscalibration"


class Rule(NamedTuple):
    """A threshold.

    setting: its field in `Monitoring`.
    field: the figure that it limits.
    finding: the beginning of the sentence for a crossed threshold.
    advice: what to do then.
    unknown: why the figure may not be known.
    """

    setting: str
    field: str
    finding: str
    advice: str
    unknown: str

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.setting.replace('_', '-')}"

    @property
    def is_upper(self) -> bool:
        """Whether the figure must not be above it; otherwise it must not be below."""
        return self.setting.startswith("max_")

    def crossed_sentence(self, measured: str, threshold: float, when: str) -> str:
        """What was measured, the threshold, and what to do."""
        side, verb = "above" if self.is_upper else "below", "" if self.finding.endswith(" by") else " was"
        measurement = f"{self.finding}{verb} {measured} in the window {when}"
        return f"{measurement}, {side} `{self.flag} {threshold:g}`; {self.advice}."

    def unknown_sentence(self, threshold: float) -> str:
        """That a threshold could not be judged, and why."""
        return f"Not judged: `{self.flag} {threshold:g}`, because {self.unknown}."


NOT_SHOWN = "nothing is known of what was shown in the window"
MORE_DEBIAS = (
    "recommend with a higher debias or a debiased run, or let more of what is shown be chosen at random"
)

RULES = (
    Rule(
        *("max_gini", "gini_shown"),
        "A few items get most of what is shown: the Gini index of what was shown",
        *(MORE_DEBIAS, NOT_SHOWN),
    ),
    Rule(
        *("min_coverage", "coverage_shown"),
        "Little of the catalogue is shown: the coverage of what was shown",
        *(MORE_DEBIAS, NOT_SHOWN),
    ),
    Rule(
        *("max_lift", "lift"),
        "What is shown is more popular than what is clicked: the popularity lift",
        "recommend with a higher debias, or train on with the logged propensities",
        "popularity is counted before the window, and there are no such positives of what was shown or "
        "clicked in it",
    ),
    Rule(
        *("min_click_rate", "click_rate", "Few recommendations are clicked: the click rate"),
        "look whether clicks still name their recommendation, then train on with the newest events",
        "nothing was recommended in the window",
    ),
    Rule(
        *("max_fallback", "fallback", "Many lists are made without the model: the fraction of the fallback"),
        "look into the reasons that the service gives, such as unknown users or errors of the model",
        "no recommendation of this store was made by the fallback",
    ),
    Rule(
        *("min_ess", "ess", "A few positives have most of the weight: the effective sample fraction"),
        "let more of what is shown be chosen at random, so that the smallest propensities grow",
        "no positive of the window has a logged propensity",
    ),
    Rule(
        *("max_miscalibration", MISCALIBRATION),
        "The logged propensities are not true: their calibration is off by",
        "check how the propensities are computed, and do not train or test with them before that",
        "it takes a run (`--run`), which knows what there was to show, and items that were recommended at "
        "random",
    ),
    Rule(
        *("min_ndcg", "ndcg", "The run ranks badly what people choose: NDCG@10"),
        "train on with the newest events, or go back to an older run that ranks better",
        "it takes a run (`--run`) that did not see the window, and positives to rank",
    ),
    Rule(
        *("max_ndcg_drop", DROP, "The run ranks worse than it did: NDCG@10 fell by"),
        "train on with the newest events",
        "it takes a run (`--run`) and at least two windows that it did not see",
    ),
)
