"""The charts and tables of a report, in each form in which they are written."""

import itertools
import json
import re
import tomllib
import xml.etree.ElementTree as ET
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import tyro

from tests.helpers.benched import SKILLS, SMALL, benched, block, skilled, small_bench
from tests.helpers.command import run
from unskew.cli.train import train_of
from unskew.experiments import paper_suites as paper
from unskew.experiments.published import CAVEAT, published_data_set, published_metrics
from unskew.experiments.report import Report
from unskew.experiments.report_page import report_page
from unskew.experiments.results import BenchResults, EvaluationSpec
from unskew.experiments.tables import published_tables, runs_table, train_command
from unskew.report.charts import drawing
from unskew.report.curves import Curve, Curves, style_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_bench(tmp_path_factory.mktemp("bench") / "dir")


@pytest.fixture(scope="module")
def findings(folder: Path) -> BenchResults:
    return BenchResults.open(folder)


PAPERS = "paper: Amazon Digital Music"


def test_a_script_finds_points_where_they_are_drawn() -> None:
    points = [(1.0, 0.1), (10.0, 0.3), (50.0, 0.2)]
    for logarithmic in (False, True):
        chart = Curves(
            {"a": Curve(0, points), "b": Curve(1, spot=(20.0, 0.15))}, "x", "y", logarithmic=logarithmic
        )
        drawn, frame = drawing(chart, "c", "alt")
        assert drawn == drawing(chart, "c", "alt")[0]
        left, right, low, high = frame.values
        x0, x1, y0, y1 = frame.places
        line = re.search(r'<g data-series="0"[^>]*><path d="([^"]+)"', drawn)[1]
        seen = [tuple(map(float, place.split())) for place in re.split("[ML]", line)[1:]]
        for (x, y), place in zip(points, seen, strict=True):
            fraction = np.log(x / left) / np.log(right / left) if logarithmic else (x - left) / (right - left)
            expected = x0 + (x1 - x0) * fraction, y0 + (y1 - y0) * (y - low) / (high - low)
            assert place == pytest.approx(expected, abs=0.11)


def test_series_differ_without_colours_and_labels_do_not_overlap() -> None:
    looks = [style_of(number) for number in range(20)]
    assert len({(look.shape, look.hollow) for look in looks}) == 20
    assert len({(look.colour, look.shape, str(look.dash)) for look in looks}) == 20
    assert all(one.dash != other.dash for one, other in itertools.pairwise(looks))
    random = np.random.default_rng(0)
    spots = {f"model {number}": (float(x), float(y)) for number, (x, y) in enumerate(random.random((20, 2)))}
    chart = Curves(
        {name: Curve(at, spot=spot) for at, (name, spot) in enumerate(spots.items())}, "x", "y", labelled=True
    )
    drawn, _ = drawing(chart, "c", "alt")
    texts = [node for node in ET.fromstring(drawn).iter() if (node.text or "").startswith("model ")]
    assert len(texts) > 10
    places = [(float(node.attrib["x"]), float(node.attrib["y"]), node.text) for node in texts]
    boxes = [(x, y, x + 4.4 * len(name), y - 6) for x, y, name in places]
    for at, one in enumerate(boxes):
        for other in boxes[at + 1 :]:
            assert not (one[0] < other[2] and other[0] < one[2] and one[3] < other[1] and other[3] < one[1])


# Tables as text, cards, and the paper


def test_markdown_latex_and_json_have_the_same_tables(folder: Path, tmp_path: Path, capsys) -> None:
    code, out, _ = run(
        capsys, "report", folder, "--markdown", tmp_path / "a.md", "--latex", tmp_path / "a.tex", "--json"
    )
    assert code == 0
    document = json.loads(out)
    assert document["runs"] == document["done"] == 24  # two suites share what is the same
    rows = [
        row
        for row in document["figures"]
        if (row["suite"], row["data"], row["test"], row["protocol"], row["metric"])
        == ("main", "MIND", "ordinary", "full", "ndcg@10")
    ]
    assert [row["model"] for row in rows] == list(SKILLS)
    best = max(rows, key=lambda row: row["mean"])
    figure = f"{best['mean']:.4f}"
    interval = f"[{best['low']:.4f}, {best['high']:.4f}]"
    markdown, latex = ((tmp_path / f"a.{end}").read_text() for end in ("md", "tex"))
    assert f"| **{figure}**\\*† {interval} |" in markdown
    assert rf"\textbf{{{figure}}}$^{{*}}$$^{{\dagger}}$ {interval}" in latex
    assert markdown.startswith("# What the bench found\n")
    assert latex.count(r"\begin{table}") == markdown.count("\n| --- |") > 10
    assert "<svg" not in markdown
    assert {row["verdict"] for row in document["claims"]} <= {
        "confirmed",
        "refuted",
        "undecided",
        "not measured",
    }
    assert {row["by"] for row in document["segments"]} == {
        "user",
        "item",
        "popularity decile",
        "history length",
    }


