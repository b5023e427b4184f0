"""DICE: the worked numbers of its losses and of the distance correlation, the pools that negatives come from,
and the curriculum."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.by_hand import pairs
from tests.helpers.errors import refused
from unskew.core.config import check
from unskew.data.batches.batch import Batch
from unskew.data.batches.negatives import Draw, Positives
from unskew.models import dice
from unskew.models.base import Training, build
from unskew.models.dice import DICE, PopularityMargins, causes, discrepancy, distance_correlation, quantiles
from unskew.training.trainer import Trainer

POPULARITY = {"middle": 50, "top": 100, "high": 95, "upper": 80, "low": 26, "bottom": 20}


@pytest.fixture(scope="module")
def town() -> unskew.Split:
    """Six items of the guide's popularity. User n has those with more than n clicks, save for two users with
    odd tastes."""
    odd = {"middle": "new", "upper": "picky", "bottom": "picky"}
    rows = [
        (str(n) if n else odd.get(item, "0"), item)
        for item, count in POPULARITY.items()
        for n in range(count)
    ]
    table = pa.table(
        {"user": [user for user, _ in rows], "item": [item for _, item in rows], "time": range(len(rows))}
    )
    return unskew.split(unskew.read(table), fractions=(1, 0, 0))


def codes(town: unskew.Split, *items: str) -> list[int]:
    return [int(code) for code in town.log.items.codes(list(items))]


def drawn_for(
    town: unskew.Split,
    user: str,
    pool: int,
    wanted: int,
    epoch: int = 0,
    existing: int = 6,
    times: int = 200,
    item: str = "middle",
    margin: float = 40.0,
) -> list[set[str]]:
    """The negatives of an item, drawn many times. A set each: they are all different."""
    counts = town.item_counts.astype(float)
    assert dict(zip(town.log.items.ids.to_pylist(), counts, strict=True)) == POPULARITY
    margins = PopularityMargins(counts, margin, 0.9, pool)
    (code,), (logged,) = town.log.users.codes([user]), codes(town, item)
    now = 10**6
    rows = (np.full(times, value, np.int64) for value in (code, logged, now, existing))
    drawn = margins(Draw(np.random.default_rng(0), *rows, wanted, epoch, Positives(town)))
    assert drawn.shape == (times, wanted)
    names = [[str(name) for name in town.log.items.of(row).to_pylist()] for row in drawn]
    return [set(row) for row in names]


def ever(drawn: list[set[str]]) -> set[str]:
    return set().union(*drawn)


def test_pools_and_their_margin(town: unskew.Split) -> None:
    margins = PopularityMargins(town.item_counts.astype(float), 40.0, 0.9, 1)

    def pools(epoch: int) -> tuple[set[float], set[float]]:
        end, begin = margins.pools(np.array([50.0]), epoch)
        return set(margins.ordered[: int(end[0])]), set(margins.ordered[int(begin[0]) :])

    assert pools(0) == ({20.0}, {100.0, 95.0})
    assert pools(1) == pools(2) == ({20.0}, {100.0, 95.0})  # margins 36 and 32.4
    assert pools(3) == ({20.0}, {100.0, 95.0, 80.0})  # 29.2
    ends = [int(margins.pools(np.array([59.0]), epoch)[1][0]) for epoch in (0, 1)]
    assert margins.ordered[ends[0] :].tolist() == [100.0]  # above 99
    assert margins.ordered[ends[1] :].tolist() == [100.0]  # 95 is not above 59 + 36
    assert margins.pools(np.array([40.0, 41.0]), 0)[0].tolist() == [0, 1]  # nor 20 below 40 / 2


def test_negatives_come_from_either_pool_by_a_fair_coin(town: unskew.Split) -> None:
    drawn = drawn_for(town, "new", pool=1, wanted=1, times=2000)
    assert ever(drawn) == {"top", "high", "bottom"}
    assert np.mean([row == {"bottom"} for row in drawn]) == pytest.approx(0.5, abs=0.04)
    assert ever(drawn_for(town, "new", pool=1, wanted=1, epoch=3)) == {"top", "high", "upper", "bottom"}


def test_too_small_a_pool_is_not_drawn_from(town: unskew.Split) -> None:
    assert ever(drawn_for(town, "new", pool=2, wanted=2)) == {"top", "high"}  # one unpopular item is too few
    assert ever(drawn_for(town, "new", pool=3, wanted=1)) == {
        "bottom"
    }  # two popular ones are: then all are unpopular
    # User 96 has the top item: of the popular pool one is left.
    assert ever(drawn_for(town, "96", pool=1, wanted=1)) == {"high", "bottom"}
    assert ever(drawn_for(town, "96", pool=2, wanted=1)) == {"bottom"}
    # Of the unpopular pool {low, bottom}, `picky` has one: that leaves too few.
    assert ever(drawn_for(town, "picky", pool=1, wanted=1, item="upper", margin=10.0)) == {
        "low",
        "top",
        "high",
    }
    assert ever(drawn_for(town, "picky", pool=2, wanted=1, item="upper", margin=10.0)) == {"top", "high"}


def test_what_a_pool_does_not_have_comes_from_the_other_then_from_anywhere(town: unskew.Split) -> None:
    assert all(row == {"bottom", "top", "high"} for row in drawn_for(town, "new", pool=3, wanted=3))
    more = drawn_for(town, "new", pool=3, wanted=4)
    assert all(row >= {"bottom", "top", "high"} for row in more)
    assert ever(more) >= {"low", "upper"}
    # User 30 lacks only the two least popular ones, 22 only the last; nothing drawn is ever one's own.
    assert ever(drawn_for(town, "30", pool=1, wanted=4)) == {"low", "bottom"}
    assert ever(drawn_for(town, "22", pool=40, wanted=2)) == {"bottom"}


def test_what_does_not_exist_yet_is_not_drawn(town: unskew.Split) -> None:
    assert codes(town, "middle", "top", "high", "upper", "low", "bottom") == list(range(6))
    assert ever(drawn_for(town, "new", pool=1, wanted=1, existing=3)) == {"top", "high"}
    assert ever(drawn_for(town, "new", pool=1, wanted=1, existing=2)) == {"top"}


def test_negatives_of_training_are_new_different_and_of_a_pool(log: unskew.Log) -> None:
    split = unskew.split(log, repeats="hide")
    model = build(DICE, split, DICE.Config(width=4, margin=4.0, pool=2))
    counts, inside, masks = split.item_counts, [], []
    for rows in Trainer(model, split, Training(batch_size=64)).samplers["causes"].epoch():
        items = rows.candidates_BC.numpy()
        assert items.shape[1] == 5
        assert rows.labels_BC[:, 1:].sum() == 0
        few = sum(len(set(row)) < 5 for row in items.tolist())
        assert few < 0.1 * len(items)  # only where hardly anything exists yet
        mine, its = counts[items[:, :1]], counts[items[:, 1:]]
        popular, unpopular = its > mine + 4, its < mine / 2
        inside.append(popular | unpopular)
        masks.append((its > mine)[inside[-1]] == popular[inside[-1]])  # the pool can be told from the counts
    assert np.concatenate(inside).mean() > 0.8
    assert np.concatenate(masks).all()


def test_the_worked_losses() -> None:
    interest, conformity, mask = (
        torch.tensor([[0.8], [-0.5]]),
        torch.tensor([[-0.4], [0.4]]),
        torch.tensor([[1.0], [0.0]]),
    )
    found = causes(interest, conformity, mask)
    expected = torch.tensor([0.628706, 0.185550, 0.513015])
    torch.testing.assert_close(torch.stack(found), expected, atol=1e-6, rtol=0)


def worked(split: unskew.Split, **config: Any) -> tuple[DICE, Batch]:
    """A positive of popularity 50 with scores 1 and 0.5, a more popular negative, a less popular one."""
    model = build(DICE, split, DICE.Config(width=1, **config))
    with torch.no_grad():
        model.users.weight[0] = torch.ones(2)
        model.items.weight[:3] = torch.tensor([[1.0, 0.5], [0.2, 0.9], [1.5, 0.1]])
        model.popularity_I[:3] = torch.tensor([50.0, 100.0, 20.0])
    labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    return model, pairs(torch.tensor([0, 0]), torch.tensor([[0, 1], [0, 2]]), labels)


@pytest.mark.parametrize(("epoch", "weight"), [(0, 0.1), (1, 0.09), (10, 0.1 * 0.9**10)])
def test_the_worked_total_and_its_curriculum(split: unskew.Split, epoch: int, weight: float) -> None:
    model, rows = worked(split, discrepancy_weight=0.0)
    loss = float(model.causes_loss(rows._replace(epoch=epoch)).detach())
    assert loss == pytest.approx(0.628706 + weight * (0.185550 + 0.513015), abs=2e-6)
    assert epoch or loss == pytest.approx(0.698563, abs=2e-6)
    parts, rows = worked(split, discrepancy_weight=0.0, interest_weight=0.3, conformity_weight=0.7)
    assert float(parts.causes_loss(rows).detach()) == pytest.approx(
        0.628706 + 0.3 * 0.185550 + 0.7 * 0.513015, abs=2e-6
    )


def test_the_weight_of_a_term_is_that_of_its_positive(split: unskew.Split) -> None:
    model, rows = worked(split, discrepancy_weight=0.0)
    differences = torch.tensor([[0.8], [-0.5]]), torch.tensor([[-0.4], [0.4]]), torch.tensor([[1.0], [0.0]])
    expected = causes(*differences, torch.tensor([[2.0], [0.5]]))
    found = model.causes_loss(rows._replace(weight_BC=torch.tensor([[2.0, 9.0], [0.5, 9.0]])))
    torch.testing.assert_close(found, expected.click + 0.1 * (expected.interest + expected.conformity))
    assert float(expected.interest) == pytest.approx(2 * 0.185550, abs=1e-6)


def test_the_score_is_the_sum_of_both_parts(split: unskew.Split) -> None:
    model, rows = worked(split)
    torch.testing.assert_close(model(rows).detach(), torch.tensor([[1.5, 1.1], [1.5, 1.6]]))


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)[:, None]


def test_the_worked_discrepancies() -> None:
    x, scaled, other = column(0, 1, 3), column(0, 2, 6), column(1, 0, 1)
    assert float(distance_correlation(x, scaled)) == pytest.approx(1, abs=1e-6)
    assert float(distance_correlation(x, other)) == pytest.approx(0.553341, abs=1e-6)
    assert float(discrepancy(x, other, "dcor")) == pytest.approx(-0.553341, abs=1e-6)
    assert float(discrepancy(x, other, "l1")) == pytest.approx(4 / 3)
    assert float(discrepancy(x, other, "l2")) == pytest.approx(2)


@pytest.mark.parametrize("similar", [torch.zeros(1, 3), torch.ones(4, 3)])
def test_the_distance_correlation_of_nothing_is_a_number_with_a_gradient(similar: Tensor) -> None:
    x, y = similar.clone().requires_grad_(), similar.clone().requires_grad_()
    distance_correlation(x, y).backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize("kind", ["dcor", "l1", "l2"])
def test_the_discrepancy_counts_each_id_once_and_pulls_the_parts_apart(
    split: unskew.Split, kind: dice.Discrepancy
) -> None:
    model, rows = worked(split, discrepancy=kind, discrepancy_weight=0.5)
    without, _ = worked(split, discrepancy_weight=0.0)
    items, users = (table.weight.detach() for table in (model.items, model.users))
    apart = discrepancy(items[:3, :1], items[:3, 1:], kind) + discrepancy(users[:1, :1], users[:1, 1:], kind)
    expected = without.causes_loss(rows) - 0.5 * apart
    torch.testing.assert_close(model.causes_loss(rows), expected)
    twice = rows._replace(weight_BC=torch.full((2, 2), 2.0))
    torch.testing.assert_close(model.causes_loss(twice), 2 * expected)  # the balance stays


def test_many_ids_are_compared_by_a_sample(split: unskew.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dice, "COMPARED", 5)
    model = build(DICE, split, DICE.Config(width=3))
    seen = set()
    for _ in range(20):
        model.zero_grad()
        model.apart(model.items.weight, torch.arange(30) // 2).backward()
        assert model.items.weight.grad is not None
        touched = model.items.weight.grad.any(1).nonzero()[:, 0].tolist()
        assert len(touched) == 5
        seen |= set(touched)
    assert seen == set(range(15))


def test_quantiles(split: unskew.Split) -> None:
    assert quantiles(np.array([5.0, 1.0, 9.0, 5.0])).tolist() == [0.25, 0.0, 0.75, 0.25]
    model = build(DICE, split, DICE.Config(width=3, popularity="quantiles", margin=0.1, pool=3))
    counts_I = split.item_counts[: split.known_items]
    fewer = [(counts_I < count).mean() for count in counts_I]
    assert model.popularity_I.tolist() == pytest.approx(fewer)
    rows = next(Trainer(model, split, Training(batch_size=64)).samplers["causes"].epoch())
    fraction = model.popularity_I[rows.candidates_BC]
    inside = (fraction[:, 1:] > fraction[:, :1] + 0.1) | (fraction[:, 1:] < fraction[:, :1] / 2)
    assert inside.float().mean() > 0.8
    with pytest.raises(unskew.BadInput, match="quantiles"):
        build(DICE, split, DICE.Config(popularity="quantiles"))


def test_the_authors_optimizer_survives_a_checkpoint(split: unskew.Split) -> None:
    """Its moments are more than Adam's."""
    settings = Training(epochs=1, batch_size=256, valid_examples=20)
    first = Trainer(build(DICE, split, DICE.Config(width=3)), split, settings)
    first.run()
    again = Trainer(build(DICE, split, DICE.Config(width=3)), split, settings)
    again.load(*first.state())
    mine, its = (trainer.optimizers["causes"].state_dict()["state"][0] for trainer in (first, again))
    assert set(its) == {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    assert all(torch.equal(value, its[name]) for name, value in mine.items())
    (group,) = again.optimizers["causes"].param_groups
    assert (group["betas"], group["amsgrad"]) == ((0.5, 0.99), True)


@pytest.mark.parametrize("wrong", [{"margin": -1.0}, {"pool": 0}, {"decay": 0.0}, {"decay": 1.1}])
def test_bad_settings(wrong: dict[str, Any]) -> None:
    with refused(next(iter(wrong))):
        check(DICE.Config(**wrong))
