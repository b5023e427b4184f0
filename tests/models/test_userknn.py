"""UserKNN by hand, on a live log, and what validation chooses."""

import math

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
from unskew.models.recency import ValidationMemory
from unskew.models.userknn import HALF_LIVES, NEIGHBOURS, OWN_DECAYS, UserKNN, find_neighbours

# A is code 0, B is 1, C is 2; the users are 0 to 3. At 100, there are 7 events, 4 of them on A.
ROWS = [(1, "A", 0), (2, "A", 10), (1, "B", 20), (2, "C", 30), (3, "A", 40), (3, "C", 50), (4, "A", 60)]
SIMILARITY = math.log(8 / 4) ** 2 / math.sqrt(1 * 2)  # of each of the three users to user 4


@pytest.fixture
def split() -> unskew.Split:
    user, item, time = zip(*ROWS, (4, "C", 100), (1, "C", 101), strict=True)
    return unskew.split(unskew.read({"user": user, "item": item, "time": time}), fractions=(7, 0, 2))


def model(split: unskew.Split, **settings: float) -> UserKNN:
    """One whose day is a tick."""
    made = build(UserKNN, split, UserKNN.Config(**settings))
    made.day_ticks.fill_(1)
    return made


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"neighbours": 3, "half_life": 40}, [2**-2.5 + 2**-2.25 + 2**-1.5, 2**-2, 2**-1.75 + 2**-1.25]),
        ({"neighbours": 2, "half_life": 40}, [2**-2.5 + 2**-2.25, 2**-2, 2**-1.75]),  # of equals the first
        ({"neighbours": 3, "half_life": 40, "events": 1}, [0, 2**-2, 2**-1.75 + 2**-1.25]),
        ({"neighbours": 3, "half_life": 40, "readers": 3}, [2**-2.25 + 2**-1.5, 0, 2**-1.75 + 2**-1.25]),
        ({"neighbours": 3, "half_life": 1e6}, [3, 1, 2]),
    ],
)
def test_scores_by_hand(split: unskew.Split, settings: dict[str, float], expected: list[float]) -> None:
    """User 4 has A alone; the newest three of A's users are users 2, 3 and 4 themselves."""
    found = model(split, **settings)(batch(split.log, [3], [100], [[0, 1, 2]]))
    assert found[0].tolist() == pytest.approx([SIMILARITY * value for value in expected], abs=1e-4)


def test_an_item_that_few_users_have_says_more_and_long_histories_less(split: unskew.Split) -> None:
    """At 102 user 2 shares A (4 of 9 events) and C (4 of 9) with user 4, who now has both."""
    context, rarity = contexts(split.log, [3], [102]), math.log(10 / 4) ** 2
    nearest = find_neighbours(split.log, context, np.array([102]), 500, 10)
    assert nearest.user.tolist() == [1, 2, 0]
    assert nearest.similarity.tolist() == pytest.approx([rarity, rarity, 2 * rarity / math.sqrt(2 * 3)])


def test_items_further_back_count_less(split: unskew.Split) -> None:
    """User 4 has C after A. Users 1 and 2 share both, and user 0, who had only A then, shares A alone."""
    context, rarity = contexts(split.log, [3], [102]), math.log(10 / 4) ** 2
    nearest = find_neighbours(split.log, context, np.array([101]), 500, 10, own_decay=0.5)
    rarity = math.log(9 / 4) ** 2
    own = dict(zip(nearest.user.tolist(), nearest.similarity.tolist(), strict=True))
    assert own == pytest.approx(
        {
            0: 0.5 * rarity / math.sqrt(2 * 2),
            1: (0.5 * rarity + math.log(9 / 3) ** 2) / math.sqrt(2 * 2),
            2: (0.5 * rarity + math.log(9 / 3) ** 2) / math.sqrt(2 * 2),
        }
    )


def test_leave_one_out_reads_all_training_events_of_other_users() -> None:
    """User b has the shared item and then x, all after the request of a; a later event has the age 0."""
    rows = [("a", "shared", 0), ("a", "v", 1), ("a", "x", 2), ("c", "x", 3), ("c", "y", 3)]
    rows += [
        ("b", "shared", 10),
        ("b", "x", 20),
        ("b", "v", 21),
        ("b", "y", 30),
        ("c", "v", 31),
        ("c", "z", 32),
    ]
    user, item, time = zip(*rows, strict=True)
    split = unskew.split(unskew.read({"user": user, "item": item, "time": time}), kind="leave-one-out")
    settings = {"own_decay": 1.0, "neighbours": 10, "half_life": 5.0}
    items = [row.as_py() for row in split.log.items.of(np.arange(len(split.log.items)))]
    asked = contexts(split.log, [0], [1], 50)

    def score(knn: UserKNN) -> float:
        return float(knn.catalog(split.log, 0, 0).scores(asked)[0, items.index("x")])

    whole = model(split, **settings)
    similarity = math.log(6 / 2) ** 2 / math.sqrt(1 * 2)  # five training events, two of them on the item
    assert score(whole) == pytest.approx(similarity, abs=1e-4)
    whole.reads_all.fill_(False)
    assert score(whole) < 1e-5


