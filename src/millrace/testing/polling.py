"""Polling: one epoch of an injector, read in process; the Harness's side of what Spark does."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from millrace.compile.topology import StreamSpec
from millrace.injectors.injector import Injector
from millrace.injectors.offsets import Offsets, advanced, pieces, rows
from millrace.injectors.schema import column_names
from millrace.model.errors import PipelineError
from millrace.model.time import MIN_TIMESTAMP, in_microseconds
from millrace.watermark.process import Process


@dataclass(frozen=True)
class Delivery:
    """What an injector delivers in one epoch.

    Attributes:
        records: (value, timestamp, process) of each record; and its id, where the stream has ids.
        processes: Process -> what it promises, for those that were heard.
        offsets: Where the next epoch begins.
    """

    records: list[tuple[Any, ...]]
    processes: dict[str, Process]
    offsets: Offsets


def poll(spec: StreamSpec, start: Offsets, waiting: Collection[str]) -> Delivery:
    """Return what an injected stream's injector delivers next.

    Args:
        spec: The stream.
        start: Where its processes stand.
        waiting: Those that are held back.

    Raises:
        PipelineError: The stream's source is no injector.
    """
    injection = spec.injection
    injector = injection.source if injection is not None else None
    if injection is None or not isinstance(injector, Injector):
        raise PipelineError(
            f"poll({spec.name!r}): its source is {injector!r}. Expected an mr.Injector; feed other "
            "streams with h.inject()."
        )
    end = advanced(spec.name, injector, start, waiting)
    names = column_names(injector.schema)
    records, processes = [], {}
    for piece in pieces(injector, start, end):
        for *row, process, claim_us, punctuation in rows(injector, piece):
            if punctuation:
                promised_us = MIN_TIMESTAMP if claim_us is None else claim_us
                processes[process] = Process(promised_us=promised_us)
                continue
            columns = dict(zip(names, row, strict=True))
            at = columns.pop(str(injection.timestamp), None)
            id = () if injection.id is None else (columns.get(injection.id),)
            if id and spec.format is not Any and not dict(_fields(spec.format)):
                del columns[str(injection.id)]  # what is left is the value
            value = _value(spec.format, columns, str(injection.timestamp), at)
            if isinstance(at, int):
                at = in_microseconds(at, injection.unit)
            records.append((value, at, process, *id))
    return Delivery(records, processes, end)


def _value(format: Any, columns: dict[str, Any], timestamp: str, at: Any) -> Any:
    """Return a row's value as a record format has it."""
    if format is Any:
        return columns
    fields = dict(_fields(format))
    if fields:
        found = {name: value for name, value in columns.items() if name in fields}
        if timestamp in fields:
            found[timestamp] = at
        return msgspec.convert(found, format)
    return msgspec.convert(next(iter(columns.values()), at), format)


def _fields(format: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(format, type):
        for name in getattr(format, "__struct_fields__", getattr(format, "__match_args__", ())):
            yield name, None
