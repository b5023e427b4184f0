"""An epoch meets every row once; samplers are seeded, resumable, and keep padding low."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.estimators import shown
from unskew.data.batches.batch import Batch, batch
from unskew.data.batches.samplers import Sampler, Sampling
from unskew.data.log.views import AUDIENCE, HISTORY
from unskew.nn.layers import is_real


def same(a: Batch, b: Batch) -> bool:
    return all(
        torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y for x, y in zip(a, b, strict=True)
    )


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


def test_logged_propensities_travel_with_their_rows(logged: unskew.Log) -> None:
    made = next(Sampler(unskew.split(logged)).epoch())
    assert made.logged_BC[:, 0].tolist() == pytest.approx(shown(logged, made), abs=1e-6)


def test_seeded(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    first, again, other = (
        list(Sampler(split, Sampling(batch_size=64, seed=seed)).epoch()) for seed in (3, 3, 4)
    )
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    users = [torch.cat([made.user_B for made in epoch]).tolist() for epoch in (first, other)]
    assert users[0] != users[1]


@pytest.mark.parametrize("stop", [0, 1, 5, 7])
def test_a_restored_sampler_goes_on_exactly(positive_log: unskew.Log, stop: int) -> None:
    split, settings = unskew.split(positive_log), Sampling(batch_size=128)
    whole = Sampler(split, settings)
    expected = [*whole.epoch(), *whole.epoch(), *whole.epoch()]
    first = Sampler(split, settings)
    steps = iter(first.epoch())
    met = [next(steps) for _ in range(stop)]
    second = Sampler(split, settings)
    second.load_state_dict(first.state_dict())
    met += [*second.epoch(), *second.epoch(), *second.epoch()]
    assert len(met) == len(expected)
    assert all(same(a, b) for a, b in zip(met, expected, strict=True))
    for change in ({"seed": 9}, {"batch_size": 64}, {"negatives": 4}):
        with pytest.raises(unskew.BadInput, match="the saved sampler had"):
            Sampler(split, replace(settings, **change)).load_state_dict(first.state_dict())


def share_of_padding(of: list[torch.Tensor]) -> float:
    return sum(int((~is_real(ids)).sum()) for ids in of) / sum(ids.numel() for ids in of)


def test_buckets_keep_padding_low_and_batches_random() -> None:
    random = np.random.default_rng(0)
    user = random.choice(200, 20_000, p=(w := 1 / np.arange(1, 201)) / w.sum())
    log = unskew.read({"user": user, "item": random.integers(0, 5000, 20_000), "time": np.arange(20_000)})
    split = unskew.split(log)
    batches = list(Sampler(split, Sampling(batch_size=128)).epoch())
    padding = share_of_padding([b.history_BL for b in batches])
    # The same, without buckets.
    shuffled = random.permutation(split.rows("train"))[: 128 * 40].reshape(-1, 128)
    plain = [batch(log, log.user[rows], log.time[rows], log.item[rows]).history_BL for rows in shuffled]
    assert padding < share_of_padding(plain) / 4
    lengths = [b.history_BL.shape[1] for b in batches]
    assert np.abs(np.diff(lengths)).mean() > 5  # short and long batches alternate
    assert max(lengths) <= HISTORY
    assert max(b.audience_AM.shape[1] for b in batches) <= AUDIENCE


# Two moments: what was asked at one time, and a test at a later one


@pytest.mark.parametrize("audience", [0, 5, None])
@pytest.mark.parametrize("negatives", [None, 2])
@pytest.mark.parametrize("labels", [True, False])
def test_a_log_whose_training_part_is_one_moment_can_be_learned_from(
    audience: int | None, negatives: int | None, labels: bool
) -> None:
    """At the first moment all audiences are empty, which tells nothing; every known item is a candidate."""
    random = np.random.default_rng(0)
    item = 10 + np.concatenate([random.permutation(15)[:6] for _ in range(20)])
    table = {
        "user": np.repeat(np.arange(10, 30), 6),
        "item": item,
        "time": 1_700_000_000 + 9 * (np.arange(120) % 6 > 3),
    }
    log = unskew.read(table | ({"label": random.integers(0, 2, 120)} if labels else {}))
    split = unskew.split(log, fractions=(4, 0, 2))
    sampler = Sampler(split, Sampling(batch_size=16, negatives=negatives, audience=audience))
    assert len(sampler.rows) == 80
    met = [made for made in sampler.epoch() if made.history_BL.shape[1] == made.audience_AM.shape[1] == 0]
    assert sum(len(made.user_B) for made in met) == 80
    train = split.rows("train")
    train = train[log.label[train] == 1]
    taken = set(zip(log.user[train].tolist(), log.item[train].tolist(), strict=True))
    drawn = [
        (user, item)
        for made in met
        for user, items in zip(made.user_B.tolist(), made.candidates_BC.tolist(), strict=True)
        for item in items[1:]
    ]
    assert len(drawn) == 80 * sampler.negatives
    assert not set(drawn) & taken
    assert not drawn or {item for _, item in drawn} == set(range(split.known_items))
