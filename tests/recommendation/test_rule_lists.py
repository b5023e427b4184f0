"""Lists under rules: limits, quotas and pins hold, the list is the best that they allow, and `diverse`
diversifies what the features say."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.command import run
from tests.helpers.errors import refused
from tests.helpers.shops import ITEMS, category_of, shop_log, shop_table
from unskew.api.zero_shot import ZeroShot
from unskew.data.log.log import Log
from unskew.recommendation.diversity import Likeness, TagVectors, choose
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.rule_masks import ItemRules, bind_rules
from unskew.recommendation.rules import parse_rules


@pytest.fixture(scope="module")
def log() -> Log:
    return shop_log()


def bound(log: Log, *rules: str) -> ItemRules:
    return bind_rules(parse_rules(rules), log.items, log.items.features)


def listed(log: Log, *rules: str, k: int = 8, **options: object) -> list[int]:
    """The numbers of the items of a list."""
    lists = unskew.recommend(log, users=["u1"], k=k, include_seen=True, rules=rules, **options)  # type: ignore[arg-type]
    return [int(name[1:]) for name in lists.table["item_id"].to_pylist()]


def tags_of(items: list[int]) -> Counter[str]:
    return Counter(tag for item in items for tag in (category_of(item) or "").split("|") if tag)


def test_a_limit_skips_what_is_listed_often_enough(log: Log) -> None:
    everything = listed(log, k=ITEMS)
    found = listed(log, "at most 2 per category")
    expected, counts = list[int](), Counter[str]()
    for item in everything:
        if all(counts[tag] < 2 for tag in tags_of([item])) and len(expected) < 8:
            expected.append(item)
            counts += tags_of([item])
    assert found == expected
    assert max(tags_of(everything[:8]).values()) > 2


def test_a_list_is_shorter_where_limits_leave_nothing(log: Log) -> None:
    found = listed(log, "at most 1 per category", "category is not missing", k=ITEMS)
    assert sorted(map(category_of, found)) == ["books|gifts", "hats", "shoes"]


def test_before_the_first_item_a_list_is_empty_and_the_rules_are_not_to_blame(log: Log) -> None:
    assert listed(log, at=0) == listed(log, "at most 9 per category", at=0) == []
    with refused("candidates"):
        listed(log, candidates=["i1"], at=0)
    with pytest.raises(unskew.BadInput, match="the rules and what is excluded leave no item") as caught:
        listed(log, "item_id = i1", exclude=["i1"])
    assert caught.value.field == "rules"


@pytest.mark.parametrize("diverse", [0.0, 0.3, 1.0])
def test_quotas_are_filled_with_the_best_that_fill_them(log: Log, diverse: float) -> None:
    everything = listed(log, k=ITEMS)
    found = listed(log, "at least 50% category = hats", "at least 2 category is missing", diverse=diverse)
    assert len(found) == 8
    hats = [item for item in everything if category_of(item) == "hats"]
    assert len(hats) == 3  # fewer than the rule wants
    assert sum(category_of(item) == "hats" for item in found) == 3
    assert sum(category_of(item) is None for item in found) >= 2
    if not diverse:
        assert found[:2] == everything[:2]  # nothing is due yet
        assert [item for item in found if category_of(item) == "hats"] == hats


def test_pins_stand_where_they_are_pinned(log: Log) -> None:
    everything = listed(log, k=ITEMS)
    found = listed(log, "pin i23 at 2", "pin i0 at 5", "pin i22 at 99", k=6)
    rest = [item for item in everything if item not in (23, 0)]
    assert found == [rest[0], 23, *rest[1:3], 0, rest[3]]
    for rule in ("exclude item_id = i23", "item_id != i23"):
        assert 23 not in listed(log, "pin i23 at 2", rule, k=6)
    assert 23 not in listed(log, "pin i23 at 2", k=6, exclude=["i23"])
    assert 23 not in listed(log, "pin i23 at 2", k=6, candidates=["i1", "i2"])


def test_a_pinned_item_may_have_been_seen(log: Log) -> None:
    seen = log.items.of(log.histories.ids[:1])[0].as_py()
    user = log.users.of(np.array([0]))[0].as_py()
    options = {"users": [user], "k": 5, "include_seen": False}
    plain = unskew.recommend(log, **options).table["item_id"].to_pylist()  # type: ignore[arg-type]
    pinned = unskew.recommend(log, rules=(f"pin {seen} at 3",), **options)  # type: ignore[arg-type]
    assert seen not in plain
    assert pinned.table["item_id"].to_pylist() == [*plain[:2], seen, *plain[2:4]]
    assert np.isfinite(pinned.table["score"].to_numpy()).all()


def test_random_scores_never_break_a_rule(log: Log) -> None:
    """And no item that is listed could be exchanged for a better one without breaking a limit."""
    rules = bound(log, "at most 3 per category", "at least 25% category is missing", "pin i23 at 4")
    random = np.random.default_rng(5)
    tags = TagVectors(log.items.features, ITEMS)
    like = Likeness(lambda item: np.eye(len(item), dtype=np.float32), tags)
    numbers = [int(name[1:]) for name in log.items.ids.to_pylist()]
    for diverse in (0.0, 0.5):
        for _ in range(30):
            scores = random.normal(size=ITEMS).astype(np.float32)
            codes = choose(scores, 8, rules, diverse, like).tolist()
            items = [numbers[code] for code in codes]
            assert len(set(items)) == len(items) == 8
            assert items[3] == 23
            assert max(tags_of(items).values()) <= 3
            assert sum(category_of(item) is None for item in items) >= 2


# Diversity


def test_lists_are_diverse_by_category_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best items are all shoes. Without the tags of the items, a pool of the best has nothing else."""
    monkeypatch.setattr("unskew.recommendation.diversity.LEAST", 8)
    monkeypatch.setattr("unskew.recommendation.diversity.POOL", 1)
    log = unskew.read(shop_table(), item_features="category")
    numbers = [int(name[1:]) for name in log.items.ids.to_pylist()]
    scores = np.array([-number if number < 12 else -100.0 - number for number in numbers], np.float32)
    like = Likeness(
        lambda item: np.zeros((len(item), len(item)), np.float32), TagVectors(log.items.features, ITEMS)
    )
    nothing = ItemRules(np.ones(ITEMS, bool))
    plain, some, most = (
        [category_of(numbers[code]) for code in choose(scores, 8, nothing, diverse, like)]
        for diverse in (0.0, 0.5, 1.0)
    )
    assert plain == ["shoes"] * 8
    assert some[0] == "shoes"
    assert len({"hats", "books|gifts"} & set(some)) == 2
    assert Counter(most)["shoes"] <= Counter(some)["shoes"] < 8
    without = Likeness(like._behaviour, TagVectors({}, ITEMS))
    assert choose(scores, 8, nothing, 0.5, without).tolist() == choose(scores, 8, nothing).tolist()


