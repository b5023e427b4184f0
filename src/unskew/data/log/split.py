"""How a log is split into a training, a validation and a test set. What a model may know is counted on
training rows only.

    time            one global time line with two borders: training before validation before test
    leave-one-out   the last positive of each user is the test set, the one before it the validation set, and
                    the rest is the training set. This is what most papers report. A user's training events
                    may be later than another user's test event, so a model may know the future
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from numpy.typing import ArrayLike, NDArray

from unskew.core.config import configured
from unskew.core.errors import BadInput
from unskew.data.log.arrays import chunks, count_of, distinct, offsets_of, smallest
from unskew.data.log.clock import Clock
from unskew.data.log.folder import COLUMNS, EXTRAS
from unskew.data.log.log import Log, renumber_context
from unskew.data.log.views import EventView, Ints, Sequences, Views, views_of
from unskew.data.log.vocabulary import Vocabulary

Part = Literal["train", "valid", "test"]
Mask = NDArray[np.bool_]

# From this fraction of repeats among the training positives on, `auto` keeps past items as candidates.
PART_OF_THE_TASK = 0.01
# Borders that are given must leave at least this fraction of the positives to train on.
MIN_TRAINING_FRACTION = 0.01
ROW_COLUMNS = (*COLUMNS, *EXTRAS)
NEVER = np.iinfo(np.int64).max
MIN_EVENTS = 3  # of a user in a leave-one-out split: one to train on, one to validate, one to test


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How a log is split, and which items can be recommended."""

    kind: Annotated[Literal["time", "leave-one-out"], tyro.conf.arg(name="split")] = "time"
    """`time`: the validation set is later than the training set, and the test set is later than both.
    `leave-one-out`: the last positive of each user is the test set and the one before it the validation set;
    the held-out events of a user are hidden from all other users."""
    fractions: tuple[float, float, float] = (50, 20, 30)
    """The fractions of the rows that are the training, the validation and the test set, in the order of
    time."""
    at: str | None = None
    """Where the sets begin instead of the fractions: an ISO date (the set begins with it), or a quantile of
    the rows between 0 and 1 (the set begins just after it). Two of them between a comma are the begin of the
    validation and of the test set; one alone is the begin of the test set, and the rows before it are divided
    in the proportion of the first two fractions."""
    others_held_out: Literal["hide", "show"] = "hide"
    """In a leave-one-out split: whether the held-out events of other users are hidden when a user's list is
    made. `show` is only for comparison with results that were computed without this care."""
    repeats: Literal["auto", "keep", "hide"] = "auto"
    """Whether an item that a user has had before can be recommended to the user again. `keep`: it can, in
    training, in evaluation and in recommendation. `hide`: it cannot, and positives that repeat one are left
    out and counted. `auto`: `keep` if at least 1 % of the training positives repeat an item."""
    borders: str | None = None
    """Two named tests of the log between a comma, VALID,TEST: the validation set begins with the first row
    that VALID marks, and the test set with the first one that TEST marks, whatever the fractions are. The
    default is what `prepare` was given; without it, the fractions decide."""
    min_count: int | None = None
    """Users and items with fewer positives than this in the training set are unknown to every model: they
    share one learned vector. No row is removed. The default is what `prepare` was given, or else 1."""


@dataclass(frozen=True, eq=False)
class Ids:
    """The users, or the items, that training saw: those with a code below `size`."""

    size: int
    rare: Mask | None = None  # which of them have too few positives, and are corrected as unknown
    categories: Mapping[str, int] = field(default_factory=dict)  # of a feature, how many values they have


@dataclass(frozen=True, eq=False)
class Known:
    """What the shape of a model depends on: who and what it can tell apart, and the clock of the log."""

    users: Ids
    items: Ids
    clock: Clock
    types: tuple[str, ...] = ()  # of the context events, in the order of the names
    repeats: bool = False  # whether past items are candidates


