"""The dial: scores at several dials at once, what is refused, and how the validation part chooses it."""

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
from tests.scorers import Scores, growing_split
from unskew.catalog import scores_at
from unskew.create import create_model
from unskew.data.batch import contexts
from unskew.data.held_out import held_out
from unskew.evaluate import Ranked, evaluation, rank, rank_each
from unskew.models.pulse import DIALS, Pulse
from unskew.ranker import Ranker, Wanted
from unskew.train import Trainer

BRIEF: dict[str, Any] = {"sample": 200, "rounds": 2, "valid_rows": 120}


class Turned(Scores):
    """Known scores, which are at a dial of 0.25 already; items are the more exposed the older their code and
    the later it is."""

    dial = 0.25

    def log_exposure(self, log: unskew.Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return torch.from_numpy(np.asarray(item) * -0.1 + np.asarray(time) * 0.01).float()


def equal(one: Ranked, other: Ranked) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in dataclasses.fields(Ranked)
    )


# Scores at dials


def test_scores_at_dials_by_hand() -> None:
    split = growing_split("hide")
    scorer, times = Turned(split), np.array([50, 50, 120])
    asked = contexts(split.log, [0, 3, 5], times, 3)
    catalog = scorer.catalog(split.log, 0, 200)
    plain = scorer.table[0, [0, 3, 5]]
    exposure = np.arange(plain.shape[1]) * -0.1 + times[:, None] * 0.01
    dials = (0.0, 0.25, None, 1.0)
    for dial, found in zip(dials, scores_at(scorer, catalog, asked, dials), strict=True):
        by = 0.25 if dial is None else dial
        np.testing.assert_allclose(found, plain + 0.25 * exposure - by * exposure, atol=1e-5)
    # Without a dial, nobody is asked for exposure; each has scores of its own to hide items in.
    one, other = scores_at(Scores(split), catalog, asked, (None, None))
    np.testing.assert_array_equal(one, plain)
    one[:] = 0
    np.testing.assert_array_equal(other, plain)


@pytest.mark.parametrize("dial", [-0.01, 1.01, float("nan"), float("inf")])
def test_a_dial_is_from_0_to_1(dial: float) -> None:
    split = growing_split("hide")
    rows = held_out(split, "test", "ordinary").rows[:3]
    with pytest.raises(unskew.BadInput, match=f"dial {dial}: expected from 0 to 1"):
        rank_each(Turned(split), split, rows, (0.0, dial))
    model = fitted()
    for ask in (lambda: model.recommend(users=["u1"], dial=dial), lambda: model.evaluate(cut(), dial=dial)):
        with pytest.raises(unskew.BadInput, match=f"dial {dial}: expected from 0 to 1"):
            ask()


@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_several_dials_rank_as_one_at_a_time(repeats: str) -> None:
    """Also where blocks of contexts are ranked one after the other, and items are hidden in each."""
    split = growing_split(repeats)
    scorer, rows = Turned(split), held_out(split, "test", "ordinary").rows
    assert len(rows) > 256
    dials = (0.0, None, 0.5, 1.0)
    ranked = rank_each(scorer, split, rows, dials, seed=3, longest=7)
    for dial, found in zip(dials, ranked, strict=True):
        assert equal(found, rank(scorer, split, rows, 3, 7, dial))
        by = (0.25 if dial is None else dial) - 0.25
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
    return create_model("pulse", BRIEF).fit(cut(), show_progress=False)


def test_pulse_ranks_and_recommends_at_any_dial() -> None:
    model, rows = fitted(), held_out(cut(), "test", "ordinary").rows[:60]
    dials = (0.0, None, 0.4, 1.0)
    ranked = rank_each(model.network, cut(), rows, dials)
    log, users = cut().log, ["u1", "u2", "nobody"]
    items = np.arange(len(log.items))
    lists = {}
    for dial, found in zip(dials, ranked, strict=True):
        assert equal(found, rank(model.network, cut(), rows, dial=dial))
        lists[dial] = model.recommend(users=users, dial=dial, k=30, include_seen=True).to_pandas()
        by = model.network.dial if dial is None else dial
        exposure = model.network.log_exposure(log, items, log.now).numpy()
        frame = lists[dial].merge(lists[0.0], on=["user_id", "item_id"])
        assert len(frame) == 3 * len(items)
        taken = exposure[log.items.codes(frame["item_id"].tolist())] * by
        np.testing.assert_allclose(frame["score_x"], frame["score_y"] - taken, atol=1e-4)
    assert lists[0.0]["item_id"].tolist() != lists[1.0]["item_id"].tolist()
    bare = [model.recommend(histories=[["i1", "i2"]], dial=dial).table for dial in (0.0, 1.0)]
    assert not bare[0].equals(bare[1])