def test_the_command_of_a_card_trains_that_very_model(findings: BenchResults) -> None:
    sheet = runs_table(findings.suites[1])
    row = next(row for row in sheet.rows if row[0].text == "DEPS (STAMP)")
    assert "propensity dual" in row[2].text
    words = row[-1].text.split()[1:]
    assert words[:2] == ["train", "DATA"]
    made = tyro.cli(train_of(words), args=words[1:], config=(tyro.conf.FlagCreatePairsOff,))
    cell = findings.suites[1].cell("MIND", "DEPS (STAMP)")
    for part, stored in ((made.settings, cell.config), (made.training, cell.training)):
        assert json.loads(json.dumps(asdict(part))) == stored
    assert train_command("stamp", {}, 2) == "unskew train DATA --out RUN --model stamp --seed 2"


def test_published_figures_stand_beside_ours_only_under_the_same_protocol(tmp_path: Path) -> None:
    published = published_metrics()
    assert published_data_set("Paper: Amazon BEAUTY") == "Amazon-Beauty"
    assert published_data_set("my-paper-mind") == "MIND"
    assert published_data_set("Beauty") is None
    assert published_data_set("paper of my own") is None
    assert tuple(published["Amazon-Digital-Music"]["DEPS"].values()) == (
        0.2256,
        0.2766,
        0.3273,
        0.4093,
        0.5852,
        0.7757,
    )
    assert published["MIND"]["USR"]["hr@10"] == 0.2194
    assert published["Huawei"]["CPR"]["ndcg@5"] == 0.1414
    assert [len(published[data]) for data in ("MIND", "Amazon-Beauty", "Huawei")] == [13, 13, 13]
    for tests, there in ((("paper, authors",), True), (("paper, full",), False), ((), False)):
        folder = benched(
            tmp_path / f"{len(tests)}{there}",
            [SMALL],
            (PAPERS, "MIND"),
            skill=skilled,
            tests=lambda source, tests=tests: ("ordinary, full", "balanced, full", *tests),
        )
        suite = BenchResults.open(folder).suites[0]
        sheets = list(published_tables(suite))
        assert len(sheets) == there
        page = report_page(Report.of(BenchResults.open(folder)))
        assert CAVEAT.split(",")[0].replace("'", "&#39;") in page
        if there:
            ours = suite.arm_results(PAPERS, EvaluationSpec("paper", "authors")).means("ndcg@10")["DEPS"]
            row = sheets[0].rows[0]
            assert [entry.text for entry in row[:1] + row[3:5]] == ["DEPS", "0.2766", f"{ours.mean:.4f}"]
            assert [row[0].text for row in sheets[0].rows] == ["DEPS", "STAMP", "FPMC"]
            assert CAVEAT in sheets[0].caption
        else:
            assert "none of its published values may stand beside ours" in page


def test_a_time_line_and_an_axis_have_charts(tmp_path: Path) -> None:
    arms = tuple(replace(arm, name=f"M {arm.x:g}") for arm in paper.CLIP.arms[:3])
    folder = benched(tmp_path / "dir", [replace(paper.CLIP, arms=arms)], windows=14, skill=skilled)
    page = report_page(Report.of(BenchResults.open(folder)))
    assert 'id="axis"' in page
    assert 'id="windows"' in page
    chart = next(one for one in block(page)["charts"].values() if one["axes"][0] == "window from")
    assert chart["names"]["0"] == "2024-03-01"
    assert len(chart["series"][0]["points"]) == 14
    axis = next(one for one in block(page)["charts"].values() if one["axes"][0] == "clip M")
    assert axis["log"] == 1
    assert [x for x, _ in axis["series"][0]["points"]] == sorted(arm.x for arm in arms)
    assert dict(axis["series"][0]["points"])[0.05] == 0


def test_the_files_of_the_page_are_part_of_the_package() -> None:
    root = Path(__file__).parents[2]
    listed = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "unskew"
    ]
    assert {"experiments/published.csv", "*/templates/*"} <= set(listed)
    assert all((root / "src/unskew" / name).is_file() for name in listed if name.startswith("experiments/"))
