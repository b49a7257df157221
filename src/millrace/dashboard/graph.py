"""The graph of a pipeline as a checkpoint knows it: who feeds whom, how fast, how far behind.

Its last column has the sinks, and where dead letters go, with the most frequent reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from millrace.compile.change.schemas import schema_of
from millrace.compile.topology import INJECTOR
from millrace.dashboard.plain import behind, cut, millis, typed, whole
from millrace.dashboard.points import Points
from millrace.epochlog.entries import Claim, Completion
from millrace.inspect import Checkpoint, Overview, WatermarkExplanation, key_text
from millrace.inspect.overview import dead_letters_of, reasons_of
from millrace.inspect.watermark import is_idle
from millrace.kernel.user_errors import Reasons, commonest
from millrace.model.record import DeadLetter, LateRecord
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP

#: Before a stream that a sink reads, in the id of its node; an injector has its own prefix.
_SINK: Final = "sink:"
#: The node of all dead letters.
_DEAD: Final = "dead letters:"
#: Of more reasons ``millrace dead-letters`` knows.
_REASONS_MAX: Final = 30


def graph_of(
    checkpoint: Checkpoint,
    points: Points,
    stuck: Mapping[str, int],
    backlog: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Return nodes, in order of their levels, and edges.

    A record's way is not counted by edge. Where one computation or injector alone feeds another,
    what came out of the edge is known, else at most what the sender sent: ``exact`` says which.

    Args:
        checkpoint: After the last epoch.
        points: Of the epochs before.
        stuck: Computation -> calls of user code that have not returned for long.
        backlog: Injected stream -> unit -> how much waits in its source.
    """
    claim, completion, _ = checkpoint.ended
    if claim is None:
        return {"nodes": [], "edges": []}
    overview, levels = checkpoint.overview, _levels(claim)
    newest_us = _newest_us(completion)
    nodes: list[dict[str, Any]] = [
        {
            "id": INJECTOR + name,
            "kind": "injector",
            "name": name,
            "level": 0,
            "rate": points.rate("injected", name),
            "count": stream.injected,
            "dead": stream.dead_letters,
            "backlog": backlog.get(name),
            "policy": claim.injectors[name].policy if name in claim.injectors else "",
            **_source_instant(claim, completion, name, stream.low_watermark, newest_us),
        }
        for name, stream in overview.streams.items()
    ]
    for name, shown in overview.computations.items():
        counters = shown.counters
        nodes.append(
            {
                "id": name,
                "kind": "computation",
                "name": name,
                "level": levels[name],
                "rate": points.rate("records", name),
                "count": counters.records,
                "late": counters.late,
                "dead": counters.dead_letters,
                "timers": counters.timers,
                "pendingTimers": shown.pending_timers,
                "pendingWallTimers": shown.pending_wall_timers,
                "duplicates": counters.duplicates_filtered,
                "stuck": stuck.get(name, 0),
                "moved": millis(shown.moved),
                **_instant("low", shown.low_watermark, newest_us),
            }
        )
    last = 1 + max(levels.values(), default=0)
    late = [
        name for name, computation in overview.computations.items() if computation.counters.late
    ]
    sinks = _sinks(claim, late)
    nodes += [
        {"id": _SINK + route, "kind": "sink", "name": route, "level": last} for route in sinks
    ]
    dead, streams = dead_letters_of(overview), _streams_of(claim, DeadLetter)
    if dead or streams:
        nodes.append(
            {
                "id": _DEAD,
                "kind": "letters",
                "name": ", ".join(streams) or "dead letters",
                "level": last,
                "count": sum(dead.values()),
                "top": next(iter(_rows("", reasons_of(overview))), None),
            }
        )
    edges = [
        _edge(checkpoint, points, sender, name, len(senders) == 1, newest_us)
        for name, senders in claim.senders.items()
        for sender in senders
    ]
    edges += [
        _edge(checkpoint, points, feeder, _SINK + route, False, newest_us)
        for route, feeders in sinks.items()
        for feeder in feeders
    ]
    edges += [
        {"from": node["id"], "to": _DEAD, "dead": node["dead"]}
        for node in nodes
        if node["kind"] in ("injector", "computation") and node["dead"]
    ]
    return {"nodes": sorted(nodes, key=lambda item: int(item["level"])), "edges": edges}


