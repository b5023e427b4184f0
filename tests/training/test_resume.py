"""A run that is stopped: it saves first, can be used as it is, is resumed by its folder alone, and may get
more epochs. A run on everything, with what validation chose."""

import json
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.errors import refused
from tests.helpers.processes import GUARD, start_python, wait_until
from tests.helpers.runs import SHORT, TINY, Killed, card, records, train
from unskew.api.create import create_model
from unskew.training import run as run_module
from unskew.training.run import RunFolder
from unskew.training.trainer import Trainer

FLAGS = [
    "--model",
    "deps",
    "--width",
    8,
    "--layers",
    1,
    "--inner",
    16,
    "--hidden",
    8,
    "--history",
    6,
    "--audience",
    4,
]
FLAGS += ["--unsupervised-epochs", 1, "--epochs", 3, "--patience", 9, "--batch-size", 128]
FLAGS += ["--valid-examples", 50, "--threads", 1]


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    unskew.prepare(random_table(rows=900, users=40, items=30, negatives=0.0), tmp_path / "data")
    return tmp_path / "data"


def stopped_after(monkeypatch, split: unskew.Split, folder: Path, epochs: int) -> None:
    """Train until so many validated epochs are done."""
    save = RunFolder.save

    def killing(self: RunFolder, trainer: Trainer, record: dict | None) -> None:
        save(self, trainer, record)
        if record is not None and record.stage == "unbiased" and record.epoch == epochs:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", killing)
        with pytest.raises(Killed):
            create_model("deps", vars(TINY) | vars(SHORT)).fit(split, folder)


def test_a_stopped_run_is_used_at_its_best_epoch_so_far(
    small_split: unskew.Split, tmp_path: Path, monkeypatch
) -> None:
    stopped_after(monkeypatch, small_split, tmp_path / "run", 2)
    assert not (tmp_path / "run" / "card.json").exists()
    found = unskew.load(tmp_path / "run")
    # The same as a run that was never to have more epochs.
    whole = create_model("deps", vars(TINY) | vars(SHORT) | {"epochs": 2}).fit(small_split)
    assert [record.epoch for record in found.records] == [1, 1, 2]
    for test in ("ordinary", "balanced"):
        assert (
            found.evaluate(small_split, test=test).metrics()
            == whole.evaluate(small_split, test=test).metrics()
        )
    assert found.recommend(users=["u1", "u2"]).table.equals(whole.recommend(users=["u1", "u2"]).table)


def test_a_run_without_a_finished_epoch_says_so(
    small_split: unskew.Split, tmp_path: Path, monkeypatch
) -> None:
    def killed(self: Trainer, *_: object) -> None:
        raise Killed

    monkeypatch.setattr(Trainer, "_validate", killed)
    with pytest.raises(Killed):
        create_model("deps", vars(TINY) | vars(SHORT)).fit(small_split, tmp_path / "run")
    with pytest.raises(unskew.BadInput, match="has not finished an epoch yet; go on with train --resume"):
        unskew.load(tmp_path / "run")


def test_epochs_are_added_to_a_finished_run(small_split: unskew.Split, tmp_path: Path) -> None:
    settings = vars(TINY) | vars(SHORT)
    create_model("deps", settings | {"epochs": 1}).fit(small_split, tmp_path / "run")
    assert unskew.resume(tmp_path / "run", small_split).records == unskew.load(tmp_path / "run").records
    more = unskew.resume(tmp_path / "run", small_split, epochs=3)
    whole = create_model("deps", settings).fit(small_split, tmp_path / "whole")
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    assert card(tmp_path / "run")["best"] == card(tmp_path / "whole")["best"]
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, more.network.state_dict()[name])
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(unskew.BadInput, match="has no checkpoint, so no epochs can be added"):
        unskew.resume(tmp_path / "run", small_split, epochs=4)
    assert unskew.resume(tmp_path / "run", small_split).records == more.records


def test_a_killed_extension_goes_on(small_split: unskew.Split, tmp_path: Path, monkeypatch) -> None:
    settings = vars(TINY) | vars(SHORT)
    create_model("deps", settings | {"epochs": 1}).fit(small_split, tmp_path / "run")
    save = RunFolder.save

    def killing(self: RunFolder, trainer: Trainer, record: dict | None) -> None:
        save(self, trainer, record)
        if record is not None and record.epoch == 2:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", killing)
        with pytest.raises(Killed):
            unskew.resume(tmp_path / "run", small_split, epochs=3)
    unskew.resume(tmp_path / "run", small_split)  # it knows that it is to have three
    create_model("deps", settings).fit(small_split, tmp_path / "whole")
    assert records(tmp_path / "run") == records(tmp_path / "whole")


