"""``millrace checkpoint copy`` and ``savepoint``: a checkpoint as it was after an epoch, kept."""

from __future__ import annotations

import click
import msgspec

from millrace import inspect
from millrace.inspect.run_end import run_end
from millrace.spark.asks import ask


@click.command("copy", short_help="Make an independent checkpoint of one.")
@click.argument("source")
@click.argument("target")
@click.option("--epoch", type=int, help="As it was after this epoch; by default after the last.")
@click.option("--journals", help="Directory for journals, of a TARGET in an object store.")
@click.option("--intervals", type=int, help="Key intervals of each computation; a power of two.")
def copy(
    source: str, target: str, epoch: int | None, journals: str | None, intervals: int | None
) -> None:
    """Make a checkpoint at TARGET of the one at SOURCE, as it was after an epoch.

    Needs no Spark, leaves SOURCE alone, and may be used while a run goes on by epochs; one in real
    time is stopped first. A run goes on from TARGET with the epoch after; give it other sinks.
    With --intervals the state is divided anew.
    """
    found = inspect.copy_checkpoint(
        source, target, epoch=epoch, journals=journals, intervals=intervals
    )
    click.echo(f"{target} is {source} after epoch {found}")


@click.command("restore", short_help="Go back to a savepoint, in place.")
@click.argument("checkpoint")
@click.option("--savepoint", "name", required=True, help="Which one; it stays.")
@click.option("--yes", is_flag=True, help="Go back though a sink keeps what it has.")
@click.option(
    "--timeout", type=click.FloatRange(0), default=3, show_default=True,
    help="Seconds to wait for the answer of a run that goes on.",
)  # fmt: skip
def restore(checkpoint: str, name: str, yes: bool, timeout: float) -> None:
    """Let CHECKPOINT go on from its savepoint NAME.

    Stop its run first. The next start goes on as the savepoint was, and reads again what came
    after. Tables by key go on; Parquet, Delta and Iceberg without a key take back what later epochs
    added. What Kafka, functions and PostgreSQL without a key were given cannot be taken back: they
    are named, and --yes accepts that.
    """
    state = inspect.state_at(checkpoint)
    generation = inspect.Checkpoint(state).overview.generation
    gone = run_end(state.mailbox, generation) is not None
    if not gone and ask(state.mailbox, "status", generation, timeout_s=timeout) is not None:
        raise click.ClickException(
            f"the run of {checkpoint} goes on. Stop it first: millrace stop {checkpoint}"
        )
    found = inspect.restore_checkpoint(checkpoint, name, accept=yes)
    click.echo(
        f"{checkpoint} is as savepoint {name} was, after epoch {found}. Sinks take back what came "
        "after it when the pipeline is started."
    )


@click.group("savepoint")
def savepoint() -> None:
    """Keep a checkpoint as it was after an epoch, under a name."""


@savepoint.command(short_help="Keep what is there now.")
@click.argument("checkpoint")
@click.argument("name")
@click.option("--epoch", type=int, help="As it was after this epoch; by default after the last.")
def add(checkpoint: str, name: str, epoch: int | None) -> None:
    """Keep CHECKPOINT as it was after an epoch in CHECKPOINT/savepoints/NAME.

    No collection touches it. `millrace checkpoint restore CHECKPOINT --savepoint NAME` goes back to
    it; `millrace checkpoint copy CHECKPOINT/savepoints/NAME TARGET` makes a checkpoint of it.
    """
    found = inspect.add_savepoint(checkpoint, name, epoch=epoch)
    click.echo(f"savepoint {name} is {checkpoint} after epoch {found}")


@savepoint.command("list", short_help="Show which there are.")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(checkpoint: str, as_json: bool) -> None:
    """Show the savepoints of CHECKPOINT, and the epoch of each."""
    found = inspect.savepoints(checkpoint)
    if as_json:
        click.echo(msgspec.json.encode(found).decode())
        return
    for name, epoch in found.items():
        click.echo(f"{name}  epoch {epoch}")


@savepoint.command(short_help="Remove one.")
@click.argument("checkpoint")
@click.argument("name")
def remove(checkpoint: str, name: str) -> None:
    """Remove the savepoint NAME of CHECKPOINT."""
    inspect.remove_savepoint(checkpoint, name)
    click.echo(f"savepoint {name} is gone")
