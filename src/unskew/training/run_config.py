"""What a run was asked for: `config.json`, from which the run can be trained again or gone on with."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Literal

from unskew.core.config import Document, WrongFields, from_document
from unskew.core.errors import BadInput
from unskew.core.imports import MissingImport, files_of
from unskew.data.log.clock import Clock
from unskew.data.log.derived import LARGE
from unskew.data.log.log import Log
from unskew.data.log.split import Ids, Known, Mask, Split, Splitting, split
from unskew.models.base import ModelConfig, Training, model_named

FORMAT = 7

# Where a run keeps the events that it recommends from: `run` is a copy of its own, `folder` is the prepared
# folder that it was trained on. `auto` is the folder for logs of LARGE rows and more that have one, and a
# copy for all others.
EventsIn = Literal["auto", "run", "folder"]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a training run is asked for.

    model, config, training: the name of the model, its settings, and those of training.
    data: where the prepared log is, if that is known.
    chosen: settings that another run's validation set chose, by their names in the model's state.
    imports: files of the caller that define the model or its estimator (`unskew train --import FILE`).
    events_in: where the run keeps the events that it recommends from.
    """

    model: str
    config: ModelConfig
    training: Training
    data: str = ""
    chosen: Mapping[str, float] | None = None
    imports: tuple[str, ...] = ()
    events_in: EventsIn = "auto"


@dataclass(frozen=True)
class KnownIds:
    """How many users, or items, a network was built for, and how many values their features have."""

    size: int
    categories: dict[str, int]


@dataclass(frozen=True)
class KnownShape:
    """What a network was built for. Which ids are rare is stored among the run's arrays."""

    users: KnownIds
    items: KnownIds
    ticks: int | None  # of the clock, a second
    types: tuple[str, ...] = ()  # of context events
    repeats: bool = False  # whether past items are candidates

    @classmethod
    def of(cls, known: Known) -> "KnownShape":
        """The shape of what a network is built for."""
        users, items = (KnownIds(ids.size, dict(ids.categories)) for ids in (known.users, known.items))
        return cls(users, items, known.clock.ticks, known.types, known.repeats)

    def build(self, rare_users: Mask | None, rare_items: Mask | None) -> Known:
        """The same for a network."""
        users = Ids(self.users.size, rare_users, self.users.categories)
        items = Ids(self.items.size, rare_items, self.items.categories)
        return Known(users, items, Clock(self.ticks), self.types, self.repeats)


@dataclass(frozen=True, kw_only=True)
class RunConfig(RunSettings):
    """What a run was asked for, with what it must know of its split: `config.json`."""

    split: Splitting
    known: KnownShape
    min_count: int
    repeats: bool
    hash: str  # of the log
    format: int = field(default=FORMAT)

    @classmethod
    def of(cls, settings: RunSettings, split: Split) -> "RunConfig":
        """The configuration of a run on a split."""
        given_settings = {name.name: getattr(settings, name.name) for name in fields(RunSettings)}
        classes = model_named(settings.model).required_classes(settings.config)
        given_settings["imports"] = files_of(classes) or settings.imports
        given_settings["events_in"] = _events_in(settings.events_in, split)
        return cls(
            **given_settings,
            split=split.settings,
            known=KnownShape.of(split.known),
            min_count=split.min_count,
            repeats=split.repeats,
            hash=split.source.fingerprint(),
        )

    def to_json(self) -> Document:
        """Plain numbers and words."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Document) -> "RunConfig":
        """The configuration that `to_json` wrote. An unknown or missing field is bad input."""
        if not {"model", "config"} <= document.keys():
            raise WrongFields("RunConfig: missing field 'model' or 'config'")
        try:
            config = from_document(model_named(document["model"]).Config, document["config"])
        except BadInput:
            if files := document.get("imports"):
                raise MissingImport(
                    f"{', '.join(files)} defines its model or its estimator, and is not imported: say where "
                    f"that file is now (--import {files[0]})"
                ) from None
            raise
        return from_document(cls, document | {"config": config})

    def open_log(self, data: str | os.PathLike[str] | None = None) -> Log:
        """The log that the run was trained on. `data` is where the prepared folder is now, if it has
        moved."""
        return open_log(self.data, self.hash, data)

    def open_events(self, folder: Path) -> Log:
        """The log in the prepared folder, for a run in `folder` that has no events of its own."""
        if not Path(self.data).exists():
            raise BadInput(
                f"{folder}: its events are not in the run but in {self.data}, which is gone or has moved; "
                "bring it back, or train with --events-in run"
            )
        log = Log.open(self.data)
        if log.fingerprint() != self.hash:
            raise BadInput(
                f"{folder}: its events are in {self.data}, which has other rows now than at the training; "
                f"`unskew train {self.data} --refit {folder} --out NEW` trains on them"
            )
        return log

    def open_split(self, data: str | os.PathLike[str] | None = None) -> Split:
        """The split that the run was trained on."""
        return split(self.open_log(data), **asdict(self.split))


def _events_in(asked: EventsIn, split: Split) -> EventsIn:
    """Where the run keeps its events: `run` or `folder`."""
    log = split.log
    if asked == "folder" and log.folder is None:
        why = (
            "a leave-one-out split hides events" if split.source.folder else "the log has no prepared folder"
        )
        raise BadInput(f"events_in folder: {why}, so the run needs a copy (`run`)", field="events_in")
    if asked == "auto":
        return "folder" if len(log) >= LARGE and log.folder is not None else "run"
    return asked


def open_log(stored: str, fingerprint: str, data: str | os.PathLike[str] | None = None) -> Log:
    """The log that a run was trained on, or what is left of it after users were erased.

    stored: where the run says that it is.
    data: where the prepared folder is now, if it has moved.
    """
    where = data or stored
    if not where:
        raise BadInput(
            "this run was trained from Python and does not know where its data is; say it with --data"
        )
    if data is None and not Path(where).exists():
        raise BadInput(
            f"{where}: the data of this run is gone or has moved; say where it is now (--data DATA; to "
            "train, DATA itself)",
            field="data",
        )
    log = Log.open(where)
    if fingerprint not in log.metadata.erased_from and log.fingerprint() != fingerprint:
        raise BadInput(f"{where}: not the data that this run was trained on", field="data")
    return log
