"""A YARN of one machine: a ResourceManager, and two NodeManagers that start containers.

They are Hadoop's own, from the jar of its mini cluster, each in a process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyspark

JARS = Path(__file__).parents[4] / ".yarn"
_SERVER = "org.apache.hadoop.yarn.server"
#: Of each of the two.
NODE_MB, NODE_CORES = 3072, 8
#: What the ResourceManager says of a node.
_REGISTERED = "Transitioned from NEW to RUNNING"


class Yarn:
    """ResourceManager and NodeManagers.

    Args:
        home: A folder for all that they and their containers write.
        daemon: Starts a process: a command, a log, an environment.

    Attributes:
        conf: The folder that ``YARN_CONF_DIR`` is to name.
    """

    def __init__(self, home: Path, daemon: Callable[..., Any]) -> None:
        self.home = home
        self._daemon = daemon
        self._started: list[Any] = []
        ports = _free_ports(4)
        names = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
        self._site = {
            f"yarn.resourcemanager.{name}": f"127.0.0.1:{port}"
            for name, port in zip(names, ports, strict=True)
        } | {
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.resourcemanager.webapp.address": "127.0.0.1:0",
            "yarn.scheduler.minimum-allocation-mb": "128",
            "yarn.scheduler.maximum-allocation-mb": str(NODE_MB),
            "yarn.resourcemanager.am.max-attempts": "3",
            "yarn.nodemanager.heartbeat.interval-ms": "200",
            "yarn.nodemanager.resource.memory-mb": str(NODE_MB),
            "yarn.nodemanager.resource.cpu-vcores": str(NODE_CORES),
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",
            "yarn.nodemanager.env-whitelist": "JAVA_HOME",
            # What a container wrote is there to be read when a test has failed.
            "yarn.nodemanager.delete.debug-delay-sec": "3600",
        }
        self.conf = self._configure("conf", {})

    def start(self) -> None:
        """Start all of them, and wait until they know each other."""
        home = self.home
        self._resources = self._start("resourcemanager.ResourceManager", self.conf, "resources")
        for n in (1, 2):
            address, localizer, collector = _free_ports(3)
            own = {
                "yarn.nodemanager.address": f"127.0.0.1:{address}",
                "yarn.nodemanager.localizer.address": f"127.0.0.1:{localizer}",
                "yarn.nodemanager.collector-service.address": f"127.0.0.1:{collector}",
                "yarn.nodemanager.webapp.address": "127.0.0.1:0",
                "yarn.nodemanager.local-dirs": str(home / f"node-{n}" / "local"),
                "yarn.nodemanager.log-dirs": str(home / f"node-{n}" / "logs"),
            }
            folder = self._configure(f"node-{n}", own)
            self._start("nodemanager.NodeManager", folder, f"node-{n}")
        self._wait(lambda: self._resources.output().count(_REGISTERED) == 2)

    def _configure(self, name: str, own: Mapping[str, str]) -> Path:
        folder = self.home / name
        # The pages of its web server are not in the jar, and it must find where they would be.
        for pages in ("cluster", "node"):
            (folder / "webapps" / pages).mkdir(parents=True)
        core = {"fs.defaultFS": "file:///", "hadoop.tmp.dir": str(folder)}
        _write(folder / "core-site.xml", core)
        _write(folder / "yarn-site.xml", self._site | dict(own))
        queues = "yarn.scheduler.capacity"
        settings = {
            f"{queues}.root.queues": "default",
            f"{queues}.root.default.capacity": "100",
            f"{queues}.maximum-am-resource-percent": "1.0",
        }
        _write(folder / "capacity-scheduler.xml", settings)
        (folder / "log4j2.properties").write_text(
            "rootLogger.level = info\nrootLogger.appenderRef.console.ref = console\n"
            "appender.console.type = Console\nappender.console.name = console\n"
            "appender.console.layout.type = PatternLayout\n"
            "appender.console.layout.pattern = %d %p %c{1}: %m%n%ex\n"
        )
        return folder

    def _start(self, server: str, conf: Path, log: str) -> Any:
        sparks = Path(pyspark.__file__).parent / "jars"
        needed = ("hadoop-client-", "slf4j-", "log4j-", "jcl-", "jakarta.", "javax.", "commons-")
        jars = [jar for name in needed for jar in sorted(sparks.glob(f"{name}*.jar"))]
        path = [conf, *JARS.glob("*.jar"), *jars]
        home = os.environ.get("JAVA_HOME")
        java = f"{home}/bin/java" if home else shutil.which("java")
        started = self._daemon(
            [str(java), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
             "-cp", os.pathsep.join(map(str, path)), f"{_SERVER}.{server}"],
            self.home / f"{log}.log", HADOOP_CONF_DIR=str(conf),
        )  # fmt: skip
        self._started.append(started)
        return started

    def _wait(self, reached: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 90
        while not reached():
            for process in self._started:
                assert process.alive(), process.output()[-5000:]
            assert time.monotonic() < deadline, self._resources.output()[-5000:]
            time.sleep(0.1)

    def containers(self, of: str) -> list[int]:
        """Return the JVMs in containers whose command names a class: they have a session each."""
        words = of.encode(), str(self.home).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    program = command.partition(b"\0")[0]
                    if program.endswith(b"java") and all(word in command for word in words):
                        found.append(int(entry.name))
        return sorted(found)

    def end(self) -> None:
        """Leave no process behind, in no container either."""
        for process in self._started:
            process.end()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and entry.name != str(os.getpid()):
                with contextlib.suppress(OSError):
                    if (entry / "cwd").readlink().is_relative_to(self.home):
                        os.kill(int(entry.name), signal.SIGKILL)


def _write(file: Path, settings: Mapping[str, str]) -> None:
    lines = "".join(
        f"<property><name>{name}</name><value>{escape(value)}</value></property>\n"
        for name, value in settings.items()
    )
    file.write_text(f"<configuration>\n{lines}</configuration>\n")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
