"""A lock that one process at a time can hold, as a file."""

import fcntl
import os
from pathlib import Path

from unskew.core.errors import BadInput, UnskewError


def wait_for_lock(folder: Path) -> int:
    """Lock a folder, as soon as no other process has locked it, and return its descriptor."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def lock_file(path: Path, refusal: UnskewError, mode: int = 0o666) -> int:
    """Lock a file, which is created if it does not exist, and return its descriptor.

    Closing the descriptor releases the lock, and so does the system when the process ends, however it ends.
    `refusal` is raised if another process holds the lock. A file that is removed while it is locked would let
    a second process in. `mode` has the permissions of a new file, before the umask.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    except OSError as error:
        raise BadInput(f"{path.parent}: cannot write there ({error.strerror})") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise refusal from None
    return descriptor
