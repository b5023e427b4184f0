"""All models on real data, stored run by run; benchmarks/results_page.py writes them to docs/results.md.

    python benchmarks/results.py tune
    python benchmarks/results.py run [--sets NAME ...] [--shares 50-20-30] [--seeds 0 1 2] [--models DEPS GRU4Rec+ ...]
    python benchmarks/results.py compare
    python benchmarks/results_page.py

Every finished run is a line of results/runs/SET.jsonl; a run that is there already is not done again, so the command can be
stopped and started at will. Validation chooses the round; the test part is only ever ranked at the end.
"""

import json
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import torch
import tyro

import unskew
from unskew.catalog import Scorer
from unskew.data.split import Split
from unskew.evaluate import Evaluation, Ranked, compare, evaluation, holm, interval, ndcg, positives, rank
from unskew.model import recommender
from unskew.models.popularity import Popularity, recencies
from unskew.run import train

ROOT = Path(__file__).parents[1]
DATA = ROOT.parent / "shared" / "data"
RESULTS, RANKS = ROOT / "results" / "runs", ROOT / "build" / "ranks"
COMPARED, TUNED = ROOT / "results" / "compare.jsonl", ROOT / "results" / "tuning.jsonl"
PROTOCOLS: tuple[Literal["full", "uni100", "authors"], ...] = ("full", "uni100", "authors")
ORDERED = {"time": "order_rank", "min_count": 1}
PUBLISHED = "published"  # in the place of shares: the test rows that the authors published

SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "movietweetings": ("movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    "beauty": ("amazon_beauty_5core", {}),
    "music-2018": ("amazon_digital_music_2018", {}),
    "paper-music": ("deps_paper_reconstructed/Amazon_Digital_Music.csv.gz", ORDERED),
    "paper-mind": ("deps_paper_reconstructed/mind_small.csv.gz", ORDERED),
    "paper-beauty": ("deps_paper_reconstructed/Amazon_Beauty.csv.gz", ORDERED),
}

# DEPS: width, heads and clip are the authors' (guide, decision 8); the rest is what a CPU can afford and what the validation part of
# MovieTweetings preferred (`tune`), the same for its variants and for all sets. The paper does not say how much of an audience is
# read; the authors' code reads 30, and the validation part asks for far more.
DEPS = {"audience": 500, "layers": 2, "heads": 2, "dropout": 0.2, "unsupervised_rounds": 5, "hidden_ids": 0.8}
DEPS |= {"rounds": 10, "patience": 2, "negatives": 3, "learning_rate": 3e-4}
CAUSAL = {"batch_size": 2048, "rounds": 20, "patience": 3}
# The others: settings of their papers (`unskew models`), stopped early. Which one is debiased, and how, is two lines of a recipe.
BRIEF = {"rounds": 40, "patience": 4}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "DEPS": ("deps", DEPS),
    "DEPS unweighted": ("deps", DEPS | {"propensity": "none"}),
    "DEPS without audience": ("deps", DEPS | {"reads": "history", "propensity": "item"}),
    "DEPS, audience 30": ("deps", DEPS | {"audience": 30}),
    "DEPS unweighted, audience 30": ("deps", DEPS | {"audience": 30, "propensity": "none"}),
    "DEPS, causal": ("deps-causal", DEPS | CAUSAL),
    "STAMP": ("stamp", BRIEF),
    "GRU4Rec+": ("gru4rec", BRIEF),
    "BERT4Rec": ("bert4rec", BRIEF),
    "FPMC": ("fpmc", BRIEF),
    "DIN": ("din", BRIEF),
    "BST": ("bst", BRIEF | {"valid_rows": 300}),
    "LightSANs": ("lightsans", BRIEF),
    "UIR": ("uir", BRIEF),
    "CPR": ("cpr", BRIEF),
    "UBPR": ("ubpr", BRIEF),
    "DICE": ("dice", BRIEF),
    "USR": ("usr", BRIEF),
    "DEPS (GRU4Rec+)": ("debiased-gru4rec", BRIEF),
    "DEPS (FPMC)": ("debiased-fpmc", BRIEF),
    "SASRec, cross-entropy": ("sasrec", BRIEF),
    "gSASRec": ("gsasrec", BRIEF),
    "ItemKNN": ("itemknn", {}),
}
SAMPLES = {"BST": 1000}  # test positives ranked, where a catalogue is dear; the first of the same sample
CLIPS = {"beauty": 0.1, "paper-beauty": 0.1}  # the authors' M of these sets
# Large sets get fewer negatives and rounds, by the budget of one table.
LARGE = {"beauty", "paper-beauty"}
LESS = {"deps": {"negatives": 1, "rounds": 5, "patience": 1}, "others": {"rounds": 12, "patience": 2}}


