"""Ranks first, metrics as functions of ranks. No figure without its protocol, no comparison across two of
them.

Candidates are all items that existed strictly before, and the same for every row: whether a user's own past
items are among them is one setting of the split (`repeats`), which `recommend` follows, too. Protocols:

  full     each positive among all candidates
  uni100   each positive among 100 uniformly drawn ones
  authors  the same 100, pooled by user, as the published tables do: a user with many positives hits easily

The test `shown` has candidates of its own, what the same visit showed. Which positives count how much:
`data/held_out.py`.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from unskew.catalog import Scorer
from unskew.data.batch import contexts
from unskew.data.held_out import HeldOut, Protocol, company, effective_size
from unskew.data.log import Log
from unskew.data.split import Split
from unskew.data.views import PAD, Ints
from unskew.describe.figures import gini
from unskew.errors import BadInput, NothingToRank, UnskewError
from unskew.progress import progress
from unskew.storage import new_file

Floats = NDArray[np.float64]

CUTOFFS = (5, 10, 20)
NEGATIVES = 100
SPARE = 2  # times as many are drawn, for those that turn out to be no candidates
BLOCK = 256  # contexts ranked between two signs of progress
DECILES = 10
HISTORY_LENGTHS = (1, 5, 20)  # where one group of users ends and the next begins


# Metrics: pure functions of ranks (from 1; ties share their mean rank, so a constant scorer earns nothing)


def ndcg(rank: Floats, cut: int) -> Floats:
    return np.where(rank <= cut, 1 / np.log2(np.maximum(rank, 1) + 1), 0.0)


def hit(rank: Floats, cut: int) -> Floats:
    return (rank <= cut).astype(np.float64)


def mrr(rank: Floats, cut: int) -> Floats:
    return np.where(rank <= cut, 1 / np.maximum(rank, 1), 0.0)


METRICS: dict[str, Callable[[Floats, int], Floats]] = {"ndcg": ndcg, "hr": hit, "mrr": mrr}


class Segment(NamedTuple):
    """A way to group the units of an evaluation: the names of the groups, and which one each unit is in."""

    names: tuple[str, ...]
    of: NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """One model, one test, one protocol: a value per metric and unit, and their weighted means. Units are
    rows, or users if pooled."""

    protocol: Protocol
    test: str
    user: Ints  # of each unit
    values: dict[str, Floats]
    weights: Floats  # of each unit
    segments: dict[str, Segment] = field(default_factory=dict)
    beyond: dict[str, float] = field(default_factory=dict)  # what the lists are like: coverage, popularity
    rows: Ints | None = None  # of the log, one per unit; None where units are users
    about: dict[str, Any] = field(
        default_factory=dict
    )  # what was done: repeats, what was left out, seed, weights, model, data
    log: Log | None = None  # whose ids are stored with the rows

    def mean(self, metric: str, among: NDArray[np.bool_] | None = None) -> float:
        """The weighted mean of a metric, over all units or some of them."""
        weights = self.weights if among is None else self.weights * among
        return float((self.values[metric] * weights).sum() / weights.sum()) if weights.sum() else float("nan")

    def metrics(self, among: NDArray[np.bool_] | None = None) -> dict[str, float]:
        return {name: self.mean(name, among) for name in self.values}

    @property
    def effective_sample_size(self) -> float:
        return effective_size(self.weights)

    def by_segment(self) -> dict[str, dict[str, dict[str, float]]]:
        """The metrics of each group of units, with how many there are and which share of the weight they
        have."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, segment in self.segments.items():
            found[name] = {}
            for number, group in enumerate(segment.names):
                among = segment.of == number
                size = {
                    "units": int(among.sum()),
                    "share": float(self.weights[among].sum() / max(self.weights.sum(), 1e-300)),
                }
                found[name][group] = size | (self.metrics(among) if among.any() else {})
        return found

    def as_dict(self) -> dict[str, Any]:
        counted = {"protocol": self.protocol, "test": self.test, "units": len(self.user)}
        counted |= {"effective_sample_size": round(self.effective_sample_size, 1), **self.about}
        return counted | {
            "metrics": self.metrics(),
            "segments": self.by_segment(),
            "beyond_accuracy": self.beyond,
        }

    def save(self, file: str | os.PathLike[str]) -> None:
        """Every unit with its values as a Parquet file, whole or not at all; `Evaluation.load` reads it
        again."""
        columns: dict[str, Any] = {"user": self.user, "weight": self.weights}
        if self.rows is not None and self.log is not None:
            log, rows = self.log, self.rows
            columns |= {
                "row": rows,
                "user_id": log.users.of(log.user[rows]),
                "item_id": log.items.of(log.item[rows]),
            }
            columns |= {"time": log.time[rows]}
        columns |= self.values | {f"segment:{name}": segment.of for name, segment in self.segments.items()}
        names = {name: list(segment.names) for name, segment in self.segments.items()}
        said = {
            "protocol": self.protocol,
            "test": self.test,
            "about": self.about,
            "beyond": self.beyond,
            "segments": names,
        }
        said["metrics"] = list(self.values)
        table = pa.table(columns).replace_schema_metadata({"unskew": json.dumps(said)})
        with new_file(Path(file)) as target:
            pq.write_table(table, target)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> "Evaluation":
        """An evaluation that was saved, to be compared with others."""
        try:
            table = pq.read_table(file)
            said = json.loads(table.schema.metadata[b"unskew"])
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise BadInput(
                f"{file}: not a saved evaluation (`unskew evaluate RUN --save FILE` makes one): {error}"
            ) from None
        segments = {
            name: Segment(tuple(names), np.asarray(table[f"segment:{name}"], np.int8))
            for name, names in said["segments"].items()
        }
        return cls(
            protocol=said["protocol"],
            test=said["test"],
            user=np.asarray(table["user"], np.int64),
            values={name: np.asarray(table[name], np.float64) for name in said["metrics"]},
            weights=np.asarray(table["weight"], np.float64),
            segments=segments,
            beyond=said["beyond"],
            rows=np.asarray(table["row"], np.int64) if "row" in table.column_names else None,
            about=said["about"],
        )


