"""The progress of a run where people look: one line on a terminal, or a line now and then in a log.

What is said is the run's; this only says it, on standard error, and never touches standard output.

Where it is asked for, a table of the computations is drawn with the line. In a notebook a run is a
cell that goes on with it.
"""

from __future__ import annotations

import datetime as dt
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.file_proxy import FileProxy
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from millrace.model.time import SECOND
from millrace.spark.plain_text import in_words
from millrace.spark.status import Status

_log = logging.getLogger("millrace.progress")

#: Often enough to see in a log that it goes on, seldom enough to leave the log readable.
EVERY_S = 30.0

#: A person sees no more, and it costs a thousandth of a core.
_REDRAWN_PER_SECOND = 4


_SPARKS_BAR = "spark.ui.showConsoleProgress"


class ProgressTarget(Enum):
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


def where_to_show(
    progress: bool | str, spark: Any, console: Console | None = None
) -> ProgressTarget:
    """Return where progress is to be shown.

    Args:
        progress: Whether the user wants any; "table" for a table, too, where there is room.
        spark: The session. Where nobody has told it otherwise it draws a bar on standard error for
            each of its stages, and two that draw on one line leave nothing that can be read.
        console: Of standard error; for tests.
    """
    if not progress:
        return ProgressTarget.NOWHERE
    console = console or stderr_console()
    if console.is_jupyter:
        return ProgressTarget.LOG  # a thread's lines would turn up in whatever cell runs then
    if console.is_interactive and console.file.isatty():
        spark_draws = spark.conf.get(_SPARKS_BAR, "false") == "true"
        if spark_draws:
            return ProgressTarget.ABOVE_SPARK
        return ProgressTarget.TABLE if progress == "table" else ProgressTarget.TERMINAL
    return ProgressTarget.STDERR


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
        where: ProgressTarget,
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
        self._draws = where in (
            ProgressTarget.TERMINAL,
            ProgressTarget.TABLE,
            ProgressTarget.ABOVE_SPARK,
        )
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
        if self._where in (ProgressTarget.STDERR, ProgressTarget.LOG):
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
        elif self._where is not ProgressTarget.NOWHERE:
            self._say(line or self._line())

    def _say(self, line: str) -> None:
        if self._where is ProgressTarget.LOG or _log.hasHandlers():
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
        if self._where is ProgressTarget.TABLE and self._table is not None:
            # Two lines are above it, and the cursor stands below.
            size = self._console.size
            return Group(self._spinner, "", self._table(size.width, size.height - 3))
        return (
            Group(self._spinner, "") if self._where is ProgressTarget.ABOVE_SPARK else self._spinner
        )


#: It is put together anew no more often.
_EVERY_S: Final = 1.0
#: A rate is that since so long ago, or longer: epochs come in steps.
_RATE_S: Final = 5.0
#: Columns that numbers take beside a name, and the least that a name takes.
_NUMBERS_WIDE: Final = 62
_NAME_LEAST: Final = 12
#: Lines beside those of computations: the header, and what says how many have none.
_BESIDE: Final = 3


