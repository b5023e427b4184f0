"""The frame of every report: one HTML file that needs nothing else, on a phone, in the dark, from file://.

Text becomes `Markup` only through the functions here, and they escape it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import NewType

Markup = NewType("Markup", str)

STYLE = """
:root { color-scheme: light dark; --ground: #fbfaf8; --card: #ffffff; --ink: #1f2430;
  --soft: #626a78; --line: #e4e2dc; }
@media (prefers-color-scheme: dark) {
  :root { --ground: #14161a; --card: #1c1f25; --ink: #e6e8ec; --soft: #9aa2b0; --line: #30353e; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto,
  "Noto Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 66rem; margin: 0 auto; padding: 2rem 1.1rem 3rem; }
header { margin-bottom: 1.4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0; overflow-wrap: anywhere; letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; line-height: 1.3; margin: 0 0 0.7rem; }
p { margin: 0 0 0.8rem; max-width: 46rem; }
.soft, figcaption, caption, footer { color: var(--soft); font-size: 0.9rem; }
header p { margin: 0.3rem 0 0; overflow-wrap: anywhere; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 12px;
  padding: 1.2rem 1.3rem; margin: 0 0 1.1rem; }
section > :last-child { margin-bottom: 0; }
ul { margin: 0 0 0.8rem; padding: 0; list-style: none; max-width: 52rem; }
li { margin: 0 0 0.55rem; padding-left: 0.9rem; border-left: 3px solid var(--line); }
li:last-child { margin-bottom: 0; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr));
  gap: 1.1rem 2rem; margin: 0 0 0.8rem; }
.beside > * { min-width: 0; }
.beside > * > :last-child { margin-bottom: 0; }
figure { margin: 0 0 0.8rem; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; }
figcaption { margin-top: 0.3rem; }
.wide { overflow-x: auto; margin: 0 0 0.8rem; }
table { border-collapse: collapse; font-size: 0.93rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: 0.4rem; }
th, td { text-align: left; padding: 0.32rem 1.2rem 0.32rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
tr:last-child td { border-bottom: 0; }
td.soft { min-width: 9rem; }
.n { text-align: right; white-space: nowrap; }
footer { margin-top: 1.6rem; }
@media (max-width: 32rem) {
  main { padding: 1.2rem 0.7rem 2rem; } section { padding: 1rem 0.9rem; } h1 { font-size: 1.35rem; }
  th, td { padding-right: 0.6rem; } td.soft { min-width: 5.5rem; } table { font-size: 0.88rem; }
}
@media print { section { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Section:
    title: str
    body: tuple[Markup, ...]


def page(title: str, sections: Sequence[Section], subtitle: str = "") -> str:
    """The whole file."""
    below = f'<p class="soft">{escape(subtitle)}</p>' if subtitle else ""
    parts = "\n".join(
        f"<section>\n<h2>{escape(part.title)}</h2>\n{''.join(part.body)}\n</section>" for part in sections
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header><h1>{escape(title)}</h1>{below}</header>
{parts}
<footer>Made by unskew.</footer>
</main>
</body>
</html>
"""


def paragraph(text: str) -> Markup:
    return Markup(f"<p>{escape(text)}</p>")


def points(texts: Sequence[str]) -> Markup:
    """A list of sentences. What stands before a colon is the topic, in bold."""

    def point(text: str) -> str:
        topic, colon, rest = text.partition(": ")
        return (
            f"<li><strong>{escape(topic)}.</strong> {escape(rest[:1].upper() + rest[1:])}</li>"
            if colon
            else f"<li>{escape(text)}</li>"
        )

    # A line must not break between a number and its sign.
    return Markup(f"<ul>{''.join(point(text) for text in texts)}</ul>".replace(" %", "&nbsp;%"))


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    text: Sequence[int] = (0,),
    remarks: Sequence[int] = (),
    caption: str = "",
) -> Markup:
    """A table of formatted cells. A column is a number and stands on the right, unless it is in `text` or,
    paler, in `remarks`."""

    def cell(at: int, content: str, tag: str) -> str:
        look = "" if at in text else ' class="soft"' if at in remarks else ' class="n"'
        return f"<{tag}{look}>{escape(content)}</{tag}>"

    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(cell(at, content, tag) for at, content in enumerate(cells))}</tr>"

    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    top = f"<thead>{line(head, 'th')}</thead>" if any(head) else ""
    return Markup(
        f'<div class="wide"><table>{title}{top}'
        f"<tbody>{''.join(line(row, 'td') for row in rows)}</tbody></table></div>"
    )


def figure(svg: str, caption: str = "") -> Markup:
    """A chart of `charts`, which escapes its own text."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return Markup(f"<figure>{svg}{below}</figure>")


def beside(*parts: Markup) -> Markup:
    """Side by side where there is room, else one below the other."""
    return Markup(f'<div class="beside">{"".join(f"<div>{part}</div>" for part in parts)}</div>')
