"""Suites: which cells they ask for, what a bench does and does not do again, and what it stores."""

from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import unskew
from tests.helpers.benched import evaluation_of
from unskew.core.errors import BadInput
from unskew.data.log.split import Splitting
from unskew.diagnostics.propensity.verdicts import WeightVerdict
from unskew.experiments import bench as bench_module
from unskew.experiments import extra_suites as beyond
from unskew.experiments import paper_suites as paper
from unskew.experiments.bench import Bench
from unskew.experiments.cell_store import CellStore, decode, encode, unpack_values
from unskew.experiments.grid import SMOKE_WORLD, plan_cells, world_source
from unskew.experiments.registry import suites, suites_in, suites_named
from unskew.experiments.suite import Arm, Rolling, Suite

WORLD = world_source("world", SMOKE_WORLD)
TINY = Suite(
    name="tiny",
    title="Tiny",
    question="Does it work?",
    arms=(
        Arm(name="counted", model="popularity"),
        Arm(name="neighbours", model="itemknn"),
        Arm(name="network", model="sasrec"),
    ),
    seeds=2,
)


def tiny(**changed: object) -> Bench:
    return replace(Bench(suites=(TINY,), sources=(WORLD,), smoke=True, seeds=1), **changed)


def figures(folder: Path) -> dict[str, dict]:
    """Everything that was found, but for what it cost."""
    kept = {}
    for key, line in CellStore.open(folder).cells.items():
        kept[key] = {name: value for name, value in asdict(line).items() if name != "cost"}
    return kept


# Which cells


def test_no_model_has_more_than_it_is_allowed_and_what_has_less_stays_the_same() -> None:
    usual, _ = plan_cells([paper.MAIN], [WORLD], seeds=1)
    limits = {"deps.epochs": 2, "epochs": 8, "audience": 100}
    cells, places = plan_cells([paper.MAIN], [WORLD], seeds=1, at_most=limits)
    assert len(cells) == len(usual)
    for before, after in zip(usual.values(), cells.values(), strict=True):
        epochs, audience = before.training["epochs"], before.config.get("audience")
        most = 2 if before.model == "deps" else 8
        assert (after.training["epochs"], type(epochs)) == (min(epochs, most), int)
        assert after.config.get("audience") == (min(audience, 100) if audience else None)
        small = epochs <= most and (audience or 0) <= 100
        assert (after.key == before.key) == small, before.label
    assert all(place.at_most == limits for place in places)
    with pytest.raises(BadInput, match="select_by is 'auto' here, which is no number"):
        plan_cells([TINY], [WORLD], seeds=1, at_most={"select_by": 3})


def test_every_first_seed_comes_before_any_second_one() -> None:
    other = replace(TINY, name="other", seeds=3, arms=[Arm(name="pulse", model="pulse")])
    cells, places = plan_cells([TINY, other], [WORLD], smoke=True)
    assert [place.seed for place in places] == sorted(place.seed for place in places)
    assert [(place.suite, place.arm) for place in places if place.seed == 0] == [
        ("tiny", "counted"),
        ("tiny", "neighbours"),
        ("tiny", "network"),
        ("other", "pulse"),
    ]
    assert [place.suite for place in places if place.seed == 2] == ["other"]
    assert [cell.training["seed"] for cell in cells.values()] == [place.seed for place in places]


def test_two_suites_that_ask_for_the_same_cell_share_it() -> None:
    cells, places = plan_cells([paper.VIEWS, paper.PARTS, paper.FREQUENCY], [WORLD], seeds=1)
    assert len(places) == 12
    assert len(cells) == 10  # DEPS itself is in all three
    assert len({place.key for place in places if place.arm == "DEPS"}) == 1


def test_a_cell_is_known_by_what_it_does_and_not_by_where_the_data_is() -> None:
    def key(source=WORLD, splitting=None, sample=50, **settings) -> str:
        arm = Arm(name="a", model="sasrec", settings=settings)
        suite = replace(TINY, arms=[arm], seeds=1)
        return next(iter(plan_cells([suite], [source], splitting, sample=sample)[0]))

    first = key()
    assert first == key(replace(WORLD, folder="/elsewhere", name="renamed")) == key(width=64)
    others = [
        key(width=32),
        key(epochs=3),
        key(sample=60),
        key(splitting=Splitting(fractions=(60, 20, 20))),
        key(world_source("world", replace(SMOKE_WORLD, bias=2.0))),
    ]
    assert len({first, *others}) == 6


def test_each_seed_has_a_world_of_its_own() -> None:
    cells, _ = plan_cells([beyond.GROUND_TRUTH], [], seeds=2, smoke=True)
    seeds = {(cell.source.name, cell.training["seed"]): cell.source.world.seed for cell in cells.values()}
    assert {seed - training for (_, training), seed in seeds.items()} == {100}
    assert len({cell.source.data for cell in cells.values()}) == 6