class LiveTable:
    """Makes the table: a line a computation.

    Args:
        status: Returns where the run stands; any thread may call it.
        clock: Returns seconds.
    """

    def __init__(
        self, status: Callable[[], Status], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._status = status
        self._clock = clock
        self._made: Table | None = None
        self._made_at = 0.0
        self._before: list[tuple[float, Mapping[str, int]]] = []

    def table(self, width: int, lines: int) -> Table:
        """Return the table as of now, or a moment ago.

        What is taller than a terminal cannot be drawn over. Where not all computations have room,
        those in most trouble have it: that hang, that have dead letters, that are furthest behind.

        Args:
            width: How many columns there are.
            lines: How many lines.
        """
        now = self._clock()
        if self._made is None or now - self._made_at >= _EVERY_S:
            self._made, self._made_at = self._new(now, width, lines), now
        return self._made

    def _new(self, now: float, width: int, lines: int) -> Table:
        status = self._status()
        rates = self._rates(
            {name: counters.records for name, counters in status.counters.items()}, now
        )
        stuck = Counter(one.computation for one in status.stuck)
        behind = {name: status.behind(status.low_watermarks[name]) for name in status.counters}

        def trouble(name: str) -> tuple[float, ...]:
            lag = behind[name]
            dead = status.counters[name].dead_letters
            return stuck[name], bool(dead), -1.0 if lag is None else lag

        room = len(status.counters)
        if room > lines - 1:
            room = max(1, lines - _BESIDE)
        worst = set(sorted(status.counters, key=trouble, reverse=True)[:room])
        table = Table(box=None, pad_edge=False, header_style="dim", caption_justify="left")
        table.add_column("computation", no_wrap=True)
        for column in ("records/s", "behind", "late", "dead letters", "stuck"):
            table.add_column(column, justify="right", no_wrap=True)
        for name, counters in status.counters.items():
            if name not in worst:
                continue
            said = Text(name)  # no markup: it is the user's
            said.truncate(max(_NAME_LEAST, width - _NUMBERS_WIDE), overflow="ellipsis")
            lag = behind[name]
            table.add_row(
                said,
                f"{rates.get(name, 0.0):,.0f}",
                "-" if lag is None else in_words(round(lag * SECOND)),
                _count_text(counters.late, "yellow"),
                _count_text(counters.dead_letters, "red"),
                _count_text(stuck[name], "bold red"),
            )
        if others := len(status.counters) - len(worst):
            table.caption = Text(f"and {others} in less trouble: `millrace status` has all")
        return table

    def _rates(self, records: Mapping[str, int], now: float) -> dict[str, float]:
        """Return computation -> records a second, lately."""
        self._before.append((now, records))
        while len(self._before) > 2 and now - self._before[1][0] >= _RATE_S:
            del self._before[0]
        since, earlier = self._before[0]
        if now == since:
            return {}
        return {name: (n - earlier.get(name, 0)) / (now - since) for name, n in records.items()}


def _count_text(n: int, style: str) -> Text:
    return Text(f"{n:,}", style=style if n else "dim")


class LiveCell:
    """Shows a run in a cell of a notebook, and draws it again while the run goes on.

    One cell lives: where it is shown again the new one does, and the old one stays as it was.

    Args:
        status: Returns where the run stands; any thread may call it.
        going: Whether the run goes on; any thread may call it.
        pause: Waits for so many seconds.
    """

    def __init__(
        self,
        status: Callable[[], Status],
        going: Callable[[], bool],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._status = status
        self._going = going
        self._pause = pause
        self._lock = threading.Lock()
        self._cell: Any = None
        self._follows = False

    def show(self) -> None:
        """Draw it in the cell that runs now.

        Raises:
            NotImplementedError: There is no notebook. IPython then takes the ``repr``.
        """
        if not _in_notebook():
            raise NotImplementedError
        from IPython.display import display

        going = self._going()
        with self._lock:
            self._cell = display(_bundle(self._status()), raw=True, display_id=True)
            if self._follows or not going:
                return
            self._follows = True
        threading.Thread(target=self._follow, name="millrace-cell", daemon=True).start()

    def _follow(self) -> None:
        going, drawn = True, dict[str, str]()
        while going:
            self._pause(_EVERY_S)
            going = self._going()
            try:
                bundle = _bundle(self._status())
            except Exception:  # noqa: BLE001  nothing depends on it
                _log.warning("the cell of a notebook is not drawn any more", exc_info=True)
                going, bundle = False, drawn
            with self._lock:
                self._follows = going
                if bundle != drawn:
                    self._cell.update(bundle, raw=True)
            drawn = bundle


def _in_notebook() -> bool:
    """Return whether an IPython is there that can draw a cell again; a terminal's cannot."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and type(shell).__name__ != "TerminalInteractiveShell"


def _bundle(status: Status) -> dict[str, str]:
    return {"text/plain": str(status), "text/html": status._repr_html_()}
