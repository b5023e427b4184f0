"""Families of models: who is compared with whom, Holm's correction, and stars. And the verb, which ranks runs
on the same rows and refuses what cannot be compared before it ranks anything."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.evaluation.test_significance import evaluated, same_users, trained
from tests.helpers.command import run
from unskew.cli import main
from unskew.core.statistics import holm
from unskew.evaluation.comparison import Pair, compare_models, group_by_model
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.significance import Comparison, compare


def made_by(model: str, seed: int | None = 0, by: str | None = None, **config: Any) -> Evaluation:
    """An evaluation of a model with some settings."""
    settings = json.dumps([model, config, {"epochs": 2}])
    about = {"model": model, "training_seed": seed, "settings": settings, "weights_chosen_by": by}
    return evaluated([0.1, 0.2], about=about)


def shifted(by: float, seeds: int = 1) -> list[Evaluation]:
    """A model that is better than another by so much for everybody, but for a little of each seed's own."""
    base, random = np.random.default_rng(0).random(40), np.random.default_rng([seeds, int(by * 1000)])
    return [
        evaluated(base + by + 0.01 * random.standard_normal(40), rows=np.arange(40)) for _ in range(seeds)
    ]


LADDER = {"a": shifted(0.0, 3), "b": shifted(0.004, 3), "c": shifted(0.2, 3), "d": shifted(0.011, 3)}


def test_seeds_of_one_model_are_one_model() -> None:
    runs = [made_by("sasrec", 1), made_by("pulse", 1), made_by("sasrec", 2), made_by("pulse", 7)]
    found = group_by_model(runs)
    assert {name: [each.about["training_seed"] for each in group] for name, group in found.items()} == {
        "sasrec": [1, 2],
        "pulse": [1, 7],
    }
    unnamed = [evaluated([0.1]), evaluated([0.2])]
    assert [len(group) for group in group_by_model(unnamed).values()] == [1, 1]


def test_models_of_one_name_are_told_apart_by_their_settings() -> None:
    runs = [
        made_by("sasrec", width=8, inner={"learning_rate": 0.1}),
        made_by("pulse", width=8),
        made_by("sasrec", width=16, inner={"learning_rate": 0.1}),
        made_by("sasrec", width=8, inner={"learning_rate": 0.2}),
    ]
    assert list(group_by_model(runs)) == [
        "sasrec (width 8, inner learning rate 0.1)",
        "pulse",
        "sasrec (width 16, inner learning rate 0.1)",
        "sasrec (width 8, inner learning rate 0.2)",
    ]
    chosen = [made_by("deps", by="ordinary"), made_by("deps", by="balanced")]
    assert list(group_by_model(chosen)) == ["deps (chosen by ordinary)", "deps (chosen by balanced)"]
    many = [made_by("a", w=1, x=1, y=1, z=1), made_by("a", w=2, x=2, y=2, z=2)]
    assert list(group_by_model(many)) == ["a (1)", "a (2)"]
    untold = [evaluated([0.1], about={"model": "a"}) for _ in range(2)]
    assert list(group_by_model([*untold, made_by("a", w=1)])) == ["a (1)", "a (2)", "a (3)"]


def test_a_seed_that_comes_twice_is_refused() -> None:
    runs = [made_by("pulse", 1), made_by("sasrec", 2), made_by("pulse", 1)]
    with pytest.raises(
        unskew.BadInput, match=r"^one and three are the same model with the same training seed 1"
    ):
        group_by_model(runs, ["one", "two", "three"])
    with pytest.raises(unskew.BadInput, match=r"x \(1\) and x \(2\) are the same model"):
        compare_models({"x": [runs[0], runs[2]], "y": runs[1]})
    assert list(group_by_model([made_by("pulse", 1), made_by("pulse", 1, width=3)]))


@pytest.mark.parametrize("models", [[made_by("a", 1), made_by("a", 2)], {"a": evaluated([0.1])}, []])
def test_one_model_is_no_comparison(models: Any) -> None:
    with pytest.raises(unskew.BadInput, match="expected at least two models"):
        compare_models(models)


