"""Templates escape every value, refuse missing ones, and inline only what cannot end its element."""

import re

import pytest
from jinja2 import UndefinedError
from markupsafe import Markup

from unskew.report import templates
from unskew.report.page import Page
from unskew.report.summary import Verdict
from unskew.report.templates import code_pieces, hash_of, inline_file, render, split_topic

BASE = "report/templates/base.html"


def base(text: str) -> str:
    return render(BASE, page=Page(text, Verdict(text, (text,)), text, text, text, text, text, tone=text))


def test_every_value_of_the_base_page_is_escaped():
    html = base("""<script>alert("1 & 'x'")</script>""")
    assert "<script" not in html
    assert html.count("&lt;script&gt;alert(&#34;1 &amp; &#39;x&#39;&#34;)&lt;/script&gt;") == 10


def test_a_missing_value_is_an_error():
    with pytest.raises(UndefinedError):
        render(BASE)


def test_a_page_without_scripts_can_run_none():
    html = base("a")
    assert "default-src 'none'; style-src 'unsafe-inline'\"" in html
    assert "script" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL)


def test_files_that_would_end_their_element_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(templates, "ROOT", tmp_path)
    for name, text in {"a.js": 'x = "</script>"', "a.css": "</STYLE >", "b.js": "<!-- <script>"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=name):
            inline_file(name)
    (tmp_path / "c.js").write_text("if (a < b && c) d();")
    assert inline_file("c.js") == Markup("if (a < b && c) d();")


def test_the_hash_of_a_script_is_that_of_a_content_security_policy():
    assert hash_of("alert('Hello, world.');") == "sha256-qznLcsROx4GACP2dm0UCKCzCG+HiZ1guq6ZZDob/Tng="


def test_code_stands_between_backticks():
    assert code_pieces("a `b` c") == [("a ", False), ("b", True), (" c", False)]
    assert code_pieces("`b`") == [("b", True)]
    assert code_pieces("a ` c") == [("a ` c", False)]
    assert code_pieces("") == []


def test_the_topic_of_a_sentence_stands_before_its_first_colon():
    assert split_topic("Drift: small: 2 %") == ("Drift", "Small: 2 %")
    assert split_topic("no topic") == ("", "no topic")
