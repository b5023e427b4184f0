"""MLflow: the numbers of each epoch in a tracking server, and a run as a model of its own kind.

    model.fit(split, "run", on_record=mlflow.track("sqlite:///tracking.db", "shop"))
    mlflow.save_model("run", "model")           # then mlflow.pyfunc.load_model, or `mlflow models serve`

A saved model is the folder of the run and a reference to this module, so nothing is pickled.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unskew.api.create import load
from unskew.api.model import Model
from unskew.core.errors import BadInput
from unskew.integrations.tracking import missing, numbers
from unskew.training.epoch_record import EpochRecord, OnRecord

if TYPE_CHECKING:
    import pandas as pd

RUN = "unskew.run"  # the tag by which a run that is resumed is found again


def track(
    uri: str, name: str, experiment: str = "unskew", parameters: Mapping[str, Any] | None = None
) -> OnRecord:
    """Send the numbers of each record to a tracking server, at the training step of the record.

    MLflow has no @ in names, so NDCG@10 is `ndcg_at_10` there.

    Parameters
    ----------
    uri
        The address of the server, such as `http://127.0.0.1:5000` or `sqlite:///tracking.db`.
    name
        The name of the run. A run of this name that is there already is continued, and records that it has
        are skipped.
    experiment
        The experiment that the run belongs to. It is made if it is not there.
    parameters
        Settings to store with the run.

    Returns
    -------
    callable
        What `Model.fit` takes as `on_record`.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
    except ImportError:
        raise missing("mlflow-skinny", "MLflow") from None
    client = MlflowClient(uri)
    there = client.get_experiment_by_name(experiment)
    where = client.create_experiment(experiment) if there is None else there.experiment_id
    same = client.search_runs([where], f"tags.`{RUN}` = '{name}'")
    run = same[0] if same else client.create_run(where, tags={RUN: name}, run_name=name)
    settings = [Param(key, str(value)) for key, value in (parameters or {}).items()]
    client.log_batch(run.info.run_id, params=settings)

    def newest(tag: str) -> int:
        return max((sent.step for sent in client.get_metric_history(run.info.run_id, tag)), default=-1)

    def send(record: EpochRecord) -> None:
        values = {tag.replace("@", "_at_"): value for tag, value in numbers(record).items()}
        if record.step > newest("epoch"):
            metrics = [Metric(tag, value, 0, record.step) for tag, value in values.items()]
            client.log_batch(run.info.run_id, metrics=metrics)

    return send


def save_model(run: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Save a run as an MLflow model.

    Parameters
    ----------
    run
        The folder of a run.
    path
        The folder to write. It must not exist.
    """
    try:
        from mlflow.pyfunc import save_model as save
    except ImportError:
        raise missing("mlflow-skinny", "MLflow") from None
    folder, target = Path(run), Path(path)
    load(folder)  # or an error that says what is wrong with the run
    if target.exists():
        raise BadInput(f"{target}: is there already; choose another folder", field="path")
    try:
        save(str(target), loader_module=__name__, data_path=str(folder), pip_requirements=["unskew"])
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _load_pyfunc(path: str) -> "Lists":
    """What MLflow calls to load a saved model."""
    return Lists(load(path))


class Lists:
    """A trained model as MLflow asks it: a frame with a column `user_id` becomes a frame of lists."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, model_input: "pd.DataFrame", params: Mapping[str, Any] | None = None) -> "pd.DataFrame":
        """Recommend to the users of a frame.

        Parameters
        ----------
        model_input
            A frame with a column `user_id`.
        params
            Options of `Model.recommend`, such as `k` and `debias`.

        Returns
        -------
        pandas.DataFrame
            The columns of `Recommendations`: user, rank, item and score.
        """
        if "user_id" not in model_input:
            raise BadInput("expected a column user_id", field="user_id")
        options: dict[str, Any] = dict(params or {})
        return self.model.recommend(users=model_input["user_id"].tolist(), **options).to_pandas()
