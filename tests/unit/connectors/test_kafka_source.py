"""Kafka without a broker: arguments, columns, and what travels to workers."""

import datetime as dt
import json
import pickle
import sys
from concurrent.futures import Future
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Uuid

import millrace as mr
from millrace.compile.build import build
from millrace.connectors.files.lines import RowMaker, json_object
from millrace.connectors.kafka.messages import (
    ID_HEADER,
    KAFKA_COLUMNS,
    MessageRows,
    between,
)
from millrace.injectors.columns import column_names
from millrace.injectors.offsets import pieces_until_now
from millrace.injectors.refusals import column_of, refusals_of, without_refusals
from millrace.model.errors import InputLost, PipelineError, RecordRejected
from millrace.spark.start import _bind_injectors
from millrace.store import LocalHardState


def test_without_a_schema_a_row_is_the_message():
    kafka = mr.sources.Kafka("localhost:1", "t")

    assert column_names(kafka.schema) == [
        *("value", "kafka_key", "kafka_topic", "kafka_partition", "kafka_offset"),
        *("kafka_timestamp", "kafka_id", "kafka_headers"),
    ]


def test_it_travels_without_its_connections():
    kafka = mr.sources.Kafka("localhost:1", ["a", "b"], schema="n long, at long")
    kafka._consumer = object()
    there = pickle.loads(pickle.dumps(kafka))

    assert there._consumer is None
    assert repr(there) == repr(kafka) == "Kafka('localhost:1', ['a', 'b'])"


@pytest.mark.parametrize(
    ("first", "last", "offset", "expected"),
    [(0, 10, 5, 9), (0, 7, 5, 7), (5, 10, 5, 9), (0, 5, 5, 5), (3, 10, None, 3)],
    ids=["limited", "to the end", "its beginning", "nothing new", "found"],
)
def test_it_advances_as_far_as_an_epoch_may_go(first, last, offset, expected):
    kafka = mr.sources.Kafka("localhost:1", "t", records_per_epoch=4)
    kafka._bounds = {"t-0": (first, last)}

    assert kafka.advance("t-0", offset) == mr.sources.Advance(expected)


def test_a_partition_that_was_only_found_has_nothing_to_read():
    assert list(mr.sources.Kafka("localhost:1", "t").split("t-0", None, 7)) == []


@pytest.mark.parametrize(
    ("first", "last", "says"),
    [(6, 9, "begins at 6: 1 records were removed"), (0, 4, "ends at 4: the topic was deleted")],
)
def test_what_is_gone_is_an_error(first, last, says):
    kafka = mr.sources.Kafka("localhost:1", "t")
    kafka._bounds = {"t-0": (first, last)}

    with pytest.raises(InputLost, match=says):
        kafka.advance("t-0", 5)


def test_until_now_it_goes_as_far_as_it_was_when_it_was_asked():
    kafka = mr.sources.Kafka("localhost:1", "t", records_per_epoch=4)
    kafka._bounds = {"t-0": (3, 12)}
    kafka._consumer = SimpleNamespace(
        offsets_for_times=lambda *_, **__: [SimpleNamespace(offset=6)]
    )

    assert [advance.offset for advance in kafka.until_now("t-0")] == [3, 7, 11, 12]
    assert [advance.offset for advance in kafka.until_now("t-0", 0)] == [3, 6]


class Admin:
    """An admin client to which some partitions are not there yet."""

    def __init__(self, code):
        self.code = code

    def list_offsets(self, wanted, **_):
        futures = {}
        for partition in wanted:
            futures[partition] = future = Future()
            if partition.partition == 1:
                future.set_exception(KafkaException(KafkaError(self.code)))
            else:
                future.set_result(SimpleNamespace(offset=5))
        return futures


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.OFFSET_NOT_AVAILABLE,  # its leader is new
    ],
)
def test_a_partition_that_is_being_made_is_asked_again(code):
    kafka = mr.sources.Kafka("localhost:1", "t")
    kafka._admin, kafka._partitions, kafka._asked = Admin(code), [("t", 0), ("t", 1)], 1e18

    assert kafka.processes() == ["t-0"]
    assert kafka._asked < 0  # the list of partitions is fetched again


