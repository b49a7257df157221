"""The suite that every store passes in the unit tier, over a real S3 server."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from store_contract import commit_maker, contract

from millrace.store import (
    Blobs,
    BucketOptions,
    BucketUrl,
    Commit,
    HardState,
    ObjectBlobs,
    open_location,
)


@pytest.fixture
def state(s3: str) -> HardState:
    return open_location(s3, pipeline="zeitgeist")


@pytest.fixture
def blobs(s3: str) -> Blobs:
    return ObjectBlobs(BucketUrl.parse(s3), BucketOptions.from_environment())


@pytest.fixture
def commit() -> Callable[..., Commit]:
    return commit_maker()


globals().update(contract())
