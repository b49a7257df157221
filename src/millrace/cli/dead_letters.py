"""``millrace dead-letters``: why records became dead letters, from the checkpoint alone."""

from __future__ import annotations

import click
import msgspec

from millrace.inspect import open_checkpoint
from millrace.inspect.overview import reasons_of
from millrace.model.time import format_timestamp
from millrace.windmill.dead_letters import Counted, commonest, total


@click.command("dead-letters", short_help="Say why records became dead letters.")
@click.argument("checkpoint")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def dead_letters(checkpoint: str, as_json: bool) -> None:
    """List the dead letters of CHECKPOINT by reason, the most frequent first, with one of each.

    They are counted since the beginning, as of the last epoch that has completed. The dead letters
    themselves are where the pipeline sends the stream of them; `raw` of each is the record as it
    came, and `place` where it came from. Needs no Spark, writes nothing, and may be used while a
    run goes on.
    """
    overview = open_checkpoint(checkpoint).overview
    reasons = reasons_of(overview)
    if as_json:
        rows = [
            {"reason": reason, "count": one.count, "first": msgspec.structs.asdict(one.first)}
            for reason, one in commonest(reasons)
        ]
        plain = {"epoch": overview.epoch, "dead_letters": total(reasons), "reasons": rows}
        click.echo(msgspec.json.format(msgspec.json.encode(plain), indent=2))
        return
    click.echo(f"{total(reasons):,} dead letters, after epoch {overview.epoch}")
    for reason, one in commonest(reasons):
        click.echo(f"\n{one.count:>7,}  {reason}")
        for line in _first(one):
            click.echo(f"         {line}")


def _first(counted: Counted) -> list[str]:
    """Return what there is to say of the first dead letter of a reason."""
    first = counted.first
    where = [f"in {first.computation}"] if first.computation else []
    where += [f"stream {first.stream!r}"] if first.stream else ["a timer"]
    at = "no time" if first.timestamp is None else format_timestamp(first.timestamp)
    lines = [f"{', '.join(where)}; the first in epoch {first.epoch}, at {at}"]
    lines.append(f"key {first.key or '-'}, value {first.value}")
    return [*lines, *([first.place] if first.place else [])]
