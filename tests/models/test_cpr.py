"""CPR: the worked numbers, what cancels in a cycle, which cycles count, and how many of them there are."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.by_hand import pairs as pairs_of
from tests.helpers.errors import refused
from unskew.core.config import check
from unskew.data.batches.batch import Batch
from unskew.data.batches.negatives import Positives
from unskew.data.batches.samplers import Sampler
from unskew.models.base import Training, build
from unskew.models.cpr import CPR, cycles, hardest, sizes
from unskew.training.trainer import Trainer

PAIRS = torch.tensor([[2.0, 0.5], [-0.5, 1.0]])  # s11, s12 / s21, s22
TRIPLE = torch.tensor(
    [[2.0, 0.5, 9.0], [9.0, 1.0, 1.5], [1.0, 9.0, 0.0]]
)  # crosses 12, 23, 31; the nines are never read
ONLY_LONGEST = 1e-12  # as the ratio: hardly any other cycles


def scoring(split: unskew.Split, scores: Tensor, **config: Any) -> CPR:
    """A model with these scores of its first users and items."""
    size = len(scores)
    model = build(CPR, split, CPR.Config(width=size, **config))
    with torch.no_grad():
        model.users.weight[:size] = scores
        model.items.weight[:size] = torch.eye(size)
    return model


def ring(*lengths: int) -> Batch:
    """User j has item j; cycles of these lengths one after the other."""
    following, at = [], 0
    for length in lengths:
        following += [at + (j + 1) % length for j in range(length)]
        at += length
    own = torch.arange(at)
    candidates = torch.stack([own, torch.tensor(following)], dim=1)
    return pairs_of(own, candidates, torch.tensor([[1.0, 0.0]]).repeat(at, 1))


def block(*parts: Tensor) -> Tensor:
    return torch.block_diag(*parts)


@torch.no_grad()
def test_the_worked_numbers(split: unskew.Split) -> None:
    two = scoring(split, PAIRS, longest=2).cross_loss(ring(2))
    assert float(two) == pytest.approx(0.201413, abs=1e-6)
    three = scoring(split, TRIPLE, sample_ratio=ONLY_LONGEST).cross_loss(ring(3))
    assert float(three) == pytest.approx(0.693147, abs=1e-6)
    both = scoring(split, block(PAIRS, TRIPLE), sample_ratio=1.0).cross_loss(ring(2, 3))
    assert float(both) == pytest.approx((0.201413 + 0.693147) / 2, abs=1e-6)
    worst = scoring(split, block(PAIRS, TRIPLE), sample_ratio=1.0, sample_rate=2.0).cross_loss(ring(2, 3))
    assert float(worst) == pytest.approx(0.693147, abs=1e-6)


def test_offsets_of_users_and_of_items_cancel(split: unskew.Split) -> None:
    random = torch.Generator().manual_seed(0)
    scores, of_user, of_item = (
        torch.randn(5, 5, generator=random),
        torch.randn(5, 1, generator=random),
        torch.randn(5, generator=random),
    )
    plain, shifted = (
        scoring(split, s, sample_ratio=1.0).cross_loss(ring(2, 3))
        for s in (scores, scores + of_user + of_item)
    )
    torch.testing.assert_close(plain, shifted)
    other = scoring(split, scores + of_user * of_item, sample_ratio=1.0).cross_loss(ring(2, 3))
    assert not torch.isclose(plain, other)


def test_sizes() -> None:
    """2048 cycles with r = 3, three times as many drawn (rho = 3): 13,824 pairs."""
    assert sizes(13824, 3, 3.0) == [4608, 1536]
    assert sizes(4608, 3, 3.0) == [1536, 512]
    assert sizes(9, 3, 3.0) == [3, 1]
    assert sizes(100, 2, 7.0) == [50]
    assert sizes(1, 3, 3.0) == sizes(0, 3, 3.0) == [0, 0]
    assert sizes(3, 3, ONLY_LONGEST) == [0, 1]
    kept = hardest(torch.randn(6144, generator=torch.Generator().manual_seed(0)), 3.0)
    assert len(kept) == 2048


@pytest.mark.parametrize("longest", [2, 3, 5])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 2.0, 3.0])
def test_cycles_never_need_more_pairs_than_there_are_and_leave_few(longest: int, ratio: float) -> None:
    for pairs in range(200):
        found = sizes(pairs, longest, ratio)
        assert min(found) >= 0
        used = sum(size * length for size, length in zip(found, range(2, longest + 1), strict=True))
        assert pairs - longest**2 < used <= pairs
        parts = cycles(pairs, longest, ratio)
        assert [part.start for part, _ in parts] == [0, *(part.stop for part, _ in parts[:-1])]
        assert [(part.stop - part.start) / length for part, length in parts] == found


def batches(model: CPR, split: unskew.Split, size: int) -> Sampler:
    made = Trainer(model, split, Training(batch_size=size)).samplers["cross pairs"]
    assert isinstance(made, Sampler)
    return made


def test_the_other_candidate_is_the_next_of_the_cycle_and_seen_crosses_do_not_count(
    split: unskew.Split,
) -> None:
    model, positives = build(CPR, split, CPR.Config(width=6)), Positives(split)
    dropped = repeated = counted = 0
    for rows in batches(model, split, 97).epoch():
        user, items = rows.user_B.numpy(), rows.candidates_BC.numpy()
        scores = model(rows).detach()
        terms, at = [], 0
        for length, size in zip((2, 3), sizes(len(user), 3, 3.0), strict=True):
            for _ in range(size):
                members = range(at, at + length)
                assert [items[j, 1] for j in members] == [
                    items[at + (j - at + 1) % length, 0] for j in members
                ]
                seen = any(positives.has(user[j], items[j, 1]) for j in members)
                repeats = (
                    len({user[j] for j in members}) < length or len({items[j, 0] for j in members}) < length
                )
                assert seen or not repeats  # a repetition always has a seen cross
                dropped, repeated = dropped + seen, repeated + repeats
                if not seen:
                    terms.append(
                        torch.log(1 + torch.exp(-sum(scores[j, 0] - scores[j, 1] for j in members) / length))
                    )
                at += length
        assert items[at:, 0].tolist() == items[at:, 1].tolist()  # beside all cycles
        counted += len(terms)
        torch.testing.assert_close(
            model.cross_loss(rows).detach(), torch.stack(terms).mean() if terms else torch.zeros(())
        )
    assert min(dropped, repeated, counted) > 20


def test_without_a_cycle_there_is_nothing_to_learn(split: unskew.Split) -> None:
    model = build(CPR, split, CPR.Config(width=6, longest=2))
    assert model.cross_loss(ring(2)) > 0
    for rows in (next(batches(model, split, 1).epoch()), ring(2)._replace(labels_BC=torch.ones(2, 2))):
        model.zero_grad()
        loss = model.cross_loss(rows)
        loss.backward()
        assert loss == 0
        assert not any(
            bool(parameter.grad.any()) for parameter in model.parameters() if parameter.grad is not None
        )


def test_the_choice_of_the_hardest_has_no_gradient_and_no_weight(split: unskew.Split) -> None:
    model = scoring(split, block(PAIRS, TRIPLE), sample_ratio=1.0, sample_rate=2.0)
    weight = torch.ones(5, 2)
    weight[:2] = 100.0  # of the easy cycle
    weight[2:, 0], weight[2:, 1] = (
        torch.tensor([1.0, 2.0, 6.0]),
        50.0,
    )  # crosses were not observed: their weights mean nothing
    loss = model.cross_loss(ring(2, 3)._replace(weight_BC=weight))
    assert float(loss.detach()) == pytest.approx(3 * 0.693147, abs=1e-5)
    loss.backward()
    gradient = model.users.weight.grad
    assert gradient is not None
    assert not bool(gradient[:2].any())
    assert bool(gradient[2:5].any(1).all())


def test_the_regulariser_is_a_weight_decay(split: unskew.Split) -> None:
    model = build(CPR, split, CPR.Config(width=6, regulariser=0.3))
    rows = torch.cat([model.users.weight, model.items.weight])
    (0.3 * (rows**2).sum(1).mean()).backward()
    (group,) = model.optimizer(model.parameters(), 0.1, 0.0).param_groups
    assert group["weight_decay"] == pytest.approx(0.6 / (split.known_users + split.known_items))
    torch.testing.assert_close(model.users.weight.grad, group["weight_decay"] * model.users.weight.detach())
    assert (
        model.optimizer(model.parameters(), 0.1, 1.0).param_groups[0]["weight_decay"]
        == group["weight_decay"] + 1
    )


@pytest.mark.parametrize(("rate", "epochs"), [(1.0, 2), (3.0, 7)])
def test_a_epoch_has_the_steps_of_an_epoch_of_the_authors(
    split: unskew.Split, rate: float, epochs: int
) -> None:
    """One step per 2048 pairs, here of 4608 or 13,824 each, nearly."""
    (stage,) = build(CPR, split, CPR.Config(width=4, sample_rate=rate)).stages(5)
    assert (stage.phases[0].passes, stage.epochs, stage.validated) == (epochs, 5, True)
    assert epochs / (2048 * rate * 2.25) == pytest.approx(1 / 2048, rel=0.15)


@pytest.mark.parametrize(
    "wrong", [{"longest": 1}, {"sample_ratio": 0.0}, {"sample_rate": 0.5}, {"regulariser": -1.0}]
)
def test_bad_settings(wrong: dict[str, Any]) -> None:
    with refused(next(iter(wrong))):
        check(CPR.Config(**wrong))


def test_a_cycle_learns_what_crosses(split: unskew.Split) -> None:
    """Gradient descent on two pairs puts both diagonals above both crosses."""
    torch.manual_seed(0)
    model = build(CPR, split, CPR.Config(width=6, longest=2))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(50):
        optimizer.zero_grad()
        model.cross_loss(ring(2)).backward()
        optimizer.step()
    with torch.no_grad():
        scores = model(ring(2)).numpy()
    assert np.all(scores[:, 0] > scores[:, 1] + 1)
