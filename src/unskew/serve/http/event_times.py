"""Which times of events are plausible. A click of 1970 would make its item look 56 years old, and one of
tomorrow would make everything else look a day old, for every user."""

from dataclasses import dataclass

from unskew.core.errors import BadInput
from unskew.serve.store.events import BadEvent, in_iso, parse_time

SECOND = 10**6  # microseconds
WITHOUT_DATES = parse_time("2000-01-01")  # the earliest time where the times of the log are only an order


@dataclass(frozen=True)
class TimeBounds:
    """The bounds of the times of events, in microseconds.

    earliest: by default the first moment of the run's log.
    ahead: how far a client's clock may be ahead of ours.
    """

    earliest: int | None = None
    ahead: int = 300 * SECOND

    def __post_init__(self) -> None:
        if self.ahead < 0:
            raise BadInput("latest-ahead: expected a duration", field="latest-ahead")

    def check(self, timestamp: int, now: int, first: int | None) -> None:
        """Refuse the time of an event that is not plausible.

        first: the first moment of the run's log; None where its times are only an order.
        """
        begin = WITHOUT_DATES if first is None else first
        begin = begin if self.earliest is None else self.earliest
        if timestamp < begin:
            raise BadEvent("timestamp", f"is before {in_iso(begin)}, the earliest plausible time")
        self.check_ahead(timestamp, now)

    def check_ahead(self, timestamp: int, now: int) -> None:
        """Refuse a time that is too far ahead."""
        if timestamp > now + self.ahead:
            raise BadEvent("timestamp", f"is more than {self.ahead / SECOND:g} seconds after now")
