"""Preparation against naive Python, whatever the order of the rows."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import columns, random_table
from tests.project.test_cluster import compare

rows = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 7), st.integers(0, 5), st.integers(0, 1)),
    min_size=4,
    max_size=60,
)

Row = tuple[int, int, int, int]


def naive_core(events: list[Row], least: int, positives: bool = False) -> list[Row]:
    while True:
        counted = [event for event in events if event[3] or not positives]
        users, items = Counter(e[0] for e in counted), Counter(e[1] for e in counted)
        left = [e for e in events if users[e[0]] >= least and items[e[1]] >= least]
        if len(left) == len(events):
            return left
        events = left


def naive_first(events: list[Row], key: slice) -> list[Row]:
    best: dict[tuple, Row] = {}
    for event in sorted(events, key=lambda e: (e[2], -e[3])):
        best.setdefault(event[key], event)
    return list(best.values())


def as_table(events: list[Row]) -> pa.Table:
    return pa.table(
        {
            name: pa.array([e[place] for e in events], pa.int64())
            for place, name in enumerate(("user", "item", "time", "label"))
        }
    )


def as_rows(log: unskew.Log) -> list[Row]:
    table = columns(log)
    return list(zip(table["user"], table["item"], table["time"], table["label"], strict=True))


def usable(events: list[Row]) -> bool:
    return len({e[0] for e in events}) > 1 and len({e[1] for e in events}) > 1 and any(e[3] for e in events)


@pytest.mark.slow
@effort(max_examples=60)
@given(
    rows,
    st.integers(1, 4),
    st.sampled_from(["event", "pair", "keep"]),
    st.sampled_from(["interactions", "positives"]),
)
def test_prepare_is_the_naive_loop(
    tmp_path_factory, events: list[Row], least: int, duplicates: str, count: str
) -> None:
    expected = {
        "event": naive_first(events, slice(0, 3)),
        "pair": naive_first(events, slice(0, 2)),
        "keep": events,
    }[duplicates]
    if least > 1:
        expected = naive_core(expected, least, count == "positives")
    out = tmp_path_factory.getbasetemp() / "prepared"
    if not usable(expected):
        with pytest.raises(unskew.BadInput):
            unskew.prepare(as_table(events), out, k_core=least, duplicates=duplicates, count=count)
        return
    log = unskew.prepare(as_table(events), out, k_core=least, duplicates=duplicates, count=count)
    assert sorted(as_rows(log)) == sorted(expected)
    assert log.metadata.removed.k_core + log.metadata.removed.duplicates + len(log) == len(events)


def test_k_core_needs_its_epochs(tmp_path: Path) -> None:
    """A chain in which each removal makes the next one necessary, and a block that stays."""
    block = [(u, i, 1, 1) for u in range(100, 103) for i in range(100, 103)]
    chain = [(n, n, 2, 1) for n in range(20)] + [(n, n + 1, 2, 1) for n in range(20)]
    log = unskew.prepare(as_table(block + chain), tmp_path / "out", k_core=2)
    assert sorted(as_rows(log)) == block
    assert log.metadata.removed.k_core_iterations >= 10


def test_by_default_nothing_is_removed(tmp_path: Path) -> None:
    """A threshold on training counts is no filter: the rare stay in the log, and `split` knows who they
    are."""
    events = [(n % 5, n, n, 1) for n in range(30)]  # no item comes twice
    for settings in ({}, {"min_count": 4}):
        assert sorted(as_rows(unskew.prepare(as_table(events), tmp_path / "out", **settings))) == sorted(
            events
        )


def test_the_authors_single_pass_leaves_thin_items(tmp_path: Path) -> None:
    events = [(u, i, 1, 1) for u in range(3) for i in range(3)] + [(9, 5, 1, 1), (0, 5, 2, 1), (8, 0, 1, 1)]
    once = unskew.prepare(as_table(events), tmp_path / "out", k_core=2, core="authors")
    assert sorted(as_rows(once)) == sorted(
        set(events) - {(9, 5, 1, 1), (8, 0, 1, 1)}
    )  # item 5 stays with one row
    truly = unskew.prepare(as_table(events), tmp_path / "out", k_core=2)
    assert sorted(as_rows(truly)) == sorted(events[:9])


def test_the_order_of_the_rows_does_not_matter(tmp_path: Path) -> None:
    table = random_table(rows=3000)
    unskew.prepare(table, tmp_path / "a")
    unskew.prepare(table.take(np.random.default_rng(0).permutation(3000)), tmp_path / "b")
    for file in sorted((tmp_path / "a").iterdir()):
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes(), file.name


def test_the_title_of_tied_duplicates_does_not_depend_on_their_order(tmp_path: Path) -> None:
    rows = {"user": ["a", "a", "b"], "item": ["x", "x", "y"], "time": [1, 1, 2], "title": ["Zed", "Abe", "Y"]}
    turned = {name: values[::-1] for name, values in rows.items()}
    titles = [unskew.prepare(table, tmp_path / "out").items.titles.to_pylist() for table in (rows, turned)]
    assert titles == [["Abe", "Y"]] * 2


def test_titles_are_kept_if_there_is_one(tmp_path: Path) -> None:
    rows = {"user": ["a", "b", "c"], "item": ["x", "y", "y"], "time": [1, 2, 2]}
    for none in ([None, None, None], ["", " ", None]):
        log = unskew.prepare(rows | {"title": none}, tmp_path / "out")
        assert log.items.titles is None
        assert "title" not in log.table().column_names
    log = unskew.prepare(rows | {"title": ["", None, "Y"]}, tmp_path / "out")
    assert log.items.titles.to_pylist() == [None, "Y"]


def test_of_tied_duplicates_the_one_with_a_title_stays(tmp_path: Path) -> None:
    rows = {"user": ["a", "a", "b"], "item": ["x", "x", "y"], "time": [1, 1, 2], "title": ["X", None, "Y"]}
    turned = {name: values[::-1] for name, values in rows.items()}
    for table in (rows, turned):
        assert unskew.prepare(table, tmp_path / "out").items.titles.to_pylist() == ["X", "Y"]


@pytest.mark.cluster
@pytest.mark.filterwarnings("default")
def test_spark_keeps_the_same_titles(tmp_path: Path) -> None:
    rows = {"user": ["a", "a", "b"], "item": ["x", "x", "y"], "time": [1, 1, 2], "title": ["X", None, "Y"]}
    compare(pa.table(rows), tmp_path)


def test_columns_are_sorted_flat_and_small(tmp_path: Path) -> None:
    log = unskew.prepare(random_table(), tmp_path / "out")
    positives = log.positives
    assert (log.label[:positives] == 1).all()
    assert (log.label[positives:] == 0).all()
    for part in (slice(0, positives), slice(positives, None)):
        key = list(
            zip(log.user[part].tolist(), log.time[part].tolist(), log.item[part].tolist(), strict=True)
        )
        assert key == sorted(key)
    item = np.repeat(np.arange(len(log.items)), np.diff(log.audiences.offsets))
    key = list(zip(item.tolist(), log.audiences.times.tolist(), log.audiences.ids.tolist(), strict=True))
    assert key == sorted(key)
    assert (log.user.dtype, log.item.dtype, log.time.dtype, log.audiences.ids.dtype) == (
        np.int32,
        np.int32,
        np.int64,
        np.int32,
    )
    assert np.shares_memory(log.histories.ids, log.item)  # the histories are the log itself, not a copy


def test_the_folder_says_how_it_was_made(tmp_path: Path) -> None:
    unskew.prepare(random_table(), tmp_path / "out", min_count=3, k_core=2)
    facts = json.loads((tmp_path / "out" / "data.json").read_text())
    assert (facts["settings"]["min_count"], facts["settings"]["k_core"]) == (3, 2)
    assert facts["columns"]["user"] == "user"
    assert {"rows", "positives", "users", "items", "removed", "time_unit"} <= facts.keys()


def test_preparing_again_replaces_the_folder(tmp_path: Path) -> None:
    unskew.prepare(random_table(), tmp_path / "out")
    log = unskew.prepare(random_table(rows=500), tmp_path / "out", duplicates="keep")
    assert len(log) == 500
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_spilling_to_disk_changes_nothing(tmp_path: Path) -> None:
    table = random_table(rows=300_000, users=20_000, items=5_000, times=10**6)
    unskew.prepare(table, tmp_path / "a")
    unskew.prepare(table, tmp_path / "b", memory="90MB")
    assert (tmp_path / "a" / "item.npy").read_bytes() == (tmp_path / "b" / "item.npy").read_bytes()


def test_unknown_settings_are_errors(tmp_path: Path) -> None:
    with pytest.raises(unskew.BadInput, match="no setting 'mincount'; did you mean 'min_count'"):
        unskew.prepare(random_table(), tmp_path / "out", mincount=3)
