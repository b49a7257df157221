"""How user classes reach the workers: by value from scripts and notebooks, else by import."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

import millrace as mr


class Base(msgspec.Struct):
    name: str


class Derived(Base, kw_only=True):
    size: int = 3
    tags: list[str] = msgspec.field(default_factory=list)
    note: str | None = None

    @property
    def label(self) -> str:
        return f"{self.name}x{self.size}{self.tags}{self.note}"


class Renamed(msgspec.Struct, rename="camel"):
    user_name: str
    user_size: int = 3


@dataclass
class Data:
    name: str
    size: int = 3
    tags: list[str] = field(default_factory=list)


class Labels(mr.Computation):
    inputs = {"things": mr.by("name")}
    outputs = {"labels": str}

    def process_record(self, record: mr.Record) -> None:
        self.produce("labels", record.value.label)


class Datas(mr.Computation):
    inputs = {"things": mr.by("name")}
    outputs = {"labels": str}
    kept = mr.ValueState(Data)

    def process_record(self, record: mr.Record) -> None:
        self.kept.set(record.value)
        self.produce("labels", repr(self.kept.get()))


class Names(mr.Computation):
    inputs = {"things": mr.by("user_name")}
    outputs = {"labels": Renamed}

    def process_record(self, record: mr.Record) -> None:
        self.produce("labels", Renamed(record.value.user_name * 2, record.value.user_size + 1))


def _run(spark: SparkSession, tools: Any, computation: Any, format: Any, ddl: str) -> Any:
    sink = tools.Kept()
    p = mr.Pipeline("things")
    p.inject("things", spark.createDataFrame([("a", 7, 1)], ddl), timestamp="at", format=format)
    p.add(computation)
    p.sink("labels", sink)
    p.run_batch(spark)
    return sink.rows


def test_a_struct_with_defaults_travels_by_value(spark: SparkSession, tools: Any) -> None:
    rows = _run(spark, tools, Labels, Derived, "name string, size long, at long")

    assert rows == [("a", "ax7[]None", 1)]


def test_a_dataclass_with_defaults_travels_by_value(spark: SparkSession, tools: Any) -> None:
    rows = _run(spark, tools, Datas, Data, "name string, size long, at long")

    assert rows == [("a", "Data(name='a', size=7, tags=[])", 1)]


def test_a_struct_whose_fields_have_other_names_on_the_wire(
    spark: SparkSession, tools: Any
) -> None:
    rows = _run(spark, tools, Names, Renamed, "user_name string, user_size long, at long")

    assert rows == [("a", {"user_name": "aa", "user_size": 8}, 1)]


MODULE = """
import msgspec
import millrace as mr

class Word(msgspec.Struct):
    text: str
    count: int = 1

class Importable(mr.Computation):
    inputs = {"things": mr.by("text")}
    outputs = {"labels": str}

    def process_record(self, record):
        self.produce("labels", f"{record.value.text}/{record.value.count}/{__name__}/{__file__}")
"""


def test_what_workers_can_import_is_imported_there(
    spark: SparkSession, tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "importable_things.py"
    file.write_text(MODULE)
    spark.addArtifact(str(file), pyfile=True)
    monkeypatch.syspath_prepend(tmp_path)
    import importable_things  # type: ignore[import-not-found]

    classes = importable_things.Importable, importable_things.Word
    rows = _run(spark, tools, *classes, "text string, n long, at long")

    assert [value.split("/")[:3] for _, value, _ in rows] == [["a", "1", "importable_things"]]
