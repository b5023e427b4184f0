"""A log: who met what, when, and whether it was a positive. In memory or memory-mapped from a prepared
folder."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from unskew.data.views import PAD, Codes, Ints, Sequences
from unskew.errors import BadInput, UnskewError

FORMAT = 2  # of the prepared folder; raised when an older reader would misread it

COLUMNS = {"user": np.int32, "item": np.int32, "time": np.int64, "label": np.int8}
EXTRAS = {"propensity": np.float64, "exposed": np.int8, "position": np.int32, "visit": np.int64}
TESTS = ("ordinary", "balanced", "shown", "randomised", "weighted", "authors")  # what they are: held_out.py
MARK = "test:"  # before the name of a column that says which rows belong to a named test
AUDIENCE = {"audience_user": np.int32, "audience_time": np.int64}
OFFSETS = ("history_offsets", "audience_offsets")

NewArray = Callable[[str, type, int], NDArray[Any]]  # (name, dtype, length) -> an array to fill


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The caller's ids in the order of their codes, which is the order of their first positives in time.

    So the ids that exist at any moment are a prefix: `code < n`. Ids that never had a positive come last.
    """

    ids: pa.Array
    titles: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def of(self, codes: NDArray[np.integer]) -> pa.Array:
        """The caller's ids of some codes, in the type they came in."""
        known = np.asarray(codes)
        return self.ids.take(pa.array(known, mask=known == PAD))

    def codes(self, ids: Sequence[Any] | pa.Array) -> Codes:
        """The codes of some ids; PAD where an id is unknown."""
        if isinstance(ids, str | bytes) or not hasattr(ids, "__iter__"):
            raise BadInput(f"expected a list of ids, found {ids!r}")
        try:
            if isinstance(self.ids, pa.ExtensionArray):
                asked, known = (
                    (ids if isinstance(ids, pa.Array) else pa.array(list(ids), self.ids.type)).storage,
                    self.ids.storage,
                )
            else:
                asked, known = (
                    (ids if isinstance(ids, pa.Array) else pa.array(list(ids))).cast(self.ids.type),
                    self.ids,
                )
            found = pc.index_in(asked, value_set=known)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise BadInput(f"ids of type {self.ids.type} expected, as in the log: {error}") from None
        return np.asarray(pc.fill_null(found, PAD).to_numpy(zero_copy_only=False), np.int32)


