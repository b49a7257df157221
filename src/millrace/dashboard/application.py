"""What the dashboard answers: its page, what the page shows, and requests to the run.

What is kept of a key is for the search box. The guard decides which requests are answered at all,
and what a browser may do with the answers.

A page of another site can let a browser send requests to this host, also under a name that it has
made to mean this host (DNS rebinding). So the name that was asked for must be one that only this
host has, and a request must not come from another site's page.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import Any, Final, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from millrace.dashboard.panes import panes_of
from millrace.dashboard.plain import cut, key_line, millis, one_line
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
    inspection = checkpoint[computation]
    for key in keys_of(text):
        state = _kept(inspection, key)
        if state is not None:
            return {"epoch": checkpoint.epoch, "found": True, "key": key_line(key), **state}
    columns = inspection.as_columns
    return {"epoch": checkpoint.epoch, "found": False, "key": cut(text), "columns": columns}


def _kept(inspection: ComputationInspection, key: Any) -> dict[str, Any] | None:
    state, timers, holds = (
        inspection.get(key),
        list(inspection.timers(key)),
        list(inspection.holds(key)),
    )
    if not timers and not holds and all(each in (None, [], {}) for each in state.values()):
        return None
    cells = [row for name, value in state.items() for row in _cell(name, value)]
    return {
        "cells": cells[:_ROWS_MAX],
        "timers": [
            {"tag": key_line(timer.tag), "at": millis(timer.at), "domain": str(timer.domain)}
            for timer in timers[:_ROWS_MAX]
        ],
        "holds": [{"at": millis(hold.at)} for hold in holds[:_ROWS_MAX]],
        "more": sum(max(0, len(rows) - _ROWS_MAX) for rows in (cells, timers, holds)),
    }


def _cell(name: str, value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, dict) or not value:
        return [(name, one_line(value))]
    if all(isinstance(each, WindowState) for each in value.values()):
        # The entry of a window is where it lies among those of its key, which says nothing.
        return [(name, one_line(msgspec.structs.asdict(each))) for each in value.values()]
    return [(f"{name}[{key_line(entry)}]", one_line(each)) for entry, each in value.items()]


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
            f"/{asset.name}": (asset.read_bytes(), _TYPES[asset.name.rpartition(".")[2]])
            for asset in page.iterdir()
            if asset.name.rpartition(".")[2] in _TYPES
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
            self._event_stream(request),
            media_type="text/event-stream",
            headers={"x-accel-buffering": "no"},
        )

    async def _event_stream(self, request: Request) -> AsyncIterator[bytes]:
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
        return await self._latest(lambda checkpoint: panes_of(checkpoint, name, key))

    async def _key(self, request: Request) -> Response:
        name, key = _asked(request, "computation"), _asked(request, "key")
        return await self._latest(lambda checkpoint: key_state(checkpoint, name, key))

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
        said = {"done": answer.done, "said": answer.text, "epoch": answer.epoch}
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


#: Who asks and does not read the answer is hung up on after so long.
_SEND_TIMEOUT_S: Final = 20.0

_HEADERS: Final = {
    # Nothing but this host's own files: a script in a key could not run even if it were not text.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guard:
    """Stands before an application.

    Args:
        application: What answers.
        token: What must be shown to act; None where nobody may.
        names: Of this host, besides ``localhost``, its own name, and addresses in digits.
        closed: Whether the token must be shown to read as well.
    """

    def __init__(
        self, application: ASGIApp, token: str | None, names: Collection[str], *, closed: bool
    ) -> None:
        self._application = application
        self._token = None if token is None else token.encode()
        self._names = {"localhost", socket.gethostname().lower(), *map(str.lower, names)}
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1000})
            else:
                await self._application(scope, receive, send)
            return
        refused = self._refused(scope)
        answer: ASGIApp = self._application if refused is None else refused

        async def headed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await asyncio.wait_for(send(message), _SEND_TIMEOUT_S)

        await answer(scope, receive, headed)

    def _refused(self, scope: Scope) -> JSONResponse | None:
        headers, path, method = Headers(scope=scope), scope["path"], scope["method"]
        host = headers.get("host", "")
        if not self._ours(host):
            return _refusal(421, f"This is not {host!r}: ask by an address, or as localhost.")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            return _refusal(403, f"Pages of {origin} may not ask here.")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and path != "/":
            return _refusal(403, "Pages of other sites may not ask here.")
        if not path.startswith("/api/"):
            return None
        if method == "POST":
            if self._token is None:
                return _refusal(
                    403, "This dashboard only shows. Start it with a token to act by it."
                )
            if not self._has_token(headers):
                return _refusal(401, "That is not this dashboard's token.")
        elif self._closed and not self._has_token(headers):
            return _refusal(401, "This dashboard is not on loopback: it takes the token to read.")
        return None

    def _ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        name = name.strip("[]").lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if self._token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token)


def _refusal(status: int, said: str) -> JSONResponse:
    return JSONResponse({"error": said}, status)
