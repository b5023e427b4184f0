"""How well a run ranks what was clicked, in each window before it saw it."""

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.api.model import Model
from unskew.core.errors import BadInput, NothingToRank
from unskew.core.progress import progress
from unskew.data.log.live import Live
from unskew.data.log.split import Split, Splitting, split_at
from unskew.data.log.views import PAD, Ints
from unskew.data.log.vocabulary import same_ids
from unskew.data.reading.prepare import read
from unskew.evaluation.evaluate import best_lists
from unskew.serve.monitor.queries import PAST_ITEMS, PAST_USERS
from unskew.serve.monitor.statistics import NEVER
from unskew.serve.monitor.window import Window
from unskew.training.extend import CodeMapping, extend_network
from unskew.training.run_card import SplitSummary
from unskew.training.trainer import State

CUT = 10  # of NDCG@10
METRIC = f"ndcg@{CUT}"
SECOND = 10**6  # microseconds


class Ranking:
    """A run that follows a store: what it remembers is the past of the store, and the store's positives are
    added to it. It works on a copy of the weights, so that the run may recommend meanwhile."""

    def __init__(self, model: Model) -> None:
        if not model.is_trained:
            raise BadInput(
                f"{model.name} has no log of its own to go on from; expected a run that was trained"
            )
        own = replace(model.trained, network=copy.deepcopy(model.network))
        self._model = Model(model.name, model.config, model.training, own)
        self._log = model.known_log
        ticks = self._log.clock.ticks
        if ticks is None:
            raise BadInput(
                "the times of this run are only an order, so they cannot be compared with those of a store"
            )
        self._ticks: int = ticks
        self._live = Live(self._log, text=True)

    @property
    def trained_until(self) -> int:
        """The end of the run's training and validation set, in microseconds."""
        return int(self._moments(np.array([self._model.trained.split.valid_end]))[0])

    # What came before the store

    def items(self, before: int) -> pa.Table:
        """The time of the first positive of each item, and its number of positives before a time."""
        view = self._log.audiences
        start, end = view.before(np.arange(len(view)), min(self._after(before), NEVER))
        columns = [_as_text(self._log.items.ids), self._firsts(view.first_times), end - start]
        return _without_null(pa.table(columns, names=PAST_ITEMS.names).cast(PAST_ITEMS))

    def users(self) -> pa.Table:
        """The time of the first positive of each user."""
        columns = [_as_text(self._log.users.ids), self._firsts(self._log.histories.first_times)]
        return _without_null(pa.table(columns, names=PAST_USERS.names).cast(PAST_USERS))

    # What came since

    def follow(self, positives: Iterator[pa.RecordBatch]) -> None:
        """Add positives of the store, but for those from before the end of the training set: the run either
        knows them, or was trained without them."""
        train_end = self._model.trained.split.train_end
        for batch in positives:
            ticks = np.asarray(batch["timestamp"], np.int64)
            ticks = ticks * self._ticks // SECOND if self._ticks < SECOND else ticks * (self._ticks // SECOND)
            later = pa.array(ticks >= train_end)
            users, items = (batch[name].filter(later).to_pylist() for name in ("user_id", "item_id"))
            self._live.append(users, items, ticks[ticks >= train_end].tolist())

    def ranked(self, windows: Sequence[Window], sample: int) -> tuple[Window, ...]:
        """The windows with the NDCG of the run. Each positive is ranked with everything that was there before
        it; windows that begin before the end of what the run was trained and chosen on are marked as seen."""
        clock, valid_end, cut = self._log.clock, self._model.trained.split.valid_end, self._cut
        model, results = self._renumbered(cut), list[Window]()
        with progress("windows", len(windows)) as job:
            for window in windows:
                start, end = clock.tick_of(window.start), clock.tick_of(window.end)
                if start < valid_end:
                    results.append(replace(window, seen=True))
                else:
                    results.append(_scored(model, window, replace(cut, valid_end=start), end, sample))
                job.advance()
        return tuple(results)

    def lists(self, users: Sequence[str], microseconds: Ints, k: int) -> NDArray[np.int32]:
        """The codes of the k best items for each user at each moment, with everything before it known; PAD if
        there are fewer. Moments must not decrease."""
        cut = self._cut
        codes = cut.log.users.codes(list(users)).astype(np.int64)
        user = np.where(codes == PAD, len(cut.log.users), codes)
        time = np.array([self._log.clock.tick_of(moment) for moment in microseconds.tolist()], np.int64)
        return best_lists(self._renumbered(cut).network.eval(), cut, user, time, k)

    def item_codes(self, items: Sequence[str]) -> Ints:
        """The codes of items in `lists`. Items without an event have codes that no list has."""
        codes = self._cut.log.items.codes(list(items)).astype(np.int64)
        return np.where(codes == PAD, len(self._cut.log.items), codes)

    @cached_property
    def _cut(self) -> Split:
        """Everything that was added, split as the run's log was. Nothing is added after it is read."""
        trained = self._model.trained.split
        settings = Splitting(repeats="keep" if trained.repeats else "hide", min_count=trained.min_count)
        return split_at(read(self._live), settings, trained.train_end, trained.valid_end)

    def _renumbered(self, cut: Split) -> Model:
        """The model with the numbers of users and items that the log has now. Without the events of a user
        who was erased, other users and items may come first, so all of them may have other numbers."""
        trained, log = self._model.trained, cut.log
        own = (
            (trained.log.users, log.users, cut.known_users),
            (trained.log.items, log.items, cut.known_items),
        )
        if all(same_ids(before.ids[:size], now.ids[:size]) for before, now, size in own):
            return self._model
        network = extend_network(trained.network, cut.known, CodeMapping.between(trained.log, log)).network
        weights: dict[str, State] = {trained.select_by: network.state_dict()}
        renumbered = replace(trained, network=network, log=log, split=SplitSummary.of(cut), weights=weights)
        return Model(self._model.name, self._model.config, self._model.training, renumbered)

    def _after(self, microseconds: int) -> int:
        """The first tick that is not before a moment."""
        return self._log.clock.tick_of(microseconds - 1) + 1

    def _moments(self, time: Ints) -> Ints:
        """Ticks in microseconds."""
        if self._ticks < SECOND:
            return time * (SECOND // self._ticks)
        return time // (self._ticks // SECOND)

    def _firsts(self, time: Ints) -> pa.Array:
        never = np.asarray(time) == NEVER
        return pa.array(self._moments(np.where(never, 0, time)), mask=never)


def _scored(model: Model, window: Window, split: Split, end: int, sample: int) -> Window:
    """A window with the NDCG of a model on what happened in it."""
    try:
        evaluation = model.evaluate(
            split,
            sample=sample,
            cutoffs=(CUT,),
            select_by=model.trained.select_by,
            until=end,
            show_progress=False,
        )
    except NothingToRank:
        return window
    values = evaluation.values[METRIC]
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return replace(window, ranked=len(values), ndcg=evaluation.mean(METRIC), ndcg_error=error)


def _as_text(ids: pa.Array) -> pa.Array:
    """Ids as text, as in a store."""
    return (ids.storage if isinstance(ids, pa.ExtensionArray) else ids).cast(pa.string())


def _without_null(table: pa.Table) -> pa.Table:
    """The rows that have a positive."""
    return table.filter(table["first"].is_valid())