@dataclass(frozen=True, eq=False)
class Split:
    """A log split by time, and the statistics a model may read: all of them of training rows only.

    Rows of equal time are always on the same side of a border. Users and items without a positive in training
    are kept: their codes are simply not below `known_users` and `known_items`. Of those below, the ones with
    fewer than `min_count` positives are corrected as unknown by the models.
    """

    log: Log
    settings: Splitting
    train_end: int  # train is what happened before this time
    valid_end: int  # valid is the rest before this one
    known_users: int
    known_items: int
    user_counts: Ints  # positives of each user in the training set
    item_counts: Ints
    repeats: bool  # whether a user's past items stay candidates
    min_count: int

    def mask(self, part: Part) -> Mask:
        """The rows of a part."""
        time = self.log.time
        if part == "train":
            return np.asarray(time < self.train_end)
        if part == "valid":
            return np.asarray((time >= self.train_end) & (time < self.valid_end))
        if part == "test":
            return np.asarray(time >= self.valid_end)
        raise BadInput(f"no part {part!r}; parts are train, valid, test")

    def rows(self, part: Part) -> Ints:
        """The rows of a part, as positions in the log."""
        return np.flatnonzero(self.mask(part))

    @property
    def source(self) -> Log:
        """The log that was split."""
        return self.log

    def past(self, part: Part) -> EventView:
        """The sequences from which the history of a request of a part is read."""
        return self.log.histories

    def visible(self, part: Part) -> Log:
        """The log that a model may read, strictly before the time of a request, when it is evaluated on a
        part."""
        return self.log

    def candidates(self, time: ArrayLike) -> Ints:
        """How many items are candidates at each time: the items with a code below that number."""
        return self.log.audiences.existing(time)

    @cached_property
    def first_appearance(self) -> Mask:
        """Rows whose item did not exist strictly before.

        It is no candidate. Without events of other types, its audience is empty and the audiences of all
        candidates are not, so that emptiness would reveal the label. At the very first moment all audiences
        are empty, and it reveals nothing.
        """
        first, log = self.log.audiences.since, self.log
        very_first, found = first.min(), np.empty(len(log), bool)
        for part in chunks(len(log)):
            time = log.time[part]
            found[part] = (first[log.item[part]] >= time) & (time > very_first)
        return found

    @property
    def has_targets_removed(self) -> bool:
        """Whether the log has none of the targets that are ranked, so that events of other users may be read
        at any time, and not only before a request."""
        return False

    def examples(self, most: int) -> int:
        """How many training positives a model draws that learns from a sample of them.

        most: the number in its settings.
        """
        return most

    def targets(self, part: Part, reads_audiences: bool) -> Mask:
        """Rows of a part that may be trained on or tested.

        Left out are repeats, where past items are hidden, and first appearances, where audiences are read
        (and in every test, so that all models have the same rows). Training also leaves out rows of users and
        items
        that were shown but never clicked in it: they are unknown, so such rows would teach that whatever is
        unknown is never clicked.
        """
        wanted = self.mask(part)
        if part == "train":
            wanted &= (self.log.item < self.known_items) & (self.log.user < self.known_users)
        if not self.repeats:
            wanted &= ~self.log.repeated
        return wanted & ~self.first_appearance if reads_audiences else wanted

    def list_targets(self) -> tuple[Log, Mask]:
        """What a model learns from that reads a log at the moment of each request: the log that it may read,
        and which of the positives of `log` are targets."""
        return self.log, self.targets("train", reads_audiences=True)[: self.log.positives]

    @property
    def known(self) -> Known:
        """What a model is built for."""
        users = self._ids(self.user_counts[: self.known_users], self.log.users)
        items = self._ids(self.item_counts[: self.known_items], self.log.items)
        return Known(users, items, self.log.clock, tuple(self.log.context), self.repeats)

    def _ids(self, counts: Ints, vocabulary: Vocabulary) -> Ids:
        rare = counts < self.min_count
        # Categories are numbered by the first id that has them, so those of known ids are the first ones.
        categories = {
            name: int(feature.categories[: len(counts)].max(initial=-1)) + 1
            for name, feature in vocabulary.features.items()
            if not feature.is_number
        }
        return Ids(len(counts), rare if rare.any() else None, categories)

    def __repr__(self) -> str:
        train, valid = (self.log.clock.date(time) for time in (self.train_end, self.valid_end))
        return f"Split({self.log!r}, train before {train}, valid before {valid})"

    def summary(self) -> list[dict[str, Any]]:
        """Per part: rows, positives, repeats, and how many have a user or an item that training never saw."""
        found = []
        parts: tuple[Part, ...] = ("train", "valid", "test")
        for part in parts:
            rows = self.rows(part)
            user, item, positive = self.log.user[rows], self.log.item[rows], self.log.label[rows] == 1
            counts = {"rows": len(rows), "positives": int(positive.sum())}
            counts |= {"users": len(distinct(user)), "items": len(distinct(item))}
            counts |= {"unknown_user_rows": int((user >= self.known_users).sum())}
            counts |= {"unknown_item_rows": int((item >= self.known_items).sum())}
            counts |= {"repeated_positives": int((self.log.repeated[rows] & positive).sum())}
            counts |= {"first_appearances": int((self.first_appearance[rows] & positive).sum())}
            found.append({"part": part, **counts})
        return found


