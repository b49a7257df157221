"""Feeding: pipelines fed by more than records with a time: calls, signals, timers alone, the clock.

What each comes to follows from when it was called, signalled or read, and from nothing else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

from millrace.compile.build import build
from millrace.dataflow.stream import Stream
from millrace.dataflow.triggers import OnCall, OnSignal, Repeat
from millrace.dataflow.triggers.trigger import Trigger
from millrace.dataflow.windowing import DISCARDING
from millrace.dataflow.windows import FixedWindows, GlobalWindow
from millrace.model.computation import Computation
from millrace.model.keys import decode_key
from millrace.model.record import LOW_WATERMARK, WALL_TIME, Record, Timer
from millrace.model.state import ValueState
from millrace.model.stream import by
from millrace.model.time import SECOND
from millrace.pipeline import Pipeline
from simulation.composition import FAR_US
from simulation.definitions import Wrong
from simulation.program import STREAM, Ends, Evidence

#: What the trigger of calls goes by, and the keys that users have.
CALLED = "now"
_USERS = "abcd"
#: Of a computation that is fed by timers alone: its keys, when it begins, how often it beats.
_HEARTS = ("here", "there", "yonder")
_BEGINS_US = 1_000 * SECOND
_PACE_US = 40 * SECOND
_BEATS = 6
_SPAN_US = 100 * SECOND

#: What adds a pipeline to one that has no source yet; says what it made.
Shape = Callable[["Feeding", Random, Pipeline], str]


class Said(Computation):
    """Says when each record came."""

    inputs = {STREAM: by("user")}
    outputs = {"said": list}

    def process_record(self, record: Record) -> None:
        """Send the record's number and time."""
        self.produce("said", [record.value["id"], record.timestamp, record.late])


class Told(Computation):
    """Says it, too, by other keys: so what is read again may be new to this and old to that."""

    inputs = {STREAM: by(lambda value: value["id"] % 5)}
    outputs = {"told": list}

    def process_record(self, record: Record) -> None:
        """Send the record's number and time."""
        self.produce("told", [record.value["id"], record.timestamp, record.late])


class Heart(Computation):
    """Beats by the wall clock, which nothing else feeds."""

    outputs = {"beats": int}
    domain = WALL_TIME
    count: ValueState[int] = ValueState(int)

    def process_start(self) -> None:
        """Set the first timer, and say that it did."""
        self.set_timer("beat", at=self.first_us(), domain=self.domain)

    def process_timer(self, timer: Timer) -> None:
        """Beat, and set the next timer, some times."""
        nth = self.count.get(0)
        self.count.set(nth + 1)
        self.produce("beats", nth, timestamp=timer.at)
        if nth + 1 < _BEATS:
            self.set_timer("beat", at=timer.at + _PACE_US, domain=self.domain)

    def first_us(self) -> int:
        """Return when it beats first."""
        return self.wall_time + _PACE_US


class Chime(Heart):
    """Beats by the low watermark, which its own timers hold and nothing else."""

    domain = LOW_WATERMARK

    def first_us(self) -> int:
        """Return when it beats first."""
        return _BEGINS_US


class Feeding:
    """The program of one of these; see :class:`~.program.Program`.

    Args:
        random: Chooses.
        ends: Where records come from and go to.
    """

    def __init__(self, random: Random, ends: Ends) -> None:
        self.ends = ends
        self.ids = random.random() < 0.3
        p = Pipeline("simulated")
        self._checks: list[Callable[[Evidence], None]] = []
        shape = random.choice((_by_ingress, _by_ingress, _by_calls, _by_signals, _by_timers))
        said = shape(self, random, p)
        self.name = f"{shape.__name__.strip('_')}: {said}"
        self.topology = build(p)

    def value(self, random: Random) -> dict[str, Any]:
        """Return a user's number."""
        return {"user": random.choice(_USERS), "n": random.randint(0, 14)}

    def check(self, evidence: Evidence) -> None:
        """Check what came of it."""
        for check in self._checks:
            check(evidence)

    def came(self, evidence: Evidence) -> list[list[dict[str, Any]]]:
        """Return the values of each epoch; of what the source delivers again under one id, one."""
        seen, found = set[int](), list[list[dict[str, Any]]]()
        for batch in evidence.batches:
            found.append([])
            for value, _ in batch:
                if not (self.ids and value["id"] in seen):
                    found[-1].append(value)
                seen.add(value["id"])
        return found

    def sink(self, p: Pipeline, *streams: str) -> None:
        """Give streams a sink."""
        for stream in streams:
            p.sink(stream, self.ends.sink(stream))


