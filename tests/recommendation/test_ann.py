"""Approximate lists: what an index proposes, scored exactly, against the lists of all items."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import unskew
from tests.helpers.command import run
from tests.helpers.contract import tiny
from tests.helpers.errors import refused
from unskew.api.create import create_model
from unskew.core.errors import BadInput
from unskew.data.log.live import Live
from unskew.models.base import MODELS, DotProduct, Recommender, build
from unskew.models.debiased import debias
from unskew.recommendation import ann
from unskew.recommendation.ann import Proposals
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker, Recommendations

ITEMS, USERS = 6000, 120
EVERYBODY = [f"u{code}" for code in range(USERS)]


@pytest.fixture(scope="module")
def cut() -> unskew.Split:
    """A log in which every item has at least one event, in a random order."""
    random = np.random.default_rng(0)
    item = random.permutation(np.concatenate([np.arange(ITEMS), random.integers(0, ITEMS, ITEMS // 4)]))
    table = pa.table(
        {
            "user": [f"u{code}" for code in random.integers(0, USERS, len(item))],
            "item": [f"i{code}" for code in item],
            "time": np.arange(len(item)),
        }
    )
    return unskew.split(unskew.read(table), fractions=(100, 0, 0))


def grouped(kind: type[Recommender], cut: unskew.Split, **more: Any) -> Recommender:
    """A model whose items form groups, as those of trained models do."""
    torch.manual_seed(0)
    made = build(kind, cut, tiny(kind, **more)).eval()
    for table in (module for module in made.modules() if isinstance(module, unskew.nn.layers.Embeddings)):
        rows, width = table.weight.shape
        if rows == ITEMS:
            middles = torch.randn(60, width)
            with torch.no_grad():
                table.weight.copy_(middles[torch.randint(60, (rows,))] + 0.5 * torch.randn(rows, width))
    return made


@pytest.fixture(scope="module")
def network(cut: unskew.Split) -> Recommender:
    return grouped(MODELS["sasrec"], cut)


@pytest.fixture(scope="module")
def ranker(network: Recommender, cut: unskew.Split) -> Ranker:
    return Ranker(network, cut.log, fallback=MODELS["pulse-zero"])


def lists(found: Recommendations) -> dict[Any, dict[str, float]]:
    """Of each user or history the items and their scores, best first."""
    made: dict[Any, dict[str, float]] = {}
    for owner, row in zip(found.table[0].to_pylist(), found.table.to_pylist(), strict=True):
        made.setdefault(owner, {})[row["item_id"]] = row["score"]
    return made


def both(ranker: Ranker, **asked: Any) -> tuple[dict[Any, dict[str, float]], dict[Any, dict[str, float]]]:
    """The exact and the approximate lists of everybody."""
    exact, near = (
        lists(ranker.for_users(EVERYBODY, RecommendOptions(**asked, approximate=there)))
        for there in (False, True)
    )
    return exact, near


def shared(exact: dict[Any, dict[str, float]], near: dict[Any, dict[str, float]]) -> float:
    return float(np.mean([len(mine.keys() & near[user].keys()) / len(mine) for user, mine in exact.items()]))


def same(exact: dict[Any, dict[str, float]], near: dict[Any, dict[str, float]]) -> None:
    for user, mine in exact.items():
        assert list(mine) == list(near[user])
        np.testing.assert_allclose(list(mine.values()), list(near[user].values()), rtol=1e-5, atol=1e-5)


def everywhere(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look into all cells."""
    monkeypatch.setattr(Proposals, "probed", lambda self, *_: self.cells)


