"""Ranks first, metrics as functions of ranks. No figure without its protocol, no comparison across two of them.

Protocols:
  full     each positive among the whole catalogue: items that existed before, without the user's own past ones
  uni100   each positive among 100 uniformly drawn ones of these
  authors  the same 100, pooled by user, as the published tables do: a user with many positives hits easily
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unskew.catalog import Scorer
from unskew.data.batches import contexts
from unskew.data.split import Part, Protocol, Split, Test
from unskew.data.views import PAD, Ints
from unskew.errors import BadInput, UnskewError
from unskew.progress import steps
from unskew.statistics import gini

Floats = NDArray[np.float64]

CUTS = (5, 10, 20)
NEGATIVES = 100
SPARE = 2  # times as many are drawn, for those that turn out to be the user's own
BLOCK = 256  # contexts ranked between two signs of progress


# Metrics: pure functions of ranks (from 1; ties share their mean rank, so a constant scorer earns nothing)


def ndcg(rank: Floats, cut: int) -> Floats:
    return np.where(rank <= cut, 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)


def hit(rank: Floats, cut: int) -> Floats:
    return (rank <= cut).astype(np.float64)


def mrr(rank: Floats, cut: int) -> Floats:
    return np.where(rank <= cut, 1 / np.maximum(rank, 1), 0.0)


METRICS: dict[str, Callable[[Floats, int], Floats]] = {"ndcg": ndcg, "hr": hit, "mrr": mrr}


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model, one test, one protocol: a value per metric and unit, and their means. Units are rows, or users if pooled."""

    protocol: Protocol
    test: Test
    user: Ints  # of each unit
    values: dict[str, Floats]
    known: NDArray[np.bool_]  # units whose users and items training saw
    beyond: dict[str, float] = field(default_factory=dict)  # what the lists are like: coverage, popularity
    rows: Ints | None = None  # of the log, one per unit; None where units are users

    def mean(self, metric: str) -> float:
        return float(self.values[metric].mean()) if len(self.user) else float("nan")

    def metrics(self) -> dict[str, float]:
        return {name: self.mean(name) for name in self.values}

    def metrics_of_known(self) -> dict[str, float]:
        return {name: float(values[self.known].mean()) if self.known.any() else float("nan") for name, values in self.values.items()}

    def as_dict(self) -> dict[str, Any]:
        counted = {"protocol": self.protocol, "test": self.test, "units": len(self.user), "known_units": int(self.known.sum())}
        return counted | {"metrics": self.metrics(), "metrics_of_known": self.metrics_of_known(), "beyond_accuracy": self.beyond}


@dataclass(frozen=True, eq=False)
class Ranked:
    """Where each positive ended up, under every protocol at once: one pass over the catalogue serves all of them."""

    rows: Ints  # of the log
    full: Floats
    uniform: Floats
    score: NDArray[np.float32]
    negatives: NDArray[np.float32]  # scores of the 100 drawn ones, (rows, 100); -inf where fewer exist
    top: NDArray[np.int32]  # the best 20 of the catalogue, (rows, 20); PAD where fewer exist


def positives(split: Split, part: Part, test: Test, sample: int | None = None, seed: int = 0) -> Ints:
    """The rows to rank, in time: all positives of a part but the first ones of an item, or a seeded sample of them."""
    if sample is not None and sample < 0:
        raise BadInput(f"sample {sample}: expected at least 0")
    rows = np.flatnonzero(split.mask(part, test) & (split.log.label == 1) & ~split.newborn)
    if sample is not None and len(rows) > sample:
        rows = np.random.default_rng([seed, 13]).permutation(rows)[:sample]  # a smaller sample is part of a larger one
    return rows[np.lexsort((rows, split.log.time[rows]))]


