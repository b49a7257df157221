"""Tables and numbers as plain text for people: for ``print``, a log, a pipe, any terminal."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from millrace.model.time import MILLISECOND, SECOND, format_duration

#: Wider than any cell: one that was cut would lie.
_WIDTH = 10_000

#: Columns that do not fit into so many characters go into a table below.
_LINE = 100

_GAP = "  "

_KIB = 1024


class PlainTable(NamedTuple):
    """Cells as text. Columns but the first are numbers or times, and stand to the right."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def without_noughts(self, rare: Iterable[str]) -> PlainTable:
        """Return it without those columns, of some, that say nothing in any row.

        >>> PlainTable(("name", "late"), [("a", "0"), ("b", "-")]).without_noughts(["late"])
        PlainTable(columns=('name',), rows=[('a',), ('b',)])
        """
        rows = [
            n
            for n, name in enumerate(self.columns)
            if name not in rare or any(row[n] not in ("0", "-") for row in self.rows)
        ]
        return PlainTable(
            tuple(self.columns[n] for n in rows),
            [tuple(row[n] for n in rows) for row in self.rows],
        )

    def parts(self) -> Iterator[PlainTable]:
        """Yield tables with lines of about 100 characters, each with the first column.

        >>> table = PlainTable(("name", "a" * 60, "b" * 60), [("x", "1", "2")])
        >>> [part.columns[1][0] for part in table.parts()]
        ['a', 'b']
        """
        widths = [max(map(len, cells)) for cells in zip(self.columns, *self.rows, strict=True)]
        column_numbers: list[int] = []
        for place in range(1, len(self.columns)):
            together = (0, *column_numbers, place)
            if column_numbers and sum(widths[n] + len(_GAP) for n in together) - len(_GAP) > _LINE:
                yield self._of(column_numbers)
                column_numbers = []
            column_numbers.append(place)
        yield self._of(column_numbers)

    def _of(self, column_numbers: Sequence[int]) -> PlainTable:
        """Return the table of the first column and some others."""
        return PlainTable(
            (self.columns[0], *(self.columns[n] for n in column_numbers)),
            [(row[0], *(row[n] for n in column_numbers)) for row in self.rows],
        )


def text_of(head: Sequence[tuple[str, str]], tables: Iterable[PlainTable]) -> str:
    """Return names with their values, and tables that have rows, aligned by spaces alone.

    >>> print(text_of([("state", "open")], [PlainTable(("stream", "records"), [("a", "1,200")])]))
    state  open
    <BLANKLINE>
    stream  records
    a         1,200
    """
    out = io.StringIO()
    # In a notebook it would display what it prints, in a cell of its own.
    console = Console(
        file=out, width=_WIDTH, color_system=None, force_terminal=False, force_jupyter=False
    )
    grid = Table.grid(padding=(0, 2))
    for name, value in head:
        grid.add_row(Text(name), Text(value))
    console.print(grid)
    for table in tables:
        if not table.rows:
            continue
        # Plain spaces: it may go into a log, or to a terminal that knows only ASCII.
        drawn = Table(box=None, pad_edge=False, padding=(0, len(_GAP), 0, 0))
        for number, name in enumerate(table.columns):
            drawn.add_column(Text(name), justify="right" if number else "left", no_wrap=True)
        for row in table.rows:
            # Text, not str: names of a user's may look like rich's markup.
            drawn.add_row(*map(Text, row))
        console.print()
        console.print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().split("\n"))


def in_words(us: int) -> str:
    """Return a duration without digits that nobody reads.

    >>> in_words(4_999_321), in_words(381_234), in_words(490)
    ('5 s', '381 ms', '0.49 ms')
    """
    digit_us = 100 * MILLISECOND if us >= SECOND else MILLISECOND if us >= MILLISECOND else 1
    return format_duration(round(us / digit_us) * digit_us)


def size(n: int) -> str:
    """Return a number of bytes.

    >>> size(512), size(2_048), size(5_000_000)
    ('512 bytes', '2.0 KiB', '4.8 MiB')
    """
    if n < _KIB:
        return f"{n} bytes"
    value = float(n)
    for unit in ("KiB", "MiB", "GiB"):
        value /= _KIB
        if value < _KIB:
            return f"{value:.1f} {unit}"
    return f"{value / _KIB:,.1f} TiB"


def count(n: int, what: str) -> str:
    """Return how many there are of something.

    >>> count(1, "commit"), count(1_200, "commit")
    ('1 commit', '1,200 commits')
    """
    return f"{n:,} {what}{'' if n == 1 else 's'}"
