"""What gives access to a source or a sink is in no text, no error and no checkpoint."""

from __future__ import annotations

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.model.errors import PipelineError
from millrace.store import MemoryHardState

SECRET = "hunter2-hunter2"


@pytest.mark.parametrize(
    "conninfo",
    [
        f"postgresql://u:{SECRET}@127.0.0.1/db",
        f"host=127.0.0.1 user=u password={SECRET}",
        f"postgresql://u:{SECRET}@[::1/db",
        f"postgresql://u:100%zz{SECRET}@127.0.0.1/db",
        f'postgresql://u:"100%zz{SECRET}"@127.0.0.1/db',
        f"host=127.0.0.1 password = {SECRET} {SECRET}",
        f"postgresql://u:{SECRET}@127.0.0.1/db?{SECRET}=1",
        f"host=127.0.0.1 password='{SECRET}",
    ],
)
def test_a_connection_string_that_is_refused_is_not_repeated(conninfo: str) -> None:
    pytest.importorskip("psycopg")
    with pytest.raises(PipelineError, match=r"mr\.sinks\.PostgreSQL: ") as refused:
        mr.sinks.PostgreSQL(conninfo, "counts")

    assert SECRET not in str(refused.value)
    # Nor by what was raised before it: a traceback has that too, unless it is left out.
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_kafka_s_settings_are_in_no_text_and_not_in_the_checkpoint() -> None:
    pytest.importorskip("confluent_kafka")
    config = {"security.protocol": "SASL_SSL", "sasl.username": "u", "sasl.password": SECRET}
    source = mr.sources.Kafka("broker:9092", "words", schema="word string", config=config)
    sink = mr.sinks.Kafka("broker:9092", "again", config=config)
    p = mr.Pipeline("words")
    p.inject("words", source, timestamp=mr.INGRESS)
    p.sink("words", sink)
    state = MemoryHardState()
    run_log = RunLog(p.build(), state, intervals=2)
    run_log.begin(0, wall_time_us=0, injectors={"words": 0})

    said = [repr(source), repr(sink), str(p), repr(p), str(p.explain())]
    assert not any(SECRET in text for text in said)
    entries = b"".join(filter(None, map(state.epochs.read, range(1, state.epochs.last() + 1))))
    assert b"words" in entries
    assert SECRET.encode() not in entries
