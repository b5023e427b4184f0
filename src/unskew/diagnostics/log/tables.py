"""The figures of a log as lines of a table, with names that need no dictionary."""

from unskew.core.formatting import count, fraction, number
from unskew.diagnostics.log.order import Shuffle
from unskew.diagnostics.log.statistics import HEAD, Drift, Lengths, Popularity, Repeats, Size, Tested, Times
from unskew.report.summary import Row


def size_rows(size: Size) -> list[Row]:
    """Table 1 of the paper."""
    liked = "clicks, purchases or ratings that count as liked"
    others = "; the other rows do not count as liked" if size.positives < size.interactions else ""
    formula = "1 - interactions / (users x items)"
    return [
        Row("size", "users", count(size.users)),
        Row("size", "items", count(size.items)),
        Row("size", "interactions", count(size.interactions), "all rows of the log"),
        Row("size", "positives", count(size.positives), liked + others),
        Row(
            "size",
            "sparsity",
            fraction(size.sparsity, 2),
            f"{formula}; below 0 because the same pairs occur again and again"
            if size.sparsity < 0
            else formula,
        ),
    ]


def time_rows(clock: Times) -> list[Row]:
    """When the log begins and ends, and how finely it tells time."""
    return [
        Row("time", "first interaction", str(clock.first)),
        Row("time", "last interaction", str(clock.last)),
        Row("time", "resolution", clock.resolution, f"{count(clock.distinct)} distinct times"),
    ]


def tie_rows(clock: Times) -> list[Row]:
    """How many events share their time, so that their order is unknown."""
    return [
        Row("ties", "rows with a shared time", fraction(clock.tied_rows), "another row has the same time"),
        Row(
            "ties",
            "positives tied within a user",
            fraction(clock.tied_positives),
            "the same user has another positive at the same time",
        ),
    ]


def length_rows(name: str, lengths: Lengths, what: str) -> list[Row]:
    """How many past events a model can read at each positive."""
    return [
        Row(name, f"{what} before a positive, mean", number(lengths.mean)),
        Row(name, "median / 90th percentile", f"{number(lengths.median)} / {number(lengths.p90)}"),
        Row(name, "none at all", fraction(lengths.empty), "of the positives"),
        Row(
            name,
            f"more than {lengths.limit}",
            fraction(lengths.cut),
            f"of the positives; models read only the newest {lengths.limit}",
        ),
    ]


def popularity_rows(popularity: Popularity, size: Size) -> list[Row]:
    """How unevenly the positives are spread over the items."""
    return [
        Row(
            "popularity",
            "Gini index",
            number(popularity.gini),
            f"0: all items equal, 1: one item has everything; equal popularity would give "
            f"{number(popularity.gini_even)}",
        ),
        Row(
            "popularity", "top 1 % of the items have", fraction(popularity.top_1_percent), "of all positives"
        ),
        Row(
            "popularity",
            "top 10 % of the items have",
            fraction(popularity.top_10_percent),
            "of all positives",
        ),
        Row(
            "popularity",
            "items with half of all positives",
            count(popularity.half),
            f"of {count(size.items)} items",
        ),
    ]


def drift_rows(drift: Drift) -> list[Row]:
    """How popularity changes in time."""
    last, slices = drift.slices[-1], len(drift.slices)
    return [
        Row(
            "drift",
            f"first top {drift.top} still on top",
            fraction(drift.kept),
            f"the most popular items of the first of {slices} time slices, in the last one",
        ),
        Row("drift", "positives on new items", fraction(last.new), "in the last time slice"),
        Row(
            "drift",
            "rank correlation",
            number(last.correlation),
            "popularity in the last slice and the one before; 1: the same order",
        ),
    ]


def order_rows(shuffle: Shuffle) -> list[Row]:
    """The shuffle test of `describe.order`."""
    return [
        Row(
            "order",
            "repeated transitions",
            count(shuffle.observed),
            f"equal pairs among {count(shuffle.transitions)} steps from one item to the next",
        ),
        Row(
            "order",
            "... after shuffling",
            f"{number(shuffle.mean)} ± {number(shuffle.deviation)}",
            f"{len(shuffle.shuffled)} shuffles of each user's items",
        ),
        Row("order", "ratio / z-score", f"{number(shuffle.ratio)} / {number(shuffle.z)}"),
    ]


def repeat_rows(repeats: Repeats) -> list[Row]:
    """How often users return to an item."""
    return [
        Row(
            "repeats",
            "repeated positives",
            count(repeats.repeated),
            "the same user had the same item before",
        ),
        Row(
            "repeats",
            "in training / test",
            f"{fraction(repeats.train_share)} / {fraction(repeats.test_share)}",
            "of the positives",
        ),
        Row(
            "repeats",
            "items a user has had",
            "candidates" if repeats.kept else "hidden",
            "in training, evaluation and recommendation",
        ),
    ]


def tested_rows(tested: Tested) -> list[Row]:
    """What one test of the held-out part asks for."""
    group = f"{tested.test} test"
    popularity = 10**tested.mean_log10_popularity
    return [
        Row(group, "positives ranked", count(tested.positives)),
        Row(
            group,
            "effective sample size",
            number(tested.effective_sample_size),
            "unweighted positives with the same precision: (sum of weights)² / sum of squared weights",
        ),
        Row(
            group,
            "Gini index of the items",
            number(tested.gini),
            "0: every item counts the same",
        ),
        Row(
            group,
            "training positives, typical item",
            count(round(popularity)) if popularity >= 2 else number(popularity),
            "how often the item of a typical test positive was taken in training (geometric mean)",
        ),
        Row(
            group,
            f"on the less popular {100 * (1 - HEAD):.0f} %",
            fraction(tested.long_tail),
            "of the test falls on the long tail of the items",
        ),
        Row(
            group,
            "on items new since training",
            fraction(tested.unknown_items),
            "of the test; training never saw them",
        ),
    ]
