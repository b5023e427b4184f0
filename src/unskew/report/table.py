"""A table of formatted cells, and the forms in which it is written: HTML for pages, Markdown for documents,
LaTeX for papers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import NamedTuple

STACKED_FROM = 6  # columns; a wider table does not fit on a phone, so there its rows are stacked

# What means something else to LaTeX, or is another letter in its old fonts.
SPECIAL = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    "–": "--",
    "−": "$-$",
}


class Marks(NamedTuple):
    """How a form writes what is bold, and stars: what comes before and after each, and a star itself."""

    bold: tuple[str, str]
    stars: tuple[str, str]
    star: str = "*"


HTML = Marks(("<strong>", "</strong>"), ("<sup>", "</sup>"))
MARKDOWN = Marks(("**", "**"), ("", ""), r"\*")
LATEX = Marks((r"\textbf{", "}"), ("$^{", "}$"))


@dataclass(frozen=True)
class Table:
    """Formatted cells under a head.

    head: the name of each column; all empty means that there is no head.
    rows: the cells, one sequence per row, each as long as the head.
    text: the columns that hold text and stand on the left; all others hold numbers and stand on the right.
    caption: what the table shows, in a sentence.
    bold: the cells that stand out, as pairs of row and column, counted from 0 below the head.
    stars: how many stars follow the cell of a row and column, to mark what is significant.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: Sequence[int] = (0,)
    caption: str = ""
    bold: Collection[tuple[int, int]] = ()
    stars: Mapping[tuple[int, int], int] = field(default_factory=dict)

    def html(self) -> str:
        """The table as HTML. Every cell carries the name of its column, which a phone shows beside it."""
        title = f"<caption>{escape(self.caption)}</caption>" if self.caption else ""
        top = f"<thead>{self._line(self.head, None)}</thead>" if any(self.head) else ""
        body = "".join(self._line(row, number) for number, row in enumerate(self.rows))
        look = ' class="stacked"' if len(self.head) >= STACKED_FROM else ""
        return f"<table{look}>{title}{top}<tbody>{body}</tbody></table>"

    def markdown(self) -> str:
        """The table as GitHub's Markdown, without the caption. Cells may hold Markdown of their own."""
        rule = ["---" if at in self.text else "---:" for at in range(len(self.head))]
        body = [
            [self._marked(cell, row, at, MARKDOWN) for at, cell in enumerate(cells)]
            for row, cells in enumerate(self.rows)
        ]
        lines = [self.head, rule, *body]
        return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |" for line in lines)

    def latex(self, label: str = "") -> str:
        r"""The table as LaTeX, with the rules of the package booktabs and its caption above it.

        label: what \ref{...} calls the table; by default it has none.
        """
        columns = "".join("l" if at in self.text else "r" for at in range(len(self.head)))
        head = [rf"{self._latex_line(self.head, None)} \\", r"\midrule"] if any(self.head) else []
        body = [rf"{self._latex_line(row, number)} \\" for number, row in enumerate(self.rows)]
        lines = [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{latex_escape(self.caption)}}}"] if self.caption else []),
            *([rf"\label{{{label}}}"] if label else []),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *head,
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _latex_line(self, cells: Sequence[str], row: int | None) -> str:
        """A row without its end. A bracket behind the end of the row before would be read as a part of that
        end, so an empty pair of braces comes between."""
        made = []
        for at, content in enumerate(cells):
            # A hyphen before a number is a minus.
            cell = latex_escape(re.sub(r"(?<![\w.)])-(?=[\d.])", "−", content))
            made.append(self._marked(cell, row, at, LATEX))
        line = " & ".join(made)
        return f"{{}}{line}" if line.startswith("[") else line

    def _marked(self, cell: str, row: int | None, at: int, marks: Marks) -> str:
        """A cell that is written already, in bold if it is to stand out, and with its stars. The head has
        neither."""
        if row is None:
            return cell
        stars = marks.star * self.stars.get((row, at), 0)
        bold = marks.bold if cell and (row, at) in self.bold else ("", "")
        return cell.join(bold) + (stars.join(marks.stars) if stars else "")

    def _line(self, cells: Sequence[str], row: int | None) -> str:
        return f"<tr>{''.join(self._cell(at, content, row) for at, content in enumerate(cells))}</tr>"

    def _cell(self, at: int, content: str, row: int | None) -> str:
        look, tag = "" if at in self.text else ' class="n"', "th" if row is None else "td"
        name = f' data-name="{escape(self.head[at])}"' if tag == "td" and self.head[at] else ""
        inner = self._marked(escape(content), row, at, HTML)
        return f"<{tag}{look}{name}>{inner}</{tag}>"


def latex_escape(text: str) -> str:
    """Plain text as LaTeX: whatever means something else there is written so that it means itself, and stars
    are raised."""
    escaped = "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))
    return re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", escaped)
