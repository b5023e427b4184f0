"""The contract that every model keeps, for those who write models of their own.

    from unskew.testing import check_model

    def test_my_model():
        check_model(MyModel, MyModel.Config(width=8, history=8))

Each check is a function of what builds the model and of a split; it raises AssertionError where the model
breaks the contract. A model should be built small. `example_split` is a log that has everything: ties,
repeats, negatives, users and items that training never saw, features with missing values.
"""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional

from unskew.data.batches.batch import Batch, batch, contexts, with_candidates
from unskew.data.log.log import Log
from unskew.data.log.split import Split, split
from unskew.data.log.views import PAD
from unskew.data.reading.prepare import read
from unskew.models.base import ModelConfig, Recommender, Training, build
from unskew.nn.phases import Phase
from unskew.training.trainer import Trainer

Build = Callable[[Split], Recommender]
Check = Callable[[Build, Split], None]

TIMES = 500  # of the example


@lru_cache(maxsize=4)
def example_split(seed: int = 0) -> Split:
    """A small random log, cut in time."""
    random, rows, items = np.random.default_rng(seed), 2000, 40
    item = np.minimum((items * random.random(rows) ** 2).astype(int), items - 1)
    user = random.integers(0, 60, rows)
    table = {
        "user": [f"u{code}" for code in user],
        "item": [f"i{code}" for code in item],
        "time": random.integers(0, TIMES, rows),
        "label": (random.random(rows) >= 0.3).astype(np.int8),
        "category": pa.array([None if code % 11 == 0 else f"c{code % 7}" for code in item]),
        "price": pa.array([None if code % 13 == 0 else float(code % 5) for code in item]),
        "country": pa.array([None if code % 17 == 0 else f"land {code % 3}" for code in user]),
    }
    log = read(pa.table(table), item_features="category,price", user_features="country")
    return split(log)


def check_model(kind: type[Recommender], config: ModelConfig | None = None) -> None:
    """Check that a model keeps the contract that all models keep.

    Parameters
    ----------
    kind
        The class of the model. It need not be registered.
    config
        The settings that it is built with; by default those of its `Config`. Small ones make the checks fast.

    Raises
    ------
    AssertionError
        If the model breaks the contract. The name of the check that fails describes what is required.
    """
    example = example_split()
    for check in CHECKS:
        check(builder(kind, config), example)


def builder(kind: type[Recommender], config: ModelConfig | None = None) -> Build:
    """Builds the model away from its initial values, because what starts at zero would hide a fault."""

    def build_model(split: Split) -> Recommender:
        torch.manual_seed(0)
        model = build(kind, split, kind.Config() if config is None else config).eval()
        random = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=random) * 0.3)
        return model

    return build_model


