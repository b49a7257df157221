"""A checkpoint's numbers outlive the pipeline's changes, and the version that gave them out."""

from __future__ import annotations

import base64
import contextlib
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.compile.change.registry import Registry
from millrace.compile.topology import Topology
from millrace.epochlog.claims import claim_of
from millrace.epochlog.entries import Manifest, encode_entry
from millrace.epochlog.reader import latest
from millrace.epochlog.run_log import RunLog
from millrace.injectors.watermark_publisher import WatermarkPublisher
from millrace.kernel.execution import Execution
from millrace.kernel.record_ids import fingerprint
from millrace.runtime.epoch.driver import EpochDriver
from millrace.runtime.exchange import LocalExchange, through_levels
from millrace.runtime.reports import TaskReport, reports_in
from millrace.runtime.worker_process import Task, WorkerProcess
from millrace.store import HardState, LocalHardState, MemoryCaches, MemoryHardState
from millrace.testing.feed import Feed, Read
from millrace.testing.output import tapped
from millrace.watermark.report import ONLY

BATCHES = [
    [("a", "tea", 3), ("b", "milk", 5), ("c", "tea", 4)],
    [("a", "tea", 3), ("d", "rum", 90)],
    [("e", "tea", 1), ("b", "milk", 5), ("f", "rum", 95), ("g", "gin", 70)],
    [("h", "milk", 2), ("i", "gin", 75)],
]


class Totals(mr.Computation):
    inputs = {"bids": mr.by("item")}
    outputs = {"totals": list, "alerts": str}
    kept = mr.ValueState(int)
    bids = mr.BagState(int)
    prices = mr.MapState(int)
    high = mr.CombiningState(int, max)

    def process_record(self, record: mr.Record) -> None:
        price = record.value["price"]
        self.kept.set(self.kept.get(0) + price)
        self.high.add(price)
        self.bids.add(price)
        self.prices[price] = self.prices.get(price, 0) + 1
        told = [self.key, self.kept.get(), self.high.get(), sorted(self.bids), len(self.prices)]
        self.produce("totals", told)
        if price > 50:
            self.produce("alerts", f"{self.key} at {price}")
        self.set_timer("again", at=record.timestamp + 1_000)

    def process_timer(self, timer: mr.Timer) -> None:
        self.produce("alerts", f"{self.key} again", timestamp=timer.at)


class Ranks(mr.Computation):
    inputs = {"totals": mr.by(lambda told: len(told[0]))}
    outputs = {"ranks": int}
    most = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.most.set(max(self.most.get(0), record.value[1]))
        self.produce("ranks", self.most.get())


def into_one(rows: Any, epoch: int) -> None:
    """Stand for a sink."""


def into_another(rows: Any, epoch: int) -> None:
    """Stand for another."""


def pipeline(*before: tuple[str, Callable[[Any, int], None]]) -> mr.Pipeline:
    """Return the pipeline, with these sinks in front of its own."""
    p = mr.Pipeline("shop")
    p.inject("bids", format=dict, id="id", slack="1 h")
    p.add(Totals)
    p.add(Ranks)
    for stream, sink in before:
        p.sink(stream, sink)
    p.sink("totals", into_one)
    p.sink("alerts", into_one)
    p.sink("ranks", into_one)
    return p


class Killed(Exception):
    """The driver died."""


class Shop:
    """A run of it in this process, over any checkpoint."""

    def __init__(self, built: Topology, state: HardState) -> None:
        self.run_log = RunLog(built, state, intervals=4)
        self.topology = self.run_log.topology
        self.driver = EpochDriver(self.topology, self.run_log, WatermarkPublisher({}))
        execution = Execution(self.topology, state, MemoryCaches())
        self.runtime = WorkerProcess(self.topology, tasks=2, execution=execution)

    def epoch(self, *, levels: int = 2) -> list[tuple[Any, ...]]:
        """Run the next epoch; return (stream, sink, key, value, time, id) of what sinks get.

        Args:
            levels: Die after so many of them.
        """
        run_log, left = self.run_log, list[pa.RecordBatch]()
        number = run_log.open.epoch if run_log.open is not None else run_log.completed + 1
        bids = [
            Read(
                {"id": id, "item": item, "price": price}, 1_000 * number + n, ONLY, fingerprint(id)
            )
            for n, (id, item, price) in enumerate(BATCHES[number])
        ]

        def stages(manifest: Manifest) -> tuple[TaskReport, float]:
            sent = list(Feed("bids", bids, {}).rows(Task(self.runtime, manifest, 0)))
            left.extend(through_levels(LocalExchange(self.runtime, manifest), sent, levels))
            if levels < self.topology.depth:
                raise Killed
            return TaskReport.together(reports_in(left)), 0.0

        self.driver.scripted = {100: {"bids": 1_000 * number}}
        self.driver.run(number, stages, wall_time_us=number)
        return sorted(_told(self.topology, left))


