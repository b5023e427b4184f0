"""The contract that every estimator of propensities keeps, for those who write estimators of their own.

    from unskew.testing import check_estimator

    def test_my_estimator():
        check_estimator(MyEstimator)

Each check is a function of what builds the estimator and of a split; it raises AssertionError where the
estimator breaks the contract.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch, batch
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.data.log.views import PAD, Ints
from unskew.models.base import ModelConfig, Recommender
from unskew.nn.phases import Stage
from unskew.propensity.base import Needs, Propensity
from unskew.propensity.correction import Correction
from unskew.testing.models import close, cut_at, example_split, first_batch, phases

Build = Callable[[Split], Propensity]
Check = Callable[[Build, Split], None]

PAST = 8, 6  # how many past items and past users the batches hold


def check_estimator(kind: type[Propensity], split: Split | None = None) -> None:
    """Check that an estimator of propensities keeps the contract that all estimators keep.

    Parameters
    ----------
    kind
        The class of the estimator. It is built by `kind.build`, and need not be registered.
    split
        The log that the checks are made on. By default a small random one, which has everything but recorded
        propensities, impressions, and random exposure.

    Raises
    ------
    AssertionError
        The contract is broken; the message says how.
    """
    example = example_split() if split is None else split
    for check in CHECKS:
        check(builder(kind), example)


def builder(kind: type[Propensity]) -> Build:
    """Builds a small estimator of this kind, ready to be asked."""

    def build(split: Split) -> Propensity:
        torch.manual_seed(0)
        estimator = kind.build(Needs(known=split.known, alpha=0.4, clip=0.02, width=8))
        estimator.fit_statistics(split)
        return estimator.eval()

    return build


def asked(log: Log, user: Ints, time: Ints, items: Ints) -> Batch:
    """Contexts with the same candidates each. As if the log had recorded propensities for them, for
    estimators that read these."""
    pairs = batch(log, user, time, np.tile(items, (len(user), 1)), None, *PAST)
    return pairs._replace(logged_BC=(0.1 + pairs.candidates_BC % 7 / 10).float())


def some(log: Log, rows: int = 16) -> Batch:
    """Contexts at all times, with unknown users, and with items that are not in the log."""
    random, first = np.random.default_rng(4), int(log.time.min())
    user = random.integers(0, len(log.users), rows)
    time = np.sort(random.integers(first, log.now + 20, rows))
    user[2], user[-1], time[:2] = PAD, len(log.users) + 3, first
    items = np.append(random.permutation(len(log.items))[:5], len(log.items) + np.array([0, 9]))
    return asked(log, user, time, items)


def views(estimator: Propensity, rows: Batch) -> list[Tensor]:
    """The views that there are, and the weights."""
    both = (estimator.item_view(rows), estimator.user_view(rows))
    return [view.detach() for view in both if view is not None] + [estimator.weights(rows)]


def log_exposures(estimator: Propensity, log: Log, items: Ints, times: Ints) -> Tensor | None:
    """`log_exposure` of all items at all times; None where the estimator refuses."""
    try:
        return estimator.log_exposure(log, items, times[:, None])
    except BadInput:
        return None


# The checks


def views_are_probabilities(build: Build, split: Split) -> None:
    """Views are probabilities of each pair, weights are finite and at most the inverse of the clip, for new
    users and items, too."""
    estimator, rows = build(split), some(split.log)
    for view in views(estimator, rows)[:-1]:
        assert view.shape == rows.candidates_BC.shape, "expected a probability per candidate, (B, C)"
        assert bool(view.isfinite().all()), "a propensity is not a finite number"
        assert bool(((view >= 0) & (view <= 1 + 1e-6)).all()), "a propensity is not a probability"
    weight = estimator.weights(rows)
    assert weight.shape == rows.candidates_BC.shape
    assert bool(((weight > 0) & (weight <= 1 / estimator.clip + 1e-3)).all())


def weights_carry_no_gradient(build: Build, split: Split) -> None:
    """No gradient of the recommender's loss reaches the estimator, or anything that it reads."""
    assert not build(split).weights(some(split.log)).requires_grad, "a gradient goes through the weights"


def labels_are_unread(build: Build, split: Split) -> None:
    """Propensities do not depend on whether a pair was clicked."""
    estimator, rows = build(split), some(split.log)
    other = rows._replace(labels_BC=torch.ones_like(rows.labels_BC))
    for before, after in zip(views(estimator, rows), views(estimator, other), strict=True):
        assert torch.equal(before, after), "a propensity depends on the label"


