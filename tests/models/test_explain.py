"""Why Pulse gives an item its score: the parts add up to it, and each of them is what it says."""

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

import unskew
from tests.conftest import random_table
from tests.helpers.command import run as command
from tests.helpers.contract import builder
from unskew.core.errors import BadInput
from unskew.data.batches.batch import contexts
from unskew.data.log.views import PAD
from unskew.models.pulse import explain as explain_module
from unskew.models.pulse.explain import _Group, _shapley
from unskew.models.pulse.model import Pulse
from unskew.models.pulse.neighbours import Neighbourhood, NeighbourSettings
from unskew.models.pulse.scoring import PulseCatalog
from unskew.nn.reasons import Reason, ReasonKind


def tagged_table(rows: int = 500) -> dict[str, Any]:
    random = np.random.default_rng(1)
    item = np.minimum((30 * random.random(rows) ** 2).astype(int), 29)
    return {
        "user": [f"u{code}" for code in random.integers(0, 30, rows)],
        "item": [f"i{code}" for code in item],
        "time": 1_700_000_000 + np.sort(random.integers(0, 60 * 86_400, rows)),
        "item_feature:kind": [f"tag {code % 4}|every" for code in item],
        "title": [f"Film {code}" for code in item],
    }


def trained(repeats: str = "hide") -> tuple[unskew.Split, Pulse]:
    """Pulse with tags and weights of every input."""
    cut = unskew.split(unskew.read(tagged_table()), repeats=repeats)
    model = builder(Pulse)(cut)
    torch.manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.set_debias(0.5)
    return cut, model


def explained(
    cut: unskew.Split, model: Pulse, debias: float | None = None
) -> tuple[np.ndarray, list[list[tuple[Reason, ...]]], np.ndarray]:
    log = cut.log
    users, items = np.arange(8), np.arange(0, len(log.items), 3)
    catalog, context = PulseCatalog(model, log), contexts(log, users, np.full(8, log.now), model.history)
    strength = model.debias if debias is None else debias
    scores = catalog.scores_at_strengths(context, (strength,))[0].numpy()
    return scores[:, items], catalog.reasons(context, [items] * 8, debias), items


@pytest.mark.parametrize("debias", [None, 0.0, 1.0])
@pytest.mark.parametrize("repeats", ["hide", "keep"])
def test_the_parts_add_up_to_the_score(repeats: str, debias: float | None) -> None:
    scores, reasons, _ = explained(*trained(repeats), debias)
    sums = [[sum(reason.part for reason in of_item) for of_item in of_user] for of_user in reasons]
    assert np.allclose(sums, scores, atol=2e-4)
    kinds = {reason.kind for of_user in reasons for of_item in of_user for reason in of_item}
    expected = set(ReasonKind) - {ReasonKind.CONTEXT} - ({ReasonKind.REPEAT} if repeats == "hide" else set())
    assert kinds == expected - ({ReasonKind.DEBIAS} if debias == 0.0 else set())


def test_the_base_is_the_same_for_all_items_of_a_user_and_the_largest_parts_come_first() -> None:
    _, reasons, _ = explained(*trained())
    for of_user in reasons:
        assert {of_item[0].kind for of_item in of_user} == {ReasonKind.BASE}
        assert len({of_item[0].part for of_item in of_user}) == 1
        for of_item in of_user:
            sizes = [abs(reason.part) for reason in of_item[1:]]
            assert sizes == sorted(sizes, reverse=True)


def test_shapley_values_are_means_over_all_orders() -> None:
    torch.manual_seed(0)
    groups = [_Group(torch.randn(2, 5), torch.randn(2)) for _ in range(4)]
    start, last = torch.randn(5), torch.randn(5)
    parts, base = _shapley(start, groups, last)
    gains = torch.zeros(4, 2)
    orders = list(permutations(range(4)))
    for order in orders:
        hidden = start.expand(2, 5)
        for number in order:
            more = hidden + groups[number].hidden
            gains[number] += (torch.relu(more) - torch.relu(hidden)) @ last + groups[number].linear
            hidden = more
    assert torch.allclose(parts, gains / len(orders), atol=1e-5)
    assert float(base) == pytest.approx(float(torch.relu(start) @ last))


SMALL = NeighbourSettings(own=4, readers=5, neighbours=3, events=6, following=3, position_decay=0.7)


def test_sources_add_up_to_the_values_of_the_neighbourhood() -> None:
    log = unskew.read(random_table(rows=300, users=12, items=15, negatives=0.0))
    for settings in (SMALL, NeighbourSettings()):
        walks, seen = Neighbourhood(log, 5.0, settings), 0
        for user in range(12):
            start, end = log.histories.before(np.array([user]), np.array([log.now]))
            own = log.histories.padded(start, end)
            ids, now = np.array([user]), np.array([log.now])
            reached, items = walks.reach(ids, now, own), np.arange(14, -1, -1)
            values = np.zeros((15, 3))
            values[reached.item] = reached.values
            sources = walks.sources(ids, now, own, items)
            assert np.allclose(sources.shares.sum(1), values[items])
            assert set(sources.own.tolist()) <= set(own[own != PAD].tolist())
            assert (sources.shares >= 0).all()
            seen += int((sources.shares > 0).sum())
        assert seen > 100


