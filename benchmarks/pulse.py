"""What Pulse costs, and what its debiasing strength does.

    python benchmarks/pulse.py cost [--events N ...]    training, and a request: results/pulse.jsonl
    python benchmarks/pulse.py debias [--sets NAME ...]   real logs at nine strengths: results/debias.jsonl
    python benchmarks/pulse.py page                     docs/pulse.md and docs/debias.svg from what is stored

One thread; CPU-seconds, because other work may share the machine. What is measured replaces what was stored
of the same log.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
import tyro
from sets import DATA, SETS, split_of

import unskew
from unskew.data.batches.batch import batch_of_rows, contexts
from unskew.data.log.held_out import held_out
from unskew.evaluation.evaluate import evaluation, rank_each
from unskew.evaluation.significance import interval
from unskew.models.base import Training, build
from unskew.models.pulse import model as pulse
from unskew.models.pulse.model import Pulse, PulseSampler, PulseZero
from unskew.models.pulse.neighbours import Neighbourhood
from unskew.models.pulse.scoring import PulseCatalog
from unskew.models.pulse.signals import BLOCK, Signals
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker
from unskew.report import charts
from unskew.report.charts import COLOURS, INK, Lines, picture
from unskew.report.table import Table
from unskew.training.trainer import Trainer

ROOT = Path(__file__).parents[1]
METRIC = "ndcg@10"
PAGE, PICTURE = ROOT / "docs" / "pulse.md", ROOT / "docs" / "debias.svg"
COST, DEBIAS = ROOT / "results" / "pulse.jsonl", ROOT / "results" / "debias.jsonl"
EVENTS = (100_000, 1_000_000, 10_000_000)
EVENTS_OF_ITEM, EVENTS_OF_USER, YEAR = 40, 10, 365 * 86_400
MANY, FEW = 100_000, 200  # from so many items on, so few validation rows are ranked, and the cost is scaled
ITEMS, CALLS = 100_000, 200  # of the request
STRENGTHS = tuple(step / 8 for step in range(9))
SAMPLE = 2000  # test positives of each set, the same at every debias; their weights come from the whole test


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Measure training on made-up logs, and a request."""

    events: tuple[int, ...] = EVENTS
    """The sizes of the logs that it is trained on."""
    request: bool = True
    """Measure a request, too."""

    def __call__(self) -> None:
        torch.set_num_threads(1)
        for events in self.events:
            _store(COST, "what", {"what": f"training, {events}", **trained(made_up(events))})
        if self.request:
            _store(COST, "what", {"what": "request", **requested(made_up(10 * ITEMS, ITEMS))})


def made_up(events: int, items: int = 0) -> unskew.Log:
    """A year. Every item is born once and is taken more and more often from then on; a few items and a few
    users have most of the events (Zipf)."""
    random = np.random.default_rng(0)
    items, users = items or events // EVENTS_OF_ITEM, events // EVENTS_OF_USER
    born = np.sort(random.random(items)) * 0.9
    taken = random.permutation(items)[_zipf(random, items, 1.0, events - items)]
    when = born[taken] + (1 - born[taken]) * np.sqrt(random.random(len(taken)))
    user = _zipf(random, users, 0.8, events)
    clock = 1_600_000_000 + (np.concatenate([born, when]) * YEAR).astype(np.int64)
    return unskew.read(
        pa.table({"user": user, "item": np.concatenate([np.arange(items), taken]), "time": clock})
    )


def _zipf(random: np.random.Generator, size: int, exponent: float, draws: int) -> Any:
    fractions = np.cumsum((np.arange(size) + 10.0) ** -exponent)
    return np.searchsorted(fractions, random.random(draws) * fractions[-1])


