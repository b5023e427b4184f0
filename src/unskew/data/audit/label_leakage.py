"""The part of the leak audit that looks for signs which give the label away.

Some properties of a candidate, such as an empty audience, must be as frequent among positives as among the
other candidates. And a filter over the whole log, such as a k-core, looks into the future.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.held_out import held_out
from unskew.data.log.log import Log
from unskew.data.log.preparation import Metadata
from unskew.data.log.split import Split
from unskew.data.log.views import Ints

PAIRS = 20_000  # contexts whose candidates are compared, in training and in the test
CANDIDATES = 20  # drawn for each of them
FEWEST = 100  # contexts; with fewer, the AUC says nothing
# How far from one half the AUC of a property may be that must not give the label away.
MAX_AUC_DEVIATION = 0.01
FEWEST_OF_CORE = 3  # rows of each user and item, from which a log looks like a k-core


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    check: str
    checked: int  # how many rows, or entries, were checked
    offence: str | None  # the first that is wrong; None if all are right
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing is wrong."""
        return self.offence is None


def label_leakage(split: Split, audience: int) -> list[Finding]:
    """Check that no property gives the label away: the AUC of each on training pairs, as a sampler makes
    them, and on test candidates.

    An empty audience or an empty history must say nothing about the label. Where items exist before their
    first positive, because a context event or a feed says so, one without an audience may well be a target
    less often; being one more often would still give labels away. Where repeats are part of the
    task, being one of the user's past items may say something; but then past items must be as frequent among
    the drawn negatives as among all candidates.
    """
    pairs = {"training pairs": _training_pairs(split, audience), "test candidates": _test_candidates(split)}
    training = pairs["training pairs"]
    # Logged negatives have their own contexts, and users without a history may well click less often.
    informative = {("empty history", "training pairs")} if training and training.has_logged else set()
    exist_without = bool(split.log.context) or split.log.audiences.listed is not None
    findings = []
    for name in ("empty audience", "empty history", "own past"):
        aucs = {where: part.auc(name) for where, part in pairs.items() if part is not None}
        offence = None
        for where, auc in aucs.items():
            may_inform = name == "own past" or (name, where) in informative
            deviation = auc - 0.5 if name == "empty audience" and exist_without else abs(auc - 0.5)
            if not may_inform and deviation > MAX_AUC_DEVIATION:
                offence = f"on {where} it reveals the label: AUC {auc:.3f} alone, expected 0.5"
        if name == "own past" and training is not None and training.drawn is not None:
            offence = _own_past_offence(split, training, training.drawn[name])
        note = ", ".join(f"AUC {auc:.3f} on {where}" for where, auc in aucs.items())
        checked = sum(len(part.positive[name]) + len(part.negative[name]) for part in pairs.values() if part)
        findings.append(Finding(name, checked, offence, note or "too few rows to tell"))
    return findings


