"""A run is a directory: what was asked for, what was learned, and all that is needed to recommend from it. No
pickle anywhere.

config.json             model, its settings, training, split, and where the data was
weights-*.safetensors   the best weights by each validation metric, by the name of the version
users.parquet items.parquet memory.safetensors
                        the caller's ids, each user's items and each item's newest users
records.jsonl           a line per epoch: losses, validation metrics, rate, memory
card.json               data, its hash, split, protocol, versions, seed, results; only once it is finished
checkpoint.safetensors  where training is. Without it a finished run works, but no epochs can be added
"""

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from unskew.core.atomic_files import beside
from unskew.core.config import check, rebuilt
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import lock_file
from unskew.data.log.log import Log
from unskew.data.log.split import Split
from unskew.models.base import Recommender, Training, build, model_named
from unskew.training.run_card import State, card_of, weights_of
from unskew.training.run_log import described, load_memory, save_memory
from unskew.training.trainer import METRIC, OnRecord, Store, Trainer, below

FORMAT = 4
LOCK = ".lock"
CHECKPOINT = "checkpoint.safetensors"
CHECKPOINT_EVERY = 20.0  # seconds; what a kill can cost
EXTENDABLE = ("epochs", "patience")  # settings of training that a run may go on with


class RunFolder(Store):
    """Where a trainer writes. Every file appears whole: written beside its place, then renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = time.monotonic()
        self.every = CHECKPOINT_EVERY
        self.card: Callable[[Trainer], dict[str, Any]] = lambda trainer: {}  # what the run says of itself

    @classmethod
    def begin(cls, folder: Path, config: dict[str, Any], resume: bool) -> "RunFolder":
        """A new run, or the same one again. Nobody's folder is overwritten."""
        made, config = cls(folder), {"format": FORMAT, **config}
        if (folder / "config.json").is_file():
            if not resume:
                raise BadInput(
                    f"{folder}: a run is there already; go on with it (train --resume {folder}), or choose "
                    "another folder"
                )
            _check_same(folder, json.loads((folder / "config.json").read_text(encoding="utf-8")), config)
            more = made.has_card and not made.finished(config["training"])
            if more and not (folder / CHECKPOINT).is_file():
                raise BadInput(f"{folder}: has no checkpoint, so no epochs can be added to this run")
            made.lock()
            made._write_json("config.json", config)
            return made
        if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
            raise BadInput(f"{folder}: exists and is not a run; nothing was written")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made.lock()
            made._write_json("config.json", config)
        except OSError as error:
            raise BadInput(f"{folder}: cannot write there ({error.strerror})") from None
        return made

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

    def finished(self, training: dict[str, Any]) -> bool:
        """Whether it was trained to the end with these settings of training."""
        return self.has_card and read_card(self.folder)["training"] == training

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

    def save(self, trainer: Trainer, record: dict[str, Any] | None) -> None:
        """Write a checkpoint, and the records if there is a new one."""
        if record is not None:
            self._records(trainer)
        tensors, words = trainer.state()
        words["card"] = json.dumps(self.card(trainer), default=str)
        self.replace(CHECKPOINT, lambda path: save_file(_contiguous(tensors), path, words))
        self._last = time.monotonic()

    def remember(self, split: Split) -> None:
        """Write what recommending needs of the log."""
        save_memory(self.replace, split)

    # The end

    def finish(self, trainer: Trainer) -> None:
        """Weights first and the card last: a run with a card is whole."""
        self.save(trainer, None)
        for criterion, state in weights_of(trainer).items():
            self.replace(f"weights-{criterion}.safetensors", partial(save_file, _contiguous(state)))
        self._records(trainer)
        self._write_json("card.json", self.card(trainer))
        self.unlock()

    def choose(self, criterion: str) -> None:
        """From now on the run recommends with the weights that this validation metric chose."""
        self._write_json("card.json", read_card(self.folder) | {"select_by": criterion})

    def _records(self, trainer: Trainer) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in trainer.records)
        self.replace("records.jsonl", lambda path: path.write_text(lines, encoding="utf-8"))

    def _write_json(self, name: str, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent=1, default=str) + "\n"
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


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse to go on with a run on other data or with other settings; it may only have more epochs."""
    if before.get("format") != FORMAT:
        raise BadInput(f"{folder}: a run of format {before.get('format')}; this version reads {FORMAT}")
    if before.get("hash") != now["hash"]:
        where = before.get("data") or "from Python"
        raise BadInput(f"{folder}: this run was begun on other data ({where}); train a new one on these")
    for name, old, new in differences(before, now, but=("data", "hash")):
        if name not in {f"training {setting}" for setting in EXTENDABLE}:
            raise BadInput(f"{folder}: this run was begun with {name} {old}, not {new}")


def differences(
    before: Any, now: Any, but: tuple[str, ...] = (), above: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Where two documents differ: the name of each entry, what it was, and what it is now."""
    for name in dict.fromkeys([*before, *now]):
        old, new = before.get(name), now.get(name)
        new = list(new) if isinstance(new, tuple) else new
        if name in but or old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, (), name)
        else:
            yield f"{above} {name}".strip().replace("config ", ""), old, new


class Asked(NamedTuple):
    """What a training run is asked for. `data` is where the prepared log is, if that is known; `chosen` are
    settings that another run's validation set chose."""

    model: str
    config: Any
    training: Training
    data: str = ""
    chosen: dict[str, float] | None = None

    def document(self, split: Split) -> dict[str, Any]:
        """The same as plain numbers and words, with what the run must know of its split."""
        asked: dict[str, Any] = {"model": self.model, "config": asdict(self.config)}
        asked |= {"training": asdict(self.training)}
        asked |= {"split": asdict(split.settings), "data": self.data, "chosen": self.chosen}
        asked |= {"known": described(split.known), "min_count": split.min_count, "repeats": split.repeats}
        return asked | {"hash": split.log.fingerprint()}


