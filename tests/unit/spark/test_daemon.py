"""What Spark forks its Python workers from."""

from __future__ import annotations

import io
import os
from typing import BinaryIO

import pytest

from millrace.spark.daemon import unheard


def _says_its_last(infile: BinaryIO, outfile: BinaryIO) -> str:
    outfile.write(infile.read())
    return "done"


def test_last_words_are_heard_while_spark_listens() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as outfile:
        assert unheard(_says_its_last)(io.BytesIO(b"bye"), outfile) == "done"
    with os.fdopen(reading, "rb") as heard:
        assert heard.read() == b"bye"


def test_last_words_are_dropped_when_spark_has_hung_up() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as outfile:
        assert unheard(_says_its_last)(io.BytesIO(b"bye"), outfile) == "done"
        outfile.flush()  # as Spark's daemon does


def test_a_worker_that_cannot_go_on_ends_without_a_traceback() -> None:
    def flushing(infile: BinaryIO, outfile: BinaryIO) -> None:
        outfile.write(b"bye")
        outfile.flush()

    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as outfile, pytest.raises(SystemExit):
        unheard(flushing)(io.BytesIO(), outfile)
