"""Bad input gets one clear message that names what and where, and nothing is written."""

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.helpers.command import run

HEAD = "user_id,item_id,timestamp\n"
GOOD = "".join(f"u{n % 7},i{n % 5},{1_600_000_000 + n}\n" for n in range(70))

CASES = {
    "missing column": (
        "user_id,thing,timestamp\n" + GOOD,
        {},
        r"no column for the item; name one of its columns with --item or item=: 'user_id', 'thing'",
    ),
    "missing named column": (
        HEAD + GOOD,
        {"user": "uid"},
        r"no column 'uid'; name one .*--user .*: "
        r"'user_id'",
    ),
    "empty file": ("", {}, r"bad.csv: empty"),
    "blank file": ("\n \n", {}, r"bad.csv: empty"),
    "header only": (HEAD, {}, r"bad.csv: a header and no rows"),
    "wrong delimiter": (
        (HEAD + GOOD).replace(",", "::"),
        {},
        r"line 1: one single column, 'user_id::item_id::timestamp'",
    ),
    "wrong delimiter named": (HEAD + GOOD, {"delimiter": ";"}, r"line 1: one single column"),
    "ragged row": (HEAD + GOOD + "u1,i1\n", {}, r"bad.csv, line 72: expected 3 fields, found 2"),
    "unterminated quote": (HEAD + 'u1,"i1,5\n', {}, r"bad.csv, line 2: a quote that is not closed"),
    "non-numeric time": (
        HEAD + GOOD + "u1,i1,yesterday\n",
        {},
        r"line 72, column 'timestamp': expected a finite number of at least 0 .*, found 'yesterday'",
    ),
    "non-numeric first time": (
        HEAD + "u1,i1,yesterday\n" + GOOD,
        {},
        r"line 2, column 'timestamp': .* found 'yesterday'",
    ),
    "negative time": (HEAD + GOOD + "u1,i1,-5\n", {}, r"line 72, column 'timestamp': .* found '-5'"),
    "NaN time": (HEAD + GOOD + "u1,i1,NaN\n", {}, r"line 72, column 'timestamp': .* found 'NaN'"),
    "infinite time": (HEAD + GOOD + "u1,i1,inf\n", {}, r"line 72, column 'timestamp': .* found 'inf'"),
    "no time": (HEAD + GOOD + "u1,i1,\n", {}, r"line 72, column 'timestamp': .* found nothing"),
    "time too large": (
        HEAD + GOOD + "u1,i1,99999999999999999999\n",
        {},
        r"line 72, column 'timestamp': .* found '99999999999999999999'",
    ),
    "a number among dates": (
        HEAD + "u1,i1,2020-01-01\nu2,i2,5\n",
        {},
        r"line 3, column 'timestamp': expected a date .* found '5'",
    ),
    "seconds and milliseconds": (
        HEAD + GOOD + "u1,i1,1600000000000\n",
        {},
        r"line 72, .* expected seconds since 1970, as in most rows, found '1600000000000'",
    ),
    "null user": (HEAD + GOOD + ",i1,5\n", {}, r"line 72, column 'user_id': expected an id, found nothing"),
    "blank item": (HEAD + GOOD + "u1,  ,5\n", {}, r"line 72, column 'item_id': expected an id, found '  '"),
    "rating without a threshold": (
        "user_id,item_id,rating,timestamp\nu1,i1,1,5\nu2,i2,4,6\n",
        {},
        r"line 3, column 'rating': .* found '4'",
    ),
    "label is text": (
        "user_id,item_id,label,timestamp\nu1,i1,yes,5\n",
        {},
        r"line 2, column 'label': expected the label 0 or 1",
    ),
    "label is not finite": (
        "user_id,item_id,rating,timestamp\nu1,i1,inf,5\n",
        {"positive": 4},
        r"line 2, column 'rating': expected a finite number",
    ),
    "propensity of zero": (
        "user_id,item_id,timestamp,propensity\nu1,i1,5,0\n",
        {},
        r"line 2, column 'propensity': expected a probability above 0",
    ),
    "exposed is not a flag": (
        "user_id,item_id,timestamp,exposed\nu1,i1,5,2\n",
        {},
        r"line 2, column 'exposed': expected 0 or 1",
    ),
    "one single user": (
        HEAD
        + GOOD.replace("u0", "u1")
        .replace("u2", "u1")
        .replace("u3", "u1")
        .replace("u4", "u1")
        .replace("u5", "u1")
        .replace("u6", "u1"),
        {},
        r"one single user, 'u1'; expected at least two",
    ),
    "one single item": (HEAD + "".join(f"u{n % 7},i,{n}\n" for n in range(70)), {}, r"one single item, 'i'"),
    "k-core removes everything": (HEAD + GOOD, {"k_core": 50}, r"k_core 50 removes all 70 rows"),
    "k-core removes everything, one pass": (
        HEAD + GOOD,
        {"k_core": 50, "core": "authors"},
        r"k_core 50 removes all 70 rows",
    ),
    "k_core of zero": (HEAD + GOOD, {"k_core": 0}, r"k_core 0: expected at least 1"),
    "min_count of zero": (HEAD + GOOD, {"min_count": 0}, r"min_count 0: expected at least 1"),
    "a carriage return in the header": (
        HEAD.replace("item", "it\rem") + GOOD,
        {},
        r"bad.csv, line 1: the header cannot be read, 'user_id,it\\rem_id,timestamp'; .* a carriage return "
        r"in the middle\?",
    ),
    "words as labels": (
        "user_id,item_id,event,timestamp\nu1,i1,view,1\nu2,i2,buy,2\n",
        {"label": "event"},
        r"line 2, column 'event': expected the label 0 or 1 \(or say with --positive which ones are "
        r"positive: .*\), found 'view'",
    ),
    "other words as labels": (
        "user_id,item_id,event,timestamp\nu1,i1,view,1\nu2,i2,buy,2\n",
        {"label": "event", "positive": "purchase"},
        r"not one positive among 2 rows; .* Its labels are 'buy', 'view'",
    ),
    "a label that is missing": (
        "user_id,item_id,event,timestamp\nu1,i1,view,1\nu2,i2,,2\n",
        {"label": "event", "positive": "view"},
        r"line 3, column 'event': expected a label, such as view, found nothing",
    ),
    "no words": (
        HEAD + GOOD,
        {"label": "item_id", "positive": " , "},
        r"positive ' , ': expected a number from where on they are, or words",
    ),
    "a carriage return in a row": (
        HEAD + GOOD.replace("u1,i1", "u1\r,i1", 1),
        {},
        r"bad.csv: a carriage return in the middle of a line",
    ),
    "carriage returns for line breaks": (
        (HEAD + GOOD).replace("\n", "\r"),
        {},
        r"bad.csv, line 1: the header cannot be read",
    ),
    "a test that is no flag": (
        HEAD[:-1] + ",mine\nu1,i1,5,2\n",
        {"tests": "mine"},
        r"line 2, column 'mine': expected 0 or 1, found '2'",
    ),
    "a test without a column": (
        HEAD + GOOD,
        {"tests": "mine"},
        r"no column 'mine' for a test; expected one of 'user_id'",
    ),
    "a test of ours": (
        HEAD[:-1] + ",balanced\nu1,i1,5,1\n",
        {"tests": "balanced"},
        r"a test 'balanced' is there already; give it another name",
    ),
    "a test that is gone": (
        HEAD[:-1] + ",resampled\nu1,i1,5,1\n",
        {"tests": "resampled"},
        r"a test 'resampled' is there already",
    ),
    "no positives": (
        "user_id,item_id,rating,timestamp\n" + GOOD.replace(",16", ",1,16"),
        {"positive": 4},
        r"not one positive among 70 rows",
    ),
    "not UTF-8": (
        HEAD.encode() + GOOD.encode() + b"u1,\xff\xfe,5\n",
        {},
        r"bad.csv, line 72: bytes that are not UTF-8",
    ),
    "header not UTF-8": (
        b"user_id,item_\xff,timestamp\n" + GOOD.encode(),
        {},
        r"bad.csv, line 1: bytes that are not UTF-8",
    ),
    "two columns of one name": (
        "user_id,item_id,item_id,timestamp\nu,i,i,5\n",
        {},
        r"two columns are named 'item_id'",
    ),
    "blank line before the header": ("\n" + HEAD + GOOD, {}, r"bad.csv, line 1: blank"),
    "ragged row after a quoted line break": (
        HEAD + '"two\nlines",i1,5\n\nu1,i1\n',
        {},
        r"bad.csv, line 5: expected 3 fields, found 2",
    ),
    "seconds and milliseconds, with fractions": (
        HEAD + GOOD + "u1,i1,1600000000000.5\n",
        {},
        r"line 72, .* expected seconds since 1970",
    ),
    "a moment with something behind it": (
        HEAD + "u1,i1,2020-01-01 10:00\nu2,i2,2020-01-01 10:00 PM\n",
        {},
        r"line 3, column 'timestamp': .* found '2020-01-01 10:00 PM'",
    ),
    "position is not whole": (
        "user_id,item_id,timestamp,position\nu1,i1,5,1.5\n",
        {},
        r"line 2, column 'position': expected a whole number",
    ),
    "propensity above one": (
        "user_id,item_id,timestamp,propensity\nu1,i1,5,1.5\n",
        {},
        r"line 2, column 'propensity': expected a probability",
    ),
    "an unknown word": (
        HEAD + GOOD,
        {"duplicates": "evnt"},
        r"duplicates 'evnt': expected one of event, pair, keep",
    ),
    "a threshold that is no number": (
        HEAD + GOOD,
        {"positive": float("nan")},
        r"positive nan: expected a finite number or text or None",
    ),
    "columns of another number": (
        HEAD + GOOD,
        {"columns": "user,item"},
        r"line 1: 3 fields, but --columns names 2",
    ),
    "zip": (
        b"PK\x03\x04\xff\xfe" + GOOD.encode(),
        {},
        r"line 1: bytes that are not UTF-8; it looks like a zip file",
    ),
    "MIND with too few fields": (
        "1\tU1\t11/12/2019 2:14:46 PM\n",
        {"format": "mind"},
        r"line 1: expected 5 fields between tabs",
    ),
    "not Open Bandit": (HEAD + GOOD, {"format": "openbandit"}, r"no columns 'user_feature_\*'"),
    "absurd memory": (HEAD + GOOD, {"memory": "much"}, r"memory 'much'"),
}


