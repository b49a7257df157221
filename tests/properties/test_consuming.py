"""Few rows are consumed as many are: as lists, or as a table of the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.epochlog.entries import decode_entry
from millrace.kernel.families import ChannelRow
from millrace.kernel.record_ids import fingerprint, production_ids
from millrace.model.keys import encode_key, hash_key
from millrace.runtime.admission import ChannelAdmission
from millrace.runtime.inbox import Inbox
from millrace.runtime.reports import TaskReport
from millrace.runtime.row_encoder import ids_of
from millrace.runtime.rows import Outbox, RowColumns, Rows
from millrace.runtime.worker_process import Task
from millrace.watermark.intervals import IntervalMap
from tests.live import Feeds, Live


class Both(mr.Computation):
    inputs = {"texts": mr.by_key(), "numbers": mr.by_key(), "lines": mr.by(lambda line: line)}
    outputs = {}

    def process_record(self, record: mr.Record) -> None:
        pass


class Splits(mr.Computation):
    inputs = {"lines": mr.by(lambda line: line)}
    outputs = {"texts": str, "numbers": int}

    def process_record(self, record: mr.Record) -> None:
        pass


def pipeline() -> mr.Pipeline:
    p = mr.Pipeline("consuming")
    feeds = Feeds("text string, at long, id string", {})
    p.inject("lines", feeds, timestamp="at", format=str, id="id", slack="1 min")
    p.add(Splits)
    p.add(Both)
    return p


live = Live(pipeline())
live.boot()
task = Task(live.runtime(0), decode_entry(live.state.epochs.read(live.state.epochs.last())), 0)
(spec,) = [s for s in live.topology.computations if s.name == "Both"]
edges = {edge.stream: edge for edge in live.topology.edges if edge.computation == "Both"}
maps = {spec.name: IntervalMap.uniform(4)}

senders = st.one_of(
    st.tuples(st.just("produced"), st.integers(0, 2), st.integers(1, 4), st.integers(0, 2)),
    st.tuples(st.just("injected"), st.integers(0, 1), st.integers(0, 5), st.just(0)),
)
records = st.lists(
    st.tuples(senders, st.sampled_from(sorted(edges)), st.integers(0, 6)), max_size=20
)


def id_of(sender: tuple[str, int, int, int]) -> tuple[int, int]:
    kind, part, number, index = sender
    if kind == "produced":
        origin, sequences = production_ids(0, number, part, index + 1)
        return origin, sequences[-1]
    (origin,), (sequence,) = ids_of(0, part, np.array([number]))
    return int(origin), int(sequence)


def few_rows(drawn: list[Any]) -> RowColumns:
    made = RowColumns()
    for n, (sender, stream, key) in enumerate(drawn):
        encoded, (origin, sequence) = encode_key(key), id_of(sender)
        coder = live.topology.streams[stream].coder
        made.tasks.append(0)
        made.edges.append(edges[stream].number)
        made.hashes.append(hash_key(encoded))
        made.keys.append(encoded)
        value = coder.encode(n if stream == "numbers" else str(n))
        if stream == "lines" and sender[0] == "injected":
            value = fingerprint(key) + value
        made.values.append(value)
        made.timestamps.append(1_000 + n)
        made.origins.append(origin)
        made.sequences.append(sequence)
    return made


def by_interval(found: Any) -> Any:
    """Return interval -> its records: those of a table share their columns."""
    return {
        interval: [
            (
                records.key_rows[k], records.keys[k], records.values[n], records.timestamps[n],
                records.stream_of(n), records.origins[n], records.sequences[n],
                records.original(n), None if records.ids is None else records.ids.slack_us[n],
            )
            for k in range(len(records.keys))
            for n in range(records.cuts[k], records.cuts[k + 1])
        ]
        for interval, records in found.items()
    }  # fmt: skip


@given(st.lists(records, min_size=1, max_size=4))
def test_few_rows_are_consumed_as_many_are(turns):
    known = [ChannelRow(0, 1, 2, 1)]
    few_input: dict[tuple[int, int], int] = {}
    table_input: dict[tuple[int, int], int] = {}
    by_hand = ChannelAdmission(live.topology, spec, maps, lambda _: known, few_input)
    columnar = ChannelAdmission(live.topology, spec, maps, lambda _: known, table_input)
    for drawn in turns:
        rows = few_rows(drawn)
        inbox = Inbox(task, 2, Outbox(task), TaskReport())
        received: dict[str, int] = {}
        few = by_hand.records(Rows(rows), {}, None, received)
        many = columnar.records(Rows(rows.batch()), {}, inbox, received)

        assert by_interval(few) == by_interval(many)
        assert by_hand.channels.take() == columnar.channels.take()
        assert few_input == table_input
        assert received.get(spec.name, 0) == sum(map(len, rows.values))
