"""A network that is grown to more users and items: no score changes before it learns, whatever the model, and
the optimiser goes on with the rows that it had."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

import unskew
from tests.helpers.contract import close, tiny
from tests.helpers.runs import SHORT
from unskew.core.errors import UnskewError
from unskew.data.batches.batch import batch
from unskew.data.batches.samplers import Sampler, SequenceSampler
from unskew.data.log.split import Split, Splitting, split_at
from unskew.data.log.views import PAD
from unskew.models.base import MODELS, Recommender, build, model_named
from unskew.testing.models import builder, example_split, that_goes_on
from unskew.training.extend import CodeMapping, Learned, extend_network, resume_training
from unskew.training.trainer import Trainer

EVERY = [*MODELS, *(f"debiased-{name}" for name in MODELS)]
READS_THE_LOG = ("pulse", "pulse-zero", "personal", "userknn")


@pytest.fixture(scope="module")
def older() -> Split:
    """The example of the contract, which begins at 10."""
    found = example_split()
    table = found.log.table()
    later = pa.array(table["time"].to_numpy() + 10)
    return unskew.split(unskew.read(table.set_column(2, "time", later)))


@pytest.fixture(scope="module")
def newer(older: Split) -> Split:
    """The same log some time later, when there are new users and items."""
    log = that_goes_on(older.log)
    return cut(log, older, log.now)


@pytest.fixture(scope="module")
def renumbered(older: Split) -> Callable[[int, int], unskew.Log]:
    """A function that reads the log with late events of a moment, each of them as often as is said."""

    @cache
    def read(when: int, times: int) -> unskew.Log:
        moved = people(older.log)[-1]
        rows = [("late user", "late item", when)] * times + [(moved, "late item", when)]
        return with_rows(older.log, rows)

    return read


def config_of(kind: type[Recommender]) -> Any:
    if not hasattr(kind, "Backbone"):
        return tiny(kind)
    return kind.Config(backbone=tiny(kind.Backbone), propensity_width=8)


def built(name: str, split: Split) -> Recommender:
    kind = model_named(name)
    return builder(kind, config_of(kind))(split)


def cut(log: unskew.Log, like: Split, end: int, min_count: int = 1) -> Split:
    settings = Splitting(repeats="keep" if like.repeats else "hide", min_count=min_count)
    return split_at(log, settings, end, end)


def with_rows(log: unskew.Log, rows: list[tuple[str, str, int]]) -> unskew.Log:
    """The same log with more positives."""
    table = log.table()
    more = {name: pa.nulls(len(rows), table[name].type) for name in table.column_names}
    for place, name in enumerate(("user", "item", "time")):
        more[name] = pa.array([row[place] for row in rows], table[name].type)
    more["label"] = pa.array([1] * len(rows), table["label"].type)
    return unskew.read(pa.concat_tables([table, pa.table(more, schema=table.schema)]))


@torch.no_grad()
def scores(model: Recommender, log: unskew.Log, users: list[str], items: list[str], times: Any) -> Any:
    codes = log.users.codes(users).astype(np.int64)
    candidates = np.tile(log.items.codes(items).astype(np.int64), (len(users), 1))
    return model(batch(log, codes, np.asarray(times), candidates, None, model.history, model.audience))


def people(log: unskew.Log) -> list[str]:
    return log.users.ids.to_pylist()


def things(log: unskew.Log) -> list[str]:
    return log.items.ids.to_pylist()


@pytest.mark.parametrize("name", EVERY)
def test_growing_by_nothing_changes_nothing(name: str, older: Split) -> None:
    model = built(name, older)
    again = extend_network(model, older.known, CodeMapping.none(older.log))
    state = again.network.state_dict()
    assert state.keys() == model.state_dict().keys()
    for key, value in model.state_dict().items():
        torch.testing.assert_close(state[key], value)
    log = older.log
    times = np.linspace(0, log.now, len(log.users)).astype(np.int64)
    asked = people(log), things(log), times
    close(scores(again.network, log, *asked), scores(model, log, *asked))


@pytest.mark.parametrize("name", EVERY)
def test_growing_by_new_ids_changes_no_score(name: str, older: Split, newer: Split) -> None:
    """Neither for old users and items nor for new ones: those are unknown until something is learned."""
    model, log = built(name, older), newer.log
    assert newer.known_items > older.known_items
    made = extend_network(model, newer.known, CodeMapping.between(older.log, log)).network
    # Of BERT4Rec, histories with an item that was unknown do change: it had the vector of the mask.
    time = older.train_end if "bert4rec" in name else log.now
    asked = people(log), things(log), np.full(len(log.users), time)
    close(scores(made, log, *asked), scores(model, log, *asked))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("min_count", [1, 12])
def test_late_events_that_renumber_everybody_change_no_score_of_others(
    name: str, min_count: int, older: Split, renumbered: Callable[[int, int], unskew.Log]
) -> None:
    """A new user takes a new item before anything else happened, and then a known user does, so all codes
    change. A model that reads the whole log is asked at that moment, because later the log is another one."""
    before = cut(older.log, older, older.train_end, min_count)
    model, reads_the_log = built(name, before), name.removeprefix("debiased-") in READS_THE_LOG
    when = 12 if reads_the_log else int(older.log.time.min()) - 3
    moved = people(older.log)[-1]
    log = renumbered(when, min_count)
    users, items = (people(older.log)[:-1], things(older.log))
    assert log.items.codes(items).tolist() != list(range(len(items)))
    assert log.users.codes([moved]).tolist() != [len(users) + 1]
    if not reads_the_log:  # events of one moment are in the order of their codes
        view, code = older.log.histories, int(older.log.users.codes([moved])[0])
        start, end = view.before(code, older.log.now)
        had = older.log.items.of(view.ids[start:end]).to_pylist()
        items = [item for item in items if item not in had]
    after = cut(log, older, older.train_end, min_count)
    made = extend_network(model, after.known, CodeMapping.between(older.log, log)).network
    asked = users, items, np.full(len(users), when if reads_the_log else older.train_end)
    close(scores(made, log, *asked), scores(model, older.log, *asked))


def test_a_network_that_keeps_ids_elsewhere_is_refused(older: Split, newer: Split) -> None:
    model = built("sasrec", older)

    class Odd(type(model)):  # type: ignore[misc]
        def __init__(self, known: Any, config: Any) -> None:
            super().__init__(known, config)
            self.mine = nn.Parameter(torch.zeros(known.items.size))

    odd = Odd(older.known, model.config)
    with pytest.raises(UnskewError, match=r"cannot be grown: \.mine belongs to users or items"):
        extend_network(odd, newer.known, CodeMapping.between(older.log, newer.log))


# The optimiser


def trained(name: str, split: Split) -> Trainer:
    torch.manual_seed(0)
    kind = model_named(name)
    trainer = Trainer(build(kind, split, config_of(kind)), split, replace(SHORT, epochs=1))
    trainer.run()
    return trainer


@pytest.mark.parametrize("name", ["sasrec", "deps", "dice"])
def test_moments_move_with_their_ids_and_new_rows_have_none(name: str, older: Split) -> None:
    trainer = trained(name, older)
    before = Learned.of(trainer.model, *trainer.state())
    log = with_rows(older.log, [("late user", "late item", int(older.log.time.min()) - 1)])
    newer = cut(log, older, older.train_end)
    made = extend_network(trainer.model, newer.known, CodeMapping.between(older.log, log))
    after = before.moved(made.rows)
    phase = list(before.moments)[-1]
    assert {name: kinds.keys() for name, kinds in after.moments[phase].items()} == {
        name: kinds.keys() for name, kinds in before.moments[phase].items()
    }
    old, new = (found.moments[phase]["items.weight"]["exp_avg"] for found in (before, after))
    assert old.any(1).all()
    assert len(new) == newer.known_items == len(old) + 1
    assert not new[log.items.codes(["late item"])[0]].any()
    for thing in things(older.log)[: older.known_items]:
        assert torch.equal(new[log.items.codes([thing])[0]], old[older.log.items.codes([thing])[0]])
    chosen = np.zeros(len(log), bool)
    on = resume_training(made.network, after, newer, chosen, SHORT, 1, 1.0, {})
    found = Learned.of(made.network, *on.state())
    assert torch.equal(found.moments[phase]["items.weight"]["exp_avg"], new)
    assert found.step == before.step > 0
    assert on.samplers[phase].epoch_number == trainer.samplers[phase].epoch_number > 0


# What it learns from


def test_only_fresh_rows_and_a_share_of_others_are_learned_from(older: Split) -> None:
    log, network = older.log, built("bst", older)
    fresh = np.asarray((log.time > 200) & (log.time < 230))
    asked = network, Learned.nothing(), older, fresh, SHORT, 1
    nothing, some, everything = (resume_training(*asked, fraction, {}) for fraction in (0.0, 0.3, 1.0))
    samplers = [trainer.samplers["clicks"] for trainer in (nothing, some, everything)]
    assert all(isinstance(sampler, Sampler) for sampler in samplers)
    few, more, all_of_them = (set(sampler.rows.tolist()) for sampler in samplers)
    possible = np.flatnonzero(older.targets("train", reads_audiences=False))
    assert few == set(possible[fresh[possible]].tolist())
    assert all_of_them == set(possible.tolist())
    assert few < more < all_of_them
    assert 0.2 < (len(more) - len(few)) / (len(all_of_them) - len(few)) < 0.4
    again = resume_training(*asked, 0.3, {}).samplers["clicks"]
    assert again.rows.tolist() == samplers[1].rows.tolist()


def test_sequences_are_replayed_in_whole_pieces(older: Split) -> None:
    log, network = older.log, built("sasrec", older)
    fresh = np.asarray((log.time > 200) & (log.time < 230))
    asked = network, Learned.nothing(), older, fresh, SHORT, 1

    def targets(fraction: float) -> tuple[set[int], int]:
        (sampler,) = resume_training(*asked, fraction, {}).samplers.values()
        assert isinstance(sampler, SequenceSampler)
        events = [batch.event_BL[batch.target_BL] for batch in sampler.epoch()]
        return set(torch.cat(events).tolist()), len(sampler.windows[0].start)

    (few, windows), (some, more), (every, most) = targets(0.0), targets(0.3), targets(1.0)
    assert few == set(np.flatnonzero(fresh[: log.positives]).tolist())
    assert every == set(np.flatnonzero(log.time[: log.positives] < older.train_end).tolist())
    assert few < some < every
    assert windows < more < most
    assert 0.2 < (len(some) - len(few)) / (len(every) - len(few)) < 0.4


def test_audiences_are_replayed_in_pieces_and_every_stage_is_short(older: Split) -> None:
    kind = model_named("deps")
    network = builder(kind, replace(config_of(kind), unsupervised_epochs=3, propensity="dual"))(older)
    fresh = np.asarray((older.log.time > 200) & (older.log.time < 204))
    asked = network, Learned.nothing(), older, fresh, replace(SHORT, epochs=9), 2
    few, every = (resume_training(*asked, fraction, {}) for fraction in (0.0, 1.0))
    for phase in ("propensity", "masked"):
        for one, other in zip(few.samplers[phase].windows, every.samplers[phase].windows, strict=True):
            assert 0 < len(one.start) < len(other.start)
    owners = few.samplers["masked"].windows[1].owner
    clicked = fresh & (older.log.label == 1)
    assert set(owners.tolist()) == set(older.log.item[clicked].tolist())
    assert [stage.epochs for stage in few.stages] == [2, 2]


def test_codes_are_compared_as_text() -> None:
    one, other = (
        unskew.read(pa.table({"user": users, "item": [7, 8, 9], "time": [1, 2, 3]}))
        for users in ([1, 2, 30], ["30", "x", "1"])
    )
    assert CodeMapping.between(one, other).users.tolist() == [2, PAD, 0]