@pytest.mark.parametrize("case", CASES)
def test_one_clear_message_and_nothing_written(case: str, write, tmp_path: Path) -> None:
    content, settings, message = CASES[case]
    path = write("bad.csv", content)
    with pytest.raises(unskew.BadInput, match=message) as raised:
        unskew.prepare(path, tmp_path / "out", **settings)
    assert "\n" not in str(raised.value)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.csv"]


@pytest.mark.parametrize("case", ["non-numeric time", "k-core removes everything", "not UTF-8"])
def test_what_was_there_before_stays(case: str, write, tmp_path: Path) -> None:
    unskew.prepare(write("good.csv", HEAD + GOOD), tmp_path / "out")
    before = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    content, settings, message = CASES[case]
    with pytest.raises(unskew.BadInput, match=message):
        unskew.prepare(write("bad.csv", content), tmp_path / "out", **settings)
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bad.csv", "good.csv", "out"]


@pytest.mark.parametrize("cut", [4, 40, 200])
def test_truncated_gzip(write, cut: int) -> None:
    whole = gzip.compress((HEAD + GOOD * 50).encode())
    with pytest.raises(unskew.BadInput, match=r"cut.csv.gz: the gzip file is cut off"):
        unskew.read(write("cut.csv.gz", whole[:-cut]))


