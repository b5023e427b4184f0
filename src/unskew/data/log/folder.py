"""The prepared folder: a log on disk, written completely or not at all.

data.json                     how the log was made, and what was removed
users.parquet, items.parquet  the caller's ids, with titles and features
*.npy                         one column each, mapped into memory and never copied
derived/                      what was computed of the columns (`derived.py`), which may be removed
"""

import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike, NDArray

from unskew.core.atomic_files import read_parquet
from unskew.core.config import Document, parse_json
from unskew.core.damage import reading
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.arrays import check_codes, check_offsets, check_times
from unskew.data.log.preparation import Metadata
from unskew.data.log.vocabulary import Vocabulary

COLUMNS = {"user": np.int32, "item": np.int32, "time": np.int64, "label": np.int8}
EXTRAS = {"propensity": np.float64, "exposed": np.int8, "position": np.int32, "impression_id": np.int64}
AUDIENCE = {"audience_user": np.int32, "audience_time": np.int64}
OFFSETS = ("history_offsets", "audience_offsets")
SINCE = ("user_since", "item_since")  # from when each id exists, where that is not its first positive
MARK = "test:"  # the prefix of a column that says which rows belong to a named test
CONTEXT = "context:"  # the prefix of the columns with the events of a context type
TYPE_COLUMN = f"{CONTEXT}type"  # in `Log.table`: the context type of each event, null for rows of the log
VIEW_PARTS = {
    f"{view}_{part}": dtype
    for view in ("history", "audience")
    for part, dtype in (("ids", np.int32), ("times", np.int64), ("offsets", np.int64))
}
CHUNK = 1 << 20  # events that are checked together
_MIX = tuple(np.uint64(factor) for factor in (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))

DERIVED = "derived"  # the folder with what is computed of the columns; see `derived.py`

FORMAT = 2  # the version of the folder's format; it is raised when an older reader would misread it

NewArray = Callable[[str, type, int], NDArray[Any]]  # (name, dtype, length) -> an array to fill


class Stored(NamedTuple):
    """What a prepared folder holds."""

    columns: dict[str, NDArray[Any]]
    users: pa.Table  # the columns of a `Vocabulary`
    items: pa.Table
    metadata: Metadata


def read_folder(folder: Path, is_checked: bool = False) -> Stored:
    """Read a prepared folder. The columns stay on disk and are mapped into memory.

    is_checked: whether it is known that the values of these columns fit each other.
    """
    document = _read_document(folder)
    with reading(f"{folder}: the prepared folder is damaged", "; prepare it again"):
        metadata = Metadata.from_dict(document)
        expected = _expected(metadata)
        columns = {
            # A plain array on the mapped pages: a `memmap` makes each look-up slower.
            name: np.asarray(np.load(column_file(folder, name), mmap_mode="r", allow_pickle=False))
            for name in expected
        }
        users, items = (read_parquet(folder / name) for name in ("users.parquet", "items.parquet"))
        for name, values in columns.items():
            kind, length = expected[name]
            if values.dtype != kind or values.ndim != 1:
                raise ValueError(f"{name} is no column of the type {np.dtype(kind)}")
            _check_length(name, len(values), length)
        for name, table, length in (("users", users, metadata.users), ("items", items, metadata.items)):
            _check_length(name, len(table), length)
            table.validate(full=True)
            Vocabulary.of_table(table)
        if not is_checked:
            _check_values(columns, metadata)
    return Stored(columns, users, items, metadata)


def _expected(metadata: Metadata) -> dict[str, tuple[type, int]]:
    """The type and the length of each column of a folder."""
    of_rows = COLUMNS | {name: EXTRAS.get(name, np.int8) for name in metadata.extras}  # or a mark
    sizes = {"user": metadata.users, "item": metadata.items}
    offsets = {"history": metadata.users + 1, "audience": metadata.items + 1}
    expected: dict[str, tuple[type, int]] = {name: (kind, metadata.rows) for name, kind in of_rows.items()}
    expected |= {name: (kind, metadata.positives) for name, kind in AUDIENCE.items()}
    expected |= {f"{view}_offsets": (np.int64, length) for view, length in offsets.items()}
    expected |= {name: (np.int64, sizes[name.removesuffix("_since")]) for name in metadata.since}
    for kind, events in metadata.types.context.items():
        for part, dtype in VIEW_PARTS.items():
            view, _, values = part.partition("_")
            length = offsets[view] if values == "offsets" else events
            expected[context_column(kind, part)] = dtype, length
    return expected


