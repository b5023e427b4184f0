"""Leaving erased users out of a log that is read: those on the list beside the folder that is written, and
those on the list of the store that a Parquet file was exported from, as long as both are where they were."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from unskew.data.log.clock import Clock
from unskew.data.log.erasures import NOT_ERASED, Erasures, moments_of
from unskew.data.reading.checks import Checked
from unskew.data.reading.columns import Source
from unskew.data.reading.engines import Engine, literal

EXPORTED = b"unskew.erased"  # in the metadata of an exported Parquet file: where the list of its store is


def lists_of(source: Source) -> list[Path]:
    """The lists of erased users that the files of a source name."""
    if source.scan.kind != "parquet":
        return []
    names = [(pq.read_schema(file).metadata or {}).get(EXPORTED) for file in source.scan.files]
    return [Path(name.decode()) for name in dict.fromkeys(names) if name]


def leave_out(engine: Engine, checked: Checked, source: Source, erasures: Erasures) -> Checked:
    """The same without what erased users did up to the moment of the erasure."""
    if not erasures:
        return checked
    every = " UNION ALL ".join(
        f"SELECT u, t FROM ({query}) AS part" for query in (checked.query, checked.context) if query
    )
    table = engine.arrow(f"SELECT u, MIN(t) AS low, MAX(t) AS high FROM ({every}) AS every GROUP BY u")
    ids, known = table["u"].combine_chunks(), source.roles["user"].ids
    names = ids if known is None else known.take(ids)
    clock = Clock.of(min(table["low"].to_pylist()), max(table["high"].to_pylist()), checked.time_unit)
    until = moments_of(names, clock, erasures)
    if until is None:
        return checked
    gone = [(ids[code], int(moment)) for code, moment in enumerate(until) if moment > NOT_ERASED]
    return _filtered(engine, checked, gone)


def _filtered(engine: Engine, checked: Checked, gone: list[tuple[pa.Scalar, int]]) -> Checked:
    rows = ", ".join(f"({_sql_of(user)}, {moment})" for user, moment in gone)
    erased = (
        f"SELECT 1 FROM (VALUES {rows}) AS erased(id, until) WHERE erased.id = kept.u AND kept.t <= until"
    )

    def without(query: str | None) -> str | None:
        return None if query is None else f"SELECT * FROM ({query}) AS kept WHERE NOT EXISTS ({erased})"

    def count(query: str | None) -> int:
        if query is None:
            return 0
        return int(engine.arrow(f"SELECT count(*) AS n FROM ({query}) AS counted")["n"][0].as_py())

    query, context = without(checked.query), without(checked.context)
    assert query is not None
    described = without(checked.described)
    return replace(
        checked, query=query, context=context, described=described, rows=count(query), events=count(context)
    )


def _sql_of(user: pa.Scalar) -> str:
    value = user.as_py()
    return literal(value) if isinstance(value, str) else str(value)
