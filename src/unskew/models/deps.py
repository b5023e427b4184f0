"""DEPS: Dually Enhanced Propensity Score Estimation in Sequential Recommendation (Xu et al., CIKM 2022)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.catalog import AudienceCatalog, Catalog
from unskew.config import AtLeast0, AtLeast1, Dropped, NotNegative, Probability, Share
from unskew.data.batch import Batch, SequenceBatch
from unskew.data.held_out import Criterion
from unskew.data.log import Log
from unskew.data.split import Known, Split
from unskew.data.views import AUDIENCE
from unskew.layers import Encoder, Table, in_groups, is_real
from unskew.losses import cross_entropy, weighted_mean
from unskew.models.base import HistoryConfig, Phase, Recommender, Stage, parameters_of
from unskew.propensity.estimators import DualGRU, Estimator, estimator


class DEPS(
    Recommender, name="deps", paper="Xu et al., Dually Enhanced Propensity Score Estimation, CIKM 2022"
):
    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        audience: AtLeast0 = 500
        """Past users of an item that the model reads, the newest. The authors' 30 hide how popular it is; 500
        may rank far better."""
        width: AtLeast1 = 64
        """Width of embeddings and states (d)."""
        layers: AtLeast1 = 2
        """Layers of each transformer."""
        heads: AtLeast1 = 2
        """Heads of each attention."""
        inner: AtLeast1 = 256
        """Width of the feed-forward part of a transformer layer."""
        hidden: AtLeast1 = 64
        """Width of the hidden layer of the MLP."""
        dropout: Dropped = 0.2
        """Share of activations dropped in the transformers."""
        hidden_ids: Share = 0.8
        """Share of the ids hidden from the recommender while training, so that ids which training never saw
        mean something."""
        reads: Literal["both", "history", "audience"] = "both"
        """Which sequences the recommender reads."""
        propensity: Estimator = "dual"
        """How P(o = 1) is estimated: both GRUs, one of them, not at all, by frequency, or as logged."""
        alpha: Share = 0.5
        """Weight of the item view."""
        clip: Probability = 0.05
        """Propensities are raised to at least this (M)."""
        gru_layers: AtLeast1 = 1
        """Layers of each GRU."""
        masked: Share = 0.2
        """Share of places masked in stage 1."""
        mlm_weight: NotNegative = 0.5
        """Weight of the masked losses in stage 1 (lambda_p)."""
        unsupervised_rounds: AtLeast0 = 5
        """Rounds of stage 1 (n_p)."""
        propensity_epochs: AtLeast0 = 1
        """Epochs of the propensity losses in each round of stage 2 (n_b)."""

    config: Config
    Transformer: ClassVar[type[Encoder]] = Encoder
    choose_by: ClassVar[Criterion] = "balanced"
    recipe: ClassVar[dict[str, Any]] = {"rounds": 5, "patience": 1, "negatives": 1, "learning_rate": 3e-4}
    # The authors' runs (Beauty); they read 30 users of an item, and hide no ids.
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {
            "audience": AUDIENCE,
            "dropout": 0.5,
            "hidden_ids": 0.0,
            "learning_rate": 1e-3,
            "batch_size": 2048,
            "rounds": 30,
            "patience": 5,
        }
    }

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width = config.width
        self.items, self.users = (
            Table(known, width, config.hidden_ids) for known in (known.items, known.users)
        )  # theta_e
        shape = (width, config.layers, config.heads, config.inner, config.dropout)
        self.history_encoder = (
            self.Transformer(*shape, config.history) if config.reads != "audience" else None
        )  # theta_t
        self.audience_encoder = (
            self.Transformer(*shape, config.audience) if config.reads != "history" else None
        )
        # The first layer of the MLP in four parts, so that a catalogue costs one addition per pair.   theta_m
        self.of_user, self.of_item = (
            nn.Linear(width, config.hidden, bias=False),
            nn.Linear(width, config.hidden),
        )
        self.of_history = (
            nn.Linear(width, config.hidden, bias=False) if self.history_encoder is not None else None
        )
        self.of_audience = (
            nn.Linear(width, config.hidden, bias=False) if self.audience_encoder is not None else None
        )
        self.last = nn.Linear(config.hidden, 1)
        self.propensity = estimator(  # theta_p
            config.propensity, known, (self.items, self.users), config.gru_layers, config.alpha, config.clip
        )

    def measure(self, split: Split) -> None:
        self.propensity.measure(split)

    # The recommender

    def context_side(self, batch: Batch) -> Tensor:
        side: Tensor = self.of_user(self.users.hiding(batch.user_B))
        return side if self.of_history is None else side + self.of_history(self.histories(batch))

    def item_side(self, item_N: Tensor) -> Tensor:
        return self.of_item(self.items.hiding(item_N))

    def audience_side(self, audience_AM: Tensor) -> Tensor:
        if self.of_audience is None:
            return torch.zeros(len(audience_AM), self.config.hidden)
        return self.of_audience(in_groups(audience_AM, self._audience))

    def audiences(self, batch: Batch) -> Tensor:
        """The audience's part of the first layer, for each distinct audience."""
        return self.audience_side(batch.audience_AM)

    def histories(self, batch: Batch) -> Tensor:
        return in_groups(batch.history_BL, self._history)

    def _history(self, ids_BL: Tensor) -> Tensor:
        assert self.history_encoder is not None
        return self.history_encoder.mean(self.items.hiding(ids_BL), is_real(ids_BL))  # eq. EmbedSeqI

    def _audience(self, ids_BM: Tensor) -> Tensor:
        assert self.audience_encoder is not None
        return self.audience_encoder.mean(self.users.hiding(ids_BM), is_real(ids_BM))  # eq. EmbedSeqU

    def join(self, context: Tensor, candidate: Tensor) -> Tensor:
        return self.last(functional.relu(context + candidate)).squeeze(-1)  # eq. prediction

    def forward(self, batch: Batch) -> Tensor:
        audience_BCH = self.audiences(batch)[batch.audience_of_BC]
        return self.join(
            self.context_side(batch)[:, None], self.item_side(batch.candidates_BC) + audience_BCH
        )

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return AudienceCatalog(self, log, first, last, self.config.audience)

    # How it learns: Algorithm 1

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        theta_e, theta_t = (self.items, self.users), (self.history_encoder, self.audience_encoder)
        theta_m = (self.of_history, self.of_user, self.of_audience, self.of_item, self.last)
        learned = isinstance(self.propensity, DualGRU)
        autoregressive = Phase(
            "propensity",
            "sequences",
            self.autoregressive_loss,
            lambda: parameters_of(self.propensity),
            weighted=False,
        )
        mlm = Phase(
            "masked", "sequences", self.masked_loss, lambda: parameters_of(*theta_e, *theta_t), weighted=False
        )
        unbiased = Phase(
            "unbiased", "pairs", self.unbiased_loss, lambda: parameters_of(*theta_e, *theta_t, *theta_m)
        )
        first = (autoregressive, mlm) if learned else (mlm,)
        second = (
            (replace(autoregressive, epochs=self.config.propensity_epochs), unbiased)
            if learned
            else (unbiased,)
        )
        return (
            Stage("unsupervised", first, self.config.unsupervised_rounds),
            Stage("unbiased", second, rounds, validated=True),
        )

    def autoregressive_loss(self, batch: SequenceBatch) -> Tensor:
        """L_u^AR + L_i^AR, mean per element."""
        assert isinstance(self.propensity, DualGRU)
        return self.propensity.loss(batch)

    def masked_loss(self, batch: SequenceBatch) -> Tensor:
        """lambda_p (L_u^MLM + L_i^MLM): some places are masked and predicted from all others, as in
        BERT4Rec."""
        total, count = (
            0 * self.items.weight.sum(),
            0,
        )  # a batch may have no sequence of a view, and yet needs a gradient
        for encoder, table, ids in (
            (self.history_encoder, self.items, batch.items_BL),
            (self.audience_encoder, self.users, batch.users_BM),
        ):
            if encoder is None or not ids.numel():
                continue
            found = masked_prediction(encoder, table, ids, self.config.masked)
            total, count = total + found.loss, count + found.places
        return self.config.mlm_weight * total / max(count, 1)

    def unbiased_loss(self, batch: Batch) -> Tensor:
        """L^unbiased_s: binary cross-entropy, each pair weighted by its inverse propensities (eq.
        UnbiasLI_LU).

        Times M, so that no weight is above one: the minimum is where it was, and shortening long gradients
        (which knows only their length) means the same with and without weights.
        """
        terms = self.loss_per_pair(batch) * (self.propensity.clip * self.propensity.weights(batch))
        return weighted_mean(terms, batch.weight_BC)

    def statistics(self, batch: Batch) -> dict[str, float]:
        return self.propensity.statistics(batch)

    def loss_per_pair(self, batch: Batch) -> Tensor:
        return functional.binary_cross_entropy_with_logits(self(batch), batch.labels_BC, reduction="none")


