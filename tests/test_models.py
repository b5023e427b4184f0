"""What every registered model promises, with planted faults that show each check fires."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

import unskew
import unskew.models
from tests.conftest import random_table
from unskew.catalog import Catalog
from unskew.data.batches import Batch, batch, contexts, with_candidates
from unskew.data.held_out import held_out
from unskew.data.views import PAD
from unskew.evaluate import evaluation, rank
from unskew.layers import reseed
from unskew.losses import weighted_mean
from unskew.models.base import MODELS, Phase, Recommender, Stage, model_named, parameters_of
from unskew.models.deps import DEPS
from unskew.models.popularity import Popularity
from unskew.run import train
from unskew.train import Trainer, Training

Build = Callable[[unskew.Split], Recommender]

HISTORY, AUDIENCE = 8, 6
TINY = {"width": 12, "layers": 1, "heads": 2, "inner": 16, "hidden": 10, "dropout": 0.1, "unsupervised_rounds": 1}

every_model = pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS.keys())


def tiny(kind: type[Recommender], **more: Any) -> Any:
    """A small configuration, whatever fields this model has."""
    fields = {field.name for field in dataclasses.fields(kind.Config)}
    wanted = {"history": HISTORY, "audience": AUDIENCE} | TINY | more
    return kind.Config(**{name: value for name, value in wanted.items() if name in fields})


def builder(kind: type[Recommender]) -> Build:
    def build(split: unskew.Split) -> Recommender:
        """Away from its initial values: what starts at zero would hide a fault."""
        torch.manual_seed(0)
        made = kind(split, tiny(kind)).eval()
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=random) * 0.3)
        return made

    return build


@pytest.fixture(scope="module")
def split(log: unskew.Log) -> unskew.Split:
    return unskew.split(log)


def some(log: unskew.Log, rows: int = 24, candidates: int = 5, shorter: int = 0) -> Batch:
    """Contexts at all times: empty histories, strangers, items that training never saw."""
    random = np.random.default_rng(2)
    user, time = random.integers(0, len(log.users), rows), np.sort(random.integers(0, 520, rows))
    user[3], user[-1], time[:2] = PAD, PAD, 0
    drawn = np.stack([random.permutation(len(log.items))[:candidates] for _ in range(rows)])
    return batch(log, user, time, drawn, None, HISTORY - shorter, AUDIENCE - shorter)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


# The contract: each check raises AssertionError where a model breaks it


@torch.no_grad()
def candidate_order_is_irrelevant(build: Build, split: unskew.Split) -> None:
    model, rows = build(split), some(split.log)
    scores = model(rows)
    assert scores.shape == rows.candidates_BC.shape
    assert len(scores.unique()) > scores.shape[1]  # not a constant, for which all this would hold
    order = torch.tensor([3, 0, 4, 2, 1])
    close(model(rows._replace(candidates_BC=rows.candidates_BC[:, order], audience_of_BC=rows.audience_of_BC[:, order])), scores[:, order])
    alone = rows._replace(
        candidates_BC=rows.candidates_BC[:, 2:3], audience_of_BC=rows.audience_of_BC[:, 2:3], labels_BC=rows.labels_BC[:, 2:3]
    )
    close(model(alone), scores[:, 2:3])


@torch.no_grad()
def rows_are_independent(build: Build, split: unskew.Split) -> None:
    model, rows = build(split), some(split.log)
    scores = model(rows)
    for b in range(len(rows.user_B)):
        user, time = rows.user_B[b : b + 1].numpy(), rows.times_B[b : b + 1].numpy()
        alone = batch(split.log, user, time, rows.candidates_BC[b : b + 1].numpy(), None, HISTORY, AUDIENCE)
        close(model(alone)[0], scores[b])


@torch.no_grad()
def padding_is_invisible(build: Build, split: unskew.Split) -> None:
    model, rows = build(split), some(split.log, shorter=3)
    scores = model(rows)
    for by in (1, 3):
        close(model(rows._replace(history_BL=functional.pad(rows.history_BL, (by, 0), value=PAD))), scores)
        close(model(rows._replace(audience_AM=functional.pad(rows.audience_AM, (by, 0), value=PAD))), scores)


@torch.no_grad()
def labels_are_unread(build: Build, split: unskew.Split) -> None:
    model, rows = build(split), some(split.log)
    scores = model(rows)
    assert torch.equal(model(rows._replace(labels_BC=torch.ones_like(rows.labels_BC))), scores)
    assert torch.equal(model(rows._replace(labels_BC=torch.full_like(rows.labels_BC, torch.nan))), scores)


def cut_at(split: unskew.Split, time: int) -> unskew.Split:
    """What a witness at this time knows: the same split of a log that ends strictly before."""
    log = split.log
    cut = unskew.read(log.table().filter((log.time < time).tolist()))
    users, items = len(cut.users), len(cut.items)
    assert cut.users.ids.equals(log.users.ids[:users])
    assert cut.items.ids.equals(log.items.ids[:items])
    return dataclasses.replace(split, log=cut, user_counts=split.user_counts[:users], item_counts=split.item_counts[:items])


@torch.no_grad()
def no_future_event_changes_a_score(build: Build, split: unskew.Split) -> None:
    for time in (split.train_end, split.valid_end, int(np.quantile(split.log.time, 0.9))):
        then = cut_at(split, time)
        assert len(then.log) < len(split.log)
        now, past = build(split), build(then)
        users, items = np.arange(len(then.log.users)), np.arange(len(then.log.items))
        asked = np.full(len(users), time), np.tile(items, (len(users), 1)), None, HISTORY, AUDIENCE
        close(now(batch(split.log, users, *asked)), past(batch(then.log, users, *asked)))
        whole, known = (m.catalog(s.log, time, time + 1) for m, s in ((now, split), (past, then)))
        found = whole.scores(contexts(split.log, users, asked[0], HISTORY))[:, : len(items)]
        close(found, known.scores(contexts(then.log, users, asked[0], HISTORY)))


@torch.no_grad()
def catalog_equals_forward(build: Build, split: unskew.Split) -> None:
    """Many contexts at one time, times at which nothing happens, times before and after all events; several blocks of them."""
    log, model, random = split.log, build(split), np.random.default_rng(3)
    first, last = int(log.time.min()), int(log.time.max())
    events = random.choice(log.time, 60)
    for begin, end, times in (
        (first - 50, last + 50, [*events, first - 50, first, first, last, last + 1, last + 50]),
        (split.train_end, last + 1, [*events[events >= split.train_end], *[split.valid_end] * 90, last + 1]),
        (split.valid_end, split.valid_end + 1, [split.valid_end] * 3),  # a period of one moment
        (last + 1, last + 2, [last + 1] * 2),  # now
    ):
        time = np.sort(np.asarray(times))
        user = random.integers(0, len(log.users), len(time))
        user[::7] = PAD
        context = contexts(log, user, time, model.history)
        everything = np.tile(np.arange(len(log.items)), (len(time), 1))
        close(model.catalog(log, begin, end).scores(context), model(with_candidates(context, log, everything, None, AUDIENCE)))


def every_parameter_is_reached(build: Build, split: unskew.Split) -> None:
    """By a stage that says so, and by a gradient that really comes."""
    model = build(split).train()
    assert model.reached() == {name for name, _ in model.named_parameters()}
    learned = set()
    for phase in {phase.name: phase for stage in model.stages(1) for phase in stage.phases}.values():
        model.zero_grad()
        phase.loss(first_batch(model, phase, split)).backward()
        mine = {id(parameter) for parameter in phase.parameters()}
        learned |= {name for name, p in model.named_parameters() if id(p) in mine and p.grad is not None and bool(p.grad.any())}
    assert learned == model.reached()


CHECKS = (
    candidate_order_is_irrelevant,
    rows_are_independent,
    padding_is_invisible,
    labels_are_unread,
    no_future_event_changes_a_score,
    catalog_equals_forward,
    every_parameter_is_reached,
)


def first_batch(model: Recommender, phase: Phase, split: unskew.Split) -> Any:
    """As the trainer would make it."""
    return next(Trainer(model, split, Training(batch_size=64, sequences=64)).samplers[phase.name].epoch())


@every_model
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(kind: type[Recommender], check: Callable[[Build, unskew.Split], None], split: unskew.Split) -> None:
    check(builder(kind), split)


# Planted faults: the checks catch them


def with_forward(kind: type[Recommender], change: Callable[[Recommender, Batch, Tensor], Tensor]) -> type[Recommender]:
    def forward(self: Recommender, rows: Batch) -> Tensor:
        return change(self, rows, kind.forward(self, rows))

    return type("Faulty", (kind,), {"forward": forward})


def reads_labels(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores + 0.01 * rows.labels_BC)


def mixes_rows(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores - 0.01 * scores.mean(0))


def mixes_candidates(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores + 0.01 * torch.arange(scores.shape[1]))


def sees_padding(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores + 0.01 * (rows.history_BL == PAD).sum(1, keepdim=True))


def sees_padding_of_audiences(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores + 0.01 * (rows.audience_AM == PAD).sum(1)[rows.audience_of_BC])


def knows_the_end(kind: type[Recommender]) -> type[Recommender]:
    """Counts each item's events on the whole log, the test part included."""

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def __init__(self, split: unskew.Split, config: Any) -> None:
            super().__init__(split, config)
            self.totals = torch.from_numpy(np.diff(split.log.audiences.offsets)).float()

        def forward(self, rows: Batch) -> Tensor:
            return super().forward(rows) + 0.01 * self.totals[rows.candidates_BC]

    return Faulty


