"""What `auto` settles to by what the log holds and by the loss, what a run stores of it, and the debiasing
strength."""

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
from tests.helpers.contract import first_batch, phases, tiny
from tests.helpers.runs import Killed, records, train
from unskew.api.create import create_model
from unskew.data.log.split import Splitting, split_at
from unskew.models.base import MODELS, Training, build, model_named
from unskew.models.debiased import Debiased
from unskew.propensity.base import estimator_named
from unskew.propensity.correction import (
    Correction,
    Method,
    has_impressions,
    resolve_auto_settings,
)
from unskew.propensity.estimators import Unit


@cache
def cut(shown: bool) -> unskew.Split:
    table = random_table(rows=900, users=40, items=30, negatives=0.7 if shown else 0.0)
    made = unskew.split(unskew.read(table))
    assert has_impressions(made) == shown
    return made


@pytest.mark.parametrize(("negatives", "expected"), [(0, False), (2, False), (3, True), (9, True)])
def test_a_log_has_impressions_if_there_are_as_many_as_clicks(negatives: int, expected: bool) -> None:
    """Counted in the training set: its three clicks are at the times 0, 1 and 2."""
    label = [1] * 3 + [0] * negatives + [0] * 20
    rows = len(label)
    time = [0, 1, 2] + [1] * negatives + [99] * 20
    log = unskew.read(
        {"user": range(rows), "item": [n % 5 for n in range(rows)], "time": time, "label": label}
    )
    assert has_impressions(split_at(log, Splitting(), 50, 50)) == expected


SINGLE, DRAWS, COMPARES = "din", "uir", "sasrec"
AUTO = {
    (SINGLE, True): ("ips", "exposure", 0.0),  # both labels are observed, so nothing is weighted
    (SINGLE, False): ("weighted-negatives", "power", 0.5),
    (DRAWS, True): ("weighted-negatives", "exposure", 0.5),  # it does not read what was shown and not clicked
    (DRAWS, False): ("weighted-negatives", "power", 0.5),
    (COMPARES, True): ("logit-offset", "exposure", 0.5),
    (COMPARES, False): ("logit-offset", "power", 0.5),
}


def resolve_auto(backbone: str, shown: bool, **asked: Any) -> tuple[str, str, float]:
    kind = model_named(f"debiased-{backbone}")
    config: Any = kind.resolve_auto(kind.Config(backbone=tiny(MODELS[backbone]), **asked), cut(shown))
    assert kind.resolve_auto(config, cut(shown)) == config
    return config.method, config.propensity, config.strength


@pytest.mark.parametrize("backbone", [SINGLE, DRAWS, COMPARES])
@pytest.mark.parametrize("shown", [True, False])
def test_auto_goes_by_the_log_and_by_the_loss(backbone: str, shown: bool) -> None:
    expected = AUTO[backbone, shown]
    assert resolve_auto(backbone, shown) == expected
    for propensity in ("item-pro", "power"):  # who names a propensity wants it to do something
        assert resolve_auto(backbone, shown, propensity=propensity) == (expected[0], propensity, 0.5)
    # What knows no propensity of items alone can only weight.
    for propensity in ("dual", "item", "user", "logged", "user-pro"):
        assert not estimator_named(propensity).knows_items()
        assert resolve_auto(backbone, shown, propensity=propensity) == ("ips", propensity, 0.5)
    # What was asked for stays.
    for method in ("logit-offset", "weighted-negatives", "ips", "ips-both"):
        power = 1.0 if method == "ips-both" else 0.5
        assert resolve_auto(backbone, shown, method=method) == (method, expected[1], power)
        assert resolve_auto(backbone, shown, method=method, strength=0.3) == (method, expected[1], 0.3)
    assert resolve_auto(backbone, shown, strength=0.0)[2] == 0


@pytest.mark.parametrize(("shown", "expected"), [(True, AUTO[SINGLE, True]), (False, AUTO[SINGLE, False])])
def test_deps_resolves_like_a_loss_of_single_pairs(shown: bool, expected: tuple[str, str, float]) -> None:
    made = resolve_auto_settings(
        MODELS["deps"].Config(method="auto", propensity="auto"), cut(shown), separate=True
    )
    assert (made.method, made.propensity, made.strength) == expected
    default: Any = MODELS["deps"].resolve_auto(MODELS["deps"].Config(), cut(shown))
    assert (default.method, default.propensity, default.strength) == ("ips-both", "dual", 1.0)


