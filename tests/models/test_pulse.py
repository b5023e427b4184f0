"""Pulse: the contract, its two heads and its debiasing strength, and a trip to the disk. How it learns is
tested in `test_pulse_learning.py`."""

import copy
import dataclasses
import gc
import json
import weakref
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.conftest import random_table
from tests.helpers.contract import builder, close
from unskew.data.batches.batch import batch, contexts
from unskew.data.log.views import PAD
from unskew.models.base import build
from unskew.models.pulse import model as pulse
from unskew.models.pulse import scoring as pulse_catalog
from unskew.models.pulse.model import Pulse
from unskew.testing.models import catalog_equals_forward, check_model, cut_at

BRIEF: dict[str, Any] = {"sample": 300, "epochs": 2, "valid_examples": 100}


def test_the_contract_with_its_own_width() -> None:
    check_model(Pulse, Pulse.Config(sample=300))


def test_it_is_small_and_knows_nobody(split: unskew.Split) -> None:
    other = unskew.split(unskew.read(random_table(rows=100, users=9, items=7, negatives=0.0)))
    one, two = (build(Pulse, cut, Pulse.Config()).state_dict() for cut in (split, other))
    assert {name: value.shape for name, value in one.items()} == {
        name: value.shape for name, value in two.items()
    }
    assert 1500 < sum(p.numel() for p in build(Pulse, split, Pulse.Config()).parameters()) < 2500


# Scores


@cache
def made(repeats: str = "hide") -> tuple[unskew.Split, Pulse]:
    """Away from its initial values, with a debiasing strength in between."""
    cut = unskew.split(unskew.read(random_table(negatives=0.0)), repeats=repeats)
    model = builder(Pulse)(cut)
    assert isinstance(model, Pulse)
    model.set_debias(0.5)
    return cut, model


def everything_at(log: unskew.Log, users: np.ndarray, time: int, model: Pulse, items: int) -> Tensor:
    """Of each user, the scores of the first items at a time, by `forward`."""
    rows = batch(log, users, np.full(len(users), time), np.tile(np.arange(items), (len(users), 1)), None)
    past = contexts(log, users, np.full(len(users), time), model.history)
    return model(rows._replace(history_BL=past.history_BL, history_times_BL=past.history_times_BL))


def test_it_walks_on_from_as_many_people_as_it_is_told() -> None:
    """With fewer of them, fewer items are reached."""
    cut, _ = made()
    users, now = np.arange(20), cut.log.now
    found = []
    for neighbours in (1, 3, 300):
        signals = build(Pulse, cut, Pulse.Config(neighbours=neighbours)).signals(cut.log)
        read = signals.of_requests(contexts(cut.log, users, np.full(len(users), now), 20))
        found.append(int((read.values[:, 1] > 0).sum()))
    assert found[0] < found[1] < found[2]


@torch.no_grad()
@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_a_log_that_is_cut_gives_the_same_scores(repeats: str) -> None:
    """Of every item that it has, and for everybody: with and without a history, known or not."""
    cut, model = made(repeats)
    for time in (3, 150, cut.train_end, cut.valid_end, 490):
        then = cut_at(cut, time).log
        users = np.array([*range(len(then.users)), len(cut.log.users) + 3, PAD])
        items = len(then.items)
        whole, past = (everything_at(log, users, time, model, items) for log in (cut.log, then))
        close(past, whole, 1e-6)
        assert len(whole[-1].unique()) > min(items, 3)  # a new user's items differ, too
        for log in (cut.log, then):
            found = model.catalog(log, time, time + 1).scores(
                contexts(log, users, np.full(len(users), time), model.history)
            )
            close(found[:, :items], whole)


@torch.no_grad()
@pytest.mark.parametrize("debias", [0.0, 0.5, 1.0])
def test_its_catalogue_equals_forward_at_any_debias(debias: float) -> None:
    for repeats in ("hide", "keep"):
        cut, model = made(repeats)
        model.set_debias(debias)
        try:
            catalog_equals_forward(lambda _, model=model: model, cut)
        finally:
            model.set_debias(0.5)


