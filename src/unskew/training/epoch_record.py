"""What an epoch of training did: a line of `records.jsonl`, and what `on_record` is called with."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from unskew.core.config import Document, from_document

OPTIONAL: dict[str, Any] = {"valid": {}, "strengths": [], "statistics": {}, "update": None}


@dataclass(frozen=True, kw_only=True)
class EpochRecord:
    """What an epoch of training did.

    Attributes
    ----------
    stage, epoch
        The stage of training, and the number of the epoch in it, from 1.
    losses
        The mean loss of each phase.
    step
        How many batches the run has learned from so far.
    valid
        The metrics by each validation metric; empty where nothing was validated.
    strengths
        NDCG@10 at each debiasing strength, where validation chooses among several.
    statistics
        What the model reports about itself, such as its mean weight.
    rows_per_s, peak_gb
        The rate of training, and the largest memory of the process so far.
    update
        Which update of the run the epoch belongs to, if it was one.
    """

    stage: str
    epoch: int
    losses: dict[str, float]
    step: int
    valid: dict[str, dict[str, float]] = field(default_factory=dict)
    strengths: list[dict[str, float]] = field(default_factory=list)
    statistics: dict[str, float] = field(default_factory=dict)
    rows_per_s: float
    peak_gb: float
    update: int | None = None

    def to_json(self) -> Document:
        """Plain numbers and words, without the fields that are empty."""
        return {name: value for name, value in asdict(self).items() if OPTIONAL.get(name, ...) != value}

    @classmethod
    def from_json(cls, document: Document) -> "EpochRecord":
        """The record that `to_json` wrote. An unknown or missing field is bad input."""
        return from_document(cls, OPTIONAL | document)


OnRecord = Callable[[EpochRecord], None]
