"""The command line. A verb is a small dataclass; its flags are the fields of the settings that the Python functions take."""

import json as json_library
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tyro.conf import OmitArgPrefixes, Positional

from unskew.data.audit import audit
from unskew.data.log import Log
from unskew.data.prepare import Preparation, prepare
from unskew.data.simulate import Simulation, simulate
from unskew.data.split import Split, Splitting, split
from unskew.data.views import AUDIENCE, HISTORY
from unskew.errors import Leak, UnskewError
from unskew.inspection import Inspection, inspect
from unskew.progress import shown_on

Data = Annotated[Path, tyro.conf.arg(metavar="DATA", help="A folder that `unskew prepare` made.")]
Out = Annotated[Path, tyro.conf.arg(metavar="DATA", help="The folder to write; on any error it is as it was before.")]

# No markup: a path or an id may hold square brackets.
output = Console(highlight=False, markup=False)
messages = Console(stderr=True, highlight=False, markup=False)


@dataclass(frozen=True, kw_only=True)
class Verb:
    json: bool = False
    """Print one JSON document on standard output; everything else goes to standard error."""

    def show(self, document: dict[str, Any], *tables: Table) -> None:
        if self.json:
            print(json_library.dumps(document, indent=1, allow_nan=False))
        else:
            for table in tables:
                output.print(table)


@dataclass(frozen=True, kw_only=True)
class Prepare(Verb):
    """Read a log, check every row, and prepare it once: duplicates, labels, k-core, index, both views."""

    source: Positional[Annotated[str, tyro.conf.arg(metavar="SOURCE", help="A file, a folder or a pattern.")]]
    out: Out
    settings: OmitArgPrefixes[Preparation] = field(default_factory=Preparation)

    def run(self) -> None:
        log = prepare(self.source, self.out, **asdict(self.settings))
        facts = {name: log.facts[name] for name in ("source", "rows", "positives", "users", "items", "columns", "time_unit", "removed")}
        self.show({"data": str(self.out), **facts}, _pairs(f"{self.source} -> {self.out}", _flat(facts)))
        if log.facts["removed"]["bad_rows"]:
            messages.print(f"{log.facts['removed']['bad_rows']} bad rows were set aside: {self.out / 'bad_rows.csv'}")


@dataclass(frozen=True, kw_only=True)
class Inspect(Verb):
    """Show what a log is like and how it is skewed: size, ties, popularity, drift, order, and what resampling changes."""

    data: Positional[Data]
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """Also write one self-contained HTML file with plots (extra `report`)."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        found = inspect(_split(self.data, self.splitting), self.splitting.seed)
        if self.html is not None:
            _write_page(self.html, found)
        self.show(found.as_dict(), inspection_table(found))


@dataclass(frozen=True, kw_only=True)
class Audit(Verb):
    """Prove that nothing a model may read comes from the future, or name the first row that does (and exit with 1)."""

    data: Positional[Data]
    history: int = HISTORY
    """Past items of a user that a model reads."""
    audience: int = AUDIENCE
    """Past users of an item that a model reads."""
    splitting: OmitArgPrefixes[Splitting] = field(default_factory=Splitting)

    def run(self) -> None:
        findings = audit(_split(self.data, self.splitting), self.history, self.audience)
        leaks = [finding for finding in findings if not finding.passed]
        rows = [(finding.check, f"{finding.checked:,}", finding.offence or "no leak") for finding in findings]
        document = {"leak_free": not leaks, "checks": [asdict(finding) | {"passed": finding.passed} for finding in findings]}
        self.show(document, _table(f"Leak audit of {self.data}", ("check", "checked", "finding"), rows))
        if leaks:
            raise Leak(f"{leaks[0].check}: {leaks[0].offence}")


@dataclass(frozen=True, kw_only=True)
class Simulate(Verb):
    """Make a log from a world whose true preferences and exposure probabilities are known."""

    out: Out
    settings: OmitArgPrefixes[Simulation] = field(default_factory=Simulation)

    def run(self) -> None:
        log = prepare(simulate(**asdict(self.settings)).log, self.out, min_count=1, duplicates="keep")
        facts = {name: log.facts[name] for name in ("rows", "positives", "users", "items")}
        self.show({"data": str(self.out), **facts, "world": asdict(self.settings)}, _pairs(f"simulated world -> {self.out}", facts))


@dataclass(frozen=True, kw_only=True)
class Demo(Verb):
    """See it work: prepare the demo data, audit it, and draw how it is skewed."""

    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("demo")
    """Where the prepared data and the page go."""

    def run(self) -> None:
        from unskew import demo

        done = demo.run(self.out)
        leak_free = f"Leak audit: {sum(finding.checked for finding in done.findings):,} values checked, no leak."
        self.show(done.inspection.as_dict() | {"page": str(done.page), "leak_free": True}, inspection_table(done.inspection))
        for sentence in done.inspection.sentences():
            messages.print(sentence, soft_wrap=True)
        messages.print(f"{leak_free}\nThe picture: {done.page}", soft_wrap=True)


VERBS: dict[str, Callable[..., Any]] = {"prepare": Prepare, "inspect": Inspect, "audit": Audit, "simulate": Simulate, "demo": Demo}


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 done, 1 the job failed, 2 wrong use or bad input."""
    if (sys.argv[1:] if arguments is None else arguments) == ["--version"]:
        print(f"unskew {version('unskew')}")
        return 0
    signal.signal(signal.SIGTERM, _stopped)
    try:
        verb = tyro.extras.subcommand_cli_from_dict(
            VERBS,
            prog="unskew",
            description="Unbiased next-item recommendation from biased interaction logs.",
            args=arguments,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        with shown_on(messages):
            verb.run()
    except UnskewError as error:
        messages.print(f"unskew: {error}", style="bold red" if messages.is_terminal else None, soft_wrap=True)
        return error.exit_code
    except KeyboardInterrupt:
        messages.print("unskew: stopped")
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as in `unskew ... | head`
        sys.stderr.close()
        return 0
    return 0


def _stopped(number: int, frame: object) -> None:
    """Leave as on Ctrl-C, so that scratch folders are removed."""
    raise KeyboardInterrupt


def inspection_table(found: Inspection) -> Table:
    explained = output.width >= 110  # else the meanings would fold into narrow columns
    table = _table("", ("",) * (4 if explained else 3), ())
    table.columns[2].justify = "right"
    group = None
    for row in found.rows():
        if group not in (None, row.group):
            table.add_section()
        meaning = [Text(row.meaning, "dim")] if explained else []
        table.add_row(Text("" if row.group == group else row.group, "bold"), Text(row.name), Text(row.value), *meaning)
        group = row.group
    return table


def _split(data: Path, settings: Splitting) -> Split:
    return split(Log.open(data), **asdict(settings))


def _write_page(file: Path, found: Inspection) -> None:
    from unskew.report.inspect_page import inspect_page

    text = inspect_page(found)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnskewError(f"{file}: cannot be written ({error.strerror})") from None
    messages.print(f"the page: {file}", soft_wrap=True)


def _flat(facts: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in facts.items():
        flat |= _flat(value, f"{name}: ") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _pairs(title: str, facts: dict[str, Any]) -> Table:
    said = {name.replace("_", " "): f"{value:,}" if isinstance(value, int) else str(value) for name, value in facts.items()}
    return _table(title, ("", ""), said.items())


def _table(title: str, head: tuple[str, ...], rows: Any) -> Table:
    table = Table(title=Text(title) if title else None, title_justify="left", show_header=any(head), box=None, pad_edge=False)
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


if __name__ == "__main__":
    sys.exit(main())
