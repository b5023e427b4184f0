"""The page of the service when something is wrong, on small and dark screens, and its other views."""
# ruff: noqa: F811

from typing import Any

import numpy as np
import pytest

from tests.helpers.paged import (  # noqa: F401
    LEFT,
    RIGHT,
    act_as_user,
    address,
    browser,
    chosen,
    context,
    listed,
    open_page,
    sent,
    service,
    settle,
)


def test_nothing_found_is_said(open_page: Any) -> None:
    page = open_page()
    page.locator("#search").fill("no such words")
    page.locator("#drop-head", has_text="No film has “no such words” in its name").wait_for()
    assert page.locator("#options li").count() == 0
    assert page.locator("#search").get_attribute("aria-expanded") == "false"


def test_a_service_that_is_busy_or_refuses_is_told(open_page: Any) -> None:
    page = open_page(expected=("status of 503", "status of 422"))

    def refuse(route: Any) -> None:
        if route.request.post_data_json["debias"] == 0:
            error = {"field": "service", "reason": "the run is still being loaded"}
            route.fulfill(status=503, headers={"retry-after": "1"}, json={"error": error, "request_id": "1"})
        else:
            error = {"field": "history", "reason": "at most 1000 items"}
            route.fulfill(status=422, json={"error": error, "request_id": "2"})

    page.route("**/v1/recommendations", refuse)
    page.locator(".pick").first.click()
    busy, wrong = page.locator(f"{LEFT} .trouble"), page.locator(f"{RIGHT} .trouble")
    busy.wait_for()
    wrong.wait_for()
    assert busy.get_attribute("role") == "alert"
    assert "The service is busy" in busy.inner_text()
    assert "The run is still being loaded." in busy.inner_text()
    assert wrong.locator("dt").inner_text() == "history"
    assert wrong.locator("dd").inner_text() == "at most 1000 items"
    assert page.locator(".card[data-item]").count() == 0
    page.unroute("**/v1/recommendations")
    settle(page)  # it tries again by itself after a second
    assert page.locator(".trouble").count() == 0


def test_a_service_that_is_gone_is_told_and_found_again(open_page: Any) -> None:
    page = open_page(expected=("ERR_CONNECTION_REFUSED",))
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    page.locator("#search").fill("film")
    page.locator("#drop-head", has_text="The service does not answer").wait_for()
    page.keyboard.press("Escape")
    page.locator(".pick").first.click()
    page.locator(f"{RIGHT} .trouble", has_text="The service does not answer").wait_for()
    page.unroute("**/v1/**")
    page.locator(f"{RIGHT} .trouble").get_by_role("button", name="Try again").click()
    assert len(listed(page, RIGHT)) == 8


def test_an_event_that_is_refused_is_not_called_logged(open_page: Any) -> None:
    page = open_page()
    chosen(page, "Film 45")
    rejected = [{"index": 0, "field": "timestamp", "reason": "is more than a day after now"}]
    page.route(
        "**/v1/events",
        lambda route: route.fulfill(json={"accepted": 0, "duplicates": 0, "rejected": rejected}),
    )
    act_as_user(page)
    page.locator(f"{LEFT} .watch").first.click()
    page.locator(".toast", has_text="Not logged").wait_for()
    assert "timestamp: is more than a day after now" in page.locator(".toast").inner_text()
    assert page.locator(".chip .logged").count() == 0
    assert page.locator(f"{LEFT} .watch").first.is_enabled()


def test_a_model_without_a_debias_has_one_list(open_page: Any) -> None:
    page = open_page()
    debias = {"available": False, "default": None}
    page.route("**/v1/model", lambda route: route.fulfill(json=route.fetch().json() | {"debias": debias}))
    page.reload()
    page.locator("#no-debias").wait_for()
    assert page.locator(LEFT).is_hidden()
    assert page.locator("#debias").is_hidden()
    body = sent(page, "/v1/recommendations", page.locator(".pick").first.click)
    assert "debias" not in body
    page.locator(f"{RIGHT} .card[data-item]").first.wait_for()
    assert page.locator(f"{RIGHT} .badge").count() == 0


def test_the_lists_do_not_jump_while_they_load(open_page: Any) -> None:
    page = open_page()
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    page.route("**/v1/recommendations", hold)
    page.locator(".pick").first.click()
    page.locator(f"{RIGHT} .waiting").wait_for()
    assert page.locator(RIGHT).get_attribute("aria-busy") == "true"
    height = f"document.querySelector('{RIGHT}').getBoundingClientRect().height"
    before = page.evaluate(height)
    for route in held:
        route.continue_()
    settle(page)
    assert abs(page.evaluate(height) - before) < 0.1 * before


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wider_than_a_phone(open_page: Any, scheme: str) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme)
    beyond = """() => Array.from(document.querySelectorAll('body *'))
      .filter((one) => !one.closest('.wide, svg, .heard, .skip') && one.getClientRects().length)
      .filter((one) => one.getBoundingClientRect().right > 360.5).map((one) => one.className)"""
    wide = "document.documentElement.scrollWidth"
    assert (page.evaluate(wide), page.evaluate(beyond)) == (360, [])
    page.locator("#search").fill("film")
    page.locator("#options li").first.click()
    settle(page)
    assert (page.evaluate(wide), page.evaluate(beyond)) == (360, [])
    tops = [page.locator(side).bounding_box()["y"] for side in (LEFT, RIGHT)]
    assert tops[1] > tops[0] + 300  # one below the other
    page.locator("#tab-monitor").click()
    page.locator("#monitor section").first.wait_for()
    assert (page.evaluate(wide), page.evaluate(beyond)) == (360, [])