def test_what_cannot_be_compared_is_named() -> None:
    other = evaluated([0.1, 0.2], test="balanced", about={"training_seed": 4})
    with pytest.raises(
        unskew.BadInput, match=r"^mine and yours of seed 4 cannot be compared: the ordinary test"
    ):
        compare_models({"mine": evaluated([0.1, 0.2]), "yours": other})
    with pytest.raises(unskew.BadInput, match="mine: no metric 'mrr@10'; there are ndcg@10"):
        compare_models({"mine": evaluated([0.1, 0.2]), "yours": evaluated([0.1, 0.2])}, "mrr@10")
    with pytest.raises(unskew.BadInput, match="yours: expected at least one evaluation"):
        compare_models({"mine": evaluated([0.1, 0.2]), "yours": []})
    with pytest.raises(unskew.BadInput, match="against 'last': expected first, best or all"):
        compare_models({"mine": evaluated([0.1]), "yours": evaluated([0.2])}, against="last")


def test_each_model_minus_the_first() -> None:
    weights = np.array([1.0, 3.0])
    base = evaluated([0.2, 0.4], weights=weights)  # mean 0.35
    better = [evaluated([0.4, 0.4], weights=weights), evaluated([0.2, 0.6], weights=weights)]  # 0.4 and 0.5
    family = compare_models({"base": base, "better": better, "none": evaluated([0, 0], weights=weights)})
    assert [(pair.model, pair.reference) for pair in family.pairs] == [("better", "base"), ("none", "base")]
    assert [pair.comparison.difference for pair in family.pairs] == pytest.approx([0.1, -0.35])
    assert [pair.relative for pair in family.pairs] == pytest.approx([0.1 / 0.35, -1])
    assert [mean.mean for mean in family.means.values()] == pytest.approx([0.35, 0.45, 0.0])
    assert [mean.seeds for mean in family.means.values()] == [1, 2, 1]
    assert (family.reference, family.best, family.corrected_over) == ("base", "better", 2)


def test_with_one_seed_a_family_is_what_compare_says() -> None:
    models = {name: shifted(by) for name, by in (("a", 0.0), ("b", 0.02), ("c", 0.05))}
    family = compare_models(models)
    for pair in family.pairs:
        assert pair.comparison == compare(models[pair.model], models["a"])
    assert family.draws == 2000


def test_several_seeds_vary_for_each_model_on_its_own() -> None:
    models = {"a": same_users(0.4, 0.6), "b": same_users(0.4, 0.6), "c": same_users(0.4, 0.6)}
    for pair in compare_models(models, against="all").pairs:
        # Two degrees of freedom, for which Student's table says 4.303.
        assert pair.comparison.low == pytest.approx(-4.3027 * math.sqrt(0.02), abs=1e-3)
        assert pair.comparison.high == -pair.comparison.low


@pytest.mark.parametrize("against", ["first", "all"])
def test_p_values_are_corrected_over_the_family(against: Any) -> None:
    family = compare_models(LADDER, against=against)
    for corrected, raw in (("p_rows", "p_rows"), ("p_seeds", "p_seeds")):
        alone = {(pair.model, pair.reference): getattr(pair.comparison, raw) for pair in family.pairs}
        assert {(pair.model, pair.reference): getattr(pair, corrected) for pair in family.pairs} == holm(
            alone
        )
        assert holm(alone) != alone
    assert family.corrected_over == len(family.pairs) == {"first": 3, "all": 6}[against]


def test_against_the_best_counts_all_pairs_because_the_best_was_found_on_the_same_rows() -> None:
    family, every = (compare_models(LADDER, against=against) for against in ("best", "all"))
    assert (family.best, family.reference, family.corrected_over) == ("c", "c", 6)
    assert [(pair.model, pair.reference) for pair in family.pairs] == [("a", "c"), ("b", "c"), ("d", "c")]
    assert all(pair.comparison.high < 0 for pair in family.pairs)
    found = {frozenset((pair.model, pair.reference)): pair for pair in every.pairs}
    for pair in family.pairs:
        same = found[frozenset((pair.model, pair.reference))]
        assert (pair.p_rows, pair.p_seeds) == pytest.approx((same.p_rows, same.p_seeds))


def test_a_comparison_without_a_p_value_over_seeds_counts_all_the_same() -> None:
    family = compare_models({"a": shifted(0.0, 2), "b": shifted(0.01, 2), "c": shifted(0.3)})
    b, c = family.pairs
    assert (c.p_seeds, c.stars) == (None, 0)
    assert b.comparison.p_seeds is not None
    assert b.p_seeds == pytest.approx(min(1, 2 * b.comparison.p_seeds))
    assert c.p_rows < 1e-6


