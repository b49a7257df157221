"""What a pipeline holds that cannot be sent to workers: named, with the way to it."""

import threading

import cloudpickle
import pytest
from pyspark.errors import PySparkRuntimeError

import millrace as mr
from millrace.spark.pickling import captured, pickle_topology


@pytest.fixture(autouse=True)
def by_value(request):
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


class Session:
    """Refuses as a SparkSession does."""

    def __reduce__(self):
        raise PySparkRuntimeError(errorClass="CONTEXT_ONLY_VALID_ON_DRIVER", messageParameters={})


Session.__module__ = "pyspark.sql.session"
LOCK = threading.Lock()


class Keep(mr.Computation):
    def __init__(self, held=None, key="k"):
        self.inputs = {"words": mr.by(key)}
        self.held = held

    def process_record(self, record):
        pass


class UsesGlobal(Keep):
    def process_record(self, record):
        with LOCK:
            pass


def lambda_over(held):
    return lambda value: (held, value)[1]


def sent(change):
    p = mr.Pipeline("p")
    change(p, p.inject("words"))
    p.sink("words", print)
    topology = p.build()
    with pytest.raises(Exception) as refused:  # what it is depends on what is held
        pickle_topology(topology)
    return captured(topology, refused.value)


HELD = {
    "a session in a map": (
        lambda _, words: words.map(lambda_over(Session())),
        ["the map step on stream 'words'", "variable 'held' of lambda_over", "test_captured.py:"],
    ),
    "a session in a key function": (
        lambda p, _: p.add(Keep(key=lambda_over(Session()))),
        ["the key of computation 'Keep' on stream 'words'", "variable 'held' of lambda_over"],
    ),
    "a session in a computation": (
        lambda p, _: p.add(Keep(held={"inner": [Session()]})),
        ["computation 'Keep'", "attribute 'held' of a Keep, item 'inner', a pyspark.sql.session."],
    ),
    "a session in what is aggregated": (
        lambda _, words: (
            words.key_by("k").window(mr.FixedWindows(10)).sum(lambda_over(Session()), name="sums")
        ),
        ["computation 'sums'", "variable 'held' of lambda_over"],
    ),
    "a lock of the module": (
        lambda p, _: p.add(UsesGlobal()),
        [
            "computation 'UsesGlobal'",
            "variable 'LOCK' of UsesGlobal.process_record",
            "_thread.lock",
        ],
    ),
    "a session in a function of a sink": (
        lambda p, _: p.sink("words", mr.sinks.Function(lambda_over(Session()))),
        ["the function of sinks.Function(lambda_over.<locals>.<lambda>)", "variable 'held'"],
    ),
    "a generator": (
        lambda _, words: words.filter(lambda_over(n for n in range(3))),
        ["the filter step on stream 'words'", "variable 'held'", "a generator"],
    ),
}


@pytest.mark.parametrize("case", HELD)
def test_what_is_held_is_named_with_the_way_to_it(case):
    change, words = HELD[case]
    message = sent(change)

    assert "cannot be sent to Spark's workers" in message
    for word in words:
        assert word in message
    advice = "of the driver alone" if "session" in case else "make locks, open files"
    assert advice in message
