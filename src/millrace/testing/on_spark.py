"""Transcripts on Spark: all of them in one query, by epochs or in real time, or in one batch.

It drives the session that it is given, and imports no PySpark. Each transcript is a grouping of one
pipeline, and a file of the source is an epoch: see :mod:`~millrace.testing.timetable`. In real time
an epoch of the timetable is what lies between two marks at which all has been processed.

Script: what a test feeds to a run in real time, entry by entry, and the clock of that run.

Tasks of a real-time run live in processes of their own for as long as the run does. So a test
writes what comes next to files, and the tasks read those: injected streams and the wall clock.
"""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.connectors.parquet.sink import Parquet
from millrace.injectors.advance import Advance
from millrace.injectors.injector import Injector
from millrace.model.errors import PipelineError
from millrace.pipeline import Pipeline
from millrace.testing.output import Output, outputs_of
from millrace.testing.player import TranscriptMismatch, play
from millrace.testing.timetable import COLUMNS, Played, Timetable
from millrace.testing.transcript import Transcript

_PROCESS = "script"


class _Entry(msgspec.Struct):
    """What is read at once: rows, and what the stream promises after them."""

    rows: list[list[Any]]
    low_watermark: int | None = None


class ScriptedStream(Injector):
    """An injector of one process that reads what a test has appended; an entry is an advance.

    Args:
        folder: For the entries, where driver and tasks find it. It is made.
        schema: Columns of the rows, as Spark writes them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     words = ScriptedStream(Path(folder) / "words", "word string, at long")
    ...     words.append([("tea", 5)], low_watermark=7)
    ...     advance = words.advance("script", None)
    ...     advance, list(words.read("script", None, 1)), words.advance("script", 1)
    (Advance(offset=1, low_watermark=7), [('tea', 5)], Advance(offset=1, low_watermark=None))
    """

    def __init__(self, folder: Path, schema: str) -> None:
        self.schema = schema
        self._folder = folder
        self._appended = 0
        folder.mkdir(parents=True)

    def append(
        self, rows: Iterable[Sequence[Any]] = (), *, low_watermark: int | None = None
    ) -> None:
        """Let there be more to read.

        Args:
            rows: In order of the columns; values that JSON can say, instants as microseconds.
            low_watermark: What the stream promises after them, in microseconds.
        """
        entry = _Entry([list(row) for row in rows], low_watermark)
        _put(self._file(self._appended), msgspec.json.encode(entry))
        self._appended += 1

    def processes(self) -> list[str]:
        """Return the one process."""
        return [_PROCESS]

    def advance(self, process: str, offset: Any) -> Advance:
        """Go on by one entry, if it is there."""
        at = offset or 0
        file = self._file(at)
        return Advance(at + 1, _read(file).low_watermark) if file.exists() else Advance(at)

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of entries."""
        for at in range(start or 0, end):
            yield from map(tuple, _read(self._file(at)).rows)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06}.json"


class ScriptedClock:
    """A wall clock that stands where a test has set it, in every process of a run.

    Args:
        file: Has the time, where driver and tasks find it. It is made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clock = ScriptedClock(Path(folder) / "clock")
    ...     clock.set(7)
    ...     clock()
    7
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def __call__(self) -> int:
        """Return it, in microseconds."""
        return int(self._file.read_bytes())

    def set(self, to_us: int) -> None:
        """Set it."""
        _put(self._file, b"%d" % to_us)


def _read(file: Path) -> _Entry:
    return msgspec.json.decode(file.read_bytes(), type=_Entry)


