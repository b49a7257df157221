"""A program as users write them, for every Spark: ``any_spark.py FOLDER SESSION PART...``.

SESSION is a master, or the URL of a Spark Connect server. What a part returns is in
``FOLDER/PART.json`` when it has ended.
"""

import json
import sys
import time
import traceback
from pathlib import Path

from pyspark.sql import SparkSession

import millrace as mr

#: Records of the injector, so many an epoch, of each of two processes.
RECORDS, EACH = 3000, 500
KEYS = 7
BASE = 1_700_000_000_000_000


class Counter(mr.sources.Injector):
    """Counts, in two processes."""

    schema = "key string, number long, at long"

    def __init__(self, until: int) -> None:
        self._until = until

    def processes(self):
        return ["a", "b"]

    def advance(self, process, offset):
        end = min((offset or 0) + EACH, self._until)
        return mr.sources.Advance(end, BASE + end * 1000)

    def until_now(self, process, before=None):
        yield mr.sources.Advance(self._until, BASE + self._until * 1000)

    def read(self, process, start, end):
        for number in range(start or 0, end):
            yield f"k{number % KEYS}", number, BASE + number * 1000


class Tenth(mr.Computation):
    """Says of each tenth record of a key which it was."""

    inputs = {"numbers": mr.by("key")}
    outputs = {"tenths": int}
    seen = mr.ValueState(int)

    def process_record(self, record):
        seen = (self.seen.get() or 0) + 1
        self.seen.set(seen)
        if seen % 10 == 0:
            self.produce("tenths", seen)


def pipeline(source, out: Path, **how) -> mr.Pipeline:
    p = mr.Pipeline("numbers")
    numbers = p.inject("numbers", source, timestamp="at", **how)
    numbers.key_by("key").window(mr.FixedWindows("1 s")).sum("number").to("sums")
    p.add(Tenth)
    p.sink("sums", mr.sinks.Parquet(str(out / "sums")))
    p.sink("tenths", mr.sinks.Parquet(str(out / "tenths")))
    return p


def rows(spark: SparkSession, first: int = 0, until: int = RECORDS):
    columns = f"'k' || (id % {KEYS}) key, id number, timestamp_micros({BASE} + id * 1000) at"
    return spark.range(first, until, 1, 2).selectExpr(*columns.split(", "))


def batch(spark: SparkSession, folder: Path) -> object:
    """A DataFrame, bounded, and sinks that take DataFrames side by side."""
    p = pipeline(rows(spark), folder / "batch", low_watermark=mr.BoundedDelay("1 s"))
    memory, called = mr.sinks.Memory(), {}
    p.sink("sums", memory)
    p.sink("sums", lambda frame, _: called.update(sums=frame.count()))
    p.sink("tenths", lambda frame, _: called.update(tenths=frame.count()))
    status = p.run_batch(spark, progress=False)
    return {
        "memory": sum(int(row["value"]) for row in memory.rows),
        "called": called,
        "epoch": status.epoch,
    }


def batch_of_injector(spark: SparkSession, folder: Path) -> object:
    """What there is of an injector."""
    pipeline(Counter(RECORDS), folder / "batch_of_injector", unit="us").run_batch(
        spark, progress=False
    )
    return None


def _epochs(spark: SparkSession, p: mr.Pipeline, folder: Path, *, last: bool) -> object:
    run = p.start(spark, checkpoint=str(folder / "checkpoint"), progress=False)
    assert run.process_available("200 s")
    if last:
        assert run.drain("100 s")
    else:
        run.stop()
    return run.status().epoch


def _files(spark: SparkSession, folder: Path, number: int, *, last: bool) -> object:
    half = RECORDS // 2
    rows(spark, number * half, (number + 1) * half).coalesce(1).write.mode("append").parquet(
        str(folder / "in")
    )
    schema = "key string, number long, at timestamp"
    source = spark.readStream.schema(schema).parquet(str(folder / "in"))
    p = pipeline(source, folder / "files", low_watermark=mr.BoundedDelay("1 s"))
    return _epochs(spark, p, folder / "files", last=last)


def files(spark: SparkSession, folder: Path) -> object:
    """Spark's own streaming source, until it is stopped."""
    return _files(spark, folder, 0, last=False)


def files_again(spark: SparkSession, folder: Path) -> object:
    """The same, from where it stopped."""
    return _files(spark, folder, 1, last=True)


