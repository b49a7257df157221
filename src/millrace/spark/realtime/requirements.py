"""What the real-time plane needs of an application of Spark's, from its beginning.

Spark gathers rows, to make few large transfers of many small ones. Packets have been gathered
already: they must leave at once, and be held up where the next task is slower.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from millrace.model.errors import PipelineError

#: What Spark's tasks reserve for each reader's connection, in the budget of a writer.
_CONNECTION_BYTES = (32 << 10) + 512
#: Bytes of a buffer between two tasks: fewer than a row has, so that each row leaves at once.
_BUFFER_BYTES = 16
#: Rows on their way from one task to one other, after which the first waits. Spark counts buffers,
#: not bytes, and a row that is larger than one is one.
_ROWS_ON_THE_WAY = 3
_ROWS_MAX = 1024
#: Bytes that a task has read from those before it, and not handed to Python.
_READ_AHEAD_BYTES = 256 << 10
#: A socket's path has a hundred bytes. Spark's own choice is the JVM's temporary directory: in a
#: container of YARN its path is longer, and no Python process starts.
_SOCKETS = "/tmp"


def realtime_settings(tasks: int = 2) -> dict[str, str]:
    """Return Spark's settings that ``realtime=True`` needs from an application's beginning.

    They are for ``SparkSession.builder.config(map=...)``, or ``spark-submit --conf``. Besides, all
    tasks must be able to run at once: tasks x (levels + 1), and one more, where the levels are
    those that ``print(p.explain())`` shows. In a local session that is ``master("local[5]")`` for
    two tasks and one level. With ``standby=True`` there are twice as many tasks.

    Args:
        tasks: How many tasks a level will have.

    Raises:
        PipelineError: It is no number of tasks.

    >>> realtime_settings(tasks=2)["spark.python.udf.pipelined.enabled"]
    'true'
    """
    if type(tasks) is not int or tasks < 1:
        raise PipelineError(
            f"realtime_settings(tasks={tasks!r}): expected a number of tasks a level, 1 or more."
        )
    writer = tasks * (_CONNECTION_BYTES + _ROWS_ON_THE_WAY * _BUFFER_BYTES)
    return {
        "spark.python.udf.pipelined.enabled": "true",
        "spark.python.udf.pipelined.queueDepth": "2",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": _SOCKETS,
        "spark.python.daemon.module": "millrace.spark.daemon",
        "spark.dynamicAllocation.enabled": "false",
        "spark.shuffle.streaming.networkBufferSize": str(_BUFFER_BYTES),
        "spark.shuffle.streaming.writerMaxMemory": str(writer),
        "spark.shuffle.streaming.readerMaxMemory": str(_READ_AHEAD_BYTES),
    }


@dataclass(frozen=True)
class _Requirement:
    """One setting of the application.

    Attributes:
        name: Its name.
        default: What Spark takes it for.
        what: What it has to be, in words.
        why: What goes wrong otherwise.
        fits: Whether a value will do, for so many tasks.
    """

    name: str
    default: str
    what: str
    why: str
    fits: Callable[[str, int], bool]


def _is(wanted: str) -> Callable[[str, int], bool]:
    return lambda value, _tasks: value.strip().lower() == wanted


def _waits(value: str, tasks: int) -> bool:
    most = tasks * (_CONNECTION_BYTES + _ROWS_MAX * _BUFFER_BYTES)
    return value.strip().isdigit() and int(value) <= most


_NEEDED = (
    _Requirement(
        "spark.python.udf.pipelined.enabled",
        "false",
        "true",
        "what a task sends would leave when its input ends, hours later",
        _is("true"),
    ),
    _Requirement(
        "spark.python.unix.domain.socket.enabled",
        "false",
        "true",
        "each hand-over to Python would wait for up to 40 ms, as small parts do in TCP",
        _is("true"),
    ),
    _Requirement(
        "spark.shuffle.streaming.networkBufferSize",
        "32768",
        "at most 64",
        "small packets would wait for 50 ms until others fill a buffer with them",
        lambda value, _tasks: value.strip().isdigit() and int(value) <= 64,
    ),
    _Requirement(
        "spark.shuffle.streaming.writerMaxMemory",
        str(32 << 20),
        f"at most {_CONNECTION_BYTES + _ROWS_MAX * _BUFFER_BYTES} for each task of a level",
        "a task that is faster than the next would fill the memory: Spark counts a row of any size "
        "as one buffer",
        _waits,
    ),
    _Requirement(
        "spark.speculation",
        "false",
        "false",
        "Spark would run a task of which there may be one twice",
        _is("false"),
    ),
    _Requirement(
        "spark.dynamicAllocation.enabled",
        "false",
        "false",
        "Spark would refuse the query: all tasks of its stages must run at once",
        _is("false"),
    ),
)


def slots_needed(tasks: int, levels: int, queries: int = 1) -> int:
    """Return how many tasks must be able to run at once: all of them, and one that starts them.

    Args:
        tasks: Tasks a level.
        levels: Of the pipeline.
        queries: How many there are, each with all tasks: two where one is the standby.

    >>> slots_needed(tasks=2, levels=1), slots_needed(tasks=2, levels=1, queries=2)
    (5, 9)
    """
    return queries * tasks * (levels + 1) + 1


def wrong_settings(found: Mapping[str, str], tasks: int) -> list[str]:
    """Return what is wrong with the settings of an application, a line each.

    >>> wrong_settings(realtime_settings(tasks=4), tasks=4)
    []
    >>> for line in wrong_settings({**realtime_settings(), "spark.speculation": "true"}, 2):
    ...     print(line)
    spark.speculation is true, needed: false. Otherwise Spark would run a task of which there may \
be one twice
    """
    return [
        f"{one.name} is {value}, needed: {one.what}. Otherwise {one.why}"
        for one in _NEEDED
        if not one.fits(value := found.get(one.name, one.default), tasks)
    ]
