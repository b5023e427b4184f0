"""The service without HTTP: a loaded run, a store, and what is asked of them. Threads may share it.

    with open_store("events.db") as store:
        service = Service("run", store)
        service.load()
        service.append([{"event_id": "e1", "user_id": "ann", "item_id": "tea", "type": "click"}])
        print(service.recommend(Asked(user_id="ann", k=5)))

An event is first committed in the store and then added to the live log. The live log takes events from the
store in the order of their commits, so a service that is started again gives the same answers.
"""

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.views import PAD
from unskew.models.pulse.model import PulseZero
from unskew.serve.http.erase_from_run import forget_in_run
from unskew.serve.http.explore import draw
from unskew.serve.http.item_index import search
from unskew.serve.http.loaded_run import AHEAD, Loaded
from unskew.serve.http.request import LATE, Asked, Refused, clean, reason_of, timed, unknown_of, wanted_of
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.serve.store.events import Recommendation, Rejected, Shown, check_id, in_iso, parse_events
from unskew.serve.store.store import Store

MOST_HISTORY = 50  # newest items of a user that are told
KEPT = 60.0  # seconds for which a monitor is not made again


class Service:
    """Recommends, and takes events.

    run: the folder of a run, or a link to one, which `reload` follows again, or `pulse-zero`.
    data: the prepared log of `pulse-zero`.
    explore: the fraction of random items in each list (`unskew.serve.http.explore`).
    patience: seconds for which a request waits for others before it is refused.
    seed: of the random items; by default nobody can foresee them.
    mapped: share the weights with other processes (`Loaded`).
    """

    def __init__(
        self,
        run: str,
        store: Store,
        *,
        data: Path | None = None,
        explore: float = 0.0,
        patience: float = 20.0,
        seed: int | None = None,
        mapped: bool = False,
    ) -> None:
        if not 0 <= explore <= 1:
            raise BadInput(f"explore {explore}: expected from 0 to 1", field="explore")
        self.store, self.explore = store, explore
        self._run, self._data, self._patience, self._mapped = run, data, patience, mapped
        self._random = np.random.default_rng(seed)
        self._lock = threading.Lock()  # of the loaded run, its live log and its ranker
        self._changing = threading.Lock()  # held while a run is loaded or a user is erased
        self._monitoring = threading.Lock()
        self._monitors: dict[tuple[Any, ...], tuple[float, dict[str, Any]]] = {}
        self._loaded: Loaded | None = None
        self._closed = False
        self._reload: dict[str, Any] = {"state": "none", "error": None}
        self._reloading: threading.Thread | None = None
        self._erasures, self._erasing = 0, False
        self._positive = store.types.positive

    @property
    def ready(self) -> bool:
        """Whether it can answer."""
        return self._loaded is not None and not self._closed

    def load(self) -> None:
        """Load the run, and bring its log up to date."""
        with self._changing:
            self._swap()

    def close(self) -> None:
        """Answer nothing more. The store is the caller's to close."""
        self._closed = True
        if self._reloading is not None:
            self._reloading.join()

    # Recommending

    def recommend(self, asked: Asked) -> dict[str, Any]:
        """The list, as a document for JSON. If it is recorded, it is in the store when this returns."""
        begun = time.perf_counter()
        fraction = self.explore if asked.explore is None else asked.explore
        if fraction > self.explore:
            raise Refused("explore", f"expected at most the service's own, {self.explore:g}")
        if asked.user_id is None and asked.history is None:
            raise Refused("user_id", "expected user_id or history", 422)
        with self._using() as loaded:
            history, wanted = wanted_of(loaded, asked)
            user = asked.user_id if history is None else None
            given = () if history is None else history
            ranked = loaded.whole_order if fraction else loaded.order
            order = ranked(user, given, wanted)
            drawn = draw(asked.k, len(order.codes), fraction, self._random)
            codes = order.codes[drawn.places]
            counts, positives = loaded.popularity(codes), max(loaded.live.positives, 1)
            items = [
                {
                    "item_id": loaded.id_of(code),
                    "title": loaded.live.items.title_of(code),
                    "score": float(order.scores[place]),
                    "rank": number,
                    "propensity": float(propensity),
                    "popularity": int(count) / positives,
                    "exposed": bool(exposed),
                }
                for number, (code, place, propensity, exposed, count) in enumerate(
                    zip(
                        codes.tolist(),
                        drawn.places.tolist(),
                        drawn.propensities,
                        drawn.random,
                        counts,
                        strict=True,
                    ),
                    1,
                )
            ]
            unknown = unknown_of(loaded, asked)
            reason = None if order.known else reason_of(loaded, asked, history)
        recommendation_id = None
        if asked.log and asked.user_id is not None and items:
            recommendation_id = self._record(loaded, asked, items, order.known)
        return {
            "recommendation_id": recommendation_id,
            "model": loaded.name,
            "version": loaded.version,
            "source": "model" if order.known else "fallback",
            "reason": reason,
            "items": items,
            "unknown_items": unknown,
            "took_ms": round((time.perf_counter() - begun) * 1000, 3),
        }

    def _record(self, loaded: Loaded, asked: Asked, items: list[dict[str, Any]], known: bool) -> str:
        assert asked.user_id is not None
        made = Recommendation(
            recommendation_id=uuid.uuid4().hex,
            user_id=asked.user_id,
            timestamp=time.time_ns() // 1000 if asked.at is None else asked.at,
            model=loaded.name if known else f"fallback:{PulseZero.name}",
            version=loaded.version,
            items=tuple(Shown(item["item_id"], item["propensity"], item["exposed"]) for item in items),
        )
        self.store.record([made])
        return made.recommendation_id

    # Events

    def append(self, documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Store events, durably, and let them count from now on. An event without a time happened now."""
        self._check_ready()
        now = time.time_ns() // 1000
        dated = [timed(document, now) for document in documents]
        parsed, rejected = parse_events(dated)
        bad = {each.index for each in rejected}
        places = [index for index in range(len(dated)) if index not in bad]
        events = []
        for index, event in zip(places, parsed, strict=True):
            if event.timestamp > now + AHEAD:
                rejected.append(Rejected(index, "timestamp", LATE))
            else:
                events.append(event)
        stored = self.store.append(events) if events else None
        if stored is not None:
            with self._using():  # which brings the live log up to date
                pass
        return {
            "accepted": stored.accepted if stored else 0,
            "duplicates": stored.duplicates if stored else 0,
            "rejected": [
                {"index": each.index, "field": clean(each.field), "reason": clean(each.reason)}
                for each in sorted(rejected, key=lambda each: each.index)
            ],
        }

    # Items and users

    def items(self, query: str, most: int = 20) -> dict[str, Any]:
        """Items whose title or id fits, best matches first and then the most popular ones."""
        with self._using() as loaded:
            columns = loaded.lookup.columns()
            view = loaded.live.audiences
            popularity = (view.ends - view.starts).copy()
        codes = search(columns, query, popularity, most)
        with self._using():  # the codes are those of the run from above, whichever is loaded by now
            return {"items": [loaded.item(code) for code in codes.tolist()]}

    def item(self, item_id: str) -> dict[str, Any]:
        """What is known of an item."""
        with self._using() as loaded:
            code = loaded.code_of(check_id("item_id", item_id))
            if code == PAD:
                raise Refused("item_id", "no such item", 404)
            return loaded.item(code)

    def user(self, user_id: str) -> dict[str, Any]:
        """What is known of a user: the newest positives, and how much the store holds."""
        stored = self.store.of_user(user_id)
        recommended = self.store.recommended_to(user_id)
        with self._using() as loaded:
            in_training, history = loaded.history(user_id)
            if not history and not stored and not recommended:
                raise Refused("user_id", "no such user", 404)
            clock, vocabulary = loaded.live.clock, loaded.live.items
            newest = [
                {
                    "item_id": loaded.id_of(code),
                    "title": vocabulary.title_of(code),
                    "timestamp": in_iso(tick * 10**6 // clock.ticks) if clock.ticks else None,
                }
                for code, tick in reversed(history[-MOST_HISTORY:])
            ]
        return {
            "user_id": user_id,
            "in_training": in_training,
            "positives": len(history),
            "newest": newest,
            "stored_events": len(stored),
            "stored_recommendations": len(recommended),
        }

    def erase(self, user_id: str) -> dict[str, Any]:
        """Erase a user from the store, from the live log, and from what the run on disk remembers."""
        check_id("user_id", user_id)
        self._check_ready()
        if not self._changing.acquire(timeout=self._patience):
            raise Refused("user_id", "a run is being loaded; try again when that is done", 503)
        try:
            # The run first: other processes read it again as soon as the store counts an erasure.
            in_run, not_covered = self._erase_in_run(user_id)
            before, self._erasing = self.store.state().erasures, True
            gone = self.store.erase(user_id)
            with self._using() as loaded:
                was_known = bool(loaded.history(user_id)[1])
                loaded.live.forget(user_id)
                if self._erasures == before and self.store.state().erasures == before + 1:
                    self._erasures += 1  # otherwise others erased a user too, and everything is read again
        finally:
            self._erasing = False
            self._changing.release()
        if in_run:
            self.reload()  # so that no copy of the run's memory from before is held
        return {
            "events": gone.events,
            "recommendations": gone.recommendations,
            "run_events": in_run,
            "was_known": was_known or bool(gone.events or gone.recommendations),
            "not_covered": not_covered,
        }

    # The model

    def about(self) -> dict[str, Any]:
        """The model, its log, and what it can do."""
        with self._using() as loaded:
            live = loaded.live
            newest = live.now - 1
            return {
                "model": loaded.name,
                "version": loaded.version,
                "loaded_at": in_iso(loaded.loaded_at),
                "users": len(live.users),
                "items": len(live.items),
                "positives": live.positives,
                "since_training": live.added,
                "newest_event": in_iso(newest * 10**6 // live.clock.ticks)
                if live.clock.ticks and newest >= 0
                else None,
                "left_out": loaded.left_out,
                "debias": {
                    "available": loaded.supports_debias,
                    "default": loaded.network.debias if loaded.supports_debias else None,
                },
                "include_seen": loaded.repeats,
                "explore": self.explore,
                "positive_types": list(self._positive),
                "store_sequence": loaded.applied,
                "debias_curve": loaded.card.debias_curve if loaded.card else None,
                "reload": dict(self._reload),
            }

    def reload(self, wait: float = 0.0) -> dict[str, Any]:
        """Load the run again in the background, and swap it in when it is ready; requests go on. The
        link that the run is named by is followed again. Returns how far it is after `wait` seconds."""
        self._check_ready()
        with self._lock:
            if self._reloading is None or not self._reloading.is_alive():
                self._reload = {"state": "loading", "error": None}
                self._reloading = threading.Thread(target=self._reload_now, name="unskew reload", daemon=True)
                self._reloading.start()
            thread = self._reloading
        thread.join(max(wait, 0.0))
        return dict(self._reload)

    def monitor(self, every: str = "1w", windows: int = 26, sample: int = 200) -> dict[str, Any]:
        """The monitor of the store with this run. It is made at most once a minute."""
        self._check_ready()
        asked = every, windows, sample
        if not self._monitoring.acquire(timeout=self._patience):
            raise Refused("monitor", "it is being made; try again in a while", 503)
        try:
            made = self._monitors.get(asked)
            if made is None or time.monotonic() - made[0] > KEPT:
                loaded = self._loaded
                assert loaded is not None
                model = loaded.model if loaded.is_dated and loaded.folder is not None else None
                settings = Monitoring(every=every, windows=windows, sample=sample)
                found = monitor(self.store, model, settings).document()
                self._monitors = {asked: (time.monotonic(), found)}
                return found
            return made[1]
        finally:
            self._monitoring.release()

    # Parts of these

    def _erase_in_run(self, user_id: str) -> tuple[int, list[str]]:
        """How many events of a user the run on disk remembered, and what erasing does not cover."""
        assert self._loaded is not None
        in_run, folder = 0, self._loaded.folder
        not_covered = [
            "what models learned from the user's events, until they are trained again",
            "exports, prepared data, backups and replicas from before",
        ]
        if folder is None:
            return 0, [*not_covered, "the prepared log that the service was started with"]
        try:
            in_run = forget_in_run(folder, user_id)
        except (UnskewError, OSError):
            not_covered.append(
                "the memory of the run, which cannot be written: its events of the user count again when the "
                "service is started again"
            )
        return in_run, [*not_covered, "the id itself in the run's table of ids, and other runs"]

    def _check_ready(self) -> None:
        if not self.ready:
            said = "the service is stopping" if self._closed else "the run is still being loaded"
            raise Refused("service", said, 503)

    @contextmanager
    def _using(self) -> Iterator[Loaded]:
        """The loaded run, alone, and up to date with every event that was acknowledged before."""
        self._check_ready()
        if not self._lock.acquire(timeout=self._patience):
            raise Refused("service", "too many requests wait; try again in a while", 503)
        try:
            assert self._loaded is not None
            if (
                not self._erasing and self.store.state().erasures != self._erasures
            ):  # another process erased a user
                self._loaded, self._erasures = self._opened()
            self._loaded.catch_up(self.store, self._positive)
            yield self._loaded
        finally:
            self._lock.release()

    def _opened(self) -> tuple[Loaded, int]:
        """The run, loaded again, and the number of erasures from before it was."""
        erasures = self.store.state().erasures
        made = Loaded(self._run, self._data, self._mapped)
        made.catch_up(self.store, self._positive)
        made.warm()
        return made, erasures

    def _swap(self) -> None:
        """Load the run and put it in the place of the one before, between two requests."""
        made, erasures = self._opened()
        with self._lock:
            made.catch_up(self.store, self._positive)
            self._loaded, self._erasures = made, erasures
        self._monitors = {}

    def _reload_now(self) -> None:
        try:
            with self._changing:
                self._swap()
            self._reload = {"state": "done", "error": None}
        except UnskewError as error:
            self._reload = {"state": "failed", "error": str(error)}
        except Exception as error:
            self._reload = {"state": "failed", "error": f"a fault of unskew: {type(error).__name__}"}
