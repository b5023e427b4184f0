"""No page lets a script through that stands in a title, an id, the name of a feature or of a folder."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import unskew
from tests.helpers.benched import NOTHING, SMALL, TWINS, benched, no_skill
from tests.helpers.hostile import assert_harmless, hostile, hostile_file
from tests.helpers.monitored import MONDAY, NOW, fill
from unskew.data.reading.prepare import prepare
from unskew.diagnostics.log.inspect import inspect
from unskew.diagnostics.log.page import inspect_page, picture
from unskew.diagnostics.propensity.health import health
from unskew.diagnostics.propensity.page import health_page
from unskew.experiments.report import Report
from unskew.experiments.report_page import report_page
from unskew.experiments.results import BenchResults
from unskew.report.table import Cell, Table
from unskew.report.templates import ROOT
from unskew.serve import Event, Recommendation, Shown, open_store
from unskew.serve.http.docs_page import docs_page
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.serve.monitor.page import monitor_page
from unskew.world.simulate import simulate

FOOT = ("command", "date")


def table(rows: int = 400) -> pa.Table:
    """A log whose ids, titles and features are hostile."""
    random = np.random.default_rng(0)
    items = random.integers(0, 12, rows)
    return pa.table(
        {
            "user_id": [hostile(f"user {n}") for n in random.integers(0, 30, rows)],
            "item_id": [hostile(f"item {n}") for n in items],
            "timestamp": 10**9 + 3600 * np.arange(rows),
            "title": [hostile(f"title {n}") for n in items],
            hostile("feature"): [hostile(f"value {n % 3}") for n in items],
        }
    )


def test_the_inspection_page(tmp_path: Path) -> None:
    folder = tmp_path / hostile_file("folder")
    log = prepare(table(), folder, name=hostile("log"), item_features=hostile("feature"))
    inspection = inspect(unskew.split(log))
    page = inspect_page(inspection, hostile("command"), hostile("date"))
    assert_harmless(page, ("log", *FOOT))
    assert_harmless(picture(inspection), ())
    page = inspect_page(replace(inspection, source=str(folder), fingerprint=hostile("hash")))
    assert_harmless(page, ("folder", "hash"))


def test_the_health_page() -> None:
    split = unskew.split(simulate(users=60, items=20, steps=20, impressions=0.2, seed=1).log)
    estimates = np.random.default_rng(0).uniform(0.01, 1, len(split.log.user))
    found = health(
        split, pa.table({"item_view": estimates, "user_view": estimates, "weight": 1 / estimates}), 0.05
    )
    found = replace(found, source=hostile("source"), fingerprint=hostile("hash"))
    page = health_page(found, hostile_file("run"), hostile("command"), hostile("date"))
    assert_harmless(page, ("run", "source", "hash", *FOOT))


def test_the_monitor_page(tmp_path: Path) -> None:
    shown = (Shown(hostile("item"), 0.5, False),)
    with open_store(tmp_path / hostile_file("store.db")) as store:
        fill(store, weeks=2)
        store.record([Recommendation(hostile("id"), hostile("user"), MONDAY, hostile("model"), "1", shown)])
        store.append([Event(hostile("id"), hostile("user"), hostile("item"), hostile("type"), MONDAY)])
        found = monitor(store, settings=Monitoring(max_gini=0.01), now=NOW)
        found = replace(found, run=hostile("run"), trained_until=MONDAY)
        page = monitor_page(found, hostile("command"), hostile("date"))
    assert_harmless(page, ("store.db", "run", *FOOT))


def test_the_report_of_a_bench(tmp_path: Path) -> None:
    names = {arm.name: hostile(arm.name) for arm in (*SMALL.arms, *TWINS.arms)}
    suites = [
        replace(
            suite,
            title=hostile(f"title {suite.name}"),
            question=hostile(f"question {suite.name}"),
            of=hostile(f"of {suite.name}"),
            rivals=tuple(names[rival] for rival in suite.rivals),
            arms=tuple(
                replace(arm, name=names[arm.name], twin=names[arm.twin] if arm.twin else arm.twin)
                for arm in suite.arms
            ),
        )
        for suite in (SMALL, TWINS)
    ]
    sources = hostile("data one"), hostile("data two")
    about = {"command": f"unskew bench {shlex.quote(hostile_file('bench'))} DATA --out DIR"}
    health_of = {names["DEPS"]: NOTHING + hostile("verdict")}
    folder = benched(
        tmp_path / "bench", suites, sources, skill=no_skill, units=60, about=about, health=health_of
    )
    page = report_page(Report.of(BenchResults.open(folder)), hostile("command"), hostile("date"))
    expected = [f"{what} {suite.name}" for suite in suites for what in ("title", "question")]
    assert_harmless(page, [*names, *expected, "data one", "data two", *FOOT], frozenset({"b"}))


@pytest.mark.parametrize("sheet", [True, False])
def test_the_cells_of_a_table(sheet: bool) -> None:
    names = ("text", "small", "marks", "best", "second", "command", "head", "caption")
    text, small, marks, best, second, command, head, caption = map(hostile, names)
    cells = (Cell(text, small, marks), Cell(best, rank=1), Cell(second, rank=2), Cell(f"unskew {command}"))
    table = Table([head] * 4, [cells, cells], caption=caption, groups=[(hostile("group"), 4)], foot=1)
    table = replace(table, name=hostile("name"))
    expected = (*names, *(("group", "name") if sheet else ()))
    assert_harmless(table.html(sheet), expected, frozenset({"b"}))


def test_the_page_about_the_endpoints() -> None:
    text = {name: hostile(name) for name in ("title", "version", "about", "summary", "name", "in", "meaning")}
    field = {"type": hostile("type"), "description": hostile("field")}
    document: dict[str, Any] = {
        "info": {"title": text["title"], "version": text["version"], "description": text["about"]},
        "paths": {
            hostile("/path"): {
                "post": {
                    "summary": text["summary"],
                    "parameters": [
                        {
                            "name": text["name"],
                            "in": text["in"],
                            "schema": field,
                            "description": text["meaning"],
                        }
                    ],
                    "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/x/Body"}}}},
                    "responses": {hostile("status"): {}},
                }
            }
        },
        "components": {
            "schemas": {"Body": {"properties": {hostile("key"): field}, "examples": [hostile("example")]}}
        },
    }
    expected = (*text, "type", "field", "/path", "status", "key")
    page = docs_page(document)
    assert_harmless(page, expected, frozenset({"b"}))
    assert "example&lt;script&gt;" in page


def test_no_template_and_no_other_module_turns_the_escaping_off() -> None:
    """Only drawings, tables, styles and scripts become `Markup`; templates make or check them."""
    for path in ROOT.rglob("templates/*"):
        assert not re.search(r"\|\s*safe\b|autoescape", path.read_text(encoding="utf-8")), path
    modules = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "Markup(" in path.read_text()}
    report = {f"report/{name}.py" for name in ("curves", "svg", "table", "templates")}
    assert modules == {*report, "experiments/report_page.py"}


@pytest.mark.parametrize("text", [hostile("x"), hostile_file("x")])
def test_the_check_sees_what_is_not_escaped(text: str) -> None:
    with pytest.raises(AssertionError):
        assert_harmless(f"<p>{text}</p>", ())
    with pytest.raises(AssertionError):
        assert_harmless(f'<p title="{text}"></p>', ("x",))
