"""CPR: Cross Pairwise Ranking for Unbiased Item Recommendation (Wan et al., WWW 2022).

It needs no propensities. If P(o = 1 | r = 1) = p_u p_i P(r = 1)^alpha, then p_u and p_i cancel when k
observed pairs are compared with the same users and items crossed:

    l = softplus(-g),    g = (1 / k) [sum_j s(u_j, i_j) - sum_j s(u_j, i_{j+1})]

    j               1, ..., k, and after k comes 1 again
    (u_j, i_j)      an observed pair
    (u_j, i_{j+1})  a crossed pair, which must not be observed
    s               the score <e_u, e_i>

A bias per user or per item leaves g unchanged, so the model has none, and what it learns is not popularity.
The loss is unbiased only under the assumption above.

What was decided where the paper is silent or its code differs: Consecutive rows of a batch form cycles of 2,
..., K pairs, in the authors' ratio r (r times as many cycles of k pairs as of k + 1), and the only other
candidate of a row is the next item of its cycle. A cycle with a crossed pair that training has seen is left
out; so is a cycle that repeats a user or an item, because it has such a pair. Of the rest, the 1 / rho with
the smallest g are trained on (the dynamic step), cycles of all lengths together. The authors draw pairs with
replacement and replace what they reject. Here an epoch has each pair once, and an epoch has so many epochs
that it has as many steps as one of their epochs. Their regulariser is reg times the mean squared norm of all
U + I embeddings, which equals a weight decay of 2 reg / (U + I). Weights from outside are averaged over the
pairs of a cycle.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import NotNegative, Positive, Range, Search, Settings, Width
from unskew.data.batches.batch import Batch
from unskew.data.batches.negatives import Draw
from unskew.data.log.split import Known
from unskew.data.log.views import Ints
from unskew.models.base import ModelConfig
from unskew.models.factors import MatrixFactors
from unskew.nn.losses import divisor
from unskew.nn.phases import Phase, adam


class CPR(
    MatrixFactors,
    name="cpr",
    paper="Wan et al., Cross Pairwise Ranking for Unbiased Item Recommendation, WWW 2022",
):
    """Matrix factorisation that is trained on cycles of observed pairs, crossed."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: Width = 128
        """The width of the embeddings (d)."""
        longest: Annotated[int, Range(least=2)] = 3
        """The number of pairs in the longest cycles (K); the shortest have two."""
        sample_ratio: Annotated[Positive, Search.among(2.0, 3.0)] = 3.0
        """How many cycles of k pairs there are for each cycle of k + 1 pairs (r)."""
        sample_rate: Annotated[float, Range(least=1), Search.among(1.0, 3.0)] = 1.0
        """How many cycles are made for each one that is trained on, which is the one that is ranked worst
        (rho). With 1, all cycles are trained on."""
        regulariser: Annotated[NotNegative, Search(1e-4, 1e-2, log=True)] = 1e-3
        """The weight of the mean squared norm of all embeddings in the loss (reg)."""

    config: Config
    splits_batches = False  # cycles are made of rows of the whole batch
    # A batch of 4608 pairs has 2048 cycles.
    recipe: ClassVar[Settings] = {"batch_size": 4608, "epochs": 200, "patience": 10}
    searched: ClassVar[dict[str, Search]] = {"batch_size": Search.among(2304, 4608, 9216)}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)

    def phases(self) -> tuple[Phase, ...]:
        config = self.config
        passes = max(1, round(config.sample_rate * mean_length(config.longest, config.sample_ratio)))
        phase = Phase("cross pairs", "positives", self.cross_loss, self.parameters, passes, negatives=1)
        return (replace(phase, drawing=self.next_of_cycle, optimizer=self.optimizer),)

    def optimizer(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Adam, with the regulariser as part of the weight decay."""
        embeddings = max(len(self.users.weight) + len(self.items.weight), 1)
        return adam(parameters, learning_rate, weight_decay + 2 * self.config.regulariser / embeddings)

    def next_of_cycle(self, draw: Draw) -> Ints:
        """The next item of each row's cycle, (B, 1). A row that is in no cycle gets its own item; that is
        observed, so the row will not count."""
        following = np.arange(len(draw.item_B))
        for rows, length in cycles(len(following), self.config.longest, self.config.sample_ratio):
            following[rows] = np.roll(following[rows].reshape(-1, length), -1, axis=1).ravel()
        return draw.item_B[following][:, None]

    def cross_loss(self, batch: Batch) -> Tensor:
        """The mean loss l of the cycles that are trained on."""
        scores_BC = batch.with_offset(self(batch))
        gaps_B, crossed_B = scores_BC[:, 0] - scores_BC[:, 1], batch.labels_BC[:, 1]
        weight_B = torch.ones_like(gaps_B) if batch.weight_BC is None else batch.weight_BC[:, 0]
        g, weight = [], []
        for rows, length in cycles(len(gaps_B), self.config.longest, self.config.sample_ratio):
            unseen = ~crossed_B[rows].view(-1, length).any(1)
            g.append(gaps_B[rows].view(-1, length).mean(1)[unseen])
            weight.append(weight_B[rows].view(-1, length).mean(1)[unseen])
        g_T, weight_T = torch.cat(g), torch.cat(weight)
        hard = hardest(g_T, self.config.sample_rate)
        return (functional.softplus(-g_T[hard]) * weight_T[hard]).sum() / divisor(len(hard))


def fractions(longest: int, ratio: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The fractions of cycles of 2, ..., `longest` pairs among all cycles."""
    parts = float(ratio) ** np.arange(longest - 2, -1, -1)
    return np.asarray(parts / parts.sum())


def mean_length(longest: int, ratio: float) -> float:
    """The mean number of pairs in a cycle."""
    return float(fractions(longest, ratio) @ np.arange(2, longest + 1))


def sizes(pairs: int, longest: int, ratio: float) -> list[int]:
    """How many cycles of 2, ..., `longest` pairs are made of a batch of this many pairs."""
    total = int(pairs / mean_length(longest, ratio) + 1e-9)
    # Counts are rounded in favour of short cycles, so that the cycles never need more pairs than there are.
    ends = np.ceil(total * np.cumsum(fractions(longest, ratio)) - 1e-9).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def cycles(pairs: int, longest: int, ratio: float) -> list[tuple[slice, int]]:
    """For each length, the rows of a batch that are cycles of that length, one cycle after the other."""
    lengths = range(2, longest + 1)
    counts = sizes(pairs, longest, ratio)
    ends = np.cumsum([0, *(count * length for count, length in zip(counts, lengths, strict=True))])
    rows = [slice(int(start), int(end)) for start, end in pairwise(ends)]
    return list(zip(rows, lengths, strict=True))


def hardest(g_T: Tensor, rate: float) -> Tensor:
    """The indices of one in `rate` cycles: those that are ranked worst. Weights do not matter for this."""
    kept = max(round(len(g_T) / rate), min(len(g_T), 1))
    return g_T.topk(kept, largest=False).indices
