"""The wire: the rows that travel between the stages of one epoch's plan.

Every row names the edge it travels, so one shuffle a level serves every edge. Rows that are not
records have negative edge numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.watermark.propagation import Message

#: A task's message to every task of the next level: what low watermarks its intervals show.
CONTROL: Final = -1
#: A task's message to the driver, passed on by the levels below.
REPORT: Final = -2
#: A row of a native source that Spark could not give a time or a key.
REFUSED: Final = -3
#: A row of a source that is no record: it carries a low watermark.
PUNCTUATION: Final = -4

#: Partials travel an edge under its number and this.
_LIFTED: Final = 1 << 24

#: Many records for a sink travel in one row under the number of its edge and this.
_BATCHED: Final = 1 << 25

#: The bits that are the number of an edge.
NUMBER: Final = ~(_LIFTED | _BATCHED)

#: Columns of the records in such a row, beside their fields. Keys are encoded, null for none.
BATCH: Final = ("_key", "_at", "_origin", "_sequence")

#: Columns between levels. ``pid`` is the task that the row goes to; ``hash`` is the key's, signed
#: as Spark has it; ``origin`` and ``sequence`` are the record's id.
SCHEMA: Final = pa.schema(
    [
        ("pid", pa.int32()),
        ("edge", pa.int32()),
        ("hash", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ts", pa.int64()),
        ("origin", pa.int64()),
        ("sequence", pa.int64()),
    ]
)
DDL: Final = (
    "pid int, edge int, hash long, key binary, value binary, ts long, origin long, sequence long"
)
COLUMNS: Final = tuple(SCHEMA.names)
#: Column with the fingerprint of a record's source id, from a source with ids as far as level 1 or
#: the encode stage; from there on it stands before the value.
FINGERPRINT: Final = "fingerprint"


def lifted(edge: int) -> int:
    """Return the number under which partials travel an edge."""
    return edge | _LIFTED


def batched(edge: int) -> int:
    """Return the number under which many records travel an edge in one row."""
    return edge | _BATCHED


def are_lifted(edges: Any) -> Any:
    """Return of rows, none of them messages, whether each is a partial."""
    return (edges & _LIFTED) != 0


def plain(edges: Any) -> Any:
    """Return the numbers of edges, whatever travels them; for any integers."""
    return edges & NUMBER


encode = msgspec.msgpack.Encoder().encode
decode_message = msgspec.msgpack.Decoder(Message).decode


def where(rows: Any, mask: npt.NDArray[np.bool_]) -> Any:
    """Return the rows of a table or batch for which a mask is true, in their order.

    Rows that stand together are a slice, which costs a hundredth of a filter: in small bundles most
    do.

    >>> batch = messages(CONTROL, b"", np.arange(4, dtype=np.int32))
    >>> where(batch, np.array([False, True, True, False])).column("pid").to_pylist()
    [1, 2]
    """
    count = int(np.count_nonzero(mask))
    if count == len(mask):
        return rows
    first = int(mask.argmax()) if count else 0
    if mask[first : first + count].all():
        return rows.slice(first, count)
    return rows.filter(pa.array(mask))


def together(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """Return batches as one table, with null where one has not the columns of another.

    Those of several sources differ: in the columns of a value, and in whether what all rows of a
    batch say alike comes with a dictionary.

    >>> names = pa.array(["a"]).dictionary_encode()
    >>> made = [{"x": names, "n": pa.nulls(1)}, {"x": ["b"], "n": [7], "s1": [5]}]
    >>> together([pa.RecordBatch.from_pydict(one) for one in made]).to_pydict()
    {'x': ['a', 'b'], 'n': [None, 7], 's1': [None, 5]}
    """
    first = batches[0].schema
    if all(batch.schema == first for batch in batches):
        return pa.Table.from_batches(batches)
    tables = [pa.table([_plain(column) for column in b.columns], b.schema.names) for b in batches]
    return pa.concat_tables(tables, promote_options="default")


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def control_rows(message: Message, tasks: int) -> pa.RecordBatch:
    """Return one row a task of the next level, carrying low watermarks."""
    return messages(CONTROL, encode(message), np.arange(tasks, dtype=np.int32))


def messages(
    edge: int, value: bytes, pids: np.ndarray[tuple[int], np.dtype[np.int32]]
) -> pa.RecordBatch:
    """Return rows with one value for several tasks."""
    count = len(pids)
    nothing = pa.nulls(count, pa.int64())
    return pa.RecordBatch.from_arrays(
        [
            pa.array(pids),
            pa.array(np.full(count, edge, dtype=np.int32)),
            nothing,
            pa.nulls(count, pa.binary()),
            pa.array([value] * count, pa.binary()),
            nothing,
            nothing,
            nothing,
        ],
        schema=SCHEMA,
    )


def parts_by_task(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each task, in their order."""
    pids = batch.column("pid").to_numpy()
    if not len(pids):
        return
    if (pids == pids[0]).all():
        yield int(pids[0]), batch
        return
    # Numbers of 16 bits are sorted by their digits, in a tenth of the time.
    few = pids.astype(np.uint16) if pids.max() < 1 << 16 else pids
    order = np.argsort(few, kind="stable")
    if (order[1:] < order[:-1]).any():
        batch, pids = batch.take(pa.array(order)), pids[order]
    cuts = [0, *(np.flatnonzero(np.diff(pids)) + 1).tolist(), len(pids)]
    for first, end in itertools.pairwise(cuts):
        yield int(pids[first]), batch.slice(first, end - first)
