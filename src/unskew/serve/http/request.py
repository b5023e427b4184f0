"""A request for recommendations, in the terms of the loaded run."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from unskew.core.errors import BadInput
from unskew.models.pulse.model import PulseZero
from unskew.recommendation.options import RecommendOptions
from unskew.serve.http.loaded_run import AHEAD, LoadedRun
from unskew.serve.http.schemas import RecommendationRequest

LATE = "is more than a day after now"


class Refused(BadInput):
    """A request cannot be answered.

    status: as in HTTP: 404 is not there, 409 does not fit this model or what is under way, 422 is wrong in
        itself, 503 can be tried again.
    """

    def __init__(self, field: str, reason: str, status: int = 409) -> None:
        super().__init__(f"{field}: {reason}")
        self.field, self.reason, self.status = field, reason, status


@contextmanager
def refusing() -> Iterator[None]:
    """Bad input of a request is the request's fault, not that of the service."""
    try:
        yield
    except Refused:
        raise
    except BadInput as error:
        if error.field is None:
            raise
        raise Refused(error.field, str(error).removeprefix(f"{error.field}: "), 422) from None


def resolve_request(
    run: LoadedRun, request: RecommendationRequest
) -> tuple[list[Any] | None, RecommendOptions]:
    """The history in ticks, None if the request has none, and the options for the ranker."""
    clock, latest = run.live.clock, time.time_ns() // 1000 + AHEAD
    if request.debias is not None and not run.supports_debias:
        raise Refused("debias", f"{run.name} has no debiasing strength")
    if request.at is not None and not run.is_dated:
        raise Refused("at", "the times of this model's log are only an order, so it has no moments")
    at = None if request.at is None else clock.tick_of(request.at)
    if at is not None and request.at is not None and request.at > latest and at > run.live.now:
        raise Refused("at", LATE)
    history: list[Any] | None = None
    if request.history is not None:
        pairs = request.history_pairs()
        times = [moment for _, moment in pairs if moment is not None]
        if times and max(times) > latest:
            raise Refused("history", f"the time of an item {LATE}")
        if run.is_dated:
            history = [item if moment is None else (item, clock.tick_of(moment)) for item, moment in pairs]
            if at is None and times:
                at = max(run.live.now, clock.tick_of(max(times)) + 1)
        else:
            if len(times) == len(pairs):
                pairs.sort(key=lambda pair: pair[1] or 0)
            history = [item for item, _ in pairs]
    names = ("k", "include_seen", "candidates", "exclude", "debias", "diverse", "cold")
    # Those of the request come first, so that messages count them as the caller does.
    rules = (*request.rules, *run.rule_sets.named(request.rule_set))
    return history, RecommendOptions(at=at, rules=rules, **{name: getattr(request, name) for name in names})


def is_recorded(request: RecommendationRequest, may_record: bool) -> bool:
    """Whether the list of a request is recorded. A recorded propensity means: among all items, at the moment
    of the record. So a list for another moment, or among items that the caller chose, is never recorded.

    may_record: whether the client has the right.
    """
    if request.user_id is None:
        field, reason, status = "user_id", "a list without a user cannot be recorded", 409
    elif request.at is not None:
        field, reason, status = "at", "a list for a moment that the caller names is not recorded", 409
    elif request.candidates is not None:
        field, reason, status = "candidates", "a list among items that the caller names is not recorded", 409
    elif not may_record:
        field, reason, status = "log", "this token may not record lists; it takes the one for recording", 403
    else:
        return request.log is not False
    if request.log:
        raise Refused(field, reason, status)
    return False


def fallback_reason(run: LoadedRun, request: RecommendationRequest, history: list[Any] | None) -> str:
    """Why the model itself does not recommend."""
    past = run.history(str(request.user_id))[1] if history is None else history
    why = "no item of this history was in training" if len(past) else "there is no history"
    return f"{why}, so {PulseZero.name} recommends"
