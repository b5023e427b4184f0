"""The engines that run the SQL: DuckDB on this machine, Spark on a cluster.

Both run the same text. It is standard SQL with a few of Spark's function names, which DuckDB gets as macros.
Whatever else the two dialects do not share is in this file.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unskew.core.errors import BadInput, UnskewError, first_line
from unskew.core.storage import address_of, filesystem

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Arrays = dict[str, NDArray[Any]]

FILE = "unskew_file"  # the column with the file that a row came from
ROW = "unskew_row"  # the column with the number of the row in its file
BATCH_ROWS = 1_000_000

DUCKDB_MACROS = """
CREATE MACRO regexp_like(x, pattern) AS regexp_matches(x, pattern);
CREATE MACRO unix_micros(moment) AS epoch_us(moment);
CREATE MACRO split(x, separator) AS string_split(x, separator);
CREATE MACRO explode(list) AS unnest(list);
CREATE MACRO sequence(first, last) AS generate_series(first, last);
CREATE MACRO zoned_micros(moment) AS epoch_us(CAST(moment AS TIMESTAMPTZ));
CREATE MACRO american_time(x) AS try_strptime(x, '%m/%d/%Y %I:%M:%S %p');
"""
SPARK_FUNCTIONS = (
    "CREATE TEMPORARY FUNCTION zoned_micros(moment TIMESTAMP) RETURNS BIGINT RETURN unix_micros(moment)",
    "CREATE TEMPORARY FUNCTION american_time(x STRING) RETURNS TIMESTAMP RETURN try_to_timestamp(x, "
    "'M/d/yyyy h:mm:ss a')",
)

# The types that a file without a schema can have: in Arrow, in DuckDB and in Spark.
TYPES = {
    "string": ("VARCHAR", "STRING"),
    "int64": ("BIGINT", "BIGINT"),
    "double": ("DOUBLE", "DOUBLE"),
    "bool": ("BOOLEAN", "BOOLEAN"),
}


@dataclass(frozen=True, eq=False)
class Scan:
    """What to read: files of one kind with one set of columns, or an Arrow table."""

    kind: Literal["text", "json", "parquet", "table"]
    schema: pa.Schema  # the columns as SQL sees them; those of a text file are all strings
    names: list[str]  # the names of the columns as the caller sees them
    files: tuple[str, ...] = ()
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    table: pa.Table | None = None
    tolerant: bool = False  # whether lines that cannot be parsed are skipped and remembered


class Unparsed(BadInput):
    """A record of a text file that cannot be parsed. Records are counted from 1, with the header."""

    def __init__(self, file: str, record: int, reason: str, text: str = "") -> None:
        super().__init__(f"{file}, record {record}: {reason}")
        self.file, self.record, self.reason, self.text = file, record, reason, text


class Malformed(BadInput):
    """A text file that cannot be parsed, where the engine does not say which record is wrong."""


class Engine(Protocol):
    """What DuckDB and Spark have in common."""

    def scan(self, scan: Scan) -> str:
        """The FROM clause that reads it. Rows of files also have the column FILE."""

    def table(self, name: str, query: str) -> int:
        """Store the result of a query as a table, and return its number of rows."""

    def number(self, name: str, query: str, order: str) -> int:
        """Store the result of a query as a table, with a column `code` that numbers the rows in an order,
        from 0, and return its number of rows."""

    def arrow(self, query: str) -> pa.Table:
        """The result of a query in memory."""

    def fill(self, query: str, arrays: Arrays) -> None:
        """Copy the result of a query of any size into arrays, in its order. Its columns are in the order of
        the arrays."""

    def numbered(self, scan: Scan, file: str | None) -> str | None:
        """The FROM clause that reads one file, with the column ROW, counted from 1. None where the engine
        cannot number rows."""

    def unparsed(self) -> list["Unparsed"]:
        """The records that a tolerant scan could not parse."""

    def close(self) -> None:
        """Free what the engine holds."""


class DuckDB(Engine):
    """SQL on this machine. `memory` is a limit such as 2GB; `scratch` is a folder for temporary files. The
    methods are explained in `Engine`."""

    def __init__(self, memory: str, scratch: Path) -> None:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": memory,
            "temp_directory": str(scratch),
            "autoinstall_known_extensions": False,
            # The statistics of a Parquet file leave NaN out. DuckDB would trust them and never find one.
            "disabled_optimizers": "statistics_propagation",
        }
        try:
            self.connection = duckdb.connect(config=settings)
        except duckdb.Error as error:
            raise BadInput(f"memory {memory!r}: {first_line(error)}") from None
        with suppress(duckdb.InvalidInputException):  # in a notebook without ipywidgets there is none to hide
            self.connection.execute("SET enable_progress_bar = false")  # ours says more, and knows where to
        self.connection.execute(DUCKDB_MACROS)

    def scan(self, scan: Scan) -> str:
        if scan.table is not None:
            self.connection.register("source_table", scan.table)
            return "source_table"
        if patterned := next((file for file in scan.files if set(file) & set("*?[")), None):
            raise BadInput(f"{patterned}: DuckDB would take this name for a pattern; rename the file")
        register_stores(self.connection, scan.files)
        files = "[" + ", ".join(map(literal, scan.files)) + "]"
        reader = f"{files}, filename = '{FILE}', hive_partitioning = false"
        if scan.kind == "parquet":
            return f"read_parquet({reader})"
        types = ", ".join(
            f"{literal(field.name)}: '{TYPES[str(field.type)][0]}'"
            for field in scan.schema
            if str(field.type) in TYPES
        )
        reader += f", columns = {{{types}}}, ignore_errors = {scan.tolerant}"
        if scan.kind == "json":
            return f"read_json({reader}, format = 'newline_delimited')"
        quote = f"quote = {literal(scan.quote)}, escape = {literal(scan.quote)}"
        return (
            f"read_csv({reader}, auto_detect = false, header = {scan.header}, delim = "
            f"{literal(scan.delimiter)}, {quote}"
            f"{', store_rejects = true' if scan.tolerant else ''})"
        )

    def table(self, name: str, query: str) -> int:
        with _plain_errors():
            self.connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")
            (count,) = self.connection.execute(f"SELECT count(*) FROM {name}").fetchall()[0]
        return int(count)

    def number(self, name: str, query: str, order: str) -> int:
        code = f"CAST(row_number() OVER (ORDER BY {order}) - 1 AS BIGINT) AS code"
        return self.table(name, f"SELECT *, {code} FROM ({query})")

    def arrow(self, query: str) -> pa.Table:
        with _plain_errors():
            return self.connection.sql(query).to_arrow_table()

    def fill(self, query: str, arrays: Arrays) -> None:
        place = 0
        with _plain_errors():
            for batch in self.connection.sql(query).to_arrow_reader(BATCH_ROWS):
                copy_batch(batch, arrays, place)
                place += batch.num_rows
        _check_rows(place, arrays)

    def numbered(self, scan: Scan, file: str | None) -> str:
        one = scan if file is None else replace(scan, files=(file,))
        # Without ORDER BY, rows are numbered in the order of the file, which DuckDB preserves.
        return f"(SELECT *, row_number() OVER () AS {ROW} FROM {self.scan(one)})"

    def unparsed(self) -> list[Unparsed]:
        known = self.connection.execute(
            "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'reject_errors'"
        ).fetchall()
        if known == [(0,)]:
            return []
        rows = self.connection.execute(
            """SELECT file_path, line, min(error_message), any_value(csv_line)
            FROM reject_errors JOIN reject_scans USING (scan_id, file_id)
            GROUP BY file_path, line ORDER BY file_path, line"""
        ).fetchall()
        return [Unparsed(file, int(line), _why_unparsed(message), text) for file, line, message, text in rows]

    def close(self) -> None:
        self.connection.close()


class Spark(Engine):
    """SQL on Spark 4. `master` is `local[*]` or the address of a cluster; `scratch` is a folder that the
    driver and the workers share, and unskew is installed on all of them. The methods are explained in
    `Engine`."""

    def __init__(self, master: str, memory: str, scratch: Path) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise BadInput(
                "engine spark needs the extra: pip install '.[spark]' in a clone of unskew (and Java 17)"
            ) from None
        settings = {
            "spark.driver.memory": memory.lower().rstrip("b"),
            "spark.sql.ansi.enabled": "true",
            "spark.sql.ansi.doubleQuotedIdentifiers": "true",  # "name" is a column in both dialects
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "8" if master.startswith("local") else "200",
            "spark.local.dir": str(scratch),
            "spark.sql.warehouse.dir": str(scratch / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }
        if master.startswith("local"):
            settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # no setting of a session says it
        builder = SparkSession.builder.master(master).appName("unskew")
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            self.session = builder.getOrCreate()
        except Exception as error:
            raise UnskewError(
                f"Spark did not start at {master}: {first_line(error)}; is Java 17 installed?"
            ) from error
        for function in SPARK_FUNCTIONS:
            self.session.sql(function)
        self._scratch = scratch
        self._written = 0
        self._tables: dict[str, Path] = {}

    def scan(self, scan: Scan) -> str:
        from pyspark.sql import functions as sql

        # Hadoop's client of S3 (the package hadoop-aws, which the cluster has) goes by s3a.
        scan = replace(scan, files=tuple(re.sub("^s3:", "s3a:", file) for file in scan.files))
        if scan.table is not None:
            frame = self.session.createDataFrame(scan.table)
        elif scan.kind == "parquet":
            frame = self.session.read.parquet(*scan.files).withColumn(FILE, sql.input_file_name())
        else:
            columns = ", ".join(
                f"`{field.name}` {TYPES[str(field.type)][1]}"
                for field in scan.schema
                if str(field.type) in TYPES
            )
            mode = "DROPMALFORMED" if scan.tolerant else "FAILFAST"
            reader = self.session.read.schema(columns).option("mode", mode)
            if scan.kind == "json":
                frame = reader.json(list(scan.files))
            else:
                # The names of the columns are our own, so the header is skipped and not compared. Line breaks
                # inside quotes belong to the value.
                reader = reader.options(
                    header=scan.header,
                    sep=scan.delimiter,
                    quote=scan.quote,
                    escape=scan.quote,
                    multiLine=bool(scan.quote),
                )
                frame = reader.csv(list(scan.files))
            frame = frame.withColumn(FILE, sql.input_file_name())
        frame.createOrReplaceTempView("source_table")
        return "source_table"

    def table(self, name: str, query: str) -> int:
        with _spark_errors():
            return self._store(name, self.session.sql(query))

    def _store(self, name: str, frame: "DataFrame") -> int:
        """Write a table to the folder that all workers share, as a new table of that name, and return its
        number of rows. So the plan of a table begins at its file, however many tables came before, and
        nothing is lost with a worker."""
        folder = self._folder()
        frame.write.parquet(str(folder))
        self.session.read.parquet(str(folder)).createOrReplaceTempView(name)
        if name in self._tables:  # other tables that were made from it are files themselves
            shutil.rmtree(self._tables[name], ignore_errors=True)
        self._tables[name] = folder
        return sum(pq.read_metadata(part).num_rows for part in _parts(folder))

    def _folder(self) -> Path:
        self._written += 1
        return self._scratch / f"written-{self._written}"

    def number(self, name: str, query: str, order: str) -> int:
        # A window over everything is computed by one single task. Here, the rows are sorted in ranges. A row
        # is numbered within its range, and the ranges before it are counted.
        from pyspark.sql import functions as sql

        with _spark_errors():
            frame = self.session.sql(f"SELECT * FROM ({query}) AS unnumbered ORDER BY {order}")
            frame = frame.withColumn("unskew_range", sql.spark_partition_id())
            frame = frame.withColumn("unskew_place", sql.monotonically_increasing_id())
            rows = self._store(name, frame)
            counts = self.session.sql(
                f"SELECT unskew_range AS range, count(*) AS rows, min(unskew_place) AS first FROM {name} "
                "GROUP BY unskew_range ORDER BY unskew_range"
            ).toArrow()
            ends = np.cumsum(counts["rows"].to_numpy())
            start = ends - counts["rows"].to_numpy() - counts["first"].to_numpy()
            starts = self.session.createDataFrame(pa.table({"unskew_range": counts["range"], "start": start}))
            frame = self.session.table(name).join(sql.broadcast(starts), "unskew_range")
            frame = frame.withColumn("code", sql.col("unskew_place") + sql.col("start"))
            self._store(name, frame.drop("unskew_range", "unskew_place", "start"))
        return rows

    def arrow(self, query: str) -> pa.Table:
        with _spark_errors():
            return self.session.sql(query).toArrow()

    def fill(self, query: str, arrays: Arrays) -> None:
        # The workers sort, write the sorted parts, and then copy each part to its place in the files of the
        # arrays. The driver reads no row.
        mapped = {name: array for name, array in arrays.items() if isinstance(array, np.memmap)}
        assert len(mapped) == len(arrays), "Spark fills arrays on disk"
        files = {name: str(array.filename) for name, array in mapped.items()}
        folder = self._folder()
        with _spark_errors():
            self.session.sql(query).write.parquet(str(folder))
            parts = _parts(folder)
            rows = [pq.read_metadata(part).num_rows for part in parts]
            _check_rows(sum(rows), arrays)
            for array in mapped.values():
                array.flush()
            places = np.cumsum([0, *rows[:-1]]).tolist()
            jobs = [(str(part), place) for part, place, some in zip(parts, places, rows, strict=True) if some]
            if jobs:
                frame = self.session.createDataFrame(jobs, "part STRING, place LONG").repartition(len(jobs))
                frame.mapInArrow(_part_writer(files), "rows LONG").collect()
        shutil.rmtree(folder, ignore_errors=True)

    def numbered(self, scan: Scan, file: str | None) -> None:
        return None  # rows of a distributed read have no numbers

    def unparsed(self) -> list[Unparsed]:
        return []  # Spark drops malformed lines without saying which

    def close(self) -> None:
        self.session.stop()


def register_stores(connection: "duckdb.DuckDBPyConnection", files: Iterable[str]) -> None:
    """Let a connection read the files that are in object stores, through Arrow's clients of them."""
    for scheme in {address.partition("://")[0] for address in map(address_of, files) if address}:
        if not connection.filesystem_is_registered(scheme):
            from fsspec.implementations.arrow import ArrowFSWrapper  # it comes with torch

            class Store(ArrowFSWrapper):  # type: ignore[misc]
                protocol = scheme

                @classmethod
                def _strip_protocol(cls, path: str) -> str:
                    return path.partition("://")[2] or path

            connection.register_filesystem(Store(filesystem(scheme)))


