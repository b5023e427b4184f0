"""How near a model comes to what users truly like, in a world where that is known.

At some impressions of the test set, a model scores all items that were born by then. Their order is compared
with the true preference P(r = 1), which no exposure plays a part in, so this is what every test of a biased
log tries to measure:

    ndcg@K       (sum over the first K of P(r = 1) / log2(rank + 1)) / (the same sum for the best order)
    clicks@K     sum over the first K of P(r = 1): the expected number of clicks if these K were shown
    fraction@K   clicks@K / (the same sum for the best order)
    preference   Spearman's rank correlation of the scores with P(r = 1), over all items
    exposure     Spearman's rank correlation of the scores with P(o = 1), and so with its logarithm: how much
                 of the exposure bias the scores repeat. Exposure that follows taste is in it, too
    beyond       the partial rank correlation of the scores with P(o = 1), given P(r = 1): what of the
                 exposure the scores repeat beyond what is liked

A rank correlation with something constant is 0. The results are an `Evaluation` with one unit per impression
and the test `ground truth`, so `unskew.evaluation.significance` has their intervals over users and compares
two models impression by impression.
"""

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.api.model import Model
from unskew.core.errors import BadInput, UnskewError
from unskew.data.batches.batch import Batch, contexts
from unskew.data.log.held_out import Criterion
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.diagnostics.log.statistics import ranks
from unskew.evaluation.evaluate import Evaluation
from unskew.nn.debias import scores_at
from unskew.nn.scoring import Scorer
from unskew.world.equations import START, STEP, Simulation
from unskew.world.simulate import World, simulate

Floats = NDArray[np.float64]

BLOCK = 256  # impressions that are scored at once
IMPRESSIONS = 1000  # impressions of a sample by default


def evaluate_against_ground_truth(
    model: Model | Scorer,
    world: World,
    split: Split | None = None,
    sample: int | None = IMPRESSIONS,
    seed: int = 0,
    cut: int = 10,
    select_by: Criterion | None = None,
    debias: float | None = None,
) -> Evaluation:
    """Compare the order in which a model puts all items with the true preferences of a world, at impressions
    of the test set.

    model: a trained model, or anything that scores a catalogue.
    split: the split of the world's log whose test set is asked; by default what the model was trained on.
    sample: how many impressions are asked, drawn at random; None is all of them.
    seed: the seed of this sample.
    cut: the K of NDCG@K, clicks@K and fraction@K.
    select_by: the validation metric that chose the weights; by default those that recommend.
    debias: of the scores, for models that have one; by default as the chosen weights have it.
    """
    if cut < 1:
        raise BadInput(f"cut {cut}: expected at least 1", field="cut")
    if not isinstance(model, Model):
        if split is None:
            raise BadInput(
                "a scorer without a split: expected the split whose test set is asked", field="split"
            )
        return _evaluate(model, world, split, sample, seed, cut, debias)
    split = model.split if split is None else split
    model.check_unseen(split)
    with model.weights_chosen_for("ground-truth", select_by) as (network, by):
        evaluation = _evaluate(network, world, split, sample, seed, cut, debias)
        about = {"weights_chosen_by": by, "debias": network.debias if debias is None else debias}
    about |= {"model": model.name, "training_seed": model.training.seed, "settings": model.settings_key}
    evaluation.about.update(about)
    return evaluation


def impressions_of(split: Split, sample: int | None = IMPRESSIONS, seed: int = 0) -> Ints:
    """Some impressions of the test set in order of time, each as one of its rows in the log. An impression is
    a user at a time."""
    if sample is not None and sample < 1:
        raise BadInput(f"sample {sample}: expected at least 1", field="sample")
    log, rows = split.log, split.rows("test")
    if not len(rows):
        raise BadInput("the test set of this split has no rows, so there are no impressions to ask")
    when_and_who = np.stack([log.time[rows], log.user[rows].astype(np.int64)])
    _, first = np.unique(when_and_who, axis=1, return_index=True)
    chosen = rows[first]  # in order of time, then of users
    if sample is not None and len(chosen) > sample:
        kept = np.random.default_rng([seed, 29]).choice(len(chosen), sample, replace=False)
        chosen = chosen[np.sort(kept)]
    return np.asarray(chosen)


