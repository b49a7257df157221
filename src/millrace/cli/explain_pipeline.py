"""``millrace explain``: how a pipeline runs, from the code that makes it."""

from __future__ import annotations

import click

from millrace.spark.application import pipeline_at


@click.command("explain", short_help="Show how a pipeline runs.")
@click.argument("pipeline", metavar="APP")
def explain(pipeline: str) -> None:
    """Print the stages of a pipeline, what is fused into them, its edges, keys and windows.

    APP is package.module:NAME or path/to/module.py:NAME, where NAME is a pipeline, or a function
    that returns one when it is called without arguments. Modules are looked for in the current
    directory too. Starts no Spark.
    """
    click.echo(str(pipeline_at(pipeline, "explain").explain()))


__all__ = ["explain"]
