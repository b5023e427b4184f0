"""What `auto` settles to by what the log holds and by the loss, what a run stores of it, and the dial."""

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import unskew
from tests.conftest import random_table
from tests.contract import first_batch, phases, tiny
from tests.runs import Killed, records, train
from unskew.create import create_model
from unskew.data.split import Splitting, split_at
from unskew.models.base import MODELS, Training, build, model_named
from unskew.models.debiased import Debiased
from unskew.propensity.estimators import Unit
from unskew.propensity.treatment import How, Treatment, has_impressions, knows_items, settle


@cache
def cut(shown: bool) -> unskew.Split:
    table = random_table(rows=900, users=40, items=30, negatives=0.7 if shown else 0.0)
    made = unskew.split(unskew.read(table))
    assert has_impressions(made) == shown
    return made


@pytest.mark.parametrize(("negatives", "expected"), [(0, False), (2, False), (3, True), (9, True)])
def test_a_log_has_impressions_if_there_are_as_many_as_clicks(negatives: int, expected: bool) -> None:
    """Counted in the training part: its three clicks are at the times 0, 1 and 2."""
    label = [1] * 3 + [0] * negatives + [0] * 20
    rows = len(label)
    time = [0, 1, 2] + [1] * negatives + [99] * 20
    log = unskew.read(
        {"user": range(rows), "item": [n % 5 for n in range(rows)], "time": time, "label": label}
    )
    assert has_impressions(split_at(log, Splitting(), 50, 50)) == expected


SINGLE, DRAWS, COMPARES = "din", "uir", "sasrec"
AUTO = {
    (SINGLE, True): ("weights", "exposure", 0.0),  # both labels are observed, so nothing is weighted
    (SINGLE, False): ("negatives", "power", 0.5),
    (DRAWS, True): ("negatives", "exposure", 0.5),  # it does not read what was shown and not clicked
    (DRAWS, False): ("negatives", "power", 0.5),
    (COMPARES, True): ("offset", "exposure", 0.5),
    (COMPARES, False): ("offset", "power", 0.5),
}


def settled(backbone: str, shown: bool, **asked: Any) -> tuple[str, str, float]:
    kind = model_named(f"debiased-{backbone}")
    config: Any = kind.settled(kind.Config(backbone=tiny(MODELS[backbone]), **asked), cut(shown))
    assert kind.settled(config, cut(shown)) == config
    return config.how, config.propensity, config.power


@pytest.mark.parametrize("backbone", [SINGLE, DRAWS, COMPARES])
@pytest.mark.parametrize("shown", [True, False])
def test_auto_goes_by_the_log_and_by_the_loss(backbone: str, shown: bool) -> None:
    expected = AUTO[backbone, shown]
    assert settled(backbone, shown) == expected
    for propensity in ("item-pro", "power"):  # who names a propensity wants it to do something
        assert settled(backbone, shown, propensity=propensity) == (expected[0], propensity, 0.5)
    # What knows no propensity of items alone can only weight.
    for propensity in ("dual", "item", "user", "logged", "user-pro"):
        assert not knows_items(propensity)
        assert settled(backbone, shown, propensity=propensity) == ("weights", propensity, 0.5)
    # What was asked for stays.
    for how in ("offset", "negatives", "weights", "both"):
        power = 1.0 if how == "both" else 0.5
        assert settled(backbone, shown, how=how) == (how, expected[1], power)
        assert settled(backbone, shown, how=how, power=0.3) == (how, expected[1], 0.3)
    assert settled(backbone, shown, power=0.0)[2] == 0


@pytest.mark.parametrize(("shown", "expected"), [(True, AUTO[SINGLE, True]), (False, AUTO[SINGLE, False])])
def test_deps_settles_like_a_loss_of_single_pairs(shown: bool, expected: tuple[str, str, float]) -> None:
    made = settle(MODELS["deps"].Config(how="auto", propensity="auto"), cut(shown), separate=True)
    assert (made.how, made.propensity, made.power) == expected
    default: Any = MODELS["deps"].settled(MODELS["deps"].Config(), cut(shown))
    assert (default.how, default.propensity, default.power) == ("both", "dual", 1.0)


