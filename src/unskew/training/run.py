"""A run is a directory: what was asked for, what was learned, and all that is needed to recommend from it. No
pickle anywhere.

config.json             model, its settings, training, split, and where the data was
weights-*.safetensors   the best weights by each validation metric, by the name of the version
users.parquet items.parquet memory.safetensors
                        the caller's ids, each user's items and each item's users. A run of a large log
                        has no events and no ids: they are in the prepared folder (`events_in`)
records.jsonl           a line per epoch: losses, validation metrics, rate, memory
card.json               data, its hash, split, protocol, versions, seed, results; only once it is finished
checkpoint.safetensors  where training is. Without it a finished run works, but no epochs can be added
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from unskew.core.atomic_files import beside, check_free
from unskew.core.config import Document, check, parse_json
from unskew.core.damage import reading
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.core.imports import MissingImport
from unskew.core.ranks import LAUNCHER, ranks
from unskew.core.storage import check_on_disk
from unskew.data.batches.samplers import ReadsShards
from unskew.data.log.erasures import IN_RUN, erased_rows, read_erasures
from unskew.data.log.held_out import Criterion
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.models.base import Recommender, Training, build, model_named
from unskew.nn.device import to_current_device
from unskew.training.epoch_record import EpochRecord, OnRecord
from unskew.training.run_card import RunCard, SplitSummary
from unskew.training.run_config import FORMAT, RunConfig, RunSettings
from unskew.training.run_log import load_memory, save_memory
from unskew.training.trainer import METRIC, State, Store, Trainer, below

LOCK = ".lock"
SHARDS = "shards"  # what ranks have read of the log, until the run is finished
CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_EVERY = 20.0  # seconds; what a kill can cost
EXTENDABLE = ("epochs", "patience")  # settings of training that a run may go on with


def check_new_run(folder: Path) -> None:
    """Refuse a folder for a new run that holds a run already, or anything else. Ranks that torchrun has
    restarted go on with the run that they began."""
    if ranks().began(folder):
        return
    if (folder / "config.json").is_file():
        raise BadInput(
            f"{folder}: a run is there already; go on with it (train --resume {folder}), or choose "
            "another folder"
        )
    if folder.exists() and (
        not folder.is_dir() or any(path.name not in (LOCK, LAUNCHER) for path in folder.iterdir())
    ):
        raise BadInput(f"{folder}: exists and is not a run; nothing was written")


class RunFolder(Store):
    """Where a trainer writes. Every file appears whole: written beside its place, then renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = time.monotonic()
        self.every = CHECKPOINT_EVERY
        self.make_card: Callable[[Trainer], RunCard]

    @classmethod
    def begin(cls, folder: Path, config: RunConfig, resume: bool) -> "RunFolder":
        """A new run, or the same one again. A folder with anything else in it is never overwritten."""
        store = cls(folder)
        store.make_card = partial(RunCard.of, config=config)
        if resume and (folder / "config.json").is_file():
            _check_same(folder, read_config(folder), config)
            more = store.has_card and not store.is_finished(config.training)
            if more and not (folder / CHECKPOINT).is_file():
                raise BadInput(f"{folder}: has no checkpoint, so no epochs can be added to this run")
            store.lock()
            store._write_json("config.json", config.to_json())
            return store
        check_new_run(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            store.lock()
            ranks().mark(folder)
            store._write_json("config.json", config.to_json())
        except OSError as error:
            raise BadInput(f"{folder}: cannot write there ({error.strerror})") from None
        return store

    def lock(self) -> None:
        """One process at a time trains in a folder. The system releases the lock when the process ends,
        however it ends."""
        path = (self.folder / LOCK).resolve()
        if path in _locked:
            return
        refusal = BadInput(f"{self.folder}: another process is training in this folder right now")
        _locked[path] = lock_file(path, refusal)

    def unlock(self) -> None:
        """Let another process train here."""
        path = (self.folder / LOCK).resolve()
        if path in _locked:
            path.unlink(missing_ok=True)
            os.close(_locked.pop(path))

    def is_finished(self, training: Training) -> bool:
        """Whether it was trained to the end with these settings of training."""
        return self.has_card and read_card(self.folder).training == training

    @property
    def has_card(self) -> bool:
        """Whether it was ever trained to the end."""
        return (self.folder / "card.json").is_file()

    # What a trainer asks for

    def restore(self, trainer: Trainer) -> None:
        """Bring a trainer to where the last checkpoint was; a new run has none."""
        path = self.folder / CHECKPOINT
        if path.is_file():
            trainer.load(*read_checkpoint(path))
        self._records(trainer)

    def maybe_checkpoint(self, trainer: Trainer) -> None:
        """Save if the last time is long enough ago."""
        if time.monotonic() - self._last >= self.every:
            self.save(trainer, None)

    def save(self, trainer: Trainer, record: EpochRecord | None) -> None:
        """Write a checkpoint, and the records if there is a new one."""
        if record is not None:
            self._records(trainer)
        tensors, words = trainer.state()
        words["card"] = json.dumps(self.make_card(trainer).to_json())
        self.replace(CHECKPOINT, lambda path: save_file(_contiguous(tensors), path, words))
        self._last = time.monotonic()

    def remember(self, split: Split) -> None:
        """Write what recommending needs of the log."""
        save_memory(self.replace, split, read_config(self.folder).events_in == "run")

    # The end

    def finish(self, trainer: Trainer) -> None:
        """Weights first and the card last: a run with a card is whole."""
        self.save(trainer, None)
        for criterion, state in trainer.weights.items():
            self.replace(f"weights-{criterion}.safetensors", partial(save_file, _contiguous(state)))
        self._records(trainer)
        self._write_json("card.json", self.make_card(trainer).to_json())
        shutil.rmtree(self.folder / SHARDS, ignore_errors=True)
        (self.folder / LAUNCHER).unlink(missing_ok=True)
        self.unlock()

    def choose(self, criterion: Criterion) -> None:
        """From now on the run recommends with the weights that this validation metric chose."""
        self._write_json("card.json", replace(read_card(self.folder), select_by=criterion).to_json())

    def _records(self, trainer: Trainer) -> None:
        lines = "".join(json.dumps(record.to_json()) + "\n" for record in trainer.records)
        self.replace("records.jsonl", lambda path: path.write_text(lines, encoding="utf-8"))

    def _write_json(self, name: str, document: Document) -> None:
        text = json.dumps(document, indent=1) + "\n"
        self.replace(name, lambda path: path.write_text(text, encoding="utf-8"))

    def replace(self, name: str, write: Callable[[Path], Any]) -> None:
        """Write a file beside its place and move it there, with the permissions of any new file."""
        try:
            with beside(self.folder / name) as path:
                write(path)
                with path.open("rb") as file:
                    os.fsync(file.fileno())
                path.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
        except (OSError, SafetensorError) as error:
            reason = getattr(error, "strerror", None) or error
            kept = "the last checkpoint stays" if (self.folder / CHECKPOINT).is_file() else "nothing is lost"
            raise UnskewError(f"{self.folder / name}: writing failed ({reason}); {kept}") from error


_locked: dict[Path, int] = {}  # open files of this process, which may go on with its own runs


def _umask() -> int:
    """The process's own: what new files are not allowed."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _check_same(folder: Path, before: RunConfig, now: RunConfig) -> None:
    """Refuse to go on with a run on other data or with other settings; it may only have more epochs."""
    if before.hash != now.hash:
        where = before.data or "from Python"
        raise BadInput(f"{folder}: this run was begun on other data ({where}); train a new one on these")
    for name, old, new in differences(before.to_json(), now.to_json(), but=("data", "hash", "imports")):
        if name not in {f"training {setting}" for setting in EXTENDABLE}:
            raise BadInput(f"{folder}: this run was begun with {name} {old}, not {new}")


def differences(
    before: Any, now: Any, but: tuple[str, ...] = (), above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Where two documents differ: the name of each entry, what it was, and what it is now."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        old, new = (list(value) if isinstance(value, tuple) else value for value in (old, new))
        if name in but or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, (), name)
        else:
            yield f"{above} {name}".strip().replace("config ", ""), old, new


def train(
    split: Split,
    settings: RunSettings,
    folder: Path | None = None,
    resume: bool = False,
    on_record: OnRecord | None = None,
) -> Trainer:
    """Train a registered model, from the start or from where a stopped run is."""
    if folder is not None:
        check_on_disk(folder)
    kind = model_named(settings.model)
    check(settings.config)
    check(settings.training)
    settings = replace(settings, config=kind.resolve_auto(settings.config, split))
    if ranks().size > 1 and not kind.splits_batches:
        raise BadInput(
            f"{kind.name} compares the rows of a whole batch with each other: train it in one process"
        )
    resume = resume or (folder is not None and ranks().began(folder))
    if resume and folder is not None and (folder / "config.json").is_file():
        settings = replace(settings, events_in=read_config(folder).events_in)
    torch.manual_seed(settings.training.seed)
    network = build(kind, split, settings.config)
    to_current_device(network)
    # Made before the folder: what the trainer refuses leaves no folder behind.
    tell = on_record if ranks().is_first else None
    trainer = Trainer(network, split, settings.training, on_record=tell, chosen=settings.chosen)
    if folder is None:
        trainer.run()
        return trainer
    last = trainer.stages[-1].name if trainer.stages else ""
    done = sum(record.stage == last for record in read_records(folder)) if resume else 0
    if settings.training.epochs < done:
        raise BadInput(f"epochs {settings.training.epochs}: this run has {done} already; expected more")
    _train_in(folder, trainer, RunConfig.of(settings, split), resume)
    return trainer


def _train_in(folder: Path, trainer: Trainer, config: RunConfig, resume: bool) -> None:
    """Train in a folder, which rank 0 alone locks and writes; all ranks write what they read of the log."""
    together = ranks()
    store = together.first(lambda: RunFolder.begin(folder, config, resume))
    try:
        if together.same(store is not None and store.is_finished(config.training)):
            together.first(lambda: _restore_finished(trainer, folder))
            return
        trainer.store = Store() if store is None else store
        together.first(lambda: None if store is None else store.remember(trainer.split))
        for sampler in trainer.samplers.values() if together.launched else ():
            if isinstance(sampler, ReadsShards):
                sampler.read_shards(folder / SHARDS)
        trainer.run()
        together.first(lambda: None if store is None else store.finish(trainer))
    finally:
        if store is not None:
            store.unlock()


def _restore_finished(trainer: Trainer, folder: Path) -> None:
    """Bring a trainer to where it was when its run was finished."""
    card = read_card(folder)
    with reading(_damaged(folder)):
        trainer.best = {name: load_file(folder / f"weights-{name}.safetensors") for name in card.weights}
    trainer.select_by = card.select_by
    trainer.model.load_state_dict(trainer.best[trainer.select_by])
    trainer.model.eval()
    trainer.progress.best = {name: best[METRIC] for name, best in card.best.items()}
    trainer.progress.best_epoch = {name: int(best["epoch"]) for name, best in card.best.items()}
    trainer.records = read_records(folder)
    trainer.tell(trainer.records)


def read_card(folder: Path) -> RunCard:
    """The card of a run; of one that is not finished, the card in its checkpoint."""
    with reading(_damaged(folder)):
        if (folder / "card.json").is_file():
            document = parse_json((folder / "card.json").read_text(encoding="utf-8"))
        else:
            document = parse_json(read_checkpoint(folder / CHECKPOINT)[1]["card"])
        return RunCard.from_json(document)


def read_config(folder: Path) -> RunConfig:
    """What a run was asked for."""
    if not folder.exists():
        raise BadInput(f"{folder}: no such folder; `unskew train DATA --out RUN` makes a run")
    if (folder / "data.json").is_file():
        raise BadInput(f"{folder}: this is prepared data and not a run; `unskew train {folder} --out RUN`")
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder}: not a run (no config.json); `unskew train` makes one")
    with reading(_damaged(folder)):
        document = parse_json((folder / "config.json").read_text(encoding="utf-8"))
    if not isinstance(document, dict) or "format" not in document:
        raise BadInput(f"{folder}: the run is damaged (config.json is not the description of a run)")
    if document["format"] != FORMAT:
        raise BadInput(
            f"{folder}: a run of format {document['format']}; this version reads {FORMAT}. Train it again"
        )
    try:
        with reading(_damaged(folder)):
            return RunConfig.from_json(document)
    except MissingImport as error:
        raise MissingImport(f"{folder}: {error}") from None


def read_records(folder: Path) -> list[EpochRecord]:
    """The records of all epochs so far."""
    if not (folder / "records.jsonl").is_file():
        return []
    with reading(f"{_damaged(folder)} in records.jsonl"):
        lines = (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
        return [EpochRecord.from_json(parse_json(line)) for line in lines]


def _damaged(folder: Path) -> str:
    return f"{folder}: the run is damaged"


@dataclass(frozen=True, eq=False, kw_only=True)
class Trained:
    """What training made, whether it was made by a trainer or read from the folder of a run.

    network: with the weights that recommend.
    log: what it recommends from: the log that it was trained on, or what a stored run remembers of it.
    weights, select_by: the weights by the validation metric that chose them, and which of them recommend.
    """

    settings: RunSettings
    network: Recommender
    log: Log
    split: SplitSummary
    weights: Mapping[str, State]
    select_by: Criterion
    records: tuple[EpochRecord, ...]
    trainer: Trainer | None = None
    folder: Path | None = None

    @classmethod
    def of(cls, trainer: Trainer, settings: RunSettings) -> "Trained":
        """What a trainer made."""
        return cls(
            settings=settings,
            network=trainer.model,
            log=trainer.split.log,
            split=SplitSummary.of(trainer.split),
            weights=trainer.weights,
            select_by=trainer.select_by,
            records=tuple(trainer.records),
            trainer=trainer,
        )

    @cached_property
    def data_hash(self) -> str:
        """The fingerprint of the log that it was trained on."""
        return self.settings.hash if isinstance(self.settings, RunConfig) else self.log.fingerprint()

    def save(self, target: Path) -> None:
        """Write a run with the same files as if it had had a folder from the start."""
        check_free(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            if self.trainer is None:
                assert self.folder is not None
                shutil.copytree(self.folder, scratch / "run")
                RunFolder(scratch / "run").choose(self.select_by)
            else:
                config = RunConfig.of(self.settings, self.trainer.split)
                store = RunFolder.begin(scratch / "run", config, resume=False)
                store.remember(self.trainer.split)
                store.finish(self.trainer)
            (scratch / "run").rename(target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def load(folder: str | os.PathLike[str]) -> Trained:
    """Read a run. Its network has the weights that recommend: of a run that is not finished, the best so
    far."""
    path = Path(folder)
    config = read_config(path)
    if not (path / "card.json").is_file() and not (path / CHECKPOINT).is_file():
        raise BadInput(f"{path}: this run has not finished an epoch yet; go on with train --resume {path}")
    card = read_card(path)
    with reading(_damaged(path)):
        if (path / "card.json").is_file():
            weights = {name: load_file(path / f"weights-{name}.safetensors") for name in card.weights}
        else:
            weights = best_of(read_checkpoint(path / CHECKPOINT)[0], card)
        events = _events_of(path, config) if config.events_in == "folder" else None
        log, known = load_memory(path, config.known, events)
    if not weights:
        raise BadInput(f"{path}: this run has not finished an epoch yet; go on with train --resume {path}")
    with reading(f"{_damaged(path)}, its parts do not fit"):
        network = model_named(config.model)(known, config.config)
        network.load_state_dict(weights[card.select_by])
    to_current_device(network)
    return Trained(
        settings=config,
        network=network.eval(),
        log=log,
        split=card.split,
        weights=weights,
        select_by=card.select_by,
        records=tuple(read_records(path)),
        folder=path,
    )


def _events_of(folder: Path, config: RunConfig) -> Log:
    """The log of a run that has no events of its own."""
    log, erasures = config.open_events(folder), read_erasures(folder / IN_RUN)
    user, _, time = log.everything() if len(erasures) else (log.user, log.item, log.time)
    if erased_rows(log.users.ids, user, time, log.clock, erasures).any():
        raise BadInput(
            f"{config.data}: holds rows of users who were erased from the run {folder}; `unskew erase --data "
            f"{config.data} --run {folder}` removes them"
        )
    return log


def best_of(tensors: State, card: RunCard) -> dict[str, State]:
    """The best weights so far in a checkpoint, by each validation metric that chose some."""
    states = {name: below(f"best/{name}", tensors) for name in card.best}
    return {name: state for name, state in states.items() if state}


def read_checkpoint(path: Path) -> tuple[State, dict[str, str]]:
    """What `Trainer.state` gave when it was written: tensors, and texts by their names."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def _contiguous(tensors: State) -> State:
    return {name: value.detach().contiguous() for name, value in tensors.items()}
