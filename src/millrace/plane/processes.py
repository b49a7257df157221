"""What rows tell of the processes of their injector: who sent them, and what it promises.

Rows of a source that names its processes, or publishes its own low watermark, carry it in the
columns ``process`` and ``promised``; others have nulls there, or no such columns.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.plane import wire
from millrace.watermark.process import ONLY, Process

#: The columns, besides those of the record.
COLUMNS: Final = ("process", "promised")


def note(report: wire.TaskReport, stream: str, rows: pa.Table, latest_us: int) -> None:
    r"""Add to a task's report what accepted records, or punctuation, tell of their processes.

    A promise after ``latest_us``, and not at the end of time, is refused and counted: a broken
    clock would make everything late that follows. A name that is not UTF-8, such as a column of
    bytes may have, is known by its escapes, ``\xff``.

    Args:
        report: Of the task.
        stream: The injected stream.
        rows: With the columns ``ts``, null in punctuation, ``process`` and ``promised``.
        latest_us: Of the stream.
    """
    if not rows.num_rows:
        return
    # Where all rows say the same, it may come with a dictionary, or as nulls of no type.
    promised, named = rows.column("promised").cast(pa.int64()), rows.column("process")
    valid = pc.fill_null(
        pc.or_(pc.less_equal(promised, latest_us), pc.greater_equal(promised, MAX_TIMESTAMP)), True
    )
    wrong = rows.num_rows - int(np.count_nonzero(valid.to_numpy()))
    if wrong:
        promised = pc.if_else(valid, promised, pa.scalar(None, pa.int64()))
        report.refused[stream] = report.refused.get(stream, 0) + wrong
    table = pa.table(
        {
            # As bytes: nobody has seen to it that text of Spark's is UTF-8.
            "process": pc.fill_null(named.cast(pa.string()).cast(pa.binary()), ONLY.encode()),
            "ts": rows.column("ts"),
            "promised": promised,
        }
    )
    grouped = table.group_by("process").aggregate([("ts", "max"), ("promised", "max")])
    known = report.processes.setdefault(stream, {})
    for row in grouped.to_pylist():
        newest_us, promised_us = (
            MIN_TIMESTAMP if us is None else us for us in (row["ts_max"], row["promised_max"])
        )
        process = Process(newest_us, min(promised_us, MAX_TIMESTAMP))
        name = row["process"].decode("utf-8", "backslashreplace")
        known[name] = known.get(name, Process()).merged(process)
