"""From a trained model and a log to lists of items: for users of the log, or after bare histories of item
ids.

A `Ranker` keeps the catalogue of a model (whatever scoring needs of every item) between calls, and when it is
given a newer log it computes again only what the new events have changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.catalog import Catalog, scores_at
from unskew.data.batch import contexts_of
from unskew.data.log import Log
from unskew.data.split import split
from unskew.data.views import PAD, Ints, Sequences, offsets_of
from unskew.errors import BadInput
from unskew.models.base import Recommender, build
from unskew.models.pulse import PulseZero
from unskew.progress import progress

BLOCK = 256  # contexts that are scored together


@dataclass(frozen=True, eq=False)
class Recommendations:
    """A frame `user_id, item_id, score, rank, source` (and title), and which ids of the request the log does
    not know. `source` says whether the model itself or `pulse-zero` recommends."""

    table: pa.Table
    users_unknown: tuple[Any, ...] = ()
    items_unknown: tuple[Any, ...] = ()

    @property
    def unknown_users(self) -> int:
        """How many of the requested users are not in the log; they get what an empty history gets."""
        return len(self.users_unknown)

    @property
    def skipped_items(self) -> int:
        """How many items of the request are not in the log; they are skipped."""
        return len(self.items_unknown)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Lets pandas, polars and anything else that reads Arrow take this as a frame."""
        return self.table.__arrow_c_stream__(requested_schema)

    def to_pandas(self) -> Any:
        """The frame as a pandas DataFrame."""
        return self.table.to_pandas()


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which lists are asked for.

    k: how many items each list has at most.
    include_seen: whether items of the history can be recommended again.
    candidates: the only items that can be recommended, by their ids; all items if None.
    exclude: items that are not recommended, by their ids.
    dial: from 0 (what will be clicked) to 1 (what would be, if all items were exposed alike), for models that
        have a dial; by default as the model has it.
    """

    k: int = 10
    include_seen: bool = False
    candidates: Sequence[Any] | None = None
    exclude: Sequence[Any] = ()
    dial: float | None = None


class Ranker:
    """Ranks the items of a log, now, with a trained model.

    People of whom the model has nothing to say (`Recommender.knows`) get what `pulse-zero` recommends, and
    the frame says so in its column `source`.
    """

    def __init__(self, model: Recommender, log: Log) -> None:
        self.model, self.log = model, log
        self._catalog: Catalog | None = None
        self._fallback: tuple[Recommender, Catalog] | None = None

    def follow(self, log: Log) -> None:
        """Rank the items of a newer log from now on."""
        if log is self.log:
            return
        self.log, now, self._fallback = log, log.now, None
        renewed = getattr(self._catalog, "renewed", None)
        with torch.no_grad():
            self._catalog = None if renewed is None else renewed(log, now, now + 1)

    def for_users(self, users: Sequence[Any], wanted: Wanted) -> Recommendations:
        """The best items for each user. A user whom the log does not know gets what an empty history gets."""
        log = self.log
        codes = log.users.codes(users).astype(np.int64)
        best = self._best(np.where(codes == PAD, len(log.users), codes), log.histories, codes, wanted)
        unknown = tuple(user for user, code in zip(users, codes, strict=True) if code == PAD)
        return Recommendations(
            self._frame(_in_type_of(log.users.ids, users), *best), unknown, self._unknown_items(wanted)
        )

    def for_everybody(self, wanted: Wanted) -> Iterator[Recommendations]:
        """The best items for every user of the log, a block of users at a time."""
        ids = self.log.users.ids
        with progress("recommend", len(ids)) as job:
            for first in range(0, len(ids), BLOCK):
                block = ids.slice(first, BLOCK)
                yield self.for_users(block, wanted)
                job.advance(len(block))

    def for_histories(self, histories: Sequence[Sequence[Any]], wanted: Wanted) -> Recommendations:
        """The best items after each history of item ids, oldest first; `user_id` is the number of the
        history. Items that the log does not know are skipped."""
        log = self.log
        codes = [log.items.codes(history) if len(history) else np.zeros(0, np.int32) for history in histories]
        known = [code[code != PAD] for code in codes]
        skipped = tuple(
            item
            for history, found in zip(histories, codes, strict=True)
            for item, code in zip(history, found, strict=True)
            if code == PAD
        )
        owner = np.repeat(np.arange(len(known)), [len(code) for code in known])
        # They carry no times, so all of them count as just past.
        past = Sequences(
            np.concatenate([*known, np.zeros(0, np.int32)]),
            np.full(len(owner), log.now - 1),
            offsets_of(owner, len(known)),
        )
        best = self._best(np.full(len(known), len(log.users)), past, np.arange(len(known)), wanted)
        numbers = pa.array(range(len(known)), pa.int64())
        unknown = skipped + self._unknown_items(wanted)
        return Recommendations(self._frame(numbers, *best), items_unknown=unknown)

    @torch.no_grad()
    def _best(
        self, user: Ints, past: Sequences, owner: Ints, wanted: Wanted
    ) -> tuple[Ints, NDArray[np.float32], NDArray[np.bool_]]:
        """The best items of each context, their scores, and whether the model knows the context; its history
        is the sequence `owner` of `past`."""
        if wanted.k < 1:
            raise BadInput(f"k {wanted.k}: expected at least 1")
        log, now = self.log, self.log.now
        if self._catalog is None:
            self._catalog = self.model.eval().catalog(log, now, now + 1)
        hidden = self._hidden(wanted)
        width = min(wanted.k, len(log.items))
        lists: list[Ints] = [np.zeros((0, width), np.int64)]
        values: list[NDArray[np.float32]] = [np.zeros((0, width), np.float32)]
        sources: list[NDArray[np.bool_]] = [np.zeros(0, bool)]
        for first in range(0, len(user), BLOCK):
            here = slice(first, first + BLOCK)
            times = np.full(len(user[here]), now)
            context = contexts_of(log, user[here], times, past, owner[here], self.model.history)
            knows = self.model.knows(context)
            scores = torch.empty(len(times), len(log.items))
            if bool(knows.any()):
                scores = scores_at(self.model, self._catalog, context, (wanted.dial,))[0]
            if not bool(knows.all()):
                others = self._others(user[here], times, past, owner[here], wanted.dial)
                scores = torch.where(knows[:, None], scores, others)
            sources.append(knows.numpy())
            scores = scores.masked_fill(hidden, -torch.inf)
            if not wanted.include_seen:
                row, place = past.flat(*past.before(owner[here], now))
                seen = torch.from_numpy(past.ids[place].astype(np.int64))
                scores[torch.from_numpy(row), seen] = -torch.inf
            best = scores.topk(width)
            lists.append(best.indices.numpy())
            values.append(best.values.numpy())
        return np.concatenate(lists), np.concatenate(values), np.concatenate(sources)

    def _others(self, user: Ints, times: Ints, past: Sequences, owner: Ints, dial: float | None) -> Tensor:
        """The scores of contexts of which the model has nothing to say."""
        if self._fallback is None:
            whole = split(self.log, shares=(100, 0, 0))
            made = build(PulseZero, whole, PulseZero.Config()).eval()
            self._fallback = made, made.catalog(self.log, self.log.now, self.log.now + 1)
        zero, catalog = self._fallback
        context = contexts_of(self.log, user, times, past, owner, zero.history)
        return scores_at(zero, catalog, context, (dial,))[0]

    def _hidden(self, wanted: Wanted) -> Tensor:
        """Items that no list may hold: those that nobody had yet, and what the request rules out."""
        hidden = np.arange(len(self.log.items)) >= int(self.log.audiences.existing(self.log.now))
        if wanted.candidates is not None:
            named = self.log.items.codes(wanted.candidates)
            hidden |= ~np.isin(np.arange(len(hidden)), named[named != PAD])
        if len(wanted.exclude):
            named = self.log.items.codes(wanted.exclude)
            hidden[named[named != PAD]] = True
        return torch.from_numpy(hidden)

    def _unknown_items(self, wanted: Wanted) -> tuple[Any, ...]:
        """Candidates and excluded items that the log does not know."""
        asked = [*(wanted.candidates if wanted.candidates is not None else ()), *wanted.exclude]
        codes = self.log.items.codes(asked) if asked else ()
        return tuple(item for item, code in zip(asked, codes, strict=True) if code == PAD)

    def _frame(
        self, users: pa.Array, lists: Ints, scores: NDArray[np.float32], known: NDArray[np.bool_]
    ) -> pa.Table:
        """One row per recommendation; a list is shorter than k where there are fewer items to choose from."""
        ranked = np.isfinite(scores)
        row, place = np.nonzero(ranked)
        codes = lists[ranked]
        columns: dict[str, Any] = {
            "user_id": users.take(pa.array(row, pa.int64())),
            "item_id": self.log.items.of(codes),
            "score": scores[ranked],
            "rank": place + 1,
            "source": np.where(known, "model", PulseZero.name)[row],
        }
        if self.log.items.titles is not None:
            columns["title"] = self.log.items.titles.take(pa.array(codes))
        return pa.table(columns)


def _in_type_of(known: pa.Array, asked: Sequence[Any]) -> pa.Array:
    """The requested ids in the type of the log's ids, so that they come back as they are there."""
    kind = known.type
    ids = asked if isinstance(asked, pa.Array) else pa.array(list(asked), kind if not len(asked) else None)
    return ids if isinstance(kind, pa.BaseExtensionType) else ids.cast(kind)
