"""The page of the service shows hostile titles, ids, features and answers as text."""
# ruff: noqa: F811

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.hostile import hostile, hostile_file
from tests.helpers.paged import (  # noqa: F401
    LEFT,
    RIGHT,
    act_as_user,
    address,
    browser,
    chips,
    context,
    open_page,
    settle,
)
from unskew.data.reading.prepare import prepare
from unskew.serve import open_store
from unskew.serve.http.service import Service

GENRES = hostile("genre 0"), hostile_file("genre 1")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service over a log in which every text is hostile."""
    random, rows = np.random.default_rng(0), 1500
    items = np.minimum((40 * random.random(rows) ** 2).astype(int), 39)
    table = pa.table(
        {
            "user_id": [hostile(f"user {n}") for n in random.integers(0, 60, rows)],
            "item_id": [hostile_file(f"item {n}") for n in items],
            "timestamp": 1_451_606_400 + 600 * np.arange(rows),
            "title": [hostile(f"title {n}") if n % 2 else hostile_file(f"title {n}") for n in items],
            "genres": [GENRES[n % 2] for n in items],
        }
    )
    folder = tmp_path_factory.mktemp("hostile")
    prepare(table, folder / hostile_file("data"), item_features="genres")
    with open_store(folder / hostile_file("events.db")) as store:
        made = Service("pulse-zero", store, data=folder / hostile_file("data"))
        made.load()
        yield made
        made.close()


def test_hostile_text_is_text(open_page: Any) -> None:
    page = open_page()
    opened: list[str] = []
    page.on("dialog", lambda dialog: (opened.append(dialog.message), dialog.dismiss()))
    assert "<script>alert(" in page.locator("#examples").inner_text()
    page.locator("#user").fill(hostile("user 7"))
    page.locator("#user").press("Enter")
    settle(page)
    assert hostile("user 7") in page.locator("#history-head").inner_text()
    assert chips(page)
    assert all("alert('title" in text for text in chips(page))
    for side in (LEFT, RIGHT):
        titles = page.locator(f"{side} h3.title").all_inner_texts()
        assert titles
        assert all("alert('title" in title for title in titles)
    page.locator(f"{LEFT} .meta", has_text="alert('genre").first.wait_for()
    page.locator("#search").fill("<script>")
    page.locator("#options li").first.wait_for()
    assert "<script>alert('title" in page.locator(".option-title").first.inner_text()
    page.locator("#options li").first.click()
    settle(page)
    act_as_user(page)
    page.locator(f"{RIGHT} .watch").first.click()
    page.locator(".toast", has_text="alert('title").wait_for()
    page.locator("#tab-monitor").click()
    page.locator("#monitor .spark").first.wait_for()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert opened == []


def test_hostile_answers_are_text(open_page: Any) -> None:
    page = open_page(expected=("status of 422",))
    refusal = {"error": {"field": hostile("field"), "reason": hostile("reason")}, "request_id": hostile("id")}
    page.route("**/v1/recommendations", lambda route: route.fulfill(status=422, json=refusal))
    page.route(
        "**/v1/model",
        lambda route: route.fulfill(
            json=route.fetch().json() | {"model": hostile("model"), "version": "<b>"}
        ),
    )
    page.reload()
    page.locator(".pick").first.click()
    page.locator(f"{LEFT} .trouble", has_text="alert('reason')").wait_for()
    assert hostile("model") in page.locator("#answers").inner_text()
    assert page.locator(f"{LEFT} dt").inner_text() == hostile("field")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
