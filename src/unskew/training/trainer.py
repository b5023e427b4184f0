"""The one training loop: stages of phases, early stopping on the validation set, checkpoints, exact
resumption.

Everything drawn is a function of (seed, step), so a checkpoint holds weights, moments and counters, and no
generator.
"""

import copy
import json
import math
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from unskew.core.errors import BadInput, UnskewError
from unskew.core.interrupts import Interrupts
from unskew.core.progress import progress
from unskew.core.ranks import ranks
from unskew.data.batches.batch import Batch, SequenceBatch, batch_of_rows
from unskew.data.batches.samplers import BatchSource, Sampler, Sampling, SequenceSampler
from unskew.data.log.arrays import true_positions
from unskew.data.log.held_out import (
    FROZEN,
    FROZEN_BALANCED,
    FROZEN_MOMENTS,
    Criterion,
    HeldOut,
    Targets,
    criteria_of,
    held_out,
)
from unskew.data.log.split import Split
from unskew.data.log.views import Ints
from unskew.evaluation.evaluate import Ranked, evaluation, rank_each
from unskew.models.base import Recommender, Training
from unskew.nn.device import device_of, on_device
from unskew.nn.layers import is_real, reseed
from unskew.nn.phases import Phase, Stage
from unskew.nn.vocabulary import RowAdam, clip_gradients, softmax_of
from unskew.training.epoch_record import EpochRecord, OnRecord

PROBE = 512  # training pairs on which every epoch reports the model's statistics
METRIC = "ndcg@10"  # of each validation metric, full ranking
# Of the criteria of frozen lists, which later positives of a user are the targets.
TARGETS: dict[str, Targets] = {FROZEN: "all", FROZEN_BALANCED: "next"}

State = dict[str, Tensor]


@dataclass
class Progress:
    """Where training is. Saved with every checkpoint; a resumed run starts exactly there."""

    stage: int = 0
    epoch: int = 0
    phase: int = 0
    passes_done: int = 0  # of the phase
    step: int = 0  # of all phases together; seeds everything that is drawn
    samplers: dict[str, dict[str, int]] = field(default_factory=dict)
    loss_sum: float = 0.0
    batches: int = 0
    losses: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)  # by each validation metric
    best_epoch: dict[str, int] = field(default_factory=dict)
    records: int = 0
    finished: bool = False


