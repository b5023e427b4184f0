"""What every model has: scores for B contexts times C candidates, and the stages in which it learns.

A model is registered by the definition of its class. `Recommender` is the base of all models; `DotProduct`
and `NextItem` are bases for the two most common kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unskew.core.config import (
    AtLeast0,
    AtLeast1,
    NotNegative,
    Positive,
    Search,
    Settings,
    Softmax,
    did_you_mean,
    register,
)
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, Offset, SequenceBatch
from unskew.data.log.held_out import Criterion
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import HISTORY, PAD
from unskew.nn.layers import Embeddings, is_real, read_before, right_padded
from unskew.nn.losses import click_loss, cross_entropy, divisor
from unskew.nn.phases import Phase, Stage
from unskew.nn.scoring import Catalog, DotCatalog, PlainCatalog
from unskew.propensity.correction import Correction

M = TypeVar("M", bound="Recommender")

MODELS: dict[str, type["Recommender"]] = {}
# For the name of a family, what makes the model `family-NAME` of the model NAME.
FAMILIES: dict[str, Callable[[type["Recommender"]], type["Recommender"]]] = {}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The settings of a model. Each model has a subclass of its own."""

    @property
    def idle_settings(self) -> set[str]:
        """The settings that change nothing, given the others."""
        return set()


@dataclass(frozen=True, kw_only=True)
class HistoryConfig(ModelConfig):
    """The settings of a model that reads the user's past."""

    history: AtLeast1 = HISTORY
    """The number of past items of a user that the model reads: the newest ones."""


@dataclass(frozen=True, kw_only=True)
class Training:
    """How a model is trained: every setting that is not the model's own."""

    epochs: AtLeast1 = 30
    """The largest number of training epochs (n_u in the DEPS paper). After each one the validation set is
    ranked."""
    patience: AtLeast0 = 5
    """Training stops after this many epochs without a better validation metric."""
    batch_size: Annotated[AtLeast1, Search.among(1024, 2048, 4096)] = 512
    """The number of contexts in a batch, for losses that compare pairs."""
    sequences: Annotated[AtLeast1, Search.among(64, 128, 256)] = 256
    """The number of sequences in a batch, for losses that read whole sequences."""
    negatives: AtLeast0 | None = None
    """How many negative items are sampled for each context. By default one where the log has fewer
    negatives of its own than positives, and otherwise none."""
    learning_rate: Annotated[Positive, Search(1e-4, 1e-3, log=True)] = 1e-3
    """The learning rate of the optimizer."""
    weight_decay: NotNegative = 0.0
    """The weight decay (L2 penalty) of the optimizer."""
    gradient_norm: Positive = 5.0
    """Gradients are clipped to this norm."""
    valid_examples: AtLeast0 = 2000
    """How many positives of the validation set are ranked after each epoch: a fixed, seeded sample."""
    select_by: Literal["auto", "ordinary", "balanced", "shown", "frozen", "frozen-balanced"] = "auto"
    """Which validation metric chooses the weights that recommend. The best weights by each
    version are kept, and every test is evaluated with the weights that its own version chose. `auto` is
    `balanced` for models that debias and `ordinary` for the others. `frozen` is for lists that are made long
    before they are read, such as those of a weekly mail, and `frozen-balanced` for such lists where every
    item counts the same; models that read what other users do have them."""
    softmax: Softmax = "auto"
    """Whether a softmax over all ids of a vocabulary scores all of them (`full`), or the target and 2,048 ids
    that are drawn uniformly and corrected by log Q (`sampled`), where gradients and Adam then have the rows
    of the batch alone. `auto` samples vocabularies of more than 100,000 ids; the card of a run says what was
    used."""
    seed: AtLeast0 = 0
    """The seed of everything random: initial weights, order of batches, negatives and dropout."""


