"""Why a model gives an item its score: parts whose sum is the score."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from unskew.data.batches.batch import Batch
from unskew.data.log.views import Ints


class ReasonKind(StrEnum):
    """What a part of a score is about."""

    BASE = "base"  # what an average item has about which nothing is known
    POPULAR = "popular"  # how fast the audience of the item grows
    NEW = "new"  # how old the item is
    NEIGHBOURS = "neighbours"  # what users took who share an item with this user
    REPEAT = "repeat"  # the user took the item before
    CONTEXT = "context"  # the user's events of context types on the item, such as views
    TAG = "tag"  # the user's taste for a tag of the item
    DEBIAS = "debias"  # exposure, which the debiasing strength takes away


@dataclass(frozen=True)
class Reason:
    """One part of a score.

    Attributes
    ----------
    kind
        What it is about.
    part
        How much of the score it is.
    item
        For `neighbours`: the code of the user's item that they share, or None for all other items and
        context events together.
    tag
        For `tag`: the tag, or None for all that the history lacks.
    days
        For `popular`: the half-life in days of the count that is most unusual.
    """

    kind: ReasonKind
    part: float
    item: int | None = None
    tag: str | None = None
    days: float | None = None


@runtime_checkable
class Explains(Protocol):
    """A catalogue that gives reasons for its scores."""

    def reasons(
        self, context: Batch, items: Sequence[Ints], debias: float | None
    ) -> list[list[tuple[Reason, ...]]]:
        """The reasons of some items in each context. The parts of each item add up to its score.

        items: the codes of the items of each context.
        debias: the debiasing strength of the scores; None is the model's own.
        """
