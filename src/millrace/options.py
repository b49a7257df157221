"""Options: what ``p.start`` and ``p.run_batch`` take, plane by plane, with defaults.

An editor and a type checker read the classes, as ``**options: Unpack[EpochOptions]``; a run reads
them too, to refuse what is no option of its plane and to fill in what was not given. So there is
one list.

Source: PEP 692, of keyword arguments that a ``TypedDict`` describes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Final, Literal, TypedDict, TypeVar, cast, get_type_hints

from millrace.balance.policy import Balance
from millrace.model.errors import PipelineError
from millrace.model.time import Duration, Instant

Options = TypeVar("Options")


@dataclass(frozen=True)
class Option:
    """What is said of an option beside its type.

    Attributes:
        default: What it is where it is not given.
        means: What the run takes for a default of None, in words; "" where None stands for itself.
        instead: Why the other plane has none, and what to do there; "" if nothing more can be said.
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
    """Whether to say on standard error how far the run is: on a terminal in a line that is there
    while ``wait``, ``process_available`` or ``drain`` wait, else in a line of the logger
    ``millrace.progress`` every 30 seconds and at the end. ``"table"``: on a terminal with a table
    of the computations below it."""

    metrics: Annotated[int | str | None, Option(None, "nowhere")]
    """Where Prometheus may ask for metrics: a port of the driver's loopback interface, such as
    9464, or ``"0.0.0.0:9464"``; 0 for any that is free, see ``run.metrics_port``. By default
    nowhere. A port that is in use is refused."""

    lease: Annotated[bool | Duration, Option(default=False)]
    """Whether one of several programs runs the pipeline, while the others wait with their tasks
    started, to take over when it dies or fails: docs/how-to/keep-a-run-available.md. A time: after
    how long of silence they do; True is 2 seconds, or 30 for a checkpoint in an object store."""

    stuck_after: Annotated[Duration | None, Option("10 s")]
    """How long one call of user code may take before it is reported, with its stack: in the log,
    the status and the metrics. None: it never is."""

    time_limit: Annotated[Duration | None, Option(None)]
    """How long one call of user code may take before it is ended: its record or timer becomes a
    dead letter, with the stack, and all else goes on. Native code is ended when it returns to
    Python. None: it never is."""

    balance: Annotated[bool | Balance, Option(default=False)]
    """Whether key intervals are split and merged by load while the run goes on, or, as an
    ``mr.ops.Balance``, how hard that is tried. In real time the run stands still for each round, at
    most once in half a minute: docs/how-to/split-and-merge-key-intervals.md."""


class EpochOptions(RunOptions, total=False):
    """Options of ``p.start(spark, checkpoint=...)``, which runs epochs."""

    tasks: Annotated[int | tuple[int, int] | None, Option(None, "the session's parallelism")]
    """Tasks a level; by default the session's parallelism. It may change between runs. Two numbers,
    such as ``(1, 16)``, are the least and the most: each epoch has as many as its work is worth."""

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
    """How many bytes of disk the caches of one host may take. What is more is evicted, the least
    recently used key interval first, and built again from the checkpoint when it is needed. None:
    as many as there is state."""

    spark_checkpoint: Annotated[
        str | None,
        Option(
            None,
            "`spark` in the checkpoint",
            "in real time sources are read without Spark, and their offsets are in the checkpoint",
        ),
    ]
    """Directory or URL for Spark's own offsets, which there are where Spark reads a source; by
    default ``spark`` in the checkpoint. Durable too: without it a run cannot go on."""

    trigger: Annotated[
        str,
        Option(
            "50 milliseconds",
            instead="in real time there are no epochs that Spark would begin; how often a mark is "
            'made is marks="2 s"',
        ),
    ]
    """How often to look for data when there was none, ``"1 s"``; where Spark reads a source, its
    processing-time interval. Spark's own default keeps a core a fifth busy with asking."""

    attempts: Annotated[int, Option(3)]
    """How often an epoch is tried in which worker processes die, 1 or more. The last attempt finds
    the records of which they do, and makes them dead letters; of one there is none."""