def rows_are_independent(build: Build, split: Split) -> None:
    """The propensities of a context do not depend on the other contexts of the batch."""
    estimator, rows = build(split), some(split.log)
    together = views(estimator, rows)
    for number in range(len(rows.user_B)):
        user, time = (of[number : number + 1].numpy() for of in (rows.user_B, rows.times_B))
        alone = asked(split.log, user, time, rows.candidates_BC[number].numpy())
        for whole, single in zip(together, views(estimator, alone), strict=True):
            close(single[0], whole[number])


def no_future_event_changes_a_propensity(build: Build, split: Split) -> None:
    """A model that knows only what happened before a time finds the same propensities at that time."""
    for time in (split.train_end, split.valid_end):
        then = cut_at(split, time)
        assert len(then.log) < len(split.log)
        now, past = build(split), build(then)
        users, items = np.arange(len(then.log.users)), np.arange(len(then.log.items))
        times = np.full(len(users), time)
        found, expected = (
            views(one, asked(log, users, times, items)) for one, log in ((now, split.log), (past, then.log))
        )
        for with_future, without in zip(found, expected, strict=True):
            close(with_future, without)
        before = np.array([time, time - 1, (int(split.log.time.min()) + time) // 2])
        one, other = (
            log_exposures(made, log, items, before) for made, log in ((now, split.log), (past, then.log))
        )
        if one is not None and other is not None:
            close(one, other)


def items_alone_have_a_propensity_or_say_so(build: Build, split: Split) -> None:
    """`log_exposure` is broadcast, finite for new items, and the same for one pair as for many; or it is
    refused."""
    estimator, log = build(split), split.log
    items, times = np.array([0, 3, len(log.items) - 1, len(log.items) + 7]), np.unique(log.time)[::97]
    table = log_exposures(estimator, log, items, times)
    if table is None:
        return
    assert table.shape == (len(times), len(items)), "items and times are not broadcast"
    assert bool(table.isfinite().all()), "a log propensity is not a finite number"
    assert not table.requires_grad
    for row, time in enumerate(times.tolist()):
        for column, item in enumerate(items.tolist()):
            close(estimator.log_exposure(log, item, time), table[row, column])


def a_stored_state_is_enough(build: Build, split: Split) -> None:
    """An estimator that never measured anything says the same with the state of one that did."""
    estimator, rows = build(split), some(split.log)
    torch.manual_seed(1)
    fresh = type(estimator).build(
        Needs(known=split.known, alpha=estimator.alpha, clip=estimator.clip, width=8)
    )
    fresh.load_state_dict(estimator.state_dict())
    for before, after in zip(views(estimator, rows), views(fresh.eval(), rows), strict=True):
        assert torch.equal(before, after), "the state of an estimator is not all that it has"


class Host(Recommender):
    """A recommender whose training is that of an estimator, and nothing else."""

    def __init__(self, split: Split, estimator: Propensity) -> None:
        super().__init__(split.known, ModelConfig())
        self.propensity = estimator
        self.learning = Correction(estimator, "ips", 1.0, "clipped", PAST)

    def forward(self, batch: Batch) -> Tensor:
        return torch.zeros(batch.candidates_BC.shape)

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        return (Stage("estimator", self.learning.phases(), epochs),)


def every_parameter_is_trained(build: Build, split: Split) -> None:
    """Some phase names every parameter that has a gradient, and a gradient really comes."""
    estimator = build(split).train()
    assert not estimator.untrained_parameter_names(), "no phase trains these parameters"
    host = Host(split, estimator)
    for phase in phases(host):
        estimator.zero_grad()
        phase.loss(first_batch(host, phase, split)).backward()
        for name, parameter in estimator.named_parameters():
            if any(parameter is trained for trained in phase.parameters()):
                assert parameter.grad is not None, f"no gradient comes to {name}"
                assert bool(parameter.grad.any()), f"the gradient of {name} is zero"


CHECKS: tuple[Check, ...] = (
    every_parameter_is_trained,
    views_are_probabilities,
    weights_carry_no_gradient,
    labels_are_unread,
    rows_are_independent,
    no_future_event_changes_a_propensity,
    items_alone_have_a_propensity_or_say_so,
    a_stored_state_is_enough,
)
