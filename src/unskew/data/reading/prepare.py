"""Prepare a log: remove duplicates, apply the k-core, number users and items, and sort.

The SQL is the same for DuckDB and Spark, and its result becomes flat columns that are mapped into memory.
Everything is sorted by values only, and ties are always broken, so the result depends on nothing but the
rows: not on their order in a file, on threads, on partitions or on the engine.
"""

import csv
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unskew.core.config import configured
from unskew.core.errors import BadInput
from unskew.core.progress import Job, progress
from unskew.core.storage import check_on_disk
from unskew.data.log.arrays import Ints, offsets_of
from unskew.data.log.erasures import list_beside, read_erasures
from unskew.data.log.folder import (
    AUDIENCE,
    COLUMNS,
    EXTRAS,
    SINCE,
    VIEW_PARTS,
    NewArray,
    context_column,
    in_memory,
    is_prepared,
    new_folder,
    on_disk,
    save_metadata,
)
from unskew.data.log.item_feed import ItemFeed, feed_of, with_items
from unskew.data.log.live import Live
from unskew.data.log.log import Log
from unskew.data.log.preparation import FeatureCounts, Metadata, Preparation, Reading, Removed
from unskew.data.log.vocabulary import PAD, Vocabulary
from unskew.data.reading.bad_rows import BadRow
from unskew.data.reading.checks import Checked, check, labels_found
from unskew.data.reading.columns import Source
from unskew.data.reading.engines import Arrays, DuckDB, Engine, Spark
from unskew.data.reading.features import plain, with_features
from unskew.data.reading.formats import recognise
from unskew.data.reading.items import add_items, read_items
from unskew.data.reading.leave_out import leave_out, lists_of

_PARTS = [part.removeprefix("history_") for part in VIEW_PARTS if part.startswith("history_")]
_NEVER = np.iinfo(np.int64).max  # the time of the first positive, where there is none
EVERYTHING = Preparation(duplicates="keep")


@configured(Reading)
def read(source: Any, reading: Reading) -> Log:
    """Read a log into memory. Every row is checked, and none is removed.

    Parameters
    ----------
    source
        A file, a folder, a pattern such as `logs/*.csv`, or any table that Arrow understands (of pandas,
        polars or Arrow itself). A folder that `prepare` made is opened as it is. Of a live log
        (`unskew.Live`), all rows are numbered and sorted again, without the duplicates that `prepare` would
        remove.

    Returns
    -------
    Log
        The log, whose columns are in memory.

    Raises
    ------
    BadInput
        If a value is not what its column should hold; the message names the file, the line and the column.

    Examples
    --------
    >>> import unskew
    >>> unskew.read({"user": [1, 1, 2], "item": ["a", "b", "a"], "time": [10, 20, 30]})
    Log(3 rows, 3 positives, 2 users, 2 items)
    """
    if isinstance(source, str | os.PathLike) and is_prepared(Path(source)):
        if reading != Reading():
            raise BadInput(
                f"{source}: a prepared folder is opened as it is; how to read it was said when it was made"
            )
        return Log.open(source)
    recognised, settings = recognise(source, reading), EVERYTHING
    if isinstance(source, Live):
        settings = replace(EVERYTHING, duplicates=source.metadata.settings.duplicates)
    with _engine(EVERYTHING, None) as engine, progress("read") as job:
        erasures = read_erasures(*lists_of(recognised))
        checked = leave_out(engine, check(engine, recognised, reading), recognised, erasures)
        log = _Preparing(engine, checked, recognised, settings, in_memory, job).run(None)
    if reading.items is not None:
        log = with_items(log, _feed(log, reading))
    if isinstance(source, Live):
        for feed in feed_of(Vocabulary.of_table(source.items.table()), source.frozen().audiences.listed):
            log = with_items(log, feed)
        end = None if source.origin.end is None else source.now
        return replace(log, metadata=source.metadata, end=end)
    return log


