"""USR: Unbiased Sequential Recommendation with Latent Confounders (Wang et al., WWW 2022).

A RECONSTRUCTION: the paper's abstract is all that is known for certain; see below.
What a user does next depends on what was shown, and on confounders that the log does not hold:

    p_t    = softmax_j(<W (h_t * z_t), e_j>) at j = i_t,    h_t = GRU(H_{t-1}),    z_t = MLP(h_t)
    L_prop = -mean ln p_t,    L_rec = mean l(i_t | H_{t-1}, z_t) / max(p_t, M)

    H_{t-1}  the items before; i_t is the next one
    e_j      the embedding of item j
    z_t      a vector that stands for the latent confounders
    p_t      the probability that i_t was observed
    M        the `clip`
    l        the cross-entropy of a recommender among all items

Bias: with the true p_t and M = 0, the weighted loss is unbiased for the loss under uniform exposure; M adds
bias. Variance: it is bounded by that of weights up to 1 / M.

What is reconstructed: Only the abstract is certain. It has potential outcomes, instances weighted by inverse
and clipped propensities of the item given the history, and a parameterised model of latent confounders. There
is no code of the authors. Reconstructed are both networks (the propensity as in the item view of DEPS and in
USER, whose authors overlap), the way in which z_t enters (the propensity by a product, the score beside the
recommender's state), the recommender (a GRU), the schedule, and every default (those of DEPS). Latent
confounders cannot be identified from one log.

What was decided: The propensity network reads the item embeddings and never changes them, and L_rec does not
change the propensity network. It sees only what is before the target. The cross-entropy is that of the
positive alone, so negatives have no weights. Among thousands of items p_t is mostly far below M = 0.1, and
then nearly all weights are 1 / M; the clipped part is reported. `clip_unit="uniform"` counts M in multiples
of 1 / |items|, and `weights="snips"` divides the weights by their mean in the batch.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.config import AtLeast0, AtLeast1, Dropped, Positive, Search, Settings, Width
from unskew.core.errors import BadInput
from unskew.core.ranks import ranks
from unskew.data.batches.batch import Batch, SequenceBatch
from unskew.data.log.split import Known
from unskew.models.base import HistoryConfig, NextItem
from unskew.nn.layers import Dropout, Embeddings, is_real, read_before, right_padded
from unskew.nn.losses import cross_entropy, divisor
from unskew.nn.phases import Phase, Stage, parameters_of
from unskew.propensity.estimators import probability

TARGETS = 1024  # targets whose probabilities are computed together

Confounder = Literal["step", "recurrent", "none"]


class USR(
    NextItem,
    name="usr",
    paper="Wang et al., Unbiased Sequential Recommendation with Latent Confounders, WWW 2022; reconstructed",
):
    """A GRU whose loss is weighted by inverse propensities with latent confounders."""

    @dataclass(frozen=True, kw_only=True)
    class Config(HistoryConfig):
        width: Width = 64
        """The width of embeddings and hidden states (d)."""
        layers: AtLeast1 = 1
        """The number of layers of the recommender's GRU."""
        gru_layers: AtLeast1 = 2
        """The number of layers of the propensity's GRU."""
        hidden: AtLeast1 = 64
        """The width of the hidden layer of the MLP that makes the confounder from a state."""
        dropout: Dropped = 0.2
        """The fraction of the recommender's inputs, and of that hidden layer, that dropout sets to zero."""
        confounder: Confounder = "step"
        """What the latent confounder is made from: each state (`step`), or also the confounder before
        (`recurrent`). `none` leaves it out, which is plain inverse propensity weighting of sequences."""
        clip: Annotated[Positive, Search(0.01, 0.2, log=True)] = 0.1
        """The lower bound of propensities; smaller ones are raised to it (M)."""
        clip_unit: Literal["probability", "uniform"] = "probability"
        """The unit of the clip: a probability, or the probability of an item if all had the same
        (`uniform`)."""
        weights: Literal["clipped", "snips"] = "clipped"
        """How events are weighted: by clipped inverse propensities, or by the same divided by their mean
        in the batch (`snips`)."""
        propensity_epochs: AtLeast0 = 5
        """The number of epochs in which only the propensity is trained, before all others."""
        propensity_passes: AtLeast0 = 1
        """The number of epochs of the propensity in each later epoch."""

    config: Config
    recipe: ClassVar[Settings] = {"sequences": 128}

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config, config.width)
        self.clip = config.clip if config.clip_unit == "probability" else config.clip / known.items.size
        if not 0 < self.clip <= 1:
            raise BadInput(
                f"clip {config.clip} (in units of {config.clip_unit}): expected above 0, and at most a "
                "probability of 1"
            )
        self.gru = nn.GRU(config.width, config.width, config.layers, batch_first=True)
        self.dropout = Dropout(config.dropout)
        self.beside = nn.Linear(2 * config.width, config.width) if config.confounder != "none" else None
        self.exposure = Exposure(
            config.width, config.hidden, config.gru_layers, config.dropout, config.confounder
        )

    # The recommender

    def encode(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self.gru(self.dropout(self.items(ids_BL)))[0]

    def states(self, user_B: Tensor, ids_BL: Tensor) -> Tensor:
        return self._with_confounder(super().states(user_B, ids_BL), self._exposed(ids_BL)[1])

    def _with_confounder(self, states_BLD: Tensor, confounder_BLD: Tensor | None) -> Tensor:
        """The states, each combined with its confounder if there is one."""
        if self.beside is None or confounder_BLD is None:
            return states_BLD
        return self.beside(torch.cat([states_BLD, confounder_BLD], dim=2))

    @torch.no_grad()
    def _exposed(self, ids_BL: Tensor) -> tuple[Tensor, Tensor | None]:
        """The outputs of the propensity network, as weights and recommender read them: without gradient and
        without dropout, because a weight must not depend on chance."""
        return self.exposure(self.items(ids_BL), learning=False)

    # How it learns

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        learned = partial(parameters_of, self.items, self.start, self.gru, self.beside)
        recommendation = Phase("recommendation", "histories", self.next_item_loss, learned)
        learned_first = self.exposure.parameters
        propensity = Phase("propensity", "histories", self.propensity_loss, learned_first, weighted=False)
        again = replace(propensity, passes=self.config.propensity_passes)
        return (
            Stage("propensity", (propensity,), self.config.propensity_epochs),
            Stage("recommendation", (again, recommendation), epochs, validated=True),
        )

    def propensity_loss(self, batch: SequenceBatch) -> Tensor:
        """L_prop, the mean over observed next items."""
        row_N, past_N, targets_N, _, _ = batch.targets()
        shown_BLD, _ = self.exposure(self.items(read_before(batch.items_BL, past_N)).detach(), learning=True)
        total = cross_entropy(shown_BLD[row_N, past_N], self.items.table().detach(), targets_N)
        return total / divisor(len(targets_N))

    def next_item_loss(self, batch: SequenceBatch) -> Tensor:
        """L_rec. One pass gives the propensity, the confounder and the state of every prefix."""
        row_N, past_N, targets_N, outside_N, offset = batch.targets()
        read_BL = read_before(batch.items_BL, past_N)
        shown_BLD, confounder_BLD = self._exposed(read_BL)
        states_BLD = self._with_confounder(super().states(batch.user_B, read_BL), confounder_BLD)
        p_N = propensities(shown_BLD[row_N, past_N], targets_N, self.items, self.clip)
        weight_N = inverse(p_N, self.clip, self.config.weights == "snips")
        if outside_N is not None:
            weight_N = weight_N * outside_N
        return self.loss_of(states_BLD[row_N, past_N], targets_N, weight_N, offset)

    def statistics(self, batch: Batch) -> dict[str, float]:
        """For clicked pairs: a typical propensity, the fraction that is clipped, and the mean and spread of
        the weights."""
        clicked_B = batch.labels_BC[:, 0] == 1
        if not bool(clicked_B.any()):
            return {}
        lengths = is_real(batch.history_BL).sum(1)
        shown_BD = self._exposed(right_padded(batch.history_BL))[0][
            torch.arange(len(lengths), device=lengths.device), lengths
        ]
        p_N = propensities(shown_BD[clicked_B], batch.candidates_BC[clicked_B, 0], self.items, 0.0)
        weight_N = inverse(p_N, self.clip)
        figures = {"propensity": p_N.median(), "clipped": (p_N < self.clip).float().mean()}
        figures |= {"weight": weight_N.mean(), "weight_deviation": weight_N.std(correction=0)}
        return {name: round(float(value), 6) for name, value in figures.items()}


class Exposure(nn.Module):
    """The propensity network: which item comes next, and the confounder behind it."""

    def __init__(self, width: int, hidden: int, layers: int, dropout: float, confounder: Confounder) -> None:
        super().__init__()
        self.start = nn.Parameter(torch.empty(width))
        nn.init.normal_(self.start, std=width**-0.5)
        self.gru = nn.GRU(width, width, layers, bias=False, batch_first=True)
        self.recurrent = confounder == "recurrent"
        read = 2 * width if self.recurrent else width
        self.first = None if confounder == "none" else nn.Linear(read, hidden)
        self.second = None if confounder == "none" else nn.Linear(hidden, width)
        self.dropout, self.out = Dropout(dropout), nn.Linear(width, width)

    def forward(self, embedded_BLD: Tensor, learning: bool) -> tuple[Tensor, Tensor | None]:
        """W (h * z) and z after 0, 1, ..., L embedded items, padded on the right, (B, L + 1, D) each; without
        a confounder W h and None. Only while learning, the MLP uses dropout."""
        started_BLD = torch.cat([self.start.expand(len(embedded_BLD), 1, -1), embedded_BLD], dim=1)
        states_BLD, _ = self.gru(started_BLD)
        if self.first is None or self.second is None:
            return self.out(states_BLD), None
        confounders = self._recurrent if self.recurrent else self._mlp
        confounder_BLD = confounders(states_BLD, learning)
        return self.out(states_BLD * confounder_BLD), confounder_BLD

    def _recurrent(self, states_BLD: Tensor, learning: bool) -> Tensor:
        confounders = [torch.zeros_like(states_BLD[:, 0])]
        for state_BD in states_BLD.unbind(1):
            confounders.append(self._mlp(torch.cat([state_BD, confounders[-1]], dim=1), learning))
        return torch.stack(confounders[1:], dim=1)

    def _mlp(self, x: Tensor, learning: bool) -> Tensor:
        assert self.first is not None
        assert self.second is not None
        hidden = functional.relu(self.first(x))
        return self.second(self.dropout(hidden) if learning else hidden)


@torch.no_grad()
def propensities(shown_ND: Tensor, targets_N: Tensor, items: Embeddings, least: float) -> Tensor:
    """p of each target among all items, (N,), from W (h * z) before it: exact if it reaches `least`,
    otherwise anything below it."""
    parts = [shown_ND.new_zeros(0)]
    for shown, targets in zip(torch.split(shown_ND, TARGETS), torch.split(targets_N, TARGETS), strict=True):
        logits = (shown * items(targets)).sum(1, keepdim=True)
        of_N1 = torch.arange(len(shown), device=shown.device)[:, None]
        parts.append(probability(logits, shown, of_N1, items, least).squeeze(1))
    return torch.cat(parts)


def inverse(p_N: Tensor, clip: float, normalised: bool = False) -> Tensor:
    """The weights M / max(p, M), or the same divided by their mean. They are 1 / max(p, M) times M, so none
    is above one. The minimum of the loss is where it was, and clipping gradients by their norm has the same
    effect with weights as without."""
    weight_N = clip / p_N.clamp(min=clip)
    return weight_N / ranks().mean(weight_N) if normalised and len(weight_N) else weight_N
