"""The bias page and its picture: self-contained, escaped, in light and dark, and the verdict first."""

import re
import sys
import xml.etree.ElementTree as ET
from importlib.metadata import version

import pytest

import unskew
from tests.helpers.inspected import DEGENERATE, skewed_log
from unskew.data.log.split import split
from unskew.diagnostics.log.inspect import Inspection, inspect
from unskew.diagnostics.log.page import inspect_page, picture
from unskew.report.charts import COLOURS, Bars, Lines, svg
from unskew.report.page import Origin, Section, facts, figure, page, paragraph, points, table
from unskew.report.summary import Row, Verdict
from unskew.report.table import Table


@pytest.fixture(scope="module")
def skewed() -> Inspection:
    return inspect(skewed_log())


def drawings(html: str) -> list[str]:
    return re.findall(r"<svg.*?</svg>", html, flags=re.DOTALL)


def test_the_page_needs_nothing_else(skewed):
    html = inspect_page(skewed)
    addresses = set(re.findall(r"""https?://[^"'\s<>)]+""", html))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a namespace, never fetched
    assert not re.search(r"<(script|link|img|iframe|object|embed)\b|@import|@font-face", html)
    assert set(re.findall(r'(?:src|href)="([^"]*)"', html)) == set(re.findall(r'href="(#[^"]*)"', html))
    assert "prefers-color-scheme: dark" in html
    assert 'name="viewport"' in html


def test_drawings_are_xml_with_ids_of_their_own(skewed):
    html = inspect_page(skewed)
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


def test_the_page_and_the_picture_are_the_same_bytes_again(skewed):
    again = inspect(skewed_log())
    assert inspect_page(skewed, date="2026-11-16") == inspect_page(again, date="2026-11-16")
    assert picture(skewed) == picture(skewed)


def test_the_picture_stands_alone_in_light_and_in_dark(skewed):
    drawing = picture(skewed)
    root = ET.fromstring(drawing)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    light, _, dark = drawing.partition("@media (prefers-color-scheme: dark)")
    assert ".ground { fill: #ffffff; }" in light
    assert ".ground { fill: #1c1f25; }" in dark
    assert drawing.count('class="ground"') == 1  # the ground has no colour of its own that would win
    assert "fill: #fdfeff" not in drawing
    assert "currentColor" in drawing
    text = "".join(root.itertext())
    assert "Popularity of the items" in text
    assert "What the test asks for" in text
    assert "balanced" in text


def test_every_chart_follows_the_page_into_the_dark(skewed):
    """Whatever is not a series has the colour of the page's text."""
    for drawing in drawings(inspect_page(skewed)):
        used = set(re.findall(r"(?:fill|stroke): (#[0-9a-f]{6}|currentColor)", drawing))
        assert used <= {"currentColor", *COLOURS}


def test_more_series_than_colours_are_all_drawn():
    series = {f"series {number}": [0.1, 0.2] for number in range(6)}
    for chart in (Bars(["a", "b"], series, "x", "y"), Lines([1, 2], series, "x", "y")):
        assert all(name in svg(chart, "chart", "six") for name in series)


def test_the_verdict_is_above_everything_else(skewed):
    html = inspect_page(skewed)
    finding = html.index('class="finding">Popularity bias is strong')
    assert finding < html.index("What to do") < html.index("<h2>") < html.index("<svg")
    for advice in skewed.verdict().advice:
        assert points([advice])[4:-5] in html


def test_ties_and_order_stand_under_a_heading_of_their_own(skewed):
    html = inspect_page(inspect(DEGENERATE["one time"]()))
    biases, facts = html.split("<h2>Facts about this log</h2>")
    for topic in ("Popularity", "Drift", "Test"):
        assert f"<strong>{topic}.</strong>" in biases
    for topic in ("Order", "Ties"):
        assert f"<strong>{topic}.</strong>" in facts
        assert f"<strong>{topic}.</strong>" not in biases
    assert "tied" not in biases


def test_the_foot_says_where_the_page_came_from(skewed):
    html = inspect_page(skewed, 'unskew inspect "a & b" --html x.html', "2026-11-16")
    foot = html[html.index("<footer>") :]
    assert f"Made by unskew {version('unskew')} on 2026-11-16" in foot
    assert "<code>unskew inspect &quot;a &amp; b&quot; --html x.html</code>" in foot
    assert skewed.fingerprint in foot
    assert re.search(r"on \d{4}-\d\d-\d\d \d\d:\d\d UTC", inspect_page(skewed))


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_logs_have_a_page(name):
    found = inspect(DEGENERATE[name]())
    html = inspect_page(found)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)
    ET.fromstring(picture(found))


def test_code_stands_between_backticks():
    assert "<p>Try <code>a &lt; b</code>.</p>" in paragraph("Try `a < b`.")
    assert points(["Topic: text"], topics=True) == "<ul><li><strong>Topic.</strong> Text</li></ul>"
    assert points(["5 %: text"]) == "<ul><li>5&nbsp;%: text</li></ul>"


def test_text_is_escaped():
    evil = """<script>alert("1 & 'x'")</script>"""
    parts = (
        paragraph(evil),
        points([evil]),
        points([f"{evil}: {evil}"], topics=True),
        table(Table([evil], [[evil]], caption=evil)),
        facts([Row(evil, evil, evil, evil)], evil),
        figure("", evil),
    )
    html = page(evil, Verdict(evil, (evil,)), [Section(evil, parts)], Origin(evil, evil, evil), evil)
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(") == 22
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
    assert "a&lt;b&gt; &amp; &quot;c&quot;" in html
    assert "<b>" not in html


def test_tables_put_numbers_on_the_right():
    made = Table(["name", "n"], [["a", "1"]], caption="why")
    assert made.html() == (
        "<table><caption>why</caption>"
        '<thead><tr><th>name</th><th class="n">n</th></tr></thead>'
        '<tbody><tr><td data-name="name">a</td><td class="n" data-name="n">1</td></tr></tbody></table>'
    )
    assert made.markdown() == "| name | n |\n| --- | ---: |\n| a | 1 |"
    assert Table(["a"], [["x|y"]]).markdown().endswith("| x&#124;y |")
    assert "<thead>" not in Table(["", ""], [["a", "1"]]).html()


def test_wide_tables_are_stacked_on_a_phone(skewed):
    wide, narrow = (Table(["n"] * width, [["1"] * width]).html() for width in (6, 5))
    assert '<table class="stacked">' in wide
    assert "stacked" not in narrow
    html = inspect_page(skewed)
    phone = html[html.index("@media (max-width") : html.index("</style>")]
    assert ".stacked thead { display: none; }" in phone
    assert "content: attr(data-name)" in phone
    for row in re.findall(r'<table class="stacked">.*?<tbody><tr>(.*?)</tr>', html):
        assert row.count("<td") == row.count("data-name=")
    assert "overflow-x" not in html  # nothing has to be scrolled sideways to be seen


def test_a_chart_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(unskew.BadInput, match=re.escape("pip install 'unskew[report]'")):
        svg(Lines([1, 2], {"a": [1, 2]}, "x", "y"), "chart", "a line")


def test_the_settings_of_matplotlib_change_nothing(skewed):
    import matplotlib as mpl

    before = picture(skewed)
    with mpl.rc_context(
        {"font.size": 30, "axes.grid": True, "axes.facecolor": "red", "svg.fonttype": "path"}
    ):
        assert picture(skewed) == before
        assert mpl.rcParams["font.size"] == 30
