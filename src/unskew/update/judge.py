"""The rule by which an update is published, and the rows that judge it: those that the run in use did not
choose itself.

Users mostly click what they are shown. So on its own lists, the run that made them has an advantage over any
other run, and a better run is refused. The rows that judge an update are therefore

    organic     positives that answer no recorded recommendation, and positives whose item was drawn at
                random (`serve --explore`)
    weighted    all positives of lists with known probabilities below 1, each weighted by 1 / propensity. It
                is the self-normalised estimate (SNIPS) of the mean under uniform exposure. A weight is at
                most the mean weight times the square root of the number of rows (Ionides, 2008)
    all         every positive, for logs in which neither of the two has enough rows

The effective sample size, (sum w)^2 / sum w^2, says how many equally weighted rows would be as informative.

The rule: with d = NDCG@10 of the candidate minus that of the run, over the same rows, and the 95 % interval
of d from a bootstrap over users, the candidate is published unless the upper end of the interval is below
-margin. The network that is written must pass the same rule.
"""

from dataclasses import asdict, dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unskew.core.config import Document
from unskew.core.statistics import refusal_power, smallest_noticed_loss
from unskew.data.log.held_out import LOGGED, effective_size
from unskew.data.log.log import Log
from unskew.data.log.split import Mask, Part, Split
from unskew.data.log.views import PAD
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.significance import Comparison
from unskew.serve.store.export import ORGANIC
from unskew.training.trainer import METRIC
from unskew.update import Evidence, Judge

LOSS = 0.2  # the relative loss of which the power is printed
SPARE = 1.1  # so many times as many rows as are needed, because their spread is an estimate

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class JudgingRows:
    """Which rows of a log judge an update, and the weight of each; a row with weight 0 does not judge."""

    evidence: Evidence
    weights: Floats

    @property
    def mask(self) -> Mask:
        """The rows that judge."""
        return np.asarray(self.weights > 0)

    def effective_size(self, among: Mask) -> float:
        """How many equally weighted rows would be as informative, of some rows of the log."""
        return effective_size(truncated(self.weights[among & self.mask]))


def judging_rows(log: Log, evidence: Evidence) -> JudgingRows:
    """The rows of one kind.

    Parameters
    ----------
    log
        The log of a run and a store.
    evidence
        The kind of rows.
    """
    positive = np.asarray(log.label == 1)
    if evidence == "all":
        return JudgingRows(evidence, positive.astype(float))
    if evidence == "organic":
        organic = log.marks.get(ORGANIC)
        return JudgingRows(
            evidence, (positive if organic is None else positive & (organic == 1)).astype(float)
        )
    return JudgingRows(evidence, np.where(positive, _inverse_propensities(log), 0.0))


def select_evidence(log: Log, judge: Judge, among: Mask, least: int) -> JudgingRows | None:
    """The rows that judge, or None if there are too few of them.

    Parameters
    ----------
    log
        The log of a run and a store.
    judge
        The kind of rows, or `auto`: organic rows or, if they are too few, weighted ones.
    among
        The rows of the log that may judge: new ones.
    least
        The smallest effective number of rows.
    """
    kinds: tuple[Evidence, ...] = ("organic", "weighted") if judge == "auto" else (judge,)
    for kind in kinds:
        rows = judging_rows(log, kind)
        if rows.effective_size(among) >= least:
            return rows
    return None


def truncated(weights: Floats) -> Floats:
    """Importance weights, of which none is above the mean times the square root of their number."""
    return np.minimum(weights, weights.mean() * np.sqrt(len(weights))) if len(weights) else weights


def _inverse_propensities(log: Log) -> Floats:
    """1 / propensity of the rows of lists that could have shown any item; 0 for all others. A list in which
    every item was certain could not have shown another one, so it says nothing about other lists."""
    if log.propensity is None or log.impression_id is None:
        return np.zeros(len(log))
    logged = log.marks.get(LOGGED, np.ones(len(log), np.int8)) == 1
    in_list = np.asarray(log.impression_id != PAD) & logged
    lists, of = np.unique(log.impression_id[in_list], return_inverse=True)
    lowest = np.ones(len(lists))
    np.minimum.at(lowest, of, log.propensity[in_list])
    inverse = np.zeros(len(log))
    inverse[in_list] = np.where(lowest[of] < 1, 1 / log.propensity[in_list], 0.0)
    return inverse


@dataclass(frozen=True, eq=False)
class JudgedSplit(Split):
    """A split whose test set has only rows that judge; all others are still read as the past."""

    judging: Mask

    @classmethod
    def of(cls, split: Split, rows: JudgingRows) -> "JudgedSplit":
        """A split with these rows as the test set."""
        fields = {name: getattr(split, name) for name in Split.__dataclass_fields__}
        return cls(**fields, judging=rows.mask)

    def targets(self, part: Part, reads_audiences: bool) -> Mask:
        """Rows of a part that may be trained on or tested."""
        mask = super().targets(part, reads_audiences)
        return mask & self.judging if part == "test" else mask


@dataclass(frozen=True)
class Power:
    """What a window can detect, from the standard error of the paired differences.

    noticed: the probability with which a relative loss of `LOSS` is refused.
    smallest: the relative loss that is refused with a probability of 80 %.
    """

    loss: float
    noticed: float
    smallest: float


class Tested(NamedTuple):
    """How the run and the candidate did on the same rows of the window."""

    test: str
    evidence: Evidence
    before: Evaluation
    after: Evaluation
    found: Comparison  # the candidate minus the run
    margin: float
    sample: int  # at most so many rows were ranked
    published: Comparison | None = None  # the network that was written minus the run, if it learned more

    @property
    def is_worse(self) -> bool:
        """Whether the candidate, or the network that was to be written, is significantly worse."""
        both = (self.found, self.published or self.found)
        return any(each.high < -self.margin for each in both)

    @property
    def needed(self) -> int:
        """About how many rows notice the loss `LOSS` in 80 % of the cases: a standard error falls with the
        root of their number."""
        rows = len(self.before.user)
        return rows if self.power is None else int(SPARE * rows * (self.power.smallest / LOSS) ** 2)

    @property
    def power(self) -> Power | None:
        """What the window can detect; None if both rank every row the same, or the run ranks none."""
        mean = self.before.mean(METRIC)
        if self.found.error <= 0 or mean <= 0:
            return None
        noticed = refusal_power(LOSS * mean, self.found.error, self.margin)
        return Power(LOSS, noticed, smallest_noticed_loss(self.found.error, self.margin) / mean)

    def document(self) -> Document:
        """Everything, ready for JSON."""
        units: Document = {"positives": len(self.after.user), "users": len(np.unique(self.after.user))}
        units["effective_sample_size"] = round(self.after.effective_sample_size, 1)
        figures = {"before": self.before.mean(METRIC), "after": self.after.mean(METRIC)}
        figures["published"] = figures["before"] + (self.published or self.found).difference
        difference = {"difference": self.found.difference, "interval": [self.found.low, self.found.high]}
        power = None if self.power is None else asdict(self.power)
        judged = {"test": self.test, "judged_by": self.evidence, "metric": METRIC}
        return {**judged, **units, **figures, **difference, "power": power}
