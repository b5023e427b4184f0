"""The training loop: stages in order, early stopping, exact resumption after a kill at any moment, runs that
are whole or not there."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import unskew
from tests.conftest import random_table
from unskew import run as run_module
from unskew.api import create_model
from unskew.data.held_out import held_out
from unskew.data.split import Split
from unskew.evaluate import evaluation, rank
from unskew.models.base import MODELS, Stage, model_named
from unskew.models.deps import DEPS
from unskew.models.itemknn import DECAYS
from unskew.models.popularity import Popularity
from unskew.models.sasrec import SASRec
from unskew.ranker import for_users
from unskew.run import RunFolder, train
from unskew.train import Trainer, Training

TINY = DEPS.Config(
    width=8, layers=1, heads=2, inner=16, hidden=8, dropout=0.2, unsupervised_rounds=1, history=6, audience=4
)
SHORT = Training(rounds=3, batch_size=128, sequences=16, valid_rows=50, patience=9, seed=3)
CRITERIA = ("ordinary", "balanced")


@pytest.fixture(scope="module")
def split() -> Split:
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0)))


@pytest.fixture(scope="module")
def uninterrupted(split: Split, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(split, "deps", TINY, SHORT, folder)
    assert len({best["round"] for best in card(folder)["best"].values()}) == 2  # two sets of weights
    return folder


class Killed(Exception):  # noqa: N818
    pass


def train_until(split: Split, folder: Path, step: int, monkeypatch, every: int) -> None:
    """Train and die at a step, with a checkpoint every few steps: what a kill leaves behind is the folder
    alone."""
    with monkeypatch.context() as patched:

        def checkpoint(self: RunFolder, trainer: Trainer) -> None:
            if trainer.progress.step == step:
                raise Killed
            if trainer.progress.step % every == 0:
                self.save(trainer, None)

        patched.setattr(RunFolder, "maybe_checkpoint", checkpoint)
        with pytest.raises(Killed):
            train(split, "deps", TINY, SHORT, folder, resume=True)


def card(folder: Path) -> dict:
    return json.loads((folder / "card.json").read_text())


def records(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [
        {key: value for key, value in line.items() if key not in ("rows_per_s", "peak_gb")} for line in lines
    ]


def assert_same_run(folder: Path, other: Path) -> None:
    for criterion in CRITERIA:
        assert (folder / f"weights-{criterion}.safetensors").read_bytes() == (
            other / f"weights-{criterion}.safetensors"
        ).read_bytes()
    assert records(folder) == records(other)
    assert {path.name for path in folder.iterdir()} == {path.name for path in other.iterdir()}


def test_a_run_is_whole(uninterrupted: Path) -> None:
    names = {
        "config.json",
        "memory.safetensors",
        "users.parquet",
        "items.parquet",
        "records.jsonl",
        "card.json",
    }
    assert {path.name for path in uninterrupted.iterdir()} == names | {
        f"weights-{criterion}.safetensors" for criterion in CRITERIA
    }
    stages = [record["stage"] for record in records(uninterrupted)]
    assert stages == ["unsupervised"] + ["unbiased"] * 3
    for record in records(uninterrupted):
        assert {"weight", "item_view", "item_view_clipped", "user_view"} <= record["statistics"].keys()
    said = card(uninterrupted)
    assert (said["seed"], said["choose_by"], said["weights"]) == (3, "balanced", [*CRITERIA])
    for criterion in CRITERIA:
        found = [record["valid"][criterion]["ndcg@10"] for record in records(uninterrupted)[1:]]
        assert said["best"][criterion] == {"round": int(np.argmax(found)), "ndcg@10": max(found)}


@pytest.mark.parametrize("step", [1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 14, 16])
def test_killed_at_any_step_it_ends_with_the_same_weights(
    split: Split, uninterrupted: Path, tmp_path: Path, monkeypatch, step: int
) -> None:
    last = records(uninterrupted)[-1]["step"]
    assert step <= last
    train_until(split, tmp_path / "run", step, monkeypatch, every=3)
    assert not (tmp_path / "run" / "card.json").exists()
    train(split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_killed_again_and_again(split: Split, uninterrupted: Path, tmp_path: Path, monkeypatch) -> None:
    for step in (2, 6, 9, 13):
        train_until(split, tmp_path / "run", step, monkeypatch, every=1)
    train(split, "deps", TINY, SHORT, tmp_path / "run", resume=True)
    assert_same_run(tmp_path / "run", uninterrupted)


def test_a_real_kill_and_the_command_line(split: Split, tmp_path: Path) -> None:
    unskew.prepare(random_table(rows=4000, users=80, items=60, negatives=0.0), tmp_path / "data")
    flags = [
        "--width",
        "8",
        "--layers",
        "1",
        "--inner",
        "16",
        "--unsupervised-rounds",
        "1",
        "--rounds",
        "4",
        "--batch-size",
        "64",
    ]
    flags += ["--threads", "1", "--valid-rows", "50", "--dropout", "0.2"]
    code = (
        "import sys, unskew.run as r; r.CHECKPOINT_EVERY = 0.05; from unskew.cli import main; "
        "print('ready', flush=True); sys.exit(main())"
    )

    def command(out: str) -> list[str]:
        return [
            sys.executable,
            "-c",
            code,
            "train",
            str(tmp_path / "data"),
            "--out",
            str(tmp_path / out),
            "--resume",
            *flags,
        ]

    assert subprocess.run(command("whole"), capture_output=True, timeout=240, check=False).returncode == 0
    for wait in (0.3, 0.8, 1.3):
        started = subprocess.Popen(command("killed"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        started.stdout.readline()
        time.sleep(wait)
        started.send_signal(signal.SIGKILL)
        started.communicate(timeout=60)
        assert started.returncode == -signal.SIGKILL
    assert subprocess.run(command("killed"), capture_output=True, timeout=240, check=False).returncode == 0
    assert_same_run(tmp_path / "killed", tmp_path / "whole")


def test_the_card_says_what_validation_chose(split: Split, uninterrupted: Path, tmp_path: Path) -> None:
    """Models that no gradient trains have no best round; what they have chosen stands there by its name."""
    chosen = {}
    for name, settings in (
        ("popularity", {}),
        ("itemknn", {}),
        ("debiased-popularity", {"propensity": "item-pro"}),
    ):
        made = create_model(name, settings | {"valid_rows": 100}).fit(split, tmp_path / name)
        made.save(tmp_path / "again" / name)
        said = card(tmp_path / name)
        assert said["chosen"] == card(tmp_path / "again" / name)["chosen"]
        chosen[name] = said["chosen"]
        assert {best["round"] for best in said["best"].values()} == {-1}
    for criterion in CRITERIA:
        settings = replace(SHORT, valid_rows=100, seed=0, choose_by=criterion)
        network = train(split, "popularity", Popularity.Config(), settings)[0]
        settled = {
            "window_ticks": float(network.window_ticks),
            "half_life_ticks": float(network.half_life_ticks),
        }
        assert chosen["popularity"][criterion] == settled
        assert chosen["debiased-popularity"][criterion] == {
            f"backbone.{name}": value for name, value in settled.items()
        }
        assert chosen["itemknn"][criterion].keys() == {"decay"}
        assert chosen["itemknn"][criterion]["decay"] in DECAYS
    create_model("popularity", {"recency": "window", "span": 77.0}).fit(split, tmp_path / "given")
    assert card(tmp_path / "given")["chosen"] == {"ordinary": {"window_ticks": 77.0, "half_life_ticks": 0.0}}
    assert card(uninterrupted)["chosen"] == {criterion: {} for criterion in CRITERIA}


def test_another_seed_is_another_run_and_the_same_one_repeats(split: Split, uninterrupted: Path) -> None:
    _, again = train(split, "deps", TINY, SHORT)
    _, other = train(split, "deps", TINY, replace(SHORT, seed=4))
    for criterion in CRITERIA:
        stored = load_file(uninterrupted / f"weights-{criterion}.safetensors")
        assert all(torch.equal(value, stored[name]) for name, value in again.best[criterion].items())
        assert not all(torch.equal(value, stored[name]) for name, value in other.best[criterion].items())


# Two criteria, side by side

ORDINARY, BALANCED = (
    [0.1, 0.5, 0.2, 0.3, 0.3, 0.9],
    [0.1, 0.2, 0.4, 0.3, 0.3, 0.9],
)  # the best so far: rounds 1 and 2; then too late
WAITS = {"rounds": 10, "patience": 2}
FPMC = {"width": 4, "history": 2, "learning_rate": 0.05, "sequences": 16}

State = dict[str, torch.Tensor]


@pytest.fixture
def planted(monkeypatch) -> list[State]:
    """Validation that finds these numbers, and notes the weights of each round."""
    seen: list[State] = []

    def validate(self: Trainer) -> dict[str, dict[str, float]]:
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        at = len(seen) - 1
        return {"ordinary": {"ndcg@10": ORDINARY[at]}, "balanced": {"ndcg@10": BALANCED[at]}}

    monkeypatch.setattr(Trainer, "_validate", validate)
    return seen


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


def test_patience_waits_for_the_slowest_criterion_and_the_best_weights_by_each_stay(
    split: Split, planted: list[State]
) -> None:
    model, trainer = train(split, "deps", TINY, replace(SHORT, **WAITS))
    assert [
        record["valid"]["ordinary"]["ndcg@10"] for record in trainer.records if "valid" in record
    ] == ORDINARY[:5]
    assert (trainer.progress.best_round, trainer.progress.best) == (
        {"ordinary": 1, "balanced": 2},
        {"ordinary": 0.5, "balanced": 0.4},
    )
    assert same(trainer.best["ordinary"], planted[1])
    assert same(trainer.best["balanced"], planted[2])
    assert not same(planted[1], planted[2])
    assert same(model.state_dict(), planted[2])  # deps is chosen by the balanced one


def test_a_resumed_run_has_the_best_weights_by_each(
    split: Split, planted: list[State], tmp_path: Path, monkeypatch
) -> None:
    """Killed after both were found, when no later round can find them again."""
    made = create_model("fpmc", FPMC | WAITS)
    save = RunFolder.save

    def killed(self: RunFolder, trainer: Trainer, record: dict | None) -> None:
        save(self, trainer, record)
        if record is not None and record["round"] == 3:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", killed)
        with pytest.raises(Killed):
            made.fit(split, tmp_path / "run")
    made.fit(split, tmp_path / "run", resume=True)
    assert len(planted) == 5
    assert same(made._weights["ordinary"], planted[1])
    assert same(made._weights["balanced"], planted[2])


@pytest.mark.parametrize(
    ("slow", "rounds"), [([0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2], 3), ([0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2], 5)]
)
@pytest.mark.parametrize("which", CRITERIA)
def test_either_criterion_may_be_the_slow_one(
    split: Split, monkeypatch, slow: list[float], rounds: int, which: str
) -> None:
    given = iter(slow)
    other = next(criterion for criterion in CRITERIA if criterion != which)
    monkeypatch.setattr(
        Trainer, "_validate", lambda self: {which: {"ndcg@10": next(given)}, other: {"ndcg@10": 0.3}}
    )
    assert len(create_model("fpmc", FPMC | WAITS).fit(split).records) == rounds


@pytest.mark.parametrize("choose_by", ["auto", *CRITERIA])
def test_a_test_is_evaluated_with_its_own_weights_and_lists_with_the_chosen_ones(
    split: Split, planted: list[State], tmp_path: Path, choose_by: str
) -> None:
    made = create_model("fpmc", FPMC | WAITS | {"choose_by": choose_by}).fit(split, tmp_path / "run")
    made.save(tmp_path / "again")
    chosen = "ordinary" if choose_by == "auto" else choose_by
    by = {"ordinary": planted[1], "balanced": planted[2]}
    alone = {
        criterion: type(made.network)(split, made.config) for criterion in by
    }  # networks that have one set of weights only
    for criterion, network in alone.items():
        network.load_state_dict(by[criterion])

    def expected(criterion: str, test: str) -> dict[str, float]:
        tested = held_out(split, "test", test)
        return evaluation(split, rank(alone[criterion].eval(), split, tested.rows), "full", tested).metrics()

    lists = {
        criterion: for_users(network, split.log, ["u1", "u2"], seen=split.repeats).table
        for criterion, network in alone.items()
    }
    assert not lists["ordinary"].equals(lists["balanced"])
    for one in (made, unskew.load(tmp_path / "run"), unskew.load(tmp_path / "again")):
        assert same(one.network.state_dict(), by[chosen])
        for test in ("ordinary", "balanced", "authors"):
            own = test if test in by else chosen
            found = one.evaluate(split, test=test)
            assert found.about["weights_chosen_by"] == own
            assert found.metrics() == expected(own, test)
            for asked in CRITERIA:
                assert one.evaluate(split, test=test, choose_by=asked).metrics() == expected(asked, test)
        assert same(one.network.state_dict(), by[chosen])  # evaluating changes no list
        assert one.recommend(users=["u1", "u2"]).table.equals(lists[chosen])
        for criterion in CRITERIA:
            assert one.chosen_by(criterion).recommend(users=["u1", "u2"]).table.equals(lists[criterion])
        with pytest.raises(unskew.BadInput, match="weights chosen by ordinary, balanced"):
            one.evaluate(split, choose_by="shown")
    assert card(tmp_path / "run")["choose_by"] == card(tmp_path / "again")["choose_by"] == chosen
    for criterion in CRITERIA:
        assert same(load_file(tmp_path / "run" / f"weights-{criterion}.safetensors"), by[criterion])


def test_who_is_chosen_by_what() -> None:
    by = {name: kind.choose_by for name, kind in MODELS.items()} | {
        f"debiased-{name}": model_named(f"debiased-{name}").choose_by for name in MODELS
    }
    assert {name for name, criterion in by.items() if criterion == "balanced"} == {"deps", "deps-causal"} | {
        name for name in by if name.startswith("debiased-")
    }
    assert set(by.values()) == {"ordinary", "balanced"}


def test_a_criterion_that_the_ranked_rows_do_not_have_is_refused(tmp_path: Path) -> None:
    """A handful of visits among hundreds of rows: the sample may have none of them."""
    table = random_table()
    few = unskew.split(unskew.read(table.append_column("visit", table["time"])))
    assert 0 < len(held_out(few, "valid", "shown").rows) < 10
    for wanted in ({"valid_rows": 50}, {"valid_rows": 2000}):
        made = create_model("fpmc", FPMC | {"rounds": 1} | wanted).fit(few)
        assert ("shown" in made._weights) == (wanted["valid_rows"] == 2000)
    with pytest.raises(
        unskew.BadInput, match="choose_by shown: this log's validation part has only ordinary, balanced"
    ):
        create_model("fpmc", FPMC | {"rounds": 1, "valid_rows": 50, "choose_by": "shown"}).fit(
            few, tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
    made = create_model("fpmc", FPMC | {"rounds": 1, "choose_by": "shown"}).fit(few, tmp_path / "shown")
    assert unskew.load(tmp_path / "shown").evaluate(few, test="shown").about["weights_chosen_by"] == "shown"


def test_without_a_validation_part_the_last_weights_are_the_ones(split: Split, tmp_path: Path) -> None:
    cut = unskew.split(split.log, shares=(60, 0, 40))
    for name, expected in (("fpmc", "ordinary"), ("debiased-fpmc", "balanced")):
        made = create_model(
            name, FPMC | {"rounds": 2} | ({} if name == "fpmc" else {"propensity": "item-pro"})
        ).fit(cut, tmp_path / name)
        assert card(tmp_path / name)["weights"] == [expected]
        assert len(made.records) == 2
        assert unskew.load(tmp_path / name).evaluate(cut).metrics() == made.evaluate(cut).metrics()


def test_validation_drops_nothing(split: Split) -> None:
    """What a round records is what its weights do without dropout."""
    network, trainer = train(
        split, "sasrec", SASRec.Config(width=8, history=6, dropout=0.8), replace(SHORT, learning_rate=0.02)
    )
    for criterion, state in trainer.best.items():
        network.load_state_dict(state)
        ranked = rank(network.eval(), split, trainer.valid.rows, SHORT.seed)
        found = evaluation(split, ranked, "full", held_out(split, "valid", criterion)).metrics()
        record = trainer.records[trainer.progress.best_round[criterion]]
        assert record["valid"][criterion] == pytest.approx(found, abs=1e-6)


def test_runs_are_not_overwritten(split: Split, uninterrupted: Path, tmp_path: Path) -> None:
    with pytest.raises(unskew.BadInput, match="a run is there already"):
        train(split, "deps", TINY, SHORT, uninterrupted)
    with pytest.raises(unskew.BadInput, match="begun with width 8, not 4"):
        train(split, "deps", replace(TINY, width=4), SHORT, uninterrupted, resume=True)
    for name, other in {
        "learning_rate": 0.1,
        "rounds": 4,
        "seed": 4,
        "batch_size": 64,
        "choose_by": "ordinary",
    }.items():
        with pytest.raises(
            unskew.BadInput, match=f"begun with training {name} {getattr(SHORT, name)}, not {other}"
        ):
            train(split, "deps", TINY, replace(SHORT, **{name: other}), uninterrupted, resume=True)
    with pytest.raises(unskew.BadInput, match=r"begun with split shares \[50, 20, 30\], not \[60, 20, 20\]"):
        train(unskew.split(split.log, shares=(60, 20, 20)), "deps", TINY, SHORT, uninterrupted, resume=True)
    later = unskew.split(unskew.read(random_table(rows=901, users=40, items=30, negatives=0.0)))
    with pytest.raises(unskew.BadInput, match="begun on other data"):
        train(later, "deps", TINY, SHORT, uninterrupted, resume=True)
    model, _ = train(
        split, "deps", TINY, SHORT, uninterrupted, resume=True
    )  # finished: nothing is done again
    stored = load_file(uninterrupted / "weights-balanced.safetensors")
    assert all(torch.equal(value, stored[name]) for name, value in model.state_dict().items())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(unskew.BadInput, match="exists and is not a run"):
        train(split, "deps", TINY, SHORT, tmp_path / "mine")
    with pytest.raises(unskew.BadInput, match="no model 'depz'"):
        train(split, "depz", TINY, SHORT)


def test_a_finished_run_that_is_resumed_says_the_same_of_itself(
    split: Split, uninterrupted: Path, tmp_path: Path
) -> None:
    made = create_model("deps", asdict(TINY) | asdict(SHORT)).fit(split, uninterrupted, resume=True)
    made.save(tmp_path / "again")
    assert card(tmp_path / "again") == card(uninterrupted)
    assert_same_run(tmp_path / "again", uninterrupted)


# Steps


class Plain(SASRec):
    """Trained by plain gradient descent: a step is as long as the gradient says."""

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        (stage,) = super().stages(rounds)
        descent = replace(
            stage.phases[0], optimizer=lambda parameters, rate, decay: torch.optim.SGD(parameters, lr=rate)
        )
        return (replace(stage, phases=(descent,)),)


def test_long_gradients_are_shortened(split: Split) -> None:
    """Of all parameters together, and only if they are longer."""

    def moved(norm: float) -> float:
        torch.manual_seed(0)
        model = Plain(split, SASRec.Config(width=8, history=6, dropout=0.0))
        before = {name: value.detach().clone() for name, value in model.named_parameters()}
        Trainer(
            model, split, replace(SHORT, rounds=1, sequences=10_000, learning_rate=0.5, gradient_norm=norm)
        ).run()
        return float(
            torch.cat(
                [(value.detach() - before[name]).flatten() for name, value in model.named_parameters()]
            ).norm()
        )

    free = moved(1e9) / 0.5
    assert moved(0.3 * free) == pytest.approx(0.5 * 0.3 * free, rel=1e-3)
    assert moved(2 * free) == pytest.approx(0.5 * free, rel=1e-3)


def test_other_seeds_have_other_batches_and_so_have_other_phases(split: Split) -> None:
    def first(seed: int) -> dict[str, list[int]]:
        samplers = Trainer(DEPS(split, TINY), split, replace(SHORT, seed=seed)).samplers
        made = {name: next(iter(sampler.epoch())) for name, sampler in samplers.items()}
        return {name: batch.user_B.tolist() for name, batch in made.items()}

    one, other = first(3), first(4)
    assert one == first(3)
    assert not any(users == other[name] for name, users in one.items())
    assert one["propensity"] != one["masked"]  # both walk over whole sequences


def test_a_loss_that_is_not_a_number_stops_with_a_message(split: Split, monkeypatch) -> None:
    monkeypatch.setattr(
        DEPS, "unbiased_loss", lambda self, batch: torch.tensor(float("nan"), requires_grad=True)
    )
    with pytest.raises(unskew.UnskewError, match="the loss of phase unbiased is nan"):
        train(split, "deps", TINY, SHORT)


def test_an_unfinished_run_says_so(split: Split, tmp_path: Path, monkeypatch) -> None:
    train_until(split, tmp_path / "run", 4, monkeypatch, every=1)
    with pytest.raises(unskew.BadInput, match="not finished"):
        unskew.load(tmp_path / "run")
    assert run_module.CHECKPOINT_EVERY > 0


HOLDER = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.readline()
"""


