"""`exposure`: the probability that a pair was shown, learned from what was shown and what was not.

    logit P(o = 1) = b + w . f(i, t) - log sum_j exp(w . f(j, t)) + b_i + personal
    personal       = <P_u + 3 mean E(last clicks), Q_i> + <G_u, 3 mean F(last of the audience)>

    f           log1p of the clicks and of the impressions of an item strictly before t: plain, and fading
                with half-lives of a quarter and of a 32nd of the training set
    sum_j       over all items that were shown before t, so that an impression shows about as many at any time
    b_i         what is left of an item, where it helps
    mean        of the last 20, each counting 0.9 times as much as the next one

It needs a log with impressions. The likelihood is that of shown against not shown, over the items of each
training impression that was not random; where many items exist, those that were not shown are drawn and
weighted.
First b and w are fitted by Newton's method, then the rest by Adam, stopped on held-out training impressions;
then b and w again, given the personal terms. At last the whole logit is calibrated on the held-out
impressions.
Nothing of the validation or the test set is read. In impressions that were served at random, P(o = 1) is the
number of items that such an impression shows, divided by that of all items.
"""

from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.nn import functional

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, Prefixes
from unskew.data.log.log import Log
from unskew.data.log.split import Known, Split
from unskew.data.log.views import PAD, Ints
from unskew.nn.device import on_device
from unskew.propensity.base import Coefficient, Needs, Propensity
from unskew.propensity.exposure_fit import RECENT, Fitting, fading, fit, sides
from unskew.propensity.impressions import ItemPast, Mask, Moments, drawn_at_random, shown_before, spread_items