def train(
    split: Split,
    asked: Asked,
    folder: Path | None = None,
    resume: bool = False,
    on_record: OnRecord | None = None,
) -> tuple[Recommender, Trainer]:
    """Train a registered model, from the start or from where a stopped run is."""
    kind = model_named(asked.model)
    check(asked.config)
    check(asked.training)
    asked = asked._replace(config=kind.resolve_auto(asked.config, split))
    torch.manual_seed(asked.training.seed)
    network = build(kind, split, asked.config)
    # Made before the folder: what the trainer refuses leaves no folder behind.
    trainer = Trainer(network, split, asked.training, on_record=on_record, chosen=asked.chosen)
    if folder is None:
        trainer.run()
        return network, trainer
    last = trainer.stages[-1].name if trainer.stages else ""
    done = sum(record["stage"] == last for record in read_records(folder)) if resume else 0
    if asked.training.epochs < done:
        raise BadInput(f"epochs {asked.training.epochs}: this run has {done} already; expected more")
    document = asked.document(split)
    trainer.store = store = RunFolder.begin(folder, document, resume)
    store.card = lambda trainer: card_of(split, trainer, document)
    try:
        if store.finished(document["training"]):
            _recall(trainer, folder)
            return network.eval(), trainer
        store.remember(split)
        trainer.run()
        store.finish(trainer)
    finally:
        store.unlock()
    return network, trainer


def _recall(trainer: Trainer, folder: Path) -> None:
    """A trainer as it was when its run was finished."""
    said = read_card(folder)
    trainer.best = {name: load_file(folder / f"weights-{name}.safetensors") for name in said["weights"]}
    trainer.select_by = said["select_by"]
    trainer.model.load_state_dict(trainer.best[trainer.select_by])
    trainer.progress.best = {name: best[METRIC] for name, best in said["best"].items()}
    trainer.progress.best_epoch = {name: best["epoch"] for name, best in said["best"].items()}
    trainer.records = read_records(folder)
    trainer.tell(trainer.records)


def read_card(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself; of one that is not finished, what its checkpoint says."""
    try:
        if (folder / "card.json").is_file():
            found = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        else:
            found = json.loads(read_checkpoint(folder / CHECKPOINT)[1]["card"])
        if {"data", "split", "weights", "select_by"} <= found.keys():
            return dict(found)
        raise ValueError("card.json is not the card of a run")
    except (OSError, ValueError, AttributeError, SafetensorError) as error:
        raise BadInput(f"{folder}: the run is damaged ({error})") from None


def read_config(folder: Path) -> dict[str, Any]:
    """What a run was asked for."""
    if not folder.exists():
        raise BadInput(f"{folder}: no such folder; `unskew train DATA --out RUN` makes a run")
    if (folder / "data.json").is_file():
        raise BadInput(f"{folder}: this is prepared data and not a run; `unskew train {folder} --out RUN`")
    if not (folder / "config.json").is_file():
        raise BadInput(f"{folder}: not a run (no config.json); `unskew train` makes one")
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{folder}: the run is damaged ({error})") from None
    if not isinstance(config, dict) or "format" not in config:
        raise BadInput(f"{folder}: the run is damaged (config.json is not the description of a run)")
    if config["format"] != FORMAT:
        raise BadInput(
            f"{folder}: a run of format {config['format']}; this version reads {FORMAT}. Train it again"
        )
    return config


def read_records(folder: Path) -> list[dict[str, Any]]:
    """The records of all epochs so far."""
    if not (folder / "records.jsonl").is_file():
        return []
    return [json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()]


class Run(NamedTuple):
    """A stored run: its network, what it remembers (as a log of the newest events), its configuration and
    card, and the weights that each validation metric chose."""

    network: Recommender
    log: Log
    config: dict[str, Any]
    card: dict[str, Any]
    weights: dict[str, State]


def load(folder: str | os.PathLike[str]) -> Run:
    """Read a run. Its network has the weights that recommend: of a run that is not finished, the best so
    far."""
    path = Path(folder)
    config = read_config(path)
    if not (path / "card.json").is_file() and not (path / CHECKPOINT).is_file():
        raise BadInput(f"{path}: this run has not finished an epoch yet; go on with train --resume {path}")
    said = read_card(path)
    try:
        if (path / "card.json").is_file():
            weights = {name: load_file(path / f"weights-{name}.safetensors") for name in said["weights"]}
        else:
            weights = best_of(read_checkpoint(path / CHECKPOINT)[0], said)
        log, known = load_memory(path, config["known"])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, pa.ArrowInvalid) as error:
        raise BadInput(f"{path}: the run is damaged ({error})") from None
    if not weights:
        raise BadInput(f"{path}: this run has not finished an epoch yet; go on with train --resume {path}")
    try:
        kind = model_named(config["model"])
        network = kind(known, rebuilt(kind.Config, config["config"]))
        network.load_state_dict(weights[said["select_by"]])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(f"{path}: the run is damaged, its parts do not fit ({reason})") from None
    return Run(network.eval(), log, config, said, weights)


def best_of(tensors: State, said: dict[str, Any]) -> dict[str, State]:
    """The best weights so far in a checkpoint, by each validation metric that chose some."""
    found = {name: below(f"best/{name}", tensors) for name in said["best"]}
    return {name: state for name, state in found.items() if state}


def read_checkpoint(path: Path) -> tuple[State, dict[str, str]]:
    """What `Trainer.state` gave when it was written: tensors, and texts by their names."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


def _contiguous(tensors: State) -> State:
    return {name: value.detach().contiguous() for name, value in tensors.items()}
