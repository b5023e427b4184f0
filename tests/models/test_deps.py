"""DEPS: its equations, Algorithm 1, and its ablations."""

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.by_hand import sequences
from tests.helpers.contract import (
    AUDIENCE,
    HISTORY,
    TINY,
    builder,
    catalog_equals_forward,
    close,
    first_batch,
    some,
    tiny,
)
from unskew.data.log.views import PAD
from unskew.models.base import Training, build
from unskew.models.deps import DEPS, masked_prediction
from unskew.models.deps_causal import CausalDEPS
from unskew.nn.layers import Table, is_real, reseed
from unskew.nn.phases import Phase, Stage
from unskew.training.trainer import Trainer

# The equations


def test_the_prediction_is_a_two_layer_mlp_over_four_parts(split: unskew.Split) -> None:
    """Eq. prediction, EmbedSeqI, EmbedSeqU, each pair by itself."""
    model, rows = builder(DEPS)(split), some(split.log)
    parts = (model.of_history, model.of_item, model.of_audience, model.of_user)
    first = torch.cat([part.weight for part in parts], dim=1)
    with torch.no_grad():
        scores = model(rows)
        for b in range(len(rows.user_B)):
            for c in range(rows.candidates_BC.shape[1]):
                history, audience = (
                    rows.history_BL[b : b + 1],
                    rows.audience_AM[rows.audience_of_BC[b, c]][None],
                )
                read = model.history_encoder.mean(model.items(history), is_real(history))[0]
                met = model.audience_encoder.mean(model.users(audience), is_real(audience))[0]
                joined = torch.cat(
                    [read, model.items(rows.candidates_BC[b, c]), met, model.users(rows.user_B[b])]
                )
                hidden = functional.relu(first @ joined + model.of_item.bias)
                close(scores[b, c], (model.last.weight @ hidden + model.last.bias)[0])


def test_the_unbiased_loss_is_weighted_cross_entropy(split: unskew.Split) -> None:
    model = builder(DEPS)(split)
    rows = first_batch(model, model.stages(1)[1].phases[-1], split)
    with torch.no_grad():
        p, y, w = (
            torch.sigmoid(model(rows)),
            rows.labels_BC,
            model.config.clip * model.propensity.weights(rows),
        )
        assert float(w.max()) <= 1
        assert 0 < y.mean() < 1
        expected = (w * -(y * p.log() + (1 - y) * (1 - p).log())).mean()
        close(model.unbiased_loss(rows), expected)
        assert not torch.allclose(expected, functional.binary_cross_entropy(p, y))


def test_the_masked_loss_is_lambda_times_the_mean_per_place(split: unskew.Split) -> None:
    model = builder(DEPS)(split)
    rows = first_batch(model, model.stages(1)[0].phases[0], split)
    with torch.no_grad():
        reseed(1)
        loss = model.masked_loss(rows)
        reseed(1)
        items = masked_prediction(model.history_encoder, model.items, rows.items_BL, 0.2)
        users = masked_prediction(model.audience_encoder, model.users, rows.users_BM, 0.2)
        close(loss, 0.5 * (items.loss + users.loss) / (items.places + users.places))


class Mirror(nn.Module):
    """An encoder that gives back what it is given, and remembers it."""

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        self.x, self.real = x, real
        return x


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.5])
def test_masking_hides_the_right_share_and_never_nobody(fraction: float) -> None:
    torch.manual_seed(0)
    lengths = [0, 1, 2, 5, 7, 10]
    ids = torch.full((len(lengths), 10), PAD)
    for row, length in enumerate(lengths):
        ids[row, 10 - length :] = torch.arange(length) + row
    table, mirror = Table(20, 4), Mirror()
    with torch.no_grad():
        table.unknown.fill_(9.0)
    ever = torch.zeros(ids.shape, dtype=torch.bool)
    for _ in range(60):
        found = masked_prediction(mirror, table, ids, fraction)
        hidden = (mirror.x == 9).all(-1)
        ever |= hidden
        assert hidden.sum(1).tolist() == [
            max(1, round(fraction * length)) if length else 0 for length in lengths
        ]
        assert found.places == int(hidden.sum())
        assert torch.equal(mirror.real, ids != PAD)
        shown = ~hidden
        assert torch.equal(mirror.x[shown], table(ids)[shown])  # all others are there as they are
    assert torch.equal(ever, ids != PAD)  # every place is hidden some time, and no padding ever
    expected = functional.cross_entropy(
        table.unknown.expand(found.places, 4) @ table.weight.T, ids[hidden], reduction="sum"
    )
    close(found.loss, expected)


