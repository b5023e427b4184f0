"""Several tests of one model, with as few rankings as possible.

Ranking the whole catalogue is what an evaluation costs. One ranking of a row serves all protocols and all
strengths, and all tests that have the row, as long as they are evaluated with the same weights. Different
validation metrics often choose the same ones.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import torch
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.data.log.held_out import HeldOut, Protocol, Targets, held_out, nothing_to_rank
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.evaluation.evaluate import Evaluation, evaluation, rank_each
from unskew.models.base import Recommender

Weights = Mapping[str, Mapping[str, Tensor]]  # by the validation metric that chose them


def evaluations(
    network: Recommender,
    weights: Weights,
    split: Split,
    tests: Mapping[str, Sequence[Protocol]],
    chosen: Mapping[str, str],
    strengths: Sequence[float | None] = (None,),
    sample: int | None = None,
    seed: int = 0,
    cutoffs: tuple[int, ...] = (5, 10, 20),
    until: int | None = None,
    frozen: Targets | None = None,
) -> dict[str, list[Evaluation]]:
    """For each test, its evaluations by debias, and for each debiasing strength by protocol. Only the first
    one of a test is grouped into segments. The network ends with the weights that were evaluated last.

    tests: the protocols of each test.
    chosen: for each test, the validation metric whose weights are evaluated.
    The other parameters are those of `Model.evaluate`.
    """
    if not cutoffs or min(cutoffs) < 1:
        raise BadInput(f"cutoffs {cutoffs}: expected whole numbers of at least 1", field="cutoffs")
    held = {test: held_out(split, "test", test, sample, seed, until, frozen) for test in tests}
    for test, tested in held.items():
        if not len(tested.rows):
            raise nothing_to_rank(split, "test", test)
    found: dict[str, list[Evaluation]] = {}
    for group in _with_same_weights(weights, chosen):
        network.load_state_dict(weights[chosen[group[0]]])
        rows = _together(split, [held[test] for test in group], by_user=frozen is not None)
        longest = max(cutoffs)
        each = rank_each(network.eval(), split, rows, strengths, seed, longest, frozen=frozen is not None)
        for test in group:
            made: list[Evaluation] = []
            for (debias, ranked), protocol in product(zip(strengths, each, strict=True), tests[test]):
                made.append(evaluation(split, ranked, protocol, held[test], cutoffs, not made, frozen))
                used = network.debias if debias is None else debias
                kept = sample if len(held[test].rows) < held[test].whole else None
                made[-1].about.update(weights_chosen_by=chosen[test], seed=seed, sample=kept, debias=used)
            found[test] = made
    return {test: found[test] for test in tests}


def _with_same_weights(weights: Weights, chosen: Mapping[str, str]) -> list[list[str]]:
    """Tests that are evaluated with the same weights, together."""
    groups: list[list[str]] = []
    for test, by in chosen.items():
        for group in groups:
            other = chosen[group[0]]
            if by == other or _equal(weights[by], weights[other]):
                group.append(test)
                break
        else:
            groups.append([test])
    return groups


def _equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in one.items())


def _together(split: Split, tests: Sequence[HeldOut], by_user: bool) -> Ints:
    """The rows of some tests, each once, in order of time, or of user and time."""
    rows = np.unique(np.concatenate([test.rows for test in tests]))
    user = split.log.user[rows] if by_user else np.zeros(len(rows), np.int32)
    return rows[np.lexsort((rows, split.log.time[rows], user))]
