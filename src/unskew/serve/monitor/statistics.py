"""The figures of a monitor, window by window.

Popularity of an item: how many positives it had before the window began.
Catalogue: the items that had a positive before the window ended.
A figure that cannot be known is nan.
"""

import math
from dataclasses import dataclass
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from unskew.data.log.views import Ints
from unskew.diagnostics.log.statistics import gini
from unskew.serve.monitor.queries import Calendar, Past, Stored, gather_tables
from unskew.serve.store.impressions import EventSource
from unskew.serve.store.tables import EventTypes

Floats = NDArray[np.float64]

DAY = 86_400 * 10**6  # microseconds
NEVER = np.iinfo(np.int64).max
TENTH = 10
ROWS = 100_000  # that are read together


@dataclass(frozen=True, kw_only=True)
class Window:
    """One window of time. Times are whole microseconds since 1970 in UTC; fractions are from 0 to 1, and nan
    is what nobody knows."""

    start: int
    end: int
    whole: bool  # whether it has ended, and the store goes on to its end
    # What happened.
    events: int  # of any type
    positives: int
    users: int  # with an event of any type
    new_users: int  # whose first event of all is in this window
    items: int  # with a positive
    new_items: int  # whose first positive of all is in this window
    # What was shown, and what was clicked.
    shown: int  # items that were shown; each counts once in an impression
    gini_shown: float = math.nan
    gini_clicked: float = math.nan
    coverage_shown: float = math.nan
    coverage_clicked: float = math.nan
    lift: float = math.nan  # mean popularity of what was shown, over that of what was clicked
    age_shown: float = math.nan  # days since the item's first positive, the median
    age_clicked: float = math.nan
    # What was recommended.
    recommendations: int
    click_rate: float = math.nan  # fraction of the recommended items that were clicked
    fallback: float = math.nan  # fraction of the recommendations that no model made
    random: float = math.nan  # fraction of the recommended items that were chosen at random
    # How far an unbiased look at it goes.
    logged: int  # positives with a logged propensity
    ess: float = math.nan  # effective sample size of 1 / propensity, as a fraction of these positives
    calibration: float = math.nan  # how many candidates the propensities speak of, over how many there are
    calibration_error: float = math.nan  # its standard error
    # How well the run ranks what was clicked.
    seen: bool = False  # whether the run was trained or chosen on a part of the window
    ranked: int = 0  # positives that were ranked
    ndcg: float = math.nan
    ndcg_error: float = math.nan  # its standard error


@dataclass(frozen=True)
class Found:
    """The figures of all windows, without the run's, and of the store as a whole."""

    windows: tuple[Window, ...]
    stored: Stored


def figures_of(
    store: EventSource, types: EventTypes, calendar: Calendar, newest: int, now: int, past: Past | None
) -> Found:
    """The figures of the newest windows that hold anything.

    newest: how many windows.
    now: a window that ends later is not whole, nor is one in whose last tenth or later nothing is stored.
        What is later than now by more than a day has a wrong clock, and is left out.
    past: what is known of the time before the store; without it, calibration cannot be.
    """
    with gather_tables(store, types, calendar, now + DAY, past) as (connection, stored):
        if stored.first is None or stored.last is None:
            return Found((), stored)
        last = calendar.number(stored.last)
        first = max(calendar.number(stored.first), last - newest + 1)
        found = _Figures(connection, calendar, first, last, stored, past is not None)
        windows = []
        for number in range(first, last + 1):
            start, end = calendar.start(number), calendar.start(number + 1)
            whole = end <= now and stored.last >= end - calendar.length // TENTH
            windows.append(Window(start=max(start, 0), end=end, whole=whole, **found.of(number, end)))
        if past is not None:
            query = "SELECT user_id, item_id, timestamp FROM events WHERE positive"
            past.follow(iter(connection.sql(query).to_arrow_reader(ROWS)))
    return Found(tuple(windows), stored)


