"""What a monitor says to people: the names and the meanings of its figures, and its thresholds in words."""

import math
from collections.abc import Callable
from typing import NamedTuple

from unskew.core import formatting
from unskew.serve.monitor.statistics import Window

UNKNOWN = "–"


class Figure(NamedTuple):
    """A figure of a window: where it stands, what it is called, and what it means."""

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
        written = self.write(value)
        error = getattr(window, f"{self.field}_error", math.nan)
        return written if math.isnan(error) else f"{written} ± {self.write(error)}"


def _count(value: float) -> str:
    return formatting.count(int(value))


def _two(value: float) -> str:
    return f"{value:.2f}"


def _three(value: float) -> str:
    return f"{value:.3f}"


HAPPENED, SPREAD, MADE, UNBIASED = (
    "What happened",
    "What was shown and clicked",
    "What was recommended",
    "What can be told without bias",
)
RANKED = "How well the run ranks"

FIGURES = (
    Figure(HAPPENED, "events", "events", "of any type", _count),
    Figure(HAPPENED, "positives", "positives", "events of a positive type, such as clicks", _count),
    Figure(HAPPENED, "users", "users", "with an event of any type", _count),
    Figure(HAPPENED, "new_users", "new users", "whose first event of all is in this window", _count),
    Figure(HAPPENED, "items", "items", "with a positive", _count),
    Figure(HAPPENED, "new_items", "new items", "whose first positive of all is in this window", _count),
    Figure(
        SPREAD, "shown", "items shown", "each once per impression_id: recommendations and impressions", _count
    ),
    Figure(
        *(SPREAD, "gini_shown", "Gini, shown"),
        "how unevenly what was shown is spread over the catalogue, which is all items that were ever clicked "
        "so far; 0 is even, and near 1 a few items have everything",
        _two,
    ),
    Figure(SPREAD, "gini_clicked", "Gini, clicked", "the same of the positives", _two),
    Figure(
        *(SPREAD, "coverage_shown", "coverage, shown"),
        "fraction of the catalogue that was shown to anybody",
        formatting.fraction,
    ),
    Figure(
        *(SPREAD, "coverage_clicked", "coverage, clicked"),
        "fraction of the catalogue that was clicked by anybody",
        formatting.fraction,
    ),
    Figure(
        *(SPREAD, "lift", "popularity lift"),
        "mean popularity of what was shown over that of what was clicked, where popularity is the number of "
        "positives before this window; above 1, more popular items are shown than people choose",
        _two,
    ),
    Figure(
        *(SPREAD, "age_shown", "age, shown"),
        "days from the first positive of an item to its showing, the median",
        formatting.number,
    ),
    Figure(
        *(SPREAD, "age_clicked", "age, clicked"),
        "days from the first positive of an item to each of its positives, the median",
        formatting.number,
    ),
    Figure(MADE, "recommendations", "recommendations", "lists that were recommended", _count),
    Figure(
        *(MADE, "click_rate", "click rate"),
        "fraction of the recommended items that got a positive which names the recommendation",
        lambda value: formatting.fraction(value, 2),
    ),
    Figure(MADE, "fallback", "fallback", "fraction of the lists that no model made", formatting.fraction),
    Figure(
        MADE, "random", "random", "fraction of the recommended items chosen at random", formatting.fraction
    ),
    Figure(UNBIASED, "logged", "logged", "positives with a logged propensity", _count),
    Figure(
        *(UNBIASED, "ess", "effective sample"),
        "effective sample size of the weights 1 / propensity, as a fraction of these positives",
        formatting.fraction,
    ),
    Figure(
        *(UNBIASED, "calibration", "calibration"),
        "sum of 1 / propensity of a recommendation, over the size of the catalogue at that moment, with its "
        "standard error; it is 1 if the propensities are true and every item has a chance to be shown",
        _two,
    ),
    Figure(RANKED, "ranked", "positives ranked", "at most as many as `--sample` says", _count),
    Figure(
        *(RANKED, "ndcg", "NDCG@10"),
        "of the run among the whole catalogue, with its standard error, before it saw the window",
        _three,
    ),
)
BY_FIELD = {figure.field: figure for figure in FIGURES}


