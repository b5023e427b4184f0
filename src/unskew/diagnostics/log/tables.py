"""The figures of a log as lines of a table, with names that need no dictionary."""

from unskew.core.formatting import count, fraction, number
from unskew.diagnostics.log.order import Shuffle
from unskew.diagnostics.log.statistics import HEAD, Drift, Lengths, Popularity, Repeats, Size, Tested, Times
from unskew.report.summary import Row


def _rows(group: str, *lines: tuple[str, ...]) -> list[Row]:
    """Rows of one group, each with a name, a value and perhaps a note."""
    return [Row(group, *line) for line in lines]


def size_rows(size: Size) -> list[Row]:
    """Table 1 of the paper."""
    liked = "clicks, purchases or ratings that count as liked"
    others = "; the other rows do not count as liked" if size.positives < size.interactions else ""
    negative = "; below 0 because the same pairs occur again and again" if size.sparsity < 0 else ""
    return _rows(
        "size",
        ("users", count(size.users)),
        ("items", count(size.items)),
        ("interactions", count(size.interactions), "all rows of the log"),
        ("positives", count(size.positives), liked + others),
        ("sparsity", fraction(size.sparsity, 2), "1 - interactions / (users x items)" + negative),
    )


def time_rows(clock: Times) -> list[Row]:
    """When the log begins and ends, and how fine its times are."""
    return _rows(
        "time",
        ("first interaction", str(clock.first)),
        ("last interaction", str(clock.last)),
        ("resolution", clock.resolution, f"{count(clock.distinct)} distinct times"),
    )


def tie_rows(clock: Times) -> list[Row]:
    """How many events share their time, so that their order is unknown."""
    tied = "the same user has another positive at the same time"
    return _rows(
        "ties",
        ("rows with a shared time", fraction(clock.tied_rows), "another row has the same time"),
        ("positives tied within a user", fraction(clock.tied_positives), tied),
    )


def length_rows(name: str, lengths: Lengths, what: str) -> list[Row]:
    """How many past events a model can read at each positive."""
    newest = f"of the positives; models read only the newest {lengths.limit}"
    return _rows(
        name,
        (f"{what} before a positive, mean", number(lengths.mean)),
        ("median / 90th percentile", f"{number(lengths.median)} / {number(lengths.p90)}"),
        ("none at all", fraction(lengths.empty), "of the positives"),
        (f"more than {lengths.limit}", fraction(lengths.cut), newest),
    )


def popularity_rows(popularity: Popularity, size: Size) -> list[Row]:
    """How unevenly the positives are spread over the items."""
    even = number(popularity.gini_even)
    gini = f"0: all items equal, 1: one item has everything; equal popularity would give {even}"
    return _rows(
        "popularity",
        ("Gini index", number(popularity.gini), gini),
        ("top 1 % of the items have", fraction(popularity.top_1_percent), "of all positives"),
        ("top 10 % of the items have", fraction(popularity.top_10_percent), "of all positives"),
        ("items with half of all positives", count(popularity.half), f"of {count(size.items)} items"),
    )


def drift_rows(drift: Drift) -> list[Row]:
    """How popularity changes in time."""
    last = drift.slices[-1]
    first_top = f"the most popular items of the first of {len(drift.slices)} time slices, in the last one"
    correlation = "popularity in the last slice and the one before; 1: the same order"
    return _rows(
        "drift",
        (f"first top {drift.top} still on top", fraction(drift.kept), first_top),
        ("positives on new items", fraction(last.new), "in the last time slice"),
        ("rank correlation", number(last.correlation), correlation),
    )


def order_rows(shuffle: Shuffle) -> list[Row]:
    """The shuffle test of `order`."""
    equal = f"equal pairs among {count(shuffle.transitions)} steps from one item to the next"
    shuffled = f"{number(shuffle.mean)} ± {number(shuffle.deviation)}"
    return _rows(
        "order",
        ("repeated transitions", count(shuffle.observed), equal),
        ("... after shuffling", shuffled, f"{len(shuffle.shuffled)} shuffles of each user's items"),
        ("ratio / z-score", f"{number(shuffle.ratio)} / {number(shuffle.z)}"),
    )


def repeat_rows(repeats: Repeats) -> list[Row]:
    """How often users return to an item."""
    fractions = f"{fraction(repeats.train_share)} / {fraction(repeats.test_share)}"
    past = "candidates" if repeats.kept else "hidden"
    return _rows(
        "repeats",
        ("repeated positives", count(repeats.repeated), "the same user had the same item before"),
        ("in training / test", fractions, "of the positives"),
        ("items a user has had", past, "in training, evaluation and recommendation"),
    )


def tested_rows(tested: Tested) -> list[Row]:
    """What one test of the held-out part asks for."""
    popularity = 10**tested.mean_log10_popularity
    typical = count(round(popularity)) if popularity >= 2 else number(popularity)
    precision = "unweighted positives with the same precision: (sum of weights)² / sum of squared weights"
    in_training = "how often the item of a typical test positive was taken in training (geometric mean)"
    unseen = "of the test; training never saw them"
    tail = f"on the less popular {100 * (1 - HEAD):.0f} %"
    return _rows(
        f"{tested.test} test",
        ("positives ranked", count(tested.positives)),
        ("effective sample size", number(tested.effective_sample_size), precision),
        ("Gini index of the items", number(tested.gini), "0: every item counts the same"),
        ("training positives, typical item", typical, in_training),
        (tail, fraction(tested.long_tail), "of the test falls on the long tail of the items"),
        ("on items new since training", fraction(tested.unknown_items), unseen),
    )
