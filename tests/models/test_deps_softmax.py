"""The softmax loss of DEPS: a positive among its sampled negatives, corrected as other softmax losses are."""

from typing import Any

import pytest
import torch
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close, tiny
from unskew.models.base import Training, build
from unskew.models.deps import DEPS, NEGATIVES
from unskew.models.deps_causal import CausalDEPS
from unskew.nn.phases import Phase
from unskew.training.trainer import Trainer

KINDS = pytest.mark.parametrize("kind", [DEPS, CausalDEPS], ids=lambda kind: kind.name)


def model_of(kind: type[DEPS], split: unskew.Split, **settings: Any) -> tuple[DEPS, Phase]:
    torch.manual_seed(0)
    model = build(kind, split, tiny(kind, loss="softmax", **settings)).eval()
    return model, model.stages(1)[1].phases[-1]


def rows_of(model: DEPS, phase: Phase, split: unskew.Split, negatives: int = 5) -> Any:
    trainer = Trainer(model, split, Training(epochs=1, batch_size=64, negatives=negatives))
    return next(trainer.samplers[phase.name].epoch())


@KINDS
def test_it_is_the_softmax_of_the_positive_among_its_negatives(split: unskew.Split, kind: type[DEPS]) -> None:
    model, phase = model_of(kind, split, propensity="none")
    rows = rows_of(model, phase, split)
    assert rows.candidates_BC.shape[1] == 6
    with torch.no_grad():
        logits = model(rows)
        by_hand = [functional.cross_entropy(row, torch.tensor(0)) for row in logits]
        close(model.unbiased_loss(rows), torch.stack(by_hand).mean())


@KINDS
@pytest.mark.parametrize("method", ["ips", "ips-both"])
def test_only_the_positive_is_weighted(split: unskew.Split, kind: type[DEPS], method: Any) -> None:
    model, phase = model_of(kind, split, method=method, clip=0.001, strength=1.0)
    rows = rows_of(model, phase, split)
    with torch.no_grad():
        weight = model.propensity.weights(rows)[:, 0]
        scale = 0.001 if method == "ips-both" else 1 / model.correction._typical()
        assert float(weight.std()) > 0
        terms = functional.cross_entropy(
            model(rows), torch.zeros(len(weight), dtype=torch.int64), reduction="none"
        )
        close(model.unbiased_loss(rows), (terms * weight * scale).mean())


@KINDS
@pytest.mark.parametrize("method", ["logit-offset", "weighted-negatives"])
def test_offsets_are_added_to_the_logits(split: unskew.Split, kind: type[DEPS], method: Any) -> None:
    model, phase = model_of(kind, split, method=method, propensity="item-pro", strength=0.7)
    rows = rows_of(model, phase, split)
    items, times = rows.candidates_BC.numpy(), rows.times_B.numpy()[:, None]
    with torch.no_grad():
        offset = 0.7 * model.propensity.log_exposure(split.log, items, times)
        logits = model(rows) + offset
        target = torch.zeros(len(logits), dtype=torch.int64)
        close(model.unbiased_loss(rows), functional.cross_entropy(logits, target))
        assert abs(float(functional.cross_entropy(model(rows), target) - model.unbiased_loss(rows))) > 1e-3


@KINDS
def test_it_learns_from_positives_alone_and_has_many_negatives(kind: type[DEPS]) -> None:
    split = unskew.split(unskew.read(random_table(negatives=0.4)))
    model, phase = model_of(kind, split)
    assert phase.batches == {"deps": "positives", "deps-causal": "positive-prefixes"}[kind.name]
    sampler = Trainer(model, split, Training(epochs=1)).samplers[phase.name]
    made = next(sampler.epoch())
    assert made.candidates_BC.shape[1] == 1 + NEGATIVES
    assert made.labels_BC[:, 0].eq(1).all()
    assert made.labels_BC[:, 1:].eq(0).all()
    assert (made.shared is not None) == (kind is CausalDEPS)
    with pytest.raises(unskew.BadInput, match="at least 1"):
        Trainer(model, split, Training(epochs=1, negatives=0))


@KINDS
def test_auto_chooses_for_it_as_for_other_softmax_losses(kind: type[DEPS]) -> None:
    split = unskew.split(unskew.read(random_table(negatives=0.7)))
    auto = {"method": "auto", "propensity": "auto"}
    for loss, method in (("pointwise", "ips"), ("softmax", "logit-offset")):
        config = kind.resolve_auto(kind.Config(loss=loss, **auto), split)
        assert config.method == method


def test_the_first_candidates_of_a_batch(split: unskew.Split) -> None:
    """They give what the whole batch gives for its first candidates, from fewer audiences."""
    for kind in (DEPS, CausalDEPS):
        model, phase = model_of(kind, split)
        rows = rows_of(model, phase, split)
        first = rows.of_targets()
        assert first.candidates_BC.shape == (len(rows.user_B), 1)
        assert len(first.audiences.row_N) < len(rows.audiences.row_N)
        with torch.no_grad():
            close(model(first), model(rows)[:, :1])
            close(model.propensity.weights(first), model.propensity.weights(rows)[:, :1])