@dataclass(frozen=True, eq=False)
class Log:
    """Interactions as columns, indexed: row r says that `user[r]` met `item[r]` at `time[r]` with `label[r]`.

    Positives come first, sorted by user and time, then the shown-and-not-clicked, sorted likewise. So the
    histories are the first columns themselves and cost nothing.
    """

    user: Codes
    item: Codes
    time: Ints
    label: NDArray[np.int8]
    users: Vocabulary
    items: Vocabulary
    histories: Sequences
    audiences: Sequences
    propensity: NDArray[np.float64] | None = None  # logged P(o = 1)
    exposed: NDArray[np.int8] | None = None  # 1 = exposed at random
    position: Codes | None = None  # place on the page
    visit: Ints | None = (
        None  # rows of one user with the same number were shown together; PAD: not known to have been shown
    )
    marks: dict[str, NDArray[np.int8]] = field(
        default_factory=dict
    )  # of each named test, 1 where a row belongs to it
    facts: dict[str, Any] = field(default_factory=dict)  # how it was made, what was removed

    def __len__(self) -> int:
        return len(self.user)

    @property
    def positives(self) -> int:
        return len(self.histories.ids)

    @cached_property
    def repeated(self) -> NDArray[np.bool_]:
        """Rows whose user had a positive on the same item strictly before."""
        return self.had_before(self.user, self.item, self.time)

    def had_before(
        self, user: NDArray[np.integer], item: NDArray[np.integer], time: Ints
    ) -> NDArray[np.bool_]:
        """Whether each user had a positive on each item strictly before each time. Broadcasts."""
        pairs, first = self._first_positives
        pair = np.asarray(user, np.int64) * len(self.items) + item
        place = np.minimum(np.searchsorted(pairs, pair), max(len(pairs) - 1, 0))
        return np.asarray((pairs[place] == pair) & (first[place] < time))

    @cached_property
    def _first_positives(self) -> tuple[Ints, Ints]:
        """Every pair of a user and an item with a positive, as one increasing number, and the time of the
        first."""
        positives = self.positives
        pairs, which = np.unique(
            self.user[:positives].astype(np.int64) * len(self.items) + self.item[:positives],
            return_inverse=True,
        )
        first = np.full(len(pairs), np.iinfo(np.int64).max)
        np.minimum.at(first, which, self.time[:positives])
        return pairs, first

    @cached_property
    def _visits(self) -> tuple[Ints, Ints, Ints]:
        """A number per row that rows shown together share, and the rows that were not clicked, sorted by it,
        with it.

        Without a column of visits, rows of the same user and time were shown together. Of an item that a
        visit shows again and again there is one row, and none if it was clicked in any of them.
        """
        together = self.time if self.visit is None else self.visit
        _, number = np.unique(together, return_inverse=True)
        _, number = np.unique(
            self.user.astype(np.int64) * (int(number.max(initial=0)) + 1) + number, return_inverse=True
        )
        if self.visit is not None:
            number = np.where(np.asarray(self.visit) == PAD, PAD, number)
        pair = number * len(self.items) + self.item
        passed = np.arange(self.positives, len(self))
        passed = passed[(number[passed] != PAD) & ~np.isin(pair[passed], pair[: self.positives])]
        passed = passed[np.unique(pair[passed], return_index=True)[1]]
        return number, passed, number[passed]

    def shown_with(self, rows: Ints) -> tuple[Ints, Ints]:
        """What was shown in the same visit as each of these rows and not clicked: which of the rows, and the
        row of the log."""
        if len(self) == self.positives:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        number, passed, numbers = self._visits
        start, end = (np.searchsorted(numbers, number[rows], side) for side in ("left", "right"))
        lengths = end - start
        which = np.repeat(np.arange(len(rows)), lengths)
        return which, passed[
            np.arange(lengths.sum()) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)
        ]

    def fingerprint(self) -> str:
        """A hash of all rows and ids: two logs with the same one hold the same."""
        digest = hashlib.blake2b(digest_size=16)
        for name in (*COLUMNS, *EXTRAS):
            column = getattr(self, name)
            if column is not None:
                digest.update(name.encode() + np.ascontiguousarray(column).data)
        for name, mark in sorted(self.marks.items()):
            digest.update(f"{MARK}{name}".encode() + np.ascontiguousarray(mark).data)
        for vocabulary in (self.users, self.items):
            digest.update(
                str(vocabulary.ids.type).encode() + "\0".join(map(str, vocabulary.ids.to_pylist())).encode()
            )
        return digest.hexdigest()

    def table(self) -> pa.Table:
        """The rows with the caller's ids, as an Arrow table."""
        columns: dict[str, Any] = {
            "user": self.users.of(self.user),
            "item": self.items.of(self.item),
            "time": self.time,
            "label": self.label,
        }
        columns |= {name: getattr(self, name) for name in EXTRAS if getattr(self, name) is not None}
        if self.visit is not None:
            columns["visit"] = pa.array(self.visit, mask=np.asarray(self.visit) == PAD)
        columns |= {f"{MARK}{name}": mark for name, mark in self.marks.items()}
        if self.items.titles is not None:
            columns["title"] = self.items.titles.take(pa.array(self.item))
        return pa.table(columns)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Log":
        """Open a prepared folder; its columns stay on disk and are mapped into memory."""
        folder = Path(folder)
        facts = _facts(folder)

        def column(name: str) -> NDArray[Any]:
            array: NDArray[Any] = np.load(_column_file(folder, name), mmap_mode="r", allow_pickle=False)
            return array

        try:
            columns = {name: column(name) for name in (*COLUMNS, *AUDIENCE, *OFFSETS, *facts["extras"])}
            users, items = (pq.read_table(folder / name) for name in ("users.parquet", "items.parquet"))
            lengths = dict.fromkeys((*COLUMNS, *facts["extras"]), facts["rows"]) | dict.fromkeys(
                AUDIENCE, facts["positives"]
            )
            lengths |= {"history_offsets": facts["users"] + 1, "audience_offsets": facts["items"] + 1}
            wrong = [name for name, length in lengths.items() if len(columns[name]) != length]
            wrong += [
                name for name, table in (("users", users), ("items", items)) if len(table) != facts[name]
            ]
            if wrong:
                raise ValueError(f"{wrong[0]} is not as long as data.json says")
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"{folder}: the prepared folder is damaged ({error}); prepare it again") from None
        return assemble(columns, users, items, facts)

    def __repr__(self) -> str:
        return (
            f"Log({len(self):,} rows, {self.positives:,} positives, {len(self.users):,} users, "
            f"{len(self.items):,} items)"
        )


