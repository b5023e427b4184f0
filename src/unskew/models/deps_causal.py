"""DEPS with transformers that read each sequence once, oldest first: a variant of ours, not the paper's.

The paper's transformers are bidirectional, so every prefix of a sequence must be read anew. Where a state
sees only what is before it, one pass over a history or an audience yields the mean of every prefix of it, and
a batch of thousands of pairs reads each of its sequences once. Sequences longer than the model reads are cut
into windows that overlap by half. Masking places
has no sense here: in stage 1 the transformers predict the next id from those before. All else is DEPS.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from unskew.data.batch import Batch, Prefixes, SequenceBatch, as_prefixes
from unskew.layers import Encoder, is_real, read_before, states_after
from unskew.losses import cross_entropy
from unskew.models.base import Stage
from unskew.models.deps import DEPS


class PrefixEncoder(Encoder):
    """A transformer over sequences padded on the right, in which each state has seen what is before it."""

    def forward(self, x_BLD: Tensor, real_BL: Tensor | None = None) -> Tensor:
        x_BLD = self.dropout(x_BLD + self.positions[: x_BLD.shape[1]])
        for block in self.blocks:
            x_BLD = block(x_BLD, causal=True)
        return self.norm(x_BLD)

    def means(self, x_BLD: Tensor) -> Tensor:
        """The mean of the states of the first 0, 1, ..., L places: (B, L + 1, D)."""
        if not x_BLD.shape[1]:
            return x_BLD.new_zeros(x_BLD.shape[0], 1, x_BLD.shape[2])
        count_L = torch.arange(1, x_BLD.shape[1] + 1)
        return functional.pad(self(x_BLD).cumsum(1) / count_L[:, None], (0, 0, 1, 0))


class CausalDEPS(
    DEPS,
    name="deps-causal",
    paper="a variant of Xu et al., CIKM 2022, that reads each sequence once; no paper",
):
    Transformer: ClassVar[type[Encoder]] = PrefixEncoder
    history_encoder: PrefixEncoder
    audience_encoder: PrefixEncoder
    recipe: ClassVar[dict[str, Any]] = {"batch_size": 4096}

    def histories(self, batch: Batch) -> Tensor:
        return states_after(
            batch.histories, lambda ids_BL: self.history_encoder.means(self.items.hiding(ids_BL))
        )  # eq. EmbedSeqI

    def audiences(self, batch: Batch) -> Tensor:
        return self._side(batch.audiences)

    def audience_side(self, audience_AM: Tensor) -> Tensor:
        return self._side(as_prefixes(audience_AM))

    def _side(self, audiences: Prefixes) -> Tensor:
        if self.of_audience is None:
            return torch.zeros(len(audiences.row_N), self.config.hidden)
        means = states_after(
            audiences, lambda ids_BM: self.audience_encoder.means(self.users.hiding(ids_BM))
        )  # eq. EmbedSeqU
        return self.of_audience(means)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        first, second = super().stages(rounds)
        once = tuple(
            replace(phase, batches="prefixes") if phase.batches == "pairs" else phase
            for phase in second.phases
        )
        return first, replace(second, phases=once)

    def masked_loss(self, batch: SequenceBatch) -> Tensor:
        """lambda_p times the mean over all ids with others strictly before them: each one given those."""
        total, count = (
            0 * self.items.weight.sum(),
            0,
        )  # sequences of one id have nothing to predict, and yet a gradient
        for encoder, table, ids, past in (
            (self.history_encoder, self.items, batch.items_BL, batch.past_BL),
            (self.audience_encoder, self.users, batch.users_BM, batch.users_past_BM),
        ):
            wanted = is_real(ids) & (past > 0)
            if encoder is None or not bool(wanted.any()):
                continue
            row, before = wanted.nonzero()[:, 0], past[wanted]
            states = encoder(table(read_before(ids, before)))[row, before - 1]
            total, count = total + cross_entropy(states, table.table(), ids[wanted]), count + len(row)
        return self.config.mlm_weight * total / max(count, 1)
