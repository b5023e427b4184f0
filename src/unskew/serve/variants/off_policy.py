"""How a run would have done that was never served, from the lists that a store recorded with their
propensities (`estimators.py`).

The run ranks for each recorded list what it would have shown to the user at that time, with everything that
had happened before. Only lists that could have shown any item are read, and only those after the end of what
the run was trained and chosen on.
"""

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb
import numpy as np
from numpy.typing import NDArray

from unskew.api.model import Model
from unskew.core.config import Document, check
from unskew.core.errors import BadInput
from unskew.serve.monitor.ranking import Ranking
from unskew.serve.store.impressions import ROWS, open_impressions, query_table
from unskew.serve.store.store import Store
from unskew.serve.variants import Estimating
from unskew.serve.variants.estimators import Estimate, LoggedLists, doubly_robust, logged_value, snips

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class OffPolicy:
    """What a run would have achieved, in answered items per list.

    lists: the number of lists that were read, of `whole` that could be.
    logged: what the recorded lists achieved.
    """

    store: str
    model: str
    lists: int
    whole: int
    logged: Estimate
    snips: Estimate
    doubly_robust: Estimate

    def document(self) -> Document:
        """Everything, ready for JSON."""
        return asdict(self)


def estimate_off_policy(store: Store, model: Model, settings: Estimating | None = None) -> OffPolicy:
    """Estimate how many items of a list would be answered if this model made the lists.

    Parameters
    ----------
    store
        A store whose lists were recorded with exploration.
    model
        A trained model.
    settings
        Which lists are read.

    Returns
    -------
    OffPolicy
        Both estimates, and what the recorded lists achieved.
    """
    settings = settings or Estimating()
    check(settings)
    ranking = Ranking(model)
    with (
        tempfile.TemporaryDirectory(prefix="unskew.") as folder,
        open_impressions(store, store.types, Path(folder), "reading the lists") as connection,
    ):
        ranking.follow(connection.sql(POSITIVES).to_arrow_reader(ROWS))
        connection.execute(LISTS, [ranking.trained_until])
        (whole,) = connection.execute("SELECT count(*) FROM explored").fetchall()[0]
        if not whole:
            raise BadInput(
                f"{store.name}: no list that could have shown any item after the end of what the run was "
                "trained and chosen on; serve with --explore to record some"
            )
        logged = _read(connection, ranking, settings, int(whole))
    return OffPolicy(
        store.name,
        model.name,
        len(logged.target),
        int(whole),
        logged_value(logged),
        snips(logged),
        doubly_robust(logged),
    )


POSITIVES = "SELECT user_id, item_id, timestamp FROM positives ORDER BY timestamp, user_id, item_id"
LISTS = """CREATE TABLE explored AS
SELECT *, row_number() OVER (ORDER BY timestamp, impression_id) - 1 AS number FROM (
    SELECT impression_id, user_id, any_value(timestamp) AS timestamp, count(*) AS size FROM showings
    WHERE recommended AND timestamp >= ?
    GROUP BY impression_id, user_id HAVING min(propensity) < 1
) AS lists"""
SAMPLED = """SELECT number, user_id, timestamp, size FROM explored WHERE number IN (SELECT unnest(?))
ORDER BY number"""
SHOWN = """SELECT e.number, s.item_id, s.clicked, s.propensity FROM showings AS s
JOIN explored AS e USING (impression_id, user_id) WHERE e.number IN (SELECT unnest(?))
ORDER BY e.number, s.position"""


def _read(
    connection: duckdb.DuckDBPyConnection, ranking: Ranking, settings: Estimating, whole: int
) -> LoggedLists:
    """The sampled lists, and what the run would have shown instead."""
    random = np.random.default_rng([settings.seed, 41])
    numbers = np.sort(random.permutation(whole)[: settings.sample])
    lists = query_table(connection, SAMPLED, [numbers.tolist()])
    shown = query_table(connection, SHOWN, [numbers.tolist()])
    users = lists["user_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    k = int(np.asarray(lists["size"]).max())
    target = ranking.lists(lists["user_id"].to_pylist(), np.asarray(lists["timestamp"], np.int64), k)
    own = np.asarray(lists["size"], np.int64)
    return LoggedLists(
        user=users.astype(np.int64),
        row=np.searchsorted(numbers, np.asarray(shown["number"], np.int64)),
        item=ranking.item_codes(shown["item_id"].to_pylist()),
        reward=np.asarray(shown["clicked"]).astype(float),
        propensity=np.asarray(shown["propensity"], np.float64),
        target=np.where(np.arange(target.shape[1]) < own[:, None], target, -1),
    )
