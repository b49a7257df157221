"""An epoch publishes and then delivers: records may find windows that are over, and not collected.

The Harness publishes in epochs of its own, so these run the driver's part themselves.
"""

from collections.abc import Iterator
from typing import Any

import millrace as mr
from millrace.compile.build import build
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import MemoryCaches, MemoryHardState
from millrace.testing.feed import Feed, Read
from millrace.watermark.report import ONLY
from simulation.sink_rows import sink_rows


def outputs(p: mr.Pipeline, stream: str, *batches: list[tuple[Any, int]]) -> Iterator[Any]:
    """Yield what leaves on a stream when each epoch delivers a batch of the stream ``elements``."""
    topology, state = build(p), MemoryHardState()
    runtime = WorkerProcess(topology, tasks=1, execution=Execution(topology, state, MemoryCaches()))
    driver = EpochDriver(
        topology, RunLog(topology, state, intervals=1), WatermarkPublisher.of(topology)
    )
    decode = topology.streams[stream].coder.decode
    found: list[Any] = []
    for epoch, batch in enumerate(batches):
        feed = Feed("elements", [Read(value, at, ONLY) for value, at in batch], {})

        def stages(manifest: Any, feed: Feed = feed) -> tuple[TaskReport, float]:
            sent = list(feed.rows(Task(runtime, manifest, 0)))
            left = through_levels(LocalExchange(runtime, manifest), sent, topology.depth)
            found.extend(sorted(sink_rows(topology, left), key=lambda row: row.sequence))
            return TaskReport.together(reports_in(left)), 0.0

        driver.run(epoch, stages, wall_time_us=0)
    return (decode(row.value) for row in found)


def test_a_session_that_goes_on_when_it_is_over_has_one_last_pane_and_takes_back_the_others():
    p = mr.Pipeline("sessions")
    elements = p.inject("elements", format=str, low_watermark=mr.BoundedDelay(1))
    how = {"trigger": mr.Repeat(mr.AfterCount(1)), "mode": mr.ACCUMULATING_AND_RETRACTING}
    elements.key_by(str.upper).window(mr.Sessions(6), **how).count().to("counts")
    p.sink("counts", lambda *_: None)

    # "b" has the low watermark reach 99 with the second batch, where "a" is, from before.
    panes = outputs(p, "counts", [("a", 0), ("b", 100)], [("a", 1), ("a", 2)])

    of_a = [paned for paned in panes if paned.pane.window.start == 0]
    assert [(-1 if p.pane.retraction else 1) * p.value for p in of_a] == [1, -1, 2, -2, 3]
    assert not any(paned.pane.is_last for paned in of_a), "each was emitted while elements came"
