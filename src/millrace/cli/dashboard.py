"""``millrace dashboard``: a page in the browser for a checkpoint, whether its run lives or not."""

from __future__ import annotations

import click

from millrace.dashboard import Dashboard
from millrace.inspect import state_at
from millrace.spark.asks import ask


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

    It shows the graph with what holds the low watermark, event time against processing time, key
    intervals by load and lag, panes, the state of a key, and where user code hangs; live, and as it
    was left when the run is gone. Without a token it only shows. Who is on this host sees the
    options of a command, so a token is better given by the environment.
    """
    with Dashboard(state_at(path), path, ask, port=port, host=host, token=token or None) as served:
        click.echo(f"{path} is at {served.url}" + (" (read-only)" if not token else ""))
        click.echo("Ctrl-C ends it.")
        try:
            served.wait()
        except KeyboardInterrupt:
            click.echo("")
