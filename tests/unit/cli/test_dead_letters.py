"""``millrace dead-letters``: by reason, with counts and one of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.live import Feeds, InEpochs, Kept, Live

import millrace as mr
from millrace.store import open_location


class Halving(mr.Computation):
    inputs = {"numbers": mr.by("key")}
    outputs = {"halves": float}

    def process_record(self, record: mr.Record) -> None:
        if record.value["n"] % 2:
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
