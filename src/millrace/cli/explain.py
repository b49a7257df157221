"""``millrace explain-watermark``: what a low watermark waits for, from the checkpoint alone.

``millrace explain``: how a pipeline runs, from the code that makes it.

``millrace plan``: what a start would do with a checkpoint, before anything is started.

``millrace dead-letters``: why records became dead letters, and those of them sent again.
"""

from __future__ import annotations

import click
import msgspec

from millrace import inspect
from millrace.inspect import as_json, key_value, open_checkpoint, send_dead_letters, state_at
from millrace.inspect.dead_letters import LetterCounts, letter_counts
from millrace.inspect.overview import reasons_of
from millrace.kernel.user_errors import Counted, commonest, total
from millrace.model.time import format_timestamp
from millrace.spark.application import pipeline_at


@click.command("explain-watermark", short_help="Say what a low watermark waits for.")
@click.argument("path")
@click.argument("computation", required=False)
@click.option("--json", "as_json_", is_flag=True, help="Print JSON, times in microseconds.")
def explain_watermark(path: str, computation: str | None, as_json_: bool) -> None:
    """Say what pins the low watermark of COMPUTATION in the checkpoint at PATH.

    By default it is the computation whose low watermark is lowest. The answer names the injector
    and its process, or the key and its timer or hold, and for how long it has stood still. Needs no
    Spark, writes nothing, and may be used while a run goes on.
    """
    explanation = inspect.explain_watermark(inspect.state_at(path), computation)
    if as_json_:
        pin = msgspec.structs.replace(
            explanation.pin, key=key_value(explanation.pin.key), tag=key_value(explanation.pin.tag)
        )
        encoded = as_json(msgspec.structs.replace(explanation, pin=pin))
        click.echo(msgspec.json.format(encoded, indent=2))
    else:
        click.echo(str(explanation))


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
    plan = pipeline_at(app, "plan").plan(checkpoint)
    if as_json:
        plain = {
            "pipeline": plan.pipeline,
            "epoch": plan.epoch,
            "under_way": plan.under_way,
            "waiting": [awaited.where for awaited in plan.waiting],
            "refused": len(plan.refused),
            "changes": [
                {"kind": change.kind, "where": change.where, "why": change.why, "way": change.way}
                for change in plan.changes
            ],
        }
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
    else:
        click.echo(str(plan))
    context.exit(3 if plan.refused else 0)


@click.command("dead-letters", short_help="Say why records became dead letters; send them again.")
@click.argument("checkpoint")
@click.option(
    "--send", "letters", metavar="PATH",
    help="Send the letters again that their sink has there: a Parquet directory, a Delta table.",
)  # fmt: skip
@click.option("--reason", help="With --send: only those of this reason, or with it in their text.")
@click.option("--limit", type=click.IntRange(1), help="With --send: so many, at the most.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dead_letters(
    checkpoint: str, letters: str | None, reason: str | None, limit: int | None, as_json: bool
) -> None:
    """List the dead letters of CHECKPOINT by reason, the most frequent first, with one of each.

    The counts are since the beginning, up to the last completed epoch. The dead letters themselves
    are in the sink of the dead-letter stream; `raw` is the original record, and `place` its
    position in the source. Needs no Spark, writes nothing, and works beside a run.

    --send sends them again, once the code is mended: each once, however often the command is
    repeated, to the computation that failed. The run of CHECKPOINT processes them, or the next one;
    its pipeline declares p.dead_letter(..., again=True).
    """
    if letters is not None:
        _send(checkpoint, letters, reason, limit, as_json=as_json)
        return
    if reason is not None or limit is not None:
        raise click.UsageError("--reason and --limit choose what --send sends: give --send, too.")
    overview = open_checkpoint(checkpoint).overview
    reasons, sent = reasons_of(overview), letter_counts(state_at(checkpoint))
    if as_json:
        rows = [
            {
                "reason": reason,
                "count": same_reason.count,
                "first": msgspec.structs.asdict(same_reason.first),
            }
            for reason, same_reason in commonest(reasons)
        ]
        plain = {
            "epoch": overview.epoch,
            "dead_letters": total(reasons),
            "sent_again": sent.sent,
            "waiting": sent.waiting,
            "reasons": rows,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        return
    click.echo(f"{total(reasons):,} dead letters, after epoch {overview.epoch}{_sent_again(sent)}")
    for reason, same_reason in commonest(reasons):
        click.echo(f"\n{same_reason.count:>7,}  {reason}")
        for line in _first(same_reason):
            click.echo(f"         {line}")


def _send(
    checkpoint: str, letters: str, reason: str | None, limit: int | None, *, as_json: bool
) -> None:
    done = send_dead_letters(checkpoint, letters, reason=reason, limit=limit)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(done), indent=2))
        return
    before = f"; {done.sent_before:,} were sent before" if done.sent_before else ""
    letters_are = "dead letter is" if done.sent == 1 else "dead letters are"
    click.echo(f"{done.sent:,} {letters_are} sent again{before}")
    for why, count in sorted(done.refused.items()):
        click.echo(f"{count:,} cannot be sent: {why}")
    if done.sent and not done.declared:
        click.echo(
            "They wait: the pipeline of this checkpoint does not read them yet. Start it with "
            "p.dead_letter(..., again=True)."
        )


def _sent_again(sent: LetterCounts) -> str:
    if not sent.sent:
        return ""
    waiting = f", {sent.waiting:,} of which no epoch has read yet" if sent.waiting else ""
    return f"; {sent.sent:,} were sent again{waiting}"


def _first(counted: Counted) -> list[str]:
    """Return what there is to say of the first dead letter of a reason."""
    first = counted.first
    where = [f"in {first.computation}"] if first.computation else []
    where += [f"stream {first.stream!r}"] if first.stream else ["a timer"]
    at = "no time" if first.timestamp is None else format_timestamp(first.timestamp)
    lines = [f"{', '.join(where)}; the first in epoch {first.epoch}, at {at}"]
    lines.append(f"key {first.key or '-'}, value {first.value}")
    return [*lines, *([first.place] if first.place else [])]
