"""Files that were written here and that something has damaged since: whatever goes wrong while they are read
is one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from unskew.core.config import WrongFields
from unskew.core.errors import BadInput, UnskewError, first_line


@contextmanager
def reading(damaged: str, advice: str = "") -> Iterator[None]:
    """Turn any error but our own into bad input that says what is damaged.

    A damaged file can make a reader fail in any way: with a huge size it asks for memory that nobody has, and
    a document that is nested too deeply exhausts the stack.

    damaged: what the file belongs to, such as `run: the run is damaged`.
    advice: what to do, if there is more to say.
    """
    try:
        yield
    except WrongFields as error:
        raise BadInput(f"{damaged} ({first_line(error)}){advice}") from None
    except UnskewError:
        raise
    except Exception as error:
        raise BadInput(f"{damaged} ({first_line(error)}){advice}") from error
