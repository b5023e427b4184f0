"""What propensities do to a loss: the verdicts, each with its sentence, and how one is reached."""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from unskew.core import formatting
from unskew.data.log.held_out import effective_size

BALANCED = 0.1  # standard deviations; smaller distances are usually called balanced
EQUAL = 0.99  # effective fraction from which the weighted loss is the unweighted one, but for its scale
DOMINATED = 0.05  # effective fraction below which a few events have most of the weight
EQUAL_EXPOSURE = 1.1  # factor between tenths of the items below which they are exposed equally
EXTREME = 1000.0  # the same, from which rare items may come out on top


class WeightVerdict(StrEnum):
    """What the propensities of a model do to its loss, and to its scores; `sentence` is a template."""

    sentence: str

    def __new__(cls, value: str, sentence: str = "") -> "WeightVerdict":
        member = str.__new__(cls, value)
        member._value_, member.sentence = value, sentence
        return member

    # Weights
    CLIPPED = (
        "clipped",
        "The weights do nothing: {clipped} of the events are clipped to the same weight, so the model learns "
        "as if it had none; train again with a `--clip` well below {clip:g}.",
    )
    EQUAL = (
        "equal",
        "The weights do nothing: they are nearly the same for all events, so the model learns as if it had "
        "none; train the propensities longer, or choose other ones, such as `--propensity item-pro`.",
    )
    DOMINATED = (
        "dominated",
        "A few events have most of the weight: {events:,} weighted events are only as precise as "
        "{effective:,.0f} unweighted ones, so training is noisy; train again with a larger `--clip`.",
    )
    DIFFERENT = ("different", "The weights differ, and no few of them dominate.")
    # What weights that differ do about popularity
    NO_BIAS = (
        "no-bias",
        "The items of this log are all equally popular, so there is no popularity bias to correct.",
    )
    LITTLE_BIAS = (
        "little-bias",
        "There is little to correct: popular items are hardly over-represented {moved}.",
    )
    WORSE = (
        "worse",
        "The weights make it worse: popular items weigh even more than without them {moved}.",
    )
    WORK = ("work", "The weights work: they take away most of the head start of popular items {moved}.")
    HELP = ("help", "The weights help in part: popular items keep some of their head start {moved}.")
    # Instead of weights
    UNWEIGHTED = (
        "unweighted",
        "Nothing is weighted: a loss that reads what was shown and not clicked learns what is liked of what "
        "is shown, and weights did harm where the ground truth is known (docs/ground-truth.md); "
        "`--strength 0.5` weights anyway.",
    )
    NO_STRENGTH = (
        "no-strength",
        "Nothing happens: no exposure is taken out with a `--strength` of 0; train again with 1.",
    )
    EQUAL_EXPOSURE = (
        "equal-exposure",
        "Nothing happens: by this propensity all items are exposed nearly equally, so the model learns as if "
        "it had none; if popular items were shown more often in this log, train again with "
        "`--propensity item-pro`, which takes popularity for exposure.",
    )
    EXPOSURE_TAKEN = (
        "exposure-taken",
        "Takes exposure out of {where}: the most exposed tenth of the items is held back by a factor of "
        "{factor} against the least exposed tenth; judge it with `unskew evaluate RUN --test balanced`, and "
        "turn it back with `--debias`.",
    )
    EXTREME = (
        "extreme",
        "Takes exposure out of {where}: the most exposed tenth of the items is held back by a factor of "
        "{factor} against the least exposed tenth, so that items with hardly any clicks may come out on top; "
        "try half the `--strength`.",
    )

    @property
    def does_nothing(self) -> bool:
        """Whether the model has weights, and learns as if it had none."""
        return self in (WeightVerdict.CLIPPED, WeightVerdict.EQUAL)

    @property
    def is_warning(self) -> bool:
        """Whether something is wrong with the weights themselves."""
        return self.does_nothing or self is WeightVerdict.DOMINATED

    def of(self, **values: object) -> "Finding":
        """The verdict with its sentence about these values."""
        return Finding(self, self.sentence.format(**values))


@dataclass(frozen=True)
class Finding:
    """A verdict, and the sentence that states it."""

    kind: WeightVerdict
    sentence: str


def judge_weights(weights: ArrayLike, clip: float | None = None) -> Finding:
    """Judge inverse-propensity weights by themselves: whether they differ, and whether a few dominate.

    weights: the weight of each training event, or of a sample of them, all above 0. Their scale does not
        matter.
    clip: the smallest propensity that was allowed (the setting `clip`). With it, weights that are equal
        because they were clipped are distinguished from weights that are equal for another reason.
    """
    weight = np.asarray(weights, np.float64)
    effective = effective_size(weight) if len(weight) else np.nan
    if effective > EQUAL * len(weight):
        clipped = 0.0 if clip is None else clipped_fraction(weight, clip)
        if clipped > 0.5:
            return WeightVerdict.CLIPPED.of(clipped=formatting.fraction(clipped), clip=clip)
        return WeightVerdict.EQUAL.of()
    if effective < DOMINATED * len(weight):
        return WeightVerdict.DOMINATED.of(events=len(weight), effective=effective)
    return WeightVerdict.DIFFERENT.of()


def clipped_fraction(weight: ArrayLike, clip: float) -> float:
    """The fraction of the weights that are the largest that the clip allows."""
    return float((np.asarray(weight) * clip >= 1 - 1e-6).mean())


def held_back(log_exposure: ArrayLike, strength: float) -> float:
    """The factor by which the most exposed tenth of the items is held back against the least exposed tenth,
    where `strength` of the exposure is taken out: the ratio of their geometric means."""
    taken = strength * np.sort(np.asarray(log_exposure, np.float64))
    tenth = max(len(taken) // 10, 1)
    return float(np.exp(taken[-tenth:].mean() - taken[:tenth].mean())) if len(taken) else 1.0


def judge_exposure(log_exposure: ArrayLike, strength: float, method: str = "logit-offset") -> Finding:
    """Judge how much exposure a model takes out by `logit-offset` or `weighted-negatives`.

    log_exposure: of each item that exists, at the end of training; a constant among all does not matter.
    """
    if strength == 0:
        return WeightVerdict.NO_STRENGTH.of()
    factor = held_back(log_exposure, strength)
    if factor < EQUAL_EXPOSURE:
        return WeightVerdict.EQUAL_EXPOSURE.of()
    where = "the logits" if method == "logit-offset" else "what is learned, by the weights of drawn negatives"
    kind = WeightVerdict.EXTREME if factor > EXTREME else WeightVerdict.EXPOSURE_TAKEN
    return kind.of(where=where, factor=formatting.significant(factor))


def judge_balance(before: float, after: float) -> Finding:
    """Judge what weights that differ do about the popularity of the items.

    before, after: how far the popularity of the events is from that of an even sample, in standard
        deviations, without and with the weights.
    """
    if math.isnan(before):
        return WeightVerdict.NO_BIAS.of()
    if abs(before) < BALANCED:
        kind = WeightVerdict.LITTLE_BIAS
    elif abs(after) > abs(before):
        kind = WeightVerdict.WORSE
    else:
        is_small = abs(after) < max(BALANCED, abs(before) / 4)
        kind = WeightVerdict.WORK if is_small else WeightVerdict.HELP
    distances = f"{before:.2f} without weights, {after:.2f} with them"
    return kind.of(moved=f"(distance from an even sample: {distances})")
