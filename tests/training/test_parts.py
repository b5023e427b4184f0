"""Ranks have parts of every batch: together, what one process has."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

import unskew
from tests.helpers.contract import tiny
from unskew.core import ranks as module
from unskew.core.ranks import Ranks
from unskew.data.batches.samplers import Sampler, Sampling, SequenceSampler
from unskew.models.base import MODELS, Training, build
from unskew.models.pulse import model as pulse
from unskew.training.run import train
from unskew.training.run_config import RunSettings
from unskew.training.trainer import Trainer

SIZE = 3


@contextmanager
def as_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(module, "_ranks", Ranks(rank, SIZE))
        yield


def batches(split: unskew.Split, kind: str) -> list[Any]:
    """An epoch of batches."""
    if kind == "sequences":
        return list(SequenceSampler(split, 16, 0, history=8, audience=6).epoch())
    sampling = Sampling(batch_size=100, negatives=2, shared=kind == "shared", history=8)
    return list(Sampler(split, sampling).epoch())


def columns(batch: Any) -> dict[str, Tensor]:
    """What a batch has of each of its rows, whatever its padding."""
    if hasattr(batch, "candidates_BC"):
        return {name: getattr(batch, name) for name in ("user_B", "times_B", "candidates_BC", "labels_BC")}
    wanted = batch.target_BL
    found = {"event": batch.event_BL[wanted], "past": batch.past_BL[wanted], "item": batch.items_BL[wanted]}
    return found | {"audience": batch.users_event_BM[batch.users_event_BM >= 0]}


@pytest.mark.parametrize("kind", ["pairs", "shared", "sequences"])
def test_the_parts_of_all_ranks_are_the_batch(
    kind: str, small_split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = batches(small_split, kind), []
    for rank in range(SIZE):
        with as_rank(rank, monkeypatch):
            parts.append(batches(small_split, kind))
    assert {len(part) for part in parts} == {len(whole)}
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        for name, column in columns(batch).items():
            joined = torch.cat([columns(part)[name] for part in of_ranks])
            assert torch.equal(joined, column), name


def test_each_rank_reads_shards_of_its_own(
    small_split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "SHARD", 32)
    network = build(pulse.Pulse, small_split, tiny(pulse.Pulse, sample=200))

    def epoch() -> list[pulse.PulseBatch]:
        trainer = Trainer(network, small_split, Training(batch_size=50))
        return list(trainer.samplers["clicks"].epoch())

    whole, parts = epoch(), []
    for rank in range(SIZE):
        with as_rank(rank, monkeypatch):
            parts.append(epoch())
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        order = batch.event_B.argsort()
        joined = torch.cat([part.event_B for part in of_ranks])
        assert torch.equal(joined.sort().values, batch.event_B[order])
        values = torch.cat([part.w_BCF for part in of_ranks])[joined.argsort()]
        assert torch.equal(values, batch.w_BCF[order])


def test_models_that_read_whole_batches_refuse_several_ranks(
    small_split: unskew.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = {kind.name for kind in MODELS.values() if not kind.splits_batches}
    assert refused == {"cpr", "din"}
    settings = RunSettings(model="cpr", config=tiny(MODELS["cpr"]), training=Training())
    with as_rank(0, monkeypatch), pytest.raises(unskew.BadInput, match="train it in one process"):
        train(small_split, settings)
