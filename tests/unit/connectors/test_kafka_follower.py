"""Partitions of Kafka followed, with a consumer that is told what to answer."""

import logging
import socket
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

import millrace as mr
from millrace.connectors.kafka.follower import KafkaFollower
from millrace.connectors.kafka.messages import MessageRows
from millrace.injectors.advance import along
from millrace.model.errors import InputLost


def message(offset, partition=0, value=b"v", topic="t"):
    return Message(topic=topic, partition=partition, offset=offset, value=value)


def end(offset, partition=0, topic="t"):
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        error=KafkaError(KafkaError._PARTITION_EOF),
    )


def error(code, partition=0, topic="t"):
    return Message(topic=topic, partition=partition, error=KafkaError(code))


class Client:
    """A consumer: each call of ``consume`` may take from the next lot only."""

    def __init__(self, *lots, partitions=(0, 1)):
        self.lots = [list(lot) for lot in lots]
        self.partitions = partitions
        self.assigned, self.paused, self.calls = {}, set(), []
        self.closed = False
        self.now = 0.0

    def make(self, config):
        self.config = config
        return self

    def clock(self):
        return self.now

    def assign(self, partitions):
        self.assigned = {(one.topic, one.partition): one.offset for one in partitions}

    def consume(self, most, timeout):
        self.calls.append((most, timeout))
        lot = self.lots[0] if self.lots else []
        some, self.lots[:1] = lot[:most], [lot[most:]] if lot[most:] else []
        if not some:
            self.now += timeout
        return some

    def pause(self, partitions):
        self.paused |= {one.partition for one in partitions}

    def resume(self, partitions):
        self.paused -= {one.partition for one in partitions}

    def get_watermark_offsets(self, partition, timeout=None, cached=False):
        return (3, 40) if partition.partition == 0 else (0, -1001 if cached else 7)

    def offsets_for_times(self, wanted, timeout):
        (one,) = wanted
        one.offset = 5 if one.partition == 0 else -1
        return [one]

    def list_topics(self, topic, timeout):
        if self.partitions is None:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        listed = SimpleNamespace(error=None, partitions=dict.fromkeys(self.partitions))
        return SimpleNamespace(topics={topic: listed})

    def close(self):
        self.closed = True


def follow(client, places=None, *, schema=None, most=100, since_us=None):
    return KafkaFollower(
        {"t-0": 0} if places is None else places,
        MessageRows(schema, None, None),
        {"bootstrap.servers": "here:1", "fetch.wait.max.ms": 7},
        who="Kafka('here:1', ['t'])",
        most=most,
        since_us=since_us,
        consumer=client.make,
        clock=client.clock,
    )


def test_a_message_comes_by_itself_and_then_all_that_are_there():
    client = Client([message(4), message(5)], [], [message(6)])
    follower = follow(client, {"t-0": 4})

    (taken,) = follower.take(0.5)

    assert client.assigned == {("t", 0): 4}
    assert client.calls == [(1, 0.5), (99, 0)]
    assert taken.rows.column("value").to_pylist() == [b"v", b"v"]
    assert (taken.process, taken.first, taken.numbers, taken.offset) == ("t-0", 4, None, 6)
    assert taken.low_watermark is taken.decided is None


def test_with_a_backlog_it_does_not_wait():
    client = Client([message(n) for n in range(25)])
    follower = follow(client, most=10)

    assert [follower.take(1.0)[0].rows.num_rows for _ in range(3)] == [10, 10, 5]
    assert client.calls == [(1, 1.0), (9, 0), (10, 0), (10, 0)]
    assert follower.take(1.0) == []


def test_no_more_messages_are_taken_at_once_than_it_is_limited_to():
    client = Client([message(n) for n in range(25)])
    follower = follow(client)
    takes = []
    for most in (3, 5, 100):
        follower.limit(most)
        takes.append(follower.take(1.0)[0].rows.num_rows)
    assert takes == [3, 3, 5]  # a take later it may be more again


def test_large_messages_are_taken_few_at_a_time():
    client = Client([message(n, value=bytes(1 << 20)) for n in range(20)])
    follower = follow(client, most=10)

    assert [follower.take(0)[0].rows.num_rows for _ in range(3)] == [10, 3, 3]


