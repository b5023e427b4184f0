"""Addresses of object stores, against a server on this machine that speaks the protocol of S3 (moto)."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import unskew
from tests.conftest import random_table
from tests.helpers.command import run
from tests.helpers.processes import GUARD
from unskew.core import storage
from unskew.core.storage import address_of, filesystem, objects
from unskew.data.reading.prepare import prepare


@pytest.fixture
def bucket(monkeypatch) -> Iterator[str]:
    """An empty bucket."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    filesystem.cache_clear()
    try:
        import boto3

        urlopen(Request(f"http://{host}:{port}/moto-api/reset", method="POST"), timeout=GUARD).close()
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="shop")
        yield "s3://shop"
    finally:
        filesystem.cache_clear()
        server.stop()


def put(address: str, content: bytes) -> None:
    with filesystem("s3").open_output_stream(address.removeprefix("s3://"), compression=None) as stream:
        stream.write(content)


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def test_logs_are_read_from_a_bucket(bucket: str, tmp_path: Path) -> None:
    table = random_table(rows=900)
    pq.write_table(table, tmp_path / "log.parquet")
    expected = unskew.read(tmp_path / "log.parquet").fingerprint()
    put(f"{bucket}/day/0.parquet", parquet(table.slice(0, 400)))
    put(f"{bucket}/day/1.parquet", parquet(table.slice(400)))
    put(f"{bucket}/day/notes.md", b"nothing to read")
    lines = "".join(",".join(map(str, row.values())) + "\n" for row in table.to_pylist())
    put(f"{bucket}/log.csv.gz", gzip.compress((",".join(table.column_names) + "\n" + lines).encode()))
    assert objects(f"{bucket}/day/[1-9].parquet") == [f"{bucket}/day/1.parquet"]
    for source in (f"{bucket}/day", f"{bucket}/day/*.parquet", f"{bucket}/log.csv.gz"):
        assert unskew.read(source).fingerprint() == expected
    prepared = [
        prepare(source, tmp_path / name)
        for name, source in (("a", f"{bucket}/day"), ("b", tmp_path / "log.parquet"))
    ]
    assert prepared[0].fingerprint() == prepared[1].fingerprint()
    put(f"{bucket}/bad.csv", b"user,item,time\na,x,1\nb,y,soon\n")
    with pytest.raises(unskew.BadInput, match=r"s3://shop/bad\.csv, line 3, column 'time'"):
        unskew.read(f"{bucket}/bad.csv")
    for nothing in (f"{bucket}/none", "s3://no-such-bucket/day"):
        with pytest.raises(unskew.BadInput, match=nothing):
            unskew.read(nothing)


def test_lists_are_written_to_a_bucket(bucket: str, tmp_path: Path, capsys) -> None:
    log = unskew.prepare(random_table(rows=600), tmp_path / "data")
    unskew.create_model("popularity").fit(unskew.split(log), show_progress=False).save(tmp_path / "run")
    asked = ["recommend", tmp_path / "run", "--all-users", "--out"]
    assert run(capsys, *asked, f"{bucket}/lists.parquet")[0] == 0
    read = pq.read_table("shop/lists.parquet", filesystem=filesystem("s3"))
    assert set(read["user_id"].to_pylist()) == set(log.users.ids.to_pylist())
    code, _, said = run(capsys, *asked, f"{bucket}/lists.parquet")
    assert (code, "s3://shop/lists.parquet: exists already" in said) == (2, True)
    for times in range(2):
        code, printed, _ = run(capsys, *asked, f"{bucket}/parts", "--shard", "0/1", "--json")
        assert (code, f'"made": {1 - times}' in printed) == (0, True)
    assert read.equals(pq.read_table("shop/parts/part-000000.parquet", filesystem=filesystem("s3")))
    code, _, said = run(capsys, *asked, f"{bucket}/parts", "--shard", "0/1", "--k", 3)
    assert (code, "another request" in said) == (2, True)


def test_what_fails_on_the_way_leaves_no_object(bucket: str, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_bytes(b"1234")

    def fails(*_: object) -> None:
        raise OSError("the connection was lost")

    with monkeypatch.context() as patched:
        patched.setattr(storage, "copyfileobj", fails)
        with pytest.raises(unskew.BadInput, match="the connection was lost"):
            storage.upload(tmp_path / "file", f"{bucket}/file")
    assert objects(bucket) == []
    storage.upload(tmp_path / "file", f"{bucket}/file")
    assert objects(bucket) == [f"{bucket}/file"]


def test_addresses() -> None:
    assert address_of("s3://a/b") == address_of(Path("s3://a/b")) == "s3://a/b"
    assert address_of("gs://a/b") == "gs://a/b"
    for path in ("a/b", "/a/b", "a:b/c", "c:/x", "s3", "s3:"):
        assert address_of(path) is None
    with pytest.raises(unskew.BadInput, match="hdfs://a/b: expected a path or an address"):
        unskew.read("hdfs://a/b")


def test_what_is_mapped_into_memory_is_on_a_disk(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    log = unskew.prepare(random_table(rows=300), tmp_path / "data")
    for refuse in (
        lambda: prepare(tmp_path / "data", "s3://shop/data"),
        lambda: unskew.Log.open("s3://shop/data"),
        lambda: unskew.load("s3://shop/run"),
        lambda: unskew.create_model("popularity").fit(unskew.split(log), "s3://shop/run"),
    ):
        with pytest.raises(unskew.BadInput, match="expected a path on a disk"):
            refuse()
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
