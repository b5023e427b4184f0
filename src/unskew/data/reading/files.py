"""Files: which ones a name stands for, their first lines, and their columns and types."""

import csv
import glob
import gzip
import json
import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from unskew.core.errors import BadInput
from unskew.core.storage import address_of, objects, open_bytes
from unskew.data.log.folder import is_prepared
from unskew.data.reading.engines import identifier, literal, register_stores

KINDS = {".csv": "text", ".tsv": "text", ".txt": "text", ".dat": "text", ".inter": "text"} | dict.fromkeys(
    (".parquet", ".pq"), "parquet"
)
KINDS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")
PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"PK": "a zip file", b"\x28\xb5\x2f\xfd": "zstandard"}


def files_of(name: str) -> list[str]:
    """The files that a name stands for, sorted: one file, all data files in a folder, or those that match a
    pattern."""
    if address := address_of(name):
        stored = [found for found in objects(address) if found == address or suffix(found) in KINDS]
        if not stored:
            raise BadInput(f"{address}: no object, and no csv, tsv, parquet, json or inter file below it")
        return stored
    path = Path(name)
    if path.is_dir():
        try:
            found = sorted(
                str(file)
                for file in path.rglob("*")
                if file.is_file() and suffix(file) in KINDS and _is_ours(file, path)
            )
        except PermissionError as error:
            raise BadInput(f"{error.filename}: no permission to read it") from None
        if not found:
            raise BadInput(f"{name}: no csv, tsv, parquet, json or inter file in this folder")
        return found
    # Not Path.glob: a pattern may be absolute.
    found = [name] if path.is_file() else sorted(glob.glob(name, recursive=True))  # noqa: PTH207
    if not found:
        raise BadInput(f"{name}: no such file, folder or pattern")
    return found


def _is_ours(file: Path, folder: Path) -> bool:
    """Whether a file in a folder may be part of the log. Hidden files and prepared folders are not."""
    inside = file.relative_to(folder).parts
    return not any(part[0] in "._" for part in inside) and not is_prepared(file.parent)


def suffix(file: str | Path) -> str:
    """The suffix of a file in lower case, without .gz."""
    return Path(re.sub(r"[.]gz$", "", str(file), flags=re.IGNORECASE)).suffix.lower()


def opened(file: str) -> BinaryIO:
    """The bytes of a file, decompressed if its name ends in .gz."""
    stream = open_bytes(file)
    return cast(BinaryIO, Decompressed(stream)) if file.lower().endswith(".gz") else stream


class Decompressed(gzip.GzipFile):
    """A compressed stream that is closed with what it reads from."""

    def __init__(self, stream: BinaryIO) -> None:
        super().__init__(fileobj=stream, mode="rb")
        self.stream = stream

    def close(self) -> None:
        """Close both."""
        super().close()
        self.stream.close()


def first_lines(file: str, count: int) -> list[str]:
    """The first `count` lines that are not blank, as text."""
    lines: list[str] = []
    try:
        with opened(file) as stream:
            for number, raw in enumerate(stream, 1):
                try:  # later lines are judged when they are read
                    text = raw.decode("utf-8", errors="replace" if lines else "strict")
                except UnicodeDecodeError:
                    packed = next((name for start, name in PACKED.items() if raw.startswith(start)), None)
                    said = (
                        f"bytes that are not UTF-8; it looks like {packed}, which only .gz files may be"
                        if packed
                        else "bytes that are not UTF-8"
                    )
                    raise BadInput(f"{file}, line {number}: {said}") from None
                line = text.removeprefix("\ufeff").rstrip("\r\n")
                if line.strip():
                    if number > 1 and not lines:
                        raise BadInput(f"{file}, line 1: blank; expected the first line of the table")
                    lines.append(line)
                if len(lines) == count:
                    return lines
    except (EOFError, zlib.error):
        raise BadInput(f"{file}: the gzip file is cut off; fetch it again") from None
    except OSError as error:
        raise BadInput(f"{file}: cannot be read ({error.strerror or error})") from None
    if not lines:
        raise BadInput(f"{file}: empty; expected a header and rows")
    return lines