@torch.no_grad()
def test_several_strengths_at_once_and_items_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    cut, model = made("keep")
    users = np.array([0, 1, 2, 5, PAD])
    asked = contexts(cut.log, users, np.array([40, 200, 200, 480, 480]), model.history)
    found = model.catalog(cut.log, 40, 481).scores_at_strengths(asked, (0.0, 1.0, 0.25, 0.0))
    for debias, scores in zip((0.0, 1.0, 0.25, 0.0), found, strict=True):
        model.set_debias(debias)
        close(model.catalog(cut.log, 40, 481).scores(asked), scores)
        model.set_debias(0.5)
    close(found[2], 0.75 * found[0] + 0.25 * found[1])
    assert not torch.allclose(found[0], found[1], atol=0.1)
    for piece in (1, 7, len(cut.log.items)):
        monkeypatch.setattr(pulse_catalog, "PIECE", piece)
        again = model.catalog(cut.log, 40, 481).scores_at_strengths(asked, (0, 1, 0.25, 0))
        for one, other in zip(found, again, strict=True):
            close(one, other, 1e-6)


@torch.no_grad()
def test_exposure_is_what_a_debias_takes_away() -> None:
    """The same for everybody, and a matter of the moment."""
    cut, model = made()
    users, items = np.array([0, 1, 2, PAD]), len(cut.log.items)
    found = {}
    for time in (100, 480):
        exposure = model.log_exposure(cut.log, np.arange(items), time)
        for debias in (0.0, 1.0):
            model.set_debias(debias)
            found[debias] = everything_at(cut.log, users, time, model, items)
            model.set_debias(0.5)
        close(found[0.0] - found[1.0], exposure.expand(4, -1))
        found[time] = exposure
    assert not torch.allclose(found[100], found[480], atol=0.1)
    rows = model.log_exposure(cut.log, np.arange(items), np.array([[100], [480]]))
    close(rows, torch.stack([found[100], found[480]]))


# What it takes from a log


def test_a_day_is_a_day_or_a_part_of_the_training_period() -> None:
    table = random_table(negatives=0.0)
    order = unskew.split(unskew.read(table), repeats="keep")
    dated = table.set_column(2, "time", [[10**12 + 3_600_000 * time for time in table["time"].to_pylist()]])
    clock = unskew.split(unskew.read(dated), repeats="hide")
    trained = order.log.time[order.mask("train")]
    for cut, day in ((order, (trained.max() - trained.min()) / 200), (clock, 86_400_000)):
        model = Pulse(cut.known, Pulse.Config())
        model.adapt_to_log(cut)
        assert float(model.day_ticks) == day
        assert (bool(model.repeats), model.signals(cut.log).repeats) == (cut.repeats, cut.repeats)
        assert model.signals(cut.log).day == day
    model = Pulse(order.known, Pulse.Config())
    model.adapt_to_log(dataclasses.replace(order, train_end=int(order.log.time.min())))
    assert float(model.day_ticks) > 0  # also where no time passes


