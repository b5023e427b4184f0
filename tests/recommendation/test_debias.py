"""The debiasing strength: scores at several strengths at once, what is refused, and how the validation set
chooses it."""

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

import unskew
from tests.conftest import random_table
from tests.helpers.errors import refused
from tests.helpers.scorers import Scores, growing_split
from unskew.api.create import create_model
from unskew.data.batches.batch import contexts
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import Ranked, evaluation, rank, rank_each
from unskew.models.pulse.model import STRENGTHS, Pulse
from unskew.nn.debias import scores_at
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker
from unskew.training.trainer import Trainer

BRIEF: dict[str, Any] = {"sample": 200, "epochs": 2, "valid_examples": 120}


class Turned(Scores):
    """Known scores, which are at a debiasing strength of 0.25 already; items are the more exposed the older
    their code and the later it is."""

    debias = 0.25

    def log_exposure(self, log: unskew.Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return torch.from_numpy(np.asarray(item) * -0.1 + np.asarray(time) * 0.01).float()


def equal(one: Ranked, other: Ranked) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(Ranked)
    )


# Scores at strengths


def test_scores_at_strengths_by_hand() -> None:
    split = growing_split("hide")
    scorer, times = Turned(split), np.array([50, 50, 120])
    asked = contexts(split.log, [0, 3, 5], times, 3)
    catalog = scorer.catalog(split.log, 0, 200)
    plain = scorer.table[0, [0, 3, 5]]
    exposure = np.arange(plain.shape[1]) * -0.1 + times[:, None] * 0.01
    strengths = (0.0, 0.25, None, 1.0)
    for debias, found in zip(strengths, scores_at(scorer, catalog, asked, strengths), strict=True):
        by = 0.25 if debias is None else debias
        np.testing.assert_allclose(found, plain + 0.25 * exposure - by * exposure, atol=1e-5)
    # Without a debiasing strength, nobody is asked for exposure; each has scores of its own to hide items in.
    one, other = scores_at(Scores(split), catalog, asked, (None, None))
    np.testing.assert_array_equal(one, plain)
    one[:] = 0
    np.testing.assert_array_equal(other, plain)


@pytest.mark.parametrize("debias", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_debias_is_from_0_to_1(debias: float) -> None:
    split = growing_split("hide")
    rows = held_out(split, "test", "ordinary").rows[:3]
    with pytest.raises(unskew.BadInput, match=f"^debias {debias}: expected from 0 to 1$"):
        rank_each(Turned(split), split, rows, (0.0, debias))
    model = fitted()
    for ask in (
        lambda: model.recommend(users=["u1"], debias=debias),
        lambda: model.evaluate(cut(), debias=debias),
    ):
        with refused("debias"):
            ask()


@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_several_strengths_rank_as_one_at_a_time(repeats: str) -> None:
    """Also where blocks of contexts are ranked one after the other, and items are hidden in each."""
    split = growing_split(repeats)
    scorer, rows = Turned(split), held_out(split, "test", "ordinary").rows
    assert len(rows) > 256
    strengths = (0.0, None, 0.5, 1.0)
    ranked = rank_each(scorer, split, rows, strengths, seed=3, longest=7)
    for debias, found in zip(strengths, ranked, strict=True):
        assert equal(found, rank(scorer, split, rows, 3, 7, debias))
        by = (0.25 if debias is None else debias) - 0.25
        alone = Scores(split, by_time=True)
        times = np.arange(len(alone.table))[:, None]
        exposure = scorer.log_exposure(split.log, np.arange(len(split.log.items)), times).numpy()
        alone.table = scorer.table - (by * exposure)[:, None]
        expected = rank(alone, split, rows, 3, 7)
        np.testing.assert_array_equal(found.full, expected.full)
        np.testing.assert_array_equal(found.top, expected.top)
        np.testing.assert_allclose(found.negatives, expected.negatives, atol=1e-5)
    assert not np.array_equal(ranked[0].full, ranked[3].full)


# Models


@cache
def cut() -> unskew.Split:
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0)))


@cache
def fitted() -> unskew.Model:
    return create_model("pulse", BRIEF | {"start": "random", "horizon": "next"}).fit(
        cut(), show_progress=False
    )


def test_pulse_ranks_and_recommends_at_any_debias() -> None:
    model, rows = fitted(), held_out(cut(), "test", "ordinary").rows[:60]
    strengths = (0.0, None, 0.4, 1.0)
    ranked = rank_each(model.network, cut(), rows, strengths)
    log, users = cut().log, ["u1", "u2", "nobody"]
    items = np.arange(len(log.items))
    lists = {}
    for debias, found in zip(strengths, ranked, strict=True):
        assert equal(found, rank(model.network, cut(), rows, debias=debias))
        lists[debias] = model.recommend(users=users, debias=debias, k=30, include_seen=True).to_pandas()
        by = model.network.debias if debias is None else debias
        exposure = model.network.log_exposure(log, items, log.now).numpy()
        frame = lists[debias].merge(lists[0.0], on=["user_id", "item_id"])
        assert len(frame) == 3 * len(items)
        taken = exposure[log.items.codes(frame["item_id"].tolist())] * by
        np.testing.assert_allclose(frame["score_x"], frame["score_y"] - taken, atol=1e-4)
    assert lists[0.0]["item_id"].tolist() != lists[1.0]["item_id"].tolist()
    bare = [model.recommend(histories=[["i1", "i2"]], debias=debias).table for debias in (0.0, 1.0)]
    assert not bare[0].equals(bare[1])