def test_a_batch_is_not_made_without_a_partition_that_has_no_leader():
    """Not even where it is the only one."""
    kafka = mr.sources.Kafka("localhost:1", ["t"])
    kafka._admin, kafka._asked = Admin(KafkaError.LEADER_NOT_AVAILABLE), 1e18
    kafka._partitions = [("t", 0), ("t", 1)]
    with pytest.raises(ConnectionError, match=r"\['t-1'\] .*no leader"):
        [*pieces_until_now("s", kafka)]


@pytest.mark.parametrize("moves", [True, False])
def test_of_a_topic_without_any_leader_one_is_waited_for(moves, monkeypatch):
    kafka = mr.sources.Kafka("localhost:1", ["t"])
    kafka._admin = Admin(KafkaError.LEADER_NOT_AVAILABLE)
    kafka._list_partitions = lambda: [("t", 0 if moves and now_s else 1)]
    now_s = 0.0

    def sleep(seconds):
        nonlocal now_s
        now_s += seconds

    clock = SimpleNamespace(monotonic=lambda: now_s, sleep=sleep)
    monkeypatch.setattr("millrace.connectors.kafka.source.time", clock)
    if moves:
        assert kafka.processes() == ["t-0"]
    else:
        with pytest.raises(ConnectionError, match=r"\['t-1'\] .*no leader"):
            kafka.processes()
    assert (now_s < 1) == moves


def test_what_the_broker_refuses_is_an_error():
    kafka = mr.sources.Kafka("localhost:1", "t")
    kafka._admin, kafka._partitions = Admin(KafkaError.TOPIC_AUTHORIZATION_FAILED), [("t", 1)]
    kafka._asked = 1e18

    with pytest.raises(ConnectionError, match=r"refuses topic 't', partition 1: .*authoriz"):
        kafka.processes()


class Topics:
    """An admin client that lists topics with one partition, and says when each was made."""

    def __init__(self, **made):
        self.made = made

    def list_topics(self, topic, timeout):
        there = SimpleNamespace(error=None, partitions={0: None})
        return SimpleNamespace(topics={topic: there})

    def describe_topics(self, topics, **_):
        futures = {name: Future() for name in self.made}
        for name, future in futures.items():
            if self.made[name] is None:
                future.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
            else:
                description = {"topic_id": self.made[name], "authorized_operations": None}
                future.set_result(SimpleNamespace(**description))
        return futures


def test_a_topic_that_is_made_again_while_it_is_read_is_lost():
    kafka = mr.sources.Kafka("localhost:1", ["a", "b"])
    kafka._admin = Topics(a="1", b=None)
    assert kafka._list_partitions() == [("a", 0), ("b", 0)]
    kafka._admin.made = {"a": "1", "b": "5"}  # b had no answer before
    assert kafka._list_partitions() == [("a", 0), ("b", 0)]
    kafka._admin.made = {"a": "1", "b": "6"}

    with pytest.raises(InputLost, match=r"topic 'b' was deleted and made again .* new checkpoint"):
        kafka._list_partitions()


def test_a_topic_that_is_made_again_between_two_runs_is_lost(tmp_path):
    """Offsets of the checkpoint would be taken for those of the new topic, if it is long enough."""
    LocalHardState.create_or_open(tmp_path, pipeline="p")

    def list_partitions(**made):
        kafka = mr.sources.Kafka("localhost:1", list(made))
        kafka.bind(str(tmp_path), "clicks")
        asked = pickle.loads(pickle.dumps(kafka))  # a driver asks a copy
        asked._admin = Topics(**made)
        return asked._list_partitions()

    list_partitions(a="1")
    list_partitions(a="1", b="2")
    with pytest.raises(InputLost, match=r"topic 'b' was deleted .* remove mailbox/\w+\.kafka"):
        list_partitions(a="1", b="3")
    (message,) = (tmp_path / "mailbox").glob("*.kafka-topics")
    message.unlink()
    assert list_partitions(a="1", b="3") == [("a", 0), ("b", 0)]


