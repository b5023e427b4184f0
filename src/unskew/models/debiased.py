"""Any recommender, debiased: the paper's claim that its weights fit every backbone (Table model-agnostic), as
one class.

`debiased-gru4rec` is GRU4Rec whose own loss is weighted, pair by pair, by the inverse of how likely each pair
was observed. Stage 1 estimates that likelihood; stage 2 alternates between the estimate and the backbone.
Where the backbone is trained on whole histories, every event has one weight, computed once after each epoch
of the estimator.

    ips      w = alpha / P(i, h_u) + (1 - alpha) / P(u, h_i)     unbiased with the true propensities, of any
             variance; over its mean
    clipped  the same with max(P, M)                             biased as M grows, variance at most (1/M - 1)
             delta^2 per pair
    snips    the clipped ones over their mean in the batch       biased of order 1/n, does not change the
             scale of the loss
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

LEAST = 1e-9  # where nothing is clipped, a propensity of zero must still not divide by zero
ROWS = 2048  # whose weights are computed together


@dataclass(frozen=True, kw_only=True)
class Weighting(ModelConfig):
    """How the pairs of the backbone's loss are weighted."""

    propensity: Estimator = "dual"
    """How P(o = 1) is estimated: both GRUs, one of them, not at all, by frequency, or as logged."""
    weights: Literal["clipped", "ips", "snips"] = "clipped"
    """What is made of it: clipped inverse propensities, plain ones, or clipped ones with mean one in each
    batch."""
    alpha: Share = 0.5
    """Weight of the item view."""
    clip: Probability = 0.05
    """Propensities are raised to at least this (M), except by `ips`."""
    past_items: AtLeast1 = HISTORY
    """Past items of a user that the estimator reads, the newest."""
    past_users: AtLeast0 = AUDIENCE
    """Past users of an item that the estimator reads, the newest."""
    propensity_width: AtLeast1 = 64
    """Width of the estimator."""
    gru_layers: AtLeast1 = 1
    """Layers of each of its GRUs."""
    propensity_rounds: AtLeast0 = 5
    """Rounds of stage 1 (n_p)."""
    propensity_epochs: AtLeast0 = 1
    """Epochs of the estimator in each round of stage 2 (n_b)."""


class Debiased(Recommender):
    """A backbone and a propensity. The estimator has embeddings of its own, because not every backbone has
    any."""

    Backbone: ClassVar[type[Recommender]]
    choose_by: ClassVar[Criterion] = "balanced"
    config: Any

    def __init__(self, known: Known, config: Any) -> None:
        super().__init__(known, config)
        self.backbone = self.Backbone(known, config.backbone)
        self._split: Split | None = None  # only while it is trained
        clip = LEAST if config.weights == "ips" else config.clip
        tables = Embeddings(0, 1), Embeddings(0, 1)
        if config.propensity in ("dual", "item", "user"):
            tables = tuple(Embeddings(known, config.propensity_width) for known in (known.items, known.users))  # type: ignore[assignment]
        self.propensity = estimator(
            config.propensity, known, tables, config.gru_layers, config.alpha, clip, owner=True
        )
        self._of_rows: Tensor | None = None
        self._mean: float | None = None

    def measure(self, split: Split) -> None:
        self._split = split
        self.backbone.measure(split)
        self.propensity.measure(split)

    # As a recommender it is its backbone

    @property
    def history(self) -> int:
        return (
            self.backbone.history
            if self.config.propensity == "none"
            else max(self.backbone.history, self.config.past_items)
        )

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
        """No more of the past than the backbone reads."""
        return batch.truncate(self.backbone.history, self.backbone.audience)

    # How it learns

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        its = tuple(
            replace(stage, phases=tuple(map(self._weighted, stage.phases)))
            for stage in self.backbone.stages(rounds)
        )
        if not isinstance(self.propensity, DualGRU) or not its:
            return its
        past = self.config.past_items, self.config.past_users
        exposure = Phase(
            "exposure",
            "sequences",
            self.autoregressive_loss,
            lambda: parameters_of(self.propensity),
            weighted=False,
            past=past,
        )
        again = replace(exposure, epochs=self.config.propensity_epochs)
        its = tuple(
            replace(stage, phases=(again, *stage.phases)) if stage.validated else stage for stage in its
        )
        return Stage("exposure", (exposure,), self.config.propensity_rounds), *its

    def autoregressive_loss(self, batch: SequenceBatch) -> Tensor:
        assert isinstance(self.propensity, DualGRU)
        self._of_rows = self._mean = None  # this step will change them
        return self.propensity.loss(batch)

    def _weighted(self, phase: Phase) -> Phase:
        def loss(batch: Batch | SequenceBatch) -> Tensor:
            if self.config.propensity == "none" or not phase.weighted:
                return phase.loss(self._own(batch) if isinstance(batch, Batch) else batch)
            if isinstance(batch, Batch):
                weight = self.propensity.weights(
                    batch.truncate(self.config.past_items, self.config.past_users)
                )
                return phase.loss(
                    self._own(batch)._replace(
                        weight_BC=self._normalised(weight, torch.ones_like(weight).bool())
                    )
                )
            weight = self._rows()[batch.event_BL]
            return phase.loss(batch._replace(weight_BL=self._normalised(weight, batch.target_BL)))

        own = (self.backbone.history, self.backbone.audience) if phase.batches == "sequences" else None
        return replace(phase, loss=loss, past=phase.past or own)

    def _normalised(self, weight: Tensor, counted: Tensor) -> Tensor:
        """Weights on the scale of the loss without them, so that clipping gradients by their norm means the
        same: clipped ones times M, as in DEPS, so that none is above one; `snips` over their mean in the
        batch; `ips` over their mean in training. The last is one constant for all batches, so the estimate
        stays unbiased up to that constant."""
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
        assert self._split is not None, "weights are made while it is trained"
        return self._split

    def _weights_of(self, rows: Ints) -> Tensor:
        return self.propensity.weights(
            batch_of_rows(self._training.log, rows, self.config.past_items, self.config.past_users)
        ).squeeze(1)

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
    """The backbone's catalogue, given no more of the past than it reads."""

    def __init__(self, model: Debiased, catalog: Catalog) -> None:
        self.model, self.catalog = model, catalog

    def scores(self, context: Batch) -> Tensor:
        return self.catalog.scores(self.model._own(context))

    def renewed(self, log: Log, first: int, last: int) -> "_Shorter":
        renewed = getattr(self.catalog, "renewed", self.model.backbone.catalog)
        return _Shorter(self.model, renewed(log, first, last))


@cache
def debias(kind: type[Recommender]) -> type[Debiased]:
    """The debiased version of a recommender, as a kind of its own: its settings are the weighting's, and
    `backbone`'s."""
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
