"""OnCall: the trigger that goes by calls from outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from millrace.dataflow.side_stream import SideStream
from millrace.dataflow.triggers.signal import OnSignal, for_every_key
from millrace.dataflow.triggers.trigger import Trigger
from millrace.model.errors import PipelineError
from millrace.model.keys import decode_key, encode_key
from millrace.model.stream import by


class OnCall(OnSignal):
    """Fires when somebody calls its name: ``run.fire()``, ``millrace fire``; and is done.

    A call fires every window that has elements since its last pane, of the keys that it names, or
    of all keys. It is durable when it has been made, and is taken once, by an epoch or a turn:
    what came before that is in the panes. Several groupings may have one name. In a batch nobody
    can call.

    Args:
        name: By which it is called, such as the name of the grouping.

    Source: Dataflow patent, "any other relevant external signals (data injection requests, external
    progress metrics, RPC completion callbacks, etc.)".

    >>> import millrace as mr
    >>> p = mr.Pipeline("game")
    >>> scores = p.inject("scores", format=dict).key_by("team")
    >>> scores.window(trigger=mr.Repeat(mr.OnCall("totals"))).sum("points").to("totals")
    WindowedStream('totals')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("scores", [({"team": team, "points": 2}, 0) for team in ("red", "blue")])
    ...     h.fire("totals", "red")
    ...     first = [(output.key, output.value) for output in h.outputs("totals")]
    ...     h.fire("totals")
    ...     first, [(output.key, output.value) for output in h.outputs("totals")]
    ([('red', 2)], [('red', 2), ('blue', 2)])
    """

    def __init__(self, name: str) -> None:
        if not isinstance(name, str) or not name or not name.isprintable():
            raise PipelineError(
                f"OnCall({name!r}): expected a name by which it is called, such as that of the "
                'grouping: mr.OnCall("totals").'
            )
        self.name = name

    @property
    def signals(self) -> Mapping[str, SideStream]:  # type: ignore[override]
        """Its streams, of calls for keys and for all, and how they are taken."""
        one, every = streams_of(self.name)
        return {
            one: SideStream(by(decode_key)),
            every: SideStream(by(for_every_key), everywhere=True),
        }

    def __repr__(self) -> str:
        return f"OnCall({self.name!r})"


def streams_of(name: str) -> tuple[str, str]:
    """Return the streams of the calls of a name: of those for keys, and of those for every key."""
    return f"{name}.calls", f"{name}.calls-for-all"


def names_in(trigger: Trigger) -> Iterator[str]:
    """Yield the names by which a trigger, or one that it is made of, is called."""
    if isinstance(trigger, OnCall):
        yield trigger.name
    for child in trigger.children:
        yield from names_in(child)


def called(name: str, keys: Iterable[Any], streams: Iterable[str]) -> tuple[str, list[bytes]]:
    """Return the stream that a call goes to, and what it says there.

    Args:
        name: That is called.
        keys: To fire; none: all.
        streams: Of the pipeline.

    Raises:
        PipelineError: Nothing is called so.
        CoderError: A key is none.
    """
    known, (one, every) = set(streams), streams_of(name)
    if one not in known:
        suffix = streams_of("")[0]
        names = sorted(each.removesuffix(suffix) for each in known if each.endswith(suffix))
        raise PipelineError(
            f"fire({name!r}): no trigger of this pipeline is called so; those there are: {names}. "
            f'Say in window(trigger=...) when it fires: mr.Repeat(mr.OnCall("{name}")).'
        )
    encoded = [encode_key(key) for key in keys]
    return (one, encoded) if encoded else (every, [b""])
