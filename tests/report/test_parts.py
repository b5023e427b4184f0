"""The parts of which pages are made: sentences, lists, facts, figures and tables, all escaped."""

import re

from markupsafe import Markup

from unskew.report.summary import Row
from unskew.report.table import Table
from unskew.report.templates import _environment

EVIL = """<script>alert("1 & 'x'")</script>"""


def part(name: str, *values: object) -> str:
    """What the macro makes of its arguments, without the space between tags."""
    template = _environment().get_template("report/templates/parts.html")
    return re.sub(r">\s+|\s+<", lambda found: found[0].strip(), str(getattr(template.module, name)(*values)))


def test_code_stands_between_backticks():
    assert part("paragraph", "Try`a < b`.") == "<p>Try<code>a &lt; b</code>.</p>"


def test_no_line_breaks_before_a_per_cent_sign():
    assert part("prose", "5 % of 3") == "5\N{NO-BREAK SPACE}% of 3"


def test_the_topic_of_a_point_is_bold():
    assert part("points", ["Topic: text"], True) == "<ul><li><strong>Topic.</strong>Text</li></ul>"
    assert part("points", ["Topic: text"]) == "<ul><li>Topic: text</li></ul>"


def test_the_meaning_of_a_fact_stands_below_its_name():
    rows = [Row("size", "users", "3", "all"), Row("size", "items", "4")]
    assert part("facts", rows, "Size") == (
        '<table class="facts"><caption>Size</caption><tbody>'
        '<tr><td>users<span class="note">all</span></td><td class="n">3</td></tr>'
        '<tr><td>items</td><td class="n">4</td></tr></tbody></table>'
    )


def test_all_text_is_escaped_and_a_drawing_is_not():
    parts = (
        part("paragraph", EVIL),
        part("points", [EVIL]),
        part("points", [f"{EVIL}: {EVIL}"], True),
        part("table", Table([EVIL], [[EVIL]], caption=EVIL)),
        part("facts", [Row(EVIL, EVIL, EVIL, EVIL)], EVIL),
        part("figure", EVIL, EVIL),
        part("figure", Markup("<svg/>"), EVIL),
    )
    assert not any("<script" in html for html in parts)
    assert "".join(parts).count("&lt;script&gt;alert(&#34;1 &amp; &#39;x&#39;&#34;)&lt;/script&gt;") == 15
    assert "<figure><svg/><figcaption>" in parts[-1]
