"""A study goes on as if it had not been stopped, by whatever: its end, Ctrl-C, a kill, the time."""

import json
import math
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

import unskew
from tests.conftest import SMALL_DEPS, random_table
from tests.helpers.errors import refused
from tests.helpers.processes import start_python
from tests.helpers.tuned import QUICK, finished, quiet, small, tried
from unskew.data.log.split import split_at
from unskew.training.epoch_record import EpochRecord
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.tuning import tuner as tuning
from unskew.tuning.search_space import BeforeTest, Space
from unskew.tuning.tuner import Tuned


@pytest.fixture(scope="module")
def cut() -> unskew.Split:
    return small()


@pytest.fixture(scope="module")
def data(cut: unskew.Split) -> BeforeTest:
    return BeforeTest(cut)


@pytest.fixture(scope="module")
def whole(data: BeforeTest) -> Tuned:
    """A study of four trials that nothing stopped."""
    return quiet("sasrec", data, QUICK, trials=4)


def test_a_study_goes_on_as_if_it_had_not_been_stopped(data: BeforeTest, tmp_path: Path) -> None:
    whole = quiet("sasrec", data, QUICK, trials=12)
    for trials in (3, 3, 12):
        part = quiet("sasrec", data, QUICK, trials=trials, out=tmp_path / "new" / "best.json")
        assert len(part.trials) == trials  # in all, not more of them
        assert tried(part) == tried(whole)[:trials]
    stored = json.loads((tmp_path / "new" / "best.json").read_text())
    assert stored == part.document
    assert (stored["settings"], stored["value"], stored["model"]) == (whole.best, whole.value, "sasrec")
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["best.db", "best.json"]


def test_the_file_alone_is_enough_to_continue(data: BeforeTest, whole: Tuned, tmp_path: Path) -> None:
    """In another clone, the study is not there, and its trials are."""
    out = tmp_path / "best.json"
    quiet("sasrec", data, QUICK, trials=2, out=out)
    (tmp_path / "best.db").unlink()
    before = out.read_bytes()
    with pytest.raises(unskew.BadInput, match="with fixed width 8, not 16"):
        quiet("sasrec", data, QUICK | {"width": 16}, trials=4, out=out)
    assert out.read_bytes() == before
    (tmp_path / "best.db").unlink()
    found = quiet("sasrec", data, QUICK, trials=4, out=out)
    assert tried(found) == tried(whole)
    trials = json.loads(out.read_text())["finished_trials"]
    assert [trial["curve"] for trial in trials] == [
        trial["curve"] for trial in whole.document["finished_trials"]
    ]
    assert all(len(trial["curve"]) == trial["epochs"] > 0 for trial in trials)


@pytest.mark.parametrize("broken", [{"finished_trials": [{"state": "complete"}]}, {"study": None}])
def test_a_file_with_damaged_trials_is_refused(
    data: BeforeTest, tmp_path: Path, broken: dict[str, Any]
) -> None:
    out = tmp_path / "best.json"
    quiet("itemknn", data, trials=1, out=out)
    (tmp_path / "best.db").unlink()
    out.write_text(json.dumps(json.loads(out.read_text()) | broken))
    before = out.read_bytes()
    with refused("out"):
        quiet("itemknn", data, trials=2, out=out)
    assert out.read_bytes() == before