@dataclass(frozen=True, eq=False)
class Ranked:
    """Where each positive ended up, under every protocol at once: one pass over the catalogue serves all of
    them."""

    rows: Ints  # of the log
    full: Floats
    uniform: Floats
    shown: Floats  # among what the same visit showed and was not clicked
    company: Ints  # how many that were
    score: NDArray[np.float32]
    negatives: NDArray[np.float32]  # scores of the 100 drawn ones, (rows, 100); -inf where fewer exist
    top: NDArray[np.int32]  # the best of the catalogue, (rows, largest cut-off); PAD where fewer exist


@torch.no_grad()
def rank(scorer: Scorer, split: Split, rows: Ints, seed: int = 0, longest: int = max(CUTOFFS)) -> Ranked:
    """Rank each of these rows' items among all candidates at the row's time. Rows must be in time order."""
    if not len(rows):
        raise NothingToRank("nothing to rank: this part of the test has no positives")
    log, items = split.log, len(split.log.items)
    user, item, time = (
        log.user[rows].astype(np.int64),
        log.item[rows].astype(np.int64),
        np.asarray(log.time[rows]),
    )
    existing = log.audiences.existing(time)
    spare = np.random.default_rng([seed, 11]).random((len(rows), SPARE * NEGATIVES), np.float32)
    with_row, with_item = company(split, rows)
    found = Ranked(
        rows=rows,
        full=np.empty(len(rows)),
        uniform=np.empty(len(rows)),
        shown=np.empty(len(rows)),
        company=np.bincount(with_row, minlength=len(rows)),
        score=np.empty(len(rows), np.float32),
        negatives=np.empty((len(rows), NEGATIVES), np.float32),
        top=np.empty((len(rows), min(longest, items)), np.int32),
    )
    catalog = scorer.catalog(log, int(time[0]), int(time[-1]) + 1)
    with progress("rank", len(rows)) as job:
        for first in range(0, len(rows), BLOCK):
            part = slice(first, first + BLOCK)
            scores = catalog.scores(contexts(log, user[part], time[part], scorer.history)).numpy()
            if not np.isfinite(scores).all():
                raise UnskewError(
                    "a score is not finite (nan or inf): the model has diverged; try a smaller learning rate"
                )
            here, target = np.arange(len(scores)), item[part]
            mine = scores[here, target].copy()
            here_with = slice(*np.searchsorted(with_row, [first, first + len(here)]))
            found.shown[part] = _rank_in_visit(
                scores, mine, with_row[here_with] - first, with_item[here_with]
            )
            _hide(scores, split, user[part], time[part], existing[part])
            if not np.array_equal(scores[here, target], mine):
                raise BadInput(
                    "a row's item is no candidate at its time: rank only rows that `held_out` gives"
                )
            found.full[part] = _rank_among(scores, mine)
            found.score[part] = mine
            found.top[part] = _best(scores, found.top.shape[1])
            drawn = (spare[part] * existing[part, None]).astype(np.int64)
            others = np.take_along_axis(scores, drawn, 1)
            others[drawn == target[:, None]] = -np.inf
            others[np.cumsum(others > -np.inf, axis=1) > NEGATIVES] = -np.inf
            # Whoever has most of the catalogue has too few of them: these draw from what is left, with the
            # same numbers.
            for short in np.flatnonzero((others > -np.inf).sum(1) < NEGATIVES):
                left = np.flatnonzero((scores[short] > -np.inf) & (np.arange(items) != target[short]))
                if len(left):
                    others[short, :NEGATIVES] = scores[
                        short, left[(spare[first + short, :NEGATIVES] * len(left)).astype(np.int64)]
                    ]
                    others[short, NEGATIVES:] = -np.inf
            others = -np.partition(-others, NEGATIVES - 1, axis=1)[:, :NEGATIVES]
            found.negatives[part] = others
            found.uniform[part] = _rank_among(np.concatenate([mine[:, None], others], axis=1), mine)
            job.advance(len(here))
    return found


