"""What Spark forks its Python workers from."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import cloudpickle
import pyspark
import pytest

import millrace as mr
from millrace.runtime.by_value import pickle_by_value
from millrace.spark.daemon import unheard, without_zips
from millrace.spark.realtime.control_connection import Address
from millrace.spark.realtime.stages import LiveStage
from millrace.spark.worker import Blueprint
from millrace.store import LocalHardState


def _says_its_last(infile: BinaryIO, outfile: BinaryIO) -> str:
    outfile.write(infile.read())
    return "done"


def test_last_words_are_heard_while_spark_listens() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as outfile:
        assert unheard(_says_its_last)(io.BytesIO(b"bye"), outfile) == "done"
    with os.fdopen(reading, "rb") as heard:
        assert heard.read() == b"bye"


def test_last_words_are_dropped_when_spark_has_hung_up() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as outfile:
        assert unheard(_says_its_last)(io.BytesIO(b"bye"), outfile) == "done"
        outfile.flush()  # as Spark's daemon does


def test_a_worker_that_cannot_go_on_ends_without_a_traceback() -> None:
    def flushing(infile: BinaryIO, outfile: BinaryIO) -> None:
        outfile.write(b"bye")
        outfile.flush()

    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as outfile, pytest.raises(SystemExit):
        unheard(flushing)(io.BytesIO(), outfile)


HOME = Path(pyspark.__file__).parent


def test_pyspark_comes_from_where_its_bytecode_is() -> None:
    """And not from the zip file that Spark puts before it."""
    zipped = HOME / "python" / "lib" / "pyspark.zip"
    code = """
import sys
from millrace.spark import daemon
daemon.prepare()
print(sys.modules["pyspark"].__file__, sys.modules["pyspark.worker"].__file__)
"""
    environment = {"PYTHONPATH": f"{zipped}:{HOME.parents[0]}"}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == [str(HOME / "__init__.py"), str(HOME / "worker.py")]


@pytest.mark.parametrize(
    "path",
    [
        ["/opt/spark/python/lib/pyspark.zip", "/usr/lib/python3/site-packages"],
        ["/one/pyspark/python/lib/pyspark.zip", "/other"],
        ["pyspark.zip", ""],
    ],
    ids=["a distribution of Spark", "another PySpark", "an archive of the user"],
)
def test_a_zip_file_of_something_else_stays(path: list[str]) -> None:
    assert without_zips(path) == path


def test_a_task_reads_no_zip_file_anew() -> None:
    lib = HOME / "python" / "lib"
    py4j = next(lib.glob("py4j-*-src.zip"))
    path = [str(py4j), str(lib / "pyspark.zip"), "/jobs", str(HOME.parent)]
    assert without_zips(path) == ["/jobs", str(HOME.parent)]


class Passing(mr.Computation):
    inputs = {"numbers": mr.by(str)}
    outputs = {"passed": int}

    def process_record(self, record: mr.Record) -> None:
        self.produce("passed", record.value)


def test_a_task_imports_nothing_more(tmp_path: Path) -> None:
    """All tasks of a run in real time begin at once, so an import counts for each of them."""
    p = mr.Pipeline("p")
    p.inject("numbers", format=int)
    p.add(Passing)
    state = LocalHardState.create_or_open(tmp_path / "checkpoint", pipeline="p")
    topology = pickle_by_value(p.build())
    blueprint = Blueprint("", topology, state, str(tmp_path / "cache"), 1, (), {}, live=True)
    stages = [LiveStage(blueprint, level, Address("", 0, b""), last=False) for level in (0, 1)]
    pickled = tmp_path / "stages"
    pickled.write_bytes(cloudpickle.dumps(stages))
    code = f"""
import pickle, sys
from pathlib import Path
from millrace.spark import daemon
daemon.prepare()
before = set(sys.modules)
for stage in pickle.loads(Path({str(pickled)!r}).read_bytes()):
    module = sys.modules[type(stage).__module__]
    module.make_task(stage.blueprint.built(), stage.level, 0)
    module._batch([(0, b"packet")])
packages = ("millrace.", "pandas.", "pyarrow.", "pyspark.")
print([name for name in set(sys.modules) - before if name.startswith(packages)])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_importing_the_daemon_imports_no_pyspark() -> None:
    code = "import sys, millrace.spark.daemon; print([m for m in sys.modules if 'pyspark' in m])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
