"""Rows per CPU-second of training and evaluation, on one thread, against what the authors' code did on this
kind of machine.

    python benchmarks/train.py --data FOLDER_OR_FILE [--model deps-causal --batch-size 4096] [--seconds 20]

A row is one positive or one negative. The model: histories 50, audiences 30, width 64, 3 layers, 2 heads, 512
contexts in a batch unless said otherwise. The figures go to results/train.jsonl, and the newest of each kind
to docs/speed.md. The authors' code, measured on this kind of machine on ml-100k: unbiased 294, propensity
(AR) 412 rows and evaluation 1,184 pairs per CPU-second, 2.7 GB.
"""

import json
import resource
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro

import unskew
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import held_out
from unskew.data.log.split import Split
from unskew.evaluation.evaluate import rank
from unskew.models.base import Training, build, model_named
from unskew.models.deps import DEPS
from unskew.nn.layers import is_real
from unskew.nn.phases import Phase
from unskew.training.trainer import Trainer, rows_in

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "train.jsonl", ROOT / "docs" / "speed.md"
AUTHORS = {"unbiased": 294.0, "propensity": 412.0, "evaluation": 1184.0}


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    data: str
    """A log, as `unskew prepare` reads it; or ml-100k, read out of an installed package recbole."""
    positive: float | None = None
    time: str | None = None
    model: Literal["deps", "deps-causal"] = "deps"
    batch_size: int = 512
    """Contexts in a batch."""
    seconds: float = 20.0
    """CPU-seconds per phase."""
    rows: int = 2000
    """Test positives to rank."""