def _check_length(name: str, found: int, expected: int) -> None:
    if found != expected:
        raise ValueError(f"{name} is not as long as data.json says")


def _check_values(columns: dict[str, NDArray[Any]], metadata: Metadata) -> None:
    """Refuse columns that do not fit each other: codes of nobody, offsets that cut nothing, times that fall
    within a sequence, and views that do not hold the same events."""
    sizes = {"user": metadata.users, "item": metadata.items}
    for name, size in sizes.items():
        check_codes(name, columns[name], size)
    for histories, audiences in _views(columns, metadata):
        for view, others in ((histories, "item"), (audiences, "user")):
            check_codes(f"{view.name}_ids", view.ids, sizes[others])
            check_offsets(f"{view.name}_offsets", view.offsets, len(view.ids))
            check_times(f"{view.name}_times", view.times, view.offsets)
        if histories.digest(0) != audiences.digest(1):
            raise ValueError(f"{histories.name} and {audiences.name} do not hold the same events")
    positives, offsets = metadata.positives, columns["history_offsets"]
    for first in range(0, positives, CHUNK):
        if not np.array_equal(
            columns["user"][first : min(first + CHUNK, positives)], _owners(offsets, first)
        ):
            raise ValueError("user: expected the users of the histories")


def _owners(offsets: NDArray[Any], first: int) -> NDArray[Any]:
    """Whose the events from `first` on are, a chunk of them."""
    ends = np.clip(offsets, first, first + CHUNK)
    return np.repeat(np.arange(len(ends) - 1), np.diff(ends))


class _View(NamedTuple):
    """The columns of a view, and the name that begins theirs."""

    name: str
    ids: NDArray[Any]
    times: NDArray[Any]
    offsets: NDArray[Any]

    def digest(self, owner: int) -> int:
        """A number that does not depend on the order of the events. `owner` is 0 if the owners of the
        sequences are users, and 1 if they are items."""
        total = 0
        for first in range(0, len(self.ids), CHUNK):
            some = slice(first, first + CHUNK)
            pair = _owners(self.offsets, first), self.ids[some]
            user, item, time = (
                np.asarray(part).astype(np.uint64)
                for part in (pair[owner], pair[1 - owner], self.times[some])
            )
            mixed = user * _MIX[0] + item * _MIX[1] + time * _MIX[2]
            mixed ^= mixed >> np.uint64(29)
            total += int((mixed * _MIX[0]).sum(dtype=np.uint64))
        return total % 2**64


def _views(columns: dict[str, NDArray[Any]], metadata: Metadata) -> Iterator[tuple[_View, _View]]:
    """The histories and the audiences of the positives, and of each context type."""
    item, time = (columns[name][: metadata.positives] for name in ("item", "time"))
    audience = (columns[f"audience_{part}"] for part in ("user", "time", "offsets"))
    yield _View("history", item, time, columns["history_offsets"]), _View("audience", *audience)
    for kind in metadata.types.context:
        histories, audiences = (
            _View(name, *(columns[f"{name}_{part}"] for part in ("ids", "times", "offsets")))
            for name in (context_column(kind, view) for view in ("history", "audience"))
        )
        yield histories, audiences


def in_memory(name: str, dtype: type, length: int) -> NDArray[Any]:
    """A new array in memory; see `on_disk` for one that is a file."""
    return np.empty(length, dtype)


def column_file(folder: Path, name: str) -> Path:
    """The file of a column. Names of tests and of types are chosen by the caller, so they are escaped."""
    return folder / f"{quote(name, safe='') if name.startswith((MARK, CONTEXT)) else name}.npy"


def context_column(kind: str, part: str) -> str:
    """The name of a column with the events of a context type; the parts are those of `VIEW_PARTS`."""
    return f"{CONTEXT}{kind}:{part}"


def on_disk(folder: Path) -> NewArray:
    """A function that makes new arrays which are .npy files in this folder. Their space is allocated first,
    so that a full disk is an error here and not a crash when the array is filled."""

    return lambda name, dtype, length: new_array(column_file(folder, name), dtype, length)


