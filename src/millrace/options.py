"""Options: what ``p.start`` and ``p.run_batch`` take, plane by plane, with defaults.

Editors and type checkers read the classes, as ``**options: Unpack[EpochOptions]``. A run reads the
same classes to refuse unknown options and to fill in defaults, so there is one list.

Source: PEP 692 (keyword arguments described by a ``TypedDict``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from millrace.balance.policy import Balance
from millrace.model.errors import PipelineError
from millrace.model.time import Duration, Instant

Options = TypeVar("Options")


@dataclass(frozen=True)
class Option:
    """Default and messages of an option.

    Attributes:
        default: Its value if it is not given.
        means: What a default of None stands for, as text; "" if None means none.
        instead: Why the other plane lacks the option, and what to do there; may be "".
    """

    default: object
    means: str = ""
    instead: str = ""


class RunOptions(TypedDict, total=False):
    """Options of both planes."""

    cache: Annotated[str | None, Option(None, "`cache` in the checkpoint on a local master")]
    """Directory for caches, on each worker's own disk; ``$NAME`` in it is a variable of the
    worker's environment. By default ``cache`` in the checkpoint where driver and workers are one
    machine, else a directory of the user in each worker's temporary directory."""

    clock: Annotated[Callable[[], int] | None, Option(None, "the machine's clock")]
    """Returns wall-clock microseconds since 1970; by default the machine's clock. In real time each
    task calls a copy of it, so it must be one that can be pickled."""

    progress: Annotated[bool | Literal["table"], Option(default=True)]
    """Whether to report progress on standard error: on a terminal in a line, during ``wait``,
    ``process_available`` and ``drain``; elsewhere in the logger ``millrace.progress``, every 30
    seconds and at the end. ``"table"``: on a terminal also in a table of the computations."""

    metrics: Annotated[int | str | None, Option(None, "nowhere")]
    """Where Prometheus scrapes metrics: a port of the driver's loopback interface, such as 9464, or
    ``"0.0.0.0:9464"``; 0 chooses a free one, see ``run.metrics_port``. By default metrics are not
    served. A port in use is refused."""

    lease: Annotated[bool | Duration, Option(default=False)]
    """Whether to take a lease on the checkpoint: of several programs one runs the pipeline, and the
    others wait with started tasks to take over if it dies: docs/how-to/keep-a-run-available.md. A
    duration sets how long the holder may be silent; True is 2 seconds, or 30 in an object store."""

    stuck_after: Annotated[Duration | None, Option("10 s")]
    """How long one call of user code may take before it is reported, with its stack: in the log,
    the status and the metrics. None: never."""

    time_limit: Annotated[Duration | None, Option(None)]
    """How long one call of user code may take before it is ended. Its record or timer becomes a
    dead letter, with the stack, and the run continues. Native code is ended when it returns to
    Python. None: no limit."""

    balance: Annotated[bool | Balance, Option(default=False)]
    """Whether key intervals are split and merged by load during the run; an ``mr.ops.Balance`` sets
    the thresholds. In real time the run pauses for each round, at most once in half a minute:
    docs/how-to/split-and-merge-key-intervals.md."""


class EpochOptions(RunOptions, total=False):
    """Options of ``p.start(spark, checkpoint=...)``, which runs epochs."""

    tasks: Annotated[int | tuple[int, int] | None, Option(None, "the session's parallelism")]
    """Tasks a level; by default the session's parallelism. It may change between runs. Two numbers,
    such as ``(1, 16)``, are a minimum and a maximum: the work of each epoch decides."""

    intervals: Annotated[int | None, Option(None, "eight a task, at least 16")]
    """Key intervals a computation, a power of two; by default eight a task and at least 16. The
    checkpoint remembers it."""

    cache_limit: Annotated[
        int | None,
        Option(
            None,
            "as many as there is state",
            "in real time a cache cannot be evicted, as what was committed since the incarnation "
            "began can be read when it is over",
        ),
    ]
    """How many bytes of disk the caches of one host may take. Above the limit the least recently
    used key intervals are evicted, and built again from the checkpoint when they are needed. None:
    no limit."""

    spark_checkpoint: Annotated[
        str | None,
        Option(
            None,
            "`spark` in the checkpoint",
            "in real time sources are read without Spark, and their offsets are in the checkpoint",
        ),
    ]
    """Directory or URL for Spark's own offsets, if Spark reads a source; by default ``spark`` in
    the checkpoint. It must be durable: without it a run cannot continue."""

    trigger: Annotated[
        Duration,
        Option(
            "50 milliseconds",
            instead="in real time there are no epochs that Spark would begin; how often a mark is "
            'made is marks="2 s"',
        ),
    ]
    """How often to poll idle sources, ``"1 s"``; if Spark reads a source, its processing-time
    interval. Spark's own default keeps a fifth of a core busy with polling."""

    attempts: Annotated[int, Option(3)]
    """How often an epoch is tried whose worker processes die, 1 or more. The last of several
    attempts finds the records that kill them, and makes them dead letters."""


