"""The input of an epoch, as far as the driver reads it: how far injectors go, and in which pieces.

Injectors are asked before the manifest is written, and the answers are in it. So an epoch that is
run again, by whichever driver, reads the same.

Source: MillWheel, "Injector and Low Watermark API" (5.2).
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from millrace.compile.topology import Topology
from millrace.epochlog.entries import Manifest
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import (
    Offsets,
    Piece,
    SourceOffsets,
    advanced,
    packed_piece,
    pieces,
)
from millrace.model.errors import PipelineError, brief
from millrace.runtime.piece_reader import pass_on
from millrace.runtime.reports import TaskReport
from millrace.runtime.worker_process import latest_of

#: Tasks of the first stage for each that can run at once, if several can: where there are more
#: pieces, some share one, since to start a task takes as long as to read thousands of records; with
#: a few for each, a large piece does not keep one core busy while the others wait.
_LOTS_A_TASK = 4


class Asked(NamedTuple):
    """An injector that has not answered yet.

    Attributes:
        stream: Its injected stream.
        since_s: Since when, by the monotonic clock.
    """

    stream: str
    since_s: float


class EpochInput:
    """What the epochs of a run read of injectors.

    Args:
        topology: The pipeline.
        injectors: Injected stream -> its injector; of the run alone.

    Attributes:
        asking: The injector that is being asked now; None if none is.
        there: Injected stream -> its processes, as they were when it was last asked.
    """

    def __init__(self, topology: Topology, injectors: Mapping[str, Injector]) -> None:
        self._topology = topology
        self._injectors = injectors
        self.asking: Asked | None = None
        self.there: dict[str, list[str]] = {}

    @property
    def streams(self) -> Collection[str]:
        """The streams that the driver reads."""
        return self._injectors.keys()

    def unmoved(self) -> dict[str, Offsets]:
        """Return the offsets of an epoch that reads nothing."""
        return {stream: {} for stream in self._injectors}

    def asked(
        self, offsets: SourceOffsets, waiting: Mapping[str, Collection[str]]
    ) -> dict[str, Offsets]:
        """Ask injectors how far the next epoch reads; return the offsets of processes that go on.

        Args:
            offsets: Where they stand.
            waiting: Injected stream -> processes that are held back.

        Raises:
            PipelineError: An offset cannot be written as JSON.
            WatermarkRegression: A process promises less than before.
        """
        ends: dict[str, Offsets] = {}
        for stream, injector in self._injectors.items():
            start = _begun(offsets, stream)
            with self._asks(stream):
                there = self.there[stream] = [*injector.processes()]
                end = advanced(stream, injector, start, waiting[stream], there)
            moved = {name: at for name, at in end.items() if start.get(name) != at}
            written = {name: _as_written(stream, name, at) for name, at in moved.items()}
            ends[stream] = {name: at for name, at in written.items() if start.get(name) != at}
        return ends

    def pieces(self, manifest: Manifest, offsets: SourceOffsets) -> dict[str, list[Piece]]:
        """Return what an epoch reads, by stream.

        Args:
            manifest: Of the epoch.
            offsets: Where it begins.
        """
        pieces_of: dict[str, list[Piece]] = {}
        for stream, injector in self._injectors.items():
            end = manifest.offsets.get(stream, {})
            with self._asks(stream):
                pieces_of[stream] = pieces(injector, _begun(offsets, stream), end)
        return pieces_of

    def moved(self, manifest: Manifest, offsets: SourceOffsets) -> bool:
        """Return whether a process goes on to another offset, with records there or without.

        Args:
            manifest: Of the epoch.
            offsets: Where it begins.
        """
        for stream, end in manifest.offsets.items():
            begun = _begun(offsets, stream)
            if any(offset != begun.get(name, [None])[0] for name, (offset, _) in end.items()):
                return True
        return False

    def unread(self, manifest: Manifest, there: Mapping[str, Sequence[Piece]]) -> TaskReport | None:
        """Return what pieces have but records; None if there may be some."""
        if any(piece.between is not None for pieces_of in there.values() for piece in pieces_of):
            return None
        report, latest_us = TaskReport(), latest_of(self._topology, manifest)
        for stream, found in there.items():
            pass_on(report, stream, found, latest_us[stream])
        return report

    @contextmanager
    def _asks(self, stream: str) -> Iterator[None]:
        self.asking = Asked(stream, time.monotonic())
        try:
            yield
        finally:
            self.asking = None


def lots_of(there: Mapping[str, Sequence[Piece]], tasks: int) -> list[list[bytes]]:
    """Return pieces, packed, by the task of the first stage that reads them.

    Args:
        there: Injected stream -> pieces of it.
        tasks: How many can run at once.
    """
    packed = [(piece, packed_piece(stream, piece)) for stream in there for piece in there[stream]]
    # What is only a promise needs no task of its own.
    to_read = [row for piece, row in packed if piece.between is not None]
    promises = [row for piece, row in packed if piece.between is None]
    count = min(len(to_read), _LOTS_A_TASK * tasks if tasks > 1 else 1)
    lots = [to_read[first::count] for first in range(count)] or [[]]
    lots[-1].extend(promises)
    return [lot for lot in lots if lot]


def _begun(offsets: SourceOffsets, stream: str) -> Offsets:
    return {
        process: [place.offset, place.process_watermark_us]
        for process, place in offsets.get(stream, {}).items()
    }


def _as_written(stream: str, process: str, at: list[object]) -> list[object]:
    """Return an offset and a promise as who takes the epoch over reads them."""
    try:
        written: list[object] = json.loads(json.dumps(at))
    except (TypeError, ValueError) as refused:
        raise PipelineError(
            f"injector of {stream!r}: process {process!r} has the offset {brief(at[0])}, which is "
            f"no JSON: {refused}. Return numbers, text, lists and dicts from advance()."
        ) from refused
    return written