@dataclass(frozen=True)
class Data:
    """A prepared set and where its parts begin. Of the paper's sets, the published valid and test rows are marked as exposed."""

    log: unskew.Log
    borders: tuple[int, int] | None  # rows before the first published valid row, and before the first published test row

    def split(self, shares: str) -> Split:
        """By shares of the rows; or as published: train before their first valid row, test from their first test row on."""
        if shares != PUBLISHED:
            train_share, valid_share, test_share = (float(part) for part in shares.split("-"))
            return unskew.split(self.log, shares=(train_share, valid_share, test_share))
        assert self.borders is not None
        first, second = self.borders
        return unskew.split(self.log, shares=(first, second - first, len(self.log) - second))


@contextmanager
def opened(name: str, data: Path) -> Iterator[Data]:
    path, settings = SETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        if not name.startswith("paper-"):
            yield Data(unskew.prepare(data / path, Path(scratch) / "data", **settings), None)
            return
        table = pa_csv.read_csv(data / path).select(["user_id", "item_id", "order_rank", "split"])
        part, order = np.array(table["split"].to_pylist()), table["order_rank"].to_numpy()
        first, second = int(order[part == "valid"].min()), int(order[part == "test"].min())
        marked = ((part == "valid") & (order < second)) | (part == "test")
        table = table.drop_columns("split").append_column("published", pa.array(marked.astype(np.int8)))
        yield Data(unskew.prepare(table, Path(scratch) / "data", exposed="published", **settings), (first, second))


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    data: Path = DATA
    sets: tuple[str, ...] = tuple(SETS)
    shares: tuple[str, ...] = ("50-20-30",)
    seeds: tuple[int, ...] = (0, 1, 2)
    models: tuple[str, ...] = tuple(MODELS)

    def run(self) -> None:
        torch.set_num_threads(1)
        for name in self.sets:
            with opened(name, self.data) as data:
                for shares in self.shares:
                    if shares == PUBLISHED and data.borders is None:
                        continue
                    split = data.split(shares)
                    self._popularities(name, shares, split)
                    for seed in self.seeds:
                        for label in self.models:
                            self._model(name, shares, split, label, seed)

    def _popularities(self, name: str, shares: str, split: Split) -> None:
        for label, config in recencies(split).items():
            if not stored(name, shares, f"popularity, {label}", 0):
                scorer = Popularity(split, config)
                rows = positives(split, "valid", valid_test(shares), 2000, 0)
                valid = evaluation(split, rank(scorer, split, rows), "full", valid_test(shares)).mean("ndcg@10")
                self._store(name, shares, split, f"popularity, {label}", scorer, 0, {"chosen_by": valid}, sample_of(name, shares))

    def _model(self, name: str, shares: str, split: Split, label: str, seed: int) -> None:
        model, settings = MODELS[label]
        seed = seed if model != "itemknn" else 0  # nothing in it is drawn
        if stored(name, shares, label, seed):
            return
        settings = settings | {"seed": seed, "valid_test": valid_test(shares)}
        if name in LARGE:
            settings |= LESS["deps" if model == "deps" else "others"] if model != "itemknn" else {}
        if name in CLIPS and (model == "deps" or model.startswith("debiased")):
            settings |= {"clip": CLIPS[name]}
        made = recommender(model, settings)
        started = time.process_time()
        network, trainer = train(split, model, made.config, made.training)
        facts = {
            "config": asdict(made.config),
            "training": asdict(made.training),
            "cpu_s": round(time.process_time() - started),
            "rounds": len([record for record in trainer.records if "valid" in record]),
            "best_round": trainer.progress.best_round,
            "chosen_by": trainer.progress.best if trainer.progress.best_round >= 0 else None,
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            "statistics": trainer.records[trainer.progress.best_round - len(trainer.records)].get("statistics")
            if trainer.records
            else None,
        }
        self._store(name, shares, split, label, network.eval(), seed, facts, SAMPLES.get(label, sample_of(name, shares)))

    def _store(
        self, name: str, shares: str, split: Split, model: str, scorer: Scorer, seed: int, facts: dict[str, Any], sample: int
    ) -> None:
        found: list[dict[str, Any]] = []
        for test in split.tests():
            rows = positives(split, "test", test, sample, 0)
            if not len(rows) or (shares == PUBLISHED) != (test == "randomised"):
                continue
            ranked = rank(scorer, split, rows)
            keep(name, shares, test, model, seed, ranked)
            for protocol in PROTOCOLS:
                one = evaluation(split, ranked, protocol, test)
                low, high = interval(one, "ndcg@10", 500)
                found.append(one.as_dict() | {"interval_ndcg@10": [low, high], "of_positives": len(positives(split, "test", test))})
        record = {"set": name, "shares": shares, "model": model, "seed": seed, **facts, "results": found}
        RESULTS.mkdir(parents=True, exist_ok=True)
        with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(rounded(record)) + "\n")
        shown = {f"{r['test']}": round(r["metrics"]["ndcg@10"], 4) for r in found if r["protocol"] == "full"}
        print(name, shares, model, seed, facts.get("cpu_s", 0), "CPU-s", shown, flush=True)