class Trainer:
    """Walks through a model's stages. `store` keeps records and checkpoints; without one, nothing is written.

    `on_record` is called with every record of the run. A resumed run first repeats the records from before it
    was stopped, because the last of them may not have arrived.

    `chosen` are settings that another run's validation set chose, by their names in the model's state; they
    are taken as they are.
    """

    def __init__(
        self,
        model: Recommender,
        split: Split,
        settings: Training,
        store: "Store | None" = None,
        on_record: OnRecord | None = None,
        chosen: Mapping[str, float] | None = None,
    ) -> None:
        self.model, self.split, self.settings = model, split, settings
        self.store, self.on_record = store, on_record
        self.stages = model.stages(settings.epochs)
        self.progress = Progress()
        self.best: dict[str, State] = {}  # weights by each validation metric
        phases = {phase.name: phase for stage in self.stages for phase in stage.phases}
        self.samplers = {
            name: self._sampler(phase, number) for number, (name, phase) in enumerate(phases.items())
        }
        self.optimizers = {name: self._optimizer(phase) for name, phase in phases.items()}
        self.valid = held_out(split, "valid", "ordinary", settings.valid_examples, settings.seed)
        tested = {name: held_out(split, "valid", name) for name in criteria_of(split)}
        # A version of which the ranked sample holds nothing cannot choose.
        ranked = self.valid.rows
        self.criteria = {
            name: test for name, test in tested.items() if not len(ranked) or test.weights_of(ranked).any()
        }
        if model.validates_frozen and split.settings.kind == "time":
            self.criteria |= frozen_lists(split, settings)
        self.select_by = chosen_criterion(model, settings.select_by, tuple(self.criteria))
        self.probe = self._probe()
        self.chosen = chosen or {}
        if not len(self.valid.rows) and not self.chosen and model.options(split):
            raise BadInput(
                f"{model.name} chooses a setting on the validation set, and this split has none: give it a "
                "validation fraction, name the setting, or take it from a run (--refit RUN)"
            )
        self.curve: list[dict[str, float]] = []  # the metrics at each debiasing strength, last validated
        self.records: list[EpochRecord] = []
        self.interrupts = Interrupts()

    def _sampler(self, phase: Phase, number: int) -> BatchSource:
        settings, model = self.settings, self.model
        seed = settings.seed * 1000 + number
        if callable(phase.batches):
            return phase.batches(self.split, seed, settings.batch_size)
        history, audience = phase.past or (model.history, model.audience)
        if phase.batches == "sequences":
            return SequenceSampler(self.split, settings.sequences, seed, history, audience)
        if phase.batches == "histories":
            return SequenceSampler(
                self.split,
                settings.sequences,
                seed,
                model.window,
                audience=None,
                overlap=1,
                types=model.context_types,
            )
        negatives = (
            phase.negatives if settings.negatives is None or phase.negatives == 0 else settings.negatives
        )
        if phase.negatives and not negatives:
            raise BadInput(
                f"negatives {negatives}: {model.name} compares each positive with others; expected at least 1"
            )
        sampling = Sampling(
            batch_size=settings.batch_size,
            negatives=negatives,
            history=history,
            audience=audience,
            positives_only=phase.batches in ("positives", "positive-prefixes"),
            shared=phase.batches in ("prefixes", "positive-prefixes"),
            seed=seed,
        )
        return Sampler(self.split, sampling, drawing=phase.drawing)

    def _probe(self) -> Batch:
        """A fixed sample of training pairs, on which every epoch reports the model's statistics."""
        split = self.split
        wanted = split.targets("train", reads_audiences=self.model.audience != 0)
        count, random = int(np.count_nonzero(wanted)), np.random.default_rng([self.settings.seed, 19])
        rows = np.sort(true_positions(wanted, random.choice(count, min(PROBE, count), replace=False)))
        return batch_of_rows(split.log, rows, self.model.history, self.model.audience)

    def _optimizer(self, phase: Phase) -> torch.optim.Optimizer:
        return phase.optimizer(
            list(phase.parameters()), self.settings.learning_rate, self.settings.weight_decay
        )

    def run(self) -> None:
        """Train to the end, from wherever it stopped. The model ends with its best weights.

        Ctrl-C ends the training step that is under way, saves, and then stops; a second one stops at once.
        """
        self._choose()
        if self.store is not None:
            self.store.restore(self)
        if ranks().size > 1:
            self.load(*ranks().share(self.state))
        if self.store is not None:
            self._reopen()
        if not self.records and not self.progress.step and self.stages and len(self.valid.rows):
            self._validate_starting_points()
        self.tell(self.records)
        with self.interrupts.deferred():
            try:
                self._run()
            except KeyboardInterrupt:
                if not self.interrupts.in_step:
                    self._save()
                raise

    def _validate_starting_points(self) -> None:
        """Validate what the model may be without any training: epoch 0."""
        states = self.model.starting_points()
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        for state in states:
            self.model.load_state_dict(state, strict=False)
            valid = self._validate()
            self._keep_best(valid, 0)
            self.records.append(self._record("before training", 0, valid))
        self.model.load_state_dict(before)
        self.progress.records = len(self.records)

    def _reopen(self) -> None:
        """A run that had finished its last stage continues it, if it may now have more epochs."""
        at = self.progress
        if at.stage < len(self.stages) or not self.stages:
            return
        stage = self.stages[-1]
        done = sum(record.stage == stage.name for record in self.records)
        if done < stage.epochs:
            at.stage, at.epoch, at.finished = len(self.stages) - 1, done, False

    def _run(self) -> None:
        at = self.progress
        while at.stage < len(self.stages) and not at.finished:
            stage = self.stages[at.stage]
            while at.epoch < stage.epochs and not self._stopped(stage):
                self._round(stage)
            at.stage, at.epoch = at.stage + 1, 0
            self._save()
        if self.select_by in self.best:
            self.model.load_state_dict(self.best[self.select_by])
        at.finished = True
        self.model.eval()

    @property
    def weights(self) -> dict[str, State]:
        """The weights that each validation metric chose; where nothing was chosen, the newest."""
        return self.best or {self.select_by: self.model.state_dict()}

    def _stopped(self, stage: Stage) -> bool:
        """Asked before an epoch and not after it: a run killed in between must not go on for one more."""
        at = self.progress  # `at.epoch` epochs are done; the best one is counted from 1
        return (
            stage.validated
            and at.epoch > 0
            and at.epoch - max(at.best_epoch.values(), default=0) >= self.settings.patience
        )

    def _choose(self) -> None:
        """Choose among the model's options, which no gradient can, by each validation metric."""
        if self.chosen:
            state = self.model.state_dict()
            given = {
                name: torch.tensor(value, dtype=state[name].dtype) for name, value in self.chosen.items()
            }
            self.model.load_state_dict(given, strict=False)
        if self.chosen or not len(self.valid.rows):
            return
        for option in self.model.options(self.split):
            self.model.load_state_dict(option, strict=False)
            self._keep_best(self._validate(), 0)
        if self.best:
            self.model.load_state_dict(self.best[self.select_by])
            if self.stages:  # then epochs decide, from here on
                self.best, self.progress.best, self.progress.best_epoch = {}, {}, {}

    def _keep_best(self, valid: dict[str, dict[str, float]], number: int) -> None:
        at = self.progress
        for criterion, metrics in valid.items():
            if metrics[METRIC] > at.best.get(criterion, -math.inf):
                at.best[criterion], at.best_epoch[criterion] = metrics[METRIC], number
                if "debias" in metrics:
                    self.model.set_debias(metrics["debias"])
                self.best[criterion] = {
                    name: value.detach().clone() for name, value in self.model.state_dict().items()
                }

    def _round(self, stage: Stage) -> None:
        at = self.progress
        started, rows = time.perf_counter(), 0
        while at.phase < len(stage.phases):
            phase = stage.phases[at.phase]
            while at.passes_done < phase.passes:
                rows += self._epoch(stage, phase)
                at.losses[phase.name] = at.loss_sum / max(at.batches, 1)
                at.loss_sum, at.batches, at.passes_done = 0.0, 0, at.passes_done + 1
            at.phase, at.passes_done = at.phase + 1, 0
        seconds = max(time.perf_counter() - started, 1e-9)
        number, valid = at.epoch + 1, dict[str, dict[str, float]]()
        if stage.validated and len(self.valid.rows):
            valid = self._validate()
            self._keep_best(valid, number)
        elif stage.validated:
            at.best_epoch = {self.select_by: number}  # nothing to stop early by
        record = self._record(stage.name, number, valid, round(rows / seconds, 1))
        self.records.append(record)
        at.losses, at.epoch, at.phase, at.records = {}, number, 0, len(self.records)
        self._save(record)
        self.tell([record])

    def _record(
        self, stage: str, epoch: int, valid: dict[str, dict[str, float]], rows_per_s: float = 0.0
    ) -> EpochRecord:
        return EpochRecord(
            stage=stage,
            epoch=epoch,
            losses=dict(self.progress.losses),
            step=self.progress.step,
            valid=valid,
            strengths=self.curve if valid else [],
            statistics=self.model.eval().statistics(on_device(self.probe, device_of(self.model))),
            rows_per_s=rows_per_s,
            peak_gb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 3),
        )

    def tell(self, records: list[EpochRecord]) -> None:
        """Call `on_record` with some records, each as a copy."""
        if self.on_record is not None:
            for record in records:
                self.on_record(copy.deepcopy(record))  # whatever is done to it there, the run keeps its own

    def _epoch(self, stage: Stage, phase: Phase) -> int:
        at, sampler, optimizer = self.progress, self.samplers[phase.name], self.optimizers[phase.name]
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        rows = 0
        self.model.train()
        valid = f", valid {METRIC} {at.best[self.select_by]:.4f}" if self.select_by in at.best else ""
        with progress(f"{stage.name} {at.epoch + 1}, {phase.name}", len(sampler)) as job:
            job.advance(sampler.step)
            for batch in sampler.epoch():
                with self.interrupts.step():
                    reseed(self.settings.seed, at.step, *([ranks().rank] if ranks().size > 1 else []))
                    optimizer.zero_grad(set_to_none=True)
                    with softmax_of(self.settings.softmax, isinstance(optimizer, RowAdam)):
                        loss = phase.loss(on_device(batch, device_of(self.model)))
                        loss.backward()
                    value = ranks().average(loss, parameters)
                    if not math.isfinite(value):
                        raise UnskewError(
                            f"the loss of phase {phase.name} is {value} at step {at.step}: "
                            "try a smaller learning rate"
                        )
                    clip_gradients(parameters, self.settings.gradient_norm)
                    optimizer.step()
                    at.loss_sum, at.batches = at.loss_sum + value, at.batches + 1
                    at.step, rows = at.step + 1, rows + rows_in(batch)
                    at.samplers[phase.name] = sampler.state_dict()
                job.advance(note=f"loss {at.loss_sum / at.batches:.4f}{valid}")
                if self.store is not None:
                    self.store.maybe_checkpoint(self)
        at.samplers[phase.name] = sampler.state_dict()
        return rows

    def _validate(self) -> dict[str, dict[str, float]]:
        """Metrics by each validation metric: one ranking serves all of them. For a model with
        several strengths, they are those at the best one, and `debias` says which that is; what each of them
        gives is in `curve`."""
        model = self.model.eval()
        strengths: Sequence[float | None] = model.strengths or (None,)
        best: dict[str, dict[str, float]] = {}
        self.curve = [{"debias": debias} for debias in model.strengths]
        live = self._rank(self.valid.rows, strengths, frozen=False)
        frozen = (
            self._rank(self.criteria[FROZEN].rows, strengths, frozen=True)
            if FROZEN in self.criteria
            else live
        )
        for place, (name, tested) in product(range(len(strengths)), self.criteria.items()):
            debias, targets = strengths[place], TARGETS.get(name)
            ranking = (live if targets is None else frozen)[place]
            exact = evaluation(self.split, ranking, "full", tested, segmented=False, frozen=targets).metrics()
            metrics = {metric: round(value, 6) for metric, value in exact.items()}
            if debias is not None:
                self.curve[strengths.index(debias)][name] = metrics[METRIC]
            if metrics[METRIC] > best.get(name, {}).get(METRIC, -math.inf):  # which nan is not
                best[name] = metrics | ({} if debias is None else {"debias": debias})
        return best

    def _rank(self, rows: Ints, strengths: Sequence[float | None], frozen: bool) -> list[Ranked]:
        """The ranks of some rows of the validation set at each strength."""
        model, split, seed = self.model, self.split, self.settings.seed
        # Ranks are enough, so no lists are kept.
        how: dict[str, Any] = {"longest": 0, "part": "valid", "moments": FROZEN_MOMENTS}
        return rank_each(model, split, rows, strengths, seed, frozen=frozen, **how)

    def _save(self, record: EpochRecord | None = None) -> None:
        if self.store is not None:
            self.store.save(self, record)

    # What a checkpoint holds

    def state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What a checkpoint holds: tensors, and texts by their names."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for criterion, state in self.best.items():
            tensors |= {f"best/{criterion}/{name}": value for name, value in state.items()}
        for name, optimizer in self.optimizers.items():
            for number, moments in optimizer.state_dict()["state"].items():
                tensors |= {f"moments/{name}/{number}/{kind}": value for kind, value in moments.items()}
        records = json.dumps([record.to_json() for record in self.records])
        return tensors, {"progress": json.dumps(asdict(self.progress)), "records": records}

    def load(self, tensors: dict[str, Tensor], words: dict[str, str]) -> None:
        """Go on from a checkpoint."""
        self.progress = Progress(**json.loads(words["progress"]))
        self.records = [EpochRecord.from_json(record) for record in json.loads(words["records"])]
        self.model.load_state_dict(below("model", tensors))
        self.best = {criterion: below(f"best/{criterion}", tensors) for criterion in self.progress.best}
        for name, optimizer in self.optimizers.items():
            moments: dict[int, dict[str, Tensor]] = {}
            for path, value in below(f"moments/{name}", tensors).items():
                number, kind = path.split("/")
                moments.setdefault(int(number), {})[kind] = value
            optimizer.load_state_dict(
                {"state": moments, "param_groups": optimizer.state_dict()["param_groups"]}
            )
        for name, state in self.progress.samplers.items():
            self.samplers[name].load_state_dict(state)