class _Figures:
    """Gathers the figures in as few passes as there are topics. Windows must be asked for in their order."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        calendar: Calendar,
        first: int,
        last: int,
        stored: Stored,
        known_before: bool,
    ) -> None:
        self._connection, self._stored = connection, stored
        items = self._arrays('SELECT code, coalesce("first", $never) AS f, "before" FROM items', never=NEVER)
        order = np.argsort(items["code"])
        self._first = items["f"][order].astype(np.int64)
        self._popularity = items["before"][order].astype(np.float64)
        self._add(f'WHERE "window" < {first}')
        here = f'"window" >= {first}'
        self._counted = [self._by_window(query.format(here=here)) for query in QUERIES]
        # New is who came first in this store, and was not known before either.
        own, ever = calendar.sql("own"), calendar.sql('"first"')
        for name in ("users", "items"):
            new = f'SELECT {own} AS "window", count(*) AS new_{name} FROM {name}'
            self._counted.append(self._by_window(f"{new} WHERE {own} = {ever} GROUP BY 1"))
        self._calibrations = self._calibrated(first, last) if known_before else {}
        connection.execute(f"""
        CREATE TABLE counted AS
            SELECT "window", code, sum(shown) AS shown, sum(clicked) AS clicked FROM (
                SELECT "window", item_id, 1 AS shown, 0 AS clicked FROM showings WHERE {here}
                UNION ALL SELECT "window", item_id, 0, 1 FROM positives WHERE {here}
            ) AS every JOIN items USING (item_id) GROUP BY ALL
        """)

    def of(self, number: int, end: int) -> dict[str, Any]:
        """The figures of a window."""
        figures: dict[str, Any] = dict.fromkeys(COUNTS, 0)
        for by_window in self._counted:
            figures |= by_window.get(number, {})
        if not self._stored.fallbacks:
            figures["fallback"] = math.nan  # nobody says so in this store, whether or not it happens
        figures |= self._calibrations.get(number, {})
        return figures | self._spread(number, end)

    def _spread(self, number: int, end: int) -> dict[str, float]:
        """How what was shown and what was clicked is spread over the items."""
        counts = self._arrays(
            'SELECT code, shown, clicked FROM counted WHERE "window" = $number', number=number
        )
        existing, found = self._first < end, {}
        popularity = {}
        for name in ("shown", "clicked"):
            here = np.zeros(len(self._first))
            here[counts["code"]] = counts[name]
            total = here.sum()
            if total:
                found[f"gini_{name}"] = gini(here[existing | (here > 0)])
                if existing.any():
                    found[f"coverage_{name}"] = float((here[existing] > 0).mean())
                popularity[name] = float(here @ self._popularity / total)
        if len(popularity) == 2 and popularity["clicked"] > 0:
            found["lift"] = popularity["shown"] / popularity["clicked"]
        self._popularity[counts["code"]] += counts["clicked"]
        return found

    def _add(self, condition: str) -> None:
        """Add positives to the popularity of their items."""
        found = self._arrays(
            f"SELECT code, count(*) AS n FROM positives JOIN items USING (item_id) {condition} GROUP BY code"
        )
        self._popularity[found["code"]] += found["n"]

    def _calibrated(self, first: int, last: int) -> dict[int, dict[str, float]]:
        """The sum of 1 / propensity over a recommendation is, on average, the number of items that could have
        been in it. Compare it with the catalogue of that moment, in windows with random items."""
        born = np.sort(self._first)
        sums, squares = np.zeros((3, last - first + 1)), np.zeros((3, last - first + 1))
        reader = self._connection.sql(f"""
            SELECT "window" - {first} AS place, timestamp,
                list_sum(list_transform(items, lambda item: 1 / item.propensity)) AS implied,
                list_bool_or(list_transform(items, lambda item: item.exposed)) AS random
            FROM recommendations WHERE "window" >= {first}
        """).to_arrow_reader(ROWS)
        for batch in reader:
            place, implied = (np.asarray(batch[name], np.float64) for name in ("place", "implied"))
            at = place.astype(np.int64)
            there = np.searchsorted(born, np.asarray(batch["timestamp"], np.int64), "left").astype(np.float64)
            random = np.asarray(batch["random"].to_numpy(zero_copy_only=False), np.float64)
            for row, values in enumerate((implied, there, random)):
                np.add.at(sums[row], at, values)
            for row, values in enumerate((implied**2, implied * there, there**2)):
                np.add.at(squares[row], at, values)
        found = {}
        for window in np.flatnonzero((sums[2] > 0) & (sums[1] > 0)).tolist():
            ratio = float(sums[0, window] / sums[1, window])
            residual = squares[0, window] - 2 * ratio * squares[1, window] + ratio**2 * squares[2, window]
            error = math.sqrt(max(residual, 0.0)) / float(sums[1, window])
            found[first + window] = {"calibration": ratio, "calibration_error": error}
        return found

    def _by_window(self, query: str) -> dict[int, dict[str, Any]]:
        rows = self._connection.sql(query).to_arrow_table().to_pylist()
        return {row.pop("window"): {name: _plain(value) for name, value in row.items()} for row in rows}

    def _arrays(self, query: str, **values: Any) -> dict[str, Ints]:
        found = self._connection.execute(query, values).fetchnumpy()
        return {name: np.asarray(column) for name, column in found.items()}


def _plain(value: Any) -> Any:
    """A number of Python; nan where the database has nothing to say."""
    return math.nan if value is None else value


COUNTS = (
    *("events", "positives", "users", "new_users", "items", "new_items"),
    *("shown", "recommendations", "logged"),
)

QUERIES = (
    """SELECT "window", count(*) AS events, count(*) FILTER (positive) AS positives,
        count(DISTINCT user_id) AS users, count(DISTINCT item_id) FILTER (positive) AS items
    FROM events WHERE {here} GROUP BY "window" """,
    """SELECT "window", count(*) AS recommendations, avg(CAST(fallback AS DOUBLE)) AS fallback
    FROM recommendations WHERE {here} GROUP BY "window" """,
    """SELECT "window", count(*) AS shown,
        avg(CAST(clicked AS DOUBLE)) FILTER (recommended) AS click_rate,
        avg(CAST(exposed AS DOUBLE)) FILTER (recommended) AS random,
        median((timestamp - "first") / 86400000000.0) FILTER ("first" <= timestamp) AS age_shown
    FROM showings JOIN items USING (item_id) WHERE {here} GROUP BY "window" """,
    # Kish's effective sample size, (sum w)^2 / sum w^2, as a fraction of the rows.
    """SELECT "window", count(propensity) AS logged,
        sum(1 / propensity) ** 2 / sum(1 / propensity ** 2) / nullif(count(propensity), 0) AS ess,
        median((timestamp - "first") / 86400000000.0) AS age_clicked
    FROM positives JOIN items USING (item_id) WHERE {here} GROUP BY "window" """,
)