class Rule(NamedTuple):
    """A threshold: the setting, the figure that it is about, and what to do where it is crossed."""

    setting: str
    field: str
    finding: str
    advice: str

    @property
    def flag(self) -> str:
        """Its flag on the command line."""
        return f"--{self.setting.replace('_', '-')}"

    @property
    def is_upper(self) -> bool:
        """Whether the figure must not be above it; otherwise it must not be below."""
        return self.setting.startswith("max_")


DROP = "ndcg_drop"
MISCALIBRATION = "miscalibration"

RULES = (
    Rule(
        *(
            "max_gini",
            "gini_shown",
            "A few items get most of what is shown: the Gini index of what was shown",
        ),
        "recommend with a higher debias or a debiased run, or let more of what is shown be chosen at random",
    ),
    Rule(
        *(
            "min_coverage",
            "coverage_shown",
            "Little of the catalogue is shown: the coverage of what was shown",
        ),
        "recommend with a higher debias or a debiased run, or let more of what is shown be chosen at random",
    ),
    Rule(
        *("max_lift", "lift", "What is shown is more popular than what is clicked: the popularity lift"),
        "recommend with a higher debias, or train on with the logged propensities",
    ),
    Rule(
        *("min_click_rate", "click_rate", "Few recommendations are clicked: the click rate"),
        "look whether clicks still name their recommendation, then train on with the newest events",
    ),
    Rule(
        *("max_fallback", "fallback", "Many lists are made without the model: the fraction of the fallback"),
        "look into the reasons that the service gives, such as unknown users or errors of the model",
    ),
    Rule(
        *("min_ess", "ess", "A few positives have most of the weight: the effective sample fraction"),
        "let more of what is shown be chosen at random, so that the smallest propensities grow",
    ),
    Rule(
        *(
            "max_miscalibration",
            MISCALIBRATION,
            "The logged propensities are not true: their calibration is off by",
        ),
        "check how the propensities are computed, and do not train or test with them before that",
    ),
    Rule(
        *("min_ndcg", "ndcg", "The run ranks badly what people choose: NDCG@10"),
        "train on with the newest events, or go back to an older run that ranks better",
    ),
    Rule(
        *("max_ndcg_drop", DROP, "The run ranks worse than it did: NDCG@10 fell by"),
        "train on with the newest events",
    ),
)


def sentence(rule: Rule, measured: str, threshold: float, when: str) -> str:
    """What was measured, the threshold, and what to do."""
    side, was = "above" if rule.is_upper else "below", "" if rule.finding.endswith(" by") else " was"
    found = f"{rule.finding}{was} {measured} in the window {when}"
    return f"{found}, {side} `{rule.flag} {threshold:g}`; {rule.advice}."


def unjudged(rule: Rule, threshold: float, why: str) -> str:
    """That a threshold could not be judged."""
    return f"Not judged: `{rule.flag} {threshold:g}`, because {why}."


WHY = {
    "gini_shown": "nothing is known of what was shown in the window",
    "coverage_shown": "nothing is known of what was shown in the window",
    "lift": "popularity is counted before the window, and there are no such positives of what was shown or "
    "clicked in it",
    "click_rate": "nothing was recommended in the window",
    "fallback": "no recommendation of this store says that it is one",
    "ess": "no positive of the window has a logged propensity",
    MISCALIBRATION: "it takes a run (`--run`), which says what there was to show, and items that were "
    "recommended at random",
    "ndcg": "it takes a run (`--run`) that did not see the window, and positives to rank",
    DROP: "it takes a run (`--run`) and at least two windows that it did not see",
}
