"""The examples in README and guides that need Spark run, with those before them.

A block that needs Spark is fenced as ``python spark``.
"""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    file
    for file in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    if "```python spark\n" in file.read_text()
]

_BLOCK = re.compile(r"^```python(?: spark)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_examples_run(
    document: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = document.read_text()
    # Not the name of a module: like those of a script, the classes must travel by value.
    names: dict[str, Any] = {"__name__": "examples", "spark": spark}

    for block in _BLOCK.finditer(text):
        above = "\n" * text.count("\n", 0, block.start(1))
        exec(compile(above + block[1], str(document), "exec"), names)
