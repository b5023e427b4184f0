"""Propensities between the smallest and the largest logit, and softmax propensities that need no GRU."""

import math

import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.by_hand import sequences
from tests.helpers.estimators import dual, some
from unskew.data.batches.batch import Prefixes
from unskew.models.deps import DEPS
from unskew.nn import vocabulary
from unskew.nn.layers import Embeddings, Table
from unskew.propensity import estimators
from unskew.propensity.estimators import DualGRU, Needs, SequenceGRU, estimator, min_max


def table_of(vectors: list[list[float]]) -> Table:
    table = Table(len(vectors), len(vectors[0]))
    with torch.no_grad():
        table.weight.copy_(torch.tensor(vectors))
    return table


def test_min_max_by_hand() -> None:
    """Logits of all ids: -1, 0, 3 after the first state and 4, 0, -6 after the second."""
    table = table_of([[-1.0, 2.0], [0.0, 0.0], [3.0, -3.0]])
    states = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    asked = torch.tensor([[-1.0, 0.0, 3.0], [4.0, 0.0, -6.0]])
    of = torch.tensor([[0, 0, 0], [1, 1, 1]])
    found = min_max(asked, states, of, table)
    torch.testing.assert_close(found, torch.tensor([[0.0, 0.25, 1.0], [1.0, 0.6, 0.0]]))
    # (0 - -6) / (4 - -6), and an id that training never saw counts as the nearest end
    beyond = min_max(torch.tensor([[7.0, -9.0]]), states, torch.tensor([[0, 0]]), table)
    assert beyond.tolist() == [[1.0, 0.0]]


def test_where_all_logits_are_equal_all_ids_are_at_the_largest() -> None:
    states, of = torch.tensor([[1.0], [2.0]]), torch.tensor([[0, 0], [1, 1]])
    assert min_max(torch.tensor([[5.0, 5.0], [10.0, 10.0]]), states, of, table_of([[5.0], [5.0]])).eq(1).all()


def test_the_chunks_of_min_max_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    table, states, of = Table(50, 6), torch.randn(100, 6), torch.randint(0, 100, (30, 4))
    logits = torch.randn(30, 4)
    whole = min_max(logits, states, of, table)
    monkeypatch.setattr(estimators, "CHUNK", 50)
    torch.testing.assert_close(min_max(logits, states, of, table), whole)
    assert len(whole.unique()) > 50


def of_scale(split: unskew.Split, scale: estimators.PropensityScale) -> DualGRU:
    softmax = dual(split)
    made = DualGRU(*softmax._tables, 1, softmax.alpha, softmax.clip, scale=scale)
    made.load_state_dict(softmax.state_dict())
    return made


def test_both_views_are_scaled_among_their_own_ids(log: unskew.Log, split: unskew.Split) -> None:
    """Min-max of the logarithms of the softmax, because these are logits up to a constant."""
    rows, made, softmax = some(log), of_scale(split, "min-max"), of_scale(split, "softmax")
    items, users = (table.weight.detach() for table in made._tables)
    states_BD = made.items.states_after(rows.histories, made._tables[0])
    logits_BV = states_BD @ items.T
    low, high = logits_BV.min(1, keepdim=True).values, logits_BV.max(1, keepdim=True).values
    expected = ((logits_BV - low) / (high - low)).gather(1, rows.candidates_BC)
    torch.testing.assert_close(made.item_view(rows), expected)
    states_AD = made.users.states_after(rows.audiences, made._tables[1])
    logits_AU = states_AD @ users.T
    low, high = logits_AU.min(1, keepdim=True).values, logits_AU.max(1, keepdim=True).values
    of_user = ((logits_AU - low) / (high - low))[rows.audience_of_BC, rows.user_B[:, None]]
    torch.testing.assert_close(made.user_view(rows), of_user)
    weight = made.alpha / expected.clamp(min=made.clip) + (1 - made.alpha) / of_user.clamp(min=made.clip)
    torch.testing.assert_close(made.weights(rows), weight.detach())
    assert not torch.allclose(softmax.weights(rows), weight)


def test_the_scale_changes_no_loss(split: unskew.Split) -> None:
    rows = sequences([[1, 2, 3], [4]], audiences=[[5, 6]])
    torch.testing.assert_close(
        of_scale(split, "min-max").loss(rows), of_scale(split, "softmax").loss(rows), rtol=0, atol=0
    )


@pytest.mark.parametrize("name", ["dual", "item", "user"])
def test_estimators_are_built_with_a_scale(split: unskew.Split, name: str) -> None:
    made = estimator(name, Needs(known=split.known, scale="min-max"))
    assert made.has_scale
    assert made.scale == "min-max"
    assert estimator(name, Needs(known=split.known)).scale == "softmax"
    assert not estimator("item-pro", Needs(known=split.known)).has_scale


def test_the_scale_is_idle_where_no_gru_estimates() -> None:
    assert "propensity_scale" not in DEPS.Config().idle_settings
    for name in ("item-pro", "none", "power"):
        assert "propensity_scale" in DEPS.Config(propensity=name, method="ips").idle_settings


# The effective sample size


