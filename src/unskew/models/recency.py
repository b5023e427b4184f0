"""What models share that count in the log instead of learning by gradients: numbers that are chosen on the
validation set, the length of a day, fading popularity, and a memory of what was read for validation rows."""

import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from hashlib import blake2b
from io import SEEK_END
from itertools import product
from tempfile import TemporaryFile
from typing import IO, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unskew.data.batches.batch import Batch
from unskew.data.log.clock import DAY
from unskew.data.log.decay import Decay
from unskew.data.log.log import LogView
from unskew.data.log.split import Known, Split
from unskew.models.base import HistoryConfig, Recommender
from unskew.nn.scoring import Catalog

R = TypeVar("R")
F = TypeVar("F", bound="FadingModel")

NO_FADING = 1_000_000.0  # days: a half-life so long that nothing fades
HALF_LIVES = (1.0, 4.0, 16.0, 64.0, 256.0, NO_FADING)  # days, those that are tried on the validation set


class CountingModel(Recommender):
    """A model that scores all items of a log at once, from what it counts there. Each number in `tried` is a
    buffer: the setting of the same name or, where that is None, what the validation set prefers among the
    values that are tried; until then, its default."""

    supports_live_log = True
    validates_frozen = True
    tried: ClassVar[dict[str, tuple[float, ...]]] = {}

    def __init__(self, known: Known, config: HistoryConfig, **defaults: float) -> None:
        super().__init__(known, config)
        self.given: dict[str, float | None] = {name: getattr(config, name, None) for name in self.tried}
        for name, given in self.given.items():
            value = defaults[name] if given is None else given
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def options(self, split: Split) -> list[dict[str, Tensor]]:
        if None not in self.given.values():
            return []
        values = [self.tried[name] if given is None else (given,) for name, given in self.given.items()]
        return [
            {
                name: torch.tensor(value, dtype=torch.float64)
                for name, value in zip(self.tried, each, strict=True)
            }
            for each in product(*values)
        ]

    def forward(self, batch: Batch) -> Tensor:
        """The scores of the candidates, taken from those of all items; zero for items that the log does not
        have."""
        assert batch.log is not None, f"{self.name} reads the log itself"
        scores = self.catalog(batch.log, 0, 0).scores(batch).to(batch.candidates_BC.device)
        known = (batch.candidates_BC >= 0) & (batch.candidates_BC < scores.shape[1])
        return scores.gather(1, batch.candidates_BC.masked_fill(~known, 0)) * known


