"""Tags of items, and tastes for them, equal naive loops over the rows: ties, strangers and unknown items
included."""

from dataclasses import replace
from math import log as ln

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unskew
from tests.conftest import quick
from unskew.data.batches.batch import contexts
from unskew.data.log.views import PAD
from unskew.data.log.vocabulary import Feature
from unskew.models.pulse.tags import BACK, FLOOR, OF_TAGS, PRIOR, Tags

Row = tuple[int, int, int]
rows = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(-3, 9)), min_size=2, max_size=40)
kinds = st.lists(
    st.sampled_from([None, "", "a", "b", "a|b", "b | c|c", "d|", "|"]), min_size=6, max_size=6
).filter(any)


def tagged(rows: list[Row], kinds: list[str | None]) -> unskew.Log:
    """Positives, whose item n has the kind n."""
    log = quick(rows)
    kind = pa.array([kinds[n] for n in log.items.ids.to_pylist()], pa.string())
    return replace(log, items=replace(log.items, features={"kind": Feature(kind)}))


def events_of(log: unskew.Log) -> list[Row]:
    return list(zip(log.user.tolist(), log.item.tolist(), log.time.tolist(), strict=True))


def naive_tags(log: unskew.Log) -> list[set[str]]:
    values = log.items.features["kind"].values.to_pylist()
    return [{word.strip() for word in (value or "").split("|")} - {""} for value in values]


def naive(log: unskew.Log, user: int, now: int, item: int) -> list[float]:
    """One pair, in plain loops."""
    tags, before = naive_tags(log), [row for row in events_of(log) if row[2] < now]
    if not 0 <= item < len(tags) or not tags[item]:
        return [0.0] * OF_TAGS
    everybody = [tags[other] for _, other, _ in before if tags[other]]
    mine = [tags[other] for who, other, _ in before if who == user and tags[other]]
    found = []
    for fading, prior in zip(BACK, PRIOR, strict=True):
        weights = [fading**back for back in reversed(range(len(mine)))]
        lifts = []
        for tag in tags[item]:
            fraction = (sum(tag in each for each in everybody) + FLOOR) / (len(everybody) + FLOOR)
            often = sum(weight for weight, each in zip(weights, mine, strict=True) if tag in each)
            lifts.append(ln((often + prior * fraction) / (sum(weights) + prior) / fraction))
        found.append(sum(lifts) / len(lifts))
    return found


@effort(max_examples=80)
@given(rows=rows, kinds=kinds, times=st.lists(st.integers(-3, 11), min_size=1, max_size=3))
def test_tastes_are_what_loops_find(rows: list[Row], kinds: list[str | None], times: list[int]) -> None:
    """In the right request and item, for everybody, a stranger and nobody; pair by pair and all at once."""
    log = tagged(rows, kinds)
    users = [*range(len(log.users)), len(log.users) + 4, PAD]
    asked = contexts(log, users, [times[at % len(times)] for at in range(len(users))], 200)
    time, items = asked.times_B.numpy(), np.arange(-2, len(log.items) + 3)
    tastes = Tags(log).tastes(time, asked.history_BL.numpy())
    request, item = (part.ravel() for part in np.meshgrid(np.arange(len(users)), items, indexing="ij"))
    found = tastes.of_pairs(request, item)
    expected = [naive(log, users[r], int(time[r]), i) for r, i in zip(request, item.tolist(), strict=True)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert found.dtype == np.float32
    weight = np.array([0.7, -1.3], np.float32)
    everything = np.stack([tastes.of_request(r, weight) for r in range(len(users))])
    known = (found @ weight).reshape(len(users), -1)[:, 2:-3]
    np.testing.assert_allclose(everything, known, rtol=1e-5, atol=1e-6)
    assert everything.dtype == np.float32


def test_zero_is_the_taste_of_everybody() -> None:
    """Above it is what a user has more often, below what less often; without tags and without a history it
    is zero."""
    log = tagged(
        [(0, 0, 1), (0, 1, 2), (0, 0, 3), (1, 2, 3), (1, 3, 4), (2, 4, 4)], ["a", "a", "b", "b|a", ""]
    )
    tastes = Tags(log).tastes(np.array([9, 9, 0]), np.array([[PAD, 0, 1], [PAD, 2, 3], [PAD, PAD, PAD]]))
    found = tastes.of_pairs(np.repeat(np.arange(3), 5), np.tile(np.arange(5), 3)).reshape(3, 5, OF_TAGS)
    assert (found[0, :2] > 0).all()
    assert (found[0, 2] < 0).all()
    assert (found[1, 2] > 0).all()
    np.testing.assert_allclose(found[:, 3], (found[:, 0] + found[:, 2]) / 2, rtol=1e-5)
    assert not found[:, 4].any()
    assert not found[2].any()


def test_which_features_are_tags() -> None:
    """Categories of any type, each feature with tags of its own; numbers are none."""
    table = pa.table(
        {
            "user": [1, 2, 3],
            "item": ["x", "y", "z"],
            "time": [1, 2, 3],
            "genres": ["Crime|Drama", "Drama", None],
            "mood": ["Drama", None, None],
            "new": [True, False, None],
            "price": [1.5, 2.5, 3.5],
            "year": [1999, 2001, 1999],
        }
    )
    log = unskew.read(table, item_features="genres,mood,new,price,year")
    tags = Tags(log)
    assert np.diff(tags.offsets).tolist() == [4, 2, 0]
    assert tags.size == 2 + 1 + 2
    assert len(set(tags.ids[:4].tolist())) == 4
    assert len(set(tags.ids[:4].tolist()) & set(tags.ids[4:].tolist())) == 1
    whose, codes = tags.of(np.array([1, 7, PAD, 0]), np.full(4, log.now))
    assert whose.tolist() == [0, 0, 3, 3, 3, 3]
    assert codes.tolist() == [*tags.ids[4:], *tags.ids[:4]]


@pytest.mark.parametrize("features", [None, "price", "kind"])
def test_a_log_without_tags(features: str | None) -> None:
    """Without features, with numbers only, or without any value."""
    kind = pa.array([None, None, None, ""], pa.string())
    table = pa.table({"user": [0, 0, 1, 1], "item": [0, 1, 0, 2], "time": [1, 2, 3, 4], "kind": kind})
    log = unskew.read(table.append_column("price", [[1.5, 2.0, 1.5, 4.0]]), item_features=features)
    tags = Tags(log)
    assert (tags.size, len(tags.ids)) == (0, 0)
    tastes = tags.tastes(np.array([5, 5]), np.array([[0, 1], [PAD, PAD]]))
    assert not tastes.of_pairs(np.array([0, 1]), np.array([0, 5])).any()
    assert tastes.of_request(0, np.ones(OF_TAGS, np.float32)).tolist() == [0, 0, 0]
