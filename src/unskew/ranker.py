"""From a stored run to lists: for users it knows, or for bare histories of item ids."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from unskew.data.batch import bare_contexts
from unskew.data.log import Log
from unskew.data.views import PAD, Ints, Sequences, offsets_of
from unskew.errors import BadInput
from unskew.models.base import Recommender

BLOCK = 256


@dataclass(frozen=True, eq=False)
class Recommendations:
    """A frame `user_id, item_id, score, rank` (and title), and which ids of the request the run does not
    know."""

    table: pa.Table
    users_unknown: tuple[Any, ...] = ()
    items_unknown: tuple[Any, ...] = ()

    @property
    def unknown_users(self) -> int:
        """How many of the users asked for were not in the log; they get what an empty history gets."""
        return len(self.users_unknown)

    @property
    def skipped_items(self) -> int:
        """How many items of the histories were not in the log; they are skipped."""
        return len(self.items_unknown)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """So that pandas, polars and anything else that reads Arrow takes it as a frame."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        return self.table.to_pandas()


def for_users(
    model: Recommender, log: Log, users: Sequence[Any], k: int = 10, seen: bool = False
) -> Recommendations:
    """The k best items for each user now. A user the run does not know gets what an empty history gets."""
    codes = log.users.codes(users).astype(np.int64)
    best = _best(model, log, np.where(codes == PAD, len(log.users), codes), log.histories, codes, k, seen)
    unknown = tuple(user for user, code in zip(users, codes, strict=True) if code == PAD)
    return Recommendations(_frame(log, _ids(log, users), *best), users_unknown=unknown)


def for_histories(
    model: Recommender, log: Log, histories: Sequence[Sequence[Any]], k: int = 10, seen: bool = False
) -> Recommendations:
    """The k best items after each history of item ids, oldest first. Unknown items are skipped and
    counted."""
    codes = [log.items.codes(history) if len(history) else np.zeros(0, np.int32) for history in histories]
    known = [code[code != PAD] for code in codes]
    skipped = tuple(
        item
        for history, code in zip(histories, codes, strict=True)
        for item, number in zip(history, code, strict=True)
        if number == PAD
    )
    owner = np.repeat(np.arange(len(known)), [len(code) for code in known])
    past = Sequences(
        np.concatenate([*known, np.zeros(0, np.int32)]),
        np.full(len(owner), log.now - 1),
        offsets_of(owner, len(known)),
    )
    best = _best(model, log, np.full(len(known), len(log.users)), past, np.arange(len(known)), k, seen)
    return Recommendations(_frame(log, pa.array(range(len(known)), pa.int64()), *best), items_unknown=skipped)


def _ids(log: Log, users: Sequence[Any]) -> pa.Array:
    """The users that were asked for, in the type that the log's ids have."""
    kind = log.users.ids.type
    asked = users if isinstance(users, pa.Array) else pa.array(list(users), kind if not len(users) else None)
    return asked if isinstance(kind, pa.BaseExtensionType) else asked.cast(kind)


@torch.no_grad()
def _best(
    model: Recommender, log: Log, user: Ints, past: Sequences, owner: Ints, k: int, seen: bool
) -> tuple[Ints, NDArray[np.float32]]:
    """The best k items of each context, with their scores; `past` and `owner` say where its history is."""
    if k < 1:
        raise BadInput(f"k {k}: expected at least 1")
    now = log.now
    catalog, existing = model.eval().catalog(log, now, now + 1), int(log.audiences.existing(now))
    lists: list[Ints] = [np.zeros((0, min(k, len(log.items))), np.int64)]
    values: list[NDArray[np.float32]] = [np.zeros(lists[0].shape, np.float32)]
    for first in range(0, len(user), BLOCK):
        here = slice(first, first + BLOCK)
        window = past.before(owner[here], now, model.history)
        scores = catalog.scores(
            bare_contexts(user[here], past.padded(*window), np.full(len(user[here]), now))
        )
        scores[:, existing:] = -torch.inf
        if not seen:
            row, place = past.flat(*past.before(owner[here], now))
            scores[torch.from_numpy(row), torch.from_numpy(past.ids[place].astype(np.int64))] = -torch.inf
        best = scores.topk(min(k, scores.shape[1]))
        lists.append(best.indices.numpy())
        values.append(best.values.numpy())
    return np.concatenate(lists), np.concatenate(values)


def _frame(log: Log, users: pa.Array, lists: Ints, scores: NDArray[np.float32]) -> pa.Table:
    """One row per recommendation; where a user has seen nearly everything there are fewer than k."""
    real = np.isfinite(scores)
    row, place = np.nonzero(real)
    codes = lists[real]
    columns: dict[str, Any] = {
        "user_id": users.take(pa.array(row, pa.int64())),
        "item_id": log.items.of(codes),
        "score": scores[real],
        "rank": place + 1,
    }
    if log.items.titles is not None:
        columns["title"] = log.items.titles.take(pa.array(codes))
    return pa.table(columns)
