"""BST by hand: attention with one more key, the block and the tower as the paper has them, and what a
catalogue fractions."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from unskew.data.batches.batch import Batch, batch, contexts, with_candidates
from unskew.data.log.views import PAD
from unskew.models import bst
from unskew.models.base import Training, build
from unskew.models.bst import BST, CandidateAttention
from unskew.training.trainer import Trainer

HISTORY, WIDTH = 5, 12


def model(split: unskew.Split, **settings: Any) -> BST:
    """Away from its initial values, where much is zero."""
    torch.manual_seed(0)
    small = {
        "history": HISTORY,
        "width": WIDTH,
        "place_width": 4,
        "heads": 2,
        "inner": 10,
        "hidden": 8,
        "dropout": 0.0,
    }
    made = build(BST, split, BST.Config(**{**small, **settings})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return made


def after_history(split: unskew.Split, history: list[list[int]], candidates: list[list[int]]) -> Batch:
    made = batch(split.log, [0] * len(history), [0] * len(history), candidates, None, HISTORY, 0)
    return made._replace(history_BL=torch.tensor(history, dtype=torch.int64))


# Attention


def test_attention_by_hand() -> None:
    """One head, identity projections, d = 2, a past item (1, 0) and a candidate (0, 1)."""
    layer = CandidateAttention(2, 1)
    with torch.no_grad():
        layer.query_key_value.weight.copy_(torch.eye(2).repeat(3, 1))
        layer.query_key_value.bias.zero_()
        past = layer.past(torch.tensor([[[1.0, 0.0]]]), torch.ones(1, 1, dtype=torch.bool))
        candidate = layer.candidate(torch.tensor([[[0.0, 1.0]]]))
        # Values are the identity too, so that what is read are the weights.
        assert layer.read_by_past(past, candidate).flatten().tolist() == pytest.approx(
            [0.66976, 0.33024], abs=1e-5
        )
        assert layer.read_by_candidate(past, candidate).flatten().tolist() == pytest.approx(
            [0.33024, 0.66976], abs=1e-5
        )


def plain(layer: CandidateAttention, x_LD: Tensor) -> Tensor:
    """Self-attention of one sequence, each head by itself."""
    query, key, value = layer.query_key_value(x_LD).chunk(3, dim=1)
    size = x_LD.shape[1] // layer.heads
    heads = []
    for head in range(layer.heads):
        mine = slice(head * size, (head + 1) * size)
        heads.append((query[:, mine] @ key[:, mine].T / math.sqrt(size)).softmax(1) @ value[:, mine])
    return layer.attended(torch.cat(heads, dim=1))


def test_attention_is_that_of_the_history_with_the_candidate_behind_it() -> None:
    torch.manual_seed(0)
    layer, x_BLD, x_BCD = CandidateAttention(8, 2), 2 * torch.randn(3, 4, 8), 2 * torch.randn(3, 5, 8)
    lengths = [4, 2, 0]
    there = torch.arange(4) >= 4 - torch.tensor(lengths)[:, None]
    with torch.no_grad():
        by_past, by_candidate = layer(layer.past(x_BLD, there), layer.candidate(x_BCD))
        for row, length in enumerate(lengths):
            for place in range(5):
                expected = plain(layer, torch.cat([x_BLD[row, 4 - length :], x_BCD[row, place : place + 1]]))
                torch.testing.assert_close(by_past[row, place, 4 - length :], expected[:-1])
                torch.testing.assert_close(by_candidate[row, place], expected[-1])
    assert bool(by_past.isfinite().all())


# The block and the tower


def by_the_paper(made: BST, history: list[int], candidate: int) -> Tensor:
    """A logit from a sequence of fixed length, whose padding comes out as zeros."""
    length, leaky = len(history), functional.leaky_relu
    items = torch.cat([made.items.weight[history], made.items.weight[candidate][None]])
    e = torch.cat([items, made.positions[: length + 1].flip(0)], dim=1)
    s = made.after_attention(e + plain(made.attention, e))
    f = made.after_inner(s + made.narrow(leaky(made.widen(s))))
    flat = torch.cat([torch.zeros((HISTORY - length) * WIDTH), f.flatten()])
    hidden = leaky(made.first(flat))
    for layer in (made.rest[1], made.rest[3]):
        hidden = leaky(layer(hidden))
    return made.rest[5](hidden)[0]


def test_each_pair_by_itself(split: unskew.Split) -> None:
    made = model(split)
    histories, candidates = (
        [[4, 1, 7, 2, 2], [PAD, PAD, 3, 1, 0], [PAD] * 5],
        [[2, 0, 4], [9, 8, 3], [1, 2, 3]],
    )
    with torch.no_grad():
        found = made(after_history(split, histories, candidates))
        for row, history in enumerate(histories):
            for place, candidate in enumerate(candidates[row]):
                expected = by_the_paper(made, [item for item in history if item != PAD], candidate)
                torch.testing.assert_close(found[row, place], expected, rtol=1e-5, atol=1e-5)


def test_the_candidate_changes_what_every_past_item_becomes(split: unskew.Split) -> None:
    made = model(split)
    with torch.no_grad():
        at_past, at_candidate = made.states(
            made.past(torch.tensor([[4, 1, 7]])), made.candidate(torch.tensor([[2, 0, 2]]))
        )
    assert at_past.shape == (1, 3, 3, WIDTH)
    assert at_candidate.shape == (1, 3, WIDTH)
    assert bool(((at_past[0, 0] - at_past[0, 1]).abs().amax(1) > 1e-3).all())
    assert torch.equal(at_past[0, 0], at_past[0, 2])  # and no other candidate does


def test_padding_comes_out_as_zeros_and_changes_nothing(split: unskew.Split) -> None:
    made = model(split)
    short, longer = (
        after_history(split, [[4, 1]], [[2, 0]]),
        after_history(split, [[PAD, PAD, 4, 1]], [[2, 0]]),
    )
    with torch.no_grad():
        at_past, _ = made.states(made.past(longer.history_BL), made.candidate(longer.candidates_BC))
        assert not at_past[:, :, :2].any()
        assert bool(at_past[:, :, 2:].any(3).all())
        torch.testing.assert_close(made(longer), made(short))


def test_places_are_counted_from_the_candidate(split: unskew.Split) -> None:
    """The newest past item is at place 1, however many there are."""
    made = model(split)
    with torch.no_grad():
        at_1, at_2, at_5 = (
            made.past(torch.tensor([[*range(length - 1), 7]])).x_BLD[0, -1] for length in (1, 2, 5)
        )
        assert torch.equal(at_1, torch.cat([made.items.weight[7], made.positions[1]]))
        assert torch.equal(at_1, at_2)
        assert torch.equal(at_1, at_5)
        assert torch.equal(
            made.candidate(torch.tensor([[7]])).x_BCD[0, 0],
            torch.cat([made.items.weight[7], made.positions[0]]),
        )
        one, other = made(after_history(split, [[4, 1, 7], [1, 4, 7]], [[2], [2]]))
        assert not torch.allclose(one, other, atol=1e-4)


def test_dropout_is_drawn_for_each_candidate(split: unskew.Split) -> None:
    made = model(split, dropout=0.5).train()
    with torch.no_grad():
        one, other = made(after_history(split, [[4, 1, 7]], [[2, 2]]))[0]
    assert one != other


def test_the_loss_is_weighted_cross_entropy(split: unskew.Split) -> None:
    made = model(split)
    rows = next(Trainer(made, split, Training(batch_size=64)).samplers["clicks"].epoch())
    assert isinstance(rows, Batch)
    with torch.no_grad():
        p, y, weight = torch.sigmoid(made(rows)), rows.labels_BC, torch.rand(rows.labels_BC.shape)
        terms = -(y * p.log() + (1 - y) * (1 - p).log())
        assert 0 < float(y.mean()) < 1
        torch.testing.assert_close(made.click_loss(rows), terms.mean(), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(
            made.click_loss(rows._replace(weight_BC=weight)), (terms * weight).mean(), rtol=1e-5, atol=1e-5
        )


# The catalogue


def test_a_catalogue_encodes_each_history_and_each_candidate_once(
    split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In many parts, it is what forward is."""
    monkeypatch.setattr(bst, "TOGETHER", 30)
    made, items, random = model(split), len(split.log.items), np.random.default_rng(5)
    some = contexts(
        split.log, random.integers(0, len(split.log.users), 30), np.sort(random.integers(0, 520, 30)), HISTORY
    )
    everything = np.tile(np.arange(items), (30, 1))
    encoded: list[tuple[str, torch.Size]] = []
    with torch.no_grad():
        expected = made(with_candidates(some, split.log, everything, None, 0))
        for name in ("past", "candidate"):
            its = getattr(made, name)
            monkeypatch.setattr(
                made, name, lambda ids, name=name, its=its: (encoded.append((name, ids.shape)), its(ids))[1]
            )
        torch.testing.assert_close(made.catalog(split.log, 0, 1).scores(some), expected, rtol=1e-5, atol=1e-5)
    lengths = (some.history_BL != PAD).sum(1).tolist()
    assert encoded == [("candidate", (1, items)), *(("past", (1, length)) for length in lengths)]
