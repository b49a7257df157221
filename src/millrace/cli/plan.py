"""``millrace plan``: what a start would do with a checkpoint, before anything is started."""

from __future__ import annotations

import click
import msgspec

from millrace.spark.application import pipeline_at


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
