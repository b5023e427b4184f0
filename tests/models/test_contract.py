"""Every registered model keeps the contract, survives a trip to the disk, and takes rare ids for unknown."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import unskew
import unskew.models
from tests.conftest import random_table
from tests.helpers.contract import (
    AUDIENCE,
    CHECKS,
    HISTORY,
    Build,
    builder,
    close,
    every_model,
    some,
    tiny,
)
from tests.helpers.runs import CRITERIA, finite
from unskew.api.create import create_model
from unskew.data.batches.batch import batch
from unskew.models.base import MODELS, Recommender, Training, build, model_named
from unskew.models.deps import DEPS
from unskew.nn.layers import Embeddings
from unskew.nn.phases import parameters_of

WITHOUT_EMBEDDINGS = {
    "popularity",
    "itemknn",
    "userknn",
    "personal",
    "ease",
    "neighbours-by-hand",
    "pulse",
    "pulse-zero",
}


@every_model
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(
    kind: type[Recommender], check: Callable[[Build, unskew.Split], None], split: unskew.Split
) -> None:
    check(builder(kind), split)


# The registry, disks, seeds


def test_the_registry() -> None:
    assert model_named("deps") is DEPS
    assert all(kind.name == name and kind.paper for name, kind in MODELS.items())
    with pytest.raises(unskew.BadInput, match=r"no model 'nobody'; there are .*deps"):
        model_named("nobody")
    training = {field.name for field in dataclasses.fields(Training)}
    for kind in MODELS.values():  # both are flags of one command
        assert not training & {field.name for field in dataclasses.fields(kind.Config)}
        Training(**kind.recipe)
    line = nn.Linear(2, 2)
    assert parameters_of(line, None, line.bias) == [line.weight, line.bias, line.bias]


@every_model
def test_a_trip_to_the_disk_is_exact(kind: type[Recommender], split: unskew.Split, tmp_path: Path) -> None:
    model, rows = builder(kind)(split), some(split.log)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    torch.manual_seed(9)
    other = build(kind, split, tiny(kind)).eval()
    with torch.no_grad():
        assert not torch.equal(other(rows), model(rows)) or not list(model.parameters())
        other.load_state_dict(load_file(tmp_path / "weights.safetensors"))
        assert torch.equal(other(rows), model(rows))
    assert all(torch.equal(value, other.state_dict()[name]) for name, value in model.state_dict().items())


@every_model
def test_evaluation_mode_draws_nothing(kind: type[Recommender], split: unskew.Split) -> None:
    model, rows = builder(kind)(split), some(split.log)
    with torch.no_grad():
        assert torch.equal(model(rows), model(rows))


# Rare ids


@cache
def with_rare_ids() -> unskew.Split:
    """Some users and items have one or two positives in training, some have none."""
    split = unskew.split(
        unskew.read(random_table(rows=360, users=90, items=70, times=200, negatives=0.0)), min_count=3
    )
    for known, ids in ((split.known.items, split.log.items), (split.known.users, split.log.users)):
        assert known.rare is not None
        assert 5 < known.rare.sum() < known.size - 5
        assert known.size < len(ids)
    return split


def with_embeddings(kind: type[Recommender]) -> bool:
    return any(isinstance(module, Embeddings) for module in kind(with_rare_ids().known, tiny(kind)).modules())


def test_who_has_embeddings() -> None:
    assert {kind.name for kind in MODELS.values() if not with_embeddings(kind)} == WITHOUT_EMBEDDINGS


@every_model
def test_rare_ids_train_evaluate_and_survive_a_trip_to_the_disk(
    kind: type[Recommender], tmp_path: Path
) -> None:
    split = with_rare_ids()
    settings = dataclasses.asdict(tiny(kind, copies=1, propensity_epochs=1))
    brief = {"epochs": 1, "sequences": 8, "batch_size": 64, "valid_examples": 30}
    made = create_model(kind.name, settings | brief).fit(split, tmp_path / "run")
    assert made.trained.trainer is not None
    finite(made.trained.trainer)
    there = unskew.load(tmp_path / "run")
    everyone = [*split.log.users.ids.to_pylist(), "nobody"]
    for test in CRITERIA:
        found = made.evaluate(split, test=test)
        assert len(found.user) > 50
        assert found.metrics() == there.evaluate(split, test=test).metrics()
    assert made.recommend(users=everyone).table.num_rows == 10 * len(everyone)
    for asked in ({"users": everyone}, {"histories": [["i1", "i2"], []]}):
        assert made.recommend(**asked).table.equals(there.recommend(**asked).table)


@pytest.mark.parametrize(
    "kind",
    [kind for kind in MODELS.values() if kind.name not in WITHOUT_EMBEDDINGS],
    ids=lambda kind: kind.name,
)
@torch.no_grad()
def test_who_is_rare_is_as_unknown_as_who_was_never_seen(kind: type[Recommender]) -> None:
    """As a candidate, in a history, in an audience and as the user who asks."""
    split = with_rare_ids()
    model = builder(kind)(split)
    rare_items, rare_users = (
        torch.from_numpy(np.flatnonzero(known.rare)) for known in (split.known.items, split.known.users)
    )
    new_item, new_user = split.known_items, split.known_users

    def scores(candidates: Tensor, user: int, history: list[int], audience: list[int]) -> Tensor:
        rows = batch(split.log, [0], [0], candidates.numpy()[None], None, HISTORY, AUDIENCE)
        read = {
            "user_B": torch.tensor([user]),
            "history_BL": torch.tensor([history]),
            "history_times_BL": torch.zeros(1, len(history), dtype=torch.int64),
            "audience_AM": torch.tensor([audience]),
            "audience_times_AM": torch.zeros(1, len(audience), dtype=torch.int64),
        }
        return model(rows._replace(**read, audience_of_BC=torch.zeros_like(rows.candidates_BC)))[0]

    own = torch.from_numpy(np.flatnonzero(~split.known.items.rare)[:4])
    strangers = torch.cat([rare_items, torch.tensor([new_item, new_item + 3, len(split.log.items) + 9])])
    usual = (int(np.flatnonzero(~split.known.users.rare)[0]), own[:2].tolist(), [0, 1])
    found = scores(strangers, *usual)
    close(found, found[:1].expand(len(found)))
    assert len(scores(own, *usual).unique()) == len(own)
    for history in (
        [int(rare_items[0]), int(own[0])],
        [int(rare_items[1]), int(own[0])],
        [len(split.log.items) + 9, int(own[0])],
    ):
        close(
            scores(own, usual[0], history, usual[2]), scores(own, usual[0], [new_item, int(own[0])], usual[2])
        )
    for user in (int(rare_users[0]), int(rare_users[1]), len(split.log.users) + 9):
        close(scores(own, user, *usual[1:]), scores(own, new_user, *usual[1:]))
        close(scores(own, *usual[:2], [user, 0]), scores(own, *usual[:2], [new_user, 0]))
