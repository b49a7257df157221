"""Settings of the user's session that are others for a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from millrace.spark.compat import lend


class Conf(dict[str, str]):
    """As a session has it."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        self.pop(name, None)


def session(conf: Any) -> Any:
    return SimpleNamespace(conf=conf)


def test_batches_that_run_at_once_leave_the_session_as_it_was() -> None:
    spark = session(Conf(memory="1g"))
    first = lend(spark, {"adaptive": "false", "memory": "2g"})
    second = lend(spark, {"adaptive": "false", "memory": "2g"})
    first()
    assert spark.conf == {"adaptive": "false", "memory": "2g"}, "the second needs it still"
    second()
    assert spark.conf == {"memory": "1g"}


def test_a_host_that_lets_nobody_set_anything_is_no_error() -> None:
    class Refuses(Conf):
        def set(self, name: str, value: str) -> None:
            raise RuntimeError("CONFIG_NOT_AVAILABLE")

        def unset(self, name: str) -> None:
            raise RuntimeError("CONFIG_NOT_AVAILABLE")

    lend(session(Refuses()), {"adaptive": "false"})()
