"""Makes what lets Spark's processes start sooner, for the tests: they start some hundred JVMs.

    python scripts/spark_start.py

`.spark-classes/spark.jsa` has Spark's classes as a JVM has them once they are loaded, which takes
half the CPU time of a JVM's start. One that is given the file (class data sharing,
`-XX:SharedArchiveFile`) maps them instead; it takes no notice of a file that another Java or other
jars made. And the `pyspark.zip` of the environment, which Spark has its Python processes import
PySpark from, gets the bytecode that each of them would make anew.

This does nothing when the Java and the jars are those that made the archive. Without it tests take
longer, and none fails.
"""

import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[1]
ARCHIVE = ROOT / ".spark-classes" / "spark.jsa"
#: What made the archive.
STAMP = ARCHIVE.with_suffix(".stamp")


def main() -> None:
    add_bytecode(Path(pyspark.__file__).parent / "python" / "lib" / "pyspark.zip")
    archive_classes()


def add_bytecode(archive: Path) -> None:
    """Add to each module of a zip file what Python compiles it to, unless that is there."""
    with zipfile.ZipFile(archive) as zipped:
        names = set(zipped.namelist())
    modules = {name for name in names if name.endswith(".py") and "/tests/" not in name}
    missing = sorted(name for name in modules if f"{name}c" not in names)
    if not missing:
        return
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        # The environment's file may be shared with others by links.
        larger = Path(shutil.copy(archive, folder))
        with zipfile.ZipFile(larger, "a") as zipped:
            for name in missing:
                source = Path(zipped.extract(name, folder))
                compiled = py_compile.compile(
                    str(source),
                    cfile=f"{source}c",
                    dfile=name,
                    invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
                )
                if compiled:
                    zipped.write(compiled, f"{name}c")
        larger.replace(archive)


def archive_classes() -> None:
    """Have a JVM load what tests load, and write it to a file."""
    makers = f"{java()}\n{pyspark.__version__} {Path(pyspark.__file__).parent}\n"
    if ARCHIVE.exists() and STAMP.exists() and STAMP.read_text() == makers:
        return
    print("setup: archiving Spark's classes, for the JVMs of the tests", flush=True)
    ARCHIVE.parent.mkdir(exist_ok=True)
    STAMP.unlink(missing_ok=True)
    unfinished = ARCHIVE.with_suffix(".unfinished")
    unfinished.unlink(missing_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    with tempfile.TemporaryDirectory() as folder:
        # The JVM writes the archive when it ends, and until then has the pipe that is read here.
        done = subprocess.run(
            [sys.executable, __file__, folder],
            env=kept
            | {
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "SPARK_SUBMIT_OPTS": f"-Xlog:disable -XX:ArchiveClassesAtExit={unfinished}",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    if done.returncode or not unfinished.exists():
        print(f"setup: no archive, tests take longer:\n{done.stdout[-2000:]}", flush=True)
        return
    unfinished.replace(ARCHIVE)
    STAMP.write_text(makers)


def java() -> str:
    """Return what the Java that Spark will start says of itself."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    return subprocess.run([program, "-version"], capture_output=True, text=True).stderr


def use(folder: Path) -> None:
    """Run a small pipeline on both planes and in a batch: the classes that tests load."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    import millrace as mr

    rows = pa.table({"word": ["a", "b"] * 50, "at": list(range(100))})
    (folder / "in").mkdir()
    pq.write_table(rows, folder / "in" / "1.parquet")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    builder = SparkSession.builder.master("local[8]").config(map=settings)
    spark = builder.config(map=mr.spark.realtime_settings()).getOrCreate()

    def counts(name: str, source: object) -> mr.Pipeline:
        p = mr.Pipeline(name)
        words = p.inject("words", source, timestamp="at", low_watermark=mr.BoundedDelay(0))
        windowed = words.key_by("word").window(mr.FixedWindows(10))
        windowed.count().to("counts")
        p.sink("counts", mr.sinks.Parquet(str(folder / name / "out")))
        return p

    read = spark.readStream.schema("word string, at long").parquet(str(folder / "in"))
    run = counts("epochs", read).start(spark, checkpoint=str(folder / "epochs" / "checkpoint"))
    run.drain()
    run.stop()
    counts("batch", spark.read.parquet(str(folder / "in"))).run_batch(spark)
    files = mr.sources.Files(str(folder / "in"), format="parquet", schema="word string, at long")
    run = counts("realtime", files).start(
        spark, checkpoint=str(folder / "realtime" / "checkpoint"), realtime=True
    )
    run.drain()
    run.stop()
    spark.stop()


if __name__ == "__main__":
    use(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
