"""Ids of a source's column: made by Spark, filtered by the consumers, whatever way they come."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.windmill.source_ids import fingerprint


class Event(msgspec.Struct):
    key: str
    n: int


class Count(mr.Computation):
    inputs = {"events": mr.by("key")}
    outputs = {"counts": list[int]}
    total = mr.ValueState(int)

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + record.value.n)
        self.produce("counts", [record.value.n, self.total.get(), int(record.late)])


class Relaxed(Count):
    outputs = {"relaxed": list[int]}
    delivery = mr.AT_LEAST_ONCE

    def process_record(self, record: mr.Record) -> None:
        self.produce("relaxed", [record.value.n])


def _pipeline(feed: Any, source: str, counts: Any, **sinks: Any) -> mr.Pipeline:
    p = mr.Pipeline("ids")
    p.inject(
        "events",
        getattr(feed, source),
        timestamp="at",
        low_watermark=mr.BoundedDelay("1 s"),
        id="id",
        slack="1 min",
        format=Event,
    )
    p.add(Count)
    p.add(Relaxed)
    p.dead_letter("rejects")
    p.sink("counts", counts)
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p


def _row(n: int, id: Any, second: int = 0) -> tuple[Any, ...]:
    return f"k{n % 5}", n, id, second * mr.SECOND


@pytest.mark.parametrize(("kind", "ids"), [("string", str), ("long", int)])
def test_ids_across_epochs_restarts_and_lost_caches(
    tools: Any, tmp_path: Path, kind: str, ids: Any
) -> None:
    """The column's ids are a string and Spark alone encodes, or numbers and a Python stage does."""
    feed = tools.feed(f"key string, n int, id {kind}, at long")
    counts, relaxed, rejects, events = (tools.Kept() for _ in range(4))
    others = {"relaxed": relaxed, "rejects": rejects}
    if kind == "long":
        others["events"] = events  # a sink on the injected stream needs a Python stage
    cache = tmp_path / "cache"

    def start() -> Any:
        p = _pipeline(feed, "stream_one_by_one", counts, **others)
        return tools.start(p, cache=str(cache))

    first = [_row(n, ids(n)) for n in range(40)]
    feed.add(*first, *first[:10])  # twice in one bundle
    feed.add(*first[5:15], *(_row(n, ids(n)) for n in range(40, 50)))  # in the next epoch
    run = start()
    tools.step(run)
    run.stop()
    shutil.rmtree(cache)
    feed.add(*first[:20], _row(50, ids(50)), _row(51, None))  # after a restart, without a cache
    run = start()
    tools.step(run)
    feed.add(_row(52, ids(52), second=500))  # its id and time collect all that was kept
    tools.step(run)
    feed.add(_row(3, ids(3)))  # after its id was collected: late
    status = tools.finish(run)

    rows = sorted(n for n, _, late in counts.values if not late)
    assert rows == [*range(51), 52]
    assert [n for n, _, late in counts.values if late] == [3]
    sums = {key: max(total for _, total, _ in values) for key, values in _by_key(counts).items()}
    assert sums["k1"] == sum(n for n in range(51) if n % 5 == 1)
    counted = status.counters["Count"]
    assert (counted.records, counted.duplicates_filtered) == (53, 10 + 10 + 20)
    assert status.counters["Relaxed"].records == 53 + 40
    assert status.counters["Relaxed"].duplicates_filtered == 0
    assert status.refused == {"events": 1}
    assert [letter["reason"] for letter in rejects.values] == ["the id, column 'id', is null"]
    if kind == "long":
        _check_sunk_ids(events, ids)


def _by_key(kept: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, value, _ in kept.rows:
        found.setdefault(key, []).append(value)
    return found


def _check_sunk_ids(events: Any, ids: Any) -> None:
    """A sink on the stream gets every delivery, and ids by which it can tell: the source's."""
    told: dict[int, set[bytes]] = {}
    for epoch, rows in events.epochs.items():
        for (_, value, _), id in zip(rows, events.ids[epoch], strict=True):
            told.setdefault(value["n"], set()).add(id)
    assert {len(found) for found in told.values()} == {1}
    assert len(set.union(*told.values())) == len(told)
    # The half that does not depend on the stream is the fingerprint's, as Python makes it too.
    assert all(id[:8] == fingerprint(ids(n))[:8] for n, (id,) in told.items())


def test_a_batch_drops_what_its_input_has_twice(tools: Any) -> None:
    feed = tools.feed("key string, n int, id string, at long")
    counts = tools.Kept()
    rows = [_row(n, str(n)) for n in range(30)]
    feed.add(*rows, *rows[:10])
    feed.add(*rows[20:])
    p = _pipeline(feed, "bounded", counts)
    status = p.run_batch(feed._spark)
    assert sorted(n for n, _, _ in counts.values) == list(range(30))
    assert status.counters["Count"].duplicates_filtered == 20
    assert status.counters["Relaxed"].records == 50


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("uuid", r"no column 'uuid' to take ids from. It has \['key', 'n', 'id', 'at', 'x'\]"),
        ("x", "column 'x', which names records, is double. Expected a string, bytes, or an int"),
    ],
)
def test_a_column_that_cannot_name_records_is_refused(
    tools: Any, column: str, message: str
) -> None:
    feed = tools.feed("key string, n int, id string, at long, x double")
    p = mr.Pipeline("p")
    p.inject("events", feed.bounded, timestamp="at", id=column, format=Event)
    p.add(Count)
    with pytest.raises(mr.MillraceError, match=message):
        p.run_batch(feed._spark)
