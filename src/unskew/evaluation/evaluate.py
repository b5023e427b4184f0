"""Evaluation: rank the item of each held-out positive among candidates, then turn ranks into metrics.

The candidates are all items that existed strictly before. Whether the user's own past items are among them is
a setting of the split (`repeats`), which `recommend` follows, too. The protocol says among which candidates a
positive is ranked, and results of two protocols are never compared:

  full     among all candidates
  uni100   among 100 candidates, drawn uniformly at random
  authors  among the same 100, but all positives and candidates of a user in one list, as in the published
           tables. A user with many positives gets a hit easily

The test `shown` has its own candidates: what the same impression showed. Which positives are part of a test,
and with which weights, is decided in `data/held_out.py`.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from unskew.core.atomic_files import new_file, read_parquet
from unskew.core.config import Document
from unskew.core.errors import BadInput, NothingToRank, UnskewError
from unskew.core.formatting import plain
from unskew.core.progress import progress
from unskew.core.ranks import ranks
from unskew.data.batches.batch import contexts_of
from unskew.data.log.held_out import (
    HeldOut,
    Protocol,
    Targets,
    effective_size,
    impression_candidates,
    list_times,
)
from unskew.data.log.log import Log
from unskew.data.log.split import Part, Split
from unskew.data.log.touched import touched
from unskew.data.log.views import PAD, EventView, Ints
from unskew.evaluation.metrics import METRICS, beyond_accuracy, hit, mrr, ndcg
from unskew.evaluation.segments import BY_USER, Segment, segments_of
from unskew.nn.debias import scores_at
from unskew.nn.scoring import Scorer

Floats = NDArray[np.float64]

CUTOFFS = (5, 10, 20)
NEGATIVES = 100
OVERSAMPLING = 2  # so many times as many are drawn, because some turn out not to be candidates
BLOCK = 256  # contexts that are ranked at once, unless their scores would not fit
SCORES = 1 << 25  # that are held at once


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The results of one model on one test under one protocol: the value of each metric for each unit, and
    their weighted means. A unit is a row of the log, or a user under the authors' protocol."""

    protocol: Protocol
    test: str
    user: Ints  # the user of each unit
    values: dict[str, Floats]  # for each metric, the value of each unit
    weights: Floats  # the weight of each unit
    segments: dict[str, Segment] = field(default_factory=dict)
    beyond: dict[str, float] = field(default_factory=dict)  # see `beyond_accuracy`
    rows: Ints | None = None  # the row of the log of each unit; None if units are users
    # How it was made: repeats, what was left out, seed, chosen weights, model, data.
    about: dict[str, Any] = field(default_factory=dict)
    log: Log | None = None  # the log, whose ids are saved with the rows
    lists: NDArray[np.int32] | None = None  # the best items of each unit, as codes of the log

    def __repr__(self) -> str:
        figures = ", ".join(f"{name} {value:.4f}" for name, value in self.metrics().items())
        return f"Evaluation({self.test} test, protocol {self.protocol}, {len(self.user):,} units: {figures})"

    def mean(self, metric: str, among: NDArray[np.bool_] | None = None) -> float:
        """The weighted mean of a metric, over all units or over those where `among` is true."""
        weights = self.weights if among is None else self.weights * among
        return float((self.values[metric] * weights).sum() / weights.sum()) if weights.sum() else float("nan")

    def metrics(self, among: NDArray[np.bool_] | None = None) -> dict[str, float]:
        """The weighted means of all metrics, over all units or over those where `among` is true."""
        return {name: self.mean(name, among) for name in self.values}

    @property
    def effective_sample_size(self) -> float:
        """How many equally weighted units would be as informative."""
        return effective_size(self.weights)

    def by_segment(self) -> dict[str, dict[str, dict[str, float]]]:
        """For each segment, the metrics of each group, with its number of units and its fraction of the
        weight."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for name, segment in self.segments.items():
            found[name] = {}
            for number, group in enumerate(segment.names):
                among = segment.of == number
                size = {
                    "units": int(among.sum()),
                    "fraction": float(self.weights[among].sum() / max(self.weights.sum(), 1e-300)),
                }
                found[name][group] = size | (self.metrics(among) if among.any() else {})
        return found

    def as_dict(self) -> Document:
        """Everything but the values of single units, ready for JSON."""
        counted = {"protocol": self.protocol, "test": self.test, "units": len(self.user)}
        counted |= {"effective_sample_size": round(self.effective_sample_size, 1), **self.about}
        return counted | {
            "metrics": self.metrics(),
            "segments": self.by_segment(),
            "beyond_accuracy": self.beyond,
        }

    def save(self, file: str | os.PathLike[str]) -> None:
        """Write all units with their values into a new Parquet file, which `Evaluation.load` reads again."""
        columns: dict[str, Any] = {"user": self.user, "weight": self.weights}
        if self.rows is not None and self.log is not None:
            log, rows = self.log, self.rows
            columns |= {
                "row": rows,
                "user_id": log.users.of(log.user[rows]),
                "item_id": log.items.of(log.item[rows]),
            }
            columns |= {"time": log.time[rows]}
            if self.lists is not None:
                columns["list"] = _lists_of_ids(log, self.lists)
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
        """Read an evaluation that was saved, for example to compare it with others."""
        try:
            table = read_parquet(file) if Path(file).is_file() else pa.table({})
            said = json.loads(table.schema.metadata[b"unskew"])
        except (OSError, pa.ArrowInvalid, KeyError, TypeError, ValueError):
            raise BadInput(
                f"{file}: not a saved evaluation; `unskew evaluate RUN --save FILE` makes one"
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
    """The ranks of some positives under all protocols, which are computed together because they need the same
    scores."""

    rows: Ints  # the rows of the log that were ranked
    full: Floats  # the rank among all candidates
    uniform: Floats  # the rank among 100 drawn candidates
    shown: Floats  # the rank among the items that the same impression showed and that were not clicked
    impression_candidates: Ints  # the number of these items
    score: NDArray[np.float32]  # the score of the positive
    negatives: NDArray[np.float32]  # scores of the 100 drawn candidates, (rows, 100); -inf if there are fewer
    top: NDArray[np.int32]  # the best items, (rows, largest cut-off); PAD if there are fewer

    @classmethod
    def empty(cls, rows: Ints, with_row: Ints, longest: int) -> "Ranked":
        """Room for the ranks of some rows.

        with_row: for each other item of an impression, the position of its row.
        """
        size = len(rows)
        return cls(
            rows=rows,
            full=np.empty(size),
            uniform=np.empty(size),
            shown=np.empty(size),
            impression_candidates=np.bincount(with_row, minlength=size),
            score=np.empty(size, np.float32),
            negatives=np.empty((size, NEGATIVES), np.float32),
            top=np.empty((size, longest), np.int32),
        )

    def gathered(self) -> "Ranked":
        """The rows of all ranks, each of which has ranked a part of them."""
        return Ranked(*(ranks().gather(getattr(self, field.name)) for field in fields(self)))


@dataclass(frozen=True, eq=False)
class Requests:
    """The lists by which some rows of the log are ranked: for which user and at what time each list is made,
    in order of time, and which list ranks each row. Several rows can share a list."""

    user: Ints
    time: Ints
    of_row: Ints  # the list of each row, as a position; it does not decrease

    @classmethod
    def live(cls, split: Split, rows: Ints) -> "Requests":
        """A list for each row, at the time of the row."""
        user, time = split.log.user[rows].astype(np.int64), np.asarray(split.log.time[rows])
        return cls(user, time, np.arange(len(rows)))

    @classmethod
    def frozen(cls, split: Split, rows: Ints, part: Part, moments: int) -> "Requests":
        """A list for each user of the rows, which are sorted as `held_out` returns them, at `list_times`."""
        user = split.log.user[rows].astype(np.int64)
        begins = np.append(True, user[1:] != user[:-1])[: len(user)]
        return cls(user[begins], list_times(split, part, moments)[user[begins]], np.cumsum(begins) - 1)


def rank(
    scorer: Scorer,
    split: Split,
    rows: Ints,
    seed: int = 0,
    longest: int = max(CUTOFFS),
    debias: float | None = None,
    part: Part = "test",
) -> Ranked:
    """Rank the item of each row among all candidates at the time of the row.

    rows: rows of the log in order of time, as `held_out` returns them.
    seed: the seed of the 100 drawn candidates.
    longest: how many of the best items are kept for each row.
    debias: of the scores, for models that have one; by default as the model has it.
    part: the part of the split that the rows belong to.
    """
    return rank_each(scorer, split, rows, (debias,), seed, longest, part)[0]


@torch.no_grad()
def rank_each(
    scorer: Scorer,
    split: Split,
    rows: Ints,
    strengths: Sequence[float | None],
    seed: int = 0,
    longest: int = max(CUTOFFS),
    part: Part = "test",
    frozen: bool = False,
    moments: int = 1,
) -> list[Ranked]:
    """The same at several strengths, for the cost of one.

    part: the part of the split that the rows belong to.
    frozen: whether each user has one list, made at `list_times`; the rows must then be sorted as `held_out`
        returns them.
    moments: those of `list_times`.
    """
    if not len(rows):
        raise NothingToRank("nothing to rank: this part of the test has no positives")
    here = ranks().part(len(rows))
    found = _rank_here(scorer, split, rows[here], strengths, seed, longest, part, frozen, moments)
    return found if len(rows) < ranks().size else [ranked.gathered() for ranked in found]


def _rank_here(
    scorer: Scorer,
    split: Split,
    rows: Ints,
    strengths: Sequence[float | None],
    seed: int,
    longest: int,
    part: Part,
    frozen: bool,
    moments: int,
) -> list[Ranked]:
    """The rows of this rank."""
    log, item = split.visible(part), split.log.item[rows].astype(np.int64)
    requests = Requests.frozen(split, rows, part, moments) if frozen else Requests.live(split, rows)
    candidates, past = split.candidates(requests.time), split.past(part)
    spare = _spare(rows, seed)
    with_row, with_item = (np.zeros(0, np.int64),) * 2 if frozen else impression_candidates(split, rows)
    ranked = [Ranked.empty(rows, with_row, min(longest, len(log.items))) for _ in strengths]
    catalog = scorer.catalog(log, int(requests.time[0]), int(requests.time[-1]) + 1)
    with progress("rank", len(requests.user)) as job:
        size = _block(len(log.items) * len(strengths))
        for first in range(0, len(requests.user), size):
            block = slice(first, first + size)
            user, time, existing = requests.user[block], requests.time[block], candidates[block]
            context = contexts_of(log, user, time, past, user, scorer.history)
            part_of_rows = slice(*np.searchsorted(requests.of_row, [first, first + len(user)]))
            request, target = requests.of_row[part_of_rows] - first, item[part_of_rows]
            here_with = slice(*np.searchsorted(with_row, [part_of_rows.start, part_of_rows.stop]))
            beside = with_row[here_with] - part_of_rows.start, with_item[here_with]
            for result, scored in zip(ranked, scores_at(scorer, catalog, context, strengths), strict=True):
                scores = scored.numpy()
                if not np.isfinite(scores).all():
                    raise UnskewError(
                        "a score is not finite (nan or inf): the model has diverged; try a smaller learning "
                        "rate"
                    )
                mine = scores[request, target].copy()
                result.shown[part_of_rows] = _rank_in_impression(scores[request], mine, *beside)
                _hide(scores, split.repeats, past, user, time, existing)
                if result.top.size:
                    result.top[part_of_rows] = _best(scores, result.top.shape[1])[request]
                # A list for each row needs no copy of its scores.
                scores = scores if len(request) == len(scores) else scores[request]
                reachable = target < existing[request]
                if not np.array_equal(scores[np.arange(len(target)), target][reachable], mine[reachable]):
                    raise BadInput(
                        "a row's item is no candidate at its time: rank only rows that `held_out` gives"
                    )
                mine[~reachable] = -np.inf
                result.score[part_of_rows] = mine
                others = _drawn(scores, target, spare[part_of_rows], existing[request])
                result.negatives[part_of_rows] = others
                uniform = _rank_among(np.concatenate([mine[:, None], others], axis=1), mine)
                result.full[part_of_rows] = np.where(reachable, _rank_among(scores, mine), np.inf)
                result.uniform[part_of_rows] = np.where(reachable, uniform, np.inf)
            job.advance(len(user))
    return ranked


@torch.no_grad()
def best_lists(scorer: Scorer, split: Split, user: Ints, time: Ints, k: int) -> NDArray[np.int32]:
    """The codes of the k best candidates for each user at each time, best first; PAD if there are fewer.

    user, time: of the contexts, in order of time. A user whom the log does not know has an empty history.
    """
    log, past, candidates = split.visible("test"), split.past("test"), split.candidates(time)
    catalog = scorer.catalog(log, int(time[0]), int(time[-1]) + 1)
    lists = np.empty((len(user), min(k, len(log.items))), np.int32)
    size = _block(len(log.items))
    for first in range(0, len(user), size):
        block = slice(first, first + size)
        context = contexts_of(log, user[block], time[block], past, user[block], scorer.history)
        scores = scores_at(scorer, catalog, context, (None,))[0].numpy()
        _hide(scores, split.repeats, past, user[block], time[block], candidates[block])
        lists[block] = _best(scores, lists.shape[1])
    return lists


def _block(scores: int) -> int:
    """How many contexts are ranked at once, each with so many scores."""
    return max(min(BLOCK, SCORES // max(scores, 1)), 1)


def _spare(rows: Ints, seed: int) -> NDArray[np.float32]:
    """Random numbers that draw the candidates of each row. They depend on the row and on the seed, and not on
    what else is ranked."""
    found = np.empty((len(rows), OVERSAMPLING * NEGATIVES), np.float32)
    for place, row in enumerate(rows.tolist()):
        np.random.Generator(np.random.Philox(key=[seed, row])).random(out=found[place], dtype=np.float32)
    return found


def _drawn(
    scores: NDArray[np.float32], target: Ints, spare: NDArray[np.float32], existing: Ints
) -> NDArray[np.float32]:
    """The scores of the 100 drawn candidates of each row, best first; -inf if there are fewer."""
    drawn = (spare * existing[:, None]).astype(np.int64)
    others = np.take_along_axis(scores, drawn, 1)
    others[drawn == target[:, None]] = -np.inf
    others[np.cumsum(others > -np.inf, axis=1) > NEGATIVES] = -np.inf
    # If most of the drawn items are no candidates, because the user has had them, too few are left. Then the
    # same random numbers draw among the remaining candidates.
    for short in np.flatnonzero((others > -np.inf).sum(1) < NEGATIVES):
        left = np.flatnonzero((scores[short] > -np.inf) & (np.arange(scores.shape[1]) != target[short]))
        if len(left):
            others[short, :NEGATIVES] = scores[
                short, left[(spare[short, :NEGATIVES] * len(left)).astype(np.int64)]
            ]
            others[short, NEGATIVES:] = -np.inf
    return -np.partition(-others, NEGATIVES - 1, axis=1)[:, :NEGATIVES]


def _hide(
    scores: NDArray[np.float32], repeats: bool, past: EventView, user: Ints, time: Ints, existing: Ints
) -> None:
    """Set the scores of items that are no candidates to minus infinity: items that did not exist and, unless
    repeats are kept, the user's past items."""
    scores[np.arange(scores.shape[1]) >= existing[:, None]] = -np.inf
    if not repeats:
        row, event = past.flat(*past.before(user, time))
        scores[row, past.ids[event]] = -np.inf


