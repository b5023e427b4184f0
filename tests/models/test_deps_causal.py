"""The variant of DEPS that reads each sequence once: the same scores and weights as when every prefix is read
again."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.by_hand import sequences
from tests.helpers.contract import AUDIENCE, HISTORY, builder, catalog_equals_forward, close
from tests.helpers.runs import train
from tests.models.test_deps import ABLATIONS
from unskew.data.batches.batch import Batch, as_prefixes, batch
from unskew.data.batches.samplers import Sampler, Sampling
from unskew.data.log.views import PAD
from unskew.models import deps_causal
from unskew.models.base import Training, build
from unskew.models.deps import DEPS
from unskew.models.deps_causal import CausalDEPS
from unskew.nn.layers import states_after
from unskew.propensity.estimators import DualGRU

EVERYTHING = 10_000  # longer than any sequence here: nothing is cut


def model_of(split: unskew.Split, length: int = EVERYTHING) -> CausalDEPS:
    config = CausalDEPS.Config(
        history=length, audience=length, width=16, inner=32, hidden=8, dropout=0.3, hidden_ids=0.3
    )
    return build(CausalDEPS, split, config).eval()


def pair(split: unskew.Split, length: int = EVERYTHING) -> tuple[Batch, Batch]:
    """A batch that shares its sequences, and the same pairs with each prefix on its own."""
    sampler = Sampler(
        split, Sampling(batch_size=96, negatives=2, history=length, audience=length, shared=True)
    )
    shared = next(sampler.epoch())
    asked = [part.numpy() for part in (shared.user_B, shared.times_B, shared.candidates_BC, shared.labels_BC)]
    plain = batch(split.log, asked[0], asked[1], asked[2], asked[3], length, length)
    return shared, plain


@torch.no_grad()
def test_reading_once_gives_the_scores_and_weights_of_reading_every_prefix(split: unskew.Split) -> None:
    model, (shared, plain) = model_of(split), pair(split)
    assert len(shared.histories.ids_WL) < len(plain.history_BL) / 2
    assert len(shared.audiences.ids_WL) < len(plain.audience_AM) / 2
    close(model(shared), model(plain))
    close(model.propensity.weights(shared), model.propensity.weights(plain))
    assert float(model(plain).std()) > 0.01


@pytest.mark.parametrize("length", [EVERYTHING, 5])
@pytest.mark.parametrize("size", [7, 1024], ids=lambda size: f"blocks of {size}")
@torch.no_grad()
def test_a_catalogue_reads_audiences_with_one_beginning_once(
    split: unskew.Split, length: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each audience at each moment, in any order, has the part that it has by itself."""
    monkeypatch.setattr(deps_causal, "ENCODED", size)
    model, view = model_of(split), split.log.audiences
    item = np.random.default_rng(0).permutation(np.repeat(np.arange(len(split.log.items)), 9))
    time = np.arange(len(item)) % 300
    start, end = view.before(item, time, length)
    found = model.audience_sides(view, start, end)
    rows = torch.from_numpy(view.padded(start, end).astype(np.int64))
    close(found, model.audience_side(rows))
    assert float(found.std()) > 0.01
    assert model.audience_sides(view, start[:0], end[:0]).shape == (0, found.shape[1])
    read: list[int] = []
    encode = model.audience_encoder.means

    def means(x_BLD: Tensor) -> Tensor:
        read.append(len(x_BLD))
        return encode(x_BLD)

    monkeypatch.setattr(model.audience_encoder, "means", means)
    model.audience_sides(view, start, end)
    assert sum(read) == len(np.unique(start))


def test_gradients_are_the_same_too(split: unskew.Split) -> None:
    model, (shared, plain) = model_of(split), pair(split)
    gradients: list[list[Tensor]] = []
    for one in (shared, plain):
        model.zero_grad()
        model.unbiased_loss(one).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for mine, its in zip(*gradients, strict=True):
        close(mine, its)


@torch.no_grad()
def test_a_prefix_has_the_mean_of_its_own_states(split: unskew.Split) -> None:
    model = model_of(split)
    encoder = model.history_encoder
    ids = torch.tensor([[PAD, PAD, PAD], [PAD, PAD, 3], [PAD, 3, 1], [3, 1, 2]])
    found = states_after(as_prefixes(ids), lambda ids_BL: encoder.means(model.items(ids_BL)))
    assert found[0].tolist() == [0.0] * 16
    states = encoder(model.items(torch.tensor([[3, 1, 2]])))[0]
    close(found[1:], torch.stack([states[: n + 1].mean(0) for n in range(3)]))


def test_stage_one_predicts_the_next_id_and_stage_two_reads_once(split: unskew.Split) -> None:
    model = model_of(split)
    assert isinstance(model.propensity, DualGRU)
    first, second = model.stages(3)
    assert [phase.batches for phase in first.phases] == ["sequences", "sequences"]
    assert [phase.batches for phase in second.phases] == ["sequences", "prefixes"]
    assert issubclass(CausalDEPS, DEPS)


def test_sequences_of_one_id_have_nothing_to_predict(split: unskew.Split) -> None:
    """Nor have those of one moment."""
    model = model_of(split)
    for nothing_before in (sequences([[4]]), sequences([[4, 5, 6]], past=[[0, 0, 0]])):
        model.zero_grad()
        loss = model.masked_loss(nothing_before)
        loss.backward()
        assert float(loss.detach()) == 0
        assert model.items.unknown.grad is not None
        assert not model.items.unknown.grad.any()
    assert float(model.masked_loss(sequences([[4, 5, 6]], past=[[0, 0, 2]])).detach()) > 0


def test_all_of_its_parameters_have_a_gradient_in_stage_one_and_two(split: unskew.Split) -> None:
    model = builder(CausalDEPS)(split)
    assert model.trained_parameter_names() == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("name", ABLATIONS)
def test_it_has_the_same_ablations(split: unskew.Split, name: str) -> None:
    """All of its stages run, and its catalogue is its forward, whatever is left out."""
    config = dataclasses.replace(
        ABLATIONS[name], history=HISTORY, audience=AUDIENCE, width=8, layers=1, unsupervised_epochs=1
    )
    network, _ = train(split, "deps-causal", config, Training(epochs=1, batch_size=256))
    catalog_equals_forward(lambda _: network.eval(), split)
