"""The picture of the README: what is shown without and with debiasing, and what users like.

    python benchmarks/story.py run      results/story.jsonl
    python benchmarks/story.py page     docs/story.svg

Simulated worlds in which popular items were shown more, so that the ground truth is known. Pulse is trained
once in each; only the debiasing strength of its lists changes. Lists of ten items for all users, when the log
ends. By deciles of popularity in the log, the most popular first: which fraction of the places of the lists
each has, and which it would have in the best possible lists. And the mean true preference for what is listed,
as a fraction of that of the best possible lists.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from numpy.typing import NDArray

import unskew
from unskew.report.charts import Lines, picture

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "results" / "story.jsonl", ROOT / "docs" / "story.svg"
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
DRAWN = 1.0  # the strength that is drawn beside 0
SEEDS = (0, 1, 2)
TRAINING = {"epochs": 2, "sample": 2000, "valid_examples": 300}
WORLD: dict[str, Any] = {"users": 400, "items": 100, "steps": 80, "impressions": 0.15, "shown": 8.0}
WORLD |= {"bias": 1.5, "history": 0.0, "audience": 0.0, "drift": 0.2}  # exposure follows popularity alone
LENGTH, DECILES = 10, 10
Floats = NDArray[np.float64]


def measure(seed: int) -> dict[str, Any]:
    """One world."""
    world = unskew.simulate(**WORLD, seed=seed)
    log = world.log
    now = int(log.time.max()) + 1
    users, items = (np.array(of.ids.to_pylist()) for of in (log.users, log.items))
    preference = world.preference(users[:, None], items[None, :], now)
    clicks = np.bincount(log.item[: log.positives], minlength=len(items))
    decile = np.empty(len(items), np.int64)
    decile[np.argsort(-clicks, kind="stable")] = np.arange(len(items)) * DECILES // len(items)
    best = np.argsort(-preference, axis=1, kind="stable")[:, :LENGTH]
    most = float(np.take_along_axis(preference, best, 1).mean())
    model = unskew.create_model("pulse", TRAINING | {"seed": seed})
    model.fit(unskew.split(log, fractions=(70, 10, 20)), show_progress=False)
    lists = {strength: listed(model, log, strength) for strength in STRENGTHS}
    gains = {s: float(np.take_along_axis(preference, codes, 1).mean()) for s, codes in lists.items()}
    places = {f"{s:g}": fractions(decile[codes]) for s, codes in lists.items()}
    return {
        "seed": seed,
        "clicks": (np.bincount(decile, clicks) / clicks.sum()).round(4).tolist(),
        "best": fractions(decile[best]),
        "places": places,
        "liked": {f"{s:g}": round(gain / most, 4) for s, gain in gains.items()},
        "random": round(float(preference.mean()) / most, 4),
    }


def listed(model: unskew.Model, log: unskew.Log, strength: float) -> NDArray[np.int64]:
    """The codes of the items in the list of each user."""
    ids = log.users.ids.to_pylist()
    table = model.recommend(users=ids, k=LENGTH, debias=strength, include_seen=True).table
    codes = {item: code for code, item in enumerate(log.items.ids.to_pylist())}
    return np.array([codes[item] for item in table["item_id"].to_pylist()]).reshape(len(ids), LENGTH)


def fractions(deciles: NDArray[np.int64]) -> list[float]:
    """The fraction of the places that each decile has."""
    counts = np.bincount(deciles.ravel(), minlength=DECILES)
    return [round(float(count), 4) for count in counts / counts.sum()]


def run() -> None:
    """Measure all worlds."""
    lines = [measure(seed) for seed in SEEDS]
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def page() -> None:
    """Draw what is stored."""
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]

    def mean(values: Sequence[Sequence[float]]) -> list[float]:
        return [float(value) for value in np.mean(np.array(values), axis=0)]

    places = Lines(
        x=list(range(1, DECILES + 1)),
        series={
            "lists, debias 0": mean([line["places"]["0"] for line in lines]),
            f"lists, debias {DRAWN:g}": mean([line["places"][f"{DRAWN:g}"] for line in lines]),
            "best lists (truth)": mean([line["best"] for line in lines]),
        },
        x_label="items in tenths, the most popular in the log first",
        y_label="fraction of the places in lists",
        title="What is shown",
        x_ticks=[1, 4, 7, 10],
        marked=True,
    )
    liked = Lines(
        x=list(STRENGTHS),
        series={
            "lists of Pulse": mean([[line["liked"][f"{s:g}"] for s in STRENGTHS] for line in lines]),
            "random items": [float(np.mean([line["random"] for line in lines]))] * len(STRENGTHS),
        },
        x_label="debiasing strength",
        y_label="true preference (best: 1)",
        title="What users truly like of it",
        x_ticks=list(STRENGTHS),
        y_range=(0.0, 1.0),
        marked=True,
    )
    alt = "What is shown without and with debiasing, and what users truly like, in worlds with ground truth"
    PICTURE.write_text(picture([places, liked], "story", alt) + "\n", encoding="utf-8")


if __name__ == "__main__":
    tyro.extras.subcommand_cli_from_dict({"run": run, "page": page}, description=__doc__)
