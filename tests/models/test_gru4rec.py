"""GRU4Rec: the worked numbers of its losses, the third-party faults that they catch, and its shared
negatives."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close, some, tiny
from unskew.models import gru4rec
from unskew.models.base import Training, build
from unskew.models.gru4rec import GRU4Rec, bpr_max, log_softmax_of_draws, top1_max
from unskew.nn.layers import reseed
from unskew.nn.vocabulary import RowAdam
from unskew.training.trainer import Trainer

POSITIVE, NEGATIVE, ONCE = torch.tensor([1.0]), torch.tensor([[0.0, 2.0]]), torch.ones(1, 2)


def made(items: int = 15, **settings: Any) -> GRU4Rec:
    split = unskew.split(unskew.read(random_table(rows=600, users=20, items=items)))
    torch.manual_seed(0)
    model = build(GRU4Rec, split, tiny(GRU4Rec, dropout=0.0, **settings))
    with torch.no_grad():
        model.bias.weight.normal_()
    return model


def test_the_worked_softmax_is_of_the_negatives_alone() -> None:
    close(log_softmax_of_draws(NEGATIVE, ONCE).exp(), torch.tensor([[0.11920, 0.88080]]))


def test_the_worked_losses() -> None:
    assert bpr_max(POSITIVE, NEGATIVE, ONCE, 0.0).item() == pytest.approx(1.12693, abs=1e-5)
    assert bpr_max(POSITIVE, NEGATIVE, ONCE, 1.0).item() == pytest.approx(4.65012, abs=1e-5)
    assert top1_max(POSITIVE, NEGATIVE, ONCE).item() == pytest.approx(1.60053, abs=1e-5)


def test_the_worked_cross_entropy() -> None:
    model = made(items=3, loss="cross-entropy", width=2, hidden=2)
    with torch.no_grad():
        model.items.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 3.0], [0.5, 0.0]]))
        model.bias.weight.copy_(torch.tensor([[0.0], [0.0], [1.5]]))
        assert model.loss_of(torch.tensor([[1.0, 0.0]]), torch.tensor([0]), None).item() == pytest.approx(
            1.40761, abs=1e-5
        )


def test_a_known_fault_gives_another_number() -> None:
    """The positive in the softmax, the logarithm of a mean over everything, no penalty: as in a third-party
    version."""
    everything = torch.cat([POSITIVE[:, None], NEGATIVE], dim=1)
    faulty = (
        -(functional.softmax(everything, dim=1) * torch.sigmoid(POSITIVE[:, None] - everything))
        .mean()
        .log()
        .item()
    )
    assert faulty == pytest.approx(2.10075, abs=1e-5)
    assert bpr_max(POSITIVE, NEGATIVE, ONCE, 0.0).item() < 2


def test_each_row_has_its_own_logarithm() -> None:
    positive, negative = torch.tensor([3.0, -1.0]), torch.tensor([[0.0, 2.0], [1.0, 4.0]])
    both = bpr_max(positive, negative, torch.ones(2, 2), 1.0)
    close(both[:1], bpr_max(positive[:1], negative[:1], ONCE, 1.0))
    close(both[1:], bpr_max(positive[1:], negative[1:], ONCE, 1.0))


@pytest.mark.parametrize(
    "terms", [lambda *given: bpr_max(*given, 0.7), top1_max], ids=["bpr-max", "top1-max"]
)
def test_a_negative_drawn_twice_counts_twice(terms: Any) -> None:
    listed = torch.tensor([[0.3, 0.3, -1.0, 2.0, 2.0, 2.0]])
    found = terms(POSITIVE, torch.tensor([[0.3, -1.0, 2.0, 9.0]]), torch.tensor([[2.0, 1.0, 3.0, 0.0]]))
    close(found, terms(POSITIVE, listed, torch.ones(1, 6)))


# Far apart


def differentiated(
    terms: Any, positive: float, negative: list[float], times: list[float]
) -> tuple[float, Tensor]:
    """A term and its gradient, of the positive first."""
    inputs = torch.tensor([positive]).requires_grad_(), torch.tensor([negative]).requires_grad_()
    term = terms(*inputs, torch.tensor([times]))
    return term.item(), torch.cat([slope.flatten() for slope in torch.autograd.grad(term.sum(), inputs)])


@pytest.mark.parametrize("gap", [75.0, 100.0, 1000.0])
@pytest.mark.parametrize("itself", [False, True], ids=["", "the target drawn"])
def test_losses_far_apart_are_numbers_with_a_gradient(gap: float, itself: bool) -> None:
    """A target far ahead has nothing to learn, one far behind much; in plain floating point both are lost."""
    drawn = ([0.0, 0.0, gap], [1.0, 2.0, 0.0]) if itself else ([0.0, 0.0], [1.0, 2.0])
    behind_drawn = ([0.0, 0.0, -gap], drawn[1]) if itself else drawn

    def bpr(*given: Any) -> Tensor:
        return bpr_max(*given, 0.0)

    ahead, slope = differentiated(bpr, gap, *drawn)
    assert ahead == pytest.approx(0, abs=1e-6)
    assert slope.abs().max() < 1e-6
    behind, slope = differentiated(bpr, -gap, *behind_drawn)
    assert behind == pytest.approx(gap)
    close(slope[:3], torch.tensor([-1.0, 1 / 3, 2 / 3]))
    ahead, slope = differentiated(top1_max, gap, *drawn)
    assert ahead == pytest.approx(0.5)
    assert bool(slope.isfinite().all())
    behind, slope = differentiated(top1_max, -gap, *behind_drawn)
    assert behind == pytest.approx(1.5)
    assert bool(slope.isfinite().all())
    for positive in (gap, -gap):  # scores that are large themselves, and regularised
        for terms in (lambda *given: bpr_max(*given, 1.0), top1_max):
            value, slope = differentiated(terms, positive, [gap, -gap, 0.0], [1.0, 1.0, 1.0])
            assert np.isfinite(value)
            assert bool(slope.isfinite().all())


@pytest.mark.parametrize("gap", [0.0, 75.0, 1000.0])
def test_who_is_compared_with_nobody_has_nothing_to_learn(gap: float) -> None:
    """All draws are the target itself."""
    for terms in (lambda *given: bpr_max(*given, 0.7), top1_max):
        value, slope = differentiated(terms, gap, [gap, gap], [0.0, 0.0])
        assert value == 0
        assert not slope.any()


@pytest.mark.parametrize("loss", ["bpr-max", "top1-max"])
@pytest.mark.parametrize("scale", [75.0, 1000.0])
def test_a_model_with_large_scores_still_learns(loss: Any, scale: float) -> None:
    model = made(items=6, loss=loss, elu=0.0, samples=30, regularisation=0.0, width=2, hidden=2)
    with torch.no_grad():
        model.items.weight.copy_(
            scale * torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [0.5, 0.5], [0.0, 0.0]])
        )
        model.bias.weight.zero_()
    states = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]], requires_grad=True)
    reseed(1)
    assert set(model.draw(30).tolist()) == set(range(6))  # each target is among the draws
    reseed(1)
    value = model.loss_of(states, torch.tensor([0, 1, 3]), None)
    slopes = torch.autograd.grad(value, (states, model.items.weight, model.bias.weight))
    assert bool(value.isfinite())
    assert all(bool(slope.isfinite().all()) for slope in slopes)
    if loss == "bpr-max":
        assert slopes[0][0].abs().max() < 1e-12  # far ahead of all others
        assert slopes[0][1:].abs().amax(1).min() > 1  # far behind


def plainly(model: GRU4Rec, states: Tensor, targets: Tensor, weight: Tensor, drawn: Tensor) -> Tensor:
    """The loss row by row, negatives one by one."""
    terms = []
    for state, target, its in zip(states, targets, weight, strict=True):
        others = drawn[drawn != target]
        scores = model.bent(model.items.weight @ state + model.bias.weight[:, 0])
        positive, negative = scores[target], scores[others]
        fraction = functional.softmax(negative, dim=0)
        if model.config.loss == "top1-max":
            term = (fraction * (torch.sigmoid(negative - positive) + torch.sigmoid(negative**2))).sum()
        else:
            better = (fraction * torch.sigmoid(positive - negative)).sum()
            term = -better.log() + model.config.regularisation * (fraction * negative**2).sum()
        terms.append(term * its)
    return torch.stack(terms).mean()


@pytest.mark.parametrize("loss", ["bpr-max", "top1-max"])
@pytest.mark.parametrize("elu", [0.0, 0.5])
def test_the_loss_is_that_of_the_drawn_negatives(
    loss: Any, elu: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value and in gradient, over several chunks; a draw that is the target does not count."""
    monkeypatch.setattr(gru4rec, "CHUNK", 1)
    model = made(loss=loss, elu=elu, samples=40, regularisation=0.7)
    states, targets, weight = (
        torch.randn(70, 12, requires_grad=True),
        torch.randint(15, (70,)),
        torch.rand(70),
    )
    reseed(1)
    found = model.loss_of(states, targets, weight)
    reseed(1)
    expected = plainly(model, states, targets, weight, model.draw(40))
    close(found, expected)
    inputs = [states, model.items.weight, model.bias.weight]
    mine, plain = (torch.autograd.grad(value, inputs) for value in (found, expected))
    for one, same in zip(mine, plain, strict=True):
        assert bool(one.any())
        close(one, same)
    reseed(1)
    unit = model.loss_of(states, targets, None)
    reseed(1)
    close(unit, model.loss_of(states, targets, torch.ones(70)))


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_negatives_are_drawn_by_powers_of_counts(exponent: float) -> None:
    split = unskew.split(unskew.read(random_table(rows=600, users=20, items=15)))
    split.item_counts[3] = 0
    model = build(GRU4Rec, split, tiny(GRU4Rec, exponent=exponent))
    torch.manual_seed(0)
    found = torch.bincount(model.draw(100_000), minlength=split.known_items).numpy() / 100_000
    expected = split.item_counts[: split.known_items] ** exponent
    np.testing.assert_allclose(found, expected / expected.sum(), atol=0.006)
    assert found[3] == 0