class Recommender(nn.Module, ABC):
    """The base class of all models.

    A model is built for the users and items of the training set, computes the statistics that it needs on a
    split (`fit_statistics`), and is trained in stages. A subclass with a name is registered when it is
    defined: `class Mine(Recommender, name="mine", paper="..."): ...`. Its settings are its nested class
    `Config`. A subclass must implement `forward`, and `phases` or `stages` if gradients train it.
    `unskew.testing.check_model` checks a model of one's own.

    Parameters
    ----------
    known
        The users and items of the training set. All shapes of the model depend on this alone.
    config
        The model's settings, an instance of its `Config`.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    Config: ClassVar[type[ModelConfig]] = ModelConfig
    # Which validation metric chooses the model's weights, unless the training settings name one.
    select_by: ClassVar[Criterion] = "ordinary"
    # The model's own defaults of training settings.
    recipe: ClassVar[Settings] = {}
    # Where `unskew tune` looks for training settings, if not where `Training` says.
    searched: ClassVar[dict[str, Search]] = {}
    # Named sets of settings. `paper` holds the values of the model's paper that differ from the defaults.
    presets: ClassVar[dict[str, Settings]] = {}
    # Whether it reads nothing of a log but its views, so that it can rank a live log as it is.
    supports_live_log: ClassVar[bool] = False
    # Whether validation makes frozen lists, too. Of a model that reads what others did up to the request,
    # frozen lists ask for other weights or settings than live ones.
    validates_frozen: ClassVar[bool] = False
    # By what it knows a user: by at least one past item that training saw, or because training saw the user.
    # For other users its scores are the same for all. A model that knows no user by an id has an empty tuple.
    knows_by: ClassVar[tuple[Literal["items", "user"], ...]] = ()
    # Whether nothing in it belongs to a user or an item: all that it knows of them is read from the log, so
    # an update need not learn from the events that judged it.
    is_free_of_ids: ClassVar[bool] = False
    # The context types whose events are in the histories that it is trained on.
    context_types: tuple[str, ...] = ()
    # Whether the loss of a batch is a mean over its rows, so that several ranks can have parts of the batch.
    splits_batches: ClassVar[bool] = True
    # What its loss makes of propensities; None for a model without any.
    correction: Correction | None = None

    def __init_subclass__(cls, *, name: str = "", paper: str = "", **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if not name:
            return
        cls.name, cls.paper = name, paper
        if str(cls.Config.__doc__).startswith("Config("):  # what a dataclass without a docstring has
            cls.Config.__doc__ = f"The settings of {name}."
        register(MODELS, name, cls, "a model")

    def __init__(self, known: Known, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self._sizes = known.users.size, known.items.size

    @classmethod
    def resolve_auto(cls, config: Any, split: Split) -> Any:
        """The settings with every value chosen that depends on the contents of the log. Values that are
        already chosen stay as they are."""
        return config

    @classmethod
    def required_classes(cls, config: Any) -> tuple[type, ...]:
        """The models and estimators that a run with these settings needs: this class, and the classes of its
        parts that other packages may define."""
        return (cls,)

    @abstractmethod
    def forward(self, batch: Batch) -> Tensor:
        """The logits of C candidates in each of B contexts, (B, C). The model must not read the labels of the
        batch."""

    def phases(self) -> tuple[Phase, ...]:
        """What a model of one stage trains in each epoch; by default nothing is learned by gradients."""
        return ()

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        """The stages in which the model learns, of which the validated one has at most so many epochs; by
        default one stage with the model's `phases`, if it has any."""
        phases = self.phases()
        return (Stage("train", phases, epochs, validated=True),) if phases else ()

    @property
    def history(self) -> int:
        """How many past items of a user the model reads."""
        return self.config.history if isinstance(self.config, HistoryConfig) else 0

    @property
    def audience(self) -> int | None:
        """How many past users of an item the model reads; None is all of them."""
        return 0

    @property
    def window(self) -> int:
        """How many events of a user are trained on together, in phases that read whole histories."""
        return self.history

    def knows(self, context: Batch) -> Tensor:
        """Whether the scores of each context depend on whose it is (see `knows_by`), (B,). The candidates of
        the contexts are not read."""
        users, items = self._sizes
        is_known = torch.full_like(context.user_B, not self.knows_by, dtype=torch.bool)
        if "items" in self.knows_by:
            is_known |= (is_real(context.history_BL) & (context.history_BL < items)).any(1)
        if "user" in self.knows_by:
            is_known |= context.user_B < users
        return is_known

    def fit_statistics(self, split: Split) -> None:
        """Compute the statistics that no gradient learns, before training, from the training set alone. They
        are stored in buffers of the model, so a saved run has them among its weights."""

    def refresh_statistics(self, split: Split) -> None:
        """Compute the statistics again for a network that continues to learn on a longer log. Statistics that
        its weights rely on, such as the scaling of inputs, must stay as they are."""
        self.fit_statistics(split)

    def share_readings(self, other: "Recommender", split: Split) -> None:
        """Keep what is read of a log for contexts after the end of training, so that this network and another
        one of the same kind read it once. By default every network reads for itself."""

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        """Choices that no gradient can make, each as entries of the model's state. Before training, each one
        is tried once on the validation set, and the best is kept. Only the training set may be read here."""
        return []

    def starting_points(self) -> list[dict[str, Tensor]]:
        """States that are validated before training, as epoch 0. The best one is kept unless training
        improves on it. By default there are none, because untrained weights are random."""
        return []

    def untrained(self, config: Any) -> Any:
        """The settings of a model that stays at its starting point, because no epoch improved on it."""
        return config

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        """What is computed once to score all items at times from `first` up to, and not including, `last`, in
        ticks. A model may override this with a faster catalogue that gives the same scores as `forward`. Of
        the log, the events before a context's time may be read."""
        return PlainCatalog(self.forward, log, self.audience)

    def dot_catalog(self, catalog: Catalog) -> DotCatalog | None:
        """The vectors of all items in a catalogue of this model; None for a model without such vectors."""
        return catalog if isinstance(catalog, DotCatalog) else None

    def renew_catalog(self, catalog: Catalog, log: LogView, first: int, last: int) -> Catalog:
        """A catalogue for a log that continues the log of an older catalogue. A model may reuse the parts
        that have not changed; the scores are those of a catalogue that is made from the newer log alone."""
        return self.catalog(log, first, last)

    @property
    def debias(self) -> float:
        """The debiasing strength of the scores that `forward` gives: with 0 they say what will be clicked in
        a log like this one, with 1 what would be clicked if every item were exposed equally. In between, and
        for any model, scores = those at 0 - debias * log exposure."""
        return 0.0

    @property
    def strengths(self) -> tuple[float, ...]:
        """The strengths that the validation set chooses from; none for models whose debias is not chosen."""
        return ()

    def set_debias(self, debias: float) -> None:
        """Set the debiasing strength, from 0 to 1, of a model that has `strengths` to choose from."""
        raise NotImplementedError(f"{self.name} has no debiasing strength to choose")

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        """The logarithm of the exposure of each item at each time in ticks, independent of the user and up to
        a constant per time; items and times are broadcast. Only events strictly before a time may be read. A
        model that does not override this has no debiasing strength."""
        raise BadInput(
            f"{self.name} does not know how exposed an item is, so it has no debiasing strength: pulse has "
            f"one, and so has debiased-{self.name} with an estimator of exposure"
        )

    @property
    def exported(self) -> "DotProduct | None":
        """The network that a file for other programs can hold; None if there is none."""
        return None

    def statistics(self, batch: Batch) -> dict[str, float]:
        """Numbers about the model, by name, that are recorded in each epoch beside its losses, from a fixed
        sample of training pairs."""
        return {}

    def trained_parameter_names(self) -> set[str]:
        """The names of the parameters that some stage trains."""
        trained = {id(p) for stage in self.stages(1) for phase in stage.phases for p in phase.parameters()}
        return {name for name, parameter in self.named_parameters() if id(parameter) in trained}