def _best(scores: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """The best items of each row, best first; PAD if there are fewer candidates."""
    found, best = torch.topk(torch.from_numpy(scores), width, dim=1)
    return np.where(np.isfinite(found.numpy()), best.numpy(), PAD)


def _rank_among(scores: NDArray[np.float32], mine: NDArray[np.float32]) -> Floats:
    """The rank of each target: 1 + the number of better items + half of the number of equal ones, without the
    target itself."""
    return np.asarray(
        1 + (scores > mine[:, None]).sum(1) + ((scores == mine[:, None]).sum(1) - 1) / 2, np.float64
    )


def _rank_in_impression(
    scores: NDArray[np.float32], mine: NDArray[np.float32], row: Ints, item: Ints
) -> Floats:
    """The rank of each target among some other items of its row, which are given as pairs of row and item."""
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
    frozen: Targets | None = None,
) -> Evaluation:
    """The metrics of the ranked rows that belong to a test, under one protocol.

    tested: the test, as `held_out` returns it.
    cutoffs: the K of NDCG@K, HR@K, recall@K and MRR@K.
    segmented: whether rows are also grouped into segments, which takes some time.
    frozen: which targets a frozen evaluation has; with `all`, a unit is a user. None is a live evaluation.
    """
    if protocol not in ("full", "uni100", "authors"):
        raise BadInput(f"no protocol {protocol!r}; there are full, uni100, authors")
    log = split.log
    weights = tested.weights_of(ranked.rows)
    part = np.flatnonzero(weights > 0)
    rows, weights = ranked.rows[part], weights[part]
    user = log.user[rows].astype(np.int64)
    about = {
        "split": split.settings.kind,
        "reads": "live" if frozen is None else f"frozen at {log.clock.date(split.valid_end)}",
        "ties": log.metadata.settings.ties,
        "repeats": "kept as candidates" if split.repeats else "hidden",
        "left_out": tested.left_out,
        "whole_test": tested.whole,
        **_touched_before(log, rows),
    }
    if frozen is not None:
        about["targets"] = frozen
    if split.settings.kind == "leave-one-out":
        about["others_held_out"] = split.settings.others_held_out
    if protocol == "authors":
        if tested.test in ("balanced", "weighted", "shown"):
            raise BadInput(
                "the authors' protocol pools the rows of a user, so rows cannot have weights or "
                "impressions: no "
                f"{tested.test} test"
            )
        users, values = _pooled(user, ranked, part, cutoffs)
        return Evaluation("authors", tested.test, users, values, np.ones(len(users)), about=about)
    if tested.test == "shown":
        if protocol != "full":
            raise BadInput(
                f"the shown test ranks what an impression showed, so protocol {protocol} does not apply; "
                "leave it "
                "as it is"
            )
        ranks, size = ranked.shown[part], ranked.impression_candidates[part]
        values = _values(ranks, cutoffs) | {"auc": 1 - (ranks - 1) / size}
    else:
        values = _values(ranked.full[part] if protocol == "full" else ranked.uniform[part], cutoffs)
    lists = ranked.top[part]
    segments = segments_of(split, rows, None if frozen is None else split.valid_end) if segmented else {}
    if frozen == "all":
        first = np.flatnonzero(np.append(True, user[1:] != user[:-1])[: len(user)])
        values = _of_all_targets(
            ranked.full[part] if protocol == "full" else ranked.uniform[part], first, cutoffs
        )
        rows, user, weights, lists = rows[first], user[first], np.ones(len(first)), lists[first]
        segments = {
            name: Segment(each.names, each.of[first]) for name, each in segments.items() if name in BY_USER
        }
    is_listed = lists.size > 0 and protocol == "full" and tested.test != "shown"
    beyond = beyond_accuracy(split, lists[:, :10]) if is_listed else {}
    return Evaluation(protocol, tested.test, user, values, weights, segments, beyond, rows, about, log, lists)


