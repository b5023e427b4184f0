"""Stores that are damaged, foreign, locked, full or not to be written: one line each, and nothing is lost."""

import json
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.helpers.errors import refused
from tests.helpers.processes import run_python
from tests.helpers.stores import BEGIN, Place, Server, click, ids_of, rows_of, shown
from unskew.core.errors import BadInput, UnskewError
from unskew.serve import open_store
from unskew.serve.store.tables import SCHEMA

pytest_plugins = ("tests.helpers.store_places",)


@pytest.fixture
def filled(in_file: Place) -> Path:
    """The file of a store with 300 events, half of them compacted."""
    with in_file.open() as store:
        store.append([click(n, f"u{n % 9}") for n in range(300)])
        store.compact(BEGIN + 150 * 10**6)
    return Path(in_file.where)


def everything(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and not path.name.endswith("-lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@contextmanager
def unchanged(folder: Path, said: str, kind: type[Exception] = BadInput) -> Iterator[None]:
    """One line is said, and no file is changed."""
    before = everything(folder)
    with pytest.raises(kind, match=said) as complaint:
        yield
    assert len(str(complaint.value).splitlines()) == 1
    assert everything(folder) == before


def foreign_database(file: Path) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE mine (x)")


@pytest.mark.parametrize("mode", ["create", "write", "read"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: os.truncate(file, file.stat().st_size // 2), "not a store, or a damaged one"),
        (lambda file: os.truncate(file, 10), "not a store, or a damaged one"),
        (lambda file: os.truncate(file, 0), "an empty file, not a store"),
        (lambda file: file.write_text("user,item,time\n" * 99), "not a store, or a damaged one"),
        (lambda file: (file.unlink(), foreign_database(file)), "a database, but not a store of unskew"),
    ],
    ids=["cut off", "a few bytes", "empty", "text", "of another program"],
)
def test_a_file_that_is_no_store(filled: Path, mode, damage, said: str) -> None:
    damage(filled)
    with unchanged(filled.parent, f"{filled.name}: {said}"):
        open_store(filled, mode)


def test_a_page_that_is_damaged_is_found_when_it_is_read(filled: Path) -> None:
    with filled.open("rb+") as file:
        for page in range(4, filled.stat().st_size // 4096):
            file.seek(4096 * page)
            file.write(b"\xff" * 4096)
    with pytest.raises(BadInput, match="not a store, or a damaged one"), open_store(filled, "read") as store:
        ids_of(store)


@pytest.mark.parametrize("mode", ["write", "read"])
def test_a_store_that_is_not_there(tmp_path: Path, mode) -> None:
    with unchanged(tmp_path, r"events\.db: no such store"):
        open_store(tmp_path / "events.db", mode)
    assert not list(tmp_path.iterdir())


def test_a_folder_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "events.db").mkdir()
    with pytest.raises(BadInput, match=r"events\.db: cannot be opened"):
        open_store(tmp_path / "events.db")


def test_a_database_that_vanished_is_not_made_again_beside_its_own_files(filled: Path) -> None:
    filled.unlink()
    with unchanged(filled.parent, r"events\.db: is missing, but .*events-.*\.parquet is there"):
        open_store(filled)
    shutil.rmtree(filled.with_name("events.db-segments"))
    filled.with_name("events.db-wal").write_bytes(b"frames")
    with unchanged(filled.parent, r"events\.db: is missing, but .*events\.db-wal is there"):
        open_store(filled)


def test_a_segment_that_is_cut_off_or_missing(filled: Path) -> None:
    (segment,) = filled.with_name("events.db-segments").iterdir()
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-100])
    for mode in ("write", "read"):
        with unchanged(filled.parent, rf"{segment.name}: [0-9,]+ bytes, but the store wrote [0-9,]+"):
            open_store(filled, mode)
    segment.unlink()
    for mode in ("write", "read"):
        with unchanged(filled.parent, f"{segment.name}: a segment of the store is missing"):
            open_store(filled, mode)
    segment.write_bytes(whole)
    with open_store(filled) as store:
        assert len(ids_of(store)) == 300


def test_a_bit_that_is_flipped_in_a_segment_is_found(filled: Path) -> None:
    """One in a value, that no decoder would notice, and others in headers, which may not matter."""
    (segment,) = filled.with_name("events.db-segments").iterdir()
    whole = segment.read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    with open_store(filled) as store:
        expected, said = rows_of(store), []
        for place in range(4, footer, 29):
            segment.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            try:
                assert rows_of(store) == expected, place
            except UnskewError as error:
                said.append(str(error))
    assert len(said) > 30
    assert all(f"{segment.name}: a segment of the store is damaged" in line for line in said)


def test_a_store_of_another_schema(place: Place, request: pytest.FixtureRequest) -> None:
    place.open().close()
    if place.in_postgres:
        schema = place.where.rpartition("%3D")[2]
        change = request.getfixturevalue("server").run
    else:
        schema = "main"

        def change(sql: str) -> None:
            with closing(sqlite3.connect(place.where)) as connection:
                connection.execute(sql)
                connection.commit()

    change(f"UPDATE {schema}.unskew_meta SET value = '99' WHERE name = 'schema'")
    for mode in ("create", "write", "read"):
        with pytest.raises(BadInput, match=f"a store of schema 99, this version of unskew reads {SCHEMA}"):
            place.open(mode)
    change(f"DELETE FROM {schema}.unskew_meta")
    with pytest.raises(BadInput, match="a database, but not a store of unskew"):
        place.open()


def test_two_writers_on_one_file(in_file: Place) -> None:
    with in_file.open() as store:
        store.append([click(1)])
        said = r"events\.db: another process is writing into this store"
        with pytest.raises(BadInput, match=said):
            in_file.open()
        code = "import sys; from unskew.serve import open_store; open_store(sys.argv[1], 'write')"
        other = run_python("-c", code, in_file.where)
        assert "another process is writing into this store" in other.stderr
        assert store.append([click(2)]).accepted == 1
        with in_file.open("read") as reader:
            assert ids_of(reader) == ["e1", "e2"]
        other_name = in_file.folder / "link.db"
        other_name.symlink_to(in_file.where)
        with pytest.raises(BadInput, match="another process is writing"):
            open_store(other_name)
    with in_file.open() as store:  # the lock ends with its holder
        assert store.append([click(2), click(3)]).accepted == 1


@pytest.fixture
def read_only(filled: Path) -> Iterator[Path]:
    """The same store in a folder that may not be changed; root becomes another user for the test."""
    folder = Path(tempfile.mkdtemp(prefix="unskew-ro-", dir="/tmp"))
    shutil.copytree(filled.parent, folder / "store")
    for path in (folder / "store").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    (folder / "store").chmod(0o555)
    folder.chmod(0o555)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder / "store" / "events.db"
    finally:
        if root:
            os.seteuid(0)
        for path in (folder, folder / "store", folder / "store" / "events.db-segments"):
            path.chmod(0o755)
        shutil.rmtree(folder)


def test_a_folder_that_is_read_only(read_only: Path) -> None:
    for mode in ("create", "write"):
        with unchanged(read_only.parent, r"store: cannot write there \(Permission denied\)"):
            open_store(read_only, mode)
    with unchanged(read_only.parent, r"store: cannot write there \(Permission denied\)"):
        open_store(read_only.with_name("new.db"))
    with open_store(read_only, "read") as store:
        assert len(ids_of(store)) == 300
        assert store.info()["events"] == 300


FULL_DISK = """
import json, resource, sys
from secrets import token_hex
from pathlib import Path
from tests.helpers.stores import BEGIN, click, ids_of
from unskew.core.errors import UnskewError
from unskew.serve import open_store

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

file, said, kept = Path(sys.argv[1]), [], []
with open_store(file) as store:
    kept += [f"e{n}" for n in range(10)] * bool(store.append([click(n) for n in range(10)]).accepted)
    limit(file.with_name(file.name + "-wal").stat().st_size + 600_000)
    for begin in range(10, 10_000, 50):
        try:
            store.append([click(n, token_hex(60)) for n in range(begin, begin + 50)])
        except UnskewError as error:
            said.append(str(error))
            break
        kept += [f"e{n}" for n in range(begin, begin + 50)]
    seen = ids_of(store) == kept
    limit(resource.RLIM_INFINITY)
    store._writer.run(store._database.forget)
    limit(16_000)
    try:
        store.compact(BEGIN + 10**13)
    except UnskewError as error:
        said.append(str(error))
    limit(resource.RLIM_INFINITY)
    seen = seen and ids_of(store) == kept and not list(file.with_name(file.name + "-segments").iterdir())
    last = store.append([click(n) for n in range(begin, begin + 50)])
    kept += [f"e{n}" for n in range(begin, begin + 50)]
    seen = seen and ids_of(store) == kept
    segments = store.compact(BEGIN + 10**13).segments
    files = [path.name for path in file.with_name(file.name + "-segments").iterdir()]
with open_store(file, "write") as store:
    print(json.dumps({"said": said, "seen": seen and ids_of(store) == kept, "last": last.accepted,
                      "segments": segments, "files": files, "kept": len(kept)}))
"""


def test_a_full_disk(in_file: Place) -> None:
    found = run_python("-c", FULL_DISK, in_file.where, cwd=Path(__file__).parents[2])
    assert found.returncode == 0, found.stderr
    state = json.loads(found.stdout)
    assert len(state["said"]) == 2, state
    assert "events.db: writing or reading failed (disk I/O error); what was acknowledged" in state["said"][0]
    assert ".parquet: writing failed (" in state["said"][1]
    assert "what was stored before is kept" in state["said"][1]
    assert all(len(line.splitlines()) == 1 for line in state["said"])
    assert state["seen"]
    assert state["kept"] > 60
    assert (state["last"], state["segments"], len(state["files"])) == (50, 1, 1)


def test_a_server_that_cannot_be_reached_and_a_password_that_is_not_shown(server: Server) -> None:
    for url in (
        "postgresql://me:s3cret@/nowhere?host=/tmp/there-is-no-socket",
        "postgresql://me:s3cret@127.0.0.1:1/db?password=s3cret",
        "postgresql://me:s3cret@/db?nonsense=s3cret",
        "postgresql://me:s3%2F%23cret@127.0.0.1:1/db",
        "postgresql://[me:s3cret@/db",
        f"{server.url}&dbname=nothing_of_this_name",
    ):
        with pytest.raises(BadInput, match="cannot be opened") as complaint:
            open_store(url)
        assert "s3cret" not in str(complaint.value)
        assert len(str(complaint.value).splitlines()) == 1
    with pytest.raises(BadInput, match="no store in this database"):
        open_store(server.url, "write")


@pytest.mark.parametrize("sign", list("/#?@ "))
def test_a_password_with_a_sign_of_urls_is_in_no_message(sign: str) -> None:
    for url in (
        f"postgresql://me:s3{sign}cret@127.0.0.1:1/db",
        f"postgres://s3{sign}cret:x@127.0.0.1:1/db?connect_timeout=1",
        f"postgresql://127.0.0.1:1/db?password=s3{sign}{sign}cret@x#cret",
    ):
        with pytest.raises(BadInput, match="as %40") as complaint:
            open_store(url)
        assert not re.search("s3|cret|127", str(complaint.value))


def test_a_password_with_encoded_signs_is_one(server: Server) -> None:
    with refused("where"):
        open_store(server.url.replace("postgres@", "postgres:a%2Fb%23c%3Fd%40e@"), "write")


def test_a_user_who_may_not_write(in_server: Place, server: Server) -> None:
    with in_server.open() as store:
        store.append([click(1)])
    schema = in_server.where.rpartition("%3D")[2]
    server.run("CREATE ROLE guest LOGIN")
    try:
        server.run(f"GRANT USAGE ON SCHEMA {schema} TO guest")
        server.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO guest")
        url = in_server.where.replace("postgres@", "guest@")
        with open_store(url, "read", segments=in_server.segments) as store:
            assert ids_of(store) == ["e1"]
        with (
            open_store(url, "write", segments=in_server.segments) as store,
            pytest.raises(BadInput, match=r"cannot be written \(permission denied"),
        ):
            store.append([click(2)])
        server.run(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO guest")
        with open_store(url, "write", segments=in_server.segments) as store:
            assert store.append([click(2)]).accepted == 1
            # PostgreSQL would only warn, and keep the erased rows in its files.
            with pytest.raises(BadInput, match="only the owner of the table unskew_"):
                store.erase("ann")
            assert ids_of(store) == ["e1", "e2"]
    finally:
        server.run("DROP OWNED BY guest")
        server.run("DROP ROLE guest")


def test_compacted_rows_of_a_server_need_their_folder(in_server: Place) -> None:
    with open_store(in_server.where) as store:
        store.append([click(1)])
        store.record([shown("r1")])
        with pytest.raises(BadInput, match="in a folder: say which one"):
            store.compact(BEGIN + 10**13)
        assert ids_of(store) == ["e1"]
    with in_server.open() as store:
        assert store.compact(BEGIN + 10**13) == (1, 1, 2)
    with refused("segments"):
        open_store(in_server.where)
