"""The metrics that the paper published, to stand beside ours where the protocol is the same.

Xu et al., Dually Enhanced Propensity Score Estimation in Sequential Recommendation, CIKM 2022: Table EXP:main
for the four data sets, and for Amazon-Digital-Music the Tables ablation_trans, Ablation and model-agnostic.
They are in `published.csv` as printed: HR@20 of DEPS on Amazon-Digital-Music is 0.7757 in the first table and
0.7747 in the others, and NDCG@20 of Item-Pro is below its NDCG@10, which cannot be.

Ours may stand beside them only for the paper's own rows: a named test of one of its data sets under the
protocol `authors`. Even then it is no reproduction (`CAVEAT`).
"""

import csv
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from unskew.experiments.intervals import ArmResults
from unskew.experiments.results import EvaluationSpec, SuiteResults

METRICS = ("ndcg@5", "ndcg@10", "ndcg@20", "hr@5", "hr@10", "hr@20")
CAVEAT = (
    "About a third of the paper's training rows could not be had, so this is no reproduction: the test rows "
    "and the protocol are the paper's, but the models learned from fewer rows."
)
# By a word in the name of our data set, which also has "paper" in it: the paper's data set.
DATA_SETS = {"beauty": "Amazon-Beauty", "music": "Amazon-Digital-Music", "mind": "MIND"}


@cache
def published_metrics() -> dict[str, dict[str, dict[str, float]]]:
    """The published values by data set, model (as our suites call it) and metric."""
    published: dict[str, dict[str, dict[str, float]]] = {}
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            values = {metric: float(row[metric]) for metric in METRICS}
            published.setdefault(row["data"], {})[row["model"]] = values
    return published


class PublishedTest(NamedTuple):
    """A test whose results may stand beside a published table."""

    source: str  # our name of the data set
    data: str  # the paper's name
    by: EvaluationSpec
    results: ArmResults


def published_data_set(source: str) -> str | None:
    """The data set of the paper that a data set of a bench is, by its name; None for any other."""
    name = source.lower()
    if "paper" not in name:
        return None
    return next((data for word, data in DATA_SETS.items() if word in name), None)


def published_tests(suite: SuiteResults) -> Iterator[PublishedTest]:
    """The data sets and tests of a suite whose rows and protocol are the paper's."""
    for source in suite.sources:
        data = published_data_set(source)
        for by in suite.tests if data is not None else ():
            results = suite.arm_results(source, by) if by.protocol == "authors" else None
            if data is not None and results is not None:
                yield PublishedTest(source, data, by, results)