def test_a_model_that_knows_no_exposure_says_so(tmp_path: Path) -> None:
    model = create_model("popularity", {"recency": "total"}).fit(cut(), show_progress=False)
    before = model.recommend(users=["u1"]).table
    for ask in (
        lambda: model.recommend(users=["u1"], dial=0.5),
        lambda: model.evaluate(cut(), dial=0.5),
        lambda: model.save_recommendations(tmp_path / "lists.parquet", dial=0.0),
    ):
        with pytest.raises(
            unskew.BadInput, match=r"^popularity does not know how exposed an item is, so it has no dial: .*"
        ) as found:
            ask()
        assert "\n" not in str(found.value)
    assert not list(tmp_path.iterdir())
    assert model.evaluate(cut()).about["dial"] == 0
    assert model.recommend(users=["u1"]).table.equals(before)
    with pytest.raises(NotImplementedError, match="popularity has no dial to choose"):
        model.network.turn(0.5)


# Validation


def test_validation_chooses_the_dial_by_each_criterion() -> None:
    """The best weights by each criterion have the dial that ranks the validation part best by it."""
    model = fitted()
    trainer = model._trainer
    assert trainer is not None
    for criterion, state in trainer.best.items():
        network = Pulse(cut().known, model.config)
        network.load_state_dict(state)
        tested = held_out(cut(), "valid", criterion)
        found = {
            dial: evaluation(
                cut(), rank(network.eval(), cut(), trainer.valid.rows, dial=dial), "full", tested
            ).metrics()
            for dial in DIALS
        }
        best = max(metrics["ndcg@10"] for metrics in found.values())
        number = trainer.progress.best_round[criterion]
        valid = trainer.records[number - 1]["valid"][criterion]
        assert network.dial == valid["dial"]
        assert valid["ndcg@10"] == pytest.approx(best, abs=1e-6)
        assert {name: value for name, value in valid.items() if name != "dial"} == pytest.approx(
            found[network.dial], abs=1e-6
        )
        assert all(record["valid"][criterion]["dial"] in DIALS for record in trainer.records)
    dials = {criterion: float(state["dial_now"]) for criterion, state in trainer.best.items()}
    assert len(set(dials.values())) == 2, "this log is there to tell the two apart"


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Validation that finds the ordinary one best in round 1 and the balanced one in round 2, at other
    dials; and the weights of each round."""
    seen: list[dict[str, Tensor]] = []
    figures = [(0.5, 0.25, 0.1, 0.0), (0.4, 0.0, 0.3, 0.75), (0.5, 1.0, 0.3, 1.0)]

    def validate(self: Trainer) -> dict[str, dict[str, float]]:
        ordinary, its, balanced, other = figures[len(seen)]
        seen.append({name: value.clone() for name, value in self.model.state_dict().items()})
        return {
            "ordinary": {"ndcg@10": ordinary, "dial": its},
            "balanced": {"ndcg@10": balanced, "dial": other},
        }

    monkeypatch.setattr(Trainer, "_validate", validate)
    return seen


@pytest.mark.parametrize("choose_by", ["ordinary", "balanced"])
def test_weights_carry_the_dial_that_was_chosen_with_them(
    planted: list[dict[str, Tensor]], choose_by: str, tmp_path: Path
) -> None:
    settings = BRIEF | {"rounds": 3, "choose_by": choose_by}
    made = create_model("pulse", settings).fit(cut(), tmp_path / "run", show_progress=False)
    dials, rounds = {"ordinary": 0.25, "balanced": 0.75}, {"ordinary": 0, "balanced": 1}
    log = cut().log
    for model in (made, unskew.load(tmp_path / "run")):
        lists = {}
        for test, dial in dials.items():
            alone = Pulse(cut().known, made.config)
            alone.load_state_dict(planted[rounds[test]])
            alone.turn(dial)
            found = model.evaluate(cut(), test=test, sample=60)
            tested = held_out(cut(), "test", test, 60)
            ranked = rank(alone.eval(), cut(), tested.rows)
            assert found.about["dial"] == dial
            assert found.metrics() == evaluation(cut(), ranked, "full", tested).metrics()
            other = model.evaluate(cut(), test=test, sample=60, dial=1.0)
            ranked = rank(alone, cut(), tested.rows, dial=1.0)
            assert other.about["dial"] == other.as_dict()["dial"] == 1
            assert other.metrics() == evaluation(cut(), ranked, "full", tested).metrics()
            assert other.metrics() != found.metrics()
            wanted = Wanted(include_seen=cut().repeats)
            lists[test] = Ranker(alone, log).for_users(["u1", "u2"], wanted).table
        assert model.network.dial == dials[choose_by]
        assert model.recommend(users=["u1", "u2"]).table.equals(lists[choose_by])
        for criterion in (*dials, choose_by):
            chosen = model.chosen_by(criterion)
            assert chosen.network.dial == dials[criterion]
            assert chosen.recommend(users=["u1", "u2"]).table.equals(lists[criterion])
    assert not lists["ordinary"].equals(lists["balanced"])
