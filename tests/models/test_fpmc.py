"""FPMC: the worked scores and losses, its draws, and a training pass that agrees with how it is read."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.by_hand import sequences
from tests.helpers.contract import close
from unskew.data.batches.batch import Batch, SequenceBatch, bare_contexts
from unskew.data.log.views import PAD
from unskew.models import fpmc
from unskew.models.base import Training, build
from unskew.models.fpmc import FPMC, another
from unskew.nn.layers import reseed
from unskew.training.trainer import Trainer

I, J = 0, 1  # noqa: E741 (the names of the paper)
STRANGER = 999


def worked(history: int) -> FPMC:
    split = unskew.split(unskew.read(random_table(rows=60, users=3, items=2)))
    model = build(FPMC, split, FPMC.Config(width=2, history=history)).eval()
    with torch.no_grad():
        model.users.weight[0] = torch.tensor([1.0, 2.0])
        model.items.weight.copy_(torch.tensor([[0.5, 0.25, 0.4, 0.2], [0.1, 0.2, 0.2, 0.6]]))
        model.basket.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    return model


def asked(history: list[int], user: int = 0) -> Batch:
    context = bare_contexts(np.array([user]), np.array([history], np.int32).reshape(1, -1), np.array([0]))
    return context._replace(candidates_BC=torch.tensor([[I, J]]))


def window(items: list[int], wanted: list[bool], past: list[int] | None = None) -> SequenceBatch:
    return sequences([items], None if past is None else [past], [[int(each) for each in wanted]])


@pytest.mark.parametrize(("history", "scores", "loss"), [(2, (1.3, 0.9), 0.51302), (1, (1.2, 1.1), 0.64440)])
@torch.no_grad()
def test_the_worked_scores_and_losses(history: int, scores: tuple[float, float], loss: float) -> None:
    """The basket is I, J, or J alone; the target is I, and of two items the other one is the negative."""
    model = worked(history)
    close(model(asked([I, J])), torch.tensor([scores]))
    close(model(asked([PAD, PAD, I, J])), torch.tensor([scores]))
    last = [False, False, True]
    assert model.sbpr_loss(window([I, J, I], last)).item() == pytest.approx(loss, abs=1e-5)
    same_moment = [False, False, False, False, True]  # of the basket that the target is in, nothing is read
    assert model.sbpr_loss(window([I, J, J, J, I], same_moment, [0, 1, 2, 2, 2])).item() == pytest.approx(
        loss, abs=1e-5
    )


@torch.no_grad()
def test_older_items_than_the_basket_are_not_read() -> None:
    close(worked(1)(asked([I, J])), worked(1)(asked([J, J])), 0)
    assert not torch.equal(worked(2)(asked([I, J])), worked(2)(asked([J, J])))


@torch.no_grad()
def test_strangers_and_empty_histories() -> None:
    user, transition = torch.tensor([[1.0, 0.5]]), torch.tensor([[0.2, 0.6]])
    for nobody in (STRANGER, PAD):
        close(worked(1)(asked([J], nobody)), transition)
        close(worked(1)(asked([PAD], nobody)), torch.zeros(1, 2))
    close(worked(1)(asked([])), user)
    close(worked(1)(asked([PAD, PAD])), user)


def test_another_item_is_any_other_item() -> None:
    torch.manual_seed(0)
    item = torch.arange(5).repeat(4000)
    drawn = another(item, 5)
    pairs = torch.bincount(item * 5 + drawn, minlength=25).view(5, 5)
    assert pairs.diagonal().tolist() == [0] * 5
    assert torch.allclose(pairs[~torch.eye(5, dtype=torch.bool)] / 4000, torch.tensor(0.25), atol=0.04)
    assert another(torch.tensor([0]), 1).tolist() == [0]


@pytest.mark.parametrize("history", [1, 3])
def test_the_loss_is_bpr_between_scores_as_they_are_read(
    history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value, weights and gradient, for every event of real windows."""
    monkeypatch.setattr(fpmc, "ROWS", 7)
    split = unskew.split(unskew.read(random_table(rows=500, users=12, items=9)))
    torch.manual_seed(0)
    model = build(FPMC, split, FPMC.Config(width=4, history=history))
    batch = next(Trainer(model, split, Training(sequences=5)).samplers["S-BPR"].epoch())
    weight_BL = torch.rand(batch.items_BL.shape)
    reseed(3)
    found = model.sbpr_loss(batch._replace(weight_BL=weight_BL))
    reseed(3)
    other = iter(another(batch.items_BL[batch.target_BL], split.known_items).tolist())
    terms = []
    for b, at in batch.target_BL.nonzero().tolist():
        begin = int((batch.items_BL[b] == PAD).sum())
        before = batch.items_BL[b : b + 1, begin : begin + int(batch.past_BL[b, at])].numpy().astype(np.int32)
        context = bare_contexts(batch.user_B[b : b + 1].numpy(), before, np.array([0]))
        scores = model(
            context._replace(candidates_BC=torch.tensor([[int(batch.items_BL[b, at]), next(other)]]))
        )[0]
        terms.append(-functional.logsigmoid(scores[0] - scores[1]) * weight_BL[b, at])
    expected = torch.stack(terms).mean()
    close(found, expected)
    mine, plain = (torch.autograd.grad(loss, list(model.parameters())) for loss in (found, expected))
    for one, same in zip(mine, plain, strict=True):
        assert bool(one.any())
        close(one, same, 1e-6)


@torch.no_grad()
def test_a_later_item_changes_no_earlier_term() -> None:
    model = worked(2)

    def loss(items: list[int]) -> float:
        reseed(1)
        return model.sbpr_loss(window(items, [False, True, False, False])).item()

    assert loss([I, J, I, J]) == loss([I, J, J, I])
    assert loss([I, J, I, J]) != loss([J, J, I, J])


def test_the_tables_are_four_and_none_is_tied() -> None:
    assert {name: tuple(value.shape) for name, value in worked(1).named_parameters()} == {
        "users.weight": (3, 2),
        "items.weight": (2, 4),
        "basket.weight": (2, 2),
    }
