"""CPR: Cross Pairwise Ranking for Unbiased Item Recommendation (Wan et al., WWW 2022).

No propensities: if P(o = 1 | r = 1) = p_u p_i P(r = 1)^alpha, a comparison of k observed pairs with the same
users and items crossed is free of p_u and p_i.

    l = softplus(-g),    g = (1 / k) [sum_j s(u_j, i_j) - sum_j s(u_j, i_{j+1})],    j = 1..k, and k + 1 is 1

Symbols: (u_j, i_j) an observed pair, s its score <e_u, e_i>; (u_j, i_{j+1}) must not be observed. An offset
per user or per item leaves g unchanged, so this model has none, and what it learns is no popularity. Unbiased
under the assumption above only.

Decisions. The batch is the pool: consecutive rows of it form cycles of 2, ..., K pairs, in the ratio r of the
authors (r times as many of k as of k + 1), and the one other candidate of a row is the next item of its
cycle. A cycle with a crossed pair that training has seen is left out, as is one that repeats a user or an
item, which then has such a pair. Of the rest, the 1 / rho with the smallest g are trained on (the dynamic
step), all k together. The authors draw with replacement and top up what they reject; here an epoch has each
pair once, and a round has so many epochs that it has as many steps as an epoch of theirs. Their regulariser
is reg times the mean squared norm of all U + I embeddings, which is a weight decay of 2 reg / (U + I). A
weight from outside is averaged over the pairs of a cycle.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.config import AtLeast1, NotNegative, Positive, Range
from unskew.data.batch import Batch
from unskew.data.negatives import Draw
from unskew.data.split import Known
from unskew.data.views import Ints
from unskew.models.base import ModelConfig, Phase, Stage, adam
from unskew.models.factors import MatrixFactors


class CPR(
    MatrixFactors,
    name="cpr",
    paper="Wan et al., Cross Pairwise Ranking for Unbiased Item Recommendation, WWW 2022",
):
    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        width: AtLeast1 = 128
        """Width of the embeddings (d)."""
        longest: Annotated[int, Range(least=2)] = 3
        """Pairs in the longest cycles (K); the shortest have two."""
        sample_ratio: Positive = 3.0
        """So many times more cycles of k pairs than of k + 1 (r)."""
        sample_rate: Annotated[float, Range(least=1)] = 1.0
        """So many cycles per one that is trained on, the one that is ranked worst (rho); 1 keeps all."""
        regulariser: NotNegative = 1e-3
        """Times the mean squared norm of all embeddings (reg)."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {"batch_size": 4608, "rounds": 200, "patience": 10}  # 2048 cycles

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        config = self.config
        epochs = max(1, round(config.sample_rate * mean_length(config.longest, config.sample_ratio)))
        phase = Phase(
            "cross pairs",
            "positives",
            self.cross_loss,
            self.parameters,
            epochs=epochs,
            negatives=1,
            drawing=self.next_of_cycle,
            optimizer=self.optimizer,
        )
        return (Stage("train", (phase,), rounds, validated=True),)

    def optimizer(
        self, parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        embeddings = len(self.users.weight) + len(self.items.weight)
        return adam(
            parameters, learning_rate, weight_decay + 2 * self.config.regulariser / max(embeddings, 1)
        )

    def next_of_cycle(self, draw: Draw) -> Ints:
        """The next item of each row's cycle. Beside all cycles a row is its own: its item is observed, so it
        will not count."""
        following = np.arange(len(draw.item_B))
        for rows, length in cycles(len(following), self.config.longest, self.config.sample_ratio):
            following[rows] = np.roll(following[rows].reshape(-1, length), -1, axis=1).ravel()
        return draw.item_B[following][:, None]

    def cross_loss(self, batch: Batch) -> Tensor:
        scores_BC = self(batch)
        gaps_B, crossed_B = scores_BC[:, 0] - scores_BC[:, 1], batch.labels_BC[:, 1]
        weight_B = torch.ones(len(gaps_B)) if batch.weight_BC is None else batch.weight_BC[:, 0]
        g, weight = [], []
        for rows, length in cycles(len(gaps_B), self.config.longest, self.config.sample_ratio):
            unseen = ~crossed_B[rows].view(-1, length).any(1)
            g.append(gaps_B[rows].view(-1, length).mean(1)[unseen])
            weight.append(weight_B[rows].view(-1, length).mean(1)[unseen])
        g_T, weight_T = torch.cat(g), torch.cat(weight)
        hard = hardest(g_T, self.config.sample_rate)
        return (functional.softplus(-g_T[hard]) * weight_T[hard]).sum() / max(len(hard), 1)


def shares(longest: int, ratio: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Of cycles of 2, ..., `longest` pairs."""
    parts = float(ratio) ** np.arange(longest - 2, -1, -1)
    return np.asarray(parts / parts.sum())


def mean_length(longest: int, ratio: float) -> float:
    return float(shares(longest, ratio) @ np.arange(2, longest + 1))


def sizes(pairs: int, longest: int, ratio: float) -> list[int]:
    """How many cycles of 2, ..., `longest` a pool of so many pairs holds."""
    total = int(pairs / mean_length(longest, ratio) + 1e-9)
    # Rounded up from the shortest on: whatever rounding does, it takes no more pairs than there are.
    ends = np.ceil(total * np.cumsum(shares(longest, ratio)) - 1e-9).astype(int)
    return [int(size) for size in np.diff(ends, prepend=0)]


def cycles(pairs: int, longest: int, ratio: float) -> list[tuple[slice, int]]:
    """The rows of a pool that are cycles of each length, one cycle after the other."""
    lengths = range(2, longest + 1)
    ends = np.cumsum(
        [0] + [size * length for size, length in zip(sizes(pairs, longest, ratio), lengths, strict=True)]
    )
    return [
        (slice(int(start), int(end)), length)
        for (start, end), length in zip(pairwise(ends), lengths, strict=True)
    ]


def hardest(g_T: Tensor, rate: float) -> Tensor:
    """The places of one in `rate` cycles, those ranked worst. The choice has no gradient, and no weight."""
    kept = max(round(len(g_T) / rate), min(len(g_T), 1))
    return g_T.topk(kept, largest=False).indices