def with_catalog(kind: type[Recommender], change: Callable[[unskew.Log, Batch, Tensor], Tensor]) -> type[Recommender]:
    class Changed:
        def __init__(self, log: unskew.Log, catalog: Catalog) -> None:
            self.log, self.catalog = log, catalog

        def scores(self, context: Batch) -> Tensor:
            return change(self.log, context, self.catalog.scores(context))

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def catalog(self, log: unskew.Log, first: int, last: int) -> Catalog:
            return Changed(log, super().catalog(log, first, last))

    return Faulty


def sees_the_present(kind: type[Recommender]) -> type[Recommender]:
    """Its catalogue counts one moment too many."""

    def late(log: unskew.Log, context: Batch, scores: Tensor) -> Tensor:
        start, end = log.audiences.before(np.arange(len(log.items))[None], context.times_B.numpy()[:, None] + 1)
        return scores + 0.01 * torch.from_numpy(end - start)

    return with_catalog(kind, late)


def has_another_catalogue(kind: type[Recommender]) -> type[Recommender]:
    """All of a block as of its first context."""
    return with_catalog(kind, lambda log, context, scores: scores[:1].expand(scores.shape))


def has_a_dead_parameter(kind: type[Recommender]) -> type[Recommender]:
    class Faulty(kind):  # type: ignore[misc, valid-type]
        def __init__(self, split: unskew.Split, config: Any) -> None:
            super().__init__(split, config)
            self.dead = nn.Parameter(torch.zeros(1))

    return Faulty


