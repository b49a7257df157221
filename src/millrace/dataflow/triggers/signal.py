"""OnSignal: the trigger that goes by a stream of signals from outside.

OnCall: the trigger that goes by calls from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from millrace.dataflow.side_stream import SideStream
from millrace.dataflow.triggers.trigger import Trigger
from millrace.model.errors import PipelineError
from millrace.model.keys import decode_key, encode_key
from millrace.model.stream import ByRecord, KeyExtractor, by, by_key


class OnSignal(Trigger):
    """Fires when a record of a stream says so, "now", and is done.

    A signal fires every window of its key, or of every key, that has elements since its last pane.
    It is then forgotten: what comes after it waits for the next. What it carries does not matter,
    nor does its timestamp: the stream's low watermark holds nothing, and a signal is never late.
    Elements that come in one bundle with a signal may be in the pane or not; in a batch those are
    that are not later by their timestamps.

    Args:
        stream: The stream of signals, by name; it is no other input of the grouping.
        key: Whose windows a signal fires: a field of its value, or a function of it, as
            :func:`millrace.by` takes them. By default the key that the stream has.
        every_key: Whether a signal fires the windows of every key instead. It costs what all keys
            that have windows cost. Those whose encoded key is longer than 159 bytes, and that have
            no element in the same bundle, are not told; the counter ``signals_untold`` says how
            many.

    Source: Dataflow patent, "any other relevant external signals (data injection requests, external
    progress metrics, RPC completion callbacks, etc.)".

    >>> import millrace as mr
    >>> p = mr.Pipeline("game")
    >>> scores, asked = p.inject("scores", format=dict), p.inject("asked", format=str)
    >>> now = mr.Repeat(mr.OnSignal("asked", key=lambda team: team))
    >>> scores.key_by("team").window(trigger=now).sum("points").to("totals")
    WindowedStream('totals')
    >>> with mr.testing.Harness(p) as h:
    ...     h.inject("scores", [({"team": "red", "points": n}, n) for n in (2, 3)])
    ...     h.inject("asked", [("red", 0), ("blue", 0)])
    ...     [(output.key, output.value) for output in h.outputs("totals")]
    [('red', 5)]
    """

    per_element = False
    finishes = True

    def __init__(
        self,
        stream: str,
        key: str | Callable[[Any], Any] | KeyExtractor | None = None,
        *,
        every_key: bool = False,
    ) -> None:
        if not isinstance(stream, str) or not stream:
            raise PipelineError(
                f'OnSignal({stream!r}): expected the name of a stream, such as "asked". Give a '
                'stream that has none a name: stream.to("asked").'
            )
        if every_key and key is not None:
            raise PipelineError(
                f"OnSignal({stream!r}, {key!r}, every_key=True): a signal is for one key, or for "
                "every. Leave one of the two out."
            )
        chosen = by_key() if key is None else key if isinstance(key, KeyExtractor) else by(key)
        if isinstance(chosen, ByRecord):
            raise PipelineError(
                f"OnSignal({stream!r}, {key!r}): a signal's key goes by its value. Choose it "
                f"before, {stream}.key_by(...), and leave it out here."
            )
        self.stream = stream
        self.key = by(for_every_key) if every_key else chosen
        self.every_key = every_key

    @property
    def signals(self) -> Mapping[str, SideStream]:  # type: ignore[override]
        """Its stream, and how that is taken."""
        return {self.stream: SideStream(self.key, everywhere=self.every_key)}

    def on_element(self, ctx: Any) -> None:
        """Wait from now on."""
        ctx.set("waits", True)

    def on_merge(self, ctx: Any) -> None:
        """Wait if one of the windows did."""
        if any(source.get("waits") for source in ctx.sources):
            ctx.set("waits", True)

    def on_timer(self, ctx: Any) -> None:
        """Fire: a signal has come, which is to a window what a timer is."""
        ctx.trigger()
        ctx.done()

    def __repr__(self) -> str:
        if self.every_key:
            return f"OnSignal({self.stream!r}, every_key=True)"
        key = "" if self.key == by_key() else f", {self.key!r}"
        return f"OnSignal({self.stream!r}{key})"


def for_every_key(_value: Any) -> str:
    """Return the key of a signal that is for none in particular."""
    return "every key"


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
        for_key, every = streams_of(self.name)
        return {
            for_key: SideStream(by(decode_key)),
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
    known, (for_key, every) = set(streams), streams_of(name)
    if for_key not in known:
        suffix = streams_of("")[0]
        names = sorted(each.removesuffix(suffix) for each in known if each.endswith(suffix))
        raise PipelineError(
            f"fire({name!r}): no trigger of this pipeline is called so; those there are: {names}. "
            f'Say in window(trigger=...) when it fires: mr.Repeat(mr.OnCall("{name}")).'
        )
    encoded = [encode_key(key) for key in keys]
    return (for_key, encoded) if encoded else (every, [b""])
