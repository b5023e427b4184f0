"""Each test is a weight per positive of the held-out part: counted naively, and by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import columns, quick, random_table
from unskew.cli import main
from unskew.data.held_out import (
    HeldOut,
    authors_acceptance,
    available_tests,
    company,
    criteria_of,
    effective_size,
    held_out,
)
from unskew.data.split import Split


def log_of(
    rows: list[tuple], names: tuple[str, ...] = ("user", "item", "time", "label"), **settings
) -> unskew.Log:
    return unskew.read(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)), **settings)


def named(split: Split, found: HeldOut) -> list[tuple]:
    """The rows of a test as the caller knows them: user, item, time."""
    table = columns(split.log)
    return [(table["user"][row], table["item"][row], table["time"][row]) for row in found.rows]


@pytest.fixture(params=["keep", "hide"])
def split(log: unskew.Log, request: pytest.FixtureRequest) -> Split:
    return unskew.split(log, repeats=request.param)


def naive(split: Split, part: str) -> list[tuple]:
    """The positives that a test can rank: on items that somebody had before and, where past items are hidden,
    the user had not."""
    table = list(zip(*columns(split.log).values(), strict=True))
    low, high = {"valid": (split.train_end, split.valid_end), "test": (split.valid_end, 10**9)}[part]
    taken = [row for row in table if row[3]]
    found = []
    for user, item, time, label in table:
        past = [(u, i) for u, i, t, _ in taken if t < time]
        wanted = label and low <= time < high and item in {i for _, i in past}
        if wanted and (split.repeats or (user, item) not in past):
            found.append((user, item, time))
    return found


# Which rows


@pytest.mark.parametrize("part", ["valid", "test"])
def test_the_ordinary_test_is_every_positive_that_can_be_ranked_once(split: Split, part: str) -> None:
    found = held_out(split, part)
    assert Counter(named(split, found)) == Counter(naive(split, part))
    assert set(found.weights.tolist()) == {1.0}
    assert (np.diff(split.log.time[found.rows]) >= 0).all()


def test_what_is_left_out_is_counted_by_reason() -> None:
    """y is shown before anybody takes it, and so does not exist yet when it is."""
    rows = [("a", "x", 1, 1), ("b", "x", 2, 1), ("a", "y", 3, 0), ("b", "w", 4, 1)]
    rows += [
        ("a", "x", 5, 1),
        ("b", "y", 6, 1),
        ("c", "y", 6, 1),
        ("c", "y", 7, 1),
        ("a", "y", 8, 1),
        ("a", "w", 9, 0),
        ("a", "w", 9, 1),
    ]
    for repeats, kept, repeated in (
        ("keep", [("a", "x", 5), ("c", "y", 7), ("a", "y", 8), ("a", "w", 9)], 0),
        ("hide", None, 2),
    ):
        split = unskew.split(log_of(rows), shares=(4, 0, 7), repeats=repeats)
        found = held_out(split, "test")
        assert named(split, found) == (kept or [("a", "y", 8), ("a", "w", 9)])
        assert found.left_out == {"first_appearances": 2, "repeats": repeated, "not_in_this_test": 0}
        assert held_out(split, "test", until=8).left_out == found.left_out
        assert held_out(split, "test", until=6).left_out == {
            "first_appearances": 0,
            "repeats": repeated // 2,
            "not_in_this_test": 0,
        }
        assert len(held_out(split, "test", until=9).rows) == len(found.rows) - 1


def test_all_tests_leave_out_the_same_and_say_what_else(split: Split) -> None:
    whole = held_out(split, "test")
    for test in ("balanced", "authors"):
        found = held_out(split, "test", test)
        assert found.left_out == whole.left_out | {"not_in_this_test": len(whole.rows) - len(found.rows)}
        assert set(found.rows.tolist()) <= set(whole.rows.tolist())


# Balanced


events = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 20)), min_size=8, max_size=60
)


@given(events)
def test_every_item_weighs_one_in_the_balanced_test(rows: list) -> None:
    split = unskew.split(quick(rows))
    for part in ("valid", "test"):
        found = held_out(split, part, "balanced")
        per_item = Counter(item for _, item, _ in named(split, found))
        assert found.weights == pytest.approx([1 / per_item[item] for _, item, _ in named(split, found)])
        total = Counter()
        for (_, item, _), weight in zip(named(split, found), found.weights, strict=True):
            total[item] += weight
        assert dict(total) == pytest.approx(dict.fromkeys(per_item, 1.0))


def test_weights_come_from_the_whole_part_when_a_sample_is_drawn(split: Split) -> None:
    whole = held_out(split, "test", "balanced")
    weight = dict(zip(whole.rows.tolist(), whole.weights.tolist(), strict=True))
    samples = [held_out(split, "test", "balanced", size, seed=3) for size in (10, 40, 10**6)]
    for size, found in zip((10, 40, len(whole.rows)), samples, strict=True):
        assert len(found.rows) == len(set(found.rows.tolist())) == size
        assert found.weights.tolist() == [weight[row] for row in found.rows.tolist()]
        assert (np.diff(split.log.time[found.rows]) >= 0).all()
        assert found.left_out == whole.left_out
    assert set(samples[0].rows.tolist()) < set(
        samples[1].rows.tolist()
    )  # a smaller sample is part of a larger one
    other = held_out(split, "test", "balanced", 10, seed=4)
    assert set(other.rows.tolist()) != set(samples[0].rows.tolist())
    assert (
        held_out(split, "test", "balanced", seed=4).weights.tolist() == whole.weights.tolist()
    )  # no draw, no seed


def test_weights_of_other_rows_are_nothing(split: Split) -> None:
    found = held_out(split, "test", "balanced", 20)
    mine = dict(zip(found.rows.tolist(), found.weights.tolist(), strict=True))
    everyone = np.random.default_rng(0).permutation(len(split.log))
    assert found.weights_of(everyone).tolist() == [mine.get(row, 0.0) for row in everyone.tolist()]
    nothing = HeldOut("balanced", np.zeros(0, np.int64), np.zeros(0), {})
    assert nothing.weights_of(everyone[:3]).tolist() == [0, 0, 0]


def test_the_effective_sample_size_by_hand() -> None:
    assert effective_size(np.ones(7)) == pytest.approx(7)
    assert effective_size(np.array([1.0, 1.0, 2.0])) == pytest.approx(16 / 6)
    assert effective_size(np.array([1.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_size(np.full(5, 0.2)) == pytest.approx(5)
    assert effective_size(np.zeros(0)) == 0


# Where the log knows more


def known_exposure() -> Split:
    """Eight test positives with propensities 1/2, 1/4, ..., every third of them exposed at random."""
    rows = [("a", "x", 1, 1, 0.5, 0), ("b", "y", 1, 1, 0.5, 1), ("a", "y", 2, 0, 0.1, 1)]
    rows += [(f"u{n}", "xy"[n % 2], 10 + n, 1, 2.0 ** -(n % 4 + 1), int(n % 3 == 0)) for n in range(8)]
    rows += [("z", "x", 15, 0, 0.001, 1)]
    return unskew.split(
        log_of(rows, ("user", "item", "time", "label", "propensity", "exposed")), shares=(3, 0, 9)
    )


def test_the_weighted_test_is_snips_by_hand() -> None:
    split = known_exposure()
    found = held_out(split, "test", "weighted")
    assert [time for _, _, time in named(split, found)] == list(range(10, 18))
    assert found.weights.tolist() == [2.0, 4.0, 8.0, 16.0] * 2
    # A metric that is 1 on x and 0 on y: x has the weights 2, 8, 2, 8 of 60.
    hit = np.array([item == "x" for _, item, _ in named(split, found)], float)
    assert (hit * found.weights).sum() / found.weights.sum() == pytest.approx(20 / 60)
    assert effective_size(found.weights) == pytest.approx(60**2 / (2 * (4 + 16 + 64 + 256)))


def test_the_randomised_test_holds_exactly_the_random_rows() -> None:
    split = known_exposure()
    found = held_out(split, "test", "randomised")
    assert [time for _, _, time in named(split, found)] == [10, 13, 16]
    assert found.weights.tolist() == [1, 1, 1]
    assert found.left_out["not_in_this_test"] == 5
    assert available_tests(split) == ("ordinary", "balanced", "randomised", "weighted", "authors")


def test_the_authors_acceptance_by_hand() -> None:
    weight = authors_acceptance(np.array([8, 4, 2, 0]))
    middle = (2**0.005 - 1) / (4**0.005 - 1)
    assert weight == pytest.approx([0.0, middle, 1.0, 0.0])  # the most popular item always vanishes
    assert authors_acceptance(np.array([3, 3, 0])).tolist() == [1, 1, 0]
    assert authors_acceptance(np.array([0, 0])).tolist() == [0, 0]


def test_the_authors_resampling_accepts_as_often_as_it_says_and_is_seeded() -> None:
    random = np.random.default_rng(0)
    rows = 30_000
    item = np.minimum((30 * random.random(rows) ** 2).astype(int), 29)
    item[15_000:21_000] = (
        item[15_000:21_000] + 10
    ) % 30  # in the validation part others are popular, and it counts, too
    log = unskew.read({"user": random.integers(0, 500, rows), "item": item, "time": np.arange(rows)})
    split = unskew.split(log, repeats="keep")
    whole, found, again, other = (
        held_out(split, "test", test, seed=seed)
        for test, seed in (("ordinary", 0), ("authors", 0), ("authors", 0), ("authors", 1))
    )
    counts = np.bincount(
        log.item[log.time >= split.train_end], minlength=30
    )  # of everything that is held out
    expected = np.bincount(log.item[whole.rows], minlength=30) * authors_acceptance(counts)
    drawn = np.bincount(log.item[found.rows], minlength=30)
    assert drawn[np.argmax(counts)] == 0
    assert (np.abs(drawn - expected) < 5 * np.sqrt(expected + 1)).all()
    assert found.rows.tolist() == again.rows.tolist() != other.rows.tolist()
    assert set(found.weights.tolist()) == {1.0}


# Named tests


@pytest.mark.parametrize("name", ["paper", "the paper's own; 2021/06: *"])
def test_a_named_test_is_the_rows_that_a_column_marks(tmp_path: Path, name: str) -> None:
    """Also after preparing again, and from disk, whatever the name is."""
    table = random_table(negatives=0.2)
    marked = (np.arange(table.num_rows) % 5 == 0).astype(int)
    table = table.append_column(name, [marked])
    read = unskew.read(table, tests=name)
    prepared = unskew.prepare(table, tmp_path / "once", tests=name, duplicates="keep")
    again = unskew.prepare(prepared, tmp_path / "again", duplicates="keep")
    expected = sorted(
        (u, i, t)
        for u, i, t, y, mark in zip(*table.to_pydict().values(), strict=True)
        if mark and y and t >= unskew.split(read).valid_end and any(table_row_before(table, i, t))
    )
    for log in (
        read,
        prepared,
        again,
        unskew.Log.open(tmp_path / "again"),
        unskew.read(unskew.read(prepared)),
    ):
        split = unskew.split(log)
        assert list(log.marks) == [name]
        assert sorted(named(split, held_out(split, "test", name))) == expected
        assert available_tests(split)[-1] == name
    assert 10 < len(expected) < len(held_out(unskew.split(read), "test").rows) / 3
    assert {log.fingerprint() for log in (read, prepared, again)} == {read.fingerprint()}
    turned = table.set_column(4, name, [1 - marked])
    assert unskew.read(turned, tests=name).fingerprint() != read.fingerprint()


def table_row_before(table, item: str, time: int) -> list[bool]:
    rows = zip(table["item"].to_pylist(), table["time"].to_pylist(), table["label"].to_pylist(), strict=True)
    return [i == item and t < time and bool(y) for i, t, y in rows]


def test_several_named_tests_and_of_duplicates_the_marked_one_stays(tmp_path: Path) -> None:
    rows = [
        ("a", "x", 1, 0, 0),
        ("b", "y", 1, 0, 0),
        ("a", "y", 5, 0, 1),
        ("a", "y", 5, 1, 0),
        ("b", "x", 6, 0, 1),
    ]
    table = dict(zip(("user", "item", "time", "one", "two"), map(list, zip(*rows, strict=True)), strict=True))
    log = unskew.prepare(table, tmp_path / "out", tests="one, two")
    split = unskew.split(log, shares=(1, 0, 1))
    assert list(log.marks) == ["one", "two"]
    assert named(split, held_out(split, "test", "one")) == [("a", "y", 5)]
    assert named(split, held_out(split, "test", "two")) == [("b", "x", 6)]


def test_the_command_line_names_tests_too(tmp_path: Path, write) -> None:
    source = write(
        "log.csv", "user,item,time,mine\n" + "".join(f"u{n % 3},i{n % 4},{n},{n % 2}\n" for n in range(40))
    )
    assert main(["prepare", str(source), "--out", str(tmp_path / "data"), "--tests", "mine"]) == 0
    split = unskew.split(unskew.Log.open(tmp_path / "data"))
    assert [time for _, _, time in named(split, held_out(split, "test", "mine"))] == [29, 31, 33, 35, 37, 39]


# What was shown


def shown(split: Split) -> dict[tuple, list[str]]:
    """Of each row of the test, the names of its company."""
    found = held_out(split, "test", "shown")
    which, item = company(split, found.rows)
    names = split.log.items.of(item).to_pylist()
    rows = named(split, found)
    return {
        row: sorted(name for place, name in zip(which.tolist(), names, strict=True) if place == at)
        for at, row in enumerate(rows)
    }


PAST = [("z", item, 1, 1) for item in "uvwxy"]  # so that these exist


def test_without_visits_what_a_user_met_at_one_time_was_shown_together() -> None:
    rows = [*PAST, ("a", "u", 5, 1), ("a", "v", 5, 0), ("a", "w", 6, 0), ("b", "v", 5, 0), ("b", "w", 7, 1)]
    rows += [("c", "u", 8, 1), ("c", "v", 8, 1), ("c", "w", 8, 0), ("c", "x", 8, 0), ("c", "n", 8, 0)]
    split = unskew.split(log_of(rows), shares=(5, 0, 10))
    # b clicked alone; nobody had n before, so it is no candidate; what else was clicked in the visit is no
    # company.
    assert shown(split) == {("a", "u", 5): ["v"], ("c", "u", 8): ["w", "x"], ("c", "v", 8): ["w", "x"]}
    assert held_out(split, "test", "shown").weights.tolist() == [1, 1, 1]
    assert held_out(split, "test", "shown").left_out == {
        "first_appearances": 0,
        "repeats": 0,
        "not_in_this_test": 1,
    }
    assert available_tests(split) == ("ordinary", "balanced", "shown", "authors")


def test_a_visit_spans_times_and_belongs_to_one_user() -> None:
    """Numbers of visits may start anew with each user, and rows without one were not shown with anything."""
    rows = [(*row, "0") for row in PAST]
    rows += [
        ("a", "u", 5, 1, "1"),
        ("a", "v", 6, 0, "1"),
        ("a", "w", 5, 0, "2"),
        ("a", "x", 7, 1, "2"),
        ("b", "y", 5, 0, "1"),
    ]
    rows += [
        ("b", "u", 5, 1, "1"),
        ("b", "v", 5, 0, None),
        ("c", "u", 5, 1, None),
        ("c", "v", 5, 0, None),
        ("c", "w", 5, 0, "1"),
    ]
    names = ("user", "item", "time", "label", "visit")
    split = unskew.split(log_of(rows, names), shares=(5, 0, 10))
    assert shown(split) == {("a", "u", 5): ["v"], ("b", "u", 5): ["y"], ("a", "x", 7): ["w"]}
    assert held_out(split, "test", "shown").left_out["not_in_this_test"] == 1  # c: of an unknown visit


def test_what_was_clicked_in_the_visit_is_no_company_however_often_it_was_shown() -> None:
    """A log may have a row for the impression and another one for the click."""
    rows = [(*row, 0) for row in PAST]
    rows += [
        ("a", "u", 5, 0, 1),
        ("a", "u", 6, 1, 1),
        ("a", "v", 5, 0, 1),
        ("a", "v", 6, 0, 1),
        ("a", "w", 5, 0, 1),
        ("a", "w", 7, 1, 1),
    ]
    for names, log in (
        (("user", "item", "time", "label", "visit"), rows),
        (
            ("user", "item", "time", "label"),
            [row[:4] if row[4] == 0 else (*row[:2], 6, row[3]) for row in rows],
        ),  # all at one time
    ):
        found = shown(unskew.split(log_of(log, names), shares=(5, 0, 6)))
        assert {item: others for (_, item, _), others in found.items()} == {"u": ["v"], "w": ["v"]}


def test_past_items_are_company_only_where_repeats_are_kept() -> None:
    """What the user had before the click is hidden, also if it was shown before that in the same visit."""
    rows = [(*row, 0) for row in PAST]
    rows += [
        ("a", "u", 4, 1, 7),
        ("a", "v", 4, 0, 8),
        ("a", "v", 5, 1, 9),
        ("a", "u", 6, 0, 8),
        ("a", "w", 6, 0, 8),
        ("a", "x", 6, 1, 8),
    ]
    log = log_of(rows, ("user", "item", "time", "label", "visit"))
    kept, hidden = (
        shown(unskew.split(log, shares=(5, 0, 6), repeats=repeats)) for repeats in ("keep", "hide")
    )
    assert kept == {("a", "x", 6): ["u", "v", "w"]}
    assert hidden == {("a", "x", 6): ["w"]}


visited = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.integers(0, 5),
        st.integers(2, 9),
        st.integers(0, 1),
        st.sampled_from([None, "1", "2", "3"]),
    ),
    min_size=1,
    max_size=40,
)


@effort(max_examples=25)
@given(visited, st.booleans(), st.sampled_from(["keep", "hide"]))
def test_company_is_the_naive_loop(rows: list, with_visits: bool, repeats: str) -> None:
    rows = [(7, 3, 1, 1, None), (8, 4, 1, 1, None), (7, 5, 2, 1, None), *rows, (9, 3, 10, 1, "1")]
    table = [row if with_visits else row[:4] for row in rows]
    log = log_of(table, ("user", "item", "time", "label", "visit")[: len(table[0])])
    split = unskew.split(log, shares=(1, 0, 1), repeats=repeats)
    found = held_out(split, "test").rows
    which, item = company(split, found)
    got = sorted(zip(which.tolist(), log.items.of(item).to_pylist(), strict=True))
    taken = [(u, i, t) for u, i, t, y, _ in rows if y]
    expected = []
    for place, (user, mine, time) in enumerate(named(split, held_out(split, "test"))):
        own = [row[4] if with_visits else row[2] for row in rows if row[:4] == (user, mine, time, 1)]
        if len(set(own)) > 1:
            return  # the same click in two visits: which of the two rows is meant cannot be told here
        together = [
            row
            for row in rows
            if row[0] == user and (row[4] if with_visits else row[2]) == own[0] and own[0] is not None
        ]
        for other in {row[1] for row in together} - {row[1] for row in together if row[3]}:
            exists = any(i == other and t < time for _, i, t in taken)
            had = any((u, i) == (user, other) and t < time for u, i, t in taken)
            if exists and (repeats == "keep" or not had):
                expected.append((place, other))
    assert got == sorted(expected)


# What there is


def test_tests_and_criteria_of_a_log(log: unskew.Log, positive_log: unskew.Log) -> None:
    assert available_tests(unskew.split(positive_log)) == ("ordinary", "balanced", "authors")
    assert criteria_of(unskew.split(positive_log)) == ("ordinary", "balanced")
    impressions = unskew.split(
        log_of([*PAST, *((f"u{n}", "vw"[k], n, 1 - k) for n in range(2, 22) for k in (0, 1))])
    )
    assert available_tests(impressions) == ("ordinary", "balanced", "shown", "authors")
    assert criteria_of(impressions) == ("ordinary", "balanced", "shown")
    empty = unskew.split(positive_log, shares=(1, 0, 0))
    assert held_out(empty, "test", "balanced").rows.tolist() == []
    assert available_tests(empty) == ("ordinary", "balanced", "authors")


def test_wrong_use(log: unskew.Log, tmp_path: Path) -> None:
    split = unskew.split(log)
    with pytest.raises(
        unskew.BadInput, match=r"'resampled' is gone: .*use 'balanced', where every item counts once"
    ) as gone:
        held_out(split, "test", "resampled")
    with pytest.raises(
        unskew.BadInput, match=r"no test 'ordinray'; there are ordinary, balanced, shown, .*, authors$"
    ) as unknown:
        held_out(split, "test", "ordinray")
    assert "\n" not in str(gone.value) + str(unknown.value)
    marked = unskew.read(random_table().append_column("mine", [[0, 1] * 1000]), tests="mine")
    with pytest.raises(unskew.BadInput, match=r"there are .*, mine$"):
        held_out(unskew.split(marked), "test", "yours")
    with pytest.raises(unskew.BadInput, match=r"no randomised test \(--exposed names the column\)"):
        held_out(split, "test", "randomised")
    with pytest.raises(unskew.BadInput, match=r"no weighted test \(--propensity names the column\)"):
        held_out(split, "test", "weighted")
    with pytest.raises(unskew.BadInput, match="the training part is no test"):
        held_out(split, "train")
    with pytest.raises(unskew.BadInput, match="sample 0: expected at least 1"):
        held_out(split, "test", sample=0)