def assemble(
    columns: dict[str, NDArray[Any]], users: pa.Table, items: pa.Table, facts: dict[str, Any]
) -> Log:
    """A log from its columns, however they are held."""
    positives = int(columns["history_offsets"][-1])
    titles = items["title"].combine_chunks() if "title" in items.column_names else None
    return Log(
        **{name: columns[name] for name in COLUMNS},
        **{name: columns[name] for name in EXTRAS if name in columns},
        marks={name.removeprefix(MARK): column for name, column in columns.items() if name.startswith(MARK)},
        users=Vocabulary(users["id"].combine_chunks()),
        items=Vocabulary(items["id"].combine_chunks(), titles),
        histories=Sequences(
            columns["item"][:positives], columns["time"][:positives], columns["history_offsets"]
        ),
        audiences=Sequences(columns["audience_user"], columns["audience_time"], columns["audience_offsets"]),
        facts=facts,
    )


def in_memory(name: str, dtype: type, length: int) -> NDArray[Any]:
    return np.empty(length, dtype)


def _column_file(folder: Path, name: str) -> Path:
    """Where a column is. The name of a named test is the caller's, so it is escaped."""
    return folder / f"{quote(name, safe='') if name.startswith(MARK) else name}.npy"


def on_disk(folder: Path) -> NewArray:
    """Arrays that are .npy files. The space is claimed first: a full disk is an error here, not a crash while
    writing."""

    def new(name: str, dtype: type, length: int) -> NDArray[Any]:
        path = _column_file(folder, name)
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


OURS = {f"{name}.npy" for name in (*COLUMNS, *EXTRAS, *AUDIENCE, *OFFSETS)} | {
    "users.parquet",
    "items.parquet",
    "data.json",
    "bad_rows.csv",
}


def _is_ours(name: str) -> bool:
    return name in OURS or (name.startswith(quote(MARK, safe="")) and name.endswith(".npy"))


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A scratch folder that becomes `target` if all goes well and vanishes if not. What was at `target` stays
    until then."""
    _check_replaceable(target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        scratch.chmod(0o755)
    except OSError as error:
        raise BadInput(f"{target}: cannot write there ({error.strerror})") from None
    try:
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
    """Only a folder that holds what `prepare` writes, and nothing else, may be replaced."""
    if not target.exists():
        return
    try:
        foreign = (
            sorted(path.name for path in target.iterdir() if not _is_ours(path.name))
            if target.is_dir()
            else [target.name]
        )
        empty = target.is_dir() and not any(target.iterdir())
    except OSError as error:
        raise BadInput(f"{target}: cannot be read ({error.strerror})") from None
    if foreign or not (empty or is_prepared(target)):
        found = (
            f"holds {foreign[0]!r}, which would be lost"
            if foreign and target.is_dir()
            else "is not a prepared folder"
        )
        raise BadInput(f"{target}: exists and {found}; nothing was written")


def _swap(scratch: Path, target: Path) -> None:
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
        facts = json.loads((folder / "data.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(facts, dict) and "format" in facts


def save_facts(folder: Path, facts: dict[str, Any]) -> None:
    (folder / "data.json").write_text(
        json.dumps({"format": FORMAT, **facts}, indent=1, default=str) + "\n", encoding="utf-8"
    )


def _facts(folder: Path) -> dict[str, Any]:
    try:
        facts: dict[str, Any] = json.loads((folder / "data.json").read_text(encoding="utf-8"))
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
    if not isinstance(facts, dict) or "format" not in facts:
        raise BadInput(f"{folder / 'data.json'}: not the description of a prepared folder")
    if facts["format"] != FORMAT:
        raise BadInput(
            f"{folder}: prepared folder of format {facts['format']}, this version reads {FORMAT}; prepare "
            "it again"
        )
    return facts
