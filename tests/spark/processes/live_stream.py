"""A stream that goes on while the drivers of a pipeline in real time come and go."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.processes.live_pipeline import KEYS, Numbers, passed, wanted

PROGRAM = Path(__file__).with_name("live_chaos.py")
#: Rows a second, of each of two processes.
RATE = 50
#: The input ends so much later than is decided.
ENDS_S = 3
#: Where nothing was seen for so long, the session was away.
AWAY_S = 1.0


class LiveStream:
    """Input, checkpoint and outputs, and the drivers.

    Args:
        root: A folder.
        program: Starts a driver.
        settings: Master, and more of Spark's settings and of the run's options; after how many
            seconds the run is remapped, again and again, if it is.
    """

    def __init__(
        self,
        root: Path,
        program: Callable[[Path, Path], Any],
        *,
        master: str,
        conf: dict[str, str] | None = None,
        options: dict[str, Any] | None = None,
        remaps: float = 0,
    ) -> None:
        self.root = root
        self._program = program
        self.drivers: list[Any] = []
        self._missing: set[tuple[int, int]] = set()
        for name in ("seen", "work"):
            (root / name).mkdir()
        settings = {
            "master": master,
            "rate": RATE,
            "conf": conf or {},
            "options": options or {},
            "remaps": remaps,
        }
        (root / "settings.json").write_text(json.dumps(settings))

    @property
    def driver(self) -> Any:
        """The one that was started last."""
        return self.drivers[-1]

    def start(self) -> None:
        """Start a driver; the stream begins with the first."""
        if not self.drivers:
            (self.root / "began").touch()
        folder = self.root / f"driver-{len(self.drivers)}"
        folder.mkdir()
        self.drivers.append(self._program(PROGRAM, folder))

    def log(self) -> str:
        """Return what all drivers have said."""
        return "".join(driver.output() for driver in self.drivers)

    def pythons(self) -> list[int]:
        """Return all Python processes of the executors: workers, and what they are forked from."""
        return self.driver.find("millrace.spark.daemon\0pyspark.worker")

    def workers(self) -> list[int]:
        """Return the processes that have had something to do within the last second, and live."""
        files = list((self.root / "work").iterdir())
        newest = max(file.stat().st_mtime for file in files)
        at_work = {int(file.name) for file in files if file.stat().st_mtime > newest - 1}
        return sorted(at_work & set(self.pythons()))

    # -- what was seen -----------------------------------------------------------------------------

    def seen(self, since: float) -> list[tuple[float, int]]:
        """Return when rows were seen, and the highest count, in order; from an instant on."""
        found = []
        for file in (self.root / "seen").iterdir():
            if file.stat().st_mtime >= since:
                for line in file.read_text().splitlines(keepends=True):
                    if line.endswith("\n"):
                        at, count = line.split()
                        found.append((float(at), int(count)))
        return sorted(one for one in found if one[0] >= since)

    def back(self, killed: float) -> float | None:
        """Return when a row that is new was seen after a session that was killed; None if not yet.

        What was on its way may be seen a moment after the kill; then nothing for over a second.
        """
        last, newest = killed, 0
        for at, count in self.seen(killed - 5):
            if at > killed and at - last > AWAY_S and count > newest:
                return at
            if at <= killed or at - last <= AWAY_S:
                last, newest = max(last, at), max(newest, count)
        return None

    def wait_until_back(self, killed: float, seconds: float = 180) -> float:
        """Return how long after an instant a new row was seen."""
        deadline = time.monotonic() + seconds
        while (at := self.back(killed)) is None:
            assert self.driver.alive(), self.driver.output()
            assert time.monotonic() < deadline, self.driver.output()
            time.sleep(0.1)
        return at - killed

    # -- the outputs -------------------------------------------------------------------------------

    def check_so_far(self) -> int:
        """Fail if a row is there twice, or is still missing; return how many there are.

        Marks stop nothing: what came from a task that had passed one may be seen before what came
        from one that had not. So a row may be missing behind others once, and not twice.
        """
        found = passed(self.root / "out")
        highest: dict[int, int] = {}
        for key, count in found:
            highest[key] = max(highest.get(key, 0), count)
        right = Counter((key, n) for key, last in highest.items() for n in range(1, last + 1))
        missing = set(right - found)
        assert not found - right, self._wrong(found, right)
        assert not missing & self._missing, self._wrong(found, right)
        self._missing = missing
        return found.total()

    def finish(self) -> int:
        """End the input soon; check everything; return how many rows it had."""
        # Nothing may have been read beyond the end, however long it takes to say it.
        seconds = time.time() - (self.root / "began").stat().st_mtime + ENDS_S
        each = int(seconds * RATE) // KEYS * KEYS
        Numbers(self.root / "limit").allow(each)
        assert self.driver.process.wait(300) == 0, self.driver.output()
        found = passed(self.root / "out")
        assert found == wanted(each), self._wrong(found, wanted(each))
        return found.total()

    def _wrong(self, found: Counter[Any], right: Counter[Any]) -> str:
        missing, more = right - found, found - right
        return f"missing: {sorted(missing)[:20]}, too many: {sorted(more)[:20]}\n{self.log()}"

    def end(self) -> None:
        """Leave no process behind."""
        for driver in self.drivers:
            driver.end()
