"""``millrace status``, ``stop`` and ``drain``: asked of a run by way of its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from millrace.cli.checkpoint import show
from millrace.inspect import Checkpoint, state_at
from millrace.model.errors import StoreError
from millrace.model.time import SECOND
from millrace.spark.plain_text import in_words
from millrace.spark.requests import ask

_Command = Callable[..., None]


def _timeout(default: int) -> Callable[[_Command], _Command]:
    return click.option(
        "--timeout", type=click.FloatRange(0), default=default, show_default=True,
        help="Seconds to wait for the run's answer.",
    )  # fmt: skip


@click.command(short_help="Say where a run stands, live or dead.")
@click.argument("path")
@_timeout(3)
@click.pass_context
def status(context: click.Context, path: str, timeout: float) -> None:
    """Say where the run of the checkpoint at PATH stands.

    A run that goes on answers itself, from whatever host. Where none does, this is what the
    checkpoint says, and the exit code is 3. The question is put into the checkpoint, which must be
    writable for it; `millrace checkpoint show` writes nothing.
    """
    state = state_at(path)
    found = Checkpoint(state)
    try:
        answer = ask(state.mailbox, "status", found.overview.generation, timeout_s=timeout)
    except StoreError as error:
        answer = None
        click.echo(f"The run cannot be asked: {error}")
    if answer is not None and answer.done:
        click.echo(answer.said)
        return
    click.echo(_silence(found, timeout))
    context.invoke(show, path=path, as_json=False)
    context.exit(3)


@click.command(short_help="Stop a run.")
@click.argument("path")
@_timeout(90)
def stop(path: str, timeout: float) -> None:
    """Stop the run of the checkpoint at PATH, as Ctrl-C in its program does.

    The epoch under way is finished, or in real time a last mark is made. A later run with the same
    checkpoint goes on where it stood.
    """
    _end(path, "stop", timeout)


@click.command(short_help="End a run's input, and the run.")
@click.argument("path")
@_timeout(600)
def drain(path: str, timeout: float) -> None:
    """End the input of the run of the checkpoint at PATH.

    Every low watermark goes to the end of time, what waits for it fires, and the run ends. No later
    run goes on with the checkpoint.
    """
    _end(path, "drain", timeout)


def _end(path: str, what: str, timeout: float) -> None:
    state = state_at(path)
    found = Checkpoint(state)
    if found.overview.drained:
        raise click.ClickException(f"the run of {path} was drained: it has ended for good.")
    answer = ask(state.mailbox, what, found.overview.generation, timeout_s=timeout)
    if answer is None:
        raise click.ClickException(
            f"{_silence(found, timeout)} The request to {what} it was taken back; a run that was "
            "just taking it may still do it."
        )
    if not answer.done:
        raise click.ClickException(f"the run did not {what}: {answer.said}.")
    click.echo(f"{answer.said} after epoch {answer.epoch}")


def _silence(found: Checkpoint, timeout: float) -> str:
    overview = found.overview
    if overview.drained:
        return "The run was drained: its input has ended, and all results are out."
    said = f"No run answers within {in_words(round(timeout * SECOND))}"
    if overview.wall_time is None:
        return f"{said}; no epoch has completed yet."
    ago = in_words(max(0, time.time_ns() // 1000 - overview.wall_time))
    return f"{said}; the last epoch, {overview.epoch}, was {ago} ago."
