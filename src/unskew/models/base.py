"""What every model is: scores for B contexts times C candidates, and the stages in which it learns.
Registered by being there."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from unskew.catalog import Catalog, DotCatalog, PlainCatalog
from unskew.config import AtLeast0, AtLeast1, NotNegative, Positive, did_you_mean
from unskew.data.batch import Batch, SequenceBatch
from unskew.data.held_out import Criterion
from unskew.data.log import Log
from unskew.data.negatives import Drawing, uniform_negatives
from unskew.data.samplers import BatchSource
from unskew.data.split import Known, Split
from unskew.data.views import HISTORY
from unskew.errors import BadInput
from unskew.layers import Embeddings, is_real, read_before, right_padded
from unskew.losses import cross_entropy

M = TypeVar("M", bound="Recommender")

MODELS: dict[str, type["Recommender"]] = {}
FAMILIES: dict[
    str, Callable[[type["Recommender"]], type["Recommender"]]
] = {}  # makes `family-model` of a model


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The settings of a model."""


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(ModelConfig):
    """What every model has that reads the user's past."""

    history: AtLeast1 = HISTORY
    """Past items of a user that the model reads, the newest."""


def adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


Kind = Literal["pairs", "positives", "prefixes", "histories", "sequences"]
Batches = Kind | Callable[[Split, int], BatchSource]


@dataclass(frozen=True)
class Phase:
    """One kind of training epoch: which batches, which loss, and which parameters it changes.

    batches: what the loss is given. A function of a split and a seed makes batches of any other kind.
        `pairs`      rows of the log, clicked or not, with sampled negatives where the log has few (Batch)
        `positives`  only the clicked rows, each with as many negatives as the phase asks for (Batch)
        `prefixes`   as pairs, user by user; every history and audience is a prefix of a row that is read once
                     (Batch with `shared`)
        `histories`  whole histories of users, cut into windows; each event is a target once (SequenceBatch)
        `sequences`  whole histories of users and audiences of items (SequenceBatch)
    negatives: how many are drawn per context where the training settings do not say; 0 is final.
    weighted: whether its terms are observed pairs, which a propensity may weight.
    past: the most past items and past users that its batches hold; by default what the model reads.
    """

    name: str
    batches: Batches
    loss: Callable[[Any], Tensor]
    parameters: Callable[[], Iterable[nn.Parameter]]
    epochs: int = 1
    negatives: int | None = None
    drawing: Drawing = uniform_negatives
    optimizer: Callable[[Iterable[nn.Parameter], float, float], torch.optim.Optimizer] = adam
    weighted: bool = True
    past: tuple[int, int | None] | None = None


@dataclass(frozen=True)
class Stage:
    """Rounds of phases. An algorithm is data, not step counters: the one training loop walks through it."""

    name: str
    phases: tuple[Phase, ...]
    rounds: int
    validated: bool = False  # after each round: early stopping, and the best weights are kept


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained: every setting that is not the model's own."""

    rounds: AtLeast1 = 30
    """The largest number of training rounds (n_u in the DEPS paper). After each one the validation part is
    ranked."""
    patience: AtLeast0 = 5
    """Training stops after this many rounds without a better validation metric."""
    batch_size: AtLeast1 = 512
    """The number of contexts in a batch, for losses that compare pairs."""
    sequences: AtLeast1 = 256
    """The number of sequences in a batch, for losses that read whole sequences."""
    negatives: AtLeast0 | None = None
    """How many negative items are sampled for each context. By default one where the log has fewer negatives
    of its own than positives, and otherwise none."""
    learning_rate: Positive = 1e-3
    """The learning rate of the optimizer."""
    weight_decay: NotNegative = 0.0
    """The weight decay (L2 penalty) of the optimizer."""
    gradient_norm: Positive = 5.0
    """Gradients are clipped to this norm."""
    valid_rows: AtLeast0 = 2000
    """How many positives of the validation part are ranked after each round; a fixed, seeded sample."""
    choose_by: Literal["auto", "ordinary", "balanced", "shown"] = "auto"
    """Which version of the validation part chooses the weights that recommend. The best weights by each
    version are kept, and every test is evaluated with the weights that its own version chose. `auto` is
    `balanced` for models that debias and `ordinary` for the others."""
    seed: AtLeast0 = 0
    """The seed of everything random: first weights, batches, negatives, dropout."""


class Recommender(nn.Module, ABC):
    """A model: built for what is `known` of users and items, measured on a split, trained in stages.

    A subclass with a name is registered by being defined:
    `class Mine(Recommender, name="mine", paper="..."): ...`
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Config: ClassVar[type[ModelConfig]]
    # The version of the validation part that chooses its weights, unless the training settings name one.
    choose_by: ClassVar[Criterion] = "ordinary"
    # Defaults of the training settings, where they are not the usual ones.
    recipe: ClassVar[dict[str, Any]] = {}
    # Named sets of settings; `paper` is what differs from the defaults in the model's paper.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    def __init_subclass__(cls, *, name: str = "", paper: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not name:
            return
        other = MODELS.get(name)
        if other is not None and (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
            where = f"{other.__module__}.{other.__qualname__}"
            raise BadInput(f"a model named {name!r} is registered already: {where}; choose another name")
        cls.name, cls.paper = name, paper
        MODELS[name] = cls

    def __init__(self, known: Known, config: ModelConfig) -> None:
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

    def measure(self, split: Split) -> None:
        """Count on the training part what the model needs and no gradient learns, into its buffers. Called
        once, before training; a stored run has the numbers among its weights."""

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


def build(kind: type[M], split: Split, config: ModelConfig) -> M:
    """A new network of this kind, made for a split and ready to be trained on it."""
    network = kind(split.known, config)
    network.measure(split)
    return network


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
        self, known: Known, config: HistoryConfig, width: int, deviation: float | None = None
    ) -> None:
        super().__init__(known, config)
        self.items = Embeddings(known.items, width, deviation)
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
