"""Which file is it, and where in it are user, item, time and label? Each format answers with SQL over its own
columns."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from unskew.data.engines import FILE, Scan, identifier
from unskew.data.files import (
    KINDS,
    check_same,
    check_width,
    files_of,
    first_lines,
    header,
    json_schema,
    parquet_schema,
    suffix,
)
from unskew.data.folder import is_prepared
from unskew.data.log import MARK, TESTS, Log
from unskew.errors import BadInput

Format = Literal["auto", "csv", "parquet", "json", "inter", "mind", "amazon", "kuairand", "openbandit"]

ROLES = ("user", "item", "time", "label", "propensity", "exposed", "position", "visit", "title")
REQUIRED = ("user", "item", "time")

# Names that people give to the roles, in order of preference; compared without case.
ALIASES = {
    "user": ("user", "user_id", "userid", "uid", "reviewerid", "visitorid", "customer_id", "session_id"),
    "item": (
        "item",
        "item_id",
        "itemid",
        "iid",
        "movieid",
        "movie_id",
        "video_id",
        "parent_asin",
        "asin",
        "product_id",
        "news_id",
        "sku",
    ),
    "time": ("time", "time_ms", "timestamp", "ts", "unixreviewtime", "event_time", "datetime", "date"),
    "label": ("label", "click", "is_click", "clicked", "rating", "overall"),
    "propensity": ("propensity", "propensity_score", "pscore"),
    "exposed": ("exposed", "is_rand", "exposed_at_random"),
    "position": ("position",),
    "visit": ("visit", "visit_id", "impression_id"),
    "title": ("title",),
}


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
    visit: str | None = None
    """Column of the visit or impression: rows of a user with the same value were shown together. Without one,
    rows of a user with the same time were."""
    tests: str | None = None
    """Columns, between commas, that are 1 where a row belongs to the test of that name: `--test NAME` then
    asks for these rows."""
    title: str | None = None
    """Column of the item's title."""
    positive: float | str | None = None
    """Which labels are positive: a number (labels of at least this), or words between commas, such as
    purchase,cart. Without it, labels must be 0 or 1."""
    delimiter: str | None = None
    """What stands between the fields of a text file; guessed from its first line where not given."""
    columns: str | None = None
    """Names of the columns, between commas, of a text file that has no header."""
    name: str | None = None
    """What reports call the log; by default, where it came from."""
    skip_bad_rows: bool = False
    """Set rows that cannot be read aside, with their reasons, instead of stopping at the first."""


Kind = Literal["text", "int", "float", "moment", "zoned", "bool", "other"]
Derive = Callable[[str, str], str]


@dataclass(frozen=True)
class Column:
    """A role: the SQL that gives its value, the kind of that value, and the name to use in a complaint."""

    sql: str
    kind: Kind
    name: str
    type: pa.DataType | None = None  # what ids must come back as; None: text
    ids: pa.Array | None = None  # of a type that SQL does not know: SQL sees places in here


def _as_it_is(relation: str, keep: str) -> str:
    return relation


@dataclass(frozen=True, eq=False)
class Source:
    name: str
    scan: Scan
    roles: dict[str, Column]
    positive: float | str | None = None
    labels: tuple[float, float] | None = None  # the range that labels of this format have
    origin: dict[str, Any] = field(default_factory=dict)  # what an earlier log already knew of itself
    derive: Derive = field(
        default=_as_it_is
    )  # (relation, columns to keep) -> the relation that the roles are columns of


def recognise(source: Any, reading: Reading) -> Source:
    """Find out what the source is and where its roles are; nothing but the first lines is read."""
    found = _recognise(source, reading)
    return found if reading.name is None else replace(found, name=reading.name)


