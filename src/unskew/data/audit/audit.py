"""The leak audit: proof, for one split, that nothing a model may read comes from the future, and that nothing
gives the label away.

Every number is computed again in another way. What the samplers hand to the models is checked as well, for
every kind of batch.
"""

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from unskew.core.errors import BadInput, Leak
from unskew.core.progress import Job, progress
from unskew.data.audit.label_leakage import Finding, label_leakage, look_ahead
from unskew.data.log.arrays import distinct
from unskew.data.log.held_out import held_out
from unskew.data.log.split import Split
from unskew.data.log.views import AUDIENCE, HISTORY, Codes, Ints, Sequences
from unskew.data.log.vocabulary import Vocabulary

if TYPE_CHECKING:
    from unskew.data.batches.batch import Prefixes

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

        def report(finding: Finding) -> Finding:
            job.advance(note=finding.check)
            return finding

        return [
            report(_borders(split)),
            report(_counts(split, "user counts", split.user_counts, log.user, log.users)),
            report(_counts(split, "item counts", split.item_counts, log.item, log.items)),
            report(_known(split, "known users", split.known_users, log.histories, log.users)),
            report(_known(split, "known items", split.known_items, log.audiences, log.items)),
            report(_balanced(split)),
            _windows(split, "histories", log.histories, log.user, log.items, history, job),
            _windows(split, "audiences", log.audiences, log.item, log.users, audience, job),
            report(_views_hold_the_log(split)),
            *(report(_handed_out(split, kind, history, audience)) for kind in ("pairs", "prefixes")),
            *(report(_sequences(split, kind, history, audience)) for kind in ("histories", "sequences")),
            *(report(finding) for finding in label_leakage(split, audience)),
            report(look_ahead(split)),
        ]


def require_no_leak(split: Split, history: int = HISTORY, audience: int = AUDIENCE) -> list[Finding]:
    """Run all checks, and raise `Leak` with the first row that is wrong, if there is one."""
    findings = audit(split, history, audience)
    for finding in findings:
        if not finding.passed:
            raise Leak(f"{finding.check}: {finding.offence}")
    return findings


def _row(split: Split, row: int) -> str:
    """A row of the log, for an error message."""
    log = split.log
    user, item = _id(log.users, log.user[row]), _id(log.items, log.item[row])
    return f"row {row} (user {user!r}, item {item!r}, time {log.time[row]})"


def _id(vocabulary: Vocabulary, code: int) -> Any:
    return vocabulary.of(np.array([code]))[0].as_py()


def _borders(split: Split) -> Finding:
    """Check that train is before valid, valid before test, and each row in exactly one part."""
    parts = [split.rows("train"), split.rows("valid"), split.rows("test")]
    everyone = np.concatenate(parts)
    offence = None
    if len(everyone) != len(split.log) or len(distinct(everyone)) != len(everyone):
        times_held = np.bincount(everyone, minlength=len(split.log))
        wrong = int(np.flatnonzero(times_held != 1)[0])
        offence = f"{_row(split, wrong)} is in {times_held[wrong]} parts"
    for earlier, later in itertools.combinations(parts, 2):
        if offence is None and len(earlier) and len(later):
            start = split.log.time[later].min()
            late = split.log.time[earlier] >= start
            if late.any():
                row = _row(split, int(earlier[np.argmax(late)]))
                offence = f"{row} is not before the next part, which starts at {start}"
    return Finding("borders", len(everyone), offence)


def _counts(split: Split, name: str, counts: Ints, column: Codes, vocabulary: Vocabulary) -> Finding:
    """Check that each count is the number of positives in the training set."""
    log = split.log
    rows = (log.time < split.train_end) & (log.label == 1)
    recounted = np.bincount(column[rows], minlength=len(counts))
    wrong = np.flatnonzero(counts != recounted)
    offence = None
    if len(wrong):
        code = wrong[0]
        offence = f"{_id(vocabulary, code)!r} has {counts[code]}, the training rows give {recounted[code]}"
    return Finding(name, len(counts), offence)


def _known(split: Split, name: str, known: int, view: Sequences, vocabulary: Vocabulary) -> Finding:
    """Check that the known users (items) are exactly those that training saw: in a positive, in a context
    event, or in a feed that listed them by then."""
    log = split.log
    users, items, times = log.everything()
    is_event = np.append(log.label == 1, np.ones(len(times) - len(log), bool))  # after the rows, context
    column = users if view is log.histories else items
    seen = np.zeros(max(known, len(vocabulary)), bool)
    seen[column[(times < split.train_end) & is_event]] = True
    if view.listed is not None:
        seen[: len(view.listed)] |= view.listed < split.train_end
    wrong = np.flatnonzero(seen != (np.arange(len(seen)) < known))
    offence = None
    if len(wrong):
        called, training = ("known", "never saw") if wrong[0] < known else ("not known", "saw")
        offence = f"{_id(vocabulary, wrong[0])!r} is called {called}, but training {training} it"
    return Finding(name, len(seen), offence)


def _balanced(split: Split) -> Finding:
    """Check that all items have the same weight in the balanced test."""
    tested = held_out(split, "test", "balanced")
    total: dict[int, float] = {}
    for item, weight in zip(split.log.item[tested.rows].tolist(), tested.weights.tolist(), strict=True):
        total[item] = total.get(item, 0.0) + weight
    for item, weight in total.items():
        if not math.isclose(weight, 1.0, rel_tol=1e-6):
            name = _id(split.log.items, item)
            offence = f"item {name!r} weighs {weight:g} in the balanced test; expected 1"
            return Finding("balanced test", len(tested.rows), offence)
    return Finding("balanced test", len(tested.rows), None)


