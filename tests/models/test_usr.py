"""USR: the worked numbers, that nothing of the recommender's loss reaches the propensity, and that no state
sees its target."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unskew
from tests.conftest import random_table
from tests.helpers.by_hand import sequences
from unskew.data.batches.batch import SequenceBatch, batch, batch_of_rows
from unskew.data.log.views import PAD
from unskew.models.base import Training, build
from unskew.models.usr import USR, Exposure, inverse, propensities
from unskew.nn.layers import Embeddings, reseed
from unskew.training.trainer import Trainer

LOGITS = torch.tensor([1.0, 2.0, 5.0]).log()


def small(split: unskew.Split, **config: Any) -> USR:
    defaults = {"width": 6, "hidden": 5, "history": 7, "gru_layers": 1, "dropout": 0.0}
    return build(USR, split, USR.Config(**{**defaults, **config}))


def first_batch(model: USR, split: unskew.Split, phase: str) -> SequenceBatch:
    return next(Trainer(model, split, Training(sequences=16)).samplers[phase].epoch())


def three_items() -> Embeddings:
    items = Embeddings(3, 1)
    with torch.no_grad():
        items.weight[:] = LOGITS[:, None]
    return items


def test_the_worked_weights() -> None:
    p = propensities(torch.ones(3, 1), torch.arange(3), three_items(), 0.2)
    torch.testing.assert_close(p, torch.tensor([0.125, 0.25, 0.625]))
    torch.testing.assert_close(inverse(p, 0.2), 0.2 * torch.tensor([5.0, 4.0, 1.6]))
    positives, losses = p[[0, 2]], torch.tensor([0.5, 1.0])
    assert float((inverse(positives, 0.2) * losses).mean()) == pytest.approx(0.2 * 2.05)
    assert float((inverse(positives, 1e-9) * losses).mean()) == pytest.approx(1e-9 * 2.8)
    assert float((inverse(positives, 0.2, normalised=True) * losses).mean()) == pytest.approx(
        0.621212, abs=1e-6
    )


class Always(nn.Module):
    """Shows the same to everybody."""

    def forward(self, embedded_BLD: Tensor, learning: bool) -> tuple[Tensor, None]:
        return torch.ones(len(embedded_BLD), embedded_BLD.shape[1] + 1, 1), None


def worked(split: unskew.Split, **config: Any) -> tuple[USR, SequenceBatch]:
    """Three items that are shown as above, and a recommender that prefers none; the first items of two users
    are 0 and 2."""
    model = small(split, width=1, confounder="none", clip=0.2, **config)
    model.exposure, model.items = Always(), three_items()  # type: ignore[assignment]
    return model, sequences([[0], [2]])


def test_the_worked_losses(split: unskew.Split) -> None:
    model, rows = worked(split)
    with torch.no_grad():
        assert float(model.propensity_loss(rows)) == pytest.approx(1.274723, abs=1e-6)
        # All states are the start, which is zero: every loss is ln 3, so what is left is the mean weight.
        assert float(model.next_item_loss(rows)) == pytest.approx(0.2 * (5 + 1.6) / 2 * np.log(3), abs=1e-5)
        of_one = rows._replace(weight_BL=torch.tensor([[1.0], [0.0]]))
        assert float(model.next_item_loss(of_one)) == pytest.approx(0.2 * 5 / 2 * np.log(3), abs=1e-5)
        normalised, _ = worked(split, weights="snips")
        assert float(normalised.next_item_loss(rows)) == pytest.approx(np.log(3), abs=1e-5)
        assert float(normalised.next_item_loss(of_one)) == pytest.approx(5 / 6.6 * np.log(3), abs=1e-5)


@pytest.mark.parametrize(
    "config", [{"clip": 0.02}, {"clip": 1.0, "clip_unit": "uniform"}, {"clip": 1.0}], ids=str
)
def test_no_weight_is_above_one(
    split: unskew.Split, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M / max(p, M): clipping gradients by their norm means the same as without weights, whatever M is."""
    model, given = small(split, **config), []
    with torch.no_grad():
        model.exposure.out.weight.mul_(20)  # so that propensities differ
    monkeypatch.setattr(
        model, "loss_of", lambda states, *more: given.append((more[0], more[1])) or states.sum()
    )
    model.next_item_loss(first_batch(model, split, "recommendation"))
    ((targets, weight),) = given
    assert len(targets) > 50
    assert float(weight.max()) == 1
    assert (float(weight.min()) < 0.9) == (model.clip < 1)


