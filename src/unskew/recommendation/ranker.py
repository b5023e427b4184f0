"""From a trained model and a log to lists of items: for users of the log, or after bare histories of item
ids.

A `Ranker` keeps the catalogue of a model (whatever scoring needs of every item) between calls. When it is
given a newer log, or when events are added to its live log, it computes again only what they have changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.data.batches.batch import contexts_of
from unskew.data.log.log import LogView
from unskew.data.log.split import split
from unskew.data.log.views import PAD, EventView, Ints, Sequences, offsets_of
from unskew.models.base import Recommender, build
from unskew.models.pulse.model import PulseZero
from unskew.nn.scoring import Catalog, scores_at
from unskew.recommendation.ann import Proposals, Recall
from unskew.recommendation.diversity import diverse, likeness

BLOCK = 256  # contexts that are scored together


@dataclass(frozen=True, eq=False)
class Recommendations:
    """A frame `user_id, item_id, score, rank, source` (and title), and which ids of the request the log does
    not know. `source` says whether the model itself or `pulse-zero` recommends. `recall` says how good
    approximate lists are."""

    table: pa.Table
    users_unknown: tuple[Any, ...] = ()
    items_unknown: tuple[Any, ...] = ()
    recall: Recall | None = None

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


@dataclass
class Saved:
    """What was written: how many lists, how many of them by `pulse-zero`, how many users and items of the
    requests the log does not know, and how good the lists are if they are approximate."""

    lists: int = 0
    by_pulse_zero: int = 0
    unknown_users: int = 0
    skipped_items: int = 0
    recall: Recall | None = None

    def count(self, found: Recommendations) -> pa.Table:
        """Count some lists, and pass their frame on."""
        first = found.table.filter(pc.equal(found.table["rank"], 1))
        self.lists += len(first)
        self.by_pulse_zero += pc.sum(pc.equal(first["source"], PulseZero.name)).as_py() or 0
        self.unknown_users += found.unknown_users
        self.skipped_items += found.skipped_items
        return found.table


@dataclass(frozen=True, eq=False)
class Wanted:
    """Which lists are asked for.

    k: how many items each list has at most.
    include_seen: whether items of the history can be recommended again.
    candidates: the only items that can be recommended, by their ids; all items if None.
    exclude: items that are not recommended, by their ids.
    debias: from 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), for models
        that have a debiasing strength; by default as the model has it.
    at: the moment of the request, in ticks of the log's clock; what happened then or later does not count.
        By default it is just after the newest event.
    diverse: from 0 (the best items, whatever they are) to 1 (items that are as unlike each other as can be):
        maximal marginal relevance (see `unskew.recommendation.diversity`).
    approximate: whether an index proposes the items that are scored (see `unskew.recommendation.ann`). Among
        `candidates`, all are scored anyway.
    """

    k: int = 10
    include_seen: bool = False
    candidates: Sequence[Any] | None = None
    exclude: Sequence[Any] = ()
    debias: float | None = None
    at: int | None = None
    diverse: float = 0.0
    approximate: bool = False


class Ranker:
    """Ranks the items of a log, now, with a trained model.

    People of whom the model has nothing to say (`Recommender.knows`) get what `pulse-zero` recommends, and
    the frame says so in its column `source`.
    """

    def __init__(self, model: Recommender, log: LogView) -> None:
        self.model, self.log = model, log
        # Of each model, one for now and one for a past moment, with the log and the moment.
        self._catalogs: dict[tuple[str, bool], tuple[LogView, int | None, Catalog]] = {}
        self._zero: Recommender | None = None
        self._proposals: Proposals | None = None

    def recall(self, wanted: Wanted) -> Recall | None:
        """How good the approximate lists of such requests are, if an index was asked for them."""
        if self._proposals is None or not wanted.approximate or wanted.candidates is not None:
            return None
        return self._proposals.recall(wanted.k, wanted.include_seen)

    def follow(self, log: LogView) -> None:
        """Rank the items of a newer log from now on."""
        if log is not self.log:
            self.log, self._zero = log, None
            for past in (False, True):
                self._catalogs.pop((PulseZero.name, past), None)

    @torch.no_grad()
    def _catalog(self, model: Recommender, at: int) -> tuple[LogView, Catalog]:
        """The catalogue of a model for a moment, and the log that it reads: the live one, or a copy of what
        it is now."""
        log = self.log if model.supports_live_log else self.log.frozen()
        # At now and after it everything is past. Another moment has a catalogue of its own.
        moment = None if at >= log.now else at
        if moment is not None:
            log = self.log.frozen()
        key = model.name, moment is not None
        before = self._catalogs.get(key)
        if before is not None and before[0] is log and before[1] == moment:
            return log, before[2]
        first = log.now if moment is None else moment
        renewed = getattr(before[2], "renewed", None) if before and moment is None else None
        made = (renewed or model.eval().catalog)(log, first, first + 1)
        self._catalogs[key] = log, moment, made
        return log, made

    def for_users(self, users: Sequence[Any], wanted: Wanted) -> Recommendations:
        """The best items for each user. A user whom the log does not know gets what an empty history gets."""
        log = self.log
        codes = log.users.codes(users).astype(np.int64)
        known = np.where(codes == PAD, len(log.users), codes)
        best = self._best(known, log.histories, codes, self._moment(wanted), wanted)
        unknown = tuple(user for user, code in zip(users, codes, strict=True) if code == PAD)
        table = self._frame(_in_type_of(log.users.ids, users), *best)
        return Recommendations(table, unknown, self._unknown_items(wanted), self.recall(wanted))

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
        history. An item may be a pair of an id and a time, in ticks of the log's clock; without times, all
        items count as just past. Items that the log does not know are skipped, and so are those that are not
        before the moment of the request."""
        log, at = self.log, self._moment(wanted)
        pairs = [[item if isinstance(item, tuple) else (item, None) for item in one] for one in histories]
        items, times = zip(*(pair for one in pairs for pair in one), strict=True) if any(pairs) else ((), ())
        codes = log.items.codes(items) if items else np.zeros(0, np.int32)
        when = np.array([at - 1 if time is None else time for time in times], np.int64)
        owner = np.repeat(np.arange(len(pairs)), [len(one) for one in pairs])
        skipped = tuple(item for item, code in zip(items, codes, strict=True) if code == PAD)
        order = np.lexsort((when, owner))
        order = order[codes[order] != PAD]
        past = Sequences(codes[order], when[order], offsets_of(owner[order], len(pairs)))
        best = self._best(np.full(len(pairs), len(log.users)), past, np.arange(len(pairs)), at, wanted)
        numbers = pa.array(range(len(pairs)), pa.int64())
        unknown = skipped + self._unknown_items(wanted)
        return Recommendations(self._frame(numbers, *best), (), unknown, self.recall(wanted))

    @torch.no_grad()
    def _best(
        self, user: Ints, past: EventView, owner: Ints, at: int, wanted: Wanted
    ) -> tuple[Ints, NDArray[np.float32], NDArray[np.bool_]]:
        """The best items of each context, their scores, and whether the model knows the context; its history
        is the sequence `owner` of `past`."""
        if wanted.k < 1:
            raise BadInput(f"k {wanted.k}: expected at least 1")
        if not 0 <= wanted.diverse <= 1:
            raise BadInput(f"diverse {wanted.diverse}: expected from 0 to 1")
        hidden, width = self._hidden(at, wanted), min(wanted.k, len(self.log.items))
        proposals = self._proposing(at, wanted)
        lists: list[Ints] = [np.zeros((0, width), np.int64)]
        values: list[NDArray[np.float32]] = [np.zeros((0, width), np.float32)]
        sources: list[NDArray[np.bool_]] = [np.zeros(0, bool)]
        for first in range(0, len(user), BLOCK):
            asked = user[first : first + BLOCK], past, owner[first : first + BLOCK], at, hidden, wanted
            best, codes, knows = (
                self._exact(*asked) if proposals is None else self._approximate(proposals, *asked)
            )
            lists.append(codes.numpy())
            values.append(best.numpy())
            sources.append(knows.numpy())
        return np.concatenate(lists), np.concatenate(values), np.concatenate(sources)

    def _exact(
        self, user: Ints, past: EventView, owner: Ints, at: int, hidden: Tensor, wanted: Wanted
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best scores of some contexts, the codes of these items, and whether the model knows the
        context, of all items."""
        log, catalog = self._catalog(self.model, at)
        times = np.full(len(user), at)
        context = contexts_of(log, user, times, past, owner, self.model.history)
        knows = self.model.knows(context)
        scores = torch.empty(len(times), len(log.items))
        if bool(knows.any()):
            scores = scores_at(self.model, catalog, context, (wanted.debias,))[0]
        if not bool(knows.all()):
            others = self._others(user, times, past, owner, wanted.debias)
            scores = torch.where(knows[:, None], scores, others)
        scores = scores.masked_fill(hidden, -torch.inf)
        if not wanted.include_seen:
            row, place = past.flat(*past.before(owner, at))
            seen = torch.from_numpy(past.ids[place].astype(np.int64))
            scores[torch.from_numpy(row), seen] = -torch.inf
        width = min(wanted.k, len(log.items))
        if wanted.diverse:
            best = diverse(scores, width, wanted.diverse, partial(likeness, catalog, self.log, at))
        else:
            best = scores.topk(width)
        return best[0], best[1], knows

    def _proposing(self, at: int, wanted: Wanted) -> Proposals | None:
        """The index, if it is asked for; it is built when it is first asked for, and when many items have
        come since."""
        if not wanted.approximate:
            return None
        if wanted.debias is not None:
            raise BadInput(
                f"debias {wanted.debias}: approximate lists have the debiasing strength of the model, so "
                "ask for exact ones"
            )
        log, catalog = self._catalog(self.model, at)
        if self._proposals is None or not self._proposals.fits(log):
            self._proposals = Proposals(self.model, catalog, log)
        return self._proposals

    def _approximate(
        self,
        proposals: Proposals,
        user: Ints,
        past: EventView,
        owner: Ints,
        at: int,
        hidden: Tensor,
        wanted: Wanted,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of those items that the index proposes. Lists that it cannot fill are exact, and so are
        those of people whom the model does not know."""
        log, catalog = self._catalog(self.model, at)
        width, rows = min(wanted.k, len(log.items)), len(user)
        context = contexts_of(log, user, np.full(rows, at), past, owner, self.model.history)
        row, place = past.flat(*past.before(owner, at))
        most = int(np.bincount(row, minlength=1).max()) if not wanted.include_seen else 0
        codes, scores = proposals.of(context, wanted.k, ~hidden.numpy(), most, wanted.include_seen)
        if not wanted.include_seen:
            pairs = np.arange(rows)[:, None] * len(log.items) + codes.numpy()
            seen = np.isin(pairs, row * len(log.items) + past.ids[place])
            scores = scores.masked_fill(torch.from_numpy(seen), -torch.inf)
        missing = max(width - codes.shape[1], 0)
        codes, scores = pad(codes, (0, missing)), pad(scores, (0, missing), value=-torch.inf)
        if wanted.diverse:
            similarity = [partial(self._likeness, catalog, at, of_row) for of_row in codes]
            found = [
                diverse(some, width, wanted.diverse, like)
                for some, like in zip(scores.split(1), similarity, strict=True)
            ]
            best, places = (torch.cat(part) for part in zip(*found, strict=True))
        else:
            best, places = scores.topk(width)
        codes, knows = codes.gather(1, places), self.model.knows(context)
        rest = np.flatnonzero(~(knows & best.isfinite().all(1)).numpy())
        if len(rest):
            best[rest], codes[rest], _ = self._exact(user[rest], past, owner[rest], at, hidden, wanted)
        return best, codes, knows

    def _likeness(self, catalog: Catalog, at: int, codes: Tensor, places: Ints) -> Tensor:
        return likeness(catalog, self.log, at, codes.numpy()[places])

    def _others(self, user: Ints, times: Ints, past: EventView, owner: Ints, debias: float | None) -> Tensor:
        """The scores of contexts of which the model has nothing to say."""
        if self._zero is None:
            # Of the log that it began with, so that the answers do not depend on when this is first needed.
            whole = split(self.log.origin, fractions=(100, 0, 0))
            self._zero = build(PulseZero, whole, PulseZero.Config()).eval()
        log, catalog = self._catalog(self._zero, int(times[0]))
        context = contexts_of(log, user, times, past, owner, self._zero.history)
        return scores_at(self._zero, catalog, context, (debias,))[0]

    def _moment(self, wanted: Wanted) -> int:
        return self.log.now if wanted.at is None else wanted.at

    def _hidden(self, at: int, wanted: Wanted) -> Tensor:
        """Items that no list may hold: those that nobody had yet, and what the request rules out."""
        first = self.log.audiences.first_times
        hidden = np.append(first >= at, np.ones(len(self.log.items) - len(first), bool))
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
            titles = [self.log.items.title_of(code) for code in codes.tolist()]
            columns["title"] = pa.array(titles, pa.string())
        return pa.table(columns)


def _in_type_of(known: pa.Array, asked: Sequence[Any]) -> pa.Array:
    """The requested ids in the type of the log's ids, so that they come back as they are there."""
    kind = known.type
    ids = asked if isinstance(asked, pa.Array) else pa.array(list(asked), kind if not len(asked) else None)
    return ids if isinstance(kind, pa.BaseExtensionType) else ids.cast(kind)