def test_two_processes_do_not_train_in_one_folder(split: Split, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    store = RunFolder.begin(folder, {"hash": "h"}, resume=False)
    store.unlock()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, folder / ".lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(unskew.BadInput, match="another process is training in this folder"):
            RunFolder.begin(folder, {"hash": "h"}, resume=True)
    finally:
        holder.communicate("\n", timeout=20)
    RunFolder.begin(folder, {"hash": "h"}, resume=True).unlock()  # it has ended: the folder is free


def test_the_files_of_a_run_have_the_permissions_of_the_process(split: Split, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        train(split, "popularity", Popularity.Config(), SHORT, tmp_path / "run")
    finally:
        os.umask(before)
    assert {oct(path.stat().st_mode & 0o777) for path in (tmp_path / "run").iterdir()} == {"0o640"}


def test_the_weights_that_were_chosen_last_are_saved(split: Split, tmp_path: Path) -> None:
    """Of a model that was just trained, and of one that was loaded."""
    made = create_model("popularity", {}).fit(split, tmp_path / "run")
    assert card(tmp_path / "run")["choose_by"] == "ordinary"
    for number, model in enumerate((made, unskew.load(tmp_path / "run"))):
        model.chosen_by("balanced").save(tmp_path / f"again{number}")
        assert card(tmp_path / f"again{number}")["choose_by"] == "balanced"
        assert unskew.load(tmp_path / f"again{number}")._choose_by == "balanced"
    assert unskew.load(tmp_path / "run")._choose_by == "ordinary"


def test_a_lock_alone_does_not_make_a_folder_somebodys(split: Split, tmp_path: Path) -> None:
    """As a kill leaves it that comes between the two."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    train(split, "popularity", Popularity.Config(), SHORT, tmp_path / "run")
    assert (tmp_path / "run" / "card.json").is_file()
