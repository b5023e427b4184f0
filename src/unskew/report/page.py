"""The frame of every report: one HTML file that needs nothing else, on a phone, in the dark, from file://.

Text becomes `Markup` only through the functions here, and they escape it.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from typing import NewType

from unskew.report.summary import Row, Verdict
from unskew.report.table import Table

Markup = NewType("Markup", str)

STYLE = """
:root { color-scheme: light dark; --ground: #fbfaf8; --card: #ffffff; --ink: #1f2430;
  --soft: #5b6371; --line: #e4e2dc; --mark: #2f80c8; --code: #f1efea; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14161a; --card: #1c1f25; --ink: #e6e8ec; --soft: #a3abb8; --line: #353b45;
    --mark: #5ba3e0; --code: #2a2f38; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Noto Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.1rem 3rem; }
header { margin-bottom: 1.4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; line-height: 1.3; margin: 0 0 0.7rem; }
h3 { font-size: 1rem; line-height: 1.3; margin: 0 0 0.4rem; }
p { margin: 0 0 0.8rem; max-width: 46rem; }
code { background: var(--code); border-radius: 4px; padding: 0.1em 0.35em; overflow-wrap: anywhere;
  font: 0.88em/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.soft, .note, figcaption, caption, footer { color: var(--soft); font-size: 0.9rem; }
header p { margin: 0.3rem 0 0; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.2rem 1.3rem; margin: 0 0 1.1rem; }
section > :last-child { margin-bottom: 0; }
.verdict { border-left: 5px solid var(--mark); }
.finding { font-size: 1.15rem; line-height: 1.45; font-weight: 600; max-width: 52rem; }
ul { margin: 0 0 0.8rem; padding: 0; list-style: none; max-width: 52rem; }
li { margin: 0 0 0.55rem; padding-left: 0.9rem; border-left: 3px solid var(--line); }
li:last-child { margin-bottom: 0; }
.beside, .cards { display: grid; gap: 1.1rem 2rem; margin: 0 0 0.8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); }
.cards { grid-template-columns: repeat(auto-fill, minmax(min(100%, 17rem), 1fr)); }
.beside > *, .cards > * { min-width: 0; }
.beside > * > :last-child, .cards > * > :last-child { margin-bottom: 0; }
figure { margin: 0 0 0.8rem; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; }
figcaption { margin-top: 0.3rem; }
table { border-collapse: collapse; margin: 0 0 0.8rem; font-size: 0.93rem; max-width: 100%;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 0.4rem; }
th, td { text-align: left; padding: 0.32rem 1.2rem 0.32rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
tr:last-child td { border-bottom: 0; }
.n { text-align: right; }
td.n { white-space: nowrap; }
.facts, .beside table { width: 100%; }
.facts caption { color: var(--ink); font-weight: 600; font-size: 1rem; }
.note { display: block; font-size: 0.84rem; line-height: 1.35; }
footer { margin-top: 1.6rem; overflow-wrap: anywhere; }
footer p { margin: 0 0 0.2rem; max-width: none; }
@media (max-width: 40rem) {
  main { padding: 1.2rem 0.7rem 2rem; } section { padding: 1rem 0.9rem; } h1 { font-size: 1.35rem; }
  th, td { padding-right: 0.6rem; } table { font-size: 0.88rem; } .finding { font-size: 1.05rem; }
  .stacked, .stacked tbody, .stacked caption { display: block; }
  .stacked thead { display: none; }
  .stacked tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.2rem; padding: 0.5rem 0;
    border-bottom: 1px solid var(--line); }
  .stacked tr:last-child { border-bottom: 0; }
  .stacked td { display: flex; justify-content: space-between; align-items: baseline; gap: 0.5rem;
    padding: 0.08rem 0; border: 0; }
  .stacked td:first-child { grid-column: 1 / -1; font-weight: 600; }
  .stacked td.n::before { content: attr(data-name); color: var(--soft); white-space: normal;
    text-align: left; line-height: 1.25; }
}
@media print { section { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Page:
    """What the template `report/templates/base.html` needs for the head and the foot of a report.

    verdict: what stands above everything else.
    data: the hash of the data, `Log.fingerprint()`.
    command: the command line that made the page; empty where it was made from Python.
    date: when it was made; by default now.
    advice_head: the title of the sentences below the finding.
    advice_has_topics: whether each of these sentences begins with a topic and a colon.
    tone: a class of the verdict's card, for its colour.
    """

    title: str
    verdict: Verdict
    data: str
    command: str = ""
    date: str = ""
    subtitle: str = ""
    advice_head: str = "What to do"
    advice_has_topics: bool = False
    tone: str = ""

    @property
    def version(self) -> str:
        """The version of unskew that makes the page."""
        return version("unskew")

    @property
    def made_on(self) -> str:
        """The date of the page."""
        return self.date or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


@dataclass(frozen=True)
class Section:
    """A card of the page: a title and what stands below it."""

    title: str
    body: tuple[Markup, ...]
    name: str = ""  # what a link to it is called


@dataclass(frozen=True)
class Extra:
    """What a page has beyond the others.

    style: rules after those that all pages have.
    head: the title of the sentences below the finding.
    top: what stands between the verdict and the sections.
    end: what stands after everything else.
    script: a script that makes the page easier to use. No other script can run in the page, and nothing can
        be fetched from anywhere.
    """

    style: str = ""
    head: str = "What to do"
    top: Markup = Markup("")
    end: Markup = Markup("")
    script: str = ""


@dataclass(frozen=True)
class Origin:
    """What the foot of a page says about where the page came from.

    data: the hash of the log, `Log.fingerprint()`.
    command: the command line that made the page; empty where it was made from Python.
    date: when; by default now.
    """

    data: str
    command: str = ""
    date: str = ""


def page(
    title: str,
    verdict: Verdict,
    sections: Sequence[Section],
    origin: Origin,
    subtitle: str = "",
    extra: Extra | None = None,
) -> str:
    """The whole file. The verdict stands above everything else."""
    more = extra or Extra()
    below = f'<p class="soft">{escape(subtitle)}</p>' if subtitle else ""
    parts = "\n".join(map(_section, sections))
    script = f"<script>{more.script}</script>\n" if more.script else ""
    policy = (
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(more.script)}">\n' if script else ""
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}{more.style}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>{below}</header>
<section class="verdict">
<p class="finding">{_inline(verdict.finding)}</p>
<h3>{escape(more.head)}</h3>
{points(verdict.advice, topics=extra is not None)}
</section>
{more.top}{parts}
{_foot(origin)}
</main>
{more.end}{script}</body>
</html>
"""


def _section(part: Section) -> str:
    name = f' id="{escape(part.name)}"' if part.name else ""
    return f"<section{name}>\n<h2>{escape(part.title)}</h2>\n{''.join(part.body)}\n</section>"


def _policy(script: str) -> str:
    """What the page may do: have styles, and run this very script."""
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{mark}'"


def paragraph(text: str) -> Markup:
    """A paragraph of plain text; what stands between backticks is code."""
    return Markup(f"<p>{_inline(text)}</p>")


def points(texts: Sequence[str], topics: bool = False) -> Markup:
    """A list of sentences. With `topics`, what stands before the first colon is the topic, in bold."""

    def point(text: str) -> str:
        topic, colon, rest = text.partition(": ")
        if not topics or not colon:
            return f"<li>{_inline(text)}</li>"
        return f"<li><strong>{escape(topic)}.</strong> {_inline(rest[:1].upper() + rest[1:])}</li>"

    return Markup(f"<ul>{''.join(point(text) for text in texts)}</ul>")


def table(made: Table) -> Markup:
    """A table, which escapes its own cells."""
    return Markup(str(made.html()))


def facts(rows: Iterable[Row], caption: str = "") -> Markup:
    """Names and values in two columns; what a value means stands small below its name, so that nothing is
    pressed into a narrow third column."""

    def line(row: Row) -> str:
        note = f'<span class="note">{escape(row.meaning)}</span>' if row.meaning else ""
        return f'<tr><td>{escape(row.name)}{note}</td><td class="n">{escape(row.value)}</td></tr>'

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return Markup(f'<table class="facts">{title}<tbody>{"".join(map(line, rows))}</tbody></table>')


def figure(svg: str, caption: str = "") -> Markup:
    """A chart of `charts`, which escapes its own text."""
    below = f"<figcaption>{_inline(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{svg}{below}</figure>")


def beside(*parts: Markup) -> Markup:
    """Two side by side where there is room, else one below the other."""
    return _grid("beside", parts)


def cards(*parts: Markup) -> Markup:
    """Narrow parts, as many side by side as there is room for."""
    return _grid("cards", parts)


def _grid(kind: str, parts: Sequence[Markup]) -> Markup:
    return Markup(f'<div class="{kind}">{"".join(f"<div>{part}</div>" for part in parts)}</div>')


def _foot(origin: Origin) -> str:
    date = origin.date or datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    made = f"Made by unskew {version('unskew')} on {date}"
    command = f" with <code>{escape(origin.command)}</code>" if origin.command else ""
    return f"<footer><p>{escape(made)}{command}.</p><p>Hash of the data: {escape(origin.data)}</p></footer>"


def _inline(text: str) -> str:
    """Escaped text with its code marked. A line must not break between a number and its per cent sign."""
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return marked.replace(" %", "&nbsp;%")
