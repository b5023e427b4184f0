"""Events and recommendations: every value is checked when one is made, and an error names the field."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from tests.helpers.stores import BEGIN
from unskew.core.errors import BadInput
from unskew.serve import BadEvent, Event, Recommendation, Shown, parse_events, parse_time
from unskew.serve.store.events import LATEST, LONGEST, MOST_SHOWN, in_iso

GOOD = {"event_id": "e1", "user_id": "ann", "item_id": "tea", "type": "click", "timestamp": BEGIN}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2026-01-01", BEGIN),
        ("2026-01-01T00:00:00Z", BEGIN),
        (" 2026-01-01T01:30:00.000001+01:30 ", BEGIN + 1),
        (1767225600, BEGIN),
        (1767225600.25, BEGIN + 250_000),
        (0, 0),
        (datetime(2026, 1, 1), BEGIN),
        (datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), BEGIN),
        (datetime(2026, 1, 1, microsecond=7, tzinfo=UTC), BEGIN + 7),
    ],
)
def test_times_are_seconds_or_iso_text_and_become_microseconds_in_utc(value, expected: int) -> None:
    found = parse_time(value)
    assert (found, type(found)) == (expected, int)
    assert parse_time(in_iso(found)) == found


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("yesterday", "expected seconds since 1970, or ISO text"),
        ("", "expected seconds since 1970, or ISO text"),
        (True, "expected seconds since 1970, or ISO text"),
        (None, "expected seconds since 1970, or ISO text"),
        (float("nan"), "expected seconds since 1970, or ISO text"),
        (float("inf"), "expected seconds since 1970, or ISO text"),
        (BEGIN // 1000, "looks like milliseconds"),
        (BEGIN, "looks like microseconds"),
        (BEGIN * 1000.0, "looks like nanoseconds"),
        (10**30, "looks like no time at all"),
        (10**400, "looks like no time at all"),
        (-1.5e308, "from 1970 to 9999"),
        (-1, "from 1970 to 9999"),
        ("1969-12-31", "from 1970 to 9999"),
    ],
)
def test_other_times_are_refused(value, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        parse_time(value)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        *((name, "", "nothing or blanks") for name in ("event_id", "user_id", "item_id", "type")),
        ("user_id", " \t", "nothing or blanks"),
        ("user_id", "a\0b", "the NUL character cannot be stored"),
        ("user_id", "\ud83c", "half of a surrogate pair"),
        ("user_id", "x" * (LONGEST + 1), "at most 500 characters, found 501"),
        ("user_id", 7, "expected text, found int"),
        ("item_id", None, "expected text, found NoneType"),
        ("recommendation_id", "", "nothing or blanks"),
        ("timestamp", 1.5, "whole microseconds"),
        ("timestamp", True, "whole microseconds"),
        ("timestamp", -1, "from 1970 to 9999"),
        ("timestamp", LATEST + 1, "from 1970 to 9999"),
        ("impression", "tea", "expected a list of items, found str"),
        ("impression", ["tea", ""], "nothing or blanks"),
        ("impression", ["a\0"], "NUL"),
        ("impression", ["x"] * (MOST_SHOWN + 1), "1 to 1,000 items"),
        ("impression", [], "1 to 1,000 items"),
        *(
            ("propensity", wrong, "above 0 and at most 1")
            for wrong in (0, -0.1, 1.01, float("nan"), "0.5", True)
        ),
        *(("position", wrong, "at least 1") for wrong in (0, -1, 1.0, 2**31, True)),
    ],
)
def test_a_wrong_value_is_refused_by_its_field(field: str, value, said: str) -> None:
    with pytest.raises(BadEvent, match=said) as complaint:
        Event(**GOOD | {field: value})
    assert complaint.value.field == field
    assert str(complaint.value).startswith(f"{field}: ")
    assert isinstance(complaint.value, BadInput)


def test_the_largest_values_are_good() -> None:
    event = Event(
        **GOOD | {"user_id": "🍵" * LONGEST, "timestamp": LATEST, "propensity": 1, "position": 2**31 - 1}
    )
    assert (event.propensity, type(event.propensity)) == (1.0, float)
    assert Event(**GOOD, impression=["a", "b"]).impression == ("a", "b")


def test_documents_become_events_or_say_what_is_wrong() -> None:
    good = GOOD | {"timestamp": "2026-01-01T00:00:00Z", "impression": ["tea"], "position": None}
    documents = [
        good,
        good | {"user_id": ""},
        {name: value for name, value in good.items() if name != "item_id"},
        good | {"propensty": 0.5},
        good | {"timestamp": BEGIN},
        "click",
        good | {"impression": None, "propensity": 0.5},
    ]
    events, rejected = parse_events(documents)
    assert events == [Event(**GOOD, impression=("tea",)), Event(**GOOD, propensity=0.5)]
    assert [(one.index, one.field) for one in rejected] == [
        (1, "user_id"),
        (2, "item_id"),
        (3, "propensty"),
        (4, "timestamp"),
        (5, "event"),
    ]
    assert rejected[1].reason == "is missing"
    assert "did you mean 'propensity'?" in rejected[2].reason


def test_recommendations_are_checked_item_by_item() -> None:
    made = {"recommendation_id": "r", "user_id": "ann", "timestamp": BEGIN, "model": "pulse", "version": "1"}
    good = Recommendation(**made, items=(Shown("tea", 0.5, True), ("mate", 1)))
    assert good.items == (Shown("tea", 0.5, True), Shown("mate", 1.0, False))
    for items, said in (
        ((), "1 to 1,000 items"),
        ("tea", "expected a list"),
        (("tea",), "of the kind Shown"),
        ((Shown("tea", 0.5), Shown("tea", 0.5)), "one item is listed twice"),
        ((Shown("tea", 0),), "above 0 and at most 1"),
        ((Shown("", 0.5),), "nothing or blanks"),
        ((Shown("tea", 0.5, 1),), "exposed: expected true or false"),
    ):
        with pytest.raises(BadEvent, match=said) as complaint:
            Recommendation(**made, items=items)
        assert complaint.value.field == "items"
