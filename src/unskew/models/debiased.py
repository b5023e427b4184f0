"""Any recommender, debiased: the paper's claim that its weights fit every backbone (Table model-agnostic).

`debiased-gru4rec` is GRU4Rec with its own loss, in which each pair is weighted by the inverse of how likely
it was to be observed. Stage 1 estimates this likelihood; stage 2 alternates between the estimator and the
backbone. If the backbone is trained on whole histories, every event has one weight, which is computed once
after each epoch of the estimator.

    ips      w = alpha / P(i, h_u) + (1 - alpha) / P(u, h_i), divided by its mean in training
             unbiased with the true propensities; the variance has no bound
    clipped  the same with max(P, M) instead of P, times M
             the bias grows with M; the variance is at most (1/M - 1) delta^2 per pair before the factor M
    snips    the clipped weights, divided by their mean in the batch
             a bias of order 1/n for n pairs; the scale of the loss does not change

    P(i, h_u)  the propensity of the item given the user's history (the item view); alpha is its weight
    P(u, h_i)  the propensity of the user given the item's audience (the user view)
    M          the clip, the lower bound of propensities
"""

from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from unskew.catalog import Catalog
from unskew.config import AtLeast0, AtLeast1, Probability, Share
from unskew.data.batch import Batch, SequenceBatch, batch_of_rows
from unskew.data.held_out import Criterion
from unskew.data.log import Log
from unskew.data.split import Known, Split
from unskew.data.views import AUDIENCE, HISTORY, Ints
from unskew.layers import Embeddings
from unskew.models.base import FAMILIES, ModelConfig, Phase, Recommender, Stage, parameters_of
from unskew.propensity.estimators import DualGRU, Estimator, estimator

LEAST = 1e-9  # the clip of `ips`, only so that nothing is divided by zero
ROWS = 2048  # rows whose weights are computed together


@dataclass(frozen=True, kw_only=True)
class Weighting(ModelConfig):
    """How the pairs in the backbone's loss are weighted."""

    propensity: Estimator = "dual"
    """How the propensity P(o = 1) is estimated: by two GRUs (`dual`), by one of them (`item`, `user`), by
    frequencies (the three `-pro`), as logged (`logged`), or not at all (`none`)."""
    weights: Literal["clipped", "ips", "snips"] = "clipped"
    """How pairs are weighted: by clipped inverse propensities (`clipped`), by plain ones (`ips`), or by
    clipped ones divided by their mean in the batch (`snips`)."""
    alpha: Share = 0.5
    """The weight of the item view, which is an item's propensity given the user's history. The user view, a
    user's propensity given the item's audience, has the rest."""
    clip: Probability = 0.05
    """The lower bound of propensities; smaller ones are raised to it (M). `ips` does not use it."""
    past_items: AtLeast1 = HISTORY
    """The number of past items of a user that the estimator reads: the newest ones."""
    past_users: AtLeast0 = AUDIENCE
    """The number of past users of an item that the estimator reads: the newest ones."""
    propensity_width: AtLeast1 = 64
    """The width of the estimator's embeddings and hidden states."""
    gru_layers: AtLeast1 = 1
    """The number of layers of each of the estimator's GRUs."""
    propensity_rounds: AtLeast0 = 5
    """The number of rounds of stage 1, which trains the estimator alone (n_p)."""
    propensity_epochs: AtLeast0 = 1
    """The number of epochs of the estimator in each round of stage 2, which trains the backbone (n_b)."""


