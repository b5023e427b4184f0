"""The TypeScript client: its OpenAPI document is that of the code, its types are those of the document, and
it works with a running service (make test-integrations; needs Node and npm)."""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.serving import process, run_fixture

served_run = run_fixture
CLIENTS = Path(__file__).parents[2] / "clients"


def test_the_document_is_that_of_the_code() -> None:
    spec = importlib.util.spec_from_file_location("openapi", CLIENTS / "openapi.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    stored = (CLIENTS / "openapi.json").read_text(encoding="utf-8")
    assert stored == script.text(), "python clients/openapi.py, then npm run generate in clients/typescript"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with its development tools."""
    if shutil.which("npm") is None:
        pytest.skip("no npm here")
    folder = tmp_path_factory.mktemp("clients")
    shutil.copy(CLIENTS / "openapi.json", folder)
    left_out = shutil.ignore_patterns("node_modules", "build")
    shutil.copytree(CLIENTS / "typescript", folder / "typescript", ignore=left_out)
    npm(folder / "typescript", "ci", "--no-audit", "--no-fund")
    return folder / "typescript"


def npm(folder: Path, *arguments: str, **environment: str) -> None:
    ended = subprocess.run(
        ["npm", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.integration
def test_the_types_are_those_of_the_document(package: Path) -> None:
    npm(package, "run", "generate")
    stored = (CLIENTS / "typescript" / "src" / "schema.ts").read_text(encoding="utf-8")
    assert (package / "src" / "schema.ts").read_text(encoding="utf-8") == stored


@pytest.mark.integration
def test_the_client_works_with_a_running_service(package: Path, served_run: Path, tmp_path: Path) -> None:
    run, tokens = tmp_path / "run", tmp_path / "tokens"
    shutil.copytree(served_run, run)  # erasing a user changes it
    read, write = "r" * 20, "w" * 20
    tokens.write_text(f"read: {read}\nwrite: {write}\n")
    tokens.chmod(0o600)
    with process(run, tmp_path / "e.db", "--token-file", str(tokens)) as (_, address):
        npm(package, "test", UNSKEW_ADDRESS=address, UNSKEW_TOKEN=write, UNSKEW_READ=read)