def test_a_topic_of_a_stream_that_is_renamed_is_known_by_the_name_before(tmp_path):
    LocalHardState.create_or_open(tmp_path, pipeline="p")

    def list_partitions(stream, id, was=()):
        p = mr.Pipeline("p")
        source = mr.sources.Kafka("localhost:1", "a")
        p.inject(stream, source, timestamp="timestamp", low_watermark=mr.BoundedDelay(0), was=was)
        p.inject("others", format=bytes)
        p.stream(stream).flatten(p.stream("others")).to("out")
        p.sink("out", mr.sinks.Memory())
        _bind_injectors(build(p), str(tmp_path))
        source._admin = Topics(a=id)
        return source._list_partitions()

    list_partitions("clicks", "1")
    with pytest.raises(InputLost, match="topic 'a' was deleted and made again"):
        list_partitions("visits", "2", was="clicks")
    list_partitions("visits", "1", was="clicks")
    with pytest.raises(InputLost, match="topic 'a' was deleted and made again"):
        list_partitions("visits", "2")
    list_partitions("unknown", "2", was="others")


def test_a_topic_that_gets_an_id_with_newer_brokers_is_the_same(tmp_path):
    """Brokers before 2.8 know no ids, and tell zero for each."""
    LocalHardState.create_or_open(tmp_path, pipeline="p")
    kafka = mr.sources.Kafka("localhost:1", "a")
    kafka.bind(str(tmp_path), "clicks")
    kafka._admin = Topics(a=Uuid(0, 0))
    assert kafka._list_partitions() == [("a", 0)]
    kafka._admin.made = {"a": Uuid(0, 7)}
    assert kafka._list_partitions() == [("a", 0)]
    kafka._admin.made = {"a": Uuid(0, 8)}

    with pytest.raises(InputLost, match="made again"):
        kafka._list_partitions()


@pytest.mark.parametrize(
    ("since", "asked_ms"), [(0, 0), (1, 1), (2_000_000, 2000), (2_000_001, 2001)]
)
def test_since_is_rounded_up_to_a_message_s_milliseconds(since, asked_ms):
    asked = []

    def offsets_for_times(wanted, timeout):
        asked.append(wanted[0].offset)
        return [SimpleNamespace(offset=6)]

    kafka = mr.sources.Kafka("localhost:1", "t", since=since)
    kafka._consumer, kafka._bounds = SimpleNamespace(offsets_for_times=offsets_for_times), {}
    kafka._bounds["t-0"] = (3, 12)

    assert kafka.advance("t-0", None).offset == 6
    assert asked == [asked_ms]


@pytest.mark.parametrize("since", [-1, -1000, -2000, "1969-12-31T23:59:59.999Z"])
def test_since_a_time_before_1970_is_since_the_beginning(since):
    """To brokers -1 is the end of a partition, and other times below 0 are none."""
    kafka = mr.sources.Kafka("localhost:1", "t", since=since)
    kafka._bounds = {"t-0": (3, 12)}

    assert kafka.advance("t-0", None).offset == 3


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_a_partition_ends_where_its_consumers_come_to(level):
    """Beyond an open transaction, where they are told to read what is not committed."""
    asked = []

    def list_offsets(wanted, isolation_level, **_):
        asked.append(isolation_level.name.lower())
        return {}

    kafka = mr.sources.Kafka("localhost:1", "t", config={"isolation.level": level})
    kafka._admin, kafka._asked = SimpleNamespace(list_offsets=list_offsets), 1e18

    assert kafka.processes() == []
    assert asked == [level, level]


def test_to_ask_for_a_topic_does_not_make_it(monkeypatch):
    """Where brokers make topics by themselves, an administrator's question would be enough."""
    settings = []
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", settings.append)
    mr.sources.Kafka("localhost:1", "t")._administrator()
    mr.sources.Kafka("localhost:1", "t", config={"allow.auto.create.topics": True})._administrator()

    assert [one["allow.auto.create.topics"] for one in settings] == [False, True]


