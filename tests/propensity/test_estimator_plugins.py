"""Estimators by name: ours, one from outside, and none; and the contract that they keep, with planted
faults."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.errors import refused
from tests.helpers.plugins import run_commands, run_script
from unskew.api.create import create_model
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.split import Known
from unskew.nn.phases import Phase
from unskew.propensity.base import ESTIMATORS, Needs, Propensity, estimator_named, every_estimator
from unskew.propensity.estimators import DualGRU, Exposure, Frequency, Logged, Power, Unit, estimator
from unskew.testing.estimators import (
    CHECKS,
    a_stored_state_is_enough,
    builder,
    check_estimator,
    every_parameter_is_trained,
    items_alone_have_a_propensity_or_say_so,
    labels_are_unread,
    no_future_event_changes_a_propensity,
    rows_are_independent,
    views_are_probabilities,
    weights_carry_no_gradient,
)
from unskew.testing.models import example_split

OURS = {
    "dual": DualGRU,
    "item": DualGRU,
    "user": DualGRU,
    "none": Unit,
    "item-pro": Frequency,
    "user-pro": Frequency,
    "item-user-pro": Frequency,
    "logged": Logged,
    "exposure": Exposure,
    "power": Power,
}
TINY: dict[str, Any] = {"epochs": 1, "sequences": 32, "batch_size": 128, "valid_examples": 50, "width": 4}


@pytest.fixture(scope="module")
def example() -> unskew.Split:
    return example_split()


# The registry


def test_every_name_is_an_estimator_with_the_views_of_its_name(split: unskew.Split) -> None:
    assert set(OURS) <= set(every_estimator())
    needs = Needs(known=split.known, alpha=0.3, clip=0.02, width=6)
    for name, kind in OURS.items():
        made = estimator(name, needs)
        assert isinstance(made, kind)
        assert (made.name, name == "none" or (made.alpha, made.clip) == (0.3, 0.02)) == (name, True)
    rows = unskew.data.batches.batch.batch(split.log, [0], [100], [[0, 1]])
    for name, views in (("item", (True, False)), ("user", (False, True)), ("dual", (True, True))):
        for given in (name, {"dual": "item-user-pro"}.get(name, f"{name}-pro")):
            made = estimator(given, needs)
            assert (made.item_view(rows) is not None, made.user_view(rows) is not None) == views


def test_an_estimator_owns_the_tables_that_it_makes_and_no_others(split: unskew.Split) -> None:
    from unskew.nn.layers import Embeddings

    tables = Embeddings(split.known.items, 6), Embeddings(split.known.users, 6)
    reads = estimator("dual", Needs(known=split.known, tables=tables))
    owns = estimator("dual", Needs(known=split.known, width=6))
    assert {name for name, _ in owns.named_parameters()} - {name for name, _ in reads.named_parameters()} == {
        "own_items.weight",
        "own_users.weight",
    }


@pytest.mark.parametrize("model", ["deps", "debiased-sasrec"])
def test_an_unknown_name_is_one_clear_error(capsys, model: str) -> None:
    with pytest.raises(
        BadInput, match=r"^no propensity 'exposur'; did you mean 'exposure'\?; there are dual"
    ):
        create_model(model, {"propensity": "exposur"})
    with refused("propensity"):
        create_model(model, {"propensity": 3})
    code, out, err = run(capsys, "train", "d", "--out", "r", "--model", model, "--propensity", "itempro")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("unskew: no propensity 'itempro'; did you mean 'item-pro'?")


def test_two_estimators_have_two_names() -> None:
    with pytest.raises(BadInput, match="an estimator named 'power' is registered already"):
        type("Mine", (Unit,), {}, name="power")
    assert estimator_named("power") is Power


# Items alone


def test_items_alone_by_name(split: unskew.Split, example: unskew.Split) -> None:
    log = split.log
    for name in ("dual", "item", "user", "user-pro", "logged"):
        made = estimator(name, Needs(known=split.known))
        with pytest.raises(BadInput, match=f"^`{name}` has no propensity of items alone: logit-offset and"):
            made.log_exposure(log, 0, 0)
    nothing = estimator("none", Needs(known=split.known)).log_exposure(log, np.arange(4), [[1], [2]])
    assert torch.equal(nothing, torch.zeros(2, 4))
    for name in ("item-pro", "item-user-pro"):
        made = estimator(name, Needs(known=split.known))
        made.fit_statistics(split)
        counts = split.item_counts[: split.known_items]
        items = np.append(np.arange(split.known_items), [len(log.items) + 3, -1])
        expected = np.log(np.append(np.maximum(counts, 0.5), [0.5, 0.5]) / counts.max())
        found = made.log_exposure(log, items, [[0], [10**6]])
        least = np.log(counts[counts > 0].min() / 2 / counts.max())
        np.testing.assert_allclose(found[0].numpy(), np.maximum(expected, least), rtol=1e-4, atol=1e-5)
        assert torch.equal(found[0], found[1])


# The contract


@pytest.mark.parametrize("name", [name for name in OURS if name != "logged"])
def test_the_contract(name: str) -> None:
    check_estimator(estimator_named(name))


def test_the_contract_of_recorded_propensities() -> None:
    table = random_table()
    given = 0.05 + 0.9 * np.random.default_rng(1).random(table.num_rows)
    check_estimator(Logged, unskew.split(unskew.read(table.append_column("propensity", [given]))))


def test_the_contract_where_impressions_are_random_and_have_numbers() -> None:
    """As in a simulated world. That the future changes nothing is asked elsewhere: how an impression is
    served is known when it begins, and a log that ends there does not say it."""
    log = unskew.simulate(users=60, items=40, steps=30, shown=4.0, impressions=0.3, randomised=0.3).log
    for check in CHECKS:
        if check is not no_future_event_changes_a_propensity:
            for kind in (Exposure, Power):
                check(builder(kind), unskew.split(log))


class Counted(Propensity):
    """Sound: the fraction of an item among the clicks before, with all that a fault may need."""

    fractions: Tensor

    def __init__(self, known: Known, alpha: float, clip: float) -> None:
        super().__init__(alpha, clip)
        self.register_buffer("fractions", torch.zeros(known.items.size))
        self.scale = nn.Parameter(torch.ones(()))

    @classmethod
    def build(cls, needs: Needs) -> "Counted":
        return cls(needs.known, needs.alpha, needs.clip)

    def fit_statistics(self, split: unskew.Split) -> None:
        counts = split.item_counts[: split.known_items]
        self.fractions.copy_(torch.from_numpy(counts / counts.max()))

    def item_view(self, batch: Batch) -> Tensor:
        known = (batch.candidates_BC >= 0) & (batch.candidates_BC < len(self.fractions))
        fraction = self.fractions[batch.candidates_BC.masked_fill(~known, 0)] * known
        return fraction * torch.sigmoid(self.scale)

    def user_view(self, batch: Batch) -> None:
        return None

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("views", "pairs", lambda batch: self.item_view(batch).mean(), self.parameters),)

    def log_exposure(self, log: unskew.Log, item: Any, time: Any) -> Tensor:
        start, end = log.audiences.before(item, time)
        return torch.from_numpy(np.asarray(np.log1p(end - start)))


class NeverTrained(Counted):
    """Has a parameter that no phase names."""

    def phases(self) -> tuple[Phase, ...]:
        return ()


class ReadsTheFuture(Counted):
    """Counts clicks of the test set, too."""

    def fit_statistics(self, split: unskew.Split) -> None:
        counts = np.diff(split.log.audiences.offsets)[: split.known_items]
        self.fractions.copy_(torch.from_numpy(counts / counts.max()))


class ReadsThePresent(Counted):
    """Counts what happens at the very moment."""

    def log_exposure(self, log: unskew.Log, item: Any, time: Any) -> Tensor:
        return super().log_exposure(log, item, np.asarray(time) + 1)


class ReadsLabels(Counted):
    """Takes what was clicked for shown."""

    def item_view(self, batch: Batch) -> Tensor:
        return super().item_view(batch) * (0.5 + 0.5 * batch.labels_BC)


class Leaks(Counted):
    """Lets the gradient of the recommender through."""

    def weights(self, batch: Batch) -> Tensor:
        return 1 / self.item_view(batch).clamp(min=self.clip)


class Forgets(Counted):
    """Keeps a number where no state is."""

    def fit_statistics(self, split: unskew.Split) -> None:
        super().fit_statistics(split)
        self.power = 2

    def item_view(self, batch: Batch) -> Tensor:
        return super().item_view(batch) ** getattr(self, "power", 1)


class NoNumberForNewItems(Counted):
    """Not a number for what training never saw."""

    def item_view(self, batch: Batch) -> Tensor:
        return super().item_view(batch).masked_fill(batch.candidates_BC >= len(self.fractions), torch.nan)


class MixesRows(Counted):
    """Measures time by the latest of the batch."""

    def item_view(self, batch: Batch) -> Tensor:
        view = super().item_view(batch)
        return (
            view
            / view.max(0).values.clamp(min=1e-6)
            * (0.5 + batch.times_B[:, None] / batch.times_B.max() / 2)
        )


class NotBroadcast(Counted):
    """One time for all items, as if all were asked for the same moment."""

    def log_exposure(self, log: unskew.Log, item: Any, time: Any) -> Tensor:
        return super().log_exposure(log, np.ravel(item), np.ravel(time)[0])


FAULTS = {
    NeverTrained: every_parameter_is_trained,
    NoNumberForNewItems: views_are_probabilities,
    Leaks: weights_carry_no_gradient,
    ReadsLabels: labels_are_unread,
    MixesRows: rows_are_independent,
    ReadsTheFuture: no_future_event_changes_a_propensity,
    ReadsThePresent: no_future_event_changes_a_propensity,
    NotBroadcast: items_alone_have_a_propensity_or_say_so,
    Forgets: a_stored_state_is_enough,
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda kind: kind.__name__)
def test_the_contract_catches(fault: type[Propensity], example: unskew.Split) -> None:
    with pytest.raises(AssertionError):
        FAULTS[fault](builder(fault), example)


def test_every_check_has_a_fault_and_none_is_wrong_about_a_sound_estimator(example: unskew.Split) -> None:
    assert set(FAULTS.values()) == set(CHECKS)
    check_estimator(Counted, example)
    assert "Counted" not in {kind.__name__ for kind in ESTIMATORS.values()}


# From outside

MINE = '''
import numpy as np
import torch
from torch import Tensor

from unskew.data.batches.batch import Batch
from unskew.data.log.split import Known, Split
from unskew.propensity.base import Needs, Propensity


class Halved(Propensity, name="halved"):
    """One half for the more popular half of the known items, a tenth for the others."""

    chance: Tensor

    def __init__(self, known: Known, alpha: float, clip: float) -> None:
        super().__init__(alpha, clip)
        self.register_buffer("chance", torch.zeros(known.items.size + 1))

    @classmethod
    def build(cls, needs: Needs) -> "Halved":
        return cls(needs.known, needs.alpha, needs.clip)

    def fit_statistics(self, split: Split) -> None:
        counts = split.item_counts[: split.known_items]
        self.chance[:-1] = torch.from_numpy(np.where(counts > np.median(counts), 0.5, 0.1))
        self.chance[-1] = 0.1

    def item_view(self, batch: Batch) -> Tensor:
        rows = batch.candidates_BC
        unknown = (rows < 0) | (rows >= len(self.chance) - 1)
        return self.chance[rows.masked_fill(unknown, len(self.chance) - 1)]

    def user_view(self, batch: Batch) -> None:
        return None
'''

SCRIPT = """
import sys
import torch
torch.set_num_threads(1)
import mine
import unskew
from unskew.testing.estimators import check_estimator

