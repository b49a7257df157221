"""ArrowSink: a function of batches, in the tasks of either plane and in the Harness."""

from __future__ import annotations

import pickle
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

import millrace as mr
from millrace.model.errors import PipelineError, SinkError
from millrace.runtime.sink_contract import Binding, bind_sinks, check_live, live_writers
from millrace.runtime.values import SinkColumns


class Total(msgspec.Struct):
    team: str
    points: int


class Totals(mr.Computation):
    inputs = {"scores": mr.by(lambda value: value[0])}
    outputs = {"totals": Total}
    total = mr.CombiningState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.add(record.value[1])
        self.produce("totals", Total(self.key, self.total.get()))


def pipeline(*sinks: Any) -> mr.Pipeline:
    p = mr.Pipeline("league")
    p.inject("scores", format=list)
    p.add(Totals)
    for sink in sinks:
        p.sink("totals", sink)
    return p


SCORES = [(["a", 1], 10), (["b", 2], 20), (["a", 3], 30)]


def test_the_harness_calls_it_with_what_it_reads_itself() -> None:
    batches: list[pa.RecordBatch] = []
    with mr.testing.Harness(pipeline(mr.sinks.Function(batches.append), mr.sinks.Memory())) as h:
        h.inject("scores", SCORES)
        h.inject("scores", [(["b", 5], 40)])
        outputs = h.outputs("totals")

    rows = [row for batch in batches for row in batch.to_pylist()]
    found = [(r["team"], r["points"], r["_key"], r["_timestamp"].timestamp() * 1e6) for r in rows]
    assert found == [(o.value.team, o.value.points, o.key, o.timestamp) for o in outputs]
    assert len({row["_id"] for row in rows}) == 4
    assert [len(row["_id"]) for row in rows] == [16] * 4


def test_after_a_crash_rows_come_again_with_their_ids() -> None:
    seen: list[tuple[bytes, str, int]] = []

    def write(rows: pa.RecordBatch) -> None:
        seen.extend((row["_id"], row["team"], row["points"]) for row in rows.to_pylist())

    with mr.testing.Harness(pipeline(mr.sinks.Function(write))) as h:
        # The manifest, and the commit of both keys' interval: what dies is the completion.
        h.crash_in_next_epoch(after_writes=2)
        h.inject("scores", SCORES)

    assert len(seen) == 6
    assert len(set(seen)) == 3


def test_what_the_function_raises_names_sink_stream_and_record() -> None:
    def upload(rows: pa.RecordBatch) -> None:
        raise OSError("no route to host")

    with mr.testing.Harness(pipeline(mr.sinks.Function(upload))) as h:
        with pytest.raises(SinkError) as refused:
            h.inject("scores", SCORES)
        assert h.outputs("totals") == []
    assert "upload), the sink of stream 'totals', raised OSError at a" in str(refused.value)
    assert "host. The records of failed calls are sent again, with" in str(refused.value)
    assert isinstance(refused.value.__cause__, OSError)


def test_a_thing_that_cannot_be_called_is_refused() -> None:
    with pytest.raises(PipelineError, match="expected a function of an Arrow batch"):
        mr.sinks.Function("totals")  # type: ignore[arg-type]


def test_a_task_calls_it_in_every_turn() -> None:
    batches: list[pa.RecordBatch] = []
    sink = mr.sinks.Function(batches.append)
    sink.bind(Binding("league", "totals", "uuid", SinkColumns(str, mr.coders.Bytes())))
    writing = sink.live().begin(incarnation=3, generation=1, task=0)
    rows = pa.RecordBatch.from_pydict({"value": ["x"], "_id": [b"1"]})

    writing.write(rows, np.array([1]), np.array([1]))

    assert batches == [rows]
    writing.flush()
    writing.close()


def test_its_function_travels_by_value() -> None:
    taken: list[int] = []

    def write(rows: pa.RecordBatch) -> None:
        taken.extend(rows.column("value").to_pylist())
        assert taken == [7], "its own copy"

    sink = mr.sinks.Function(write)
    rows = pa.RecordBatch.from_pydict({"value": [7], "_id": [b"1"]})
    writing = pickle.loads(pickle.dumps(sink.for_tasks())).begin(0, 0)
    writing.write(rows)
    assert writing.close() == b""
    assert taken == []


def test_two_functions_of_one_name_are_two_sinks_of_a_stream() -> None:
    from millrace.compile.build import build

    def to(place: list[pa.RecordBatch]) -> mr.sinks.Function:
        return mr.sinks.Function(lambda rows: place.append(rows))

    topology = build(pipeline(to([]), to([])))
    assert len(live_writers(bind_sinks(topology, "owner"))[0]) == 2


def test_sinks_by_plane() -> None:
    from millrace.compile.build import build

    def by_frame(rows: Any, epoch: int) -> None: ...

    topology = build(
        pipeline(
            mr.sinks.Function(print),
            mr.sinks.Memory(),
            mr.sinks.Kafka("s", "t"),
            mr.sinks.Parquet("/x"),
        )
    )
    check_live(topology)
    in_turns, by_mark = live_writers(topology)
    sinks = {
        edge.number: repr(topology.sinks[edge.sink])
        for edge in topology.edges
        if edge.sink is not None
    }
    assert [sinks[edge] for edge in sorted(in_turns)] == [
        "sinks.Function(print)", "sinks.Kafka('s', 't')"
    ]  # fmt: skip
    assert [sinks[edge] for edge in sorted(by_mark)] == ["Memory()", "Parquet('/x')"]

    for refused in (by_frame, mr.sinks.Parquet("s3a://bucket/x")):
        with pytest.raises(
            PipelineError, match=r"of stream 'totals' wants a DataFrame.*sinks.Function"
        ):
            check_live(build(pipeline(mr.sinks.Memory(), refused)))
