"""Files that are there whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unskew.errors import BadInput, UnskewError


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A path to write to that becomes `target` if all goes well and vanishes if not. Nobody's file is
    overwritten."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{target}: cannot write there ({error.strerror})") from None
    try:
        yield beside
        check_free(target)
        beside.rename(target)
    except OSError as error:
        raise UnskewError(
            f"{target}: writing failed ({error.strerror or error}); nothing was written"
        ) from error
    finally:
        beside.unlink(missing_ok=True)


def check_free(target: Path) -> None:
    """Refuse a path where something is already."""
    if target.exists():
        raise BadInput(f"{target}: exists already; nothing was written")
