"""`context-NAME`: views and carts are read in the history, with a vector for each type, and only from before
the target."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import unskew
from tests.helpers.contract import CHECKS, Check, cut_at, every_parameter_is_reached, tiny
from unskew.data.batches.batch import bare_contexts, contexts
from unskew.data.batches.context_events import (
    STRIDE,
    check_types,
    histories_with_context,
    split_events,
    with_context_events,
)
from unskew.data.batches.samplers import SequenceSampler
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, NextItem, build, model_named
from unskew.models.with_context import WithContext
from unskew.testing.models import builder, no_future_event_changes_a_score
from unskew.training.extend import CodeMapping, extend_network

TYPES = ("cart", "view")  # in the order of the names
CART, VIEW = STRIDE, 2 * STRIDE
DECLARED = {"type": "type", "target": "buy", "context": "view,cart"}


def typed(rows: int = 1200, seed: int = 0) -> pa.Table:
    """Events of three types, many of them at the same moments."""
    random = np.random.default_rng(seed)
    return pa.table(
        {
            "user": [f"u{code}" for code in random.integers(0, 40, rows)],
            "item": [f"i{code}" for code in (30 * random.random(rows) ** 2).astype(int)],
            "time": random.integers(0, 300, rows),
            "type": random.choice(["buy", "cart", "view"], rows, p=(0.4, 0.2, 0.4)),
        }
    )


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return unskew.split(unskew.read(typed(), **DECLARED))


@pytest.fixture(scope="module")
def small() -> unskew.Log:
    """Two users: events at one moment, and before and after it."""
    rows = [
        ("ann", "x", 1, "view"),
        ("ann", "x", 2, "buy"),
        ("ann", "y", 2, "cart"),
        ("ann", "z", 2, "view"),
        ("ann", "y", 3, "buy"),
        ("bob", "y", 1, "buy"),
        ("bob", "x", 4, "cart"),
    ]
    names = ("user", "item", "time", "type")
    return unskew.read(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), **DECLARED)


def events(log: unskew.Log, user: str, time: int, newest: int = 9) -> list[tuple[str, str]]:
    """The history of a user at a time: types and items."""
    made = contexts(log, log.users.codes([user]), [time], newest)
    ids, times = (part[0] for part in with_context_events(made, TYPES, newest)[2:4])
    assert (times[ids != PAD] < time).all()
    codes, kinds = split_events(ids[ids != PAD])
    names = log.items.of(codes.numpy()).to_pylist()
    return [(("buy", *TYPES)[kind], name) for kind, name in zip(kinds.tolist(), names, strict=True)]


def test_a_history_is_what_was_strictly_before(small: unskew.Log) -> None:
    assert events(small, "ann", 1) == []
    assert events(small, "ann", 2) == [("view", "x")]
    at_two = [("buy", "x"), ("cart", "y"), ("view", "z")]
    assert events(small, "ann", 3) == [("view", "x"), *at_two]
    assert events(small, "ann", 4) == [("view", "x"), *at_two, ("buy", "y")]
    assert events(small, "ann", 4, newest=2) == [("view", "z"), ("buy", "y")]
    assert events(small, "bob", 5) == [("buy", "y"), ("cart", "x")]
    merged, row = histories_with_context(small, TYPES)
    start, end = merged.before(small.users.codes(["ann"]), 9)
    assert merged.times[start[0] : end[0]].tolist() == [1, 2, 2, 2, 3]
    assert (row[start[0] : end[0]] != PAD).tolist() == [False, True, False, False, True]
    assert (small.item[row[row != PAD]] == merged.ids[row != PAD]).all()


def test_users_whom_the_log_does_not_have_bring_no_context(small: unskew.Log) -> None:
    """Bare histories keep the order that they were given in."""
    made = bare_contexts(
        np.array([len(small.users), PAD]), np.array([[1, 0], [PAD, 1]], np.int32), np.array([9, 9])
    )
    assert with_context_events(made._replace(log=small), TYPES, 2).history_BL.tolist() == [[1, 0], [PAD, 1]]
    assert with_context_events(made, TYPES, 2).history_BL.tolist() == [[1, 0], [PAD, 1]]


@pytest.mark.parametrize("repeats", ["keep", "hide"])
def test_training_reads_what_a_request_reads(split: unskew.Split, repeats: str) -> None:
    """Each positive is a target once, and what its window says was before it is what `context` would read."""
    split = unskew.split(split.log, repeats=repeats)
    log, found = split.log, []
    for made in SequenceSampler(split, 16, 0, 10_000, None, overlap=1, types=TYPES).epoch():
        for row, place in made.target_BL.nonzero().tolist():
            event = int(made.event_BL[row, place])
            found.append(event)
            assert made.items_BL[row, place] == log.item[event]
            read = made.items_BL[row][made.items_BL[row] != PAD][: int(made.past_BL[row, place])]
            asked = contexts(log, log.user[[event]], log.time[[event]], 10_000)
            ids = with_context_events(asked, TYPES, 10_000).history_BL[0]
            assert read.tolist() == ids[ids != PAD].tolist()
    positives = np.arange(log.positives)
    wanted = (log.time[positives] < split.train_end) & (split.repeats | ~log.repeated[positives])
    assert sorted(found) == positives[wanted].tolist()


def test_windows_are_short_and_hold_targets(split: unskew.Split) -> None:
    log, found = split.log, []
    for made in SequenceSampler(split, 16, 0, 12, None, overlap=1, types=TYPES).epoch():
        assert made.target_BL.any(1).all()
        assert (made.event_BL[made.items_BL >= STRIDE] == PAD).all()
        assert (log.time[made.event_BL[made.event_BL != PAD]] < split.train_end).all()
        assert made.past_BL[made.target_BL].max() <= 12
        found += made.event_BL[made.target_BL].tolist()
    assert len(found) == len(set(found)) == int((log.time[: log.positives] < split.train_end).sum())


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", ["sasrec", "gru4rec"])
def test_the_contract(check: Check, name: str, split: unskew.Split) -> None:
    kind = model_named(f"context-{name}")
    check(builder(kind, tiny(kind)), split)


OTHERS = {name for name, kind in MODELS.items() if issubclass(kind, NextItem)} - {"sasrec", "gru4rec"}


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_the_contract_of_the_others(name: str, split: unskew.Split) -> None:
    kind = model_named(f"context-{name}")
    for check in (no_future_event_changes_a_score, every_parameter_is_reached):
        check(builder(kind, tiny(kind)), split)


@torch.no_grad()
def test_types_are_told_apart_and_the_backbone_reads_none() -> None:
    """The same events at times of their own, but views are carts and carts are views."""
    table = typed()
    table = table.set_column(2, "time", [np.random.default_rng(1).permutation(len(table))])
    other = {"buy": "buy", "cart": "view", "view": "cart"}
    swapped = table.set_column(3, "type", [[other[kind] for kind in table["type"].to_pylist()]])
    log, then = (unskew.read(each, **DECLARED) for each in (table, swapped))
    assert then.users.ids.equals(log.users.ids)
    assert then.items.ids.equals(log.items.ids)
    asked = contexts(log, np.arange(len(log.users)), np.full(len(log.users), log.now), 8)
    for name, reads in (("context-sasrec", True), ("sasrec", False)):
        kind = model_named(name)
        model = builder(kind, tiny(kind))(unskew.split(log))
        assert torch.allclose(model.context(asked), model.context(asked._replace(log=then))) != reads


def test_what_is_refused(split: unskew.Split) -> None:
    plain = unskew.split(unskew.read(typed().drop_columns("type")))
    with pytest.raises(unskew.BadInput, match="context-sasrec: this log has no context events"):
        build(model_named("context-sasrec"), plain, model_named("context-sasrec").Config())
    for name in ("pulse", "bert4rec"):
        with pytest.raises(unskew.BadInput, match=f"context-{name}: only models of next items .*sasrec"):
            model_named(f"context-{name}")
    with pytest.raises(unskew.BadInput, match="16 context types"):
        check_types([f"type {number}" for number in range(16)])
    kind = model_named("context-gru4rec")
    assert issubclass(kind, WithContext)
    assert build(kind, split, tiny(kind)).exported is None


def funnel(users: int = 150, seed: int = 0) -> pa.Table:
    """Everybody buys what is in the cart, and carts are filled at random: nothing else says what comes."""
    random, rows = np.random.default_rng(seed), []
    for user in range(users):
        for time in np.sort(random.integers(0, 10_000, 6)).tolist():
            item = f"i{random.integers(0, 12)}"
            rows += [(f"u{user}", item, time, "cart"), (f"u{user}", item, time + 1, "buy")]
    names = ("user", "item", "time", "type")
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def test_it_learns_from_carts_and_is_stored_and_served(tmp_path) -> None:
    log = unskew.read(funnel(), **DECLARED)
    cut = unskew.split(log, repeats="keep")
    brief = {
        "epochs": 6,
        "sequences": 32,
        "learning_rate": 0.01,
        "valid_examples": 50,
        "hidden": 16,
        "width": 16,
    }
    plain, made = (
        unskew.create_model(name, brief | {"loss": "cross-entropy", "optimizer": "adam"}).fit(
            cut, show_progress=False
        )
        for name in ("gru4rec", "context-gru4rec")
    )
    hits = [model.evaluate(cut, cutoffs=(1,)).metrics()["hr@1"] for model in (plain, made)]
    assert hits[0] < 0.3
    assert hits[1] > 0.8

    made.save(tmp_path / "run")
    loaded = unskew.load(tmp_path / "run")
    assert (loaded.name, loaded.network.context_types) == ("context-gru4rec", TYPES)
    live = unskew.Live(loaded.known_log)
    live.append(["u3", "a stranger"], ["i7", "i5"], [log.now + 5, log.now + 5], types=["cart", "cart"])
    frozen = unskew.read(live)
    for newer in (live, frozen):
        table = loaded.recommend(users=["u3", "a stranger"], log=newer, k=1).table
        assert table["item_id"].to_pylist() == ["i7", "i5"]
        assert table["source"].to_pylist() == ["model", "model"]  # the model knows who only filled a cart


def test_a_finer_cut_of_a_typed_log(split: unskew.Split) -> None:
    """What the contract calls the past has no context event of later, either."""
    then = cut_at(split, split.valid_end)
    assert all(views.histories.times.max() < split.valid_end for views in then.log.context.values())
    assert len(then.log.context) == len(TYPES)


@torch.no_grad()
def test_it_can_be_extended(split: unskew.Split) -> None:
    """For the same users and items with the same vectors of types: the same scores."""
    kind = model_named("context-sasrec")
    before = builder(kind, tiny(kind))(split)
    after = extend_network(before, split.known, CodeMapping.none(split.log)).network
    asked = contexts(
        split.log, np.arange(len(split.log.users)), np.full(len(split.log.users), split.log.now), 8
    )
    assert torch.equal(after.context(asked), before.context(asked))
