"""Weights & Biases: the numbers of each epoch in a run of theirs; without a network, in a folder.

model.fit(split, "run", on_record=wandb.track("shop", "first", folder="tracking"))
"""

import os
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from unskew.integrations.tracking import missing, numbers
from unskew.training.epoch_record import EpochRecord, OnRecord


def track(
    project: str,
    name: str,
    folder: str | os.PathLike[str] = ".",
    mode: Literal["offline", "online"] = "offline",
    parameters: Mapping[str, Any] | None = None,
) -> OnRecord:
    """Send the numbers of each record, at the training step of the record.

    Parameters
    ----------
    project, name
        The project and the name of the run. The name identifies the run: one that is resumed is continued.
    folder
        Where the files of an offline run go; `wandb sync` uploads them later.
    mode
        `offline` needs no network; `online` sends each record at once.
    parameters
        Settings to store with the run.

    Returns
    -------
    callable
        What `Model.fit` takes as `on_record`.
    """
    try:
        import wandb
    except ImportError:
        raise missing("wandb", "Weights & Biases") from None
    run = wandb.init(
        project=project,
        name=name,
        id=name,
        dir=os.fspath(folder),
        mode=mode,
        resume="allow",
        settings=wandb.Settings(silent=True),
        config=dict(parameters or {}),
    )

    def send(record: EpochRecord) -> None:
        run.log(numbers(record), step=record.step)  # a step that was sent before is left out by the tool

    weakref.finalize(send, run.finish)
    return send