class FadingModel(CountingModel):
    """A counting model in which popularity fades, and whose catalogue of a log is kept."""

    day_ticks: Tensor

    def __init__(self, known: Known, config: HistoryConfig, **defaults: float) -> None:
        super().__init__(known, config, **defaults)
        self.register_buffer("day_ticks", torch.ones(1, dtype=torch.float64))
        self._memory: ValidationMemory[Any] | None = None
        self._catalog: FadingCatalog[Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy reads logs by itself."""
        return self.__dict__ | {"_memory": None, "_catalog": None}

    def fit_statistics(self, split: Split) -> None:
        self.day_ticks.fill_(ticks_per_day(split))

    @property
    @abstractmethod
    def popularity_days(self) -> float | Tensor:
        """The half-life of popularity in days."""

    @abstractmethod
    def read(self, log: LogView, half_life: float) -> "FadingCatalog[Any]":
        """A catalogue of a log, with the half-life of popularity in ticks of its clock."""

    def catalog(self, log: LogView, first: int, last: int) -> Catalog:
        kept, half_life = self._catalog, float(self.popularity_days * self.day_ticks)
        if kept is None or kept.log is not log or kept.half_life != half_life:
            kept = self._catalog = self.read(log, half_life)
        return kept

    def remember(self, log: LogView, context: Batch, reads: Callable[[], R], setting: float = 0.0) -> R:
        """What is read for some contexts with a setting: once for those that options are validated on."""
        return reads() if self._memory is None else self._memory.read(log, context, reads, setting)


class FadingCatalog(Generic[F]):
    """All items of a log, with popularity that fades with a half-life in ticks of the log's clock."""

    def __init__(self, model: F, log: LogView, half_life: float) -> None:
        self.model, self.log, self.half_life = model, log, half_life
        self.popularity = Decay(log.audiences, (half_life,), log.timeline)

    def popularity_of(self, context: Batch) -> NDArray[np.float32]:
        """The fraction of each item in all faded events at the time of each context, (B, items)."""
        moments, which = np.unique(context.times_B.cpu().numpy(), return_inverse=True)
        rows = np.zeros((len(moments), len(self.log.items)), np.float32)
        for row, counts in zip(rows, self.popularity.along(moments), strict=True):
            row[: len(counts)] = counts[:, 0] / max(counts.sum(), 1e-12)
        return rows[which]

    @abstractmethod
    def scores(self, context: Batch) -> Tensor:
        """The scores of all items in each context."""


def ticks_per_day(split: Split) -> float:
    """How many ticks of the log's clock are a day. Where times only give an order, a day is a two-hundredth
    of the time from the first training positive to the last."""
    if split.log.clock.ticks:
        return DAY * split.log.clock.ticks
    times = split.log.histories.times
    times = times[times < split.train_end]
    span = int(times.max() - times.min()) if len(times) else 0
    return max(span / 200, 1e-6)


class Packing(NamedTuple, Generic[R]):
    """How something that was read becomes arrays in a file, and is made of them again."""

    pack: Callable[[R], Sequence[NDArray[Any]]]
    unpack: Callable[[Sequence[NDArray[Any]]], R]


class ValidationMemory(Generic[R]):
    """Keeps what was read of a log for contexts of the validation set, so that it is read once, however many
    epochs or options are validated. `most` bytes of it are in memory, where `size` says how many something
    takes; what can be packed goes into a temporary file from there on. Contexts after the validation set are
    never kept."""

    def __init__(
        self,
        split: Split,
        size: Callable[[R], int],
        most: int = 1 << 27,
        packing: Packing[R] | None = None,
    ) -> None:
        self.log, self.first, self.last = split.log, split.train_end, split.valid_end
        self.size, self.most, self.used, self.packing = size, most, 0, packing
        self._kept: dict[bytes, R] = {}
        self._places: dict[bytes, tuple[int, int]] = {}  # where in the file, and how many arrays
        self._file: IO[bytes] | None = None

    def read(self, log: LogView, context: Batch, reads: Callable[[], R], setting: float = 0.0) -> R:
        """What was read for these contexts with a setting: from memory where they were asked for before."""
        times = context.times_B.cpu().numpy()
        if log is not self.log or not len(times) or times.min() < self.first or times.max() >= self.last:
            return reads()
        columns = context.user_B, context.times_B, context.history_BL, context.history_times_BL
        digest = blake2b(np.float64(setting).tobytes(), digest_size=16)
        for column in columns:
            digest.update(np.ascontiguousarray(column.cpu().numpy()).tobytes())
        key = digest.digest()
        if key in self._kept:
            return self._kept[key]
        if key in self._places:
            return self._read_back(*self._places[key])
        result = reads()
        size = len(key) + self.size(result)
        if self.used + size <= self.most:
            self._kept[key] = result
            self.used += size
        elif self.packing is not None:
            self._places[key] = self._write(self.packing.pack(result))
        return result

    def _write(self, arrays: Sequence[NDArray[Any]]) -> tuple[int, int]:
        if self._file is None:
            self._file = TemporaryFile(prefix="unskew-validation.")  # noqa: SIM115 (as long as this object)
            weakref.finalize(self, self._file.close)
        place = self._file.seek(0, SEEK_END)
        for array in arrays:
            np.save(self._file, array, allow_pickle=False)
        return place, len(arrays)

    def _read_back(self, place: int, arrays: int) -> R:
        assert self._file is not None
        assert self.packing is not None
        self._file.seek(place)
        return self.packing.unpack([np.load(self._file, allow_pickle=False) for _ in range(arrays)])
