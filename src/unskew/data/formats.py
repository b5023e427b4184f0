"""Which file is it, and where in it are user, item, time and label? Each format answers with SQL over its own columns."""

import glob
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from unskew.data.engines import FILE, Scan, identifier
from unskew.data.log import Log
from unskew.errors import BadInput

Format = Literal["auto", "csv", "parquet", "json", "inter", "mind", "amazon", "kuairand", "openbandit"]

ROLES = ("user", "item", "time", "label", "propensity", "exposed", "position", "title")
REQUIRED = ("user", "item", "time")

# Names that people give to the roles, in order of preference; compared without case.
ALIASES = {
    "user": ("user", "user_id", "userid", "uid", "reviewerid", "visitorid", "customer_id", "session_id"),
    "item": ("item", "item_id", "itemid", "iid", "movieid", "movie_id", "video_id", "parent_asin", "asin", "product_id", "news_id", "sku"),
    "time": ("time", "time_ms", "timestamp", "ts", "unixreviewtime", "event_time", "datetime", "date"),
    "label": ("label", "click", "is_click", "clicked", "rating", "overall"),
    "propensity": ("propensity", "propensity_score", "pscore"),
    "exposed": ("exposed", "is_rand", "exposed_at_random"),
    "position": ("position",),
    "title": ("title",),
}
KINDS = {".csv": "text", ".tsv": "text", ".txt": "text", ".dat": "text", ".inter": "text"} | dict.fromkeys((".parquet", ".pq"), "parquet")
KINDS |= dict.fromkeys((".json", ".jsonl", ".ndjson"), "json")


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a log is read: its format, its columns, and what counts as positive."""

    format: Format = "auto"
    """What the source is; `auto` recognises it by its names and its header."""
    user: str | None = None
    """Column of the user id. The columns are guessed from the usual names where not given."""
    item: str | None = None
    """Column of the item id."""
    time: str | None = None
    """Column of the time: a number, an ISO date or a timestamp."""
    label: str | None = None
    """Column of the label. Without one, every row is a positive."""
    propensity: str | None = None
    """Column of the logged probability of exposure."""
    exposed: str | None = None
    """Column that is 1 where the item was exposed at random."""
    position: str | None = None
    """Column of the place on the page."""
    title: str | None = None
    """Column of the item's title."""
    positive: float | None = None
    """Labels of at least this are positive. Without it, labels must be 0 or 1."""
    delimiter: str | None = None
    """What stands between the fields of a text file; guessed from its first line where not given."""
    name: str | None = None
    """What reports call the log; by default, where it came from."""
    skip_bad_rows: bool = False
    """Set rows that cannot be read aside, with their reasons, instead of stopping at the first."""


Kind = Literal["text", "int", "float", "moment", "bool", "other"]
Derive = Callable[[str, str], str]


@dataclass(frozen=True)
class Column:
    """A role: the SQL that gives its value, the type of that value, and the name to use in a complaint."""

    sql: str
    kind: Kind
    name: str


def _as_it_is(relation: str, keep: str) -> str:
    return relation


@dataclass(frozen=True, eq=False)
class Source:
    name: str
    scan: Scan
    roles: dict[str, Column]
    positive: float | None = None
    labels: tuple[float, float] | None = None  # the range that labels of this format have
    origin: dict[str, Any] = field(default_factory=dict)  # what an earlier log already knew of itself
    derive: Derive = field(default=_as_it_is)  # (relation, columns to keep) -> the relation that the roles are columns of


def recognise(source: Any, reading: Reading) -> Source:
    """Find out what the source is and where its roles are; nothing but the first lines is read."""
    found = _recognise(source, reading)
    return found if reading.name is None else replace(found, name=reading.name)


