"""Pulse, a first version: a small model without ids, which reads when things happened (no paper; our own).

It becomes a model of the package once its open questions are measured; here it shows that a model may read
the log itself (`batch.log`) and bring batches of its own (`Phase.batches`).

    python examples/pulse_model.py LOG.csv        trains it on a log and prints its ordinary and balanced test

On an honest time line most users and items of tomorrow are new, so what decides is *when*: how fast an
audience grows, everybody's and that of people like you. For a request (u, t) and an item i, strictly before
t:

    a = log(D_h(i, t) + 0.05) for half-lives h of 1/4, 1, 4, 16, 64 and 256 days, and log1p(age of i in days)
    u = mean of a over the newest items of the user, each as of when the user took it; log1p(how many);
        log1p(hours since the last); whether there are none
    w = log1p(walk(u, i, t) / scale), what people alike took lately, ever, and next

    score = relu(P a + Q u + R w) . v + p . a + r . w

D_h is the decayed count of the audience (data/decay.py), the walk is that of data/walk.py. Inputs are
standardised on training rows; w is scaled and not centred, so that an item that no walk reaches stays at
zero. Scores of a log that is cut at t are those of the whole log.

    loss = -log softmax of the target among itself and 64 negatives that existed at t, half uniform, half from
    the
           last 1,000 events, each logit minus the log of how likely it was to be drawn (log Q)

It learns from a sample of the newest training positives; walks are made once for all epochs.
"""

import math
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

import unskew
from unskew.catalog import Catalog
from unskew.config import AtLeast1, Positive
from unskew.data.batch import Batch, batch_of_rows
from unskew.data.clock import DAY
from unskew.data.decay import Decay
from unskew.data.log import Log
from unskew.data.split import Known, Split
from unskew.data.views import PAD, Ints
from unskew.data.walk import Reached, Walk, Walking
from unskew.errors import BadInput
from unskew.models.base import ModelConfig, Phase, Recommender, Stage

HALF_LIVES = (0.25, 1.0, 4.0, 16.0, 64.0, 256.0)  # days
FLOOR = 0.05  # added to a count, so that none is the log of zero
SCALES = (0.02, 0.05, 0.01)  # of the three values of a walk
OF_ITEM, OF_USER, OF_WALK = len(HALF_LIVES) + 1, len(HALF_LIVES) + 1 + 3, len(SCALES)
RECENT, MEASURED = 1000, 2000  # events that half of the negatives come from; rows that standardise the inputs
BLOCK = 512  # requests that walk together
Floats = NDArray[np.float64]


