"""Large vocabularies: gradients and updates of the rows that were read, and a softmax that is named."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.helpers.contract import first_batch, phases, tiny
from unskew.models.base import MODELS, Recommender, Training, build
from unskew.nn import vocabulary
from unskew.nn.layers import Embeddings, reseed
from unskew.nn.losses import cross_entropy
from unskew.nn.vocabulary import RowAdam, clip_gradients, is_sampled, softmax_in_words, softmax_of
from unskew.training.run_card import training_identity
from unskew.training.trainer import Trainer

IDS, WIDTH = 50, 4


def learned(by_rows: bool, steps: list[list[int]], **settings: float) -> tuple[Tensor, Tensor]:
    """The vectors of a table before and after some steps, each of which reads some ids."""
    torch.manual_seed(0)
    table = Embeddings(IDS, WIDTH)
    before = table.weight.detach().clone()
    optimizer = RowAdam([table.weight], lr=0.1, fused=True, **settings)
    for ids in steps:
        optimizer.zero_grad()
        with softmax_of("sampled", by_rows):
            (table(torch.tensor(ids)) ** 3).sum().backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse == by_rows
        optimizer.step()
    return before, table.weight.detach()


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"amsgrad": True}], ids=str)
def test_where_every_row_is_read_it_is_adam(settings: dict[str, float]) -> None:
    steps = [list(range(IDS)) * 2, list(range(IDS)), [0, *range(IDS)]]
    torch.testing.assert_close(learned(True, steps, **settings)[1], learned(False, steps, **settings)[1])


def test_rows_that_were_not_read_stay() -> None:
    before, after = learned(True, [[3, 3, 5], [5, 7]], weight_decay=0.1)
    changed = (before != after).any(1).nonzero()[:, 0].tolist()
    assert changed == [3, 5, 7]


def test_the_gradient_of_rows_is_the_gradient() -> None:
    """Of the sampled softmax, with a bias: the same draws give the same loss and the same gradients."""
    found = []
    for by_rows in (True, False):
        torch.manual_seed(1)
        table, bias = Embeddings(IDS, WIDTH), Embeddings(IDS, 1)
        states = torch.randn(6, WIDTH)
        reseed(2)
        with softmax_of("sampled", by_rows):
            loss = cross_entropy(states, table, torch.arange(6), bias=bias)
            loss.backward()
        gradients = [parameter.grad for parameter in (table.weight, bias.weight)]
        found.append((loss.detach(), *(g.to_dense() if g.is_sparse else g for g in gradients)))
        assert gradients[0].is_sparse == by_rows
    for rows, whole in zip(*found, strict=True):
        torch.testing.assert_close(rows, whole)


@pytest.mark.parametrize("most", [0.5, 100.0])
def test_gradients_of_rows_are_clipped_by_the_same_norm(most: float) -> None:
    dense, sparse, other = (nn.Parameter(torch.zeros(IDS, 2)) for _ in range(3))
    values, rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([[4, 9, 4]])
    other.grad = torch.ones(IDS, 2)
    sparse.grad = torch.sparse_coo_tensor(rows, values, (IDS, 2), check_invariants=True)
    dense.grad = sparse.grad.to_dense()
    clip_gradients([sparse, other], most)
    clipped, of_other = sparse.grad.to_dense(), other.grad
    other.grad = torch.ones(IDS, 2)
    nn.utils.clip_grad_norm_([dense, other], most)
    torch.testing.assert_close(clipped, dense.grad)
    torch.testing.assert_close(of_other, other.grad)


def test_large_vocabularies_are_sampled_and_the_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "FULL_SOFTMAX", 1000)
    assert [is_sampled(ids) for ids in (1000, 1001)] == [False, True]
    assert is_sampled(3, "sampled")
    assert not is_sampled(2000, "full")
    words = softmax_in_words("auto", {"items": 5000, "users": 10})
    assert words == "items: sampled, 2,048 of 5,000 ids (auto: more than 1,000); users: full, 10 ids"
    assert softmax_in_words("sampled", {"items": 5}) == "items: sampled, 2,048 of 5 ids (as asked for)"


def test_what_auto_does_tells_no_runs_apart() -> None:
    auto, full = (dataclasses.asdict(Training(softmax=kind)) for kind in ("auto", "full"))
    assert "softmax" not in training_identity(auto)
    assert training_identity(full)["softmax"] == "full"


# Models whose steps never touch a whole table. (`gsasrec` and `fpmc` still do.)
BY_ROWS = ("sasrec", "gru4rec", "bert4rec", "deps", "deps-causal", "lightsans", "bst", "stamp", "ubpr")


@pytest.mark.parametrize("name", BY_ROWS)
def test_no_gradient_of_a_table_is_dense(name: str, small_split: unskew.Split) -> None:
    kind: type[Recommender] = MODELS[name]
    more = {"loss": "cross-entropy", "optimizer": "adam"} if name == "gru4rec" else {}
    network = build(kind, small_split, tiny(kind, **more)).train()
    tables = [module.weight for module in network.modules() if isinstance(module, Embeddings)]
    trainer = Trainer(network, small_split, Training(batch_size=64, sequences=16, softmax="sampled"))
    for phase in phases(network):
        network.zero_grad()
        with softmax_of("sampled", isinstance(trainer.optimizers[phase.name], RowAdam)):
            phase.loss(first_batch(network, phase, small_split)).backward()
        for table in tables:
            assert table.grad is None or table.grad.is_sparse, phase.name
    trainer.run()
    assert all(bool(value.isfinite().all()) for value in network.state_dict().values())