@pytest.mark.parametrize("k", [1, 10, 50])
@pytest.mark.parametrize("include_seen", [True, False])
def test_the_lists_have_what_the_measured_recall_says(ranker: Ranker, k: int, include_seen: bool) -> None:
    exact, near = both(ranker, k=k, include_seen=include_seen)
    recall = ranker.for_users(
        ["u1"], RecommendOptions(k=k, include_seen=include_seen, approximate=True)
    ).recall
    assert recall is not None
    assert (recall.k, recall.histories) == (k, USERS // 2)
    assert recall.fraction >= 0.9
    assert shared(exact, near) == pytest.approx(recall.fraction, abs=0.05)
    assert str(recall) == f"recall {recall.fraction:.2f} of the exact lists, measured on 60 histories"
    assert ranker._proposals is not None
    assert 1 <= ranker._proposals.probed(k, include_seen) < ranker._proposals.cells == ITEMS // 39
    for user, mine in near.items():  # and what both have, has the same score
        for item in mine.keys() & exact[user].keys():
            assert mine[item] == pytest.approx(exact[user][item], abs=1e-5)


def test_exact_lists_have_no_recall(ranker: Ranker) -> None:
    assert ranker.for_users(["u1"], RecommendOptions()).recall is None


def test_a_higher_recall_takes_more_cells(network: Recommender, cut: unskew.Split) -> None:
    catalog = network.catalog(cut.log, cut.log.now, cut.log.now + 1)
    made = [Proposals(network, catalog, cut.log, wanted) for wanted in (0.3, 0.9, 1.0)]
    probed, fractions = ([getattr(one, name)(10) for one in made] for name in ("probed", "recall"))
    assert probed[0] < probed[1] < probed[2]
    assert fractions[0].fraction < fractions[1].fraction <= fractions[2].fraction
    for wanted in (0.0, 1.1):
        with refused("recall"):
            Proposals(network, catalog, cut.log, wanted)


@pytest.mark.parametrize("asked", [{}, {"k": 30, "include_seen": True}, {"diverse": 0.4}], ids=str)
def test_all_cells_give_the_exact_lists(
    ranker: Ranker, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere(ranker, monkeypatch)
    same(*both(ranker, **asked))


@pytest.mark.parametrize("name", ["gru4rec", "bert4rec", "fpmc", "lightsans", "uir"])
def test_every_model_with_vectors(name: str, cut: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Ranker(grouped(MODELS[name], cut), cut.log)
    everywhere(made, monkeypatch)
    same(*both(made))


def test_a_debiased_model(cut: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = debias(MODELS["sasrec"])
    network = build(kind, cut, kind.Config(backbone=tiny(MODELS["sasrec"]), past_items=30)).eval()
    made = Ranker(network, cut.log)
    everywhere(made, monkeypatch)
    same(*both(made))


# What a list may hold


def test_what_is_excluded_is_replaced_by_the_next_best(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere(ranker, monkeypatch)
    best = sorted({item for mine in both(ranker)[0].values() for item in mine})
    exact, near = both(ranker, exclude=best)
    assert not set(best) & {item for mine in near.values() for item in mine}
    assert all(len(mine) == 10 for mine in near.values())
    same(exact, near)


def test_few_candidates_are_all_scored(ranker: Ranker) -> None:
    some = [f"i{code}" for code in range(0, ITEMS, 7)]
    exact, near = both(ranker, candidates=some)
    same(exact, near)
    assert ranker.for_users(["u1"], RecommendOptions(candidates=some, approximate=True)).recall is None
    exact, near = both(ranker, candidates=some[:3])
    assert all(0 < len(mine) <= 3 for mine in near.values())
    same(exact, near)


def test_many_candidates_keep_the_recall(ranker: Ranker) -> None:
    some = [f"i{code}" for code in range(0, ITEMS, 2)]
    exact, near = both(ranker, candidates=some)
    assert {item for mine in near.values() for item in mine} <= set(some)
    assert shared(exact, near) >= 0.9


def test_seen_items_are_not_proposed_again(ranker: Ranker, cut: unskew.Split) -> None:
    near = both(ranker, k=40)[1]
    for user, mine in near.items():
        (code,) = cut.log.users.codes([user])
        start, end = cut.log.histories.before(np.array([code]), cut.log.now)
        past = cut.log.items.of(cut.log.histories.ids[start[0] : end[0]]).to_pylist()
        assert len(past) > 20
        assert not set(past) & mine.keys()
        assert len(mine) == 40


def test_as_many_more_are_proposed_as_were_seen(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no list has to be made again from all items."""
    everywhere(ranker, monkeypatch)
    monkeypatch.setattr(ann, "LEAST", 1)
    monkeypatch.setattr(ann, "TIMES", 1)
    monkeypatch.setattr(Ranker, "_exact", lambda *_: pytest.fail("made again"))
    near = lists(ranker.for_users(EVERYBODY, RecommendOptions(k=20, approximate=True)))
    assert all(len(mine) == 20 for mine in near.values())


def test_lists_that_the_index_cannot_fill_are_exact(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposals, "probed", lambda *_: 1)
    exact, near = both(ranker, k=700)  # more than any cell has
    assert all(len(mine) == 700 for mine in near.values())
    same(exact, near)


def test_a_past_moment_has_no_later_items(ranker: Ranker, cut: unskew.Split) -> None:
    at = int(cut.log.now // 2)
    index = ranker._proposals
    exact, near = both(ranker, at=at)
    first = dict(zip(cut.log.items.ids.to_pylist(), cut.log.audiences.first_times.tolist(), strict=True))
    assert all(first[item] < at for mine in near.values() for item in mine)
    assert shared(exact, near) >= 0.9
    assert ranker._proposals is index  # vectors do not depend on the moment


def test_histories_of_ids_and_people_whom_the_model_does_not_know(ranker: Ranker) -> None:
    histories: list[list[str]] = [["i1", "i2", "i3"], [], ["nothing known"]]
    exact, near = (
        ranker.for_histories(histories, RecommendOptions(approximate=there)) for there in (False, True)
    )
    same({number: lists(exact)[1] for number in (1, 2)}, lists(near))
    assert near.table["source"].to_pylist() == ["model"] * 10 + ["pulse-zero"] * 20
    assert near.skipped_items == 1


def test_longer_lists_than_there_are_items(ranker: Ranker) -> None:
    exact, near = (
        lists(ranker.for_users(["u1", "u2"], RecommendOptions(k=ITEMS + 5, approximate=there)))
        for there in (False, True)
    )
    assert [len(mine) for mine in near.values()] == [len(mine) for mine in exact.values()]
    assert all(mine.keys() == near[user].keys() for user, mine in exact.items())


# A log that goes on


@pytest.mark.parametrize("name", ["sasrec", "debiased-sasrec"])
def test_new_items_are_among_the_proposed(name: str, cut: unskew.Split) -> None:
    backbone = grouped(MODELS["sasrec"], cut)
    network: Recommender = backbone
    if name != "sasrec":
        kind = debias(MODELS["sasrec"])
        network = build(kind, cut, kind.Config(backbone=tiny(MODELS["sasrec"]))).eval()
    live = Live(cut.log)
    ranker, wanted = Ranker(network, live), RecommendOptions(k=5, include_seen=True, approximate=True)
    ranker.for_users(["u1"], wanted)
    index = ranker._proposals
    live.append(["u1", "u2"], ["new 1", "new 2"], [live.now, live.now])
    only = ["new 1", "new 2", "i7", "i8"]
    for more in ({}, {"candidates": only}):
        asked = {"k": ITEMS // 2, "include_seen": True} | more
        exact, near = (
            lists(ranker.for_users(["u3"], RecommendOptions(**asked, approximate=there)))["u3"]
            for there in (False, True)
        )
        assert {"new 1", "new 2"} & exact.keys() == {"new 1", "new 2"} & near.keys()
    assert {"new 1", "new 2"} <= near.keys()
    assert ranker._proposals is index
    # What no other item comes near is the best in every list at once.
    with torch.no_grad():
        table: Any = network if name == "sasrec" else network.backbone
        context = table.context(
            unskew.data.batches.batch.contexts(live, live.users.codes(["u3"]), live.now, 8)
        )[0]
        vectors = table.vectors
        table.vectors = lambda item: torch.where((item >= ITEMS)[..., None], 9 * context, vectors(item))
    live.append(["u1"], ["new 3"], [live.now])
    assert set(lists(ranker.for_users(["u3"], wanted))["u3"]) >= {"new 1", "new 2", "new 3"}
    hidden = RecommendOptions(k=5, include_seen=True, exclude=["new 2"], approximate=True)
    assert {"new 1", "new 2", "new 3"} & lists(ranker.for_users(["u3"], hidden))["u3"].keys() == {
        "new 1",
        "new 3",
    }


def test_many_new_items_build_the_index_again(network: Recommender, cut: unskew.Split) -> None:
    live = Live(cut.log)
    ranker, wanted = Ranker(network, live), RecommendOptions(k=5, approximate=True)
    ranker.for_users(["u1"], wanted)
    for size, indexed in ((1000, ITEMS), (1, ITEMS + 1001)):
        new = [f"new {place} of {size}" for place in range(size)]
        live.append(["u1"] * size, new, [live.now] * size)
        ranker.for_users(["u1"], wanted)
        assert ranker._proposals is not None
        assert ranker._proposals.indexed == indexed


# What cannot be


def test_models_without_vectors_say_which_have_them(cut: unskew.Split) -> None:
    made = Ranker(build(MODELS["popularity"], cut, MODELS["popularity"].Config()), cut.log)
    with pytest.raises(BadInput, match="popularity has no vectors of items") as error:
        made.for_users(["u1"], RecommendOptions(approximate=True))
    assert "sasrec" in str(error.value)
    assert all(
        (f" {name}," in str(error.value)) == issubclass(kind, DotProduct) for name, kind in MODELS.items()
    )


def test_a_debias_is_refused(ranker: Ranker) -> None:
    with pytest.raises(
        BadInput, match=r"debias 0\.5: approximate lists have the debiasing strength of the model"
    ):
        ranker.for_users(["u1"], RecommendOptions(debias=0.5, approximate=True))


def test_without_faiss(network: Recommender, cut: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(
        BadInput, match=r"approximate lists need the extra: pip install '\.\[ann\]' in a clone"
    ):
        Ranker(network, cut.log).for_users(["u1"], RecommendOptions(approximate=True))


def test_the_command_says_the_recall(small_split: unskew.Split, tmp_path: Path, capsys) -> None:
    folder, said = tmp_path / "run", "recall 1.00 of the exact lists, measured on 20 histories"
    create_model("sasrec", {"width": 4, "epochs": 1, "valid_examples": 20}).fit(small_split, folder)
    made = unskew.load(folder)
    assert made.recommend(users=["u1"], approximate=True).table.equals(made.recommend(users=["u1"]).table)
    code, _, messages = run(capsys, "recommend", folder, "--user", "u1", "--approximate")
    assert code == 0
    assert said in messages
    out = "--out", tmp_path / "lists.parquet"
    code, printed, messages = run(capsys, "recommend", folder, "--all-users", *out, "--approximate", "--json")
    assert code == 0
    assert said in messages
    assert json.loads(printed)["recall"] == 1.0
    assert json.loads(printed)["recall_histories"] == 20
    (tmp_path / "some.csv").write_text('history\n"[""i1"", ""i2""]"\n')
    some = "--input", tmp_path / "some.csv", "--out", tmp_path / "some.parquet"
    assert said in run(capsys, "recommend", folder, *some, "--approximate")[2]
    _, printed, _ = run(capsys, "recommend", folder, "--user", "u1", "--json")
    assert "recall" not in json.loads(printed)


def test_faiss_is_loaded_only_when_it_is_asked_for() -> None:
    assert "faiss" not in vars(ann)
