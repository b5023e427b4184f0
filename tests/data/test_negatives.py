"""Negatives are negatives, whether past items are candidates or not."""

import numpy as np
import pytest

import unskew
from tests.conftest import random_table
from unskew.data.batches.negatives import Draw, Positives, uniform_items
from unskew.data.batches.samplers import Sampler, Sampling
from unskew.nn.layers import is_real


def test_no_label_can_be_told_from_an_empty_audience(positive_log: unskew.Log) -> None:
    """The first positive of an item is no target, and a negative has a past, too. At first all are empty."""
    sampler = Sampler(unskew.split(positive_log), Sampling(batch_size=64, negatives=3))
    begins = int(positive_log.time.min())
    for made in sampler.epoch():
        lengths = is_real(made.audience_AM).sum(1)[made.audience_of_BC]
        assert ((lengths > 0) == (made.times_B > begins)[:, None]).all()


def test_a_log_with_enough_negatives_of_its_own_gets_no_others(
    log: unskew.Log, positive_log: unskew.Log
) -> None:
    shown = unskew.read(random_table(negatives=0.7))
    assert Sampler(unskew.split(shown)).negatives == 0
    assert Sampler(unskew.split(log)).negatives == 1  # three of ten are not enough
    assert Sampler(unskew.split(positive_log)).negatives == 1
    made = next(Sampler(unskew.split(shown), Sampling(batch_size=512)).epoch())
    assert set(made.labels_BC.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("repeats", ["keep", "hide"])
def test_a_negative_is_never_the_target(log: unskew.Log, repeats: str) -> None:
    """Neither where the logged one was taken, nor where it was only shown."""
    for made in Sampler(unskew.split(log, repeats=repeats), Sampling(negatives=3)).epoch():
        assert not (made.candidates_BC[:, 1:] == made.candidates_BC[:, :1]).any()


def test_what_is_taken_at_this_very_moment_is_the_naive_loop(log: unskew.Log) -> None:
    """Asked at any row's moment, where its user may have taken nothing, and just after it."""
    positives = Positives(unskew.split(log))
    positive = (column[log.label == 1].tolist() for column in (log.user, log.time, log.item))
    taken = set(zip(*positive, strict=True))
    items = np.arange(len(log.items))
    for time in (log.time, log.time + 1):
        has = positives.has_now(log.user.astype(np.int64), time, np.tile(items, (len(log), 1)))
        slow = [
            [(u, t, i) in taken for i in items.tolist()]
            for u, t in zip(log.user.tolist(), time.tolist(), strict=True)
        ]
        assert has.tolist() == slow
    three = unskew.read({"user": ["a", "b", "c"], "item": ["x", "y", "x"], "time": [1, 2, 3]})
    gone = Positives(unskew.split(three, fractions=(1, 0, 0)))
    # The moment of the next user is not one of a's.
    assert not gone.has_now(np.array([0]), np.array([2]), np.array([[0, 1]])).any()


def test_where_past_items_are_hidden_nothing_of_ones_own_is_drawn_and_nothing_repeats(
    positive_log: unskew.Log,
) -> None:
    log, split = positive_log, unskew.split(positive_log, repeats="hide")
    train = split.rows("train")
    first: dict[tuple[int, int], int] = {}
    for row in train[np.argsort(log.time[train])].tolist():
        first.setdefault((int(log.user[row]), int(log.item[row])), int(log.time[row]))
    own = set(zip(log.user[train].tolist(), log.item[train].tolist(), strict=True))
    drawn = np.zeros(split.known_items, np.int64)
    sampler = Sampler(split, Sampling(batch_size=128, negatives=5))
    for made in [b for _ in range(3) for b in sampler.epoch()]:
        assert made.labels_BC[:, 1:].sum() == 0
        for user, time, items in zip(
            made.user_B.tolist(), made.times_B.tolist(), made.candidates_BC[:, 1:].tolist(), strict=True
        ):
            assert not {(user, item) for item in items} & own
            assert all(existed(log, item, time) for item in items) or time == log.time.min()
            np.add.at(drawn, items, 1)
        for user, time, item in zip(
            made.user_B.tolist(), made.times_B.tolist(), made.candidates_BC[:, 0].tolist(), strict=True
        ):
            assert first[user, item] == time
    assert (drawn > 0).all()
    assert len(sampler.rows) < len(train)


def existed(log: unskew.Log, item: int, time: int) -> bool:
    return bool(((log.item == item) & (log.time < time) & (log.label == 1)).any())


def baskets(seed: int = 1) -> unskew.Log:
    """Users who buy most of their favourites again and again, several at a time."""
    random = np.random.default_rng(seed)
    rows = [
        (user, int(item), 1000 + 10 * impression + user % 3)
        for user in range(20)
        for favourites in [random.permutation(24)[:10]]
        for impression in range(8)
        for item in random.permutation(favourites)[:5]
    ]
    return unskew.read(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))


