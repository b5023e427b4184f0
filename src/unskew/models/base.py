"""What every model is: scores for B contexts times C candidates, and the stages in which it learns. Registered by being there."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unskew.catalog import Catalog, PlainCatalog
from unskew.data.batches import Batch
from unskew.data.log import Log
from unskew.data.split import Split
from unskew.errors import BadInput

MODELS: dict[str, type["Recommender"]] = {}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What every model has; a model's own settings come on top."""

    history: int = 50
    """Past items of a user that the model reads, the newest."""
    audience: int = 30
    """Past users of an item that the model reads, the newest."""


@dataclass(frozen=True)
class Phase:
    """One kind of epoch: which batches, which loss, and which parameters it may change."""

    name: str
    batches: Literal["pairs", "sequences"]
    loss: Callable[[Any], Tensor]
    parameters: Callable[[], Iterable[nn.Parameter]]
    epochs: int = 1


@dataclass(frozen=True)
class Stage:
    """Rounds of phases. An algorithm is data, not step counters: the one training loop walks through it."""

    name: str
    phases: tuple[Phase, ...]
    rounds: int
    validated: bool = False  # after each round: early stopping, and the best weights are kept


class Recommender(nn.Module, ABC):
    name: ClassVar[str]
    paper: ClassVar[str]
    Config: ClassVar[type[ModelConfig]]

    def __init_subclass__(cls, *, name: str = "", paper: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if name:
            cls.name, cls.paper = name, paper
            MODELS[name] = cls

    def __init__(self, split: Split, config: ModelConfig) -> None:
        super().__init__()
        self.config = config

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """Logits (B, C). Labels are never read."""

    @abstractmethod
    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """How it learns, in at most so many validated rounds."""

    @property
    def history(self) -> int:
        return self.config.history

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        """Scores of all items at times from first to last. A faster one must give the same as `forward`."""
        return PlainCatalog(self.forward, log, self.config.audience)

    def statistics(self, batch: Batch) -> dict[str, float]:
        """What a record of a round says about the model beside its losses, on a fixed sample of training pairs."""
        return {}

    def reached(self) -> set[str]:
        """Names of the parameters that some stage trains."""
        trained = {id(p) for stage in self.stages(1) for phase in stage.phases for p in phase.parameters()}
        return {name for name, parameter in self.named_parameters() if id(parameter) in trained}


def model_named(name: str) -> type[Recommender]:
    if name not in MODELS:
        raise BadInput(f"no model {name!r}; there are {', '.join(sorted(MODELS))}")
    return MODELS[name]


def parameters_of(*modules: nn.Module | nn.Parameter | None) -> list[nn.Parameter]:
    """The parameters of some modules; what is not there has none."""
    found: list[nn.Parameter] = []
    for module in modules:
        if isinstance(module, nn.Parameter):
            found.append(module)
        elif module is not None:
            found.extend(module.parameters())
    return found


def mean_of_weighted(loss_BC: Tensor, weight_BC: Tensor) -> Tensor:
    return torch.mean(loss_BC * weight_BC)
