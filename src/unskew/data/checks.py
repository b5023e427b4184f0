"""Every value is looked at before anything is written; a complaint names the file, the line, the column and
what was expected."""

import csv
import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unskew.data.clock import UNITS
from unskew.data.engines import FILE, ROW, Engine, Malformed, Unparsed, literal
from unskew.data.files import opened
from unskew.data.formats import Column, Reading, Source
from unskew.data.log import MARK
from unskew.errors import BadInput

TIMES = "'^ *[0-9]+([.][0-9]*)?([eE][+]?[0-9]+)? *$'"
INTEGERS = "'^ *[0-9]{1,19} *$'"
DATES = (
    "^ *[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}([.][0-9]+)?)?( "
    "?(Z|[+-][0-9]{2}(:?[0-9]{2})?))?)? *$"
)
OFFSETS = " *(?:Z|([+-])([0-9]{2}):?([0-9]{2})?)$"  # of what follows the day
NUMBERS = "'^ *[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)? *$'"

POSITIVE = "a number from where on they are, or words such as purchase,cart"
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
    marks: tuple[str, ...]  # of named tests, as mark_0, mark_1, ...
    titled: bool
    rows: int
    time_unit: str
    bad_rows: list[dict[str, Any]]


def check(engine: Engine, source: Source, reading: Reading) -> Checked:
    """Look at every value once. Stop at the first bad row, or set the bad ones aside if the caller says
    so."""
    try:
        return _checked(engine, source, reading)
    except Malformed as error:
        raise BadInput(f"{source.name}: {error}") from None
    except Unparsed as error:
        raise BadInput(
            f"{error.file}, line {_line_of_record(source, error.file, error.record)}: {error.reason}"
        ) from None


def _checked(engine: Engine, source: Source, reading: Reading) -> Checked:
    relation = source.derive(engine.scan(source.scan), "")
    column = source.roles["time"]
    clock = _time_column(engine, relation, column)
    time = clock.ticks(1)
    checks = [
        *(Check(source.roles[role], _is_id(source.roles[role]), "an id") for role in ("user", "item")),
        Check(column, clock.good, clock.expected),
        *_number_checks(source),
    ]
    counted = ", ".join(
        f"SUM(CASE WHEN {test} THEN 1 ELSE 0 END)"
        for test in [*(c.bad for c in checks), clock.fractional, *_units(time)]
    )
    totals = engine.arrow(f"SELECT count(*) AS n, {counted} FROM {relation} AS source")
    rows, *numbers = (int(column[0].as_py() or 0) for column in totals.itercolumns())
    unparsed = engine.unparsed()
    if not rows and not unparsed:
        raise BadInput(f"{source.name}: a header and no rows")
    bad_counts, (fractions, *per_unit) = numbers[: len(checks)], numbers[len(checks) :]
    scale, unit = 1, clock.unit
    usual = list(UNITS)[per_unit.index(max(per_unit))] if any(per_unit) else "seconds"
    if fractions and clock.unit == "as given":
        # Fractions of seconds or milliseconds are kept as whole microseconds; finer ones are rounded.
        scale, unit = (
            {"seconds": 10**6, "milliseconds": 10**3}.get(usual, 1),
            "nanoseconds" if usual == "nanoseconds" else "microseconds",
        )
    if clock.unit == "as given" and sum(map(bool, per_unit)) > 1:
        low, high = UNITS[usual]
        usual_time = f"({time} < {UNITS['seconds'][0]} OR ({time} >= {low} AND {time} < {high}))"
        checks.append(Check(column, usual_time, f"{usual} since 1970, as in most rows"))
        bad_counts.append(1)
    bad = " OR ".join(c.bad for c in checks)
    bad_rows = [
        _bad_row(gap.file, _line_of_record(source, gap.file, gap.record), "", gap.reason, gap.text)
        for gap in unparsed
    ]
    if any(bad_counts):
        found = _locate(engine, source, checks, bad, None if reading.skip_bad_rows else 1)
        if not reading.skip_bad_rows:
            raise BadInput(_complaint(found[0], source))
        bad_rows += found
    values = {
        "u": source.roles["user"].sql,
        "i": source.roles["item"].sql,
        "t": clock.ticks(scale),
        "y": _label(source),
    }
    extras = tuple(role for role in ("propensity", "exposed", "position", "visit") if role in source.roles)
    types = {"propensity": "DOUBLE", "exposed": "TINYINT", "position": "INT"}
    values |= {
        role: f"CAST({_number(source.roles[role])} AS {types[role]})" for role in extras if role != "visit"
    }
    marks = tuple(role for role in source.roles if role.startswith(MARK))
    values |= {
        f"mark_{place}": f"CAST({_number(source.roles[role])} AS TINYINT)" for place, role in enumerate(marks)
    }
    if "visit" in source.roles:
        visit = source.roles["visit"]
        number = (
            f"CASE WHEN NOT isnan({visit.sql}) THEN {visit.sql} END" if visit.kind == "float" else visit.sql
        )
        values["visit"] = f"NULLIF(trim(CAST({number} AS STRING)), '')"
    if "title" in source.roles:
        values["title"] = source.roles["title"].sql
    select = ", ".join(f"{sql} AS {name}" for name, sql in values.items())
    where = f" WHERE NOT ({bad})" if bad_rows else ""
    good = rows + len(unparsed) - len(bad_rows)
    if not good:
        raise BadInput(
            f"{source.name}: not one good row of {rows}; the first: {_complaint(bad_rows[0], source)}"
        )
    query = f"SELECT {select} FROM {relation} AS source{where}"
    return Checked(query, extras, marks, "title" in source.roles, good, unit, bad_rows)


