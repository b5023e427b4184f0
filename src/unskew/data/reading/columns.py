"""Which columns of a table are the user, the item, the time and the label?

The caller names them, or they are guessed from their usual names. The answer is a `Source`: what to read, and
for each role the SQL that gives its value.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from unskew.core.errors import BadInput
from unskew.data.log.folder import MARK, TYPE_COLUMN
from unskew.data.log.log import TESTS
from unskew.data.log.preparation import Metadata, Reading
from unskew.data.log.vocabulary import FEATURE
from unskew.data.reading.engines import Scan, identifier, literal

ROLES = ("user", "item", "time", "label", "propensity", "exposed", "position", "impression_id", "title")
REQUIRED = ("user", "item", "time")

# Usual names of the columns, in order of preference; upper and lower case are the same.
ALIASES = {
    "user": "user user_id userid uid reviewerid visitorid customer_id session_id",
    "item": "item item_id itemid iid movieid movie_id video_id parent_asin asin product_id news_id sku",
    "time": "time time_ms timestamp ts unixreviewtime event_time datetime date",
    "label": "label click is_click clicked rating overall",
    "propensity": "propensity propensity_score pscore",
    "exposed": "exposed is_rand exposed_at_random",
    "position": "position",
    "impression_id": "impression_id impression",
    "title": "title",
}

# Usual names of a column with the types of events. It is never read by itself, because only the caller knows
# which types are to be predicted.
TYPE_NAMES = "event_type type event action action_type behavior behavior_type interaction interaction_type"

Kind = Literal["text", "int", "float", "moment", "zoned", "bool", "other"]
Derive = Callable[[str, str], str]
TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)


@dataclass(frozen=True)
class Column:
    """A column of the source: the SQL that gives its value, the kind of its values, and its name for error
    messages."""

    sql: str
    kind: Kind
    name: str
    type: pa.DataType | None = None  # the type in which its values are handed back; None means text
    ids: pa.Array | None = (
        None  # the ids, where SQL does not know their type: it sees positions in this array
    )


def _as_it_is(relation: str, keep: str) -> str:
    return relation


@dataclass(frozen=True, eq=False)
class EventTypes:
    """What the types of events in a column mean. In the table of a log that is read again, the column holds
    the types of context events alone, and rows have labels."""

    column: Column
    target: tuple[str, ...] = ()
    context: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    of_log: bool = False

    @property
    def text(self) -> str:
        """SQL of the type of a row."""
        return f"trim(CAST({self.column.sql} AS STRING))"

    def one_of(self, types: tuple[str, ...]) -> str:
        """The condition that a row is of one of these types."""
        return f"COALESCE({self.text} IN ({', '.join(map(literal, types))}), FALSE)" if types else "FALSE"


@dataclass(frozen=True, eq=False)
class Source:
    """What to read, and where in it each role is."""

    name: str
    scan: Scan
    roles: dict[str, Column]
    features: dict[str, dict[str, Column]] = field(default_factory=dict)  # of "user" and of "item", by name
    positive: float | str | None = None
    labels: tuple[float, float] | None = None  # the smallest and the largest label that the format allows
    types: EventTypes | None = None
    untyped: str | None = None  # a column that looks like types of events and is not read
    origin: Metadata | None = None  # of the log that is read again
    # SQL of a relation, and columns of it to keep -> SQL of the relation whose columns the roles are.
    derive: Derive = field(default=_as_it_is)


def columns_of(scan: Scan, reading: Reading, name: str) -> Source:
    """Find the roles of a plain table: as the caller says, otherwise by their usual names."""
    names = scan.names
    simple = {column.split(":")[0].strip().lower(): column for column in reversed(names)}
    roles: dict[str, Column] = {}
    for role in ROLES:
        given: str | None = getattr(reading, role)
        if role == "label" and reading.type is not None:
            continue
        guess = next((simple[alias] for alias in ALIASES[role].split() if alias in simple), None)
        column = guess if given is None else given
        if column is None and role not in REQUIRED:
            continue
        if column is None or column not in names:
            missing = f"no column {given!r}" if given is not None else f"no column for the {role}"
            hint = f"name one of its columns with --{role} or {role}=: {', '.join(map(repr, names))}"
            raise BadInput(f"{name}: {missing}; {hint}{_headerless(scan)}")
        place = _place(scan, name, column, f"the {role}")
        roles[role] = _column(scan, name, place)
        if role in ("user", "item") and not _sql_knows(scan.schema.field(place).type):
            scan, roles[role] = _by_position(scan, place, roles[role])
    features = _features(scan, reading, name)
    for feature in (column for columns in features.values() for column in columns.values()):
        if any(role.ids is not None and role.sql == feature.sql for role in roles.values()):
            raise BadInput(
                f"{name}, column {feature.name!r}: ids of type {feature.type} cannot be a feature, too"
            )
    roles |= _marks(scan, reading, name)
    return Source(
        name,
        scan,
        roles,
        features,
        positive=reading.positive,
        types=_types(scan, reading, name),
        untyped=_untyped(scan, reading, roles, features),
    )


def _types(scan: Scan, reading: Reading, name: str) -> EventTypes | None:
    """The column with the types of events, and what the caller says of them."""
    if reading.type is None:
        given = next((each for each in _MEANINGS if getattr(reading, each)), None)
        if given is not None:
            raise BadInput(
                f"{given} {getattr(reading, given)!r}: name the column of the types with --type", field="type"
            )
        if TYPE_COLUMN not in scan.names:
            return None
        return EventTypes(_column(scan, name, _place(scan, name, TYPE_COLUMN, "the type")), of_log=True)
    if reading.label is not None or reading.positive is not None:
        setting = "label" if reading.label is not None else "positive"
        raise BadInput(
            f"--{setting} and --type both say what is positive: expected one of them", field="type"
        )
    column = _column(scan, name, _place(scan, name, reading.type, "the type of an event"))
    meanings = {each: _words(getattr(reading, each)) for each in _MEANINGS}
    if not meanings["target"]:
        raise BadInput(
            f"type {reading.type!r}: which types are predicted? Name them with --target", field="type"
        )
    words = [word for listed in meanings.values() for word in listed]
    twice = next((word for word in words if words.count(word) > 1), None)
    if twice is not None:
        raise BadInput(
            f"the type {twice!r} is declared twice; expected one meaning for each type", field="type"
        )
    target, context, shown, ignored = meanings.values()
    return EventTypes(column, target, tuple(sorted(context)), shown, ignored)


_MEANINGS = ("target", "context", "shown", "ignore")


def _words(listed: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (listed or "").split(",") if word.strip())


def _untyped(
    scan: Scan, reading: Reading, roles: dict[str, Column], features: dict[str, dict[str, Column]]
) -> str | None:
    """The name of a column that looks like types of events, if nothing reads it."""
    used = {column.name for column in roles.values()}
    used |= {column.name for columns in features.values() for column in columns.values()}
    names = (name for name in scan.names if name.strip().lower() in TYPE_NAMES.split() and name not in used)
    return next(names, None) if reading.type is None else None


def _place(scan: Scan, name: str, column: str, purpose: str) -> int:
    """The position of the only column of this name."""
    names = scan.names
    if column not in names:
        raise BadInput(
            f"{name}: no column {column!r} for {purpose}; expected one of {', '.join(map(repr, names))}"
        )
    if names.count(column) > 1:
        raise BadInput(f"{name}: two columns are named {column!r}; which one is {purpose}?")
    if scan.kind in ("parquet", "json") and sum(other.lower() == column.lower() for other in names) > 1:
        raise BadInput(
            f"{name}: the names of two columns differ from {column!r} in case only; rename one of them"
        )
    return names.index(column)


def _column(scan: Scan, name: str, place: int) -> Column:
    """The column at this position."""
    column, kind = scan.names[place], scan.schema.field(place).type
    sql = identifier(scan.schema.names[place])
    return Column(sql, _kind(kind, name, column), column, None if scan.kind == "text" else kind)


def _marks(scan: Scan, reading: Reading, name: str) -> dict[str, Column]:
    """The columns of named tests: those that the caller lists, and those of an earlier log."""
    marks = {}
    for listed, column in _named(scan, reading.tests, MARK).items():
        test, where, value = _condition(scan, listed, column)
        if test in (*TESTS, "resampled"):
            raise BadInput(f"{name}: a test {test!r} is there already; give it another name")
        marked = _column(scan, name, _place(scan, name, where, "a test"))
        if value is not None:
            same = f"trim(CAST({marked.sql} AS STRING)) = {literal(value)}"
            marked = replace(marked, sql=f"CASE WHEN {same} THEN 1 ELSE 0 END", kind="int")
        marks[f"{MARK}{test}"] = marked
    return marks


def _condition(scan: Scan, test: str, column: str) -> tuple[str, str, str | None]:
    """The name of a test, its column, and the value of the column in its rows; None if it is 1 there."""
    parts = re.fullmatch(r"([^=:]+)=([^:]+):(.+)", column)
    if column in scan.names or parts is None:
        return test, column, None
    return parts[1].strip(), parts[2].strip(), parts[3].strip()


def _features(scan: Scan, reading: Reading, name: str) -> dict[str, dict[str, Column]]:
    """The columns that describe users and items: those that the caller lists, and those of an earlier log."""
    features: dict[str, dict[str, Column]] = {}
    for role, names in (("user", reading.user_features), ("item", reading.item_features)):
        for feature, column in _named(scan, names, f"{role}_{FEATURE}").items():
            described = _column(scan, name, _place(scan, name, column, f"a feature of the {role}"))
            if described.kind == "other":
                raise BadInput(
                    f"{name}, column {column!r}: expected text, numbers, dates, or true and false for a "
                    f"feature of the {role}, found {described.type}"
                )
            features.setdefault(role, {})[feature] = described
    return features


def _named(scan: Scan, listed: str | None, prefix: str) -> dict[str, str]:
    """Columns by name: those in the caller's list, and those whose names begin with the prefix, which
    `Log.table` writes. The prefix is no part of the name."""
    named = {column.strip(): column.strip() for column in (listed or "").split(",") if column.strip()}
    return named | {column.removeprefix(prefix): column for column in scan.names if column.startswith(prefix)}


def _sql_knows(kind: pa.DataType) -> bool:
    """Whether ids of this type go through SQL and come back unchanged."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_date32)
    other = (pa.types.is_binary, pa.types.is_large_binary, *TEXT)
    is_plain_moment = pa.types.is_timestamp(kind) and kind.tz is None
    return is_plain_moment or any(test(kind) for test in (*numbers, *other))


def _by_position(scan: Scan, place: int, column: Column) -> tuple[Scan, Column]:
    """Ids of any other type (UUIDs, decimals, durations): SQL gets their positions in a sorted list of
    them."""
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
    """What to try where no column fits: perhaps the first line is no header."""
    is_suspect = scan.kind == "text" and scan.header
    return "; a file without a header? name its columns with --columns" if is_suspect else ""


def _kind(kind: pa.DataType, name: str, column: str) -> Kind:
    """What SQL has to do with values of this type."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests: list[tuple[Kind, tuple[Callable[[pa.DataType], bool], ...]]] = [
        ("text", TEXT),
        ("int", (pa.types.is_integer,)),
        ("float", (pa.types.is_floating, pa.types.is_decimal)),
        ("zoned", (lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None,)),
        ("moment", (pa.types.is_timestamp, pa.types.is_date)),
        ("bool", (pa.types.is_boolean,)),
    ]
    if pa.types.is_nested(kind):
        values = "values of several kinds" if kind == pa.struct([]) else str(kind)
        raise BadInput(f"{name}, column {column!r}: expected plain values of one kind, found {values}")
    return next((name for name, checks in tests if any(check(kind) for check in checks)), "other")