@configured(Preparation)
def prepare(source: Any, out: str | os.PathLike[str], settings: Preparation) -> Log:
    """Prepare a log once, write it into a folder, and open it.

    Parameters
    ----------
    source
        What `read` takes.
    out
        The folder to write. After an error it is as it was before. Users who were erased from it, or from the
        store that the source was exported from, are left out.

    Returns
    -------
    Log
        The log, whose columns stay on disk and are mapped into memory.

    Raises
    ------
    BadInput
        If a value is not what its column should hold, if a setting is wrong, or if `out` holds anything
        else than a prepared folder.
    """
    if settings.items is None and settings.items_time is not None:
        raise BadInput(
            "items_time: names a column of a file of items, so it goes with items", field="items_time"
        )
    for name in ("min_count", "k_core"):
        if getattr(settings, name) < 1:
            raise BadInput(f"{name} {getattr(settings, name)}: expected at least 1", field=name)
    if settings.ties == "file-order" and settings.engine != "duckdb":
        raise BadInput("ties file-order: only the engine duckdb knows the order of the file")
    check_on_disk(out)
    target = Path(out).expanduser().resolve()
    source = recognise(source, settings)
    with new_folder(target) as folder, _engine(settings, folder) as engine, progress("prepare") as job:
        erasures = read_erasures(list_beside(target), *lists_of(source))
        checked = leave_out(engine, check(engine, source, settings), source, erasures)
        log = _Preparing(engine, checked, source, settings, on_disk(folder), job).run(folder)
        if settings.items is not None:
            add_items(folder, lambda log: _feed(log, settings))
        if settings.borders is not None:
            log.named_borders(settings.borders)
    return Log.open(target)


def _feed(log: Log, reading: Reading) -> ItemFeed:
    """The item feed that a log is read with."""
    return read_items(reading.items, log.clock, log.items.ids.type, time=reading.items_time)


@contextmanager
def _engine(settings: Preparation, folder: Path | None) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory(prefix=".engine.", dir=folder, ignore_cleanup_errors=True) as name:
        engine: Engine
        if settings.engine == "spark":
            engine = Spark(settings.master, settings.memory, Path(name))
        else:
            engine = DuckDB(settings.memory, Path(name))
        try:
            yield engine
        finally:
            engine.close()


