"""Rules: what they mean for items, against plain Python; and errors that name the rule, the column and what
was expected."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import unskew
from tests.helpers.errors import refused
from tests.helpers.shops import ITEMS, category_of, price_of, shop_log
from unskew.data.log.log import Log
from unskew.recommendation.rule_masks import ItemRules, absent_values, bind_rules
from unskew.recommendation.rules import BadRule, conditions_of, parse_rules, read_rule_sets


@pytest.fixture(scope="module")
def log() -> Log:
    return shop_log()


def bound(log: Log, *rules: str) -> ItemRules:
    return bind_rules(parse_rules(rules), log.items, log.items.features)


def admitted(log: Log, *rules: str) -> set[int]:
    """The numbers of the items that rules admit."""
    mask = bound(log, *rules).admitted
    return {int(name[1:]) for name, here in zip(log.items.ids.to_pylist(), mask, strict=True) if here}


def cheap(item: int, price: float) -> bool:
    own = price_of(item)
    return own is not None and own < price


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ("category in [shoes, hats]", lambda i: category_of(i) in ("shoes", "hats")),
        ("category = gifts", lambda i: category_of(i) == "books|gifts"),
        ("include category = books", lambda i: category_of(i) == "books|gifts"),
        ("exclude category = shoes", lambda i: category_of(i) != "shoes"),
        ("category != shoes", lambda i: category_of(i) != "shoes"),
        ("category not in ['shoes', \"hats\"]", lambda i: category_of(i) not in ("shoes", "hats")),
        ("in_stock = true", lambda i: i % 3 > 0),
        ("in_stock = FALSE", lambda i: i % 3 == 0),
        ("price < 50", lambda i: cheap(i, 50)),
        ("price <= 60", lambda i: cheap(i, 60.5)),
        ("not price < 50", lambda i: not cheap(i, 50)),
        ("price in [10, 2e1]", lambda i: i in (1, 2)),
        ("price >= 50", lambda i: price_of(i) is not None and not cheap(i, 50)),
        ("price > 60", lambda i: price_of(i) is not None and not cheap(i, 60.5)),
        ("price is missing", lambda i: i == 5),
        ("category is not missing", lambda i: category_of(i) is not None),
        ("item_id in [i3, 'i7', other]", lambda i: i in (3, 7)),
        ("price < 30 or price > 200 and in_stock = true", lambda i: cheap(i, 30) or (i > 20 and i % 3 > 0)),
        ("(price < 30 or price > 200) and in_stock = true", lambda i: (cheap(i, 30) or i > 20) and i % 3 > 0),
        ("not (price < 30 or in_stock = true)", lambda i: not (cheap(i, 30) or i % 3 > 0)),
        ("'price'<30 # a comment, \"with signs\"", lambda i: cheap(i, 30)),
        ("price < 30\n\n# nothing\nin_stock = true", lambda i: cheap(i, 30) and i % 3 > 0),
    ],
)
def test_what_conditions_mean(log: Log, rule: str, holds: Callable[[int], bool]) -> None:
    expected = {item for item in range(ITEMS) if holds(item)}
    assert 0 < len(expected) < ITEMS
    assert admitted(log, rule) == expected


def test_all_rules_hold_together_and_lists_are_read_apart(log: Log) -> None:
    rules = ("price < 100", "at most 2 per category\nin_stock = true", "at least 30% category = hats")
    assert admitted(log, *rules) == {i for i in range(ITEMS) if cheap(i, 100) and i % 3 > 0}
    found = bound(log, *rules, "at least 2 price < 30", "pin i20 at 3", "pin 'no such' at 1")
    assert [limit.most for limit in found.limits] == [2]
    assert [quota.least(10) for quota in found.quotas] == [3, 2]
    assert {place: log.items.ids[code].as_py() for place, code in found.pins.items()} == {2: "i20"}
    assert found.unknown == ("no such",)
    assert conditions_of(rules) == ("price < 100", "in_stock = true")
    assert bound(log, "at least 30% category = hats").quotas[0].least(1) == 1  # rounded up
    assert bound(log, "at least 100% category = hats").quotas[0].least(7) == 7


@pytest.mark.parametrize(
    ("rule", "where", "expected"),
    [
        ("price < 50 foo", "column 12", "expected and, or, or the end of the rule, found 'foo'"),
        ("(price < 50", "column 12", "expected ), found the end of the rule"),
        ("price <", "column 8", "expected a value, found the end of the rule"),
        ("price", "column 6", "expected =, !=, <, <=, >, >=, in, not in, or is, found the end of the rule"),
        ("price == 5", "column 8", "expected a value, found '='"),
        ("category in [a b]", "column 16", "expected a comma or ], found 'b'"),
        ("category in []", "column 14", "expected a value, found ']'"),
        ("category is known", "column 13", "expected missing, found 'known'"),
        ("and price < 5", "column 1", "expected the name of a feature, found 'and'"),
        ("category = 'shoes", "column 12", "a quotation mark without its other one"),
        ("price < 5\nprice < ;\nprice <", "line 3, column 8", "expected a value"),
        ("at most 0 per category", "column 9", "expected how many items, at least 1, found '0'"),
        ("at most 2 of category", "column 11", "expected per, found 'of'"),
        ("at mosst 2 per category", "column 4", "expected most or least, found 'mosst'"),
        ("at least 120% price < 5", "column 10", "expected a percentage above 0 and at most 100"),
        ("at least 1.5 price < 5", "column 10", "expected a whole number"),
        ("at least 1e999 price < 5", "column 10", "expected a whole number"),
        ("at most 1 per item_id", "column 15", "an item is its own id"),
        ("pin i1 at 0", "column 11", "expected a position, counted from 1, found '0'"),
        ("pin in [i1]", "column 1", "no feature 'pin'"),
        ("categry = shoes", "column 1", "no feature 'categry'; did you mean 'category'?"),
        ("in_stock = true and not colour = red", "column 25", "no feature 'colour'"),
        ("price < cheap", "column 9", "price is a number; expected one, found 'cheap'"),
        ("price = 'ten'", "column 9", "price is a number; expected that, found 'ten'"),
        ("in_stock = maybe", "column 12", "in_stock is true or false; expected that"),
        ("category < 5", "column 1", "category is neither a number nor a time, so it has no order"),
        ("(" * 60 + "price < 5" + ")" * 60, "column 51", "expected at most 50 conditions within each other"),
        ("not " * 60 + "price < 5", "column 201", "expected at most 50 conditions within each other"),
    ],
)
def test_mistakes_are_named_where_they_are(log: Log, rule: str, where: str, expected: str) -> None:
    with pytest.raises(BadRule) as caught:
        bound(log, "price < 99", rule)
    assert caught.value.field == "rules"
    assert str(caught.value).startswith(f"rule 2, {where}: ")
    assert expected in str(caught.value)


def test_an_item_and_a_position_are_pinned_once() -> None:
    for rules in (("pin i1 at 1", "pin i2 at 1"), ("pin i1 at 1", "pin i1 at 2")):
        with pytest.raises(BadRule, match=r"rule 2, column 5: .* pinned already"):
            parse_rules(rules)


def test_what_is_no_list_of_rules() -> None:
    for wrong in ("price < 5", [5], ["x = 1"] * 101, ["x" * 10_001]):
        with refused("rules"):
            parse_rules(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rules", "reason"),
    [
        (["\n".join(["price < 5"] * 500)] * 3, "1,000 comparisons in all rules together, found 1,001"),
        ([f"price in [{'5,' * 4000}5]"] * 3, "10,000 values in all rules together, found 12,003"),
        (["#" * 9000] * 30, "200,000 characters in all rules together, found 270,000"),
    ],
)
def test_one_request_cannot_take_the_service_for_seconds(rules: list[str], reason: str) -> None:
    with pytest.raises(BadRule, match=f"rules: expected at most {reason}"):
        parse_rules(rules)


@pytest.mark.parametrize(
    ("condition", "absent"),
    [
        ("category in [shoes, hats]", None),
        ("category in [shoes, shoe]", "no item has category 'shoe'; did you mean 'shoes'?"),
        ("item_id in [i1, i2]", None),
        ("item_id in [i1, i99]", "no item has the id 'i99'"),
        ("in_stock in [true, false]", None),
        ("price = 123456", "no item has price '123456'"),
    ],
)
def test_a_hint_names_the_first_value_that_no_item_has(log: Log, condition: str, absent: str | None) -> None:
    found = absent_values(parse_rules([f"not {condition}"]), log.items, log.items.features)
    assert found.startswith(absent) if absent else found == ""


def test_true_and_false_of_a_text_are_found_in_any_case() -> None:
    rows = {"user": ["u1", "u2"], "item": ["i1", "i2"], "time": [1, 2], "new": ["True", "unknown"]}
    log = unskew.read(pa.table(rows), item_features="new")
    for value in ("true", "TRUE", "unknown"):
        assert absent_values(parse_rules([f"not new = {value}"]), log.items, log.items.features) == ""
    for value in ("false", "Unknown"):
        assert absent_values(parse_rules([f"not new = {value}"]), log.items, log.items.features)


def test_times_have_an_order() -> None:
    rows = {"user": ["a", "b", "b"], "item": ["x", "y", "z"], "time": [1, 2, 3]}
    rows |= {"day": ["2026-01-01", "2026-02-01", None]}
    table = unskew.read(rows, item_features="day").items.table()
    table = table.set_column(1, "feature:day", table["feature:day"].cast("date32"))
    items = type(shop_log().items).of_table(table)
    mask = bind_rules(parse_rules(("day >= 2026-01-15",)), items, items.features).admitted
    assert mask.tolist() == [False, True, False]
    with pytest.raises(BadRule, match="column 7: day is a time"):
        bind_rules(parse_rules(("day > soon",)), items, items.features)


def test_whole_numbers_as_ids() -> None:
    log = unskew.read({"user": [1, 1, 2], "item": [7, 8, 9], "time": [1, 2, 3]})
    assert bound(log, "item_id in [7, x, 99, 7.5]").admitted.tolist() == [True, False, False]
    assert bound(log, "pin 9 at 1").pins == {0: 2}


# Files of rule sets


def test_named_rule_sets(tmp_path: Path, log: Log) -> None:
    toml, json = tmp_path / "rules.toml", tmp_path / "rules.json"
    toml.write_text(
        'default = ["in_stock = true"]\nfront = [\n  "price < 50",\n  "at most 2 per category",\n]\n'
    )
    json.write_text('{"default": ["in_stock = true"], "front": ["price < 50", "at most 2 per category"]}')
    for file in (toml, json):
        sets = read_rule_sets(file)
        assert sets.named("front") == ("price < 50", "at most 2 per category")
        assert sets.named(None) == ("in_stock = true",)
        assert sets.parse("front").shapes_lists
        with pytest.raises(unskew.BadInput, match="no rule set 'frnt'; did you mean 'front'"):
            sets.named("frnt")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.toml", "front = ['price < 5', 'price <']", r"a.toml, front, rule 2, column 8: expected a value"),
        ("a.toml", "front = 'price < 5'", "a.toml, front: expected a list of rules, found str"),
        ("a.toml", "front = [5]", "a.toml, front: expected a list of rules"),
        ("a.toml", "front = [", "a.toml: is no TOML"),
        ("a.json", "{", "a.json: is no JSON"),
        ("a.json", "[" * 100_000, "a.json: is no JSON"),
        ("a.json", "[]", "a.json: expected a list of rules for each name"),
    ],
)
def test_wrong_files_of_rules(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(unskew.BadInput, match=message) as caught:
        read_rule_sets(tmp_path / name)
    assert caught.value.field == "rules"


def test_no_file_of_rules(tmp_path: Path) -> None:
    with refused("rules"):
        read_rule_sets(tmp_path / "missing.toml")
