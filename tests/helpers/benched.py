"""A made-up folder of `unskew bench`: as many models, data sets, seeds and tests as wanted, at once."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from unskew.api.create import create_model
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.metrics import METRICS
from unskew.experiments.bench_cell import About
from unskew.experiments.cell_store import LOWEST, CellStore, decode, encode, unpack_values
from unskew.experiments.grid import FORMAT, Placement
from unskew.experiments.results import SuiteResults
from unskew.experiments.suite import Arm, Suite

CUTS = (5, 10, 20)
PLAIN = ("ordinary, full", "balanced, full")
STRENGTHS = ("0", "0.25", "0.5", "0.75", "1")
GROUPS = {
    "user": ("known", "new"),
    "item": ("known", "new"),
    "popularity decile": tuple(str(number) for number in range(1, 11)),
    "history length": ("0", "1-4", "5-19", "20+"),
}
NOTHING = (
    "The weights do nothing: 95.0 % of the events are clipped to the same weight, so the model learns as if "
    "it had none; train again with a `--clip` well below 0.05."
)
Skill = Callable[[str, str, str], float]

SKILLS = {"DEPS": 0.0, "STAMP": -0.2, "FPMC": 0.3, "popularity": 0.1, "pulse": 0.8}
SMALL = Suite(
    name="main",
    title="DEPS and its rivals",
    question="Who is first?",
    of="Table EXP:main",
    arms=tuple(Arm(name=name, model=name.lower()) for name in SKILLS),
    rivals=("STAMP", "FPMC"),
)
TWINS = Suite(
    name="agnostic",
    title="Twins",
    question="Who lifts whom?",
    arms=(
        Arm(name="FPMC", model="fpmc"),
        Arm(name="STAMP", model="stamp"),
        Arm(name="DEPS (STAMP)", model="debiased-stamp", preset="paper", twin="STAMP"),
    ),
)


def skilled(arm: str, source: str, test: str) -> float:
    """Pulse is first, but on Beauty in the balanced test FPMC is."""
    return 1.4 if (arm, source, test) == ("FPMC", "Beauty", "balanced") else SKILLS.get(arm, 0.0)


def no_skill(arm: str, source: str, test: str) -> float:
    """All models are similar but for chance."""
    return 0.0


def benched(
    folder: Path,
    suites: Sequence[Suite],
    sources: Sequence[str] = ("MIND",),
    seeds: int = 2,
    units: int = 300,
    skill: Skill = no_skill,
    tests: Callable[[str], Sequence[str]] = lambda source: PLAIN,
    missing: Callable[[str, str, int], bool] = lambda source, arm, seed: False,
    about: Mapping[str, Any] | None = None,
    health: Mapping[str, str] | None = None,
    worlds: Mapping[str, float] | None = None,
    windows: int = 0,
    unfinished: Callable[[str, str, int], bool] = lambda source, arm, seed: False,
) -> Path:
    """Write such a folder.

    skill: how good an arm is on a data set in a test; 1 is a great deal.
    tests: the tests of a data set.
    missing: which runs are not there.
    health: the verdict on the weights of each arm that has any.
    worlds: the strength of the bias of data sets that are simulated, another world for each seed.
    windows: how many windows of a time line every run has.
    unfinished: which runs were not trained to the end.
    """
    store = CellStore(folder)
    store.lock()
    places, cells = [], {}
    for suite in suites:
        for source in sources:
            for arm in suite.arms:
                for seed in range(seeds):
                    key = f"{source}|{arm.name}|{arm.model}|{seed}"
                    places.append(
                        Placement(suite=suite.name, source=source, arm=arm.name, seed=seed, key=key)
                    )
                    if not missing(source, arm.name, seed):
                        cells[key] = source, arm, seed
    said = {"command": "unskew bench main DATA --out DIR", "smoke": False} | dict(about or {})
    store.add_to_plan(suites, places, About(**said))
    lines: list[dict[str, Any]] = []
    tested: dict[str, dict[str, Any]] = {}
    for key, (source, arm, seed) in cells.items():
        line, found = _cell(key, source, arm, seed, units, skill, tests(source), worlds or {})
        line["finished"] = not unfinished(source, arm.name, seed)
        if arm.name in (health or {}):
            line["health"] = {"clip": 0.05, "effective_fraction": 0.999, "clipped": 0.95}
            line["health"] |= {
                "spread": [0.9, 1, 1, 1, 1.1],
                "kind": "clipped",
                "verdict": dict(health or {})[arm.name],
            }
        if windows:
            line["windows"] = [
                {"start": f"2024-03-{day:02} 00:00:00", "trained_until": "", "value": 0.1 / day}
                for day in range(1, windows + 1)
            ]
        lines.append(line)
        tested |= {name: {"key": name, **of} for name, of in found.items()}
    # At once, and not line by line as a bench does: that waits for the disk each time.
    for name, each in (("cells.jsonl", lines), ("tests.jsonl", list(tested.values()))):
        (folder / name).write_text("".join(f"{json.dumps(one)}\n" for one in each))
    store.unlock()
    return folder


def small_bench(folder: Path) -> Path:
    """Two suites on two data sets with two seeds."""
    return benched(
        folder,
        [SMALL, TWINS],
        ("MIND", "Beauty"),
        skill=skilled,
        tests=lambda source: ("ordinary, full", "ordinary, uni100", "balanced, full"),
        health={"DEPS": NOTHING},
    )


def copied(folder: Path, arm: str, onto: str, exchanged: bool = False) -> None:
    """Give an arm the very results of another, seed by seed, in every test; or but for its best and its worst
    unit, which are exchanged."""
    path = folder / "cells.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = {line["key"]: line["tests"] for line in lines}
    for line in lines:
        source, name, _, seed = line["key"].split("|")
        if name == onto:
            line["tests"] = next(
                tests
                for key, tests in found.items()
                if key.startswith(f"{source}|{arm}|") and key.endswith(f"|{seed}")
            )
            if exchanged:
                line["tests"] = {name: _exchanged(found) for name, found in line["tests"].items()}
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def _exchanged(found: dict[str, Any]) -> dict[str, Any]:
    ranks = decode(found["values"]["rank"], np.uint8).copy()
    best, worst = int(ranks.argmin()), int(ranks.argmax())
    ranks[[best, worst]] = ranks[[worst, best]]
    return found | {"values": {"rank": encode(ranks)}}


def evaluation_of(store: CellStore, key: str, test: str) -> Evaluation:
    """The evaluation of a stored cell in one of its tests, unit by unit."""
    cell = store.cells[key]
    units, values = store.units[cell.tests[test].units], unpack_values(cell.tests[test].values)
    about = {"model": cell.model, "training_seed": cell.seed, "data": cell.data.hash}
    about |= {"repeats": units.repeats, "settings": cell.settings_key}
    return Evaluation(
        protocol=units.protocol,
        test=units.test,
        user=decode(units.user, np.int32).astype(np.int64),
        values={name: of for name, of in values.items() if len(of) == units.size},
        weights=decode(units.weight, np.float32).astype(np.float64),
        about=about,
    )


def alter_data(suite: SuiteResults, **changes: Any) -> None:
    """Change what all cells of a suite say of their data."""
    for cell in suite.every_cell():
        for name, value in changes.items():
            object.__setattr__(cell.data, name, value)


def block(page: str) -> dict[str, Any]:
    """Every figure of a page, as its script has them."""
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', page)
    assert found is not None
    return dict(json.loads(found[1]))


def _cell(
    key: str,
    source: str,
    arm: Arm,
    seed: int,
    units: int,
    skill: Skill,
    tests: Sequence[str],
    worlds: Mapping[str, float],
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    made = create_model(arm.model, {**arm.settings, "seed": seed}, arm.preset)
    bias, random = worlds.get(source), _random(source, arm.name, seed)
    data = f"hash of {source}" + ("" if bias is None else f" {seed}")
    line: dict[str, Any] = {"key": key, "format": FORMAT, "model": arm.model, "settings_key": arm.name}
    line |= {"config": asdict(made.config), "training": asdict(made.training)}
    line |= {"sample": units, "rolling": None, "health": None}
    line["data"] = {"name": source, "hash": data, "world": None if bias is None else {"bias": bias}}
    line["data"] |= {"rows": 50_000, "positives": 40_000, "users": 9_000, "items": 2_000, "repeats": True}
    line["data"] |= {"train_before": "2024-01-01 00:00:00", "test_from": "2024-02-01 00:00:00"}
    line["cost"] = {"cpu_s": round(float(random.uniform(1, 400)), 1), "wall_s": 1.0, "parameters": 12_345}
    line["cost"]["memory_mb"] = 500
    line["versions"] = {"unskew": "0.2.0", "torch": "2.13.0"}
    trained = arm.model not in ("popularity", "pulse-zero")
    line["records"] = [
        {"epoch": at, "stage": "train", "losses": {"loss": 1.0}, "valid": {"ordinary": _value(at, random)}}
        for at in range(1, 11 if trained else 1)
    ]
    line["tests"], stored = {}, {}
    for test in tests:
        where = f"{source} {test}" + ("" if bias is None else f" {seed}")
        line["tests"][test], stored[where] = _tested(where, source, test, arm, seed, units, skill, data)
    line["strengths"] = {
        test: {at: line["tests"][test]["metrics"]["ndcg@10"] * (1 + 0.1 * float(at)) for at in STRENGTHS}
        for test in PLAIN
        if arm.model == "pulse" and test in tests
    }
    return line, stored


def _tested(
    where: str, source: str, test: str, arm: Arm, seed: int, units: int, skill: Skill, data: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    name, protocol = test.split(", ")
    common = _random(where)
    user = common.integers(0, units // 2, units).astype(np.int32)
    weight = (common.exponential(1, units) + 0.1 if name == "balanced" else np.ones(units)).astype(np.float32)
    hard = common.normal(0, 1, units)
    noise = _random(where, arm.name, seed).normal(0, 0.5, units)
    good = skill(arm.name, source, name) + 0.02 * _random(arm.name, seed).normal() + hard + noise
    rank = np.where(good > 0.5, np.clip(np.round(20 * np.exp(0.5 - good)), 1, 20), LOWEST)
    fraction = weight / weight.sum()
    values = {f"{metric}@{cut}": METRICS[metric](rank, cut) for metric in METRICS for cut in CUTS}
    found: dict[str, Any] = {"units": where, "size": units, "whole_test": 2 * units, "left_out": {}}
    found |= {"effective_sample_size": 1 / float((fraction**2).sum()), "chosen_by": name, "debias": None}
    found |= {"interval": [0, 1], "beyond": {}, "segments": {}}
    found["metrics"] = {metric: round(float((value * fraction).sum()), 5) for metric, value in values.items()}
    found["values"] = {"rank": encode((rank * 2).astype(np.uint8))}
    if name == "ground-truth":
        found["metrics"] = {"ndcg@10": found["metrics"]["ndcg@10"], "beyond": -0.1}
        kept = {"ndcg@10": values["ndcg@10"], "beyond": np.full(units, -0.1)}
        found["values"] = {metric: encode(value.astype(np.float16)) for metric, value in kept.items()}
    elif protocol == "full":
        found["segments"] = {
            kind: {
                group: [units // len(groups), round(float(values["ndcg@10"][at :: len(groups)].mean()), 5)]
                for at, group in enumerate(groups)
            }
            for kind, groups in GROUPS.items()
        }
    about = {"test": name, "protocol": protocol, "size": units, "repeats": "left out", "data": data}
    return found, about | {"user": encode(user), "weight": encode(weight)}


def _value(at: int, random: np.random.Generator) -> float:
    return round(0.1 - 0.08 / at + float(random.normal(0, 0.004)), 5)


def _random(*names: object) -> np.random.Generator:
    return np.random.default_rng([ord(letter) for letter in " ".join(map(str, names))])