@dataclass(frozen=True, eq=False)
class LeaveOneOut(Split):
    """A split that holds out the last two positives of each user.

    The histories and audiences of `log` contain training rows only. The validation rows and then the test
    rows are its last rows, so a model that is trained on `log` cannot see them. Items are numbered by their
    first training row, and every item of the training set is a candidate at any time.
    """

    part: NDArray[np.int8]  # of each row of the log, as a position in PARTS
    whole: Log  # the log that was split
    test_past: Sequences  # training and validation rows: what a user has done before the test row

    def mask(self, part: Part) -> Mask:
        if part not in PARTS:
            raise BadInput(f"no part {part!r}; parts are {', '.join(PARTS)}")
        return np.asarray(self.part == PARTS.index(part))

    @cached_property
    def first_appearance(self) -> Mask:
        """No row is one: all items are candidates at any time, and an item that has no training row is a
        miss."""
        return np.zeros(len(self.log), bool)

    @property
    def has_targets_removed(self) -> bool:
        return True

    @property
    def source(self) -> Log:
        return self.whole

    def past(self, part: Part) -> EventView:
        return self.test_past if part == "test" else self.log.histories

    def visible(self, part: Part) -> Log:
        if self.settings.others_held_out == "hide" or part == "train":
            return self.log
        return self._with_held_out_events

    def list_targets(self) -> tuple[Log, Mask]:
        """The last training positive of each user who has one before it. The log that is read has none of
        them, just as `log` has none of the held-out positives: learning sees what a test will see."""
        return self._nested

    @cached_property
    def _nested(self) -> tuple[Log, Mask]:
        log, positives = self.log, self.log.positives
        is_last = np.append(np.diff(log.user[:positives]) != 0, True)
        is_target = is_last & ~np.append(True, is_last[:-1])  # a user's only positive is no target
        rest = np.flatnonzero(~is_target)
        if not self.repeats:
            is_target &= ~log.repeated[:positives]
        return with_views(log, rest, len(rest)), is_target

    @cached_property
    def _with_held_out_events(self) -> Log:
        """The log with all positives in its histories and audiences, for `others_held_out="show"`."""
        positive = np.flatnonzero(self.log.label == 1)
        order = positive[
            np.lexsort((self.log.item[positive], self.log.time[positive], self.log.user[positive]))
        ]
        return with_views(self.log, order, len(order))

    def without_test(self) -> "LeaveOneOut":
        """The same split of a log that has no test rows."""
        log = with_views(self.log, np.flatnonzero(self.part != 2), self.log.positives)
        return replace(self, log=log, part=self.part[self.part != 2], whole=log, test_past=log.histories)

    def candidates(self, time: ArrayLike) -> Ints:
        return np.full(np.shape(time), self.known_items)

    def __repr__(self) -> str:
        return f"LeaveOneOut({self.whole!r}, {int((self.part == 2).sum()):,} users with a test row)"


PARTS: tuple[Part, ...] = ("train", "valid", "test")


@configured(Splitting)
def split(log: Log, settings: Splitting) -> Split:
    """Split a log into a training, a validation and a test set. What training may know is counted here, once,
    on training rows."""
    fractions = np.asarray(settings.fractions, float)
    if len(fractions) != 3 or (fractions < 0).any() or not fractions.sum() > 0 or fractions[0] == 0:
        raise BadInput(
            f"fractions {settings.fractions}: expected three of at least 0, the first above 0",
            field="fractions",
        )
    prepared = log.metadata.settings.borders
    names = prepared if settings.borders is None else settings.borders
    if settings.kind == "leave-one-out":
        if settings.at is not None or settings.borders is not None:
            raise BadInput("a leave-one-out split has no borders in time: leave at and borders away")
        return leave_one_out(log, settings)
    if settings.at is not None:
        if settings.borders is not None:
            raise BadInput("at and borders both say where the sets begin: expected one of the two")
        train_end, valid_end = _borders_at(log, settings.at, fractions)
    elif names:
        train_end, valid_end = log.named_borders(names)
    else:
        return split_at(log, settings, *borders(log.time, fractions / fractions.sum()))
    _check_training_rows(log, train_end)
    return split_at(log, settings, train_end, valid_end)


