"""Who does what among several ranks: every row and every shard belongs to one of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from unskew.core import ranks as module
from unskew.core.ranks import LAUNCHER, Ranks, joined, ranks

SIZES = range(1, 6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("rows", [5, 6, 17, 100])
def test_every_row_belongs_to_one_rank(size: int, rows: int) -> None:
    parts = [np.arange(rows)[Ranks(rank, size).part(rows)] for rank in range(size)]
    assert np.concatenate(parts).tolist() == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_fewer_rows_than_ranks_belong_to_all() -> None:
    assert [Ranks(rank, 3).part(2) for rank in range(3)] == [slice(0, 2)] * 3


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [0, 1, 4, 11])
def test_every_shard_belongs_to_one_rank(size: int, count: int) -> None:
    mine = [list(Ranks(rank, size).shards(count)) for rank in range(size)]
    assert sorted(shard for shards in mine for shard in shards) == list(range(count))


def test_alone_nothing_changes() -> None:
    alone, parameter = ranks(), torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([1.0, 2.0])
    assert alone == Ranks()
    assert alone.average(torch.tensor(0.5), [parameter]) == 0.5
    assert parameter.grad.tolist() == [1.0, 2.0]
    assert (alone.divisor(7), alone.divisor(0)) == (7, 1)
    assert alone.gather(np.arange(3)).tolist() == [0, 1, 2]
    assert alone.first(lambda: "done") == "done"
    assert alone.same(True)
    with joined() as same:
        assert same == alone


def test_only_ranks_that_were_restarted_go_on_with_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    begun = Ranks(0, 2, launched=True)
    begun.mark(tmp_path)
    assert not begun.began(tmp_path)
    restarted = Ranks(0, 2, launched=True, attempt=1)
    assert restarted.began(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "b")
    assert not restarted.began(tmp_path)
    (tmp_path / LAUNCHER).unlink()
    assert not restarted.began(tmp_path)


def test_a_rank_that_is_gone_is_said_in_one_line() -> None:
    def lost() -> None:
        raise RuntimeError("Connection closed by peer\nmore")

    with pytest.raises(module.UnskewError, match=r"another rank stopped, .* \(Connection closed by peer\)$"):
        module._together(lost)
