"""A Spark Connect server: ``connect_server.py FOLDER NAME=VALUE...``, with those settings."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyspark


class ConnectServer:
    """A Spark Connect server, in a process of its own.

    Args:
        program: Starts a process.
        folder: For its files.
        settings: Of Spark, besides those that every server has.
        environment: Variables of the process.
    """

    def __init__(
        self,
        program: Callable[..., Any],
        folder: Path,
        settings: dict[str, str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"sc://127.0.0.1:{self.port}"
        self._program, self._folder = program, folder
        self._settings, self._environment = settings or {}, environment or {}
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.port": self.port,
            "spark.driver.host": "127.0.0.1",
            "spark.local.dir": self._folder / "local",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.warehouse.dir": self._folder / "warehouse",
            "spark.ui.enabled": "false",
            **self._settings,
        }
        self.process = self._program(
            Path(__file__),
            self._folder,
            *(f"{name}={value}" for name, value in settings.items()),
            log=f"server-{time.monotonic_ns()}.log",
            **self._environment,
        )
        until = time.monotonic() + 120
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self.process.alive(), self.process.output()
                assert time.monotonic() < until, self.process.output()
                time.sleep(0.1)


def main(settings: list[str]) -> None:
    home = Path(pyspark.__file__).parent
    command = [
        str(home / "bin/spark-submit"),
        *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
        *(word for setting in settings for word in ("--conf", setting)),
        "spark-internal",
    ]
    os.execve(command[0], command, {**os.environ, "SPARK_HOME": str(home)})


if __name__ == "__main__":
    main(sys.argv[2:])
