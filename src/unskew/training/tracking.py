"""Follow the training of a model elsewhere while it runs, for example in TensorBoard:

    model.fit(split, "run", on_record=tensorboard("board/run"))

`on_record` is called with the `EpochRecord` of each epoch, so any function of one argument will do.
A run that is resumed sends all of its records again, because it cannot know which of them arrived before it
was stopped. So a receiver has to skip the records that it already has.
"""

import os
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from unskew.core.errors import BadInput
from unskew.training.epoch_record import EpochRecord, OnRecord


def tensorboard(folder: str | os.PathLike[str], resume: bool = False) -> OnRecord:
    """A function that writes the numbers of each record into an event file of TensorBoard, at the training
    step of the record.

    folder: where the event file goes. A folder that already has events belongs to another run and is refused.
    resume: continue in such a folder, and skip the events that it already has.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("TensorBoard is not installed: pip install 'unskew[tensorboard]'") from None
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise BadInput(f"{path}: expected a folder")
    files = sorted(path.glob("*tfevents*"))
    if files and not resume:
        raise BadInput(f"{path}: holds the events of another run; choose another folder, or resume that run")
    events = (event for file in files for event in EventFileLoader(str(file)).Load())
    written = {(value.tag, event.step) for event in events for value in event.summary.value}
    # At most one. It is made with the first record, so that a run which fails before leaves no file.
    writers: list[SummaryWriter] = []

    def write(record: EpochRecord) -> None:
        if not writers:
            writers.append(SummaryWriter(str(path)))
            weakref.finalize(write, writers[0].close)
        for tag, number in _numbers(record.to_json()):
            if (tag, record.step) not in written:
                writers[0].add_scalar(tag, number, record.step)
        writers[0].flush()  # so that nothing is lost if the run is killed

    return write


def _numbers(record: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    """All numbers in a record with their names; names inside of others are joined with a slash."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and name != "step":
            yield above + name, value
