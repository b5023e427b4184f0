"""What Pulse learns from: which positives, which negatives and how likely they were; its loss by hand."""

import dataclasses
from collections import Counter
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import quick
from tests.helpers.contract import builder, close
from tests.helpers.runs import train
from unskew.data.batches import negatives
from unskew.data.batches.batch import Batch, contexts
from unskew.data.batches.negatives import with_negatives
from unskew.models.base import Training, build
from unskew.models.pulse.model import Pulse, PulseBatch, PulseSampler, training_rows
from unskew.models.pulse.signals import (
    ITEM_FEATURES,
    NEIGHBOUR_FEATURES,
    USER_FEATURES,
    Requests,
    Signals,
)
from unskew.models.recency import ValidationMemory
from unskew.testing.models import example_split

SMALL = Pulse.Config(sample=150, drawn=9, horizon="next")


def sampler(split: unskew.Split, seed: int = 0, config: Pulse.Config = SMALL, size: int = 64) -> PulseSampler:
    return PulseSampler(build(Pulse, split, config), split, seed, size)


def same(one: PulseBatch, other: PulseBatch) -> bool:
    return all(a is b is None or torch.equal(a, b) for a, b in zip(one, other, strict=True))


# Negatives


def test_negatives_exist_and_their_probability_is_how_often_they_come(
    positive_log: unskew.Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(negatives, "RECENT", 25)
    log, drawn = positive_log, 60_000
    time = np.array([2, 60, 250, 499])
    target = np.array([0, 3, 1, 30])
    candidates, log_q = with_negatives(
        log, target, time, log.audiences.existing(time), drawn, np.random.default_rng(0)
    )
    exists = log.audiences.existing(time)
    assert (candidates[:, 0] == target).all()
    assert candidates.shape == log_q.shape == (4, 1 + drawn)
    assert (candidates[:, 1:] < exists[:, None]).all()
    assert exists[0] < exists[1] <= len(log.items)
    for row in range(len(time)):
        often = Counter(candidates[row, 1:].tolist())
        likely = dict(zip(candidates[row].tolist(), np.exp(log_q[row]).tolist(), strict=True))
        assert often.keys() == set(range(exists[row]))  # all that exist come, at this number
        assert sum(likely[item] for item in often) == pytest.approx(1, abs=1e-5)
        for item, count in often.items():
            error = 5 * np.sqrt(likely[item] / drawn)
            assert count / drawn == pytest.approx(likely[item], abs=error)


def test_half_of_the_negatives_come_from_the_newest_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand, at an odd number of them: two of five. What happens at the very moment is no past."""
    monkeypatch.setattr(negatives, "RECENT", 4)
    log = quick([(0, 0, 1), (1, 1, 2), (2, 2, 3), (3, 2, 4), (4, 1, 5), (5, 2, 6), (6, 3, 7), (7, 0, 7)])
    target, time = np.array([2, 0, 3, 0]), np.array([7, 7, 7, 2])
    existing = log.audiences.existing(time)
    candidates, log_q = with_negatives(log, target, time, existing, 5, np.random.default_rng(1))
    # Before 7 there are three items, and the newest four events are of 2, 2, 1, 2.
    by_hand = {0: 3 / 5 / 3, 1: 3 / 5 / 3 + 2 / 5 / 4, 2: 3 / 5 / 3 + 2 / 5 * 3 / 4, 3: 3 / 5 / 3}
    for row in range(3):
        expected = [by_hand[item] for item in candidates[row].tolist()]
        np.testing.assert_allclose(np.exp(log_q[row]), expected, rtol=1e-6)
    assert candidates[3].tolist() == [0] * 6
    np.testing.assert_allclose(np.exp(log_q[3]), 1, rtol=1e-6)
    many, _ = with_negatives(log, target[:1], time[:1], existing[:1], 4001, np.random.default_rng(1))
    assert set(many[0, -2000:].tolist()) == {1, 2}  # 0 is long ago
    only, log_q = with_negatives(log, target[:1], time[:1], existing[:1], 1, np.random.default_rng(1))
    assert only.shape == (1, 2)
    np.testing.assert_allclose(np.exp(log_q), 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_the_target_again_and_hidden_items_are_not_compared(repeats: str) -> None:
    split = unskew.split(example_split().log, repeats=repeats)
    log, compared = split.log, Counter[str]()
    for rows in islice(sampler(split, config=Pulse.Config(sample=120, drawn=20)).epoch(), 2):
        for row, candidates, hidden in zip(
            rows.event_B.tolist(), rows.candidates_BC.tolist(), rows.hidden_BC.tolist(), strict=True
        ):
            past = (log.user == log.user[row]) & (log.time < log.time[row]) & (log.label == 1)
            own = set(log.item[past].tolist())
            again = [item == candidates[0] for item in candidates[1:]]
            had = [item in own for item in candidates[1:]]
            expected = np.logical_or(again, had) if repeats == "hide" else again
            assert hidden == [False, *expected]
            compared.update({"own": sum(had), "other": len(had) - sum(had), "hidden": sum(hidden)})
    assert min(compared["own"], compared["other"], compared["hidden"]) > 50


# Batches


def test_a_batch_holds_what_the_log_says_of_its_rows(split: unskew.Split) -> None:
    source = sampler(split, size=40)
    log, signals = split.log, source.model.signals(split.log)
    rows = next(source.epoch())
    event, time = rows.event_B.numpy(), rows.times_B.numpy()
    assert rows.candidates_BC.shape == (40, 10)
    np.testing.assert_array_equal(rows.candidates_BC[:, 0], log.item[event])
    np.testing.assert_array_equal(time, log.time[event])
    np.testing.assert_array_equal(rows.a_BCF, signals.of_items(rows.candidates_BC.numpy(), time[:, None]))
    asked = unskew.data.batches.batch.batch_of_rows(log, event, source.model.history, 0)
    read = signals.of_requests(asked)
    np.testing.assert_array_equal(rows.u_BF, read.profile)
    for place in range(10):
        pairs = read.of_pairs(np.arange(40), rows.candidates_BC[:, place].numpy())
        np.testing.assert_array_equal(rows.w_BCF[:, place], pairs)
    assert rows.w_BCF.any()
    # So the heads of a batch are those of forward.
    model = builder(Pulse)(split)
    with torch.no_grad():
        scores = model(asked._replace(candidates_BC=rows.candidates_BC))
        items = model.item_side(rows.a_BCF)
        close(model.clicks(items, model.user_side(rows.u_BF)[:, None], rows.w_BCF), scores)


def newest_rows(split: unskew.Split, newest: float) -> np.ndarray:
    """All of the newest training positives."""
    return training_rows(split, newest, len(split.log), np.random.default_rng(0))


def test_it_learns_from_a_sample_of_the_newest_positives(split: unskew.Split) -> None:
    log = split.log
    targets = np.flatnonzero(split.targets("train", reads_audiences=True) & (log.label == 1))
    for newest in (0.8, 0.25, 1.0):
        found = newest_rows(split, newest)
        assert len(found) == pytest.approx(newest * len(targets), abs=1)
        assert set(found.tolist()) <= set(targets.tolist())
        assert log.time[found].min() >= np.delete(log.time[targets], np.searchsorted(targets, found)).max(
            initial=-1
        )
    assert len(newest_rows(split, 0.0)) == 1
    one, other = sampler(split), sampler(split, seed=1)
    assert len(one.rows) == len(set(one.rows.tolist())) == 150
    assert set(one.rows.tolist()) <= set(newest_rows(split, 0.8).tolist())
    assert one.rows.tolist() != other.rows.tolist()
    everything = sampler(split, config=Pulse.Config(sample=10**6))
    assert everything.rows.tolist() == sorted(newest_rows(split, 0.8).tolist())


def test_leave_one_out_learns_from_the_last_training_positive_of_each_user(split: unskew.Split) -> None:
    """What is read does not have the targets, just as the log has none of the test's."""
    events = [(user, user + event, 10 * user + event) for user in range(30) for event in range(6)]
    held_out = unskew.split(quick(events), kind="leave-one-out")
    log, is_target = held_out.list_targets()
    rows = np.flatnonzero(is_target)
    made = sampler(held_out)
    assert set(made.rows.tolist()) <= set(rows.tolist())
    read, model = made._read, made.model
    candidates, time = read.candidates_BC.numpy(), held_out.log.time[made.rows]
    # Items that nobody had yet are candidates, too.
    assert (candidates[:, 1:] >= log.audiences.existing(time)[:, None]).any()
    asked = log, held_out.log.user[made.rows].astype(np.int64), time
    expected = model.signals(log).of_requests(contexts(*asked, model.history))
    which = np.repeat(np.arange(len(candidates)), candidates.shape[1])
    near = expected.of_pairs(which, candidates.ravel())
    np.testing.assert_array_equal(read.w_BCF.numpy().reshape(near.shape), near)
    a = model.signals(log).of_items(candidates, time[:, None])
    np.testing.assert_array_equal(read.a_BCF.numpy(), a)
    assert (a != model.signals(held_out.log).of_items(candidates, time[:, None])).any()
    assert model.reads_all
    assert not build(Pulse, split, SMALL).reads_all


def test_every_row_comes_once_an_epoch_and_a_stopped_sampler_goes_on(split: unskew.Split) -> None:
    whole = sampler(split)
    assert len(whole) == 3
    first, second = list(whole.epoch()), list(whole.epoch())
    for epoch in (first, second):
        assert [len(rows.event_B) for rows in epoch] == [64, 64, 22]
        assert sorted(torch.cat([rows.event_B for rows in epoch]).tolist()) == whole.rows.tolist()
    assert not same(first[0], second[0])
    assert whole.state_dict() == {"epoch": 2, "step": 0}
    stopped = sampler(split)
    assert same(next(stopped.epoch()), first[0])
    assert stopped.state_dict() == {"epoch": 0, "step": 1}
    again = sampler(split)
    again.load_state_dict(stopped.state_dict())
    for expected in (first[1:], second):
        for one, other in zip(again.epoch(), expected, strict=True):
            assert same(one, other)


def test_a_training_part_without_anything_to_learn_from_is_an_error(split: unskew.Split) -> None:
    nothing = dataclasses.replace(split, train_end=int(split.log.time.min()))
    with pytest.raises(unskew.BadInput, match="the training set has no positive that anything is known ab"):
        build(Pulse, nothing, Pulse.Config())


# The loss


def random_batch(size: int, drawn: int, **more: Any) -> PulseBatch:
    random = torch.Generator().manual_seed(4)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    hidden = torch.zeros(size, drawn, dtype=torch.bool)
    hidden[0, 2] = hidden[1, 1] = hidden[1, 3] = True
    ids = torch.zeros(size, drawn, dtype=torch.int64)
    return PulseBatch(
        event_B=ids[:, 0],
        times_B=ids[:, 0],
        candidates_BC=ids,
        a_BCF=normal(size, drawn, ITEM_FEATURES),
        u_BF=normal(size, USER_FEATURES),
        w_BCF=normal(size, drawn, NEIGHBOUR_FEATURES).abs(),
        log_q_BC=normal(size, drawn) - 3,
        hidden_BC=hidden,
        **more,
    )


def by_hand(model: Pulse, rows: PulseBatch) -> float:
    """In plain loops and in double precision."""
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    a, u, w, q = (part.double().numpy() for part in (rows.a_BCF, rows.u_BF, rows.w_BCF, rows.log_q_BC))
    size, drawn = q.shape
    total = 0.0
    for head in ("clicks", "exposure"):
        losses = []
        for b in range(size):
            logits = {}
            for c in range(drawn):
                x, y = (a[b, c] - state["mean_a"]) / state["scale_a"], w[b, c] / state["scale_w"]
                if head == "clicks":
                    z = (u[b] - state["mean_u"]) / state["scale_u"]
                    inner = state["of_item.weight"] @ x + state["of_item.bias"]
                    inner += state["of_user.weight"] @ z + state["of_neighbours.weight"] @ y
                    logit = state["last.weight"][0] @ np.maximum(inner, 0)
                    logit += state["item_skip"] @ x + state["neighbour_skip"] @ y
                else:
                    inner = state["of_exposure.weight"] @ x + state["of_exposure.bias"]
                    logit = state["exposure_last.weight"][0] @ np.maximum(inner, 0)
                    logit += state["exposure_skip"] @ x
                if not rows.hidden_BC[b, c]:
                    offset = 0.0 if rows.offset_BC is None else float(rows.offset_BC[b, c])
                    logits[c] = logit - q[b, c] + offset
            losses.append(np.log(sum(np.exp(value) for value in logits.values())) - logits[0])
        weights = [1.0] * size if rows.weight_B is None else rows.weight_B.tolist()
        total += float(np.mean([weight * loss for weight, loss in zip(weights, losses, strict=True)]))
    return total


def test_the_loss_by_hand(split: unskew.Split) -> None:
    """Two softmaxes, each logit minus log Q, without what is hidden; weights and offsets where there are
    any. The debiasing strength is none of its business."""
    model = builder(Pulse)(split)
    assert isinstance(model, Pulse)
    weight, offset = torch.tensor([0.5, 2.0, 0.1]), torch.linspace(-1, 2, 12).view(3, 4)
    seen = set()
    for more in ({}, {"weight_B": weight}, {"offset_BC": offset}, {"weight_B": weight, "offset_BC": offset}):
        rows = random_batch(3, 4, **more)
        found = float(model.softmax_loss(rows).detach())
        assert found == pytest.approx(by_hand(model, rows), rel=1e-4)
        model.set_debias(0.75)
        assert float(model.softmax_loss(rows).detach()) == found
        seen.add(round(found, 3))
    assert len(seen) == 4


def test_training_is_a_function_of_its_seed(split: unskew.Split) -> None:
    def trained(seed: int) -> tuple[dict[str, torch.Tensor], list[dict[str, float]]]:
        settings = Training(epochs=1, batch_size=64, valid_examples=30, seed=seed)
        model, trainer = train(split, "pulse", SMALL, settings)
        return model.state_dict(), [record.losses for record in trainer.records]

    (one, losses), (again, same_losses), (other, _) = trained(3), trained(3), trained(4)
    assert losses == same_losses
    assert all(torch.equal(value, again[name]) for name, value in one.items())
    assert not torch.equal(one["of_item.weight"], other["of_item.weight"])


def test_validation_rows_are_read_once_and_the_figures_stay(
    split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = Signals.of_requests

    def counted(self: Signals, batch: Batch) -> Requests:
        reads.append(len(batch.user_B))
        return read(self, batch)

    def run(most: int) -> list[Any]:
        monkeypatch.setattr(ValidationMemory.__init__, "__defaults__", (most, None))
        reads.clear()
        _, trainer = train(split, "pulse", SMALL, Training(epochs=3, batch_size=64, valid_examples=30))
        return [(record.valid, record.losses) for record in trainer.records]

    monkeypatch.setattr(Signals, "of_requests", counted)
    with_memory, once = run(1 << 30), len(reads)
    # What there is no room for in memory is read once, too, and kept in a file.
    assert run(0) == with_memory
    assert len(reads) == once
