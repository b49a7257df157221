"""``millrace``: the commands put together, and how an error is said.

An error that Millrace raises on purpose says what to do next, so it is printed as it is, without a
traceback, and the exit code is 1. ``--debug`` shows the traceback.
"""

from __future__ import annotations

from typing import Any

import click

from millrace.cli.checkpoint import checkpoint
from millrace.cli.demo import demo
from millrace.cli.explain import dead_letters, explain, explain_watermark, plan
from millrace.cli.new import new
from millrace.cli.plots import panes, plot
from millrace.cli.requests import (
    drain,
    fire,
    pause,
    rate_limit,
    remap,
    resume,
    savepoint,
    snapshot,
    status,
    stop,
    update,
)
from millrace.cli.run import dashboard, metrics, run
from millrace.cli.state import state
from millrace.model.distribution import version
from millrace.model.errors import MillraceError


class _Commands(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; turn Millrace's own errors into one message."""
        try:
            return super().invoke(ctx)
        except MillraceError as error:
            if ctx.params.get("debug"):
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(version(), prog_name="millrace")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def main(debug: bool) -> None:
    """Stateful stream processing on Apache Spark: MillWheel's model in Python."""


main.add_command(checkpoint)
main.add_command(dashboard)
main.add_command(dead_letters)
main.add_command(demo)
main.add_command(drain)
main.add_command(explain)
main.add_command(explain_watermark)
main.add_command(metrics)
main.add_command(new)
main.add_command(panes)
main.add_command(fire)
main.add_command(pause)
main.add_command(plan)
main.add_command(plot)
main.add_command(rate_limit)
main.add_command(remap)
main.add_command(resume)
main.add_command(run)
main.add_command(savepoint)
main.add_command(snapshot)
main.add_command(state)
main.add_command(status)
main.add_command(stop)
main.add_command(update)