@dataclass(frozen=True, eq=False)
class _Preparing:
    """The steps from checked rows to a log. The tables of the engine are `core`, the rows that stay; `users`,
    `items` and `impressions`, their ids and codes; and `indexed`, the rows with codes."""

    engine: Engine
    checked: Checked
    source: Source
    settings: Preparation
    new: NewArray  # makes the arrays of the log
    job: Job

    @property
    def _extras(self) -> list[str]:
        """The names of the optional columns in the SQL."""
        return [*self.checked.extras, *(f"mark_{place}" for place in range(len(self.checked.marks)))]

    def run(self, folder: Path | None) -> Log:
        """All steps. Without a folder, the log stays in memory."""
        self.job.advance(note="rows that stay")
        removed = self._remove_rows()
        self.job.advance(note="index")
        (users, items), since, features = self._number_ids()
        self._number_impressions()
        self.job.advance(note="sort by user")
        arrays = self._sort_by_user(self.checked.rows - removed.duplicates - removed.k_core)
        positives = int(np.count_nonzero(arrays["label"]))
        if not positives:
            raise BadInput(self._no_positive(len(arrays["label"])))
        self.job.advance(note="sort by item")
        arrays |= self._sort_by_item(arrays["user"][:positives], len(users), len(items))
        counts, more = self._sort_context(len(users), len(items))
        arrays |= more | self._since(since)
        removed = replace(
            removed,
            context=self.checked.events - sum(counts.values()),
            dropped_users=self.checked.dropped,
        )
        metadata = Metadata(
            source=self.source.name,
            rows=len(arrays["label"]),
            positives=positives,
            users=len(users),
            items=len(items),
            extras=(*self.checked.extras, *self.checked.marks),
            since=SINCE if since is not None else (),
            types=replace(self.checked.types, context=counts),
            untyped=self.source.untyped,
            time_unit=self.checked.time_unit if self.source.origin is None else self.source.origin.time_unit,
            columns={role: column.name for role, column in self.source.roles.items()},
            removed=removed,
            settings=self.settings,
            features=features,
            origin=self.source.origin,
        )
        if folder is not None:
            _write(folder, arrays, users, items, self.checked.bad_rows, metadata)
        return Log.of_columns(arrays, users, items, metadata)

    def _remove_rows(self) -> Removed:
        """Make the table `core`: no duplicates, and the k-core."""
        checked, settings = self.checked, self.settings
        columns = ", ".join(["u, i, t, y", *self._extras, *(["title"] if checked.titled else [])])
        query, ordered = checked.query, columns
        if settings.ties == "file-order":  # DuckDB numbers rows in the order of the file
            query = f"SELECT *, row_number() OVER () AS file_row FROM ({query})"
            columns = f"{columns}, file_row"
        if settings.duplicates != "keep":
            # Of several rows at the same time, the one with the highest label stays, because a click says
            # more than its own impression. Engines sort missing values differently, so a missing impression
            # becomes an empty one, and missing titles are put last.
            order = ["t", "y DESC"]
            order += ["COALESCE(impression_id, '')" if e == "impression_id" else e for e in checked.extras]
            order += [f"mark_{place} DESC" for place in range(len(checked.marks))]
            order += ["CASE WHEN title IS NULL THEN 1 ELSE 0 END", "title"] if checked.titled else []
            order += ["file_row"] if settings.ties == "file-order" else []
            key = "u, i, t" if settings.duplicates == "event" else "u, i"
            query = first_of_each(f"({query}) AS good", key, ", ".join(order), columns)
        rows = self.engine.table("core", query)
        kept, iterations = rows, 0
        if settings.k_core > 1:
            kept, iterations = _core(self.engine, settings, columns, rows, self.job)
        if settings.ties == "file-order":
            self._order_ties(ordered)
        self._remove_context(rows - kept > 0)
        return Removed(len(checked.bad_rows), checked.rows - rows, rows - kept, iterations)

    def _remove_context(self, is_core: bool) -> None:
        """Make the table `context`, if there are such events: without duplicates, and without those of users
        and items that the k-core removed."""
        if self.checked.context is None:
            return
        title, query = ", MIN(title) AS title" if self.checked.titled else "", self.checked.context
        if self.settings.duplicates != "keep":
            query = f"SELECT u, i, t, kind{title} FROM ({query}) AS events GROUP BY u, i, t, kind"
        if is_core:
            query = (
                f"SELECT * FROM ({query}) AS distinct_events "
                "WHERE u IN (SELECT u FROM core) AND i IN (SELECT i FROM core)"
            )
        self.engine.table("context", query)

    def _order_ties(self, columns: str) -> None:
        """Move the positives of a user that have the same time apart, in the order of the file: each one is
        at least one tick after the one before."""
        (shown,) = self.engine.arrow("SELECT count(*) AS n FROM core WHERE y = 0")["n"].to_pylist()
        if shown:
            raise BadInput(
                f"ties file-order: {shown:,} rows are no positives, and their times say what was shown "
                "together; expected a log of positives"
            )
        moved = columns.replace(" t,", " max(t - k) OVER (PARTITION BY u ORDER BY k) + k AS t,", 1)
        self.engine.table(
            "core",
            f"""SELECT {moved} FROM (
                SELECT *, row_number() OVER (PARTITION BY u ORDER BY t, file_row) - 1 AS k FROM core
            ) AS numbered""",
        )

    def _number_ids(
        self,
    ) -> tuple[list[pa.Table], list[Ints] | None, dict[str, dict[str, FeatureCounts]]]:
        """The users and the items in the order of their codes, with titles and features; and the times from
        which they exist, where that is not always their first positive."""
        vocabularies, since, has_context = [], [], self.checked.context is not None
        for table, key in (("users", "u"), ("items", "i")):
            title = ", title" if self.checked.titled and key == "i" else ""
            events = "core"
            if has_context:
                events = (
                    f"(SELECT {key}, t, y{title} FROM core "
                    f"UNION ALL SELECT {key}, t, 1 AS y{title} FROM context) AS events"
                )
            # Codes follow the time from which an id exists, that of its first positive or context event, so
            # that what exists at any moment is a prefix. Ids without one come last. Ids of the same times
            # are sorted as texts, numbers too, because a text file has no numbers.
            column = self.source.roles[table.removesuffix("s")]
            id_text = "CAST(id AS STRING)" if column.kind == "int" and column.ids is None else "id"
            self.engine.number(
                table,
                f"""SELECT {key} AS id, MIN(CASE WHEN y = 1 THEN t ELSE {_NEVER} END) AS since,
                    MIN(t) AS seen{", MIN(title) AS title" if title else ""}
                FROM {events} GROUP BY {key}""",
                f"since, seen, {id_text}",
            )
            times = self.engine.arrow(f"SELECT since FROM {table} ORDER BY code")["since"]
            since.append(times.to_numpy().astype(np.int64))
            vocabulary = _vocabulary(self.engine, self.source, table, bool(title))
            if title and vocabulary["title"].null_count == len(vocabulary):
                vocabulary = vocabulary.drop_columns("title")
            vocabularies.append(vocabulary)
        features = {}
        if self.checked.described is not None:
            self.job.advance(note="features")
            self.engine.table("described", self.checked.described)
            for place, role in enumerate(("user", "item")):
                vocabularies[place], features[f"{role}s"] = with_features(
                    self.engine, vocabularies[place], role, self.source
                )
        return vocabularies, since if has_context else None, features

    def _number_impressions(self) -> None:
        """Make the table `indexed`, in which users, items and impressions are numbers."""
        extras, impressions = self._extras, ""
        if "impression_id" in extras:
            self.engine.number(
                "impressions",
                "SELECT DISTINCT impression_id AS id FROM core WHERE impression_id IS NOT NULL",
                # Sorted by length first, numbers keep their order, and a log that is prepared again is the
                # same.
                "length(id), id",
            )
            impressions = "LEFT JOIN impressions ON impression_id = impressions.id"
            extras[extras.index("impression_id")] = f"COALESCE(impressions.code, {PAD}) AS impression_id"
        self.engine.table(
            "indexed",
            f"""SELECT {", ".join(["users.code AS user_code, items.code AS item_code, t, y", *extras])}
            FROM core JOIN users ON u = users.id JOIN items ON i = items.id {impressions}""",
        )

    def _sort_by_user(self, rows: int) -> Arrays:
        """The columns of all rows."""
        extras = "".join(f", {name}" for name in self._extras)
        types = COLUMNS | {name: EXTRAS[name] for name in self.checked.extras}
        types |= dict.fromkeys(self.checked.marks, np.int8)
        arrays = {name: self.new(name, dtype, rows) for name, dtype in types.items()}
        self.engine.fill(
            f"SELECT user_code, item_code, t, y{extras} FROM indexed "
            f"ORDER BY y DESC, user_code, t, item_code{extras}",
            arrays,
        )
        return arrays

    def _sort_by_item(self, user: NDArray[np.int32], users: int, items: int) -> Arrays:
        """The audiences, and the offsets of both views."""
        arrays = {name: self.new(name, dtype, len(user)) for name, dtype in AUDIENCE.items()}
        self.engine.fill(
            "SELECT user_code, t FROM indexed WHERE y = 1 ORDER BY item_code, t, user_code", arrays
        )
        for name, offsets in (
            ("history_offsets", offsets_of(user, users)),
            ("audience_offsets", self._offsets("indexed WHERE y = 1", "item_code", items)),
        ):
            arrays[name] = self.new(name, np.int64, len(offsets))
            arrays[name][:] = offsets
        return arrays

    def _sort_context(self, users: int, items: int) -> tuple[dict[str, int], Arrays]:
        """How many context events there are of each type, and the columns of their views."""
        counts: dict[str, int] = {}
        arrays: Arrays = {}
        for place, kind in enumerate(self.checked.types.context):
            self.job.advance(note=f"events of the type {kind}")
            counts[kind] = self.engine.table(
                "of_kind",
                f"""SELECT users.code AS user_code, items.code AS item_code, t FROM context
                JOIN users ON u = users.id JOIN items ON i = items.id WHERE kind = {place}""",
            )
            sides = (
                ("history", "user_code", "item_code", users),
                ("audience", "item_code", "user_code", items),
            )
            for view, owner, other, entities in sides:
                ids, times, offsets = (context_column(kind, f"{view}_{part}") for part in _PARTS)
                columns = {ids: np.int32, times: np.int64}
                new = {name: self.new(name, dtype, counts[kind]) for name, dtype in columns.items()}
                self.engine.fill(f"SELECT {other}, t FROM of_kind ORDER BY {owner}, t, {other}", new)
                arrays |= new
                arrays[offsets] = self.new(offsets, np.int64, entities + 1)
                arrays[offsets][:] = self._offsets("of_kind", owner, entities)
        return counts, arrays

    def _offsets(self, events: str, owner: str, entities: int) -> Ints:
        """Where the events of each entity begin and end, if they are sorted by entity."""
        found = self.engine.arrow(f"SELECT {owner} AS code, count(*) AS n FROM {events} GROUP BY {owner}")
        offsets = np.zeros(entities + 1, np.int64)
        offsets[found["code"].to_numpy() + 1] = found["n"].to_numpy()
        return np.cumsum(offsets)

    def _since(self, since: list[Ints] | None) -> Arrays:
        """The times from which users and items exist."""
        arrays: Arrays = {}
        for name, times in zip(SINCE, since or (), strict=False):
            arrays[name] = self.new(name, np.int64, len(times))
            arrays[name][:] = times
        return arrays

    def _no_positive(self, rows: int) -> str:
        """The error message for a log without any positive."""
        labels = ""
        if "label" in self.source.roles:
            labels = f" Its labels are {labels_found(self.engine, self.source)}."
        return (
            f"{self.source.name}: not one positive among {rows} rows; expected some: is --positive "
            f"{self.settings.positive} right?{labels}"
        )


