"""What every registered model promises of its training: seeds, weights, debiasing, learning, odd logs."""

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
import unskew.models
from tests.conftest import random_table
from tests.helpers.contract import (
    builder,
    catalog_equals_forward,
    close,
    every_model,
    first_batch,
    phases,
    some,
    tiny,
)
from tests.helpers.runs import CRITERIA, finite, train
from unskew.data.batches.batch import Batch, Offset, SequenceBatch
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import evaluation, rank
from unskew.models.base import MODELS, Recommender, Training, build, model_named
from unskew.models.popularity import Popularity
from unskew.nn.layers import reseed
from unskew.nn.losses import weighted_mean
from unskew.nn.phases import Phase
from unskew.training.trainer import Trainer


@every_model
def test_seeds_repeat(kind: type[Recommender], split: unskew.Split) -> None:
    def trained(seed: int) -> dict[str, Tensor]:
        settings = Training(epochs=1, batch_size=256, sequences=64, valid_examples=50, seed=seed)
        return train(split, kind.name, tiny(kind), settings)[0].state_dict()

    first, again, other = trained(3), trained(3), trained(4)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    learned = build(kind, split, tiny(kind)).trained_parameter_names()
    assert not learned or not all(torch.equal(value, other[name]) for name, value in first.items())


def test_weighted_means() -> None:
    loss = torch.tensor([[0.5, 1.5], [2.0, 4.0]])
    assert weighted_mean(loss).item() == weighted_mean(loss, torch.ones(2, 2)).item() == 2.0
    assert weighted_mean(loss, torch.tensor([[2.0, 0.0], [1.0, 1.0]])).item() == 7 / 4


@every_model
def test_every_weighted_loss_is_a_mean_of_terms_times_weights(
    kind: type[Recommender], split: unskew.Split
) -> None:
    """Ones change nothing, a common factor comes out, and other weights give another loss."""
    model = builder(kind)(split).train()
    assert phases(model) or not list(model.parameters())
    for phase in phases(model):
        rows = first_batch(model, phase, split)
        field = next(name for name in ("weight_BC", "weight_BL", "weight_B") if hasattr(rows, name))
        of = {"weight_BC": "labels_BC", "weight_BL": "items_BL", "weight_B": "event_B"}[field]
        shape = getattr(rows, of).shape

        def loss(weight: Tensor | None, phase: Phase = phase, rows: Any = rows, field: str = field) -> Tensor:
            reseed(5)
            return phase.loss(rows._replace(**{field: weight})).detach()

        plain, drawn = loss(None), torch.rand(shape, generator=torch.Generator().manual_seed(0)) + 0.1
        if not phase.weighted:
            assert torch.equal(loss(3 * torch.ones(shape)), plain)
            continue
        close(loss(torch.ones(shape)), plain, 1e-6)
        close(loss(3 * torch.ones(shape)), 3 * plain)
        assert not torch.allclose(loss(drawn), plain * drawn.mean(), rtol=1e-4)
        close(loss(drawn) + loss(2 - drawn), 2 * plain)  # linear in the weights


@every_model
def test_an_offset_is_added_to_the_logits_of_every_loss(kind: type[Recommender], split: unskew.Split) -> None:
    """None and zeros are the same to the last bit, and anything else is not. Where items are only compared,
    what all of them have in common changes nothing."""
    model = builder(kind)(split)
    for phase in phases(model):
        rows = first_batch(model, phase, split)

        def loss(table: Tensor | None, phase: Phase = phase, rows: Any = rows) -> Tensor:
            reseed(5)
            if table is None:
                return phase.loss(rows).detach()
            if isinstance(rows, SequenceBatch):
                moment = torch.zeros(rows.items_BL.shape, dtype=torch.int64)
                return phase.loss(rows._replace(offset=Offset(moment, table[None]))).detach()
            more = {"offset_BC": table[rows.candidates_BC]}
            if isinstance(rows, Batch):
                moment = torch.zeros(len(rows.user_B), dtype=torch.int64)
                more |= {"offset": Offset(moment, table[None])}
            return phase.loss(rows._replace(**more)).detach()

        items = len(split.log.items)
        plain, random = loss(None), torch.randn(items, generator=torch.Generator().manual_seed(0))
        if not phase.weighted:
            continue
        close(loss(torch.zeros(items)), plain, 1e-6)
        if kind.name == "cpr":  # a cycle holds every item once with each sign: exposure cancels by design
            close(loss(random), plain, 1e-5)
            continue
        assert not torch.allclose(loss(random), plain, rtol=1e-4)
        compared = loss(torch.ones(items))
        if phase.separate or kind.name in ("gsasrec", "gru4rec"):
            assert not torch.allclose(compared, plain, rtol=1e-4)
        else:
            close(compared, plain, 1e-5)