@torch.no_grad()
def rank(scorer: Scorer, split: Split, rows: Ints, seed: int = 0) -> Ranked:
    """Rank each of these rows' items among all items at the row's time. Rows must be in time order."""
    if not len(rows):
        raise BadInput("nothing to rank: this part of the test has no positives")
    log, items = split.log, len(split.log.items)
    user, item, time = log.user[rows].astype(np.int64), log.item[rows].astype(np.int64), np.asarray(log.time[rows])
    born = np.searchsorted(log.births[1], time, "left")
    spare = np.random.default_rng([seed, 11]).random((len(rows), SPARE * NEGATIVES), np.float32)
    found = Ranked(rows, np.empty(len(rows)), np.empty(len(rows)), *_empty(len(rows), items))
    catalog = scorer.catalog(log, int(time[0]), int(time[-1]) + 1)
    with steps("rank", len(rows)) as job:
        for first in range(0, len(rows), BLOCK):
            part = slice(first, first + BLOCK)
            scores = catalog.scores(contexts(log, user[part], time[part], scorer.history)).numpy()
            if not np.isfinite(scores).all():
                raise UnskewError("a score is not finite (nan or inf): the model has diverged; try a smaller learning rate")
            here, target = np.arange(len(scores)), item[part]
            mine = scores[here, target].copy()
            scores[np.arange(items) >= born[part, None]] = -np.inf
            row, past = log.histories.flat(*log.histories.before(user[part], time[part]))
            scores[row, log.histories.ids[past]] = -np.inf
            scores[here, target] = mine
            found.full[part] = _rank_among(scores, mine)
            found.score[part] = mine
            width = found.top.shape[1]
            best = np.argpartition(-scores, width - 1, axis=1)[:, :width] if width < items else np.tile(np.arange(items), (len(here), 1))
            order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
            best = np.take_along_axis(best, order, 1)
            found.top[part] = np.where(np.isfinite(np.take_along_axis(scores, best, 1)), best, PAD)
            drawn = (spare[part] * born[part, None]).astype(np.int64)
            others = np.take_along_axis(scores, drawn, 1)
            others[drawn == target[:, None]] = -np.inf
            others[np.cumsum(others > -np.inf, axis=1) > NEGATIVES] = -np.inf
            # Whoever has most of the catalogue has too few of them: these draw from what is left, with the same numbers.
            for short in np.flatnonzero((others > -np.inf).sum(1) < NEGATIVES):
                left = np.flatnonzero((scores[short] > -np.inf) & (np.arange(items) != target[short]))
                if len(left):
                    others[short, :NEGATIVES] = scores[short, left[(spare[first + short, :NEGATIVES] * len(left)).astype(np.int64)]]
                    others[short, NEGATIVES:] = -np.inf
            others = -np.partition(-others, NEGATIVES - 1, axis=1)[:, :NEGATIVES]
            found.negatives[part] = others
            found.uniform[part] = _rank_among(np.concatenate([mine[:, None], others], axis=1), mine)
            job.advance(len(here))
    return found


def _empty(rows: int, items: int) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    return np.empty(rows, np.float32), np.empty((rows, NEGATIVES), np.float32), np.empty((rows, min(max(CUTS), items)), np.int32)


def _rank_among(scores: NDArray[np.float32], mine: NDArray[np.float32]) -> Floats:
    """1 + how many are better + half of those equal, the target itself not counted."""
    return np.asarray(1 + (scores > mine[:, None]).sum(1) + ((scores == mine[:, None]).sum(1) - 1) / 2, np.float64)


def evaluation(split: Split, ranked: Ranked, protocol: Protocol, test: Test) -> Evaluation:
    """Metrics of ranks under one protocol."""
    log = split.log
    user, item = log.user[ranked.rows].astype(np.int64), log.item[ranked.rows]
    known = (user < split.known_users) & (item < split.known_items)
    if protocol == "authors":
        return _pooled(user, known, ranked, test)
    ranks = ranked.full if protocol == "full" else ranked.uniform
    values = {f"{name}@{cut}": metric(ranks, cut) for name, metric in METRICS.items() for cut in CUTS}
    beyond = beyond_accuracy(split, ranked.top[:, :10]) if protocol == "full" else {}
    return Evaluation(protocol, test, user, values, known, beyond, ranked.rows)


def _pooled(user: Ints, known: NDArray[np.bool_], ranked: Ranked, test: Test) -> Evaluation:
    """All positives and all drawn negatives of a user in one list, as RecBole does it."""
    order = np.argsort(user, kind="stable")
    users, first = np.unique(user[order], return_index=True)
    values: dict[str, list[float]] = {f"{name}@{cut}": [] for name in METRICS for cut in CUTS}
    for rows in np.split(order, first[1:]):
        mine = ranked.score[rows]
        pool = np.concatenate([mine, ranked.negatives[rows].ravel()])
        ranks = np.sort(_rank_among(np.broadcast_to(pool, (len(mine), len(pool))), mine))
        for cut in CUTS:
            ideal = ndcg(np.arange(1.0, min(len(mine), cut) + 1), cut).sum()
            values[f"ndcg@{cut}"].append(float(ndcg(ranks, cut).sum() / ideal))
            values[f"hr@{cut}"].append(float(hit(ranks, cut).max()))
            values[f"mrr@{cut}"].append(float(mrr(ranks, cut).max()))
    all_known = np.minimum.reduceat(known[order], first)
    return Evaluation("authors", test, users, {name: np.array(found) for name, found in values.items()}, all_known)


