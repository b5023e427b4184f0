"""Popularity by hand: total, a window, and fading by half."""

import pytest

import unskew
from tests.helpers.runs import train
from unskew.data.batches.batch import batch
from unskew.models.base import Training, build
from unskew.models.popularity import Popularity, recencies


@pytest.fixture
def small() -> unskew.Split:
    """Item a at 0, 10 and 20, item b at 24 and 28; asked at 30."""
    rows = [(1, "a", 0), (2, "a", 10), (3, "a", 20), (1, "b", 24), (2, "b", 28), (3, "b", 30)]
    user, item, time = zip(*rows, strict=True)
    return unskew.split(unskew.read({"user": user, "item": item, "time": time}), fractions=(80, 0, 20))


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (Popularity.Config(recency="total"), [3, 2]),  # what happens at 30 itself does not count
        (Popularity.Config(recency="window", span=10), [1, 2]),  # from 20 on
        (Popularity.Config(recency="window", span=9), [0, 2]),
        (Popularity.Config(recency="fading", span=10), [2**-3 + 2**-2 + 2**-1, 2**-0.6 + 2**-0.2]),
    ],
)
def test_counts_before_the_request(
    small: unskew.Split, config: Popularity.Config, expected: list[float]
) -> None:
    found = build(Popularity, small, config)(batch(small.log, [0], [30], [[0, 1]]))
    assert found[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_a_span_belongs_to_a_window_or_to_fading(small: unskew.Split) -> None:
    for config in (
        Popularity.Config(recency="window"),
        Popularity.Config(recency="total", span=3),
        Popularity.Config(span=3),
    ):
        with pytest.raises(unskew.BadInput, match="need a span above 0"):
            build(Popularity, small, config)


def test_recency_is_chosen_on_validation(positive_log: unskew.Log) -> None:
    split = unskew.split(positive_log)
    chosen, _ = train(split, "popularity", Popularity.Config(), Training())
    options = [build(Popularity, split, option).state_dict() for option in recencies(split).values()]
    assert chosen.state_dict() in options
