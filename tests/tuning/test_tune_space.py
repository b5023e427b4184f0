"""Where the settings of each model are searched: as in the papers, and nowhere that has no effect."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

import unskew
from tests.helpers.errors import refused
from tests.helpers.tuned import QUICK, quiet, small, tried
from unskew.api.create import create_model
from unskew.core.config import AtLeast1, Range, Search, check, searched
from unskew.models.base import MODELS, Training, model_named
from unskew.models.sasrec import SASRec
from unskew.tuning.search_space import BeforeTest, Space

BOTH = [name for kind in sorted(MODELS) for name in (kind, f"debiased-{kind}")]
NOTHING = {
    f"{family}{name}" for family in ("", "debiased-") for name in ("popularity", "personal", "pulse-zero")
}


@pytest.fixture(scope="module")
def cut() -> unskew.Split:
    return small()


@pytest.fixture(scope="module")
def data(cut: unskew.Split) -> BeforeTest:
    return BeforeTest(cut)


def test_deps_is_searched_as_in_the_paper(data: BeforeTest) -> None:
    assert Space("deps", data, {}).document() == {
        "width": [64, 128, 256],
        "layers": [2, 3, 4],
        "dropout": [0.1, 0.2, 0.3, 0.4, 0.5],
        "alpha": {"low": 0.4, "high": 0.6, "log": False},
        "clip": {"low": 0.01, "high": 0.2, "log": True},
        "batch_size": [512, 1024, 2048, 4096],  # the first one is our default
        "learning_rate": {"low": 1e-4, "high": 1e-3, "log": True},
    }
    paper = Space("deps", data, {}, preset="paper")
    assert paper.notes["batch_size"].values == (1024, 2048, 4096)
    assert paper.defaults["dropout"] == 0.5
    assert paper.fixed["audience"] == 30


def test_itemknn_is_searched_as_its_rivals_are(data: BeforeTest) -> None:
    assert Space("itemknn", data, {}).document() == {
        "neighbours": [50, 100, 200],
        "shrink": [0.0, 10.0, 100.0],
        "weighting": ["cosine", "tf-idf", "bm25"],
    }


@pytest.mark.parametrize("name", BOTH)
def test_every_model_has_something_to_tune_or_says_that_it_has_not(name: str, data: BeforeTest) -> None:
    if name in NOTHING:
        with pytest.raises(unskew.BadInput, match=f"^{name} has nothing to tune: "):
            Space(name, data, {})
        return
    space = Space(name, data, {})
    kind = model_named(name)
    said = searched(kind.Config) | searched(Training) | kind.searched
    for setting, note in space.notes.items():
        assert space.defaults[setting] in note
        if not note.values:  # a range of numbers has the default within, as it was written
            assert note == said[setting]
        for value in note.values or (note.low, note.high):
            made = create_model(name, space.defaults | {setting: value})
            check(made.config)
            check(made.training)
    made = create_model(name, space.defaults)
    assert made.training == create_model(name).training
    assert kind.resolve_auto(made.config, data.split) == kind.resolve_auto(
        create_model(name).config, data.split
    )


@pytest.mark.parametrize(
    ("name", "given", "there", "not_there"),
    [
        ("sasrec", {}, {"sequences", "learning_rate"}, {"batch_size"}),
        ("din", {}, {"batch_size", "learning_rate"}, {"sequences"}),
        ("deps", {}, {"batch_size", "clip", "alpha"}, {"sequences", "strength"}),
        ("deps", {"propensity": "item"}, {"clip"}, {"alpha", "strength"}),
        ("deps", {"propensity": "none"}, {"width"}, {"alpha", "clip", "strength"}),
        ("deps", {"method": "ips"}, {"clip", "alpha", "strength"}, set()),
        ("debiased-sasrec", {}, {"strength", "width", "sequences"}, {"clip", "alpha", "batch_size"}),
        ("debiased-sasrec", {"method": "ips-both", "propensity": "dual"}, {"clip", "alpha"}, {"strength"}),
        ("debiased-sasrec", {"method": "ips-both", "propensity": "power"}, {"clip"}, {"strength", "alpha"}),
        (
            "debiased-sasrec",
            {"method": "ips-both", "propensity": "dual", "weights": "ips"},
            {"alpha"},
            {"clip"},
        ),
        (
            "debiased-itemknn",
            {},
            {"neighbours", "shrink", "weighting"},
            {"clip", "strength", "learning_rate"},
        ),
        (
            "debiased-deps",
            {},
            {"width", "learning_rate"},
            {"clip", "alpha", "strength"},
        ),  # two parts have them
        ("pulse", {"hidden": 16}, {"drawn", "batch_size", "weight_decay"}, {"hidden", "sequences"}),
    ],
)
def test_only_what_has_an_effect_is_searched(
    data: BeforeTest, name: str, given: dict[str, Any], there: set[str], not_there: set[str]
) -> None:
    notes = Space(name, data, given).notes
    assert there <= notes.keys()
    assert not not_there & notes.keys()


def test_a_recipe_outside_the_paper_has_a_range_of_its_own(data: BeforeTest) -> None:
    rates = {
        name: Space(name, data, {}).notes["learning_rate"] for name in ("gru4rec", "uir", "debiased-uir")
    }
    assert rates["gru4rec"] == Search(0.01, 0.25, log=True)
    assert rates["uir"] == rates["debiased-uir"] == Search(1e-3, 1e-2, log=True)
    assert Space("bst", data, {}).notes["batch_size"].values == (256, 1024, 2048, 4096)


def test_a_note_has_room_for_one_more() -> None:
    assert Search(1.0, 2.0).containing(5.0) == Search(1.0, 5.0)
    assert Search(1.0, 2.0, log=True).containing(1.5) == Search(1.0, 2.0, log=True)
    assert Search.among(4, 8).containing(6).values == (4, 6, 8)
    assert Search.among("a", None).containing(3).values == ("a", None, 3)
    assert [str(Search(1e-4, 0.1, log=True)), str(Search.among(2, 3))] == [
        "0.0001 to 0.1 (logarithmic)",
        "2, 3",
    ]


@pytest.fixture
def headed() -> Iterator[str]:
    """A model of which not every number of heads goes with every width."""

    class Headed(SASRec, name="headed", paper="none"):
        @dataclass(frozen=True, kw_only=True)
        class Config(SASRec.Config):
            width: Annotated[AtLeast1, Search.among(6, 8, 12, 20)] = 8
            heads: Annotated[AtLeast1, Search.among(1, 2, 4, 5)] = 2
            forgets: Annotated[float, Range(least=0), Search(0, 1)] | None = 0.5

    yield "headed"
    MODELS.pop("headed")


def test_heads_always_divide_the_width(headed: str, data: BeforeTest) -> None:
    def choices(**given: int) -> tuple[Any, Any]:
        notes = Space(headed, data, given).notes
        width, heads = (notes[name].values if name in notes else None for name in ("width", "heads"))
        return width, heads

    assert choices() == ((6, 8, 12, 20), (1, 2))
    assert choices(width=20) == (None, (1, 2, 4, 5))
    assert choices(heads=4) == ((8, 12, 20), None)
    assert choices(heads=1) == ((6, 8, 12, 20), None)
    with refused("heads"):
        choices(heads=5)
    few = QUICK | {"epochs": 1}
    few.pop("width")
    found = quiet(headed, data, few, trials=12)
    pairs = {(row["width"], row["heads"]) for row in tried(found)}
    assert {row["state"] for row in tried(found)} <= {"complete", "pruned"}
    assert len(pairs) > 3


def test_a_default_that_is_no_number_is_one_clear_error(headed: str, data: BeforeTest) -> None:
    MODELS[headed].presets = {"forgetful": {"forgets": None}}
    with pytest.raises(unskew.BadInput, match="headed: forgets is searched, and its default is no value"):
        Space(headed, data, {}, "forgetful")


def test_nothing_left_to_tune(data: BeforeTest) -> None:
    with pytest.raises(
        unskew.BadInput, match="itemknn has nothing left to tune: neighbours, shrink, weighting are given"
    ):
        quiet("itemknn", data, {"neighbours": 5, "shrink": 0.0, "weighting": "bm25"})
