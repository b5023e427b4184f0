"""LightSANs by hand: pooling, both axes, and a block as the formula has it."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from unskew.data.batches.batch import Batch, bare_contexts, batch
from unskew.data.log.views import PAD
from unskew.models.base import Training, build
from unskew.models.lightsans import Axis, Block, LightSANs, attention, pooled
from unskew.training.trainer import Trainer

HISTORY, WIDTH, HEADS = 6, 8, 2
AXES: tuple[Axis, ...] = ("interest", "query")


def model(split: unskew.Split, **settings: Any) -> LightSANs:
    """Away from its initial values, where much is zero."""
    torch.manual_seed(0)
    small = {"history": HISTORY, "width": WIDTH, "heads": HEADS, "inner": 12, "interests": 3, "dropout": 0.0}
    made = build(LightSANs, split, LightSANs.Config(**{**small, **settings})).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return made


def contexts(*histories: list[int]) -> Batch:
    width = max(map(len, histories))
    ids = torch.tensor([[PAD] * (width - len(history)) + history for history in histories], dtype=torch.int32)
    nobody = torch.zeros(len(histories), dtype=torch.int64).numpy()
    return bare_contexts(nobody, ids.numpy(), nobody)


# The worked numbers


def test_pooling() -> None:
    """d = k = 1, K = (1, 3), theta = 1."""
    keys = torch.tensor([[[1.0], [3.0]]])
    found = pooled(keys, keys * 1.0, None)
    assert (keys * 1.0).softmax(1).flatten().tolist() == pytest.approx([0.11920, 0.88080], abs=1e-5)
    assert found.item() == pytest.approx(2.76159, abs=1e-5)
    with_padding = torch.tensor([[[0.0], [1.0], [3.0]]])
    assert pooled(with_padding, with_padding, torch.tensor([[False, True, True]])).item() == pytest.approx(
        2.76159, abs=1e-5
    )
    assert pooled(with_padding, with_padding, None).item() == pytest.approx(
        2.64558, abs=1e-5
    )  # what padding would do


def test_both_axes() -> None:
    scores = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    assert attention(scores, "interest").flatten().tolist() == pytest.approx(
        [0.73106, 0.26894, 0.88080, 0.11920], abs=1e-5
    )
    assert attention(scores, "query").flatten().tolist() == pytest.approx(
        [0.26894, 0.5, 0.73106, 0.5], abs=1e-5
    )


@pytest.mark.parametrize("axis", AXES)
def test_who_is_not_there_neither_looks_nor_is_looked_at(axis: Axis) -> None:
    scores = torch.tensor([[9.0, 8.0, 7.0], [6.0, 1.0, 0.0], [5.0, 2.0, 0.0]])
    there = torch.tensor([False, True, True])
    found = attention(scores, axis, there[:, None], there)
    assert torch.equal(found[:, 0], torch.zeros(3))
    torch.testing.assert_close(found[1:, 1:], attention(scores[1:, 1:], axis))


# A block


def by_the_formula(block: Block, x_LD: Tensor, places_LD: Tensor, axis: Axis) -> Tensor:
    """States of one history without padding. Keys and values are projected first and pooled then; each head
    by itself."""
    query, key, value = (
        x_LD @ weight.T + bias
        for weight, bias in zip(*(part.chunk(3) for part in block.query_key_value.parameters()), strict=True)
    )
    key_kD = (key @ block.theta_key).softmax(0).T @ key
    value_kD = (value @ block.theta_value).softmax(0).T @ value
    norm = block.of_places
    normal = functional.layer_norm(places_LD, (WIDTH,), norm.weight, norm.bias)
    place_query, place_key = block.place_query_key(normal).chunk(2, dim=1)
    size, over = WIDTH // HEADS, 1 if axis == "interest" else 0
    heads = []
    for head in range(HEADS):
        mine = slice(head * size, (head + 1) * size)
        of_items = (query[:, mine] @ key_kD[:, mine].T / math.sqrt(size)).softmax(over) @ value_kD[:, mine]
        of_places = (place_query[:, mine] @ place_key[:, mine].T / math.sqrt(size)).softmax(over) @ value[
            :, mine
        ]
        heads.append(of_items + of_places)
    x_LD = block.after_attention(x_LD + block.attended(torch.cat(heads, dim=1)))
    return block.after_inner(x_LD + block.narrow(functional.gelu(block.widen(x_LD))))


@pytest.mark.parametrize("axis", AXES)
def test_a_block_is_the_formula(split: unskew.Split, axis: Axis) -> None:
    """With padding that holds anything, with less of it, and for those alone who are asked for."""
    block: Block = model(split, softmax_axis=axis).blocks[0]  # type: ignore[assignment]
    x_BLD, places = torch.randn(3, 5, WIDTH), torch.randn(5, WIDTH)
    lengths = [5, 3, 1]
    there = torch.arange(5) >= 5 - torch.tensor(lengths)[:, None]
    with torch.no_grad():
        found = block(x_BLD, places, there, asking=5)
        for row, length in enumerate(lengths):
            expected = by_the_formula(block, x_BLD[row, -length:], places[-length:], axis)
            torch.testing.assert_close(found[row, -length:], expected)
            alone = block(x_BLD[row : row + 1, -length:], places[-length:], None, asking=length)
            torch.testing.assert_close(alone[0], expected)
        torch.testing.assert_close(block(x_BLD, places, there, asking=1), found[:, -1:])
        assert not torch.allclose(block(x_BLD, places, None, asking=1), found[:, -1:], atol=1e-3)


@pytest.mark.parametrize("axis", AXES)
def test_the_state_is_that_of_the_newest_item_after_all_blocks(split: unskew.Split, axis: Axis) -> None:
    made, history = model(split, softmax_axis=axis), [4, 1, 7, 2]
    with torch.no_grad():
        x = made.norm(made.items.weight[history])
        places = made.positions[:4].flip(0)  # the newest is place 0
        for block in made.blocks:
            x = by_the_formula(block, x, places, axis)  # type: ignore[arg-type]
        found = made.context(contexts([], history, [3]))[1]
        torch.testing.assert_close(found, made.start + x[-1])
        other = model(split, softmax_axis=AXES[1 - AXES.index(axis)])
        assert not torch.allclose(other.context(contexts(history))[0], found, atol=1e-3)


def test_order_is_read(split: unskew.Split) -> None:
    made = model(split)
    with torch.no_grad():
        one, other = made.context(contexts([4, 1, 7, 2], [1, 4, 7, 2]))
        assert not torch.allclose(one, other, atol=1e-4)


def test_an_empty_history_is_the_start(split: unskew.Split) -> None:
    made = model(split)
    with torch.no_grad():
        alone, mixed = made.context(contexts([], [])), made.context(contexts([], [1, 2]))
        assert torch.equal(alone, made.start.expand(2, -1))
        assert torch.equal(mixed[0], made.start)
        assert not torch.allclose(mixed[1], made.start, atol=1e-2)


# How it learns


def test_a_row_is_a_prefix_and_its_loss_is_full_cross_entropy(split: unskew.Split) -> None:
    made = model(split)
    sampler = Trainer(made, split, Training(batch_size=100)).samplers["next item"]
    rows = next(sampler.epoch())
    assert isinstance(rows, Batch)
    assert bool((rows.labels_BC == 1).all())
    assert rows.candidates_BC.shape == (100, 1)
    with torch.no_grad():
        logits = made.context(rows) @ made.items.weight.T
        terms = functional.cross_entropy(logits, rows.candidates_BC[:, 0], reduction="none")
        torch.testing.assert_close(made.next_item_loss(rows), terms.mean())
        weight = torch.rand(100, 1)
        torch.testing.assert_close(
            made.next_item_loss(rows._replace(weight_BC=weight)), (terms * weight[:, 0]).mean()
        )


def test_strangers_are_the_mean_of_the_known(split: unskew.Split) -> None:
    made, known = model(split), split.known_items
    with torch.no_grad():
        torch.testing.assert_close(
            made.vectors(torch.tensor([known, known + 4])), made.items.weight.mean(0).expand(2, -1)
        )
        found = made(batch(split.log, [0], [400], [[0, known]], None, HISTORY, 0))
        assert bool(found.isfinite().all())
