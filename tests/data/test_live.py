"""A live log is the log that would be prepared from all events, whatever order they come in."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import unskew
from tests.conftest import quick, random_table
from tests.helpers.contract import every_model, tiny
from unskew.data.log.live import MANY, Live
from unskew.data.log.log import Log
from unskew.data.log.preparation import Metadata
from unskew.data.log.views import PAD
from unskew.data.log.vocabulary import Feature
from unskew.models.base import Recommender, build, model_named
from unskew.models.pulse.model import PulseZero
from unskew.models.pulse.tags import Tags
from unskew.recommendation.diversity import likeness
from unskew.recommendation.options import RecommendOptions
from unskew.recommendation.ranker import Ranker
from unskew.testing.models import cut_at

Event = tuple[int, int, int]
event = st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 9))


def table(events: list[Event]) -> pa.Table:
    users, items, times = zip(*events, strict=True)
    named = {"user": [f"u{user}" for user in users], "item": [f"i{item}" for item in items]}
    return pa.table(named | {"time": [10**9 + time for time in times]})


def append(live: Live, rows: pa.Table, at_once: bool = True) -> int:
    columns = [rows[name].to_pylist() for name in ("user", "item", "time")]
    if at_once:
        return live.append(*columns)
    return sum(live.append([user], [item], [time]) for user, item, time in zip(*columns, strict=True))


BASE = [(0, 0, 0), (1, 1, 3)]  # two users and two items, so that there is a log to begin with


def same_log(one: Log, other: Log) -> None:
    """All rows, ids and views of two logs are equal."""
    assert one.fingerprint() == other.fingerprint()
    assert one.now == other.now
    for mine, theirs in ((one.histories, other.histories), (one.audiences, other.audiences)):
        for part in ("ids", "times", "offsets"):
            np.testing.assert_array_equal(getattr(mine, part), getattr(theirs, part))


@pytest.mark.slow
@settings(deadline=None, max_examples=25)
@given(first=st.lists(event, max_size=8), later=st.lists(event, min_size=1, max_size=12))
def test_the_snapshot_is_the_log_prepared_again(
    first: list[Event],
    later: list[Event],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("live")
    live = Live(unskew.prepare(table(BASE + first), folder / "base"))
    added = append(live, table(later))
    whole = unskew.prepare(table(BASE + first + later), folder / "whole")
    same_log(unskew.read(live), whole)
    assert live.positives == len(whole) == len({*BASE, *first}) + added


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(later=st.lists(event, min_size=1, max_size=25), time=st.integers(-1, 11), newest=st.integers(0, 4))
def test_its_views_are_those_of_any_log_event_by_event(later: list[Event], time: int, newest: int) -> None:
    """Windows, padded rows, times and flat events of every entity, after every event; events at one time are
    in the order of their codes."""
    live, done = Live(unskew_log()), list(BASE)
    moment = 10**9 + time
    for one in later:
        live.append([f"u{one[0]}"], [f"i{one[1]}"], [10**9 + one[2]])
        done = done if one in done else [*done, one]
        for view, mine, other, whose in (
            (live.histories, live.users, live.items, 0),
            (live.audiences, live.items, live.users, 1),
        ):
            for entity, name in enumerate(mine.ids.to_pylist()):
                past = sorted(
                    (10**9 + each[2], int(other.codes([f"{'iu'[whose]}{each[1 - whose]}"])[0]))
                    for each in done
                    if f"{'ui'[whose]}{each[whose]}" == name and 10**9 + each[2] < moment
                )[-newest if newest else 0 :]
                start, end = view.before([entity], moment, newest or None)
                assert view.padded(start, end).tolist() == [[code for _, code in past]]
                assert view.padded_times(start, end).tolist() == [[when for when, _ in past]]
                _, place = view.flat(start, end)
                assert view.ids[place].tolist() == [code for _, code in past]
                firsts = [each[2] for each in done if f"{'ui'[whose]}{each[whose]}" == name]
                assert view.first_times[entity] == 10**9 + min(firsts)
    times = [10**9 + each[2] for each in done]
    assert live.now == max(times) + 1
    assert live.timeline.padded_times(*live.timeline.before([0], live.now)).tolist() == [sorted(times)]
    assert live.audiences.existing(moment) == len({each[1] for each in done if each[2] < time})


def unskew_log() -> Log:
    return replace(unskew.read(table(BASE)), metadata=Metadata())  # duplicates are removed, as `prepare` does


def test_many_events_at_once_are_the_same_as_one_by_one() -> None:
    rows = random_table(rows=MANY + 500, users=60, items=50, negatives=0.0)
    one, all_at_once = Live(unskew.read(rows.slice(0, 400))), Live(unskew.read(rows.slice(0, 400)))
    rest = rows.slice(400)
    assert append(one, rest, at_once=False) == append(all_at_once, rest)
    for mine, theirs in ((one.histories, all_at_once.histories), (one.audiences, all_at_once.audiences)):
        for part in ("ids", "times", "offsets"):
            one_by_one, at_once = (getattr(view.frozen(len(view)), part) for view in (mine, theirs))
            np.testing.assert_array_equal(one_by_one, at_once)
    same_log(unskew.read(one), unskew.read(all_at_once))
    same_log(one.frozen(), all_at_once.frozen())


def test_where_each_event_of_an_audience_is_in_the_histories() -> None:
    rows = random_table(rows=600, users=12, items=9, negatives=0.0)
    live = Live(unskew.read(rows.slice(0, 200)))
    append(live, rows.slice(200), at_once=False)
    item, event = live.audiences.everything()
    row = live.in_history(event, item)
    assert (live.histories.ids[row] == item).all()
    assert (live.histories.times[row] == live.audiences.times[event]).all()
    user, place = live.histories.everything()
    owner = np.full(len(live.histories.ids), PAD)
    owner[place] = user
    assert (owner[row] == live.audiences.ids[event]).all()


def test_what_is_no_new_event(tmp_path: Path) -> None:
    """The same user, item and time again; where only pairs count, the same pair."""
    live = Live(unskew_log())
    assert live.append(["u0", "u0"], ["i0", "i1"], [10**9, 10**9 + 1]) == live.added == 1
    pairs = Live(unskew.prepare(table(BASE), tmp_path / "pairs", duplicates="pair"))
    assert pairs.append(["u0", "u0"], ["i0", "i1"], [10**9 + 5, 10**9 + 1]) == 1
    everything = Live(unskew.prepare(table(BASE), tmp_path / "all", duplicates="keep"))
    assert everything.append(["u0"], ["i0"], [10**9]) == 1
    assert everything.append(["u0"] * MANY, ["i0"] * MANY, [10**9] * MANY) == MANY
    with pytest.raises(unskew.BadInput, match="as many users as items and times"):
        live.append(["u0"], ["i0"], [])
    with pytest.raises(unskew.BadInput, match="an id for every user"):
        live.append([None], ["i0"], [5])


def test_a_click_replaces_its_own_impression() -> None:
    shown = table([*BASE, (2, 1, 7)]).append_column("label", pa.array([1, 1, 0]))
    live = Live(replace(unskew.read(shown), metadata=Metadata()))
    live.append(["u2"], ["i1"], [10**9 + 7])
    assert unskew.read(live).label.tolist() == [1, 1, 1]


def test_numbers_as_ids_are_text_where_events_are() -> None:
    numbers = pa.table({"user": [1, 2], "item": [10, 9], "time": [10**9, 10**9]})
    with pytest.raises(unskew.BadInput, match="int64"):
        Live(unskew.read(numbers)).append(["ann"], ["9"], [10**9 + 1])
    live = Live(unskew.read(numbers), text=True)
    assert live.append(["ann", "1"], ["9", "9"], [10**9 + 1, 10**9 + 1]) == 2
    assert live.users.ids.to_pylist() == ["1", "2", "ann"]
    assert live.users.codes(["ann", "2", "bob"]).tolist() == [2, 1, PAD]
    assert live.items.of(np.array([0, PAD])).to_pylist()[1] is None


def test_a_forgotten_user_is_gone() -> None:
    rows = random_table(rows=300, users=10, items=9, negatives=0.3)
    live = Live(unskew.read(rows.slice(0, 200)))
    append(live, rows.slice(200).filter(pc.equal(rows["label"].slice(200), 1)))
    before = unskew.read(live).table().to_pylist()
    assert live.forget("u1")
    assert not live.forget("u1")
    users = unskew.read(live).table()["user"].to_pylist()
    assert not {"u1", None} & set(users)
    assert live.users.codes(["u1"]).tolist() == [PAD]
    assert "u1" not in live.users.ids.to_pylist()
    mine = sum(row["user"] == "u1" for row in before)
    assert mine
    assert len(users) == len(before) - mine
    assert live.append(["u1"], ["i1"], [live.now]) == 1  # a new user


@every_model
def test_a_live_log_ranks_as_one_made_from_nothing(kind: type[Recommender], split: unskew.Split) -> None:
    """With new users and new items, also late ones; at now and at another moment."""
    torch.manual_seed(0)
    network = build(kind, split, tiny(kind)).eval()
    live = Live(split.log)
    ranker, wanted = Ranker(network, live), RecommendOptions(k=99, include_seen=True)
    ranker.for_users(["u1"], wanted)  # makes the catalogue of the older log
    for users, items, late in (
        (["u1", "new user", "new user"], ["new item", "i2", "i3"], 5),
        (["u2", "u1"], ["i4", "other new item"], -400),
    ):
        live.append(users, items, [live.now + late] * len(users))
        again = Live(split.log)
        for each in range(len(live._added)):
            who, what, when = live._added[each]
            again.append(live.users.of(who).to_pylist(), live.items.of(what).to_pylist(), when.tolist())
        asked = ["u1", "u2", "new user", "nobody"]
        histories = [["i1", ("i2", live.now - 7)], ["new item"], []]
        for at in (None, live.now - 100, live.now + 50):
            now = RecommendOptions(k=99, include_seen=True, at=at)
            for fresh, sources in ((Ranker(network, again), 2), (Ranker(network, live.frozen()), 1)):
                for found, expected in (
                    (ranker.for_users(asked, now), fresh.for_users(asked, now)),
                    (ranker.for_histories(histories, now), fresh.for_histories(histories, now)),
                ):
                    assert found.table["source"].equals(expected.table["source"])
                    # What pulse-zero says depends on the log that a ranker began with.
                    mine, theirs = (
                        {
                            (row.get("user_id", row.get("history")), row["item_id"]): row["score"]
                            for row in one.table.to_pylist()
                            if sources == 2 or row["source"] == "model"
                        }
                        for one in (found, expected)
                    )
                    assert mine == pytest.approx(theirs, abs=2e-5)
        assert "new item" in ranker.for_users(asked, wanted).table["item_id"].to_pylist()


@pytest.mark.parametrize("name", ["pulse", "deps", "sasrec", "popularity", "itemknn"])
def test_at_another_moment_only_what_was_before_counts(name: str, small_split: unskew.Split) -> None:
    """The same lists as from a log that ends there. An item whose first event is at that very moment is not
    there yet."""
    torch.manual_seed(0)
    split = small_split
    network = build(model_named(name), split, tiny(model_named(name))).eval()
    ranker, wanted = Ranker(network, Live(split.log)), RecommendOptions(k=99)
    ranker.for_users(["u1"], wanted)
    for at in (split.valid_end, int(split.log.audiences.first_times[-3])):
        alone = Ranker(network, cut_at(split, at).log)
        moment = replace(wanted, at=at)
        found, expected = (
            table.filter(pc.equal(table["source"], "model"))
            for table in (one.for_users(alone.log.users.ids[:3], moment).table for one in (ranker, alone))
        )
        assert len(found)
        mine, theirs = (
            {(row["user_id"], row["item_id"]): row["score"] for row in one.to_pylist()}
            for one in (found, expected)
        )
        assert mine == pytest.approx(theirs, abs=1e-5)


def test_tastes_follow_events() -> None:
    log = unskew_log()
    kinds = Feature(pa.array(["a|b", "b"]))
    live = Live(replace(log, items=replace(log.items, features={"kind": kinds})))
    tags, now = Tags(live), 10**9 + 20
    assert tags.fractions(np.array([0, 1]), np.array([now, now])).tolist() == [1.05 / 2.05, 1.0]
    live.append(["u0", "u0"], ["i1", "of no kind"], [10**9 + 4, 10**9 + 5])
    fresh = Tags(live.frozen())
    assert fresh.fractions(np.array([0, 1]), np.array([now, now])).tolist() == [1.05 / 3.05, 1.0]
    for made in (tags.fractions, fresh.fractions):
        assert made(np.array([0, 1]), np.array([now, now])).tolist() == [1.05 / 3.05, 1.0]
    own, time = np.array([[0, 1, 2]]), np.array([now])
    mine, theirs = (made.tastes(time, own) for made in (tags, fresh))
    for item in range(3):
        pair = np.array([0]), np.array([item])
        np.testing.assert_allclose(mine.of_pairs(*pair), theirs.of_pairs(*pair), rtol=1e-6)
    weight = np.array([0.5, 2.0], np.float32)
    np.testing.assert_allclose(mine.of_request(0, weight), theirs.of_request(0, weight), rtol=1e-6)
    live.append(["u5"] * MANY, ["i1"] * MANY, list(range(10**9, 10**9 + MANY)))
    assert tags.fractions(np.array([0]), np.array([2 * 10**9]))[0] == pytest.approx(1.05 / (MANY + 3.05))


@torch.no_grad()
def test_diverse_lists_are_less_equally(split: unskew.Split) -> None:
    """Nothing changes at 0; the best item stays first; the more diverse, the less similar the list."""
    for name in ("sasrec", "pulse", "deps"):
        torch.manual_seed(1)
        ranker = Ranker(build(model_named(name), split, tiny(model_named(name))).eval(), Live(split.log))
        lists, similar = {}, {}
        for fraction in (0.0, 0.5, 1.0):
            table = ranker.for_users(["u1"], RecommendOptions(k=5, diverse=fraction)).table
            lists[fraction] = table["item_id"].to_pylist()
            assert len(set(lists[fraction])) == 5
            codes = split.log.items.codes(lists[fraction]).astype(np.int64)
            pairs = likeness(ranker._catalogs[name, False][2], ranker.log, ranker.log.now, codes)
            similar[fraction] = sum(float(pairs[place, :place].max()) for place in range(1, 5))
        assert lists[0.0][0] == lists[0.5][0] == lists[1.0][0]
        assert similar[1.0] < similar[0.0]
    with pytest.raises(unskew.BadInput, match="diverse"):
        ranker.for_users(["u1"], RecommendOptions(diverse=1.5))


@pytest.mark.slow
def test_scores_of_pulse_do_not_depend_on_who_asked_before() -> None:
    """With a clock of seconds, what belongs to items is read once a minute and after each event; the scores
    are those of a catalogue from nothing, and near those of a frozen log."""
    rows = random_table(rows=900, users=40, items=30, negatives=0.0)
    times = 10**9 + 40 * rows["time"].to_numpy()
    rows = rows.set_column(rows.schema.get_field_index("time"), "time", pa.array(times))
    log = unskew.read(rows.slice(0, 500))
    network = build(PulseZero, unskew.split(log, fractions=(100, 0, 0)), PulseZero.Config()).eval()
    live, wanted = (
        Live(replace(log, metadata=Metadata())),
        RecommendOptions(k=99, include_seen=True, debias=0.5),
    )
    asked = Ranker(network, live)
    rest = rows.slice(500).sort_by("time").to_pylist()
    for place, row in enumerate(rest):
        late = live.now + (7 if place % 3 else 0) - (500 if place % 50 == 49 else 0)
        live.append([row["user"]], [row["item"] if place % 20 else f"new {place}"], [late])
        if place % 4 == 0:
            found = asked.for_users(["u1", "u2"], wanted).table
            alone = Ranker(network, Live(live.frozen())).for_users(["u1", "u2"], wanted).table
            exact = Ranker(network, live.frozen()).for_users(["u1", "u2"], wanted).table
            mine, same, near = (
                {(line["user_id"], line["item_id"]): line["score"] for line in table.to_pylist()}
                for table in (found, alone, exact)
            )
            assert mine == pytest.approx(same, abs=1e-5)
            assert mine == pytest.approx(near, abs=0.1)


def test_the_log_that_a_live_one_began_with_forgets_as_well() -> None:
    """In its columns and in its views, which belong together."""
    live = Live(quick([(0, 0, 1), (0, 1, 2), (1, 0, 3), (1, 1, 4), (1, 0, 5)]))
    live.forget(0)
    origin = live.origin
    assert len(origin.histories.ids) == len(origin.audiences.ids) == len(origin) == 3
    assert origin.histories.offsets.tolist() == [0, 0, 3]
    assert origin.repeated.tolist() == [False, False, True]
