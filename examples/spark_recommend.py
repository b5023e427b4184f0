"""The lists of all users, made by the workers of a Spark cluster.

    python examples/spark_recommend.py RUN DATA OUT [SHARDS] [MASTER]

Each task loads the run and writes the parts of its shard to OUT, a folder that all workers share. Parts that
are there already are not made again, so a task that Spark starts twice does no harm. With Ray, the body of
`recommend_shards` is a remote function of a shard's number.
"""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def recommend_everybody(run: str, data: str, out: str, shards: int, spark: SparkSession) -> int:
    """Write all lists, and return how many were made now."""

    def recommend_shards(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import unskew

        model = unskew.load(run)
        log = unskew.Log.open(data)
        for batch in batches:
            for shard in batch.column(0).to_pylist():
                made = model.save_recommendation_parts(out, shard=f"{shard}/{shards}", log=log, k=10)
                yield pa.record_batch({"shard": [shard], "lists": [made.lists]})

    numbers = spark.range(shards).repartition(shards)
    rows = numbers.mapInArrow(recommend_shards, "shard LONG, lists LONG").collect()
    return sum(row["lists"] for row in rows)


if __name__ == "__main__":
    run, data, out, *more = sys.argv[1:]
    shards = int(more[0]) if more else 8
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("unskew recommend").config("spark.ui.enabled", "false")
    spark = builder.master(more[1] if len(more) > 1 else "local[2]").getOrCreate()
    print(f"{recommend_everybody(run, data, out, shards, spark):,} lists were made now")
    spark.stop()