# Algorithm 1

THETA_E, THETA_T = {"items", "users"}, {"history_encoder", "audience_encoder"}
THETA_M, THETA_P = {"of_history", "of_item", "of_audience", "of_user", "last"}, {"propensity"}
CHANGED = {"propensity": THETA_P, "masked": THETA_E | THETA_T, "unbiased": THETA_E | THETA_T | THETA_M}


@pytest.mark.parametrize("name", CHANGED)
def test_each_phase_changes_its_own_parameters_and_no_others(split: unskew.Split, name: str) -> None:
    model = builder(DEPS)(split).train()
    trainer = Trainer(model, split, Training(epochs=1))
    phase = next(phase for stage in trainer.stages for phase in stage.phases if phase.name == name)
    before = {key: value.clone() for key, value in model.named_parameters()}
    phase.loss(first_batch(model, phase, split)).backward()
    touched = {key for key, p in model.named_parameters() if p.grad is not None}
    trainer.optimizers[name].step()
    changed = {key for key, value in model.named_parameters() if not torch.equal(value, before[key])}
    expected = {key for key in before if key.split(".")[0] in CHANGED[name]}
    assert changed == expected
    assert touched == expected  # the loss itself asks for nothing else
    mine = {id(parameter) for parameter in phase.parameters()}
    assert {key for key, parameter in model.named_parameters() if id(parameter) in mine} == expected


def test_the_stages_are_algorithm_1(split: unskew.Split) -> None:
    walked = []

    class Recorded(Trainer):
        def _epoch(self, stage: Stage, phase: Phase) -> int:
            walked.append((stage.name, phase.name))
            return super()._epoch(stage, phase)

    config = tiny(DEPS, unsupervised_epochs=2, propensity_passes=3)
    Recorded(
        build(DEPS, split, config),
        split,
        Training(epochs=2, batch_size=512, sequences=128, valid_examples=20),
    ).run()
    warm_up = [("unsupervised", "propensity"), ("unsupervised", "masked")]
    main = [("unbiased", "propensity")] * 3 + [("unbiased", "unbiased")]
    assert walked == warm_up * 2 + main * 2
    first, second = build(DEPS, split, config).stages(2)
    assert (first.validated, second.validated) == (False, True)
    assert [phase.batches for phase in second.phases] == ["sequences", "pairs"]


OWN = {field.name for field in dataclasses.fields(DEPS.Config)}
ABLATIONS = {
    name: DEPS.Config(**{key: value for key, value in of.items() if key in OWN})
    for name, of in DEPS.presets.items()
    if not name.startswith("paper")
}
ABLATIONS["deps"] = DEPS.Config()


@pytest.mark.parametrize("name", ABLATIONS)
def test_every_ablation_builds_and_takes_a_step(split: unskew.Split, name: str) -> None:
    torch.manual_seed(0)
    config = dataclasses.replace(
        ABLATIONS[name],
        history=HISTORY,
        audience=AUDIENCE,
        **{k: v for k, v in TINY.items() if k not in ("unsupervised_epochs", "sample")},
    )
    model = build(DEPS, split, config).train()
    assert model.trained_parameter_names() == {key for key, _ in model.named_parameters()}
    assert model.stages(1)[0].epochs == config.unsupervised_epochs
    trainer = Trainer(model, split, Training(epochs=1))
    for stage in trainer.stages:
        for phase in stage.phases:
            before = {key: value.clone() for key, value in model.state_dict().items()}
            loss = phase.loss(first_batch(model, phase, split))
            assert bool(loss.isfinite())
            trainer.optimizers[phase.name].zero_grad()
            loss.backward()
            trainer.optimizers[phase.name].step()
            assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items())
    catalog_equals_forward(lambda split: model.eval(), split)


