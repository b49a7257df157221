"""The demo: a live game through Kafka in real time, with a worker killed in the middle.

A process plays, and sends scores to a topic. The pipeline reads them and sends reports to others.
The demo reads those, shows them while they come, and in the end compares what they come to with the
scores that were sent.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import msgspec
import pandas as pd
from rich.console import Console
from rich.live import Live

import millrace as mr
from millrace_examples.kafka.broker import Broker, make_topics
from millrace_examples.local_spark import session

from . import picture, screen
from .kill import Kill
from .pipeline import SCORES_SCHEMA, STREAMS, build
from .player import Play
from .reports import Reader, Reports, signed

_TASKS = 2
_LEVELS = 2  # totals, and the board of them
_PATIENCE_S = 60
#: On a terminal, and elsewhere.
_LOOK_EVERY_S, _LINE_EVERY_S = 0.25, 5.0


def run_demo(
    out: Path,
    kafka: str | None = None,
    seconds: float = 60,
    rate: float = 200,
    console: Console | None = None,
) -> None:
    """Run the demo; show what comes, and write ``latency.png``.

    Args:
        out: Directory for the results; what an earlier run left there is removed.
        kafka: ``"host:port"`` of a broker; by default one is started.
        seconds: For how long the game is played.
        rate: Scores a second, about.
        console: Where to show it.

    Raises:
        SystemExit: What the reports come to is not what was played.
    """
    console = console or Console()
    # That a worker is gone, and that scores are late, is logged. Here it is what it is all about.
    logging.getLogger("millrace").setLevel(logging.ERROR)
    out.mkdir(parents=True, exist_ok=True)
    for name in ("kafka", "checkpoint"):
        shutil.rmtree(out / name, ignore_errors=True)
    with ExitStack() as stack:
        with console.status("starting Kafka and Spark"):
            servers = kafka or stack.enter_context(Broker(out / "kafka")).servers
            settings = mr.spark.realtime_settings(tasks=_TASKS)
            spark = session("leaderboard", out, slots=_TASKS * (_LEVELS + 1) + 1, settings=settings)
            stack.callback(spark.stop)
            some = uuid4().hex[:8]
            scores, topics = f"scores-{some}", {stream: f"{stream}-{some}" for stream in STREAMS}
            make_topics(servers, {scores: _TASKS, **dict.fromkeys(topics.values(), 1)})
            source = mr.sources.Kafka(servers, scores, schema=SCORES_SCHEMA)
            pipeline = build(source, lambda to: mr.sinks.Kafka(servers, topics[to], encode=signed))
            checkpoint = str(out / "checkpoint")
            run = pipeline.start(spark, checkpoint=checkpoint, realtime=True, progress=False)
            stack.callback(run.stop)
            run.process_available()
        reports = Reports()
        stack.callback(Reader(servers, topics, reports).finish)
        game = Play(servers, scores, _now_us() + 2 * mr.SECOND, seconds, rate)
        played = game.scores()
        kill = Kill(reports, game.begin_us + round(game.seconds * mr.SECOND) // 2)
        watch(game, played, reports, kill, console)
        # The last streaks end by themselves, by the wall clock.
        deadline = time.monotonic() + _PATIENCE_S
        while reports.streaks.total() < played["points"].sum() and time.monotonic() < deadline:
            time.sleep(0.1)
        run.process_available()
        run.drain()
    picture.draw(reports, game.begin_us, kill, out)
    for sentence in screen.summary(reports, played, kill):
        console.print(sentence, highlight=False, soft_wrap=True)
    console.print(f"\n{out / picture.FILE}", soft_wrap=True)
    if wrong := reports.wrong(played):
        raise SystemExit("\n".join(wrong))
    console.print(
        "all totals, boards and streaks are those of the scores that were sent, exactly once"
    )


def watch(game: Play, played: pd.DataFrame, reports: Reports, kill: Kill, console: Console) -> None:
    """Have the game played, show what comes, and kill a worker when it is time.

    Raises:
        SystemExit: Kafka did not take all scores.
    """
    sent_us, said_s = played["arrived"].to_numpy(), time.monotonic()
    command = [sys.executable, "-m", "millrace_examples.leaderboard.realtime.player"]
    with ExitStack() as stack:
        live = None
        if console.is_terminal:
            live = stack.enter_context(Live(console=console, auto_refresh=False))
        # In a session of its own Ctrl-C does not reach it.
        player = subprocess.Popen([*command, msgspec.json.encode(game)], start_new_session=True)
        stack.callback(player.wait)
        stack.callback(player.kill)
        while player.poll() is None:
            time.sleep(_LOOK_EVERY_S)
            now_us = _now_us()
            kill.look(now_us)
            moment = screen.look(reports, sent_us, game.begin_us, now_us, kill.words(now_us))
            if live is not None:
                live.update(screen.view(moment), refresh=True)
            elif time.monotonic() - said_s > _LINE_EVERY_S:
                said_s = time.monotonic()
                console.print(screen.line(moment), highlight=False, soft_wrap=True)
    if player.returncode:
        raise SystemExit("the player failed, see above.")


def _now_us() -> int:
    return time.time_ns() // 1000