@pytest.mark.parametrize("confounder", ["step", "recurrent", "none"])
def test_each_loss_reaches_its_own_network_and_no_other(split: unskew.Split, confounder: str) -> None:
    model = small(split, confounder=confounder).train()
    of_exposure = {name for name, _ in model.named_parameters() if name.startswith("exposure.")}
    for phase in model.stages(1)[1].phases:
        model.zero_grad()
        phase.loss(first_batch(model, split, phase.name)).backward()
        reached = {name for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}
        everything = {name for name, _ in model.named_parameters()}
        assert reached == (of_exposure if phase.name == "propensity" else everything - of_exposure)
        mine = {id(p) for p in phase.parameters()}
        assert {name for name, p in model.named_parameters() if id(p) in mine} == reached


@pytest.mark.parametrize("confounder", ["step", "recurrent", "none"])
def test_one_pass_is_every_prefix_by_itself(confounder: str) -> None:
    """Each event as a context with what the user had strictly before, all items as candidates, and its own
    propensity."""
    split = unskew.split(unskew.read(random_table(rows=500, users=16, times=60)))
    model = small(split, confounder=confounder, clip=0.03, history=200)
    rows = first_batch(model, split, "recommendation")
    log, items, terms, of_exposure, ties = split.log, np.arange(split.known_items), [], [], 0
    weights = torch.rand(rows.items_BL.shape, generator=torch.Generator().manual_seed(0)) + 0.5
    with torch.no_grad():
        for b, user in enumerate(rows.user_B.tolist()):
            history = rows.items_BL[b][rows.items_BL[b] != PAD]
            padding = rows.items_BL.shape[1] - len(history)
            times = log.time[rows.event_BL[b, padding:].numpy()]
            for place, target in enumerate(history.tolist()):
                before = history[None, times < times[place]]
                ties += len(before[0]) < place
                alone = batch(log, [user], [10**6], items[None], None, 0, 0)._replace(history_BL=before)
                ce = -torch.log_softmax(model(alone)[0], 0)[target]
                shown = model.exposure(model.items(before), learning=False)[0][0, -1]
                p = torch.softmax(model.items.weight @ shown, 0)[target]
                terms.append(0.03 / max(float(p), 0.03) * ce * weights[b, padding + place])
                of_exposure.append(-p.log())
        assert ties > 20
        assert 0.1 < np.mean([float(term) > 1 for term in of_exposure])
        torch.testing.assert_close(
            model.next_item_loss(rows._replace(weight_BL=weights)), torch.stack(terms).mean()
        )
        torch.testing.assert_close(model.propensity_loss(rows), torch.stack(of_exposure).mean())


@pytest.mark.parametrize("confounder", ["step", "recurrent", "none"])
def test_no_state_sees_its_target(split: unskew.Split, confounder: str) -> None:
    """A network that reads what it predicts learns to copy, and all its weights become one."""
    model = small(split, confounder=confounder).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    changed = torch.tensor([[3, 1, 9, 2, 6]])
    with torch.no_grad():
        for found, other in zip(model._exposed(ids), model._exposed(changed), strict=True):
            if found is None or other is None:
                assert confounder == "none"
                continue
            assert found.shape[1] == 6
            torch.testing.assert_close(found[:, :3], other[:, :3])
            assert not torch.isclose(found[:, 3:], other[:, 3:]).all(2).any()


def test_the_confounder_is_in_the_product_and_beside_the_state(split: unskew.Split) -> None:
    model, ids = small(split).eval(), torch.tensor([[3, 1, 4]])
    exposure = model.exposure
    assert exposure.first is not None
    assert exposure.second is not None
    assert model.beside is not None
    with torch.no_grad():
        embedded = model.items(ids)
        h = exposure.gru(torch.cat([exposure.start.expand(1, 1, -1), embedded], 1))[0]
        z = exposure.second(functional.relu(exposure.first(h)))
        shown, confounder = exposure(embedded, learning=False)
        torch.testing.assert_close(confounder, z)
        torch.testing.assert_close(shown, exposure.out(h * z))
        mine = torch.cat([model.start.expand(1, 1, -1), model.gru(embedded)[0]], 1)
        torch.testing.assert_close(
            model.states(torch.tensor([0]), ids), model.beside(torch.cat([mine, z], 2))
        )


