"""An object store that is killed under a writer, or in mid-run, and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
from logs import append
from store_server import StoreServer

from millrace.store import Commit, ObjectBlobs, ObjectHardState

FILES, KEYS = 12, 20

# A process of its own: Spark's Python workers have the environment that its JVM was started with.
SCRIPT = """
import sys
from pyspark.sql import SparkSession
import millrace as mr
from millrace.model.errors import PipelineError

folder, checkpoint = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(
    "spark.sql.shuffle.partitions", "2").config("spark.local.dir", folder + "/local").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")


class Count(mr.Computation):
    inputs = {"words": mr.by("word")}
    outputs = {"counts": int}
    seen = mr.ValueState(int)

    def process_record(self, record):
        self.seen.set((self.seen.get() or 0) + 1)
        self.produce("counts", self.seen.get())


def pipeline():
    words = spark.readStream.schema("word string, at timestamp").option(
        "maxFilesPerTrigger", 1).parquet(folder + "/words")
    p = mr.Pipeline("words")
    p.inject("words", words, timestamp="at", low_watermark=mr.BoundedDelay("1 s"))
    p.add(Count)
    p.sink("counts", mr.sinks.Parquet(folder + "/counts"))
    p.sink("counts", mr.sinks.Delta(checkpoint + "-counts"))
    return p


try:
    pipeline().start(spark, checkpoint=checkpoint)
except PipelineError as error:
    print("refused", error, flush=True)
options = {"checkpoint": checkpoint, "spark_checkpoint": folder + "/offsets"}
run = pipeline().start(spark, **options)
while run.status().epoch < 2:
    run.wait("20 milliseconds")
print("going", flush=True)
while run.status().epoch < 6:
    run.wait("20 milliseconds")
run.stop()
run = pipeline().start(spark, **options)
assert run.process_available("3 min")
assert run.drain("2 min")
print("drained", run.status().replayed, flush=True)
spark.stop()
"""


def check_run_with_killed_store(
    folder: Path, url: str, server: StoreServer, *, hadoop_url: str
) -> None:
    """Run a pipeline by epochs, kill the store meanwhile, and compare what came of it.

    One of its sinks is a table in the same store.

    Args:
        folder: An empty one.
        url: Of the checkpoint.
        server: Where it is.
        hadoop_url: How Spark's own URL of it begins, for which this Spark has no connector.
    """
    (folder / "words").mkdir()
    at = pa.array([1_700_000_000_000_000] * KEYS, pa.timestamp("us", "UTC"))
    for number in range(FILES):
        words = pa.table({"word": [f"w{key}" for key in range(KEYS)], "at": at})
        pq.write_table(words, folder / "words" / f"{number:03}.parquet")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder), url],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
        env={
            **os.environ,
            **server.environment(),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
    )
    try:
        assert process.stdout is not None
        refused = process.stdout.readline()
        assert refused.startswith(f"refused Spark cannot reach '{hadoop_url}")
        assert "spark_checkpoint=" in refused
        assert process.stdout.readline() == "going\n"
        server.kill()
        server.start()
        rest = process.communicate()[0]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    assert rest.startswith("drained")
    table = deltalake.DeltaTable(f"{url}-counts").to_pyarrow_table()
    wanted = [(f"w{key}", count + 1) for key in range(KEYS) for count in range(FILES)]
    for rows in (pq.read_table(folder / "counts"), table):
        counts = rows.to_pydict()
        assert sorted(zip(counts["_key"], counts["value"], strict=True)) == sorted(wanted)


def check_writer_with_killed_store(blobs: ObjectBlobs, server: StoreServer) -> None:
    """Write commits, kill the store meanwhile, and look whether each is there once."""
    state = ObjectHardState.create_or_open(blobs, pipeline="p")
    commits = [Commit("count", 0, n, n, 1, [(b"Sk", b"v")]) for n in range(1, 101)]
    won: list[bool] = []
    begun = threading.Event()

    def write() -> None:
        for commit in commits:
            won.append(append(state, [commit])[0])
            if commit.number == 10:
                begun.set()

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(60)
    server.kill()
    server.start()
    writer.join(100)
    assert won == [True] * 100
    assert state.commits.numbers("count") == {0: list(range(1, 101))}
    assert [state.commits.read("count", 0, commit.number) for commit in commits] == commits
