"""Pulse where items have tags: what it learns from them, and that everything else is as it is without."""

import dataclasses
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.conftest import random_table
from tests.helpers.contract import builder, close
from unskew.data.batches.batch import batch, contexts
from unskew.data.log.views import PAD
from unskew.models.base import Recommender, build
from unskew.models.pulse.model import Pulse, PulseSampler, PulseZero
from unskew.testing.models import catalog_equals_forward, cut_at, example_split

KINDS = [None, "a|b", "b", "c|a|d", "d", ""]


@cache
def split(repeats: str = "hide", features: str | None = "kind,price") -> unskew.Split:
    table = random_table(negatives=0.0)
    number = [int(item[1:]) for item in table["item"].to_pylist()]
    table = table.append_column("kind", [[KINDS[n % 6] for n in number]])
    table = table.append_column("price", [[n / 2 for n in number]])
    return unskew.split(unskew.read(table, item_features=features), repeats=repeats)


def scores(model: Recommender, log: unskew.Log, users: np.ndarray, time: int, items: int) -> Tensor:
    """Of each user, the scores of the first items at a time, by `forward`."""
    rows = batch(log, users, np.full(len(users), time), np.tile(np.arange(items), (len(users), 1)), None)
    past = contexts(log, users, np.full(len(users), time), model.history)
    return model(rows._replace(history_BL=past.history_BL, history_times_BL=past.history_times_BL))


@torch.no_grad()
@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_a_log_that_is_cut_gives_the_same_scores(repeats: str) -> None:
    cut = split(repeats)
    model = builder(Pulse)(cut)
    assert model.tag_skip is not None
    model.tag_skip.copy_(torch.tensor([2.0, -3.0]))
    catalog_equals_forward(lambda _: model, cut)
    for time in (3, 150, cut.train_end, 490):
        then = cut_at(cut, time).log
        users, items = np.array([*range(len(then.users)), len(cut.log.users) + 3, PAD]), len(then.items)
        whole, past = (scores(model, log, users, time, items) for log in (cut.log, then))
        close(past, whole, 1e-5)
        found = model.catalog(then, time, time + 1).scores(
            contexts(then, users, np.full(len(users), time), model.history)
        )
        close(found[:, :items], whole, 1e-5)


@torch.no_grad()
def test_a_taste_is_added_to_the_clicks_and_not_to_the_exposure() -> None:
    cut = split()
    model, log, users = builder(Pulse)(cut), cut.log, np.array([0, 1, 2, PAD])
    assert isinstance(model, Pulse)
    assert model.tag_skip is not None
    model.set_debias(0.5)
    found, exposure = [], []
    for weight in ([0.0, 0.0], [1.5, -0.5]):
        model.tag_skip.copy_(torch.tensor(weight))
        found.append(scores(model, log, users, 400, len(log.items)))
        exposure.append(model.log_exposure(log, np.arange(len(log.items)), 400))
    read = model.signals(log).of_requests(contexts(log, users, np.full(4, 400), model.history))
    assert read.tastes is not None
    c = np.stack([read.tastes.of_request(row, np.array([1.5, -0.5], np.float32)) for row in range(4)])
    close(found[1] - found[0], torch.from_numpy(c))
    assert float(np.abs(c[:3]).max()) > 0.1
    assert torch.equal(exposure[0], exposure[1])


# Without tags


def test_without_categories_nothing_is_there() -> None:
    """Neither weights nor anything that is read; numbers are no categories."""
    for features in (None, "price"):
        model = build(Pulse, split(features=features), Pulse.Config(sample=50))
        sampler = PulseSampler(model, split(features=features), 0, 16)
        assert model.tag_skip is None
        assert not any("tag" in name for name in model.state_dict())
        assert model.signals(split(features=features).log).tags is None
        assert next(sampler.epoch()).c_BCF is None


