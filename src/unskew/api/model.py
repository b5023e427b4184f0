"""The models as people use them: `DEPS(width=64, clip=0.05).fit(split)`, then evaluate, recommend, save."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pyarrow as pa

from unskew.core.atomic_files import save_frames
from unskew.core.errors import BadInput, check_is
from unskew.core.progress import shown
from unskew.data.log.erasures import IN_RUN, Erasures, add_erasures
from unskew.data.log.held_out import FROZEN, FROZEN_BALANCED, Criterion, Protocol, Targets
from unskew.data.log.live import Live
from unskew.data.log.log import Log, LogView
from unskew.data.log.split import Part, Split, Splitting, split, without_validation
from unskew.data.log.views import Ints
from unskew.data.log.vocabulary import same_ids
from unskew.data.reading.erase import without_erased
from unskew.evaluation.evaluate import CUTOFFS, Evaluation
from unskew.evaluation.evaluate_many import evaluations
from unskew.models.base import ModelConfig, Recommender, Training, model_named
from unskew.models.debiased import estimator_of
from unskew.models.pulse.model import PulseZero
from unskew.propensity.estimators import Propensity
from unskew.propensity.export import PARTS, part_of, propensity_tables
from unskew.recommendation.batch_requests import lists_of
from unskew.recommendation.options import Cold, Explain, RecommendKeywords, RecommendOptions
from unskew.recommendation.parts import SavedParts, parse_shard, save_parts, weights_digest
from unskew.recommendation.ranker import Ranker, Recommendations, Saved
from unskew.training.epoch_record import EpochRecord, OnRecord
from unskew.training.erase import run_erasures
from unskew.training.run import Trained, train
from unskew.training.run_card import chosen_settings, is_finished, settings_key
from unskew.training.run_config import EventsIn, RunSettings


class Model:
    """A registered model with its settings; trained by `fit`, or loaded from a run.

    Parameters
    ----------
    name
        The name of a registered model.
    config
        The settings of the model, its nested class `Config`.
    training
        The settings of training.
    trained
        What training made; None for a model that is not trained yet.
    """

    def __init__(
        self, name: str, config: ModelConfig, training: Training, trained: Trained | None = None
    ) -> None:
        self.name, self.config, self.training = name, config, training
        self._trained = trained
        self._ranker: Ranker | None = None

    def __repr__(self) -> str:
        return f"{self.name} ({'trained' if self.is_trained else 'not trained'}): {self.config}"

    # What training made

    @property
    def is_trained(self) -> bool:
        """Whether there is something to recommend with."""
        return self._trained is not None

    @property
    def trained(self) -> Trained:
        """What training made: the network, its weights, and what they were trained on."""
        if self._trained is None:
            raise BadInput(f"{self.name} is not trained: call fit first")
        return self._trained

    @property
    def network(self) -> Recommender:
        """The torch module, with the weights that recommend."""
        return self.trained.network

    @property
    def records(self) -> tuple[EpochRecord, ...]:
        """What each epoch of training did; empty before training."""
        return self._trained.records if self._trained is not None else ()

    @property
    def known_log(self) -> Log:
        """What it recommends from: the log that it was trained on, or what a stored run remembers of it."""
        return self.trained.log

    @property
    def split(self) -> Split:
        """What it was trained on by `fit`."""
        trainer = self._trained.trainer if self._trained is not None else None
        if trainer is None:
            raise BadInput(f"this {self.name} was not trained here, so its split is not known")
        return trainer.split

    @property
    def chosen(self) -> dict[str, float]:
        """The settings that a validation set chose and no gradient learned, by their names in the state."""
        return chosen_settings(self.network, self.trained.weights[self.trained.select_by])

    @property
    def settings_key(self) -> str:
        """A text that two models have in common if they differ in nothing but the seed."""
        return settings_key(self.name, self.config, self.training)

    # Training

    def fit(
        self,
        split: Split,
        folder: str | os.PathLike[str] | None = None,
        *,
        resume: bool = False,
        on_record: OnRecord | None = None,
        show_progress: bool = True,
        chosen: Mapping[str, float] | None = None,
        events_in: EventsIn = "auto",
    ) -> "Model":
        """Train on the training set and stop by the validation set.

        Parameters
        ----------
        split
            A log with its training, validation and test set, as `unskew.split` makes it.
        folder
            Where the run is stored while it is trained, so that it can be stopped and resumed.
        resume
            Continue the run in that folder. It may have more epochs now; everything else must be equal.
        on_record
            Called with the record of each epoch; for a resumed run, first with those that it has already.
        show_progress
            Whether progress is shown on standard error.
        chosen
            Settings that another run's validation set chose, by their names in the model's state.
        events_in
            Where the run keeps the events that it recommends from: in a copy of its own (`run`) or only in
            the prepared folder (`folder`). `auto` is the folder for a log of a million rows and more that has
            one.

        Returns
        -------
        Model
            This model.
        """
        check_is(split, Split, "a split of a log, as `unskew.split(log)` makes it")
        self.config = model_named(self.name).resolve_auto(self.config, split)
        settings = RunSettings(
            model=self.name,
            config=self.config,
            training=self.training,
            data=split.source.folder or "",
            chosen=chosen,
            events_in=events_in,
        )
        with shown(show_progress):
            trainer = train(split, settings, None if folder is None else Path(folder), resume, on_record)
        self._trained, self._ranker = Trained.of(trainer, settings), None
        return self

    def refit(
        self,
        log: Log,
        folder: str | os.PathLike[str] | None = None,
        *,
        until: str = "end",
        on_record: OnRecord | None = None,
        show_progress: bool = True,
        events_in: EventsIn = "auto",
    ) -> "Model":
        """Train a new model of the same kind on all of a log, with what the validation set chose for this
        model: the number of epochs, and settings that no gradient learns.

        Parameters
        ----------
        log
            The log that this model was trained on, or a newer one. Users who were erased from the run of this
            model are left out of it.
        until
            Where the log ends that is learned from: its own end (`end`), the begin of the test set (`test`),
            or a date or a quantile, as `at` of a split has them. What follows is a test set.
        folder, on_record, show_progress, events_in
            As for `fit`.

        Returns
        -------
        Model
            The new model.
        """
        check_is(log, Log, "a log, as `unskew.prepare` or `unskew.Log.open` gives it")
        erasures = Erasures() if self.trained.folder is None else run_erasures(self.trained.folder)
        log = without_erased(log, erasures)
        cut, by = self.trained.split, self.trained.select_by
        repeats: Any = "keep" if cut.repeats else "hide"
        whole = (
            Splitting(fractions=(100, 0, 0)) if until == "end" else _learned_until(log, cut.settings, until)
        )
        everything = split(log, **asdict(replace(whole, repeats=repeats, min_count=cut.min_count)))
        # Nothing is chosen any more, so a metric that only a validation set has is not asked for.
        select_by: Any = by if by != "shown" else "ordinary"
        training = replace(self.training, epochs=max(self.best_epoch(), 1), select_by=select_by)
        config = self.config if self.best_epoch() else self.network.untrained(self.config)
        model = Model(self.name, config, training).fit(
            everything,
            folder,
            on_record=on_record,
            show_progress=show_progress,
            chosen=self.chosen,
            events_in=events_in,
        )
        if folder is not None and erasures:
            add_erasures(Path(folder) / IN_RUN, erasures)
        return model

    def clone(self) -> "Model":
        """An untrained model of the same kind with the same settings."""
        return Model(self.name, self.config, self.training)

    def best_epoch(self) -> int:
        """The epoch whose weights recommend; where nothing was validated, the last one."""
        by = self.trained.select_by
        validated = [record for record in self.records if by in record.valid]
        if not validated:
            return max((record.epoch for record in self.records), default=1)
        return max(validated, key=lambda record: record.valid[by]["ndcg@10"]).epoch

    @property
    def is_finished(self) -> bool:
        """Whether training ended because no validation metric rose any more, and not earlier."""
        return is_finished(self.records, self.training)

    # Evaluation

    def evaluate(
        self,
        split: Split,
        protocol: Protocol = "full",
        test: str | None = None,
        *,
        sample: int | None = None,
        seed: int = 0,
        cutoffs: tuple[int, ...] = CUTOFFS,
        select_by: str | None = None,
        debias: float | None = None,
        until: int | None = None,
        frozen: bool = False,
        targets: Targets = "next",
        show_progress: bool = True,
    ) -> Evaluation:
        """Rank the positives of the test set.

        Parameters
        ----------
        split
            The split whose test set is ranked.
        protocol
            Among what each positive is ranked: `full` (the whole catalogue), `uni100` (100 uniformly drawn
            items) or `authors` (the same, pooled by user).
        test
            One of `unskew.data.log.held_out`; by default `ordinary`, and `authors` with the protocol of that
            name.
        sample
            Rank a fixed, seeded sample of so many positives; their weights come from the whole test set.
        seed
            Of that sample, of the drawn candidates of `uni100` and `authors`, and of the authors' resampling.
        cutoffs
            The K of NDCG@K, HR@K and MRR@K.
        select_by
            The validation metric whose weights are used; by default that of the test, where there is one.
        debias
            From 0 (what will be clicked) to 1 (what would be, if all items were exposed equally), for models
            that have a debiasing strength; by default as the chosen weights have it.
        until
            Rank only what happened before this time.
        frozen
            Make one list for each user at the beginning of the test set, from what happened before; nothing
            later is read by any model. By default the evaluation is live: a list for each positive, from
            everything strictly before it.
        targets
            In a frozen evaluation, what a list should contain: the `next` positive of the user, or `all`
            later ones. With `all`, metrics are computed for each user.
        show_progress
            Whether progress is shown on standard error.

        Returns
        -------
        Evaluation
            The metrics of each positive.
        """
        test = test or ("authors" if protocol == "authors" else "ordinary")
        return self.evaluate_each(
            split,
            {test: (protocol,)},
            sample=sample,
            seed=seed,
            cutoffs=cutoffs,
            select_by=select_by,
            strengths=(debias,),
            until=until,
            frozen=frozen,
            targets=targets,
            show_progress=show_progress,
        )[test][0]

    def evaluate_each(
        self,
        split: Split,
        tests: Mapping[str, Sequence[Protocol]],
        *,
        sample: int | None = None,
        seed: int = 0,
        cutoffs: tuple[int, ...] = CUTOFFS,
        select_by: str | None = None,
        strengths: Sequence[float | None] = (None,),
        until: int | None = None,
        frozen: bool = False,
        targets: Targets = "next",
        show_progress: bool = True,
    ) -> dict[str, list[Evaluation]]:
        """Evaluate several tests, each under some protocols, with as few rankings as possible.

        Parameters
        ----------
        split
            The split whose test set is ranked.
        tests
            The protocols of each test.
        strengths
            The debiasing strengths; None is as the chosen weights have it.
        sample, seed, cutoffs, select_by, until, frozen, targets, show_progress
            As for `evaluate`.

        Returns
        -------
        dict
            The evaluations of each test by strength, and for each strength by protocol.
        """
        check_is(split, Split, "a split of a log, as `unskew.split(log)` makes it")
        if targets != "next" and not frozen:
            raise BadInput(
                f"targets {targets!r} are for a frozen evaluation; a live one has a list for each target"
            )
        self._make_ready(split)
        self.check_unseen(split)
        trained = self.trained
        chosen = {test: self._criterion_of(test, select_by, frozen) for test in tests}
        try:
            with shown(show_progress):
                by_test = evaluations(
                    trained.network,
                    trained.weights,
                    split,
                    tests,
                    chosen,
                    strengths=strengths,
                    sample=sample,
                    seed=seed,
                    cutoffs=cutoffs,
                    until=until,
                    frozen=targets if frozen else None,
                )
        finally:
            trained.network.load_state_dict(trained.weights[trained.select_by])
        about = {"model": self.name, "training_seed": self.training.seed, "data": trained.data_hash}
        for evaluation in chain(*by_test.values()):
            evaluation.about.update(about, settings=self.settings_key, finished=self.is_finished)
        return by_test

    @contextmanager
    def weights_chosen_for(self, test: str, select_by: str | None) -> Iterator[tuple[Recommender, str]]:
        """The network with the weights that a test is evaluated with, and which metric chose them. After this
        context it has those that recommend again."""
        trained, by = self.trained, self._criterion_of(test, select_by)
        trained.network.load_state_dict(trained.weights[by])
        try:
            yield trained.network.eval(), by
        finally:
            trained.network.load_state_dict(trained.weights[trained.select_by])

    def _criterion_of(self, test: str, select_by: str | None, frozen: bool = False) -> str:
        """The validation metric whose weights a test is evaluated with: its own, or else the one that chose
        the weights that recommend. Those of frozen lists are `frozen` and `frozen-balanced`, if the model
        validates them."""
        weights = self.trained.weights
        of_lists = {"ordinary": FROZEN, "balanced": FROZEN_BALANCED}.get(test, test) if frozen else test
        own = of_lists if of_lists in weights else test
        by = select_by or (own if own in weights else self.trained.select_by)
        if by not in weights:
            raise BadInput(f"select_by {by}: this run has weights chosen by {', '.join(weights)}")
        return by

    def check_unseen(self, split: Split) -> None:
        """Refuse a split of another log, or one whose test set the model was trained or chosen on."""
        self._check_ids(split.log)
        cut = self.trained.split
        if cut.settings.kind != split.settings.kind:
            raise BadInput(
                f"this model was trained on a {cut.settings.kind} split, and this is a {split.settings.kind} "
                "split: its test set may be among what the model was trained on"
            )
        for end, done in ((cut.train_end, "trained"), (cut.valid_end, "chosen")):
            if split.valid_end < end:
                dates = [split.log.clock.date(time) for time in (end, split.valid_end)]
                begins = f"the test set begins at {dates[1]}"
                raise BadInput(f"this model was {done} on rows before {dates[0]}, and {begins}")

    # Recommending

    def recommend(
        self,
        users: Sequence[Any] | None = None,
        histories: Sequence[Sequence[Any]] | None = None,
        *,
        log: LogView | None = None,
        k: int = 10,
        include_seen: bool | None = None,
        candidates: Sequence[Any] | None = None,
        exclude: Sequence[Any] = (),
        debias: float | None = None,
        at: int | str | None = None,
        diverse: float = 0.0,
        rules: tuple[str, ...] = (),
        cold: Cold = "model",
        explain: bool = False,
        approximate: bool = False,
    ) -> Recommendations:
        """Recommend the k best items, for users of the log or after bare histories.

        Parameters
        ----------
        users
            Ids of users. A user whom the log does not know gets what an empty history gets.
        histories
            Item ids, oldest first, for each list. An item may be a pair of an id and a time, which is an ISO
            date or in ticks of the log's clock. Models such as Pulse read how long ago an item was, so give
            the times if you have them. One of `users` and `histories` is given.
        log
            A newer log, which continues the one that the model was trained on, or a live one
            (`unskew.Live`); by default that one.
        k, include_seen, candidates, exclude, debias, at, diverse, rules, cold, explain, approximate
            The fields of `RecommendOptions`.

        Returns
        -------
        Recommendations
            A frame `user_id, item_id, score, rank, source` (and title, and because), one row per
            recommendation. After bare histories, the first column is `history`, the number of the history.

        Examples
        --------
        >>> model.recommend(users=["ann"], k=5, exclude=["milk"]).to_pandas()
        >>> model.recommend(histories=[["tea", "mate"]], debias=1.0)
        >>> model.recommend(histories=[[("tea", "2026-01-30"), ("mate", "2026-01-31T12:00")]])
        >>> model.recommend(users=["ann"], rules=("price < 50", "at most 2 per brand"))
        """
        if (users is None) == (histories is None):
            raise BadInput("expected users or histories, one of the two")
        options = RecommendOptions(
            k=k,
            include_seen=include_seen,
            candidates=candidates,
            exclude=exclude,
            debias=debias,
            at=at,
            diverse=diverse,
            rules=rules,
            cold=cold,
            explain=Explain(explain),
            approximate=approximate,
        )
        ranker = self._ranker_of(log)
        if users is not None:
            return ranker.for_users(users, options)
        assert histories is not None
        return ranker.for_histories(histories, options)

    def save_recommendations(
        self,
        file: str | os.PathLike[str],
        requests: str | os.PathLike[str] | None = None,
        *,
        log: LogView | None = None,
        show_progress: bool = True,
        **options: Unpack[RecommendKeywords],
    ) -> Saved:
        """Write lists to a file, block by block.

        Parameters
        ----------
        file
            Parquet, or CSV or JSON lines if its name ends with .csv or .jsonl.
        requests
            A file of users or histories (`unskew.recommendation.batch_requests`), a list for each of its
            rows; by default all users of the log.
        log
            As for `recommend`.
        show_progress
            Whether progress is shown on standard error.
        **options
            The fields of `RecommendOptions`, as for `recommend`.

        Returns
        -------
        Saved
            How many lists there are.
        """
        ranker, request = self._ranker_of(log), RecommendOptions(**options)
        if request.explain and Path(file).suffix == ".csv":
            raise BadInput(f"{file}: CSV cannot hold reasons; write Parquet or JSON lines", field="explain")
        lists = (
            ranker.for_all_users(request) if requests is None else lists_of(Path(requests), ranker, request)
        )
        saved = Saved()
        with shown(show_progress):
            save_frames(map(saved.count, lists), Path(file))
        return replace(saved, recall=ranker.recall(request))

    def save_recommendation_parts(
        self,
        folder: str | os.PathLike[str],
        *,
        shard: str = "0/1",
        log: LogView | None = None,
        show_progress: bool = True,
        **options: Unpack[RecommendKeywords],
    ) -> SavedParts:
        """Write the lists of all users as part files, of which other processes make others.

        A part that is there is not made again, so a call that was stopped is simply repeated
        (`unskew.recommendation.parts`).

        Parameters
        ----------
        folder
            Where the parts go, Parquet files of 20,000 users each.
        shard
            Which parts this process makes: `i/n` for shard i of n, from 0; `auto` for RANK and WORLD_SIZE of
            the environment, as torchrun sets them; `auto/n` for RANK or JOB_COMPLETION_INDEX of n.
        log
            As for `recommend`.
        show_progress
            Whether progress is shown on standard error.
        **options
            The fields of `RecommendOptions`, as for `recommend`.

        Returns
        -------
        SavedParts
            How many parts the shard has, and how many of them and of their lists were made now.
        """
        ranker, request, place = self._ranker_of(log), RecommendOptions(**options), parse_shard(shard)
        about = {"model": self.name, "weights": weights_digest(self.network), "now": ranker.log.now}
        about |= {"data": ranker.log.fingerprint() if isinstance(ranker.log, Log) else None}
        with shown(show_progress):
            return save_parts(ranker, request, Path(folder), place, about)

    def make_ranker(self, log: LogView) -> Ranker:
        """A ranker of this model for a log, with pulse-zero for users whom the model does not know."""
        cut = self.trained.split
        return Ranker(self.network, log, repeats=cut.repeats, fallback=PulseZero)

    def _ranker_of(self, log: LogView | None) -> Ranker:
        """The ranker of the model, which keeps its catalogue between calls."""
        self._make_ready(log)
        if log is not None:
            self._check_ids(log)
        log = self.known_log if log is None else log
        if self._ranker is None:
            self._ranker = self.make_ranker(self.known_log)
        self._ranker.follow(log)
        return self._ranker

    def chosen_by(self, criterion: Criterion) -> "Model":
        """Recommend with the weights that another validation metric chose, from now on.

        Parameters
        ----------
        criterion
            One of the validation metrics that `select_by` may name.

        Returns
        -------
        Model
            This model.
        """
        self.network.load_state_dict(self.trained.weights[self._criterion_of(criterion, criterion)])
        self._trained, self._ranker = replace(self.trained, select_by=criterion), None
        if self.trained.trainer is not None:
            self.trained.trainer.select_by = criterion
        return self

    # Propensities

    @property
    def propensity(self) -> Propensity:
        """The estimator of propensities in this model."""
        return estimator_of(self.network)

    def propensities(self, log: Log, rows: Ints | None = None) -> pa.Table:
        """Estimate the propensities of the rows of a log.

        Parameters
        ----------
        log
            The log that the model was trained on, or one that continues it.
        rows
            Some rows of it; by default all.

        Returns
        -------
        pyarrow.Table
            A row for each, with the caller's ids: both propensities, the weight, and the part of the run's
            split that it is in.
        """
        return pa.concat_tables(self._propensity_tables(log, rows))

    def save_propensities(self, log: Log, file: str | os.PathLike[str]) -> dict[Part, int]:
        """Write the table of `propensities` as a Parquet file, whole or not at all, block by block.

        Returns
        -------
        dict
            How many rows each part of the split has.
        """
        save_frames(self._propensity_tables(log), Path(file))
        counts = np.bincount(part_of(self._borders, log.time), minlength=len(PARTS)).tolist()
        return dict(zip(PARTS, counts, strict=True))

    @property
    def _borders(self) -> tuple[int, int]:
        return self.trained.split.train_end, self.trained.split.valid_end

    def _propensity_tables(self, log: Log, rows: Ints | None = None) -> Iterator[pa.Table]:
        estimator, network = self.propensity, self.network.eval()
        if self.trained.split.settings.kind != "time":
            raise BadInput("propensities name the set of each row by its time: train on a split by time")
        self._check_ids(log)
        # The estimator of a wrapper reads as far as its own settings say, whatever its backbone reads.
        past = network.correction.past if network.correction else (network.history, network.audience)
        return propensity_tables(estimator, log, self._borders, past, rows)

    # Storing

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the run of `fit` after the fact, with the same files as if it had had a folder.

        Parameters
        ----------
        folder
            A folder that is not there yet.
        """
        self.trained.save(Path(folder))

    def _check_ids(self, log: LogView) -> None:
        """Refuse a log that numbers its users and items differently."""
        check_is(log, (Log, Live), "a log, as `unskew.prepare` or `unskew.Log.open` gives it")
        own_log, cut = self.known_log, self.trained.split
        sides = (cut.known_users, own_log.users, log.users), (cut.known_items, own_log.items, log.items)
        for size, mine, theirs in sides:
            if not same_ids(mine.ids[:size], theirs.ids[:size]):
                raise BadInput(
                    "expected the log that the model was trained on, or one that continues it: this one "
                    "numbers its users and items differently",
                    field="log",
                )

    def _make_ready(self, given: Split | LogView | None) -> None:
        """Called with what is about to be ranked, for models that need no training."""


def _learned_until(log: Log, settings: Splitting, until: str) -> Splitting:
    """The settings of a split that is trained on everything before its test set."""
    if until != "test":
        settings = replace(settings, kind="time", at=until, borders=None)
    return without_validation(log, settings)
