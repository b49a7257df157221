"""All of Nexmark's queries in the Harness, with crashes: the rows are those of DuckDB."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest

import millrace as mr
from millrace_examples.nexmark import events, files, oracle, results, stateless, suite

COUNT, EPOCH = 600, 150
DISORDER = 5 * mr.SECOND
#: Over midnight, with enough quiet for sessions to end, and with auction 1107.
MADE = list(
    events.Generator(
        rate=2, active=12, disorder=DISORDER, start=events.MIDNIGHT_US - 150 * mr.SECOND, first=1100
    ).events(COUNT)
)


def clock(n: int) -> int:
    """Return the processing time at which an event is read: that of its epoch."""
    return events.MIDNIGHT_US + n // EPOCH * 7 * mr.SECOND


@pytest.fixture(scope="module")
def database() -> Any:
    return oracle.database((event, clock(n)) for n, (_, event) in enumerate(MADE))


@pytest.fixture(scope="module", params=["plain", "crashes"])
def harness(request: Any) -> Any:
    with mr.testing.Harness(suite.pipeline(), lift=request.param == "plain") as h:
        for first in range(0, COUNT, EPOCH):
            h.advance_clock(clock(first))
            some = MADE[first : first + EPOCH]
            if request.param == "crashes":
                h.crash_in_next_epoch(first // EPOCH * 5)
            newest = max(event.at for _, event in MADE[: first + EPOCH])
            for name in events.FORMATS:
                h.inject(name, [(event, event.at) for stream, event in some if stream == name])
                h.advance_watermark(name, newest - DISORDER)
            h.inject("arrivals", [(event, None) for stream, event in some if stream == "bids"])
            if request.param == "crashes":
                h.crash()
        h.advance_clock(events.MIDNIGHT_US + mr.HOUR)
        for name in [*events.FORMATS, "arrivals"]:
            h.advance_watermark(name, mr.MAX_TIMESTAMP)
        yield h


@pytest.mark.parametrize("query", suite.QUERIES)
def test_the_rows_are_those_of_sql(query: str, harness: Any, database: Any) -> None:
    verdict = results.compare(query, results.of_outputs(harness.outputs(query)), database)

    assert verdict.agrees, verdict
    assert verdict.rows >= 2


def test_the_oracle_says_what_is_missing_and_what_is_too_much(database: Any) -> None:
    rows = oracle.answer("q9", database)
    lacks, doubled = pa.Table.from_pylist(rows[1:]), pa.Table.from_pylist([*rows, rows[0]])

    less = results.compare("q9", lacks, database)
    assert (less.missing, less.extra, less.some) == (1, 0, [rows[0]])
    more = results.compare("q9", doubled, database)
    assert (more.missing, more.extra, more.some) == (0, 1, [rows[0]])
    assert not less.agrees
    assert not more.agrees
    assert "1 of" in str(less)


def test_nothing_in_place_of_nothing_is_no_agreement(database: Any) -> None:
    nothing = oracle.database([])
    found = pa.Table.from_pylist(oracle.answer("q9", database)).slice(0, 0)
    assert not results.compare("q9", found, nothing).agrees


def test_no_state_is_left_of_auctions_that_are_over(harness: Any) -> None:
    assert harness.outputs("q9")
    assert list(harness.checkpoint()["WinningBids"].scan()) == []


def test_the_time_of_day_is_told_by_the_hour() -> None:
    p = mr.Pipeline("hours")
    stateless.q14(p.inject("bids", format=events.Bid)).to("q14")
    p.sink("q14", mr.sinks.Memory())
    dear = [
        (events.Bid(1, 2, 2_000_000, "Apple", "", "cc", at), at)
        for at in (hour * mr.HOUR for hour in (6, 7, 8, 18, 19, 20))
    ]
    with mr.testing.Harness(p) as h:
        h.inject("bids", dear)
        told = [output.value["time"] for output in h.outputs("q14")]

    assert told == ["nightTime", "otherTime", "dayTime", "dayTime", "otherTime", "nightTime"]


def test_events_are_the_same_for_the_same_seed_and_as_far_out_of_order_as_said() -> None:
    again = events.Generator(seed=8, rate=1000, disorder=mr.SECOND)
    made = [event.at for _, event in again.events(1000)]
    behind = [max(made[: n + 1]) - at for n, at in enumerate(made)]

    assert list(again.events(1000)) == list(again.events(1000))
    assert sorted(made) == [again.start + n * mr.MILLISECOND for n in range(1000)]
    assert mr.SECOND // 2 < max(behind) < mr.SECOND


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_files_hold_all_events_in_batches_for_so_many_readers(tmp_path: Any, format: str) -> None:
    made = [event for _, event in MADE]
    count = files.write(tmp_path, MADE, batch=250, readers=2, format=format)
    database = oracle.database_of_files(tmp_path)

    assert count == 6  # three batches, the last of a hundred events
    for name, of in events.FORMATS.items():
        assert len(list((tmp_path / name).iterdir())) == count
        rows = database.sql(f"SELECT * EXCLUDE (arrived) FROM {name}").fetchall()
        assert sorted(rows) == sorted(
            msgspec.structs.astuple(event) for event in made if isinstance(event, of)
        )


def test_one_query_has_the_streams_that_it_needs() -> None:
    p = suite.pipeline(queries=["q4", "q8"])
    with mr.testing.Harness(p) as h:
        for name in events.FORMATS:
            h.inject(name, [(event, event.at) for stream, event in MADE if stream == name])
            h.advance_watermark(name, mr.MAX_TIMESTAMP)
        database = oracle.database((event, 0) for _, event in MADE)
        for query in ("q4", "q8"):
            found = results.of_outputs(h.outputs(query))
            assert results.compare(query, found, database).agrees

    assert "arrivals" not in str(suite.pipeline(queries=["q4"]).explain())


def test_skew_is_the_share_of_bids_for_the_newest_auction() -> None:
    def newest(skew: float) -> float:
        made, last, hits = list(events.Generator(skew=skew).events(5000)), 0, 0
        for stream, event in made:
            if stream == "auctions":
                last = event.id
            hits += stream == "bids" and event.auction == last
        return hits / sum(stream == "bids" for stream, _ in made)

    assert newest(0.0) < 0.05
    assert 0.85 < newest(0.9) < 0.95
    assert newest(1.0) == 1.0