def has_a_listed_but_dead_parameter(kind: type[Recommender]) -> type[Recommender]:
    class Faulty(has_a_dead_parameter(kind)):  # type: ignore[misc]
        def stages(self, rounds: int) -> tuple[Stage, ...]:
            def more(phase: Phase) -> Phase:
                return dataclasses.replace(phase, parameters=lambda: dict.fromkeys([*phase.parameters(), self.dead]))

            return tuple(dataclasses.replace(stage, phases=tuple(map(more, stage.phases))) for stage in super().stages(rounds))

    return Faulty


FAULTS = {
    reads_labels: labels_are_unread,
    mixes_rows: rows_are_independent,
    mixes_candidates: candidate_order_is_irrelevant,
    sees_padding: padding_is_invisible,
    sees_padding_of_audiences: padding_is_invisible,
    knows_the_end: no_future_event_changes_a_score,
    sees_the_present: no_future_event_changes_a_score,
    has_another_catalogue: catalog_equals_forward,
    has_a_dead_parameter: every_parameter_is_reached,
    has_a_listed_but_dead_parameter: every_parameter_is_reached,
}


@every_model
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_contract_catches(
    kind: type[Recommender], fault: Callable[[type[Recommender]], type[Recommender]], split: unskew.Split
) -> None:
    with pytest.raises(AssertionError):
        FAULTS[fault](builder(fault(kind)), split)


