"""The way back: what was shown and clicked becomes a log with labels and logged propensities."""

from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.stores import BEGIN, Place, click, shown
from unskew.core.errors import BadInput
from unskew.data.log.held_out import held_out, impression_candidates
from unskew.serve import Event, Recommendation, Shown, export_log

pytest_plugins = ("tests.helpers.store_places",)

SECOND = 10**6


def rows_in(file: Path) -> set[tuple[Any, ...]]:
    """The rows of an export: user, item, seconds, label, propensity, exposed, impression and position."""
    table = pq.read_table(file)
    assert len(table) == len(set(map(str, table.to_pylist())))
    times = [int(time.timestamp()) - BEGIN // SECOND for time in table["timestamp"].to_pylist()]
    names = ("label", "propensity", "exposed", "impression_id", "position")
    rest = [table[name].to_pylist() for name in names if name in table.column_names]
    return set(zip(table["user_id"].to_pylist(), table["item_id"].to_pylist(), times, *rest, strict=True))


def fill(place: Place, *, compacted: bool) -> None:
    lists = (("tea", 0.5, False), ("mate", 0.25, True), ("milk", 1.0, False))
    with place.open() as store:
        store.record([shown("r1", "ann", *lists, at=10), shown("r2", "bob", *lists[:2], at=20)])
        store.append(
            [
                click(11, "ann", "mate", recommendation_id="r1", propensity=0.9, position=9),
                click(12, "ann", "mate", recommendation_id="r1", type="purchase"),
                click(13, "ann", "tea", recommendation_id="r1", type="look"),
                click(14, "ann", "juice", recommendation_id="r1"),  # was not in it
                click(15, "ann", "tea", recommendation_id="r2"),  # was shown to bob
                click(16, "ann", "cola"),  # of no recommendation
                click(17, "eve", "rum", recommendation_id="other", propensity=0.125, position=4),
                click(18, "eve", "gin", recommendation_id="other", type="impression", propensity=0.75),
                click(19, "eve", "tea", impression=("tea", "rum"), propensity=0.5),
            ]
        )
        if compacted:
            store.compact(BEGIN + 14 * SECOND)


EXPECTED = {
    ("ann", "mate", 11, 1, 0.25, 1, "r1", 2),  # what the store recorded is believed
    ("ann", "mate", 12, 1, 0.25, 1, "r1", 2),
    ("ann", "tea", 10, 0, 0.5, 0, "r1", 1),  # a look is no positive
    ("ann", "milk", 10, 0, 1.0, 0, "r1", 3),
    ("ann", "juice", 14, 1, 1.0, 0, None, 0),
    ("ann", "tea", 15, 1, 1.0, 0, None, 0),
    ("ann", "cola", 16, 1, 1.0, 0, None, 0),
    ("bob", "tea", 20, 0, 0.5, 0, "r2", 1),
    ("bob", "mate", 20, 0, 0.25, 1, "r2", 2),
    ("eve", "rum", 17, 1, 0.125, 0, "other", 4),  # of a recommender that the store does not know
    ("eve", "gin", 18, 0, 0.75, 0, "other", 0),
    ("eve", "tea", 19, 1, 0.5, 0, "event e19", 1),
    ("eve", "rum", 19, 0, 1.0, 0, "event e19", 2),
}


@pytest.mark.parametrize("compacted", [False, True])
def test_rows_labels_and_propensities_by_hand(place: Place, compacted: bool) -> None:
    fill(place, compacted=compacted)
    with place.open("read") as store:
        found = export_log(store, place.folder / "out", store.types)
        assert rows_in(found.file) == EXPECTED
        assert (found.rows, found.positives, found.shown, found.logged, found.unmatched) == (13, 7, 10, 9, 2)
        marks = pq.read_table(found.file)["test:logged"].to_pylist()
        assert sum(marks) == 9
        assert found.file == place.folder / "out" / "log.parquet"


def test_prepare_reads_the_export_and_the_loop_is_closed(in_file: Place) -> None:
    fill(in_file, compacted=True)
    with in_file.open("read") as store:
        export_log(store, in_file.folder / "out", store.types)
    log = unskew.prepare(in_file.folder / "out", in_file.folder / "data")
    assert log.metadata.time_unit == "microseconds"
    assert set(log.metadata.columns) == {
        *(
            "user",
            "item",
            "time",
            "label",
            "propensity",
            "exposed",
            "position",
            "impression_id",
            "test:logged",
            "test:organic",
        )
    }
    assert log.impression_id is not None
    rows = zip(
        log.users.of(log.user).to_pylist(),
        log.items.of(log.item).to_pylist(),
        ((log.time - BEGIN) // SECOND).tolist(),
        log.label.tolist(),
        log.propensity.tolist(),
        log.exposed.tolist(),
        log.position.tolist(),
        (log.impression_id == -1).tolist(),
        log.marks["logged"].tolist(),
        strict=True,
    )
    unknown = {("ann", "juice", 14), ("ann", "tea", 15), ("ann", "cola", 16), ("eve", "rum", 19)}
    assert set(rows) == {(*row[:6], row[7], row[6] is None, int(row[:3] not in unknown)) for row in EXPECTED}
    # Rows of an impression are shown together, and others with nothing.
    together = {}
    for user, item, impression in zip(
        log.user.tolist(), log.item.tolist(), log.impression_id.tolist(), strict=True
    ):
        if impression >= 0:
            together.setdefault((user, impression), set()).add(log.items.ids[item].as_py())
    assert sorted(map(sorted, together.values())) == [
        ["gin", "rum"],
        ["mate", "milk", "tea"],
        ["mate", "tea"],
        ["rum", "tea"],
    ]


def test_what_was_shown_can_be_tested_and_weighted(in_file: Place) -> None:
    """The tests that need exposure see that of the service: propensities, random exposure,
    impression_candidates."""
    random, items = Random(1), [f"i{n}" for n in range(12)]
    with in_file.open() as store:
        made, events = [], []
        for impression in range(120):
            listed = random.sample(items, 4)
            chances = [round(random.uniform(0.1, 1), 3) for _ in listed]
            user, at = f"u{impression % 8}", 100 * impression
            made.append(
                shown(
                    f"r{impression}",
                    user,
                    *((i, p, impression % 3 == 0) for i, p in zip(listed, chances, strict=True)),
                    at=at,
                )
            )
            events.append(
                click(
                    impression,
                    user,
                    listed[0],
                    recommendation_id=f"r{impression}",
                    timestamp=BEGIN + at * SECOND + 1,
                )
            )
        store.record(made)
        store.append(events)
        export_log(store, in_file.folder / "log.parquet", store.types)
    log = unskew.prepare(in_file.folder / "log.parquet", in_file.folder / "data")
    assert "logged" not in log.marks  # all propensities are known
    split = unskew.split(log, fractions=(50, 0, 50))
    chance = {(one.user_id, item.item_id, one.timestamp + 1): item for one in made for item in one.items}
    weighted = held_out(split, "test", "weighted")
    assert len(weighted.rows) > 30
    for row, weight in zip(weighted.rows.tolist(), weighted.weights.tolist(), strict=True):
        key = (log.users.ids[log.user[row]].as_py(), log.items.ids[log.item[row]].as_py(), int(log.time[row]))
        assert weight == pytest.approx(1 / chance[key].propensity)
    randomised = held_out(split, "test", "randomised").rows
    assert 5 < len(randomised) < len(weighted.rows)
    which, _ = impression_candidates(split, weighted.rows)
    assert len(which) == 3 * len(weighted.rows)


def test_a_store_that_knows_nothing_of_what_was_shown_exports_a_log_of_clicks(place: Place) -> None:
    with place.open() as store:
        store.append([click(n, f"u{n % 3}", f"i{n % 2}") for n in range(9)])
        store.append([click(99, type="look"), click(98, type="like", user="eve")])
        found = export_log(store, place.folder / "out.parquet", store.types)
        assert pq.read_table(found.file).column_names == ["user_id", "item_id", "timestamp", "label"]
        assert (found.rows, found.positives, found.shown, found.logged) == (9, 9, 0, 0)
        assert export_log(store, place.folder / "likes.csv", store.resolve_types(["like"])).rows == 1
        assert (place.folder / "likes.csv").read_text().splitlines()[1].startswith('"eve","tea",')
        with pytest.raises(BadInput, match=r"not one positive event \(buy\); nothing to export"):
            export_log(store, place.folder / "none.parquet", store.resolve_types(["buy"]))
        with pytest.raises(BadInput, match="exists already"):
            export_log(store, place.folder / "out.parquet", store.types)
        with pytest.raises(BadInput, match=r"expected a folder, or a name that ends with \.parquet"):
            export_log(store, place.folder / "out.xlsx", store.types)
        store.append([click(200, "u1", "i1", propensity=0.5)])  # known, though not where it was shown
        table = pq.read_table(export_log(store, place.folder / "later", store.types).file)
        assert table.column_names[4:] == ["propensity", "test:logged"]
        assert sorted(table["propensity"].to_pylist()) == [0.5, *[1.0] * 9]
    assert sorted(path.name for path in place.folder.glob("*") if path.suffix or path.name == "none") == [
        "likes.csv",
        "out.parquet",
    ]


def test_every_row_is_where_a_naive_loop_puts_it(in_file: Place) -> None:
    random = Random(4)
    recommendations, events = [], []
    for number in range(60):
        listed = random.sample("abcdef", random.randint(1, 4))
        items = tuple(Shown(i, random.randint(1, 8) / 8, random.random() < 0.3) for i in listed)
        user = random.choice("uvw")
        recommendations.append(Recommendation(f"r{number}", user, BEGIN + number, "m", "1", items))
    for number in range(400):
        events.append(
            Event(
                f"e{number}",
                random.choice("uvw"),
                random.choice("abcdef"),
                random.choice(("click", "purchase", "look")),
                BEGIN + 1000 + number,
                random.choice((None, f"r{random.randint(0, 70)}")),
            )
        )
    with in_file.open() as store:
        store.record(recommendations)
        store.append(events)
        found = export_log(store, in_file.folder / "out.parquet", store.types)
    expected = []
    by_id = {one.recommendation_id: one for one in recommendations}
    taken = set()
    for event in events:
        if event.type == "look":
            continue
        of = by_id.get(event.recommendation_id or "")
        places = [
            (place, item)
            for place, item in enumerate(of.items if of and of.user_id == event.user_id else (), 1)
            if item.item_id == event.item_id
        ]
        row = (event.user_id, event.item_id, event.timestamp, 1)
        if places:
            ((place, item),) = places
            taken.add((event.recommendation_id, event.item_id))
            expected.append((*row, item.propensity, int(item.exposed), event.recommendation_id, place))
        else:
            expected.append((*row, 1.0, 0, None if of else event.recommendation_id, 0))
    for one in recommendations:
        for place, item in enumerate(one.items, 1):
            if (one.recommendation_id, item.item_id) not in taken:
                row = (one.user_id, item.item_id, one.timestamp, 0)
                expected.append((*row, item.propensity, int(item.exposed), one.recommendation_id, place))
    table = pq.read_table(found.file)
    times = table["timestamp"].cast("int64").to_pylist()
    assert times == sorted(times)
    names = ("label", "propensity", "exposed", "impression_id", "position")
    rows = zip(
        table["user_id"].to_pylist(),
        table["item_id"].to_pylist(),
        times,
        *(table[name].to_pylist() for name in names),
        strict=True,
    )
    assert sorted(rows, key=str) == sorted(expected, key=str)
    assert {row[3] for row in expected} == {0, 1}
    assert taken
