"""Writing files completely or not at all, and reading tables."""

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from unskew.core.errors import BadInput, UnskewError
from unskew.core.storage import address_of, exists, upload

FRAMES = (".parquet", ".pq", ".csv", ".jsonl")


@contextmanager
def beside(target: Path) -> Iterator[Path]:
    """A temporary path beside `target`. The file there takes the place of `target` if all goes well, and is
    removed otherwise."""
    path = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        yield path
        path.rename(target)
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def write_text(file: Path, text: str) -> None:
    """Write a text file, whole or not at all, over what was there; a folder that is missing is made."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with beside(file) as path:
            path.write_text(text, encoding="utf-8")
    except (FileExistsError, NotADirectoryError):
        raise UnskewError(f"{file}: cannot be written ({file.parent} is not a folder)") from None
    except OSError as error:
        raise UnskewError(f"{file}: cannot be written ({error.strerror})") from None


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """The same for a new file: one that exists is never overwritten, and what fails is said. A file for an
    object store is made in a temporary folder."""
    if address := address_of(target):
        check_free(target)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, target.name)
            yield path
            check_free(target)
            upload(path, address)
        return
    try:
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target) as path:
            yield path
            check_free(target)
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise BadInput(f"{target}: cannot write there ({error.strerror})") from None
    except OSError as error:
        raise UnskewError(
            f"{target}: writing failed ({error.strerror or error}); nothing was written"
        ) from error


def check_free(target: Path) -> None:
    """Refuse a path that exists already."""
    if exists(target):
        raise BadInput(f"{address_of(target) or target}: exists already; nothing was written")


def save_frames(frames: Iterator[pa.Table], file: Path) -> None:
    """Write frames of one schema as one file, whole or not at all: Parquet, or CSV or JSON lines by the end
    of its name."""
    if file.suffix not in FRAMES:
        raise BadInput(f"{file}: expected a name that ends with {', '.join(FRAMES)}")
    with new_file(file) as target:
        first = next(frames, None)
        if first is None:
            raise BadInput(f"{file}: there is nothing to write")
        if file.suffix == ".jsonl":
            with target.open("w", encoding="utf-8") as lines:
                for frame in chain([first], frames):
                    lines.writelines(json.dumps(row, default=str) + "\n" for row in frame.to_pylist())
            return
        make = csv.CSVWriter if file.suffix == ".csv" else pq.ParquetWriter
        with make(target, first.schema) as writer:
            for frame in chain([first], frames):
                writer.write_table(frame)


def read_parquet(file: str | os.PathLike[str]) -> pa.Table:
    """The table of one file. `pyarrow.parquet.read_table` does the same, and imports pandas for it."""
    with pq.ParquetFile(file) as opened:
        return opened.read()


def sync_folder(folder: Path) -> None:
    """Make the names of the files in a folder outlive a power cut."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