def _values(ranks: Floats, cutoffs: tuple[int, ...]) -> dict[str, Floats]:
    return {f"{name}@{cut}": metric(ranks, cut) for name, metric in METRICS.items() for cut in cutoffs}


def _of_all_targets(ranks: Floats, first: Ints, cutoffs: tuple[int, ...]) -> dict[str, Floats]:
    """The metrics of users with several targets, whose ranks lie one after the other.

    NDCG is divided by the largest possible value, which has min(K, targets) hits at the top of the list. HR
    is whether there is a hit, recall the fraction of the targets that are hits, and MRR that of the best one.

    first: where the ranks of each user begin.
    """
    size = np.diff(np.append(first, len(ranks)))
    values: dict[str, Floats] = {}
    for cut in cutoffs:
        ideal = np.cumsum(ndcg(np.arange(1.0, cut + 1), cut))[np.minimum(size, cut) - 1]
        values[f"ndcg@{cut}"] = np.add.reduceat(ndcg(ranks, cut), first) / ideal
        values[f"hr@{cut}"] = np.maximum.reduceat(hit(ranks, cut), first)
        values[f"recall@{cut}"] = np.add.reduceat(hit(ranks, cut), first) / size
        values[f"mrr@{cut}"] = np.maximum.reduceat(mrr(ranks, cut), first)
    return values


def _lists_of_ids(log: Log, lists: NDArray[np.int32]) -> pa.Array:
    """The lists as the caller's ids, without the padding of short ones."""
    real = lists != PAD
    offsets = np.concatenate([[0], np.cumsum(real.sum(1))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), log.items.of(lists[real]))


def _pooled(
    user: Ints, ranked: Ranked, part: Ints, cutoffs: tuple[int, ...]
) -> tuple[Ints, dict[str, Floats]]:
    """The authors' protocol: all positives and all drawn negatives of a user in one list, as in RecBole."""
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
            values[f"recall@{cut}"].append(float(hit(ranks, cut).mean()))
            values[f"mrr@{cut}"].append(float(mrr(ranks, cut).max()))
    return users, {name: np.array(found) for name, found in values.items()}


def _touched_before(log: Log, rows: Ints) -> Document:
    """How many of the targets had a context event of the user on the item shortly before."""
    near = touched(log, rows)
    return {} if near is None else {"touched": plain(asdict(near))}
