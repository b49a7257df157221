"""Why is it stuck? From a computation back to what pins its low watermark.

A low watermark is the minimum over the senders and the oldest pending work, so there is always one
place that pins it: an injector, or a timer or hold of one key. This walks there, by the last
completed epoch, and reads that key from the commits of its interval. It writes nothing, runs no
user code, and needs only the checkpoint. Told with it are the processes of injectors that are held
back, for they are too far ahead of the low watermark (docs/injectors.md, "Skew").

Source: MillWheel, "Low Watermarks" (4.5 and 7.2).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.compile.topology import INJECTOR, moved_back
from millrace.dataflow.grouping.panes import address_of
from millrace.epochlog.entries import Claim, Completion, InjectorEntry, SourceStats
from millrace.injectors.rate_limit import held_in, too_far
from millrace.inspect.checkpoint import Checkpoint, read_latest
from millrace.inspect.computation import ComputationInspection, Interval
from millrace.inspect.interval_state import CALL, PendingHold, PendingTimer, WindowState, hold_of
from millrace.inspect.json_text import shortened
from millrace.inspect.overview import ComputationOverview, run_end
from millrace.kernel import families, row_codec, timer_families
from millrace.model.errors import PipelineError
from millrace.model.record import LOW_WATERMARK
from millrace.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    SECOND,
    format_duration,
    format_timestamp,
)
from millrace.store import HardState
from millrace.watermark.report import ONLY, ProcessState

INJECTED = "injector"
HOLD = "hold"
TIMER = "timer"
MISSING = "missing report"
NOTHING = "nothing"


def lines_of(found: WatermarkExplanation) -> list[str]:
    """Return an explanation, line by line."""
    first = found.path[0]
    lines = [
        f"{first.computation} shows its consumers {_moment(first.shown)}; "
        f"its input is at {_moment(first.input)}."
    ]
    for hop in found.path[1:]:
        lines.append(
            f"  Its input is pinned by {hop.computation}, which shows {_moment(hop.shown)}; "
            f"the input of that is at {_moment(hop.input)}."
        )
        lines += [f"  {line}" for line in _backwards_lines(hop.backwards, hop.shown)]
    lines += [f"  {line}" for line in _pin_lines(found)]
    if found.unmoved is not None and found.pin.kind != NOTHING:
        lines.append(
            f"  It has not moved since epoch {found.since_epoch}, for {_seconds(found.unmoved)}."
        )
    lines += [
        f"  Process {one.process!r} of stream {one.stream!r} is held back: it is "
        f"{_ahead(one.ahead)} ahead of the low watermark, and skew= allows "
        f"{format_duration(one.limit)}."
        for one in found.held
    ]
    as_of = f"As of epoch {found.epoch}, at {format_timestamp(found.wall_time)}."
    if found.unfinished is not None:
        as_of += f" Epoch {found.unfinished} was begun and is not finished: see the run's log."
    return [*lines, as_of]


def _ahead(us: int) -> str:
    """Return how far ahead of a low watermark is, of which there may be none yet."""
    return "any time" if us >= MAX_TIMESTAMP // 2 else format_duration(us)


def _backwards_lines(backwards_us: int, shown_us: int) -> list[str]:
    """Return what steps on the way make of a low watermark."""
    if not backwards_us:
        return []
    return [
        f"Steps on the way may move timestamps back by {format_duration(backwards_us)}, so it "
        f"counts as {_moment(moved_back(shown_us, backwards_us))}."
    ]


def _moment(us: int) -> str:
    """Return an instant within a sentence."""
    if us >= MAX_TIMESTAMP:
        return "the end of time"
    return "no time yet" if us <= MIN_TIMESTAMP else format_timestamp(us)


def _pin_lines(found: WatermarkExplanation) -> list[str]:
    pin = found.pin
    at = format_timestamp(pin.timestamp)
    if pin.kind == NOTHING:
        return [f"Nothing pins it: the input, {pin.where!r}, has ended."]
    if pin.kind == MISSING:
        if pin.interval is None:
            return [
                f"Pinned by {pin.where} itself, which has been in no epoch yet: it was added "
                "since. Its low watermark moves in the next epoch that completes."
            ]
        return [
            f"Pinned by interval {pin.interval} of {pin.where}, which has not reported yet. It "
            "does in the next epoch that completes."
        ]
    if pin.kind == INJECTED:
        return _injector_lines(found)
    what = f"key {shortened(repr(pin.key), pin.key)} of {pin.where}, interval {pin.interval}"
    made = "" if pin.epoch is None else f", since epoch {pin.epoch}"
    if pin.tag is None:
        return [
            f"Pinned by a hold at {at}: {what}{made}.",
            "It is let go by hold(None), or moved by hold(later), in a hook for that key.",
        ]
    if pin.tag == CALL:
        return [
            f"Pinned by a call that is pending, of a record at {at}: {what}{made}.",
            "It waits for its response, a retry or the circuit breaker. If that takes long, "
            "status().stuck has its attempts and its last error.",
        ]
    timer = f"a pending timer, tag {shortened(repr(pin.tag), pin.tag)}"
    if pin.window is not None:
        timer = f"the window {_window_text(*pin.window)}, which waits for its end or a trigger"
    if pin.at == pin.timestamp and pin.kind == TIMER:
        return [f"Pinned by {timer}, at {at}: {what}{made}."]
    return [
        f"Pinned by a hold at {at} of {timer}: {what}{made}.",
        f"It is let go when the timer fires, at {format_timestamp(pin.at or 0)} by the "
        + ("wall clock." if pin.domain == "WALL_TIME" else "low watermark."),
    ]


def _seconds(us: int) -> str:
    """Return how long something has lasted, in whole seconds from the first on.

    >>> _seconds(212_100_000), _seconds(22_704_300), _seconds(30_000)
    ('3 min 32 s', '23 s', '30 ms')
    """
    return format_duration(us if us < SECOND else round(us / SECOND) * SECOND)


def _window_text(start: int | None, end: int | None) -> str:
    """Return a window within a sentence."""
    if start is None or end is None:
        return "over all time" if end is None else f"to {format_timestamp(end)}"
    return f"from {format_timestamp(start)} to {format_timestamp(end)}"


def _injector_lines(found: WatermarkExplanation) -> list[str]:
    pin = found.pin
    policy = "" if pin.policy is None else f" ({pin.policy})"
    process = "" if pin.process is None else f", process {pin.process!r}"
    idle = pin.idle is not None
    where = f"the injector of stream {pin.where!r}{'' if idle else process}"
    if pin.timestamp <= MIN_TIMESTAMP:
        lines = [f"Pinned by {where}, which has published nothing yet{policy}."]
    else:
        published = format_timestamp(pin.timestamp)
        lines = [f"Pinned by {where}, which published {published}{policy}."]
    if pin.held_back == "paused":
        lines.append(
            "It is paused: nothing of it is read, so its low watermark stands still. "
            "`millrace resume` has it read again."
        )
    elif pin.held_back is not None:
        lines.append(
            f"It is limited to {pin.held_back}, and its low watermark moves no faster. "
            "`millrace resume` lifts the limit."
        )
    if pin.idle is not None:
        silence = _seconds(found.wall_time - (pin.received or 0))
        return [
            *lines,
            "All its processes are idle: each has been silent for longer than "
            f"idle={format_duration(pin.idle)!r}.",
            f"The last that was heard{process and process + ','} sent nothing for {silence}. "
            "The low watermark moves when one of them sends again.",
        ]
    if pin.newest is None:
        sentence = "No record of it has come"
        if pin.received is not None:
            sentence += f" in {_seconds(found.wall_time - pin.received)} of waiting"
    else:
        sentence = f"Its newest record is of {format_timestamp(pin.newest)}"
        if pin.received is not None:
            sentence += f"; it was last heard {_seconds(found.wall_time - pin.received)} ago"
    return [*lines, f"{sentence}.", *_backwards_lines(pin.backwards, pin.timestamp)]


class SkewHold(msgspec.Struct, frozen=True, kw_only=True):
    """A process that is not read until others have come closer. All times in microseconds.

    Attributes:
        stream: The injected stream.
        process: Its name.
        ahead: How far its own low watermark is ahead of the one that all wait for.
        limit: How far it may be: ``inject(skew=)``.
    """

    stream: str
    process: str
    ahead: int
    limit: int


def held_back(claim: Claim, completion: Completion) -> list[SkewHold]:
    """Return who is held back, as of a completed epoch."""
    found, shown = list[SkewHold](), completion.after.outputs
    for stream, entry in sorted(claim.injectors.items()):
        if entry.skew_us is None:
            continue
        own = {
            name: _own_us(process, entry.behind_newest_us)
            for name, process in completion.sources.get(stream, SourceStats()).processes.items()
            if process.process_watermark_us < MAX_TIMESTAMP
        }
        low_watermark_us = min(shown[sender] for sender in _together(claim, INJECTOR + stream))
        for name in sorted(too_far(own, low_watermark_us, entry.skew_us)):
            ahead = own[name] - low_watermark_us
            found.append(SkewHold(stream=stream, process=name, ahead=ahead, limit=entry.skew_us))
    return found


def _own_us(process: ProcessState, delay_us: int | None) -> int:
    if delay_us is None:
        return process.process_watermark_us
    return process.newest_us if process.newest_us == MIN_TIMESTAMP else process.newest_us - delay_us


def _together(claim: Claim, injector: str) -> set[str]:
    """Return the injectors that feed a computation together with one."""
    found = {injector}
    for name in claim.senders:
        feeding = _feeding(claim, name)
        if injector in feeding:
            found |= feeding
    return found


def _feeding(claim: Claim, name: str) -> set[str]:
    if name.startswith(INJECTOR):
        return {name}
    return set[str]().union(*(_feeding(claim, sender) for sender in claim.senders.get(name, ())))


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One computation on the way.

    Attributes:
        computation: Its name.
        input: Low watermark of its input, in microseconds.
        shown: What it shows its consumers, in microseconds.
        backwards: How far back steps between it and the one before may move timestamps: that counts
            it so much lower. In microseconds.
    """

    computation: str
    input: int
    shown: int
    backwards: int = 0

    @classmethod
    def of(cls, found: ComputationOverview, backwards: int) -> Hop:
        """Return the hop that a computation is."""
        return cls(
            computation=found.name,
            input=found.low_watermark,
            shown=found.output_low_watermark,
            backwards=backwards,
        )


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What pins a low watermark. What does not apply is None.

    Attributes:
        kind: ``injector``, ``hold``, ``timer``, ``missing report`` or ``nothing``.
        where: The computation, or the injected stream.
        timestamp: Where it pins, in microseconds.
        interval: Id of the key interval; None of a computation that has had no epoch yet.
        key: The key.
        tag: Of the timer.
        window: Of a grouping, start and end of the window that waits for the timer, in
            microseconds; None where it has none.
        at: When that timer fires, in microseconds.
        domain: ``LOW_WATERMARK`` or ``WALL_TIME``.
        epoch: The epoch that set the timer or hold; None if its commit was collected since.
        policy: Of the injector.
        process: The process, or source partition, of the injector.
        newest: Latest timestamp read from it, in microseconds.
        received: Wall clock when it last delivered something, in microseconds.
        idle: The time-out after which all processes of the injector are idle, in microseconds;
            None where one of them is not.
        backwards: Of an injector, as of a :class:`Hop`.
        held_back: What an operator asked of the injected stream: ``paused``, or a rate.
    """

    kind: str
    where: str
    timestamp: int
    interval: int | None = None
    key: Any = None
    tag: Any = None
    window: tuple[int | None, int | None] | None = None
    at: int | None = None
    domain: str | None = None
    epoch: int | None = None
    policy: str | None = None
    process: str | None = None
    newest: int | None = None
    received: int | None = None
    idle: int | None = None
    backwards: int = 0
    held_back: str | None = None


class WatermarkExplanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a low watermark is where it is.

    Attributes:
        path: From the computation that was asked about back to the one that is pinned.
        pin: What pins it.
        since_epoch: The epoch in which what is shown there last moved; None if it never did.
        unmoved: For how long by the clock of the epochs, in microseconds; None likewise.
        epoch: The last completed epoch, which all this is about.
        wall_time: Its clock, in microseconds.
        unfinished: An epoch that was begun and is not completed, though it should be.
        held: Processes of injectors that are held back, for they are too far ahead.

    ``str()`` of it is what ``millrace explain-watermark`` prints.
    """

    path: list[Hop]
    pin: Pin
    since_epoch: int | None
    unmoved: int | None
    epoch: int
    wall_time: int
    unfinished: int | None
    held: list[SkewHold] = []

    def __str__(self) -> str:
        return "\n".join(lines_of(self))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """Be drawn in a notebook as it is printed."""
        printer.text(str(self))