@pytest.mark.parametrize(
    ("method", "power", "debias"),
    [
        ("logit-offset", None, 1),
        ("logit-offset", 0.25, 0.25),
        ("weighted-negatives", 0.5, 0.5),
        ("ips", 0.5, 0.5),
        ("ips-both", 1, 0),
    ],
)
def test_the_debias_is_the_power(method: Method, power: float | None, debias: float) -> None:
    assert Correction(Unit(), method, power, "clipped", (5, 5)).debias == debias


@pytest.mark.parametrize(("backbone", "single"), [(DRAWS, True), (SINGLE, True), ("ubpr", False)])
def test_each_loss_gets_what_it_can_use(backbone: str, single: bool) -> None:
    """Weights of drawn negatives where each pair has a term of its own, offsets where pairs are compared."""
    kind, given = model_named(f"debiased-{backbone}"), []
    config: Any = kind.Config(
        backbone=tiny(MODELS[backbone]), method="weighted-negatives", propensity="item-pro"
    )
    model = build(kind, cut(False), config)
    assert isinstance(model, Debiased)
    phase = phases(model.backbone)[0]
    spied = model._corrected(dataclasses.replace(phase, loss=given.append))
    spied.loss(first_batch(model, phase, cut(False)))
    assert [given[0].weight_BC is None, given[0].offset_BC is None] == [not single, single]


def test_where_both_labels_are_observed_the_default_is_the_backbone_itself() -> None:
    """Every weight is one, although the estimator is there; with a power there are others."""
    kind = model_named(f"debiased-{SINGLE}")
    for power, alone in ((None, True), (0.5, False)):
        config: Any = kind.Config(backbone=tiny(MODELS[SINGLE]), strength=power)
        model = build(kind, cut(True), kind.resolve_auto(config, cut(True)))
        assert isinstance(model, Debiased)
        phase = phases(model.backbone)[0]
        batch, given = first_batch(model, phase, cut(True)), []
        model._corrected(dataclasses.replace(phase, loss=given.append)).loss(batch)
        assert torch.equal(given[0].weight_BC, torch.ones_like(given[0].weight_BC)) == alone
        assert torch.equal(phase.loss(given[0]), phase.loss(batch)) == alone


# Runs


BRIEF = Training(epochs=3, batch_size=128, sequences=16, valid_examples=40, patience=9, learning_rate=0.01)


@pytest.mark.parametrize(("backbone", "shown"), [(COMPARES, False), (SINGLE, True)])
def test_a_run_stores_what_auto_resolved_to_and_resumes(backbone: str, shown: bool, tmp_path: Path) -> None:
    kind = model_named(f"debiased-{backbone}")
    config: Any = kind.Config(backbone=tiny(MODELS[backbone]))
    assert (config.method, config.propensity, config.strength) == ("auto", "auto", None)
    whole, _ = train(cut(shown), kind.name, config, BRIEF, tmp_path / "whole")

    def stop(record: dict[str, Any]) -> None:
        if record.epoch == 2:
            raise Killed

    with pytest.raises(Killed):
        train(cut(shown), kind.name, config, BRIEF, tmp_path / "run", on_record=stop)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (stored["method"], stored["propensity"], stored["strength"]) == AUTO[backbone, shown]
    again, _ = train(cut(shown), kind.name, config, BRIEF, tmp_path / "run", resume=True)
    assert records(tmp_path / "run") == records(tmp_path / "whole")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    loaded = unskew.load(tmp_path / "run").config
    assert (loaded.method, loaded.propensity, loaded.strength) == AUTO[backbone, shown]


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_a_debias_of_zero_gives_the_exposure_back(power: float) -> None:
    settings = {"strength": power, "epochs": 1, "valid_examples": 40, "width": 8, "sequences": 16}
    model = create_model("debiased-gru4rec", settings).fit(cut(False), show_progress=False)
    assert model.config.method == "logit-offset"
    log, users = cut(False).log, ["u1", "u2"]
    lists = {
        debias: model.recommend(users=users, debias=debias, k=30, include_seen=True).to_pandas()
        for debias in (None, 0.0, power)
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