def test_the_command_line_resumes_with_the_folder_alone(capsys, prepared: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(capsys, "train", prepared, "--out", out, *FLAGS)[0] == 0
    assert run(capsys, "train", "--resume", out)[0] == 0
    code, told, _ = run(capsys, "train", "--resume", out, "--epochs", 4, "--json")
    assert (code, [r["epoch"] for r in json.loads(told)["records"] if "valid" in r]) == (0, [1, 2, 3, 4])
    for more, said in (
        (["--width", 16], "begun with width 8, not 16"),
        (["--seed", 5], "begun with training seed 0, not 5"),
        (["--fractions", 60, 20, 20], "begun with split fractions [50, 20, 30], not [60.0, 20.0, 20.0]"),
        (["--preset", "paper"], "--preset is for new runs"),
    ):
        code, _, err = run(capsys, "train", "--resume", out, *more)
        assert (code, said in err) == (2, True), err
    code, _, err = run(capsys, "train", "--resume", tmp_path / "nowhere")
    assert (code, "no such folder" in err) == (2, True)
    for more, said in (
        (["--model", "sasrec"], "begun with model deps, not sasrec"),
        (["--out", tmp_path / "x"], "continues in RUN itself: leave --out"),
        (["--epochs", 2], "epochs 2: this run has 4 already; expected more"),
    ):
        code, _, err = run(capsys, "train", "--resume", out, *more)
        assert (code, said in err) == (2, True), err
    assert json.loads((out / "config.json").read_text())["training"]["epochs"] == 4
    assert "this run has ended, so nothing was done" in run(capsys, "train", "--resume", out)[2]
    code, _, err = run(capsys, "train", prepared, "--out", out, *FLAGS)
    assert (code, f"train --resume {out}" in err) == (2, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_before_it_stops(number: int, prepared: Path, tmp_path: Path) -> None:
    flags = [str(flag) for flag in FLAGS] + ["--epochs", "2000", "--patience", "2000"]
    command = ["-m", "unskew", "train", prepared, "--out", tmp_path / "run", *flags]
    child = start_python(*command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    file = tmp_path / "run" / "records.jsonl"
    wait_until(lambda: file.exists() and len(records(tmp_path / "run")) >= 3, child)
    checkpoint = tmp_path / "run" / "checkpoint.safetensors"
    before = checkpoint.stat().st_mtime_ns
    child.send_signal(number)
    _, err = child.communicate(timeout=GUARD)
    assert child.returncode == 130
    assert f"go on with `unskew train --resume {tmp_path / 'run'}`" in " ".join(err.split())
    assert checkpoint.stat().st_mtime_ns > before
    assert unskew.load(tmp_path / "run").recommend(users=["u1"]).table.num_rows == 10
    cut = unskew.split(unskew.Log.open(prepared))
    done = len(unskew.load(tmp_path / "run").records)
    more = unskew.resume(
        tmp_path / "run", cut, epochs=done
    )  # one is of the first stage, so one is left to do
    assert len(more.records) == done + 1


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SafetensorError("IoError(StorageFull)")],
    ids=["os", "rust"],
)
def test_a_full_disk_while_training_is_one_clear_line(
    capsys, prepared: Path, tmp_path: Path, monkeypatch, error: Exception
) -> None:
    whole, save_file = tmp_path / "whole", run_module.save_file
    assert run(capsys, "train", prepared, "--out", whole, *FLAGS)[0] == 0
    written = []

    def full(tensors: dict, path: Path, *more: object) -> None:
        written.append(path)
        if len(written) == 3:
            Path(path).write_bytes(b"half")
            raise error
        save_file(tensors, path, *more)

    with monkeypatch.context() as patched:
        patched.setattr(run_module, "save_file", full)
        code, out, err = run(capsys, "train", prepared, "--out", tmp_path / "run", *FLAGS)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "checkpoint.safetensors: writing failed" in err
    assert "the last checkpoint stays" in err
    assert not list((tmp_path / "run").glob(".checkpoint*"))
    assert run(capsys, "train", "--resume", tmp_path / "run")[0] == 0
    assert records(tmp_path / "run") == records(whole)


# Everything


def test_a_refit_learns_from_everything_with_what_validation_chose(
    small_split: unskew.Split, tmp_path: Path
) -> None:
    settings = vars(TINY) | vars(SHORT) | {"select_by": "ordinary"}
    made = create_model("deps", settings).fit(small_split, tmp_path / "run")
    best = card(tmp_path / "run")["best"]["ordinary"]["epoch"]
    again = unskew.load(tmp_path / "run").refit(small_split.log, tmp_path / "all")
    assert again.training == replace(made.training, epochs=best)
    assert again.config == made.config
    assert [record.epoch for record in again.records if record.stage == "unbiased"] == [*range(1, best + 1)]
    assert not any(record.valid for record in again.records)
    assert again.split.mask("train").all()
    assert again.split.known_items == len(small_split.log.items)
    with pytest.raises(unskew.BadInput, match="trained on rows before"):
        again.evaluate(small_split)
    assert unskew.load(tmp_path / "all").recommend(users=["u1"]).table.num_rows == 10
    assert again.split.repeats == small_split.repeats


@pytest.mark.parametrize(
    "settings",
    [{}, {"fractions": (40.0, 30.0, 30.0)}, {"at": "0.5,0.8"}, {"at": "0.8"}],
    ids=["default", "fractions", "two", "one"],
)
def test_a_refit_until_the_test_set_learns_from_the_validation_set_too(
    small_split: unskew.Split, settings: dict[str, Any]
) -> None:
    cut = unskew.split(small_split.log, **settings)
    before = create_model("popularity").fit(cut)
    again = before.refit(cut.log, until="test")
    late = again.split
    assert late.train_end == late.valid_end == cut.valid_end > cut.train_end
    assert late.rows("train").tolist() == sorted([*cut.rows("train"), *cut.rows("valid")])
    assert late.rows("test").tolist() == cut.rows("test").tolist()
    assert again.chosen == before.chosen
    assert again.evaluate(late).metrics() == before.evaluate(cut).metrics()  # of the same rows


def test_a_refit_may_learn_until_a_date_or_a_quantile(small_split: unskew.Split) -> None:
    before = create_model("popularity").fit(small_split)
    late = before.refit(small_split.log, until="0.9").split
    assert late.train_end == late.valid_end == unskew.split(small_split.log, at="0.5,0.9").valid_end
    with refused("at"):
        before.refit(small_split.log, until="soon")


def test_a_leave_one_out_split_has_no_time_to_learn_until(small_split: unskew.Split) -> None:
    cut = unskew.split(small_split.log, kind="leave-one-out")
    made = create_model("popularity").fit(cut)
    with refused("until"):
        made.refit(cut.source, until="test")


@pytest.mark.parametrize("repeats", ["keep", "hide"])
def test_a_refit_is_of_the_same_task(small_split: unskew.Split, repeats: str) -> None:
    """Whether past items are candidates is not guessed again."""
    cut = unskew.split(small_split.log, repeats=repeats)
    again = create_model("popularity", {"recency": "total"}).fit(cut).refit(cut.log)
    assert again.split.repeats == cut.repeats == (repeats == "keep")


def test_a_refit_knows_whom_its_run_knew(small_split: unskew.Split, tmp_path: Path) -> None:
    """Repeats and the least count are those of the run, whatever the log itself would say."""
    cut = unskew.split(small_split.log, repeats="hide", min_count=4)
    create_model("popularity").fit(cut, tmp_path / "run")
    again = unskew.load(tmp_path / "run").refit(small_split.log)
    assert (again.split.min_count, again.split.repeats) == (4, False)
    assert unskew.split(small_split.log).min_count == 1


def test_a_refit_of_a_model_that_impressions_chose(tmp_path: Path) -> None:
    """Without a validation set there are no impressions to choose by, and nothing to choose."""
    world = unskew.simulate(users=60, items=40, steps=30).log
    made = create_model("popularity", {"select_by": "shown"}).fit(unskew.split(world))
    again = made.refit(world)
    assert again.chosen == made.chosen
    assert again.recommend(users=world.users.ids.to_pylist()[:1]).table.num_rows == 10


def test_a_refit_takes_over_settings_that_no_gradient_learns(
    small_split: unskew.Split, tmp_path: Path
) -> None:
    for name, criterion in (("popularity", "ordinary"), ("itemknn", "balanced"), ("popularity", "balanced")):
        made = create_model(name, {"select_by": criterion}).fit(small_split)
        again = made.refit(small_split.log)
        assert again.chosen == made.chosen == chosen_of(made, criterion)
        again.save(tmp_path / f"{name}-{criterion}")
        assert unskew.load(tmp_path / f"{name}-{criterion}").chosen == made.chosen


def chosen_of(made: unskew.Model, criterion: str) -> dict[str, float]:
    return {name: float(value) for name, value in made.trained.weights[criterion].items() if not value.ndim}


def test_without_a_validation_part_nothing_is_silently_chosen(capsys, prepared: Path, tmp_path: Path) -> None:
    fractions = ["--fractions", 100, 0, 0]
    popular = ["--model", "popularity", *fractions]
    code, _, err = run(capsys, "train", prepared, "--out", tmp_path / "p", *popular)
    assert code == 2
    assert "popularity chooses a setting on the validation set, and this split has none" in err
    assert not (tmp_path / "p").exists()
    code, _, err = run(capsys, "train", prepared, "--out", tmp_path / "t", "--recency", "total", *popular)
    assert code == 0
    code, _, err = run(capsys, "train", prepared, "--out", tmp_path / "d", *FLAGS, *fractions)
    assert code == 0
    assert "no validation set, so nothing is chosen: training runs through all 3 epochs" in err
    assert len(records(tmp_path / "d")) == 4
    code, _, err = run(capsys, "evaluate", tmp_path / "d")
    assert (code, "the test set of this split has no rows" in err) == (2, True)


def test_the_command_line_refits(capsys, prepared: Path, tmp_path: Path) -> None:
    assert run(capsys, "train", prepared, "--out", tmp_path / "p", "--model", "popularity")[0] == 0
    later = random_table(rows=1000, users=40, items=30, negatives=0.0, times=600)
    unskew.prepare(later, tmp_path / "newer")
    code, _, err = run(
        capsys, "train", tmp_path / "newer", "--refit", tmp_path / "p", "--out", tmp_path / "all"
    )
    assert code == 0
    assert f"as {tmp_path / 'p'} has it; no part is left to evaluate this run on" in err
    assert card(tmp_path / "all")["split"]["known_items"] == 30
    chosen = card(tmp_path / "p")
    assert card(tmp_path / "all")["chosen"]["ordinary"] == chosen["chosen"]["ordinary"]
    refit = ["train", prepared, "--refit", tmp_path / "p", "--out", tmp_path / "late", "--until", "test"]
    code, _, err = run(capsys, *refit)
    assert (code, "trained on what is before the test set" in err) == (0, True)
    assert run(capsys, "evaluate", tmp_path / "late")[0] == 0
    code, _, err = run(capsys, "train", prepared, "--out", tmp_path / "x", "--until", "test")
    assert (code, "--until test goes with --refit RUN" in err) == (2, True)
    refit = ["train", prepared, "--refit", tmp_path / "p", "--out", tmp_path / "x"]
    code, _, err = run(capsys, *refit, "--span", 3)
    assert (code, "--refit takes the settings of" in err, "leave --span away" in err) == (2, True, True)
    assert not (tmp_path / "x").exists()


def test_interrupts_wait_for_the_end_of_a_step(
    small_split: unskew.Split, tmp_path: Path, monkeypatch
) -> None:
    """A signal in the middle of a step: the step is done whole, and only then all is saved."""
    at: list[int] = []
    step, handler = torch.optim.Adam.step, signal.getsignal(signal.SIGINT)

    def interrupted(self: torch.optim.Adam, *args: object) -> None:
        at.append(0)
        if len(at) == 7:
            signal.raise_signal(signal.SIGINT)
        step(self, *args)

    with monkeypatch.context() as patched:
        patched.setattr(torch.optim.Adam, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(small_split, "deps", TINY, SHORT, tmp_path / "run")
    assert len(at) == 7
    assert signal.getsignal(signal.SIGINT) is handler
    train(small_split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    train(small_split, "deps", TINY, SHORT, tmp_path / "whole")
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    for path in (tmp_path / "whole").glob("weights-*"):
        assert path.read_bytes() == (tmp_path / "run" / path.name).read_bytes()
    assert np.isfinite(card(tmp_path / "run")["best"]["ordinary"]["ndcg@10"])
