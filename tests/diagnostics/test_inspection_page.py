"""The bias page and its picture: self-contained, escaped, in light and dark, and the verdict first."""

import re
import sys
import xml.etree.ElementTree as ET
from html import unescape
from importlib.metadata import version

import pytest

import unskew
from tests.helpers.inspected import DEGENERATE, skewed_log
from unskew.data.log.split import split
from unskew.diagnostics.log.inspect import Inspection, inspect
from unskew.diagnostics.log.page import inspect_page, picture
from unskew.report.charts import COLOURS, Bars, Lines, svg


@pytest.fixture(scope="module")
def skewed() -> Inspection:
    return inspect(skewed_log())


@pytest.fixture(scope="module")
def html(skewed: Inspection) -> str:
    """Its page."""
    return inspect_page(skewed, 'unskew inspect "a & b" --html x.html', "2026-11-16")


@pytest.fixture(scope="module")
def panels(skewed: Inspection) -> str:
    """Its picture."""
    return picture(skewed)


def drawings(html: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)


def test_the_page_needs_nothing_else(html):
    addresses = set(re.findall(r"""https?://[^"'\s<>)]+""", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b|@import|@font-face", html)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', html)) == set(re.findall(r'href="(#[^"]*)"', html))
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_drawings_are_xml_with_ids_of_their_own(html):
    assert len(drawings(html)) == 7
    for drawing in drawings(html):
        root = ET.fromstring(drawing)
        assert root.get("role") == "img"
        assert "".join(root.itertext()).strip()  # text stays text
        assert "currentColor" in drawing
        assert not re.search(r"fill: #ffffff|fill: #000000", drawing)
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert ids
    assert len(ids) == len(set(ids))
    pointed_at = set(re.findall(r'(?:url\(|href=")#([^")]+)', html))
    assert pointed_at == set(ids)


def test_the_page_and_the_picture_are_the_same_bytes_again(html, panels):
    again = inspect(skewed_log())
    assert html == inspect_page(again, 'unskew inspect "a & b" --html x.html', "2026-11-16")
    assert panels == picture(again)


def test_the_picture_stands_alone_in_light_and_in_dark(panels):
    root = ET.fromstring(panels)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    light, _, dark = panels.partition("@media (prefers-color-scheme: dark)")
    assert ".ground { fill: #ffffff; }" in light
    assert ".ground { fill: #1c1f25; }" in dark
    assert panels.count('class="ground"') == 1  # the ground has no colour of its own that would win
    assert "fill: #fdfeff" not in panels
    assert "currentColor" in panels
    text = "".join(root.itertext())
    assert "Popularity of the items" in text
    assert "What the test asks for" in text
    assert "balanced" in text


def test_every_chart_follows_the_page_into_the_dark(html):
    """Whatever is not a series has the colour of the page's text."""
    for drawing in drawings(html):
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6}|currentColor)", drawing))
        assert used <= {"currentColor", *COLOURS}


def test_more_series_than_colours_are_all_drawn():
    series = {f"series {number}": [0.1, 0.2] for number in range(6)}
    for chart in (Bars(["a", "b"], series, "x", "y"), Lines([1, 2], series, "x", "y")):
        assert all(name in svg(chart, "chart", "six") for name in series)


def test_the_verdict_is_above_everything_else(skewed, html):
    finding = html.index('class="finding">Popularity bias is strong')
    assert finding < html.index("What to do") < html.index("<h2>") < html.index("<svg")
    text = unescape(re.sub(r"</?code>", "`", html))
    assert all(f"<li>{advice}</li>" in text for advice in skewed.verdict().advice)


def test_ties_and_order_stand_under_a_heading_of_their_own():
    html = inspect_page(inspect(DEGENERATE["one time"]()))
    biases, facts = html.split("<h2>Facts about this log</h2>")
    for topic in ("Popularity", "Drift", "Test"):
        assert f"<strong>{topic}.</strong>" in biases
    for topic in ("Order", "Ties"):
        assert f"<strong>{topic}.</strong>" in facts
        assert f"<strong>{topic}.</strong>" not in biases
    assert "tied" not in biases


def test_the_foot_says_where_the_page_came_from(skewed, html):
    foot = html[html.index("<footer>") :]
    assert f"Made by unskew {version('unskew')} on 2026-11-16" in foot
    assert "<code>unskew inspect &#34;a &amp; b&#34; --html x.html</code>" in foot
    assert skewed.fingerprint in foot
    assert re.search(r"on \d{4}-\d\d-\d\d \d\d:\d\d UTC", inspect_page(skewed))


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_logs_have_a_page(name):
    found = inspect(DEGENERATE[name]())
    html = inspect_page(found)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    ET.fromstring(picture(found))


def test_a_chart_escapes_its_text():
    evil = """<script>alert("1 & 'x'")</script>"""
    chart = svg(Bars([evil], {evil: [0.5], "b": [0.1]}, evil, evil, evil), "chart", evil)
    root = ET.fromstring(chart)
    assert root.get("aria-label") == evil
    assert "".join(root.itertext()).count(evil) == 5
    assert "<script" not in chart


def test_the_source_is_escaped(skewed, tmp_path):
    folder = tmp_path / 'a<b> & "c"'
    folder.mkdir()
    (folder / "log.csv").write_text("user,item,time\n" + "".join(f"{n % 3},{n % 4},{n}\n" for n in range(30)))
    html = inspect_page(inspect(split(unskew.read(folder))))
    assert "a&lt;b&gt; &amp; &#34;c&#34;" in html
    assert "<b>" not in html


def test_wide_tables_are_stacked_on_a_phone(html):
    phone = html[html.index("@media (max-width") : html.index("</style>")]
    assert ".stacked thead { display: none; }" in phone
    assert "content: attr(data-name)" in phone
    stacked = re.findall(r'<table class="stacked">.*?<tbody>\s*<tr>(.*?)</tr>', html, flags=re.DOTALL)
    assert len(stacked) == 2
    for row in stacked:
        assert row.count("<td") == row.count("data-name=")
    assert "overflow-x" not in html  # nothing has to be scrolled sideways to be seen


def test_a_chart_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(unskew.BadInput, match=re.escape("pip install '.[report]' in a clone of unskew")):
        svg(Lines([1, 2], {"a": [1, 2]}, "x", "y"), "chart", "a line")


def test_the_settings_of_matplotlib_change_nothing(skewed, panels):
    import matplotlib as mpl

    with mpl.rc_context(
        {"font.size": 30, "axes.grid": True, "axes.facecolor": "red", "svg.fonttype": "path"}
    ):
        assert picture(skewed) == panels
        assert mpl.rcParams["font.size"] == 30
