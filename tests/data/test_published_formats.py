"""The formats of published data sets: RecBole, MIND, Amazon, KuaiRand and Open Bandit."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import unskew
from tests.conftest import columns
from tests.data.test_ids import impressions
from tests.data.test_read import events


def test_recbole_inter(write) -> None:
    text = "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    text += "1\ta\t5.0\t881250949\n2\tb\t2\t881250950\n"
    assert events(unskew.read(write("ml.inter", text), positive=4)) == {
        ("1", "a", 881250949, 1),
        ("2", "b", 881250950, 0),
    }


def test_mind(write) -> None:
    lines = ["1\tU1\t11/12/2019 2:14:46 PM\tN1 N2\tN3-0 N4-1", "2\tU2\t11/12/2019 12:00:01 AM\t\tN3-1"]
    folder = write("mind/behaviors.tsv", "\n".join(lines) + "\n").parent
    write("mind/news.tsv", "N1\tnews\n")
    afternoon = int(datetime(2019, 11, 12, 14, 14, 46, tzinfo=UTC).timestamp())
    midnight = int(datetime(2019, 11, 12, 0, 0, 1, tzinfo=UTC).timestamp())
    shown = {("U1", "N3", afternoon, 0), ("U1", "N4", afternoon, 1), ("U2", "N3", midnight, 1)}
    past = {
        ("U1", "N1", midnight - 2, 1),
        ("U1", "N2", midnight - 1, 1),
    }  # in order, before anything was shown
    assert events(unskew.read(folder)) == shown | past
    visited = {
        ("U1", "N3", afternoon): 0,
        ("U1", "N4", afternoon): 0,
        ("U2", "N3", midnight): 1,
    }  # of impressions 1 and 2
    assert impressions(unskew.read(folder)) == visited | {
        (user, item, time): None for user, item, time, _ in past
    }
    # A later history holds clicks of the log itself: only the one of the user's first impression lies before
    # it.
    later = "3\tU2\t11/13/2019 1:00:00 AM\tN3 N9\tN4-0"
    assert ("U2", "N9", midnight - 1, 1) not in events(
        unskew.read(write("mind/behaviors.tsv", "\n".join([*lines, later]) + "\n"))
    )
    write("two/behaviors_1.tsv", lines[0] + "\n")
    bad = write("two/behaviors_2.tsv", lines[1] + "\n" + lines[1].replace("N3-1", "N3") + "\n")
    with pytest.raises(unskew.BadInput, match=r"behaviors_2.tsv, line 2, column 'impressions'"):
        unskew.read(bad.parent, format="mind")
    with pytest.raises(unskew.BadInput, match=r"behaviors.tsv, line 2, column 'time'"):
        unskew.read(
            write("mind/behaviors.tsv", lines[0] + "\n" + lines[1].replace("11/12/2019", "13/12/2019") + "\n")
        )
    with pytest.raises(unskew.BadInput, match=r"behaviors.tsv, line 1, column 'impressions': expected an id"):
        unskew.read(write("mind/behaviors.tsv", lines[0].replace("N3-0", "N3") + "\n"))


def test_amazon_ratings_and_reviews(write) -> None:
    expected = {
        ("A2SUAM1J3GNN3B", "B0002E1G5C", 1000000000, 1),
        ("A1YJEY40YUW4SE", "7806397051", 1400000000, 0),
    }
    old = "A2SUAM1J3GNN3B,B0002E1G5C,5.0,1000000000\nA1YJEY40YUW4SE,7806397051,3.0,1400000000\n"
    # The 2018 edition turned the columns
    new = "B0002E1G5C,A2SUAM1J3GNN3B,5.0,1000000000\n7806397051,A1YJEY40YUW4SE,3.0,1400000000\n"
    reviews = "".join(
        json.dumps(
            {"reviewerID": u, "asin": i, "overall": 5.0 if y else 1.0, "unixReviewTime": t, "helpful": [0, 0]}
        )
        + "\n"
        for u, i, t, y in expected
    )
    assert events(unskew.read(write("ratings_Beauty.csv", old))) == expected
    assert events(unskew.read(write("Beauty.csv", new))) == expected
    assert events(unskew.read(write("reviews_Beauty.json", reviews), format="amazon")) == expected
    with pytest.raises(
        unskew.BadInput, match=r"line 2, column 'rating': expected a label from 1 to 5, found '9'"
    ):
        unskew.read(write("bad.csv", old.replace("3.0", "9")), format="amazon")


def test_kuairand(write) -> None:
    header = "user_id,video_id,date,hourmin,time_ms,is_click,is_like\n"
    write(
        "kuai/log_standard_4_08.csv",
        header + "1,10,20220408,900,1649376000000,1,0\n2,11,20220408,900,1649376000001,0,0\n",
    )
    write("kuai/log_random_4_22.csv", header + "1,12,20220422,900,1650585600000,0,0\n")
    write("kuai/user_features.csv", "user_id,age\n1,3\n")
    log = unskew.read(write("kuai/README.md", "").parent)
    table = columns(log)
    assert dict(zip(table["item"], table["exposed"], strict=True)) == {"10": 0, "11": 0, "12": 1}
    assert dict(zip(table["item"], table["label"], strict=True)) == {"10": 1, "11": 0, "12": 0}


def test_what_the_path_says_of_exposure(write, tmp_path: Path, monkeypatch) -> None:
    header = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1\n"
    rows = "0,2019-11-24 00:00:34,14,3,0,0.0125,f,g\n1,2019-11-24 00:00:53,15,1,1,0.25,f,h\n"
    write("random/bts/all/all.csv", header + rows)
    write("obd/random/all/all.csv", header + rows)
    assert columns(unskew.read(tmp_path / "random/bts/all/all.csv"))["exposed"] == [0, 0]
    monkeypatch.chdir(tmp_path / "obd")
    assert columns(unskew.read("random/all/all.csv"))["exposed"] == [1, 1]
    kuai = "user_id,video_id,time_ms,is_click\n1,10,1649376000000,1\n2,11,1649376000001,1\n"
    assert columns(unskew.read(write("log_random_study/log_standard_1.csv", kuai)))["exposed"] == [0, 0]


def test_open_bandit(write) -> None:
    header = ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1\n"
    rows = (
        "0,2019-11-24 00:00:34.762830+00:00,14,3,0,0.0125,f,g\n1,2019-11-24 "
        "00:00:53.965051+00:00,15,1,1,0.25,f,h\n"
    )
    write("obd/random/all/item_context.csv", ",item_id,item_feature_0\n0,0,1\n")
    path = write("obd/random/all/all.csv", header + rows)
    for source in (path, path.parent):
        log = unskew.read(source)
        table = columns(log)
        assert dict(zip(table["user"], table["propensity"], strict=True)) == {"f|g": 0.0125, "f|h": 0.25}
        assert dict(zip(table["user"], table["position"], strict=True)) == {"f|g": 3, "f|h": 1}
        assert table["exposed"] == [1, 1]
        microseconds = (datetime(2019, 11, 24, 0, 0, 34, 762830) - datetime(1970, 1, 1)) // timedelta(
            microseconds=1
        )
        assert microseconds in table["time"]
        assert log.metadata.time_unit == "microseconds"
