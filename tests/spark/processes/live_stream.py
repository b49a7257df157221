"""A stream that goes on while the drivers of a pipeline in real time come and go."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.processes.live_pipeline import (
    KEYS,
    Numbers,
    passed,
    rows_after,
    seconds_of,
    wanted,
)
from tests.spark.processes.mixes import MIXES, SHARE, Mix, rows_of

PROGRAM = Path(__file__).with_name("live_chaos.py")
#: What a driver says when its run has begun.
BEGUN = "the run of this driver has begun"
#: The input ends so much later than is decided.
ENDS_S = 3


class LiveStream:
    """Input, checkpoint and outputs, and the drivers.

    What checkpoint and outputs are in is the folder ``disk``.

    Args:
        root: A folder.
        program: Starts a driver.
        master: Of Spark.
        conf: More of Spark's settings.
        options: Of the run.
        remaps: After how many seconds the run is remapped, again and again; 0: it is not.
        scales: After how many seconds others take over, of two tasks a level and of one, again and
            again; 0: they stay two.
        updates: After how many seconds a changed pipeline takes over, again and again; 0: none.
        mixes: Names of those that the pipeline has beside the numbers.
        conninfo: Of a PostgreSQL server.
        environment: Variables of the drivers.
        lease: Term of the lease that drivers ask for; "" for none.
        filled: Whether a task that does nothing has a slot, too.

    Attributes:
        drivers: All that there ever were.
        waiting: One that waits for the lease, if there is one.
        take_overs: How often one that waited went on.
        executors: The process with the executors' Python processes, where it is not the driver.
    """

    waiting: Any = None
    take_overs = 0
    executors: Any = None

    def __init__(
        self,
        root: Path,
        program: Callable[..., Any],
        *,
        master: str,
        conf: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
        remaps: float = 0,
        scales: float = 0,
        updates: float = 0,
        mixes: list[str] | None = None,
        conninfo: str = "",
        environment: dict[str, str] | None = None,
        lease: str = "",
        filled: bool = False,
    ) -> None:
        self.root = root
        self.options = dict(options or {})
        self.mixes: list[Mix] = [MIXES[name](root, conninfo) for name in mixes or ()]
        self.lease = lease
        self._program = program
        self._environment = environment or {}
        self.drivers: list[Any] = []
        self._missing: set[tuple[int, int]] = set()
        for name in ("seen", "work", "disk"):
            (root / name).mkdir(exist_ok=True)
        settings = {
            "master": master,
            "conf": conf or {},
            "options": self.options,
            "remaps": remaps,
            "scales": scales,
            "updates": updates,
            "mixes": mixes or [],
            "conninfo": conninfo,
            "lease": lease,
            "filled": filled,
        }
        (root / "settings.json").write_text(json.dumps(settings))

    @property
    def driver(self) -> Any:
        """The one whose run goes on, or is to; one that waited is it as soon as it runs."""
        if self.waiting is not None and BEGUN in self.waiting.output():
            self._driver, self.waiting = self.waiting, None
            self.take_overs += 1
        return self._driver

    def start(self, **how: Any) -> None:
        """Start a driver; the stream begins with the first."""
        if not self.drivers:
            (self.root / "began").write_text(repr(time.monotonic()))
        self._driver = self._start(**how)

    def start_waiting(self) -> None:
        """Start a driver that waits for the lease, if none does."""
        if self.waiting is None or not self.waiting.alive():
            self.waiting = self._start()

    def _start(self, **how: Any) -> Any:
        folder = self.root / f"driver-{len(self.drivers)}"
        folder.mkdir()
        self.drivers.append(self._program(PROGRAM, folder, **self._environment, **how))
        return self.drivers[-1]

    def wait_until_waiting(self, seconds: float = 60) -> None:
        """Wait until a driver waits with all its tasks, though not for ever."""
        deadline = time.monotonic() + seconds
        while self.driver and self.waiting is not None and time.monotonic() < deadline:
            if "all tasks are started, and wait for the lease" in self.waiting.output():
                return
            time.sleep(0.2)

    def wait_until_taken_over(self, seconds: float = 180) -> None:
        """Wait until the driver that waits runs."""
        waiting, deadline = self.waiting, time.monotonic() + seconds
        while self.driver is not waiting:
            assert waiting.alive(), waiting.output()
            assert time.monotonic() < deadline, waiting.output()
            time.sleep(0.1)

    def wait_for_standby(self, seconds: float = 60) -> None:
        """Wait until a standby is ready, though not for ever: an executor may be away."""
        told = ("a standby is ready", "the standby takes over", "the standby has failed")
        told, deadline = (*told, "and another begins in"), time.monotonic() + seconds
        while time.monotonic() < deadline:
            lines = [line for line in self.log().splitlines() if any(one in line for one in told)]
            if lines and told[0] in lines[-1]:
                return
            time.sleep(0.2)

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Wait until the driver that was started last has said something."""
        driver, deadline = self.drivers[-1], time.monotonic() + seconds
        while words not in driver.output():
            assert driver.alive(), driver.output()
            assert time.monotonic() < deadline, driver.output()
            time.sleep(0.1)

    def log(self) -> str:
        """Return what all drivers have said."""
        return "".join(driver.output() for driver in self.drivers)

    def pythons(self) -> list[int]:
        """Return all Python processes of the executors: workers, and what they are forked from."""
        return (self.executors or self.driver).find("millrace.spark.daemon\0pyspark.worker")

    def workers(self) -> list[int]:
        """Return the driver's processes that have had something to do lately, and live."""
        return sorted(self.at_work() & set(self.pythons()))

    def at_work(self) -> set[int]:
        """Return the processes of all hosts that had something to do within the last second."""
        files = list((self.root / "work").iterdir())
        newest = max(file.stat().st_mtime for file in files)
        return {int(file.name) for file in files if file.stat().st_mtime > newest - 1}

    # -- what was seen -----------------------------------------------------------------------------

    def wait_until_back(self, since: float, seconds: float = 240) -> float:
        """Wait for rows of all keys that came after an instant, which is now; return how long.

        The keys are those of several tasks, at each level: so all tasks are there again.
        """
        deadline = time.monotonic() + seconds
        # Of those that were there, both processes together.
        before = 2 * rows_after(since - float((self.root / "began").read_text())) // KEYS
        places = {file: file.stat().st_size for file in (self.root / "seen").iterdir()}
        first: dict[int, float] = {}
        while len(first) < KEYS:
            assert self.driver.alive() or self.waiting is not None, self.driver.output()
            assert time.monotonic() < deadline, self.driver.output()
            time.sleep(0.1)
            for file in (self.root / "seen").iterdir():
                for at, key, count in self._seen(file, places):
                    if count > before + 2:
                        first.setdefault(key, at)
        return max(first.values()) - since

    @staticmethod
    def _seen(file: Path, places: dict[Path, int]) -> list[tuple[float, int, int]]:
        """Return when rows of which key were seen, and the highest count, since the last look."""
        with file.open() as opened:
            opened.seek(places.get(file, 0))
            whole, end, _ = opened.read().rpartition("\n")
        places[file] = places.get(file, 0) + len(whole) + len(end)
        fields = (line.split() for line in whole.splitlines())
        return [(float(at), int(key), int(count)) for at, key, count in fields]

    # -- the outputs -------------------------------------------------------------------------------

    def check_so_far(self) -> int:
        """Fail if a row is there twice, or is still missing; return how many there are.

        Marks stop nothing: what came from a task that had passed one may be seen before what came
        from one that had not. So a row may be missing behind others once, and not twice.
        """
        found = passed(self.root / "disk" / "out")
        highest: dict[int, int] = {}
        for key, count in found:
            highest[key] = max(highest.get(key, 0), count)
        right = Counter((key, n) for key, last in highest.items() for n in range(1, last + 1))
        missing = set(right - found)
        assert not found - right, self._wrong("passed", found, right)
        assert not missing & self._missing, self._wrong("passed", found, right)
        self._missing = missing
        for mix in self.mixes:
            for sink in mix.sinks:
                ids = Counter(row["_id"] for row in rows_of(self.root / "disk" / sink))
                assert ids.total() == len(ids), f"of {sink}, {ids.total() - len(ids)} twice"
        return found.total()

    def finish(self) -> int:
        """End the input soon; check everything; return how many rows the sinks have."""
        # Nothing may have been read beyond the end, however long it takes to say it.
        seconds = seconds_of(self.root) + ENDS_S
        # Of keys, and of what mixes read, there is no part.
        rows = rows_after(seconds) // (KEYS * SHARE) * (KEYS * SHARE)
        Numbers(self.root / "limit").allow(rows)
        self._wait_for_end()
        found = passed(self.root / "disk" / "out")
        assert found == wanted(rows), self._wrong("passed", found, wanted(rows))
        seen = found.total()
        for mix in self.mixes:
            outputs, right = mix.found(), mix.expected(rows // SHARE)
            assert outputs.keys() == right.keys()
            for sink in right:
                if outputs[sink] != right[sink]:
                    raise AssertionError(self._wrong(sink, outputs[sink], right[sink]))
                seen += outputs[sink].total()
        return seen

    def _wait_for_end(self, seconds: float = 300) -> None:
        """Wait for the end of the run, with which all drivers have ended."""
        deadline = time.monotonic() + seconds
        while self.driver.alive() or (self.driver.process.returncode and self.waiting is not None):
            assert time.monotonic() < deadline, self.driver.output()
            time.sleep(0.1)
        assert self.driver.process.returncode == 0, self.driver.output()
        for driver in self.drivers:
            left = max(1.0, deadline - time.monotonic())
            assert driver.process.wait(left) or driver is self.driver, driver.output()
        if self.waiting is not None:
            assert "LeaseReleased" in self.waiting.output(), self.waiting.output()

    def _wrong(self, sink: str, found: Counter[Any], right: Counter[Any]) -> str:
        missing, more = right - found, found - right
        some = f"missing: {sorted(missing)[:20]}, too many: {sorted(more)[:20]}"
        logs = " ".join(str(driver.log) for driver in self.drivers)
        return f"{sink}: {missing.total()} missing, {more.total()} too many; {some}; see {logs}"

    def end(self) -> None:
        """Leave no process behind."""
        for driver in self.drivers:
            driver.end()
