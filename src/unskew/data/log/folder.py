"""The prepared folder: a log on disk, written completely or not at all.

data.json                     how the log was made, and what was removed
users.parquet, items.parquet  the caller's ids, with titles and features
*.npy                         one column each, mapped into memory and never copied
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
from numpy.typing import NDArray

from unskew.core.atomic_files import read_parquet
from unskew.core.config import Document, parse_json
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.arrays import check_offsets
from unskew.data.log.preparation import Metadata

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

FORMAT = 2  # the version of the folder's format; it is raised when an older reader would misread it

NewArray = Callable[[str, type, int], NDArray[Any]]  # (name, dtype, length) -> an array to fill


class Stored(NamedTuple):
    """What a prepared folder holds."""

    columns: dict[str, NDArray[Any]]
    users: pa.Table  # the columns of a `Vocabulary`
    items: pa.Table
    metadata: Metadata


def read_folder(folder: Path) -> Stored:
    """Read a prepared folder. The columns stay on disk and are mapped into memory."""
    document = _read_document(folder)
    try:
        metadata = Metadata.from_dict(document)
        lengths = dict.fromkeys((*COLUMNS, *metadata.extras), metadata.rows)
        lengths |= dict.fromkeys(AUDIENCE, metadata.positives)
        lengths |= {"history_offsets": metadata.users + 1, "audience_offsets": metadata.items + 1}
        counts = {"user_since": metadata.users, "item_since": metadata.items}
        lengths |= {name: counts[name] for name in metadata.since}
        for kind, events in metadata.types.context.items():
            lengths |= {context_column(kind, part): events for part in VIEW_PARTS}
            lengths[context_column(kind, "history_offsets")] = metadata.users + 1
            lengths[context_column(kind, "audience_offsets")] = metadata.items + 1
        columns = {
            name: np.load(column_file(folder, name), mmap_mode="r", allow_pickle=False) for name in lengths
        }
        users, items = (read_parquet(folder / name) for name in ("users.parquet", "items.parquet"))
        lengths |= {"users": metadata.users, "items": metadata.items}
        for name, values in {**columns, "users": users, "items": items}.items():
            if len(values) != lengths[name]:
                raise ValueError(f"{name} is not as long as data.json says")
        for name in OFFSETS:
            check_offsets(name, columns[name], metadata.positives)
        for kind, events in metadata.types.context.items():
            for name in (context_column(kind, f"{view}_offsets") for view in ("history", "audience")):
                check_offsets(name, columns[name], events)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{folder}: the prepared folder is damaged ({error}); prepare it again") from None
    return Stored(columns, users, items, metadata)


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

    def new(name: str, dtype: type, length: int) -> NDArray[Any]:
        path = column_file(folder, name)
        if length == 0:
            np.save(path, np.empty(0, dtype))
            return np.load(path)
        with path.open("wb") as file:
            header = {
                "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
                "fortran_order": False,
                "shape": (length,),
            }
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            size = length * np.dtype(dtype).itemsize
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), file.tell(), size)
            else:
                file.truncate(file.tell() + size)
        return np.load(path, mmap_mode="r+")

    return new


OURS = {f"{name}.npy" for name in (*COLUMNS, *EXTRAS, *AUDIENCE, *OFFSETS, *SINCE)} | {
    "users.parquet",
    "items.parquet",
    "data.json",
    "bad_rows.csv",
}


def _is_ours(name: str) -> bool:
    """Whether `prepare` writes files of this name."""
    prefixes = tuple(quote(prefix, safe="") for prefix in (MARK, CONTEXT))
    return name in OURS or (name.startswith(prefixes) and name.endswith(".npy"))


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
