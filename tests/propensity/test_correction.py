"""Corrections by hand: which column of a batch has which weight or offset, on which scale, and as of when."""

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike
from torch import Tensor

import unskew
from tests.helpers.contract import close
from unskew.data.batches.batch import Batch, SequenceBatch, batch
from unskew.data.batches.samplers import SequenceSampler
from unskew.models.base import build, model_named
from unskew.models.debiased import Debiased
from unskew.propensity.base import Propensity
from unskew.propensity.correction import MOMENTS, Correction, Method, Scale

CLIP = 0.35


class Known(Propensity):
    """A pair of item i is shown with a chance of (i + 1) / 10, and items as often as they were clicked."""

    factor = 1.0

    def item_view(self, batch: Batch) -> Tensor:
        return self.factor * (batch.candidates_BC + 1) / 10

    def user_view(self, batch: Batch) -> None:
        return None

    def log_exposure(self, log: unskew.Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        start, end = log.audiences.before(item, time)
        return torch.from_numpy(np.log1p(end - start))


# Six users; item 0 at times 0, 1, ..., item 1 from time 2 on, item 2 from 4 on, item 3 from 6 on.
CLICKS = [(time % 6, item, time) for time in range(24) for item in range(4) if time >= 2 * item]


def log_of(rows: list[tuple[int, int, int]], label: list[int] | None = None) -> unskew.Log:
    user, item, time = zip(*rows, strict=True)
    more = {} if label is None else {"label": label}
    return unskew.read({"user": user, "item": item, "time": time, **more})


@cache
def small() -> unskew.Split:
    return unskew.split(log_of(CLICKS), fractions=(3, 0, 1))


def count(item: int, time: int) -> int:
    """The clicks on an item strictly before a time."""
    return sum(its == item and when < time for _, its, when in CLICKS)


def correction(
    method: Method, power: float | None = None, scale: Scale = "clipped", clip: float = CLIP
) -> Correction:
    made = Correction(Known(clip=clip), method, power, scale, (5, 5))
    made.fit_statistics(small())
    return made


def pairs(labels: ArrayLike | None = None) -> Batch:
    """Two contexts: rows of the log with items 1 and 3, each with two drawn items."""
    candidates = [[1, 0, 2], [3, 2, 0]]
    return batch(
        small().log, [2, 3], [8, 13], candidates, [[1, 0, 0], [1, 0, 0]] if labels is None else labels
    )


INVERSE = 1 / torch.tensor([[0.35, 0.35, 0.35], [0.4, 0.35, 0.35]])  # of pairs(), clipped


def mean_weight(power: float, clip: float = CLIP) -> float:
    """Of the training positives."""
    rows = [item for _, item, time in CLICKS if time < small().train_end]
    return float(np.mean([max((item + 1) / 10, clip) ** -power for item in rows]))


# Weights


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("scale", ["clipped", "ips"])
def test_weights_are_of_the_logged_row_and_drawn_items_count_once(power: float, scale: Scale) -> None:
    corrected = correction("ips", power, scale).of_pairs(pairs(), separate=True)
    assert corrected.weight_BC is not None
    close(corrected.weight_BC[:, 0], INVERSE[:, 0] ** power / mean_weight(power))
    assert corrected.weight_BC[:, 1:].tolist() == [[1, 1], [1, 1]]
    assert (corrected.offset_BC, corrected.offset) == (None, None)


def test_snips_is_a_mean_of_one_over_the_logged_rows() -> None:
    """What is drawn counts once, so it is no part of the mean, either."""
    corrected = correction("ips", 1.0, "snips", 0.001).of_pairs(pairs(), separate=True)
    assert corrected.weight_BC is not None
    close(corrected.weight_BC, torch.tensor([[5 / 3.75, 1, 1], [2.5 / 3.75, 1, 1]]))


def test_both_sides_are_weighted_equally_and_have_no_power() -> None:
    for scale, by in (("clipped", 1 / CLIP), ("ips", mean_weight(1.0)), ("snips", float(INVERSE.mean()))):
        for power in (None, 0.5):
            made = correction("ips-both", power, scale)
            corrected = made.of_pairs(pairs(), separate=True)
            assert corrected.weight_BC is not None
            close(corrected.weight_BC, INVERSE / by)


@pytest.mark.parametrize(("method", "power"), [("ips-both", 1.0), ("ips", 0.5)])
def test_impressions_are_weighted_whatever_their_label(method: Method, power: float) -> None:
    asked = batch(small().log, [1, 1, 4], [9, 9, 9], [[3], [0], [3]], [[1], [0], [0]])
    corrected = correction(method, power, "ips", 0.001).of_pairs(asked, separate=True)
    assert corrected.weight_BC is not None
    expected = torch.tensor([[0.4], [0.1], [0.4]]) ** -power / mean_weight(power, 0.001)
    close(corrected.weight_BC, expected)


@pytest.mark.parametrize(("method", "power"), [("ips-both", 1.0), ("ips", 0.5)])
def test_events_of_histories_have_the_weights_of_their_rows(method: Method, power: float) -> None:
    made = correction(method, power, "ips", 0.001)
    for asked in SequenceSampler(small(), 4, 0, 8, audience=None, overlap=1).epoch():
        found = made.of_sequences(asked).weight_BL
        assert found is not None
        expected = ((asked.items_BL + 1) / 10.0) ** -power / mean_weight(power, 0.001)
        close(found[asked.target_BL], expected[asked.target_BL])


class Own(NamedTuple):
    """A batch of a model's own kind."""

    event_B: Tensor
    times_B: Tensor
    candidates_BC: Tensor
    weight_B: Tensor | None = None
    offset_BC: Tensor | None = None


def test_a_batch_of_a_models_own_kind() -> None:
    log = small().log
    rows = np.flatnonzero(log.time < small().train_end)[[0, 7, 30]]
    asked = Own(
        torch.from_numpy(rows), torch.tensor([8, 13, 13]), torch.tensor([[1, 0, 2], [3, 2, 0], [0, 1, 3]])
    )
    weighted = correction("ips", 0.5, "ips", 0.001).of_own(asked)
    p = torch.from_numpy((log.item[rows] + 1) / 10).float()
    close(weighted.weight_B, p**-0.5 / mean_weight(0.5, 0.001))
    assert weighted.offset_BC is None
    for method in ("logit-offset", "weighted-negatives"):
        moved = correction(method).of_own(asked)
        assert moved.weight_B is None
        close(moved.offset_BC[:2], correction("logit-offset").of_pairs(pairs(), separate=True).offset_BC)


def test_forgotten_weights_are_computed_again() -> None:
    made = correction("ips", 1.0, "ips", 0.001)
    asked = next(iter(SequenceSampler(small(), 4, 0, 8, audience=None, overlap=1).epoch()))
    before = made.of_sequences(asked).weight_BL, made.of_pairs(pairs(), separate=True).weight_BC
    assert isinstance(made.propensity, Known)
    rows, mean = made._rows().clone(), made._typical()
    made.propensity.factor = 0.5  # all weights are twice as large now, and so is their mean
    assert torch.equal(made.of_sequences(asked).weight_BL, before[0])
    close(made.of_pairs(pairs(), separate=True).weight_BC[:, 0], 2 * before[1][:, 0])  # the mean is kept
    made.forget()
    close(made._rows(), 2 * rows)
    assert made._typical() == pytest.approx(2 * mean)
    close(made.of_sequences(asked).weight_BL, before[0])
    close(made.of_pairs(pairs(), separate=True).weight_BC, before[1])


# Offsets


def offset_by_hand(item: int, time: int, power: float, moment: int) -> float:
    """power log(1 + n), relative to the mean over the items that exist at the moment."""
    exist = [each for each in range(4) if count(each, moment)] or list(range(4))
    mean = np.mean([(1 + count(each, moment)) ** power for each in exist])
    return float(power * np.log(1 + count(item, time)) - np.log(mean))


@pytest.mark.parametrize("method", ["logit-offset", "weighted-negatives"])
@pytest.mark.parametrize("power", [None, 0.5])
def test_offsets_by_hand(method: Method, power: float | None) -> None:
    made = correction(method, power)
    moments, table = made._at_moments()
    corrected, by = made.of_pairs(pairs(), separate=False), power or 1.0
    newest = [max(moment for moment in moments.tolist() if moment <= time) for time in (8, 13)]
    assert corrected.weight_BC is None
    assert corrected.offset_BC is not None
    assert corrected.offset is not None
    for row, (time, items) in enumerate(zip((8, 13), pairs().candidates_BC.tolist(), strict=True)):
        for column, item in enumerate(items):
            expected = offset_by_hand(item, time, by, newest[row])
            assert float(corrected.offset_BC[row, column]) == pytest.approx(expected, abs=1e-5)
            expected = offset_by_hand(item, newest[row], by, newest[row])
            found = table.table_MV[corrected.offset.moment_N[row], item]
            assert float(found) == pytest.approx(expected, abs=1e-5)
    assert moments[corrected.offset.moment_N.numpy()].tolist() == newest


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_negatives_of_single_pairs_are_weighted_by_the_same_number(power: float) -> None:
    made = correction("weighted-negatives", power)
    corrected = made.of_pairs(pairs(), separate=True)
    offset = made.of_pairs(pairs(), separate=False).offset_BC
    assert offset is not None
    assert corrected.weight_BC is not None
    assert (corrected.offset_BC, corrected.offset) == (None, None)
    assert corrected.weight_BC[:, 0].tolist() == [1, 1]
    close(corrected.weight_BC[:, 1:], offset[:, 1:].exp())
    # p itself: an item with three times the clicks counts three times as much.
    ratio = float(corrected.weight_BC[1, 2] / corrected.weight_BC[1, 1])
    assert ratio == pytest.approx(((1 + count(0, 13)) / (1 + count(2, 13))) ** power)


def test_an_offset_goes_to_single_pairs_too() -> None:
    made = correction("logit-offset")
    one, other = (made.of_pairs(pairs(), separate=separate) for separate in (True, False))
    assert one.weight_BC is None
    assert torch.equal(one.offset_BC, other.offset_BC)


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_mean_over_the_items_that_exist_is_one(power: float) -> None:
    """At the very first moment nothing exists, and all known items count, as where negatives are drawn."""
    made = correction("logit-offset", power)
    moments, table = made._at_moments()
    existing = [sum(count(item, moment) > 0 for item in range(4)) for moment in moments.tolist()]
    assert existing[0] == 0
    assert set(existing) >= {1, 3, 4}
    for row, size in zip(table.table_MV, existing, strict=True):
        assert float(row[: size or 4].exp().mean()) == pytest.approx(1, rel=1e-5)


def test_where_all_is_one_moment_the_mean_is_over_all_known_items() -> None:
    """Like Coat: popularity is known, and no item was there before."""
    rows = [(user, item, 0) for item in range(4) for user in range(item + 1)] + [(0, 9, 5)]
    split = unskew.split(log_of(rows), fractions=(10, 0, 1))
    kind = model_named("debiased-uir")
    made = build(kind, split, kind.Config(method="weighted-negatives", propensity="item-pro", strength=1.0))
    assert isinstance(made, Debiased)
    asked = batch(split.log, [0], [0], [[3, 0, 1, 2, 3]])
    weight = made.correction.of_pairs(asked, separate=True).weight_BC
    assert weight is not None
    fractions = np.array([split.item_counts[item] for item in (0, 1, 2, 3)])
    close(weight[0, 1:], torch.from_numpy(fractions / fractions.mean()).float())


def test_moments_are_spread_over_training_and_dense_at_its_beginning() -> None:
    """So the mean is never far from one between two of them, although counts begin at nothing."""
    rows = [(n % 7, int(item), n) for n, item in enumerate(np.random.default_rng(0).integers(0, 5, 3200))]
    shown = [(7 + n, 0, 3100) for n in range(800)]  # and not clicked: it moves no moment
    split = unskew.split(log_of(rows + shown, [1] * len(rows) + [0] * len(shown)), fractions=(1, 0, 0))
    made = Correction(Known(), "weighted-negatives", 1.0, "clipped", (5, 5))
    made.fit_statistics(split)
    moments = made._at_moments()[0]
    assert {200 * n for n in range(MOMENTS)} | {100, 50, 25, 12, 6, 3, 1, 0} == set(moments.tolist())
    times = np.arange(20, 3200, 13)
    asked = batch(split.log, 0 * times, times, np.tile(np.arange(5), (len(times), 1)))
    means = made._offset_of(asked).exp().mean(1)
    assert float(means.min()) > 0.99
    assert float(means.max()) < 2.0


def test_the_newest_moment_that_is_not_after_is_used() -> None:
    made = correction("logit-offset")
    moments, table = made._at_moments()
    second = int(moments[1])
    times = torch.tensor([[-1, 0, second - 1], [second, int(moments[-1]) - 1, 10**6]])
    found = made._offset(times)
    assert found.moment_N.tolist() == [[0, 0, 0], [1, len(moments) - 2, len(moments) - 1]]
    assert torch.equal(found.table_MV, table.table_MV)
    assert made._offset(torch.tensor([small().train_end])).moment_N.tolist() == [len(moments) - 1]
    assert moments.max() < small().train_end


def test_sequences_have_the_offsets_of_the_time_of_each_event() -> None:
    made = correction("weighted-negatives")
    asked: SequenceBatch = next(iter(SequenceSampler(small(), 4, 0, 8, audience=None, overlap=1).epoch()))
    corrected = made.of_sequences(asked)
    assert corrected.weight_BL is None
    offset = corrected.targets().offset
    assert offset is not None
    moments = made._at_moments()[0]
    for place, time in zip(offset.moment_N.tolist(), asked.time_BL[asked.target_BL].tolist(), strict=True):
        assert moments[place] <= time
        assert place == len(moments) - 1 or moments[place + 1] > time


@pytest.mark.parametrize("border", [8, 12, 13])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_no_event_at_or_after_a_time_changes_its_offsets(border: int, power: float) -> None:
    """In another log all clicks from the border on are on item 0; those before are what they were."""
    other = [
        ((user + item) % 6, 0 if time >= border else item, time) if time >= border else (user, item, time)
        for user, item, time in CLICKS
    ]
    found = []
    for rows in (CLICKS, other):
        split = unskew.split(log_of(rows), fractions=(3, 0, 1))
        made = Correction(Known(), "logit-offset", power, "clipped", (5, 5))
        made.fit_statistics(split)
        times = [border - 1, border, border + 1]
        asked = batch(split.log, [0, 0, 0], times, np.tile(np.arange(4), (3, 1)))
        found.append((made._offset_of(asked), made._offset(asked.times_B), made._at_moments()[0]))
    (exact, kept, moments), (same, again, its) = found
    assert moments.tolist() == its.tolist()
    close(exact[:2], same[:2])
    assert not torch.allclose(exact[2], same[2], rtol=1e-2)
    assert torch.equal(kept.moment_N, again.moment_N)
    before = torch.from_numpy(moments <= border)
    assert 3 < int(before.sum()) < len(moments)
    close(kept.table_MV[before], again.table_MV[before])
    assert not torch.allclose(kept.table_MV[~before], again.table_MV[~before], rtol=1e-2)
