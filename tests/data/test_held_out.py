"""Each test is a weight per positive of the held-out part: counted naively, and by hand."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import unskew
from tests.conftest import columns, quick, random_table
from tests.helpers.errors import refused
from unskew.data.log.held_out import (
    HeldOut,
    authors_acceptance,
    available_tests,
    criteria_of,
    effective_size,
    held_out,
    nothing_to_rank,
)
from unskew.data.log.split import Split

PAST = [("z", item, 1, 1) for item in "uvwxy"]  # so that these exist


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
    """The positives that a test can rank: on items that a user had before and, where past items are hidden,
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
        split = unskew.split(log_of(rows), fractions=(4, 0, 7), repeats=repeats)
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
        log_of(rows, ("user", "item", "time", "label", "propensity", "exposed")), fractions=(3, 0, 9)
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
    ) % 30  # in the validation set others are popular, and it counts, too
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


# What there is


def test_tests_and_criteria_of_a_log(log: unskew.Log, positive_log: unskew.Log) -> None:
    assert available_tests(unskew.split(positive_log)) == ("ordinary", "balanced", "authors")
    assert criteria_of(unskew.split(positive_log)) == ("ordinary", "balanced")
    impressions = unskew.split(
        log_of([*PAST, *((f"u{n}", "vw"[k], n, 1 - k) for n in range(2, 22) for k in (0, 1))])
    )
    assert available_tests(impressions) == ("ordinary", "balanced", "shown", "authors")
    assert criteria_of(impressions) == ("ordinary", "balanced", "shown")
    empty = unskew.split(positive_log, fractions=(1, 0, 0))
    assert held_out(empty, "test", "balanced").rows.tolist() == []
    assert available_tests(empty) == ("ordinary", "balanced", "authors")


def test_an_empty_part_is_said(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log, fractions=(100, 0, 0))
    for part, name in (("valid", "validation"), ("test", "test")):
        found = held_out(split, part)
        assert (len(found.rows), found.left_out) == (
            0,
            {"first_appearances": 0, "repeats": 0, "not_in_this_test": 0},
        )
        advice = {"valid": "give it a fraction with --fractions", "test": "the one that it was refitted from"}
        said = str(nothing_to_rank(split, part, "balanced"))
        assert (
            f"in the balanced test: the {name} set of this split has no rows (fractions 100, 0, 0);" in said
        )
        assert said.endswith(advice[part])
    full = unskew.split(positive_log)
    assert "no positives" in str(nothing_to_rank(full, "test", "ordinary"))
    assert "not clicked" in str(nothing_to_rank(full, "test", "shown"))


def test_wrong_use(log: unskew.Log, tmp_path: Path) -> None:
    split = unskew.split(log)
    with pytest.raises(
        unskew.BadInput, match=r"'resampled' is gone: .*use 'balanced', where every item counts once"
    ) as gone:
        held_out(split, "test", "resampled")
    with pytest.raises(
        unskew.BadInput, match=r"no test 'ordinray'; there are ordinary, balanced, shown, .*, untouched$"
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
    with pytest.raises(unskew.BadInput, match="the training set is no test"):
        held_out(split, "train")
    with refused("sample"):
        held_out(split, "test", sample=0)


def test_the_weighted_test_has_only_rows_whose_propensity_was_logged() -> None:
    rows = [*((*row, 1.0, 0) for row in PAST)]
    rows += [(f"u{n}", "uvwxy"[n % 5], n, 1, (1, 0.25)[n % 2], n % 2) for n in range(2, 12)]
    names = ("user", "item", "time", "label", "propensity", "logged")
    split = unskew.split(log_of(rows, names, propensity="propensity", tests="logged"))
    found = held_out(split, "test", "weighted")
    assert len(found.rows)
    assert set(found.weights.tolist()) == {4.0}
    assert found.rows.tolist() == held_out(split, "test", "logged").rows.tolist()
