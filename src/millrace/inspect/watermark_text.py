"""Why a low watermark is where it is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.inspect.json_text import shortened
from millrace.model.time import (
    MAX_TIMESTAMP,
    MIN_TIMESTAMP,
    format_duration,
    format_timestamp,
)

if TYPE_CHECKING:
    from millrace.inspect.watermark import Explanation

INJECTED = "injector"
HOLD = "hold"
TIMER = "timer"
MISSING = "missing report"
NOTHING = "nothing"


def lines_of(found: Explanation) -> list[str]:
    """Return an explanation, line by line."""
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
    what = f"key {shortened(repr(pin.key), pin.key)} of {pin.where}, interval {pin.interval}"
    made = "" if pin.epoch is None else f", since epoch {pin.epoch}"
    if pin.tag is None:
        return [
            f"Pinned by a hold at {at}: {what}{made}.",
            "It is let go by hold(None), or moved by hold(later), in a hook for that key.",
        ]
    timer = f"a pending timer, tag {pin.tag!r}"
    if pin.window is not None:
        timer = f"the window {_window_text(*pin.window)}, which waits for its end or a trigger"
    if pin.at == pin.timestamp and pin.kind == TIMER:
        return [f"Pinned by {timer}, at {at}: {what}{made}."]
    return [
        f"Pinned by a hold at {at} of {timer}: {what}{made}.",
        f"It is let go when the timer fires, at {format_timestamp(pin.at or 0)} by the "
        + ("wall clock." if pin.domain == "WALL_TIME" else "low watermark."),
    ]


def _window_text(start: int | None, end: int | None) -> str:
    """Return a window within a sentence."""
    if start is None or end is None:
        return "over all time" if end is None else f"to {format_timestamp(end)}"
    return f"from {format_timestamp(start)} to {format_timestamp(end)}"


def _injector_lines(found: Explanation) -> list[str]:
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
    if pin.idle is not None:
        silence = format_duration(found.wall_time - (pin.heard or 0))
        return [
            *lines,
            "All its processes are idle: each has been silent for longer than "
            f"idle={format_duration(pin.idle)!r}.",
            f"The last that was heard{process and process + ','} sent nothing for {silence}. "
            "The low watermark moves when one of them sends again.",
        ]
    if pin.newest is None:
        heard = "No record of it has come"
        if pin.heard is not None:
            heard += f" in {format_duration(found.wall_time - pin.heard)} of waiting"
    else:
        heard = f"Its newest record is of {format_timestamp(pin.newest)}"
        if pin.heard is not None:
            heard += f"; it was last heard {format_duration(found.wall_time - pin.heard)} ago"
    return [*lines, f"{heard}."]