@pytest.mark.parametrize(
    ("arms", "said"),
    [
        ((), "has no arms"),
        ((Arm(name="a", model="pulse"), Arm(name="a", model="sasrec")), "two arms are named 'a'"),
        ((Arm(name="a", model="pulse", twin="b"),), "no arm 'b'; there are a"),
    ],
)
def test_suites_that_make_no_sense(arms: tuple[Arm, ...], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        replace(TINY, arms=arms)


def test_a_suite_without_worlds_needs_data() -> None:
    with pytest.raises(BadInput, match="suite tiny: expected DATA"):
        plan_cells([TINY], [])


def test_suites_by_name() -> None:
    known = suites()
    assert set(known) == {
        *("main", "views", "parts", "frequency", "agnostic", "clip"),
        *("ground-truth", "industry", "rolling"),
    }
    assert len(known["main"].rivals) == 12
    assert suites_named("all", known) == list(known.values())
    with pytest.raises(BadInput, match="did you mean 'views'"):
        suites_named("view", known)


# What a bench does


def test_what_is_stored_is_not_done_again_and_more_seeds_only_add(tmp_path: Path, monkeypatch) -> None:
    began = []
    real = bench_module.try_cell
    monkeypatch.setattr(
        bench_module, "try_cell", lambda cell, runs: began.append(cell.label) or real(cell, runs)
    )
    state = tiny().run(tmp_path)
    assert (state.total, state.done, state.failed, len(began)) == (3, 3, {}, 3)
    before = figures(tmp_path)
    assert tiny().run(tmp_path).done == 3
    assert len(began) == 3
    tiny(seeds=2).run(tmp_path)
    # In which order depends on what the first seeds cost.
    assert set(began[3:]) == {f"{name} on world, seed 1" for name in ("counted", "neighbours", "network")}
    assert len(began) == 6
    assert {key: figures(tmp_path)[key] for key in before} == before
    assert len(CellStore.open(tmp_path).plan.places) == 6
    assert list((tmp_path / "runs").iterdir()) == []  # trained runs are removed


def test_what_is_cheap_comes_first_but_no_second_seed_early(tmp_path: Path, monkeypatch) -> None:
    """A guess at first; what was measured counts more."""
    began = []
    monkeypatch.setattr(bench_module, "try_cell", lambda cell, runs: began.append(cell.label) or "skipped")
    dear = world_source("world", SMOKE_WORLD)
    arms = [
        Arm(name="dear", model="bst"),
        Arm(name="middle", model="deps"),
        Arm(name="cheap", model="itemknn"),
    ]
    suite = replace(TINY, arms=arms)
    tiny(suites=(suite,), sources=(replace(dear, positives=10_000),), seeds=2).run(tmp_path)
    named = [label.split()[0] + label[-1] for label in began]
    assert named == ["cheap0", "middle0", "dear0", "cheap1", "middle1", "dear1"]
    cells, _ = plan_cells([suite], [replace(dear, positives=10_000)], seeds=1, smoke=True)
    guessed = bench_module.estimate_seconds(CellStore(tmp_path))
    first = next(cell for cell in cells.values() if cell.model == "bst")
    assert guessed(first) == bench_module.SECONDS["bst"] * 5
    data = SimpleNamespace(name="elsewhere", positives=20_000)
    store = CellStore(tmp_path)
    store.cells = {"a": SimpleNamespace(model="bst", cost=SimpleNamespace(cpu_s=7.0), data=data)}
    assert bench_module.estimate_seconds(store)(first) == pytest.approx(3.5)
    data = SimpleNamespace(name="world", positives=1)
    store.cells["b"] = SimpleNamespace(model="bst", cost=SimpleNamespace(cpu_s=7.0), data=data)
    assert bench_module.estimate_seconds(store)(first) == 7.0


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    tiny().run(tmp_path / "one")
    tiny(workers=2).run(tmp_path / "two")
    assert figures(tmp_path / "one") == figures(tmp_path / "two")
    assert len(figures(tmp_path / "one")) == 3


def test_a_cell_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path: Path, monkeypatch) -> None:
    real = bench_module.run_cell

    def failing(cell, folder):
        if cell.model == "itemknn":
            raise RuntimeError("no neighbours today")
        return real(cell, folder)

    monkeypatch.setattr(bench_module, "run_cell", failing)
    told = []
    state = tiny().run(tmp_path, lambda state: told.append(state.message))
    assert (state.done, list(state.failed.values())) == (2, ["RuntimeError: no neighbours today"])
    assert "failed: neighbours on world, seed 0: RuntimeError: no neighbours today" in told
    assert CellStore.open(tmp_path).failures == state.failed
    monkeypatch.setattr(bench_module, "run_cell", real)
    state = tiny().run(tmp_path)
    assert (state.done, state.failed, CellStore.open(tmp_path).failures) == (3, {}, {})


