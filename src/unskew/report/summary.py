"""The form in which findings reach people: lines of a table, and a verdict with advice."""

from dataclasses import dataclass
from typing import NamedTuple


class Row(NamedTuple):
    """One line of a table of findings. Rows of the same `group` stand together."""

    group: str
    name: str
    value: str
    meaning: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a reader should know first: the finding in one or two sentences, and what to do about it.

    Commands and settings stand between backticks in both.
    """

    finding: str
    advice: tuple[str, ...]


def by_topic(**sentences: str) -> tuple[str, ...]:
    """Each sentence behind its topic; topics without a sentence are left out."""
    return tuple(f"{topic}: {sentence}" for topic, sentence in sentences.items() if sentence)
