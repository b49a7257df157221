"""``millrace dead-letters``: by reason, with counts and one of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.injectors.dead_letters import bind_letters
from millrace.runtime.sink_contract import bind_sinks
from millrace.runtime.values import SinkColumns
from millrace.store import open_location
from tests.live import Feeds, InEpochs, Kept, Live


class Halving(mr.Computation):
    inputs = {"numbers": mr.by("key")}
    outputs = {"halves": float}
    mended = False

    def process_record(self, record: mr.Record) -> None:
        if record.value["n"] % 2 and not self.mended:
            raise ValueError(f"{record.value['n']} is odd")
        self.produce("halves", record.value["n"] / 2)


def numbers(plane: str, path: Path) -> Kept:
    """Run numbers through a pipeline on a plane; return where its dead letters went."""
    rows = [*((7, n, n) for n in range(6)), (8, 9, -1)]
    kept, p = Kept(), mr.Pipeline("numbers")
    source = Feeds("key long, n long, at long", {"p0": rows})
    p.inject("numbers", source, timestamp="at", low_watermark=mr.BoundedDelay(0))
    p.add(Halving)
    p.sink("halves", Kept())
    p.dead_letter("rejects")
    p.sink("rejects", kept)
    live = Live(p, tasks=1, state=open_location(path, pipeline="numbers"))  # type: ignore[arg-type]
    if plane == "epochs":
        epochs = InEpochs(live)
        live.feed(len(rows))
        epochs.run(live.clock_us)
    else:
        live.boot()
        live.feed(len(rows))
        live.plane.settle(live.clock_us)
        live.plane.end(live.clock_us)
    return kept


@pytest.mark.parametrize("plane", ["epochs", "real time"])
def test_they_are_listed_by_reason_on_both_planes(
    millrace: Any, tmp_path: Path, plane: str
) -> None:
    kept = numbers(plane, tmp_path / "ckpt")

    shown = millrace("dead-letters", str(tmp_path / "ckpt"))
    plain = json.loads(millrace("dead-letters", str(tmp_path / "ckpt"), "--json").output)

    assert shown.exit_code == 0, shown.output
    assert "4 dead letters, after epoch 0" in shown.output
    assert "      3  ValueError: ... is odd" in shown.output
    assert "in Halving, stream 'numbers'; the first in epoch 0" in shown.output
    assert plain["dead_letters"] == len(kept.rows) == 4
    assert [(one["count"], one["reason"]) for one in plain["reasons"]] == [
        (3, "ValueError: ... is odd"),
        (1, "the timestamp -... us is before ..."),
    ]
    places = sorted(row["place"] for row in kept.rows)
    if plane == "real time":
        assert places == [f"stream 'numbers', process number 0, record {n}" for n in (1, 3, 5, 6)]
    assert all(place.startswith("stream 'numbers', ") for place in places)
    status = millrace("checkpoint", "show", str(tmp_path / "ckpt")).output
    assert "dead letters" in status


# -- sent again ------------------------------------------------------------------------------------


class Mended(Halving):
    mended = True


class Run:
    """A pipeline by epochs over a checkpoint on disk, whose letters are in Parquet files."""

    def __init__(self, folder: Path) -> None:
        self.checkpoint, self.letters = folder / "ckpt", folder / "rejects"
        self.feeds = Feeds("key long, n long, at long", {"p0": [(7, n, n) for n in range(8)]})
        self.kept, self.rejects = Kept(), Kept()

    def epoch(self, halving: type[mr.Computation], *, again: bool = True) -> None:
        p = mr.Pipeline("numbers")
        p.inject("numbers", self.feeds, timestamp="at", low_watermark=mr.BoundedDelay(0))
        p.add(halving, name="Halving")
        p.dead_letter("rejects", again=again)
        p.sink("halves", self.kept)
        p.sink("rejects", self.rejects)
        state: Any = open_location(self.checkpoint, pipeline="numbers")
        live = Live(p, tasks=1, state=state)
        epochs = InEpochs(live)
        bind_letters(epochs.topology, str(self.checkpoint))
        epochs.run(live.clock_us)
        self.letters.mkdir(exist_ok=True)
        for number, rows in self.rejects.epochs.items():
            if rows:
                folder = self.letters / f"epoch={number}"
                folder.mkdir(exist_ok=True)
                pq.write_table(pa.Table.from_pylist(rows), folder / "part.parquet")

    @property
    def halves(self) -> list[float]:
        return sorted(row["value"] for row in self.kept.rows)


def test_letters_are_sent_again_once_and_counted(millrace: Any, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.feeds.limit = 8
    run.epoch(Halving)
    send = ("dead-letters", str(run.checkpoint), "--send", str(run.letters))

    first = millrace(*send, "--reason", "1 is odd")
    assert first.output == "1 dead letter is sent again\n"
    shown = millrace("dead-letters", str(run.checkpoint)).output
    assert "4 dead letters, after epoch 0; 1 were sent again, 1 of which no epoch" in shown
    second = millrace(*send, "--reason", "ValueError: ... is odd", "--limit", "1")
    assert second.output == "1 dead letter is sent again; 1 were sent before\n"
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0]

    third = json.loads(millrace(*send, "--json").output)
    assert third == {"sent": 2, "sent_before": 2, "refused": {}, "declared": True}
    run.epoch(Mended)
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    plain = json.loads(millrace("dead-letters", str(run.checkpoint), "--json").output)
    assert (plain["dead_letters"], plain["sent_again"], plain["waiting"]) == (4, 4, 0)


def test_letters_may_be_sent_before_the_pipeline_reads_them(millrace: Any, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.feeds.limit = 2
    run.epoch(Halving, again=False)

    said = millrace("dead-letters", str(run.checkpoint), "--send", str(run.letters)).output
    assert "They wait: the pipeline of this checkpoint does not read them yet" in said
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5]


def test_a_copy_knows_what_was_sent_and_what_was_sent_later_can_be_sent_to_it(
    millrace: Any, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    run.feeds.limit = 4
    run.epoch(Halving)
    mr.ops.send_dead_letters(run.checkpoint, run.letters, limit=1)
    run.epoch(Mended)
    mr.ops.send_dead_letters(run.checkpoint, run.letters)
    mr.ops.copy_checkpoint(run.checkpoint, tmp_path / "copy")

    run.checkpoint = tmp_path / "copy"
    done = mr.ops.send_dead_letters(run.checkpoint, run.letters)
    assert (done.sent, done.sent_before) == (1, 1)
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5]


def test_a_checkpoint_that_goes_back_forgets_what_was_sent_since(
    millrace: Any, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    run.feeds.limit = 2
    run.epoch(Halving)
    mr.ops.add_savepoint(run.checkpoint, "before")
    run.feeds.limit = 4
    run.epoch(Halving)
    assert mr.ops.send_dead_letters(run.checkpoint, run.letters).sent == 2
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5]

    mr.ops.restore_checkpoint(run.checkpoint, "before", accept=True)
    # As sinks do that take back what came after.
    for kept in (run.kept, run.rejects):
        kept.epochs = {epoch: rows for epoch, rows in kept.epochs.items() if epoch == 0}
    (run.letters / "epoch=1" / "part.parquet").unlink()
    run.epoch(Mended)
    assert run.halves == [0.0, 1.0, 1.5]
    assert mr.ops.send_dead_letters(run.checkpoint, run.letters).sent == 1
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5]


def test_what_cannot_be_sent_is_counted_and_what_is_no_letters_is_refused(
    millrace: Any, tmp_path: Path
) -> None:
    run = Run(tmp_path)
    run.feeds.feeds["p0"][0] = (7, 2, -1)
    run.feeds.limit = 2
    run.epoch(Halving)
    send = ("dead-letters", str(run.checkpoint), "--send")

    shown = millrace(*send, str(run.letters)).output
    assert "1 dead letter is sent again\n1 cannot be sent: refused before there was" in shown
    missing = millrace(*send, str(tmp_path / "nowhere"))
    assert missing.exit_code == 1
    assert "no dead letters can be read there" in missing.output
    pq.write_table(pa.table({"n": [1]}), tmp_path / "others.parquet")
    other = millrace(*send, str(tmp_path / "others.parquet"))
    assert "have no columns ['_id', 'stream'" in other.output
    assert millrace("dead-letters", str(run.checkpoint), "--limit", "3").exit_code == 2


def table_of(run: Run, sink: Any) -> None:
    """Write the letters of a run with a sink, as its tasks do."""
    p = mr.Pipeline("numbers")
    p.inject("letters", format=mr.DeadLetter)
    p.sink("letters", sink)
    topology = bind_sinks(p.build(), "owner")
    schema = pa.schema(list(SinkColumns(mr.DeadLetter, topology.streams["letters"].coder).arrow))
    if hasattr(sink, "claim"):
        sink.claim(1, -1)
    for epoch, rows in run.rejects.epochs.items():
        writing = sink.for_tasks().begin(epoch, 0)
        writing.write(pa.RecordBatch.from_pylist(rows, schema))
        sink.publish(epoch, [writing.close()])


def test_letters_are_sent_from_a_delta_table(millrace: Any, tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.feeds.limit = 4
    run.epoch(Halving)
    run.feeds.limit = 8
    run.epoch(Halving)
    table_of(run, mr.sinks.Delta(tmp_path / "table"))
    send = ("dead-letters", str(run.checkpoint), "--send", str(tmp_path / "table"))

    assert millrace(*send, "--limit", "3").output == "3 dead letters are sent again\n"
    said = "1 dead letter is sent again; 3 were sent before\n"
    assert millrace(*send).output == said
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    assert millrace(*send).output == "0 dead letters are sent again; 4 were sent before\n"


def test_letters_are_sent_from_a_table_in_a_bucket(millrace: Any, tmp_path: Path, s3: str) -> None:
    run = Run(tmp_path)
    run.feeds.limit = 8
    run.epoch(Halving)
    table_of(run, mr.sinks.Delta(f"{s3}/table"))
    send = ("dead-letters", str(run.checkpoint), "--send")

    assert millrace(*send, f"{s3}/table").output == "4 dead letters are sent again\n"
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
    refused = millrace(*send, f"{s3}/nothing")
    assert refused.exit_code == 1
    assert "nothing: no dead letters can be read there" in refused.output


def test_letters_of_an_iceberg_table_are_given_as_arrow(millrace: Any, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    run = Run(tmp_path)
    run.feeds.limit = 8
    run.epoch(Halving)
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    table_of(run, mr.sinks.Iceberg("lake.letters", tmp_path / "table", catalog=catalog))

    refused = millrace("dead-letters", str(run.checkpoint), "--send", str(tmp_path / "table"))
    assert refused.exit_code == 1
    assert "is an Iceberg table" in refused.output
    letters = load_catalog(**catalog).load_table("lake.letters").scan().to_arrow()
    assert mr.ops.send_dead_letters(run.checkpoint, letters).sent == 4
    run.epoch(Mended)
    assert run.halves == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5]
