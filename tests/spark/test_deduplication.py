"""Ids of a source's column: made by Spark, filtered by the consumers, whatever way they come."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

import millrace as mr
from millrace.kernel.record_ids import fingerprint


class Event(msgspec.Struct):
    key: str
    n: int


class Count(mr.Computation):
    total = mr.ValueState(int)

    def __init__(self, stream: str) -> None:
        self.inputs = {stream: mr.by("key")}
        self.counts = f"counts of {stream}"
        self.outputs = {self.counts: list[int]}

    def process_record(self, record: mr.Record) -> None:
        self.total.set(self.total.get(0) + record.value.n)
        self.produce(self.counts, [record.value.n, self.total.get(), int(record.late)])


class Relaxed(mr.Computation):
    delivery = mr.AT_LEAST_ONCE

    def __init__(self, stream: str) -> None:
        self.inputs = {stream: mr.by("key")}

    def process_record(self, record: mr.Record) -> None:
        pass


def _pipeline(sources: dict[str, Any], sinks: dict[str, Any]) -> mr.Pipeline:
    p = mr.Pipeline("ids")
    for stream, source in sources.items():
        p.inject(
            stream,
            source,
            timestamp="at",
            low_watermark=mr.BoundedDelay("1 s"),
            id="id",
            slack="1 min",
            format=Event,
        )
        p.add(Count(stream), name=f"Count {stream}")
        p.add(Relaxed(stream), name=f"Relaxed {stream}")
    p.dead_letter("rejects")
    for stream, sink in sinks.items():
        p.sink(stream, sink)
    return p


def _row(n: int, id: Any, second: int = 0) -> tuple[Any, ...]:
    return f"k{n % 5}", n, id, second * mr.SECOND


#: Stream -> what its ids are: text, and Spark alone encodes; or numbers, and a Python stage does.
KINDS: dict[str, Any] = {"named": str, "numbered": int}


def test_ids_across_epochs_restarts_and_lost_caches(tools: Any, tmp_path: Path) -> None:
    ddl = {"named": "string", "numbered": "long"}
    feeds = {each: tools.feed(f"key string, n int, id {ddl[each]}, at long") for each in KINDS}
    # A sink on the injected stream needs a Python stage.
    streams = ["numbered", "rejects", *(f"counts of {each}" for each in KINDS)]
    sinks = {stream: tools.Kept() for stream in streams}
    cache = tmp_path / "cache"

    def add(*rows: tuple[int, Any], again: int | None = None) -> None:
        """Add rows (number, second) to each feed, the first so many twice; a negative has no id."""
        for stream, feed in feeds.items():
            ids = KINDS[stream]
            made = [_row(abs(n), None if n < 0 else ids(n), second) for n, second in rows]
            feed.add(*made, *made[: again or 0])

    def start() -> Any:
        sources = {stream: feed.stream_one_by_one for stream, feed in feeds.items()}
        return tools.start(_pipeline(sources, sinks), cache=str(cache))

    first = [(n, 0) for n in range(40)]
    add(*first, again=10)  # twice in one bundle
    add(*first[5:15], *((n, 0) for n in range(40, 50)))  # in the next epoch
    run = start()
    tools.step(run)
    run.stop()
    shutil.rmtree(cache)
    add(*first[:20], (50, 0), (-51, 0))  # after a restart, without a cache
    run = start()
    tools.step(run)
    add((52, 500))  # its id and time collect all that was kept
    tools.step(run)
    add((3, 0))  # after its id was collected: late
    status = tools.finish(run)

    for stream in KINDS:
        counts = sinks[f"counts of {stream}"]
        rows = sorted(n for n, _, late in counts.values if not late)
        assert rows == [*range(51), 52]
        assert [n for n, _, late in counts.values if late] == [3]
        totals = {key: max(total for _, total, _ in all) for key, all in _by_key(counts).items()}
        assert totals["k1"] == sum(n for n in range(51) if n % 5 == 1)
        counted = status.counters[f"Count {stream}"]
        assert (counted.records, counted.duplicates_filtered) == (53, 10 + 10 + 20)
        assert status.counters[f"Relaxed {stream}"].records == 53 + 40
        assert status.counters[f"Relaxed {stream}"].duplicates_filtered == 0
    assert status.dead_letters == {"named": 1, "numbered": 1}
    reasons = [letter["reason"] for letter in sinks["rejects"].values]
    assert reasons == 2 * ["the id, column 'id', is null"]
    _check_sunk_ids(sinks["numbered"], int)


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
    p = _pipeline({"events": feed.bounded}, {"counts of events": counts})
    status = p.run_batch(feed._spark)
    assert sorted(n for n, _, _ in counts.values) == list(range(30))
    assert status.counters["Count events"].duplicates_filtered == 20
    assert status.counters["Relaxed events"].records == 50


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
    p.add(Count("events"))
    with pytest.raises(mr.MillraceError, match=message):
        p.run_batch(feed._spark)
