"""Tests of a held-out part. Each is a weight per positive, and a figure of a test is the weighted mean over
its positives.

    ordinary     every positive counts once
    balanced     every item counts once: a positive weighs 1 / the positives of its item in this part. The
                 test of the long tail
    shown        each clicked row among what the same visit showed and was not clicked (logs with
                 impressions). It is broken by position bias (what stands first is clicked more) and by
                 whatever decided both what was shown and what was liked
    randomised   only rows that were exposed at random
    weighted     a positive weighs 1 / its logged propensity; the weighted mean is the self-normalised
                 estimate (SNIPS) of the mean under uniform exposure. Consistent with the true propensities; a
                 few tiny ones give it a large variance
    authors      the paper's own resampling, seeded: for comparison with its tables only
    NAME         the rows that a column of the log marks (`prepare --tests NAME`)

Weights come from the whole part, also where only a sample of it is ranked. How much they leave is the
effective sample size, (sum w)^2 / sum w^2.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unskew.data.log import TESTS
from unskew.data.split import Part, Split
from unskew.data.views import Ints
from unskew.errors import BadInput

Floats = NDArray[np.float64]

Criterion = Literal[
    "ordinary", "balanced", "shown"
]  # versions of the validation part by which weights are chosen
CRITERIA: tuple[Criterion, ...] = ("ordinary", "balanced", "shown")
Protocol = Literal[
    "full", "uni100", "authors"
]  # how a test is ranked: evaluate.py. Here, because a flag does not wait for torch
AUTHORS_EXPONENT = 0.005
COINCIDENCE = (
    0.05  # without a column of visits, fewer positives with company than this share have it by chance
)


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The positives of one test, in time, with their weights, and how many were left out for which reason."""

    test: str
    rows: Ints
    weights: Floats
    left_out: dict[str, int]

    def weights_of(self, rows: Ints) -> Floats:
        """The weights of some rows of the log; 0 where a row is not part of this test."""
        order = np.argsort(self.rows)
        place = np.minimum(np.searchsorted(self.rows[order], rows), max(len(order) - 1, 0))
        if not len(order):
            return np.zeros(len(rows))
        return np.where(self.rows[order][place] == rows, self.weights[order][place], 0.0)


def available_tests(split: Split, part: Part = "test") -> tuple[str, ...]:
    """The tests that a part can have: what was shown, random exposure, logged propensities and marks are not
    in every log."""
    log, found = split.log, ["ordinary", "balanced"]
    rows = held_out(split, part, "ordinary").rows
    together = len(_with_company(split, rows))
    if together and (log.visit is not None or together >= COINCIDENCE * len(rows)):
        found.append("shown")
    if log.exposed is not None:
        found.append("randomised")
    if log.propensity is not None:
        found.append("weighted")
    return (*found, "authors", *log.marks)


def criteria_of(split: Split) -> tuple[Criterion, ...]:
    """By which versions of the validation part weights are chosen."""
    available = available_tests(split, "valid")
    return tuple(criterion for criterion in CRITERIA if criterion in available)


def held_out(
    split: Split,
    part: Part,
    test: str = "ordinary",
    sample: int | None = None,
    seed: int = 0,
    until: int | None = None,
) -> HeldOut:
    """The positives of a part that a test ranks, in time, with their weights; or a seeded sample of them.

    Left out are positives on items that nobody had before (nothing could be known of them), where past items
    are hidden those that repeat one, and those that the test itself has no use for. `until` ends the part
    before that time.
    """
    if part == "train":
        raise BadInput("the training part is no test")
    if sample is not None and sample < 1:
        raise BadInput(f"sample {sample}: expected at least 1")
    log = split.log
    positive = split.mask(part) & (log.label == 1)
    if until is not None:
        positive &= log.time < until
    wanted = positive & split.targets(part, reads_audiences=True)
    left_out = {
        "first_appearances": int((positive & split.first_appearance).sum()),
        "repeats": int((positive & ~split.first_appearance & ~wanted).sum()),
    }
    rows = np.flatnonzero(wanted)
    rows, weights = _weighed(split, test, rows, seed)
    left_out["not_in_this_test"] = int(wanted.sum()) - len(rows)
    if sample is not None and len(rows) > sample:
        chosen = np.random.default_rng([seed, 13]).permutation(len(rows))[
            :sample
        ]  # a smaller sample is part of a larger one
        rows, weights = rows[chosen], weights[chosen]
    order = np.lexsort((rows, log.time[rows]))
    return HeldOut(test, rows[order], weights[order], left_out)


def _weighed(split: Split, test: str, rows: Ints, seed: int) -> tuple[Ints, Floats]:
    log, once = split.log, np.ones(len(rows))
    if test == "ordinary":
        return rows, once
    if test == "balanced":
        return rows, 1 / np.bincount(log.item[rows], minlength=len(log.items))[log.item[rows]]
    if test == "shown":
        kept = _with_company(split, rows)
        return kept, np.ones(len(kept))
    if test == "randomised":
        if log.exposed is None:
            raise BadInput(
                "this log does not say which rows were exposed at random: no randomised test (--exposed "
                "names the column)"
            )
        return _only(rows, log.exposed[rows] == 1)
    if test == "weighted":
        if log.propensity is None:
            raise BadInput("this log has no propensities: no weighted test (--propensity names the column)")
        return rows, 1 / np.asarray(log.propensity[rows], np.float64)
    if test == "authors":
        held = ~split.mask("train") & (log.label == 1)
        acceptance = authors_acceptance(np.bincount(log.item[held], minlength=len(log.items)))
        draws = np.random.default_rng([seed, 7]).random(len(log))[rows]
        return _only(rows, draws < acceptance[log.item[rows]])
    if test in log.marks:
        return _only(rows, log.marks[test][rows] == 1)
    if test == "resampled":
        raise BadInput(
            "the test 'resampled' is gone: it preferred items that training never saw, which are the hits "
            "of the day, so it "
            "rewarded recent popularity; use 'balanced', where every item counts once ('authors' is the "
            "paper's own resampling)"
        )
    raise BadInput(f"no test {test!r}; there are {', '.join([*TESTS, *log.marks])}")


def _only(rows: Ints, wanted: NDArray[np.bool_]) -> tuple[Ints, Floats]:
    return rows[wanted], np.ones(int(wanted.sum()))


def _with_company(split: Split, rows: Ints) -> Ints:
    """The rows that have another candidate in their visit."""
    return rows[np.unique(company(split, rows)[0])]


def company(split: Split, rows: Ints) -> tuple[Ints, Ints]:
    """The other candidates in the visit of each row: which of the rows, and the item. They existed, as every
    candidate must."""
    log = split.log
    which, other = log.shown_with(rows)
    item, time = log.item[other].astype(np.int64), np.asarray(log.time[rows[which]])
    candidate = item < log.audiences.existing(time)
    if not split.repeats:
        candidate &= ~log.had_before(log.user[rows[which]], item, time)
    return which[candidate], item[candidate]


def effective_size(weights: Floats) -> float:
    """How many equally weighted rows would leave as much certainty: (sum w)^2 / sum w^2."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def authors_acceptance(counts: Ints) -> Floats:
    """What the paper's code does: minmax of (max f / f_i)^0.005 over the held-out part itself. The most
    popular item always vanishes."""
    present = counts > 0
    weight = np.zeros(len(counts))
    weight[present] = (counts.max(initial=1) / counts[present]) ** AUTHORS_EXPONENT
    low, high = weight[present].min(initial=1.0), weight[present].max(initial=1.0)
    return np.where(present, (weight - low) / (high - low), 0.0) if high > low else present.astype(np.float64)
