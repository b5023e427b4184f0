"""One layout, trimmed and deduplicated; seeded and resumable; negatives that are negatives, whether past
items are candidates or not."""

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import random_table
from unskew.data.batch import Batch, Prefixes, batch
from unskew.data.negatives import Draw, Positives, uniform_items
from unskew.data.samplers import Sampler, Sampling
from unskew.data.views import AUDIENCE, HISTORY, PAD
from unskew.layers import is_real


def same(a: Batch, b: Batch) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


def past(log: unskew.Log, column: np.ndarray, of: np.ndarray, code: int, time: int, newest: int) -> list[int]:
    """Independent of the views: from the rows themselves."""
    rows = [
        (log.time[row], of[row])
        for row in np.flatnonzero((column == code) & (log.label == 1) & (log.time < time))
    ]
    return [other for _, other in sorted(rows)][-newest:]


def test_a_batch_holds_what_was_before_and_nothing_else(log: unskew.Log) -> None:
    rows = np.random.default_rng(0).choice(len(log), 64, replace=False)
    candidates = np.stack([log.item[rows], log.item[rows[::-1]]], axis=1)
    made = batch(log, log.user[rows], log.time[rows], candidates, history=5, audience=4)
    for place, row in enumerate(rows):
        history = made.history_BL[place]
        assert history[is_real(history)].tolist() == past(
            log, log.user, log.item, log.user[row], log.time[row], 5
        )
        for column in range(2):
            audience = made.audience_AM[made.audience_of_BC[place, column]]
            assert audience[is_real(audience)].tolist() == past(
                log, log.item, log.user, candidates[place, column], log.time[row], 4
            )


@pytest.mark.parametrize("length", [1, 4, 7, 1000])
def test_shared_sequences_end_where_the_past_does_and_keep_at_least_half(
    log: unskew.Log, length: int
) -> None:
    sampler = Sampler(
        unskew.split(log), Sampling(batch_size=64, negatives=2, history=length, audience=length, shared=True)
    )
    for made in sampler.epoch():
        assert made.shared is not None
        assert made.history_BL.numel() == made.audience_AM.numel() == 0
        for place, (user, time) in enumerate(zip(made.user_B.tolist(), made.times_B.tolist(), strict=True)):
            check_shared(made.histories, place, past(log, log.user, log.item, user, time, 10**6), length)
            for item, which in zip(
                made.candidates_BC[place].tolist(), made.audience_of_BC[place].tolist(), strict=True
            ):
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
        whole, short = made.histories, made.histories.truncate(longest)
        assert whole.truncate(None) is whole
        assert short is whole or short.ids_WL.shape == (len(made.user_B), longest)
        for place in range(len(made.user_B)):
            read = [of.ids_WL[of.row_N[place], : of.length_N[place]].tolist() for of in (whole, short)]
            assert read[1] == read[0][-longest:]


