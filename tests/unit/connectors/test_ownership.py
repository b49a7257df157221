"""The owner of a sink's directory, and the power."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

import millrace as mr
from millrace.connectors.ownership import claim_directory
from millrace.model.errors import CheckpointMismatch, PipelineError
from millrace.runtime.sink_contract import bind_sinks


def test_two_sinks_of_one_directory_are_refused_by_whatever_name_it_is_reached(
    tmp_path: Path,
) -> None:
    """The second stream's epochs would be taken for the first one's, and be lost."""
    (tmp_path / "out").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for kind in (mr.sinks.Parquet, mr.sinks.Delta):
        p = mr.Pipeline("two")
        for stream, name in (("home", "out"), ("away", "link")):
            p.inject(stream, format=int)
            p.sink(stream, (mr.sinks.Parquet if name == "out" else kind)(tmp_path / name))
        with pytest.raises(PipelineError, match=r"two sinks write to the directory '.*/out'"):
            bind_sinks(p.build(), "owner")


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