def _recognise(source: Any, reading: Reading) -> Source:
    if isinstance(source, str | os.PathLike) and is_prepared(Path(source)):
        source = Log.open(source)
    if isinstance(source, Log):
        found = _columns(_table_scan(source.table()), reading, source.metadata.get("source", "the log"))
        return replace(found, origin=source.metadata)
    if not isinstance(source, str | os.PathLike):
        return _columns(_table_scan(source), reading, "the table")
    name = os.fspath(source)
    files = files_of(str(Path(name).expanduser()))
    form = reading.format if reading.format != "auto" else _guess(files)
    files = _of_format(files, form)
    if form == "mind":
        return _mind(name, files, reading)
    scan = _file_scan(files, form, reading)
    if form == "openbandit":
        return _open_bandit(name, scan, reading)
    found = _columns(scan, reading, name)
    if form == "kuairand" and "exposed" not in found.roles:
        at_random = f"regexp_like({FILE}, '(^|/)log_random[^/]*$')"
        found.roles["exposed"] = Column(f"CASE WHEN {at_random} THEN 1 ELSE 0 END", "int", "the file's name")
    if form == "amazon":
        return replace(found, positive=4 if reading.positive is None else reading.positive, labels=(1, 5))
    return found


def _columns(scan: Scan, reading: Reading, name: str) -> Source:
    """The roles of a plain table: as the caller says, else by the usual names."""
    names = scan.names
    simple = {column.split(":")[0].strip().lower(): column for column in reversed(names)}
    roles: dict[str, Column] = {}
    for role in ROLES:
        wanted: str | None = getattr(reading, role)
        column = (
            wanted
            if wanted is not None
            else next((simple[alias] for alias in ALIASES[role] if alias in simple), None)
        )
        if column is None and role not in REQUIRED:
            continue
        if column is None or column not in names:
            asked = f"no column {wanted!r}" if wanted is not None else f"no column for the {role}"
            raise BadInput(
                f"{name}: {asked}; expected one of {', '.join(map(repr, names))}, named with --{role} or "
                f"{role}={_headerless(scan)}"
            )
        if names.count(column) > 1:
            raise BadInput(f"{name}: two columns are named {column!r}; which one is the {role}?")
        place = names.index(column)
        if scan.kind in ("parquet", "json") and sum(other.lower() == column.lower() for other in names) > 1:
            raise BadInput(
                f"{name}: the names of two columns differ from {column!r} in case only; rename one of them"
            )
        kind = scan.schema.field(place).type
        roles[role] = Column(
            identifier(scan.schema.names[place]),
            _kind(kind, name, column),
            column,
            None if scan.kind == "text" else kind,
        )
        if role in ("user", "item") and not _sql_knows(kind):
            scan, roles[role] = _by_place(scan, place, roles[role])
    return Source(name, scan, roles | _marks(scan, reading, name), positive=reading.positive)


def _marks(scan: Scan, reading: Reading, name: str) -> dict[str, Column]:
    """The columns of named tests: those that the caller names, and those that an earlier log has as such."""
    named = {column.strip(): column.strip() for column in (reading.tests or "").split(",") if column.strip()}
    named |= {column.removeprefix(MARK): column for column in scan.names if column.startswith(MARK)}
    found = {}
    for test, column in named.items():
        if test in (*TESTS, "resampled"):
            raise BadInput(f"{name}: a test {test!r} is there already; rename the column")
        if scan.names.count(column) != 1:
            raise BadInput(
                f"{name}: no column {column!r} for a test; expected one of {', '.join(map(repr, scan.names))}"
            )
        place = scan.names.index(column)
        kind = _kind(scan.schema.field(place).type, name, column)
        found[f"{MARK}{test}"] = Column(identifier(scan.schema.names[place]), kind, column)
    return found


def _sql_knows(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_date32,
        pa.types.is_binary,
        pa.types.is_large_binary,
    )
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(test(kind) for test in (*plain, *text)) or (pa.types.is_timestamp(kind) and kind.tz is None)