def test_what_has_no_count_is_not_drawn_at_the_very_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    split = unskew.split(unskew.read(random_table(rows=600, users=20, items=15)))
    split.item_counts[0] = 0
    model = build(GRU4Rec, split, tiny(GRU4Rec))
    monkeypatch.setattr(torch, "rand", torch.zeros)
    assert model.draw(3).tolist() == [1, 1, 1]


@torch.no_grad()
def test_a_score_is_a_product_plus_the_bias_of_the_item() -> None:
    split = unskew.split(unskew.read(random_table(rows=600, users=20, items=15)))
    model, rows = made().eval(), some(split.log)
    context, item = model.context(rows)[:, :-1], rows.candidates_BC
    products = torch.einsum("bd,bcd->bc", context, model.items(item))
    close(model(rows), products + model.bias(item)[:, :, 0])
    assert not torch.allclose(model(rows), products, atol=1e-2)


@torch.no_grad()
def test_a_state_as_wide_as_the_items_is_not_mapped() -> None:
    ids, user = torch.tensor([[1, 4, 2]]), torch.zeros(1, dtype=torch.int64)
    same, other = made(width=12, hidden=12).eval(), made(width=12, hidden=10).eval()
    close(same.encode(user, ids), same.gru(same.items(ids))[0])
    assert other.encode(user, ids).shape == (1, 3, 12)
    assert "back.weight" in other.state_dict()
    assert "back.weight" not in same.state_dict()


def test_the_optimizer_is_the_authors() -> None:
    split = unskew.split(unskew.read(random_table(rows=600, users=20, items=15)))
    for name, kind in (("adagrad", torch.optim.Adagrad), ("adam", RowAdam)):
        optimizer = Trainer(made(optimizer=name), split, Training(learning_rate=0.05)).optimizers["next item"]
        assert type(optimizer) is kind
        assert optimizer.defaults["lr"] == 0.05
    assert GRU4Rec.Config().optimizer == "adagrad"
    assert torch.optim.Adagrad([torch.zeros(1)]).defaults["initial_accumulator_value"] == 0
