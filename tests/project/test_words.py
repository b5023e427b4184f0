"""Words that the project used to have of its own, where the field has one, must not come back."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Words that are ordinary English as well (part, share, figure, round, people) are judged by reading. They are
# joined here, because this file is searched as well.
RETIRED = [
    "".join(parts)
    for parts in (
        ("di", "al"),
        ("treat", "ment"),
        ("vis", "it"),
        ("al", "ike"),
        ("tell", "ing"),
        ("comp", "any"),
        ("weig", "hed"),
        ("going", "_on"),
        ("hon", "est"),
        ("yard", "stick"),
        ("some", "body"),
        ("an", "ew"),
        ("by the ", "truth"),
        ("known ", "world"),
    )
]
PATTERN = re.compile(rf"(?<![a-z])(?:{'|'.join(RETIRED)})(?:s|ly)?(?![a-z])", re.IGNORECASE)
# The page of all results is generated and has texts of its own data sets.
EXEMPT = {"docs/report.html", "docs/results.md"}


def words_in(text: str) -> list[str]:
    """The retired words of a text, in capitals or as a part of an identifier, too."""
    return PATTERN.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text))


def tracked_files() -> list[str]:
    asked = ["git", "ls-files", "-z", "src", "tests", "docs", "README.md", "CONTRIBUTING.md", "examples"]
    listed = subprocess.run([*asked, "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = [name for name in listed.stdout.split("\0") if name and name not in EXEMPT]
    return [name for name in names if (ROOT / name).is_file()]


def test_retired_words_are_nowhere() -> None:
    present = []
    for name in tracked_files():
        present += [f"{name}: a file of this name" for _ in words_in(name)]
        content = (ROOT / name).read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode().splitlines(), 1):
            present += [f"{name}, line {number}: {word}" for word in words_in(line)]
    assert not present


@pytest.mark.parametrize("form", ["--{}", "{}_id", "at_{}s", "Has{}: no"])
@pytest.mark.parametrize("word", RETIRED)
def test_a_retired_word_is_seen_in_every_form(word: str, form: str) -> None:
    assert len(words_in(form.format(word.capitalize()))) == 1


def test_ordinary_words_are_not_meant() -> None:
    assert words_in("The dialect of a dialog: people take part in a visitor's figures, said anyone") == []