def _write(
    folder: Path, arrays: Arrays, users: pa.Table, items: pa.Table, bad_rows: list[BadRow], metadata: Metadata
) -> None:
    """Write what is not in the arrays, which are files already."""
    for array in arrays.values():
        if isinstance(array, np.memmap):
            array.flush()
    pq.write_table(users, folder / "users.parquet")
    pq.write_table(items, folder / "items.parquet")
    if bad_rows:
        with (folder / "bad_rows.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(asdict(bad_rows[0])))
            writer.writeheader()
            writer.writerows(map(asdict, bad_rows))
    save_metadata(folder, metadata)


def first_of_each(relation: str, key: str, order: str, columns: str) -> str:
    """SQL of the first row, by an order, of all rows with the same key: how duplicates are removed."""
    numbered = f"SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS place FROM {relation}"
    return f"SELECT {columns} FROM ({numbered}) AS placed WHERE place = 1"


def _core(engine: Engine, settings: Preparation, columns: str, rows: int, job: Job) -> tuple[int, int]:
    """Remove users and items with too few rows from the table `core`. Returns the numbers of rows left and of
    iterations.

    A k-core is slow if every iteration counts all rows again. Here each one counts only the rows that the one
    before removed.
    """
    minimum, before, iterations = settings.k_core, rows, 0
    only_positives = settings.count == "positives"
    if settings.core == "authors":
        where = "WHERE y = 1" if only_positives else ""
        for key in ("i", "u"):
            enough = f"SELECT {key} FROM core {where} GROUP BY {key} HAVING count(*) >= {minimum}"
            rows = engine.table("core", f"SELECT {columns} FROM core WHERE {key} IN ({enough})")
        _complain_if_empty(rows, before, settings)
        return rows, 1
    for key in ("u", "i"):
        counts = f"SELECT {key} AS id, SUM({'y' if only_positives else '1'}) AS n FROM core GROUP BY {key}"
        engine.table(f"degree_{key}", counts)
    thin = " OR ".join(
        f"EXISTS (SELECT 1 FROM thin_{key} WHERE thin_{key}.id = core.{key})" for key in ("u", "i")
    )
    while sum(
        engine.table(f"thin_{key}", f"SELECT id FROM degree_{key} WHERE n < {minimum}") for key in ("u", "i")
    ):
        iterations += 1
        job.advance(note=f"k-core, iteration {iterations}: {rows:,} rows")
        counted = " AND y = 1" if only_positives else ""
        engine.table("gone", f"SELECT u, i FROM core WHERE ({thin}){counted}")
        rows = engine.table("core", f"SELECT {columns} FROM core WHERE NOT ({thin})")
        _complain_if_empty(rows, before, settings)
        for key in ("u", "i"):
            engine.table(
                f"degree_{key}",
                f"""SELECT d.id, d.n - COALESCE(lost.n, 0) AS n FROM degree_{key} AS d
                LEFT JOIN (SELECT {key} AS id, count(*) AS n FROM gone GROUP BY {key}) AS lost
                ON lost.id = d.id
                WHERE d.n >= {minimum}""",
            )
    return rows, iterations


def _complain_if_empty(rows: int, before: int, settings: Preparation) -> None:
    if not rows:
        raise BadInput(
            f"k_core {settings.k_core} removes all {before} rows: no users and items with so many "
            f"{settings.count}; try a smaller one"
        )


def _vocabulary(engine: Engine, source: Source, table: str, titled: bool) -> pa.Table:
    """The ids, and maybe titles, in the order of their codes. Ids get back the type that they had in the
    source."""
    columns = ["id", *(["title"] if titled else [])]
    vocabulary = engine.arrow(f"SELECT * FROM {table} ORDER BY code").select(columns)
    role = table.removesuffix("s")
    column = source.roles[role]
    if len(vocabulary) == 1:
        raise BadInput(
            f"{source.name}: one single {role}, {vocabulary['id'][0].as_py()!r}; expected at least two: is "
            f"{column.name!r} the column of the {role}?"
        )
    if column.ids is not None:
        return vocabulary.set_column(0, "id", column.ids.take(vocabulary["id"].combine_chunks()))
    if column.type is None:
        return vocabulary
    return vocabulary.set_column(0, "id", vocabulary["id"].cast(plain(column.type)))
