"""Propensities are probabilities, of each pair from its own history and its own audience."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import unskew
from tests.helpers.by_hand import sequences
from tests.helpers.estimators import dual, some
from unskew.data.batches.batch import Batch, batch
from unskew.data.log.views import PAD
from unskew.propensity.estimators import SequenceGRU


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
    items = np.tile(np.arange(10), (len(everybody), 1))
    found = made.user_view(batch(log, everybody, np.full(len(everybody), time), items)).detach()
    torch.testing.assert_close(found.sum(0), torch.ones(10))
    assert float(found.max() / found.min()) > 3


def state_after(view: SequenceGRU, ids: Tensor) -> Tensor:
    """Of one sequence of embeddings, which may be empty."""
    return view.out(view.gru(torch.cat([view.start[None], ids])[None])[0][0, -1])


def test_probabilities_by_hand(log: unskew.Log, split: unskew.Split) -> None:
    """Of each pair from its own history and its own audience, one at a time."""
    made, rows = dual(split), some(log)
    items, users = made._tables
    for b in range(len(rows.user_B)):
        history = [code for code in rows.history_BL[b].tolist() if code != PAD]
        state = state_after(made.items, items.weight[history])
        expected = functional.softmax(items.weight @ state, 0)[rows.candidates_BC[b]]
        torch.testing.assert_close(made.item_view(rows)[b], expected)
        for c in range(3):
            audience = [code for code in rows.audience_AM[rows.audience_of_BC[b, c]].tolist() if code != PAD]
            state = state_after(made.users, users.weight[audience])
            expected = functional.softmax(users.weight @ state, 0)[rows.user_B[b]]
            torch.testing.assert_close(made.user_view(rows)[b, c], expected)


def test_an_empty_sequence_has_the_start_state(log: unskew.Log, split: unskew.Split) -> None:
    made = dual(split)
    rows = batch(log, [3, PAD, 5], [0, 200, 240], [[1, 2]] * 3)
    assert rows.history_BL.shape[1] > 0
    empty = made.item_view(rows)
    torch.testing.assert_close(empty[0], empty[1])  # nobody and a beginner
    assert not torch.allclose(empty[0], empty[2])
    state = state_after(made.items, made._tables[0].weight[[]])
    torch.testing.assert_close(empty[0], functional.softmax(made._tables[0].weight @ state, 0)[[1, 2]])
    with torch.no_grad():
        made.items.start.add_(1.0)  # it is the start state that is read
    assert not torch.allclose(made.item_view(rows)[0], empty[0], atol=1e-4)


def padded_more(rows: Batch, by: int) -> Batch:
    names = ("history_BL", "history_times_BL", "audience_AM", "audience_times_AM")
    return rows._replace(**{name: functional.pad(getattr(rows, name), (by, 0), value=PAD) for name in names})


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
    by_row = {name: value for name, value in rows._asdict().items() if value is not None}
    by_row = {name: value for name, value in by_row.items() if name.endswith(("_B", "_BL", "_BC"))}
    alone = [
        rows._replace(**{name: value[b : b + 1] for name, value in by_row.items()})
        for b in range(len(rows.user_B))
    ]
    torch.testing.assert_close(torch.cat([made.weights(row) for row in alone]), made.weights(rows))
