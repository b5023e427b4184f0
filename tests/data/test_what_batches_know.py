"""Times of past events and features of users and items, in every kind of batch; batches of one's own kind."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import unskew
from tests.helpers.runs import SHORT, TINY, train
from unskew.data.batches.batch import as_prefixes, bare_contexts, batch, contexts, feature_of, features_of
from unskew.data.batches.samplers import Sampler, Sampling, SequenceSampler
from unskew.data.log.views import PAD, Sequences
from unskew.models.base import MODELS
from unskew.models.sasrec import SASRec
from unskew.nn.phases import Phase, Stage
from unskew.testing.models import example_split
from unskew.training.trainer import Trainer


@pytest.fixture(scope="module")
def example() -> unskew.Split:
    return example_split()


def events(view: Sequences, entity: int) -> list[tuple[int, int]]:
    part = slice(view.offsets[entity], view.offsets[entity + 1])
    return list(zip(view.ids[part].tolist(), view.times[part].tolist(), strict=True))


def test_times_are_those_of_the_events(example: unskew.Split) -> None:
    log = example.log
    made = batch(log, [0, 3, PAD, 7], [0, 200, 200, 499], [[0, 1]] * 4, None, history=5, audience=4)
    for b, (user, now) in enumerate(zip([0, 3, PAD, 7], [0, 200, 200, 499], strict=True)):
        past = [event for event in events(log.histories, user) if event[1] < now][-5:] if user != PAD else []
        width = made.history_BL.shape[1]
        padding = [(PAD, PAD)] * (width - len(past))
        ids, times = made.history_BL[b].tolist(), made.history_times_BL[b].tolist()
        assert list(zip(ids, times, strict=True)) == padding + past
        for place, item in enumerate((0, 1)):
            a = int(made.audience_of_BC[b, place])
            past = [event for event in events(log.audiences, item) if event[1] < now][-4:]
            found = zip(made.audience_AM[a].tolist(), made.audience_times_AM[a].tolist(), strict=True)
            assert [pair for pair in found if pair != (PAD, PAD)] == past


@pytest.mark.parametrize("shared", [False, True])
def test_samplers_hand_out_times_strictly_before(example: unskew.Split, shared: bool) -> None:
    sampler = Sampler(example, Sampling(batch_size=64, history=5, audience=4, shared=shared))
    seen = 0
    for made in sampler.epoch():
        histories, audiences = made.histories, made.audiences
        for sequences, now_N in (
            (histories, made.times_B),
            (audiences, torch.zeros(len(audiences.row_N), dtype=torch.int64)),
        ):
            times_NL = sequences.times_WL[sequences.row_N]
            inside_NL = torch.arange(times_NL.shape[1]) < sequences.length_N[:, None]
            assert bool((times_NL[inside_NL] >= 0).all())
            if sequences is histories:
                assert bool((times_NL < now_N[:, None])[inside_NL].all())
                seen += int(inside_NL.sum())
            else:
                newest_N = times_NL.masked_fill(~inside_NL, -1).amax(1) if times_NL.shape[1] else now_N - 1
                assert bool((newest_N[made.audience_of_BC] < made.times_B[:, None]).all())
    assert seen > 1000


def test_whole_sequences_have_the_times_of_their_events(example: unskew.Split) -> None:
    log, seen = example.log, 0
    for made in SequenceSampler(example, 16, 0, history=6, audience=5).epoch():
        for ids, times, event, view in (
            (made.items_BL, made.time_BL, made.event_BL, log.histories),
            (made.users_BM, made.users_time_BM, made.users_event_BM, log.audiences),
        ):
            inside = ids != PAD
            assert bool((times[~inside] == PAD).all())
            np.testing.assert_array_equal(times[inside], view.times[event[inside]])
            seen += int(inside.sum())
        assert made.item_features.keys() == {"category", "price"}
        assert made.user_features.keys() == {"country"}
    assert seen > 1000


def test_prefixes_and_truncation_keep_times_beside_ids(example: unskew.Split) -> None:
    made = batch(example.log, np.arange(20), 400, np.arange(20)[:, None], None, history=9, audience=8)
    short = made.truncate(3, 2)
    again = batch(example.log, np.arange(20), 400, np.arange(20)[:, None], None, history=3, audience=2)
    for name in ("history_BL", "history_times_BL", "audience_AM", "audience_times_AM"):
        assert torch.equal(getattr(short, name), getattr(again, name))
    for rows in (made.histories.truncate(3), as_prefixes(again.history_BL, again.history_times_BL)):
        assert torch.equal(rows.ids_WL == PAD, rows.times_WL == PAD)
        assert rows.ids_WL.shape[1] == 3
    assert torch.equal(made.histories.truncate(3).times_WL, again.histories.times_WL)


def test_part_of_a_batch_is_all_of_its_contexts(example: unskew.Split) -> None:
    users, times = np.arange(6), 100 * np.arange(6)
    whole, rows = contexts(example.log, users, times, 5), slice(2, 5)
    made = whole.part(rows)
    for name in ("user_B", "times_B", "history_BL", "history_times_BL"):
        assert torch.equal(getattr(made, name), getattr(whole, name)[rows])
    assert made.item_features == whole.item_features


def test_without_times_all_is_just_past() -> None:
    history_BL, time_B = np.array([[PAD, 4, 2]], np.int32), np.array([9])
    assert bare_contexts(np.array([0]), history_BL, time_B).history_times_BL.tolist() == [[PAD, 8, 8]]


def test_features_are_looked_up_by_name(example: unskew.Split) -> None:
    log = example.log
    made = contexts(log, [0, 1], [300, 300], 5)
    category, price = made.item_features["category"], made.item_features["price"]
    names, values = log.items.features["category"].names.to_pylist(), log.items.features["category"].values
    for code, value in enumerate(values.to_pylist()):
        assert (names[category[code]] if category[code] != PAD else None) == value
    numbers = log.items.features["price"].values.to_pylist()
    assert [None if np.isnan(number) else number for number in price.tolist()] == numbers
    ids = torch.tensor([[0, PAD, len(values) + 3], [1, 2, len(values) - 1]])
    assert feature_of(category, ids).tolist() == [
        [category[0], PAD, PAD],
        category[[1, 2, len(values) - 1]].tolist(),
    ]
    assert feature_of(price, ids).isnan().tolist()[0][1:] == [True, True]
    assert feature_of(category[:0], ids).tolist() == [[PAD] * 3] * 2
    assert features_of(unskew.read({"user": [1, 2], "item": [2, 3], "time": [3, 4]}).items) == {}


def test_a_model_is_built_for_the_categories_of_known_items(example: unskew.Split) -> None:
    feature = example.log.items.features["category"]
    known = feature.categories[: example.known_items]
    assert example.known.items.categories == {"category": known.max() + 1}
    assert set(range(known.max() + 1)) <= set(known.tolist())
    assert example.known.users.categories == {"country": 3}
    assert example.known.clock == example.log.clock


# Batches of one's own kind


class Reversed:
    """The newest events of the training set, ten at a time, as plain tensors."""

    def __init__(self, split: unskew.Split, seed: int, batch_size: int) -> None:
        self.rows, self.log, self.step, self.seed = split.rows("train")[-100:], split.log, 0, seed
        self.batch_size = batch_size

    def __len__(self) -> int:
        return 10

    def epoch(self) -> Iterator[torch.Tensor]:
        while self.step < len(self):
            self.step += 1
            yield torch.from_numpy(self.log.item[self.rows[-10 * self.step :][:10]].astype(np.int64))
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


class Own(SASRec):
    given: list[Any] = []  # noqa: RUF012

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        (stage,) = super().stages(epochs)
        own = Phase("own", Reversed, self.own_loss, self.items.parameters, weighted=False)
        return (replace(stage, phases=(*stage.phases, own)),)

    def own_loss(self, items_N: torch.Tensor) -> torch.Tensor:
        self.given.append(items_N)
        return self.items(items_N).square().mean()


def test_a_phase_may_have_batches_of_its_own(small_split: unskew.Split) -> None:
    model = Own(small_split.known, SASRec.Config(width=8, history=6))
    Own.given.clear()
    trainer = Trainer(model, small_split, replace(SHORT, epochs=2))
    trainer.run()
    assert len(Own.given) == 20
    assert all(batch.shape == (10,) for batch in Own.given)
    own = trainer.samplers["own"]
    assert isinstance(own, Reversed)
    assert own.batch_size == SHORT.batch_size
    assert [set(record.losses) for record in trainer.records] == [{"next item", "own"}] * 2
    tensors, words = trainer.state()
    again = Trainer(Own(small_split.known, model.config), small_split, replace(SHORT, epochs=2))
    again.load(tensors, words)
    assert again.samplers["own"].state_dict() == {"step": 0}
    assert train(small_split, "deps", TINY, replace(SHORT, epochs=1))[1].records  # others have the usual ones
    assert "own" not in MODELS
