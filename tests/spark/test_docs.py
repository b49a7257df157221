"""The examples in README and guides that need Spark run, with those before them.

A block that needs Spark is fenced as ``python spark``.
"""

import contextlib
import io
import json
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


def test_the_notebook_shows_what_its_cells_give(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = ROOT / "examples" / "notebooks" / "quick_start.ipynb"
    names: dict[str, Any] = {"__name__": "examples"}

    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        if cell["cell_type"] != "code":
            continue
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path}[{number}]", "exec"), names)
        outputs = [out for out in cell["outputs"] if out.get("name") == "stdout"]
        assert printed.getvalue() == "".join(text for out in outputs for text in out["text"])

    assert names["totals"][["_key", "total"]].to_numpy().tolist() == [
        ["blue", 8],
        ["red", 19],
        ["red", 9],
    ]
