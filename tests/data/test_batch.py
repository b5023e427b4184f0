"""One layout: what was strictly before, trimmed, deduplicated, and shared where sequences are."""

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.estimators import shown
from unskew.data.batches.batch import Prefixes, batch
from unskew.data.batches.samplers import Sampler, Sampling
from unskew.data.log.views import HISTORY, PAD
from unskew.nn.layers import is_real


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


def met(sampler: Sampler) -> list[list[int]]:
    """The rows of an epoch, in some order of their own."""
    rows = [torch.stack([b.user_B, b.times_B, b.candidates_BC[:, 0]], 1) for b in sampler.epoch()]
    return sorted(torch.cat(rows).tolist())


def test_shared_sequences_are_few_and_their_epoch_meets_every_row_once(log: unskew.Log) -> None:
    plain, shared = (
        Sampler(unskew.split(log), Sampling(batch_size=64, shared=value)) for value in (False, True)
    )
    assert met(plain) == met(shared)
    for made in shared.epoch():
        assert len(made.histories.ids_WL) <= len(set(made.user_B.tolist())) * 2


def test_shared_batches_know_logged_propensities(logged: unskew.Log) -> None:
    sampler = Sampler(unskew.split(logged), Sampling(batch_size=64, shared=True))
    made = next(sampler.epoch())
    assert made.logged_BC is not None
    assert made.logged_BC.shape == made.candidates_BC.shape == (64, 1)
    assert made.logged_BC[:, 0].tolist() == pytest.approx(shown(logged, made), abs=1e-6)


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
    assert made.audience_of_BC[1, 0] == made.audience_of_BC[1, 1]  # all empty audiences are one