class RealtimeOptions(RunOptions, total=False):
    """Options of ``p.start(spark, checkpoint=..., realtime=True)``, on long-running tasks."""

    tasks: Annotated[
        int | tuple[int, int] | None, Option(None, "as many as the slots are enough for")
    ]
    """Tasks a level; by default as many as the slots allow. Two numbers, such as ``(1, 8)``, are a
    minimum and a maximum: the number follows how busy tasks are, and changes as by an update:
    docs/how-to/size-a-cluster.md."""

    intervals: Annotated[int | None, Option(None, "two a task, at least 4")]
    """Key intervals a computation, a power of two; by default two a task and at least four. The
    checkpoint remembers it."""

    marks: Annotated[
        Duration,
        Option(
            "2 s",
            instead="each epoch ends with what a mark does; how often Spark is to look for data "
            'is trigger="50 milliseconds"',
        ),
    ]
    """How often a mark is made; while tasks are idle, once a minute. A failure repeats the work
    since the last mark, and sinks that write by mark show rows at marks. No record waits for one
    otherwise."""

    attempts: Annotated[int, Option(3)]
    """How often the pipeline's own code may fail in the same place, with no completed mark between,
    before the run gives up, 1 or more. Before the last attempt after deaths of worker processes,
    the records that kill them are found, and become dead letters."""

    # To wait too long costs minutes of a run that stands still anyway; to end what would have gone
    # on costs its work again and again, and in the end the run. So it is as long as Kafka waits for
    # a consumer that does not poll (max.poll.interval.ms), and longer than Spark does for an
    # executor that is silent.
    hang_limit: Annotated[
        Duration | None,
        Option(
            "5 min",
            instead="by epochs it is Spark that watches its tasks; a call of user code is ended by "
            "time_limit=",
        ),
    ]
    """How long a task may make no progress although it waits for no input and no other task: its
    process is stopped, runs code that never returns, or waits for a disk. Then the process is
    ended, and all tasks start again from the last mark. If user code hangs ``attempts`` times, its
    record or timer becomes a dead letter; without a dead-letter stream the run ends. At least 1.5
    times ``time_limit``. None: no limit."""

    standby: Annotated[
        bool,
        Option(
            default=False,
            instead="by epochs Spark runs a task again by itself, and none has to be kept waiting",
        ),
    ]
    """Whether a second query waits with all tasks started. When a task of the first is lost, the
    second takes over at once, and another standby is started. It needs twice the slots and the
    workers' memory, and hardly any CPU time."""

    pacemaker: Annotated[
        str | Mapping[str, str] | None,
        Option(
            None,
            "a source that Spark brings along",
            "by epochs no task has to be kept running",
        ),
    ]
    """``kafka:servers/topic``: an empty topic with one partition a task, which keeps tasks running
    instead of Spark's built-in source. Required over Spark Connect. Where brokers ask for a
    password: the options of Spark's Kafka source, such as ``{"kafka.bootstrap.servers": ...,
    "subscribe": ..., "kafka.security.protocol": ...}``."""

    host: Annotated[
        str | None,
        Option(
            None,
            "`spark.driver.host`; over Spark Connect, where this program reaches the server from",
            "by epochs no task calls this program",
        ),
    ]
    """Name or address at which workers reach this program's host. If given, the program listens on
    all interfaces of the host."""

    segments: Annotated[
        str | None,
        Option(
            None,
            "in the checkpoint",
            "a checkpoint that has them knows where they are, and one that epochs make has its "
            "commits in the checkpoint",
        ),
    ]
    """For a checkpoint in an object store: a directory that all hosts have mounted, for the commits
    of tasks; the rest stays in the bucket. Chosen when the checkpoint is made."""

    spark_batch: Annotated[
        Duration,
        Option(
            "12 h",
            instead="by epochs a batch of Spark's is an epoch, as long as its work takes",
        ),
    ]
    """How long Spark's own batches are. At the end of each, tasks are started again, which takes
    about a second and changes nothing else."""


