"""One layout, trimmed and deduplicated; seeded and resumable; negatives that are negatives."""

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import random_table
from unskew.data.batches import Batch, Draw, Prefixes, Sampler, Sampling, batch, uniform_items
from unskew.data.views import AUDIENCE, HISTORY, PAD
from unskew.layers import real


def same(a: Batch, b: Batch) -> bool:
    return all(torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True))


def past(log: unskew.Log, column: np.ndarray, of: np.ndarray, code: int, time: int, newest: int) -> list[int]:
    """Independent of the views: from the rows themselves."""
    rows = [(log.time[row], of[row]) for row in np.flatnonzero((column == code) & (log.label == 1) & (log.time < time))]
    return [other for _, other in sorted(rows)][-newest:]


def test_a_batch_holds_what_was_before_and_nothing_else(log: unskew.Log) -> None:
    rows = np.random.default_rng(0).choice(len(log), 64, replace=False)
    candidates = np.stack([log.item[rows], log.item[rows[::-1]]], axis=1)
    made = batch(log, log.user[rows], log.time[rows], candidates, history=5, audience=4)
    for place, row in enumerate(rows):
        history = made.history_BL[place]
        assert history[real(history)].tolist() == past(log, log.user, log.item, log.user[row], log.time[row], 5)
        for column in range(2):
            audience = made.audience_AM[made.audience_of_BC[place, column]]
            assert audience[real(audience)].tolist() == past(log, log.item, log.user, candidates[place, column], log.time[row], 4)


@pytest.mark.parametrize("length", [1, 4, 7, 1000])
def test_shared_sequences_end_where_the_past_does_and_keep_at_least_half(log: unskew.Log, length: int) -> None:
    sampler = Sampler(unskew.split(log), Sampling(batch_size=64, negatives=2, history=length, audience=length, shared=True))
    for made in sampler.epoch():
        assert made.shared is not None
        assert made.history_BL.numel() == made.audience_AM.numel() == 0
        for place, (user, time) in enumerate(zip(made.user_B.tolist(), made.times_B.tolist(), strict=True)):
            check_shared(made.histories, place, past(log, log.user, log.item, user, time, 10**6), length)
            for item, which in zip(made.candidates_BC[place].tolist(), made.audience_of_BC[place].tolist(), strict=True):
                check_shared(made.audiences, which, past(log, log.item, log.user, item, time, 10**6), length)


def check_shared(found: Prefixes, place: int, before: list[int], length: int) -> None:
    read = found.ids_WL[found.row_N[place], : found.length_N[place]].tolist()
    assert read == before[len(before) - len(read) :]
    assert len(read) <= length
    assert len(read) == len(before) or len(read) > length - max(length // 2, 1)


@pytest.mark.parametrize("longest", [1, 3, 8])
def test_shared_sequences_can_be_shortened(log: unskew.Log, longest: int) -> None:
    sampler = Sampler(unskew.split(log), Sampling(batch_size=64, history=8, shared=True))
    for made in sampler.epoch():
        whole, short = made.histories, made.histories.newest(longest)
        assert whole.newest(None) is whole
        assert short is whole or short.ids_WL.shape == (len(made.user_B), longest)
        for place in range(len(made.user_B)):
            read = [of.ids_WL[of.row_N[place], : of.length_N[place]].tolist() for of in (whole, short)]
            assert read[1] == read[0][-longest:]


def test_shared_sequences_are_few_and_their_epoch_meets_every_row_once(log: unskew.Log) -> None:
    plain, shared = (Sampler(unskew.split(log), Sampling(batch_size=64, shared=value)) for value in (False, True))
    rows = [
        sorted(
            zip(
                *[torch.cat(c).tolist() for c in zip(*[(b.user_B, b.times_B, b.candidates_BC[:, 0]) for b in s.epoch()], strict=True)],
                strict=True,
            )
        )
        for s in (plain, shared)
    ]
    assert rows[0] == rows[1]
    for made in shared.epoch():
        assert len(made.histories.ids_WL) <= len(set(made.user_B.tolist())) * 2


def test_shared_batches_know_logged_propensities() -> None:
    table = random_table(negatives=0.7)
    log = unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(table.num_rows)]]))
    sampler = Sampler(unskew.split(log), Sampling(batch_size=64, shared=True))
    made = next(sampler.epoch())
    assert made.logged_BC is not None
    assert made.logged_BC.shape == made.candidates_BC.shape == (64, 1)


def test_each_distinct_audience_once(log: unskew.Log) -> None:
    made = batch(log, np.zeros(50), np.full(50, 400), np.tile(np.arange(10), (50, 1)))
    assert made.audience_AM.shape[0] <= 10
    assert len({tuple(row) for row in made.audience_AM.tolist()}) == made.audience_AM.shape[0]


def test_trimmed_to_the_longest_member(log: unskew.Log) -> None:
    early = batch(log, np.arange(8), np.full(8, 30), np.zeros((8, 1)))
    longest = max(len(past(log, log.user, log.item, user, 30, HISTORY)) for user in range(8))
    assert early.history_BL.shape == (8, longest)
    assert longest < HISTORY
    assert not (early.history_BL == PAD).all(dim=0).any()  # no column of padding alone