def phase_rate(trainer: Trainer, phase: Phase, seconds: float) -> tuple[float, float]:
    """Rows, and real tokens read by the transformers, per CPU-second of forward, backward and update."""
    sampler, optimizer = trainer.samplers[phase.name], trainer.optimizers[phase.name]
    trainer.model.train()
    rows = tokens = 0
    used = 0.0
    while used < seconds:
        for batch in sampler.epoch():
            started = time.process_time()
            loss = phase.loss(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            used += time.process_time() - started
            rows += rows_in(batch)
            if isinstance(batch, Batch):
                tokens += sum(int(is_real(read.ids_WL).sum()) for read in (batch.histories, batch.audiences))
            if used >= seconds:
                break
    return rows / used, tokens / used


def profile(trainer: Trainer, phase: Phase, steps: int = 6) -> dict[str, float]:
    """Fractions of the CPU time of a few steps by kind of operation; what is not listed is `else`."""
    sampler, optimizer = trainer.samplers[phase.name], trainer.optimizers[phase.name]
    batches = list(islice(sampler.epoch(), steps))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        for batch in batches:
            loss = phase.loss(batch)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
    kinds = {
        "matrix products": ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"),
        "attention": ("scaled_dot_product", "flash_attention"),
        "dropout": ("_Drop",),
        "normalisation": ("layer_norm",),
        "GRU": ("gru", "mkldnn_rnn"),
        "look-ups": ("embedding", "index", "gather", "scatter"),
        "copies and memory": ("copy_", "cat", "fill_", "zero_", "clone"),
        "element by element": (
            "add",
            "mul",
            "where",
            "relu",
            "threshold",
            "exp",
            "div",
            "sub",
            "sum",
            "masked_fill",
            "logsumexp",
        ),
        "optimizer": ("adam",),
    }
    spent = dict.fromkeys([*kinds, "else"], 0.0)
    for event in found.key_averages():
        kind = next(
            (kind for kind, names in kinds.items() if any(name in event.key for name in names)), "else"
        )
        spent[kind] += event.self_cpu_time_total
    return {
        kind: round(time / sum(spent.values()), 3)
        for kind, time in sorted(spent.items(), key=lambda pair: -pair[1])
    }


def matmul_peak() -> float:
    """GFLOP per CPU-second of the matrix products that the transformer consists of."""
    a, b = torch.randn(25_600, 64), torch.randn(64, 256)
    for _ in range(5):
        a @ b
    started = time.process_time()
    for _ in range(100):
        a @ b
    return 100 * 2 * 25_600 * 64 * 256 / (time.process_time() - started) / 1e9


def evaluation_rate(model: DEPS, split: Split, rows: int) -> float:
    chosen = held_out(split, "test", "ordinary", rows).rows
    started = time.process_time()
    rank(model.eval(), split, chosen)
    return len(chosen) * len(split.log.items) / (time.process_time() - started)


def main(settings: Benchmark) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        log = unskew.prepare(
            settings.data, Path(scratch) / "data", positive=settings.positive, time=settings.time
        )
        split = unskew.split(log)
        torch.manual_seed(0)
        config = DEPS.Config(layers=3, heads=2, inner=256, dropout=0.5)
        model = build(model_named(settings.model), split, config)
        assert isinstance(model, DEPS)
        trainer = Trainer(model, split, Training(batch_size=settings.batch_size))
        phases = {phase.name: phase for stage in trainer.stages for phase in stage.phases}
        peak = matmul_peak()
        record: dict[str, Any] = {
            "date": time.strftime("%Y-%m-%d"),
            "data": Path(settings.data).name,
            "rows": len(log),
        }
        record |= {"model": settings.model, "batch_size": settings.batch_size}
        lengths = [
            np.minimum(np.subtract(*view.before(entity, log.time)[::-1]), cut).mean()
            for view, entity, cut in ((log.histories, log.user, 50), (log.audiences, log.item, 30))
        ]
        record |= {
            "mean_history": round(float(lengths[0]), 1),
            "mean_audience": round(float(lengths[1]), 1),
            "matmul_gflops": round(peak, 1),
        }
        for name in ("unbiased", "propensity"):
            rate, tokens = phase_rate(trainer, phases[name], settings.seconds)
            # Forward and backward of a layer: 3 x 2 x 12 d^2 per token, attention and everything else not
            # counted.
            fraction = (
                tokens * config.layers * 3 * 2 * 12 * config.width**2 / 1e9 / peak
                if name == "unbiased"
                else None
            )
            record |= {name: round(rate, 1), f"{name}_ratio": round(rate / AUTHORS[name], 1)}
            record |= (
                {"tokens_per_cpu_s": round(tokens), "share_of_matmul_peak": round(fraction, 3)}
                if fraction
                else {}
            )
        record["unbiased_profile"] = profile(trainer, phases["unbiased"])
        pairs = evaluation_rate(model, split, settings.rows)
        record |= {
            "evaluation_pairs": round(pairs),
            "evaluation_ratio": round(pairs / AUTHORS["evaluation"], 1),
        }
        record["peak_gb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
    print(json.dumps(record, indent=1))
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    PAGE.write_text(page(), encoding="utf-8")


HEAD = """# The training speed of DEPS

This page reports how fast DEPS is trained and evaluated. It is generated by `python benchmarks/train.py
--data FILE [--model deps-causal --batch-size 4096]` from `results/train.jsonl`, with the newest run of each
kind on one thread.

The phases report rows per CPU-second, where a row is one positive or one negative, and the time contains
the forward pass, the backward pass and the update. The evaluation reports pairs per CPU-second. The numbers
in brackets are ratios to the authors' code on ml-100k on this kind of machine (unbiased 294 rows,
propensity 412 rows, evaluation 1,184 pairs per CPU-second, 2.7 GB). The model has width 64, 3 layers and 2
heads, histories of up to 50 items and audiences of up to 30 users. *of the limit* is the number of
operations per second that the matrix products of the transformer layers need, as a fraction of what this
machine reaches if it computes such products only. The machine is shared, so results vary by a fifth.

`deps` is the paper's model. It is bidirectional, so it has to read every prefix of a sequence separately,
and the number of tokens determines the cost. `deps-causal` reads each sequence once for all of its
prefixes. [The results](results.md) report how well it ranks."""


def page() -> str:
    newest = {}
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        record = {"model": "deps", "batch_size": 512} | json.loads(line)
        newest[record["data"], record["model"], record["batch_size"]] = record
    rows = [
        "| data | model | contexts in a batch | unbiased phase | propensity phase | evaluation, pairs | of "
        "the limit | GB |"
    ]
    rows.append("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    fractions = []
    for (data, model, batch_size), record in newest.items():
        rates = [
            f"{record[name]:,.0f} ({record[f'{name}_ratio']:.1f}x)" for name in ("unbiased", "propensity")
        ]
        rates.append(f"{record['evaluation_pairs']:,} ({record['evaluation_ratio']:.0f}x)")
        cells = [
            data,
            model,
            f"{batch_size:,}",
            *rates,
            f"{record['share_of_matmul_peak']:.0%}",
            f"{record['peak_gb']:.1f}",
        ]
        rows.append("| " + " | ".join(cells) + " |")
        if "unbiased_profile" in record:
            parts = ", ".join(
                f"{kind} {fraction:.0%}"
                for kind, fraction in record["unbiased_profile"].items()
                if fraction >= 0.01
            )
            fractions.append(f"- {model} on {data}, {batch_size:,} contexts: {parts}.")
    return (
        HEAD
        + "\n"
        + "\n".join(rows)
        + "\n\nThe time of the unbiased phase is spent on:\n\n"
        + "\n".join(fractions)
        + "\n"
    )


if __name__ == "__main__":
    main(tyro.cli(Benchmark, description=__doc__))
