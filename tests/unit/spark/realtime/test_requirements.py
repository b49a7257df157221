"""What a session, a pipeline and an application must be like for the real-time plane."""

from __future__ import annotations

import pickle
import re
import socket
import ssl
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from millrace.model.errors import (
    CheckpointMismatch,
    CheckpointUnwritable,
    PipelineError,
    SinkError,
    StoreError,
    UserCodeError,
    ZombieWriter,
)
from millrace.spark.realtime.control_connection import packed_error
from millrace.spark.realtime.pacemaker import check_spark, pacemaker_of
from millrace.spark.realtime.requirements import realtime_settings, slots_needed, wrong_settings
from millrace.spark.realtime.retry_policy import RetryPolicy


def session(version: str) -> Any:
    return SimpleNamespace(version=version)


@pytest.mark.parametrize("version", ["4.3.0", "4.3.2-SNAPSHOT"])
def test_the_sparks_that_were_tried_are_taken(version: str) -> None:
    check_spark(session(version), None)


@pytest.mark.parametrize("version", ["3.5.4", "4.0.0", "4.2.1"])
def test_an_older_spark_is_refused_with_what_to_install(version: str) -> None:
    for pacemaker in (None, "kafka:broker:9092/idle"):
        with pytest.raises(PipelineError, match=rf"Spark {version}.*pip install 'pyspark~=4.3.0'"):
            check_spark(session(version), pacemaker)


def test_a_newer_spark_needs_a_topic_for_a_pacemaker() -> None:
    with pytest.raises(PipelineError, match=r'Spark 4\.4\.0.*pacemaker="kafka:servers/topic"'):
        check_spark(session("4.4.0"), None)
    check_spark(session("4.4.0"), "kafka:broker:9092/idle")


def test_a_spark_without_its_kafka_connector_is_told_so() -> None:
    class Reader:
        def format(self, *_: object, **__: object) -> Reader:
            return self

        options = option = format

        def load(self) -> None:
            raise ValueError("Failed to find data source: kafka.\nmore")

    spark: Any = SimpleNamespace(version="4.3.0", readStream=Reader())
    with pytest.raises(
        PipelineError, match=r"data source: kafka\. Does .* connector.*sql-kafka-0-10_2.13:4.3.0"
    ):
        pacemaker_of(spark, 2, "kafka:broker:9092/idle")


