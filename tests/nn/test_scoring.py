"""A catalogue at many moments is what each moment by itself would give: audiences change between any two
ticks."""

import numpy as np
import pytest
import torch
from torch import Tensor

import unskew
from unskew.data.batches.batch import Batch, contexts
from unskew.data.log.views import PAD, EventView, Ints
from unskew.nn import scoring as catalog
from unskew.nn.scoring import AudienceCatalog, encode_windows


class Counts:
    """A two-sided model whose score says which item it is, who asks, how long the audience is, and who came
    last."""

    def context_side(self, batch: Batch) -> Tensor:
        return 1000.0 * batch.user_B[:, None].double()

    def item_side(self, item_N: Tensor) -> Tensor:
        return 10_000_000.0 * item_N[:, None].double()

    def audience_side(self, audience_AM: Tensor) -> Tensor:
        last = audience_AM[:, -1] if audience_AM.shape[1] else torch.full((len(audience_AM),), PAD)
        return 100.0 * (audience_AM != PAD).sum(1, keepdim=True).double() + last[:, None] + 1

    def audience_sides(self, view: EventView, start: Ints, end: Ints) -> Tensor:
        return encode_windows(self.audience_side, view, start, end, torch.device("cpu"))

    def join(self, context: Tensor, candidate: Tensor) -> Tensor:
        return (context + candidate).sum(-1)


def expected(log: unskew.Log, user: Ints, time: Ints, audience: int) -> Tensor:
    items = np.arange(len(log.items))
    start, end = log.audiences.before(items[None], time[:, None], audience)
    last = np.where(end > start, log.audiences.ids[end - 1], PAD)
    return torch.from_numpy(1e7 * items + 1000.0 * user[:, None] + 100.0 * (end - start) + last + 1)


@pytest.fixture(scope="module")
def log() -> unskew.Log:
    """Something happens at every tick, and at some ticks twice."""
    random = np.random.default_rng(0)
    time = np.sort(np.concatenate([np.arange(120), np.arange(0, 120, 7)]))
    return unskew.read(
        {"user": random.integers(0, 9, len(time)), "item": random.integers(0, 6, len(time)), "time": time}
    )


def scores(log: unskew.Log, first: int, last: int, user: Ints, time: Ints, audience: int) -> Tensor:
    made = AudienceCatalog(Counts(), log, first, last, audience)
    return made.scores(contexts(log, user, time, 0))


@pytest.mark.parametrize("audience", [1, 3, 1000])
@pytest.mark.parametrize("step", [1, 2, 5])
@pytest.mark.parametrize("size", [2, 7, 64], ids=lambda size: f"blocks of {size}")
def test_every_moment_of_a_block_has_its_own_audiences(
    log: unskew.Log, audience: int, step: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened one tick before the last context of a block counts for it, and what happened at its own
    tick does not."""
    monkeypatch.setattr(catalog, "CONTEXTS", size)
    monkeypatch.setattr(catalog, "PAIRS", 20)
    monkeypatch.setattr(catalog, "ENCODED", 10)
    for begin in (0, 40):
        time = np.repeat(np.arange(begin, 118, step), 2)
        user = np.arange(len(time)) % 9
        torch.testing.assert_close(
            scores(log, begin, 119, user, time, audience), expected(log, user, time, audience), atol=0, rtol=0
        )


def test_two_contexts_a_tick_apart(log: unskew.Log) -> None:
    """The smallest block in which something changes."""
    user = np.zeros(2, np.int64)
    changed = 0
    for at in range(1, 118):
        time = np.array([at, at + 1])
        found = scores(log, at, at + 2, user, time, 1000)
        torch.testing.assert_close(found, expected(log, user, time, 1000), atol=0, rtol=0)
        changed += int((found[0] != found[1]).sum())
    assert changed >= 117


def test_an_audience_is_the_same_only_if_all_of_it_is(log: unskew.Log) -> None:
    """Whoever had each item last takes it again: the newest user is the same, the audience is not."""
    last = log.audiences.offsets[1:] - 1
    again = {"user": log.users.of(log.audiences.ids[last]), "item": log.items.ids}
    again |= {"time": np.full(len(last), log.now + 1)}
    rows = {name: [*log.table()[name].to_pylist(), *np.asarray(again[name]).tolist()] for name in again}
    newer = unskew.read(rows)
    before = AudienceCatalog(Counts(), log, log.now, log.now + 1, 1000)
    renewed = before.renewed(newer, newer.now, newer.now + 1)
    user, time = np.arange(2), np.full(2, newer.now)
    found = renewed.scores(contexts(newer, user, time, 0))
    torch.testing.assert_close(found, expected(newer, user, time, 1000), atol=0, rtol=0)