class Masked(NamedTuple):
    loss: Tensor  # summed over the masked places
    places: int


def masked_prediction(encoder: Encoder, table: Table, ids_BL: Tensor, share: float) -> Masked:
    """Mask a share of each sequence's places, at least one, and predict them with the table itself."""
    real_BL = is_real(ids_BL)
    order = torch.rand(ids_BL.shape).masked_fill(~real_BL, 2).argsort(dim=1).argsort(dim=1)
    wanted = (share * real_BL.sum(1, keepdim=True)).round().clamp(min=1)
    masked = real_BL & (order < wanted) & ~table.is_unknown(ids_BL)
    states = encoder(table(ids_BL, masked), real_BL)[masked]
    return Masked(cross_entropy(states, table.table(), ids_BL[masked]), int(masked.sum()))


# The paper's ablations: Figure ablation_ips, Tables ablation_trans and Ablation.
ABLATIONS = {
    "deps": DEPS.Config(),
    "without IPS": DEPS.Config(propensity="none"),
    "item view only": DEPS.Config(propensity="item"),
    "user view only": DEPS.Config(propensity="user"),
    "without history": DEPS.Config(reads="audience", propensity="user"),
    "without audience": DEPS.Config(reads="history", propensity="item"),
    "without stage 1": DEPS.Config(unsupervised_rounds=0),
    "Item-Pro": DEPS.Config(propensity="item-pro"),
    "User-Pro": DEPS.Config(propensity="user-pro"),
    "Item-User-Pro": DEPS.Config(propensity="item-user-pro"),
}