def test_statistics_have_the_effective_sample_size(log: unskew.Log, split: unskew.Split) -> None:
    rows, made = some(log), of_scale(split, "min-max")
    weight, statistics = made.weights(rows).double(), made.statistics(rows)
    expected = float(weight.sum() ** 2 / (weight**2).sum()) / weight.numel()
    assert statistics["weight_effective"] == pytest.approx(expected, abs=1e-6)
    assert statistics["weight_effective"] < 0.95
    all_clipped = DualGRU(*made._tables, 1, 0.5, 1.0)
    assert all_clipped.statistics(rows)["weight_effective"] == 1


# What is not computed


def read_by(monkeypatch: pytest.MonkeyPatch) -> list[SequenceGRU]:
    """The GRUs that read something, from now on."""
    read: list[SequenceGRU] = []
    original = SequenceGRU.states_after

    def states_after(self: SequenceGRU, *given: object) -> Tensor:
        read.append(self)
        return original(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(SequenceGRU, "states_after", states_after)
    return read


def test_no_sequence_is_read_if_no_propensity_can_reach_the_clip(
    log: unskew.Log, split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, made = some(log), of_scale(split, "softmax")
    read = read_by(monkeypatch)
    with torch.no_grad():
        for table in made._tables:
            table.weight.mul_(0.01)  # all ids are nearly equally likely, about 1 / 30 and 1 / 50
    made.clip = 0.2
    torch.testing.assert_close(made.weights(rows), torch.full((12, 3), 5.0))
    assert not read
    made.clip = 0.025  # between the two: the users cannot reach it, the items can
    made.weights(rows)
    assert read == [made.items]
    made.item_view(rows)  # a view itself is exact
    assert read == [made.items, made.items]
    made.scale, made.clip = "min-max", 0.9
    made.weights(rows)
    assert len(read) == 4


def test_only_contexts_that_may_reach_the_clip_are_read(
    log: unskew.Log, split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, made = some(log), of_scale(split, "softmax")
    item, user, exact = made.estimates(rows)
    of_items, of_users = (view.highest_log_probability for view in (made.items, made.users))
    highest_B = of_items(made._tables[0](rows.candidates_BC), made._tables[0]).max(1).values
    made.clip = float(highest_B.sort().values[6].exp())  # five of twelve contexts are above the seventh
    read: list[int] = []
    original = SequenceGRU.states_after

    def states_after(self: SequenceGRU, prefixes: Prefixes, table: Embeddings) -> Tensor:
        read.append(len(prefixes.row_N))
        return original(self, prefixes, table)

    monkeypatch.setattr(SequenceGRU, "states_after", states_after)
    found = made.weights(rows)
    can_B = of_users(made._tables[1](rows.user_B), made._tables[1]) >= math.log(made.clip)
    assert read[0] in (5, 6)  # rounding decides about the seventh
    assert read[1:] == [len(rows.audience_of_BC[can_B].unique())] * bool(can_B.any())
    item, user = item.clamp(min=made.clip), user.clamp(min=made.clip)
    torch.testing.assert_close(found, made.alpha / item + (1 - made.alpha) / user)
    assert not torch.allclose(found, exact)


@pytest.mark.parametrize("full", [True, False], ids=["all ids", "a sample of the ids"])
def test_no_probability_is_above_its_bound(monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    if not full:
        monkeypatch.setattr(vocabulary, "FULL_SOFTMAX", 10)
        monkeypatch.setattr(estimators, "SAMPLES", 2)
    for seed in range(20):
        torch.manual_seed(seed)
        table, view = Embeddings(40, 6), SequenceGRU(6, 2)
        with torch.no_grad():
            table.weight.mul_(seed + 1)
            view.start.mul_(10)
            view.out.bias.mul_(5)
            bound = view.highest_log_probability(table.weight, table)
            # The states that come nearest to the bound, one for each id, and some that were read.
            spread = table.weight - estimators._normalised_ids(table)[0].mean(0)
            nearest = (spread @ view.out.weight).sign() @ view.out.weight.T + view.out.bias
            read = view.outputs(torch.randint(0, 40, (30, 8)), table)[:, -1]
            for states in (nearest, read):
                logits = states @ table.weight.T
                of = torch.arange(len(states))[:, None].expand(logits.shape)
                found = estimators.probability(logits, states, of, table, 0.0)
                assert bool((found.log() <= bound + 1e-4).all())


def test_the_bound_by_hand() -> None:
    """Two ids with vectors of 3 and 1, which are 1 and -1 from their mean, and y in [-2, 2]: e^2 / 2."""
    table, view = table_of([[3.0], [1.0]]), SequenceGRU(1, 1)
    with torch.no_grad():
        view.out.weight.fill_(2.0)
        view.out.bias.zero_()
    assert view.highest_log_probability(table.weight, table).tolist() == pytest.approx([2 - math.log(2)] * 2)


def test_weights_with_and_without_the_bound_are_equal(log: unskew.Log, split: unskew.Split) -> None:
    rows = some(log)
    for scale in (0.1, 1.0, 4.0):
        made = of_scale(split, "softmax")
        with torch.no_grad():
            for table in made._tables:
                table.weight.mul_(scale)
        for clip in (0.01, 0.03, 0.1):
            made.clip = clip
            item, user = made.item_view(rows).clamp(min=clip), made.user_view(rows).clamp(min=clip)
            torch.testing.assert_close(
                made.weights(rows), (made.alpha / item + (1 - made.alpha) / user).detach()
            )
