"""`context-NAME`: a model of next items that also reads context events, such as views and carts.

    x_l = e_i + v_k

    e_i  the embedding of the item of the l-th event of the user, as NAME has it
    v_k  a learned vector of the type of the event; none for positives

A history is the newest `history` events of a user, positives and context events in the order of time, all
strictly before the moment of the request. Only positives are predicted, so candidates are plain items. The
settings are those of NAME, which itself reads positives alone.

Every model that is a `NextItem` has such a version, such as sasrec and gru4rec. Pulse reads context events by
itself.
"""

from functools import cache
from typing import Any, ClassVar

from torch import Tensor, nn

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.batches.context_events import check_types, split_events, with_context_events
from unskew.data.log.split import Ids, Known
from unskew.models.base import FAMILIES, MODELS, DotProduct, NextItem, Recommender
from unskew.nn.layers import Embeddings


class EventEmbeddings(Embeddings):
    """The embeddings of items, and of events on them: the vector of the item plus that of the event's type.

    types: the number of context types.
    """

    def __init__(self, known: int | Ids, width: int, deviation: float | None, types: int) -> None:
        super().__init__(known, width, deviation)
        self.types = nn.Embedding(types, width)
        nn.init.normal_(self.types.weight, std=width**-0.5 if deviation is None else deviation)

    def forward(self, ids: Tensor, masked: Tensor | None = None) -> Tensor:
        """The embeddings of events of any shape, (..., D); `masked` ones get the unknown vector."""
        codes, kinds = split_events(ids)
        of_types = self.types((kinds - 1).clamp(min=0)).masked_fill((kinds == 0).unsqueeze(-1), 0)
        return super().forward(codes, masked) + of_types


class WithContext(NextItem):
    """A model of next items whose histories hold context events."""

    Backbone: ClassVar[type[NextItem]]

    @classmethod
    def required_classes(cls, config: Any) -> tuple[type, ...]:
        return cls.Backbone.required_classes(config)

    def embeddings(self, known: Known, width: int, deviation: float | None) -> Embeddings:
        if not known.types:
            raise BadInput(
                f"{self.name}: this log has no context events; name their types with `prepare --context`, or "
                f"train {self.Backbone.name}"
            )
        check_types(known.types)
        self.context_types = known.types
        return EventEmbeddings(known.items, width, deviation, len(known.types))

    @property
    def exported(self) -> DotProduct | None:
        """A file for other programs has histories of items alone, so there is none."""
        return None

    def _with_events(self, context: Batch) -> Batch:
        return with_context_events(context, self.context_types, self.history)

    def context(self, batch: Batch) -> Tensor:
        return super().context(self._with_events(batch))

    def knows(self, context: Batch) -> Tensor:
        history_BL, _ = split_events(self._with_events(context).history_BL)
        return super().knows(context._replace(history_BL=history_BL))


@cache
def with_context(kind: type[Recommender]) -> type[Recommender]:
    """The version of a model that reads context events, as a model of its own with the same settings."""
    if not issubclass(kind, NextItem):
        able = ", ".join(sorted(name for name, model in MODELS.items() if issubclass(model, NextItem)))
        raise BadInput(
            f"context-{kind.name}: only models of next items have context events in their histories: {able}; "
            "pulse reads them by itself"
        )
    namespace = {"Backbone": kind, "name": f"context-{kind.name}", "paper": f"{kind.paper}; context is ours"}
    return type(f"Context{kind.__name__}", (WithContext, kind), namespace)


FAMILIES["context"] = with_context