def explain_watermark(state: HardState, computation: str | None = None) -> WatermarkExplanation:
    """Return why a computation's low watermark is where it is, as of the last completed epoch.

    Args:
        state: The checkpoint.
        computation: Whose; by default the one that shows the lowest, and of several the one
            farthest from the injectors.

    Raises:
        PipelineError: No epoch was completed yet, or there is no such computation.
    """
    return read_latest(state, lambda checkpoint: _explained(checkpoint, computation))


def _explained(checkpoint: Checkpoint, computation: str | None) -> WatermarkExplanation:
    claim, completion, unfinished = checkpoint.ended
    if claim is None or completion is None:
        raise PipelineError(
            "no epoch of this checkpoint has completed yet, so no low watermark has moved"
            + (f": epoch {unfinished.epoch} is the first, and unfinished." if unfinished else ".")
        )
    known = checkpoint.overview.computations
    if computation is None:
        found = (known[name] for name in reversed(_by_depth(claim)))
        computation = min(found, key=lambda item: item.output_low_watermark).name
    elif computation not in known:
        raise PipelineError(f"no computation {computation!r}; there are {', '.join(known)}")
    path: list[Hop] = []
    name, pin, backwards_us = computation, None, 0
    while pin is None:
        path.append(Hop.of(known[name], backwards_us))
        outputs, back = completion.after.outputs, claim.backwards.get(name, {})
        received_us, sender = min(
            (moved_back(outputs[sender], back.get(sender, 0)), sender)
            for sender in claim.senders[name]
        )
        pin = _own_pin(checkpoint, path[-1], received_us)
        if pin is None:
            name, backwards_us = sender, back.get(sender, 0)
            if name.startswith(INJECTOR):
                pin = _injector_pin(checkpoint, claim, completion, name, backwards_us)
    pinned = INJECTOR + pin.where if pin.kind == INJECTED else path[-1].computation
    moved = completion.moved.get(pinned)
    return WatermarkExplanation(
        path=path,
        pin=pin,
        since_epoch=None if moved is None else moved[0],
        unmoved=None if moved is None else completion.wall_time_us - moved[1],
        epoch=completion.epoch,
        wall_time=completion.wall_time_us,
        # Where tasks do not end, an epoch is always under way.
        unfinished=None if unfinished is None or unfinished.live else unfinished.epoch,
        held=held_back(claim, completion),
    )


