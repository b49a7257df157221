"""Nexmark's events outside: as Parquet or JSON files, or in topics of Kafka."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace_examples.nexmark.events import FORMATS, Event

_TYPES = {int: pa.int64(), str: pa.string()}
_NAMES = {pa.int64(): "long", pa.string(): "string"}
#: The first file's time of change; each later one is a second younger, as sources go by it.
_OLDEST_S = 1_700_000_000

#: Columns of each stream; times are microseconds.
SCHEMAS = {
    name: pa.schema([(field.name, _TYPES[field.type]) for field in msgspec.structs.fields(of)])
    for name, of in FORMATS.items()
}

#: The same as Spark and :class:`millrace.sources.Files` write them.
COLUMNS = {
    name: ", ".join(f"{field.name} {_NAMES[field.type]}" for field in schema)
    for name, schema in SCHEMAS.items()
}


class Part(NamedTuple):
    """So many events, which arrive together: the batch, and its share of one reader."""

    batch: int
    part: int
    events: list[tuple[str, Event]]


def table(stream: str, events: Iterable[Event]) -> pa.Table:
    """Return events of one stream as a table, in their order."""
    return pa.Table.from_pylist([*map(msgspec.structs.asdict, events)], SCHEMAS[stream])


def parts(events: Iterable[tuple[str, Event]], *, batch: int, readers: int = 1) -> Iterator[Part]:
    """Yield events in batches of so many; what is in one is dealt to the readers in turn.

    So each reader sees event time go on as the whole stream does.
    """
    gathered: list[tuple[str, Event]] = []
    number = 0
    for event in events:
        gathered.append(event)
        if len(gathered) == batch:
            yield from _dealt(number, gathered, readers)
            gathered, number = [], number + 1
    if gathered:
        yield from _dealt(number, gathered, readers)


def write(
    folder: Path,
    events: Iterable[tuple[str, Event]],
    *,
    batch: int,
    readers: int = 1,
    format: str = "parquet",
) -> int:
    """Write events into folders ``persons``, ``auctions`` and ``bids``, a file a batch and reader.

    Every batch has a file of every stream, so that what reads so many files at a time reads the
    same batch of each.

    Args:
        folder: Made if it is not there.
        events: Pairs of stream and event, as a ``Generator`` yields them.
        batch: Events a batch.
        readers: Files of a batch and stream.
        format: ``"parquet"``, or ``"json"``: an object a line.

    Returns:
        How many files each stream has.
    """
    if format not in ("parquet", "json"):
        raise ValueError(f"format={format!r}: expected 'parquet' or 'json'.")
    count = 0
    for name in SCHEMAS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    for number, part, some in parts(events, batch=batch, readers=readers):
        for name in SCHEMAS:
            file = folder / name / f"{number:06}-{part}.{format}"
            _write(file, name, [event for stream, event in some if stream == name])
            os.utime(file, (_OLDEST_S + count,) * 2)
        count += 1
    return count


def send(
    servers: str,
    events: Iterable[tuple[str, Event]],
    *,
    prefix: str = "nexmark-",
    patience_s: float = 120,
) -> int:
    """Send events to the topics ``nexmark-persons``, ``-auctions`` and ``-bids``, as JSON.

    The partition is Kafka's to choose. Topics that are missing are made if the broker allows it.

    Args:
        servers: ``host:port``, several with commas.
        events: Pairs of stream and event.
        prefix: Before the names of streams.
        patience_s: How long the broker may take for the last of them.

    Returns:
        How many were sent; the broker has acknowledged all of them.

    Raises:
        RuntimeError: It has not, within that time.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5})
    encode = msgspec.json.Encoder().encode
    count = 0
    failed: list[Any] = []

    def told(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(error)

    for stream, event in events:
        while True:
            try:
                producer.produce(prefix + stream, encode(event), on_delivery=told)
                break
            except BufferError:  # full: wait until some have been acknowledged
                producer.poll(1)
        producer.poll(0)
        count += 1
    if producer.flush(patience_s) or failed:
        raise RuntimeError(
            f"{servers} did not take all of {count:,} events: {failed[:1] or 'no answer'}. "
            "Is the broker there, and are the topics, or may they be made?"
        )
    return count


def _dealt(number: int, events: list[tuple[str, Event]], readers: int) -> Iterator[Part]:
    for part in range(readers):
        yield Part(number, part, events[part::readers])


def _write(file: Path, stream: str, events: list[Event]) -> None:
    # Sources pass names over that begin so, until the file is whole.
    unfinished = file.with_name(f"_{file.name}")
    if file.suffix == ".parquet":
        pq.write_table(table(stream, events), unfinished)
    else:
        unfinished.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in events))
    unfinished.rename(file)
