"""A section of docs/benchmarks.md: which results file it takes, and what of it is shown."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.result import FOLDER

Result = Mapping[str, Any]
Rows = Sequence[Mapping[str, Any]]

#: Arguments that say where a benchmark works or how it warms up, and not what it measures.
_ASIDE = {
    *("out", "work_dir", "quick", "document", "timeout", "cores", "patience"),
    *("warmup_batches", "warmup_records"),
}


@dataclass(frozen=True)
class Table:
    """What of a results file is shown.

    Attributes:
        rows: Name of the list in the results file, or what makes rows of the file.
        columns: Heading -> path within a row, with dots, and after a colon the format of the value:
            ``"cell.rate:,"``. A cell without a value is empty.
        wanted: Which files will do; the newest of these is taken.
        arguments: What followed the command, where a file does not say it.
        title: A heading of the third rank, where a section has several tables.
        picture: A picture of the results in ``docs/pictures``, and what it shows.
    """

    rows: str | Callable[[Result], Rows]
    columns: Mapping[str, str]
    wanted: Callable[[Result], bool] = lambda _: True
    arguments: str = ""
    title: str = ""
    picture: tuple[str, str] | None = None


@dataclass(frozen=True)
class Section:
    """Figures of one benchmark.

    Attributes:
        title: Heading of the section.
        benchmark: The module below ``benchmarks`` that measures it.
        about: What is measured, in Markdown.
        tables: What is shown, one file each.
        prefix: Beginning of its files' names, where it is not the module's name.
    """

    title: str
    benchmark: str
    about: str
    tables: Sequence[Table]
    prefix: str = ""


def newest(section: Section, table: Table) -> tuple[Path, Result]:
    """Return the newest results file that a table is about, and what it has.

    Raises:
        LookupError: There is none.
    """
    prefix = section.prefix or section.benchmark.replace("_", "-")
    for file in sorted(FOLDER.glob(f"{prefix}-20*.json"), reverse=True):
        if "before" not in file.stem and table.wanted(result := _read(file)):
            return file, result
    raise LookupError(f"no results file of {section.benchmark} has what {section.title!r} shows")


@functools.cache
def _read(file: Path) -> Result:
    result: Result = json.loads(file.read_text())
    return result


def command(section: Section, table: Table, result: Result) -> str:
    """Return the command that left a results file."""
    given = result["machine"].get("command") or result.get("command")
    if given:
        return str(given)
    settings = result.get("settings") or result.get("arguments") or {}
    options = [
        f"--{name.replace('_', '-')}{_value(value)}"
        for name, value in settings.items()
        if name not in _ASIDE and value not in ("None", "False", "[]")
    ]
    arguments = [table.arguments] if table.arguments else options
    return " ".join([f"python -m benchmarks.{section.benchmark}", *arguments])


def _value(text: str) -> str:
    if text == "True":
        return ""
    if text[:1] in "[(":
        return " " + ",".join(str(item) for item in ast.literal_eval(text))
    return f" {text}"


def cell(row: Mapping[str, Any], spec: str) -> str:
    """Return a value of a row as it is shown."""
    path, _, form = spec.partition(":")
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
        if value is None:
            return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return format(value, form)


def table_lines(rows: Rows, columns: Mapping[str, str]) -> Iterator[str]:
    """Yield a Markdown table."""
    cells = [[cell(row, spec) for spec in columns.values()] for row in rows]
    numbers = [
        all(re.fullmatch(r"[-\d.,%]*", text) for text in column)
        for column in zip(*cells, strict=True)
    ]
    yield _line(columns)
    yield "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
    for line in cells:
        yield _line(line)


def _line(cells: Sequence[str] | Mapping[str, str]) -> str:
    return "|" + "|".join(f" {each} " if each else " " for each in cells) + "|"


def section_lines(section: Section) -> Iterator[str]:
    """Yield a section in Markdown."""
    yield from (f"## {section.title}", "", section.about, "")
    chosen = [newest(section, table) for table in section.tables]
    for number, (table, (file, result)) in enumerate(zip(section.tables, chosen, strict=True)):
        if table.title:
            yield from (f"### {table.title}", "")
        rows = result[table.rows] if isinstance(table.rows, str) else table.rows(result)
        yield from (*table_lines(rows, table.columns), "")
        if table.picture:
            yield from (f"![{table.picture[1]}](pictures/{table.picture[0]})", "")
        if file not in (later for later, _ in chosen[number + 1 :]):
            if failed := len(result.get("failures") or ()):
                yield from (f"Contenders that failed in this run: {failed}.", "")
            yield from (_origin(file, result), "", "```sh", command(section, table, result))
            yield from ("```", "")


def _origin(file: Path, result: Result) -> str:
    machine = result["machine"]
    cpu = machine["cpu"].replace("(R)", "").removesuffix(" Processor")
    commit = f", commit `{machine['commit']}`" if machine["commit"] else ""
    return (
        f"[{machine['at'][:10]}](../benchmarks/results/{file.name}), {machine['cores']} cores "
        f"({cpu}), load {machine['load_average'][0]}{commit}:"
    )
