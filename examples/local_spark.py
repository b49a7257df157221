"""A Spark on this machine for the examples."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

_LOGGING = """\
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def session(
    name: str, out: Path, *, slots: int = 2, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a session on this machine that says nothing unless something is wrong.

    Args:
        name: Of the example.
        out: A directory that exists; the setting of the log is written there.
        slots: How many tasks run at once.
        settings: Further settings of Spark.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    logging = (out / "log4j2.properties").absolute()
    logging.write_text(_LOGGING)
    java = [
        f"-Dlog4j2.configurationFile={logging.as_uri()}",
        # The JVM lives for a minute or two: optimising its code further costs more than it saves.
        "-XX:TieredStopAtLevel=1",
        # Without optimised code, the JVM takes a fifth of the space that some hundred jobs need.
        "-XX:ReservedCodeCacheSize=240m",
    ]
    options: dict[str, Any] = {
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.sql.session.timeZone": "UTC",
        # By default 15 s, in which a machine that is busy has not started Python.
        "spark.python.authenticate.socketTimeout": "2m",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **(settings or {}),
    }
    builder = SparkSession.builder.master(f"local[{slots}]").appName(name)
    return builder.config(map=options).getOrCreate()
