"""What the scripts that write pages share."""

from pathlib import Path

# Stands above figures of worlds that were simulated before commit 5d61474 (2026-11-18), which made worlds the
# same on every machine. Remove it from a page when its figures have been computed again.
EARLIER_WORLDS = """*The figures of this section from simulated worlds were computed in worlds of the earlier
generator (the same settings, other random numbers) and will be computed again.*"""


def replace_between(page: Path, begin: str, end: str, made: str) -> None:
    """Replace what stands between two marks of a page, or append it with its marks."""
    text = page.read_text(encoding="utf-8")
    before, after = (
        (text[: text.index(begin)], text[text.index(end, text.index(begin)) + len(end) :])
        if begin in text
        else (f"{text.rstrip()}\n\n", "\n")
    )
    page.write_text(f"{before}{begin}\n\n{made}\n{end}{after}", encoding="utf-8")