def _recognise(source: Any, reading: Reading) -> Source:
    if isinstance(source, Log):
        found = _columns(_table_scan(source.table()), reading, source.facts.get("source", "the log"))
        return replace(found, origin=source.facts)
    if not isinstance(source, str | os.PathLike):
        return _columns(_table_scan(source), reading, "the table")
    name = os.fspath(source)
    files = _files(name)
    form = reading.format if reading.format != "auto" else _guess(files)
    files = _of_format(files, form)
    if form == "mind":
        return _mind(name, files, reading)
    scan = _file_scan(files, form, reading)
    if form == "openbandit":
        return _open_bandit(name, scan, reading)
    found = _columns(scan, reading, name)
    if form == "kuairand" and "exposed" not in found.roles:
        found.roles["exposed"] = Column(f"CASE WHEN {FILE} LIKE '%log_random%' THEN 1 ELSE 0 END", "int", "the file's name")
    if form == "amazon":
        return replace(found, positive=4 if reading.positive is None else reading.positive, labels=(1, 5))
    return found


def _columns(scan: Scan, reading: Reading, name: str) -> Source:
    """The roles of a plain table: as the caller says, else by the usual names."""
    names = scan.schema.names
    simple = {column.split(":")[0].strip().lower(): column for column in reversed(names)}
    roles: dict[str, Column] = {}
    for role in ROLES:
        wanted: str | None = getattr(reading, role)
        column = wanted if wanted is not None else next((simple[alias] for alias in ALIASES[role] if alias in simple), None)
        if column is None and role not in REQUIRED:
            continue
        if column is None or column not in names:
            asked = f"no column {wanted!r}" if wanted is not None else f"no column for the {role}"
            raise BadInput(f"{name}: {asked}; expected one of {', '.join(map(repr, names))}, named with --{role} or {role}=")
        roles[role] = Column(identifier(column), _kind(scan.schema.field(column).type, name, column), column)
    return Source(name, scan, roles, positive=reading.positive)


def _mind(name: str, files: list[str], reading: Reading) -> Source:
    """MIND's behaviors.tsv: impressions `N1-0 N2-1` (shown, clicked), and the clicks before the log began, in order but undated."""
    columns = ("impression", "user", "time", "history", "impressions")
    scan = Scan("text", _strings(columns), tuple(files), "\t", "", header=False, tolerant=reading.skip_bad_rows)
    _check_width(files[0], len(columns), "\t")

    def derive(relation: str, keep: str) -> str:
        seconds = 'CAST(unix_micros(american_time("time")) / 1000000 AS BIGINT)'
        shown = f'(SELECT "user", history, impressions{keep}, {seconds} AS t FROM {relation})'
        pair = "'^(.*)-([01])$'"
        # The history of a user is dated one second per click, ending just before the first impression of the whole log.
        return f"""(
            SELECT "user", regexp_extract(shown, {pair}, 1) AS item, t,
                TRY_CAST(regexp_extract(shown, {pair}, 2) AS DOUBLE) AS clicked{keep}
            FROM (SELECT "user", t{keep}, explode(split(impressions, ' ')) AS shown FROM {shown} AS impression) AS pairs
            UNION ALL
            SELECT "user", split_part(history, ' ', k) AS item, first - words + k - 1 AS t, 1.0 AS clicked{keep.replace("row", "0 AS row")}
            FROM (
                SELECT "user", history, words, first, explode(sequence(1, words)) AS k
                FROM (
                    SELECT "user", history, length(history) - length(replace(history, ' ', '')) + 1 AS words
                    FROM (SELECT "user", min_by(history, t) AS history FROM {shown} AS a GROUP BY "user") AS b
                    WHERE history IS NOT NULL
                ) AS past CROSS JOIN (SELECT min(t) AS first FROM {shown} AS c) AS start
            ) AS clicks
        )"""

    roles = {"user": Column('"user"', "text", "user"), "item": Column("item", "text", "impressions")}
    roles |= {"time": Column("t", "int", "time"), "label": Column("clicked", "float", "impressions")}
    return Source(name, scan, roles, derive=derive)


