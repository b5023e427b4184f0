"""Live, frozen and leave-one-out evaluations, computed a second time from the raw rows by plain Python that
uses nothing of the package."""

import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

import unskew
from unskew.data.batches.batch import Batch
from unskew.data.log.held_out import Targets, held_out, list_times
from unskew.data.log.log import Log
from unskew.data.log.split import Part, Split
from unskew.evaluation.evaluate import Evaluation, evaluation, rank_each

Row = tuple[int, int, int]  # user, item, time
K = 5
OWN = 2.5  # what the item before counts in the score


def raw_rows(repeats: bool) -> list[Row]:
    """Users who begin and end at different times; times are distinct; new items appear late."""
    random = np.random.default_rng(8 + repeats)
    rows: list[Row] = []
    had: set[tuple[int, int]] = set()
    for time in range(400):
        user = int(random.integers(time // 25, 6 + time // 20))
        item = int((8 + time / 16) * random.random() ** 1.6)
        if repeats or (user, item) not in had:
            rows.append((user, item, time))
            had.add((user, item))
    return rows


def log_of(rows: list[Row]) -> Log:
    user, item, time = zip(*rows, strict=True)
    return unskew.read(pa.table({"user": list(user), "item": list(item), "time": list(time)}))


class CountsAndLast:
    """The number of events of an item before the request, and a bonus for the neighbours of the last item."""

    history = 1

    def __init__(self, split: Split) -> None:
        self.names = np.asarray(split.log.items.ids)

    def catalog(self, log: Log, first: int, last: int) -> "CountsAndLast":
        self.log = log
        return self

    def scores(self, context: Batch) -> Tensor:
        rows = []
        for time, history in zip(context.times_B.tolist(), context.history_BL.tolist(), strict=True):
            start, end = self.log.audiences.before(np.arange(len(self.names)), time)
            last = self.names[history[-1]] if history and history[-1] >= 0 else -100
            rows.append(score(end - start, self.names, last))
        return torch.tensor(np.array(rows), dtype=torch.float32)


def score(count: np.ndarray, name: np.ndarray, last: int) -> np.ndarray:
    """Distinct scores, so that no rank is shared."""
    return count + OWN * (abs(name - last) <= 2) + name / 1000


def by_package(
    split: Split, part: Part = "test", frozen: Targets | None = None, moments: int = 1
) -> Evaluation:
    tested = held_out(split, part, frozen=frozen, moments=moments)
    scorer, is_frozen = CountsAndLast(split), frozen is not None
    ranked = rank_each(scorer, split, tested.rows, (None,), part=part, frozen=is_frozen, moments=moments)
    return evaluation(split, ranked[0], "full", tested, (K,), frozen=frozen)


def list_of(
    user: int, time: int, others: list[Row], own: list[Row], items: set[int], repeats: bool
) -> list[int]:
    """The ranked candidates for a user at a time, from what happened before."""
    counts = Counter(item for _, item, when in others if when < time)
    past = [item for who, item, when in sorted(own, key=lambda row: row[2]) if who == user and when < time]
    candidates = np.array(sorted(items if repeats else items - set(past)))
    count = np.array([counts[item] for item in candidates])
    return candidates[np.argsort(-score(count, candidates, past[-1] if past else -100))].tolist()


def gain(ranking: list[int], item: int) -> float:
    rank = ranking.index(item) + 1 if item in ranking else math.inf
    return 1 / math.log2(rank + 1) if rank <= K else 0.0


def test_lists_at_several_moments_by_plain_python() -> None:
    """Each user has one list, at one of four moments of the validation set; what comes later are targets."""
    rows = raw_rows(repeats=False)
    split = unskew.split(log_of(rows), at="0.4,0.8", repeats="hide")
    begin, end = split.train_end, split.valid_end
    made = dict(
        zip(np.asarray(split.log.users.ids).tolist(), list_times(split, "valid", 4).tolist(), strict=True)
    )
    assert set(made.values()) == {begin + part * (end - begin) // 4 for part in range(4)}
    targets: dict[int, list[int]] = {}
    for user, item, time in rows:
        if made[user] <= time < end:
            targets.setdefault(user, []).append(item)
    next_, every = [], []
    for user, items in targets.items():
        known = {item for _, item, when in rows if when < made[user]}
        ranking = list_of(user, made[user], rows, rows, known, repeats=False)
        next_.append(gain(ranking, items[0]))
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(len(items), K) + 1))
        every.append(sum(gain(ranking, item) for item in items) / ideal)
    for kind, expected in (("next", next_), ("all", every)):
        found = by_package(split, "valid", kind, moments=4)
        assert len(found.user) == len(expected)
        assert found.mean(f"ndcg@{K}") == pytest.approx(np.mean(expected), abs=1e-9)


@pytest.mark.parametrize("repeats", [False, True])
def test_live_and_frozen_by_plain_python(repeats: bool) -> None:
    rows = raw_rows(repeats)
    log = log_of(rows)
    split = unskew.split(log, at="0.6,0.8", repeats="keep" if repeats else "hide")
    border = sorted(time for _, _, time in rows)[math.floor(0.8 * (len(rows) - 1))] + 1
    assert split.valid_end == border

    live, first, every = [], {}, {}
    for user, item, time in rows:
        if time < border:
            continue
        born = {i for _, i, when in rows if when < time}
        if item in born:
            live.append(gain(list_of(user, time, rows, rows, born, repeats), item))
        known = {i for _, i, when in rows if when < border}
        ranking = list_of(user, border, rows, rows, known, repeats)
        first.setdefault(user, gain(ranking, item))
        every.setdefault(user, []).append((ranking, item))
    assert by_package(split).mean(f"ndcg@{K}") == pytest.approx(np.mean(live), abs=1e-9)
    assert len(by_package(split).user) == len(live)

    frozen = by_package(split, frozen="next")
    assert len(frozen.user) == len(first) < len(live)
    assert frozen.mean(f"ndcg@{K}") == pytest.approx(np.mean(list(first.values())), abs=1e-9)

    whole = by_package(split, frozen="all")
    ndcg, recall, hits, mrr = [], [], [], []
    for targets in every.values():
        ranks = sorted(ranking.index(item) + 1 for ranking, item in targets if item in ranking)
        inside = [rank for rank in ranks if rank <= K]
        ideal = sum(1 / math.log2(rank + 1) for rank in range(1, min(K, len(targets)) + 1))
        ndcg.append(sum(1 / math.log2(rank + 1) for rank in inside) / ideal)
        recall.append(len(inside) / len(targets))
        hits.append(float(bool(inside)))
        mrr.append(1 / inside[0] if inside else 0.0)
    for name, values in {"ndcg": ndcg, "recall": recall, "hr": hits, "mrr": mrr}.items():
        assert whole.mean(f"{name}@{K}") == pytest.approx(np.mean(values), abs=1e-9), name
    assert 0 < np.mean(recall) < np.mean(hits)


@pytest.mark.parametrize("others", ["hide", "show"])
def test_leave_one_out_by_plain_python(others: str) -> None:
    rows = raw_rows(repeats=False)
    log = log_of(rows)
    split = unskew.split(log, kind="leave-one-out", others_held_out=others, repeats="hide")
    of_user: dict[int, list[Row]] = {}
    for row in rows:
        of_user.setdefault(row[0], []).append(row)
    valid = {user: events[-2] for user, events in of_user.items() if len(events) >= 3}
    test = {user: events[-1] for user, events in of_user.items() if len(events) >= 3}
    training = [row for row in rows if row not in valid.values() and row not in test.values()]
    items = {item for _, item, _ in training}
    assert len(training) == len(split.rows("train")) > 100
    parts: tuple[tuple[Part, dict[int, Row], list[Row]], ...] = (
        ("valid", valid, training),
        ("test", test, [*training, *valid.values()]),
    )
    for part, held, own in parts:
        visible = training if others == "hide" else rows
        gains = [
            gain(list_of(user, time, visible, own, items, repeats=False), item)
            for user, item, time in held.values()
        ]
        found = by_package(split, part)
        assert len(found.user) == len(gains)
        assert found.mean(f"ndcg@{K}") == pytest.approx(np.mean(gains), abs=1e-9)
        assert found.lists is not None
        assert (found.lists < split.known_items).all()
    assert set(split.log.items.of(np.arange(split.known_items)).to_pylist()) == items
    assert (np.diff(split.log.audiences.first_times) >= 0).all()
    assert any(item not in items for _, item, _ in test.values())  # a miss, and not left out


def test_saved_lists_can_be_checked_from_outside(tmp_path) -> None:
    rows = raw_rows(repeats=False)
    log = log_of(rows)
    split = unskew.split(log, at="0.8", repeats="hide")
    by_package(split, frozen="next").save(tmp_path / "lists.parquet")
    table = pq.read_table(tmp_path / "lists.parquet").to_pylist()
    border = split.valid_end
    known = {item for _, item, when in rows if when < border}
    assert len(table) > 10
    for unit in table:
        ranking = list_of(unit["user_id"], border, rows, rows, known, repeats=False)
        assert unit["list"] == ranking[: len(unit["list"])]
        assert unit[f"ndcg@{K}"] == pytest.approx(gain(unit["list"], unit["item_id"]))