def test_unknown_users_and_empty_pasts_are_empty_not_errors(log: unskew.Log) -> None:
    made = batch(log, [PAD, 0], [100, 0], [[0, len(log.items) + 5], [0, 1]])
    assert made.history_BL.shape == (2, 0)
    assert made.audience_of_BC[1].tolist() == [int(made.audience_of_BC[1, 0])] * 2  # all empty audiences are one


def test_no_label_can_be_told_from_an_empty_audience(positive_log: unskew.Log) -> None:
    """The first row of an item is no target, and a negative has a past, too."""
    sampler = Sampler(unskew.split(positive_log), Sampling(batch_size=64, negatives=3))
    for made in sampler.epoch():
        lengths = real(made.audience_AM).sum(1)[made.audience_of_BC]
        assert (lengths > 0).all()


def test_an_epoch_meets_every_row_once(log: unskew.Log) -> None:
    sampler = Sampler(unskew.split(log), Sampling(batch_size=64))
    met = [
        (int(u), int(t), int(i), int(y))
        for b in sampler.epoch()
        for u, t, i, y in zip(b.user_B, b.times_B, b.candidates_BC[:, 0], b.labels_BC[:, 0], strict=True)
    ]
    rows = sampler.rows
    train = unskew.split(log).rows("train")
    assert set(train.tolist()) - set(rows.tolist()) == {row for row in train.tolist() if log.births[1][log.item[row]] == log.time[row]}
    expected = zip(log.user[rows].tolist(), log.time[rows].tolist(), log.item[rows].tolist(), log.label[rows].tolist(), strict=True)
    assert sorted(met) == sorted(expected)
    assert len(sampler) == -(-len(rows) // 64)


def test_a_log_with_enough_negatives_of_its_own_gets_no_others(log: unskew.Log, positive_log: unskew.Log) -> None:
    shown = unskew.read(random_table(negatives=0.7))
    assert Sampler(unskew.split(shown)).negatives == 0
    assert Sampler(unskew.split(log)).negatives == 1  # three of ten are not enough
    assert Sampler(unskew.split(positive_log)).negatives == 1
    made = next(Sampler(unskew.split(shown), Sampling(batch_size=512)).epoch())
    assert set(made.labels_BC.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("part", ["train", "valid", "test"])
def test_a_negative_is_never_the_target(positive_log: unskew.Log, part: str) -> None:
    for made in Sampler(unskew.split(positive_log), Sampling(negatives=3), part).epoch():
        assert not (made.candidates_BC[:, 1:] == made.candidates_BC[:, :1]).any()


def test_logged_propensities_travel_with_their_rows() -> None:
    table = random_table(negatives=0.7, times=10**9)  # no two rows alike
    log = unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(table.num_rows)]]))
    sampler = Sampler(unskew.split(log))
    known = {(int(u), int(i), int(t)): float(p) for u, i, t, p in zip(log.user, log.item, log.time, log.propensity, strict=True)}
    made = next(sampler.epoch())
    for user, item, time, logged in zip(made.user_B, made.candidates_BC[:, 0], made.times_B, made.logged_BC[:, 0], strict=True):
        assert known[int(user), int(item), int(time)] == pytest.approx(float(logged), abs=1e-6)


def test_negatives_are_known_existing_and_not_the_users_own(positive_log: unskew.Log) -> None:
    log, split = positive_log, unskew.split(positive_log)
    train = split.rows("train")
    own = set(zip(log.user[train].tolist(), log.item[train].tolist(), strict=True))
    drawn = np.zeros(split.known_items, np.int64)
    sampler = Sampler(split, Sampling(batch_size=128, negatives=5))
    for made in [b for _ in range(3) for b in sampler.epoch()]:
        assert made.labels_BC[:, 1:].sum() == 0
        for user, time, items in zip(made.user_B.tolist(), made.times_B.tolist(), made.candidates_BC[:, 1:].tolist(), strict=True):
            assert not {(user, item) for item in items} & own
            assert (log.births[1][items] < time).all()
            np.add.at(drawn, items, 1)
    assert (drawn > 0).all()


def test_negatives_are_uniform_over_what_the_user_does_not_have() -> None:
    users, items = 40, 10
    first = {"user": [99] * items, "item": list(range(items)), "time": [1] * items}  # so that every item has a past
    then = {
        "user": [u for u in range(users) for _ in (0, 1)],
        "item": [i for u in range(users) for i in (u % items, 9)],
        "time": [5] * (2 * users),
    }
    log = unskew.read({name: first[name] + then[name] for name in first})
    split = unskew.split(log, shares=(1, 0, 0))
    sampler = Sampler(split, Sampling(batch_size=16, negatives=4))
    counts = np.zeros((users + 1, len(log.items)))
    for _ in range(150):
        for made in sampler.epoch():
            for user, drawn in zip(made.user_B.tolist(), made.candidates_BC[:, 1:].tolist(), strict=True):
                np.add.at(counts[user], drawn, 1)
    counts = counts[counts.sum(1) > 0]  # all but the one who came first
    assert len(counts) == users
    share = counts / counts.sum(1, keepdims=True)
    own = counts == 0
    assert set(own.sum(1).tolist()) <= {1, 2}
    expected = 1 / (~own).sum(1, keepdims=True)
    assert np.abs(np.where(own, expected, share) - expected).max() < 5 * np.sqrt(0.12 / counts.sum(1).min())


