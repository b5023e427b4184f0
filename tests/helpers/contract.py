"""What the tests of all models share: small configurations, and the contract of `unskew.testing` for them."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

import unskew
import unskew.models
from unskew.data.batches.batch import Batch
from unskew.models.base import MODELS, Recommender
from unskew.testing import models as testing
from unskew.testing.models import (
    CHECKS,
    Build,
    Check,
    catalog_equals_forward,
    close,
    cut_at,
    every_parameter_is_reached,
    first_batch,
    phases,
)

__all__ = [
    "CHECKS",
    "Build",
    "Check",
    "catalog_equals_forward",
    "close",
    "cut_at",
    "every_parameter_is_reached",
    "first_batch",
    "phases",
]

HISTORY, AUDIENCE = 8, 6
TINY = {
    "width": 12,
    "layers": 1,
    "heads": 2,
    "inner": 16,
    "hidden": 10,
    "dropout": 0.1,
    "hidden_ids": 0.1,
    "unsupervised_epochs": 1,
    "sample": 300,
}

every_model = pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS.keys())


def tiny(kind: type[Recommender], **more: Any) -> Any:
    """A small configuration, whatever fields this model has."""
    fields = {field.name for field in dataclasses.fields(kind.Config)}
    wanted = {"history": HISTORY, "audience": AUDIENCE} | TINY | more
    return kind.Config(**{name: value for name, value in wanted.items() if name in fields})


def builder(kind: type[Recommender]) -> Build:
    """Builds a small model of this kind, away from its initial values."""
    return testing.builder(kind, tiny(kind))


def some(log: unskew.Log, rows: int = 24, candidates: int = 5, shorter: int = 0) -> Batch:
    """Contexts at all times, with as much of the past as a small model reads."""
    reads: Any = SimpleNamespace(history=HISTORY, audience=AUDIENCE)
    return testing.some(log, reads, rows, candidates, shorter)
