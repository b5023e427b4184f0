"""Segments: the Parquet files of what a store has compacted. A file is written whole, and never changed.

Rows are in the order of their sequence numbers, in groups that a reader can pass over.
"""

import os
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from unskew.core.atomic_files import sync_folder
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.erasures import OWN_MODE
from unskew.serve.store.tables import Kind

GROUP = 10_000  # rows that are read together


class Segment(NamedTuple):
    """A row of the table of segments. `first` and `last` are sequence numbers; segments may overlap."""

    name: str
    kind: str
    first: int
    last: int
    rows: int
    bytes: int


class Missing(BadInput):
    """A segment is not there: it was replaced after its name was read, or it is lost."""


def reached(step: str) -> None:
    """Tests stop the process at these places."""


def is_covered(rows: pa.Table, until: Mapping[str, int]) -> pa.Array:
    """Which rows are of these users, and not newer than the moment of each."""
    place = pc.index_in(rows["user_id"], value_set=pa.array(until, pa.string()))
    moments = pa.array(until.values(), pa.int64()).take(place)
    return pc.fill_null(pc.less_equal(rows["timestamp"], moments), False)


class Segments:
    """The folder of the segments. Without one, a store has no segments and cannot be compacted."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @property
    def folder(self) -> Path:
        """The folder, or an error that says how to name one."""
        if self._folder is None:
            raise BadInput(
                "a store in PostgreSQL keeps its compacted events in a folder: say which one",
                field="segments",
            )
        return self._folder

    def check(self, segments: Iterable[Segment]) -> None:
        """Refuse to go on where a segment is missing or cut off."""
        for segment in segments:
            path = self.folder / segment.name
            if not path.is_file():
                raise Missing(f"{path}: a segment of the store is missing; nothing was changed")
            if path.stat().st_size != segment.bytes:
                raise BadInput(
                    f"{path}: {path.stat().st_size:,} bytes, but the store wrote {segment.bytes:,}; restore "
                    "it from a copy; nothing was changed"
                )

    # Writing

    def new_name(self, kind: Kind) -> str:
        """A name that no other segment has."""
        return f"{kind.name}-{secrets.token_hex(8)}.parquet"

    def write(self, kind: Kind, name: str, frames: Iterable[pa.Table]) -> Segment | None:
        """Write rows, which are in order, as one file that is on the disk afterwards. None if there are
        none."""
        first = last = rows = 0
        path, draft = self.folder / name, self.folder / f".{name}"
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWN_MODE))
                with pq.ParquetWriter(
                    draft, kind.schema, compression="zstd", write_page_checksum=True
                ) as writer:
                    for frame in frames:
                        if not frame.num_rows:
                            continue
                        first = first or frame["sequence"][0].as_py()
                        last = frame["sequence"][-1].as_py()
                        rows += frame.num_rows
                        writer.write_table(frame, row_group_size=GROUP)
                reached("segment written")
                if not rows:
                    return None
                with draft.open("rb+") as file:
                    os.fsync(file.fileno())
                draft.rename(path)
                sync_folder(self.folder)
                sync_folder(self.folder.parent)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise UnskewError(
                f"{path}: writing failed ({error.strerror or error}); what was stored before is kept"
            ) from error
        return Segment(name, kind.name, first, last, rows, path.stat().st_size)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files of these names, where they are, finished or not."""
        if self._folder is None or not self._folder.is_dir():
            return
        for name in names:
            for path in (self._folder / name, self._folder / f".{name}"):
                path.unlink(missing_ok=True)
        sync_folder(self._folder)

    # Reading

    def after(self, segment: Segment, sequence: int, most: int) -> pa.Table:
        """The first rows after a sequence number, up to `most`."""
        groups: list[pa.Table] = []
        with self._opened(segment) as file:
            column = file.schema_arrow.get_field_index("sequence")
            for number in range(file.num_row_groups):
                statistics = file.metadata.row_group(number).column(column).statistics
                if statistics is not None and statistics.max <= sequence:
                    continue
                group = file.read_row_group(number)
                groups.append(group.filter(pc.greater(group["sequence"], sequence)))
                if sum(map(len, groups)) >= most:
                    break
            return pa.concat_tables(groups or [file.schema_arrow.empty_table()]).slice(0, most)

    def of_users(self, segment: Segment, users: Collection[str]) -> pa.Table:
        """All rows of these users. Only the column of the users is read of a group that has none."""
        ids, groups = pa.array(sorted(users), pa.string()), []
        with self._opened(segment) as file:
            for number in range(file.num_row_groups):
                names = file.read_row_group(number, ["user_id"])["user_id"]
                rows = pc.is_in(names, value_set=ids)
                if pc.any(rows).as_py():
                    groups.append(file.read_row_group(number).filter(rows))
            return pa.concat_tables(groups or [file.schema_arrow.empty_table()])

    def without(self, segment: Segment, until: Mapping[str, int]) -> Iterator[pa.Table]:
        """All rows but those of these users up to a moment."""
        with self._opened(segment) as file:
            for number in range(file.num_row_groups):
                group = file.read_row_group(number)
                yield group.filter(pc.invert(is_covered(group, until)))

    @contextmanager
    def _opened(self, segment: Segment) -> Iterator[pq.ParquetFile]:
        path = self.folder / segment.name
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                yield file
        except FileNotFoundError:
            raise Missing(f"{path}: a segment of the store is missing") from None
        except (pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise UnskewError(f"{path}: a segment of the store is damaged ({reason})") from None