def frozen_lists(split: Split, settings: Training) -> dict[Criterion, HeldOut]:
    """The criteria of frozen lists, if there are any in the validation set. The targets of the balanced one
    are some of those of the other, so one ranking serves both."""
    sample, seed = settings.valid_examples, settings.seed
    tests: dict[Criterion, str] = {FROZEN: "ordinary", FROZEN_BALANCED: "balanced"}
    lists = {
        name: held_out(split, "valid", test, sample, seed, frozen=TARGETS[name], moments=FROZEN_MOMENTS)
        for name, test in tests.items()
    }
    return lists if len(lists[FROZEN].rows) else {}


def chosen_criterion(model: Recommender, select_by: str, available: tuple[Criterion, ...]) -> Criterion:
    """The validation metric that chooses the weights which recommend."""
    criterion = model.select_by if select_by == "auto" else select_by
    if criterion not in available:
        listed = ", ".join(available)
        raise BadInput(
            f"select_by {criterion}: this log's validation set has only {listed}", field="select_by"
        )
    return criterion


@runtime_checkable
class HasRows(Protocol):
    """A batch of a model's own that says how many rows it has."""

    @property
    def rows(self) -> int:
        """The number of positives and negatives."""


def rows_in(batch: Any) -> int:
    """What the rate of an epoch counts: positives and negatives, targets of sequences, or batches that do not
    say how many rows they have."""
    if isinstance(batch, Batch):
        return batch.candidates_BC.numel()
    if isinstance(batch, SequenceBatch):
        return int(batch.target_BL.sum() + is_real(batch.users_BM).sum())
    return batch.rows if isinstance(batch, HasRows) else 1


def below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of a checkpoint under one name."""
    return {
        path.removeprefix(f"{prefix}/"): value
        for path, value in tensors.items()
        if path.startswith(f"{prefix}/")
    }


class Store:
    """What a trainer needs of a run's folder; `run.RunFolder` is the real one."""

    def restore(self, trainer: Trainer) -> None:
        """Bring a trainer to where the last checkpoint was."""

    def maybe_checkpoint(self, trainer: Trainer) -> None:
        """Save if the last time is long enough ago."""

    def save(self, trainer: Trainer, record: EpochRecord | None) -> None:
        """Write a checkpoint; `record` is that of the epoch that has just ended, if one has."""
