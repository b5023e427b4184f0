"""What a training step costs with 10^4 to 10^7 items: before and after gradients of rows.

    python benchmarks/vocabulary.py            # measures, and appends to results/vocabulary.jsonl
    python benchmarks/vocabulary.py --table    # writes the table of docs/distributed.md again

`before` is what `auto` did until `softmax` was a setting: the full softmax up to 100,000 ids and a sampled
one above, with gradients and Adam over the whole table. `after` is what it does now, and `sampled` is that
setting. SASRec reads 128 histories of 20 items; `deps` is the loss of masked ids of DEPS. The times are
processor times of one thread, the median of some steps, with loss, gradients, clipping and Adam.
"""

import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from unskew.core.config import Softmax
from unskew.data.batches.batch import SequenceBatch
from unskew.data.log.clock import Clock
from unskew.data.log.split import Ids, Known
from unskew.data.log.views import PAD
from unskew.models.base import MODELS
from unskew.nn.layers import reseed
from unskew.nn.phases import Phase
from unskew.nn.vocabulary import clip_gradients, softmax_of

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "vocabulary.jsonl", ROOT / "docs" / "distributed.md"
SIZES = (10**4, 10**5, 10**6, 10**7)
ROWS, LENGTH, WIDTH, STEPS = 128, 20, 32, 3
Way = Literal["before", "after", "sampled"]
MOST_BEFORE = 10**6  # four dense tables of 10^7 rows take 5 GB
MARKS = "<!-- made by benchmarks/vocabulary.py -->", "<!-- end -->"


def batch(items: int) -> SequenceBatch:
    """Histories of random items, and nothing else."""
    ids = torch.randint(items, (ROWS, LENGTH))
    place = torch.arange(LENGTH).expand(ROWS, -1)
    nothing = torch.full((0, 0), PAD)
    return SequenceBatch(
        user_B=torch.arange(ROWS),
        items_BL=ids,
        time_BL=place,
        event_BL=place,
        past_BL=place,
        target_BL=torch.ones_like(ids, dtype=torch.bool),
        item_B=torch.zeros(0, dtype=torch.int64),
        users_BM=nothing,
        users_time_BM=nothing,
        users_event_BM=nothing,
        users_past_BM=nothing,
    )


def network_of(model: str, items: int) -> Phase:
    """The phase that is measured, of a network for so many items."""
    known = Known(Ids(ROWS), Ids(items), Clock(1))
    kind = MODELS[model]
    network = kind(known, replace(kind.Config(), width=WIDTH, history=LENGTH)).train()  # type: ignore[call-arg]
    phases = {phase.name: phase for stage in network.stages(1) for phase in stage.phases}
    return phases["masked" if model == "deps" else "next item"]


def measure(model: str, items: int, way: Way) -> dict[str, Any]:
    """The median processor time of a step, in milliseconds."""
    torch.manual_seed(0)
    phase = network_of(model, items)
    parameters = list(phase.parameters())
    optimizer = phase.optimizer(parameters, 1e-3, 0.0)
    kind: Softmax = "sampled" if way == "sampled" else "auto"
    times = []
    for step in range(STEPS + 1):
        rows = batch(items)
        reseed(0, step)
        begun = time.process_time()
        with softmax_of(kind, by_rows=way != "before"):
            optimizer.zero_grad(set_to_none=True)
            loss: Tensor = phase.loss(rows)
            loss.backward()
        clip_gradients(parameters, 5.0)
        optimizer.step()
        times.append(1000 * (time.process_time() - begun))
    milliseconds = round(statistics.median(times[1:]), 1)
    return {"model": model, "items": items, "way": way, "ms": milliseconds, "width": WIDTH, "rows": ROWS}


def table(cells: list[dict[str, Any]]) -> str:
    """The milliseconds of a step, by the number of items."""
    newest = {(cell["model"], cell["items"], cell["way"]): cell["ms"] for cell in cells}
    ways: tuple[Way, ...] = ("before", "after", "sampled")
    heads = [f"{model}, {way}" for model in ("sasrec", "deps") for way in ways]
    lines = ["| items | " + " | ".join(heads) + " |", "| ---: |" + " ---: |" * len(heads)]
    for items in SIZES:
        values = [newest.get((model, items, way)) for model in ("sasrec", "deps") for way in ways]
        shown = ("-" if value is None else f"{value:,.0f}" for value in values)
        lines.append(f"| {items:,} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def main() -> None:
    if "--table" in sys.argv:
        cells = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        page = PAGE.read_text(encoding="utf-8")
        before, rest = page.split(MARKS[0])
        after = rest.split(MARKS[1])[1]
        PAGE.write_text(f"{before}{MARKS[0]}\n{table(cells)}\n{MARKS[1]}{after}", encoding="utf-8")
        return
    torch.set_num_threads(1)
    for items in SIZES:
        for model in ("sasrec", "deps"):
            for way in ("before", "after", "sampled"):
                if way == "before" and items > MOST_BEFORE:
                    continue
                cell = measure(model, items, way)
                print(cell, flush=True)
                with RESULTS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(cell) + "\n")


if __name__ == "__main__":
    main()
