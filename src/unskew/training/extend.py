"""A trained network for more users and items, which continues to learn.

A new log numbers its users and items again, and events that come late change the numbers of old ones. So rows
move by the caller's ids, never by their places. A new id begins with the vector that unknown ids have shared
so far (`Embeddings.first_vector`). So growing changes no score; only learning does. BERT4Rec is an exception:
its vector of unknown ids is that of the mask, so a new item begins with the mean of all others.

The optimiser continues, too: its moments move with the weights, and those of new rows are zero. What no
gradient learns is measured again (`Recommender.refresh_statistics`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor, nn

from unskew.core.errors import BadInput, UnskewError
from unskew.data.batches.samplers import SequenceSampler, Windows
from unskew.data.log.log import Log
from unskew.data.log.split import Known, Mask, Part, Split
from unskew.data.log.views import PAD, Ints
from unskew.models.base import Recommender, Training
from unskew.nn.layers import Embeddings
from unskew.training.trainer import Trainer, below

REFRESHED = 0.1  # the fraction of the examples of a training that an update draws, where these are a sample
Moments = dict[str, dict[str, dict[str, Tensor]]]  # by phase, parameter and kind


def as_text(ids: pa.Array) -> pa.Array:
    """The caller's ids as text, however a log holds them."""
    if pa.types.is_string(ids.type):
        return ids
    if pa.types.is_integer(ids.type) or pa.types.is_large_string(ids.type):
        return ids.cast(pa.string())
    return pa.array([str(value) for value in ids.to_pylist()], pa.string())


class CodeMapping(NamedTuple):
    """The code that each user and each item of a log had before; PAD if it had none."""

    users: Ints
    items: Ints

    @classmethod
    def between(cls, before: Log, now: Log) -> "CodeMapping":
        """From one log to another one, by the caller's ids as text."""
        return cls(_codes(before.users.ids, now.users.ids), _codes(before.items.ids, now.items.ids))

    @classmethod
    def none(cls, log: Log) -> "CodeMapping":
        """Every code stays."""
        return cls(np.arange(len(log.users)), np.arange(len(log.items)))


def _codes(before: pa.Array, now: pa.Array) -> Ints:
    codes = pc.fill_null(pc.index_in(as_text(now), value_set=as_text(before)), PAD)
    return np.asarray(codes.to_numpy(zero_copy_only=False), np.int64)


@runtime_checkable
class ParameterTransfer(Protocol):
    """A part of a network that has counted something by codes of items, which its scores need."""

    def take_over(self, before: nn.Module, items: Tensor) -> None:
        """Begin with what the same part of the old network has counted.

        items: the code that each item had before, or PAD.
        """


class ExtendedNetwork(NamedTuple):
    """A network for more ids. `rows` says of each table of vectors, by the name of its parameter, in which
    row of the old table each of its rows was; PAD if in none."""

    network: Recommender
    rows: dict[str, Tensor]


@torch.no_grad()
def extend_network(before: Recommender, known: Known, moves: CodeMapping) -> ExtendedNetwork:
    """The same network for the users and items of another log, with the same scores.

    known: the users and items that the new network knows.
    moves: which code each of them had before.
    """
    with torch.random.fork_rng(devices=[]):
        network = type(before)(known, before.config)
    parts, rows = dict(before.named_modules()), {}
    users, items = (torch.from_numpy(codes) for codes in moves)
    for name, module in network.named_modules():
        old = parts[name]
        if isinstance(module, Embeddings):
            assert isinstance(old, Embeddings)
            if module.ids is not known.users and module.ids is not known.items:
                raise _cannot(network, name)
            codes = (users if module.ids is known.users else items)[: module.known]
            rows[f"{name}.weight"] = _fill_table(module, old, codes)
            continue
        parameters = dict(old.named_parameters(recurse=False))
        for kind, value in module.named_parameters(recurse=False):
            if kind not in parameters and not value.any():  # the first features came: so far they say nothing
                continue
            if kind not in parameters or value.shape != parameters[kind].shape:
                raise _cannot(network, f"{name}.{kind}")
            value.copy_(parameters[kind])
        for kind, value in module.named_buffers(recurse=False):
            if value.shape == old.get_buffer(kind).shape:
                value.copy_(old.get_buffer(kind))
        if isinstance(module, ParameterTransfer):
            module.take_over(old, items[: known.items.size])
    return ExtendedNetwork(network.eval(), rows)


