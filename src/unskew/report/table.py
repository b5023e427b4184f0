"""A table of formatted cells, and the forms in which it is written: HTML for pages, Markdown for documents,
LaTeX for papers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup

from unskew.report.templates import render

# What means something else to LaTeX, or is another letter in its old fonts.
LATEX = {
    **{letter: rf"\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "|": r"\textbar{}",
    "<": "$<$",
    ">": "$>$",
    "–": "--",
    "−": "$-$",
    "†": r"$^{\dagger}$",
    "‡": r"$^{\ddagger}$",
}
MARKDOWN = {"<": "&lt;", "*": r"\*", "_": r"\_"}


class Cell(NamedTuple):
    """A cell whose text means itself in every form.

    text: the text of the cell.
    small: what stands small below it.
    marks: raised signs behind the text, such as stars.
    rank: 1 is bold, for the best of a column, and 2 is underlined, for the second.
    """

    text: str
    small: str = ""
    marks: str = ""
    rank: int = 0


@dataclass(frozen=True)
class Table:
    """Formatted cells under a head.

    head: the name of each column; all empty means that there is no head.
    rows: the cells, one sequence per row, each as long as the head. A plain `str` may hold Markdown.
    text: the columns that hold text and stand on the left; all others hold numbers and stand on the right.
    caption: what the table shows, in a sentence.
    foot: the number of the last rows that sum up the others, and stay below them when a page sorts the rows.
    groups: names above several columns each, with the number of the columns.
    name: what the script of a page knows the table by.
    """

    head: Sequence[str | Cell]
    rows: Sequence[Sequence[str | Cell]]
    text: Collection[int] = (0,)
    caption: str = ""
    foot: int = 0
    groups: Sequence[tuple[str, int]] = ()
    name: str = ""

    @classmethod
    def of_records(
        cls, records: Sequence[Mapping[str, str | Cell]], text: Collection[str] = (), caption: str = ""
    ) -> "Table":
        """A table of rows that name their columns. Every text in it means itself.

        text: the columns that hold text, besides the first one.
        """
        head = list(records[0]) if records else []
        rows = [[_cell(value) for value in record.values()] for record in records]
        return cls(head, rows, [at for at, name in enumerate(head) if not at or name in text], caption)

    @property
    def cells(self) -> list[list[Cell]]:
        """The rows, every cell as a `Cell`."""
        return [[_cell(cell) for cell in row] for row in self.rows]

    @property
    def titles(self) -> list[str]:
        """The names of the columns as plain text."""
        return [_cell(name).text for name in self.head]

    @property
    def label(self) -> str:
        """The first two sentences of the caption: what a screen reader calls the table."""
        return ". ".join(self.caption.split(". ")[:2]).removesuffix(".")

    def html(self, sheet: bool = False) -> Markup:
        """The table as HTML.

        sheet: for a page whose script can sort and filter it; it scrolls if it is wider than the page.
            Otherwise the rows of a wide table are stacked on a phone.
        """
        return Markup(render("report/templates/table.html", table=self, sheet=sheet).strip())

    def markdown(self, with_caption: bool = False) -> str:
        """The table as GitHub's Markdown, if asked for below its caption."""
        rule = ["---" if at in self.text else "---:" for at in range(len(self.head))]
        lines = [self._grouped_head(), *self.rows]
        head, *rows = ([_markdown(cell).replace("|", "&#124;") for cell in line] for line in lines)
        written = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))
        return f"{_escaped(self.caption, MARKDOWN)}\n\n{written}" if with_caption else written

    def latex(self, label: str = "") -> str:
        r"""The table as LaTeX, with the rules of the package booktabs and its caption above it.

        label: what \ref{...} calls the table; by default it has none.
        """
        columns = "".join("l" if at in self.text else "r" for at in range(len(self.head)))
        head = self._grouped_head()
        lines = [
            r"% \usepackage{booktabs}",
            r"\begin{table}",
            r"\centering",
            *([rf"\caption{{{latex_escape(self.caption)}}}"] if self.caption else []),
            *([rf"\label{{{label}}}"] if label else []),
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            *([rf"{_latex_line(head)} \\", r"\midrule"] if any(self.titles) else []),
            *(rf"{_latex_line(row)} \\" for row in self.rows),
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{table}",
        ]
        return "\n".join(lines) + "\n"

    def _grouped_head(self) -> list[str | Cell]:
        """The head in one line: the name of a group stands before the name of each of its columns."""
        if not self.groups:
            return list(self.head)
        above = [name for name, columns in self.groups for _ in range(columns)]
        pairs = zip(above, self.head, strict=True)
        return [Cell(f"{group} {_cell(name).text}".strip()) if group else name for group, name in pairs]


def latex_escape(text: str) -> str:
    """Plain text as LaTeX: what means something else there is written so that it means itself, and stars are
    raised."""
    escaped = _escaped(" ".join(text.split()), LATEX)
    return re.sub(r"\*+", lambda stars: f"$^{{{stars[0]}}}$", escaped)


def _cell(cell: str | Cell) -> Cell:
    return cell if isinstance(cell, Cell) else Cell(cell)


def _escaped(text: str, signs: dict[str, str]) -> str:
    return "".join(signs.get(letter, letter) for letter in text)


def _markdown(cell: str | Cell) -> str:
    if isinstance(cell, str):
        return cell
    text, small, marks = (_escaped(part, MARKDOWN) for part in cell[:3])
    before, after = (("", ""), ("**", "**"), ("<u>", "</u>"))[cell.rank if text else 0]
    return f"{before}{text}{after}{marks} {small}".strip()


def _latex_line(cells: Sequence[str | Cell]) -> str:
    """A row without its end. A bracket behind the end of the row before would be read as a part of that end,
    so an empty pair of braces comes between."""
    line = " & ".join(_latex(_cell(cell)) for cell in cells)
    return f"{{}}{line}" if line.startswith("[") else line


def _latex(cell: Cell) -> str:
    # A hyphen before a number is a minus.
    text, small = (latex_escape(re.sub(r"(?<![\w.)])-(?=[\d.])", "−", part)) for part in cell[:2])
    before = ("", r"\textbf{", r"\underline{")[cell.rank if text else 0]
    return f"{before}{text}{'}' if before else ''}{latex_escape(cell.marks)} {small}".strip()
