"""How a log was made: the settings of reading and preparing it, and what was found and removed.

`data.json` of a prepared folder is a `Metadata`, and `Log.metadata` is the same in memory.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from unskew.core.config import Document, from_document

Format = Literal["auto", "csv", "parquet", "json", "inter", "mind", "amazon", "kuairand", "openbandit"]


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a log is read: its format, its columns, and which labels are positive."""

    format: Format = "auto"
    """The format of the source. With `auto`, it is recognised by the names of the files and their header."""
    user: str | None = None
    """Name of the column with the user id. Columns that are not named are guessed from their usual names."""
    item: str | None = None
    """Name of the column with the item id."""
    time: str | None = None
    """Name of the column with the time, which may be numbers, ISO dates or timestamps."""
    label: str | None = None
    """Name of the column with the label. Without such a column, every row is a positive."""
    propensity: str | None = None
    """Name of the column with the logged probability of exposure."""
    exposed: str | None = None
    """Name of the column that is 1 where the item was exposed at random."""
    position: str | None = None
    """Name of the column with the position on the page."""
    impression_id: str | None = None
    """Name of the column with the impression (slate): rows of a user with the same value were shown
    together. Without it, rows of a user with the same time count as shown together."""
    type: str | None = None
    """Name of the column with the type of each event, as in a log of views, carts and purchases. What the
    types mean is said by `target`, `context`, `shown` and `ignore`; any other type is an error."""
    target: str | None = None
    """The types, separated by commas, whose events are the positives: they are predicted and tested."""
    context: str | None = None
    """The types, separated by commas, whose events models may read, but which are not predicted, as in
    view,cart. Types that speak against an item, such as dislike, are context, too."""
    shown: str | None = None
    """The types, separated by commas, whose events say that an item was shown: they are rows with label 0,
    unless the same row was taken as well."""
    ignore: str | None = None
    """The types, separated by commas, that are left out and counted."""
    tests: str | None = None
    """Named tests, separated by commas, which `--test NAME` then asks for. Each is the name of a column that
    is 1 where a row belongs to the test, or NAME=COLUMN:VALUE, which takes the rows where a column has that
    value, as in published=split:test."""
    title: str | None = None
    """Name of the column with the item's title."""
    item_features: str | None = None
    """Names of columns, separated by commas, that describe the item, such as its category and its price. They
    are kept with the items, and models may read them. An item with several values keeps the earliest."""
    user_features: str | None = None
    """Names of columns, separated by commas, that describe the user, such as the country. A user with several
    values keeps the earliest."""
    items: str | None = None
    """A file of items (CSV, Parquet or JSON lines): its columns but for the item, the title and the time are
    features. An item that is in no row of the log is known from its time on."""
    items_time: str | None = None
    """Name of the column of that file with the time from which a row is known: an item may have several rows,
    and exists from its first one on. Without it, all values were known all the time, and items exist from
    their first positive on."""
    positive: float | str | None = None
    """Which labels are positive: a number means all labels of at least this; words, separated by commas, mean
    these labels, as in purchase,cart. Without it, all labels must be 0 or 1."""
    delimiter: str | None = None
    """The separator between the fields of a text file. Without it, it is guessed from the first line."""
    columns: str | None = None
    """The names of all columns, separated by commas, of a text file that has no header."""
    name: str | None = None
    """The name of the log in reports. By default, it is the name of the source."""
    drop_users: str | None = None
    """A text file with the ids of users, one in a line, whose rows are left out, such as the bots that
    `inspect --suggest-drop` names."""
    skip_bad_rows: bool = False
    """Set rows that cannot be read aside, with the reasons, instead of stopping at the first one."""