def test_shared_sequences_are_few_and_their_epoch_meets_every_row_once(log: unskew.Log) -> None:
    plain, shared = (
        Sampler(unskew.split(log), Sampling(batch_size=64, shared=value)) for value in (False, True)
    )
    rows = [
        sorted(
            zip(
                *[
                    torch.cat(c).tolist()
                    for c in zip(
                        *[(b.user_B, b.times_B, b.candidates_BC[:, 0]) for b in s.epoch()], strict=True
                    )
                ],
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
    assert (
        made.audience_of_BC[1].tolist() == [int(made.audience_of_BC[1, 0])] * 2
    )  # all empty audiences are one


def test_no_label_can_be_told_from_an_empty_audience(positive_log: unskew.Log) -> None:
    """The first positive of an item is no target, and a negative has a past, too. At the very first moment
    all are empty."""
    sampler = Sampler(unskew.split(positive_log), Sampling(batch_size=64, negatives=3))
    begins = int(positive_log.time.min())
    for made in sampler.epoch():
        lengths = is_real(made.audience_AM).sum(1)[made.audience_of_BC]
        assert ((lengths > 0) == (made.times_B > begins)[:, None]).all()


def test_an_epoch_meets_every_row_once(log: unskew.Log) -> None:
    sampler = Sampler(unskew.split(log), Sampling(batch_size=64))
    met = [
        (int(u), int(t), int(i), int(y))
        for b in sampler.epoch()
        for u, t, i, y in zip(b.user_B, b.times_B, b.candidates_BC[:, 0], b.labels_BC[:, 0], strict=True)
    ]
    rows = sampler.rows
    train = unskew.split(log).rows("train")
    begins = log.time[log.label == 1].min()
    new = {
        row
        for row in train.tolist()
        if not ((log.item == log.item[row]) & (log.time < log.time[row]) & (log.label == 1)).any()
    }
    assert set(train.tolist()) - set(rows.tolist()) == {row for row in new if log.time[row] > begins}
    expected = zip(
        log.user[rows].tolist(),
        log.time[rows].tolist(),
        log.item[rows].tolist(),
        log.label[rows].tolist(),
        strict=True,
    )
    assert sorted(met) == sorted(expected)
    assert len(sampler) == -(-len(rows) // 64)


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
    taken = set(
        zip(*(column[log.label == 1].tolist() for column in (log.user, log.time, log.item)), strict=True)
    )
    items = np.arange(len(log.items))
    for time in (log.time, log.time + 1):
        has = positives.has_now(log.user.astype(np.int64), time, np.tile(items, (len(log), 1)))
        slow = [
            [(u, t, i) in taken for i in items.tolist()]
            for u, t in zip(log.user.tolist(), time.tolist(), strict=True)
        ]
        assert has.tolist() == slow
    gone = Positives(
        unskew.split(
            unskew.read({"user": ["a", "b", "c"], "item": ["x", "y", "x"], "time": [1, 2, 3]}),
            shares=(1, 0, 0),
        )
    )
    assert not gone.has_now(
        np.array([0]), np.array([2]), np.array([[0, 1]])
    ).any()  # the next one's moment is not a's


def test_logged_propensities_travel_with_their_rows() -> None:
    table = random_table(negatives=0.7, times=10**9)  # no two rows alike
    log = unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(table.num_rows)]]))
    sampler = Sampler(unskew.split(log))
    known = {
        (int(u), int(i), int(t)): float(p)
        for u, i, t, p in zip(log.user, log.item, log.time, log.propensity, strict=True)
    }
    made = next(sampler.epoch())
    for user, item, time, logged in zip(
        made.user_B, made.candidates_BC[:, 0], made.times_B, made.logged_BC[:, 0], strict=True
    ):
        assert known[int(user), int(item), int(time)] == pytest.approx(float(logged), abs=1e-6)


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
        (user, int(item), 1000 + 10 * visit + user % 3)
        for user in range(20)
        for favourites in [random.permutation(24)[:10]]
        for visit in range(8)
        for item in random.permutation(favourites)[:5]
    ]
    return unskew.read(dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True)))


def test_where_repeats_are_kept_past_items_are_drawn_as_often_as_others() -> None:
    """Otherwise being in the history would mean positive. What is taken at the same moment is no negative,
    though."""
    log = baskets()
    split = unskew.split(log, shares=(1, 0, 0))
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
            past, now = (
                set(log.item[mine & those].tolist()) for those in (log.time < time, log.time == time)
            )
            assert items[0] in now
            assert not now & set(items[1:])
            candidates = {
                item for item in range(len(log.items)) if time == begins or existed(log, item, time)
            } - now
            assert set(items[1:]) <= candidates or not candidates
            share = len(past & candidates) / max(len(candidates), 1)
            past_drawn += sum(item in past for item in items[1:])
            expected, variance = expected + 40 * share, variance + 40 * share * (1 - share)
        assert made.labels_BC[:, 1:].sum() == 0
    assert expected > 1000
    assert abs(past_drawn - expected) < 4 * np.sqrt(variance)