@pytest.mark.parametrize("moment", ["in training", "while a trial is begun", "while it is told"])
@pytest.mark.parametrize("trial", [0, 2])
def test_ctrl_c_keeps_what_ended_and_leaves_nothing_running(
    data: BeforeTest, whole: Tuned, tmp_path: Path, monkeypatch, moment: str, trial: int
) -> None:
    out, begun = tmp_path / "best.json", []

    def interrupted(before: Callable[..., Any], epochs: bool = False) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            begun.append(None)
            if epochs and len(begun) == trial + 1:
                tell = more.pop("on_record")
                more["on_record"] = lambda record: (signal.raise_signal(signal.SIGINT), tell(record))
            elif len(begun) == trial + 1:
                signal.raise_signal(signal.SIGINT)
            return before(*args, **more)

        return call

    with monkeypatch.context() as patched:
        if moment == "in training":
            patched.setattr(tuning, "train", interrupted(train, epochs=True))
        elif moment == "while a trial is begun":
            patched.setattr(optuna.Study, "ask", interrupted(optuna.Study.ask))
        else:
            patched.setattr(optuna.Study, "tell", interrupted(optuna.Study.tell))
        with pytest.raises(KeyboardInterrupt):
            quiet("sasrec", data, QUICK, trials=4, out=out)
    ended = trial + (moment == "while it is told")
    left = optuna.load_study(study_name="sasrec", storage=f"sqlite:///{tmp_path / 'best.db'}")
    states = [each.state.name for each in left.get_trials()]
    assert states == ["COMPLETE"] * ended + ["FAIL"] * (moment != "while it is told")
    assert out.is_file() == (ended > 0)
    if ended:
        best = json.loads(out.read_text())
        assert best["value"] == max(row["value"] for row in tried(whole)[:ended])
    again = quiet("sasrec", data, QUICK, trials=4, out=out)
    assert finished(again) == finished(whole)
    assert again.best == whole.best
    assert json.loads(out.read_text())["value"] == whole.value


def test_a_trial_of_a_killed_process_is_made_again(data: BeforeTest, whole: Tuned, tmp_path: Path) -> None:
    out = tmp_path / "best.json"
    quiet("sasrec", data, QUICK, trials=1, out=out)
    study = optuna.load_study(study_name="sasrec", storage=f"sqlite:///{tmp_path / 'best.db'}")
    host = socket.gethostname()
    here, elsewhere = study.ask(), study.ask()
    child = start_python("-c", "")
    child.wait()
    here.set_user_attr("process", f"{host} {child.pid}")
    elsewhere.set_user_attr("process", f"elsewhere {child.pid}")  # of which nothing is known from here
    found = quiet("sasrec", data, QUICK, trials=3, out=out)
    assert [row["state"] for row in tried(found)] == ["complete", "stopped", "running", "complete"]
    assert tried(found)[0] == tried(whole)[0]


def test_machines_that_share_a_study_make_no_more_trials_than_were_asked_for(
    data: BeforeTest, tmp_path: Path, monkeypatch
) -> None:
    url = f"sqlite:///{tmp_path / 'shared.db'}"
    ask, begun = optuna.Study.ask, []

    def raced(self: optuna.Study, *args: Any) -> optuna.Trial:
        begun.append(None)
        if len(begun) == 2:  # another process is faster
            ask(optuna.load_study(study_name="mine", storage=url), *args)
        return ask(self, *args)

    monkeypatch.setattr(optuna.Study, "ask", raced)
    found = quiet("sasrec", data, QUICK, trials=2, storage=url, study="mine")
    assert [row["state"] for row in tried(found)] == ["complete", "running", "stopped"]
    other = quiet("sasrec", data, QUICK, trials=1, storage=url)  # another study in the same place
    assert len(other.trials) == 1


OTHERS: list[tuple[str, Callable[[unskew.Split], BeforeTest], dict[str, Any], str]] = [
    ("itemknn", lambda _: BeforeTest(unskew.split(unskew.read(random_table(rows=800)))), {}, "on other data"),
    (
        "itemknn",
        lambda cut: BeforeTest(unskew.split(cut.log, fractions=(60, 20, 20))),
        {},
        r"with split fractions \[50, 20, 30\], not \[60, 20, 20\]",
    ),
    (
        "itemknn",
        lambda cut: BeforeTest(split_at(cut.log, cut.settings, cut.train_end - 9, cut.valid_end)),
        {},
        "with train_end",
    ),
    ("itemknn", BeforeTest, {"history": 7}, "with fixed history unset, not 7"),
    ("itemknn", BeforeTest, {"shrink": 0.0}, "with fixed shrink unset, not 0.0"),
    ("itemknn", BeforeTest, {"seed": 3}, "with seed 0, not 3"),
    (
        "itemknn",
        BeforeTest,
        {"select_by": "balanced"},
        "fixed select_by ordinary, not balanced",
    ),
    ("sasrec", BeforeTest, {}, "with model itemknn, not sasrec"),
]


