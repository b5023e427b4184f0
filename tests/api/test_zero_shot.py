"""Recommending without training: any log, one line; and people of whom a model has nothing to say."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from unskew.api.zero_shot import learned_on
from unskew.models.pulse.model import ZERO, Pulse


@pytest.fixture(scope="module")
def log() -> unskew.Log:
    return unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0))


def in_groups(seed: int = 0) -> unskew.Log:
    """Twenty groups of five, who take the same things one after the other."""
    random = np.random.default_rng(seed)
    group = np.arange(3000) % 20
    theirs, any_ = 20 * (np.arange(3000) // 400) + group, random.integers(0, 160, 3000)
    item = np.where(random.random(3000) < 0.7, theirs, any_)
    user = 5 * group + random.integers(0, 5, 3000)
    return unskew.read({"user": user, "item": item, "time": 10**9 + 3600 * np.arange(3000)})


def test_one_line(log: unskew.Log) -> None:
    found = unskew.recommend(log, users=["u1", "nobody"], k=4)
    assert found.table["rank"].to_pylist() == [1, 2, 3, 4] * 2
    assert set(found.table["source"].to_pylist()) == {"model"}
    assert found.users_unknown == ("nobody",)
    trained = unskew.create_model("pulse-zero").fit(unskew.split(log, fractions=(100, 0, 0)))
    assert trained.recommend(users=["u1", "nobody"], k=4).table.equals(found.table)
    bare = unskew.recommend(random_table(rows=900, users=40, items=30, negatives=0.0), users=["u1"], k=4)
    assert bare.table["item_id"].to_pylist() == found.table["item_id"].to_pylist()[:4]
    history = unskew.recommend(log, histories=[["i1", "i2"]], k=3, exclude=["i3"], debias=1.0)
    assert "i3" not in history.table["item_id"].to_pylist()
    other = unskew.recommend(log, histories=[["i1", "i2"]], k=3, exclude=["i3"], debias=0.0)
    assert other.table["score"].to_pylist() != history.table["score"].to_pylist()


def test_it_goes_from_log_to_log(log: unskew.Log) -> None:
    model = unskew.load("pulse-zero")
    with pytest.raises(unskew.BadInput, match="pulse-zero has no log of its own: give it one"):
        model.recommend(users=["u1"])
    other = in_groups()
    for each, user in ((log, "u1"), (other, 1), (log, "u2")):
        found = model.recommend(users=[user], log=each, k=5)
        assert found.table.equals(unskew.recommend(each, users=[user], k=5).table)
    assert model.recommend(users=["u2"], k=5).table.equals(found.table)  # the newest log is kept
    splits = unskew.split(log), unskew.split(other)
    for split in (*splits, splits[0]):
        mine = model.evaluate(split, sample=200, show_progress=False)
        fresh = unskew.create_model("pulse-zero").fit(split, show_progress=False)
        assert mine.metrics() == fresh.evaluate(split, sample=200, show_progress=False).metrics()


def test_what_it_learned_elsewhere_holds_here() -> None:
    split = unskew.split(in_groups())
    zero, popular = (
        unskew.create_model(name).fit(split, show_progress=False).evaluate(split, show_progress=False)
        for name in ("pulse-zero", "popularity")
    )
    assert zero.mean("ndcg@10") > 2 * popular.mean("ndcg@10")


def test_the_debias_is_chosen_where_there_is_a_validation_part(log: unskew.Log) -> None:
    made = unskew.create_model("pulse-zero").fit(unskew.split(log), show_progress=False)
    assert set(made.trained.weights) == {"ordinary", "balanced", "frozen", "frozen-balanced"}
    assert made.chosen.keys() == {"debias_now"}
    assert not list(made.network.parameters())


def test_its_weights_are_small_and_say_where_they_come_from() -> None:
    assert ZERO.stat().st_size < 50_000
    with safe_open(ZERO, "pt") as file:
        said, names = json.loads(file.metadata()["unskew"]), set(file.keys())
    assert said["made by"] == "python benchmarks/pulse_zero.py learn"
    assert said["from"] == learned_on()
    assert set(said["from"]) == {"MovieTweetings", "Online Retail"}  # whose licences allow it
    assert all(len(fingerprint) == 32 for fingerprint in said["from"].values())
    split = unskew.split(in_groups())
    of_the_log = {"debias_now", "day_ticks", "horizon_ticks", "repeats", "reads_all"}
    # Of types of events and of repeats it knows nothing: what reads them begins at zero.
    of_the_log |= {"mean_types", "scale_types", "scale_more", "more_of_pair", "more_skip"}
    learned = Pulse(split.known, Pulse.Config()).state_dict().keys() - of_the_log
    assert names == learned


def test_strangers_are_left_to_it(log: unskew.Log, tmp_path: Path) -> None:
    split = unskew.split(log)
    model = unskew.create_model("sasrec", {"epochs": 1, "width": 8}).fit(split, show_progress=False)
    found = model.recommend(users=["u1", "nobody", "u2"], k=3).table
    assert found["source"].to_pylist() == ["model"] * 3 + ["pulse-zero"] * 3 + ["model"] * 3
    alone = unskew.recommend(log, users=["nobody"], k=3).table
    assert found.slice(3, 3)["item_id"].to_pylist() == alone["item_id"].to_pylist()
    assert found.slice(0, 3).equals(model.recommend(users=["u1"], k=3).table)
    model.save(tmp_path / "run")
    assert unskew.load(tmp_path / "run").recommend(users=["u1", "nobody", "u2"], k=3).table.equals(found)
    histories = model.recommend(histories=[[], ["i1"]], k=2).table
    assert histories["source"].to_pylist() == ["pulse-zero"] * 2 + ["model"] * 2
    popular = unskew.create_model("popularity").fit(split, show_progress=False)
    assert set(popular.recommend(users=["nobody"], k=3).table["source"].to_pylist()) == {"model"}


@pytest.mark.parametrize(
    ("name", "user", "history", "known"),
    [
        ("fpmc", "u1", ["i1"], [True, False, True]),  # by the user, or by an item
        ("cpr", "u1", ["i1"], [True, False, False]),  # by the user alone
        ("deps", "u1", ["i1"], [True, True, True]),  # by who met the items
        ("debiased-sasrec", "u1", ["i1"], [True, False, True]),
    ],
)
def test_what_models_know_people_by(
    log: unskew.Log, name: str, user: str, history: list[str], known: list[bool]
) -> None:
    brief = {"epochs": 1, "valid_examples": 20}
    if name == "deps":
        brief |= {"width": 8, "layers": 1, "inner": 8, "hidden": 8, "unsupervised_epochs": 1, "audience": 5}
    model = unskew.create_model(name, brief).fit(unskew.split(log), show_progress=False)
    sources = [
        model.recommend(users=[user], k=1).table["source"][0].as_py(),
        model.recommend(users=["nobody"], k=1).table["source"][0].as_py(),
        model.recommend(histories=[history], k=1).table["source"][0].as_py(),
    ]
    assert [source == "model" for source in sources] == known


def test_the_command_line(capsys, log: unskew.Log, tmp_path: Path) -> None:
    unskew.prepare(random_table(rows=900, users=40, items=30, negatives=0.0), tmp_path / "data")
    code, out, err = run(capsys, "recommend", tmp_path / "data", "--user", "u1", "--k", 3, "--json")
    assert code == 0
    assert (
        f"not trained on this log: pulse-zero recommends; `unskew train {tmp_path / 'data'} --out RUN`" in err
    )
    listed = [row["item_id"] for row in json.loads(out)["recommendations"]]
    assert listed == unskew.recommend(log, users=["u1"], k=3).table["item_id"].to_pylist()
    flags = ["--model", "sasrec", "--epochs", 1, "--width", 8]
    assert run(capsys, "train", tmp_path / "data", "--out", tmp_path / "run", *flags)[0] == 0
    code, out, err = run(capsys, "recommend", tmp_path / "run", "--user", "nobody", "--k", 3)
    assert code == 0
    assert "sasrec has nothing to say about this history, so pulse-zero recommends" in err
    code, _, err = run(capsys, "recommend", tmp_path / "run", "--user", "u1", "--debias", 0.5)
    assert (code, "sasrec does not know how exposed an item is, so it has no debiasing strength" in err) == (
        2,
        True,
    )