def _put(file: Path, data: bytes) -> None:
    """Write a file that others may look for at any moment."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_bytes(data)
    hidden.rename(file)


#: Arrow's names of the types in :data:`COLUMNS`.
_TYPES = {
    "int": pa.int32(), "bigint": pa.int64(), "string": pa.string(), "boolean": pa.bool_(),
}  # fmt: skip

_SCHEMA = pa.schema(
    [(name, _TYPES[type]) for name, type in (column.split() for column in COLUMNS.split(", "))]
)

#: Columns of what is read in real time: low watermarks stand beside them.
_LINES = "grouping int, key string, value string, at bigint"
#: How long a step may take in real time: an incarnation that begins anew is within it.
_STEP = "120 s"


def play_on_spark(
    spark: Any,
    transcripts: Transcript | Iterable[Transcript],
    *,
    batch: bool = False,
    realtime: bool = False,
    folder: str | Path | None = None,
) -> None:
    """Run transcripts on Spark, side by side in one query, and compare.

    It does the same as :func:`~millrace.testing.play`, which runs one in the Harness, and raises
    the same errors. A query takes some seconds to start and some tenths of a second for each epoch,
    however large it is, so many transcripts take little longer than one.

    Args:
        spark: A session, classic. Workers must be able to import what the transcripts name, as they
            must for any pipeline.
        transcripts: One or more. A ``crash`` stops the query and starts it again; in real time it
            kills a worker process.
        batch: Play them with ``run_batch``. Then all records exist from the start and none is late,
            so it is only for transcripts that check panes once, at the end of the input.
        realtime: Play them on the real-time plane, of a local session with
            :func:`~millrace.spark.realtime_settings` for two tasks. Those that set percentiles of
            the low watermark cannot be: there they are estimated from many records.
        folder: For source files and the checkpoint, where driver and workers find it; by default a
            temporary one of this machine, for a local session. What is written is removed.

    Raises:
        TranscriptMismatch: One or more did not hold; each is named.
        PipelineError: One cannot be played so; nothing was run.
    """
    together = [transcripts] if isinstance(transcripts, Transcript) else list(transcripts)
    mismatches = []
    runs = run_on_spark(spark, together, batch=batch, realtime=realtime, folder=folder)
    for each, played in zip(together, runs, strict=True):
        try:
            play(each, played)
        except TranscriptMismatch as mismatch:
            mismatches.append(mismatch)
    if len(mismatches) == 1:
        raise mismatches[0]
    if mismatches:
        on_epoch = "\n".join(str(mismatch) for mismatch in mismatches)
        raise TranscriptMismatch(f"{len(mismatches)} of {len(together)} transcripts:\n{on_epoch}")


def run_on_spark(
    spark: Any,
    transcripts: Iterable[Transcript],
    *,
    batch: bool = False,
    realtime: bool = False,
    folder: str | Path | None = None,
) -> list[Played]:
    """Run transcripts on Spark, and return what each of them made, to be played.

    For a test of its own for each transcript, and one query for all: run them in a fixture, and
    ``play(transcript, played)`` in the test. Arguments and errors are those of
    :func:`play_on_spark`, but nothing is compared yet.
    """
    together = list(transcripts)
    if not together:
        raise PipelineError("there are no transcripts to be run.")
    if batch and (unfit := [each.name for each in together if not each.is_batch]):
        raise PipelineError(
            f"transcripts {unfit} cannot be played as a batch, where nothing is late and all panes "
            "come at the end. They need the default trigger, no late records, and one look at the "
            "panes, after `watermark: end of time`. Play them without batch=True."
        )
    if batch and realtime:
        raise PipelineError("batch=True, realtime=True: a batch is not run in real time. Give one.")
    if realtime and (unfit := [each.name for each in together if each.has_percentiles]):
        raise PipelineError(
            f"transcripts {unfit} cannot be played in real time: they set percentiles of the low "
            "watermark, which tasks there estimate from the records that they read. Play them "
            "without realtime=True."
        )
    timetable = Timetable(together)
    with _below(folder) as place:
        if realtime:
            return timetable.played(_live(spark, timetable, place))
        source = _Source(timetable, place / "source")
        if batch:
            return timetable.played(_batch(spark, timetable, source))
        return timetable.played(_stream(spark, timetable, source, str(place / "checkpoint")))


class _Panes:
    """A sink that keeps each epoch's records, and tells of each epoch, empty or not."""

    single_pass = True

    def __init__(self, on_epoch: Callable[[int], None]) -> None:
        self.epochs: dict[int, list[Output]] = {}
        self._on_epoch = on_epoch

    def __call__(self, rows: Any, epoch: int) -> None:
        self.epochs[epoch] = outputs_of(rows)
        self._on_epoch(epoch)


class _Clock:
    """The wall clock of the epoch that comes next."""

    def __init__(self) -> None:
        self.now_us = 0

    def __call__(self) -> int:
        return self.now_us


class _Source:
    """Files of the source, one for each epoch; one without rows is an epoch, too.

    Spark forgets what it has planned when it is stopped between its choice of files and its note of
    them, and then takes those and one more. So there is never more than the next one.
    """

    def __init__(self, timetable: Timetable, folder: Path) -> None:
        self.folder = folder
        self._timetable = timetable
        folder.mkdir()

    def write(self, epoch: int) -> None:
        """Write the file of an epoch, if it is not there yet."""
        file = self.folder / f"{epoch:06}.parquet"
        if not file.exists():
            rows = pa.Table.from_pylist(self._timetable.rows(epoch), schema=_SCHEMA)
            hidden = file.with_name(f".{file.name}")
            pq.write_table(rows, hidden)
            hidden.rename(file)  # Spark may look at any moment


