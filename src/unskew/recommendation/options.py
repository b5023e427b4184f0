"""What a list is asked for: one set of options for Python, the command line, files of requests and HTTP."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NewType, TypedDict, get_args

from unskew.core.errors import BadInput
from unskew.recommendation.rules import Rules, parse_rules

# A type of its own, so that it cannot change places with another option unnoticed.
Explain = NewType("Explain", bool)
Cold = Literal["model", "content"]


@dataclass(frozen=True, eq=False, kw_only=True)
class RecommendOptions:
    """Which items a list may hold, and in which order.

    Attributes
    ----------
    k
        The largest number of items of a list.
    include_seen
        Whether items of the history can be recommended again; by default as in the model's evaluation.
    candidates
        The ids of the only items that can be recommended; by default all items.
    exclude
        The ids of items that are not recommended.
    debias
        From 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), for models that
        have a debiasing strength; by default as the model has it.
    at
        The moment of the request, in ticks of the log's clock or as an ISO date; what happened then or later
        does not count. By default it is just after the newest event.
    diverse
        From 0 (the best items) to 1 (items that are as unlike each other as can be): maximal marginal
        relevance (`unskew.recommendation.diversity`).
    rules
        Business rules about the items and the list, such as `"price < 50"` or `"at most 2 per brand"`
        (`unskew.recommendation.rules`).
    cold
        How items are scored that nobody has had yet: by the `model`, or by their `content`, what
        an item feed says of them (`unskew.recommendation.cold_items`).
    explain
        Whether each item comes with the parts of its score (`unskew.recommendation.reasons`); of the models,
        Pulse has them.
    approximate
        Whether an index proposes the items that are scored (`unskew.recommendation.ann`), for catalogues of
        100,000 items and more. Among `candidates`, all are scored anyway.
    """

    k: int = 10
    include_seen: bool | None = None
    candidates: Sequence[Any] | None = None
    exclude: Sequence[Any] = ()
    debias: float | None = None
    at: int | str | None = None
    diverse: float = 0.0
    rules: tuple[str, ...] = ()
    cold: Cold = "model"
    explain: Explain = Explain(False)
    approximate: bool = False

    def __post_init__(self) -> None:
        if self.k < 1:
            raise BadInput(f"k {self.k}: expected at least 1", field="k")
        if not 0 <= self.diverse <= 1:
            raise BadInput(f"diverse {self.diverse}: expected from 0 to 1", field="diverse")
        if self.candidates is not None and not len(self.candidates):
            raise BadInput("candidates: expected at least one item, found none", field="candidates")
        if isinstance(self.rules, list):
            object.__setattr__(self, "rules", tuple(self.rules))
        shapes_lists = self.parsed_rules.shapes_lists  # which also refuses wrong rules
        if self.approximate and shapes_lists:
            raise BadInput(
                "rules: an index proposes the items of approximate lists, so rules about the whole list (at "
                "most, at least, pin) need exact ones",
                field="rules",
            )
        if self.cold not in get_args(Cold):
            raise BadInput(f"cold {self.cold!r}: expected model or content", field="cold")
        if self.cold == "content" and (self.approximate or self.explain):
            raise BadInput(
                "cold content: approximate lists and explanations have the scores of the model alone",
                field="cold",
            )
        if self.approximate and self.debias is not None:
            raise BadInput(
                f"debias {self.debias}: approximate lists have the debiasing strength of the model, so "
                "ask for exact ones",
                field="debias",
            )

    @cached_property
    def parsed_rules(self) -> Rules:
        """The rules, read."""
        return parse_rules(self.rules)


class RecommendKeywords(TypedDict, total=False):
    """The fields of `RecommendOptions` as keywords of a function."""

    k: int
    include_seen: bool | None
    candidates: Sequence[Any] | None
    exclude: Sequence[Any]
    debias: float | None
    at: int | str | None
    diverse: float
    rules: tuple[str, ...]
    cold: Cold
    explain: Explain
    approximate: bool
