"""Arrays that are derived from a log, such as its events in the order of time: computed once and kept.

Those of a small log are in memory. A large prepared folder has them as files in its folder `derived`, which
are mapped into memory and never copied, so all processes that open the folder share them. Whoever needs one
first writes it, under a lock, and it appears whole. `derived/stamp.json` has the sizes and the times of the
columns that they were derived from; if these are others, all are derived again.
"""

import json
import os
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
from numpy.typing import DTypeLike, NDArray

from unskew.core.atomic_files import beside
from unskew.core.errors import UnskewError
from unskew.core.file_lock import wait_for_lock
from unskew.core.progress import progress
from unskew.data.log.arrays import CHUNK, Ints, chunks
from unskew.data.log.folder import DERIVED, new_array

FORMAT = 1  # of the files; it is raised when one of them would be misread
STAMP = "stamp.json"
LARGE = 1_000_000  # from so many rows on, a log is large

Fill = Callable[[NDArray[Any]], None]


class _Lock:
    """The lock of a folder within this process: a thread that has it may ask for more arrays."""

    def __init__(self) -> None:
        self.thread, self.depth = threading.RLock(), 0


class Shelf:
    """Keeps derived arrays in memory."""

    def __init__(self) -> None:
        self._kept: dict[str, NDArray[Any]] = {}

    def array(self, name: str, dtype: DTypeLike, shape: int | tuple[int, ...], fill: Fill) -> NDArray[Any]:
        """The array of a name, which `fill` computes into an empty one if it is not there yet."""
        if name not in self._kept:
            made = np.empty(shape, dtype)
            fill(made)
            self._kept[name] = made
        return self._kept[name]

    def own_copy(self, name: str, dtype: DTypeLike, shape: int, fill: Fill) -> NDArray[Any]:
        """The same array for a process that changes it. Of a mapped one, only the pages that are changed are
        copied."""
        made = np.empty(shape, dtype)
        fill(made)
        return made

    def part(self, name: str) -> "Shelf":
        """A shelf for what is derived of a part of the log, such as the histories."""
        return Shelf()


