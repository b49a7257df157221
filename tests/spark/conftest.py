"""One Spark session for the whole tier, and what drives a pipeline through it step by step."""

import datetime as dt
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

import millrace as mr

#: Where injected clocks begin: far in the future. The alarm of an idle run looks at the machine's
#: own clock, so it rings only when a test asks for an epoch (``process_available``, ``drain``).
T0 = int(dt.datetime(2100, 1, 1, tzinfo=dt.UTC).timestamp()) * mr.SECOND

#: Spark's Kafka connector, which has to be there when a session starts; scripts/jars.py fetches it.
CONNECTOR = Path(__file__).parents[2] / ".spark-kafka"

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local Spark of two threads that writes only under pytest's temporary directory."""
    folder = tmp_path_factory.mktemp("spark")
    connector = [str(jar) for jar in sorted(CONNECTOR.glob("*.jar"))]
    with pytest.MonkeyPatch.context() as patch:
        # The workers must be this interpreter, and Spark the one that is installed beside it.
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYSPARK_DRIVER_PYTHON", sys.executable)
        # Not resolving the host's own name lets the tests run without a network.
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        for name in ("SPARK_HOME", "SPARK_CONF_DIR", "SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"):
            patch.delenv(name, raising=False)
        session = (
            SparkSession.builder.master("local[2]")
            .appName("millrace-tests")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.extraJavaOptions", f"-Dderby.system.home={folder / 'derby'}")
            .config(map={"spark.jars": ",".join(connector)} if connector else {})
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.sql.session.timeZone", "UTC")
            # Two partitions keep an epoch short; adaptive execution would merge them into one and
            # so hide what more than one task does.
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.ui.enabled", "false")
            .config("spark.millrace.quiet", "false")  # it has a test of its own
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        session.sparkContext.setLogLevel("ERROR")
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(scope="module", autouse=True)
def classes_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Send a test module's classes as a notebook's are sent: workers cannot import the module."""
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


class Feed:
    """A directory of Parquet files as a source: one file a call of ``add``, in that order."""

    def __init__(self, spark: SparkSession, folder: Path, ddl: str) -> None:
        self._spark = spark
        self.folder = folder
        self._ddl = ddl
        self._schema = spark.createDataFrame([], ddl).toArrow().schema
        self._count = 0
        folder.mkdir(parents=True)

    def add(self, *rows: Sequence[Any]) -> None:
        """Write rows, tuples in order of the columns; instants are microseconds."""
        self._count += 1
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        arrays = [
            pa.array(list(column), field.type)
            for column, field in zip(columns, self._schema, strict=True)
        ]
        unfinished = self.folder / f"_{self._count}"
        pq.write_table(pa.Table.from_arrays(arrays, schema=self._schema), unfinished)
        # Spark reads files in order of these times, and two could be of one millisecond.
        written = 1_700_000_000 + self._count
        os.utime(unfinished, (written, written))
        unfinished.rename(self.folder / f"{self._count:06}.parquet")

    @property
    def stream(self) -> DataFrame:
        """The directory as a streaming DataFrame."""
        return self._spark.readStream.schema(self._ddl).parquet(str(self.folder))

    @property
    def stream_one_by_one(self) -> DataFrame:
        """The same, but an epoch takes one file."""
        reader = self._spark.readStream.schema(self._ddl).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.folder))

    @property
    def bounded(self) -> DataFrame:
        """What is in the directory now."""
        return self._spark.read.schema(self._ddl).parquet(str(self.folder))


class Kept:
    """A sink that keeps an epoch's rows as (key as text, value as plain data, microseconds)."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[tuple[Any, Any, int]]] = {}
        self.ids: dict[int, list[bytes]] = {}

    def __call__(self, rows: DataFrame, epoch: int) -> None:
        made, ids = [], []
        for row in rows.toArrow().to_pylist():
            key, at, id = row.pop("_key"), row.pop("_timestamp"), row.pop("_id")
            value = row["value"] if list(row) == ["value"] else row
            made.append((key, value, (at - _EPOCH) // dt.timedelta(microseconds=1)))
            ids.append(id)
        self.epochs[epoch], self.ids[epoch] = made, ids

    @property
    def rows(self) -> list[tuple[Any, Any, int]]:
        """All rows, epoch by epoch."""
        return [row for epoch in sorted(self.epochs) for row in self.epochs[epoch]]

    @property
    def values(self) -> list[Any]:
        """Their values."""
        return [value for _, value, _ in self.rows]


class Clock:
    """A wall clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> int:
        return self.now


class Tools:
    """What the tier's tests share; here as one fixture, for test files are no package."""

    T0 = T0
    Kept = Kept
    Clock = Clock

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._feeds = 0
        self._runs: list[Any] = []
        self.clock = Clock()
        self.checkpoint = str(folder / "checkpoint")

    def feed(self, ddl: str) -> Feed:
        """Return a new, empty source directory."""
        self._feeds += 1
        return Feed(self._spark, self._folder / f"feed-{self._feeds}", ddl)

    def start(self, pipeline: mr.Pipeline, **options: Any) -> Any:
        """Start a run on the injected clock; it is stopped when the test ends, whatever happens."""
        options = {"checkpoint": self.checkpoint, "clock": self.clock, **options}
        run = pipeline.start(self._spark, **options)
        self._runs.append(run)
        return run

    def step(self, run: Any) -> None:
        """Have everything processed that is there."""
        # In slices: one call does not notice what an epoch that was under way left to do, see
        # test_process_available.py.
        assert any(run.process_available("10 s") for _ in range(12)), "not done in two minutes"

    def finish(self, run: Any) -> Any:
        """Process what is there, end the input, and return the run's last status."""
        self.step(run)
        assert run.drain("120 s"), "the run did not drain within two minutes"
        return run.status()

    def run(self, pipeline: mr.Pipeline, **options: Any) -> Any:
        """Start, process what is there, and drain; return the last status."""
        return self.finish(self.start(pipeline, **options))

    @staticmethod
    def by_key(rows: Sequence[tuple[Any, Any, int]]) -> dict[Any, list[tuple[Any, int]]]:
        """Return (value, timestamp) pairs by key, in order: what does not depend on the shell."""
        found: dict[Any, list[tuple[Any, int]]] = {}
        for key, value, at in rows:
            found.setdefault(key, []).append((value, at))
        return found

    @staticmethod
    def harness_rows(outputs: Sequence[Any]) -> list[tuple[Any, Any, int]]:
        """Return a Harness's outputs in the form in which ``KeptSavepoint`` has a sink's rows."""
        return [
            (
                o.key if o.key is None or isinstance(o.key, str) else repr(o.key),
                msgspec.to_builtins(o.value),
                o.timestamp,
            )
            for o in outputs
        ]

    def stop_all(self) -> None:
        for run in self._runs:
            if run._run.active:
                run.stop()


@pytest.fixture
def tools(spark: SparkSession, tmp_path: Path) -> Iterator[Tools]:
    """Sources, sinks, a clock and runs of one test."""
    made = Tools(spark, tmp_path)
    yield made
    made.stop_all()


@pytest.fixture
def sunk() -> Callable[[], Kept]:
    """Make sinks that keep their rows."""
    return Kept
