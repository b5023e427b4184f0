"""The figures of a monitor, window by window.

The popularity of an item is its number of positives before the window began. The catalogue is the items with
a positive before the window ended. A figure that is not known is nan.
"""

import math
from typing import Any

import duckdb
import numpy as np

from unskew.data.log.views import Ints
from unskew.diagnostics.log.statistics import gini
from unskew.report.templates import render
from unskew.serve.monitor.queries import Calendar, Past, Stored, gather_tables
from unskew.serve.monitor.window import Window
from unskew.serve.store.store import Store

DAY = 86_400 * 10**6  # microseconds
NEVER = np.iinfo(np.int64).max
TENTH = 10
ROWS = 100_000  # that are read together
FOLLOWED = 500_000  # positives that a run takes together: each time, its views are sorted again


def compute_figures(
    store: Store, calendar: Calendar, newest: int, now: int, past: Past | None
) -> tuple[tuple[Window, ...], Stored]:
    """The newest windows that hold anything, without the figures of a run, and what the store holds.

    newest: how many windows.
    now: a window that ends later is not whole, nor is one in whose last tenth or later nothing is stored.
        A timestamp more than a day after now comes from a wrong clock, and is left out.
    past: what is known of the time before the store; without it there is no calibration.
    """
    with gather_tables(store, store.types, calendar, now + DAY, past) as (connection, stored):
        if stored.first is None or stored.last is None:
            return (), stored
        last = calendar.number(stored.last)
        first = max(calendar.number(stored.first), last - newest + 1)
        figures = _Figures(connection, calendar, range(first, last + 1), stored, past is not None)
        windows = []
        for number in range(first, last + 1):
            start, end = calendar.start(number), calendar.start(number + 1)
            whole = end <= now and stored.last >= end - calendar.length // TENTH
            windows.append(Window(start=max(start, 0), end=end, whole=whole, **figures.of(number, end)))
        if past is not None:
            query = "SELECT user_id, item_id, timestamp FROM events WHERE positive"
            past.follow(iter(connection.sql(query).to_arrow_reader(FOLLOWED)))
    return tuple(windows), stored


class _Figures:
    """Computes the figures in as few passes as there are topics. Windows must be asked for in their order."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        calendar: Calendar,
        windows: range,
        stored: Stored,
        has_past: bool,
    ) -> None:
        self._connection, self._stored = connection, stored
        items = self._arrays(
            'SELECT coalesce("first", $never) AS "first", "before" FROM items ORDER BY code', never=NEVER
        )
        self._first = items["first"].astype(np.int64)
        self._popularity = items["before"].astype(np.float64)
        earlier = self._arrays(
            f"""SELECT code, count(*) AS number FROM positives JOIN items USING (item_id)
            WHERE "window" < {windows.start} GROUP BY code"""
        )
        self._popularity[earlier["code"]] += earlier["number"]
        self._by_window: dict[int, dict[str, Any]] = {number: {} for number in windows}
        sql = render(
            "serve/monitor/templates/figures.sql",
            first=windows.start,
            own=calendar.sql("own"),
            first_ever=calendar.sql('"first"'),
        )
        connection.execute(sql)
        for row in connection.sql("FROM figures").to_arrow_table().to_pylist():
            known = {name: value for name, value in row.items() if value is not None}
            self._by_window[known.pop("window")] = known
        if has_past:
            self._calibrate(windows)

    def of(self, number: int, end: int) -> dict[str, Any]:
        """The figures of a window."""
        figures = self._by_window[number]
        if not self._stored.fallbacks:
            figures["fallback"] = math.nan  # this store does not record whether it happens
        return figures | self._spread(number, end)

    def _spread(self, number: int, end: int) -> dict[str, float]:
        """How what was shown and what was clicked is spread over the items."""
        counts = self._arrays(
            'SELECT code, shown, clicked FROM counted WHERE "window" = $number', number=number
        )
        existing = self._first < end
        figures, popularity = {}, {}
        for name in ("shown", "clicked"):
            of_item = np.zeros(len(self._first))
            of_item[counts["code"]] = counts[name]
            if total := of_item.sum():
                figures[f"gini_{name}"] = gini(of_item[existing | (of_item > 0)])
                if existing.any():
                    figures[f"coverage_{name}"] = float((of_item[existing] > 0).mean())
                popularity[name] = float(of_item @ self._popularity / total)
        if len(popularity) == 2 and popularity["clicked"] > 0:
            figures["lift"] = popularity["shown"] / popularity["clicked"]
        self._popularity[counts["code"]] += counts["clicked"]
        return figures

    def _calibrate(self, windows: range) -> None:
        """The sum of 1 / propensity over a recommendation is, on average, the number of items that could have
        been in it. Compare it with the catalogue of that moment, in windows with random items."""
        firsts = np.sort(self._first)
        totals = np.zeros((6, len(windows)))
        reader = self._connection.sql(f"""
            SELECT "window" - {windows.start} AS number, timestamp,
                list_sum(list_transform(items, lambda item: 1 / item.propensity)) AS implied,
                list_bool_or(list_transform(items, lambda item: item.exposed)) AS random
            FROM recommendations WHERE "window" >= {windows.start}
        """).to_arrow_reader(ROWS)
        for batch in reader:
            number, implied = np.asarray(batch["number"], np.int64), np.asarray(batch["implied"], np.float64)
            time = np.asarray(batch["timestamp"], np.int64)
            existing = np.searchsorted(firsts, time, "left").astype(np.float64)
            random = np.asarray(batch["random"].to_numpy(zero_copy_only=False), np.float64)
            terms = (implied, existing, random, implied**2, implied * existing, existing**2)
            totals += [np.bincount(number, term, len(windows)) for term in terms]
        for window, total in zip(windows, totals.T.tolist(), strict=True):
            implied_sum, existing_sum, random_sum, implied_squares, products, existing_squares = total
            if random_sum and existing_sum:
                ratio = implied_sum / existing_sum
                residual = implied_squares - 2 * ratio * products + ratio**2 * existing_squares
                error = math.sqrt(max(residual, 0.0)) / existing_sum
                self._by_window[window] |= {"calibration": ratio, "calibration_error": error}

    def _arrays(self, query: str, **values: Any) -> dict[str, Ints]:
        return self._connection.execute(query, values).fetchnumpy()
