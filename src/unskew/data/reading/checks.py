"""Every value of a source is checked before anything is written.

An error names the file, the line, the column, what was expected and what was found.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from unskew.core.errors import BadInput
from unskew.data.log.clock import UNITS
from unskew.data.log.folder import MARK
from unskew.data.log.preparation import EventCounts, Reading
from unskew.data.reading.bad_rows import BadRow, Check, complaint, line_of_record, locate
from unskew.data.reading.columns import Column, EventTypes, Source
from unskew.data.reading.engines import Engine, Malformed, Unparsed, literal
from unskew.data.reading.time_column import time_column

NUMBERS = "'^ *[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)? *$'"

TYPES = {"propensity": "DOUBLE", "exposed": "TINYINT", "position": "INT"}  # of the optional numbers, in SQL
POSITIVE = "a number from where on they are, or words such as purchase,cart"


@dataclass(frozen=True, eq=False)
class Checked:
    """A source whose values have all been checked."""

    query: str  # SQL of the good rows, with the columns u, i, t, y and the optional roles
    described: str | None  # SQL of all good rows and events with u, i, t and the features item_0, user_0, ...
    context: str | None  # SQL of the good events of context types, with the columns u, i, t, kind and title
    types: EventCounts  # what the types mean; `kind` is a position in its context types
    extras: tuple[str, ...]  # the optional roles that the source has
    marks: tuple[str, ...]  # the named tests; in the SQL their columns are mark_0, mark_1, ...
    titled: bool  # whether there is a column of titles
    rows: int  # the number of good rows
    time_unit: str
    bad_rows: list[BadRow]  # those that were set aside
    events: int = 0  # the number of good events of context types
    dropped: int = 0  # rows of users who were named to be left out


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
    source, dropped = _without_users(engine, source, reading.drop_users)
    counted_types = EventCounts()
    if source.types is not None:
        source, counted_types = _with_types(engine, source, source.types)
    relation = source.derive(engine.scan(source.scan), "")
    column = source.roles["time"]
    clock = time_column(engine, relation, column)
    checks = [
        *(Check(source.roles[role], _is_id(source.roles[role]), "an id") for role in ("user", "item")),
        Check(column, clock.good, clock.expected),
        *_number_checks(source),
    ]
    conditions = [*(check.bad for check in checks), clock.fractional, *_units(clock.ticks(1))]
    counted = ", ".join(f"SUM(CASE WHEN {condition} THEN 1 ELSE 0 END)" for condition in conditions)
    totals = engine.arrow(f"SELECT count(*) AS n, {counted} FROM {relation} AS source")
    rows, *numbers = (int(column[0].as_py() or 0) for column in totals.itercolumns())
    unparsed = engine.unparsed()
    if not rows and not unparsed:
        raise BadInput(f"{source.name}: a header and no rows")
    fractions, *per_unit = numbers[len(checks) :]
    usual = list(UNITS)[per_unit.index(max(per_unit))] if any(per_unit) else "seconds"
    are_bad = any(numbers[: len(checks)])
    scale, unit = 1, clock.unit
    if clock.unit == "as given":
        if fractions:
            scale, unit = _whole_ticks(usual)
        if sum(map(bool, per_unit)) > 1:
            checks.append(_unit_check(column, clock.ticks(1), usual))
            are_bad = True
    bad_rows = [
        BadRow(gap.file, line_of_record(source, gap.file, gap.record), "", gap.reason, gap.text)
        for gap in unparsed
    ]
    if are_bad:
        located = locate(engine, source, checks, None if reading.skip_bad_rows else 1)
        if not reading.skip_bad_rows:
            raise BadInput(complaint(located[0], source))
        bad_rows += located
    good = rows + len(unparsed) - len(bad_rows)
    if not good:
        raise BadInput(
            f"{source.name}: not one good row of {rows}; the first: {complaint(bad_rows[0], source)}"
        )
    are_good = f"NOT ({' OR '.join(check.bad for check in checks)})" if bad_rows else "TRUE"
    from_good = f"FROM {relation} AS source WHERE {are_good}"
    kind = _kind_of_event(source.types)
    key = {"u": source.roles["user"].sql, "i": source.roles["item"].sql, "t": clock.ticks(scale)}
    features = {
        f"{role}_{place}": _present(column)
        for role, columns in source.features.items()
        for place, column in enumerate(columns.values())
    }
    query, context = f"SELECT {_select(key | _values(source))} {from_good}", None
    if kind is not None:
        title = {"title": _present(source.roles["title"])} if "title" in source.roles else {}
        context = f"SELECT {_select(key | {'kind': kind} | title)} {from_good} AND {kind} IS NOT NULL"
        query = f"{query} AND {kind} IS NULL"
    events = _count(engine, context)
    return Checked(
        query=query,
        described=f"SELECT {_select(key | features)} {from_good}" if features else None,
        context=context,
        types=counted_types,
        extras=tuple(role for role in (*TYPES, "impression_id") if role in source.roles),
        marks=tuple(role for role in source.roles if role.startswith(MARK)),
        titled="title" in source.roles,
        rows=good - events,
        time_unit=unit,
        bad_rows=bad_rows,
        events=events,
        dropped=dropped,
    )


def _without_users(engine: Engine, source: Source, file: str | None) -> tuple[Source, int]:
    """The source without the rows of the users that a file lists, and how many rows they have."""
    if file is None:
        return source, 0
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8"
        raise BadInput(f"drop_users {file}: cannot be read ({reason})", field="drop_users") from None
    ids = ", ".join(literal(line.strip()) for line in lines if line.strip())
    if not ids:
        return source, 0
    before, user = source.derive, source.roles["user"]
    if user.ids is not None:
        raise BadInput(
            f"drop_users: ids of type {user.ids.type} cannot be listed in a file", field="drop_users"
        )
    listed = f"COALESCE(trim(CAST({user.sql} AS STRING)) IN ({ids}), FALSE)"

    def derive(relation: str, keep: str) -> str:
        return f"(SELECT * FROM {before(relation, keep)} AS of_users WHERE NOT {listed})"

    relation = before(engine.scan(source.scan), "")
    return replace(source, derive=derive), _count(
        engine, f"SELECT 1 AS one FROM {relation} AS source WHERE {listed}"
    )


def _with_types(engine: Engine, source: Source, types: EventTypes) -> tuple[Source, EventCounts]:
    """The source without the events of ignored types, and what all types mean. A type that is not declared is
    an error."""
    relation = source.derive(engine.scan(source.scan), "")
    before = EventCounts() if source.origin is None else source.origin.types
    present = f"WHERE {types.column.sql} IS NOT NULL AND {types.text} <> ''"
    rows = engine.arrow(
        f"SELECT {types.text} AS type, count(*) AS n FROM {relation} AS source {present} "
        f"GROUP BY {types.text} ORDER BY type"
    ).to_pylist()
    counts = {row["type"]: row["n"] for row in rows}
    if types.of_log:
        types = replace(types, context=tuple(sorted(counts)))
    declared = {*types.target, *types.context, *types.shown, *types.ignored}
    for kind, count in counts.items():
        if kind not in declared:
            raise BadInput(
                f"{source.name}, column {types.column.name!r}: {count:,} events of the type {kind!r}, which "
                "is not declared; say what it is with --target, --context, --shown or --ignore",
                field="type",
            )
    ignored = {kind: counts.get(kind, 0) for kind in types.ignored}
    derive = source.derive
    if any(ignored.values()):

        def derive(relation: str, keep: str) -> str:
            kept = f"NOT {types.one_of(types.ignored)}"
            return f"(SELECT * FROM {source.derive(relation, keep)} AS typed WHERE {kept})"

    context = dict.fromkeys(types.context, 0)  # they are counted when duplicates are removed
    meaning = EventCounts(target=types.target, shown=types.shown, context=context, ignored=ignored)
    if types.of_log:
        meaning = replace(before, context=context)
    return replace(source, types=types, derive=derive), meaning


def _count(engine: Engine, query: str | None) -> int:
    """The number of rows of a query; none without one."""
    if query is None:
        return 0
    return int(engine.arrow(f"SELECT count(*) AS n FROM ({query}) AS counted")["n"][0].as_py())


def _kind_of_event(types: EventTypes | None) -> str | None:
    """SQL of the position of a row's type among the context types, null for any other row."""
    if types is None or not types.context:
        return None
    cases = " ".join(f"WHEN {literal(kind)} THEN {place}" for place, kind in enumerate(types.context))
    return f"CAST(CASE {types.text} {cases} END AS INT)"


