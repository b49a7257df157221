"""Script: what a test feeds to a run in real time, entry by entry, and the clock of that run.

Tasks of a real-time run live in processes of their own for as long as the run does. So a test
writes what comes next to files, and the tasks read those: injected streams and the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from millrace.injectors.advance import Advance
from millrace.injectors.injector import Injector

_PROCESS = "script"


class _Entry(msgspec.Struct):
    """What is read at once: rows, and what the stream promises after them."""

    rows: list[list[Any]]
    low_watermark: int | None = None


class ScriptedStream(Injector):
    """An injector of one process that reads what a test has appended; an entry is an advance.

    Args:
        folder: For the entries, where driver and tasks find it. It is made.
        schema: Columns of the rows, as Spark writes them.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     words = ScriptedStream(Path(folder) / "words", "word string, at long")
    ...     words.append([("tea", 5)], low_watermark=7)
    ...     advance = words.advance("script", None)
    ...     advance, list(words.read("script", None, 1)), words.advance("script", 1)
    (Advance(offset=1, low_watermark=7), [('tea', 5)], Advance(offset=1, low_watermark=None))
    """

    def __init__(self, folder: Path, schema: str) -> None:
        self.schema = schema
        self._folder = folder
        self._appended = 0
        folder.mkdir(parents=True)

    def append(
        self, rows: Iterable[Sequence[Any]] = (), *, low_watermark: int | None = None
    ) -> None:
        """Let there be more to read.

        Args:
            rows: In order of the columns; values that JSON can say, instants as microseconds.
            low_watermark: What the stream promises after them, in microseconds.
        """
        entry = _Entry([list(row) for row in rows], low_watermark)
        _put(self._file(self._appended), msgspec.json.encode(entry))
        self._appended += 1

    def processes(self) -> list[str]:
        """Return the one process."""
        return [_PROCESS]

    def advance(self, process: str, offset: Any) -> Advance:
        """Go on by one entry, if it is there."""
        at = offset or 0
        file = self._file(at)
        return Advance(at + 1, _read(file).low_watermark) if file.exists() else Advance(at)

    def read(self, process: str, start: Any, end: Any) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of entries."""
        for at in range(start or 0, end):
            yield from map(tuple, _read(self._file(at)).rows)

    def _file(self, number: int) -> Path:
        return self._folder / f"{number:06}.json"


class ScriptedClock:
    """A wall clock that stands where a test has set it, in every process of a run.

    Args:
        file: Has the time, where driver and tasks find it. It is made.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     clock = ScriptedClock(Path(folder) / "clock")
    ...     clock.set(7)
    ...     clock()
    7
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)

    def __call__(self) -> int:
        """Return it, in microseconds."""
        return int(self._file.read_bytes())

    def set(self, to_us: int) -> None:
        """Set it."""
        _put(self._file, b"%d" % to_us)


def _read(file: Path) -> _Entry:
    return msgspec.json.decode(file.read_bytes(), type=_Entry)


def _put(file: Path, data: bytes) -> None:
    """Write a file that others may look for at any moment."""
    hidden = file.with_name(f".{file.name}")
    hidden.write_bytes(data)
    hidden.rename(file)
