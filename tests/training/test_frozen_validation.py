"""The validation metric of frozen lists: what it measures, and what is evaluated with what it chose."""

import pytest
import torch

import unskew
from tests.conftest import random_table
from tests.helpers.runs import train
from unskew.data.log.held_out import FROZEN, FROZEN_BALANCED, FROZEN_MOMENTS, held_out
from unskew.evaluation.evaluate import evaluation, rank_each
from unskew.models.base import Training, model_named
from unskew.models.popularity import Popularity


@pytest.fixture(scope="module")
def drifting() -> unskew.Split:
    """What is popular now is not popular for long."""
    random = torch.Generator().manual_seed(5)
    rows = []
    for time in range(3000):
        trend = (time // 40) % 30
        drawn = int(torch.randint(30, (1,), generator=random))
        item = trend if time % 3 else drawn % 6
        rows.append((int(torch.randint(60, (1,), generator=random)), item, time))
    user, item, time = zip(*rows, strict=True)
    log = unskew.read({"user": list(user), "item": list(item), "time": list(time)})
    return unskew.split(log, repeats="keep")


def frozen_metric(network: torch.nn.Module, split: unskew.Split, criterion: str = FROZEN) -> float:
    targets, test = ("all", "ordinary") if criterion == FROZEN else ("next", "balanced")
    tested = held_out(split, "valid", test, frozen=targets, moments=FROZEN_MOMENTS)
    ranked = rank_each(
        network, split, tested.rows, (None,), part="valid", frozen=True, moments=FROZEN_MOMENTS
    )
    return evaluation(split, ranked[0], "full", tested, segmented=False, frozen=targets).mean("ndcg@10")


def test_frozen_lists_have_their_own_choice(drifting: unskew.Split) -> None:
    network, trainer = train(drifting, "popularity", Popularity.Config(), Training())
    assert set(trainer.best) == {"ordinary", "balanced", FROZEN, FROZEN_BALANCED}
    for criterion in (FROZEN, FROZEN_BALANCED):
        values = []
        for option in network.options(drifting):
            network.load_state_dict(option)
            values.append(frozen_metric(network, drifting, criterion))
        assert max(values) > min(values) + 0.01
        assert trainer.progress.best[criterion] == pytest.approx(max(values), abs=1e-6)
        network.load_state_dict(trainer.best[criterion])
        assert frozen_metric(network, drifting, criterion) == pytest.approx(max(values))
    by_live = trainer.best["ordinary"]
    assert any(not torch.equal(value, by_live[name]) for name, value in trainer.best[FROZEN].items())


def test_each_evaluation_has_the_weights_that_were_chosen_for_it(drifting: unskew.Split) -> None:
    model = unskew.create_model("popularity").fit(drifting, show_progress=False)

    def by(test: str, **how: object) -> str:
        return model.evaluate(drifting, test=test, show_progress=False, **how).about["weights_chosen_by"]

    assert by("ordinary") == "ordinary"
    assert by("balanced") == "balanced"
    assert by("balanced", frozen=True) == FROZEN_BALANCED
    assert by("ordinary", frozen=True) == by("ordinary", frozen=True, targets="all") == FROZEN
    assert by("ordinary", frozen=True, select_by="ordinary") == "ordinary"
    lists = unskew.create_model("popularity", {"select_by": FROZEN}).fit(drifting, show_progress=False)
    assert lists.trained.select_by == FROZEN
    assert all(
        torch.equal(value, lists.trained.weights[FROZEN][name])
        for name, value in lists.network.state_dict().items()
    )


def test_who_validates_frozen_lists() -> None:
    """Models that read what other users did; a leave-one-out split has no moment to freeze lists at."""
    names = "pulse", "pulse-zero", "popularity", "userknn", "personal", "neighbours-by-hand"
    assert all(model_named(name).validates_frozen for name in names)
    assert not model_named("sasrec").validates_frozen
    log = unskew.read(random_table(rows=600, users=30, negatives=0.0))
    _, trainer = train(unskew.split(log, kind="leave-one-out"), "popularity", Popularity.Config(), Training())
    assert not {FROZEN, FROZEN_BALANCED} & set(trainer.best)
    with pytest.raises(unskew.BadInput, match="select_by frozen: this log's validation set has only"):
        train(unskew.split(log), "fpmc", model_named("fpmc").Config(), Training(select_by=FROZEN))
