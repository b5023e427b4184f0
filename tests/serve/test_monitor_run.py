"""The monitor with a run: what it remembers is the past, and it is ranked on what it did not see."""

import math
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.helpers.monitored import DAY, MONDAY, NOW, WEEK
from unskew.api.create import create_model
from unskew.core.errors import BadInput
from unskew.data.log.erasures import Erasures
from unskew.data.log.split import Splitting, split_at
from unskew.serve import Event, Recommendation, Shown, Store, open_store
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.training.erase import erase_from_run

ITEMS, USERS = 30, 25
SECOND = 10**6


def rows(count: int, low: int, high: int, seed: int) -> list[tuple[int, int, int]]:
    """Users, items and times in whole seconds."""
    random = np.random.default_rng(seed)
    times = random.integers(low // SECOND, high // SECOND, count) * SECOND
    items = (ITEMS * random.random(count) ** 2).astype(int)
    return list(zip(random.integers(0, USERS, count).tolist(), items.tolist(), times.tolist(), strict=True))


def log_of(events: list[tuple[int, int, int]]) -> unskew.Log:
    user, item, time = zip(*events, strict=True)
    table = {"user": user, "item": item, "time": [each // SECOND for each in time], "label": [1] * len(user)}
    return unskew.read(pa.table(table))


BEFORE = rows(600, MONDAY - 10 * WEEK, MONDAY + 3 * DAY, 0)  # the run's log ends within the first week
SINCE = rows(200, MONDAY + 3 * DAY, MONDAY + 3 * WEEK, 1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    cut = unskew.split(log_of(BEFORE), fractions=(80, 20, 0), repeats="keep")
    create_model("popularity").fit(cut, show_progress=False).save(folder)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> unskew.Model:
    return unskew.load(run)


@pytest.fixture
def store(tmp_path: Path):
    with open_store(tmp_path / "events.db", synchronous="normal") as opened:
        yield opened


def clicks(events: list[tuple[int, int, int]], name: str = "c") -> list[Event]:
    return [
        Event(f"{name}{n}", str(user), str(item), "click", at) for n, (user, item, at) in enumerate(events)
    ]


def fill(store: Store) -> None:
    """Events since the run, some from before it that it knows, and one from before it that it does not."""
    store.append(clicks(SINCE))
    store.append(clicks([each for each in BEFORE if each[2] >= MONDAY], "known"))
    store.append(clicks([(USERS + 5, ITEMS + 5, MONDAY - 20 * WEEK)], "late"))


def test_windows_are_ranked_as_in_a_log_that_is_prepared_again(store: Store, model: unskew.Model) -> None:
    fill(store)
    found = monitor(store, model, Monitoring(windows=3), now=NOW)
    assert [window.seen for window in found.windows] == [True, False, False]
    assert math.isnan(found.windows[0].ndcg)
    everything = log_of(list(set(BEFORE + SINCE)))
    cut = unskew.split(log_of(BEFORE), fractions=(80, 20, 0))
    for window in found.windows[1:]:
        start, end = window.start // SECOND, window.end // SECOND
        split = split_at(everything, Splitting(repeats="keep"), cut.train_end, start)
        expected = model.evaluate(split, until=end, show_progress=False)
        assert window.ndcg == pytest.approx(expected.mean("ndcg@10"), abs=1e-12)
        assert window.ranked == len(expected.user) == sum(window.start <= t < window.end for *_, t in SINCE)
        values = expected.values["ndcg@10"]
        assert window.ndcg_error == pytest.approx(values.std(ddof=1) / math.sqrt(len(values)))
    assert found.windows[1].ndcg != found.windows[2].ndcg
    assert found.trained_until == cut.valid_end * SECOND
    shown = found.table()
    assert shown.rows[-1][0] == "NDCG@10"
    assert shown.rows[-1][-1] == "seen"


def test_a_sample_of_each_window_is_ranked(store: Store, model: unskew.Model) -> None:
    fill(store)
    found = monitor(store, model, Monitoring(windows=2, sample=7), now=NOW)
    assert [window.ranked for window in found.windows] == [7, 7]


def test_what_the_run_remembers_is_the_past(store: Store, model: unskew.Model) -> None:
    store.append(clicks(SINCE))
    made = [
        Recommendation("r", "1", MONDAY + 2 * WEEK, "popularity", "1", (Shown("0", 1.0), Shown("29", 1.0)))
    ]
    store.record(made)
    with_run, alone = monitor(store, model, now=NOW).windows, monitor(store, now=NOW).windows
    known = {item for _, item, _ in BEFORE}
    assert alone[0].new_items > 0
    firsts = {item: min(t for _, other, t in SINCE if other == item) for _, item, _ in SINCE}
    for place, window in enumerate(with_run):
        here = {item for item, first in firsts.items() if window.start <= first < window.end}
        assert window.new_items == len(here - known)
        assert alone[place].new_items == len(here)
    popularity = {
        item: sum(each[1] == item and each[2] < MONDAY + 2 * WEEK for each in BEFORE + SINCE)
        for item in range(ITEMS)
    }
    clicked = [popularity[item] for _, item, t in SINCE if t >= MONDAY + 2 * WEEK]
    lift = (popularity[0] + popularity[29]) / 2 / np.mean(clicked)
    assert with_run[2].lift == pytest.approx(lift)
    first = {n: min(t for _, item, t in BEFORE + SINCE if item == n) for n in (0, 29)}
    age = np.mean([MONDAY + 2 * WEEK - first[n] for n in (0, 29)]) / DAY
    assert with_run[2].age_shown == pytest.approx(age)


def test_events_that_the_run_knows_are_not_counted_twice(store: Store, model: unskew.Model) -> None:
    """The store holds all that the run was trained on, as after an export: the run adds nothing to it."""
    store.append(clicks(list(set(BEFORE + SINCE))))
    store.record([Recommendation("r", "1", MONDAY + 2 * WEEK, "popularity", "1", (Shown("3", 1.0),))])
    with_run, alone = monitor(store, model, now=NOW).windows, monitor(store, now=NOW).windows
    for name in ("new_users", "new_items", "lift", "coverage_shown", "age_clicked", "gini_clicked"):
        assert [getattr(w, name) for w in with_run] == pytest.approx(
            [getattr(w, name) for w in alone], nan_ok=True
        ), name


@pytest.mark.parametrize(("factor", "expected"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.5)])
def test_calibration_tells_true_propensities_from_wrong_ones(
    store: Store, model: unskew.Model, factor: float, expected: float
) -> None:
    """Three of the thirty items are drawn at random, so each is shown with a probability of 1 / 10."""
    random = np.random.default_rng(4)
    catalogue = len({item for _, item, _ in BEFORE + SINCE})
    true = 3 / catalogue
    store.append(clicks(SINCE))
    store.record(
        [
            Recommendation(
                *(f"r{n}", "1", MONDAY + 3 * WEEK + n, "popularity", "1"),
                tuple(
                    Shown(str(item), true * factor, True) for item in random.choice(ITEMS, 3, replace=False)
                ),
            )
            for n in range(20)
        ]
    )
    store.record([Recommendation("r", "1", MONDAY + WEEK, "popularity", "1", (Shown("1", 0.5),))])
    found = monitor(store, model, Monitoring(max_miscalibration=0.1), now=NOW)
    window = found.windows[-1]
    assert found.windows[1].recommendations == 1
    assert window.calibration == pytest.approx(expected)
    assert window.calibration_error == pytest.approx(0, abs=1e-9)
    assert math.isnan(found.windows[1].calibration)  # nothing was random in it
    assert math.isnan(monitor(store, now=NOW).windows[-1].calibration)  # what there was to show is not known


def test_the_standard_error_of_the_calibration(store: Store, model: unskew.Model) -> None:
    catalogue = len({item for _, item, _ in BEFORE + SINCE})
    store.append(clicks(SINCE))
    implied = []
    for n, propensity in enumerate([0.1, 0.2, 0.5, 0.05]):
        implied.append(1 / propensity + 1)
        items = (Shown("1", propensity, n == 0), Shown("2", 1.0))
        store.record([Recommendation(f"r{n}", "1", MONDAY + 3 * WEEK, "popularity", "1", items)])
    window = monitor(store, model, now=NOW).windows[-1]
    mean = sum(implied) / 4
    assert window.calibration == pytest.approx(mean / catalogue)
    spread = math.sqrt(sum((each - mean) ** 2 for each in implied)) / 4
    assert window.calibration_error == pytest.approx(spread / catalogue)


def test_a_drop_is_against_the_mean_of_the_windows_before(store: Store, model: unskew.Model) -> None:
    fill(store)
    store.append(clicks(rows(50, MONDAY + 3 * WEEK, MONDAY + 4 * WEEK, 2), "more"))
    found = monitor(store, model, Monitoring(max_ndcg_drop=0), now=NOW)
    *before, last = found.windows[-3:]
    mean = sum(w.ndcg * w.ranked for w in before) / sum(w.ranked for w in before)
    assert found.drop(last) == pytest.approx(1 - last.ndcg / mean)
    assert math.isnan(found.drop(before[0]))  # the one before was seen
    judged = found.judged
    assert judged is not None
    for threshold, crossed in ((found.drop(judged) - 0.01, True), (found.drop(judged) + 0.01, False)):
        if 0 <= threshold <= 1:
            again = monitor(store, model, Monitoring(max_ndcg_drop=threshold), now=NOW)
            assert again.healthy != crossed
    low = monitor(store, model, Monitoring(min_ndcg=min(1.0, judged.ndcg + 0.01)), now=NOW)
    assert "The run ranks badly what people choose: NDCG@10 was" in low.crossed[0].sentence
    assert monitor(store, model, Monitoring(min_ndcg=judged.ndcg - 0.01), now=NOW).healthy


def test_the_model_itself_is_left_alone(store: Store, model: unskew.Model) -> None:
    fill(store)
    trained = model.trained
    length = len(trained.log)
    before = model.recommend(users=[1], k=5).table
    monitor(store, model, now=NOW)
    assert model.trained is trained
    assert len(trained.log) == length
    assert model.recommend(users=[1], k=5).table.equals(before)


def test_runs_that_cannot_follow_a_store(store: Store, small_split: unskew.Split) -> None:
    ordered = create_model("popularity").fit(small_split, show_progress=False)
    with pytest.raises(BadInput, match="only an order"):
        monitor(store, ordered, now=NOW)
    with pytest.raises(BadInput, match="no log of its own"):
        monitor(store, unskew.load("pulse-zero"), now=NOW)


def test_new_ids_need_not_be_numbers(store: Store, model: unskew.Model) -> None:
    """The run's own ids are whole numbers; whoever comes now may be called anything."""
    for second, item in enumerate(["tea", "1", "tea"]):
        store.append([Event(f"n{second}", "ann", item, "click", MONDAY + WEEK + second * SECOND)])
    (window,) = monitor(store, model, now=NOW).windows
    assert (window.new_items, window.new_users) == (1, 1)
    assert window.ranked == 2  # and not the first positive of an item, about which nothing is known


def test_it_ranks_with_weights_of_its_own(store: Store, model: unskew.Model, monkeypatch) -> None:
    """A service recommends with the same model meanwhile, and an evaluation loads other weights."""
    used: list[object] = []
    evaluate = unskew.Model.evaluate

    def spied(self: unskew.Model, *given: object, **more: object) -> object:
        used.append(self.network)
        return evaluate(self, *given, **more)

    monkeypatch.setattr(unskew.Model, "evaluate", spied)
    fill(store)
    monitor(store, model, Monitoring(windows=2, sample=3), now=NOW)
    assert len(used) == 2
    assert model.network not in used


def test_an_empty_store_with_a_run(store: Store, model: unskew.Model) -> None:
    found = monitor(store, model, now=NOW)
    assert found.windows == ()
    assert found.run == "popularity"


def test_a_run_without_an_erased_user_is_still_ranked(store: Store, run: Path, tmp_path: Path) -> None:
    """Without the user's events, other users and items come first, so the log gives all of them new
    numbers. The figures are those of a model that never knew the user."""
    first = min(BEFORE, key=lambda each: each[2])[0]
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    assert erase_from_run(folder, Erasures().with_users({str(first): NOW}))
    store.append(clicks([each for each in SINCE if each[0] != first]))
    found = monitor(store, unskew.load(folder), Monitoring(windows=2), now=NOW)
    cut = unskew.split(log_of(BEFORE), fractions=(80, 20, 0), repeats="keep")
    others = log_of([each for each in BEFORE if each[0] != first])
    never = split_at(others, Splitting(repeats="keep"), cut.train_end, cut.valid_end)
    fresh = create_model("popularity").fit(never, show_progress=False)
    everything = log_of([each for each in set(BEFORE + SINCE) if each[0] != first])
    for window in found.windows:
        start, end = window.start // SECOND, window.end // SECOND
        split = split_at(everything, Splitting(repeats="keep"), cut.train_end, start)
        expected = fresh.evaluate(split, until=end, show_progress=False)
        assert window.ranked == len(expected.user) > 0
        assert window.ndcg == pytest.approx(expected.mean("ndcg@10"), abs=1e-12)
