"""DEPS, its unweighted twin, DEPS without the audience, and popularity, on real data; stored run by run, then written to docs/results.md.

    python benchmarks/results.py tune
    python benchmarks/results.py run [--sets NAME ...] [--shares 50-20-30] [--seeds 0 1 2]
    python benchmarks/results.py compare
    python benchmarks/results.py page

Every finished run is a line of results/deps.jsonl; a run that is there already is not done again, so the command can be
stopped and started at will. Validation chooses the round; the test part is only ever ranked at the end.
"""

import json
import resource
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
import tyro

import unskew
from unskew.catalog import Scorer
from unskew.data.split import Split
from unskew.evaluate import Evaluation, Ranked, compare, evaluation, holm, interval, ndcg, positives, rank
from unskew.models.deps import DEPS
from unskew.models.popularity import Popularity, recencies
from unskew.run import train
from unskew.train import Training

ROOT = Path(__file__).parents[1]
RESULTS, PAGE, RANKS = ROOT / "results" / "deps.jsonl", ROOT / "docs" / "results.md", ROOT / "build" / "ranks"
COMPARED, TUNED = ROOT / "results" / "compare.jsonl", ROOT / "results" / "tuning.jsonl"
METRICS = ("ndcg@10", "hr@10", "ndcg@20", "hr@20", "mrr@10")
PROTOCOLS: tuple[Literal["full", "uni100", "authors"], ...] = ("full", "uni100", "authors")
ORDERED = {"time": "order_rank", "min_count": 1}

SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "paper-music": ("deps_paper_reconstructed/Amazon_Digital_Music.csv.gz", ORDERED),
    "paper-mind": ("deps_paper_reconstructed/mind_small.csv.gz", ORDERED),
    "movietweetings": ("movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    "music-2018": ("amazon_digital_music_2018", {}),
    "paper-beauty": ("deps_paper_reconstructed/Amazon_Beauty.csv.gz", ORDERED),
    "beauty": ("amazon_beauty_5core", {}),
}
# Width, heads and clip are the authors' (guide, decision 8); the rest is what a CPU can afford, chosen on the validation part of
# MovieTweetings, the same for all models.
COMMON = DEPS.Config(layers=2, heads=2, dropout=0.2, unsupervised_rounds=5, hidden_ids=0.5)
TRAINING = Training(rounds=8, patience=2, negatives=3)
VARIANTS = {
    "DEPS": COMMON,
    "DEPS unweighted": replace(COMMON, propensity="none"),
    "DEPS without audience": replace(COMMON, reads="history", propensity="item"),
}
CLIPS = {"beauty": 0.1, "paper-beauty": 0.1}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and evaluate what is not stored yet."""

    data: Path = ROOT.parent / "shared" / "data"
    sets: tuple[str, ...] = tuple(SETS)
    shares: tuple[str, ...] = ("50-20-30", "80-10-10")
    seeds: tuple[int, ...] = (0, 1, 2)
    sample: int = 10_000
    """Test positives that are ranked, a fixed seeded sample where there are more."""

    def run(self) -> None:
        torch.set_num_threads(1)
        for name in self.sets:
            with tempfile.TemporaryDirectory() as scratch:
                path, settings = SETS[name]
                log = unskew.prepare(self.data / path, Path(scratch) / "data", **settings)
                for shares in self.shares:
                    train_share, valid_share, test_share = (float(part) for part in shares.split("-"))
                    split = unskew.split(log, shares=(train_share, valid_share, test_share))
                    self._popularities(name, shares, split)
                    for seed in self.seeds:
                        for variant, config in VARIANTS.items():
                            self._variant(name, shares, split, variant, replace(config, clip=CLIPS.get(name, config.clip)), seed)

    def _popularities(self, name: str, shares: str, split: Split) -> None:
        for label, scorer in popularities(split).items():
            if not stored(name, shares, label, 0):
                self._store(name, shares, split, label, scorer, 0, {"chosen_by": self._valid(split, scorer)})

    def _variant(self, name: str, shares: str, split: Split, variant: str, config: DEPS.Config, seed: int) -> None:
        if stored(name, shares, variant, seed):
            return
        started = time.process_time()
        network, trainer = train(split, "deps", config, replace(TRAINING, seed=seed))
        facts = {
            "cpu_s": round(time.process_time() - started),
            "rounds": len([record for record in trainer.records if "valid" in record]),
            "best_round": trainer.progress.best_round,
            "chosen_by": trainer.progress.best,
            "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
            "weights": weights(network, trainer) if variant != "DEPS unweighted" else None,
        }
        self._store(name, shares, split, variant, network.eval(), seed, facts)

    def _valid(self, split: Split, scorer: Scorer) -> float:
        rows = positives(split, "valid", "ordinary", TRAINING.valid_rows, 0)
        return evaluation(split, rank(scorer, split, rows), "full", "ordinary").mean("ndcg@10")

    def _store(self, name: str, shares: str, split: Split, model: str, scorer: Scorer, seed: int, facts: dict[str, Any]) -> None:
        found: list[dict[str, Any]] = []
        for test in split.tests():
            rows = positives(split, "test", test, self.sample, 0)
            if not len(rows):
                continue
            ranked = rank(scorer, split, rows)
            keep(name, shares, test, model, seed, ranked)
            for protocol in PROTOCOLS:
                one = evaluation(split, ranked, protocol, test)
                low, high = interval(one, "ndcg@10", 500)
                found.append(one.as_dict() | {"interval_ndcg@10": [low, high], "of_positives": len(positives(split, "test", test))})
        record = {"set": name, "shares": shares, "model": model, "seed": seed, **facts, "results": found}
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        print(name, shares, model, seed, {f"{r['test']} {r['protocol']}": round(r["metrics"]["ndcg@10"], 4) for r in found}, flush=True)


# What is tried, one change at a time, on the validation part of one set and with the unweighted twin, which is the cheaper one.
TRIED: dict[str, dict[str, Any]] = {
    "recipe": {},
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
    "learning rate 1e-4, without stage 1": {"learning_rate": 1e-4, "unsupervised_rounds": 0},
    "learning rate 3e-4, 1 round of stage 1": {"learning_rate": 3e-4, "unsupervised_rounds": 1},
    "learning rate 3e-4, 9 negatives": {"learning_rate": 3e-4, "negatives": 9},
    "learning rate 3e-4, width 32": {"learning_rate": 3e-4, "width": 32, "hidden": 32, "inner": 128},
    "learning rate 3e-4, 1 layer": {"learning_rate": 3e-4, "layers": 1},
}


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Try recipes on a validation part; nothing of the test part is read. A line of results/tuning.jsonl each."""

    data: Path = ROOT.parent / "shared" / "data"
    sets: tuple[str, ...] = ("movietweetings",)
    seeds: tuple[int, ...] = (0,)

    def run(self) -> None:
        torch.set_num_threads(1)
        for name in self.sets:
            with tempfile.TemporaryDirectory() as scratch:
                path, settings = SETS[name]
                split = unskew.split(unskew.prepare(self.data / path, Path(scratch) / "data", **settings))
                for (tried, changes), seed in ((pair, seed) for seed in self.seeds for pair in TRIED.items()):
                    self._try(name, split, tried, changes, seed)

    def _try(self, name: str, split: Split, tried: str, changes: dict[str, Any], seed: int) -> None:
        done = [json.loads(line) for line in TUNED.read_text(encoding="utf-8").splitlines()] if TUNED.exists() else []
        if any((one["set"], one["tried"], one["seed"]) == (name, tried, seed) for one in done):
            return
        own = {field.name for field in fields(DEPS.Config)}
        config = replace(VARIANTS["DEPS unweighted"], **{key: value for key, value in changes.items() if key in own})
        training = replace(TRAINING, seed=seed, **{key: value for key, value in changes.items() if key not in own})
        started = time.process_time()
        _, trainer = train(split, "deps", config, training)
        rounds = [record["valid"]["ndcg@10"] for record in trainer.records if "valid" in record]
        line = {"set": name, "tried": tried, "seed": seed, "valid_ndcg@10": rounds, "cpu_s": round(time.process_time() - started)}
        with TUNED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


def popularities(split: Split) -> dict[str, Scorer]:
    """In total, in the last day, week and month (or shares of training, where times are only an order), and fading by half in a week."""
    names = {name: config for name, config in recencies(split).items() if not name.startswith("half-life")}
    week = [(name, config) for name, config in recencies(split).items() if name.startswith("half-life")][1]
    return {f"popularity, {name}": Popularity(split, config) for name, config in (*names.items(), week)}


