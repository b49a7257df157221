"""A Spark Connect server: ``connect_server.py FOLDER NAME=VALUE...``, with those settings."""

import os
import sys
from pathlib import Path

import pyspark

home = Path(pyspark.__file__).parent
settings = [word for setting in sys.argv[2:] for word in ("--conf", setting)]
command = [
    str(home / "bin/spark-submit"),
    *("--master", "local[2]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
    *settings,
    "spark-internal",
]
os.execve(command[0], command, {**os.environ, "SPARK_HOME": str(home)})
