"""Histories that hold context events, such as views and carts, beside the positives.

An event of a context type is its item's code plus a multiple of `STRIDE`: once for the first type, twice for
the second one, and so on. So a history stays one row of whole numbers, in the order of time. Of events at
one moment, positives come first and then the types in their order.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unskew.core.errors import BadInput
from unskew.data.batches.batch import Batch
from unskew.data.log.log import Log
from unskew.data.log.views import PAD, Ints, Sequences, offsets_of

STRIDE = 1 << 27  # more than any catalogue has items
MOST_TYPES = 15  # for which a 32-bit number has room


def check_types(types: Sequence[str]) -> None:
    """Refuse more types than a number has room for."""
    if len(types) > MOST_TYPES:
        raise BadInput(f"{len(types)} context types: expected at most {MOST_TYPES} in a history")


def split_events(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The codes of the items of some events, and their kinds: 0 for positives, then the types. PAD stays PAD
    and is of no type."""
    is_event = ids != PAD
    codes = torch.where(is_event, ids % STRIDE, PAD)
    return codes, torch.where(is_event, ids // STRIDE, 0)


def histories_with_context(log: Log, types: Sequence[str]) -> tuple[Sequences, Ints]:
    """The positives and the context events of each user as one sequence; and of each event its row in the
    log, which is PAD for a context event."""
    count = log.positives
    users, ids, times = ([np.asarray(part[:count], np.int64)] for part in (log.user, log.item, log.time))
    for kind, name in enumerate(types, 1):
        user, item, time = log.context[name].events()
        users.append(user)
        ids.append(item + kind * STRIDE)
        times.append(time)
    user, id, time = (np.concatenate(parts) for parts in (users, ids, times))
    row = np.full(len(user), PAD)
    row[:count] = np.arange(count)
    order = np.lexsort((id, time, user))
    offsets = offsets_of(user[order], len(log.users))
    return Sequences(id[order].astype(np.int32), time[order], offsets), row[order]


def with_context_events(context: Batch, types: Sequence[str], newest: int) -> Batch:
    """The same contexts, with the newest events of all kinds in their histories: those of the given histories
    and, strictly before the time of each context, the context events of its user. Bare histories belong to
    no user, so they stay as they are."""
    log, device = context.log, context.user_B.device
    user, time = context.user_B.cpu().numpy(), context.times_B.cpu().numpy()
    ids, times = [context.history_BL.cpu().numpy()], [context.history_times_BL.cpu().numpy()]
    for kind, name in enumerate(types, 1):
        if log is None or name not in log.context:
            continue
        view = log.context[name].histories
        window = view.before(user, time, newest)
        codes = view.padded(*window).astype(np.int64)
        ids.append(np.where(codes == PAD, PAD, codes + kind * STRIDE))
        times.append(view.padded_times(*window))
    id, when = np.concatenate(ids, axis=1), np.concatenate(times, axis=1)
    # Events of one moment keep the order of the kinds, and padding comes first.
    order = np.argsort(np.where(id == PAD, np.iinfo(np.int64).min, when), axis=1, kind="stable")
    order = order[:, max(order.shape[1] - newest, 0) :]
    id, when = (np.take_along_axis(table, order, axis=1) for table in (id, when))
    histories = torch.from_numpy(id).to(device), torch.from_numpy(when).to(device)
    return context._replace(history_BL=histories[0], history_times_BL=histories[1])
