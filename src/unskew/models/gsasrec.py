"""gSASRec: SASRec with k negatives per position and generalised binary cross-entropy (Petrov and Macdonald,
RecSys 2023).

    loss = -[beta log sigmoid(s+) + sum over negatives of log(1 - sigmoid(s-))] / (k + 1),   beta = 1 - t (1 -
                                                                                             a),   a = k / (I
                                                                                             - 1)

t = 0 is plain binary cross-entropy, which is overconfident where only a share a of the negatives is seen; t =
1 is calibrated. beta belongs to the positive alone. As in the authors' code, negatives are uniform, with
replacement, fresh per position, and may be the target itself; candidates have a table of their own; width,
blocks and dropout are those of its example for MovieLens. There are
never more negatives than other items: a is at most 1. The softplus form needs no transform of the logits in
double precision.

Blocks, initial values and histories of 50 items are those of `sasrec`. The authors read 200 items, and their
candidates begin with vectors of length sqrt(d), which made it learn more slowly in our trials.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional

from unskew.config import AtLeast1, Dropped, Share
from unskew.data.split import Known
from unskew.layers import CausalEncoder, Embeddings
from unskew.models.base import HistoryConfig, NextItem

CHUNK = 1 << 19  # numbers held at once: they stay in the cache
LOOKED_UP = 32  # vectors multiplied with a state in the time in which one is looked up


class GSASRec(NextItem, name="gsasrec", paper="Petrov and Macdonald, RecSys 2023"):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: AtLeast1 = 128
        """Width of embeddings and states (d)."""
        layers: AtLeast1 = 2
        """Blocks."""
        heads: AtLeast1 = 1
        """Heads of each attention."""
        dropout: Dropped = 0.5
        """Share of activations dropped."""
        samples: AtLeast1 = 256
        """Negatives drawn per position (k)."""
        calibration: Share = 0.75
        """From 0, plain binary cross-entropy, to 1, calibrated (t)."""
        output: Literal["separate", "tied"] = "separate"
        """Whether candidates have a table of their own or that of the items read."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {"sequences": 128, "rounds": 200, "patience": 20}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.encoder = CausalEncoder(
            config.width, config.layers, config.heads, config.dropout, config.history + 1
        )
        self.candidates = Embeddings(known.items, config.width) if config.output == "separate" else None

    @property
    def output(self) -> Embeddings:
        """The table of the candidates. A tied one is not registered twice: a file holds each tensor once."""
        return self.items if self.candidates is None else self.candidates

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.encoder(self.items(ids_BL))

    def vectors(self, item: Tensor) -> Tensor:
        return self.output(item)

    def loss_of(self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None) -> Tensor:
        items = self.output.known
        k = min(self.config.samples, max(items - 1, 1))  # a sampling rate is at most one
        weight_N = torch.ones(len(targets_N)) if weight_N is None else weight_N
        ids_NC = torch.cat([targets_N[:, None], torch.randint(items, (len(targets_N), k))], dim=1)
        power = beta(k, items, self.config.calibration)
        total = _GeneralisedBCE.apply(states_ND, self.output.table(), ids_NC, weight_N, power)
        return total / max(len(targets_N), 1)


def beta(negatives: int, items: int, calibration: float) -> float:
    """The power of the positive's probability. The catalogue is counted without padding."""
    return 1 - calibration * (1 - negatives / max(items - 1, 1))


def generalised_bce(scores_NC: Tensor, power: float) -> Tensor:
    """A term per row: the positive comes first, all others are negatives."""
    negatives_N = functional.softplus(scores_NC[:, 1:]).sum(1)
    return (power * functional.softplus(-scores_NC[:, 0]) + negatives_N) / scores_NC.shape[1]


class _GeneralisedBCE(torch.autograd.Function):
    """The weighted sum of terms. Each chunk of positions makes its gradient at once. Looking up k vectors per
    position costs more than multiplying with all of a small catalogue, so then the scores are looked up
    instead."""

    @staticmethod
    def forward(
        context: Any, states_ND: Tensor, vectors_VD: Tensor, ids_NC: Tensor, weight_N: Tensor, power: float
    ) -> Tensor:
        of_states, of_vectors, total = (
            torch.empty_like(states_ND),
            torch.zeros_like(vectors_VD),
            states_ND.new_zeros(()),
        )
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
                of_vectors.index_add_(
                    0,
                    ids.flatten(),
                    torch.mul(slope[:, :, None], state[:, None], out=vectors).view(-1, width),
                )
        context.slopes = of_states, of_vectors
        return total

    @staticmethod
    def backward(context: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return *(slope * gradient[0] for slope in context.slopes), None, None, None
