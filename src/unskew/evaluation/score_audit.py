"""The leak audit of a trained model: at any time t, its scores from the log cut at t must equal those from
the whole log.

A model that reads nothing at or after t cannot tell the two logs apart, whatever it computes: counts, decayed
counts, neighbourhoods, audiences or vectors. The check says nothing about what training has read.
"""

import numpy as np
import torch

from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.data.audit.label_leakage import Finding
from unskew.data.batches.batch import contexts_of
from unskew.data.log.held_out import held_out
from unskew.data.log.log import Log
from unskew.data.log.split import Split, cut_log
from unskew.data.log.views import Ints
from unskew.models.base import Recommender
from unskew.nn.debias import scores_at

CHECK = "scores of the cut log"
TIMES = 6  # at which the log is cut, evenly spaced among the test positives
REQUESTS = 32  # at each of these times
# Scores differ if they differ by more than this fraction of themselves, or of the largest score of the list:
# single precision allows for less.
RELATIVE, ABSOLUTE = 1e-4, 1e-5


@torch.no_grad()
def audit_scores(model: Recommender, split: Split, seed: int = 0) -> Finding:
    """Compare the scores of the whole log with those of the log cut at several times of the test set. Models
    with a debiasing strength are compared at 0 and at 1 as well.

    model: a trained model, in evaluation mode.
    seed: of the users who are asked for beside those with a positive at the time.
    """
    if split.settings.kind != "time":
        raise BadInput(
            "a leave-one-out split has no one moment at which the log could be cut, so the scores of a run "
            "cannot be audited; audit a run of a split by time"
        )
    rows = held_out(split, "test").rows
    if not len(rows):
        return Finding(CHECK, 0, None, "the test set has no positive")
    log = split.log
    chosen = np.unique(np.linspace(0, len(rows) - 1, TIMES).round().astype(np.int64))
    times = np.unique(log.time[rows[chosen]])
    checked, random = 0, np.random.default_rng([seed, 41])
    strengths = (None, 0.0, 1.0) if _has_debias(model, log) else (None,)
    whole = model.catalog(log, int(times[0]), int(times[-1]) + 1)
    with progress("scores", len(times)) as job:
        for time in times.tolist():
            users = _users_at(split, rows, time, random)
            cut, moment = cut_log(log, time), np.full(len(users), time)
            existing = int(log.audiences.existing(time))
            by_log = [
                scores_at(model, catalog, context, strengths)
                for catalog, context in (
                    (whole, contexts_of(log, users, moment, log.histories, users, model.history)),
                    (
                        model.catalog(cut, time, time + 1),
                        contexts_of(cut, users, moment, cut.histories, users, model.history),
                    ),
                )
            ]
            for of_whole, of_cut in zip(*by_log, strict=True):
                expected, scores = (part.numpy()[:, :existing] for part in (of_cut, of_whole))
                largest = np.abs(expected).max(axis=1, keepdims=True, initial=0)
                allowed = RELATIVE * np.abs(expected) + ABSOLUTE * largest
                differs = ~(np.abs(scores - expected) <= allowed)
                if differs.any():
                    request, item = np.argwhere(differs)[0].tolist()
                    offence = _offence(log, int(users[request]), item, time)
                    values = f"{scores[request, item]:.6g} instead of {expected[request, item]:.6g}"
                    return Finding(CHECK, checked, f"{offence} {values}")
                checked += expected.size
            job.advance()
    return Finding(CHECK, checked, None, f"{len(times)} times, the whole log and the log cut there")


def _has_debias(model: Recommender, log: Log) -> bool:
    """Whether the model, with its settings, knows how exposed items are."""
    try:
        model.log_exposure(log, np.zeros(1, np.int64), np.array([log.now]))
    except BadInput:
        return False
    return True


def _users_at(split: Split, rows: Ints, time: int, random: np.random.Generator) -> Ints:
    """Users with a positive at a time, whose own events must not be seen, and other users, drawn."""
    log = split.log
    now = np.unique(log.user[rows[log.time[rows] == time]].astype(np.int64))[: REQUESTS // 2]
    others = random.permutation(len(log.users))[: REQUESTS - len(now)]
    return np.unique(np.concatenate([now, others]))


def _offence(log: Log, user: int, item: int, time: int) -> str:
    """The beginning of the sentence about the first score that is wrong."""
    user_id, item_id = (
        vocabulary.of(np.array([code]))[0].as_py()
        for vocabulary, code in ((log.users, user), (log.items, item))
    )
    return (
        f"the model reads rows at or after the time of a request: for user {user_id!r} at time {time}, item "
        f"{item_id!r} has the score"
    )
