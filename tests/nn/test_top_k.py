"""The best items without all scores are those that all scores give."""

import numpy as np
import pyarrow as pa
import pytest
import torch

import unskew
from unskew.models.base import build
from unskew.models.pulse.model import Pulse, PulseZero
from unskew.nn import top_k
from unskew.nn.top_k import Wanted, best_of_products
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker
from unskew.testing.models import example_split


def test_products_in_chunks(monkeypatch) -> None:
    monkeypatch.setattr(top_k, "CHUNK", 5)
    random = torch.Generator().manual_seed(0)
    state, vectors = (torch.randn(3, 8, generator=random), torch.randn(8, 32, generator=random))
    hidden = torch.zeros(32, dtype=torch.bool)
    hidden[7:12] = True
    row, item = np.array([2, 0, 0, 1]), np.array([31, 3, 30, 4])
    scores = (state @ vectors).masked_fill(hidden, -torch.inf)
    scores[row, item] = -torch.inf
    for k in (1, 6, 32):
        best = best_of_products(state, [vectors[:, :23], vectors[:, 23:]], Wanted(k, hidden, row, item))
        expected = scores.topk(k)
        torch.testing.assert_close(best.scores, expected.values)
        finite = expected.values.isfinite()
        assert torch.equal(best.codes[finite], expected.indices[finite])


@pytest.mark.parametrize("kind", [PulseZero, Pulse])
@pytest.mark.parametrize("debias", [None, 0.0, 1.0])
def test_pulse_scores_few_items_and_misses_none(kind: type[Pulse], debias: float | None, monkeypatch) -> None:
    split = example_split()
    torch.manual_seed(1)
    network = build(kind, split, kind.Config()).eval()
    with torch.no_grad():  # parameters of what not every log has begin at zero
        for name, value in network.named_parameters():
            if "more" in name or "tag" in name or "skip" in name:
                value.add_(torch.randn(value.shape) * 0.3)
    ids = split.log.users.ids.to_pylist()
    for options in (
        RecommendOptions(k=3, debias=debias),
        RecommendOptions(k=9, debias=debias, include_seen=True),
        RecommendOptions(k=99, debias=debias, exclude=split.log.items.ids.to_pylist()[:4]),
    ):
        ranker = Ranker(network, split.log)
        found = ranker.rank_users([*ids, "nobody"], options)
        with monkeypatch.context() as patched:
            patched.setattr(Ranker, "_best_only", lambda *_: None)
            expected = ranker.rank_users([*ids, "nobody"], options)
        np.testing.assert_allclose(found.scores, expected.scores, atol=2e-5)
        finite = np.isfinite(expected.scores)
        close = np.abs(np.diff(np.nan_to_num(expected.scores, neginf=-1e9), axis=1, prepend=1e9)) < 1e-4
        same = found.codes == expected.codes
        assert (same | close | np.roll(close, -1, axis=1) | ~finite).all()


def test_only_candidates_that_may_be_listed_are_scored(monkeypatch) -> None:
    """Of a thousand items, few are scored one by one for a user with neighbours."""
    split = unskew.split(unskew.read(_crowd()))
    network = build(PulseZero, split, PulseZero.Config()).eval()
    scored: list[int] = []
    from unskew.models.pulse import scoring

    before = scoring._Block._scored

    def counted(self, row, item, w, others, taste):
        scored.append(len(item) + len(others))
        return before(self, row, item, w, others, taste)

    monkeypatch.setattr(scoring._Block, "_scored", counted)
    users = split.log.users.ids.to_pylist()[:50]
    Ranker(network, split.log).rank_users(users, RecommendOptions(k=5))
    assert np.median(scored) < len(split.log.items) / 3


def _crowd() -> pa.Table:
    random = np.random.default_rng(0)
    rows = 12_000
    columns = {
        "user": random.integers(0, 600, rows),
        "item": (1000 * random.random(rows) ** 3).astype(int),
        "time": 10**9 + np.sort(random.integers(0, 10**7, rows)),
    }
    return pa.table(columns)
