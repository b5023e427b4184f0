"""A table of a report, in the forms in which it is written: HTML that can be sorted, filtered and read aloud,
Markdown and LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal, NamedTuple

from unskew.report.page import Markup
from unskew.report.table import Table

NONE = "–"
STAR, DAGGER = "*", "†"
# What stands for the begin and the end of bold and underlined text until a form is written: characters that
# no text has.
BOLD, UNDER = ("\ue000", "\ue001"), ("\ue002", "\ue003")
Form = Literal["markdown", "latex"]
WRITTEN: dict[Form, dict[str, str]] = {
    "markdown": {
        "<": "&lt;",
        STAR: r"\*",
        "_": r"\_",
        BOLD[0]: "**",
        BOLD[1]: "**",
        UNDER[0]: "<u>",
        UNDER[1]: "</u>",
    },
    "latex": {
        BOLD[0]: r"\textbf{",
        BOLD[1]: "}",
        UNDER[0]: r"\underline{",
        UNDER[1]: "}",
        DAGGER: r"$^{\dagger}$",
    },
}


class Entry(NamedTuple):
    """A cell: its text, what stands small below it, its marks, and its place where that is shown (1 is the
    best, 2 the second)."""

    text: str
    small: str = ""
    marks: str = ""
    place: int = 0

    def html(self) -> str:
        """The cell as HTML; a command is code."""
        text = escape(self.text)
        if self.text.startswith("unskew "):
            text = f"<code>{text}</code>"
        if self.place:
            text = f"<b>{text}</b>" if self.place == 1 else f"<u>{text}</u>"
        marks = f"<sup>{escape(self.marks)}</sup>" if self.marks else ""
        small = f"<small>{escape(self.small)}</small>" if self.small else ""
        return f"{text}{marks}{small}"

    def plain(self) -> str:
        """The cell as text of one line, with characters that stand for bold and underlined."""
        text = self.text.join((("", ""), BOLD, UNDER)[self.place])
        return f"{text}{self.marks} {self.small}".strip()


@dataclass(frozen=True)
class Sheet:
    """Cells under a head, each row beginning with its name.

    head: the names of the columns.
    rows: the cells of each row, as many as the head has names.
    caption: what the table shows.
    text: the columns that hold words and stand on the left; the first always does.
    foot: how many of the last rows sum up the others, and so keep their place when the rows are sorted.
    over: names above several columns each, with how many.
    name: what the script of the page knows the table by.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str
    text: Sequence[int] = (0,)
    foot: int = 0
    over: Sequence[tuple[str, int]] = ()
    name: str = ""

    def html(self) -> Markup:
        """The table as HTML. End tags that a browser does not need are left out: there are many cells."""
        over = "".join(
            f"<th scope=colgroup colspan={span}>{escape(name)}" if name else f"<td colspan={span}>"
            for name, span in self.over
        )
        head = "".join(f"<th scope=col{self._look(at)}>{escape(name)}" for at, name in enumerate(self.head))
        last = len(self.rows) - self.foot
        body = "".join(map(self._row, self.rows[:last]))
        foot = f"<tfoot>{''.join(map(self._row, self.rows[last:]))}" if self.foot else ""
        name = f' data-name="{escape(self.name)}"' if self.name else ""
        return Markup(
            f'<div class="wide" tabindex="0" role="group" aria-label="{escape(self._called())}">'
            f'<table class="sheet"{name}><caption><span>{escape(self.caption)}</span></caption>'
            f"<thead>{f'<tr>{over}' if over else ''}<tr>{head}<tbody>{body}{foot}</table></div>\n"
        )

    def table(self, form: Form) -> str:
        """The table in a form of text, below its caption."""
        rows = [[entry.plain() for entry in row] for row in self.rows]
        head = self.head
        if self.over:  # the forms have one line of names
            names = [name for name, span in self.over for _ in range(span)]
            head = [f"{above} {name}".strip() for above, name in zip(names, self.head, strict=True)]
        made = Table(head, rows, tuple({0, *self.text}), self.caption)
        if form == "latex":
            return _written(made.latex(), form)
        caption = _written(self.caption, form)
        return f"{caption}\n\n{_written(made.markdown(), form)}\n"

    def _row(self, row: Sequence[Entry]) -> str:
        cells = "".join(f"<td{self._look(at)}>{entry.html()}" for at, entry in enumerate(row[1:], 1))
        return f"<tr><th scope=row>{row[0].html()}{cells}"

    def _look(self, at: int) -> str:
        return " class=t" if at in self.text else ""

    def _called(self) -> str:
        return ". ".join(self.caption.split(". ")[:2]).removesuffix(".")


def _written(text: str, form: Form) -> str:
    for sign, said in WRITTEN[form].items():
        text = text.replace(sign, said)
    return text
