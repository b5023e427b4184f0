"""The service without HTTP: a loaded run, a store, and the answers to requests. Threads may share it.

    with open_store("events.db") as store:
        service = Service("run", store)
        service.load()
        service.append([{"event_id": "e1", "user_id": "ann", "item_id": "tea", "type": "click"}])
        print(service.recommend(RecommendationRequest(user_id="ann", k=5)))

An event is first committed in the store and then added to the live log. The live log takes events from the
store in the order of their commits, so a service that is started again gives the same answers.
"""

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from unskew.core.config import Document
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.erasures import Erasures
from unskew.data.log.views import PAD
from unskew.models.pulse.model import PulseZero
from unskew.recommendation.cold_items import EXPLORED
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.rules import read_rule_sets
from unskew.serve.http.bias import SHOWN_WINDOWS, bias_answer
from unskew.serve.http.event_times import TimeBounds
from unskew.serve.http.explore import draw_list
from unskew.serve.http.item_index import search
from unskew.serve.http.loaded_run import LoadedRun, Order
from unskew.serve.http.middleware import encodable
from unskew.serve.http.request import (
    Refused,
    fallback_reason,
    is_recorded,
    refusing,
    resolve_request,
)
from unskew.serve.http.schemas import (
    BiasAnswer,
    ErasedAnswer,
    EventsAnswer,
    Item,
    ItemAnswer,
    ItemsAnswer,
    ModelAnswer,
    Noun,
    PutItemsAnswer,
    RecommendationAnswer,
    RecommendationRequest,
    RejectedEvent,
    Reload,
    UserAnswer,
)
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.serve.store.events import BadEvent, Event, Recommendation, Shown, check_id, in_iso
from unskew.serve.store.items import ItemRow
from unskew.serve.store.notices import CHANGED, Listening
from unskew.serve.store.store import Store, StoreState
from unskew.serve.store.tables import EventTypes
from unskew.serve.variants.assignment import CONTROL, Assignment, Variant
from unskew.training.erase import COPIES, DATA, OTHER_RUNS, WEIGHTS, erase_from_run

Parsed = TypeVar("Parsed")
RELOAD = "reload"  # announced, with what is reloaded already
LONGEST_NOUN = 40  # characters
NEWEST = 50  # positives of a user that an answer has
MONITOR_SECONDS = 60.0  # for which a monitor is kept
STORE = (
    "the store and its compacted files; events from before this moment are refused if they come again, and "
    "this service and every update with this store leave out what a run or a prepared log has of them"
)
UNWRITABLE = "the memory of the run, which cannot be written; a service with this store leaves the user out"
SERVED_LOG = (
    "the prepared log that the service was started with: with this store the user is left out of it, and "
    "`unskew erase USER --data FOLDER` removes the rows"
)
MONITOR_SAMPLE = 200  # positives of a window that are ranked