@dataclass(frozen=True)
class TimeColumn:
    """How the time column is read."""

    ticks: Callable[[int], str]  # SQL for the time as a whole number, in units of 1 / scale
    good: str
    expected: str
    fractional: str = "FALSE"  # SQL: is it a fraction?
    unit: str = "as given"


def _time_column(engine: Engine, relation: str, column: Column) -> TimeColumn:
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
        # The offset is taken off by hand: engines differ in what they make of one, and of a machine's own
        # zone.
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


def _units(time: str) -> list[str]:
    return [f"{time} >= {low} AND {time} < {high}" for low, high in UNITS.values()]


def _is_id(column: Column) -> str:
    blank = {"text": f" AND trim({column.sql}) <> ''", "float": f" AND NOT isnan({column.sql})"}.get(
        column.kind, ""
    )
    return f"{column.sql} IS NOT NULL{blank}"


def _number(column: Column) -> str:
    x = column.sql
    if column.kind == "text":
        flag = f"WHEN lower(trim({x})) = 'true' THEN 1.0 WHEN lower(trim({x})) = 'false' THEN 0.0"
        return f"CASE WHEN regexp_like({x}, {NUMBERS}) THEN TRY_CAST({x} AS DOUBLE) {flag} END"
    if column.kind == "bool":
        return f"CASE WHEN {x} THEN 1.0 WHEN NOT {x} THEN 0.0 END"
    if column.kind in ("int", "float"):
        return f"CAST({x} AS DOUBLE)"
    raise BadInput(f"column {column.name!r}: expected numbers, found {column.kind} values")


def _number_checks(source: Source) -> list[Check]:
    checks = []
    for role, column in source.roles.items():
        if role == "label" and isinstance(source.positive, str):
            checks.append(Check(column, _is_id(column), f"a label, such as {_words(source.positive)[0]}"))
        elif role == "label" and source.labels is not None:
            low, high = source.labels
            checks.append(
                Check(
                    column, f"{_number(column)} BETWEEN {low} AND {high}", f"a label from {low:g} to {high:g}"
                )
            )
        elif role == "label" and source.positive is not None:
            checks.append(Check(column, f"{_number(column)} BETWEEN -1e300 AND 1e300", "a finite number"))
        elif role == "label":
            checks.append(
                Check(
                    column,
                    f"{_number(column)} IN (0, 1)",
                    f"the label 0 or 1 (or say with --positive which ones are positive: {POSITIVE})",
                )
            )
        elif role == "propensity":
            checks.append(
                Check(
                    column,
                    f"{_number(column)} > 0 AND {_number(column)} <= 1",
                    "a probability above 0 and at most 1",
                )
            )
        elif role == "exposed" or role.startswith(MARK):
            checks.append(Check(column, f"{_number(column)} IN (0, 1)", "0 or 1"))
        elif role == "position":
            whole = (
                f"{_number(column)} BETWEEN 0 AND 2147483647 AND {_number(column)} = floor({_number(column)})"
            )
            checks.append(Check(column, whole, "a whole number of at least 0"))
    return checks


def _label(source: Source) -> str:
    if "label" not in source.roles:
        return "CAST(1 AS TINYINT)"
    if isinstance(source.positive, str):
        wanted = ", ".join(map(literal, _words(source.positive)))
        return (
            f"CAST(CASE WHEN trim(CAST({source.roles['label'].sql} AS STRING)) IN ({wanted}) THEN 1 "
            "ELSE 0 END AS TINYINT)"
        )
    threshold = 1 if source.positive is None else source.positive
    return f"CAST(CASE WHEN {_number(source.roles['label'])} >= {threshold!r} THEN 1 ELSE 0 END AS TINYINT)"


