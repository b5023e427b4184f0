"""Pulse: a small model without ids, which reads when things happened (no paper; our own).

On an temporal split most users and items of tomorrow are new, so what decides is *when*: how fast an
audience grows, everybody's and that of people like you. With the vectors a, u, w and c of `data/signals.py`,
for a request (u, t) and an item i:

    clicks(u, i, t) = relu(P a + Q u + R w) . v + p . a + r . w + g . c  what will be clicked
    exposure(i, t)  = relu(S a) . s + q . a                              what anybody would click
    score           = clicks - debias * exposure

Both heads are softmaxes over the items that exist at t, so with the debiasing strength at 1 the score is the
logarithm of P(i | u, t) / P(i | t): how much more likely this user is to click the item than anybody is.
Ranking by that would be right if every item were equally popular, which is what the test `balanced` asks. At
0 the score is what the log's own future asks. Validation chooses the debiasing strength for each test, and
everybody may turn it.

    loss  = -log softmax of the target among itself and negatives that existed at t, for both heads; half of
            the negatives uniform, half from the last 1,000 events, each logit minus the log of how likely
            its item was to be drawn (log Q)

It learns from a sample of the newest training positives, starting from weights that were learned on other
logs. Half of the lists that it learns from are made some time before their target, like lists that are
frozen. In a leave-one-out split it learns from the last training positive of each user, with those of all
users taken out of the log, and reads events of other users at any time, as networks do that were trained on
them. What is read never changes, so it is read once. Inputs are standardised on training rows; w is
scaled and not centred, so that an item about which nothing is known stays at zero; c is read as it is, and
only if the log that is learned from has features of items. There is nothing in it that belongs to one log:
weights that were learned on some logs work on others (`pulse-zero`). Scores of a log that is cut at t are
those of the whole log.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from unskew.core.atomic_files import beside
from unskew.core.config import AtLeast1, NotNegative, Search, Settings, Share
from unskew.core.errors import BadInput
from unskew.core.ranks import ranks
from unskew.data.batches.batch import Batch, contexts
from unskew.data.batches.negatives import with_negatives
from unskew.data.log.arrays import chunks, true_positions
from unskew.data.log.live import Live
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Known, Split
from unskew.data.log.views import PAD, Ints
from unskew.models.base import ModelConfig, Recommender
from unskew.models.pulse.neighbours import NeighbourSettings
from unskew.models.pulse.repeats import DUE
from unskew.models.pulse.scoring import ItemSide, LivePulseCatalog, PulseCatalog
from unskew.models.pulse.signals import (
    BLOCK,
    HALF_LIVES,
    ITEM_FEATURES,
    NEIGHBOUR_FEATURES,
    OF_TYPE,
    USER_FEATURES,
    Reads,
    Requests,
    Signals,
)
from unskew.models.pulse.tags import OF_TAGS
from unskew.models.recency import Packing, ValidationMemory, ticks_per_day
from unskew.nn.device import on_device
from unskew.nn.losses import weighted_mean
from unskew.nn.phases import Phase, Stage
from unskew.nn.scoring import Catalog

SHARD = 2048  # rows that are read together: a multiple of what is read at once
MEASURED, EACH = 2000, 8  # rows that standardise the inputs, and items of each
SHUFFLED = 1 << 24  # up to so many rows, all are shuffled to draw a sample of them
SHIPPED_HIDDEN = 64  # the width of the shipped weights
OWN_EVENTS = 200  # of a user's newest events, those that repeats are known from
# Weights of what not every log has, which the shipped ones do not have either.
OPTIONAL = ("tag_skip", "more_of_item", "more_of_exposure", "more_of_pair", "more_skip")
STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # that are tried
ZERO = Path(__file__).with_name("pulse-zero.safetensors")  # made by benchmarks/pulse_zero.py


class Pulse(Recommender, name="pulse", paper="no paper: audiences and neighbours, by their times"):
    """A network of about two thousand parameters over counts and times."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        """The settings of Pulse."""

        hidden: Annotated[AtLeast1, Search.among(32, 64, 128)] = 64
        """The width of the hidden layer of the head of clicks; that of the head of exposure is half as
        wide."""
        sample: AtLeast1 = 20_000
        """The number of training positives that it learns from, a sample of the newest ones."""
        newest: Annotated[Share, Search.among(0.5, 0.8, 1.0)] = 0.8
        """The fraction of the training positives, the newest, that the sample is drawn from."""
        drawn: Annotated[AtLeast1, Search.among(32, 64, 128)] = 64
        """The number of negatives of each positive."""
        neighbours: Annotated[AtLeast1, Search.among(100, 300, 1000)] = NeighbourSettings.neighbours
        """The number of neighbours whose events are read. More of them reach more rare items, and cost
        more."""
        reads: Reads = "all"
        """What is read of the log: everything, or, to see what each part is worth, everything but the
        intervals between repeats (`types`), everything but context events (`repeats`), everything but both
        (`targets`), only the decayed counts of items and users (`counts`) or only what neighbours took
        (`neighbours`)."""
        start: Literal["shipped", "random", "kept"] = "shipped"
        """Whether training starts from the weights that come with the package, those of `pulse-zero`
        (`shipped`), or from random ones; with `kept` the shipped ones are not trained at all. They are 64
        wide and read everything; other settings start at random. Wherever they fit, validation has them to
        choose from, as epoch 0."""
        pull: NotNegative = 0.0
        """How strongly training from the shipped weights is drawn back to them: the factor of the squared
        distance in the loss."""
        horizon: str = "all"
        """How long before a training positive its list may be made. With `next` all lists are made at that
        very moment, so only reactions to the newest events are learned. With a duration such as `30d`, or
        with `all`, which is the length of the validation set, half of the lists are made at a random moment
        up to so long before, like those of a weekly mail."""

    config: Config
    presets: ClassVar[dict[str, Settings]] = {
        "counts": {"reads": "counts"},
        "neighbours": {"reads": "neighbours"},
    }
    supports_live_log = True
    is_free_of_ids = True
    validates_frozen = True
    recipe: ClassVar[Settings] = {"epochs": 5, "patience": 5, "batch_size": 128}
    recipe |= {"learning_rate": 5e-3, "weight_decay": 1e-5}
    searched: ClassVar[dict[str, Search]] = {"batch_size": Search.among(64, 128, 256)}
    searched |= {"learning_rate": Search(1e-3, 2e-2, log=True), "weight_decay": Search(1e-6, 1e-3, log=True)}
    debias_now: Tensor
    day_ticks: Tensor
    horizon_ticks: Tensor
    repeats: Tensor
    reads_all: Tensor
    mean_a: Tensor
    scale_a: Tensor
    mean_u: Tensor
    scale_u: Tensor
    scale_w: Tensor
    mean_types: Tensor
    scale_types: Tensor
    scale_more: Tensor
    tag_skip: Tensor | None
    more_of_item: Tensor | None
    more_of_exposure: Tensor | None
    more_of_pair: Tensor | None
    more_skip: Tensor | None

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        if config.start == "kept" and not self._may_be_shipped():
            raise BadInput(f"start kept: the shipped weights are {SHIPPED_HIDDEN} wide and read everything")
        if config.pull and (config.start != "shipped" or not self._may_be_shipped()):
            raise BadInput(
                f"pull {config.pull:g}: only training that starts from the shipped weights (start shipped, "
                f"hidden {SHIPPED_HIDDEN}, reads all) can be drawn towards them"
            )
        hidden, half = config.hidden, max(config.hidden // 2, 1)
        self.of_item, self.of_user = (
            nn.Linear(ITEM_FEATURES, hidden),
            nn.Linear(USER_FEATURES, hidden, bias=False),
        )
        self.of_neighbours, self.last = (
            nn.Linear(NEIGHBOUR_FEATURES, hidden, bias=False),
            nn.Linear(hidden, 1, bias=False),
        )
        self.item_skip, self.neighbour_skip = (
            nn.Parameter(torch.zeros(size)) for size in (ITEM_FEATURES, NEIGHBOUR_FEATURES)
        )
        self.of_exposure, self.exposure_last = nn.Linear(ITEM_FEATURES, half), nn.Linear(half, 1, bias=False)
        self.exposure_skip = nn.Parameter(torch.zeros(ITEM_FEATURES))
        tagged = bool(known.items.categories)
        self.register_parameter("tag_skip", nn.Parameter(torch.zeros(OF_TAGS)) if tagged else None)
        self.register_buffer("debias_now", torch.zeros(()))
        self.register_buffer("day_ticks", torch.ones(1, dtype=torch.float64))
        # A run on everything has no validation set, and takes the horizon of the run that it repeats.
        self.register_buffer("horizon_ticks", torch.zeros((), dtype=torch.float64))
        self.register_buffer("repeats", torch.zeros((), dtype=torch.bool))
        self.register_buffer("reads_all", torch.zeros((), dtype=torch.bool))
        for name, size in (("a", ITEM_FEATURES), ("u", USER_FEATURES)):
            self.register_buffer(f"mean_{name}", torch.zeros(size))
            self.register_buffer(f"scale_{name}", torch.ones(size))
        self.register_buffer("scale_w", torch.ones(NEIGHBOUR_FEATURES))
        # Inputs of context types and of repeats. Their weights begin at zero, so that those that were learned
        # without them stay as good as they are.
        self.types = known.types if config.reads in ("all", "types") else ()
        self.reads_due = known.repeats and config.reads in ("all", "repeats")
        of_items = len(self.types) * len(HALF_LIVES)
        of_pairs = len(self.types) * OF_TYPE + DUE * self.reads_due
        more = {"more_of_item": (of_items, hidden), "more_of_exposure": (of_items,)}
        more |= {"more_of_pair": (of_pairs, hidden), "more_skip": (of_pairs,)}
        for name, shape in more.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)) if shape[0] else None)
        for name, size in (("mean_types", of_items), ("scale_types", of_items), ("scale_more", of_pairs)):
            self.register_buffer(name, torch.zeros(size) if name == "mean_types" else torch.ones(size))
        self._signals: Signals | None = None
        self._memory: ValidationMemory[Requests] | None = None
        self._pulled_to: dict[str, Tensor] | None = None

    @property
    def history(self) -> int:
        return OWN_EVENTS

    @property
    def audience(self) -> int:
        """None is given in batches; all of them are counted in the log itself."""
        return 0

    @property
    def debias(self) -> float:
        return float(self.debias_now)

    @property
    def strengths(self) -> tuple[float, ...]:
        return () if self.config.start == "kept" else STRENGTHS

    def set_debias(self, debias: float) -> None:
        self.debias_now.fill_(debias)

    def adapt_to_log(self, split: Split) -> None:
        """Take from a log what is no weight: how long its day is, whether past items are candidates, and
        whether events of others are read at any time."""
        self.day_ticks.fill_(ticks_per_day(split))
        self.repeats.fill_(split.repeats)
        self.reads_all.fill_(split.has_targets_removed)

    def fit_statistics(self, split: Split) -> None:
        self.adapt_to_log(split)
        self.horizon_ticks.fill_(self._horizon(split))
        random = np.random.default_rng(17)
        rows = training_rows(split, self.config.newest, MEASURED, random)
        log, _ = split.list_targets()
        user, time = split.log.user[rows].astype(np.int64), np.asarray(split.log.time[rows])
        exists = np.maximum(split.candidates(time), 1)
        items = (random.random((len(rows), EACH)) * exists[:, None]).astype(np.int64)
        a = self.signals(log).of_items(items, time[:, None])
        a, types = np.split(a.reshape(-1, a.shape[-1]), [ITEM_FEATURES], axis=1)
        profiles, near, squares, some = [], [], np.zeros(1), np.zeros(1)
        for first in range(0, len(rows), BLOCK):
            part = slice(first, first + BLOCK)
            read = self.signals(log).of_requests(contexts(log, user[part], time[part], self.history))
            profiles.append(read.profile)
            which = np.repeat(np.arange(len(read.time)), EACH)
            near.append(read.of_pairs(which, items[part].ravel())[:, :NEIGHBOUR_FEATURES])
            more = read.values[:, NEIGHBOUR_FEATURES:]  # mostly zero, so of those that are not
            squares = squares + np.square(more, dtype=np.float64).sum(0)
            some = some + (more != 0).sum(0)
        w, profile = np.concatenate(near), np.concatenate(profiles)
        scale_more = np.maximum(np.sqrt(squares / np.maximum(some, 1)), 1e-2)
        self.scale_more[: more.shape[1]].copy_(torch.from_numpy(scale_more[: more.shape[1]]))
        for mean, scale, values in (
            (self.mean_types, self.scale_types, types),
            (self.mean_a, self.scale_a, a),
            (self.mean_u, self.scale_u, profile),
        ):
            mean.copy_(torch.from_numpy(values.mean(0)))
            scale.copy_(torch.from_numpy(np.maximum(values.std(0), 1e-3)))
        self.scale_w.copy_(torch.from_numpy(np.maximum(np.sqrt((w**2).mean(0)), 1e-2)))

        if self.config.start != "random":
            self.load_state_dict(self._shipped(), strict=False)

    def _shipped(self) -> dict[str, Tensor]:
        """The weights that come with the package, with the scale of their inputs; empty where this network
        has another shape or reads less. They know no tags."""
        if not self._may_be_shipped():
            return {}
        own = {name: value for name, value in self.named_parameters() if name in OPTIONAL}
        return load_file(ZERO) | {name: torch.zeros_like(value) for name, value in own.items()}

    def _may_be_shipped(self) -> bool:
        return self.config.reads not in ("counts", "neighbours") and self.config.hidden == SHIPPED_HIDDEN

    def starting_points(self) -> list[dict[str, Tensor]]:
        shipped = self._shipped()
        return [shipped] if shipped else []

    def untrained(self, config: Any) -> Any:
        return replace(config, start="kept", pull=0.0)

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        if self.config.start != "kept" or not split.mask("valid").any():
            return []
        return [{"debias_now": torch.tensor(debias)} for debias in STRENGTHS]

    def _horizon(self, split: Split) -> float:
        """How many ticks before a training positive its list may be made."""
        if self.config.horizon == "next":
            return 0
        if self.config.horizon == "all":
            return split.valid_end - split.train_end
        try:
            return split.log.clock.ticks_in(self.config.horizon, "horizon")
        except BadInput as error:
            raise BadInput(
                f"horizon {self.config.horizon!r}: expected next, all, or a duration such as 30d ({error})"
            ) from None

    def refresh_statistics(self, split: Split) -> None:
        """What was learned was learned from inputs on this scale, so the scale stays."""

    def signals(self, log: LogView) -> Signals:
        """What reads a log for this model. The last one is kept, because it holds the counts."""
        kept, how = self._signals, (float(self.day_ticks), bool(self.repeats))
        neighbour_settings = NeighbourSettings(
            neighbours=self.config.neighbours, reads_all=bool(self.reads_all)
        )
        if kept is None or kept.log is not log or not kept.reads_as(*how, neighbour_settings):
            kept = self._signals = Signals(
                log,
                *how,
                tagged=self.tag_skip is not None,
                neighbour_settings=neighbour_settings,
                reads=self.config.reads,
                types=self.types,
                intervals=self.reads_due,
            )
        return kept

    def share_readings(self, other: Recommender, split: Split) -> None:
        if not isinstance(other, Pulse) or other.config != self.config:
            return
        tested = replace(split, valid_end=max(split.log.now, split.train_end))
        self._memory = other._memory = self._new_memory(tested)
        other._signals = self.signals(split.log)

    def _new_memory(self, split: Split) -> ValidationMemory[Requests]:
        packing = None if self.tag_skip is not None else Packing(Requests.pack, Requests.unpack)
        return ValidationMemory(split, Requests.nbytes, packing=packing)

    def requests(self, log: LogView, context: Batch) -> Requests:
        """What is known of the contexts of a batch; what training validates on is read once."""
        read = partial(self.signals(log).of_requests, context)
        return read() if self._memory is None else self._memory.read(log, context, read)

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads logs by itself; what was read of a live one belongs to this network."""
        return self.__dict__ | {"_signals": None, "_memory": None}

    def _tensor(self, values: NDArray[Any]) -> Tensor:
        return on_device(torch.from_numpy(values), self.debias_now.device)

    # The network

    def item_side(self, a: Tensor) -> ItemSide:
        """What belongs to items alone, from their vectors a, (..., ITEM_FEATURES and those of the types)."""
        a, types = a[..., :ITEM_FEATURES], a[..., ITEM_FEATURES:]
        a = (a - self.mean_a) / self.scale_a
        exposure = self.exposure_last(functional.relu(self.of_exposure(a))).squeeze(-1)
        side = ItemSide(self.of_item(a), a @ self.item_skip, exposure + a @ self.exposure_skip)
        if self.more_of_item is None or self.more_of_exposure is None:
            return side
        types = (types - self.mean_types) / self.scale_types
        hidden = side.hidden + types @ self.more_of_item
        return ItemSide(hidden, side.skip, side.exposure + types @ self.more_of_exposure)

    def user_side(self, profile: Tensor) -> Tensor:
        """What belongs to requests alone, from their vectors u."""
        return self.of_user((profile - self.mean_u) / self.scale_u)

    def clicks(self, items: ItemSide, users: Tensor, w: Tensor, c: Tensor | None = None) -> Tensor:
        """The head of clicks; without c, no tags are read."""
        w, more = w[..., :NEIGHBOUR_FEATURES] / self.scale_w, w[..., NEIGHBOUR_FEATURES:]
        hidden = (items.hidden + users).add_(self.of_neighbours(w))
        skip = items.skip + w @ self.neighbour_skip
        size = more.shape[-1]  # the last inputs are those of repeats, where past items are candidates
        if self.more_of_pair is not None and self.more_skip is not None and size:
            more = more / self.scale_more[:size]
            hidden, skip = hidden + more @ self.more_of_pair[:size], skip + more @ self.more_skip[:size]
        clicks = self.last(hidden.relu_()).squeeze(-1) + skip
        return clicks if c is None or self.tag_skip is None else clicks + c @ self.tag_skip

    def pair_bounds(self, width: int) -> tuple[Tensor, Tensor]:
        """The least and the most that a unit of each of the first values of w can add to the head of clicks,
        (width,), if the value is positive. relu(x + d) - relu(x) is between 0 and d."""
        weights, skips = [self.of_neighbours.weight / self.scale_w], [self.neighbour_skip / self.scale_w]
        if self.more_of_pair is not None and self.more_skip is not None:
            weights.append((self.more_of_pair / self.scale_more[:, None]).T)
            skips.append(self.more_skip / self.scale_more)
        moved = self.last.weight[0][:, None] * torch.cat(weights, 1)[:, :width]
        skip = torch.cat(skips)[:width]
        return skip + moved.clamp(max=0).sum(0), skip + moved.clamp(min=0).sum(0)

    def forward(self, batch: Batch) -> Tensor:
        assert batch.log is not None, "pulse reads the log itself"
        signals, candidates = self.signals(batch.log), batch.candidates_BC.cpu().numpy()
        read = signals.of_requests(batch)
        items = self.item_side(self._tensor(signals.of_items(candidates, read.time[:, None])))
        which = np.repeat(np.arange(len(candidates)), candidates.shape[1])
        w = self._tensor(read.of_pairs(which, candidates.ravel())).view(*candidates.shape, -1)
        users = self.user_side(self._tensor(read.profile))[:, None]
        taste = None if read.tastes is None else read.tastes.of_pairs(which, candidates.ravel())
        c = None if taste is None else self._tensor(taste).view(*candidates.shape, OF_TAGS)
        return self.clicks(items, users, w, c) - self.debias_now * items.exposure

    @torch.no_grad()
    def log_exposure(self, log: Log, item: ArrayLike, time: ArrayLike) -> Tensor:
        a = self.signals(log).of_items(np.asarray(item), np.asarray(time))
        return self.item_side(self._tensor(a)).exposure

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        return LivePulseCatalog(self, log) if isinstance(log, Live) else PulseCatalog(self, log)

    # How it learns

    def stages(self, epochs: int) -> tuple[Stage, ...]:
        if self.config.start == "kept":
            return ()
        phase = Phase("clicks", self._batches, self.softmax_loss, self.parameters, passes=2)
        return (Stage("train", (phase,), epochs, validated=True),)

    def _batches(self, split: Split, seed: int, batch_size: int) -> "PulseSampler":
        self._memory = self._new_memory(split)
        return PulseSampler(self, split, seed, batch_size)

    def softmax_loss(self, batch: "PulseBatch") -> Tensor:
        """-log softmax of the target, the first candidate, for both heads, with the log-Q correction."""
        items, users = self.item_side(batch.a_BCF), self.user_side(batch.u_BF)[:, None]
        more = -batch.log_q_BC if batch.offset_BC is None else batch.offset_BC - batch.log_q_BC
        total = self.debias_now.new_zeros(())
        for logits in (self.clicks(items, users, batch.w_BCF, batch.c_BCF), items.exposure):
            masked = (logits + more).masked_fill(batch.hidden_BC, -torch.inf)
            total = total + weighted_mean(-functional.log_softmax(masked, dim=1)[:, 0], batch.weight_B)
        return total + self.config.pull * self._distance() if self.config.pull else total

    def _distance(self) -> Tensor:
        """The squared distance of all parameters from the shipped ones."""
        if self._pulled_to is None:
            self._pulled_to = {
                name: value.to(self.debias_now.device) for name, value in self._shipped().items()
            }
        pairs = ((value, self._pulled_to.get(name)) for name, value in self.named_parameters())
        return torch.stack([((value - to) ** 2).sum() for value, to in pairs if to is not None]).sum()


