"""Every value is looked at before anything is written; a complaint names the file, the line, the column and what was expected."""

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unskew.data.engines import FILE, DuckDB, Engine, literal
from unskew.data.formats import Column, Reading, Source, opened
from unskew.errors import BadInput

TIMES = "'^ *[0-9]+([.][0-9]*)?([eE][+]?[0-9]+)? *$'"
INTEGERS = "'^ *[0-9]{1,19} *$'"
FRACTIONS = "'[.][0-9]*[1-9]'"
NUMBERS = "'^ *[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)? *$'"
MICROSECONDS = 1_000_000

# Powers of ten that tell seconds, milliseconds, microseconds and nanoseconds since 1970 apart, from 1973 to 5138.
UNITS = {"seconds": (1e8, 1e11), "milliseconds": (1e11, 1e14), "microseconds": (1e14, 1e17), "nanoseconds": (1e17, 9.3e18)}

SIDE_FILE = ("file", "line", "column", "expected", "value")


@dataclass(frozen=True)
class Check:
    """A condition that every row must meet."""

    column: Column
    good: str
    expected: str

    @property
    def bad(self) -> str:
        return f"NOT COALESCE({self.good}, FALSE)"


@dataclass(frozen=True, eq=False)
class Checked:
    """SQL that gives the good rows of a source as u, i, t, y and the optional roles."""

    query: str
    extras: tuple[str, ...]
    titled: bool
    rows: int
    time_unit: str
    bad_rows: list[dict[str, Any]]


def check(engine: Engine, source: Source, reading: Reading) -> Checked:
    """Look at every value once. Stop at the first bad row, or set the bad ones aside if the caller says so."""
    relation = source.derive(engine.scan(source.scan), "")
    column = source.roles["time"]
    clock = _clock(engine, relation, column)
    time = clock.ticks(1)
    checks = [
        *(Check(source.roles[role], _is_id(source.roles[role]), "an id") for role in ("user", "item")),
        Check(column, clock.good, clock.expected),
        *_number_checks(source),
    ]
    counted = ", ".join(f"SUM(CASE WHEN {test} THEN 1 ELSE 0 END)" for test in [*(c.bad for c in checks), clock.fractional, *_units(time)])
    totals = engine.arrow(f"SELECT count(*) AS n, {counted} FROM {relation} AS source")
    rows, *numbers = (int(column[0].as_py() or 0) for column in totals.itercolumns())
    unparsed = engine.unparsed()
    if not rows and not unparsed:
        raise BadInput(f"{source.name}: a header and no rows")
    bad_counts, (fractions, *per_unit) = numbers[: len(checks)], numbers[len(checks) :]
    scale, unit = 1, clock.unit
    if fractions:
        scale, unit = MICROSECONDS, "microseconds"  # seconds with a fraction: microseconds keep it, in whole numbers
    elif sum(bool(count) for count in per_unit) > 1:
        usual = list(UNITS)[per_unit.index(max(per_unit))]
        low, high = UNITS[usual]
        usual_time = f"({time} < {UNITS['seconds'][0]} OR ({time} >= {low} AND {time} < {high}))"
        checks.append(Check(column, usual_time, f"{usual} since 1970, as in most rows"))
        bad_counts.append(1)
    bad = " OR ".join(c.bad for c in checks)
    bad_rows = [
        {"file": row["file"], "line": row["row"], "column": "", "expected": row["reason"], "value": row["value"]} for row in unparsed
    ]
    if any(bad_counts):
        found = _locate(engine, source, checks, bad, None if reading.skip_bad_rows else 1)
        if not reading.skip_bad_rows:
            raise BadInput(_complaint(found[0], source))
        bad_rows += found
    values = {"u": source.roles["user"].sql, "i": source.roles["item"].sql, "t": clock.ticks(scale), "y": _label(source)}
    extras = tuple(role for role in ("propensity", "exposed", "position") if role in source.roles)
    types = {"propensity": "DOUBLE", "exposed": "TINYINT", "position": "INT"}
    values |= {role: f"CAST({_number(source.roles[role])} AS {types[role]})" for role in extras}
    if "title" in source.roles:
        values["title"] = source.roles["title"].sql
    select = ", ".join(f"{sql} AS {name}" for name, sql in values.items())
    where = f" WHERE NOT ({bad})" if bad_rows else ""
    good = rows + len(unparsed) - len(bad_rows)
    if not good:
        raise BadInput(f"{source.name}: not one good row of {rows}; the first: {_complaint(bad_rows[0], source)}")
    return Checked(f"SELECT {select} FROM {relation} AS source{where}", extras, "title" in source.roles, good, unit, bad_rows)


