"""scikit-learn: a recommender with its conventions, which can be cloned, searched and put into a pipeline.

recommender = Recommender("itemknn").fit(events)        # a frame of user_id, item_id and timestamp
recommender.predict(["u1", "u2"])                       # a row of k item ids for each user
recommender.score(later_events)                         # NDCG@k of these lists
GridSearchCV(recommender, {"model": ["itemknn", "ease"]}, cv=TimeSeriesSplit(3)).fit(events_in_order_of_time)
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from unskew.api.create import create_model
from unskew.core.errors import BadInput
from unskew.data.log.split import split
from unskew.data.reading.prepare import read
from unskew.integrations.tracking import missing

try:
    from sklearn.base import BaseEstimator
except ImportError:
    raise missing("scikit-learn", "scikit-learn") from None


class Recommender(BaseEstimator):
    """A model of unskew as an estimator.

    Parameters
    ----------
    model
        The name of a registered model.
    k
        How many items `predict` recommends.
    debias
        The debiasing strength of `predict`; by default the one that the validation set chose.
    valid
        The fraction of the events, the newest, that chooses settings.
    settings
        Settings of the model and of its training.
    """

    def __init__(
        self,
        model: str = "pulse",
        k: int = 10,
        debias: float | None = None,
        valid: float = 0.2,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.k, self.debias, self.valid, self.settings = model, k, debias, valid, settings

    def fit(self, X: Any, y: Any = None) -> "Recommender":
        """Train on a frame of events with the columns that `unskew.read` finds; `y` is ignored."""
        if not 0 < self.valid < 1:
            raise BadInput(f"valid {self.valid}: expected between 0 and 1", field="valid")
        percent = 100 * self.valid
        cut = split(read(X), fractions=(100 - percent, percent, 0))
        self.model_ = create_model(self.model, self.settings).fit(cut, show_progress=False)
        return self

    def predict(self, X: Any) -> NDArray[np.object_]:
        """Recommend to users.

        Parameters
        ----------
        X
            User ids. Users who are not known get what is popular.

        Returns
        -------
        numpy.ndarray
            A row of k item ids for each user, the best first; None where there are fewer items.
        """
        if not hasattr(self, "model_"):
            raise BadInput("this recommender is not trained: call fit first")
        users = list(X)
        frame = self.model_.recommend(users=list(dict.fromkeys(users)), k=self.k, debias=self.debias).table
        lists: dict[Any, list[Any]] = {user: [] for user in users}
        for user, item in zip(frame["user_id"].to_pylist(), frame["item_id"].to_pylist(), strict=True):
            lists[user].append(item)
        answer = np.full((len(users), self.k), None, object)
        for row, user in enumerate(users):
            answer[row, : len(lists[user])] = lists[user]
        return answer

    def score(self, X: Any, y: Any = None) -> float:
        """NDCG@k of the lists, the mean over the users of a later frame; all events of a user are targets."""
        log = read(X)
        users = log.users.of(log.histories.everything()[0])
        targets: dict[Any, set[Any]] = {}
        for user, item in zip(users.to_pylist(), log.items.of(log.histories.ids).to_pylist(), strict=True):
            targets.setdefault(user, set()).add(item)
        gains = 1 / np.log2(np.arange(2, self.k + 2))
        hits = [
            [item in targets[user] for item in row]
            for user, row in zip(targets, self.predict(targets), strict=True)
        ]
        best = [gains[: len(items)].sum() for items in targets.values()]
        return float(np.mean(np.array(hits) @ gains / best))
