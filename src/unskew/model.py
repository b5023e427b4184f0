"""The models as people use them: `DEPS(width=64, clip=0.05).fit(split)`, then evaluate, recommend, save."""

import dataclasses
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import torch

import unskew.models as _registered  # noqa: F401 (fills the registry)
from unskew.config import configured, fits, in_words
from unskew.data.batches import batch_of_rows
from unskew.data.log import Log
from unskew.data.split import Split, Test
from unskew.errors import BadInput
from unskew.evaluate import Evaluation, Protocol, evaluation, positives, rank
from unskew.models import deps
from unskew.models.base import ModelConfig, Recommender, model_named
from unskew.models.debiased import Debiased as Weighted
from unskew.recommend import Recommendations, for_histories, for_users
from unskew.run import RunFolder, card_of, sizes, train
from unskew.run import load as load_run
from unskew.train import Trainer, Training


class Model:
    """A registered model with its settings; trained by `fit`, or loaded from a run."""

    def __init__(self, name: str, config: ModelConfig, training: Training) -> None:
        self.name, self.config, self.training = name, config, training
        self.network: Recommender | None = None
        self.records: list[dict[str, Any]] = []
        self._log: Log | None = None
        self._trainer: Trainer | None = None  # of `fit`
        self._folder: Path | None = None  # of `load`

    def __repr__(self) -> str:
        return f"{self.name} ({'trained' if self.network is not None else 'not trained'}): {self.config}"

    def fit(self, split: Split, folder: str | os.PathLike[str] | None = None, resume: bool = False) -> "Model":
        """Train on the training part, stop by the validation part. With a folder, a killed training can be resumed."""
        path = None if folder is None else Path(folder)
        self.network, trainer = train(split, self.name, self.config, self.training, path, resume)
        self.records, self._log = trainer.records, split.log
        self._trainer, self._folder = trainer, None
        return self

    def evaluate(self, split: Split, protocol: Protocol = "full", test: Test = "ordinary", sample: int | None = None) -> Evaluation:
        self._same_ids(split.log)
        rows = positives(split, "test", test, sample, self.training.seed)
        return evaluation(split, rank(self._trained().eval(), split, rows, self.training.seed), protocol, test)

    def recommend(
        self,
        users: Sequence[Any] | None = None,
        histories: Sequence[Sequence[Any]] | None = None,
        k: int = 10,
        seen: bool = False,
    ) -> Recommendations:
        """The k best items now, for users of the log or for bare histories of item ids, as `user_id, item_id, score, rank`."""
        if (users is None) == (histories is None):
            raise BadInput("expected users or histories, one of the two")
        network, log = self._trained(), self._known()
        return for_users(network, log, users, k, seen) if users is not None else for_histories(network, log, histories, k, seen)  # type: ignore[arg-type]

    def propensities(self, log: Log) -> pa.Table:
        """Of each row of a log, both estimated propensities and the weight, with the caller's ids."""
        network = self._trained()
        if not isinstance(network, deps.DEPS | Weighted):
            raise BadInput(f"{self.name} has no propensities; debiased-{self.name} has")
        self._same_ids(log)
        parts: list[list[torch.Tensor]] = []
        with torch.no_grad():
            for first in range(0, len(log), 1024):
                rows = np.arange(first, min(first + 1024, len(log)))
                made = batch_of_rows(log, rows, network.history, network.audience)
                views = (network.propensity.item_view(made), network.propensity.user_view(made), network.propensity.weights(made))
                parts.append([torch.full((len(made.user_B), 1), float("nan")) if view is None else view for view in views])
        columns = [torch.cat(column).squeeze(1).numpy() for column in zip(*parts, strict=True)]
        table = log.table().select(["user", "item", "time", "label"])
        for name, column in zip(("item_view", "user_view", "weight"), columns, strict=True):
            table = table.append_column(name, pa.array(column.astype(np.float64)))
        return table

    def save(self, folder: str | os.PathLike[str]) -> None:
        """The run of `fit`, written after the fact: the same files."""
        self._trained()
        target = Path(folder)
        if target.exists():
            raise BadInput(f"{target}: exists already")
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            if self._trainer is None:
                assert self._folder is not None
                shutil.copytree(self._folder, scratch / "run")
            else:
                self._write(self._trainer, scratch / "run")
            (scratch / "run").rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _write(self, trainer: Trainer, folder: Path) -> None:
        split = trainer.split
        asked = {"model": self.name, "config": dataclasses.asdict(self.config), "training": dataclasses.asdict(self.training)}
        asked |= {"split": dataclasses.asdict(split.settings), "data": ""}
        store = RunFolder.begin(folder, asked | sizes(split), resume=False)
        store.finish(trainer, split, card_of(split, trainer, asked))

    def _same_ids(self, log: Log) -> None:
        """Codes mean something only in the log that they were learned on, or in one that goes on from it."""
        self._trained()
        known = self._known()
        for mine, theirs in ((known.users.ids, log.users.ids), (known.items.ids, log.items.ids)):
            if not theirs[: len(mine)].equals(mine):
                raise BadInput("expected the log that the model was trained on: this one numbers its users and items differently")

    def _trained(self) -> Recommender:
        if self.network is None:
            raise BadInput(f"{self.name} is not trained: call fit first")
        return self.network

    def _known(self) -> Log:
        assert self._log is not None
        return self._log


def load(folder: str | os.PathLike[str]) -> Model:
    """A model from the run that it was trained in."""
    network, log, config = load_run(folder)
    made = Model(config["model"], network.config, Training(**config["training"]))
    made.network, made._log, made._folder = network, log, Path(folder)
    return made


@dataclass(frozen=True, kw_only=True)
class _Settings(deps.DEPS.Config, Training):
    """DEPS and its training in one."""


@configured(_Settings)
def DEPS(settings: _Settings) -> Model:  # noqa: N802 (reads like the class it stands for)
    """The paper's model: dual propensities, dual transformers, two stages."""
    return make("deps", dataclasses.asdict(settings))


def Debiased(backbone: str, **settings: Any) -> Model:  # noqa: N802
    """Any registered model with its pairs weighted by inverse propensities: `Debiased("gru4rec", propensity="dual", width=64)`.

    Settings are those of `unskew.models.debiased.Weighting`, of the backbone and of training.
    """
    return make(f"debiased-{backbone}", settings)


def make(name: str, settings: dict[str, Any]) -> Model:
    """Any registered model from one flat set of settings: its own, its backbone's if it has one, and those of training."""
    kind = model_named(name)
    left = dict(settings)
    config = _taken(kind.Config, left)
    training = _taken(Training, left, kind.recipe)
    if left:
        raise BadInput(f"{name} has no setting {sorted(left)[0]!r}")
    return Model(name, config, training)


def _taken(kind: Any, settings: dict[str, Any], defaults: dict[str, Any] | None = None) -> Any:
    """An instance of these settings; what was given for it is taken out of the given ones."""
    hints, found = get_type_hints(kind), dict(defaults or {})
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(hints[field.name]):
            found[field.name] = _taken(hints[field.name], settings)
        elif field.name in settings:
            value = settings.pop(field.name)
            if not fits(value, hints[field.name]):
                raise BadInput(f"{field.name} {value!r}: expected {in_words(hints[field.name])}")
            found[field.name] = value
    return kind(**found)
