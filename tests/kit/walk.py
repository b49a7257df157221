"""The way of one record: which modules it passes through, in the Harness and on both planes.

Run as ``python -m tests.kit.walk``. A record of a warm pipeline (it is not the first one) goes from
a source through a windowed count to a sink, and Python's profiler says which functions of Millrace
are called meanwhile. What is called for the mark or the end of the epoch that the record is in
belongs to its way. ``--all`` prints the functions, too; ``--write`` writes the ways into
docs/walk.md.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

import millrace as mr
from tests.live import Feeds, InEpochs, Kept, Live

_PACKAGE = Path(mr.__file__).parent
#: What shows the ways, and the lines around them there.
PAGE = Path(__file__).parents[2] / "docs" / "walk.md"
BEGINS, ENDS = "<!-- python -m tests.kit.walk --write -->", "<!-- end of the walk -->"


class Walk:
    """The calls that a record has made.

    Attributes:
        calls: (module, function) of each call, in order. A module is named from the package on,
            with dots: ``kernel.machine``.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._modules: dict[str, str | None] = {}

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Note what this thread calls, and what it goes on with, in the package."""
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and (module := self._module(frame.f_code.co_filename)) is not None:
            self.calls.append((module, frame.f_code.co_qualname))

    def _module(self, file: str) -> str | None:
        if file not in self._modules:
            path = Path(file)
            inside = path.is_relative_to(_PACKAGE)
            name = ".".join(path.relative_to(_PACKAGE).with_suffix("").parts) if inside else None
            self._modules[file] = name
        return self._modules[file]

    def modules(self) -> dict[str, list[str]]:
        """Return the modules in the order in which they are entered, and their functions."""
        modules: dict[str, dict[str, None]] = {}
        for module, function in self.calls:
            modules.setdefault(module, {})[function] = None
        return {module: list(functions) for module, functions in modules.items()}

    def changes(self) -> int:
        """Return how often a call is of another module than the call before."""
        modules = [module for module, _ in self.calls]
        return sum(one != other for one, other in itertools.pairwise(modules))

    def text(self, title: str, *, functions: bool = False) -> str:
        """Return the way by folder: each line is a folder, and its modules in order."""
        modules, lines = self.modules(), [""]
        lines[0] = f"{title}: {len(modules)} modules, {self.changes()} changes of module"
        if functions:
            return "\n".join([*lines, *(f"    {m}: {', '.join(of)}" for m, of in modules.items())])
        folder = None
        for module in modules:
            above, _, name = module.rpartition(".")
            if above != folder:
                folder = above
                lines.append(f"    {above or 'millrace'}: {name}")
            else:
                lines[-1] += f", {name}"
        return "\n".join(lines)


class Event(msgspec.Struct):
    """What comes in."""

    word: str
    at: int


def _pipeline(source: Any = None, sink: Any = None) -> mr.Pipeline:
    p = mr.Pipeline("walk")
    policy = mr.BoundedDelay("1 s")
    given = {"timestamp": "at", "low_watermark": policy} if source is not None else {}
    words = p.inject("words", source, format=Event, **given)
    words.key_by("word").window(mr.FixedWindows("1 s")).count().to("counts")
    if sink is not None:
        p.sink("counts", sink)
    return p


_ROWS = [("a", 1_000_000), ("a", 1_500_000), ("a", 9_000_000), ("a", 9_500_000)]


def _feeds() -> Feeds:
    return Feeds("word string, at long", {"p": _ROWS})


def in_the_harness() -> Walk:
    """Return the way of a record that the Harness injects, and of the pane that it closes."""
    walk = Walk()
    with mr.testing.Harness(_pipeline()) as h:
        h.inject("words", [(Event(*row), row[1]) for row in _ROWS[:2]])
        with walk.traced():
            h.inject("words", [(Event(*_ROWS[2]), _ROWS[2][1])])
            h.advance_watermark("words", 8_000_000)
        assert h.outputs("counts") != []
    return walk


def by_epochs() -> Walk:
    """Return the way of a record, and in the epoch after it of the pane that it closes."""
    kept = Kept()
    live = Live(_pipeline(_feeds(), kept), tasks=1, intervals=1)
    epochs, walk = InEpochs(live), Walk()
    live.feed(2)
    epochs.run(live.clock_us)
    live.feed(3)
    with walk.traced():
        epochs.run(live.clock_us)
        epochs.run(live.clock_us)
    assert kept.rows != []
    return walk


def in_real_time() -> Walk:
    """Return the way of a record through tasks that do not end, and of the pane that it closes."""
    kept = Kept()
    live, walk = Live(_pipeline(_feeds(), kept), tasks=1, intervals=1), Walk()
    live.boot()
    live.feed(2)
    live.plane.settle(live.clock_us)
    live.feed(3)
    later_us = live.clock_us + mr.SECOND
    with walk.traced():
        live.plane.settle(later_us)
    live.finish()
    assert kept.rows != []
    return walk


WALKS: dict[str, Callable[[], Walk]] = {
    "in the Harness": in_the_harness,
    "by epochs": by_epochs,
    "in real time": in_real_time,
}


def told(*, functions: bool = False) -> str:
    """Return all ways."""
    return "\n\n".join(walk().text(title, functions=functions) for title, walk in WALKS.items())


def page(text: str) -> str:
    """Return a document with the ways as they are now, between the lines that part them off."""
    before, rest = text.split(BEGINS)
    after = rest.split(ENDS)[1]
    return f"{before}{BEGINS}\n```text\n{told()}\n```\n{ENDS}{after}"


def main() -> None:
    """Print the way of a record through the Harness and on both planes."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--all", action="store_true", help="functions, too")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    given = parser.parse_args()
    if given.write:
        PAGE.write_text(page(PAGE.read_text()))
    print(told(functions=given.all))  # noqa: T201


if __name__ == "__main__":
    main()
