"""The tests of a held-out part. A test gives each positive a weight, and a result is the weighted mean over
the positives.

    ordinary     every positive counts once
    balanced     every item counts once: a positive weighs 1 / the number of positives of its item in this
                 part. This is the test of the long tail
    shown        each clicked item is ranked among the items that the same impression showed and that were not
                 clicked (for logs with impressions). Position bias distorts it (what comes first is clicked
                 more), and so does everything that influenced both what was shown and what was liked
    randomised   only rows that were exposed at random. They must have been drawn from all candidates, each as
                 likely as any other, as `serve --explore` draws them
    weighted     a positive weighs 1 / its logged propensity, so the weighted mean is the self-normalised
                 estimate (SNIPS) of the mean under uniform exposure. It is consistent if the propensities are
                 true; a few tiny ones give it a large variance. Where the log says which propensities were
                 logged (the named test `logged`), only those rows belong to it
    untouched    only positives whose user had no context event on the item, such as a view or a cart, within
                 24 hours before; `untouched:2h` says another time (for logs with types of events)
    authors      the paper's own resampling, seeded; only for comparison with its tables
    NAME         the rows that a column of the log marks (`prepare --tests NAME`)

Weights are computed on the whole part, even if only a sample of it is ranked. The effective sample size,
(sum w)^2 / sum w^2, says how many equally weighted positives would be as informative.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput, NothingToRank
from unskew.data.log.arrays import distinct, is_in, position_in
from unskew.data.log.log import TESTS
from unskew.data.log.split import Part, Split
from unskew.data.log.touched import SHORTLY, gaps, ticks_within
from unskew.data.log.views import Ints

Floats = NDArray[np.float64]

# The tests of the validation set by which the weights of a model are chosen.
Criterion = Literal["ordinary", "balanced", "shown", "frozen", "frozen-balanced"]
CRITERIA: tuple[Criterion, ...] = ("ordinary", "balanced", "shown")
# The criteria of models that read what other users did up to the request (`validates_frozen`): frozen lists,
# with all later positives of a user as targets; and the next one, where every item counts the same. What is
# best at one moment may be worst at the next, so the lists of users are made at several moments.
FROZEN: Criterion = "frozen"
FROZEN_BALANCED: Criterion = "frozen-balanced"
FROZEN_MOMENTS = 8
# How a test is ranked; explained in evaluate.py. It is here so that the command line need not import
# torch.
Protocol = Literal["full", "uni100", "authors"]
# In a frozen evaluation, which later positives of a user are the targets: the first one, or all of them.
Targets = Literal["next", "all"]
LOGGED = (
    "logged"  # the named test of the rows whose propensity was logged, as `unskew store export` marks them
)
FROZEN_TESTS = ("shown", "authors")  # the tests that a frozen evaluation does not have
AUTHORS_EXPONENT = 0.005
UNTOUCHED = "untouched"  # the test, and the beginning of untouched:DURATION
# Without a column of impressions, rows at the same time count as one impression. If fewer positives than this
# fraction have other rows at their time, that is a coincidence, and the log has no impressions.
COINCIDENCE = 0.05


@dataclass(frozen=True, eq=False)
class HeldOut:
    """The positives of one test, in order of time, with their weights, and how many were left out for which
    reason."""

    test: str
    rows: Ints
    weights: Floats
    left_out: dict[str, int]
    whole: int = 0  # how many positives the test has; the rows may be a sample of them

    def weights_of(self, rows: Ints) -> Floats:
        """The weights of some rows of the log; 0 for rows that are not part of this test."""
        asked = distinct(rows)
        place = position_in(asked, self.rows)
        weights = np.zeros(len(asked))
        weights[place[place >= 0]] = self.weights[place >= 0]
        return weights[np.searchsorted(asked, rows)]


def available_tests(split: Split, part: Part = "test") -> tuple[str, ...]:
    """The tests that a part can have. Not every log says what was shown, what was exposed at random, with
    which propensity, or which rows belong to a named test."""
    log, found = split.log, ["ordinary", "balanced"]
    rows = held_out(split, part, "ordinary").rows
    together = len(_with_impression_candidates(split, rows))
    if together and (log.impression_id is not None or together >= COINCIDENCE * len(rows)):
        found.append("shown")
    if log.exposed is not None:
        found.append("randomised")
    if log.propensity is not None:
        found.append("weighted")
    if log.context:
        found.append(UNTOUCHED)
    return (*found, "authors", *(name for name, mark in log.marks.items() if mark[rows].any()))


def criteria_of(split: Split) -> tuple[Criterion, ...]:
    """The tests of the validation set by which the weights of a model are chosen."""
    available = available_tests(split, "valid")
    return tuple(criterion for criterion in CRITERIA if criterion in available)


def held_out(
    split: Split,
    part: Part,
    test: str = "ordinary",
    sample: int | None = None,
    seed: int = 0,
    until: int | None = None,
    frozen: Targets | None = None,
    moments: int = 1,
) -> HeldOut:
    """The positives of a part that a test ranks, in order of time, with their weights.

    Left out are the first positives of items (nothing could be known about them), repeats if the split hides
    past items, and whatever does not belong to the test. If the part is empty, so is the result; see
    `nothing_to_rank`.

    In a frozen evaluation the positives are sorted by the time of their list, user and time, and the first
    positives of items stay: they are misses of every model.

    test: one of those that `available_tests` lists.
    sample: keep only so many of the positives, drawn at random.
    seed: the seed of the sample, and of the authors' resampling.
    until: keep only what happened before this time.
    frozen: which later positives of a user are ranked in the list that is made at the begin of the part; None
        is a live evaluation, with a list for each positive at its own time.
    moments: in a frozen evaluation, how many moments of the part the lists are made at (`list_times`).
    """
    if part == "train":
        raise BadInput("the training set is no test")
    if frozen is not None:
        return _frozen(split, part, test, sample, seed, until, frozen, moments)
    if sample is not None and sample < 1:
        raise BadInput(f"sample {sample}: expected at least 1", field="sample")
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
    rows, weights = _test_weights(split, test, rows, seed)
    left_out["not_in_this_test"] = int(wanted.sum()) - len(rows)
    whole = len(rows)
    if sample is not None and len(rows) > sample:
        shuffled = np.random.default_rng([seed, 13]).permutation(len(rows))
        chosen = shuffled[:sample]  # so a smaller sample is part of a larger one
        rows, weights = rows[chosen], weights[chosen]
    order = np.lexsort((rows, log.time[rows]))
    return HeldOut(test, rows[order], weights[order], left_out, whole)


def _frozen(
    split: Split,
    part: Part,
    test: str,
    sample: int | None,
    seed: int,
    until: int | None,
    targets: Targets,
    moments: int,
) -> HeldOut:
    """The positives of a frozen evaluation, sorted by the time of their list, user and time."""
    if split.settings.kind != "time":
        raise BadInput("a frozen evaluation needs a split by time: a leave-one-out split has no one moment")
    if test in FROZEN_TESTS:
        raise BadInput(f"a frozen evaluation has no {test} test; there are ordinary and balanced")
    log = split.log
    made = list_times(split, part, moments)
    rows = np.flatnonzero(split.mask(part) & (log.label == 1))
    rows = rows[log.time[rows] >= made[log.user[rows]]]
    if until is not None:
        rows = rows[log.time[rows] < until]
    wanted = split.targets(part, reads_audiences=False)[rows]
    left_out = {"repeats": len(rows) - int(np.count_nonzero(wanted))}
    rows = rows[wanted]
    rows = rows[np.lexsort((rows, log.time[rows], log.user[rows], made[log.user[rows]]))]
    if targets == "next":
        first = np.append(True, log.user[rows][1:] != log.user[rows][:-1])[: len(rows)]
        left_out["later"] = int((~first).sum())
        rows = rows[first]
    belonging, weights = _test_weights(split, test, rows, seed)
    left_out["not_in_this_test"] = len(rows) - len(belonging)
    rows, whole = belonging, len(belonging)
    if targets == "all" and test != "ordinary":
        raise BadInput(f"with all later items as targets, users count the same: no {test} test")
    users = distinct(log.user[rows])
    if sample is not None and len(users) > sample:
        shuffled = np.random.default_rng([seed, 13]).permutation(len(users))
        kept = is_in(np.sort(users[shuffled[:sample]]), log.user[rows])
        rows, weights = rows[kept], weights[kept]
    return HeldOut(test, rows, weights, left_out, whole)


def list_times(split: Split, part: Part, moments: int = 1) -> Ints:
    """When the frozen list of each user of the log is made: at the begin of the part, or at one of several
    moments that divide the part into periods of the same length, drawn for each user."""
    begin = split.train_end if part == "valid" else split.valid_end
    end = split.valid_end if part == "valid" else split.log.now
    drawn = np.random.default_rng(23).integers(moments, size=len(split.log.users))
    return begin + drawn * (end - begin) // moments


def nothing_to_rank(split: Split, part: Part, test: str) -> NothingToRank:
    """The error for a test without positives. It says why there are none."""
    if not split.mask(part).any():
        name = {"valid": "validation"}.get(part, part)
        fractions = ", ".join(f"{fraction:g}" for fraction in split.settings.fractions)
        why = f"the {name} set of this split has no rows (fractions {fractions}); "
        if part == "test":
            why += "a run that was trained on everything has nothing left to test, so evaluate the one that "
            why += "it was refitted from"
        else:
            why += "give it a fraction with --fractions"
    elif test == "shown":
        why = "nothing was shown together with a positive and not clicked"
    else:
        why = "it has no positives"
    return NothingToRank(f"nothing to rank in the {test} test: {why}")


Weighted = tuple[Ints, Floats]  # rows that belong to a test, and their weights


def _test_weights(split: Split, test: str, rows: Ints, seed: int) -> Weighted:
    """Those of the rows that belong to the test, with their weights."""
    if test in _WEIGHTS:
        return _WEIGHTS[test](split, rows, seed)
    if test.partition(":")[0] == UNTOUCHED:
        return _untouched(split, rows, test.partition(":")[2] or SHORTLY)
    if test in split.log.marks:
        return _only(rows, split.log.marks[test][rows] == 1)
    if test == "resampled":
        raise BadInput(
            "the test 'resampled' is gone: it preferred items that training never saw, which are the hits "
            "of the day, so it rewarded recent popularity; use 'balanced', where every item counts once "
            "('authors' is the paper's own resampling)"
        )
    raise BadInput(f"no test {test!r}; there are {', '.join([*TESTS, *split.log.marks])}")


def _ordinary(split: Split, rows: Ints, seed: int) -> Weighted:
    return rows, np.ones(len(rows))


def _balanced(split: Split, rows: Ints, seed: int) -> Weighted:
    item = split.log.item[rows]
    return rows, 1 / np.bincount(item, minlength=len(split.log.items))[item]


def _shown(split: Split, rows: Ints, seed: int) -> Weighted:
    kept = _with_impression_candidates(split, rows)
    return kept, np.ones(len(kept))


def _randomised(split: Split, rows: Ints, seed: int) -> Weighted:
    exposed = split.log.exposed
    if exposed is None:
        raise BadInput(
            "this log does not say which rows were exposed at random: no randomised test (--exposed names "
            "the column)"
        )
    return _only(rows, exposed[rows] == 1)


def _weighted(split: Split, rows: Ints, seed: int) -> Weighted:
    propensity = split.log.propensity
    if propensity is None:
        raise BadInput("this log has no propensities: no weighted test (--propensity names the column)")
    if LOGGED in split.log.marks:  # elsewhere the propensity is only a placeholder
        rows = rows[split.log.marks[LOGGED][rows] == 1]
    return rows, 1 / np.asarray(propensity[rows], np.float64)


def _authors(split: Split, rows: Ints, seed: int) -> Weighted:
    log = split.log
    held = ~split.mask("train") & (log.label == 1)
    acceptance = authors_acceptance(np.bincount(log.item[held], minlength=len(log.items)))
    draws = np.random.default_rng([seed, 7]).random(len(log))[rows]
    return _only(rows, draws < acceptance[log.item[rows]])


def _untouched(split: Split, rows: Ints, within: str) -> Weighted:
    log = split.log
    if not log.context:
        raise BadInput(
            "this log has no context events: no untouched test (`prepare --type COLUMN --target purchase "
            "--context view,cart` declares types of events)",
            field="test",
        )
    return _only(rows, gaps(log, rows) > ticks_within(log, within))


_WEIGHTS = {
    "ordinary": _ordinary,
    "balanced": _balanced,
    "shown": _shown,
    "randomised": _randomised,
    "weighted": _weighted,
    "authors": _authors,
}


def _only(rows: Ints, wanted: NDArray[np.bool_]) -> tuple[Ints, Floats]:
    return rows[wanted], np.ones(int(wanted.sum()))


def _with_impression_candidates(split: Split, rows: Ints) -> Ints:
    """The rows that have at least one other candidate in their impression."""
    return rows[distinct(impression_candidates(split, rows)[0])]


def impression_candidates(split: Split, rows: Ints) -> tuple[Ints, Ints]:
    """The other candidates in the impression of each row: items that were shown and not clicked, that existed
    by then and, if the split hides past items, that the user did not have before. Returns pairs as two
    arrays: a position in `rows`, and an item."""
    log = split.log
    which, other = log.shown_with(rows)
    item, time = log.item[other].astype(np.int64), np.asarray(log.time[rows[which]])
    candidate = item < log.audiences.existing(time)
    if not split.repeats:
        candidate &= ~log.had_before(log.user[rows[which]], item, time)
    return which[candidate], item[candidate]


def effective_size(weights: Floats) -> float:
    """How many equally weighted rows would be as informative: (sum w)^2 / sum w^2."""
    return float(weights.sum() ** 2 / (weights**2).sum()) if len(weights) else 0.0


def authors_acceptance(counts: Ints) -> Floats:
    """The probability with which the paper's code keeps a positive of each item: (max f / f_i)^0.005, scaled
    to 0 to 1 over the held-out part itself. So the most popular item is never kept."""
    present = counts > 0
    weight = np.zeros(len(counts))
    weight[present] = (counts.max(initial=1) / counts[present]) ** AUTHORS_EXPONENT
    low, high = weight[present].min(initial=1.0), weight[present].max(initial=1.0)
    return np.where(present, (weight - low) / (high - low), 0.0) if high > low else present.astype(np.float64)
