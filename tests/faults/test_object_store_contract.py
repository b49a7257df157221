"""The suite that every store passes in the unit tier, over a real S3 server."""

from __future__ import annotations

from store_contract import contract

globals().update(contract("s3"))
