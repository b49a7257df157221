"""The progress of a run where people look: one line on a terminal, or a line now and then in a log.

What is said is the run's; this only says it, on standard error, and never touches standard output.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

_log = logging.getLogger("millrace.progress")

#: Often enough to see in a log that it goes on, seldom enough to leave the log readable.
EVERY_S = 30.0

#: A person sees no more, and it costs a thousandth of a core.
_REDRAWN_PER_SECOND = 4


_SPARKS_BAR = "spark.ui.showConsoleProgress"


class Where(Enum):
    """Where progress is shown."""

    NOWHERE = "nowhere"
    #: A line that is drawn again while somebody waits for the run.
    TERMINAL = "terminal"
    #: The same, and below it a table of the computations.
    TABLE = "table"
    #: As on a terminal, and the line below it is Spark's, for the bar that it draws there.
    ABOVE_SPARK = "above Spark's"
    #: Python's logging, or, where nobody has set that up, standard error.
    STDERR = "stderr"
    #: Python's logging alone.
    LOG = "log"


def where_to_show(progress: bool | str, spark: Any, console: Console | None = None) -> Where:
    """Return where progress is to be shown.

    Args:
        progress: Whether the user wants any; "table" for a table, too, where there is room.
        spark: The session. Where nobody has told it otherwise it draws a bar on standard error for
            each of its stages, and two that draw on one line leave nothing that can be read.
        console: Of standard error; for tests.
    """
    if not progress:
        return Where.NOWHERE
    console = console or stderr_console()
    if console.is_jupyter:
        return Where.LOG  # a thread's lines would turn up in whatever cell runs then
    if console.is_interactive and console.file.isatty():
        spark_draws = spark.conf.get(_SPARKS_BAR, "false") == "true"
        if spark_draws:
            return Where.ABOVE_SPARK
        return Where.TABLE if progress == "table" else Where.TERMINAL
    return Where.STDERR


def stderr_console(file: Any = None) -> Console:
    """Return standard error as a console that leaves what others print through it as it is."""
    return Console(
        file=file, stderr=True, soft_wrap=True, highlight=False, markup=False, emoji=False
    )


class ProgressDisplay:
    """Shows a line that changes.

    Args:
        line: What to say now. A thread calls it four times a second, so it takes no locks and asks
            nobody.
        where: Where to.
        table: What to draw below it in so many columns and lines, where that is wanted.
        facts: The same for programs: what a record of the log has besides the line.
        console: Of standard error; for tests.
        going: Whether there is still something to tell; a thread asks before each line of a log.
        pause: Wait for so many seconds, and return whether it is over; by default until
            :meth:`finish`.
    """

    def __init__(
        self,
        line: Callable[[], str],
        where: Where,
        *,
        table: Callable[[int, int], RenderableType] | None = None,
        facts: Callable[[], dict[str, Any]] = dict,
        console: Console | None = None,
        going: Callable[[], bool] = lambda: True,
        pause: Callable[[float], bool] | None = None,
    ) -> None:
        self._line = line
        self._where = where
        self._table = table
        self._facts = facts
        self._draws = where in (Where.TERMINAL, Where.TABLE, Where.ABOVE_SPARK)
        self._console = console or stderr_console()
        self._going = going
        self._finishing = threading.Lock()
        self._drawing = threading.Lock()
        self._over = threading.Event()
        self._pause = pause or self._over.wait
        # Frames of ASCII: not every terminal has others.
        self._spinner = Spinner("line")

    def start(self) -> None:
        """Say a line now and then, where there is no terminal to draw on."""
        if self._where in (Where.STDERR, Where.LOG):
            threading.Thread(target=self.report, name="millrace-progress", daemon=True).start()

    @contextmanager
    def live(self) -> Iterator[None]:
        """Keep the line drawn on a terminal while the block runs; then it is gone.

        What is printed meanwhile stands above it. Where something of the program's own is drawn by
        rich, that stays alone.
        """
        drawn_on = isinstance(sys.stdout, FileProxy) or isinstance(sys.stderr, FileProxy)
        if not self._draws or drawn_on or self._over.is_set():
            yield
            return
        if not self._drawing.acquire(blocking=False):  # another thread waits for the run, too
            yield
            return
        with (
            self._released(),
            Live(
                console=self._console,
                get_renderable=self._drawn,
                refresh_per_second=_REDRAWN_PER_SECOND,
                transient=True,
                # What goes into a pipe or a file goes there as it would without this.
                redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
            ),
        ):
            yield

    @contextmanager
    def _released(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._drawing.release()

    def report(self) -> None:
        """Say a line, and again after each pause, until it is over."""
        while not self._pause(EVERY_S):
            if not self._going():
                self.finish()
                return
            self._say(self._line())

    def finish(self, line: str | None = None) -> None:
        """Say the last line, once, however often this is called."""
        with self._finishing:
            if self._over.is_set():
                return
            self._over.set()
        if self._draws:
            with suppress(OSError, ValueError):  # it was closed
                self._console.print(line or self._line())
        elif self._where is not Where.NOWHERE:
            self._say(line or self._line())

    def _say(self, line: str) -> None:
        if self._where is Where.LOG or _log.hasHandlers():
            if _log.isEnabledFor(logging.INFO):
                said = {"event": "progress", **self._facts()}
                _log.info("%s", line, extra={"millrace": said})
        elif _log.isEnabledFor(logging.WARNING):
            # Nobody has set up logging, which then shows warnings only; this is none.
            now = dt.datetime.now(dt.UTC)
            with suppress(OSError, ValueError):
                print(f"{now:%Y-%m-%dT%H:%M:%SZ} {line}", file=self._console.file, flush=True)

    def _drawn(self) -> RenderableType:
        text = Text(self._line())
        text.truncate(max(1, self._console.width - 3), overflow="crop")
        self._spinner.update(text=text)
        if self._where is Where.TABLE and self._table is not None:
            # Two lines are above it, and the cursor stands below.
            size = self._console.size
            return Group(self._spinner, "", self._table(size.width, size.height - 3))
        return Group(self._spinner, "") if self._where is Where.ABOVE_SPARK else self._spinner
