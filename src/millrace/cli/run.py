"""``millrace run``: a pipeline from its file, on a Spark of its own, until it is stopped.

``millrace dashboard``: a page in the browser for a checkpoint, whether its run lives or not.

``millrace metrics``: what goes with the metrics of a run.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from millrace.cli.task_numbers import least_of, task_numbers
from millrace.dashboard import Dashboard
from millrace.inspect import state_at
from millrace.model.errors import LeaseReleased, MillraceError, PipelineError, ZombieWriter
from millrace.spark import realtime_settings
from millrace.spark.application import check_named, pipeline_at
from millrace.spark.asks import ask
from millrace.spark.connect import is_connect
from millrace.spark.metrics.grafana import board
from millrace.spark.session import session

if TYPE_CHECKING:
    from millrace.pipeline import Pipeline

#: What :func:`~millrace.spark.realtime_settings` takes by default.
_REALTIME_TASKS = 2

_GO_ON = (
    "Nothing is lost, and nothing happens twice: when that is mended, the same command goes on "
    "with the epoch that failed."
)
#: Where Spark draws a bar, a table cannot be drawn, and in a log it is in the way.
_QUIET = {"spark.ui.showConsoleProgress": "false"}
_UNBEGUN = "interrupted while it started. Nothing is lost: the same command starts it."
_CUT_OFF = (
    "ended at once, in the middle of its work. Nothing is lost, and nothing happens twice: the "
    "same command goes on."
)
_NEXT = {
    "stopped": "The same command goes on from there.",
    "drained": "All results are out; to run it again takes a new checkpoint.",
}


@click.command(short_help="Run a pipeline until it is stopped.")
@click.argument("pipeline", metavar="APP")
@click.option("--checkpoint", required=True, help="A directory, or s3://, gs:// or az://.")
@click.option("--master", help="Spark's, or sc://HOST:PORT; else spark-submit's, or local[*].")
@click.option("--realtime", is_flag=True, help="On tasks that do not end.")
@click.option("--standby-tasks", is_flag=True,
              help="With --realtime: all tasks twice, to take over at once.")  # fmt: skip
@click.option("--standby", is_flag=True,
              help="Wait while another such command runs it, and take over.")  # fmt: skip
@click.option("--lease", metavar="TIME", default=None,
              help="With --standby: after so long of silence; 2 s, in a bucket 30 s.")  # fmt: skip
@click.option("--tasks", type=task_numbers, metavar="N|LEAST-MOST",
              help="Tasks a level; of two numbers their number follows the load.")  # fmt: skip
@click.option("--metrics", help="A port, or HOST:PORT, where Prometheus may ask.")
@click.option(
    "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark's; may be repeated."
)
@click.option("--drain", is_flag=True, help="Process what is there, end the input, and end.")
@click.pass_context
def run(
    context: click.Context,
    pipeline: str,
    checkpoint: str,
    master: str | None,
    realtime: bool,
    standby_tasks: bool,
    standby: bool,
    lease: str | None,
    tasks: int | tuple[int, int] | None,
    metrics: str | None,
    conf: tuple[str, ...],
    drain: bool,
) -> None:
    """Run a pipeline until it is stopped: by Ctrl-C, SIGTERM, or `millrace stop`.

    APP is package.module:NAME or path/to/module.py:NAME, where NAME is a pipeline, or a function
    that returns one; a parameter `spark` of it is given the session. On a terminal a line says how
    far it is, with a table of the computations below, in a log a line every 30 seconds. Ctrl-C
    twice ends it at once. With --standby the same command may be given on several hosts: one runs
    it, and when that one dies or fails another does. Exit code 0: it was stopped, or drained; 1: it
    failed, or was ended at once, and the last words say why.
    """
    options: dict[str, Any] = {"progress": "table"}
    if realtime:
        options["realtime"] = True
    if standby_tasks:
        options["standby"] = True
    if tasks is not None:
        options["tasks"] = tasks
    if metrics is not None:
        options["metrics"] = metrics
    if lease is not None and not standby:
        raise click.UsageError("--lease is of --standby, which is not given")
    if standby:
        options["lease"] = lease or True
    check_named(pipeline)  # a Spark takes some seconds to start, only to hear that it is misspelt
    needed = realtime_settings(least_of(tasks or _REALTIME_TASKS)) if realtime else {}
    settings = {**_QUIET, **needed, **dict(map(_setting, conf))}
    at = "" if master is None else f" on {master}"
    click.echo(f"{pipeline}: Spark is started{at}, which takes some seconds", err=True)
    try:
        spark = session(pipeline, master, settings)
        described = pipeline_at(pipeline, "run", spark=spark)
        ui = None if is_connect(spark) else spark.sparkContext.uiWebUrl
        at = f"; Spark's UI is at {ui}" if ui else ""
    except KeyboardInterrupt:
        raise click.ClickException(_UNBEGUN) from None
    _run(context, described, spark, checkpoint, options, drain=drain, at=at)


def _run(
    context: click.Context,
    pipeline: Pipeline,
    spark: Any,
    checkpoint: str,
    options: dict[str, Any],
    *,
    drain: bool,
    at: str,
) -> None:
    """Start a run, wait until it ends, and say how it did."""
    begins = f"{pipeline.name}: begins, or goes on, with checkpoint {checkpoint}{at}"
    waits = f"{pipeline.name}: waits for the lease of {checkpoint}"
    click.echo(waits if "lease" in options else begins, err=True)
    try:
        started = pipeline.start(spark, checkpoint=checkpoint, **options)
        if "lease" in options:
            click.echo(begins, err=True)
    except KeyboardInterrupt:
        # From here on the run takes the signal itself, and finishes its epoch.
        raise click.ClickException(_UNBEGUN) from None
    except LeaseReleased:
        click.echo(f"{pipeline.name}: the run that had the lease was ended, so this ends too.")
        return
    try:
        if not drain:
            started.wait()
        elif started.process_available():
            started.drain()
        status = started.status()
    except KeyboardInterrupt:
        raise click.ClickException(_CUT_OFF) from None
    except ZombieWriter:
        raise  # another run goes on: there is nothing to do
    except MillraceError as error:
        if context.find_root().params.get("debug"):
            raise
        raise click.ClickException(f"{error}\n\n{_GO_ON}") from error
    click.echo(f"{pipeline.name}: {status.state} after epoch {status.epoch}. {_NEXT[status.state]}")


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise PipelineError(
            f"--conf {text!r}: expected NAME=VALUE, such as spark.sql.shuffle.partitions=4."
        )
    return name, value


@click.command(short_help="Show a run in the browser, live or dead.")
@click.argument("path")
@click.option("--port", type=click.IntRange(0, 65535), default=8700, show_default=True,
              help="0: any that is free.")  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True,
              help="The interface; others than loopback take a token.")  # fmt: skip
@click.option("--token", envvar="MILLRACE_DASHBOARD_TOKEN", show_envvar=True,
              help="Who shows it may act on the run; at least 16 characters.")  # fmt: skip
def dashboard(path: str, port: int, host: str, token: str | None) -> None:
    """Serve a page that shows the run of the checkpoint at PATH, until Ctrl-C.

    It shows the graph with the cause of the low watermark, event time against processing time, key
    intervals by load and lag, panes, the state of a key, and hanging user code; of a live run, or
    as the last one left it. Without a token the page is read-only. Other users of this host can see
    a command's options, so give the token by the environment.
    """
    with Dashboard(state_at(path), path, ask, port=port, host=host, token=token or None) as served:
        click.echo(f"{path} is at {served.url}" + (" (read-only)" if not token else ""))
        click.echo("Ctrl-C ends it.")
        try:
            served.wait()
        except KeyboardInterrupt:
            click.echo("")


@click.group()
def metrics() -> None:
    """Print a board for the metrics of runs."""


@metrics.command(short_help="Print a board for Grafana.")
def grafana() -> None:
    """Print a board for Grafana as JSON, to be imported there.

    It shows throughput, low watermarks, backlog, latency, state and trouble of the pipelines that
    are chosen at its head.
    """
    click.echo(json.dumps(board(), indent=2))
