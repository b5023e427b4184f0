"""What the scripts that write pages fraction."""

from pathlib import Path


def replace_between(page: Path, begin: str, end: str, made: str) -> None:
    """Replace what stands between two marks of a page, or append it with its marks."""
    text = page.read_text(encoding="utf-8")
    before, after = (
        (text[: text.index(begin)], text[text.index(end, text.index(begin)) + len(end) :])
        if begin in text
        else (f"{text.rstrip()}\n\n", "\n")
    )
    page.write_text(f"{before}{begin}\n\n{made}\n{end}{after}", encoding="utf-8")