@pytest.mark.parametrize(
    ("p", "stars"), [(None, 0), (1.0, 0), (0.05, 0), (0.0499, 1), (0.01, 1), (0.0099, 2), (0.0, 2)]
)
def test_stars_are_of_the_corrected_p_value_over_seeds(p: float | None, stars: int) -> None:
    found = Comparison("ndcg@10", 0.1, 0.0, 0.2, (2, 2), p_seeds=0.0001, p_rows=0.0001)
    assert Pair("a", "b", found, 0.5, p_rows=0.0001, p_seeds=p).stars == stars


def test_the_draws_are_seeded() -> None:
    lows = [compare_models(LADDER, draws=50, seed=seed).pairs[0].comparison.low for seed in (1, 1, 2)]
    assert lows[0] == lows[1] != lows[2]


def test_seeds_that_differ_by_chance_only_have_no_stars() -> None:
    """Each family of three twins; the t-test, which ignores seeds, calls nearly all of them different."""
    stars, small = 0, 0
    for trial in range(30):
        models = {str(place): trained(3 * trial + place, 4, 0.03) for place in range(3)}
        pairs = compare_models(models, draws=400).pairs
        stars += any(pair.stars for pair in pairs)
        small += any(pair.p_rows < 0.05 for pair in pairs)
    assert stars <= 6
    assert small >= 20


