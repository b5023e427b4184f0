"""gSASRec: SASRec with k negatives per position and generalised binary cross-entropy
(Petrov and Macdonald, RecSys 2023).

    loss = -[beta log sigmoid(s+) + sum over negatives of log(1 - sigmoid(s-))] / (k + 1)
    beta = 1 - t (1 - a),    a = k / (I - 1)

    s+, s-  the scores of the target and of a negative
    k       the number of negatives per position
    I       the number of items; a is the fraction of the negatives that is sampled
    t       the calibration, from 0 to 1

With t = 0 the loss is plain binary cross-entropy, which is overconfident if only a fraction of the negatives
is sampled; with t = 1 it is calibrated. beta is a factor of the positive term alone.

What was decided: As in the authors' code, negatives are drawn uniformly and with replacement, newly for each
position, and may be the target itself; candidates have a table of their own; width, blocks and dropout are
those of the code's example for MovieLens. There are never more negatives than other items, so that a is at
most 1. The softplus form of the loss needs no transformation of the logits in double precision. Blocks,
initial values and histories of 50 items are those of `sasrec`. The authors read 200 items, and their
candidates start with vectors of length sqrt(d), which made learning slower in our trials.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.config import AtLeast1, Dropped, Layers, Search, Settings, Share, Width
from unskew.data.batches.batch import Offset
from unskew.data.log.split import Known
from unskew.models.base import HistoryConfig, NextItem
from unskew.nn.layers import CausalBlock, CausalEncoder, Embeddings
from unskew.nn.losses import divisor

CHUNK = 1 << 19  # numbers held at once: few enough to stay in the cache
LOOKED_UP = 32  # how many vectors can be multiplied with a state in the time that looking up one takes


class GSASRec(NextItem, name="gsasrec", paper="Petrov and Macdonald, RecSys 2023"):
    """SASRec with many sampled negatives and a calibrated loss."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        """The settings of gSASRec."""

        width: Width = 128
        """The width of embeddings and hidden states (d)."""
        layers: Layers = 2
        """The number of transformer blocks."""
        heads: AtLeast1 = 1
        """The number of attention heads of each block."""
        dropout: Dropped = 0.5
        """The fraction of activations that dropout sets to zero."""
        samples: AtLeast1 = 256
        """The number of negatives drawn for each position (k)."""
        calibration: Annotated[Share, Search.among(0.0, 0.25, 0.5, 0.75, 1.0)] = 0.75
        """How far the loss is calibrated (t): 0 is plain binary cross-entropy, 1 is fully calibrated."""
        output: Literal["separate", "tied"] = "separate"
        """Whether candidates have an embedding table of their own (`separate`) or share the table of the
        items that are read (`tied`)."""

    config: Config
    is_exportable = True
    recipe: ClassVar[Settings] = {"sequences": 128, "epochs": 200, "patience": 20}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        blocks = (CausalBlock(config.width, config.heads, config.dropout) for _ in range(config.layers))
        self.encoder = CausalEncoder(config.width, config.history + 1, config.dropout, blocks)
        self.candidates = Embeddings(known.items, config.width) if config.output == "separate" else None

    @property
    def output(self) -> Embeddings:
        """The embedding table of the candidates. A tied table is not registered twice, because a file of
        weights holds each tensor once."""
        return self.items if self.candidates is None else self.candidates

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.encoder(self.items(ids_BL))

    def vectors(self, item: Tensor) -> Tensor:
        return self.output(item)

    def loss_of(
        self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None, offset: Offset | None = None
    ) -> Tensor:
        items, vectors_VD = self.output.known, self.output.table()
        if offset is not None:
            states_ND, vectors_VD = offset.beside(states_ND, vectors_VD)
        k = min(self.config.samples, max(items - 1, 1))  # so that a is at most one
        weight_N = states_ND.new_ones(len(targets_N)) if weight_N is None else weight_N
        ids_NC = torch.cat(
            [targets_N[:, None], torch.randint(items, (len(targets_N), k), device=targets_N.device)], dim=1
        )
        power = beta(k, items, self.config.calibration)
        total = _GeneralisedBCE.apply(states_ND, vectors_VD, ids_NC, weight_N, power)
        return total / divisor(len(targets_N))


def beta(negatives: int, items: int, calibration: float) -> float:
    """The factor beta of the positive term. `items` counts the catalogue without padding."""
    return 1 - calibration * (1 - negatives / max(items - 1, 1))


def generalised_bce(scores_NC: Tensor, power: float) -> Tensor:
    """The loss of each row, (N,): the first score is that of the target, all others are those of negatives.

    power: the factor beta of the positive term.
    """
    negatives_N = functional.softplus(scores_NC[:, 1:]).sum(1)
    return (power * functional.softplus(-scores_NC[:, 0]) + negatives_N) / scores_NC.shape[1]


class _GeneralisedBCE(torch.autograd.Function):
    """The weighted sum of the losses of all positions.

    Positions are handled in chunks, and the gradient of a chunk is computed along with it. In a small
    catalogue, looking up k vectors per position takes longer than multiplying with all items; then all scores
    are computed and the wanted ones are looked up.
    """

    @staticmethod
    def forward(
        context: Any, states_ND: Tensor, vectors_VD: Tensor, ids_NC: Tensor, weight_N: Tensor, power: float
    ) -> Tensor:
        of_states, of_vectors = torch.empty_like(states_ND), torch.zeros_like(vectors_VD)
        total = states_ND.new_zeros(())
        (size, width), drawn = vectors_VD.shape, ids_NC.shape[1]
        whole = size <= LOOKED_UP * drawn
        rows = max(1, CHUNK // (size if whole else drawn * width))
        for first in range(0, len(states_ND), rows):
            part = slice(first, first + rows)
            state, ids, weight = states_ND[part], ids_NC[part], weight_N[part]
            if whole:
                all_scores = state @ vectors_VD.T
                scores = all_scores.gather(1, ids)
            else:
                vectors = vectors_VD.index_select(0, ids.flatten()).view(-1, drawn, width)
                scores = torch.bmm(vectors, state[:, :, None])[:, :, 0]
            total += (generalised_bce(scores, power) * weight).sum()
            slope = scores.sigmoid_()
            slope[:, 0].sub_(1).mul_(power)
            slope.mul_(weight[:, None] / drawn)
            if whole:
                all_slopes = all_scores.zero_().scatter_add_(1, ids, slope)
                torch.mm(all_slopes, vectors_VD, out=of_states[part])
                of_vectors.addmm_(all_slopes.T, state)
            else:
                of_states[part] = torch.bmm(slope[:, None], vectors)[:, 0]
                slopes = torch.mul(slope[:, :, None], state[:, None], out=vectors).view(-1, width)
                of_vectors.index_add_(0, ids.flatten(), slopes)
        context.slopes = of_states, of_vectors
        return total

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(slope * gradient[0] for slope in context.slopes), None, None, None