def test_arguments_are_checked():
    with pytest.raises(PipelineError, match="expected 1 or more"):
        mr.sources.Kafka("localhost:1", "t", records_per_epoch=0)
    with pytest.raises(PipelineError, match="expected the name of a topic"):
        mr.sources.Kafka("localhost:1", [])
    for topics in ("^clicks.*", "", ["good_one.v-1", "no such"]):
        with pytest.raises(PipelineError, match=r"no name of a topic.* pattern is not supported"):
            mr.sources.Kafka("localhost:1", topics)
    with pytest.raises(PipelineError, match="expected the name of a topic"):
        mr.sinks.Kafka("localhost:1", "")


@pytest.mark.parametrize(
    "make", [lambda: mr.sources.Kafka("s", "t"), lambda: mr.sinks.Kafka("s", "t")]
)
def test_the_missing_package_is_named(monkeypatch, make):
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)

    with pytest.raises(PipelineError, match=r"pip install 'millrace-spark\[kafka\]'"):
        make()


def _message(value=b"", key=None, headers=None, timestamp=(1, 5)):
    return Message(
        topic="t", partition=0, offset=3, value=value, key=key, headers=headers, timestamp=timestamp
    )


def _row(message, schema=None, parse=None):
    batch = MessageRows(schema, parse, None).batch("t-0", [message])
    (row,) = without_refusals(batch).to_pylist()
    return row


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("other", b"x"), (ID_HEADER, b"7f")], b"7f"),
        ([(ID_HEADER, b"\xff\x00")], b"\xff\x00"),
        ([(ID_HEADER, b"old"), (ID_HEADER, b"new")], b"new"),
        ([(ID_HEADER, b"old"), (ID_HEADER, None)], None),
        ([(ID_HEADER, b"")], b""),
        ([(ID_HEADER, None)], None),
        ([], None),
        (None, None),
    ],
)
def test_the_id_is_the_bytes_of_the_last_header_of_that_name(headers, expected):
    assert _row(_message(headers=headers))["kafka_id"] == expected


def test_a_tombstone_is_null_and_an_empty_message_is_empty():
    assert _row(_message(value=None))["value"] is None
    assert _row(_message(value=b""))["value"] == b""


@pytest.mark.parametrize("parse", [None, json.loads, lambda data: (json.loads(data)["n"],)])
def test_a_tombstone_under_a_schema_is_nulls_and_says_so(parse):
    schema = "n long, kafka_key binary, kafka_tombstone boolean"
    rows = MessageRows(schema, parse, None).batch(
        "t-0", [_message(b'{"n": 1}', b"a"), _message(None, b"b"), _message(b'{"n": 2}')]
    )

    assert rows.to_pylist() == [
        {"n": 1, "kafka_key": b"a", "kafka_tombstone": False},
        {"n": None, "kafka_key": b"b", "kafka_tombstone": True},
        {"n": 2, "kafka_key": None, "kafka_tombstone": False},
    ]


def test_an_empty_message_is_no_json():
    with pytest.raises(RecordRejected, match=r"topic 't', partition 0, offset 3: .*truncated"):
        _row(_message(b""), "n long")


def test_headers_have_one_type():
    with pytest.raises(PipelineError, match=r"Expected array<struct<key: string, value: binary>>"):
        MessageRows("kafka_headers map<string, binary>", None, None)


def test_headers_of_several_messages_stay_apart_also_beside_a_message_that_is_read_alone():
    messages = [_message(b"{}", headers=[("a", b"1")]), _message(b'{"n": 2.0}'), _message(None)]
    schema = "n long, kafka_headers array<struct<key: string, value: binary>>"
    rows = MessageRows(schema, None, None).batch("t-0", messages).to_pylist()

    assert [row["kafka_headers"] for row in rows] == [[{"key": "a", "value": b"1"}], [], []]
    assert [row["n"] for row in rows] == [None, 2, None]


