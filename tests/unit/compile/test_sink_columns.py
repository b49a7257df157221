"""Names that a field cannot have where it goes to a sink."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.compile.checks import OF_PANES
from millrace.model.errors import PipelineError
from millrace.runtime import values


class Adding:
    """A sink that makes a column of its own."""

    adds = ("epoch",)

    def __call__(self, rows: Any, epoch: int) -> None: ...

    def __repr__(self) -> str:
        return "Adding()"


class Plain(Adding):
    adds = ()


class Missile(msgspec.Struct):
    epoch: int


class Loud(msgspec.Struct):
    EPOCH: int


@dataclasses.dataclass
class Keyed:
    _Key: str


class Ending(msgspec.Struct):
    team: str
    _Window_End: int


def _build(format: Any, sink: Any) -> None:
    p = mr.Pipeline("p")
    p.inject("rows", format=format)
    p.sink("rows", sink)
    p.build()


@pytest.mark.parametrize(
    ("format", "sink", "message"),
    [
        (Missile, Adding(), r"Missile, .* 'rows', has a field 'epoch', .*column that Adding\(\)"),
        (Loud, Adding(), r"'EPOCH', .*case makes no difference"),
        (Keyed, Plain(), r"'_Key', .*column that sinks get beside"),
    ],
)
def test_a_field_that_a_sink_would_hide_is_refused(format: Any, sink: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        _build(format, sink)


@pytest.mark.parametrize(
    ("format", "sink"), [(Missile, Plain()), (Ending, Adding()), (int, Adding()), (Any, Adding())]
)
def test_other_fields_are_not(format: Any, sink: Any) -> None:
    _build(format, sink)


def test_a_field_that_a_pane_would_hide_is_refused() -> None:
    p = mr.Pipeline("p")
    p.inject("rows", format=Ending)
    ends = p.stream("rows").key_by("team").window(mr.FixedWindows(10)).max("_Window_End")
    ends.map(lambda _: Ending("a", 1)).to("ends", Ending)
    p.sink("ends", Plain())
    with pytest.raises(PipelineError, match=r"'_Window_End', .*column that sinks get of a pane"):
        p.build()


def test_the_names_of_a_pane_are_those_of_its_columns() -> None:
    assert list(OF_PANES) == [name for name, *_ in values.PANE_COLUMNS]


def test_streams_of_letters_go_to_any_sink(tmp_path: Path) -> None:
    for sink in (
        mr.sinks.Parquet(tmp_path),
        mr.sinks.Delta(tmp_path),
        mr.sinks.PostgreSQL("host=nowhere", "letters"),
        mr.sinks.Memory(),
    ):
        p = mr.Pipeline("p")
        p.inject("rows", format=int)
        p.dead_letter("rejects")
        p.late_records("late")
        p.sink("rejects", sink)
        p.sink("late", sink)
        p.build()
