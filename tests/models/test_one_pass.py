"""One pass over whole sequences is each of their targets by itself."""

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import unskew
import unskew.models
from tests.conftest import random_table
from tests.helpers.contract import close, tiny
from unskew.data.batches.batch import SequenceBatch, batch, contexts
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, NextItem, Recommender, Training, build
from unskew.models.deps import DEPS
from unskew.models.deps_causal import CausalDEPS, PrefixEncoder
from unskew.models.fpmc import FPMC
from unskew.models.usr import USR
from unskew.nn.layers import Embeddings, is_real, reseed
from unskew.training.trainer import Trainer

ONE_PASS = [kind for kind in MODELS.values() if issubclass(kind, NextItem)]


def tied(model: Recommender, split: unskew.Split, phase: str) -> SequenceBatch:
    """The largest batch of an epoch. Some of its targets have events of the same moment in their window,
    before or after them."""
    made = max(
        Trainer(model, split, Training(sequences=6)).samplers[phase].epoch(),
        key=lambda each: int(each.target_BL.sum()),
    )
    assert isinstance(made, SequenceBatch)
    row_N, past_N, _, _, _ = made.targets()
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
    """The loss of a batch of sequences is that of contexts with just the items before their own moment."""
    split = with_ties()
    torch.manual_seed(0)
    model = build(kind, split, tiny(kind, dropout=0.0, state_dropout=0.0, history=history, samples=5)).eval()
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
    model = build(FPMC, split, FPMC.Config(width=4, history=history))
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
    config = tiny(kind, history=everything, audience=everything, dropout=0.0, hidden_ids=0.0)
    model = build(kind, split, config).eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn(parameter.shape) * 0.3)
    rows = next(Trainer(model, split, Training(sequences=6)).samplers["propensity"].epoch())
    terms, masked = [], []
    for b, place in is_real(rows.items_BL).nonzero().tolist():
        before, time = strictly_before(split, rows, b, place)
        user, item = rows.user_B[b : b + 1].numpy(), rows.items_BL[b, place : place + 1].numpy()
        made = batch(log, user, [time], item, None, everything, everything)
        assert made.history_BL[0].tolist() == before.tolist()
        terms.append(-model.propensity.item_view(made).log())
        masked.append(next_of(model.history_encoder, model.items, before, int(item[0])))
    for b, place in is_real(rows.users_BM).nonzero().tolist():
        event = rows.users_event_BM[b, place]
        user, time = rows.users_BM[b, place : place + 1].numpy(), log.audiences.times[event : event + 1]
        made = batch(log, user, time, rows.item_B[b : b + 1].numpy(), None, everything, everything)
        terms.append(-model.propensity.user_view(made).log())
        before = made.audience_AM[made.audience_of_BC[0, 0]]
        masked.append(next_of(model.audience_encoder, model.users, before, int(user[0])))
    assert len(terms) > 60
    close(model.propensity.loss(rows), torch.cat(terms).mean())
    if kind is CausalDEPS:
        some_past = [term for term in masked if term is not None]
        assert 20 < len(some_past) < len(masked) - 3
        close(model.masked_loss(rows), model.config.mlm_weight * torch.stack(some_past).mean())


def next_of(encoder: nn.Module, table: Embeddings, before: Tensor, target: int) -> Tensor | None:
    """-log P of an id after those before it; nothing where there are none."""
    if not len(before) or not isinstance(encoder, PrefixEncoder):
        return None
    return -torch.log_softmax(table.table() @ encoder(table(before[None]))[0, -1], 0)[target]