@dataclass(frozen=True)
class Clock:
    """How the time column is read."""

    ticks: Callable[[int], str]  # SQL for the time as a whole number, in units of 1 / scale
    good: str
    expected: str
    fractional: str = "FALSE"  # SQL: is it a fraction?
    unit: str = "as given"


def _clock(engine: Engine, relation: str, column: Column) -> Clock:
    x = column.sql
    if column.kind == "int":
        return Clock(
            lambda scale: f"CAST({x} AS BIGINT) * {scale}", f"{x} >= 0 AND {x} < 9223372036854775807", "a whole number of at least 0"
        )
    if column.kind == "float":
        finite = "a finite number of at least 0"
        return Clock(lambda scale: f"TRY_CAST(ROUND({x} * {scale}) AS BIGINT)", f"{x} >= 0 AND {x} < 9.2e18", finite, f"{x} <> floor({x})")
    if column.kind == "moment":
        moment = f"unix_micros(CAST({x} AS TIMESTAMP))"
        return Clock(lambda _: moment, f"{moment} >= 0", "a moment since 1970", unit="microseconds")
    if column.kind != "text":
        raise BadInput(f"column {column.name!r}: expected times (numbers or dates), found {column.kind} values")
    first = engine.arrow(f"SELECT {x} AS x FROM {relation} AS source WHERE {x} IS NOT NULL LIMIT 1")
    text = first["x"][0].as_py() if first.num_rows else ""
    if (
        engine.arrow(f"SELECT TRY_CAST({literal(text)} AS TIMESTAMP) IS NOT NULL AS is_date")["is_date"][0].as_py()
        and not text.strip().isdigit()
    ):
        date = f"unix_micros(TRY_CAST({x} AS TIMESTAMP))"
        return Clock(lambda _: date, f"{date} >= 0", "a date such as 2026-01-31 23:59:59, since 1970", unit="microseconds")

    def ticks(scale: int) -> str:
        rounded = f"TRY_CAST(ROUND(TRY_CAST({x} AS DOUBLE) * {scale}) AS BIGINT)"
        return f"CASE WHEN regexp_like({x}, {INTEGERS}) THEN TRY_CAST(trim({x}) AS BIGINT) * {scale} ELSE {rounded} END"

    good = f"regexp_like({x}, {TIMES}) AND {ticks(1)} >= 0"
    return Clock(ticks, good, "a finite number of at least 0", f"regexp_like({x}, {FRACTIONS})")


def _units(time: str) -> list[str]:
    return [f"{time} >= {low} AND {time} < {high}" for low, high in UNITS.values()]


def _is_id(column: Column) -> str:
    blank = {"text": f" AND trim({column.sql}) <> ''", "float": f" AND NOT isnan({column.sql})"}.get(column.kind, "")
    return f"{column.sql} IS NOT NULL{blank}"


def _number(column: Column) -> str:
    x = column.sql
    if column.kind == "text":
        return f"CASE WHEN regexp_like({x}, {NUMBERS}) THEN TRY_CAST({x} AS DOUBLE) END"
    if column.kind == "bool":
        return f"CASE WHEN {x} THEN 1.0 WHEN NOT {x} THEN 0.0 END"
    if column.kind in ("int", "float"):
        return f"CAST({x} AS DOUBLE)"
    raise BadInput(f"column {column.name!r}: expected numbers, found {column.kind} values")


def _number_checks(source: Source) -> list[Check]:
    checks = []
    for role, column in source.roles.items():
        if role == "label" and source.labels is not None:
            low, high = source.labels
            checks.append(Check(column, f"{_number(column)} BETWEEN {low} AND {high}", f"a label from {low:g} to {high:g}"))
        elif role == "label" and source.positive is not None:
            checks.append(Check(column, f"{_number(column)} BETWEEN -1e300 AND 1e300", "a finite number"))
        elif role == "label":
            checks.append(
                Check(
                    column, f"{_number(column)} IN (0, 1)", "the label 0 or 1 (or say with --positive X from where on a label is positive)"
                )
            )
        elif role == "propensity":
            checks.append(Check(column, f"{_number(column)} > 0 AND {_number(column)} <= 1", "a probability above 0 and at most 1"))
        elif role == "exposed":
            checks.append(Check(column, f"{_number(column)} IN (0, 1)", "0 or 1"))
        elif role == "position":
            checks.append(Check(column, f"{_number(column)} BETWEEN 0 AND 2147483647", "a place of at least 0"))
    return checks