def _by_place(scan: Scan, place: int, column: Column) -> tuple[Scan, Column]:
    """Ids of any other type (UUIDs, decimals, durations): SQL gets their places in a sorted list of them."""
    if scan.table is None:
        raise BadInput(
            f"column {column.name!r}: ids of type {column.type} in a file; read it with Arrow and pass the "
            "table"
        )
    values = scan.table.column(place).combine_chunks()
    extension = values.type if isinstance(values, pa.ExtensionArray) else None
    encoded = (values if extension is None else values.storage).dictionary_encode()
    order = sorted(range(len(encoded.dictionary)), key=lambda at: repr(encoded.dictionary[at].as_py()))
    rank, ids = pa.array(np.argsort(order), pa.int64()), encoded.dictionary.take(pa.array(order))
    table = scan.table.set_column(place, scan.schema.names[place], rank.take(encoded.indices))
    ids = ids if extension is None else pa.ExtensionArray.from_storage(extension, ids)
    return replace(scan, table=table), replace(column, kind="int", ids=ids)


def _headerless(scan: Scan) -> str:
    return (
        "; a file without a header? name its columns with --columns"
        if scan.kind == "text" and scan.header
        else ""
    )


def _mind(name: str, files: list[str], reading: Reading) -> Source:
    """MIND's behaviors.tsv: impressions `N1-0 N2-1` (shown, clicked), and the clicks before the log began, in
    order but undated.

    Each of its files numbers the impressions from 1, so the time is a part of their names.
    """
    if reading.tests is not None:
        raise BadInput(
            f"{name}: MIND's format has no columns for named tests; read it as a table with such a column"
        )
    columns = ("impression", "user", "time", "history", "impressions")
    scan = Scan(
        "text",
        pa.schema([(column, pa.string()) for column in columns]),
        list(columns),
        tuple(files),
        "\t",
        "",
        header=False,
    )
    scan = replace(scan, tolerant=reading.skip_bad_rows)
    check_width(files[0], len(columns), "\t")

    def derive(relation: str, keep: str) -> str:
        seconds = 'CAST(unix_micros(american_time("time")) / 1000000 AS BIGINT)'
        shown = f'(SELECT impression, "user", history, impressions{keep}, {seconds} AS t FROM {relation})'
        pair = "'^(.*)-([01])$'"
        none_kept = keep and ", NULL AS " + keep.removeprefix(", ")
        # Only the history of a user's first impression lies before all of them. It is dated one second per
        # click, ending just before the first impression of the whole log.
        return f"""(
            SELECT impression || '@' || CAST(t AS STRING) AS impression, "user",
                regexp_extract(shown, {pair}, 1) AS item, t,
                TRY_CAST(regexp_extract(shown, {pair}, 2) AS DOUBLE) AS clicked{keep}
            FROM (
                SELECT impression, "user", t{keep}, explode(split(trim(impressions), ' ')) AS shown
                FROM {shown} AS listed
            ) AS pairs
            UNION ALL
            SELECT CAST(NULL AS STRING) AS impression, "user", split_part(history, ' ', k) AS item,
                first - words + k - 1 AS t, 1.0 AS clicked{none_kept}
            FROM (
                SELECT "user", history, words, first, explode(sequence(1, words)) AS k
                FROM (
                    SELECT "user", history, length(history) - length(replace(history, ' ', '')) + 1 AS words
                    FROM (
                        SELECT "user", trim(COALESCE(history, '')) AS history,
                            row_number() OVER (PARTITION BY "user" ORDER BY t, COALESCE(history, '')) AS place
                        FROM {shown} AS a WHERE t IS NOT NULL
                    ) AS b WHERE place = 1 AND history <> ''
                ) AS past CROSS JOIN (SELECT min(t) AS first FROM {shown} AS c) AS start
            ) AS clicks WHERE split_part(history, ' ', k) <> ''
        )"""

    roles = {"user": Column('"user"', "text", "user"), "item": Column("item", "text", "impressions")}
    roles |= {"time": Column("t", "int", "time"), "label": Column("clicked", "float", "impressions")}
    roles |= {"visit": Column("impression", "text", "impression")}
    return Source(name, scan, roles, derive=derive)


