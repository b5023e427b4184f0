"""The service without HTTP: random exposure with known probabilities, events at once, erasing, reloading."""

import shutil
import threading
import time
from itertools import combinations
from math import comb
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file

import unskew
from tests.conftest import random_table
from tests.helpers.errors import refused
from tests.helpers.processes import GUARD
from tests.helpers.serving import BEGIN, ITEMS, click, dated_table, run_fixture, saved_run, serving
from unskew.serve import Event, open_store
from unskew.serve.http.event_times import TimeBounds
from unskew.serve.http.explore import draw, propensities
from unskew.serve.http.request import Refused
from unskew.serve.http.schemas import HistoryItem, RecommendationRequest
from unskew.serve.http.service import Service
from unskew.serve.store.events import BadEvent, in_iso, parse_time

served_run = run_fixture

LATER = BEGIN + 200 * 86_400  # seconds, after everything in the log


def ids(answer: dict) -> list[str]:
    return [item["item_id"] for item in answer["items"]]


# Random exposure


@pytest.mark.parametrize(
    ("k", "candidates", "fraction"), [(1, 1, 0.5), (3, 3, 0.2), (4, 9, 0.3), (5, 40, 0.05)]
)
def test_propensities_are_the_shares_of_many_draws(k: int, candidates: int, fraction: float) -> None:
    random, draws = np.random.default_rng(5), 6_000
    expected = np.append(
        propensities(k, candidates, fraction)[:k],
        np.full(candidates - k, propensities(k, candidates, fraction)[k]),
    )
    shown, at_place = np.zeros(candidates), np.zeros(k)
    for _ in range(draws):
        drawn = draw(k, candidates, fraction, random)
        assert len(set(drawn.ranks.tolist())) == k
        assert np.array_equal(drawn.propensities, expected[drawn.ranks])
        best = drawn.ranks[~drawn.random]
        others = np.setdiff1d(np.arange(candidates), drawn.ranks[drawn.random])
        assert best.tolist() == others[: len(best)].tolist()  # the best of the others, in their order
        shown[drawn.ranks] += 1
        at_place += drawn.random
    error = np.sqrt(expected * (1 - expected) / draws)
    assert (abs(shown / draws - expected) <= 5 * error + 1e-12).all()
    spread = 5 * np.sqrt(fraction * (1 - fraction) / draws)
    assert (abs(at_place / draws - fraction) <= spread).all()  # random items stand anywhere


def test_propensities_by_counting_all_draws() -> None:
    k, candidates, fraction = 3, 5, 0.25
    chance = np.zeros(candidates)
    for m in range(k + 1):
        weight = comb(k, m) * fraction**m * (1 - fraction) ** (k - m)
        draws = list(combinations(range(candidates), m))
        for drawn in draws:
            others = [rank for rank in range(candidates) if rank not in drawn]
            chance[[*drawn, *others[: k - m]]] += weight / len(draws)
    found = propensities(k, candidates, fraction)
    assert np.allclose(np.append(found[:3], [found[3]] * 2), chance, atol=1e-12)
    assert found[3] == k * fraction / candidates


def test_propensities_of_long_lists_of_large_catalogues_add_up() -> None:
    for k, candidates in ((200, 1_000_000), (1000, 1001), (1, 7)):
        found = propensities(k, candidates, 0.05)
        assert np.isclose(found[:k].sum() + (candidates - k) * found[k], k, rtol=1e-6)
        assert (np.diff(found) <= 1e-9).all()  # a better item is never less likely


def test_without_exploring_the_best_items_are_certain() -> None:
    drawn = draw(3, 10, 0.0, np.random.default_rng(0))
    assert drawn.ranks.tolist() == [0, 1, 2]
    assert drawn.propensities.tolist() == [1, 1, 1]
    assert not drawn.random.any()
    everything = draw(9, 4, 1.0, np.random.default_rng(0))
    assert sorted(everything.ranks) == [0, 1, 2, 3]
    assert np.allclose(everything.propensities, 1)
    assert np.allclose(draw(2, 8, 1.0, np.random.default_rng(0)).propensities, 2 / 8)
    assert not len(draw(3, 0, 0.5, np.random.default_rng(0)).ranks)


def test_repeated_requests_show_each_item_as_often_as_they_say(served_run: Path, tmp_path: Path) -> None:
    requests, k = 1500, 4
    with serving(served_run, tmp_path / "e.db", explore=0.3, seed=1) as service:
        shown, said = dict[str, int](), dict[str, float]()
        asked = RecommendationRequest(user_id="u1", k=k, log=False, exclude=["i3"], include_seen=True)
        for _ in range(requests):
            for item in service.recommend(asked)["items"]:
                shown[item["item_id"]] = shown.get(item["item_id"], 0) + 1
                assert said.setdefault(item["item_id"], item["propensity"]) == item["propensity"]
    assert len(said) == ITEMS - 1  # everything but what was excluded
    assert np.isclose(sum(said.values()), k)
    for item, propensity in said.items():
        error = np.sqrt(propensity * (1 - propensity) / requests)
        assert abs(shown[item] / requests - propensity) < 5 * error


