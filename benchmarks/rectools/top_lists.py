"""RecTools' models on rows that run.py exported: one top list per user, for each of some settings.

    build/rectools-env/bin/python benchmarks/rectools/top_lists.py ROWS.npz TRIALS.json LISTS.npz

Runs in RecTools' environment and knows nothing of our package. ROWS.npz has the arrays `user`, `item`, `type`
(a position in the weights of a trial) and `time` of all events before the lists are made, `users`, who gets a
list, `items`, what can be in it, and `hide`, whether a user's own items cannot. TRIALS.json is a list of
{"model": ..., "weights": [...], and the model's settings}. LISTS.npz gets the array `lists` (trials, users,
LENGTH) of items, best first, and `cpu`, the seconds of each trial.

An event counts its weight, and the weights of a pair of a user and an item are added, as RecTools' `Dataset`
does. Users without an event of positive weight, and the ends of short lists, get the items with most users
(RecTools' `PopularModel`).
"""

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from implicit.als import AlternatingLeastSquares  # type: ignore[import-not-found]  # noqa: E402
from implicit.nearest_neighbours import (  # type: ignore[import-not-found]  # noqa: E402
    BM25Recommender,
    TFIDFRecommender,
)
from rectools import Columns  # type: ignore[attr-defined, import-not-found, unused-ignore]  # noqa: E402
from rectools.dataset import Dataset  # type: ignore[import-not-found]  # noqa: E402
from rectools.models import (  # type: ignore[import-not-found]  # noqa: E402
    EASEModel,
    ImplicitALSWrapperModel,
    ImplicitItemKNNWrapperModel,
    PopularModel,
)

LENGTH = 100
Arrays = dict[str, Any]


def model_of(name: str, settings: dict[str, Any]) -> Any:
    """A model of RecTools, on one thread."""
    if name == "TF-IDF":
        return ImplicitItemKNNWrapperModel(TFIDFRecommender(num_threads=1, **settings))
    if name == "BM25":
        return ImplicitItemKNNWrapperModel(BM25Recommender(num_threads=1, **settings))
    if name == "EASE":
        return EASEModel(recommend_n_threads=1, **settings)
    assert name == "ALS", name
    return ImplicitALSWrapperModel(AlternatingLeastSquares(num_threads=1, random_state=0, **settings))


def dataset_of(rows: Arrays, weights: list[float]) -> Any:
    """The events with a positive weight."""
    weight = np.array(weights, np.float32)[rows["type"]]
    columns = rows["user"], rows["item"], weight, rows["time"].astype("datetime64[s]")
    names = Columns.User, Columns.Item, Columns.Weight, Columns.Datetime
    return Dataset.construct(pd.DataFrame(dict(zip(names, columns, strict=True)))[weight > 0])


def best(model: Any, dataset: Any, rows: Arrays) -> dict[int, list[int]]:
    """The top list of each user whom the model knows."""
    known = np.intersect1d(rows["users"], dataset.user_id_map.external_ids)
    items = np.intersect1d(rows["items"], dataset.item_id_map.external_ids)
    table = model.recommend(known, dataset, LENGTH, bool(rows["hide"]), items)
    return {int(user): list(map(int, part)) for user, part in table.groupby(Columns.User)[Columns.Item]}


def main(rows_file: str, trials_file: str, lists_file: str) -> None:
    """Make the lists of all trials."""
    with np.load(rows_file) as stored:
        rows = dict(stored)
    trials = json.loads(Path(trials_file).read_text(encoding="utf-8"))
    targets = dataset_of(rows, [0.0] * int(rows["type"].max()) + [1.0])
    popular = PopularModel().fit(targets)
    first = targets.user_id_map.external_ids[:1]
    common = popular.recommend(first, targets, LENGTH, False, rows["items"])[Columns.Item].to_numpy()
    lists = np.empty((len(trials), len(rows["users"]), min(LENGTH, len(common))), np.int64)
    cpu = []
    for place, trial in enumerate(trials):
        began = time.process_time()
        settings = {name: value for name, value in trial.items() if name not in ("model", "weights")}
        dataset = dataset_of(rows, trial["weights"])
        found = best(model_of(trial["model"], settings).fit(dataset), dataset, rows)
        for number, user in enumerate(rows["users"].tolist()):
            own = found.get(user, [])
            rest = common[~np.isin(common, own)]
            lists[place, number] = np.concatenate([own, rest])[: lists.shape[2]]
        cpu.append(time.process_time() - began)
    np.savez_compressed(lists_file, lists=lists, cpu=np.array(cpu))


if __name__ == "__main__":
    main(*sys.argv[1:])
