"""The real packages of other tools follow a training and load a run (make test-integrations)."""

import gc
import json
from pathlib import Path

import numpy as np
import pytest

import unskew
from tests.conftest import random_table

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]  # warnings are the tools' own
SETTINGS = {"epochs": 3, "patience": 9, "sample": 500, "valid_examples": 50}


@pytest.fixture(scope="module")
def split() -> unskew.Split:
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0)))


@pytest.fixture(scope="module")
def run(split: unskew.Split, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "shop"
    unskew.create_model("pulse", SETTINGS).fit(split, folder, show_progress=False)
    return folder


def test_mlflow_has_each_epoch_once(split: unskew.Split, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    from unskew.integrations import mlflow

    uri = f"sqlite:///{tmp_path / 'tracking.db'}"
    model = unskew.create_model("pulse", SETTINGS)
    model.fit(split, on_record=mlflow.track(uri, "first", parameters=SETTINGS), show_progress=False)
    again = mlflow.track(uri, "first")  # as a run that is resumed does: all records come once more
    for record in model.records:
        again(record)
    client = MlflowClient(uri)
    (stored,) = client.search_runs([client.get_experiment_by_name("unskew").experiment_id])
    history = client.get_metric_history(stored.info.run_id, "valid/ordinary/ndcg_at_10")
    sent = {record.step: record.valid["ordinary"]["ndcg@10"] for record in model.records}
    assert {metric.step: metric.value for metric in history} == pytest.approx(sent)
    assert len(history) == len(sent)
    assert stored.data.params["sample"] == "500"


def test_mlflow_serves_a_run(run: Path, tmp_path: Path) -> None:
    import mlflow as tool
    import pandas as pd

    from unskew.integrations import mlflow

    mlflow.save_model(run, tmp_path / "model")
    answer = tool.pyfunc.load_model(str(tmp_path / "model")).predict(pd.DataFrame({"user_id": ["u1", "u2"]}))
    pd.testing.assert_frame_equal(answer, unskew.load(run).recommend(users=["u1", "u2"]).to_pandas())
    assert not [path for path in (tmp_path / "model").rglob("*") if path.suffix in {".pkl", ".pickle"}]
    with pytest.raises(unskew.BadInput, match="is there already"):
        mlflow.save_model(run, tmp_path / "model")


def test_wandb_writes_an_offline_run(split: unskew.Split, tmp_path: Path) -> None:
    from unskew.integrations import wandb

    send = wandb.track("shop", "first", folder=tmp_path, parameters=SETTINGS)
    model = unskew.create_model("pulse", SETTINGS).fit(split, on_record=send, show_progress=False)
    del send, model
    gc.collect()  # the run ends with what sends to it
    (written,) = tmp_path.glob("wandb/offline-run-*/run-first.wandb")
    assert b"valid/ordinary/ndcg@10" in written.read_bytes()


def test_the_hub_has_the_run_and_its_card(run: Path, tmp_path: Path) -> None:
    from unskew.integrations import hub

    folder = hub.save_pretrained(run, tmp_path / "pushed")
    assert not (folder / "checkpoint.safetensors").exists()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "library_name: unskew" in card
    assert "histories of all users" in card
    lists = hub.from_pretrained(folder).recommend(users=["u1"], k=5).table
    assert lists.equals(unskew.load(run).recommend(users=["u1"], k=5).table)
    with pytest.raises(unskew.BadInput, match="neither a folder nor downloaded before"):
        hub.from_pretrained("nobody/nothing")


def test_a_public_repository_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from unskew.integrations import hub

    uploaded: list[str] = []

    class Api:
        def create_repo(self, repository: str, private: bool, exist_ok: bool) -> None:
            pass

        def repo_info(self, repository: str) -> object:
            return type("Info", (), {"private": False})

        def upload_folder(self, repo_id: str, folder_path: Path) -> None:
            uploaded.extend(sorted(path.name for path in folder_path.iterdir()))

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    with pytest.raises(unskew.BadInput) as refused:
        hub.push_to_hub(run, "me/shop")
    assert (refused.value.field, uploaded) == ("public", [])
    hub.push_to_hub(run, "me/shop", public=True)
    assert {"README.md", "card.json", "config.json"} <= set(uploaded)


def test_scikit_learn_clones_scores_and_searches() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, TimeSeriesSplit

    from unskew.integrations.sklearn import Recommender

    events = random_table(rows=1200, users=40, items=30, negatives=0.0).sort_by("time").to_pandas()
    recommender = Recommender("popularity", k=5)
    assert clone(recommender).get_params() == recommender.get_params()
    fitted = recommender.fit(events[:900])
    lists = fitted.predict(["u1", "u2", "u1"])
    assert lists.shape == (3, 5)
    assert (lists[0] == lists[2]).all()
    later = events[900:]
    relevant = later.groupby("user")["item"].agg(set)
    gains = 1 / np.log2(np.arange(2, 7))
    expected = [
        sum(g for g, item in zip(gains, fitted.predict([user])[0], strict=True) if item in items)
        / gains[: len(items)].sum()
        for user, items in relevant.items()
    ]
    assert fitted.score(later) == pytest.approx(np.mean(expected))
    search = GridSearchCV(recommender, {"model": ["popularity", "itemknn"]}, cv=TimeSeriesSplit(2)).fit(
        events
    )
    assert json.dumps(search.best_params_) in ('{"model": "popularity"}', '{"model": "itemknn"}')
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
