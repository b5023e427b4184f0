"""The models as people use them: `DEPS(width=64, clip=0.05).fit(split)`, then evaluate, recommend, save."""

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

import unskew.models as _registered  # noqa: F401 (fills the registry)
from unskew.config import check, configured, fits, in_words, names_of
from unskew.data.batch import Batch, batch_of_rows
from unskew.data.held_out import Protocol, held_out
from unskew.data.log import Log
from unskew.data.split import Part, Split
from unskew.data.views import Ints
from unskew.errors import BadInput, NothingToRank
from unskew.evaluate import CUTOFFS, Evaluation, evaluation, rank
from unskew.models import deps
from unskew.models.base import ModelConfig, Recommender, model_named
from unskew.progress import progress
from unskew.propensity.estimators import Propensity, Unit
from unskew.ranker import Recommendations, for_histories, for_users
from unskew.run import RunFolder, card_of, sizes, train, weights_of
from unskew.run import load as load_run
from unskew.storage import check_free, new_file
from unskew.train import OnRecord, Trainer, Training

PARTS: tuple[Part, ...] = ("train", "valid", "test")
ESTIMATES = ("item_view", "user_view", "weight")
BLOCK = 1024  # rows whose propensities are computed together
ROW_GROUP = 64 * BLOCK  # rows that are written together