def test_no_cell_is_begun_after_the_budget(tmp_path: Path, monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(bench_module.time, "monotonic", lambda: now[0])
    real = bench_module.try_cell

    def slow(cell, runs):
        now[0] += 40.0
        return real(cell, runs)

    monkeypatch.setattr(bench_module, "try_cell", slow)
    state = tiny(seeds=2, budget=1.0).run(tmp_path)
    assert (state.total, state.done) == (6, 2)
    assert state.message.startswith("the budget of 1 minutes is used up")
    with pytest.raises(BadInput, match="budget 0: expected more than 0"):
        tiny(budget=0).run(tmp_path)


def test_a_run_that_was_stopped_in_the_middle_goes_on(tmp_path: Path, monkeypatch) -> None:
    """The stopped cell was in its second epoch; what it finds in the end is what it would have found."""
    arm = Arm(name="network", model="gru4rec")
    suite = replace(TINY, arms=[arm])
    monkeypatch.setitem(bench_module.plan_cells.__globals__["SMOKE"], "epochs", 3)
    whole = tiny(suites=(suite,))
    whole.run(tmp_path / "whole")
    from unskew.training.trainer import Trainer

    real, epochs = Trainer._round, []

    def stopping(self, *more):
        epochs.append(1)
        if len(epochs) == 2:
            raise KeyboardInterrupt
        return real(self, *more)

    monkeypatch.setattr(Trainer, "_round", stopping)
    with pytest.raises(KeyboardInterrupt):
        whole.run(tmp_path / "stopped")
    (left,) = (tmp_path / "stopped" / "runs").iterdir()
    assert (left / "checkpoint.safetensors").is_file()
    done = len((left / "records.jsonl").read_text().splitlines())
    assert done >= 1
    epochs.clear()
    monkeypatch.setattr(Trainer, "_round", lambda self, *more: epochs.append(1) or real(self, *more))
    whole.run(tmp_path / "stopped")
    (found,) = figures(tmp_path / "stopped").values()
    assert len(epochs) == len(found["records"]) - done
    assert figures(tmp_path / "stopped") == figures(tmp_path / "whole")


def test_a_worker_that_dies_fails_its_cell_only(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\n"
        "from unskew.models.popularity import Popularity\n"
        "from unskew.experiments.suite import Arm, Suite\n"
        "class Dying(Popularity, name='dying', paper='none'):\n"
        "    @classmethod\n"
        "    def resolve_auto(cls, config, split):\n"
        "        os._exit(9)\n"
        "suite = Suite(name='mine', title='Mine', question='Who dies?', arms=(\n"
        "    Arm(name='dying', model='dying'), Arm(name='counted', model='popularity'),\n"
        "    Arm(name='neighbours', model='itemknn')))\n"
    )
    own = tuple(suites_in(file).values())
    state = tiny(suites=own, workers=2, files=(file,)).run(tmp_path / "out")
    labels = {place.key: place.arm for place in CellStore.open(tmp_path / "out").plan.places}
    failed = {labels[key]: why for key, why in state.failed.items()}
    assert "its process was ended from outside" in failed["dying"]
    for _ in range(2):  # a cell that ran beside it may have died with it, and is tried again
        state = tiny(suites=(replace(own[0], arms=own[0].arms[1:]),)).run(tmp_path / "out")
    assert (state.done, state.failed) == (2, {})


# What is stored


def test_what_is_stored_is_what_the_model_evaluates_to(tmp_path: Path) -> None:
    tiny().run(tmp_path, command="unskew bench tiny")
    results = CellStore.open(tmp_path)
    assert asdict(results.plan.about) == {"command": "unskew bench tiny", "smoke": True}
    split = unskew.split(unskew.simulate(**vars(SMOKE_WORLD)).log)
    cells, _ = plan_cells([TINY], [WORLD], seeds=1, smoke=True)
    for key, cell in cells.items():
        settings = {name: cell.config[name] for name in cell.config}
        model = unskew.create_model(cell.model, settings | dict(cell.training)).fit(split)
        for test in ("ordinary", "balanced", "shown", "randomised", "weighted"):
            expected = model.evaluate(split, test=test, sample=cell.sample)
            found = evaluation_of(results, key, f"{test}, full")
            np.testing.assert_array_equal(found.user, expected.user)
            np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-6)
            for metric in ("ndcg@5", "ndcg@10", "ndcg@20", "hr@5", "hr@10", "hr@20"):
                np.testing.assert_allclose(found.values[metric], expected.values[metric], atol=1e-12)
            stored = results.cells[key].tests[f"{test}, full"]
            assert stored.metrics["ndcg@10"] == pytest.approx(expected.mean("ndcg@10"), abs=1e-5)
            assert stored.chosen_by == expected.about["weights_chosen_by"]
            assert stored.segments["item"]["known"][0] == expected.by_segment()["item"]["known"]["units"]
        ground_truth = unskew.world.ground_truth.evaluate_against_ground_truth(
            model, unskew.simulate(**vars(SMOKE_WORLD)), split, 500, select_by="shown"
        )
        assert results.cells[key].tests["ground-truth, full"].chosen_by == "shown"
        found = evaluation_of(results, key, "ground-truth, full")
        np.testing.assert_allclose(found.values["ndcg@10"], ground_truth.values["ndcg@10"], atol=1e-3)


