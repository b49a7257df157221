"""How the JVMs of the tests start."""

from __future__ import annotations

from pathlib import Path

#: Made by scripts/spark_start.py; a JVM that cannot use it loads classes as ever.
ARCHIVE = Path(__file__).parents[2] / ".spark-classes" / "spark.jsa"

_OPTIONS = [
    # Every test brings new code and ends soon: optimising it further takes a third of all CPU time.
    "-XX:TieredStopAtLevel=1",
    # Without optimised code, a JVM takes a fifth of the space that some hundred jobs need.
    "-XX:ReservedCodeCacheSize=240m",
    # Loading and verifying Spark's classes takes half of a JVM's start.
    *([f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable"] if ARCHIVE.exists() else []),
]

#: For ``spark.executor.extraJavaOptions``; a driver's has them from ``ENVIRONMENT``.
OPTIONS = " ".join(_OPTIONS)

#: What gives the options to every JVM that Spark's launcher starts for a driver.
ENVIRONMENT = {"SPARK_SUBMIT_OPTS": OPTIONS}