def test_a_neighbour_is_attributed_to_the_items_that_are_shared() -> None:
    """Two users share tea with ann, and only one of them shares mate, too; nobody shares rum."""
    rows = [("ann", "tea", 1), ("ann", "mate", 2), ("ann", "rum", 3), ("bob", "tea", 1), ("bob", "milk", 4)]
    rows += [("cat", "tea", 1), ("cat", "mate", 2), ("cat", "wine", 5)]
    user, item, time = zip(*rows, strict=True)
    log = unskew.read({"user": user, "item": item, "time": time})
    code = {name: int(log.items.codes([name])[0]) for name in set(item)}
    own = np.array([[code["tea"], code["mate"], code["rum"]]])
    ann, now = log.users.codes(["ann"]).astype(np.int64), np.array([log.now])
    listed = np.array([code["milk"], code["wine"]])
    sources = Neighbourhood(log, 100.0).sources(ann, now, own, listed)
    place = {name: sources.own.tolist().index(code[name]) for name in ("tea", "mate", "rum")}
    share = {name: sources.shares[:, place[name], 1] for name in place}
    assert share["rum"].tolist() == [0.0, 0.0]
    assert share["mate"][0] == 0.0  # bob, who took milk, has no mate
    assert share["tea"][0] > 0
    # Tea has three users and mate two, so mate counts more.
    assert share["mate"][1] / share["tea"][1] == pytest.approx(np.log(5) / np.log(4))


def test_recommend_says_why(tmp_path: Path) -> None:
    log = unskew.read(tagged_table())
    model = unskew.create_model("pulse", {"sample": 300, "epochs": 1}).fit(
        unskew.split(log), tmp_path / "run", show_progress=False
    )
    plain = model.recommend(users=["u1", "u2", "nobody"], k=4)
    assert "because" not in plain.table.column_names
    rows = model.recommend(users=["u1", "u2", "nobody"], k=4, explain=True).table.to_pylist()
    assert [row["item_id"] for row in rows] == plain.table["item_id"].to_pylist()
    for row in rows:
        assert sum(reason["part"] for reason in row["because"]) == pytest.approx(row["score"], abs=2e-4)
        assert row["because"][0]["kind"] == "base"
    table = tagged_table()
    own = {item for item, user in zip(table["item"], table["user"], strict=True) if user == "u1"}
    named = {reason["item_id"] for row in rows[:4] for reason in row["because"]} - {None}
    assert named
    assert named <= own
    texts = [reason["text"] for row in rows for reason in row["because"]]
    assert any(text.startswith("users who took Film") for text in texts)
    assert any("popular" in text for text in texts)
    assert any((reason["tag"] or "").startswith("tag ") for row in rows for reason in row["because"])
    after = model.recommend(histories=[["i3", "i4"]], k=2, explain=True, at=log.now).table.to_pylist()
    assert {reason["item_id"] for row in after for reason in row["because"]} <= {"i3", "i4", None}


def test_models_without_reasons_and_files_of_lists(tmp_path: Path, capsys: Any) -> None:
    log = unskew.read(tagged_table())
    model = unskew.create_model("itemknn").fit(unskew.split(log), show_progress=False)
    with pytest.raises(BadInput) as error:
        model.recommend(users=["u1"], explain=True)
    assert error.value.field == "explain"
    data = tmp_path / "data"
    unskew.prepare(tagged_table(), data)
    code, out, _ = command(capsys, "recommend", data, "--user", "u1", "--k", 2, "--explain")
    assert code == 0
    assert "users who took Film" in out
    code, _, err = command(capsys, "recommend", data, "--all-users", "--out", tmp_path / "a.csv", "--explain")
    assert code == 2
    assert "CSV cannot hold reasons" in err
    out = tmp_path / "a.parquet"
    assert command(capsys, "recommend", data, "--all-users", "--out", out, "--explain")[0] == 0
    assert pq.read_table(tmp_path / "a.parquet")["because"][0].as_py()[0]["kind"] == "base"


def test_only_the_largest_items_are_named() -> None:
    _, reasons, _ = explained(*trained())
    for of_item in (of_item for of_user in reasons for of_item in of_user):
        named = [reason for reason in of_item if reason.item is not None]
        rest = [reason for reason in of_item if reason.kind is ReasonKind.NEIGHBOURS and reason.item is None]
        assert len(named) <= explain_module.MOST_ITEMS
        assert len(rest) <= 1