def _stream(
    spark: Any, timetable: Timetable, source: _Source, checkpoint: str
) -> list[list[Output]]:
    """Run a timetable as a query; an epoch takes one file of its source."""
    clock, crashed, over = _Clock(), threading.Event(), threading.Event()
    last = len(timetable.epochs) - 1

    def on_epoch(epoch: int) -> None:
        following = min(epoch + 1, last)
        clock.now_us = timetable.epochs[following].clock_us
        source.write(following)
        if timetable.epochs[min(epoch, last)].crash:
            crashed.set()
        if epoch >= last:
            over.set()

    panes = _Panes(on_epoch)
    source.write(0)
    reader = spark.readStream.schema(COLUMNS)
    while not over.is_set():
        crashed.clear()
        p = _pipeline(timetable, reader.parquet(str(source.folder)), panes)
        # Some fifty groupings have a commit for each of their intervals.
        run = p.start(spark, checkpoint=checkpoint, clock=clock, intervals=1)
        try:
            while not (over.is_set() or crashed.is_set()):
                if run.wait("50 ms"):
                    raise PipelineError("the run of the transcripts was stopped from outside.")
        finally:
            run.stop()
    return [panes.epochs.get(epoch, []) for epoch in range(last + 1)]


def _live(spark: Any, timetable: Timetable, place: Path) -> list[list[Output]]:
    """Run a timetable in real time; what comes between two looks at the sink is an epoch."""
    clock = ScriptedClock(place / "clock")
    sources = {name: ScriptedStream(place / name, _LINES) for name in timetable.streams}
    p = timetable.pipeline(sources)
    p.sink("panes", Parquet(place / "panes"))
    run = p.start(
        spark,
        checkpoint=str(place / "checkpoint"),
        clock=clock,
        intervals=4,
        progress=False,
        realtime=True,
        tasks=2,
    )
    found, looked, killed = [], -1, 0
    try:
        for epoch in timetable.epochs:
            clock.set(epoch.clock_us)
            for name, source in sources.items():
                rows = [
                    (line.grouping, line.key, line.value, at_us)
                    for stream, line, at_us in epoch.lines
                    if stream == name
                ]
                low_watermark = epoch.low_watermarks.get(name)
                if rows or low_watermark is not None:
                    source.append(rows, low_watermark=low_watermark)
            if not run.process_available(_STEP):
                run.wait(0)  # raises what has ended it
                raise PipelineError(f"a step of the transcripts was not over within {_STEP}.")
            looked, outputs = _marked(place / "panes", looked)
            found.append(outputs)
            if epoch.crash:
                _kill_worker(run, killed)
                killed += 1
    finally:
        run.stop()
    return found


def _marked(folder: Path, after: int) -> tuple[int, list[Output]]:
    """Return the last mark that a sink shows, and its rows since an earlier one."""
    marks = {int(mark.name.partition("=")[2]): mark for mark in folder.glob("epoch=*")}
    found = list[Output]()
    for mark in sorted(mark for mark in marks if mark > after):
        for file in sorted(marks[mark].glob("*.parquet")):
            found += outputs_of(pq.ParquetFile(file).read())
    return max(marks, default=after), found


def _kill_worker(run: Any, number: int) -> None:
    """Kill the process of one task, each time another's."""
    hosts = sorted(run.hosts.items())
    _, host = hosts[number % len(hosts)]
    os.kill(host.pid, signal.SIGKILL)


def _batch(spark: Any, timetable: Timetable, source: _Source) -> list[list[Output]]:
    """Run a timetable as a batch: all panes come at the end."""
    panes = _Panes(lambda _: None)
    for epoch in range(len(timetable.epochs)):
        source.write(epoch)
    rows = spark.read.schema(COLUMNS).parquet(str(source.folder))
    _pipeline(timetable, rows, panes).run_batch(spark)
    return [panes.epochs[0]]


def _pipeline(timetable: Timetable, rows: Any, sink: _Panes) -> Pipeline:
    sources = {
        name: rows.filter(rows.stream == number).drop("stream")
        for number, name in enumerate(timetable.streams)
    }
    p = timetable.pipeline(sources)
    p.sink("panes", sink)
    return p


@contextmanager
def _below(folder: str | Path | None) -> Iterator[Path]:
    """Give a new folder, and remove it."""
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="transcripts-", dir=folder) as place:
        yield Path(place)
