"""What a task sends: where it is more than an Arrow batch can hold."""

import pytest

import millrace as mr
from millrace.epochlog.entries import decode_entry
from millrace.kernel.router import RowsBuilder
from millrace.model.errors import PipelineError
from millrace.runtime.rows import Outbox
from millrace.runtime.worker_process import Task
from tests.live import Feeds, Live


def outbox() -> Outbox:
    p = mr.Pipeline("blobs")
    p.inject("blobs", Feeds("text string, at long", {}), timestamp="at", format=str)
    p.sink("blobs", print)
    live = Live(p)
    live.boot()
    manifest = decode_entry(live.state.epochs.read(live.state.epochs.last()))
    return Outbox(Task(live.runtime(0), manifest, 0))


def test_more_than_a_batch_can_hold_is_refused_with_what_to_do() -> None:
    sending, long = outbox(), bytes(1 << 20)
    made, count = RowsBuilder(), 2_049
    made.edges, made.hashes, made.timestamps = [0] * count, [0] * count, [0] * count
    made.keys, made.values = [b""] * count, [long] * count
    sending.add(made, 7, range(count))

    with pytest.raises(PipelineError, match=r"2,148,.* bytes of values to send.*2,049 rows.*less"):
        list(sending.batches())
