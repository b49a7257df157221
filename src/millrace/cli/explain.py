"""``millrace explain-watermark``: what a low watermark waits for, from the checkpoint alone.

``millrace explain``: how a pipeline runs, from the code that makes it.

``millrace plan``: what a start would do with a checkpoint, before anything is started.
"""

from __future__ import annotations

import click
import msgspec

from millrace import inspect
from millrace.spark.application import pipeline_at


@click.command("explain-watermark", short_help="Say what a low watermark waits for.")
@click.argument("path")
@click.argument("computation", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, times in microseconds.")
def explain_watermark(path: str, computation: str | None, as_json: bool) -> None:
    """Say what pins the low watermark of COMPUTATION in the checkpoint at PATH.

    By default it is the computation whose low watermark is lowest. The answer names the injector
    and its process, or the key and its timer or hold, and for how long it has stood still. Needs no
    Spark, writes nothing, and may be used while a run goes on.
    """
    found = inspect.explain_watermark(inspect.state_at(path), computation)
    if as_json:
        encoded = msgspec.json.encode(found, enc_hook=repr)
        click.echo(msgspec.json.format(encoded, indent=2))
    else:
        click.echo(str(found))


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


@click.command("plan", short_help="Show what a changed pipeline would do with a checkpoint.")
@click.argument("app", metavar="APP")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def plan(context: click.Context, app: str, checkpoint: str, as_json: bool) -> None:
    """Print what becomes of each part of CHECKPOINT when the pipeline APP goes on with it.

    APP is package.module:NAME or path/to/module.py:NAME, as for `millrace explain`. Writes nothing
    and needs no Spark, and may be asked while a run goes on: it is of the last epoch that has
    completed, whether or not another one is under way. Exit code 0: nothing is refused. 3:
    something is, and so would a start be. 1: there is no such pipeline or checkpoint.
    """
    found = pipeline_at(app, "plan").plan(checkpoint)
    if as_json:
        plain = {
            "pipeline": found.pipeline,
            "epoch": found.epoch,
            "under_way": found.under_way,
            "waiting": [one.where for one in found.waiting],
            "refused": len(found.refused),
            "changes": [
                {"kind": one.kind, "where": one.where, "why": one.why, "way": one.way}
                for one in found.changes
            ],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
    else:
        click.echo(str(found))
    context.exit(3 if found.refused else 0)
