"""What an update costs against training again, in accuracy and in CPU-seconds.

    python benchmarks/update.py DATA            measures, stores results/update.jsonl and writes the table of
                                                docs/updating.md
    python benchmarks/update.py --page          writes the table only

The positives of a prepared log are cut at two times. The first 70 % are the log of a run; the next 20 % go
through a real store; the last 10 % are the later window, by which all are ranked, on the same rows and with
the same log. `as it is`: the run, which reads the new events and learns nothing. `update`: `unskew update`.
`update, no replay`: the same with `--replay 0`. `retrained`: trained on the first 90 %, whose newest two
ninths choose the number of epochs, and then trained again on all of it with that number (`--refit`). The run
itself was made in this way, too. One thread.
"""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import tyro

import unskew
from unskew.api.create import create_model, load
from unskew.api.model import Model
from unskew.evaluation.evaluate import Evaluation
from unskew.evaluation.significance import compare, interval
from unskew.serve import Event, open_store
from unskew.update import Updating
from unskew.update.update import update

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "update.jsonl", ROOT / "docs" / "updating.md"
BEGIN, END = "<!-- benchmarks/update.py -->", "<!-- the end of it -->"
MODELS = ("pulse", "sasrec")
SHARES = (0.7, 0.9)
SEEDS = (0,)
METRIC = "ndcg@10"
SAMPLE = 3000  # positives of the later window that are ranked
BEST = (7 / 9 * 100, 2 / 9 * 100, 0)  # of what is learned from, the newest chooses the number of epochs


def _cpu(job: Callable[[], Any]) -> tuple[Any, float]:
    started = time.process_time()
    return job(), time.process_time() - started


def _before(log: unskew.Log, end: int) -> pa.Table:
    return log.table().filter(pa.array(np.asarray(log.time < end)))


def _retrain(name: str, log: unskew.Log, seed: int, folder: Path) -> Model:
    """A model whose epochs were chosen on the newest part of a log, and which was trained on all of it."""
    made = create_model(name)
    made.training = replace(made.training, seed=seed)
    chosen = made.fit(unskew.split(log, fractions=BEST), show_progress=False)
    return chosen.refit(log, folder, show_progress=False)


def _ranked(model: Model, whole: unskew.Log, start: int) -> Evaluation:
    """The later window, with everything before each request known."""
    cut = unskew.split(
        whole, fractions=(100, 0, 0), repeats="keep" if model.trained.split.repeats else "hide"
    )
    found = model.evaluate(replace(cut, train_end=start, valid_end=start), sample=SAMPLE, show_progress=False)
    found.about["data"] = "the whole log"  # and not what the model was trained on, in which they differ
    return found


def measured(data: Path, name: str, seed: int, folder: Path) -> list[dict[str, Any]]:
    """All ways with one model and one seed."""
    opened = unskew.Log.open(data)
    whole = unskew.read(opened.table().slice(0, opened.positives))
    ordered = np.sort(whole.time)
    first, second = (int(ordered[int(fraction * len(ordered))]) for fraction in SHARES)
    unskew.prepare(_before(whole, first), folder / "data")
    events = [row for row in whole.table().to_pylist() if first <= row["time"] < second]
    with open_store(folder / "events.db") as store:
        store.append(
            Event(f"e{place}", str(row["user"]), str(row["item"]), "click", row["time"] * 10**6)
            for place, row in enumerate(sorted(events, key=lambda row: row["time"]))
        )
    _retrain(name, unskew.Log.open(folder / "data"), seed, folder / "run")
    # The later window is behind what any of them has learned from, and is known to none.
    ways: dict[str, tuple[Callable[[], Model], float]] = {"as it is": (lambda: load(folder / "run"), 0.0)}
    outcomes = {}
    for way, replay in (("update", 0.2), ("update, no replay", 0.0)):
        out = folder / way
        settings = Updating(replay=replay)
        places = folder / "run", folder / "events.db", out
        outcomes[way], cost = _cpu(partial(update, *places, settings, force=True, show_progress=False))
        ways[way] = (partial(load, out), cost)
    everything = unskew.read(_before(whole, second))
    _, cost = _cpu(lambda: _retrain(name, everything, seed, folder / "retrained"))
    ways["retrained"] = (lambda: load(folder / "retrained"), cost)
    found = {way: _ranked(make(), whole, second) for way, (make, _) in ways.items()}
    lines = []
    for way, each in found.items():
        against = compare(each, found["retrained"], METRIC)
        line = {"model": name, "seed": seed, "way": way, METRIC: each.mean(METRIC)}
        line |= {"interval": interval(each, METRIC), "difference": against.difference}
        line |= {"difference_interval": [against.low, against.high], "cpu_s": round(ways[way][1], 1)}
        line |= {"positives": len(each.user), "events": len(events), "data": data.name}
        if way in outcomes:
            line |= {"verdict": outcomes[way].verdict, "window": outcomes[way].document()["window"]}
        lines.append(line)
        print(line, flush=True)
    return lines


def page(lines: list[dict[str, Any]]) -> str:
    """The table."""
    rows = []
    for line in lines:
        low, high = line["difference_interval"]
        against = "" if line["way"] == "retrained" else f"{line['difference']:+.4f} [{low:+.4f}, {high:+.4f}]"
        cost = "" if line["way"] == "as it is" else f"{line['cpu_s']:,.0f}"
        window = line.get("window")
        verdict = "" if window is None else "no" if window["interval"][1] < 0 else "yes"
        cells = line["model"], line["way"], f"{line[METRIC]:.4f}", against, cost, verdict
        rows.append(f"| {' | '.join(cells)} |")
    some, seeds = lines[0], ", ".join(sorted({str(line["seed"]) for line in lines}))
    return f"""Generated by `python benchmarks/update.py DATA` from
[results/update.jsonl](../results/update.jsonl): {some["data"]}, whose positives are cut at two times;
{some["events"]:,} new positives through a store; NDCG@10 of {some["positives"]:,} positives of the later
window; training seed {seeds}. *Against training again*: the difference, with its 95 % interval over users.
*CPU-seconds*: on one thread, all of an update (reading, training, both rankings, training on the window), or
both trainings again. *Published*: whether the rule would have.

| model | way | NDCG@10 | against training again | CPU-seconds | published |
| --- | --- | ---: | ---: | ---: | ---: |
""" + "\n".join(rows)


@dataclass(frozen=True, kw_only=True)
class Main:
    """Measure, or only write the table."""

    data: tyro.conf.Positional[Path | None] = None
    """A prepared folder, with times in seconds."""
    page: bool = False
    """Write the table only, from what was measured."""
    models: tuple[str, ...] = MODELS
    seeds: tuple[int, ...] = SEEDS

    def run(self) -> None:
        torch.set_num_threads(1)
        if not self.page:
            assert self.data is not None, "expected DATA, a prepared folder"
            lines = []
            for name in self.models:
                for seed in self.seeds:
                    with tempfile.TemporaryDirectory() as folder:
                        lines += measured(self.data, name, seed, Path(folder))
            RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        stored = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        head, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        _, _, tail = rest.partition(END)
        PAGE.write_text(f"{head}{BEGIN}\n{page(stored)}\n{END}{tail}", encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(Main).run()
