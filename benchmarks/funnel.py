"""What are context events and the intervals between repeats worth to Pulse?

    python benchmarks/funnel.py run [--logs NAME ...] [--seeds 0 1]
    python benchmarks/funnel.py page

The first verb fills results/funnel.jsonl, a line per model, log and seed; what is stored is not computed
again. The second one writes a table of docs/funnel.md from it. Splits are by time (50, 20, 30); validation
chooses weights and debiasing strength; the test set is ranked once, 1,000 positives of each test. One thread.

    shop           `unskew simulate --kind shop`, 1,500 users, 600 items, 120 days, without bots
    Online Retail  purchases without types of events, of which many are repeats
"""

import json
import time
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch
import tyro
from cells import ROOT
from pages import replace_between
from sets import DATA

import unskew
from unskew.data.log.held_out import available_tests
from unskew.report.table import Table
from unskew.world.shop import simulate_shop

RESULTS, PAGE = ROOT / "results" / "funnel.jsonl", ROOT / "docs" / "funnel.md"
BEGIN, END = "<!-- figures: made by benchmarks/funnel.py -->", "<!-- end -->"
SHOP = {"users": 1500, "items": 600, "days": 120, "bots": 0, "seed": 0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popularity": ("popularity", {}),
    "personal": ("personal", {}),
    "pulse-zero": ("pulse-zero", {}),
    "pulse without both": ("pulse", {"reads": "targets"}),
    "pulse without types": ("pulse", {"reads": "repeats"}),
    "pulse without intervals": ("pulse", {"reads": "types"}),
    "pulse": ("pulse", {}),
}
LEARNED = {"sample": 10_000, "epochs": 60, "patience": 5}  # trained to the end
TESTS, SAMPLE = ("ordinary", "balanced", "untouched"), 1000


def log_named(name: str, data: Path) -> unskew.Log:
    """One of the logs, in memory."""
    if name == "shop":
        events = simulate_shop(**SHOP).events
        return unskew.read(events, type="event_type", target="purchase", context="view,cart")
    return unskew.read(data / "online_retail")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and test what is not stored yet."""

    logs: tuple[str, ...] = ("shop", "Online Retail")
    seeds: tuple[int, ...] = (0,)
    data: Path = DATA

    def __call__(self) -> None:
        """Go through the logs, and all models of each."""
        torch.set_num_threads(1)
        for name in self.logs:
            stored = {key: line["settings"] for key, line in lines().items()}
            cells = [(model, seed) for seed in self.seeds for model in MODELS]
            cells = [cell for cell in cells if stored.get((name, *cell)) != settings_of(cell[0])]
            split = unskew.split(log_named(name, self.data)) if cells else None
            for model, seed in cells:
                assert split is not None
                line = {"log": name, "model": model, "seed": seed} | measured(split, model, seed)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(line, flush=True)


def measured(split: unskew.Split, name: str, seed: int) -> dict[str, Any]:
    """The metrics of one model, and what it cost."""
    began, settings = time.process_time(), settings_of(name)
    model = unskew.create_model(MODELS[name][0], settings | {"seed": seed}).fit(split, show_progress=False)
    line: dict[str, Any] = {"settings": settings, "cpu": round(time.process_time() - began, 1)}
    line |= {"finished": model.is_finished}
    for test in TESTS:
        if test in available_tests(split):
            found = model.evaluate(split, test=test, sample=SAMPLE)
            line[test] = {"ndcg@10": round(found.mean("ndcg@10"), 4), "hr@10": round(found.mean("hr@10"), 4)}
            line["touched"] = found.about.get("touched") if test == "ordinary" else line["touched"]
    return line


def settings_of(name: str) -> dict[str, Any]:
    """What differs from a model's defaults."""
    kind, settings = MODELS[name]
    return settings | (LEARNED if kind == "pulse" else {})


def lines() -> dict[tuple[str, str, int], dict[str, Any]]:
    """What is stored, by log, model and seed; of two lines, the later one counts."""
    texts = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    return {(line["log"], line["model"], line["seed"]): line for line in map(json.loads, texts)}


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the table of the page."""

    def __call__(self) -> None:
        """A row per log and model: the mean over the seeds."""
        head = ("log", "model", *(f"{test}, NDCG@10 / HR@10" for test in TESTS), "epochs", "CPU-s")
        stored, rows = lines(), []
        for log, model in product(dict.fromkeys(log for log, _, _ in stored), MODELS):
            some = [line for (of, name, _), line in stored.items() if (of, name) == (log, model)]
            if some:
                cells = [_mean(some, test) for test in TESTS]
                cpu = sum(each["cpu"] for each in some) / len(some)
                rows.append((log, model, *cells, _epochs(model, some), f"{cpu:.0f}"))
        replace_between(PAGE, BEGIN, END, Table(head, rows, text=(0, 1)).markdown())


def _epochs(model: str, some: list[dict[str, Any]]) -> str:
    if MODELS[model][0] != "pulse":
        return ""
    if not all("epochs" in each["settings"] for each in some):
        return "5"
    return "to the end" if all(each["finished"] for each in some) else f"{LEARNED['epochs']}, not finished"


def _mean(some: list[dict[str, Any]], test: str) -> str:
    values = [line[test] for line in some if test in line]
    if not values:
        return ""
    return " / ".join(f"{sum(each[m] for each in values) / len(values):.4f}" for m in ("ndcg@10", "hr@10"))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
