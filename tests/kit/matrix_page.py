"""``docs/types.md``: its tables are written by the tests, a column each, and checked by them.

``TYPES_PAGE=write make test ARGS="..."`` writes the columns of the tests that run.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from doors_in import ALMOST
from field_types import CONTAINERS, KINDS, Outcome, word_of

from faults import FAULTS

PAGE = Path(__file__).parents[2] / "docs" / "types.md"

ROWS = [kind.name for kind in KINDS]

#: Table -> its columns and its rows, in order.
TABLES: dict[str, tuple[list[str], list[str]]] = {
    "doors in": (
        ["Harness", "Injector", "Files, Parquet", "Files, JSON", "Kafka, JSON", "DataFrame"],
        ROWS,
    ),
    "almost": (["Files, JSON", "Kafka, JSON"], [kind.name for kind in ALMOST]),
    "messages": (["Kafka, no schema"], ["value", "value, null", "key", "key, null"]),
    "places": (
        ["value", "key", "ValueState", "MapState value", "MapState entry", "BagState",
         "CombiningState", "timer tag", "window", "side input", "retraction", "dead letter"],
        ROWS,
    ),
    "doors out": (
        ["sinks.Function", "Parquet", "Delta", "Iceberg", "PostgreSQL, its table",
         "PostgreSQL, your table", "sinks.Kafka", "sinks.Kafka and back", "callable", "Memory"],
        ROWS,
    ),
    "nested": (["value", "retraction", "Parquet"], list(CONTAINERS)),
}  # fmt: skip

#: Between the names of rows, and of columns, that have the same cells.
_AND = "; "

#: Word of an outcome -> how a cell names it.
SHOWN = {"equal": "equal", "refused": "refused", "letter": "dead letter", "none": "–"}


def check(table: str, column: str, cells: Mapping[str, Sequence[Outcome]]) -> None:
    """Check a column of a table: its faults are those that are listed, and the page has it.

    Args:
        table: One of :data:`TABLES`.
        column: One of its columns.
        cells: Row -> what became of each value.
    """
    check_faults(table, column, cells, cells)
    check_text(table, column, {row: _shown(outcomes) for row, outcomes in cells.items()})


def check_faults(
    table: str, column: str, cells: Mapping[str, Sequence[Outcome]], rows: Iterable[str]
) -> None:
    """Check that the faults among cells are those that are listed of these rows."""
    wrong = {
        row: word_of(outcomes)
        for row, outcomes in cells.items()
        if not all(outcome.right or outcome.word == "none" for outcome in outcomes)
    }
    known = FAULTS.get(f"{table}: {column}", {})
    listed = {row: known[row] for row in rows if row in known}
    news = {
        row: [outcome.detail for outcome in cells[row] if not outcome.right]
        for row in wrong
        if listed.get(row) != wrong[row]
    }
    assert not news, f"{table}, {column}: values that are wrong, lost, or stop the run: {news}"
    mended = sorted(listed.keys() - wrong.keys())
    assert not mended, f"{table}, {column}: {mended} are right; take them off tests/kit/faults.py"


def check_text(table: str, column: str, cells: Mapping[str, str]) -> None:
    """Check that the page has a column as it is, or write it."""
    if os.environ.get("TYPES_PAGE") == "write":

        def made(text: str) -> str:
            known = _parsed(text, table)
            for row, cell in cells.items():
                known.setdefault(row, {})[column] = cell
            return _lines(*TABLES[table], known)

        _rewrite(table, made)
        return
    known = _parsed(PAGE.read_text(), table)
    there = {row: known.get(row, {}).get(column) for row in cells}
    assert there == dict(cells), (
        f"docs/types.md, {table}, column {column!r} is not what the test found. Write it: "
        "TYPES_PAGE=write make test"
    )


def check_table(table: str, columns: Sequence[str], cells: Mapping[str, Mapping[str, str]]) -> None:
    """Check that the page has a table as one test has found it, or write it.

    Args:
        table: Its name.
        columns: Those that it has, in order.
        cells: Row, in order -> column -> what was found; "" where a column is left out.
    """
    whole = {row: {name: of.get(name, "") for name in columns} for row, of in cells.items()}
    if os.environ.get("TYPES_PAGE") == "write":
        _rewrite(table, lambda _: _lines(columns, list(whole), whole))
        return
    assert _parsed(PAGE.read_text(), table) == whole, (
        f"docs/types.md, {table}, is not what the test found. Write it: TYPES_PAGE=write make test"
    )


def _rewrite(table: str, made: Callable[[str], str]) -> None:
    """Write a table anew, given the page."""
    with PAGE.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        file.seek(0)
        file.truncate()
        file.write(_with(text, table, made(text)))


def _shown(outcomes: Sequence[Outcome]) -> str:
    words = [SHOWN.get(outcome.word, "**fault**") for outcome in outcomes]
    return " / ".join(dict.fromkeys(words))


def _marks(table: str) -> tuple[str, str]:
    return f"<!-- written by the tests: {table} -->\n", "<!-- end -->"


def _between(text: str, table: str) -> tuple[int, int]:
    first, last = _marks(table)
    start = text.index(first) + len(first)
    return start, text.index(last, start)


def _with(text: str, table: str, rows: str) -> str:
    start, end = _between(text, table)
    return text[:start] + rows + text[end:]


def _parsed(text: str, table: str) -> dict[str, dict[str, str]]:
    start, end = _between(text, table)
    lines = [_split(line) for line in text[start:end].splitlines() if line.startswith("|")]
    if not lines:
        return {}
    headings = lines[0][1:]
    return {
        row: {
            column: cell
            for heading, cell in zip(headings, cells, strict=True)
            for column in heading.split(_AND)
        }
        for label, *cells in lines[2:]
        for row in label.split(_AND)
    }


def _split(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _lines(
    columns: Sequence[str], rows: Sequence[str], known: Mapping[str, Mapping[str, str]]
) -> str:
    """Return a table in which rows with the same cells are one, and columns likewise."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        cells = tuple(known.get(row, {}).get(column, "") for column in columns)
        alike.setdefault(cells, []).append(row)
    headings: dict[tuple[str, ...], list[str]] = {}
    for column, texts in zip(columns, zip(*alike, strict=True), strict=True):
        headings.setdefault(texts, []).append(column)
    lines = [["", *map(_AND.join, headings.values())], ["---"] * (len(headings) + 1)]
    lines += [
        [_AND.join(group), *cells]
        for group, cells in zip(alike.values(), zip(*headings, strict=True), strict=True)
    ]
    return "\n" + "\n".join(map(_line, lines)) + "\n\n"


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
