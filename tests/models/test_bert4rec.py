"""BERT4Rec by hand: which places are masked, which of them count, and where the mask stands."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.helpers.by_hand import context, in_order, padded, sequences
from unskew.data.batches.batch import SequenceBatch, batch
from unskew.data.log.views import PAD
from unskew.models import bert4rec
from unskew.models.base import Training, build
from unskew.models.bert4rec import BERT4Rec, Cloze, cloze, masked_count
from unskew.nn.layers import is_real, reseed
from unskew.training.trainer import Trainer

HISTORY = 6


def model(split: unskew.Split, **settings: Any) -> BERT4Rec:
    """Away from its initial values, where much is zero."""
    torch.manual_seed(0)
    made = build(
        BERT4Rec,
        split,
        BERT4Rec.Config(**{"history": HISTORY, "width": 8, "inner": 12, "dropout": 0.0, **settings}),
    ).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return made


def window(ids: list[int], first_target: int = 0, weight: list[float] | None = None) -> SequenceBatch:
    wanted = [[int(place >= first_target) for place in range(len(ids))]]
    return sequences([ids], wanted=wanted, weight=None if weight is None else [weight])


def masking(monkeypatch: pytest.MonkeyPatch, *places: int) -> None:
    chosen = Cloze(torch.tensor([places]), torch.ones(1, len(places), dtype=torch.bool))
    monkeypatch.setattr(bert4rec, "cloze", lambda *_: chosen)


def scores(made: BERT4Rec, history: list[int]) -> Tensor:
    """Of all known items after a history."""
    return made.context(context(history)) @ made.vectors(torch.arange(made.items.known)).T


# Which places are masked


def test_how_many_places_are_masked() -> None:
    assert masked_count(torch.tensor([7, 200, 2]), 0.2, 40).tolist() == [1, 40, 1]
    assert masked_count(torch.tensor([50, 200]), 0.6, 30).tolist() == [30, 30]
    assert masked_count(torch.tensor([1, 3, 10]), 0.4, 20).tolist() == [1, 1, 4]


LENGTHS = [1, 2, 5, 7, 10]


def drawn(lengths: list[int], fraction: float, newest_only: float) -> tuple[Tensor, Cloze]:
    """Sequences of these lengths, each event at a moment of its own, and what is masked of them."""
    rows = [list(range(length)) for length in lengths]
    return padded(rows), cloze(padded(rows), in_order(rows), fraction, 30, newest_only)


@pytest.mark.parametrize("fraction", [0.01, 0.2, 0.6, 1.0])
def test_every_real_place_is_masked_some_time_and_no_other(fraction: float) -> None:
    reseed(0)
    ever = torch.zeros(5, 10, dtype=torch.bool)
    for _ in range(80):
        ids, hidden = drawn(LENGTHS, fraction, 0.0)
        masked = hidden.masked(ids)
        assert masked.sum(1).tolist() == [max(1, round(fraction * length)) for length in LENGTHS]
        assert torch.equal(masked.sum(1), hidden.chosen_BW.sum(1))
        ever |= masked
    assert torch.equal(ever, is_real(ids))  # the oldest place too


def test_masks_are_fresh_and_repeat_with_the_seed() -> None:
    reseed(1)
    (ids, first), (_, second) = drawn([10] * 20, 0.3, 0.1), drawn([10] * 20, 0.3, 0.1)
    reseed(1)
    _, again = drawn([10] * 20, 0.3, 0.1)
    assert torch.equal(first.masked(ids), again.masked(ids))
    assert not torch.equal(first.masked(ids), second.masked(ids))


def test_a_share_of_the_windows_masks_only_the_newest() -> None:
    reseed(2)
    ids, hidden = drawn(LENGTHS, 0.6, 1.0)
    assert torch.equal(hidden.masked(ids), torch.arange(10).expand(5, -1) == 9)
    many, hidden = drawn([10] * 4000, 0.6, 0.25)
    masked = hidden.masked(many)
    alone = masked.sum(1) == 1
    assert bool(masked[alone, -1].all())
    assert masked[~alone].sum(1).unique().tolist() == [6]
    assert abs(float(alone.float().mean()) - 0.25) < 0.03


def test_the_newest_of_a_basket_is_all_of_it() -> None:
    """What happened at the newest moment is no past, so recommending does not see it."""
    reseed(2)
    ids, past = padded([[3, 1, 4, 1, 5], [2, 6], [7]]), padded([[0, 0, 2, 2, 2], [0, 0], [0]], 0)
    for fraction in (0.2, 1.0):
        masked = cloze(ids, past, fraction, 30, 1.0).masked(ids)
        assert masked.tolist() == [
            [False, False, True, True, True],
            [False] * 3 + [True] * 2,
            [False] * 4 + [True],
        ]


# Which of them count


def test_the_loss_is_the_mean_over_masked_places_the_oldest_too(
    split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """True items with probabilities 1/2 and 1/4."""
    made = model(split)
    with torch.no_grad():
        made.head[2].weight.zero_()
        made.head[2].bias.zero_()  # so that the logits are the bias
        made.bias.weight.fill_(-torch.inf)
        made.bias.weight[:3, 0] = torch.tensor([0.5, 0.25, 0.25]).log()
        masking(monkeypatch, 0, 3)
        assert made.cloze_loss(window([0, 2, 2, 1])).item() == pytest.approx(1.03972, abs=1e-5)
        assert made.cloze_loss(window([0, 2, 2, 1], first_target=1)).item() == pytest.approx(
            1.38629, abs=1e-5
        )
        weighted = window([0, 2, 2, 1], weight=[3.0, 9.0, 9.0, 1.0])
        assert made.cloze_loss(weighted).item() == pytest.approx(
            (3 * math.log(2) + math.log(4)) / 2, abs=1e-5
        )
        made.bias.weight.zero_()  # the mask is nobody that could be predicted
        assert made.cloze_loss(window([0, 2, 2, 1])).item() == pytest.approx(
            math.log(split.known_items), abs=1e-5
        )


def test_the_head_and_the_bias_are_in_the_loss(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    made, rows = model(split), window([4, 1, 3, 5, 2])
    masking(monkeypatch, 1, 4)
    with torch.no_grad():
        states = made.states(
            rows.items_BL, torch.tensor([[False, True, False, False, True]]), torch.tensor([[1, 4]])
        )[0]
        dense, norm = made.head[0], made.head[2]
        g = functional.layer_norm(
            functional.gelu(states @ dense.weight.T + dense.bias), (8,), norm.weight, norm.bias
        )
        expected = functional.cross_entropy(
            g @ made.items.weight.T + made.bias.weight[:, 0], torch.tensor([1, 2])
        )
        torch.testing.assert_close(made.cloze_loss(rows), expected)


def test_each_event_counts_in_one_window(split: unskew.Split) -> None:
    """With all places masked: what the window before has counted is no loss, whatever its weight, and all
    else is."""
    made = model(split, masked=1.0, newest_only=0.0)
    windows = list(Trainer(made, split, Training(sequences=64)).samplers["cloze"].epoch())
    repeated = [is_real(rows.items_BL) & ~rows.target_BL for rows in windows]
    assert max(rows.items_BL.shape[1] for rows in windows) == HISTORY + 1
    assert sum(int(some.sum()) for some in repeated) > 50
    with torch.no_grad():
        for rows, some in zip(windows, repeated, strict=True):
            assert made.cloze_loss(rows._replace(weight_BL=some.float())).item() == 0
            without = made.cloze_loss(rows._replace(weight_BL=(~some).float()))
            torch.testing.assert_close(without, made.cloze_loss(rows))


# What a place sees, and where the mask stands


def test_a_masked_place_sees_both_sides_and_not_itself(split: unskew.Split) -> None:
    made = model(split)

    def state(ids: list[int]) -> Tensor:
        return made.states(
            torch.tensor([ids]), torch.tensor([[False, False, True, False]]), torch.tensor([[2]])
        )

    with torch.no_grad():
        before = state([4, 1, 3, 5])
        assert torch.equal(state([4, 1, 7, 5]), before)
        for other in ([0, 1, 3, 5], [4, 0, 3, 5], [4, 1, 3, 0], [1, 4, 3, 5]):
            assert not torch.allclose(state(other), before, atol=1e-4)


def test_recommending_is_reading_a_masked_newest_place(split: unskew.Split) -> None:
    """A window with its newest item masked, and the history without it with a mask behind: of any length,
    from none to all."""
    made = model(split)
    with torch.no_grad():
        for length in range(HISTORY + 1):
            ids = [*range(3, 3 + length), 0]
            masked = torch.arange(length + 1)[None] == length
            trained = made.head(made.states(torch.tensor([ids]), masked, torch.tensor([[length]]))[:, 0])
            torch.testing.assert_close(made.context(context(ids[:-1]))[:, :-1], trained)


def test_places_are_counted_from_the_newest(split: unskew.Split) -> None:
    """So that padding, which is in front, moves nobody."""
    made = model(split)
    with torch.no_grad():
        for ids in ([], [4], [4, 1, 3]):
            read = torch.tensor([[len(ids)]])
            found = made.states(torch.tensor([[PAD, PAD, PAD, *ids, 0]]), None, read + 3)
            torch.testing.assert_close(found, made.states(torch.tensor([[*ids, 0]]), None, read))


def test_nothing_is_dropped_from_a_history(split: unskew.Split) -> None:
    made = model(split)
    with torch.no_grad():
        for length in (1, 3, HISTORY):
            rest = list(range(1, length))
            assert not torch.allclose(scores(made, [0, *rest]), scores(made, [9, *rest]), atol=1e-4)
        empty = batch(split.log, [0, PAD], [0, 10], [[0, 1]] * 2, None, HISTORY, 0)
        assert not empty.history_BL.numel()
        found = made(empty)
        assert bool(found.isfinite().all())
        torch.testing.assert_close(found[0], scores(made, [])[0, :2])


def test_strangers(split: unskew.Split) -> None:
    """In a history, a stranger is a mask; as a candidate, it is the mean of what is known."""
    made, known = model(split), split.known_items
    with torch.no_grad():
        vectors = made.vectors(torch.tensor([0, known - 1, known, known + 7]))
        torch.testing.assert_close(vectors[0], torch.cat([made.items.weight[0], made.bias.weight[0]]))
        mean = torch.cat([made.items.weight.mean(0), made.bias.weight.mean(0)])
        torch.testing.assert_close(vectors[2:], torch.stack([mean, mean]))
        before, met = scores(made, [1, 2]), scores(made, [1, known + 3])
        made.items.unknown.add_(torch.arange(8) / 8.0)
        torch.testing.assert_close(made.vectors(torch.tensor([known])), mean[None])
        assert not torch.allclose(scores(made, [1, 2]), before, atol=1e-4)  # the mask behind it
        assert not torch.allclose(scores(made, [1, known + 3]), met, atol=1e-4)
        torch.testing.assert_close(scores(made, [1, known + 3]), scores(made, [1, known]))


def test_a_epoch_has_as_many_epochs_as_copies(split: unskew.Split) -> None:
    ((phase,),) = [stage.phases for stage in model(split, copies=3).stages(5)]
    assert (phase.batches, phase.passes) == ("histories", 3)
