"""How the JVMs of the tests start, and what Spark's sessions in them have for settings."""

from __future__ import annotations

from pathlib import Path

#: Made by scripts/spark_start.py; a JVM that cannot use it loads classes as ever.
ARCHIVE = Path(__file__).parents[2] / ".spark-classes" / "spark.jsa"

_OPTIONS = [
    # Every test brings new code and ends soon: optimising it further takes a third of all CPU time.
    "-XX:TieredStopAtLevel=1",
    # Without optimised code, a JVM takes a fifth of the space that some hundred jobs need.
    "-XX:ReservedCodeCacheSize=240m",
    # Heaps are small: what G1 does beside the program, and at each write of a reference, is more.
    "-XX:+UseSerialGC",
    # Loading and verifying Spark's classes takes half of a JVM's start.
    *([f"-XX:SharedArchiveFile={ARCHIVE}", "-Xlog:disable"] if ARCHIVE.exists() else []),
]

#: Setting -> its value in tests, and Spark's own. A session may have another.
_SETTINGS = {
    # Each query has code of its own, and a few hundred rows: to compile it takes longer.
    "spark.sql.codegen.factoryMode": ("NO_CODEGEN", "FALLBACK"),
    "spark.sql.codegen.wholeStage": ("false", "true"),
    # Workers begin with their imports done.
    "spark.python.daemon.module": ("millrace.spark.daemon", "pyspark.daemon"),
}

#: For ``spark.executor.extraJavaOptions``; a driver's has them from ``ENVIRONMENT``.
OPTIONS = " ".join(_OPTIONS)

_GIVEN = " ".join(f"-D{name}={given}" for name, (given, _) in _SETTINGS.items())

#: What gives options and settings to every JVM that Spark's launcher starts for a driver.
ENVIRONMENT = {"SPARK_SUBMIT_OPTS": f"{OPTIONS} {_GIVEN}"}

#: The same without settings, for tests that run as users do.
WITHOUT_SETTINGS = {"SPARK_SUBMIT_OPTS": OPTIONS}

#: What takes the settings back, for a session that is to have Spark's own.
SPARKS_OWN = {name: own for name, (_, own) in _SETTINGS.items()}
