"""Publishing a run: a folder that is whole or absent, and a pointer that always points to a whole run.

The pointer is a symbolic link with a relative target. It is replaced by a rename, so whoever reads it finds
the old run or the new one, and nothing in between.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from unskew.core.atomic_files import check_free, sync_folder
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.training.run import read_card, read_config


@contextmanager
def one_at_a_time(target: Path) -> Iterator[None]:
    """Refuse to go on while another process publishes there. The system releases the lock when a process
    ends, however it ends. The file of the lock stays: whoever removed it would let two in."""
    path = target.with_name(f".{target.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{path.parent}: cannot write there ({error.strerror})") from None
    message = f"{target}: another update is under way; nothing was done, so try again when it has ended"
    lock = lock_file(path, UnskewError(message))
    try:
        yield
    finally:
        os.close(lock)


@contextmanager
def new_run(target: Path) -> Iterator[Path]:
    """A place for a run beside its target, where it is moved if all goes well. What a killed process left
    there is removed first; only one process at a time may be here (`one_at_a_time`)."""
    check_free(target)
    scratch = target.with_name(f".{target.name}.unfinished")
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        yield scratch
        check_free(target)
        scratch.rename(target)
        sync_folder(target.parent)
    except OSError as error:
        raise UnskewError(f"{target}: cannot be written ({error.strerror}); nothing was written") from None
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def check_pointer(link: Path) -> None:
    """Refuse what is there and is no pointer."""
    if link.exists() and not link.is_symlink():
        raise BadInput(f"{link}: is there and is not a symbolic link, so it cannot point to a run")


def point(link: Path, run: Path) -> None:
    """Let a link point to a run, from one moment to the next."""
    check_pointer(link)
    fresh = link.with_name(f".{link.name}.new")
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(os.path.relpath(run.resolve(), link.parent.resolve()))
        fresh.replace(link)
        sync_folder(link.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise UnskewError(
            f"{link}: cannot be written ({error.strerror}); it points to where it did"
        ) from None


def roll_back(link: Path) -> tuple[Path, Path]:
    """Let a link point to the run that its run was updated from. Returns both, the one from now on first."""
    if not link.is_symlink() or not link.exists():
        raise BadInput(f"{link}: no link to a run; `unskew update ... --current {link}` makes one")
    with one_at_a_time(link):
        now = link.resolve()
        updated = read_card(now).updated
        if updated is None:
            raise BadInput(
                f"{link}: {now} was not updated from another run, so there is nothing to go back to"
            )
        target = (now / updated.parent).resolve()
        read_config(target)  # or an error that says what is wrong
        if not (target / "card.json").is_file():
            raise BadInput(f"{target}: this run is not whole; {link} still points to {now}")
        point(link, target)
    return target, now
