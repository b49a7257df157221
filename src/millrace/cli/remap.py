"""``millrace remap``: key intervals of a checkpoint, split and merged in place."""

from __future__ import annotations

import click
import msgspec

from millrace import inspect
from millrace.cli.requests import asked, timeout_option
from millrace.spark.asks import RemapAsked

_PAIR = click.Tuple([int, int])


@click.command(short_help="Split and merge key intervals.")
@click.argument("path", metavar="CHECKPOINT")
@click.argument("computation")
@click.option("--split", "splits", type=int, multiple=True, help="An interval that is to be two.")
@click.option("--at", type=int, help="Of one --split: the lowest hash of the second; else half.")
@click.option("--merge", "merges", type=_PAIR, multiple=True, help="Two neighbours, by their ids.")
@click.option("--stopped", is_flag=True, help="No run has the checkpoint: do it here.")
@timeout_option(90)
def remap(
    path: str,
    computation: str,
    splits: tuple[int, ...],
    at: int | None,
    merges: tuple[tuple[int, int], ...],
    stopped: bool,
    timeout: float,
) -> None:
    """Split and merge key intervals of a COMPUTATION, in the run of CHECKPOINT, between two epochs.

    Without options it lists them: id, lowest and highest hash, commits. What they keep goes with
    their keys, and no low watermark moves. With --stopped it is done here; a run that goes on all
    the same is superseded, and ends. A run in real time stands still for some seconds.
    """
    if at is not None and len(splits) != 1:
        raise click.UsageError("--at is of one --split.")
    wanted = RemapAsked(computation, [(one, at) for one in splits], [*merges])
    if not wanted.remaps():
        for one in inspect.open_checkpoint(path)[computation].intervals:
            click.echo(f"{one.id:6}  {one.start:20} to {one.end - 1:20}  commit {one.commit:,}")
        return
    if stopped:
        count = inspect.remap_checkpoint(path, computation, wanted.remaps())
        click.echo(f"{computation} has {count} key intervals")
        return
    answer = asked(path, "remap", timeout, msgspec.json.encode(wanted).decode())
    if not answer.done:
        raise click.ClickException(f"the run did not remap: {answer.said}")
    click.echo(answer.said)