def copy_batch(batch: pa.RecordBatch, arrays: Arrays, place: int) -> None:
    """Copy the columns of a batch into arrays, from a place on."""
    for (name, array), column in zip(arrays.items(), batch.columns, strict=False):
        if column.null_count:
            raise UnskewError(
                f"column {name}: {column.null_count} values were lost on the way; this is a fault of unskew"
            )
        array[place : place + len(column)] = column.to_numpy(zero_copy_only=False)


def _check_rows(rows: int, arrays: Arrays) -> None:
    expected = len(next(iter(arrays.values())))
    if rows != expected:
        raise UnskewError(f"{rows} rows came of {expected}; this is a fault of unskew")


def _parts(folder: Path) -> list[Path]:
    """The parts of a table that Spark wrote, in their order."""
    return sorted(folder.glob("part-*.parquet"))


def _part_writer(files: dict[str, str]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a worker runs: it copies sorted parts to their places in the files of the arrays."""

    def write(jobs: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for job in jobs:
            for part, place in zip(*(column.to_pylist() for column in job.columns), strict=True):
                arrays = {name: np.load(file, mmap_mode="r+") for name, file in files.items()}
                done = 0
                for batch in pq.ParquetFile(part).iter_batches(BATCH_ROWS):
                    copy_batch(batch, arrays, place + done)
                    done += batch.num_rows
                for array in arrays.values():
                    assert isinstance(array, np.memmap)
                    array.flush()
                yield pa.record_batch({"rows": [done]})

    return write


def literal(text: str) -> str:
    """The text as a string in SQL."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """The name of a column in SQL."""
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Turn DuckDB's errors into ours: one line that names the file."""
    try:
        yield
    except RuntimeError as error:
        if "interrupt" in str(error).lower():
            raise KeyboardInterrupt from None
        if not isinstance(error, duckdb.Error):
            raise
        raise _plain(error) from error
    except duckdb.Error as error:
        raise _plain(error) from error


def _plain(error: duckdb.Error) -> UnskewError:
    """Our error for one of DuckDB's."""
    text = str(error)
    if "CSV Parser state machine" in text:  # DuckDB says neither where nor why
        return Malformed("a carriage return in the middle of a line; save the file with ordinary line ends")
    record, file = re.search(r"on Line: (\d+)", text), re.search(r"\bfile = (.*)", text)
    if record and file:
        return Unparsed(file.group(1), int(record.group(1)), _why_unparsed(text))
    if cut := re.search(r"GZIP stream: (.*)", text):
        return BadInput(f"{cut.group(1)}: the gzip file is cut off; fetch it again")
    if isinstance(error, duckdb.OutOfMemoryException):
        return UnskewError(f"{first_line(error)}; allow more with --memory")
    if isinstance(error, duckdb.InvalidInputException | duckdb.ConversionException):
        return BadInput(first_line(error))
    return UnskewError(f"DuckDB: {first_line(error)}")


@contextmanager
def _spark_errors() -> Iterator[None]:
    """Turn Spark's errors into ours: one line, without the stack of Java."""
    try:
        yield
    except UnskewError:
        raise
    except Exception as error:
        cause = re.search(r"(Caused by: .*|MALFORMED_RECORD.*|\[[A-Z_.]+\].*)", str(error))
        wrong_input = re.search(r"MALFORMED|EOFException|FAILED_READ_FILE|CAST_INVALID_INPUT", str(error))
        raise (BadInput if wrong_input else UnskewError)(
            f"Spark: {cause.group(1) if cause else first_line(error)}"
        ) from error


def _why_unparsed(text: str) -> str:
    """Why DuckDB cannot parse a line: in our words for the usual reasons, otherwise in its own."""
    if width := re.search(r"Expected Number of Columns: (\d+) Found: (\d+)", text):
        return f"expected {width.group(1)} fields, found {width.group(2)}"
    if "nicode" in text or "utf-8" in text.lower():
        return "bytes that are not UTF-8"
    return "a quote that is not closed" if "unterminated quote" in text else first_line(text)