def test_an_item_of_long_ago_is_known_as_a_repeat() -> None:
    user, time = [0] * 150 + [1] * 150, [*range(150)] * 2
    log = unskew.read({"user": user, "item": [n // 2 for n in range(150)] * 2, "time": time})
    model = build(Pulse, unskew.split(log, repeats="keep"), Pulse.Config())
    read = model.signals(log).of_requests(contexts(log, [0], [150], model.history))
    assert read.of_pairs(np.zeros(2, np.int64), np.array([0, 74]))[:, -1].tolist() == [1, 1]


@torch.no_grad()
def test_inputs_are_standardised_on_training_rows(small_split: unskew.Split) -> None:
    """Neither the validation set nor the test set is read."""
    measured = Pulse.Config(start="random")
    model = build(Pulse, small_split, measured)
    then = build(Pulse, cut_at(small_split, small_split.train_end), measured)
    for name, value in then.state_dict().items():
        if name.startswith(("mean_", "scale_")):
            close(model.state_dict()[name], value, 1e-6)
    log, random = small_split.log, np.random.default_rng(0)
    rows = pulse.training_rows(small_split, 0.8, len(log), random)
    read = model.signals(log).of_requests(contexts(log, log.user[rows], log.time[rows], model.history))
    assert len(rows) < pulse.MEASURED
    np.testing.assert_allclose(model.mean_u, read.profile.mean(0), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.scale_u, np.maximum(read.profile.std(0), 1e-3), rtol=1e-4)
    assert bool((model.scale_a[:-1] > 0.05).all())
    assert bool((model.scale_w[:3] > 0.1).all())


def test_what_reads_a_log_follows_the_state_and_keeps_one_log_at_most(small_split: unskew.Split) -> None:
    model = build(Pulse, small_split, Pulse.Config())
    log = small_split.log
    assert model.signals(log) is model.signals(log)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["day_ticks"] *= 2
    before = model.signals(log).day
    model.load_state_dict(state)
    assert model.signals(log).day == 2 * before
    other = unskew.read(random_table(rows=50))
    assert model.signals(other).log is other
    there = weakref.ref(other)
    model.signals(log)
    del other
    gc.collect()
    assert there() is None


# Whole runs


@cache
def friends() -> unskew.Split:
    """Friends take the same things one after the other."""
    random = np.random.default_rng(0)
    user, item, time = [], [], []
    for n in range(3000):
        group = n % 20
        user.append(5 * group + int(random.integers(5)))
        item.append(20 * (n // 400) + group if random.random() < 0.7 else int(random.integers(160)))
        time.append(10**9 + 3600 * n)
    return unskew.split(unskew.read({"user": user, "item": item, "time": time}))


def test_it_learns_and_is_the_same_from_a_disk(tmp_path: Path) -> None:
    cut = friends()
    brief = {"sample": 1000, "epochs": 3, "valid_examples": 200}
    model = unskew.create_model("pulse", brief).fit(cut, tmp_path / "run", show_progress=False)
    popular = unskew.create_model("popularity").fit(cut, show_progress=False)
    found, rival = (
        one.evaluate(cut, sample=300, show_progress=False).mean("ndcg@10") for one in (model, popular)
    )
    assert found > 2 * rival
    model.save(tmp_path / "saved")
    for folder in ("run", "saved"):
        again = unskew.load(tmp_path / folder)
        for asked in (
            {"users": [1, 2, 10**6]},
            {"histories": [[1, 21, 41], []]},
            {"users": [3], "debias": 0.25},
        ):
            assert again.recommend(**asked).table.equals(model.recommend(**asked).table)
        for test in ("ordinary", "balanced"):
            assert again.evaluate(cut, test=test, sample=50, show_progress=False).metrics() == (
                model.evaluate(cut, test=test, sample=50, show_progress=False).metrics()
            )


def test_a_refit_keeps_the_debias_and_is_the_same_from_a_disk(
    small_split: unskew.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a log whose times are only an order, whose day is therefore that of its own training period."""
    monkeypatch.setattr(pulse, "STRENGTHS", (0.25,))
    model = unskew.create_model("pulse", BRIEF).fit(small_split, show_progress=False)
    assert model.chosen == {
        "debias_now": 0.25,
        "horizon_ticks": small_split.valid_end - small_split.train_end,
    }
    again = model.refit(small_split.log, tmp_path / "again", show_progress=False)
    assert (again.network.debias, again.chosen) == (0.25, model.chosen)
    assert float(again.network.day_ticks) > 1.2 * float(model.network.day_ticks)
    there = unskew.load(tmp_path / "again")
    assert there.recommend(users=["u1", "u2"]).table.equals(again.recommend(users=["u1", "u2"]).table)


def test_a_run_knows_what_each_debias_gives(tmp_path: Path) -> None:
    """The curve of the weights that recommend, on the validation set, is what ranking at each debiasing
    strength gives."""
    cut = unskew.split(unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0)))
    model = unskew.create_model("pulse", {"epochs": 2, "sample": 200}).fit(
        cut, tmp_path / "run", show_progress=False
    )
    curve = json.loads((tmp_path / "run" / "card.json").read_text())["debias_curve"]
    assert [point["debias"] for point in curve] == list(pulse.STRENGTHS)
    best = max(model.records, key=lambda record: record.valid["ordinary"]["ndcg@10"])
    assert curve == best.strengths
    assert max(point["ordinary"] for point in curve) == best.valid["ordinary"]["ndcg@10"]
    assert max(point["balanced"] for point in curve) == best.valid["balanced"]["ndcg@10"]
    assert len({point["balanced"] for point in curve}) > 1


@torch.no_grad()
def test_a_network_that_ranks_a_live_log_can_be_copied() -> None:
    """As the monitor does beside the service."""
    cut, model = made("keep")
    live = unskew.Live(cut.log)
    context = contexts(live, np.array([0, 1]), np.array([live.now] * 2), model.history)
    found = model.catalog(live, live.now, live.now + 1).scores(context)
    twin = copy.deepcopy(model)
    close(twin.catalog(cut.log, live.now, live.now + 1).scores(context._replace(log=cut.log)), found, 0.01)