class Service:
    """Recommends, and takes events.

    Parameters
    ----------
    run
        The folder of a run, or a link to one, which `reload` follows again, or `pulse-zero`.
    store
        An open store, which the caller closes.
    data
        The prepared log of `pulse-zero`.
    explore
        The fraction of random items in each list (`unskew.serve.http.explore`).
    explore_cold
        The fraction of lists in which one item is drawn among those that fewer than five users have had.
    rules
        A file of named rule sets, which is read with the run.
    patience
        Seconds for which a request waits for others before it is refused.
    seed
        Of the random items; by default they cannot be predicted.
    mapped
        Whether the weights are shared with other processes (`LoadedRun`).
    variants
        The other runs of an A/B test. Each has a service of its own over the same store.
    times
        The bounds of the times of events.
    noun
        What an item is called on the page, such as film; where the plural takes more than an s, both with a
        slash between them.
    """

    def __init__(
        self,
        run: str,
        store: Store,
        *,
        data: Path | None = None,
        explore: float = 0.0,
        explore_cold: float = 0.0,
        rules: Path | None = None,
        patience: float = 20.0,
        seed: int | None = None,
        mapped: bool = False,
        variants: Sequence[Variant] = (),
        times: TimeBounds = TimeBounds(),  # noqa: B008 (frozen)
        noun: str = "item",
    ) -> None:
        if not 0 <= explore <= 1:
            raise BadInput(f"explore {explore}: expected from 0 to 1", field="explore")
        if not 0 <= explore_cold <= 1:
            raise BadInput(f"explore_cold {explore_cold}: expected from 0 to 1", field="explore_cold")
        self.store, self.explore, self.explore_cold = store, explore, explore_cold
        self._run, self._data, self._patience, self._mapped = run, data, patience, mapped
        self._rules = rules
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()  # of the loaded run, its live log and its ranker
        self._changing = threading.Lock()  # held while a run is loaded or a user is erased
        self._monitoring = threading.Lock()
        self._monitor: tuple[float, Document] | None = None  # the newest, and when it was made
        self._loaded: LoadedRun | None = None
        self._closed = False
        self._reload = Reload(state="none", error=None)
        self._reloading: threading.Thread | None = None
        self._reload_asked = False
        self._listening: Listening | None = None
        self._erasures, self._erasing = 0, False
        self._listed = -1, Erasures()  # the number of erasures, and the list of that time
        self._types = store.types
        self.assignment = Assignment.of(variants)
        options: dict[str, Any] = {"explore": explore, "explore_cold": explore_cold, "rules": rules}
        options |= {"patience": patience, "seed": seed, "mapped": mapped, "times": times}
        self._times, self._noun = times, parse_noun(noun)
        self._others = {variant.name: Service(variant.run, store, **options) for variant in variants}

    @property
    def ready(self) -> bool:
        """Whether it can answer."""
        return self._loaded is not None and not self._closed

    def load(self) -> None:
        """Load the run, and bring its log up to date."""
        with self._changing:
            # First, so that nothing that happens while the run is loaded is missed.
            self._listening = self.store.listen(self._heard)
            try:
                self._swap()
            except BaseException:
                if self._listening is not None:
                    self._listening.close()
                raise

    def close(self) -> None:
        """Answer nothing more. The store is the caller's to close."""
        self._closed = True
        if self._listening is not None:
            self._listening.close()
        if (reloading := self._reloading) is not None:
            reloading.join()
        for other in self._others.values():
            other.close()

    # Recommending

    def recommend(self, request: RecommendationRequest, may_record: bool = True) -> RecommendationAnswer:
        """Recommend items to a user, or after a history.

        Parameters
        ----------
        request
            For whom, and the options, as in `POST /v1/recommendations`.
        may_record
            Whether the client has the right to have the list recorded.

        Returns
        -------
        RecommendationAnswer
            The list, as a document for JSON. If it is recorded, it is in the store when this returns.
        """
        if not self._others:
            return self._recommend(request, may_record)
        self._check_ready()
        name = CONTROL if request.user_id is None else self.assignment.variant_of(request.user_id)
        return self._others.get(name, self)._recommend(request, may_record, name)

    def _recommend(
        self, request: RecommendationRequest, may_record: bool, variant: str | None = None
    ) -> RecommendationAnswer:
        """A list of this service's own run.

        variant: the name of this run in an A/B test.
        """
        begin = time.perf_counter()
        is_kept = is_recorded(request, may_record)
        fraction = self.explore if request.explore is None else request.explore
        if fraction > self.explore:
            raise Refused("explore", f"expected at most the service's own, {self.explore:g}")
        with self._using() as run, refusing():
            history, options = resolve_request(run, request)
            share = self.explore_cold if request.explore is None or request.explore else 0.0
            rank = run.whole_order if fraction or share else run.order
            order = rank(request.user_id if history is None else None, history or (), options)
            items = self._list_items(run, order, options, fraction, share)
            if request.explain:
                items = _with_reasons(run, request.user_id, history, items, options)
            reason = None if order.by_model else fallback_reason(run, request, history)
        recommendation_id = None
        if is_kept and request.user_id is not None and items:
            recommendation_id = uuid.uuid4().hex
            recorded = Recommendation(
                recommendation_id=recommendation_id,
                user_id=request.user_id,
                timestamp=time.time_ns() // 1000,
                model=run.name if order.by_model else f"fallback:{PulseZero.name}",
                version=run.version,
                items=tuple(Shown(item["item_id"], item["propensity"], item["exposed"]) for item in items),
                variant=variant,
                took_ms=_milliseconds_since(begin),
            )
            self.store.record([recorded])
        return RecommendationAnswer(
            recommendation_id=recommendation_id,
            model=run.name,
            version=run.version,
            variant=variant,
            source="model" if order.by_model else "fallback",
            reason=reason,
            items=items,
            unknown_items=list(dict.fromkeys(order.unknown)),
            took_ms=_milliseconds_since(begin),
        )

    def _list_items(
        self, run: LoadedRun, order: Order, options: RecommendOptions, fraction: float, share: float
    ) -> list[Item]:
        """The items of a list, some of which are random. Codes are translated together."""
        rules = run.ranker.item_rules(options)
        cold = run.popularity(order.codes) < EXPLORED if share else None
        drawn = draw_list(order.codes, options.k, fraction, rules, self._random, cold, share)
        codes = order.codes[drawn.ranks]
        rows = zip(
            run.ids_of(codes),
            run.titles_of(codes),
            order.scores[drawn.ranks].tolist(),
            range(1, len(codes) + 1),
            drawn.propensities.tolist(),
            (run.popularity(codes) / max(run.live.positives, 1)).tolist(),
            drawn.random.tolist(),
            strict=True,
        )
        return [
            Item(
                item_id=item_id,
                title=title,
                score=score,
                rank=rank,
                propensity=propensity,
                popularity=popularity,
                exposed=exposed,
                because=None,
            )
            for item_id, title, score, rank, propensity, popularity, exposed in rows
        ]

    # Events

    def append(self, documents: Sequence[Mapping[str, Any]]) -> EventsAnswer:
        """Store events, durably, and let them count from now on.

        Parameters
        ----------
        documents
            The events, as `Event.of` reads them. One without a timestamp happened now.

        Returns
        -------
        EventsAnswer
            How many are new and how many are duplicates, and what is wrong with the others.
        """
        self._check_ready()
        now = time.time_ns() // 1000

        def parsed(document: Mapping[str, Any]) -> Event:
            if document.get("timestamp") is None:
                document = {**document, "timestamp": in_iso(now)}
            event = Event.of(document)
            self._times.check(event.timestamp, now, self._first)
            if event.timestamp <= self._erased_until(event.user_id):
                raise BadEvent("timestamp", "is before the erasure of this user")
            _check_type(event.type, self._types)
            return event

        events, rejected = _parse_each(documents, parsed)
        accepted = duplicates = 0
        if events:
            accepted, duplicates, _ = self.store.append(events)
            with self._using():  # which brings the live log up to date
                pass
        return EventsAnswer(accepted=accepted, duplicates=duplicates, rejected=rejected)

    def put_items(self, documents: Sequence[Mapping[str, Any]]) -> PutItemsAnswer:
        """Store what is known of items, durably, and let it count from now on.

        Parameters
        ----------
        documents
            The rows, as `ItemRow.of` reads them. One without a timestamp is known from now on.

        Returns
        -------
        PutItemsAnswer
            How many rows say something new, and what is wrong with the others.
        """
        self._check_ready()
        now = time.time_ns() // 1000
        named = set[str]()
        with self._using() as run:

            def parsed(document: Mapping[str, Any]) -> ItemRow:
                row = ItemRow.of(document, now)
                self._times.check_ahead(row.timestamp, now)
                run.check_fits(row, named)
                return row

            rows, rejected = _parse_each(documents, parsed)
        accepted = unchanged = 0
        if rows:
            accepted, unchanged, _ = self.store.put_items(rows)
            with self._using():  # which brings the live log up to date
                pass
        return PutItemsAnswer(accepted=accepted, unchanged=unchanged, rejected=rejected)

    # Items and users

    def items(self, query: str, most: int = 20) -> ItemsAnswer:
        """Items whose title or id fits, best matches first and then the most popular ones."""
        with self._using() as run:
            columns = run.index.columns()
            view = run.live.audiences
            popularity = (view.ends - view.starts).copy()
        codes = search(columns, query, popularity, most)
        with self._using():  # the codes are those of the run from above, whichever is loaded by now
            return ItemsAnswer(items=run.describe(codes))

    def item(self, item_id: str) -> ItemAnswer:
        """What is known of an item."""
        with self._using() as run:
            code = run.code_of(check_id("item_id", item_id))
            if code == PAD:
                raise Refused("item_id", "no such item", 404)
            return run.describe(np.array([code]))[0]

    def user(self, user_id: str) -> UserAnswer:
        """What is known of a user: the newest positives, and how much the store holds."""
        stored, recommended = self.store.of_user(user_id), self.store.recommended_to(user_id)
        with self._using() as run:
            in_training, codes, ticks = run.history(user_id)
            if not (len(codes) or stored or recommended):
                raise Refused("user_id", "no such user", 404)
            return UserAnswer(
                user_id=user_id,
                in_training=in_training,
                positives=len(codes),
                newest=run.describe_history(codes[::-1][:NEWEST], ticks[::-1][:NEWEST]),
                stored_events=len(stored),
                stored_recommendations=len(recommended),
            )

    def erase(self, user_id: str) -> ErasedAnswer:
        """Erase a user from the store, from the live log, and from what the run on disk remembers. The list
        of erased users, beside the store and in the run, keeps what is read later from bringing the user
        back."""
        check_id("user_id", user_id)
        self._check_ready()
        if not self._changing.acquire(timeout=self._patience):
            raise Refused("user_id", "a run is being loaded; try again when that is done", 503)
        try:
            before, self._erasing = self.store.state().erasures, True
            erased = self.store.erase(user_id)
            in_run, covered, not_covered = self._erase_from_run(user_id)
            in_run += sum(other._erase_from_run(user_id)[0] for other in self._others.values())
            with self._using() as run:
                was_known = len(run.history(user_id)[1]) > 0
                run.live.forget(user_id)
                if self._erasures == before and self.store.state().erasures == before + 1:
                    self._erasures += 1  # otherwise another process erased a user too, and all is read again
        finally:
            self._erasing = False
            self._changing.release()
        if in_run:
            self.reload()  # so that no copy of the run's memory from before is held
        return ErasedAnswer(
            events=erased.events,
            recommendations=erased.recommendations,
            run_events=in_run,
            was_known=was_known or bool(erased.events or erased.recommendations),
            covered=[STORE, *covered],
            not_covered=not_covered,
        )

    def _erase_from_run(self, user_id: str) -> tuple[int, list[str], list[str]]:
        """How many events of a user the run on disk remembered, what is covered, and what is not."""
        assert self._loaded is not None
        folder = self._loaded.folder
        if folder is None:
            return 0, [], [SERVED_LOG, COPIES]
        try:
            in_run = erase_from_run(folder, self.store.erasures().of_users([user_id]))
        except (UnskewError, OSError):
            return 0, [], [UNWRITABLE, WEIGHTS, DATA, OTHER_RUNS, COPIES]
        return (
            in_run,
            [f"the memory of the run {folder.name}, and the id in its table of users"],
            [*(WEIGHTS, DATA, OTHER_RUNS, COPIES)],
        )

    @property
    def _first(self) -> int | None:
        """The first moment of the run's log; None where its times are only an order."""
        assert self._loaded is not None
        return self._loaded.first

    def _erased_until(self, user_id: str) -> int:
        """The moment up to which a user was erased; -1 if the user was not."""
        number = self.store.state().erasures
        if self._listed[0] != number:
            self._listed = number, self.store.erasures()
        return self._listed[1].among([user_id]).get(user_id, -1)

    # The model

    def about(self, has_report: bool = False) -> ModelAnswer:
        """The model, its log, and what it can do."""
        with self._using() as run:
            live = run.live
            return ModelAnswer(
                model=run.name,
                version=run.version,
                loaded_at=in_iso(run.loaded_at),
                users=len(live.users),
                items=len(live.items),
                positives=live.positives,
                since_training=live.added,
                newest_event=run.iso_of(live.now - 1),
                left_out=run.left_out,
                debias={
                    "available": run.supports_debias,
                    "default": run.network.debias if run.supports_debias else None,
                },
                include_seen=run.repeats,
                explains=run.ranker.explains,
                explore=self.explore,
                explore_cold=self.explore_cold,
                rule_sets=list(run.rule_sets.sets),
                variants=self.assignment.expected if self._others else {},
                positive_types=list(self._types.positive),
                noun=self._noun,
                store_sequence=run.applied,
                report=has_report,
                debias_curve=run.card.debias_curve if run.card else None,
                reload=self._reload,
            )

    def bias(self) -> BiasAnswer:
        """How skewed popularity is in the log, how skewed what was shown lately is, and what the debiasing
        strength of the model does."""
        about, windows = self.about(), self.monitor()["windows"][::-1][:SHOWN_WINDOWS]
        with self._using() as run:
            view = run.live.audiences
            counts = np.sort(view.ends - view.starts)[::-1]
        return bias_answer(counts, windows, about)

    def reload(self, wait: float = 0.0) -> Reload:
        """Load the run again in the background, and swap it in when it is ready; requests go on meanwhile.
        Over a store on a server, all services of the store do.

        Parameters
        ----------
        wait
            Seconds to wait for the end. The link that the run is named by is followed again.

        Returns
        -------
        Reload
            The state after that time.
        """
        self._check_ready()
        self.store.announce(f"{RELOAD} {self.machine}")
        return self.reload_here(wait)

    def reload_here(self, wait: float = 0.0) -> Reload:
        """The same in this process alone."""
        with self._lock:
            self._reload_asked = True  # also while one is under way, which may have begun with the run before
            self._reload = Reload(state="loading", error=None)
            if self._reloading is None or not self._reloading.is_alive():
                self._reloading = threading.Thread(target=self._reload_now, name="unskew reload", daemon=True)
                self._reloading.start()
            thread = self._reloading
        thread.join(max(wait, 0.0))
        return self._reload

    def monitor(self) -> Document:
        """The monitor of the store with this run. It is made at most once a minute."""
        self._check_ready()
        if not self._monitoring.acquire(timeout=self._patience):
            raise Refused("monitor", "it is being made; try again in a while", 503)
        try:
            kept = self._monitor
            if kept is None or time.monotonic() - kept[0] > MONITOR_SECONDS:
                run = self._loaded
                assert run is not None
                model = run.model if run.is_dated and run.folder is not None else None
                document = monitor(self.store, model, Monitoring(sample=MONITOR_SAMPLE)).document()
                kept = self._monitor = time.monotonic(), document
            return kept[1]
        finally:
            self._monitoring.release()

    @property
    def machine(self) -> str:
        """Names the processes that a reload here reaches without the store."""
        return f"{socket.gethostname()} {os.getpid()}"

    def _heard(self, text: str) -> None:
        """Another process wrote into the store, erased a user, or was asked to load the run again."""
        if text == CHANGED:
            for service in (self, *self._others.values()):
                with suppress(Refused), service._using():  # which brings the live log up to date
                    pass
        elif text.startswith(f"{RELOAD} ") and text != f"{RELOAD} {self.machine}":
            self.reload_here()

    # The loaded run

    def _check_ready(self) -> None:
        if not self.ready:
            reason = "the service is stopping" if self._closed else "the run is still being loaded"
            raise Refused("service", reason, 503)

    @contextmanager
    def _using(self) -> Iterator[LoadedRun]:
        """The loaded run, alone, and up to date with every event that was acknowledged before."""
        self._check_ready()
        state = self.store.state()  # before the lock, so that no request waits for another one's look
        if not self._lock.acquire(timeout=self._patience):
            raise Refused("service", "too many requests wait; try again in a while", 503)
        try:
            assert self._loaded is not None
            if state.erasures > self._erasures and not self._erasing:  # another process erased a user
                self._loaded, self._erasures = self._open_run()
            self._catch_up(self._loaded, state)
            yield self._loaded
        finally:
            self._lock.release()

    def _catch_up(self, run: LoadedRun, state: StoreState) -> None:
        """Bring a run up to date with events and items."""
        run.catch_up(self.store, state.newest, self._types)
        run.catch_up_items(self.store, state.items)

    def _open_run(self) -> tuple[LoadedRun, int]:
        """The run, loaded again, and the number of erasures from before that."""
        erasures = self.store.state().erasures
        run = LoadedRun(self._run, self._data, self._mapped, self.store.erasures(), self._times.ahead)
        self._catch_up(run, self.store.state())
        if self._rules is not None:
            run.use_rule_sets(read_rule_sets(self._rules))
        run.warm()
        return run, erasures

    def _swap(self) -> None:
        """Load the run and put it in the place of the one before, between two requests."""
        for other in self._others.values():
            other._swap()
        run, erasures = self._open_run()
        with self._lock:
            self._catch_up(run, self.store.state())
            self._loaded, self._erasures = run, erasures
        self._monitor = None

    def _reload_now(self) -> None:
        state = Reload(state="done", error=None)
        while self._take_reload(state):
            try:
                with self._changing:
                    self._swap()
                state = Reload(state="done", error=None)
            except Exception as error:
                fault = f"a fault of unskew: {type(error).__name__}"
                text = str(error) if isinstance(error, UnskewError) else fault
                state = Reload(state="failed", error=text)

    def _take_reload(self, state: Reload) -> bool:
        """Whether a reload was asked for since the one before began. If not, reloading ends with a state."""
        with self._lock:
            asked, self._reload_asked = self._reload_asked, False
            if not asked:
                self._reload, self._reloading = state, None
            return asked