def rounded(value: Any) -> Any:
    """Six digits: more are noise, and would make the file large."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def sample_of(name: str, shares: str) -> int:
    """Test positives that are ranked, a fixed seeded sample where there are more."""
    return 10_000 if name == "movietweetings" or shares == PUBLISHED else 5_000


def valid_test(shares: str) -> Literal["ordinary", "randomised"]:
    """Which validation rows choose: all, or the published ones (which are marked as if they were randomised)."""
    return "randomised" if shares == PUBLISHED else "ordinary"


# What is tried, on the validation part of one set and with the unweighted twin, which is the cheaper one: changes of a first recipe.
FIRST = {"layers": 2, "heads": 2, "dropout": 0.2, "unsupervised_rounds": 5, "hidden_ids": 0.5, "propensity": "none"}
FIRST |= {"rounds": 8, "patience": 2, "negatives": 3, "learning_rate": 1e-3}
TRIED: dict[str, dict[str, Any]] = {
    "first recipe": {},
    "learning rate 3e-4": {"learning_rate": 3e-4},
    "dropout 0.5": {"dropout": 0.5},
    "9 negatives": {"negatives": 9},
    "hidden ids 0.8": {"hidden_ids": 0.8},
    "hidden ids 0.1": {"hidden_ids": 0.1},
    "weight decay 1e-5": {"weight_decay": 1e-5},
    "weight decay 1e-4": {"weight_decay": 1e-4},
    "batch 2048": {"batch_size": 2048},
    "width 32": {"width": 32, "hidden": 32, "inner": 128},
    "without stage 1": {"unsupervised_rounds": 0},
    "learning rate 1e-4": {"learning_rate": 1e-4},
    "learning rate 3e-4, hidden ids 0.8": {"learning_rate": 3e-4, "hidden_ids": 0.8},
    "learning rate 3e-4, without stage 1": {"learning_rate": 3e-4, "unsupervised_rounds": 0},
    "learning rate 3e-4, hidden ids 0.95": {"learning_rate": 3e-4, "hidden_ids": 0.95},
    "learning rate 3e-4, hidden ids 0.8, 9 negatives": {"learning_rate": 3e-4, "hidden_ids": 0.8, "negatives": 9},
    "learning rate 1e-4, hidden ids 0.8, 16 rounds": {"learning_rate": 1e-4, "hidden_ids": 0.8, "rounds": 16},
    "learning rate 3e-4, hidden ids 0.8, 1 layer": {"learning_rate": 3e-4, "hidden_ids": 0.8, "layers": 1},
    "learning rate 3e-4, hidden ids 0.8, audience 90": {"learning_rate": 3e-4, "hidden_ids": 0.8, "audience": 90},
    "learning rate 3e-4, hidden ids 0.8, audience 200": {"learning_rate": 3e-4, "hidden_ids": 0.8, "audience": 200},
    "learning rate 3e-4, hidden ids 0.8, audience 500": {"learning_rate": 3e-4, "hidden_ids": 0.8, "audience": 500},
}


# The same of the variant that reads sequences once, whose batches are larger and whose rounds are cheap.
CAUSAL_FIRST = FIRST | {"hidden_ids": 0.8, "rounds": 40, "patience": 4}
CAUSAL_TRIED: dict[str, dict[str, Any]] = {
    "causal, batch 512, learning rate 3e-4": {"batch_size": 512, "learning_rate": 3e-4},
    "causal, batch 2048, learning rate 1e-3": {"batch_size": 2048},
    "causal, batch 2048, learning rate 1e-3, audience 90": {"batch_size": 2048, "audience": 90},
    "causal, batch 2048, learning rate 1e-3, audience 200": {"batch_size": 2048, "audience": 200},
    "causal, batch 2048, learning rate 3e-4, audience 200": {"batch_size": 2048, "learning_rate": 3e-4, "audience": 200},
    "causal, batch 512, learning rate 3e-4, audience 200": {"batch_size": 512, "learning_rate": 3e-4, "audience": 200},
}


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Try recipes on a validation part; nothing of the test part is read. A line of results/tuning.jsonl each."""

    data: Path = DATA
    models: tuple[str, ...] = ("deps", "deps-causal")
    sets: tuple[str, ...] = ("movietweetings",)
    seeds: tuple[int, ...] = (0,)

    def run(self) -> None:
        torch.set_num_threads(1)
        for name in self.sets:
            with opened(name, self.data) as data:
                split = data.split("50-20-30")
                for seed, model in product(self.seeds, self.models):
                    first, recipes = (CAUSAL_FIRST, CAUSAL_TRIED) if model == "deps-causal" else (FIRST, TRIED)
                    for tried, changes in recipes.items():
                        self._try(name, split, model, tried, first | changes | {"seed": seed}, seed)

    def _try(self, name: str, split: Split, model: str, tried: str, settings: dict[str, Any], seed: int) -> None:
        done = [json.loads(line) for line in TUNED.read_text(encoding="utf-8").splitlines()] if TUNED.exists() else []
        if any((one["set"], one["tried"], one["seed"]) == (name, tried, seed) for one in done):
            return
        made = recommender(model, settings)
        started = time.process_time()
        _, trainer = train(split, model, made.config, made.training)
        rounds = [record["valid"]["ndcg@10"] for record in trainer.records if "valid" in record]
        line = {"set": name, "tried": tried, "seed": seed, "valid_ndcg@10": rounds, "cpu_s": round(time.process_time() - started)}
        with TUNED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def keep(name: str, shares: str, test: str, model: str, seed: int, ranked: Ranked) -> None:
    """Ranks of each row, for paired comparisons; not committed."""
    RANKS.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(RANKS / f"{name}.{shares}.{test}.{model}.{seed}.npz", rows=ranked.rows, full=ranked.full.astype(np.float32))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(RESULTS.glob("*.jsonl")) for line in file.read_text(encoding="utf-8").splitlines()]