class FolderShelf(Shelf):
    """Keeps derived arrays beside the columns of a prepared folder, and maps them read-only.

    files: what they are derived from.
    """

    def __init__(self, folder: Path, files: Mapping[str, Path], prefix: str = "") -> None:
        super().__init__()
        self.folder, self._files, self._prefix = folder / DERIVED, files, prefix
        self._lock = _Lock()

    def part(self, name: str) -> "FolderShelf":
        """See `Shelf`."""
        shelf = FolderShelf(self.folder.parent, self._files, f"{self._prefix}{name}-")
        shelf._lock = self._lock
        return shelf

    def array(self, name: str, dtype: DTypeLike, shape: int | tuple[int, ...], fill: Fill) -> NDArray[Any]:
        """See `Shelf`."""
        if name in self._kept:
            return self._kept[name]
        size = (shape,) if isinstance(shape, int) else shape
        found = self._read(name, dtype, size)
        if found is None:
            with self._locked() as is_writable:
                if not is_writable:
                    return super().array(name, dtype, shape, fill)
                found = self._read(name, dtype, size)
                if found is None:
                    self._write(name, dtype, size, fill)
                    found = self._read(name, dtype, size)
        if found is None:
            raise UnskewError(f"{self._path(name)}: was written and cannot be read; is the disk healthy?")
        self._kept[name] = found
        return found

    def own_copy(self, name: str, dtype: DTypeLike, shape: int, fill: Fill) -> NDArray[Any]:
        """See `Shelf`."""
        found = self.array(name, dtype, shape, fill)
        if found.flags.writeable:  # the folder cannot be written, so it is in memory
            return found.copy()
        return np.asarray(np.load(self._path(name), mmap_mode="c", allow_pickle=False))

    def fingerprint(self, compute: Callable[[], str]) -> str:
        """The fingerprint of the log, computed once for all who open the folder."""
        stamp = self._stamp()
        if stamp.get("files") == self._sources() and "fingerprint" in stamp:
            return str(stamp["fingerprint"])
        found = compute()
        with self._locked() as is_writable:
            if is_writable:
                self._write_stamp(fingerprint=found)
        return found

    @property
    def is_checked(self) -> bool:
        """Whether the values of the columns, as they are, were checked."""
        try:
            return bool(self._stamp().get("checked")) and self._stamp().get("files") == self._sources()
        except OSError:
            return False

    def set_checked(self) -> None:
        """Remember that the values of the columns were checked."""
        if not self.is_checked:
            with self._locked() as is_writable:
                if is_writable:
                    self._write_stamp(checked=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{quote(self._prefix + name, safe='')}.npy"

    def _sources(self) -> dict[str, list[int]]:
        """The size and the time of each column."""
        states = {name: path.stat() for name, path in self._files.items()}
        return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}

    def _stamp(self) -> dict[str, Any]:
        try:
            stamp = json.loads((self.folder / STAMP).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) and stamp.get("format") == FORMAT else {}

    def _read(self, name: str, dtype: DTypeLike, shape: tuple[int, ...]) -> NDArray[Any] | None:
        """The array, if it is there and derived from the columns as they are."""
        if self._stamp().get("files") != self._sources():
            return None
        try:
            found = np.asarray(np.load(self._path(name), mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError):
            return None
        return found if found.shape == shape and found.dtype == np.dtype(dtype) else None

    def _write(self, name: str, dtype: DTypeLike, shape: tuple[int, ...], fill: Fill) -> None:
        try:
            with progress("derive") as job, beside(self._path(name)) as path:
                job.advance(0, name)
                made = new_array(path, dtype, shape)
                fill(made)
                if isinstance(made, np.memmap):
                    made.flush()
        except OSError as error:
            raise UnskewError(f"{self._path(name)}: writing failed ({error.strerror or error})") from error

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the lock of the derived arrays, which are emptied if the columns are others now. False if the
        folder cannot be written."""
        with self._lock.thread:
            if self._lock.depth:
                yield True
                return
            try:
                self.folder.mkdir(exist_ok=True)
                if not os.access(self.folder, os.W_OK):
                    raise PermissionError
            except OSError:
                warnings.warn(
                    f"{self.folder}: cannot be written, so this process keeps what it derives from the log "
                    "in its own memory; let another one that may write open the folder once",
                    stacklevel=4,
                )
                yield False
                return
            lock = wait_for_lock(self.folder)
            self._lock.depth = 1
            try:
                if self._stamp().get("files") != self._sources():
                    self._empty()
                    self._write_stamp()
                yield True
            finally:
                self._lock.depth = 0
                os.close(lock)

    def _empty(self) -> None:
        for path in self.folder.iterdir():
            with suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _write_stamp(self, **more: Any) -> None:
        stamp = self._stamp() if self._stamp().get("files") == self._sources() else {}
        document = stamp | {"format": FORMAT, "files": self._sources()} | more
        with beside(self.folder / STAMP) as path:
            path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# What is derived


def places_type(length: int) -> DTypeLike:
    """The type of positions in a table of this length."""
    return np.int32 if length <= np.iinfo(np.int32).max else np.int64


def with_room(column: NDArray[Any], value: int) -> Fill:
    """Fill an array with a column, and with a value behind it."""

    def fill(values: NDArray[Any]) -> None:
        for part in chunks(len(column)):
            values[part] = column[part]
        values[len(column) :] = value

    return fill


def taken(column: NDArray[Any], places: NDArray[np.integer]) -> Fill:
    """Fill an array with the values of a column at some places."""

    def fill(values: NDArray[Any]) -> None:
        for part in chunks(len(values)):
            values[part] = column[places[part]]

    return fill


class Blocks(Protocol):
    """What has a block of events for each entity, such as a view."""

    @property
    def starts(self) -> Ints:
        """Where the block of each entity begins."""

    @property
    def ends(self) -> Ints:
        """Where it ends."""


def places_by_id(view: Blocks, ids: NDArray[np.integer]) -> Fill:
    """Fill an array with the positions of each entity's events in the order of their ids; those of one id
    keep their order."""

    def fill(places: NDArray[Any]) -> None:
        for block in entity_chunks(view):
            own = slice(int(view.starts[block.start]), int(view.ends[block.stop - 1]))
            sizes = view.ends[block] - view.starts[block]
            entity = np.repeat(np.arange(len(sizes)), sizes)
            places[own] = own.start + np.lexsort((ids[own], entity))

    return fill


def entity_chunks(view: Blocks) -> Iterator[slice]:
    """Consecutive entities, with about as many events together as a chunk has; at least one at a time."""
    events = np.concatenate([np.zeros(1, np.int64), np.cumsum(view.ends - view.starts)])
    first, entities = 0, len(events) - 1
    while first < entities:
        last = int(np.searchsorted(events, events[first] + CHUNK, "right")) - 1
        last = min(max(last, first + 1), entities)
        yield slice(first, last)
        first = last