def test_not_gzip_at_all(write) -> None:
    with pytest.raises(unskew.BadInput, match=r"fake.csv.gz: cannot be read"):
        unskew.read(write("fake.csv.gz", HEAD + GOOD))


def test_not_parquet_and_not_json(write) -> None:
    with pytest.raises(unskew.BadInput, match=r"fake.parquet: not a readable Parquet file"):
        unskew.read(write("fake.parquet", HEAD + GOOD))
    with pytest.raises(unskew.BadInput, match=r"fake.jsonl, line 1: not JSON"):
        unskew.read(write("fake.jsonl", HEAD + GOOD))


def test_the_second_of_two_files_is_named(write, tmp_path: Path) -> None:
    write("logs/a.csv", HEAD + GOOD)
    write("logs/b.csv", HEAD + GOOD + "\nu1,i1,soon\n")  # the blank line counts as a line
    with pytest.raises(unskew.BadInput, match=r"logs/b.csv, line 73, column 'timestamp'"):
        unskew.read(tmp_path / "logs")


def test_a_column_may_have_any_name(write, tmp_path: Path) -> None:
    """Also those that SQL or we use ourselves; and a complaint still counts the lines of the file."""
    names = [
        "select",
        "row",
        "unskew_row",
        "unskew_file",
        "filename",
        'a "quoted" `one`',
        "u",
        "Time",
        "time",
    ]
    head = ",".join('"' + name.replace('"', '""') + '"' for name in names)
    rows = "".join(f"x,u{n % 3},i{n % 4},x,x,x,x,{n},late\n" for n in range(24))
    roles = {"user": "row", "item": "unskew_row", "time": "Time"}
    log = unskew.read(write("names.csv", head + "\n" + rows), **roles)
    assert set(log.users.ids.to_pylist()) == {"u0", "u1", "u2"}
    with pytest.raises(unskew.BadInput, match=r"line 26, column 'Time': .* found 'soon'"):
        unskew.read(write("names.csv", head + "\n" + rows + "x,u1,i1,x,x,x,x,soon,late\n"), **roles)
    frame = pa.table([["a", "b"], ["c", "d"], ["x", "y"], [1, 2]], names=["user", "USER", "item", "time"])
    assert unskew.read(frame, user="USER").users.ids.to_pylist() == ["c", "d"]
    pq.write_table(frame, tmp_path / "t.parquet")
    with pytest.raises(unskew.BadInput, match="differ from 'USER' in case only"):
        unskew.read(tmp_path / "t.parquet", user="USER")
    twice = pa.table([["a", "b"], ["x", "y"], [1, 2], [3, 4]], names=["user", "item", "time", "time"])
    with pytest.raises(unskew.BadInput, match="two columns are named 'time'"):
        unskew.read(twice)


