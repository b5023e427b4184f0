"""Any recommender, debiased: `debiased-gru4rec` is GRU4Rec with its own loss, in which a propensity says how
likely each item, or each pair, was to be observed.

`method` says what the loss makes of it (`unskew.propensity.correction` has the equations), `propensity` how
it is estimated. With `auto`, both are chosen by what the log holds:

    the log has impressions    propensity `exposure`; nothing is weighted (`ips` of strength 0) for losses of
                               single pairs that read them: these learn what is liked of what is shown, and
                               weights did harm; `weighted-negatives` for those that draw
                               their own
    the log has clicks alone   propensity `power`; `weighted-negatives` for losses of single pairs
    either                     `logit-offset` for losses that compare items: softmax, BPR; half of the
                               propensity is taken out, because that came nearer to the ground truth than all
                               (docs/ground-truth.md)

The preset `paper` is the paper's claim that its weights fit every backbone (Table model-agnostic): two GRUs,
both sides weighted. Its stage 1 trains the estimator; stage 2 alternates between estimator and backbone. For
the weights, `weights` is one of

    clipped    w = alpha / max(P(i, h_u), M) + (1 - alpha) / max(P(u, h_i), M), times M
               the bias grows with M; the variance is at most (1/M - 1) delta^2 per pair before the factor M
    ips        the same with P instead of max(P, M), divided by its mean in training
               unbiased with the true propensities; the variance has no bound
    snips      the clipped weights, divided by their mean in the batch
               a bias of order 1/n for n pairs; the scale of the loss does not change

    P(i, h_u)  the propensity of the item given the user's history (the item view); alpha is its weight
    P(u, h_i)  the propensity of the user given the item's audience (the user view)
    M          the clip, the lower bound of propensities
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Annotated, Any, ClassVar

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unskew.core.config import Alpha, AtLeast0, AtLeast1, Clip, NotNegative, Search
from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, SequenceBatch
from unskew.data.log.held_out import Criterion
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import AUDIENCE, HISTORY
from unskew.models.base import FAMILIES, DotProduct, ModelConfig, Recommender
from unskew.nn.debias import apply_debias, scores_at
from unskew.nn.phases import Phase, Stage
from unskew.nn.scoring import Catalog, DotCatalog
from unskew.propensity.correction import Correction, Method, Scale, idle_settings, resolve_auto_settings
from unskew.propensity.estimators import (
    Needs,
    Propensity,
    PropensityScale,
    Unit,
    estimator,
    estimator_named,
)

LEAST = 1e-9  # the clip of `ips`, only so that nothing is divided by zero


@dataclass(frozen=True, kw_only=True)
class Weighting(ModelConfig):
    """How propensities are estimated, and what the backbone's loss makes of them."""

    method: Method = "auto"
    """What the loss makes of a propensity: its logarithm is added to the logits while training
    (`logit-offset`), sampled negatives are weighted by it (`weighted-negatives`), observed pairs by its
    inverse (`ips`), or both observed pairs and sampled negatives, as in the paper (`ips-both`). `auto` goes
    by the log and by the loss."""
    propensity: str = "auto"
    """How the propensity P(o = 1) is estimated: from impressions (`exposure`), from clicks alone
    (`power`), by two GRUs (`dual`), by one of them (`item`, `user`), by frequencies (`item-pro`, `user-pro`,
    `item-user-pro`), as logged (`logged`), not at all (`none`), or by a registered estimator of your own.
    `auto` is `exposure` or `power`, by what the log holds."""
    strength: Annotated[NotNegative, Search(0.0, 1.0)] | None = None
    """How much of the propensity is taken out, 1 is all of it. By default 1/2, and 1 for `ips-both`; 0 where
    `auto` is to choose everything, and the loss reads what was shown and not clicked."""
    weights: Scale = "clipped"
    """How weights are scaled: clipped propensities (`clipped`), plain ones (`ips`), or clipped ones with
    the weights divided by their mean in the batch (`snips`)."""
    alpha: Alpha = 0.5
    """The weight of the item view, which is an item's propensity given the user's history. The user view, a
    user's propensity given the item's audience, has the rest."""
    clip: Clip = 0.05
    """The lower bound of propensities; smaller ones are raised to it (M). `ips` does not use it."""
    past_items: AtLeast1 = HISTORY
    """The number of past items of a user that the estimator reads: the newest ones."""
    past_users: AtLeast0 = AUDIENCE
    """The number of past users of an item that the estimator reads: the newest ones."""
    propensity_width: AtLeast1 = 64
    """The width of the estimator's embeddings and hidden states."""
    gru_layers: AtLeast1 = 1
    """The number of layers of each of the estimator's GRUs."""
    propensity_scale: PropensityScale = "softmax"
    """How the GRUs (`dual`, `item`, `user`) make a propensity of their logits: a softmax over all ids, as the
    paper has it, or where a logit lies between the smallest (0) and the largest (1) of all ids (`min-max`),
    as a comment in the paper's source has it."""
    propensity_epochs: AtLeast0 = 5
    """The number of epochs of stage 1, which trains the estimator alone (n_p)."""
    propensity_passes: AtLeast0 = 1
    """The number of epochs of the estimator in each epoch of stage 2, which trains the backbone (n_b)."""

    def __post_init__(self) -> None:
        if self.propensity != "auto":
            estimator_named(self.propensity)  # or an error that says which names there are

    @property
    def idle_settings(self) -> set[str]:
        clip = {"clip"} if self.weights == "ips" else set()
        return clip | idle_settings(self.propensity, self.method)


