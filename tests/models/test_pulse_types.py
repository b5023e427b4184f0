"""Pulse reads context events and the intervals between repeats, and nothing of the future."""

import numpy as np
import pytest
import torch

import unskew
from unskew.data.batches.batch import contexts
from unskew.data.log.split import cut_log
from unskew.models.pulse.model import ITEM_FEATURES, NEIGHBOUR_FEATURES, Pulse
from unskew.models.pulse.repeats import Intervals
from unskew.models.pulse.signals import FLOOR, HALF_LIVES, OF_TYPE, Signals
from unskew.nn.reasons import ReasonKind

DAY = 86400
TYPES = {"type": "type", "target": "purchase", "context": "view,cart"}


def shop(size: int = 600, seed: int = 3) -> dict[str, list[object]]:
    """Users buy what they viewed an hour before, again and again."""
    random = np.random.default_rng(seed)
    rows: dict[str, list[object]] = {"user": [], "item": [], "time": [], "type": []}
    for number in range(size):
        user, item = int(random.integers(30)), int(random.integers(40))
        for kind, after in (("view", 0), ("purchase", 3600)):
            values = (user, item, number * 7200 + after, kind)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
        rows["user"].append(user)
        rows["item"].append(int(random.integers(40)))
        rows["time"].append(number * 7200 + 100)
        rows["type"].append("cart")
    return rows


@pytest.fixture(scope="module")
def log() -> unskew.Log:
    return unskew.read(shop(), **TYPES)


def read(log: unskew.Log, time: int, *, repeats: bool = True) -> tuple[Signals, object]:
    signals = Signals(log, DAY, repeats, types=("cart", "view"), intervals=True)
    users = np.arange(len(log.users), dtype=np.int64)
    return signals, signals.of_requests(contexts(log, users, np.full(len(users), time), 200))


def test_items_have_the_shares_of_each_type(log: unskew.Log) -> None:
    time = log.now // 2
    signals, _ = read(log, time)
    items = np.arange(len(log.items))
    a = signals.of_items(items, np.full(len(items), time))
    assert a.shape == (len(items), ITEM_FEATURES + 2 * len(HALF_LIVES))
    (everything,) = signals.of_everything(np.array([time]))
    np.testing.assert_allclose(a, everything, rtol=1e-5)
    total = log.histories.times[log.histories.times < time]
    for place, kind in enumerate(("cart", "view")):
        _, item, when = log.context[kind].events()
        for column, life in enumerate(HALF_LIVES):
            decay = np.where(when < time, np.exp2(-(time - when) / (life * DAY)), 0)
            counts = np.bincount(item, decay, minlength=len(items))
            of_all = np.exp2(-(time - total) / (life * DAY)).sum()
            expected = np.log(counts + FLOOR) - np.log(of_all + FLOOR)
            found = a[:, ITEM_FEATURES + place * len(HALF_LIVES) + column]
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_own_context_events_are_counted_strictly_before(log: unskew.Log) -> None:
    user, item, when = log.context["view"].events()
    row = 300
    for time, among in ((int(when[row]), when < when[row]), (int(when[row]) + 1, when <= when[row])):
        _, found = read(log, time)
        value = found.of_pairs(user[row : row + 1], item[row : row + 1])[0]
        count, days, one = value[NEIGHBOUR_FEATURES + OF_TYPE + 3 : NEIGHBOUR_FEATURES + 2 * OF_TYPE]
        own = among & (user == user[row]) & (item == item[row])
        assert count == pytest.approx(np.log1p(own.sum()))
        assert one == (1 if own.any() else 0)
        if own.any():
            assert days == pytest.approx(np.log1p((time - when[own].max()) / DAY), abs=1e-5)


def test_users_with_the_same_views_are_neighbours() -> None:
    """ann and bob viewed tea and share no purchase; bob bought milk after it."""
    rows = {
        "user": ["bob", "bob", "ann", "cat", "bob"],
        "item": ["tea", "milk", "tea", "rice", "salt"],
        "time": [DAY, 2 * DAY, 3 * DAY, 3 * DAY, DAY],
        "type": ["view", "purchase", "view", "purchase", "purchase"],
    }
    log = unskew.read(rows, **TYPES)
    signals = Signals(log, DAY, False, types=("view",))
    ann = log.users.codes(["ann"]).astype(np.int64)
    found = signals.of_requests(contexts(log, ann, np.array([4 * DAY]), 10))
    names = ["milk", "salt", "rice"]
    values = found.of_pairs(np.zeros(3, np.int64), log.items.codes(names).astype(np.int64))
    recent, ever, after = values[:, NEIGHBOUR_FEATURES : NEIGHBOUR_FEATURES + 3].T
    assert (ever[0] > 0, ever[1] > 0, ever[2] > 0) == (True, True, False)
    assert (after[0] > 0, after[1] > 0) == (True, False)  # salt came before the view was over
    assert (values[:, :NEIGHBOUR_FEATURES] == 0).all()
    assert recent[0] > recent[1]


