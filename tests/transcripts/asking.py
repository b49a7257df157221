"""What transcripts name that is not Millrace's: computations that use one thing each."""

from collections.abc import Callable
from typing import Any

import millrace as mr


class Ask(mr.Computation):
    """Says what stands in a table of one row when it is asked."""

    def __init__(self, asks: str, rows: str, output: str, *, waits: bool) -> None:
        self.inputs = {asks: mr.by_key()}
        self.outputs = {output: list}
        self.rows = mr.SideInput(rows, lambda row: row[0], waits=waits)

    def process_record(self, record: mr.Record) -> None:
        (output,) = self.outputs
        row = self.rows.get("row")
        self.produce(output, [record.value[1], row and row[1]])


def beside(said: Any, *, waits: bool) -> Any:
    """Return what comes of ``[ask, n]`` beside ``[row, n]``."""
    name = f"{said.name}-beside"
    said.filter(lambda one: one[0] == "row").to(f"{name}-rows")
    said.filter(lambda one: one[0] == "ask").to(f"{name}-asks")
    said.pipeline.add(Ask(f"{name}-asks", f"{name}-rows", name, waits=waits), name=name)
    return said.pipeline.stream(name)


def signalled(said: Any, windowed: Callable[..., Any], *, every_key: bool = False) -> Any:
    """Return what comes of values among which ``now`` is a signal.

    Args:
        said: The values.
        windowed: Called with the others and the trigger that waits for a signal.
        every_key: Whether a signal is for every key.
    """
    name = f"{said.name}-signals"
    said.filter(lambda one: one == "now").to(name)
    return windowed(said.filter(lambda one: one != "now"), mr.OnSignal(name, every_key=every_key))


class Fade(mr.Computation):
    """Says what it has kept by now, and keeps what comes; all of it expires."""

    total = mr.CombiningState(int, expires=10)
    seen = mr.MapState(int, expires=10)

    def __init__(self, values: str, output: str) -> None:
        self.inputs = {values: mr.by_key()}
        self.outputs = {output: list}

    def process_record(self, record: mr.Record) -> None:
        (output,) = self.outputs
        between = [self.seen[entry] for entry in self.seen.between(3, 6)]
        self.produce(output, [self.total.get(0), list(self.seen), between])
        self.total.add(record.value)
        self.seen[record.value] = 10 * record.value


def fading(said: Any) -> Any:
    """Return, for each number, the sum, the numbers, and ten times those from 3 to 5 before it."""
    name = f"{said.name}-fading"
    said.to(f"{name}-values")
    said.pipeline.add(Fade(f"{name}-values", name), name=name)
    return said.pipeline.stream(name)


class Again(mr.Computation):
    """Gives pairs of ``[key, value]`` and a row the key again."""

    def __init__(self, pairs: str, output: str) -> None:
        self.inputs = {pairs: mr.by(lambda pair: pair[0][0])}
        self.outputs = {output: list}

    def process_record(self, record: mr.Record) -> None:
        (output,) = self.outputs
        (_, value), row = record.value
        self.produce(output, [value, row])


def looked_up(said: Any, table: Any, how: str) -> Any:
    """Return values with their rows, under the keys that they had: a lookup chooses its own."""
    name = f"{said.name}-looked-up"
    named = said.map(mr.of_record(lambda one: [one.key, one.value]))
    named.key_by(lambda pair: pair[1]).lookup(table, how).to(f"{name}-pairs")
    said.pipeline.add(Again(f"{name}-pairs", name), name=name)
    return said.pipeline.stream(name)


class Recent(mr.Computation):
    """Says of each time, ten later, what came in the ten up to it, and forgets what is older."""

    numbers = mr.MapState(list[int])

    def __init__(self, values: str, output: str) -> None:
        self.inputs = {values: mr.by_key()}
        self.outputs = {output: list}

    def process_record(self, record: mr.Record) -> None:
        at_us = record.timestamp
        self.numbers[at_us] = [*self.numbers.get(at_us, ()), record.value]
        self.set_timer(at_us, at=at_us + 10)

    def process_timer(self, timer: mr.Timer) -> None:
        (output,) = self.outputs
        times = list(self.numbers.between(timer.tag - 9, timer.tag + 1))
        values = [value for at_us in times for value in self.numbers[at_us]]
        self.produce(output, [times, values], timestamp=timer.at - 1)
        for at_us in list(self.numbers.between(None, timer.tag - 9)):
            del self.numbers[at_us]


class Beat(mr.Computation):
    """Counts its timers of the wall clock, three of them."""

    count = mr.CombiningState(int)

    def __init__(self, output: str) -> None:
        self.outputs = {output: int}

    def process_start(self) -> None:
        self.set_timer("beat", at=12, domain=mr.WALL_TIME)

    def process_timer(self, timer: mr.Timer) -> None:
        (output,) = self.outputs
        self.count.add(1)
        self.produce(output, self.count.get())
        if self.count.get() < 3:
            self.set_timer("beat", at=25 if self.count.get() == 1 else 100, domain=mr.WALL_TIME)


def recent(said: Any) -> Any:
    """Return, of each time, the times and numbers of the ten up to it."""
    name = f"{said.name}-recent"
    said.to(f"{name}-values")
    said.pipeline.add(Recent(f"{name}-values", name), name=name)
    return said.pipeline.stream(name)


def beating(said: Any, keys: list[str]) -> Any:
    """Return how often each of some keys was woken; of what was said nothing."""
    name = f"{said.name}-beats"
    said.pipeline.add(Beat(name), name=name, keys=keys)
    return said.pipeline.stream(name)


NAMES = {
    "early": mr.early,
    "beside": beside,
    "signalled": signalled,
    "fading": fading,
    "looked_up": looked_up,
    "recent": recent,
    "beating": beating,
}