def injector(spark: SparkSession, folder: Path) -> object:
    """Half of an injector's records, until it is stopped."""
    p = pipeline(Counter(RECORDS // 2), folder / "injector", unit="us")
    return _epochs(spark, p, folder / "injector", last=False)


def injector_again(spark: SparkSession, folder: Path) -> object:
    """All of them, from where it stopped."""
    p = pipeline(Counter(RECORDS), folder / "injector", unit="us")
    return _epochs(spark, p, folder / "injector", last=True)


class Stuck(mr.Computation):
    """Waits at a record until a file is gone."""

    inputs = {"numbers": mr.by("key")}
    outputs = {"passed": int}

    def __init__(self, hold: str) -> None:
        self._hold = hold

    def process_record(self, record):
        hold, until = Path(self._hold), time.monotonic() + 300
        if record.value["number"] == RECORDS - 1:
            hold.with_suffix(".reached").touch()
            while hold.exists() and time.monotonic() < until:
                time.sleep(0.05)
        self.produce("passed", record.value["number"])


def interrupted(spark: SparkSession, folder: Path) -> object:
    """An epoch that does not end, given up by a stop; then it is run again, and ends."""
    hold, out = folder / "hold", folder / "interrupted"
    p = mr.Pipeline("stuck")
    p.inject("numbers", Counter(RECORDS), timestamp="at", unit="us")
    p.add(Stuck(str(hold)))
    p.sink("passed", mr.sinks.Parquet(str(out / "passed")))
    hold.touch()
    run = p.start(spark, checkpoint=str(out / "checkpoint"), progress=False)
    while not hold.with_suffix(".reached").exists():
        assert not run.process_available("1 s")
    began = time.monotonic()
    run.stop("1 s")
    took = time.monotonic() - began
    stopped = run.status()
    hold.unlink()
    run = p.start(spark, checkpoint=str(out / "checkpoint"), progress=False)
    assert run.process_available("200 s")
    assert run.drain("200 s")
    return {"state": stopped.state, "quickly": took < 60, "on": run.status().epoch > stopped.epoch}


def killed(spark: SparkSession, folder: Path) -> object:
    """The same from the beginning; whoever starts it kills it in the middle, several times."""
    p = pipeline(Counter(RECORDS), folder / "killed", unit="us")
    return _epochs(spark, p, folder / "killed", last=True)


def changed() -> mr.Pipeline:
    """A pipeline that takes over from that of :func:`asked`: it reads to the end."""
    return pipeline(Counter(RECORDS), Path(sys.argv[1]) / "asked", unit="us")


def asked(spark: SparkSession, folder: Path) -> object:
    """A run that goes on until another program ends it."""
    p = pipeline(Counter(RECORDS // 2), folder / "asked", unit="us")
    run = p.start(spark, checkpoint=str(folder / "asked/checkpoint"), progress=False)
    run.wait()
    return run.status().state


def asked_again(spark: SparkSession, folder: Path) -> object:
    """The same from where it stopped, as it was changed."""
    run = changed().start(spark, checkpoint=str(folder / "asked/checkpoint"), progress=False)
    run.wait()
    return run.status().state


def archived(spark: SparkSession, folder: Path) -> object:
    """A run whose workers have no Millrace but that of an archive which the client sends."""
    name = spark.conf.get("spark.sql.execution.pyspark.python", None)
    spark.addArtifacts(f"{folder / 'environment.tar.gz'}#environment", archive=True)
    spark.conf.set("spark.sql.execution.pyspark.python", "environment/bin/python")
    try:
        p = pipeline(Counter(RECORDS), folder / "archived", unit="us")
        called: dict[int, int] = {}
        p.sink("sums", lambda frame, epoch: called.update({epoch: frame.count()}))
        _epochs(spark, p, folder / "archived", last=True)
    finally:
        if name is None:
            spark.conf.unset("spark.sql.execution.pyspark.python")
    return sum(called.values())


def source(spark: SparkSession, folder: Path) -> object:
    """What a checkpoint keeps, as a DataFrame: records counted by key."""
    mr.spark.register_source(spark)
    reader = spark.read.format("millrace").option("checkpoint", str(folder / "injector/checkpoint"))
    kept = reader.option("computation", "Tenth").load().collect()
    return {row["key"]: row["seen"] for row in kept}


def realtime(spark: SparkSession, folder: Path) -> object:
    """The same in real time."""
    p = pipeline(Counter(RECORDS), folder / "realtime", unit="us")
    run = p.start(
        spark,
        checkpoint=str(folder / "realtime/checkpoint"),
        realtime=True,
        tasks=1,
        progress=False,
    )
    assert run.process_available("100 s")
    assert run.drain("100 s")
    return run.status().epoch


def session(at: str, folder: Path) -> SparkSession:
    builder = SparkSession.builder
    if at.startswith("sc://"):
        return builder.remote(at).getOrCreate()
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        **(mr.spark.realtime_settings(tasks=1) if "realtime" in sys.argv else {}),
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.master(at).getOrCreate()


def main() -> None:
    folder, at, parts = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    spark = session(at, folder)
    for part in parts:
        try:
            found = globals()[part](spark, folder)
        except mr.MillraceError as refused:
            found = {"refused": str(refused)}
        except Exception:  # noqa: BLE001  the test of that part says so, and the others go on
            found = {"failed": traceback.format_exc()}
        (folder / f".{part}").write_text(json.dumps(found))
        (folder / f".{part}").rename(folder / f"{part}.json")
    spark.stop()


if __name__ == "__main__":
    main()