def test_a_recurrent_confounder_depends_on_the_one_before() -> None:
    exposure = Exposure(4, 3, 1, 0.0, "recurrent")
    assert exposure.first is not None
    assert exposure.second is not None
    embedded = torch.randn(2, 3, 4)
    with torch.no_grad():
        states = exposure.gru(torch.cat([exposure.start.expand(2, 1, -1), embedded], 1))[0]
        before = torch.zeros(2, 4)
        for place in range(4):
            before = exposure.second(
                functional.relu(exposure.first(torch.cat([states[:, place], before], 1)))
            )
            torch.testing.assert_close(exposure(embedded, learning=False)[1][:, place], before)


def test_weights_do_not_depend_on_a_draw(split: unskew.Split) -> None:
    """While the recommender learns, the propensity drops nothing; while it learns itself, it does."""
    model = small(split, dropout=0.5).train()
    ids = torch.tensor([[3, 1, 4]])
    assert torch.equal(model._exposed(ids)[0], model._exposed(ids)[0])
    reseed(1)
    one, two = (model.exposure(model.items(ids), learning=True)[0] for _ in range(2))
    assert not torch.equal(one, two)


def test_the_clip_in_multiples_of_a_uniform_choice(split: unskew.Split) -> None:
    assert small(split).clip == 0.1
    assert small(split, clip=2.0, clip_unit="uniform").clip == pytest.approx(2 / split.known_items)
    for wrong in ({"clip": 2.0}, {"clip": 0.0}, {"clip": 1e6, "clip_unit": "uniform"}):
        with pytest.raises(unskew.BadInput, match="clip"):
            small(split, **wrong)


def test_the_clipped_share_is_of_clicks(split: unskew.Split) -> None:
    model = small(split, clip=1.0, clip_unit="uniform").eval()
    with torch.no_grad():
        model.exposure.out.weight.mul_(20)  # so that propensities differ
    rows = np.flatnonzero(split.mask("train"))[::5]
    made = batch_of_rows(split.log, rows, 7, 0)
    p = []
    with torch.no_grad():
        for b in np.flatnonzero(split.log.label[rows] == 1):
            history = made.history_BL[b][made.history_BL[b] != PAD]
            shown = model.exposure(model.items(history[None]), learning=False)[0][0, -1]
            p.append(float(torch.softmax(model.items.weight @ shown, 0)[made.candidates_BC[b, 0]]))
    found = model.statistics(made)
    assert found["clipped"] == pytest.approx(np.mean(np.array(p) < 1 / split.known_items), abs=2e-3)
    assert 0.1 < found["clipped"] < 0.9
    assert found["weight"] == pytest.approx(
        np.mean(1 / split.known_items / np.maximum(p, 1 / split.known_items)), rel=1e-4
    )
    assert found["weight_deviation"] > 0
    assert model.statistics(batch_of_rows(split.log, np.flatnonzero(split.log.label == 0)[:5], 7, 0)) == {}


def test_the_propensity_comes_first_and_then_in_turns(split: unskew.Split) -> None:
    first, second = small(split, propensity_epochs=3, propensity_passes=2).stages(9)
    assert (first.epochs, first.validated, second.epochs, second.validated) == (3, False, 9, True)
    assert [phase.name for phase in first.phases] == ["propensity"]
    assert [(phase.name, phase.passes, phase.weighted) for phase in second.phases] == [
        ("propensity", 2, False),
        ("recommendation", 1, True),
    ]
    assert {phase.batches for phase in second.phases} == {"histories"}


@pytest.mark.parametrize(
    "config",
    [{"confounder": "recurrent"}, {"confounder": "none"}, {"weights": "snips"}, {"clip_unit": "uniform"}],
)
def test_every_variant_trains(split: unskew.Split, config: dict[str, Any]) -> None:
    trainer = Trainer(small(split, **config), split, Training(epochs=1, sequences=64, valid_examples=20))
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.run()
    assert all(not torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