def trained(log: unskew.Log) -> dict[str, Any]:
    """CPU-seconds of a training with all defaults, by what they are spent on."""
    split = unskew.split(log, repeats="hide")
    spent: dict[str, float] = {}
    network = Pulse(split.known, Pulse.Config())
    network.adapt_to_log(split)
    signals = network.signals(log)

    def once() -> None:
        signals.of_requests(contexts(log, [0], [log.now], network.history))
        signals.of_items(np.zeros(1, np.int64), np.array([log.now]))

    rows = min(FEW if len(log.items) > MANY else Training.valid_examples, Training.valid_examples)
    with _watched(spent, "once", Pulse, "measure"):
        spent["counts"] = _cpu(once)
        network.fit_statistics(split)
        trainer = Trainer(network, split, Training(**Pulse.recipe, valid_examples=rows))
    (sampler,) = trainer.samplers.values()
    assert isinstance(sampler, PulseSampler)
    with (
        _watched(spent, "negatives", pulse, "with_negatives"),
        _watched(spent, "walks", Signals, "of_requests"),
    ):
        spent["read"] = _cpu(lambda: sampler._read)
    walked = _walked(network, log, sampler.rows)
    with _watched(spent, "validation", Trainer, "_validate"):
        spent["run"] = _cpu(trainer.run)
    scale = Training.valid_examples / rows
    found = {
        "events": len(log),
        "items": len(log.items),
        "rows": len(sampler.rows),
        "neighbour_events": walked,
        "epochs": trainer.progress.step // len(sampler),
        "valid_examples": rows,
        "counts_s": spent["counts"],
        "measure_s": spent["once"],
        "negatives_s": spent["negatives"],
        "neighbours_s": spent["walks"],
        "signals_s": spent["read"] - spent["walks"] - spent["negatives"],
        "gradients_s": spent["run"] - spent["validation"],
        "validation_s": spent["validation"] * scale,
    }
    found["total_s"] = sum(value for name, value in found.items() if name.endswith("_s"))
    print(found, flush=True)
    return found


def _walked(network: Pulse, log: unskew.Log, rows: Any) -> float:
    """How many events neighbours give, on average over some training rows."""
    some = rows[:: max(len(rows) // BLOCK, 1)][:BLOCK]
    joined = Neighbourhood._joined
    with patch.object(Neighbourhood, "_joined", autospec=True, side_effect=joined) as watched:
        network.signals(log).of_requests(batch_of_rows(log, some, network.history, 0))
    return sum(len(part[0]) for call in watched.call_args_list for part in call.args[1:]) / len(some)


def requested(log: unskew.Log) -> dict[str, Any]:
    """CPU-milliseconds of a request for one user, whose catalogue is kept, beside a bare matrix product."""
    network = build(PulseZero, unskew.split(log, repeats="hide"), PulseZero.Config()).eval()
    ranker, options = Ranker(network, log), RecommendOptions(k=10)
    chosen = np.random.default_rng(1).choice(log.user, CALLS)
    users = log.users.of(chosen).to_pylist()
    first = _cpu(lambda: ranker.for_users([users[0]], options))
    one, all_ = torch.randn(1, network.config.hidden), torch.randn(network.config.hidden, len(log.items))
    calls = []
    for user in users:
        spent: dict[str, float] = {}
        with (
            _watched(spent, "scores", PulseCatalog, "scores_at_strengths"),
            _watched(spent, "neighbours", Signals, "of_requests"),
        ):
            whole = _cpu(partial(ranker.for_users, [user], options))
        bare = _cpu(lambda: one @ all_)
        calls.append((whole, spent["neighbours"], spent["scores"] - spent["neighbours"], bare))
    found = dict(zip(("whole", "neighbours", "scoring", "bare"), zip(*calls, strict=True), strict=True))
    medians = {f"{name}_ms": 1000 * statistics.median(values) for name, values in found.items()}
    ratio = statistics.quantiles((scoring / bare for _, _, scoring, bare in calls), n=4)
    said = {"items": len(log.items), "events": len(log), "calls": CALLS, "first_ms": 1000 * first}
    print(said | medians | {"ratio": ratio}, flush=True)
    return said | medians | {"ratio": ratio}


@contextmanager
def _watched(spent: dict[str, float], name: str, owner: Any, method: str) -> Iterator[None]:
    """Add up the CPU-seconds of a function while this lasts."""
    plain = getattr(owner, method)
    spent[name] = 0.0

    def watched(*given: Any, **named: Any) -> Any:
        started = time.process_time()
        try:
            return plain(*given, **named)
        finally:
            spent[name] += time.process_time() - started

    with patch.object(owner, method, watched):
        yield


def _cpu(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


@dataclass(frozen=True, kw_only=True)
class Debiasing:
    """Train Pulse on real logs, and rank the test at nine strengths."""

    sets: tuple[str, ...] = tuple(SETS)
    data: Path = DATA

    def __call__(self) -> None:
        torch.set_num_threads(1)
        for name in self.sets:
            with split_of(name, self.data) as split:
                record = {"set": name, **turned(split)}
            _store(DEBIAS, "set", record)
            print(json.dumps(record), flush=True)


def turned(split: unskew.Split) -> dict[str, Any]:
    """Both tests at every debias, with the weights that `balanced` chose on the validation set."""
    model = unskew.create_model("pulse").fit(split, show_progress=False)
    chosen = {by: model.chosen_by(by).chosen["debias_now"] for by in ("ordinary", "balanced")}
    network = model.network
    assert network is not None  # and it has the weights that were chosen last
    sample = held_out(split, "test", "ordinary", SAMPLE)
    tests = {test: held_out(split, "test", test) for test in chosen}
    points = []
    for debias, ranked in zip(
        STRENGTHS, rank_each(network.eval(), split, sample.rows, STRENGTHS), strict=True
    ):
        found = {
            test: evaluation(split, ranked, "full", each, segmented=False) for test, each in tests.items()
        }
        point: dict[str, Any] = {"debias": debias, "coverage": found["ordinary"].beyond["coverage@10"]}
        point |= {test: one.mean(METRIC) for test, one in found.items()}
        points.append(point | {f"{test}_interval": interval(one, METRIC) for test, one in found.items()})
    rows, items = len(sample.rows), len(split.log.items)
    return {"rows": rows, "items": items, "events": len(split.log), "chosen": chosen, "points": points}


# The page and its picture


@dataclass(frozen=True)
class Turning(Lines):
    """Of each log, what a criterion gives against another, as the debiasing strength turns."""

    curves: tuple[dict[str, Any], ...] = ()
    across: str = "debias"
    up: str = "coverage"

    def draw(self, axes: Any) -> None:
        """Draw the curves on matplotlib's axes: a ring is what validation chose for the balanced test."""
        looks = zip((*COLOURS, INK), "os^Dv", ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1))), strict=True)
        for line, (colour, marker, dashes) in zip(self.curves, looks, strict=False):
            x, y = (_relative(line, name) for name in (self.across, self.up))
            style: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker}
            axes.plot(x, y, **style, linewidth=1.5, markersize=4.2, label=line["set"])
            at = STRENGTHS.index(line["chosen"]["balanced"])
            axes.plot(x[at], y[at], "o", markersize=11, markerfacecolor="none", color=INK)
            if self.across != "debias":
                for said, place, offset in (("0", 0, (7, -4)), ("debias 1", -1, (-14, 8))):
                    beside = {"xytext": offset, "textcoords": "offset points", "fontsize": 9}
                    axes.annotate(said, (x[place], y[place]), color=colour, **beside)
        axes.margins(0.08)
        super().draw(axes)
        for axis in (axes.xaxis, axes.yaxis) if self.across != "debias" else (axes.yaxis,):
            axis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 0.99), ncols=2, columnspacing=1.2, borderaxespad=0.2
        )