def _by_depth(claim: Claim) -> list[str]:
    """Return the computations, each after all that feed it."""
    ordered: dict[str, None] = {}

    def visit(name: str) -> None:
        for sender in sorted(claim.senders.get(name, ())):
            if not sender.startswith(INJECTOR):
                visit(sender)
        ordered.setdefault(name)

    for name in sorted(claim.topology["computations"]):
        visit(name)
    return list(ordered)


def _own_pin(checkpoint: Checkpoint, hop: Hop, received_us: int) -> Pin | None:
    """Return what pins a computation from inside; None if its input does.

    Args:
        checkpoint: Of the run.
        hop: The computation.
        received_us: What its slowest sender shows it.
    """
    name, oldest, where = hop.computation, MAX_TIMESTAMP, None
    intervals = checkpoint.intervals(name)
    if not intervals and received_us > hop.shown:
        return Pin(kind=MISSING, where=name, timestamp=hop.shown)
    for interval in sorted(intervals, key=lambda item: item.id):
        if interval.report is None:
            return Pin(kind=MISSING, where=name, timestamp=hop.shown, interval=interval.id)
        if interval.report.oldest_work_us() < oldest:
            oldest, where = interval.report.oldest_work_us(), interval
    if where is None or where.report is None or oldest >= hop.input:
        return None
    # Not one that waits for a percentile: that is never behind the low watermark, so it has fired.
    family = (
        timer_families.HOLDS
        if where.report.hold_us == oldest
        else timer_families.timers(LOW_WATERMARK)
    )
    found, epoch = _first(checkpoint, name, where, family + row_codec.time8(oldest))
    timer = found.timer if isinstance(found, PendingHold) else found
    return Pin(
        kind=HOLD if isinstance(found, PendingHold) else TIMER,
        where=name,
        timestamp=oldest,
        interval=where.id,
        key=found.key,
        tag=None if timer is None else timer.tag,
        window=None if timer is None else _window(checkpoint[name], timer),
        at=None if timer is None else timer.at,
        domain=None if timer is None else timer.domain,
        epoch=epoch,
    )