class Model:
    """A registered model with its settings; trained by `fit`, or loaded from a run."""

    def __init__(self, name: str, config: ModelConfig, training: Training) -> None:
        self.name, self.config, self.training = name, config, training
        self.network: Recommender | None = None
        self.records: list[dict[str, Any]] = []
        self._log: Log | None = None
        self._trainer: Trainer | None = None  # of `fit`
        self._folder: Path | None = None  # of `load`
        self._borders = (0, 0)  # in time, of the training and the validation part
        self._repeats = False  # whether past items can be recommended again, as in the evaluation
        self._weights: dict[str, dict[str, Tensor]] = {}  # that each version of the validation part chose
        self._choose_by = "ordinary"  # the version whose weights recommend
        self._data = ""  # the hash of the data that it was trained on

    def __repr__(self) -> str:
        return f"{self.name} ({'trained' if self.network is not None else 'not trained'}): {self.config}"

    def fit(
        self,
        split: Split,
        folder: str | os.PathLike[str] | None = None,
        resume: bool = False,
        on_record: OnRecord | None = None,
    ) -> "Model":
        """Train on the training part, stop by the validation part. With a folder, a killed training can be
        resumed.

        `on_record` is called with the record of each round; when a run is resumed, first with those that it
        has already.
        """
        path = None if folder is None else Path(folder)
        self.network, trainer = train(
            split, self.name, self.config, self.training, path, resume, on_record=on_record
        )
        self.records, self._log = trainer.records, split.log
        self._borders, self._repeats = (split.train_end, split.valid_end), split.repeats
        self._weights, self._choose_by = weights_of(trainer), trainer.choose_by
        self._trainer, self._folder, self._data = trainer, None, ""
        return self

    def evaluate(
        self,
        split: Split,
        protocol: Protocol = "full",
        test: str | None = None,
        sample: int | None = None,
        seed: int = 0,
        cutoffs: tuple[int, ...] = CUTOFFS,
        choose_by: str | None = None,
        until: int | None = None,
    ) -> Evaluation:
        """Rank the positives of the test part.

        test: one of `unskew.data.held_out`, by default `ordinary`, and `authors` with the protocol of that
        name.
        sample: rank a fixed, seeded sample of so many positives; their weights come from the whole part.
        seed: of that sample, of the drawn candidates of `uni100` and `authors`, and of the authors'
        resampling.
        cutoffs: the K of NDCG@K, HR@K and MRR@K.
        choose_by: the version of the validation part whose weights are used; by default the test's own, where
        there is one.
        until: rank only what happened before this time.
        """
        self._same_ids(split.log)
        self._not_trained_on(split)
        if not cutoffs or min(cutoffs) < 1:
            raise BadInput(f"cutoffs {cutoffs}: expected whole numbers of at least 1")
        test = test or ("authors" if protocol == "authors" else "ordinary")
        tested = held_out(split, "test", test, sample, seed, until)
        if not len(tested.rows):
            why = (
                "nothing was shown together with a positive and not clicked"
                if test == "shown"
                else "it has no positives"
            )
            raise NothingToRank(f"nothing to rank in the {test} test: {why}")
        network, by = self._chosen_for(test, choose_by)
        try:
            ranked = rank(network, split, tested.rows, seed, max(cutoffs))
        finally:
            network.load_state_dict(self._weights[self._choose_by])
        found = evaluation(split, ranked, protocol, tested, cutoffs)
        self._data = self._data or split.log.fingerprint()
        found.about.update(
            weights_chosen_by=by, seed=seed, sample=sample, model=self.name, training_seed=self.training.seed
        )
        found.about.update(data=self._data, settings=settings_key(self))
        return found

    def _chosen_for(self, test: str, choose_by: str | None) -> tuple[Recommender, str]:
        """The network with the weights that a test's own version of the validation part chose, or else those
        that recommend."""
        by = choose_by or (test if test in self._weights else self._choose_by)
        if by not in self._weights:
            raise BadInput(f"choose_by {by}: this run has weights chosen by {', '.join(self._weights)}")
        network = self._trained()
        network.load_state_dict(self._weights[by])
        return network.eval(), by

    def _not_trained_on(self, split: Split) -> None:
        train_end, valid_end = self._borders
        if split.valid_end < train_end:
            raise BadInput(
                f"this model was trained on rows before {train_end}, and the test part begins at "
                f"{split.valid_end}"
            )
        if split.valid_end < valid_end:
            raise BadInput(
                f"this model was chosen on rows before {valid_end}, and the test part begins at "
                f"{split.valid_end}"
            )

    def recommend(
        self,
        users: Sequence[Any] | None = None,
        histories: Sequence[Sequence[Any]] | None = None,
        k: int = 10,
        include_seen: bool | None = None,
    ) -> Recommendations:
        """The k best items now, for users of the log or for bare histories of item ids, as `user_id, item_id,
        score, rank`.

        include_seen: whether items of the history can be recommended again; by default as in the evaluation
        of this model.
        """
        if (users is None) == (histories is None):
            raise BadInput("expected users or histories, one of the two")
        network, log = self._trained(), self._known()
        seen = self._repeats if include_seen is None else include_seen
        if users is not None:
            return for_users(network, log, users, k, seen)
        return for_histories(network, log, histories, k, seen)  # type: ignore[arg-type]

    def chosen_by(self, criterion: str) -> "Model":
        """The same model, recommending with the weights that another version of the validation part chose."""
        self._chosen_for(criterion, criterion)
        self._choose_by = criterion
        if self._trainer is not None:
            self._trainer.choose_by = criterion  # type: ignore[assignment]
        return self

    @property
    def propensity(self) -> Propensity:
        """What it estimates propensities with."""
        network = self._trained()
        found = getattr(network, "propensity", None)
        if not isinstance(found, Propensity):
            raise BadInput(f"{self.name} has no propensities of pairs; debiased-{self.name} has")
        if isinstance(found, Unit):
            raise BadInput(f"this {self.name} was trained without propensities")
        if {f"propensity.{name}" for name, _ in found.named_parameters()} - network.reached():
            raise BadInput(
                f"{self.name} is not trained by gradients, so its propensities never were; item-pro and "
                "user-pro need no training"
            )
        return found

    def propensities(self, log: Log) -> pa.Table:
        """Of each row of a log both propensities, the weight, and the part of the run's split that it is in;
        with the caller's ids."""
        return pa.concat_tables(self._propensities(log))

    def save_propensities(self, log: Log, file: str | os.PathLike[str]) -> dict[Part, int]:
        """The same as a Parquet file, whole or not at all, block by block. Returns how many rows each part
        has."""
        blocks = self._propensities(log)
        with new_file(Path(file)) as target:
            first = next(blocks)
            with pq.ParquetWriter(target, first.schema) as writer:
                for block in chain([first], blocks):
                    writer.write_table(block)
        return dict(zip(PARTS, np.bincount(self._part(log.time), minlength=len(PARTS)).tolist(), strict=True))

    def _propensities(self, log: Log) -> Iterator[pa.Table]:
        """Refuses at once, computes as it is asked."""
        estimator, network = self.propensity, self._trained().eval()
        self._same_ids(log)
        # The estimator of a wrapper reads as far as its own settings say, whatever its backbone reads.
        past = (
            getattr(self.config, "past_items", network.history),
            getattr(self.config, "past_users", network.audience),
        )

        def tables() -> Iterator[pa.Table]:
            with progress("propensities", len(log)) as job:
                for first in range(0, len(log), ROW_GROUP):
                    rows = np.arange(first, min(first + ROW_GROUP, len(log)))
                    columns = {"user": log.users.of(log.user[rows]), "item": log.items.of(log.item[rows])}
                    columns |= {"time": pa.array(log.time[rows]), "label": pa.array(log.label[rows])}
                    found = np.concatenate(
                        [_estimates(estimator, batch_of_rows(log, some, *past)) for some in _blocks(rows)]
                    )
                    columns |= {
                        name: pa.array(found[:, place], from_pandas=True)
                        for place, name in enumerate(ESTIMATES)
                    }
                    yield pa.table(columns | {"part": pa.array(np.array(PARTS)[self._part(log.time[rows])])})
                    job.advance(len(rows))

        return tables()

    def _part(self, time: Ints) -> Ints:
        """Which part of the split that it was trained on each time is in."""
        return np.searchsorted(self._borders, time, "right")

    def save(self, folder: str | os.PathLike[str]) -> None:
        """The run of `fit`, written after the fact: the same files."""
        self._trained()
        target = Path(folder)
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            if self._trainer is None:
                assert self._folder is not None
                shutil.copytree(self._folder, scratch / "run")
                RunFolder(scratch / "run").choose(self._choose_by)
            else:
                self._write(self._trainer, scratch / "run")
            (scratch / "run").rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _write(self, trainer: Trainer, folder: Path) -> None:
        split = trainer.split
        asked = {
            "model": self.name,
            "config": dataclasses.asdict(self.config),
            "training": dataclasses.asdict(self.training),
        }
        asked |= {"split": dataclasses.asdict(split.settings), "data": ""}
        store = RunFolder.begin(
            folder, asked | sizes(split) | {"hash": split.log.fingerprint()}, resume=False
        )
        store.finish(trainer, split, card_of(split, trainer, asked))

    def _same_ids(self, log: Log) -> None:
        """Codes mean something only in the log that they were learned on, or in one that goes on from it."""
        self._trained()
        known = self._known()
        for mine, theirs in ((known.users.ids, log.users.ids), (known.items.ids, log.items.ids)):
            if not theirs[: len(mine)].equals(mine):
                raise BadInput(
                    "expected the log that the model was trained on: this one numbers its users and items "
                    "differently"
                )

    def _trained(self) -> Recommender:
        if self.network is None:
            raise BadInput(f"{self.name} is not trained: call fit first")
        return self.network

    def _known(self) -> Log:
        assert self._log is not None
        return self._log


