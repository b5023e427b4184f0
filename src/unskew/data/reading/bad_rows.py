"""Bad rows: in which file and line they are, and what to say about them."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from unskew.data.reading.columns import Column, Source
from unskew.data.reading.engines import FILE, ROW, Engine
from unskew.data.reading.files import opened


@dataclass(frozen=True)
class Check:
    """A condition that every row must meet."""

    column: Column
    good: str  # SQL
    expected: str  # in words

    @property
    def bad(self) -> str:
        """SQL of the opposite. A condition on a missing value is not met."""
        return f"NOT COALESCE({self.good}, FALSE)"


@dataclass(frozen=True)
class BadRow:
    """One row of bad_rows.csv. `column` is empty where the whole line could not be parsed."""

    file: str
    line: int | None
    column: str
    expected: str
    value: str | None


def locate(engine: Engine, source: Source, checks: list[Check], most: int | None) -> list[BadRow]:
    """The bad rows in the order of their files, each with the first condition that it does not meet.

    This reads the source again, so it is only called when there are bad rows. `most` limits how many rows are
    located.
    """
    bad = " OR ".join(check.bad for check in checks)
    reasons = " ".join(f"WHEN {check.bad} THEN {place}" for place, check in enumerate(checks))
    values = " ".join(f"WHEN {check.bad} THEN CAST({check.column.sql} AS STRING)" for check in checks)
    limit = "" if most is None else f" LIMIT {most}"
    files: list[str | None] = [None]
    if source.scan.table is None and engine.numbered(source.scan, None) is not None:
        relation = source.derive(engine.scan(source.scan), f", {FILE}")
        query = f"SELECT DISTINCT {FILE} AS file FROM {relation} AS source WHERE {bad} ORDER BY file{limit}"
        files = engine.arrow(query)["file"].to_pylist()
    located = []
    for file in files:
        numbered = engine.numbered(source.scan, file)
        if numbered is None:
            place, relation = "NULL", source.derive(engine.scan(source.scan), "")
        else:
            place, relation = ROW, source.derive(numbered, f", {ROW}")
        rows = engine.arrow(
            f"SELECT {place} AS place, CASE {reasons} END AS reason, CASE {values} END AS value "
            f"FROM {relation} AS source WHERE {bad} ORDER BY place{limit}"
        ).to_pylist()
        unparsed = {gap.record for gap in engine.unparsed() if gap.file == file}
        lines = _lines(source, file, [row["place"] for row in rows], unparsed)
        for row, line in zip(rows, lines, strict=True):
            check = checks[row["reason"]]
            name = file or source.name
            located.append(BadRow(name, line, check.column.name, check.expected, row["value"]))
    return located


def _records(source: Source, file: str) -> Iterator[tuple[int, bool]]:
    """For each record of a text file, the line where it begins and whether it is blank. A line break inside
    quotes does not end a record, so records and lines are counted differently."""
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


def line_of_record(source: Source, file: str, record: int) -> int:
    """The line where a record begins. Records are counted from 1, with the header and blank ones."""
    return next(
        (line for number, (line, _) in enumerate(_records(source, file), 1) if number == record), record
    )


def _lines(source: Source, file: str | None, rows: list[int], unparsed: set[int]) -> list[int]:
    """The lines of some rows. Rows are counted from 1, without the header, blank records, and records that
    could not be parsed."""
    if file is None or source.scan.kind in ("parquet", "table"):
        return rows
    missing, lines = set(rows), dict[int, int]()
    row = -1 if source.scan.header and source.scan.kind == "text" else 0
    for number, (line, is_blank) in enumerate(_records(source, file), 1):
        if is_blank or number in unparsed:
            continue
        row += 1
        if row in missing:
            lines[row] = line
            missing.remove(row)
            if not missing:
                break
    return [lines.get(row, row) for row in rows]


def complaint(row: BadRow, source: Source) -> str:
    """The error message for a bad row."""
    if not row.column:
        return f"{row.file}, line {row.line}: {row.expected}"
    unit = "row" if source.scan.kind in ("parquet", "table") else "line"
    where = row.file if row.line is None else f"{row.file}, {unit} {row.line}"
    value = "nothing" if row.value is None else repr(row.value[:60])
    return f"{where}, column {row.column!r}: expected {row.expected}, found {value}"