def test_who_takes_nearly_all_there_is_at_once_still_gets_past_items() -> None:
    """Of 41 items, 39 are taken at one moment: what is left is one past item and one that is no past."""
    first = {"user": [f"z{n}" for n in range(41)], "item": list(range(41)), "time": [1] * 41}
    then = {"user": ["a"], "item": [40], "time": [2]}
    last = {"user": ["a"] * 39, "item": list(range(39)), "time": [3] * 39}
    log = unskew.read({name: first[name] + then[name] + last[name] for name in first})
    sampler = Sampler(
        unskew.split(log, shares=(1, 0, 0), repeats="keep"), Sampling(negatives=20, batch_size=100)
    )
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
    split = unskew.split(unskew.read(table), shares=(1, 0, 0), repeats="keep")
    with pytest.raises(unskew.BadInput, match="'z' has all 2 items"):  # z took both at once
        list(Sampler(split, Sampling(negatives=1)).epoch())
    alone = {"user": ["z", "b", "a", "a", "a"], "item": ["x", "y", "x", "y", "x"], "time": [1, 1, 2, 3, 4]}
    split = unskew.split(unskew.read(alone), shares=(1, 0, 0), repeats="keep")
    (made,) = Sampler(split, Sampling(negatives=2)).epoch()
    assert (made.candidates_BC[:, 1:] != made.candidates_BC[:, :1]).all()


def test_negatives_are_uniform_over_what_the_user_does_not_have() -> None:
    users, items = 40, 10
    first = {
        "user": list(range(users, users + items)),
        "item": list(range(items)),
        "time": [1] * items,
    }  # every item has a past
    then = {
        "user": [u for u in range(users) for _ in (0, 1)],
        "item": [i for u in range(users) for i in (u % items, 9)],
        "time": [5] * (2 * users),
    }
    log = unskew.read({name: first[name] + then[name] for name in first})
    split = unskew.split(log, shares=(1, 0, 0))
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
    share = counts / counts.sum(1, keepdims=True)
    own = counts == 0
    assert set(own.sum(1).tolist()) <= {1, 2}
    expected = 1 / (~own).sum(1, keepdims=True)
    assert np.abs(np.where(own, expected, share) - expected).max() < 5 * np.sqrt(0.12 / counts.sum(1).min())


def test_a_user_with_nearly_everything_and_one_with_everything() -> None:
    letters = "abcdefghij"
    table = {
        "user": [*"0123456789"] + ["a"] * 9,
        "item": [*letters, *letters[:9]],
        "time": [1] * 10 + [2] * 9,
    }
    split = unskew.split(unskew.read(table), shares=(1, 0, 0))
    (made,) = Sampler(split, Sampling(negatives=3)).epoch()
    drawn = made.candidates_BC[made.times_B == 2, 1:]
    assert set(split.log.items.of(drawn.ravel().numpy()).to_pylist()) == {
        "j"
    }  # the only item that a does not have
    full = {"user": ["z", "b", "a", "a"], "item": ["x", "y", "x", "y"], "time": [1, 1, 2, 2]}
    with pytest.raises(unskew.BadInput, match="'a' has all 2 items"):
        list(Sampler(unskew.split(unskew.read(full), shares=(1, 0, 0)), Sampling(negatives=1)).epoch())


