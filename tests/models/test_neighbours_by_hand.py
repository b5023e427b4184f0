"""The neighbourhood features of Pulse without learning: the sum by hand, and what validation chooses."""

from itertools import product

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close
from tests.helpers.runs import train
from unskew.data.batches.batch import batch, contexts
from unskew.data.log.views import PAD
from unskew.models.base import Training, build
from unskew.models.pulse.by_hand import KINDS, NeighboursByHand

COMBINATIONS = [weights for weights in product((0.0, 1.0), repeat=len(KINDS)) if any(weights)]


def model(split: unskew.Split, weights: tuple[float, ...]) -> NeighboursByHand:
    made = build(NeighboursByHand, split, NeighboursByHand.Config())
    for kind, weight in zip(KINDS, weights, strict=True):
        getattr(made, kind).fill_(weight)
    return made


def test_scores_by_hand() -> None:
    """User 1 has a alone. User 2 took a at 0, and b 32 days later, 32 days before the request."""
    day = 86_400
    rows = [(2, "a", 0), (1, "a", 10 * day), (2, "b", 32 * day), (1, "b", 64 * day), (1, "c", 65 * day)]
    start = 10**9
    user, item, time = zip(*((u, i, start + t) for u, i, t in rows), strict=True)
    log = unskew.read({"user": user, "item": item, "time": time})
    split = unskew.split(log, fractions=(3, 0, 2))
    likeness = 1 / np.log(2 + 2) / np.sqrt(1 * 2)  # two users have a; histories of one and of two
    by_kind = {
        "recent": np.log1p(likeness / 2 / 0.02),
        "ever": np.log1p(likeness / 0.05),
        "next": np.log1p(1 / 2 / 0.01),  # of two readers of a, one went on to b
    }
    who = int(log.users.codes([1])[0])
    for weights in COMBINATIONS:
        found = model(split, weights)(batch(log, [who], [start + 64 * day], [[1]]))
        expected = sum(weight * by_kind[kind] for kind, weight in zip(KINDS, weights, strict=True))
        assert float(found) == pytest.approx(expected, abs=1e-5)
    nobody = model(split, (1, 1, 1))(batch(log, [PAD], [start + 64 * day], [[0, 1]]))[0].tolist()
    counts = 2**-2 + 2 ** -(54 / 32), 2**-1
    assert nobody == pytest.approx([1e-6 * count / sum(counts) for count in counts])


def test_the_combination_is_chosen_on_validation(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    chosen, trainer = train(split, "neighbours-by-hand", NeighboursByHand.Config(), Training())
    state = chosen.state_dict()
    assert tuple(float(state[kind]) for kind in KINDS) in COMBINATIONS
    assert trainer.progress.best["ordinary"] > 0


@torch.no_grad()
def test_a_live_log_is_read_up_to_the_request() -> None:
    cut = unskew.split(unskew.read(random_table(rows=300, users=30, items=20, negatives=0.0)))
    made, live, users = model(cut, (1, 0, 1)), unskew.Live(cut.log), np.array([0, 1, 5])
    made.catalog(live, live.now, live.now + 1).scores(contexts(live, users, live.now, made.history))
    now = live.now
    live.append(["u1", "new", "u1"], ["i3", "i3", "fresh"], [now, now + 2, now + 3])
    context = contexts(live, users, np.full(3, live.now), made.history)
    after = made.catalog(live, live.now, live.now + 1).scores(context)
    frozen = live.frozen()
    close(after, made.catalog(frozen, 0, 0).scores(context._replace(log=frozen)))