def without_validation(log: Log, settings: Splitting) -> Splitting:
    """The settings of a split whose training set is the training and the validation set of these settings."""
    if settings.kind == "leave-one-out":
        raise BadInput("a leave-one-out split has no time at which its test set begins", field="until")
    if settings.at is not None:
        return replace(settings, at=settings.at.split(",")[-1].strip(), fractions=(100, 0, 0))
    names = settings.borders or log.metadata.settings.borders
    if names:
        test = names.split(",")[-1].strip()
        return replace(settings, borders=f"{test},{test}")
    train, valid, test_fraction = settings.fractions
    return replace(settings, fractions=(train + valid, 0, test_fraction))


def _borders_at(log: Log, at: str, fractions: NDArray[np.float64]) -> tuple[int, int]:
    """The borders that `at` asks for."""
    given = [text.strip() for text in at.split(",")]
    if len(given) > 2:
        raise BadInput(f"at {at!r}: expected one or two dates or quantiles between a comma", field="at")
    times = [_border_at(log, text) for text in given]
    if len(times) == 1:
        before = log.time[log.time < times[0]]
        if not len(before) or not fractions[:2].sum():
            raise BadInput(f"at {at!r}: no row is before it")
        train_end, _ = borders(before, np.array([fractions[0], fractions[1], 0]) / fractions[:2].sum())
        times = [min(train_end, times[0]), times[0]]
    if times[0] > times[1]:
        raise BadInput(f"at {at!r}: the validation set begins after the test set")
    return times[0], times[1]


def _border_at(log: Log, at: str) -> int:
    """The time at which a set begins: with a date, or just after a quantile."""
    try:
        quantile = float(at)
    except ValueError:
        return log.clock.moment(at)
    if not 0 < quantile < 1:
        raise BadInput(f"at {at!r}: expected an ISO date, or a quantile between 0 and 1", field="at")
    return smallest(log.time, int(quantile * (len(log) - 1))) + 1


def _check_training_rows(log: Log, train_end: int) -> None:
    """Refuse borders that leave almost nothing to train on."""
    training = int((log.time[: log.positives] < train_end).sum())
    if training < MIN_TRAINING_FRACTION * log.positives:
        raise BadInput(
            f"these borders leave {training:,} of {log.positives:,} positives to train on, because all rows "
            f"from {log.clock.date(train_end)} on are held out; to hold out the last events of each user, "
            "use the split leave-one-out"
        )


def split_at(log: Log, settings: Splitting, train_end: int, valid_end: int) -> Split:
    """A split with given borders: train is what happened before `train_end`, valid the rest before
    `valid_end`."""
    positives = log.positives
    train = np.asarray(log.time[:positives] < train_end)
    if not train.any():
        raise BadInput(
            f"the training set has no positive: fractions {settings.fractions} of {len(log)} rows, before "
            f"time {train_end}"
        )
    return Split(log, settings, train_end, valid_end, *_counts(log, settings, train, train_end))


def _counts(
    log: Log, settings: Splitting, train: Mask, train_end: int
) -> tuple[int, int, Ints, Ints, bool, int]:
    """What a split knows of its training set, in the order of the fields of `Split`.

    train: which of the positives of the log are training rows.
    """
    prepared = log.metadata.settings.min_count
    min_count = prepared if settings.min_count is None else settings.min_count
    if min_count < 1:
        raise BadInput(f"min_count {min_count}: expected at least 1", field="min_count")
    positives = log.positives
    user_counts = count_of(log.user[:positives], len(log.users), train)
    item_counts = count_of(log.item[:positives], len(log.items), train)
    known_users, known_items = int(log.histories.existing(train_end)), int(log.audiences.existing(train_end))
    repeats = settings.repeats == "keep"
    if settings.repeats == "auto":
        repeated = np.count_nonzero(log.repeated[:positives] & train)
        repeats = bool(repeated / np.count_nonzero(train) >= PART_OF_THE_TASK)
    return known_users, known_items, user_counts, item_counts, repeats, min_count


