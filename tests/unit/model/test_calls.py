"""Policies of calls: values, checked when they are made."""

from __future__ import annotations

import pickle
from functools import partial
from typing import Any

import pytest

from millrace.model.calls import BatchPolicy, CallPolicy, is_async, takes_attempt
from millrace.model.errors import PipelineError


def test_policies_are_values() -> None:
    policy = CallPolicy(timeout="2 s", retry_on=KeyError, breaker=5, order="none")
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert {policy: 1}[CallPolicy(timeout=2_000_000, retry_on=KeyError, breaker=5, order="none")]
    assert policy != CallPolicy()
    assert BatchPolicy(max_wait="20 ms") == BatchPolicy()


@pytest.mark.parametrize(
    "text",
    [
        "CallPolicy()",
        "CallPolicy(concurrency=7, timeout=None, retries=0)",
        "CallPolicy(timeout='2 s', backoff='1 s', retry_on=(KeyError, OSError), order='none')",
        "CallPolicy(retry_on=(KeyError,), breaker=20)",
        "BatchPolicy(max_size=8, max_wait='1 s', threads=2, arrow=True)",
    ],
)
def test_a_policy_reads_as_it_is_written(text: str) -> None:
    assert repr(eval(text)) == text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"concurrency": 0}, r"concurrency\): 0 is not a whole number from 1 on"),
        ({"concurrency": True}, "True is not a whole number"),
        ({"timeout": 0}, "would have failed before it began"),
        ({"timeout": "soon"}, "'soon' is not a duration"),
        ({"retries": -1}, r"retries\): -1 is not a whole number from 0 on"),
        ({"backoff": "1 min"}, "longer than the longest"),
        ({"retry_on": "OSError"}, "'OSError' is not a class of exceptions"),
        ({"retry_on": (OSError, 503)}, "503 is not a class of exceptions"),
        ({"breaker": 0}, r"breaker\): 0 is not a whole number from 1 on"),
        ({"order": "time"}, "order='time'"),
    ],
)
def test_a_policy_that_is_none_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        CallPolicy(**arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"max_size": 0}, r"max_size\): 0 is not a whole number"),
        ({"max_wait": -1}, r"max_wait\): -1 is not a duration"),
        ({"threads": 1.5}, r"threads\): 1.5 is not a whole number"),
    ],
)
def test_a_batch_policy_that_is_none_is_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        BatchPolicy(**arguments)


def test_a_timeout_is_always_retried() -> None:
    policy = CallPolicy(retry_on=(KeyError,))
    assert policy.retries_after(TimeoutError())
    assert policy.retries_after(KeyError())
    assert not policy.retries_after(OSError())


class Model:
    async def __call__(self, value: int, call: Any) -> int:
        return value


async def plain(value: int) -> int:
    return value


async def told(value: int, call: Any) -> int:
    return value


def test_what_a_function_takes_and_whether_it_is_awaited() -> None:
    assert is_async(plain)
    assert is_async(Model())
    assert is_async(partial(told, 1))
    assert not is_async(print)
    assert takes_attempt(told)
    assert takes_attempt(Model())
    assert not takes_attempt(plain)
    assert not takes_attempt(partial(told, 1))
    assert not takes_attempt(told, given=2)
    assert not takes_attempt(min)