def _own_past_offence(split: Split, training: "_Pairs", drawn: NDArray[np.bool_]) -> str | None:
    """What is wrong with how often the drawn negatives are past items of their users."""
    fraction, expected = float(drawn.mean()), _own_past_of_candidates(split, *training.contexts)
    error = 4 * math.sqrt(max(expected * (1 - expected), 1e-12) / len(drawn))
    if split.repeats and abs(fraction - expected) > MAX_AUC_DEVIATION * expected + error:
        of_drawn = f"{fraction:.2%} of the drawn negatives are past items of the user"
        return f"{of_drawn}, but {expected:.2%} of all candidates are"
    of_positives = training.positive["own past"].mean()
    if not split.repeats and of_positives != fraction:
        return f"{of_positives:.2%} of the positives and {fraction:.2%} of the negatives are past items"
    return None


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Properties of positives and of negatives, and the contexts: user, logged item, time."""

    positive: dict[str, NDArray[np.bool_]]
    negative: dict[str, NDArray[np.bool_]]
    drawn: dict[str, NDArray[np.bool_]] | None  # only of drawn negatives; None if all negatives are logged
    contexts: tuple[Ints, Ints, Ints]

    @property
    def has_logged(self) -> bool:
        """Whether some of the negatives are logged ones."""
        return self.drawn is None or len(self.drawn["own past"]) < len(self.negative["own past"])

    def auc(self, name: str) -> float:
        """The AUC of a property, which is true or false."""
        return 0.5 + 0.5 * float(self.positive[name].mean() - self.negative[name].mean())


def _properties(split: Split, user: Ints, item: Ints, time: Ints) -> dict[str, NDArray[np.bool_]]:
    """The properties of some candidates that might give the label away."""
    log = split.log
    (start, end), (first, last) = log.audiences.before(item, time), log.histories.before(user, time)
    empty = (end == start) & (time > log.audiences.times.min())  # at the very first moment all audiences are
    return {
        "empty audience": empty,
        "empty history": last == first,
        "own past": log.had_before(user, item, time),
    }


def _training_pairs(split: Split, audience: int) -> _Pairs | None:
    """Training pairs, as a sampler makes them; None if there are too few."""
    from unskew.data.batches.samplers import Sampler, Sampling

    try:
        sampler = Sampler(split, Sampling(batch_size=PAIRS, history=0, audience=audience))
        made = next(sampler.epoch())
    except BadInput:
        return None
    shape = made.candidates_BC.shape
    user, time = (np.repeat(column.numpy(), shape[1]) for column in (made.user_B, made.times_B))
    item, label = made.candidates_BC.numpy().ravel(), made.labels_BC.numpy().ravel() == 1
    if len(made.user_B) < FEWEST or not label.any() or label.all():
        return None
    positive, negative = (
        _properties(split, user[those], item[those], time[those]) for those in (label, ~label)
    )
    others = np.arange(len(item)) % shape[1] > 0  # the logged one comes first
    drawn = _properties(split, user[others], item[others], time[others]) if sampler.negatives else None
    return _Pairs(positive, negative, drawn, (user[~others], item[~others], time[~others]))


def _own_past_of_candidates(split: Split, user: Ints, item: Ints, time: Ints) -> float:
    """The fraction of the user's past items among what may be a negative: items that are known, existed by
    then, and are not taken at this moment."""
    log = split.log
    existing = np.maximum(np.minimum(log.audiences.existing(time), split.known_items), 1)
    drawn = (np.random.default_rng(29).random((len(user), CANDIDATES)) * existing[:, None]).astype(np.int64)
    moment = log.histories.before(user, time)[1]
    which, place = log.histories.flat(moment, np.maximum(moment, log.histories.before(user, time + 1)[1]))
    taken = np.isin(
        np.arange(len(user))[:, None] * len(log.items) + drawn,
        which * len(log.items) + log.histories.ids[place],
    )
    kept = ~taken & (drawn != item[:, None])
    own = log.had_before(user[:, None], drawn, time[:, None]) & kept
    some = kept.any(axis=1)
    return float((own.sum(axis=1)[some] / kept.sum(axis=1)[some]).mean()) if some.any() else 0.0


def _test_candidates(split: Split) -> _Pairs | None:
    """Test positives, each with one other candidate of the evaluation; None if there are too few."""
    log, rows = split.log, held_out(split, "test", "ordinary", PAIRS).rows
    if len(rows) < FEWEST:
        return None
    user, item = log.user[rows].astype(np.int64), log.item[rows].astype(np.int64)
    time = np.asarray(log.time[rows])
    uniform = np.random.default_rng(31).random((len(rows), CANDIDATES))
    drawn = (uniform * log.audiences.existing(time)[:, None]).astype(np.int64)
    candidate = drawn != item[:, None]
    if not split.repeats:
        candidate &= ~log.had_before(user[:, None], drawn, time[:, None])
    # One candidate per positive; otherwise contexts with few candidates would count less.
    some, other = candidate.any(axis=1), drawn[np.arange(len(rows)), candidate.argmax(axis=1)]
    if not some.any():
        return None
    user, item, time, other = user[some], item[some], time[some], other[some]
    return _Pairs(
        _properties(split, user, item, time), _properties(split, user, other, time), None, (user, item, time)
    )


def look_ahead(split: Split) -> Finding:
    """Count the test positives that a k-core made certain: it keeps only items that are frequent enough in
    the whole log, so an item that has been less frequent so far is sure to come again."""
    log = split.log
    minimum, count = _core(log.metadata)
    rows = held_out(split, "test", "ordinary").rows
    core = f"the {minimum}-core"
    if minimum <= 1:
        minimum = foreign_core(split.source)
        if not minimum:
            return Finding("look-ahead filter", len(rows), None, "no k-core")
        core = f"{foreign_core_sentence(minimum)}; that filter"
    moments, tick = np.unique(log.time, return_inverse=True)
    counted = np.arange(log.positives if count == "positives" else len(log))  # positives come first
    keys = np.sort(log.item[counted].astype(np.int64) * len(moments) + tick[counted])
    first = log.item[rows].astype(np.int64) * len(moments)
    before = np.searchsorted(keys, first + tick[rows]) - np.searchsorted(keys, first)
    certain = int((before < minimum).sum())
    note = (
        f"{core} made {certain:,} of {len(rows):,} test positives certain: their items had fewer than "
        f"{minimum} {count} by then"
    )
    return Finding("look-ahead filter", len(rows), None, note)


def foreign_core(log: Log) -> int:
    """The k of a k-core that a log seems to have been through before it was prepared: each of its users and
    items has at least k rows. 0 if k is less than three, if `prepare` made a k-core, or if the log was
    simulated."""
    if _core(log.metadata)[0] > 1 or _is_simulated(log.metadata):
        return 0
    counts = (np.bincount(log.user, minlength=1), np.bincount(log.item, minlength=1))
    k = min(int(count[count > 0].min(initial=len(log))) for count in counts)
    return k if k >= FEWEST_OF_CORE else 0


def foreign_core_sentence(k: int) -> str:
    """What `foreign_core` has found, for the audit and the inspection."""
    return (
        f"this looks like a k-core filtered log: each user and each item has at least {k} rows, although "
        "`prepare` made no k-core"
    )


def _is_simulated(metadata: Metadata) -> bool:
    """Whether a log is of a simulated world, even if it was prepared again since."""
    return metadata.world is not None or (metadata.origin is not None and _is_simulated(metadata.origin))


def _core(metadata: Metadata) -> tuple[int, str]:
    """The k of the largest k-core that a log has been through, and which rows it counted, even if the log was
    prepared again since."""
    here = metadata.settings.k_core, metadata.settings.count
    return here if metadata.origin is None else max(here, _core(metadata.origin), key=lambda core: core[0])
