"""The page of the service in a real browser: Debian's Chromium, headless, without any other host."""
# ruff: noqa: F811

import re
from typing import Any

import numpy as np

from tests.helpers.paged import (  # noqa: F401
    GENRES,
    LEFT,
    RIGHT,
    act_as_user,
    address,
    browser,
    chips,
    chosen,
    context,
    listed,
    open_page,
    sent,
    service,
    set_debias,
    settle,
)


def test_a_typed_title_gives_two_lists_that_differ(open_page: Any) -> None:
    page = open_page()
    assert page.locator(f"{LEFT} .empty").is_visible()
    assert page.locator("#history").is_hidden()
    page.locator("#search").fill("film 3")
    found = page.locator("#options li")
    found.first.wait_for()
    assert all("Film 3" in text for text in page.locator(".option-title").all_inner_texts())
    assert page.locator("#search").get_attribute("aria-expanded") == "true"
    found.first.click()
    left, right = listed(page, LEFT), listed(page, RIGHT)
    assert len(chips(page)) == 1
    assert (len(left), len(right)) == (8, 8)
    assert left != right
    card = page.locator(f"{LEFT} .card").first
    assert card.locator("h3").inner_text().startswith("Film ")
    card.locator(".meta", has_text="·").wait_for()
    year, _, genres = card.locator(".meta").inner_text().partition(" · ")
    assert 1950 <= int(year) < 2000
    assert genres.split(", ")[0] in GENRES
    assert card.locator("dt").all_inner_texts() == ["Score", "Popularity", "Exposure"]
    both = set(left) & set(right)
    assert page.locator(f"{LEFT} .badge").count() == page.locator(f"{RIGHT} .badge").count() == len(both)
    said = page.locator(f"{LEFT} .sum").inner_text()
    assert (f"{len(both)} of 8 in both" if both else "none in both") in said
    assert "pulse-zero" in page.locator("#answers").inner_text()
    assert page.locator("#answers .took").inner_text().endswith(" ms")
    page.locator("#heard", has_text=f"Both lists are up to date. {len(both)} film").wait_for(state="attached")


def test_what_is_popular_leads_the_left_list_and_not_the_right(open_page: Any) -> None:
    page = open_page()
    chosen(page, "Film 45")

    def clicks(side: str) -> float:
        texts = page.locator(f"{side} .bars > div:nth-child(2) .value").all_inner_texts()
        return float(np.mean([int(text.split()[0]) for text in texts]))

    assert clicks(LEFT) > 1.2 * clicks(RIGHT)
    bars = page.locator(f"{LEFT} .bars > div:nth-child(2) .bar").evaluate_all(
        "all => all.map(one => getComputedStyle(one, '::after').width)"
    )
    assert len(set(bars)) > 2  # they are as long as what they stand for


def test_the_debias_changes_the_right_list_and_only_that(open_page: Any) -> None:
    page = open_page()
    chosen(page, "Film 45")
    left, right = listed(page, LEFT), listed(page, RIGHT)
    set_debias(page, 0)
    assert listed(page, RIGHT) == left == listed(page, LEFT)
    assert page.locator("#head-fair").inner_text() == "The same list, with the debiasing strength at 0"
    asked: list[float] = []
    page.on("request", lambda request: asked.append((request.post_data_json or {}).get("debias", -1)))
    page.locator("#debias").evaluate("""(debias) => {  // faster than it asks
      for (let step = 1; step <= 10; step += 1) {
        debias.value = step / 20;
        debias.dispatchEvent(new Event("input", { bubbles: true }));
      }
    }""")
    settle(page)
    assert asked.count(0.5) == 1
    assert len([one for one in asked if one >= 0]) == 1
    assert "0.50" in page.locator("#head-fair").inner_text()
    set_debias(page, 1)
    assert listed(page, RIGHT) == right
    assert page.locator("#debias").get_attribute("aria-valuetext").startswith("1.00")