def weights(network: Any, trainer: Any) -> dict[str, float]:
    """What the propensities do to one batch in ten of the training part: shares of clipped ones, spread of the weights."""
    clip = network.config.clip
    item: list[torch.Tensor] = []
    user: list[torch.Tensor] = []
    weight: list[torch.Tensor] = []
    with torch.no_grad():
        for number, batch in enumerate(trainer.samplers["unbiased"].epoch()):
            if number % 10 == 0:
                for values, view in ((item, network.propensity.item_view(batch)), (user, network.propensity.user_view(batch))):
                    if view is not None:
                        values.append(view[:, 0])
                weight.append(network.propensity.weights(batch)[:, 0])
    spread = torch.cat(weight)
    found = {
        "mean": float(spread.mean()),
        "deviation": float(spread.std()),
        "effective_share": float(spread.sum() ** 2 / (spread**2).sum() / len(spread)),
    }
    for name, values in (("item_clipped", item), ("user_clipped", user)):
        if values:
            found[name] = float((torch.cat(values) < clip).float().mean())
    return {name: round(value, 4) for name, value in found.items()}


def keep(name: str, shares: str, test: str, model: str, seed: int, ranked: Ranked) -> None:
    """Ranks of each row, for paired comparisons; not committed."""
    RANKS.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(RANKS / f"{name}.{shares}.{test}.{model}.{seed}.npz", rows=ranked.rows, full=ranked.full.astype(np.float32))


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()] if RESULTS.exists() else []


def stored(name: str, shares: str, model: str, seed: int) -> bool:
    return any((r["set"], r["shares"], r["model"], r["seed"]) == (name, shares, model, seed) for r in records())


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Paired comparisons of DEPS with everything else, from the ranks that the runs left behind: results/compare.jsonl."""

    data: Path = ROOT.parent / "shared" / "data"

    def run(self) -> None:
        lines = []
        for name, (path, settings) in SETS.items():
            with tempfile.TemporaryDirectory() as scratch:
                groups = sorted({tuple(file.name.split(".")[1:3]) for file in RANKS.glob(f"{name}.*.DEPS.*.npz")})
                log = unskew.prepare(self.data / path, Path(scratch) / "data", **settings) if groups else None
                for shares, test in groups:
                    assert log is not None
                    lines += [{"set": name, "shares": shares, "test": test, **row} for row in self._against(log.user, name, shares, test)]
        COMPARED.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

    def _against(self, user: Any, name: str, shares: str, test: str) -> list[dict[str, Any]]:
        """Of the first seed: the mean difference, its interval, and Holm's p over all rivals."""
        start, found = f"{name}.{shares}.{test}.", {}
        first = self._values(user, RANKS / f"{start}DEPS.0.npz")
        for file in sorted(RANKS.glob(f"{start}*.0.npz")):
            model = file.name.removeprefix(start).removesuffix(".0.npz")
            if model != "DEPS":
                found[model] = compare(first, self._values(user, file))
        adjusted = holm({model: result.p_bootstrap for model, result in found.items()})
        return [{"against": model, **asdict(result), "p_holm": adjusted[model]} for model, result in found.items()]

    def _values(self, user: Any, file: Path) -> Evaluation:
        ranks = np.load(file)
        values = {"ndcg@10": ndcg(ranks["full"].astype(np.float64), 10)}
        return Evaluation("full", "ordinary", user[ranks["rows"]].astype(np.int64), values, np.ones(len(ranks["rows"]), bool))


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write docs/results.md from the stored runs."""

    def run(self) -> None:
        parts = [HEAD]
        runs = records()
        for name in [name for name in SETS if any(r["set"] == name for r in runs)]:
            for shares in sorted({r["shares"] for r in runs if r["set"] == name}):
                here = [r for r in runs if (r["set"], r["shares"]) == (name, shares)]
                parts.append(f"## {name}, split {shares.replace('-', ' / ')}\n")
                parts += [table(here, test, protocol) for test in ("ordinary", "resampled") for protocol in PROTOCOLS]
                parts += [weight_table(here), compare_table(name, shares)]
        PAGE.write_text("\n".join(part for part in parts if part), encoding="utf-8")


HEAD = """# Results

Generated from `results/deps.jsonl` by `python benchmarks/results.py page`; the runs themselves by `python benchmarks/results.py run`, which
skips what is stored. Each figure is the mean over its seeds (± the standard deviation between seeds; popularity has no
seed), then the 95 % bootstrap interval over users of the first seed. *known*: the same over test positives whose user and item
training saw. Test positives are all of the test part, or a fixed sample of 10,000. Training stopped by NDCG@10 (full ranking) of 2,000
validation positives, and the one recipe for all sets is the best of three on MovieTweetings' validation part (one seed each, not
stored). Two faults were found by looking at test rankings of paper-music, and mended for all sets: unknown ids were zero
vectors, and an item's first row could be told by its empty audience; so its test part is not
untouched. Figures of two protocols are never comparable. Rows at the first moment of their item are no test positives
([why](deps.md)). What is not here yet was not run yet.