def _fill_table(table: Embeddings, old: Embeddings, codes: Tensor) -> Tensor:
    """Give a table its vectors. Returns the row that each of its rows had in the old table, or PAD.

    codes: the code that each id of the table had before, or PAD.
    """
    if table.row_of is not None:  # rare ids have no row
        codes = codes[table.row_of < len(table.weight)]
    codes = codes.masked_fill(codes == PAD, old.known)
    unknown = old.is_unknown(codes)
    table.weight.copy_(torch.where(unknown[:, None], old.first_vector(), old(codes)))
    if table.unknown is not None:
        table.unknown.copy_(old.unknown_vector())
    places = codes if old.row_of is None else old.row_of[codes.clamp(max=max(old.known - 1, 0))]
    return places.masked_fill(unknown, PAD)


def _cannot(network: Recommender, name: str) -> UnskewError:
    return UnskewError(
        f"{network.name} cannot be grown: {name} belongs to users or items and is not a table of "
        "`unskew.nn.layers.Embeddings` made from what is known of them; train this model again"
    )


@dataclass(frozen=True)
class Learned:
    """Where training was: the moments of the optimisers, the epochs of each phase, and the step."""

    moments: Moments
    epochs: Mapping[str, int]
    step: int

    @classmethod
    def of(cls, network: Recommender, tensors: dict[str, Tensor], words: dict[str, str]) -> "Learned":
        """Of what a checkpoint holds, or `Trainer.state` gives."""
        at, moments = json.loads(words["progress"]), {}
        for phase, names in _parameters(network).items():
            moments[phase] = kinds = dict[str, dict[str, Tensor]]()
            for path, value in below(f"moments/{phase}", tensors).items():
                number, kind = path.split("/")
                kinds.setdefault(names[int(number)], {})[kind] = value
        return cls(moments, {name: state["epoch"] for name, state in at["samplers"].items()}, at["step"])

    @classmethod
    def nothing(cls) -> "Learned":
        """A run without a checkpoint: its optimisers start again."""
        return cls({}, {}, 0)

    def moved(self, rows: Mapping[str, Tensor]) -> "Learned":
        """The same for a grown network; what belongs to a new row is zero."""
        moments = {
            phase: {
                name: {kind: _move_rows(value, rows.get(name)) for kind, value in kinds.items()}
                for name, kinds in by_name.items()
            }
            for phase, by_name in self.moments.items()
        }
        return replace(self, moments=moments)

    def install(self, trainer: Trainer) -> None:
        """Let a trainer go on from here."""
        parameters = dict(trainer.model.named_parameters())
        names = _parameters(trainer.model)
        for phase, optimizer in trainer.optimizers.items():
            moments = self.moments.get(phase, {})
            state = {
                number: moments[name]
                for number, name in enumerate(names[phase])
                if name in moments
                and all(_has_shape(value, parameters[name]) for value in moments[name].values())
            }
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": state, "param_groups": groups})
            sampler: Any = trainer.samplers[phase]
            if hasattr(sampler, "epoch_number"):
                sampler.epoch_number = self.epochs.get(phase, 0)
        trainer.progress.step = self.step


