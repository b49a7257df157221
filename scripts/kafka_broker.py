"""Becomes a Kafka broker, one process, on a free port of the loopback interface.

    python scripts/kafka_broker.py FOLDER [SETTING=VALUE ...]

A setting ``also=SASL_PLAINTEXT`` gives it a listener of that protocol, too; the line is in
``server.properties``.

It fetches the broker's jars if they are not there, prints ``127.0.0.1:PORT`` on one line, and turns
into the broker, which is its own controller and keeps everything in the folder. It answers some
seconds later; what it logs is in ``broker.log``. Killed, it is gone; started again with the same
folder, it has its old port and what it was given. The tests, the benchmarks and a demo start it.
"""

import os
import shutil
import socket
import sys
import uuid
from pathlib import Path

import jars

JARS = jars.ROOT / ".kafka"
#: With a small heap and the quick compiler it starts in seconds; a broker of tests does little.
JVM = ("-Xmx512m", "-Xms64m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


def main(folder: Path, settings: list[str]) -> None:
    if problem := jars.fetch(JARS.name):
        sys.exit(problem)
    configuration = folder / "server.properties"
    if not configuration.exists():
        prepare(folder, configuration, dict(one.split("=", 1) for one in settings))
    (listener,) = [
        line.removeprefix("advertised.listeners=PLAINTEXT://").partition(",")[0]
        for line in configuration.read_text().splitlines()
        if line.startswith("advertised.listeners=")
    ]
    print(listener, flush=True)
    log = os.open(folder / "broker.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(folder)
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or "java"
    os.execv(java, [java, *JVM, "-cp", f"{JARS}/*", "kafka.Kafka", str(configuration)])


def prepare(folder: Path, configuration: Path, settings: dict[str, str]) -> None:
    data = folder / "data"
    data.mkdir(parents=True)
    # What `kafka-storage.sh format` would write; starting a JVM for it takes seconds.
    (data / "meta.properties").write_text(
        f"version=1\nnode.id=1\ncluster.id={uuid.uuid4().hex[:22]}\n"
        f"directory.id={uuid.uuid4().hex[:22]}\n"
    )
    port, controller, other = free_ports(3)
    also = settings.pop("also", "")
    second = f",{also}://127.0.0.1:{other}" if also else ""
    wanted = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port}{second},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}{second}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        + (f",{also}:{also}" if also else ""),
        "log.dirs": data,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "log.cleaner.enable": "false",
        # Else records with times of long ago are gone half a minute after the broker's start.
        "log.retention.ms": -1,
        **settings,
    }
    configuration.write_text("".join(f"{name}={value}\n" for name, value in wanted.items()))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
