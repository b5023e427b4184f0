"""DEPS with causal transformers, which read each sequence once, oldest first: our variant of the paper's.

The paper's transformers are bidirectional, so every prefix of a sequence must be read separately. If a state
has read only its own position and those before, one pass over a history or an audience gives the mean of the
states of every prefix:

    mean_n = (1 / n) (T(x)_1 + ... + T(x)_n)

    T(x)_l  the state at position l of the sequence x, of which it has read x_1, ..., x_l
    n       the length of the prefix

So a batch of thousands of pairs reads each of its sequences once. Sequences that are longer than the model
reads are cut into windows that overlap by half. Masking makes no sense here: in stage 1 the transformers
predict each id from those before it. Everything else is as in DEPS.
"""

from dataclasses import replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from unskew.core.config import Settings
from unskew.data.batches.batch import Batch, Prefixes, SequenceBatch, as_prefixes
from unskew.data.log.views import EventView, Ints
from unskew.models.deps import DEPS
from unskew.nn.device import device_of, on_device
from unskew.nn.layers import Encoder, is_real, read_before, states_after
from unskew.nn.losses import cross_entropy, divisor
from unskew.nn.phases import Batches, Stage
from unskew.nn.scoring import ENCODED

IN_PREFIXES: dict[Batches, Batches] = {"pairs": "prefixes", "positives": "positive-prefixes"}


class PrefixEncoder(Encoder):
    """A causal transformer over sequences that are padded on the right."""

    def forward(self, x_BLD: Tensor, real_BL: Tensor | None = None) -> Tensor:
        """A state for each position, (B, L, D), which has read its own position and those before.

        There is no mask, because no state reads the padding on its right.
        """
        x_BLD = self.dropout(x_BLD + self.positions[: x_BLD.shape[1]])
        for block in self.blocks:
            x_BLD = block(x_BLD, causal=True)
        return self.norm(x_BLD)

    def means(self, x_BLD: Tensor) -> Tensor:
        """The mean of the states of the first 0, 1, ..., L positions, (B, L + 1, D)."""
        if not x_BLD.shape[1]:
            return x_BLD.new_zeros(x_BLD.shape[0], 1, x_BLD.shape[2])
        count_L = torch.arange(1, x_BLD.shape[1] + 1, device=x_BLD.device)
        return functional.pad(self(x_BLD).cumsum(1) / count_L[:, None], (0, 0, 1, 0))


class CausalDEPS(
    DEPS,
    name="deps-causal",
    paper="a variant of Xu et al., CIKM 2022, that reads each sequence once; no paper",
):
    """DEPS whose transformers read each sequence once."""

    Transformer: ClassVar[type[Encoder]] = PrefixEncoder
    history_encoder: PrefixEncoder
    audience_encoder: PrefixEncoder
    # An epoch has few steps with such batches, so patience is counted in many epochs.
    recipe: ClassVar[Settings] = {"batch_size": 4096, "epochs": 300, "patience": 30}

    def histories(self, batch: Batch) -> Tensor:
        def means(ids_BL: Tensor) -> Tensor:
            return self.history_encoder.means(self.items.hiding(ids_BL))  # eq. EmbedSeqI

        return states_after(batch.histories, means)

    def audiences(self, batch: Batch) -> Tensor:
        return self._side(batch.audiences)

    def audience_side(self, audience_AM: Tensor) -> Tensor:
        return self._side(as_prefixes(audience_AM))

    def audience_sides(self, view: EventView, start: Ints, end: Ints) -> Tensor:
        """Audiences that begin with the same event are prefixes of the longest of them, which is read
        once."""
        if not len(start):
            return self.last.weight.new_zeros(0, self.config.hidden)
        first, row = np.unique(start, return_inverse=True)
        last = np.zeros(len(first), np.int64)
        np.maximum.at(last, row, end)
        order, sides = np.argsort(row, kind="stable"), []
        rows_of = np.searchsorted(row[order], np.arange(0, len(first) + ENCODED, ENCODED))
        for at, (begin, stop) in enumerate(pairwise(rows_of.tolist())):
            rows, some = slice(at * ENCODED, (at + 1) * ENCODED), order[begin:stop]
            ids_WL = view.padded(first[rows], last[rows], right=True).astype(np.int64)
            prefixes = Prefixes(
                *map(torch.from_numpy, (ids_WL, row[some] - at * ENCODED, (end - start)[some]))
            )
            sides.append(self._side(on_device(prefixes, device_of(self))))
        return torch.cat(sides)[on_device(torch.from_numpy(order), device_of(self)).argsort()]

    def _side(self, audiences: Prefixes) -> Tensor:
        """The part of each audience in the first layer of the MLP, (N, H)."""
        if self.of_audience is None:
            return self.last.weight.new_zeros(len(audiences.row_N), self.config.hidden)

        def means(ids_BM: Tensor) -> Tensor:
            return self.audience_encoder.means(self.users.hiding(ids_BM))  # eq. EmbedSeqU

        return self.of_audience(states_after(audiences, means))

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        first, second = super().stages(epochs)
        prefixed = tuple(
            replace(phase, batches=IN_PREFIXES.get(phase.batches, phase.batches)) for phase in second.phases
        )
        return first, replace(second, phases=prefixed)

    def masked_loss(self, batch: SequenceBatch) -> Tensor:
        """lambda_p times the mean cross-entropy of each id given those strictly before it, of all ids that
        have any."""
        # If a batch has nothing to predict, the gradient is zero, but it must exist.
        total, count = 0 * self.items.unknown.sum(), 0
        for encoder, table, ids, past in (
            (self.history_encoder, self.items, batch.items_BL, batch.past_BL),
            (self.audience_encoder, self.users, batch.users_BM, batch.users_past_BM),
        ):
            is_target_BL = is_real(ids) & (past > 0)
            if encoder is None or not bool(is_target_BL.any()):
                continue
            row, before = is_target_BL.nonzero()[:, 0], past[is_target_BL]
            states = encoder(table(read_before(ids, before)))[row, before - 1]
            total, count = total + cross_entropy(states, table, ids[is_target_BL]), count + len(row)
        return self.config.mlm_weight * total / divisor(count)