@dataclass(frozen=True, kw_only=True)
class Preparation(Reading):
    """How a log is prepared: how it is read, and which rows stay."""

    min_count: int = 1
    """Users and items with fewer positives in the training set are unknown to every model: they share one
    learned vector. No row is removed. The number is stored with the data as the default of `split` and
    `train`, which know the training set."""
    borders: str | None = None
    """Two of the named tests (`--tests`) between a comma, VALID,TEST, with whose first rows the validation
    part and the test set begin. It is stored with the data as the default of `split` and `train`."""
    k_core: int = 1
    """Remove users and items with fewer interactions than this, again and again until none is left. Such a
    filter over the whole log looks into the future, because whatever stays is certain to come again. Use it
    only for comparison with published data sets; 1 removes nothing."""
    core: Literal["iterative", "authors"] = "iterative"
    """How the k-core is made: `iterative` repeats until nothing changes; `authors` makes one single pass,
    first over the items, then over the users, as the paper's code does."""
    count: Literal["interactions", "positives"] = "interactions"
    """Which rows are counted for the k-core: all interactions, or positives only."""
    duplicates: Literal["event", "pair", "keep"] = "event"
    """Which rows are duplicates, of which one is kept: rows with the same user, item and time (`event`), rows
    with the same user and item (`pair`), or none (`keep`). The earliest is kept, and of several at that time
    the one with the highest label."""
    ties: Literal["strict", "file-order"] = "strict"
    """What is known of the order of a user's positives with the same time. `strict`: nothing, so none of them
    is in the past of another. `file-order`: they happened in the order of the file; each is moved by as many
    ticks of the clock as needed, so that all times of a user are distinct. Most published leave-one-out
    results use the order of the file."""
    engine: Literal["duckdb", "spark"] = "duckdb"
    """The engine that runs the SQL: `duckdb` on this machine, or `spark` on a cluster."""
    master: str = "local[*]"
    """The address of the Spark cluster."""
    memory: str = "2GB"
    """The memory that the engine may use. Whatever does not fit is written to temporary files."""


@dataclass(frozen=True, kw_only=True)
class EventCounts:
    """What the types of events of a log mean, and how many events there are of each."""

    target: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    context: dict[str, int] = field(default_factory=dict)  # in the order of the names
    ignored: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Removed:
    """How many rows of the source are not in the log, by the reason."""

    bad_rows: int = 0
    duplicates: int = 0
    k_core: int = 0
    k_core_iterations: int = 0
    dropped_users: int = 0  # rows of users who were named to be left out
    context: int = 0  # events of context types: duplicates, and those of users and items that were removed


@dataclass(frozen=True)
class FeatureCounts:
    """How many users (items) have a feature that is not clear."""

    changed: int  # several values over time; the earliest is kept
    late: int  # no value in the first rows; a later one is used
    missing: int  # no value at all


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """How a log was made. A log that was put together in memory has the defaults."""

    source: str = "the log"
    rows: int = 0
    positives: int = 0
    users: int = 0
    items: int = 0
    extras: tuple[str, ...] = ()  # the optional columns, and the columns of named tests
    since: tuple[str, ...] = ()  # for which ids the folder has the times from which they exist
    time_unit: str = "as given"
    columns: dict[str, str] = field(default_factory=dict)  # the column of the source by its role
    types: EventCounts = field(default_factory=EventCounts)
    untyped: str | None = None  # a column that looks like types of events and was not read
    removed: Removed = Removed()
    settings: Preparation = Preparation()
    features: dict[str, dict[str, FeatureCounts]] = field(default_factory=dict)  # of "users" and of "items"
    origin: "Metadata | None" = None  # of the log that was read again
    erased_from: tuple[str, ...] = ()  # the hashes of the log before users were erased from it
    world: dict[str, Any] | None = None  # the settings of the simulation, for a log of a simulated world

    def as_dict(self) -> Document:
        """The same as plain values for data.json, without what is empty."""
        document = asdict(self) | {"origin": None if self.origin is None else self.origin.as_dict()}
        if self.types == EventCounts():
            document["types"] = None
        for name in ("context", "dropped_users"):
            if not document["removed"][name]:
                del document["removed"][name]
        optional = ("since", "types", "untyped", "features", "origin", "erased_from", "world")
        return {name: value for name, value in document.items() if value or name not in optional}

    @classmethod
    def from_dict(cls, document: Document) -> "Metadata":
        """The metadata of which `as_dict` made this document."""
        values = dict(document)
        values |= {name: tuple(values.get(name, ())) for name in ("extras", "since", "erased_from")}
        types = values.get("types", {})
        named = {name: tuple(types[name]) for name in ("target", "shown") if name in types}
        values["types"] = EventCounts(**(types | named))
        values["removed"] = Removed(**values.get("removed", {}))
        values["settings"] = from_document(Preparation, asdict(Preparation()) | values.get("settings", {}))
        values["features"] = {
            role: {name: FeatureCounts(**counts) for name, counts in features.items()}
            for role, features in values.get("features", {}).items()
        }
        if "origin" in values:
            values["origin"] = cls.from_dict(values["origin"])
        return cls(**values)
