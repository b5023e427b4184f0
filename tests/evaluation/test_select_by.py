"""Two criteria, side by side: patience waits for the slowest, and each has its own best weights."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unskew
from tests.conftest import random_table
from tests.helpers.runs import CRITERIA, SHORT, TINY, Killed, card, train
from unskew.api.create import create_model
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import evaluation, rank
from unskew.models.base import MODELS, model_named
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker
from unskew.training.run import RunFolder
from unskew.training.trainer import Trainer

# The best within the patience: epochs 1 and 2. The last ones come too late.
ORDINARY, BALANCED = [0.1, 0.5, 0.2, 0.3, 0.3, 0.9], [0.1, 0.2, 0.4, 0.3, 0.3, 0.9]
WAITS = {"epochs": 10, "patience": 2}
FPMC = {"width": 4, "history": 2, "learning_rate": 0.05, "sequences": 16}

State = dict[str, torch.Tensor]


@pytest.fixture
def planted(monkeypatch) -> list[State]:
    """Validation that finds these numbers, and notes the weights of each epoch."""
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
    small_split: unskew.Split, planted: list[State]
) -> None:
    model, trainer = train(small_split, "deps", TINY, replace(SHORT, **WAITS))
    found = [record.valid["ordinary"]["ndcg@10"] for record in trainer.records if record.valid]
    assert found == ORDINARY[:5]
    assert trainer.progress.best_epoch == {"ordinary": 2, "balanced": 3}
    assert trainer.progress.best == {"ordinary": 0.5, "balanced": 0.4}
    assert same(trainer.best["ordinary"], planted[1])
    assert same(trainer.best["balanced"], planted[2])
    assert not same(planted[1], planted[2])
    assert same(model.state_dict(), planted[2])  # deps is chosen by the balanced one


def test_a_resumed_run_has_the_best_weights_by_each(
    small_split: unskew.Split, planted: list[State], tmp_path: Path, monkeypatch
) -> None:
    """Killed after both were found, when no later epoch can find them again."""
    made = create_model("fpmc", FPMC | WAITS)
    save = RunFolder.save

    def killed(self: RunFolder, trainer: Trainer, record: dict | None) -> None:
        save(self, trainer, record)
        if record is not None and record.epoch == 3:
            raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "save", killed)
        with pytest.raises(Killed):
            made.fit(small_split, tmp_path / "run")
    made.fit(small_split, tmp_path / "run", resume=True)
    assert len(planted) == 5
    assert same(made.trained.weights["ordinary"], planted[1])
    assert same(made.trained.weights["balanced"], planted[2])


@pytest.mark.parametrize(
    ("slow", "epochs"), [([0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2], 3), ([0.1, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2], 5)]
)
@pytest.mark.parametrize("which", CRITERIA)
def test_either_criterion_may_be_the_slow_one(
    small_split: unskew.Split, monkeypatch, slow: list[float], epochs: int, which: str
) -> None:
    given = iter(slow)
    other = next(criterion for criterion in CRITERIA if criterion != which)
    monkeypatch.setattr(
        Trainer, "_validate", lambda self: {which: {"ndcg@10": next(given)}, other: {"ndcg@10": 0.3}}
    )
    assert len(create_model("fpmc", FPMC | WAITS).fit(small_split).records) == epochs


@pytest.mark.parametrize("select_by", ["auto", *CRITERIA])
def test_a_test_is_evaluated_with_its_own_weights_and_lists_with_the_chosen_ones(
    small_split: unskew.Split, planted: list[State], tmp_path: Path, select_by: str
) -> None:
    made = create_model("fpmc", FPMC | WAITS | {"select_by": select_by}).fit(small_split, tmp_path / "run")
    made.save(tmp_path / "again")
    chosen = "ordinary" if select_by == "auto" else select_by
    by = {"ordinary": planted[1], "balanced": planted[2]}
    # Networks that have one set of weights only.
    alone = {criterion: type(made.network)(small_split.known, made.config) for criterion in by}
    for criterion, network in alone.items():
        network.load_state_dict(by[criterion])

    def expected(criterion: str, test: str) -> dict[str, float]:
        tested = held_out(small_split, "test", test)
        ranked = rank(alone[criterion].eval(), small_split, tested.rows)
        return evaluation(small_split, ranked, "full", tested).metrics()

    wanted = RecommendOptions(include_seen=small_split.repeats)
    lists = {
        criterion: Ranker(network, small_split.log).for_users(["u1", "u2"], wanted).table
        for criterion, network in alone.items()
    }
    assert not lists["ordinary"].equals(lists["balanced"])
    for one in (made, unskew.load(tmp_path / "run"), unskew.load(tmp_path / "again")):
        assert same(one.network.state_dict(), by[chosen])
        for test in ("ordinary", "balanced", "authors"):
            own = test if test in by else chosen
            found = one.evaluate(small_split, test=test)
            assert found.about["weights_chosen_by"] == own
            assert found.metrics() == expected(own, test)
            for asked in CRITERIA:
                found = one.evaluate(small_split, test=test, select_by=asked)
                assert found.metrics() == expected(asked, test)
        assert same(one.network.state_dict(), by[chosen])  # evaluating changes no list
        assert one.recommend(users=["u1", "u2"]).table.equals(lists[chosen])
        for criterion in CRITERIA:
            assert one.chosen_by(criterion).recommend(users=["u1", "u2"]).table.equals(lists[criterion])
        with pytest.raises(unskew.BadInput, match="weights chosen by ordinary, balanced"):
            one.evaluate(small_split, select_by="shown")
    assert card(tmp_path / "run")["select_by"] == card(tmp_path / "again")["select_by"] == chosen
    for criterion in CRITERIA:
        assert same(load_file(tmp_path / "run" / f"weights-{criterion}.safetensors"), by[criterion])


def test_who_is_chosen_by_what() -> None:
    debiased = {f"debiased-{name}" for name in MODELS}
    by = {name: model_named(name).select_by for name in {*MODELS} | debiased}
    assert {name for name in by if by[name] == "balanced"} == {"deps", "deps-causal"} | debiased
    assert set(by.values()) == {"ordinary", "balanced"}


def test_a_criterion_that_the_ranked_rows_do_not_have_is_refused(tmp_path: Path) -> None:
    """A handful of impressions among hundreds of rows: the sample may have none of them."""
    table = random_table()
    few = unskew.split(unskew.read(table.append_column("impression_id", table["time"])))
    assert 0 < len(held_out(few, "valid", "shown").rows) < 10
    for wanted in ({"valid_examples": 50}, {"valid_examples": 2000}):
        made = create_model("fpmc", FPMC | {"epochs": 1} | wanted).fit(few)
        assert ("shown" in made.trained.weights) == (wanted["valid_examples"] == 2000)
    made = create_model("fpmc", FPMC | {"epochs": 1, "valid_examples": 50, "select_by": "shown"})
    with pytest.raises(
        unskew.BadInput, match="select_by shown: this log's validation set has only ordinary, b"
    ):
        made.fit(few, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    create_model("fpmc", FPMC | {"epochs": 1, "select_by": "shown"}).fit(few, tmp_path / "shown")
    assert unskew.load(tmp_path / "shown").evaluate(few, test="shown").about["weights_chosen_by"] == "shown"


def test_without_a_validation_part_the_last_weights_are_the_ones(
    small_split: unskew.Split, tmp_path: Path, monkeypatch
) -> None:
    cut = unskew.split(small_split.log, fractions=(60, 0, 40))
    seen: list[State] = []
    save = RunFolder.save

    def noted(self: RunFolder, trainer: Trainer, record: dict | None) -> None:
        save(self, trainer, record)
        if record is not None:
            seen.append({name: value.clone() for name, value in trainer.model.state_dict().items()})

    monkeypatch.setattr(RunFolder, "save", noted)
    weighted = {"propensity": "item-pro"}
    for name, settings, expected in (("fpmc", {}, "ordinary"), ("debiased-fpmc", weighted, "balanced")):
        made = create_model(name, FPMC | {"epochs": 2} | settings).fit(cut, tmp_path / name)
        assert card(tmp_path / name)["weights"] == [expected]
        assert len(made.records) == 2
        assert same(load_file(tmp_path / name / f"weights-{expected}.safetensors"), seen[-1])
        assert not same(seen[-2], seen[-1])
        assert unskew.load(tmp_path / name).evaluate(cut).metrics() == made.evaluate(cut).metrics()


def test_the_weights_that_were_chosen_last_are_saved(small_split: unskew.Split, tmp_path: Path) -> None:
    """Of a model that was just trained, and of one that was loaded."""
    made = create_model("popularity", {}).fit(small_split, tmp_path / "run")
    assert card(tmp_path / "run")["select_by"] == "ordinary"
    for number, model in enumerate((made, unskew.load(tmp_path / "run"))):
        model.chosen_by("balanced").save(tmp_path / f"again{number}")
        assert card(tmp_path / f"again{number}")["select_by"] == "balanced"
        assert unskew.load(tmp_path / f"again{number}").trained.select_by == "balanced"
    assert unskew.load(tmp_path / "run").trained.select_by == "ordinary"


def test_a_refit_has_the_epochs_of_the_criterion_that_recommends(
    small_split: unskew.Split, planted: list[State]
) -> None:
    made = create_model("fpmc", FPMC | WAITS).fit(small_split)
    for criterion, best in (("ordinary", 2), ("balanced", 3)):
        again = made.chosen_by(criterion).refit(small_split.log)
        assert (again.training.epochs, again.training.select_by) == (best, criterion)
        assert len(again.records) == best


def test_a_run_may_get_more_patience(small_split: unskew.Split, planted: list[State], tmp_path: Path) -> None:
    made = create_model("fpmc", FPMC | WAITS | {"patience": 1}).fit(small_split, tmp_path / "run")
    assert len(made.records) == 4  # the third was the best, and the fourth was not better
    more = unskew.resume(tmp_path / "run", small_split, patience=2)
    assert len(more.records) == len(planted) == 5
    assert more.training.patience == 2
    assert unskew.load(tmp_path / "run").training == more.training
