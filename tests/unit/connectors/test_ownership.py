"""The owner of a sink's directory, and the power."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from millrace.connectors.ownership import claim_directory
from millrace.model.errors import CheckpointMismatch


class Dies(Exception):
    """The host loses power."""


def test_a_directory_is_its_owners_whenever_the_power_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not synced when it got its name may be empty when the power is back."""
    synced = 0
    sync = os.fsync

    def syncing(fd: int) -> None:
        nonlocal synced
        synced += 1
        if synced == dies_at:
            if stat.S_ISREG(os.fstat(fd).st_mode):
                os.truncate(fd, 0)
            raise Dies
        sync(fd)

    monkeypatch.setattr(os, "fsync", syncing)
    for dies_at in (1, 2):
        synced = 0
        with pytest.raises(Dies):
            claim_directory(tmp_path / str(dies_at), "me", "Parquet('out')")
        dies_at = 0
        for directory in tmp_path.iterdir():
            claim_directory(directory, "me", "Parquet('out')")
            with pytest.raises(CheckpointMismatch, match="id me; this one is another"):
                claim_directory(directory, "another", "Parquet('out')")
            assert all(path.name.startswith("_") for path in directory.iterdir())
