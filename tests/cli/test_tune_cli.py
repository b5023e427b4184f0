"""`unskew tune` and `unskew train --config` as a script sees them."""

import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.tuned import QUICK, quiet, tried
from unskew.cli.tune import tune_of
from unskew.core.config import names_of
from unskew.models.base import MODELS, Training
from unskew.training.run import read_card, read_config, train
from unskew.tuning import tuner as tuning
from unskew.tuning.search_space import BeforeTest

AMBIGUOUS = {f"debiased-{name}" for name in ("deps", "deps-causal", "ubpr", "uir", "usr")}
FLAGS = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]


def lines(err: str) -> list[str]:
    """What was said, without the progress that a slow machine shows."""
    return [line for line in err.splitlines() if not line.startswith("tune: ")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    unskew.prepare(random_table(rows=900, users=40, items=30, negatives=0.0), folder)
    return folder


def test_tune_then_train_with_what_was_found(capsys, data: Path, tmp_path: Path) -> None:
    best, folder = tmp_path / "best.json", tmp_path / "run"
    asked = ("tune", "sasrec", data, "--out", best, "--trials", 3, *FLAGS)
    code, out, err = run(capsys, *asked, "--json")
    said = json.loads(out)
    assert code == 0
    assert [line.split(":")[0] for line in lines(err)] == ["trial 0", "trial 1", "trial 2"]
    python = quiet("sasrec", BeforeTest(unskew.split(unskew.Log.open(data))), QUICK, trials=3)
    assert (said["value"], said["settings"]) == (python.value, python.best)
    assert [row["value"] for row in said["rows"]] == [row["value"] for row in tried(python)]
    assert said["rows"][0]["settings"] == {"dropout": 0.1, "learning_rate": 1e-3}
    stored = json.loads(best.read_text())
    assert stored == {name: value for name, value in said.items() if name not in ("file", "rows")}
    assert stored["command"].startswith("unskew")
    assert stored["data"]["hash"] == BeforeTest(unskew.split(unskew.Log.open(data))).fingerprint
    code, out, err = run(capsys, *asked)
    assert (code, lines(err)) == (0, [])  # there was nothing left to do
    told = f"sasrec -> {best}: ordinary ndcg@10 {python.value:.4f} (the defaults "
    assert "".join(told.split()) in "".join(out.split())  # a narrow terminal folds a long path
    code, _, _ = run(capsys, "train", data, "--config", best, "--out", folder)
    assert code == 0
    config = read_config(folder).to_json()
    assert config["model"] == "sasrec"
    assert {"width": 8, "dropout": python.best["dropout"]}.items() <= config["config"].items()
    assert config["training"]["learning_rate"] == python.best["learning_rate"]
    assert read_card(folder).best["ordinary"]["ndcg@10"] == python.value


def test_flags_fix_settings_and_the_split(capsys, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "best.json"
    flags = (
        "--fractions",
        60,
        20,
        20,
        "--seed=4",
        "--select-by",
        "balanced",
        "--dropout",
        0.1,
    )  # its default
    code, said, _ = run(capsys, "tune", "sasrec", data, "--out", out, "--trials=2", *FLAGS, *flags, "--json")
    assert code == 0
    found = json.loads(said)
    assert found["searched"].keys() == {"learning_rate"}
    given = QUICK | {"seed": 4, "select_by": "balanced", "dropout": 0.1}
    assert given.items() <= found["settings"].items()
    assert found["split"]["fractions"] == [60, 20, 20]
    before = BeforeTest(unskew.split(unskew.Log.open(data), fractions=(60, 20, 20)))
    assert [row["value"] for row in found["rows"]] == [
        row["value"] for row in tried(quiet("sasrec", before, given, trials=2))
    ]
    # The split and all settings go with the file; flags win.
    flags = ("--width", 16, "--min-count", 2)
    code, _, _ = run(capsys, "train", data, "--config", out, "--out", tmp_path / "run", *flags)
    assert code == 0
    config = read_config(tmp_path / "run").to_json()
    assert (config["split"]["fractions"], config["split"]["min_count"]) == ((60, 20, 20), 2)
    assert (config["config"]["width"], config["config"]["history"]) == (16, 6)
    assert (config["training"]["seed"], config["training"]["select_by"]) == (4, "balanced")


def test_flags_of_a_backbone_and_a_preset(capsys, data: Path, tmp_path: Path) -> None:
    asked = (
        "tune",
        "debiased-sasrec",
        data,
        "--out",
        tmp_path / "best.json",
        "--trials",
        1,
        *FLAGS,
        "--json",
    )
    code, out, _ = run(capsys, *asked, "--propensity-passes", 1, "--propensity-width=8", "--preset", "paper")
    found = json.loads(out)
    assert code == 0
    assert found["searched"].keys() == {"alpha", "clip", "dropout", "learning_rate"}
    assert {"method": "ips-both", "propensity": "dual", "width": 8, "epochs": 4}.items() <= found[
        "settings"
    ].items()
    code, _, _ = run(capsys, "train", data, "--config", tmp_path / "best.json", "--out", tmp_path / "run")
    config = read_config(tmp_path / "run").to_json()["config"]
    assert (code, config["method"], config["backbone"]["width"]) == (0, "ips-both", 8)


def test_flags_may_stand_in_front(capsys, data: Path, tmp_path: Path) -> None:
    flags = ("--trials", 1, "--study", "sasrec", "--neighbours", 7)
    code, out, _ = run(capsys, "tune", *flags, "itemknn", data, "--out", tmp_path / "b.json", "--json")
    assert (code, json.loads(out)["settings"]["neighbours"]) == (0, 7)


@pytest.mark.parametrize("name", [name for kind in sorted(MODELS) for name in (kind, f"debiased-{kind}")])
def test_every_model_has_flags_or_one_clear_error(name: str) -> None:
    asked = ["tune", name, "data", "--seed=3", "--learning-rate", "1"]
    if name in AMBIGUOUS:
        said = f"{name}: '.*' is a setting of two of its parts, and a flag can mean only one; tune it"
        with pytest.raises(unskew.BadInput, match=said):
            tune_of(asked)
        return
    verb: Any = tune_of(asked)
    assert {*names_of(Training), "fractions", "trials"} <= {*names_of(verb)}
    assert verb.__dataclass_fields__["given"].default_factory() == ("seed", "learning_rate")


def test_ctrl_c_ends_with_130_and_the_best_so_far(capsys, data: Path, tmp_path: Path, monkeypatch) -> None:
    out = tmp_path / "best.json"
    asked = ("tune", "sasrec", data, "--out", out, "--trials", 3, *FLAGS)
    begun = []

    def interrupted(*args: Any, **more: Any) -> Any:
        begun.append(None)
        if len(begun) == 2:
            signal.raise_signal(signal.SIGINT)
        return train(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr(tuning, "train", interrupted)
        code, said, err = run(capsys, *asked)
    assert (code, said) == (130, "")
    assert lines(err)[1:] == [
        f"{out} has the best so far; the same command continues",
        "unskew: stopped",
    ]
    assert json.loads(out.read_text())["trials"] == {"complete": 1}
    code, said, _ = run(capsys, *asked, "--json")
    assert code == 0
    assert json.loads(said)["trials"] == {"complete": 3, "stopped": 1}


WRONG: list[tuple[list[str], str]] = [
    (["tune", "sasrek", "D", "--out", "O"], "no model 'sasrek'; did you mean 'sasrec'?"),
    (["tune", "popularity", "D", "--out", "O"], "popularity has nothing to tune: "),
    (["tune", "sasrec", "nowhere", "--out", "O"], "nowhere: no such folder"),
    (["tune", "sasrec", "D"], "--out"),
    (["tune", "sasrec", "D", "--out", "best.txt"], "best.txt: expected a name that ends with .json"),
    (["tune", "sasrec", "D", "--out", "O", "--trials", "0"], "trials 0: expected above 0"),
    (["tune", "sasrec", "D", "--out", "O", "--heads", "3"], "heads 3: expected a divisor of width, 64"),
    (["tune", "sasrec", "D", "--out", "O", "--audience", "3"], "unskew tune has no flag --audience"),
    (["tune", "sasrec", "D", "--out", "O", "--lr", "3"], "no flag --lr; here it is --learning-rate"),
    (["tune", "sasrec", "D", "--out", "O", "--threads", "0"], "threads 0: expected at least 1"),
    (["tune", "sasrec", "D", "--out", "O", "--storage", "study.db"], "storage 'study.db': expected a URL"),
    (
        ["tune", "sasrec", "D", "--out", "O", "--storage", "nothing://me:secret@there/db"],
        "storage nothing://me:***@there/db: cannot be opened",
    ),
    (["tune", "sasrec", "D", "--out", "O", "--storage", "://"], "storage ://...: cannot be opened"),
    (["tune", "sasrec", "D", "--out", "O", "--fractions", "70", "0", "30"], "tuning needs a validation set"),
]


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(wrong[0][1:]) for wrong in WRONG])
def test_wrong_use_is_one_line(
    capsys, data: Path, tmp_path: Path, monkeypatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"D": str(data), "O": str(tmp_path / "best.json")}
    code, out, err = run(capsys, *(places.get(word, word) for word in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "secret" not in err
    assert not list(tmp_path.iterdir())


def test_a_file_of_another_program_is_not_overwritten(capsys, data: Path, tmp_path: Path) -> None:
    out, url = tmp_path / "best.json", f"sqlite:///{tmp_path / 'there.db'}"
    out.write_text("mine")
    for more in ((), ("--storage", url)):
        code, _, err = run(capsys, "tune", "itemknn", data, "--out", out, *more)
        assert (code, "exists already" in err) == (2, True)
    assert out.read_text() == "mine"
    assert not (tmp_path / "best.db").exists()
    out.unlink()
    (tmp_path / "best.db").write_text("no database")
    code, _, err = run(capsys, "tune", "itemknn", data, "--out", out)
    assert (code, "cannot be opened (" in err, err.count("\n")) == (2, True, 1)
    (tmp_path / "file").write_text("")
    code, _, err = run(capsys, "tune", "itemknn", data, "--out", tmp_path / "file" / "best.json")
    assert (code, "cannot write there" in err) == (2, True)


def test_the_password_of_a_storage_is_written_nowhere(data: Path, tmp_path: Path, monkeypatch) -> None:
    shown = []
    url = f"sqlite:///{tmp_path / 'there.db'}"
    monkeypatch.setattr(tuning, "without_password", lambda said: shown.append(said) or "sqlite:///***")
    before = BeforeTest(unskew.split(unskew.Log.open(data)))
    command = f"unskew tune itemknn --storage {url}"
    quiet("itemknn", before, trials=1, storage=url, out=tmp_path / "best.json", command=command)
    assert shown == [url]
    stored = json.loads((tmp_path / "best.json").read_text())
    assert stored["command"] == "unskew tune itemknn --storage sqlite:///***"


def test_without_optuna_one_line_says_how_to_get_it(capsys, data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, out, err = run(capsys, "tune", "itemknn", data, "--out", tmp_path / "best.json")
    assert (code, out, err) == (
        2,
        "",
        "unskew: Optuna is not installed: pip install '.[tune]' in a clone of unskew\n",
    )
    assert not list(tmp_path.iterdir())


# The file


GOOD: dict[str, Any] = {"model": "sasrec", "settings": {"width": 8, "epochs": 1, "sequences": 64}}
BAD: list[tuple[Any, str]] = [
    ("{", "not JSON (Expecting"),
    ("[]", "not a configuration that `unskew tune` writes (no model)"),
    ({"settings": {}}, "(no model)"),
    ({"model": "sasrec"}, "(no settings)"),
    (GOOD | {"split": 3}, "(no split)"),
    (GOOD | {"model": "sasrek"}, "no model 'sasrek'; did you mean 'sasrec'?"),
    (GOOD | {"settings": {"widht": 8}}, "sasrec has no setting 'widht'; did you mean 'width'?"),
    (GOOD | {"settings": {"width": "wide"}}, "width 'wide': expected a whole number"),
    (GOOD | {"settings": {"dropout": 2.0}}, "dropout 2.0: expected at least 0 and at most 0.99"),
    (GOOD | {"split": {"fraction": 1}}, "a split has no setting 'fraction'; did you mean 'fractions'?"),
    (GOOD | {"split": {"fractions": [1, 2]}}, "fractions [1, 2]: expected 3 values"),
]


@pytest.mark.parametrize(("document", "said"), BAD, ids=[said for _, said in BAD])
def test_a_bad_file_is_one_line(capsys, data: Path, tmp_path: Path, document: Any, said: str) -> None:
    file = tmp_path / "best.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    code, out, err = run(capsys, "train", data, "--config", file, "--out", tmp_path / "run")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"unskew: {file}: ")
    assert said in err
    assert [path.name for path in tmp_path.iterdir()] == ["best.json"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--model", "deps"], "these are settings of sasrec, not of deps; leave --model away"),
        (["--preset", "paper"], "has all settings: leave --preset away"),
        (["--audience", "3"], "sasrec has no setting --audience"),
        (["--resume", "RUN"], "--config is for new runs"),
        (["--refit", "RUN"], "leave --config away"),
    ],
)
def test_what_does_not_go_with_a_file(
    capsys, data: Path, tmp_path: Path, flags: list[str], said: str
) -> None:
    file, folder = tmp_path / "best.json", tmp_path / "run"
    file.write_text(json.dumps(GOOD))
    code, _, _ = run(capsys, "train", data, "--config", file, "--out", folder, "--model", "sasrec")
    assert code == 0
    wanted = [str(folder) if word == "RUN" else word for word in flags]
    where = [] if "--resume" in flags else ["--out", tmp_path / "new"]
    code, out, err = run(capsys, "train", data, *where, *wanted, "--config", file)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_not_there(capsys, data: Path, tmp_path: Path) -> None:
    code, _, err = run(capsys, "train", data, "--config", tmp_path / "none.json", "--out", tmp_path / "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "none.json: cannot be read (No such file or directory)" in err
