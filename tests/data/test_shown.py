"""The shown test: what was shown in the same impression and not clicked, against a naive loop and by hand."""

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.data.test_held_out import PAST, log_of, named
from unskew.data.log.held_out import (
    available_tests,
    held_out,
    impression_candidates,
)
from unskew.data.log.split import Split


def shown(split: Split) -> dict[tuple, list[str]]:
    """Of each row of the test, the names of its impression_candidates."""
    found = held_out(split, "test", "shown")
    which, item = impression_candidates(split, found.rows)
    names = split.log.items.of(item).to_pylist()
    rows = named(split, found)
    return {
        row: sorted(name for place, name in zip(which.tolist(), names, strict=True) if place == at)
        for at, row in enumerate(rows)
    }


def test_without_impressions_what_a_user_met_at_one_time_was_shown_together() -> None:
    rows = [*PAST, ("a", "u", 5, 1), ("a", "v", 5, 0), ("a", "w", 6, 0), ("b", "v", 5, 0), ("b", "w", 7, 1)]
    rows += [("c", "u", 8, 1), ("c", "v", 8, 1), ("c", "w", 8, 0), ("c", "x", 8, 0), ("c", "n", 8, 0)]
    split = unskew.split(log_of(rows), fractions=(5, 0, 10))
    # b clicked alone; nobody had n before, so it is no candidate; what else was clicked in the impression is
    # no impression_candidates.
    assert shown(split) == {("a", "u", 5): ["v"], ("c", "u", 8): ["w", "x"], ("c", "v", 8): ["w", "x"]}
    assert held_out(split, "test", "shown").weights.tolist() == [1, 1, 1]
    assert held_out(split, "test", "shown").left_out == {
        "first_appearances": 0,
        "repeats": 0,
        "not_in_this_test": 1,
    }
    assert available_tests(split) == ("ordinary", "balanced", "shown", "authors")


def test_a_impression_spans_times_and_belongs_to_one_user() -> None:
    """Numbers of impressions may start again with each user, and rows without one were not shown with
    anything."""
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
    names = ("user", "item", "time", "label", "impression_id")
    split = unskew.split(log_of(rows, names), fractions=(5, 0, 10))
    assert shown(split) == {("a", "u", 5): ["v"], ("b", "u", 5): ["y"], ("a", "x", 7): ["w"]}
    assert held_out(split, "test", "shown").left_out["not_in_this_test"] == 1  # c: of an unknown impression


def test_what_was_clicked_in_the_impression_is_no_candidates_however_often_it_was_shown() -> None:
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
        (("user", "item", "time", "label", "impression_id"), rows),
        (
            ("user", "item", "time", "label"),
            [row[:4] if row[4] == 0 else (*row[:2], 6, row[3]) for row in rows],
        ),  # all at one time
    ):
        found = shown(unskew.split(log_of(log, names), fractions=(5, 0, 6)))
        assert {item: others for (_, item, _), others in found.items()} == {"u": ["v"], "w": ["v"]}


def test_past_items_are_candidates_only_where_repeats_are_kept() -> None:
    """What the user had before the click is hidden, also if it was shown before that in the same
    impression."""
    rows = [(*row, 0) for row in PAST]
    rows += [
        ("a", "u", 4, 1, 7),
        ("a", "v", 4, 0, 8),
        ("a", "v", 5, 1, 9),
        ("a", "u", 6, 0, 8),
        ("a", "w", 6, 0, 8),
        ("a", "x", 6, 1, 8),
    ]
    log = log_of(rows, ("user", "item", "time", "label", "impression_id"))
    kept, hidden = (
        shown(unskew.split(log, fractions=(5, 0, 6), repeats=repeats)) for repeats in ("keep", "hide")
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


@pytest.mark.slow
@effort(max_examples=25)
@given(visited, st.booleans(), st.sampled_from(["keep", "hide"]))
def test_candidates_is_the_naive_loop(rows: list, with_impressions: bool, repeats: str) -> None:
    rows = [(7, 3, 1, 1, None), (8, 4, 1, 1, None), (7, 5, 2, 1, None), *rows, (9, 3, 10, 1, "1")]
    table = [row if with_impressions else row[:4] for row in rows]
    log = log_of(table, ("user", "item", "time", "label", "impression_id")[: len(table[0])])
    split = unskew.split(log, fractions=(1, 0, 1), repeats=repeats)
    found = held_out(split, "test").rows
    which, item = impression_candidates(split, found)
    got = sorted(zip(which.tolist(), log.items.of(item).to_pylist(), strict=True))
    taken = [(u, i, t) for u, i, t, y, _ in rows if y]
    expected = []
    for place, (user, mine, time) in enumerate(named(split, held_out(split, "test"))):
        own = [row[4] if with_impressions else row[2] for row in rows if row[:4] == (user, mine, time, 1)]
        if len(set(own)) > 1:
            return  # the same click in two impressions: which of the two rows is meant cannot be told here
        together = [
            row
            for row in rows
            if row[0] == user and (row[4] if with_impressions else row[2]) == own[0] and own[0] is not None
        ]
        for other in {row[1] for row in together} - {row[1] for row in together if row[3]}:
            exists = any(i == other and t < time for _, i, t in taken)
            had = any((u, i) == (user, other) and t < time for u, i, t in taken)
            if exists and (repeats == "keep" or not had):
                expected.append((place, other))
    assert got == sorted(expected)
