"""From a trained model and a log to lists of items: for users of the log, or after bare histories of item
ids.

A `Ranker` keeps the catalogue of a model (whatever scoring needs of every item) between calls. When it is
given a newer log, or when events are added to its live log, it computes again only what they have changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from unskew.core.progress import Job, progress
from unskew.data.batches.batch import Batch, contexts_of
from unskew.data.log.log import LogView
from unskew.data.log.split import split
from unskew.data.log.views import PAD, EventView, Ints, Sequences, offsets_of
from unskew.data.log.vocabulary import Feature
from unskew.models.base import Recommender, build
from unskew.nn.debias import scores_at
from unskew.nn.device import device_of
from unskew.nn.reasons import Explains, Reason
from unskew.nn.scoring import Catalog
from unskew.nn.top_k import FindsBest, Wanted
from unskew.recommendation.ann import Proposals, Recall
from unskew.recommendation.cold_items import OWN, ColdItems
from unskew.recommendation.diversity import Likeness, TagVectors, choose, likeness
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.reasons import TYPE as BECAUSE
from unskew.recommendation.reasons import in_words
from unskew.recommendation.rule_masks import ItemRules, absent_values, bind_rules

BLOCK = 256  # contexts that are scored together
MOST_BOUND = 64  # sets of rules that are kept in terms of the items
NAMED = 5  # ids that a message names


@dataclass(frozen=True, eq=False)
class Recommendations:
    """A frame `user_id, item_id, score, rank, source` (and title), and which ids of the request the log does
    not know. `source` is `model`, or the name of the fallback that recommends instead. Lists after bare
    histories have no user: their first column is `history`, which is the number of the history, from 0.
    `recall` is that of approximate lists."""

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
        try:
            return self.table.to_pandas()
        except ImportError:
            raise BadInput("to_pandas needs pandas: pip install pandas") from None

    def to_polars(self) -> Any:
        """The frame as a polars DataFrame."""
        try:
            import polars
        except ImportError:
            raise BadInput("to_polars needs polars: pip install polars") from None
        return polars.from_arrow(self.table)


@dataclass
class Saved:
    """What was written.

    lists, by_fallback: how many lists, and how many of them by the fallback instead of the model.
    unknown_users, skipped_items: how many users and items of the requests the log does not know.
    recall: that of approximate lists.
    """

    lists: int = 0
    by_fallback: int = 0
    unknown_users: int = 0
    skipped_items: int = 0
    recall: Recall | None = None

    def count(self, written: Recommendations) -> pa.Table:
        """Count some lists, and pass their frame on."""
        first = written.table.filter(pc.equal(written.table["rank"], 1))
        self.lists += len(first)
        self.by_fallback += pc.sum(pc.not_equal(first["source"], "model")).as_py() or 0
        self.unknown_users += written.unknown_users
        self.skipped_items += written.skipped_items
        return written.table


@dataclass(frozen=True, eq=False)
class RankedLists:
    """Lists of item codes, best first.

    codes, scores: (lists, k). Where a list has fewer items than k, its scores end with minus infinity.
    known: of which contexts the model has something to say; the other lists are the fallback's.
    skipped: items of histories and options that the log does not know.
    reasons: if they were asked for, of each list and each of its items.
    """

    codes: Ints
    scores: NDArray[np.float32]
    known: NDArray[np.bool_]
    skipped: tuple[Any, ...] = ()
    reasons: list[list[tuple[Reason, ...]]] | None = None


class Ranker:
    """Ranks the items of a log, now, with a trained model.

    repeats: whether items of the history can be recommended again, unless the options say otherwise.
    fallback: a kind of model that needs no training. It makes the lists of users of whom the model has
        nothing to say (`Recommender.knows`), and the frame names it in its column `source`. Without one, the
        model makes all lists.
    """

    def __init__(
        self,
        model: Recommender,
        log: LogView,
        *,
        repeats: bool = False,
        fallback: type[Recommender] | None = None,
    ) -> None:
        self.model, self.log, self.repeats, self.fallback = model, log, repeats, fallback
        # Of each model, one for now and one for a past moment, with the log and the moment.
        self._catalogs: dict[tuple[str, bool], tuple[LogView, int | None, Catalog]] = {}
        self._fallback_model: Recommender | None = None
        self._proposals: Proposals | None = None
        self._bound: dict[tuple[str, ...], tuple[dict[str, Feature], ItemRules]] = {}
        self._tags: TagVectors | None = None
        self._cold: ColdItems | None = None

    def recall(self, options: RecommendOptions) -> Recall | None:
        """The recall of the approximate lists of such requests, if an index was asked for them."""
        if self._proposals is None or not options.approximate or options.candidates is not None:
            return None
        return self._proposals.recall(options.k, self._includes_seen(options))

    def follow(self, log: LogView) -> None:
        """Rank the items of a newer log from now on."""
        if log is not self.log:
            self.log = log
            if self._fallback_model is not None:
                for is_past in (False, True):
                    self._catalogs.pop((self._fallback_model.name, is_past), None)
                self._fallback_model = None

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
        model.eval()
        if before and moment is None:
            catalog = model.renew_catalog(before[2], log, first, first + 1)
        else:
            catalog = model.catalog(log, first, first + 1)
        self._catalogs[key] = log, moment, catalog
        return log, catalog

    def for_users(self, users: Sequence[Any], options: RecommendOptions) -> Recommendations:
        """The best items for each user. A user whom the log does not know gets what an empty history gets."""
        codes = self.log.users.codes(users)
        unknown = tuple(user for user, code in zip(users, codes, strict=True) if code == PAD)
        lists = self.rank_users(users, options)
        table = self._frame(_in_type_of(self.log.users.ids, users), lists)
        return Recommendations(table, unknown, lists.skipped, self.recall(options))

    def for_all_users(self, options: RecommendOptions) -> Iterator[Recommendations]:
        """The best items for every user of the log, a block of users at a time."""
        ids = self.log.users.ids.drop_null()  # an erased user has none
        with progress("recommend", len(ids)) as job:
            yield from self.for_many_users(ids, options, job)

    def for_many_users(
        self, users: pa.Array, options: RecommendOptions, job: Job
    ) -> Iterator[Recommendations]:
        """The best items for some users, a block of users at a time, as a part of a job."""
        for first in range(0, len(users), BLOCK):
            block = users.slice(first, BLOCK)
            yield self.for_users(block, options)
            job.advance(len(block))

    def for_histories(self, histories: Sequence[Sequence[Any]], options: RecommendOptions) -> Recommendations:
        """The best items after each history of item ids, oldest first; the column `history` is the number of
        the history. An item may be a pair of an id and a time, which is an ISO date or in ticks of the log's
        clock; without times, all items count as just past. Items that the log does not know are skipped, and
        so are those that are not before the moment of the request."""
        lists = self.rank_histories(histories, options)
        table = self._frame(pa.array(range(len(histories)), pa.int64()), lists, owner="history")
        return Recommendations(table, (), lists.skipped, self.recall(options))

    def rank_users(self, users: Sequence[Any], options: RecommendOptions) -> RankedLists:
        """The lists of `for_users`, by item codes."""
        return self._best(self._contexts_of_users(users, options), options)

    def rank_histories(self, histories: Sequence[Sequence[Any]], options: RecommendOptions) -> RankedLists:
        """The lists of `for_histories`, by item codes."""
        contexts, skipped = self._contexts_after(histories, options)
        lists = self._best(contexts, options)
        return replace(lists, skipped=(*skipped, *lists.skipped))

    @property
    def explains(self) -> bool:
        """Whether the model gives reasons for its scores."""
        return isinstance(self._catalog(self.model, self.log.now)[1], Explains)

    def explain_user(self, user: Any, codes: Ints, options: RecommendOptions) -> list[tuple[Reason, ...]]:
        """Why some items have their scores for a user, item by item."""
        return self._reasons(self._contexts_of_users([user], options), [codes], options)[0]

    def explain_history(
        self, history: Sequence[Any], codes: Ints, options: RecommendOptions
    ) -> list[tuple[Reason, ...]]:
        """Why some items have their scores after a history, item by item."""
        contexts, _ = self._contexts_after([history], options)
        return self._reasons(contexts, [codes], options)[0]

    def _contexts_of_users(self, users: Sequence[Any], options: RecommendOptions) -> "_Contexts":
        log = self.log
        codes = log.users.codes(users).astype(np.int64)
        known = np.where(codes == PAD, len(log.users), codes)
        return _Contexts(known, log.histories, codes, self._moment(options))

    def _contexts_after(
        self, histories: Sequence[Sequence[Any]], options: RecommendOptions
    ) -> tuple["_Contexts", tuple[Any, ...]]:
        """The contexts of bare histories, and the items that the log does not know."""
        log, at = self.log, self._moment(options)
        events = [
            (row, *(item if isinstance(item, tuple) else (item, None)))
            for row, history in enumerate(histories)
            for item in history
        ]
        owner = np.array([row for row, _, _ in events], np.int64)
        codes = log.items.codes([item for _, item, _ in events]) if events else np.zeros(0, np.int32)
        moment = log.clock.moment
        when = [at - 1 if time is None else moment(time, "times") for _, _, time in events]
        times = np.array(when, np.int64)
        order = np.lexsort((times, owner))
        order = order[codes[order] != PAD]
        rows = len(histories)
        past = Sequences(codes[order], times[order], offsets_of(owner[order], rows))
        skipped = (item for (_, item, _), code in zip(events, codes, strict=True) if code == PAD)
        return _Contexts(np.full(rows, len(log.users)), past, np.arange(rows), at), tuple(skipped)

    @torch.no_grad()
    def _reasons(
        self, contexts: "_Contexts", items: Sequence[Ints], options: RecommendOptions
    ) -> list[list[tuple[Reason, ...]]]:
        """Why some items of each context have their scores, from the catalogue that scored them."""
        log, catalog = self._catalog(self.model, contexts.at)
        known = self._knows(contexts.batch(log, self.model)).numpy()
        found: list[list[tuple[Reason, ...]]] = []
        for row, listed in enumerate(items):
            model = self.model if known[row] else self._fallback_network()
            log, catalog = self._catalog(model, contexts.at)
            if not isinstance(catalog, Explains):
                raise BadInput(f"explain: {model.name} gives no reasons; pulse does", field="explain")
            context = contexts.some(np.array([row])).batch(log, model)
            found += catalog.reasons(context, [listed], options.debias) if len(listed) else [[]]
        return found

    @torch.no_grad()
    def _best(self, contexts: "_Contexts", options: RecommendOptions) -> RankedLists:
        """The best items of contexts."""
        at = contexts.at
        (hidden, unknown), width = self._hidden(at, options), min(options.k, len(self.log.items))
        rules = self.item_rules(options)
        proposals = self._proposals_at(at) if options.approximate else None
        empty = (
            torch.zeros(0, width),
            torch.zeros(0, width, dtype=torch.int64),
            torch.zeros(0, dtype=torch.bool),
        )
        blocks = [empty]
        for first in range(0, len(contexts.user), BLOCK):
            block = contexts.some(slice(first, first + BLOCK))
            blocks.append(
                self._exact(block, hidden, rules, options)
                if proposals is None
                else self._approximate(proposals, block, hidden, rules, options)
            )
        scores, codes, known = (torch.cat(part).numpy() for part in zip(*blocks, strict=True))
        lists = RankedLists(codes, scores, known, unknown)
        if not options.explain:
            return lists
        listed = [row[np.isfinite(of_row)] for row, of_row in zip(codes, scores, strict=True)]
        return replace(lists, reasons=self._reasons(contexts, listed, options))

    def _exact(
        self, contexts: "_Contexts", hidden: Tensor, rules: ItemRules, options: RecommendOptions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The best scores of some contexts, the codes of these items, and whether the model knows the
        context, of all items."""
        if not (options.diverse or rules.shapes_lists or options.cold == "content"):
            lists = self._best_only(contexts, hidden, options)
            if lists is not None:
                return lists
        log, catalog = self._catalog(self.model, contexts.at)
        context = contexts.batch(log, self.model)
        known = self._knows(context)
        scores = torch.empty(len(contexts.user), len(log.items))
        if bool(known.any()):
            scores = scores_at(self.model, catalog, context, (options.debias,))[0]
        if not bool(known.all()):
            scores = torch.where(known[:, None], scores, self._fallback_scores(contexts, options.debias))
        if options.cold == "content":
            at = None if options.at is None else contexts.at
            times = np.full(len(scores), contexts.at)
            scores = self._cold_items().rescore(scores, times, contexts.own(), at)
        scores = scores.masked_fill(hidden, -torch.inf)
        if not self._includes_seen(options):
            pinned = torch.tensor(list(rules.pins.values()), dtype=torch.int64)
            of_pinned = scores[:, pinned]  # which are listed even if they were seen
            scores[tuple(map(torch.from_numpy, contexts.seen()))] = -torch.inf
            scores[:, pinned] = of_pinned
        width = min(options.k, len(log.items))
        if options.diverse or rules.shapes_lists:
            best = self._shaped(scores, width, rules, options.diverse, catalog, contexts.at)
        else:
            best = _top(scores, width)
        return best[0], best[1], known

    def _best_only(
        self, contexts: "_Contexts", hidden: Tensor, options: RecommendOptions
    ) -> tuple[Tensor, Tensor, Tensor] | None:
        """The same without the scores of all items; None if a model needs them for its lists, or computes on
        a graphics card, where all scores cost little."""
        if device_of(self.model).type != "cpu":
            return None
        log, catalog = self._catalog(self.model, contexts.at)
        known = self._knows(contexts.batch(log, self.model))
        width = min(options.k, len(log.items))
        best, codes = torch.full((len(known), width), -torch.inf), torch.zeros(len(known), width).long()
        for is_known in (True, False):
            place = (known == is_known).nonzero()[:, 0]
            if not len(place):
                continue
            model = self.model if is_known else self._fallback_network()
            log, catalog = self._catalog(model, contexts.at)
            if not isinstance(catalog, FindsBest):
                return None
            some = contexts.some(place.numpy())
            nothing = np.zeros(0, np.int64)
            row, item = (nothing, nothing) if self._includes_seen(options) else some.seen()
            wanted = Wanted(width, hidden, row, item, options.debias)
            lists = catalog.best(some.batch(log, model), wanted)
            if lists is None:
                return None
            best[place], codes[place] = lists
        return best, codes, known

    def _cold_items(self) -> ColdItems:
        """What scores items by their content."""
        if self._cold is None or self._cold.log is not self.log:
            self._cold = ColdItems(self.log)
        return self._cold

    def _shaped(
        self, scores: Tensor, width: int, rules: ItemRules, diverse: float, catalog: Catalog, at: int
    ) -> tuple[Tensor, Tensor]:
        """The scores and the codes of lists that are more than the best items."""
        features = self.log.items.features_at(None)
        if self._tags is None or self._tags.features is not features or self._tags.items != scores.shape[1]:
            self._tags = TagVectors(features, scores.shape[1])
        like = Likeness(partial(likeness, catalog, self.log, at), self._tags)
        best = torch.full((len(scores), width), -torch.inf)
        codes = torch.zeros(len(scores), width, dtype=torch.int64)
        for row, of_row in enumerate(scores):
            chosen = torch.from_numpy(choose(of_row.numpy(), width, rules, diverse, like))
            best[row, : len(chosen)], codes[row, : len(chosen)] = of_row[chosen], chosen
        return best, codes

    def _knows(self, context: Batch) -> Tensor:
        """Which lists the model makes itself."""
        return (
            self.model.knows(context) if self.fallback else torch.ones(len(context.user_B), dtype=torch.bool)
        )

    def _proposals_at(self, at: int) -> Proposals:
        """The index; it is built when it is first asked for, and when many items have come since."""
        log, catalog = self._catalog(self.model, at)
        if self._proposals is None or not self._proposals.fits(log):
            self._proposals = Proposals(self.model, catalog, log)
        return self._proposals

    def _approximate(
        self,
        proposals: Proposals,
        contexts: "_Contexts",
        hidden: Tensor,
        rules: ItemRules,
        options: RecommendOptions,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The same of those items that the index proposes. Lists that it cannot fill are exact, and so are
        those of users whom the model does not know."""
        log, catalog = self._catalog(self.model, contexts.at)
        width, includes_seen = min(options.k, len(log.items)), self._includes_seen(options)
        context = contexts.batch(log, self.model)
        row, item = contexts.seen()
        most = 0 if includes_seen else int(np.bincount(row, minlength=1).max())
        codes, scores = proposals.of(context, options.k, ~hidden.numpy(), most, includes_seen)
        if not includes_seen:
            pairs = np.arange(len(codes))[:, None] * len(log.items) + codes.numpy()
            scores = scores.masked_fill(
                torch.from_numpy(np.isin(pairs, row * len(log.items) + item)), -torch.inf
            )
        if options.diverse:
            everything = torch.full((len(codes), len(log.items)), -torch.inf)
            everything.scatter_(1, codes.clamp(min=0), scores)
            best, codes = self._shaped(everything, width, rules, options.diverse, catalog, contexts.at)
        else:
            missing = max(width - codes.shape[1], 0)
            codes, scores = pad(codes, (0, missing)), pad(scores, (0, missing), value=-torch.inf)
            best, places = scores.topk(width)
            codes = codes.gather(1, places)
        known = self._knows(context)
        rest = np.flatnonzero(~(known & best.isfinite().all(1)).numpy())
        if len(rest):
            best[rest], codes[rest], _ = self._exact(contexts.some(rest), hidden, rules, options)
        return best, codes, known

    def _fallback_scores(self, contexts: "_Contexts", debias: float | None) -> Tensor:
        """The scores of contexts of which the model has nothing to say."""
        network = self._fallback_network()
        log, catalog = self._catalog(network, contexts.at)
        return scores_at(network, catalog, contexts.batch(log, network), (debias,))[0]

    def _fallback_network(self) -> Recommender:
        assert self.fallback is not None
        if self._fallback_model is None:
            # Of the log that it began with, so that the answers do not depend on when this is first needed.
            whole = split(self.log.origin, fractions=(100, 0, 0))
            self._fallback_model = build(self.fallback, whole, self.fallback.Config()).eval()
        return self._fallback_model

    def _includes_seen(self, options: RecommendOptions) -> bool:
        return self.repeats if options.include_seen is None else options.include_seen

    def _moment(self, options: RecommendOptions) -> int:
        return self.log.now if options.at is None else self.log.clock.moment(options.at)

    def item_rules(self, options: RecommendOptions) -> ItemRules:
        """What the rules of a request mean for the items. It is kept until the items are others."""
        items, kept = self.log.items, self._bound.get(options.rules)
        features = self._features(options)
        if kept is None or kept[0] is not features or len(kept[1].admitted) != len(items):
            kept = features, bind_rules(options.parsed_rules, items, features)
            if len(self._bound) >= MOST_BOUND:
                self._bound.pop(next(iter(self._bound)))
            self._bound[options.rules] = kept
        return kept[1]

    def _features(self, options: RecommendOptions) -> dict[str, Feature]:
        """What is known of the items at the moment of a request."""
        return self.log.items.features_at(None if options.at is None else self._moment(options))

    def _hidden(self, at: int, options: RecommendOptions) -> tuple[Tensor, tuple[Any, ...]]:
        """Items that no list may hold: those that do not exist yet, and what the request rules out. Then the
        items of the request that the log does not know."""
        since, rules = self.log.audiences.since, self.item_rules(options)
        hidden = np.append(since >= at, np.ones(len(self.log.items) - len(since), bool))
        unknown: list[Any] = list(rules.unknown)
        exists = not hidden.all()  # any item, at that moment

        def codes_of(ids: Sequence[Any]) -> Ints:
            codes = self.log.items.codes(ids)
            unknown.extend(ids[index] for index in np.flatnonzero(codes == PAD).tolist())
            return codes[codes != PAD].astype(np.int64)

        if options.candidates is not None:
            candidates = codes_of(options.candidates)
            if not len(candidates):
                raise BadInput(
                    f"candidates: no item of the log among {_named(options.candidates)}", field="candidates"
                )
            hidden |= ~np.isin(np.arange(len(hidden)), candidates)
        hidden |= ~rules.admitted
        if len(options.exclude):
            hidden[codes_of(options.exclude)] = True
        if hidden.all() and (options.candidates is not None or (options.rules and exists)):
            self._refuse_nothing(options, rules)
        return torch.from_numpy(hidden), tuple(unknown)

    def _refuse_nothing(self, options: RecommendOptions, rules: ItemRules) -> None:
        """Say why a request leaves no item to recommend."""
        if rules.admitted.any():
            rest = "and what is excluded leave no item that exists at that moment"
            if options.candidates is None:
                raise BadInput(f"rules: the rules {rest}", field="rules")
            raise BadInput(f"candidates: the candidates, the rules {rest}", field="candidates")
        hint = absent_values(options.parsed_rules, self.log.items, self._features(options))
        raise BadInput(f"rules: they admit no item{hint and f'; {hint}'}", field="rules")

    def _frame(self, users: pa.Array, lists: RankedLists, owner: str = "user_id") -> pa.Table:
        """One row per recommendation; a list is shorter than k where there are fewer items to choose from.
        `owner` is the name of the column that says whose list it is."""
        ranked = np.isfinite(lists.scores)
        row, place = np.nonzero(ranked)
        codes = lists.codes[ranked]
        other = "" if self.fallback is None else self.fallback.name
        columns: dict[str, Any] = {
            owner: users.take(pa.array(row, pa.int64())),
            "item_id": self.log.items.of(codes),
            "score": lists.scores[ranked],
            "rank": place + 1,
            "source": np.where(lists.known, "model", other)[row],
        }
        if lists.reasons is not None:
            because = [in_words(of_item, self.log.items) for of_list in lists.reasons for of_item in of_list]
            columns["because"] = pa.array(because, BECAUSE)
        if self.log.items.titles is not None:
            titles = [self.log.items.title_of(code) for code in codes.tolist()]
            columns["title"] = pa.array(titles, pa.string())
        return pa.table(columns)


@dataclass(frozen=True, eq=False)
class _Contexts:
    """Some users at a moment; the history of each is the sequence `owner` of `past`."""

    user: Ints
    past: EventView
    owner: Ints
    at: int

    def some(self, places: Ints | slice) -> "_Contexts":
        return _Contexts(self.user[places], self.past, self.owner[places], self.at)

    def batch(self, log: LogView, model: Recommender) -> Batch:
        """The contexts as a model reads them."""
        times = np.full(len(self.user), self.at)
        return contexts_of(log, self.user, times, self.past, self.owner, model.history)

    def own(self) -> Ints:
        """The newest past items, one row each, padded on the left."""
        return self.past.padded(*self.past.before(self.owner, self.at, OWN)).astype(np.int64)

    def seen(self) -> tuple[Ints, Ints]:
        """The past items, as pairs of a row and an item code."""
        row, place = self.past.flat(*self.past.before(self.owner, self.at))
        return row, self.past.ids[place].astype(np.int64)


def _named(ids: Sequence[Any]) -> str:
    """Some ids, for a message."""
    return ", ".join(map(repr, ids[:NAMED])) + (f" and {len(ids) - NAMED:,} more" if len(ids) > NAMED else "")


def _top(scores: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The best scores and their items. NumPy sorts a whole row several times as fast as `topk`."""
    if 4 * width < scores.shape[1]:
        return scores.topk(width)
    codes = torch.from_numpy(np.argsort(-scores.numpy(), axis=1)[:, :width])
    return scores.gather(1, codes), codes


def _in_type_of(ids: pa.Array, requested: Sequence[Any]) -> pa.Array:
    """The requested ids in the type of the log's ids, so that they come back as they are there."""
    kind = ids.type
    ids = (
        requested
        if isinstance(requested, pa.Array)
        else pa.array(list(requested), kind if not len(requested) else None)
    )
    return ids if isinstance(kind, pa.BaseExtensionType) else ids.cast(kind)
