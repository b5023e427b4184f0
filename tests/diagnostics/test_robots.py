"""Bots and test accounts: they are named, and can be left out."""

from pathlib import Path

import pytest

import unskew
from tests.helpers.command import run
from unskew.diagnostics.log.robots import robots_of
from unskew.world.shop import ShopWorld, simulate_shop

TYPES = {"type": "event_type", "target": "purchase", "context": "view,cart"}


@pytest.fixture(scope="module")
def shop() -> ShopWorld:
    return simulate_shop(users=300, items=150, days=40, bots=2, seed=1)


def test_exactly_the_bots_and_test_accounts_are_named(shop: ShopWorld) -> None:
    log = unskew.read(shop.events, **TYPES)
    found = robots_of(log)
    assert {robot.user for robot in found.users} == {*shop.bots, *shop.test_accounts}
    of_them = sum(robot.events for robot in found.users)
    assert found.events == pytest.approx(of_them / len(shop.events), rel=1e-9)
    assert 0 < found.positives < 1
    without = [user not in {*shop.bots, *shop.test_accounts} for user in shop.events["user_id"].to_pylist()]
    assert not robots_of(unskew.read(shop.events.filter(without), **TYPES)).users


def test_a_suggested_file_leaves_them_out(capsys, shop: ShopWorld, tmp_path: Path) -> None:
    log = unskew.prepare(shop.events, tmp_path / "log", **TYPES)
    code, out, _ = run(capsys, "inspect", tmp_path / "log", "--suggest-drop", tmp_path / "drop.txt")
    assert (code, "probable bots" in out) == (0, True)
    listed = (tmp_path / "drop.txt").read_text().split()
    assert set(listed) == {*shop.bots, *shop.test_accounts}
    rest = unskew.prepare(shop.events, tmp_path / "rest", **TYPES, drop_users=str(tmp_path / "drop.txt"))
    assert set(rest.users.ids.to_pylist()) == set(log.users.ids.to_pylist()) - set(listed)
    users = shop.events["user_id"].to_pylist()
    assert rest.metadata.removed.dropped_users == sum(user in listed for user in users)
    with pytest.raises(unskew.BadInput) as error:
        unskew.read(shop.events, **TYPES, drop_users=str(tmp_path / "missing.txt"))
    assert error.value.field == "drop_users"


def test_a_log_whose_times_are_an_order_names_nobody() -> None:
    rows = {"user": ["a"] * 90 + list("bcde") * 3, "item": ["x", "y"] * 51, "time": list(range(102))}
    assert robots_of(unskew.read(rows)).users == ()


def test_few_items_are_enough_at_any_pace() -> None:
    """90 events on one item with gaps of all lengths, beside 30 customers with one event a day."""
    rows = {"user": [], "item": [], "time": []}
    begin = 1_700_000_000
    events = [("tester", "x", begin + number * number * 97) for number in range(90)]
    events += [(f"u{user}", f"i{user + day}", begin + day * 86_400) for user in range(30) for day in range(8)]
    for event in events:
        for name, value in zip(rows, event, strict=True):
            rows[name].append(value)
    assert [robot.user for robot in robots_of(unskew.read(rows)).users] == ["tester"]
