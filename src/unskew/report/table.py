"""A table of formatted cells, and the two forms in which it is written: HTML for pages, Markdown for docs."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

STACKED_FROM = 6  # columns; a wider table does not fit on a phone, so there its rows are stacked


@dataclass(frozen=True)
class Table:
    """Formatted cells under a head.

    head: the name of each column; all empty means that there is no head.
    rows: the cells, one sequence per row, each as long as the head.
    text: the columns that hold text and stand on the left; all others hold numbers and stand on the right.
    caption: what the table shows, in a sentence.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: Sequence[int] = (0,)
    caption: str = ""

    def html(self) -> str:
        """The table as HTML. Every cell carries the name of its column, which a phone shows beside it."""
        title = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        top = f"<thead>{self._line(self.head, 'th')}</thead>" if any(self.head) else ""
        body = "".join(self._line(row, "td") for row in self.rows)
        look = ' class="stacked"' if len(self.head) >= STACKED_FROM else ""
        return f"<table{look}>{title}{top}<tbody>{body}</tbody></table>"

    def markdown(self) -> str:
        """The table as GitHub's Markdown, without the caption."""
        rule = ["---" if at in self.text else "---:" for at in range(len(self.head))]
        lines = [self.head, rule, *self.rows]
        return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)

    def _line(self, cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(self._cell(at, content, tag) for at, content in enumerate(cells))}</tr>"

    def _cell(self, at: int, content: str, tag: str) -> str:
        look = "" if at in self.text else ' class="n"'
        name = f' data-name="{escape(self.head[at])}"' if tag == "td" and self.head[at] else ""
        return f"<{tag}{look}{name}>{escape(content)}</{tag}>"
