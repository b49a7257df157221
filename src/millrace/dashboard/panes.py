"""Panes of a key, as its commits have them: made, made again, and withdrawn.

A commit holds what it sent until it is collected, so this is the last part of a key's history, of
a run that is gone as well. Weak productions are in no commit.

Source: Dataflow patent, FIG. 6B to 6J; MillWheel, "Strong Productions" (6.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from millrace.compile.change.schemas import Schema
from millrace.compile.state_values import reader
from millrace.dashboard.plain import key_line, millis, one_line
from millrace.inspect import Checkpoint, Interval, WindowState, keys_of
from millrace.kernel.router import RowsBuilder
from millrace.model.errors import MillraceError
from millrace.model.keys import decode_key, encode_key, hash_key
from millrace.model.pane import Pane

#: A picture has room for so many.
_PANES_MAX: Final = 60
#: Commits that are looked through for them, from the last back.
_COMMITS_MAX: Final = 200
#: Key intervals that are looked into where no key is asked for.
_INTERVALS_MAX: Final = 32
#: What :class:`~millrace.model.pane.PanedCoder` calls itself.
_PANED: Final = "value with pane"
_decode: Final = msgspec.msgpack.Decoder(tuple[bytes, Pane | None]).decode


def groupings(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the computations that emit panes, those with windows of their own first.

    Others pass on the panes that they got.
    """
    names = [name for name in checkpoint.computations if _streams(checkpoint, name)]
    return sorted(names, key=lambda name: "windows" not in checkpoint.declared(name)["settings"])


def panes_of(checkpoint: Checkpoint, computation: str, text: str | None) -> dict[str, Any]:
    """Return the panes of a key that are still in commits, oldest first, and its open windows.

    Args:
        checkpoint: After the last epoch.
        computation: A grouping.
        text: The key, as somebody types it; None for one that has emitted lately.

    Raises:
        PipelineError: There is no such computation.
    """
    inspection = checkpoint[computation]
    readers = _edges(checkpoint, computation)
    intervals = inspection.intervals
    if text is None:
        worked = sorted(intervals, key=lambda item: -item.commit)[:_INTERVALS_MAX]
        key = next((key for key, _ in _emitted(checkpoint, computation, worked, readers)), None)
        wanted = [] if key is None else [key]
    else:
        wanted = [encode_key(key) for key in keys_of(text)]
    for key in wanted:
        hash = hash_key(key)
        own = [interval for interval in intervals if interval.start <= hash < interval.end]
        emitted = list[dict[str, Any]]()
        for emitted_key, pane in _emitted(checkpoint, computation, own, readers):
            if emitted_key == key and len(emitted) < _PANES_MAX:
                emitted.append(pane)
        windows = _open(inspection.get(decode_key(key)))
        if emitted or windows:
            return {
                "epoch": checkpoint.epoch,
                "key": key_line(decode_key(key)),
                "panes": emitted[::-1],
                "open": windows,
            }
    return {"epoch": checkpoint.epoch, "key": text or "", "panes": [], "open": []}


def _emitted(
    checkpoint: Checkpoint,
    computation: str,
    intervals: list[Interval],
    readers: dict[int, Callable[[bytes], Any]],
) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield (encoded key, pane) from the last commit of each interval back."""
    known = checkpoint.known_name(computation)
    for interval in intervals:
        for number in range(interval.commit, max(0, interval.commit - _COMMITS_MAX), -1):
            commit = checkpoint.state.commits.read(known, interval.id, number)
            if commit is None:
                break
            sent = RowsBuilder.unpack(commit.productions)
            rows = list(zip(sent.edges, sent.keys, sent.values, strict=True))
            for edge, key, value in reversed(rows):
                if edge in readers and (pane := _pane(value, readers[edge])) is not None:
                    yield key, {"epoch": commit.epoch, **pane}


def _pane(data: bytes, read: Callable[[bytes], Any]) -> dict[str, Any] | None:
    try:
        inner, pane = _decode(data)
        if pane is None:
            return None
        value = one_line(read(inner))
    except (msgspec.MsgspecError, MillraceError):
        return None  # a step has made something else of it
    return {
        "start": millis(pane.window.start),
        "end": millis(pane.window.end),
        "index": pane.index,
        "timing": str(pane.timing),
        "retraction": pane.retraction,
        "last": pane.is_last,
        "at": millis(pane.production_time),
        "value": value,
    }


def _open(cells: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what a grouping that is kept key by key has of windows."""
    values = (each for cell in cells.values() if isinstance(cell, dict) for each in cell.values())
    return [
        {
            "start": millis(window.start),
            "end": millis(window.end),
            "size": window.size,
            "pending": window.pending,
            "panes": window.panes,
            "accumulator": one_line(window.accumulator),
        }
        for window in list(values)[:_PANES_MAX]
        if isinstance(window, WindowState)
    ]


def _streams(checkpoint: Checkpoint, computation: str) -> dict[str, Schema]:
    outputs = checkpoint.declared(computation)["outputs"]
    return {
        name: said["value"]["format"]
        for name, said in outputs.items()
        if said["coder"] == _PANED and "value" in said
    }


def _edges(checkpoint: Checkpoint, computation: str) -> dict[int, Callable[[bytes], Any]]:
    """Return, for each stream of panes, the number of one of its edges, and what reads values.

    All of a stream's consumers are sent the same, but those behind steps.
    """
    claim = checkpoint.ended.claim
    registry = None if claim is None else claim.registry
    readers: dict[int, Callable[[bytes], Any]] = {}
    for stream, format in _streams(checkpoint, computation).items():
        names = {} if registry is None else registry.checked().edges
        plain = [number for name, number in names.items() if name.startswith(f"{stream} -> ")]
        stepped = [number for name, number in names.items() if name.startswith(f"{stream} > ")]
        if numbers := plain or stepped:
            readers[min(numbers)] = reader(format)
    return readers
