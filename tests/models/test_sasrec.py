"""SASRec's worked number, and what every model promises that reads a history once: each state knows its
prefix, and nothing else."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.contract import HISTORY, builder, close
from unskew.data.batches.batch import bare_contexts
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, NextItem, build
from unskew.models.sasrec import SASRec
from unskew.nn.losses import sampled_softmax

READERS = [kind for kind in MODELS.values() if issubclass(kind, NextItem)]
LENGTHS = (HISTORY, 5, 3, 1, 1)

every_reader = pytest.mark.parametrize("kind", READERS, ids=lambda kind: kind.name)


def read_model(kind: type[NextItem]) -> NextItem:
    made = builder(kind)(unskew.split(unskew.read(random_table(rows=600, users=20, items=15))))
    assert isinstance(made, NextItem)
    return made


def histories(model: NextItem) -> tuple[Tensor, Tensor]:
    """Some users with histories of all lengths, padded on the right."""
    random = np.random.default_rng(0)
    ids = np.full((len(LENGTHS), HISTORY), PAD)
    for row, length in zip(ids, LENGTHS, strict=True):
        row[:length] = random.integers(0, model.items.known, length)
    return torch.arange(len(LENGTHS)), torch.from_numpy(ids)


def test_the_readers_are_those_that_should_be() -> None:
    assert {"sasrec", "gsasrec", "gru4rec", "stamp"} <= {kind.name for kind in READERS}


@every_reader
@torch.no_grad()
def test_a_later_item_changes_no_earlier_state(kind: type[NextItem]) -> None:
    model = read_model(kind)
    user, ids = histories(model)
    states = model.states(user, ids)
    for t in range(HISTORY):
        other = ids.clone()
        other[:, t:] = (other[:, t:] + 1) % model.items.known
        found = model.states(user, other)
        close(found[:, : t + 1], states[:, : t + 1])
        assert not torch.allclose(found[0, t + 1], states[0, t + 1], atol=1e-4)


@every_reader
@torch.no_grad()
def test_padding_changes_no_state(kind: type[NextItem]) -> None:
    model = read_model(kind)
    user, ids = histories(model)
    states = model.states(user, ids)
    shorter = ids[1:, : LENGTHS[1]]
    close(model.states(user[1:], shorter), states[1:, : LENGTHS[1] + 1])


@every_reader
@torch.no_grad()
def test_one_pass_gives_the_state_of_every_prefix(kind: type[NextItem]) -> None:
    model = read_model(kind)
    user, ids = histories(model)
    states = model.states(user, ids)
    nothing = model.states(user, ids[:, :0])
    assert nothing.shape[1] == 1
    close(nothing[:, 0], states[:, 0])
    for row, length in enumerate(LENGTHS):
        for n in range(1, length + 1):
            alone = model.states(user[row : row + 1], ids[row : row + 1, :n])
            close(alone[0, -1], states[row, n])


@every_reader
@torch.no_grad()
def test_a_context_is_the_state_after_its_whole_history(kind: type[NextItem]) -> None:
    model = read_model(kind)
    user, ids = histories(model)
    left = np.stack(
        [
            np.concatenate([np.full(HISTORY - n, PAD), row[:n]])
            for row, n in zip(ids.numpy(), LENGTHS, strict=True)
        ]
    )
    found = model.context(bare_contexts(user.numpy(), left.astype(np.int32), np.zeros(len(user), np.int64)))
    expected = model.states(user, ids)[torch.arange(len(user)), torch.tensor(LENGTHS)]
    close(found[:, : expected.shape[1]], expected)


def test_the_worked_cross_entropy() -> None:
    """Logits: 2 for the target, 1 and 0 for the others."""
    split = unskew.split(unskew.read(random_table(rows=60, users=4, items=3)))
    model = build(SASRec, split, SASRec.Config(width=2))
    with torch.no_grad():
        model.items.weight.copy_(torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 5.0]]))
        state, target = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 1])
        assert model.loss_of(state, target, None).item() == pytest.approx(0.40761, abs=1e-5)
        assert model.loss_of(state, target, torch.tensor([3.0, 1.0])).item() == pytest.approx(
            2 * 0.40761, abs=1e-4
        )
        far = model.loss_of(state, torch.tensor([1, 0]), None)
    close(far, functional.cross_entropy(torch.tensor([[1.0, 2.0, 0.0]] * 2), torch.tensor([1, 0])))


@torch.no_grad()
def test_negatives_of_the_sampled_softmax_are_drawn_for_each_batch(small_split: unskew.Split) -> None:
    plain, sampled = (
        build(SASRec, small_split, SASRec.Config(width=8, samples=samples)) for samples in (None, 3)
    )
    assert isinstance(plain, SASRec)
    assert isinstance(sampled, SASRec)
    sampled.load_state_dict(plain.state_dict())
    states, targets, weight = torch.randn(6, 8), torch.arange(6), torch.tensor([1.0, 2, 0, 1, 1, 3])
    torch.manual_seed(1)
    found = sampled.loss_of(states, targets, weight)
    torch.manual_seed(1)
    expected = sampled_softmax(states, targets, sampled.items.table(), 3, weight) / 6
    assert float(found) == pytest.approx(float(expected))
    assert float(sampled.loss_of(states, targets, weight)) != pytest.approx(float(found))
    many = build(SASRec, small_split, SASRec.Config(width=8, samples=200_000))
    many.load_state_dict(plain.state_dict())
    assert isinstance(many, SASRec)
    whole = float(plain.loss_of(states, targets, weight))
    assert float(many.loss_of(states, targets, weight)) == pytest.approx(whole, abs=0.02)


@torch.no_grad()
def test_small_embeddings_are_read_as_they_are(small_split: unskew.Split) -> None:
    model = build(SASRec, small_split, SASRec.Config(width=64, deviation=0.02, dropout=0.0))
    assert isinstance(model, SASRec)
    assert float(model.items.weight.std()) == pytest.approx(0.02, rel=0.1)
    usual = build(SASRec, small_split, SASRec.Config(width=64, dropout=0.0))
    assert isinstance(usual, SASRec)
    assert float(usual.items.weight.std()) == pytest.approx(1 / 8, rel=0.1)
    usual.load_state_dict(model.state_dict())
    usual.items.weight.data /= 8  # the factor sqrt(64)
    user, ids = torch.tensor([0]), torch.tensor([[1, 2, 3]])
    close(model.eval().states(user, ids), usual.eval().states(user, ids))


def test_the_preset_is_the_recipe_of_the_published_table() -> None:
    model = unskew.create_model("sasrec", preset="sampled")
    assert isinstance(model.config, SASRec.Config)
    assert (model.config.samples, model.config.layers, model.config.deviation) == (1024, 1, 0.02)
    assert model.training.patience >= 5