def test_what_is_shown_is_in_the_store_before_the_answer(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db", explore=0.5, seed=2) as service:
        answer = service.recommend(RecommendationRequest(user_id="u1", k=6))
        kept = service.store.recommendation(answer["recommendation_id"])
        assert kept is not None
        assert [tuple(shown) for shown in kept.items] == [
            (item["item_id"], item["propensity"], item["exposed"]) for item in answer["items"]
        ]
        assert (kept.user_id, kept.model, kept.version) == ("u1", "itemknn", answer["version"])
        assert {item["exposed"] for item in answer["items"]} == {True, False}
        for unrecorded in (
            RecommendationRequest(user_id="u1", log=False),
            RecommendationRequest(history=["i1"]),
        ):
            assert service.recommend(unrecorded)["recommendation_id"] is None
        quiet = service.recommend(RecommendationRequest(user_id="u1", k=6, explore=0.0))
        assert {item["propensity"] for item in quiet["items"]} == {1.0}
        with pytest.raises(Refused, match="at most"):
            service.recommend(RecommendationRequest(user_id="u1", explore=0.6))
        assert service.store.counts()["recommendations"] == 2


def test_the_fallback_says_so(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db") as service:
        nobody = service.recommend(RecommendationRequest(user_id="nobody", k=2))
        assert (nobody["source"], nobody["reason"]) == (
            "fallback",
            "there is no history, so pulse-zero recommends",
        )
        kept = service.store.recommendation(nobody["recommendation_id"])
        assert kept is not None
        assert kept.model == "fallback:pulse-zero"
        known = service.recommend(RecommendationRequest(history=["i1", "no such"], k=2))
        assert (known["source"], known["reason"], known["unknown_items"]) == ("model", None, ["no such"])


# Events


def test_an_event_counts_at_once(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db") as service:
        asked = RecommendationRequest(user_id="a new user", k=5, include_seen=False)
        first = service.recommend(asked)
        best = ids(first)[0]
        said = service.append([click(1, "a new user", best), click(1, "a new user", best)])
        assert said == {"accepted": 1, "duplicates": 1, "rejected": []}
        second = service.recommend(asked)
        assert best not in ids(second)
        assert (first["source"], second["source"]) == ("fallback", "model")
        service.append([click(2, "a new user", "a fresh item"), click(3, "u2", "viewed", type="view")])
        assert service.item("a fresh item")["positives"] == 1
        with pytest.raises(Refused, match="no such item"):
            service.item("viewed")  # a view is kept, and is no positive
        assert service.user("a new user")["positives"] == 2


def test_bad_events_are_told_and_the_others_stored(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db") as service:
        far = "2999-01-01T00:00:00Z"
        given = [
            click(1, "u1", "i1", 10**400),
            click(2, "u1", "i2"),
            click(3, "", "i1"),
            click(4, "u1", "i1", far),
        ]
        said = service.append(given)
        assert (said["accepted"], said["duplicates"]) == (1, 0)
        assert [(bad["index"], bad["field"]) for bad in said["rejected"]] == [
            (0, "timestamp"),
            (2, "user_id"),
            (3, "timestamp"),
        ]


def test_times_that_are_not_plausible_are_rejected(served_run: Path, tmp_path: Path) -> None:
    """A click of 1970 would age its item by decades, and one of tomorrow would move now for everyone."""
    now, first = time.time(), min(dated_table()["time"].to_pylist())
    with serving(served_run, tmp_path / "e.db") as service:
        newest = service.about()["newest_event"]
        item = service.item("i1")
        given = [0, first - 1, now + 86_000, now + 3600]
        said = service.append([click(n, "u1", "i1", at) for n, at in enumerate(given)])
        assert said["accepted"] == 0
        assert [(bad["index"], bad["field"]) for bad in said["rejected"]] == [
            (n, "timestamp") for n in range(len(given))
        ]
        reasons = [bad["reason"] for bad in said["rejected"]]
        assert reasons[0] == reasons[1] == f"is before {in_iso(first * 10**6)}, the earliest plausible time"
        assert reasons[2] == reasons[3] == "is more than 300 seconds after now"
        assert service.about()["newest_event"] == newest
        assert service.item("i1") == item
        accepted = [click(10, "u1", "i1", first), click(11, "u1", "i1", now + 60)]
        assert service.append(accepted)["accepted"] == 2
    bounds = TimeBounds(earliest=0, ahead=2 * 86_400 * 10**6)
    with serving(served_run, tmp_path / "other.db", times=bounds) as service:
        said = service.append([click(n, "u1", "i1", at) for n, at in enumerate(given)])
        assert said["accepted"] == 4
    TimeBounds().check(parse_time("2000-01-01"), parse_time("2024-01-01"), None)  # a log without dates
    with pytest.raises(BadEvent, match="is before 2000-01-01"):
        TimeBounds().check(0, parse_time("2024-01-01"), None)


@pytest.mark.parametrize("dated", [True, False])
def test_a_service_started_again_answers_as_one_from_nothing(dated: bool, tmp_path: Path) -> None:
    run = saved_run(tmp_path / "run")
    if not dated:
        shutil.rmtree(run)
        cut = unskew.split(unskew.read(random_table(rows=600, users=30, items=20)))
        unskew.create_model("itemknn").fit(cut, show_progress=False).save(run)
    random = np.random.default_rng(3)
    events = [
        click(n, f"u{random.integers(45)}", f"i{random.integers(40)}", LATER + int(random.integers(50)))
        for n in range(120)
    ]

    def answers(service: Service) -> list[dict]:
        found = [
            service.recommend(RecommendationRequest(user_id=f"u{n}", k=12, log=False)) for n in range(45)
        ]
        return [{name: value for name, value in each.items() if name != "took_ms"} for each in found]

    with serving(run, tmp_path / "e.db") as service:

        def post(mine: list[dict]) -> None:
            for event in mine:
                service.append([event])

        threads = [threading.Thread(target=post, args=(events[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        before = answers(service)
        stored = [row for frame in service.store.events() for row in frame.to_pylist()]
    assert len(stored) == len(events)
    with serving(run, tmp_path / "e.db") as again:
        assert answers(again) == before
    with open_store(tmp_path / "new.db") as again_stored:
        names = ("event_id", "user_id", "item_id", "type", "timestamp")
        again_stored.append([Event(**{name: row[name] for name in names}) for row in stored])
    with serving(run, tmp_path / "new.db") as fresh:
        assert answers(fresh) == before


def test_moments(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db") as service:
        ranker = service._loaded.ranker if service._loaded else None
        assert ranker is not None
        catalog = ranker._catalogs["itemknn", False]
        early = service.recommend(RecommendationRequest(user_id="u1", k=30, at=BEGIN + 86_400, log=False))
        now = service.recommend(RecommendationRequest(user_id="u1", k=30, log=False))
        assert len(early["items"]) < len(now["items"]) == ITEMS  # not all items were there on the second day
        assert ranker._catalogs["itemknn", False] is catalog  # the look at the past has not replaced it
        # A history of today, over a log of years ago, counts.
        today = service.recommend(
            RecommendationRequest(
                history=[HistoryItem(item_id="i1", timestamp=LATER)], k=5, include_seen=False
            )
        )
        assert (today["source"], "i1" in ids(today)) == ("model", False)
        far = 32_503_680_000
        for asked in (
            RecommendationRequest(user_id="u1", at=far),
            RecommendationRequest(history=[HistoryItem(item_id="i1", timestamp=far)]),
        ):
            with pytest.raises(Refused, match="more than a day after now"):
                service.recommend(asked)
        with refused("debias"):
            service.recommend(RecommendationRequest(user_id="u1", debias=0.5))


def test_pulse_zero_needs_no_training(tmp_path: Path) -> None:
    pq.write_table(dated_table(), tmp_path / "log.parquet")
    unskew.prepare(tmp_path / "log.parquet", tmp_path / "data")
    with serving("pulse-zero", tmp_path / "e.db", data=tmp_path / "data") as service:
        lists = [
            ids(service.recommend(RecommendationRequest(user_id="u1", k=8, debias=debias, log=False)))
            for debias in (0.0, 1.0)
        ]
        assert lists[0] != lists[1]
        assert service.about()["debias"]["available"]
        first = service.recommend(RecommendationRequest(user_id="new", k=8, explore=0.0))
        service.append([click(1, "new", "i7")])
        assert service.recommend(RecommendationRequest(user_id="new", k=8))["items"] != first["items"]


def test_diverse_lists_can_explore(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db", explore=0.3, seed=3) as service:
        plain = RecommendationRequest(user_id="u1", k=6, log=False, diverse=0.8, explore=0.0)
        best = ids(service.recommend(plain))
        assert best != ids(
            service.recommend(RecommendationRequest(user_id="u1", k=6, log=False, explore=0.0))
        )
        for _ in range(20):
            found = service.recommend(RecommendationRequest(user_id="u1", k=6, log=False, diverse=0.8))[
                "items"
            ]
            random = {item["item_id"] for item in found if item["exposed"]}
            filled = [item_id for item_id in ids({"items": found}) if item_id not in random]
            assert filled == [item_id for item_id in best if item_id not in random][: len(filled)]


# Items


def test_looking_items_up(served_run: Path, tmp_path: Path) -> None:
    with serving(served_run, tmp_path / "e.db") as service:
        found = service.items("the SEA 1", 50)["items"]
        titles = [item["title"] for item in found]
        assert set(titles) == {f"The sea {n}" for n in range(10, 20, 2)}
        counts = [item["positives"] for item in found]
        assert counts == sorted(counts, reverse=True)
        assert (
            service.items("i1")["items"][0]["item_id"] == "i1"
        )  # equal comes first, whatever is more popular
        sea = [item["title"] for item in service.items("sea", 50)["items"]]
        assert len(sea) == ITEMS
        assert not service.items("no such thing")["items"]
        assert [item["item_id"] for item in service.items("", 3)["items"]] == ["i0", "i1", "i2"]
        names = (
            "New",
            "New-er",
            "New-er",
            "a newt",
            "a newt",
            "a newt",
            "renewed",
            "renewed",
            "renewed",
            "renewed",
        )
        service.append([click(n, f"u{n}", name) for n, name in enumerate(names)])
        found = [item["item_id"] for item in service.items("new")["items"]]
        assert found == [
            "New",
            "New-er",
            "a newt",
            "renewed",
        ]  # the better match comes before the more popular


# Erasing


def test_an_erased_user_is_nowhere(served_run: Path, tmp_path: Path) -> None:
    run = shutil.copytree(served_run, tmp_path / "run")
    with serving(run, tmp_path / "e.db") as service:
        before = service.about()["positives"]
        service.append([click(1, "u1", "i1"), click(2, "u2", "i1")])
        service.recommend(RecommendationRequest(user_id="u1"))
        known = service.user("u1")
        said = service.erase("u1")
        assert (said["events"], said["recommendations"], said["was_known"]) == (1, 1, True)
        assert said["run_events"] == known["positives"] - 1
        assert (len(said["covered"]), len(said["not_covered"])) == (2, 4)
        with refused("user_id"):
            service.user("u1")
        assert service.about()["positives"] == before + 1 - said["run_events"]
        assert service.reload(GUARD)["state"] == "done"
        with refused("user_id"):
            service.user("u1")
        assert not service.erase("u1")["was_known"]
    memory = load_file(run / "memory.safetensors")
    assert len(memory["history_ids"]) == len(memory["audience_ids"]) == before - said["run_events"]
    with serving(run, tmp_path / "e.db") as again:
        with refused("user_id"):
            again.user("u1")
        assert again.user("u2")["positives"] > 1
        assert again.about()["positives"] == before + 1 - said["run_events"]


def test_an_erasure_by_others_is_noticed(
    served_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(served_run, tmp_path / "e.db") as service:
        service.append([click(1, "fresh", "i1")])
        service.store.erase("fresh")  # as another process does in PostgreSQL
        with refused("user_id"):
            service.user("fresh")


# Another run


def test_reload_follows_the_link_and_drops_nothing(served_run: Path, tmp_path: Path) -> None:
    other = saved_run(tmp_path / "other", "popularity", seed=4)
    link = tmp_path / "current"
    link.symlink_to(served_run)
    with serving(link, tmp_path / "e.db") as service:
        stop, failed, versions = threading.Event(), list[BaseException](), set[str]()

        def ask(number: int) -> None:
            count = 0
            try:
                while not stop.is_set():
                    count += 1
                    service.append([click(number * 10**6 + count, f"w{number}", f"i{count % ITEMS}")])
                    versions.add(
                        service.recommend(RecommendationRequest(user_id=f"w{number}", k=3, log=False))[
                            "version"
                        ]
                    )
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        link.unlink()
        link.symlink_to(other)
        assert service.reload(GUARD) == {"state": "done", "error": None}
        assert service.about()["model"] == "popularity"
        stop.set()
        for thread in threads:
            thread.join()
        assert not failed
        assert service.user("w0")["positives"] == service.user("w0")["stored_events"]
        link.unlink()
        link.symlink_to(tmp_path / "nowhere")
        state = service.reload(GUARD)
        assert state["state"] == "failed"
        assert "no such folder" in str(state["error"])
        assert service.recommend(RecommendationRequest(user_id="w0", k=3))["model"] == "popularity"
