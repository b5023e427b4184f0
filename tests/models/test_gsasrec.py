"""gSASRec: the worked numbers of its loss, its negatives, and two ways to look scores up that agree."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close, tiny
from unskew.api.create import create_model
from unskew.models import gsasrec
from unskew.models.base import build
from unskew.models.gsasrec import GSASRec, beta, generalised_bce


def made(**settings: Any) -> GSASRec:
    split = unskew.split(unskew.read(random_table(rows=400, users=12, items=11)))
    torch.manual_seed(0)
    return build(GSASRec, split, tiny(GSASRec, **settings))


def test_the_worked_powers() -> None:
    assert 256 / (3416 - 1) == pytest.approx(0.074963, abs=1e-6)
    assert beta(256, 3416, 0.75) == pytest.approx(0.306223, abs=1e-6)
    assert beta(2, 11, 0.75) == pytest.approx(0.4)
    assert beta(2, 11, 0.0) == 1
    assert beta(2, 11, 1.0) == pytest.approx(0.2)  # the sampling rate itself


def test_the_worked_losses() -> None:
    scores = torch.tensor([[1.0, 0.0, -1.0]])
    assert generalised_bce(scores, 0.4).item() == pytest.approx(0.37724, abs=1e-5)
    assert generalised_bce(scores, 1.0).item() == pytest.approx(0.43989, abs=1e-5)
    plain = functional.binary_cross_entropy_with_logits(scores, torch.tensor([[1.0, 0.0, 0.0]]))
    close(generalised_bce(scores, 1.0)[0], plain)


def test_the_softplus_form_is_the_authors_transform() -> None:
    """They score the positive with gamma(s), for which log sigmoid(gamma(s)) = beta log sigmoid(s)."""
    assert math.log1p(math.exp(-2.01370)) == pytest.approx(0.4 * math.log1p(math.exp(-1.0)), abs=1e-6)
    transformed = generalised_bce(torch.tensor([[2.01370, 0.0, -1.0]]), 1.0)
    close(transformed, generalised_bce(torch.tensor([[1.0, 0.0, -1.0]]), 0.4))


@pytest.mark.parametrize("looked_up", [0, 1000], ids=["vectors", "scores"])
@pytest.mark.parametrize("chunk", [1, 100, 1 << 19])
def test_both_ways_are_the_weighted_sum_of_terms(
    looked_up: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In value and in gradient."""
    monkeypatch.setattr(gsasrec, "LOOKED_UP", looked_up)
    monkeypatch.setattr(gsasrec, "CHUNK", chunk)
    torch.manual_seed(0)
    states, vectors = torch.randn(9, 4, requires_grad=True), torch.randn(20, 4, requires_grad=True)
    ids, weight = torch.randint(20, (9, 6)), torch.rand(9)
    ids[0, 2] = ids[0, 1] = ids[0, 0]  # drawn twice, and the target at that
    found = gsasrec._GeneralisedBCE.apply(states, vectors, ids, weight, 0.3)
    expected = (generalised_bce((states[:, None] * vectors[ids]).sum(2), 0.3) * weight).sum()
    close(found, expected)
    mine, plain = (torch.autograd.grad(2 * loss, (states, vectors)) for loss in (found, expected))
    for one, same in zip(mine, plain, strict=True):
        close(one, same)


def drawn_by(
    model: GSASRec, targets: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> tuple[torch.Tensor, float]:
    seen: list[Any] = []

    def spy(*given: Any) -> torch.Tensor:
        seen.append((given[2], given[4]))
        return torch.zeros(())

    monkeypatch.setattr(gsasrec._GeneralisedBCE, "apply", spy)
    model.loss_of(torch.zeros(len(targets), model.config.width), targets, None)
    return seen[0]


def test_negatives_are_uniform_fresh_and_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    model, targets = made(samples=8), torch.full((3000,), 4)
    torch.manual_seed(0)
    ids, power = drawn_by(model, targets, monkeypatch)
    assert ids.shape == (3000, 9)
    assert torch.equal(ids[:, 0], targets)
    assert len(ids.unique(dim=0)) > 2900
    assert torch.allclose(torch.bincount(ids[:, 1:].flatten()) / 24_000, torch.tensor(1 / 11), atol=0.01)
    assert power == pytest.approx(beta(8, 11, 0.75))


def test_no_more_negatives_than_there_are_other_items(monkeypatch: pytest.MonkeyPatch) -> None:
    ids, power = drawn_by(made(samples=256), torch.tensor([1, 2]), monkeypatch)
    assert ids.shape == (2, 11)
    assert power == 1


@pytest.mark.parametrize("output", ["separate", "tied"])
def test_either_output_table_is_saved_and_loaded(output: str, tmp_path: Path) -> None:
    """A file holds each tensor once, also where two tables are one."""
    split = unskew.split(unskew.read(random_table(rows=400, users=12, items=11)))
    model = create_model("gsasrec", {"output": output, "width": 4, "layers": 1, "epochs": 1}).fit(
        split, tmp_path / "run"
    )
    there = unskew.load(tmp_path / "run")
    assert there.recommend(users=["u1", "u2"]).table.equals(model.recommend(users=["u1", "u2"]).table)


def test_the_output_table() -> None:
    separate, tied = made(output="separate"), made(output="tied")
    assert GSASRec.Config().output == "separate"
    assert {name for name, _ in separate.named_parameters()} - {
        name for name, _ in tied.named_parameters()
    } == {"candidates.weight"}
    ids = torch.arange(11)
    close(tied.vectors(ids), tied.items.weight)
    assert separate.candidates is not None
    close(separate.vectors(ids), separate.candidates.weight)
    assert not torch.equal(separate.candidates.weight, separate.items.weight)