def new_array(path: Path, dtype: DTypeLike, shape: int | tuple[int, ...]) -> NDArray[Any]:
    """A new array that is a .npy file, whose space is allocated."""
    kind, shape = np.dtype(dtype), (shape,) if isinstance(shape, int) else shape
    size = int(np.prod(shape)) * kind.itemsize
    if size == 0:
        with path.open("wb") as file:
            np.save(file, np.empty(shape, kind))
        return np.empty(shape, kind)
    with path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), file.tell(), size)
        else:
            file.truncate(file.tell() + size)
    # A name that does not end with .npy is opened, too.
    return np.lib.format.open_memmap(path, mode="r+")


OURS = {f"{name}.npy" for name in (*COLUMNS, *EXTRAS, *AUDIENCE, *OFFSETS, *SINCE)} | {
    "users.parquet",
    "items.parquet",
    "data.json",
    "bad_rows.csv",
}


def _is_ours(name: str) -> bool:
    """Whether `prepare` writes files of this name, or what reads them."""
    prefixes = tuple(quote(prefix, safe="") for prefix in (MARK, CONTEXT))
    return name in (*OURS, DERIVED) or (name.startswith(prefixes) and name.endswith(".npy"))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A temporary folder that replaces `target` if all goes well and is removed otherwise. Until then,
    `target` stays as it is."""
    _check_replaceable(target)
    # Its name is known before it is there, so it is removed whenever an interrupt comes.
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(6)}")
    try:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch.mkdir(mode=0o755)
        except OSError as error:
            raise BadInput(f"{target}: cannot write there ({error.strerror})") from None
        yield scratch
        _check_replaceable(target)
        _swap(scratch, target)
    except OSError as error:
        raise UnskewError(
            f"{target}: writing failed ({error.strerror or error}); nothing was written"
        ) from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _check_replaceable(target: Path) -> None:
    """Refuse to replace anything but an empty folder, or one that holds only what `prepare` writes."""
    if not target.exists():
        return
    try:
        names = sorted(path.name for path in target.iterdir()) if target.is_dir() else None
    except OSError as error:
        raise BadInput(f"{target}: cannot be read ({error.strerror})") from None
    foreign = next((name for name in names or () if not _is_ours(name)), None)
    if foreign is not None:
        raise BadInput(f"{target}: exists and holds {foreign!r}, which would be lost; nothing was written")
    if names is None or (names and not is_prepared(target)):
        raise BadInput(f"{target}: exists and is not a prepared folder; nothing was written")


def _swap(scratch: Path, target: Path) -> None:
    """Move a folder to `target`. What was there is moved aside first, and back if this fails."""
    if not target.exists():
        scratch.rename(target)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.old.", dir=target.parent))
    try:
        target.rename(aside / target.name)
        try:
            scratch.rename(target)
        except OSError:
            (aside / target.name).rename(target)
            raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def is_prepared(folder: Path) -> bool:
    """Whether `prepare` made this folder."""
    try:
        document = parse_json((folder / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and "format" in document


def save_metadata(folder: Path, metadata: Metadata) -> None:
    """Write data.json."""
    document = {"format": FORMAT, **metadata.as_dict()}
    (folder / "data.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _read_document(folder: Path) -> Document:
    """Read data.json without the number of the format, with an error that says what to do if there is
    none."""
    try:
        document: Document = parse_json((folder / "data.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        if folder.is_file():
            raise BadInput(
                f"{folder}: a file, not a prepared folder; prepare it first: `unskew prepare {folder} --out "
                "DATA`"
            ) from None
        missing = "no such folder" if not folder.exists() else "not a prepared folder (no data.json)"
        raise BadInput(f"{folder}: {missing}; `unskew prepare SOURCE --out DATA` makes one") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder / 'data.json'}: cannot be read ({error})") from None
    if not isinstance(document, dict) or "format" not in document:
        raise BadInput(f"{folder / 'data.json'}: not the description of a prepared folder")
    if (number := document.pop("format")) != FORMAT:
        raise BadInput(
            f"{folder}: prepared folder of format {number}, this version reads {FORMAT}; prepare it again"
        )
    return document
