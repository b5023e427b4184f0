"""What the times of a log mean: how many of its ticks make a second. Dates and durations for people."""

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from unskew.core.errors import BadInput
from unskew.data.log.views import Ints

DAY = 86400  # seconds

# Times from 1973 to 5138, counted since 1970, lie between these powers of ten, so the size of a number
# reveals its unit.
UNITS = {
    "seconds": (1e8, 1e11),
    "milliseconds": (1e11, 1e14),
    "microseconds": (1e14, 1e17),
    "nanoseconds": (1e17, 9.3e18),
}
TICKS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
DURATIONS = {"s": 1, "min": 60, "h": 3600, "d": DAY, "w": 7 * DAY}
RESOLUTIONS = (("day", DAY), ("hour", 3600), ("minute", 60), ("second", 1))


@dataclass(frozen=True)
class Clock:
    """The clock of a log. `ticks` is how many of its ticks make a second; it is None for a log whose times
    only give an order."""

    ticks: int | None

    @classmethod
    def of(cls, first: int, last: int, unit: str = "as given") -> "Clock":
        """The clock of a log with times from `first` to `last`. A unit that is not given is guessed from the
        size of the times."""
        fits = (TICKS[name] for name, (low, high) in UNITS.items() if low <= first and last < high)
        return cls(TICKS[unit] if unit in TICKS else next(fits, None))

    def date(self, time: int, to_the_second: bool = True) -> str | int:
        """A time as an ISO date; if times only give an order, the number itself."""
        if self.ticks is None:
            return time
        return str(np.datetime64(time // self.ticks, "s")).replace("T", " ")[: None if to_the_second else -9]

    def tick_of(self, microseconds: int) -> int:
        """The time in ticks of a moment that is given in microseconds since 1970."""
        if self.ticks is None:
            raise BadInput("the times of this log are only an order, so a date is no time in it")
        return microseconds * self.ticks // 10**6

    def moment(self, at: int | str | datetime, setting: str = "at") -> int:
        """A moment in ticks, of a number of ticks, a date, or an ISO date such as 2026-01-31T12:00; without
        an offset it is in UTC.

        setting: the name of the setting that holds it, for errors.
        """
        at = at.isoformat() if isinstance(at, datetime) else at
        if not isinstance(at, str):
            return int(at)
        try:
            when = datetime.fromisoformat(at)
        except ValueError:
            if re.fullmatch(r"-?\d+", at.strip()):
                return int(at)
            raise BadInput(
                f"{setting} {at!r}: expected an ISO date, such as 2026-01-31, or ticks", field=setting
            ) from None
        when = when.replace(tzinfo=UTC) if when.tzinfo is None else when
        return self.tick_of((when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))

    def days(self, span: float) -> float:
        """A number of ticks in days; nan if times only give an order."""
        return math.nan if self.ticks is None else span / self.ticks / DAY

    def in_words(self, span: float) -> str:
        """A number of ticks for people to read: in days, if the length of a tick is known."""
        if not span:
            return "none"
        number, unit = (span, "tick") if self.ticks is None else (self.days(span), "day")
        return f"{number:g} {unit}" if number == 1 else f"{number:g} {unit}s"

    def ticks_in(self, duration: str, setting: str = "window") -> int:
        """The number of ticks in a duration such as 7d, 12h or 1w. If times only give an order, the duration
        must be a number of ticks.

        setting: the name of the setting that holds it, for errors.
        """
        ticks, wrong = self._ticks_in(duration)
        if wrong:
            raise BadInput(f"{setting} {duration!r}: {wrong}", field=setting)
        return ticks

    def _ticks_in(self, duration: str) -> tuple[int, str]:
        """The number of ticks in a duration, or what is wrong with it."""
        parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", duration.lower())
        unit = parts.group(2) if parts else ""
        known = ", ".join(DURATIONS)
        if parts is None or (unit and unit not in DURATIONS):
            return 0, f"expected a number and a unit ({known}), such as 7d"
        if unit and self.ticks is None:
            return 0, "the times of this log are only an order; expected a number of ticks"
        if not unit and self.ticks is not None:
            return 0, f"expected a unit ({known}), such as {duration.strip()}d"
        length = int(float(parts.group(1)) * (DURATIONS[unit] * (self.ticks or 1) if unit else 1))
        return length, "" if length else "expected at least one tick of the log's clock"

    def resolution(self, distinct: Ints) -> str:
        """The largest unit of which all distances between these sorted times are multiples, such as `day`. So
        a day may begin at any hour."""
        if self.ticks is None:
            return "order only"
        step = int(np.gcd.reduce(np.diff(distinct))) if len(distinct) > 1 else 0
        if step == 0:
            return "one single time"
        names = {"millisecond": 10**3, "microsecond": 10**6, "nanosecond": 10**9}
        finer = [(name, self.ticks // parts) for name, parts in names.items() if self.ticks >= parts]
        units = [(name, seconds * self.ticks) for name, seconds in RESOLUTIONS] + finer
        return next(name for name, unit in units if step % unit == 0)
