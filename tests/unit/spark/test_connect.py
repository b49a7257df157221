"""A client of Spark Connect is refused by what needs the driver's own process."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError
from millrace.spark.parallelism import is_local


class Client:
    """Stands for `pyspark.sql.connect.session.SparkSession`, whose module is all that is asked."""

    conf = {"spark.master": "local[2]"}


Client.__module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize(
    ("realtime", "needs", "instead"),
    [
        (False, "Spark calls an epoch of its own", "read with mr.sources.Kafka"),
        (True, "a source in the driver's JVM", "leave realtime out"),
    ],
)
def test_a_run_is_refused_with_what_to_do(realtime: bool, needs: str, instead: str) -> None:
    p = mr.Pipeline("p")
    p.inject("numbers", "a DataFrame of Spark's", timestamp="at")
    p.sink("numbers", mr.sinks.Memory())

    with pytest.raises(PipelineError, match=rf"Spark Connect.*{needs}.*of \.remote.*{instead}"):
        p.start(Client(), checkpoint="/nowhere", realtime=realtime)


def test_a_client_is_on_no_machine_of_its_workers() -> None:
    assert not is_local(Client())  # type: ignore[arg-type]
