"""A study: its first trial, its best, what is given up, what fails, and who hears of it."""

import logging
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.errors import refused
from tests.helpers.tuned import QUICK, quiet, small, tried
from unskew.api.create import create_model
from unskew.data.log.preparation import Preparation
from unskew.models.itemknn import DECAYS
from unskew.training.epoch_record import EpochRecord
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.tuning import tuner as tuning
from unskew.tuning.search_space import BeforeTest


@pytest.fixture(scope="module")
def cut() -> unskew.Split:
    return small()


@pytest.fixture(scope="module")
def data(cut: unskew.Split) -> BeforeTest:
    return BeforeTest(cut)


def test_the_first_trial_has_the_defaults_and_the_best_is_never_below(
    cut: unskew.Split, data: BeforeTest
) -> None:
    found = quiet("sasrec", data, QUICK, trials=6)
    first = tried(found)[0]
    plain = create_model("sasrec", QUICK)
    assert (first["dropout"], first["learning_rate"]) == (plain.config.dropout, plain.training.learning_rate)
    settings = RunSettings(model="sasrec", config=plain.config, training=plain.training)
    trainer = train(data.split, settings)
    assert trainer.progress.best["ordinary"] == first["value"] == found.document["defaults"]
    values = [row["value"] for row in tried(found)]
    assert found.value == max(values) >= first["value"]
    assert min(values) < found.value  # so that a study the other way epoch would be seen
    best = tried(found)[values.index(found.value)]
    assert found.best == QUICK | {
        "select_by": "ordinary",
        "dropout": best["dropout"],
        "learning_rate": best["learning_rate"],
    }
    assert found.create().config.dropout == best["dropout"]
    only = quiet("sasrec", data, QUICK, trials=1)
    assert only.best == QUICK | {"select_by": "ordinary", "dropout": 0.1, "learning_rate": 1e-3}


COSINE = {"weighting": "cosine"}  # leaves ItemKNN nine settings to try


def test_what_is_given_is_not_searched(data: BeforeTest) -> None:
    given = {"neighbours": 100, "weighting": "cosine"}  # which are the defaults, too
    found = quiet("itemknn", data, given, trials=20)
    assert found.trials.column_names[6:] == ["shrink"]
    assert tried(found)[0]["shrink"] == 0.0
    assert sorted(row["shrink"] for row in tried(found)) == [0.0, 10.0, 100.0]
    assert found.best["neighbours"] == 100


def test_a_small_space_is_tried_as_a_whole(data: BeforeTest) -> None:
    found = quiet("itemknn", data, COSINE)
    pairs = [(row["neighbours"], row["shrink"]) for row in tried(found)]
    assert pairs[0] == (100, 0.0)
    assert len(pairs) == len(set(pairs)) == 9
    values = [row["value"] for row in tried(found)]
    assert values.count(found.value) > 1  # of equal ones the first is the best
    assert found.document["trial"] == values.index(found.value)
    other = quiet("itemknn", data, COSINE | {"seed": 1})
    assert [row["shrink"] for row in tried(other)] != [row["shrink"] for row in tried(found)]
    assert {(row["neighbours"], row["shrink"]): row["value"] for row in tried(other)} == {
        (row["neighbours"], row["shrink"]): row["value"] for row in tried(found)
    }


def test_the_same_seed_gives_the_same_study(data: BeforeTest) -> None:
    one, again = (quiet("sasrec", data, QUICK, trials=4) for _ in range(2))
    assert tried(one) == tried(again)
    other = quiet("sasrec", data, QUICK | {"seed": 1}, trials=4)
    assert [row["dropout"] for row in tried(other)][1:] != [row["dropout"] for row in tried(one)][1:]
    assert len({row["learning_rate"] for row in tried(one)}) == 4


@pytest.mark.parametrize("by", ["ordinary", "balanced", "auto"])
def test_the_version_of_the_validation_part_that_chooses(data: BeforeTest, tmp_path: Path, by: str) -> None:
    url = f"sqlite:///{tmp_path / 'studies.db'}"
    for model, auto in (("sasrec", "ordinary"), ("debiased-sasrec", "balanced")):
        found = quiet(model, data, QUICK | {"select_by": by}, trials=2, storage=url)
        for trial in optuna.load_study(study_name=model, storage=url).trials:
            assert max(trial.intermediate_values.values()) == trial.value  # which it may be given up by
        wanted = auto if by == "auto" else by
        assert found.select_by == found.best["select_by"] == wanted
        made = found.create()
        settings = RunSettings(model=model, config=made.config, training=made.training)
        trainer = train(data.split, settings)
        assert (trainer.select_by, trainer.progress.best[wanted]) == (wanted, found.value)


def test_a_version_that_the_log_does_not_have(data: BeforeTest) -> None:
    with refused("select_by"):
        quiet("sasrec", data, {"select_by": "shown"})


def test_a_model_with_nothing_to_choose_is_validated(data: BeforeTest) -> None:
    """With a decay that is given, no validation chooses anything, so tuning must ask for it."""
    free = tried(quiet("itemknn", data, trials=1))[0]["value"]
    given = [tried(quiet("itemknn", data, {"decay": decay}, trials=1))[0]["value"] for decay in DECAYS]
    assert max(given) == free
    assert min(given) < free


