"""EASE by hand, against the equations, and on the disk."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.runs import train
from unskew.data.batches.batch import batch
from unskew.models.base import Training, build
from unskew.models.ease import EASE, L2, solve


@pytest.fixture
def split() -> unskew.Split:
    """Users 1 and 2 have A and B, user 3 has A; user 4 comes later and has A, then C."""
    rows = [(1, "A", 1), (2, "A", 2), (3, "A", 3), (1, "B", 4), (2, "B", 5), (4, "A", 7), (4, "C", 9)]
    user, item, time = zip(*rows, strict=True)
    log = unskew.read({"user": user, "item": item, "time": time})
    return unskew.split(log, fractions=(5, 0, 2))


def test_two_items_by_hand(split: unskew.Split) -> None:
    """X^T X + I = [[4, 2], [2, 3]], whose inverse is [[3, -2], [-2, 4]] / 8."""
    model = build(EASE, split, EASE.Config(l2=1))
    np.testing.assert_allclose(model.matrix(), [[0, 2 / 4], [2 / 3, 0]], rtol=1e-5)
    found = model(batch(split.log, [3, 0, 9], [9] * 3, [[0, 1, 2]] * 3)).tolist()
    assert found[0] == pytest.approx([0, 1 / 2, 0], abs=1e-5)
    assert found[1] == pytest.approx([2 / 3, 1 / 2, 0], abs=1e-5)
    assert found[2] == pytest.approx([1e-6, 2e-6 / 3, 0])  # without a past it is popularity


def test_the_solution_minimises_the_penalised_error() -> None:
    """Against the equations for each column alone, in double precision."""
    random = np.random.default_rng(0)
    x = (random.random((40, 12)) < 0.3).astype(float)
    found = solve(np.stack(np.nonzero(x)).astype(np.int32), 12, 3.0)
    for item in range(12):
        others = np.delete(np.arange(12), item)
        gram = x[:, others].T @ x[:, others] + 3 * np.eye(11)
        expected = np.linalg.solve(gram, x[:, others].T @ x[:, item])
        np.testing.assert_allclose(found[others, item], expected, atol=1e-4)
        assert found[item, item] == 0


def test_a_catalogue_that_is_too_large_for_memory_is_an_error(split: unskew.Split) -> None:
    with pytest.raises(unskew.BadInput, match=r"a matrix of 2 x 2 items and may take 1e-09 GB \(memory\)"):
        build(EASE, split, EASE.Config(memory=1e-9))


def test_l2_is_chosen_on_validation_and_the_matrix_is_no_part_of_a_run(
    positive_log: unskew.Log, tmp_path: Path
) -> None:
    cut = unskew.split(positive_log)
    chosen, _ = train(cut, "ease", EASE.Config(), Training())
    assert float(chosen.state_dict()["l2"]) in L2
    model = unskew.create_model("ease", {"l2": 7}).fit(cut, tmp_path / "run", show_progress=False)
    again = unskew.load(tmp_path / "run")
    assert again.recommend(users=["u1", "u2"]).table.equals(model.recommend(users=["u1", "u2"]).table)
    assert {value.ndim for value in again.network.state_dict().values()} <= {0, 1, 2}
    assert sum(value.numel() for value in again.network.state_dict().values()) < 2 * len(cut.log) + 100


def test_another_l2_is_solved_again(split: unskew.Split) -> None:
    model = build(EASE, split, EASE.Config(l2=1))
    first = model.matrix()
    assert model.matrix() is first
    model.load_state_dict({"l2": torch.tensor(5.0, dtype=torch.float64)}, strict=False)
    assert float(np.abs(model.matrix() - first).max()) > 0.1
    assert copy.deepcopy(model)._solved is None
