"""How a bench was made: its data sets, the size of its tests, the settings and the command of every arm,
what its propensities do, and what is missing."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from unskew.api.create import create_model
from unskew.core import formatting
from unskew.core.errors import BadInput
from unskew.diagnostics.propensity.verdicts import WeightVerdict
from unskew.experiments.results import Findings, SuiteFindings
from unskew.experiments.suite import SAMPLE
from unskew.experiments.table import NONE, Entry, Sheet
from unskew.experiments.tables import called
from unskew.world.equations import Simulation

SHORT = 12  # letters of a hash that a table shows; the foot of the page has all
MOST_MISSING = 40  # missing runs that are listed; the sentence above them counts all


def bench_command(findings: Findings, suite: SuiteFindings | None, name: str) -> str:
    """The command that makes a suite: the one that made it, if that is known, or else one like it. DATA are
    the folders of the data sets."""
    words = shlex.split(findings.command)
    if suite is not None and words[:2] == ["unskew", "bench"] and words[2:3] in ([name], ["all"]):
        return findings.command
    world = suite is not None and suite.some_cell(suite.sources[0])["data"]["world"] is not None
    parts = ["unskew", "bench", name, *([] if world else ["DATA"]), "--out", str(findings.folder)]
    return shlex.join([*parts, "--smoke"] if findings.smoke else parts)


def claim_command(findings: Findings, name: str) -> str:
    """The command that measures what a claim is about."""
    suite = findings.suite(name)
    asked = ["--suite", suite.file] if suite is not None and suite.file else [name]
    parts = ["unskew", "bench", *asked, "DATA", "--out", str(findings.folder)]
    return shlex.join([*parts, "--smoke"] if findings.smoke else parts)


def data_sheet(findings: Findings) -> Sheet:
    """The data sets, each once for every hash that its name had."""
    rows: dict[tuple[str, str], list[Entry]] = {}
    for suite in findings.suites:
        for cell in suite.every_cell():
            data = cell["data"]
            if (data["name"], data["hash"]) not in rows:
                sizes = (formatting.count(data[name]) for name in ("rows", "positives", "users", "items"))
                rows[data["name"], data["hash"]] = [
                    Entry(data["name"]),
                    *map(Entry, sizes),
                    Entry(data["train_before"]),
                    Entry(data["test_from"]),
                    Entry("candidates" if data["repeats"] else "left out"),
                    Entry(data["hash"][:SHORT]),
                    Entry(_simulated(data["world"])),
                ]
    head = ("data", "rows", "positives", "users", "items", "trained before", "tested from", "own past items")
    caption = "The data sets. Validation lies between the two borders; equal times are never parted."
    return Sheet((*head, "hash", "simulated by"), list(rows.values()), caption, text=(0, 5, 6, 7, 8, 9))


def tests_sheet(findings: Findings) -> Sheet:
    """How many positives each test ranks, and how many equally weighted ones would be as informative."""
    rows: dict[tuple[str, str], list[Entry]] = {}
    for suite in findings.suites:
        for source in suite.sources:
            for by in suite.evaluation_specs:
                found = suite.some_cell(source)["tests"].get(by.key)
                if found is None or (source, by.key) in rows:
                    continue
                whole = found["whole_test"]
                rows[source, by.key] = [
                    Entry(source),
                    Entry(called(by)),
                    Entry(formatting.count(found["size"])),
                    Entry(NONE if whole is None else formatting.count(whole)),
                    Entry(f"{found['effective_sample_size']:,.0f}"),
                    Entry(str(found["chosen_by"] or NONE)),
                ]
    head = ("data", "test", "ranked", "of", "effective", "weights chosen by")
    caption = "The tests. Positives are ranked; users under `authors`, impressions against the ground truth."
    return Sheet(head, list(rows.values()), caption, text=(0, 1, 5))


def runs_sheet(suite: SuiteFindings) -> Sheet:
    """The card of every arm: how it differs from its model's defaults, and how to train it alone."""
    rows = []
    for arm in suite.arms:
        found = [
            (source, seed, cell)
            for source in suite.sources
            for seed, cell in suite.cells.get((source, arm.name), {}).items()
        ]
        if not found:
            rows.append([Entry(arm.name), Entry(arm.model), *(Entry(NONE) for _ in range(6))])
            continue
        cell = found[0][2]
        settings = changed(cell)
        said = ", ".join(f"{name} {value}" for name, value in settings.items())
        if cell["rolling"] is not None:
            said = ", ".join([*filter(None, [said]), f"trained again: {cell['rolling']['refresh']}"])
        cost = {name: fmean(one["cost"][name] for _, _, one in found) for name in ("cpu_s", "memory_mb")}
        rows.append(
            [
                Entry(arm.name),
                Entry(arm.model),
                Entry(said or "defaults"),
                Entry(", ".join(str(seed) for seed in sorted({seed for _, seed, _ in found}))),
                Entry(f"{cell['cost']['parameters']:,}"),
                Entry(f"{cost['cpu_s']:,.1f}"),
                Entry(f"{cost['memory_mb']:,.0f}"),
                Entry(train_command(arm.model, settings, cell["training"]["seed"])),
            ]
        )
    head = (
        "model",
        "name",
        "what differs from its defaults",
        "seeds",
        "parameters",
        "CPU-s",
        "MB",
        "one run",
    )
    caption = (
        f"{suite.title}: the card of every model. CPU-seconds of training and memory of the process are "
        "means over data sets and seeds; parameters are those on the first data set. DATA is the folder of a "
        "data set."
    )
    return Sheet(head, rows, caption, text=(0, 1, 2, 3, 7))


