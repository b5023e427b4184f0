"""Schemathesis asks whatever the OpenAPI document allows, and what it forbids. Its own plugin for pytest does
not know this pytest, so the examples are drawn here."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from tests.helpers.serving import run_fixture, serving
from unskew.serve.http.app import create_app

served_run = run_fixture
EXAMPLES = 12  # of each operation, of each kind
ENDPOINTS = 14
BY_THE_LOG = ("candidates", "rules", "rule_set")  # a schema cannot say which items and features there are

# The service takes times from 1970 on; the format itself has no bounds.
moments = st.datetimes(datetime(1971, 1, 1), datetime(9990, 1, 1))
schemathesis.openapi.format("date-time", moments.map(lambda moment: moment.isoformat() + "Z"))


@pytest.fixture(scope="module")
def operations(served_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    with serving(served_run, tmp_path_factory.mktemp("schema") / "e.db", explore=0.1) as service:
        schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(service, hosts=None))
        yield [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize("mode", [schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE])
def test_the_service_does_what_its_schema_says(
    operations: list[Any], mode: schemathesis.GenerationMode
) -> None:
    assert len(operations) == ENDPOINTS
    asked = 0
    for operation in operations:
        is_empty = not (operation.body or operation.query or operation.path_parameters)
        if is_empty and mode is schemathesis.GenerationMode.NEGATIVE:
            continue  # nothing can be wrong

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def answers(case: schemathesis.Case) -> None:
            nonlocal asked
            asked += 1
            answer = case.call()
            if answer.status_code == 422 and answer.json()["error"]["field"] in BY_THE_LOG:
                return
            case.validate_response(answer)

        answers()
    assert asked > 60
