"""Losses in chunks are the plain ones: in value, in gradient, with weights and offsets; and no loss holds all
logits of a catalogue."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import unskew
from tests.conftest import random_table
from tests.helpers.by_hand import sequences
from unskew.data.batches.batch import SequenceBatch
from unskew.data.log.split import Ids
from unskew.models.bert4rec import BERT4Rec
from unskew.models.deps import masked_prediction
from unskew.models.deps_causal import CausalDEPS
from unskew.models.sasrec import SASRec
from unskew.nn import losses, vocabulary
from unskew.nn.layers import Encoder, Table
from unskew.nn.losses import bpr, cross_entropy, sampled_softmax, weighted_mean
from unskew.propensity.estimators import SequenceGRU


def drawn(rows: int, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """States, vectors, offsets, targets and weights that differ."""
    random = torch.Generator().manual_seed(0)
    states, vectors, offsets = (
        torch.randn(shape, generator=random).requires_grad_() for shape in ((rows, 4), (size, 4), (size,))
    )
    return (
        states,
        vectors,
        offsets,
        torch.randint(size, (rows,), generator=random),
        3 * torch.rand(rows, generator=random),
    )


@pytest.mark.parametrize("with_offsets", [False, True], ids=["plain", "offsets"])
@pytest.mark.parametrize("with_weights", [False, True], ids=["every weight one", "weights"])
@pytest.mark.parametrize("chunk", [1, 1 << 19], ids=["chunks", "at once"])
def test_the_full_softmax_is_weighted_cross_entropy(
    with_offsets: bool, with_weights: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value and in gradient: a gradient that forgets the weights, or those of another row, is another
    gradient."""
    monkeypatch.setattr(losses, "CHUNK", chunk)
    states, vectors, offsets, targets, weight = drawn(70, 11)
    given, added = (weight, offsets) if with_weights else (None, offsets)
    found = cross_entropy(states, vectors, targets, given, added if with_offsets else None)
    logits = states @ vectors.T + (offsets if with_offsets else 0)
    terms = functional.cross_entropy(logits, targets, reduction="none")
    expected = (terms * (weight if with_weights else 1)).sum()
    torch.testing.assert_close(found, expected)
    inputs = [states, vectors, *([offsets] if with_offsets else [])]
    mine, plain = (torch.autograd.grad(5 * loss, inputs) for loss in (found, expected))
    for one, same in zip(mine, plain, strict=True):
        assert bool(one.any())
        torch.testing.assert_close(one, same, atol=1e-5, rtol=1e-4)


def test_a_weight_of_zero_teaches_nothing() -> None:
    states, vectors, _, targets, weight = drawn(6, 11)
    weight[2] = 0
    gradient = torch.autograd.grad(cross_entropy(states, vectors, targets, weight), states)[0]
    assert gradient.any(1).tolist() == [True, True, False, True, True, True]
    doubled = torch.autograd.grad(cross_entropy(states, vectors, targets, 2 * weight), states)[0]
    torch.testing.assert_close(doubled, 2 * gradient)


def test_nothing_to_predict_is_zero_with_a_gradient() -> None:
    states, vectors, offsets, targets, weight = drawn(0, 11)
    loss = cross_entropy(states, vectors, targets, weight, offsets)
    loss.backward()
    assert loss.item() == 0
    assert all(value.grad is not None and not value.grad.any() for value in (states, vectors, offsets))


def test_logits_of_any_size_are_finite() -> None:
    states, vectors = torch.full((2, 1), 1e4).requires_grad_(), torch.tensor([[1.0], [-1.0], [1.0]])
    loss = cross_entropy(states, vectors, torch.tensor([0, 1]))
    assert loss.item() == pytest.approx(torch.tensor(2.0).log().item() * 2 + 2e4)
    loss.backward()
    assert bool(states.grad.isfinite().all())


def test_a_large_catalogue_is_sampled_with_weights_and_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "FULL_SOFTMAX", 10)
    monkeypatch.setattr(losses, "SAMPLES", 300_000)
    states, vectors, offsets, targets, weight = (value.detach() for value in drawn(6, 11))
    torch.manual_seed(0)
    full = (functional.cross_entropy(states @ vectors.T + offsets, targets, reduction="none") * weight).sum()
    torch.testing.assert_close(
        cross_entropy(states, vectors, targets, weight, offsets), full, rtol=0.01, atol=0
    )
    one = states[:1], targets[:1], vectors, 40
    torch.manual_seed(0)
    plain = sampled_softmax(*one)
    torch.manual_seed(0)
    torch.testing.assert_close(sampled_softmax(*one, weight[:1]), plain * weight[0])


def test_small_ones_by_hand() -> None:
    assert bpr(torch.tensor(1.0), torch.tensor(0.0)).item() == pytest.approx(0.313262, abs=1e-6)
    assert bpr(torch.tensor(0.0), torch.tensor(1.0)).item() == pytest.approx(1.313262, abs=1e-6)
    assert weighted_mean(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 1.0])).item() == 2.5


# What is held at once

SIZE, ROWS, LENGTH = 4000, 60, 8


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that anything made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.numbers = max(
            [self.numbers, *(leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor))]
        )
        return out


@pytest.fixture(scope="module")
def huge() -> unskew.Split:
    """A small log whose split claims to know thousands of items and users."""
    split, once = unskew.split(unskew.read(random_table(rows=300))), np.ones(SIZE, np.int64)
    return dataclasses.replace(split, known_items=SIZE, known_users=SIZE, item_counts=once, user_counts=once)


def many() -> SequenceBatch:
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(SIZE, (ROWS, LENGTH), generator=random).tolist()
    return sequences(ids, audiences=ids)


def masked(huge: unskew.Split) -> Tensor:
    """Stage 1 of DEPS."""
    table, encoder = Table(Ids(SIZE), 4), Encoder(4, 1, 1, 4, 0.0, LENGTH)
    return masked_prediction(encoder, table, many().items_BL, 0.9).loss


def causal(huge: unskew.Split) -> Tensor:
    return CausalDEPS(
        huge.known, CausalDEPS.Config(width=4, heads=1, inner=4, history=LENGTH, audience=LENGTH)
    ).masked_loss(many())


def exposure(huge: unskew.Split) -> Tensor:
    batch = many()
    return SequenceGRU(4, 1).loss(batch.items_BL, batch.past_BL, Table(Ids(SIZE), 4))


def cloze(huge: unskew.Split) -> Tensor:
    return BERT4Rec(huge.known, BERT4Rec.Config(width=4, inner=4, history=LENGTH, masked=0.9)).cloze_loss(
        many()
    )


def next_item(huge: unskew.Split) -> Tensor:
    return SASRec(huge.known, SASRec.Config(width=4, history=LENGTH)).next_item_loss(many())


@pytest.mark.parametrize("loss", [masked, causal, exposure, cloze, next_item], ids=lambda loss: loss.__name__)
def test_no_loss_holds_the_logits_of_all_its_targets(
    loss: Callable[[unskew.Split], Tensor], huge: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(losses, "CHUNK", 1)
    with Largest() as largest:
        loss(huge).backward()
    assert largest.numbers < 64 * SIZE  # a chunk, and not one row per target
    monkeypatch.setattr(losses, "CHUNK", 1 << 30)
    with Largest() as largest:
        loss(huge).backward()
    assert (
        largest.numbers > 4 * 64 * SIZE
    )  # there are more targets than that: it is the chunks that keep it small