def stored(name: str, shares: str, model: str, seed: int) -> bool:
    return any((r["set"], r["shares"], r["model"], r["seed"]) == (name, shares, model, seed) for r in records())


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Paired comparisons of every model with the best other learned one, from the ranks that the runs left: results/compare.jsonl."""

    data: Path = DATA

    def run(self) -> None:
        lines = []
        for name in SETS:
            groups = sorted({tuple(file.name.split(".")[1:3]) for file in RANKS.glob(f"{name}.*.npz")})
            if not groups:
                continue
            with opened(name, self.data) as data:
                for shares, test in groups:
                    lines += [{"set": name, "shares": shares, "test": test, **row} for row in against_best(data.log, name, shares, test)]
        COMPARED.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def against_best(log: unskew.Log, name: str, shares: str, test: str) -> list[dict[str, Any]]:
    """Of each model, NDCG@10 of each row (the mean over its seeds) minus that of the best other learned model, on the rows of both."""
    ranks: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(RANKS.glob(f"{name}.{shares}.{test}.*.npz")):
        model = file.name.removeprefix(f"{name}.{shares}.{test}.").removesuffix(".npz").rpartition(".")[0]
        ranks.setdefault(model, []).append(dict(np.load(file)))
    values = {model: np.mean([ndcg(one["full"].astype(np.float64), 10) for one in many], axis=0) for model, many in ranks.items()}
    learned = sorted((model for model in values if not model.startswith("popularity")), key=lambda model: -values[model].mean())
    best = {model: other for model in values if (other := next((one for one in learned if one != model), None)) is not None}
    found = {}
    for model, other in best.items():
        common, mine, its = np.intersect1d(ranks[model][0]["rows"], ranks[other][0]["rows"], return_indices=True)
        pair = [
            Evaluation("full", "ordinary", log.user[common].astype(np.int64), {"ndcg@10": of[places]}, np.ones(len(common), bool))
            for of, places in ((values[model], mine), (values[other], its))
        ]
        found[model] = compare(pair[0], pair[1], draws=10_000)
    adjusted = holm({model: result.p_bootstrap for model, result in found.items()})
    return [{"model": model, "best_other": best[model], **asdict(result), "p_holm": adjusted[model]} for model, result in found.items()]


if __name__ == "__main__":
    tyro.cli(
        Annotated[Tune, tyro.conf.subcommand(name="tune")]
        | Annotated[Run, tyro.conf.subcommand(name="run")]
        | Annotated[Compare, tyro.conf.subcommand(name="compare")],
        description=__doc__,
    ).run()
