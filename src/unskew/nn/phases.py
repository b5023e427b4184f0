"""Training as data: a phase is one kind of training epoch, a stage repeats the same phases for some epochs.

Models (`Recommender.stages`) and estimators of propensities (`Propensity.phases`) describe in these terms how
they are trained. The training loop in `unskew.training.trainer` executes them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from unskew.data.batches.negatives import Drawing, uniform_negatives
from unskew.data.batches.samplers import BatchSource
from unskew.data.log.split import Split
from unskew.nn.vocabulary import RowAdam


def adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The Adam optimizer, which phases use if they name no other."""
    return RowAdam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


# What `Phase.batches` may be.
Kind = Literal["pairs", "positives", "prefixes", "positive-prefixes", "histories", "sequences"]
Batches = Kind | Callable[[Split, int, int], BatchSource]


@dataclass(frozen=True)
class Phase:
    """One kind of training epoch: which batches it reads, which loss it has, which parameters it changes.

    name: the name of the phase in the records of a run.
    batches: what the loss is given: one of these kinds, or whatever a function of a split, a seed and a batch
        size makes. A batch of one's own is a NamedTuple; if its terms may be weighted, it has the fields
        `event_B`, `times_B`, `candidates_BC`, `weight_B` and `offset_BC`, as that of Pulse has.
        `pairs`      rows of the log, clicked or not, with sampled negatives if the log has few (Batch)
        `positives`  only the clicked rows, each with as many negatives as the phase asks for (Batch)
        `prefixes`   as `pairs`, but user by user: every history and every audience is a prefix of a row that
                     the model reads once (Batch with `shared`)
        `positive-prefixes`  as `positives`, in the form of `prefixes` (Batch with `shared`)
        `histories`  whole histories of users, cut into windows; each event is a target once (SequenceBatch)
        `sequences`  whole histories of users and whole audiences of items (SequenceBatch)
    loss: the loss of such a batch.
    parameters: the parameters that are trained.
    passes: how many times an epoch goes through its batches.
    negatives: how many negatives each context gets, unless the training settings say otherwise; 0 is final.
    drawing: how negatives are drawn.
    optimizer: makes the optimizer from parameters, learning rate and weight decay.
    weighted: whether its terms are observed pairs, which may be weighted by a propensity.
    separate: whether each candidate has a term of its own, with its own weight; by default so for `pairs` and
        `prefixes`. Other losses compare candidates, and only the positive has a weight.
    past: how many past items and past users its batches hold at most; by default as many as the model reads.
    """

    name: str
    batches: Batches
    loss: Callable[[Any], Tensor]
    parameters: Callable[[], Iterable[nn.Parameter]]
    passes: int = 1
    negatives: int | None = None
    drawing: Drawing = uniform_negatives
    optimizer: Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer] = adam
    weighted: bool = True
    separate: bool | None = None
    past: tuple[int, int | None] | None = None

    def __post_init__(self) -> None:
        if self.separate is None:
            object.__setattr__(self, "separate", self.batches in ("pairs", "prefixes"))


@dataclass(frozen=True)
class Stage:
    """A number of epochs, each of which goes through the same phases. If it is validated, the validation set
    is ranked after each epoch, to stop early and to keep the best weights."""

    name: str
    phases: tuple[Phase, ...]
    epochs: int
    validated: bool = False


def parameters_of(*modules: nn.Module | nn.Parameter | None) -> list[nn.Parameter]:
    """The parameters of some modules, in this order; None has no parameters."""
    found: list[nn.Parameter] = []
    for module in modules:
        if isinstance(module, nn.Parameter):
            found.append(module)
        elif module is not None:
            found.extend(module.parameters())
    return found
