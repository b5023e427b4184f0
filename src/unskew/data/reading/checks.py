"""Every value of a source is checked before anything is written.

An error names the file, the line, the column, what was expected and what was found.
"""

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from unskew.core.errors import BadInput
from unskew.data.log.clock import UNITS
from unskew.data.log.log import MARK
from unskew.data.reading.bad_rows import Check, bad_row, complaint, line_of_record, locate
from unskew.data.reading.columns import Column, Reading, Source
from unskew.data.reading.engines import Engine, Malformed, Unparsed, literal
from unskew.data.reading.time_column import time_column

NUMBERS = "'^ *[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)? *$'"

TYPES = {"propensity": "DOUBLE", "exposed": "TINYINT", "position": "INT"}  # of the optional numbers, in SQL
POSITIVE = "a number from where on they are, or words such as purchase,cart"


@dataclass(frozen=True, eq=False)
class Checked:
    """A source whose values have all been checked."""

    query: str  # SQL of the good rows, with the columns u, i, t, y and the optional roles
    described: str | None  # SQL of the same rows with u, i, t and the features item_0, user_0, ...
    extras: tuple[str, ...]  # the optional roles that the source has
    marks: tuple[str, ...]  # the named tests; in the SQL their columns are mark_0, mark_1, ...
    titled: bool  # whether there is a column of titles
    rows: int  # the number of good rows
    time_unit: str
    bad_rows: list[dict[str, Any]]  # those that were set aside


def check(engine: Engine, source: Source, reading: Reading) -> Checked:
    """Check every value in one pass. The first bad row is an error, unless the caller wants bad rows to be
    set aside (`skip_bad_rows`)."""
    try:
        return _checked(engine, source, reading)
    except Malformed as error:
        raise BadInput(f"{source.name}: {error}") from None
    except Unparsed as error:
        raise BadInput(
            f"{error.file}, line {line_of_record(source, error.file, error.record)}: {error.reason}"
        ) from None


def _checked(engine: Engine, source: Source, reading: Reading) -> Checked:
    relation = source.derive(engine.scan(source.scan), "")
    column = source.roles["time"]
    clock = time_column(engine, relation, column)
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
        bad_row(gap.file, line_of_record(source, gap.file, gap.record), "", gap.reason, gap.text)
        for gap in unparsed
    ]
    if any(bad_counts):
        found = locate(engine, source, checks, bad, None if reading.skip_bad_rows else 1)
        if not reading.skip_bad_rows:
            raise BadInput(complaint(found[0], source))
        bad_rows += found
    where = f" WHERE NOT ({bad})" if bad_rows else ""
    good = rows + len(unparsed) - len(bad_rows)
    if not good:
        raise BadInput(
            f"{source.name}: not one good row of {rows}; the first: {complaint(bad_rows[0], source)}"
        )
    from_good = f"FROM {relation} AS source{where}"
    key = {"u": source.roles["user"].sql, "i": source.roles["item"].sql, "t": clock.ticks(scale)}
    features = {
        f"{role}_{place}": _present(column)
        for role, columns in source.features.items()
        for place, column in enumerate(columns.values())
    }
    return Checked(
        query=f"SELECT {_select(key | _values(source))} {from_good}",
        described=f"SELECT {_select(key | features)} {from_good}" if features else None,
        extras=tuple(role for role in (*TYPES, "impression_id") if role in source.roles),
        marks=tuple(role for role in source.roles if role.startswith(MARK)),
        titled="title" in source.roles,
        rows=good,
        time_unit=unit,
        bad_rows=bad_rows,
    )


def _select(columns: dict[str, str]) -> str:
    return ", ".join(f"{sql} AS {name}" for name, sql in columns.items())


def _values(source: Source) -> dict[str, str]:
    """SQL of the label and of the optional roles, by the name that the column gets."""
    values = {"y": _label(source)}
    values |= {
        role: f"CAST({_number(source.roles[role])} AS {kind})"
        for role, kind in TYPES.items()
        if role in source.roles
    }
    marks = (column for role, column in source.roles.items() if role.startswith(MARK))
    values |= {f"mark_{place}": f"CAST({_number(mark)} AS TINYINT)" for place, mark in enumerate(marks)}
    if "impression_id" in source.roles:
        impression = source.roles["impression_id"]
        number = (
            f"CASE WHEN NOT isnan({impression.sql}) THEN {impression.sql} END"
            if impression.kind == "float"
            else impression.sql
        )
        values["impression_id"] = f"NULLIF(trim(CAST({number} AS STRING)), '')"
    if "title" in source.roles:
        values["title"] = _present(source.roles["title"])
    return values


def _units(time: str) -> list[str]:
    """For each unit, the condition that a time looks as if it were given in it."""
    return [f"{time} >= {low} AND {time} < {high}" for low, high in UNITS.values()]


def _is_id(column: Column) -> str:
    """The condition that a value is there and not blank."""
    blank = {"text": f" AND trim({column.sql}) <> ''", "float": f" AND NOT isnan({column.sql})"}.get(
        column.kind, ""
    )
    return f"{column.sql} IS NOT NULL{blank}"


def _present(column: Column) -> str:
    """The value of a title or a feature; null where it is blank text or NaN."""
    x = column.sql
    if column.kind == "text":
        return f"CASE WHEN trim(CAST({x} AS STRING)) <> '' THEN CAST({x} AS STRING) END"
    if column.type is not None and pa.types.is_floating(column.type):
        return f"CASE WHEN NOT isnan({x}) THEN {x} END"
    return x


def _number(column: Column) -> str:
    """The value as a number, with 1 for true and 0 for false; null where it is none."""
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
    """The conditions for the label and the optional roles."""
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
    """1 where the row is a positive, and 0 where it is not."""
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
    """The labels that the caller calls positive."""
    words = [word.strip() for word in positive.split(",") if word.strip()]
    if not words:
        raise BadInput(f"positive {positive!r}: expected {POSITIVE}")
    return words


def labels_found(engine: Engine, source: Source) -> str:
    """Up to eight of the labels in the source, for the error message when none of them is positive."""
    column = source.roles["label"]
    query = (
        f"SELECT DISTINCT CAST({column.sql} AS STRING) AS label FROM "
        f"{source.derive(engine.scan(source.scan), '')} AS source LIMIT 8"
    )
    return ", ".join(sorted(repr(label) for label in engine.arrow(query)["label"].to_pylist()))