def _open_bandit(name: str, scan: Scan, reading: Reading) -> Source:
    """Open Bandit has no users, only features: everyone with the same features is one user."""
    features = [column for column in scan.schema.names if column.startswith("user_feature_")]
    if not features and reading.user is None:
        raise BadInput(f"{name}: no columns 'user_feature_*', so this is not Open Bandit; name the format and the columns")
    found = _columns(scan, replace(reading, user=reading.user or features[0]), name)
    if reading.user is None:
        found.roles["user"] = Column(f"concat_ws('|', {', '.join(map(identifier, features))})", "text", "user_feature_*")
    if "exposed" not in found.roles:
        found.roles["exposed"] = Column(f"CASE WHEN {FILE} LIKE '%/random/%' THEN 1 ELSE 0 END", "int", "the folder's name")
    return found


# --- files -------------------------------------------------------------------------------------------------------------


def _files(name: str) -> list[str]:
    path = Path(name)
    if path.is_dir():
        try:
            found = sorted(str(file) for file in path.rglob("*") if file.is_file() and _suffix(file) in KINDS and file.name[0] not in "._")
        except PermissionError as error:
            raise BadInput(f"{error.filename}: no permission to read it") from None
        if not found:
            raise BadInput(f"{name}: no csv, tsv, parquet, json or inter file in this folder")
        return found
    found = [name] if path.is_file() else sorted(glob.glob(name, recursive=True))  # noqa: PTH207 (absolute patterns)
    if not found:
        raise BadInput(f"{name}: no such file, folder or pattern")
    return found


def _suffix(file: str | Path) -> str:
    return Path(str(file).removesuffix(".gz")).suffix.lower()


def _guess(files: list[str]) -> Format:
    names = [Path(file).name for file in files]
    if any(name.startswith("behaviors.tsv") for name in names):
        return "mind"
    if any(name.startswith("item_context.csv") for name in names):
        return "openbandit"
    if any(name.startswith(("log_standard", "log_random")) for name in names):
        return "kuairand"
    kind = KINDS.get(_suffix(files[0]), "text")
    if kind != "text":
        return "parquet" if kind == "parquet" else "json"
    if _suffix(files[0]) == ".inter":
        return "inter"
    first = _first_lines(files[0], 1)[0]
    if "user_feature_0" in first and "propensity_score" in first:
        return "openbandit"
    return "amazon" if _is_amazon_rating(first.split(",")) else "csv"


def _of_format(files: list[str], form: Format) -> list[str]:
    """Of a folder, the files that hold the log."""
    starts = {"mind": ("behaviors",), "kuairand": ("log_standard", "log_random")}.get(form, ("",))
    chosen = [file for file in files if Path(file).name.startswith(starts) and not Path(file).name.startswith("item_context")]
    return chosen if len(files) > 1 and chosen else files


def _file_scan(files: list[str], form: Format, reading: Reading) -> Scan:
    kind = (
        KINDS.get(_suffix(files[0]), "text")
        if form in ("auto", "amazon", "kuairand")
        else {"parquet": "parquet", "json": "json"}.get(form, "text")
    )
    if kind == "parquet":
        schemas = [_parquet_schema(file) for file in files]
        _same([schema.names for schema in schemas], files)
        return Scan("parquet", schemas[0], tuple(files))
    if kind == "json":
        schemas = [_json_schema(file) for file in files[:1]]
        return Scan("json", schemas[0], tuple(files), tolerant=reading.skip_bad_rows)
    first = _first_lines(files[0], 1)[0]
    delimiter = reading.delimiter or max(("\t", ",", ";", "|"), key=first.count)
    if form == "amazon" and _is_amazon_rating(first.split(delimiter)):
        return Scan(
            "text", _strings(_amazon_columns(first.split(delimiter))), tuple(files), delimiter, header=False, tolerant=reading.skip_bad_rows
        )
    names = _header(first, delimiter)
    if len(names) < 2:
        separators = "expected fields between commas, tabs, semicolons or bars, or what --delimiter says"
        raise BadInput(f"{files[0]}, line 1: one single column, {first[:80]!r}; {separators}")
    _same([_header(_first_lines(file, 1)[0], delimiter) for file in files], files)
    if not any(_first_lines(file, 2)[1:] for file in files):
        raise BadInput(f"{files[0]}: a header and no rows")
    return Scan("text", _strings(names), tuple(files), delimiter, tolerant=reading.skip_bad_rows)


