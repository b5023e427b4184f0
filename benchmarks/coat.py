"""Coat: ratings that people chose to give, and ratings of items that were drawn for them at random. A model
learns from the former and is tested on the latter.

    python benchmarks/coat.py run      # results/coat.jsonl, some minutes
    python benchmarks/coat.py page     # docs/coat.md

Ratings of at least 4 are positive. There are no times, so nothing has a past: the models are matrix factors,
one of our own here and UIR without its own propensities. Weight decay and epochs of each are chosen without
correction, by a tenth of the chosen ratings that is held out for it; the random ratings choose nothing.
"""

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import process_time
from typing import Annotated, Any, Literal

import numpy as np
import pyarrow as pa
import torch
import tyro
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

import unskew
from unskew.data.batches.batch import Batch, contexts
from unskew.data.log.split import Known, Split, Splitting, split_at
from unskew.models.base import ModelConfig, Recommender, Training, model_named
from unskew.models.factors import MatrixFactors
from unskew.models.uir import UIR
from unskew.nn.losses import click_loss
from unskew.nn.phases import Phase, Stage
from unskew.propensity.base import Propensity
from unskew.training.run import train
from unskew.training.run_config import RunSettings

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "results" / "coat.jsonl", ROOT / "docs" / "coat.md"
DATA = ROOT.parent / "shared" / "data" / "coat"
POSITIVE, CUTOFF = 4, 5
FIGURES = ("auc", "ndcg", "pooled_auc")
Floats = NDArray[np.float64]


