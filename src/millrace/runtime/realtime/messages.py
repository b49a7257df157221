"""What the tasks and the coordinator of an incarnation tell each other, outside the packets.

::

    task -> coordinator    TaskReady, MarkPassed, SourceProgress, Backpressure, TaskStatus, At,
                           TaskEnded
    coordinator -> task    StartTask, Mark, SlowestSource, Hold, SourcePause, StatusQuery,
                           RenewTask, StopTask
    its host -> task       Take

They are small and few: a pair for each mark and task. SourceProgress and SlowestSource are only
where processes may have to wait for one another, see
:mod:`millrace.runtime.realtime.source_progress`.
"""

from __future__ import annotations

import msgspec

from millrace.injectors.offsets import SourceOffset
from millrace.runtime.reports import TaskReport
from millrace.watermark.percentiles import Ahead
from millrace.watermark.report import ProcessState


class TaskReady(msgspec.Struct, array_like=True, tag="hello"):
    """A task is there, and waits for :class:`StartTask`; it knows nothing of an incarnation before.

    Attributes:
        level: Its level; 0 is an injector task.
        task: Its number in the level.
        host: Where it runs, for people.
        pid: Its process there.
        process: What tells this process from all others, as ``ProcessId`` has it; "" if unknown.
    """

    level: int
    task: int
    host: str = ""
    pid: int = 0
    process: str = ""


class StartTask(msgspec.Struct, array_like=True, tag="start"):
    """The incarnation begins.

    Attributes:
        incarnation: Its number.
        manifest: Of the epoch that the next mark ends, as JSON. Intervals stand where the
            completion before it left them, or where their last sealed commit did.
        input: Injected stream -> process -> where it is read on; those of this task only.
        consumed: (stream number, process number, last record number that any task has consumed): up
            to it, what is read was maybe sent before, and goes as it is.
        note: What the task knew when it last committed; empty if nothing is known.
        ahead: Injected stream -> this task's part of how far ahead its records came so far.
        processes: Injected stream -> process -> what is known of it, of those in ``input``.
        numbers: Injected stream -> process -> its number, of those that no complete mark knows.
        writers: What sinks are written with, pickled: in every turn, and by mark. Who owns the
            sinks says it, and a task may be started before. Empty: the process has them.
        parts: Number of an injected stream -> those of its processes that are not forgotten.
    """

    incarnation: int
    manifest: bytes
    input: dict[str, dict[str, SourceOffset]] = {}
    consumed: list[tuple[int, int, int]] = []
    note: bytes = b""
    ahead: dict[str, Ahead] = {}
    processes: dict[str, dict[str, ProcessState]] = {}
    numbers: dict[str, dict[str, int]] = {}
    writers: bytes = b""
    parts: dict[int, list[int]] = {}

    @property
    def is_new(self) -> bool:
        """Whether the task reads a process that no complete mark knows.

        >>> place = {"s": {"a": SourceOffset(0)}}
        >>> [StartTask(1, b"", place, numbers={"s": {name: 0}}).is_new for name in "ab"]
        [True, False]
        """
        return any(
            self.numbers.get(stream, {}).keys() & offsets for stream, offsets in self.input.items()
        )


class Mark(msgspec.Struct, array_like=True, tag="mark"):
    """Injector tasks are to put a mark into the stream.

    Attributes:
        number: Of the mark: the epoch that it ends.
        last: Whether nothing is to be read after it.
        draining: Whether all low watermarks go to the end of time before it.
    """

    number: int
    last: bool = False
    draining: bool = False


class Take(msgspec.Struct, array_like=True, tag="take"):
    """An injector task is to take no more rows at once; nothing depends on it.

    Attributes:
        rows: So many.
    """

    rows: int


class RenewTask(msgspec.Struct, array_like=True, tag="rest"):
    """The incarnation is over: stop at once. Another follows in this place, with a task made anew.

    That one says :class:`TaskReady` when this one is closed, and has given back all that it had.
    """


class StopTask(msgspec.Struct, array_like=True, tag="halt"):
    """The incarnation is over: stop at once, and send nothing more."""