def _whole_ticks(unit: str) -> tuple[int, str]:
    """By how much times with fractions are multiplied, and their unit then. Fractions of seconds or
    milliseconds are kept as whole microseconds; finer ones are rounded."""
    scale = {"seconds": 10**6, "milliseconds": 10**3}.get(unit, 1)
    return scale, "nanoseconds" if unit == "nanoseconds" else "microseconds"


def _unit_check(column: Column, time: str, usual: str) -> Check:
    """The condition that a time is given in the unit of most rows, or is too small to tell its unit."""
    low, high = UNITS[usual]
    condition = f"({time} < {UNITS['seconds'][0]} OR ({time} >= {low} AND {time} < {high}))"
    return Check(column, condition, f"{usual} since 1970, as in most rows")


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
        x = source.roles["impression_id"].sql
        if source.roles["impression_id"].kind == "float":
            x = f"CASE WHEN NOT isnan({x}) THEN {x} END"
        values["impression_id"] = f"NULLIF(trim(CAST({x} AS STRING)), '')"
    if "title" in source.roles:
        values["title"] = _present(source.roles["title"])
    return values


def _units(time: str) -> list[str]:
    """For each unit, the condition that a time looks as if it were given in it."""
    return [f"{time} >= {low} AND {time} < {high}" for low, high in UNITS.values()]


