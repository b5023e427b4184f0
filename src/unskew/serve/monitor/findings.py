"""The thresholds of a monitor: which figure each of them limits, and its sentences."""

from typing import NamedTuple

DROP = "ndcg_drop"
MISCALIBRATION = "miscalibration"


class Rule(NamedTuple):
    """A threshold: its field in `Monitoring`, and the figure that it limits."""

    setting: str
    field: str
    finding: str  # the beginning of the sentence for a crossed threshold
    advice: str  # what to do then
    unknown: str  # why the figure may not be known

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
