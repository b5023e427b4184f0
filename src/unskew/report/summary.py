"""The form in which findings reach people: lines of a table, and a verdict with advice."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from unskew.report.templates import render


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


def render_sentences(template: str, /, **context: object) -> tuple[str, ...]:
    """The paragraphs of a text template, each in one line. Blank lines separate them."""
    paragraphs = re.split(r"\n\s*\n", render(template, **context))
    return tuple(" ".join(paragraph.split()) for paragraph in paragraphs if paragraph.strip())


def render_rows(template: str, /, **context: object) -> tuple[Row, ...]:
    """The lines of a text template, `group | name | value | meaning`, as rows of a table."""
    rows = []
    for line in filter(str.strip, render(template, **context).split("\n")):
        group, name, value, meaning = f"{line} ".rsplit(" | ", 3)
        rows.append(Row(group, name, value, meaning.strip()))
    return tuple(rows)
