from __future__ import annotations

import json
from pathlib import Path

import pytest

from millrace.model.errors import DamagedStore, InvariantViolation
from millrace.store import EpochLog, HardState, LocalHardState, MemoryBlobs


@pytest.fixture
def local(tmp_path: Path) -> LocalHardState:
    return LocalHardState.create_or_open(tmp_path / "checkpoint", pipeline="p")


def test_an_empty_log(state: HardState) -> None:
    assert state.epochs.last() == 0
    assert state.epochs.read(1) is None
    assert state.epochs.read(0) is None


def test_entries_are_read_back_in_order(state: HardState) -> None:
    entries = [b'{"epoch": 1}', b"", b'{\n "epoch": 3\n}\n', b"\n\n", b"no JSON \x00\xff"]
    for number, entry in enumerate(entries, 1):
        assert state.epochs.append(number, entry)
        assert state.epochs.last() == number
    assert [state.epochs.read(number) for number in range(1, 6)] == entries
    assert state.epochs.read(6) is None


def test_a_superseded_writer_loses(state: HardState) -> None:
    assert state.epochs.append(1, b'"first"')
    assert not state.epochs.append(1, b'"second"')
    assert state.epochs.read(1) == b'"first"'


@pytest.mark.parametrize("number", [-1, 0, 3, 100])
def test_a_gap_is_refused(state: HardState, number: int) -> None:
    state.epochs.append(1, b"{}")
    with pytest.raises(InvariantViolation, match=r"would leave a gap.*the last one is 1"):
        state.epochs.append(number, b"{}")


def test_another_process_sees_and_is_seen(local: LocalHardState) -> None:
    other = LocalHardState.open(local.path)
    assert local.epochs.append(1, b"1")
    assert other.epochs.last() == 1
    assert other.epochs.append(2, b"2")
    assert other.epochs.append(3, b"3")
    assert local.epochs.last() == 3
    assert not local.epochs.append(2, b"x")


def test_an_entry_is_readable_without_us(local: LocalHardState) -> None:
    local.epochs.append(1, json.dumps({"low_watermarks": {"searches": 5}}).encode())
    lines = (local.path / "epochs" / "0000000001.json").read_text().splitlines()
    assert json.loads(lines[0]) == {"low_watermarks": {"searches": 5}}
    assert json.loads(lines[1]).keys() == {"number", "xxh3_64", "attempt"}


def test_every_damaged_bit_and_every_truncation_is_found(local: LocalHardState) -> None:
    local.epochs.append(1, b'{"epoch": 1, "at": [1, 2]}')
    path = local.path / "epochs" / "0000000001.json"
    whole = path.read_bytes()
    damaged = [whole[:length] for length in range(len(whole))]
    damaged += [whole + b"\n", whole + b"x", b"\n" + whole, whole + whole]
    for offset in range(len(whole)):
        for bit in range(8):
            copy = bytearray(whole)
            copy[offset] ^= 1 << bit
            damaged.append(bytes(copy))
    for data in damaged:
        path.write_bytes(data)
        with pytest.raises(DamagedStore, match=r"0000000001\.json: damaged at offset \d+"):
            local.epochs.read(1)


def test_an_entry_copied_to_another_number_is_found(local: LocalHardState) -> None:
    local.epochs.append(1, b"{}")
    path = local.path / "epochs" / "0000000001.json"
    path.with_name("0000000002.json").write_bytes(path.read_bytes())
    with pytest.raises(DamagedStore):
        local.epochs.read(2)


def test_a_missing_entry_shows_in_the_first(local: LocalHardState) -> None:
    for number in range(1, 5):
        local.epochs.append(number, b"{}")
    (local.path / "epochs" / "0000000003.json").unlink()
    again = LocalHardState.open(local.path).epochs
    assert (again.first(), again.last(), again.read(3)) == (4, 4, None)


def test_other_files_in_the_folder_do_not_count(local: LocalHardState) -> None:
    local.epochs.append(1, b"{}")
    for name in (".DS_Store", "9999999999.json.bak", "5.json"):
        (local.path / "epochs" / name).touch()
    assert LocalHardState.open(local.path).epochs.last() == 1


class _Asleep(MemoryBlobs):
    """A log whose reader sleeps before its ``nth`` look; meanwhile others go on from 3 to 9."""

    def __init__(self, nth: int, there: list[int]) -> None:
        super().__init__()
        self.there = there
        self._left = nth

    def exists(self, name: str) -> bool:
        self._look()
        return name in self._there()

    def names(self, folder: str) -> list[str]:
        self._look()
        return self._there()

    def _there(self) -> list[str]:
        return [f"epochs/{number:010d}.json" for number in self.there]

    def _look(self) -> None:
        if not self._left:
            self.there = [7, 8, 9]
        self._left -= 1


@pytest.mark.parametrize("known", [0, 1, 2, 3])
@pytest.mark.parametrize("nth", range(12))
def test_the_last_entry_is_one_that_was_the_last_while_it_was_asked_for(
    known: int, nth: int
) -> None:
    blobs = _Asleep(-1, [number for number in (1, 2, 3) if number <= known])
    log = EpochLog(blobs)
    assert log.last() == known
    blobs.there, blobs._left = [1, 2, 3], nth
    assert log.last() == max(blobs.there)


def test_of_a_log_that_is_made_meanwhile_the_last_is_not_none() -> None:
    for nth in range(6):
        blobs = _Asleep(nth, [])
        assert EpochLog(blobs).last() == max(blobs.there, default=0)
