"""``millrace status``, ``stop``, ``drain`` and others: asked of a run, through its checkpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import click
import msgspec

from millrace import inspect
from millrace.cli.checkpoint import show
from millrace.cli.task_numbers import task_numbers
from millrace.inspect import Checkpoint, state_at
from millrace.inspect.json_text import keys_of
from millrace.inspect.overview import run_end
from millrace.model.errors import StoreError
from millrace.model.keys import encode_key
from millrace.model.time import SECOND
from millrace.spark.asks import Answer, CallAsked, RemapAsked, UpdateAsked, ask
from millrace.spark.plain_text import in_words

_Command = Callable[..., None]
_PAIR = click.Tuple([int, int])


def timeout_option(default: int) -> Callable[[_Command], _Command]:
    """Return the option that says how long to wait for a run's answer."""
    return click.option(
        "--timeout", type=click.FloatRange(0), default=default, show_default=True,
        help="Seconds to wait for the run's answer.",
    )  # fmt: skip


@click.command(short_help="Say where a run stands, live or dead.")
@click.argument("path")
@timeout_option(6)
@click.pass_context
def status(context: click.Context, path: str, timeout: float) -> None:
    """Show the status of the run of the checkpoint at PATH.

    A live run answers itself, from any host. Without an answer the command shows what the
    checkpoint has, such as when the run was stopped, and the exit code is 3. The request is written
    to the checkpoint, which must be writable; `millrace checkpoint show` writes nothing.
    """
    state = state_at(path)
    checkpoint = Checkpoint(state)
    end = run_end(state.mailbox, checkpoint.overview.generation)
    if end is not None:
        click.echo(end)
        context.invoke(show, path=path, as_json=False)
        context.exit(3)
    try:
        answer = ask(state.mailbox, "status", checkpoint.overview.generation, timeout_s=timeout)
    except StoreError as error:
        answer = None
        click.echo(f"The run cannot be asked: {error}")
    if answer is not None and answer.done:
        click.echo(answer.text)
        return
    click.echo(_silence(checkpoint, timeout))
    context.invoke(show, path=path, as_json=False)
    context.exit(3)


@click.command(short_help="Stop a run.")
@click.argument("path")
@timeout_option(90)
def stop(path: str, timeout: float) -> None:
    """Stop the run of the checkpoint at PATH, as Ctrl-C in its program does.

    The epoch under way is finished, or in real time a last mark is made. A later run with the same
    checkpoint goes on where it stood.
    """
    _end(path, "stop", timeout)


@click.command(short_help="End a run's input, and the run.")
@click.argument("path")
@timeout_option(600)
def drain(path: str, timeout: float) -> None:
    """End the input of the run of the checkpoint at PATH.

    Every low watermark goes to the end of time, pending timers fire, and the run ends. No later run
    can use the checkpoint.
    """
    _end(path, "drain", timeout)


@click.command(short_help="Let a changed pipeline take over from a run.")
@click.argument("app", metavar="APP")
@click.argument("path", metavar="CHECKPOINT")
@click.option("--tasks", type=task_numbers, metavar="N|LEAST-MOST",
              help="Tasks a level, if others than before.")  # fmt: skip
@click.option("--realtime/--epochs", default=None, help="The plane, if another than before.")
@timeout_option(300)
@click.pass_context
def update(
    context: click.Context,
    app: str,
    path: str,
    tasks: int | tuple[int, int] | None,
    realtime: bool | None,
    timeout: float,
) -> None:
    """Let the pipeline APP take over from the run of CHECKPOINT, as run.update() does.

    APP is package.module:NAME or path/to/module.py:NAME, as for `millrace run`. The run's driver
    imports it, so the code must be on the driver's host. If the change is refused, or the changed
    pipeline does not start, the old one continues and the exit code is 3. `millrace plan` shows
    beforehand what would be refused.
    """
    name, colon, attribute = app.rpartition(":")
    if name.endswith(".py"):
        app = f"{Path(name).resolve()}{colon}{attribute}"
    given = {"tasks": tasks, "realtime": realtime}
    options = {option: value for option, value in given.items() if value is not None}
    about = msgspec.json.encode(UpdateAsked(app, options)).decode()
    answer = asked(path, "update", timeout, about)
    if not answer.done:
        click.echo(f"not updated: {answer.text}", err=True)
        context.exit(3)
    click.echo(answer.text)


@click.command(short_help="Fire windows now.")
@click.argument("path")
@click.argument("name")
@click.argument("keys", nargs=-1)
@timeout_option(90)
def fire(path: str, name: str, keys: tuple[str, ...], timeout: float) -> None:
    """Fire the triggers OnCall(NAME) of the run at PATH, for some KEYS or for all.

    A key is text, or JSON such as 7 or ["ann",7]; 7 means both the number and the text. Each window
    with new records since its last pane emits one pane.
    """
    encoded = [encode_key(each).hex() for key in keys for each in keys_of(key)]
    answer = asked(path, "fire", timeout, msgspec.json.encode(CallAsked(name, encoded)).decode())
    if not answer.done:
        raise click.ClickException(f"the run did not fire: {answer.text}")
    click.echo(f"{answer.text}, after epoch {answer.epoch}")


