"""A/B tests: who gets which variant, what is recorded, what the store says, and off-policy estimates."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.command import run as command
from tests.helpers.processes import wait_until
from tests.helpers.serving import BEGIN, client_of, saved_run, serving
from unskew.api.create import load
from unskew.cli import serve as serve_verb
from unskew.core.errors import BadInput
from unskew.serve import Event, Recommendation, Shown, Store, open_store
from unskew.serve.http.explore import draw
from unskew.serve.http.process import Serving
from unskew.serve.http.service import Service
from unskew.serve.variants import Estimating
from unskew.serve.variants.assignment import Assignment, Variant
from unskew.serve.variants.estimators import LoggedLists, doubly_robust, logged_value, snips
from unskew.serve.variants.off_policy import estimate_off_policy
from unskew.serve.variants.results import TestSettings, distinct_items, read_results
from unskew.world.simulate import simulate

DAY = 86_400
LATER = (BEGIN + 200 * DAY) * 10**6  # microseconds
USERS = [f"user {number}" for number in range(20_000)]


# Who gets what


def test_users_are_split_as_declared_and_stay_where_they_are() -> None:
    split = Assignment((("B", 0.2), ("C", 0.1)))
    names = [split.variant_of(user) for user in USERS]
    fractions = {name: names.count(name) / len(USERS) for name in "ABC"}
    assert fractions == pytest.approx(split.expected, abs=0.01)
    assert [Assignment((("B", 0.2), ("C", 0.1))).variant_of(user) for user in USERS[:100]] == names[:100]
    assert split.variant_of("user 0") == "A"  # as in every process and on every machine


def test_a_variant_that_grows_keeps_its_users_and_other_names_split_again() -> None:
    declared = ("B", 0.2), ("B", 0.5), ("D", 0.2)
    small, large, other = (Assignment((variant,)) for variant in declared)
    first = {user for user in USERS if small.variant_of(user) == "B"}
    assert first <= {user for user in USERS if large.variant_of(user) == "B"}
    both = len({user for user in first if other.variant_of(user) == "D"})
    assert both / len(first) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    "text", ["B", "B=run", "B=run:2", "B=run:0", "B=run:1", "=run:0.2", "B=:0.2", "b c=run:0.2", "B=run:x"]
)
def test_a_variant_that_cannot_be(text: str) -> None:
    with pytest.raises(BadInput) as error:
        Variant.parse(text)
    assert error.value.field == "variant"


def test_variants_that_cannot_be_together() -> None:
    assert Variant.parse("B=runs/a:b:0.25") == ("B", "runs/a:b", 0.25)
    for fractions in ((("A", 0.2),), (("B", 0.2), ("B", 0.2)), (("B", 0.5), ("C", 0.5))):
        with pytest.raises(BadInput):
            Assignment(fractions)


# What the service does


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("variants")
    return saved_run(folder / "a"), saved_run(folder / "b", "popularity")


def test_each_user_gets_the_variant_and_it_is_recorded(runs: tuple[Path, Path], tmp_path: Path) -> None:
    variants = [Variant("B", str(runs[1]), 0.5)]
    with serving(runs[0], tmp_path / "e.db", variants=variants) as service:
        client = client_of(service)
        expected = Assignment.of(variants)
        for number in range(12):
            user = f"u{number}"
            answer = client.post("/v1/recommendations", json={"user_id": user, "k": 3}).json()
            assert answer["variant"] == expected.variant_of(user)
            assert answer["model"] == {"A": "itemknn", "B": "popularity"}[answer["variant"]]
            recorded = service.store.recommendation(answer["recommendation_id"])
            assert recorded.variant == answer["variant"]
            assert recorded.took_ms > 0
        assert {expected.variant_of(f"u{number}") for number in range(12)} == {"A", "B"}
        assert client.post("/v1/recommendations", json={"history": ["i1"], "k": 3}).json()["variant"] == "A"
        assert client.get("/v1/model").json()["variants"] == {"A": 0.5, "B": 0.5}
        # Both read what happens, and forget who is erased.
        user = next(f"new {n}" for n in range(99) if expected.variant_of(f"new {n}") == "B")
        client.post("/v1/events", json={"events": [event("x1", user, "i3")]})
        again = client.post("/v1/recommendations", json={"user_id": user, "k": 30, "log": False}).json()
        assert again["variant"] == "B"
        assert "i3" not in {item["item_id"] for item in again["items"]} or service.about()["include_seen"]
        assert client.delete(f"/v1/users/{user}").json()["events"] == 1
        after = service._others["B"]
        with after._using() as run:
            assert len(run.history(user)[1]) == 0
        wait_until(lambda: client.post("/v1/model/reload?wait=20").json()["state"] == "done")


def event(name: str, user: str, item: str) -> dict[str, Any]:
    return {"event_id": name, "user_id": user, "item_id": item, "type": "click"}


def test_without_variants_nothing_is_recorded_of_them(runs: tuple[Path, Path], tmp_path: Path) -> None:
    with serving(runs[0], tmp_path / "e.db") as service:
        answer = client_of(service).post("/v1/recommendations", json={"user_id": "u1"}).json()
        assert answer["variant"] is None
        assert service.store.recommendation(answer["recommendation_id"]).variant is None


def test_the_verb_hands_variants_on_and_declares_them(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    served: list[Any] = []

    def serve_here(serving: Any, store: Store, listener: Any) -> None:
        # As a worker gets it: through JSON.
        again = Serving(**json.loads(json.dumps(asdict(serving))))
        served.append((again.service(store, Service), store.variants))

    monkeypatch.setattr(serve_verb, "_serve_here", serve_here)
    asked = ("serve", runs[0], "--store", tmp_path / "e.db", "--port", 0)
    assert command(capsys, *asked, "--variant", f"B={runs[1]}:0.25")[0] == 0
    ((service, declared),) = served
    assert declared == service.assignment.expected == {"A": 0.75, "B": 0.25}
    for wrong in ("B", f"A={runs[1]}:0.2", f"B={tmp_path / 'none'}:0.2"):
        code, _, err = command(capsys, *asked, "--variant", wrong)
        assert code == 2
        assert err.count("\n") == 1
    assert len(served) == 1


# What the store says


def answer_to(made: Recommendation) -> Event:
    """A click on the first item of a list, a minute later."""
    at, key = made.timestamp + 60 * 10**6, made.recommendation_id
    return Event(f"e{key}", made.user_id, made.items[0].item_id, "click", at, recommendation_id=key)


def fill(store: Store, rates: dict[str, float], users: int = 150, days: int = 8, seed: int = 0) -> None:
    """Lists of two items, some of which are answered within the hour."""
    random, lists, events = np.random.default_rng(seed), [], []
    split = Assignment((("B", 0.4),))
    for number in range(users):
        user = f"u{number}"
        name = split.variant_of(user)
        for day in range(days):
            for _ in range(random.poisson(1.5)):
                at, key = LATER + (day * DAY + int(random.integers(DAY - 4000))) * 10**6, f"r{len(lists)}"
                shown = (Shown(f"i{random.integers(20)}", 1.0), Shown(f"i{20 + random.integers(20)}", 1.0))
                lists.append(Recommendation(key, user, at, "m", "1", shown, name, 10.0))
                if random.random() < rates[name]:
                    events.append(answer_to(lists[-1]))
    store.record(lists)
    store.append(events)
    store.declare_variants(split.expected)


def test_results_are_counts_over_users(tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db") as store:
        for key, user, variant, item in (
            ("r1", "ann", "A", "tea"),
            ("r2", "ann", "A", "tea"),
            ("r3", "bob", "A", "mate"),
            ("r4", "cat", "B", "tea"),
            ("r5", "dan", "B", "tea"),
            ("r6", "eve", "A", "tea"),
            ("r7", "eve", "B", "tea"),
        ):
            shown = (Shown(item, 1.0), Shown("milk", 1.0))
            store.record([Recommendation(key, user, LATER, "m", "1", shown, variant, 5.0 + int(key[1]))])
        store.append(
            [
                Event("e0", "cat", "x", "click", LATER - 1),  # before the first list
                Event("e1", "ann", "tea", "click", LATER + 1, recommendation_id="r1"),
                Event("e2", "ann", "milk", "click", LATER + 2, recommendation_id="r1"),
                Event("e3", "bob", "tea", "click", LATER + 3, recommendation_id="r3"),  # not in the list
                Event("e4", "cat", "rum", "click", LATER + 4),
            ]
        )
        results = read_results(store)
    a, b = results.variants
    assert (a.name, a.users, a.lists, a.converted) == ("A", 2, 3, 1)
    assert (b.name, b.users, b.lists, b.converted) == ("B", 2, 2, 0)
    assert a.conversion.value == pytest.approx(1 / 3)
    assert (a.positives_per_user.value, b.positives_per_user.value) == (1.5, 0.5)
    assert results.mixed_users == 1
    assert results.split_p is None  # nothing was declared
    assert a.latency_ms[0] == pytest.approx(7.0)
    assert (a.fallback, a.top_items) == (0.0, 1.0)
    (contrast,) = results.contrasts
    assert contrast.p == 1.0  # too few conversions to look at
    assert contrast.daily == ()


def test_a_difference_is_decided_and_an_equality_is_not(tmp_path: Path) -> None:
    settings = TestSettings(effect=0.05)
    for name, rate, decided in (("same", 0.1, False), ("better", 0.3, True)):
        with open_store(tmp_path / f"{name}.db") as store:
            fill(store, {"A": 0.1, "B": rate})
            results = read_results(store, settings)
        (contrast,) = results.contrasts
        assert contrast.is_decided == decided
        assert (contrast.low > 0) == decided
        assert contrast.difference == pytest.approx(rate - 0.1, abs=0.04)
        assert len(contrast.daily) >= 5
        assert results.split_p > 0.001
        assert not results.warnings


def test_p_is_the_smallest_of_all_days(tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db") as store:
        fill(store, {"A": 0.1, "B": 0.3})
        whole = read_results(store, TestSettings(effect=0.05))
        assert read_results(store, TestSettings(effect=0.05, enough=10**6)).contrasts[0].p == 1.0
        # Later lists of which nothing is answered shrink the difference, and not the evidence so far.
        split, at = Assignment((("B", 0.4),)), LATER + 20 * DAY * 10**6
        users = [f"u{n % 150}" for n in range(6000)]
        late = [
            Recommendation(f"l{n}", user, at + n, "m", "1", (Shown("i1", 1.0),), split.variant_of(user), 1.0)
            for n, user in enumerate(users)
        ]
        store.record(late)
        after = read_results(store, TestSettings(effect=0.05))
    assert after.contrasts[0].difference < whole.contrasts[0].difference / 2
    assert after.contrasts[0].p == whole.contrasts[0].p < 1e-3


def test_several_variants_are_corrected_for(tmp_path: Path) -> None:
    with open_store(tmp_path / "e.db") as store:
        fill(store, {"A": 0.1, "B": 0.2})
        one = read_results(store).contrasts[0]
        extra = [
            Recommendation(f"c{n}", f"c{n}", LATER + n, "m", "1", (Shown("i1", 1.0),), "C", 1.0)
            for n in range(30)
        ]
        store.record(extra)
        store.append(map(answer_to, extra))
        two = next(each for each in read_results(store).contrasts if each.variant == "B")
    assert two.p == pytest.approx(min(1.0, 2 * one.p))
    assert two.high - two.low > one.high - one.low


def test_guard_rails(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    with open_store(tmp_path / "e.db") as store:
        lists = []
        for number in range(400):
            variant = "A" if number % 4 else "B"  # declared are equal parts
            items = 200 if variant == "A" else 12
            shown = tuple(Shown(f"i{code}", 1.0) for code in random.choice(items, 5, replace=False))
            took = 10.0 if variant == "A" else 30.0
            lists.append(
                Recommendation(f"r{number}", f"u{number}", LATER + number, "m", "1", shown, variant, took)
            )
        store.record(lists)
        store.declare_variants({"A": 0.5, "B": 0.5})
        warnings = read_results(store).warnings
        assert [warning.split()[0] for warning in warnings] == ["the", "B", "B", "B"]
        assert "not split as declared" in warnings[0]
        store.declare_variants({"A": 0.75, "B": 0.25})
        relaxed = TestSettings(slower=4, narrower=0.01, more_popular=100)
        assert read_results(store, relaxed).warnings == ()


def test_distinct_items_of_equal_samples() -> None:
    counts, sample = np.array([6, 3, 1]), 4
    random = np.random.default_rng(0)
    shown = np.repeat(np.arange(3), counts)
    drawn = [len(set(random.permutation(shown)[:sample].tolist())) for _ in range(20_000)]
    assert distinct_items(counts, sample) == pytest.approx(np.mean(drawn), abs=0.02)
    assert distinct_items(counts, 10) == 3


def test_a_store_without_a_test_and_the_verb(tmp_path: Path, capsys: Any) -> None:
    with open_store(tmp_path / "e.db") as store:
        store.append([Event("e1", "ann", "tea", "click", LATER)])
        with pytest.raises(BadInput, match="expected lists of A and of another variant, found none"):
            read_results(store)
        fill(store, {"A": 0.1, "B": 0.3})
    code, out, err = command(capsys, "experiment", "results", "--store", tmp_path / "e.db", "--json")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert [variant["name"] for variant in said["variants"]] == ["A", "B"]
    assert said["contrasts"][0]["variant"] == "B"
    code, out, _ = command(capsys, "experiment", "results", "--store", tmp_path / "e.db")
    assert code == 0
    assert "B − A" in out


# Off-policy estimates


@pytest.fixture(scope="module")
def logged() -> tuple[LoggedLists, float]:
    """Lists that an exploring service would have shown in a simulated world, and what another order of the
    items would truly achieve: its top five items, each liked with its known probability."""
    world = simulate(users=300, items=60, steps=60, seed=3)
    random, k, candidates = np.random.default_rng(7), 5, 60
    lists = 6000
    user, time = random.integers(0, 300, lists), world.log.time.max()
    liked = world.preference(user[:, None], np.arange(candidates), np.full((lists, 1), time))
    popular = np.argsort(-liked.mean(0) + 0.3 * random.standard_normal(candidates))
    best = np.argsort(-(liked + 0.15 * random.standard_normal(liked.shape)), axis=1)[:, :k]
    rows = []
    for number in range(lists):
        drawn = draw(k, candidates, 0.4, random)
        items = popular[drawn.ranks]
        answered = random.random(k) < liked[number, items]
        rows.append((np.full(k, number), items, answered, drawn.propensities))
    row, item, reward, propensity = (np.concatenate(column) for column in zip(*rows, strict=True))
    truth = float(np.take_along_axis(liked, best, 1).sum(1).mean())
    return LoggedLists(user, row, item, reward.astype(float), propensity, best), truth


def test_the_estimates_hold_the_ground_truth_of_a_simulated_world(logged: tuple[LoggedLists, float]) -> None:
    lists, truth = logged
    before = logged_value(lists)
    assert abs(before.value - truth) > 8 * before.error  # the recorded lists say something else
    for estimate in (snips(lists), doubly_robust(lists)):
        assert abs(estimate.value - truth) < 2.5 * estimate.error
        assert estimate.error < 0.1 * truth
        assert 100 < estimate.effective_size < len(lists.row)


def test_the_estimates_need_the_propensities(logged: tuple[LoggedLists, float]) -> None:
    lists, truth = logged
    flat = LoggedLists(
        lists.user, lists.row, lists.item, lists.reward, np.full(len(lists.row), 0.5), lists.target
    )
    assert abs(doubly_robust(flat).value - truth) > 3 * doubly_robust(flat).error


def test_a_run_that_was_never_served(runs: tuple[Path, Path], tmp_path: Path, capsys: Any) -> None:
    store = tmp_path / "e.db"
    with serving(runs[0], store, explore=0.5, seed=1) as service:
        client = client_of(service)
        for number in range(40):
            answer = client.post("/v1/recommendations", json={"user_id": f"u{number % 20}", "k": 4}).json()
            first = answer["items"][number % 4]["item_id"]
            body = event(f"e{number}", f"u{number % 20}", first)
            body["recommendation_id"] = answer["recommendation_id"]
            client.post("/v1/events", json={"events": [body]})
    with open_store(store, "read") as opened:
        found = estimate_off_policy(opened, load(runs[0]), Estimating(sample=30))
        assert (found.lists, found.whole) == (30, 40)
        assert found.logged.value == pytest.approx(1.0)
        assert found.snips.effective_size > 10
    code, out, _ = command(capsys, "experiment", "estimate", runs[1], "--store", store, "--json")
    assert code == 0
    assert json.loads(out)["model"] == "popularity"
    with open_store(tmp_path / "plain.db") as plain:
        fill(plain, {"A": 0.1, "B": 0.1}, users=5)
        with pytest.raises(BadInput, match="no list that could have shown any item"):
            estimate_off_policy(plain, load(runs[0]))
