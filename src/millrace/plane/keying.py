"""Keying: columns of a source as rows on edges, with encoded keys, hashes and tasks, in Arrow.

It is what Spark does for a source of its own whose keys are in columns (see
:mod:`millrace.spark.source`), for the rows that an injector reads in the first stage: whole columns
at a time, and byte for byte the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from millrace.compile.native import one_field
from millrace.compile.topology import Edge
from millrace.model.keys import hash_key
from millrace.model.time import EARLIEST_RECORD, LATEST_RECORD, MIN_TIMESTAMP
from millrace.plane import wire
from millrace.plane.runtime import SourceColumns
from millrace.plane.task import Task
from millrace.plane.whole_numbers import encoded_numbers, hashes_of_numbers
from millrace.windmill.source_ids import FINGERPRINT_BYTES


class Keying:
    """Makes rows on edges of a task's source rows.

    Args:
        task: Its manifest's interval maps say which task owns a key.
    """

    def __init__(self, task: Task) -> None:
        self._task = task

    def on_edges(self, source: SourceColumns, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a source for each of its stream's consumers.

        A row that cannot be a record, as it has no time that may be one, no key or no id, is there
        once, for the first consumer's level to refuse.

        Args:
            source: Whose rows they are.
            rows: With ``ts``, the struct of the source's columns, and what else it has.
        """
        task, stream = self._task, self._task.topology.streams[source.stream]
        struct = rows.column(f"s{source.number}")
        keyed = [_keys(_key_column(edge, struct)) for edge in stream.edges]
        at = rows.column("ts")
        at_us = (at if not at.null_count else pc.fill_null(at, MIN_TIMESTAMP)).to_numpy()
        accepted = (at_us >= EARLIEST_RECORD) & (at_us <= LATEST_RECORD)
        needed = [keys for keys, _ in keyed]
        if wire.FINGERPRINT in rows.schema.names:
            needed.append(rows.column(wire.FINGERPRINT))
        for column in needed:
            if column.null_count:
                accepted &= column.is_valid().to_numpy(zero_copy_only=False)
        whole = bool(accepted.all())
        for (keys, hashes), edge in zip(keyed, stream.edges, strict=True):
            intervals = task.manifest.interval_map(str(edge.computation))
            made = pa.RecordBatch.from_arrays(
                [
                    pa.array(intervals.task_of(hashes, task.tasks)),
                    pa.array(np.full(len(hashes), edge.number, dtype=np.int32)),
                    pa.array(hashes.view(np.int64)),
                    keys,
                    *rows.columns,
                ],
                names=["pid", "edge", "hash", "key", *rows.schema.names],
            )
            if not whole and edge is not stream.edges[0]:
                made = wire.where(made, accepted)
            elif not whole:
                number = np.where(accepted, np.int32(edge.number), np.int32(wire.REFUSED))
                made = made.set_column(1, "edge", pa.array(number))
            if made.num_rows:
                yield made


def encoded(column: pa.Array) -> pa.Array:
    """Return text, bytes or integers as ``encode_key`` encodes each of them; null for a null.

    >>> encoded(pa.array(["JFK", None])).to_pylist(), encoded(pa.array([-1]))[0].as_py().hex()
    ([b'sJFK', None], '697fffffffffffffff')
    """
    kind = column.type
    if pa.types.is_integer(kind):
        return encoded_numbers(column)
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    tag = pa.scalar(b"s" if text else b"b", pa.binary())
    return pc.binary_join_element_wise(tag, column.cast(pa.binary()), pa.scalar(b""))


def fingerprints(ids: pa.Array) -> pa.Array:
    """Return the fingerprints of ids, as ``source_ids.fingerprint`` makes them; null for a null.

    >>> fingerprints(pa.array(["event-1", None])).to_pylist()[0].hex()
    'a945a389aa4b0da955ab596c6ede1d6a'
    """
    return pa.array(
        [
            None if id is None else hashlib.sha256(id).digest()[:FINGERPRINT_BYTES]
            for id in encoded(ids).to_pylist()
        ],
        pa.binary(),
    )


def _keys(column: pa.Array) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
    """Return the encoded keys and their hashes; of a null any hash."""
    if pa.types.is_integer(column.type):
        return encoded_numbers(column), hashes_of_numbers(column)
    # Keys recur, and to find those that do costs less than to hash them again.
    distinct = column.dictionary_encode()
    keys = encoded(distinct.dictionary)
    hashes = np.fromiter(map(hash_key, keys.to_pylist()), np.uint64, len(keys))
    places = distinct.indices
    if places.null_count:
        numbers = pc.fill_null(places, 0).to_numpy()
        found = hashes[numbers] if len(hashes) else np.zeros(len(column), np.uint64)
        return keys.take(places), found
    return keys.take(places), hashes[places.to_numpy()]


def _key_column(edge: Edge, struct: pa.StructArray) -> pa.Array:
    name = one_field(edge)
    assert name is not None, "native sources have keys in columns"
    return pc.struct_field(struct, name)
