"""Prepare, audit and inspect every data set of ../shared/data, with what a user would type; write
docs/data.md.

    python benchmarks/datasets.py [--data ../shared/data] [--tables-only]

The figures go to results/datasets.jsonl, one line a data set; `--tables-only` draws the page again from that
file.
"""

import json
import shlex
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import tyro

import unskew
from unskew.data.audit.audit import require_no_leak
from unskew.diagnostics.log.inspect import inspect
from unskew.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "datasets.jsonl", ROOT / "docs" / "data.md"


@dataclass(frozen=True, kw_only=True)
class Settings:
    data: Path = ROOT.parent / "shared" / "data"
    tables_only: bool = False


@dataclass(frozen=True)
class Set:
    name: str
    path: str
    settings: dict[str, Any] = field(default_factory=dict)

    def command(self) -> str:
        flags = "".join(f" --{key.replace('_', '-')} {value}" for key, value in self.settings.items())
        return f"unskew prepare {shlex.quote(self.path)} --out DATA{flags}"


ORDER = {"time": "order_rank"}  # the paper's sets are prepared already; their order is their time
SETS = [
    Set("MovieTweetings", "movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    Set("Amazon Beauty 2014", "amazon_beauty_5core"),
    Set("Amazon Digital Music 2018", "amazon_digital_music_2018"),
    Set("paper: Amazon Beauty", "deps_paper_reconstructed/Amazon_Beauty.csv.gz", ORDER),
    Set("paper: Amazon Digital Music", "deps_paper_reconstructed/Amazon_Digital_Music.csv.gz", ORDER),
    Set("paper: MIND", "deps_paper_reconstructed/mind_small.csv.gz", ORDER),
    Set("Online Retail", "online_retail"),
    Set("MIND (sample)", "mind_small_sample"),
    Set("KuaiRand (likes)", "kuairand_like_subset"),
    Set("Open Bandit (sample, all)", "open_bandit_sample/*/all/all.csv.gz"),
    Set("Coat", "coat", {"positive": 4}),
]

SKEW_HEAD = ["", "Gini", "top 1 % has %", "test positives", "effective, balanced", "head %", "balanced"]
SKEW_HEAD += ["new %", "balanced"]
REPEAT_HEAD = ["", "repeats in training %", "in the test %", "past items are", "first appearances %", "tests"]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """A table whose first column is text and whose others are figures."""
    return Table(head, rows).markdown()


def coat(folder: Path) -> pa.Table:
    """Coat is two rating matrices, not a log: what users chose, then what they were given at random. No other
    times are known."""
    parts = []
    for wave, name in enumerate(("train", "test")):
        ratings = np.loadtxt(folder / f"{name}.ascii", dtype=int)
        user, item = np.nonzero(ratings)
        parts.append(
            pa.table(
                {
                    "user": user,
                    "item": item,
                    "time": np.full(len(user), wave),
                    "rating": ratings[user, item],
                    "exposed": np.full(len(user), wave),
                }
            )
        )
    return pa.concat_tables(parts)


def measured(data: Path, wanted: Set) -> dict[str, Any]:
    source = coat(data / "coat") if wanted.name == "Coat" else str(data / wanted.path)
    with tempfile.TemporaryDirectory() as scratch:
        started = time.perf_counter()
        log = unskew.prepare(source, Path(scratch) / "data", **wanted.settings)
        seconds = time.perf_counter() - started
        split = unskew.split(log)
        findings = require_no_leak(split)
        found = inspect(split).as_dict()
    for bulky in ("history", "audience"):
        del found[bulky]["bins"]
    del found["popularity"]["curve"], found["shuffle"]["shuffled"], found["drift"]["slices"]
    command = (
        wanted.command() if wanted.name != "Coat" else "`coat()` in benchmarks/datasets.py makes the table"
    )
    return {
        "name": wanted.name,
        "command": command,
        "prepare_s": round(seconds, 2),
        "audited": len(findings),
        "audit": {finding.check: finding.note for finding in findings if finding.note},
        **found,
        "source": wanted.path,
    }


def percent(fraction: float | None, digits: int = 1) -> str:
    return "–" if fraction is None else f"{100 * fraction:.{digits}f}"


def page(records: list[dict[str, Any]]) -> str:
    sizes, views, skews, repeated = [], [], [], []
    for record in records:
        size, clock, tests = (
            record["size"],
            record["clock"],
            {tested["test"]: tested for tested in record["tests"]},
        )
        counts = [f"{size[key]:,}" for key in ("users", "items", "interactions", "positives")]
        sizes.append(
            [
                record["name"],
                *counts,
                percent(size["sparsity"], 2),
                clock["resolution"],
                percent(clock["tied_positives"]),
            ]
        )
        cells = [
            [f"{record[view]['mean']:.1f}", percent(record[view]["empty"])]
            for view in ("history", "audience")
        ]
        z = record["shuffle"]["z"]
        views.append(
            [
                record["name"],
                *cells[0],
                *cells[1],
                percent(record["drift"]["kept"]),
                "–" if z is None else f"{z:.1f}",
            ]
        )
        popularity = record["popularity"]
        asked = [f"{tests['ordinary']['positives']:,}", f"{tests['balanced']['effective_sample_size']:,.0f}"]
        asked += [
            percent(tests[test][key])
            for key in ("head", "unknown_items")
            for test in ("ordinary", "balanced")
        ]
        skews.append(
            [record["name"], f"{popularity['gini']:.2f}", percent(popularity["top_1_percent"]), *asked]
        )
        repeats, last = record["repeats"], record["split"][-1]
        kept = "candidates" if repeats["kept"] else "hidden"
        first = percent(last["first_appearances"] / last["positives"] if last["positives"] else None)
        repeated.append(
            [
                record["name"],
                percent(repeats["train_share"]),
                percent(repeats["test_share"]),
                kept,
                first,
                ", ".join(tests),
            ]
        )
    commands = "\n".join(f"- {record['name']}: {code(record['command'])}" for record in records)
    return f"""# The data sets

Generated from `results/datasets.jsonl` by `python benchmarks/datasets.py`, which also runs the leak audit on
each of them. The data is not part of the project: most of it may not be passed on.

## Size (the paper's Table 1) and time

{markdown(["", "users", "items", "interactions", "positives", "sparsity %", "resolution", "tied %"], sizes)}

*tied*: positives whose user has another one at the same time; their order is unknown and never used.

## The two views, drift and order

{markdown(["", "history", "empty %", "audience", "empty %", "top kept %", "order z"], views)}

*history*, *audience*: mean number of events strictly before a positive. *top kept*: of the most popular items
of the first tenth of the log, the fraction that is still at the top in the last tenth. *order z*: how many
standard deviations repeated transitions are above those of logs with each user's items shuffled; above 3, the
order carries information.

## Popularity, and what the tests ask for

{markdown(SKEW_HEAD, skews)}

Split 50 / 20 / 30 in time. *effective, balanced*: the effective sample size of the test in which every item
counts once. *head*: fraction of the ordinary and of the balanced test on the most popular fifth of the known
items; *new*: on items that training never saw. No model that learns from ids alone can rank these.

## Repeats, first appearances, and which tests there are

{markdown(REPEAT_HEAD, repeated)}

*repeats*: positives on an item that the same user had before; from 1 % of the training positives on, past
items stay candidates. *first appearances*: test positives on items that nobody had before. Nothing can be
known of them, and their empty audience would tell that they are the ones, so no test ranks them.

## How each was prepared

{commands}

MIND's history field has an order but no times: its clicks are put one second apart, ending just before the
first impression of the log. Open Bandit has no users: everyone with the same features is one. In Coat, the
self-chosen ratings are one moment and the random ones the next, so the randomised test is all that is held
out.
"""


def code(command: str) -> str:
    return f"`{command}`" if command.startswith("unskew") else command


def main(settings: Settings) -> None:
    if not settings.tables_only:
        records = []
        for wanted in SETS:
            done = measured(settings.data, wanted)
            records.append(done)
            rows = done["size"]["interactions"]
            print(f"{wanted.name}: {rows:,} rows in {done['prepare_s']} s", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    records = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    PAGE.write_text(page(records), encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