def test_trials_below_the_median_are_given_up(data: BeforeTest) -> None:
    epochs: dict[int, list[float]] = {}

    def looked(split: unskew.Split, asked: RunSettings, on_record: Any) -> Any:
        mine = epochs.setdefault(len(epochs), [])

        def told(record: EpochRecord) -> None:
            mine.append(record.valid["ordinary"]["ndcg@10"])
            on_record(record)

        return train(split, asked, on_record=told)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(tuning, "train", looked)
        found = quiet("sasrec", data, QUICK, trials=14)
    rows = tried(found)
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert pruned
    assert [row["state"] for row in rows[:5]] == ["complete"] * 5
    for row in rows:
        mine = epochs[row["number"]]
        assert (row["epochs"], row["value"]) == (len(mine), max(mine))  # it keeps what it reached
        if row["state"] == "pruned":
            assert 2 <= len(mine)
            assert row["reason"] == "below the median of the other trials"
            done = [r["number"] for r in rows[: row["number"]] if r["state"] == "complete"]
            there = [epochs[number][len(mine) - 1] for number in done if len(epochs[number]) >= len(mine)]
            assert max(mine) < np.median(there)
    assert any(row["epochs"] < QUICK["epochs"] for row in pruned)
    assert found.value == max(row["value"] for row in rows if row["state"] == "complete")


def faulty(*faults: BaseException | None) -> Callable[..., Any]:
    """Training that fails: of each trial how, or not at all."""
    left = list(faults)

    def trained(split: unskew.Split, asked: RunSettings, on_record: Any) -> Any:
        fault = left.pop(0) if left else None
        if fault is not None:
            raise fault
        return train(split, asked, on_record=on_record)

    return trained


def test_trials_that_fail_are_recorded_and_stop_nothing(data: BeforeTest, monkeypatch) -> None:
    faults = (
        None,
        unskew.BadInput("too wide"),
        unskew.UnskewError("the loss is nan\nat step 3"),
        MemoryError(),
    )
    monkeypatch.setattr(tuning, "train", faulty(*faults))
    found = quiet("itemknn", data, COSINE)
    rows = tried(found)
    assert [row["state"] for row in rows] == ["complete", "failed", "failed", "failed"] + ["complete"] * 5
    assert [row["reason"] for row in rows[:5]] == [None, "too wide", "the loss is nan", "MemoryError", None]
    assert rows[1]["value"] is None
    assert found.document["trials"] == {"complete": 6, "failed": 3}


def test_a_loss_that_is_no_number_is_a_failed_trial(data: BeforeTest) -> None:
    with pytest.raises(unskew.UnskewError, match="the loss of phase next item is nan") as caught:
        quiet("sasrec", data, QUICK | {"learning_rate": 1e38}, trials=2)
    assert str(caught.value).startswith("no trial of sasrec has a value; the first one failed: ")


def test_a_metric_that_is_no_number_is_a_failed_trial(data: BeforeTest, monkeypatch) -> None:
    monkeypatch.setattr(tuning, "_validate", lambda trainer, by: math.nan)
    with pytest.raises(unskew.UnskewError, match="the first one failed: ndcg@10 is nan"):
        quiet("itemknn", data, {"decay": 0.5}, trials=1)


def test_when_everything_fails_it_ends(data: BeforeTest, monkeypatch) -> None:
    count = []
    monkeypatch.setattr(tuning, "train", faulty(*[unskew.BadInput("never")] * 99))
    with pytest.raises(
        unskew.UnskewError, match="no trial of sasrec has a value; the first one failed: never"
    ):
        quiet("sasrec", data, QUICK, trials=50, on_trial=count.append)
    assert len(count) == tuning.HOPELESS


def test_optuna_is_asked_for_where_it_is_missing(data: BeforeTest, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(
        unskew.BadInput, match=r"^Optuna is not installed: pip install '\.\[tune\]' in a clone of unskew$"
    ):
        quiet("itemknn", data)


def test_optuna_says_nothing_and_is_left_as_it_was(data: BeforeTest, capfd, caplog, tmp_path: Path) -> None:
    optuna.logging.set_verbosity(logging.DEBUG)
    try:
        quiet("itemknn", data, trials=2, out=tmp_path / "best.json")
        assert optuna.logging.get_verbosity() == logging.DEBUG
    finally:
        optuna.logging.set_verbosity(logging.INFO)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_everybody_is_told_of_each_trial(data: BeforeTest) -> None:
    told: list[dict[str, Any]] = []
    found = quiet("itemknn", data, trials=3, on_trial=told.append)
    assert [row["number"] for row in told] == [0, 1, 2]
    assert told[0]["settings"] == {"neighbours": 100, "shrink": 0.0, "weighting": "cosine"}
    assert [row["value"] for row in told] == found.trials["value"].to_pylist()


def test_what_prepare_was_told_of_a_log_stays_known() -> None:
    table = random_table(rows=600, users=40, items=30, negatives=0.0)
    log = unskew.read(table)
    days = replace(log, metadata=replace(log.metadata, time_unit="seconds"))
    assert BeforeTest(unskew.split(days)).split.log.clock == days.clock != log.clock
    prepared = replace(log, metadata=replace(log.metadata, settings=Preparation(min_count=4)))
    assert BeforeTest(unskew.split(prepared)).split.min_count == 4
