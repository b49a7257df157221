"""What transcripts name that is not Millrace's: a computation with a side input."""

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
    name = "waiting" if waits else "at-once"
    said.filter(lambda one: one[0] == "row").to(f"{name}-rows")
    said.filter(lambda one: one[0] == "ask").to(f"{name}-asks")
    said.pipeline.add(Ask(f"{name}-asks", f"{name}-rows", name, waits=waits), name=name)
    return said.pipeline.stream(name)


NAMES = {"beside": beside}