def _by_ingress(self: Feeding, random: Random, p: Pipeline) -> str:
    """Records whose time is the clock's, once for all who get them; and windows of it."""
    events = self.ends.inject(p, ids=self.ids, slack=FAR_US, ingress=True)
    size_us = random.choice((2, 20, 200)) * SECOND
    p.add(Said)
    p.add(Told)
    events.key_by("user").window(FixedWindows(size_us)).count().to("counts")
    self.sink(p, "said", "told", "counts")

    def check(evidence: Evidence) -> None:
        said, told = (evidence.outputs(stream) for stream in ("said", "told"))
        for one in (*said, *told):
            if one.value[2]:
                raise Wrong(f"record {one.value[0]} is late, which came by the clock")
        times = [
            Counter((id, at_us) for id, at_us, _ in (o.value for o in of)) for of in (said, told)
        ]
        if times[0] != times[1]:
            raise Wrong(
                f"times of records by user and by number: {times[0] - times[1]} were said, "
                f"{times[1] - times[0]} were told"
            )
        came = Counter(value["id"] for batch in self.came(evidence) for value in batch)
        found = Counter(one.value[0] for one in said)
        if found != came:
            raise Wrong(f"said: {found - came} too often, {came - found} missing")
        if self.ends.ordered:
            _check_epochs({one.epoch: set[int]() for one in said}, said)
        wanted = Counter((one.key, one.value[1] // size_us * size_us) for one in said)
        panes = Counter[Any]()
        for key, paned, _, _ in evidence.outputs("counts"):
            panes[key, paned.pane.window.start] += paned.value
        if panes != wanted:
            raise Wrong(f"counts: {panes - wanted} too many, {wanted - panes} missing")

    self._checks.append(check)
    return f"windows of {size_us} us"


def _check_epochs(times: dict[int, set[int]], said: list[Any]) -> None:
    """Check that all records of an epoch have one time, and later ones no earlier one."""
    for one in said:
        times[one.epoch].add(one.value[1])
    found = [at_us for epoch in sorted(times) for at_us in sorted(times[epoch])]
    if len(found) != len(times) or found != sorted(found):
        raise Wrong(f"times by epoch: {times}")


def _by_calls(self: Feeding, random: Random, p: Pipeline) -> str:
    """Windows that fire when somebody calls for a key, or for all."""
    events = self.ends.inject(p, ids=self.ids, slack=FAR_US)
    self.ends.take_calls(p, CALLED)
    said = _fired(random, events, OnCall(CALLED))
    self.sink(p, "fired")
    one, every = (f"{CALLED}.calls", f"{CALLED}.calls-for-all")

    def check(evidence: Evidence) -> None:
        if not self.ends.ordered:
            _check_fired(self, evidence, None)
            return
        called = []
        for epoch in range(len(evidence.batches)):
            keys = {decode_key(key) for key in evidence.brought[one][epoch]}
            called.append({*_USERS} if evidence.brought[every][epoch] else keys)
        _check_fired(self, evidence, called)

    self._checks.append(check)
    return said


def _by_signals(self: Feeding, random: Random, p: Pipeline) -> str:
    """Windows of all keys that fire by a signal for none in particular."""
    events = self.ends.inject(p, ids=self.ids, slack=FAR_US)
    events.filter(_signals).to("signals")
    said = _fired(random, events, OnSignal("signals", every_key=True))
    self.sink(p, "fired")

    def check(evidence: Evidence) -> None:
        came = self.came(evidence)
        every = [{*_USERS} if any(map(_signals, batch)) else set[str]() for batch in came]
        _check_fired(self, evidence, every if self.ends.ordered else None)

    self._checks.append(check)
    return said


def _fired(random: Random, events: Stream, trigger: Trigger) -> str:
    """Group numbers of records by user, and have them shown when a trigger fires."""
    windows = random.choice((GlobalWindow(), FixedWindows(20 * SECOND)))
    numbers = events.key_by("user").map(_id).to("numbers", format=int)
    grouped = numbers.window(
        windows, trigger=Repeat(trigger), mode=DISCARDING, allowed_lateness=FAR_US
    )
    grouped.group().to("fired")
    return f"{windows!r}"


def _check_fired(self: Feeding, evidence: Evidence, fires: list[set[str]] | None) -> None:
    """Check that panes have each record once, and come when they are asked for.

    Args:
        self: The program.
        evidence: What came of it.
        fires: Epoch -> the keys that are asked for in it; None where nobody knows.
    """
    came, shown = self.came(evidence), defaultdict[int, list[tuple[str, int]]](list)
    for key, paned, _, epoch in evidence.outputs("fired"):
        shown[epoch] += [(key, number) for number in paned.value]
    everything = Counter((value["user"], value["id"]) for batch in came for value in batch)
    if more := Counter(one for of in shown.values() for one in of) - everything:
        raise Wrong(f"fired: {more} too many")
    if fires is None:
        return
    waiting = Counter[tuple[str, int]]()
    for epoch, batch in enumerate(came[:-1]):  # with the last one the input ends
        new, found = Counter((value["user"], value["id"]) for value in batch), Counter(shown[epoch])
        asked = fires[epoch]
        if unasked := [one for one in found if one[0] not in asked]:
            raise Wrong(f"epoch {epoch}: {unasked} were fired, and asked for were {sorted(asked)}")
        due = Counter({one: n for one, n in waiting.items() if one[0] in asked})
        if due - found or found - waiting - new:
            raise Wrong(
                f"epoch {epoch}: {due - found} were not fired, {found - waiting - new} were"
            )
        waiting = waiting + new - found


def _by_timers(self: Feeding, random: Random, p: Pipeline) -> str:
    """A computation without inputs, and windows of what it says, of which nothing is late."""
    self.ends.inject(p, ids=self.ids, slack=FAR_US)
    p.add(Said)
    heart = random.choice((Heart, Chime))
    p.add(heart, keys=_HEARTS)
    p.stream("beats").key_by(_whole).window(FixedWindows(_SPAN_US)).count().to("counts")
    self.sink(p, "said", "beats", "counts")

    def check(evidence: Evidence) -> None:
        beats = evidence.outputs("beats")
        by_key = {key: [one for one in beats if one.key == key] for key in _HEARTS}
        for key, mine in by_key.items():
            numbers, times = [one.value for one in mine], [one.at_us for one in mine]
            first_us = _BEGINS_US if heart is Chime else times[0] if times else 0
            paced = [first_us + nth * _PACE_US for nth in range(len(mine))]
            if numbers != [*range(len(mine))] or times != paced:
                raise Wrong(f"{key!r} beat {numbers} at {times}")
            if heart is Chime and len(mine) != _BEATS:
                raise Wrong(f"{key!r} beat {len(mine)} times, and not {_BEATS}")
        panes = evidence.outputs("counts")
        wanted = Counter(one.at_us // _SPAN_US * _SPAN_US for one in beats)
        found = {paned.pane.window.start: paned.value for _, paned, _, _ in panes}
        if len(found) != len(panes) or any(wanted[at_us] != n for at_us, n in found.items()):
            raise Wrong(f"beats by window are {dict(wanted)}, and panes {found}")
        if heart is Chime and found.keys() != wanted.keys():
            raise Wrong(f"beats are in the windows {sorted(wanted)}, and panes in {sorted(found)}")

    self._checks.append(check)
    return heart.__name__


def _signals(value: dict[str, Any]) -> bool:
    return bool(value["n"] % 5 == 0)


def _id(value: dict[str, Any]) -> int:
    return int(value["id"])


def _whole(_: int) -> str:
    return "all"
