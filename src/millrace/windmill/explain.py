"""Why is it stuck? From a computation back to what pins its low watermark.

A low watermark is the minimum over the senders and the oldest pending work, so there is always one
place that pins it: an injector, or a timer or hold of one key. This walks there, by the last
completed epoch, and reads that key from the commits of its interval. It writes nothing, runs no
user code, and needs only the checkpoint.

Source: MillWheel, "Low Watermarks" (4.5 and 7.2).
"""

from __future__ import annotations

from typing import Any

import msgspec

from millrace.compile.topology import INJECTOR
from millrace.model.errors import PipelineError
from millrace.model.keys import decode_key
from millrace.model.record import LOW_WATERMARK, TimeDomain
from millrace.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    format_duration,
    format_timestamp,
)
from millrace.store import HardState, MemoryCache, bring
from millrace.watermark.process import ONLY, Process
from millrace.windmill import rows
from millrace.windmill.journal import latest
from millrace.windmill.manifest import Claim, Completion, InjectorEntry

INJECTED = "injector"
HOLD = "hold"
TIMER = "timer"
MISSING = "missing report"
NOTHING = "nothing"


class Hop(msgspec.Struct, frozen=True, kw_only=True):
    """One computation on the way.

    Attributes:
        computation: Its name.
        input: Low watermark of its input, in microseconds.
        shown: What it shows its consumers, in microseconds.
    """

    computation: str
    input: int
    shown: int


