"""TensorBoard: the numbers of each epoch in an event file."""

import os
import weakref
from pathlib import Path

from unskew.core.errors import BadInput
from unskew.integrations.tracking import missing, numbers
from unskew.training.epoch_record import EpochRecord, OnRecord


def track(folder: str | os.PathLike[str], resume: bool = False) -> OnRecord:
    """Write the numbers of each record into an event file, at the training step of the record.

    Parameters
    ----------
    folder
        Where the event file goes. A folder that already has events belongs to another run and is refused.
    resume
        Continue in such a folder, and skip the events that it already has.

    Returns
    -------
    callable
        What `Model.fit` takes as `on_record`.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise missing("tensorboard", "TensorBoard") from None
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
        for tag, number in numbers(record).items():
            if (tag, record.step) not in written:
                writers[0].add_scalar(tag, number, record.step)
        writers[0].flush()  # so that nothing is lost if the run is killed

    return write