def test_without_a_past_it_is_fading_popularity(split: unskew.Split) -> None:
    found = model(split, neighbours=3, half_life=10)(batch(split.log, [PAD], [100], [[0, 1, 2]]))[0]
    counts = [2**-10 + 2**-9 + 2**-6 + 2**-4, 2**-8, 2**-7 + 2**-5]
    assert found.tolist() == pytest.approx([1e-6 * count / sum(counts) for count in counts])


def test_half_life_and_number_of_neighbours_are_chosen_on_validation(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    chosen, trainer = train(split, "userknn", UserKNN.Config(), Training())
    assert float(chosen.state_dict()["neighbours"]) in NEIGHBOURS
    assert float(chosen.state_dict()["half_life"]) in HALF_LIVES
    assert float(chosen.state_dict()["own_decay"]) in OWN_DECAYS
    best = max(
        train(split, "userknn", UserKNN.Config(neighbours=count), Training())[1].progress.best["ordinary"]
        for count in NEIGHBOURS
    )
    assert trainer.progress.best["ordinary"] == best  # what is remembered between options changes nothing
    given, _ = train(split, "userknn", UserKNN.Config(neighbours=7, half_life=3, own_decay=1), Training())
    assert (float(given.state_dict()["neighbours"]), float(given.state_dict()["half_life"])) == (7, 3)


def test_what_is_remembered_belongs_to_one_decay_of_the_history(positive_log: unskew.Log) -> None:
    """An option that is validated later does not get the neighbours of the one before."""
    split = unskew.split(positive_log)
    knn = build(UserKNN, split, UserKNN.Config(history=5))
    knn.options(split)
    rows = np.flatnonzero(split.mask("valid") & (positive_log.label == 1))[:20]
    time = positive_log.time[rows]
    asked = contexts(positive_log, positive_log.user[rows], time, knn.history)
    by_decay = []
    for decay in (1.0, 0.5, 1.0):
        knn.own_decay.fill_(decay)
        by_decay.append(knn.neighbours_of(positive_log, asked).similarity)
        expected = find_neighbours(positive_log, asked, time, knn.config.readers, max(NEIGHBOURS), decay)
        np.testing.assert_array_equal(by_decay[-1], expected.similarity)
    assert not np.array_equal(by_decay[0], by_decay[1])


@torch.no_grad()
def test_a_live_log_is_read_up_to_the_request() -> None:
    """Events that were added count at once, as in a log that had them all along."""
    table = random_table(rows=600, users=30, items=20, negatives=0.0)
    cut = unskew.split(unskew.read(table))
    knn = model(cut, neighbours=5, half_life=100)
    live = unskew.Live(cut.log)
    users = np.array([0, 1, 5])
    before = knn.catalog(live, live.now, live.now + 1).scores(contexts(live, users, live.now, knn.history))
    now = live.now
    live.append(["u1", "u2", "new", "u1"], ["i3", "i3", "i3", "fresh"], [now, now + 1, now + 2, now + 3])
    context = contexts(live, users, np.full(3, live.now), knn.history)
    after = knn.catalog(live, live.now, live.now + 1).scores(context)
    assert after.shape[1] == before.shape[1] + 1
    frozen = live.frozen()
    close(after, knn.catalog(frozen, 0, 0).scores(context._replace(log=frozen)))
    assert not torch.allclose(after[:, :-1], before)


def test_memory_keeps_validation_rows_alone_and_no_more_than_its_limit() -> None:
    cut = unskew.split(unskew.read(random_table(negatives=0.0)))
    calls = []

    def ask(memory: ValidationMemory[str], time: int) -> str:
        context = contexts(cut.log, [0, 1], [time, time])
        return memory.read(cut.log, context, lambda: calls.append(time) or f"at {time}")

    memory = ValidationMemory[str](cut, len)
    for time in (cut.train_end, cut.valid_end, cut.train_end - 1) * 2:
        assert ask(memory, time) == f"at {time}"
    assert calls == [cut.train_end, cut.valid_end, cut.train_end - 1, cut.valid_end, cut.train_end - 1]
    calls.clear()
    small = ValidationMemory[str](cut, len, most=10)
    assert ask(small, cut.train_end) == ask(small, cut.train_end)
    assert (len(calls), small.used) == (2, 0)