class BatchOptions(TypedDict, total=False):
    """Options of ``p.run_batch(spark)``, over bounded sources."""

    tasks: Annotated[int | None, Option(None, "the session's parallelism")]
    """Tasks a level; by default the session's parallelism. With more tasks a failed one repeats
    less work."""

    until: Annotated[Instant | None, Option(None)]
    """Read only records that were written before this instant: ``mr.sources.Kafka`` compares the
    messages' timestamps, ``mr.sources.Files`` the times at which files were created. None: read
    all."""

    percentile: Annotated[int | None, Option(None)]
    """End the batch when this percentage of each injector's pieces has been read, and skip the rest
    of the others; see docs/time.md. None: read all pieces."""

    scratch: Annotated[str | None, Option(None)]
    """For ``percentile``: a directory, or ``s3://``, ``gs://``, ``az://``, in which driver and
    workers exchange their progress. Its files are removed at the end."""

    progress: Annotated[bool, Option(default=True)]
    """Whether to report on standard error that the batch is running: on a terminal in a line, else
    by the logger ``millrace.progress``, every 30 seconds and at the end."""


def options_of(kind: type) -> dict[str, Option]:
    """Return the options that a class describes, by name.

    >>> options_of(EpochOptions)["attempts"].default
    3
    """
    hints = get_type_hints(kind, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


#: Parameters of ``start`` that are no options: misspelt, they are given as one.
_PARAMETERS: Final = ("checkpoint", "realtime")
#: How a message calls with the options of a class, and whose they are otherwise.
_CALLS: Final = {
    EpochOptions: ("start({}=...)", "epochs"),
    RealtimeOptions: ("start(realtime=True, {}=...)", "real time"),
    BatchOptions: ("run_batch({}=...)", "batches"),
}
_OTHER_PLANE: Final = {EpochOptions: RealtimeOptions, RealtimeOptions: EpochOptions}


def check_options(kind: type, given: Mapping[str, object]) -> None:
    """Refuse what is no option.

    Args:
        kind: Class of the options that are expected.
        given: By name.

    Raises:
        PipelineError: It names the option and says whose it is, or which were meant; or a switch
            has none of its values.

    >>> check_options(RealtimeOptions, {"trigger": "1 s"})
    Traceback (most recent call last):
    millrace.model.errors.PipelineError: start(realtime=True, trigger=...): trigger= is an option \
of epochs: in real time there are no epochs that Spark would begin; how often a mark is made is \
marks="2 s". Leave it out, or leave realtime=True out.
    >>> check_options(EpochOptions, {"intervalls": 64})
    Traceback (most recent call last):
    millrace.model.errors.PipelineError: start(intervalls=...): there is no such option. Did you \
mean intervals=? The options of epochs are attempts, balance, cache, cache_limit, clock, \
intervals, lease, metrics, progress, spark_checkpoint, stuck_after, tasks, time_limit, trigger.
    """
    known = options_of(kind)
    types = get_type_hints(kind)
    for name, value in given.items():
        if name not in known:
            raise PipelineError(_refusal(kind, name, known))
        values = _switch(types[name])
        if values and not any(type(value) is type(one) and value == one for one in values):
            call = _CALLS[kind][0].format(name).replace("...", repr(value))
            *others, last = map(repr, values)
            raise PipelineError(f"{call}: expected {', '.join(others)} or {last}.")


def _switch(hint: Any) -> tuple[Any, ...]:
    """Return all values of an option's type, if those are True, False and texts; else none.

    >>> _switch(bool | Literal["table"]), _switch(bool | int)
    ((True, False, 'table'), ())
    """
    values: list[Any] = []
    for one in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if one is not bool and get_origin(one) is not Literal:
            return ()
        values += (True, False) if one is bool else get_args(one)
    return tuple(values)


def with_defaults(kind: type[Options], given: Mapping[str, Any]) -> Options:
    """Return all options of a class: those that are given, and of the others the defaults.

    Raises:
        PipelineError: See :func:`check_options`.

    >>> with_defaults(BatchOptions, {"tasks": 2})["progress"]
    True
    """
    check_options(kind, given)
    defaults = {name: option.default for name, option in options_of(kind).items()}
    return cast(Options, defaults | dict(given))


def _refusal(kind: type, name: str, known: Mapping[str, Option]) -> str:
    call, of = _CALLS[kind]
    call = call.format(name)
    other = _OTHER_PLANE.get(kind)
    elsewhere = {} if other is None else options_of(other)
    if other is not None and name in elsewhere:
        instead = elsewhere[name].instead
        why = f": {instead}" if instead else ""
        plane = "leave realtime=True out" if kind is RealtimeOptions else "give realtime=True"
        whose = _CALLS[other][1]
        return f"{call}: {name}= is an option of {whose}{why}. Leave it out, or {plane}."
    near = get_close_matches(name, [*known, *(() if kind is BatchOptions else _PARAMETERS)])
    plane = ""
    if other is not None and not near:
        near, plane = get_close_matches(name, elsewhere), f", an option of {_CALLS[other][1]}"
    meant = f" Did you mean {' or '.join(f'{one}=' for one in near)}{plane}?" if near else ""
    return (
        f"{call}: there is no such option.{meant} The options of {of} are "
        f"{', '.join(sorted(known))}."
    )
