"""Erasing users from all places where they are kept: stores, runs and prepared folders.

    erase(["ann"], store="events.db", runs=["current"], data=["data"])

Each place has a list of erased users (`unskew.data.log.erasures`), which keeps what is read later from
bringing them back. Without users, the lists of all places are joined and applied again, which is what a
restored backup needs.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unskew.core.config import Document
from unskew.core.errors import BadInput, UnskewError
from unskew.data.log.erasures import Erasures, add_erasures, list_beside, read_erasures
from unskew.data.log.folder import read_folder
from unskew.data.reading.erase import erase_from_folder
from unskew.serve.store.database import Occupied
from unskew.serve.store.events import check_id
from unskew.serve.store.store import Store, open_store
from unskew.training.erase import COPIES, WEIGHTS, erase_from_run, run_erasures
from unskew.training.run import read_config

WAIT_SECONDS = 60.0  # for the process that writes into a store
CHECK_SECONDS = 0.1


@dataclass(frozen=True)
class ErasedPlace:
    """What was erased from one place.

    kind: `store`, `run` or `data`.
    rows: events of a store or of a run's memory, rows of a prepared folder.
    recommendations: lists that a store had recorded.
    """

    kind: str
    place: str
    rows: int
    recommendations: int = 0


@dataclass(frozen=True)
class Erasure:
    """What an erasure came to, place by place, and what it covers and does not cover."""

    users: int
    places: tuple[ErasedPlace, ...]
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]

    def document(self) -> Document:
        """Everything, ready for JSON."""
        return asdict(self)


def erase(
    users: Sequence[str],
    *,
    store: str | os.PathLike[str] | None = None,
    runs: Sequence[str | os.PathLike[str]] = (),
    data: Sequence[str | os.PathLike[str]] = (),
    segments: str | os.PathLike[str] | None = None,
) -> Erasure:
    """Erase users from a store, from what runs remember, and from prepared folders.

    Parameters
    ----------
    users
        The ids, as text. With none, everyone who is on the list of one of the places is erased from all.
    store
        The file of a store, or the URL of one in PostgreSQL. It may be in use.
    runs
        Folders of runs, or links to them.
    data
        Folders that `unskew prepare` made.
    segments
        The folder of compacted rows, if the store is in PostgreSQL.

    Returns
    -------
    Erasure
        What was erased where, what that covers, and what it does not.
    """
    users = [check_id("user", user) for user in dict.fromkeys(users)]
    run_folders, data_folders = ([Path(path).resolve() for path in paths] for paths in (runs, data))
    if store is None and not run_folders and not data_folders:
        raise BadInput("expected at least one place to erase from: a store, a run or prepared data")
    for folder in run_folders:
        read_config(folder)
    for folder in data_folders:
        read_folder(folder)
    lists = [run_erasures(folder) for folder in run_folders]
    lists += [read_erasures(list_beside(folder)) for folder in data_folders]
    erasures = Erasures()
    for listed in lists:
        erasures = erasures.joined(listed)
    places = []
    if store is not None:
        place, in_store = _erase_from_store(os.fspath(store), users, erasures, segments)
        places.append(place)
        erasures = in_store.joined(erasures)
    elif users:
        erasures = erasures.with_users(dict.fromkeys(users, time.time_ns() // 1000))
    entries = erasures.of_users(users) if users else erasures
    places += [ErasedPlace("run", str(run), erase_from_run(run, entries)) for run in run_folders]
    places += [
        ErasedPlace("data", str(folder), erase_from_folder(folder, entries)) for folder in data_folders
    ]
    return Erasure(len(users) or len(entries), tuple(places), *_coverage(places))


def _erase_from_store(
    where: str, users: Sequence[str], elsewhere: Erasures, segments: str | os.PathLike[str] | None
) -> tuple[ErasedPlace, Erasures]:
    """What was erased from a store, and its list of erased users.

    elsewhere: the lists of the other places, which count if no users are given.
    """
    try:
        with open_store(where, "write", segments=segments) as store:  # which applies its list
            rows, lists = store.erase(*users) if users else store.apply_erasures(elsewhere)
            erasures = store.erasures()
    except Occupied:
        with open_store(where, "read") as store:
            return _ask_to_erase(store, Path(where), users, Erasures() if users else elsewhere)
    return ErasedPlace("store", store.name, rows, lists), erasures


def _ask_to_erase(
    store: Store, file: Path, users: Sequence[str], elsewhere: Erasures
) -> tuple[ErasedPlace, Erasures]:
    """Put users on the list beside a store that another process has open, and wait until that process has
    erased them."""
    rows = sum(len(store.of_user(user)) for user in users)
    lists = sum(len(store.recommended_to(user)) for user in users)
    asked = store.erasures().joined(elsewhere)
    if users:
        asked = asked.with_users(dict.fromkeys(users, time.time_ns() // 1000))
    listed = add_erasures(list_beside(file.expanduser().resolve()), asked)
    end = time.monotonic() + WAIT_SECONDS
    while store.erasures().joined(listed) != store.erasures():
        if time.monotonic() > end:
            raise UnskewError(
                f"{file}: the process that writes into this store has not erased the users within "
                f"{WAIT_SECONDS:g} seconds; they are on its list, so it will, at the latest when the store "
                "is opened again"
            )
        time.sleep(CHECK_SECONDS)
    return ErasedPlace("store", store.name, rows, lists), store.erasures()


def _coverage(places: Sequence[ErasedPlace]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What an erasure of these places covers, and what it does not cover."""
    kinds = {place.kind for place in places}
    covered = {
        "store": "the store and its compacted files; what happened before and is sent again is refused; "
        "services and updates with this store leave the users out of every run and every log",
        "run": "the memory of the runs and the ids in their tables of users; updates and refits of these "
        "runs leave the users out",
        "data": "the prepared folders; a copy from before that is put into the same place is refused",
    }
    not_covered = {
        "store": "stores: --store STORE",
        "run": "runs: --run RUN",
        "data": "prepared folders: --data FOLDER",
    }
    return (
        tuple(sentence for kind, sentence in covered.items() if kind in kinds),
        (*(sentence for kind, sentence in not_covered.items() if kind not in kinds), WEIGHTS, COPIES),
    )