def test_dark_mode_is_dark_and_text_can_be_read(open_page: Any) -> None:
    colours = """(what) => { const style = getComputedStyle(document.querySelector(what));
      const parts = (said) => said.match(/[\\d.]+/g).slice(0, 3).map(Number);
      return [style.color, style.backgroundColor].map(parts); }"""

    def light(colour: list[float]) -> float:
        linear = [
            one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4
            for one in np.array(colour) / 255
        ]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    for scheme, dark in (("light", False), ("dark", True)):
        page = open_page(color_scheme=scheme)
        chosen(page, "Film 45")
        ink, ground = (light(one) for one in page.evaluate(colours, "body"))
        assert (ground < 0.05, ink > 0.5) == (dark, dark)
        card = light(page.evaluate(colours, ".card")[1])
        for what in (".meta", ".sum", ".watch", ".badge", ".bars dt", ".value", ".soft", "#again"):
            if page.locator(what).count():
                text = light(page.evaluate(colours, what)[0])
                contrast = (max(text, card) + 0.05) / (min(text, card) + 0.05)
                assert contrast >= 4.5, what


def test_the_monitor_shows_what_was_logged(open_page: Any, service: Any) -> None:
    page = open_page()
    chosen(page, "Film 45")
    act_as_user(page)
    page.locator(f"{LEFT} .watch").first.click()
    page.locator(".chip .logged").wait_for()
    service._monitor = None  # which is kept for a minute
    page.locator("#tab-monitor").click()
    page.locator(".spark-cards:not(.waiting)").first.wait_for()
    assert page.locator(".spark svg[aria-label^='Events: ']").is_visible()
    heads = page.locator(".sheet thead th").all_inner_texts()
    assert heads[1].endswith("(open)")  # lists are recorded when they are shown, not in the year of the log
    rows = page.locator(".sheet tbody tr").all_inner_texts()
    assert int(next(row for row in rows if row.startswith("Lists recommended")).split()[2]) >= 2
    assert any(row.startswith("Films shown") for row in rows)
    assert page.url.endswith("#monitor")


def test_all_tiles_of_the_monitor_are_of_one_window(open_page: Any) -> None:
    """Also where that window lacks a value which an earlier one has, and where a newer one is still open."""
    page = open_page(viewport={"width": 390, "height": 844})
    values = {"events": 1, "gini_shown": 0.25}
    windows = [
        {"start": "2024-01-01T00:00:00Z", "whole": True, "events": 10, "gini_shown": 0.5},
        {"start": "2024-01-08T00:00:00Z", "whole": True, "events": 20, "gini_shown": None},
        {"start": "2024-01-15T00:00:00Z", "whole": False, **values},
    ]
    page.route("**/v1/monitor", lambda route: route.fulfill(json={"windows": windows, "healthy": True}))
    page.locator("#tab-monitor").click()
    page.locator(".spark-cards:not(.waiting)").first.wait_for()
    assert "began on 2024-01-08" in page.locator("#monitor").inner_text()
    assert page.locator(".spark-value").all_inner_texts() == ["20", "–"]
    kinds = "tile => [...tile.querySelectorAll('circle')].map(one => one.getAttribute('class'))"
    points = page.locator(".spark").evaluate_all(f"tiles => tiles.map({kinds})")
    assert points == [["", "open"], ["open"]]
    (filled,) = page.locator(".spark circle:not(.open)").evaluate_all(
        "all => all.map(one => one.cx.baseVal.value)"
    )
    assert filled == 90  # in the middle of three windows
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    table = page.locator(".wide")
    assert table.evaluate("one => getComputedStyle(one).overflowX") == "auto"
    assert "the table scrolls" in page.locator("#monitor").inner_text()


def test_a_token_is_asked_for_and_used(open_page: Any) -> None:
    page = open_page(expected=("status of 401",))
    error = {"error": {"field": "Authorization", "reason": "expected a header"}, "request_id": "1"}

    def guarded(route: Any) -> None:
        if route.request.headers.get("authorization") == "Bearer open sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json=error)

    page.route("**/v1/**", guarded)
    page.reload()
    page.get_by_label("Token").fill("open sesame")
    page.get_by_role("button", name="Use it").click()
    page.locator(".pick").first.wait_for()
    assert page.locator(".trouble").count() == 0


def test_titles_are_text_and_never_markup(open_page: Any) -> None:
    page = open_page()
    evil = "<img src=x onerror=window.broken=1> (1999)"

    def renamed(route: Any) -> None:
        answer = route.fetch().json()
        for item in answer["items"]:
            item["title"] = evil
        route.fulfill(json=answer)

    page.route("**/v1/items?*", renamed)
    page.route("**/v1/recommendations", renamed)
    page.reload()
    page.locator(".picks .pick").last.click()
    settle(page)
    assert page.locator(f"{LEFT} .title").first.inner_text() == evil.removesuffix(" (1999)")
    assert page.locator("main img").count() == 0
    assert page.evaluate("window.broken") is None


def test_a_report_is_linked_where_there_is_one(open_page: Any) -> None:
    page = open_page()
    page.locator("#tab-report").click()
    assert "unskew serve RUN --store STORE --report FILE" in page.locator("#report").inner_text()
    page.route("**/v1/model", lambda route: route.fulfill(json=route.fetch().json() | {"report": True}))
    page.reload()
    link = page.get_by_role("link", name="Open the report")
    link.wait_for()
    assert link.evaluate("one => new URL(one.href).pathname") == "/report"
