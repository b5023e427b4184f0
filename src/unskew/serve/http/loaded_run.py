"""A run that is loaded for serving: its model, its live log, and a ranker. Nothing here is for several
threads at once; the service has the lock."""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from safetensors.torch import load_file

from unskew.api.create import load
from unskew.api.model import Model
from unskew.api.zero_shot import ZeroShot
from unskew.core.errors import BadInput
from unskew.data.log.erasures import Erasures, list_beside, read_erasures
from unskew.data.log.item_feed import in_one_type
from unskew.data.log.live import Live
from unskew.data.log.log import Log
from unskew.data.log.split import split
from unskew.data.log.views import PAD, Codes, Ints
from unskew.models.base import Recommender
from unskew.models.pulse.model import PulseZero
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.reasons import Because, in_words
from unskew.recommendation.rule_masks import bind_rules
from unskew.recommendation.rules import RuleSets, conditions_of
from unskew.serve.http.item_index import ItemIndex
from unskew.serve.http.logs import write_log
from unskew.serve.http.schemas import ItemAnswer, UserItem
from unskew.serve.store.events import BadEvent, in_iso
from unskew.serve.store.items import ItemRow, feed_of_frames
from unskew.serve.store.store import Store
from unskew.serve.store.tables import EventTypes
from unskew.training.erase import run_erasures
from unskew.training.run import read_card
from unskew.training.run_card import RunCard

AHEAD = 86_400 * 10**6  # microseconds by which a clock may be ahead of ours
READ_AT_ONCE = 50_000
FEATURES_IN_ALL = 1000  # of items; each is a column with a value for every item


@dataclass(frozen=True)
class Order:
    """The items of one list, by their codes, best first, whether the model itself made it, and the items of
    the request that the log does not know."""

    codes: Ints
    scores: NDArray[np.float32]
    by_model: bool
    unknown: tuple[str, ...]