def frozen(kind: type[Recommender]) -> set[str]:
    """The criterion of models that read what other users did up to the request."""
    return {"frozen", "frozen-balanced"} if kind.validates_frozen else set()


@every_model
def test_a_unit_propensity_reproduces_the_backbone(kind: type[Recommender], split: unskew.Split) -> None:
    settings = Training(epochs=2, batch_size=256, sequences=64, valid_examples=50)
    wrapped = model_named(f"debiased-{kind.name}")
    mine, plain = train(split, kind.name, tiny(kind), settings)
    weighted, trainer = train(
        split, wrapped.name, wrapped.Config(backbone=tiny(kind), propensity="none"), settings
    )
    assert trainer.best.keys() == plain.best.keys() == {"ordinary", "balanced", *frozen(kind)}
    for criterion, state in plain.best.items():
        its = {name.removeprefix("backbone."): value for name, value in trainer.best[criterion].items()}
        assert its.keys() == state.keys()
        assert all(torch.equal(value, its[name]) for name, value in state.items())
    mine.load_state_dict(plain.best[trainer.select_by])
    with torch.no_grad():
        assert torch.equal(mine(some(split.log)), weighted(some(split.log)))


CORRECTIONS = [
    ("ips-both", "dual", "clipped"),
    ("ips-both", "dual", "ips"),
    ("ips-both", "user-pro", "snips"),
    ("ips", "item-pro", "ips"),
    ("weighted-negatives", "item-pro", "clipped"),
    ("logit-offset", "item-pro", "clipped"),
]


@every_model
@pytest.mark.parametrize("correction", CORRECTIONS, ids="-".join)
def test_every_model_can_be_debiased(
    kind: type[Recommender], correction: tuple[str, str, str], split: unskew.Split
) -> None:
    wrapped, (how, propensity, weights) = model_named(f"debiased-{kind.name}"), correction
    config = wrapped.Config(
        backbone=tiny(kind),
        method=how,
        propensity=propensity,
        weights=weights,
        past_items=6,
        past_users=5,
        propensity_width=8,
        propensity_epochs=1,
    )
    trained, trainer = train(
        split, wrapped.name, config, Training(epochs=1, batch_size=256, sequences=64, valid_examples=50)
    )
    assert all(bool(value.isfinite().all()) for value in trained.state_dict().values())
    names = [phase.name for stage in trainer.stages for phase in stage.phases]
    expected = 2 if propensity == "dual" and build(kind, split, tiny(kind)).stages(1) else 0
    assert names.count("estimator: propensity") == expected
    catalog_equals_forward(lambda split: trained, split)


@every_model
def test_a_backbone_may_read_less_than_the_estimator(kind: type[Recommender]) -> None:
    """Every phase has batches that its own part of the model can read."""
    short = unskew.split(unskew.read(random_table(rows=2000, users=40, items=80)))
    model = model_named(f"debiased-{kind.name}")
    config = model.Config(
        backbone=tiny(kind, history=5, audience=4),
        method="ips-both",
        propensity="dual",
        past_items=20,
        past_users=25,
        propensity_width=8,
    )
    network = build(model, short, config)
    trainer = Trainer(network, short, Training(batch_size=256, sequences=64))
    assert bool(phases(network)) == bool(phases(network.backbone))
    for phase in phases(network):
        made = next(trainer.samplers[phase.name].epoch())
        assert torch.isfinite(phase.loss(made))


# A predictable walk


@cache
def cycle(items: int = 40, users: int = 60, steps: int = 14) -> unskew.Split:
    """Each user starts anywhere on a circle of items and goes on by one at a time, for less than a circle."""
    random = np.random.default_rng(0)
    start, begin = random.integers(0, items, users), random.integers(0, 1000, users)
    step = np.arange(steps)
    time = begin[:, None] + 20 * step + random.integers(0, 20, (users, steps))
    table = {
        "user": np.repeat(np.arange(users), steps),
        "item": ((start[:, None] + step) % items).ravel(),
        "time": time.ravel(),
    }
    return unskew.split(unskew.read(table), fractions=(80, 10, 10))


# What reads no history, or only which items are in it, cannot learn which item follows another one.
LEARNERS = [
    kind
    for kind in MODELS.values()
    if "history" in {field.name for field in dataclasses.fields(kind.Config)} and kind.name != "personal"
]