def test_where_repeats_are_kept_past_items_are_drawn_as_often_as_others() -> None:
    """Otherwise being in the history would mean positive. But what is taken at this moment is no negative."""
    log = baskets()
    split = unskew.split(log, fractions=(1, 0, 0))
    assert split.repeats
    assert int(log.repeated.sum()) > len(log) / 2
    sampler = Sampler(split, Sampling(batch_size=64, negatives=40))
    assert len(sampler.rows) == int((~split.first_appearance).sum())  # repeats are targets
    past_drawn, expected, variance = 0, 0.0, 0.0
    begins = log.time.min()
    for made in sampler.epoch():
        for user, time, items in zip(
            made.user_B.tolist(), made.times_B.tolist(), made.candidates_BC.tolist(), strict=True
        ):
            mine = log.user == user
            moments = (log.time < time, log.time == time)
            past, now = (set(log.item[mine & those].tolist()) for those in moments)
            assert items[0] in now
            assert not now & set(items[1:])
            there = (i for i in range(len(log.items)) if time == begins or existed(log, i, time))
            candidates = {*there} - now
            assert set(items[1:]) <= candidates or not candidates
            fraction = len(past & candidates) / max(len(candidates), 1)
            past_drawn += sum(item in past for item in items[1:])
            expected, variance = expected + 40 * fraction, variance + 40 * fraction * (1 - fraction)
        assert made.labels_BC[:, 1:].sum() == 0
    assert expected > 1000
    assert abs(past_drawn - expected) < 4 * np.sqrt(variance)


def test_who_takes_nearly_all_there_is_at_once_still_gets_past_items() -> None:
    """Of 41 items, 39 are taken at one moment: what is left is one past item and one that is no past."""
    first = {"user": [f"z{n}" for n in range(41)], "item": list(range(41)), "time": [1] * 41}
    then = {"user": ["a"], "item": [40], "time": [2]}
    last = {"user": ["a"] * 39, "item": list(range(39)), "time": [3] * 39}
    log = unskew.read({name: first[name] + then[name] + last[name] for name in first})
    split = unskew.split(log, fractions=(1, 0, 0), repeats="keep")
    sampler = Sampler(split, Sampling(negatives=20, batch_size=100))
    drawn = [
        item
        for made in sampler.epoch()
        for time, items in zip(made.times_B.tolist(), made.candidates_BC.tolist(), strict=True)
        if time == 3
        for item in log.items.of(np.array(items[1:])).to_pylist()
    ]
    assert set(drawn) == {39, 40}
    assert abs(drawn.count(40) / len(drawn) - 0.5) < 4 * np.sqrt(0.25 / len(drawn))


def test_a_user_who_has_everything_but_not_at_once_is_no_error_where_repeats_are_kept() -> None:
    table = {"user": ["z", "z", "a", "a", "a"], "item": ["x", "y", "x", "y", "x"], "time": [1, 1, 2, 3, 4]}
    split = unskew.split(unskew.read(table), fractions=(1, 0, 0), repeats="keep")
    with pytest.raises(unskew.BadInput, match="'z' has all 2 items"):  # z took both at once
        list(Sampler(split, Sampling(negatives=1)).epoch())
    alone = {"user": ["z", "b", "a", "a", "a"], "item": ["x", "y", "x", "y", "x"], "time": [1, 1, 2, 3, 4]}
    split = unskew.split(unskew.read(alone), fractions=(1, 0, 0), repeats="keep")
    (made,) = Sampler(split, Sampling(negatives=2)).epoch()
    assert (made.candidates_BC[:, 1:] != made.candidates_BC[:, :1]).all()


