"""The lists of all users as part files: each user once, whatever the number of shards; resumed, never redone,
never half written."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.errors import refused
from unskew.api.model import Model
from unskew.recommendation.parts import REQUEST, Shard, parse_shard

USERS = 7  # of a part


@pytest.fixture(scope="module")
def pulse() -> Model:
    log = unskew.read(random_table(rows=900, users=40, items=60))
    return unskew.create_model("pulse-zero").fit(unskew.split(log), show_progress=False)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch) -> None:
    monkeypatch.setattr("unskew.recommendation.parts.PART_USERS", USERS)


def parts_of(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.parquet"))


def test_shards_make_together_what_one_process_makes(pulse: Model, tmp_path: Path) -> None:
    made = [pulse.save_recommendation_parts(tmp_path / "three", shard=f"{i}/3", k=4) for i in (2, 0, 1)]
    whole = pulse.save_recommendation_parts(tmp_path / "one", k=4, show_progress=False)
    users = len(pulse.known_log.users)
    assert sum(shard.lists for shard in made) == whole.lists == users
    assert sum(shard.parts for shard in made) == whole.parts == -(-users // USERS)
    assert parts_of(tmp_path / "one") == parts_of(tmp_path / "three")
    for name in parts_of(tmp_path / "one"):
        assert pq.read_table(tmp_path / "one" / name).equals(pq.read_table(tmp_path / "three" / name))
    found = pa.concat_tables([pq.read_table(tmp_path / "one" / name) for name in parts_of(tmp_path / "one")])
    ids = pulse.known_log.users.ids.to_pylist()
    expected = pulse.recommend(users=ids, k=4).table
    assert found.drop(["score"]).equals(expected.drop(["score"]))
    assert found["score"].to_pylist() == pytest.approx(expected["score"].to_pylist(), abs=1e-5)


def test_what_is_there_is_not_made_again_and_what_fails_leaves_nothing(
    pulse: Model, tmp_path: Path, monkeypatch
) -> None:
    whole = pulse.save_recommendation_parts(tmp_path / "out", k=4)
    names = parts_of(tmp_path / "out")
    (tmp_path / "out" / names[1]).unlink()
    times = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in names if name != names[1]}

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(pq.ParquetWriter, "write_table", fails)
        with pytest.raises(unskew.UnskewError, match="No space left"):
            pulse.save_recommendation_parts(tmp_path / "out", k=4)
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted({*times, REQUEST})
    again = pulse.save_recommendation_parts(tmp_path / "out", k=4, shard="1/2")
    assert (again.made, again.lists, again.parts) == (1, USERS, whole.parts // 2)
    assert times == {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in times}
    assert parts_of(tmp_path / "out") == names


@pytest.mark.parametrize("other", [{"k": 5}, {"k": 4, "debias": 0.3}, {"k": 4, "exclude": ["i1"]}])
def test_another_request_has_another_folder(pulse: Model, tmp_path: Path, other: dict) -> None:
    pulse.save_recommendation_parts(tmp_path / "out", k=4)
    with refused(field="out"):
        pulse.save_recommendation_parts(tmp_path / "out", **other)


def test_other_weights_have_another_folder(pulse: Model, tmp_path: Path, monkeypatch) -> None:
    pulse.save_recommendation_parts(tmp_path / "out", k=4)
    monkeypatch.setattr(pulse.network, "item_skip", pulse.network.item_skip + 1e-3)
    with refused(field="out"):
        pulse.save_recommendation_parts(tmp_path / "out", k=4)


def test_which_shard_a_process_is() -> None:
    torchrun, kubernetes = {"RANK": "1", "WORLD_SIZE": "4"}, {"JOB_COMPLETION_INDEX": "2"}
    assert parse_shard("3/8", torchrun) == Shard(3, 8)
    assert parse_shard("auto", torchrun) == Shard(1, 4)
    assert parse_shard("auto/3", torchrun) == Shard(1, 3)
    assert parse_shard("auto/3", kubernetes) == Shard(2, 3)
    for text, environment in (
        ("auto", kubernetes),
        ("auto", {}),
        ("auto/2", kubernetes),
        ("3/3", {}),
        ("0/0", {}),
        ("1", {}),
        ("-1/3", {}),
        ("one/3", {}),
    ):
        with refused(field="shard"):
            parse_shard(text, environment)


def test_the_command_line(pulse: Model, capsys, tmp_path: Path, monkeypatch) -> None:
    pulse.save(tmp_path / "run")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    asked = ["recommend", tmp_path / "run", "--all-users", "--out", tmp_path / "out", "--shard"]
    code, printed, _ = run(capsys, *asked, "auto", "--json")
    assert code == 0
    assert '"shard": "auto"' in printed
    assert parts_of(tmp_path / "out") == [f"part-{part:06}.parquet" for part in (0, 2, 4)]
    assert run(capsys, *asked, "1/2")[0] == 0
    assert len(parts_of(tmp_path / "out")) == 6
    (tmp_path / "file").write_text("")
    for wrong in (
        ["--all-users", "--out", tmp_path / "out", "--shard", "2"],
        ["--user", "u1", "--shard", "0/2"],
        ["--all-users", "--out", tmp_path / "file", "--shard", "0/2"],
    ):
        assert run(capsys, "recommend", tmp_path / "run", *wrong)[0] == 2
