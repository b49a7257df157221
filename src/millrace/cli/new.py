"""``millrace new``: a small project that runs, to begin with."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Final

import click

from millrace.model.distribution import DISTRIBUTION, requirement
from millrace.model.errors import PipelineError

_FILES: Final = {
    "pipeline.py": '''\
"""Counts words in windows of a minute: JSON lines in, Parquet out."""

import os

import millrace as mr

IN = os.environ.get("WORDS_IN", "in")
OUT = os.environ.get("WORDS_OUT", "out")


def pipeline(source=None, sink=None):
    """Return the pipeline; a test gives neither source nor sink."""
    p = mr.Pipeline("$name")
    # Two seconds late at the most, by the newest word that was seen.
    words = p.inject(
        "words", source, timestamp=source and "at", low_watermark=mr.BoundedDelay("2 s")
    )
    words.key_by("word").window(mr.FixedWindows("1 min")).count().to("counts")
    if sink is not None:
        p.sink("counts", sink)
    return p


def on_spark():
    """Return the pipeline over the files in IN, oldest first; `millrace run` calls it."""
    return pipeline(mr.sources.Files(IN, schema="word string, at timestamp"), mr.sinks.Parquet(OUT))
''',
    "test_pipeline.py": '''\
"""The whole pipeline in this process: no Spark, and a clock that the test sets."""

import millrace as mr
from pipeline import pipeline


def word(text, second):
    return {"word": text}, second * mr.SECOND


def test_words_are_counted_in_minutes_even_after_a_crash():
    with mr.testing.Harness(pipeline()) as h:
        h.inject("words", [word("tea", 5), word("tea", 40), word("mate", 41)])
        h.crash()  # forget everything but the checkpoint
        h.inject("words", [word("tea", 70)])
        h.advance_watermark("words", mr.MINUTE)
        counts = [(out.key, out.value, out.pane.window.end) for out in h.outputs("counts")]

    assert sorted(counts) == [("mate", 1, mr.MINUTE), ("tea", 2, mr.MINUTE)]
''',
    "Makefile": '''\
.PHONY: setup test words run status clean

setup: ## an environment with Millrace and pytest
\tpython3 -m venv .venv
\t.venv/bin/pip install --quiet -e .

test: ## the pipeline in the Harness: no Spark
\t.venv/bin/pytest -q

words: ## something to read
\tmkdir -p in
\tprintf '%s\\n' \\
\t\t'{"word": "tea", "at": "2026-01-01T09:00:05Z"}' \\
\t\t'{"word": "mate", "at": "2026-01-01T09:00:41Z"}' \\
\t\t'{"word": "tea", "at": "2026-01-01T09:01:10Z"}' > in/words.json

run: words ## on a Spark of this machine, until Ctrl-C; with ARGS=--drain until all is read
\t.venv/bin/millrace run pipeline.py:on_spark --checkpoint checkpoint --master 'local[2]' $$(ARGS)

status: ## where the run stands, from another shell
\t.venv/bin/millrace status checkpoint

clean: ## forget what was read and written
\trm -rf checkpoint out
''',
    "pyproject.toml": '''\
[project]
name = "$name"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = [
    "$millrace",
    "pytest",
]

[tool.setuptools]
py-modules = ["pipeline"]
''',
    "README.md": '''\
# $name

A pipeline of Millrace: it counts words in windows of a minute.

- `make setup`: an environment with Millrace and pytest
- `make test`: the pipeline in the Harness, without Spark
- `make run`: on a Spark of this machine, which needs Java 17 or newer, until Ctrl-C;
  `make run ARGS=--drain` ends when all of the input is processed
- `make status`: from another shell, where it stands

What it does is in `pipeline.py`.
''',
    ".gitignore": "/.venv/\n/checkpoint/\n/in/\n/out/\n__pycache__/\n*.egg-info/\n",
}  # fmt: skip

#: What is otherwise in a project that reads Kafka.
_FROM_KAFKA: Final = {
    "pipeline.py": '''\
"""Counts words in windows of a minute: JSON messages of a Kafka topic in, Parquet out."""

import os

import millrace as mr

SERVERS = os.environ.get("KAFKA_SERVERS", "localhost:9092")
TOPIC = os.environ.get("WORDS_TOPIC", "words")
OUT = os.environ.get("WORDS_OUT", "out")


def pipeline(source=None, sink=None):
    """Return the pipeline; a test gives neither source nor sink."""
    p = mr.Pipeline("$name")
    words = p.inject(
        "words",
        source,
        timestamp=source and "at",
        # Two seconds late at the most, by the newest word of each partition.
        low_watermark=mr.BoundedDelay("2 s"),
        idle="10 s",  # a partition without words holds nothing back
    )
    # An early result every five seconds, one when the minute is over, one for words that are late.
    minutes = words.key_by("word").window(
        mr.FixedWindows("1 min"), mr.early("5 s"), allowed_lateness="1 h"
    )
    minutes.aggregate(n=mr.agg.count(), keys=True).to("counts")
    p.dead_letter("rejects")  # a message that is no such JSON, and why
    if sink is not None:
        p.sink("counts", sink)
        p.sink("rejects", mr.sinks.Console())
    return p


def on_spark():
    """Return the pipeline over the topic, from its beginning; `millrace run` calls it."""
    source = mr.sources.Kafka(SERVERS, TOPIC, schema="word string, at timestamp")
    return pipeline(source, mr.sinks.Parquet(OUT))
''',
    "send.py": '''\
"""Sends some words to the topic, which it makes if there is none."""

import datetime as dt
import json

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from pipeline import SERVERS, TOPIC

admin = AdminClient({"bootstrap.servers": SERVERS})
if TOPIC not in admin.list_topics(timeout=10).topics:
    admin.create_topics([NewTopic(TOPIC, num_partitions=2)])[TOPIC].result()

producer = Producer({"bootstrap.servers": SERVERS})
for word in ("tea", "mate", "tea"):
    at = dt.datetime.now(dt.UTC).isoformat()
    producer.produce(TOPIC, json.dumps({"word": word, "at": at}))
if producer.flush(10):
    raise SystemExit(f"no broker takes messages at {SERVERS}: set KAFKA_SERVERS")
''',
    "test_pipeline.py": '''\
"""The whole pipeline in this process: no Kafka, no Spark, and a clock that the test sets."""

import millrace as mr
from pipeline import pipeline


def word(text, second):
    return {"word": text}, second * mr.SECOND


def test_words_are_counted_early_on_time_and_late_even_after_a_crash():
    with mr.testing.Harness(pipeline()) as h:
        h.inject("words", [word("tea", 5), word("mate", 41)])
        h.advance_clock(5 * mr.SECOND)
        h.crash()  # forget everything but the checkpoint
        h.inject("words", [word("tea", 40)])
        h.advance_watermark("words", mr.MINUTE)
        h.inject("words", [word("tea", 59)])
        counts = [
            (out.value["word"], out.value["n"], str(out.pane.timing)) for out in h.outputs("counts")
        ]

    assert sorted(counts) == [
        ("mate", 1, "EARLY"),
        ("tea", 1, "EARLY"),
        ("tea", 2, "ON_TIME"),
        ("tea", 3, "LATE"),
    ]
''',
    "Makefile": '''\
.PHONY: setup test words run status clean

setup: ## an environment with Millrace and pytest
\tpython3 -m venv .venv
\t.venv/bin/pip install --quiet -e .

test: ## the pipeline in the Harness: no Kafka, no Spark
\t.venv/bin/pytest -q

words: ## something to read
\t.venv/bin/python send.py

run: ## on a Spark of this machine, until Ctrl-C; with ARGS=--realtime in real time
\t.venv/bin/millrace run pipeline.py:on_spark --checkpoint checkpoint --master 'local[2]' $$(ARGS)

status: ## where the run stands, from another shell
\t.venv/bin/millrace status checkpoint

clean: ## forget what was read and written
\trm -rf checkpoint out
''',
    "README.md": '''\
# $name

A pipeline of Millrace: it counts the words of a Kafka topic in windows of a minute.

- `make setup`: an environment with Millrace and pytest
- `make test`: the pipeline in the Harness, without Kafka and Spark
- `make words`: sends some words to the topic. The broker is that of `KAFKA_SERVERS`
  (`localhost:9092`), the topic that of `WORDS_TOPIC` (`words`), which is made if there is none
- `make run`: on a Spark of this machine, which needs Java 17 or newer, until Ctrl-C;
  `make run ARGS=--realtime` does it in real time, in milliseconds
- `make status`: from another shell, where it stands

The last minute has early results only, until a later word comes, or the input ends.
What it does is in `pipeline.py`.
''',
}  # fmt: skip

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@click.command(short_help="Write a small project that runs.")
@click.argument("name")
@click.option(
    "--millrace",
    "source",
    metavar="REQUIREMENT",
    help="What pip installs as Millrace there: a wheel's path, or a requirement. "
    "By default what is installed here.",
)
@click.option(
    "--from",
    "reads",
    type=click.Choice(["files", "kafka"]),
    default="files",
    show_default=True,
    help="What its pipeline reads.",
)
def new(name: str, source: str | None, reads: str) -> None:
    """Write a project to the new directory NAME: a pipeline, its test, a Makefile.

    The test runs the whole pipeline in one process; `make run` runs it on a local Spark.
    """
    folder = Path(name)
    if not _NAME.fullmatch(folder.name):
        raise PipelineError(
            f"{folder.name!r} cannot be the name of a project. Expected letters, digits, '-' and "
            "'_', and a letter first."
        )
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PipelineError(f"{name}: there is something at that path. Choose another name.")
    millrace = _requirement(source) if source else requirement()
    files = _FILES
    if reads == "kafka":
        files = {**_FILES, **_FROM_KAFKA}
        millrace = millrace.replace(DISTRIBUTION, f"{DISTRIBUTION}[kafka]", 1)
    folder.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (folder / file).write_text(Template(text).substitute(name=folder.name, millrace=millrace))
    click.echo(f"{name} is there: `cd {name}`, `make setup test`, then `make run`.")


def _requirement(source: str) -> str:
    """Return a requirement as it stands in a project; of a path, its address."""
    path = Path(source)
    return f"{DISTRIBUTION} @ {path.resolve().as_uri()}" if path.exists() else source