@pytest.mark.parametrize("kind", LEARNERS, ids=lambda kind: kind.name)
def test_it_learns_a_predictable_neighbourhood(kind: type[Recommender]) -> None:
    split = cycle()
    settings = Training(epochs=6, patience=9, batch_size=32, sequences=16, learning_rate=1e-2)
    config = tiny(
        kind, width=16, hidden=16, inner=32, heads=1, history=4, audience=4, unsupervised_epochs=2, samples=4
    )
    model, trainer = train(split, kind.name, config, settings)
    tested = held_out(split, "test", "ordinary")
    popularity = build(Popularity, split, Popularity.Config(recency="total"))
    found, chance = (
        evaluation(split, rank(each, split, tested.rows), "full", tested).mean("ndcg@10")
        for each in (model, popularity)
    )
    assert chance < 0.25
    assert found > 0.4
    assert found > 2 * chance
    valid = [record.valid["ordinary"]["ndcg@10"] for record in trainer.records if record.valid]
    assert not trainer.stages or max(valid) > 0.4


# Logs with moments that hold much


def trained_and_tested(kind: type[Recommender], split: unskew.Split, **more: Any) -> Trainer:
    torch.manual_seed(0)
    settings = Training(epochs=1, batch_size=64, sequences=8, valid_examples=30)
    start = build(kind, split, tiny(kind, copies=1, propensity_epochs=1, **more)).state_dict()
    model, trainer = train(split, kind.name, tiny(kind, copies=1, propensity_epochs=1, **more), settings)
    finite(trainer)
    assert not trainer.stages or any(
        not torch.equal(value, start[name]) for name, value in trainer.model.state_dict().items()
    )
    for test in CRITERIA:
        tested = held_out(split, "test", test)
        found = evaluation(split, rank(model, split, tested.rows), "full", tested)
        assert all(0 <= value <= 1 for value in found.metrics().values())
    return trainer


@cache
def at_once(moments: int) -> unskew.Split:
    """Like Coat: everybody rates some items at one moment, most of them not liked, and others later. Two
    moments leave no validation."""
    random = np.random.default_rng(0)
    rows = [(user, item) for user in range(24) for item in random.permutation(16)[: 6 + 2 * moments]]
    user, item = zip(*rows, strict=True)
    order = np.tile(np.arange(6 + 2 * moments), 24)
    time = np.where(order < 6, 0, 1 + (order - 6) * (moments - 1) // (2 * moments))
    label = (random.random(len(rows)) < 0.4).astype(np.int8)
    log = unskew.read({"user": user, "item": item, "time": time, "label": label})
    fractions = (6, 0, 4) if moments == 2 else (6, 3, 3)
    split = unskew.split(log, fractions=fractions)
    assert len(np.unique(log.time)) == moments
    assert len(np.unique(log.time[split.mask("train")])) == 1
    return split


@every_model
@pytest.mark.parametrize("moments", [2, 3])
def test_all_of_training_may_be_one_moment(kind: type[Recommender], moments: int) -> None:
    """Nobody has a past while it trains, and everybody has one afterwards."""
    split = at_once(moments)
    if moments == 2 and build(kind, split, tiny(kind)).options(split):
        with pytest.raises(unskew.BadInput, match="chooses a setting on the validation set, and this split"):
            trained_and_tested(kind, split)
        return
    trainer = trained_and_tested(kind, split)
    assert set(trainer.best) == ({*CRITERIA, "shown", *frozen(kind)} if moments == 3 else set())


@cache
def baskets() -> unskew.Split:
    """Each user comes three to seven times and takes 1, 2 or 14 things at once; a model reads four."""
    random = np.random.default_rng(1)
    rows = [
        (user, int(item), int(day))
        for user in range(18)
        for day in random.permutation(30)[: random.integers(3, 8)]
        for item in random.permutation(60)[: random.choice([1, 2, 14])]
    ]
    user, item, time = zip(*rows, strict=True)
    return unskew.split(unskew.read({"user": user, "item": item, "time": time}))


@every_model
@pytest.mark.parametrize("repeats", ["keep", "hide"])
def test_baskets_may_be_larger_than_what_is_read(kind: type[Recommender], repeats: str) -> None:
    split = unskew.split(baskets().log, repeats=repeats)
    size = np.bincount(np.unique(split.log.user * 1000 + split.log.time, return_inverse=True)[1])
    assert (size > 3 * 4).sum() > 20
    trained_and_tested(kind, split, history=4, audience=4)