def test_each_partition_has_its_own_rows_and_numbers():
    lot = [message(3), message(8, 1), message(9, 1), message(5), message(12, 1)]
    follower = follow(Client(lot), {"t-0": 3, "t-1": 8})

    zero, one = follower.take(0)

    assert (zero.process, zero.first, zero.numbers.tolist(), zero.offset) == (
        "t-0",
        None,
        [3, 5],
        6,
    )
    assert (one.process, one.numbers.tolist(), one.offset) == ("t-1", [8, 9, 12], 13)


def test_an_end_that_no_message_stands_before_is_reached():
    """The offset of a transaction's end, and those of what was aborted, have no message."""
    lots = [message(4), end(6), message(2, 1)], [end(3, 1)], [end(6)], [message(9), end(9)]
    follower = follow(Client(*lots), {"t-0": 4, "t-1": 2})

    taken = follower.take(0)
    for _ in range(3):
        taken += follower.take(0)

    assert [(one.process, one.rows.num_rows, one.offset) for one in taken] == [
        ("t-0", 1, 5),
        ("t-1", 1, 3),
        ("t-0", 0, 6),
        ("t-0", 1, 10),
    ]


def test_columns_are_those_of_the_schema():
    lot = [Message(topic="t", partition=0, offset=2, value=b'{"n": 5}', key=b"k")]
    (taken,) = follow(Client(lot), schema="n long, kafka_offset long, kafka_key binary").take(0)

    assert taken.rows.to_pylist() == [{"n": 5, "kafka_offset": 2, "kafka_key": b"k"}]


def test_where_a_partition_begins_is_decided_first():
    follower = follow(Client([message(3)]), {"t-0": None, "t-1": None})
    begun = follower.take(0)

    assert [(one.process, one.offset, one.decided) for one in begun] == [
        ("t-0", 3, [[3], None]),
        ("t-1", 0, [[0], None]),
    ]
    assert all(one.rows.num_rows == 0 for one in begun)
    assert follower.take(0)[0].first == 3


def test_a_partition_that_is_just_made_is_waited_for():
    client, refused = Client(), [1, 2]
    first = client.get_watermark_offsets

    def later(*arguments, **named):
        if refused:
            refused.pop()
            raise KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
        return first(*arguments, **named)

    client.get_watermark_offsets = later
    assert follow(client, {"t-0": None}).take(0)[0].offset == 3
    assert client.now == pytest.approx(0.2)


def test_a_partition_without_a_leader_is_not_waited_for_for_ever():
    client = Client()

    def refuse(*_, **__):
        raise KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE))

    client.get_watermark_offsets = refuse
    with pytest.raises(ConnectionError, match="does not say where partition 't-0' begins"):
        follow(client, {"t-0": None})
    assert client.now > 60
    assert client.closed


def test_it_begins_at_an_instant():
    client = Client()
    follow(client, {"t-0": None, "t-1": None}, since_us=mr.SECOND)

    assert client.assigned == {("t", 0): 5, ("t", 1): 7}  # nothing so new in 1: its end


def test_it_goes_on_where_it_was_decided_to_begin():
    client = Client()
    follow(client, {"t-0": along(None, [[[2], None]])})

    assert client.assigned == {("t", 0): 2}


def test_a_user_s_settings_go_before():
    client = Client()
    follow(client)

    assert client.config["fetch.wait.max.ms"] == 7
    assert client.config["fetch.queue.backoff.ms"] == 1


def test_what_is_held_is_not_fetched():
    client = Client()
    follower = follow(client, {"t-0": 0, "t-1": 0})
    follower.hold({"t-1", "other"})
    assert client.paused == {1}
    follower.hold({"t-0"})
    assert client.paused == {0}
    follower.hold(())
    assert client.paused == set()


@pytest.mark.parametrize(
    "code",
    [KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE],
)
def test_what_was_removed_is_lost(code):
    follower = follow(Client([message(4)], [], [error(code)]), {"t-0": 4})
    follower.take(0)

    with pytest.raises(
        InputLost, match=r"'t-0' cannot be read on at offset 5: .*new checkpoint"
    ) as lost:
        follower.take(0)
    assert "it begins at 3 now and ends at 40." in str(lost.value)


