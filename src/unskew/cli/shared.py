"""What all verbs share: arguments, consoles, tables, and the split that a run was trained on."""

import inspect
import json as json_library
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import tyro
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from unskew.core.atomic_files import write_text
from unskew.core.config import Device, Document, explained
from unskew.core.errors import BadInput
from unskew.core.ranks import joined, ranks
from unskew.data.log.clock import Clock
from unskew.data.log.log import Log
from unskew.data.log.split import Split, Splitting, split
from unskew.diagnostics.log.inspect import Inspection
from unskew.report.summary import Verdict
from unskew.serve.store.events import parse_time

if TYPE_CHECKING:
    from unskew.diagnostics.propensity.health import Health

Data = Annotated[Path, tyro.conf.arg(metavar="DATA", help="A folder that `unskew prepare` made.")]
RunArg = Annotated[Path, tyro.conf.arg(metavar="RUN", help="A folder that `unskew train` made.")]
Out = Annotated[
    Path, tyro.conf.arg(metavar="DATA", help="The folder to write; on any error it is as it was before.")
]
MovedData = Annotated[
    Path | None, tyro.conf.arg(metavar="DATA", help="Where the prepared data is, if it has moved.")
]
Segments = Annotated[
    Path | None,
    tyro.conf.arg(metavar="FOLDER", help="The folder of the compacted rows, if the store is in PostgreSQL."),
]
File = Annotated[Path | None, tyro.conf.arg(metavar="FILE")]
EventTypes = Annotated[str | None, tyro.conf.arg(metavar="TYPE,TYPE")]

# No markup: a path or an id may hold square brackets.
output = Console(highlight=False, markup=False)
messages = Console(stderr=True, highlight=False, markup=False)


@dataclass(frozen=True, kw_only=True)
class Verb:
    """The flag that every verb has."""

    json: bool = False
    """Print one JSON document on standard output; everything else goes to standard error."""

    def show(self, document: Document, *tables: RenderableType) -> None:
        """Print one JSON document, or the tables."""
        if not ranks().is_first:
            return
        if self.json:
            print(json_library.dumps(document, indent=1, allow_nan=False))
        else:
            for table in tables:
                output.print(table)


@dataclass(frozen=True, kw_only=True)
class Imports:
    """The flag that all verbs of models and runs have."""

    imports: Annotated[
        tuple[Path, ...], tyro.conf.UseAppendAction, tyro.conf.arg(name="import", metavar="FILE")
    ] = ()
    """A Python file that defines a model or an estimator of your own; the flag may be given several times. A
    run that needs such a file names it when it is missing."""


@dataclass(frozen=True, kw_only=True)
class RunVerb(Imports, Verb):
    """A verb of models and runs."""


@dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The flag of verbs that train networks or score with them."""

    device: Device = "cpu"
    """Where networks compute: on the processor (`cpu`), on a graphics card (`cuda`, `mps`), or on a card if
    torch finds one (`auto`)."""

    def use_device(self) -> None:
        """Let all networks of this process compute there."""
        from unskew.nn.device import use_device

        use_device(self.device)


@contextmanager
def together() -> Iterator[None]:
    """Work with the other processes that torchrun started, if it did. Those that are not the first say
    nothing but their errors."""
    with joined() as all_ranks:
        messages.quiet = not all_ranks.is_first
        try:
            yield
        finally:
            messages.quiet = False


def joined_help(verb: Any) -> None:
    """Give the flags of a verb, and of the settings within it, their help as one paragraph each: tyro keeps
    the line breaks of the source, unless the help stands in the docstring of the class."""
    hints = get_type_hints(verb)
    helps = explained(verb)
    if helps and "Args:" not in (verb.__doc__ or ""):
        lines = "\n".join(f"    {name}: {words}" for name, words in helps.items())
        verb.__doc__ = f"{inspect.cleandoc(verb.__doc__ or '')}\n\nArgs:\n{lines}\n"
    for field in fields(verb):
        if is_dataclass(hints[field.name]):
            joined_help(hints[field.name])


def notify(text: str) -> None:
    """Print a message beside the results; a path in it is not torn."""
    messages.print(text, soft_wrap=True)


def verdict_text(verdict: Verdict) -> RenderableType:
    """A finding and what to do about it, to stand above the values."""
    return Group(Text(verdict.finding, "bold"), *(Text(f"- {line}") for line in verdict.advice), Text())


def command_line() -> str:
    """What was typed, for the foot of a page, without the passwords of databases."""
    typed = [re.sub(r"(postgres(?:ql)?://).*", r"\1...", argument) for argument in sys.argv[1:]]
    return shlex.join(["unskew", *typed])


def inspection_tables(facts: "Inspection | Health") -> tuple[RenderableType, Table]:
    """The verdict, and all values by group; on a wide terminal with what they mean."""
    explained = output.width >= 130  # narrower, the meanings would fold into a column of single words
    body = grid(("",) * (4 if explained else 3))
    body.columns[2].justify = "right"
    for group, rows in groupby(facts.rows(), key=attrgetter("group")):
        for number, row in enumerate(rows):
            cells = Text("" if number else group, "bold"), Text(row.name), Text(row.value)
            body.add_row(*cells, *([Text(row.meaning, "dim")] if explained else []))
    return verdict_text(facts.verdict()), body


def split_of(data: Path, settings: Splitting) -> Split:
    """The split of a prepared folder."""
    return split(Log.open(data), **asdict(settings))


def split_of_run(folder: Path, data: Path | None) -> Split:
    """The split that a run was trained on; the data must be the same, wherever it is now."""
    from unskew.training.run import read_config

    return read_config(folder).open_split(data)


def use_threads(threads: int | None) -> None:
    """Let torch use so many threads; with None, as many as it chooses itself."""
    import torch

    if threads is not None:
        if threads < 1:
            raise BadInput(f"threads {threads}: expected at least 1", field="threads")
        torch.set_num_threads(threads)


def write_file(file: Path, text: str, what: str) -> None:
    """Write a file that a flag asked for, whole or not at all, and print what it is and where."""
    write_text(file, text)
    notify(f"{what}: {file}")


def words_in(listed: str | None) -> list[str] | None:
    """The words between the commas of a flag."""
    return None if listed is None else [word.strip() for word in listed.split(",") if word.strip()]


def moment_of(flag: str, text: str | None) -> int:
    """The moment that a flag names, in microseconds since 1970: ISO text, or seconds since 1970."""
    try:
        return parse_time(float(text) if text and re.fullmatch(r"\d+([.]\d*)?", text) else text)
    except BadInput as error:
        raise BadInput(f"--{flag} {text}: {error}", field=flag) from None


def span_of(flag: str, text: str) -> int:
    """The duration that a flag names, such as 90d or 5min, in microseconds."""
    return Clock(10**6).ticks_in(text, flag)


def flat(facts: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """The entries of a document in one level."""
    entries: dict[str, Any] = {}
    for name, value in facts.items():
        entries |= flat(value, f"{name}: ") if isinstance(value, dict) else {prefix + name: value}
    return entries


def pairs(title: str, facts: dict[str, Any]) -> RenderableType:
    """A table of names and values."""
    rows = {
        name.replace("_", " "): f"{value:,}" if isinstance(value, int) else str(value)
        for name, value in facts.items()
    }
    return table(title, ("", ""), rows.items())


def table(title: str, head: tuple[str, ...], rows: Any) -> RenderableType:
    """A table for the terminal, below its title. The title is not part of it, so that a narrow table does not
    fold it."""
    body = grid(head)
    for row in rows:
        body.add_row(*map(Text, row))
    return Group(Text(title), body) if title else body


def grid(head: tuple[str, ...]) -> Table:
    """A table without rows; long words fold instead of being cut."""
    empty = Table(show_header=any(head), box=None, pad_edge=False)
    for name in head:
        empty.add_column(name, overflow="fold")
    return empty
