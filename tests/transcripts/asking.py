"""What transcripts name that is not Millrace's: streams beside others."""

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


NAMES = {"beside": beside, "signalled": signalled}
