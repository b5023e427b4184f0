"""What a run remembers of its log: whole histories, whole audiences, and who is rare."""

from pathlib import Path

import numpy as np

import unskew
from tests.conftest import random_table
from unskew.data.log.log import Log
from unskew.data.log.split import Known, Split
from unskew.data.log.views import Sequences
from unskew.testing.models import example_split
from unskew.training.run_config import KnownShape
from unskew.training.run_log import load_memory, save_memory


def remembered(split: Split, folder: Path) -> tuple[Log, Known]:
    save_memory(lambda name, write: write(folder / name), split)
    return load_memory(folder, KnownShape.of(split.known))


def events(view: Sequences) -> list[list[tuple[int, int]]]:
    both = [*zip(view.ids.tolist(), view.times.tolist(), strict=True)]
    return [both[first:last] for first, last in zip(view.offsets, view.offsets[1:], strict=False)]


def test_events(tmp_path: Path) -> None:
    split = example_split()
    log = split.log
    there, known = remembered(split, tmp_path)
    assert events(there.histories) == events(log.histories)
    assert events(there.audiences) == events(log.audiences)
    assert there.now == log.now
    assert there.audiences.existing(there.now) == log.audiences.existing(log.now)
    assert there.users.ids.equals(log.users.ids)
    assert there.items.ids.equals(log.items.ids)
    assert known.clock == log.clock
    for ids, before in ((known.users, split.known.users), (known.items, split.known.items)):
        assert (ids.size, ids.rare, ids.categories) == (before.size, None, before.categories)


def test_who_is_rare(tmp_path: Path) -> None:
    log = unskew.read(random_table(rows=360, users=90, items=70, times=200, negatives=0.0))
    split = unskew.split(log, min_count=3)
    _, known = remembered(split, tmp_path)
    for ids, before in ((known.users, split.known.users), (known.items, split.known.items)):
        assert ids.rare is not None
        assert before.rare is not None
        assert 0 < before.rare.sum() < before.size
        np.testing.assert_array_equal(ids.rare, before.rare)
