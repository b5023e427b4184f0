"""Errors: the caller's input is wrong, or the job itself failed."""


class UnskewError(Exception):
    """The job failed. The command line prints the message alone and exits with `exit_code`."""

    exit_code = 1


class BadInput(UnskewError):  # noqa: N818 (callers catch what it is, not what it is called)
    """The caller's data or settings are wrong. The message says what is wrong, where, and what was
    expected. `field` is the name of the setting or argument that is wrong, if it is a single one."""

    exit_code = 2

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NothingToRank(BadInput):
    """A test, or a window of it, has no positives to rank."""


class Leak(UnskewError):  # noqa: N818
    """The leak audit found something that a model could read but must not."""


LONGEST = 300  # characters of another program's message that ours repeats


def first_line(error: object) -> str:
    """The first line of another program's message, or its kind if it says nothing."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if len(lines[0]) <= LONGEST else f"{lines[0][:LONGEST]}..."


def check_is(given: object, kind: type | tuple[type, ...], wanted: str) -> None:
    """Refuse what is not of a type, or of one of several, and say what was expected."""
    if not isinstance(given, kind):
        raise BadInput(f"expected {wanted}; found {type(given).__name__}")