def _open_bandit(name: str, scan: Scan, reading: Reading) -> Source:
    """Open Bandit has no users, only features: everyone with the same features is one user."""
    features = [place for place, column in enumerate(scan.names) if column.startswith("user_feature_")]
    if not features and reading.user is None:
        raise BadInput(
            f"{name}: no columns 'user_feature_*', so this is not Open Bandit; name the format and the "
            "columns"
        )
    found = _columns(scan, replace(reading, user=reading.user or scan.names[features[0]]), name)
    if reading.user is None:
        parts = ", ".join(identifier(scan.schema.names[place]) for place in features)
        found.roles["user"] = Column(f"concat_ws('|', {parts})", "text", "user_feature_*")
    if "exposed" not in found.roles:  # the folders are POLICY/CAMPAIGN/CAMPAIGN.csv
        at_random = f"regexp_like({FILE}, '(^|/)random/[^/]+/[^/]+$')"
        found.roles["exposed"] = Column(
            f"CASE WHEN {at_random} THEN 1 ELSE 0 END", "int", "the folder's name"
        )
    return found


def _guess(files: list[str]) -> Format:
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
    return "amazon" if _is_amazon_rating(first.split(",")) else "csv"


def _of_format(files: list[str], form: Format) -> list[str]:
    """Of a folder, the files that hold the log."""
    starts = {"mind": ("behaviors",), "kuairand": ("log_standard", "log_random")}.get(form, ("",))
    chosen = [
        file
        for file in files
        if Path(file).name.startswith(starts) and not Path(file).name.startswith("item_context")
    ]
    return chosen if len(files) > 1 and chosen else files


def _file_scan(files: list[str], form: Format, reading: Reading) -> Scan:
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
    first = first_lines(files[0], 1)[0]
    delimiter = (reading.delimiter or max(("\t", ",", ";", "|"), key=first.count)).replace("\\t", "\t")
    fields = header(files[0], delimiter)
    if form == "amazon" and _is_amazon_rating(fields):
        return _text(files, _amazon_columns(fields), delimiter, header=False)
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
    # SQL sees places, not names: names may be equal, differ in case only, or mean something to SQL.
    return Scan(
        "text",
        pa.schema([(f"c{place}", pa.string()) for place in range(len(names))]),
        names,
        tuple(files),
        delimiter,
        header=header,
    )


def _is_amazon_rating(fields: list[str]) -> bool:
    return len(fields) == 4 and bool(re.fullmatch(r"[1-5](\.0)?", fields[2])) and fields[3].strip().isdigit()


def _amazon_columns(fields: list[str]) -> list[str]:
    # The 2014 files put the user first, the 2018 files the item. A product code has exactly ten characters;
    # no reviewer's has.
    first = ["item", "user"] if len(fields[0]) == 10 != len(fields[1]) else ["user", "item"]
    return [*first, "rating", "timestamp"]


def _table_scan(table: Any) -> Scan:
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


def _kind(kind: pa.DataType, name: str, column: str) -> Kind:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[tuple[Kind, tuple[Callable[[pa.DataType], bool], ...]]] = [
        ("text", (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)),
        ("int", (pa.types.is_integer,)),
        ("float", (pa.types.is_floating, pa.types.is_decimal)),
        ("zoned", (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,)),
        ("moment", (pa.types.is_timestamp, pa.types.is_date)),
        ("bool", (pa.types.is_boolean,)),
    ]
    if pa.types.is_nested(kind):
        found = "values of several kinds" if kind == pa.struct([]) else str(kind)
        raise BadInput(f"{name}, column {column!r}: expected plain values of one kind, found {found}")
    return next((found for found, checks in tests if any(check(kind) for check in checks)), "other")
