"""Coat in two conventions of NDCG@5, beside published figures and beside a random ranking.

    python benchmarks/coat_published.py run     results/coat_published.jsonl, a minute
    python benchmarks/coat_published.py page    docs/published.md

published   a rating of at least 3 is a like; a user without a like in the test has an NDCG of 1
ours        a rating of at least 4 is a like; users without one do not count (docs/coat.md)

The AUC is that of all pairs together. The model is the matrix factorisation of `benchmarks/coat.py` on the
chosen ratings. Its weight decay and epochs were chosen there, by a tenth of the chosen ratings with likes
from 4; the random ratings choose nothing.
"""

import csv
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import tyro
from cells import ROOT, provenance
from coat import CUTOFF, SHOWN, TRAINING, Floats, auc, ratings, scores_of, trained
from numpy.typing import NDArray
from pages import replace_between

from unskew.report.table import Table

RESULTS = ROOT / "results" / "coat_published.jsonl"
PAGE, FIGURES = ROOT / "docs" / "published.md", ROOT / "benchmarks" / "published_coat.csv"
BEGIN, END = "<!-- made by benchmarks/coat_published.py page -->", "<!-- end -->"
SETTINGS = replace(TRAINING, weight_decay=1e-3, epochs=20)
MODELS: dict[str, dict[str, Any]] = {
    "matrix factors": {"propensity": "none"},
    "matrix factors, 1/p (the given p)": {"method": "ips", "strength": 1.0, "propensity": "coat-given"},
    "matrix factors, 1/p (the fraction who rated it)": {
        "method": "ips",
        "strength": 1.0,
        "propensity": "coat-rated",
    },
}
RANDOM = "random ranking"


class Convention(NamedTuple):
    """What counts as a like, and what a user without a like counts."""

    name: str
    positive: int
    without_likes: float | None


CONVENTIONS = (Convention("published", 3, 1.0), Convention("ours", 4, None))


def ndcg(
    scores: Floats, user: NDArray[np.int64], likes: NDArray[np.bool_], without_likes: float | None
) -> float:
    """The mean over users of NDCG@5 among the items that a user rated.

    without_likes: the value of a user without a like; None leaves such users out.
    """
    discounts, values = 1 / np.log2(np.arange(2, 2 + CUTOFF)), []
    for each in np.unique(user):
        mine, liked = scores[user == each], likes[user == each]
        if liked.any():
            top = liked[np.argsort(-mine, kind="stable")][:CUTOFF]
            values.append((top * discounts[: len(top)]).sum() / discounts[: liked.sum()].sum())
        elif without_likes is not None:
            values.append(without_likes)
    return float(np.mean(values))


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and test in both conventions; the random ranking has as many draws as the models have seeds."""

    seeds: int = 5
    """The number of seeds."""

    def __call__(self) -> None:
        """Write all lines again."""
        torch.set_num_threads(1)
        lines = []
        for convention, seed in product(CONVENTIONS, range(self.seeds)):
            split, user, item, likes = ratings(held_out=False, positive=convention.positive)
            scores = {RANDOM: np.random.default_rng(seed).random(len(user))}
            for name, correction in MODELS.items():
                training = replace(SETTINGS, seed=seed)
                model = trained(SHOWN, correction, training, held_out=False, positive=convention.positive)
                scores[name] = scores_of(model, split, user, item)
            for name, of in scores.items():
                line = {"convention": convention.name, "model": name, "seed": seed, "auc": auc(of, likes)}
                line["ndcg@5"] = ndcg(of, user, likes, convention.without_likes)
                lines.append(line | {"users": len(np.unique(user)), "likes": int(likes.sum())} | provenance())
                print(lines[-1], flush=True)
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write the table into docs/published.md."""

    def __call__(self) -> None:
        """Replace what stands between the marks."""
        replace_between(PAGE, BEGIN, END, table(RESULTS, FIGURES).markdown() + "\n")


def table(results: Path, figures: Path) -> Table:
    """Published figures and ours, the best first by NDCG@5 in the published convention."""
    lines = [json.loads(text) for text in results.read_text(encoding="utf-8").splitlines()]
    rows = [
        (float(figure["ndcg5"]), [figure["method"], figure["source"], figure["auc"], figure["ndcg5"], "", ""])
        for figure in csv.DictReader(figures.read_text(encoding="utf-8").splitlines())
    ]
    for model in (RANDOM, *MODELS):
        row = [f"**{model}**" if model == RANDOM else model, "ours"]
        for convention, metric in product(("published", "ours"), ("auc", "ndcg@5")):
            values = [
                line[metric] for line in lines if (line["convention"], line["model"]) == (convention, model)
            ]
            row.append(f"{np.mean(values):.4f}")
        rows.append((float(row[3]), row))
    head = ["model", "figures of", "AUC", "NDCG@5", "AUC, likes from 4", "NDCG@5, likes from 4"]
    return Table(head, [row for _, row in sorted(rows, key=lambda of: -of[0])], text=(0, 1))


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": Run, "page": Page})()
