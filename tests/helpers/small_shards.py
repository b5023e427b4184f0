"""For `--import`: Pulse reads in small shards, which are kept in the folder KEPT; with KILL, rank 1 dies
after every second shard that it writes."""

import os
import signal
from pathlib import Path

from unskew.models.pulse import model

written = []
save_shard = model.save_shard


def save_and_keep(file: Path, rows: model.PulseBatch) -> None:
    save_shard(file, rows)
    kept = Path(os.environ["KEPT"]) / f"{file.name}-{os.getpid()}"
    kept.hardlink_to(file)
    written.append(file)
    if "KILL" in os.environ and os.environ["RANK"] == "1" and len(written) == 2:
        os.kill(os.getpid(), signal.SIGKILL)


model.SHARD = 32
model.save_shard = save_and_keep
