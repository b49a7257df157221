"""Routing: rows on every edge, or none; packed and unpacked without loss."""

import pytest

import millrace as mr
from millrace.kernel.router import Router, RowsBuilder
from millrace.model.errors import CoderError
from millrace.model.keys import decode_key, hash_key


class Consumer(mr.Computation):
    def __init__(self, extractor):
        self.inputs = {"events": extractor}

    def process_record(self, record):
        pass


def router(*extractors, sink=False, step=None):
    p = mr.Pipeline("p")
    p.inject("events", format=str)
    for n, extractor in enumerate(extractors):
        p.add(Consumer(extractor), name=f"C{n}")
    if sink:
        p.sink("events", print)
    if step:
        p.stream("events").map(step).to("stepped", format=int)
        p.sink("stepped", print)
    return Router(p.build())


def rows(made):
    return list(zip(made.edges, made.hashes, made.keys, made.values, made.timestamps, strict=True))


def test_a_value_becomes_a_row_on_every_edge():
    made = RowsBuilder()
    router(mr.by(len), mr.by_key(), sink=True).send(made, "events", "abc", 7, "key")

    assert made.edges == [0, 1, 2]
    assert [decode_key(key) for key in made.keys] == [3, "key", "key"]
    assert made.timestamps == [7, 7, 7]
    assert {mr.coders.Msgpack(str).decode(value) for value in made.values} == {"abc"}


def test_a_row_to_a_computation_carries_the_hash_of_its_key():
    made = RowsBuilder()
    router(mr.by(len), sink=True).send(made, "events", "abc", 7, None)

    assert made.hashes == [hash_key(made.keys[0]), 0]


def test_each_row_has_its_own_key_where_keys_are_kept():
    """Keys that are equal and not the same have their own bytes: 1, 1.0 and True."""
    made, sending = RowsBuilder(), router(mr.by_key())
    keys = ["a", "a", "b", "a", 1, 1.0, True, 1, ("a", 1)]
    for key in keys:
        sending.send(made, "events", "abc", 7, key)
    with pytest.raises(CoderError, match="by_key"):
        sending.send(made, "events", "abc", 7, None)
    sending.send(made, "events", "abc", 7, "a")

    assert [repr(decode_key(one)) for one in made.keys] == [repr(key) for key in [*keys, "a"]]
    assert made.hashes == [hash_key(one) for one in made.keys]


def test_a_row_to_a_sink_without_a_key_says_so():
    made = RowsBuilder()
    router(sink=True).send(made, "events", "abc", 7, None)

    assert made.keys == [b""]


def test_a_stream_that_nobody_reads_makes_no_rows():
    p = mr.Pipeline("p")
    p.inject("events", format=str)
    p.inject("unread", format=str)
    p.sink("events", print)
    made = RowsBuilder()
    Router(p.build()).send(made, "unread", "abc", 7, None)

    assert rows(made) == []


def test_a_value_is_checked_even_where_nobody_reads_it():
    p = mr.Pipeline("p")
    p.inject("events", format=str)
    p.inject("unread", format=str)
    p.sink("events", print)

    with pytest.raises(CoderError, match="stream 'unread'"):
        Router(p.build()).send(RowsBuilder(), "unread", 7, 7, None)


def test_what_is_packed_is_unpacked():
    made = RowsBuilder()
    route = router(mr.by(len), mr.by_key(), sink=True)
    for n in range(5):
        route.send(made, "events", "x" * n, n, n)

    assert rows(RowsBuilder.unpack(made.pack())) == rows(made)


def test_nothing_packs_to_nothing():
    assert RowsBuilder().pack() == b""
    assert rows(RowsBuilder.unpack(b"")) == []


def test_truncating_takes_back_the_last_rows_of_all_columns():
    made = RowsBuilder()
    route = router(mr.by(len))
    for n in range(5):
        route.send(made, "events", "x" * n, n, None)
    expected = rows(made)[:2]
    made.truncate(2)

    assert rows(made) == expected


def refusing(value):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "given",
    [
        {"extractors": [mr.by(len), mr.by(lambda _: None)]},
        {"extractors": [mr.by(len), mr.by(refusing)]},
        {"extractors": [mr.by(len)], "step": refusing},
        {"extractors": [mr.by(len)], "step": str},
    ],
    ids=["key is None", "extractor fails", "step fails", "step makes the wrong type"],
)
def test_productions_are_unchanged_if_any_consumer_refuses(given):
    made = RowsBuilder()
    route = router(*given["extractors"], step=given.get("step"))

    with pytest.raises((CoderError, ZeroDivisionError)):
        route.send(made, "events", "abc", 7, None)
    assert rows(made) == []