def _window(
    computation: ComputationInspection, timer: PendingTimer
) -> tuple[int | None, int | None] | None:
    """Return start and end of the window that waits for a timer; None if no grouping's does."""
    if timer.tag == CALL:
        return None
    for cell in computation.get(timer.key).values():
        if isinstance(cell, dict):
            kept = cell.get(address_of(timer.tag))
            if isinstance(kept, WindowState):
                return kept.start, kept.end
    return None


def _injector_pin(
    checkpoint: Checkpoint, claim: Claim, completion: Completion, sender: str, backwards_us: int
) -> Pin:
    stream = sender.removeprefix(INJECTOR)
    entry = claim.injectors.get(stream, InjectorEntry("", (), None))
    output_us = completion.after.outputs[sender]
    slowest = _slowest(entry, completion, stream)
    process, known = slowest or _most_recent_process(completion, stream)
    return Pin(
        kind=NOTHING if output_us >= MAX_TIMESTAMP else INJECTED,
        where=stream,
        timestamp=output_us,
        policy=entry.policy or None,
        process=process if process != ONLY else None,
        newest=None if known.newest_us == MIN_TIMESTAMP else known.newest_us,
        received=None if known.received_us == MIN_TIMESTAMP else known.received_us,
        idle=entry.idle_us if slowest is None else None,
        backwards=backwards_us,
        held_back=_held_back(checkpoint, claim.generation, stream),
    )


