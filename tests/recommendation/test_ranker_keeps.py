"""The ranker keeps its catalogue between calls, follows a newer log, and takes candidates and exclusions."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.contract import every_model, tiny
from tests.helpers.errors import refused
from unskew.api.model import Model
from unskew.models.base import Recommender, build
from unskew.models.deps import DEPS
from unskew.nn.scoring import AudienceCatalog
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker
from unskew.testing.models import that_goes_on


def items(found: unskew.Model, **asked: object) -> list[list[str]]:
    table = found.recommend(**asked).table
    lists: dict[object, list[str]] = {}
    for user, item in zip(table[0].to_pylist(), table["item_id"].to_pylist(), strict=True):
        lists.setdefault(user, []).append(item)
    return list(lists.values())


def test_the_second_call_makes_no_catalogue(model: Model, monkeypatch) -> None:
    first = model.recommend(users=["u1", "u2"]).table
    monkeypatch.setattr(type(model.network), "catalog", lambda *_: pytest.fail("made again"))
    assert model.recommend(users=["u1", "u2"]).table.equals(first)
    assert model.recommend(histories=[["i1"]]).table.num_rows == 10


def test_other_weights_make_another_catalogue(model: Model, tmp_path: Path) -> None:
    model.save(tmp_path / "run")
    other = unskew.load(tmp_path / "run")
    assert other.trained.select_by == "balanced"
    before = other.recommend(users=["u1"]).table
    changed = {
        name: value + 0.1 * torch.randn(value.shape)
        for name, value in other.trained.weights["ordinary"].items()
    }
    other.trained.weights["ordinary"] = changed
    found = other.chosen_by("ordinary").recommend(users=["u1"]).table
    assert not found.equals(before)
    fresh = unskew.load(tmp_path / "run")  # has never made a catalogue of the other weights
    fresh.trained.weights["ordinary"] = changed
    assert found.equals(fresh.chosen_by("ordinary").recommend(users=["u1"]).table)
    assert other.chosen_by("balanced").recommend(users=["u1"]).table.equals(before)


@every_model
def test_a_newer_log_is_followed(kind: type[Recommender], split: unskew.Split) -> None:
    """The same lists as a ranker that never saw the older log; with new users and new items among them."""
    torch.manual_seed(0)
    network, newer = build(kind, split, tiny(kind)).eval(), that_goes_on(split.log)
    users, wanted = ["u1", "u2", "a new user", "nobody"], RecommendOptions(k=99, include_seen=True)
    ranker = Ranker(network, split.log)
    older = ranker.for_users(users, wanted)
    assert older.users_unknown == ("a new user", "nobody")
    ranker.follow(newer)
    found, fresh = ranker.for_users(users, wanted), Ranker(network, newer).for_users(users, wanted)
    assert found.users_unknown == fresh.users_unknown == ("nobody",)
    assert found.table.drop_columns(["score"]).equals(fresh.table.drop_columns(["score"]))
    np.testing.assert_allclose(found.table["score"], fresh.table["score"], atol=1e-5)
    assert "a new user" in found.table["item_id"].to_pylist()
    ranker.follow(split.log)
    again = ranker.for_users(users, wanted).table
    np.testing.assert_allclose(again["score"], older.table["score"], atol=1e-5)


def test_only_changed_audiences_are_encoded_again(split: unskew.Split, monkeypatch) -> None:
    network, newer = build(DEPS, split, tiny(DEPS)).eval(), that_goes_on(split.log)
    encoded = []
    side = DEPS.audience_side
    monkeypatch.setattr(
        DEPS, "audience_side", lambda self, ids: (encoded.append(len(ids)), side(self, ids))[1]
    )
    ranker = Ranker(network, split.log)
    ranker.for_users(["u1"], RecommendOptions())
    assert sum(encoded) == len(split.log.items)
    encoded.clear()
    ranker.follow(newer)
    ranker.for_users(["u1"], RecommendOptions())
    changed = {
        item
        for item, time in zip(newer.table()["item"].to_pylist(), newer.time.tolist(), strict=True)
        if time > split.log.now
    }
    assert isinstance(ranker._catalogs["deps", False][2], AudienceCatalog)
    assert sum(encoded) == len(changed) == 3  # two known items and a new one


def test_a_newer_log_must_go_on_from_the_older(model: Model, model_split: unskew.Split) -> None:
    newer = that_goes_on(model_split.log)
    known = items(model, users=["u1"], k=99, include_seen=True)
    more = items(model, users=["u1"], k=99, include_seen=True, log=newer)
    assert set(more[0]) == {*known[0], "a new user"}
    assert (
        items(model, users=["u1"], k=99, include_seen=True) == known
    )  # the next call is of the old one again
    with refused("log"):
        model.recommend(users=["u1"], log=unskew.read(random_table(seed=5)))


@pytest.mark.parametrize("side", ["user", "item"])
def test_other_ids_of_one_side_are_another_log(model: Model, model_split: unskew.Split, side: str) -> None:
    table = model_split.log.table()
    renamed = pa.array([f"other {name}" for name in table[side].to_pylist()])
    other = unskew.read(table.set_column(table.column_names.index(side), side, renamed))
    with refused("log"):
        model.recommend(users=["u1"], log=other)


def test_candidates_and_exclusions(model: Model) -> None:
    everything = items(model, users=["u1", "u2"], k=99, include_seen=True)
    chosen = [everything[0][3], everything[0][0], "no such item"]
    found = model.recommend(users=["u1", "u2"], k=9, include_seen=True, candidates=chosen)
    assert found.items_unknown == ("no such item",)
    for one, all_ in zip(
        items(model, users=["u1", "u2"], k=9, include_seen=True, candidates=chosen), everything, strict=True
    ):
        assert one == [item for item in all_ if item in chosen]
    without = items(
        model, users=["u1", "u2"], k=99, include_seen=True, exclude=[everything[0][0], "no such item"]
    )
    for one, all_ in zip(without, everything, strict=True):
        assert one == [item for item in all_ if item != everything[0][0]]
    histories = items(model, histories=[["i1"]], k=9, candidates=chosen[:2])
    assert sorted(histories[0]) == sorted(chosen[:2])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_lists_of_all_users_in_a_file(model: Model, tmp_path: Path, monkeypatch, suffix: str) -> None:
    monkeypatch.setattr("unskew.recommendation.ranker.BLOCK", 7)
    ids = model.known_log.users.ids.to_pylist()
    expected = model.recommend(users=ids, k=3).table.to_pydict()
    file = tmp_path / "deep" / f"lists.{suffix}"
    assert model.save_recommendations(file, k=3).lists == len(ids)
    if suffix == "parquet":
        found = pq.read_table(file).to_pydict()
    elif suffix == "csv":
        with file.open(newline="") as rows:
            read = list(csv.DictReader(rows))
        found = {name: [row[name] for row in read] for name in read[0]}
        found |= {"rank": [int(rank) for rank in found["rank"]]}
    else:
        read = [json.loads(line) for line in file.read_text().splitlines()]
        found = {name: [row[name] for row in read] for name in read[0]}
    for name in ("user_id", "item_id", "rank"):
        assert found[name] == expected[name]
    np.testing.assert_allclose([float(score) for score in found["score"]], expected["score"], atol=1e-5)
    with pytest.raises(unskew.BadInput, match="exists already; nothing was written"):
        model.save_recommendations(file)


def test_the_command_line(
    capsys, saved: Path, model: Model, model_split: unskew.Split, tmp_path: Path
) -> None:
    code, out, _ = run(
        capsys, "recommend", saved, "--all-users", "--out", tmp_path / "all.csv", "--k", 2, "--json"
    )
    assert (code, json.loads(out)["users"]) == (0, len(model_split.log.users))
    assert len((tmp_path / "all.csv").read_text().splitlines()) == 1 + 2 * len(model_split.log.users)
    unskew.prepare(that_goes_on(model_split.log), tmp_path / "newer")
    asked = ["recommend", saved, "--user", "u1", "--k", 99, "--include-seen", "True", "--json"]
    found = [
        json.loads(run(capsys, *asked, *more)[1])["recommendations"]
        for more in ([], ["--data", tmp_path / "newer"])
    ]
    assert len(found[1]) == len(found[0]) + 1
    first = found[0][0]["item_id"]
    only = json.loads(run(capsys, *asked, "--candidate", first, "i3")[1])["recommendations"]
    assert only[0]["item_id"] == first
    assert len(only) == 2
    rest = json.loads(run(capsys, *asked, "--exclude", first, "i3")[1])["recommendations"]
    assert len(rest) == len(found[0]) - 2
    for wrong in (
        ["--all-users"],
        ["--user", "u1", "--out", tmp_path / "x.csv"],
        ["--user", "u1", "--all-users"],
    ):
        assert run(capsys, "recommend", saved, *wrong)[0] == 2
    assert not (tmp_path / "x.csv").exists()
