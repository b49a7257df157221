"""What the dashboard answers: its page, what the page shows, and requests to the run.

What is kept of a key, for the search box.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from millrace.dashboard.panes import panes_of
from millrace.dashboard.plain import cut, key_shown, millis, shown
from millrace.dashboard.pulse import RunQuery
from millrace.dashboard.watcher import Watcher
from millrace.inspect import Checkpoint, ComputationInspection, WindowState, keys_of
from millrace.model.errors import MillraceError, StoreError
from millrace.store import HardState

#: Entries of a map, timers and holds: more are for ``millrace state get``.
_ROWS_MAX: Final = 200


def key_state(checkpoint: Checkpoint, computation: str, text: str) -> dict[str, Any]:
    """Return what a computation keeps of a key, as rows of text.

    Args:
        checkpoint: After some epoch.
        computation: Its name.
        text: The key as somebody types it, see :func:`~millrace.inspect.keys_of`.

    Raises:
        PipelineError: There is no such computation.
        NotKept: The run has gone on meanwhile.
    """
    found = checkpoint[computation]
    for key in keys_of(text):
        kept = _kept(found, key)
        if kept is not None:
            return {"epoch": checkpoint.epoch, "found": True, "key": key_shown(key), **kept}
    return {"epoch": checkpoint.epoch, "found": False, "key": cut(text)}


def _kept(found: ComputationInspection, key: Any) -> dict[str, Any] | None:
    state, timers, holds = found.get(key), list(found.timers(key)), list(found.holds(key))
    if not timers and not holds and all(each in (None, [], {}) for each in state.values()):
        return None
    cells = [row for name, value in state.items() for row in _cell(name, value)]
    return {
        "cells": cells[:_ROWS_MAX],
        "timers": [
            {"tag": key_shown(timer.tag), "at": millis(timer.at), "domain": str(timer.domain)}
            for timer in timers[:_ROWS_MAX]
        ],
        "holds": [{"at": millis(hold.at)} for hold in holds[:_ROWS_MAX]],
        "more": sum(max(0, len(rows) - _ROWS_MAX) for rows in (cells, timers, holds)),
    }


def _cell(name: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        return [(name, shown(value))]
    if all(isinstance(each, WindowState) for each in value.values()):
        # The entry of a window is where it lies among those of its key, which says nothing.
        return [(name, shown(msgspec.structs.asdict(each))) for each in value.values()]
    return [(f"{name}[{key_shown(entry)}]", shown(each)) for entry, each in value.items()]


T = TypeVar("T")

#: What the page has buttons for. What a run cannot do it refuses itself.
ACTIONS: Final = ("pause", "rate-limit", "resume", "savepoint", "stop", "drain")
#: To drain takes as long as all that waits, a savepoint as long as all state; the others an epoch.
_PATIENCE_S: Final = {"drain": 600.0, "savepoint": 600.0}
_EPOCH_S: Final = 90.0
#: After these there is no run.
_ENDING: Final = ("stop", "drain")
#: Nothing that is asked for is longer.
_BODY_MAX: Final = 4_096
#: How often a page is told that there is still somebody.
_BEAT_S: Final = 10.0
_LOOK_S: Final = 0.2

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "md": "text/plain; charset=utf-8",
}


class Answers:
    """Answers requests about one checkpoint.

    Args:
        state: The checkpoint.
        watcher: Follows it.
        ask: Asks its run for something.
        acts: Whether there is a token to act with.
    """

    def __init__(self, state: HardState, watcher: Watcher, ask: RunQuery, *, acts: bool) -> None:
        self._mailbox = state.mailbox
        self._watcher = watcher
        self._ask = ask
        self._acts = acts
        # Who reads whole key intervals reads them one after the other, beside who acts.
        self._readers = ThreadPoolExecutor(1, "millrace-dashboard-read")
        self._actors = ThreadPoolExecutor(2, "millrace-dashboard-act")
        self._closing = False

    def application(self) -> Starlette:
        """Return what serves them."""
        page = files("millrace.dashboard") / "page"
        served = {
            f"/{one.name}": (one.read_bytes(), _TYPES[one.name.rpartition(".")[2]])
            for one in page.iterdir()
            if one.name.rpartition(".")[2] in _TYPES
        }
        served["/"] = served.pop("/index.html")
        return Starlette(
            routes=[
                *(Route(path, _file(*file)) for path, file in served.items()),
                Route("/api/now", self._now),
                Route("/api/events", self._events),
                Route("/api/history", self._history),
                Route("/api/intervals", self._intervals),
                Route("/api/panes", self._panes),
                Route("/api/key", self._key),
                Route("/api/act", self._act, methods=["POST"]),
            ]
        )

    def close(self) -> None:
        """Send no more."""
        self._closing = True
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._actors.shutdown(wait=False, cancel_futures=True)

    async def _now(self, request: Request) -> Response:
        self._watcher.want()
        if not self._watcher.version:
            await self._in(self._readers, self._watcher.look)
        return Response(self._watcher.now, media_type="application/json")

    async def _events(self, request: Request) -> Response:
        return StreamingResponse(
            self._told(request), media_type="text/event-stream", headers={"x-accel-buffering": "no"}
        )

    async def _told(self, request: Request) -> AsyncIterator[bytes]:
        """Yield what there is now, each time that it changes: who reads slowly misses some."""
        known, quiet = 0, 0.0
        hello = json.dumps({"acts": self._acts, "actions": list(ACTIONS)})
        yield f"event: hello\ndata: {hello}\n\n".encode()
        while not self._closing and not await request.is_disconnected():
            self._watcher.want()
            if self._watcher.version != known:
                known, quiet = self._watcher.version, 0.0
                yield b"event: now\ndata: " + self._watcher.now + b"\n\n"
            elif quiet >= _BEAT_S:
                quiet = 0.0
                yield b": still here\n\n"
            await asyncio.sleep(_LOOK_S)
            quiet += _LOOK_S

    async def _history(self, request: Request) -> Response:
        return await self._read(self._watcher.history)

    async def _intervals(self, request: Request) -> Response:
        name = _asked(request, "computation")
        return await self._read(lambda: self._watcher.heat(name))

    async def _panes(self, request: Request) -> Response:
        name, key = _asked(request, "computation"), _asked(request, "key") or None
        return await self._latest(lambda found: panes_of(found, name, key))

    async def _key(self, request: Request) -> Response:
        name, key = _asked(request, "computation"), _asked(request, "key")
        return await self._latest(lambda found: key_state(found, name, key))

    async def _act(self, request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > _BODY_MAX:
                return _error(413, f"More than {_BODY_MAX} bytes were sent.")
        try:
            asked = json.loads(body)
            what = asked["what"]
            about, generation = str(asked.get("about", "")), int(asked["generation"])
        except (ValueError, TypeError, KeyError, AttributeError):
            return _error(
                400, 'Expected JSON such as {"what": "stop", "generation": 3}, of the run meant.'
            )
        if what not in ACTIONS:
            return _error(400, f"Expected one of {', '.join(ACTIONS)}.")
        patience = _PATIENCE_S.get(what, _EPOCH_S)
        try:
            answer = await self._in(
                self._actors,
                lambda: self._ask(self._mailbox, what, generation, about=about, timeout_s=patience),
            )
        except (StoreError, OSError) as error:
            return _error(409, f"The run cannot be asked: {error}")
        if answer is None:
            return _error(504, f"No run answers within {patience:.0f} s. It was taken back.")
        if answer.done and what in _ENDING:
            self._watcher.ended(generation)
        said = {"done": answer.done, "said": answer.said, "epoch": answer.epoch}
        return JSONResponse(said, 200 if answer.done else 409)

    async def _latest(self, read: Callable[[Checkpoint], Any]) -> Response:
        return await self._read(lambda: self._watcher.latest(read))

    async def _read(self, read: Callable[[], Any]) -> Response:
        self._watcher.want()
        try:
            return JSONResponse(await self._in(self._readers, read))
        except MillraceError as error:
            return _error(404, str(error))

    async def _in(self, threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(threads, call)


def _file(data: bytes, type: str) -> Callable[[Request], Any]:
    async def answer(_: Request) -> Response:
        return Response(data, media_type=type)

    return answer


def _asked(request: Request, name: str) -> str:
    return request.query_params.get(name, "")


def _error(status: int, said: str) -> JSONResponse:
    return JSONResponse({"error": said}, status)
