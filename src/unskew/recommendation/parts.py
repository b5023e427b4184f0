"""The lists of all users as part files, made by any number of processes on any number of machines.

The users of the log are cut into parts of fixed size, and shard i of n makes the parts i, i + n, i + 2 n, ...
So the parts are the same for any number of shards. A part appears under its name only when it is whole, and a
part that is there is not made again: a shard that was stopped is simply started again, and two processes that
make the same part write the same rows. `request.json` beside the parts names the model, the log and the
options. Another request is refused in the same folder.
"""

import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from torch.nn import Module

from unskew.core.atomic_files import save_frames
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.core.progress import progress
from unskew.core.storage import address_of, exists, open_bytes, upload
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker, Saved

PART_USERS = 20_000
REQUEST = "request.json"


@dataclass(frozen=True)
class Shard:
    """Which of how many processes this is, from 0."""

    index: int = 0
    count: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.index < self.count:
            raise BadInput(
                f"shard {self.index}/{self.count}: expected i/n with i from 0 to n - 1", field="shard"
            )

    def parts(self, count: int) -> range:
        """The numbers of its parts, of `count` in all."""
        return range(self.index, count, self.count)


def parse_shard(text: str, environment: Mapping[str, str] = os.environ) -> Shard:
    """Read `i/n`, `auto` (RANK and WORLD_SIZE, as torchrun sets them) or `auto/n` (RANK, or
    JOB_COMPLETION_INDEX as an indexed Kubernetes job sets it, of n)."""
    found = re.fullmatch(r"(auto|\d+)(?:/(\d+))?", text)
    if found is None or (found[1] != "auto" and found[2] is None):
        raise BadInput(f"shard {text!r}: expected i/n such as 0/8, auto, or auto/n", field="shard")
    if found[1] != "auto":
        return Shard(int(found[1]), int(found[2]))
    index = environment.get("RANK", environment.get("JOB_COMPLETION_INDEX", ""))
    count = found[2] or environment.get("WORLD_SIZE", "")
    if not index.isdecimal() or not count.isdecimal():
        raise BadInput(
            f"shard {text}: the environment has neither RANK and WORLD_SIZE, as torchrun sets them, nor "
            "JOB_COMPLETION_INDEX (for auto/n), as an indexed Kubernetes job sets it; give i/n",
            field="shard",
        )
    return Shard(int(index), int(count))


def weights_digest(network: Module) -> str:
    """A hash of all weights, which is the same on every machine."""
    digest = blake2b(digest_size=16)
    for name, value in network.state_dict().items():
        digest.update(name.encode() + value.contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass
class SavedParts(Saved):
    """What a shard wrote. parts, made: how many parts it has, and how many of them were not there before."""

    parts: int = 0
    made: int = 0


def save_parts(
    ranker: Ranker, options: RecommendOptions, folder: Path, shard: Shard, about: Document
) -> SavedParts:
    """Write those parts of a shard that are not there. `about` is what decides the lists, besides the
    options."""
    ids = ranker.log.users.ids.drop_null()  # an erased user has none
    asked = {name: value for name, value in asdict(options).items() if value is not None}
    claim(folder, about | {"options": asked, "users": len(ids), "part_users": PART_USERS})
    parts = {folder / f"part-{part:06}.parquet": part for part in shard.parts(-(-len(ids) // PART_USERS))}
    missing = {file: ids.slice(part * PART_USERS, PART_USERS) for file, part in parts.items()}
    missing = {file: users for file, users in missing.items() if not exists(file)}
    saved = SavedParts(parts=len(parts), made=len(missing))
    with progress("recommend", sum(map(len, missing.values()))) as job:
        for file, users in missing.items():
            with _new_part(file) as target:
                save_frames(map(saved.count, ranker.for_many_users(users, options, job)), target)
    return saved


def claim(folder: Path, request: Document) -> None:
    """Say in the folder what its parts are, or see that it says so already."""
    text, file = json.dumps(request, indent=1, sort_keys=True, default=str) + "\n", folder / REQUEST
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder}: is no folder, and --shard writes its parts to one", field="out")
    if not exists(file):
        with _new_part(file) as target:
            target.write_text(text, encoding="utf-8")
    with open_bytes(str(file)) as stored:
        if stored.read() != text.encode():
            raise BadInput(
                f"{folder}: holds the parts of another request ({REQUEST} names its model, log and options); "
                "give another folder",
                field="out",
            )


@contextmanager
def _new_part(file: Path) -> Iterator[Path]:
    """A path for what becomes a file or an object when it is whole. Processes on other machines may make the
    same one at the same time, so the name is drawn."""
    if address := address_of(file):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, file.name)
            yield path
            upload(path, address)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    path = file.with_name(f".{secrets.token_hex(8)}{file.suffix}")
    try:
        yield path
        path.rename(file)
    finally:
        path.unlink(missing_ok=True)