class Factors(MatrixFactors, name="coat-factors", paper="Koren et al., Matrix Factorization, Computer 2009"):
    """Matrix factors with a bias per user and per item, and binary cross-entropy."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        """The settings of the factors."""

        width: int = 16
        """The width of the embeddings."""
        learns_from: Literal["shown", "drawn"] = "drawn"
        """Whether negatives are the ratings below 4, or drawn items."""

    config: Config

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.user_bias = nn.Embedding(known.users.size + 1, 1)
        self.item_bias = nn.Embedding(known.items.size + 1, 1)
        nn.init.zeros_(self.user_bias.weight)
        nn.init.zeros_(self.item_bias.weight)

    def context(self, batch: Batch) -> Tensor:
        vector = super().context(batch)
        bias = self.user_bias(batch.user_B.clamp(max=self._sizes[0]))
        return torch.cat([vector, bias, torch.ones_like(bias)], dim=-1)

    def vectors(self, item: Tensor) -> Tensor:
        vector, bias = super().vectors(item), self.item_bias(item.clamp(max=self._sizes[1]))
        return torch.cat([vector, torch.ones_like(bias), bias], dim=-1)

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        drawn = self.config.learns_from == "drawn"
        kind: Any = "positives" if drawn else "pairs"
        phase = Phase("clicks", kind, self.loss, self.parameters, negatives=int(drawn) * 4, separate=True)
        return (Stage("train", (phase,), epochs, validated=True),)

    def loss(self, batch: Batch) -> Tensor:
        return click_loss(batch.with_offset(self(batch)), batch.labels_BC, batch.weight_BC)


class Rated(Propensity, name="coat-rated"):
    """The fraction of the users who chose to rate an item, whatever the rating."""

    fraction: Tensor

    def fit_statistics(self, split: Split) -> None:
        rows = split.rows("train")
        counts = np.bincount(split.log.item[rows], minlength=len(split.log.items))
        self.fraction = torch.from_numpy((counts + 0.5) / (len(split.log.users) + 1)).float()

    def item_view(self, batch: Batch) -> Tensor:
        return self.fraction[batch.candidates_BC]

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: unskew.Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        asked, _ = np.broadcast_arrays(np.asarray(item), np.asarray(time))
        return self.fraction[torch.tensor(asked)].log()


class Given(Propensity, name="coat-given"):
    """The propensities of pairs that come with the data, which its authors learned from features of users and
    items; of an item alone, their mean."""

    p_UI: Tensor

    def fit_statistics(self, split: Split) -> None:
        users, items = (np.asarray(ids.of(np.arange(len(ids)))) for ids in (split.log.users, split.log.items))
        given = np.loadtxt(DATA / "propensities.ascii")
        self.p_UI = torch.from_numpy(given[np.ix_(users, items)]).float()

    def item_view(self, batch: Batch) -> Tensor:
        return self.p_UI[batch.user_B[:, None], batch.candidates_BC]

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: unskew.Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        asked, _ = np.broadcast_arrays(np.asarray(item), np.asarray(time))
        return self.p_UI.mean(0)[torch.tensor(asked)].log()


@cache
def ratings(
    held_out: bool, positive: int = POSITIVE
) -> tuple[Split, NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """What is trained on, and the pairs of users and items that are tested with their labels: the random
    ratings, or else a tenth of the chosen ones, which is then not trained on. Ratings of at least `positive`
    are likes."""
    chosen, drawn = (np.loadtxt(DATA / f"{name}.ascii", dtype=int) for name in ("train", "test"))
    if held_out:
        user, item = np.nonzero(chosen)
        tenth = np.random.default_rng(0).random(len(user)) < 0.1
        drawn = np.zeros_like(chosen)
        drawn[user[tenth], item[tenth]] = chosen[user[tenth], item[tenth]]
        chosen = np.where(drawn > 0, 0, chosen)
    parts = []
    for time, table in enumerate((chosen, drawn)):
        user, item = np.nonzero(table)
        rating = table[user, item]
        parts.append(
            pa.table({"user": user, "item": item, "time": np.full(len(user), time), "rating": rating})
        )
    log = unskew.read(pa.concat_tables(parts), positive=positive)
    tested = np.flatnonzero(log.time == 1)
    split = split_at(log, Splitting(repeats="keep"), 1, 1)
    return split, log.user[tested].astype(np.int64), log.item[tested].astype(np.int64), log.label[tested] == 1


def measured(model: Recommender, held_out: bool) -> dict[str, float]:
    """The means over users of AUC and NDCG@5, among the items that each of them rated, and the AUC of all
    pairs together. Users with one kind of rating have no AUC."""
    split, user, item, positive = ratings(held_out)
    scores, everybody = scores_of(model, split, user, item), np.arange(len(split.log.users))
    aucs, ndcgs = [], []
    for each in everybody[np.bincount(user[positive], minlength=len(everybody)) > 0]:
        mine, liked = scores[user == each], positive[user == each]
        gains = (
            liked[np.argsort(-mine, kind="stable")][:CUTOFF] / np.log2(np.arange(2, 2 + CUTOFF))[: len(mine)]
        )
        ndcgs.append(gains.sum() / (1 / np.log2(np.arange(2, 2 + min(CUTOFF, int(liked.sum()))))).sum())
        if not liked.all():
            aucs.append(auc(mine, liked))
    return {"auc": float(np.mean(aucs)), "ndcg": float(np.mean(ndcgs)), "pooled_auc": auc(scores, positive)}


def scores_of(model: Recommender, split: Split, user: NDArray[np.int64], item: NDArray[np.int64]) -> Floats:
    """The score of each pair of a user and an item."""
    with torch.no_grad():
        asked = contexts(split.log, np.arange(len(split.log.users)), 1)
        scores = model.eval().catalog(split.log, 1, 1).scores(asked)[user, item]
        return np.asarray(scores.double().numpy())


def auc(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """How often a positive is above another one; ties count half."""
    above = scores[positive][:, None] - scores[~positive]
    return float((above > 0).mean() + (above == 0).mean() / 2)


# What is compared

UNCORRECTED = "nothing"
SHOWN, DRAWN, PLAIN_UIR = (
    "factors, ratings below 4",
    "factors, drawn negatives",
    "UIR, eta 0, drawn negatives",
)
BACKBONES: dict[str, tuple[str, ModelConfig]] = {
    SHOWN: ("coat-factors", Factors.Config(learns_from="shown")),
    DRAWN: ("coat-factors", Factors.Config(learns_from="drawn")),
    PLAIN_UIR: ("uir", UIR.Config(exponent=0.0, width=16)),
}
ESTIMATORS = {"coat-given": "the given p", "coat-rated": "the fraction who rated it", "item-pro": "Item-Pro"}
ASYMMETRIC: dict[str, dict[str, Any]] = {
    "drawn negatives x p^1/2": {"method": "weighted-negatives", "strength": 0.5},
    "drawn negatives x p": {"method": "weighted-negatives", "strength": 1.0},
    "clicks x (1/p)^1/2": {"method": "ips", "strength": 0.5},
    # `clipped` would multiply the loss by the clip, and weight decay would then outweigh it.
    "both sides x 1/p": {"method": "ips-both", "weights": "snips"},
}
CORRECTIONS: dict[str, dict[str, dict[str, Any]]] = {
    SHOWN: {"(1/p)^1/2": {"method": "ips", "strength": 0.5}, "1/p": {"method": "ips", "strength": 1.0}},
    DRAWN: ASYMMETRIC,
    PLAIN_UIR: {name: ASYMMETRIC[name] for name in ("drawn negatives x p^1/2", "both sides x 1/p")},
}
DECAYS, EPOCHS = (1e-5, 1e-4, 1e-3), (10, 20, 40)
TRAINING = Training(batch_size=256, learning_rate=1e-2)


def trained(
    backbone: str, correction: dict[str, Any], training: Training, held_out: bool, positive: int = POSITIVE
) -> Recommender:
    """A model of this backbone, corrected."""
    name, config = BACKBONES[backbone]
    wrapped = model_named(f"debiased-{name}")
    asked: Any = wrapped.Config(backbone=config, clip=1e-3, **correction)  # type: ignore[call-arg]
    settings = RunSettings(model=wrapped.name, config=asked, training=training)
    return train(ratings(held_out, positive)[0], settings).model


def chosen(backbone: str) -> tuple[Training, dict[str, Any]]:
    """Weight decay and epochs that rank held-out chosen ratings best, and how good each was."""
    found = {}
    for decay in DECAYS:
        for epochs in EPOCHS:
            training = replace(TRAINING, weight_decay=decay, epochs=epochs)
            model = trained(backbone, {"propensity": "none"}, training, held_out=True)
            found[decay, epochs] = measured(model, held_out=True)["auc"]
    decay, epochs = max(found, key=lambda key: found[key])
    facts = {"weight_decay": decay, "epochs": epochs, "held_out_auc": found[decay, epochs]}
    return replace(TRAINING, weight_decay=decay, epochs=epochs), facts


@dataclass(frozen=True, kw_only=True)
class Run:
    """Train and test everything."""

    seeds: int = 10
    """How many seeds each line of the table has."""
    corrections: tuple[str, ...] = ()
    """Whose lines are measured again; the others stay as they are. By default all."""

    def run(self) -> None:
        torch.set_num_threads(1)
        lines = []
        if self.corrections and RESULTS.exists():
            stored = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
            lines = [line for line in stored if line["correction"] not in self.corrections]
        for backbone, corrections in CORRECTIONS.items():
            training, facts = chosen(backbone)
            jobs: list[tuple[str, str, dict[str, Any]]] = [(UNCORRECTED, "", {"propensity": "none"})]
            for name, settings in corrections.items():
                jobs += [(name, by, settings | {"propensity": by}) for by in ESTIMATORS]
            for name, by, settings in jobs:
                if self.corrections and name not in self.corrections:
                    continue
                for seed in range(self.seeds):
                    started = process_time()
                    model = trained(backbone, settings, replace(training, seed=seed), held_out=False)
                    line = {"backbone": backbone, "correction": name, "propensity": by, "seed": seed}
                    line |= measured(model, held_out=False) | facts
                    lines.append(line | {"seconds": round(process_time() - started, 2)})
                print(*lines[-1].items(), flush=True)
        RESULTS.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


HEAD = """# Coat: does a correction help on random ratings?