def test_a_user_with_nearly_everything_and_one_with_everything() -> None:
    letters = "abcdefghij"
    table = {"user": ["z"] * 10 + ["a"] * 9, "item": [*letters, *letters[:9]], "time": [1] * 10 + [2] * 9}
    split = unskew.split(unskew.read(table), shares=(1, 0, 0))
    (made,) = Sampler(split, Sampling(negatives=3)).epoch()
    assert set(split.log.items.of(made.candidates_BC[:, 1:].ravel().numpy()).to_pylist()) == {"j"}  # the only item that a does not have
    full = {"user": ["z", "z", "a", "a"], "item": ["x", "y", "x", "y"], "time": [1, 1, 2, 2]}
    with pytest.raises(unskew.BadInput, match="'a' has all 2 items"):
        list(Sampler(unskew.split(unskew.read(full), shares=(1, 0, 0)), Sampling(negatives=1)).epoch())


def test_seeded(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    first, again, other = (list(Sampler(split, Sampling(batch_size=64, seed=seed)).epoch()) for seed in (3, 3, 4))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert torch.cat([made.user_B for made in first]).tolist() != torch.cat([made.user_B for made in other]).tolist()


@pytest.mark.parametrize("stop", [0, 1, 5, 7])
def test_a_restored_sampler_goes_on_exactly(positive_log: unskew.Log, stop: int) -> None:
    split, settings = unskew.split(positive_log), Sampling(batch_size=128)
    whole = Sampler(split, settings)
    expected = [*whole.epoch(), *whole.epoch(), *whole.epoch()]
    first = Sampler(split, settings)
    walk = iter(first.epoch())
    met = [next(walk) for _ in range(stop)]
    second = Sampler(split, settings)
    second.load_state_dict(first.state_dict())
    met += [*second.epoch(), *second.epoch(), *second.epoch()]
    assert len(met) == len(expected)
    assert all(same(a, b) for a, b in zip(met, expected, strict=True))
    for other in (Sampling(batch_size=128, seed=9), Sampling(batch_size=64), Sampling(batch_size=128, negatives=4)):
        with pytest.raises(unskew.BadInput, match="the saved sampler had"):
            Sampler(split, other).load_state_dict(first.state_dict())


def test_buckets_keep_padding_low_and_batches_random() -> None:
    random = np.random.default_rng(0)
    user = random.choice(200, 20_000, p=(w := 1 / np.arange(1, 201)) / w.sum())
    log = unskew.read({"user": user, "item": random.integers(0, 5000, 20_000), "time": np.arange(20_000)})
    split = unskew.split(log)
    batches = list(Sampler(split, Sampling(batch_size=128)).epoch())
    padding = sum(int((~real(b.history_BL)).sum()) for b in batches) / sum(b.history_BL.numel() for b in batches)
    shuffled = random.permutation(split.rows("train"))[: 128 * 40].reshape(-1, 128)  # the same, without buckets
    plain = [batch(log, log.user[rows], log.time[rows], log.item[rows]).history_BL for rows in shuffled]
    unbucketed = sum(int((~real(rows)).sum()) for rows in plain) / sum(rows.numel() for rows in plain)
    assert padding < unbucketed / 4
    lengths = [b.history_BL.shape[1] for b in batches]
    assert np.abs(np.diff(lengths)).mean() > 5  # short and long batches alternate
    assert max(lengths) <= HISTORY
    assert max(b.audience_AM.shape[1] for b in batches) <= AUDIENCE


def test_anything_is_drawn_but_the_logged_item(positive_log: unskew.Log) -> None:
    """The user's own positives included, with label 1; only what existed, unless the logged one was all there was."""
    split = unskew.split(positive_log)
    sampler = Sampler(split, Sampling(batch_size=64, negatives=6), drawing=uniform_items)
    own = 0
    for made in sampler.epoch():
        others, logged = made.candidates_BC[:, 1:], made.candidates_BC[:, :1]
        assert not bool((others == logged).any())
        has = sampler._positives.has(made.user_B.numpy()[:, None], others.numpy())
        assert np.array_equal(made.labels_BC[:, 1:].numpy() == 1, has)
        own += int(has.sum())
        existed = np.searchsorted(positive_log.births[1], made.times_B.numpy(), "left")[:, None]
        assert bool(((others.numpy() < existed) | (existed == 1)).all())
        assert int(others.max()) < split.known_items
    assert own > 0
    alone = Draw(np.random.default_rng(0), np.zeros(50, int), np.zeros(50, int), np.ones(50, int), 2, 0, sampler._positives)
    drawn = uniform_items(alone)
    assert drawn.min() >= 1
    assert drawn.max() < split.known_items