def _label(source: Source) -> str:
    if "label" not in source.roles:
        return "CAST(1 AS TINYINT)"
    threshold = 1 if source.positive is None else source.positive
    return f"CAST(CASE WHEN {_number(source.roles['label'])} >= {threshold!r} THEN 1 ELSE 0 END AS TINYINT)"


def _locate(engine: Engine, source: Source, checks: list[Check], bad: str, most: int | None) -> list[dict[str, Any]]:
    """The bad rows in the order of their files, with the first reason of each. Only asked when there are some."""
    in_files = source.scan.table is None
    reason = "CASE " + " ".join(f"WHEN {check.bad} THEN {place}" for place, check in enumerate(checks)) + " END"
    value = "CASE " + " ".join(f"WHEN {check.bad} THEN CAST({check.column.sql} AS STRING)" for check in checks) + " END"
    limit = "" if most is None else f" LIMIT {most}"
    if not isinstance(engine, DuckDB):  # rows of a distributed read have no numbers
        relation = source.derive(engine.scan(source.scan), "")
        rows = engine.arrow(f"SELECT {reason} AS reason, {value} AS value FROM {relation} AS source WHERE {bad}{limit}").to_pylist()
        return [_bad_row(source.name, None, checks[row["reason"]], row["value"]) for row in rows]
    located = []
    files: list[str | None] = [None]
    if in_files:
        affected = source.derive(engine.scan(source.scan), f", {FILE}") if len(source.scan.files) > 1 else ""
        query = f"SELECT DISTINCT {FILE} AS file FROM {affected} AS source WHERE {bad} ORDER BY file{limit}"
        files = engine.arrow(query)["file"].to_pylist() if affected else [source.scan.files[0]]
    for file in files:
        relation = source.derive(engine.numbered(source.scan, file), ", row")
        query = f"SELECT row, {reason} AS reason, {value} AS value FROM {relation} AS source WHERE {bad} ORDER BY row{limit}"
        rows = engine.arrow(query).to_pylist()
        lines = _lines(source, file, [row["row"] for row in rows], {row["row"] for row in engine.unparsed()})
        located += [_bad_row(file or source.name, line, checks[row["reason"]], row["value"]) for row, line in zip(rows, lines, strict=True)]
    return located


def _bad_row(file: str, line: int | None, check: Check, value: str | None) -> dict[str, Any]:
    return {"file": file, "line": line, "column": check.column.name, "expected": check.expected, "value": value}


def _lines(source: Source, file: str | None, rows: list[int], unparsed: set[int]) -> list[int]:
    """Line numbers of some rows of a text file: blank lines and line breaks inside quotes make them differ."""
    if file is None or source.scan.kind == "parquet" or not rows:
        return rows
    wanted, found, row = set(rows), {}, 0
    with io.TextIOWrapper(opened(file), encoding="utf-8", errors="replace", newline="") as stream:
        if source.scan.kind == "json":
            ends = ((number, line.strip()) for number, line in enumerate(stream, 1))
        else:
            quote = source.scan.quote or None
            reader = csv.reader(
                stream, delimiter=source.scan.delimiter[0], quotechar=quote, quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE
            )
            ends = ((reader.line_num, "".join(fields)) for fields in reader)
        skip_header = source.scan.header and source.scan.kind == "text"
        for number, content in ends:
            if not content or number in unparsed:
                continue
            if skip_header:
                skip_header = False
                continue
            row += 1
            if row in wanted:
                found[row] = number
                if len(found) == len(wanted):
                    break
    return [found.get(row, row) for row in rows]


def _complaint(row: dict[str, Any], source: Source) -> str:
    unit = "row" if source.scan.kind in ("parquet", "table") else "line"
    where = row["file"] if row["line"] is None else f"{row['file']}, {unit} {row['line']}"
    found = "nothing" if row["value"] is None else repr(row["value"][:60])
    return f"{where}, column {row['column']!r}: expected {row['expected']}, found {found}"
