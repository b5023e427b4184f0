"""What new users try: each gets one clear answer, and nothing is silently wrong."""

import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.processes import run_python
from unskew.api.create import create_model
from unskew.api.model import Model


def recommended(capsys, saved: Path, *more: object) -> list[str]:
    asked = ["recommend", saved, "--user", "u1", "--k", 99, "--include-seen", "True", "--json"]
    return [row["item_id"] for row in json.loads(run(capsys, *asked, *more)[1])["recommendations"]]


def test_a_flag_that_is_repeated_counts_every_time(capsys, saved: Path) -> None:
    everything = recommended(capsys, saved)
    first, second, third = everything[:3]
    for given in (["--exclude", first, "--exclude", second], ["--exclude", first, second]):
        assert recommended(capsys, saved, *given) == everything[2:]
    given = ["--candidate", first, third, "--candidate", second]
    assert recommended(capsys, saved, *given) == everything[:3]
    both = [
        run(capsys, "recommend", saved, *flags, "--json")[1]
        for flags in (
            ["--history", "i1", "--history", "i2"],
            ["--history", "i1", "i2"],
        )
    ]
    assert both[0] == both[1]
    code, _, err = run(capsys, "recommend", saved, "--user", "u1", "--exclude", "nothing such")
    assert (code, "not in the log of this run: 'nothing such'" in err) == (0, True)


def test_text_is_text_however_a_table_holds_it(tmp_path: Path) -> None:
    frame = random_table(rows=900, users=40, items=30, negatives=0.0).to_pandas()
    frame.to_csv(tmp_path / "log.csv", index=False)
    from_file = unskew.prepare(tmp_path / "log.csv", tmp_path / "a")
    from_frame = unskew.prepare(frame.astype({"user": "string[pyarrow]"}), tmp_path / "b")
    model = create_model("popularity").fit(unskew.split(from_file))
    assert model.recommend(users=["u1"], log=from_frame).table.num_rows == 10
    found = [model.evaluate(unskew.split(log)).metrics() for log in (from_file, from_frame)]
    assert found[0] == found[1]
    numbers = frame.assign(user=frame["user"].str[1:].astype(int))
    with pytest.raises(unskew.BadInput, match="numbers its users and items differently"):
        model.recommend(users=["u1"], log=unskew.read(numbers))


