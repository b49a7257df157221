"""``millrace checkpoint verify``."""

import json
from pathlib import Path
from typing import Any

import pytest
from logs import lose

from millrace.injectors.dead_letters import LetterLog
from millrace.model.record import DeadLetter
from millrace.store import (
    LmdbCaches,
    LocalHardState,
    SnapshotPolicy,
    mailbox_at,
    write_if_due,
)

NAME = "Counter[bold]"


@pytest.fixture
def written(checkpoint: Any) -> Path:
    """Five epochs, with a snapshot of every interval after the third."""
    for epoch in range(5):
        checkpoint.epoch(*"abcdefgh", at=epoch, low_watermark=epoch)
        if epoch == 2:
            state = LocalHardState.open(checkpoint.path)
            caches = LmdbCaches(checkpoint.path / "cache", state.uuid)
            for interval in (0, 1):
                cache, always = caches.open(NAME, interval), SnapshotPolicy(fixed_bytes=0)
                assert write_if_due(cache, state.snapshots, NAME, interval, always).snapshots
    return checkpoint.path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def segment(path: Path, epoch: int) -> Path:
    return next(path.glob(f"commits/*/{epoch:012x}-*"))


def test_a_whole_checkpoint(millrace: Any, written: Path) -> None:
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 0
    assert "read 11 epoch log entries, 10 commits, 2 snapshots: all whole" in run.output


def test_one_that_a_run_has_only_claimed(millrace: Any, checkpoint: Any) -> None:
    assert millrace("checkpoint", "verify", str(checkpoint.path)).exit_code == 0


def test_what_a_snapshot_covers_is_damaged_and_not_lost(millrace: Any, written: Path) -> None:
    flip(segment(written, epoch=1))  # In the middle, which is of interval 1.
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 3
    assert "damaged: commit 2 of interval 1 of computation 'Counter[bold]': segment " in run.output
    assert "1 damaged, 0 lost" in run.output
    assert "Nothing is lost" in run.output


def test_a_segment_that_cannot_be_opened_is_told(millrace: Any, written: Path) -> None:
    covered = segment(written, epoch=1)
    covered.write_bytes(covered.read_bytes()[:-1])
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 3
    assert "damaged: commits of computation 'Counter[bold]': segment " in run.output
    assert "1 damaged, 0 lost" in run.output
    needed = segment(written, epoch=4)
    needed.write_bytes(needed.read_bytes()[:-1])
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 4
    assert "4 damaged, 2 lost" in run.output


def test_a_damaged_snapshot_is_not_lost_while_the_log_is_whole(
    millrace: Any, written: Path
) -> None:
    flip(next(written.glob("snapshots/*/00000001-*")))
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 3
    assert "damaged: snapshot 3 of interval 1" in run.output


@pytest.mark.parametrize("number", [4, 5])
def test_a_commit_after_the_snapshot_is_lost(millrace: Any, written: Path, number: int) -> None:
    lose(LocalHardState.open(written), NAME, 1, [number])
    run = millrace("checkpoint", "verify", str(written), "--json")
    assert run.exit_code == 4
    (finding,) = json.loads(run.output)["findings"]
    assert finding["lost"]
    assert finding["what"] == f"commit 5 of interval 1 of computation {NAME!r}"
    assert f"commit {number} is missing" in finding["problem"]


def test_commits_and_snapshots_of_a_renamed_computation_are_read(
    millrace: Any, checkpoint: Any, written: Path
) -> None:
    checkpoint.rename("Loud")
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 0, run.output
    assert "10 commits, 2 snapshots: all whole" in run.output

    lose(LocalHardState.open(written), NAME, 1, [4])
    run = millrace("checkpoint", "verify", str(written), "--json")
    assert run.exit_code == 4
    (finding,) = json.loads(run.output)["findings"]
    assert finding["what"] == "commit 5 of interval 1 of computation 'Loud'"
    assert "commit 4 is missing" in finding["problem"]


def test_an_entry_of_the_epoch_log_is_lost(millrace: Any, written: Path) -> None:
    flip(written / "epochs" / "0000000011.json")
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 4
    assert "LOST: epoch log entry 11: " in run.output


def test_format_cannot_be_trusted(millrace: Any, written: Path) -> None:
    flip(written / "FORMAT")
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 1
    assert "FORMAT is damaged" in run.output


def test_nothing_is_written(millrace: Any, written: Path) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in written.rglob("*") if path.is_file()}

    before = files()
    millrace("checkpoint", "verify", str(written))
    assert files() == before


def test_show_tells_what_is_in_the_log_and_how_large_it_is(millrace: Any, written: Path) -> None:
    shown = json.loads(millrace("checkpoint", "show", str(written), "--json").output)
    (one,) = shown["computations"]
    assert (one["commits"], one["commits_in_log"], one["snapshots"]) == (10, 10, 2)
    assert all(shown["sizes"][name] > 0 for name in ("epochs", "commits", "snapshots"))
    assert "on disk" in millrace("checkpoint", "show", str(written)).output


# -- commits of the real-time plane ----------------------------------------------------------------


@pytest.fixture(params=["under way", "sealed"])
def grown(request: pytest.FixtureRequest, written: Path) -> Path:
    """The checkpoint, as an incarnation would have left it: its commits are in a segment."""
    state = LocalHardState.open(written)
    assert state.incarnations.seal(1) is not None
    segment = state.incarnations.grow(1, 1, 0, 1)
    for interval, numbers in state.commits.numbers(NAME).items():
        for number in numbers:
            found = state.commits.read(NAME, interval, number)
            assert found is not None
            segment.append([found])
        state.commits.remove(NAME, interval, numbers)
    segment.close()
    if request.param == "sealed":
        assert state.incarnations.seal(2) is not None
    return written


def test_commits_in_grown_segments_are_read_whether_sealed_or_not(
    millrace: Any, grown: Path
) -> None:
    run = millrace("checkpoint", "verify", str(grown))
    assert run.exit_code == 0, run.output
    assert "10 commits, 2 snapshots, 1 grown segments: all whole" in run.output
    shown = json.loads(millrace("checkpoint", "show", str(grown), "--json").output)
    (one,) = shown["computations"]
    assert (one["commits"], one["commits_in_log"], one["snapshots"]) == (10, 10, 2)
    assert shown["sizes"]["incarnations"] > 1000 > shown["sizes"]["commits"]


def test_a_damaged_grown_segment_is_lost(millrace: Any, grown: Path) -> None:
    flip(next(grown.glob("incarnations/*-*")))
    run = millrace("checkpoint", "verify", str(grown))
    assert run.exit_code == 4
    assert "LOST: the grown segments: segment " in run.output
    assert "damaged at offset " in run.output


def test_messages_of_letters_that_are_sent_again_are_read(millrace: Any, written: Path) -> None:
    letter = DeadLetter("s", "c", "no", "", "", "", 0, 7)
    log = LetterLog(mailbox_at(str(written)))
    for id in (b"1", b"2", b"3"):
        log.append([(id, letter)])
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 0
    assert "2 snapshots, 3 messages of letters: all whole" in run.output

    first, second, _ = sorted(written.rglob("letters-*"))
    flip(first)
    second.unlink()
    run = millrace("checkpoint", "verify", str(written))
    assert run.exit_code == 4
    assert "LOST: message 1 of the dead letters that are sent again: " in run.output
    assert "fails its checksum" in run.output
    assert "LOST: message 2 of the dead letters that are sent again: " in run.output
    assert "2 damaged, 2 lost" in run.output