def test_a_topic_that_is_gone_is_lost():
    client = Client(partitions=())
    follower = follow(client)
    assert follower.take(0) == []
    client.config["error_cb"](KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    with pytest.raises(InputLost, match="topic 't' is not there"):
        follower.take(0)


def test_a_partition_that_is_gone_is_lost():
    client = Client([error(KafkaError.UNKNOWN_TOPIC_OR_PART)], partitions=(1,))

    with pytest.raises(InputLost, match="'t-0' cannot be read on at offset 0"):
        follow(client).take(0)


@pytest.mark.parametrize(
    ("code", "partitions"),
    [
        (KafkaError.LEADER_NOT_AVAILABLE, (0, 1)),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, (0, 1)),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, None),
        (KafkaError._TRANSPORT, (0, 1)),
        (KafkaError.REQUEST_TIMED_OUT, (0, 1)),
    ],
    ids=["it is moved", "it is made", "it cannot be asked for", "no broker", "it takes long"],
)
def test_what_passes_is_waited_for(code, partitions):
    follower = follow(Client([error(code), message(0)], partitions=partitions))
    taken = follower.take(0) or follower.take(0)

    assert taken[0].first == 0


def test_what_the_broker_refuses_is_an_error():
    follower = follow(Client([error(KafkaError.TOPIC_AUTHORIZATION_FAILED)]))

    with pytest.raises(PermissionError, match=r"here:1.* to READ topic 't'"):
        follower.take(0)


def test_what_is_refused_of_the_group_is_no_error_of_a_partition():
    """A client asks for its group's coordinator, though nothing is committed to the group."""
    group = Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    follower = follow(Client([group, message(3)]))

    assert [taken.rows.num_rows for taken in follower.take(0)] == [1]


def test_brokers_that_are_away_are_said_once(caplog):
    client = Client([], [message(0)])
    follower = follow(client)
    with caplog.at_level(logging.INFO, logger="millrace.injectors"):
        for _ in range(3):
            client.config["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN))
        client.config["error_cb"](KafkaError(KafkaError._TRANSPORT))
        assert [one.first for one in follower.take(0) or follower.take(0)] == [0]

    assert [one.getMessage().split("]) ")[1][:19] for one in caplog.records] == [
        "cannot be reached: ",
        "is there again.",
    ]


def test_why_brokers_are_away_is_said(caplog):
    client = Client([], [message(0)], [])
    follower = follow(client)
    refused = KafkaError(KafkaError._AUTHENTICATION, "the password is wrong")
    for report in (
        KafkaError(KafkaError._TRANSPORT, "broken off"),
        refused,
        KafkaError(KafkaError._TRANSPORT, "broken off"),
        KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"),
    ):
        client.config["error_cb"](report)
    follower.take(0)
    follower.take(0)
    client.config["error_cb"](KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))

    away = "Kafka('here:1', ['t']) cannot be reached: 1/1 brokers are down"
    said = [one.getMessage() for one in caplog.records if "cannot be" in one.getMessage()]
    assert said == [
        f"{away} (the password is wrong). It is waited for.",
        f"{away}. It is waited for.",  # it is another time: a broker had answered
    ]


def test_librdkafka_reports_why_before_all_brokers_are_down(caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        opened = []

        def answer():
            with suppress(OSError):
                while True:
                    opened.append(server.accept()[0])  # the client closes it
                    opened[-1].recv(1 << 10)
                    opened[-1].sendall(b"no TLS")

        threading.Thread(target=answer, daemon=True).start()
        kafka = mr.sources.Kafka(
            f"127.0.0.1:{server.getsockname()[1]}",
            "t",
            config={"security.protocol": "SSL", "log_level": 0},
        )
        follower = kafka.follow({"t-0": 5})
        deadline = time.monotonic() + 60
        while not caplog.records and time.monotonic() < deadline:
            assert follower.take(0.1) == []
        follower.close()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("millrace.connectors.kafka.source.PATIENCE_S", 2.0)
            with pytest.raises(ConnectionError, match=r"cannot be reached: .*SSL routines"):
                kafka.processes()
        server.shutdown(socket.SHUT_RDWR)
        for connection in opened:
            connection.close()

    assert "SSL routines" in caplog.records[0].getMessage()


def test_what_cannot_begin_leaves_no_consumer():
    client = Client(partitions=())

    def refuse(*_, **__):
        raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))

    client.get_watermark_offsets = refuse
    with pytest.raises(InputLost, match="topic 't' is not there"):
        follow(client, {"t-0": None})
    assert client.closed


def test_an_injector_of_kafka_is_followed_by_one_consumer():
    follower = mr.sources.Kafka("127.0.0.1:1", "t", config={"log_level": 0}).follow(
        {"t-0": 5, "t-1": 7}
    )
    try:
        assert isinstance(follower, KafkaFollower)
        assert follower.take(0) == []
    finally:
        follower.close()
