"""Why an item is in a list, in words: the parts of its score, with the caller's ids."""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
import pyarrow as pa

from unskew.data.log.vocabulary import VocabularyView
from unskew.nn.reasons import Reason, ReasonKind

PERIODS = {0.25: "in the last hours", 1.0: "today", 4.0: "this week", 16.0: "this month"}
PERIODS |= {64.0: "in the last months", 256.0: "this year"}


class Because(TypedDict):
    """One part of the score of an item."""

    kind: str
    text: str
    part: float
    item_id: str | None
    tag: str | None


TYPE = pa.list_(
    pa.struct(
        [
            ("kind", pa.string()),
            ("text", pa.string()),
            ("part", pa.float64()),
            ("item_id", pa.string()),
            ("tag", pa.string()),
        ]
    )
)


def in_words(reasons: Sequence[Reason], items: VocabularyView) -> list[Because]:
    """The reasons of one item.

    Parameters
    ----------
    reasons
        The parts of its score.
    items
        The items that they name by their codes.
    """
    found = []
    for reason in reasons:
        item_id = None if reason.item is None else str(items.of(np.array([reason.item]))[0].as_py())
        title = item_id if reason.item is None else items.title_of(reason.item) or item_id
        found.append(
            Because(
                kind=reason.kind.value,
                text=_text(reason, title),
                part=reason.part,
                item_id=item_id,
                tag=reason.tag,
            )
        )
    return found


def _text(reason: Reason, title: str | None) -> str:
    """What a part is about, for a user of the shop."""
    is_more = reason.part >= 0
    if reason.kind is ReasonKind.NEIGHBOURS:
        whom = "with other events in common" if title is None else f"who took {title}"
        return f"users {whom} {'took this too' if is_more else 'took this less often'}"
    if reason.kind is ReasonKind.POPULAR:
        period = PERIODS.get(reason.days or 0.0, "lately")
        return f"popular {period}" if is_more else f"not popular {period}"
    if reason.kind is ReasonKind.TAG:
        return f"this user {'often' if is_more else 'seldom'} takes {reason.tag}"
    return {
        ReasonKind.BASE: "any item, for this user",
        ReasonKind.NEW: "its age",
        ReasonKind.REPEAT: "this user took it before",
        ReasonKind.CONTEXT: "this user looked at it",
        ReasonKind.DEBIAS: "often shown, which debiasing takes away" if not is_more else "seldom shown",
    }[reason.kind]