def test_a_run_that_nobody_may_read_is_one_line(saved: Path, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    folder.chmod(0)
    asked = ["recommend", str(folder), "--user", "u"]
    become = "import os, unskew.api.model; from unskew.cli import main; os.seteuid(65534); "
    tmp_path.chmod(0o755)
    done = run_python("-c", f"{become}raise SystemExit(main({asked}))")
    folder.chmod(0o755)
    assert done.returncode == 2, done.stderr
    assert "Permission denied" in done.stderr
    assert done.stderr.count("\n") == 1


def test_logged_propensities_that_are_not_there_are_noticed_at_once(
    capsys, data: Path, tmp_path: Path
) -> None:
    for model in ("deps", "debiased-sasrec"):
        code, _, err = run(
            capsys, "train", data, "--out", tmp_path / "x", "--model", model, "--propensity", "logged"
        )
        assert (code, "prepare it with --propensity COLUMN" in err) == (2, True)
        assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["train", "d", "--out", "r", "--batchsize", "8"],
            "train has no flag --batchsize; did you mean '--batch-size'",
        ),
        (["train", "d", "--mdoel", "sasrec"], "train has no flag --mdoel; did you mean '--model'"),
        (["prepare", "x.csv", "--out", "d", "--item-feature", "c"], "did you mean '--item-features'"),
        (["propensity", "health", "r", "--smaple", "3"], "did you mean '--sample'"),
        (["evaluate", "r", "--tset", "balanced"], "evaluate has no flag --tset; did you mean '--test'"),
    ],
)
def test_a_misspelt_flag_is_one_line(capsys, arguments: list[str], said: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_the_wrong_thing_in_python(model: Model, model_split: unskew.Split, tmp_path: Path) -> None:
    log = model_split.log
    for call, said in (
        (lambda: create_model("popularity").fit(log), r"expected a split of a log, as `unskew.split\(log\)`"),
        (lambda: model.evaluate(log), "expected a split of a log"),
        (lambda: model.refit("data"), "expected a log, as `unskew.prepare`.*found str"),
        (lambda: model.recommend(users=["u1"], log="data"), "expected a log, as `unskew.prepare`"),
        (lambda: create_model("sasrec", {"n_epochs": 3}), "has no setting 'n_epochs'; here it is 'epochs'"),
        (lambda: unskew.DEPS(lr=0.1), "has no setting 'lr'; here it is 'learning_rate'"),
        (lambda: unskew.read(pd.DataFrame(), item_features=["a", 1]), "expected text"),
        (lambda: unskew.split(log, fractions=(80, 20)), "expected 3 values, each a finite number"),
        (lambda: model.save_recommendations(tmp_path / "l.xlsx"), "expected a name that ends with .parquet"),
    ):
        with pytest.raises(unskew.BadInput, match=said):
            call()
    assert not list(tmp_path.iterdir())


def test_what_is_printed_of_things_is_short(model: Model, model_split: unskew.Split) -> None:
    assert len(repr(model.evaluate(model_split))) < 400
    assert "ndcg@10" in repr(model.evaluate(model_split))
    assert set(dir(unskew)) == {*unskew.__all__, "__version__"}


def test_a_folder_that_is_something_else(capsys, data: Path, saved: Path, tmp_path: Path) -> None:
    for folder, said in (
        (tmp_path / "nowhere", "no such folder"),
        (data, "this is prepared data and not a run"),
    ):
        code, _, err = run(capsys, "evaluate", folder)
        assert (code, said in err) == (2, True)
    for wrong, said in (
        (saved, "trained from Python and does not know where its data is; say it with --data"),
        (saved / "users.parquet", "not a saved evaluation; `unskew evaluate"),
    ):
        code, _, err = run(capsys, "compare", wrong, wrong)
        assert (code, err.count("\n"), said in err) == (2, 1, True)


def test_names_may_be_a_list() -> None:
    """A setting that is text with commas takes the same as a list."""
    table = {"user": ["a", "b"], "item": ["x", "y"], "time": [1, 2], "one": ["c", "d"], "two": [3, 4]}
    log = unskew.read(table, item_features=["one", "two"])
    assert list(log.items.features) == ["one", "two"]
    assert log.fingerprint() == unskew.read(table, item_features="one,two").fingerprint()


def test_recommendations_are_a_frame_of_polars_too(model: Model) -> None:
    polars = pytest.importorskip("polars")
    found = model.recommend(histories=[[]], k=3)
    assert isinstance(found.to_polars(), polars.DataFrame)
    assert found.to_polars()["item_id"].to_list() == found.to_pandas()["item_id"].to_list()


WITHOUT_FRAMES = """
import sys

class NotInstalled:
    @staticmethod
    def find_spec(name, *_):
        if name.partition(".")[0] in ("pandas", "polars"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled)
import unskew

log = unskew.prepare("clicks.csv", "shop", item_features=["category"])
split = unskew.split(log, fractions=(50, 20, 30))
model = unskew.create_model("pulse-zero").fit(split, show_progress=False)
assert model.evaluate(split, test="balanced").metrics()
assert model.recommend(users=["u1", "u2"], k=5, exclude=["i7"], debias=0.5).table.num_rows == 10
assert unskew.recommend("clicks.csv", users=["u1"], k=5).table.num_rows == 5
for method in ("to_pandas", "to_polars"):
    try:
        getattr(unskew.recommend(log, users=["u1"]), method)()
    except ImportError as error:
        print(type(error).__name__)
    except unskew.BadInput as error:
        print(error)
"""


def test_the_core_needs_neither_pandas_nor_polars(tmp_path: Path) -> None:
    """What the front page shows works after its own installation."""
    shutil.copy(Path(__file__).parents[2] / "examples" / "clicks.csv", tmp_path)
    ended = run_python("-c", WITHOUT_FRAMES, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "to_pandas needs pandas: pip install pandas",
        "to_polars needs polars: pip install polars",
    ]