@pytest.mark.parametrize(
    ("how", "power", "dial"),
    [
        ("offset", None, 1),
        ("offset", 0.25, 0.25),
        ("negatives", 0.5, 0.5),
        ("weights", 0.5, 0.5),
        ("both", 1, 0),
    ],
)
def test_the_dial_is_the_power(how: How, power: float | None, dial: float) -> None:
    assert Treatment(Unit(), how, power, "clipped", (5, 5)).dial == dial


@pytest.mark.parametrize(("backbone", "single"), [(DRAWS, True), (SINGLE, True), ("ubpr", False)])
def test_each_loss_gets_what_it_can_use(backbone: str, single: bool) -> None:
    """Weights of drawn negatives where each pair has a term of its own, offsets where pairs are compared."""
    kind, given = model_named(f"debiased-{backbone}"), []
    config: Any = kind.Config(backbone=tiny(MODELS[backbone]), how="negatives", propensity="item-pro")
    model = build(kind, cut(False), config)
    assert isinstance(model, Debiased)
    phase = phases(model.backbone)[0]
    spied = model._treated(dataclasses.replace(phase, loss=given.append))
    spied.loss(first_batch(model, phase, cut(False)))
    assert [given[0].weight_BC is None, given[0].offset_BC is None] == [not single, single]


def test_where_both_labels_are_observed_the_default_is_the_backbone_itself() -> None:
    """Every weight is one, although the estimator is there; with a power there are others."""
    kind = model_named(f"debiased-{SINGLE}")
    for power, alone in ((None, True), (0.5, False)):
        config: Any = kind.Config(backbone=tiny(MODELS[SINGLE]), power=power)
        model = build(kind, cut(True), kind.settled(config, cut(True)))
        assert isinstance(model, Debiased)
        phase = phases(model.backbone)[0]
        batch, given = first_batch(model, phase, cut(True)), []
        model._treated(dataclasses.replace(phase, loss=given.append)).loss(batch)
        assert torch.equal(given[0].weight_BC, torch.ones_like(given[0].weight_BC)) == alone
        assert torch.equal(phase.loss(given[0]), phase.loss(batch)) == alone


# Runs


BRIEF = Training(rounds=3, batch_size=128, sequences=16, valid_rows=40, patience=9, learning_rate=0.01)


@pytest.mark.parametrize(("backbone", "shown"), [(COMPARES, False), (SINGLE, True)])
def test_a_run_stores_what_auto_settled_to_and_resumes(backbone: str, shown: bool, tmp_path: Path) -> None:
    kind = model_named(f"debiased-{backbone}")
    config: Any = kind.Config(backbone=tiny(MODELS[backbone]))
    assert (config.how, config.propensity, config.power) == ("auto", "auto", None)
    whole, _ = train(cut(shown), kind.name, config, BRIEF, tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record["round"] == 2:
            raise Killed

    with pytest.raises(Killed):
        train(cut(shown), kind.name, config, BRIEF, tmp_path / "run", on_record=stop)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (stored["how"], stored["propensity"], stored["power"]) == AUTO[backbone, shown]
    again, _ = train(cut(shown), kind.name, config, BRIEF, tmp_path / "run", resume=True)
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    loaded = unskew.load(tmp_path / "run").config
    assert (loaded.how, loaded.propensity, loaded.power) == AUTO[backbone, shown]


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_dial_of_zero_gives_the_exposure_back(power: float) -> None:
    settings = {"power": power, "rounds": 1, "valid_rows": 40, "width": 8, "sequences": 16}
    model = create_model("debiased-gru4rec", settings).fit(cut(False), show_progress=False)
    assert model.config.how == "offset"
    log, users = cut(False).log, ["u1", "u2"]
    lists = {
        dial: model.recommend(users=users, dial=dial, k=30, include_seen=True).to_pandas()
        for dial in (None, 0.0, power)
    }
    frame = lists[None].merge(lists[0.0], on=["user_id", "item_id"], suffixes=("", "_at_0"))
    assert len(frame) == 2 * len(log.items)
    codes = log.items.codes(frame["item_id"].tolist())
    start, end = log.audiences.before(codes, log.now)
    gamma = float(model.network.propensity.gamma)
    assert gamma > 0.05
    by_hand = frame["score"] + power * gamma * np.log1p(end - start)
    np.testing.assert_allclose(frame["score_at_0"], by_hand, atol=1e-4)
    assert lists[power].equals(lists[None])