def leave_one_out(log: Log, settings: Splitting) -> LeaveOneOut:
    """Hold out the last two positives of every user who has at least three; rows that were shown and not
    clicked stay if they are before these."""
    positives = log.positives
    start, end = log.histories.starts, log.histories.ends
    part = np.zeros(len(log), np.int8)
    enough = end - start >= MIN_EVENTS
    part[end[enough] - 2], part[end[enough] - 1] = 1, 2
    if not enough.any():
        raise BadInput(
            f"a leave-one-out split needs users with at least {MIN_EVENTS} positives; there are none"
        )
    border = np.full(len(log.users), np.iinfo(np.int64).max)
    border[np.flatnonzero(enough)] = log.time[end[enough] - 2]
    passed = np.arange(positives, len(log))
    passed = passed[log.time[passed] < border[log.user[passed]]]
    train, valid, test = (np.flatnonzero(part[:positives] == number) for number in range(3))
    order = np.concatenate([train, passed, valid, test])
    numbered = _numbered_by(_context_before(log, border), train)
    hidden = with_views(numbered, order, len(train))
    before_test = np.sort(np.concatenate([train, valid]))
    past = with_views(numbered, before_test, len(before_test)).histories
    part = np.repeat(np.array([0, 1, 2], np.int8), [len(train) + len(passed), len(valid), len(test)])
    now = hidden.now
    counts = _counts(hidden, settings, np.ones(len(train), bool), now)
    return LeaveOneOut(hidden, settings, now, now, *counts, part, log, past)


def _numbered_by(log: Log, rows: Ints) -> Log:
    """The same log with its items numbered by the time from which they exist, of which only some rows count.
    Items that never exist come last. Users keep their numbers."""
    listed = log.audiences.listed
    first = np.full(len(log.items), NEVER) if listed is None else listed.copy()
    np.minimum.at(first, log.item[rows], log.time[rows])
    order = np.argsort(first, kind="stable")
    number = np.empty(len(order), np.int32)
    number[order] = np.arange(len(order), dtype=np.int32)
    audiences = replace(log.audiences, listed=None if listed is None else listed[order])
    return replace(
        log,
        item=number[log.item],
        items=log.items.take(order),
        audiences=audiences,
        context=renumber_context(log, number, len(order)),
        folder=None,
    )


def _context_before(log: Log, moment: Ints) -> Log:
    """The log with the context events of each user before a moment of the user's own."""

    def earlier(views: Views) -> Views:
        user, item, time = views.events()
        kept = time < moment[user]
        return views_of(user[kept], item[kept], time[kept], len(log.users), len(log.items))

    return replace(log, context={kind: earlier(views) for kind, views in log.context.items()})


def with_views(log: Log, rows: Ints, positives: int) -> Log:
    """A log of some rows, in this order; the first `positives` of them are its histories and audiences. They
    must be sorted by user and time."""
    columns = {name: getattr(log, name)[rows] for name in ROW_COLUMNS if getattr(log, name) is not None}
    user, item, time = (columns[name][:positives] for name in ("user", "item", "time"))
    by_item = np.lexsort((user, time, item))
    return replace(
        log,
        **columns,
        marks={name: mark[rows] for name, mark in log.marks.items()},
        histories=Sequences(item, time, offsets_of(user, len(log.users)), log.histories.listed),
        audiences=Sequences(
            user[by_item], time[by_item], offsets_of(item[by_item], len(log.items)), log.audiences.listed
        ),
    )


def cut_log(log: Log, time: int) -> Log:
    """The log as it was just before a time. Users and items keep their codes."""
    before = log.time < time
    positives = int(before[: log.positives].sum())
    known = replace(
        _context_before(log, np.full(len(log.users), time)),
        histories=_listed_before(log.histories, time),
        audiences=_listed_before(log.audiences, time),
        users=log.users.before(time),
        items=log.items.before(time),
        folder=None,
        end=None,
    )
    return with_views(known, np.flatnonzero(before), positives)


def _listed_before(view: Sequences, time: int) -> Sequences:
    """A view that does not know what is listed from a time on."""
    if view.listed is None:
        return view
    return replace(view, listed=np.where(view.listed < time, view.listed, NEVER))


def borders(time: Ints, fractions: NDArray[np.float64]) -> tuple[int, int]:
    """The two times that cut nearest to the fractions without parting rows of equal time."""

    def nearest(fraction: float) -> int:
        wanted = fraction * len(time)
        if wanted >= len(time):
            return int(time.max()) + 1
        at = smallest(time, int(wanted))
        first, last, following = 0, 0, None
        for part in chunks(len(time)):
            some = time[part]
            first += int(np.count_nonzero(some < at))
            last += int(np.count_nonzero(some <= at))
            later = some[some > at]
            if len(later):
                following = min(int(later.min()), int(later.min()) if following is None else following)
        # A border before the first row would leave nothing to train on.
        if 0 < first and wanted - first <= last - wanted:
            return at
        return at + 1 if following is None else following

    train_end = nearest(float(fractions[0]))
    return train_end, max(train_end, nearest(float(fractions[0] + fractions[1])))
