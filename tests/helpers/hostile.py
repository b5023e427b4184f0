"""Text that would run if a page let it through, and what a browser would make of a page that has it."""

from collections.abc import Iterable
from html.parser import HTMLParser


def hostile(name: str) -> str:
    """A script in quotes and beside an ampersand, with a name by which it is found again."""
    return f"""{name}<script>alert('{name}')</script>"'&amp;`<b"""


def hostile_file(name: str) -> str:
    """The same for a folder or a file, whose name has no slash."""
    return f"""{name}<img src=x onerror=alert('{name}')>"'&amp;`"""


class Reader(HTMLParser):
    """What a browser reads: text, values of attributes, and elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.values: list[str] = []
        self.scripts: list[str] = []
        self.elements: list[str] = []
        self.handlers: list[str] = []
        self._kind: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.values += [value for _, value in attrs if value]
        self._kind = None if attrs and dict(attrs).get("type") == "application/json" else tag

    def handle_data(self, data: str) -> None:
        (self.scripts if self._kind in ("script", "style") else self.texts).append(data)

    def handle_endtag(self, tag: str) -> None:
        self._kind = None


def assert_harmless(page: str, expected: Iterable[str], elements: frozenset[str] = frozenset()) -> None:
    """Nothing of what was planted is an element, an attribute or a script, and all of it is text.

    expected: names that must be on the page, so that the check is not about nothing.
    elements: elements that the page has of its own, of those that are planted.
    """
    reader = Reader(page)
    assert not {"img", "b"} - elements & set(reader.elements)
    assert reader.handlers == []
    assert not any("alert(" in script for script in reader.scripts)
    seen = "".join(reader.texts) + "\n".join(reader.values)
    for name in expected:
        assert hostile(name) in seen or hostile_file(name) in seen, f"{name} is not on the page as it is"
