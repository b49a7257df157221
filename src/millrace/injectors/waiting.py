"""Waiting: asks sources beside a run, now and then, how much waits in them."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from millrace.compile.topology import Topology
from millrace.injectors.advance import Advances
from millrace.injectors.backlog import Backlog
from millrace.injectors.injector import Injector
from millrace.windmill.place import Place

_log = logging.getLogger("millrace")

#: How often a source is asked; one that takes long, so rarely that it is a hundredth of the time.
_EVERY_S: Final = 5.0
_SHARE: Final = 0.01

#: Injected stream -> process -> where it stands.
Places = Mapping[str, Mapping[str, Place]]


class Waiting:
    """Asks in a thread of its own, so that a source that does not answer holds up nobody.

    Each source has its thread: one that hangs is not waited for by others either. Where no source
    can tell there is none.

    Args:
        sources: Injected stream -> returns what waits in its source; None if that cannot be told.
    """

    def __init__(self, sources: Mapping[str, Callable[[], Backlog | None]]) -> None:
        self._sources = dict(sources)
        self._found: dict[str, Backlog] = {}
        self._closed = threading.Event()

    def add(self, sources: Mapping[str, Callable[[], Backlog | None]]) -> None:
        """Ask these, too; before it is started."""
        self._sources |= sources

    def start(self) -> None:
        """Begin to ask."""
        for stream in self._sources:
            threading.Thread(
                target=self._follow, args=(stream,), name=f"millrace-backlog-{stream}", daemon=True
            ).start()

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def now(self) -> dict[str, Backlog]:
        """Return injected stream -> what waits in its source, of those that could tell lately."""
        return dict(self._found)

    def ask(self, stream: str) -> None:
        """Ask a source once."""
        try:
            found = self._sources[stream]()
        except Exception as error:  # noqa: BLE001  whoever reads the source says what is wrong
            _log.debug("stream %r does not say how much waits: %s", stream, error)
            found = None
        # Another thread may look: a dict is replaced, and not changed.
        others = {name: one for name, one in self._found.items() if name != stream}
        self._found = others if found is None else others | {stream: found}

    def _follow(self, stream: str) -> None:
        while not self._closed.is_set():
            began = time.monotonic()
            self.ask(stream)
            self._closed.wait(max(_EVERY_S, (time.monotonic() - began) / _SHARE))


def asking(
    topology: Topology, places: Callable[[], Places]
) -> dict[str, Callable[[], Backlog | None]]:
    """Return how injectors are asked, of those that say how much waits.

    Args:
        topology: The pipeline.
        places: Returns how far their processes were read.
    """

    def asks(stream: str, injector: Injector) -> Callable[[], Backlog | None]:
        # Another thread reads it, maybe now: connections are its own, as in a worker.
        mine = copy.copy(injector)
        return lambda: backlog_of(mine, places().get(stream, {}))

    sources = {one.name: one.injection and one.injection.source for one in topology.injected()}
    return {
        stream: asks(stream, source)
        for stream, source in sources.items()
        if isinstance(source, Injector) and type(source).backlog is not Injector.backlog
    }


def backlog_of(injector: Injector, places: Mapping[str, Place]) -> Backlog | None:
    """Return what waits in all processes of an injector; None if one cannot tell.

    Args:
        injector: Is asked for its processes, and what waits in each.
        places: Process -> where it stands; one that is not there was not read at all.
    """
    found = []
    for process in injector.processes():
        standing = Advances.of(places.get(process, Place(0)).offset)
        backlog = injector.backlog(process, standing.start)
        if backlog is None:
            return None
        if backlog.records is not None:
            backlog = backlog._replace(records=max(0, backlog.records - standing.rows))
        found.append(backlog)
    return Backlog.together(found) if found else None