class Debiased(Recommender):
    """A backbone whose loss is weighted by inverse propensities.

    The estimator has embeddings of its own, because not every backbone has embeddings.
    """

    Backbone: ClassVar[type[Recommender]]
    choose_by: ClassVar[Criterion] = "balanced"
    config: Any

    def __init__(self, known: Known, config: Any) -> None:
        super().__init__(known, config)
        self.backbone = self.Backbone(known, config.backbone)
        self._split: Split | None = None  # needed only in training
        clip = LEAST if config.weights == "ips" else config.clip
        tables = Embeddings(0, 1), Embeddings(0, 1)
        if config.propensity in ("dual", "item", "user"):
            width = config.propensity_width
            tables = Embeddings(known.items, width), Embeddings(known.users, width)
        self.propensity = estimator(
            config.propensity, known, tables, config.gru_layers, config.alpha, clip, owner=True
        )
        # The weights of all training positives and their mean; None until they are computed.
        self._of_rows: Tensor | None = None
        self._mean: float | None = None

    def measure(self, split: Split) -> None:
        self._split = split
        self.backbone.measure(split)
        self.propensity.measure(split)

    # As a recommender, it is its backbone

    @property
    def history(self) -> int:
        mine, its = self.config.past_items, self.backbone.history
        return its if self.config.propensity == "none" else max(mine, its)

    @property
    def audience(self) -> int | None:
        mine, its = self.config.past_users, self.backbone.audience
        return its if its is None or self.config.propensity == "none" else max(mine, its)

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

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return _Shorter(self, self.backbone.catalog(log, first, last))

    def statistics(self, batch: Batch) -> dict[str, float]:
        estimated = self.propensity.statistics(batch.truncate(self.config.past_items, self.config.past_users))
        return estimated | self.backbone.statistics(self._own(batch))

    def _own(self, batch: Batch) -> Batch:
        """The batch with no more of the past than the backbone reads."""
        return batch.truncate(self.backbone.history, self.backbone.audience)

    # How it learns

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        its = tuple(
            replace(stage, phases=tuple(map(self._weighted, stage.phases)))
            for stage in self.backbone.stages(rounds)
        )
        if not isinstance(self.propensity, DualGRU) or not its:
            return its
        exposure = Phase(
            "exposure",
            "sequences",
            self.autoregressive_loss,
            lambda: parameters_of(self.propensity),
            weighted=False,
            past=(self.config.past_items, self.config.past_users),
        )
        again = replace(exposure, epochs=self.config.propensity_epochs)
        its = tuple(
            replace(stage, phases=(again, *stage.phases)) if stage.validated else stage for stage in its
        )
        return Stage("exposure", (exposure,), self.config.propensity_rounds), *its

    def autoregressive_loss(self, batch: SequenceBatch) -> Tensor:
        """The loss of the estimator: L_u^AR + L_i^AR, as a mean per id."""
        assert isinstance(self.propensity, DualGRU)
        self._of_rows = self._mean = None  # this step changes the weights
        return self.propensity.loss(batch)

    def _weighted(self, phase: Phase) -> Phase:
        """A phase of the backbone whose batches carry weights."""

        def loss(batch: Batch | SequenceBatch) -> Tensor:
            if self.config.propensity == "none" or not phase.weighted:
                return phase.loss(self._own(batch) if isinstance(batch, Batch) else batch)
            if isinstance(batch, Batch):
                read = batch.truncate(self.config.past_items, self.config.past_users)
                weight = self.propensity.weights(read)
                weight = self._normalised(weight, torch.ones_like(weight).bool())
                return phase.loss(self._own(batch)._replace(weight_BC=weight))
            weight = self._rows()[batch.event_BL]
            return phase.loss(batch._replace(weight_BL=self._normalised(weight, batch.target_BL)))

        own = (self.backbone.history, self.backbone.audience) if phase.batches == "sequences" else None
        return replace(phase, loss=loss, past=phase.past or own)

    def _normalised(self, weight: Tensor, counted: Tensor) -> Tensor:
        """The weights on the scale of a loss without weights, so that clipping gradients by their norm has
        the same effect.

        `clipped` weights are multiplied by M, as in DEPS, so that none is above one. `snips` divides by their
        mean in the batch. `ips` divides by their mean in training, which is one constant for all batches, so
        the estimate stays unbiased up to that constant.

        counted: which of the weights belong to targets; only these count in the mean of a batch.
        """
        if self.config.weights == "snips":
            return weight / weight[counted].mean() if bool(counted.any()) else weight
        return weight * self.propensity.clip if self.config.weights == "clipped" else weight / self._typical()

    @torch.no_grad()
    def _typical(self) -> float:
        """The mean weight of a fixed sample of training positives."""
        if self._mean is None:
            log = self._training.log
            rows = np.flatnonzero(self._training.mask("train") & (log.label == 1))
            rows = np.sort(np.random.default_rng(23).permutation(rows)[:ROWS])
            self._mean = float(self._weights_of(rows).mean())
        return self._mean

    @property
    def _training(self) -> Split:
        """The split that the model is trained on."""
        assert self._split is not None, "weights are only made in training"
        return self._split

    def _weights_of(self, rows: Ints) -> Tensor:
        """The weights of some rows of the log, (N,)."""
        batch = batch_of_rows(self._training.log, rows, self.config.past_items, self.config.past_users)
        return self.propensity.weights(batch).squeeze(1)

    @torch.no_grad()
    def _rows(self) -> Tensor:
        """The weight of every training positive, by its row in the log."""
        if self._of_rows is None:
            log = self._training.log
            rows = np.flatnonzero(self._training.mask("train") & (log.label == 1))
            self._of_rows = torch.zeros(len(log.histories.ids))
            for first in range(0, len(rows), ROWS):
                some = rows[first : first + ROWS]
                self._of_rows[torch.from_numpy(some)] = self._weights_of(some)
        return self._of_rows


class _Shorter:
    """The backbone's catalogue, which is given no more of the past than the backbone reads."""

    def __init__(self, model: Debiased, catalog: Catalog) -> None:
        self.model, self.catalog = model, catalog

    def scores(self, context: Batch) -> Tensor:
        return self.catalog.scores(self.model._own(context))

    def renewed(self, log: Log, first: int, last: int) -> "_Shorter":
        renewed = getattr(self.catalog, "renewed", self.model.backbone.catalog)
        return _Shorter(self.model, renewed(log, first, last))


@cache
def debias(kind: type[Recommender]) -> type[Debiased]:
    """The debiased version of a model, as a model of its own. Its settings are those of the weighting and,
    below `backbone`, those of the model."""
    backbone: Any = ("backbone", kind.Config, field(default_factory=kind.Config))
    config = make_dataclass(
        "Config",
        [backbone],
        bases=(Weighting,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": Weighting.__doc__},
    )
    names = {"name": f"debiased-{kind.name}", "paper": f"{kind.paper}; weighted as in Xu et al., CIKM 2022"}
    return type(
        f"Debiased{kind.__name__}",
        (Debiased,),
        {"Backbone": kind, "Config": config, "recipe": kind.recipe, **names},
    )


FAMILIES["debiased"] = debias
