"""What transcripts name that is not Millrace's: streams beside others, cells that expire."""

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


def signalled(said: Any, windowed: Callable[..., Any]) -> Any:
    """Return what comes of values among which ``now`` is a signal.

    Args:
        said: The values.
        windowed: Called with the others and the trigger that waits for a signal.
    """
    name = f"{said.name}-signals"
    said.filter(lambda one: one == "now").to(name)
    return windowed(said.filter(lambda one: one != "now"), mr.OnSignal(name))


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


NAMES = {"beside": beside, "signalled": signalled, "fading": fading}
