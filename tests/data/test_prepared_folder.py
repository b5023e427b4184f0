"""The prepared folder: written completely or not at all, and nothing of anybody else is lost."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import unskew
from tests.cli.test_bad_input import GOOD, HEAD
from unskew.data.log import folder as log_module


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Root may write anywhere: be nobody for a while."""
    root = os.geteuid() == 0
    os.seteuid(65534 if root else os.geteuid())
    try:
        yield
    finally:
        os.seteuid(0 if root else os.geteuid())


def test_folders_without_permission(write, tmp_path: Path) -> None:
    source = write("a.csv", HEAD + GOOD)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    secret = write("secret/a.csv", HEAD + GOOD).parent
    secret.chmod(0o000)
    for folder in (tmp_path, *tmp_path.parents):  # pytest keeps its folders to their owner
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    with ordinary_user():
        with pytest.raises(unskew.BadInput, match=r"closed/out: cannot write there \(Permission denied\)"):
            unskew.prepare(source, closed / "out")
        with pytest.raises(unskew.BadInput, match=r"secret.*(no permission|no csv|no such)"):
            unskew.read(secret)
    secret.chmod(0o755)


def test_a_folder_that_is_not_ours_is_not_touched(write, tmp_path: Path) -> None:
    mine = write("mine/thesis.txt", "years of work").parent
    with pytest.raises(unskew.BadInput, match=r"exists and holds 'thesis.txt', which would be lost"):
        unskew.prepare(write("a.csv", HEAD + GOOD), mine)
    (mine / "data.json").write_text("{}")  # the name alone proves nothing
    with pytest.raises(unskew.BadInput, match=r"exists and holds 'thesis.txt'"):
        unskew.prepare(write("a.csv", HEAD + GOOD), mine)
    unskew.prepare(tmp_path / "a.csv", tmp_path / "out")
    write("out/notes.txt", "years of work")
    with pytest.raises(unskew.BadInput, match=r"exists and holds 'notes.txt'"):
        unskew.prepare(tmp_path / "a.csv", tmp_path / "out")
    assert (
        (mine / "thesis.txt").read_text() == (tmp_path / "out" / "notes.txt").read_text() == "years of work"
    )


@pytest.mark.parametrize("file", ["time.npy", "audience_user.npy", "history_offsets.npy"])
def test_a_full_disk_while_writing(write, tmp_path: Path, monkeypatch, file: str) -> None:
    before = unskew.prepare(write("a.csv", HEAD + GOOD), tmp_path / "out").metadata
    real = os.posix_fallocate

    def full(descriptor: int, offset: int, length: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name == file:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, offset, length)

    monkeypatch.setattr(log_module.os, "posix_fallocate", full)
    with pytest.raises(unskew.UnskewError, match="writing failed \\(No space left on device\\)") as raised:
        unskew.prepare(write("b.csv", HEAD + GOOD), tmp_path / "out", k_core=2)
    assert raised.value.exit_code == 1
    assert unskew.Log.open(tmp_path / "out").metadata == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv", "out"]


def test_a_swap_that_fails_half_way_restores_what_was_there(write, tmp_path: Path, monkeypatch) -> None:
    before = unskew.prepare(write("a.csv", HEAD + GOOD), tmp_path / "out").metadata
    real = Path.rename

    def fails(self: Path, target: Path) -> Path:
        if self.name.startswith(".out.") and target.name == "out" and "old" not in self.name:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(unskew.UnskewError, match="writing failed"):
        unskew.prepare(tmp_path / "a.csv", tmp_path / "out", k_core=2)
    assert unskew.Log.open(tmp_path / "out").metadata == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "out"]


def test_where_the_folder_may_be(write, tmp_path: Path, monkeypatch) -> None:
    source = write("a.csv", HEAD + GOOD)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    unskew.prepare(source, tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert unskew.Log.open(tmp_path / "real").metadata.rows == 70
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    unskew.prepare(source, ".")
    monkeypatch.setenv("HOME", str(tmp_path))
    unskew.prepare("~/a.csv", "~/deep/er/out")
    assert (
        len(unskew.prepare(tmp_path / "deep" / "er" / "out", tmp_path / "again")) == 70
    )  # a prepared folder is a source, too


def test_a_damaged_or_foreign_folder(write, tmp_path: Path) -> None:
    with pytest.raises(unskew.BadInput, match="no such file"):
        unskew.read(tmp_path / "nowhere")
    with pytest.raises(unskew.BadInput, match="not a prepared folder"):
        unskew.Log.open(tmp_path)
    unskew.prepare(write("a.csv", HEAD + GOOD), tmp_path / "out")
    (tmp_path / "out" / "item.npy").write_bytes((tmp_path / "out" / "item.npy").read_bytes()[:-50])
    with pytest.raises(unskew.BadInput, match="damaged"):
        unskew.Log.open(tmp_path / "out")
    unskew.prepare(tmp_path / "a.csv", tmp_path / "other")
    unskew.prepare(write("b.csv", HEAD + GOOD[: GOOD.index("u3,i1")]), tmp_path / "out2")
    (tmp_path / "other" / "items.parquet").write_bytes((tmp_path / "out2" / "items.parquet").read_bytes())
    (tmp_path / "out2" / "item.npy").write_bytes((tmp_path / "other" / "item.npy").read_bytes())
    with pytest.raises(unskew.BadInput, match=r"item is not as long as data.json says"):
        unskew.Log.open(tmp_path / "out2")
    for text in ('{"format": 1}', "[]", "not json"):
        (tmp_path / "out" / "data.json").write_text(text)
        with pytest.raises(unskew.BadInput, match="out"):
            unskew.Log.open(tmp_path / "out")
    (tmp_path / "out" / "data.json").write_text('{"format": 99}')
    with pytest.raises(unskew.BadInput, match="format 99"):
        unskew.Log.open(tmp_path / "out")


def test_offsets_and_documents_that_cannot_be(write, tmp_path: Path) -> None:
    unskew.prepare(write("a.csv", HEAD + GOOD), tmp_path / "out")
    offsets = np.load(tmp_path / "out" / "history_offsets.npy")
    np.save(tmp_path / "out" / "history_offsets.npy", np.where(offsets > 0, 2**62, 0))
    with pytest.raises(unskew.BadInput, match=r"damaged \(history_offsets"):
        unskew.Log.open(tmp_path / "out")
    (tmp_path / "out" / "data.json").write_text("[" * 200_000)
    with pytest.raises(unskew.BadInput, match="nested too deeply"):
        unskew.Log.open(tmp_path / "out")
