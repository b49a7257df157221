"""The record format of each stream: declared, inherited through steps, or derived."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millrace.compile.publishers import INHERITED, Publisher
from millrace.model.coder import Coder, MsgpackCoder, coder_for
from millrace.model.derived import DerivedFormat
from millrace.model.errors import CoderError
from millrace.model.pane import PanedCoder


def formats_of(
    publishers: Mapping[str, list[Publisher]], problems: list[str]
) -> dict[str, tuple[Any, Coder]]:
    """Return each stream's format and coder; add to ``problems`` where publishers disagree."""
    formats: dict[str, tuple[Any, Coder]] = {}
    for stream, whos in publishers.items():
        declared: list[tuple[Publisher, Any, Coder]] = []
        for who in whos:
            try:
                format = _inherited(who, publishers, ())
                declared.append((who, format, coder_for(format)))
            except CoderError as refused:
                problems.append(f"stream {stream!r}: {refused}")
        # Where values of one publisher carry panes, those of the others may stand beside them.
        common = _common(stream, publishers, ())
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


def _common(stream: str, publishers: Mapping[str, list[Publisher]], seen: tuple[str, ...]) -> Any:
    """Return a stream's format by those of its publishers: the one that says most."""
    if stream in seen:
        return Any
    found = [_inherited(who, publishers, (*seen, stream)) for who in publishers.get(stream, ())]
    paned = [format for format in found if isinstance(format, PanedCoder)]
    if paned:
        plain = next((format.format for format in paned if format.format is not Any), Any)
        return PanedCoder(plain, retracts=any(format.retracts for format in paned))
    return next((format for format in found if format is not Any), Any)


def _inherited(
    who: Publisher, publishers: Mapping[str, list[Publisher]], seen: tuple[str, ...]
) -> Any:
    """Return a publisher's format; a step that keeps values has that of the stream it reads."""
    format = who.format
    if isinstance(format, DerivedFormat):
        format = format.derive(*(_common(name, publishers, seen) for name in format.streams))
    if who.kind != "step":
        return format
    source = _common(who.name, publishers, seen)
    if format is INHERITED:
        return source
    # A step makes new values, but each keeps the pane of the one that it was made from.
    if isinstance(source, PanedCoder) and not isinstance(format, PanedCoder):
        return PanedCoder(format, retracts=source.retracts)
    return format


def _plain(coder: Coder) -> tuple[Any, Coder]:
    """Return format and coder of the values, without their panes."""
    plain = coder.inner if isinstance(coder, PanedCoder) else coder
    return (Any if plain == MsgpackCoder(Any) else plain), plain
