"""What the tests of the service's page share: the real service on loopback, and a real browser."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.browser import browser_fixture
from tests.helpers.processes import GUARD
from unskew.data.reading.prepare import prepare
from unskew.serve import open_store

uvicorn = pytest.importorskip("uvicorn", reason="needs the extra `serve`")

browser = browser_fixture
GENRES = ("Comedy", "Drama", "Western")
ITEMS, PEOPLE, BEGIN = 90, 240, 1_451_606_400  # in 2016
LEFT, RIGHT = "#list-log", "#list-fair"


def films(seed: int = 0) -> pa.Table:
    """A log in which everybody likes one genre, and a few films of each are shown far more than others."""
    random = np.random.default_rng(seed)
    shown = 1 / (1 + np.arange(ITEMS) // len(GENRES)) ** 1.1
    rows: dict[str, list[Any]] = {name: [] for name in ("user_id", "item_id", "timestamp", "title", "genres")}
    for person in range(PEOPLE):
        liked = np.where(np.arange(ITEMS) % len(GENRES) == person % len(GENRES), 6.0, 1.0) * shown
        for step, item in enumerate(random.choice(ITEMS, 14, replace=False, p=liked / liked.sum())):
            rows["user_id"].append(f"person {person}")
            rows["item_id"].append(f"i/{item}")
            rows["timestamp"].append(BEGIN + 3600 * int(random.integers(2000)) + step)
            rows["title"].append(f"Film {item:02d} ({1950 + item % 50})")
            rows["genres"].append(f"{GENRES[item % len(GENRES)]}|{'Old' if item % 50 < 25 else 'New'}")
    return pa.table(rows)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from unskew.serve.http.service import Service

    folder = tmp_path_factory.mktemp("page")
    prepare(films(), folder / "data", item_features="genres")
    with open_store(folder / "events.db") as store:
        made = Service("pulse-zero", store, data=folder / "data", noun="film")
        made.load()
        yield made
        made.close()


@pytest.fixture(scope="module")
def address(service: Any) -> Iterator[str]:
    """Where the service answers: a free port on loopback."""
    from unskew.serve.http.app import create_app

    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(service), log_config=None, ws="none", timeout_graceful_shutdown=2)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    server.should_exit = True
    thread.join(GUARD)
    listener.close()


@pytest.fixture(scope="module")
def context(browser: Any) -> Any:
    """A window of ordinary size. Most tests share it, since a new one takes seconds on a busy machine."""
    return browser.new_context(viewport={"width": 1200, "height": 900}, reduced_motion="reduce")


@pytest.fixture
def open_page(browser: Any, context: Any, address: str) -> Iterator[Any]:
    """A function that opens the page, with a screen of any kind. In the end no other host may have been
    asked, and nothing may have been reported but what is `expected`."""
    closed, asked, errors, known = [], [], [], []

    def opened(expected: tuple[str, ...] = (), **screen: Any) -> Any:
        known.extend(expected)
        own = browser.new_context(**screen) if screen else context
        page = own.new_page()
        closed.append(own if screen else page)
        page.set_default_timeout(1000 * GUARD)
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda said: errors.append(said.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.locator(".pick").first.wait_for()
        return page

    yield opened
    for each in closed:
        each.close()
    assert asked
    assert all(url.startswith(address) for url in asked)
    assert [said for said in errors if not any(one in said for one in known)] == []


def settle(page: Any) -> None:
    """Wait until both lists are those of the newest request."""
    # The page waits before it asks for another strength of debiasing; a longer timer of the page ends later.
    page.evaluate("() => new Promise(resolve => setTimeout(resolve, 250))")
    for side in (LEFT, RIGHT):
        page.locator(f'{side}[aria-busy="false"] .card[data-item]').first.wait_for()


def act_as_user(page: Any) -> None:
    """Let the page record what it shows and what is pressed."""
    page.locator("#act").check()
    settle(page)


def listed(page: Any, side: str) -> list[str]:
    settle(page)
    return page.locator(f"{side} .card").evaluate_all("all => all.map(one => one.dataset.item)")


def chosen(page: Any, words: str) -> None:
    """Type and take the first title."""
    page.locator("#search").fill(words)
    page.locator("#options li").first.click()
    settle(page)


def chips(page: Any) -> list[str]:
    return page.locator(".chip-title").all_inner_texts()


def sent(page: Any, path: str, act: Any) -> dict[str, Any]:
    """What an act makes the page post."""
    with page.expect_request(lambda request: request.url.endswith(path)) as waited:
        act()
    return waited.value.post_data_json


def set_debias(page: Any, debias: float) -> None:
    page.locator("#debias").fill(str(debias))
    settle(page)