class Pulse(
    Recommender, name="pulse", paper="no paper: intensities, a user's pace, and a walk to people alike"
):
    """A network of about 1,400 parameters over counts and times."""

    @dataclass(frozen=True, kw_only=True)
    class Config(ModelConfig):
        """The settings of Pulse."""

        hidden: AtLeast1 = 64
        """The width of the hidden layer."""
        rows: AtLeast1 = 20_000
        """The number of training positives that it learns from, a sample of the newest ones."""
        newest: Positive = 0.8
        """The share of the training positives, the newest, that the sample is drawn from."""
        drawn: AtLeast1 = 64
        """The number of negatives per positive."""
        walk_days: Positive = 32.0
        """The half-life, in days, with which the events of people alike fade."""

    config: Config
    recipe: ClassVar[dict[str, Any]] = {
        "rounds": 10,
        "patience": 10,
        "learning_rate": 5e-3,
        "weight_decay": 1e-5,
    }
    day_ticks: Tensor
    mean_a: Tensor
    scale_a: Tensor
    mean_u: Tensor
    scale_u: Tensor
    scale_w: Tensor

    def __init__(self, known: Known, config: Config) -> None:
        super().__init__(known, config)
        hidden = config.hidden
        self.of_item, self.of_user = nn.Linear(OF_ITEM, hidden), nn.Linear(OF_USER, hidden, bias=False)
        self.of_walk, self.last = nn.Linear(OF_WALK, hidden, bias=False), nn.Linear(hidden, 1, bias=False)
        self.item_skip, self.walk_skip = (nn.Parameter(torch.zeros(size)) for size in (OF_ITEM, OF_WALK))
        self.register_buffer("day_ticks", torch.ones(1, dtype=torch.float64))
        for name, size in (("a", OF_ITEM), ("u", OF_USER)):
            self.register_buffer(f"mean_{name}", torch.zeros(size))
            self.register_buffer(f"scale_{name}", torch.ones(size))
        self.register_buffer("scale_w", torch.ones(OF_WALK))
        self._readers: weakref.WeakKeyDictionary[Log, Reader] = weakref.WeakKeyDictionary()

    @property
    def history(self) -> int:
        return Walking.own

    @property
    def audience(self) -> None:
        """All of them are counted, by the reader of the log."""
        return None

    def measure(self, split: Split) -> None:
        ticks, times = split.log.clock.ticks, split.log.time
        # Where times only give an order, a day is a two-hundredth of the training period.
        day = DAY * ticks if ticks else max((split.train_end - int(times.min())) / 200, 1e-6)
        self.day_ticks.fill_(day)
        rows = training_rows(split, self.config)
        random = np.random.default_rng(17)
        rows = np.sort(random.permutation(rows)[:MEASURED])
        made = batch_of_rows(split.log, rows, self.history, 0)
        read = self.reader(split.log).requests(made)
        exists = np.maximum(split.log.audiences.existing(read.time), 1)
        items = (random.random((len(rows), 8)) * exists[:, None]).astype(np.int64)
        a = self.reader(split.log).intensities(items, read.time[:, None]).reshape(-1, OF_ITEM)
        w = read.walked(np.repeat(np.arange(len(rows)), 8), items.ravel())
        for mean, scale, values in (
            (self.mean_a, self.scale_a, a),
            (self.mean_u, self.scale_u, read.profile),
        ):
            mean.copy_(torch.from_numpy(values.mean(0)))
            scale.copy_(torch.from_numpy(np.maximum(values.std(0), 1e-3)))
        self.scale_w.copy_(torch.from_numpy(np.maximum(np.sqrt((w**2).mean(0)), 1e-2)))

    def reader(self, log: Log) -> "Reader":
        """What reads a log for this model; one per log, because it remembers the counts."""
        if log not in self._readers:
            self._readers[log] = Reader(log, float(self.day_ticks), self.config.walk_days)
        return self._readers[log]

    # The network

    def sides(self, a: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer of items and of users."""
        return self.of_item((a - self.mean_a) / self.scale_a), self.of_user((u - self.mean_u) / self.scale_u)

    def joined(self, a: Tensor, of_item: Tensor, of_user: Tensor, w: Tensor | None) -> Tensor:
        """The scores of pairs; without `w`, of items that no walk reaches."""
        before, skip = of_item + of_user, ((a - self.mean_a) / self.scale_a) @ self.item_skip
        if w is not None:
            w = w / self.scale_w
            before, skip = before + self.of_walk(w), skip + w @ self.walk_skip
        return self.last(functional.relu(before)).squeeze(-1) + skip

    def forward(self, batch: Batch) -> Tensor:
        assert batch.log is not None, "pulse reads the log itself"
        reader = self.reader(batch.log)
        read = reader.requests(batch)
        candidates = batch.candidates_BC.numpy()
        a = torch.from_numpy(reader.intensities(candidates, read.time[:, None])).float()
        which = np.repeat(np.arange(len(candidates)), candidates.shape[1])
        w = torch.from_numpy(read.walked(which, candidates.ravel())).float().view(*candidates.shape, OF_WALK)
        of_item, of_user = self.sides(a, torch.from_numpy(read.profile).float())
        return self.joined(a, of_item, of_user[:, None], w)

    def catalog(self, log: Log, first: int, last: int) -> Catalog:
        return PulseCatalog(self, log)

    # How it learns

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        phase = Phase("clicks", self._batches, self.softmax_loss, self.parameters, weighted=False)
        return (Stage("train", (phase,), rounds, validated=True),)

    def _batches(self, split: Split, seed: int) -> "PulseSampler":
        return PulseSampler(self, split, seed)

    def softmax_loss(self, batch: "PulseBatch") -> Tensor:
        """-log softmax of the target, the first candidate, with the log-Q correction."""
        of_item, of_user = self.sides(batch.a_BCF, batch.u_BF)
        logits = self.joined(batch.a_BCF, of_item, of_user[:, None], batch.w_BCF) - batch.log_q_BC
        return -functional.log_softmax(logits.masked_fill(batch.hidden_BC, -torch.inf), dim=1)[:, 0].mean()


class Requests(NamedTuple):
    """What is known of some requests: when they are, the users' profiles, and what their walks reached."""

    time: Ints
    profile: Floats  # (requests, OF_USER)
    keys: Ints  # request * items + item, increasing
    values: Floats
    items: int

    def walked(self, request: Ints, item: Ints) -> Floats:
        """The three values of some pairs, (pairs, OF_WALK); zero where the walk did not come."""
        wanted = request * self.items + item
        if not len(self.keys):
            return np.zeros((len(wanted), OF_WALK))
        place = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        found = (self.keys[place] == wanted) & (item >= 0) & (item < self.items)
        return self.values[place] * found[:, None]


class Reader:
    """Reads one log: intensities of items, and the profiles and walks of requests."""

    def __init__(self, log: Log, day: float, walk_days: float) -> None:
        self.log, self.day = log, day
        self.decay = Decay(log.audiences, tuple(day * life for life in HALF_LIVES))
        self.walk = Walk(log, day * walk_days)

    @cached_property
    def born(self) -> Ints:
        """When each item had its first event; never is the largest number."""
        return self.log.audiences.first_times

    def intensities(self, item: Ints, time: Ints) -> Floats:
        """The vector a of each item at each time; the two are broadcast."""
        item, time = np.broadcast_arrays(item, time)
        counts = self.decay.at(item, time)
        known = (item >= 0) & (item < len(self.born))
        born = np.where(known, self.born[np.where(known, item, 0)], time) if len(self.born) else time
        age = np.maximum(time - np.minimum(born, time), 0) / self.day
        return np.concatenate([np.log(counts + FLOOR), np.log1p(age)[..., None]], axis=-1)

    def requests(self, batch: Batch) -> Requests:
        """What is known of the contexts of a batch."""
        time = batch.times_B.numpy()
        own, when = batch.history_BL.numpy(), batch.history_times_BL.numpy()
        reached = [
            self.walk.reach(batch.user_B.numpy()[part], time[part], own[part])
            for part in (slice(at, at + BLOCK) for at in range(0, len(time), BLOCK))
        ]
        return self._requests(time, self._profile(batch.user_B.numpy(), time, own, when), reached)

    def _requests(self, time: Ints, profile: Floats, reached: list[Reached]) -> Requests:
        items = max(len(self.log.items), 1)
        keys = [(number * BLOCK + each.request) * items + each.item for number, each in enumerate(reached)]
        values = [np.log1p(each.values / np.array(SCALES)) for each in reached]
        return Requests(
            time,
            profile,
            np.concatenate([*keys, np.zeros(0, np.int64)]),
            np.concatenate([*values, np.zeros((0, OF_WALK))]),
            items,
        )

    def _profile(self, user: Ints, time: Ints, own: Ints, when: Ints) -> Floats:
        """The vector u of each request."""
        real = own != PAD
        taken = self.intensities(own, np.where(real, when, 0)) * real[..., None]
        count = real.sum(1)
        mean = taken.sum(1) / np.maximum(count, 1)[:, None]
        start, end = self.log.histories.before(user, time)
        last = np.where(real, when, np.iinfo(np.int64).min).max(axis=1, initial=np.iinfo(np.int64).min)
        hours = np.where(count > 0, 24 * (time - np.where(count > 0, last, time)) / self.day, 0)
        events = np.maximum(end - start, count)
        rest = np.stack([np.log1p(events), np.log1p(np.maximum(hours, 0)), count == 0], axis=1)
        return np.concatenate([mean, rest], axis=1)


class PulseCatalog:
    """All items at the times of some contexts: an addition, a relu and a product per item, and what the walk
    adds for the items that it reaches."""

    def __init__(self, model: Pulse, log: Log) -> None:
        self.model, self.log, self.reader = model, log, model.reader(log)
        self.everything = np.arange(len(log.items))

    def scores(self, context: Batch) -> Tensor:
        """The scores of all items in each context."""
        model, read = self.model, self.reader.requests(context)
        profile = torch.from_numpy(read.profile).float()
        scores = torch.empty(len(read.time), len(self.everything))
        times, of = np.unique(read.time, return_inverse=True)
        for number, time in enumerate(times):
            a = torch.from_numpy(self.reader.intensities(self.everything, time)).float()
            of_item, of_user = model.sides(a, profile)
            for row in np.flatnonzero(of == number):
                scores[row] = model.joined(a, of_item, of_user[row], None)
                first, last = np.searchsorted(read.keys, [row * read.items, (row + 1) * read.items])
                item = torch.from_numpy(read.keys[first:last] - row * read.items)
                w = torch.from_numpy(read.values[first:last]).float()
                scores[row, item] = model.joined(a[item], of_item[item], of_user[row], w)
        return scores


# What it learns from


class PulseBatch(NamedTuple):
    """B positives, each with C - 1 negatives behind it."""

    a_BCF: Tensor
    u_BF: Tensor
    w_BCF: Tensor
    log_q_BC: Tensor  # how likely each candidate was to be drawn; zero for the target
    # Candidates that must not be compared: the target again, or what the user takes just then
    hidden_BC: Tensor


def training_rows(split: Split, config: Pulse.Config) -> Ints:
    """The newest training positives that may be targets."""
    rows = np.flatnonzero(split.targets("train", reads_audiences=True) & (split.log.label == 1))
    if not len(rows):
        raise BadInput("the training part has no rows to learn from")
    order = rows[np.argsort(split.log.time[rows], kind="stable")]
    return order[int(len(order) * (1 - config.newest)) :]


class PulseSampler:
    """A seeded walk over a sample of training positives. Its state is an epoch and a step."""

    def __init__(self, model: Pulse, split: Split, seed: int, batch_size: int = 128) -> None:
        self.model, self.split, self.seed, self.batch_size = model, split, seed, batch_size
        rows = training_rows(split, model.config)
        random = np.random.default_rng([seed, 29])
        self.rows = np.sort(random.permutation(rows)[: model.config.rows])
        self.epoch_number, self.step = 0, 0
        order = np.argsort(split.log.histories.times, kind="stable")
        self.times, self.items = split.log.histories.times[order], split.log.histories.ids[order]

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
            chosen = order[self.step * self.batch_size :][: self.batch_size]
            made = self._batch(chosen)
            self.step += 1
            yield made
        self.epoch_number, self.step = self.epoch_number + 1, 0

    @cached_property
    def _read(self) -> Requests:
        """Profiles and walks of all rows: they are the same in every epoch."""
        made = batch_of_rows(self.split.log, self.rows, self.model.history, 0)
        return self.model.reader(self.split.log).requests(made)

    def _batch(self, chosen: Ints) -> PulseBatch:
        log, read = self.split.log, self._read
        rows, half = self.rows[chosen], self.model.config.drawn // 2
        user, target, time = log.user[rows].astype(np.int64), log.item[rows].astype(np.int64), log.time[rows]
        random = np.random.default_rng([self.seed, self.epoch_number, self.step + 1])
        exists = np.maximum(log.audiences.existing(time), 1)
        uniform = (random.random((len(rows), self.model.config.drawn - half)) * exists[:, None]).astype(
            np.int64
        )
        end = np.searchsorted(self.times, time)
        begin = np.maximum(end - RECENT, 0)
        place = begin[:, None] + (random.random((len(rows), half)) * (end - begin)[:, None]).astype(np.int64)
        recent = self.items[np.minimum(place, len(self.items) - 1)].astype(np.int64)
        recent = np.where((end > begin)[:, None], recent, uniform[:, :1])
        candidates = np.concatenate([target[:, None], uniform, recent], axis=1)
        a = self.model.reader(log).intensities(candidates, time[:, None])
        which = np.repeat(chosen, candidates.shape[1])
        w = read.walked(which, candidates.ravel()).reshape(*candidates.shape, OF_WALK)
        log_q = self._log_q(candidates, begin, end, exists)
        hidden = candidates == target[:, None]
        if not self.split.repeats:
            hidden |= log.had_before(user[:, None], candidates, time[:, None])
        hidden[:, 0] = False
        parts = [torch.from_numpy(part).float() for part in (a, read.profile[chosen], w, log_q)]
        return PulseBatch(parts[0], parts[1], parts[2], parts[3], torch.from_numpy(hidden))

    def _log_q(self, candidates: Ints, begin: Ints, end: Ints, exists: Ints) -> Floats:
        """log of how likely each candidate is to be drawn; the target's counts as well, as a candidate."""
        log_q = np.empty(candidates.shape)
        for row, (first, last) in enumerate(zip(begin, end, strict=True)):
            recent = np.sort(self.items[first:last])
            counts = np.searchsorted(recent, candidates[row], "right") - np.searchsorted(
                recent, candidates[row]
            )
            log_q[row] = np.log(0.5 / exists[row] + 0.5 * counts / max(last - first, 1))
        return log_q


if __name__ == "__main__":
    split = unskew.split(unskew.read(sys.argv[1]))
    model = unskew.create_model("pulse").fit(split)
    print(*(model.evaluate(split, test=test, sample=2000) for test in ("ordinary", "balanced")), sep="\n")