def test_rare_tags_make_items_more_similar() -> None:
    table = {"user": list("abcdef"), "item": list("uvwxyz"), "time": list(range(6))}
    table |= {"stock": ["yes"] * 6, "kind": ["tea", "tea", "cup", "cup", "cup", None]}
    features = unskew.read(table, item_features="stock,kind").items.features
    like = TagVectors(features, 6).likeness(np.arange(6))
    assert np.allclose(np.diag(like), 1)
    assert like[0, 1] == pytest.approx(1)
    weights = np.log1p(6 / np.array([6, 2, 3]))  # yes, tea, cup
    lengths = [np.hypot(weights[0], weights[kind]) for kind in (1, 2)]
    assert like[0, 2] == pytest.approx(weights[0] ** 2 / (lengths[0] * lengths[1]))
    assert like[0, 5] == pytest.approx(weights[0] / lengths[0])


# Requests that leave nothing


def test_no_candidate_is_an_error(log: Log) -> None:
    with refused("candidates"):
        RecommendOptions(candidates=[])
    with pytest.raises(unskew.BadInput, match="no item of the log among 'x', 'y'") as caught:
        listed(log, candidates=["x", "y"])
    assert caught.value.field == "candidates"
    with refused("candidates"):
        listed(log, candidates=["i1"], exclude=["i1"])
    with refused("candidates"):
        listed(log, "price < 100", candidates=["i20"])
    with pytest.raises(unskew.BadInput, match="no item has category 'shoez'; did you mean 'shoes'") as caught:
        listed(log, "category = shoez")
    assert caught.value.field == "rules"
    with refused("rules"):
        listed(log, "price < 10", "price > 20")


def test_rules_about_lists_need_exact_ones() -> None:
    RecommendOptions(rules=("price < 5",), approximate=True)
    with refused("rules"):
        RecommendOptions(rules=("at most 2 per brand",), approximate=True)


