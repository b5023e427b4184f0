"""Propensities are probabilities, weights are Theorem 1's, and one pass over a sequence is the same as prefix
by prefix."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.by_hand import sequences
from tests.conftest import random_table
from unskew import losses
from unskew.data.batch import Batch, batch
from unskew.data.samplers import Sampler, Sampling
from unskew.data.split import Known
from unskew.data.views import PAD
from unskew.layers import Embeddings, Table, right_padded
from unskew.losses import sampled_softmax
from unskew.propensity import estimators as propensity
from unskew.propensity.estimators import DualGRU, Frequency, Logged, Propensity, SequenceGRU, Unit

WIDTH = 6


@pytest.fixture(scope="module")
def split(log: unskew.Log) -> unskew.Split:
    return unskew.split(log)


def dual(
    split: unskew.Split,
    alpha: float = 0.3,
    clip: float = 0.02,
    views: propensity.Views = "both",
    layers: int = 1,
) -> DualGRU:
    torch.manual_seed(0)
    made = DualGRU(
        Table(split.known_items, WIDTH), Table(split.known_users, WIDTH), layers, alpha, clip, views
    )
    with torch.no_grad():
        for tensor in (made._tables[0].weight, made._tables[1].weight):
            tensor.mul_(3)  # far from uniform
    return made


def some(log: unskew.Log, rows: int = 12, seed: int = 0) -> Batch:
    """Contexts at all times, the very beginning included, and three known candidates each."""
    random = np.random.default_rng(seed)
    time = np.sort(random.integers(0, 250, rows))
    time[:2] = 0  # nothing has happened yet
    return batch(
        log, random.integers(0, 50, rows), time, random.integers(0, 30, (rows, 3)), history=6, audience=5
    )


# Probabilities


@pytest.mark.parametrize("layers", [1, 2])
def test_the_item_view_is_a_distribution_over_all_items(
    log: unskew.Log, split: unskew.Split, layers: int
) -> None:
    made = dual(split, layers=layers)
    everything = np.tile(np.arange(split.known_items), (20, 1))
    found = made.item_view(batch(log, np.arange(20), np.linspace(0, 240, 20), everything)).detach()
    torch.testing.assert_close(found.sum(1), torch.ones(20))
    assert float(found.min()) > 0
    assert float(found.max() / found.min()) > 3  # not the uniform one


def test_the_user_view_is_a_distribution_over_all_users(log: unskew.Log, split: unskew.Split) -> None:
    made, time = dual(split), 120
    everybody = np.arange(split.known_users)
    found = made.user_view(
        batch(log, everybody, np.full(len(everybody), time), np.tile(np.arange(10), (len(everybody), 1)))
    ).detach()
    torch.testing.assert_close(found.sum(0), torch.ones(10))
    assert float(found.max() / found.min()) > 3


def test_probabilities_by_hand(log: unskew.Log, split: unskew.Split) -> None:
    """Of each pair from its own history and its own audience, one at a time."""
    made, rows = dual(split), some(log)
    items, users = made._tables
    for b in range(len(rows.user_B)):
        history = [code for code in rows.history_BL[b].tolist() if code != PAD]
        state = made.items.out(
            made.items.gru(torch.cat([made.items.start[None], items.weight[history]])[None])[0][0, -1]
        )
        expected = functional.softmax(items.weight @ state, 0)[rows.candidates_BC[b]]
        torch.testing.assert_close(made.item_view(rows)[b], expected)
        for c in range(3):
            audience = [code for code in rows.audience_AM[rows.audience_of_BC[b, c]].tolist() if code != PAD]
            state = made.users.out(
                made.users.gru(torch.cat([made.users.start[None], users.weight[audience]])[None])[0][0, -1]
            )
            expected = functional.softmax(users.weight @ state, 0)[rows.user_B[b]]
            torch.testing.assert_close(made.user_view(rows)[b, c], expected)


def test_an_empty_sequence_has_the_start_state(log: unskew.Log, split: unskew.Split) -> None:
    made = dual(split)
    rows = batch(log, [3, PAD, 5], [0, 200, 240], [[1, 2]] * 3)
    assert rows.history_BL.shape[1] > 0
    empty = made.item_view(rows)
    torch.testing.assert_close(empty[0], empty[1])  # nobody and a beginner
    assert not torch.allclose(empty[0], empty[2])
    state = made.items.out(made.items.gru(made.items.start[None, None])[0][0, 0])
    torch.testing.assert_close(empty[0], functional.softmax(made._tables[0].weight @ state, 0)[[1, 2]])
    with torch.no_grad():
        made.items.start.add_(1.0)  # it is the start state that is read
    assert not torch.allclose(made.item_view(rows)[0], empty[0], atol=1e-4)


def padded_more(rows: Batch, by: int) -> Batch:
    wider = (
        functional.pad(rows.history_BL, (by, 0), value=PAD),
        functional.pad(rows.audience_AM, (by, 0), value=PAD),
    )
    return rows._replace(history_BL=wider[0], audience_AM=wider[1])


def test_padding_is_invisible(log: unskew.Log, split: unskew.Split) -> None:
    made, rows = dual(split), some(log)
    for view in (made.item_view, made.user_view):
        torch.testing.assert_close(view(padded_more(rows, 4)), view(rows), atol=1e-7, rtol=1e-5)
    whole = sequences([[1, 2, 3], [4]], audiences=[[5, 6], [7]])
    wide = [functional.pad(ids, (4, 0), value=PAD) for ids in (whole.items_BL, whole.users_BM)]
    past = [functional.pad(before, (4, 0)) for before in (whole.past_BL, whole.users_past_BM)]
    wider = whole._replace(items_BL=wide[0], past_BL=past[0], users_BM=wide[1], users_past_BM=past[1])
    torch.testing.assert_close(made.loss(wider), made.loss(whole))


def test_rows_are_independent(log: unskew.Log, split: unskew.Split) -> None:
    made, rows = dual(split), some(log)
    alone = [
        rows._replace(
            **{
                name: getattr(rows, name)[b : b + 1]
                for name in rows._fields
                if name.endswith(("_B", "_BL", "_BC")) and getattr(rows, name) is not None
            }
        )
        for b in range(len(rows.user_B))
    ]
    torch.testing.assert_close(torch.cat([made.weights(row) for row in alone]), made.weights(rows))


# Weights: Theorem 1


class Given(Propensity):
    """Probabilities out of the hat."""

    def __init__(self, item: Tensor | None, user: Tensor | None, alpha: float, clip: float) -> None:
        super().__init__(alpha, clip)
        self.item, self.user = item, user

    def item_view(self, batch: Batch) -> Tensor | None:
        return self.item

    def user_view(self, batch: Batch) -> Tensor | None:
        return self.user


def test_weights_are_theorem_1_by_hand(log: unskew.Log) -> None:
    item, user = torch.tensor([[0.5, 0.01], [0.2, 0.04]]), torch.tensor([[0.25, 0.5], [0.02, 0.03]])
    rows = batch(log, [0, 1], [100, 100], [[0, 1], [2, 3]])
    both = Given(item, user, 0.3, 0.05).weights(rows)
    # 0.3 / max(P_item, 0.05) + 0.7 / max(P_user, 0.05)
    torch.testing.assert_close(both, torch.tensor([[0.6 + 2.8, 6.0 + 1.4], [1.5 + 14.0, 6.0 + 14.0]]))
    torch.testing.assert_close(
        Given(item, None, 0.3, 0.05).weights(rows), torch.tensor([[2.0, 20.0], [5.0, 20.0]])
    )
    torch.testing.assert_close(
        Given(None, user, 0.3, 0.05).weights(rows), torch.tensor([[4.0, 2.0], [20.0, 20.0]])
    )
    assert torch.equal(Given(None, None, 0.3, 0.05).weights(rows), torch.ones(2, 2))
    assert torch.equal(Unit().weights(rows), torch.ones(2, 2))
    torch.testing.assert_close(Given(item, user, 1.0, 0.01).weights(rows), 1 / item)
    torch.testing.assert_close(Given(item, user, 0.0, 0.01).weights(rows), 1 / user)


def test_weights_of_the_gru_are_made_of_its_views(log: unskew.Log, split: unskew.Split) -> None:
    rows = some(log)
    made = dual(split, alpha=0.3, clip=0.02)
    item, user = (view(rows).detach().numpy() for view in (made.item_view, made.user_view))
    assert (item < 0.02).any()
    assert (item > 0.02).any()
    expected = 0.3 / np.maximum(item, 0.02) + 0.7 / np.maximum(user, 0.02)
    np.testing.assert_allclose(made.weights(rows).numpy(), expected, rtol=1e-5)
    only_item, only_user = dual(split, views="item"), dual(split, views="user")
    assert only_item.user_view(rows) is None
    assert only_user.item_view(rows) is None
    torch.testing.assert_close(
        only_item.weights(rows), 1 / only_item.item_view(rows).detach().clamp(min=0.02)
    )
    torch.testing.assert_close(
        only_user.weights(rows), 1 / only_user.user_view(rows).detach().clamp(min=0.02)
    )


def test_weights_carry_no_gradient(log: unskew.Log, split: unskew.Split) -> None:
    made, rows = dual(split), some(log)
    assert made.item_view(rows).requires_grad
    weight = made.weights(rows)
    assert not weight.requires_grad
    loss = torch.ones((), requires_grad=True)
    (loss * weight).sum().backward()
    assert all(p.grad is None for p in (*made.parameters(), *(table.weight for table in made._tables)))


@pytest.mark.parametrize(
    ("alpha", "clip"), [(-0.1, 0.05), (1.1, 0.05), (0.5, 0.0), (0.5, 1.5), (0.5, math.nan), (math.nan, 0.5)]
)
def test_impossible_settings(alpha: float, clip: float) -> None:
    with pytest.raises(unskew.BadInput, match="expected"):
        Given(None, None, alpha, clip)


# The autoregressive loss


def of_each(view: SequenceGRU, ids: list[int], table: Table) -> Tensor:
    """The loss of one sequence without ties."""
    return view.loss(torch.tensor([ids]), torch.arange(len(ids))[None], table)


def test_the_loss_of_a_sequence_is_the_sum_over_its_prefixes(log: unskew.Log, split: unskew.Split) -> None:
    """-log P of each element, each computed through the view of a batch that holds only what came strictly
    before."""
    made = dual(split)
    items, users = made._tables
    user = int(np.bincount(log.user[: log.positives]).argmax())
    sequence = log.histories.ids[log.histories.offsets[user] :][:7].astype(np.int64)
    past = [0, 1, 1, 1, 4, 5, 5]  # three at one moment, and the last two at another
    expected = 0.0
    blank = batch(log, [user], [0], [[0]])
    for place, code in zip(past, sequence.tolist(), strict=True):
        prefix = blank._replace(
            history_BL=torch.tensor(sequence[None, :place]), candidates_BC=torch.tensor([[code]])
        )
        expected -= float(made.item_view(prefix).log().detach())
    found = made.items.loss(torch.tensor(sequence[None]), torch.tensor([past]), items).item()
    assert found == pytest.approx(expected, rel=1e-5)
    assert found != pytest.approx(
        of_each(made.items, sequence.tolist(), items).item(), rel=1e-3
    )  # the order within a moment
    audience, past = np.array([4, 1, 1, 7, 2]), [0, 0, 2, 3, 3]
    expected = 0.0
    for place, code in zip(past, audience.tolist(), strict=True):
        prefix = blank._replace(audience_AM=torch.tensor(audience[None, :place]), user_B=torch.tensor([code]))
        expected -= float(made.user_view(prefix).log().detach())
    found = made.users.loss(torch.tensor(audience[None]), torch.tensor([past]), users).item()
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_both_views_is_the_mean_per_element(split: unskew.Split) -> None:
    made = dual(split)
    of_users = of_each(made.users, [5, 6], made._tables[1])
    total = (
        of_each(made.items, [1, 2, 3], made._tables[0]) + of_each(made.items, [4], made._tables[0]) + of_users
    )
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
    made = DualGRU(
        Embeddings(split.item_ids, WIDTH), Embeddings(split.user_ids, WIDTH), 1, 0.5, 0.05, views, owner
    )
    for nothing in (sequences([]), sequences([[1, 2]]), sequences([], audiences=[[3, 4]])):
        made.zero_grad()
        loss = made.loss(nothing)
        loss.backward()
        assert all(
            parameter.grad is not None and bool(parameter.grad.isfinite().all())
            for parameter in made.parameters()
        )
        has_view = (views != "user" and nothing.items_BL.numel()) or (
            views != "item" and nothing.users_BM.numel()
        )
        assert (
            bool(has_view)
            == (loss.item() > 0)
            == any(bool(parameter.grad.any()) for parameter in made.parameters())
        )


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
    for module in (propensity, losses):
        monkeypatch.setattr(module, "FULL_SOFTMAX", 10)
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


# Frequencies, and what the log says


def test_frequency_by_hand() -> None:
    log = unskew.read(
        {"user": [*"aaabbc"], "item": [*"pqrppr"], "time": [1, 2, 3, 4, 5, 6], "label": [1, 1, 1, 1, 1, 0]}
    )
    split = unskew.split(log, shares=(1, 0, 0))  # p 3, q 1, r 1; a 3, b 2, c 0
    rows = batch(log, [0, 1, 2], [9, 9, 9], [[0, 1], [1, 2], [2, 0]])
    both = Frequency(split, 0.4, 0.25)
    item = torch.tensor([[1, 1 / 3], [1 / 3, 1 / 3], [1 / 3, 1]])
    user = torch.tensor([[1, 1], [2 / 3, 2 / 3], [0, 0]])
    torch.testing.assert_close(both.item_view(rows), item)
    torch.testing.assert_close(both.user_view(rows), user)
    torch.testing.assert_close(both.weights(rows), 0.4 / item + 0.6 / user.clamp(min=0.25))
    torch.testing.assert_close(Frequency(split, 0.4, 0.5, "item").weights(rows), 1 / item.clamp(min=0.5))
    torch.testing.assert_close(Frequency(split, 0.4, 0.25, "user").weights(rows), 1 / user.clamp(min=0.25))
    assert not list(both.parameters())
    assert set(both.state_dict()) == {"item_share", "user_share"}


def test_frequency_counts_training_positives_only(log: unskew.Log, split: unskew.Split) -> None:
    rows = np.flatnonzero((log.label == 1) & (log.time < split.train_end))
    counts = np.bincount(log.item[rows], minlength=len(log.items))
    np.testing.assert_allclose(Frequency(split, 0.5, 0.05).item_share, counts / counts.max())


def test_logged_by_hand() -> None:
    table = random_table(negatives=0.7, times=10**9)  # no two rows alike
    log = unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(table.num_rows)]]))
    made = max(Sampler(unskew.split(log), Sampling(batch_size=64)).epoch(), key=lambda one: len(one.user_B))
    weight = Logged(0.5, 0.25).weights(made)
    assert weight.shape == (64, 1)
    torch.testing.assert_close(weight, 1 / made.logged_BC.clamp(min=0.25))
    known = {
        (int(u), int(i), int(t)): float(p)
        for u, i, t, p in zip(log.user, log.item, log.time, log.propensity, strict=True)
    }
    for user, item, time, found in zip(
        made.user_B, made.candidates_BC[:, 0], made.times_B, weight[:, 0], strict=True
    ):
        assert float(found) == pytest.approx(1 / max(known[int(user), int(item), int(time)], 0.25), rel=1e-5)
    assert len(weight.unique()) > 4


def test_logged_needs_a_log_that_has_them(log: unskew.Log) -> None:
    for made in (next(Sampler(unskew.split(log)).epoch()), some(log)):
        with pytest.raises(unskew.BadInput, match="no propensities"):
            Logged(0.5, 0.05).weights(made)


@pytest.mark.parametrize("clip", [1e-4, 0.02, 0.05, 0.9])
@pytest.mark.parametrize("rare", [None, np.arange(40) % 3 == 1], ids=["", "rare ids"])
def test_the_bound_on_the_normaliser_changes_no_weight(
    monkeypatch: pytest.MonkeyPatch, clip: float, rare: np.ndarray | None
) -> None:
    """Where a partial sum cannot show that a propensity is below the clip, the whole one is taken: weights
    are exact."""
    torch.manual_seed(0)
    items, users = Table(Known(40, rare), 6), Table(30, 6)
    dual = DualGRU(items, users, 1, 0.4, clip)
    with torch.no_grad():
        items.weight.mul_(4)  # some propensities are large, most are small
        users.weight.mul_(4)
    candidates = torch.arange(40).repeat(8, 1)
    made = Batch(
        user_B=torch.arange(8),
        history_BL=torch.randint(0, 40, (8, 5)),
        candidates_BC=candidates,
        audience_AM=torch.randint(0, 30, (12, 4)),
        audience_of_BC=torch.randint(0, 12, candidates.shape),
        labels_BC=torch.zeros(candidates.shape),
        times_B=torch.zeros(8, dtype=torch.int64),
    )
    exact = dual.weights(made)
    monkeypatch.setattr(propensity, "BOUND", 5)
    torch.testing.assert_close(dual.weights(made), exact)
    item = dual.item_view(made)
    assert item is not None
    torch.testing.assert_close(item.sum(1), torch.ones(8))  # the view itself stays exact