def test_tags_change_nothing_that_is_drawn() -> None:
    """The same initial weights, rows and negatives; where no taste is learned, the same scores."""
    bare, cut = split(features=None), split()
    made = []
    for one in (bare, cut):
        torch.manual_seed(0)
        model = build(Pulse, one, Pulse.Config(sample=50))
        made.append((model, next(PulseSampler(model, one, 0, 16).epoch())))
    (plain, first), (model, second) = made
    state = model.state_dict()
    assert state.pop("tag_skip").tolist() == [0, 0]
    assert all(torch.equal(state[name], value) for name, value in plain.state_dict().items())
    assert second.c_BCF is not None
    assert second.c_BCF.shape == (16, 65, 2)
    for one, other in zip(first, second._replace(c_BCF=None), strict=True):
        assert one is other is None or torch.equal(one, other)
    assert torch.equal(plain.softmax_loss(first), model.softmax_loss(second))


@torch.no_grad()
def test_the_weights_that_come_with_the_package_read_no_tags() -> None:
    bare, cut, users = split(features=None), split(), np.array([0, 1, 2, PAD])
    models = [build(PulseZero, each, PulseZero.Config()) for each in (bare, cut)]
    one, other = (
        scores(model, each.log, users, 450, 40) for model, each in zip(models, (bare, cut), strict=True)
    )
    assert torch.equal(one, other)
    assert models[1].tag_skip is None
    assert models[1].signals(cut.log).tags is None


@torch.no_grad()
def test_a_log_without_features_is_scored_by_what_was_learned_with_them() -> None:
    model, users = builder(Pulse)(split()), np.array([0, 1, 2, PAD])
    bare = split(features=None).log
    assert model.tag_skip is not None
    found = scores(model, bare, users, 450, 40)
    model.tag_skip.zero_()
    assert torch.equal(found, scores(model, bare, users, 450, 40))


# Whole runs


def test_rows_that_are_read_have_the_tastes_of_their_candidates() -> None:
    cut = example_split()
    model = build(Pulse, cut, Pulse.Config(sample=700, drawn=3, horizon="next"))
    read = PulseSampler(model, cut, 0, 16)._read  # more than walk together
    rows = read.event_B.numpy()
    assert len(rows) > 512
    context = contexts(cut.log, cut.log.user[rows], cut.log.time[rows], model.history)
    tastes = model.signals(cut.log).of_requests(context).tastes
    assert tastes is not None
    assert read.c_BCF is not None
    for column in range(4):
        expected = tastes.of_pairs(np.arange(len(rows)), read.candidates_BC[:, column].numpy())
        np.testing.assert_array_equal(read.c_BCF[:, column].numpy(), expected)


@cache
def people_with_tastes() -> unskew.Split:
    """Everybody takes things of one kind, and so few of so many that hardly any two people share one."""
    random = np.random.default_rng(0)
    user = random.integers(0, 500, 3000)
    other = random.random(3000) > 0.9
    item = 25 * random.integers(0, 40, 3000) + np.where(other, random.integers(0, 25, 3000), user % 25)
    time = 10**9 + 3600 * np.arange(3000)
    kind = [f"kind {n % 25}" for n in item]
    log = unskew.read({"user": user, "item": item, "time": time, "kind": kind}, item_features="kind")
    return unskew.split(log, repeats="hide")


def test_it_learns_tastes_and_is_the_same_from_a_disk(tmp_path: Path) -> None:
    cut = people_with_tastes()
    bare = dataclasses.replace(
        cut, log=dataclasses.replace(cut.log, items=dataclasses.replace(cut.log.items, features={}))
    )
    brief = {"sample": 1000, "epochs": 5, "batch_size": 16, "valid_examples": 200}
    model, plain = (
        unskew.create_model("pulse", brief).fit(each, show_progress=False) for each in (cut, bare)
    )
    found, rival = (
        one.evaluate(each, sample=400, show_progress=False).mean("ndcg@10")
        for one, each in ((model, cut), (plain, bare))
    )
    assert found > 1.2 * rival
    assert float(model.network.tag_skip.detach().sum()) > 0.5
    model.save(tmp_path / "saved")
    again = unskew.load(tmp_path / "saved")
    for asked in ({"users": [1, 2, 10**6]}, {"histories": [[1, 21, 41], []]}):
        assert again.recommend(**asked).table.equals(model.recommend(**asked).table)