`python benchmarks/coat.py run` writes `results/coat.jsonl`, and `python benchmarks/coat.py page` writes
this page from it. In the data set Coat, 290 users rated 24 coats of their own choice each, and 16 of 300
coats that were drawn for them at random. Models learn from the chosen ratings; a rating of at least 4 is a
click. They are tested on the random ratings: AUC and NDCG@5 among the drawn coats of a user, as means over
users, and the AUC of all pairs together. Weight decay and epochs are those that rank a held-out tenth of
the chosen ratings best without a correction; the random ratings choose nothing. The corrections are those
of `debiased-NAME`, with a clip of 0.001.

The data has no times, so `exposure` and `power` have nothing to learn from. Three propensities p are used:
those given with the data (their mean over users where a method needs a propensity of the item alone), the
fraction of the users who rated an item, and the item's fraction of the clicks (Item-Pro).

The rows of corrections are differences from the first row of their table: the mean over {seeds} seeds ± its
standard error. The standard error is that of training alone, not of the choice of users and coats.
"""

FOUND = """
## What the tables show

- With the ratings below 4 as negatives, (1/p)^1/2 improves the AUC with every propensity, and NDCG@5 a
  little. The full 1/p improves more with propensities of items, and not with the given ones of pairs.
- The method "drawn negatives x p^1/2" does not help here. Nothing is gained with the given propensities and
  with the fraction who rated, and Item-Pro does harm, the more of it is removed. A likely reason, which is
  not tested here: coats were not shown by a shop. The users chose them, so a coat that is chosen often is
  also liked.