def test_a_curve_is_drawn_where_one_was_measured(open_page: Any) -> None:
    page = open_page()
    assert page.locator("#curve").is_hidden()
    curve = [
        {"debias": at / 4, "ordinary": 0.08 - 0.02 * at / 4, "balanced": 0.02 + 0.01 * at} for at in range(5)
    ]
    page.route(
        "**/v1/model", lambda route: route.fulfill(json=route.fetch().json() | {"debias_curve": curve})
    )
    page.reload()
    legend = page.locator(".curve-legend")
    legend.wait_for()
    assert "0.060 (−25 %)" in legend.inner_text()
    assert "0.060 (+200 %)" in legend.inner_text()
    cursor = page.locator("#curve .cursor")
    end = float(cursor.get_attribute("x1"))
    page.locator("#debias").fill("0")
    assert "0.080" in legend.inner_text()
    assert float(cursor.get_attribute("x1")) < end


def test_a_preview_records_nothing(open_page: Any, service: Any) -> None:
    """Looking at a customer is no impression, and no press of a button is a purchase."""
    page = open_page()
    before = service.store.counts()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(f"{request.method} {request.url} {request.post_data}"))
    assert "Nothing on this page is recorded" in page.locator("#mode-words").inner_text()
    assert not page.locator("#act").is_checked()
    page.locator("#user").fill("person 7")
    page.locator("#user").press("Enter")
    settle(page)
    new = listed(page, RIGHT)[1]
    page.locator(f"{RIGHT} .watch").nth(1).click()
    settle(page)
    assert new not in listed(page, LEFT) + listed(page, RIGHT)
    assert "changed here" in page.locator("#history-head").inner_text()
    chosen(page, "Film 45")
    set_debias(page, 0.5)
    posted = [each for each in asked if each.startswith("POST")]
    assert posted
    assert all("/v1/recommendations" in each and '"log":false' in each for each in posted)
    assert service.store.counts() == before


def test_the_words_are_those_of_the_domain(open_page: Any, service: Any) -> None:
    page = open_page()
    assert "Search for a film" in page.locator("#try").inner_text()
    page.route(
        "**/v1/model",
        lambda route: route.fulfill(json=route.fetch().json() | {"noun": {"one": "item", "many": "items"}}),
    )
    page.reload()
    page.locator(".pick").first.wait_for()
    page.locator(".pick", has_text="Film 01").first.click()
    settle(page)
    said = page.locator("body").inner_text()
    assert "Search for an item" in said
    assert "watched" not in said
    assert "title" not in said.lower()
    assert "film" not in re.sub(r"Film \d+", "", said).lower()


def test_an_event_is_logged_and_both_lists_change(open_page: Any, service: Any) -> None:
    page = open_page()
    chosen(page, "Film 45")
    before = service.store.counts()["recommendations"]
    act_as_user(page)
    assert "Acting as a guest" in page.locator("#mode-words").inner_text()
    assert service.store.counts()["recommendations"] == before + 2  # two lists, shown to the guest
    left, right = listed(page, LEFT), listed(page, RIGHT)
    before = service.about()["since_training"]
    button = page.locator(f"{RIGHT} .watch").nth(1)
    event = sent(page, "/v1/events", button.click)["events"][0]
    page.locator(".chip .logged").wait_for()
    assert event["item_id"] == right[1]
    assert event["timestamp"].startswith("2016-")  # just after the log, not today
    settle(page)
    assert right[1] not in listed(page, LEFT) + listed(page, RIGHT)
    assert (listed(page, LEFT), listed(page, RIGHT)) != (left, right)
    assert page.locator(".toast").inner_text().startswith("Logged: Film")
    assert len(chips(page)) == 2
    assert service.about()["since_training"] == before + 1
    stored = service.store.of_user(event["user_id"])
    assert [one.item_id for one in stored] == [right[1]]
    assert stored[0].recommendation_id == event["recommendation_id"]
    shown = [one.recommendation_id for one in service.store.recommended_to(event["user_id"])]
    assert event["recommendation_id"] in shown