def test_every_check_has_a_fault_that_it_catches() -> None:
    assert set(FAULTS.values()) == set(CHECKS)


def test_faults_are_not_registered() -> None:
    for kind in MODELS.values():
        reads_labels(kind)
    assert "Faulty" not in {kind.__name__ for kind in MODELS.values()}


# The registry, disks, seeds


def test_the_registry() -> None:
    assert model_named("deps") is DEPS
    assert all(kind.name == name and kind.paper for name, kind in MODELS.items())
    with pytest.raises(unskew.BadInput, match=r"no model 'nobody'; there are .*deps"):
        model_named("nobody")
    training = {field.name for field in dataclasses.fields(Training)}
    for kind in MODELS.values():  # both are flags of one command
        assert not training & {field.name for field in dataclasses.fields(kind.Config)}
        Training(**kind.recipe)
    line = nn.Linear(2, 2)
    assert parameters_of(line, None, line.bias) == [line.weight, line.bias, line.bias]


@every_model
def test_a_trip_to_the_disk_is_exact(kind: type[Recommender], split: unskew.Split, tmp_path: Path) -> None:
    model, rows = builder(kind)(split), some(split.log)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    torch.manual_seed(9)
    other = kind(split, tiny(kind)).eval()
    with torch.no_grad():
        assert not torch.equal(other(rows), model(rows)) or not list(model.parameters())
        other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
        assert torch.equal(other(rows), model(rows))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


@every_model
def test_seeds_repeat(kind: type[Recommender], split: unskew.Split) -> None:
    def trained(seed: int) -> dict[str, Tensor]:
        settings = Training(rounds=1, batch_size=256, sequences=64, valid_rows=50, seed=seed)
        return train(split, kind.name, tiny(kind), settings)[0].state_dict()

    first, again, other = trained(3), trained(3), trained(4)
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    learned = kind(split, tiny(kind)).reached()
    assert not learned or not all(torch.equal(value, other[name]) for name, value in first.items())


@every_model
def test_evaluation_mode_draws_nothing(kind: type[Recommender], split: unskew.Split) -> None:
    model, rows = builder(kind)(split), some(split.log)
    with torch.no_grad():
        assert torch.equal(model(rows), model(rows))


def test_weighted_means() -> None:
    loss = torch.tensor([[0.5, 1.5], [2.0, 4.0]])
    assert weighted_mean(loss).item() == weighted_mean(loss, torch.ones(2, 2)).item() == 2.0
    assert weighted_mean(loss, torch.tensor([[2.0, 0.0], [1.0, 1.0]])).item() == 7 / 4


@every_model
def test_every_weighted_loss_is_a_mean_of_terms_times_weights(kind: type[Recommender], split: unskew.Split) -> None:
    """Ones change nothing, a common factor comes out, and other weights give another loss."""
    model = builder(kind)(split).train()
    for phase in {phase.name: phase for stage in model.stages(1) for phase in stage.phases}.values():
        rows = first_batch(model, phase, split)
        shape = rows.labels_BC.shape if isinstance(rows, Batch) else rows.history_BL.shape
        field = "weight_BC" if isinstance(rows, Batch) else "weight_BL"

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
def test_a_unit_propensity_reproduces_the_backbone(kind: type[Recommender], split: unskew.Split) -> None:
    settings = Training(rounds=2, batch_size=256, sequences=64, valid_rows=50)
    wrapped = model_named(f"debiased-{kind.name}")
    mine, plain = train(split, kind.name, tiny(kind), settings)
    weighted, trainer = train(split, wrapped.name, wrapped.Config(backbone=tiny(kind), propensity="none"), settings)
    assert trainer.best.keys() == plain.best.keys() == {"ordinary", "balanced"}
    for criterion, state in plain.best.items():
        its = {name.removeprefix("backbone."): value for name, value in trainer.best[criterion].items()}
        assert its.keys() == state.keys()
        assert all(torch.equal(value, its[name]) for name, value in state.items())
    mine.load_state_dict(plain.best[trainer.choose_by])
    with torch.no_grad():
        assert torch.equal(mine(some(split.log)), weighted(some(split.log)))


