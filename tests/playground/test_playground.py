"""The shop of the playground: its shoppers react to the lists of a real service, and its page shows it."""

from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.helpers.processes import run_python
from tests.helpers.serving import client_of, serving
from unskew.core.config import Document
from unskew.core.errors import BadInput
from unskew.playground import shop as shop_module
from unskew.playground.app import create_app
from unskew.playground.run import Nights
from unskew.playground.shop import Shop, ShopSettings
from unskew.playground.shoppers import Shoppers, ShopperSettings
from unskew.serve import open_store
from unskew.serve.http.service import Service

SETTINGS = ShopSettings(users=60, products=30, steps=25)


@pytest.fixture(scope="module")
def shop() -> Shop:
    return Shop(SETTINGS)


@pytest.fixture(scope="module")
def folder(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("playground") / "shop"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shop_module, "TRAINING", {"epochs": 1, "sample": 300, "valid_examples": 40})
        shop.create(made)
    return made


@pytest.fixture
def service(folder: Path, tmp_path: Path) -> Iterator[Service]:
    with serving(folder / "current", tmp_path / "events.db", seed=3) as made:
        yield made


class InProcess:
    """The service without a network."""

    def __init__(self, service: Service) -> None:
        self.http = client_of(service)

    def post(self, path: str, body: Any = None) -> Document:
        answer = self.http.post(path, json=body or {})
        assert answer.status_code in (200, 202), answer.text
        document: Document = answer.json()
        return document


def shoppers_of(shop: Shop, service: Service, debias: float = 0.0) -> Shoppers:
    return Shoppers(shop, InProcess(service), ShopperSettings(visitors=20, shown=5), debias)


def test_the_shop_is_made_once_and_ends_now(shop: Shop, folder: Path) -> None:
    link = folder / "current"
    assert shop.create(folder) == link
    assert link.resolve().name == "night-0"
    table = shop.table(1_800_000_000)
    assert max(table["timestamp"].to_pylist()) < 1_800_000_000
    assert len(set(shop.titles)) == SETTINGS.products
    positives = [
        item
        for item, label in zip(*(table[name].to_pylist() for name in ("item_id", "label")), strict=True)
        if label
    ]
    assert [positives.count(f"p{number}") for number in range(SETTINGS.products)] == shop.clicks.tolist()


def test_a_day_is_recorded_as_it_happened(shop: Shop, service: Service) -> None:
    shoppers = shoppers_of(shop, service)
    day = shoppers.live()
    info = service.store.info()
    assert info["recommendations"] == day.lists == 20
    assert info["events"] == day.clicks + day.organic
    assert day.click_rate == pytest.approx(day.clicks / (20 * 5), abs=1e-4)
    assert 0 < day.liked < 1
    assert (day.day, shoppers.live().day) == (1, 2)
    answered = service.store.of_user(shoppers.state()["news"][0]["user"])
    assert all(row.user_id.startswith("u") for row in answered)


def test_the_slider_changes_what_is_shown(shop: Shop, service: Service) -> None:
    shoppers = shoppers_of(shop, service)
    for _ in range(5):
        before = shoppers.live()
    shoppers.debias = 1.0
    for _ in range(5):
        after = shoppers.live()
    assert (before.debias, after.debias) == (0.0, 1.0)
    assert before.gini is not None
    assert after.gini is not None
    assert after.gini < before.gini - 0.05
    assert after.coverage > before.coverage


def test_shoppers_follow_the_truth(shop: Shop, service: Service) -> None:
    """What a user likes surely is clicked wherever the user looks; what is never liked is not clicked."""
    sure = Shop(SETTINGS)
    sure.__dict__["preference"] = np.ones_like(shop.preference)
    never = Shop(SETTINGS)
    never.__dict__["preference"] = np.full_like(shop.preference, 1e-12)
    assert shoppers_of(sure, service).live().clicks > 40
    assert shoppers_of(never, service).live().clicks == 0


def test_what_sells_is_counted(shop: Shop, service: Service) -> None:
    shoppers = shoppers_of(shop, service)
    days = [shoppers.live() for _ in range(3)]
    state = shoppers.state()
    assert sum(day.clicks for day in days) >= sum(row["sold"] for row in state["sellers"]) > 0
    assert [row["sold"] for row in state["sellers"]] == sorted(
        (row["sold"] for row in state["sellers"]), reverse=True
    )
    places = {row["title"]: row["place"] for row in state["sellers"]}
    best = shop.titles[int(np.argmax(shop.clicks))]
    assert places.get(best, 1) == 1


def test_the_page_shows_the_state_and_moves_the_slider(shop: Shop, service: Service) -> None:
    shoppers = shoppers_of(shop, service)
    page = TestClient(create_app(shoppers, "http://localhost:1"), base_url="http://localhost")
    assert "A shop that lives" in page.get("/").text
    assert page.get("/static/service/page.css").status_code == 200
    assert page.put("/v1/playground/debias", json={"debias": 0.5}).json() == {"debias": 0.5}
    shoppers.note_night("published", "better")
    state = page.get("/v1/playground").json()
    assert (state["debias"], state["service"], state["days"]) == (0.5, "http://localhost:1", [])
    for wrong in ({"debias": 2}, {"debias": "1"}, {"debias": True}, {}, [], None):
        assert page.put("/v1/playground/debias", json=wrong).status_code == 422
    assert shoppers.debias == 0.5
    other = page.put("/v1/playground/debias", json={"debias": 1}, headers={"origin": "http://other.example"})
    assert other.status_code == 403
    renamed = TestClient(create_app(shoppers, "http://localhost:1"), base_url="http://other.example")
    assert renamed.get("/v1/playground").status_code == 421


@pytest.mark.parametrize(
    ("answers", "verdict"), [(['{"verdict": "published"}'], "published"), (["no"], "failed")]
)
def test_a_night_is_noted(
    shop: Shop,
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[str],
    verdict: str,
) -> None:
    """Each night is a run of its own, also after the playground was started again."""
    for name in ("first", "night-0", "night-1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return CompletedProcess(command, 0, answers[0], "the reason")

    monkeypatch.setattr("unskew.playground.run.subprocess.run", run)
    shoppers = shoppers_of(shop, service)
    Nights(tmp_path, "events.db", 1).pass_night(shoppers)
    assert str(tmp_path / "runs" / "night-2") in commands[0]
    assert [night["verdict"] for night in shoppers.state()["nights"]] == [verdict]


def test_settings_are_checked() -> None:
    with pytest.raises(BadInput, match="products"):
        Shop(ShopSettings(products=5))


@pytest.mark.integration
def test_the_playground_as_a_process(tmp_path: Path) -> None:
    """The service, the shoppers, a night and the page, from the command line."""
    folder = tmp_path / "shop"
    flags = ("--days", 4, "--day", 0.01, "--night", 2, "--port", 0, "--visitors", 10)
    ended = run_python("-m", "unskew", "playground", folder, *flags)
    assert ended.returncode == 0, ended.stderr
    assert "the shop is open: http://127.0.0.1:" in ended.stderr
    with open_store(folder / "events.db", "read") as store:
        info = store.info()
    assert info["recommendations"] == 40
    assert info["events"] > 0
    again = run_python("-m", "unskew", "playground", folder, *flags)
    assert again.returncode == 0, again.stderr
    assert "making a shop" not in again.stderr
