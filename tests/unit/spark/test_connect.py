"""A client of Spark Connect is refused by all that would run a pipeline with it."""

import pytest

import millrace as mr
from millrace.model.errors import PipelineError


class Client:
    """Stands for `pyspark.sql.connect.session.SparkSession`, whose module is all that is asked."""


Client.__module__ = "pyspark.sql.connect.session"


@pytest.mark.parametrize("realtime", [False, True])
def test_a_run_is_refused_with_what_to_do(realtime: bool) -> None:
    with pytest.raises(PipelineError, match=r"start\(\): .* Spark Connect.*in place of .remote"):
        mr.Pipeline("p").start(Client(), checkpoint="/nowhere", realtime=realtime)


def test_a_batch_is_refused_likewise() -> None:
    with pytest.raises(PipelineError, match=r"run_batch\(\): .* Spark Connect"):
        mr.Pipeline("p").run_batch(Client())
