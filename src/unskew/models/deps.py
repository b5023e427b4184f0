"""DEPS: Dually Enhanced Propensity Score Estimation in Sequential Recommendation (Xu et al., CIKM 2022).

A transformer reads the user's history, another the item's audience, and an MLP scores the pair. The loss
weights each pair by inverse propensities, which two GRUs estimate from the same two sequences:

    score(u, i) = MLP([e_u; mean T_h(h_u); e_i; mean T_a(h_i)])                            eq. prediction
    L^unbiased  = mean w BCE(score, clicked)                                               eq. UnbiasLI_LU
    w           = alpha / max(P(i, h_u), M) + (1 - alpha) / max(P(u, h_i), M)              Theorem 1

    h_u, h_i    the history of the user, the audience of the item: what lies strictly before
    e_u, e_i    the embeddings of user and item (theta_e)
    T_h, T_a    the transformers over histories and audiences (theta_t); the MLP is theta_m
    P(i, h_u)   the item view: how likely item i is next, given the history (theta_p)
    P(u, h_i)   the user view: how likely user u is next, given the audience (theta_p)
    alpha, M    the weight of the item view, and the clip

Training follows Algorithm 1. Stage 1 has n_p epochs of the propensity losses L^AR and of predicting masked
ids, lambda_p L^MLM. Stage 2 has, in each epoch, n_b epochs of L^AR and one of L^unbiased.
`unskew.propensity.estimators` has the estimators, and what is known of their bias and variance.

What was decided: A fraction of the ids is hidden from the recommender while training (`hidden_ids`), so that
the vector of unknown ids is learned. Weights are multiplied by M, so that none is above one. By default,
500 users of an item are read instead of the authors' 30; the preset `paper` has their values.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import (
    Alpha,
    AtLeast0,
    AtLeast1,
    Clip,
    Dropped,
    Layers,
    NotNegative,
    Search,
    Settings,
    Share,
    Width,
)
from unskew.data.batches.batch import Batch, SequenceBatch
from unskew.data.log.held_out import Criterion
from unskew.data.log.live import Live
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import AUDIENCE, EventView, Ints
from unskew.models.base import HistoryConfig, Recommender
from unskew.nn.device import device_of
from unskew.nn.layers import Encoder, Table, in_groups, is_real
from unskew.nn.losses import cross_entropy, divisor, weighted_mean
from unskew.nn.phases import Phase, Stage, parameters_of
from unskew.nn.scoring import AudienceCatalog, AudiencesNow, Catalog, encode_windows
from unskew.propensity.correction import Correction, Method, idle_settings, resolve_auto_settings
from unskew.propensity.estimators import Needs, PropensityScale, estimator, estimator_named

NEGATIVES = 32  # of each positive in the softmax, unless the training settings say otherwise
PAPER: Settings = {
    "audience": AUDIENCE,
    "layers": 2,
    "heads": 2,
    "dropout": 0.5,
    "hidden_ids": 0.0,
    "clip": 0.05,
    "gru_layers": 2,
    "learning_rate": 1e-3,
    "batch_size": 2048,
    "unsupervised_epochs": 60,
    "epochs": 240,
    "patience": 240,
}


class DEPS(
    Recommender, name="deps", paper="Xu et al., Dually Enhanced Propensity Score Estimation, CIKM 2022"
):
    """The paper's recommender, propensities and training algorithm."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        """The settings of DEPS."""

        audience: AtLeast0 = 500
        """The number of past users of an item that the model reads: the newest ones. The authors' 30 hide how
        popular an item is; 500 may rank far better."""
        width: Width = 64
        """The width of embeddings and hidden states (d)."""
        layers: Layers = 2
        """The number of layers of each transformer."""
        heads: AtLeast1 = 2
        """The number of attention heads of each transformer layer."""
        inner: AtLeast1 = 256
        """The width of the feed-forward part of a transformer layer."""
        hidden: AtLeast1 = 64
        """The width of the hidden layer of the MLP that scores a pair."""
        dropout: Dropped = 0.2
        """The fraction of activations that dropout sets to zero in the transformers."""
        hidden_ids: Share = 0.8
        """The fraction of the ids that is hidden from the recommender while training, so that it learns what
        to do with ids that training never saw."""
        reads: Literal["both", "history", "audience"] = "both"
        """Which sequences the recommender reads: the user's history, the item's audience, or both."""
        propensity: str = "dual"
        """How the propensity P(o = 1) is estimated: by two GRUs (`dual`), by one of them (`item`, `user`),
        by frequencies (`item-pro`, `user-pro`, `item-user-pro`), from impressions (`exposure`), from clicks
        alone (`power`), as logged (`logged`), not at all (`none`), or by a registered estimator of your own.
        `auto` is `exposure` or `power`, by what the log holds."""
        method: Method = "ips-both"
        """What the loss makes of propensities: observed pairs and sampled negatives are weighted by their
        inverse, as in the paper (`ips-both`), observed pairs alone (`ips`), sampled negatives by the
        propensity itself (`weighted-negatives`), or it is added to the logits while training
        (`logit-offset`). `auto` chooses by the log."""
        strength: Annotated[NotNegative, Search(0.0, 1.0)] | None = None
        """How much of the propensity is taken out, 1 is all of it. By default 1/2, and 1 for `ips-both`; 0
        where `auto` is to choose everything, and the log says what was shown and not clicked."""
        alpha: Alpha = 0.5
        """The weight of the item view, which is an item's propensity given the user's history. The user view,
        a user's propensity given the item's audience, has the rest."""
        clip: Clip = 0.05
        """The lower bound of propensities; smaller ones are raised to it (M)."""
        gru_layers: AtLeast1 = 1
        """The number of layers of each of the estimator's GRUs."""
        propensity_scale: PropensityScale = "softmax"
        """How the GRUs make a propensity of their logits: a softmax over all ids, as the paper has it, or
        where a logit lies between the smallest (0) and the largest (1) of all ids (`min-max`), as a comment
        in the paper's source has it."""
        loss: Literal["pointwise", "softmax"] = "pointwise"
        """What the recommender learns from: the binary cross-entropy of each pair, as in the paper
        (`pointwise`), or a softmax over a positive and its sampled `negatives`, which is our variant
        (`softmax`). The latter learns from positives alone."""
        masked: Share = 0.2
        """The fraction of a sequence's positions that is masked in stage 1."""
        mlm_weight: NotNegative = 0.5
        """The weight of the losses of masked ids in stage 1 (lambda_p)."""
        unsupervised_epochs: AtLeast0 = 5
        """The number of epochs of stage 1, which trains propensities and transformers before the recommender
        (n_p)."""
        propensity_passes: AtLeast0 = 1
        """The number of epochs of the propensity losses in each epoch of stage 2, which trains the
        recommender (n_b)."""

        def __post_init__(self) -> None:
            if self.propensity != "auto":
                estimator_named(self.propensity)  # or an error that says which names there are

        @property
        def idle_settings(self) -> set[str]:
            return idle_settings(self.propensity, self.method)

    config: Config
    correction: Correction
    supports_live_log = True
    Transformer: ClassVar[type[Encoder]] = Encoder
    select_by: ClassVar[Criterion] = "balanced"
    recipe: ClassVar[Settings] = {"negatives": 1, "learning_rate": 3e-4}
    # The presets `paper-...` have the values of the authors' runs, who train for 300 epochs without early
    # stopping, the first fifth of them in stage 1; `paper` is for other data sets. `softmax` is our variant
    # of the loss, and `auto` the correction that debiases (docs/ground-truth.md). The rest are the ablations
    # of Figure ablation_ips and of the Tables ablation_trans and Ablation.
    presets: ClassVar[dict[str, Settings]] = {
        "paper": PAPER,
        "paper-beauty": PAPER | {"clip": 0.1},
        "paper-music": PAPER | {"layers": 3, "batch_size": 4096},
        "paper-mind": PAPER | {"layers": 3, "heads": 4, "dropout": 0.2},
        "softmax": {"loss": "softmax", "negatives": NEGATIVES},
        "auto": {"method": "auto", "propensity": "auto"},
        "without-ips": {"propensity": "none"},
        "item-view": {"propensity": "item"},
        "user-view": {"propensity": "user"},
        "without-history": {"reads": "audience", "propensity": "user"},
        "without-audience": {"reads": "history", "propensity": "item"},
        "without-stage-1": {"unsupervised_epochs": 0},
        "item-pro": {"propensity": "item-pro"},
        "user-pro": {"propensity": "user-pro"},
        "item-user-pro": {"propensity": "item-user-pro"},
    }

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        width, hidden = config.width, config.hidden
        reads_history, reads_audience = config.reads != "audience", config.reads != "history"
        # theta_e
        self.items = Table(known.items, width, config.hidden_ids)
        self.users = Table(known.users, width, config.hidden_ids)
        # theta_t
        shape = (width, config.layers, config.heads, config.inner, config.dropout)
        self.history_encoder = self.Transformer(*shape, config.history) if reads_history else None
        self.audience_encoder = self.Transformer(*shape, config.audience) if reads_audience else None
        # theta_m: the first layer of the MLP in four parts, so that a catalogue costs one addition per pair
        self.of_user, self.of_item = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden)
        self.of_history = nn.Linear(width, hidden, bias=False) if reads_history else None
        self.of_audience = nn.Linear(width, hidden, bias=False) if reads_audience else None
        self.last = nn.Linear(hidden, 1)
        # theta_p
        tables, layers = (self.items, self.users), config.gru_layers
        needs = Needs(
            known=known,
            alpha=config.alpha,
            clip=config.clip,
            layers=layers,
            scale=config.propensity_scale,
            tables=tables,
        )
        self.propensity = estimator(config.propensity, needs)
        past = config.history, config.audience
        self.correction = Correction(self.propensity, config.method, config.strength, "clipped", past)

    @classmethod
    def resolve_auto(cls, config: Any, split: Split) -> Any:
        separate = config.loss == "pointwise"
        return resolve_auto_settings(config, split, separate, reads_shown=separate)

    @classmethod
    def required_classes(cls, config: Any) -> tuple[type, ...]:
        return cls, estimator_named(config.propensity)

    def fit_statistics(self, split: Split) -> None:
        self.correction.fit_statistics(split)

    @property
    def audience(self) -> int:
        return self.config.audience

    @property
    def debias(self) -> float:
        return self.correction.debias

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return self.propensity.log_exposure(log, item, time)

    # The recommender

    def context_side(self, batch: Batch) -> Tensor:
        """The part of each context, user and history, in the first layer of the MLP, (B, H)."""
        side: Tensor = self.of_user(self.users.hiding(batch.user_B))
        return side if self.of_history is None else side + self.of_history(self.histories(batch))

    def item_side(self, item_N: Tensor) -> Tensor:
        """The part of each item in the first layer, (N, H)."""
        return self.of_item(self.items.hiding(item_N))

    def audience_side(self, audience_AM: Tensor) -> Tensor:
        """The part of each audience in the first layer, (A, H)."""
        if self.of_audience is None:
            return self.last.weight.new_zeros(len(audience_AM), self.config.hidden)
        return self.of_audience(in_groups(audience_AM, self._audience))

    def audience_sides(self, view: EventView, start: Ints, end: Ints) -> Tensor:
        """The part of each audience in the first layer, (A, H), of the events [start, end) of a view."""
        return encode_windows(self.audience_side, view, start, end, device_of(self))

    def audiences(self, batch: Batch) -> Tensor:
        """The part of each distinct audience of a batch in the first layer, (A, H)."""
        return self.audience_side(batch.audience_AM)

    def histories(self, batch: Batch) -> Tensor:
        """The mean state of each history, (B, D)."""
        return in_groups(batch.history_BL, self._history)

    def _history(self, ids_BL: Tensor) -> Tensor:
        assert self.history_encoder is not None
        return self.history_encoder.mean(self.items.hiding(ids_BL), is_real(ids_BL))  # eq. EmbedSeqI

    def _audience(self, ids_BM: Tensor) -> Tensor:
        assert self.audience_encoder is not None
        return self.audience_encoder.mean(self.users.hiding(ids_BM), is_real(ids_BM))  # eq. EmbedSeqU

    def join(self, context: Tensor, candidate: Tensor) -> Tensor:
        """The logits of pairs, from the parts of contexts and candidates, (..., H); the two are broadcast."""
        return self.last(functional.relu(context + candidate)).squeeze(-1)  # eq. prediction

    def forward(self, batch: Batch) -> Tensor:
        audience_BCH = self.audiences(batch)[batch.audience_of_BC]
        context_B1H = self.context_side(batch)[:, None]
        return self.join(context_B1H, self.item_side(batch.candidates_BC) + audience_BCH)

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        if isinstance(log, Live):
            return AudiencesNow(self, log, self.config.audience)
        return AudienceCatalog(self, log.frozen(), first, last, self.config.audience)

    def renew_catalog(self, catalog: Catalog, log: LogView, first: int, last: int) -> Catalog:
        if isinstance(catalog, AudienceCatalog):
            return catalog.renewed(log, first, last)
        return self.catalog(log, first, last)

    # How it learns: Algorithm 1

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        theta_e, theta_t = (self.items, self.users), (self.history_encoder, self.audience_encoder)
        theta_m = (self.of_history, self.of_user, self.of_audience, self.of_item, self.last)
        mlm = Phase(
            "masked", "sequences", self.masked_loss, lambda: parameters_of(*theta_e, *theta_t), weighted=False
        )
        unbiased = Phase(
            "unbiased",
            "pairs" if self.config.loss == "pointwise" else "positives",
            self.unbiased_loss,
            lambda: parameters_of(*theta_e, *theta_t, *theta_m),
            negatives=None if self.config.loss == "pointwise" else NEGATIVES,
        )
        first = (*self.correction.phases(), mlm)
        second = (*self.correction.phases(self.config.propensity_passes), unbiased)
        return (
            Stage("unsupervised", first, self.config.unsupervised_epochs),
            Stage("unbiased", second, epochs, validated=True),
        )

    def masked_loss(self, batch: SequenceBatch) -> Tensor:
        """lambda_p (L_u^MLM + L_i^MLM): some positions are masked and predicted from all others, as in
        BERT4Rec."""
        # If a batch has no sequences to predict, the gradient is zero, but it must exist.
        total, count = 0 * self.items.unknown.sum(), 0
        for encoder, table, ids in (
            (self.history_encoder, self.items, batch.items_BL),
            (self.audience_encoder, self.users, batch.users_BM),
        ):
            if encoder is None or not ids.numel():
                continue
            prediction = masked_prediction(encoder, table, ids, self.config.masked)
            total, count = total + prediction.loss, count + prediction.places
        return self.config.mlm_weight * total / divisor(count)

    def unbiased_loss(self, batch: Batch) -> Tensor:
        """L^unbiased_s: the loss of each pair, weighted by its inverse propensities (eq. UnbiasLI_LU), or
        corrected as `method` says. With the softmax, only the positive of each context has a weight.

        The paper's weights are multiplied by M, so that none is above one. The minimum of the loss is where
        it was, and clipping gradients by their norm has the same effect with weights as without.
        """
        separate, corrected = self.config.loss == "pointwise", batch._replace(weight_BC=None)
        if self.config.propensity != "none":
            corrected = self.correction.of_pairs(corrected, separate)
            if corrected.offset_BC is not None and batch.offset_BC is not None:
                corrected = corrected._replace(offset_BC=corrected.offset_BC + batch.offset_BC)
        terms = self.loss_per_pair(corrected) if separate else self.loss_per_context(corrected)
        for weight in (corrected.weight_BC, batch.weight_BC):
            terms = terms if weight is None else terms * weight[:, : terms.shape[1]]
        return weighted_mean(terms)

    def statistics(self, batch: Batch) -> dict[str, float]:
        return self.propensity.statistics(batch)

    def loss_per_pair(self, batch: Batch) -> Tensor:
        """The binary cross-entropy of each pair, (B, C), without weights."""
        return functional.binary_cross_entropy_with_logits(
            batch.with_offset(self(batch)), batch.labels_BC, reduction="none"
        )

    def loss_per_context(self, batch: Batch) -> Tensor:
        """-log softmax of the first candidate among all candidates of its context, (B, 1), without weights.
        This is our variant, not the paper's."""
        return -functional.log_softmax(batch.with_offset(self(batch)), dim=1)[:, :1]


class Masked(NamedTuple):
    """The result of predicting masked ids."""

    loss: Tensor  # summed over the masked positions
    places: int  # how many positions were masked


def masked_prediction(encoder: Encoder, table: Table, ids_BL: Tensor, fraction: float) -> Masked:
    """Mask a fraction of each sequence's positions, at least one, and predict their ids by a softmax.

    table: the embeddings of all ids, which are read and predicted.
    fraction: the fraction of the positions that is masked.
    """
    real_BL = is_real(ids_BL)
    order = (
        torch.rand(ids_BL.shape, device=ids_BL.device).masked_fill(~real_BL, 2).argsort(dim=1).argsort(dim=1)
    )
    count_B1 = (fraction * real_BL.sum(1, keepdim=True)).round().clamp(min=1)
    masked = real_BL & (order < count_B1) & ~table.is_unknown(ids_BL)
    states = encoder(table(ids_BL, masked), real_BL)[masked]
    return Masked(cross_entropy(states, table, ids_BL[masked]), int(masked.sum()))