def _held_back(checkpoint: Checkpoint, generation: int, stream: str) -> str | None:
    """Return what an operator asked of a stream; None if nothing, or if the run has ended."""
    mailbox = checkpoint.state.mailbox
    held = held_in(mailbox, generation).get(stream)
    return None if held is None or run_end(mailbox, generation) is not None else held


def is_idle(claim: Claim, completion: Completion, stream: str) -> bool:
    """Return whether all processes of an injector have been silent for its time-out."""
    entry = claim.injectors.get(stream)
    return entry is not None and _slowest(entry, completion, stream) is None


def _slowest(
    entry: InjectorEntry, completion: Completion, stream: str
) -> tuple[str, ProcessState] | None:
    """Return the process of an injector that is furthest behind; None if all of them are idle."""
    stats = completion.sources.get(stream, SourceStats())
    processes = stats.processes
    active = {
        name: processes.get(name, ProcessState())
        for name in {*entry.expected, *processes}
        if not processes.get(name, ProcessState()).is_idle(
            entry.idle_us, completion.wall_time_us, completion.wall_time_us
        )
    }
    if not active and processes:
        return None
    if not active:
        return ONLY, ProcessState(newest_us=stats.newest_us)
    return min(
        active.items(),
        key=lambda item: (
            item[1].newest_us
            if item[1].process_watermark_us == MIN_TIMESTAMP
            else item[1].process_watermark_us,
            item[0],
        ),
    )


def _most_recent_process(completion: Completion, stream: str) -> tuple[str, ProcessState]:
    """Return the process of an injector that was heard last, and what is known of it."""
    return max(
        completion.sources[stream].processes.items(),
        key=lambda item: (item[1].received_us, item[0]),
    )


def _first(
    checkpoint: Checkpoint, name: str, interval: Interval, prefix: bytes
) -> tuple[PendingHold | PendingTimer, int | None]:
    """Return what the first row with a prefix tells of, and the epoch that put it.

    That row was put late, mostly: it is looked for from the last commit back. None is the epoch of
    one whose commit was collected: it is in a snapshot.
    """
    gone: set[bytes] = set()
    for number in range(interval.commit, 0, -1):
        commit = checkpoint.state.commits.read(checkpoint.known_name(name), interval.id, number)
        if commit is None:
            break
        changed = dict(commit.mutations)
        ours = [row for row in changed if row.startswith(prefix) and row not in gone]
        put = min((row for row in ours if changed[row] is not None), default=None)
        if put is not None:
            return _hold_or_timer(put, changed.get), commit.epoch
        gone.update(ours)
    with checkpoint.rows(name, interval) as view:
        row, _ = next(row_codec.scan(view, prefix))
        return _hold_or_timer(row, view.get), None


def _hold_or_timer(row: bytes, get: Callable[[bytes], bytes | None]) -> PendingHold | PendingTimer:
    """Return the hold or the timer that a row tells of."""
    found = families.unpack(row, get(row) or b"")
    if isinstance(found, timer_families.HoldRow):
        return hold_of(found, get)
    assert isinstance(found, timer_families.TimerRow), "only these pin a low watermark"
    return PendingTimer.of(found)
