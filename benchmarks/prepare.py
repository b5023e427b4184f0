"""From Parquet to memory-mapped views: unskew against the same job written directly in DuckDB SQL and in
Polars, in one run.

    python benchmarks/prepare.py [--rows 20000000] [--lookups 10000000]

Each job runs in a process of its own: wall time, CPU-seconds of all its threads, peak resident memory. The
job: read, remove duplicate events, 5-core, index users and items by first appearance, sort by user and by
item, write flat columns. The direct versions check nothing and explain nothing. Then random (item, time)
audience look-ups on one core, and a simulated world. The figures go to results/prepare.jsonl.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tyro

RESULTS = Path(__file__).parents[1] / "results" / "prepare.jsonl"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    rows: int = 20_000_000
    lookups: int = 10_000_000
    keep: Path | None = None
    """Where the synthetic log stays for another run; by default it is made and thrown away."""


def zipf_log(rows: int, file: Path) -> None:
    """Zipf-like users and items under shuffled ids, seconds over three years, and some exact duplicates."""
    random = np.random.default_rng(0)

    def draw(size: int, exponent: float) -> np.ndarray[Any, Any]:
        weight = 1 / np.arange(1, size + 1) ** exponent
        return random.permutation(size)[random.choice(size, rows, p=weight / weight.sum())]

    user, item = draw(rows // 10, 0.6) * 7 + 13, draw(rows // 66, 1.0) * 3 + 5
    moment = 1_500_000_000 + random.integers(0, 10**8, rows)
    twice = random.integers(0, rows, rows // 200)
    user[: len(twice)], item[: len(twice)], moment[: len(twice)] = user[twice], item[twice], moment[twice]
    pq.write_table(pa.table({"user_id": user, "item_id": item, "timestamp": moment}), file)


def unskew_job(source: Path, out: Path) -> None:
    import unskew

    unskew.prepare(source, out)


def duckdb_job(source: Path, out: Path) -> None:
    import duckdb

    connection = duckdb.connect(config={"memory_limit": "2GB", "temp_directory": str(out / "spill")})
    out.mkdir()
    events = f"SELECT DISTINCT user_id AS u, item_id AS i, timestamp AS t FROM '{source}'"
    connection.execute(f"CREATE TABLE core AS {events}")
    before = -1
    while (rows := connection.execute("SELECT count(*) FROM core").fetchall()[0][0]) != before:
        before = rows
        connection.execute(
            """CREATE OR REPLACE TABLE core AS SELECT * FROM core
            WHERE u IN (SELECT u FROM core GROUP BY u HAVING count(*) >= 5)
            AND i IN (SELECT i FROM core GROUP BY i HAVING count(*) >= 5)"""
        )
    for table, key in (("users", "u"), ("items", "i")):
        code = f"(row_number() OVER (ORDER BY min(t), {key}) - 1)::INT"
        connection.execute(f"CREATE TABLE {table} AS SELECT {key}, {code} AS code FROM core GROUP BY {key}")
    connection.execute(
        "CREATE TABLE indexed AS SELECT users.code AS u, items.code AS i, t FROM core JOIN users USING (u) "
        "JOIN items USING (i)"
    )
    for name, order in (("user", "u, t, i"), ("item", "i, t, u")):
        reader = connection.sql(f"SELECT u, i, t FROM indexed ORDER BY {order}").to_arrow_reader(1_000_000)
        with (
            (out / f"by_{name}.u").open("wb") as u,
            (out / f"by_{name}.i").open("wb") as i,
            (out / f"by_{name}.t").open("wb") as t,
        ):
            for batch in reader:
                for file, column in zip((u, i, t), batch.columns, strict=True):
                    file.write(column.to_numpy().tobytes())


def polars_job(source: Path, out: Path) -> None:
    import polars as pl

    out.mkdir()
    core = pl.read_parquet(source).rename({"user_id": "u", "item_id": "i", "timestamp": "t"}).unique()
    before = -1
    while core.height != before:
        before = core.height
        core = core.filter((pl.len().over("u") >= 5) & (pl.len().over("i") >= 5))
    for key in ("u", "i"):
        codes = core.group_by(key).agg(pl.col("t").min()).sort("t", key).select(key).with_row_index("code")
        core = core.join(codes, on=key).drop(key).rename({"code": key})
    for name, order in (("user", ("u", "t", "i")), ("item", ("i", "t", "u"))):
        ordered = core.sort(*order)
        for column in ("u", "i", "t"):
            np.save(out / f"by_{name}.{column}.npy", ordered[column].to_numpy())


JOBS: dict[str, Callable[[Path, Path], None]] = {
    "unskew": unskew_job,
    "duckdb": duckdb_job,
    "polars": polars_job,
}


def measured(name: str, source: Path, out: Path) -> dict[str, float]:
    """Run one job in a fresh process."""
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, __file__, "job", name, str(source), str(out)],
        check=True,
        capture_output=True,
        text=True,
    )
    wall = time.perf_counter() - started
    return {"wall_s": wall, **json.loads(done.stdout.splitlines()[-1])}


def job(name: str, source: str, out: str) -> None:
    JOBS[name](Path(source), Path(out))
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(json.dumps({"cpu_s": used.ru_utime + used.ru_stime, "peak_gb": used.ru_maxrss / 1e6}))


def lookups(folder: Path, count: int) -> list[dict[str, Any]]:
    """Audience windows of random (item, time) pairs: items uniform over the catalogue, and as often as they
    occur in the log."""
    import unskew

    log = unskew.read(folder)
    random = np.random.default_rng(1)
    moment = random.integers(int(log.time.min()), int(log.time.max()) + 1, count)
    log.audiences.before(np.zeros(1, np.int64), moment[:1])  # builds the index once
    found = []
    for name, item in (
        ("uniform items", random.integers(0, len(log.items), count)),
        ("items of the log", log.item[random.integers(0, len(log), count)]),
    ):
        codes = item.astype(np.int64)
        cpu = time.process_time()
        start, end = log.audiences.before(codes, moment, 30)
        cpu = time.process_time() - cpu
        found.append(
            {
                "lookups": name,
                "count": count,
                "million_per_cpu_s": count / cpu / 1e6,
                "mean_window": float((end - start).mean()),
            }
        )
    return found


def simulated() -> dict[str, float]:
    """About a million events of the simulated world."""
    import unskew

    cpu = time.process_time()
    rows = len(unskew.simulate(users=10_000, items=5_000).log)
    return {"rows": rows, "cpu_s": time.process_time() - cpu}


def main(settings: Benchmark) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = (settings.keep or Path(scratch)) / f"zipf-{settings.rows}.parquet"
        if not source.exists():
            source.parent.mkdir(parents=True, exist_ok=True)
            zipf_log(settings.rows, source)
        runs: dict[str, dict[str, float]] = {}
        for name in JOBS:
            runs[name] = measured(name, source, Path(scratch) / name)
            print(f"{name:8s}", *(f"{key} {value:7.2f}" for key, value in runs[name].items()), flush=True)
        ratios = {
            f"{key}_against_{other}": runs["unskew"][key] / runs[other][key]
            for other in ("duckdb", "polars")
            for key in ("wall_s", "cpu_s")
        }
        print(*(f"{name} {value:.2f}x" for name, value in ratios.items()), sep="\n")
        found = lookups(Path(scratch) / "unskew", settings.lookups)
        for row in found:
            print(f"{row['lookups']}: {row['million_per_cpu_s']:.1f} M look-ups per CPU-second")
        world = simulated()
        print(f"simulate: {world['rows']:,.0f} rows in {world['cpu_s']:.1f} CPU-seconds")
        RESULTS.parent.mkdir(exist_ok=True)
        with RESULTS.open("a") as file:
            record = {
                "date": time.strftime("%Y-%m-%d"),
                "rows": settings.rows,
                "runs": runs,
                "ratios": ratios,
                "lookups": found,
                "simulate": world,
            }
            file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["job"]:
        job(*sys.argv[2:])
    else:
        main(tyro.cli(Benchmark, description=__doc__))
