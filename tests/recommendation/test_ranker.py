"""Lists with the caller's ids, for users and for bare histories."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

import unskew
from tests.conftest import READS, SMALL_DEPS, random_table
from tests.helpers.errors import refused
from unskew.api.create import DEPS, create_model, load
from unskew.api.model import Model
from unskew.data.batches.batch import batch
from unskew.data.log.views import PAD
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker, Recommendations


def titled(table: pa.Table) -> pa.Table:
    return table.append_column("title", pa.array([f"Title of {item}" for item in table["item"].to_pylist()]))


def lists(found: Recommendations) -> dict[Any, list[Any]]:
    """Of each user or history the items, in the order of their ranks."""
    made: dict[Any, list[Any]] = {}
    for owner, item in zip(found.table[0].to_pylist(), found.table["item_id"].to_pylist(), strict=True):
        made.setdefault(owner, []).append(item)
    return made


def seen_by(log: unskew.Log, user: str) -> list[str]:
    """From the rows themselves, oldest first."""
    rows = sorted(
        (row["time"], row["item"])
        for row in log.table().to_pylist()
        if row["user"] == user and row["label"] == 1
    )
    return [item for _, item in rows]


def well_formed(found: Recommendations, k: int) -> None:
    table = found.table
    assert table.column_names[1:4] == ["item_id", "score", "rank"]
    users, ranks, scores = (table[name].to_pylist() for name in (0, "rank", "score"))
    for user in set(users):
        mine = [place for place, other in enumerate(users) if other == user]
        assert mine == list(range(mine[0], mine[0] + len(mine)))  # together, in order
        assert [ranks[place] for place in mine] == list(range(1, len(mine) + 1))
        assert len(mine) <= k
        assert (np.diff([scores[place] for place in mine]) <= 0).all()
    assert np.isfinite(scores).all()
    assert len(set(zip(users, table["item_id"].to_pylist(), strict=True))) == len(users)  # nothing twice


# Users


def test_lists_for_users(model: Model, model_split: unskew.Split) -> None:
    users = ["u3", "u1", "u39"]
    found = model.recommend(users=users, k=5)
    well_formed(found, 5)
    assert list(lists(found)) == users  # in the order asked for
    assert all(len(items) == 5 for items in lists(found).values())
    assert (found.unknown_users, found.skipped_items) == (0, 0)


def test_seen_items_are_excluded_unless_asked_for(model: Model, model_split: unskew.Split) -> None:
    everyone = model_split.log.users.ids.to_pylist()
    new, all_of_them = (
        lists(model.recommend(users=everyone, k=30, include_seen=seen)) for seen in (False, True)
    )
    for user in everyone:
        seen = set(seen_by(model_split.log, user))
        assert len(seen) > READS[0]  # more than the model reads
        assert not seen & set(new[user])
        assert set(new[user]) | seen == set(all_of_them[user])
        assert new[user] == [item for item in all_of_them[user] if item not in seen]  # in the same order


@pytest.mark.parametrize("repeats", ["keep", "hide"])
def test_what_was_seen_is_shown_as_it_was_measured(
    model_split: unskew.Split, repeats: str, tmp_path: Path
) -> None:
    """Whether past items are candidates is one setting of the split, for evaluation, lists, loaded runs."""
    cut = unskew.split(model_split.log, repeats=repeats)
    made = create_model("sasrec", {"width": 4, "epochs": 1, "valid_examples": 20}).fit(cut, tmp_path / "run")
    seen = set(seen_by(model_split.log, "u1"))
    for one in (made, load(tmp_path / "run")):
        default = lists(one.recommend(users=["u1"], k=30))["u1"]
        assert bool(seen & set(default)) == (repeats == "keep")
        assert default == lists(one.recommend(users=["u1"], k=30, include_seen=repeats == "keep"))["u1"]
        history = [*model_split.log.items.ids.to_pylist()[:5]]
        bare = lists(one.recommend(histories=[history], k=30))[0]
        assert len(bare) == (30 if repeats == "keep" else 25)
    assert made.evaluate(cut).about["repeats"] == {"keep": "kept as candidates", "hide": "hidden"}[repeats]


def test_scores_are_those_of_the_model_now(model: Model, model_split: unskew.Split) -> None:
    log, now = model_split.log, int(model_split.log.time.max()) + 1
    found = model.recommend(users=["u5"], k=30, include_seen=True).table
    items = log.items.codes(found["item_id"].to_pylist())
    rows = batch(log, log.users.codes(["u5"]), [now], items[None], None, *READS)
    with torch.no_grad():
        expected = model.network(rows)[0]
    torch.testing.assert_close(torch.tensor(found["score"].to_pylist()), expected, atol=1e-5, rtol=1e-5)


def test_a_stranger_gets_what_an_empty_history_gets(model: Model) -> None:
    found = model.recommend(users=["u1", "nobody", "u2", "no one"], k=4)
    assert found.unknown_users == 2
    assert list(lists(found)) == ["u1", "nobody", "u2", "no one"]
    bare = model.recommend(histories=[[]], k=4)
    assert len(lists(bare)[0]) == 4
    assert lists(found)["nobody"] == lists(found)["no one"] == lists(bare)[0]
    scores = [row["score"] for row in found.table.to_pylist() if row["user_id"] == "nobody"]
    np.testing.assert_allclose(scores, bare.table["score"], atol=1e-6)


@pytest.mark.parametrize("k", [1, 30, 1000])
def test_any_k(model: Model, model_split: unskew.Split, k: int) -> None:
    found = model.recommend(users=["u1"], k=k, include_seen=True)
    well_formed(found, k)
    assert len(lists(found)["u1"]) == min(k, len(model_split.log.items))
    unseen = len(model_split.log.items) - len(set(seen_by(model_split.log, "u1")))
    assert len(lists(model.recommend(users=["u1"], k=k, include_seen=False))["u1"]) == min(k, unseen)


def test_bad_requests(model: Model) -> None:
    for wrong in ({}, {"users": ["u1"], "histories": [["i1"]]}):
        with pytest.raises(unskew.BadInput, match="one of the two"):
            model.recommend(**wrong)
    for k in (0, -3):
        with refused("k"):
            model.recommend(users=["u1"], k=k)
    with pytest.raises(unskew.BadInput, match="list of ids"):
        model.recommend(users="u1")
    with pytest.raises(unskew.BadInput, match="not trained"):
        DEPS(**SMALL_DEPS).recommend(users=["u1"])


def test_nobody_asked_is_an_empty_frame(model: Model) -> None:
    for owner, found in (("user_id", model.recommend(users=[])), ("history", model.recommend(histories=[]))):
        assert found.table.num_rows == 0
        assert found.table.column_names[:4] == [owner, "item_id", "score", "rank"]


def test_many_users_are_the_same_as_one_by_one(
    model: Model, model_split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = model_split.log.users.ids.to_pylist()
    together = model.recommend(users=everyone, k=3).table
    monkeypatch.setattr("unskew.recommendation.ranker.BLOCK", 7)
    apart = model.recommend(users=everyone, k=3).table
    assert together.drop_columns("score").equals(apart.drop_columns("score"))
    alone, among = (lists(model.recommend(users=users, k=3))["u7"] for users in (["u7"], everyone))
    assert alone == among


def test_what_nobody_had_yet_is_not_recommended() -> None:
    """What was shown and never clicked does not exist yet, and naming it does not change that."""
    table = random_table(rows=300, users=20, items=10)
    shown = pa.table({"user": ["u1"], "item": ["unwanted"], "time": [3], "label": [0]}, schema=table.schema)
    log = unskew.read(pa.concat_tables([table, shown]))
    model = create_model("popularity", {"recency": "total"}).fit(unskew.split(log))
    assert "unwanted" in log.items.ids.to_pylist()
    everything = lists(model.recommend(users=["u1"], k=99, include_seen=True))["u1"]
    assert sorted(everything) == sorted(set(log.items.ids.to_pylist()) - {"unwanted"})
    named = model.recommend(users=["u1"], include_seen=True, candidates=["unwanted", everything[2]])
    assert lists(named) == {"u1": [everything[2]]}
    assert named.items_unknown == ()


# Bare histories


@pytest.mark.parametrize("is_live", [False, True])
def test_an_item_exists_from_the_moment_after_its_first_positive(is_live: bool) -> None:
    """Strictly before, in a log that never changes, too: what is first taken at 3 can be listed at 4."""
    log = unskew.read({"user": [*"abcd"], "item": [*"xyzx"], "time": [1, 2, 3, 5]})
    everything = unskew.split(log, fractions=(100, 0, 0))
    model = create_model("popularity", {"recency": "total"}).fit(everything, show_progress=False)
    ranker = Ranker(model.network, unskew.Live(log) if is_live else log)
    for at, expected in ((2, "x"), (3, "xy"), (4, "xyz")):
        found = ranker.for_users(["nobody"], RecommendOptions(k=5, at=at))
        assert sorted(found.table["item_id"].to_pylist()) == [*expected]


def test_a_bare_history_reads_what_the_user_has(model: Model, model_split: unskew.Split) -> None:
    """The same items, and a user who is nobody in particular: exactly the same list."""
    log, network = model_split.log, model.network
    users = ["u1", "u8", "u20"]
    rows = log.users.codes(users).tolist()
    # Items of one time have no order of their own; the log's is the one to give.
    offsets = log.histories.offsets
    codes = [log.histories.ids[offsets[user] : offsets[user + 1]] for user in rows]
    histories = [log.items.of(those).to_pylist() for those in codes]
    bare = model.recommend(histories=histories, k=6)
    well_formed(bare, 6)
    with torch.no_grad():
        kept = network.users.weight[rows].clone()
        network.users.weight[rows] = network.users.unknown
        made = Ranker(network, log)
        found = (
            made.for_users(users, RecommendOptions(k=6)),
            made.for_histories(histories, RecommendOptions(k=6)),
        )
        network.users.weight[rows] = kept
    blank, scores = [lists(one) for one in found], [one.table["score"].to_numpy() for one in found]
    assert list(blank[0].values()) == list(blank[1].values())
    np.testing.assert_allclose(*scores, atol=1e-5)
    turned = model.recommend(histories=[history[::-1] for history in histories], k=6).table
    assert not np.allclose(turned["score"], bare.table["score"], atol=1e-4)  # it does read them, in order


def test_seen_items_of_a_history(model: Model) -> None:
    history = ["i1", "i2", "i3", "i0", "i4", "i5", "i6"]  # longer than the model reads
    new, every = (
        lists(model.recommend(histories=[history], k=30, include_seen=seen))[0] for seen in (False, True)
    )
    assert not set(history) & set(new)
    assert set(history) <= set(every)
    assert len(every) == len(new) + len(history)


def test_unknown_items_are_skipped_and_counted(model: Model) -> None:
    clean = model.recommend(histories=[["i1", "i2"], [], ["i3"]], k=5)
    dirty = model.recommend(histories=[["i1", "what", "i2"], ["no", "such"], ["i3"]], k=5)
    assert (clean.skipped_items, dirty.skipped_items) == (0, 3)
    assert dirty.table.equals(clean.table)
    assert list(lists(clean)) == [0, 1, 2]
    assert all(len(items) == 5 for items in lists(clean).values())


def test_only_the_newest_of_a_long_history_are_read(model: Model) -> None:
    newest = ["i1", "i2", "i3", "i0", "i4"]
    scores = [
        {
            row["item_id"]: row["score"]
            for row in model.recommend(histories=[history], k=30, include_seen=True).table.to_pylist()
        }
        for history in (newest, ["i7", "i8", *newest])
    ]
    assert scores[0] == pytest.approx(scores[1], abs=1e-6)


# The caller's ids


@pytest.mark.parametrize("kind", [int, str])
def test_ids_come_back_in_the_callers_type(kind: type) -> None:
    random = np.random.default_rng(0)
    table = {
        "user": [kind(u) for u in random.integers(100, 120, 300)],
        "item": [kind(i) for i in random.integers(500, 520, 300)],
    }
    log = unskew.read(titled(pa.table(table | {"time": random.integers(0, 100, 300)})))
    model = DEPS(**SMALL_DEPS | {"epochs": 1}).fit(unskew.split(log))
    users = table["user"][:2]
    found = model.recommend(users=users, k=3).table
    assert set(map(type, found["user_id"].to_pylist() + found["item_id"].to_pylist())) == {kind}
    assert set(found["user_id"].to_pylist()) == set(users)
    assert found["item_id"].type == log.items.ids.type
    assert found["title"].to_pylist() == [f"Title of {item}" for item in found["item_id"].to_pylist()]
    asked = model.recommend(histories=[table["item"][:2], np.array(table["item"][:2])], k=3)
    assert asked.skipped_items == 0
    assert lists(asked)[0] == lists(asked)[1]


@pytest.mark.parametrize("wrap", [tuple, np.array, pa.array], ids=["tuple", "numpy", "arrow"])
def test_any_kind_of_list(model: Model, wrap: Callable[[Any], Any]) -> None:
    plain = model.recommend(users=["u1", "u2"], k=3).table
    assert model.recommend(users=wrap(["u1", "u2"]), k=3).table.equals(plain)
    plain = model.recommend(histories=[["i1", "i2"], ["i3", "i4"]], k=3).table
    wrapped = [wrap(["i1", "i2"]), wrap(["i3", "i4"])]
    assert model.recommend(histories=wrapped, k=3).table.equals(plain)
    if wrap is not pa.array:
        assert model.recommend(histories=wrap(wrapped), k=3).table.equals(plain)


def test_padding_is_nobody(model_split: unskew.Split) -> None:
    assert model_split.log.users.codes(["nobody"]).tolist() == [PAD]


def test_the_lists_are_a_frame(model: Model) -> None:
    found = model.recommend(users=["u1", "u2"], k=3)
    assert list(found.to_pandas().columns)[:4] == ["user_id", "item_id", "score", "rank"]
    assert pl.DataFrame(found).height == 6
