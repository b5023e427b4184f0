"""DIN by hand: Dice, the sum that a candidate sees, the activation unit, and a catalogue that keeps what
belongs to pairs."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from unskew.data.batches.batch import Batch, batch, contexts, with_candidates
from unskew.models import din
from unskew.models.base import Training, build
from unskew.models.din import DIN, ActivationUnit, Dice, PairCatalog, interest
from unskew.training.trainer import Trainer

HISTORY = 6


def model(split: unskew.Split, **settings: Any) -> DIN:
    """Away from its initial values, where much is zero."""
    torch.manual_seed(0)
    made = build(
        DIN, split, DIN.Config(**{"history": HISTORY, "width": 8, "attention": 10, "hidden": 10, **settings})
    ).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return made


# Dice


def dice(alpha: float, width: int = 1) -> Dice:
    made = Dice(width)
    with torch.no_grad():
        made.alpha.fill_(alpha)
    return made


def test_dice() -> None:
    found = dice(0.25).train()(torch.tensor([[0.0], [2.0]]))
    assert found.flatten().tolist() == pytest.approx([0.0, 1.59659], abs=1e-5)
    assert functional.silu(torch.tensor(2.0)).item() == pytest.approx(
        1.76159, abs=1e-5
    )  # which is what RecBole has


def test_the_statistics_of_dice_are_of_the_batch_and_later_running_ones() -> None:
    layer, s = (
        dice(0.25, width=2).train(),
        torch.randn(5, 3, 2) * torch.tensor([1.0, 4.0]) + torch.tensor([0.0, 3.0]),
    )
    mean, variance = s.flatten(0, 1).mean(0), s.flatten(0, 1).var(0, correction=0)
    p = torch.sigmoid((s - mean) / variance.sqrt())
    first = layer(s)
    torch.testing.assert_close(first, p * s + (1 - p) * 0.25 * s)
    torch.testing.assert_close(layer.mean, 0.1 * mean)
    torch.testing.assert_close(layer.variance, 0.9 + 0.1 * variance)
    assert torch.equal(layer(s), first)  # running statistics are not read in training
    layer.eval()
    p = torch.sigmoid((s - layer.mean) / layer.variance.sqrt())
    torch.testing.assert_close(layer(s), p * s + (1 - p) * 0.25 * s)
    torch.testing.assert_close(layer(s)[:1], layer(s[:1]))
    assert {name for name, _ in layer.named_buffers()} == {"mean", "variance"}


def test_alpha_is_learned() -> None:
    layer = dice(0.0, width=2).train()
    layer(torch.randn(6, 2)).sum().backward()
    assert layer.alpha.grad is not None
    assert bool((layer.alpha.grad != 0).all())


def test_a_unit_that_never_changes_is_a_number() -> None:
    layer = dice(0.5).train()
    assert layer(torch.full((4, 1), 3.0)).flatten().tolist() == pytest.approx([3 * 0.75] * 4)


# The sum that a candidate sees

A, V = torch.tensor([[[0.2], [0.5]]]), torch.tensor([[[1.0, 0.0], [0.0, 2.0]]])
THERE = torch.ones(1, 2, dtype=torch.bool)


def test_interest() -> None:
    assert interest(A, V, THERE, "no").flatten().tolist() == pytest.approx([0.2, 1.0])
    twice = A.repeat(1, 2, 1), V.repeat(1, 2, 1), THERE.repeat(1, 2)
    assert interest(*twice, "no").flatten().tolist() == pytest.approx([0.4, 2.0])
    softmax = interest(A, V, THERE, "softmax")
    fraction = (torch.tensor([0.2, 0.5]) / 2**0.5).softmax(0)
    assert softmax.flatten().tolist() == pytest.approx([fraction[0].item(), 2 * fraction[1].item()])
    torch.testing.assert_close(interest(*twice, "softmax"), softmax)


@pytest.mark.parametrize("normalised", ["no", "softmax"])
def test_padding_has_no_weight(normalised: Any) -> None:
    padded = torch.cat([torch.tensor([[[7.0]]]), A], dim=1), torch.cat([torch.ones(1, 1, 2), V], dim=1)
    torch.testing.assert_close(
        interest(*padded, torch.tensor([[False, True, True]]), normalised), interest(A, V, THERE, normalised)
    )
    assert interest(*padded, torch.zeros(1, 3, dtype=torch.bool), normalised).flatten().tolist() == [0, 0]
    assert interest(A[:, :0], V[:, :0], THERE[:, :0], normalised).flatten().tolist() == [0, 0]


def test_the_unit_reads_both_their_difference_and_their_product() -> None:
    """Any layer on [q, v, q - v, q * v] is one on [q, v, q * v]."""
    torch.manual_seed(0)
    unit, whole = ActivationUnit(4, 6), torch.randn(6, 16)
    of_q, of_v, of_difference, of_product = whole.chunk(4, dim=1)
    q, v = torch.randn(5, 4), torch.randn(5, 4)
    with torch.no_grad():
        unit.of_candidate.weight.copy_(of_q + of_difference)
        unit.of_past.weight.copy_(of_v - of_difference)
        unit.of_both.weight.copy_(of_product)
        hidden = torch.sigmoid(torch.cat([q, v, q - v, q * v], dim=1) @ whole.T + unit.of_candidate.bias)
        torch.testing.assert_close(unit(q, v), unit.last(torch.sigmoid(unit.second(hidden)))[:, 0])


def after_history(split: unskew.Split, history: list[list[int]], candidates: list[list[int]]) -> Batch:
    made = batch(split.log, [0] * len(history), [0] * len(history), candidates, None, HISTORY, 0)
    return made._replace(history_BL=torch.tensor(history))


def test_each_pair_by_itself(split: unskew.Split) -> None:
    """The sum over past items, the tower on [u, q, u * q]; twice the history is twice the interest."""
    made, history, candidates = model(split), [4, 1, 7], [2, 0, 4]
    tower = made.tower
    whole = torch.cat(
        [tower.of_user.weight[:, :8], tower.of_candidate.weight, tower.of_user.weight[:, 8:]], dim=1
    )
    with torch.no_grad():
        found = made(after_history(split, [history], [candidates]))[0]
        doubled = made(after_history(split, [history * 2], [candidates]))[0]
        for place, item in enumerate(candidates):
            q, v = made.items.weight[item], made.items.weight[history]
            u = torch.stack([made.unit(q, past) * past for past in v]).sum(0)
            for score, user in ((found[place], u), (doubled[place], 2 * u)):
                hidden = tower.first_dice(whole @ torch.cat([user, q, user * q]) + tower.of_candidate.bias)
                torch.testing.assert_close(score, tower.last(tower.second_dice(tower.second(hidden)))[0])
        assert not torch.allclose(found, doubled, atol=1e-3)


def test_the_loss_is_weighted_cross_entropy(split: unskew.Split) -> None:
    made = model(split)
    rows = next(Trainer(made, split, Training(batch_size=64)).samplers["clicks"].epoch())
    assert isinstance(rows, Batch)
    made.eval()
    with torch.no_grad():
        p, y, weight = torch.sigmoid(made(rows)), rows.labels_BC, torch.rand(rows.labels_BC.shape)
        terms = -(y * p.log() + (1 - y) * (1 - p).log())
        assert 0 < float(y.mean()) < 1
        torch.testing.assert_close(made.click_loss(rows), terms.mean())
        torch.testing.assert_close(made.click_loss(rows._replace(weight_BC=weight)), (terms * weight).mean())


# The catalogue


class Counted(ActivationUnit):
    """Counts the past items whose weights were computed."""

    calls = 0

    def weight(self, hidden: Tensor) -> Tensor:
        self.calls += 1
        return super().weight(hidden)


def users(split: unskew.Split, size: int = 60) -> Batch:
    random = np.random.default_rng(5)
    return contexts(
        split.log,
        random.integers(0, len(split.log.users), size),
        np.sort(random.integers(0, 520, size)),
        HISTORY,
    )


@pytest.mark.parametrize("normalised", ["no", "softmax"])
@pytest.mark.parametrize("kept", [0, 400, 1 << 20])
def test_whatever_fits_the_catalogue_is_forward(
    split: unskew.Split, monkeypatch: pytest.MonkeyPatch, normalised: str, kept: int
) -> None:
    """With room for no more than one history, for ten past items, for all; in several parts."""
    monkeypatch.setattr(din, "KEPT", kept)
    monkeypatch.setattr(din, "TOGETHER", 7)
    made, some = model(split, normalised=normalised), users(split)
    items = len(split.log.items)
    with torch.no_grad():
        catalog = made.catalog(split.log, 0, 1)
        assert isinstance(catalog, PairCatalog)
        everything = np.tile(np.arange(items), (len(some.user_B), 1))
        expected = made(with_candidates(some, split.log, everything, None, 0))
        torch.testing.assert_close(catalog.scores(some), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(catalog.scores(some), expected, rtol=1e-5, atol=1e-5)
    assert len(catalog.weights) == {0: HISTORY, 400: 400 // items, 1 << 20: split.known_items + 1}[kept]
    assert len(catalog.row_of) <= len(catalog.weights)


def test_the_weights_of_a_past_item_are_computed_once(split: unskew.Split) -> None:
    made = model(split)
    made.unit.__class__ = Counted
    unit: Any = made.unit
    unknown = [split.known_items, split.known_items + 1]
    with torch.no_grad():
        catalog = made.catalog(split.log, 0, 1)
        for history, calls in (
            ([0, 1], 2),
            ([1, 0, 1], 2),
            ([2, *unknown], 4),
            ([], 4),
            ([unknown[1], 0], 4),
        ):
            catalog.scores(
                after_history(split, [history], [[]])._replace(
                    history_BL=torch.tensor([history], dtype=torch.int64)
                )
            )
            assert unit.calls == calls


def test_the_longest_unused_goes_first(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(din, "KEPT", 0)
    made = model(split, history=3)
    with torch.no_grad():
        catalog = made.catalog(split.log, 0, 1)
        assert isinstance(catalog, PairCatalog)
        for history in ([0, 1, 2], [0], [3], [4, 3]):
            catalog.scores(after_history(split, [history], [[]]))
    assert list(catalog.row_of) == [0, 4, 3]
