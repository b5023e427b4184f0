"""Records of training, told elsewhere while it runs: `model.fit(split, "run",
on_record=tensorboard("board/run"))`.

A record is a plain dictionary, so any function will do. A resumed run is told from its first record on,
because nobody
knows whether the last one arrived: whoever keeps records leaves out those that he has.
"""

import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from unskew.errors import BadInput


def tensorboard(folder: str | os.PathLike[str], resume: bool = False) -> Callable[[dict[str, Any]], None]:
    """Write every number of a record into an event file of TensorBoard, at the training step where it was
    reached.

    A folder that holds events already belongs to another run and is refused; with `resume`, it is gone on
    with.
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
    writers: list[SummaryWriter] = []  # one, made for the first record: a run that is refused leaves no file

    def told(record: dict[str, Any]) -> None:
        if not writers:
            writers.append(SummaryWriter(str(path)))
            weakref.finalize(told, writers[0].close)
        for tag, number in _numbers(record):
            if (tag, record["step"]) not in written:
                writers[0].add_scalar(tag, number, record["step"])
        writers[0].flush()  # a killed run keeps what was told

    return told


def _numbers(record: dict[str, Any], above: str = "") -> Iterator[tuple[str, float]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{above}{name}/")
        elif isinstance(value, int | float) and name != "step":
            yield above + name, value
