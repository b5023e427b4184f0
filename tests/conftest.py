"""Shared by all tests: one thread, small logs, and a random log that has everything (ties, negatives, unknown
users and items)."""

import os
import subprocess
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import settings

import unskew
from tests.helpers.plugins import restored_registries
from unskew.data.log.log import Log
from unskew.data.log.preparation import Metadata
from unskew.data.log.views import offsets_of
from unskew.report import charts
from unskew.training.trainer import Trainer

torch.set_num_threads(1)  # the default number made a suite ten times slower on a shared machine
settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="skip tests that train, draw or start a process")


@pytest.fixture(scope="session", autouse=True)
def fast(request: pytest.FixtureRequest) -> Iterator[None]:
    """With `--fast`, a test is skipped at the moment when it begins something slow. So no test has to be
    marked by hand, and none can be forgotten."""

    def skip(*_: object, **__: object) -> None:
        pytest.skip("slow: it trains, draws a chart, or starts a process or a browser")

    with pytest.MonkeyPatch.context() as patched:
        if request.config.getoption("--fast"):
            for owner, name in (
                (subprocess.Popen, "__init__"),
                (BaseProcess, "start"),
                (os, "fork"),
                (Trainer, "run"),
                (charts, "_rendered"),
            ):
                patched.setattr(owner, name, skip)
        yield


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--fast"):
        for item in items:
            # A browser that is refused its process leaves an event loop behind, so it is not begun at all.
            if item.get_closest_marker("slow") or "browser" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.skip(reason="slow: it computes for seconds"))


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    """Forget the models and estimators that a test defines, so that the next one finds only ours."""
    with restored_registries():
        yield


READS = 5, 4  # a history and an audience: far fewer than there are, and what is older still counts as seen
SMALL_DEPS: dict[str, Any] = {"width": 8, "layers": 1, "heads": 1, "inner": 8, "hidden": 8}
SMALL_DEPS |= {"history": READS[0], "audience": READS[1], "unsupervised_epochs": 1, "epochs": 2}
SMALL_DEPS |= {"batch_size": 128, "sequences": 64, "valid_examples": 100, "learning_rate": 0.01}


def random_table(
    rows: int = 2000,
    users: int = 60,
    items: int = 40,
    times: int = 500,
    seed: int = 0,
    negatives: float = 0.3,
) -> pa.Table:
    random = np.random.default_rng(seed)
    skewed = np.minimum((items * random.random(rows) ** 2).astype(int), items - 1)
    return pa.table(
        {
            "user": [f"u{code}" for code in random.integers(0, users, rows)],
            "item": [f"i{code}" for code in skewed],
            "time": random.integers(0, times, rows),
            "label": (random.random(rows) >= negatives).astype(np.int8),
        }
    )


@pytest.fixture(scope="session")
def log() -> unskew.Log:
    return unskew.read(random_table())


@pytest.fixture(scope="session")
def positive_log() -> unskew.Log:
    return unskew.read(random_table(seed=1, negatives=0.0))


@pytest.fixture(scope="session")
def logged() -> unskew.Log:
    """Mostly negatives, with the probability that each row was shown; no two rows similar."""
    table = random_table(negatives=0.7, times=10**9)
    return unskew.read(table.append_column("propensity", [[(n % 9 + 1) / 10 for n in range(len(table))]]))


@pytest.fixture(scope="session")
def split(log: unskew.Log) -> unskew.Split:
    return unskew.split(log)


@pytest.fixture(scope="session")
def small_split() -> unskew.Split:
    """Few positives and nothing else: for tests that train again and again."""
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30, negatives=0.0)))


@pytest.fixture(scope="session")
def model_split() -> unskew.Split:
    """What `model` is trained on."""
    return unskew.split(unskew.read(random_table(rows=900, users=40, items=30)))


@pytest.fixture(scope="session")
def model(model_split: unskew.Split) -> "unskew.Model":
    return unskew.DEPS(**SMALL_DEPS).fit(model_split)


@pytest.fixture(scope="session")
def saved(model: "unskew.Model", tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `model`."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    model.save(folder)
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A file to prepare."""
    pq.write_table(random_table(rows=3000), tmp_path / "log.parquet")
    return tmp_path / "log.parquet"


@pytest.fixture
def data(source: Path, tmp_path: Path) -> Path:
    """A prepared folder."""
    unskew.prepare(source, tmp_path / "data")
    return tmp_path / "data"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file and give its path."""

    def file(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return file


def quick(rows: list[tuple[int, int, int]]) -> unskew.Log:
    """The log of some positives, made without an engine: a property needs hundreds of them."""
    columns: dict[str, np.ndarray] = {}
    found = np.array(sorted(set(rows)), np.int64).T
    for place in (0, 1):
        order = sorted(
            set(found[place].tolist()), key=lambda code: (found[2][found[place] == code].min(), str(code))
        )
        found[place] = [order.index(code) for code in found[place].tolist()]
    user, item, time = found
    by_user, by_item = np.lexsort((item, time, user)), np.lexsort((user, time, item))
    columns |= {
        "user": user[by_user].astype(np.int32),
        "item": item[by_user].astype(np.int32),
        "time": time[by_user],
    }
    columns |= {
        "label": np.ones(len(user), np.int8),
        "history_offsets": offsets_of(np.sort(user), int(user.max()) + 1),
    }
    columns |= {"audience_user": user[by_item].astype(np.int32), "audience_time": time[by_item]}
    columns |= {"audience_offsets": offsets_of(np.sort(item), int(item.max()) + 1)}
    users, items = (pa.table({"id": np.arange(codes.max() + 1)}) for codes in (user, item))
    return Log.of_columns(columns, users, items, Metadata())


def columns(log: unskew.Log) -> dict[str, Any]:
    """The rows of a log as plain lists with the caller's ids."""
    return log.table().to_pydict()
