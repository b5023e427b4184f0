"""The leak audit: proof, for one split, that nothing a model may read comes from the future, and that nothing
gives the label away.

Every number is computed again in another way. What the samplers hand to the models is checked as well, for
every kind of batch.
"""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput, Leak
from unskew.core.progress import Job, progress
from unskew.data.audit.label_leakage import Finding, label_leakage, look_ahead
from unskew.data.log.arrays import distinct
from unskew.data.log.held_out import held_out
from unskew.data.log.split import Split
from unskew.data.log.views import AUDIENCE, HISTORY, Ints, Sequences

if TYPE_CHECKING:
    from unskew.data.batches.batch import Prefixes, SequenceBatch

CHUNK = 1_000_000
# Each context that a sampler hands out is computed again from the whole log. Of each kind of batch, so many
# contexts are checked that this takes about RECOUNTED looks at a row, but at most CONTEXTS.
RECOUNTED = 200_000_000
CONTEXTS = 500


def audit(split: Split, history: int = HISTORY, audience: int = AUDIENCE) -> list[Finding]:
    """Run all checks, and return what they found. `require_no_leak` raises an error instead.

    history, audience: how many past items of a user, and past users of an item, a model reads.
    """
    if history < 1 or audience < 1:
        raise BadInput(
            f"history {history}, audience {audience}: expected at least 1, or there is nothing to look at"
        )
    log = split.log
    with progress("audit", total=16 + 2 * math.ceil(len(log) / CHUNK)) as job:

        def said(finding: Finding) -> Finding:
            job.advance(note=finding.check)
            return finding

        return [
            said(_borders(split)),
            said(_counts(split, "user counts", split.user_counts, log.user, log.users.of)),
            said(_counts(split, "item counts", split.item_counts, log.item, log.items.of)),
            said(_known(split, "known users", split.known_users, log.user, log.users.of)),
            said(_known(split, "known items", split.known_items, log.item, log.items.of)),
            said(_balanced(split)),
            _windows(split, "histories", log.histories, log.user, log.items.of, history, job),
            _windows(split, "audiences", log.audiences, log.item, log.users.of, audience, job),
            said(_views_hold_the_log(split)),
            *(said(_handed_out(split, kind, history, audience)) for kind in ("pairs", "prefixes")),
            *(said(_sequences(split, kind, history, audience)) for kind in ("histories", "sequences")),
            *(said(finding) for finding in label_leakage(split, audience)),
            said(look_ahead(split)),
        ]


def require_no_leak(split: Split, history: int = HISTORY, audience: int = AUDIENCE) -> list[Finding]:
    """Run all checks, and raise `Leak` with the first row that is wrong, if there is one."""
    findings = audit(split, history, audience)
    for finding in findings:
        if not finding.passed:
            raise Leak(f"{finding.check}: {finding.offence}")
    return findings


Name = Callable[[NDArray[Any]], Any]


def _row(split: Split, row: int) -> str:
    """A row of the log, for an error message."""
    log = split.log
    user, item = log.users.of(log.user[[row]])[0].as_py(), log.items.of(log.item[[row]])[0].as_py()
    return f"row {row} (user {user!r}, item {item!r}, time {log.time[row]})"


def _borders(split: Split) -> Finding:
    """Check that train is before valid, valid before test, and each row in exactly one part."""
    parts = [split.rows("train"), split.rows("valid"), split.rows("test")]
    times = [split.log.time[rows] for rows in parts]
    everyone = np.concatenate(parts)
    offence = None
    if len(everyone) != len(split.log) or len(distinct(everyone)) != len(everyone):
        twice = np.bincount(everyone, minlength=len(split.log))
        offence = f"{_row(split, int(np.flatnonzero(twice != 1)[0]))} is in {twice[twice != 1][0]} parts"
    for earlier, later, rows in ((0, 1, parts[0]), (1, 2, parts[1]), (0, 2, parts[0])):
        if offence is None and len(times[earlier]) and len(times[later]):
            late = times[earlier] >= times[later].min()
            if late.any():
                offence = (
                    f"{_row(split, int(rows[np.argmax(late)]))} is not before the next part, which "
                    f"starts at {times[later].min()}"
                )
    return Finding("borders", len(everyone), offence)


def _counts(split: Split, name: str, counts: Ints, column: Any, of: Name) -> Finding:
    """Check that each count is the number of positives in the training set."""
    log = split.log
    rows = np.flatnonzero((log.time < split.train_end) & (log.label == 1))
    codes, expected = np.unique(column[rows], return_counts=True)
    recounted = np.zeros(len(counts), np.int64)
    recounted[codes] = expected
    return Finding(name, len(counts), _first_difference(counts, recounted, of, "the training rows give"))


