"""The page of a report in a real browser: Debian's Chromium, headless, without any network."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.benched import SKILLS, SMALL, TWINS, benched, block, skilled
from tests.helpers.browser import browser_fixture
from unskew.experiments.report import Report
from unskew.experiments.report_page import report_page
from unskew.experiments.results import BenchResults

browser = browser_fixture
MAIN = '[data-suite="main"] > .panel'


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with two suites; the first has a protocol and a test that the second has not, and one gap."""
    folder = benched(
        tmp_path_factory.mktemp("bench") / "dir",
        [SMALL, TWINS],
        ("MIND", "A data set with quite a long name", "Beauty"),
        # So near each other that their order is not the same by every metric.
        skill=lambda arm, source, test: 0.15 * skilled(arm, source, test),
        tests=lambda source: (
            *("ordinary, full", "balanced, full"),
            *(("ordinary, uni100", "ground-truth, full") if source == "MIND" else ()),
        ),
        missing=lambda source, arm, seed: (source, arm) == ("MIND", "STAMP"),
    )
    file = folder.parent / "page.html"
    file.write_text(report_page(Report.of(BenchResults.open(folder)), "unskew report"), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def figures(page_file: Path) -> dict[str, Any]:
    return block(page_file.read_text(encoding="utf-8"))


@pytest.fixture
def open_page(browser: Any, page_file: Path) -> Iterator[Any]:
    """A function that opens the page, with a screen of any kind. In the end nothing may have been asked for
    besides the file, and no error may have been reported."""
    contexts, asked, errors = [], [], []

    def opened(**screen: Any) -> Any:
        contexts.append(browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **screen}))
        page = contexts[-1].new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda said: errors.append(said.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(page_file.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()
    assert set(asked) == {page_file.as_uri()}
    assert errors == []


def column(page: Any, at: int, panel: str = f"{MAIN}.chosen") -> list[str]:
    """The figures in a column of the table that is shown, from top to bottom."""
    cells = page.locator(f"{panel} > .wide tbody tr:visible > :nth-child({at})")
    return [text.split("\n")[0].rstrip("*†") for text in cells.all_inner_texts()]


def rounded(figures: dict[str, Any], by: str, metric: str, source: int) -> list[str]:
    """The same from the figures."""
    rows = figures["suites"]["main"]["tables"][by][metric]["rows"]
    return ["–" if row[source] == 0 else f"{row[source][0] / 1e4:.4f}" for row in rows]


def test_tables_are_sorted_by_a_column_and_back(open_page: Any, figures: dict[str, Any]) -> None:
    page = open_page()
    own = rounded(figures, "ordinary, full", "ndcg@10", 0)
    known = sorted((text for text in own if text != "–"), key=float)
    assert column(page, 2) == own
    head = page.locator(f"{MAIN}.chosen > .wide thead th").nth(1)
    assert head.get_attribute("aria-sort") == "none"
    button = head.get_by_role("button", name="MIND")
    for order, expected in (
        ("descending", [*reversed(known), "–"]),
        ("ascending", [*known, "–"]),  # what is missing comes last in both
        ("none", own),
    ):
        button.click()
        assert head.get_attribute("aria-sort") == order
        assert column(page, 2) == expected
    name = page.locator(f"{MAIN}.chosen > .wide thead th").nth(0)
    button.click()
    name.get_by_role("button").press("Enter")
    assert (name.get_attribute("aria-sort"), head.get_attribute("aria-sort")) == ("ascending", "none")
    assert column(page, 1) == sorted(SKILLS, key=str.lower)
    assert page.locator(f"{MAIN}.chosen > .wide tfoot tr").inner_text().startswith("DEPS over its best rival")


def test_a_filter_leaves_some_models_in_all_tables(open_page: Any) -> None:
    page = open_page()
    box = page.get_by_role("searchbox", name="Models")
    box.fill("fpm")
    assert column(page, 1) == ["FPMC"]
    assert column(page, 1, '[data-suite="agnostic"] > .panel.chosen') == ["FPMC"]
    assert page.locator("output").inner_text().split(" of ")[0].isdigit()
    box.fill("nobody has this name")
    assert column(page, 1) == []
    box.fill("")
    assert column(page, 1) == list(SKILLS)
    assert page.locator("output").inner_text() == ""


def test_a_switch_shows_another_test_and_metric(open_page: Any, figures: dict[str, Any]) -> None:
    page = open_page()
    shown = page.locator(f"{MAIN}:visible")
    assert shown.count() == 1
    assert shown.get_attribute("data-by") == "ordinary, full"
    page.locator("select[name=test]").select_option("balanced")
    assert shown.get_attribute("data-by") == "balanced, full"
    assert column(page, 4) == rounded(figures, "balanced, full", "ndcg@10", 2)
    page.locator("select[name=metric]").select_option("hr@20")
    assert column(page, 4) == rounded(figures, "balanced, full", "hr@20", 2)
    assert shown.locator("caption").first.inner_text().startswith("HR@20. Balanced test")
    rows = figures["suites"]["main"]["tables"]["balanced, full"]["hr@20"]["rows"]
    best = max(range(len(rows)), key=lambda at: rows[at][2][0])
    assert shown.locator("> .wide tbody tr").nth(best).locator("td").nth(2).locator("b").count() == 1
    low, high = (value / 1e4 for value in rows[best][2][1:3])
    assert f"[{low:.4f}, {high:.4f}]" in shown.locator("> .wide tbody tr").nth(best).inner_text()
    gain = figures["suites"]["main"]["tables"]["balanced, full"]["hr@20"]["gains"][0][2]
    assert gain[0] in shown.locator("> .wide tfoot").inner_text()
    # Who gains follows, too.
    page.locator("#gains > details").first.locator("> summary").click()
    assert "balanced test" in page.locator("#gains .panel:visible > summary").first.inner_text()


def test_the_order_of_a_table_stays_when_its_figures_change(open_page: Any, figures: dict[str, Any]) -> None:
    page = open_page()
    known = figures["suites"]["main"]["tables"]["ordinary, full"]

    def order(metric: str, source: int) -> list[int]:
        rows = [row[source] for row in known[metric]["rows"]]
        return sorted(range(len(rows)), key=lambda at: rows[at][0] if rows[at] else 0)

    # A column whose order is another one by another metric, or this could not fail.
    source, metric = next(
        (source, metric)
        for source in range(3)
        for metric in known
        if order(metric, source) != order("ndcg@10", source)
    )
    page.locator(f"{MAIN}.chosen > .wide thead th").nth(source + 1).get_by_role("button").click()
    page.locator("select[name=metric]").select_option(metric)
    values = [text for text in rounded(figures, "ordinary, full", metric, source) if text != "–"]
    shown = [text for text in column(page, source + 2) if text != "–"]
    assert shown == sorted(values, key=float, reverse=True)


def test_what_a_suite_does_not_have_is_said(open_page: Any, figures: dict[str, Any]) -> None:
    page = open_page()
    page.locator("select[name=test]").select_option("ground-truth")
    assert page.locator(f"{MAIN}:visible").get_attribute("data-by") == "ground-truth, full"
    assert page.locator(".instead").count() == 0
    page.locator("select[name=metric]").select_option("hr@20")  # the ground truth has no hits
    assert "Not measured here: HR@20." in page.locator(".instead").first.inner_text()
    page.locator("select[name=protocol]").select_option("uni100")
    said = page.locator(".instead").first.inner_text()
    assert said == "Not measured here: True preference, among 100 sampled items; HR@20."
    page.locator("select[name=test]").select_option("ordinary")
    assert page.locator(".instead").count() == 0
    assert column(page, 2) == rounded(figures, "ordinary, uni100", "hr@20", 0)
    assert column(page, 4) == ["–"] * len(SKILLS)  # only MIND was tested so


def test_a_point_tells_its_values_under_the_pointer_and_by_keys(
    open_page: Any, figures: dict[str, Any]
) -> None:
    page = open_page()
    svg = page.locator("#training svg[data-chart]").first
    chart = figures["charts"][svg.get_attribute("data-chart")]
    svg.scroll_into_view_if_needed()
    name, points = chart["series"][1]["name"], chart["series"][1]["points"]
    # Where matplotlib has drawn the last point of the second line.
    place = svg.evaluate(
        """(svg) => {
          const path = svg.querySelector('[data-series="1"] path:not(defs path)');
          const end = path.getPointAtLength(path.getTotalLength()).matrixTransform(svg.getScreenCTM());
          return [end.x, end.y];
        }"""
    )
    tip = page.locator(".tip")
    assert tip.is_hidden()
    page.mouse.move(*place)
    assert tip.inner_text() == f"{name}. validation NDCG@10: {points[-1][1]:.4g}. epoch: {points[-1][0]}."
    assert svg.locator('[data-series="0"].faint').count() > 0
    assert svg.locator('[data-series="1"].faint').count() == 0
    page.mouse.move(2, 2)
    assert tip.is_hidden()
    assert svg.locator(".faint").count() == 0
    svg.focus()
    for key, (line, at) in (("ArrowRight", (0, 1)), ("ArrowDown", (1, 0)), ("ArrowLeft", (0, 9))):
        svg.press(key)
        told = page.locator(".announced").inner_text()
        series = chart["series"][line]
        assert told.startswith(f"{series['name']}. validation NDCG@10: {series['points'][at][1]:.4g}"), key
        assert tip.inner_text() == told
    svg.press("Escape")
    assert tip.is_hidden()


def test_a_legend_brings_out_a_series_and_a_chart_has_a_table(
    open_page: Any, figures: dict[str, Any]
) -> None:
    page = open_page()
    block = page.locator("#trade-off .block").first
    button = block.locator(".legend").get_by_role("button", name="pulse", exact=True)
    button.click()
    page.mouse.move(2, 2)
    assert button.get_attribute("aria-pressed") == "true"
    svg = block.locator("svg[data-chart]").first
    chart = figures["charts"][svg.get_attribute("data-chart")]
    names = [series["name"] for series in chart["series"]]
    kept = svg.locator("[data-series]:not(.faint)").evaluate_all("all => all.map(one => one.dataset.series)")
    assert {names[int(one)] for one in kept} == {"pulse"}
    button.click()
    page.mouse.move(2, 2)
    assert svg.locator(".faint").count() == 0
    figure = block.locator("figure").first
    more = figure.get_by_role("button", name="Figures as a table")
    more.click()
    assert more.get_attribute("aria-expanded") == "true"
    count = sum(len(series["points"]) + (series["spot"] is not None) for series in chart["series"])
    assert figure.locator("tbody tr").count() == count
    more.click()
    assert figure.locator("table").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("script", [True, False])
def test_nothing_is_wider_than_a_phone(open_page: Any, scheme: str, script: bool) -> None:
    page = open_page(viewport={"width": 360, "height": 740}, color_scheme=scheme, java_script_enabled=script)
    for _ in range(3):  # details within details
        page.locator("details:not([open]) > summary:visible").evaluate_all(
            "all => all.forEach(one => one.parentNode.open = true)"
        )
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360
    beyond = page.evaluate(
        """() => Array.from(document.querySelectorAll('main *'))
          .filter((one) => !one.closest('.wide, svg') && one.getClientRects().length)
          .filter((one) => one.getBoundingClientRect().right > 360.5).map((one) => one.tagName)"""
    )
    assert beyond == []


def test_without_the_script_everything_can_be_read(open_page: Any) -> None:
    page = open_page(java_script_enabled=False)
    assert page.locator(".tools").is_hidden()
    panels = page.locator(MAIN)
    assert panels.count() == 4
    assert [panels.nth(at).get_attribute("open") is not None for at in range(4)] == [
        True,
        False,
        False,
        False,
    ]
    assert panels.nth(0).locator("> .wide tbody tr").count() == len(SKILLS)
    panels.nth(1).locator("> summary").click()
    assert panels.nth(1).locator("> .wide").is_visible()
    assert page.locator("th button, .legend button").count() == 0  # no button without a use


def test_dark_mode_is_dark_and_charts_follow(open_page: Any) -> None:
    colours = """() => ['body', 'section', 'svg[data-chart] text'].map((what) => {
      const style = getComputedStyle(document.querySelector(what));
      return what.startsWith('svg') ? style.fill : style.backgroundColor;
    }).map((said) => said.match(/\\d+/g).slice(0, 3).reduce((sum, one) => sum + Number(one), 0) / 3)"""
    for scheme, dark in (("light", False), ("dark", True)):
        ground, card, ink = open_page(color_scheme=scheme).evaluate(colours)
        assert (ground < 60, card < 60, ink > 200) == (dark, dark, dark)
        assert abs(ink - card) > 150


def test_focus_is_visible_and_print_has_no_tools(open_page: Any) -> None:
    page = open_page()
    page.keyboard.press("Tab")
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    seen = set()
    for _ in range(30):
        seen.add((page.evaluate("document.activeElement.tagName"), page.evaluate(outline)))
        page.keyboard.press("Tab")
    assert {tag for tag, _ in seen} >= {"A", "SELECT", "INPUT", "BUTTON", "SUMMARY"}
    assert not {tag for tag, style in seen if style == "none"}
    page.emulate_media(media="print")
    assert page.locator(".tools").is_hidden()
    assert page.locator("nav").is_hidden()
    assert page.locator(f"{MAIN}.chosen table").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_no_other_script_can_run(browser: Any, page_file: Path, tmp_path: Path) -> None:
    text = page_file.read_text(encoding="utf-8")
    broken = tmp_path / "broken.html"
    broken.write_text(text.replace("</main>", "<script>window.broken = 1</script></main>"), encoding="utf-8")
    page = browser.new_page()
    page.goto(broken.as_uri())
    assert page.evaluate("window.broken") is None
    assert page.evaluate("document.documentElement.className") == "js"  # but ours does
    assert json.loads(page.evaluate("document.getElementById('figures').textContent"))["format"] == 2
    page.close()