def _words(positive: str) -> list[str]:
    """The labels that are positive."""
    words = [word.strip() for word in positive.split(",") if word.strip()]
    if not words:
        raise BadInput(f"positive {positive!r}: expected {POSITIVE}")
    return words


def labels_found(engine: Engine, source: Source) -> str:
    """Some of the labels that there are, for whoever named others."""
    column = source.roles["label"]
    query = (
        f"SELECT DISTINCT CAST({column.sql} AS STRING) AS label FROM "
        f"{source.derive(engine.scan(source.scan), '')} AS source LIMIT 8"
    )
    return ", ".join(sorted(repr(label) for label in engine.arrow(query)["label"].to_pylist()))


def _locate(
    engine: Engine, source: Source, checks: list[Check], bad: str, most: int | None
) -> list[dict[str, Any]]:
    """The bad rows in the order of their files, with the first reason of each. Only asked when there are
    some."""
    reason = (
        "CASE " + " ".join(f"WHEN {check.bad} THEN {place}" for place, check in enumerate(checks)) + " END"
    )
    value = (
        "CASE "
        + " ".join(f"WHEN {check.bad} THEN CAST({check.column.sql} AS STRING)" for check in checks)
        + " END"
    )
    limit = "" if most is None else f" LIMIT {most}"
    files: list[str | None] = [None]
    if source.scan.table is None and engine.numbered(source.scan, None) is not None:
        relation = source.derive(engine.scan(source.scan), f", {FILE}")
        query = f"SELECT DISTINCT {FILE} AS file FROM {relation} AS source WHERE {bad} ORDER BY file{limit}"
        files = engine.arrow(query)["file"].to_pylist()
    located = []
    for file in files:
        numbered = engine.numbered(source.scan, file)
        relation = (
            source.derive(engine.scan(source.scan), "")
            if numbered is None
            else source.derive(numbered, f", {ROW}")
        )
        place = "NULL" if numbered is None else ROW
        query = (
            f"SELECT {place} AS place, {reason} AS reason, {value} AS value FROM {relation} AS source "
            f"WHERE {bad} ORDER BY place{limit}"
        )
        rows = engine.arrow(query).to_pylist()
        lines = _lines(
            source,
            file,
            [row["place"] for row in rows],
            {gap.record for gap in engine.unparsed() if gap.file == file},
        )
        for row, line in zip(rows, lines, strict=True):
            check = checks[row["reason"]]
            located.append(
                _bad_row(file or source.name, line, check.column.name, check.expected, row["value"])
            )
    return located


def _bad_row(file: str, line: int | None, column: str, expected: str, value: str | None) -> dict[str, Any]:
    return {"file": file, "line": line, "column": column, "expected": expected, "value": value}


def _records(source: Source, file: str) -> Iterator[tuple[int, bool]]:
    """Of each record of a text file, the line it begins at and whether it is blank: a quoted line break makes
    the two differ."""
    scan = source.scan
    with io.TextIOWrapper(opened(file), encoding="utf-8", errors="replace", newline="") as stream:
        if scan.kind == "json":
            yield from ((number, not line.strip()) for number, line in enumerate(stream, 1))
            return
        quote = scan.quote or None
        reader = csv.reader(
            stream,
            delimiter=scan.delimiter[0],
            quotechar=quote,
            quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
        )
        begins = 1
        for fields in reader:
            yield begins, not fields
            begins = reader.line_num + 1


def _line_of_record(source: Source, file: str, record: int) -> int:
    """Records are counted from 1, blank ones and the header included."""
    return next(
        (line for number, (line, _) in enumerate(_records(source, file), 1) if number == record), record
    )


def _lines(source: Source, file: str | None, rows: list[int], unparsed: set[int]) -> list[int]:
    """The lines of some rows, counted from 1 without the header, blank records, and those that could not be
    parsed."""
    if file is None or source.scan.kind in ("parquet", "table"):
        return rows
    wanted, found, row = set(rows), {}, -1 if source.scan.header and source.scan.kind == "text" else 0
    for number, (line, blank) in enumerate(_records(source, file), 1):
        if blank or number in unparsed:
            continue
        row += 1
        if row in wanted:
            found[row] = line
            if len(found) == len(wanted):
                break
    return [found.get(row, row) for row in rows]


def _complaint(row: dict[str, Any], source: Source) -> str:
    unit = "row" if source.scan.kind in ("parquet", "table") else "line"
    if not row["column"]:
        return f"{row['file']}, line {row['line']}: {row['expected']}"
    where = row["file"] if row["line"] is None else f"{row['file']}, {unit} {row['line']}"
    found = "nothing" if row["value"] is None else repr(row["value"][:60])
    return f"{where}, column {row['column']!r}: expected {row['expected']}, found {found}"