def _relative(line: dict[str, Any], name: str) -> list[float]:
    """The figures of one curve: the debiasing strength as it is, coverage in percent, metrics in percent of
    the best."""
    values = [point[name] for point in line["points"]]
    scale = {"debias": 1.0, "coverage": 100.0}.get(name, 100 / max(values))
    return [scale * value for value in values]


def drawing(lines: list[dict[str, Any]]) -> str:
    """What is lost of one test and won of the other, and how many items are recommended at all."""
    curves = tuple(lines)
    panels = (
        Turning(
            (),
            {},
            "ordinary NDCG@10, of the best",
            "balanced NDCG@10, of the best",
            curves=curves,
            across="ordinary",
            up="balanced",
        ),
        Turning(
            (),
            {},
            "debias",
            "fraction of the items in any list of ten",
            x_ticks=STRENGTHS[::2],
            curves=curves,
        ),
    )
    said = "The ordinary test, the balanced test and the coverage for debiasing strengths from 0 to 1"
    with patch.object(charts, "PANEL", (4.9, 4.1)):
        return picture(panels, "debias", said)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write docs/debias.svg, and the tables of docs/pulse.md between their marks, from what is stored."""

    def __call__(self) -> None:
        strengths = sorted(_lines(DEBIAS), key=lambda line: list(SETS).index(line["set"]))
        costs = {line["what"]: line for line in _lines(COST)}
        runs = [line for what, line in costs.items() if what.startswith("training")]
        PICTURE.write_text(drawing(strengths) + "\n", encoding="utf-8")
        parts = {
            "debias": turning(strengths),
            "training": training(runs),
            "request": request(costs["request"]),
        }
        text = PAGE.read_text(encoding="utf-8")
        for name, part in parts.items():
            mark = f"<!-- {name}: made by benchmarks/pulse.py -->"
            first, rest = text.split(mark)
            text = f"{first}{mark}\n\n{part}\n\n<!-- end -->{rest.split('<!-- end -->', 1)[1]}"
        PAGE.write_text(text, encoding="utf-8")


def turning(lines: list[dict[str, Any]]) -> str:
    """What the debiasing strength does, log by log."""
    rows = []
    for line in lines:
        points = line["points"]
        for test in ("ordinary", "balanced"):
            figures = [point[test] for point in points]
            cells = [f"**{one:.4f}**" if one == max(figures) else f"{one:.4f}" for one in figures]
            widths = [(point[f"{test}_interval"][1] - point[f"{test}_interval"][0]) / 2 for point in points]
            last = [f"{line['chosen'][test]:g}", f"{statistics.mean(widths):.4f}"]
            rows.append([line["set"] if test == "ordinary" else "", test, *cells, *last])
        rows.append(["", "coverage@10", *(f"{100 * point['coverage']:.0f} %" for point in points), "", ""])
    head = ["log", "debias", *(f"{debias:g}" for debias in STRENGTHS), "chosen", "±"]
    return Table(head, rows, text=(0, 1)).markdown()


PARTS = {
    "counts_s": "counts of the whole log, once",
    "measure_s": "means and scales of the inputs, once",
    "negatives_s": "reading: negatives",
    "neighbours_s": "reading: walks and profiles",
    "signals_s": "reading: audiences of candidates",
    "gradients_s": "gradient steps",
    "validation_s": "validation",
    "total_s": "**all**",
}


def training(lines: list[dict[str, Any]]) -> str:
    """What training costs, in all and by row."""
    lines.sort(key=lambda line: int(line["events"]))
    rows = [[said, *(f"{line[part]:,.1f}" for line in lines)] for part, said in PARTS.items()]
    reading, steps, ranked = [], [], []
    for line in lines:
        read = line["negatives_s"] + line["neighbours_s"] + line["signals_s"]
        epochs = Pulse.recipe["epochs"] * Training.valid_examples * line["items"]
        reading.append(f"{1000 * read / line['rows']:.2f}")
        steps.append(f"{1000 * line['gradients_s'] / line['rows'] / line['epochs']:.3f}")
        ranked.append(f"{1e6 * line['validation_s'] / epochs:.2f}")
    rows.append(
        ["events that neighbours give, per row", *(f"{line['neighbour_events']:,.0f}" for line in lines)]
    )
    rows += [["reading, ms per training row", *reading], ["gradient steps, ms per row and epoch", *steps]]
    rows.append(["validation, µs per ranked row and item", *ranked])
    head = ["CPU-seconds", *(f"{line['events']:,} events, {line['items']:,} items" for line in lines)]
    return Table(head, rows).markdown()


def request(line: dict[str, Any]) -> str:
    """What a request costs."""
    low, middle, high = line["ratio"]
    rest = line["whole_ms"] - line["neighbours_ms"] - line["scoring_ms"]
    rows = [
        ["neighbours and profile", f"{line['neighbours_ms']:.1f}"],
        ["scoring all items", f"{line['scoring_ms']:.1f}"],
        ["ids, hiding what is past, the ten best", f"{rest:.1f}"],
        ["**whole request**", f"{line['whole_ms']:.1f}"],
        ["bare product (1 x 64) (64 x items)", f"{line['bare_ms']:.1f}"],
        ["scoring / bare product", f"{middle:.1f} (quartiles {low:.1f} to {high:.1f})"],
        ["the first request, which counts the log", f"{line['first_ms']:,.0f}"],
    ]
    head = [f"{line['items']:,} items, {line['events']:,} events", "CPU-ms"]
    return Table(head, rows).markdown()


def _store(file: Path, key: str, record: dict[str, Any]) -> None:
    """Replace the line of the same key, or add one."""
    kept = [line for line in _lines(file) if line[key] != record[key]]
    file.write_text("".join(json.dumps(line) + "\n" for line in [*kept, record]), encoding="utf-8")


def _lines(file: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()] if file.exists() else []
    )


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"cost": Cost, "debias": Debiasing, "page": Page})()