def _parse_each(
    documents: Sequence[Mapping[str, Any]], parse: Callable[[Mapping[str, Any]], Parsed]
) -> tuple[list[Parsed], list[RejectedEvent]]:
    """What documents say, and what is wrong with the others."""
    kept, rejected = list[Parsed](), list[RejectedEvent]()
    for index, document in enumerate(documents):
        try:
            kept.append(parse(document))
        except BadEvent as error:
            field, reason = encodable(error.field), encodable(error.reason)
            rejected.append(RejectedEvent(index=index, field=field, reason=reason))
    return kept, rejected


def _milliseconds_since(begin: float) -> float:
    """The time since a value of `time.perf_counter`."""
    return round((time.perf_counter() - begin) * 1000, 3)


def _with_reasons(
    run: LoadedRun,
    user_id: str | None,
    history: Sequence[Any] | None,
    items: list[Item],
    options: RecommendOptions,
) -> list[Item]:
    """The items of a list with the parts of their scores."""
    try:
        listed = [item["item_id"] for item in items]
        reasons = run.reasons(user_id if history is None else None, history or (), listed, options)
    except BadInput as error:
        raise Refused("explain", str(error).removeprefix("explain: "), 409) from None
    return [Item(**{**item, "because": why}) for item, why in zip(items, reasons, strict=True)]


def parse_noun(text: str) -> Noun:
    """The words of `--noun`: `film`, or `news story/news stories`."""
    one, slash, many = (part.strip() for part in text.partition("/"))
    words = one, many if slash else f"{one}s"
    if not all(0 < len(word) <= LONGEST_NOUN and word.isprintable() for word in words):
        raise BadInput(
            f"noun {text!r}: expected a word such as film, or two such as story/stories, of at most "
            f"{LONGEST_NOUN} characters",
            field="noun",
        )
    return Noun(one=words[0], many=words[1])


def _check_type(kind: str, types: EventTypes) -> None:
    """Refuse an event of a type of which nobody said what it means."""
    if not types.declares(kind):
        declared = ", ".join(name for names in types for name in names)
        raise BadEvent("type", f"{kind!r} is not declared; the types of this store are {declared}"[:200])
