"""Following: what an injector task reads from, a follower for each of its streams."""

from __future__ import annotations

import time

from millrace.injectors.follower import Follower, Taken
from millrace.plane.realtime.task_stats import TaskStats


class Following:
    """The followers of one injector task.

    Attributes:
        at: The stream that it is reading; "" if it reads none.
    """

    def __init__(self) -> None:
        self._followers: dict[str, Follower] = {}
        self._held: dict[str, frozenset[str]] = {}
        self.at = ""

    @property
    def streams(self) -> list[str]:
        """Whose rows it takes."""
        return list(self._followers)

    def open(self, stream: str, follower: Follower) -> None:
        """Take rows of a stream from now on."""
        self._followers[stream], self._held[stream] = follower, frozenset()

    def limit(self, rows: int) -> None:
        """Take no more rows of a stream at once."""
        for follower in self._followers.values():
            follower.limit(rows)

    def hold(self, stream: str, processes: frozenset[str]) -> None:
        """Take nothing of these processes of a stream, and of all others again."""
        if processes != self._held[stream]:
            self._held[stream] = processes
            self._followers[stream].hold(processes)

    def take(self, wait_s: float, stats: TaskStats) -> list[tuple[str, Taken]]:
        """Return what there is of each stream; wait for the first if there is nothing.

        Args:
            wait_s: How long to wait at the most.
            stats: Has its time counted there.
        """
        found: list[tuple[str, Taken]] = []
        for stream, follower in self._followers.items():
            self.at = stream
            found += [(stream, one) for one in follower.take(0)]
        if not found:
            began, cpu = time.perf_counter(), time.thread_time()
            found = self._wait(wait_s)
            stats.waited_s += time.perf_counter() - began
            stats.waited_cpu_s += time.thread_time() - cpu
        self.at = ""
        return found

    def _wait(self, wait_s: float) -> list[tuple[str, Taken]]:
        """Take of the first stream that has something."""
        if not self._followers:
            time.sleep(wait_s)  # or a task would spin where there are fewer processes than tasks
        for stream, follower in self._followers.items():
            self.at = stream
            if found := [(stream, one) for one in follower.take(wait_s / len(self._followers))]:
                return found
        return []

    def close(self) -> None:
        """Give back what they hold."""
        followers, self._followers = self._followers, {}
        for follower in followers.values():
            follower.close()
