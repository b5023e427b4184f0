"""Two ranks, one of which is killed in each of its first ten attempts, after both have met."""

import os
import signal
import sys
from pathlib import Path

from unskew.core.ranks import joined

with joined() as all_ranks:
    all_ranks.wait()
    if all_ranks.rank == 1 and all_ranks.attempt < 10:
        os.kill(os.getpid(), signal.SIGKILL)
    all_ranks.wait()
    if all_ranks.is_first:
        Path(sys.argv[1]).write_text(str(all_ranks.attempt))