check_estimator(mine.Halved)
data, folder = sys.argv[1:]
split = unskew.split(unskew.Log.open(data))
settings = dict(propensity="halved", clip=0.05, width=4, epochs=1, sequences=32, valid_examples=50)
made = unskew.Debiased("sasrec", settings).fit(split, folder)
again = unskew.load(folder)
for model in (made, again):
    weights = model.propensities(split.log)["weight"].to_pylist()
    assert sorted(set(round(weight) for weight in weights)) == [2, 10], set(weights)
assert made.evaluate(split).metrics() == again.evaluate(split).metrics()
"""


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine.py").write_text(MINE)
    return tmp_path / "elsewhere"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    unskew.prepare(random_table(rows=900, users=40, items=30), tmp_path / "data")
    return tmp_path / "data"


def test_a_class_that_is_imported_is_an_estimator(data: Path, elsewhere: Path, tmp_path: Path) -> None:
    run_script(elsewhere, SCRIPT, data, tmp_path / "run")


def test_an_installed_package_brings_its_estimators_to_the_command_line(
    data: Path, elsewhere: Path, tmp_path: Path
) -> None:
    info = elsewhere / "minemaker-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: minemaker\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[unskew.estimators]\nhalved = mine:Halved\nbroken = nowhere:Nothing\n"
    )
    flags = ("--epochs", 1, "--sequences", 64, "--valid-examples", 50, "--width", 4, "--propensity", "halved")
    command = ("train", data, "--out", tmp_path / "run", "--model", "debiased-sasrec", *flags)
    trained, broken = run_commands(elsewhere, command, (*command[:-1], "broken"))
    assert trained[0] == 0
    assert broken[0] == 2
    assert broken[2].startswith("unskew: propensity 'broken' cannot be loaded: nowhere:Nothing: No module")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["propensity"] == "halved"
    # Where it is not installed, a run that needs it says so.
    (tmp_path / "nothing").mkdir()
    ((code, _, err),) = run_commands(tmp_path / "nothing", ("evaluate", tmp_path / "run"))
    assert code == 2
    assert "no propensity 'halved'; there are dual, " in err


@pytest.mark.parametrize("name", ["exposure", "power"])
@pytest.mark.parametrize("model", ["debiased-sasrec", "deps"])
def test_ours_train_evaluate_and_survive_a_trip_to_the_disk(
    name: str, model: str, split: unskew.Split, tmp_path: Path
) -> None:
    more = {} if model != "deps" else {"unsupervised_epochs": 1, "inner": 8, "layers": 1}
    made = create_model(model, TINY | {"propensity": name, "clip": 0.01} | more).fit(split, tmp_path / "run")
    there = unskew.load(tmp_path / "run")
    weights = [each.propensities(split.log, np.arange(200))["weight"].to_numpy() for each in (made, there)]
    np.testing.assert_array_equal(*weights)
    assert len(np.unique(weights[0])) > 5
    assert made.evaluate(split).metrics() == there.evaluate(split).metrics()
