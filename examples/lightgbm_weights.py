"""Weights for another library: LightGBM learns who clicks what, with and without unskew's inverse
propensities.

    python examples/lightgbm_weights.py            # half a minute

The worlds are simulated, so the ground truth is known: would this user click this item, had it been shown? A
log has answers only for what was shown; good weights make these pairs stand for all pairs, and about all
pairs the log-loss asks. The same rows
are weighted in three ways: not at all, by what a debiased model estimated, and by the true propensities,
which nobody has outside of a simulation.

What comes out: where exposure is skewed (bias 1), estimated weights bring the guesses nearer to the ground
truth, sometimes more than the true ones, which leave few effective rows. Where every item is shown equally
often (bias 0), there is nothing to correct
and they do harm: an estimator that sees clicks alone takes "liked" for "shown" and holds clicked pairs for
common ones.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow.parquet as pq
import torch
import tyro
from numpy.typing import NDArray

import unskew

Numbers = NDArray[Any]

# Small, for half a minute. The paper's clip, 0.05, would make nearly all weights equal: see `unskew
# propensity health`.
SMALL = {
    "epochs": 3,
    "clip": 0.002,
    "width": 32,
    "history": 20,
    "past_items": 20,
    "past_users": 20,
    "propensity_width": 32,
    "valid_examples": 500,
    "learning_rate": 5e-3,
}
PAIRS = 50_000  # about which the ground truth is asked


@dataclass(frozen=True)
class Compared:
    bias: float
    weights: str
    effective_rows: float  # as many unweighted ones have the same variance
    mean_guess: float
    mean_ground_truth: float
    log_loss: float


def main(
    users: int = 400, items: int = 100, steps: int = 100, epochs: int = 20, seed: int = 0
) -> list[Compared]:
    """Compare weights in a world with exposure bias and in one without."""
    torch.set_num_threads(1)  # more of them only wait for each other: the matrices are small
    found = []
    for bias in (1.0, 0.0):
        world = unskew.simulate(users=users, items=items, steps=steps, bias=bias, randomised=0.0, seed=seed)
        found += compare(world, epochs, seed)
    return found


def compare(world: unskew.World, epochs: int, seed: int) -> list[Compared]:
    split = unskew.split(world.log)
    model = unskew.Debiased("sasrec", SMALL | {"propensity_epochs": epochs, "seed": seed}).fit(split)
    with tempfile.TemporaryDirectory() as folder:
        file = (
            Path(folder) / "weights.parquet"
        )  # on the command line: unskew propensity export RUN DATA --out weights.parquet
        model.save_propensities(world.log, file)
        rows = pq.read_table(file, filters=[("part", "==", "train")])
    user, item, time, label, weight = (
        rows[name].to_numpy() for name in ("user", "item", "time", "label", "weight")
    )
    assert world.log.propensity is not None
    weights = {
        "none": np.ones(len(rows)),
        "estimated": weight,
        "true": 1 / world.log.propensity[split.mask("train")],
    }

    # Features come from the older half of the training set, what is learned from the newer: no label is its
    # own feature.
    older = time < np.median(time)
    features = Features(world, user[older], item[older], label[older])

    random = np.random.default_rng(seed)
    anyone, anything = (
        random.integers(0, world.settings.users, PAIRS),
        random.integers(0, world.settings.items, PAIRS),
    )
    ground_truth = world.preference(
        anyone, anything, random.choice(world.log.time[split.mask("test")], PAIRS)
    )

    found = []
    for name, values in weights.items():
        used = values[~older] / values[~older].mean()
        data = lightgbm.Dataset(features.of(user[~older], item[~older]), label[~older], weight=used)
        settings = {
            "objective": "binary",
            "num_leaves": 7,
            "learning_rate": 0.05,
            "num_threads": 1,
            "seed": seed,
            "verbose": -1,
        }
        guess = np.asarray(
            lightgbm.train(settings, data, num_boost_round=100).predict(features.of(anyone, anything))
        )
        loss = -(ground_truth * np.log(guess) + (1 - ground_truth) * np.log(1 - guess)).mean()
        effective = used.sum() ** 2 / (used**2).sum()
        found.append(Compared(world.settings.bias, name, effective, guess.mean(), ground_truth.mean(), loss))
    return found


class Features:
    """Of a user and of an item: how often they were shown, and how often they were clicked then."""

    def __init__(self, world: unskew.World, user: Numbers, item: Numbers, label: Numbers) -> None:
        self.users, self.items = (
            self._table(ids, label, size)
            for ids, size in ((user, world.settings.users), (item, world.settings.items))
        )

    def _table(self, ids: Numbers, label: Numbers, size: int) -> Numbers:
        shown, clicked = np.bincount(ids, minlength=size), np.bincount(ids, label, minlength=size)
        return np.stack([shown, (clicked + label.mean()) / (shown + 1)], axis=1)

    def of(self, user: Numbers, item: Numbers) -> Numbers:
        return np.concatenate([self.users[user], self.items[item]], axis=1)


if __name__ == "__main__":
    compared = tyro.cli(main)
    print(
        f"{'bias':>4}  {'weights':10}{'effective rows':>16}{'mean guess':>12}"
        f"{'mean ground truth':>12}{'log-loss on all pairs':>23}"
    )
    for row in compared:
        print(
            f"{row.bias:4g}  {row.weights:10}{row.effective_rows:16,.0f}{row.mean_guess:12.4f}"
            f"{row.mean_ground_truth:12.4f}{row.log_loss:23.4f}"
        )
