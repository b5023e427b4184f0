"""What every model has: scores for B contexts times C candidates, and the stages in which it learns.

A model is registered by the definition of its class. `Recommender` is the base of all models; `DotProduct`
and `NextItem` are bases for the two most common kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unskew.catalog import Catalog, DotCatalog, PlainCatalog
from unskew.config import AtLeast0, AtLeast1, NotNegative, Positive, Search, did_you_mean, register
from unskew.data.batch import Batch, Offset, SequenceBatch
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
# For the name of a family, what makes the model `family-NAME` of the model NAME.
FAMILIES: dict[str, Callable[[type["Recommender"]], type["Recommender"]]] = {}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The settings of a model. Each model has a subclass of its own."""


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(ModelConfig):
    """The settings of a model that reads the user's past."""

    history: AtLeast1 = HISTORY
    """The number of past items of a user that the model reads: the newest ones."""


def adam(
    parameters: Iterable[nn.Parameter], learning_rate: float, weight_decay: float
) -> torch.optim.Optimizer:
    """The Adam optimizer, which phases use if they name no other."""
    return torch.optim.Adam(parameters, lr=learning_rate, weight_decay=weight_decay, fused=True)


# What `Phase.batches` may be.
Kind = Literal["pairs", "positives", "prefixes", "histories", "sequences"]
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
        `histories`  whole histories of users, cut into windows; each event is a target once (SequenceBatch)
        `sequences`  whole histories of users and whole audiences of items (SequenceBatch)
    loss: the loss of such a batch.
    parameters: the parameters that are trained.
    epochs: how many epochs a round has.
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
    epochs: int = 1
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
    """A number of rounds, each of which goes through the same phases.

    Stages describe a training algorithm as data, and one training loop walks through them.

    validated: whether the validation part is ranked after each round, to stop early and to keep the best
        weights.
    """

    name: str
    phases: tuple[Phase, ...]
    rounds: int
    validated: bool = False


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained: every setting that is not the model's own."""

    rounds: AtLeast1 = 30
    """The largest number of training rounds (n_u in the DEPS paper). After each one the validation part is
    ranked."""
    patience: AtLeast0 = 5
    """Training stops after this many rounds without a better validation metric."""
    batch_size: Annotated[AtLeast1, Search.among(1024, 2048, 4096)] = 512
    """The number of contexts in a batch, for losses that compare pairs."""
    sequences: Annotated[AtLeast1, Search.among(64, 128, 256)] = 256
    """The number of sequences in a batch, for losses that read whole sequences."""
    negatives: AtLeast0 | None = None
    """How many negative items are sampled for each context. By default one where the log has fewer negatives
    of its own than positives, and otherwise none."""
    learning_rate: Annotated[Positive, Search(1e-4, 1e-3, log=True)] = 1e-3
    """The learning rate of the optimizer."""
    weight_decay: NotNegative = 0.0
    """The weight decay (L2 penalty) of the optimizer."""
    gradient_norm: Positive = 5.0
    """Gradients are clipped to this norm."""
    valid_rows: AtLeast0 = 2000
    """How many positives of the validation part are ranked after each round: a fixed, seeded sample."""
    choose_by: Literal["auto", "ordinary", "balanced", "shown"] = "auto"
    """Which version of the validation part chooses the weights that recommend. The best weights by each
    version are kept, and every test is evaluated with the weights that its own version chose. `auto` is
    `balanced` for models that debias and `ordinary` for the others."""
    seed: AtLeast0 = 0
    """The seed of everything random: initial weights, order of batches, negatives and dropout."""