class LoadedRun:
    """A run and what happened since.

    run: the folder of a run, or a link to one, or `pulse-zero`.
    data: the prepared log of `pulse-zero`.
    mapped: let the network use the pages of the run's file instead of a copy of them, so that several
        processes share them. They are aligned in another way, so the last bit of a score may differ.
    erasures: users who were erased; what the run remembers of them does not count.
    ahead: microseconds by which the clock of an event may be ahead of ours.
    """

    def __init__(
        self,
        run: str,
        data: Path | None = None,
        mapped: bool = False,
        erasures: Erasures = Erasures(),  # noqa: B008 (frozen)
        ahead: int = AHEAD,
    ) -> None:
        self.folder: Path | None = None if run == PulseZero.name and data is not None else Path(run).resolve()
        self.model = _load_model(run, self.folder, data)
        self.card = None if self.folder is None else read_card(self.folder)
        self.name, self.version = self.model.name, _version(self.folder, self.card)
        self.loaded_at = time.time_ns() // 1000
        self.live = Live(self.model.known_log, text=True)
        self.trained = (len(self.live.users), len(self.live.items))
        self.live.forget_erased(erasures)
        self._ahead = ahead
        self.network: Recommender = self.model.network.eval()
        if mapped and self.folder is not None and self.card is not None:
            file = self.folder / f"weights-{self.card.select_by}.safetensors"
            if file.is_file():  # a run that was stopped has only a checkpoint
                self.network.load_state_dict(load_file(file), assign=True)
        self.ranker = self.model.make_ranker(self.live)
        self.index = ItemIndex(self.live.items)
        self.applied = 0  # the sequence number of the newest event of the store that is in the live log
        self.left_out = 0  # events whose times lie in the future
        self.applied_items = 0  # the same of the newest row about an item
        self.rule_sets = RuleSets()

    @property
    def repeats(self) -> bool:
        """Whether past items can be recommended again, as in the model's evaluation."""
        return self.model.trained.split.repeats

    @property
    def supports_debias(self) -> bool:
        """Whether the model knows how exposed items are."""
        return type(self.network).log_exposure is not Recommender.log_exposure

    @property
    def first(self) -> int | None:
        """The first moment of the log, in microseconds since 1970; None where times are only an order."""
        ticks, times = self.live.clock.ticks, self.live.origin.time
        return int(times.min()) * 10**6 // ticks if ticks and len(times) else None

    @property
    def is_dated(self) -> bool:
        """Whether times are more than an order."""
        return self.live.clock.ticks is not None

    def catch_up(self, store: Store, newest: int, types: EventTypes) -> None:
        """Add the events that the store got since, in the order of their commits, if `newest` says that there
        are any."""
        if newest <= self.applied:
            return
        latest = time.time_ns() // 1000 + self._ahead
        users: list[str] = []
        items: list[str] = []
        times: list[Ints] = []
        kinds: list[str | None] = []
        context = [kind for kind in types.context if kind in self.live.context]
        read = pa.array([*types.positive, *context], pa.string())
        for frame in store.events(self.applied, READ_AT_ONCE):
            self.applied = int(frame["sequence"][-1].as_py())
            positives = frame.filter(pc.is_in(frame["type"], value_set=read))
            valid = positives.filter(pc.less_equal(positives["timestamp"], latest))
            self.left_out += len(positives) - len(valid)
            users += valid["user_id"].to_pylist()
            items += valid["item_id"].to_pylist()
            times.append(valid["timestamp"].to_numpy())
            kinds += [kind if kind in context else None for kind in valid["type"].to_pylist()]
        if users:
            self.live.append(users, items, self._ticks(np.concatenate(times)), kinds)

    def catch_up_items(self, store: Store, newest: int) -> None:
        """Add what the item feed of the store got since, if `newest` says that there is anything."""
        if newest <= self.applied_items:
            return
        frames = list(store.items(self.applied_items, READ_AT_ONCE))
        self.applied_items = int(frames[-1]["sequence"][-1].as_py())
        feed = feed_of_frames(frames, self._item_ticks)
        values = {name: self._fitting(name, column) for name, column in feed.features.items()}
        self.live.describe(replace(feed, features=values))
        self.index = ItemIndex(self.live.items)

    def _item_ticks(self, microseconds: Ints) -> Ints:
        if not self.is_dated:
            return np.full(len(microseconds), self.live.now)
        return np.array([self.live.clock.tick_of(moment) for moment in microseconds.tolist()], np.int64)

    def _fitting(self, name: str, column: pa.Array) -> pa.Array:
        """The values of a feature in the type that the log has; none of them, if they do not fit."""
        known = self.live.items.features.get(name)
        try:
            return column if known is None else in_one_type(name, known.values, column)[1]
        except BadInput as error:
            write_log("a feature of the item feed does not fit the log of the run", 40, error, feature=name)
            return pa.nulls(len(column), column.type)

    def check_fits(self, row: ItemRow, named: set[str]) -> None:
        """Refuse a row with a value that does not fit those that the log has.

        named: the features of the rows before it, to which its own are added.
        """
        names = named | set(row.features)
        if len(names | set(self.live.items.features)) > FEATURES_IN_ALL:
            raise BadEvent("features", f"expected at most {FEATURES_IN_ALL:,} features of all items together")
        for name, value in row.features.items():
            known = self.live.items.features.get(name)
            try:
                if known is not None:
                    in_one_type(name, known.values, pa.array([value]))
            except BadInput:
                reason = f"expected {known.values.type} values, as before" if known is not None else ""
                raise BadEvent(f"features.{name}"[:100], reason) from None
        named |= names

    def _ticks(self, microseconds: Ints) -> list[int]:
        if not self.is_dated:
            first = self.live.now
            return list(range(first, first + len(microseconds)))
        return [self.live.clock.tick_of(moment) for moment in microseconds.tolist()]

    def warm(self) -> None:
        """Build the catalogue, so that the first request need not wait for it."""
        if len(self.live.items):
            self.order(None, (), RecommendOptions(k=1))

    def use_rule_sets(self, rule_sets: RuleSets) -> None:
        """Let requests name these rule sets from now on, if the items have the features that they name."""
        items = self.live.items
        for name in rule_sets.sets:
            bind_rules(rule_sets.parse(name), items, items.features_at(None))
        self.rule_sets = rule_sets

    def order(self, user_id: str | None, history: Sequence[Any], options: RecommendOptions) -> Order:
        """The list for a user, or, with None, after a history."""
        if user_id is None:
            lists = self.ranker.rank_histories([history], options)
        else:
            lists = self.ranker.rank_users([user_id], options)
        is_ranked = np.isfinite(lists.scores)
        by_model = bool(lists.known.all())
        return Order(lists.codes[is_ranked], lists.scores[is_ranked], by_model, lists.skipped)

    def whole_order(self, user_id: str | None, history: Sequence[Any], options: RecommendOptions) -> Order:
        """All candidates. The first k are those of the list that was asked for, diverse or not, as its rules
        shape it."""
        whole = replace(
            options, k=max(len(self.live.items), 1), diverse=0.0, rules=conditions_of(options.rules)
        )
        everything = self.order(user_id, history, whole)
        if not (options.diverse or options.parsed_rules.shapes_lists):
            return everything
        first = self.order(user_id, history, options)
        is_rest = ~np.isin(everything.codes, first.codes)
        codes = np.concatenate([first.codes, everything.codes[is_rest]])
        scores = np.concatenate([first.scores, everything.scores[is_rest]])
        return Order(codes, scores, first.by_model, first.unknown)

    def reasons(
        self, user_id: str | None, history: Sequence[Any], items: Sequence[str], options: RecommendOptions
    ) -> list[list[Because]]:
        """Why some items have their scores for a user, or, with None, after a history."""
        codes = self.live.items.codes(list(items)).astype(np.int64)
        if user_id is None:
            found = self.ranker.explain_history(history, codes, options)
        else:
            found = self.ranker.explain_user(user_id, codes, options)
        return [in_words(of_item, self.live.items) for of_item in found]

    # Items and users

    def ids_of(self, codes: Ints | Codes) -> list[str]:
        """The ids of items, as text."""
        return self.live.items.of(codes).to_pylist()

    def titles_of(self, codes: Ints | Codes) -> list[str | None]:
        """The titles of items, where they have one."""
        return [self.live.items.title_of(code) for code in codes.tolist()]

    def code_of(self, item_id: str) -> int:
        """The code of an item; PAD if it is not known."""
        return int(self.live.items.codes([item_id])[0])

    def popularity(self, codes: Ints) -> Ints:
        """How many positives some items have."""
        view = self.live.audiences
        counts = np.zeros(len(codes), np.int64)
        has_events = codes < len(view)
        counts[has_events] = (view.ends - view.starts)[codes[has_events]]
        return counts

    def describe(self, codes: Ints) -> list[ItemAnswer]:
        """What is known of items."""
        features = self.live.items.features_at(None)
        rows = zip(
            codes.tolist(),
            self.ids_of(codes),
            self.titles_of(codes),
            self.popularity(codes).tolist(),
            strict=True,
        )
        answers = []
        for code, item_id, title, count in rows:
            values = {
                name: _plain(feature.values[code].as_py())
                for name, feature in features.items()
                if code < len(feature.values)
            }
            answers.append(
                ItemAnswer(
                    item_id=item_id,
                    title=title,
                    features={name: value for name, value in values.items() if value is not None},
                    positives=count,
                    popularity=count / max(self.live.positives, 1),
                    in_training=code < self.trained[1],
                )
            )
        return answers

    def history(self, user_id: str) -> tuple[bool, Codes, Ints]:
        """Whether the user was in training, and the codes and ticks of the user's positives, oldest first."""
        code, view = int(self.live.users.codes([user_id])[0]), self.live.histories
        if code == PAD or code >= len(view):
            return False, np.zeros(0, np.int32), np.zeros(0, np.int64)
        events = slice(int(view.starts[code]), int(view.ends[code]))
        return code < self.trained[0], view.ids[events], view.times[events]

    def describe_history(self, codes: Codes, ticks: Ints) -> list[UserItem]:
        """Some positives of a user."""
        rows = zip(self.ids_of(codes), self.titles_of(codes), ticks.tolist(), strict=True)
        return [
            UserItem(item_id=item_id, title=title, timestamp=self.iso_of(tick))
            for item_id, title, tick in rows
        ]

    def iso_of(self, tick: int) -> str | None:
        """A tick as ISO text; None where times are only an order, and before the first event."""
        ticks = self.live.clock.ticks
        return in_iso(tick * 10**6 // ticks) if ticks and tick >= 0 else None


def listed_erasures(run: str, data: Path | None) -> Erasures:
    """Who was erased from a run, or from the prepared log of `pulse-zero`."""
    return read_erasures(list_beside(data.resolve())) if data else run_erasures(Path(run).resolve())


def _load_model(run: str, folder: Path | None, data: Path | None) -> Model:
    if folder is None:
        assert data is not None
        return ZeroShot().fit(split(Log.open(data), fractions=(100, 0, 0)), show_progress=False)
    if run == PulseZero.name and not folder.exists():
        raise BadInput(f"{run} has no log of its own: say --data DATA, a folder that `unskew prepare` made")
    if data is not None:
        raise BadInput(f"{run}: a run has its own log; --data is for {PulseZero.name}")
    return load(folder)


def _version(folder: Path | None, run_card: RunCard | None) -> str:
    """What distinguishes this run from others: the name of its folder, and a hash of its card."""
    if folder is None or run_card is None:
        return version("unskew")
    card = json.dumps(run_card.to_json(), sort_keys=True)
    return f"{folder.name[:80]}-{hashlib.sha256(card.encode()).hexdigest()[:8]}"


def _plain(value: Any) -> Any:
    """A value of a feature, for JSON."""
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