class Debiased(Recommender):
    """A backbone whose loss uses propensities.

    The estimator has embeddings of its own, because not every backbone has embeddings.
    """

    Backbone: ClassVar[type[Recommender]]
    select_by: ClassVar[Criterion] = "balanced"
    config: Any
    correction: Correction

    def __init__(self, known: Known, config: Any) -> None:
        super().__init__(known, config)
        self.backbone = self.Backbone(known, config.backbone)
        clip = LEAST if config.weights == "ips" else config.clip
        width, layers = config.propensity_width, config.gru_layers
        scale = config.propensity_scale
        needs = Needs(known=known, alpha=config.alpha, clip=clip, width=width, layers=layers, scale=scale)
        self.propensity = estimator(config.propensity, needs)
        past = config.past_items, config.past_users
        self.correction = Correction(self.propensity, config.method, config.strength, config.weights, past)

    @classmethod
    def resolve_auto(cls, config: Any, split: Split) -> Any:
        config = replace(config, backbone=cls.Backbone.resolve_auto(config.backbone, split))
        with torch.random.fork_rng(devices=[]):  # only to ask which losses it has
            stages = cls.Backbone(split.known, config.backbone).stages(1)
        phases = [phase for stage in stages for phase in stage.phases if phase.weighted]
        reads_shown = any(phase.batches in ("pairs", "prefixes") for phase in phases)
        return resolve_auto_settings(config, split, all(phase.separate for phase in phases), reads_shown)

    @classmethod
    def required_classes(cls, config: Any) -> tuple[type, ...]:
        return (*cls.Backbone.required_classes(config.backbone), estimator_named(config.propensity))

    def fit_statistics(self, split: Split) -> None:
        self.backbone.fit_statistics(split)
        self.correction.fit_statistics(split)

    def refresh_statistics(self, split: Split) -> None:
        self.backbone.refresh_statistics(split)
        self.correction.fit_statistics(split)

    # As a recommender, it is its backbone

    @property
    def history(self) -> int:
        mine, its = self.config.past_items, self.backbone.history
        return its if self.plain else max(mine, its)

    @property
    def audience(self) -> int | None:
        mine, its = self.config.past_users, self.backbone.audience
        return its if its is None or self.plain else max(mine, its)

    @property
    def exported(self) -> DotProduct | None:
        return self.backbone.exported

    @property
    def window(self) -> int:
        return self.backbone.window

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        return [
            {f"backbone.{name}": value for name, value in option.items()}
            for option in self.backbone.options(split)
        ]

    def forward(self, batch: Batch) -> Tensor:
        return self.backbone(self._own(batch))

    def knows(self, context: Batch) -> Tensor:
        return self.backbone.knows(self._own(context))

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return _Shorter(self, self.backbone.catalog(log, first, last))

    def dot_catalog(self, catalog: Catalog) -> DotCatalog | None:
        assert isinstance(catalog, _Shorter)
        return self.backbone.dot_catalog(catalog.catalog)

    def renew_catalog(self, catalog: Catalog, log: LogView, first: int, last: int) -> Catalog:
        assert isinstance(catalog, _Shorter)
        return _Shorter(self, self.backbone.renew_catalog(catalog.catalog, log, first, last))

    @property
    def debias(self) -> float:
        return self.backbone.debias if self.plain else self.correction.debias

    @property
    def strengths(self) -> tuple[float, ...]:
        return self.backbone.strengths if self.plain else ()

    def set_debias(self, debias: float) -> None:
        self.backbone.set_debias(debias)

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return (self.backbone if self.plain else self.propensity).log_exposure(log, item, time)

    @property
    def plain(self) -> bool:
        """Whether nothing is estimated, so that this is the backbone and nothing else."""
        return bool(self.config.propensity == "none")

    def statistics(self, batch: Batch) -> dict[str, float]:
        estimated = self.propensity.statistics(batch.truncate(self.config.past_items, self.config.past_users))
        return estimated | self.backbone.statistics(self._own(batch))

    def _own(self, batch: Batch) -> Batch:
        """The batch with no more of the past than the backbone reads."""
        return batch.truncate(self.backbone.history, self.backbone.audience)

    # How it learns

    def starting_points(self) -> list[dict[str, Tensor]]:
        """Those of the backbone are no match for a loss that is corrected for exposure, unless it is not."""
        states = self.backbone.starting_points() if self.plain else []
        return [{f"backbone.{name}": value for name, value in state.items()} for state in states]

    def untrained(self, config: Any) -> Any:
        return replace(config, backbone=self.backbone.untrained(config.backbone))

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        its = tuple(
            replace(stage, phases=tuple(map(self._corrected, stage.phases)))
            for stage in self.backbone.stages(epochs)
        )
        first = self.correction.phases(prefix="estimator: ")
        if not first or not its:
            return its
        again = self.correction.phases(self.config.propensity_passes, "estimator: ")
        its = tuple(
            replace(stage, phases=(*again, *stage.phases)) if stage.validated else stage for stage in its
        )
        return Stage("estimator", first, self.config.propensity_epochs), *its

    def _corrected(self, phase: Phase) -> Phase:
        """A phase of the backbone whose batches carry weights or offsets."""

        def loss(batch: Any) -> Tensor:
            if phase.weighted and not self.plain:
                if isinstance(batch, Batch):
                    batch = self.correction.of_pairs(batch, bool(phase.separate))
                elif isinstance(batch, SequenceBatch):
                    batch = self.correction.of_sequences(batch)
                else:
                    batch = self.correction.of_own(batch)
            return phase.loss(self._own(batch) if isinstance(batch, Batch) else batch)

        own = (self.backbone.history, self.backbone.audience) if phase.batches == "sequences" else None
        return replace(phase, loss=loss, past=phase.past or own)


