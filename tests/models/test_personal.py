"""The user's own past by count and recency, then what is popular: by hand."""

import math

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close
from tests.helpers.runs import train
from unskew.data.batches.batch import batch, contexts
from unskew.models.base import Training, build
from unskew.models.personal import POPULARITY_HALF_LIVES, Personal
from unskew.models.recency import HALF_LIVES

# User 1 takes a twice and b once, later; user 2 takes c twice.
ROWS = [(1, "a", 0), (1, "a", 10), (1, "b", 40), (2, "c", 20), (2, "c", 50), (1, "c", 60), (2, "a", 61)]


@pytest.fixture
def split() -> unskew.Split:
    user, item, time = zip(*ROWS, strict=True)
    return unskew.split(unskew.read({"user": user, "item": item, "time": time}), fractions=(5, 0, 2))


def model(split: unskew.Split, own: float, popular: float) -> Personal:
    """One whose day is a tick."""
    made = build(Personal, split, Personal.Config(half_life=own, popularity_half_life=popular))
    made.day_ticks.fill_(1)
    return made


def test_scores_by_hand(split: unskew.Split) -> None:
    """At 60, with codes in the order of first events: a, c, b."""
    own = {"a": math.log2(2**-6 + 2**-5), "b": -2.0}
    counts = [2**-3 + 2**-2.5, 2**-2 + 2**-0.5, 2**-1]
    found = model(split, 10, 20)(batch(split.log, [0], [60], [[0, 1, 2]]))[0].tolist()
    assert found == pytest.approx([2 + own["a"] / (1 - own["a"]), counts[1] / sum(counts), 2 - 2 / 3])
    new = model(split, 10, 20)(batch(split.log, [9], [60], [[0, 1, 2]]))[0].tolist()
    assert new == pytest.approx([count / sum(counts) for count in counts])


def test_a_short_half_life_ranks_by_recency_and_a_long_one_by_count(split: unskew.Split) -> None:
    for half_life, best in ((0.01, [2, 0, 1]), (1e6, [0, 2, 1])):
        found = model(split, half_life, 20)(batch(split.log, [0], [60], [[0, 1, 2]]))[0]
        assert found.argsort(descending=True).tolist() == best


def test_both_half_lives_are_chosen_on_validation(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log, repeats="keep")
    chosen, _ = train(split, "personal", Personal.Config(), Training())
    state = chosen.state_dict()
    assert float(state["half_life"]) in HALF_LIVES
    assert float(state["popularity_half_life"]) in POPULARITY_HALF_LIVES
    half, _ = train(split, "personal", Personal.Config(half_life=3), Training())
    assert float(half.state_dict()["half_life"]) == 3
    assert model(split, 3, 4).options(split) == []


@torch.no_grad()
def test_a_live_log_is_read_up_to_the_request() -> None:
    cut = unskew.split(unskew.read(random_table(rows=300, users=30, items=20, negatives=0.0)), repeats="keep")
    made, live, users = model(cut, 50, 50), unskew.Live(cut.log), np.array([0, 1, 5])
    made.catalog(live, live.now, live.now + 1).scores(contexts(live, users, live.now, made.history))
    now = live.now
    live.append(["u1", "new", "u1"], ["i3", "i3", "fresh"], [now, now + 2, now + 3])
    context = contexts(live, users, np.full(3, live.now), made.history)
    after = made.catalog(live, live.now, live.now + 1).scores(context)
    frozen = live.frozen()
    close(after, made.catalog(frozen, 0, 0).scores(context._replace(log=frozen)))
    assert after.shape[1] == len(cut.log.items) + 1