def _hide(scores: NDArray[np.float32], split: Split, user: Ints, time: Ints, existing: Ints) -> None:
    """Scores of what is no candidate become minus infinity: what did not exist and, unless repeats are kept,
    the user's own past."""
    scores[np.arange(scores.shape[1]) >= existing[:, None]] = -np.inf
    if not split.repeats:
        view = split.log.histories
        row, past = view.flat(*view.before(user, time))
        scores[row, view.ids[past]] = -np.inf


def _best(scores: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """The best items of each row, best first; PAD where there are fewer candidates."""
    items = scores.shape[1]
    best = (
        np.argpartition(-scores, width - 1, axis=1)[:, :width]
        if width < items
        else np.tile(np.arange(items), (len(scores), 1))
    )
    order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
    best = np.take_along_axis(best, order, 1)
    return np.where(np.isfinite(np.take_along_axis(scores, best, 1)), best, PAD)


def _rank_among(scores: NDArray[np.float32], mine: NDArray[np.float32]) -> Floats:
    """1 + how many are better + half of those equal, the target itself not counted."""
    return np.asarray(
        1 + (scores > mine[:, None]).sum(1) + ((scores == mine[:, None]).sum(1) - 1) / 2, np.float64
    )


def _rank_in_visit(scores: NDArray[np.float32], mine: NDArray[np.float32], row: Ints, item: Ints) -> Floats:
    """The same among some items of each row, the target not among them."""
    theirs = scores[row, item]
    better = (theirs > mine[row]) + 0.5 * (theirs == mine[row])
    return np.asarray(1 + np.bincount(row, better, minlength=len(mine)), np.float64)


def evaluation(
    split: Split,
    ranked: Ranked,
    protocol: Protocol,
    tested: HeldOut,
    cutoffs: tuple[int, ...] = CUTOFFS,
    segmented: bool = True,
) -> Evaluation:
    """Metrics of ranks under one protocol, of those ranked rows that belong to the test."""
    if protocol not in ("full", "uni100", "authors"):
        raise BadInput(f"no protocol {protocol!r}; there are full, uni100, authors")
    log = split.log
    weights = tested.weights_of(ranked.rows)
    part = np.flatnonzero(weights > 0)
    rows, weights = ranked.rows[part], weights[part]
    user = log.user[rows].astype(np.int64)
    about = {"repeats": "kept as candidates" if split.repeats else "hidden", "left_out": tested.left_out}
    if protocol == "authors":
        if tested.test in ("balanced", "weighted", "shown"):
            raise BadInput(
                "the authors' protocol pools the rows of a user, so rows cannot have weights or visits: no "
                f"{tested.test} test"
            )
        users, values = _pooled(user, ranked, part, cutoffs)
        return Evaluation("authors", tested.test, users, values, np.ones(len(users)), about=about)
    if tested.test == "shown":
        if protocol != "full":
            raise BadInput(
                f"the shown test ranks what a visit showed, so protocol {protocol} does not apply; leave it "
                "as it is"
            )
        ranks, size = ranked.shown[part], ranked.company[part]
        values = _values(ranks, cutoffs) | {"auc": 1 - (ranks - 1) / size}
    else:
        values = _values(ranked.full[part] if protocol == "full" else ranked.uniform[part], cutoffs)
    beyond = (
        beyond_accuracy(split, ranked.top[part, :10]) if protocol == "full" and tested.test != "shown" else {}
    )
    segments = segments_of(split, rows) if segmented else {}
    return Evaluation(protocol, tested.test, user, values, weights, segments, beyond, rows, about, log)


def _values(ranks: Floats, cutoffs: tuple[int, ...]) -> dict[str, Floats]:
    return {f"{name}@{cut}": metric(ranks, cut) for name, metric in METRICS.items() for cut in cutoffs}


def _pooled(
    user: Ints, ranked: Ranked, part: Ints, cutoffs: tuple[int, ...]
) -> tuple[Ints, dict[str, Floats]]:
    """All positives and all drawn negatives of a user in one list, as RecBole does it."""
    order = np.argsort(user, kind="stable")
    users, first = np.unique(user[order], return_index=True)
    values: dict[str, list[float]] = {f"{name}@{cut}": [] for name in METRICS for cut in cutoffs}
    for rows in np.split(part[order], first[1:]):
        mine = ranked.score[rows]
        pool = np.concatenate([mine, ranked.negatives[rows].ravel()])
        ranks = np.sort(_rank_among(np.broadcast_to(pool, (len(mine), len(pool))), mine))
        for cut in cutoffs:
            ideal = ndcg(np.arange(1.0, min(len(mine), cut) + 1), cut).sum()
            values[f"ndcg@{cut}"].append(float(ndcg(ranks, cut).sum() / ideal))
            values[f"hr@{cut}"].append(float(hit(ranks, cut).max()))
            values[f"mrr@{cut}"].append(float(mrr(ranks, cut).max()))
    return users, {name: np.array(found) for name, found in values.items()}


# What kind of row it is


def segments_of(split: Split, rows: Ints) -> dict[str, Segment]:
    """Groups of rows by who the user is and what the item is. Rows are in time order."""
    log = split.log
    user, item, time = log.user[rows], log.item[rows], log.time[rows]
    start, end = log.histories.before(user, time)
    lengths = [
        f"{low}-{high - 1}" if high - low > 1 else str(low)
        for low, high in zip((0, *HISTORY_LENGTHS), HISTORY_LENGTHS, strict=False)
    ]
    deciles = tuple(f"{number + 1}" for number in range(DECILES))
    known_user, known_item = user < split.known_users, item < split.known_items
    return {
        "user": Segment(("known", "new"), (~known_user).astype(np.int8)),
        "item": Segment(("known", "new"), (~known_item).astype(np.int8)),
        "user and item": Segment(("both known", "not both"), (~(known_user & known_item)).astype(np.int8)),
        "popularity decile": Segment(deciles, popularity_decile(log, item, time)),
        "history length": Segment(
            (*lengths, f"{HISTORY_LENGTHS[-1]}+"),
            np.searchsorted(HISTORY_LENGTHS, end - start, "right").astype(np.int8),
        ),
    }


def popularity_decile(log: Log, item: NDArray[np.integer], time: Ints) -> NDArray[np.int8]:
    """The tenth of the items that existed by then in which each item was, by positives strictly before; 0 is
    the most popular.

    Times do not decrease. Items with equally many share the middle of their places.
    """
    found = np.zeros(len(item), np.int8)
    for place, counts in enumerate(_counts_at(log, time)):
        mine = counts[item[place]]
        ahead = (counts > mine).sum() + ((counts == mine).sum() - 1) / 2
        found[place] = min(int(DECILES * ahead / max(len(counts), 1)), DECILES - 1)
    return found


def _counts_at(log: Log, time: Ints) -> Iterator[Ints]:
    """The positives of every existing item strictly before each time, brought up to date from one to the
    next."""
    if not len(time):
        return
    times = np.asarray(log.histories.times)
    order = np.argsort(times, kind="stable")
    times, items = times[order], np.asarray(log.histories.ids)[order]
    counts, done = np.zeros(len(log.items), np.int64), 0
    for existing, end in zip(log.audiences.existing(time), np.searchsorted(times, time, "left"), strict=True):
        np.add.at(counts, items[done:end], 1)
        done = end
        yield counts[:existing]


def beyond_accuracy(split: Split, lists: NDArray[np.int32], head: float = 0.2) -> dict[str, float]:
    """What the recommended lists are like: how much of the catalogue, how even, how popular, how far into the
    long tail."""
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