# The verb


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of one world, some of which cannot be compared, and the file of one of them."""
    folder = tmp_path_factory.mktemp("compared")
    table = unskew.simulate(users=50, items=30, steps=40, impressions=0.3).log.table()
    table = table.append_column("odd", pa.array([number % 2 for number in range(len(table))]))
    unskew.prepare(table, folder / "world", duplicates="keep", tests="odd")
    unskew.prepare(table.slice(0, len(table) - 9), folder / "shorter", duplicates="keep", tests="odd")
    small = ("--epochs", "1", "--width", "8", "--layers", "1")
    for name, data, *flags in (
        ("pop0", "world", "popularity", "--seed", "0"),
        ("pop1", "world", "popularity", "--seed", "1"),
        ("sas0", "world", "sasrec", "--seed", "0", *small),
        ("sas1", "world", "sasrec", "--seed", "1", *small),
        ("other", "shorter", "popularity"),
        ("cut", "world", "itemknn", "--fractions", "60", "20", "20"),
        ("hidden", "world", "itemknn", "--repeats", "hide"),
        ("same", "world", "itemknn", "--fractions", "5", "2", "3", "--repeats", "keep"),
    ):
        arguments = ["train", folder / data, "--out", folder / name, "--model", *flags]
        assert main([str(argument) for argument in arguments]) == 0
    assert (
        main(["train", str(folder / "world"), "--refit", str(folder / "same"), "--out", str(folder / "live")])
        == 0
    )
    for name, of, *flags in (
        ("pop0.parquet", "pop0", "--test", "balanced", "--sample", "60", "--seed", "3"),
        ("drawn.parquet", "sas0", "--protocol", "uni100"),
    ):
        assert main(["evaluate", str(folder / of), "--save", str(folder / name), *flags]) == 0
    return folder


@pytest.mark.parametrize(
    ("protocol", "test", "sample", "seed", "metric"),
    [
        ("full", None, None, None, "ndcg@10"),
        ("full", "balanced", 60, 3, "hr@7"),
        ("uni100", "odd", None, 2, "mrr@20"),
        ("authors", None, 80, 1, "ndcg@5"),
        ("full", "shown", None, None, "auc"),
    ],
)
def test_runs_are_compared_as_in_python_to_the_last_digit(
    capsys, runs: Path, protocol: Any, test: str | None, sample: int | None, seed: int | None, metric: str
) -> None:
    asked = {"--protocol": protocol, "--test": test, "--sample": sample, "--seed": seed, "--metric": metric}
    flags = [word for flag, value in asked.items() if value is not None for word in (flag, value)]
    folders = [runs / name for name in ("pop0", "sas0", "pop1", "sas1")]
    code, out, _ = run(capsys, "compare", *folders, *flags, "--json")
    assert code == 0
    found = json.loads(out)
    split = unskew.split(unskew.Log.open(runs / "world"))
    evaluations = [
        unskew.load(folder).evaluate(
            split, protocol, test, sample=sample, seed=seed or 0, cutoffs=(5, 7, 10, 20)
        )
        for folder in folders
    ]
    family = compare_models(evaluations, metric)
    assert found == json.loads(json.dumps(family.document())) | {"runs": [str(each) for each in folders]}
    assert {name: each["seeds"] for name, each in found["models"].items()} == {"popularity": 2, "sasrec": 2}
    assert found["test"] == (test or ("authors" if protocol == "authors" else "ordinary"))


def test_a_file_says_how_runs_are_evaluated(capsys, runs: Path) -> None:
    code, out, _ = run(capsys, "compare", runs / "pop0.parquet", runs / "sas0", runs / "pop1", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["test"], found["sample"], found["seed"], found["units"]) == ("balanced", 60, 3, 60)
    assert {name: each["training_seeds"] for name, each in found["models"].items()} == {
        "popularity": [0, 1],
        "sasrec": [0],
    }
    flags = ("--test", "balanced", "--sample", 60, "--seed", 3)
    code, out, _ = run(capsys, "compare", runs / "pop0", runs / "sas0", runs / "pop1", *flags, "--json")
    same = json.loads(out)
    assert {**same, "runs": 0} == {**found, "runs": 0}
    (compared,) = found["comparisons"]
    assert (compared["seeds"], compared["p_seeds"], compared["interval_over"]) == (
        [1, 2],
        None,
        "users only",
    )
    assert 0 <= compared["p_rows"] < 1


def test_splits_that_are_written_differently_can_be_the_same(capsys, runs: Path) -> None:
    code, out, _ = run(capsys, "compare", runs / "pop0", runs / "same", "--json")
    assert (code, list(json.loads(out)["models"])) == (0, ["popularity", "itemknn"])


REFUSED = [
    (
        "pop0 other",
        "pop0 and R/other cannot be compared: they were trained on other data, R/world and R/shorter",
    ),
    ("pop0 cut", "R/pop0 and R/cut cannot be compared: their splits are 50 / 20 / 30 % with"),
    ("pop0 pop1 hidden", "R/pop0 and R/hidden cannot be compared: their splits are .* kept .* hidden"),
    ("pop0 drawn.parquet --protocol full", "R/drawn.parquet: was evaluated with protocol uni100, not with"),
    ("pop0 pop0.parquet --sample 9", "R/pop0.parquet: was evaluated with sample 60, not with sample 9"),
    (
        "pop0.parquet drawn.parquet",
        "pop0.parquet and R/drawn.parquet cannot be compared: protocol full is not",
    ),
    (
        "pop1 pop0.parquet drawn.parquet",
        "R/pop1 and R/drawn.parquet cannot be compared: protocol full is not",
    ),
    ("pop0 sas0 --test even", "no test 'even'; there are ordinary"),
    (
        "pop0 sas0 --metric ndcg",
        "no metric 'ndcg'; there are ndcg@K, hr@K, recall@K, mrr@K and, in the shown test, auc",
    ),
    ("pop0 sas0 --metric auc", "no metric 'auc'"),
    ("pop0 sas0 --metric hr@0", "no metric 'hr@0'"),
    ("pop1 pop0.parquet --metric hr@7", "R/pop0.parquet: no metric 'hr@7'; there are ndcg@5"),
    ("pop0 sas0 --protocol authors --test balanced", "protocol authors pools .* no balanced test"),
    ("pop0 sas0 --protocol uni100 --test shown", "the shown test ranks .* no protocol uni100"),
    ("pop0 sas0 pop0", "R/pop0 and R/pop0 are the same model with the same training seed 0"),
    ("pop0 sas0 pop0.parquet", "R/pop0 and R/pop0.parquet are the same model with the same training seed 0"),
    ("pop0 pop1", "expected at least two models; these differ in the training seed only"),
    ("pop0", "expected two or more, each a RUN"),
    ("", "expected two or more, each a RUN"),
    ("live live", "nothing to rank in the ordinary test: "),
    ("pop0 world", "R/world: this is prepared data and not a run"),
    ("pop0 nowhere", "R/nowhere: no such run or file"),
    ("pop0 world/data.json", "R/world/data.json: not a saved evaluation; `unskew evaluate RUN --save FILE`"),
    ("pop0 sas0 --latex world", "R/world: is a folder; expected the name of a file"),
    ("pop0 sas0 --against last", "invalid choice|last"),
]


@pytest.mark.parametrize(("words", "said"), REFUSED)
def test_what_cannot_be_compared_is_refused_before_anything_is_ranked(
    capsys, monkeypatch, runs: Path, words: str, said: str
) -> None:
    monkeypatch.setattr(unskew.Model, "evaluate", None)  # whoever calls it fails
    given = words.split()
    plain = [before.startswith("--") and before != "--latex" for before in ["", *given][:-1]] if given else []
    paths = [
        word if word.startswith("--") or flagged else str(runs / word)
        for word, flagged in zip(given, plain, strict=True)
    ]
    code, out, err = run(capsys, "compare", *paths)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert re.search(said.replace("R/", re.escape(f"{runs}/")), err), err


def test_a_run_without_a_finished_epoch_is_refused_first(capsys, monkeypatch, runs: Path, tmp_path) -> None:
    shutil.copytree(runs / "sas0", tmp_path / "begun")
    for name in ("card.json", "checkpoint.safetensors"):
        (tmp_path / "begun" / name).unlink()
    monkeypatch.setattr(unskew.Model, "evaluate", None)
    code, _, err = run(capsys, "compare", runs / "pop0", tmp_path / "begun")
    assert (code, "begun: this run has not finished an epoch yet" in err) == (2, True)


def test_tables_are_printed_and_written(capsys, runs: Path, tmp_path: Path) -> None:
    markdown, latex = tmp_path / "new" / "table.md", tmp_path / "table.tex"
    latex.write_text("old")
    asked = [runs / "pop0", runs / "pop1", runs / "sas0", runs / "sas1", "--sample", 200]
    code, out, err = run(capsys, "compare", *asked, "--markdown", markdown, "--latex", latex)
    assert code == 0
    assert (f"the tables: {markdown}" in err, f"the tables: {latex}" in err) == (True, True)
    split = unskew.split(unskew.Log.open(runs / "world"))
    family = compare_models([unskew.load(folder).evaluate(split, sample=200) for folder in asked[:4]])
    assert markdown.read_text(encoding="utf-8") == family.markdown()
    assert latex.read_text(encoding="utf-8") == family.latex()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["new", "table.md", "table.tex"]
    (pair,) = family.pairs
    for words in (
        f"{pair.comparison.difference:+.4f}{'*' * pair.stars} ",
        "minus popularity",
        "sasrec",
        "p (seeds)",
    ):
        assert words in out
    assert "200 of " in out
    code, out, _ = run(capsys, "compare", *asked, "--against", "all")
    assert code == 0
    assert "the model of the row minus that of the column" in out
    (tmp_path / "no").write_text("")
    code, _, err = run(capsys, "compare", *asked, "--latex", tmp_path / "no" / "table.tex")
    assert (code, "cannot be written" in err) == (1, True)


def test_data_that_has_moved_is_found_by_whoever_knows_it(capsys, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "there")
    there = tmp_path / "there"
    for name in ("pop0", "sas0"):
        config = json.loads((there / name / "config.json").read_text())
        (there / name / "config.json").write_text(json.dumps(config | {"data": str(there / "gone")}))
    code, _, err = run(capsys, "compare", there / "pop0", there / "sas0", "--sample", 20)
    assert (code, "say where it is now (--data DATA" in err) == (2, True)
    for flags in (["--data", there / "world"], [there / "sas1"]):
        code, _, err = run(capsys, "compare", there / "pop0", there / "sas0", *flags, "--sample", 20)
        assert code == 0, err
    code, _, err = run(capsys, "compare", there / "pop0", there / "sas0", "--data", there / "shorter")
    assert (code, "not the data that this run was trained on" in err) == (2, True)


def test_a_model_that_is_not_finished_is_marked_and_not_the_best() -> None:
    """What it is compared with stays, because it was asked for."""
    cut = shifted(0.2, 3)
    cut[1].about["finished"] = False
    models = {"a": shifted(0.0, 3), "b": shifted(0.1, 3), "cut": cut}
    family = compare_models(models, against="best")
    assert (family.best, family.reference) == ("b", "b")
    assert {name: mean.finished for name, mean in family.means.items()} == {
        "a": True,
        "b": True,
        "cut": False,
    }
    rows = {row[0].text: row for row in family.mean_table().cells}
    assert [(rows[name][2].marks, rows[name][2].rank) for name in models] == [("", 0), ("", 1), ("‡", 0)]
    assert "‡ not finished" in family.about()
    assert family.document()["models"]["cut"]["finished"] is False
    assert {pair.model for pair in family.pairs} == {"a", "cut"}
    assert "‡" not in compare_models({"a": models["a"], "b": models["b"]}).markdown()
    # Where nothing is finished, there is a best model all the same.
    for of in (models["a"], models["b"]):
        of[0].about["finished"] = False
    assert compare_models(models).best == "cut"
