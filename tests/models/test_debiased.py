"""Any backbone, weighted: each pair and each event has the weight of its own propensity, on the scale that
its settings say."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.conftest import random_table
from tests.helpers.contract import close, tiny
from tests.helpers.runs import train
from unskew.data.batches.batch import Batch, SequenceBatch, batch_of_rows
from unskew.data.batches.samplers import Sampler
from unskew.models.base import MODELS, Training, build, model_named
from unskew.models.debiased import Debiased
from unskew.nn.layers import is_real
from unskew.nn.phases import Phase
from unskew.propensity.correction import ROWS
from unskew.propensity.estimators import Frequency
from unskew.training.trainer import Trainer

SHORT = Training(epochs=2, batch_size=128, sequences=16, valid_examples=50, learning_rate=0.01)
READS = {"past_items": 5, "past_users": 4, "propensity_width": 6, "propensity_epochs": 1}
CLIP = 0.35
PAPER: dict[str, Any] = {"method": "ips-both", "propensity": "dual", "clip": CLIP}


def with_propensities(scale: float = 1.0, negatives: float = 0.7) -> unskew.Split:
    """Every row has a propensity of its own, and the rows of a user are of all sizes."""
    table = random_table(rows=1500, users=25, times=300, negatives=negatives)
    given = scale * (0.05 + 0.95 * np.random.default_rng(7).random(table.num_rows))
    return unskew.split(unskew.read(table.append_column("propensity", [given])))


@pytest.fixture(scope="module")
def logged() -> unskew.Split:
    return with_propensities()


def debiased(
    split: unskew.Split, backbone: str = "sasrec", more: dict[str, Any] | None = None, **weighting: Any
) -> Debiased:
    torch.manual_seed(0)
    kind = model_named(f"debiased-{backbone}")
    config = kind.Config(
        backbone=tiny(MODELS[backbone], dropout=0.0, **more or {}),
        **PAPER | READS | weighting,
    )
    made = build(kind, split, config)
    assert isinstance(made, Debiased)
    return made


def batch_weights(model: Debiased, split: unskew.Split, name: str) -> list[tuple[Any, Tensor]]:
    """Each batch of an epoch of a phase of the backbone, as the trainer makes it, and the weights that its
    loss is given."""
    its = next(phase for stage in model.backbone.stages(1) for phase in stage.phases if phase.name == name)
    given: list[Tensor] = []

    def spy(batch: Batch | SequenceBatch) -> Tensor:
        weight = batch.weight_BC if isinstance(batch, Batch) else batch.weight_BL
        assert weight is not None
        given.append(weight)
        return torch.zeros(())

    phase = model._corrected(Phase(its.name, its.batches, spy, its.parameters))
    sampler = Trainer(model, split, SHORT).samplers[name]
    return [(batch, (phase.loss(batch), given[-1])[1]) for batch in sampler.epoch()]


def logged_of(split: unskew.Split, batch: SequenceBatch) -> Tensor:
    """The propensity of the row that each target is, found by user, item and the order of times."""
    return torch.from_numpy(np.asarray(split.log.propensity[batch.event_BL[batch.target_BL].numpy()])).float()


# Whose weight is whose


def test_every_event_has_the_weight_of_its_own_row(logged: unskew.Split) -> None:
    model, events = debiased(logged, propensity="logged"), 0
    log = logged.log
    for batch, weight in batch_weights(model, logged, "next item"):
        row = batch.event_BL[batch.target_BL].numpy()
        np.testing.assert_array_equal(log.item[row], batch.items_BL[batch.target_BL].numpy())
        close(weight[batch.target_BL], CLIP / logged_of(logged, batch).clamp(min=CLIP))
        events += len(row)
    assert events > 200
    assert len(np.unique(log.propensity)) == len(log)  # a neighbour's would be another one


def test_every_pair_has_the_weight_of_its_own_row(logged: unskew.Split) -> None:
    model = debiased(logged, "din", propensity="logged")
    for batch, weight in batch_weights(model, logged, "clicks"):
        assert batch.logged_BC is not None
        close(weight, CLIP / batch.logged_BC.clamp(min=CLIP))
        assert weight.shape == batch.candidates_BC.shape


@pytest.mark.parametrize("backbone", ["sasrec", "din"])
def test_the_estimator_reads_what_it_was_told_to_whatever_its_backbone_reads(
    logged: unskew.Split, backbone: str
) -> None:
    """The weight of a row is that of a batch which holds just that past, be it an event of a history or a
    pair of a batch."""
    model = debiased(logged, backbone, {"history": 9, "audience": 7})
    with torch.no_grad():
        for parameter in model.propensity.parameters():
            parameter.mul_(4)  # far from uniform, so that a longer past is another weight
    batch, weight = max(
        batch_weights(model, logged, {"sasrec": "next item", "din": "clicks"}[backbone]),
        key=lambda found: found[1].numel(),
    )
    if isinstance(batch, SequenceBatch):
        rows = batch.event_BL[batch.target_BL].numpy()
        expected = model.propensity.weights(batch_of_rows(logged.log, rows, 5, 4))[:, 0]
        longer = model.propensity.weights(batch_of_rows(logged.log, rows, 9, 7))[:, 0]
        weight = weight[batch.target_BL]
    else:
        one_by_one = [
            (int(u), int(i), int(t))
            for u, i, t in zip(batch.user_B, batch.candidates_BC[:, 0], batch.times_B, strict=True)
        ]
        place = {
            (int(u), int(i), int(t)): row
            for row, (u, i, t) in enumerate(zip(*columns(logged.log), strict=True))
        }
        rows = np.array([place[each] for each in one_by_one])
        expected = model.propensity.weights(batch_of_rows(logged.log, rows, 5, 4))[:, 0]
        longer = model.propensity.weights(batch_of_rows(logged.log, rows, 9, 7))[:, 0]
        weight = weight[:, 0]
    close(weight, CLIP * expected)
    assert not torch.allclose(expected, longer, rtol=1e-3)


def columns(log: unskew.Log) -> tuple[Any, Any, Any]:
    return log.user, log.item, log.time


def test_weights_of_rows_follow_the_estimator(logged: unskew.Split) -> None:
    """They are computed once after each epoch of the estimator; a step of it makes them old."""
    for weights in ("clipped", "ips"):
        model = debiased(logged, weights=weights, clip=0.001)
        before = batch_weights(model, logged, "next item")
        assert torch.equal(batch_weights(model, logged, "next item")[0][1], before[0][1])
        optimizer = torch.optim.Adam(model.propensity.parameters(), lr=0.3)
        trainer = Trainer(model, logged, SHORT)
        (phase,) = trainer.stages[0].phases
        phase.loss(next(trainer.samplers[phase.name].epoch())).backward()
        optimizer.step()
        fresh = debiased(logged, weights=weights, clip=0.001)
        fresh.load_state_dict(model.state_dict())
        for (batch, old), (_, now), (_, expected) in zip(
            before,
            batch_weights(model, logged, "next item"),
            batch_weights(fresh, logged, "next item"),
            strict=True,
        ):
            assert torch.equal(now[batch.target_BL], expected[batch.target_BL])
            assert not torch.allclose(now[batch.target_BL], old[batch.target_BL], rtol=1e-2)


# On which scale


@pytest.mark.parametrize(("backbone", "phase"), [("sasrec", "next item"), ("din", "clicks")])
def test_clipped_weights_are_at_most_one(logged: unskew.Split, backbone: str, phase: str) -> None:
    """M / max(p, M), as in DEPS: clipping gradients by their norm means the same as without weights."""
    found = batch_weights(debiased(logged, backbone, propensity="logged"), logged, phase)
    weights = torch.cat(
        [
            weight[batch.target_BL] if isinstance(batch, SequenceBatch) else weight.flatten()
            for batch, weight in found
        ]
    )
    assert weights.max() == 1
    assert 0.1 < (weights == 1).float().mean() < 0.9
    assert weights.min() >= CLIP


def test_snips_has_mean_one_among_what_counts(logged: unskew.Split) -> None:
    """Neither padding nor what another window has counted is part of the mean."""
    uncounted = 0
    for batch, weight in batch_weights(
        debiased(logged, propensity="logged", weights="snips"), logged, "next item"
    ):
        inverse = 1 / logged_of(logged, batch).clamp(min=CLIP)
        close(weight[batch.target_BL], inverse / inverse.mean())
        assert float(weight[batch.target_BL].mean()) == pytest.approx(1, rel=1e-5)
        uncounted += int((~batch.target_BL).sum())
    assert uncounted > 30
    for _, weight in batch_weights(
        debiased(logged, "din", propensity="logged", weights="snips"), logged, "clicks"
    ):
        assert float(weight.mean()) == pytest.approx(1, rel=1e-5)


def test_ips_has_mean_one_over_the_training_positives_and_one_scale_for_all_batches(
    logged: unskew.Split,
) -> None:
    log = logged.log
    inverse = 1 / np.asarray(log.propensity)[logged.mask("train") & (log.label == 1)]
    assert 100 < len(inverse) < ROWS  # so the sample is all of them
    for backbone, phase in (("sasrec", "next item"), ("din", "clicks")):
        means = []
        for batch, weight in batch_weights(
            debiased(logged, backbone, propensity="logged", weights="ips"), logged, phase
        ):
            sequential = isinstance(batch, SequenceBatch)
            p, mine = (
                (logged_of(logged, batch), weight[batch.target_BL])
                if sequential
                else (batch.logged_BC, weight)
            )
            close(mine, 1 / p / inverse.mean())
            means.append(float(mine.mean()))
        assert max(means) > 1.05 * min(means)  # not the mean of each batch, which would be biased


@pytest.mark.parametrize("backbone", ["sasrec", "din", "fpmc"])
def test_a_common_factor_of_all_propensities_changes_nothing_with_ips(backbone: str) -> None:
    """A half is exact in floating point, and so is all that follows from it."""
    kind = model_named(f"debiased-{backbone}")
    config = kind.Config(
        backbone=tiny(MODELS[backbone]), method="ips-both", propensity="logged", weights="ips"
    )
    found = {scale: train(with_propensities(scale), kind.name, config, SHORT)[1] for scale in (1.0, 0.5, 0.3)}
    plain = train(with_propensities(), backbone, tiny(MODELS[backbone]), SHORT)[1]
    for criterion in ("ordinary", "balanced"):
        one, half = (found[scale].best[criterion] for scale in (1.0, 0.5))
        assert all(torch.equal(value, half[name]) for name, value in one.items())
    one, half, third, without = (
        [loss for record in trainer.records for loss in record.losses.values()]
        for trainer in (*found.values(), plain)
    )
    assert one == half != without
    assert third == pytest.approx(one, rel=1e-3)


# Batches of which neighbours are compared


def test_neighbours_in_a_batch_are_not_of_equal_history_length() -> None:
    """Batches are sorted by length so that little is padded; CPR compares each row of a batch with the next
    one."""
    split = unskew.split(unskew.read(random_table(rows=3000, users=40, items=60, times=10**6, negatives=0.0)))
    model = debiased(split, "cpr", past_items=50)
    sampler = Trainer(model, split, Training(batch_size=100)).samplers["cross pairs"]
    assert isinstance(sampler, Sampler)
    similar = by_chance = 0.0
    for batch in sampler.epoch():
        lengths = is_real(batch.history_BL).sum(1)
        counts = torch.bincount(lengths).float()
        similar += float((lengths[1:] == lengths[:-1]).sum())
        by_chance += float((counts * (counts - 1)).sum() / len(lengths))
    assert by_chance > 30  # batches do hold rows of similar length
    assert abs(similar - by_chance) < 4 * by_chance**0.5


@pytest.mark.parametrize("backbone", ["itemknn", "ubpr", "dice"])
def test_both_parts_count_on_the_training_part(logged: unskew.Split, backbone: str) -> None:
    """What no gradient learns is the backbone's own count, and that of the estimator."""
    made = debiased(logged, backbone, propensity="item-user-pro")
    alone = build(MODELS[backbone], logged, made.config.backbone)
    counted = dict(alone.named_buffers())
    assert counted
    for name, value in made.backbone.named_buffers():
        assert torch.equal(value, counted[name])
    assert isinstance(made.propensity, Frequency)
    assert (float(made.propensity.item_share.max()), float(made.propensity.user_share.max())) == (1.0, 1.0)
