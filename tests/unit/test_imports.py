"""Modules import one another without circles, and nothing is found by its name from below."""

import ast
import inspect
import re
import typing
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import grimp
import pytest

import millrace as mr
from millrace.dataflow.stream import Stream, WindowedStream

SOURCE = Path(mr.__file__).parent


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(file.relative_to(SOURCE)))

    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def circles(graph: grimp.ImportGraph) -> list[set[str]]:
    """Return the strongly connected components of more than one module."""
    above = {module: graph.find_downstream_modules(module) for module in graph.modules}
    found: list[set[str]] = []
    for module, users in above.items():
        circle = {module} | {user for user in users if module in above[user]}
        if len(circle) > 1 and circle not in found:
            found.append(circle)
    return found


def test_circles_are_found() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in ("ab", "bc", "cb", "cd"):
        graph.add_import(importer=importer, imported=imported)

    assert circles(graph) == [{"b", "c"}]


def test_no_modules_import_one_another_in_a_circle() -> None:
    # Imports within functions count.
    graph = grimp.build_graph("millrace", cache_dir=None, exclude_type_checking_imports=True)

    assert circles(graph) == []


def test_what_only_a_type_checker_imports_stays_in_its_folder() -> None:
    graph = grimp.build_graph("millrace", cache_dir=None)
    spread = [
        sorted(circle)
        for circle in circles(graph)
        if len({module.split(".")[1] for module in circle}) > 1
    ]

    assert spread == []


@pytest.mark.parametrize("source", ["millrace.spark.ticks"])
def test_the_process_that_spark_asks_for_offsets_imports_little(source: str) -> None:
    # A run on a source of Spark's own starts one, and waits until it has imported this.
    graph = grimp.build_graph("millrace", cache_dir=None, exclude_type_checking_imports=True)
    folders = {module.split(".")[1] for module in graph.find_upstream_modules(source)}

    assert not folders & {"compile", "dataflow", "epochlog", "kernel", "store", "watermark"}
    assert len(graph.find_upstream_modules(source)) < 20


_IMPORT = re.compile(r"from (millrace\.[\w.]+) import (?:\(([^)]*)\)|([^\n(]*))")


@pytest.mark.parametrize("package", ["store", "inspect"])
def test_a_package_offers_no_names_that_nobody_imports_from_it(package: str) -> None:
    folder, root = SOURCE / package, SOURCE.parents[1]
    roots = [SOURCE, *(root / name for name in ("tests", "simulation", "benchmarks", "examples"))]
    imported: set[str] = set()
    for file in (file for top in roots for file in top.rglob("*.py")):
        if not file.is_relative_to(folder):
            for module, several, line in _IMPORT.findall(file.read_text()):
                if module == f"millrace.{package}":
                    imported |= set(re.findall(r"\w+", several or line))
    offered = import_module(f"millrace.{package}").__all__

    assert [name for name in offered if name not in imported] == []


def by_name(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in ("import_module", "__import__"):
                yield f"{file.relative_to(SOURCE)}:{node.lineno}"


@pytest.mark.parametrize(
    "folder", ["model", "dataflow", "compile", "kernel", "epochlog", "balance", "runtime"]
)
def test_nothing_is_imported_by_name_behind_the_layers_back(folder: str) -> None:
    assert [found for file in (SOURCE / folder).rglob("*.py") for found in by_name(file)] == []


def test_a_type_checker_sees_what_a_stream_can_do() -> None:
    for method in (mr.Pipeline.inject, mr.Pipeline.stream, mr.Pipeline.late_records):
        assert typing.get_type_hints(method)["return"] is Stream
    assert typing.get_type_hints(Stream.window)["return"] is WindowedStream
    assert "window_fn" in inspect.signature(Stream.window).parameters
    for method in (Stream.map, Stream.key_by, Stream.flatten, WindowedStream.to):
        assert typing.get_type_hints(method)["return"] is typing.Self
    # What an aggregation gives is said once, where a windowed stream says what it is made of.
    assert typing.get_args(WindowedStream.__orig_bases__[1]) == (
        typing.ForwardRef("WindowedStream"),
    )
