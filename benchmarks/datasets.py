"""Prepare, audit and inspect every data set of ../shared/data, with what a user would type; write the tables
of docs/data.md.

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
from pages import replace_between

import unskew
from unskew.data.audit.audit import require_no_leak
from unskew.diagnostics.log.inspect import inspect
from unskew.report.table import Table

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "datasets.jsonl", ROOT / "docs" / "data.md"
MARKS = "<!-- made by benchmarks/datasets.py -->", "<!-- end -->"


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
    return f"""{SIZE_NOTES}

{markdown(["", "users", "items", "interactions", "positives", "sparsity %", "resolution", "tied %"], sizes)}

## The two views, drift and order

{VIEW_NOTES}

{markdown(["", "history", "empty %", "audience", "empty %", "top kept %", "order z"], views)}

## Popularity, and which items the tests rank

{SKEW_NOTES}

{markdown(SKEW_HEAD, skews)}

## Repeats, first appearances, and available tests

{REPEAT_NOTES}

{markdown(REPEAT_HEAD, repeated)}

## How each set is prepared

The paths are relative to the folder of the data.

{commands}
"""


SIZE_NOTES = """## Size (the paper's Table 1) and time

These tables are generated from `results/datasets.jsonl` by `python benchmarks/datasets.py`, which also runs
the leak audit on each set. *tied* is the fraction of positives whose user has another positive at the same
time. The order of tied positives is unknown, and no model or test uses it."""
VIEW_NOTES = """*history* and *audience* are the mean numbers of events strictly before a positive, and
*empty* is the fraction of positives without any. *top kept* looks at the most popular items of the first
tenth of the log: it is the fraction of them that is still among the most popular in the last tenth. *order
z* counts repeated transitions between items: it is the number of standard deviations by which they exceed
those of logs in which the items of each user are shuffled. A value above 3 means that the order carries
information."""
SKEW_NOTES = """Each log is split 50 / 20 / 30 in time. *effective, balanced* is the effective sample size
of the test in which every item counts the same. *head* is the fraction of the ordinary and of the balanced
test on the most popular fifth of the items of the training set. *new* is the fraction on items that are not
in the training set. A model that learns from ids alone cannot rank these."""
REPEAT_NOTES = """*repeats* are positives on an item that the same user had before. If they are at least 1 %
of the training positives, past items stay candidates. *first appearances* are test positives on items that
no user had before. Nothing is known about such an item, and its empty audience would reveal that it is the
target, so no test ranks them."""


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
    replace_between(PAGE, *MARKS, page(records))


if __name__ == "__main__":
    main(tyro.cli(Settings, description=__doc__))