def test_rules_follow_a_log_that_grows(log: Log) -> None:
    """What rules mean is kept, and found out again when there are more items."""
    live = unskew.Live(log)
    model = ZeroShot().fit(unskew.split(log, fractions=(100, 0, 0)), show_progress=False)
    ranker = model.make_ranker(live)
    options = RecommendOptions(k=99, rules=("exclude category = shoes",), include_seen=True)
    assert "new" not in ranker.for_users(["u1"], options).table["item_id"].to_pylist()
    assert ranker.item_rules(options) is ranker.item_rules(options)
    live.append(["u1"], ["new"], [log.now + 5])
    assert "new" in ranker.for_users(["u2"], options).table["item_id"].to_pylist()


# Files and the command line


def test_rules_of_a_file_of_requests(log: Log, tmp_path: Path) -> None:
    model = ZeroShot().fit(unskew.split(log, fractions=(100, 0, 0)), show_progress=False)
    rows = [("u1", "price < 100"), ("u1", '["price < 100", "in_stock = true"]'), ("u2", "")]
    quoted = [f'{user},"{rules.replace(chr(34), chr(34) * 2)}"' for user, rules in rows]
    (tmp_path / "in.csv").write_text("\n".join(["user_id,rules", *quoted]))
    out = tmp_path / "out.parquet"
    common = ("exclude category = hats",)
    model.save_recommendations(
        out, tmp_path / "in.csv", k=4, rules=common, include_seen=True, show_progress=False
    )
    found = pq.read_table(out)["item_id"].to_pylist()
    own = [("price < 100",), ("price < 100", "in_stock = true"), ()]
    expected = [
        model.recommend([user], k=4, rules=(*common, *rules), include_seen=True).table["item_id"].to_pylist()
        for (user, _), rules in zip(rows, own, strict=True)
    ]
    assert found == [item for items in expected for item in items]
    assert expected[0] != expected[1]
    (tmp_path / "in.csv").write_text('user_id,rules\nu1,"price < 100"\nu1,"price < <"\n')
    with pytest.raises(unskew.BadInput, match=r"in.csv, row 2: rule 1, column 9: expected a value"):
        model.save_recommendations(
            tmp_path / "more.parquet", tmp_path / "in.csv", rules=common, show_progress=False
        )


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop") / "data"
    unskew.prepare(shop_table(), folder, item_features="category,price,in_stock")
    return folder


def test_rules_of_the_command_line(capsys, shop: Path, tmp_path: Path) -> None:
    def recommended(*flags: object) -> list[int]:
        code, out, err = run(
            capsys, "recommend", shop, "--user", "u1", "--k", 6, "--include-seen", True, *flags
        )
        assert code == 0, err
        return [int(line.split()[1][1:]) for line in out.splitlines() if line.split()[:1] != ["rank"]]

    log = unskew.Log.open(shop)
    rules = ("price < 120", "at most 3 per category")
    flags = [flag for rule in rules for flag in ("--rule", rule)]
    assert recommended(*flags) == listed(log, *rules, k=6)
    (tmp_path / "sets.toml").write_text('default = ["price < 120"]\nsale = ["price > 120"]\n')
    file = ("--rules", tmp_path / "sets.toml")
    assert recommended(*file, "--rule", rules[1]) == listed(log, *rules, k=6)
    assert recommended(*file, "--rule-set", "sale") == listed(log, "price > 120", k=6)
    (tmp_path / "ids.txt").write_text("i3\ni4\n\n")
    (tmp_path / "ids.csv").write_text("item_id,other\ni3,1\ni4,2\n")
    for name in ("ids.txt", "ids.csv"):
        assert sorted(recommended("--candidates", tmp_path / name)) == [3, 4]
    assert sorted(recommended("--candidates", tmp_path / "ids.txt", "--candidate", "i9")) == [3, 4, 9]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--rule", "categry = x"], "rule 1, column 1: no feature 'categry'"),
        (["--rule", "category = none"], "they admit no item"),
        (["--candidate", "nothing"], "no item of the log among 'nothing'"),
        (["--candidates", "empty.txt"], "expected at least one item, found none"),
        (["--candidates", "missing.txt"], "cannot be read"),
        (["--candidates", "missing.csv"], "there is no such file"),
        (["--candidates", "other.csv"], "no column 'item_id'"),
        (["--rule-set", "sale"], "it goes with --rules FILE"),
        (["--rules", "missing.toml"], "cannot be read"),
    ],
)
def test_mistakes_end_with_2(
    capsys, shop: Path, tmp_path: Path, monkeypatch, flags: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "other.csv").write_text("name\nx\n")
    code, out, err = run(capsys, "recommend", shop, "--user", "u1", *flags)
    assert (code, out) == (2, "")
    assert message in " ".join(err.split())
