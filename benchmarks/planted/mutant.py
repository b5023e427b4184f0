"""A fault to plant."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    file: str  # below src/unskew
    tests: tuple[str, ...]  # below tests; of a slow file single ones, as file::test
    what: str
    text: str
    planted: str


def of(file: str, tests: str, *faults: tuple[str, str, str]) -> list[Mutant]:
    """Faults of one file and the test files that should notice: what each is, the text it replaces, and what
    is planted."""
    return [Mutant(file, tuple(tests.split()), *fault) for fault in faults]
