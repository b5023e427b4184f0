"""A run is a directory: what was asked for, what was learned, and all that is needed to recommend from it. No
pickle anywhere.

config.json          model, its settings, training, split, and where the data was
weights-*.safetensors   the best weights by each version of the validation part, by the name of the version
users.parquet items.parquet memory.safetensors
                     the caller's ids, and each user's newest items and each item's newest users
records.jsonl        a line per round: losses, validation metrics, rate, memory
card.json            data, its hash, split, protocol, versions, seed, results
checkpoint.safetensors  only while it is not finished
"""

import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file as load_arrays
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

from unskew.config import check, rebuilt
from unskew.data.log import Log, Vocabulary
from unskew.data.split import Split, Splitting
from unskew.data.views import Sequences
from unskew.errors import BadInput, UnskewError
from unskew.models.base import Recommender, model_named
from unskew.train import METRIC, OnRecord, Store, Trainer, Training

FORMAT = 2
LOCK = ".lock"
CHECKPOINT_EVERY = 20.0  # seconds; what a kill can cost


class RunFolder(Store):
    """Where a trainer writes. Every file appears whole: written beside its place, then renamed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._last = time.monotonic()
        self.every = CHECKPOINT_EVERY

    @classmethod
    def begin(cls, folder: Path, config: dict[str, Any], resume: bool) -> "RunFolder":
        """A new run, or the same one again. Nobody's folder is overwritten."""
        made = cls(folder)
        if (folder / "config.json").is_file():
            if not resume:
                raise BadInput(
                    f"{folder}: a run is there already; go on with --resume, or choose another folder"
                )
            before = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            if before.get("hash") != config["hash"]:
                raise BadInput(
                    f"{folder}: this run was begun on other data ({before.get('data') or 'from Python'}); "
                    "train a new one on these"
                )
            different = next(differences(before, {"format": FORMAT, **config}, but=("data", "hash")), None)
            if different is not None:
                name, old, new = different
                raise BadInput(f"{folder}: this run was begun with {name} {old}, not {new}")
            made.lock()
            return made
        if folder.exists() and (not folder.is_dir() or any(path.name != LOCK for path in folder.iterdir())):
            raise BadInput(f"{folder}: exists and is not a run; nothing was written")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            made.lock()
            made._write_json("config.json", {"format": FORMAT, **config})
        except OSError as error:
            raise BadInput(f"{folder}: cannot write there ({error.strerror})") from None
        return made

    def lock(self) -> None:
        """One process at a time trains in a folder. The system releases the lock when the process ends,
        however it ends."""
        path = (self.folder / LOCK).resolve()
        if path in _locked:
            return
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(number)
            raise BadInput(f"{self.folder}: another process is training in this folder right now") from None
        _locked[path] = number

    def unlock(self) -> None:
        path = (self.folder / LOCK).resolve()
        if path in _locked:
            path.unlink(missing_ok=True)
            os.close(_locked.pop(path))

    @property
    def finished(self) -> bool:
        return (self.folder / "card.json").is_file()

    # What a trainer asks for

    def restore(self, trainer: Trainer) -> None:
        path = self.folder / "checkpoint.safetensors"
        if path.is_file():
            with safe_open(path, framework="pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                trainer.load(tensors, file.metadata())
        self._records(trainer)

    def maybe_checkpoint(self, trainer: Trainer) -> None:
        if time.monotonic() - self._last >= self.every:
            self.save(trainer, None)

    def save(self, trainer: Trainer, record: dict[str, Any] | None) -> None:
        if record is not None:
            self._records(trainer)
        tensors, words = trainer.state()
        self._replace("checkpoint.safetensors", lambda path: save_file(_contiguous(tensors), path, words))
        self._last = time.monotonic()

    # The end

    def finish(self, trainer: Trainer, split: Split, card: dict[str, Any]) -> None:
        """Weights, then memory, then the card: a run with a card is whole."""
        for criterion, state in weights_of(trainer).items():
            self._replace(
                f"weights-{criterion}.safetensors",
                lambda path, state=state: save_file(_contiguous(state), path),
            )
        save_memory(self, split, trainer.model.audience)
        self._records(trainer)
        self._write_json("card.json", card)
        (self.folder / "checkpoint.safetensors").unlink(missing_ok=True)
        self.unlock()

    def choose(self, criterion: str) -> None:
        """From now on the run recommends with the weights that this version of the validation part chose."""
        self._write_json("card.json", card(self.folder) | {"choose_by": criterion})

    def _records(self, trainer: Trainer) -> None:
        lines = "".join(json.dumps(record) + "\n" for record in trainer.records)
        self._replace("records.jsonl", lambda path: path.write_text(lines, encoding="utf-8"))

    def _write_json(self, name: str, document: dict[str, Any]) -> None:
        self._replace(
            name,
            lambda path: path.write_text(
                json.dumps(document, indent=1, default=str) + "\n", encoding="utf-8"
            ),
        )

    def _replace(self, name: str, write: Any) -> None:
        beside = self.folder / f".{name}.{os.getpid()}"
        try:
            write(beside)
            with beside.open("rb") as file:
                os.fsync(file.fileno())
            beside.chmod(0o666 & ~_umask())  # safetensors makes files that only their owner can read
            beside.rename(self.folder / name)
        except OSError as error:
            raise UnskewError(
                f"{self.folder / name}: writing failed ({error.strerror or error}); the last checkpoint stays"
            ) from error
        finally:
            beside.unlink(missing_ok=True)


_locked: dict[Path, int] = {}  # open files of this process, which may go on with its own runs


def _umask() -> int:
    """The process's own: what new files are not allowed."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


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


def train(
    split: Split,
    model: str,
    config: Any,
    training: Training,
    folder: Path | None = None,
    resume: bool = False,
    data: str = "",
    on_record: OnRecord | None = None,
) -> tuple[Recommender, Trainer]:
    """Train a registered model, from the start or from where a killed run stopped."""
    kind = model_named(model)
    check(config)
    check(training)
    asked = {
        "model": model,
        "config": asdict(config),
        "training": asdict(training),
        "split": asdict(split.settings),
        "data": data,
    }
    torch.manual_seed(training.seed)
    network = kind(split, config)
    trainer = Trainer(
        network, split, training, on_record=on_record
    )  # what it refuses leaves no folder behind
    if folder is None:
        trainer.run()
        return network, trainer
    trainer.store = store = RunFolder.begin(
        folder, asked | sizes(split) | {"hash": split.log.fingerprint()}, resume
    )
    if store.finished:
        said = card(folder)
        network.load_state_dict(load_file(folder / f"weights-{said['choose_by']}.safetensors"))
        trainer.best = {name: load_file(folder / f"weights-{name}.safetensors") for name in said["weights"]}
        trainer.choose_by = said["choose_by"]
        store.unlock()
        trainer.progress.best = {name: best[METRIC] for name, best in said["best"].items()}
        trainer.progress.best_round = {name: best["round"] for name, best in said["best"].items()}
        trainer.records = [
            json.loads(line) for line in (folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
        ]
        trainer.tell(trainer.records)
        return network.eval(), trainer
    trainer.run()
    store.finish(trainer, split, card_of(split, trainer, asked))
    return network, trainer


def sizes(split: Split) -> dict[str, int | bool]:
    """What else a network and `recommend` must know of the split that it was trained on."""
    known = {"known_users": split.known_users, "known_items": split.known_items}
    return known | {"min_count": split.min_count, "repeats": split.repeats}


def weights_of(trainer: Trainer) -> dict[str, dict[str, torch.Tensor]]:
    """The weights that each version of the validation part chose; where nothing was chosen, those that there
    are."""
    return trainer.best or {trainer.choose_by: trainer.model.state_dict()}


def card_of(split: Split, trainer: Trainer, asked: dict[str, Any]) -> dict[str, Any]:
    at = trainer.progress
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__}
    return {
        "model": asked["model"],
        "data": {
            "folder": asked["data"],
            "hash": split.log.fingerprint(),
            "rows": len(split.log),
            "source": split.log.metadata.get("source"),
        },
        "split": asked["split"] | {"train_end": split.train_end, "valid_end": split.valid_end} | sizes(split),
        "choose_by": trainer.choose_by,
        "weights": list(weights_of(trainer)),
        "chosen_by": f"{METRIC}, full ranking of {len(trainer.valid.rows)} validation positives, by each "
        "version of the part",
        "chosen": {name: chosen(trainer.model, state) for name, state in weights_of(trainer).items()},
        "best": {name: {"round": at.best_round[name], METRIC: value} for name, value in at.best.items()},
        "seed": trainer.settings.seed,
        "threads": torch.get_num_threads(),
        "versions": versions,
    }


def chosen(model: Recommender, state: dict[str, torch.Tensor]) -> dict[str, float]:
    """What was chosen on the validation part and by no gradient: the numbers of the state that are no
    parameters."""
    learned = {name for name, _ in model.named_parameters()}
    left = {name: value for name, value in state.items() if name not in learned}
    return {
        name: float(value) for name, value in left.items() if not value.ndim and value.is_floating_point()
    }


def card(folder: Path) -> dict[str, Any]:
    """What a finished run says of itself."""
    try:
        found = json.loads((folder / "card.json").read_text(encoding="utf-8"))
        if {"data", "split", "weights", "choose_by"} <= found.keys():
            return dict(found)
        raise ValueError("card.json is not the card of a run")
    except (OSError, ValueError, AttributeError) as error:
        raise BadInput(f"{folder}: the run is damaged ({error})") from None


# What a stored run remembers of the log


def save_memory(store: RunFolder, split: Split, audience: int | None) -> None:
    log = split.log
    now = int(log.time.max()) + 1
    arrays = {"now": np.array([now]), "user_counts": split.user_counts, "item_counts": split.item_counts}
    audience = (
        audience if audience is None else max(audience, 1)
    )  # an item exists by its audience, read or not
    for name, view, newest in (("history", log.histories, None), ("audience", log.audiences, audience)):
        start, end = view.before(np.arange(len(view)), now, newest)
        _, places = view.flat(start, end)
        arrays |= {f"{name}_ids": view.ids[places], f"{name}_times": view.times[places]}
        arrays |= {f"{name}_offsets": np.concatenate([[0], np.cumsum(end - start)])}
    store._replace(
        "memory.safetensors",
        lambda path: save_arrays({key: np.ascontiguousarray(value) for key, value in arrays.items()}, path),
    )
    for name, vocabulary in (("users", log.users), ("items", log.items)):
        table = vocabulary.table()
        store._replace(f"{name}.parquet", lambda path, table=table: pq.write_table(table, path))


class Run(NamedTuple):
    """A finished run: its network, what it remembers (as a log of the newest events), its configuration and
    card, and the weights that each version of the validation part chose."""

    network: Recommender
    log: Log
    config: dict[str, Any]
    card: dict[str, Any]
    weights: dict[str, dict[str, torch.Tensor]]


def load(folder: str | os.PathLike[str]) -> Run:
    """Read a finished run. Its network has the weights that recommend."""
    path = Path(folder)
    if not (path / "card.json").is_file():
        begun = (path / "config.json").is_file()
        what = "this run is not finished; go on with --resume" if begun else "not a run (no config.json)"
        raise BadInput(f"{path}: {what}")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path}: the run is damaged ({error})") from None
    if not isinstance(config, dict) or "format" not in config:
        raise BadInput(f"{path}: the run is damaged (config.json is not the description of a run)")
    if config["format"] != FORMAT:
        raise BadInput(
            f"{path}: a run of format {config.get('format')}; this version reads {FORMAT}, because how "
            "models are chosen and "
            "tested has changed. Prepare the data and train it again; the test 'resampled' is gone, use "
            "'balanced'"
        )
    said = card(path)
    try:
        memory = load_arrays(path / "memory.safetensors")
        users, items = (pq.read_table(path / f"{name}.parquet") for name in ("users", "items"))
        weights = {name: load_file(path / f"weights-{name}.safetensors") for name in said["weights"]}
    except (OSError, ValueError, SafetensorError, pa.ArrowInvalid) as error:
        raise BadInput(f"{path}: the run is damaged ({error})") from None
    try:
        log = _remembered(memory, users, items)
        kind = model_named(config["model"])
        network = kind(_shell(log, memory, config), rebuilt(kind.Config, config["config"]))
        network.load_state_dict(weights[said["choose_by"]])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise BadInput(
            f"{path}: the run is damaged, its parts do not fit ({str(error).splitlines()[0]})"
        ) from None
    return Run(network.eval(), log, config, said, weights)


def _remembered(memory: dict[str, Any], users: pa.Table, items: pa.Table) -> Log:
    if len(memory["history_offsets"]) != len(users) + 1 or len(memory["audience_offsets"]) != len(items) + 1:
        raise ValueError("memory and vocabularies are not of the same run")
    histories, audiences = (
        Sequences(*(memory[f"{name}_{part}"] for part in ("ids", "times", "offsets")))
        for name in ("history", "audience")
    )
    user = np.repeat(np.arange(len(histories), dtype=np.int32), np.diff(histories.offsets))
    return Log(
        user=user,
        item=histories.ids,
        time=histories.times,
        label=np.ones(len(user), np.int8),
        users=Vocabulary.of_table(users),
        items=Vocabulary.of_table(items),
        histories=histories,
        audiences=audiences,
        end=int(memory["now"][0]),
    )


def _shell(log: Log, memory: dict[str, Any], config: dict[str, Any]) -> Split:
    """As much of the split as a network needs to be built; its weights come from the file."""
    settings = Splitting(**{**config["split"], "shares": tuple(config["split"]["shares"])})
    known, counts = (
        (config["known_users"], config["known_items"]),
        (memory["user_counts"], memory["item_counts"]),
    )
    return Split(
        log, settings, 0, 0, *known, *counts, repeats=config["repeats"], min_count=config["min_count"]
    )


def _contiguous(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.detach().contiguous() for name, value in tensors.items()}
