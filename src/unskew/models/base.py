"""What every model is: scores for B contexts times C candidates, and the stages in which it learns.
Registered by being there."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from unskew.catalog import Catalog, DotCatalog, PlainCatalog
from unskew.config import did_you_mean
from unskew.data.batch import Batch, SequenceBatch
from unskew.data.held_out import Criterion
from unskew.data.log import Log
from unskew.data.negatives import Drawing, uniform_negatives
from unskew.data.split import Split
from unskew.data.views import HISTORY
from unskew.errors import BadInput
from unskew.layers import Embeddings, is_real, read_before, right_padded
from unskew.losses import cross_entropy

MODELS: dict[str, type["Recommender"]] = {}
FAMILIES: dict[
    str, Callable[[type["Recommender"]], type["Recommender"]]
] = {}  # `family-model` is made of `model`


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The settings of a model."""


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(ModelConfig):
    """What every model has that reads the user's past."""

    history: int = HISTORY
    """Past items of a user that the model reads, the newest."""


def adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


@dataclass(frozen=True)
class Phase:
    """One kind of epoch: which batches, which loss, and which parameters it may change.

    `pairs`      rows of the log, clicked or not, each with sampled negatives where the log has few of its own
                 (Batch)
    `positives`  the clicked ones only, each with as many others as the phase asks for (Batch)
    `prefixes`   as pairs, user by user, with each history and audience a prefix of a row that is read once
                 (Batch with `shared`)
    `histories`  whole histories of users, cut into windows, each event once a target (SequenceBatch)
    `sequences`  whole histories of users and audiences of items (SequenceBatch)
    """

    name: str
    batches: Literal["pairs", "positives", "prefixes", "histories", "sequences"]
    loss: Callable[[Any], Tensor]
    parameters: Callable[[], Iterable[nn.Parameter]]
    epochs: int = 1
    negatives: int | None = None  # drawn per context, where training does not say; 0 is final
    drawing: Drawing = uniform_negatives
    optimizer: Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer] = adam
    weighted: bool = True  # whether its terms are observed pairs, which a propensity may weight
    past: tuple[int, int | None] | None = (
        None  # of histories and audiences, how much its batches hold; None: what the model reads
    )


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
    choose_by: ClassVar[Criterion] = (
        "ordinary"  # the version of the validation part that chooses its weights, unless one is named
    )
    recipe: ClassVar[
        dict[str, Any]
    ] = {}  # the settings of training in its paper, where they are not the usual ones

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
        """Past items of a user that it reads."""
        return int(getattr(self.config, "history", 0))

    @property
    def audience(self) -> int | None:
        """Past users of an item that it reads; None is all of them."""
        return int(getattr(self.config, "audience", 0))

    @property
    def window(self) -> int:
        """Events of a user that are trained on together, where whole histories are."""
        return self.history

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        """Entries of the state that no gradient can choose: validation tries each of these once, before
        training."""
        return []

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        """Scores of all items at times from first to last. A faster one must give the same as `forward`."""
        return PlainCatalog(self.forward, log, self.audience)

    def statistics(self, batch: Batch) -> dict[str, float]:
        """What a record of a round says about the model beside its losses, on a fixed sample of training
        pairs."""
        return {}

    def reached(self) -> set[str]:
        """Names of the parameters that some stage trains."""
        trained = {id(p) for stage in self.stages(1) for phase in stage.phases for p in phase.parameters()}
        return {name for name, parameter in self.named_parameters() if id(parameter) in trained}


def model_named(name: str) -> type[Recommender]:
    family, _, rest = name.partition("-")
    if name not in MODELS and family in FAMILIES and rest in MODELS:
        return FAMILIES[family](MODELS[rest])
    if name not in MODELS:
        more = "".join(f", {family}-NAME with any of them" for family in FAMILIES)
        everything = [*MODELS, *(f"{family}-{model}" for family in FAMILIES for model in MODELS)]
        raise BadInput(
            f"no model {name!r}{did_you_mean(name, everything)}; there are {', '.join(sorted(MODELS))}{more}"
        )
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


class DotProduct(Recommender):
    """Scores are dot products of a vector per context and a vector per item, so a catalogue costs one matrix
    product."""

    @abstractmethod
    def context(self, batch: Batch) -> Tensor:
        """A vector per context, (B, D)."""

    @abstractmethod
    def vectors(self, item: Tensor) -> Tensor:
        """A vector per item, (..., D)."""

    def forward(self, batch: Batch) -> Tensor:
        return torch.einsum("bd,bcd->bc", self.context(batch), self.vectors(batch.candidates_BC))

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return DotCatalog(self, len(log.items))


class NextItem(DotProduct):
    """A network that reads a history once, oldest first, and has a state after each item of it: every prefix
    at the cost of one.

    `encode` must be causal. Before the first item the state is a learned `start`, so that an empty history
    has an answer, too; no paper of these models says what a new user gets.
    """

    def __init__(
        self, split: Split, config: HistoryConfig, width: int, deviation: float | None = None
    ) -> None:
        super().__init__(split, config)
        self.items = Embeddings(split.item_ids, width, deviation)
        self.start = nn.Parameter(torch.zeros(width))

    @abstractmethod
    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        """A state after each item, (B, L, D), of histories that are padded on the right."""

    def beginning(self, user_B: Tensor) -> Tensor:
        """The state before the first item, (B, D)."""
        return self.start.expand(len(user_B), -1)

    def states(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        """States after 0, 1, ..., L items, (B, L + 1, D), of histories that are padded on the right."""
        beginning = self.beginning(user_B)[:, None]
        return torch.cat([beginning, self.encode(user_B, ids_BL)], dim=1) if ids_BL.shape[1] else beginning

    def context(self, batch: Batch) -> Tensor:
        lengths = is_real(batch.history_BL).sum(1)
        return self.states(batch.user_B, right_padded(batch.history_BL))[torch.arange(len(lengths)), lengths]

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        return (
            Stage(
                "train",
                (Phase("next item", "histories", self.next_item_loss, self.parameters),),
                rounds,
                validated=True,
            ),
        )

    def next_item_loss(self, batch: SequenceBatch) -> Tensor:
        """The loss of each event given those strictly before it: one pass yields every prefix."""
        row_N, past_N, target_N, weight_N = batch.targets()
        states_BLD = self.states(batch.user_B, read_before(batch.items_BL, past_N))
        return self.loss_of(states_BLD[row_N, past_N], target_N, weight_N)

    def loss_of(self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None) -> Tensor:
        """The weighted mean over targets; by default, of cross-entropy among all items."""
        return cross_entropy(states_ND, self.items.table(), targets_N, weight_N) / max(len(targets_N), 1)