def test_negatives_are_uniform_over_what_the_user_does_not_have() -> None:
    users, items = 40, 10
    # Every item has a past.
    first = {"user": list(range(users, users + items)), "item": list(range(items)), "time": [1] * items}
    then = {
        "user": [u for u in range(users) for _ in (0, 1)],
        "item": [i for u in range(users) for i in (u % items, 9)],
        "time": [5] * (2 * users),
    }
    log = unskew.read({name: first[name] + then[name] for name in first})
    split = unskew.split(log, fractions=(1, 0, 0))
    sampler = Sampler(split, Sampling(batch_size=16, negatives=4))
    counts = np.zeros((len(log.users), len(log.items)))
    for _ in range(150):
        for made in sampler.epoch():
            for user, time, drawn in zip(
                made.user_B.tolist(), made.times_B.tolist(), made.candidates_BC[:, 1:].tolist(), strict=True
            ):
                np.add.at(counts[user], drawn, time == 5)
    counts = counts[counts.sum(1) > 0]  # all but those who came first
    assert len(counts) == users
    fraction = counts / counts.sum(1, keepdims=True)
    own = counts == 0
    assert set(own.sum(1).tolist()) <= {1, 2}
    expected = 1 / (~own).sum(1, keepdims=True)
    assert np.abs(np.where(own, expected, fraction) - expected).max() < 5 * np.sqrt(
        0.12 / counts.sum(1).min()
    )


def test_a_user_with_nearly_everything_and_one_with_everything() -> None:
    letters = "abcdefghij"
    table = {
        "user": [*"0123456789"] + ["a"] * 9,
        "item": [*letters, *letters[:9]],
        "time": [1] * 10 + [2] * 9,
    }
    split = unskew.split(unskew.read(table), fractions=(1, 0, 0))
    (made,) = Sampler(split, Sampling(negatives=3)).epoch()
    drawn = made.candidates_BC[made.times_B == 2, 1:]
    # The only item that a does not have.
    assert set(split.log.items.of(drawn.ravel().numpy()).to_pylist()) == {"j"}
    full = {"user": ["z", "b", "a", "a"], "item": ["x", "y", "x", "y"], "time": [1, 1, 2, 2]}
    with pytest.raises(unskew.BadInput, match="'a' has all 2 items"):
        list(Sampler(unskew.split(unskew.read(full), fractions=(1, 0, 0)), Sampling(negatives=1)).epoch())


def test_anything_is_drawn_but_the_logged_item(positive_log: unskew.Log) -> None:
    """Own positives included, with label 1; only what existed, unless the logged one was all there was."""
    split = unskew.split(positive_log)
    sampler = Sampler(split, Sampling(batch_size=64, negatives=6), drawing=uniform_items)
    own = 0
    for made in sampler.epoch():
        others, logged = made.candidates_BC[:, 1:], made.candidates_BC[:, :1]
        assert not bool((others == logged).any())
        has = sampler._positives.has(made.user_B.numpy()[:, None], others.numpy())
        assert np.array_equal(made.labels_BC[:, 1:].numpy() == 1, has)
        own += int(has.sum())
        pasts = (positive_log.item[positive_log.time < time] for time in made.times_B.tolist())
        before = np.array([len(np.unique(items)) for items in pasts])[:, None]
        assert bool(((others.numpy() < before) | (before <= 1)).all())
        assert int(others.max()) < split.known_items
    assert own > 0
    nothing, one = np.zeros(50, int), np.ones(50, int)
    alone = Draw(np.random.default_rng(0), nothing, nothing, nothing, one, 2, 0, sampler._positives)
    drawn = uniform_items(alone)
    assert drawn.min() >= 1
    assert drawn.max() < split.known_items