def build(kind: type[M], split: Split, config: ModelConfig) -> M:
    """A new model of this kind, built for a split and ready to be trained on it."""
    network = kind(split.known, kind.resolve_auto(config, split))
    network.fit_statistics(split)
    return network


def model_named(name: str) -> type[Recommender]:
    """The model of this name, or the member of a family that it names, such as `debiased-sasrec`."""
    family, _, rest = name.partition("-")
    if name not in MODELS and family in FAMILIES and rest in MODELS:
        return FAMILIES[family](MODELS[rest])
    if name not in MODELS:
        more = "".join(f", {family}-NAME" for family in FAMILIES)
        everything = [*MODELS, *(f"{family}-{model}" for family in FAMILIES for model in MODELS)]
        raise BadInput(
            f"no model {name!r}{did_you_mean(name, everything)}; there are {', '.join(sorted(MODELS))}{more}"
        )
    return MODELS[name]


class DotProduct(Recommender):
    """A model whose scores are dot products of a vector per context and a vector per item, so that those of
    the whole catalogue cost only one matrix product. A subclass must implement `context`, `vectors` and
    `phases`, and `read_histories` if it can be exported (`is_exportable`)."""

    supports_live_log = True
    # Whether a history of items decides the vector of a context, so that the model can be exported.
    is_exportable: ClassVar[bool] = False

    @property
    def exported(self) -> "DotProduct | None":
        return self if self.is_exportable else None

    def read_histories(self, ids_BL: Tensor) -> Tensor:
        """The vector of each context, (B, D), from histories alone, which are padded on the left. Models that
        can be exported implement this. Its steps must not depend on values, because the exported file
        contains a fixed sequence of steps."""
        raise NotImplementedError(f"{self.name} cannot be exported")

    @abstractmethod
    def context(self, batch: Batch) -> Tensor:
        """The vector of each context, (B, D). The candidates of the batch are not read."""

    @abstractmethod
    def vectors(self, item: Tensor) -> Tensor:
        """The vector of each item, (..., D), from codes of any shape."""

    def forward(self, batch: Batch) -> Tensor:
        return torch.einsum("bd,bcd->bc", self.context(batch), self.vectors(batch.candidates_BC))

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return DotCatalog(self, log.items)

    def renew_catalog(self, catalog: Catalog, log: LogView, first: int, last: int) -> Catalog:
        if isinstance(catalog, DotCatalog):
            return catalog.renewed(log, first, last)
        return self.catalog(log, first, last)