@torch.no_grad()
def _evaluate(
    scorer: Scorer, world: World, split: Split, sample: int | None, seed: int, cut: int, debias: float | None
) -> Evaluation:
    log, rows = split.log, impressions_of(split, sample, seed)
    check_of_world(log, world)
    user, time = log.user[rows].astype(np.int64), np.asarray(log.time[rows])
    user_id, item_id = log.users.ids.to_numpy()[user], log.items.ids.to_numpy()
    catalog = scorer.catalog(log, int(time[0]), int(time[-1]) + 1)
    metrics: list[dict[str, float]] = []
    for first in range(0, len(rows), BLOCK):
        part = slice(first, first + BLOCK)
        context = contexts(log, user[part], time[part], scorer.history)
        scores_BI = scores_at(scorer, catalog, context, (debias,))[0].numpy()
        if not np.isfinite(scores_BI).all():
            raise UnskewError("a score is not finite (nan or inf): the model has diverged")
        pairs = user_id[part, None], item_id, time[part, None]
        asked = scores_BI, world.preference(*pairs), world.exposure(*pairs), world.exists(*pairs[1:])
        for scores, liked, shown, born in zip(*asked, strict=True):
            metrics.append(_metrics(scores[born], liked[born], shown[born], cut))
    values = {name: np.array([each[name] for each in metrics]) for name in metrics[0]}
    about = {"repeats": "kept as candidates", "impressions": len(rows), "seed": seed}
    about |= {"whole_test": len(impressions_of(split, None)), "data": log.fingerprint()}
    return Evaluation("full", "ground-truth", user, values, np.ones(len(rows)), rows=rows, about=about)


def _metrics(scores: Floats, liked: Floats, shown: Floats, cut: int) -> dict[str, float]:
    """The metrics of one impression, from the scores, P(r = 1) and P(o = 1) of the items."""
    listed = liked[np.argsort(-scores, kind="stable")[:cut]]
    best = -np.sort(-liked)[:cut]
    discount = 1 / np.log2(np.arange(2, len(best) + 2))
    by_score, by_preference, by_exposure = (_standing(values) for values in (scores, liked, shown))
    preference, exposure = float(by_score @ by_preference), float(by_score @ by_exposure)
    correlation = float(by_preference @ by_exposure)
    left = math.sqrt(max(0.0, (1 - preference**2) * (1 - correlation**2)))
    return {
        f"ndcg@{cut}": float(listed @ discount / (best @ discount)),
        f"clicks@{cut}": float(listed.sum()),
        f"fraction@{cut}": float(listed.sum() / best.sum()),
        "preference": preference,
        "exposure": exposure,
        "beyond": (exposure - preference * correlation) / left if left > 1e-6 else 0.0,
    }


def _standing(values: Floats) -> Floats:
    """Ranks with mean 0 and length 1, so that a product of two is their correlation; 0 if all are equal."""
    centred = ranks(values) - (len(values) + 1) / 2
    length = float(np.linalg.norm(centred))
    return centred / length if length else centred


# The world of a log


def world_of(log: Log) -> World:
    """The world that a log was simulated in, simulated again from the settings that the log has kept, through
    any number of preparations."""
    metadata = log.metadata
    while metadata.world is None and metadata.origin is not None:
        metadata = metadata.origin
    where = log.folder or "this log"
    if metadata.world is None:
        raise BadInput(
            f"{where}: not a log of a simulated world that `unskew simulate` made, so its ground truth is "
            "not known"
        )
    unknown = set(metadata.world) - {field.name for field in fields(Simulation)}
    if unknown:
        raise BadInput(f"{where}: its world has settings that this version does not know: {sorted(unknown)}")
    world = simulate(**metadata.world)
    check_of_world(log, world)
    return world


def check_of_world(log: Log, world: World) -> None:
    """Refuse a log whose rows did not happen in a world. The log may lack rows of the world."""
    if log is world.log:
        return
    where = log.folder or "this log"
    if not np.isin(_events(log, world.settings, where), _events(world.log, world.settings, where)).all():
        raise BadInput(f"{where}: has rows that did not happen in its world as this version simulates it")


def _events(log: Log, world: Simulation, where: str) -> Ints:
    """A number for each row that says who, what, when, and whether it was clicked."""
    user, item = (ids.to_numpy(zero_copy_only=False) for ids in (log.users.ids, log.items.ids))
    step, rest = np.divmod(np.asarray(log.time, np.int64) - START, STEP)
    whole = all(np.issubdtype(ids.dtype, np.integer) for ids in (user, item)) and not rest.any()
    sides = ((user, world.users), (item, world.items), (step, world.steps)) if whole else ()
    if not sides or not all(ids.min() >= 0 and ids.max() < size for ids, size in sides):
        raise BadInput(f"{where}: its users, items and times are not those of its world")
    pair = user[log.user].astype(np.int64) * world.items + item[log.item]
    return np.asarray((pair * world.steps + step) * 2 + log.label, np.int64)


# Scorers that know the ground truth


@dataclass(frozen=True, eq=False)
class TrueScorer:
    """Scores every item by the true probability of being liked, or of being shown."""

    world: World
    by: Literal["preference", "exposure"] = "preference"
    history = 1

    def catalog(self, log: LogView, first: int, last: int) -> "_TrueCatalog":
        """The true probabilities as scores, whatever the period."""
        return _TrueCatalog(self, log)


@dataclass(frozen=True, eq=False)
class _TrueCatalog:
    scorer: TrueScorer
    log: LogView

    def scores(self, context: Batch) -> Tensor:
        user = self.log.users.ids.to_numpy()[context.user_B.numpy()]
        chance = getattr(self.scorer.world, self.scorer.by)
        item, time = self.log.items.ids.to_numpy(), context.times_B.numpy()
        return torch.from_numpy(chance(user[:, None], item, time[:, None]))
