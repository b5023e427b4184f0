"""Corrections: what a loss makes of propensities, so that what it learns comes nearer to preference.

A click needs exposure and preference, P(c = 1) = p r. A loss over clicks and sampled negatives learns p r;
each correction takes p^strength out of it:

    logit-offset        logits s + strength log p while training, ranking by s: the optimum of a softmax over
                        s + log p is s = log r + constant, and that of a binary cross-entropy likewise
    weighted-negatives  a sampled negative counts p^strength times as much as another one. In a softmax, or
                        where two items are compared, that is the offset; so such losses get the offset
    ips                 an observed pair counts p^(-strength) times as much; sampled negatives count once
    ips-both            clicks and sampled negatives both count 1 / p times as much: the paper's way. With
                        sampled negatives the optimum stays at odds of p r, whatever the clip; with
                        impressions, where both labels were observed, it is unbiased

`logit-offset` and `weighted-negatives` use p of the item at that time, without anything personal: exposure
that follows taste carries taste. Their factors are bounded. `ips` and `ips-both` use p of the pair, clipped
from below.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.core.ranks import ranks
from unskew.data.batches.batch import Batch, Offset, SequenceBatch, batch_of_rows
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.nn.device import device_of, on_device
from unskew.nn.phases import Phase
from unskew.propensity.base import Propensity, estimator_named

Method = Literal["auto", "logit-offset", "weighted-negatives", "ips", "ips-both"]
Scale = Literal["clipped", "ips", "snips"]
ROWS = 2048  # rows whose weights are computed together
MOMENTS = 16  # stretches of the training set at whose beginnings the offsets of all items are kept


def has_impressions(split: Split) -> bool:
    """Whether the training set says what was shown and not clicked, at least as often as what was clicked.
    Otherwise negatives are sampled."""
    label = split.log.label[split.mask("train")]
    return int((label == 0).sum()) >= max(int((label == 1).sum()), 1)


def resolve_auto_settings(config: Any, split: Split, separate: bool, reads_shown: bool = True) -> Any:
    """The same settings with everything chosen that is `auto`, for a loss that is a sum over single pairs
    (`separate`) or not, and that reads what was shown and not clicked, where the log says so, or not."""
    impressions = has_impressions(split)
    method, propensity, strength = config.method, config.propensity, config.strength
    both_observed = separate and reads_shown and impressions
    if strength is None and (method, propensity) == ("auto", "auto") and both_observed:
        strength = (
            0.0  # such a loss learns r of what is shown as it is; weights did harm (docs/ground-truth.md)
        )
    if propensity == "auto":
        propensity = "exposure" if impressions else "power"
    if method == "auto" and (not estimator_named(propensity).knows_items() or both_observed):
        method = "ips"
    elif method == "auto":
        method = "weighted-negatives" if separate else "logit-offset"
    if strength is None:
        # Half came nearer to the ground truth than all of it (docs/ground-truth.md).
        strength = 1.0 if method == "ips-both" else 0.5
    return replace(config, method=method, propensity=propensity, strength=strength)


def idle_settings(propensity: str, method: Method) -> set[str]:
    """The settings of a correction that change nothing with this estimator and this method."""
    if propensity == "none":
        return {"strength", "alpha", "clip", "propensity_scale"}
    idle = {"strength"} if method == "ips-both" else set()
    if method in ("logit-offset", "weighted-negatives"):  # which read the exposure of items alone
        idle |= {"alpha", "clip"}
    kind = estimator_named(propensity)
    idle |= set() if kind.has_scale else {"propensity_scale"}
    return idle if kind.has_two_views() else idle | {"alpha"}


class Correction:
    """Changes the batches of a loss by a propensity.

    strength: how much of the propensity is taken out; 1 is all of it, and so is None.
    scale: what weights are divided by: `clipped` multiplies by the clip, so that none is above one; `ips`
        divides by their mean in training, `snips` by their mean in the batch.
    past: how many past items and past users the estimator reads.
    """

    def __init__(
        self,
        propensity: Propensity,
        method: Method,
        strength: float | None,
        scale: Scale,
        past: tuple[int, int | None],
    ) -> None:
        self.propensity, self.method, self.scale, self.past = propensity, method, scale, past
        self.strength = 1.0 if strength is None else strength
        if untrained := propensity.untrained_parameter_names():
            raise BadInput(
                f"estimator `{propensity.name or type(propensity).__name__}`: no phase trains its parameters "
                f"{', '.join(sorted(untrained))}; `phases` must name them"
            )
        self._split: Split | None = None
        self._of_rows: Tensor | None = None
        self._mean: float | None = None
        self._moments: tuple[Ints, Offset] | None = None

    def fit_statistics(self, split: Split) -> None:
        """Count and fit on the training set what the estimator needs."""
        self._split = split
        self.propensity.fit_statistics(split)

    def forget(self) -> None:
        """Compute weights and offsets again: the estimator is about to learn."""
        self._of_rows = self._mean = self._moments = None

    def phases(self, passes: int = 1, prefix: str = "") -> tuple[Phase, ...]:
        """The phases that train the estimator, which each go through their batches `passes` times in an
        epoch; the recommender may have phases of the same names, so theirs get a prefix."""

        def learning(phase: Phase) -> Phase:
            def loss(batch: Any) -> Tensor:
                self.forget()
                return phase.loss(batch)

            return replace(
                phase,
                name=prefix + phase.name,
                loss=loss,
                weighted=False,
                passes=phase.passes * passes,
                past=phase.past or self.past,
            )

        return tuple(map(learning, self.propensity.phases()))

    @property
    def debias(self) -> float:
        """How much of the exposure is taken out of the scores. Of `ips-both`, nothing is known."""
        return 0.0 if self.method == "ips-both" else self.strength

    @property
    def _training(self) -> Split:
        assert self._split is not None, "a correction needs a split, which it has only in training"
        return self._split

    # Batches

    @torch.no_grad()
    def of_pairs(self, batch: Batch, separate: bool) -> Batch:
        """A batch of candidates, whose first one in each context is a row of the log; the others are sampled.
        The loss is a sum over single pairs (`separate`), or it compares them, and then only the first
        candidate is weighted."""
        if self.method in ("ips", "ips-both"):
            weighted = batch if separate and self.method == "ips-both" else batch.of_targets()
            weight = self._weights(weighted.truncate(*self.past))
            weight = self._scaled(weight, torch.ones_like(weight).bool())
            once = weight.new_ones(len(weight), batch.candidates_BC.shape[1] - weight.shape[1])
            return batch._replace(weight_BC=torch.cat([weight, once], dim=1))
        offset_BC = self._offset_of(batch)
        if self.method == "weighted-negatives" and separate:
            weight = offset_BC.exp()
            weight[:, 0] = 1
            return batch._replace(weight_BC=weight)
        return batch._replace(offset_BC=offset_BC, offset=self._offset(batch.times_B))

    @torch.no_grad()
    def of_sequences(self, batch: SequenceBatch) -> SequenceBatch:
        """A batch of whole histories, whose events are predicted."""
        if self.method in ("ips", "ips-both"):
            weight_BL = self._rows().to(batch.event_BL.device)[batch.event_BL]
            return batch._replace(weight_BL=self._scaled(weight_BL, batch.target_BL))
        return batch._replace(offset=self._offset(batch.time_BL))

    @torch.no_grad()
    def of_own(self, batch: Any) -> Any:
        """A batch of a model's own kind, with the fields that `Phase` names."""
        if self.method in ("ips", "ips-both"):
            weight_B = self._rows().to(batch.event_B.device)[batch.event_B]
            return batch._replace(weight_B=self._scaled(weight_B, torch.ones_like(weight_B).bool()))
        return batch._replace(offset_BC=self._offset_of(batch))

    # Offsets

    def _offset_of(self, batch: Any) -> Tensor:
        """strength log p of each candidate at its own time, relative to the mean of p over all items then."""
        item, time = batch.candidates_BC.cpu().numpy(), batch.times_B.cpu().numpy()
        exposure = self.propensity.log_exposure(self._training.log, item, time[:, None])
        raw = self.strength * exposure.to(batch.candidates_BC.device)
        moments, _ = self._at_moments()
        means_B = self._means.cpu()[_newest(moments, time)].to(raw.device)
        return raw.float() - means_B[:, None]

    def _offset(self, time: Tensor) -> Offset:
        """The same for all items, as of the newest moment that is kept."""
        moments, offset = self._at_moments()
        moment_N = torch.from_numpy(_newest(moments, time.cpu().numpy()))
        return on_device(offset._replace(moment_N=moment_N), time.device)

    def _at_moments(self) -> tuple[Ints, Offset]:
        if self._moments is None:
            log = self._training.log
            times = np.sort(log.time[self._training.mask("train") & (log.label == 1)])
            places = (np.arange(MOMENTS) * len(times)) // MOMENTS
            # In the first stretch counts grow many times over, so it is halved again and again.
            early = (len(times) // MOMENTS) >> np.arange(1, len(times).bit_length())
            moments = np.unique(times[np.union1d(places, early)])
            items = np.arange(len(log.items))
            table = self.strength * self.propensity.log_exposure(log, items, moments[:, None]).cpu().float()
            existing = log.audiences.existing(moments)
            # As where negatives are drawn: at the very first moment all known items count.
            existing = np.where(existing > 0, existing, self._training.known_items)
            exists = torch.from_numpy(items[None] < existing[:, None])
            total = torch.logsumexp(table.masked_fill(~exists, -torch.inf), dim=1)
            self._means = total - torch.from_numpy(np.log(existing)).float()
            nowhere = torch.zeros(0, dtype=torch.int64)
            self._moments = moments, Offset(nowhere, table - self._means[:, None])
        return self._moments

    # Weights

    def _scaled(self, weight: Tensor, counted: Tensor) -> Tensor:
        """The weights on the scale of a loss without weights, so that clipping gradients by their norm has
        the same effect. Only those that belong to targets (`counted`) count in the mean of a batch."""
        if self.scale == "snips":
            return weight / ranks().mean(weight[counted]) if bool(counted.any()) else weight
        if self.scale == "clipped" and self.method == "ips-both":
            return weight * self.propensity.clip  # as in DEPS, so that no weight is above one
        return weight / self._typical()

    def _typical(self) -> float:
        """The mean weight of a fixed sample of training positives: one constant, so that a weighted loss
        stays unbiased up to that constant."""
        if self._mean is None:
            rows = self._positives()
            rows = np.sort(np.random.default_rng(23).permutation(rows)[:ROWS])
            self._mean = float(self._weights_of(rows).mean())
        return self._mean

    def _positives(self) -> Ints:
        log = self._training.log
        return np.flatnonzero(self._training.mask("train") & (log.label == 1))

    def _weights_of(self, rows: Ints) -> Tensor:
        """The weights of some rows of the log, (N,)."""
        batch = batch_of_rows(self._training.log, rows, *self.past)
        return self._weights(on_device(batch, device_of(self.propensity))).squeeze(1).cpu()

    def _weights(self, batch: Batch) -> Tensor:
        """The weight of each pair of a batch, before it is scaled."""
        if self.method == "ips" and self.strength == 0:
            return torch.ones_like(batch.candidates_BC, dtype=torch.float32)
        weight = self.propensity.weights(batch)
        return weight**self.strength if self.method == "ips" else weight

    def _rows(self) -> Tensor:
        """The weight of every training positive, by its row in the log."""
        if self._of_rows is None:
            rows = self._positives()
            self._of_rows = torch.zeros(len(self._training.log))
            for first in range(0, len(rows), ROWS):
                some = rows[first : first + ROWS]
                self._of_rows[torch.from_numpy(some)] = self._weights_of(some)
        return self._of_rows


def _newest(moments: Ints, time: Ints) -> Ints:
    """The newest of the moments that is not after each time; the first one before all of them."""
    return np.maximum(np.searchsorted(moments, time, "right") - 1, 0)
