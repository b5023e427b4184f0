"""Rules in the service: what is shown is drawn from what the rules admit, as often as its propensity says."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

import unskew
from tests.helpers.errors import refused
from tests.helpers.processes import GUARD
from tests.helpers.serving import client_of
from tests.helpers.shops import ITEMS, category_of, price_of, shop_table
from unskew.recommendation.rule_masks import ItemRules, bind_rules
from unskew.recommendation.rules import parse_rules
from unskew.serve import open_store
from unskew.serve.http.explore import draw, draw_list
from unskew.serve.http.schemas import RecommendationRequest
from unskew.serve.http.service import Service

K, DRAWS = 6, 4_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop") / "data"
    unskew.prepare(shop_table(), folder, item_features="category,price,in_stock")
    return folder


@pytest.fixture(scope="module")
def bound(data: Path) -> Iterator[object]:
    """A function from rules to what they mean, for items whose codes are their ranks."""
    items = unskew.Log.open(data).items
    numbers = [items.ids.to_pylist().index(f"i{number}") for number in range(ITEMS)]
    items = items.take(np.array(numbers))
    return lambda *rules: bind_rules(parse_rules(rules), items, items.features)


RULES = {
    "pins": ("pin i20 at 2", "pin i2 at 6"),
    "limits": ("at most 3 per category",),
    "quotas": ("at least 2 category = hats", "at least 30% category is missing"),
    "everything": ("pin i23 at 1", "pin i1 at 9", "at most 3 per category", "at least 2 category is missing"),
}


def keeps(items: list[int], name: str) -> bool:
    """Whether a list keeps the rules of that name; plain Python."""
    tags = Counter(tag for item in items for tag in (category_of(item) or "").split("|") if tag)
    missing = sum(category_of(item) is None for item in items)
    return {
        "pins": items[1] == 20 and items[5] == 2,
        "limits": max(tags.values()) <= 3,
        "quotas": tags["hats"] >= 2 and missing >= 2,
        "everything": items[0] == 23 and max(tags.values()) <= 3 and missing >= 2,
    }[name]


def ranking(rules: ItemRules) -> np.ndarray:
    """The best list under rules, and the others behind it, by codes."""
    from unskew.recommendation.diversity import choose

    best = choose(-np.arange(ITEMS, dtype=np.float32), K, rules)
    return np.concatenate([best, np.setdiff1d(np.arange(ITEMS), best)])


@pytest.mark.parametrize(("fraction", "share"), [(0.2, 0.4), (0.0, 1.0)])
@pytest.mark.parametrize("name", ["nothing", "limits", "everything"])
def test_cold_items_are_shown_as_often_as_they_say(bound, name: str, fraction: float, share: float) -> None:
    """Of the cold items, one is in the list already, and one is pinned."""
    rules = bound(*RULES.get(name, ()))
    ranked, random = ranking(rules), np.random.default_rng(8)
    cold_items = [1, 9, 14, 20, 23]
    cold = np.isin(ranked, cold_items)
    shown, claimed = np.zeros(ITEMS), np.full(ITEMS, np.nan)
    for _ in range(DRAWS):
        drawn = draw_list(ranked, K, fraction, rules, random, cold, share)
        items = ranked[drawn.ranks]
        assert len(set(items.tolist())) == K
        assert name == "nothing" or keeps(items.tolist(), name)
        before = claimed[items]
        assert (np.isclose(before, drawn.propensities, rtol=1e-12) | np.isnan(before)).all()
        claimed[items] = drawn.propensities
        shown[items] += 1
    claimed = np.nan_to_num(claimed)
    error = np.sqrt(claimed * (1 - claimed) / DRAWS)
    assert (abs(shown / DRAWS - claimed) <= 5 * error + 1e-12).all()
    assert np.isclose(claimed.sum(), K)
    assert min(claimed[cold_items]) >= share / len(cold_items) - 1e-9


@pytest.mark.parametrize("fraction", [0.1, 0.5])
@pytest.mark.parametrize("name", list(RULES))
def test_lists_are_shown_as_often_as_their_propensities_say(bound, name: str, fraction: float) -> None:
    rules = bound(*RULES[name])
    ranked, random = ranking(rules), np.random.default_rng(7)
    shown, at_random, claimed = np.zeros(ITEMS), np.zeros(ITEMS), np.full(ITEMS, np.nan)
    for _ in range(DRAWS):
        drawn = draw_list(ranked, K, fraction, rules, random)
        items = ranked[drawn.ranks]
        assert len(set(items.tolist())) == K
        assert keeps(items.tolist(), name)
        before = claimed[items]
        assert ((before == drawn.propensities) | np.isnan(before)).all()  # the same in every list
        claimed[items] = drawn.propensities
        shown[items] += 1
        at_random[items[drawn.random]] += 1
    assert not np.isnan(claimed).all()
    claimed = np.nan_to_num(claimed)
    error = np.sqrt(claimed * (1 - claimed) / DRAWS)
    assert (abs(shown / DRAWS - claimed) <= 5 * error + 1e-12).all()
    assert np.isclose(claimed.sum(), K)
    # The random items are a fair sample of all that can be shown.
    pinned = {"pins": {20, 2}, "everything": {23}}.get(name, set())
    counts = at_random[[item for item in range(ITEMS) if item not in pinned]]
    assert (abs(counts - counts.mean()) <= 5 * np.sqrt(counts.mean())).all()


def test_without_exploring_lists_are_the_best(bound) -> None:
    for rules in RULES.values():
        ranked = ranking(bound(*rules))
        drawn = draw_list(ranked, K, 0.0, bound(*rules), np.random.default_rng(0))
        assert drawn.ranks.tolist() == list(range(K))
        assert drawn.propensities.tolist() == [1.0] * K
        assert not drawn.random.any()


def test_without_rules_the_draw_is_the_usual_one() -> None:
    nothing, ranked = ItemRules(np.ones(ITEMS, bool)), np.arange(ITEMS)
    for seed in range(20):
        mine = draw_list(ranked, K, 0.4, nothing, np.random.default_rng(seed))
        usual = draw(K, ITEMS, 0.4, np.random.default_rng(seed))
        assert all(np.array_equal(one, other) for one, other in zip(mine, usual, strict=True))


# The service


@pytest.fixture
def service(data: Path, tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "sets.toml").write_text(
        'default = ["in_stock = true"]\nfront = ["price <= 200", "at most 2 per category", "pin i20 at 2"]\n'
    )
    with open_store(tmp_path / "events.db", synchronous="normal") as store:
        rules = tmp_path / "sets.toml"
        made = Service("pulse-zero", store, data=data, explore=0.3, rules=rules, seed=1)
        made.load()
        yield made
        made.close()


def test_served_lists_keep_their_rules_and_their_propensities(service: Service) -> None:
    request = RecommendationRequest(
        user_id="u1", k=5, rules=["exclude price >= 150"], rule_set="default", include_seen=True
    )
    shown, claimed, lists = Counter[str](), dict[str, float](), 1_500
    for _ in range(lists):
        for item in service.recommend(request.model_copy(update={"log": False}))["items"]:
            shown[item["item_id"]] += 1
            assert claimed.setdefault(item["item_id"], item["propensity"]) == item["propensity"]
    expected = {f"i{i}" for i in range(ITEMS) if i % 3 > 0 and not (price_of(i) is not None and i >= 15)}
    assert set(shown) == expected  # each of them is drawn at some time, and nothing else
    for name, count in shown.items():
        error = 5 * np.sqrt(claimed[name] * (1 - claimed[name]) / lists)
        assert abs(count / lists - claimed[name]) <= error + 1e-12
    answer = service.recommend(request)
    (stored,) = service.store.recommended_to("u1")
    assert [(shown.item_id, shown.propensity) for shown in stored.items] == [
        (item["item_id"], item["propensity"]) for item in answer["items"]
    ]


def test_rule_sets_by_name(service: Service) -> None:
    with client_of(service) as client:

        def items(**more: object) -> list[str]:
            body = {"user_id": "u1", "k": 6, "explore": 0, "include_seen": True, "log": False} | more
            answer = client.post("/v1/recommendations", json=body)
            assert answer.status_code == 200, answer.text
            return [item["item_id"] for item in answer.json()["items"]]

        assert all(int(name[1:]) % 3 > 0 for name in items())  # by default
        front = items(rule_set="front")
        assert front[1] == "i20"
        assert any(int(name[1:]) % 3 == 0 for name in items(rule_set="front", k=20))
        more = items(rule_set="front", rules=["exclude item_id = i20", "category = shoes"])
        assert len(more) == 2
        assert "i20" not in more
        got = client.get(
            "/v1/recommendations",
            params={"user_id": "u1", "k": 6, "rule_set": "front"},
        )
        assert got.json()["items"][1]["item_id"] == "i20"
        assert client.get("/v1/model").json()["rule_sets"] == ["default", "front"]


@pytest.mark.parametrize(
    ("body", "field", "reason"),
    [
        ({"rules": ["price < <"]}, "rules", "rule 1, column 9"),
        ({"rules": ["prize < 5"]}, "rules", "did you mean 'price'"),
        ({"rules": ["category = none"]}, "rules", "no item"),
        ({"rules": ["x" * 10_001]}, "rules.0", "10000"),
        ({"rules": "price < 5"}, "rules", "list"),
        ({"rule_set": "frnt"}, "rule_set", "did you mean 'front'"),
        ({"candidates": ["nothing"]}, "candidates", "no item of the log among 'nothing'"),
        ({"candidates": []}, "candidates", "at least 1"),
        ({"candidates": ["i1"], "exclude": ["i1"]}, "candidates", "leave no item"),
    ],
)
def test_wrong_rules_are_422(service: Service, body: dict, field: str, reason: str) -> None:
    with client_of(service) as client:
        answer = client.post("/v1/recommendations", json={"user_id": "u1", **body})
        assert answer.status_code == 422, answer.text
        assert answer.json()["error"]["field"] == field
        assert reason in answer.json()["error"]["reason"]
        assert not service.store.recommended_to("u1")


def test_rule_sets_are_read_again_with_the_run(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "sets.toml"
    file.write_text('other = ["price < 100"]')
    assert service.reload(GUARD)["state"] == "done"
    assert service.about()["rule_sets"] == ["other"]
    file.write_text('other = ["prize < 100"]')
    failed = service.reload(GUARD)
    assert failed["state"] == "failed"
    assert "sets.toml, other, rule 1, column 1: no feature 'prize'" in str(failed["error"])
    assert service.about()["rule_sets"] == ["other"]  # the run from before goes on


def test_a_service_shows_new_items(data: Path, tmp_path: Path) -> None:
    with open_store(tmp_path / "events.db", synchronous="normal") as store:
        service = Service("pulse-zero", store, data=data, explore_cold=0.5, seed=3)
        service.load()
        service.put_items([{"item_id": f"new {number}"} for number in range(3)])
        request = RecommendationRequest(user_id="u1", k=2, log=False, include_seen=True)
        shown, claimed, lists = Counter[str](), dict[str, float](), 300
        for _ in range(lists):
            for item in service.recommend(request)["items"]:
                shown[item["item_id"]] += 1
                assert claimed.setdefault(item["item_id"], item["propensity"]) == item["propensity"]
                assert not item["exposed"]
        assert {f"new {number}" for number in range(3)} <= shown.keys()
        assert sum(claimed.values()) == pytest.approx(2)
        for name, chance in claimed.items():
            assert abs(shown[name] / lists - chance) <= 5 * np.sqrt(chance * (1 - chance) / lists) + 1e-9
        assert 0 < sum(chance < 1 for chance in claimed.values())
        assert service.about()["explore_cold"] == 0.5
        preview = service.recommend(request.model_copy(update={"explore": 0.0}))
        assert all(item["propensity"] == 1 for item in preview["items"])
        by_content = request.model_copy(update={"cold": "content", "k": 50, "explore": 0.0})
        assert "new 1" in {item["item_id"] for item in service.recommend(by_content)["items"]}
        service.close()
        with refused("explore_cold"):
            Service("pulse-zero", store, data=data, explore_cold=2)


def test_a_service_does_not_begin_with_wrong_rules(data: Path, tmp_path: Path) -> None:
    (tmp_path / "sets.toml").write_text('other = ["prize < 100"]')
    with open_store(tmp_path / "events.db", synchronous="normal") as store:
        service = Service("pulse-zero", store, data=data, rules=tmp_path / "sets.toml")
        with refused("rules"):
            service.load()


def test_rules_are_in_the_openapi_document(service: Service) -> None:
    with client_of(service) as client:
        assert isinstance(client, TestClient)
        schema = client.get("/openapi.json").json()["components"]["schemas"]["RecommendationRequest"]
        assert "at most 2 per brand" in schema["properties"]["rules"]["description"]
        assert schema["properties"]["candidates"]["anyOf"][0]["minItems"] == 1
