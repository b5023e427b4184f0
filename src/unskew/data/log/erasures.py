"""The list of erased users, which names nobody: a salted hash of each id, and the moment of the erasure.

A list lies beside a store (`events.db-erased`) and beside a prepared folder (`data-erased`), where a restored
backup leaves it alone, and within a run (`erased.json`), which it travels with. Whoever has the file can ask
whether an id was erased, and cannot read ids from it; only its owner can read it.

What happened up to the moment of an erasure never counts again. What the same user does later counts, as that
of a new user. Where the times of a log are only an order, nothing of the user counts.
"""

import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.core.atomic_files import beside, sync_folder
from unskew.core.config import parse_json
from unskew.core.errors import BadInput, UnskewError
from unskew.core.file_lock import wait_for_lock
from unskew.data.log.clock import Clock

OWN_MODE = 0o600  # only the owner may read the file, and so the salt
SUFFIX = "-erased"  # of a list beside a store or a prepared folder
IN_RUN = "erased.json"  # of a list within a run
SALT_BYTES, HASH_BYTES = 16, 16
FORMAT = 1
NOT_ERASED = np.iinfo(np.int64).min  # a time before all others


@dataclass(frozen=True)
class Erasures:
    """Erased users: for each salt, the moments of the erasures in microseconds since 1970, by the hash of the
    user's id. Lists that were joined have several salts."""

    by_salt: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.by_salt.values()))

    def among(self, users: Iterable[str]) -> dict[str, int]:
        """Those of some users who were erased, each with the moment of the newest erasure."""
        erased: dict[str, int] = {}
        if not len(self):
            return erased
        listed = list(users)
        for salt, moments in self.by_salt.items():
            key = bytes.fromhex(salt)
            for user in listed:
                moment = moments.get(_hash_of(key, user))
                if moment is not None:
                    erased[user] = max(moment, erased.get(user, 0))
        return erased

    def with_users(self, moments: Mapping[str, int]) -> "Erasures":
        """The list with more users, each with the moment of the erasure."""
        salt = next(iter(self.by_salt), None) or secrets.token_hex(SALT_BYTES)
        key = bytes.fromhex(salt)
        return self.joined(Erasures({salt: {_hash_of(key, user): at for user, at in moments.items()}}))

    def of_users(self, users: Iterable[str]) -> "Erasures":
        """The entries of these users."""
        listed = list(users)
        by_salt = {}
        for salt, moments in self.by_salt.items():
            hashes = [_hash_of(bytes.fromhex(salt), user) for user in listed]
            by_salt[salt] = {name: moments[name] for name in hashes if name in moments}
        return Erasures({salt: moments for salt, moments in by_salt.items() if moments})

    def joined(self, other: "Erasures") -> "Erasures":
        """Both lists as one."""
        by_salt = {salt: dict(moments) for salt, moments in self.by_salt.items()}
        for salt, moments in other.by_salt.items():
            own = by_salt.setdefault(salt, {})
            own.update({user: max(moment, own.get(user, 0)) for user, moment in moments.items()})
        return Erasures(by_salt)

    def to_json(self) -> str:
        """The list as text."""
        return json.dumps({"format": FORMAT, "by_salt": self.by_salt}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Erasures":
        """The list that `to_json` wrote; raises ValueError if it did not."""
        document: Any = parse_json(text)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError("not a list of erased users")
        by_salt = document["by_salt"]
        whole = all(isinstance(moment, int) for moments in by_salt.values() for moment in moments.values())
        if not whole or not all(map(bytes.fromhex, by_salt)):
            raise ValueError("not a list of erased users")
        return cls(by_salt)


def _hash_of(key: bytes, user: str) -> str:
    return blake2b(user.encode(), key=key, digest_size=HASH_BYTES).hexdigest()


# Files


def list_beside(path: Path) -> Path:
    """Where the list of a store in a file, or of a prepared folder, lies."""
    return path.with_name(f"{path.name}{SUFFIX}")


def read_erasures(*files: Path) -> Erasures:
    """The lists of some files as one; a file that does not exist is an empty list."""
    erasures = Erasures()
    for file in files:
        try:
            erasures = erasures.joined(Erasures.from_json(file.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or "it is damaged"
            raise BadInput(
                f"{file}: the list of erased users cannot be read ({reason}); restore it from a copy"
            ) from None
    return erasures


def add_erasures(file: Path, erasures: Erasures) -> Erasures:
    """Add users to the list of a file, which is on the disk when this returns. Returns the whole list. Two
    processes may do this at once."""
    try:
        with _alone(file):
            before = read_erasures(file)
            whole = before.joined(erasures)
            if whole != before or not file.exists():
                with beside(file) as path:
                    _write(path, whole)
                sync_folder(file.parent)
        return whole
    except OSError as error:
        raise UnskewError(f"{file}: cannot be written ({error.strerror}); nobody was erased") from None


def _write(path: Path, erasures: Erasures) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, OWN_MODE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as text:
        text.write(erasures.to_json())
        text.flush()
        os.fsync(text.fileno())


@contextmanager
def _alone(file: Path) -> Iterator[None]:
    """One process at a time, by a lock on the folder of the file."""
    descriptor = wait_for_lock(file.parent)
    try:
        yield
    finally:
        os.close(descriptor)


# Logs


def erased_rows(
    users: pa.Array, user: NDArray[np.integer], time: NDArray[np.int64], clock: Clock, erasures: Erasures
) -> NDArray[np.bool_]:
    """Which rows of a log belong to erased users, and are not newer than the erasure.

    users: the ids by code.
    user, time: the codes and the times of the rows.
    """
    until = moments_of(users, clock, erasures)
    return np.zeros(len(user), bool) if until is None else np.asarray(time <= until[user])


def moments_of(users: pa.Array, clock: Clock, erasures: Erasures) -> NDArray[np.int64] | None:
    """For each user, the last tick that was erased, or `NOT_ERASED`. None if no one was."""
    if not len(erasures):
        return None
    texts = text_of(users)
    erased = erasures.among(text for text in texts if text is not None)
    if not erased:
        return None
    until = np.full(len(texts), NOT_ERASED)
    for code, text in enumerate(texts):
        if text in erased:
            is_order = clock.ticks is None
            until[code] = np.iinfo(np.int64).max if is_order else clock.tick_of(erased[text])
    return until


def text_of(ids: pa.Array) -> list[str | None]:
    """Ids as text, as in a store, however a log holds them."""
    return [None if value is None else str(value) for value in ids.to_pylist()]
