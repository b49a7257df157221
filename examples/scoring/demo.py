"""The demo: payments are scored by a model behind HTTP, and everything is killed in the middle.

    make demo-scoring

Payments go to Kafka while they are made. The pipeline asks the model about each, 100 at a time. In
the middle its driver is killed with all that was in flight, and started again. In the end each
payment must have one score, the right one, or one dead letter, and each card its alerts.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx
import msgspec
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console

import millrace as mr
from millrace_examples.kafka.broker import Broker, make_topics

from .model_server import ModelServer
from .pipeline import STREAMS
from .traffic import Expected, Sender, payments, profiles

_PATIENCE_S = 180
_PARTITIONS = 2


class Results:
    """What came to the topics of results, each record once by its id.

    Attributes:
        scores: Payment -> its scores.
        alerts: Card -> numbers of its alerts.
        rejects: Values of the dead letters.
        again: How many messages came again.
    """

    def __init__(self, servers: str, topics: dict[str, str]) -> None:
        self.scores: dict[str, list[float]] = {}
        self.alerts: dict[str, list[int]] = {}
        self.rejects: list[str] = []
        self.again = 0
        self._seen: set[bytes] = set()
        self._streams = {topic: stream for stream, topic in topics.items()}
        self._consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "results", "enable.auto.commit": False}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0) for topic in self._streams])

    def read(self, wait_s: float) -> bool:
        """Take what is there; return whether anything was."""
        messages = self._consumer.consume(1_000, wait_s)
        for message in messages:
            if message.error() is not None:
                continue
            ((_, record_id),) = message.headers()
            if record_id in self._seen:
                self.again += 1
                continue
            self._seen.add(record_id)
            value = msgspec.json.decode(message.value())
            stream = self._streams[message.topic()]
            if stream == "scored":
                self.scores.setdefault(value["id"], []).append(value["score"])
            elif stream == "alerts":
                self.alerts.setdefault(value["card"], []).append(value["alerts"])
            else:
                self.rejects.append(str(value["value"]))
        return bool(messages)

    def close(self) -> None:
        """Read no more."""
        self._consumer.close()

    def wrong(self, expected: Expected) -> list[str]:
        """Return what differs from what must have come, a sentence each."""
        wrong = []
        scores = {payment: [score] for payment, score in expected.scores.items()}
        if self.scores != scores:
            differ = sorted(
                payment
                for payment in {*scores, *self.scores}
                if scores.get(payment) != self.scores.get(payment)
            )
            first = differ[0]
            wrong.append(
                f"{len(differ)} payments have another score: {first} has "
                f"{self.scores.get(first)}, expected {scores.get(first)}"
            )
        alerts = {card: list(range(1, n + 1)) for card, n in expected.alerts.items() if n}
        found = {card: sorted(numbers) for card, numbers in self.alerts.items()}
        if found != alerts:
            wrong.append("the alerts of cards differ")
        refused = Counter(
            payment
            for payment in expected.refused
            for text in self.rejects
            if f"'{payment}'" in text
        )
        if refused != Counter(expected.refused) or len(self.rejects) != len(expected.refused):
            wrong.append(
                f"{len(self.rejects)} dead letters, and the model refuses {len(expected.refused)}"
            )
        return wrong


class Program:
    """The pipeline's process, started, killed and started again."""

    def __init__(self, arguments: list[str]) -> None:
        self._command = [sys.executable, "-m", "millrace_examples.scoring.run", *arguments]

    def start(self) -> None:
        """Start it; it goes on where it was. Return when it runs.

        Raises:
            SystemExit: It failed.
        """
        self._process = subprocess.Popen(
            self._command,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit("the pipeline failed, see above.")

    def kill(self) -> None:
        """Kill driver, JVM and workers at once."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def drain(self) -> str:
        """Have it process what is there, and end; return what it says of its calls.

        Raises:
            SystemExit: It failed.
        """
        said, _ = self._process.communicate(timeout=_PATIENCE_S)  # ends its input
        if self._process.returncode:
            raise SystemExit("the pipeline failed, see above.")
        return said.strip()

    def close(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self.kill()


def run_demo(
    out: Path,
    kafka: str | None = None,
    seconds: float = 30,
    rate: float = 100,
    console: Console | None = None,
) -> None:
    """Run the demo.

    Args:
        out: Directory for the results; what an earlier run left there is removed.
        kafka: ``"host:port"`` of a broker; by default one is started.
        seconds: For how long there are payments.
        rate: Payments a second.
        console: Where to show it.

    Raises:
        SystemExit: What came is not what was paid.
    """
    console = console or Console()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("kafka", "checkpoint"):
        shutil.rmtree(out / name, ignore_errors=True)
    with ExitStack() as stack:
        with console.status("starting Kafka, the model and Spark"):
            servers = kafka or stack.enter_context(Broker(out / "kafka")).servers
            model = stack.enter_context(ModelServer())
            suffix = uuid4().hex[:8]
            topics = {stream: f"{stream}-{suffix}" for stream in STREAMS}
            sources = {f"{name}-{suffix}": _PARTITIONS for name in ("payments", "profiles")}
            make_topics(servers, {**sources, **dict.fromkeys(topics.values(), 1)})
            sender = Sender(servers)
            program = Program([servers, model.url, str(out), suffix])
            program.start()
            stack.callback(program.close)
            begin_us = time.time_ns() // 1000 + mr.SECOND
            known = profiles(begin_us, seed=7)
            paid = payments(begin_us, seconds, rate, seed=7)
            sender.send(f"profiles-{suffix}", known)
        results = Results(servers, topics)
        stack.callback(results.close)
        traffic = threading.Thread(target=sender.play, args=(f"payments-{suffix}", paid))
        traffic.start()
        console.print(f"{len(paid):,} payments in {seconds:g} s, each scored by a call of 20 ms")
        deadline = time.monotonic() + _PATIENCE_S
        while len(results.scores) < len(paid) // 4 and time.monotonic() < deadline:
            results.read(0.2)
        program.kill()
        console.print(f"kill -9 of the driver, after {len(results.scores):,} scores")
        program.start()
        traffic.join()
        said = program.drain()
        while results.read(2.0):
            pass
        asked = httpx.get(f"{model.url}/asked").json()
    console.print(f"after the kill: {said}")
    console.print(
        f"the model was asked {asked['requests']:,} times about {asked['keys']:,} payments; "
        f"{results.again:,} messages came again, by their ids"
    )
    if wrong := results.wrong(Expected(known, paid)):
        raise SystemExit("\n".join(wrong))
    console.print(
        f"{len(results.scores):,} scores, {sum(map(len, results.alerts.values())):,} alerts and "
        f"{len(results.rejects):,} dead letters are those of the payments, exactly once"
    )


def main() -> None:
    """Run the demo from a shell."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out/scoring"))
    parser.add_argument("--kafka", help="HOST:PORT of a broker; by default one is started")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=100)
    arguments = parser.parse_args()
    run_demo(arguments.out, arguments.kafka, arguments.seconds, arguments.rate)


if __name__ == "__main__":
    main()
