"""``millrace checkpoint show``."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

import millrace as mr


def test_a_claimed_checkpoint_has_no_epochs(millrace: Any, checkpoint: Any) -> None:
    shown = _json(millrace, checkpoint)

    assert (shown["format"], shown["pipeline"], shown["generation"]) == (1, "pages", 1)
    assert (shown["epoch"], shown["wall_time"], shown["unfinished"]) == (-1, None, None)
    assert shown["state"] == "open"
    assert [one["name"] for one in shown["computations"]] == ["Counter[bold]"]
    assert [one["name"] for one in shown["streams"]] == ["clicks"]


def test_it_shows_the_last_completed_epoch(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", "b", "a", at=20, low_watermark=10)
    checkpoint.epoch("a", at=5, low_watermark=30)

    shown = _json(millrace, checkpoint)

    assert (shown["epoch"], shown["wall_time"]) == (1, 1_000_000)
    (stream,) = shown["streams"]
    assert stream == {
        "name": "clicks", "low_watermark": 30, "newest": 20, "injected": 4, "dead_letters": 0,
        "reasons": {}, "refused_low_watermarks": 0, "dropped": 0,
    }  # fmt: skip
    (one,) = shown["computations"]
    assert (one["low_watermark"], one["output_low_watermark"]) == (30, 10)
    assert (one["next_timer"], one["next_wall_timer"], one["hold"]) == (mr.MINUTE, mr.HOUR, 5)
    assert (one["pending_timers"], one["pending_wall_timers"]) == (2, 2)
    assert (one["intervals"], one["commits"]) == (2, _commits(checkpoint.path))
    assert one["counters"]["records"] == 4
    assert one["counters"]["late"] == 1
    assert one["counters"]["worst_lateness_us"] == 25  # behind what was published with it


def test_it_is_text_for_people(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", "b", "a", at=20 * mr.SECOND, low_watermark=10 * mr.SECOND)
    checkpoint.epoch("a", at=5 * mr.SECOND, low_watermark=15 * mr.SECOND)
    commits = _commits(checkpoint.path)

    lines = millrace("checkpoint", "show", str(checkpoint.path)).output.splitlines()

    assert lines[:3] == [
        f"checkpoint  {checkpoint.path}",
        f"format      1, made by millrace {_json(millrace, checkpoint)['created_by']}",
        "pipeline    pages",
    ]
    assert lines[4:7] == [
        "generation  1",
        "state       open: a run can go on from here, or is under way",
        "last epoch  1, at 1970-01-01T00:00:01Z",
    ]
    assert lines[7].startswith("on disk     epochs ")
    assert "KiB" in lines[7]
    assert lines[8:] == [
        "",
        "injected stream  records         newest record         low watermark  behind",
        "clicks                 4  1970-01-01T00:00:20Z  1970-01-01T00:00:15Z     5 s",
        "",
        "computation    records  late  worst lateness  timers fired  productions",
        "Counter[bold]        4     1            10 s             0            0",
        "",
        "computation           low watermark    shown to consumers            next timer",
        "Counter[bold]  1970-01-01T00:00:15Z  1970-01-01T00:00:10Z  1970-01-01T00:01:00Z",
        "",
        "computation         next wall timer               held at  pending timers"
        "  pending wall timers",
        "Counter[bold]  1970-01-01T01:00:00Z  1970-01-01T00:00:05Z               2"
        "                    2",
        "",
        "computation    key intervals  commits made  commits kept  snapshots kept",
        f"Counter[bold]              2             {commits}             {commits}               0",
        "",
        "computation    counted itself  count",
        "Counter[bold]            seen      4",
    ]


def test_it_shows_what_a_computation_counted_itself(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", "b", "a", at=20, low_watermark=10)

    (one,) = _json(millrace, checkpoint)["computations"]
    assert one["counters"]["counted"] == {"seen": 3}
    assert "seen" in millrace("checkpoint", "show", str(checkpoint.path)).output


def test_it_shows_an_unfinished_epoch(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", low_watermark=10)
    checkpoint.epoch("a", low_watermark=20, complete=False)

    shown = _json(millrace, checkpoint)

    assert (shown["epoch"], shown["unfinished"]) == (0, 1)
    assert shown["computations"][0]["low_watermark"] == 10


def test_it_shows_that_a_newer_run_has_claimed(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", low_watermark=10)
    type(checkpoint)(checkpoint.path)

    shown = _json(millrace, checkpoint)

    assert (shown["generation"], shown["epoch"]) == (2, 0)


def test_it_shows_that_the_input_has_ended(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", low_watermark=mr.MAX_TIMESTAMP, drain=True)

    shown = _json(millrace, checkpoint)
    text = millrace("checkpoint", "show", str(checkpoint.path)).output

    assert shown["state"] == "drained"
    assert "drained" in text
    assert "end of time" in text


def test_names_are_not_markup(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", low_watermark=10)

    assert "Counter[bold]" in millrace("checkpoint", "show", str(checkpoint.path)).output


def test_it_writes_nothing(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", low_watermark=10)
    before = _files(checkpoint.path)

    assert millrace("checkpoint", "show", str(checkpoint.path)).exit_code == 0

    assert _files(checkpoint.path) == before


def test_a_file_url_is_a_path(millrace: Any, checkpoint: Any) -> None:
    assert millrace("checkpoint", "show", checkpoint.path.as_uri()).exit_code == 0


def test_a_directory_without_format_is_no_checkpoint(millrace: Any, tmp_path: Path) -> None:
    run = millrace("checkpoint", "show", str(tmp_path))

    assert run.exit_code == 1
    assert "no checkpoint, it has no FORMAT file" in run.output
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_no_checkpoint(millrace: Any, tmp_path: Path) -> None:
    run = millrace("checkpoint", "show", str(tmp_path / "nowhere"))

    assert run.exit_code == 1
    assert "no checkpoint, there is nothing at that path" in run.output
    assert not (tmp_path / "nowhere").exists()


def test_a_file_is_no_checkpoint(millrace: Any, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("")

    run = millrace("checkpoint", "show", str(tmp_path / "notes"))

    assert run.exit_code == 1
    assert "no checkpoint, it is a file" in run.output


def test_a_directory_of_somebody_else_is_said(
    millrace: Any, checkpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may read everything

    run = millrace("checkpoint", "show", str(checkpoint.path))

    assert run.exit_code == 1
    assert "permission denied" in run.output


def test_a_damaged_entry_is_an_error(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("a", low_watermark=10)
    last = max((checkpoint.path / "epochs").iterdir())
    last.write_bytes(last.read_bytes()[:-5])

    run = millrace("checkpoint", "show", str(checkpoint.path))

    assert run.exit_code == 1
    assert "damaged at offset" in run.output


def _json(millrace: Any, checkpoint: Any) -> Any:
    run = millrace("checkpoint", "show", "--json", str(checkpoint.path))
    assert run.exit_code == 0, run.output
    return json.loads(run.output)


def _commits(path: Path) -> int:
    return len([file for file in (path / "commits").rglob("*") if file.is_file()])


def _files(path: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file): (file.stat().st_mtime_ns, file.stat().st_size)
        for file in [path, *path.rglob("*")]
    }


def test_it_tells_of_the_first_late_record(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch(low_watermark=100)
    checkpoint.epoch("home", at=30, low_watermark=100)
    (shown,) = _json(millrace, checkpoint)["computations"]

    assert shown["counters"]["first_late"] == {
        "key": "'home'",
        "stream": "clicks",
        "timestamp_us": 30,
        "low_watermark_us": 100,
        "epoch": 1,
    }
