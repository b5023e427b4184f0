"""Records told elsewhere: each of them once, in order, whatever happens to the run in between."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import unskew
from tests.conftest import random_table
from tests.helpers.runs import train
from unskew.cli import main
from unskew.integrations import tensorboard
from unskew.training.epoch_record import EpochRecord
from unskew.training.run import RunFolder, read_records
from unskew.training.trainer import Trainer

SETTINGS: dict[str, Any] = {
    "width": 8,
    "layers": 1,
    "inner": 8,
    "hidden": 8,
    "history": 5,
    "audience": 4,
    "unsupervised_epochs": 1,
}
SETTINGS |= {"epochs": 3, "patience": 9, "batch_size": 128, "sequences": 64, "valid_examples": 50}


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30)))


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    read = EventAccumulator(str(folder), purge_orphaned_data=False)
    read.Reload()
    # Files of one second are read in the order of their names, .10 before .9.
    return {
        tag: sorted((event.step, event.value) for event in read.Scalars(tag))
        for tag in read.Tags()["scalars"]
    }


def numbers(records: Sequence[EpochRecord], *path: str) -> list[tuple[int, float]]:
    found = []
    for record in records:
        value: Any = record.to_json()
        for name in path:
            value = value.get(name, {})
        if value != {}:
            found.append((record.step, pytest.approx(value)))
    return found


def same(folder: Path, records: Sequence[EpochRecord]) -> None:
    found = events(folder)
    assert found["losses/unbiased"] == numbers(records, "losses", "unbiased")
    assert found["losses/masked"] == numbers(records, "losses", "masked")
    for criterion in ("ordinary", "balanced"):
        assert found[f"valid/{criterion}/ndcg@10"] == numbers(records, "valid", criterion, "ndcg@10")
    assert found["statistics/weight"] == numbers(records, "statistics", "weight")
    assert found["epoch"] == numbers(records, "epoch")
    assert [len(found[f"losses/{name}"]) for name in ("propensity", "masked", "unbiased")] == [4, 1, 3]


def test_every_number_of_a_run(split: unskew.Split, tmp_path: Path) -> None:
    model = unskew.DEPS(**SETTINGS).fit(split, on_record=tensorboard.track(tmp_path / "board"))
    assert len(model.records) == 4
    same(tmp_path / "board", model.records)


def test_any_function_is_told_and_cannot_harm(split: unskew.Split, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    def spoil(record: EpochRecord) -> None:
        told.append(json.loads(json.dumps(record.to_json())))
        record.losses.clear()

    model = unskew.DEPS(**SETTINGS).fit(split, tmp_path / "run", on_record=spoil)
    assert (
        told
        == [record.to_json() for record in model.records]
        == [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    )
    assert all(record.losses for record in model.records)


class Killed(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize(
    "moment", ["before it is saved", "before it is told", "while it is told", "after it was told"]
)
def test_a_resumed_run_loses_and_doubles_nothing(
    split: unskew.Split, tmp_path: Path, monkeypatch, moment: str
) -> None:
    made, board = unskew.DEPS(**SETTINGS), tmp_path / "board"

    def kill_at_second(trainer: Trainer) -> None:
        if len(trainer.records) == 2:
            raise Killed

    with monkeypatch.context() as patched:
        save, tell, told = RunFolder.save, Trainer.tell, tensorboard.track(board)
        if moment == "before it is saved":
            patched.setattr(
                RunFolder,
                "save",
                lambda self, trainer, record: (
                    record and kill_at_second(trainer),
                    save(self, trainer, record),
                ),
            )
        if moment == "before it is told":
            patched.setattr(
                Trainer, "tell", lambda self, records: (kill_at_second(self), tell(self, records))
            )
        if moment == "while it is told":

            def half(record: EpochRecord) -> None:
                if record.epoch == 1 and record.stage == "unbiased":
                    told(replace(record, valid={}, statistics={}))
                    raise Killed
                told(record)

        if moment == "after it was told":
            patched.setattr(
                Trainer, "tell", lambda self, records: (tell(self, records), kill_at_second(self))
            )
        with pytest.raises(Killed):
            train(
                split,
                "deps",
                made.config,
                made.training,
                tmp_path / "run",
                on_record=half if moment == "while it is told" else told,
            )
    with pytest.raises(unskew.BadInput, match="holds the events of another run"):
        tensorboard.track(board)
    made.fit(split, tmp_path / "run", resume=True, on_record=tensorboard.track(board, resume=True))
    same(board, made.records)
    made.fit(
        split, tmp_path / "run", resume=True, on_record=tensorboard.track(board, resume=True)
    )  # finished: nothing is new
    same(board, made.records)
    made.fit(
        split, tmp_path / "run", resume=True, on_record=tensorboard.track(tmp_path / "late")
    )  # of a finished run, too
    same(tmp_path / "late", made.records)


def test_a_broken_last_event_is_written_again(split: unskew.Split, tmp_path: Path) -> None:
    made = unskew.DEPS(**SETTINGS).fit(
        split, tmp_path / "run", on_record=tensorboard.track(tmp_path / "board")
    )
    (file,) = (tmp_path / "board").iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    made.fit(
        split, tmp_path / "run", resume=True, on_record=tensorboard.track(tmp_path / "board", resume=True)
    )
    same(tmp_path / "board", made.records)


def test_the_command_line(capsys, tmp_path: Path, monkeypatch) -> None:
    unskew.prepare(random_table(rows=900, users=40, items=30), tmp_path / "data")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SETTINGS.items()]
    command = [
        "train",
        str(tmp_path / "data"),
        "--out",
        str(tmp_path / "run"),
        "--tensorboard",
        str(tmp_path / "board"),
        "--model=deps",
        *flags,
    ]
    assert main(command) == 0
    same(
        tmp_path / "board",
        read_records(tmp_path / "run"),
    )
    again = ["train", "--resume", str(tmp_path / "run"), "--tensorboard", str(tmp_path / "board")]
    assert main(again) == 0
    capsys.readouterr()
    before = sorted(path.name for path in (tmp_path / "board").iterdir())
    for more, said in (
        (["--out", str(tmp_path / "new")], "holds the events of another run"),
        (
            ["--out", str(tmp_path / "new"), "--tensorboard", str(tmp_path / "run" / "card.json")],
            "expected a folder",
        ),
        (["--tensorboard", str(tmp_path / "other")], "a run is there already"),
    ):
        assert main([*command, *more]) == 2
        assert said in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "board").iterdir()) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board", "data", "run"]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main([*command, "--out", str(tmp_path / "new"), "--tensorboard", str(tmp_path / "other")]) == 2
    assert capsys.readouterr().err == "unskew: TensorBoard is not installed: pip install tensorboard\n"