class Exposure(Propensity, name="exposure"):
    """P(o = 1) from impressions: how popular an item is at the time, and who sees what. The item view is the
    whole probability; there is no user view. `log_exposure` has b and w alone: b_i made it no better wherever
    the ground truth is known."""

    named: ClassVar[tuple[str, ...]] = ("constant", *ItemPast.NAMES)
    theta: Tensor  # b and w
    covariance: Tensor  # of these
    line: Tensor  # the intercept and the slope of the calibration
    moments: Tensor  # the first one, and the ticks between two
    half_lives: Tensor
    random_share: Tensor  # P(o = 1) in impressions that are served at random
    item_bias: Tensor
    user_P: Tensor
    history_E: Tensor
    item_Q: Tensor
    user_G: Tensor
    audience_F: Tensor

    def __init__(self, known: Known, alpha: float, clip: float, fitting: Fitting | None = None) -> None:
        super().__init__(alpha, clip)
        self.fitting, size = Fitting() if fitting is None else fitting, len(self.named)
        shapes: dict[str, tuple[int, ...]] = {"theta": (size,), "covariance": (size, size), "line": (2,)}
        for name, shape in (shapes | {"half_lives": (2,), "random_share": ()}).items():
            self.register_buffer(name, torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("moments", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("item_bias", torch.zeros(known.items.size, 1))
        for name, ids in sides(known).items():
            self.register_buffer(name, torch.zeros(ids.size, self.fitting.width))

    @classmethod
    def build(cls, needs: Needs) -> "Exposure":
        return cls(needs.known, needs.alpha, needs.clip)

    @torch.no_grad()
    def fit_statistics(self, split: Split) -> None:
        for name, tensor in fit(split, self.fitting).items():
            self.get_buffer(name).copy_(tensor)

    def coefficients(self) -> tuple[Coefficient, ...]:
        """What is not personal, b and w, with standard errors. They come from the observed information and
        from how much users differ (a sandwich), and take the personal terms as given. The features are
        correlated, so their sum is known better than each."""
        errors = self.covariance.diagonal().sqrt().tolist()
        return tuple(Coefficient(*each) for each in zip(self.named, self.theta.tolist(), errors, strict=True))

    def item_view(self, batch: Batch) -> Tensor:
        if batch.log is None:
            raise BadInput("`exposure` counts what happened in a log, and this batch comes from none")
        user, time, item = batch.user_B.cpu().numpy(), batch.times_B.cpu().numpy(), batch.candidates_BC
        logit = (
            self._base(batch.log.frozen(), item.cpu().numpy(), time[:, None]).float()
            + _rows(self.item_bias, item)[..., 0]
        )
        side_BD = _rows(self.user_P, batch.user_B) + _mean(self.history_E, batch.histories)
        logit = logit + torch.einsum("bd,bcd->bc", side_BD, _rows(self.item_Q, item))
        audience_AD, user_BD = _mean(self.audience_F, batch.audiences), _rows(self.user_G, batch.user_B)
        logit = logit + torch.einsum("bd,bcd->bc", user_BD, audience_AD[batch.audience_of_BC])
        chance = torch.sigmoid(self.line[0].float() + self.line[1].float() * logit)
        is_random = torch.from_numpy(served_at_random(batch.log.frozen(), user, time))
        random_B1 = on_device(is_random, item.device)[:, None]
        return torch.where(random_B1, self.random_share.float(), chance)

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        return functional.logsigmoid(self._base(log, item, time)).float()

    def _base(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        """b + w . f - log sum exp: the logit without anything personal."""
        if not int(self.moments[1]):
            raise BadInput("this `exposure` has not been fitted: call `fit_statistics` first")
        past, sums = self._past(log)
        theta = self.theta.cpu().numpy()
        moments, which = Moments(*self.moments.tolist()).of_times(time)
        for moment in moments.tolist():
            if moment not in sums:
                items, times = spread_items(shown_before(log, moment), len(self.item_bias))
                logit = past.at(items, moment) @ theta[1:]
                sums[moment] = float(logit.max() + np.log(np.exp(logit - logit.max()).sum() * times))
        total = np.array([sums[moment] for moment in moments.tolist()])[which]
        logit = torch.from_numpy(np.asarray(theta[0] + past.at(item, time) @ theta[1:] - total))
        return on_device(logit, self.theta.device)

    def _past(self, log: Log) -> tuple[ItemPast, dict[int, float]]:
        """The counts of a log, and the sums over all items at the moments that were asked for already."""
        key = (*self.theta.tolist(), *self.moments.tolist(), *self.half_lives.tolist())
        kept = _PASTS.get(log)
        if kept is None or kept[0] != key:
            slow, fast = self.half_lives.tolist()
            kept = _PASTS[log] = (key, ItemPast(log, (slow, fast)), {})
        return kept[1], kept[2]


# What was counted in a log, for the estimator that asked last.
_PASTS: WeakKeyDictionary[Log, tuple[tuple[float, ...], ItemPast, dict[int, float]]] = WeakKeyDictionary()
_RANDOM: WeakKeyDictionary[Log, tuple[Ints, Ints]] = WeakKeyDictionary()


def served_at_random(log: Log, user: Ints, time: Ints) -> Mask:
    """Whether all that the log shows each user at each time was drawn at random (`drawn_at_random`)."""
    if log.exposed is None:
        return np.zeros(len(user), bool)
    if log not in _RANDOM:
        random = drawn_at_random(log)
        times = np.unique(log.time[random])
        ticks = np.searchsorted(times, log.time)
        keys = log.user.astype(np.int64) * (len(times) + 1) + ticks
        others = ~random & np.isin(log.time, times)
        _RANDOM[log] = times, np.setdiff1d(keys[random], keys[others])
    times, impressions = _RANDOM[log]
    if not len(impressions):
        return np.zeros(len(user), bool)
    ticks = np.searchsorted(times, time)
    is_a_time = times[np.minimum(ticks, len(times) - 1)] == time
    keys = user.astype(np.int64) * (len(times) + 1) + ticks
    positions = np.minimum(np.searchsorted(impressions, keys), len(impressions) - 1)
    return np.asarray(is_a_time & (impressions[positions] == keys))


def _mean(table: Tensor, prefixes: Prefixes) -> Tensor:
    """The fading mean of the vectors of the newest ids of each sequence, (N, D); unknown ones are zero."""
    ids_WL, length_N1 = prefixes.ids_WL, prefixes.length_N[:, None]
    if not ids_WL.numel():
        return table.new_zeros(len(length_N1), table.shape[1])
    place_NL = length_N1 - RECENT + torch.arange(RECENT, device=length_N1.device)
    ids_NL = ids_WL[prefixes.row_N[:, None], place_NL.clamp(min=0)].masked_fill(place_NL < 0, PAD)
    return torch.einsum("nl,nld->nd", fading(ids_NL != PAD), _rows(table, ids_NL))


def _rows(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of some ids, (..., D); zero for PAD and for ids that training never saw."""
    is_known = (ids >= 0) & (ids < len(table))
    if not len(table):
        return table.new_zeros(*ids.shape, table.shape[1])
    return functional.embedding(ids.masked_fill(~is_known, 0), table) * is_known[..., None]