class RealtimeOptions(RunOptions, total=False):
    """Options of ``p.start(spark, checkpoint=..., realtime=True)``, on tasks that do not end."""

    tasks: Annotated[
        int | tuple[int, int] | None, Option(None, "as many as the slots are enough for")
    ]
    """Tasks a level; by default as many as the slots are enough for. Two numbers, such as
    ``(1, 8)``, are the least and the most: how many there are follows how busy they are. Others
    take over as with an update: docs/how-to/size-a-cluster.md."""

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
    """How often a mark is made; while tasks do nothing, once a minute. After a failure as much is
    read and sent again, and what a sink takes by mark is seen as often. Nothing waits for a mark
    otherwise."""

    attempts: Annotated[int, Option(3)]
    """How often the pipeline's own code may fail in the same place, without a mark that was
    completed between, before the run gives up, 1 or more. If worker processes have died so often
    but one, the next incarnation finds the records of which they do, and makes them dead
    letters."""

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
    """How long a task may do nothing, though it does not wait for other tasks or for input: its
    process is stopped, in code that never returns, or waits for a disk. Then its process is ended,
    and all tasks begin again from the last mark. Where user code does it ``attempts`` times, the
    record or timer becomes a dead letter; without a stream for those the run ends. At least one and
    a half times ``time_limit``. None: such a task holds the run for ever."""

    standby: Annotated[
        bool,
        Option(
            default=False,
            instead="by epochs Spark runs a task again by itself, and none has to be kept waiting",
        ),
    ]
    """Whether all tasks are there twice: a second query is started, and waits. When a task of the
    first is lost, the run goes on with the second at once, and another is started behind it. It
    takes twice the slots and the memory of workers, and hardly any CPU time."""

    pacemaker: Annotated[
        str | Mapping[str, str] | None,
        Option(
            None,
            "a source that Spark brings along",
            "by epochs no task has to be kept running",
        ),
    ]
    """``kafka:servers/topic``: a topic that nobody writes to, with as many partitions as there are
    tasks, in place of what Spark brings along to keep tasks running. Over Spark Connect there has
    to be one. Where brokers ask for a password: the options of Spark's Kafka source, such as
    ``{"kafka.bootstrap.servers": ..., "subscribe": ..., "kafka.security.protocol": ...}``."""

    host: Annotated[
        str | None,
        Option(
            None,
            "`spark.driver.host`; over Spark Connect, where this program reaches the server from",
            "by epochs no task calls this program",
        ),
    ]
    """Name or address of this program's host, as workers know it: they call it. It listens on all
    of the host's interfaces then."""

    segments: Annotated[
        str | None,
        Option(
            None,
            "in the checkpoint",
            "a checkpoint that has them knows where they are, and one that epochs make has its "
            "commits in the checkpoint",
        ),
    ]
    """Of a checkpoint in an object store: a directory that all hosts have mounted, for what tasks
    commit; the rest stays in the bucket. Chosen when the checkpoint is made."""

    spark_batch: Annotated[
        Duration,
        Option(
            "12 h",
            instead="by epochs a batch of Spark's is an epoch, as long as its work takes",
        ),
    ]
    """How long Spark's own batches are. At the end of each, tasks are begun anew, which takes about
    a second; nothing else comes of it."""


class BatchOptions(TypedDict, total=False):
    """Options of ``p.run_batch(spark)``, over bounded sources."""

    tasks: Annotated[int | None, Option(None, "the session's parallelism")]
    """Tasks a level; by default the session's parallelism. More are smaller, and less is lost with
    one that fails."""

    until: Annotated[Instant | None, Option(None)]
    """Read of injectors only what was written before this instant: of ``mr.sources.Kafka``, by its
    messages' timestamps; of ``mr.sources.Files``, files that were created before. None: all there
    is."""

    percentile: Annotated[int | None, Option(None)]
    """End when so many percent of the pieces of each injector have been read, and leave what the
    others have not read by then; see docs/time.md. None: when all have."""

    scratch: Annotated[str | None, Option(None)]
    """For ``percentile``: a directory, or ``s3://``, ``gs://``, ``az://``, that driver and workers
    reach, where they tell each other how far they are. No file stays there."""

    progress: Annotated[bool, Option(default=True)]
    """Whether to say on standard error that the batch is under way: on a terminal in a line, else
    in one of the logger ``millrace.progress`` every 30 seconds and at the end."""


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
        PipelineError: It names the option and says whose it is, or which were meant.

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
    for name in given:
        if name not in known:
            raise PipelineError(_refusal(kind, name, known))


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
