"""The simulated shop: its funnel, its repeats, its promotion and its bots."""

import json
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

import unskew
from tests.helpers.command import run
from unskew.world.shop import ShopWorld, simulate_shop

SIZE = {"users": 200, "items": 120, "days": 60, "bots": 2, "seed": 5}


@pytest.fixture(scope="module")
def shop() -> ShopWorld:
    return simulate_shop(**SIZE)


def test_the_same_settings_give_the_same_rows(shop: ShopWorld) -> None:
    """The same on every machine: a change of this number is a change of the simulation."""
    text = "\n".join(map(str, shop.events.to_pylist()))
    assert blake2b(text.encode(), digest_size=8).hexdigest() == "b450e2e2423ab98d"
    assert simulate_shop(**SIZE).events.equals(shop.events)
    assert not simulate_shop(**{**SIZE, "seed": 6}).events.equals(shop.events)


def test_carts_follow_views_and_purchases_follow_carts(shop: ShopWorld) -> None:
    frame = shop.events.to_pandas()
    frame = frame[~frame.user_id.isin([*shop.bots, *shop.test_accounts])]
    counts = frame.event_type.value_counts()
    assert counts["view"] > counts["cart"] > counts["purchase"] > 500
    keys = ["user_id", "item_id"]
    carts = frame[frame.event_type == "cart"].set_index(keys).timestamp.groupby(keys).min()
    bought = frame[frame.event_type == "purchase"].set_index(keys).timestamp.groupby(keys).min()
    assert (carts.reindex(bought.index) < bought).all()


def test_what_is_used_up_is_bought_again_after_its_interval(shop: ShopWorld) -> None:
    frame = shop.events.to_pandas()
    frame = frame[(frame.event_type == "purchase") & ~frame.user_id.isin(shop.test_accounts)]
    gaps = frame.sort_values("timestamp").groupby(["user_id", "item_id"]).timestamp.diff().dropna() / 86400
    assert len(gaps) > 100
    relative = gaps / frame.loc[gaps.index, "item_id"].map(shop.intervals)
    assert relative.between(0.7, 1.3).mean() > 0.4
    assert frame.loc[gaps.index, "item_id"].isin(shop.intervals).mean() > 0.7


def test_a_promotion_sells(shop: ShopWorld) -> None:
    frame = shop.events.to_pandas()
    frame = frame[~frame.user_id.isin([*shop.bots, *shop.test_accounts])]
    is_on = frame.timestamp.between(*shop.promotion)
    promoted = frame.item_id.isin(shop.promoted)
    assert promoted[is_on].mean() > 2 * promoted[~is_on].mean()
    prices = (
        frame[promoted].groupby([frame.item_id[promoted], is_on[promoted]]).price.mean().unstack().dropna()
    )
    assert (prices[True] < 0.85 * prices[False]).all()


def test_the_verb_writes_a_file_that_prepare_reads(capsys, tmp_path: Path) -> None:
    file = tmp_path / "shop.csv"
    arguments = ("--kind", "shop", "--users", 60, "--items", 40, "--steps", 20)
    assert run(capsys, "simulate", "--out", file, *arguments)[0] == 0
    truth = json.loads((tmp_path / "shop.truth.json").read_text())
    assert len(truth["bots"]) == 3
    types = {"type": "event_type", "target": "purchase", "context": "view,cart"}
    log = unskew.prepare(file, tmp_path / "log", **types, item_features="category")
    assert list(log.context) == ["cart", "view"]
    assert np.isin(truth["bots"], log.users.ids.to_pylist()).all()
    code, _, error = run(capsys, "simulate", "--out", tmp_path / "b.csv", *arguments, "--drift", 0.5)
    assert (code, "users, items, steps and seed" in error) == (2, True)
    assert run(capsys, "simulate", "--out", file, *arguments)[0] == 2
