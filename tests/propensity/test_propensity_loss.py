"""The autoregressive loss: one pass over a sequence is the same as prefix by prefix; sampled if large."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.helpers.by_hand import sequences
from tests.helpers.estimators import WIDTH, dual, of_each, some
from unskew.data.batches.batch import batch
from unskew.data.log.views import PAD
from unskew.nn import losses, vocabulary
from unskew.nn.layers import Embeddings, Table, right_padded
from unskew.nn.losses import sampled_softmax
from unskew.propensity import estimators as propensity
from unskew.propensity.estimators import DualGRU, SequenceGRU


def test_the_loss_of_a_sequence_is_the_sum_over_its_prefixes(log: unskew.Log, split: unskew.Split) -> None:
    """-log P of each element, each through the view of a batch that holds only what came strictly before."""
    made = dual(split)
    items, users = made._tables
    user = int(np.bincount(log.user[: log.positives]).argmax())
    sequence = log.histories.ids[log.histories.offsets[user] :][:7].astype(np.int64)
    past = [0, 1, 1, 1, 4, 5, 5]  # three at one moment, and the last two at another
    expected = 0.0
    blank = batch(log, [user], [0], [[0]])
    for place, code in zip(past, sequence.tolist(), strict=True):
        history = torch.tensor(sequence[None, :place])
        prefix = blank._replace(
            history_BL=history, history_times_BL=0 * history, candidates_BC=torch.tensor([[code]])
        )
        expected -= float(made.item_view(prefix).log().detach())
    found = made.items.loss(torch.tensor(sequence[None]), torch.tensor([past]), items).item()
    assert found == pytest.approx(expected, rel=1e-5)
    one_by_one = of_each(made.items, sequence.tolist(), items).item()
    assert found != pytest.approx(one_by_one, rel=1e-3)  # as if there were an order within a moment
    audience, past = np.array([4, 1, 1, 7, 2]), [0, 0, 2, 3, 3]
    expected = 0.0
    for place, code in zip(past, audience.tolist(), strict=True):
        before = torch.tensor(audience[None, :place])
        prefix = blank._replace(audience_AM=before, audience_times_AM=0 * before, user_B=torch.tensor([code]))
        expected -= float(made.user_view(prefix).log().detach())
    found = made.users.loss(torch.tensor(audience[None]), torch.tensor([past]), users).item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_both_views_is_the_mean_per_element(split: unskew.Split) -> None:
    made = dual(split)
    items, users = made._tables
    of_users = of_each(made.users, [5, 6], users)
    total = of_each(made.items, [1, 2, 3], items) + of_each(made.items, [4], items) + of_users
    torch.testing.assert_close(made.loss(sequences([[1, 2, 3], [4]], audiences=[[5, 6]])), total / 6)
    torch.testing.assert_close(made.loss(sequences([], audiences=[[5, 6]])), of_users / 2)
    only = dual(split, views="user")
    of_users = of_each(only.users, [5, 6], only._tables[1])
    torch.testing.assert_close(only.loss(sequences([[1, 2, 3]], audiences=[[5, 6]])), of_users / 2)
    assert made.loss(sequences([])).item() == 0


@pytest.mark.parametrize("views", ["both", "item", "user"])
@pytest.mark.parametrize("owner", [False, True])
def test_a_batch_without_a_sequence_of_its_view_has_a_gradient(
    split: unskew.Split, views: propensity.Views, owner: bool
) -> None:
    """Both views have as many batches as the larger one, so the last batches of the other are empty."""
    torch.manual_seed(0)
    items, users = Embeddings(split.known.items, WIDTH), Embeddings(split.known.users, WIDTH)
    made = DualGRU(items, users, 1, 0.5, 0.05, views, owner)
    for nothing in (sequences([]), sequences([[1, 2]]), sequences([], audiences=[[3, 4]])):
        made.zero_grad()
        loss = made.loss(nothing)
        loss.backward()
        gradients = [parameter.grad for parameter in made.parameters()]
        assert all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)
        read = {"item": nothing.items_BL.numel() > 0, "user": nothing.users_BM.numel() > 0}
        has_view = any(read.values()) if views == "both" else read[views]
        assert has_view == (loss.item() > 0) == any(bool(gradient.any()) for gradient in gradients)


def test_the_loss_reaches_the_grus_and_not_the_embeddings(split: unskew.Split) -> None:
    made = dual(split)
    made.loss(sequences([[1, 2, 3]], audiences=[[5, 6, 5]])).backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in made.parameters())
    assert all(table.weight.grad is None for table in made._tables)
    assert not {id(table.weight) for table in made._tables} & {id(p) for p in made.parameters()}


def test_it_learns_what_comes_next() -> None:
    torch.manual_seed(0)
    table, view = Table(8, 16), SequenceGRU(16, 1)
    ids = (torch.arange(8)[:, None] + torch.arange(6)) % 8
    past = torch.arange(6).expand(8, -1)
    optimizer = torch.optim.Adam(view.parameters(), lr=0.02)
    before = view.loss(ids, past, table).item()
    for _ in range(120):
        optimizer.zero_grad()
        loss = view.loss(ids, past, table)
        loss.backward()
        optimizer.step()
    beginnings = 8 * math.log(8)  # where a walk starts cannot be known
    assert before > 5 * beginnings
    assert loss.item() < 1.1 * beginnings


def test_right_padding_keeps_the_order() -> None:
    ids = torch.tensor([[PAD, PAD, 3, 1], [5, 4, 3, 2], [PAD] * 4])
    assert right_padded(ids).tolist() == [[3, 1, PAD, PAD], [5, 4, 3, 2], [PAD] * 4]


# The sampled softmax


def drawn(size: int = 300, rows: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(5)
    return (
        torch.randn(rows, 4, generator=random),
        torch.randint(size, (rows,), generator=random),
        torch.randn(size, 4, generator=random),
    )


def test_the_estimated_normaliser_is_unbiased() -> None:
    """exp(loss) P(target) is the estimated normaliser; its mean over many draws is the true one."""
    torch.manual_seed(1)
    states, targets, weight = drawn()
    likeliest = (states @ weight.T).argmax(1)  # where counting a drawn target twice would show
    for state, target in zip(
        states.repeat(2, 1)[:, None], torch.cat([targets, likeliest])[:, None], strict=True
    ):
        true = float((state @ weight.T).exp().sum())
        own = float((state @ weight[target[0]]).exp())
        found = np.array(
            [own * math.exp(float(sampled_softmax(state, target, weight, 40))) for _ in range(1500)]
        )
        assert abs(found.mean() - true) < 4 * found.std(ddof=1) / np.sqrt(len(found))
        assert found.std() > 0.05 * true  # there is something to average


def test_the_sampled_loss_becomes_the_full_one() -> None:
    torch.manual_seed(2)
    states, targets, weight = drawn()
    full = float(functional.cross_entropy(states @ weight.T, targets, reduction="sum"))
    errors = [
        np.mean([abs(float(sampled_softmax(states, targets, weight, size)) - full) for _ in range(20)])
        for size in (30, 1000, 100_000)
    ]
    assert errors[0] > 3 * errors[1] > 9 * errors[2]
    assert errors[2] < 0.01 * full


def test_a_large_vocabulary_is_sampled_and_agrees(
    split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = dual(split)
    ids = [1, 2, 3, 4, 5, 6]
    rows = some(split.log)
    full, item, user = of_each(made.items, ids, made._tables[0]), made.item_view(rows), made.user_view(rows)
    monkeypatch.setattr(vocabulary, "FULL_SOFTMAX", 10)
    for module in (propensity, losses):
        monkeypatch.setattr(module, "SAMPLES", 20_000)
    torch.manual_seed(0)
    torch.testing.assert_close(of_each(made.items, ids, made._tables[0]), full, rtol=0.02, atol=0)
    torch.testing.assert_close(made.item_view(rows), item)  # the spread is wide enough to hold every id
    monkeypatch.setattr(propensity, "SAMPLES", 3)  # 24 of the ids, each standing for some
    assert torch.equal(made.item_view(rows), made.item_view(rows))  # a weight does not depend on a draw
    table = made._tables[0]
    spread = torch.arange(0, table.known, 2)
    assert table.known > 24
    state = made.items.states_after(rows.histories, table)
    total = (state @ table.weight[spread].T).exp().sum(1) * table.known / len(spread)
    torch.testing.assert_close(
        made.item_view(rows), (state @ table.weight.T).exp().gather(1, rows.candidates_BC) / total[:, None]
    )
    assert not torch.allclose(made.item_view(rows), item)
    assert not torch.allclose(made.user_view(rows), user)
