"""Pages are Jinja2 templates that escape every value, with their styles and scripts in files beside them.

A template, style sheet or script is named by its path below the package `unskew`, for example
`diagnostics/templates/inspection.html`. So a package that makes a page keeps its files in a folder
`templates` of its own, and `pyproject.toml` lists `*/templates/*` among the package data.
"""

import base64
import hashlib
import math
import re
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from unskew.core import formatting

ROOT = Path(__file__).parents[1]
NUMBERS = (
    "count",
    "decimals",
    "fraction",
    "number",
    "significant",
)  # how templates write them; see `core.formatting`


def render(template: str, /, **context: object) -> str:
    """The text of a template with the values of its context. In a template `.html` every value is escaped,
    except `Markup`; in a text nothing is. A value that is missing is an error."""
    return _environment().get_template(template).render(context)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(ROOT),
        autoescape=select_autoescape(("html", "svg")),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"inline": inline_file, "hash_of": hash_of}
    environment.filters |= {"code_pieces": code_pieces, "topic": split_topic, "unbroken": keep_together}
    environment.filters |= {name: getattr(formatting, name) for name in NUMBERS}
    environment.tests["nan"] = math.isnan
    return environment


@cache
def inline_file(name: str) -> Markup:
    """A style sheet or script, to stand in a page as it is."""
    text = (ROOT / name).read_text(encoding="utf-8")
    if re.search(r"</(style|script)|<!--", text, re.IGNORECASE):
        raise ValueError(f"{name} would end the element of the page in which it stands")
    return Markup(text)


def hash_of(text: str) -> str:
    """What a content security policy calls an inline script whose text this is."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def code_pieces(text: str) -> list[tuple[str, bool]]:
    """The pieces of a text in order, each with whether it stood between backticks and so is code."""
    pieces = re.split(r"`([^`]+)`", text)
    return [(piece, bool(at % 2)) for at, piece in enumerate(pieces) if piece]


def split_topic(text: str) -> tuple[str, str]:
    """What stands before the first colon, and the sentence after it; without a colon there is no topic."""
    topic, colon, rest = text.partition(": ")
    return (topic, rest[:1].upper() + rest[1:]) if colon else ("", text)


def keep_together(text: str) -> str:
    """The text with spaces at which no line breaks between a number and its per cent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")
