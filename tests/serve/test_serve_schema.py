"""Schemathesis asks whatever the OpenAPI document allows, and what it forbids. Its own plugin for pytest does
not know this pytest, so the examples are drawn here.

A schema cannot say which items, features and rule sets there are. In the requests that it allows, they are
drawn from those of the service, so that no answer needs an exception.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import hypothesis.strategies as st
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

import unskew
from tests.helpers.serving import BEGIN, ITEMS, dated_table
from unskew.serve import open_store
from unskew.serve.http.app import create_app
from unskew.serve.http.service import Service
from unskew.serve.variants.assignment import Variant

EXAMPLES = 12  # of each operation, of each kind
ENDPOINTS = 14
LISTS, EVENTS, FEED = "/v1/recommendations", "/v1/events", "/v1/items"

# The service takes times from 1970 on; the format itself has no bounds.
moments = st.datetimes(datetime(1971, 1, 1), datetime(9990, 1, 1))
schemathesis.openapi.format("date-time", moments.map(lambda moment: moment.isoformat() + "Z"))

items = st.integers(0, ITEMS - 1).map("i{}".format)
users = st.integers(0, 45).map("u{}".format)  # some of whom the log does not know
times = st.none() | st.integers(BEGIN - 10**6, BEGIN + 10**7)
conditions = st.one_of(
    st.sampled_from(["in_stock = true", "price < 9", "category in [a, 'b|c']", "not category = a"]),
    st.sampled_from(["price >= 3 and in_stock = false or category = b", "price is missing"]),
    items.map("item_id != {}".format),
)
rules = st.one_of(
    conditions.map("exclude ({}) and price > 8".format),
    st.tuples(st.integers(1, 5), st.sampled_from(["category", "in_stock"])).map(
        lambda drawn: "at most {} per {}".format(*drawn)
    ),
    st.tuples(st.integers(1, 100), conditions).map(lambda drawn: "at least {}% {}".format(*drawn)),
)
pin = st.tuples(items, st.integers(1, 9)).map(lambda drawn: "pin {} at {}".format(*drawn))
events = st.fixed_dictionaries(
    {
        "event_id": st.text("abc", min_size=1, max_size=3),
        "user_id": users,
        "item_id": items | st.just("new"),
        "type": st.sampled_from(["click", "purchase", "view", "cart", "buy"]),
    },
    optional={
        "timestamp": times,
        "impression": st.lists(items, min_size=1, max_size=3),
        "propensity": st.floats(0, 1.1),
        "position": st.integers(0, 9),
    },
)
features = st.fixed_dictionaries(
    {},
    optional={
        "category": st.lists(st.sampled_from("abc"), max_size=2) | st.text(max_size=5),
        "price": st.floats(0, 20) | st.integers(-(10**400), 10**400),
        "in_stock": st.booleans() | st.none(),
        "more": st.text(max_size=3) | st.floats() | st.booleans(),
    },
)
rows = st.fixed_dictionaries(
    {"item_id": items | st.just("fresh")},
    optional={"title": st.none() | st.text(max_size=5), "features": features, "timestamp": times},
)


@pytest.fixture(scope="module")
def operations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    """A service of two runs with types of events, features, rule sets, random items and an A/B test."""
    folder = tmp_path_factory.mktemp("schema")
    number = [int(name[1:]) for name in dated_table()["item"].to_pylist()]
    table = dated_table().append_column("category", [["ab"[code % 2] for code in number]])
    table = table.append_column("price", [[float(code % 11) for code in number]])
    table = table.append_column("in_stock", [[bool(code % 5) for code in number]])
    log = unskew.read(table, item_features="category,price,in_stock")
    for name in ("itemknn", "popularity"):
        unskew.create_model(name).fit(unskew.split(log), show_progress=False).save(folder / name)
    (folder / "rules.toml").write_text('default = ["at most 9 per category"]\nfront = ["price < 9"]\n')
    types = {"positive": ["click", "purchase"], "context": ["view", "cart"]}
    with open_store(folder / "e.db", synchronous="normal", **types) as store:
        service = Service(
            str(folder / "itemknn"),
            store,
            explore=0.1,
            explore_cold=0.1,
            rules=folder / "rules.toml",
            variants=[Variant.parse(f"B={folder / 'popularity'}:0.4")],
        )
        service.load()
        schema = schemathesis.openapi.from_asgi("/openapi.json", create_app(service, hosts=None))
        yield [found.ok() for found in schema.get_all_operations()]
        service.close()


def make_known(case: schemathesis.Case, draw: Any) -> None:
    """Draw what the log decides, and not the schema. Parts of a case are exchanged and never changed, because
    they may be drawn again."""
    body, path, method = case.body, case.operation.path, case.method
    if path == LISTS and method == "POST" and isinstance(body, dict):
        named = [name for name in LIST_FIELDS if name in body or draw(st.booleans())]
        body = {**body, **{name: draw(LIST_FIELDS[name]) for name in named}}
        if body.get("candidates") is not None:  # one of them must be left, and exist at that moment
            body.pop("at", None)
            ids = [*body["candidates"], "i1", "i2", "i3"]
            body |= {"candidates": ids, "exclude": [], "include_seen": True}
        case.body = body
    elif path == LISTS:
        query = {name: value for name, value in case.query.items() if name != "rule_set"}
        case.query = query | {"user_id": draw(users)} | draw(st.sampled_from([{}, {"rule_set": "front"}]))
    elif path == EVENTS and draw(st.booleans()):
        case.body = {"events": draw(st.lists(events, min_size=1, max_size=4))}
    elif path == FEED and method == "PUT" and draw(st.booleans()):
        case.body = {"items": draw(st.lists(rows, min_size=1, max_size=4))}
    elif case.path_parameters and draw(st.booleans()):
        case.path_parameters = {name: draw(KNOWN[name]) for name in case.path_parameters}


LIST_FIELDS = {
    "user_id": users,
    "rules": st.tuples(st.lists(rules, max_size=3), st.lists(pin, max_size=1)).map(
        lambda two: two[0] + two[1]
    ),
    "rule_set": st.none() | st.sampled_from(["default", "front"]),
    "candidates": st.none() | st.lists(items, max_size=4),
}
KNOWN = {"user_id": users, "item_id": items}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_the_service_does_what_its_schema_says(operations: list[Any], mode: GenerationMode) -> None:
    assert len(operations) == ENDPOINTS
    asked = 0
    for operation in operations:
        is_empty = not (operation.body or operation.query or operation.path_parameters)
        if is_empty and mode is GenerationMode.NEGATIVE:
            continue  # nothing can be wrong

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode), data=st.data())
        def answers(case: schemathesis.Case, data: st.DataObject) -> None:
            nonlocal asked
            asked += 1
            if mode is GenerationMode.POSITIVE:
                make_known(case, data.draw)
            case.call_and_validate()

        answers()
    assert asked > 60