def test_headers_are_what_they_are():
    headers = [("a", b"1"), ("a", b"\xff"), ("", b""), ("b", None)]

    assert _row(_message(headers=headers))["kafka_headers"] == [
        {"key": "a", "value": b"1"},
        {"key": "a", "value": b"\xff"},
        {"key": "", "value": b""},
        {"key": "b", "value": None},
    ]
    assert _row(_message())["kafka_headers"] == []


class Unnamed:
    """A message with a header whose name is no text, as confluent-kafka has it."""

    def __init__(self):
        self.message, self.asked = _message(b'{"n": 7}', key=b"k"), False

    def headers(self):
        assert not self.asked  # it would give a null pointer, and Python end
        self.asked = True
        raise SystemError("<method 'headers'> returned a result with an exception set")

    def __getattr__(self, name):
        return getattr(self.message, name)


@pytest.mark.parametrize("columns", [KAFKA_COLUMNS, "kafka_id string"])
def test_a_header_whose_name_is_no_text_refuses_its_message_alone(columns):
    rows = MessageRows(f"n long, {columns}", None, None)
    batch = rows.batch("t-0", [_message(b'{"n": 1}'), Unnamed(), _message(b'{"n": 2}')])

    assert batch.column("n").to_pylist() == [1, None, 2]
    (refused,) = refusals_of(column_of(batch)).items()
    assert refused[0] == 1
    assert (refused[1].raw, refused[1].raw_key) == (b'{"n": 7}', b"k")
    assert "header" in refused[1].reason


@pytest.mark.parametrize("timestamp", [(0, -1), (1, -1), (2, -1)])
def test_a_message_without_a_timestamp_has_null(timestamp):
    assert _row(_message(timestamp=timestamp))["kafka_timestamp"] is None


@pytest.mark.parametrize("kind", [1, 2], ids=["created", "appended"])
def test_a_message_s_timestamp_is_an_instant(kind):
    at = dt.datetime(1970, 1, 1, 0, 0, 0, 5000, tzinfo=dt.UTC)

    assert _row(_message(timestamp=(kind, 5)))["kafka_timestamp"] == at


@pytest.mark.parametrize(
    "at_ms", [1_764_000_000_000_000, -62_135_596_800_001], ids=["us", "year 0"]
)
def test_a_timestamp_beyond_python_s_is_what_it_is_whatever_stands_beside_it(at_ms):
    far = _message(b'{"n": 1}', timestamp=(1, at_ms))
    for messages in ([far], [far, _message(b"no JSON")]):
        schema = "n long, kafka_timestamp timestamp"
        rows = MessageRows(schema, None, None, drops=True).batch("t-0", messages)
        assert rows.column("n")[0].as_py() == 1
        assert rows.column("kafka_timestamp").cast(pa.int64())[0].as_py() == at_ms * 1000


def test_a_timestamp_that_64_bits_do_not_hold_refuses_its_message_alone():
    nanoseconds = _message(b'{"n": 1}', timestamp=(1, 1_764_000_000_000_000_000))
    messages = [_message(b'{"n": 2}', timestamp=(1, 5)), nanoseconds]
    rows = MessageRows("n long, kafka_timestamp timestamp", None, None).batch("t-0", messages)

    assert rows.column("n").to_pylist() == [2, None]
    (refused,) = refusals_of(column_of(rows)).items()
    assert refused[0] == 1
    assert "kafka_timestamp" in refused[1].reason


@pytest.mark.parametrize("column", ["kafka_key", "kafka_id"])
def test_what_is_declared_as_text_is_utf8_or_refused(column):
    def message(data):
        return _message(b"{}", data, [(ID_HEADER, data)])

    assert _row(message("né\0🦀".encode()), f"{column} string") == {column: "né\0🦀"}
    with pytest.raises(RecordRejected, match=rf"(?i)offset 3: .*column '{column}'.*utf-?8"):
        _row(message(b"\xff"), f"{column} string")


