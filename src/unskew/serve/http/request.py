"""What a recommendation is asked for, and what that means for a loaded run."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from unskew.core.errors import BadInput
from unskew.data.log.views import PAD
from unskew.models.pulse.model import PulseZero
from unskew.recommendation.options import RecommendOptions
from unskew.serve.http.loaded_run import AHEAD, Loaded
from unskew.serve.store.events import in_iso

LATE = "is more than a day after now"
ORDER_ONLY = "the times of this model's log are only an order, so no moment can be asked for"


class Refused(BadInput):
    """A request cannot be answered.

    status: as in HTTP: 404 is not there, 409 does not fit this model or what is under way, 422 is wrong in
        itself, 503 can be tried again.
    """

    def __init__(self, field: str, reason: str, status: int = 409) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason, self.status = field, reason, status


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a recommendation is asked for. Times are microseconds since 1970.

    user_id: whose history counts, and under whom the list is recorded.
    history: pairs of an item and maybe a time, oldest first; it counts instead of what is known of the user.
    at: the moment of the request; by default just after the newest event that is known, or after the newest
        item of the history, if that is later.
    log: whether the list is recorded in the store. It needs a user.
    explore: the fraction of random items; by default, and at most, the service's own.
    """

    user_id: str | None = None
    history: Sequence[tuple[str, int | None]] | None = None
    k: int = 10
    debias: float | None = None
    diverse: float = 0.0
    candidates: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    include_seen: bool | None = None
    at: int | None = None
    log: bool = True
    explore: float | None = None


def wanted_of(loaded: Loaded, asked: Asked) -> tuple[list[Any] | None, RecommendOptions]:
    """The history in ticks, None if there is none, and what is wanted of the ranker."""
    clock, now = loaded.live.clock, time.time_ns() // 1000
    if asked.debias is not None and not loaded.supports_debias:
        raise Refused("debias", f"{loaded.name} has no debiasing strength")
    if asked.at is not None and not loaded.is_dated:
        raise Refused("at", ORDER_ONLY)
    at = None if asked.at is None else clock.tick_of(asked.at)
    if at is not None and asked.at is not None and asked.at > now + AHEAD and at > loaded.live.now:
        raise Refused("at", LATE)
    history: list[Any] | None = None
    if asked.history is not None:
        times = [moment for _, moment in asked.history if moment is not None]
        if times and max(times) > now + AHEAD:
            raise Refused("history", f"the time of an item {LATE}")
        if loaded.is_dated:
            history = [
                item if moment is None else (item, clock.tick_of(moment)) for item, moment in asked.history
            ]
            if at is None and times:
                at = max(loaded.live.now, clock.tick_of(max(times)) + 1)
        else:
            whole = (
                sorted(asked.history, key=lambda pair: pair[1] or 0)
                if len(times) == len(asked.history)
                else asked.history
            )
            history = [item for item, _ in whole]
    options = RecommendOptions(
        k=asked.k,
        include_seen=asked.include_seen,
        candidates=asked.candidates,
        exclude=asked.exclude,
        debias=asked.debias,
        at=at,
        diverse=asked.diverse,
    )
    return history, options


def unknown_of(loaded: Loaded, asked: Asked) -> list[str]:
    """Items of the request that are not known, each once."""
    named = [item for item, _ in asked.history or ()]
    named += [*(asked.candidates or ()), *asked.exclude]
    if not named:
        return []
    codes = loaded.live.items.codes(named)
    return list(dict.fromkeys(item for item, code in zip(named, codes, strict=True) if code == PAD))


def reason_of(loaded: Loaded, asked: Asked, history: list[Any] | None) -> str:
    """Why the model itself does not recommend."""
    assert history is not None or asked.user_id is not None
    some = history if history is not None else loaded.history(str(asked.user_id))[1]
    why = "no item of this history was in training" if some else "there is no history"
    return f"{why}, so {PulseZero.name} recommends"


def timed(document: Mapping[str, Any], now: int) -> Mapping[str, Any]:
    """A document with a time."""
    given = document.get("timestamp")
    if given is None:
        return {**document, "timestamp": in_iso(now)}
    return {**document, "timestamp": math.inf} if is_huge(given) else document


def is_huge(value: Any) -> bool:
    """Whether a number is so large that reckoning with it as a time would fail."""
    return isinstance(value, int | float) and abs(value) > 10**18


def clean(text: str) -> str:
    """Without halves of surrogate pairs, which are no JSON."""
    return text.encode("utf-8", "replace").decode()