def check_width(file: str, expected: int, delimiter: str) -> None:
    """Refuse a file of MIND whose first line has another number of fields."""
    fields = first_lines(file, 1)[0].split(delimiter)
    if len(fields) != expected:
        raise BadInput(
            f"{file}, line 1: expected {expected} fields between tabs (impression, user, time, history, "
            f"impressions), found {len(fields)}"
        )


def check_same(names: Iterable[list[str]], files: list[str]) -> None:
    """Refuse files whose columns are not those of the first file. `names` are the columns of each."""
    for file, other in zip(files, names := list(names), strict=False):
        if other != names[0]:
            raise BadInput(
                f"{file}: its columns are not those of {files[0]}; read one kind of file at a time, with a "
                "pattern such as 'log_*.csv'"
            )


def header(file: str, delimiter: str) -> list[str]:
    """The names of a text file's columns, from its first line."""
    line = first_lines(file, 1)[0]
    try:
        fields = (
            next(csv.reader([line], delimiter=delimiter)) if len(delimiter) == 1 else line.split(delimiter)
        )
    except csv.Error:  # a carriage return that ends no line, or a field without end
        said = "expected names between separators; a carriage return in the middle?"
        raise BadInput(f"{file}, line 1: the header cannot be read, {line[:80]!r}; {said}") from None
    return [name.strip() or f"column_{place}" for place, name in enumerate(fields)]


def parquet_schema(file: str) -> pa.Schema:
    """The names and types of the columns of a Parquet file."""
    try:
        with opened(file) as stream:
            return pq.read_schema(stream)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


def json_schema(files: list[str]) -> pa.Schema:
    """The names and types of the fields of JSON lines. The names come from the first 1000 records, the types
    from all of them, because a first record may lack a label, or have a whole number for a rating."""
    names: dict[str, None] = {}
    for number, line in enumerate(first_lines(files[0], 1000), 1):
        try:
            record = json.loads(line)
        except ValueError as error:
            if number > 1:
                continue  # a bad line, which is reported or set aside when the file is read
            raise BadInput(f"{files[0]}, line 1: not JSON ({error}); expected one object a line") from None
        if not isinstance(record, dict):
            raise BadInput(
                f"{files[0]}, line {number}: expected one object a line, found {type(record).__name__}"
            )
        names |= dict.fromkeys(key for key, value in record.items() if not isinstance(value, dict | list))
    listed = ", ".join(map(literal, files))
    columns = ", ".join(f"{literal(name)}: 'JSON'" for name in names)
    kinds = ", ".join(f"list(DISTINCT json_type({identifier(name)}))" for name in names)
    source = (
        f"read_json([{listed}], format = 'newline_delimited', columns = {{{columns}}}, ignore_errors = true)"
    )
    with duckdb.connect() as connection:
        register_stores(connection, files)
        try:
            found = connection.execute(f"SELECT {kinds} FROM {source}").fetchall()[0]
        except duckdb.Error as error:
            raise BadInput(f"{files[0]}: {str(error).splitlines()[0]}") from None
    return pa.schema(
        [(name, _json_type(set(kind) - {None, "NULL"})) for name, kind in zip(names, found, strict=True)]
    )


def _json_type(kinds: set[str]) -> pa.DataType:
    """The type of a field whose values have these types of DuckDB."""
    numbers = {"UBIGINT", "BIGINT"}
    if kinds <= numbers:
        return pa.int64()
    if kinds <= numbers | {"DOUBLE"}:
        return pa.float64()
    for kind, arrow in (("VARCHAR", pa.string()), ("BOOLEAN", pa.bool_())):
        if kinds == {kind}:
            return arrow
    return pa.struct([])  # values of several kinds, or nested ones: an error if the column is needed