@click.command(short_help="Pause a stream.")
@click.argument("path")
@click.argument("stream")
@timeout_option(90)
def pause(path: str, stream: str, timeout: float) -> None:
    """Pause reading of the injected STREAM in the run of the checkpoint at PATH.

    Its records stay at the source, and low watermarks wait, until `millrace resume` or the next
    run. It works for streams that an injector reads, such as Kafka.
    """
    _act(path, "pause", stream, timeout)


@click.command(short_help="Resume a stream.")
@click.argument("path")
@click.argument("stream")
@timeout_option(90)
def resume(path: str, stream: str, timeout: float) -> None:
    """Read the injected STREAM again, without a limit, in the run of the checkpoint at PATH."""
    _act(path, "resume", stream, timeout)


@click.command("rate-limit", short_help="Limit the rate of a stream.")
@click.argument("path")
@click.argument("stream")
@click.argument("records", type=click.FloatRange(0, min_open=True))
@timeout_option(90)
def rate_limit(path: str, stream: str, records: float, timeout: float) -> None:
    """Limit the injected STREAM to an average of RECORDS a second; see `pause`.

    An epoch reads as many records as without a limit, and later ones none until the average is back
    at the limit. `millrace resume` removes it.
    """
    _act(path, "rate-limit", f"{stream}={records!r}", timeout)


@click.command(short_help="Make a savepoint.")
@click.argument("path")
@click.argument("name")
@timeout_option(600)
def savepoint(path: str, name: str, timeout: float) -> None:
    """Make a savepoint NAME of the checkpoint at PATH, through its run, which continues.

    Without a run, `millrace checkpoint savepoint add` does the same. To start from a savepoint,
    copy it: `millrace checkpoint copy PATH/savepoints/NAME TARGET`.
    """
    click.echo(_done(path, "savepoint", name, timeout).text)


@click.command(short_help="Make a savepoint named by its epoch.")
@click.argument("path")
@timeout_option(600)
def snapshot(path: str, timeout: float) -> None:
    """Keep the checkpoint at PATH, as its run has it now, as savepoint epoch-N."""
    click.echo(_done(path, "snapshot", "", timeout).text)


def _act(path: str, request: str, about: str, timeout: float) -> None:
    answer = _done(path, request, about, timeout)
    click.echo(f"{answer.text}, after epoch {answer.epoch}")


def _done(path: str, request: str, about: str, timeout: float) -> Answer:
    answer = asked(path, request, timeout, about)
    if not answer.done:
        raise click.ClickException(f"the run did not {request}: {answer.text}")
    return answer


def _end(path: str, request: str, timeout: float) -> None:
    answer = asked(path, request, timeout)
    if not answer.done:
        raise click.ClickException(f"the run did not {request}: {answer.text}.")
    click.echo(f"{answer.text} after epoch {answer.epoch}")


@click.command(short_help="Split and merge key intervals.")
@click.argument("path", metavar="CHECKPOINT")
@click.argument("computation")
@click.option(
    "--split", "splits", type=int, multiple=True, help="Id of an interval to split in two."
)
@click.option("--at", type=int, help="With one --split: lowest hash of the second half.")
@click.option("--merge", "merges", type=_PAIR, multiple=True, help="Ids of two neighbours.")
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

    Without options it lists them: id, lowest and highest hash, commits. State moves with its keys,
    and no low watermark changes. With --stopped this command does it; a run that is live all the
    same is superseded, and ends. A run in real time pauses for some seconds.
    """
    if at is not None and len(splits) != 1:
        raise click.UsageError("--at is of one --split.")
    wanted = RemapAsked(computation, [(split, at) for split in splits], [*merges])
    if not wanted.remaps():
        for interval in inspect.open_checkpoint(path)[computation].intervals:
            click.echo(
                f"{interval.id:6}  {interval.start:20} to {interval.end - 1:20}  "
                f"commit {interval.commit:,}"
            )
        return
    if stopped:
        count = inspect.remap_checkpoint(path, computation, wanted.remaps())
        click.echo(f"{computation} has {count} key intervals")
        return
    answer = asked(path, "remap", timeout, msgspec.json.encode(wanted).decode())
    if not answer.done:
        raise click.ClickException(f"the run did not remap: {answer.text}")
    click.echo(answer.text)


def asked(path: str, request: str, timeout: float, about: str = "") -> Answer:
    """Ask the run of a checkpoint for something; return its answer, or say that none came."""
    state = state_at(path)
    checkpoint = Checkpoint(state)
    if checkpoint.overview.drained:
        raise click.ClickException(f"the run of {path} was drained: it has ended for good.")
    generation = checkpoint.overview.generation
    end = run_end(state.mailbox, generation)
    if end is not None:
        raise click.ClickException(f"{end} There is no run to {request}.")
    answer = ask(state.mailbox, request, generation, about=about, timeout_s=timeout)
    if answer is None:
        raise click.ClickException(
            f"{_silence(checkpoint, timeout)} The request to {request} it was taken back; "
            "a run that was just taking it may still do it."
        )
    return answer


def _silence(checkpoint: Checkpoint, timeout: float) -> str:
    overview = checkpoint.overview
    if overview.drained:
        return "The run was drained: its input has ended, and all results are out."
    said = f"No run answers within {in_words(round(timeout * SECOND))}"
    if overview.wall_time is None:
        return f"{said}; no epoch has completed yet."
    ago = in_words(max(0, time.time_ns() // 1000 - overview.wall_time))
    return f"{said}; the last epoch, {overview.epoch}, was {ago} ago."