def test_seeded(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    first, again, other = (
        list(Sampler(split, Sampling(batch_size=64, seed=seed)).epoch()) for seed in (3, 3, 4)
    )
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert (
        torch.cat([made.user_B for made in first]).tolist()
        != torch.cat([made.user_B for made in other]).tolist()
    )


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
    for other in (
        Sampling(batch_size=128, seed=9),
        Sampling(batch_size=64),
        Sampling(batch_size=128, negatives=4),
    ):
        with pytest.raises(unskew.BadInput, match="the saved sampler had"):
            Sampler(split, other).load_state_dict(first.state_dict())


def test_buckets_keep_padding_low_and_batches_random() -> None:
    random = np.random.default_rng(0)
    user = random.choice(200, 20_000, p=(w := 1 / np.arange(1, 201)) / w.sum())
    log = unskew.read({"user": user, "item": random.integers(0, 5000, 20_000), "time": np.arange(20_000)})
    split = unskew.split(log)
    batches = list(Sampler(split, Sampling(batch_size=128)).epoch())
    padding = sum(int((~is_real(b.history_BL)).sum()) for b in batches) / sum(
        b.history_BL.numel() for b in batches
    )
    shuffled = random.permutation(split.rows("train"))[: 128 * 40].reshape(
        -1, 128
    )  # the same, without buckets
    plain = [batch(log, log.user[rows], log.time[rows], log.item[rows]).history_BL for rows in shuffled]
    unbucketed = sum(int((~is_real(rows)).sum()) for rows in plain) / sum(rows.numel() for rows in plain)
    assert padding < unbucketed / 4
    lengths = [b.history_BL.shape[1] for b in batches]
    assert np.abs(np.diff(lengths)).mean() > 5  # short and long batches alternate
    assert max(lengths) <= HISTORY
    assert max(b.audience_AM.shape[1] for b in batches) <= AUDIENCE


def test_anything_is_drawn_but_the_logged_item(positive_log: unskew.Log) -> None:
    """The user's own positives included, with label 1; only what existed, unless the logged one was all there
    was."""
    split = unskew.split(positive_log)
    sampler = Sampler(split, Sampling(batch_size=64, negatives=6), drawing=uniform_items)
    own = 0
    for made in sampler.epoch():
        others, logged = made.candidates_BC[:, 1:], made.candidates_BC[:, :1]
        assert not bool((others == logged).any())
        has = sampler._positives.has(made.user_B.numpy()[:, None], others.numpy())
        assert np.array_equal(made.labels_BC[:, 1:].numpy() == 1, has)
        own += int(has.sum())
        before = np.array(
            [len(set(positive_log.item[positive_log.time < time].tolist())) for time in made.times_B.tolist()]
        )[:, None]
        assert bool(((others.numpy() < before) | (before <= 1)).all())
        assert int(others.max()) < split.known_items
    assert own > 0
    nothing, one = np.zeros(50, int), np.ones(50, int)
    alone = Draw(np.random.default_rng(0), nothing, nothing, nothing, one, 2, 0, sampler._positives)
    drawn = uniform_items(alone)
    assert drawn.min() >= 1
    assert drawn.max() < split.known_items


# Two moments: what was asked at one time, and a test at a later one


@pytest.mark.parametrize("audience", [0, 5, None])
@pytest.mark.parametrize("negatives", [None, 2])
@pytest.mark.parametrize("labels", [True, False])
def test_a_log_whose_training_part_is_one_moment_can_be_learned_from(
    audience: int | None, negatives: int | None, labels: bool
) -> None:
    """At the very first moment all audiences are empty, so emptiness tells nothing, and every known item is a
    candidate."""
    random = np.random.default_rng(0)
    item = np.concatenate([random.permutation(15)[:6] for _ in range(20)])
    table = {
        "user": np.repeat(np.arange(20), 6),
        "item": item,
        "time": 1_700_000_000 + 9 * (np.arange(120) % 6 > 3),
    }
    log = unskew.read(table | ({"label": random.integers(0, 2, 120)} if labels else {}))
    split = unskew.split(log, shares=(4, 0, 2))
    sampler = Sampler(split, Sampling(batch_size=16, negatives=negatives, audience=audience))
    assert len(sampler.rows) == 80
    met = [made for made in sampler.epoch() if made.history_BL.shape[1] == made.audience_AM.shape[1] == 0]
    assert sum(len(made.user_B) for made in met) == 80
    own = set(
        zip(log.user[split.rows("train")].tolist(), log.item[split.rows("train")].tolist(), strict=True)
    )
    drawn = [
        (user, item)
        for made in met
        for user, items in zip(made.user_B.tolist(), made.candidates_BC.tolist(), strict=True)
        for item in items[1:]
    ]
    assert len(drawn) == 80 * sampler.negatives
    taken = {pair for pair in own if ((log.user == pair[0]) & (log.item == pair[1]) & (log.label == 1)).any()}
    assert not set(drawn) & taken
    assert not drawn or {item for _, item in drawn} == set(range(split.known_items))