def test_a_model_that_knows_no_exposure_says_so(tmp_path: Path) -> None:
    model = create_model("popularity", {"recency": "total"}).fit(cut(), show_progress=False)
    before = model.recommend(users=["u1"]).table
    for ask in (
        lambda: model.recommend(users=["u1"], debias=0.5),
        lambda: model.evaluate(cut(), debias=0.5),
        lambda: model.save_recommendations(tmp_path / "lists.parquet", debias=0.0),
    ):
        with pytest.raises(
            unskew.BadInput,
            match=r"^popularity does not know how exposed an item is, so it has no debiasing strength: .*",
        ) as found:
            ask()
        assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())
    assert model.evaluate(cut()).about["debias"] == 0
    assert model.recommend(users=["u1"]).table.equals(before)
    with pytest.raises(NotImplementedError, match="popularity has no debiasing strength to choose"):
        model.network.set_debias(0.5)


# Validation


def test_validation_chooses_the_debias_by_each_criterion() -> None:
    """The best weights by each criterion have the debiasing strength that ranks the validation set best by
    it."""
    model = fitted()
    trainer = model.trained.trainer
    assert trainer is not None
    live = {name: state for name, state in trainer.best.items() if not name.startswith("frozen")}
    for criterion, state in live.items():
        network = Pulse(cut().known, model.config)
        network.load_state_dict(state)
        tested = held_out(cut(), "valid", criterion)
        found = {
            debias: evaluation(
                cut(), rank(network.eval(), cut(), trainer.valid.rows, debias=debias), "full", tested
            ).metrics()
            for debias in STRENGTHS
        }
        best = max(metrics["ndcg@10"] for metrics in found.values())
        number = trainer.progress.best_epoch[criterion]
        valid = next(record for record in trainer.records if record.epoch == number).valid[criterion]
        assert network.debias == valid["debias"]
        assert valid["ndcg@10"] == pytest.approx(best, abs=1e-6)
        assert {name: value for name, value in valid.items() if name != "debias"} == pytest.approx(
            found[network.debias], abs=1e-6
        )
        assert all(record.valid[criterion]["debias"] in STRENGTHS for record in trainer.records)
    strengths = {criterion: float(state["debias_now"]) for criterion, state in live.items()}
    assert len(set(strengths.values())) == 2, "this log is there to tell the two apart"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Validation that finds the ordinary one best in epoch 1 and the balanced one in epoch 2, at other
    strengths; and the weights of each epoch, the shipped ones of epoch 0 first."""
    seen: list[dict[str, Tensor]] = []
    figures = [(0.1, 0.5, 0.1, 0.5), (0.5, 0.25, 0.1, 0.0), (0.4, 0.0, 0.3, 0.75), (0.5, 1.0, 0.3, 1.0)]

    def validate(self: Trainer) -> dict[str, dict[str, float]]:
        ordinary, its, balanced, other = figures[len(seen)]
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return {
            "ordinary": {"ndcg@10": ordinary, "debias": its},
            "balanced": {"ndcg@10": balanced, "debias": other},
        }

    monkeypatch.setattr(Trainer, "_validate", validate)
    return seen


@pytest.mark.parametrize("select_by", ["ordinary", "balanced"])
def test_weights_carry_the_debias_that_was_chosen_with_them(
    planted: list[dict[str, Tensor]], select_by: str, tmp_path: Path
) -> None:
    settings = BRIEF | {"epochs": 3, "select_by": select_by}
    made = create_model("pulse", settings).fit(cut(), tmp_path / "run", show_progress=False)
    strengths, epochs = {"ordinary": 0.25, "balanced": 0.75}, {"ordinary": 1, "balanced": 2}
    log = cut().log
    for model in (made, unskew.load(tmp_path / "run")):
        lists = {}
        for test, debias in strengths.items():
            alone = Pulse(cut().known, made.config)
            alone.load_state_dict(planted[epochs[test]])
            alone.set_debias(debias)
            found = model.evaluate(cut(), test=test, sample=60)
            tested = held_out(cut(), "test", test, 60)
            ranked = rank(alone.eval(), cut(), tested.rows)
            assert found.about["debias"] == debias
            assert found.metrics() == evaluation(cut(), ranked, "full", tested).metrics()
            other = model.evaluate(cut(), test=test, sample=60, debias=1.0)
            ranked = rank(alone, cut(), tested.rows, debias=1.0)
            assert other.about["debias"] == other.as_dict()["debias"] == 1
            assert other.metrics() == evaluation(cut(), ranked, "full", tested).metrics()
            assert other.metrics() != found.metrics()
            wanted = RecommendOptions(include_seen=cut().repeats)
            lists[test] = Ranker(alone, log).for_users(["u1", "u2"], wanted).table
        assert model.network.debias == strengths[select_by]
        assert model.recommend(users=["u1", "u2"]).table.equals(lists[select_by])
        for criterion in (*strengths, select_by):
            chosen = model.chosen_by(criterion)
            assert chosen.network.debias == strengths[criterion]
            assert chosen.recommend(users=["u1", "u2"]).table.equals(lists[criterion])
    assert not lists["ordinary"].equals(lists["balanced"])