def _told(topology: Topology, batches: Sequence[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    found = []
    for batch in batches:
        for n, edge in enumerate(batch.column("edge").to_pylist()):
            for stream, output in tapped(topology, batch.slice(n, 1), 0):
                sink = topology.sinks[topology.edge(edge).sink].__name__
                row = (output.key, output.value, output.timestamp, output.id.hex())
                found.append((stream, sink, *row))
    return found


#: Two epochs, and a third of which Totals has committed and Ranks has not; ``after`` is what sinks
#: got of it, and of a fourth. When the format has changed it is made anew by
#: ``python -m tests.unit.kernel.test_numbers_that_last``.
WRITTEN = Path(__file__).parent / "data" / "checkpoint.json"
BEFORE = json.loads(WRITTEN.read_text())


@pytest.fixture
def before(tmp_path: Path) -> LocalHardState:
    for name, content in BEFORE["files"].items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = isinstance(content, str)
        path.write_bytes(content.encode() if whole else base64.b64decode(content["base64"]))
    return LocalHardState.create_or_open(tmp_path, pipeline="shop")


def after(n: int) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in BEFORE["after"][n]]


def test_a_checkpoint_that_was_written_long_ago_goes_on(before: LocalHardState) -> None:
    shop = Shop(pipeline().build(), before)

    assert shop.epoch() == after(0)
    assert shop.epoch() == after(1)
    claim, _, _ = latest(before.epochs)
    assert claim is not None
    assert claim.registry == Registry().assign(pipeline().build())


@pytest.fixture
def unfinished() -> MemoryHardState:
    """The same three epochs, by this version."""
    state = MemoryHardState()
    shop = Shop(pipeline().build(), state)
    shop.epoch()
    shop.epoch()
    with pytest.raises(Killed):
        shop.epoch(levels=1)
    return state


def test_sinks_in_front_leave_the_productions_of_an_open_epoch_to_their_consumers(
    unfinished: MemoryHardState,
) -> None:
    shop = Shop(pipeline(("ranks", into_another), ("alerts", into_another)).build(), unfinished)

    rows = shop.epoch()  # the new ones begin with the next
    assert _without_ids(rows) == _without_ids(after(0))
    assert [row for row in rows if row[0] != "ranks"] == [r for r in after(0) if r[0] != "ranks"]
    rows = _without_ids(shop.epoch())
    assert [row for row in rows if row[1] == "into_one"] == _without_ids(after(1))
    assert [row for row in rows if row[1] == "into_another"] == [
        (stream, "into_another", *rest)
        for stream, _, *rest in _without_ids(after(1))
        if stream != "totals"
    ]


def test_a_sink_that_was_added_to_an_open_epoch_may_go_before_it_is_finished(
    unfinished: MemoryHardState,
) -> None:
    Shop(pipeline(("ranks", into_another)).build(), unfinished)

    assert Shop(pipeline().build(), unfinished).epoch() == after(0)


def test_no_part_of_a_run_takes_a_number_for_a_place() -> None:
    """What sinks get under numbers as after years of changes is what they get under the first."""
    state, built = MemoryHardState(), pipeline().build()
    years = Registry(
        computations={"Ranks": 4, "gone": 900, "Totals": 7},
        cells={"Totals": {"prices": 3, "kept": 9, "bids": 200}},
        streams={"ranks": 0, "gone": 77},
        edges={"gone": 30, "alerts -> sink into_one": 2, "totals -> Ranks": 17},
    )
    claim = claim_of(built, years.assign(built), 1)
    assert state.epochs.append(1, encode_entry(claim))
    odd, plain = Shop(built, state), Shop(built, MemoryHardState())

    for _ in range(4):
        rows = odd.epoch()
        assert _without_ids(rows) == _without_ids(plain.epoch())
        origins = {int(id[:4], 16) for *_, id in rows}
        assert origins <= {4, 7, 0x4000 + odd.topology.streams["bids"].number}
    assert odd.topology.streams["bids"].number == 78


def _without_ids(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(row[:-1] for row in rows)


def test_a_function_tells_two_sinks_of_a_stream_apart() -> None:
    names = Registry().assign(pipeline(("ranks", into_one), ("ranks", into_another)).build()).edges

    assert [name for name in names if name.startswith("ranks")] == [
        "ranks -> sink into_one", "ranks -> sink into_another", "ranks -> sink into_one (2)",
    ]  # fmt: skip


def _write() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shop = Shop(pipeline().build(), LocalHardState.create_or_open(folder, pipeline="shop"))
        for levels in (2, 2, 1):
            with contextlib.suppress(Killed):
                shop.epoch(levels=levels)
        files = {
            str(path.relative_to(folder)): _content(path.read_bytes())
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        shop = Shop(pipeline().build(), LocalHardState.create_or_open(folder, pipeline="shop"))
        after = [shop.epoch(), shop.epoch()]
        WRITTEN.write_text(json.dumps({"files": files, "after": after}, indent=1) + "\n")


def _content(data: bytes) -> str | dict[str, str]:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


if __name__ == "__main__":
    _write()
