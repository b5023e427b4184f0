"""The real logs that models are measured on, beside the project."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import unskew

DATA = Path(__file__).parents[2] / "shared" / "data"
# No filter, nothing removed: a k-core over the whole log looks ahead.
SETS: dict[str, tuple[str, dict[str, Any]]] = {
    "MovieTweetings": ("movietweetings_100k/ratings.csv.gz", {"positive": 7}),
    "Online Retail": ("online_retail", {}),
    "Beauty": ("amazon_beauty_5core", {}),  # its publishers filtered it
    "Digital Music 2018": ("amazon_digital_music_2018", {}),
    "MIND (sample)": ("mind_small_sample", {}),
    "Sports": ("amazon_sports_5core", {}),  # as well
}


@contextmanager
def split_of(name: str, data: Path) -> Iterator[unskew.Split]:
    """One of SETS, prepared in a scratch folder that is there for as long as it is read."""
    path, settings = SETS[name]
    with tempfile.TemporaryDirectory() as scratch:
        yield unskew.split(unskew.prepare(data / path, Path(scratch) / "data", **settings))
