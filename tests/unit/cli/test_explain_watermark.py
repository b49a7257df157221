"""``millrace explain-watermark`` on checkpoints on disk."""

import json
from pathlib import Path
from typing import Any

import millrace as mr


def test_it_names_the_key_that_holds(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("home", at=30, low_watermark=0)
    checkpoint.epoch("about", at=20, low_watermark=100)
    shown = millrace("explain-watermark", str(checkpoint.path))

    assert shown.exit_code == 0
    assert "Pinned by a hold at 1970-01-01T00:00:00.000020Z: key 'about' of Counter[bold]" in (
        shown.output
    )
    assert "As of epoch 1, at 1970-01-01T00:00:01Z." in shown.output


def test_ends_of_time_are_words(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch(low_watermark=mr.MIN_TIMESTAMP)
    before = millrace("explain-watermark", str(checkpoint.path)).output
    checkpoint.epoch(low_watermark=mr.MAX_TIMESTAMP, drain=True)
    after = millrace("explain-watermark", str(checkpoint.path)).output

    assert "shows its consumers no time yet; its input is at no time yet." in before
    assert "shows its consumers the end of time; its input is at the end of time." in after


def test_it_prints_json(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("home", at=30, low_watermark=100)
    shown = millrace("explain-watermark", str(checkpoint.path), "Counter[bold]", "--json")
    found = json.loads(shown.output)

    assert found["path"] == [
        {"computation": "Counter[bold]", "input": 100, "shown": 30, "backwards": 0}
    ]
    assert (found["pin"]["kind"], found["pin"]["key"]) == ("hold", "home")


def test_the_key_in_json_is_such_as_state_get_takes(millrace: Any, checkpoint: Any) -> None:
    for key, written in ((b"\x00\xff", "0x00ff"), (float("nan"), "NaN")):
        checkpoint.epoch(key, at=30, low_watermark=100)
        found = json.loads(millrace("explain-watermark", str(checkpoint.path), "--json").output)
        assert found["pin"]["key"] == written
        got = millrace("state", "get", str(checkpoint.path), "Counter[bold]", written, "--json")
        assert json.loads(got.output)["key"] == written
        checkpoint.epoch(low_watermark=mr.MINUTE)


def test_it_reads_the_epoch_that_a_run_is_in(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch(low_watermark=0)
    checkpoint.epoch("home", at=30, low_watermark=100, complete=False)

    assert "Epoch 1 was begun and is not finished" in (
        millrace("explain-watermark", str(checkpoint.path)).output
    )


def test_it_writes_nothing(millrace: Any, checkpoint: Any) -> None:
    checkpoint.epoch("home", at=30, low_watermark=100)
    before = sorted((p, p.stat().st_mtime_ns) for p in checkpoint.path.rglob("*"))
    millrace("explain-watermark", str(checkpoint.path))

    assert sorted((p, p.stat().st_mtime_ns) for p in checkpoint.path.rglob("*")) == before


def test_before_the_first_epoch_it_says_so(millrace: Any, checkpoint: Any) -> None:
    shown = millrace("explain-watermark", str(checkpoint.path))

    assert shown.exit_code == 1
    assert "no epoch of this checkpoint has completed yet" in shown.output


def test_a_directory_that_is_none_is_refused(millrace: Any, tmp_path: Path) -> None:
    shown = millrace("explain-watermark", str(tmp_path / "nothing"))

    assert shown.exit_code == 1
    assert "no checkpoint" in shown.output