def _known(split: Split, name: str, known: int, column: Any, of: Name) -> Finding:
    """Check that the known users (items) are exactly those with a positive in training."""
    seen = np.zeros(int(max(known, column.max(initial=-1) + 1)), bool)
    seen[column[(split.log.time < split.train_end) & (split.log.label == 1)]] = True
    wrong = np.flatnonzero(seen != (np.arange(len(seen)) < known))
    offence = None
    if len(wrong):
        said, ground_truth = ("known", "never saw") if wrong[0] < known else ("not known", "saw")
        offence = f"{of(wrong[:1])[0].as_py()!r} is called {said}, but training {ground_truth} it"
    return Finding(name, len(seen), offence)


def _balanced(split: Split) -> Finding:
    """Check that all items have the same weight in the balanced test."""
    tested = held_out(split, "test", "balanced")
    total: dict[int, float] = {}
    for item, weight in zip(split.log.item[tested.rows].tolist(), tested.weights.tolist(), strict=True):
        total[item] = total.get(item, 0.0) + weight
    wrong = next(
        (item for item, weight in total.items() if not math.isclose(weight, 1.0, rel_tol=1e-6)), None
    )
    offence = None
    if wrong is not None:
        offence = (
            f"item {split.log.items.of(np.array([wrong]))[0].as_py()!r} weighs {total[wrong]:g} in "
            "the balanced test; expected 1"
        )
    return Finding("balanced test", len(tested.rows), offence)


def _first_difference(found: Any, expected: Any, of: Name, said: str) -> str | None:
    """What is wrong with the first number that is not the expected one; None if all are equal."""
    wrong = np.flatnonzero(~np.isclose(found, expected, rtol=1e-9, atol=0))
    return (
        f"{of(wrong[:1])[0].as_py()!r} has {found[wrong[0]]:g}, {said} {expected[wrong[0]]:g}"
        if len(wrong)
        else None
    )


def _windows(
    split: Split, name: str, view: Sequences, column: Any, of: Name, newest: int, job: Job
) -> Finding:
    """Check what a model would read for every row: each event belongs to the user (the item) of the row and
    is before the row."""
    log = split.log
    for first, last in _chunks(len(log)):
        job.advance(note=name)
        entity, time = column[first:last], log.time[first:last]
        start, end = view.before(entity, time, newest)
        foreign = (end > start) & ((start < view.offsets[entity]) | (end > view.offsets[entity + 1]))
        late = np.full(len(time), -1)
        for place in range(newest):
            at = end - 1 - place
            inside = at >= start
            if not inside.any():
                break
            after = inside & (view.times[np.maximum(at, 0)] >= time)
            late = np.where((late < 0) & after, at, late)
        wrong = np.flatnonzero(foreign | (late >= 0))
        if len(wrong):
            row = int(wrong[0])
            held = late[row] if late[row] >= 0 else start[row]
            event = of(view.ids[[held]])[0].as_py()
            what = "another's event" if foreign[row] else "an event that is not before it"
            return Finding(
                name, last, f"{_row(split, first + row)} holds {what}: {event!r} at time {view.times[held]}"
            )
    return Finding(name, len(log), None)


def _views_hold_the_log(split: Split) -> Finding:
    """Check that both views have the positives of the log at their true times. Wrong times in a view could
    hide a leak from the other checks."""
    log = split.log
    rows = np.flatnonzero(log.label == 1)
    by_user = rows[np.lexsort((log.item[rows], log.time[rows], log.user[rows]))]
    by_item = rows[np.lexsort((log.user[rows], log.time[rows], log.item[rows]))]
    for name, view, order, ids in (
        ("history", log.histories, by_user, log.item),
        ("audience", log.audiences, by_item, log.user),
    ):
        if len(view.ids) != len(order):
            return Finding(
                "views",
                len(rows),
                f"the {name} view has {len(view.ids)} events, the log {len(order)} positives",
            )
        owner = log.user if name == "history" else log.item
        owned = np.searchsorted(owner[order], np.arange(len(view) + 1))
        if not np.array_equal(view.offsets, owned):
            wrong = np.flatnonzero(view.offsets != owned)
            return Finding(
                "views",
                len(rows),
                f"the {name} of number {max(wrong[0] - 1, 0)} holds another's events: wrong offsets",
            )
        wrong = np.flatnonzero((view.ids != ids[order]) | (view.times != log.time[order]))
        if len(wrong):
            said = (
                f"{_row(split, int(order[wrong[0]]))} stands in the {name} view with time "
                f"{view.times[wrong[0]]}"
            )
            return Finding("views", len(rows), said)
    return Finding("views", len(rows), None)


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK, length)) for first in range(0, length, CHUNK))


# What the samplers hand to the models