class _Shorter:
    """The backbone's catalogue, which is given no more of the past than the backbone reads."""

    def __init__(self, model: Debiased, catalog: Catalog) -> None:
        self.model, self.catalog = model, catalog

    def scores(self, context: Batch) -> Tensor:
        return self.catalog.scores(self.model._own(context))

    def scores_at_strengths(self, context: Batch, strengths: Sequence[float]) -> list[Tensor]:
        if self.model.plain:
            return scores_at(self.model.backbone, self.catalog, self.model._own(context), strengths)
        return apply_debias(self.model, self.scores(context), context, strengths)


@cache
def debias(kind: type[Recommender]) -> type[Debiased]:
    """The debiased version of a model, as a model of its own. Its settings are those of the weighting and,
    below `backbone`, those of the model."""
    backbone: Any = ("backbone", kind.Config, field(default_factory=kind.Config))
    documented = {"__doc__": Weighting.__doc__}
    config = make_dataclass(
        "Config", [backbone], bases=(Weighting,), frozen=True, kw_only=True, namespace=documented
    )
    paper = kind.presets.get("paper", {}) | {"method": "ips-both", "propensity": "dual"}
    namespace = {"Backbone": kind, "Config": config, "recipe": kind.recipe, "searched": kind.searched}
    namespace |= {"presets": kind.presets | {"paper": paper}, "name": f"debiased-{kind.name}"}
    namespace |= {"paper": f"{kind.paper}; weighted as in Xu et al., CIKM 2022"}
    namespace |= {"validates_frozen": kind.validates_frozen, "splits_batches": kind.splits_batches}
    return type(f"Debiased{kind.__name__}", (Debiased,), namespace)


FAMILIES["debiased"] = debias


def estimator_of(network: Recommender) -> Propensity:
    """The estimator of propensities in a trained network."""
    if network.correction is None:
        raise BadInput(f"{network.name} has no propensities of pairs; debiased-{network.name} has")
    propensity = network.correction.propensity
    if isinstance(propensity, Unit):
        raise BadInput(f"this {network.name} was trained without propensities")
    if propensity.phases() and not network.stages(1):
        raise BadInput(
            f"{network.name} is not trained by gradients, so its propensities never were; item-pro and "
            "user-pro need no training"
        )
    return propensity
