"""The verb `monitor` as a script sees it, and its page."""

import json
import re
from pathlib import Path

import pytest

from tests.helpers.command import run
from tests.helpers.monitored import MONDAY, NOW, WEEK, fill
from unskew.cli.shared import command_line
from unskew.core.errors import UnskewError
from unskew.serve import Event, open_store
from unskew.serve.monitor.monitor import Monitoring, monitor
from unskew.serve.monitor.page import monitor_page


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("store") / "events.db"
    with open_store(file, synchronous="normal") as store:
        fill(store)
        store.append([Event("last", "ann", "i1", "click", MONDAY + 7 * WEEK)])
    return file


def test_it_is_healthy_and_0(capsys, where: Path) -> None:
    code, out, err = run(capsys, "monitor", "--store", where, "--max-fallback", 1, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["healthy"]
    assert document["thresholds"] == {"max_fallback": 1.0}
    assert document["windows"][0]["start"] == "2026-01-05T00:00:00Z"
    assert document["windows"][0]["ndcg"] is None
    assert len(document["windows"]) == 8
    code, out, _ = run(capsys, "monitor", "--store", where)
    assert code == 0
    assert "No threshold was given" in " ".join(out.split())
    assert "Gini, shown" in out


def test_a_password_is_not_on_the_page(monkeypatch) -> None:
    url = "postgresql://me:s3cret@host/db?password=s3cret"
    monkeypatch.setattr("sys.argv", ["unskew", "monitor", "--store", url, f"--store={url}", "--json"])
    assert command_line() == "unskew monitor --store postgresql://... --store=postgresql://... --json"


def test_a_crossed_threshold_is_1_and_a_sentence(capsys, tmp_path: Path) -> None:
    with open_store(tmp_path / "events.db") as store:
        fill(store)
        store.append([Event("last", "ann", "i1", "click", MONDAY + 6 * WEEK)])
        judged = monitor(store, now=NOW).judged
    assert judged is not None
    assert judged.start == MONDAY + 5 * WEEK
    where, crossed = tmp_path / "events.db", ["--max-gini", "0.01", "--min-ess", "1"]
    few = ["--every", "4w", "--windows", "2"]
    code, out, err = run(capsys, "monitor", "--store", where, *few, *crossed, "--json")
    assert code == 1
    assert not json.loads(out)["healthy"]
    lines = err.strip().splitlines()
    assert len(lines) == 2
    assert re.match(
        r"unskew: A few items get most .* was 0\.\d\d in the window .*, above `--max-gini 0.01`; ", lines[0]
    )
    assert "below `--min-ess 1`; let more of what is shown be chosen at random" in lines[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--store", "none.db"], "none.db: no such store"),
        ([], "--store"),
        (["--store", "{where}", "--run", "none"], "none: no such folder"),
        (["--store", "{where}", "--every", "7"], "expected a unit"),
        (["--store", "{where}", "--max-gini", "2"], "max_gini 2.0: expected at least 0 and at most 1"),
        (["--store", "{where}", "--max-ginni", "1"], "did you mean '--max-gini'?"),
        (["--store", "{where}", "--html", "{where}/x.html"], "cannot be written"),
    ],
)
def test_what_could_not_be_measured_is_one_line_and_2(
    capsys, where: Path, words: list[str], said: str
) -> None:
    code, out, err = run(capsys, "monitor", *(word.replace("{where}", str(where)) for word in words))
    assert (code, out) == (2, "")
    assert said in " ".join(err.split())


def test_a_job_that_fails_is_2_and_not_1(capsys, monkeypatch, where: Path) -> None:
    def fails(*_: object) -> None:
        raise UnskewError("the disk is full")

    monkeypatch.setattr("unskew.cli.monitor.monitor", fails)
    assert run(capsys, "monitor", "--store", where)[::2] == (2, "unskew: the disk is full\n")


def test_the_page_is_one_file_without_network(capsys, where: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    page = tmp_path / "page.html"
    assert run(capsys, "monitor", "--store", where, "--max-gini", "0.9", "--html", page)[0] == 0
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=\"(?!#)|url\((?!#)|@import", text)
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert text.count("<svg") == 9  # neither calibration nor NDCG are known
    assert text.count(">threshold<") == 1
    assert "What the values mean" in text
    assert 'class="verdict none"' in text  # the judged window shows nothing


@pytest.mark.slow
def test_the_look_of_the_verdict(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    with open_store(tmp_path / "events.db") as store:
        fill(store)
        looks = {
            0.01: "bad",
            1.0: "good",
        }
        for threshold, look in looks.items():
            found = monitor(store, settings=Monitoring(every="4w", max_gini=threshold), now=NOW)
            text = monitor_page(found, "unskew monitor", "2026-02-01")
            assert f'class="verdict {look}"' in text
            assert monitor_page(found, "unskew monitor", "2026-02-01") == text
            assert found.verdict().finding in text
        # Ids of users and items are not on the page, and a hostile name is text.
        assert "u99" not in text


@pytest.mark.slow
def test_pages_of_stores_that_have_little(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs the extra `report`")
    with open_store(tmp_path / "<b>.db") as store:
        assert "The store is empty" in monitor_page(monitor(store, now=NOW))
        store.append([Event("1", "ann", "tea", "click", MONDAY)])
        text = monitor_page(monitor(store, now=MONDAY + 5))
        assert "There is no whole window yet" in text
        assert "&lt;b&gt;.db" in text
        assert "<b>" not in text
        hourly = monitor_page(monitor(store, settings=Monitoring(every="1h"), now=NOW))
        assert "2026-01-05T00:00" in hourly or "2026-01-05" in hourly
