"""What every registered model promises, with planted faults that show each check fires."""

import dataclasses
import json
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
from unskew.api import create_model
from unskew.catalog import Catalog
from unskew.data.batch import Batch, SequenceBatch, batch, contexts, with_candidates
from unskew.data.held_out import held_out
from unskew.data.views import PAD
from unskew.evaluate import evaluation, rank
from unskew.layers import Embeddings, is_real, reseed
from unskew.losses import weighted_mean
from unskew.models.base import MODELS, NextItem, Phase, Recommender, Stage, model_named, parameters_of
from unskew.models.deps import DEPS
from unskew.models.deps_causal import CausalDEPS, PrefixEncoder
from unskew.models.fpmc import FPMC
from unskew.models.popularity import Popularity
from unskew.models.usr import USR
from unskew.run import RunFolder, train
from unskew.train import Trainer, Training

Build = Callable[[unskew.Split], Recommender]

HISTORY, AUDIENCE = 8, 6
TINY = {
    "width": 12,
    "layers": 1,
    "heads": 2,
    "inner": 16,
    "hidden": 10,
    "dropout": 0.1,
    "unsupervised_rounds": 1,
}

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
    close(
        model(
            rows._replace(
                candidates_BC=rows.candidates_BC[:, order], audience_of_BC=rows.audience_of_BC[:, order]
            )
        ),
        scores[:, order],
    )
    alone = rows._replace(
        candidates_BC=rows.candidates_BC[:, 2:3],
        audience_of_BC=rows.audience_of_BC[:, 2:3],
        labels_BC=rows.labels_BC[:, 2:3],
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
    return dataclasses.replace(
        split, log=cut, user_counts=split.user_counts[:users], item_counts=split.item_counts[:items]
    )


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
    """Many contexts at one time, times at which nothing happens, times before and after all events; several
    blocks of them."""
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
        close(
            model.catalog(log, begin, end).scores(context),
            model(with_candidates(context, log, everything, None, AUDIENCE)),
        )


def every_parameter_is_reached(build: Build, split: unskew.Split) -> None:
    """By a stage that says so, and by a gradient that really comes."""
    model = build(split).train()
    assert model.reached() == {name for name, _ in model.named_parameters()}
    learned = set()
    for phase in {phase.name: phase for stage in model.stages(1) for phase in stage.phases}.values():
        model.zero_grad()
        phase.loss(first_batch(model, phase, split)).backward()
        mine = {id(parameter) for parameter in phase.parameters()}
        learned |= {
            name
            for name, p in model.named_parameters()
            if id(p) in mine and p.grad is not None and bool(p.grad.any())
        }
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
def test_the_contract(
    kind: type[Recommender], check: Callable[[Build, unskew.Split], None], split: unskew.Split
) -> None:
    check(builder(kind), split)


# Planted faults: the checks catch them


def with_forward(
    kind: type[Recommender], change: Callable[[Recommender, Batch, Tensor], Tensor]
) -> type[Recommender]:
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
    return with_forward(
        kind, lambda self, rows, scores: scores + 0.01 * (rows.history_BL == PAD).sum(1, keepdim=True)
    )


def sees_padding_of_audiences(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(
        kind, lambda self, rows, scores: scores + 0.01 * (rows.audience_AM == PAD).sum(1)[rows.audience_of_BC]
    )


def knows_the_end(kind: type[Recommender]) -> type[Recommender]:
    """Counts each item's events on the whole log, the test part included."""

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def __init__(self, split: unskew.Split, config: Any) -> None:
            super().__init__(split, config)
            self.totals = torch.from_numpy(np.diff(split.log.audiences.offsets)).float()

        def forward(self, rows: Batch) -> Tensor:
            return super().forward(rows) + 0.01 * self.totals[rows.candidates_BC]

    return Faulty


def with_catalog(
    kind: type[Recommender], change: Callable[[unskew.Log, Batch, Tensor], Tensor]
) -> type[Recommender]:
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
        start, end = log.audiences.before(
            np.arange(len(log.items))[None], context.times_B.numpy()[:, None] + 1
        )
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
                return dataclasses.replace(
                    phase, parameters=lambda: dict.fromkeys([*phase.parameters(), self.dead])
                )

            return tuple(
                dataclasses.replace(stage, phases=tuple(map(more, stage.phases)))
                for stage in super().stages(rounds)
            )

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
def test_every_weighted_loss_is_a_mean_of_terms_times_weights(
    kind: type[Recommender], split: unskew.Split
) -> None:
    """Ones change nothing, a common factor comes out, and other weights give another loss."""
    model = builder(kind)(split).train()
    for phase in {phase.name: phase for stage in model.stages(1) for phase in stage.phases}.values():
        rows = first_batch(model, phase, split)
        shape = rows.labels_BC.shape if isinstance(rows, Batch) else rows.items_BL.shape
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
    weighted, trainer = train(
        split, wrapped.name, wrapped.Config(backbone=tiny(kind), propensity="none"), settings
    )
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
def test_every_model_can_be_debiased(
    kind: type[Recommender], propensity: str, weights: str, split: unskew.Split
) -> None:
    wrapped = model_named(f"debiased-{kind.name}")
    config = wrapped.Config(
        backbone=tiny(kind),
        propensity=propensity,
        weights=weights,
        past_items=6,
        past_users=5,
        propensity_width=8,
        propensity_rounds=1,
    )
    trained, trainer = train(
        split, wrapped.name, config, Training(rounds=1, batch_size=256, sequences=64, valid_rows=50)
    )
    assert all(bool(value.isfinite().all()) for value in trained.state_dict().values())
    phases = [phase.name for stage in trainer.stages for phase in stage.phases]
    assert phases.count("exposure") == (
        2 if propensity == "dual" and kind(split, tiny(kind)).stages(1) else 0
    )
    catalog_equals_forward(lambda split: trained, split)


@every_model
def test_a_backbone_may_read_less_than_the_estimator(kind: type[Recommender]) -> None:
    """Every phase has batches that its own part of the model can read."""
    short = unskew.split(unskew.read(random_table(rows=2000, users=40, items=80)))
    model = model_named(f"debiased-{kind.name}")
    config = model.Config(
        backbone=tiny(kind, history=5, audience=4), past_items=20, past_users=25, propensity_width=8
    )
    network = model(short, config)
    trainer = Trainer(network, short, Training(batch_size=256, sequences=64))
    for phase in {phase.name: phase for stage in trainer.stages for phase in stage.phases}.values():
        made = next(trainer.samplers[phase.name].epoch())
        assert torch.isfinite(phase.loss(made))


# A predictable walk


@cache
def cycle(items: int = 40, users: int = 60, steps: int = 14) -> unskew.Split:
    """Each user starts anywhere on a circle of items and goes on by one, at some time of the day. Nobody
    comes round."""
    random = np.random.default_rng(0)
    start, begin = random.integers(0, items, users), random.integers(0, 1000, users)
    step = np.arange(steps)
    time = begin[:, None] + 20 * step + random.integers(0, 20, (users, steps))
    table = {
        "user": np.repeat(np.arange(users), steps),
        "item": ((start[:, None] + step) % items).ravel(),
        "time": time.ravel(),
    }
    return unskew.split(unskew.read(table), shares=(80, 10, 10))


# What reads no history cannot learn to walk.
WALKERS = [
    kind for kind in MODELS.values() if "history" in {field.name for field in dataclasses.fields(kind.Config)}
]


@pytest.mark.parametrize("kind", WALKERS, ids=lambda kind: kind.name)
def test_it_learns_a_predictable_walk(kind: type[Recommender]) -> None:
    split = cycle()
    settings = Training(rounds=6, patience=9, batch_size=32, sequences=16, learning_rate=1e-2)
    config = tiny(
        kind, width=16, hidden=16, inner=32, heads=1, history=4, audience=4, unsupervised_rounds=2, samples=4
    )
    model, trainer = train(split, kind.name, config, settings)
    tested = held_out(split, "test", "ordinary")
    popularity = Popularity(split, Popularity.Config(recency="total"))
    found, chance = (
        evaluation(split, rank(each, split, tested.rows), "full", tested).mean("ndcg@10")
        for each in (model, popularity)
    )
    assert chance < 0.25
    assert found > 0.4
    assert found > 2 * chance
    valid = [record["valid"]["ordinary"]["ndcg@10"] for record in trainer.records if "valid" in record]
    assert not trainer.stages or max(valid) > 0.4


# Killed and resumed: bit for bit the same

CRITERIA = ("ordinary", "balanced")
FEW = Training(rounds=2, batch_size=40, sequences=5, valid_rows=30, patience=9, seed=2)


class Killed(Exception):  # noqa: N818
    pass


@cache
def small(**more: Any) -> unskew.Split:
    return unskew.split(
        unskew.read(
            random_table(**{"rows": 300, "users": 20, "items": 15, "times": 100, "negatives": 0.0} | more)
        )
    )


def wrapped(backbone: str, **weighting: Any) -> tuple[str, Any]:
    kind = model_named(f"debiased-{backbone}")
    short = {"past_items": 5, "past_users": 4, "propensity_width": 6, "propensity_rounds": 1}
    return kind.name, kind.Config(backbone=tiny(MODELS[backbone]), **short | weighting)


RESUMED = [(kind.name, tiny(kind, copies=1, propensity_rounds=1)) for kind in MODELS.values()]
RESUMED += [wrapped("sasrec", weights="ips"), wrapped("din", weights="snips")]


def killed_everywhere(
    split: unskew.Split, name: str, config: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Train, and die in the middle of an epoch of each phase, with the last step lost, and at the end of each
    round. How often."""
    died = set()
    save = RunFolder.save

    def checkpoint(self: RunFolder, trainer: Trainer) -> None:
        at = trainer.progress
        stage = trainer.stages[at.stage]
        phase = stage.phases[at.phase].name
        step, moment = trainer.samplers[phase].step, (stage.name, phase)
        assert len(trainer.samplers[phase]) > 2
        if step == 1:
            save(self, trainer, None)
        if step == 2 and moment not in died:
            died.add(moment)
            raise Killed

    def at_the_end(self: RunFolder, trainer: Trainer, record: dict[str, Any] | None) -> None:
        save(self, trainer, record)
        if record is not None and (record["stage"], record["round"]) not in died:
            died.add((record["stage"], record["round"]))
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "maybe_checkpoint", checkpoint)
        patched.setattr(RunFolder, "save", at_the_end)
        for _ in range(50):
            try:
                train(split, name, config, FEW, folder, resume=True)
            except Killed:
                continue
            return len(died)
    raise AssertionError("never finished")


def left_behind(folder: Path) -> dict[str, Any]:
    """All that a run says of itself, but for how fast it was."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in folder.glob("*.safetensors")}
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    found["records"] = [
        {key: value for key, value in line.items() if key not in ("rows_per_s", "peak_gb")} for line in lines
    ]
    return found | {"card": json.loads((folder / "card.json").read_text())}


@pytest.mark.parametrize(("name", "config"), RESUMED, ids=[name for name, _ in RESUMED])
def test_a_killed_run_ends_bit_for_bit_where_it_would_have(
    name: str, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = small()
    _, trainer = train(split, name, config, FEW, tmp_path / "whole")
    died = killed_everywhere(split, name, config, tmp_path / "killed", monkeypatch)
    phases = {(stage.name, phase.name) for stage in trainer.stages for phase in stage.phases}
    assert died == len(phases) + sum(stage.rounds for stage in trainer.stages)
    whole, killed = (left_behind(tmp_path / run) for run in ("whole", "killed"))
    assert {f"weights-{criterion}.safetensors" for criterion in CRITERIA} < whole.keys()
    assert whole == killed


# Logs with moments that hold much


def finite(trainer: Trainer) -> None:
    for state in (trainer.model.state_dict(), *trainer.best.values()):
        assert all(bool(value.isfinite().all()) for value in state.values() if value.is_floating_point())
    numbers = [
        number
        for record in trainer.records
        for number in [*record["losses"].values(), *record.get("statistics", {}).values()]
    ]
    assert np.isfinite(numbers).all()


def trained_and_tested(kind: type[Recommender], split: unskew.Split, **more: Any) -> Trainer:
    torch.manual_seed(0)
    settings = Training(rounds=1, batch_size=64, sequences=8, valid_rows=30)
    start = kind(split, tiny(kind, copies=1, propensity_rounds=1, **more)).state_dict()
    model, trainer = train(split, kind.name, tiny(kind, copies=1, propensity_rounds=1, **more), settings)
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
    shares = (6, 0, 4) if moments == 2 else (6, 3, 3)
    split = unskew.split(log, shares=shares)
    assert len(np.unique(log.time)) == moments
    assert len(np.unique(log.time[split.mask("train")])) == 1
    return split


@every_model
@pytest.mark.parametrize("moments", [2, 3])
def test_all_of_training_may_be_one_moment(kind: type[Recommender], moments: int) -> None:
    """Nobody has a past while it trains, and everybody has one afterwards."""
    split = at_once(moments)
    trainer = trained_and_tested(kind, split)
    assert set(trainer.best) == ({*CRITERIA, "shown"} if moments == 3 else set())


@cache
def baskets() -> unskew.Split:
    """Each user comes three to seven times and takes 1, 2 or 14 things at once: far more than a model reads
    that reads four."""
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


# Rare ids


@cache
def with_rare_ids() -> unskew.Split:
    """Some users and items have one or two positives in training, some have none."""
    split = unskew.split(
        unskew.read(random_table(rows=360, users=90, items=70, times=200, negatives=0.0)), min_count=3
    )
    for known, ids in ((split.item_ids, split.log.items), (split.user_ids, split.log.users)):
        assert known.rare is not None
        assert 5 < known.rare.sum() < known.size - 5
        assert known.size < len(ids)
    return split


def with_embeddings(kind: type[Recommender]) -> bool:
    return any(isinstance(module, Embeddings) for module in kind(with_rare_ids(), tiny(kind)).modules())


def test_who_has_embeddings() -> None:
    assert {kind.name for kind in MODELS.values() if not with_embeddings(kind)} == {"popularity", "itemknn"}


@every_model
def test_rare_ids_train_evaluate_and_survive_a_trip_to_the_disk(
    kind: type[Recommender], tmp_path: Path
) -> None:
    split = with_rare_ids()
    settings = dataclasses.asdict(tiny(kind, copies=1, propensity_rounds=1)) | {
        "rounds": 1,
        "sequences": 8,
        "batch_size": 64,
    }
    made = create_model(kind.name, settings | {"valid_rows": 30}).fit(split, tmp_path / "run")
    assert made._trainer is not None
    finite(made._trainer)
    there = unskew.load(tmp_path / "run")
    everyone = [*split.log.users.ids.to_pylist(), "nobody"]
    for test in CRITERIA:
        found = made.evaluate(split, test=test)
        assert len(found.user) > 50
        assert found.metrics() == there.evaluate(split, test=test).metrics()
    assert made.recommend(users=everyone).table.num_rows == 10 * len(everyone)
    assert made.recommend(users=everyone).table.equals(there.recommend(users=everyone).table)
    assert made.recommend(histories=[["i1", "i2"], []]).table.equals(
        there.recommend(histories=[["i1", "i2"], []]).table
    )


@pytest.mark.parametrize(
    "kind",
    [kind for kind in MODELS.values() if kind.name not in ("popularity", "itemknn")],
    ids=lambda kind: kind.name,
)
@torch.no_grad()
def test_who_is_rare_is_as_unknown_as_who_was_never_seen(kind: type[Recommender]) -> None:
    """As a candidate, in a history, in an audience and as the user who asks."""
    split = with_rare_ids()
    model = builder(kind)(split)
    rare_items, rare_users = (
        torch.from_numpy(np.flatnonzero(known.rare)) for known in (split.item_ids, split.user_ids)
    )
    new_item, new_user = split.known_items, split.known_users

    def scores(candidates: Tensor, user: int, history: list[int], audience: list[int]) -> Tensor:
        rows = batch(split.log, [0], [0], candidates.numpy()[None], None, HISTORY, AUDIENCE)
        read = {
            "user_B": torch.tensor([user]),
            "history_BL": torch.tensor([history]),
            "audience_AM": torch.tensor([audience]),
        }
        return model(rows._replace(**read, audience_of_BC=torch.zeros_like(rows.candidates_BC)))[0]

    own = torch.from_numpy(np.flatnonzero(~split.item_ids.rare)[:4])
    strangers = torch.cat([rare_items, torch.tensor([new_item, new_item + 3, len(split.log.items) + 9])])
    usual = (int(np.flatnonzero(~split.user_ids.rare)[0]), own[:2].tolist(), [0, 1])
    found = scores(strangers, *usual)
    close(found, found[:1].expand(len(found)))
    assert len(scores(own, *usual).unique()) == len(own)
    for history in (
        [int(rare_items[0]), int(own[0])],
        [int(rare_items[1]), int(own[0])],
        [len(split.log.items) + 9, int(own[0])],
    ):
        close(
            scores(own, usual[0], history, usual[2]), scores(own, usual[0], [new_item, int(own[0])], usual[2])
        )
    for user in (int(rare_users[0]), int(rare_users[1]), len(split.log.users) + 9):
        close(scores(own, user, *usual[1:]), scores(own, new_user, *usual[1:]))
        close(scores(own, *usual[:2], [user, 0]), scores(own, *usual[:2], [new_user, 0]))


# Whole sequences are each of their targets by itself

ONE_PASS = [kind for kind in MODELS.values() if issubclass(kind, NextItem)]


def tied(model: Recommender, split: unskew.Split, phase: str) -> SequenceBatch:
    """The largest batch of an epoch. Some of its targets have events of the same moment in their window,
    before or after them."""
    made = max(
        Trainer(model, split, Training(sequences=6)).samplers[phase].epoch(),
        key=lambda each: int(each.target_BL.sum()),
    )
    assert isinstance(made, SequenceBatch)
    row_N, past_N, _, _ = made.targets()
    place_N = made.target_BL.nonzero()[:, 1] - (made.items_BL == PAD).sum(1)[row_N]
    assert int((past_N < place_N).sum()) > 2
    return made


def strictly_before(split: unskew.Split, rows: SequenceBatch, b: int, place: int) -> tuple[Tensor, int]:
    """What the window of an event holds of earlier times, by the times of the log; and its own time."""
    time = split.log.time[rows.event_BL[b].numpy()]
    earlier = torch.from_numpy(time < time[place]) & (rows.items_BL[b] != PAD)
    return rows.items_BL[b][earlier], int(time[place])


@cache
def with_ties() -> unskew.Split:
    return unskew.split(unskew.read(random_table(rows=500, users=12, items=15, times=60, negatives=0.0)))


@pytest.mark.parametrize("history", [4, 200], ids=["windows", "everything"])
@pytest.mark.parametrize("kind", ONE_PASS, ids=lambda kind: kind.name)
@torch.no_grad()
def test_one_pass_is_each_target_by_itself(
    kind: type[NextItem], history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of a batch of sequences is that of contexts which hold just the items strictly before their
    own moment."""
    split = with_ties()
    torch.manual_seed(0)
    model = kind(split, tiny(kind, dropout=0.0, state_dropout=0.0, history=history, samples=5)).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.3)
    phase = model.stages(1)[-1].phases[-1]
    rows = tied(model, split, phase.name)
    weight = torch.rand(rows.items_BL.shape) + 0.5
    given: list[Tensor] = []
    loss_of = model.loss_of
    monkeypatch.setattr(model, "loss_of", lambda *those: given.extend(those) or loss_of(*those))
    reseed(1)
    found = phase.loss(rows._replace(weight_BL=weight))
    states, weights = [], []
    for b, place in rows.target_BL.nonzero().tolist():
        before, time = strictly_before(split, rows, b, place)
        asked = contexts(split.log, rows.user_B[b : b + 1].numpy(), [time], history)
        if history == 200:  # the same as what evaluation reads
            assert asked.history_BL[0].tolist() == before.tolist()
        states.append(model.context(asked._replace(history_BL=before[None]))[0, : given[0].shape[1]])
        weights.append(weight[b, place])
    close(given[0], torch.stack(states))
    if kind is not USR:  # which has weights of its own beside these
        close(given[2], torch.stack(weights))
    reseed(1)
    close(found, loss_of(torch.stack(states), rows.items_BL[rows.target_BL], given[2]))


@pytest.mark.parametrize("history", [1, 3])
@torch.no_grad()
def test_one_pass_of_fpmc_is_each_target_by_itself(history: int, monkeypatch: pytest.MonkeyPatch) -> None:
    split = with_ties()
    torch.manual_seed(0)
    model = FPMC(split, FPMC.Config(width=4, history=history))
    monkeypatch.setattr("unskew.models.fpmc.another", lambda item, items: (item + 7) % items)
    rows = tied(model, split, "S-BPR")
    terms = []
    for b, place in rows.target_BL.nonzero().tolist():
        target, (_, time) = int(rows.items_BL[b, place]), strictly_before(split, rows, b, place)
        user, pair = rows.user_B[b : b + 1].numpy(), [[target, (target + 7) % split.known_items]]
        scores = model(batch(split.log, user, [time], pair, None, history, 0))[0]
        terms.append(functional.softplus(scores[1] - scores[0]))
    close(model.sbpr_loss(rows), torch.stack(terms).mean())


@pytest.mark.parametrize("kind", [DEPS, CausalDEPS], ids=lambda kind: kind.name)
@torch.no_grad()
def test_one_pass_of_the_propensities_is_each_event_by_itself(kind: type[DEPS]) -> None:
    """From both views, through the probabilities that weights are made of; and, where the encoders are
    causal, in stage 1, too."""
    split, everything = with_ties(), 200
    log = split.log
    model = kind(
        split, tiny(kind, history=everything, audience=everything, dropout=0.0, hidden_ids=0.0)
    ).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.3)
    rows = next(Trainer(model, split, Training(sequences=6)).samplers["propensity"].epoch())
    terms, masked = [], []
    for b, place in is_real(rows.items_BL).nonzero().tolist():
        before, time = strictly_before(split, rows, b, place)
        made = batch(
            log,
            rows.user_B[b : b + 1].numpy(),
            [time],
            rows.items_BL[b, place : place + 1].numpy(),
            None,
            everything,
            everything,
        )
        assert made.history_BL[0].tolist() == before.tolist()
        terms.append(-model.propensity.item_view(made).log())
        masked.append(next_of(model.history_encoder, model.items, before, int(rows.items_BL[b, place])))
    for b, place in is_real(rows.users_BM).nonzero().tolist():
        event = rows.users_event_BM[b, place]
        user, time = rows.users_BM[b, place : place + 1].numpy(), log.audiences.times[event : event + 1]
        made = batch(log, user, time, rows.item_B[b : b + 1].numpy(), None, everything, everything)
        terms.append(-model.propensity.user_view(made).log())
        masked.append(
            next_of(
                model.audience_encoder, model.users, made.audience_AM[made.audience_of_BC[0, 0]], int(user[0])
            )
        )
    assert len(terms) > 60
    close(model.autoregressive_loss(rows), torch.cat(terms).mean())
    if kind is CausalDEPS:
        some_past = [term for term in masked if term is not None]
        assert 20 < len(some_past) < len(masked) - 3
        close(model.masked_loss(rows), model.config.mlm_weight * torch.stack(some_past).mean())


def next_of(encoder: nn.Module, table: Embeddings, before: Tensor, target: int) -> Tensor | None:
    """-log P of an id after those before it; nothing where there are none."""
    if not len(before) or not isinstance(encoder, PrefixEncoder):
        return None
    return -torch.log_softmax(table.table() @ encoder(table(before[None]))[0, -1], 0)[target]