def _blocks(rows: Ints) -> list[Ints]:
    return [rows[first : first + BLOCK] for first in range(0, len(rows), BLOCK)]


@torch.no_grad()
def _estimates(estimator: Propensity, batch: Batch) -> NDArray[np.float64]:
    """Both views and the weight of each row, (rows, 3); nan where there is no such view."""
    weight = estimator.weights(batch)
    views = (estimator.item_view(batch), estimator.user_view(batch))
    columns = [torch.full_like(weight, torch.nan) if view is None else view for view in views]
    return torch.cat([*columns, weight], dim=1).numpy().astype(np.float64)


def load(folder: str | os.PathLike[str]) -> Model:
    """A model from the run that it was trained in."""
    found = load_run(folder)
    cut = found.card["split"]
    made = Model(found.config["model"], found.network.config, Training(**found.config["training"]))
    made.network, made._log, made._folder = found.network, found.log, Path(folder)
    made._borders, made._repeats = (cut["train_end"], cut["valid_end"]), cut["repeats"]
    made._weights, made._choose_by, made._data = (
        found.weights,
        found.card["choose_by"],
        found.card["data"]["hash"],
    )
    return made


def settings_key(model: Model) -> str:
    """Two models with the same one differ in nothing but the seed."""
    training = {name: value for name, value in dataclasses.asdict(model.training).items() if name != "seed"}
    return json.dumps([model.name, dataclasses.asdict(model.config), training], sort_keys=True, default=str)


@dataclass(frozen=True, kw_only=True)
class _Settings(deps.DEPS.Config, Training):
    """DEPS and its training in one."""


@configured(_Settings)
def DEPS(settings: _Settings) -> Model:  # noqa: N802 (reads like the class it stands for)
    """The paper's model: dual propensities, dual transformers, two stages."""
    return create_model("deps", dataclasses.asdict(settings))


def Debiased(backbone: str, settings: dict[str, Any] | None = None) -> Model:  # noqa: N802
    """Any registered model with its pairs weighted by inverse propensities: `Debiased("gru4rec",
    {"propensity": "dual", "width": 64})`.

    Settings are those of `unskew.models.debiased.Weighting`, of the backbone and of training.
    """
    return create_model(f"debiased-{backbone}", settings)


def create_model(name: str, settings: dict[str, Any] | None = None) -> Model:
    """Any registered model from one flat set of settings: its own, its backbone's if it has one, and those of
    training.

    `unskew models` lists names and settings; what is not given is as in the model's paper.
    """
    settings = settings or {}
    kind = model_named(name)
    names = [*names_of(kind.Config), *names_of(Training)]
    twice = [setting for setting in settings if names.count(setting) > 1]
    if twice:
        raise BadInput(
            f"{name}: {twice[0]!r} is a setting of two of its parts; say it in its Config, where each part "
            "has its own"
        )
    left = dict(settings)
    config = _taken(kind.Config, left)
    training = _taken(Training, left, kind.recipe)
    if left:
        raise BadInput(f"{name} has no setting {sorted(left)[0]!r}")
    check(config)
    check(training)
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