def changed(cell: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run that differ from its model's defaults, apart from the seed; all of them, if the
    model is not known any more."""
    stored = dict(_flat(cell["config"])) | dict(cell["training"])
    defaults: dict[str, Any] = {}
    try:
        made = create_model(cell["model"])
    except BadInput:
        pass
    else:  # a stored tuple is a list
        defaults = json.loads(json.dumps(dict(_flat(asdict(made.config))) | asdict(made.training)))
    return {
        name: value
        for name, value in stored.items()
        if name != "seed" and (name not in defaults or defaults[name] != value)
    }


def train_command(model: str, settings: Mapping[str, Any], seed: int) -> str:
    """The command that trains one run."""
    return shlex.join(
        ["unskew", "train", "DATA", "--out", "RUN", "--model", model, *flags({"seed": seed, **settings})]
    )


def flags(settings: Mapping[str, Any]) -> Iterator[str]:
    """Settings as flags of the command line."""
    for name, value in settings.items():
        yield f"--{name.replace('_', '-')}"
        yield from map(str, value) if isinstance(value, list | tuple) else [str(value)]


def health_sheet(findings: Findings) -> Sheet | None:
    """What the propensities of each model do to its loss; None if no model has any."""
    rows: dict[tuple[str, str], list[Entry]] = {}
    for suite in findings.suites:
        for source in suite.sources:
            for arm in suite.arms:
                cells = [cell for cell in suite.cells.get((source, arm.name), {}).values() if cell["health"]]
                if not cells or (source, cells[0]["settings_key"]) in rows:
                    continue
                each = [cell["health"] for cell in cells]
                spread = each[0].get("spread")
                rows[source, cells[0]["settings_key"]] = [
                    Entry(arm.name),
                    Entry(source),
                    Entry(f"{each[0]['clip']:g}"),
                    Entry(_share(each, "effective_fraction")),
                    Entry(_share(each, "clipped")),
                    Entry(NONE if not spread else f"{spread[0]:.2f} to {spread[-1]:.2f}"),
                    Entry(each[0]["verdict"].partition(";")[0].replace("`", "")),
                ]
    head = ("model", "data", "clip M", "effective", "clipped", "weights", "what they do")
    caption = (
        "What propensities do to the loss. Effective: how much of the training events is left as an "
        "effective sample; 100 % means that all weights are the same. Weights: from the 1st to the 99th "
        "percentile, relative to their mean. Means over seeds; the words are those of the first seed."
    )
    return Sheet(head, list(rows.values()), caption, text=(0, 1, 6)) if rows else None


def idle_share(findings: Findings) -> str:
    """How many of the models with propensities have weights that do nothing, in a sentence."""
    found: dict[tuple[str, str], bool] = {}
    for suite in findings.suites:
        for (source, _), cells in suite.cells.items():
            for cell in cells.values():
                if cell["health"]:
                    idle = WeightVerdict(cell["health"]["kind"]).does_nothing
                    found.setdefault((source, cell["settings_key"]), idle)
    return f"The weights do nothing in {sum(found.values())} of {len(found)} models with propensities."


def missing_sheet(findings: Findings) -> Sheet | None:
    """The runs that are missing, those that failed first; None if there are none."""
    found = sorted(findings.missing, key=lambda one: not one.why)
    rows = [
        [
            Entry(one.arm),
            Entry(one.source),
            Entry(one.suite),
            Entry(str(one.seed)),
            Entry(one.why or "not run yet"),
        ]
        for one in found[:MOST_MISSING]
    ]
    more = f" {len(found) - MOST_MISSING} more are not listed." if len(found) > MOST_MISSING else ""
    caption = f"Places in tables without a run, and why.{more}"
    head = ("model", "data", "suite", "seed", "why")
    return Sheet(head, rows, caption, text=(0, 1, 2, 4)) if rows else None


def versions(findings: Findings) -> str:
    """The versions that the runs were made with, in a sentence."""
    found: dict[str, dict[str, None]] = {}
    for suite in findings.suites:
        for cell in suite.every_cell():
            for name, number in cell["versions"].items():
                found.setdefault(name, {})[number] = None
    return "Made with " + ", ".join(f"{name} {' and '.join(of)}" for name, of in found.items()) + "."


def sample(findings: Findings) -> int:
    """How many positives were asked to be ranked in each test."""
    return max((cell["sample"] for suite in findings.suites for cell in suite.every_cell()), default=SAMPLE)


def _simulated(world: Mapping[str, Any] | None) -> str:
    if world is None:
        return NONE
    usual = asdict(Simulation())
    given = {name: value for name, value in world.items() if usual.get(name) != value}
    return shlex.join(["unskew", "simulate", *flags(given), "--out", "DATA"])


def _share(each: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [one[name] for one in each if name in one]
    return formatting.fraction(fmean(values)) if values else NONE


def _flat(settings: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value
