"""From a trained model, or from the folder it was saved in, to lists with the caller's ids."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch

import unskew
from tests.conftest import random_table
from unskew.api import DEPS, Model, create_model, load
from unskew.data.batch import batch
from unskew.data.views import PAD
from unskew.models.base import Recommender
from unskew.ranker import Recommendations, for_histories, for_users

HISTORY, AUDIENCE = 5, 4  # far fewer than a user has: what is older must still count as seen
SETTINGS: dict[str, Any] = {
    "width": 8,
    "layers": 1,
    "heads": 1,
    "inner": 8,
    "hidden": 8,
    "history": HISTORY,
    "audience": AUDIENCE,
}
SETTINGS |= {
    "unsupervised_rounds": 1,
    "rounds": 2,
    "batch_size": 128,
    "sequences": 64,
    "valid_rows": 100,
    "learning_rate": 0.01,
}


def titled(table: pa.Table) -> pa.Table:
    return table.append_column("title", pa.array([f"Title of {item}" for item in table["item"].to_pylist()]))


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30)))


@pytest.fixture(scope="module")
def model(split: unskew.Split) -> Model:
    return DEPS(**SETTINGS).fit(split)


@pytest.fixture(scope="module")
def saved(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    model.save(folder)
    return folder


@pytest.fixture
def run(saved: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(saved, tmp_path / "run"))


def lists(found: Recommendations) -> dict[Any, list[Any]]:
    """Of each user the items, in the order of their ranks."""
    made: dict[Any, list[Any]] = {}
    for row in found.table.to_pylist():
        made.setdefault(row["user_id"], []).append(row["item_id"])
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
    assert table.column_names[:4] == ["user_id", "item_id", "score", "rank"]
    users, ranks, scores = (table[name].to_pylist() for name in ("user_id", "rank", "score"))
    for user in set(users):
        mine = [place for place, other in enumerate(users) if other == user]
        assert mine == list(range(mine[0], mine[0] + len(mine)))  # together, in order
        assert [ranks[place] for place in mine] == list(range(1, len(mine) + 1))
        assert len(mine) <= k
        assert (np.diff([scores[place] for place in mine]) <= 0).all()
    assert np.isfinite(scores).all()
    assert len(set(zip(users, table["item_id"].to_pylist(), strict=True))) == len(users)  # nothing twice


# Users


def test_lists_for_users(model: Model, split: unskew.Split) -> None:
    users = ["u3", "u1", "u39"]
    found = model.recommend(users=users, k=5)
    well_formed(found, 5)
    assert list(lists(found)) == users  # in the order asked for
    assert all(len(items) == 5 for items in lists(found).values())
    assert (found.unknown_users, found.skipped_items) == (0, 0)


def test_seen_items_are_excluded_unless_asked_for(model: Model, split: unskew.Split) -> None:
    everyone = split.log.users.ids.to_pylist()
    new, all_of_them = (
        lists(model.recommend(users=everyone, k=30, include_seen=seen)) for seen in (False, True)
    )
    for user in everyone:
        seen = set(seen_by(split.log, user))
        assert len(seen) > HISTORY  # more than the model reads
        assert not seen & set(new[user])
        assert set(new[user]) | seen == set(all_of_them[user])
        assert [item for item in all_of_them[user] if item not in seen] == new[
            user
        ]  # the same order otherwise


@pytest.mark.parametrize("repeats", ["keep", "hide"])
def test_what_was_seen_is_shown_as_it_was_measured(split: unskew.Split, repeats: str, tmp_path: Path) -> None:
    """Whether past items are candidates is one setting of the split, for the evaluation and for lists, of a
    loaded run, too."""
    cut = unskew.split(split.log, repeats=repeats)
    made = create_model("sasrec", {"width": 4, "rounds": 1, "valid_rows": 20}).fit(cut, tmp_path / "run")
    seen = set(seen_by(split.log, "u1"))
    for one in (made, load(tmp_path / "run")):
        default = lists(one.recommend(users=["u1"], k=30))["u1"]
        assert bool(seen & set(default)) == (repeats == "keep")
        assert default == lists(one.recommend(users=["u1"], k=30, include_seen=repeats == "keep"))["u1"]
        history = [*split.log.items.ids.to_pylist()[:5]]
        bare = lists(one.recommend(histories=[history], k=30))[0]
        assert len(bare) == (30 if repeats == "keep" else 25)
    assert made.evaluate(cut).about["repeats"] == {"keep": "kept as candidates", "hide": "hidden"}[repeats]


def test_scores_are_those_of_the_model_now(model: Model, split: unskew.Split) -> None:
    log, now = split.log, int(split.log.time.max()) + 1
    found = model.recommend(users=["u5"], k=30, include_seen=True).table
    items = log.items.codes(found["item_id"].to_pylist())
    with torch.no_grad():
        expected = model.network(
            batch(log, log.users.codes(["u5"]), [now], items[None], None, HISTORY, AUDIENCE)
        )[0]
    torch.testing.assert_close(torch.tensor(found["score"].to_pylist()), expected, atol=1e-5, rtol=1e-5)


def test_a_stranger_gets_what_an_empty_history_gets(model: Model) -> None:
    found = model.recommend(users=["u1", "nobody", "u2", "no one"], k=4)
    assert found.unknown_users == 2
    assert list(lists(found)) == ["u1", "nobody", "u2", "no one"]
    bare = lists(model.recommend(histories=[[]], k=4))[0]
    assert len(bare) == 4
    assert lists(found)["nobody"] == lists(found)["no one"] == bare


@pytest.mark.parametrize("k", [1, 30, 1000])
def test_any_k(model: Model, split: unskew.Split, k: int) -> None:
    found = model.recommend(users=["u1"], k=k, include_seen=True)
    well_formed(found, k)
    assert len(lists(found)["u1"]) == min(k, len(split.log.items))
    unseen = len(split.log.items) - len(set(seen_by(split.log, "u1")))
    assert len(lists(model.recommend(users=["u1"], k=k, include_seen=False))["u1"]) == min(k, unseen)


def test_bad_requests(model: Model) -> None:
    for wrong in ({}, {"users": ["u1"], "histories": [["i1"]]}):
        with pytest.raises(unskew.BadInput, match="one of the two"):
            model.recommend(**wrong)
    for k in (0, -3):
        with pytest.raises(unskew.BadInput, match="expected at least 1"):
            model.recommend(users=["u1"], k=k)
    with pytest.raises(unskew.BadInput, match="list of ids"):
        model.recommend(users="u1")
    with pytest.raises(unskew.BadInput, match="not trained"):
        DEPS(**SETTINGS).recommend(users=["u1"])


def test_nobody_asked_is_an_empty_frame(model: Model) -> None:
    for found in (model.recommend(users=[]), model.recommend(histories=[])):
        assert found.table.num_rows == 0
        assert found.table.column_names[:4] == ["user_id", "item_id", "score", "rank"]


def test_many_users_are_the_same_as_one_by_one(
    model: Model, split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    everyone = split.log.users.ids.to_pylist()
    together = model.recommend(users=everyone, k=3).table
    monkeypatch.setattr("unskew.ranker.BLOCK", 7)
    apart = model.recommend(users=everyone, k=3).table
    assert together.drop_columns("score").equals(apart.drop_columns("score"))
    assert (
        lists(model.recommend(users=["u7"], k=3))["u7"] == lists(model.recommend(users=everyone, k=3))["u7"]
    )


# Bare histories


def test_a_bare_history_reads_what_the_user_has(model: Model, split: unskew.Split) -> None:
    """The same items, and a user who is nobody in particular: exactly the same list."""
    log, network = split.log, model.network
    users = ["u1", "u8", "u20"]
    rows = log.users.codes(users).tolist()
    # Items of one time have no order of their own; the log's is the one to give.
    histories = [
        log.items.of(
            log.histories.ids[log.histories.offsets[code] : log.histories.offsets[code + 1]]
        ).to_pylist()
        for code in rows
    ]
    bare = model.recommend(histories=histories, k=6)
    well_formed(bare, 6)
    with torch.no_grad():
        kept = network.users.weight[rows].clone()
        network.users.weight[rows] = network.users.unknown
        found = for_users(network, log, users, 6), for_histories(network, log, histories, 6)
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
    model = DEPS(**SETTINGS | {"rounds": 1}).fit(unskew.split(log))
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
    assert model.recommend(users=wrap(["u1", "u2"]), k=3).table.equals(
        model.recommend(users=["u1", "u2"], k=3).table
    )
    plain = model.recommend(histories=[["i1", "i2"], ["i3", "i4"]], k=3).table
    assert model.recommend(histories=[wrap(["i1", "i2"]), wrap(["i3", "i4"])], k=3).table.equals(plain)
    if wrap is not pa.array:
        assert model.recommend(histories=wrap([wrap(["i1", "i2"]), wrap(["i3", "i4"])]), k=3).table.equals(
            plain
        )


# Saved and loaded


def test_a_loaded_model_recommends_the_same(model: Model, saved: Path, split: unskew.Split) -> None:
    other = load(saved)
    everyone = [*split.log.users.ids.to_pylist(), "nobody"]
    assert dataclasses.asdict(other.config) == dataclasses.asdict(model.config)
    assert other.training == model.training
    state = other.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in model.network.state_dict().items())
    for seen in (True, False):
        here, there = (one.recommend(users=everyone, k=30, include_seen=seen) for one in (model, other))
        assert here.table.drop_columns("score").equals(there.table.drop_columns("score"))
        np.testing.assert_allclose(here.table["score"], there.table["score"], atol=1e-6)
        assert here.unknown_users == there.unknown_users == 1
    histories = [["i1", "i2", "what"], []]
    assert model.recommend(histories=histories).table.equals(other.recommend(histories=histories).table)


def test_a_loaded_model_evaluates_the_same(model: Model, saved: Path, split: unskew.Split) -> None:
    assert load(saved).evaluate(split).metrics() == model.evaluate(split).metrics()


def test_a_loaded_model_can_be_saved_again(saved: Path, tmp_path: Path) -> None:
    load(saved).save(tmp_path / "again")
    here, there = load(saved), load(tmp_path / "again")
    assert here.recommend(users=["u1", "u2"]).table.equals(there.recommend(users=["u1", "u2"]).table)


def test_what_is_saved_is_plain_json(saved: Path) -> None:
    def no(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for name in ("config.json", "card.json"):
        json.loads((saved / name).read_text(), parse_constant=no)
    for line in (saved / "records.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=no)
    assert not list(saved.glob("*.pkl"))
    assert not (saved / "checkpoint.safetensors").exists()


def test_saving_over_something_is_refused(model: Model, saved: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(unskew.BadInput, match="exists already"):
        model.save(saved)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]  # no scratch left


def test_what_is_not_a_run(tmp_path: Path, saved: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "config.json").write_text("{}")
    for folder in (tmp_path / "nowhere", tmp_path / "empty", tmp_path / "foreign", saved / "card.json"):
        with pytest.raises(unskew.BadInput, match=r"not a run|not finished"):
            load(folder)


FILES = (
    "config.json",
    "card.json",
    "weights-ordinary.safetensors",
    "weights-balanced.safetensors",
    "memory.safetensors",
    "users.parquet",
    "items.parquet",
)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "empty", "half", "noise"])
def test_a_damaged_run_is_bad_input(run: Path, name: str, damage: str) -> None:
    path, content = run / name, (run / name).read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(
            {"empty": b"", "half": content[: len(content) // 2], "noise": b"\x00\xff" * 40}[damage]
        )
    with pytest.raises(unskew.BadInput, match="run"):
        load(run)


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config | {"format": 99},
        lambda config: config | {"format": 1},
        lambda config: config | {"model": "nobody"},
        lambda config: {key: value for key, value in config.items() if key != "model"},
        lambda config: {key: value for key, value in config.items() if key != "known_items"},
        lambda config: config | {"config": config["config"] | {"no_such_setting": 1}},
        lambda config: config | {"config": config["config"] | {"width": 16}},
        lambda config: config | {"known_items": config["known_items"] - 1},
        lambda config: config | {"split": {}},
        lambda config: [config],
    ],
    ids=["format", "old format", "model", "no model", "no size", "setting", "width", "size", "split", "list"],
)
def test_a_run_whose_parts_do_not_fit_is_bad_input(
    run: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    path = run / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(unskew.BadInput):
        load(run)


def test_the_weights_of_another_run_are_bad_input(run: Path, tmp_path: Path) -> None:
    other = DEPS(**SETTINGS | {"rounds": 1}).fit(
        unskew.split(unskew.read(random_table(rows=300, users=50, items=12)))
    )
    other.save(tmp_path / "other")
    for name in ("weights-balanced.safetensors", "memory.safetensors"):
        shutil.copy(run / name, tmp_path / "kept")
        shutil.copy(tmp_path / "other" / name, run / name)
        with pytest.raises(unskew.BadInput):
            load(run)
        shutil.copy(tmp_path / "kept", run / name)
    assert isinstance(load(run).network, Recommender)  # whole again


# Propensities, with the caller's ids


def test_propensities_of_a_log(model: Model, split: unskew.Split) -> None:
    log = split.log
    found = model.propensities(log)
    assert found.num_rows == len(log)
    assert found.select(["user", "item", "time", "label"]).equals(
        log.table().select(["user", "item", "time", "label"])
    )
    item, user, weight = (found[name].to_numpy() for name in ("item_view", "user_view", "weight"))
    np.testing.assert_allclose(weight, 0.5 / np.maximum(item, 0.05) + 0.5 / np.maximum(user, 0.05), rtol=1e-5)
    rows = np.arange(0, len(log), 97)
    made = batch(log, log.user[rows], log.time[rows], log.item[rows, None], None, HISTORY, AUDIENCE)
    with torch.no_grad():
        np.testing.assert_allclose(
            item[rows], model.network.propensity.item_view(made)[:, 0].numpy(), rtol=1e-4
        )


def test_a_log_with_other_codes_is_translated_or_refused(model: Model, split: unskew.Split) -> None:
    """Codes follow first appearance, so another log gives the same id another code."""
    table = random_table(rows=900, users=40, items=30)
    backwards = table.set_column(2, "time", pa.array(600 - table["time"].to_numpy()))
    other = unskew.read(backwards)
    assert not other.items.ids.equals(split.log.items.ids)
    for ask in (lambda: model.propensities(other), lambda: model.evaluate(unskew.split(other))):
        with pytest.raises(unskew.BadInput):
            ask()


def test_padding_is_nobody(model: Model, split: unskew.Split) -> None:
    assert split.log.users.codes(["nobody"]).tolist() == [PAD]


def test_the_lists_are_a_frame(model: Model) -> None:
    found = model.recommend(users=["u1", "u2"], k=3)
    assert list(found.to_pandas().columns)[:4] == ["user_id", "item_id", "score", "rank"]
    assert pl.DataFrame(found).height == 6
