"""How often two equal models are called different, by simulation: the goal is 5 %.

    python benchmarks/false_positives.py [--write]

Each trial draws users, and some seeds for each of two models that are equally good. A seed makes a model
better or worse for all users (where seeds matter), and a trained model serves a user better or worse by
chance. With tastes, each user is served better by one of the two models, without any difference on average.
`--write` puts the table into docs/evaluation-protocol.md.
"""

import math
import sys
from pathlib import Path

import numpy as np
from pages import replace_between

from unskew.core.statistics import LEVEL, SeedMeans, bootstrap_means, estimate, paired_t_test
from unskew.report.table import Table

TRIALS, USERS, DRAWS = 2000, 200, 400
SEEDS = (1, 2, 3, 5, 8)
# The standard deviations of: a seed, a user's taste for one of the models, and a user's luck with a seed.
SCENARIOS = {
    "seeds do not matter": (0.0, 0.0, 0.3),
    "seeds matter as much as users": (0.3 / math.sqrt(USERS), 0.0, 0.3),
    "seeds matter most": (0.1, 0.0, 0.3),
    "users differ in taste, seeds do not matter": (0.0, 0.3, 0.1),
    "users differ in taste, seeds matter": (0.03, 0.3, 0.1),
}
TESTS = ("t over seeds and users", "bootstrap of seeds and users (before)", "paired t-test over rows")
BEGIN, END = "<!-- made by benchmarks/false_positives.py -->", "<!-- end -->"


def trial(number: int, seeds: int, spreads: tuple[float, float, float]) -> list[bool]:
    """Whether each test calls two equal models different; with one seed the first is the interval over users,
    as a test."""
    random = np.random.default_rng([number, seeds])
    seed_sd, taste_sd, luck_sd = spreads
    base, users = random.random(USERS), np.arange(USERS)
    values = np.stack(
        [
            base
            + taste_sd * random.standard_normal(USERS)
            + seed_sd * random.standard_normal((seeds, 1))
            + luck_sd * random.standard_normal((seeds, USERS))
            for _ in range(2)
        ]
    )
    drawn = bootstrap_means(values.reshape(-1, USERS), users, np.ones(USERS), DRAWS).reshape(2, seeds, -1)
    one, other = (SeedMeans(values[model].mean(axis=1), drawn[model]) for model in (0, 1))
    difference = estimate(one, other)
    resampled = [_resample(of, random) for of in drawn]
    low, high = np.quantile(resampled[0] - resampled[1], [LEVEL / 2, 1 - LEVEL / 2])
    rows = values.mean(axis=1)
    return [
        not difference.low <= 0 <= difference.high,
        not low <= 0 <= high,
        paired_t_test(rows[0] - rows[1]) < LEVEL,
    ]


def _resample(drawn_SD: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """The mean over seeds that are drawn with replacement in each draw of users, widened as was usual."""
    size, draws = drawn_SD.shape
    mean = drawn_SD.mean(axis=0)
    chosen = random.integers(0, size, (size, draws))
    widened = math.sqrt(size / max(size - 1, 1))
    return np.asarray(mean + widened * (drawn_SD[chosen, np.arange(draws)].mean(axis=0) - mean))


def table() -> str:
    """The rates by scenario, test and number of seeds."""
    rows = []
    for name, spreads in SCENARIOS.items():
        rates = {
            seeds: np.mean([trial(number, seeds, spreads) for number in range(TRIALS)], axis=0)
            for seeds in SEEDS
        }
        for at, test in enumerate(TESTS):
            rows.append(
                [name if not at else "", test, *(f"{100 * rates[seeds][at]:.1f} %" for seeds in SEEDS)]
            )
    head = ["two equal models", "test", *(f"{seeds} seed{'s' * (seeds > 1)}" for seeds in SEEDS)]
    return Table(head, rows, text=(0, 1)).markdown()


if __name__ == "__main__":
    made = table()
    print(made)
    if "--write" in sys.argv:
        page = Path(__file__).parents[1] / "docs" / "evaluation-protocol.md"
        replace_between(page, BEGIN, END, f"{made}\n")
