"""The guard: which requests are answered at all, and what a browser may do with the answers.

A page of another site can let a browser send requests to this host, also under a name that it has
made to mean this host (DNS rebinding). So the name that was asked for must be one that only this
host has, and a request must not come from another site's page.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import socket
from collections.abc import Collection
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            if not self._shown(headers):
                return _refusal(401, "That is not this dashboard's token.")
        elif self._closed and not self._shown(headers):
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

    def _shown(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if self._token is None or scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(token.strip().encode("utf-8", "replace"), self._token)


def _refusal(status: int, said: str) -> JSONResponse:
    return JSONResponse({"error": said}, status)