def _header(line: str, delimiter: str) -> list[str]:
    names = [name.strip().strip('"') for name in line.split(delimiter)]
    return [name or f"column_{place}" for place, name in enumerate(names)]


def opened(file: str) -> BinaryIO:
    """The bytes of a file, decompressed where its name says so."""
    return cast(BinaryIO, gzip.open(file)) if file.endswith(".gz") else Path(file).open("rb")


def _first_lines(file: str, count: int) -> list[str]:
    """The first lines that are not blank, as text."""
    lines: list[str] = []
    try:
        with opened(file) as stream:
            for number, raw in enumerate(stream, 1):
                try:
                    line = raw.decode("utf-8-sig").rstrip("\r\n")
                except UnicodeDecodeError:
                    raise BadInput(f"{file}, line {number}: bytes that are not UTF-8") from None
                if line.strip():
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


def _check_width(file: str, expected: int, delimiter: str) -> None:
    fields = _first_lines(file, 1)[0].split(delimiter)
    if len(fields) != expected:
        raise BadInput(
            f"{file}, line 1: expected {expected} fields between tabs (impression, user, time, history, impressions), found {len(fields)}"
        )


def _same(names: Iterable[list[str]], files: list[str]) -> None:
    for file, other in zip(files, names := list(names), strict=False):
        if other != names[0]:
            raise BadInput(
                f"{file}: its columns are not those of {files[0]}; read one kind of file at a time, with a pattern such as 'log_*.csv'"
            )


def _is_amazon_rating(fields: list[str]) -> bool:
    return len(fields) == 4 and bool(re.fullmatch(r"[1-5](\.0)?", fields[2])) and fields[3].strip().isdigit()


def _amazon_columns(fields: list[str]) -> tuple[str, ...]:
    # The 2014 files put the user first, the 2018 files the item. A product code has exactly ten characters; no reviewer's has.
    return ("item", "user", "rating", "timestamp") if len(fields[0]) == 10 != len(fields[1]) else ("user", "item", "rating", "timestamp")


def _parquet_schema(file: str) -> pa.Schema:
    try:
        return pq.read_schema(file)
    except (pa.ArrowInvalid, OSError) as error:
        raise BadInput(f"{file}: not a readable Parquet file ({str(error).splitlines()[0]})") from None


def _json_schema(file: str) -> pa.Schema:
    """Types by the first record; a later one that does not fit is found when it is read."""
    try:
        record = json.loads(_first_lines(file, 1)[0])
    except ValueError as error:
        raise BadInput(f"{file}, line 1: not JSON ({error}); expected one object a line") from None
    if not isinstance(record, dict):
        raise BadInput(f"{file}, line 1: expected one object a line, found {type(record).__name__}")
    types = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    return pa.schema([(key, types[type(value)]) for key, value in record.items() if type(value) in types])


def _table_scan(table: Any) -> Scan:
    try:
        arrow = table if isinstance(table, pa.Table) else pa.table(table)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise BadInput(f"expected a path or a table that Arrow can read, found {type(table).__name__} ({error})") from None
    if not arrow.num_rows:
        raise BadInput("the table: no rows")
    return Scan("table", arrow.schema, table=arrow)


def _strings(names: Iterable[str]) -> pa.Schema:
    names = list(names)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadInput(f"two columns are named {twice!r}")
    return pa.schema([(name, pa.string()) for name in names])


def _kind(kind: pa.DataType, name: str, column: str) -> Kind:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[tuple[Kind, tuple[Callable[[pa.DataType], bool], ...]]] = [
        ("text", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
        ("int", (pa.types.is_integer,)),
        ("float", (pa.types.is_floating, pa.types.is_decimal)),
        ("moment", (pa.types.is_timestamp, pa.types.is_date)),
        ("bool", (pa.types.is_boolean,)),
    ]
    if pa.types.is_nested(kind):
        raise BadInput(f"{name}, column {column!r}: expected plain values, found {kind}")
    return next((found for found, checks in tests if any(check(kind) for check in checks)), "other")
