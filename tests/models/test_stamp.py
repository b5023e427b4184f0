"""STAMP: the worked numbers of its attention and score, and the attention's own gradient."""

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close
from unskew.data.batches.batch import Batch, bare_contexts
from unskew.data.log.views import PAD
from unskew.models import stamp
from unskew.models.base import build
from unskew.models.stamp import STAMP, running_mean

FIRST, SECOND, CANDIDATE = 0, 1, 2


def worked(add_mean: bool) -> STAMP:
    """Width 2, all matrices the identity, w0 = (1, 1), no biases."""
    split = unskew.split(unskew.read(random_table(rows=100, users=5, items=4)))
    model = build(STAMP, split, STAMP.Config(width=2, add_mean=add_mean)).eval()
    with torch.no_grad():
        for layer in (model.of_item, model.of_last, model.of_mean, model.memory, model.last):
            layer.weight.copy_(torch.eye(2))
        model.strength.fill_(1.0)
        model.items.weight[:3] = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    return model


def asked(history: list[int]) -> Batch:
    context = bare_contexts(np.array([0]), np.array([history], np.int32), np.array([0]))
    return context._replace(candidates_BC=torch.tensor([[CANDIDATE]]))


@torch.no_grad()
def test_the_worked_attention() -> None:
    model = worked(add_mean=True)
    x = model.items(torch.tensor([[FIRST, SECOND]]))
    alpha = model.attention(x, running_mean(x))[0]
    close(alpha[1], torch.tensor([1.63515, 1.54660]))
    assert alpha[0, 1] == 0  # the second item comes after the first
    assert alpha[1].sum() > 1  # and no softmax


@pytest.mark.parametrize(("add_mean", "score"), [(False, 0.69551), (True, 0.73660)])
@torch.no_grad()
def test_the_worked_score(add_mean: bool, score: float) -> None:
    model = worked(add_mean)
    assert model(asked([FIRST, SECOND])).item() == pytest.approx(score, abs=1e-5)
    assert model(asked([PAD, PAD, FIRST, SECOND])).item() == pytest.approx(score, abs=1e-5)
    assert model(asked([SECOND, FIRST, SECOND])).item() != pytest.approx(score, abs=1e-3)


def test_the_mean_is_added_by_default() -> None:
    assert STAMP.Config().add_mean


def plain_attention(item: Tensor, last: Tensor, strength: Tensor) -> Tensor:
    return (torch.sigmoid(item[:, None] + last[:, :, None]) @ strength).tril()


@pytest.mark.parametrize("chunk", [1, 30, 10_000])
def test_attention_in_chunks_is_attention(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In value and in gradient."""
    monkeypatch.setattr(stamp, "CHUNK", chunk)
    torch.manual_seed(0)
    inputs = [
        torch.randn(5, 4, 3, dtype=torch.float64),
        torch.randn(5, 4, 3, dtype=torch.float64),
        torch.randn(3, dtype=torch.float64),
    ]
    for value in inputs:
        value.requires_grad_()
    outside = torch.randn(5, 4, 4, dtype=torch.float64)
    found, expected = stamp._TriangularAttention.apply(*inputs), plain_attention(*inputs)
    close(found, expected, 1e-12)
    of_found, of_expected = (
        torch.autograd.grad((alpha * outside).sum(), inputs) for alpha in (found, expected)
    )
    for mine, plain in zip(of_found, of_expected, strict=True):
        close(mine, plain, 1e-12)


def test_attention_survives_extremes() -> None:
    item, last = torch.tensor([[[200.0], [-200.0]]]), torch.tensor([[[0.0], [-3e4]]])
    alpha = stamp._TriangularAttention.apply(item.requires_grad_(), last.requires_grad_(), torch.ones(1))
    assert alpha[0, 0, 0] == 1
    assert 0 <= alpha[0, 1, 1] < 1e-30
    assert all(bool(slope.isfinite().all()) for slope in torch.autograd.grad(alpha.sum(), (item, last)))
