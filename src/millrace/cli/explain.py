"""``millrace explain-watermark``: what a low watermark waits for, from the checkpoint alone."""

from __future__ import annotations

import click
import msgspec

from millrace import inspect


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
