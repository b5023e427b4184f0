"""The figures of a monitor, compared with naive loops over the same events."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.errors import refused
from tests.helpers.monitored import DAY, ITEMS, MONDAY, NOW, WEEK, fill, filled, naive
from unskew.serve import Event, Recommendation, Shown, Store, open_store
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.serve.monitor.window import Window

NOT_KNOWN = [
    *("gini_shown", "coverage_shown", "lift", "age_shown", "click_rate", "fallback", "random"),
    *("ess", "calibration", "ndcg"),
]


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "events.db", synchronous="normal") as opened:
        yield opened


def click(number: int, at: int, user: str = "ann", item: str = "tea", **more: Any) -> Event:
    return Event(f"c{number}", user, item, "click", at, **more)


def same(window: Window, expected: dict[str, Any]) -> None:
    for name, value in expected.items():
        assert getattr(window, name) == pytest.approx(value, rel=1e-9, nan_ok=True), name


@pytest.mark.parametrize("seed", [0, 1])
def test_every_figure_is_that_of_a_naive_loop(store: Store, seed: int) -> None:
    events, made = fill(store, seed)
    found = monitor(store, now=NOW).windows
    assert [window.start for window in found] == [MONDAY + week * WEEK for week in range(len(found))]
    expected = naive(events, made, 5)
    assert len(found) >= 5  # clicks may come in the week after the last recommendation
    for window, figures in zip(found, expected, strict=False):
        same(window, figures)
        assert math.isnan(window.ndcg)
        assert math.isnan(window.calibration)
    assert math.isnan(found[0].lift)  # nothing is before it
    assert not math.isnan(found[2].lift)


def test_windows_are_cut_exactly_at_their_borders(store: Store) -> None:
    times = [MONDAY - 1, MONDAY, MONDAY + DAY - 1, MONDAY + DAY, MONDAY + WEEK - 1, MONDAY + WEEK]
    store.append([click(number, at) for number, at in enumerate(times)])
    assert [window.events for window in monitor(store, now=NOW).windows] == [1, 4, 1]
    daily = monitor(store, settings=Monitoring(every="1d"), now=NOW).windows
    assert [window.events for window in daily] == [1, 2, 1, 0, 0, 0, 0, 1, 1]
    assert (daily[1].start, daily[1].end) == (MONDAY, MONDAY + DAY)


def test_older_windows_are_not_listed_but_counted_as_the_past(store: Store) -> None:
    events, made = fill(store)
    whole, newest = monitor(store, now=NOW), monitor(store, settings=Monitoring(windows=2), now=NOW)
    assert newest.windows == whole.windows[-2:]
    assert newest.stored == whole.stored
    assert naive(events, made, 5)[-1]["new_users"] == whole.windows[4].new_users


def test_compacted_rows_and_the_order_of_arrival_change_nothing(tmp_path: Path, store: Store) -> None:
    events, made = fill(store)
    before = monitor(store, now=NOW)
    store.compact(MONDAY + 2 * WEEK)
    assert monitor(store, now=NOW).windows == before.windows
    with open_store(tmp_path / "other.db", synchronous="normal") as other:
        other.append(sorted(events, key=lambda event: -event.timestamp))
        other.record(made[::-1])
        for ours, theirs in zip(monitor(other, now=NOW).windows, before.windows, strict=True):
            same(ours, {name: getattr(theirs, name) for name in NOT_KNOWN if name not in ("ndcg", "ess")})


def test_types_of_events_mean_what_the_store_says(tmp_path: Path) -> None:
    with open_store(tmp_path / "own.db", positive=["like"], shown=["seen"]) as store:
        store.append([Event("1", "ann", "tea", "like", MONDAY), Event("2", "ann", "tea", "click", MONDAY)])
        store.append([Event("3", "ann", "mate", "seen", MONDAY)])
        (window,) = monitor(store, now=NOW).windows
    assert (window.events, window.positives, window.shown, window.items) == (3, 1, 1, 1)


# Stores that have little


def test_an_empty_store(store: Store) -> None:
    found = monitor(store, settings=Monitoring(max_gini=0.1), now=NOW)
    assert found.windows == ()
    assert found.healthy
    assert "empty" in found.verdict().finding
    assert json.loads(json.dumps(found.document(), allow_nan=False))["judged"] is None
    assert found.table().rows[0] == ["events"]


def test_a_store_with_one_event(store: Store) -> None:
    store.append([click(1, MONDAY + DAY)])
    found = monitor(store, settings=Monitoring(max_gini=0.1), now=MONDAY + 2 * DAY)
    (window,) = found.windows
    same(window, {"events": 1, "new_users": 1, "new_items": 1, "coverage_clicked": 1.0, "gini_clicked": 0.0})
    same(window, dict.fromkeys(NOT_KNOWN, math.nan) | {"age_clicked": 0.0})
    assert not window.whole
    assert found.judged is None
    assert "no whole window yet" in found.verdict().finding
    assert found.document()["windows"][0]["ess"] is None


def test_without_impressions_it_says_what_is_not_known(store: Store) -> None:
    store.append([click(n, MONDAY + n * DAY, item=f"i{n % 3}") for n in range(15)])
    found = monitor(store, settings=Monitoring(max_gini=0.1, min_ess=0.5), now=NOW)
    assert found.healthy
    assert found.verdict().finding.startswith("None of 2 thresholds could be judged")
    said = " ".join(found.notes())
    assert "What was shown is not known" in said
    assert "Not judged: `--max-gini 0.1`, because nothing is known of what was shown" in said
    assert "Not judged: `--min-ess 0.5`, because no positive of the window has a logged propensity" in said
    assert found.table().rows[7][1:] == ["–"] * len(found.windows)


def test_impressions_without_propensities(store: Store) -> None:
    store.append([click(1, MONDAY, impression=("tea", "mate"))])
    found = monitor(store, now=NOW)
    same(found.windows[0], {"shown": 2, "logged": 0, "ess": math.nan, "click_rate": math.nan})
    assert "Propensities are not known" in " ".join(found.notes())


def test_only_recommendations_and_no_event(store: Store) -> None:
    store.record([Recommendation("r", "ann", MONDAY, "pulse", "1", (Shown("tea", 0.5),))])
    (window,) = monitor(store, now=NOW).windows
    same(window, {"events": 0, "shown": 1, "click_rate": 0.0, "gini_shown": 0.0})
    same(window, {"coverage_shown": math.nan, "lift": math.nan, "age_shown": math.nan})


def test_times_of_broken_clocks(store: Store) -> None:
    """One event of 1970 and one of 2100: neither makes thousands of windows, nor is it the newest one."""
    store.append([click(1, 0), click(2, 4_102_444_800 * 10**6), click(3, MONDAY), click(4, MONDAY + WEEK)])
    found = monitor(store, settings=Monitoring(windows=3), now=MONDAY + WEEK + DAY)
    assert [window.events for window in found.windows] == [0, 1, 1]
    assert [window.new_items for window in found.windows] == [0, 0, 0]
    assert found.stored.future == 1
    assert "1 events and recommendations are left out" in " ".join(found.notes())


def test_a_fallback_that_nobody_tells_is_not_known(store: Store) -> None:
    items = (Shown("tea", 1.0),)
    store.record([Recommendation("r1", "ann", MONDAY, "pulse", "1", items)])
    assert math.isnan(monitor(store, now=NOW).windows[0].fallback)
    store.record([Recommendation("r2", "ann", MONDAY + WEEK, "fallback: new user", "1", items)])
    store.record([Recommendation("r3", "ann", MONDAY + WEEK, "fallbacks", "1", items)])
    assert [window.fallback for window in monitor(store, now=NOW).windows] == [0, 0.5]


# Which window is judged


def test_the_newest_whole_window_is_judged(store: Store) -> None:
    store.append([click(1, MONDAY), click(2, MONDAY + WEEK), click(3, MONDAY + 2 * WEEK)])

    def judged(now: int) -> int:
        window = monitor(store, now=now).judged
        assert window is not None
        return (window.start - MONDAY) // WEEK

    assert judged(MONDAY + 2 * WEEK - 1) == 0
    assert judged(MONDAY + 2 * WEEK) == 1
    assert judged(MONDAY + 9 * WEEK) == 1  # the store ends at the beginning of the third
    store.append([click(4, MONDAY + 3 * WEEK - DAY // 2)])
    assert judged(MONDAY + 3 * WEEK - 1) == 1
    assert judged(MONDAY + 3 * WEEK) == 2


def two_weeks(store: Store) -> None:
    """In the second week, tea is shown three times and mate once, both known; mate is clicked."""
    store.append([click(n, MONDAY + n, item="tea") for n in range(3)])
    store.append([click(3, MONDAY + 3, item="mate"), click(4, MONDAY + 4, item="maté")])
    for number in range(4):
        item = "mate" if number == 3 else "tea"
        propensity = 0.1 if number == 3 else 1.0
        kind = "fallback" if number == 0 else "pulse"
        shown = (Shown(item, propensity),)
        store.record([Recommendation(f"r{number}", "ann", MONDAY + WEEK + number, kind, "1", shown)])
    store.append([click(9, MONDAY + WEEK + DAY, item="mate", recommendation_id="r3")])
    store.append([click(10, MONDAY + WEEK + DAY, item="tea", recommendation_id="r0")])
    store.append([click(11, MONDAY + 2 * WEEK, item="tea")])


@pytest.mark.parametrize(
    ("name", "measured"),
    [
        ("max_gini", 0.5),  # 3, 1 and 0 of three items
        ("min_coverage", 2 / 3),
        ("max_lift", 1.25),  # (3 * 3 + 1) / 4 over (3 + 1) / 2
        ("min_click_rate", 0.5),
        ("max_fallback", 0.25),
        ("min_ess", 121 / 101 / 2),
    ],
)
def test_a_threshold_is_crossed_on_its_side_only(store: Store, name: str, measured: float) -> None:
    two_weeks(store)
    step = 0.001 if name.startswith("max") else -0.001
    for threshold, crossed in ((measured - step, True), (measured + step, False)):
        found = monitor(store, settings=Monitoring(**{name: threshold}), now=NOW)
        assert found.judged == found.windows[1]
        assert found.healthy != crossed
        if crossed:
            (one,) = found.crossed
            assert one.measured == pytest.approx(measured)
            assert one.flag == f"--{name.replace('_', '-')}"
            assert f"{'above' if step > 0 else 'below'} `{one.flag} {threshold:g}`; " in one.sentence
            assert "in the window 2026-01-12 to 2026-01-18" in one.sentence
            assert one.sentence in found.verdict().advice
            assert found.verdict().finding.startswith("Not healthy: 1 of 1 thresholds is crossed")
        else:
            assert found.verdict().finding.startswith("Healthy: none of 1 thresholds is crossed")


def test_a_figure_that_is_not_known_crosses_nothing_and_says_so(store: Store) -> None:
    two_weeks(store)
    found = monitor(store, settings=Monitoring(min_ndcg=0.9, max_miscalibration=0, min_ess=0.1), now=NOW)
    assert found.healthy
    assert found.verdict().finding.startswith("Only 1 of 3 thresholds could be judged")
    assert len([note for note in found.notes() if note.startswith("Not judged")]) == 2


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [({"every": "soon"}, "every"), ({"windows": 0}, "windows"), ({"max_gini": 1.5}, "max_gini")],
)
def test_wrong_settings(store: Store, settings: dict[str, Any], wrong: str) -> None:
    with refused(wrong):
        monitor(store, settings=Monitoring(**settings), now=NOW)


def test_the_sample_store_has_everything() -> None:
    """Otherwise the comparison with the loops would prove little."""
    events, made = filled()
    assert {event.type for event in events} == {"click", "purchase", "view", "impression"}
    assert any(event.impression and event.type == "click" for event in events)
    assert any(item.exposed for each in made for item in each.items)
    assert [event.timestamp for event in events] != sorted(event.timestamp for event in events)
    assert {item.item_id for each in made for item in each.items} == set(ITEMS)
