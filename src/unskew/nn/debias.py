"""Where the debiasing strength acts: scores without a part of the exposure.

score(strength) = score - (strength - own strength) log p

p             how exposed the item is at the time of the request, whoever the user is
own strength  what the scores of the model have taken out already, as validation chose it
"""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.log import Log
from unskew.nn.device import device_of, on_device
from unskew.nn.scoring import Catalog, Scorer


class HasExposure(Scorer, Protocol):
    """A scorer that knows how exposed items are, so that exposure can be taken out of its scores."""

    @property
    def debias(self) -> float:
        """The debiasing strength of the scores as they are."""

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        """The logarithm of how exposed each item is at each time."""


def scores_at(
    scorer: Scorer, catalog: Catalog, context: Batch, strengths: Sequence[float | None]
) -> list[Tensor]:
    """The scores of all items in each context at some strengths, from 0 (what will be clicked) to 1 (if all
    items were exposed equally); None is as the scorer has it. A catalogue with a method `scores_at_strengths`
    does it itself."""
    context = on_device(context, device_of(scorer))
    if not any(debias is not None for debias in strengths):
        scores = catalog.scores(context).cpu()
        return [scores.clone() if place else scores for place in range(len(strengths))]
    exposed = cast(HasExposure, scorer)
    values = [exposed.debias if debias is None else debias for debias in strengths]
    for debias in values:
        check_debias(debias)
    itself: Callable[[Batch, Sequence[float]], list[Tensor]] | None = getattr(
        catalog, "scores_at_strengths", None
    )
    if itself is not None:
        return [scores.cpu() for scores in itself(context, values)]
    return apply_debias(exposed, catalog.scores(context).cpu(), context, values)


def check_debias(debias: float) -> None:
    """Refuse what is no debiasing strength."""
    if not 0 <= debias <= 1:
        raise BadInput(f"debias {debias}: expected from 0 to 1", field="debias")


def apply_debias(
    scorer: HasExposure, scores: Tensor, context: Batch, strengths: Sequence[float]
) -> list[Tensor]:
    """The scores of all items, as the scorer has them, at some strengths."""
    assert context.log is not None
    items, times = np.arange(scores.shape[1]), context.times_B.cpu().numpy()
    exposure = scorer.log_exposure(context.log.frozen(), items, times[:, None]).to(scores.device)
    return [scores - (debias - scorer.debias) * exposure for debias in strengths]