def test_duplicate_rows_are_removed_and_counted(write, tmp_path: Path) -> None:
    log = unskew.prepare(write("a.csv", HEAD + GOOD + GOOD), tmp_path / "out")
    assert (len(log), log.metadata.removed.duplicates) == (70, 70)


def test_an_id_of_300_characters_works(write, tmp_path: Path) -> None:
    long = "é" * 300
    log = unskew.prepare(write("a.csv", HEAD + GOOD.replace("u3", long)), tmp_path / "out")
    assert long in log.users.ids.to_pylist()


def test_files_that_do_not_belong_together(write, tmp_path: Path) -> None:
    write("logs/a.csv", HEAD + GOOD)
    write("logs/.hidden/b.csv", "not,ours\n")
    write("logs/_c.csv", "not,ours\n")
    assert len(unskew.read(tmp_path / "logs")) == 70
    unskew.prepare(tmp_path / "logs", tmp_path / "logs" / "prepared")
    assert len(unskew.read(tmp_path / "logs")) == 70  # our own output is not part of the log
    pq.write_table(pa.table({"user": [1]}), tmp_path / "logs" / "d.parquet")
    with pytest.raises(unskew.BadInput, match="among files of other kinds"):
        unskew.read(tmp_path / "logs")
    for name, times in (("p/0.parquet", [1, 2]), ("p/1.parquet", [1.5, 2.5])):
        (tmp_path / "p").mkdir(exist_ok=True)
        pq.write_table(pa.table({"user": ["a", "b"], "item": ["x", "y"], "time": times}), tmp_path / name)
    with pytest.raises(unskew.BadInput, match=r"1.parquet: its columns are not those"):
        unskew.read(tmp_path / "p")
    with pytest.raises(unskew.BadInput, match="take this name for a pattern"):
        unskew.read(write("a*b.csv", HEAD + GOOD))


def test_a_folder_that_holds_a_run_is_refused_before_the_data_is_read(
    capsys, saved: Path, tmp_path: Path
) -> None:
    code, _, err = run(capsys, "train", tmp_path / "no such data", "--out", saved)
    assert code == 2
    assert "a run is there already" in err
