"""Every public name has one place in the reference, which says what it is."""

import importlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

import millrace as mr

ROOT = Path(__file__).parents[3]
DESCRIBED = [
    path
    for page in (ROOT / "docs" / "reference").glob("*.md")
    for path in re.findall(r"^::: (millrace[\w.]*)$", page.read_text(), re.MULTILINE)
]


def named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_every_public_name_is_described_once() -> None:
    public = {f"millrace.{name}" for name in mr.__all__ if name not in mr._NAMESPACES}
    for space in {*mr._NAMESPACES} - {"spark"}:
        public |= {f"millrace.{space}.{name}" for name in getattr(mr, space).__all__}
    public -= {"millrace.Parquet"}  # it is that of sinks

    assert public <= set(DESCRIBED)
    assert Counter(DESCRIBED).most_common(1)[0][1] == 1


def test_what_is_described_is_there() -> None:
    for path in DESCRIBED:
        assert named(path) is not None, path
