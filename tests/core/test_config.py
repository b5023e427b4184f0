"""Settings outside their range: one line that names setting, value and range, before anything is written."""

import dataclasses
import re
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.errors import refused
from tests.helpers.runs import train
from unskew.api.create import create_model
from unskew.cli import main
from unskew.core.config import AtLeast1, Range, check
from unskew.models.base import MODELS, ModelConfig, Recommender, Training, model_named

# A model, its settings, and the one that is wrong.
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("deps", {"heads": 3}, "heads"),
    ("deps", {"heads": 0}, "heads"),
    ("sasrec", {"heads": 4, "width": 6}, "heads"),
    ("bst", {"width": 8, "heads": 1}, "place_width"),
    ("debiased-sasrec", {"heads": 5}, "heads"),
    ("deps", {"dropout": 1.0}, "dropout"),
    ("sasrec", {"dropout": -0.1}, "dropout"),
    ("sasrec", {"sequences": 0}, "sequences"),
    ("deps", {"batch_size": 0}, "batch_size"),
    ("popularity", {"epochs": 0}, "epochs"),
    ("deps", {"history": 0}, "history"),
    ("itemknn", {"history": -1}, "history"),
    ("deps", {"audience": -1}, "audience"),
    ("debiased-sasrec", {"past_items": 0}, "past_items"),
    ("deps", {"masked": 1.5}, "masked"),
    ("sasrec", {"width": 0}, "width"),
    ("debiased-sasrec", {"propensity_width": 0}, "propensity_width"),
    ("debiased-sasrec", {"gru_layers": 0}, "gru_layers"),
    ("debiased-sasrec", {"propensity_epochs": -1}, "propensity_epochs"),
    ("deps", {"learning_rate": 0.0}, "learning_rate"),
    ("deps", {"learning_rate": -1e-3}, "learning_rate"),
    ("deps", {"gradient_norm": 0.0}, "gradient_norm"),
    ("deps", {"seed": -1}, "seed"),
    ("deps", {"negatives": -1}, "negatives"),
    ("deps", {"valid_examples": -1}, "valid_examples"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared") / "data"
    unskew.prepare(random_table(rows=900, users=40, items=30), folder)
    return folder


@pytest.mark.parametrize(
    ("name", "settings", "wrong"), WRONG, ids=[f"{name} {settings}" for name, settings, _ in WRONG]
)
def test_settings_outside_their_range(
    capsys, data: Path, tmp_path: Path, name: str, settings: dict[str, Any], wrong: str
) -> None:
    with pytest.raises(unskew.BadInput) as caught:
        create_model(name, settings)
    assert caught.value.field == wrong
    flags = [f"--{setting.replace('_', '-')}={value}" for setting, value in settings.items()]
    code = main(["train", str(data), "--out", str(tmp_path / "run"), "--model", name, *flags])
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err) == (2, "", f"unskew: {caught.value}\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("setting", ["learning_rate", "dropout", "alpha"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none(data: Path, setting: str, value: float) -> None:
    with refused(setting):
        create_model("deps", {setting: value})
    parts = {f.name for f in dataclasses.fields(Training)}
    training = Training(**{setting: value} if setting in parts else {})
    config = MODELS["deps"].Config(**{} if setting in parts else {setting: value})
    with refused(setting):
        train(unskew.split(unskew.Log.open(data)), "deps", config, training)


@pytest.mark.parametrize("name", [name for kind in MODELS for name in (kind, f"debiased-{kind}")])
def test_what_the_models_come_with_is_within(name: str) -> None:
    kind = model_named(name)
    check(kind.Config())
    check(Training(**kind.recipe))


def test_a_range_stands_in_the_type_of_its_field() -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        free: float = -7.0
        tower: AtLeast1 = 2
        most: Annotated[float, Range(above=0, most=2)] | None = None
        part: Annotated[float, Range(least=0, most=1)] = 0.5

    check(Config())
    check(Config(most=2.0))
    for wrong, said in (
        ({"tower": 0}, "tower 0: expected at least 1"),
        ({"most": 0.0}, "most 0.0: expected above 0 and at most 2"),
        ({"most": 2.1}, "most 2.1: expected above 0 and at most 2"),
        ({"part": -0.1}, "part -0.1: expected at least 0 and at most 1"),
    ):
        with pytest.raises(unskew.BadInput, match=f"^{re.escape(said)}$"):
            check(Config(**wrong))


def test_settings_that_do_not_fit_each_other_say_why() -> None:
    for name, settings, said in (
        ("deps", {"heads": 3}, "heads 3: expected a divisor of width, 64"),
        ("bst", {"width": 8, "heads": 1}, "place_width 8: expected less than width, 8"),
    ):
        with pytest.raises(unskew.BadInput, match=f"^{said}$"):
            create_model(name, settings)


def test_an_unknown_setting_is_one_clear_error_however_it_is_passed() -> None:
    for make in (
        lambda: unskew.DEPS(widht=3),
        lambda: create_model("deps", {"widht": 3}),
        lambda: unskew.Debiased("sasrec", {"widht": 3}),
    ):
        with pytest.raises(unskew.BadInput, match="has no setting 'widht'; did you mean 'width'"):
            make()


def test_the_keywords_of_deps_have_its_defaults() -> None:
    assert unskew.DEPS().training == create_model("deps").training
    assert unskew.DEPS().config == create_model("deps").config


def test_a_preset_goes_below_what_is_given_and_above_the_defaults() -> None:
    made = create_model("deps", {"audience": 7}, preset="paper")
    assert (made.config.audience, made.config.dropout, made.training.learning_rate) == (7, 0.5, 1e-3)
    assert create_model("stamp", preset="paper").config == create_model("stamp").config
    with pytest.raises(unskew.BadInput, match="deps has no preset 'papr'; did you mean 'paper'"):
        create_model("deps", preset="papr")
    both = create_model("deps", preset="paper,without-ips").config
    assert (both.audience, both.propensity) == (30, "none")
    for presets, propensity in (
        ("without-history,without-ips", "none"),
        ("without-ips,without-history", "user"),
    ):
        found = create_model("deps", preset=presets).config  # both name a propensity: the later one counts
        assert (found.reads, found.propensity) == ("audience", propensity)
    for name, kind in MODELS.items():
        for preset in {"paper"} | kind.presets.keys():
            create_model(name, preset=preset)


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(unskew.BadInput, match="a model named 'sasrec' is registered already: unskew"):

        class Mine(Recommender, name="sasrec", paper="none"):
            pass

    assert MODELS["sasrec"].__module__ == "unskew.models.sasrec"


def test_a_class_may_be_defined_again() -> None:
    """As in a cell of a notebook that is run twice: the newer one is the model."""

    def defined() -> type[Recommender]:
        class Mine(Recommender, name="defined twice", paper="none"):
            pass

        return Mine

    try:
        _, second = defined(), defined()
        assert MODELS["defined twice"] is second
    finally:
        MODELS.pop("defined twice", None)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_number_among_the_settings_has_a_range(name: str) -> None:
    hints = get_type_hints(MODELS[name].Config, include_extras=True)
    numbers = {
        field.name
        for field in dataclasses.fields(MODELS[name].Config)
        if hints[field.name] in (int, float, int | None, float | None)
    }
    assert not numbers, f"say in the type of the field what {sorted(numbers)} may be"


# Settings that two parts of a model have


def test_a_setting_of_two_parts_needs_a_config_of_each() -> None:
    with pytest.raises(unskew.BadInput, match="debiased-deps: 'clip' is a setting of two of its parts"):
        unskew.Debiased("deps", {"clip": 0.1})
    assert unskew.Debiased("deps", {"past_items": 7, "heads": 4}).config.backbone.heads == 4


@pytest.mark.parametrize("name", ["debiased-deps", "debiased-usr"])
def test_such_a_model_has_no_flags(capsys, data: Path, tmp_path: Path, name: str) -> None:
    code = main(["train", str(data), "--out", str(tmp_path / "run"), "--model", name])
    printed = capsys.readouterr()
    assert (code, printed.out, printed.err.count("\n")) == (2, "", 1)
    assert printed.err.startswith(f"unskew: {name}: '")
    assert "is a setting of two of its parts" in printed.err


def test_the_flags_of_a_debiased_model_are_flat(capsys, data: Path, tmp_path: Path) -> None:
    asked = ["train", str(data), "--out", str(tmp_path / "run"), "--model", "debiased-sasrec"]
    assert main([*asked, "--width"]) == 2
    assert "--width" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", "--model", "debiased-sasrec", "--help"])
    printed = capsys.readouterr().out
    assert all(
        f"--{flag} " in printed
        for flag in ("width", "heads", "clip", "weights", "propensity-width", "past-items", "epochs")
    )
    assert "--backbone" not in printed


@pytest.mark.parametrize("flags", [["--threads", "0"], ["--threads=-1"]])
def test_threads(capsys, data: Path, tmp_path: Path, flags: list[str]) -> None:
    assert main(["train", str(data), "--out", str(tmp_path / "run"), *flags]) == 2
    assert "expected at least 1" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