class ClickModel(Recommender):
    """A network that predicts whether each pair is clicked, one pair at a time."""

    knows_by = ("items",)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("clicks", "pairs", self.click_loss, self.parameters),)

    def click_loss(self, batch: Batch) -> Tensor:
        """The binary cross-entropy of clicks."""
        return click_loss(batch.with_offset(self(batch)), batch.labels_BC, batch.weight_BC)


class NextItem(DotProduct):
    """A network that reads a history once, oldest item first, and has a state after each item.

    A subclass must implement `encode`, which must be causal, so that one pass gives the states of all
    prefixes. The state before the first item is a learned vector, `start`, which is used for an empty
    history. The papers of these models do not define the state of a new user.

    deviation: the standard deviation of the initial item embeddings; by default 1 / sqrt(width).
    """

    knows_by = ("items",)

    def __init__(
        self, known: Known, config: HistoryConfig, width: int, deviation: float | None = None
    ) -> None:
        super().__init__(known, config)
        self.items = self.embeddings(known, width, deviation)
        self.start = nn.Parameter(torch.zeros(width))

    def embeddings(self, known: Known, width: int, deviation: float | None) -> Embeddings:
        """The embeddings of items, in histories and as candidates."""
        return Embeddings(known.items, width, deviation)

    @abstractmethod
    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        """The state after each item of some histories, which are padded on the right, (B, L, D)."""

    def beginning(self, user_B: Tensor) -> Tensor:
        """The state before the first item, (B, D)."""
        return self.start.expand(len(user_B), -1)

    def states(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        """The states after 0, 1, ..., L items, (B, L + 1, D)."""
        beginning = self.beginning(user_B)[:, None]
        return torch.cat([beginning, self.encode(user_B, ids_BL)], dim=1) if ids_BL.shape[1] else beginning

    def context(self, batch: Batch) -> Tensor:
        lengths = is_real(batch.history_BL).sum(1)
        rows = torch.arange(len(lengths), device=lengths.device)
        return self.states(batch.user_B, right_padded(batch.history_BL))[rows, lengths]

    def read_histories(self, ids_BL: Tensor) -> Tensor:
        L, lengths_B1 = ids_BL.shape[1], is_real(ids_BL).sum(1, keepdim=True)
        place_BL = torch.arange(L, device=ids_BL.device) + L - lengths_B1
        ids_BL = ids_BL.gather(1, place_BL.clamp(max=L - 1)).masked_fill(place_BL >= L, PAD)
        states_BLD = self.encode(ids_BL[:, 0], ids_BL)
        newest_B11 = (lengths_B1 - 1).clamp(min=0)[..., None]
        state_BD = states_BLD.gather(1, newest_B11.expand(-1, -1, states_BLD.shape[2])).squeeze(1)
        return torch.where(lengths_B1 > 0, state_BD, self.start)

    def vectors(self, item: Tensor) -> Tensor:
        return self.items(item)

    def phases(self) -> tuple[Phase, ...]:
        return (Phase("next item", "histories", self.next_item_loss, self.parameters),)

    def next_item_loss(self, batch: SequenceBatch) -> Tensor:
        """The mean loss of each event given those strictly before it. One pass gives the states of all
        prefixes."""
        row_N, past_N, target_N, weight_N, offset = batch.targets()
        states_BLD = self.states(batch.user_B, read_before(batch.items_BL, past_N))
        return self.loss_of(states_BLD[row_N, past_N], target_N, weight_N, offset)

    def loss_of(
        self, states_ND: Tensor, targets_N: Tensor, weight_N: Tensor | None, offset: Offset | None = None
    ) -> Tensor:
        """The weighted mean loss of targets, given the state before each: cross-entropy among all items,
        unless it is overridden. The offset is added to the logits."""
        total = cross_entropy(states_ND, self.items, targets_N, weight_N, offset=offset)
        return total / divisor(len(targets_N))
