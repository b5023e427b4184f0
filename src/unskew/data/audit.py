"""The leak audit: proof, for one split, that nothing a model may read comes from the future. Every figure is counted again, another way."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.data.split import Split, inverse_popularity
from unskew.data.views import AUDIENCE, HISTORY, Ints, Sequences
from unskew.errors import BadInput, Leak
from unskew.progress import Steps, steps

CHUNK = 1_000_000


@dataclass(frozen=True)
class Finding:
    """One thing that was checked: how many rows or entries, and the first that is wrong, in words."""

    check: str
    checked: int
    offence: str | None

    @property
    def passed(self) -> bool:
        return self.offence is None


def audit(split: Split, history: int = HISTORY, audience: int = AUDIENCE) -> list[Finding]:
    """Check everything; see `require_no_leak` for the version that raises."""
    if history < 1 or audience < 1:
        raise BadInput(f"history {history}, audience {audience}: expected at least 1, or there is nothing to look at")
    log = split.log
    with steps("audit", total=7 + 2 * math.ceil(len(log) / CHUNK)) as job:

        def said(finding: Finding) -> Finding:
            job.advance(note=finding.check)
            return finding

        return [
            said(_borders(split)),
            said(_counts(split, "user counts", split.user_counts, log.user, log.users.of)),
            said(_counts(split, "item counts", split.item_counts, log.item, log.items.of)),
            said(_known(split, "known users", split.known_users, log.user, log.users.of)),
            said(_known(split, "known items", split.known_items, log.item, log.items.of)),
            said(_acceptance(split)),
            _windows(split, "histories", log.histories, log.user, log.items.of, history, job),
            _windows(split, "audiences", log.audiences, log.item, log.users.of, audience, job),
            said(_views_hold_the_log(split)),
        ]


def require_no_leak(split: Split, history: int = HISTORY, audience: int = AUDIENCE) -> list[Finding]:
    """Raise `Leak`, naming the first offending row, unless every check passes."""
    findings = audit(split, history, audience)
    for finding in findings:
        if not finding.passed:
            raise Leak(f"{finding.check}: {finding.offence}")
    return findings


Name = Callable[[NDArray[Any]], Any]


def _row(split: Split, row: int) -> str:
    log = split.log
    user, item = log.users.of(log.user[[row]])[0].as_py(), log.items.of(log.item[[row]])[0].as_py()
    return f"row {row} (user {user!r}, item {item!r}, time {log.time[row]})"


def _borders(split: Split) -> Finding:
    """Train lies before valid, valid before test, and each row is in exactly one part."""
    parts = [split.rows("train"), split.rows("valid"), split.rows("test")]
    times = [split.log.time[rows] for rows in parts]
    everyone = np.concatenate(parts)
    offence = None
    if len(everyone) != len(split.log) or len(np.unique(everyone)) != len(everyone):
        twice = np.bincount(everyone, minlength=len(split.log))
        offence = f"{_row(split, int(np.flatnonzero(twice != 1)[0]))} is in {twice[twice != 1][0]} parts"
    for earlier, later, rows in ((0, 1, parts[0]), (1, 2, parts[1]), (0, 2, parts[0])):
        if offence is None and len(times[earlier]) and len(times[later]):
            late = times[earlier] >= times[later].min()
            if late.any():
                offence = f"{_row(split, int(rows[np.argmax(late)]))} is not before the next part, which starts at {times[later].min()}"
    return Finding("borders", len(everyone), offence)


def _counts(split: Split, name: str, counts: Ints, column: Any, of: Name) -> Finding:
    """A count is the number of positives in the training part; counted again by sorting."""
    log = split.log
    rows = np.flatnonzero((log.time < split.train_end) & (log.label == 1))
    codes, expected = np.unique(column[rows], return_counts=True)
    recounted = np.zeros(len(counts), np.int64)
    recounted[codes] = expected
    return Finding(name, len(counts), _first_difference(counts, recounted, of, "the training rows give"))


def _known(split: Split, name: str, known: int, column: Any, of: Name) -> Finding:
    """What is called known was seen in training, and all that was seen is called known."""
    seen = np.zeros(int(max(known, column.max(initial=-1) + 1)), bool)
    seen[column[split.log.time < split.train_end]] = True
    wrong = np.flatnonzero(seen != (np.arange(len(seen)) < known))
    offence = None
    if len(wrong):
        said, truth = ("known", "never saw") if wrong[0] < known else ("not known", "saw")
        offence = f"{of(wrong[:1])[0].as_py()!r} is called {said}, but training {truth} it"
    return Finding(name, len(seen), offence)


def _acceptance(split: Split) -> Finding:
    """The resampling reads popularity, so it may read the training part only."""
    log = split.log
    popularity = np.bincount(log.item[(log.time < split.train_end) & (log.label == 1)], minlength=len(log.items))
    expected = inverse_popularity(popularity, split.settings.strength)
    offence = _first_difference(split.acceptance, expected, log.items.of, "training popularity gives")
    if offence is not None and split.settings.resample == "authors":
        offence = f"the authors' resampling counts the held-out part itself: {offence}"
    return Finding("resampling weights", len(expected), offence)


def _first_difference(found: Any, expected: Any, of: Name, said: str) -> str | None:
    wrong = np.flatnonzero(~np.isclose(found, expected, rtol=1e-9, atol=0))
    return f"{of(wrong[:1])[0].as_py()!r} has {found[wrong[0]]:g}, {said} {expected[wrong[0]]:g}" if len(wrong) else None


def _windows(split: Split, name: str, view: Sequences, column: Any, of: Name, newest: int, job: Steps) -> Finding:
    """Of every row, what the model would read: each single event of it belongs to the row's own entity and lies before the row."""
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
            return Finding(name, last, f"{_row(split, first + row)} holds {what}: {event!r} at time {view.times[held]}")
    return Finding(name, len(log), None)


def _views_hold_the_log(split: Split) -> Finding:
    """Both views hold the log's positives at their true times: a view with falsified times could hide a leak from the checks above."""
    log = split.log
    rows = np.flatnonzero(log.label == 1)
    by_user = rows[np.lexsort((log.item[rows], log.time[rows], log.user[rows]))]
    by_item = rows[np.lexsort((log.user[rows], log.time[rows], log.item[rows]))]
    for name, view, order, ids in (("history", log.histories, by_user, log.item), ("audience", log.audiences, by_item, log.user)):
        if len(view.ids) != len(order):
            return Finding("views", len(rows), f"the {name} view has {len(view.ids)} events, the log {len(order)} positives")
        owner = log.user if name == "history" else log.item
        owned = np.searchsorted(owner[order], np.arange(len(view) + 1))
        if not np.array_equal(view.offsets, owned):
            wrong = np.flatnonzero(view.offsets != owned)
            return Finding("views", len(rows), f"the {name} of number {max(wrong[0] - 1, 0)} holds another's events: wrong offsets")
        wrong = np.flatnonzero((view.ids != ids[order]) | (view.times != log.time[order]))
        if len(wrong):
            said = f"{_row(split, int(order[wrong[0]]))} stands in the {name} view with time {view.times[wrong[0]]}"
            return Finding("views", len(rows), said)
    return Finding("views", len(rows), None)


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    return ((first, min(first + CHUNK, length)) for first in range(0, length, CHUNK))
