"""Erasing users from logs: in memory, and from a prepared folder."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from unskew.core.errors import BadInput
from unskew.data.log.erasures import Erasures, add_erasures, erased_rows, list_beside, read_erasures
from unskew.data.log.folder import new_folder, read_folder, save_metadata
from unskew.data.log.item_feed import ItemFeed, feed_of, with_items
from unskew.data.log.log import Log
from unskew.data.log.preparation import Metadata
from unskew.data.reading.items import add_items
from unskew.data.reading.prepare import prepare, read


def without_erased(log: Log, erasures: Erasures) -> Log:
    """A log without the rows of erased users. Its users and items are numbered again if any row is left
    out."""
    user, _, time = log.everything()
    erased = erased_rows(log.users.ids, user, time, log.clock, erasures)
    if not erased.any():
        return log
    rest = read(_rest(log, erased))
    for feed in feed_of(log.items, log.audiences.listed):
        rest = with_items(rest, feed)
    return replace(rest, metadata=_metadata(log, rest))


def erase_from_folder(folder: Path, erasures: Erasures) -> int:
    """Write a prepared folder again without the rows of these users, and of all who are in its list. Returns
    how many rows there were. The list is written first, so that a copy from before is noticed. Rows that
    could not be read (bad_rows.csv) are not kept, because any of them may be the user's."""
    folder = folder.resolve()
    log = Log.of_columns(*read_folder(folder))
    whole = add_erasures(list_beside(folder), erasures) if erasures else read_erasures(list_beside(folder))
    user, _, time = log.everything()
    erased = erased_rows(log.users.ids, user, time, log.clock, whole)
    if not erased.any():
        return 0
    with new_folder(folder) as scratch:
        try:
            prepare(_rest(log, erased), scratch / "rest", duplicates="keep")
        except BadInput as error:
            raise BadInput(
                f"{folder}: what is left without these users is no log ({error}); remove the folder"
            ) from None
        for feed in feed_of(log.items, log.audiences.listed):
            add_items(scratch / "rest", partial(_always, feed))
        metadata = _metadata(log, Log.open(scratch / "rest"))
        for path in (scratch / "rest").iterdir():
            path.rename(scratch / path.name)
        (scratch / "rest").rmdir()
        save_metadata(scratch, metadata)
    return int(np.count_nonzero(erased))


def _always(feed: ItemFeed, log: Log) -> ItemFeed:
    return feed


def _rest(log: Log, erased: NDArray[np.bool_]) -> pa.Table:
    return log.table().filter(pa.array(~erased))


def _metadata(log: Log, rest: Log) -> Metadata:
    """How a log was made from which users were erased."""
    of_rest = rest.metadata
    return replace(
        log.metadata,
        rows=len(rest),
        positives=rest.positives,
        users=len(rest.users),
        items=len(rest.items),
        extras=of_rest.extras,
        since=of_rest.since,
        types=replace(log.metadata.types, context=of_rest.types.context),
        erased_from=(*log.metadata.erased_from, log.fingerprint()),
    )
