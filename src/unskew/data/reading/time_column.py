"""The time column: SQL that turns numbers, dates and timestamps into whole numbers of one unit."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from unskew.core.errors import BadInput
from unskew.data.reading.columns import Column
from unskew.data.reading.engines import Engine, literal

TIMES = "'^ *[0-9]+([.][0-9]*)?([eE][+]?[0-9]+)? *$'"
INTEGERS = "'^ *[0-9]{1,19} *$'"
DATES = (
    "^ *[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?( "
    "?(Z|[+-][0-9]{2}(:?[0-9]{2})?))?)? *$"
)
OFFSETS = " *(?:Z|([+-])([0-9]{2}):?([0-9]{2})?)$"  # the offset from UTC, at the end of what follows the day


@dataclass(frozen=True)
class TimeColumn:
    """How the time column is read."""

    ticks: Callable[[int], str]  # scale -> SQL of the time, multiplied by the scale and rounded
    good: str  # SQL of the condition that every time must meet
    expected: str  # the same condition in words
    fractional: str = "FALSE"  # SQL of the condition that a time is not a whole number
    unit: str = "as given"


def time_column(engine: Engine, relation: str, column: Column) -> TimeColumn:
    """Find out how to read the times. In a text file, the first one decides between numbers and dates."""
    x = column.sql
    if column.kind == "int":
        return TimeColumn(
            lambda scale: f"CAST({x} AS BIGINT) * {scale}",
            f"{x} >= 0 AND {x} < 9223372036854775807",
            "a whole number of at least 0",
        )
    if column.kind == "float":
        finite = "a finite number of at least 0"
        return TimeColumn(
            lambda scale: f"TRY_CAST(ROUND({x} * {scale}) AS BIGINT)",
            f"{x} >= 0 AND {x} < 9.2e18",
            finite,
            f"{x} <> floor({x})",
        )
    if column.kind in ("moment", "zoned"):
        moment = f"zoned_micros({x})" if column.kind == "zoned" else f"unix_micros(CAST({x} AS TIMESTAMP))"
        return TimeColumn(lambda _: moment, f"{moment} >= 0", "a moment since 1970", unit="microseconds")
    if column.kind != "text":
        raise BadInput(
            f"column {column.name!r}: expected times (numbers or dates), found {column.kind} values"
        )
    first = engine.arrow(f"SELECT {x} AS x FROM {relation} AS source WHERE {x} IS NOT NULL LIMIT 1")
    if first.num_rows and re.match(DATES, first["x"][0].as_py()):
        # The offset from UTC is subtracted here, because engines treat offsets, and times without one,
        # differently.
        day, rest = f"substr(trim({x}), 1, 10)", f"substr(trim({x}), 11)"
        plain = f"TRY_CAST({day} || regexp_replace({rest}, {literal(OFFSETS)}, '') AS TIMESTAMP)"
        sign, *parts = (f"regexp_extract({rest}, {literal(OFFSETS)}, {part})" for part in (1, 2, 3))
        hours, minutes = (f"COALESCE(TRY_CAST(NULLIF({part}, '') AS BIGINT), 0)" for part in parts)
        sign = f"CASE WHEN {sign} = '-' THEN -1 ELSE 1 END"
        date = f"(unix_micros({plain}) - {sign} * ({hours} * 60 + {minutes}) * 60000000)"
        good = f"regexp_like({x}, {literal(DATES)}) AND {date} >= 0"
        return TimeColumn(
            lambda _: date, good, "a date such as 2026-01-31 23:59:59, since 1970", unit="microseconds"
        )

    def ticks(scale: int) -> str:
        rounded = f"TRY_CAST(ROUND(TRY_CAST({x} AS DOUBLE) * {scale}) AS BIGINT)"
        return (
            f"CASE WHEN regexp_like({x}, {INTEGERS}) THEN TRY_CAST(trim({x}) AS BIGINT) * {scale} ELSE "
            f"{rounded} END"
        )

    good = f"regexp_like({x}, {TIMES}) AND {ticks(1)} >= 0"
    fractional = (
        f"NOT regexp_like({x}, {INTEGERS}) AND TRY_CAST({x} AS DOUBLE) <> floor(TRY_CAST({x} AS DOUBLE))"
    )
    return TimeColumn(
        ticks, good, "a finite number of at least 0 (or ISO dates in the whole column)", fractional
    )
