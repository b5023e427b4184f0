"""By which rows an update is judged, what a window can detect, and that what is written was measured."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import unskew
from tests.helpers.command import run as command
from tests.helpers.updated import BEGIN, SPAN, card, drawn, prepared, stored, trained
from unskew.core.statistics import refusal_power, smallest_noticed_loss
from unskew.data.log.log import Log
from unskew.models.pulse.model import Pulse
from unskew.models.pulse.signals import Signals
from unskew.serve import Event, Recommendation, Shown, export_log, open_store
from unskew.training.run import load
from unskew.update import Updating, judge
from unskew.update import update as updates
from unskew.update.judge import judging_rows, select_evidence, truncated
from unskew.update.update import update

QUICK = Updating(least=40, epochs=1)
LATER = BEGIN + 2 * SPAN  # when the service began to answer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    trained(prepared(folder / "data"), folder / "run")
    stored(folder / "e.db")
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    for file in made.glob("e.db*"):
        shutil.copy(file, tmp_path / file.name)
    return tmp_path / "e.db"


def answered(store: Path, rows: int, *, propensity: float = 1.0, exposed: bool = False, seed: int = 5) -> Any:
    """Clicks on the first of two recommended items, a minute after the list."""
    clicks = drawn(rows, seed, LATER + seed * SPAN)
    lists, events = [], []
    for number, (user, item, time) in enumerate(clicks):
        name, other = f"r{seed}.{number}", "i0" if item != "i0" else "i1"
        shown = Shown(item, propensity, exposed), Shown(other, 1.0)
        lists.append(Recommendation(name, user, (time - 60) * 10**6, "itemknn", "1", shown))
        events.append(Event(f"a{name}", user, item, "click", time * 10**6, recommendation_id=name))
    with open_store(store) as opened:
        opened.record(lists)
        opened.append(events)
    return clicks


def judged(tested: judge.Tested | None) -> set[tuple[Any, Any, int]]:
    """The rows that were ranked."""
    assert tested is not None
    log, rows = tested.before.log, tested.before.rows
    assert log is not None
    assert rows is not None
    table = log.table().take(pa.array(rows))
    return set(zip(*(table[name].to_pylist() for name in ("user", "item", "time")), strict=True))


# Which rows


def test_what_the_run_chose_does_not_judge_it(made: Path, store: Path) -> None:
    chosen = set(answered(store, 150))
    found = update(made / "run", store, None, QUICK, dry_run=True).tested
    rows = judged(found)
    assert found.evidence == "organic"
    assert rows
    assert not rows & chosen
    everything = update(made / "run", store, None, replace(QUICK, judge="all"), dry_run=True).tested
    assert everything.evidence == "all"
    assert judged(everything) <= chosen  # the newest fifth of all are answers


def test_random_items_judge_though_they_were_recommended(made: Path, store: Path) -> None:
    answered(store, 100, seed=5)
    random = set(answered(store, 100, propensity=0.1, exposed=True, seed=6))
    found = update(made / "run", store, None, QUICK, dry_run=True).tested
    assert found.evidence == "organic"
    assert judged(found) <= random  # they are newer than all others that judge


def test_an_export_says_which_positives_no_recommendation_chose(store: Path, tmp_path: Path) -> None:
    with open_store(store, "read") as opened:
        plain = export_log(opened, tmp_path / "plain.parquet", opened.types).file
    assert "organic" not in unskew.read(plain).marks
    chosen, random = (
        answered(store, 10, seed=5),
        answered(store, 10, propensity=0.2, exposed=True, seed=6),
    )
    with open_store(store, "read") as opened:
        log = unskew.read(export_log(opened, tmp_path / "log.parquet", opened.types).file)
    table = log.table()
    marks = {
        (row["user"], row["item"], row["label"]): row["test:organic"] for row in table.slice(250).to_pylist()
    }
    organic = {
        (row["user"], row["item"])
        for row in table.to_pylist()
        if row["test:organic"] == 1 and row["time"] >= LATER * 10**6
    }
    assert organic == {(user, item) for user, item, _ in random}
    assert sum(table["test:organic"].to_pylist()) == 250 + len(random)
    assert len(chosen) == 10
    assert all(mark == 0 for (_, _, label), mark in marks.items() if label == 0)


def some_log(propensity: list[float], lists: list[int], logged: list[int], organic: list[int]) -> Log:
    size = len(propensity)
    return unskew.read(
        {
            "user": [f"u{place % 3}" for place in range(size)],
            "item": [f"i{place % 4}" for place in range(size)],
            "time": list(range(size)),
            "label": [1] * size,
            "propensity": propensity,
            "impression_id": lists,
            "test:logged": logged,
            "test:organic": organic,
        }
    )


def test_weighted_rows_are_of_lists_that_could_have_shown_another_item() -> None:
    log = some_log([0.5, 1.0, 1.0, 1.0, 0.25, 0.1], [7, 7, 8, 8, 9, 9], [1, 1, 1, 1, 1, 0], [0] * 6)
    weights = judging_rows(log, "weighted").weights[np.argsort(log.time)]
    assert weights.tolist() == [2.0, 1.0, 0.0, 0.0, 4.0, 0.0]


def test_no_weight_is_above_the_mean_times_the_root_of_the_number() -> None:
    assert truncated(np.array([1.0] * 99 + [1000.0])).max() == pytest.approx((99 + 1000) / 100 * 10)
    assert np.array_equal(truncated(np.ones(5)), np.ones(5))
    assert len(truncated(np.zeros(0))) == 0


def test_weighted_rows_judge_where_organic_ones_are_too_few() -> None:
    log = some_log([0.5] * 40, [place // 2 for place in range(40)], [1] * 40, [1] * 10 + [0] * 30)
    new = np.ones(40, bool)
    assert [select_evidence(log, "auto", new, least).evidence for least in (10, 11, 40)] == [
        "organic",
        "weighted",
        "weighted",
    ]
    assert select_evidence(log, "auto", new, 41) is None
    assert select_evidence(log, "organic", new, 11) is None
    skewed = some_log([1e-6, *[0.5] * 39], [place // 2 for place in range(40)], [1] * 40, [0] * 40)
    assert select_evidence(skewed, "auto", new, 30) is None  # one row has most of the weight
    assert select_evidence(log, "organic", ~(log.marks["organic"] == 1), 1) is None


def test_the_weights_are_those_of_the_metric(made: Path, store: Path) -> None:
    answered(store, 120, propensity=0.5, seed=5)
    answered(store, 120, propensity=0.05, seed=6)
    found = update(made / "run", store, None, replace(QUICK, judge="weighted", window="1w"), dry_run=True)
    assert found.tested.evidence == "weighted"
    weights = np.unique(found.tested.after.weights.round(6))
    assert weights.tolist() == [2.0, 20.0]
    document = found.document()["window"]
    assert document["judged_by"] == "weighted"
    assert document["effective_sample_size"] < document["positives"]


def test_an_update_waits_for_rows_that_can_judge(made: Path, store: Path, tmp_path: Path) -> None:
    for file in tmp_path.glob("e.db*"):
        file.unlink()
    answered(store, 200)
    found = update(made / "run", store, tmp_path / "new", QUICK)
    assert found.verdict == "nothing new"
    assert "too few of 200 new positives can judge (--judge auto)" in found.why
    assert "--explore" in found.why
    assert update(made / "run", store, tmp_path / "new", replace(QUICK, judge="all")).out is not None


# What a window can detect


def test_the_power_is_how_often_a_loss_is_refused() -> None:
    random, error = np.random.default_rng(0), 0.013
    for loss, margin in ((0.02, 0.0), (0.04, 0.0), (0.04, 0.01)):
        estimates = random.normal(-loss, error, 200_000)
        refused = (estimates + 1.959964 * error < -margin).mean()
        assert refusal_power(loss, error, margin) == pytest.approx(refused, abs=0.005)
    assert refusal_power(smallest_noticed_loss(error, 0.01), error, 0.01) == pytest.approx(0.8)


def test_the_power_comes_from_the_paired_differences(made: Path, store: Path, capsys: Any) -> None:
    found = update(made / "run", store, None, QUICK, dry_run=True).tested
    before, error = found.before.mean("ndcg@10"), (found.found.high - found.found.low) / 3.92
    assert found.power.noticed == pytest.approx(refusal_power(0.2 * before, error))
    assert found.power.smallest == pytest.approx(smallest_noticed_loss(error) / before)
    code, out, _ = command(
        capsys, "update", made / "run", "--store", store, "--least", 40, "--margin", 1, "--dry-run"
    )
    assert code == 0
    assert "organic positives" in out
    assert "a loss of 20 % would be noticed in " in out
    same = found._replace(found=replace(found.found, difference=0.0, low=0.0, high=0.0))
    assert same.power is None


def test_more_rows_are_ranked_only_if_the_first_notice_too_little(
    made: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, real = [], updates._Update._evaluate

    def ranking(self: Any, network: Any, window: Any, sample: int) -> Any:
        samples.append(sample)
        return real(self, network, window, sample)

    monkeypatch.setattr(updates._Update, "_evaluate", ranking)
    monkeypatch.setattr(updates, "FIRST", 30)
    for loss, expected in ((100.0, [30, 30]), (1e-4, [30, 30, 5000, 5000])):
        monkeypatch.setattr(judge, "LOSS", loss)
        samples.clear()
        found = update(made / "run", store, None, QUICK, dry_run=True).tested
        assert samples == [*expected, expected[-1]]  # the last one is of the network that is written
        assert len(found.before.user) == (30 if loss > 1 else 50)


def test_the_rows_that_are_needed_notice_the_loss(made: Path, store: Path) -> None:
    found = update(made / "run", store, None, QUICK, dry_run=True).tested
    rows, error, mean = len(found.before.user), found.found.error, found.before.mean("ndcg@10")
    with_more = error * (rows / found.needed) ** 0.5
    assert refusal_power(0.2 * mean, with_more) == pytest.approx(0.82, abs=0.02)


def test_pulse_reads_the_window_once_for_both_networks(
    made: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real, read = trained(made / "data", tmp_path / "first", "pulse"), Signals.of_requests, []
    plain = update(run, store, None, QUICK, dry_run=True, force=True).tested

    def reading(self: Any, batch: Any) -> Any:
        read.append(tuple(batch.times_B.tolist()))
        return real(self, batch)

    monkeypatch.setattr(Signals, "of_requests", reading)
    found = update(run, store, None, QUICK, dry_run=True, force=True).tested
    window = [times for times in read if min(times) >= found.before.log.time[found.before.rows].min()]
    assert len(window) == len(set(window)) == 1
    monkeypatch.setattr(Pulse, "share_readings", lambda *given: None)
    alone = update(run, store, None, QUICK, dry_run=True, force=True).tested
    for one, other in ((plain, alone), (found, alone)):
        assert np.array_equal(one.before.values["ndcg@10"], other.before.values["ndcg@10"])
        assert np.array_equal(one.after.values["ndcg@10"], other.after.values["ndcg@10"])


# What is measured is what is served


def test_the_network_that_is_written_is_ranked_once_more(
    made: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, real = trained(made / "data", tmp_path / "first", "sasrec", epochs=15, learning_rate=0.01), None
    real, calls = updates._Update._train_on, []

    def damaging(self: Any, *given: Any) -> Any:
        trainer = real(self, *given)
        calls.append(trainer)
        if len(calls) == 2:  # the training on the window
            with torch.no_grad():
                trainer.model.items.weight.mul_(-1.0)
        return trainer

    settings = replace(QUICK, margin=0.02)
    monkeypatch.setattr(updates._Update, "_train_on", damaging)
    found = update(run, store, tmp_path / "new", settings)
    assert found.verdict == "worse"
    assert found.tested.found.high >= -0.02 > found.tested.published.high
    assert not (tmp_path / "new").exists()
    calls.clear()
    forced = update(run, store, tmp_path / "new", settings, force=True)
    assert forced.verdict == "forced"
    window = card(tmp_path / "new")["updated"]["window"]
    assert window["published"] < window["after"]


def test_pulse_publishes_the_candidate_that_was_measured(
    made: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, candidates = trained(made / "data", tmp_path / "first", "pulse"), []
    real = updates._Update._train_on

    def training(self: Any, *given: Any) -> Any:
        candidates.append(real(self, *given))
        return candidates[-1]

    monkeypatch.setattr(updates._Update, "_train_on", training)
    update(run, store, tmp_path / "new", QUICK, force=True)
    (candidate,) = candidates
    state, written = candidate.model.state_dict(), load(tmp_path / "new")
    assert all(torch.equal(value, state[name]) for name, value in written.network.state_dict().items())
    said = card(tmp_path / "new")
    assert said["updated"]["window"]["published"] == said["updated"]["window"]["after"]
    assert said["split"]["train_end"] == written.log.now


def test_an_update_draws_a_tenth_of_the_examples(
    made: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, sizes = trained(made / "data", tmp_path / "first", "pulse"), []
    real = updates._Update._train_on

    def training(self: Any, *given: Any) -> Any:
        trainer = real(self, *given)
        sizes.append(len(trainer.samplers["clicks"].rows))
        return trainer

    monkeypatch.setattr(updates._Update, "_train_on", training)
    update(run, store, None, QUICK, dry_run=True, force=True)
    assert sizes == [load(run).network.config.sample // 10]
