"""The record format of each stream: declared, inherited through steps, or derived."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from millrace.compile.publishers import INHERITED, StreamProducer
from millrace.model.coder import Coder, MsgpackCoder, coder_for
from millrace.model.declarations import DerivedFormat
from millrace.model.errors import CoderError
from millrace.model.pane import PanedCoder


def formats_of(
    publishers: Mapping[str, list[StreamProducer]], problems: list[str]
) -> dict[str, tuple[Any, Coder]]:
    """Return each stream's format and coder; add to ``problems`` where publishers disagree."""
    formats: dict[str, tuple[Any, Coder]] = {}
    known = _Known(publishers)
    for stream, whos in publishers.items():
        declared: list[tuple[StreamProducer, Any, Coder]] = []
        for who in whos:
            try:
                format = known.of(who)
                declared.append((who, format, coder_for(format)))
            except CoderError as refused:
                problems.append(f"stream {stream!r}: {refused}")
        # Where values of one publisher carry panes, those of the others may stand beside them.
        common = known.common(stream)
        if isinstance(common, PanedCoder):
            formats[stream] = (common, common)
            declared = [(who, *_plain(coder)) for who, _, coder in declared]
        typed = [entry for entry in declared if entry[1] is not Any]
        for who, _, coder in typed[1:]:
            if coder != typed[0][2]:
                problems.append(
                    f"stream {stream!r} has publishers whose formats disagree: "
                    f"{typed[0][0].kind} {typed[0][0].name!r} says {typed[0][2]!r}, "
                    f"{who.kind} {who.name!r} says {coder!r}. A stream has one record format."
                )
        for _, format, coder in typed[:1] or declared[:1]:
            formats.setdefault(stream, (format, coder))
    return formats


class _Known:
    """The formats of streams as far as they are known, each looked for once."""

    def __init__(self, publishers: Mapping[str, list[StreamProducer]]) -> None:
        self._publishers = publishers
        self._found: dict[str, Any] = {}

    def common(self, stream: str) -> Any:
        """Return a stream's format by those of its publishers: the one that says most."""
        if stream not in self._found:
            # A cycle, which is refused later, comes back here and finds this.
            self._found[stream] = Any
            self._found[stream] = _most([*self._declared(stream)])
        return self._found[stream]

    def _declared(self, stream: str) -> Iterator[Any]:
        """Yield the formats of a stream's publishers; one that cannot be is told elsewhere."""
        for who in self._publishers.get(stream, ()):
            with suppress(CoderError):
                yield self.of(who)

    def of(self, who: StreamProducer) -> Any:
        """Return a publisher's format; a step that keeps values has that of the stream it reads.

        Raises:
            CoderError: It is no format.
        """
        format = who.format
        if isinstance(format, DerivedFormat):
            format = format.derive(*map(self.common, format.streams))
        if who.kind != "step":
            return format
        source = self.common(who.name)
        if format is INHERITED:
            return source
        # A step makes new values, but each keeps the pane of the one that it was made from.
        if isinstance(source, PanedCoder) and not isinstance(format, PanedCoder):
            return PanedCoder(format, retracts=source.retracts)
        return format


def _most(formats: list[Any]) -> Any:
    """Return the one of a stream's formats that says most; that of its panes, if it has any."""
    paned = [format for format in formats if isinstance(format, PanedCoder)]
    if paned:
        plain = next((format.format for format in paned if format.format is not Any), Any)
        return PanedCoder(plain, retracts=any(format.retracts for format in paned))
    return next((format for format in formats if format is not Any), Any)


def _plain(coder: Coder) -> tuple[Any, Coder]:
    """Return format and coder of the values, without their panes."""
    plain = coder.inner if isinstance(coder, PanedCoder) else coder
    return (Any if plain == MsgpackCoder(Any) else plain), plain
