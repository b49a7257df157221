"""A pipeline whose checkpoint is in an object store, which is killed and comes back in mid-run."""

from __future__ import annotations

from pathlib import Path

import pytest
from killed_store import check_run_with_killed_store
from s3_server import S3Server


@pytest.mark.timeout(400)
def test_the_store_is_killed_in_mid_run(tmp_path: Path, s3: str, s3_server: S3Server) -> None:
    check_run_with_killed_store(tmp_path, s3, s3_server, hadoop_url="s3a://checkpoints/")
