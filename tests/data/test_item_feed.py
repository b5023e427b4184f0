"""Item feeds: what was known of an item at each moment, against plain Python; in memory, on disk, live."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.errors import refused
from unskew.data.log.item_feed import ItemFeed, feed_of, with_items
from unskew.data.log.log import Log
from unskew.data.log.split import cut_log
from unskew.data.log.vocabulary import Vocabulary
from unskew.evaluation.score_audit import audit_scores
from unskew.models.base import build, model_named
from unskew.models.pulse.tags import Tags
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker

BEGIN = 1_700_000_000
ITEMS = 15
KINDS = ["a", "b", "a|b", "c"]


def rows(number: int = 400, seed: int = 0) -> dict[str, list[Any]]:
    random = np.random.default_rng(seed)
    item = np.minimum((ITEMS * random.random(number) ** 1.5).astype(int), ITEMS - 1)
    return {
        "user": [f"u{code}" for code in random.integers(0, 25, number)],
        "item": [f"i{code}" for code in item],
        "time": (BEGIN + np.sort(random.integers(0, 40 * 86_400, number))).tolist(),
    }


def feed_rows(seed: int = 1) -> list[dict[str, Any]]:
    """Of most items several rows, some of them before and some after the first event; two items have none."""
    random = np.random.default_rng(seed)
    made = []
    for number in range(ITEMS + 2):
        for _ in range(random.integers(0 if number < ITEMS else 1, 4)):
            kind = KINDS[random.integers(len(KINDS))] if random.random() < 0.8 else None
            price = float(random.integers(1, 9)) if random.random() < 0.8 else None
            when = BEGIN + int(random.choice([-5, -2, 0, 3, 7, 14, 20, 27, 33, 45])) * 86_400
            made.append({"item_id": f"i{number}", "since": when, "kind": kind, "price": price})
    return made


def known(name: str, feature: str, time: int) -> Any:
    """The newest value that is there before a time; plain Python."""
    valid = [
        (row["since"], place, row[feature])
        for place, row in enumerate(feed_rows())
        if row["item_id"] == name and row["since"] < time and row[feature] is not None
    ]
    return max(valid)[2] if valid else None


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("feed")
    table = pa.Table.from_pylist(feed_rows())
    pq.write_table(pa.table(rows()), folder / "log.parquet")
    pq.write_table(table, folder / "items.parquet")
    lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in feed_rows()]
    (folder / "items.csv").write_text("\n".join([",".join(table.column_names), *lines]))
    return {path.name: path for path in folder.iterdir()}


@pytest.fixture(scope="module")
def log(files: dict[str, Path]) -> Log:
    return unskew.read(str(files["log.parquet"]), items=str(files["items.parquet"]), items_time="since")


MOMENTS = [BEGIN + day * 86_400 + more for day in (-6, -2, 0, 7, 20, 33, 50) for more in (0, 1)]


def check(log: Log) -> None:
    """What a log knows at some moments, and that nothing else of it has changed."""
    names = log.items.ids.to_pylist()
    assert set(names) == {f"i{number}" for number in range(ITEMS + 2)}
    listed = {
        name: min([row["since"] for row in feed_rows() if row["item_id"] == name], default=None)
        for name in names
    }
    events = list(zip(*rows().values(), strict=True))
    first = {name: min([time for _, item, time in events if item == name], default=None) for name in names}
    since = [min(time for time in (listed[name], first[name]) if time is not None) for name in names]
    assert log.audiences.since.tolist() == since == sorted(since)
    table = log.table()
    assert sorted(
        zip(*(table[name].to_pylist() for name in ("user", "item", "time")), strict=True)
    ) == sorted(events)
    for moment in MOMENTS:
        assert log.audiences.existing(moment) == sum(time < moment for time in since)
        features = log.items.features_at(moment)
        for name in ("kind", "price"):
            assert features[name].values.to_pylist() == [known(item, name, moment) for item in names]
    for code, name in enumerate(names):
        start, end = log.audiences.before([code], MOMENTS[-1])
        users = [user for user, item, _ in sorted(events, key=lambda row: row[2]) if item == name]
        assert sorted(log.users.of(log.audiences.padded(start, end)[0]).to_pylist()) == sorted(users)


def test_a_log_knows_what_was_known(log: Log) -> None:
    check(log)
    newest = log.items.features_at(None)["price"].values.to_pylist()
    assert newest == [known(item, "price", 10**12) for item in log.items.ids.to_pylist()]


@pytest.mark.parametrize("name", ["items.parquet", "items.csv"])
def test_on_disk(files: dict[str, Path], log: Log, tmp_path: Path, name: str) -> None:
    prepared = unskew.prepare(
        str(files["log.parquet"]), tmp_path / "data", items=str(files[name]), items_time="since"
    )
    check(prepared)
    assert prepared.fingerprint() == log.fingerprint()
    assert prepared.metadata.items == len(prepared.items) == ITEMS + 2


def test_the_fingerprint_knows_the_feed(files: dict[str, Path], log: Log) -> None:
    table = pa.Table.from_pylist(feed_rows())
    row = table["price"].to_pylist()
    later = [price if price is None else price + (place > 12) for place, price in enumerate(row)]
    plain = unskew.read(rows())
    feed = ItemFeed(
        table["item_id"].combine_chunks(),
        np.array(table["since"]),
        None,
        {"kind": table["kind"].combine_chunks(), "price": pa.array(later)},
    )
    assert with_items(plain, feed).fingerprint() != log.fingerprint()


def test_a_feed_can_be_taken_out_and_put_in_again(log: Log) -> None:
    again = unskew.read(log.table())
    assert not again.items.features
    for feed in feed_of(log.items, log.audiences.listed):
        again = with_items(again, feed)
    check(again)
    assert again.fingerprint() == log.fingerprint()
    table = Vocabulary.of_table(log.items.table())
    assert table.table().equals(log.items.table())


def test_a_log_that_is_cut_knows_no_more(log: Log) -> None:
    for moment in MOMENTS[4:]:
        cut = cut_log(log, moment)
        for name, feature in cut.items.features_at(None).items():
            assert feature.values.to_pylist() == log.items.features_at(moment)[name].values.to_pylist()


def test_a_live_log_is_told_of_items(log: Log) -> None:
    """Rows of events and of items in any order come to the same."""
    live = unskew.Live(unskew.read({name: column[:200] for name, column in rows().items()}))
    table = pa.Table.from_pylist(feed_rows())

    def describe(part: pa.Table) -> None:
        columns = {name: part[name].combine_chunks() for name in ("kind", "price")}
        live.describe(ItemFeed(part["item_id"].combine_chunks(), part["since"].to_numpy(), None, columns))

    describe(table.slice(0, 9))
    live.append(*(column[200:] for column in rows().values()))
    describe(table.slice(9))
    check(unskew.read(live))
    frozen = live.frozen()
    assert {name: frozen.audiences.since[code] for code, name in enumerate(frozen.items.ids.to_pylist())} == {
        name: log.audiences.since[code] for code, name in enumerate(log.items.ids.to_pylist())
    }


def test_a_feed_without_times_is_known_all_the_time(files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "items.csv").write_text("item_id,kind,title\ni1,a,One\ni2,b,\nunknown,c,No\n")
    log = unskew.read(str(files["log.parquet"]), items=str(tmp_path / "items.csv"))
    names = log.items.ids.to_pylist()
    assert "unknown" not in names
    assert log.items.features["kind"].changes is None
    kinds = log.items.features["kind"].values.to_pylist()
    assert {name: kind for name, kind in zip(names, kinds, strict=True) if kind} == {"i1": "a", "i2": "b"}
    assert log.items.title_of(names.index("i1")) == "One"
    assert log.audiences.listed is None


@pytest.mark.parametrize(
    ("text", "time", "field"),
    [
        ("item_id,kind\ni1,a\n", "since", "items_time"),
        ("name,kind\ni1,a\n", None, "items"),
        ("item_id,since\ni1,soon\n", "since", "items_time"),
        ("item_id,since\ni1,\n", "since", "items_time"),
        ("item_id,kind\n,a\n", None, "items"),
    ],
)
def test_wrong_files_of_items(
    files: dict[str, Path], tmp_path: Path, text: str, time: str | None, field: str
) -> None:
    (tmp_path / "items.csv").write_text(text)
    with refused(field):
        unskew.prepare(
            str(files["log.parquet"]), tmp_path / "data", items=str(tmp_path / "items.csv"), items_time=time
        )
    assert not (tmp_path / "data").exists()
    with refused("items"):
        unskew.read(str(files["log.parquet"]), items=str(tmp_path / "missing.csv"))
    with refused("items_time"):
        unskew.prepare(str(files["log.parquet"]), tmp_path / "data", items_time="since")


@pytest.mark.parametrize(
    ("values", "field"),
    [(pa.array([b"\xff"]), "items"), (pa.array([["a"]]), "items"), (pa.array([1], pa.timestamp("ns")), None)],
)
def test_columns_of_unusual_types(
    files: dict[str, Path], tmp_path: Path, values: pa.Array, field: str | None
) -> None:
    """Times may have nanoseconds, which no log has; bytes and lists are no features."""
    pq.write_table(pa.table({"item_id": ["i1"], "kind": values}), tmp_path / "items.parquet")
    options = {"items": str(tmp_path / "items.parquet"), "items_time": None if field else "kind"}
    if field is None:
        assert unskew.read(str(files["log.parquet"]), **options).items.features is not None
        return
    with refused(field):
        unskew.read(str(files["log.parquet"]), **options)


# Pulse reads what was known


def test_tags_are_those_of_the_moment(log: Log) -> None:
    """Fractions and tastes, against plain Python."""
    tags, names = Tags(log), log.items.ids.to_pylist()
    spelled = {
        (moment, name): set((known(name, "kind", moment) or "").split("|")) - {""}
        for moment in MOMENTS
        for name in names
    }
    for moment in MOMENTS:
        codes = np.arange(len(names))
        whose, tag = tags.of(codes, np.full(len(codes), moment))
        mine = [sum(whose == code) for code in codes]
        assert mine == [len(spelled[moment, name]) for name in names]
        assert tag.max(initial=-1) < tags.size == 3


def test_scores_of_a_log_cut_at_t_are_those_of_the_whole_log(log: Log) -> None:
    """So nothing that became known at t or later is read for a request at t."""
    split = unskew.split(log)
    pulse = model_named("pulse")
    network = build(pulse, split, pulse.Config())
    network.fit_statistics(split)
    assert network.tag_skip is not None
    network.tag_skip.data.fill_(1.0)
    finding = audit_scores(network, split)
    assert finding.passed, finding.offence
    assert finding.checked > 100


@pytest.mark.parametrize("earlier", [20 * 86_400, 10**9])
def test_the_audit_sees_tags_of_the_future(log: Log, monkeypatch: pytest.MonkeyPatch, earlier: int) -> None:
    split = unskew.split(log)
    pulse = model_named("pulse")
    network = build(pulse, split, pulse.Config())
    network.fit_statistics(split)
    network.tag_skip.data.fill_(1.0)
    read = Tags._read

    def careless(self: Tags) -> None:
        read(self)
        self.start[:] = self.start - earlier

    monkeypatch.setattr(Tags, "_read", careless)
    assert not audit_scores(network, split).passed


def test_lists_of_a_live_log_follow_the_feed(log: Log) -> None:
    """A live log that is told of items later ranks as one that knew them from the beginning."""
    split = unskew.split(log, fractions=(100, 0, 0))
    pulse = model_named("pulse")
    network = build(pulse, split, pulse.Config())
    network.fit_statistics(split)
    network.tag_skip.data.fill_(1.0)
    options = RecommendOptions(k=99, include_seen=True)
    plain = unskew.Live(unskew.read(rows()))
    ranker = Ranker(network.eval(), plain, repeats=True)
    ranker.rank_users(["u1"], options)
    plain.describe(feed_of_rows())
    scores = {}
    for name, view in (("live", plain), ("whole", unskew.Live(log))):
        ranked = Ranker(network, view, repeats=True) if name == "whole" else ranker
        lists = ranked.rank_users(["u1"], replace_at(options, max(plain.now, log.now)))
        ids = view.items.of(lists.codes[0]).to_pylist()
        scores[name] = dict(zip(ids, lists.scores[0].tolist(), strict=True))
    assert scores["live"].keys() == scores["whole"].keys()
    assert {f"i{ITEMS}", f"i{ITEMS + 1}"} <= scores["live"].keys()
    for item, score in scores["whole"].items():
        assert scores["live"][item] == pytest.approx(score, abs=1e-4)


def feed_of_rows() -> ItemFeed:
    table = pa.Table.from_pylist(feed_rows())
    columns = {name: table[name].combine_chunks() for name in ("kind", "price")}
    return ItemFeed(table["item_id"].combine_chunks(), table["since"].to_numpy(), None, columns)


def replace_at(options: RecommendOptions, at: int) -> RecommendOptions:
    return RecommendOptions(k=options.k, include_seen=options.include_seen, at=at)


# Rules read what was known


@pytest.mark.parametrize("moment", MOMENTS[6:])
def test_rules_read_what_was_known(log: Log, moment: int) -> None:
    def cheap(name: str) -> bool:
        price: float | None = known(name, "price", moment)
        return price is not None and price < 9

    lists = unskew.recommend(log, users=["u1"], k=99, include_seen=True, at=moment, rules=("price < 9",))
    since = dict(zip(log.items.ids.to_pylist(), log.audiences.since.tolist(), strict=True))
    expected = {name for name in since if since[name] < moment and cheap(name)}
    assert set(lists.table["item_id"].to_pylist()) == expected


def test_types_of_values_must_fit(log: Log) -> None:
    def column(values: list[Any]) -> ItemFeed:
        return ItemFeed(pa.array(["i1"]), np.array([BEGIN]), None, {"price": pa.array(values)})

    assert with_items(log, column([5])).items.features["price"].values.type == pa.float64()
    for wrong in ([True], ["cheap"]):
        with refused("price"):
            with_items(log, column(wrong))
