"""Planted faults: each check of the contract catches the one it is there for, in every model."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import unskew
import unskew.models
from tests.helpers.contract import CHECKS, builder, every_model
from unskew.data.batches.batch import Batch
from unskew.data.log.log import LogView
from unskew.data.log.split import Known
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, Recommender
from unskew.nn.phases import Phase, Stage
from unskew.nn.scoring import Catalog
from unskew.testing.models import (
    a_log_that_goes_on_can_be_scored,
    candidate_order_is_irrelevant,
    catalog_equals_forward,
    every_parameter_is_reached,
    labels_are_unread,
    no_future_event_changes_a_score,
    padding_is_invisible,
    rows_are_independent,
)

pytestmark = pytest.mark.slow  # minutes in all


def with_forward(
    kind: type[Recommender], change: Callable[[Recommender, Batch, Tensor], Tensor]
) -> type[Recommender]:
    def forward(self: Recommender, rows: Batch) -> Tensor:
        return change(self, rows, kind.forward(self, rows))

    return type("Faulty", (kind,), {"forward": forward})


def reads_labels(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores + 0.01 * rows.labels_BC)


def mixes_rows(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores - 0.01 * scores.mean(0))


def mixes_candidates(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(kind, lambda self, rows, scores: scores + 0.01 * torch.arange(scores.shape[1]))


def sees_padding(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(
        kind, lambda self, rows, scores: scores + 0.01 * (rows.history_BL == PAD).sum(1, keepdim=True)
    )


def sees_padding_of_audiences(kind: type[Recommender]) -> type[Recommender]:
    return with_forward(
        kind, lambda self, rows, scores: scores + 0.01 * (rows.audience_AM == PAD).sum(1)[rows.audience_of_BC]
    )


def knows_the_end(kind: type[Recommender]) -> type[Recommender]:
    """Counts each item's events on the whole log, the test set included."""

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def fit_statistics(self, split: unskew.Split) -> None:
            super().fit_statistics(split)
            self.totals = torch.from_numpy(np.diff(split.log.audiences.offsets)).float()

        def forward(self, rows: Batch) -> Tensor:
            return super().forward(rows) + 0.01 * self.totals[rows.candidates_BC]

    return Faulty


def with_catalog(
    kind: type[Recommender], change: Callable[[unskew.Log, Batch, Tensor], Tensor]
) -> type[Recommender]:
    class Changed:
        def __init__(self, log: unskew.Log, catalog: Catalog) -> None:
            self.log, self.catalog = log, catalog

        def scores(self, context: Batch) -> Tensor:
            return change(self.log, context, self.catalog.scores(context))

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def catalog(self, log: unskew.Log, first: int, last: int) -> Catalog:
            return Changed(log, super().catalog(log, first, last))

    return Faulty


def sees_the_present(kind: type[Recommender]) -> type[Recommender]:
    """Its catalogue counts one moment too many."""

    def late(log: unskew.Log, context: Batch, scores: Tensor) -> Tensor:
        start, end = log.audiences.before(
            np.arange(len(log.items))[None], context.times_B.numpy()[:, None] + 1
        )
        return scores + 0.01 * torch.from_numpy(end - start)

    return with_catalog(kind, late)


def has_another_catalogue(kind: type[Recommender]) -> type[Recommender]:
    """All of a block as of its first context."""
    return with_catalog(kind, lambda log, context, scores: scores[:1].expand(scores.shape))


def has_one_score_for_each_known_item(kind: type[Recommender]) -> type[Recommender]:
    """As if it had a table of all items of the log that it was trained on, and none for new ones."""

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def fit_statistics(self, split: unskew.Split) -> None:
            super().fit_statistics(split)
            self.rows = len(split.log.items)

        def forward(self, rows: Batch) -> Tensor:
            return super().forward(rows).masked_fill(rows.candidates_BC >= self.rows, torch.nan)

    return Faulty


def renews_nothing(kind: type[Recommender]) -> type[Recommender]:
    """Its catalogue of a newer log is the old one."""

    class Stale:
        def __init__(self, catalog: Catalog, items: int) -> None:
            self.catalog, self.items = catalog, items

        def scores(self, context: Batch) -> Tensor:
            scores = self.catalog.scores(context)
            return nn.functional.pad(scores, (0, self.items - scores.shape[1]), value=1.0)

    class Faulty(kind):  # type: ignore[misc, valid-type]
        def renew_catalog(self, catalog: Catalog, log: LogView, first: int, last: int) -> Catalog:
            return Stale(catalog, len(log.items))

    return Faulty


def has_a_dead_parameter(kind: type[Recommender]) -> type[Recommender]:
    class Faulty(kind):  # type: ignore[misc, valid-type]
        def __init__(self, known: Known, config: Any) -> None:
            super().__init__(known, config)
            self.dead = nn.Parameter(torch.zeros(1))

    return Faulty


def has_a_listed_but_dead_parameter(kind: type[Recommender]) -> type[Recommender]:
    class Faulty(has_a_dead_parameter(kind)):  # type: ignore[misc]
        def stages(self, epochs: int) -> tuple[Stage, ...]:
            def more(phase: Phase) -> Phase:
                return dataclasses.replace(
                    phase, parameters=lambda: dict.fromkeys([*phase.parameters(), self.dead])
                )

            return tuple(
                dataclasses.replace(stage, phases=tuple(map(more, stage.phases)))
                for stage in super().stages(epochs)
            )

    return Faulty


FAULTS = {
    reads_labels: labels_are_unread,
    mixes_rows: rows_are_independent,
    mixes_candidates: candidate_order_is_irrelevant,
    sees_padding: padding_is_invisible,
    sees_padding_of_audiences: padding_is_invisible,
    knows_the_end: no_future_event_changes_a_score,
    sees_the_present: no_future_event_changes_a_score,
    has_another_catalogue: catalog_equals_forward,
    has_one_score_for_each_known_item: a_log_that_goes_on_can_be_scored,
    renews_nothing: a_log_that_goes_on_can_be_scored,
    has_a_dead_parameter: every_parameter_is_reached,
    has_a_listed_but_dead_parameter: every_parameter_is_reached,
}


@every_model
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_the_contract_catches(
    kind: type[Recommender], fault: Callable[[type[Recommender]], type[Recommender]], split: unskew.Split
) -> None:
    checks = [FAULTS[fault]]
    if fault is has_another_catalogue:
        # Where forward asks the catalogue, the two are always equal, and rows depend on each other instead.
        checks.append(rows_are_independent)
    with pytest.raises(AssertionError):
        [check(builder(fault(kind)), split) for check in checks]


def test_every_check_has_a_fault_that_it_catches() -> None:
    assert set(FAULTS.values()) == set(CHECKS)


def test_faults_are_not_registered() -> None:
    for kind in MODELS.values():
        reads_labels(kind)
    assert "Faulty" not in {kind.__name__ for kind in MODELS.values()}