class Recommender(nn.Module, ABC):
    """The base class of all models.

    A model is built from what is `known` of users and items, counts what it needs on a split (`measure`), and
    is trained in stages. A subclass that has a name is registered by being defined: `class Mine(Recommender,
    name="mine", paper="..."): ...`. Its settings are its nested class `Config`.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Config: ClassVar[type[ModelConfig]]
    # Which version of the validation part chooses the model's weights, unless the training settings name one.
    choose_by: ClassVar[Criterion] = "ordinary"
    # The model's own defaults of training settings.
    recipe: ClassVar[dict[str, Any]] = {}
    # Where `unskew tune` looks for training settings, if not where `Training` says.
    searched: ClassVar[dict[str, Search]] = {}
    # Named sets of settings. `paper` holds the values of the model's paper that differ from the defaults.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}
    # Whether it reads nothing of a log but its views, so that it can rank a live log as it is.
    follows: ClassVar[bool] = False
    # What it knows somebody by: at least one past item that training saw, or being a user whom training saw.
    # Of people without either it has nothing to say. A model that knows nobody by an id has an empty tuple.
    knows_by: ClassVar[tuple[Literal["items", "user"], ...]] = ()

    def __init_subclass__(cls, *, name: str = "", paper: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not name:
            return
        cls.name, cls.paper = name, paper
        register(MODELS, name, cls, "a model")

    def __init__(self, known: Known, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._sizes = known.users.size, known.items.size

    @classmethod
    def settled(cls, config: Any, split: Split) -> Any:
        """The settings with everything chosen that depends on what the log holds. `config` is one of this
        model's; what is settled stays as it is."""
        return config

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """The logits of each candidate in each context, (B, C). It must not read the labels of the batch."""

    @abstractmethod
    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The stages in which the model learns.

        rounds: the largest number of rounds of the validated stage.
        """

    @property
    def history(self) -> int:
        """How many past items of a user the model reads."""
        return int(getattr(self.config, "history", 0))

    @property
    def audience(self) -> int | None:
        """How many past users of an item the model reads; None is all of them."""
        return int(getattr(self.config, "audience", 0))

    @property
    def window(self) -> int:
        """How many events of a user are trained on together, in phases that read whole histories."""
        return self.history

    def knows(self, context: Batch) -> Tensor:
        """Of which contexts the model has something to say that it would not say of anybody, (B,)."""
        users, items = self._sizes
        found = torch.full((len(context.user_B),), not self.knows_by)
        if "items" in self.knows_by:
            found |= (is_real(context.history_BL) & (context.history_BL < items)).any(1)
        if "user" in self.knows_by:
            found |= context.user_B < users
        return found

    def measure(self, split: Split) -> None:
        """Count on the training part, before training, what the model needs and no gradient learns, into its
        buffers: a saved run holds them among its weights."""

    def measure_again(self, split: Split) -> None:
        """The same for a network that goes on learning. What its weights rely on stays as it is."""
        self.measure(split)

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        """Choices that no gradient can make, each as entries of the model's state.

        Before training, each one is tried once on the validation part, and the best is kept.
        """
        return []

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        """The scores of all items at times from `first` up to `last`. A model may override this with
        something faster that gives the same scores as `forward`."""
        return PlainCatalog(self.forward, log, self.audience)

    @property
    def dial(self) -> float:
        """The dial of the scores that `forward` gives: with 0 they say what will be clicked in a log like
        this one, with 1 what would be clicked if every item were exposed alike. In between, and for any
        model, scores = those at 0 - dial * log exposure."""
        return 0.0

    @property
    def dials(self) -> tuple[float, ...]:
        """The dials that the validation part chooses from; none for models whose dial is not chosen."""
        return ()

    def turn(self, dial: float) -> None:
        """Keep another dial, for models that have `dials` to choose from."""
        raise NotImplementedError(f"{self.name} has no dial to choose")

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        """The logarithm of how exposed each item is at each time, whoever asks, up to a constant per time.
        The two are broadcast. Models that do not know it have no dial."""
        raise BadInput(
            f"{self.name} does not know how exposed an item is, so it has no dial: pulse has one, and so has "
            f"debiased-{self.name} with an estimator of exposure"
        )

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Numbers about the model for the record of a round, beside its losses. The batch is a fixed sample
        of training pairs."""
        return {}

    def reached(self) -> set[str]:
        """The names of the parameters that some stage trains."""
        trained = {id(p) for stage in self.stages(1) for phase in stage.phases for p in phase.parameters()}
        return {name for name, parameter in self.named_parameters() if id(parameter) in trained}


