"""Settings of the user's session that are others for a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millrace.spark.compat import lend


class Conf(dict[str, str]):
    """As a session has it."""

    def set(self, name: str, value: str) -> None:
        self[name] = value

    def unset(self, name: str) -> None:
        self.pop(name, None)


def session(conf: Any, uuid: str = "3b1e") -> Any:
    return SimpleNamespace(conf=conf, _jsparkSession=SimpleNamespace(sessionUUID=lambda: uuid))


def test_batches_that_run_at_once_leave_the_session_as_it_was() -> None:
    spark = session(Conf(memory="1g"))
    first = lend(spark, {"adaptive": "false", "memory": "2g"})
    second = lend(spark, {"adaptive": "false", "memory": "2g"})
    first()
    assert spark.conf == {"adaptive": "false", "memory": "2g"}, "the second needs it still"
    second()
    assert spark.conf == {"memory": "1g"}


def test_another_python_object_of_a_session_is_the_same_session() -> None:
    first = session(Conf(memory="1g"))
    again = session(first.conf)
    end_first = lend(first, {"memory": "2g"})
    end_again = lend(again, {"memory": "2g"})
    end_first()
    assert first.conf == {"memory": "2g"}, "the other needs it still"
    end_again()
    assert first.conf == {"memory": "1g"}


def test_nothing_is_lent_by_a_session_that_has_ended() -> None:
    class Ends(Conf):
        def get(self, name: str, default: Any = None) -> Any:
            if name == "memory":
                raise ConnectionError("the session has ended")
            return super().get(name, default)

    spark = session(Ends())
    with pytest.raises(ConnectionError):
        lend(spark, {"adaptive": "false", "memory": "2g"})
    spark.conf = Conf(adaptive="true")
    lend(spark, {"adaptive": "false"})()
    assert spark.conf == {"adaptive": "true"}


def test_two_sessions_are_set_apart() -> None:
    spark, other = session(Conf(memory="1g")), session(Conf(memory="4g"), uuid="9c42")
    ends = [lend(each, {"memory": "2g"}) for each in (spark, other)]
    for end in ends:
        end()
    assert (spark.conf, other.conf) == ({"memory": "1g"}, {"memory": "4g"})


def test_a_host_that_lets_nobody_set_anything_is_no_error() -> None:
    class Refuses(Conf):
        def set(self, name: str, value: str) -> None:
            raise RuntimeError("CONFIG_NOT_AVAILABLE")

        def unset(self, name: str) -> None:
            raise RuntimeError("CONFIG_NOT_AVAILABLE")

    lend(session(Refuses()), {"adaptive": "false"})()
