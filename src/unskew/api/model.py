"""The models as people use them: `DEPS(width=64, clip=0.05).fit(split)`, then evaluate, recommend, save."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from torch import Tensor

from unskew.core.atomic_files import check_free, save_frames
from unskew.core.errors import BadInput, check_is
from unskew.core.progress import shown
from unskew.data.log.held_out import Criterion, Protocol
from unskew.data.log.live import Live
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Part, Split, split
from unskew.data.log.views import Ints
from unskew.data.log.vocabulary import same_ids
from unskew.evaluation.evaluate import CUTOFFS, Evaluation
from unskew.evaluation.evaluate_many import evaluations
from unskew.models.base import ModelConfig, Recommender, Training, model_named
from unskew.models.debiased import estimator_of
from unskew.propensity.estimators import Propensity
from unskew.propensity.export import PARTS, part_of, propensity_tables
from unskew.recommendation.batch_requests import lists_of
from unskew.recommendation.ranker import Ranker, Recommendations, Saved, Wanted
from unskew.training.run import Asked, RunFolder, train
from unskew.training.run_card import card_of, chosen_settings, settings_key, weights_of
from unskew.training.trainer import OnRecord, Trainer


class Model:
    """A registered model with its settings; trained by `fit`, or loaded from a run."""

    def __init__(self, name: str, config: ModelConfig, training: Training) -> None:
        self.name, self.config, self.training = name, config, training
        self.network: Recommender | None = None
        self.records: list[dict[str, Any]] = []
        self._log: Log | None = None  # that it recommends from
        self._ranker: Ranker | None = None
        self._trainer: Trainer | None = None  # of `fit`
        self._asked: Asked | None = None
        self._folder: Path | None = None  # of `load`
        self.borders = (0, 0)  # in time, of the training and the validation set
        self.repeats = False  # whether past items can be recommended again, as in the evaluation
        self._weights: dict[str, dict[str, Tensor]] = {}  # that each validation metric chose
        self._select_by = "ordinary"  # the version whose weights recommend
        self._data = ""  # the hash of the data that it was trained on
        self._sizes = (0, 0)  # how many users and items it knows
        self.min_count = 1  # positives from which it knows them

    def __repr__(self) -> str:
        return f"{self.name} ({'trained' if self.network is not None else 'not trained'}): {self.config}"

    def fit(
        self,
        split: Split,
        folder: str | os.PathLike[str] | None = None,
        resume: bool = False,
        on_record: OnRecord | None = None,
        show_progress: bool = True,
        chosen: dict[str, float] | None = None,
    ) -> "Model":
        """Train on the training set and stop by the validation set.

        folder: where the run is stored while it is trained, so that it can be stopped and resumed.
        resume: go on with the run in that folder. It may have more epochs now; everything else must be equal.
        on_record: called with the record of each epoch; of a resumed run, first with those that it has
            already.
        show_progress: whether progress is shown on standard error.
        chosen: settings that another run's validation set chose, by their names in the model's state.
        """
        check_is(split, Split, "a split of a log, as `unskew.split(log)` makes it")
        self.config = model_named(self.name).resolve_auto(self.config, split)
        self._asked = Asked(self.name, self.config, self.training, split.log.folder or "", chosen)
        with shown(show_progress):
            path = None if folder is None else Path(folder)
            self.network, trainer = train(split, self._asked, path, resume, on_record)
        self.records, self._log, self._ranker = trainer.records, split.log, None
        self.borders, self.repeats = (split.train_end, split.valid_end), split.repeats
        self._weights, self._select_by = weights_of(trainer), trainer.select_by
        self._trainer, self._folder, self._data = trainer, None, ""
        self._sizes, self.min_count = (split.known_users, split.known_items), split.min_count
        return self

    def refit(
        self,
        log: Log,
        folder: str | os.PathLike[str] | None = None,
        on_record: OnRecord | None = None,
        show_progress: bool = True,
    ) -> "Model":
        """A new model of the same kind, trained on all of a log, the same one or a newer one, with what the
        validation set chose for this model: the number of epochs, and settings that no gradient learns."""
        check_is(log, Log, "a log, as `unskew.prepare` or `unskew.Log.open` gives it")
        epochs, chosen = self._chosen_epochs(), self.chosen
        repeats: Any = "keep" if self.repeats else "hide"
        everything = split(log, fractions=(100, 0, 0), repeats=repeats, min_count=self.min_count)
        # Nothing is chosen any more, so a version that only a validation set has is not asked for.
        by: Any = self._select_by if self._select_by != "shown" else "ordinary"
        training = replace(self.training, epochs=max(epochs, 1), select_by=by)
        made = Model(self.name, self.config, training)
        return made.fit(everything, folder, False, on_record, show_progress, chosen)

    def clone(self) -> "Model":
        """An untrained model of the same kind with the same settings."""
        return Model(self.name, self.config, self.training)

    def _chosen_epochs(self) -> int:
        """The epoch whose weights recommend; where nothing was validated, the last one."""
        scores = [record for record in self.records if self._select_by in record.get("valid", {})]
        if not scores:
            return max((record["epoch"] for record in self.records), default=1)
        return int(max(scores, key=lambda record: record["valid"][self._select_by]["ndcg@10"])["epoch"])

    def evaluate(
        self,
        split: Split,
        protocol: Protocol = "full",
        test: str | None = None,
        sample: int | None = None,
        seed: int = 0,
        cutoffs: tuple[int, ...] = CUTOFFS,
        select_by: str | None = None,
        debias: float | None = None,
        until: int | None = None,
        show_progress: bool = True,
    ) -> Evaluation:
        """Rank the positives of the test set.

        protocol: among what each positive is ranked: `full` (the whole catalogue), `uni100` (100 uniformly
            drawn items) or `authors` (the same, pooled by user).
        test: one of `unskew.data.log.held_out`; by default `ordinary`, and `authors` with the protocol
            of that name.
        sample: rank a fixed, seeded sample of so many positives; their weights come from the whole part.
        seed: of that sample, of the drawn candidates of `uni100` and `authors`, and of the authors'
            resampling.
        cutoffs: the K of NDCG@K, HR@K and MRR@K.
        select_by: the validation metric whose weights are used; by default the test's own
            version, where there is one.
        debias: from 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), for
            models that have a debiasing strength; by default as the chosen weights have it.
        until: rank only what happened before this time.
        """
        test = test or ("authors" if protocol == "authors" else "ordinary")
        more = sample, seed, cutoffs, select_by, (debias,), until, show_progress
        return self.evaluate_each(split, {test: (protocol,)}, *more)[test][0]

    def evaluate_each(
        self,
        split: Split,
        tests: Mapping[str, Sequence[Protocol]],
        sample: int | None = None,
        seed: int = 0,
        cutoffs: tuple[int, ...] = CUTOFFS,
        select_by: str | None = None,
        strengths: Sequence[float | None] = (None,),
        until: int | None = None,
        show_progress: bool = True,
    ) -> dict[str, list[Evaluation]]:
        """Several tests, each under some protocols, with as few rankings as possible
        (`unskew.evaluation.evaluate_many`): the evaluations of each test by debias, and for each debiasing
        strength by protocol."""
        check_is(split, Split, "a split of a log, as `unskew.split(log)` makes it")
        self._ready(split)
        self._same_ids(split.log)
        self._not_trained_on(split)
        chosen = {test: self._version(test, select_by) for test in tests}
        network = self._trained()
        try:
            with shown(show_progress):
                more = strengths, sample, seed, cutoffs, until
                found = evaluations(network, self._weights, split, tests, chosen, *more)
        finally:
            network.load_state_dict(self._weights[self._select_by])
        self._data = self._data or split.log.fingerprint()
        made = {"model": self.name, "training_seed": self.training.seed, "data": self._data}
        made["settings"] = settings_key(self.name, self.config, self.training)
        for one in chain(*found.values()):
            one.about.update(made)
        return found

    def _version(self, test: str, select_by: str | None) -> str:
        """The validation metric whose weights a test is evaluated with: its own, or else the one
        that chose the weights that recommend."""
        by = select_by or (test if test in self._weights else self._select_by)
        if by not in self._weights:
            raise BadInput(f"select_by {by}: this run has weights chosen by {', '.join(self._weights)}")
        return by

    def _chosen_for(self, test: str, select_by: str | None) -> tuple[Recommender, str]:
        """The network with the weights that a test is evaluated with."""
        by, network = self._version(test, select_by), self._trained()
        network.load_state_dict(self._weights[by])
        return network.eval(), by

    def _not_trained_on(self, split: Split) -> None:
        train_end, valid_end = self.borders
        for end, done in ((train_end, "trained"), (valid_end, "chosen")):
            if split.valid_end < end:
                dates = [split.log.clock.date(time) for time in (end, split.valid_end)]
                begins = f"the test set begins at {dates[1]}"
                raise BadInput(f"this model was {done} on rows before {dates[0]}, and {begins}")

    def recommend(
        self,
        users: Sequence[Any] | None = None,
        histories: Sequence[Sequence[Any]] | None = None,
        k: int = 10,
        include_seen: bool | None = None,
        log: LogView | None = None,
        candidates: Sequence[Any] | None = None,
        exclude: Sequence[Any] = (),
        debias: float | None = None,
        at: int | str | None = None,
        diverse: float = 0.0,
        approximate: bool = False,
    ) -> Recommendations:
        """The k best items now, for users of the log or after bare histories of item ids, as a frame
        `user_id, item_id, score, rank`. An item of a history may be a pair of an id and a time.

        include_seen: whether items of the history can come again; by default as in this model's evaluation.
        log: a newer log, which goes on from the one that the model was trained on, or a live one
            (`unskew.Live`); by default that one.
        candidates: the ids of the only items that can be recommended.
        exclude: the ids of items that are not recommended.
        debias: as for `evaluate`; by default as the model has it.
        at: the moment of the request, in ticks of the log's clock or as an ISO date; by default just after
            the newest event.
        diverse: from 0 (the best items) to 1 (items that are as unlike each other as can be).
        approximate: whether an index proposes what is scored (extra `ann`), for 100,000 items and more.
        """
        if (users is None) == (histories is None):
            raise BadInput("expected users or histories, one of the two")
        ranker = self._ranking(log)
        wanted = self._wanted(k, include_seen, candidates, exclude, debias, at, diverse, approximate)
        if users is not None:
            return ranker.for_users(users, wanted)
        assert histories is not None
        return ranker.for_histories(histories, wanted)

    def save_recommendations(
        self,
        file: str | os.PathLike[str],
        requests: str | os.PathLike[str] | None = None,
        log: LogView | None = None,
        show_progress: bool = True,
        k: int = 10,
        include_seen: bool | None = None,
        candidates: Sequence[Any] | None = None,
        exclude: Sequence[Any] = (),
        debias: float | None = None,
        at: int | str | None = None,
        diverse: float = 0.0,
        approximate: bool = False,
    ) -> Saved:
        """Write the k best items of every user of the log to a file, block by block: Parquet, or CSV or JSON
        lines if its name ends with .csv or .jsonl; with `requests`, a file of users or histories
        (`unskew.recommendation.batch_requests`), those of its rows. For the other parameters see
        `recommend`."""
        ranker = self._ranking(log)
        wanted = self._wanted(k, include_seen, candidates, exclude, debias, at, diverse, approximate)
        lists = ranker.for_everybody(wanted) if requests is None else lists_of(Path(requests), ranker, wanted)
        saved = Saved()
        with shown(show_progress):
            save_frames(map(saved.count, lists), Path(file))
        return replace(saved, recall=ranker.recall(wanted))

    def _ranking(self, log: LogView | None) -> Ranker:
        """The ranker of the model, which keeps its catalogue between calls."""
        self._ready(log)
        network, known = self._trained(), self.known_log
        if self._ranker is None:
            self._ranker = Ranker(network, known)
        if log is not None:
            self._same_ids(log)
        self._ranker.follow(known if log is None else log)
        return self._ranker

    def _wanted(self, k: int, include_seen: bool | None, *more: Any) -> Wanted:
        made = Wanted(k, self.repeats if include_seen is None else include_seen, *more)
        return replace(made, at=None if made.at is None else self.known_log.clock.moment(made.at))

    def chosen_by(self, criterion: Criterion) -> "Model":
        """The same model, which recommends with the weights that another validation metric
        chose."""
        self._chosen_for(criterion, criterion)
        self._select_by, self._ranker = criterion, None
        if self._trainer is not None:
            self._trainer.select_by = criterion
        return self

    @property
    def propensity(self) -> Propensity:
        """The estimator of propensities in this model."""
        return estimator_of(self._trained())

    def propensities(self, log: Log, rows: Ints | None = None) -> pa.Table:
        """Of each row of a log (or of some rows), with the caller's ids: both propensities, the weight, and
        the part of the run's split that it is in."""
        return pa.concat_tables(self._propensities(log, rows))

    def save_propensities(self, log: Log, file: str | os.PathLike[str]) -> dict[Part, int]:
        """The same as a Parquet file, whole or not at all, written block by block. Returns how many rows each
        part has."""
        save_frames(self._propensities(log), Path(file))
        counts = np.bincount(part_of(self.borders, log.time), minlength=len(PARTS)).tolist()
        return dict(zip(PARTS, counts, strict=True))

    def _propensities(self, log: Log, rows: Ints | None = None) -> Iterator[pa.Table]:
        estimator, network = self.propensity, self._trained().eval()
        self._same_ids(log)
        # The estimator of a wrapper reads as far as its own settings say, whatever its backbone reads.
        items = getattr(self.config, "past_items", network.history)
        users = getattr(self.config, "past_users", network.audience)
        return propensity_tables(estimator, log, self.borders, (items, users), rows)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the run of `fit` after the fact, with the same files as if it had had a folder from the
        start."""
        self._trained()
        target = Path(folder)
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            if self._trainer is None:
                assert self._folder is not None
                shutil.copytree(self._folder, scratch / "run")
                RunFolder(scratch / "run").choose(self._select_by)
            else:
                self._write(self._trainer, scratch / "run")
            (scratch / "run").rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _write(self, trainer: Trainer, folder: Path) -> None:
        assert self._asked is not None
        cut, document = trainer.split, self._asked.document(trainer.split)
        store = RunFolder.begin(folder, document, resume=False)
        store.card = lambda trainer: card_of(cut, trainer, document)
        store.remember(cut)
        store.finish(trainer)

    def _same_ids(self, log: LogView) -> None:
        """Codes mean something only in the log that they were learned on, or in one that goes on from it."""
        check_is(log, (Log, Live), "a log, as `unskew.prepare` or `unskew.Log.open` gives it")
        self._trained()
        known = self.known_log
        sides = (known.users.ids, log.users.ids), (known.items.ids, log.items.ids)
        for size, (mine, theirs) in zip(self._sizes, sides, strict=True):
            if not same_ids(mine[:size], theirs[:size]):
                raise BadInput(
                    "expected the log that the model was trained on, or one that goes on from it: this one "
                    "numbers its users and items differently"
                )

    def _ready(self, given: Split | LogView | None) -> None:
        """Called with what is about to be ranked, for models that need no training."""

    def _trained(self) -> Recommender:
        if self.network is None:
            raise BadInput(f"{self.name} is not trained: call fit first")
        return self.network

    @property
    def split(self) -> Split:
        """What it was trained on by `fit`."""
        if self._trainer is None:
            raise BadInput(f"this {self.name} was not trained here, so its split is not known")
        return self._trainer.split

    @property
    def chosen(self) -> dict[str, float]:
        """The settings that a validation set chose and no gradient learned, by their names in the state."""
        return chosen_settings(self._trained(), self._weights[self._select_by])

    @property
    def known_log(self) -> Log:
        """What it recommends from: the log that it was trained on, or what a stored run remembers of it."""
        if self._log is None:
            raise BadInput(f"{self.name} is not trained: call fit first")
        return self._log
