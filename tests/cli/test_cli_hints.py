"""Help names everything there is; wrong use exits with 2 and says why on standard error."""

from pathlib import Path

import pytest

from tests.helpers.command import run
from unskew.cli import VERBS, main
from unskew.cli.hints import flag_names
from unskew.data.log.preparation import Preparation
from unskew.data.log.split import Splitting
from unskew.world.equations import Simulation


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
    for name in flag_names(settings):
        assert f"--{name.replace('_', '-')} " in out


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
        (["train", "nowhere", "--out", "r", "--n-epochs", "3"], "no flag --n-epochs; here it is --epochs"),
        (["train", "nowhere", "--out", "r", "--lr=0.1"], "no flag --lr; here it is --learning-rate"),
        (
            ["train", "nowhere", "--out", "r", "--model", "sasrec", "--audience", "3"],
            "sasrec has no setting --audience; it is one of deps",
        ),
        (["recommend", "nowhere"], "expected one of --user ID, --history ITEM"),
        (["deploy"], "no verb 'deploy'"),
        ([], "prepare"),
    ],
)
def test_wrong_use_exits_with_2_and_says_why_on_standard_error(
    capsys, arguments: list[str], said: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    "flags", [["--fractions", "inf", "50", "50"], ["--min-count", "0"], ["--fractions", "0", "50", "50"]]
)
def test_settings_outside_their_range(capsys, data: Path, flags: list[str]) -> None:
    code, out, err = run(capsys, "inspect", data, *flags)
    assert (code, out) == (2, "")
    assert err.startswith("unskew: ")


def test_help_is_one_paragraph_per_flag(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever line breaks it has in the source."""
    monkeypatch.setenv("COLUMNS", "2000")
    with pytest.raises(SystemExit):
        main(["train", "--model", "debiased-sasrec", "--help"])
    lines = capsys.readouterr().out.splitlines()
    for whole in (  # of the verb, of the training, of the split, of the model
        "validation set chose: the number of epochs, and settings that no gradient learns.",
        "Which validation metric chooses the weights that recommend. The best",
        "Whether an item that a user has had before can be recommended to the user again.",
        "How the propensity P(o = 1) is estimated: from impressions (`exposure`), from clicks alone",
    ):
        assert any(whole in line for line in lines), whole


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["recommend", "r", "--k", "ten"], "parsing --k: expected a whole number, found 'ten'"),
        (["train", "d", "--out", "r", "--learning-rate", "x"], "expected a number, found 'x'"),
        (["train", "d", "--out", "r", "--fractions", "80", "20"], "'--fractions'. Expected 3 values"),
        (["evaluate"], "Missing from unskew evaluate: RUN"),
        (["recommend", "a", "b", "--user", "u"], "Unrecognized options: b; see `unskew recommend --help`"),
        (["evaluate", "r", "--protocol", "half"], "Expected one of ('full', 'uni100', 'authors')"),
    ],
)
def test_what_the_parser_complains_about_is_one_line(capsys, arguments: list[str], said: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("unskew: ")
    assert said in err
    assert "│" not in err
