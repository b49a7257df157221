"""The examples in README, guides and docstrings run on Spark, with the records that they give.

A block is fenced ``python`` if it needs no Spark, ``python spark`` if it has a session, and
``python external`` if it names a broker, a bucket or data that no test has: that is planned.
"""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import json
import pkgutil
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import millrace as mr
from examples import Examples

ROOT = Path(__file__).parents[2]
GUIDES = [
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("docs/how-to/*.md")),
]
_BLOCK = re.compile(r"^```python(| spark| external)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

DOCUMENTS = [file for file in GUIDES if _BLOCK.search(file.read_text())]

#: What a block of an external system takes for granted, by its document.
GIVEN = {
    "injectors.md": 'p = mr.Pipeline("clicks")',
    "checkpoint-in-an-object-store.md": 'p = mr.Pipeline("taxis")',
    "find-what-is-stuck.md": """\
p = mr.Pipeline("flights")
p.inject("flights", format=dict)
from simulation.composition import Spread
""",
    "size-a-cluster.md": 'p = mr.Pipeline("taxis")',
    "watch-a-run.md": 'p = mr.Pipeline("taxis")',
    "tutorial.md": """\
out = "/results"
source = spark.createDataFrame([], "user string, team string, points long, at timestamp")
""",
}

#: Blocks that are not even planned, by a line of theirs.
LEFT_OUT = {
    'run.savepoint("before")': "it takes a checkpoint; spark/processes has such ones",
    "mr.spark.realtime_settings(tasks=2)": "it makes a session; spark/processes has such ones",
    "spark.addArtifacts(": "it sends an archive to a server; spark/processes has such ones",
    'pacemaker="kafka:broker:9092/idle"': "it asks a server; spark/processes has such ones",
    "SparkSession.builder.remote(": "it asks a server; spark/processes has such ones",
    'spark.read.table("main.web.clicks")': "it reads a host's catalog",
}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda file: file.name)
def test_examples_run(
    document: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    text = document.read_text()
    # Not the name of a module: like those of a script, the classes must travel by value.
    names: dict[str, Any] = {"__name__": "examples", "spark": spark}
    examples = Examples()

    for block in _BLOCK.finditer(text):
        if any(line in block[2] for line in LEFT_OUT):
            continue
        above = "\n" * text.count("\n", 0, block.start(2))
        code = compile(above + block[2], str(document), "exec")
        if block[1] == " external":
            around = {**names, "mr": mr, "F": F}
            with examples.watched(external=True):
                exec(GIVEN.get(document.name, ""), around)
                exec(code, around)
        else:
            with examples.watched():
                exec(code, names)

    assert examples.refused_by_spark(spark) == []


def test_examples_in_docstrings_are_planned(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problems: dict[str, list[str]] = {}
    for found in pkgutil.walk_packages(mr.__path__, "millrace."):
        if found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
        if ">>> p = mr.Pipeline(" not in inspect.getsource(module):
            continue
        examples = Examples()
        with examples.watched(), contextlib.redirect_stdout(io.StringIO()):
            doctest.testmod(module, extraglobs={"__name__": "examples"})
        if refused := examples.refused_by_spark(spark, run=False):
            problems[found.name] = refused

    assert problems == {}


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