class Pin(msgspec.Struct, frozen=True, kw_only=True):
    """What pins a low watermark. What does not apply is None.

    Attributes:
        kind: ``injector``, ``hold``, ``timer``, ``missing report`` or ``nothing``.
        where: The computation, or the injected stream.
        timestamp: Where it pins, in microseconds.
        interval: Id of the key interval.
        key: The key.
        tag: Of the timer.
        at: When that timer fires, in microseconds.
        domain: ``LOW_WATERMARK`` or ``WALL_TIME``.
        epoch: The epoch that set the timer or hold; None if its commit was collected since.
        policy: Of the injector.
        process: The process, or source partition, of the injector.
        newest: Latest timestamp read from it, in microseconds.
        heard: Wall clock when it last delivered something, in microseconds.
    """

    kind: str
    where: str
    timestamp: int
    interval: int | None = None
    key: Any = None
    tag: Any = None
    at: int | None = None
    domain: str | None = None
    epoch: int | None = None
    policy: str | None = None
    process: str | None = None
    newest: int | None = None
    heard: int | None = None


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a low watermark is where it is.

    Attributes:
        path: From the computation that was asked about back to the one that is pinned.
        pin: What pins it.
        since_epoch: The epoch in which what is shown there last moved; None if it never did.
        unmoved: For how long by the clock of the epochs, in microseconds; None likewise.
        epoch: The last completed epoch, which all this is about.
        wall_time: Its clock, in microseconds.
        unfinished: An epoch that was begun and is not completed.

    ``str()`` of it is what ``millrace explain-watermark`` prints.
    """

    path: list[Hop]
    pin: Pin
    since_epoch: int | None
    unmoved: int | None
    epoch: int
    wall_time: int
    unfinished: int | None

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def explain_watermark(state: HardState, computation: str | None = None) -> Explanation:
    """Return why a computation's low watermark is where it is, as of the last completed epoch.

    Args:
        state: The checkpoint.
        computation: Whose; by default the one that shows the lowest, and of several the one
            farthest from the injectors.

    Raises:
        PipelineError: No epoch was completed yet, or there is no such computation.
    """
    claim, completion, manifest = latest(state.epochs)
    if claim is None or completion is None:
        raise PipelineError(
            "no epoch of this checkpoint has completed yet, so no low watermark has moved"
            + (f": epoch {manifest.epoch} is the first, and unfinished." if manifest else ".")
        )
    names = _by_depth(claim)
    if computation is None:
        computation = min(reversed(names), key=completion.after.outputs.__getitem__)
    elif computation not in names:
        raise PipelineError(f"no computation {computation!r}; there are {', '.join(sorted(names))}")
    path: list[Hop] = []
    name, pin = computation, None
    while pin is None:
        after = completion.after
        path.append(Hop(computation=name, input=after.inputs[name], shown=after.outputs[name]))
        pin = _own_pin(state, completion, path[-1])
        if pin is None:
            senders = claim.senders.get(name)
            if not senders:
                raise PipelineError(
                    f"this checkpoint does not say who feeds {name!r}: the run that wrote it was "
                    "of an earlier version of Millrace. The next start of the pipeline adds it."
                )
            name = min(senders, key=lambda sender: (after.outputs[sender], sender))
            if name.startswith(INJECTOR):
                pin = _injector_pin(claim, completion, name)
    pinned = INJECTOR + pin.where if pin.kind == INJECTED else path[-1].computation
    moved = completion.moved.get(pinned)
    return Explanation(
        path=path,
        pin=pin,
        since_epoch=None if moved is None else moved[0],
        unmoved=None if moved is None else completion.wall_time_us - moved[1],
        epoch=completion.epoch,
        wall_time=completion.wall_time_us,
        unfinished=None if manifest is None else manifest.epoch,
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


def _own_pin(state: HardState, completion: Completion, hop: Hop) -> Pin | None:
    """Return what pins a computation from inside; None if its input does."""
    name = hop.computation
    reports = completion.reports.get(name, {})
    for entry in completion.intervals.get(name, ()):
        if entry.id not in reports:
            return Pin(kind=MISSING, where=name, timestamp=hop.shown, interval=entry.id)
    work = {interval: report.oldest_work_us() for interval, report in reports.items()}
    interval = min(work, key=lambda n: (work[n], n), default=None)
    if interval is None or work[interval] >= hop.input:
        return None
    timestamp_us = work[interval]
    number = completion.numbers[name][interval]
    if reports[interval].hold_us == timestamp_us:
        prefix = rows.HOLDS + rows.time8(timestamp_us)
    else:
        prefix = rows.timers(LOW_WATERMARK) + rows.time8(timestamp_us)
    return _pending(state, name, interval, number, prefix, timestamp_us)


def _injector_pin(claim: Claim, completion: Completion, sender: str) -> Pin:
    stream = sender.removeprefix(INJECTOR)
    entry = claim.injectors.get(stream, InjectorEntry("", (), None))
    shown_us = completion.after.outputs[sender]
    process, known = _slowest(entry, completion, stream)
    return Pin(
        kind=NOTHING if shown_us >= MAX_TIMESTAMP else INJECTED,
        where=stream,
        timestamp=shown_us,
        policy=entry.policy or None,
        process=process if process != ONLY else None,
        newest=None if known.newest_us == MIN_TIMESTAMP else known.newest_us,
        heard=None if known.heard_us == MIN_TIMESTAMP else known.heard_us,
    )


def _slowest(entry: InjectorEntry, completion: Completion, stream: str) -> tuple[str, Process]:
    """Return the process of an injector that is furthest behind, and what is known of it."""
    processes = completion.processes.get(stream, {})
    active = {
        name: processes.get(name, Process())
        for name in {*entry.expected, *processes}
        if entry.idle_us is None
        or name not in processes
        or processes[name].heard_us + entry.idle_us > completion.wall_time_us
    }
    if not active:
        return ONLY, Process(newest_us=completion.newest.get(stream, MIN_TIMESTAMP))
    return min(
        active.items(),
        key=lambda one: (
            one[1].newest_us if one[1].promised_us == MIN_TIMESTAMP else one[1].promised_us,
            one[0],
        ),
    )


def _pending(
    state: HardState, name: str, interval: int, number: int, prefix: bytes, timestamp_us: int
) -> Pin:
    """Return the pin behind the first row of a prefix that is there after a commit."""
    gone: set[bytes] = set()
    for found in range(number, 0, -1):
        commit = state.commits.read(name, interval, found)
        if commit is None:
            break
        changed = dict(commit.mutations)
        ours = [row for row in changed if row.startswith(prefix) and row not in gone]
        put = min((row for row in ours if changed[row] is not None), default=None)
        if put is not None:
            return _pin(changed, name, interval, put, timestamp_us, commit.epoch)
        gone.update(ours)
    # Its commit was collected: it is in a snapshot.
    cache = MemoryCache(name, interval)
    bring(cache, state, name, interval, number)
    with cache.view() as view:
        row = next(rows.scan(view, prefix))[0]
        held: dict[bytes, bytes | None] = dict(rows.everything(view))
        return _pin(held, name, interval, row, timestamp_us, None)


def _pin(
    stored: dict[bytes, bytes | None],
    name: str,
    interval: int,
    row: bytes,
    timestamp_us: int,
    epoch: int | None,
) -> Pin:
    """Return what a row of a hold or a timer says, with the help of the rows around it."""
    found = rows.unpack(row, stored[row] or b"")
    assert isinstance(found, rows.HoldRow | rows.TimerRow), "only these pin a low watermark"
    timer = found if isinstance(found, rows.TimerRow) else _timer_of(found, stored)
    return Pin(
        kind=HOLD if isinstance(found, rows.HoldRow) else TIMER,
        where=name,
        timestamp=timestamp_us,
        interval=interval,
        key=decode_key(found.key),
        tag=None if timer is None else decode_key(timer.tag),
        at=None if timer is None else timer.at_us,
        domain=None if timer is None else TimeDomain(timer.domain).name,
        epoch=epoch,
    )


def _timer_of(hold: rows.HoldRow, stored: dict[bytes, bytes | None]) -> rows.TimerRow | None:
    """Return the timer that holds; None if its key does.

    A timer's hold is put, and kept, together with the timer; a key's hold ends with the key.
    """
    named = hold.tag_row()
    if named is None:
        return None
    by_time = rows.TagRow.unpack(named, stored[named] or b"").timer_row()
    return rows.TimerRow.unpack(by_time, stored[by_time] or b"")


# -- in words --------------------------------------------------------------------------------------


def _lines(found: Explanation) -> list[str]:
    first = found.path[0]
    lines = [
        f"{first.computation} shows its consumers {_moment(first.shown)}; "
        f"its input is at {_moment(first.input)}."
    ]
    lines += [
        f"  Its input is pinned by {hop.computation}, which shows {_moment(hop.shown)}; "
        f"the input of that is at {_moment(hop.input)}."
        for hop in found.path[1:]
    ]
    lines += [f"  {line}" for line in _pin_lines(found)]
    if found.unmoved is not None and found.pin.kind != NOTHING:
        lines.append(
            f"  It has not moved since epoch {found.since_epoch}, for "
            f"{format_duration(found.unmoved)}."
        )
    as_of = f"As of epoch {found.epoch}, at {format_timestamp(found.wall_time)}."
    if found.unfinished is not None:
        as_of += f" Epoch {found.unfinished} was begun and is not finished: see the run's log."
    return [*lines, as_of]


def _moment(us: int) -> str:
    """Return an instant within a sentence."""
    if us >= MAX_TIMESTAMP:
        return "the end of time"
    return "no time yet" if us <= MIN_TIMESTAMP else format_timestamp(us)


def _pin_lines(found: Explanation) -> list[str]:
    pin = found.pin
    at = format_timestamp(pin.timestamp)
    if pin.kind == NOTHING:
        return [f"Nothing pins it: the input, {pin.where!r}, has ended."]
    if pin.kind == MISSING:
        return [
            f"Pinned by interval {pin.interval} of {pin.where}, which has not reported yet. It "
            "does in the next epoch that completes."
        ]
    if pin.kind == INJECTED:
        return _injector_lines(found)
    what = f"key {pin.key!r} of {pin.where}, interval {pin.interval}"
    made = "" if pin.epoch is None else f", since epoch {pin.epoch}"
    if pin.tag is None:
        return [
            f"Pinned by a hold at {at}: {what}{made}.",
            "It is let go by hold(None), or moved by hold(later), in a hook for that key.",
        ]
    if pin.at == pin.timestamp and pin.kind == TIMER:
        return [f"Pinned by a pending timer, tag {pin.tag!r}, at {at}: {what}{made}."]
    return [
        f"Pinned by a hold at {at} of a pending timer, tag {pin.tag!r}: {what}{made}.",
        f"It is let go when the timer fires, at {format_timestamp(pin.at or 0)} by the "
        + ("wall clock." if pin.domain == "WALL_TIME" else "low watermark."),
    ]


def _injector_lines(found: Explanation) -> list[str]:
    pin = found.pin
    policy = "" if pin.policy is None else f" ({pin.policy})"
    process = "" if pin.process is None else f", process {pin.process!r}"
    where = f"the injector of stream {pin.where!r}{process}"
    if pin.timestamp <= MIN_TIMESTAMP:
        lines = [f"Pinned by {where}, which has published nothing yet{policy}."]
    else:
        published = format_timestamp(pin.timestamp)
        lines = [f"Pinned by {where}, which published {published}{policy}."]
    if pin.newest is None:
        heard = "No record of it has come"
        if pin.heard is not None:
            heard += f" in {format_duration(found.wall_time - pin.heard)} of waiting"
    else:
        heard = f"Its newest record is of {format_timestamp(pin.newest)}"
        if pin.heard is not None:
            heard += f"; it was last heard {format_duration(found.wall_time - pin.heard)} ago"
    return [*lines, f"{heard}."]