def test_a_column_may_come_from_beside_the_value():
    maker = RowMaker("n long, kafka_offset long, missing string", json_object)
    lines = [b'{"n": 1}', b'{"n": 1, "kafka_offset": 3}', b'{"n": 1, "kafka_offset": null}']
    for some in (lines[:1], lines):
        made = maker.batch(some, str, {"kafka_offset": [9, 10, 11][: len(some)]})
        assert made.column("kafka_offset").to_pylist() == [9, 3, 11][: len(some)]
        assert set(made.column("missing").to_pylist()) == {None}


def test_a_parse_may_give_columns_in_order():
    maker = RowMaker("n long, kafka_offset long, s string", lambda data: (int(data), "s"))

    (row,) = maker.batch([b"5"], str, {"kafka_offset": [9]}).to_pylist()
    assert row == {"n": 5, "kafka_offset": 9, "s": "s"}
    with pytest.raises(RecordRejected, match=r"here: ValueError: (.|\n)*b'six'"):
        without_refusals(maker.batch([b"six"], lambda _: "here"))


@pytest.mark.parametrize("text", [b'"2026-11-20T09:00:00Z"', b'"2026-11-20T10:00+01:00"', b"%d"])
def test_a_time_may_be_written_in_every_way(text):
    nine = dt.datetime(2026, 11, 20, 9, tzinfo=dt.UTC)
    text = text.replace(b"%d", str(int(nine.timestamp()) * mr.SECOND).encode())

    made = RowMaker("at timestamp", json_object).batch([b'{"at": ' + text + b"}"], str)
    assert made.to_pylist() == [{"at": nine}]


@pytest.mark.parametrize(
    ("line", "words"),
    [(b'{"at": "2026-11-20T09:00:00"}', "has no time zone"), (b"[1]", "Expected `object`")],
)
def test_a_line_that_cannot_be_read_is_refused(line, words):
    with pytest.raises(RecordRejected, match=words):
        without_refusals(RowMaker("at timestamp", json_object).batch([line], str))


def test_messages_come_as_many_as_there_are_up_to_the_end():
    class Message:
        def __init__(self, offset, error=None, topic="t"):
            self._offset, self._error, self._topic = offset, error, topic

        def topic(self):
            return self._topic

        def offset(self):
            return self._offset

        def error(self):
            return self._error

    def read(*lots, end=9):
        left = [list(lot) for lot in lots]
        consumer = SimpleNamespace(assign=lambda _: None, consume=lambda *_, **__: left.pop(0))
        found = [[m.offset() for m in some] for some in between(consumer, "t", 0, 3, end)]
        assert left == []
        return found

    def ends(at):
        return Message(at, KafkaError(KafkaError._PARTITION_EOF))

    assert read([Message(3), Message(4)], [], [Message(8), Message(9)]) == [[3, 4], [8]]
    assert read([Message(3), Message(7), Message(12)]) == [[3, 7]]  # 8 was compacted away
    assert read([Message(3)], [ends(9)]) == [[3]]  # aborted
    assert read([ends(5)], [Message(8)]) == [[8]]  # what was there when it was planned comes
    gone = Message(0, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    with pytest.raises(InputLost, match="Was the topic deleted"):
        read([Message(3), gone])
    # What passes by itself is waited for; and no group is needed.
    moved = Message(0, KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    group = Message(0, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), topic=None)
    assert read([moved, group], [Message(8)]) == [[8]]
    forbidden = Message(0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(PermissionError, match="to READ topic 't'"):
        read([forbidden])


def test_a_reader_that_takes_its_time_is_no_broker_that_is_away(monkeypatch):
    now_s = 0.0

    def consume(_, timeout):
        nonlocal now_s
        now_s += timeout
        return [_message()] if now_s in (0.5, 61.0) else []

    monkeypatch.setattr("millrace.connectors.kafka.messages.time.monotonic", lambda: now_s)
    batches = between(
        SimpleNamespace(assign=lambda _: None, consume=consume), "t", 0, 3, 9, patience_s=1
    )
    assert len(next(batches)) == 1
    now_s += 60  # its rows are parsed, and encoded
    assert len(next(batches)) == 1
    with pytest.raises(TimeoutError, match="gave nothing for 1 s"):
        next(batches)