class PulseZero(
    Pulse, name="pulse-zero", paper="no paper: pulse with weights that were learned on other logs"
):
    """Pulse as it comes with this package: nothing is learned, so it works from the first event on. Only the
    debias is chosen, where there is a validation set. It reads no tags."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        """There is nothing to set."""

    recipe: ClassVar[Settings] = {}
    presets: ClassVar[dict[str, Settings]] = {}

    def __init__(self, known: Known, config: ModelConfig) -> None:
        super().__init__(
            replace(known, items=replace(known.items, categories={}), types=(), repeats=False),
            Pulse.Config(start="kept", reads="targets"),
        )
        self.load_state_dict(load_file(ZERO), strict=False)
        del self.horizon_ticks
        for module in self.modules():  # nothing is learned, so nothing is a parameter
            for name, value in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, value.detach())

    def fit_statistics(self, split: Split) -> None:
        self.adapt_to_log(split)


# What it learns from


class PulseBatch(NamedTuple):
    """B positives, each with C - 1 negatives behind it."""

    event_B: Tensor  # the row of the log that each positive is
    times_B: Tensor
    candidates_BC: Tensor
    a_BCF: Tensor
    u_BF: Tensor
    w_BCF: Tensor
    log_q_BC: Tensor  # how likely each candidate was to be drawn
    hidden_BC: Tensor  # what must not be compared: the target again, or what the user had before
    weight_B: Tensor | None = None
    offset_BC: Tensor | None = None
    c_BCF: Tensor | None = None  # where tags are read

    @property
    def rows(self) -> int:
        """The number of positives and negatives."""
        return self.candidates_BC.numel()


def training_rows(split: Split, newest: float, size: int, random: np.random.Generator) -> Ints:
    """A sample of the newest training positives that may be targets, in the order of their rows."""
    _, wanted = split.list_targets()
    in_time = split.log.histories.in_order_of_time
    whole = int(np.count_nonzero(wanted))
    if not whole:
        raise BadInput("the training set has no positive that anything is known about: pulse needs some")
    first = min(int(whole * (1 - newest)), whole - 1)
    chosen = first + sample_of(random, whole - first, size)
    is_target = np.empty(len(wanted), bool)  # the same in the order of time
    for part in chunks(len(wanted)):
        is_target[part] = wanted[in_time[part]]
    return np.sort(in_time[true_positions(is_target, chosen)].astype(np.int64))


def sample_of(random: np.random.Generator, length: int, size: int) -> Ints:
    """So many different numbers below a length; all of them, if there are no more."""
    if length <= SHUFFLED:
        return random.permutation(length)[:size]
    return random.choice(length, min(size, length), replace=False)


def save_shard(file: Path, rows: PulseBatch) -> None:
    """Write what was read of some rows, whole or not at all."""
    columns = {name: column.contiguous() for name, column in rows._asdict().items() if column is not None}
    with beside(file) as path:
        save_file(columns, path)


class PulseSampler:
    """A seeded order of a sample of training positives. Its state is an epoch and a step."""

    def __init__(self, model: Pulse, split: Split, seed: int, batch_size: int) -> None:
        self.model, self.split, self.seed, self.batch_size = model, split, seed, batch_size
        random = np.random.default_rng([seed, 29])
        self.rows = training_rows(split, model.config.newest, split.examples(model.config.sample), random)
        self.epoch_number, self.step = 0, 0
        self._folder: Path | None = None

    def _moments(self, rows: Ints) -> Ints:
        """When the list of each target is made: half of them at the target's own time, and half at a random
        moment before it, from an hour to the horizon, where all orders of magnitude are as likely. Where the
        item did not exist then, the list is made at the target's own time, too."""
        log, horizon = self.split.log, float(self.model.horizon_ticks)
        time, random = np.asarray(log.time[rows]), np.random.default_rng([self.seed, 37])
        least = max(float(self.model.day_ticks) / 24, 1.0)
        if horizon <= least:
            return time
        ahead = np.exp(random.uniform(math.log(least), math.log(horizon), len(rows))).astype(np.int64)
        moved = (random.random(len(rows)) < 0.5) & (log.audiences.since[log.item[rows]] < time - ahead)
        return np.where(moved, time - ahead, time)

    def __len__(self) -> int:
        return math.ceil(len(self.rows) / self.batch_size)

    def state_dict(self) -> dict[str, Any]:
        """The epoch and the step."""
        return {"epoch": self.epoch_number, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where the saved sampler stopped."""
        self.epoch_number, self.step = state["epoch"], state["step"]

    def epoch(self) -> Iterator[PulseBatch]:
        """The rest of the current epoch."""
        order = np.random.default_rng([self.seed, self.epoch_number]).permutation(len(self.rows))
        while self.step < len(self):
            chosen = self._place[order[self.step * self.batch_size :][: self.batch_size]]
            mine = torch.from_numpy(chosen[chosen != PAD])  # of several ranks, each has what it has read
            self.step += 1
            yield PulseBatch._make(part if part is None else part[mine] for part in self._read)
        self.epoch_number, self.step = self.epoch_number + 1, 0

    def read_shards(self, folder: Path) -> None:
        """See `ReadsShards`."""
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @cached_property
    def _place(self) -> Ints:
        """Where each row is among those that this rank reads; PAD where another rank reads it."""
        place, begin = np.full(len(self.rows), PAD), 0
        for shard in ranks().shards(math.ceil(len(self.rows) / SHARD)):
            here = place[shard * SHARD :][:SHARD]
            here[:] = np.arange(begin, begin + len(here))
            begin += len(here)
        return place

    @cached_property
    def _read(self) -> PulseBatch:
        """The rows of this rank with their candidates and what is read of them, shard by shard."""
        shards, parts = math.ceil(len(self.rows) / SHARD), []
        for number in ranks().shards(shards):
            some = slice(number * SHARD, (number + 1) * SHARD)
            if self._folder is None:
                parts.append(self._read_rows(some))
                continue
            file = self._folder / f"rows-{number:05d}-of-{shards:05d}.safetensors"
            if not file.is_file():
                save_shard(file, self._read_rows(some))
            parts.append(PulseBatch(**load_file(file)))
        parts = parts or [self._read_rows(slice(0, 1))]  # more ranks than shards: nothing asks for this row
        columns = ([part for part in column if part is not None] for column in zip(*parts, strict=True))
        return PulseBatch._make(torch.cat(column) if column else None for column in columns)

    @cached_property
    def _drawn(self) -> tuple[Ints, Ints, NDArray[np.float32]]:
        """When the list of each row is made, its candidates, and how likely each of these was to be drawn.
        All ranks draw all of them, because that takes little time."""
        split, rows = self.split, self.rows
        log, _ = split.list_targets()
        time, random = self._moments(rows), np.random.default_rng([self.seed, 31])
        target, drawn = split.log.item[rows].astype(np.int64), self.model.config.drawn
        return time, *with_negatives(log, target, time, split.candidates(time), drawn, random)

    def _read_rows(self, some: slice) -> PulseBatch:
        """Some of the rows."""
        split, rows = self.split, self.rows[some]
        log, _ = split.list_targets()
        signals = self.model.signals(log)
        user, target = split.log.user[rows].astype(np.int64), split.log.item[rows].astype(np.int64)
        all_times, all_candidates, all_log_q = self._drawn
        time, candidates, log_q = all_times[some], all_candidates[some], all_log_q[some]
        hidden = candidates == target[:, None]
        if not split.repeats:
            # What the user takes until the target is no negative of an earlier list.
            hidden |= log.had_before(user[:, None], candidates, np.asarray(split.log.time[rows])[:, None])
        hidden[:, 0] = False
        a, times = signals.of_items(candidates, time[:, None]), np.asarray(time)
        profile, near, taste = signals.of_contexts(user, time, candidates, self.model.history)
        parts: tuple[NDArray[Any], ...] = (rows, times, candidates, a, profile, near, log_q, hidden)
        made = PulseBatch(*map(torch.from_numpy, parts))
        return made if taste is None else made._replace(c_BCF=torch.from_numpy(taste))
