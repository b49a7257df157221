"""What a client of Spark Connect is refused, and where tasks call it."""

from types import SimpleNamespace
from typing import Any

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.compat import set_if_allowed
from millrace.spark.parallelism import is_local
from millrace.spark.realtime import settings
from millrace.spark.realtime.settings import check_settings
from millrace.spark.realtime_setup import _board


class Client:
    """Stands for `pyspark.sql.connect.session.SparkSession`, whose module is all that is asked."""

    conf = {"spark.master": "local[2]"}
    version = "4.3.0"
    client = SimpleNamespace(host="127.0.0.1")


Client.__module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize(
    ("realtime", "said"),
    [
        (False, r"Spark calls an epoch of its own.*of \.remote.*read with mr\.sources\.Kafka"),
        (True, r'the driver\'s JVM alone.*pacemaker="kafka:servers/topic".*leave realtime out'),
    ],
)
def test_a_run_is_refused_with_what_to_do(realtime: bool, said: str) -> None:
    p = mr.Pipeline("p")
    p.inject("numbers", "a DataFrame of Spark's", timestamp="at")
    p.sink("numbers", mr.sinks.Memory())

    with pytest.raises(PipelineError, match=f"Spark Connect.*{said}"):
        p.start(Client(), checkpoint="/nowhere", realtime=realtime)


def test_a_server_is_to_be_started_with_what_real_time_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Conf(dict[str, str]):
        getAll: dict[str, str] = {}  # noqa: N815  Spark's name

    monkeypatch.setattr(Client, "conf", Conf())
    monkeypatch.setattr(settings, "tasks_for", lambda _: 5)
    spark: Any = Client()
    with pytest.raises(PipelineError) as refused:
        check_settings(spark, tasks=2, levels=1)
    assert "spark.python.udf.pipelined.enabled is false, needed: true" in str(refused.value)
    assert "Start the server of Spark Connect with\n  --conf spark.p" in str(refused.value)
    Conf.getAll = mr.spark.realtime_settings(tasks=2)
    check_settings(spark, tasks=2, levels=1)


def test_a_host_may_refuse_what_makes_jobs_faster() -> None:
    def refuse(*_: str) -> None:
        raise ValueError("[CONFIG_NOT_AVAILABLE]")

    spark: Any = SimpleNamespace(conf=SimpleNamespace(set=refuse))
    set_if_allowed(spark, "spark.sql.adaptive.enabled", "false")


def test_tasks_call_the_client_where_it_reaches_the_server_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark: Any = Client()
    assert _board(spark, None).open().host == "127.0.0.1"
    assert _board(spark, "client.example.com").open().host == "client.example.com"
    monkeypatch.setattr(Client, "client", None)
    with pytest.raises(PipelineError, match=r"Give it: start\(host=\.\.\.\)"):
        _board(spark, None)


def test_a_client_is_on_no_machine_of_its_workers() -> None:
    assert not is_local(Client())  # type: ignore[arg-type]
