"""The note of a group in a task's journal: what the task knew when it committed."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

import msgspec

from millrace.plane.realtime.ingress import Stamps

#: Injected stream -> process -> its number.
Numbers = dict[str, dict[str, int]]


class TaskNote(msgspec.Struct, array_like=True):
    """What a task takes up again after a failure, besides its intervals.

    Attributes:
        wall_time_us: Its clock.
        inputs: Computation of its level -> percentile -> low watermark of its input: never worked
            below again.
        consumed: (injected stream, process) by number -> last record of it that was consumed.
        heard: As ``inputs``, as far as those know of it who read from the task.
    """

    wall_time_us: int
    inputs: dict[str, dict[int, int]]
    consumed: list[tuple[int, int, int]]
    heard: dict[str, dict[int, int]] = {}

    def floor(self, weak: Container[str]) -> dict[str, dict[int, int]]:
        """Return computation -> percentile -> low watermark of its input that it begins at.

        What a weak computation showed after its last commit is taken back with its state: records
        that were in time come again, and must not be late.
        """
        floor = {name: dict(clocks) for name, clocks in self.inputs.items()}
        for name, clocks in self.heard.items():
            if name not in weak:
                raise_clocks(floor, name, clocks)
        return floor


class Decided(msgspec.Struct, array_like=True):
    """The note of an injector task: what it decided to read, before it read it.

    Attributes:
        steps: Epoch -> injected stream -> process -> what was decided after the mark before. Of the
            open epoch and, until the mark between them is complete, the one that follows.
        stamps: When records came, of streams with event time by ingress.
        numbers: Injected stream -> process -> its number, of those that no complete mark knows.
    """

    steps: dict[int, dict[str, dict[str, list[Any]]]]
    stamps: Stamps = {}
    numbers: Numbers = {}

    def since(self, epoch: int) -> tuple[dict[int, dict[str, dict[str, list[Any]]]], bool]:
        """Return what was decided since the last complete mark, as of the epoch that is open now.

        And whether some of it came after a mark that is not complete, and is to be made again.
        """
        together: dict[str, dict[str, list[Any]]] = {}
        for number in sorted(self.steps):
            if number < epoch:
                continue
            for stream, processes in self.steps[number].items():
                for process, decided in processes.items():
                    together.setdefault(stream, {}).setdefault(process, []).extend(decided)
        return {epoch: together}, any(number > epoch for number in self.steps)


encode_note = msgspec.msgpack.Encoder().encode
decode_note = msgspec.msgpack.Decoder(TaskNote).decode
decode_decided = msgspec.msgpack.Decoder(Decided).decode


def merged_notes(one: TaskNote, other: TaskNote) -> TaskNote:
    """Return what both say: nothing in a note ever goes back.

    >>> both = merged_notes(
    ...     TaskNote(5, {"c": {100: 1}}, [(1, 0, 7)]), TaskNote(3, {"c": {100: 2}}, [(1, 0, 5)])
    ... )
    >>> both.wall_time_us, both.inputs, both.consumed
    (5, {'c': {100: 2}}, [(1, 0, 7)])
    """
    inputs = {name: dict(clocks) for name, clocks in one.inputs.items()}
    for name, clocks in other.inputs.items():
        raise_clocks(inputs, name, clocks)
    wall_us = max(one.wall_time_us, other.wall_time_us)
    return TaskNote(wall_us, inputs, consumed_by_any([one, other]))


def raise_clocks(
    inputs: dict[str, dict[int, int]], computation: str, clocks: Mapping[int, int]
) -> None:
    """Let a computation's low watermarks be no lower than some others."""
    known = inputs.setdefault(computation, {})
    for percentile, us in clocks.items():
        known[percentile] = max(known.get(percentile, us), us)


def consumed_by_any(notes: Iterable[TaskNote]) -> list[tuple[int, int, int]]:
    """Return how far any task has consumed the input.

    >>> consumed_by_any([TaskNote(0, {}, [(1, 0, 7)]), TaskNote(0, {}, [(1, 0, 5), (1, 1, 2)])])
    [(1, 0, 7), (1, 1, 2)]
    """
    found: dict[tuple[int, int], int] = {}
    for note in notes:
        for stream, process, number in note.consumed:
            at = stream, process
            found[at] = max(found.get(at, number), number)
    return [(*at, number) for at, number in sorted(found.items())]