class MarkPassed(msgspec.Struct, array_like=True, tag="passed"):
    """A task has done everything that came before a mark.

    Attributes:
        mark: Its number.
        level: The task's level.
        task: Its number.
        report: What happened in the task since the mark before.
        published: Percentile -> injected stream -> low watermark. Of an injector task what it
            published, of one of the first level what follows for smaller shares from what all said.
        input: Of an injector task: injected stream -> process -> where it stood.
        receipts: Edge to a sink -> receipt for what the task has written since the mark before.
        segment: Name of its segment that the mark ended; empty if there is none.
        note: Of a level task: what it knows now, as groups of its segment say it.
    """

    mark: int
    level: int
    task: int
    report: TaskReport
    published: dict[int, dict[str, int]] = {}
    input: dict[str, dict[str, SourceOffset]] = {}
    receipts: dict[int, bytes] = {}
    segment: str = ""
    note: bytes = b""


class TaskStatus(msgspec.Struct, array_like=True, tag="status"):
    """How a task is doing; nothing depends on it.

    Attributes:
        level: The task's level.
        task: Its number.
        records: Records and timers' keys that it has done in this incarnation.
        inputs: Computation, or injected stream at level 0, -> its low watermark there.
        commits: Groups that it appended.
        busy_s: Seconds in turns.
    """

    level: int
    task: int
    records: int
    inputs: dict[str, int]
    commits: int
    busy_s: float


class Stepped(msgspec.Struct, array_like=True, tag="stepped"):
    """How long records' steps took in a task, since it last said so; nothing depends on it.

    Attributes:
        level: The task's level.
        task: Its number.
        times: Step -> bucket of a time -> how many, as its host counts them.
    """

    level: int
    task: int
    times: dict[str, dict[int, int]]


class StatusQuery(msgspec.Struct, array_like=True, tag="ask"):
    """The host of a task is to say what the task is doing, even in the middle of a turn."""


class At(msgspec.Struct, array_like=True, tag="at"):
    """What a task is doing; nothing depends on it.

    Attributes:
        level: The task's level.
        task: Its number.
        what: In words; "" if it waits for other tasks.
        outside: Whether that is up to what is outside: the disk, a sink, a source.
        moves: How often it was seen to have moved; the same as before if it has not since.
    """

    level: int
    task: int
    what: str
    outside: bool = False
    moves: int = 0


class SourceProgress(msgspec.Struct, array_like=True, tag="reached"):
    """How far an injector task has come; others may wait for it.

    Attributes:
        level: 0.
        task: Its number.
        incarnation: Its incarnation: what one of an older incarnation says, nobody may go by.
        low_watermarks: Injected stream -> what it publishes of it. One whose processes there are
            all idle leaves the stream out.
    """

    level: int
    task: int
    incarnation: int
    low_watermarks: dict[str, int]


class SlowestSource(msgspec.Struct, array_like=True, tag="slowest"):
    """How far the slowest injector tasks have come.

    Attributes:
        low_watermarks: Injected stream -> the lowest that a task publishes which has a say.
    """

    low_watermarks: dict[str, int]


class Hold(msgspec.Struct, array_like=True, tag="hold"):
    """Which streams an operator holds back from now on; all others are read as they come.

    Attributes:
        paused: Of them nothing more is read.
        rates: Injected stream -> records a second, of each process.
    """

    paused: list[str]
    rates: dict[str, float]


class Backpressure(msgspec.Struct, array_like=True, tag="backpressure"):
    """Computations of a task have so many pending calls that they are to get no more records.

    Attributes:
        level: The task's level.
        task: Its number.
        incarnation: Its incarnation: that of an older one means nothing.
        computations: Their names; in place of those that it named before.
    """

    level: int
    task: int
    incarnation: int
    computations: list[str]


class SourcePause(msgspec.Struct, array_like=True, tag="pause"):
    """Of some streams nothing is read for now, as calls of computations behind them are pending.

    Attributes:
        streams: Those, in place of those before.
    """

    streams: list[str]


class TaskEnded(msgspec.Struct, array_like=True, tag="over"):
    """A task has ended, and will say nothing more.

    Attributes:
        level: The task's level.
        task: Its number.
        error: Pickled exception; empty if its input ended.
    """

    level: int
    task: int
    error: bytes = b""


FromTask = TaskReady | MarkPassed | SourceProgress | Backpressure | TaskStatus | TaskEnded
#: What a line carries to the driver: of a task, and of who hosts it.
ToDriver = FromTask | Stepped | At
ToHost = StatusQuery | RenewTask | StopTask
ToTask = StartTask | Mark | SlowestSource | Hold | SourcePause | Take | ToHost

encode = msgspec.msgpack.Encoder().encode
decode_to_driver = msgspec.msgpack.Decoder(ToDriver).decode
decode_to_task = msgspec.msgpack.Decoder(ToTask).decode