- The method "both sides x 1/p" lowers NDCG@5 in every row, in one of them within the random error. The AUC
  rises in some rows and falls in others.
- These are {lines} comparisons on one test of 290 users, with settings that were chosen once, without a
  correction. A difference of a hundredth proves nothing.
"""


def difference(here: list[dict[str, Any]], plain: list[dict[str, Any]], name: str) -> str:
    """The mean difference of one figure seed by seed, with its standard error."""
    gains = np.array([line[name] for line in here]) - np.array([line[name] for line in plain])
    error = gains.std(ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return f"{gains.mean():+.3f} ± {error:.3f}"


@dataclass(frozen=True, kw_only=True)
class Page:
    """Write docs/coat.md."""

    def run(self) -> None:
        lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
        page = HEAD.replace("{seeds}", str(len({line["seed"] for line in lines})))
        for backbone in CORRECTIONS:
            of = [line for line in lines if line["backbone"] == backbone]
            plain = [line for line in of if line["correction"] == UNCORRECTED]
            levels = [f"{np.mean([line[name] for line in plain]):.3f}" for name in FIGURES]
            chosen = f"Weight decay {plain[0]['weight_decay']:g}, {plain[0]['epochs']} epochs."
            page += f"\n## {backbone[0].upper()}{backbone[1:]}\n\n{chosen}\n\n"
            page += (
                "| correction | p | AUC | NDCG@5 | AUC of all pairs |\n| --- | --- | ---: | ---: | ---: |\n"
            )
            page += f"| {UNCORRECTED} | | {' | '.join(levels)} |\n"
            for correction, by in dict.fromkeys((line["correction"], line["propensity"]) for line in of):
                here = [line for line in of if (line["correction"], line["propensity"]) == (correction, by)]
                if correction != UNCORRECTED:
                    cells = [correction, ESTIMATORS[by], *(difference(here, plain, name) for name in FIGURES)]
                    page += f"| {' | '.join(cells)} |\n"
        corrected = {tuple(line[key] for key in ("backbone", "correction", "propensity")) for line in lines}
        found = FOUND.replace("{lines}", str(len(corrected) - len(CORRECTIONS)))
        PAGE.write_text(page + found, encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(
        Annotated[Run, tyro.conf.subcommand(name="run")] | Annotated[Page, tyro.conf.subcommand(name="page")],
        description=__doc__,
    ).run()