def build(kind: type[M], split: Split, config: ModelConfig) -> M:
    """A new model of this kind, built for a split and ready to be trained on it."""
    network = kind(split.known, kind.settled(config, split))
    network.measure(split)
    return network


def model_named(name: str) -> type[Recommender]:
    """The model of this name, or the member of a family that it names, such as `debiased-sasrec`."""
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
    """The parameters of some modules, in this order; None has no parameters."""
    found: list[nn.Parameter] = []
    for module in modules:
        if isinstance(module, nn.Parameter):
            found.append(module)
        elif module is not None:
            found.extend(module.parameters())
    return found


class DotProduct(Recommender):
    """A model whose scores are dot products of a vector per context and a vector per item.

    The scores of the whole catalogue then cost only one matrix product.
    """

    follows = True

    @abstractmethod
    def context(self, batch: Batch) -> Tensor:
        """A vector for each context, (B, D)."""

    @abstractmethod
    def vectors(self, item: Tensor) -> Tensor:
        """A vector for each item, (..., D)."""

    def forward(self, batch: Batch) -> Tensor:
        return torch.einsum("bd,bcd->bc", self.context(batch), self.vectors(batch.candidates_BC))

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return DotCatalog(self, log.items)


class NextItem(DotProduct):
    """A network that reads a history once, oldest item first, and has a state after each item.

    `encode` must be causal, so that one pass gives the states of all prefixes. Before the first item the
    state is a learned vector, `start`. It answers for an empty history; the papers of these models do not say
    what a new user gets.

    width: the width of the item embeddings and of the states.
    deviation: the standard deviation of the initial item embeddings; by default 1 / sqrt(width).
    """

    knows_by = ("items",)

    def __init__(
        self, known: Known, config: HistoryConfig, width: int, deviation: float | None = None
    ) -> None:
        super().__init__(known, config)
        self.items = Embeddings(known.items, width, deviation)
        self.start = nn.Parameter(torch.zeros(width))

    @abstractmethod
    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        """The state after each item, (B, L, D), of histories that are padded on the right."""

    def beginning(self, user_B: Tensor) -> Tensor:
        """The state before the first item, (B, D)."""
        return self.start.expand(len(user_B), -1)

    def states(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        """The states after 0, 1, ..., L items, (B, L + 1, D), of histories that are padded on the right."""
        beginning = self.beginning(user_B)[:, None]
        return torch.cat([beginning, self.encode(user_B, ids_BL)], dim=1) if ids_BL.shape[1] else beginning

    def context(self, batch: Batch) -> Tensor:
        lengths = is_real(batch.history_BL).sum(1)
        return self.states(batch.user_B, right_padded(batch.history_BL))[torch.arange(len(lengths)), lengths]

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        phase = Phase("next item", "histories", self.next_item_loss, self.parameters)
        return (Stage("train", (phase,), rounds, validated=True),)

    def next_item_loss(self, batch: SequenceBatch) -> Tensor:
        """The mean loss of each event given those strictly before it. One pass gives the states of all
        prefixes."""
        row_N, past_N, target_N, weight_N, offset = batch.targets()
        states_BLD = self.states(batch.user_B, read_before(batch.items_BL, past_N))
        return self.loss_of(states_BLD[row_N, past_N], target_N, weight_N, offset)

    def loss_of(
        self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None, offset: Offset | None = None
    ) -> Tensor:
        """The weighted mean loss of targets, given the states before them: cross-entropy among all items,
        unless overridden. The offset is added to the logits."""
        vectors_VD = self.items.table()
        if offset is not None:
            states_ND, vectors_VD = offset.beside(states_ND, vectors_VD)
        return cross_entropy(states_ND, vectors_VD, targets_N, weight_N) / max(len(targets_N), 1)