def _parameters(network: Recommender) -> dict[str, list[str]]:
    """Of each phase the names of its parameters, in the order in which its optimiser has them."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    phases = {phase.name: phase for stage in network.stages(1) for phase in stage.phases}
    return {
        name: [names[id(parameter)] for parameter in phase.parameters()] for name, phase in phases.items()
    }


def _has_shape(value: Tensor, parameter: Tensor) -> bool:
    return not value.ndim or value.shape == parameter.shape


def _move_rows(value: Tensor, rows: Tensor | None) -> Tensor:
    if rows is None or not value.ndim:
        return value.clone()
    moved = value.new_zeros(len(rows), *value.shape[1:])
    moved[rows != PAD] = value[rows[rows != PAD]]
    return moved


# What it learns from


@dataclass(frozen=True, eq=False)
class Learning(Split):
    """A split of which only some training rows are targets; all others are still read as the past."""

    chosen: Mask

    def examples(self, most: int) -> int:
        """An update draws a fraction of the examples of a training, because the weights are learned."""
        return max(int(REFRESHED * most), 1)

    def targets(self, part: Part, reads_audiences: bool) -> Mask:
        """Rows of a part that may be trained on or tested."""
        mask = super().targets(part, reads_audiences)
        return mask & self.chosen if part == "train" else mask


def resume_training(
    network: Recommender,
    learned: Learned,
    split: Split,
    fresh: Mask,
    training: Training,
    epochs: int,
    replay: float,
    chosen: dict[str, float],
) -> Trainer:
    """A trainer that continues with an extended network: on all fresh rows of the training set, and on a
    fraction of the others. Models that read whole sequences replay a fraction of the pieces of sequences
    instead.

    fresh: which rows of the log the network has not learned from.
    epochs: every stage has at most so many epochs.
    replay: the fraction of the old rows that is learned from again, drawn by the seed and the step.
    chosen: settings that a validation set chose.
    """
    random = np.random.default_rng([training.seed, learned.step, 37])
    again = fresh | (random.random(len(split.log)) < replay)
    fields = {name: getattr(split, name) for name in split.__dataclass_fields__}
    settings = replace(training, epochs=epochs, select_by="ordinary")
    trainer = Trainer(network, Learning(**fields, chosen=again), settings, chosen=chosen)
    trainer.stages = tuple(replace(stage, epochs=min(stage.epochs, epochs)) for stage in trainer.stages)
    for sampler in trainer.samplers.values():
        if isinstance(sampler, SequenceSampler):
            _read_less(sampler, fresh, replay, random)
    learned.install(trainer)
    return trainer


def _read_less(sampler: SequenceSampler, fresh: Mask, replay: float, random: np.random.Generator) -> None:
    """Let a sampler walk only over windows with a fresh event, and over a fraction of the others."""
    log = sampler.log
    user, item, time = (column[: log.positives] for column in (log.user, log.item, log.time))
    of_histories = fresh[: log.positives]
    of_audiences = of_histories[np.lexsort((user, time, item))]
    for number, (windows, events) in enumerate(
        zip(sampler.windows, (of_histories, of_audiences), strict=False)
    ):
        drawn = random.random(len(windows.start)) < replay
        kept = drawn | (_within(events, windows.first, windows.end) > 0)
        if number == 0:
            edges = np.zeros(len(events) + 1, np.int64)
            np.add.at(edges, windows.first[drawn], 1)
            np.add.at(edges, windows.end[drawn], -1)
            sampler.wanted = sampler.wanted & (events | (np.cumsum(edges)[:-1] > 0))
            if len(sampler.windows) == 1:
                kept &= _within(sampler.wanted, windows.first, windows.end) > 0
        if not kept.any():
            raise BadInput("nothing to learn from: all new events repeat what their users had before")
        sampler.windows[number] = Windows(*(column[kept] for column in windows))


def _within(marked: Mask, first: Ints, end: Ints) -> Ints:
    """How many marked events each window has."""
    counts = np.concatenate([[0], np.cumsum(marked)])
    return np.asarray(counts[end] - counts[first])