def test_units_are_small_and_exact() -> None:
    ranks = np.array([1, 1.5, 2, 20, 20.5, 21, 500])
    text = encode((np.minimum(ranks, 21) * 2).astype(np.uint8))
    values = unpack_values({"rank": text})
    assert values["hr@20"].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert values["ndcg@10"][1] == pytest.approx(1 / np.log2(2.5))
    many = np.full(5000, 42, np.uint8)
    assert len(encode(many)) < 100
    np.testing.assert_array_equal(decode(encode(many), np.uint8), many)


def test_the_debias_is_measured_where_there_is_one(tmp_path: Path) -> None:
    suite = replace(TINY, arms=[Arm(name="pulse", model="pulse"), Arm(name="counted", model="popularity")])
    tiny(suites=(suite,)).run(tmp_path)
    pulse, counted = figures(tmp_path).values()
    assert counted["strengths"] == {}
    curve = pulse["strengths"]["balanced, full"]
    assert list(curve) == ["0", "0.25", "0.5", "0.75", "1"]
    found = pulse["tests"]["balanced, full"]
    assert curve[f"{found['debias']:g}"] == found["metrics"]["ndcg@10"]
    assert len(set(curve.values())) > 2


def test_health_is_kept_of_models_with_propensities(tmp_path: Path) -> None:
    suite = replace(TINY, arms=[Arm(name="DEPS", model="deps"), Arm(name="counted", model="popularity")])
    tiny(suites=(suite,)).run(tmp_path)
    health = {line["model"]: line["health"] for line in figures(tmp_path).values()}
    assert health["popularity"] is None
    assert 0 < health["deps"]["effective_fraction"] <= 1
    assert health["deps"]["clip"] == 0.05
    assert health["deps"]["verdict"].endswith(".")
    assert WeightVerdict(health["deps"]["kind"]).sentence[:20] == health["deps"]["verdict"][:20]


def test_windows_along_the_time_line(tmp_path: Path) -> None:
    arms = [
        Arm(name=refresh, model="popularity", rolling=Rolling(refresh=refresh, window="2h", windows=4))
        for refresh in ("never", "2h")
    ]
    tiny(suites=(replace(TINY, arms=arms),)).run(tmp_path)
    never, daily = figures(tmp_path).values()
    assert len(never["windows"]) == len(daily["windows"]) == 2  # what `smoke` leaves of four
    assert len({window["trained_until"] for window in never["windows"]}) == 1
    assert len({window["trained_until"] for window in daily["windows"]}) == 2
    assert never["tests"]["ordinary, full"]["units"] == daily["tests"]["ordinary, full"]["units"]


# The folder


def test_a_last_line_that_was_cut_off_is_removed_and_its_cell_done_again(tmp_path: Path) -> None:
    tiny().run(tmp_path)
    whole = figures(tmp_path)
    path = tmp_path / "cells.jsonl"
    path.write_bytes(path.read_bytes()[:-200])
    assert len(CellStore.open(tmp_path).cells) == 2
    assert tiny().run(tmp_path).done == 3
    assert figures(tmp_path) == whole
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0][:50], *lines[1:]]) + "\n")
    with pytest.raises(BadInput, match=r"cells.jsonl, line 1: is damaged"):
        CellStore.open(tmp_path)


def test_a_cell_of_another_format_is_measured_again(tmp_path: Path) -> None:
    tiny().run(tmp_path)
    path = tmp_path / "cells.jsonl"
    path.write_text(path.read_text().replace('"format":1', '"format":0', 1))
    assert len(CellStore.open(tmp_path).cells) == 2


def test_one_bench_at_a_time_and_only_folders_of_benches(tmp_path: Path) -> None:
    tiny().run(tmp_path / "a")
    results = CellStore.open(tmp_path / "a")
    results.lock()
    with pytest.raises(BadInput, match="another bench is running in this folder"):
        tiny().run(tmp_path / "a")
    results.unlock()
    tiny().run(tmp_path / "a")
    with pytest.raises(BadInput, match="not a folder of `unskew bench`"):
        CellStore.open(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot write there"):
        tiny().run(tmp_path / "file")
