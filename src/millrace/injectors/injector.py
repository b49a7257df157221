"""Injector: brings records in from an external system, process by process, by offsets.

What a row was in its source, for the dead letter of one that is refused later, is its
:class:`Origin`. A row carries none of it: few are refused, and each would pay. So the message is
read once more.

Source: MillWheel, "Injector and Low Watermark API" (5.2).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa

from millrace.injectors.advance import Advance, Backlog
from millrace.injectors.columns import batches_of
from millrace.injectors.follower import Follower, Polling
from millrace.injectors.refusals import without_refusals
from millrace.model.errors import PipelineError
from millrace.model.time import Instant

#: After so many a process is taken for one without an end: as many epochs would have read it.
_MOST_ADVANCES: Final = 1_000_000


class Injector(ABC):
    """Brings records in from an external system; give an instance to ``p.inject`` as its source.

    An injector has one process or several: partitions, shards, feeds. Each has an offset. For an
    epoch, the driver asks every process for its next offset (:meth:`advance`) and stores the
    answers. Then workers read the records between the offsets (:meth:`read`, or :meth:`read_arrow`
    for many records at once). After a failure the records between the same offsets are read again.
    So records count exactly once, if a process gives **the same records between the same offsets,
    in the same order, every time**.

    An instance is pickled and sent to the workers: open connections where they are used, and leave
    them out of ``__getstate__``. Its answers must not depend on earlier calls.

    >>> class Counter(Injector):
    ...     '''Two processes that count; a record's time is its number.'''
    ...
    ...     schema = "number long, at long"
    ...
    ...     def processes(self):
    ...         return ["even", "odd"]
    ...
    ...     def advance(self, process, offset):
    ...         offset = (0 if offset is None else offset) + 5
    ...         return Advance(offset, low_watermark=2 * offset)
    ...
    ...     def read(self, process, start, end):
    ...         for n in range(start or 0, end):
    ...             number = 2 * n + (process == "odd")
    ...             yield number, number
    >>> import millrace as mr
    >>> p = mr.Pipeline("numbers")
    >>> p.inject("numbers", Counter(), timestamp="at", format=int)
    Stream('numbers')
    >>> p.sink("numbers", mr.sinks.Memory())
    >>> h = mr.testing.Harness(p, publish=True)
    >>> h.poll("numbers")
    10
    >>> sorted(out.value for out in h.outputs("numbers"))
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    #: The columns of its rows, as Spark writes them: ``"name string, at timestamp"``.
    schema: str

    #: Whether to read from one offset to a second, and from there to a third, gives the same rows
    #: in the same order as to read from the first to the third, as in a log that only grows. Then a
    #: task of the real-time plane need not write down how far it reads before it does.
    seamless: bool = False

    def __new__(cls, *_args: Any, **_kwargs: Any) -> Self:
        """Make an instance of a class that says how to read."""
        if cls.read is Injector.read and cls.read_arrow is Injector.read_arrow:
            raise TypeError(
                f"{cls.__name__} cannot be made: it is an injector, and defines neither "
                "read(process, start, end), which yields rows, nor read_arrow(process, start, end),"
                " which yields batches of columns. Define one of them."
            )
        return super().__new__(cls)

    @abstractmethod
    def processes(self) -> Iterable[str]:
        """Return the names of all current processes.

        Called in the driver before every epoch, and now and then while it waits to take over. A new
        process holds the low watermark until it publishes one, or a record of it is read. A process
        that is missing from the list keeps its last low watermark, and is not asked any more. If it
        has ended, by a low watermark of MAX_TIMESTAMP, it is forgotten, and would be a new one.
        """

    @abstractmethod
    def advance(self, process: str, offset: Any) -> Advance:
        """Return the offset to which the next epoch reads a process; without news, the given one.

        Called in the driver before every epoch, for each process. It should limit the input of one
        epoch.

        Args:
            process: One of :meth:`processes`.
            offset: How far it was read; None at the beginning.

        Raises:
            InputLost: What follows the offset is gone.
        """

    def read(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, ...]]:
        """Yield the rows between two offsets, in order of the schema's columns.

        Called in a worker, any number of times, always with the same outcome. A timestamp is a
        datetime with a time zone, or microseconds. Not needed where there is :meth:`read_arrow`.

        Args:
            process: One of :meth:`processes`.
            start: An offset that :meth:`advance` returned, or None for the beginning.
            end: A later one.

        Raises:
            InputLost: Some of it is gone.
        """
        for batch in self.read_arrow(process, start, end):
            columns = without_refusals(batch).columns
            yield from zip(*(column.to_pylist() for column in columns), strict=True)

    def read_arrow(self, process: str, start: Any, end: Any) -> Iterable[pa.RecordBatch]:
        """Yield the same rows as batches of columns; by default built from those of :meth:`read`.

        Define it if the source gives columns, or many records at a time: then no record costs a
        Python object before it reaches its key. It is called like :meth:`read`. Batches may have
        any size; ten thousand to a hundred thousand rows are good. Columns are matched by name;
        those that the schema does not declare are dropped.

        Args:
            process: One of :meth:`processes`.
            start: An offset that :meth:`advance` returned, or None for the beginning.
            end: A later one.

        Raises:
            InputLost: Some of it is gone.

        >>> import numpy as np
        >>> class Counter(Injector):
        ...     '''Counts; a record's time is its number.'''
        ...
        ...     schema = "number long, at long"
        ...
        ...     def processes(self):
        ...         return ["all"]
        ...
        ...     def advance(self, process, offset):
        ...         return Advance((offset or 0) + 100_000)
        ...
        ...     def read_arrow(self, process, start, end):
        ...         numbers = np.arange(start or 0, end)
        ...         yield pa.RecordBatch.from_pydict({"number": numbers, "at": numbers})
        >>> list(Counter().read("all", 7, 9))
        [(7, 7), (8, 8)]
        """
        where = f"{type(self).__name__}.read({process!r})"
        return batches_of(self.read(process, start, end), self.schema, where)

    def split(self, process: str, start: Any, end: Any) -> Iterable[tuple[Any, Any]]:
        """Return (start, end) of the pieces that may be read by different tasks; one by default.

        Called in the driver. The same pieces must come out for the same offsets.
        """
        return [(start, end)]

    def until_now(self, process: str, before: Instant | None = None) -> Iterable[Advance]:
        """Return the advances that lead from the beginning to the current end of a process.

        ``run_batch`` reads between each two of them, as an epoch does. By default it calls
        :meth:`advance` until the offset does not change any more. Define it if the end can be found
        faster, or if the process is written to all the time.

        Called in the driver, once for each process, after :meth:`processes`.

        Args:
            process: One of :meth:`processes`.
            before: End before the first record written at or after this instant; None: read all.

        Raises:
            PipelineError: There is no end, or the instant cannot be found.
        """
        if before is not None:
            raise PipelineError(
                f"run_batch(until={before!r}): {self!r} cannot find the offset of that instant. "
                "Leave until= out, or define until_now(process, before) in "
                f"{type(self).__name__}."
            )
        offset, found = None, list[Advance]()
        while len(found) < _MOST_ADVANCES:
            advance = self.advance(process, offset)
            if advance.offset == offset:
                return found if found else [advance]
            found.append(advance)
            offset = advance.offset
        raise PipelineError(
            f"process {process!r} of {self!r} has no end after {_MOST_ADVANCES:,} advances, and "
            "run_batch() needs one. Let advance() return the same offset at the end, define "
            f"until_now(process) in {type(self).__name__}, or run the pipeline with p.start()."
        )

    def backlog(self, process: str, offset: Any) -> Backlog | None:
        """Return the backlog of a process after an offset; None, as by default, if it cannot tell.

        It is shown to users, and nothing depends on it. Called in the driver every few seconds,
        after :meth:`processes`, in a thread of its own, on a copy of the injector like a worker's.

        Args:
            process: One of :meth:`processes`.
            offset: How far it was read; None at the beginning.

        >>> class Counter(Injector):
        ...     '''Counts to a thousand.'''
        ...
        ...     schema = "number long, at long"
        ...
        ...     def processes(self):
        ...         return ["all"]
        ...
        ...     def advance(self, process, offset):
        ...         return Advance(min((offset or 0) + 100, 1000))
        ...
        ...     def read(self, process, start, end):
        ...         return ((n, n) for n in range(start or 0, end))
        ...
        ...     def backlog(self, process, offset):
        ...         return Backlog(records=1000 - (offset or 0))
        >>> Counter().backlog("all", 300).records
        700
        """
        return None

    def follow(self, places: Mapping[str, Any], *, most: int = 100_000) -> Follower:
        """Return a reader that follows some processes, in a task of the real-time plane.

        By default it polls :meth:`advance` and reads up to the new offset: at once after it found
        records, then less and less often, down to every 100 ms. Each offset is made durable before
        its records are read, so an injector needs the same properties as in an epoch; for a
        :attr:`seamless` one that is left out. Define this method if the source can wait for records
        by itself, as a consumer of Kafka does.

        Called in a worker; several tasks share an injector's processes.

        Args:
            places: Process -> offset to start from: None for the beginning, or an offset from
                :meth:`advance`, or from a follower of the same injector, perhaps in another
                incarnation.
            most: Maximum rows to return at once.
        """
        return Polling(self, places, most=most)