def test_items_that_are_due_again() -> None:
    """tea is bought every 10 days; ann bought it 10 days ago, and bob yesterday."""
    rows = [("ann", "tea", day) for day in (0, 10, 20)] + [("bob", "tea", day) for day in (9, 19, 29)]
    rows += [("bob", "rice", 5), ("ann", "rice", 40)]
    names = ("user", "item", "time")
    log = unskew.read(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    signals = Signals(log, 1, True, intervals=True)
    users = log.users.codes(["ann", "bob"]).astype(np.int64)
    found = signals.of_requests(contexts(log, users, np.array([30, 30]), 50))
    items = np.full(2, log.items.codes(["tea"])[0], np.int64)
    due_item, due_own, known = found.of_pairs(np.arange(2), items)[:, NEIGHBOUR_FEATURES:].T
    assert due_item == pytest.approx([0, np.log1p(1) - np.log1p(10)], abs=1e-3)
    assert due_own == pytest.approx(due_item, abs=1e-3)
    assert known.tolist() == [1, 1]
    rice = np.full(2, log.items.codes(["rice"])[0], np.int64)
    assert (found.of_pairs(np.arange(2), rice)[:, NEIGHBOUR_FEATURES:] == 0).all()  # never taken again
    at_ten = signals.of_requests(contexts(log, users[:1], np.array([10]), 50))
    assert (
        at_ten.of_pairs(np.zeros(1, np.int64), items[:1])[0, -1] == 0
    )  # the interval ends at 10, not before


def test_intervals_of_a_live_log_are_those_of_the_log_read_again() -> None:
    rows = {"user": ["a", "a", "b", "b"], "item": ["x", "x", "x", "y"], "time": [0, 5, 6, 6]}
    live = unskew.Live(unskew.read(rows))
    intervals = Intervals(live, 1.0)
    assert len(intervals.ended.everything()[0]) == 1
    for user, time in (("b", 9), ("a", 20), ("b", 7)):  # the last comes late and splits an interval
        live.append([user], ["x"], [time])
        again = Intervals(unskew.read(live), 1.0)
        mine, theirs = (each.ended.ids[each.ended.everything()[1]].tolist() for each in (intervals, again))
        assert sorted(mine) == sorted(theirs)


def trained(log: unskew.Log, **settings: object) -> unskew.Model:
    model = unskew.create_model("pulse", {"sample": 300, "drawn": 8, "seed": 1, "epochs": 3, **settings})
    model.fit(unskew.split(log, fractions=(70, 15, 15)), show_progress=False)
    return model


def test_views_are_worth_something_and_scores_read_no_future(log: unskew.Log) -> None:
    model = trained(log)
    network = model.network
    assert isinstance(network, Pulse)
    assert network.types == ("cart", "view")
    assert network.more_of_pair.abs().sum() > 0
    split = model.split
    time = (split.valid_end + log.now) // 2
    cut, users = cut_log(log, time), np.arange(20, dtype=np.int64)
    batches = [contexts(each, users, np.full(20, time), network.history) for each in (log, cut)]
    with torch.no_grad():
        scores = [
            network.catalog(each, time, time + 1).scores(batch)
            for each, batch in zip((log, cut), batches, strict=True)
        ]
    existing = int(log.audiences.existing(time))
    torch.testing.assert_close(scores[0][:, :existing], scores[1][:, :existing], rtol=1e-4, atol=1e-4)
    without = trained(log, reads="targets")
    gain, base = (each.evaluate(split).mean("ndcg@10") for each in (model, without))
    assert gain > 1.5 * base


def test_a_live_log_is_scored_as_the_log_read_again(log: unskew.Log) -> None:
    network = trained(log).network
    live, now = unskew.Live(log), log.now
    catalog = network.catalog(live, now, now + 1)
    user = log.users.codes([3]).astype(np.int64)
    for moment, item, kind in ((now + 5, 7, "view"), (now + 6, 8, "cart"), (now + 9, 7, "purchase")):
        live.append([3], [item], [moment], [kind])
        time = np.array([live.now])
        mine = catalog.scores(contexts(live, user, time, network.history))
        fresh = network.catalog(unskew.Live(unskew.read(live)), int(time[0]), int(time[0]) + 1)
        other = fresh.scores(contexts(fresh.log, user, time, network.history))
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)


def test_shipped_weights_score_as_before_where_types_are_read(log: unskew.Log) -> None:
    """The weights of what only some logs have begin at zero."""
    split = unskew.split(log, fractions=(70, 15, 15))
    scores = []
    for reads in ("all", "types", "repeats", "targets"):
        model = unskew.create_model("pulse", {"start": "kept", "reads": reads})
        model.fit(split, show_progress=False)
        assert isinstance(model.network, Pulse)
        assert bool(model.network.types) == (reads in ("all", "types"))
        assert model.network.reads_due == (split.repeats and reads in ("all", "repeats"))
        time = np.full(5, log.now)
        context = contexts(log, np.arange(5, dtype=np.int64), time, 200)
        with torch.no_grad():
            scores.append(model.network.catalog(log, log.now, log.now + 1).scores(context))
    for other in scores[1:]:
        torch.testing.assert_close(scores[0], other, rtol=0, atol=0)


def test_reasons_add_up_to_the_score(log: unskew.Log) -> None:
    network = trained(log).network
    time = np.full(3, log.now)
    context, items = contexts(log, np.arange(3, dtype=np.int64), time, network.history), np.arange(12)
    catalog = network.catalog(log, log.now, log.now + 1)
    with torch.no_grad():
        (scores,) = catalog.scores_at_strengths(context, (0.7,))
    for row, reasons in enumerate(catalog.reasons(context, [items] * 3, 0.7)):
        for item, of_item in zip(items, reasons, strict=True):
            assert sum(each.part for each in of_item) == pytest.approx(float(scores[row, item]), abs=1e-3)
            # The user's own views and carts of an item are a reason if and only if there are any.
            histories = [views.histories for views in log.context.values()]
            looked = any(
                item in view.ids[int(view.starts[row]) : int(view.ends[row])].tolist() for view in histories
            )
            assert looked == any(each.kind is ReasonKind.CONTEXT for each in of_item)
