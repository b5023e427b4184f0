"""Erasing what a stored run remembers of a user's events."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from unskew.data.log.live_views import LiveVocabulary
from unskew.data.log.views import PAD
from unskew.data.log.vocabulary import Vocabulary
from unskew.training.run import RunFolder

MEMORY = "memory.safetensors"


def erase_from_run(folder: Path, user_id: str) -> int:
    """Remove the events of a user from the memory of a run, in one step, and return how many there were. The
    id stays among the ids that the network was built for, because its rows are numbered by them; weights that
    were learned from the events stay too."""
    vocabulary = Vocabulary.of_table(pq.read_table(folder / "users.parquet"))
    code = int(LiveVocabulary(vocabulary, text=True).codes([user_id])[0])
    if code == PAD:
        return 0
    memory: dict[str, NDArray[Any]] = load_file(folder / MEMORY)
    first, last = memory["history_offsets"][code : code + 2].tolist()
    if first == last:
        return 0
    own = np.zeros(len(memory["history_ids"]), bool)
    own[first:last] = True
    for view, erased in (("history", own), ("audience", memory["audience_ids"] == code)):
        before = np.concatenate([[0], np.cumsum(erased)])
        offsets = memory[f"{view}_offsets"]
        memory[f"{view}_offsets"] = np.ascontiguousarray(offsets - before[offsets])
        for name in ("ids", "times"):
            memory[f"{view}_{name}"] = np.ascontiguousarray(memory[f"{view}_{name}"][~erased])
    RunFolder(folder).replace(MEMORY, lambda path: save_file(memory, path))
    return int(last - first)