class Origin(NamedTuple):
    """The message or line that a row was made from.

    Attributes:
        offset: Of the row.
        place: Its position in the source, as text.
        raw: Its original bytes; None: a message without a value.
        raw_key: The original bytes of its key; None: it has none.
        row: The row that it makes now. Rows are found by counting, and a message may have been
            compacted away since: if this row differs, it is not the refused record.
    """

    offset: int
    place: str
    raw: bytes | None
    raw_key: bytes | None
    row: pa.RecordBatch


class NumberedInjector(Injector):
    """An injector whose offsets are the numbers of its rows, ascending and maybe with gaps.

    Its followers give rows these numbers, and what an epoch reads of a process is one piece.
    """

    @abstractmethod
    def origins(self, process: str, offset: Any, count: int) -> Iterable[Origin]:
        """Yield the origins of the next rows of a process from an offset on, in order.

        Called in a worker. If it raises, the error is logged, and dead letters have no origin.

        Args:
            process: One of :meth:`processes`.
            offset: To begin at; None at the beginning.
            count: How many rows, all of which were read before.
        """


class BoundInjector(Injector):
    """An injector that keeps something in the checkpoint of its run, besides offsets."""

    @abstractmethod
    def bind(self, location: str, stream: str, was: Sequence[str] = ()) -> None:
        """Take the checkpoint and the stream; called in the driver, before anything is asked.

        Args:
            location: Path or URL of the checkpoint.
            stream: That it is injected as.
            was: What the stream was called before, if no other is called so now.
        """