def test_a_user_of_the_log_can_be_taken_on(open_page: Any, service: Any) -> None:
    page = open_page(expected=("status of 404",))
    page.locator("#user").fill("nobody/at all")
    page.get_by_role("button", name="Start", exact=True).click()
    page.locator("#user-error", has_text="The log has no user with the id “nobody/at all”").wait_for()
    page.locator("#user").fill("person 7")
    body = sent(page, "/v1/recommendations", lambda: page.locator("#user").press("Enter"))
    assert (body["user_id"], "history" in body) == ("person 7", False)
    settle(page)
    newest = [one["title"] for one in service.user("person 7")["newest"]]
    assert chips(page) == newest[::-1]
    # A changed history is a guest's.
    remove = page.get_by_role("button", name=f"Remove {newest[0]} from the history")
    body = sent(page, "/v1/recommendations", remove.click)
    assert body["user_id"].startswith("guest-")
    assert len(body["history"]) == len(newest) - 1
    assert all(item["timestamp"] for item in body["history"])
    assert "changed here" in page.locator("#history-head").inner_text()
    page.get_by_role("button", name="Start over").click()
    page.locator(f"{LEFT} .empty").wait_for()
    assert page.locator("#history").is_hidden()


def test_one_click_begins(open_page: Any) -> None:
    page = open_page()
    taste = page.locator(".tastes .pick").first
    names = taste.locator("span").inner_text().split(" · ")
    taste.click()
    settle(page)
    assert [text.split(" (")[0] for text in chips(page)] == names
    assert len(names) == 3


def test_all_by_keys(open_page: Any) -> None:
    page = open_page()
    press = page.keyboard.press
    focused = "document.activeElement.id || document.activeElement.className"
    for _ in range(12):
        press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if page.evaluate(focused) == "search":
            break
    assert page.evaluate(focused) == "search"
    page.keyboard.type("film 1")
    page.locator("#options li").first.wait_for()
    press("Escape")
    assert page.locator("#drop").is_hidden()
    assert page.locator("#search").input_value() == "film 1"
    press("ArrowDown")
    page.locator("#options li").first.wait_for()
    press("ArrowDown")
    press("ArrowDown")
    press("ArrowUp")
    press("ArrowDown")
    active = page.locator('#options [aria-selected="true"]')
    assert (
        active.get_attribute("id")
        == page.locator("#search").get_attribute("aria-activedescendant")
        == "option-1"
    )
    title = active.locator(".option-title").inner_text()
    press("Enter")
    settle(page)
    assert chips(page)[0].startswith(title)
    assert page.evaluate(focused) == "search"
    page.locator("#debias").focus()
    before = listed(page, RIGHT)
    press("Home")
    assert listed(page, RIGHT) != before
    while page.evaluate(focused) != "watch":
        press("Tab")
    act_as_user(page)
    page.locator(f"{LEFT} .watch").first.focus()
    press("Enter")
    page.locator(".chip .logged").wait_for()
    settle(page)
    page.wait_for_function("document.activeElement.className === 'watch'")  # the focus is not lost
    page.locator("#tab-try").focus()
    press("ArrowRight")
    assert page.locator("#monitor").is_visible()
    press("End")
    assert page.locator("#report").is_visible()
    assert "unskew report DIR --html FILE" in page.locator("#report").inner_text()


def test_fast_typing_and_enter_take_what_was_typed(open_page: Any) -> None:
    page = open_page()
    page.locator("#search").fill("film 1")
    page.locator("#options li").first.wait_for()
    page.locator("#search").fill("film 45")
    page.locator("#search").press("Enter")
    settle(page)
    assert [text.split(" (")[0] for text in chips(page)] == ["Film 45"]


def test_a_card_says_why_it_is_listed(open_page: Any) -> None:
    page = open_page()
    chosen(page, "Film 45")
    why = page.locator(f"{LEFT} .card .why").first
    assert not why.locator("li").first.is_visible()
    why.locator("summary").click()
    texts = why.locator("li").all_inner_texts()
    assert 1 <= len(texts) <= 4
    assert any(text.startswith("users who took Film 45") for text in texts)
    assert all(text[-5] in "+−" for text in texts)
    sizes = [abs(float(text[-4:])) for text in texts]
    assert sizes == sorted(sizes, reverse=True)