@pytest.mark.parametrize("reads", ["both", "history", "audience"])
@pytest.mark.parametrize("estimated", ["dual", "item", "user"])
@pytest.mark.parametrize("kind", [DEPS, CausalDEPS], ids=lambda kind: kind.name)
def test_a_batch_without_a_sequence_of_the_only_view_has_a_gradient(
    split: unskew.Split, kind: type[DEPS], reads: str, estimated: str
) -> None:
    """There are as many batches as the larger of the two views needs, so the other one may have none in the
    last of them."""
    model = build(kind, split, tiny(kind, reads=reads, propensity=estimated))
    for rows in (sequences([[1, 2, 3]]), sequences([], audiences=[[4, 5, 6]]), sequences([])):
        for phase in model.stages(1)[0].phases:
            model.zero_grad()
            loss = phase.loss(rows)
            loss.backward()
            assert bool(loss.isfinite())
            assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
            view = {
                "propensity": estimated,
                "masked": {"history": "item", "audience": "user"}.get(reads, "dual"),
            }[phase.name]
            there = (view != "user" and rows.items_BL.numel() > 0) or (
                view != "item" and rows.users_BM.numel() > 0
            )
            assert (loss.item() > 0) == there


def test_what_the_ablations_leave_out(split: unskew.Split) -> None:
    full = build(DEPS, split, tiny(DEPS))
    rows = first_batch(full, full.stages(1)[1].phases[-1], split)
    other_past = rows._replace(history_BL=rows.history_BL.flip(0), audience_AM=rows.audience_AM.flip(0))
    kept: dict[str, tuple[Any, ...]] = {}
    for name, config in ABLATIONS.items():
        torch.manual_seed(0)
        model = build(DEPS, split, dataclasses.replace(config, history=HISTORY, audience=AUDIENCE)).eval()
        with torch.no_grad():
            reads_history = not torch.equal(
                model(rows), model(rows._replace(history_BL=other_past.history_BL))
            )
            reads_audience = not torch.equal(
                model(rows), model(rows._replace(audience_AM=other_past.audience_AM))
            )
            views = [
                name
                for name in ("item", "user")
                if getattr(model.propensity, f"{name}_view")(rows) is not None
            ]
        phases = Counter(phase.name for stage in model.stages(1) if stage.epochs for phase in stage.phases)
        kept[name] = reads_history, reads_audience, "+".join(views), phases["propensity"], phases["masked"]
    assert kept == {
        "deps": (True, True, "item+user", 2, 1),
        "softmax": (True, True, "item+user", 2, 1),
        "auto": (True, True, "item", 0, 1),
        "without-ips": (True, True, "", 0, 1),
        "item-view": (True, True, "item", 2, 1),
        "user-view": (True, True, "user", 2, 1),
        "without-history": (False, True, "user", 2, 1),
        "without-audience": (True, False, "item", 2, 1),
        "without-stage-1": (True, True, "item+user", 1, 0),
        "item-pro": (True, True, "item", 0, 1),
        "user-pro": (True, True, "user", 0, 1),
        "item-user-pro": (True, True, "item+user", 0, 1),
    }


def test_logged_propensities_train_it() -> None:
    table = random_table(negatives=0.7)
    log = unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(table.num_rows)]]))
    split = unskew.split(log)
    model = build(DEPS, split, tiny(DEPS, propensity="logged", clip=0.25))
    rows = first_batch(model, model.stages(1)[1].phases[-1], split)
    assert torch.equal(model.propensity.weights(rows), 1 / rows.logged_BC.clamp(min=0.25))
    assert [phase.name for stage in model.stages(1) for phase in stage.phases] == ["masked", "unbiased"]


def test_the_document_has_the_defaults_and_the_presets_of_the_paper() -> None:
    document = (Path(__file__).parents[2] / "docs" / "deps.md").read_text()
    header, *rows = (
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\| (?:setting \||`\w+`).*\|$", document, re.MULTILINE)
        if line.count("|") == 7
    )
    defaults = dataclasses.asdict(DEPS.Config()) | dataclasses.asdict(Training()) | DEPS.recipe
    columns = [defaults] + [defaults | DEPS.presets[name] for name in header[2:]]
    assert header == ["setting", "default", "paper", "paper-beauty", "paper-music", "paper-mind"]
    assert {row[0]: [float(cell) for cell in row[1:]] for row in rows} == {
        name: [float(column[name]) for column in columns] for name in DEPS.presets["paper"]
    }


def test_stage_1_is_the_first_fifth_of_the_authors_epochs() -> None:
    for name in ("paper", "paper-beauty", "paper-music", "paper-mind"):
        preset = DEPS.presets[name]
        total = preset["unsupervised_epochs"] + preset["epochs"]
        assert (total, preset["unsupervised_epochs"] / total) == (300, 0.2)
        assert preset["patience"] >= preset["epochs"]  # without early stopping