def test_a_pacemaker_may_have_the_options_that_a_secured_broker_needs() -> None:
    class Reader:
        def format(self, _: str) -> Reader:
            return self

        def options(self, **options: str) -> Reader:
            assert options == secured
            return self

        def option(self, *_: str) -> Reader:
            return self

        def load(self) -> None:
            raise ValueError("no")

    secured = {
        "kafka.bootstrap.servers": "broker:9092",
        "subscribe": "idle",
        "kafka.sasl.jaas.config": "hunter2",
    }
    spark: Any = SimpleNamespace(version="4.3.0", readStream=Reader())
    with pytest.raises(PipelineError, match=r"pacemaker={.*jaas.config}: Spark cannot") as refused:
        pacemaker_of(spark, 2, secured)
    assert "hunter2" not in str(refused.value)
    with pytest.raises(PipelineError, match='"subscribe" among them') as refused:
        check_spark(session("4.3.0"), {"kafka.sasl.jaas.config": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_a_pacemaker_that_is_no_topic_is_refused() -> None:
    with pytest.raises(PipelineError, match="pacemaker='broker:9092'"):
        check_spark(session("4.3.0"), "broker:9092")


@pytest.mark.parametrize("tasks", [1, 2, 64])
def test_the_settings_that_are_advised_are_right(tasks: int) -> None:
    assert wrong_settings(realtime_settings(tasks), tasks) == []


def test_sockets_of_workers_have_paths_that_fit_where_the_temporary_directory_is_deep() -> None:
    """As in a container of YARN."""
    folder = realtime_settings()["spark.python.unix.domain.socket.dir"]
    with tempfile.TemporaryDirectory() as deep, socket.socket(socket.AF_UNIX) as bound:
        name = f".{uuid4()}.sock"
        with pytest.raises(OSError, match="too long"):
            bound.bind(f"{deep}/{'container/' * 10}{name}")
        bound.bind(f"{folder}/{name}")
        Path(folder, name).unlink()


def test_all_that_is_wrong_is_named_with_what_is_needed() -> None:
    wrong = wrong_settings({}, 2)
    assert [line.split(" ", 1)[0] for line in wrong] == [
        "spark.python.udf.pipelined.enabled",
        "spark.python.unix.domain.socket.enabled",
        "spark.shuffle.streaming.networkBufferSize",
        "spark.shuffle.streaming.writerMaxMemory",
    ]
    assert all(re.search(r" is \S+, needed: .+\. Otherwise ", line) for line in wrong)


@pytest.mark.parametrize(("size", "right"), [("64", True), ("65", False), ("16k", False)])
def test_the_buffer_between_tasks(size: str, right: bool) -> None:
    settings = realtime_settings() | {"spark.shuffle.streaming.networkBufferSize": size}
    assert (wrong_settings(settings, 2) == []) is right


def test_speculation_is_refused() -> None:
    (wrong,) = wrong_settings(realtime_settings() | {"spark.speculation": "true"}, 2)
    assert "a task of which there may be one twice" in wrong


def test_dynamic_allocation_which_some_hosts_switch_on_is_refused_and_off_in_the_settings() -> None:
    settings = {"spark.dynamicAllocation.enabled": "true"}
    (wrong,) = wrong_settings(realtime_settings() | settings, 2)
    assert "spark.dynamicAllocation.enabled is true, needed: false" in wrong
    assert wrong_settings(settings | realtime_settings(), 2) == []


def test_slots() -> None:
    assert slots_needed(tasks=2, levels=2) == 7


def test_what_user_code_raises_is_tried_so_many_times() -> None:
    patience = RetryPolicy(attempts=3)
    assert [patience.after(UserCodeError("no")) for _ in range(3)] == [0.1, 0.2, None]


def test_a_mark_that_was_completed_starts_the_count_again() -> None:
    patience = RetryPolicy(attempts=2)
    for _ in range(5):
        assert patience.after(UserCodeError("no")) == 0.1
        patience.well()


def test_trouble_from_outside_is_waited_out_if_a_session_ever_began() -> None:
    patience = RetryPolicy(attempts=3)
    patience.begun()
    pauses = [patience.after(StoreError("full")) for _ in range(10)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert patience.after(UserCodeError("no")) == 10.0


def test_what_never_worked_is_not_tried_for_ever() -> None:
    patience = RetryPolicy(attempts=3)
    assert [patience.after(RuntimeError("no slots")) for _ in range(3)] == [0.1, 0.2, None]


@pytest.mark.parametrize("error", [ZombieWriter("newer"), CheckpointMismatch("another")])
def test_what_cannot_change_is_not_tried_again(error: Exception) -> None:
    patience = RetryPolicy(attempts=3)
    patience.well()
    assert patience.after(error) is None


def test_trouble_from_outside_is_waited_out_however_many_hours_it_takes() -> None:
    patience = RetryPolicy(attempts=2)
    patience.begun()
    assert {patience.after(OSError("full")) for _ in range(2000)} >= {0.1, 10.0}


class BadReading(ValueError):
    """Cannot be pickled, like what is defined in a program itself."""

    def __init__(self, meter: str, value: int) -> None:
        super().__init__(f"{meter}: {value}")


@pytest.mark.parametrize(
    "error",
    [
        TypeError("no"), AttributeError("no"), NameError("no"), ImportError("no"), KeyError("no"),
        IndexError("no"), ValueError("no"), UnicodeError("no"), NotImplementedError("no"),
        AssertionError("no"), ZeroDivisionError("no"), RecursionError("no"), BadReading("m", 7),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_python_raises_of_wrong_code_is_tried_so_many_times(error: Exception) -> None:
    """As of ``Injector.read``, whose rows come again; it was tried for ever."""
    patience = RetryPolicy(attempts=3)
    patience.begun()
    of_task = pickle.loads(packed_error(error))
    assert [patience.after(of_task) for _ in range(3)] == [0.1, 0.2, None]


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("no"), TimeoutError("no"), PermissionError("no"), EOFError("no"),
        ssl.SSLCertVerificationError("no"), RuntimeError("no"), MemoryError("no"),
        CheckpointUnwritable("no"), SinkError("no"), Exception("no"),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_what_may_be_an_outage_is_waited_for(error: Exception) -> None:
    patience = RetryPolicy(attempts=2)
    patience.begun()
    assert None not in [patience.after(pickle.loads(packed_error(error))) for _ in range(5)]