How to read them:

- **The weights.** With the paper's clip, nearly all propensities are below it and nearly all weights are 1/M ("what the weights
  did"): DEPS and its unweighted twin are the same model but for the scale of the loss, which only gradient clipping notices.
  The paired comparisons are of one seed: their p covers users, not training. Seeds reverse the sign between DEPS and its twin,
  so no p below speaks for debiasing.
- **Popularity.** It counts up to the moment of the request, as an audience does. Recent popularity sees time; DEPS reads the
  newest 30 users of an item and takes a mean, which tells neither how many there were nor how long ago. Where drift is fast,
  that decides, most of all on items that training never saw; the column *known* shows the rest.
- **The paper's sets** (`paper-...`) were rebuilt from published histories; their order is a possible one, not the true one, and
  puts events of one item close together, which flatters windows of recent popularity.
- **Overfitting.** The best round is among the first (`best_round` in the stored lines): ids are memorised within an epoch or two.
"""


def table(runs: list[dict[str, Any]], test: str, protocol: str) -> str:
    lines = []
    for model in dict.fromkeys(run["model"] for run in runs):
        found = [r for run in runs if run["model"] == model for r in run["results"] if (r["test"], r["protocol"]) == (test, protocol)]
        if not found:
            continue
        cells = [model]
        for metric in METRICS:
            values = [r["metrics"][metric] for r in found]
            cells.append(f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""))
        low, high = found[0]["interval_ndcg@10"]
        known = np.mean([r["metrics_of_known"]["ndcg@10"] for r in found])
        lines.append(
            "| " + " | ".join([*cells, f"{low:.4f} - {high:.4f}", "–" if np.isnan(known) else f"{known:.4f}", str(len(found))]) + " |"
        )
    if not lines:
        return ""
    first = next(r for run in runs for r in run["results"] if (r["test"], r["protocol"]) == (test, protocol))
    head = ["", *METRICS, "interval of ndcg@10", "known ndcg@10", "seeds"]
    units = "users" if protocol == "authors" else "positives"
    title = f"**{test} test, protocol `{protocol}`** ({first['units']:,} {units}, {first['known_units']:,} of them known)\n"
    return "\n".join([title, "| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1), *lines, ""])


def weight_table(runs: list[dict[str, Any]]) -> str:
    lines = []
    for run in runs:
        if run.get("weights"):
            w = run["weights"]
            clipped = " | ".join(f"{100 * w[name]:.1f}" if name in w else "–" for name in ("item_clipped", "user_clipped"))
            lines.append(
                f"| {run['model']} | {run['seed']} | {w['mean']:.2f} | {w['deviation']:.2f} | {w['effective_share']:.3f} | {clipped} |"
            )
    if not lines:
        return ""
    head = "| | seed | mean weight | deviation | effective share | item view clipped % | user view clipped % |"
    return "\n".join(["**What the weights did** (training positives)\n", head, "| --- |" + " ---: |" * 6, *lines, ""])


def compare_table(name: str, shares: str) -> str:
    rows = [json.loads(line) for line in COMPARED.read_text(encoding="utf-8").splitlines()] if COMPARED.exists() else []
    rows = [row for row in rows if (row["set"], row["shares"]) == (name, shares)]
    if not rows:
        return ""
    lines = []
    for row in sorted(rows, key=lambda row: row["test"]):
        interval_of = f"{row['low']:+.4f} to {row['high']:+.4f}"
        cells = (row["against"], row["test"], f"{row['difference']:+.4f}", interval_of, f"{row['p_holm']:.3f}", f"{row['p_t']:.3f}")
        lines.append("| " + " | ".join(cells) + " |")
    title = "**DEPS minus the other, NDCG@10, `full`, seed 0** (paired bootstrap over users, Holm-corrected; paired t-test)\n"
    return "\n".join(
        [title, "| against | test | difference | 95 % interval | p (Holm) | p (t) |", "| --- | --- |" + " ---: |" * 4, *lines, ""]
    )


if __name__ == "__main__":
    tyro.cli(
        Annotated[Tune, tyro.conf.subcommand(name="tune")]
        | Annotated[Run, tyro.conf.subcommand(name="run")]
        | Annotated[Compare, tyro.conf.subcommand(name="compare")]
        | Annotated[Page, tyro.conf.subcommand(name="page")],
        description=__doc__,
    ).run()