def _handed_out(split: Split, kind: str, history: int, audience: int) -> Finding:
    """Check batches of pairs: histories and audiences are exactly what a search through the whole log finds
    strictly before."""
    from unskew.data.batches.samplers import Sampler, Sampling

    name, log = f"batches of {kind}", split.log
    wanted = int(np.clip(RECOUNTED // max(len(log), 1), 20, CONTEXTS))
    try:
        sampler = Sampler(
            split, Sampling(batch_size=wanted, history=history, audience=audience, shared=kind == "prefixes")
        )
        made = next(sampler.epoch())
    except BadInput as error:
        return Finding(name, 0, None, str(error))
    checked = 0
    for place in range(len(made.user_B)):
        user, time = int(made.user_B[place]), int(made.times_B[place])
        past = _past(log.item, log.user == user, split, time)
        if not _is_newest(_prefix(made.histories, place), past, history, kind == "prefixes"):
            return Finding(
                name,
                checked,
                f"the history of user {log.users.of(np.array([user]))[0].as_py()!r} at time {time} {_WRONG}",
            )
        candidate = place % made.candidates_BC.shape[1]  # one per context, each position in turn
        item = int(made.candidates_BC[place, candidate])
        past = _past(log.user, log.item == item, split, time)
        if not _is_newest(
            _prefix(made.audiences, int(made.audience_of_BC[place, candidate])),
            past,
            audience,
            kind == "prefixes",
        ):
            return Finding(
                name,
                checked,
                f"the audience of item {log.items.of(np.array([item]))[0].as_py()!r} at time {time} {_WRONG}",
            )
        checked += 1 + made.candidates_BC.shape[1]
    return Finding(name, checked, None)


Events = list[tuple[int, int]]  # ids and times
_WRONG = "holds something that is not strictly before, or lacks something that is"


def _past(ids: Any, mine: NDArray[np.bool_], split: Split, time: int) -> Events:
    """The ids and times of all positives of one entity strictly before a time, oldest first."""
    log = split.log
    rows = np.flatnonzero(mine & (log.time < time) & (log.label == 1))
    return [(int(ids[row]), int(log.time[row])) for row in rows[np.lexsort((ids[rows], log.time[rows]))]]


def _prefix(prefixes: "Prefixes", place: int) -> Events:
    """One of the sequences in a batch, with its times."""
    row, length = int(prefixes.row_N[place]), int(prefixes.length_N[place])
    assert prefixes.times_WL is not None
    ids, times = (rows[row, :length].tolist() for rows in (prefixes.ids_WL, prefixes.times_WL))
    return list(zip(ids, times, strict=True))


def _is_newest(found: Events, past: Events, most: int, shared: bool) -> bool:
    """Whether a sequence is the newest part of the past. It has `most` events, or at least half as many where
    sequences share the events that they have in common."""
    enough = min(len(past), most // 2 if shared else most)
    return enough <= len(found) <= most and found == past[len(past) - len(found) :]


def _sequences(split: Split, kind: str, history: int, audience: int) -> Finding:
    """Check batches of whole sequences: what the batch calls the past of an event is exactly what is strictly
    before it."""
    from unskew.data.batches.samplers import SequenceSampler

    sampler = SequenceSampler(
        split, 256, 0, history, audience if kind == "sequences" else None, overlap=int(kind == "histories")
    )
    checked = 0
    for _, made in zip(range(20), sampler.epoch(), strict=False):
        for name, view, owner, event, past, told in _views_of(split, made):
            inside = event >= 0
            start = event.max(axis=1, initial=-1) - inside.sum(axis=1) + 1
            wrong = inside & (
                (event < view.offsets[owner][:, None]) | (event >= view.offsets[owner + 1][:, None])
            )
            time = view.times[np.where(inside, event, 0)]
            last, following = start[:, None] + past - 1, start[:, None] + past
            wrong |= inside & (past > 0) & (view.times[np.maximum(last, 0)] >= time)
            wrong |= (
                inside
                & (following < event)
                & (view.times[np.maximum(np.minimum(following, event), 0)] < time)
            )
            wrong |= inside & ((time >= split.train_end) | (time != told))
            if wrong.any():
                row, place = np.argwhere(wrong)[0]
                return Finding(
                    f"batches of {kind}",
                    checked,
                    f"event {event[row, place]} of the {name}: its past {_WRONG}",
                )
            checked += int(inside.sum())
    return Finding(f"batches of {kind}", checked, None)


def _views_of(split: Split, made: "SequenceBatch") -> Iterator[tuple[str, Sequences, Ints, Ints, Ints, Ints]]:
    """Of each view: its name, the view itself, and what the batch says: owners, events, sizes of pasts, and
    times."""
    log = split.log
    histories = made.user_B, made.event_BL, made.past_BL, made.time_BL
    audiences = made.item_B, made.users_event_BM, made.users_past_BM, made.users_time_BM
    for name, view, told in (
        ("histories", log.histories, histories),
        ("audiences", log.audiences, audiences),
    ):
        owner, event, past, time = (part.numpy() for part in told)
        yield name, view, owner, event, past, time