@pytest.mark.parametrize(("model", "of", "settings", "said"), OTHERS, ids=[other[3] for other in OTHERS])
def test_a_study_of_something_else_is_refused(
    cut: unskew.Split,
    data: BeforeTest,
    tmp_path: Path,
    model: str,
    of: Any,
    settings: dict[str, Any],
    said: str,
) -> None:
    out = tmp_path / "best.json"
    quiet("itemknn", data, trials=1, out=out, study="mine")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(unskew.BadInput, match=said) as caught:
        quiet(model, of(cut), settings, trials=2, out=out, study="mine")
    assert str(caught.value).startswith("the study 'mine' in sqlite:////")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_study_that_is_not_ours_is_refused(data: BeforeTest, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'theirs.db'}"
    optuna.create_study(study_name="itemknn", storage=url)
    with pytest.raises(unskew.BadInput, match="was not made by `unskew tune`; choose another name"):
        quiet("itemknn", data, storage=url)


def test_another_search_space_is_another_study(data: BeforeTest, tmp_path: Path, monkeypatch) -> None:
    quiet("itemknn", data, trials=1, out=tmp_path / "best.json")
    monkeypatch.setattr(Space, "document", lambda self: {"shrink": [0.0, 5.0]})
    with pytest.raises(unskew.BadInput, match=r"searched neighbours \[50, 100, 200\], not unset"):
        quiet("itemknn", data, trials=2, out=tmp_path / "best.json")


# Time


class Hours:
    """A clock on which an hour passes whenever an epoch ends, and a second whenever anybody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1
        return self.now

    def train(self, split: unskew.Split, asked: RunSettings, on_record: Any) -> Any:
        def told(record: EpochRecord) -> None:
            self.now += 3600
            on_record(record)

        return train(split, asked, on_record=told)


@pytest.mark.parametrize(
    ("minutes", "states"),
    [(1, ["pruned"]), (60 * 6.5, ["complete", "pruned"]), (60 * 8.5, ["complete", "complete", "pruned"])],
)
def test_the_budget_ends_a_study_and_the_trial_that_is_under_way(
    data: BeforeTest, tmp_path: Path, monkeypatch, minutes: float, states: list[str]
) -> None:
    clock = Hours()
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(tuning, "train", clock.train)
    settings = QUICK | {"patience": 9}
    found = quiet("sasrec", data, settings, budget=minutes, trials=30, out=tmp_path / "best.json")
    rows = tried(found)
    assert [row["state"] for row in rows] == states
    assert rows[-1]["reason"] == "the budget ended"
    assert rows[-1]["epochs"] == {1: 1, 60 * 6.5: 3, 60 * 8.5: 1}[minutes]
    assert rows[-1]["value"] > 0
    assert found.value == max(row["value"] for row in rows)
    more = quiet("sasrec", data, settings, trials=len(rows) + 1, out=tmp_path / "best.json")
    assert tried(more)[: len(rows)] == rows  # the next call has a budget of its own, or none
    assert len(more.trials) == len(rows) + 1


def test_a_trial_without_a_epoch_is_not_counted(data: BeforeTest, monkeypatch) -> None:
    """Stage 1 of DEPS is not validated, so a trial that ends there has reached nothing."""
    clock = Hours()
    monkeypatch.setattr(tuning, "time", SimpleNamespace(monotonic=clock.monotonic))
    monkeypatch.setattr(tuning, "train", clock.train)
    found = quiet("deps", data, SMALL_DEPS | {"epochs": 1, "unsupervised_epochs": 2}, budget=3.5 * 60)
    assert [(row["state"], row["epochs"]) for row in tried(found)] == [("complete", 1), ("stopped", 0)]
    alone = quiet("deps", data, SMALL_DEPS | {"epochs": 1, "unsupervised_epochs": 2}, budget=1)
    assert [row["state"] for row in tried(alone)] == [
        "pruned"
    ]  # the first one has a value, whatever it costs


@pytest.mark.parametrize("wrong", [{"trials": 0}, {"trials": -1}, {"budget": 0}, {"budget": math.inf}])
def test_numbers_that_make_no_sense(data: BeforeTest, wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with refused(name):
        quiet("itemknn", data, **wrong)
