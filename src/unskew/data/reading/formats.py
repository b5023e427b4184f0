"""What kind of source is it: a file (and in which format), a table in memory, or a log?"""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from unskew.core.errors import BadInput
from unskew.core.storage import address_of
from unskew.data.log.folder import is_prepared
from unskew.data.log.live import Live
from unskew.data.log.log import Log
from unskew.data.log.preparation import Format, Reading
from unskew.data.reading.columns import Source, columns_of
from unskew.data.reading.datasets import amazon, amazon_columns, is_amazon_rating, kuairand, mind, open_bandit
from unskew.data.reading.engines import Scan
from unskew.data.reading.files import (
    KINDS,
    check_same,
    files_of,
    first_lines,
    header,
    json_schema,
    parquet_schema,
    suffix,
)


def recognise(source: Any, reading: Reading) -> Source:
    """Find out what the source is and where its roles are. Of a text file, only the first lines are read.

    `source` is a file, a folder, a pattern, a table in memory, a prepared folder or a `Log`.
    """
    found = _recognise(source, reading)
    return found if reading.name is None else replace(found, name=reading.name)


def _recognise(source: Any, reading: Reading) -> Source:
    if isinstance(source, str | os.PathLike) and is_prepared(Path(source)):
        source = Log.open(source)
    if isinstance(source, Log | Live):
        recognised = columns_of(_table_scan(source.table()), reading, source.metadata.source)
        return replace(recognised, origin=source.metadata)
    if not isinstance(source, str | os.PathLike):
        return columns_of(_table_scan(source), reading, "the table")
    name = os.fspath(source)
    files = files_of(address_of(name) or str(Path(name).expanduser()))
    form = reading.format if reading.format != "auto" else _guess(files)
    files = _of_format(files, form)
    if form == "mind":
        return mind(name, files, reading)
    scan = _file_scan(files, form, reading)
    if form == "openbandit":
        return open_bandit(name, scan, reading)
    found = columns_of(scan, reading, name)
    if form == "kuairand":
        return kuairand(found)
    return amazon(found) if form == "amazon" else found


def _guess(files: list[str]) -> Format:
    """The format, from the names of the files and the first line of the first one."""
    names = [Path(file).name for file in files]
    if any(name.startswith("behaviors.tsv") for name in names):
        return "mind"
    if any(name.startswith("item_context.csv") for name in names):
        return "openbandit"
    if any(name.startswith(("log_standard", "log_random")) for name in names):
        return "kuairand"
    kind = KINDS.get(suffix(files[0]), "text")
    if kind != "text":
        return "parquet" if kind == "parquet" else "json"
    if suffix(files[0]) == ".inter":
        return "inter"
    first = first_lines(files[0], 1)[0]
    if "user_feature_0" in first and "propensity_score" in first:
        return "openbandit"
    return "amazon" if is_amazon_rating(first.split(",")) else "csv"


def _of_format(files: list[str], form: Format) -> list[str]:
    """The files that hold the log; a folder of a published data set has others, too."""
    starts = {"mind": ("behaviors",), "kuairand": ("log_standard", "log_random")}.get(form, ("",))
    chosen = [
        file
        for file in files
        if Path(file).name.startswith(starts) and not Path(file).name.startswith("item_context")
    ]
    return chosen if len(files) > 1 and chosen else files


def _file_scan(files: list[str], form: Format, reading: Reading) -> Scan:
    """How to read files of one kind, which must all have the same columns."""
    kinds = {KINDS.get(suffix(file), "text") for file in files}
    if len(kinds) > 1:
        raise BadInput(
            f"{files[0]}: lies among files of other kinds; read one kind at a time, with a pattern such as "
            "'logs/*.csv'"
        )
    kind = form if form in ("parquet", "json") else "text" if form in ("csv", "inter") else kinds.pop()
    if kind == "parquet":
        schemas = [parquet_schema(file) for file in files]
        check_same([[f"{field.name} {field.type}" for field in schema] for schema in schemas], files)
        return Scan("parquet", schemas[0], schemas[0].names, tuple(files))
    if kind == "json":
        schema = json_schema(files)
        return Scan("json", schema, schema.names, tuple(files), tolerant=reading.skip_bad_rows)
    return replace(_text_scan(files, form, reading), tolerant=reading.skip_bad_rows)


def _text_scan(files: list[str], form: Format, reading: Reading) -> Scan:
    """How to read text files: the separator, and the columns from the header or from the caller."""
    first = first_lines(files[0], 1)[0]
    delimiter = (reading.delimiter or max(("\t", ",", ";", "|"), key=first.count)).replace("\\t", "\t")
    fields = header(files[0], delimiter)
    if form == "amazon" and is_amazon_rating(fields):
        return _text(files, amazon_columns(fields), delimiter, header=False)
    if len(fields) < 2:
        separators = "expected fields between commas, tabs, semicolons or bars, or what --delimiter says"
        raise BadInput(f"{files[0]}, line 1: one single column, {first[:80]!r}; {separators}")
    if reading.columns is not None:
        names = [name.strip() for name in reading.columns.split(",")]
        if len(names) != len(fields):
            raise BadInput(f"{files[0]}, line 1: {len(fields)} fields, but --columns names {len(names)}")
        return _text(files, names, delimiter, header=False)
    check_same([header(file, delimiter) for file in files], files)
    if not any(first_lines(file, 2)[1:] for file in files):
        raise BadInput(f"{files[0]}: a header and no rows")
    return _text(files, fields, delimiter)


def _text(files: list[str], names: list[str], delimiter: str, header: bool = True) -> Scan:
    # SQL sees positions instead of names, because names may be equal or differ in case only.
    return Scan(
        "text",
        pa.schema([(f"c{place}", pa.string()) for place in range(len(names))]),
        names,
        tuple(files),
        delimiter,
        header=header,
    )


def _table_scan(table: Any) -> Scan:
    """How to read a table in memory, of any library that Arrow understands."""
    if hasattr(table, "collect") and not hasattr(table, "__arrow_c_stream__"):
        raise BadInput(f"expected a table, found a lazy {type(table).__name__}: call .collect() first")
    try:
        arrow = table if isinstance(table, pa.Table) else pa.table(table)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise BadInput(
            f"expected a path or a table that Arrow can read, found {type(table).__name__} ({error})"
        ) from None
    if not arrow.num_rows:
        raise BadInput("the table: no rows")
    names = arrow.column_names
    places = arrow.rename_columns([f"c{place}" for place in range(len(names))])
    return Scan("table", places.schema, names, table=places)
