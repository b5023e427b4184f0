"""The page of a report needs nothing else, can be read by anybody, and has every figure."""

import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.helpers.benched import NOTHING, SKILLS, SMALL, benched, block, skilled, small_bench
from tests.helpers.command import run
from unskew.core.errors import BadInput
from unskew.experiments import paper_suites as paper
from unskew.experiments.bench_cell import BenchCell, IncompleteError, from_json
from unskew.experiments.plots import trade_off
from unskew.experiments.report import Report
from unskew.experiments.report_page import embedded_json, report_page
from unskew.experiments.results import ORDINARY, BenchResults
from unskew.experiments.suite import Arm
from unskew.experiments.tables import suite_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bench(tmp_path_factory.mktemp("bench") / "dir")


@pytest.fixture(scope="module")
def findings(folder: Path) -> BenchResults:
    return BenchResults.open(folder)


@pytest.fixture(scope="module")
def html(findings: BenchResults) -> str:
    return report_page(Report.of(findings), "unskew report", "2026-11-16")


class Reader(HTMLParser):
    """What a page has: its tags with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_needs_nothing_else(html: str) -> None:
    assert set(re.findall(r"""https?://[^"'\s<>)\\]+""", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe|object|embed)\b|@import|@font-face|\bfetch\(|XMLHttp", html)
    scripts = [attrs for tag, attrs in Reader(html).tags if tag == "script"]
    assert [attrs.get("type") for attrs in scripts] == ["application/json", None]
    assert not any("src" in attrs for attrs in scripts)
    policy = next(attrs["content"] for tag, attrs in Reader(html).tags if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    targets = set(re.findall(r'href="#([^"]+)"', html))
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert targets <= set(ids)
    assert len(ids) == len(set(ids))


def test_the_page_is_the_same_bytes_again(folder: Path, html: str) -> None:
    assert report_page(Report.of(BenchResults.open(folder)), "unskew report", "2026-11-16") == html


def test_parts_stand_in_their_order(html: str) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", html)
    assert titles == [
        "DEPS and its rivals",
        "Twins",
        "Training curves",
        "Ordinary against less biased tests",
        "Who gains",
        "Cost",
        "Propensity health",
        "Protocol, data and runs",
        "The paper&#39;s metrics beside ours",
        "What the paper claims, what we find",
    ]
    assert html.index('class="finding"') < html.index("<nav") < html.index("<h2>")


def test_without_the_script_everything_is_there(html: str, findings: BenchResults) -> None:
    for suite in findings.suites:
        part = html[html.index(f'data-suite="{suite.name}"') :]
        part = part[: part.index("</section>")]
        panels = re.findall(r'<details class="panel" data-by="([^"]+)"( open)?>', part)
        assert panels == [(by.key, " open" if not at else "") for at, by in enumerate(suite.tests)]
        assert part.count("<caption><span>NDCG@10. ") == len(panels)
    assert re.search(r'<form class="tools"[^>]* hidden>', html)


def test_tables_and_charts_can_be_read_aloud(html: str) -> None:
    tables = re.findall(r"<table.*?</table>", html, flags=re.DOTALL)
    assert len(tables) > 10
    for table in tables:
        assert re.match(r'<table class="sheet"[^>]*><caption><span>[^<]+</span></caption><thead>', table)
        assert not re.search(r"<th(?!ead>| scope=(row|col|colgroup))", table)
        rows = re.findall(r"<tr>(<th scope=row>.*?)(?=<tr>|<tfoot>|</table>)", table)
        assert {row.count("<td") + 1 for row in rows} == {
            table.count("<th scope=col") - table.count("<th scope=colgroup")
        }
    drawings = re.findall(r"<svg[^>]*data-chart.*?</svg>", html, flags=re.DOTALL)
    assert len(drawings) == len(block(html)["charts"])
    for drawn in drawings:
        root = ET.fromstring(drawn)
        assert root.get("role") == "img"
        assert "MIND" in root.get("aria-label") or "Beauty" in root.get("aria-label")


def test_the_script_has_every_mean(html: str, findings: BenchResults) -> None:
    values = block(html)
    suite = findings.suites[0]
    for by in suite.tests:
        for metric in ("ndcg@5", "ndcg@10", "ndcg@20", "hr@5", "hr@10", "hr@20"):
            rows = values["suites"]["main"]["tables"][by.key][metric]["rows"]
            for at, source in enumerate(suite.sources):
                means = suite.arm_results(source, by).means(metric)
                for arm, row in zip(SKILLS, rows, strict=True):
                    mean, low, high, marks = row[at]  # and no seeds: their number is usual
                    expected = means[arm]
                    assert (mean, low, high) == pytest.approx(
                        (1e4 * expected.mean, 1e4 * expected.low, 1e4 * expected.high), abs=0.5001
                    )
                    assert bool(marks & 1) == (expected.versus is not None and expected.versus.starred)
                    assert bool(marks & 4) == (mean == max(other[at][0] for other in rows))
    gain = values["suites"]["main"]["tables"]["ordinary, full"]["ndcg@10"]["gains"][0]
    assert gain[0][1].endswith("FPMC")
    debias = next(
        one
        for chart in values["charts"].values()
        for one in chart["series"]
        if len(one["points"][0:1]) and len(one["points"][0]) == 3
    )
    assert [point[2] for point in debias["points"]] == [
        "debias 0",
        "debias 0.25",
        "debias 0.5",
        "debias 0.75",
        "debias 1",
    ]


def test_nothing_breaks_out_of_the_page(tmp_path: Path) -> None:
    evil = """</script><script>alert("1 & 'x'")</script>"""
    suite = replace(SMALL, title=evil, question=evil, arms=(*SMALL.arms[:3], Arm(name=evil, model="pulse")))
    folder = benched(
        tmp_path / "dir", [suite], (evil,), seeds=1, health={evil: evil}, about={"command": evil}
    )
    page = report_page(Report.of(BenchResults.open(folder)), evil)
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert "alert(&#34;1 &amp; &#39;x&#39;&#34;)" in page
    assert block(page)["suites"]["main"]["arms"][3] == evil
    text = embedded_json({"a": "<!--<script>&]]>"})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {"a": "<!--<script>&]]>"}


def test_twenty_models_on_six_sets_are_at_most_a_megabyte(tmp_path: Path) -> None:
    more = [Arm(name=f"model {number}", model="sasrec") for number in range(20)]
    big = replace(paper.MAIN, arms=(*paper.MAIN.arms, *more)[:20])
    sources = (
        "MovieTweetings",
        "Online Retail",
        "MIND (sample)",
        *(f"paper: {name}" for name in ("MIND", "Beauty", "Music")),
    )

    def tests(source: str) -> list[str]:
        named = [f"paper, {protocol}" for protocol in ("full", "uni100", "authors")]
        every = [
            f"{test}, {protocol}" for test in ("ordinary", "balanced") for protocol in ("full", "uni100")
        ]
        return [*every, "shown, full", *(named if source.startswith("paper") else [])]

    folder = benched(tmp_path / "dir", [big], sources, 3, 120, tests=tests, health={"DEPS": NOTHING})
    page = report_page(Report.of(BenchResults.open(folder)))
    assert len(page.encode()) <= 1_000_000
    assert len(block(page)["suites"]["main"]["arms"]) == 20
    assert page.count("data-chart=") > 25


# What is not there


def test_what_is_missing_is_a_dash_and_is_counted(tmp_path: Path, capsys) -> None:
    def missing(source: str, arm: str, seed: int) -> bool:
        return (source, arm) == ("Beauty", "STAMP") or (source, arm, seed) == ("MIND", "FPMC", 1)

    folder = benched(tmp_path / "dir", [SMALL], ("MIND", "Beauty"), skill=skilled, missing=missing)
    why = "ValueError: <b>too bad</b>"
    (folder / "failures.jsonl").write_text(json.dumps({"key": "Beauty|STAMP|stamp|0", "why": why}) + "\n")
    code, out, _ = run(capsys, "report", folder, "--html", tmp_path / "page.html")
    assert code == 0
    assert "Missing: 3 of 20 runs are not there, 1 of them because they failed" in " ".join(out.split())
    sheet = suite_table(BenchResults.open(folder).suites[0], ORDINARY)
    rows = {row[0].text: row for row in sheet.rows}
    assert rows["STAMP"][2].text == "–"
    assert rows["FPMC"][1].small.endswith(", 1 seed")
    assert not rows["FPMC"][2].small.endswith("seed")
    page = (tmp_path / "page.html").read_text()
    assert "ValueError: &lt;b&gt;too bad&lt;/b&gt;" in page
    assert "not run yet" in page
    assert "3 runs are missing" in page


@pytest.mark.parametrize("gone", ["DEPS", "STAMP"])
def test_a_bench_without_a_whole_arm_is_reported(tmp_path: Path, gone: str) -> None:
    folder = benched(tmp_path / "dir", [SMALL], skill=skilled, missing=lambda source, arm, seed: arm == gone)
    page = report_page(Report.of(BenchResults.open(folder)))
    assert f"<th scope=row>{gone}<td>–" in page


def test_folders_that_are_no_bench_are_refused(tmp_path: Path, capsys) -> None:
    for folder, words in (
        (tmp_path / "none", "no such folder"),
        (tmp_path, "not a folder of `unskew bench`"),
    ):
        code, _, err = run(capsys, "report", folder)
        assert (code, words in " ".join(err.split())) == (2, True)
        assert err.count("unskew:") == 1
    empty = benched(tmp_path / "empty", [SMALL], missing=lambda *place: True)
    code, _, err = run(capsys, "report", empty, "--html", tmp_path / "page.html")
    assert code == 2
    assert "none of its 10 runs is done: call `unskew bench main DATA --out DIR` again" in " ".join(
        err.split()
    )
    assert not (tmp_path / "page.html").exists()
    (empty / "suites.json").write_text("{}")
    with pytest.raises(BadInput, match="damaged"):
        BenchResults.open(empty)
    folder = benched(tmp_path / "cut", [SMALL])
    (folder / "tests.jsonl").write_text("")
    with pytest.raises(BadInput, match=r"tests\.jsonl: is damaged"):
        report_page(Report.of(BenchResults.open(folder)))


GONE = {
    "key": ("key",),
    "format": ("format",),
    "data > hash": ("data", "hash"),
    "data > world": ("data", "world"),
    "health > kind": ("health", "kind"),
    "records > 1 > valid": ("records", 0, "valid"),
    "tests > ordinary, full": ("tests", "ordinary, full"),
    "tests > balanced, full > metrics": ("tests", "balanced, full", "metrics"),
    "tests > balanced, full > metrics > hr@20": ("tests", "balanced, full", "metrics", "hr@20"),
    "tests > balanced, full > values > ndcg@5": ("tests", "balanced, full", "values", "rank"),
    "tests > ground-truth, full > values > beyond": ("tests", "ground-truth, full", "values", "beyond"),
    "windows > 1 > start": ("windows", 0, "start"),
}


@pytest.mark.parametrize("said", GONE)
def test_a_stored_run_that_lacks_something_is_named(tmp_path: Path, capsys, said: str) -> None:
    folder = benched(
        *(tmp_path / "dir", [SMALL], ("MIND",)),
        **{"seeds": 1, "units": 20, "windows": 1, "health": {"STAMP": NOTHING}, "worlds": {"MIND": 1.0}},
        tests=lambda source: ("ordinary, full", "balanced, full", "ground-truth, full"),
    )
    lines = (folder / "cells.jsonl").read_text().splitlines()
    line = part = json.loads(lines[1])  # of STAMP
    *above, last = GONE[said]
    for name in above:
        part = part[name]
    del part[last]
    (folder / "cells.jsonl").write_text("\n".join([lines[0], json.dumps(line), *lines[2:]]) + "\n")
    code, _, err = run(capsys, "report", folder)
    assert code == 2
    assert " ".join(err.split()) == (
        f"unskew: {folder / 'cells.jsonl'}, line 2: has no {said}, so it was edited, or another version made "
        "it; remove this line, and the same `unskew bench` measures its run again"
    )
    (folder / "cells.jsonl").write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    code, out, _ = run(capsys, "report", folder)
    assert (code, "Missing: 1 of 5 runs" in " ".join(out.split())) == (0, True)


def test_other_stored_lines_that_lack_something(tmp_path: Path) -> None:
    folder = benched(tmp_path / "dir", [SMALL], seeds=1, units=20)
    (folder / "failures.jsonl").write_text('{"key": "MIND|STAMP|stamp|0"}\n')
    with pytest.raises(BadInput, match=r"failures\.jsonl, line 1: has no why, .*; remove this line"):
        BenchResults.open(folder)
    (folder / "tests.jsonl").write_text("[5]\n")
    with pytest.raises(BadInput, match=r"tests\.jsonl, line 1: has no key, .* with another --out"):
        BenchResults.open(folder)
    (folder / "cells.jsonl").write_text('{"format": 0}\n{"format": 1, "tests": 7}\n')
    with pytest.raises(BadInput, match=r"cells\.jsonl, line 2: has no key"):
        BenchResults.open(folder)
    line = json.loads(
        (benched(tmp_path / "whole", [SMALL], units=20) / "cells.jsonl").read_text().split("\n")[0]
    )
    for tests, path in ((7, "tests"), ({"a": 7}, "tests > a"), ({"a": {}}, "tests > a > units")):
        with pytest.raises(IncompleteError, match=f"^{path}$"):
            from_json(BenchCell, line | {"tests": tests})


def test_a_debias_is_drawn_where_all_runs_have_it(tmp_path: Path) -> None:
    folder = benched(tmp_path / "dir", [SMALL], units=20)
    lines = (folder / "cells.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    del last["strengths"]["balanced, full"]["0.25"]
    (folder / "cells.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    plot = trade_off(BenchResults.open(folder).suites[0], "MIND")
    assert plot.chart.series["pulse"].names == ["debias 0", "debias 0.5", "debias 0.75", "debias 1"]