def _is_id(column: Column) -> str:
    """The condition that a value is there and not blank."""
    x = column.sql
    blank = {"text": f" AND trim({x}) <> ''", "float": f" AND NOT isnan({x})"}.get(column.kind, "")
    return f"{x} IS NOT NULL{blank}"


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
    raise BadInput(f"column {column.name!r}: expected numbers, found {column.kind} values", field="column")


def _number_checks(source: Source) -> list[Check]:
    """The conditions for the label and the optional roles."""
    checks = []
    if source.types is not None and not source.types.of_log:
        checks.append(Check(source.types.column, _is_id(source.types.column), "a type of event"))
    for role, column in source.roles.items():
        if role == "label":
            checks.append(_label_check(source, column))
            continue
        name = "exposed" if role.startswith(MARK) else role
        if name in _NUMBERS:
            condition, expected = _NUMBERS[name]
            checks.append(Check(column, condition.format(_number(column)), expected))
    return checks


_NUMBERS = {
    "propensity": ("{0} > 0 AND {0} <= 1", "a probability above 0 and at most 1"),
    "exposed": ("{0} IN (0, 1)", "0 or 1"),
    "position": ("{0} BETWEEN 0 AND 2147483647 AND {0} = floor({0})", "a whole number of at least 0"),
}


def _label_check(source: Source, column: Column) -> Check:
    """The condition for the label."""
    if isinstance(source.positive, str):
        return Check(column, _is_id(column), f"a label, such as {_words(source.positive)[0]}")
    number = _number(column)
    if source.labels is not None:
        low, high = source.labels
        return Check(column, f"{number} BETWEEN {low} AND {high}", f"a label from {low:g} to {high:g}")
    if source.positive is not None:
        return Check(column, f"{number} BETWEEN -1e300 AND 1e300", "a finite number")
    expected = f"the label 0 or 1 (or say with --positive which ones are positive: {POSITIVE})"
    return Check(column, f"{number} IN (0, 1)", expected)


def _label(source: Source) -> str:
    """1 where the row is a positive, and 0 where it is not."""
    if source.types is not None and not source.types.of_log:
        return f"CAST(CASE WHEN {source.types.one_of(source.types.target)} THEN 1 ELSE 0 END AS TINYINT)"
    if "label" not in source.roles:
        return "CAST(1 AS TINYINT)"
    if isinstance(source.positive, str):
        words = ", ".join(map(literal, _words(source.positive)))
        condition = f"trim(CAST({source.roles['label'].sql} AS STRING)) IN ({words})"
    else:
        threshold = 1 if source.positive is None else source.positive
        condition = f"{_number(source.roles['label'])} >= {threshold!r}"
    return f"CAST(CASE WHEN {condition} THEN 1 ELSE 0 END AS TINYINT)"


def _words(positive: str) -> list[str]:
    """The labels that the caller calls positive."""
    words = [word.strip() for word in positive.split(",") if word.strip()]
    if not words:
        raise BadInput(f"positive {positive!r}: expected {POSITIVE}", field="positive")
    return words


def labels_found(engine: Engine, source: Source) -> str:
    """Up to eight of the labels in the source, for the error message when none of them is positive."""
    column = source.roles["label"]
    query = (
        f"SELECT DISTINCT CAST({column.sql} AS STRING) AS label FROM "
        f"{source.derive(engine.scan(source.scan), '')} AS source LIMIT 8"
    )
    return ", ".join(sorted(repr(label) for label in engine.arrow(query)["label"].to_pylist()))