def beyond_accuracy(split: Split, lists: NDArray[np.int32], head: float = 0.2) -> dict[str, float]:
    """What the recommended lists are like: how much of the catalogue, how even, how popular, how far into the long tail."""
    counts, known, listed = split.item_counts, split.known_items, lists[lists != PAD]
    shown = np.bincount(listed, minlength=len(split.log.items))
    popular = np.argsort(-counts[:known], kind="stable")[: int(np.ceil(head * known))]
    tail = np.ones(len(counts), bool)
    tail[popular] = False
    return {
        "coverage@10": float((shown > 0).mean()),
        "gini@10": gini(shown),
        "popularity@10": float(counts[listed].mean()),
        "long_tail@10": float(tail[listed].mean()),
    }


# Estimates for the world without exposure bias


def ips(values: Floats, propensity: Floats) -> dict[str, float]:
    """Inverse-propensity estimates of a mean over everything that might have been exposed.

    IPS = (1/n) sum v / p        unbiased if p is the true propensity up to a constant that makes 1/p average to 1
    SNIPS = sum (v / p) / sum (1 / p)      biased of order 1/n, far less variance
    effective sample size = (sum 1/p)^2 / sum 1/p^2
    """
    weight = 1 / propensity
    scaled = weight / weight.mean()
    size = float(weight.sum() ** 2 / (weight**2).sum())
    return {"ips": float((values * weight).mean()), "snips": float((values * scaled).mean()), "effective_sample_size": size}


# Comparing two models


@dataclass(frozen=True)
class Comparison:
    """How much better the first model is, on the same units."""

    metric: str
    difference: float
    low: float  # of the 95 % interval: paired bootstrap over users
    high: float
    p_bootstrap: float
    p_t: float  # the paper's paired t-test


def compare(one: Evaluation, other: Evaluation, metric: str = "ndcg@10", draws: int = 2000, seed: int = 0) -> Comparison:
    if (one.protocol, one.test) != (other.protocol, other.test):
        raise BadInput(f"{one.protocol} on {one.test} cannot be compared with {other.protocol} on {other.test}")
    if not np.array_equal(one.user, other.user) or not _same(one.rows, other.rows):
        raise BadInput("the two evaluations are not of the same rows")
    difference = one.values[metric] - other.values[metric]
    users, of = np.unique(one.user, return_inverse=True)
    sums, sizes = np.bincount(of, difference), np.bincount(of)
    random = np.random.default_rng([seed, 17])
    means = np.empty(draws)
    for draw in range(draws):
        chosen = random.integers(0, len(users), len(users))
        means[draw] = sums[chosen].sum() / sizes[chosen].sum()
    low, high = np.quantile(means, [0.025, 0.975])
    tail = min((means <= 0).mean(), (means >= 0).mean())
    return Comparison(
        metric, float(difference.mean()), float(low), float(high), min(1.0, 2 * float(tail + 1 / draws)), paired_t(difference)
    )


def _same(one: Ints | None, other: Ints | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def interval(evaluation: Evaluation, metric: str, draws: int = 1000, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of a mean, over users."""
    found = compare(evaluation, replace(evaluation, values={metric: np.zeros(len(evaluation.user))}), metric, draws, seed)
    return found.low, found.high


def paired_t(difference: Floats) -> float:
    """Two-sided p of Student's paired t-test."""
    size = len(difference)
    if size < 2:
        return 1.0  # of one unit nothing is known
    deviation = difference.std(ddof=1)
    if not deviation:
        return 1.0 if not difference.any() else 0.0
    t = abs(difference.mean()) / (deviation / np.sqrt(size))
    # With x = sqrt(n) tan(angle), the density of T with n degrees of freedom becomes a power of the cosine.
    freedom = size - 1
    angle = math.atan(t / math.sqrt(freedom))
    angles = np.linspace(angle, min(math.pi / 2, angle + 40 / math.sqrt(freedom)), 20_001)
    height = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    return min(1.0, 2 * height * float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles)))


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction: the k-th smallest of m is multiplied by m - k + 1, and none is below the one before."""
    adjusted, highest = {}, 0.0
    for place, (name, p) in enumerate(sorted(p_values.items(), key=lambda pair: pair[1])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p))
        adjusted[name] = highest
    return adjusted