@every_model
@pytest.mark.parametrize("propensity", ["dual", "user-pro"])
@pytest.mark.parametrize("weights", ["clipped", "ips", "snips"])
def test_every_model_can_be_debiased(kind: type[Recommender], propensity: str, weights: str, split: unskew.Split) -> None:
    wrapped = model_named(f"debiased-{kind.name}")
    config = wrapped.Config(
        backbone=tiny(kind), propensity=propensity, weights=weights, past_items=6, past_users=5, propensity_width=8, propensity_rounds=1
    )
    trained, trainer = train(split, wrapped.name, config, Training(rounds=1, batch_size=256, sequences=64, valid_rows=50))
    assert all(bool(value.isfinite().all()) for value in trained.state_dict().values())
    phases = [phase.name for stage in trainer.stages for phase in stage.phases]
    assert phases.count("exposure") == (2 if propensity == "dual" and kind(split, tiny(kind)).stages(1) else 0)
    catalog_equals_forward(lambda split: trained, split)


@every_model
def test_a_backbone_may_read_less_than_the_estimator(kind: type[Recommender]) -> None:
    """Every phase has batches that its own part of the model can read."""
    short = unskew.split(unskew.read(random_table(rows=2000, users=40, items=80)))
    model = model_named(f"debiased-{kind.name}")
    config = model.Config(backbone=tiny(kind, history=5, audience=4), past_items=20, past_users=25, propensity_width=8)
    network = model(short, config)
    trainer = Trainer(network, short, Training(batch_size=256, sequences=64))
    for phase in {phase.name: phase for stage in trainer.stages for phase in stage.phases}.values():
        made = next(trainer.samplers[phase.name].epoch())
        assert torch.isfinite(phase.loss(made))


# A predictable walk


@cache
def cycle(items: int = 40, users: int = 60, steps: int = 14) -> unskew.Split:
    """Each user starts anywhere on a circle of items and goes on by one, at some time of the day. Nobody comes round."""
    random = np.random.default_rng(0)
    start, begin = random.integers(0, items, users), random.integers(0, 1000, users)
    step = np.arange(steps)
    time = begin[:, None] + 20 * step + random.integers(0, 20, (users, steps))
    table = {"user": np.repeat(np.arange(users), steps), "item": ((start[:, None] + step) % items).ravel(), "time": time.ravel()}
    return unskew.split(unskew.read(table), shares=(80, 10, 10))


# What reads no history cannot learn to walk.
WALKERS = [kind for kind in MODELS.values() if "history" in {field.name for field in dataclasses.fields(kind.Config)}]


@pytest.mark.parametrize("kind", WALKERS, ids=lambda kind: kind.name)
def test_it_learns_a_predictable_walk(kind: type[Recommender]) -> None:
    split = cycle()
    settings = Training(rounds=6, patience=9, batch_size=32, sequences=16, learning_rate=1e-2)
    config = tiny(kind, width=16, hidden=16, inner=32, heads=1, history=4, audience=4, unsupervised_rounds=2, samples=4)
    model, trainer = train(split, kind.name, config, settings)
    tested = held_out(split, "test", "ordinary")
    popularity = Popularity(split, Popularity.Config(recency="total"))
    found, chance = (evaluation(split, rank(each, split, tested.rows), "full", tested).mean("ndcg@10") for each in (model, popularity))
    assert chance < 0.25
    assert found > 0.4
    assert found > 2 * chance
    valid = [record["valid"]["ordinary"]["ndcg@10"] for record in trainer.records if "valid" in record]
    assert not trainer.stages or max(valid) > 0.4
