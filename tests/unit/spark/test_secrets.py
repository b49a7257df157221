"""Secrets of sources and sinks: in no text about a pipeline, and in no file of its checkpoint."""

import pytest

import millrace as mr
from millrace.epochlog.run_log import RunLog
from millrace.spark.metrics.lines import MetricLines
from millrace.spark.metrics.table import values
from millrace.spark.status_text import as_html, as_text
from millrace.store import open_location
from tests.unit.spark.test_status_text import status

pytest.importorskip("confluent_kafka")

SECRET = "hunter2-of-the-broker"
SASL = {"sasl.mechanism": "PLAIN", "sasl.username": "ann", "sasl.password": SECRET}


@pytest.fixture
def pipeline():
    p = mr.Pipeline("secrets")
    p.inject(
        "words", mr.sources.Kafka("broker:9092", "words", schema="word string", config=SASL),
        timestamp="timestamp",
    )  # fmt: skip
    p.stream("words").key_by("word").window(mr.FixedWindows("1 min")).count().to("counts")
    p.sink("counts", mr.sinks.Kafka("broker:9092", "counts", config=SASL))
    return p


def test_what_reads_and_writes_is_shown_without_its_settings():
    sink = mr.sinks.Kafka("broker:9092", "counts", config=SASL)
    for one in (
        mr.sources.Kafka("broker:9092", "words", config=SASL), sink, sink.for_tasks(), sink.live(),
        sink._open, vars(sink),
    ):  # fmt: skip
        assert SECRET not in repr(one)


def test_an_explanation_and_a_plan_are_without_them(pipeline):
    for said in (pipeline.explain(), repr(pipeline), repr(pipeline.build())):
        assert SECRET not in str(said)


def test_no_file_of_a_checkpoint_has_them(pipeline, tmp_path):
    path = tmp_path / "ckpt"
    run_log = RunLog(pipeline.build(), open_location(path, pipeline="secrets"), intervals=2)
    manifest = run_log.begin(0, wall_time_us=1, injectors={"words": 1})
    run_log.complete(manifest, [])
    one = status()
    lines = MetricLines(path)
    lines.add(one, 0)
    lines.close()
    files = [file for file in path.rglob("*") if file.is_file()]

    assert len(files) > 3
    assert not [file for file in files if SECRET.encode() in file.read_bytes()]
    assert SECRET not in f"{as_text(one)}{as_html(one)}{values(one)}"