def dead_letters_in(overview: Overview) -> list[dict[str, Any]]:
    """Return why there are dead letters and of whom, the most frequent first, with a sample."""
    rows = [
        row
        for where, reasons in (
            *((f"stream {stream.name}", stream.reasons) for stream in overview.streams.values()),
            *(
                (computation.name, computation.counters.reasons)
                for computation in overview.computations.values()
            ),
        )
        for row in _rows(where, reasons)
    ]
    return sorted(rows, key=lambda row: -int(row["count"]))[:_REASONS_MAX]


def _rows(where: str, reasons: Reasons) -> list[dict[str, Any]]:
    return [
        {
            "where": where,
            "reason": reason,
            "count": counted.count,
            "first": {
                "computation": counted.first.computation,
                "stream": counted.first.stream,
                "reason": cut(counted.first.reason),
                "key": cut(counted.first.key),
                "typed": typed(counted.first.key),
                "value": cut(counted.first.value),
                "at": millis(counted.first.timestamp),
                "epoch": counted.first.epoch,
                "place": counted.first.place,
            },
        }
        for reason, counted in commonest(reasons)
    ]


def lit_by(explanation: WatermarkExplanation) -> dict[str, Any]:
    """Return what of the graph an explanation goes along, from its end to the culprit."""
    pin = explanation.pin
    path = [hop.computation for hop in explanation.path]
    where = INJECTOR + pin.where if pin.kind in ("injector", "nothing") else pin.where
    way = [*path, where] if where != path[-1] else path
    return {
        "kind": pin.kind,
        "node": where,
        "way": way,
        "at": millis(pin.timestamp),
        "unmoved": None if explanation.unmoved is None else explanation.unmoved / 1e6,
        "key": None if pin.key is None else whole(key_text(pin.key)),
        "lines": [line.strip() for line in str(explanation).splitlines()],
    }


def _edge(
    checkpoint: Checkpoint, points: Points, sender: str, to: str, alone: bool, newest_us: int
) -> dict[str, Any]:
    completion = checkpoint.ended.completion
    stream = sender.removeprefix(INJECTOR)
    if alone:
        rate = points.rate("records", to)
    elif stream != sender:
        rate = points.rate("injected", stream)
    else:
        rate = points.rate("productions", sender)
    output_us = MIN_TIMESTAMP
    if completion is not None:
        output_us = completion.after.outputs.get(sender, MIN_TIMESTAMP)
    lag = behind(output_us, newest_us)
    return {"from": sender, "to": to, "rate": rate, "exact": alone, "lag": lag}


def _source_instant(
    claim: Claim, completion: Completion | None, stream: str, us: int, newest_us: int
) -> dict[str, Any]:
    """Return where an injector stands; it is not behind where it has nothing to say.

    Of a table that nobody waits for, rows may be as old as they are.
    """
    rests = ""
    if not any(INJECTOR + stream in senders for senders in claim.senders.values()):
        rests = "nothing waits for it"
    elif completion is not None and is_idle(claim, completion, stream):
        rests = "idle"
    instant = _instant("low", us, newest_us) | {"rests": rests}
    return instant | {"lag": None} if rests else instant


def _instant(name: str, us: int, newest_us: int) -> dict[str, Any]:
    return {name: millis(us), "ended": us >= MAX_TIMESTAMP, "lag": behind(us, newest_us)}


def _newest_us(completion: Completion | None) -> int:
    sources = {} if completion is None else completion.sources
    return max((stats.newest_us for stats in sources.values()), default=MIN_TIMESTAMP)


def _sinks(claim: Claim, late: list[str]) -> dict[str, list[str]]:
    """Return which ways to sinks there are, as streams and steps, and who feeds each.

    What a sink itself is called is not shown: that may say how to get into it.

    Args:
        claim: Of the run.
        late: The computations that have had late records.
    """
    of_late = _streams_of(claim, LateRecord)
    senders_of = claim.sink_senders.items()
    feeders = {route: late if route in of_late else senders for route, senders in senders_of}
    return {route: senders for route, senders in feeders.items() if senders or route in of_late}


def _streams_of(claim: Claim, kind: type) -> list[str]:
    """Return the streams of a kind of records that sinks read."""
    schema = schema_of(kind)
    return [stream for stream, known in claim.sinks.items() if known == schema]


def _levels(claim: Claim) -> dict[str, int]:
    """Return each computation's longest path from an injector."""
    levels: dict[str, int] = {}

    def level(name: str) -> int:
        if name.startswith(INJECTOR):
            return 0
        if name not in levels:
            levels[name] = 1 + max(map(level, claim.senders.get(name, ())), default=0)
        return levels[name]

    for name in claim.topology["computations"]:
        level(name)
    return levels