def _windows(
    split: Split, name: str, view: Sequences, column: Codes, vocabulary: Vocabulary, newest: int, job: Job
) -> Finding:
    """Check what a model would read for every row: each event belongs to the user (the item) of the row and
    is before the row."""
    log = split.log
    for first, last in _chunks(len(log)):
        job.advance(note=name)
        entity, time = column[first:last], log.time[first:last]
        start, end = view.before(entity, time, newest)
        foreign = (end > start) & ((start < view.offsets[entity]) | (end > view.offsets[entity + 1]))
        late = np.full(len(time), -1)  # the newest event of each row that is not before it
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
            what = "another's event" if foreign[row] else "an event that is not before it"
            event = f"{_id(vocabulary, view.ids[held])!r} at time {view.times[held]}"
            return Finding(name, last, f"{_row(split, first + row)} holds {what}: {event}")
    return Finding(name, len(log), None)


def _views_hold_the_log(split: Split) -> Finding:
    """Check that both views have the positives of the log at their true times. Wrong times in a view could
    hide a leak from the other checks."""
    log = split.log
    rows = np.flatnonzero(log.label == 1)
    for name, view, owner, ids in (
        ("history", log.histories, log.user, log.item),
        ("audience", log.audiences, log.item, log.user),
    ):
        order = rows[np.lexsort((ids[rows], log.time[rows], owner[rows]))]
        offsets, offence = np.searchsorted(owner[order], np.arange(len(view) + 1)), None
        if len(view.ids) != len(order):
            offence = f"the {name} view has {len(view.ids)} events, the log {len(order)} positives"
        elif len(wrong := np.flatnonzero(view.offsets != offsets)):
            offence = f"the {name} of number {max(wrong[0] - 1, 0)} holds another's events: wrong offsets"
        elif len(wrong := np.flatnonzero((view.ids != ids[order]) | (view.times != log.time[order]))):
            row = _row(split, int(order[wrong[0]]))
            offence = f"{row} stands in the {name} view with time {view.times[wrong[0]]}"
        if offence is not None:
            return Finding("views", len(rows), offence)
    return Finding("views", len(rows), None)


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK, length)) for first in range(0, length, CHUNK))


# What the samplers hand to the models


def _handed_out(split: Split, kind: str, history: int, audience: int) -> Finding:
    """Check batches of pairs: histories and audiences are exactly what a search through the whole log finds
    strictly before."""
    from unskew.data.batches.samplers import Sampler, Sampling

    name, log = f"batches of {kind}", split.log
    contexts = int(np.clip(RECOUNTED // max(len(log), 1), 20, CONTEXTS))
    is_shared = kind == "prefixes"
    sampling = Sampling(batch_size=contexts, history=history, audience=audience, shared=is_shared)
    try:
        made = next(Sampler(split, sampling).epoch())
    except BadInput as error:
        return Finding(name, 0, None, str(error))
    checked = 0
    for place in range(len(made.user_B)):
        candidate = place % made.candidates_BC.shape[1]  # one per context, each position in turn
        user, time, item = (
            int(code)
            for code in (made.user_B[place], made.times_B[place], made.candidates_BC[place, candidate])
        )
        audience_of = int(made.audience_of_BC[place, candidate])
        for who, ids, rows, prefix, newest in (
            (f"history of user {_id(log.users, user)!r}", log.item, log.user == user, place, history),
            (f"audience of item {_id(log.items, item)!r}", log.user, log.item == item, audience_of, audience),
        ):
            prefixes = made.histories if ids is log.item else made.audiences
            if not _is_newest(_prefix(prefixes, prefix), _past(ids, rows, split, time), newest, is_shared):
                return Finding(name, checked, f"the {who} at time {time} {_WRONG}")
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


def _is_newest(sequence: Events, past: Events, most: int, shared: bool) -> bool:
    """Whether a sequence is the newest part of the past. It has `most` events, or at least half as many where
    sequences share the events that they have in common."""
    enough = min(len(past), most // 2 if shared else most)
    return enough <= len(sequence) <= most and sequence == past[len(past) - len(sequence) :]


def _sequences(split: Split, kind: str, history: int, audience: int) -> Finding:
    """Check batches of whole sequences: what the batch calls the past of an event is exactly what is strictly
    before it."""
    from unskew.data.batches.samplers import SequenceSampler

    sampler = SequenceSampler(
        split, 256, 0, history, audience if kind == "sequences" else None, overlap=int(kind == "histories")
    )
    checked = 0
    for _, made in zip(range(20), sampler.epoch(), strict=False):
        for name, view, batch in (
            ("histories", split.log.histories, (made.user_B, made.event_BL, made.past_BL, made.time_BL)),
            (
                "audiences",
                split.log.audiences,
                (made.item_B, made.users_event_BM, made.users_past_BM, made.users_time_BM),
            ),
        ):
            owner, event, past, batch_time = (part.numpy() for part in batch)
            inside = event >= 0
            start = event.max(axis=1, initial=-1) - inside.sum(axis=1) + 1
            wrong = (event < view.offsets[owner][:, None]) | (event >= view.offsets[owner + 1][:, None])
            time = view.times[np.where(inside, event, 0)]
            following = start[:, None] + past
            wrong |= (past > 0) & (view.times[np.maximum(following - 1, 0)] >= time)
            earlier = view.times[np.maximum(np.minimum(following, event), 0)] < time
            wrong |= ((following < event) & earlier) | (time >= split.train_end) | (time != batch_time)
            wrong &= inside
            if wrong.any():
                row, place = np.argwhere(wrong)[0]
                return Finding(
                    f"batches of {kind}",
                    checked,
                    f"event {event[row, place]} of the {name}: its past {_WRONG}",
                )
            checked += int(inside.sum())
    return Finding(f"batches of {kind}", checked, None)