def some(log: Log, model: Recommender, rows: int = 24, candidates: int = 5, shorter: int = 0) -> Batch:
    """Contexts at all times: empty histories, unknown users, and items that training never saw.

    shorter: by how much histories and audiences are shorter than what the model reads.
    """
    random = np.random.default_rng(2)
    user, time = random.integers(0, len(log.users), rows), np.sort(random.integers(0, TIMES + 20, rows))
    user[3], user[-1], time[:2] = PAD, PAD, 0
    drawn = np.stack([random.permutation(len(log.items))[:candidates] for _ in range(rows)])
    audience = None if model.audience is None else max(model.audience - shorter, 0)
    return batch(log, user, time, drawn, None, max(model.history - shorter, 0), audience)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Equal up to rounding."""
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


def phases(model: Recommender) -> list[Phase]:
    """Each phase of training once, whatever stages it is part of."""
    return list({phase.name: phase for stage in model.stages(1) for phase in stage.phases}.values())


def first_batch(model: Recommender, phase: Phase, split: Split) -> Any:
    """The first batch of a phase, as the trainer makes it."""
    return next(Trainer(model, split, Training(batch_size=64, sequences=64)).samplers[phase.name].epoch())


# The checks


@torch.no_grad()
def candidate_order_is_irrelevant(build: Build, split: Split) -> None:
    """The score of a candidate depends neither on the other candidates nor on its place among them."""
    model = build(split)
    rows = some(split.log, model)
    scores = model(rows)
    assert scores.shape == rows.candidates_BC.shape, "forward must give a score per candidate, (B, C)"
    assert len(scores.unique()) > scores.shape[1], "nearly all scores are equal"
    order = torch.tensor([3, 0, 4, 2, 1])
    turned = rows._replace(
        candidates_BC=rows.candidates_BC[:, order], audience_of_BC=rows.audience_of_BC[:, order]
    )
    close(model(turned), scores[:, order])
    alone = rows._replace(
        candidates_BC=rows.candidates_BC[:, 2:3],
        audience_of_BC=rows.audience_of_BC[:, 2:3],
        labels_BC=rows.labels_BC[:, 2:3],
    )
    close(model(alone), scores[:, 2:3])


@torch.no_grad()
def rows_are_independent(build: Build, split: Split) -> None:
    """The scores of a context do not depend on the other contexts of the batch."""
    model = build(split)
    rows = some(split.log, model)
    scores = model(rows)
    for b in range(len(rows.user_B)):
        user, time = rows.user_B[b : b + 1].numpy(), rows.times_B[b : b + 1].numpy()
        candidates = rows.candidates_BC[b : b + 1].numpy()
        alone = batch(split.log, user, time, candidates, None, model.history, model.audience)
        close(model(alone)[0], scores[b])


@torch.no_grad()
def padding_is_invisible(build: Build, split: Split) -> None:
    """Longer padding of histories and audiences changes no score."""
    model = build(split)
    rows = some(split.log, model, shorter=3)
    scores = model(rows)
    for by in (1, 3):
        for names in (("history_BL", "history_times_BL"), ("audience_AM", "audience_times_AM")):
            wider: dict[str, Any] = {
                name: functional.pad(getattr(rows, name), (by, 0), value=PAD) for name in names
            }
            close(model(rows._replace(**wider)), scores)


@torch.no_grad()
def labels_are_unread(build: Build, split: Split) -> None:
    """Scores do not depend on the labels."""
    model = build(split)
    rows = some(split.log, model)
    assert torch.equal(model(rows._replace(labels_BC=torch.ones_like(rows.labels_BC))), model(rows))


@torch.no_grad()
def no_future_event_changes_a_score(build: Build, split: Split) -> None:
    """A model that knows only what happened before a time gives the same scores at that time."""
    for time in (split.train_end, split.valid_end, int(np.quantile(split.log.time, 0.9))):
        then = cut_at(split, time)
        assert len(then.log) < len(split.log)
        now, past = build(split), build(then)
        users, items = np.arange(len(then.log.users)), np.arange(len(then.log.items))
        everything = np.tile(items, (len(users), 1))
        query = np.full(len(users), time), everything, None, now.history, now.audience
        close(now(batch(split.log, users, *query)), past(batch(then.log, users, *query)))
        whole, cut = (m.catalog(s.log, time, time + 1) for m, s in ((now, split), (past, then)))
        scores = whole.scores(contexts(split.log, users, query[0], now.history))[:, : len(items)]
        close(scores, cut.scores(contexts(then.log, users, query[0], now.history)))


@torch.no_grad()
def catalog_equals_forward(build: Build, split: Split) -> None:
    """The catalogue gives the same scores as `forward`: for many contexts at one time, at times of no event,
    before and after all events."""
    log, model, random = split.log, build(split), np.random.default_rng(3)
    first, last = int(log.time.min()), int(log.time.max())
    events = random.choice(log.time, 60)
    for begin, end, times in (
        (first - 50, last + 50, [*events, first - 50, first, first, last, last + 1, last + 50]),
        (split.train_end, last + 1, [*events[events >= split.train_end], *[split.valid_end] * 90, last + 1]),
        (split.valid_end, split.valid_end + 1, [split.valid_end] * 3),  # a period of one moment
        (last + 1, last + 2, [last + 1] * 2),  # now
    ):
        time = np.sort(np.asarray(times))
        user = random.integers(0, len(log.users), len(time))
        user[::7] = PAD
        context = contexts(log, user, time, model.history)
        everything = np.tile(np.arange(len(log.items)), (len(time), 1))
        whole = model(with_candidates(context, log, everything, None, model.audience))
        close(model.catalog(log, begin, end).scores(context), whole)


@torch.no_grad()
def a_log_that_goes_on_can_be_scored(build: Build, split: Split) -> None:
    """A model scores a newer log, with new events, users and items, as a catalogue made from nothing does,
    also if its old catalogue is renewed; and every score is a number."""
    log, model = that_goes_on(split.log), build(split)
    assert len(log.items) == len(split.log.items) + 1
    assert len(log.users) == len(split.log.users) + 1
    before, now = split.log.now, log.now
    old = model.catalog(split.log, before, before + 1)
    users = np.array([0, 1, len(log.users) - 1, len(log.users), PAD])
    context = contexts(log, users, np.full(len(users), now), model.history)
    everything = np.tile(np.arange(len(log.items)), (len(users), 1))
    expected = model(with_candidates(context, log, everything, None, model.audience))
    assert bool(expected.isfinite().all()), "a score is not a finite number"
    close(model.catalog(log, now, now + 1).scores(context), expected)
    close(model.renew_catalog(old, log, now, now + 1).scores(context), expected)


def every_parameter_is_reached(build: Build, split: Split) -> None:
    """Every parameter is trained: a phase says so, and a gradient really comes."""
    model = build(split).train()
    assert model.trained_parameter_names() == {name for name, _ in model.named_parameters()}
    learned = set()
    for phase in phases(model):
        model.zero_grad()
        phase.loss(first_batch(model, phase, split)).backward()
        mine = {id(parameter) for parameter in phase.parameters()}
        learned |= {
            name
            for name, parameter in model.named_parameters()
            if id(parameter) in mine and parameter.grad is not None and bool(parameter.grad.any())
        }
    assert learned == model.trained_parameter_names()


CHECKS: tuple[Check, ...] = (
    candidate_order_is_irrelevant,
    rows_are_independent,
    padding_is_invisible,
    labels_are_unread,
    no_future_event_changes_a_score,
    catalog_equals_forward,
    a_log_that_goes_on_can_be_scored,
    every_parameter_is_reached,
)


@lru_cache(maxsize=4)
def that_goes_on(log: Log) -> Log:
    """The same log, with a few more events afterwards: of users and items that it has, and of new ones."""
    table = log.table()
    newer = pa.concat_tables([table.slice(0, 1), table.slice(log.positives // 2, 2), table.slice(0, 1)])
    columns = {name: newer[name].to_pylist() for name in newer.column_names}
    for name in ("user", "item"):
        new = (
            "a new user" if pa.types.is_string(table[name].type) else len(log) + max(table[name].to_pylist())
        )
        columns[name][-1] = new
    columns["item"][0] = columns["item"][-1]  # a known user takes something new
    columns["time"] = [log.now + 1 + place for place in range(len(newer))]
    return read(pa.concat_tables([table, pa.table(columns, schema=table.schema)]))


@lru_cache(maxsize=16)  # all models are checked on the same logs
def cut_at(split: Split, time: int) -> Split:
    """What is known at this time: the same split of a log that ends strictly before."""
    log = split.log
    table = log.table()
    cut = read(table.filter(pc.less(table["time"], time)))
    users, items = len(cut.users), len(cut.items)
    assert cut.users.ids.equals(log.users.ids[:users])
    assert cut.items.ids.equals(log.items.ids[:items])
    return dataclasses.replace(
        split, log=cut, user_counts=split.user_counts[:users], item_counts=split.item_counts[:items]
    )
